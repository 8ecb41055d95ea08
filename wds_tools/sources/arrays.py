"""Images as pixels in one large array: the common base of the HDF5, NumPy, Zarr and tensor sources.

Pixels must be uint8. Other types are refused, because their range is not known: 0.5 may be mid-grey
or nearly black.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import SourceError
from wds_tools.format.codecs import encode_png
from wds_tools.lru_cache import LRUCache
from wds_tools.sources.base import (
    MAX_RECORD_BYTES,
    WINDOW_BYTES,
    Collector,
    Input,
    Record,
    Source,
    SourceOptions,
    as_read_error,
    as_source_error,
    field_bytes,
    file_states,
    stamp_files,
)
from wds_tools.sources.columns import (
    IMAGE,
    LABEL,
    fact_name,
    facts_bytes,
    find_column,
    no_image_error,
    plain_name,
)
from wds_tools.sources.pixels import check_pixels, png_bound, to_pixels

# h5py and Zarr raise these for damaged files.
_READ_ERRORS = (ValueError, IndexError, KeyError, TypeError, RuntimeError, SystemError)


@dataclass(slots=True)
class Arrays:
    """The arrays of an open file.

    Attributes:
        arrays: Name -> array with ``shape``, ``dtype`` and slicing.
        classes: Class names, if the file contains them.
        mean_bytes: Mean length of an encoded image in bytes; None if images are pixels.
    """

    arrays: Mapping[str, Any]
    classes: tuple[str, ...] | None = None
    mean_bytes: int | None = None


@dataclass(slots=True)
class _Roles:
    """The roles of the arrays of a file."""

    images: Any
    labels: Any | None
    layout: str  # "HW", "HWC", "CHW", or "bytes" for encoded images
    facts: dict[str, NDArray[Any]] = field(default_factory=dict)  # key in the json field -> [N]
    others: dict[str, Any] = field(default_factory=dict)  # field name -> [N, ...]


class ArraySource(Source):
    """A file, or the folder of a store, with an array of images, and optionally labels and other arrays as long."""

    kind = "arrays"
    unit = "row"

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(src)

    def open(self) -> Arrays:
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
        states = file_states(self.files())
        roles = self._roles
        count = found.account.given = roles.images.shape[0]
        with as_source_error(f"{self.path}: labels cannot be read", *_READ_ERRORS):
            labels = roles.labels[:].tolist() if roles.labels is not None else [None] * count
        size, rows = self._image_bytes(roles), _chunk_rows(roles.images)
        others = sum(field_bytes(_row_bytes(array, name)) for name, array in roles.others.items())
        for row in range(count):
            extra = others + facts_bytes(_facts(roles, row)) if roles.facts else others
            group = row // rows if rows > 1 else -1
            found.add(Input(f"{self.path.name}#{row}", size, None, (row,), group, extra), labels[row])
        found.classes = self._arrays.classes
        found.files = states
        found.stamp = stamp_files(self.files()) + repr(sorted(self.columns.items()))

    def read(self, entry: Input) -> Record:
        """Read a row: pixels, or the stored bytes of an encoded image.

        Raises:
            SourceError: The row cannot be read.
        """
        roles, row = self._roles, entry.location[0]
        with as_read_error(f"{self.path} cannot be read", *_READ_ERRORS):
            image = self._row(IMAGE, roles.images, row)
            fields = {
                name: _encode_other(name, np.asarray(self._row(name, array, row)))
                for name, array in roles.others.items()
            }
            return Record(_to_image(image, roles.layout), fields, _facts(roles, row))

    @cached_property
    def _arrays(self) -> Arrays:
        return self.open()

    @cached_property
    def _chunks(self) -> LRUCache[tuple[str, int], Any]:
        return LRUCache(max_bytes=WINDOW_BYTES)

    @cached_property
    def _roles(self) -> _Roles:
        """Find images and labels by name, or by shape and type if only one array fits."""
        with as_read_error(f"{self.path} cannot be read", *_READ_ERRORS):
            return self._find_roles(self._arrays.arrays, str(self.path))

    def _find_roles(self, arrays: Mapping[str, Any], where: str) -> _Roles:
        images = find_column(IMAGE, arrays, self.columns, where=where) or _only(arrays, _looks_like_images)
        if images is None:
            raise no_image_error(
                where, [f"{name} {array.dtype}{list(array.shape)}" for name, array in arrays.items()], "array"
            )
        rest = {
            name: array for name, array in arrays.items() if name != images and _rows(array) == _rows(arrays[images])
        }
        labels = find_column(LABEL, rest, self.columns, where=where)
        labels = labels or _only(rest, lambda array: array.ndim == 1 and array.dtype.kind in "iu")
        if labels is None:
            _check_no_labels(arrays, images, where)
        roles = _Roles(arrays[images], _flat(rest.pop(labels), where) if labels else None, "")
        roles.layout = _layout(roles.images, where, images)
        for name, array in rest.items():
            if array.ndim == 1 and (array.dtype.kind in "iufbSUTMm" or _holds_text(array)):
                _add(roles.facts, fact_name(plain_name(name)), np.asarray(array[:]), where)
            elif array.ndim > 1 and array.dtype.kind in "iufb" and math.prod(array.shape[1:]) <= MAX_RECORD_BYTES // 8:
                size = roles.images.shape[2:4] if roles.layout == "CHW" else roles.images.shape[1:3]
                is_mask = array.ndim == 3 and array.dtype == np.uint8 and array.shape[1:3] == size
                _add(roles.others, f"{plain_name(name)}.{'png' if is_mask else 'npy'}", array, where)
        return roles

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

    def _image_bytes(self, roles: _Roles) -> int:
        if roles.layout == "bytes":
            return self._arrays.mean_bytes or 1
        return png_bound(roles.images.shape[1:], roles.layout)


def _to_image(image: Any, layout: str) -> bytes | NDArray[np.uint8]:
    return np.asarray(image, np.uint8).tobytes() if layout == "bytes" else to_pixels(image, layout)


def _layout(images: Any, where: str, name: str) -> str:
    """Return the layout of a row: "HW", "HWC", "CHW", or "bytes" for variable-length uint8."""
    if images.ndim == 1 and (images.dtype.metadata or {}).get("vlen") == np.uint8:
        return "bytes"
    return check_pixels(tuple(images.shape[1:]), images.dtype, f"{where}: array {name!r}")


def _looks_like_images(array: Any) -> bool:
    return array.ndim in (3, 4) and array.dtype == np.uint8


def _only(arrays: Mapping[str, Any], test: Any) -> str | None:
    """Return the name of the array that passes a test, if it is the only one."""
    names = [name for name, array in arrays.items() if test(array)]
    return names[0] if len(names) == 1 else None


def _check_no_labels(arrays: Mapping[str, Any], images: str, where: str) -> None:
    """Raise an error if there are class numbers, but not one per image."""
    numbers = [name for name, array in arrays.items() if array.ndim == 1 and array.dtype.kind in "iu"]
    name = find_column(LABEL, numbers, {}, where=where)
    if name is not None:
        raise SourceError(
            f"{where} has {_rows(arrays[name]):,} labels in {name!r}, but {_rows(arrays[images]):,} images in "
            f"{images!r}; allowed is one label per image: correct the file, or rename {name!r} if it has no labels"
        )


def _add(found: dict[str, Any], name: str, array: Any, where: str) -> None:
    """Add an array, if no other one gets the same name."""
    if name in found:
        raise SourceError(f"{where} has two arrays that would be packed as {name!r}: rename one of them")
    found[name] = array


def _rows(array: Any) -> int:
    return int(array.shape[0]) if array.ndim else -1


def _flat(labels: Any, where: str) -> Any:
    """Return labels as [N], or as rows [N, classes] of 0 and 1; a single column is [N]."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:][:, 0]
    if labels.ndim > 2 or (labels.ndim == 2 and not np.isin(labels[:], (0, 1)).all()):
        raise SourceError(
            f"{where} has labels of shape {list(labels.shape)}; allowed are one number or name per image, and rows of "
            "0 and 1 with a value for each class: choose another label (--label, --column label=...)"
        )
    return labels


def _chunk_rows(array: Any) -> int:
    """Return the number of rows of a chunk; 1 without chunks."""
    chunks = getattr(array, "chunks", None)
    return max(1, min(int(chunks[0]), int(array.shape[0]))) if chunks else 1


def _holds_text(array: Any) -> bool:
    """Return whether an array of HDF5 has text of variable length."""
    return (array.dtype.metadata or {}).get("vlen") in (str, bytes)


def _facts(roles: _Roles, row: int) -> dict[str, Any]:
    return {name: _plain(array[row]) for name, array in roles.facts.items()}


def _plain(value: Any) -> Any:
    """Return a NumPy scalar or a text as a value for JSON."""
    if isinstance(value, (np.datetime64, np.timedelta64)):
        return None if np.isnat(value) else str(value)
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if not isinstance(value, float) or math.isfinite(value) else None  # JSON has no NaN


def _row_bytes(array: Any, name: str) -> int:
    """Return an upper bound of the bytes of a row as a PNG or .npy file."""
    if name.endswith(".png"):
        return png_bound(tuple(array.shape[1:]), "HW")
    return 256 + int(math.prod(array.shape[1:])) * int(array.dtype.itemsize)


def _encode_other(name: str, value: NDArray[Any]) -> bytes:
    if name.endswith(".png"):
        return encode_png(value)
    out = io.BytesIO()
    np.save(out, np.ascontiguousarray(value), allow_pickle=False)
    return out.getvalue()
