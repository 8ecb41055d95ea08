"""MosaicML's Streaming: MDS shards, its own dataset with a DataLoader."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import streaming
from torch.utils.data import DataLoader

from wds_tools.bench.peers.samples import collate_fn, endless_batch_sizes, probe_pixels, sample_decoder
from wds_tools.bench.workloads import Setup

__all__ = ["batch_sizes", "prepare", "probe_pixels"]

_SHARD_BYTES = 1 << 26  # its default


def prepare(setup: Setup) -> None:
    """Write shards."""
    folder = str(setup.own_folder)
    with streaming.MDSWriter(out=folder, columns={"sample": "bytes"}, size_limit=_SHARD_BYTES) as out:
        for path, _ in setup.files():
            out.write({"sample": setup.payload(path)})


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    streaming.base.util.clean_stale_shared_memory()
    dataset = _Samples(local=str(setup.own_folder), shuffle=True, shuffle_seed=seed, batch_size=setup.batch_size)
    dataset.to_sample = sample_decoder(setup)
    loader: DataLoader[Any] = DataLoader(
        dataset,
        batch_size=setup.batch_size,
        num_workers=setup.workers,
        persistent_workers=True,
        drop_last=True,
        collate_fn=collate_fn(setup),
    )
    return endless_batch_sizes(loader, setup)


class _Samples(streaming.StreamingDataset):  # type: ignore[misc]
    to_sample: Any

    def __getitem__(self, index: Any) -> Any:
        return self.to_sample(super().__getitem__(index)["sample"])
