"""Specifications of the fields of a batch: the values of the mapping ``fields=``.

A specification only describes a field: which stored field it is read from, and what is done with it. `columns` turns
the specifications of a call into columns, and `assemble` loads their values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

from wds_tools.errors import OptionError
from wds_tools.format.label_lists import LABELS
from wds_tools.images.schedule import AnyView, is_view
from wds_tools.loading.fields.base import (
    check_choice,
    check_field,
    check_function,
    check_name,
    check_pad,
    check_text,
    is_length,
    is_number,
)

ImageMode = Literal["rgb", "unchanged"]
FrameStart = Literal["first", "center", "random"]
BoxFormat = Literal["xywh", "xyxy", "cxcywh"]
Interpolation = Literal["nearest", "bilinear"]
Transform: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class Pad:
    """How values of different sizes become one tensor per batch: padded at the end, images at the right and bottom.

    ``pad=0`` is short for ``pad=Pad(0)``. After its other fields, the batch gets a mask with the name of the field and
    ``_mask``, such as ``boxes_mask``: a bool tensor [batch, length], for images [batch, height, width], that is True
    for values and False for padding.

    Attributes:
        value: Value of the padding.
        size: Size after padding, so that all batches have one shape: a length; for images (height, width), or one
            number for both. None (the default) is the size of the largest value of the batch.
        multiple_of: Round that size up to a multiple of this number.
        truncate: Whether values longer than ``size`` are cut off at the end. They are an error by default.

    Raises:
        OptionError: An attribute is invalid.
    """

    value: float = 0
    _: KW_ONLY
    size: int | tuple[int, int] | None = None
    multiple_of: int = 1
    truncate: bool = False

    def __post_init__(self) -> None:
        if not is_number(self.value):
            raise OptionError(f"wds_tools.Pad({self.value!r}); allowed are numbers")
        if self.size is not None and not all(map(is_length, self.sides)):
            raise OptionError(
                f"wds_tools.Pad(size={self.size!r}); allowed are whole numbers of 1 and more, for images also "
                "(height, width), and None"
            )
        if not is_length(self.multiple_of) or (self.multiple_of != 1 and self.size is not None):
            beside = " with size=" if self.size is not None else ""
            raise OptionError(
                f"wds_tools.Pad(multiple_of={self.multiple_of!r}){beside}; allowed are whole numbers of 1 and more, "
                "without size="
            )
        if not isinstance(self.truncate, bool) or (self.truncate and self.size is None):
            raise OptionError(f"wds_tools.Pad(truncate={self.truncate!r}); allowed are False, and True with size=")

    @property
    def sides(self) -> tuple[int, ...]:
        """Height and width, or the same length twice; none without ``size``."""
        if self.size is None:
            return ()
        return tuple(self.size) if isinstance(self.size, tuple | list) and len(self.size) == 2 else (self.size,) * 2


@dataclass(frozen=True)
class Image:
    """An image: a uint8 tensor [batch, 3, height, width], RGB, or a list of tensors if the sizes differ.

    Attributes:
        field: Stored field, such as ``"jpg"`` or ``"left.jpg"``. ``"image"`` (the default) is the image of a sample,
            whatever its type.
        view: Region of the image and its output size: `RandomResizedCrop`, `CenterCrop`, `Resize`, or None for the
            whole image; a `Schedule` of these by epoch; or `Buckets` of several sizes. Or a list of views: the image is
            decoded once, and the value in the batch is a list with one tensor per view. Each has random numbers of its
            own.
        mode: ``"rgb"`` (the default), or ``"unchanged"`` for [batch, channels, height, width] with the stored channels
            and dtype: grey, alpha, 16 bits, and ``npy`` arrays [height, width] or [height, width, channels]. Palettes
            are applied. If images of a batch differ in channels or dtype, it is a list.
        like: Name of another `Image` in the batch: use the same region, size and flip. Both images must have the same
            size.
        transform: Function of one image, a tensor [channels, height, width], called in the worker, or an Albumentations
            transform. Random number generators are seeded for each sample.
        pad: Value of the padding at the right and bottom of smaller images, or a `Pad`, so that a batch is one tensor
            [batch, 3, height, width]. None (the default) gives a list if the sizes differ. If the image of ``like`` has
            a ``pad``, a number is required here: the padded size is that of the image.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "image"
    _: KW_ONLY
    view: AnyView | Sequence[AnyView] | None = None
    mode: ImageMode = "rgb"
    like: str | None = None
    transform: Transform | None = None
    pad: float | Pad | None = None

    def __post_init__(self) -> None:
        check_field(self, "'image', 'jpg' or 'left.jpg'")
        check_name(self, "like")
        check_choice(self, "mode", ("rgb", "unchanged"))
        check_function(self, "transform")
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
        check_pad(self, Pad, axes=2)

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
        pad: Value of the padding at the right and bottom of smaller masks, or a `Pad`, so that a batch is one tensor
            [batch, height, width]. None (the default) gives a list if the sizes differ. If the image of ``like`` has a
            ``pad``, a number is required here: the padded size is that of the image.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str
    _: KW_ONLY
    like: str | None = None
    pad: float | Pad | None = None

    def __post_init__(self) -> None:
        check_field(self, "'mask.png'")
        check_name(self, "like")
        check_pad(self, Pad, axes=2)


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
        pad: Value of the padding at the right and bottom of smaller arrays, or a `Pad`, so that a batch is one tensor
            [batch, channels, height, width]. None (the default) gives a list if the sizes differ. If the image of
            ``like`` has a ``pad``, a number is required here: the padded size is that of the image.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str
    _: KW_ONLY
    like: str | None = None
    interpolation: Interpolation | None = None
    pad: float | Pad | None = None

    def __post_init__(self) -> None:
        check_field(self, "'depth.png'")
        check_name(self, "like")
        check_choice(self, "interpolation", (None, "nearest", "bilinear"))
        check_pad(self, Pad, axes=2)


@dataclass(frozen=True)
class Boxes:
    """Bounding boxes: a list of float32 tensors [number of boxes, 4], left, top, right, bottom in pixels.

    They are stacked, float32 [batch, boxes, 4], if all samples of a batch have the same number of boxes.

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
        pad: Value of the padding, or a `Pad`, so that each batch is one tensor [batch, boxes, 4]. None (the default)
            gives a list if the numbers differ.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "json"
    _: KW_ONLY
    path: str = ""
    format: BoxFormat = "xywh"
    normalized: bool = False
    like: str | None = None
    pad: float | Pad | None = None

    def __post_init__(self) -> None:
        check_field(self, "'json'")
        check_text(self, "path")
        check_choice(self, "format", ("xywh", "xyxy", "cxcywh"))
        check_choice(self, "normalized", (False, True))
        check_name(self, "like")
        if self.normalized and self.like is None:
            raise OptionError(
                "wds_tools.Boxes(normalized=True) requires like= with the name of an image, whose size is the unit"
            )
        check_pad(self, Pad, axes=1)


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
        pad: Value of the padding, or a `Pad`, so that a batch is one tensor [batch, points, ...]. None (the default)
            gives a list if the numbers differ.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "json"
    _: KW_ONLY
    path: str = ""
    numbers: int | None = None
    like: str | None = None
    pad: float | Pad | None = None

    def __post_init__(self) -> None:
        check_field(self, "'json'")
        check_text(self, "path")
        check_name(self, "like")
        if self.numbers is not None and (not isinstance(self.numbers, int) or self.numbers < 2):
            raise OptionError(f"wds_tools.Keypoints(numbers={self.numbers!r}); allowed are 2 and more, and None")
        check_pad(self, Pad, axes=1)


@dataclass(frozen=True)
class Text:
    """Text: a list of strings, or the results of a function of each string.

    Attributes:
        field: Stored field: text, or JSON with ``path``.
        path: Names that lead to the text in JSON, see `Boxes`.
        encode: Function of one string, such as a tokenizer, called in the worker. Arrays and tensors of equal shape are
            stacked. Random number generators are seeded for each sample.
        pad: Value of the padding, or a `Pad`, so that a batch is one tensor [batch, length]. It requires ``encode``. If
            that returns a dictionary, as tokenizers of transformers do, each of its entries is padded, and
            ``attention_mask`` and ``token_type_ids`` with 0.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "txt"
    _: KW_ONLY
    path: str = ""
    encode: Callable[[str], Any] | None = None
    pad: float | Pad | None = None

    def __post_init__(self) -> None:
        check_field(self, "'txt'")
        check_text(self, "path")
        check_function(self, "encode")
        check_pad(self, Pad, axes=1)
        if self.pad is not None and self.encode is None:
            raise OptionError("wds_tools.Text(pad=...) requires encode=, a function that returns numbers")


@dataclass(frozen=True)
class Label:
    """The class number of a sample, as its index has it: an int64 tensor [batch]."""

    field = "label"


@dataclass(frozen=True)
class MultiHot:
    """Several class numbers of a sample: a float32 tensor [batch, classes], 1 for each of its classes, otherwise 0.

    As ``torch.nn.BCEWithLogitsLoss`` takes it.

    Attributes:
        field: Stored field with a list of class numbers or names: ``"labels.json"`` (the default), as `pack` writes it,
            or other JSON.
        path: Names that lead to the list in JSON, see `Boxes`. Lists in lists are joined, so that
            ``MultiHot("json", path="objects.category")`` has the classes of all objects.
        classes: Number of classes, or their names by number. None (the default) takes the class list of the dataset.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = LABELS
    _: KW_ONLY
    path: str = ""
    classes: int | Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_field(self, "'labels.json' or 'json'")
        check_text(self, "path")
        is_names = not isinstance(self.classes, (int, str, type(None)))
        if self.classes is not None and not (is_length(self.classes) or (is_names and len(self.classes) > 0)):  # type: ignore[arg-type]
            raise OptionError(
                f"wds_tools.MultiHot(classes={self.classes!r}); allowed are whole numbers of 1 and more, lists of "
                "class names, and None for the class list of the dataset"
            )

    @property
    def place(self) -> str:
        """The place of the numbers, as in `Manifest.field_classes`."""
        return f"{self.field}:{self.path}" if self.path else self.field


@dataclass(frozen=True)
class Key:
    """The key of a sample: a list of strings."""

    field = "__key__"


@dataclass(frozen=True)
class Field:
    """Any stored field, decoded by its extension, as in the short form of ``fields=``.

    Types that this package does not decode, such as video (``"mp4"``) and audio (``"flac"``), are bytes.

    Attributes:
        field: Stored field, such as ``"json"``, ``"npy"``, ``"png"`` or ``"mp4"``.
        path: Names that lead to a value in JSON, see `Boxes`. Lists of numbers become tensors.
        decode: Function of the value, such as a decoder of audio files, called in the worker. Arrays and tensors of
            equal shape are stacked. Random number generators are seeded for each sample.
        like: Name of a `Boxes` field: the value is a list with one entry per stored box, and the entries of boxes that
            are dropped are dropped too.
        pad: Value of the padding, or a `Pad`, for arrays and lists of numbers: a batch is one tensor
            [batch, length, ...]. If the boxes of ``like`` have a ``pad``, a number is required here: the padded length
            is that of the boxes.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str
    _: KW_ONLY
    path: str = ""
    decode: Callable[[Any], Any] | None = None
    like: str | None = None
    pad: float | Pad | None = None

    def __post_init__(self) -> None:
        check_field(self, "'json'")
        check_text(self, "path")
        check_function(self, "decode")
        check_name(self, "like")
        check_pad(self, Pad, axes=1)


@dataclass(frozen=True)
class Frames:
    """The numbered images of a sample, such as the frames of a clip: a uint8 tensor [batch, frames, 3, height, width].

    All frames of a sample have one size, and get the same region and flip. If the numbers of frames differ, a batch is
    a list of tensors, or padded.

    Attributes:
        field: Names of the stored fields, with ``*`` for the number: ``"*.jpg"`` for ``0000.jpg``, ``0001.jpg`` and so
            on, or ``"frame*.jpg"``. They are ordered by the number.
        view: Region of the images and its output size, as for `Image`.
        frames: How many frames to use. A sample with fewer is an error, except with ``pad``. None (the default) uses
            all.
        stride: Use each n-th frame.
        start: Where the frames begin: ``"first"`` (the default), ``"center"``, or ``"random"``, which depends on the
            seed, the epoch, the position of the sample and the name of the field.
        pad: Value of the padding after the last frame, or a `Pad`, so that a batch is one tensor. None (the default)
            gives a list if the numbers of frames differ.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "*.jpg"
    _: KW_ONLY
    view: AnyView | None = None
    frames: int | None = None
    stride: int = 1
    start: FrameStart = "first"
    pad: float | Pad | None = None

    def __post_init__(self) -> None:
        check_field(self, "'*.jpg' or 'frame*.jpg'")
        if self.field.count("*") != 1:
            raise OptionError(f"wds_tools.Frames({self.field!r}); allowed are names with one * for the number")
        if self.view is not None and not is_view(self.view):
            raise OptionError(
                f"wds_tools.Frames(view={self.view!r}); allowed are wds_tools.RandomResizedCrop(...), CenterCrop(...), "
                "Resize(...) and None"
            )
        if self.frames is not None and not is_length(self.frames):
            raise OptionError(
                f"wds_tools.Frames(frames={self.frames!r}); allowed are whole numbers of 1 and more, and None"
            )
        if not is_length(self.stride):
            raise OptionError(f"wds_tools.Frames(stride={self.stride!r}); allowed are whole numbers of 1 and more")
        check_choice(self, "start", ("first", "center", "random"))
        if self.frames is None and self.start != "first":
            raise OptionError(f"wds_tools.Frames(start={self.start!r}) requires frames=, the number of frames to use")
        check_pad(self, Pad, axes=1)


FieldSpec: TypeAlias = Image | Frames | Mask | Array | Boxes | Keypoints | Text | Label | MultiHot | Key | Field
