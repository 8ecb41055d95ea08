"""What no loader can pass: decoding the pictures and nothing else; of decoded ones copying, of bytes reading."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from wds_tools.bench.workloads import RAW_BYTES, Setup

_MOST_BYTES = 1 << 29  # of files held in memory; workers share them
_READ_BYTES = 1 << 20


class _Decoded(Dataset[int]):
    """Files in memory; asked for a batch of them, it decodes each and drops the pixels."""

    def __init__(self, files: Sequence[bytes]) -> None:
        self.files = files

    def __getitems__(self, numbers: Sequence[int]) -> int:
        for number in numbers:
            _decode(self.files[number])
        return len(numbers)


class _Copied(_Decoded):
    """Arrays in memory; asked for a batch of them, it copies each to its place in the same one."""

    def __getitems__(self, numbers: Sequence[int]) -> int:
        batch = bytearray(len(numbers) * RAW_BYTES)
        for place, number in enumerate(numbers):
            batch[place * RAW_BYTES : (place + 1) * RAW_BYTES] = memoryview(self.files[number])[-RAW_BYTES:]
        return len(numbers)


class _Read(Dataset[int]):
    """Shards; asked for one, it reads it whole and tells how many samples that was."""

    def __init__(self, setup: Setup) -> None:
        self._shards = sorted(Path(setup.shards).glob("*.tar"))
        self._mean = sum(path.stat().st_size for path in self._shards) / len(setup.files())
        self._buffer = bytearray(_READ_BYTES)

    def __len__(self) -> int:
        return len(self._shards)

    def __getitems__(self, numbers: Sequence[int]) -> int:
        size = 0
        for number in numbers:
            with self._shards[number].open("rb", buffering=0) as file:
                while read := file.readinto(self._buffer):
                    size += read
        return round(size / self._mean)


def batches(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch, or of each shard where there is nothing to do but read."""
    if setup.work == "bytes":
        shards = _Read(setup)
        return _counts(shards, len(shards), 1, setup.workers)
    rng = np.random.default_rng(seed)
    paths = sorted(path for path in Path(setup.tree).rglob("*") if path.is_file())
    files = _read([paths[number] for number in rng.permutation(len(paths))])
    dataset = _Copied(files) if setup.work == "raw" else _Decoded(files)
    return _counts(dataset, len(files), setup.batch_size, setup.workers)


def _counts(dataset: Dataset[int], size: int, batch_size: int, workers: int) -> Generator[int]:
    numbers = _Endless(size, batch_size)
    yield from DataLoader(dataset, batch_sampler=numbers, num_workers=workers, collate_fn=_same)


def pictures(_setup: Setup) -> None:
    """Return nothing: no picture is resized here."""


def _same(count: Any) -> int:
    return int(count)


class _Endless:
    """Numbers of files, a batch at a time, around and around."""

    def __init__(self, files: int, batch_size: int) -> None:
        self._files = files
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        start = 0
        while True:
            yield [number % self._files for number in range(start, start + self._batch_size)]
            start += self._batch_size


def _read(paths: Sequence[Path]) -> list[bytes]:
    files: list[bytes] = []
    room = _MOST_BYTES
    for path in paths:
        files.append(path.read_bytes())
        room -= len(files[-1])
        if room < 0:
            break
    return files


def _decode(data: bytes) -> None:
    if data[:2] == b"\xff\xd8":
        try:
            simplejpeg.decode_jpeg(data, "RGB")
        except ValueError:  # CMYK, or stray bytes: Pillow takes it
            pass
        else:
            return
    with Image.open(io.BytesIO(data)) as image:
        image.convert("RGB")
