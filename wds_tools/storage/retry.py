"""The policy for failed requests, shared by downloads and uploads: wait with full jitter, honour Retry-After."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from wds_tools.errors import StoreError, WdsToolsError
from wds_tools.options import check_seconds
from wds_tools.storage.failures import CHECK_NETWORK, Failure, clean_url, failure_of, host_of

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
            by its own time limits.
        first_seconds: Longest wait before the second attempt; doubled for each further attempt.
        most_seconds: Longest wait between two attempts, except by ``Retry-After``.
        connect_seconds: Time limit for a connection.
        idle_seconds: Time in which `progress_bytes` have to arrive, or else the answer is cut.
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


class Attempts:
    """The attempts of one request. It reads no clock and does not wait.

    Args:
        policy: The policy.
        now: Current time in seconds, of any clock that does not go back.
        uniform: Function (low, high) that returns a random number.
        least: Number of attempts that are made even if the time is over.
    """

    def __init__(
        self,
        policy: RetryPolicy,
        now: float,
        uniform: Callable[[float, float], float] = _random.uniform,
        *,
        least: int = 1,
    ) -> None:
        self._policy = policy
        self._least = least
        self._uniform = uniform
        self._progress_at = now
        self._failures = 0  # since the last progress
        self._warned = False
        self.started = now
        self.count = 0

    def delay_after(self, failure: Failure, now: float) -> float | None:
        """Return the seconds to wait before the next attempt, or None if there is none.

        The last attempt starts when the time of the policy is over, if it was not over before. An attempt that
        received `RetryPolicy.progress_bytes` starts the time again.
        """
        self.count += 1
        if failure.received >= self._policy.progress_bytes:
            self._progress_at = now
            self._failures = 0
        left = self._progress_at + self._policy.seconds - now
        if not failure.retry or (left <= 0 and self.count >= self._least):
            return None
        longest = min(self._policy.most_seconds, self._policy.first_seconds * 2 ** min(self._failures, 60))
        self._failures += 1
        delay = self._uniform(0, longest) + max(0.0, failure.retry_after or 0.0)
        return min(delay, left if left > 0 else longest)

    def is_due_to_warn(self, now: float) -> bool:
        """Return True once: when half of the time of the policy has passed without progress."""
        due = not self._warned and now - self._progress_at >= self._policy.seconds / 2
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
    least_attempts: int = 1,
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
        least_attempts: Number of attempts that are made even if the time of the policy is over.

    Raises:
        FileNotFoundError: The object does not exist.
        StoreError: All attempts failed, the error is permanent, or ``stop`` was set.
    """
    stop = stop or threading.Event()
    final: tuple[type[Exception], ...] = (WdsToolsError, *passed_on)
    attempts = Attempts(policy, time.monotonic(), least=least_attempts)
    error_of = partial(_error, attempts, url, host or host_of(url), shard, offset, verb)
    while True:
        try:
            return request()
        except final:
            raise
        except Exception as error:  # each client library has its own errors
            failure = failure_of(error, secrets)
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
        "%s for %.0f s: %s; trying for up to %.0f s in all",
        what,
        now - attempts.started,
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
    failure: Failure,
) -> Exception:
    location = clean_url(url)
    if failure.missing:
        reason = f": {failure.reason}" if failure.reason and location not in failure.reason else ""
        return FileNotFoundError(f"{location} does not exist{reason}")
    seconds = time.monotonic() - attempts.started
    tried = f"{attempts.count} attempt{'s' * (attempts.count != 1)} in {seconds:.1f} s"
    remedy = failure.remedy or (CHECK_NETWORK if failure.retry else "")
    text = f"{location} cannot be {verb}: {failure.reason} ({f'host {host}, ' if host else ''}{tried})"
    return StoreError(text + (f"; {remedy}" if remedy else ""), shard=shard, offset=offset() if offset else None)
