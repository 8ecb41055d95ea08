"""`make_loader`, as a user calls it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import chain, islice

import torch

from wds_tools.bench.workloads import RAW_SIDE, Setup
from wds_tools.images.views import Resize
from wds_tools.loading.dataset import StreamingDataset
from wds_tools.loading.loader import Loader, make_loader

_FIELDS = {"raw": ("image",), "bytes": ("bin",)}
_RAW_VIEW = Resize((RAW_SIDE, RAW_SIDE))  # as they are stored; a view says that all have one size


def loader_of(setup: Setup, seed: int, *, num_workers: int) -> Loader:
    """Return our loader for a work; of *bytes*, the field has a type that is not decoded."""
    return make_loader(
        setup.shards,
        batch_size=setup.batch_size,
        view=_RAW_VIEW if setup.work == "raw" else setup.view,
        fields=_FIELDS.get(setup.work, ("image", "label")),
        shuffle=True,
        seed=seed,
        num_workers=num_workers,
    )


def batches(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    if setup.work == "bytes":
        yield from _stored(setup, seed)
    with loader_of(setup, seed, num_workers=setup.workers) as loader:
        while True:
            for samples, *_labels in loader:
                yield len(samples)


def _stored(setup: Setup, seed: int) -> Generator[int]:
    """Take bytes as they are stored, in this process: to hand them over from a worker costs more than to read them."""
    dataset = StreamingDataset(setup.shards, batch_size=setup.batch_size, decode=False, shuffle=True, seed=seed)
    samples = chain.from_iterable(iter(lambda: iter(dataset), None))  # epoch after epoch
    while True:
        yield sum(1 for _ in islice(samples, setup.batch_size))


def pictures(setup: Setup) -> Sequence[torch.Tensor] | None:
    """Return the probes, which come first in the shards."""
    if setup.fixed_view is None:
        return None
    with make_loader(
        setup.shards, batch_size=len(setup.probes), view=setup.fixed_view, shuffle=False, num_workers=0
    ) as loader:
        images, _labels = next(iter(loader))
        return list(images.clone())
