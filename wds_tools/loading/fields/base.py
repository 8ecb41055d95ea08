"""What all kinds of fields have in common: `FieldSpec`, the base of their specifications, and `Column`.

A new kind is a class in its own module here, which overrides what is different from `FieldSpec`. No other module
of `loading` needs to know it.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import OptionError
from wds_tools.images.schedule import AnyView
from wds_tools.images.views import Regions
from wds_tools.loading.fields.padding import FLAT, AnyPad, Pad, Padding, is_number
from wds_tools.loading.fields.part import Geometry, Part
from wds_tools.loading.fields.slots import write_values
from wds_tools.reading.shardset import ShardSet

Output: TypeAlias = torch.Tensor | list[torch.Tensor] | None
"""The tensor or tensors [n, ...] to write the values of a column to, or None to return them."""

Shared: TypeAlias = Literal["region", "entries"]
"""What a field may have in common with the field of its ``like=``."""


class Conversion(Protocol):
    """What converts uint8 images to floating point: `Normalize`."""

    dtype: torch.dtype
    channels_last: bool

    def write(self, images: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write the results for images [n, 3, height, width] to a tensor of the same shape, and return it."""


class FieldSpec(ABC):
    """Base of the specifications of fields: what a field is, and everything that is special about its kind.

    Attributes:
        like: Name of another field of the batch, with which it has ``takes`` in common.
        pad: How its values are padded, or the value of the padding; ``"flat"`` joins them.
        pad_axes: Number of dimensions that are padded: 2 for pixels, the last two; otherwise 1, the first one.
        takes: What ``like`` may be for: the same region of an image, or the same entries of a list.
        gives: What other fields may have in common with this one, or None.
        is_image: Whether it shows images, whose views belong to a state, and whose crops are explained.
        is_clip: Whether these are chosen among the frames of a clip.
        stacks: Whether values of samples are stacked where they have equal shapes; otherwise they are always a list.
        target: Name of the first argument of this kind for a transform of Albumentations, or None.
    """

    field: str
    view: AnyView | Sequence[AnyView] | None = None
    like: str | None = None
    pad: AnyPad = None
    pad_axes: ClassVar[int] = 1
    takes: ClassVar[tuple[Shared, ...]] = ("region",)
    gives: ClassVar[Shared | None] = None
    is_image: ClassVar[bool] = False
    is_clip: ClassVar[bool] = False
    stacks: ClassVar[bool] = True
    target: ClassVar[str | None] = None

    def _check(self, examples: str) -> None:
        """Check the attributes that all kinds have; ``examples`` are names of fields."""
        name, pad = f"wds_tools.{type(self).__name__}", self.pad
        if not isinstance(self.field, str) or not self.field:
            raise OptionError(f"{name}({self.field!r}); allowed are names of stored fields, such as {examples}")
        if self.like is not None and not isinstance(self.like, str):
            raise OptionError(f"{name}(like={self.like!r}); allowed is the name of another field of the batch")
        is_flat = isinstance(pad, str) and pad == FLAT and self.pad_axes == 1
        if pad is not None and not isinstance(pad, Pad) and not is_number(pad) and not is_flat:
            flat = f", {FLAT!r}" if self.pad_axes == 1 else ""
            raise OptionError(f"{name}(pad={pad!r}); allowed are numbers, wds_tools.Pad(...){flat} and None")
        if isinstance(pad, Pad) and self.pad_axes == 1 and not isinstance(pad.size, int | None):
            raise OptionError(f"{name}(pad={pad!r}): its size is a length, one number")
        if isinstance(pad, Pad) and self.pad_axes == 2 and pad.truncate:
            raise OptionError(f"{name}(pad={pad!r}): images are not truncated; use a view, such as CenterCrop")

    def _check_choice(self, name: str, choices: Sequence[Any]) -> None:
        value = getattr(self, name)
        if value not in choices:
            kind, allowed = type(self).__name__, ", ".join(map(repr, choices))
            raise OptionError(f"wds_tools.{kind}({name}={value!r}); allowed are {allowed}")

    def _check_function(self, name: str) -> None:
        value = getattr(self, name)
        if value is not None and not callable(value):
            raise OptionError(f"wds_tools.{type(self).__name__}({name}={value!r}); allowed are functions and None")

    @property
    def views(self) -> tuple[AnyView, ...]:
        """The views: one, several, or none for all of it."""
        if isinstance(self.view, list | tuple):
            return tuple(self.view)
        return () if self.view is None else (self.view,)  # type: ignore[return-value]

    @property
    def is_rgb(self) -> bool:
        """Whether all values are uint8 RGB images, known before any is loaded."""
        return False

    @property
    def is_unchanged(self) -> bool:
        """Whether this is an image that keeps its channels and dtype."""
        return False

    def stored_names(self, available: Iterable[str]) -> tuple[str, ...]:
        """Return the names of the stored fields that it reads."""
        return (self.field,)

    def opened(self, shards: ShardSet) -> FieldSpec:
        """Return the specification for a dataset that was opened, with what only the dataset knows."""
        return self

    def shapes(self, column: Column) -> list[tuple[int, ...]] | None:
        """Return the known shape of the value for each view, or None if samples have different shapes.

        It is the whole shape if ``is_rgb``.
        """
        return None

    @abstractmethod
    def load(self, part: Part, column: Column) -> Any:
        """Return the values of n samples: a list, or an array of numbers."""

    def load_into(self, part: Part, column: Column, out: Output) -> Any:
        """Return the values of n samples, or None if they fit into ``out`` and were written to it."""
        values = self.load(part, column)
        with stages.WRITE:
            return None if write_values(values, out) else values

    def kept(self, part: Part, column: Column) -> list[list[NDArray[np.bool_]]]:
        """Return for each view which of the stored entries remain, bool [entries] for each of the `Column.sources`."""
        raise NotImplementedError

    def pixels(self, part: Part, column: Column) -> list[list[torch.Tensor]]:
        """Return uint8 [3, height, width] for each view or frame of each sample, before transforms, if `is_image`."""
        raise NotImplementedError

    def crops(self, part: Part, column: Column) -> list[Regions]:
        """For an image, return the regions of n samples for each view, or an empty result if it has no view."""
        return part.regions(column.geometry) if column.geometry else []

    def frame_names(self, part: Part, column: Column) -> list[list[str]]:
        """Return the names of the frames of each sample that are used, if `is_clip`."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return what a state has of it besides the views, if `is_image`."""
        return {} if self.field == "image" else {"field": self.field}

    def as_tv_tensor(self, value: torch.Tensor, size: tuple[int, ...] | None) -> Any:
        """Return a value as the tensor of torchvision that tells its transforms what it is."""
        return value

    def check_target(self, name: str, form: str | None) -> None:
        """Check that a transform of Albumentations moves a field of this kind."""
        return

    def to_target(self, value: Any, form: str | None, size: tuple[int, int]) -> Any:
        """Return a value as Albumentations takes it, for an image of this height and width."""
        return value.numpy() if isinstance(value, torch.Tensor) else value

    def from_target(self, value: Any, before: Any, form: str | None, size: tuple[int, int]) -> Any:
        """Return a value of Albumentations as a value of the field, which was ``before``."""
        return torch.as_tensor(np.asarray(value)).to(before.dtype) if isinstance(before, torch.Tensor) else value


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a batch.

    Attributes:
        geometry: The regions of it that are used, or None for all of it.
        key: What the random numbers of its functions depend on, see `Geometry`. Empty for the first image.
        conversion: For an image whose spec ``is_rgb``, what converts it, or None.
    """

    name: str
    spec: FieldSpec
    geometry: Geometry | None = None
    key: tuple[str, ...] = ()
    padding: Padding | None = None
    like: Column | None = None
    conversion: Conversion | None = None

    @property
    def is_list(self) -> bool:
        """Whether the value of a sample is a list with one element per view."""
        return self.geometry is not None and self.geometry.is_list

    @property
    def has_entries_of(self) -> Column | None:
        """The boxes whose entries it has, or None."""
        return self.like if self.like is not None and self.like.spec.gives == "entries" else None

    @property
    def shapes(self) -> list[tuple[int, ...]] | None:
        """Shape of the value for each view, if all samples get the same, see `FieldSpec.shapes`."""
        return self.spec.shapes(self)

    @property
    def is_convertible(self) -> bool:
        """Whether it can have a `conversion`: all samples have uint8 images [3, height, width] of one size."""
        is_rgb = self.spec.is_image and self.spec.is_rgb and not self.spec.is_clip
        return is_rgb and self.padding is None and bool(self.shapes)

    @property
    def channels_last(self) -> bool:
        """Whether batches have the memory format ``torch.channels_last``."""
        return self.conversion is not None and self.conversion.channels_last

    def at(self, epoch: int, bucket: int | None) -> Column:
        """Return the column in an epoch, and in batches of one bucket, with plain views."""
        if self.geometry is None:
            return self
        geometry = replace(self.geometry, views=self.geometry.views_at(epoch, bucket))
        return replace(self, geometry=geometry, like=self.like and self.like.at(epoch, bucket))

    def regions(self, part: Part) -> Sequence[Regions | None]:
        """Return the regions of n samples for each view; one None for all of them."""
        return part.regions(self.geometry) if self.geometry else [None]

    def sources(self, part: Part) -> Part:
        """Return the samples whose values this column has, see `Part.sources`."""
        return part.sources(self.geometry)

    def joined(self, part: Part, values: list[Any], join: Callable[[list[Any]], Any]) -> list[Any]:
        """Return a value for each sample of a part, from the values of all `sources`."""
        tiles = self.geometry.tiles_at(part.epoch) if self.geometry else 1
        if tiles == 1:
            return values
        return [join(values[start : start + tiles]) for start in range(0, len(values), tiles)]

    def by_sample(self, by_view: list[list[Any]]) -> list[Any]:
        """Return the values of n samples, from the n values of each view."""
        return [list(values) for values in zip(*by_view, strict=True)] if self.is_list else by_view[0]


def tv_tensors() -> Any:
    """Return torchvision's module of tensors that tell its transforms what they are."""
    return importlib.import_module("torchvision.tv_tensors")
