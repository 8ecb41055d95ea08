"""`make_loader`, as a user calls it."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch

from wds_tools.bench.works import Setup
from wds_tools.loader import make_loader


def batches(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of images of each batch."""
    with make_loader(
        setup.shards,
        batch_size=setup.batch_size,
        view=setup.view,
        shuffle=True,
        seed=seed,
        num_workers=setup.workers,
    ) as loader:
        while True:
            for images, _labels in loader:
                yield len(images)


def pictures(setup: Setup) -> Sequence[torch.Tensor]:
    """Return the probes, which come first in the shards."""
    with make_loader(
        setup.shards, batch_size=len(setup.probes), view=setup.fixed_view, shuffle=False, num_workers=0
    ) as loader:
        images, _labels = next(iter(loader))
        return list(images.clone())
