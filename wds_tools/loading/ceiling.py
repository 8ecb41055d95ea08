"""What the training step alone can do: one batch, again and again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

WARMUP_STEPS = 3
"""Steps before the measurement begins, in which memory is allocated and kernels are compiled."""


class Ceiling:
    """Return value of `Loader.ceiling`: an iterable over one repeated batch, which measures the loop around it.

    Args:
        load: Returns a batch.
        steps: Number of steps to measure.
        batch_size: Samples per batch.
        device: Device of the batch.

    Attributes:
        images_per_second: Samples per second of the measured steps; None until the loop has ended.
    """

    def __init__(self, load: Callable[[], Any], steps: int, *, batch_size: int, device: torch.device) -> None:
        self.images_per_second: float | None = None
        self._load = load
        self._steps = steps
        self._batch_size = batch_size
        self._device = device

    def __len__(self) -> int:
        """Return the number of steps, with those before the measurement."""
        return WARMUP_STEPS + self._steps

    def __iter__(self) -> Iterator[Any]:
        batch = self._load()
        for _ in range(WARMUP_STEPS):
            yield batch
        begun = self._time()
        for _ in range(self._steps):
            yield batch
        self.images_per_second = self._steps * self._batch_size / (self._time() - begun)

    def __str__(self) -> str:
        if self.images_per_second is None:
            return "the training step alone: not measured yet, iterate until the end"
        return f"the training step alone: {self.images_per_second:,.0f} images/s"

    def _time(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()
