"""Images as pixels in one large array: the common base of the HDF5, NumPy, Zarr and tensor sources.

Pixels must be uint8. Other types are refused, because their range is not known: 0.5 may be mid-grey
or nearly black.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.lru_cache import LRUCache
from wds_tools.sources.array_contents import Contents
from wds_tools.sources.array_kinds import kind_of, to_bytes
from wds_tools.sources.array_roles import Roles, column_of
from wds_tools.sources.base import WINDOW_BYTES, Collector, Input, Record, SourceOptions, as_read_error, as_source_error
from wds_tools.sources.columns import IMAGE
from wds_tools.sources.objects import cell
from wds_tools.sources.pixels import layout_of, png_bound, to_pixels
from wds_tools.sources.record_roles import Names, reason_of
from wds_tools.sources.record_values import ARRAY, ENCODED, LIST, PICTURE, TEXT, WHOLE, Pixels
from wds_tools.sources.records import RecordSource

# h5py and Zarr raise these for damaged files.
_READ_ERRORS = (ValueError, IndexError, KeyError, TypeError, RuntimeError, SystemError)


class ArraySource(RecordSource):
    """A file, or the folder of a store, with an array of images, and optionally labels and other arrays as long."""

    kind = "arrays"
    unit = "row"
    part = "array"

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
        names = self._names()
        self.found_roles = names.record_roles()
        for row in range(count):
            group = row // rows if rows > 1 else -1
            extra = self.extra_bytes(self._values(row), self.found_roles)
            entry = Input(f"{self.path.name}#{row}", self._image_bytes(row), None, (row,), group, extra)
            found.add(entry, roles.labels[row] if roles.labels is not None else None)
        found.classes = roles.classes or ()
        self._account(found, names)

    def read(self, entry: Input) -> Record:
        """Read a row: pixels, or the stored bytes of an encoded image.

        Raises:
            SourceError: The row cannot be read.
        """
        roles, row = self._roles, entry.location[0]
        assert self.found_roles is not None
        with as_read_error(f"{self.path} cannot be read", *_READ_ERRORS):
            image = _to_image(self._row(IMAGE, roles.images, row), roles.layout)
            return self.to_record(self._values(row), self.found_roles, image)

    def _account(self, found: Collector, names: Names) -> None:
        """State what becomes of all that the file has."""
        contents, roles, account = self._contents, self._roles, found.account
        account.notes += [*roles.notes, *_notes_about_one(roles.labels or (), roles.classes or ())]
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
                account.leave_out(kind, name, "has class names that do not belong to the labels")
        for name, role in roles.used.items():
            account.use("array", name, role)
        for name, reason in roles.left_out.items():
            account.leave_out("array", name, reason)
        assert self.found_roles is not None
        for name, short in roles.rest.items():
            _, kind = self._others[short]
            if why := reason_of(kind):
                account.leave_out("array", name, why)
            else:
                account.use("array", name, names.destination(short, self.found_roles))
        names.account_facts(found, self.found_roles)

    @cached_property
    def _others(self) -> dict[str, tuple[Any, str]]:
        """The arrays besides image and label by their names in records, and what their values are."""
        arrays, roles = self._contents.arrays, self._roles
        return {short: (arrays[name], roles.record_kind(name)) for name, short in roles.rest.items()}

    def _names(self) -> Names:
        """Return the arrays besides image and label as names in records."""
        names = Names(self)
        for short, (_, kind) in self._others.items():
            names.declare(short, kind)
            values = self._columns.get(short)
            if isinstance(values, np.ndarray) and values.dtype.kind == "f":
                names.lost[short] = int((~np.isfinite(values)).sum())
            if kind == TEXT:
                names.add_texts(short, self._columns[short])
        return names

    @cached_property
    def _columns(self) -> dict[str, Any]:
        """The values of arrays that become texts and entries of ``json``."""
        return {
            short: column_of(array, f"{self.path}: array {short!r}")
            for short, (array, kind) in self._others.items()
            if kind in (TEXT, LIST, WHOLE)
        }

    def _values(self, row: int) -> dict[str, Any]:
        """Return the values of a row, without image and label."""
        values: dict[str, Any] = {}
        for short, (array, kind) in self._others.items():
            if short in self._columns:
                values[short] = cell(self._columns[short][row])
            elif kind == ENCODED:
                values[short] = to_bytes(self._row(short, array, row)) or None
            elif kind in (PICTURE, ARRAY):
                value = np.asarray(self._row(short, array, row))
                value = value.astype(value.dtype.newbyteorder("="), order="C")
                values[short] = value.view(Pixels) if kind == PICTURE else value
        return values

    @cached_property
    def _contents(self) -> Contents:
        return self.open()

    @cached_property
    def _chunks(self) -> LRUCache[tuple[str, int], Any]:
        return LRUCache(max_bytes=WINDOW_BYTES)

    @cached_property
    def _roles(self) -> Roles:
        with as_read_error(f"{self.path} cannot be read", *_READ_ERRORS):
            return Roles(self._contents, self.options, str(self.path))

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


def _notes_about_one(labels: Iterable[Any], classes: Sequence[str]) -> list[str]:
    """Return a note if class numbers begin with 1, so that they may not be positions in the class names."""
    numbers = {one for one in labels if isinstance(one, (int, float)) and not isinstance(one, bool) and one >= 0}
    if not classes or min(numbers, default=0) != 1:
        return []
    note = f"no sample has class 0, {classes[0]!r}, and labels begin with 1: if they count from 1, subtract 1 from them"
    return [note]


def _to_image(image: Any, layout: str) -> bytes | NDArray[np.uint8]:
    if layout == "items":
        shape = tuple(image.shape)
        return image.tobytes() if len(shape) == 1 else to_pixels(image, layout_of(shape) or "HWC")
    return to_bytes(image) if layout == "bytes" else to_pixels(image, layout)


def _chunk_rows(array: Any) -> int:
    """Return the number of rows of a chunk; 1 without chunks."""
    chunks = getattr(array, "chunks", None)
    return max(1, min(int(chunks[0]), int(array.shape[0]))) if chunks else 1
