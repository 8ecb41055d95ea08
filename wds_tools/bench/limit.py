"""Decoding the pictures and nothing else: what any loader that decodes them whole cannot pass."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from wds_tools.bench.works import Setup

_MOST_BYTES = 1 << 29  # of files held in memory; workers share them


class _Decoded(Dataset[int]):
    """Files in memory; asked for a batch of them, it decodes each and drops the pixels."""

    def __init__(self, files: Sequence[bytes]) -> None:
        self.files = files

    def __getitems__(self, numbers: Sequence[int]) -> int:
        for number in numbers:
            _decode(self.files[number])
        return len(numbers)


def batches(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of images of each batch."""
    rng = np.random.default_rng(seed)
    paths = sorted(path for path in Path(setup.tree).rglob("*") if path.is_file())
    files = _read([paths[number] for number in rng.permutation(len(paths))])
    numbers = _Endless(len(files), setup.batch_size)
    yield from DataLoader(_Decoded(files), batch_sampler=numbers, num_workers=setup.workers, collate_fn=_same)


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
