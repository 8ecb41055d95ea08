"""Lightning's LitData: chunks written by its writer, its own dataset and loader."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import litdata

from wds_tools.bench.peers.samples import collate_fn, endless_batch_sizes, probe_pixels, sample_decoder
from wds_tools.bench.workloads import Setup

__all__ = ["batch_sizes", "prepare", "probe_pixels"]


def prepare(setup: Setup) -> None:
    """Write chunks of 64 MB, its default, or smaller ones so that each worker gets at least four."""
    files = setup.files()
    total = sum(path.stat().st_size for path, _ in files)
    litdata.optimize(
        fn=partial(_payload, setup),
        inputs=[str(path) for path, _ in files],
        output_dir=str(setup.own_folder),
        chunk_bytes=min(64_000_000, total // (4 * setup.workers)),
        num_workers=1,
        reorder_files=False,
        verbose=False,
    )


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    dataset = _Samples(str(setup.own_folder), shuffle=True, drop_last=True, seed=seed)
    dataset.to_sample = sample_decoder(setup)
    loader = litdata.StreamingDataLoader(
        dataset,
        batch_size=setup.batch_size,
        num_workers=setup.workers,
        persistent_workers=True,
        collate_fn=collate_fn(setup),
    )
    return endless_batch_sizes(loader, setup)


class _Samples(litdata.StreamingDataset):  # type: ignore[misc]
    to_sample: Any

    def __getitem__(self, index: Any) -> Any:
        return self.to_sample(super().__getitem__(index))


def _payload(setup: Setup, path: str) -> bytes:
    return setup.payload(Path(path))
