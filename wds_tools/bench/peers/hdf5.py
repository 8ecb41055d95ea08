"""One HDF5 file with a DataLoader: encoded images, or float32 pixels for small images."""

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

_STORED_PIXELS = ("small", "raw")  # workloads for which pixels are stored, as users do


def prepare(setup: Setup, dtype: DTypeLike = np.float32) -> None:
    """Write one file; pixels without chunks or compression, the fastest layout for reading single samples."""
    files = setup.files()
    setup.own_folder.mkdir()
    with h5py.File(_file(setup), "w") as file:
        if setup.workload in _STORED_PIXELS:
            shape = _pixels(setup, files[0][0]).shape
            stored = file.create_dataset("samples", (len(files), *shape), dtype)
            for index, (path, _) in enumerate(files):
                pixels = _pixels(setup, path)
                stored[index] = pixels if dtype == np.uint8 else pixels / np.float32(255)
        else:
            stored = file.create_dataset("samples", len(files), h5py.vlen_dtype(np.uint8))
            for index, (path, _) in enumerate(files):
                stored[index] = np.frombuffer(setup.payload(path), np.uint8)


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    return samples.shuffled_batch_sizes(_Samples(setup), setup, seed)


def probe_pixels(setup: Setup) -> Sequence[torch.Tensor] | None:
    """Return the pixels of the probes."""
    return samples.probe_pixels(setup)


class _Samples(Dataset[Any]):
    """Samples by number; each worker opens the file itself."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._count = len(setup.files())
        self._decode = torch.from_numpy if setup.workload in _STORED_PIXELS else samples.sample_decoder(setup)
        self._stored: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        if self._stored is None:
            self._stored = h5py.File(_file(self._setup), "r")["samples"]
        return self._decode(self._stored[index])


def _file(setup: Setup) -> Path:
    return setup.own_folder / "samples.h5"


def _pixels(setup: Setup, path: Path) -> NDArray[np.uint8]:
    if setup.workload == "raw":
        array: NDArray[np.uint8] = np.load(path)
        return array
    image: torch.Tensor = transform_of(setup.view)(samples.decode_rgb(path.read_bytes()))
    return image.numpy()
