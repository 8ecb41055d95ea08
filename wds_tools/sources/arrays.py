"""Images as pixels in one large array: the common base of the HDF5, NumPy, Zarr and tensor sources.

Pixels must be uint8. Other types are refused, because their range is not known: 0.5 may be mid-grey
or nearly black.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.format.codecs import encode_npy
from wds_tools.format.image_header import encode_png, sniff
from wds_tools.lru_cache import LRUCache
from wds_tools.sources.array_contents import Contents
from wds_tools.sources.array_kinds import kind_of, to_bytes
from wds_tools.sources.array_roles import Roles, find_roles
from wds_tools.sources.base import (
    WINDOW_BYTES,
    Collector,
    Input,
    Record,
    Source,
    SourceOptions,
    as_read_error,
    as_source_error,
    field_bytes,
)
from wds_tools.sources.columns import IMAGE, facts_bytes, json_value, null_note
from wds_tools.sources.pixels import layout_of, png_bound, to_pixels

# h5py and Zarr raise these for damaged files.
_READ_ERRORS = (ValueError, IndexError, KeyError, TypeError, RuntimeError, SystemError)
_NPY_HEADER = 256  # upper bound in bytes, for arrays of few dimensions


class ArraySource(Source):
    """A file, or the folder of a store, with an array of images, and optionally labels and other arrays as long."""

    kind = "arrays"
    unit = "row"

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(src)

    def open(self) -> Contents:
        """Open the file."""
        raise NotImplementedError

    def files(self) -> list[Path]:
        """Return the files that are hashed for `Listing.stamp`."""
        return [self.path]

    def collect(self, found: Collector) -> None:
        """Add the rows of the array of images.

        Raises:
            SourceError: There is no such file or array, or the array contains no images.
        """
        found.take_files(self.files())
        with as_source_error(f"{self.path} cannot be read", *_READ_ERRORS):
            roles = self._roles
        count = found.account.given = roles.images.shape[0]
        rows = _chunk_rows(roles.images)
        for row in range(count):
            group = row // rows if rows > 1 else -1
            entry = Input(f"{self.path.name}#{row}", self._image_bytes(row), None, (row,), group, self._extra(row))
            found.add(entry, roles.labels[row] if roles.labels is not None else None)
        found.classes = roles.classes or ()
        self._account(found)

    def read(self, entry: Input) -> Record:
        """Read a row: pixels, or the stored bytes of an encoded image.

        Raises:
            SourceError: The row cannot be read.
        """
        roles, row = self._roles, entry.location[0]
        with as_read_error(f"{self.path} cannot be read", *_READ_ERRORS):
            image = self._row(IMAGE, roles.images, row)
            fields: dict[str, bytes] = {}
            for array, (form, name, values) in roles.others.items():
                if form == "text":
                    fields[name] = values[row].encode()
                elif form != "json":
                    fields |= _encoded(name, form, self._row(array, values, row))
            return Record(_to_image(image, roles.layout), fields, _facts(roles, row))

    def _account(self, found: Collector) -> None:
        """State what becomes of all that the file has."""
        contents, roles, account = self._contents, self._roles, found.account
        account.notes += roles.notes
        account.declare("array", contents.arrays)
        for part in contents.unusable:
            account.declare(part.kind, [part.name])
            account.leave_out(part.kind, part.name, part.reason)
        for kind, name, role in contents.used:
            account.declare(kind, [name])
            account.use(kind, name, role)
        for kind, name in contents.class_names:
            account.declare(kind, [name])
            if (kind, name) in roles.names_in:
                account.use(kind, name, "class names")
            else:
                account.leave_out(kind, name, "has class names that are not those of the labels")
        for name, role in (roles.used | {name: other.role for name, other in roles.others.items()}).items():
            account.use("array", name, role)
        for name, reason in roles.left_out.items():
            account.leave_out("array", name, reason)
        for name, (form, _, values) in roles.others.items():
            if form == "json" and (array := np.asarray(values)).dtype.kind == "f" and not np.isfinite(array).all():
                account.notes.append(null_note(name, int((~np.isfinite(array)).sum())))

    @cached_property
    def _contents(self) -> Contents:
        return self.open()

    @cached_property
    def _chunks(self) -> LRUCache[tuple[str, int], Any]:
        return LRUCache(max_bytes=WINDOW_BYTES)

    @cached_property
    def _roles(self) -> Roles:
        with as_read_error(f"{self.path} cannot be read", *_READ_ERRORS):
            return find_roles(self._contents, self.options, str(self.path))

    def _row(self, name: str, array: Any, row: int) -> Any:
        """Return one row, from a cached chunk if the array has chunks."""
        rows = _chunk_rows(array)
        if rows == 1:
            return array[row]
        start = row // rows * rows
        chunk = self._chunks.get((name, start))
        if chunk is None:
            chunk = array[start : start + rows]
            size = sum(map(len, chunk)) if chunk.dtype.hasobject else chunk.nbytes
            self._chunks.put((name, start), chunk, size)
        return chunk[row - start]

    def _image_bytes(self, row: int) -> int:
        """Return the length of an image, or an upper bound or estimate of it."""
        roles = self._roles
        if roles.layout == "items":
            shape = roles.images.row_shape(row)
            return shape[0] if len(shape) == 1 else png_bound(shape, layout_of(shape) or "HWC")
        if roles.layout == "bytes":
            return int(roles.images.dtype.itemsize) if kind_of(roles.images) != "bytes" else self._contents.mean_bytes
        return png_bound(roles.images.shape[1:], roles.layout)

    def _extra(self, row: int) -> int:
        """Return the bytes that the other fields of a row take in a shard."""
        total = facts_bytes(_facts(self._roles, row)) + self._fixed_bytes
        for form, _, values in self._roles.others.values():
            if form == "text":
                total += field_bytes(len(values[row].encode()))
            elif form == "npy" and kind_of(values) == "items":
                total += field_bytes(_NPY_HEADER + values.row_bytes(row))
        return total

    @cached_property
    def _fixed_bytes(self) -> int:
        """Bytes in a shard of the fields whose length is the same in all rows, or estimated."""
        total = 0
        for form, _, values in self._roles.others.values():
            if form not in ("json", "text") and kind_of(values) in ("bytes", "lists"):
                total += field_bytes(self._contents.mean_bytes)
            elif form not in ("json", "text") and kind_of(values) != "items":
                total += field_bytes(_row_bytes(values, form))
        return total


def _to_image(image: Any, layout: str) -> bytes | NDArray[np.uint8]:
    if layout == "items":
        shape = tuple(image.shape)
        return image.tobytes() if len(shape) == 1 else to_pixels(image, layout_of(shape) or "HWC")
    return to_bytes(image) if layout == "bytes" else to_pixels(image, layout)


def _chunk_rows(array: Any) -> int:
    """Return the number of rows of a chunk; 1 without chunks."""
    chunks = getattr(array, "chunks", None)
    return max(1, min(int(chunks[0]), int(array.shape[0]))) if chunks else 1


def _facts(roles: Roles, row: int) -> dict[str, Any]:
    return {name: json_value(values[row]) for form, name, values in roles.others.values() if form == "json"}


def _row_bytes(array: Any, extension: str) -> int:
    """Return an upper bound of the bytes of a row as a PNG or .npy file."""
    if extension == "png":
        return png_bound(tuple(array.shape[1:]), "HW")
    return _NPY_HEADER + int(math.prod(array.shape[1:])) * int(array.dtype.itemsize)


def _encoded(name: str, extension: str, value: Any) -> dict[str, bytes]:
    """Return the field of a value, by its name: none for an encoded image that is empty."""
    if extension == "png":
        return {f"{name}.png": encode_png(value)}
    if extension == "npy":
        array = np.asarray(value)
        return {f"{name}.npy": encode_npy(array.astype(array.dtype.newbyteorder("="), order="C"))}
    data = to_bytes(value)
    return {f"{name}.{sniff(data) or 'bin'}": data} if data else {}
