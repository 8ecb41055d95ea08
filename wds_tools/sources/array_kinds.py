"""What the values of an array are, by its type; and arrays that are made of other things: fields of records, lists.

An array here has ``shape``, ``ndim``, ``dtype`` and ``[]`` with a row or a slice of rows, like arrays of NumPy, h5py
and Zarr; and perhaps ``chunks``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import SourceError
from wds_tools.format.image_header import sniff
from wds_tools.format.label import Label, name
from wds_tools.sources.values import layout_of

# Kinds of values: "names" are an enumeration of HDF5, "bytes" and "lists" are of variable length in each row, "items"
# are arrays with a different shape in each row, and "binary" is of one length without a meaning.
_KINDS = {
    **dict.fromkeys("iu", "integers"),
    **dict.fromkeys("SUT", "text"),
    **dict.fromkeys("Mm", "time"),
    "b": "booleans",
    "f": "numbers",
    "c": "complex",
    "V": "binary",
}
STORED = ("integers", "booleans", "numbers", "complex")
"""Kinds of values that become separate fields."""

_LOOKED_AT = 8  # rows whose first bytes are read to find out whether bytes are images
_ENDS_ITSELF = ("jpg", "png", "gif")  # zeros at the end are never a part of such a file


class Rows:
    """An array whose rows are read by a function.

    Args:
        shape: Its shape.
        dtype: Its type.
        read: Returns a row or a slice of rows.
        chunks: The first is the number of rows that are read together; None if any row is cheap to read.
    """

    def __init__(
        self, shape: Sequence[int], dtype: Any, read: Callable[[Any], Any], chunks: Sequence[int] | None = None
    ) -> None:
        self.shape, self.ndim, self.dtype, self.chunks = tuple(shape), len(shape), dtype, chunks
        self._read = read

    def __getitem__(self, rows: Any) -> Any:
        return self._read(rows)


class Items(Rows):
    """Arrays of different shapes, one for each row. Each has ``shape``, ``dtype`` and ``[()]``."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__((len(items),), np.dtype(object), lambda row: np.asarray(items[row][()]))
        self._items = items

    def row_shape(self, row: int) -> tuple[int, ...]:
        """Return the shape of a row, without reading it."""
        return tuple(self._items[row].shape)

    def are_images(self) -> bool:
        """Return whether each row is uint8 with the shape of an image, or an encoded image."""
        return all(
            item.dtype == np.uint8 and (layout_of(tuple(item.shape)) or (item.ndim == 1 and sniff(item[:12].tobytes())))
            for item in self._items
        )


def of_items(items: Sequence[Any]) -> Rows:
    """Return arrays, one for each row, as one array: with a further axis if they have one shape and type."""
    first = items[0]
    is_encoded_image = first.ndim == 1 and first.dtype == np.uint8 and sniff(first[:12].tobytes()) is not None
    if is_encoded_image or len({(tuple(item.shape), item.dtype) for item in items}) != 1:
        return Items(items)

    def read(rows: Any) -> NDArray[Any]:
        return np.stack([np.asarray(item[()]) for item in items[rows]]) if isinstance(rows, slice) else items[rows][()]

    return Rows((len(items), *items[0].shape), items[0].dtype, read)


def row_as_column(array: Any) -> Rows:
    """Return an array [1, N] as an array [N]."""
    return Rows(array.shape[1:], array.dtype, lambda rows: np.asarray(array[0])[rows])


def fields_of(
    records: Any, dtype: np.dtype[Any] | None = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield the names and arrays of the fields of an array of records, including fields of records in records."""
    dtype = records.dtype if dtype is None else dtype
    for part in dtype.names or ():
        if dtype[part].names:
            yield from fields_of(records, dtype[part], (*path, part))
        else:
            yield "/".join((*path, part)), _field(records, dtype[part], (*path, part))


def _field(records: Any, dtype: np.dtype[Any], path: tuple[str, ...]) -> Rows:
    def read(rows: Any) -> Any:
        only = hasattr(records, "fields")  # h5py reads a single field
        return reduce(getitem, path[1:], records.fields(path[0])[rows] if only else records[rows][path[0]])

    dtype, shape = dtype.subdtype or (dtype, ())
    return Rows((records.shape[0], *shape), dtype, read, getattr(records, "chunks", None))


def array_kind(array: Any) -> str:
    """Return what the values of an array are."""
    if isinstance(array, Items):
        return "items"
    metadata = array.dtype.metadata or {}
    if "enum" in metadata:
        return "names"
    if "vlen" in metadata:
        base = metadata["vlen"]
        return "text" if base in (str, bytes) else "bytes" if base == np.uint8 else "lists"
    return _KINDS.get(array.dtype.kind, "objects")


def base_kind(array: Any) -> str:
    """Return what the values in the rows of variable length of an HDF5 array are."""
    base = np.dtype(array.dtype.metadata["vlen"])
    return "text" if (base.metadata or {}).get("vlen") in (str, bytes) else _KINDS.get(base.kind, "objects")


def is_encoded(array: Any) -> bool:
    """Return whether each row is an encoded image: bytes of variable length, or of one length and filled with zeros."""
    if array.ndim != 1 or array_kind(array) not in ("bytes", "binary", "text") or array.dtype.kind in "UT":
        return False
    return any(sniff(to_bytes(array[row])) for row in range(min(_LOOKED_AT, array.shape[0])))


def to_bytes(value: Any) -> bytes:
    """Return the encoded image in a row, without the zeros with which HDF5 and NumPy fill bytes of one length."""
    if isinstance(value, np.ndarray) and value.ndim:
        return np.asarray(value, np.uint8).tobytes()
    data: bytes = value if isinstance(value, bytes) else value.tobytes()
    return data.rstrip(b"\0") if sniff(data) in _ENDS_ITSELF else data


def is_column(array: Any) -> bool:
    """Return whether an array has one value in each row: [N], [N, 1], [N, 1, 1] and so on."""
    return bool(array.ndim and math.prod(array.shape[1:]) == 1)


def has_scalars(array: Any) -> bool:
    """Return whether an array has one number, text or boolean in each row."""
    kinds = ("integers", "booleans", "numbers", "names", "text")
    return is_column(array) and array_kind(array) in kinds and not is_encoded(array)


def is_stored(array: Any) -> bool:
    """Return whether the values in a row can be stored as an array."""
    if (kind := array_kind(array)) in ("lists", "bytes"):
        return array.ndim == 1 and base_kind(array) in STORED
    return kind in ("items", "names", *STORED)


def texts_of(values: Any, what: str) -> list[str]:
    """Return text as a list."""
    texts = []
    for row, value in enumerate(values.tolist() if hasattr(values, "tolist") else values):
        try:
            texts.append(value.decode() if isinstance(value, bytes) else str(value))
        except UnicodeDecodeError:
            raise SourceError(
                f"{what} has text in row {row} that is not UTF-8, {value[:40]!r}: convert it, for example with "
                "numpy.char.decode(x, 'latin-1')"
            ) from None
    return texts


def labels_of(array: Any, what: str) -> list[Any]:
    """Return the values of an array as labels: numbers, texts, names of an enumeration, or a list in each row."""
    kind = array_kind(array)
    if kind in ("lists", "items"):
        return [np.asarray(array[row]).tolist() for row in range(array.shape[0])]
    if not is_column(array):
        return list(np.asarray(array[:]))  # rows of 0 and 1, which are not lists of class numbers
    values = np.asarray(array[:]).reshape(-1)
    if kind == "text":
        return list(texts_of(values, what))
    if kind == "names":
        names = names_of(array)
        try:
            return [names[value] for value in values.tolist()]
        except KeyError as error:
            raise SourceError(f"{what} has the value {error}, which has no name in its enumeration") from None
    return list(values.tolist())


def names_of(array: Any) -> dict[int, Label]:
    """Return number -> name for an enumeration, sorted by number."""
    members = sorted((int(value), text) for text, value in array.dtype.metadata["enum"].items())
    return {value: name(text) for value, text in members}


def cells_of(array: Any, what: str) -> Any:
    """Return the values of an array with text, numbers, times or names in each row."""
    kind = array_kind(array)
    if kind == "text":
        values = np.asarray(array[:])
        return np.array(texts_of(values.reshape(-1), what), object).reshape(values.shape)
    if kind == "lists":
        return [texts_of(array[row], what) for row in range(array.shape[0])]
    return [label.name for label in labels_of(array, what)] if kind == "names" else np.asarray(array[:])
