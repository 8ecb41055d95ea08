"""Lightning's litdata: chunks made by its writer, its own dataset and loader."""

from __future__ import annotations

from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

import litdata

from wds_tools.bench.peers.samples import collate, counted, opener, pictures
from wds_tools.bench.workloads import Setup

__all__ = ["batches", "pictures", "prepare"]


def prepare(setup: Setup) -> None:
    """Write chunks of 64 MB, its default, or at least four for each worker."""
    files = setup.files()
    total = sum(path.stat().st_size for path, _ in files)
    litdata.optimize(
        fn=partial(_stored, setup),
        inputs=[str(path) for path, _ in files],
        output_dir=str(setup.own),
        chunk_bytes=min(64_000_000, total // (4 * setup.workers)),
        num_workers=1,
        reorder_files=False,
        verbose=False,
    )


def batches(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    dataset = _Samples(str(setup.own), shuffle=True, drop_last=True, seed=seed)
    dataset.open = opener(setup)
    loader = litdata.StreamingDataLoader(
        dataset,
        batch_size=setup.batch_size,
        num_workers=setup.workers,
        persistent_workers=True,
        collate_fn=collate(setup),
    )
    return counted(loader)


class _Samples(litdata.StreamingDataset):  # type: ignore[misc]
    open: Any

    def __getitem__(self, index: Any) -> Any:
        return self.open(super().__getitem__(index))


def _stored(setup: Setup, path: str) -> bytes:
    return setup.payload(Path(path))
