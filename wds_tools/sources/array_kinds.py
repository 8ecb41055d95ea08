"""What the values of an array are, by its type; and arrays that are made of other things: fields of records, lists.

An array here has ``shape``, ``ndim``, ``dtype`` and ``[]`` with a row or a slice of rows, as those of NumPy, h5py and
Zarr.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import SourceError
from wds_tools.format.image_header import sniff
from wds_tools.format.label import Label, name
from wds_tools.sources.pixels import layout_of

# Kinds of values: "names" are an enumeration of HDF5, "bytes" and "lists" are of variable length in each row, "items"
# are arrays with a shape of their own in each row, and "binary" is of one length without a meaning.
_KINDS = {
    **dict.fromkeys("iu", "integers"),
    **dict.fromkeys("SUT", "text"),
    **dict.fromkeys("Mm", "time"),
    "b": "booleans",
    "f": "numbers",
    "c": "complex",
    "V": "binary",
}
_LOOKED_AT = 8  # rows whose first bytes are read to find out whether bytes are images
_ENDS_ITSELF = ("jpg", "png", "gif")  # zeros at the end are never a part of such a file


def kind_of(array: Any) -> str:
    """Return what the values of an array are."""
    if type(array) is Items:  # a Stack has a type of its own
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


class Field:
    """A field of an array of records, as an array."""

    def __init__(self, records: Any, path: tuple[str, ...]) -> None:
        dtype = records.dtype
        for part in path:
            dtype = dtype[part]
        self._records, self._path = records, path
        self.dtype, shape = dtype.subdtype or (dtype, ())
        self.shape = (records.shape[0], *shape)
        self.ndim = len(self.shape)
        self.chunks = getattr(records, "chunks", None)

    def __getitem__(self, rows: Any) -> Any:
        first, *rest = self._path
        only = hasattr(self._records, "fields")  # h5py reads a single field
        values = self._records.fields(first)[rows] if only else self._records[rows][first]
        for part in rest:
            values = values[part]
        return values


def fields_of(
    records: Any, dtype: np.dtype[Any] | None = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield the names and arrays of the fields of an array of records, those of records in records too."""
    dtype = records.dtype if dtype is None else dtype
    for part in dtype.names or ():
        inner = dtype[part]
        if inner.names:
            yield from fields_of(records, inner, (*path, part))
        else:
            yield "/".join((*path, part)), Field(records, (*path, part))


class Items:
    """Arrays of different shapes, one for each row. Each has ``shape``, ``dtype`` and ``[()]``."""

    ndim = 1
    dtype = np.dtype(object)

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items
        self.shape = (len(items),)

    def __getitem__(self, row: int) -> NDArray[Any]:
        return np.asarray(self._items[row][()])

    def row_shape(self, row: int) -> tuple[int, ...]:
        """Return the shape of a row, without reading it."""
        return tuple(self._items[row].shape)

    def row_bytes(self, row: int) -> int:
        """Return the bytes of a row in memory."""
        return int(np.prod(self.row_shape(row), dtype=np.int64)) * int(self._items[row].dtype.itemsize)

    def are_images(self) -> bool:
        """Return whether each row is uint8 with the shape of an image, or an encoded image."""
        return all(
            item.dtype == np.uint8 and (layout_of(tuple(item.shape)) or (item.ndim == 1 and sniff(item[:12].tobytes())))
            for item in self._items
        )


class Stack(Items):
    """Arrays of one shape, one for each row, as an array with one more axis."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__(items)
        self.shape = (len(items), *items[0].shape)
        self.ndim = len(self.shape)
        self.dtype = items[0].dtype

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        if isinstance(rows, slice):
            return np.stack([np.asarray(item[()]) for item in self._items[rows]])
        return super().__getitem__(rows)


def of_items(items: Sequence[Any]) -> Items:
    """Return arrays, one for each row, as one array: with a further axis if they have one shape and type."""
    return Stack(items) if len({(tuple(item.shape), item.dtype) for item in items}) == 1 else Items(items)


def is_encoded(array: Any) -> bool:
    """Return whether each row is an encoded image: bytes of variable length, or of one length and filled with zeros."""
    if array.ndim != 1 or kind_of(array) not in ("bytes", "binary", "text") or array.dtype.kind in "UT":
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


def flat(array: Any) -> Any:
    """Return the values of an array with one value in each row, as [N]."""
    return np.asarray(array[:]).reshape(-1)


def texts_of(values: Any, what: str) -> list[str]:
    """Return text as a list.

    Raises:
        SourceError: Bytes are not UTF-8.
    """
    found = []
    for row, value in enumerate(values.tolist() if hasattr(values, "tolist") else values):
        try:
            found.append(value.decode() if isinstance(value, bytes) else str(value))
        except UnicodeDecodeError:
            raise SourceError(
                f"{what} has text in row {row} that is not UTF-8, {value[:40]!r}: convert it, for example with "
                "numpy.char.decode(x, 'latin-1')"
            ) from None
    return found


def values_of(array: Any, what: str) -> list[Any]:
    """Return the values of an array as labels: numbers, texts, names of an enumeration, or a list of them in each row.

    Raises:
        SourceError: Text is not UTF-8, or a number has no name in the enumeration.
    """
    kind = kind_of(array)
    if kind in ("lists", "items"):
        return [np.asarray(array[row]).tolist() for row in range(array.shape[0])]
    if not is_column(array):
        return list(np.asarray(array[:]))  # rows of 0 and 1, which are not lists of class numbers
    values = flat(array)
    if kind == "text":
        return list(texts_of(values, what))
    if kind == "names":
        names = names_of(array)
        try:
            return [names[number] for number in values.tolist()]
        except KeyError as error:
            raise SourceError(f"{what} has the value {error}, which has no name in its enumeration") from None
    return list(values.tolist())


def names_of(array: Any) -> dict[int, Label]:
    """Return number -> name for an enumeration, sorted by number."""
    members = sorted((int(number), text) for text, number in array.dtype.metadata["enum"].items())
    return {number: name(text) for number, text in members}
