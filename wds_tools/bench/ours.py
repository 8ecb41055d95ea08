"""`make_loader`, called as a user calls it."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import chain, islice
from typing import Any

import torch

from wds_tools.bench.workloads import HSV_GAINS, RAW_SIDE, Setup
from wds_tools.images.color import HSV
from wds_tools.images.views import Resize
from wds_tools.loading.dataset import StreamingDataset
from wds_tools.loading.factory import make_loader
from wds_tools.loading.fields.boxes import Boxes
from wds_tools.loading.fields.image import Image
from wds_tools.loading.fields.plain import Label
from wds_tools.loading.loader import Loader

_FIELDS = {"raw": ("image",), "bytes": ("bin",)}
_RAW_VIEW = Resize((RAW_SIDE, RAW_SIDE))  # the stored size, so that the loader knows that all images have it


def open_loader(setup: Setup, seed: int, *, num_workers: int) -> Loader:
    """Return our loader for a workload; the field of *bytes* has a type that is not decoded."""
    options: dict[str, Any] = {
        "batch_size": setup.batch_size,
        "shuffle": True,
        "seed": seed,
        "num_workers": num_workers,
    }
    if setup.crops:
        options["fields"] = {"image": Image(view=setup.crops), "label": Label()}
    elif setup.has_boxes:
        color = HSV(*HSV_GAINS) if setup.workload == "mosaic" else None
        boxes = Boxes("json", path="boxes", like="image", pad=None if setup.workload == "detect" else "flat")
        options["fields"] = {"image": Image(view=setup.view, color=color), "boxes": boxes}
    else:
        options["fields"] = _FIELDS.get(setup.workload, ("image", "label"))
        options["view"] = _RAW_VIEW if setup.workload == "raw" else setup.view
    return make_loader(setup.shards, **options)


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    if setup.workload == "bytes":
        yield from _undecoded_batch_sizes(setup, seed)
    with open_loader(setup, seed, num_workers=setup.workers) as loader:
        while True:
            for images, *_others in loader:
                yield len(images[0]) if setup.crops else len(images)


def _undecoded_batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Read stored bytes in this process: sending them from a worker would cost more than reading them."""
    dataset = StreamingDataset(setup.shards, batch_size=setup.batch_size, decode=False, shuffle=True, seed=seed)
    samples = chain.from_iterable(iter(lambda: iter(dataset), None))  # epoch after epoch
    while True:
        yield sum(1 for _ in islice(samples, setup.batch_size))


def probe_pixels(setup: Setup) -> Sequence[torch.Tensor] | None:
    """Return the pixels of the probes, which are the first images in the shards."""
    return None if setup.fixed_view is None else _probe(setup, "image")


def probe_boxes(setup: Setup) -> Sequence[torch.Tensor]:
    """Return the boxes of the probes."""
    return _probe(setup, "boxes", boxes=Boxes("json", path="boxes", like="image"))


def _probe(setup: Setup, name: str, **others: Any) -> list[torch.Tensor]:
    fields = {"image": Image(view=setup.fixed_view), **others}
    with make_loader(setup.shards, batch_size=len(setup.probes), fields=fields, num_workers=0) as loader:
        return [value.clone() for value in getattr(next(iter(loader)), name)]
