"""One HDF5 file behind a DataLoader: encoded pictures, or ready float32 pixels where they are small."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch.utils.data import Dataset

from wds_tools.bench.peers import samples
from wds_tools.bench.peers.transforms import transform_of
from wds_tools.bench.workloads import Setup

_READY = ("small", "raw")  # works of which pixels are stored, as users do


def prepare(setup: Setup, dtype: DTypeLike = np.float32) -> None:
    """Write one file; pixels in one piece without chunks or compression, which read fastest by the sample."""
    files = setup.files()
    setup.own.mkdir()
    with h5py.File(_place(setup), "w") as file:
        if setup.work in _READY:
            shape = _pixels(setup, files[0][0]).shape
            stored = file.create_dataset("samples", (len(files), *shape), dtype)
            for number, (path, _) in enumerate(files):
                pixels = _pixels(setup, path)
                stored[number] = pixels if dtype == np.uint8 else pixels / np.float32(255)
        else:
            stored = file.create_dataset("samples", len(files), h5py.vlen_dtype(np.uint8))
            for number, (path, _) in enumerate(files):
                stored[number] = np.frombuffer(setup.payload(path), np.uint8)


def batches(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    return samples.shuffled(_Samples(setup), setup, seed)


def pictures(setup: Setup) -> Sequence[torch.Tensor] | None:
    """Return the probes, as they are stored."""
    return samples.pictures(setup)


class _Samples(Dataset[Any]):
    """Samples by number; each worker opens the file itself."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._count = len(setup.files())
        self._open = torch.from_numpy if setup.work in _READY else samples.opener(setup)
        self._stored: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Any:
        if self._stored is None:
            self._stored = h5py.File(_place(self._setup), "r")["samples"]
        return self._open(self._stored[number])


def _place(setup: Setup) -> Path:
    return setup.own / "samples.h5"


def _pixels(setup: Setup, path: Path) -> NDArray[np.uint8]:
    if setup.work == "raw":
        array: NDArray[np.uint8] = np.load(path)
        return array
    image: torch.Tensor = transform_of(setup.view)(samples.decoded(path.read_bytes()))
    return image.numpy()
