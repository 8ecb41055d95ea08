"""webdataset's pipeline over the same shards."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import torch
import webdataset as wds
from torch.utils.data import default_collate

from wds_tools.bench.transforms import transform_of
from wds_tools.bench.works import Setup
from wds_tools.sample import IMAGE_FIELDS

_SHUFFLE = 1000  # samples in the buffer of each worker, as in its documentation


def batches(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of images of each batch."""
    shards = sorted(str(path) for path in Path(setup.shards).glob("*.tar"))
    dataset = (
        wds.WebDataset(shards, shardshuffle=len(shards), seed=seed, select_files=_is_used)
        .shuffle(_SHUFFLE)
        .decode("pil")
        .to_tuple(";".join(IMAGE_FIELDS), "cls")
        .map_tuple(transform_of(setup.view), _same)
        # torch's collation writes into shared memory at once; webdataset's own would be copied there
        .batched(setup.batch_size, collation_fn=default_collate, partial=False)
        .repeat()
    )
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=setup.workers)
    for images, _labels in loader:
        yield len(images)


def pictures(setup: Setup) -> Sequence[torch.Tensor]:
    """Return the probes, decoded by webdataset's own handler."""
    decode, transform = wds.imagehandler("pil"), transform_of(setup.fixed_view)
    files = [Path(setup.tree) / probe for probe in setup.probes]
    return [transform(decode(f".{file.suffix[1:]}", file.read_bytes())) for file in files]


def _is_used(name: str) -> bool:
    """Leave out what the other contenders do not read either."""
    return not name.endswith(".json")


def _same(label: Any) -> Any:
    return label
