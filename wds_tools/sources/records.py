"""Records that map names to values, as in TFRecord, LMDB, MDS and LitData.

The roles of the names are found from all records, not from the first one: a name that only some records have is not
lost, and values of one name become the same kind of entry in all samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import LabelError, SourceError
from wds_tools.format import codecs, image_header
from wds_tools.format.class_notes import notes_on_first
from wds_tools.format.field_classes import ClassList
from wds_tools.format.label import NONE, Label, parse, quoted
from wds_tools.sources.base import Collector, Record, Skip, SourceOptions, as_source_error, import_optional
from wds_tools.sources.class_file import MAYBE_LISTS, are_labels, is_class_list
from wds_tools.sources.columns import fact_name, facts_bytes, is_text_field, null_note, plain_name
from wds_tools.sources.inputs import Input, field_bytes
from wds_tools.sources.record_roles import NamedValues, Names, Roles
from wds_tools.sources.values import (
    IMAGES,
    DeepPixels,
    Excluded,
    Kind,
    check_pixels,
    for_json,
    is_base64_of_image,
    kind_of,
    label_value,
    name_text,
    png_bound,
    reason_of,
    resolved,
    text_of,
    to_pixels,
)

_GUESSED_FROM = 50  # records from which roles are guessed; the guess is checked against all records


class Item(NamedTuple):
    """A record while it is listed.

    Attributes:
        path: As in `Input`.
        location: As in `Input`.
        values: Name -> value: encoded images and other bytes, text, numbers, lists, dictionaries, arrays, `Repeated`,
            `Excluded`, or None. Otherwise the reason why the record is skipped.
        group: As in `Input`.
    """

    path: str
    location: tuple[int, ...]
    values: Mapping[str, Any] | str
    group: int = -1


def different_labels(labels: Iterable[Any]) -> set[Label]:
    """Return the different labels of samples with one label; none if one of them is refused later."""
    try:
        return {parse(label) for label in labels if not isinstance(label, (list, tuple))} - {NONE}
    except LabelError:
        return set()


def _is_vague(place: str) -> bool:
    """Return whether something named like names need not be class names: then it must have one for each class."""
    word = place.rpartition("/")[2].lower()
    return word.endswith(MAYBE_LISTS) and not is_class_list(word)


def _fit(names: tuple[str, ...], labels: Set[Label]) -> bool:
    """Return whether there is a name for each number up to the largest label, or labels are among the names."""
    texts = {label.name for label in labels if label.name}
    return texts <= {*names} if texts else len(names) == 1 + max((label.number or 0 for label in labels), default=-1)


def attempt(read: Callable[..., Mapping[str, Any]], *arguments: Any) -> Mapping[str, Any] | str:
    """Return the values that a function returns, or the reason why the record is skipped."""
    try:
        return read(*arguments)
    except SourceError as error:
        return str(error)


class RecordSource(NamedValues):
    """Base of sources whose records map names to values.

    Attributes:
        path: The file or folder, if it is one.
    """

    record_roles: Roles | None = None

    def __init__(self, src: Any, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(self.name)

    def root(self) -> Path:
        return self.path

    def items(self) -> Iterator[Item]:
        """Yield all records."""
        raise NotImplementedError

    def values(self, entry: Input) -> Mapping[str, Any]:
        """Return the values of a record."""
        raise NotImplementedError

    def label_of(self, entry: Input) -> Label:  # noqa: ARG002 - for formats whose paths have classes
        """Return the label of a record without a label among its values."""
        return NONE

    def class_names(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """Return (kind of part, place) -> class names outside of the records, the most usual place first.

        The kind is empty for what is not a part of the account.
        """
        return {}

    def collect(self, collector: Collector) -> None:
        roles = None
        first: list[Mapping[str, Any]] = []
        with suppress(SourceError, RecursionError):
            guess = Names(self)
            for item in islice(self.items(), _GUESSED_FROM):
                guess.add(item.values)
                first.append(_short_values(item.values))
            roles = guess.roles()
        seen, listed, skipped = self._listed(roles)
        final = seen.roles() if seen.total else None
        if final is not None and (roles is None or final.needs_other_sizes(roles)):  # the first were not like all
            seen, listed, skipped = self._listed(final)
        collector.account.given += len(listed) + len(skipped)
        for skip in skipped:
            collector.skip(*skip)
        if final is not None:
            self.record_roles = roles = final
            labels = seen.values_of(roles)
            for index, entry in listed:
                collector.add(entry, labels[index] if labels else self.label_of(entry))
            self.account_names(seen, collector, roles)
            collector.account.notes += seen.hints(roles, lambda name: [row[name] for row in first if name in row])
            self.name_classes(collector, roles, {entry.location[0]: labels[index] for index, entry in listed if labels})

    def name_classes(self, collector: Collector, roles: Roles, labels: Mapping[int, Any]) -> None:
        """Add the class names that the source has outside of its records, unless they are the labels themselves.

        Raises:
            LabelError: Lists have the same names in different orders, or it is not clear whether names are the labels.
        """
        lists = self.class_names()
        if roles.label is not None and not collector.classes:
            every = {place: names for (_, place), names in lists.items()}
            collector.classes = self._chosen(collector, every, different_labels(labels.values()))
        for (kind, place), names in lists.items():
            if kind and names == collector.classes:
                collector.account.use(kind, place, "class names")
            elif kind:
                collector.account.leave_out(kind, place, "has class names that do not belong to the labels")

    def _chosen(
        self, collector: Collector, every: Mapping[str, tuple[str, ...]], labels: Set[Label]
    ) -> tuple[str, ...]:
        """Return the first of several lists of class names that fits the labels; empty if it is the labels."""
        given = self.options.classes
        numbers = [label.number for label in labels if label.number is not None]
        lists = {place: names for place, names in every.items() if not _is_vague(place) or _fit(names, labels)}
        first, names = next(iter(lists.items()), ("", ()))
        others = {place: others for place, others in lists.items() if others != names and not given}
        for place, other in others.items():
            if sorted(other) == sorted(names):
                raise LabelError(
                    f"{self.name} has its classes in a different order in {first!r} ({quoted(names)}) than in "
                    f"{place!r} ({quoted(other)}): pass --classes (classes=)"
                )
        if are_labels(names, numbers, self.name, lists.keys() - others.keys(), given=given):
            return ()
        collector.account.notes += [] if given else notes_on_first(names, numbers)
        collector.account.notes += [
            f"{place!r} has other class names than {first!r} ({quoted(other)}): pass --classes (classes=) if the "
            "labels mean these"
            for place, other in others.items()
        ]
        return names

    def account_names(self, seen: Names, collector: Collector, roles: Roles) -> None:
        """State what becomes of each name."""
        part, account = self.part, collector.account
        account.declare(part, seen.kinds)
        collector.classes = roles.classes or collector.classes
        collector.are_numbers = roles.label in self.class_lists
        if roles.names is not None:
            collector.numbered_by = "records"
        account.notes += roles.notes
        for name, kinds in seen.kinds.items():
            if name in roles.used:
                uses = {roles.image: "image", roles.label: "label", roles.names: "class names"}
                uses |= dict.fromkeys(roles.hot, "label")
                account.use(part, name, uses.get(name, "size of the image"))
                continue
            reasons = list(filter(None, map(reason_of, sorted(kinds))))
            if not reasons or len(kinds.keys() - {Kind.MISSING}) > len(reasons):
                account.use(part, name, _destination(seen, name, roles))
            for reason in reasons:
                account.leave_out(part, name, reason)
        self._account_facts(seen, collector, roles)
        if roles.shape:
            order = "B, G, R" if self.bgr else "R, G, B"
            account.notes.append(f"{roles.image!r} has raw pixels; colours are in the order {order}")

    def _account_facts(self, seen: Names, collector: Collector, roles: Roles) -> None:
        """Add the class names of entries of ``json``; note which entries name splits, and which JSON cannot have."""
        names: dict[str, str] = {}
        for name in seen.facts(roles):
            entry = fact_name(self.entry_name(name))
            if (same := names.setdefault(entry, name)) != name:
                raise SourceError(
                    f"{self.name} has two {self.part}s that would be packed as {entry!r}: rename one of {same!r} and "
                    f"{name!r}"
                )
            for place, classes in self.class_lists.items():
                if place == name or place.startswith(f"{name}."):
                    collector.field_classes[f"json:{entry}{place.removeprefix(name)}"] = ClassList(classes)
            if len(splits := sorted(seen.splits.get(name) or ())) > 1:
                collector.account.notes.append(
                    f"{self.part} {name!r} names splits, {quoted(splits)}: it becomes an entry of json, and all "
                    "are packed together; for one dataset per split, separate them before packing"
                )
            if count := seen.lost.get(name):
                collector.account.notes.append(null_note(name, count))

    def _listed(self, roles: Roles | None) -> tuple[Names, list[tuple[int, Input]], list[Skip]]:
        """Return what the records have, the inputs with the indexes of their records, and what is skipped."""
        seen, listed, skipped = Names(self), [], []
        for item in self.items():
            try:
                index = seen.add(item.values)
                if isinstance(item.values, str):
                    raise SourceError(item.values)
                if roles is not None:
                    listed.append((index, self._input(item, item.values, roles)))
            except SourceError as error:
                skipped.append(Skip(item.path, str(error)))
            except RecursionError:
                skipped.append(Skip(item.path, "has values that are nested too deeply"))
        return seen, listed, skipped

    def read(self, entry: Input) -> Record:
        assert self.record_roles is not None
        return self.to_record(self.values(entry), self.record_roles)

    def _input(self, item: Item, values: Mapping[str, Any], roles: Roles) -> Input:
        image = self._image(values, roles, copy=False)
        size = png_bound(image.shape, "HWC") if isinstance(image, np.ndarray) else len(image)
        return Input(item.path, size, None, item.location, item.group, self.extra_bytes(values, roles))

    def extra_bytes(self, values: Mapping[str, Any], roles: Roles) -> int:
        """Return the bytes that all but the image of a record takes in a shard."""
        fields, facts = self._parts(values, roles, copy=False)
        return facts_bytes(facts) + sum(field_bytes(len(data)) for data in fields.values())

    def to_record(
        self, values: Mapping[str, Any], roles: Roles, image: bytes | NDArray[np.uint8] | None = None
    ) -> Record:
        """Return a record for the packer, with its image if that is not among the values.

        Raises:
            SourceError: It has no image.
        """
        image = self._image(values, roles, copy=True) if image is None else image
        return Record(image, *self._parts(values, roles, copy=True))

    def _parts(self, values: Mapping[str, Any], roles: Roles, *, copy: bool) -> tuple[dict[str, bytes], dict[str, Any]]:
        """Return the fields and the entries of ``json`` of a record.

        Without ``copy``, images are not encoded: only their lengths, or upper bounds of these, are right.
        """
        fields: dict[str, bytes] = {}
        facts: dict[str, Any] = {}
        used = roles.used
        for name, stored in values.items():
            if name in used or (stored is None and name in roles.fields):
                continue
            if type(stored) is str and name not in roles.fields:  # most values of tables
                facts[fact_name(name)] = stored
                continue
            value = resolved(stored, is_list=name in roles.lists)
            kind = kind_of(value)
            if kind == Kind.ENCODED:
                _add(fields, _image_field(roles.fields[name], str(image_header.sniff(value))), value, copy=copy)
            elif kind == Kind.PICTURE:
                png = image_header.encode_png(np.asarray(value)) if copy else bytes(png_bound(value.shape, "HWC"))
                _add(fields, _image_field(roles.fields[name], "png"), png, copy=False)
            elif kind in (Kind.ARRAY, Kind.PIXELS, Kind.VECTOR):
                _add(fields, f"{roles.fields[name]}.npy", codecs.encode_npy(value), copy=False)
            elif kind == Kind.TEXT and is_text_field(roles.fields.get(name, "")):
                fields[roles.fields[name]] = text_of(value).encode("utf-8", "surrogateescape")
            elif reason_of(kind) is None:
                facts[fact_name(name)] = for_json(value)
        return fields, facts

    def _image(self, values: Mapping[str, Any], roles: Roles, *, copy: bool) -> bytes | NDArray[np.uint8]:
        """Return the image of a record: encoded bytes or pixels."""
        value = resolved(values.get(roles.image), is_list=False)
        kind = kind_of(value)
        if kind == Kind.ENCODED:
            return bytes(value) if copy else value
        if kind == Kind.PICTURE:
            return np.asarray(value)
        if isinstance(value, DeepPixels):
            raise SourceError(
                f"{roles.image!r} is an image of mode {value.mode!r}, whose values do not fit into 8 bits: convert it "
                "to 'I;16', or to 'L' if its values are from 0 to 255"
            )
        if isinstance(value, np.ndarray):
            layout = check_pixels(value.shape, value.dtype, repr(roles.image))
            return self._ordered(to_pixels(np.asarray(value), layout))
        if isinstance(value, (bytes, memoryview)) and roles.shape:
            return self._ordered(_raw_pixels(memoryview(value), values, roles))
        raise SourceError(_not_an_image(roles.image, value, kind))

    def _ordered(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return pixels[..., ::-1] if self.bgr and pixels.ndim == 3 and pixels.shape[2] == 3 else pixels


def _short_values(values: Mapping[str, Any] | str) -> dict[str, Any]:
    """Return the texts, numbers, lists and objects of a record, which could be labels or have them."""
    stated = {} if isinstance(values, str) else {name: resolved(value, is_list=False) for name, value in values.items()}
    kinds = {name: kind_of(value) for name, value in stated.items()}
    texts = {name: text_of(value) for name, value in stated.items() if kinds[name] == Kind.TEXT}
    lists = {
        name: [*label_value(value, kinds[name])]
        for name, value in stated.items()
        if kinds[name] in (Kind.LIST, Kind.VECTOR)
    }
    others = {name: value for name, value in stated.items() if isinstance(value, (int, float, Mapping))}
    return texts | lists | others


def _add(fields: dict[str, bytes], name: str, value: Any, *, copy: bool) -> None:
    if name in fields:
        raise SourceError(f"has two values that would be the field {name!r}: rename one of them")
    fields[name] = bytes(value) if copy else value


def _image_field(base: str, kind: str) -> str:
    """Return the field of an image: its extension is the type of the content."""
    return base if base.endswith(f".{kind}") else f"{plain_name(base)}.{kind}"


def _raw_pixels(data: memoryview, values: Mapping[str, Any], roles: Roles) -> NDArray[np.uint8]:
    """Return raw pixels [H, W] or [H, W, C]."""
    sizes: list[Any] = []
    for name in roles.shape:
        value = values.get(name)
        sizes += value.tolist() if isinstance(value, np.ndarray) else value if isinstance(value, list) else [value]
    if not all(isinstance(size, int) and size > 0 for size in sizes) or len(sizes) not in (2, 3):
        raise SourceError(f"{roles.image!r} has raw pixels, but {quoted(roles.shape)} of the record are not its size")
    if len(sizes) == 2 and len(data) != math.prod(sizes):
        sizes.append(len(data) // math.prod(sizes))
    if math.prod(sizes) != len(data):
        raise SourceError(
            f"{roles.image!r} has {len(data):,} bytes of raw pixels, but {quoted(roles.shape)} state "
            f"{' x '.join(map(str, sizes))}; allowed is one byte per value"
        )
    layout = check_pixels(tuple(sizes), np.dtype(np.uint8), repr(roles.image))
    return to_pixels(np.frombuffer(data, np.uint8).reshape(sizes), layout)


def _not_an_image(name: str, value: Any, kind: str) -> str:
    if isinstance(value, Excluded):
        return f"{name!r} is not read: it is {value.reason}"
    if kind == Kind.SEVERAL_IMAGES:
        return f"has {len(value)} images in {name!r}; allowed is one per record: write one record per image"
    if kind == Kind.MISSING:
        return f"has no image: it has no {name!r}"
    if isinstance(value, (bytes, memoryview)) and not len(value):
        return f"has no image: {name!r} is empty"
    if isinstance(value, (bytes, memoryview)):
        return (
            f"{name!r} is base64 of an image: decode it to bytes, as docs/sources.md shows"
            if is_base64_of_image(value)
            else f"{name!r} is not a {image_header.IMAGE_TYPES}: it starts with {bytes(value[:8])!r}; raw pixels need "
            "their size in entries such as height, width and channels"
        )
    return f"{name!r} is not an image: {str(value)[:40]!r}"


def _destination(seen: Names, name: str, roles: Roles) -> str:
    """Return what a name becomes, for the account."""
    if name not in roles.fields:
        return "entries of json"
    base = roles.fields[name]
    kinds = seen.kinds[name].keys()
    if kinds & {Kind.ARRAY, Kind.PIXELS, Kind.VECTOR}:
        return f"field {base}.npy"
    return f"image field {base}" if kinds & IMAGES and "." not in base else f"field {base}"


def unpacked(value: memoryview) -> dict[str, Any]:
    """Return a dictionary or a list by msgpack as names and values."""
    values: dict[str, Any] = {}
    with as_source_error("cannot be read as msgpack", RecursionError):
        flatten(by_msgpack(value, raw=True), "", values)
    return values


def by_msgpack(value: bytes | memoryview, *, raw: bool) -> Any:
    """Return a value that msgpack wrote; with ``raw``, its texts as bytes."""
    msgpack = import_optional("msgpack", "records by msgpack")
    with as_source_error("cannot be read as msgpack", ValueError, msgpack.UnpackException, RecursionError):
        return msgpack.unpackb(value, raw=raw, strict_map_key=False)


def flatten(value: Any, path: str, values: dict[str, Any]) -> None:
    """Add a value by its path in dictionaries and in the outermost list, such as ``meta.width`` or ``1``."""
    if isinstance(value, dict):
        value = {name_text(key): item for key, item in value.items()}
        if {"nd", "type", "data"} <= value.keys():
            values[path] = _msgpack_array(value)
            return
    elif isinstance(value, list) and not path:
        value = {str(index): item for index, item in enumerate(value)}
    if isinstance(value, dict) and value:
        for key, item in value.items():
            flatten(item, f"{path}.{key}" if path else key, values)
    else:
        is_extension = type(value).__module__.startswith("msgpack")
        values[path] = Excluded("an extension type of msgpack") if is_extension else value


def _msgpack_array(value: dict[str, Any]) -> Any:
    """Return an array or a number as msgpack-numpy stores it."""
    try:
        dtype = np.dtype(name_text(value["type"]))
        flat = np.frombuffer(value["data"], dtype)
        array = flat.reshape([int(side) for side in value["shape"]]) if value["nd"] else flat[0].item()
    except (TypeError, ValueError, KeyError, IndexError):
        return Excluded("an array of Python objects, or of a structured type")
    is_encoded = isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype == np.uint8
    return bytes(value["data"]) if is_encoded and image_header.sniff(value["data"]) else array
