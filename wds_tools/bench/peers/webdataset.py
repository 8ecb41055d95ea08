"""webdataset's pipeline over the same shards."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
import webdataset as wds

from wds_tools.bench.peers.samples import collate, counted
from wds_tools.bench.peers.transforms import transform_of
from wds_tools.bench.workloads import Setup
from wds_tools.format.sample import IMAGE_FIELDS

_SHUFFLE = 1000  # samples in the buffer of each worker, as in its documentation


def batches(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    shards = sorted(str(path) for path in Path(setup.shards).glob("*.tar"))
    source = wds.WebDataset(shards, shardshuffle=len(shards), seed=seed, select_files=_is_used).shuffle(_SHUFFLE)
    dataset = (
        _samples(source, setup)
        # torch's collation writes into shared memory at once; webdataset's own would be copied there
        .batched(setup.batch_size, collation_fn=collate(setup), partial=False)
        .repeat()
    )
    # Bytes are not worth handing over: two workers of it read 4,000 of 103 kB a second, no worker 6,400.
    return counted(wds.WebLoader(dataset, batch_size=None, num_workers=0 if setup.work == "bytes" else setup.workers))


def _samples(source: Any, setup: Setup) -> Any:
    """Decode what each sample has."""
    if setup.work == "bytes":
        return source.to_tuple("bin").map(itemgetter(0))
    if setup.work == "raw":
        return source.decode().to_tuple("npy").map(itemgetter(0))
    return source.decode("pil").to_tuple(";".join(IMAGE_FIELDS)).map(itemgetter(0)).map(transform_of(setup.view))


def pictures(setup: Setup) -> Sequence[torch.Tensor] | None:
    """Return the probes, decoded by webdataset's own handler."""
    if setup.fixed_view is None:
        return None
    decode, transform = wds.imagehandler("pil"), transform_of(setup.fixed_view)
    files = [Path(setup.tree) / probe for probe in setup.probes]
    return [transform(decode(f".{file.suffix[1:]}", file.read_bytes())) for file in files]


def _is_used(name: str) -> bool:
    """Leave out what the other contenders do not read either."""
    return not name.endswith(".json")
