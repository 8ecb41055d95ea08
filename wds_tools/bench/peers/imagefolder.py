"""torchvision's ImageFolder behind a DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision.datasets import ImageFolder
from torchvision.datasets.folder import default_loader

from wds_tools.bench.peers.samples import shuffled
from wds_tools.bench.peers.transforms import transform_of
from wds_tools.bench.workloads import Setup


class _Samples(ImageFolder):  # type: ignore[misc]
    """ImageFolder; labels cost no contender anything, so they are left out."""

    def __getitem__(self, number: int) -> Any:
        return super().__getitem__(number)[0]


def batches(setup: Setup, seed: int, load: Callable[[str], Any] = default_loader) -> Generator[int]:
    """Yield the number of samples of each batch."""
    if setup.work in _LOADERS:
        load = _LOADERS[setup.work]
    transform = transform_of(setup.view) if setup.view else None
    return shuffled(_Samples(setup.tree, transform, loader=load, is_valid_file=_any), setup, seed)


def pictures(setup: Setup, load: Callable[[str], Any] = default_loader) -> Sequence[torch.Tensor] | None:
    """Return the probes."""
    if setup.fixed_view is None:
        return None
    transform = transform_of(setup.fixed_view)
    return [transform(load(str(Path(setup.tree) / probe))) for probe in setup.probes]


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _any(_path: str) -> bool:
    return True


_LOADERS: dict[str, Callable[[str], Any]] = {"raw": np.load, "bytes": _read}
