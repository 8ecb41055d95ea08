"""An object with ``len()`` and ``[]``, such as a torch ``Dataset``, packed in this process.

No worker processes are used: a spawned process may be unable to import a class of the user's
script, and a fork of a process with threads, which torch starts, may hang. torch is not imported: a
tensor is recognized by its methods.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping
from datetime import date, time, timedelta
from typing import Any

import numpy as np
import xxhash
from PIL import Image

from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.format import codecs
from wds_tools.format.label import BOOLEANS, Classes, Label, Labels
from wds_tools.format.label import name as name_label
from wds_tools.format.label import number as label_number
from wds_tools.format.label_lists import Form
from wds_tools.format.sample import IMAGE_FIELDS
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
    LABEL,
    fact_name,
    facts_bytes,
    field_name,
    find_column,
    json_value,
    no_image_error,
    plain_name,
)
from wds_tools.sources.pixels import check_pixels, to_pixels

_PROBED_ITEMS = 32
_FACTS = (str, int, float, list, tuple, Mapping, type(None), np.generic, date, time, timedelta)
_log = logging.getLogger("wds_tools")
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


class ObjectSource(Source):
    """Items ``(image, label)``, dictionaries, or images alone, of an object with ``len()`` and ``[]``.

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
        super().__init__(type(items).__name__, options)
        self.items = items
        self._left_out: set[str] = set()
        self._form = Form()
        self._own = self._renamed = Classes(self._class_names())  # by the numbers of the items; as they are packed

    def collect(self, found: Collector) -> None:
        """Add the items.

        Some are read twice: for their mean length, for the stamp, and to detect random transforms.

        Raises:
            SourceError: There is no item, or an item differs each time it is read.
        """
        count = found.account.given = len(self.items)
        if count == 0:
            raise SourceError(f"the {self.name} has no items")
        failure: SourceError | None = None
        digest, sizes, extras = xxhash.xxh3_128(), [], []
        labels = self._labels(self.name)
        for number in sorted({(count - 1) * step // max(1, _PROBED_ITEMS - 1) for step in range(_PROBED_ITEMS)}):
            entry = Input(f"{self.name}#{number}", 0, None, (number,))
            try:
                (record, label), again = ((_encoded(record), label) for record, label in map(self._item, [entry] * 2))
            except SourceError as error:
                failure = error
                digest.update(str(error).encode())
                continue
            if (record, repr(label)) != (again[0], repr(again[1])):
                raise SourceError(
                    f"item {number} of the {self.name} differs each time it is read: remove random transforms before "
                    "packing, and apply them in training"
                )
            labels.add(label)
            digest.update(record.image if isinstance(record.image, bytes) else b"")
            digest.update(repr((label, record.facts, sorted(record.fields.items()))).encode())
            sizes.append(len(record.image))
            extras.append(sum(map(field_bytes, map(len, record.fields.values()))) + facts_bytes(record.facts))
        if failure is not None and not sizes:
            raise failure
        size, extra = (max(1, sum(values) // max(1, len(values))) for values in (sizes, extras))
        for number in range(count):
            found.add(Input(f"{self.name}#{number}", size, None, (number,), -1, extra + 1024))
        self._form = self._set_classes(labels)
        found.classes, found.form_after_reading = self._own or None, self._form
        found.stamp = digest.hexdigest()

    def _class_names(self) -> tuple[str, ...]:
        """Return the class names of the object: its attribute ``classes``, or those of its ``ClassLabel``."""
        names: Any = getattr(self.items, "classes", None)
        names = (names.tolist() if hasattr(names, "tolist") else names) or self._feature_names()
        are_names = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
        return tuple(names) if are_names else ()

    def _labels(self, where: str, form: Form | None = None) -> Labels:
        return Labels(where, label_type=self.options.label_type, separator=self.options.label_separator, form=form)

    def _set_classes(self, labels: Labels) -> Form:
        """Decide what the labels of items mean, from those of some items, and return what they are.

        Raises:
            LabelError: Labels are names, and there is no list of classes; or they do not match that list.
        """
        given = self.options.classes
        numbered = labels.numbered(given, self._own)
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

    def read(self, entry: Input) -> Record:
        """Read an item.

        Raises:
            SourceError: The item is damaged, or has a type that is not supported.
            SourceStoreError: A file of the item is missing, or its storage fails.
            LabelError: Its label is of another kind than those of the other items.
        """
        record, label = self._item(entry)
        return record._replace(label=self._label(label, entry.path))

    def _item(self, entry: Input) -> tuple[Record, Any]:
        """Return an item without its label, and the label as it is."""
        try:
            item = self.items[entry.location[0]]
        except (
            OSError,
            ValueError,
            SyntaxError,
        ) as error:  # of image decoders; any other error is a bug in the dataset
            if is_system_error(error):
                raise SourceStoreError(f"{entry.path} cannot be read: {type(error).__name__}: {error}") from error
            raise SourceError(f"cannot be read: {type(error).__name__}: {error}") from error
        if isinstance(item, dict):
            return self._from_dict(item, entry.path)
        if isinstance(item, (tuple, list)):
            if len(item) > 2:
                self._warn("what follows the label")
            return Record(_image(item[0], entry.path)), item[1] if len(item) > 1 else None
        return Record(_image(item, entry.path)), None

    def _from_dict(self, item: dict[str, Any], path: str) -> tuple[Record, Any]:
        image = find_column(IMAGE, item, self.columns, where=path)
        if image is None:
            raise no_image_error(path, item, "entry")
        label = find_column(LABEL, [name for name in item if name != image], self.columns, where=path)
        fields, facts = {}, {}
        for name, value in item.items():
            if name in (image, label):
                continue
            field = field_name(name)
            is_file_name = isinstance(value, str) and field and field.rpartition(".")[2] in IMAGE_FIELDS
            if field and isinstance(value, (bytes, str)) and not is_file_name:
                fields[field] = value if isinstance(value, bytes) else value.encode()
            elif isinstance(value, _FACTS) or (hasattr(value, "tolist") and not np.ndim(value)):
                facts[fact_name(name)] = json_value(value)
            elif isinstance(value, Image.Image) or hasattr(value, "tolist"):
                kind, data = _encode_other(value)
                fields[field if field and field.endswith(f".{kind}") else f"{plain_name(name)}.{kind}"] = data
            else:
                self._warn(f"entry {name!r} of type {type(value).__name__}")
        return Record(_image(item[image], path), fields, facts), item[label] if label else None

    def _feature_names(self) -> Any:
        """Return the class names of a map-style dataset of Hugging Face, whose only `ClassLabel` is the label."""
        features = getattr(self.items, "features", None)
        features = features if isinstance(features, Mapping) else {}
        lists = {name: getattr(feature, "feature", feature) for name, feature in features.items()}
        labels = [name for name, feature in lists.items() if type(feature).__name__ == "ClassLabel"]
        if len(labels) == 1:
            self.columns.setdefault(LABEL, labels[0])
        label = find_column(LABEL, features, self.columns, where="features") if features else None
        return getattr(lists[label], "names", None) if label else None

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
            return tuple(map(self._label_of, numbered.several[0] or ()))
        return self._label_of(int(numbered.numbers[0]))

    def _label_of(self, number: int) -> Label:
        return label_number(number) if number < 0 or not self._own else name_label(self._renamed[number])


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
