"""The columns of a batch: specifications with their names, and the image whose regions each of them uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from wds_tools.errors import OptionError
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.images.buckets import Buckets, buckets_in
from wds_tools.images.schedule import AnyView, Schedule, any_view_from_dict, any_view_to_dict, count_in, views_in
from wds_tools.images.views import chosen_by, tiles_of
from wds_tools.loading.fields.base import Column, FieldSpec
from wds_tools.loading.fields.boxes import Boxes
from wds_tools.loading.fields.frames import Frames
from wds_tools.loading.fields.image import Image
from wds_tools.loading.fields.padding import FLAT, AnyPad, Pad, Padding
from wds_tools.loading.fields.part import Geometry
from wds_tools.loading.fields.plain import Field, Key, Label
from wds_tools.loading.fields.polygons import Polygons
from wds_tools.loading.fields.user_functions import Transform

Fields: TypeAlias = str | Sequence[str] | Mapping[str, FieldSpec | str]

_CHOOSING: dict[str, Any] = {"Boxes": Boxes, "Polygons": Polygons}
_STORED_AS = ("field", "path", "format", "normalized")  # options that say where and how these objects are stored
_GIVEN_BY = {"region": "Image", "entries": "Boxes"}


def are_fields(value: Any) -> bool:
    """Return whether this is a value of ``fields=``: the name of a field, a list of names, or a mapping."""
    if isinstance(value, Mapping):
        return bool(value) and all(
            isinstance(name, str) and isinstance(spec, str | FieldSpec) for name, spec in value.items()
        )
    names = (value,) if isinstance(value, str) else value
    return isinstance(names, list | tuple) and bool(names) and all(isinstance(name, str) for name in names)


def columns_of(
    fields: Fields, *, view: AnyView | None = None, transform: Transform | None = None
) -> tuple[Column, ...]:
    """Return the columns for the argument ``fields=``."""
    if isinstance(fields, Mapping):
        for name, value in (("view", view), ("transform", transform)):
            if value is not None:
                raise OptionError(f"{name}= is for fields= with names; with a mapping use wds_tools.Image({name}=...)")
        return _joint_columns(
            {name: _spec_named(value) if isinstance(value, str) else value for name, value in fields.items()}
        )
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    geometry = None if view is None else Geometry("image", "image", (view,), chosen_by=_choosing("image", (view,), {}))
    image = Column("image", Image(view=view, transform=transform), geometry)
    return tuple(image if name == "image" else Column(name, _spec_named(name)) for name in names)


def _spec_named(name: str) -> FieldSpec:
    """Return the specification that a name stands for."""
    virtual: dict[str, FieldSpec] = {"image": Image(), "label": Label(), "__key__": Key()}
    return virtual.get(name) or Field(name)


def _joint_columns(specs: Mapping[str, FieldSpec]) -> tuple[Column, ...]:
    images = [name for name, spec in specs.items() if spec.gives == "region"]
    first = next((name for name in images if specs[name].views), None)
    columns: dict[str, Column] = {}

    def add(name: str) -> Column:
        if name not in columns:
            spec, source = specs[name], _source_of(name, specs)
            image, geometry = specs[source], None
            if image.views:
                purpose = () if source == first else (source,)
                is_list, by = isinstance(image.view, list | tuple), _choosing(source, image.views, specs)
                geometry = Geometry(source, image.field, image.views, is_list, purpose, by)
            key = () if [name] == images[:1] else (name,)
            like = None if spec.like is None else add(spec.like)
            columns[name] = Column(name, spec, geometry, key, _padding_of(name, specs), like)
        return columns[name]

    joint = tuple(add(name) for name in specs)
    _check_padding_names(joint)
    _check_tiles(joint)
    choices_of(joint)
    return joint


def _choosing(image: str, views: Sequence[AnyView], specs: Mapping[str, FieldSpec]) -> tuple[tuple[str, Any], ...]:
    """Return the boxes and outlines by which views of an image choose their regions, by name."""
    chosen = {}
    for view in (part for entry in views for part in views_in(entry)):
        if by := chosen_by(view):
            kind, name = by
            if name not in specs or type(specs[name]).__name__ != kind or _source_of(name, specs) != image:
                raise OptionError(
                    f"wds_tools.{type(view).__name__}({kind.lower()}={name!r}) of the field {image!r} requires fields= "
                    f"with {{{name!r}: wds_tools.{kind}(..., like={image!r})}}"
                )
            chosen[name] = specs[name]
    return tuple(sorted(chosen.items()))


def _source_of(name: str, specs: Mapping[str, FieldSpec]) -> str:
    """Return the name of the field at the end of the chain of ``like=``."""
    chain = [name]
    while (like := specs[chain[-1]].like) is not None:
        spec, target = specs[chain[-1]], specs.get(like)
        if target is None or target.gives not in spec.takes:
            actual = "does not exist" if target is None else f"is wds_tools.{type(target).__name__}"
            names = [repr(other) for other, other_spec in specs.items() if other_spec.gives in spec.takes]
            raise OptionError(
                f"fields={{{chain[-1]!r}: wds_tools.{type(spec).__name__}(like={like!r})}}: {like!r} {actual}; allowed "
                f"are names of wds_tools.{' and '.join(map(_GIVEN_BY.__getitem__, spec.takes))} in the same mapping: "
                f"{', '.join(names) or 'there are none'}"
            )
        if like in chain:
            raise OptionError(f"fields= has images whose like= form a cycle: {' -> '.join([*chain, like])}")
        chain.append(like)
    return chain[-1]


def _check_tiles(columns: Sequence[Column]) -> None:
    """Check that images that show several samples have one view, and are not frames."""
    for column in columns:
        views = [part for view in column.spec.views for part in views_in(view)]
        of_several = [view for view in views if tiles_of(view) > 1]
        if of_several and (column.spec.is_clip or len(column.spec.views) > 1):
            what = "wds_tools.Frames" if column.spec.is_clip else "a list of views"
            raise OptionError(
                f"field {column.name!r} is {what} with {of_several[0]}, which shows several samples: it must "
                "be the only view of an Image"
            )


def phases_of(columns: Sequence[Column]) -> tuple[int, ...]:
    """Return the epochs at which a view changes, ascending, starting with 0."""
    views = [view for column in columns if column.geometry for view in column.geometry.views]
    return tuple(sorted({0, *(epoch for view in views if isinstance(view, Schedule) for epoch in view.changes)}))


def choices_of(columns: Sequence[Column]) -> int:
    """Return the number of views of which each batch has one, by `MultiScale`; 0 if there are none."""
    views = [view for column in columns if column.geometry for view in column.geometry.views]
    counts = {count_in(view) for view in views} - {0}
    if len(counts) > 1 or (counts and buckets_in(views)):
        raise OptionError(
            "fields= has several MultiScale of different lengths, or one next to Buckets: use one of them"
        )
    return max(counts, default=0)


def buckets_of(columns: Sequence[Column]) -> Buckets | None:
    """Return the buckets of the images of a batch, or None."""
    buckets = buckets_in([view for column in columns if column.geometry for view in column.geometry.views])
    for column in columns if buckets else ():
        views = column.geometry.views if column.geometry else ()
        if buckets in views and (len(views) > 1 or column.geometry.field not in ("image", *IMAGE_FIELDS)):  # type: ignore[union-attr]
            raise OptionError(
                f"field {column.name!r} has Buckets: they are for the image of a sample, whose size is in the index, "
                "and cannot be one of several views"
            )
    return buckets


def views_of(columns_by_dataset: Sequence[Sequence[Column]]) -> dict[str, Any]:
    """Return the images and frames of a batch as plain values for a state.

    By name, they are the stored field, the views, and the stored objects by which views choose their regions. If
    datasets have fields or views of their own, the names have their numbers.
    """
    if len(columns_by_dataset) > 1:
        by_dataset = enumerate(views_of([columns]) for columns in columns_by_dataset)
        return {f"{name} of dataset {dataset}": view for dataset, views in by_dataset for name, view in views.items()}
    (columns,) = columns_by_dataset
    return {
        column.name: {
            **column.spec.state(),
            "views": [any_view_to_dict(view) for view in column.geometry.views] if column.geometry else [],
            **({"chosen_by": chosen} if (chosen := _chosen_by_of(column)) else {}),
        }
        for column in columns
        if column.spec.is_image and (column.geometry is None or column.geometry.source == column.name)
    }


def _chosen_by_of(column: Column) -> dict[str, dict[str, Any]]:
    """Return the objects by which views of an image choose their regions: by name, where and how they are stored."""
    specs = column.geometry.chosen_by if column.geometry else ()
    return {
        name: {option: value for option in _STORED_AS if (value := getattr(spec, option, None))} for name, spec in specs
    }


def fields_of_views(views: Mapping[str, Any]) -> dict[str, FieldSpec | str]:
    """Return ``fields=`` for the images and frames of a state, see `views_of`; if there are none, only the keys."""
    fields: dict[str, FieldSpec | str] = {}
    for name, value in views.items():
        views_of_one = [any_view_from_dict(view) for view in value["views"]]
        for view in (part for entry in views_of_one for part in views_in(entry)):
            if by := chosen_by(view):
                kind, other = by
                stored = value.get("chosen_by", {}).get(other)
                if not isinstance(stored, dict) or not set(stored) <= set(_STORED_AS):
                    raise OptionError(
                        f"the state has {type(view).__name__}({kind.lower()}={other!r}), but not where these are "
                        "stored: call loader.explain() in your program"
                    )
                fields[other] = _CHOOSING[kind](like=name, **stored)
        if "clip" in value:
            fields[name] = Frames(value["field"], view=next(iter(views_of_one), None), **value["clip"])
        else:
            fields[name] = Image(value.get("field", "image"), view=views_of_one or None)
    return fields or {"__key__": Key()}


def _padding_of(name: str, specs: Mapping[str, FieldSpec]) -> Padding | None:
    """Return how a field is padded: with the size of the field of its ``like=``, if both are images or sequences."""
    spec, source = specs[name], name
    pad, axes = spec.pad, spec.pad_axes
    while (like := specs[source].like) and specs[like].pad_axes == axes and specs[like].pad is not None:
        source = like
    shared = specs[source].pad
    if pad is None and (source == name or shared is None or not spec.stacks):
        return None
    if source == name or shared is None:
        return Padding(_as_pad(pad).value, _as_pad(pad), axes, name, is_flat=pad == FLAT)
    if isinstance(pad, str) or isinstance(shared, str):
        if pad != shared:
            raise OptionError(
                f"fields={{{name!r}: wds_tools.{type(spec).__name__}(like={source!r})}} has pad={pad!r}, and "
                f"{source!r} has pad={shared!r}: pad={FLAT!r} is for both or none"
            )
        return Padding(0, Pad(), axes, source, is_flat=True)
    if pad is None or isinstance(pad, Pad):
        given = f"pad={pad!r}" if pad else "no pad="
        raise OptionError(
            f"fields={{{name!r}: wds_tools.{type(spec).__name__}(like={source!r})}} has {given}, but it is padded to "
            f"the size of {source!r}: give only the value of its padding, such as pad=0"
        )
    return Padding(pad, _as_pad(shared), axes, source)


def _as_pad(pad: AnyPad) -> Pad:
    if isinstance(pad, Pad):
        return pad
    return Pad() if pad is None or isinstance(pad, str) else Pad(pad)


def padding_names(column: Column) -> tuple[str, ...]:
    """Return the names of the fields that a batch has in addition, because of the padding of a field.

    It is the mask, which is False for padding; for joined values the indices of their samples, and the offsets.
    """
    if column.padding is None or column.padding.source != column.name:
        return ()
    return tuple(f"{column.name}_{end}" for end in (("index", "offsets") if column.padding.is_flat else ("mask",)))


def _check_padding_names(columns: Sequence[Column]) -> None:
    names = {column.name for column in columns}
    for column in columns:
        for name in padding_names(column):
            if name in names:
                raise OptionError(
                    f"fields= has a field {name!r}, which is a name that pad= of {column.name!r} adds: choose another "
                    "name for one of them"
                )
