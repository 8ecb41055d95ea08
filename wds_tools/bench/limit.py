"""The speed limit of every loader: only decoding the images; for decoded ones only copying, for bytes only reading."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import numpy as np
import simplejpeg
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from wds_tools.bench.workloads import RAW_BYTES, Setup

_MAX_BYTES = 1 << 29  # of files held in memory, which the workers share
_READ_BYTES = 1 << 20


class _DecodedFiles(Dataset[int]):
    """Files in memory; a batch of them is decoded, and the pixels are dropped."""

    def __init__(self, files: Sequence[bytes]) -> None:
        self.files = files

    def __getitems__(self, indexes: Sequence[int]) -> int:
        for index in indexes:
            _decode(self.files[index])
        return len(indexes)


class _CopiedArrays(_DecodedFiles):
    """Arrays in memory; a batch of them is copied into one buffer."""

    def __getitems__(self, indexes: Sequence[int]) -> int:
        batch = bytearray(len(indexes) * RAW_BYTES)
        for row, index in enumerate(indexes):
            batch[row * RAW_BYTES : (row + 1) * RAW_BYTES] = memoryview(self.files[index])[-RAW_BYTES:]
        return len(indexes)


class _ReadShards(Dataset[int]):
    """Shards; each is read completely, and its number of samples is estimated from its size."""

    def __init__(self, setup: Setup) -> None:
        self._shards = sorted(Path(setup.shards).glob("*.tar"))
        self._sample_bytes = sum(path.stat().st_size for path in self._shards) / len(setup.files())
        self._buffer = bytearray(_READ_BYTES)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitems__(self, indexes: Sequence[int]) -> int:
        size = 0
        for index in indexes:
            with self._shards[index].open("rb", buffering=0) as file:
                while read := file.readinto(self._buffer):
                    size += read
        return round(size / self._sample_bytes)


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch, or of each shard for the *bytes* workload."""
    if setup.workload == "bytes":
        shards = _ReadShards(setup)
        return _run(shards, len(shards), 1, setup.workers)
    rng = np.random.default_rng(seed)
    paths = sorted(path for path in Path(setup.tree).rglob("*") if path.is_file())
    files = _read_files([paths[index] for index in rng.permutation(len(paths))])
    dataset = _CopiedArrays(files) if setup.workload == "raw" else _DecodedFiles(files)
    return _run(dataset, len(files), setup.batch_size, setup.workers)


def _run(dataset: Dataset[int], size: int, batch_size: int, workers: int) -> Generator[int]:
    sampler = _EndlessBatchSampler(size, batch_size)
    yield from DataLoader(dataset, batch_sampler=sampler, num_workers=workers, collate_fn=int)  # type: ignore[arg-type]


def probe_pixels(_setup: Setup) -> None:
    """Return None: no image is resized here."""


class _EndlessBatchSampler:
    """Yields the file numbers of batches, starting over after the last file."""

    def __init__(self, files: int, batch_size: int) -> None:
        self._files = files
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        while True:
            yield [index % self._files for index in range(start, start + self._batch_size)]
            start += self._batch_size


def _read_files(paths: Sequence[Path]) -> list[bytes]:
    """Read files until they exceed the memory limit."""
    files: list[bytes] = []
    left = _MAX_BYTES
    for path in paths:
        files.append(path.read_bytes())
        left -= len(files[-1])
        if left < 0:
            break
    return files


def _decode(data: bytes) -> None:
    if data[:2] == b"\xff\xd8":
        try:
            simplejpeg.decode_jpeg(data, "RGB")
        except ValueError:  # CMYK, or extra bytes: Pillow decodes it
            pass
        else:
            return
    with Image.open(io.BytesIO(data)) as image:
        image.convert("RGB")
