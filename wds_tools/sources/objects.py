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

from wds_tools.errors import OptionError, SourceError
from wds_tools.format import codecs
from wds_tools.format.label_source import whole_number
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.sources.base import Input, Listing, Record, SourceStoreError, field_bytes, is_system_error
from wds_tools.sources.columns import (
    IMAGE,
    LABEL,
    check_columns,
    fact_name,
    facts_bytes,
    field_name,
    find_column,
    json_value,
    no_image_error,
    plain_name,
)
from wds_tools.sources.labels import number_labels, numbers_among
from wds_tools.sources.pixels import check_pixels, to_pixels

_PROBED_ITEMS = 32
_FACTS = (str, int, float, list, tuple, Mapping, type(None), np.generic, date, time, timedelta)
_log = logging.getLogger("wds_tools")
_PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


class ObjectSource:
    """Items ``(image, label)``, dictionaries, or images alone.

    An image is a PIL image, encoded bytes, an array [H, W] or [H, W, C], or a tensor [C, H, W];
    pixels are uint8.

    Args:
        items: Object with ``len()`` and ``[]``; an item must be the same each time it is read.
        classes: Class names by number; by default ``items.classes``, which torchvision's datasets have.
        columns: For items that are dictionaries: the keys of ``image`` and ``label``.
    """

    kind = "object"
    in_process = True

    def __init__(
        self, items: Any, classes: tuple[str, ...] | None = None, columns: dict[str, str] | None = None
    ) -> None:
        if not hasattr(items, "__getitem__") or not hasattr(items, "__len__"):
            raise OptionError(
                f"src is a {type(items).__name__}; allowed are paths, objects with len() and [], and streams of "
                "Hugging Face's datasets: put the items of an iterator into a list, or write them to files"
            )
        self.items = items
        self.columns = check_columns(columns)
        self._left_out: set[str] = set()
        names: Any = getattr(items, "classes", None)
        names = (names.tolist() if hasattr(names, "tolist") else names) or self._feature_names()
        are_names = isinstance(names, (list, tuple)) and all(isinstance(name, str) for name in names)
        own = tuple(names) if are_names and names else ()
        self.classes = classes or own
        numbers = numbers_among(self.classes, own, where=type(items).__name__)
        self._parsed = own if numbers else self.classes  # the names by the numbers that items have
        self._numbers = dict(enumerate(numbers))  # of items -> of this source; a number that is missing stays

    def scan(self) -> Listing:
        """List the items.

        Some are read twice: for their mean length, for the stamp, and to detect random transforms.

        Raises:
            SourceError: There is no item, or an item differs each time it is read.
        """
        count, name = len(self.items), type(self.items).__name__
        if count == 0:
            raise SourceError(f"the {name} has no items")
        failure: SourceError | None = None
        digest, sizes, extras = xxhash.xxh3_128(), [], []
        for number in sorted({(count - 1) * step // max(1, _PROBED_ITEMS - 1) for step in range(_PROBED_ITEMS)}):
            entry = Input(f"{name}#{number}", 0, None, (number,))
            try:
                record, again = (_encoded(self.read(entry)) for _ in range(2))
            except SourceError as error:
                failure = error
                digest.update(str(error).encode())
                continue
            if record != again:
                raise SourceError(
                    f"item {number} of the {name} differs each time it is read: remove random transforms before "
                    "packing, and apply them in training"
                )
            digest.update(record.image if isinstance(record.image, bytes) else b"")
            digest.update(repr((record.label, record.facts, sorted(record.fields.items()))).encode())
            sizes.append(len(record.image))
            extras.append(sum(map(field_bytes, map(len, record.fields.values()))) + facts_bytes(record.facts))
        if failure is not None and not sizes:
            raise failure
        size, extra = (max(1, sum(values) // max(1, len(values))) for values in (sizes, extras))
        inputs = [Input(f"{name}#{number}", size, None, (number,), -1, extra + 1024) for number in range(count)]
        return Listing(inputs, [], self.classes, digest.hexdigest())

    def renumber(self, classes: tuple[str, ...]) -> None:
        """Give the labels that are read from now on the numbers of their names in ``classes``."""
        self._numbers = {number: classes.index(name) for number, name in enumerate(self.classes)}

    def read(self, entry: Input) -> Record:
        """Read an item.

        Raises:
            SourceError: The item is damaged, or has a type that is not supported.
            SourceStoreError: A file of the item is missing, or its storage fails.
        """
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
            image, label = item[0], item[1] if len(item) > 1 else None
            return Record(_image(image, entry.path), label=self._label(label, entry.path))
        return Record(_image(item, entry.path))

    def _from_dict(self, item: dict[str, Any], path: str) -> Record:
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
        number = self._label(item[label], path) if label else None
        return Record(_image(item[image], path), fields, facts, number)

    def _feature_names(self) -> Any:
        """Return the class names of a map-style dataset of Hugging Face, whose only `ClassLabel` is the label."""
        features = getattr(self.items, "features", None)
        features = features if isinstance(features, Mapping) else {}
        labels = [name for name, feature in features.items() if type(feature).__name__ == "ClassLabel"]
        if len(labels) == 1:
            self.columns.setdefault(LABEL, labels[0])
        label = find_column(LABEL, features, self.columns, where="features") if features else None
        return getattr(features[label], "names", None) if label else None

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

    def _label(self, label: Any, path: str) -> int | None:
        if isinstance(label, str) and whole_number(label) is None and not self.classes:
            raise SourceError(f"{path} has label {label!r}, but the class names are not known: pass classes=[...]")
        number = number_labels([label], self._parsed or None, where=path)[0][0]
        return None if number is None else self._numbers.get(number, number)


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
