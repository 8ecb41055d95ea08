"""The dataset of a loader: opened, and checked against the options."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.format.field_classes import check_same
from wds_tools.format.manifest import order_fingerprint
from wds_tools.format.recorded_source import is_beginning, plan_of
from wds_tools.images import native
from wds_tools.images.buckets import Buckets
from wds_tools.images.schedule import views_in
from wds_tools.images.views import View
from wds_tools.loading.fields.base import Column
from wds_tools.loading.load_options import LoadOptions
from wds_tools.loading.mixture import Mixture
from wds_tools.loading.ranks import RankOptions, default_lanes, report_assumed_machine
from wds_tools.loading.samples.columns import buckets_of, choices_of
from wds_tools.loading.samples.recipe import Recipe
from wds_tools.options import use_native
from wds_tools.order.buckets import BucketOrder, Columns
from wds_tools.order.changes import FindWeights
from wds_tools.order.epoch import PlainOrder, RunOrder
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.packed import PackedOrder
from wds_tools.order.planner import Cursor, EpochOrders, EpochPlan, PrefixOrder, World
from wds_tools.order.quality import window_of
from wds_tools.order.sequence import Order, default_block
from wds_tools.order.shares import whole_shares
from wds_tools.reading.columns import numbers, numbers_of
from wds_tools.reading.names import Dataset
from wds_tools.reading.opening import join_sets, open_shards
from wds_tools.reading.read_ahead import read_ahead_bytes
from wds_tools.reading.reader import Blocks
from wds_tools.reading.select import Choice, banned_ids, checked_ids
from wds_tools.reading.shardset import ShardSet, check_fields
from wds_tools.reading.weights import WeightSchedule
from wds_tools.storage.cache.arrays import Arrays

if TYPE_CHECKING:
    from wds_tools.packing.unfinished import UnfinishedShards

_MAX_EARLY_INDEXES = 64
_log = logging.getLogger("wds_tools")


@dataclass(frozen=True, slots=True)
class MixturePart:
    """One dataset of a mixture (or the only one), and how it is ordered."""

    shards: ShardSet
    choice: Choice
    seed: int
    window: int
    block: int
    lanes: int

    @property
    def window_bytes(self) -> int:
        """Size of the shuffle window of all machines in bytes."""
        manifest = self.shards.manifest
        return min(self.window, manifest.samples) * manifest.bytes // manifest.samples

    def order(self, first_shards: int | None = None) -> Order:
        """Return the order of the dataset, or of its first ``first_shards`` shards only."""
        manifest = self.shards.manifest
        return Order(
            fingerprint=order_fingerprint(manifest.shards[:first_shards]),
            shard_samples=manifest.shard_samples[:first_shards],
            seed=self.seed,
            window=self.window,
            block=self.block,
            lanes=self.lanes,
            selection=self.choice.select(self.shards, first_shards=first_shards),
        )


@dataclass(frozen=True, slots=True)
class OpenedDataset:
    """A dataset and everything that determines its batches.

    Attributes:
        order: Order of the samples, including banned ones.
        prefix: Function that returns the order of the first n shards only; None for a mixture.
        ranks: How to find the rank of this process at the start of an iteration.
        recipe: Options that the workers need.
        read_ahead_bytes: How many bytes of a remote dataset to read before they are needed.
        is_bare: Whether ``fields=`` was a single name, so that values are returned without a named tuple.
        has_default_lanes: Whether ``lanes=`` was omitted, so that the number of machines determined the lanes.
        banned: Ids of the samples that are left out.
        schedule: Weights that change during the run.
        packed: The order in which the dataset was packed, or is being packed; None if it is not known, or if other
            options select or order the samples.
        begins_packed: Whether the first epoch of a new run has that order.
    """

    order: RunOrder
    prefix: PrefixOrder | None
    ranks: RankOptions
    recipe: Recipe
    read_ahead_bytes: int
    is_bare: bool
    has_default_lanes: bool
    banned: tuple[int, ...] = ()
    schedule: WeightSchedule | None = None
    packed: PackedOrder | None = None
    begins_packed: bool = False

    @property
    def shards(self) -> ShardSet:
        """The dataset."""
        return self.recipe.shards

    def orders(self, find_weights: FindWeights | None = None) -> EpochOrders:
        """Return the orders of all epochs of a new run."""
        first = {0: self.packed} if self.packed and self.begins_packed else None
        return EpochOrders(self.order, first, find_weights=find_weights).banning(self.banned, Cursor())

    def find_world(self) -> World:
        """Return the rank of this process, and report if the number of machines had to be assumed."""
        world = self.ranks.find().world
        if self.has_default_lanes and self.order.identity.lanes == 1 and self.ranks.inherited is None:
            report_assumed_machine(world)
        return world


def open_dataset(
    options: LoadOptions, *, unfinished: UnfinishedShards | None = None, known: ShardSet | None = None
) -> OpenedDataset:
    """Open a dataset and check the options against it, before any worker starts.

    Args:
        options: The options.
        unfinished: The dataset if it is still being packed. Its order is that of the plan.
        known: The dataset if it is open already, and not a mixture; then ``options`` only names it in messages.

    Raises:
        NotADatasetError: There is no packed dataset.
        MissingFieldError: The dataset lacks a field.
        OptionError: An invalid option.
    """
    world = options.ranks.find().world
    dataset = options.dataset
    mixture = dataset if isinstance(dataset, Mixture) else Mixture([dataset], weights=[1])
    if len(mixture.datasets) > 1 and options.class_weights is not None:
        raise OptionError(
            "class_weights= requires a single dataset, because the weights of a Mixture determine its shares: join the "
            "datasets with `wds-tools merge`, or use where= and the weights of the Mixture"
        )
    known = unfinished or known
    opened = [_open_part(name, options, world, index, known) for index, name in enumerate(mixture.datasets)]
    parts = _with_own_ids(opened)
    plain: PlainOrder
    prefix: Callable[[int], PlainOrder] | None
    block: Blocks
    if len(parts) == 1 and mixture.epoch_length is None and mixture.batches == "mixed":
        shards, block, prefix = parts[0].shards, parts[0].block, parts[0].order
        packed = _packed_order(shards, options)
        plain = parts[0].order() if unfinished is None or packed is None else packed
    else:
        shards = parts[0].shards if len(parts) == 1 else join_sets([part.shards for part in parts])
        block = tuple((part.block, len(part.shards.locations)) for part in parts)
        prefix = packed = None
        shares = whole_shares(mixture.first_weights)
        step, is_single = options.batch_size * world.world_size, mixture.batches == "single"
        unit = step if mixture.same_source_on_ranks else options.batch_size
        plain = MixtureOrder(
            [part.order() for part in parts],
            shares,
            mixture.stop,
            mixture.epoch_length,
            unit if is_single else None,
            step if is_single else None,
            is_of_rank=not mixture.same_source_on_ranks,
        )
    columns_by_dataset = tuple(
        _opened_columns(columns, shards if mixture.fields is None else part.shards)
        for columns, part in zip(options.columns_by_dataset, parts, strict=False)
    )
    columns = tuple(chain.from_iterable(columns_by_dataset))
    if unfinished is None:
        _start_reading_indexes(shards, plain, options.batch_size * world.world_size)
    if mixture.batches == "single" and buckets_of(columns):
        raise OptionError("Buckets divide the samples of all datasets: use views= of the Mixture, or batches='mixed'")
    if mixture.has_own_columns and choices_of(columns):
        raise OptionError(
            "MultiScale chooses one of several views for any batch: use it without views= and fields= of the Mixture"
        )
    order, order_of_first = _in_buckets(plain, prefix, shards, buckets_of(columns), options.batch_size)
    recipe = Recipe(shards, block, options.seed, columns_by_dataset, options.sample_transform, options.errors.replaces)
    if any(column.geometry for column in columns) and use_native() and not recipe.compiled:
        _warn_of_missing_module()
    window_bytes = sum(part.window_bytes for part in parts if part.shards.is_remote) // default_lanes(world)
    return OpenedDataset(
        order,
        order_of_first,
        options.ranks,
        recipe,
        read_ahead_bytes(options.remote, window_bytes),
        isinstance(options.fields, str) and mixture.fields is None,
        has_default_lanes=options.lanes is None,
        banned=() if options.ban is None else tuple(banned_ids(shards, options.ban, plain.first_ids)),
        schedule=options.schedule,
        packed=packed,
        begins_packed=unfinished is not None,
    )


def _opened_columns(columns: Sequence[Column], shards: ShardSet) -> tuple[Column, ...]:
    """Return columns with what only the dataset knows."""
    check_same(shards.class_lists, fields=[column.spec.field for column in columns])
    return tuple(replace(column, spec=column.spec.opened(shards)) for column in columns)


def _packed_order(shards: ShardSet, options: LoadOptions) -> PackedOrder | None:
    """Return the order in which a dataset was packed, or is being packed, if a loader may have it."""
    source = shards.manifest.source or {}
    choice = (options.where, options.subset, options.class_weights)
    chooses = any(value is not None for value in choice) or buckets_of(options.columns_of(0)) is not None
    if chooses or not source.get("digest") or is_beginning(source):
        return None
    return PackedOrder(
        plan_of(source),
        samples=int(source["files"]),
        seed=options.seed,
        packed=shards.packed,
    )


def _in_buckets(
    order: PlainOrder,
    prefix: Callable[[int], PlainOrder] | None,
    shards: ShardSet,
    buckets: Buckets | None,
    group: int,
) -> tuple[RunOrder, PrefixOrder | None]:
    """Return the order, and that of the first shards, in batches of one bucket if there are buckets."""
    if buckets is None:
        return order, prefix
    labels, sizes = _bucket_of_each_sample(shards, buckets), buckets.sizes
    stored = partial(_stored_order, shards)
    of_first = (lambda first: BucketOrder(prefix(first), labels, sizes, group, stored)) if prefix else None
    return BucketOrder(order, labels, sizes, group, stored), of_first


def _stored_order(shards: ShardSet, what: str, compute: Callable[[], Columns]) -> Columns:
    return shards.computed(f"order in buckets {what}", lambda: Arrays(compute())).arrays


@cache
def _warn_of_missing_module() -> None:
    """Log a warning once per process."""
    _log.warning("%s. Until then, images load more slowly; WDS_TOOLS_NATIVE=0 hides this warning", native.why_missing())


def _bucket_of_each_sample(shards: ShardSet, buckets: Buckets) -> NDArray[np.signedinteger]:
    """Return the bucket of each sample, from the image sizes in the indexes: int8 or int16 [samples]."""
    kind = np.int8 if len(buckets.sizes) < 1 << 7 else np.int16

    def compute() -> Arrays:
        labels = []
        for shard in numbers_of(shards, None):
            table = shards.stored_columns(shard, ["width", "height"])[0]
            sizes = [numbers(table[name].cast(pa.int64()), 0) for name in ("width", "height")]
            labels.append(buckets.bucket_of(*sizes).astype(kind))
        return Arrays({"bucket": np.concatenate(labels)})

    return shards.computed(f"buckets {buckets.sizes}", compute).arrays["bucket"]


def _open_part(name: Dataset, options: LoadOptions, world: World, index: int, opened: ShardSet | None) -> MixturePart:
    """Open one dataset, if it is not open already, and check the options against it."""
    shards = opened or open_shards(name, remote=options.remote, for_training=True)
    manifest = shards.manifest
    columns = options.columns_of(index)
    names = tuple(name for column in columns for name in column.spec.stored_names(manifest.all_fields))
    check_fields(names, manifest.all_fields, has_labels=manifest.has_labels)
    shards = shards.with_fields(names)
    geometries = [column.geometry for column in columns if column.geometry]
    views = [view for geometry in geometries if geometry.field == "image" for view in geometry.views]
    for view in views if options.view is None else (options.view, *views):
        for part in views_in(view):
            _check_view(part, shards)
            if opened is not None:
                opened.check_new(partial(_check_view, part, shards))
    block = default_block(manifest.samples, manifest.order_bytes)
    batch = options.batch_size * world.world_size
    return MixturePart(
        shards,
        options.choice,
        options.seed,
        window_of(options.shuffle, block=block, samples=manifest.samples, shuffled=manifest.shuffled, batch=batch),
        block,
        options.lanes or default_lanes(world),
    )


def _start_reading_indexes(shards: ShardSet, order: PlainOrder, batch: int) -> None:
    """Start reading the remote indexes that the first batch of epoch 0 needs, while the user prepares the training."""
    if shards.is_remote:
        ids = order.ids(0, 0, min(batch, order.samples, _MAX_EARLY_INDEXES))
        samples = shards.manifest.shard_samples
        shards.read_indexes_ahead(
            np.unique(np.searchsorted(np.cumsum(samples), ids, side="right")).tolist(), wait=False
        )


def _with_own_ids(parts: Sequence[MixturePart]) -> list[MixturePart]:
    """Return datasets, each with its own sample ids of ``subset=``. They count through all datasets."""
    subset = parts[0].choice.subset
    if len(parts) == 1 or subset is None or isinstance(subset, float):
        return list(parts)
    edges = np.cumsum([0, *(part.shards.manifest.samples for part in parts)])
    ids = checked_ids(subset, int(edges[-1]))
    return [
        replace(part, choice=replace(part.choice, subset=ids[(ids >= first) & (ids < last)] - first))
        for part, (first, last) in zip(parts, pairwise(edges.tolist()), strict=True)
    ]


def _check_view(view: View, shards: ShardSet) -> None:
    images = shards.manifest.images
    least_h, least_w = view.least
    if images and (images.min_height < least_h or images.min_width < least_w):
        raise OptionError(
            f"{view} needs images of at least {least_w}x{least_h}, but the smallest width in the dataset is "
            f"{images.min_width} and the smallest height {images.min_height}: use a smaller view, or "
            "CenterCrop(size, resize=...)"
        )


def check_plan(plan: EpochPlan) -> None:
    """Check that an epoch has at least one step."""
    if plan.tail == "drop" and plan.global_batch > plan.end:
        if plan.order.identity.buckets:
            raise OptionError(
                f"batch_size={plan.batch_size} on {plan.world.world_size} rank(s) requires {plan.world.world_size} "
                f"batches of one size of Buckets per step, but the dataset has {plan.end // plan.batch_size}: "
                "use a smaller batch, fewer sizes, or tail='pad'"
            )
        without = " without the banned ones" if plan.order.samples < plan.order.run.samples else ""
        raise OptionError(
            f"batch_size={plan.batch_size} on {plan.world.world_size} rank(s) requires {plan.global_batch:,} samples "
            f"per step, but the dataset has {plan.order.samples:,}{without}: use a smaller batch, or tail='pad'"
        )


def check_batch_size(plan: EpochPlan) -> None:
    """Check that each batch is within one group of buckets, after a resume with another batch size.

    Raises:
        OptionError: A batch would have samples of several buckets.
    """
    largest = plan.order.largest_batch(plan.cursor.position)
    size, ranks = plan.batch_size, plan.world.world_size
    if largest is not None and not plan.order.identity.group_is_of_rank and largest % (size * ranks):
        raise OptionError(
            f"batch_size={size} on {ranks} rank(s): steps of {size * ranks:,} samples would mix datasets, because this "
            f"run of a Mixture with batches='single' has steps of {plan.order.identity.group:,} samples, and continues "
            f"at position {plan.cursor.position:,}: use {largest:,} samples per step, or a divisor of it; if the "
            "process group was created after the loader, create a new loader"
        )
    if largest is not None and largest % size:
        raise OptionError(
            f"batch_size={size}: the state is for Buckets in batches of {plan.order.identity.group}, at position "
            f"{plan.cursor.position:,}, so batches of {size} would mix sizes: use batch_size={largest}, or a "
            "divisor of it"
            if plan.order.identity.buckets
            else f"batch_size={size}: the batches of this Mixture have {plan.order.identity.group} samples of one "
            f"dataset, so at position {plan.cursor.position:,} batches of {size} would mix datasets: use "
            f"batch_size={largest}, or a divisor of it"
        )
