"""`StreamingDataset`: a torch ``IterableDataset``, for use with torch's own ``DataLoader``."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info

from wds_tools.errors import OptionError, ResumeError, WdsToolsError
from wds_tools.format.field_classes import ClassList
from wds_tools.loading import advice
from wds_tools.loading.arguments import DATASET_HINTS, OnlyIterable, checked
from wds_tools.loading.fields.collate import join_parts
from wds_tools.loading.load_options import StreamOptions
from wds_tools.loading.request import check_plan, open_dataset
from wds_tools.loading.samples.assemble import Assembler, samples_of
from wds_tools.loading.samples.bad_samples import ErrorLog, Unreadable, is_sample_error, replace_unreadable
from wds_tools.loading.samples.handover import Handover
from wds_tools.order import resuming, saved_state
from wds_tools.order.epoch import EpochOrder
from wds_tools.order.planner import Cursor, EpochPlan, Step, World
from wds_tools.reading.read_ahead import ReadAhead
from wds_tools.reading.rows import Rows
from wds_tools.signatures import method_takes

_CHUNK = 16  # samples that are decoded together


class StreamingDataset(OnlyIterable, IterableDataset[Any]):
    """Iterable dataset for a torch ``DataLoader``: samples in the order of `make_loader`, split over ranks and workers.

    A sample is a named tuple with one value per name in ``fields``: ``image`` is a uint8 tensor [3, height, width] (or
    the return value of ``transform``), ``label`` an int, and other fields are decoded by their type.

    Each new iteration over the ``DataLoader`` is the next epoch. With ``StreamingDataset(..., batch_size=B)`` and
    ``DataLoader(dataset, batch_size=B, num_workers=W)``, the batches are the same as in `make_loader`.

    A ``DataLoader`` does not report which batches the training loop received. For exact resume, use torchdata's
    ``StatefulDataLoader``, which calls `state_dict` in each worker, or `make_loader`, which can also resume with a
    different number of workers or ranks.

    `make_loader` describes the arguments that are not listed here; their defaults are the same.

    Args:
        batch_size: Batch size of the ``DataLoader``, so that each worker produces full batches. The default, 1,
            distributes single samples over ranks and workers.
        fields: Fields of a sample: ``image``, ``label``, ``__key__``, or any stored field. With a single name that is
            not in a list (``fields="image"``), a sample is the value itself instead of a named tuple. Or a mapping, as
            in `make_loader`; a sample then has one value of each field.
        decode: False yields each sample as stored, without decoding: a dictionary of bytes, plus ``__key__`` and
            ``__url__``, with checksums verified. This is the input of webdataset pipelines, such as
            ``wds.DataPipeline(dataset, wds.decode("pil"), ...)``. A larger ``batch_size`` then reads longer runs of
            samples, which is faster. ``fields`` is ignored.
        tail: What to do with the last samples of an epoch if they do not fill a batch on every rank: ``"drop"`` (the
            default) skips them, ``"pad"`` fills the batch with other samples.
        on_error: Handling of unreadable samples, as in `make_loader`: ``"raise"`` (the default) or ``"replace"``. The
            worker logs each replaced sample.
        max_errors: Maximum number of samples that each ``DataLoader`` worker may replace per epoch: a number (int), or
            a fraction of its samples (float, default 0.01). One more raises SampleError.

    Attributes:
        batch_size: The argument.
        tail: The argument.
        decode: The argument.
        collate_fn: Turns a list of samples into a batch of `make_loader`, for the argument ``collate_fn=`` of the
            ``DataLoader``: values of different sizes become lists, or are padded. None with ``decode=False``.

    Raises:
        NotADatasetError: There is no packed dataset at ``dataset``.
        MissingFieldError: The dataset lacks a field. The message lists the fields that it has.
        OptionError: An invalid option.
        TypeError: An unknown argument. The message names the argument to use instead.

    Warns:
        UserWarning: The ``DataLoader`` has a different batch size (at the first iteration), the field ``cls`` of a
            merged dataset has class numbers that differ from ``label``, or a view mirrors key points whose pairs are
            not known.

    Example::

        from torch.utils.data import DataLoader
        dataset = StreamingDataset("shards/photos", batch_size=32, view=CenterCrop(224, resize=256))
        for images, labels in DataLoader(dataset, batch_size=32, num_workers=4): ...
    """

    @checked(DATASET_HINTS)
    @method_takes(StreamOptions)
    def __init__(self, options: StreamOptions) -> None:
        self._errors = ErrorLog(options.errors)
        self._opened = open_dataset(options)
        advice.warn_of_merged_labels(self._opened, is_decoded=options.decode)
        advice.warn_of_mirrored_points(self._opened)
        self._orders = self._opened.orders()
        self.batch_size = options.batch_size
        self.tail = options.tail
        self.decode = options.decode
        self.collate_fn = self._collate_fn() if options.decode else None
        check_plan(self._plan(0))
        # Shared with the workers: next epoch, current epoch, and the token (two numbers) of the current iteration.
        self._shared = torch.tensor([0, -1, -1, -1], dtype=torch.int64).share_memory_()
        self._is_advised = torch.zeros((), dtype=torch.bool).share_memory_()
        self._lock = torch.multiprocessing.get_context("spawn").Lock()  # works with every start method of the workers
        self._iterations = 0
        self._assembler: Assembler | None = None
        self._position = (0, 0)  # epoch, and samples that this worker has yielded in it
        self._loaded: dict[str, Any] | None = None

    @property
    def classes(self) -> tuple[str, ...]:
        """Class names; the index of a name is its label."""
        return self._opened.shards.manifest.classes

    @property
    def field_classes(self) -> dict[str, ClassList]:
        """Class lists of numbers other than the label, by their field path, such as ``"labels.json"``."""
        return dict(self._opened.shards.manifest.field_classes)

    def __repr__(self) -> str:
        opened = self._opened
        return (
            f"StreamingDataset({opened.shards.name!r}, samples={self._orders.of(0).samples}, this_rank={len(self)}, "
            f"batch_size={self.batch_size}, view={opened.recipe.view!r})"
        )

    def __len__(self) -> int:
        """Return the number of samples per epoch on this rank."""
        return len(self._plan(0)) * self.batch_size

    @checked()
    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start epoch ``epoch`` (zero-based)."""
        with self._lock:
            self._shared[0] = epoch

    def reweight(self, **_: Any) -> NoReturn:
        """Raise OptionError: the workers of a ``DataLoader`` do not know the step of the training loop."""
        raise OptionError(
            "weights of a StreamingDataset cannot change during a run: use make_loader(), whose loader has reweight()"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker of a ``DataLoader``, or of this process if there are no workers.

        ``StatefulDataLoader`` of torchdata calls this in each worker; its own ``state_dict`` is the one to save.
        """
        epoch, samples = self._position
        return saved_state.sealed({"epoch": epoch, "samples": samples, **self._fixed_entries()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue at a position that `state_dict` returned.

        Raises:
            ResumeError: The state belongs to another dataset, selection, seed, rank or batch size, or to another number
                of ranks or workers.
        """
        saved_state.check_seal(state)
        try:
            resuming.resume(state["order"], self._opened.order)
            entries = {**state, "bans": _without_ids(saved_state.plain(state["bans"]))}
            now = {key: (value, saved_state.plain(entries[key])) for key, value in self._fixed_entries().items()}
            loaded = {
                "epoch": saved_state.whole_number(state["epoch"], "epoch", most=saved_state.MAX_EPOCH),
                "samples": saved_state.whole_number(state["samples"], "samples"),
            }
        except (AttributeError, LookupError, TypeError) as error:
            raise ResumeError(f"this is not a state of a StreamingDataset ({type(error).__name__}: {error})") from error
        for key, (value, saved) in now.items():
            if value != saved:
                raise ResumeError(
                    f"the state has {key}={saved!r}, this dataset has {value!r}: use the same options, and the same "
                    "number of ranks and workers, or make_loader, which resumes with any number"
                )
        most = len(self._plan(loaded["epoch"])) * self.batch_size
        saved_state.whole_number(loaded["samples"], "samples", most=most)
        self._loaded = loaded

    def _fixed_entries(self) -> dict[str, Any]:
        """Return the entries of a state that must be the same when it is loaded."""
        worker, num_workers = worker_of()
        world = self._opened.find_world()
        return {
            "worker": worker,
            "num_workers": num_workers,
            "rank": world.rank,
            "world_size": world.world_size,
            "batch_size": self.batch_size,
            "order": resuming.state_dict(self._orders.of(0), Cursor(0, 0)),
            "bans": _without_ids([ban.to_dict() for ban in self._orders.bans]),
        }

    def __getstate__(self) -> dict[str, Any]:
        # torch.distributed is not initialized in a worker that is not forked, so it gets the rank from here.
        self._check_not_split_twice(self._opened.ranks.find().world)
        opened = dataclasses.replace(self._opened, ranks=self._opened.ranks.for_worker())
        return {**self.__dict__, "_opened": opened, "_assembler": None}

    def __iter__(self) -> Iterator[Any]:
        # Not a generator: `StatefulDataLoader` requests the state of an iterator that has not been advanced yet.
        info, loaded = get_worker_info(), self._loaded
        if loaded:
            self.set_epoch(loaded["epoch"])
        epoch, self._loaded = self._next_epoch(info), None
        if loaded:
            self.set_epoch(epoch + 1)  # another worker may have set it between the two lines before
        self._position = (epoch, loaded["samples"] if loaded else 0)
        return self._samples_of_epoch(*self._position)

    def _samples_of_epoch(self, epoch: int, skipped: int) -> Iterator[Any]:
        """Yield the samples of this worker, without the first ``skipped`` ones."""
        worker, num_workers = worker_of()
        plan = self._plan(epoch)
        self._check_not_split_twice(plan.world)
        if self.decode and worker == 0 and not self._is_advised:
            self._is_advised.fill_(True)
            advice.warn_of_batch_sizes(self.batch_size, advice.batch_size_of_dataloader())
        self._assembler = self._assembler or Assembler(self._opened.recipe)
        self._assembler.reader.begin(epoch)
        self._errors.begin(len(plan) * self.batch_size // num_workers)
        numbers = range(worker, len(plan), num_workers)[skipped // self.batch_size :]
        skipped %= self.batch_size
        read_ahead = ReadAhead(
            self._assembler.reader,
            self._opened.read_ahead_bytes // num_workers,
            self._opened.recipe.partners if self.decode else None,
        )
        read_ahead.begin(plan, numbers)
        try:
            for index in numbers:
                read_ahead.advance(index)
                for sample in self._samples(plan, plan.step(index), skipped):
                    self._position = (epoch, self._position[1] + 1)
                    yield sample
                skipped = 0
        finally:
            read_ahead.stop()

    def _samples(self, plan: EpochPlan, step: Step, skipped: int) -> Iterator[Any]:
        """Yield the samples of a step, without the first ``skipped`` ones."""
        assert self._assembler is not None
        if not self.decode:
            yield from Rows(self._assembler.reader, step.ids[skipped:]).stored()
            return
        for start in range(skipped, len(step.ids), _CHUNK):
            part = slice(start, start + _CHUNK)
            values = values_of(
                self._assembler,
                self._errors,
                order=plan.order,
                epoch=plan.cursor.epoch,
                positions=step.positions[part],
                ids=step.ids[part],
                bucket=self._opened.recipe.bucket_of(plan, step),
            )
            yield from samples_of(values, self._opened.recipe.fields_of(None), is_bare=self._opened.is_bare)

    def _collate_fn(self) -> Callable[[list[Any]], Any]:
        recipe = self._opened.recipe
        return Handover(
            recipe.columns, is_bare=self._opened.is_bare, tail=self.tail, batch_transform=None, seed=recipe.seed
        ).collate

    def _plan(self, epoch: int) -> EpochPlan:
        opened = self._opened
        return EpochPlan(self._orders.of(epoch), Cursor(epoch, 0), opened.find_world(), self.batch_size, self.tail)

    def _check_not_split_twice(self, world: World) -> None:
        """Raise OptionError if Accelerate would split the samples of each rank over the ranks a second time.

        Each process would then get only a part of its share, and the rest would not be read at all.
        """
        if world.world_size > 1 and _accelerate_splits(self):
            raise OptionError(
                f"this dataset is already split over {world.world_size} processes, and Accelerate's prepare() splits "
                "it a second time, so that samples are lost: do not pass the DataLoader to prepare(), use make_loader "
                "instead of a DataLoader, or pass rank=0, world_size=1 so that only Accelerate splits the dataset"
            )

    def _next_epoch(self, info: Any) -> int:
        """Return the epoch of the iteration that starts now, the same in all workers of the DataLoader.

        The token of an iteration is the seed that the DataLoader draws for it, and the number of iterations that the
        worker has started. All workers of an iteration have the same token. The first worker with a new token advances
        the epoch. A late worker, even one that starts after `set_epoch`, joins the iteration of its token.
        """
        self._iterations += 1
        base = info.seed - info.id if info else 0
        token = torch.tensor([base, self._iterations], dtype=torch.int64)
        with self._lock:
            if not torch.equal(self._shared[2:], token):
                self._shared[1] = self._shared[0]
                self._shared[2:] = token
                self._shared[0] += 1
            return int(self._shared[1])


def _without_ids(bans: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return bans of a state with hashes of their ids. States of earlier versions have the ids."""
    hashed_bans = []
    for ban in bans:
        ids = ban.get("ids")
        hashed = {} if ids is None else {"xxh3": xxhash.xxh3_64_hexdigest(json.dumps(ids).encode())}
        hashed_bans.append({name: value for name, value in ban.items() if name != "ids"} | hashed)
    return hashed_bans


def worker_of() -> tuple[int, int]:
    """Return the index of this worker of a ``DataLoader``, and how many there are; (0, 1) without workers."""
    info = get_worker_info()
    return (info.id, info.num_workers) if info else (0, 1)


def values_of(
    assembler: Assembler,
    errors: ErrorLog,
    *,
    order: EpochOrder,
    epoch: int,
    positions: NDArray[np.int64],
    ids: NDArray[np.int64],
    bucket: int | None,
) -> list[Any]:
    """Return the values of each field for n samples, with substitutes for unreadable samples.

    Args:
        assembler: Reads and decodes the samples.
        errors: Log of the unreadable samples.
        order: Order of the samples in the epoch.
        epoch: Zero-based epoch.
        positions: int64 [n], positions in the epoch.
        ids: int64 [n], sample ids.
        bucket: See `Recipe.bucket_of`.

    Returns:
        One value per field, as returned by `Assembler.batch`.
    """
    partners = assembler.recipe.partners(order, positions)
    bucket = bucket if assembler.recipe.has_kinds_of_batches else None  # those of Buckets follow from the samples
    try:
        return assembler.batch(epoch=epoch, positions=positions, ids=ids, partners=partners, out=None, bucket=bucket)
    except WdsToolsError as error:
        if not errors.policy.replaces or not is_sample_error(error):
            raise

    def load(row: int, sources: NDArray[np.int64]) -> list[Any] | Unreadable:
        sample: Any = {"positions": positions[row : row + 1], "ids": sources[:, 0], "partners": sources[:, 1:]}
        return assembler.samples_or_errors(epoch=epoch, **sample, out=None, bucket=bucket)[0]

    samples = assembler.samples_or_errors(
        epoch=epoch, positions=positions, ids=ids, partners=partners, out=None, bucket=bucket
    )
    sources = np.column_stack([ids, partners])
    replace_unreadable(samples, load, errors, order=order, epoch=epoch, positions=positions, sources=sources)
    return join_parts([values for values in samples if isinstance(values, list)])


def _accelerate_splits(dataset: StreamingDataset) -> bool:
    """Return whether the DataLoader that reads this dataset was prepared by Accelerate for several processes."""
    accelerate = sys.modules.get("accelerate.data_loader")
    if accelerate is None:
        return False
    active = accelerate.GradientState().active_dataloader
    wrapped = getattr(active, "dataset", None)
    if isinstance(active, accelerate.DataLoaderDispatcher):
        return wrapped is dataset
    return isinstance(wrapped, accelerate.IterableDatasetShard) and wrapped.dataset is dataset
