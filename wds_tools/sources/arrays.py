"""Images as pixels in one large array: the common base of all sources of arrays; NumPy, Zarr and tensor files.

Pixels must be uint8. Other types are refused, because their range is not known: 0.5 may be mid-grey
or nearly black.

Zarr, versions 2 and 3, is a folder: an array, or a group with ``images`` and ``labels``, or in groups below it. The
metadata may name a codec that unpickles data, which can run code. So the metadata is checked before Zarr opens the
store, and only codecs that cannot run code are allowed.

Tensor files (``.pt``, ``.pth``) contain a dictionary with ``images`` and ``labels``, even in dictionaries in it; a pair
of both; images alone; or a list of samples, each a pair or a dictionary. They are read with
``torch.load(weights_only=True)``, which creates only tensors and plain containers.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import SourceError
from wds_tools.format import codecs
from wds_tools.sources.array_roles import (
    ArrayRoles,
    Contents,
    Rows,
    Unusable,
    array_kind,
    cells_of,
    is_column,
    labels_of,
    of_items,
    role_rank,
    to_bytes,
)
from wds_tools.sources.base import (
    Collector,
    Record,
    SourceStoreError,
    as_read_error,
    as_source_error,
    import_optional,
    is_system_error,
)
from wds_tools.sources.class_file import names_in
from wds_tools.sources.columns import IMAGE, LABEL
from wds_tools.sources.files import map_file
from wds_tools.sources.inputs import Input
from wds_tools.sources.record_roles import Names
from wds_tools.sources.records import RecordSource
from wds_tools.sources.values import Kind, Pixels, cell, layout_of, png_bound, reason_of, to_pixels

# h5py and Zarr raise these for damaged files.
_READ_ERRORS = (ValueError, IndexError, KeyError, TypeError, RuntimeError, SystemError)
_NUMPY_ERRORS = (ValueError, zipfile.BadZipFile, EOFError, struct.error, zlib.error, RuntimeError)
MAX_UNPACKED_BYTES = 16 << 30
"""Limit for a compressed array of NumPy, which each worker decompresses into memory."""

CODECS = frozenset(
    "blosc zlib gzip zstd lz4 lzma bz2 delta shuffle bitround packbits crc32 crc32c adler32 fletcher32 bytes endian "  # noqa: SIM905 - a list
    "transpose sharding_indexed vlen-utf8 vlen-bytes".split()
)
_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zmetadata")
_MAX_METADATA_BYTES = 16 << 20
_CHUNK = re.compile(r"c|(c[./])?\d+([./]\d+)*")  # its path in the folder of its array
_PAIR = ("images", "labels")
_GLOBAL = re.compile(r"GLOBAL ([\w.]+)")
_IMAGE_AXES = 3
_POSITION = re.compile(r"arr_[0-9]+")  # the names that numpy.savez gives


class ArraySource(RecordSource):
    """A file, or the folder of a store, with an array of images, and optionally labels and other arrays as long.

    Attributes:
        why_missing: Why a part of an array may not be stored although nothing is wrong.
        whole: What the file or folder is called in messages.
    """

    why_missing: ClassVar[str] = "a part that was never written is not stored"
    whole: ClassVar[str] = "file"
    kind = "arrays"
    unit = "row"
    part = "array"
    no_splits = (
        "arrays of splits are packed one at a time, as with --column image=x_train and then image=x_test, and the same "
        "--classes; or give shares, such as train=0.9,val=0.1"
    )
    joining = "pass both as arrays in Python, as wds_tools.pack((images, labels), DST)"

    def open(self) -> Contents:
        """Open the file."""
        raise NotImplementedError

    def missing_parts(self, name: str) -> str:  # noqa: ARG002 - for formats that can leave parts out
        """Return how many parts of an array are not stored, such as ``1 of 4 chunks``; empty if all are."""
        return ""

    def files(self) -> list[Path]:
        """Return the files that are hashed for `Listing.stamp`."""
        return [self.path]

    def collect(self, collector: Collector) -> None:
        collector.take_files(self.files())
        with as_source_error(f"{self.path} cannot be read", *_READ_ERRORS):
            arrays, contents = self._arrays, self._contents
            arrays.check_label()
            self.class_lists = arrays.names_of_types
            seen = Names(self)
            seen.declare(arrays.image, Kind.PICTURE)
            for name, kind in arrays.kinds.items():
                seen.declare(name, kind)
            roles = self.record_roles = seen.find(self._values, self._values, arrays.image)
            if not roles.hot and role_rank(roles.label or "", LABEL) < 2 and LABEL not in self.columns:
                arrays.check_no_other_label()
        labels = seen.values_of(roles)
        if contents.labels is not None and LABEL not in self.columns:
            labels = contents.labels
        rows = _chunk_rows(arrays.images)
        count = collector.account.given = arrays.images.shape[0]
        for row in range(count):
            extra = self.extra_bytes(self._record(row), roles)
            group = row // rows if rows > 1 else -1
            entry = Input(f"{self.path.name}#{row}", self._image_bytes(row), None, (row,), group, extra)
            collector.add(entry, labels[row] if labels else None)
        collector.account.notes += seen.hints(roles, self._values) if contents.labels is None else []
        self.class_lists = {}  # of entries of json, which are names
        for name in seen.facts(roles):
            if isinstance(values := self._cells[name], np.ndarray) and values.dtype.kind == "f":
                seen.lost[name] = int((~np.isfinite(values)).sum())
        self.account_names(seen, collector, roles)
        self.name_classes(collector, roles, dict(enumerate(labels)))
        if roles.hot:
            collector.classes = tuple(name.rpartition("/")[2] for name in roles.hot)
        arrays.account(collector.account)
        if missing := self.missing_parts(arrays.image):  # as in a copy or a program that was interrupted
            collector.account.notes.append(
                f"{missing} of the images are missing, and are read as the fill value; {self.why_missing}, but the "
                f"{self.whole} can also be incomplete"
            )

    def read(self, entry: Input) -> Record:
        row = entry.location[0]
        assert self.record_roles is not None
        with as_read_error(f"{self.path} cannot be read", *_READ_ERRORS):
            image = _to_image(self._row(IMAGE, self._arrays.images, row), self._arrays.layout)
            return self.to_record(self._record(row), self.record_roles, image)

    def label_groups(self, names: Sequence[str]) -> list[list[str]]:
        """Return usual names, names with a usual word, and the names that `numpy.savez` gives."""
        ranks = {name: role_rank(name, LABEL) for name in names}
        unnamed = [name for name in names if _POSITION.fullmatch(name)]
        return [*([name for name in names if ranks[name] == rank] for rank in (2, 1)), unnamed]

    def entry_name(self, name: str) -> str:
        return self._arrays.entry_name(name)

    def class_names(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        return self._arrays.class_lists

    @cached_property
    def _contents(self) -> Contents:
        return self.open()

    @cached_property
    def _arrays(self) -> ArrayRoles:
        with as_read_error(f"{self.path} cannot be read", *_READ_ERRORS):
            return ArrayRoles(self._contents, self.options.columns, str(self.path))

    def _values(self, name: str) -> Sequence[Any]:
        """Return the values of an array, one for each row; of deep arrays, only values of the same shape."""
        array, kind = self._arrays.rows[name], self._arrays.kinds[name]
        if kind in (Kind.TEXT, Kind.LIST, Kind.WHOLE, Kind.DECIMAL, Kind.VECTOR) or is_column(array):
            return labels_of(array, f"{self.path}: array {name!r}")
        shapes = [array.row_shape(row) for row in range(array.shape[0])] if array_kind(array) == "items" else []
        return [np.broadcast_to(0, shape) for shape in shapes or [array.shape[1:]] * array.shape[0]]

    @cached_property
    def _cells(self) -> dict[str, Any]:
        """The values of arrays that become texts and entries of ``json``."""
        return {
            name: cells_of(array, f"{self.path}: array {name!r}")
            for name, (array, kind, _) in self._further.items()
            if kind in (Kind.TEXT, Kind.LIST, Kind.WHOLE, Kind.DECIMAL)
        }

    @cached_property
    def _further(self) -> dict[str, tuple[Any, str, str]]:
        """The arrays that are packed besides the image and the label: what their values are, and names in records."""
        assert self.record_roles is not None
        arrays, roles = self._arrays, self.record_roles
        return {
            name: (arrays.rows[name], kind, name if name in roles.fields else self.entry_name(name))
            for name, kind in arrays.kinds.items()
            if name not in roles.used and not reason_of(kind)
        }

    def _record(self, row: int) -> dict[str, Any]:
        """Return the values of a row, without image and label: entries of ``json`` by their names there."""
        values: dict[str, Any] = {}
        cells = self._cells
        for name, (array, kind, short) in self._further.items():
            if name in cells:
                values[short] = cell(cells[name][row])
            elif kind == Kind.ENCODED:
                values[short] = to_bytes(self._row(name, array, row)) or None
            else:
                value = np.asarray(self._row(name, array, row))
                value = value.astype(value.dtype.newbyteorder("="), order="C")
                values[short] = value.view(Pixels) if kind == Kind.PICTURE else value
        return values

    def _row(self, name: str, array: Any, row: int) -> Any:
        """Return one row, from a cached chunk if the array has chunks."""
        rows = _chunk_rows(array)
        if rows == 1:
            return array[row]
        start = row // rows * rows
        return self._cache.load((name, start), lambda: array[start : start + rows], _bytes_in)[row - start]

    @cached_property
    def _mean_bytes(self) -> int:
        return max(1, self.path.stat().st_size // int(self._arrays.images.shape[0]))

    def _image_bytes(self, row: int) -> int:
        """Return the length of an image, or an upper bound or estimate of it."""
        images, layout = self._arrays.images, self._arrays.layout
        if layout == "items":
            shape = images.row_shape(row)
            return shape[0] if len(shape) == 1 else png_bound(shape, layout_of(shape) or "HWC")
        if layout == "bytes":
            return self._mean_bytes if array_kind(images) == "bytes" else int(images.dtype.itemsize)
        return png_bound(images.shape[1:], layout)


def _bytes_in(chunk: Any) -> int:
    return sum(map(len, chunk)) if chunk.dtype.hasobject else int(chunk.nbytes)


def _to_image(image: Any, layout: str) -> bytes | NDArray[np.uint8]:
    if layout == "items":
        shape = tuple(image.shape)
        return image.tobytes() if len(shape) == 1 else to_pixels(image, layout_of(shape) or "HWC")
    return to_bytes(image) if layout == "bytes" else to_pixels(image, layout)


def _chunk_rows(array: Any) -> int:
    """Return the number of rows of a chunk; 1 without chunks."""
    chunks = getattr(array, "chunks", None)
    return max(1, min(int(chunks[0]), int(array.shape[0]))) if chunks else 1


class NumpySource(ArraySource):
    """A ``.npy`` file with images, or a ``.npz`` file with images and labels. Nothing is unpickled.

    Each worker decompresses a compressed ``.npz`` into its memory.
    """

    kind = "numpy"

    def open(self) -> Contents:
        contents = Contents()
        with as_read_error(f"{self.path} cannot be read as NumPy", *_NUMPY_ERRORS):
            content = map_file(self.path)
            if bytes(content[:6]) == b"\x93NUMPY":
                _add(contents, "images", partial(_array, content, str(self.path)), inside="")
                return contents
            with zipfile.ZipFile(self.path) as archive:
                for info in archive.infolist():
                    name = info.filename.removesuffix(".npy")
                    if name == info.filename:
                        contents.unusable.append(Unusable("member", name, "is not an array (.npy)"))
                        continue
                    if name in contents.arrays:
                        raise SourceError(f"{self.path} has two arrays named {name!r}: save it again")
                    _add(contents, name, partial(self._member, archive, info, content))
        return contents

    def _member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, content: memoryview) -> Any:
        """Return an array of a ``.npz`` file: without a copy if it is stored uncompressed."""
        where = f"{self.path}: array {info.filename!r}"
        if info.compress_type == zipfile.ZIP_STORED:
            lengths = struct.unpack_from("<HH", content, info.header_offset + 26)
            start = info.header_offset + 30 + sum(lengths)
            return _array(content[start : start + info.file_size], where)
        if info.file_size > MAX_UNPACKED_BYTES:
            raise SourceError(
                f"{where} has {info.file_size:,} bytes when decompressed; allowed are {MAX_UNPACKED_BYTES:,}: save it "
                "with numpy.savez, which does not compress, or as .npy"
            )
        with archive.open(info) as member:
            return _array(memoryview(member.read(info.file_size)), where)


def _add(contents: Contents, name: str, read: Callable[[], Any], inside: str | None = None) -> None:
    """Add an array, unless it has objects."""
    try:
        contents.add(name, read(), inside)
    except codecs.ObjectsError:
        contents.refuse(
            name,
            "has objects, which are not read, because they are pickles, which can run code: save text as np.array(x, "
            "dtype=str), and rows of different lengths in a format such as HDF5",
        )


def _array(data: memoryview, where: str) -> Any:
    """Return the array in a ``.npy`` file, without a copy."""
    try:
        shape, fortran, dtype, start = codecs.npy_header(data)
    except codecs.ObjectsError:
        raise
    except ValueError as error:
        raise SourceError(f"{where}: {error}") from error
    array = np.frombuffer(data, dtype, math.prod(shape), start)
    return array.reshape(shape, order="F" if fortran else "C")


class ZarrSource(ArraySource):
    """A Zarr store in a local folder. A chunk is read once per worker and window, not once per image."""

    kind = "zarr"
    has_records = False
    why_missing = "Zarr leaves them out if all pixels have this value"
    whole = "store"

    def open(self) -> Contents:
        zarr = import_optional("zarr", "Zarr")
        for path in _walk(self.path):
            if path.name in _METADATA:
                _check_metadata(path)
        with as_read_error(f"{self.path} cannot be read as Zarr", KeyError, ValueError, TypeError, RuntimeError):
            node = zarr.open(self.path, mode="r")
            contents = Contents()
            with warnings.catch_warnings():  # about other files, which the account has
                warnings.filterwarnings("ignore", "Object at", UserWarning)
                members = [] if isinstance(node, zarr.Array) else sorted(node.members(max_depth=None))
            self._stored = {
                name: member for name, member in members or [("images", node)] if isinstance(member, zarr.Array)
            }
            self._nodes = {"", *(name for name, _ in members)}
            self._folders = self._stored.keys() if members else {""}
            for prefix, member in [("", node), *((f"{name}@", member) for name, member in members)]:
                for word, value in member.attrs.asdict().items():
                    contents.add_entry("attribute", f"{prefix}{word}", word, value)
            for name, array in self._stored.items():
                if array.dtype.kind == "O":
                    contents.refuse(
                        name, "has objects, which are not read, because they can be pickles, which can run code"
                    )
                else:  # the units of reading are its shards, or its chunks if it has none
                    chunks = getattr(array, "shards", None) or array.chunks
                    contents.add(name, Rows(array.shape, array.dtype, array.__getitem__, chunks))
        return contents

    def files(self) -> list[Path]:
        # `collect` identifies the chunks by name, length and modification time
        return sorted(path for path in _walk(self.path) if path.name in _METADATA)

    def why_left_out(self, path: str) -> str | None:
        folder, _, name = path.rpartition("/")
        parts = path.split("/")
        splits = (("/".join(parts[:level]), "/".join(parts[level:])) for level in range(len(parts)))
        is_chunk = any(array in self._folders and _CHUNK.fullmatch(chunk) for array, chunk in splits)
        is_metadata = name in (*_METADATA, ".zattrs") and folder in self._nodes
        return None if is_chunk or is_metadata else super().why_left_out(path)

    def collect(self, collector: Collector) -> None:
        super().collect(collector)
        digest = xxhash.xxh3_128()
        for path in sorted(_walk(self.path)):
            status = path.stat()
            name = os.fsencode(path.relative_to(self.path))
            digest.update(b"%s\0%d\0%d\n" % (name, status.st_size, status.st_mtime_ns))
        collector.stamp += digest.hexdigest()

    def missing_parts(self, name: str) -> str:
        if (array := self._stored.get(name)) is None:
            return ""
        unit = getattr(array, "shards", None)
        folder = self.path / array.path
        expected = math.prod(-(-size // part) for size, part in zip(array.shape, unit or array.chunks, strict=True))
        names = (path.relative_to(folder).as_posix() for path in _walk(folder))
        missing = expected - sum(map(bool, map(_CHUNK.fullmatch, names)))
        return f"{missing:,} of {expected:,} {'shards' if unit else 'chunks'}" if missing > 0 else ""


def _walk(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root, onerror=_raise):
        for name in names:
            yield Path(folder, name)


def _raise(error: OSError) -> None:
    """Raise an error that `os.walk` would ignore: without a part of the chunks, Zarr reads zeros."""
    raise SourceStoreError(f"{error.filename} cannot be listed: {error.strerror}") from error


def _check_metadata(path: Path) -> None:
    """Raise an error for codecs that may run code from the data."""
    with as_read_error(f"{path} is not Zarr metadata", ValueError, RecursionError):
        if path.stat().st_size > _MAX_METADATA_BYTES:
            raise SourceError(f"{path} has {path.stat().st_size:,} bytes; allowed are {_MAX_METADATA_BYTES:,}")
        unknown = set(_codecs(json.loads(path.read_bytes()))) - CODECS
    if unknown:
        raise SourceError(
            f"{path} names the codec {min(unknown)!r}, which may run code from the data; "
            f"allowed are {', '.join(sorted(CODECS))}"
        )


def _codecs(node: Any, *, inside: bool = False) -> Iterator[str]:
    """Yield the name of every codec in the metadata, at any depth."""
    if isinstance(node, dict):
        if inside:
            yield str(node.get("id") or node.get("name") or "").removeprefix("numcodecs.")
        for word, value in node.items():
            yield from _codecs(value, inside=word in ("codecs", "filters", "compressor", "index_codecs"))
    elif isinstance(node, list):
        for value in node:
            yield from _codecs(value, inside=inside)
    elif inside and isinstance(node, str):
        yield node


class TensorSource(ArraySource):
    """A file written by ``torch.save``; its tensors are memory-mapped."""

    kind = "tensors"

    def open(self) -> Contents:
        import torch  # noqa: PLC0415 - only this source needs torch

        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Validating sparse", UserWarning)
                is_zip = zipfile.is_zipfile(self.path)  # files by torch before 1.6 cannot be mapped
                content = torch.load(self.path, map_location="cpu", weights_only=True, mmap=is_zip)
        except Exception as error:  # torch.load raises many types of error for invalid files
            if is_system_error(error):
                raise SourceStoreError(f"{self.path} cannot be read: {error}") from error
            raise SourceError(
                f"{self.path} cannot be read as tensors: {_why_not_loaded(error)}; allowed are tensors, numbers and "
                "text in dictionaries, lists and tuples"
            ) from error
        contents = Contents()
        reader = _Tensors(contents, torch, str(self.path))
        if isinstance(content, (list, tuple)):
            content = reader.columns(content)
        reader.add("", content if isinstance(content, Mapping) else {"images": content})
        if not contents.arrays:
            raise SourceError(f"{self.path} contains no tensor of images; expected {{'images': ..., 'labels': ...}}")
        return contents


def _why_not_loaded(error: Exception) -> str:
    """Return why a file cannot be loaded: from torch's long advice, only the class that it does not create."""
    if match := _GLOBAL.search(str(error)):
        return f"it has objects of {match[1]}, which are not created, because a pickle can run code"
    return str(error).strip().partition("\n")[0][:200]


class _Tensors:
    """Adds what a file contains to its contents."""

    def __init__(self, contents: Contents, torch: Any, where: str) -> None:
        self._contents, self._torch, self._where = contents, torch, where

    def add(self, prefix: str, entries: Mapping[Any, Any]) -> None:
        """Add the entries of a dictionary, and the entries of dictionaries in it by their paths."""
        for key, value in entries.items():
            name = f"{prefix}{key}"
            if name in self._contents.arrays:
                raise SourceError(f"{self._where} has two entries with the name {name!r}: rename one of them")
            if self._is_pair(value):
                value = dict(zip(_PAIR, value, strict=True))  # noqa: PLW2901
            if isinstance(value, Mapping) and not names_in(value):
                self.add(f"{name}/", value)
                continue
            try:
                array = self._array(value)
            except SourceError as error:
                self._contents.refuse(name, error)
                continue
            if array is None:
                self._contents.add_entry("entry", name, name, value)
            else:
                self._contents.arrays[name] = array

    def _array(self, value: Any) -> Any | None:
        """Return a tensor, or a list, as an array; None for a single value."""
        if isinstance(value, self._torch.Tensor):
            return _as_numpy(value) if value.ndim else None
        return self._array_of(value) if isinstance(value, (list, tuple)) else None

    def _array_of(self, value: Sequence[Any]) -> Any:
        kinds = {type(item) for item in value}
        if kinds in ({int}, {float}, {bool}, {str}):
            return np.asarray(value)
        if kinds == {bytes}:
            return of_items([np.frombuffer(item, np.uint8) for item in value])
        if kinds == {self._torch.Tensor}:
            items = [_as_numpy(item) for item in value]
            return np.stack(items) if all(item.ndim == 0 for item in items) else of_items(items)
        if kinds and all(issubclass(kind, (list, tuple)) for kind in kinds):
            rows = [self._array(item) for item in value]
            if all(isinstance(row, np.ndarray) and row.dtype.kind in "iufb" for row in rows):
                return of_items(rows)
        if kinds <= {int, float}:
            return np.asarray(value, float)
        names = ", ".join(sorted(kind.__name__ for kind in kinds)) or "nothing"
        raise SourceError(
            f"is a {type(value).__name__} of {names}; only lists of tensors, of numbers and of text are read"
        )

    def columns(self, content: Sequence[Any]) -> dict[str, Any]:
        """Return a list at the top of a file as images and labels."""
        tensor = self._torch.Tensor
        if all(isinstance(item, Mapping) for item in content) and content:
            if len({frozenset(item) for item in content}) == 1:
                return {str(key): [item[key] for item in content] for key in content[0]}
        elif content and all(isinstance(item, (list, tuple)) and len(item) == len(_PAIR) for item in content):
            if all(isinstance(item[0], tensor) and not isinstance(item[1], (list, tuple, Mapping)) for item in content):
                return dict(zip(_PAIR, ([_as_number(item[at]) for item in content] for at in (0, 1)), strict=True))
        elif self._is_pair(content):
            return dict(zip(_PAIR, content, strict=True))
        elif len(content) == 1 and isinstance(content[0], tensor) and content[0].ndim > _IMAGE_AXES:
            return {"images": content[0]}
        elif len(content) > len(_PAIR) and all(
            isinstance(item, tensor) and item.ndim <= _IMAGE_AXES for item in content
        ):
            return {"images": list(content)}
        raise SourceError(
            f"{self._where} contains a {type(content).__name__} of {len(content)} values; allowed are images alone, "
            "(images, labels), a list of images, of pairs (image, label) or of dictionaries with equal keys: stack "
            "images with torch.stack, and save further values in a dictionary"
        )

    def _is_pair(self, value: Any) -> bool:
        """Return whether a value is a pair of several images and their labels."""
        if not isinstance(value, (list, tuple)) or len(value) != len(_PAIR):
            return False
        images, labels = value
        are_images = isinstance(images, self._torch.Tensor) and images.ndim >= _IMAGE_AXES
        are_labels = isinstance(labels, (list, tuple)) or getattr(labels, "ndim", 0) in (1, 2)
        return are_images and are_labels and len(images) == len(labels)


def _as_number(value: Any) -> Any:
    """Return a tensor of one value as a number."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _as_numpy(tensor: Any) -> Any:
    try:
        return tensor.detach().resolve_conj().resolve_neg().numpy()
    except (TypeError, RuntimeError) as error:  # NumPy lacks bfloat16 and smaller types, which fit into float32
        if str(tensor.layout) == "torch.strided" and tensor.is_floating_point():
            return tensor.detach().float().numpy()
        raise SourceError(f"is a tensor of {tensor.dtype} in the layout {tensor.layout}, which is not read") from error
