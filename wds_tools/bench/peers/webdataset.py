"""webdataset's pipeline on the same shards."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
import webdataset as wds

from wds_tools.bench.peers.samples import collate_fn, endless_batch_sizes, probe_boxes
from wds_tools.bench.peers.transforms import WithBoxes, transform_for, transform_of
from wds_tools.bench.workloads import Setup
from wds_tools.format.sample import IMAGE_FIELDS

__all__ = ["batch_sizes", "probe_boxes", "probe_pixels"]

_SHUFFLE = 1000  # samples in the buffer of each worker, as in its documentation


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    shards = sorted(str(path) for path in Path(setup.shards).glob("*.tar"))
    source = wds.WebDataset(
        shards, shardshuffle=len(shards), seed=seed, select_files=None if setup.workload == "detect" else _is_used
    ).shuffle(_SHUFFLE)
    dataset = (
        _samples(source, setup)
        # torch's collate function writes into shared memory; webdataset's batches are copied there
        .batched(setup.batch_size, collation_fn=collate_fn(setup), partial=False)
        .repeat()
    )
    # Without workers for bytes: two workers read 4,000 samples of 103 kB per second, no worker 6,400.
    workers = 0 if setup.workload == "bytes" else setup.workers
    return endless_batch_sizes(wds.WebLoader(dataset, batch_size=None, num_workers=workers), setup)


def _samples(source: Any, setup: Setup) -> Any:
    """Decode the field of each sample."""
    if setup.workload == "bytes":
        return source.to_tuple("bin").map(itemgetter(0))
    if setup.workload == "raw":
        return source.decode().to_tuple("npy").map(itemgetter(0))
    decoded, images = source.decode("pil"), ";".join(IMAGE_FIELDS)
    if setup.workload == "detect":
        transform = WithBoxes(setup.view)
        return decoded.to_tuple(images, "json").map(lambda sample: transform(sample[0], sample[1]["boxes"]))
    return decoded.to_tuple(images).map(itemgetter(0)).map(transform_for(setup))


def probe_pixels(setup: Setup) -> Sequence[torch.Tensor] | None:
    """Return the pixels of the probes, decoded by webdataset's own handler."""
    if setup.fixed_view is None:
        return None
    decode, transform = wds.imagehandler("pil"), transform_of(setup.fixed_view)
    files = [Path(setup.tree) / probe for probe in setup.probes]
    return [transform(decode(f".{file.suffix[1:]}", file.read_bytes())) for file in files]


def _is_used(name: str) -> bool:
    """Skip the field that the other loaders do not read either."""
    return not name.endswith(".json")
