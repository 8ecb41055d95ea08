"""Announcement of the blocks that a loader needs next, so that a fetcher has them before they are needed."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.options import RemoteOptions
from wds_tools.order.epoch import EpochOrder
from wds_tools.order.partners import reach_of
from wds_tools.order.planner import EpochPlan, Step
from wds_tools.reading.reader import Reader

Partners: TypeAlias = Callable[[EpochOrder, NDArray[np.int64]], NDArray[np.int64]]

_log = logging.getLogger("wds_tools")
DEFAULT_BYTES = 512 << 20
_STEPS_AT_ONCE = 8  # number of steps whose indexes are read together
_POLL_SECONDS = 0.2
_NO_ROWS = np.empty(0, np.int64)


def read_ahead_bytes(remote: RemoteOptions, window_bytes: int) -> int:
    """Return how many bytes to read before they are needed: by default 512 MiB, less if the cache is small."""
    needed = window_bytes * 17 // 16  # when the cache is full, a sixteenth is freed at once
    if needed > remote.cache_bytes:
        raise OptionError(
            f"cache_bytes={remote.cache_bytes:,} is less than the shuffle window of this machine, {window_bytes:,} "
            f"bytes, so every block would be fetched several times: use cache_bytes of at least {needed:,}, or a "
            "smaller window (shuffle= is its size in samples)"
        )
    return min(remote.read_ahead_bytes or DEFAULT_BYTES, max(1, (remote.cache_bytes - needed) // 2))


def end_of_step(plan: EpochPlan, step: int, partners: Partners | None) -> int:
    """Return a position of the epoch before which all samples that a step needs are, also its partners."""
    order, stop = plan.order, min(plan.position_of(step + 1), plan.end)
    if partners is not None and partners(order, _NO_ROWS).shape[1]:  # they come earlier, or at the start
        return max(stop, min(reach_of(order.identity), order.samples))
    return stop


@dataclass(frozen=True, slots=True)
class _Announced:
    """The blocks that a step needs and no earlier step."""

    step: int
    bytes: int
    blocks: list[tuple[int, int]]  # (shard number, block number)


class ReadAhead:
    """Announces the blocks of some steps of an epoch, in the order of the plan, a limited number of bytes ahead.

    It computes the steps in a thread, so that the training loop does not wait for it. Local files need no
    announcement: for them it does nothing.

    Args:
        reader: The dataset. If it is remote, it is opened again, for the thread.
        limit_bytes: Maximum number of bytes of blocks that are announced and not needed yet.
        partners: Function of the order of an epoch and of positions: the ids of further samples that are needed there.
    """

    def __init__(self, reader: Reader, limit_bytes: int, partners: Partners | None = None) -> None:
        self._reader = reader.reopened() if reader.shards.is_remote else reader
        self._limit_bytes = limit_bytes
        self._partners = partners
        self._is_remote = reader.shards.is_remote
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._current = 0  # index of the step that is needed now
        self._is_stopped = False

    def begin(self, plan: EpochPlan, steps: range) -> None:
        """Start announcing steps.

        The samples of the first step are announced before this method returns.
        """
        self.stop()
        if not self._is_remote or not steps:
            return
        if self._is_packed(plan, steps[0]):
            ids = self._ids(plan, plan.step(steps[0]))
            self._reader.shards.read_indexes_ahead(sorted(set(self._reader.locate(ids)[0].tolist())))
            self._reader.read_samples_ahead(ids, machines=plan.order.identity.lanes)
        self._current, self._is_stopped = steps[0], False
        thread = threading.Thread(target=self._run, args=(plan, steps), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system allows no further thread
            _log.warning("nothing is read ahead (%s): raise the limit of processes with `ulimit -u`", error)
            return
        self._thread = thread

    def advance(self, step: int) -> None:
        """Report that a step is needed now."""
        if self._thread:
            with self._condition:
                self._current = step
                self._condition.notify()

    def stop(self) -> None:
        """Stop announcing."""
        if self._thread:
            with self._condition:
                self._is_stopped = True
                self._condition.notify()
            self._thread.join()
            self._thread = None

    def log_use(self) -> None:
        """Log what was read from URLs, at level DEBUG."""
        self._reader.shards.log_use()

    def _run(self, plan: EpochPlan, steps: range) -> None:
        """Main function of the thread."""
        try:
            self._announce(plan, steps)
        except Exception as error:  # the worker that reads the block raises it where the user sees it
            _log.debug("reading ahead stopped: %s", error)

    def _announce(self, plan: EpochPlan, steps: range) -> None:
        announced: dict[tuple[int, int], int] = {}  # by block: the step that needs it first, in this pass
        ahead: deque[_Announced] = deque()  # steps that are not needed yet
        used: deque[_Announced] = deque()
        span = self._steps_per_block(plan)
        bytes_ahead = 0
        for step, ids in self._steps(plan, steps):
            start = -1 if span is None else step.number - span  # weights read the dataset several times in an epoch
            blocks = [key for key in self._reader.blocks_of(ids) if announced.get(key, -1) < max(start, 0)]
            announced.update(dict.fromkeys(blocks, step.number))
            extents = [self._reader.block(*key) for key in blocks]
            self._reader.shards.read_ahead([shard for shard, _ in blocks], extents)
            ahead.append(_Announced(step.number, sum(block.stop - block.start for block in extents), blocks))
            bytes_ahead += ahead[-1].bytes
            while True:
                with self._condition:
                    current, is_stopped = self._current, self._is_stopped
                if is_stopped:
                    return
                while ahead and ahead[0].step <= current:
                    bytes_ahead -= ahead[0].bytes
                    used.append(ahead.popleft())
                while span is not None and used and used[0].step < current - span:
                    past = used.popleft()
                    out = [key for key in past.blocks if announced[key] == past.step]
                    for key in out:
                        del announced[key]
                    self._reader.shards.release([shard for shard, _ in out], [self._reader.block(*key) for key in out])
                if bytes_ahead < self._limit_bytes:
                    break
                with self._condition:
                    self._condition.wait_for(lambda seen=current: self._current != seen or self._is_stopped)  # type: ignore[misc]

    def _steps(self, plan: EpochPlan, indexes: range) -> Iterator[tuple[Step, NDArray[np.int64]]]:
        """Yield steps and the ids that each needs; the indexes that some of them need are read together."""
        for start in range(0, len(indexes), _STEPS_AT_ONCE):
            part = indexes[start : start + _STEPS_AT_ONCE]
            while not self._is_packed(plan, part[-1]):  # the training loop finds new shards
                with self._condition:
                    if self._condition.wait_for(lambda: self._is_stopped, _POLL_SECONDS):
                        return
            steps = [plan.step(index) for index in part]
            ids = [self._ids(plan, step) for step in steps]
            self._reader.shards.read_indexes_ahead(sorted(set(self._reader.locate(np.concatenate(ids))[0].tolist())))
            yield from zip(steps, ids, strict=True)

    def _is_packed(self, plan: EpochPlan, step: int) -> bool:
        return plan.order.is_packed(end_of_step(plan, step, self._partners))

    def _ids(self, plan: EpochPlan, step: Step) -> NDArray[np.int64]:
        """Return the ids of the samples that a step needs."""
        return step.ids if self._partners is None else np.append(step.ids, self._partners(plan.order, step.positions))

    def _steps_per_block(self, plan: EpochPlan) -> int | None:
        """Return a number of steps after which no sample of a block is left; None if it is not known."""
        reach = plan.order.reach
        if reach is not None and self._partners is not None and self._partners(plan.order, _NO_ROWS).shape[1]:
            reach += reach_of(plan.order.identity)
        return None if reach is None else 2 + -(-reach // plan.global_batch)
