"""MosaicML's streaming: MDS shards, its own dataset behind a DataLoader."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import streaming
from torch.utils.data import DataLoader

from wds_tools.bench.peers.samples import collate, counted, opener, pictures
from wds_tools.bench.workloads import Setup

__all__ = ["batches", "pictures", "prepare"]

_SHARD_BYTES = 1 << 26  # its default


def prepare(setup: Setup) -> None:
    """Write shards."""
    place = str(setup.own)
    with streaming.MDSWriter(out=place, columns={"sample": "bytes"}, size_limit=_SHARD_BYTES) as out:
        for path, _ in setup.files():
            out.write({"sample": setup.payload(path)})


def batches(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    streaming.base.util.clean_stale_shared_memory()
    dataset = _Samples(local=str(setup.own), shuffle=True, shuffle_seed=seed, batch_size=setup.batch_size)
    dataset.open = opener(setup)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=setup.batch_size,
        num_workers=setup.workers,
        persistent_workers=True,
        drop_last=True,
        collate_fn=collate(setup),
    )
    return counted(loader)


class _Samples(streaming.StreamingDataset):  # type: ignore[misc]
    open: Any

    def __getitem__(self, index: Any) -> Any:
        return self.open(super().__getitem__(index)["sample"])
