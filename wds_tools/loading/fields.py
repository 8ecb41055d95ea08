"""Specifications of the fields of a batch: the values of the mapping ``fields=``.

A specification only describes a field: which stored field it is read from, and what is done with it. `columns` turns
the specifications of a call into columns, and `column_values` loads them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

from wds_tools.errors import OptionError
from wds_tools.images.schedule import AnyView, is_view

BoxFormat = Literal["xywh", "xyxy", "cxcywh"]
Interpolation = Literal["nearest", "bilinear"]
Transform: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Image:
    """An image as RGB: a uint8 tensor [batch, 3, height, width], or a list of tensors if the sizes differ.

    Attributes:
        field: Stored field, such as ``"jpg"`` or ``"left.jpg"``. ``"image"`` (the default) is the image of a sample,
            whatever its type.
        view: Region of the image and its output size: `RandomResizedCrop`, `CenterCrop`, `Resize`, or None for the
            whole image; a `Schedule` of these by epoch; or `Buckets` of several sizes. Or a list of views: the image is
            decoded once, and the value in the batch is a list with one tensor per view. Each has random numbers of its
            own.
        like: Name of another `Image` in the batch: use the same region, size and flip. Both images must have the same
            size.
        transform: Function of one image, a uint8 tensor [3, height, width], called in the worker, or an Albumentations
            transform. Random number generators are seeded for each sample.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "image"
    _: KW_ONLY
    view: AnyView | Sequence[AnyView] | None = None
    like: str | None = None
    transform: Transform | None = None

    def __post_init__(self) -> None:
        _check_field(self, "'image', 'jpg' or 'left.jpg'")
        _check_name(self, "like")
        _check_function(self, "transform")
        if self.view is not None and (not self.views or not all(map(is_view, self.views))):
            raise OptionError(
                f"wds_tools.Image(view={self.view!r}); allowed are wds_tools.RandomResizedCrop(...), CenterCrop(...), "
                "Resize(...), Schedule(...), lists of these, Buckets(...), and None"
            )
        if self.view is not None and self.like is not None:
            raise OptionError(
                f"wds_tools.Image(view={self.view!r}, like={self.like!r}): the region is either that of view= or that "
                f"of the field {self.like!r}: remove one of them"
            )

    @property
    def views(self) -> tuple[AnyView, ...]:
        """The views: one, several, or none for the whole image."""
        if isinstance(self.view, list | tuple):
            return tuple(self.view)
        return () if self.view is None else (self.view,)  # type: ignore[return-value]


@dataclass(frozen=True)
class Mask:
    """Class numbers of pixels: a tensor [batch, height, width] in the stored dtype, without interpolation.

    A palette image gives its palette indices. Resized by nearest neighbour, exactly as torchvision resizes a
    ``tv_tensors.Mask``.

    Attributes:
        field: Stored field with one channel: a PNG such as ``"mask.png"``, or an ``npy`` array [height, width].
        like: Name of the `Image` whose region, size and flip are used. The mask must have the size of that image. None
            (the default) keeps the whole mask.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str
    _: KW_ONLY
    like: str | None = None

    def __post_init__(self) -> None:
        _check_field(self, "'mask.png'")
        _check_name(self, "like")


@dataclass(frozen=True)
class Array:
    """An array of values per pixel, such as depth: a tensor [batch, channels, height, width] in the stored dtype.

    16 bits stay 16 bits.

    Attributes:
        field: Stored field: a PNG such as ``"depth.png"``, with 8 or 16 bits per channel, or an ``npy`` array
            [height, width] or [height, width, channels].
        like: Name of the `Image` whose region, size and flip are used. The array must have the size of that image. None
            (the default) keeps the whole array.
        interpolation: ``"bilinear"``, with antialiasing, or ``"nearest"``. None (the default) is bilinear for floating
            point and uint16, and nearest for all other types. Use ``"nearest"`` for sparse values, such as depth
            with holes: bilinear interpolation would mix them with the values of holes.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str
    _: KW_ONLY
    like: str | None = None
    interpolation: Interpolation | None = None

    def __post_init__(self) -> None:
        _check_field(self, "'depth.png'")
        _check_name(self, "like")
        _check_choice(self, "interpolation", (None, "nearest", "bilinear"))


@dataclass(frozen=True)
class Boxes:
    """Bounding boxes: a list of float32 tensors [number of boxes, 4], left, top, right, bottom in pixels.

    With ``like``, boxes are moved, scaled and mirrored as the image, clipped to its region, and dropped if nothing of
    them is left. ``Field(..., like=...)`` drops the same entries of other lists, such as the classes of the boxes.

    Attributes:
        field: Stored field: JSON, or an ``npy`` array [number of boxes, 4].
        path: Names that lead to the boxes in JSON, separated by dots, such as ``"objects.bbox"``. In a list, a name is
            looked up in each of its elements. The default is the whole value.
        format: How they are stored: ``"xywh"`` (left, top, width, height, as in COCO), ``"xyxy"`` (left, top, right,
            bottom) or ``"cxcywh"`` (centre, width, height, as in YOLO).
        normalized: Whether the stored numbers are fractions of the width and height of the image. Requires ``like``.
        like: Name of the `Image` whose region, size and flip are used. None (the default) keeps the stored positions.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "json"
    _: KW_ONLY
    path: str = ""
    format: BoxFormat = "xywh"
    normalized: bool = False
    like: str | None = None

    def __post_init__(self) -> None:
        _check_field(self, "'json'")
        _check_text(self, "path")
        _check_choice(self, "format", ("xywh", "xyxy", "cxcywh"))
        _check_choice(self, "normalized", (False, True))
        _check_name(self, "like")
        if self.normalized and self.like is None:
            raise OptionError(
                "wds_tools.Boxes(normalized=True) requires like= with the name of an image, whose size is the unit"
            )


@dataclass(frozen=True)
class Keypoints:
    """Points in an image: float32 tensors [..., 2 or more]; the first two numbers of a point are x and y in pixels.

    Stacked if all samples of a batch have the same number of points, otherwise a list. With ``like``, points are moved,
    scaled and mirrored as the image. All points are kept, so that their indices keep their meaning: a point outside the
    region has coordinates outside the image. As in torchvision, x of a mirrored point is width - 1 - x.

    Attributes:
        field: Stored field: JSON, or an ``npy`` array.
        path: Names that lead to the points in JSON, see `Boxes`.
        numbers: How many numbers a point has in lists without brackets around each point, such as 3 in COCO (x, y,
            visibility). None (the default) requires a list for each point.
        like: Name of the `Image` whose region, size and flip are used. None (the default) keeps the stored positions.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "json"
    _: KW_ONLY
    path: str = ""
    numbers: int | None = None
    like: str | None = None

    def __post_init__(self) -> None:
        _check_field(self, "'json'")
        _check_text(self, "path")
        _check_name(self, "like")
        if self.numbers is not None and (not isinstance(self.numbers, int) or self.numbers < 2):
            raise OptionError(f"wds_tools.Keypoints(numbers={self.numbers!r}); allowed are 2 and more, and None")


@dataclass(frozen=True)
class Text:
    """Text: a list of strings, or the results of a function of each string.

    Attributes:
        field: Stored field: text, or JSON with ``path``.
        path: Names that lead to the text in JSON, see `Boxes`.
        encode: Function of one string, such as a tokenizer, called in the worker. Arrays and tensors of equal shape are
            stacked. Random number generators are seeded for each sample.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "txt"
    _: KW_ONLY
    path: str = ""
    encode: Callable[[str], Any] | None = None

    def __post_init__(self) -> None:
        _check_field(self, "'txt'")
        _check_text(self, "path")
        _check_function(self, "encode")


@dataclass(frozen=True)
class Label:
    """The class number of a sample, from its field ``cls``: an int64 tensor [batch]."""

    field = "label"


@dataclass(frozen=True)
class Key:
    """The key of a sample: a list of strings."""

    field = "__key__"


@dataclass(frozen=True)
class Field:
    """Any stored field, decoded by its extension, as in the short form of ``fields=``.

    Attributes:
        field: Stored field, such as ``"json"``, ``"npy"`` or ``"png"``.
        path: Names that lead to a value in JSON, see `Boxes`. Lists of numbers become tensors.
        like: Name of a `Boxes` field: the value is a list with one entry per stored box, and the entries of boxes that
            are dropped are dropped too.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str
    _: KW_ONLY
    path: str = ""
    like: str | None = None

    def __post_init__(self) -> None:
        _check_field(self, "'json'")
        _check_text(self, "path")
        _check_name(self, "like")


FieldSpec: TypeAlias = Image | Mask | Array | Boxes | Keypoints | Text | Label | Key | Field


def _name_of(spec: FieldSpec) -> str:
    return f"wds_tools.{type(spec).__name__}"


def _check_field(spec: FieldSpec, examples: str) -> None:
    if not isinstance(spec.field, str) or not spec.field:
        raise OptionError(f"{_name_of(spec)}({spec.field!r}); allowed are names of stored fields, such as {examples}")


def _check_choice(spec: FieldSpec, name: str, choices: Sequence[Any]) -> None:
    value = getattr(spec, name)
    if value not in choices:
        raise OptionError(f"{_name_of(spec)}({name}={value!r}); allowed are {', '.join(map(repr, choices))}")


def _check_name(spec: FieldSpec, name: str) -> None:
    value = getattr(spec, name)
    if value is not None and not isinstance(value, str):
        raise OptionError(f"{_name_of(spec)}({name}={value!r}); allowed is the name of another field of the batch")


def _check_text(spec: FieldSpec, name: str) -> None:
    value = getattr(spec, name)
    if not isinstance(value, str):
        raise OptionError(f"{_name_of(spec)}({name}={value!r}); allowed is text such as 'objects.bbox'")


def _check_function(spec: FieldSpec, name: str) -> None:
    value = getattr(spec, name)
    if value is not None and not callable(value):
        raise OptionError(f"{_name_of(spec)}({name}={value!r}); allowed are functions and None")
