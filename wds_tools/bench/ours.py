"""`make_loader`, as a user calls it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch

from wds_tools.bench.works import Setup
from wds_tools.loader import Loader, make_loader

_FIELDS = {"raw": ("npy",), "bytes": ("bin",)}


def loader_of(setup: Setup, seed: int, *, num_workers: int) -> Loader:
    """Return our loader for a work.

    *raw* and *bytes* go as fields that are no pictures. When the loader takes stored arrays as batches of pixels,
    this and the `pack` of `material` are the places to say so.
    """
    return make_loader(
        setup.shards,
        batch_size=setup.batch_size,
        view=setup.view,
        fields=_FIELDS.get(setup.work, ("image", "label")),
        shuffle=True,
        seed=seed,
        num_workers=num_workers,
    )


def batches(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    with loader_of(setup, seed, num_workers=setup.workers) as loader:
        while True:
            for samples, *_labels in loader:
                yield len(received(samples, setup.work))


def received(samples: Any, work: str) -> Any:
    """Return what a training loop would take: arrays as one tensor."""
    return torch.stack(samples) if work == "raw" else samples


def pictures(setup: Setup) -> Sequence[torch.Tensor] | None:
    """Return the probes, which come first in the shards."""
    if setup.fixed_view is None:
        return None
    with make_loader(
        setup.shards, batch_size=len(setup.probes), view=setup.fixed_view, shuffle=False, num_workers=0
    ) as loader:
        images, _labels = next(iter(loader))
        return list(images.clone())
