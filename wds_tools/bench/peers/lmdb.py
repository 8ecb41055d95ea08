"""An LMDB environment with a DataLoader, one key per sample."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import lmdb
from torch.utils.data import Dataset

from wds_tools.bench.peers.samples import probe_pixels, sample_decoder, shuffled_batch_sizes
from wds_tools.bench.workloads import Setup

__all__ = ["batch_sizes", "prepare", "probe_pixels"]

_PER_COMMIT = 256


def prepare(setup: Setup) -> None:
    """Write one database; its keys are the numbers of the samples."""
    files = setup.files()
    limit = 2 * sum(path.stat().st_size for path, _ in files) + 16_384 * len(files)  # with overflow pages
    with lmdb.open(str(setup.own_folder), map_size=limit + (1 << 24)) as database:
        for start in range(0, len(files), _PER_COMMIT):
            with database.begin(write=True) as transaction:
                for index, (path, _) in enumerate(files[start : start + _PER_COMMIT], start):
                    transaction.put(_key(index), setup.payload(path))


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    return shuffled_batch_sizes(_Samples(setup), setup, seed)


class _Samples(Dataset[Any]):
    """Samples by number; each worker opens the database itself, as LMDB requires."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._count = len(setup.files())
        self._decode = sample_decoder(setup)
        self._transaction: Any = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        if self._transaction is None:
            folder = str(self._setup.own_folder)
            self._transaction = lmdb.open(folder, readonly=True, lock=False, readahead=False).begin(buffers=True)
        return self._decode(self._transaction.get(_key(index)))


def _key(index: int) -> bytes:
    return b"%08d" % index
