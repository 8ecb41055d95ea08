"""`StreamingDataset`: the plan and the decoder as an ``IterableDataset``, for people who bring their own DataLoader."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from wds_tools.errors import OptionError, WdsToolsError
from wds_tools.images.views import View
from wds_tools.loading import advice
from wds_tools.loading.arguments import DATASET_HINTS, checked
from wds_tools.loading.assemble import Assembler, Transform, samples_of
from wds_tools.loading.bad_samples import ErrorLog, ErrorPolicy, OnError, fill_in, is_about_data
from wds_tools.loading.collate import joined
from wds_tools.loading.ranks import Group, RankOptions
from wds_tools.loading.request import Request, check_plan, open_dataset
from wds_tools.options import CacheOptions
from wds_tools.order.mixture import Mixture
from wds_tools.order.planner import AnyOrder, Cursor, EpochPlan, Tail, World
from wds_tools.order.where import Where
from wds_tools.reading.select import Subset, Weights

_CHUNK = 16  # samples whose crops are computed together


class StreamingDataset(IterableDataset[Any]):
    """Samples of a dataset in the canonical order, split over ranks and DataLoader workers.

    Each sample is a named tuple of ``fields``: ``image`` a uint8 tensor [3, height, width] (or what ``transform``
    returns), ``label`` an int.

    With a plain ``DataLoader(dataset, batch_size=B, num_workers=W)`` and ``StreamingDataset(..., batch_size=B)``
    the batches are those of `make_loader`. Each new iteration over the DataLoader is the next epoch. Exact resume
    needs to know what the trainer has consumed, which a DataLoader does not tell: that is `make_loader`'s.

    Args:
        dataset: Folder or URL with a manifest, the manifest, a brace pattern of indexed shards, or a `Mixture`.
        batch_size: The DataLoader's, so that each worker makes whole batches; 1 deals out single samples.
        view: What part of the picture, at what size; None keeps the whole picture.
        shuffle: True, False, a window in samples, or a quality such as 0.95.
        seed: Of the order, of crops and flips.
        fields: ``image``, ``label``, ``__key__``, or any stored field. One name that is not in a list,
            ``fields="image"``, gives its values alone, without a tuple around them.
        transform: Function on a uint8 tensor [3, height, width], or an Albumentations transform.
        decode: False gives what is stored, verified, as a dictionary of bytes with ``__key__`` and ``__url__``: what
            webdataset's pipelines take, as in ``wds.DataPipeline(dataset, wds.decode("pil"), ...)``. A larger
            ``batch_size`` then deals out longer runs, which is faster.
        tail: Samples that do not fill a batch on every rank: ``drop`` them, or ``pad`` with others.
        on_error: What happens to an unreadable sample: ``"raise"`` or ``"replace"``, as for `make_loader`.
            Replaced samples are logged by the worker.
        max_errors: How many may be replaced in an epoch by each DataLoader worker, or which fraction.
        where: Only samples for which this holds, as for `make_loader`.
        subset: A fraction of them, or sample ids.
        class_weights: How often the classes come, as for `make_loader`.
        rank: This process's data-parallel rank. By default it is looked up whenever an iteration starts, as for
            `make_loader`.
        world_size: Number of ranks.
        group: Process group or DeviceMesh whose members share the data.
        lanes: Independent streams of blocks; by default one per machine.
        cache_dir: Where blocks of remote shards are kept.
        cache_bytes: About how much may be kept there.

    Raises:
        NotADatasetError: There is no dataset.
        MissingFieldError: It lacks a field.
        OptionError: An option that cannot be.

    Example::

        from torch.utils.data import DataLoader
        dataset = StreamingDataset("shards/photos", batch_size=32, view=CenterCrop(224, resize=256))
        for images, labels in DataLoader(dataset, batch_size=32, num_workers=4): ...
    """

    @checked(DATASET_HINTS)
    def __init__(
        self,
        dataset: str | os.PathLike[str] | Mixture,
        *,
        batch_size: int = 1,
        view: View | None = None,
        shuffle: bool | int | float = False,
        seed: int = 0,
        fields: str | Sequence[str] = ("image", "label"),
        transform: Transform | None = None,
        decode: bool = True,
        tail: Tail = "drop",
        on_error: OnError = "raise",
        max_errors: int | float = 0.01,
        where: Where | None = None,
        subset: Subset | None = None,
        class_weights: Weights | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        group: Group | None = None,
        lanes: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | str | None = None,
    ) -> None:
        if tail == "mask":
            raise OptionError("tail='mask' is make_loader's: a sample has no place to say that it is padding")
        if not decode and (view is not None or transform is not None):
            raise OptionError("decode=False gives bytes: leave view= and transform= to what comes behind")
        errors = ErrorPolicy(on_error=on_error, max_errors=max_errors)
        if errors.replaces and not decode:
            raise OptionError(
                "decode=False gives bytes, whose damage nobody sees here: on_error='replace' needs pictures"
            )
        request = Request(
            batch_size=batch_size,
            view=view,
            shuffle=shuffle,
            seed=seed,
            fields=fields if decode else ("__key__",),
            transform=transform,
            where=where,
            subset=subset,
            class_weights=class_weights,
            lanes=lanes,
            ranks=RankOptions(rank, world_size, group),
            cache=CacheOptions.of(cache_dir, cache_bytes),
            errors=errors,
        )
        self._errors = ErrorLog(errors)
        self._opened = open_dataset(dataset, request)
        self.batch_size = batch_size
        self.tail = tail
        self.decode = decode
        check_plan(self._plan(0))
        # Shared with the workers: the next epoch, the running one, and which round of the DataLoader that is.
        self._shared = torch.tensor([0, -1, -1, -1], dtype=torch.int64).share_memory_()
        self._is_advised = torch.zeros((), dtype=torch.bool).share_memory_()
        self._lock = torch.multiprocessing.get_context("spawn").Lock()  # the one kind that any worker can share
        self._rounds = 0
        self._assembler: Assembler | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names by number."""
        return self._opened.shards.manifest.classes

    def __repr__(self) -> str:
        opened = self._opened
        return (
            f"StreamingDataset({opened.shards.name!r}, samples={opened.order.samples}, this_rank={len(self)}, "
            f"batch_size={self.batch_size}, view={opened.recipe.view!r})"
        )

    def __len__(self) -> int:
        """Return this rank's samples in an epoch."""
        return len(self._plan(0)) * self.batch_size

    @checked()
    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch``."""
        with self._lock:
            self._shared[0] = epoch

    def __getstate__(self) -> dict[str, Any]:
        # A worker that is not forked knows nothing of torch.distributed, so what was found here goes with it.
        self._check_split_once(self._opened.ranks.find().world)
        opened = dataclasses.replace(self._opened, ranks=self._opened.ranks.for_worker())
        return {**self.__dict__, "_opened": opened, "_assembler": None}

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, num_workers = (info.id, info.num_workers) if info else (0, 1)
        plan = self._plan(self._next_epoch(info))
        self._check_split_once(plan.world)
        if self.decode and worker == 0 and not self._is_advised:
            self._is_advised.fill_(True)
            advice.about_batch_sizes(self.batch_size, advice.batch_size_of_reader())
        self._assembler = self._assembler or Assembler(self._opened.recipe)
        self._errors.begin(len(plan) * self.batch_size // num_workers)
        for number in range(worker, len(plan), num_workers):
            step = plan.step(number)
            if not self.decode:
                yield from self._assembler.reader.rows(step.ids).stored()
                continue
            for start in range(0, len(step.ids), _CHUNK):
                part = slice(start, start + _CHUNK)
                values = values_of(
                    self._assembler,
                    self._errors,
                    order=plan.order,
                    epoch=plan.cursor.epoch,
                    positions=step.positions[part],
                    ids=step.ids[part],
                )
                yield from samples_of(values, self._opened.recipe.fields, is_bare=self._opened.is_bare)

    def _plan(self, epoch: int) -> EpochPlan:
        opened = self._opened
        return EpochPlan(opened.order, Cursor(epoch, 0), opened.ranks.find().world, self.batch_size, self.tail)

    def _check_split_once(self, world: World) -> None:
        """Refuse to be read by a DataLoader that Accelerate splits over the processes once more.

        Each process would get only a part of its part, and nobody would read the rest.
        """
        if world.world_size > 1 and _accelerate_splits(self):
            raise OptionError(
                f"this dataset gives each of {world.world_size} processes its part, and Accelerate's prepare() divides "
                "that part once more, so that samples are lost: leave the DataLoader out of prepare(), use make_loader "
                "instead of a DataLoader, or pass rank=0, world_size=1 so that only Accelerate divides it"
            )

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


def values_of(
    assembler: Assembler,
    errors: ErrorLog,
    *,
    order: AnyOrder,
    epoch: int,
    positions: NDArray[np.int64],
    ids: NDArray[np.int64],
) -> list[Any]:
    """Return the values of each field of some samples, with substitutes for unreadable ones.

    Args:
        assembler: Makes the samples.
        errors: Where unreadable ones are noted.
        order: Of the epoch.
        epoch: Its number.
        positions: int64 [n], places in the order.
        ids: int64 [n], samples.
    """
    try:
        return assembler.batch(epoch=epoch, positions=positions, ids=ids, out=None)
    except WdsToolsError as error:
        if not errors.policy.replaces or not is_about_data(error):
            raise

    def make(row: int, sample: int) -> list[Any] | WdsToolsError:
        one = positions[row : row + 1]
        return assembler.pieces(epoch=epoch, positions=one, ids=np.array([sample]), out=None)[0]

    pieces = assembler.pieces(epoch=epoch, positions=positions, ids=ids, out=None)
    fill_in(pieces, make, errors, order=order, epoch=epoch, positions=positions)
    return joined([piece for piece in pieces if isinstance(piece, list)])


def _accelerate_splits(dataset: StreamingDataset) -> bool:
    """Tell whether the DataLoader that reads a dataset now is one that Accelerate prepared for several processes."""
    accelerate = sys.modules.get("accelerate.data_loader")
    if accelerate is None:
        return False
    active = accelerate.GradientState().active_dataloader
    wrapped = getattr(active, "dataset", None)
    if isinstance(active, accelerate.DataLoaderDispatcher):
        return wrapped is dataset
    return isinstance(wrapped, accelerate.IterableDatasetShard) and wrapped.dataset is dataset
