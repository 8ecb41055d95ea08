"""The columns of a batch: specifications with their names, and the image whose regions each of them uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from wds_tools.errors import OptionError
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.images.buckets import Buckets, buckets_in
from wds_tools.images.schedule import AnyView, Schedule, any_view_from_dict, any_view_to_dict, view_at
from wds_tools.images.views import View
from wds_tools.loading.fields.plain import (
    Array,
    Boxes,
    Field,
    FieldSpec,
    Frames,
    Image,
    Key,
    Label,
    Mask,
    Pad,
    Transform,
)

Fields: TypeAlias = str | Sequence[str] | Mapping[str, FieldSpec | str]

PIXELS = (Image, Mask, Array)
"""Specifications whose values are tensors of pixels."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The image whose views determine the regions of a column.

    Attributes:
        source: Name of the column of that image.
        field: Stored field of that image.
        views: Its views, or schedules of views; several if the image has several crops.
        is_list: Whether the value of a sample is a list with one element per view.
        key: What their random numbers depend on beside seed, epoch, position and number of the view. It is empty for
            the first view of a call, so that this view chooses the same regions as ``view=`` of `make_loader`.
    """

    source: str
    field: str
    views: tuple[AnyView, ...]
    is_list: bool = False
    key: tuple[str, ...] = ()

    def views_at(self, epoch: int, bucket: int | None = None) -> tuple[View, ...]:
        """Return the views of an epoch, for a batch of one bucket if there are buckets."""
        return tuple(view_at(view, epoch, bucket) for view in self.views)

    def key_of_view(self, number: int) -> tuple[int | str, ...]:
        """Return what the random numbers of a view depend on."""
        return (*self.key, number) if number else self.key


@dataclass(frozen=True, slots=True)
class Padding:
    """How the values of a column become one tensor.

    Attributes:
        value: Value of the padding.
        options: Size of the result: the ``pad=`` of the column ``source``.
        axes: Number of dimensions that are padded: 2 for pixels, which are the last two; otherwise 1, the first one.
        source: Name of the column that determines the size. Columns with ``like`` have the size of another one.
    """

    value: float
    options: Pad
    axes: int
    source: str

    @property
    def size(self) -> tuple[int, ...] | None:
        """Fixed size of the padded dimensions, or None if it depends on the batch."""
        return self.options.sides[: self.axes] or None


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a batch.

    Attributes:
        name: Its name in the batch.
        spec: What it is.
        geometry: The regions of it that are used, or None for all of it.
        key: What the random numbers of its functions depend on, see `Geometry`. Empty for the first image.
        padding: How its values are padded, or None.
    """

    name: str
    spec: FieldSpec
    geometry: Geometry | None = None
    key: tuple[str, ...] = ()
    padding: Padding | None = None

    @property
    def is_list(self) -> bool:
        """Whether the value of a sample is a list with one element per view."""
        return self.geometry is not None and self.geometry.is_list

    @property
    def shapes(self) -> list[tuple[int, int]] | None:
        """Height and width of each view, if the column has pixels, and all images get the same sizes."""
        if isinstance(self.spec, Frames):
            shape = self.spec.view.shape if self.spec.view else None
            return [shape] if shape and self.frames else None
        if not isinstance(self.spec, PIXELS):
            return None
        if self.padding is not None:
            views = len(self.geometry.views) if self.geometry else 1
            return [(self.padding.size[0], self.padding.size[1])] * views if self.padding.size else None
        if self.geometry is None:
            return None
        shapes = [view.shape for view in self.geometry.views if view.shape is not None]
        return shapes if len(shapes) == len(self.geometry.views) else None

    def at(self, epoch: int, bucket: int | None) -> Column:
        """Return the column in an epoch, and in batches of one bucket, with plain views."""
        if self.geometry is None:
            return self
        return replace(self, geometry=replace(self.geometry, views=self.geometry.views_at(epoch, bucket)))

    @property
    def frames(self) -> int | None:
        """Number of frames of each sample, or None if it differs, or the column has no frames."""
        if not isinstance(self.spec, Frames):
            return None
        if self.padding is not None:
            return self.padding.size[0] if self.padding.size else None
        return self.spec.frames

    def by_sample(self, by_view: list[list[Any]]) -> list[Any]:
        """Return the values of n samples, from the n values of each view."""
        return [list(values) for values in zip(*by_view, strict=True)] if self.is_list else by_view[0]


def columns_of(
    fields: Fields, *, view: AnyView | None = None, transform: Transform | None = None
) -> tuple[Column, ...]:
    """Return the columns for the argument ``fields=``.

    Args:
        fields: Names of fields, or a mapping from the name in the batch to a specification or a stored field.
        view: View of the field ``image``, if ``fields`` is not a mapping.
        transform: Function of the field ``image``, if ``fields`` is not a mapping.

    Raises:
        OptionError: The options contradict each other, or ``like=`` names a field that does not exist.
    """
    if isinstance(fields, Mapping):
        for name, value in (("view", view), ("transform", transform)):
            if value is not None:
                raise OptionError(f"{name}= is for fields= with names; with a mapping use wds_tools.Image({name}=...)")
        return _joint_columns(
            {name: _spec_named(value) if isinstance(value, str) else value for name, value in fields.items()}
        )
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    geometry = None if view is None else Geometry("image", "image", (view,))
    image = Column("image", Image(view=view, transform=transform), geometry)
    return tuple(image if name == "image" else Column(name, _spec_named(name)) for name in names)


def _spec_named(name: str) -> FieldSpec:
    """Return the specification that a name stands for."""
    virtual: dict[str, FieldSpec] = {"image": Image(), "label": Label(), "__key__": Key()}
    return virtual.get(name) or Field(name)


def _joint_columns(specs: Mapping[str, FieldSpec]) -> tuple[Column, ...]:
    images = {name: spec for name, spec in specs.items() if isinstance(spec, Image)}
    sources = [name for name, image in images.items() if image.views]
    columns = []
    for name, spec in specs.items():
        source, geometry = _source_of(name, specs), None
        if source in sources:
            image = images[source]
            purpose = () if source == sources[0] else (source,)
            geometry = Geometry(source, image.field, image.views, isinstance(image.view, list | tuple), purpose)
        if isinstance(spec, Frames) and spec.view is not None:
            geometry = Geometry(name, spec.field, (spec.view,), key=(name,))
        key = () if name == next(iter(images), None) else (name,)
        columns.append(Column(name, spec, geometry, key, _padding_of(name, specs)))
    _check_mask_names(columns)
    return tuple(columns)


def _source_of(name: str, specs: Mapping[str, FieldSpec]) -> str:
    """Return the name of the field at the end of the chain of ``like=``."""
    chain = [name]
    while (like := getattr(specs[chain[-1]], "like", None)) is not None:
        spec, target = specs[chain[-1]], specs.get(like)
        wanted = Boxes if isinstance(spec, Field) else Image
        if not isinstance(target, wanted):
            found = "does not exist" if target is None else f"is wds_tools.{type(target).__name__}"
            names = [repr(other) for other, one in specs.items() if isinstance(one, wanted)]
            raise OptionError(
                f"fields={{{chain[-1]!r}: wds_tools.{type(spec).__name__}(like={like!r})}}: {like!r} {found}; allowed "
                f"are names of wds_tools.{wanted.__name__} in the same mapping: {', '.join(names) or 'there are none'}"
            )
        if like in chain:
            raise OptionError(f"fields= has images whose like= form a circle: {' -> '.join([*chain, like])}")
        chain.append(like)
    return chain[-1]


def phases_of(columns: Sequence[Column]) -> tuple[int, ...]:
    """Return the epochs at which a view changes, ascending, starting with 0."""
    views = [view for column in columns if column.geometry for view in column.geometry.views]
    return tuple(sorted({0, *(epoch for view in views if isinstance(view, Schedule) for epoch in view.epochs)}))


def buckets_of(columns: Sequence[Column]) -> Buckets | None:
    """Return the buckets of the images of a batch, or None.

    Raises:
        OptionError: They cannot be known from the index, or an image has other views beside them.
    """
    found = buckets_in([view for column in columns if column.geometry for view in column.geometry.views])
    for column in columns if found else ():
        views = column.geometry.views if column.geometry else ()
        if found in views and (len(views) > 1 or column.geometry.field not in ("image", *IMAGE_FIELDS)):  # type: ignore[union-attr]
            raise OptionError(
                f"field {column.name!r} has Buckets: they are for the image of a sample, whose size is in the index, "
                "and cannot be one of several views"
            )
    return found


def views_of(columns: Sequence[Column]) -> dict[str, Any]:
    """Return the images and frames of a batch as plain values for a state: by name, the stored field and the views."""
    return {
        column.name: {
            **({} if column.spec.field == "image" else {"field": column.spec.field}),
            **(_clip_to_dict(column.spec) if isinstance(column.spec, Frames) else {}),
            "views": [any_view_to_dict(view) for view in column.geometry.views] if column.geometry else [],
        }
        for column in columns
        if isinstance(column.spec, Image | Frames)
        and (column.geometry is None or column.geometry.source == column.name)
    }


def fields_of_views(views: Mapping[str, Any]) -> dict[str, FieldSpec | str]:
    """Return ``fields=`` for the images and frames of a state, see `views_of`; if there are none, only the keys.

    Raises:
        OptionError: A view is not one of this package.
    """
    fields: dict[str, FieldSpec | str] = {}
    for name, one in views.items():
        views_of_one = [any_view_from_dict(view) for view in one["views"]]
        if "clip" in one:
            fields[name] = Frames(one["field"], view=next(iter(views_of_one), None), **one["clip"])
        else:
            fields[name] = Image(one.get("field", "image"), view=views_of_one or None)
    return fields or {"__key__": Key()}


def _clip_to_dict(spec: Frames) -> dict[str, Any]:
    """Return which frames are used; of the padding, only whether a clip may be shorter."""
    clip = {"frames": spec.frames, "stride": spec.stride, "start": spec.start}
    return {"clip": clip if spec.pad is None else {**clip, "pad": 0}}


def _padding_of(name: str, specs: Mapping[str, FieldSpec]) -> Padding | None:
    """Return how a field is padded: with the size of the field of its ``like=``, if both are images or sequences."""
    spec = specs[name]
    pad, axes = getattr(spec, "pad", None), 2 if isinstance(spec, PIXELS) else 1
    source = name
    while (like := getattr(specs[source], "like", None)) and isinstance(specs[like], PIXELS) == (axes == 2):
        if getattr(specs[like], "pad", None) is None:
            break
        source = like
    if source == name:
        return None if pad is None else Padding(_as_pad(pad).value, _as_pad(pad), axes, name)
    if pad is None or isinstance(pad, Pad):
        found = f"pad={pad!r}, but it" if pad else "no pad=; it"
        raise OptionError(
            f"fields={{{name!r}: wds_tools.{type(spec).__name__}(like={source!r})}} has {found} is padded to the size "
            f"of {source!r}: add the value of its padding, such as pad=0"
        )
    return Padding(pad, _as_pad(getattr(specs[source], "pad")), axes, source)  # noqa: B009 - not all have it


def _as_pad(pad: float | Pad) -> Pad:
    return pad if isinstance(pad, Pad) else Pad(pad)


def mask_name(name: str) -> str:
    """Return the name of the field of a batch that is False for the padding of a field."""
    return f"{name}_mask"


def _check_mask_names(columns: Sequence[Column]) -> None:
    names = {column.name for column in columns}
    for column in columns:
        if column.padding and column.padding.source == column.name and mask_name(column.name) in names:
            raise OptionError(
                f"fields= has a field {mask_name(column.name)!r}, which is the name of the mask of the padding of "
                f"{column.name!r}: choose another name for one of them"
            )
