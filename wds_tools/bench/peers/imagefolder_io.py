"""ImageFolder with torchvision's own decoder instead of Pillow."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch
from torchvision.io import ImageReadMode, decode_image, read_file

from wds_tools.bench.peers import imagefolder
from wds_tools.bench.peers.samples import probe_boxes
from wds_tools.bench.workloads import Setup

__all__ = ["batch_sizes", "probe_boxes", "probe_pixels"]


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    return imagefolder.batch_sizes(setup, seed, _load)


def probe_pixels(setup: Setup) -> Sequence[torch.Tensor] | None:
    """Return the pixels of the probes."""
    return imagefolder.probe_pixels(setup, _load)


def _load(path: str) -> torch.Tensor:
    image: torch.Tensor = decode_image(read_file(path), ImageReadMode.RGB)
    return image
