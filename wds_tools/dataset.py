"""`StreamingDataset`: the plan and the decoder as an ``IterableDataset``, for people who bring their own DataLoader.

Also what it shares with `make_loader`: finding the dataset, the ranks, and the order of samples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from wds_tools.assemble import Assembler, Recipe, Transform
from wds_tools.errors import OptionError
from wds_tools.options import CacheOptions
from wds_tools.order import Order, default_block
from wds_tools.planner import Cursor, EpochPlan, Tail, World
from wds_tools.quality import window_of
from wds_tools.reader import check_fields
from wds_tools.sample import make_record, record_type
from wds_tools.shardset import ShardSet, open_shards
from wds_tools.views import View

_CHUNK = 16  # samples whose crops are computed together


@dataclass(frozen=True, slots=True)
class Opened:
    """A dataset with everything that decides its batches."""

    shards: ShardSet
    order: Order
    world: World
    recipe: Recipe


def open_dataset(
    dataset: str | os.PathLike[str],
    *,
    batch_size: int,
    view: View | None,
    shuffle: bool | int | float,
    seed: int,
    fields: Sequence[str],
    transform: Transform | None,
    rank: int | None,
    world_size: int | None,
    lanes: int | None,
    cache_dir: str | os.PathLike[str] | None,
    cache_bytes: int | str | None,
) -> Opened:
    """Find a dataset and check what is asked of it, before any worker starts.

    Raises:
        NotADatasetError: There is no dataset.
        MissingFieldError: It lacks a field.
        OptionError: An option that cannot be.
    """
    cache = CacheOptions.of(os.fspath(cache_dir) if cache_dir else None, cache_bytes)
    shards = open_shards(dataset, cache=cache)
    manifest = shards.manifest
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if not names:
        raise OptionError("fields=() is empty; name at least one field, such as 'image'")
    record_type(names)
    check_fields(names, manifest.fields)
    if view is not None:
        _check_view(view, shards)
    world = find_world(rank, world_size)
    block = default_block(manifest.samples, manifest.bytes)
    order = Order(
        fingerprint=manifest.fingerprint,
        shard_samples=[entry.samples for entry in manifest.shards],
        seed=seed,
        window=window_of(shuffle, block=block, shuffled=manifest.shuffled, batch=batch_size * world.world_size),
        block=block,
        lanes=lanes or default_lanes(world),
    )
    recipe = Recipe(shards=shards, block=block, seed=seed, fields=names, view=view, transform=transform)
    return Opened(shards, order, world, recipe)


def _check_view(view: View, shards: ShardSet) -> None:
    if not hasattr(view, "regions"):
        raise OptionError(
            f"view={view!r} is no view; allowed are wds_tools.RandomResizedCrop, CenterCrop, Resize and None. "
            "A transform of torchvision or your own goes to transform="
        )
    images = shards.manifest.images
    least_h, least_w = view.least
    if images and (images.min_height < least_h or images.min_width < least_w):
        raise OptionError(
            f"{view} needs images of at least {least_w}x{least_h}; the narrowest here is {images.min_width} pixels "
            f"wide, the lowest {images.min_height} high: take a smaller view, or CenterCrop(size, resize=...)"
        )


def find_world(rank: int | None, world_size: int | None) -> World:
    """Return the rank of this process: as given, else from torch.distributed, else from torchrun's environment."""
    if (rank is None) != (world_size is None):
        raise OptionError(f"rank={rank}, world_size={world_size}: give both, or neither")
    if rank is not None and world_size is not None:
        return World(rank, world_size)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return World(torch.distributed.get_rank(), torch.distributed.get_world_size())
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    return World()


def default_lanes(world: World) -> int:
    """Return one lane per machine, as torchrun tells their number; one where it does not."""
    ranks_per_node = int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or world.world_size
    return world.world_size // ranks_per_node if world.world_size % ranks_per_node == 0 else 1


def check_plan(plan: EpochPlan) -> None:
    """Refuse a plan without a single step.

    Raises:
        OptionError: The batches of all ranks together are larger than the dataset.
    """
    if plan.batch_size < 1:
        raise OptionError(f"batch_size={plan.batch_size}; allowed are 1 and more")
    if plan.tail not in ("drop", "pad", "mask"):
        raise OptionError(f"tail={plan.tail!r}; allowed are 'drop', 'pad' and 'mask'")
    if plan.tail == "drop" and plan.global_batch > plan.order.samples:
        raise OptionError(
            f"batch_size={plan.batch_size} on {plan.world.world_size} rank(s) takes {plan.global_batch:,} samples a "
            f"step, the dataset has {plan.order.samples:,}: take a smaller batch, or tail='pad'"
        )


class StreamingDataset(IterableDataset[Any]):
    """Samples of a dataset in the canonical order, split over ranks and DataLoader workers.

    Each sample is a named tuple of ``fields``: ``image`` a uint8 tensor [3, height, width] (or what ``transform``
    returns), ``label`` an int.

    With a plain ``DataLoader(dataset, batch_size=B, num_workers=W)`` and ``StreamingDataset(..., batch_size=B)``
    the batches are those of `make_loader`. Each new iteration over the DataLoader is the next epoch. Exact resume
    needs to know what the trainer has consumed, which a DataLoader does not tell: that is `make_loader`'s.

    Args:
        dataset: Folder or URL with a manifest, the manifest, or a brace pattern of indexed shards.
        batch_size: The DataLoader's, so that each worker makes whole batches; 1 deals out single samples.
        view: What part of the picture, at what size; None keeps the whole picture.
        shuffle: True, False, a window in samples, or a quality such as 0.95.
        seed: Of the order, of crops and flips.
        fields: ``image``, ``label``, ``__key__``, or any stored field.
        transform: Function on a uint8 tensor [3, height, width], or an Albumentations transform.
        tail: Samples that do not fill a batch on every rank: ``drop`` them, or ``pad`` with others.
        rank: This process's data-parallel rank; found by itself under torchrun.
        world_size: Number of ranks.
        lanes: Independent streams of blocks; by default one per machine.
        cache_dir: Where blocks of remote shards are kept.
        cache_bytes: About how much may be kept there.

    Raises:
        NotADatasetError: There is no dataset.
        MissingFieldError: It lacks a field.
        OptionError: An option that cannot be.

    >>> from torch.utils.data import DataLoader
    >>> dataset = StreamingDataset("shards/photos", batch_size=32, view=CenterCrop(224, resize=256))  # doctest: +SKIP
    >>> for images, labels in DataLoader(dataset, batch_size=32, num_workers=4): ...  # doctest: +SKIP
    """

    def __init__(
        self,
        dataset: str | os.PathLike[str],
        *,
        batch_size: int = 1,
        view: View | None = None,
        shuffle: bool | int | float = False,
        seed: int = 0,
        fields: Sequence[str] = ("image", "label"),
        transform: Transform | None = None,
        tail: Tail = "drop",
        rank: int | None = None,
        world_size: int | None = None,
        lanes: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        if tail == "mask":
            raise OptionError("tail='mask' is make_loader's: a sample has no place to say that it is padding")
        self._opened = open_dataset(
            dataset,
            batch_size=batch_size,
            view=view,
            shuffle=shuffle,
            seed=seed,
            fields=fields,
            transform=transform,
            rank=rank,
            world_size=world_size,
            lanes=lanes,
            cache_dir=cache_dir,
            cache_bytes=cache_bytes,
        )
        self.batch_size = batch_size
        self.tail = tail
        check_plan(self._plan(0))
        # Shared with the workers: the next epoch, the running one, and which round of the DataLoader that is.
        self._shared = torch.tensor([0, -1, -1, -1], dtype=torch.int64).share_memory_()
        self._lock = torch.multiprocessing.get_context("spawn").Lock()  # the one kind that any worker can share
        self._rounds = 0
        self._assembler: Assembler | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by number."""
        return self._opened.shards.manifest.classes

    def __len__(self) -> int:
        """Return this rank's samples in an epoch."""
        return len(self._plan(0)) * self.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch``."""
        with self._lock:
            self._shared[0] = epoch

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_assembler": None}

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        plan = self._plan(self._next_epoch(info))
        self._assembler = self._assembler or Assembler(self._opened.recipe)
        for number in range(worker, len(plan), num_workers):
            step = plan.step(number)
            for start in range(0, len(step.ids), _CHUNK):
                part = slice(start, start + _CHUNK)
                values = self._assembler.batch(
                    epoch=plan.cursor.epoch, positions=step.positions[part], ids=step.ids[part], out=None
                )
                yield from self._samples(values)

    def _samples(self, values: list[Any]) -> Iterator[Any]:
        fields = self._opened.recipe.fields
        columns = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
        for row in zip(*columns, strict=True):
            yield make_record(fields, row)

    def _plan(self, epoch: int) -> EpochPlan:
        opened = self._opened
        return EpochPlan(opened.order, Cursor(epoch, 0), opened.world, self.batch_size, self.tail)

    def _next_epoch(self, info: Any) -> int:
        """Return the epoch that starts now: the workers of one round of the DataLoader agree on it.

        All workers of a round know the DataLoader's seed of that round, and how often they have been asked to
        iterate; the first one with a new pair moves the epoch on. A worker that is late, even until after
        `set_epoch`, joins the round that the others began.
        """
        self._rounds += 1
        base = info.seed - info.id if info else 0
        token = torch.tensor([base, self._rounds], dtype=torch.int64)
        with self._lock:
            if not torch.equal(self._shared[2:], token):
                self._shared[1] = self._shared[0]
                self._shared[2:] = token
                self._shared[0] += 1
            return int(self._shared[1])
