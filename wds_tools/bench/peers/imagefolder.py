"""torchvision's ImageFolder with a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader

from wds_tools.bench.peers.samples import probe_boxes, shuffled_batch_sizes
from wds_tools.bench.peers.transforms import WithBoxes, transform_for, transform_of
from wds_tools.bench.workloads import Setup

__all__ = ["batch_sizes", "probe_boxes", "probe_pixels"]


class _Samples(ImageFolder):  # type: ignore[misc]
    """ImageFolder without labels, which take no measurable time in any loader."""

    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)[0]


class _BoxedSamples(_Samples):
    """The same with the boxes of each image, which are in memory."""

    def __init__(self, setup: Setup, load: Callable[[str], Any]) -> None:
        super().__init__(setup.tree, loader=load, is_valid_file=_accept)
        self._boxes, self._transform = setup.boxes(), WithBoxes(setup.view)

    def __getitem__(self, index: int) -> Any:
        path = self.samples[index][0]
        return self._transform(self.loader(path), self._boxes[Path(path).relative_to(self.root).as_posix()])


def batch_sizes(setup: Setup, seed: int, load: Callable[[str], Any] = default_loader) -> Generator[int]:
    """Yield the number of samples of each batch."""
    if setup.workload in _LOADERS:
        load = _LOADERS[setup.workload]
    if setup.has_boxes:
        return shuffled_batch_sizes(_BoxedSamples(setup, load), setup, seed)
    transform = transform_for(setup) if setup.view else None
    return shuffled_batch_sizes(_Samples(setup.tree, transform, loader=load, is_valid_file=_accept), setup, seed)


def probe_pixels(setup: Setup, load: Callable[[str], Any] = default_loader) -> Sequence[torch.Tensor] | None:
    """Return the pixels of the probes."""
    if setup.fixed_view is None:
        return None
    transform = transform_of(setup.fixed_view)
    return [transform(load(str(Path(setup.tree) / probe))) for probe in setup.probes]


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _accept(_path: str) -> bool:
    return True


_LOADERS: dict[str, Callable[[str], Any]] = {"raw": np.load, "bytes": _read}
