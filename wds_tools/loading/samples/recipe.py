"""Options that determine the content of a batch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.images import native
from wds_tools.images.buckets import Buckets
from wds_tools.images.schedule import AnyView, choose, views_in
from wds_tools.images.views import tiles_of
from wds_tools.loading.fields.base import Column
from wds_tools.loading.fields.part import Part
from wds_tools.loading.fields.slots import ColumnSpec, SlotLayout, TensorSpec
from wds_tools.loading.fields.user_functions import Transform
from wds_tools.loading.samples.columns import buckets_of, choices_of, phases_of
from wds_tools.order.epoch import EpochOrder
from wds_tools.order.partners import partners_of
from wds_tools.order.planner import EpochPlan, Step
from wds_tools.reading.rows import Rows

if TYPE_CHECKING:
    from wds_tools.reading.shardset import ShardSet


@dataclass(frozen=True, slots=True)
class Recipe:
    """Options that determine the content of a batch. They are pickled to every worker.

    Attributes:
        shards: The dataset.
        block: Samples per block: one number, or int64 [shards].
        seed: Seed of crops, flips and transforms.
        columns: The fields of a batch.
        sample_transform: The user's function of all fields of a sample.
        replaces: Whether unreadable samples are replaced. They are then reported one by one.
        has_views_by_dataset: Whether each batch is of one dataset, which has a view of its own.
        compiled: Whether the process that creates the recipe has the compiled module. Its workers must have it too.
    """

    shards: ShardSet
    block: int | NDArray[np.int64]
    seed: int
    columns: tuple[Column, ...]
    sample_transform: Transform | None = None
    replaces: bool = False
    has_views_by_dataset: bool = False
    compiled: bool = field(default_factory=native.is_available)

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of a sample."""
        return tuple(column.name for column in self.columns)

    @property
    def phases(self) -> tuple[int, ...]:
        """The epochs at which a view changes, ascending, starting with 0."""
        return phases_of(self.columns)

    @property
    def buckets(self) -> Buckets | None:
        """The `Buckets` of the images, of which each batch has one size; None if there are none."""
        return buckets_of(self.columns)

    @property
    def variants(self) -> list[tuple[int, int | None]]:
        """First epoch and bucket of each variant of a batch. Batches of one variant have the same columns and views."""
        return [(epoch, bucket) for epoch in self.phases for bucket in (None, *range(self._choices))]

    def variant_at(self, epoch: int, bucket: int | None = None) -> int:
        """Return which of the `variants` a batch has."""
        return (bisect_right(self.phases, epoch) - 1) * (1 + self._choices) + (0 if bucket is None else 1 + bucket)

    @property
    def _choices(self) -> int:
        return len(self.buckets.sizes) if self.buckets else choices_of(self.columns)

    def bucket_of(self, plan: EpochPlan, step: Step) -> int | None:
        """Return the bucket of a step, or which view of several it has; None if there are neither."""
        count = choices_of(self.columns)
        if self.has_views_by_dataset or not count:
            return step.bucket if self._choices else None
        start = plan.cursor.position + step.number * plan.global_batch
        return choose(self.seed, plan.cursor.epoch, start, count)

    def columns_in(self, variant: int) -> tuple[Column, ...]:
        """Return the columns of a variant, with plain views."""
        epoch, bucket = self.variants[variant]
        return tuple(column.at(epoch, bucket) for column in self.columns)

    @property
    def has_partners(self) -> bool:
        """Whether images show further samples in some epoch."""
        views = (view for column in self.columns if column.geometry for view in column.geometry.views)
        return any(tiles_of(one) > 1 for view in views for one in views_in(view))

    def partners(self, order: EpochOrder, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of further samples that the images at these positions show: int64 [n, k]."""
        tiles = [column.geometry.tiles_at(order.epoch) for column in self.columns if column.geometry]
        return partners_of(order, positions, max(tiles, default=1) - 1)

    def part(
        self, rows: Rows, *, epoch: int, positions: NDArray[np.int64], partners: NDArray[np.int64] | None = None
    ) -> Part:
        """Return samples that are loaded together.

        Args:
            rows: The n samples.
            epoch: Zero-based epoch.
            positions: int64 [n], positions in the epoch.
            partners: int64 [n, k], see `partners`.
        """
        unchanged = {column.spec.field for column in self.columns if column.spec.is_unchanged}
        return Part(rows, unchanged, seed=self.seed, epoch=epoch, positions=positions, partners=partners)

    @property
    def view(self) -> AnyView | None:
        """The first view, for messages."""
        return next((column.geometry.views[0] for column in self.columns if column.geometry), None)

    @property
    def has_slots(self) -> bool:
        """Whether a view gives all images of a column one size, so that they can be written to shared memory."""
        return any(column.shapes for variant in range(len(self.variants)) for column in self.columns_in(variant))

    @property
    def layouts(self) -> tuple[SlotLayout, ...] | None:
        """What a slot holds in each variant of a batch; None if it depends on stored types or on user functions."""
        layouts = [self._layout(self.columns_in(variant)) for variant in range(len(self.variants))]
        known = tuple(layout for layout in layouts if layout)
        return known if len(known) == len(layouts) else None

    def _layout(self, columns: Sequence[Column]) -> SlotLayout | None:
        """Return what a slot holds for some columns, if it is known in advance."""
        specs: list[ColumnSpec] = []
        if self.sample_transform is not None:
            return None
        for column in columns:
            if column.shapes and not column.spec.is_rgb:
                return None
            of_column = tuple(TensorSpec(shape, torch.uint8) for shape in column.shapes or ())
            specs.append((of_column if column.is_list else of_column[0]) if of_column else None)
        return SlotLayout(tuple(specs))
