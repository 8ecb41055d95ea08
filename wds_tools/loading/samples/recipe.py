"""Options that determine the content of a batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.images import native
from wds_tools.images.buckets import Buckets
from wds_tools.images.schedule import AnyView, choose, views_in
from wds_tools.images.views import tiles_of
from wds_tools.loading.fields.base import Column, Conversion
from wds_tools.loading.fields.part import Part
from wds_tools.loading.fields.slots import ColumnSpec, SlotLayout, TensorSpec
from wds_tools.loading.fields.user_functions import Transform
from wds_tools.loading.samples.columns import buckets_of, choices_of, phases_of
from wds_tools.order.epoch import EpochOrder
from wds_tools.order.partners import partners_of
from wds_tools.order.planner import EpochPlan, Step
from wds_tools.reading.reader import Blocks
from wds_tools.reading.rows import Rows

if TYPE_CHECKING:
    from wds_tools.reading.shardset import ShardSet


class Samples(NamedTuple):
    """Samples that are loaded together.

    Attributes:
        partners: int64 [n, k], ids of further samples that the images show.
    """

    positions: NDArray[np.int64]
    ids: NDArray[np.int64]
    partners: NDArray[np.int64]


@dataclass(frozen=True)  # without slots, for what is computed once: each batch needs it
class Recipe:
    """Options that determine the content of a batch. They are pickled to every worker.

    Attributes:
        columns_by_dataset: The fields of a batch; those of each dataset if batches are of one dataset that has fields
            or a view of its own.
        replaces: Whether unreadable samples are replaced. They are then reported one by one.
        compiled: Whether the process that creates the recipe has the compiled module. Its workers must have it too.
    """

    shards: ShardSet
    block: Blocks
    seed: int
    columns_by_dataset: tuple[tuple[Column, ...], ...]
    sample_transform: Transform | None = None
    replaces: bool = False
    compiled: bool = field(default_factory=native.is_available)

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The fields of all batches."""
        return tuple(chain.from_iterable(self.columns_by_dataset))

    @property
    def is_by_dataset(self) -> bool:
        """Whether the fields or views of a batch depend on its dataset, which is its bucket."""
        return len(self.columns_by_dataset) > 1

    def number_of(self, bucket: int | None) -> int:
        """Return which of `columns_by_dataset` a batch of a bucket has, see `bucket_of`."""
        return bucket if self.is_by_dataset and bucket is not None else 0

    def columns_of(self, bucket: int | None) -> tuple[Column, ...]:
        """Return the fields of a batch of a bucket."""
        return self.columns_by_dataset[self.number_of(bucket)]

    def fields_of(self, bucket: int | None) -> tuple[str, ...]:
        """Return the names of the fields of a sample in a batch of a bucket."""
        return tuple(column.name for column in self.columns_of(bucket))

    @cached_property
    def phases(self) -> tuple[int, ...]:
        """The epochs at which a view changes, ascending, starting with 0."""
        return phases_of(self.columns)

    @cached_property
    def buckets(self) -> Buckets | None:
        """The `Buckets` of the images, of which each batch has one size; None if there are none."""
        return buckets_of(self.columns)

    @cached_property
    def variants(self) -> list[tuple[int, int | None]]:
        """First epoch and bucket of each variant of a batch. Batches of one variant have the same columns and views."""
        return [(epoch, bucket) for epoch in self.phases for bucket in self._kinds]

    def variant_at(self, epoch: int, bucket: int | None = None) -> int:
        """Return which of the `variants` a batch has."""
        kinds = self._kinds
        return (bisect_right(self.phases, epoch) - 1) * len(kinds) + kinds.index(bucket)

    @cached_property
    def _kinds(self) -> tuple[int | None, ...]:
        """The values of `bucket_of`, and None if there are batches without one."""
        if self.is_by_dataset:
            return tuple(range(len(self.columns_by_dataset)))
        return (None, *range(len(self.buckets.sizes) if self.buckets else self._choices))

    @cached_property
    def _choices(self) -> int:
        """The number of views of which each batch has one; 0 if there is no such rule."""
        return choices_of(self.columns)

    @property
    def has_kinds_of_batches(self) -> bool:
        """Whether batches differ in their fields or views by a bucket that samples alone do not have."""
        return self.is_by_dataset or self._choices > 0

    def bucket_of(self, plan: EpochPlan, step: Step) -> int | None:
        """Return the bucket or dataset of a step, or which view of several it has; None if there is no such rule."""
        count = self._choices
        if not count:
            return step.bucket if self.is_by_dataset or self.buckets else None
        start = plan.cursor.position + step.number * plan.global_batch
        return choose(self.seed, plan.cursor.epoch, start, count)

    def columns_in(self, variant: int) -> tuple[Column, ...]:
        """Return the columns of a variant, with plain views."""
        epoch, bucket = self.variants[variant]
        return tuple(column.at(epoch, bucket) for column in self.columns_of(bucket))

    @cached_property
    def has_partners(self) -> bool:
        """Whether images show further samples in some epoch."""
        views = (view for column in self.columns if column.geometry for view in column.geometry.views)
        return any(tiles_of(part) > 1 for view in views for part in views_in(view))

    def partners(self, order: EpochOrder, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of further samples that the images at these positions show: int64 [n, k]."""
        if not self.has_partners:
            return np.empty((len(positions), 0), np.int64)
        tiles = [column.geometry.tiles_at(order.epoch) for column in self.columns if column.geometry]
        return partners_of(order, positions, max(tiles, default=1) - 1)

    def first_samples(self, plan: EpochPlan) -> tuple[Samples, ...]:
        """Return samples from which it is found out what slots hold; some of each dataset with fields of its own."""
        step = plan.step(0)
        if not self.is_by_dataset:
            return (Samples(step.positions, step.ids, self.partners(plan.order, step.positions)),)
        run, count = plan.order.run, self.partners(plan.order, step.positions).shape[1]
        samples = []
        for scan, first in zip(run.scans, run.first_ids, strict=False):
            ids = first + scan.slice(plan.order.epoch, 0, min(len(step.ids), scan.samples))[0]
            samples.append(Samples(np.arange(len(ids)), ids, np.repeat(ids[:, None], count, axis=1)))
        return tuple(samples)

    def part(
        self,
        rows: Rows,
        columns: Sequence[Column],
        *,
        epoch: int,
        positions: NDArray[np.int64],
        partners: NDArray[np.int64] | None = None,
    ) -> Part:
        """Return samples that are loaded together."""
        unchanged = {column.spec.field for column in columns if column.spec.is_unchanged}
        return Part(rows, unchanged, seed=self.seed, epoch=epoch, positions=positions, partners=partners)

    @property
    def view(self) -> AnyView | None:
        """The first view, for messages."""
        return next((column.geometry.views[0] for column in self.columns if column.geometry), None)

    @property
    def has_slots(self) -> bool:
        """Whether a view gives all images of a column one size, so that they can be written to shared memory."""
        return any(column.shapes for variant in range(len(self.variants)) for column in self.columns_in(variant))

    def converting(self, conversion: Conversion) -> Recipe | None:
        """Return this recipe with images that the workers convert; None if images may differ in size or are not bytes.

        It is also None if they go to a function of the user or are padded, as both get bytes.
        """
        variants = [self.columns_in(variant) for variant in range(len(self.variants))]
        images = [column for columns in variants for column in columns if column.name == "image"]
        if self.sample_transform is not None or not all(column.is_convertible for column in images):
            return None
        columns_by_dataset = tuple(
            tuple(replace(field, conversion=conversion) if field.name == "image" else field for field in columns)
            for columns in self.columns_by_dataset
        )
        return replace(self, columns_by_dataset=columns_by_dataset)

    @property
    def layouts(self) -> tuple[SlotLayout, ...] | None:
        """What a slot holds in each variant of a batch; None if it depends on stored types or on user functions."""
        layouts = [self._layout(self.columns_in(variant)) for variant in range(len(self.variants))]
        complete = tuple(layout for layout in layouts if layout)
        return complete if len(complete) == len(layouts) else None

    def _layout(self, columns: Sequence[Column]) -> SlotLayout | None:
        """Return what a slot holds for some columns, if it is known in advance."""
        specs: list[ColumnSpec] = []
        if self.sample_transform is not None:
            return None
        for column in columns:
            if column.shapes and not column.spec.is_rgb:
                return None
            dtype = column.conversion.dtype if column.conversion else torch.uint8
            of_column = tuple(TensorSpec(shape, dtype, column.channels_last) for shape in column.shapes or ())
            specs.append((of_column if column.is_list else of_column[0]) if of_column else None)
        return SlotLayout(tuple(specs))
