"""The index of a shard: location and checksum of each field, label and image size of each sample. No I/O.

On disk an index is a Parquet file, which pandas, DuckDB and Polars can read; `docs/format.md`
specifies it. In memory each column is a numpy array, because the loader reads many rows at once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import ManifestError
from wds_tools.format.manifest import ShardEntry
from wds_tools.format.pages import memory_of
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.format.tar import BLOCK
from wds_tools.wording import one_line

FORMAT_VERSION = 1
NO_LABEL = np.iinfo(np.int64).min
ABSENT = -1
"""Offset of a field that a sample does not have."""

METADATA_KEY = b"wds_tools"
"""Key of the metadata of the Parquet file that describes the index."""

CHECKSUM = "xxh3"  # in the metadata, because an index may be read without the manifest and its checksums
_TEXT_COLUMNS = ["key", "mode"]
_REQUIRED = frozenset({*_TEXT_COLUMNS, "label", "width", "height", "orientation"})
_ROW_BYTES = 43  # memory of a row without the columns of fields; texts count as references
_TEXT_BYTES = 49  # memory of a text without its characters
_TEXTS_PER_UPDATE = 10_000
_DICTIONARY_TEXT = pa.dictionary(pa.int32(), pa.string())
_MIN_ALLOWED_MEMORY = 64 << 20  # any index may take this much
_MEMORY_PER_FILE_BYTE = 512  # allowed in addition for each byte of the file; 20 is typical
_JPEG_COLUMNS = {"restart": np.int32, "mcu_width": np.int8, "mcu_height": np.int8}  # older indexes lack them
_IMAGE_COLUMNS = {"width": np.int32, "height": np.int32, "orientation": np.int8, **_JPEG_COLUMNS}


@dataclass(frozen=True, slots=True)
class FieldColumns:
    """The columns of one field, with a row for each of the n samples of a shard.

    Attributes:
        offset: int64 [n], offset of the field's first byte in the shard, `ABSENT` if the sample
            lacks the field.
        size: int64 [n], length in bytes.
        xxh3: uint64 [n], XXH3-64 of the bytes, seed 0.
        header: int32 [n], bytes of the tar headers before the field; None if all have one block and members follow
            each other, and for an index that was read from a file: `index_edit.header_bytes` reads it.
    """

    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    xxh3: NDArray[np.uint64]
    header: NDArray[np.int32] | None = None


@dataclass(frozen=True, slots=True)
class Index:
    """The index of one shard of n samples.

    Attributes:
        shard_bytes: Length of the shard in bytes.
        shard_xxh3: XXH3-128 of the whole shard, 32 hexadecimal digits.
        fields: Field name to the columns of the field.
        label: int64 [n], class number, `NO_LABEL` for a sample without a label.
        width: int32 [n], width in pixels after the EXIF orientation is applied, 0 without an image.
        height: int32 [n], height in pixels after the EXIF orientation is applied, 0 without an image.
        mode: Pillow modes of the n images, ``""`` without an image.
        orientation: int8 [n], EXIF orientation, 1 to 8.
        restart: int32 [n], MCUs between two restart markers if a JPEG can be cropped along them,
            otherwise 0.
        mcu_width: int8 [n], width in pixels of a JPEG's MCU as stored, which depends on its chroma
            subsampling; 0 for other types.
        mcu_height: int8 [n], height in pixels of a JPEG's MCU as stored; 0 for other types.
    """

    shard: str
    shard_bytes: int
    shard_xxh3: str
    keys: list[str]
    fields: dict[str, FieldColumns]
    label: NDArray[np.int64]
    width: NDArray[np.int32]
    height: NDArray[np.int32]
    mode: list[str]
    orientation: NDArray[np.int8]
    restart: NDArray[np.int32]
    mcu_width: NDArray[np.int8]
    mcu_height: NDArray[np.int8]
    columns: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def memory_bytes(self) -> int:
        """Estimated size of the index in memory."""
        row = _ROW_BYTES + 24 * len(self.fields)
        return row * len(self) + sum(_TEXT_BYTES + len(key) for key in set(self.keys))

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the byte range (start, stop) that holds all fields of samples ``start`` to ``stop``."""
        first, last = self.shard_bytes, 0
        for columns in self.fields.values():
            offset, size = columns.offset[start:stop], columns.size[start:stop]
            present = offset != ABSENT
            if present.any():
                first = min(first, int(offset[present].min()))
                last = max(last, int((offset[present] + size[present]).max()))
        return (first, last) if last else (0, 0)


def index_name(shard: str) -> str:
    """Return the file name of a shard's index.

    >>> index_name("shard-000000.tar")
    'shard-000000.parquet'
    """
    return shard.removesuffix(".tar") + ".parquet"


def index_names(shard: str) -> tuple[str, str]:
    """Return the file names that an index may have: the second, if another tool has a file with the first.

    >>> index_names("00000.tar")
    ('00000.parquet', '00000.index.parquet')
    """
    return index_name(shard), shard.removesuffix(".tar") + ".index.parquet"


def shard_entry(
    shard: str, index: bytes, *, samples: int, shard_bytes: int, shard_xxh3: str, name: str | None = None
) -> ShardEntry:
    """Return the manifest's entry for a shard and its index, which is stored next to it as these bytes.

    ``name`` is the file name of the index; None takes `index_name`.
    """
    return ShardEntry(
        name=shard,
        samples=samples,
        bytes=shard_bytes,
        xxh3=shard_xxh3,
        index=name or index_name(shard),
        index_bytes=len(index),
        index_xxh3=xxhash.xxh3_128_hexdigest(index),
    )


def to_bytes(index: Index) -> bytes:
    """Encode an index as a Parquet file."""
    columns = {"key": text_array(index.keys)}
    for name, part in index.fields.items():
        present = part.offset != ABSENT
        columns[f"{name}.offset"] = number_array(part.offset, present)
        columns[f"{name}.size"] = number_array(part.size, present)
        columns[f"{name}.xxh3"] = number_array(part.xxh3, present)
        if part.header is not None:
            columns[f"{name}.header"] = number_array(part.header, present)
    columns["label"] = number_array(index.label, index.label != NO_LABEL)
    columns["width"] = number_array(index.width)
    columns["height"] = number_array(index.height)
    columns["mode"] = text_array(index.mode)
    for name in ("orientation", *_JPEG_COLUMNS):
        columns[name] = number_array(getattr(index, name))
    metadata = {
        "version": FORMAT_VERSION,
        "shard": index.shard,
        "shard_bytes": index.shard_bytes,
        "shard_xxh3": index.shard_xxh3,
        "fields": list(index.fields),
        CHECKSUM: content_checksum(index),
    }
    return write_table(pa.table(columns), metadata)


def content_checksum(index: Index) -> str:
    """Return the XXH3-128 of the values of an index, which does not depend on their storage in Parquet."""
    digest = xxhash.xxh3_128()
    for texts in ([index.shard, str(index.shard_bytes), index.shard_xxh3, *index.fields], index.keys, index.mode):
        for start in range(0, len(texts), _TEXTS_PER_UPDATE):
            digest.update("".join(f"{text}\n" for text in texts[start : start + _TEXTS_PER_UPDATE]).encode())
    for part in index.fields.values():
        present = part.offset != ABSENT
        for column, dtype in ((part.offset, "<i8"), (part.size * present, "<i8"), (part.xxh3 * present, "<u8")):
            digest.update(column.astype(dtype).tobytes())
    digest.update(index.label.astype("<i8").tobytes())
    for name, column_type in _IMAGE_COLUMNS.items():
        digest.update(getattr(index, name).astype(np.dtype(column_type).newbyteorder("<")).tobytes())
    return digest.hexdigest()


# pa.array() would import pandas if it is installed, which takes 0.2 s in every process that packs.
def number_array(values: NDArray[Any], present: NDArray[np.bool_] | None = None) -> Any:
    """Return an Arrow array that is null where ``present`` is False."""
    valid = None if present is None or present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, pa.py_buffer(values)])


def text_array(values: Sequence[str | None]) -> Any:
    """Return an Arrow array of strings, which is null for None."""
    encoded = [(value or "").encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    present = np.array([value is not None for value in values], np.bool_)
    valid = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)), valid)


def write_table(table: Any, metadata: dict[str, Any]) -> bytes:
    """Encode the columns of an index and the JSON object that describes it."""
    table = table.replace_schema_metadata({METADATA_KEY: json.dumps(metadata)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=1 << 20)
    return bytes(sink.getvalue().to_pybytes())


def from_bytes(data: bytes, *, name: str, samples: int | None = None) -> Index:
    """Decode an index and check that every field lies inside its shard.

    Raises:
        ManifestError: The data is not an index, is damaged, is of another version or number of
            samples, or has a field outside the shard.
    """
    file, metadata = _open(data, name)
    try:
        _check_rows(file.metadata.num_rows, metadata, samples)
        columns = _columns_to_read(file, metadata)
        # pq.read_table() takes four times as long, and starts threads, which a fork would lose.
        file = pq.ParquetFile(pa.BufferReader(data), metadata=file.metadata, read_dictionary=_TEXT_COLUMNS)
        index = _from_table(file.read(columns=columns, use_threads=False), metadata)
        _check_values(index)
        _check_texts(index, data)
        checksum = content_checksum(index)
        if metadata.get(CHECKSUM, checksum) != checksum:  # older indexes have no checksum
            raise ValueError(f"its checksum is {checksum}, but it records {metadata[CHECKSUM]!r}: it was damaged")
    except _FORMAT_ERRORS as error:
        raise _breaks_format(name, error) from error
    _check_ranges(index, name)
    return index


def stored_columns(data: bytes, names: Collection[str], *, name: str, samples: int) -> tuple[pa.Table, list[str]]:
    """Return some columns of an index as they are stored, without the others, which are neither read nor checked.

    Returns:
        The columns, and the names of all further columns, see `Index.columns`.
    """
    file, metadata = _open(data, name, names)
    try:
        _check_rows(file.metadata.num_rows, metadata, samples)
        if missing := _REQUIRED.intersection(names).difference(file.schema_arrow.names):
            raise KeyError(min(missing))
        table = file.read(columns=[stored for stored in file.schema_arrow.names if stored in names], use_threads=False)
        for column in table.columns:
            column.validate(full=True)
        return table, [str(stored) for stored in metadata.get("columns", ())]
    except _FORMAT_ERRORS as error:
        raise _breaks_format(name, error) from error


_FORMAT_ERRORS = (pa.ArrowException, OSError, KeyError, TypeError, ValueError)


def _breaks_format(name: str, error: Exception) -> ManifestError:
    return ManifestError(
        f"{name} breaks the format of an index ({type(error).__name__} {one_line(error)}): "
        "rebuild it with `wds-tools index`"
    )


def _open(data: bytes, name: str, columns: Collection[str] | None = None) -> tuple[Any, dict[str, Any]]:
    """Return the Parquet file of an index, of which only the footer was read, and its metadata.

    ``columns``: the only ones that will be read; None for all.
    """
    try:
        _check_memory(data, columns)
        file = pq.ParquetFile(pa.BufferReader(data))
        metadata = json.loads(file.schema_arrow.metadata[METADATA_KEY])
        version = metadata["version"]
    except (*_FORMAT_ERRORS, RecursionError) as error:
        raise ManifestError(
            f"{name} is not an index of wds_tools ({one_line(error)}): rebuild it with `wds-tools index`"
        ) from error
    if version != FORMAT_VERSION:
        raise ManifestError(
            f"{name} is an index of version {version!r}; this release reads {FORMAT_VERSION}: "
            "rebuild it with `wds-tools index`"
        )
    return file, metadata


def _check_memory(data: bytes, columns: Collection[str] | None) -> None:
    """Refuse an index that would take far more memory than its file size justifies, before it is read."""
    memory, allowed = memory_of(data, columns), _allowed_memory(data)
    if memory > allowed:
        raise ValueError(f"its {len(data):,} bytes would become {memory:,} in memory; allowed are {allowed:,}")


def _check_texts(index: Index, data: bytes) -> None:
    """Refuse texts that are small only because rows share them: writing or hashing expands them."""
    characters, allowed = sum(map(len, index.keys)) + sum(map(len, index.mode)), _allowed_memory(data)
    if characters > allowed:
        raise ValueError(
            f"its {len(data):,} bytes have {characters:,} characters of keys and modes; allowed are {allowed:,}"
        )


def _allowed_memory(data: bytes) -> int:
    return _MIN_ALLOWED_MEMORY + _MEMORY_PER_FILE_BYTE * len(data)


def _check_rows(rows: int, metadata: dict[str, Any], samples: int | None) -> None:
    """Refuse a number of samples that is not the expected one, and more samples than fit in the shard."""
    shard_bytes, fields = metadata["shard_bytes"], metadata["fields"]
    if type(shard_bytes) is not int or not 0 <= shard_bytes < 2**63:
        raise ValueError(f"shard_bytes is {shard_bytes!r}")
    if samples is not None and rows != samples:
        raise ValueError(f"it has {rows:,} samples, but the manifest records {samples:,}")
    if rows > shard_bytes // BLOCK:
        raise ValueError(
            f"it has {rows:,} samples, but its shard has {shard_bytes:,} bytes: a sample takes at least {BLOCK}"
        )
    if len(set(fields)) < len(fields):
        raise ValueError("a field is listed twice")


def _columns_to_read(file: Any, metadata: dict[str, Any]) -> list[str]:
    """Return the known columns that the file has; unknown columns may be of any size and are not read."""
    columns_known = [f"{field}.{part}" for field in metadata["fields"] for part in ("offset", "size", "xxh3")]
    columns_known += [*_TEXT_COLUMNS, "label", "width", "height", "orientation", *_JPEG_COLUMNS]
    available = set(file.schema_arrow.names)
    return [name for name in columns_known if name in available]


def _from_table(table: Any, metadata: dict[str, Any]) -> Index:
    def numbers(column: str, dtype: Any, absent: int = 0) -> NDArray[Any]:
        # cast() raises an error for values out of range; numpy's astype() would wrap around.
        values = _cast(table.column(column), pa.from_numpy_dtype(dtype)).combine_chunks()
        # to_numpy() and fill_null() would import pandas if it is installed, 0.2 s in every worker.
        if values.null_count:
            return np.array([absent if value is None else value for value in values.to_pylist()], dtype)
        return np.from_dlpack(values)

    def numbers_or_zeros(column: str, dtype: Any) -> NDArray[Any]:
        return numbers(column, dtype) if column in table.column_names else np.zeros(len(table), dtype)

    def texts(column: str) -> list[str]:
        if table.column(column).null_count:
            raise ValueError(f"column {column!r} has rows without a value")
        result: list[str] = []
        for chunk in _cast(table.column(column), _DICTIONARY_TEXT).chunks:  # rows with equal texts share one string
            chunk.validate(full=True)  # Arrow does not check the dictionary indices when it reads the file
            dictionary = chunk.dictionary.to_pylist()
            result += [dictionary[code] for code in chunk.indices.to_pylist()]
        return result

    return Index(
        shard=metadata["shard"],
        shard_bytes=metadata["shard_bytes"],
        shard_xxh3=metadata["shard_xxh3"],
        keys=texts("key"),
        fields={
            name: FieldColumns(
                numbers(f"{name}.offset", np.int64, ABSENT),
                numbers(f"{name}.size", np.int64),
                numbers(f"{name}.xxh3", np.uint64),
            )
            for name in metadata["fields"]
        },
        label=numbers("label", np.int64, NO_LABEL),
        width=numbers("width", np.int32),
        height=numbers("height", np.int32),
        mode=texts("mode"),
        orientation=numbers("orientation", np.int8, 1),
        **{name: numbers_or_zeros(name, dtype) for name, dtype in _JPEG_COLUMNS.items()},
        columns=tuple(metadata.get("columns", ())),
    )


def _cast(column: Any, kind: Any) -> Any:
    """Return a column in a type; a cast imports pyarrow.compute, which takes long, even if the column has that type."""
    return column if column.type == kind else column.cast(kind)


def _check_values(index: Index) -> None:
    if not isinstance(index.shard, str) or not isinstance(index.shard_xxh3, str):
        raise TypeError(f"shard is {index.shard!r} and shard_xxh3 is {index.shard_xxh3!r}; both must be text")
    if not all(isinstance(name, str) for name in index.columns):
        raise TypeError(f"columns are {index.columns!r}; allowed are names")
    if np.any(index.width < 0) or np.any(index.height < 0):
        raise ValueError("an image has a negative size")
    if np.any(index.orientation < 1) or np.any(index.orientation > 8):
        raise ValueError("an orientation is not in the range 1 to 8")
    if any(np.any(getattr(index, name) < 0) for name in _JPEG_COLUMNS):
        raise ValueError("an image has a negative restart interval or MCU size")


def _check_ranges(index: Index, name: str) -> None:
    """Check that every field lies inside the shard."""
    for field_name, part in index.fields.items():
        present = part.offset != ABSENT
        # offset + size could overflow for hostile values.
        bad = present & ((part.offset < 0) | (part.size < 0) | (part.size > index.shard_bytes - part.offset))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise ManifestError(
                f"{name} locates field {field_name!r} outside the shard: {part.size[row]:,} bytes at "
                f"{part.offset[row]:,}, but the shard has {index.shard_bytes:,}: "
                "rebuild the index with `wds-tools index`",
                shard=index.shard,
                key=index.keys[row],
            )


def image_field(index: Index) -> list[str]:
    """Return the image fields of a shard, in order of preference."""
    return [name for name in IMAGE_FIELDS if name in index.fields]
