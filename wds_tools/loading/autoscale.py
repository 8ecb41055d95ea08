"""How many workers: as asked for, one per core, or (``"auto"``) as many as keep the training loop from waiting.

Pure: clock times come in as numbers, a number of workers comes out. Nothing is known of the loop but how long it
waited for each batch, which is what matters: a loop that never waits needs no further worker, however fast the machine.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass
from typing import Literal

from wds_tools.options import available_cores

PART = 64
"""Samples of the smallest part: beside whole batches the main process then takes 1 to 2 us more for each, of the 700
that decoding a photograph takes a worker."""
LENT_SLOTS = 4  # batches that the user may hold without a copy: this one, the last one, and two to spare
NumWorkers = int | Literal["auto"] | None
_log = logging.getLogger("wds_tools")
_MOST_BY_DEFAULT = 16
_HUNGRY = 0.05  # share of its time that a loop waits, above which it gets more workers
_WORTH = 0.25  # share of the gain that perfect scaling would bring, below which more workers were of no use
_LEAST_SECONDS = 0.5  # that are watched before anything is decided: shorter spans are mostly noise
_REST_SECONDS = 60.0  # before another worker is tried where the last ones were of no use; then twice as long, ...
_LEAST_BURSTS = 4  # workers in step deliver one batch each at about the same time; whole bursts are watched


def workers_per_rank() -> int:
    """Return one worker per core, the cores shared among the ranks of this machine."""
    local_ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(1, min(_MOST_BY_DEFAULT, available_cores() // max(1, local_ranks)))


def parts_of(batch_size: int, num_workers: int) -> int:
    """Return how many tasks a batch is: one per worker, so that it is early and few are in the making."""
    return max(1, min(num_workers, batch_size // PART))


def ahead_of(batch_size: int, num_workers: int, prefetch_factor: int) -> int:
    """Return how many batches are in the making: as many samples as torch has, which counts them per worker."""
    return max(1, -(-num_workers * prefetch_factor // parts_of(batch_size, num_workers)))


def slots_for(batch_size: int, num_workers: int, prefetch_factor: int) -> int:
    """Return the batch slots of a loader: one for each batch in the making, and those that the loop holds."""
    return ahead_of(batch_size, num_workers, prefetch_factor) + LENT_SLOTS


@dataclass(frozen=True, slots=True)
class Span:
    """Some batches in a row, as the loop received them.

    Attributes:
        workers: That made them.
        batches: How many.
        seconds: That the loop spent on them, waiting and working.
        waited: Seconds of these that it waited.
    """

    workers: int
    batches: int = 0
    seconds: float = 0.0
    waited: float = 0.0

    def and_one(self, seconds: float, waited: float) -> Span:
        """Return the span with one more batch."""
        return Span(self.workers, self.batches + 1, self.seconds + seconds, self.waited + waited)

    @property
    def is_long_enough(self) -> bool:
        """Whether it is whole bursts, enough of them, and not over in an instant."""
        whole = self.batches % self.workers == 0 and self.batches >= _LEAST_BURSTS * self.workers
        return whole and self.seconds >= _LEAST_SECONDS

    @property
    def hunger(self) -> float:
        """Share of the time that the loop waited."""
        return self.waited / self.seconds

    @property
    def rate(self) -> float:
        """Batches per second."""
        return self.batches / self.seconds


def wanted(now: Span, most: int) -> int:
    """Return how many workers a loop needs: as many as now, or more.

    One that works for a share ``1 - hunger`` of its time needs ``workers / (1 - hunger)`` of them, if twice the workers
    make twice the batches. Nobody knows that before it is tried: at most twice as many are taken at once.

    Args:
        now: What was just seen.
        most: Never more than these.
    """
    if now.hunger <= _HUNGRY:
        return now.workers
    return min(most, math.ceil(now.workers / max(1 - now.hunger, 0.5)))


def paid_off(now: Span, before: Span) -> bool:
    """Tell whether the workers that were added in between made the loop faster; if not, something else holds it up."""
    return now.rate / before.rate - 1 >= _WORTH * (now.workers / before.workers - 1)


class Feeding:
    """The present number of workers of a loader, which grows while its loop goes hungry.

    Workers are never taken away: one too many costs memory, one too few costs training time. Where added workers have
    not paid off, a single one is tried after a minute, then after two, four, ...: what held the loop up may have been
    the start of training, when other ranks start and kernels are compiled.

    Args:
        workers: To start with.
        most: To end with at most; as many as ``workers`` for a number that does not change.
        batch_size: Samples per batch.
        prefetch_factor: Batches in the making per worker.
    """

    def __init__(self, workers: int, *, most: int, batch_size: int, prefetch_factor: int) -> None:
        self.workers = workers
        self.most = most
        self.prefetch_factor = prefetch_factor
        self._batch_size = batch_size
        self._before: Span | None = None  # the span before workers were last added, unless that was of no use
        self._rest, self._rests_until = _REST_SECONDS, -math.inf
        self._span = Span(workers)
        self._last = 0.0  # when the loop got its last batch
        self._unsettled = workers  # batches to come that tell nothing

    @classmethod
    def of(cls, num_workers: NumWorkers, *, batch_size: int, prefetch_factor: int) -> Feeding:
        """Return what `make_loader` was asked for."""
        if num_workers == "auto":
            start, most = 1, workers_per_rank()
        else:
            start = most = workers_per_rank() if num_workers is None else num_workers
        _log.debug(
            "workers: %d now, at most %d (num_workers=%r, usable cores: %d, LOCAL_WORLD_SIZE: %s)",
            *(start, most, num_workers, available_cores(), os.environ.get("LOCAL_WORLD_SIZE", "not set")),
        )
        return cls(start, most=most, batch_size=batch_size, prefetch_factor=prefetch_factor)

    @property
    def parts(self) -> int:
        """Tasks that a batch is divided into."""
        return parts_of(self._batch_size, self.workers)

    @property
    def ahead(self) -> int:
        """Batches in the making."""
        return ahead_of(self._batch_size, self.workers, self.prefetch_factor)

    @property
    def slots(self) -> int:
        """Batch slots that there must be, with all workers that there may be."""
        return slots_for(self._batch_size, self.most, self.prefetch_factor)

    def begin(self) -> None:
        """Begin an epoch: nothing is in the making, so that the first batch of each worker is waited for anyhow."""
        self._unsettled = self.workers

    def took(self, asked: float, got: float) -> bool:
        """Note that the loop asked for a batch and got it, in seconds of any one clock.

        Returns:
            Whether there are more workers from now on.
        """
        since, self._last = self._last, got
        if self.workers == self.most or got < self._rests_until:
            return False
        if self._unsettled:
            self._unsettled -= 1
            return False
        self._span = self._span.and_one(got - since, got - asked)
        return self._span.is_long_enough and self._decide(self._span, got)

    def _decide(self, now: Span, at: float) -> bool:
        self.workers = self._next(now, at)
        self._span = Span(self.workers)
        grown = self.workers > now.workers
        self._unsettled = self.ahead if grown else 0  # what the old workers still have, and a first one of the new
        return grown

    def _next(self, now: Span, at: float) -> int:
        if now.hunger <= _HUNGRY:
            return now.workers
        if self._before and not paid_off(now, self._before):
            self._before, self._rests_until = None, at + self._rest
            self._rest *= 2
            return now.workers
        tries_again = self._before is None and self._rest > _REST_SECONDS
        self._before = now
        return now.workers + 1 if tries_again else wanted(now, self.most)
