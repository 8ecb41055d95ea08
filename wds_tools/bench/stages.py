"""Where our own path spends its time: the loader's functions, wrapped for this process alone.

The clock of a stage stops while a stage inside it runs, so that their sum is the whole. The normal path knows nothing
of this: the wrappers are put in here and taken out again.
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

from wds_tools.bench.ours import loader_of
from wds_tools.bench.workloads import IN_A_WORKER, IN_THE_MAIN_PROCESS, Setup
from wds_tools.format import jpeg
from wds_tools.images import decode, native, resize
from wds_tools.loading import assemble, workers
from wds_tools.reading import reader, shardset


@dataclass(frozen=True, slots=True)
class _Wrap:
    """A function to be timed: ``owner.name``; ``inside`` says in which library that the owner uses, if so."""

    stage: str
    owner: Any
    name: str
    inside: str = ""


_WRAPS = (
    _Wrap("read", shardset.ShardSet, "fetch"),
    _Wrap("verify", reader, "xxh3_64_intdigest", inside="xxhash"),
    _Wrap("slice", jpeg, "baseline_frame"),
    _Wrap("slice", decode, "decode_slice"),
    _Wrap("slice", decode, "decode_top"),
    _Wrap("decode", decode, "decode_jpeg", inside="simplejpeg"),
    _Wrap("decode", assemble, "decode_rgb"),
    _Wrap("decode", assemble, "decode_field"),
    _Wrap("resize", resize, "_resize"),
    _Wrap("write", assemble, "render_region"),
    _Wrap("write", native, "copy_pixels"),
    _Wrap("wait", workers, "wait"),
)


class _Clock:
    """Time by stage, that of stages inside left out."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._running: list[str] = []
        self._since = 0.0

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with its time counted."""

        def timed(*arguments: Any, **options: Any) -> Any:
            self._switch()
            self._running.append(stage)
            try:
                return function(*arguments, **options)
            finally:
                self._switch()
                self._running.pop()

        return timed

    def _switch(self) -> None:
        now = time.perf_counter()
        if self._running:
            self.seconds[self._running[-1]] += now - self._since
        self._since = now


def measure(setup: Setup, seconds: float) -> dict[str, float]:
    """Return the microseconds per sample of each stage.

    What workers do is measured in this process, without workers; handing over and waiting in the main process of a
    loader with workers. A stage that this path does not have is 0.
    """
    torch.set_num_threads(1)  # as in a worker
    alone, samples, elapsed = _run(setup, seconds, num_workers=0)
    alone["other"] = elapsed - sum(alone[stage] for stage in IN_A_WORKER[:-1])
    found = {stage: 1e6 * alone[stage] / samples for stage in IN_A_WORKER}
    main, samples, elapsed = _run(setup, seconds, num_workers=setup.workers)
    main["hand-over"] = elapsed - main["wait"]
    return {**found, **{stage: 1e6 * main[stage] / samples for stage in IN_THE_MAIN_PROCESS}}


def _run(setup: Setup, seconds: float, *, num_workers: int) -> tuple[dict[str, float], int, float]:
    """Return seconds by stage, the number of samples, and how long they took."""
    clock = _Clock()
    with loader_of(setup, 0, num_workers=num_workers) as running:
        batches = (batch for _ in iter(int, 1) for batch in running)  # epoch after epoch
        for _ in range(2 * num_workers + 1):
            next(batches)
        with _wrapped(clock):  # only now, so that workers are what they always are
            begun, samples = time.perf_counter(), 0
            while (elapsed := time.perf_counter() - begun) < seconds:
                samples += len(next(batches)[0])
    return clock.seconds, samples, elapsed


@contextmanager
def _wrapped(clock: _Clock) -> Iterator[None]:
    with ExitStack() as undo:
        for wrap in _WRAPS:
            name = wrap.inside or wrap.name
            before = getattr(wrap.owner, name)
            undo.callback(setattr, wrap.owner, name, before)
            setattr(wrap.owner, name, _timed(clock, wrap, before))
        undo.callback(setattr, native, "render_jpegs", native.render_jpegs)
        compiled = np.zeros(len(native.STEPS))  # compiled code tells its own times
        native.render_jpegs = partial(native.render_jpegs, timings=compiled)
        yield
    for stage, seconds in zip(native.STEPS, compiled.tolist(), strict=True):
        clock.seconds[stage] += seconds


def _timed(clock: _Clock, wrap: _Wrap, before: Any) -> Any:
    if not wrap.inside:
        return clock.timed(wrap.stage, before)
    assert isinstance(before, ModuleType)  # not to be changed itself: others use it too
    return SimpleNamespace(**{**vars(before), wrap.name: clock.timed(wrap.stage, getattr(before, wrap.name))})
