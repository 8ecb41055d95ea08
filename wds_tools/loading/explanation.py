"""What a step of a training run saw: its samples and their crops, computed from the plan."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.errors import OptionError, WdsToolsError
from wds_tools.images.views import Regions
from wds_tools.loading.fields.base import Column
from wds_tools.loading.fields.part import Part
from wds_tools.loading.samples.bad_samples import is_sample_error
from wds_tools.loading.samples.recipe import Recipe
from wds_tools.order.history import FoundStep
from wds_tools.order.segments import BlockReading, blocks_of
from wds_tools.reading.reader import Reader
from wds_tools.reading.rows import Rows
from wds_tools.wording import counted

_Value = TypeVar("_Value")
_Function = Callable[[Part, Column], list[tuple[_Value, ...]]]
"""What it finds in a column of each sample of a part."""


@dataclass(frozen=True, slots=True)
class Crop:
    """The region of an image that a view shows, in pixels of the stored image after its EXIF orientation is applied.

    Attributes:
        left: Left edge.
        top: Top edge.
        width: Width.
        height: Height.
        size: Height and width of the result.
        flip: Whether the result is mirrored left to right.
        flip_vertical: Whether the result is mirrored top to bottom.
        place: Left and top edge of the result in the output; None if it is the whole output.
        partner: Shard, key and id of the sample whose image is shown; None if it is the sample itself.
    """

    left: float
    top: float
    width: float
    height: float
    size: tuple[int, int]
    flip: bool
    flip_vertical: bool = False
    place: tuple[int, int] | None = None
    partner: tuple[str, str, int] | None = None

    def __str__(self) -> str:
        flipped = (", flipped" if self.flip else "") + (", upside down" if self.flip_vertical else "")
        region = f"{self.width:g}x{self.height:g} at ({self.left:g}, {self.top:g})"
        where = "" if self.place is None else f" at ({self.place[0]}, {self.place[1]})"
        of = "" if self.partner is None else f"{self.partner[0]} {self.partner[1]} (id {self.partner[2]}): "
        return f"{of}{region} to {self.size[1]}x{self.size[0]}{where}{flipped}"


@dataclass(frozen=True, slots=True)
class StepSample:
    """One sample of a step.

    Attributes:
        rank: Data-parallel rank that gets it.
        row: Its index in the batch of that rank.
        position: Its position in the epoch. It determines the random numbers of the sample.
        id: Sample id.
        shard: Name of its shard.
        key: Its key.
        is_padding: Whether it only fills the batch (``tail="pad"`` and ``"mask"``).
        crops: For each image field, the region of each view; none if the sample has no image with a readable header.
            For a `Mosaic`, the region of each visible tile, the first tile first.
            For `Frames`, one region, which all frames of the sample share.
        frames: For each `Frames` field, the names of the stored frames that are used.
    """

    rank: int
    row: int
    position: int
    id: int
    shard: str
    key: str
    is_padding: bool
    crops: dict[str, tuple[Crop, ...]]
    frames: dict[str, tuple[str, ...]]


class StepExplanation:
    """The samples of a step, and their crops. ``str()`` returns a table.

    These are the samples of the plan, even if ``on_error="replace"`` replaces some of them: only reading shows that a
    sample is unreadable.

    Attributes:
        step: Zero-based index of the step, counted from the start of the run.
        epoch: Zero-based epoch.
        ranks: int64 [n], rank of each sample, ascending.
        rows: int64 [n], index of each sample in the batch of its rank.
        positions: int64 [n], position of each sample in the epoch.
        ids: int64 [n], sample ids.
        valid: bool [n], False for samples that only fill a batch.
        partners: int64 [n, k], ids of further samples that the images show.
        weights: Weights of `Loader.reweight` by which the samples were drawn, by argument; None without weights.
    """

    def __init__(self, target: FoundStep, recipe: Recipe, *, rank: int | None) -> None:
        world_size = target.section.world_size
        if rank is not None and not 0 <= rank < world_size:
            raise OptionError(f"rank={rank}; step {target.step} was or will be read by the ranks 0 to {world_size - 1}")
        numbers = range(world_size) if rank is None else [rank]
        steps = [target.plan(index).step(target.number) for index in numbers]
        self.step, self.epoch, self.weights = target.step, target.cursor.epoch, target.weights
        self.ranks = np.repeat(np.array(numbers), [len(step.ids) for step in steps])
        self.rows = np.concatenate([np.arange(len(step.ids)) for step in steps])
        self.positions = np.concatenate([step.positions for step in steps])
        self.ids = np.concatenate([step.ids for step in steps])
        self.valid = np.concatenate([step.valid for step in steps])
        self.partners = recipe.partners(target.order, self.positions)
        self._recipe, self._order = recipe, target.order
        self._bucket = recipe.bucket_of(target.plan(0), steps[0]) if recipe.buckets is None else None  # of all ranks
        self._columns = recipe.columns_in(recipe.variant_at(self.epoch, self._bucket))

    @cached_property
    def samples(self) -> tuple[StepSample, ...]:
        """The samples, by rank and row.

        The indexes of their shards are read for it, and the first frame of each sample for the regions of `Frames`.

        Raises:
            StoreError: An index or a frame cannot be read.
        """
        rows = self._part.rows
        crops = {column.name: self._by_sample(_crops_in, column) for column in self._images}
        clips = [column for column in self._images if column.spec.is_clip]
        frames = {column.name: self._by_sample(_frames_in, column) for column in clips}
        by_row = zip(self.ranks.tolist(), self.rows.tolist(), self.positions.tolist(), self.ids.tolist(), strict=True)
        return tuple(
            StepSample(
                *numbers,
                *rows.shard_and_key(i),
                is_padding=not self.valid[i],
                crops={name: values[i] for name, values in crops.items()},
                frames={name: values[i] for name, values in frames.items()},
            )
            for i, numbers in enumerate(by_row)
        )

    @cached_property
    def reading(self) -> BlockReading | None:
        """Blocks that the epoch reads by the weights; None in a plain epoch. All its samples are computed for it."""
        return None if self.weights is None else blocks_of(self._order)

    def part(self, rows: slice) -> StepExplanation:
        """Return the explanation of some of the samples only."""
        explanation = copy.copy(self)
        for name in ("samples", "_part"):
            vars(explanation).pop(name, None)  # what was computed for all samples
        for name in ("ranks", "rows", "positions", "ids", "valid", "partners"):
            setattr(explanation, name, getattr(self, name)[rows])
        return explanation

    @property
    def image_fields(self) -> list[str]:
        """Names of the images and `Frames` of a batch."""
        return [column.name for column in self._images]

    def images(self, name: str, i: int) -> list[torch.Tensor]:
        """Return the pixels of sample ``i``, before ``transform=`` and ``sample_transform=``.

        Args:
            name: Name of an image of the batch, see `image_fields`.
            i: Index in `samples`.

        Returns:
            One uint8 tensor [3, height, width] for each view, or for each frame of `Frames`.

        Raises:
            SampleError: The sample cannot be read.
        """
        column = next((column for column in self._images if column.name == name), None)
        if column is None:
            raise OptionError(
                f"a batch has no image field {name!r}; its image fields are {', '.join(self.image_fields)}"
            )
        part = self._part_of(slice(i, i + 1))
        buckets, bucket = self._recipe.buckets, self._bucket
        if buckets:
            bucket = int(buckets.bucket_of(part.rows.gather("width"), part.rows.gather("height"))[0])
        columns = self._recipe.columns_in(self._recipe.variant_at(self.epoch, bucket))
        column = next(candidate for candidate in columns if candidate.name == name)
        (pixels,) = column.spec.pixels(part, column)
        return pixels

    def is_clip(self, name: str) -> bool:
        """Return whether an image field is `Frames`."""
        return next(column.spec.is_clip for column in self._images if column.name == name)

    def values(self, name: str) -> list[Any]:
        """Return a field of each sample; of a list of views, that of the first one.

        Raises:
            SampleError: A sample cannot be read.
        """
        column = next(column for column in self._columns if column.name == name)
        loaded = list(column.spec.load(self._part, column))
        return [views[0] for views in loaded] if column.is_list else loaded

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as values for JSON."""
        samples = [asdict(sample) for sample in self.samples]
        head: dict[str, Any] = {"step": self.step, "epoch": self.epoch, "weights": self.weights}
        reading = {} if self.reading is None else {"reading": asdict(self.reading)}
        return {**head, **reading, "samples": samples}

    def __str__(self) -> str:
        weights = f", weights {json.dumps(self.weights)}; {self.reading}" if self.weights else ""
        first = f"step {self.step:,}: epoch {self.epoch}, {len(self.ids):,} samples{weights}"
        return "\n".join([first, *map(_line, self.samples)])

    @property
    def _images(self) -> list[Column]:
        return [column for column in self._columns if column.spec.is_image]

    @cached_property
    def _reader(self) -> Reader:
        return Reader(self._recipe.shards, block=self._recipe.block)

    @cached_property
    def _part(self) -> Part:
        return self._part_of(slice(None))

    def _part_of(self, rows: slice) -> Part:
        selected = Rows(self._reader, self.ids[rows])
        samples: Any = {"positions": self.positions[rows], "partners": self.partners[rows]}
        return self._recipe.part(selected, self._columns, epoch=self.epoch, **samples)

    def _by_sample(self, function: _Function[_Value], column: Column) -> list[tuple[_Value, ...]]:
        """Apply a function to a column of each sample, and return the results; empty for an unreadable sample."""
        try:
            return function(self._part, column)
        except WdsToolsError as error:
            if not is_sample_error(error):
                raise
        return [self._of_sample(function, column, i) for i in range(len(self.ids))]

    def _of_sample(self, function: _Function[_Value], column: Column, i: int) -> tuple[_Value, ...]:
        try:
            return function(self._part_of(slice(i, i + 1)), column)[0]
        except WdsToolsError as error:
            if not is_sample_error(error):
                raise
            return ()


def _crops_in(part: Part, column: Column) -> list[tuple[Crop, ...]]:
    """Return the crops of an image in each sample of a part; none for an image without a view."""
    if column.geometry is None:
        return [()] * len(part)
    tiles = column.geometry.tiles_at(part.epoch)
    views = [_crops_of(regions) for regions in column.spec.crops(part, column)]
    if tiles == 1:
        return list(zip(*views, strict=True))
    sources, crops_by_sample = column.sources(part).rows, []
    for first in range(0, len(sources), tiles):
        of_tiles = []
        for i in range(first, first + tiles):
            partner = None if i == first else (*sources.shard_and_key(i), int(sources.ids[i]))
            of_tiles += [replace(crops[i], partner=partner) for crops in views if min(crops[i].size)]
        crops_by_sample.append(tuple(of_tiles))
    return crops_by_sample


def _frames_in(part: Part, column: Column) -> list[tuple[str, ...]]:
    return list(map(tuple, column.spec.frame_names(part, column)))


def _crops_of(regions: Regions) -> list[Crop]:
    """Return the crop of each image."""
    scale = regions.box[:, [3, 2]] / regions.resize  # [n, 2], rows and columns of the box per pixel of the result
    start, length = regions.box[:, [1, 0]] + regions.corner * scale, regions.size * scale
    numbers: NDArray[np.float64] = np.concatenate([start[:, ::-1], length[:, ::-1]], axis=1)
    places = [None] * len(numbers) if regions.frame is None else [(x, y) for y, x in regions.frame.offset.tolist()]
    rows = zip(numbers.tolist(), regions.size.tolist(), regions.flips.tolist(), places, strict=True)
    return [
        Crop(_short(left), _short(top), _short(width), _short(height), (size[0], size[1]), flip, upside_down, place)
        for (left, top, width, height), size, (flip, upside_down), place in rows
    ]


def _short(value: float) -> float:
    """Return a whole number without its decimals, and another number with two of them."""
    rounded = round(value, 2)
    return int(rounded) if rounded == int(rounded) else rounded


def _line(sample: StepSample) -> str:
    shown = [_shown(sample, name) for name in sample.crops if sample.crops[name] or sample.frames.get(name)]
    padding = " (padding)" if sample.is_padding else ""
    where = f"rank {sample.rank} row {sample.row:<4} position {sample.position:<10} id {sample.id:<10}"
    head = f"{where} {sample.shard} {sample.key}{padding}"
    return f"{head}: {'; '.join(shown)}" if shown else head


def _shown(sample: StepSample, name: str) -> str:
    """Return the frames and crops of an image as text, with its name if the batch has several images."""
    frames = sample.frames.get(name, ())
    last = f" to {frames[-1]}" if len(frames) > 1 else ""
    clip = f"{counted(len(frames), 'frame')}, {frames[0]}{last}" if frames else ""
    crops = "; ".join(map(str, sample.crops[name]))
    return " ".join(filter(None, [name if len(sample.crops) > 1 else "", ", ".join(filter(None, [clip, crops]))]))
