"""Options that determine the content of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.images.views import View
from wds_tools.loading.columns import Column
from wds_tools.loading.fields import Frames, Image, Transform
from wds_tools.loading.slots import ColumnSpec, SlotLayout, TensorSpec

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
    """

    shards: ShardSet
    block: int | NDArray[np.int64]
    seed: int
    columns: tuple[Column, ...]
    sample_transform: Transform | None = None
    replaces: bool = False

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of a sample."""
        return tuple(column.name for column in self.columns)

    @property
    def view(self) -> View | None:
        """The first view, for messages."""
        return next((column.geometry.views[0] for column in self.columns if column.geometry), None)

    @property
    def has_slots(self) -> bool:
        """Whether a view gives all images of a column one size, so that they can be written to shared memory."""
        return any(column.shapes for column in self.columns)

    @property
    def layout(self) -> SlotLayout | None:
        """What a slot holds, if it is known in advance; None if it depends on stored types or on user functions."""
        columns: list[ColumnSpec] = []
        if self.sample_transform is not None:
            return None
        for column in self.columns:
            if column.shapes and not _is_rgb(column):
                return None
            frames = (column.frames,) if column.frames else ()
            specs = tuple(TensorSpec((*frames, 3, *shape), torch.uint8) for shape in column.shapes or ())
            columns.append((specs if column.is_list else specs[0]) if specs else None)
        return SlotLayout(tuple(columns)) if any(columns) else None


def _is_rgb(column: Column) -> bool:
    """Return whether all values are uint8 RGB images."""
    spec = column.spec
    return isinstance(spec, Frames) or (isinstance(spec, Image) and spec.transform is None and spec.mode == "rgb")
