"""How our loader spends its time: its functions are wrapped with timers, in the process of the benchmark only.

The timer of a stage stops while a stage inside it runs, so the times add up to the total. The
loader itself has no code for this: the wrappers are put in here and removed afterwards.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from wds_tools.bench.ours import open_loader
from wds_tools.bench.workloads import MAIN_PROCESS_STAGES, WORKER_STAGES, Setup
from wds_tools.format import jpeg
from wds_tools.images import decode, native, resize
from wds_tools.loading import assemble, workers
from wds_tools.reading import reader, shardset


@dataclass(frozen=True, slots=True)
class TimedFunction:
    """A function to time: ``owner.name``, or ``owner.library.name`` if it belongs to a library that the owner uses."""

    stage: str
    owner: Any
    name: str
    library: str = ""


TIMED_FUNCTIONS = (
    TimedFunction("read", shardset.ShardSet, "fetch_extents"),
    TimedFunction("verify", reader, "xxh3_64_intdigest", library="xxhash"),
    TimedFunction("slice", jpeg, "baseline_frame"),
    TimedFunction("slice", decode, "decode_slice"),
    TimedFunction("slice", decode, "decode_top"),
    TimedFunction("decode", decode, "decode_jpeg", library="simplejpeg"),
    TimedFunction("decode", assemble, "decode_rgb"),
    TimedFunction("decode", assemble, "decode_field"),
    TimedFunction("resize", resize, "_resize"),
    TimedFunction("write", assemble, "render_region"),
    TimedFunction("write", native, "copy_pixels"),
    TimedFunction("wait", workers, "wait"),
)


class Timer:
    """Seconds by stage, without those of the stages inside."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time added to a stage."""

        def timed(*arguments: Any, **options: Any) -> Any:
            self._add_elapsed()
            self._running.append(stage)
            try:
                return function(*arguments, **options)
            finally:
                self._add_elapsed()
                self._running.pop()

        return timed

    def _add_elapsed(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


def measure_stages(setup: Setup, seconds: float) -> dict[str, float]:
    """Return the microseconds per sample of each stage; 0 for a stage that the workload does not have.

    The stages of a worker are measured in this process, without workers; those of the main process
    with workers.
    """
    torch.set_num_threads(1)  # as in a worker
    alone, samples, elapsed = _run(setup, seconds, num_workers=0)
    alone["other"] = elapsed - sum(alone[stage] for stage in WORKER_STAGES[:-1])
    result = {stage: 1e6 * alone[stage] / samples for stage in WORKER_STAGES}
    main, samples, elapsed = _run(setup, seconds, num_workers=setup.workers)
    main["hand-over"] = elapsed - main["wait"]
    return {**result, **{stage: 1e6 * main[stage] / samples for stage in MAIN_PROCESS_STAGES}}


def _run(setup: Setup, seconds: float, *, num_workers: int) -> tuple[dict[str, float], int, float]:
    """Run the loader; return seconds by stage, the number of samples, and the elapsed seconds."""
    timer = Timer()
    with open_loader(setup, 0, num_workers=num_workers) as loader:
        batches = (batch for _ in iter(int, 1) for batch in loader)  # epoch after epoch
        for _ in range(2 * num_workers + 1):
            next(batches)
        with wrapped(timer):  # after the workers have started, which therefore run unchanged code
            begun, samples = time.perf_counter(), 0
            while (elapsed := time.perf_counter() - begun) < seconds:
                samples += len(next(batches)[0])
    return timer.seconds, samples, elapsed


@contextmanager
def wrapped(timer: Timer) -> Iterator[None]:
    """Time the functions of the loader; on leaving, restore them and add the times of compiled code."""
    with ExitStack() as undo:
        for timed in TIMED_FUNCTIONS:
            attribute = timed.library or timed.name
            original = getattr(timed.owner, attribute)
            undo.callback(setattr, timed.owner, attribute, original)
            setattr(timed.owner, attribute, _replacement(timer, timed, original))
        undo.callback(setattr, native, "render_jpegs", native.render_jpegs)
        compiled = np.zeros(len(native.STEPS))  # compiled code measures its own steps
        native.render_jpegs = partial(native.render_jpegs, timings=compiled)
        yield
    for stage, seconds in zip(native.STEPS, compiled.tolist(), strict=True):
        timer.seconds[stage] += seconds


def _replacement(timer: Timer, timed: TimedFunction, original: Any) -> Any:
    if not timed.library:
        return timer.timed(timed.stage, original)
    assert isinstance(original, ModuleType)  # others use the library too, so the owner gets a copy of it
    return SimpleNamespace(**{**vars(original), timed.name: timer.timed(timed.stage, getattr(original, timed.name))})
