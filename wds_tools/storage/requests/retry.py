"""The policy for failed requests, shared by downloads and uploads: wait with full jitter, honour Retry-After."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from wds_tools.errors import MissingFileError, StoreError, WdsToolsError
from wds_tools.options import check_seconds
from wds_tools.storage.requests.failures import CHECK_NETWORK, Failure, clean_url, failure_of, host_of

_log = logging.getLogger("wds_tools")
_Result = TypeVar("_Result")
_random = random.SystemRandom()  # processes that start together must not wait for the same times
_warned: dict[str, float] = {}  # host → time of the last warning: many requests wait for the same host
_warned_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When failed requests are repeated, and when one counts as failed.

    Attributes:
        seconds: Time without progress after which a request is given up. An attempt that has started by then ends
            by its own time limits. Requests of one client that fail together share this time, see `Outages`.
        first_seconds: Longest wait before the second attempt; doubled for each further attempt.
        most_seconds: Longest wait between two attempts, except by ``Retry-After``.
        connect_seconds: Time limit for a connection.
        idle_seconds: Time in which `progress_bytes` have to arrive, or else the response is cut off.
        progress_bytes: Number of bytes that counts as progress.
    """

    seconds: float = 300.0
    first_seconds: float = 0.1
    most_seconds: float = 20.0
    connect_seconds: float = 10.0
    idle_seconds: float = 5.0
    progress_bytes: int = 100_000

    def __post_init__(self) -> None:
        check_seconds("retry_seconds", self.seconds)

    @property
    def attempt_seconds(self) -> float:
        """Longest time of an attempt that makes no progress."""
        return self.connect_seconds + self.idle_seconds


@dataclass(slots=True)
class Outage:
    """Requests that fail.

    Attributes:
        since: Time since which none has succeeded.
        until: Time until which the next attempt will have ended. After it, requests have the whole time again.
        count: Number of attempts that failed.
    """

    since: float
    until: float
    count: int = 0


class Outages:
    """Since when the requests of a client fail: those for one object, and all of them. Threads may share it.

    A request often waits for others: blocks are read ahead by a limited number of threads. A request that begins during
    an outage has only what is left of the time of the policy, but at least one attempt. So a server that is gone is
    reported when that time is over, however many requests wait for one another.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._outages: dict[str, Outage] = {}  # by URL of an object, "" for all objects
        self._answered_at = -math.inf

    def current(self, url: str, now: float) -> Outage | None:
        """Return the longest outage that affects an object."""
        with self._lock:
            active = [outage for name in ("", url) if (outage := self._outages.get(name)) and now < outage.until]
            return min((replace(outage) for outage in active), key=lambda outage: outage.since, default=None)

    def failed(self, url: str, *, since: float, now: float, until: float) -> None:
        """Record a failed attempt that can be repeated.

        Args:
            url: URL of the object.
            since: Time since which this request has made no progress.
            now: Current time.
            until: Time until which another attempt for the object will have ended.
        """
        with self._lock:
            for name, begun in ((url, since), ("", max(since, self._answered_at))):
                outage = self._outages.get(name)
                if outage is None or now >= outage.until:
                    outage = self._outages[name] = Outage(begun, until)
                outage.until = max(outage.until, until)
                outage.count += 1

    def answered(self, url: str, now: float) -> None:
        """Note that bytes of an object have arrived."""
        with self._lock:
            self._answered_at = now
            self._outages.pop("", None)
            self._outages.pop(url, None)


class Attempts:
    """The attempts of one request. It reads no clock and does not wait.

    Args:
        now: Current time in seconds, of any clock that does not go back.
        uniform: Function (low, high) that returns a random number.
        least: Number of attempts that are made even if the time is over.
        url: URL of the object, for ``outages``.
        outages: Outages of the client, whose time this request shares.

    Attributes:
        since: Time of the last progress, or of the start of the request or of an outage.
        count: Number of attempts that failed since then.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        now: float,
        uniform: Callable[[float, float], float] = _random.uniform,
        *,
        least: int = 1,
        url: str = "",
        outages: Outages | None = None,
    ) -> None:
        self._policy = policy
        self._least = least
        self._uniform = uniform
        self._url = url
        self._outages = outages or Outages()
        self._failures = 0  # of this request since the last progress: other requests do not make its waits longer
        self._warned = False
        outage = self._outages.current(url, now)
        self.since = outage.since if outage else now
        self.count = outage.count if outage else 0

    def delay_after(self, failure: Failure, now: float) -> float | None:
        """Return the seconds to wait before the next attempt, or None if there is none.

        The last attempt starts when the time of the policy is over, if it was not over before. An attempt that
        received `RetryPolicy.progress_bytes` starts the time again.
        """
        if failure.received >= self._policy.progress_bytes:
            self.since, self.count, self._failures = now, 0, 0
            self.succeeded(now)
        self.count += 1
        delay = self._delay_after(failure, now)
        if failure.retry:
            longest = max(self._policy.most_seconds, self._policy.attempt_seconds)
            self._outages.failed(self._url, since=self.since, now=now, until=now + (delay or 0.0) + longest)
        return delay

    def _delay_after(self, failure: Failure, now: float) -> float | None:
        left = self.since + self._policy.seconds - now
        if not failure.retry or (left <= 0 and self.count >= self._least):
            return None
        longest = min(self._policy.most_seconds, self._policy.first_seconds * 2 ** min(self._failures, 60))
        self._failures += 1
        delay = self._uniform(0, longest) + max(0.0, failure.retry_after or 0.0)
        return min(delay, left if left > 0 else longest)

    def succeeded(self, now: float) -> None:
        """Note that bytes of the object have arrived, which ends an outage."""
        self._outages.answered(self._url, now)

    def is_due_to_warn(self, now: float) -> bool:
        """Return True once: when half of the time of the policy has passed without progress."""
        due = not self._warned and now - self.since >= self._policy.seconds / 2
        self._warned = self._warned or due
        return due


def call(
    policy: RetryPolicy,
    request: Callable[[], _Result],
    *,
    url: str,
    host: str = "",
    shard: str | None = None,
    offset: Callable[[], int] | None = None,
    secrets: frozenset[str] = frozenset(),
    stop: threading.Event | None = None,
    wait: Callable[[float], object] | None = None,
    passed_on: tuple[type[Exception], ...] = (),
    verb: str = "read",
    is_listed: bool = False,
    least_attempts: int = 1,
    outages: Outages | None = None,
) -> _Result:
    """Call ``request()``, again after failures that another attempt can overcome, and return its result.

    Args:
        policy: The policy.
        request: Function that sends the request. Its errors are classified by `failures.failure_of`; a
            `failures.Failure` has its own flag. Errors of this package are passed on.
        url: URL of the object, for messages.
        host: Host that the request is sent to, for messages; default: the one of the URL.
        shard: Name of the shard, for the error.
        offset: Returns the byte offset that was reached, for the error.
        secrets: Texts that no message may contain.
        stop: Ends a wait between two attempts, and with it the request.
        wait: Function that waits for a number of seconds, instead of ``stop``. It may raise an error.
        passed_on: Further errors that are passed on.
        verb: What the request does to the URL, as a participle, for messages.
        is_listed: Whether a manifest lists the object, for the error if it does not exist.
        least_attempts: Number of attempts that are made even if the time of the policy is over.
        outages: Outages of the client, whose time this request shares; None if it is on its own.

    Raises:
        MissingFileError: The object does not exist.
        StoreError: All attempts failed, the error is permanent, or ``stop`` was set.
    """
    stop = stop or threading.Event()
    final: tuple[type[Exception], ...] = (WdsToolsError, *passed_on)
    attempts = Attempts(policy, time.monotonic(), least=least_attempts, url=url, outages=outages)
    error_of = partial(_error, attempts, url, host or host_of(url), shard, offset, verb, is_listed)
    while True:
        try:
            result = request()
        except final:
            raise
        except Exception as error:  # each client library has its own errors
            failure = failure_of(error, secrets)
        else:
            attempts.succeeded(time.monotonic())
            return result
        # Outside of the handler, so that the new error does not refer to one of a library, which may show secrets.
        now = time.monotonic()
        delay = attempts.delay_after(failure, now)
        if stop.is_set() and failure.retry:
            failure, delay = Failure(f"closed after a failure: {failure.reason}", retry=False), None
        if delay is None:
            raise error_of(failure)
        _log.debug("%s: attempt %d failed, next in %.1f s: %s", clean_url(url), attempts.count, delay, failure.reason)
        if attempts.is_due_to_warn(now + delay):
            _warn_once(policy, now, host or host_of(url), f"{clean_url(url)} could not be {verb}", attempts, failure)
        if wait:
            wait(delay)
        elif stop.wait(delay):
            raise error_of(Failure(f"closed after a failure: {failure.reason}", retry=False))


def _warn_once(policy: RetryPolicy, now: float, host: str, what: str, attempts: Attempts, failure: Failure) -> None:
    """Log a warning, unless one about the same host was logged within half of the time of the policy."""
    with _warned_lock:
        if now - _warned.get(host, -math.inf) < policy.seconds / 2:
            return
        _warned[host] = now
    _log.warning(
        "%s for %.0f s: %s; the attempts end after %.0f s without progress",
        what,
        now - attempts.since,
        failure.reason,
        policy.seconds,
    )


def _error(
    attempts: Attempts,
    url: str,
    host: str,
    shard: str | None,
    offset: Callable[[], int] | None,
    verb: str,
    is_listed: bool,
    failure: Failure,
) -> StoreError:
    location = clean_url(url)
    if failure.missing:
        reason = f" ({failure.reason})" if failure.reason and location not in failure.reason else ""
        text = "is missing, but its manifest lists it" if is_listed else "does not exist"
        return MissingFileError(f"{location} {text}{reason}{': upload it again' if is_listed else ''}", shard=shard)
    seconds = time.monotonic() - attempts.since
    tried = f"{attempts.count} attempt{'s' * (attempts.count != 1)} in {seconds:.1f} s"
    remedy = failure.remedy or (CHECK_NETWORK if failure.retry else "")
    text = f"{location} cannot be {verb}: {failure.reason} ({f'host {host}, ' if host else ''}{tried})"
    return StoreError(text + (f"; {remedy}" if remedy else ""), shard=shard, offset=offset() if offset else None)
