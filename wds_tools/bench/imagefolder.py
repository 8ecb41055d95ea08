"""torchvision's ImageFolder behind a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader

from wds_tools.bench.transforms import transform_of
from wds_tools.bench.works import Setup


def batches(setup: Setup, seed: int, load: Callable[[str], Any] = default_loader) -> Generator[int]:
    """Yield the number of images of each batch."""
    loader = DataLoader(
        ImageFolder(setup.tree, transform_of(setup.view), loader=load),
        batch_size=setup.batch_size,
        shuffle=True,
        num_workers=setup.workers,
        persistent_workers=True,
        drop_last=True,
        generator=torch.Generator().manual_seed(seed),
    )
    while True:
        for images, _labels in loader:
            yield len(images)


def pictures(setup: Setup, load: Callable[[str], Any] = default_loader) -> Sequence[torch.Tensor]:
    """Return the probes."""
    transform = transform_of(setup.fixed_view)
    return [transform(load(str(Path(setup.tree) / probe))) for probe in setup.probes]
