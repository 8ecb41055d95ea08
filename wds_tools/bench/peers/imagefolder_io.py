"""ImageFolder with torchvision's own decoder in place of Pillow."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch
from torchvision.io import ImageReadMode, decode_image, read_file

from wds_tools.bench.peers import imagefolder
from wds_tools.bench.workloads import Setup


def batches(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    return imagefolder.batches(setup, seed, _load)


def pictures(setup: Setup) -> Sequence[torch.Tensor] | None:
    """Return the probes."""
    return imagefolder.pictures(setup, _load)


def _load(path: str) -> torch.Tensor:
    image: torch.Tensor = decode_image(read_file(path), ImageReadMode.RGB)
    return image
