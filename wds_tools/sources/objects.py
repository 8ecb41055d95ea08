"""An object with ``len()`` and ``[]``, such as a torch ``Dataset``, packed in this process.

No worker processes are used: a spawned process may be unable to import a class of the user's
script, and a fork of a process with threads, which torch starts, may hang. torch is not imported: a
tensor is recognized by its methods.
"""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields as fields_of
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from typing import Any

import numpy as np
import xxhash
from PIL import Image, ImageOps

from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.format import codecs
from wds_tools.format.label import BOOLEANS, NO_NUMBER, NONE, Classes, Label, Labels, parse
from wds_tools.format.label import name as name_label
from wds_tools.format.label import number as label_number
from wds_tools.format.label_lists import Form
from wds_tools.sources.base import (
    Collector,
    Input,
    Record,
    Source,
    SourceOptions,
    SourceStoreError,
    field_bytes,
    is_system_error,
)
from wds_tools.sources.columns import (
    IMAGE,
    fact_name,
    facts_bytes,
    field_name,
    has_bytes,
    json_value,
    names_image,
    no_image_error,
    plain_name,
    usual_columns,
)
from wds_tools.sources.label_choice import LabelColumns
from wds_tools.sources.object_classes import class_names
from wds_tools.sources.pixels import check_pixels, to_pixels
from wds_tools.sources.roles import Roles

_PROBED_ITEMS = 32
_FACTS = (str, int, float, list, tuple, Mapping, type(None), np.generic, date, time, timedelta)
_log = logging.getLogger("wds_tools")
_TABLES = ("pandas", "polars", "pyarrow")  # whose [] gives columns
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


class ObjectSource(Source):
    """Items ``(image, label)``, dictionaries, dataclasses, or images alone, of an object with ``len()`` and ``[]``.

    An item must be the same each time it is read. An image is a PIL image, encoded bytes, an array [H, W] or
    [H, W, C], or a tensor [C, H, W]; pixels are uint8. Class names are those of ``classes`` of the object, which
    torchvision's datasets have, or of a `ClassLabel`. Labels are read with the items, not when they are listed, so
    names need a list of classes.
    """

    kind = "object"
    unit = "item"
    in_process = True

    def __init__(self, items: Any, options: SourceOptions | None = None) -> None:
        if not hasattr(items, "__getitem__") or not hasattr(items, "__len__"):
            raise OptionError(
                f"src is a {type(items).__name__}; allowed are paths, objects with len() and [], and streams of "
                "Hugging Face's datasets: put the items of an iterator into a list, or write them to files"
            )
        if any(one.__module__.partition(".")[0] in _TABLES for one in type(items).__mro__):
            raise OptionError(
                f"src is a {type(items).__name__} in memory: write it to Parquet or CSV, and pass the path of that file"
            )
        super().__init__(type(items).__name__, options)
        self.items = items
        self._left_out: set[str] = set()
        self._became: dict[str, str] = {}  # entry of items -> what it is packed as; "" if it is left out
        self._roles: Roles | None = None  # of items that are dictionaries
        self._notes: tuple[str, ...] = ()
        self._form = Form()
        self._has_labels = False  # of the items that were looked at
        self._own = self._renamed = Classes(class_names(items))  # by the numbers of the items; as they are packed

    def collect(self, found: Collector) -> None:
        """Add the items.

        Some are read twice: for their entries and mean length, for the stamp, and to detect random transforms.

        Raises:
            SourceError: There is no item, an item differs each time it is read, or several entries could be the image
                or the label.
            LabelError: Labels do not match the class names of the object.
        """
        count = found.account.given = len(self.items)
        if count == 0:
            raise SourceError(f"the {self.name} has no items")
        numbers = sorted({(count - 1) * step // max(1, _PROBED_ITEMS - 1) for step in range(_PROBED_ITEMS)})
        digest = xxhash.xxh3_128()
        items, failures = self._probe(numbers)
        for failure in failures:
            digest.update(str(failure).encode())
        if not items:
            raise failures[0]
        dictionaries = [item for item in items.values() if isinstance(item, Mapping)]
        if dictionaries:
            self._set_roles(dictionaries, is_complete=len(numbers) == count)
        labels, sizes, extras = self._labels(self.name), [], []
        probed: dict[int, Any] = {}
        for number, item in items.items():
            try:
                read = self._record(item, self._path(number))
            except SourceError as failure:  # of this item, which is skipped when it is read
                failures.append(failure)
                digest.update(str(failure).encode())
                continue
            record, label = self._checked(number, read)
            labels.add(label)
            probed[number] = label
            digest.update(record.image if isinstance(record.image, bytes) else b"")
            digest.update(repr((label, record.facts, sorted(record.fields.items()))).encode())
            sizes.append(len(record.image))
            extras.append(sum(map(field_bytes, map(len, record.fields.values()))) + facts_bytes(record.facts))
        if not probed:
            raise failures[0]
        size, extra = (max(1, sum(values) // len(values)) for values in (sizes, extras))
        for number in range(count):
            found.add(Input(self._path(number), size, None, (number,), -1, extra + 1024))
        self._check_targets(probed)
        self._form = self._set_classes(labels)
        self._add_account(found)
        if dictionaries and len(items) < count:
            found.account.notes.append(
                f"entries were looked for in {len(items)} of {count:,} items: one that only other items have is packed "
                "as a field or as an entry of json, or left out with a warning if its type is not kept"
            )
        found.classes, found.form_after_reading = self._own or (), self._form
        found.stamp = digest.hexdigest()

    def read(self, entry: Input) -> Record:
        """Read an item.

        Raises:
            SourceError: The item is damaged, or has a type that is not supported, or lacks a label that others have.
            SourceStoreError: A file of the item is missing, or its storage fails.
            LabelError: Its label is of another kind than those of the other items.
        """
        record, value = self._record(self._item(entry.location[0]), entry.path)
        label = self._label(value, entry.path)
        if label == NONE and self._has_labels:
            raise SourceError("has no label")
        return record._replace(label=label)

    def _path(self, number: int) -> str:
        return f"{self.name}#{number}"

    def _probe(self, numbers: Sequence[int]) -> tuple[dict[int, Any], list[SourceError]]:
        """Return some items by number, and the errors of those that cannot be read."""
        items, failures = {}, []
        for number in numbers:
            try:
                items[number] = self._item(number)
            except SourceError as error:
                failures.append(error)
        return items, failures

    def _checked(self, number: int, read: tuple[Record, Any]) -> tuple[Record, Any]:
        """Return a record with an encoded image, and its label, if the item is the same when it is read again."""
        second = self._record(self._item(number), self._path(number))
        (record, label), again = (_encoded(read[0]), read[1]), (_encoded(second[0]), second[1])
        if (record, repr(label)) != (again[0], repr(again[1])):
            raise SourceError(
                f"item {number} of the {self.name} differs each time it is read: remove random transforms before "
                "packing, and apply them in training"
            )
        return record, label

    def _set_roles(self, items: Sequence[Mapping[str, Any]], *, is_complete: bool) -> None:
        """Decide which entries of dictionaries are the image and the label.

        Raises:
            SourceError: No entry is an image, or several could be the label.
        """
        names = list(dict.fromkeys(name for item in items for name in item))
        images = [name for name in names if any(_may_be_image(item.get(name)) for item in items)]
        found = usual_columns(IMAGE, names if IMAGE in self.columns else images, self.columns, where=self.name)
        if not found and len(images) != 1:
            texts = [name for name in names if any(isinstance(item.get(name), str) for item in items)]
            hint = "; names of files are read from tables only: open the image in the dataset" if texts else ""
            raise no_image_error(self.name, names, "entry", hint)
        image = (found or images)[0]
        features = getattr(self.items, "features", None)
        features = features if isinstance(features, Mapping) else {}
        features = {name: getattr(feature, "feature", feature) for name, feature in features.items()}  # of lists too
        classes = {
            name: tuple(map(str, feature.names))
            for name, feature in features.items()
            if type(feature).__name__ == "ClassLabel" and name in names
        }
        others = [name for name in names if name != image]
        labels = LabelColumns(self.name, others, self.options, classes, part="entry")
        for item in items:
            labels.add(item)
        choice = labels.choose(complete=is_complete)
        names_column = choice.names if is_complete else None  # other items may have further classes
        self._roles = Roles(image, choice.label, names_column)
        self._notes = choice.notes if is_complete or not choice.names else ()
        own = choice.classes if is_complete or choice.label in classes else None
        self._own = self._renamed = Classes(own or self._own)

    def _check_targets(self, labels: Mapping[int, Any]) -> None:
        """Check labels against the attribute ``targets``, by whose numbers torchvision's datasets name classes.

        Raises:
            LabelError: They differ, and no class names were given.
        """
        targets: Any = getattr(self.items, "targets", None)
        if not self._own or not hasattr(targets, "__getitem__") or not hasattr(targets, "__len__"):
            return
        if len(targets) != len(self.items):
            return
        for number, label in labels.items():
            target, own = _one_value(targets[number]), _one_value(label)
            if np.ndim(target) or parse(target).number in (None, parse(own).number):
                continue
            if self.options.classes:
                self._own = self._renamed = Classes()
                return
            raise LabelError(
                f"item {number} of the {self.name} has label {own!r}, and its attribute 'targets' has "
                f"{parse(target).number}, as with a target_transform: the class names of the object are not those of "
                "the labels, pass classes=[...]"
            )

    def _labels(self, where: str, form: Form | None = None) -> Labels:
        return Labels(where, label_type=self.options.label_type, separator=self.options.label_separator, form=form)

    def _set_classes(self, labels: Labels) -> Form:
        """Decide what the labels of items mean, from those of some items, and return what they are.

        Raises:
            LabelError: Labels are names, and there is no list of classes; or they do not match that list.
        """
        given = self.options.classes
        numbered = labels.numbered(given, self._own)
        self._has_labels = any(numbered.several or ()) or bool((numbered.numbers != NO_NUMBER).any())
        found = numbered.classes
        if not self._own and not given and found not in ((), BOOLEANS):
            raise LabelError(
                f"the {self.name} has label {found[0]!r}, but its class names are not known: pass classes=[...]"
            )
        self._own = self._own or Classes(given or found)
        self._renamed = self._own
        if given:
            self._renamed = Classes(given[number] for number in self._own.matched(given, where=self.name))
        return numbered.form

    def _add_account(self, found: Collector) -> None:
        """Add what becomes of the entries of the items that were read."""
        account = found.account
        account.declare("entry", self._became)
        for name, role in self._became.items():
            if role:
                account.use("entry", name, role)
            else:
                account.leave_out(
                    "entry", name, "follows the label" if name.isdigit() else "has a type that is not kept"
                )
        account.notes += self._notes

    def _item(self, number: int) -> Any:
        """Return an item; a dataclass or named tuple as a dictionary."""
        path = self._path(number)
        try:
            item = self.items[number]
        except (
            OSError,
            ValueError,
            SyntaxError,
        ) as error:  # of image decoders; any other error is a bug in the dataset
            if is_system_error(error):
                raise SourceStoreError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
            raise SourceError(f"cannot be read: {type(error).__name__}: {error}") from error
        if is_dataclass(item) and not isinstance(item, type):
            return {field.name: getattr(item, field.name) for field in fields_of(item)}
        return item._asdict() if isinstance(item, tuple) and hasattr(item, "_asdict") else item

    def _record(self, item: Any, path: str) -> tuple[Record, Any]:
        """Return an item without its label, and the label as it is."""
        if isinstance(item, Mapping):
            return self._from_dict(item, path)
        if not isinstance(item, (tuple, list)):
            self._became["item"] = "image"
            return Record(_image(item, path)), None
        if not item:
            raise SourceError(f"{path} is empty")
        self._became |= {"0": "image"} | ({"1": "label"} if len(item) > 1 else {})
        for number in range(2, len(item)):
            self._became[str(number)] = ""
            self._warn("what follows the label")
        return Record(_image(item[0], path)), _tuple_label(item[1], path) if len(item) > 1 else None

    def _from_dict(self, item: Mapping[str, Any], path: str) -> tuple[Record, Any]:
        if self._roles is None:
            self._set_roles([item], is_complete=False)
        assert self._roles is not None
        image, label, names = self._roles.image, self._roles.label, self._roles.names
        if item.get(image) is None:
            raise SourceError(f"has no entry {image!r}")
        fields, facts = {}, {}
        self._became |= (
            {image: "image"} | ({label: "label"} if label else {}) | ({names: "class names"} if names else {})
        )
        for name, value in item.items():
            if name in (image, label, names):
                continue
            field = field_name(name)
            is_file_name = isinstance(value, str) and names_image(f".{field}")
            if field and isinstance(value, (bytes, str)) and not is_file_name:
                fields[field] = value if isinstance(value, bytes) else value.encode()
                self._became[name] = f"field {field}"
            elif has_bytes(value):
                self._became.setdefault(name, "")
                self._warn(f"entry {name!r} with bytes in lists or dictionaries")
            elif isinstance(value, _FACTS) or (hasattr(value, "tolist") and not np.ndim(value)):
                facts[fact_name(name)] = json_value(value)
                self._became.setdefault(name, "entries of json")
            elif isinstance(value, Image.Image) or hasattr(value, "tolist"):
                kind, data = _encode_other(value)
                other = field if field and field.endswith(f".{kind}") else f"{plain_name(name)}.{kind}"
                fields[other] = data
                self._became[name] = f"field {other}"
            else:
                self._became.setdefault(name, "")
                self._warn(f"entry {name!r} of type {type(value).__name__}")
        return Record(_image(item[image], path), fields, facts), _one_value(item.get(label)) if label else None

    def _warn(self, what: str) -> None:
        """Warn once that a part of the items is not packed."""
        if what not in self._left_out:
            self._left_out.add(what)
            _log.warning(
                "items of the %s: %s is left out. Items that are dictionaries may have images, arrays, texts, numbers "
                "and lists besides image and label",
                type(self.items).__name__,
                what,
            )

    def _label(self, value: Any, path: str) -> Label | tuple[Label, ...]:
        """Return the label of an item, or its labels: names of classes if there are any, otherwise numbers."""
        labels = self._labels(path, self._form)
        labels.add(value)
        numbered = labels.numbered(own=self._own)
        if numbered.classes and not self._own:
            raise LabelError(f"{path} has label {value!r}, but the class names are not known: pass classes=[...]")
        if numbered.several is not None:
            several = numbered.several[0]
            return NONE if several is None else tuple(map(self._label_of, several))
        return self._label_of(int(numbered.numbers[0]))

    def _label_of(self, number: int) -> Label:
        return label_number(number) if number < 0 or not self._own else name_label(self._renamed[number])


def _may_be_image(value: Any) -> bool:
    """Return whether a value has the type of an image, whatever it contains."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return codecs.sniff(value) is not None
    return isinstance(value, Image.Image) or (hasattr(value, "dtype") and np.ndim(value) in (2, 3))


def _one_value(value: Any) -> Any:
    """Return an array or tensor with a single value as that value."""
    return value.item() if getattr(value, "shape", ()) and math.prod(value.shape) == 1 else value


def _tuple_label(value: Any, path: str) -> Any:
    """Return the label of a tuple.

    Raises:
        LabelError: It is an image, a dictionary, or an array of several dimensions.
    """
    value = _one_value(value)
    if isinstance(value, (Mapping, Image.Image)) or (hasattr(value, "tolist") and np.ndim(value) > 1):
        raise LabelError(
            f"{path}: the label, which is the second entry of a tuple, has the type {type(value).__name__}; allowed "
            "are numbers and names: let items be dictionaries, such as {'image': ..., 'label': ..., 'mask': ...}, "
            "whose other entries are kept"
        )
    return value


def _image(value: Any, path: str) -> Any:
    """Return encoded bytes, or uint8 pixels [H, W] or [H, W, C]."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Image.Image):
        if value.mode == "F" or (value.mode.startswith("I") and value.mode not in _PNG_MODES):
            raise SourceError(
                f"{path} has a PIL image of mode {value.mode!r}, whose values do not fit into 8 bits: convert "
                "it to 'I;16', which keeps 16 bits, or to 'L'"
            )
        value = ImageOps.exif_transpose(value)  # a PNG has no orientation
        out = io.BytesIO()
        (value if value.mode in _PNG_MODES else value.convert("RGB")).save(out, "PNG")
        return out.getvalue()
    is_tensor = hasattr(value, "detach")
    array = np.asarray(value.detach().cpu().numpy() if is_tensor else value)
    layout = check_pixels(array.shape, array.dtype, path) if array.ndim in (2, 3) else None
    if layout is None:
        raise SourceError(
            f"{path} has an image of type {type(value).__name__}; allowed are PIL images, encoded bytes, uint8 arrays "
            "[H, W, C] and uint8 tensors [C, H, W]"
        )
    return np.ascontiguousarray(to_pixels(array, layout))


def _encode_other(value: Any) -> tuple[str, bytes]:
    """Return the type and the content of the field of a further image or array."""
    if isinstance(value, Image.Image) and value.mode in _PNG_MODES:
        return "png", _image(value, "")
    out = io.BytesIO()
    np.save(out, np.asarray(value.detach().cpu() if hasattr(value, "detach") else value), allow_pickle=False)
    return "npy", out.getvalue()


def _encoded(record: Record) -> Record:
    """Return a record whose image is encoded bytes."""
    is_bytes = isinstance(record.image, bytes)
    return record if is_bytes else record._replace(image=codecs.encode_png(np.asarray(record.image)))
