"""One shard's index: where each field of each sample is, its checksum, and what is known of the image. No I/O.

On disk it is a Parquet file, so pandas, DuckDB and Polars read it too; `docs/format.md` specifies it.
In memory each column is a numpy array, because the loader takes rows by the thousand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import ManifestError
from wds_tools.format.codecs import ImageInfo
from wds_tools.format.manifest import ShardEntry
from wds_tools.format.pages import memory_of
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.format.tar import BLOCK

FORMAT_VERSION = 1
NO_LABEL = np.iinfo(np.int64).min
ABSENT = -1
"""Offset of a field that a sample does not have."""

_METADATA_KEY = b"wds_tools"
_CHECKSUM = "xxh3"  # in the metadata: the manifest has one of the whole file, but not everyone reads a manifest
_TEXTS = ["key", "mode"]
_ROW_BYTES = 43  # in memory, of all columns that are no field's; texts by reference
_TEXT_BYTES = 49  # in memory, and the letters
_WORDS_AT_A_TIME = 10_000
_WORDS = pa.dictionary(pa.int32(), pa.string())
_LEAST_MEMORY = 64 << 20  # that any index may take
_MEMORY_OF_BYTE = 512  # and for each byte of its file; usual are 20
_JPEG_COLUMNS = {
    "restart": np.int32,
    "mcu_width": np.int8,
    "mcu_height": np.int8,
}  # absent in indexes of before there was `transcode`
_NUMBERS = {"width": np.int32, "height": np.int32, "orientation": np.int8, **_JPEG_COLUMNS}


@dataclass(frozen=True, slots=True)
class FieldColumns:
    """One field of every sample of a shard.

    Attributes:
        offset: int64 [n], first byte in the shard, `ABSENT` where the sample lacks the field.
        size: int64 [n], bytes.
        xxh3: uint64 [n], XXH3-64 of the bytes, seed 0.
    """

    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    xxh3: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Index:
    """The index of one shard of n samples.

    Attributes:
        shard: Name of the shard.
        shard_bytes: Its length.
        shard_xxh3: XXH3-128 of the whole shard, 32 hexadecimal digits.
        keys: n keys.
        fields: Field name to its columns.
        label: int64 [n], class number, `NO_LABEL` where there is none.
        width: int32 [n], pixels as shown (orientation applied), 0 where there is no image.
        height: int32 [n].
        mode: n Pillow modes, ``""`` where there is no image.
        orientation: int8 [n], EXIF orientation, 1 to 8.
        restart: int32 [n], MCUs between the restart markers along which a JPEG can be cut, 0 where it cannot.
        mcu_width: int8 [n], pixels of a JPEG's MCU as stored, which tells its sampling; 0 for others.
        mcu_height: int8 [n].
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

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def memory_bytes(self) -> int:
        """About how much memory it takes."""
        row = _ROW_BYTES + 24 * len(self.fields)
        return row * len(self) + sum(_TEXT_BYTES + len(key) for key in set(self.keys))

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the bytes (start, stop) of the shard that hold all fields of samples ``start`` to ``stop``."""
        first, last = self.shard_bytes, 0
        for columns in self.fields.values():
            offset, size = columns.offset[start:stop], columns.size[start:stop]
            there = offset != ABSENT
            if there.any():
                first = min(first, int(offset[there].min()))
                last = max(last, int((offset[there] + size[there]).max()))
        return (first, last) if last else (0, 0)


@dataclass(slots=True)
class IndexBuilder:
    """Collects the rows of an index while its shard is written or scanned."""

    keys: list[str] = field(default_factory=list)
    places: list[dict[str, tuple[int, int, int]]] = field(default_factory=list)
    labels: list[int | None] = field(default_factory=list)
    images: list[ImageInfo | None] = field(default_factory=list)

    def add(
        self,
        key: str,
        places: dict[str, tuple[int, int, int]],
        label: int | None = None,
        image: ImageInfo | None = None,
    ) -> None:
        """Add a sample: per field (offset, size, xxh3), its class number and what its image's header says."""
        self.keys.append(key)
        self.places.append(places)
        self.labels.append(label)
        self.images.append(image)

    def build(self, *, shard: str, shard_bytes: int, shard_xxh3: str) -> Index:
        """Return the index of the finished shard."""
        names = list(dict.fromkeys(name for row in self.places for name in row))
        nowhere = (ABSENT, 0, 0)
        fields = {}
        for name in names:
            offset, size, xxh3 = zip(*(row.get(name, nowhere) for row in self.places), strict=True)
            fields[name] = FieldColumns(np.array(offset, np.int64), np.array(size, np.int64), np.array(xxh3, np.uint64))
        return Index(
            shard=shard,
            shard_bytes=shard_bytes,
            shard_xxh3=shard_xxh3,
            keys=self.keys,
            fields=fields,
            label=np.array([NO_LABEL if label is None else label for label in self.labels], np.int64),
            width=np.array([image.width if image else 0 for image in self.images], np.int32),
            height=np.array([image.height if image else 0 for image in self.images], np.int32),
            mode=[image.mode if image else "" for image in self.images],
            orientation=np.array([image.orientation if image else 1 for image in self.images], np.int8),
            restart=np.array([image.restart if image else 0 for image in self.images], np.int32),
            mcu_width=np.array([image.mcu_width if image else 0 for image in self.images], np.int8),
            mcu_height=np.array([image.mcu_height if image else 0 for image in self.images], np.int8),
        )


def index_name(shard: str) -> str:
    """Return the name of a shard's index.

    >>> index_name("shard-000000.tar")
    'shard-000000.parquet'
    """
    return shard.removesuffix(".tar") + ".parquet"


def shard_entry(shard: str, index: bytes, *, samples: int, shard_bytes: int, shard_xxh3: str) -> ShardEntry:
    """Return the manifest's entry for a shard and its index, which is stored beside it as these bytes."""
    return ShardEntry(
        name=shard,
        samples=samples,
        bytes=shard_bytes,
        xxh3=shard_xxh3,
        index=index_name(shard),
        index_bytes=len(index),
        index_xxh3=xxhash.xxh3_128_hexdigest(index),
    )


def to_bytes(index: Index) -> bytes:
    """Write an index as a Parquet file."""
    columns = {"key": _texts(index.keys)}
    for name, part in index.fields.items():
        there = part.offset != ABSENT
        columns[f"{name}.offset"] = _numbers(part.offset, there)
        columns[f"{name}.size"] = _numbers(part.size, there)
        columns[f"{name}.xxh3"] = _numbers(part.xxh3, there)
    columns["label"] = _numbers(index.label, index.label != NO_LABEL)
    columns["width"] = _numbers(index.width)
    columns["height"] = _numbers(index.height)
    columns["mode"] = _texts(index.mode)
    for name in ("orientation", *_JPEG_COLUMNS):
        columns[name] = _numbers(getattr(index, name))
    about = {
        "version": FORMAT_VERSION,
        "shard": index.shard,
        "shard_bytes": index.shard_bytes,
        "shard_xxh3": index.shard_xxh3,
        "fields": list(index.fields),
        _CHECKSUM: content_checksum(index),
    }
    return _write(pa.table(columns), about)


def content_checksum(index: Index) -> str:
    """Return the XXH3-128 of what an index says, which does not depend on how Parquet stores it."""
    digest = xxhash.xxh3_128()
    for words in ([index.shard, str(index.shard_bytes), index.shard_xxh3, *index.fields], index.keys, index.mode):
        for start in range(0, len(words), _WORDS_AT_A_TIME):
            digest.update("".join(f"{word}\n" for word in words[start : start + _WORDS_AT_A_TIME]).encode())
    for part in index.fields.values():
        there = part.offset != ABSENT
        for column, dtype in ((part.offset, "<i8"), (part.size * there, "<i8"), (part.xxh3 * there, "<u8")):
            digest.update(column.astype(dtype).tobytes())
    digest.update(index.label.astype("<i8").tobytes())
    for name, its_type in _NUMBERS.items():
        digest.update(getattr(index, name).astype(np.dtype(its_type).newbyteorder("<")).tobytes())
    return digest.hexdigest()


# Not pa.array(): it imports pandas where that is installed, 0.2 s in every process that packs.
def _numbers(values: NDArray[Any], there: NDArray[np.bool_] | None = None) -> Any:
    """Return a column; where not ``there``, it is null."""
    valid = None if there is None or there.all() else pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, pa.py_buffer(values)])


def _texts(values: list[str]) -> Any:
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))


def _write(table: Any, about: dict[str, Any]) -> bytes:
    table = table.replace_schema_metadata({_METADATA_KEY: json.dumps(about)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", row_group_size=1 << 20)
    return bytes(sink.getvalue().to_pybytes())


def from_bytes(data: bytes, *, name: str, samples: int | None = None) -> Index:
    """Read an index and check that every field lies inside its shard.

    Args:
        data: The file.
        name: Where it is from, for error messages.
        samples: How many it should have, where a manifest says so: another number is found before they are read.

    Raises:
        ManifestError: Not an index, of another version, of another number of samples, or with places outside the
            shard.
    """
    try:
        _check_memory(data)
        file = pq.ParquetFile(pa.BufferReader(data))
        about = json.loads(file.schema_arrow.metadata[_METADATA_KEY])
        version = about["version"]
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ManifestError(
            f"{name} is no index of wds_tools ({_one_line(error)}): make it again with `wds-tools index`"
        ) from error
    if version != FORMAT_VERSION:
        raise ManifestError(
            f"{name} is an index of version {version!r}, this release reads {FORMAT_VERSION}: "
            "make it again with `wds-tools index`"
        )
    try:
        _check_rows(file.metadata.num_rows, about, samples)
        known = _columns_of(file, about)
        # Not pq.read_table(): that starts threads, which a fork would lose, and takes four times as long
        file = pq.ParquetFile(pa.BufferReader(data), metadata=file.metadata, read_dictionary=_TEXTS)
        index = _from_table(file.read(columns=known, use_threads=False), about)
        _check_values(index)
        _check_texts(index, data)
        checksum = content_checksum(index)
        if about.get(_CHECKSUM, checksum) != checksum:  # indexes of before there was one have none
            raise ValueError(f"its checksum is {checksum}, it says {about[_CHECKSUM]!r}: it was damaged")
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise ManifestError(
            f"{name} breaks the format of an index ({type(error).__name__} {_one_line(error)}): "
            "make it again with `wds-tools index`"
        ) from error
    _check_places(index, name)
    return index


def _check_memory(data: bytes) -> None:
    """Refuse an index that takes far more memory than its file explains, before it is read."""
    memory, allowed = memory_of(data), _allowed_bytes(data)
    if memory > allowed:
        raise ValueError(f"its {len(data):,} bytes would become {memory:,} in memory; allowed are {allowed:,}")


def _check_texts(index: Index, data: bytes) -> None:
    """Refuse texts that are short only because many rows share them: whoever writes or hashes them has them all."""
    letters, allowed = sum(map(len, index.keys)) + sum(map(len, index.mode)), _allowed_bytes(data)
    if letters > allowed:
        raise ValueError(f"its {len(data):,} bytes have {letters:,} letters of keys and modes; allowed are {allowed:,}")


def _allowed_bytes(data: bytes) -> int:
    return _LEAST_MEMORY + _MEMORY_OF_BYTE * len(data)


def _check_rows(rows: int, about: dict[str, Any], samples: int | None) -> None:
    """Refuse more samples than the shard or the manifest explain."""
    shard_bytes, fields = about["shard_bytes"], about["fields"]
    if type(shard_bytes) is not int or not 0 <= shard_bytes < 2**63:
        raise ValueError(f"shard_bytes is {shard_bytes!r}")
    if samples is not None and rows != samples:
        raise ValueError(f"it has {rows:,} samples, and the manifest says {samples:,}")
    if rows > shard_bytes // BLOCK:
        raise ValueError(f"it has {rows:,} samples, and its shard {shard_bytes:,} bytes: each takes {BLOCK} at least")
    if len(set(fields)) < len(fields):
        raise ValueError("a field is named twice")


def _columns_of(file: Any, about: dict[str, Any]) -> list[str]:
    """Return the columns to read: others may be there, of any size."""
    known = [f"{field}.{part}" for field in about["fields"] for part in ("offset", "size", "xxh3")]
    known += [*_TEXTS, "label", "width", "height", "orientation", *_JPEG_COLUMNS]
    there = set(file.schema_arrow.names)
    return [name for name in known if name in there]


def rename(data: bytes, *, name: str, shard: str) -> bytes:
    """Return an index, as bytes, for the same shard under another name; columns that we do not know are kept.

    Args:
        data: An index that `from_bytes` takes.
        name: Where it is from, for error messages.
        shard: The new name of the shard.

    Raises:
        ManifestError: Not an index.
    """
    index = from_bytes(data, name=name)
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    about = json.loads(table.schema.metadata[_METADATA_KEY])
    return _write(table, {**about, "shard": shard, _CHECKSUM: content_checksum(replace(index, shard=shard))})


def _one_line(error: BaseException) -> str:
    """Arrow writes several lines."""
    return " ".join(str(error).split())


def _from_table(table: Any, about: dict[str, Any]) -> Index:
    def numbers(column: str, dtype: Any, absent: int = 0) -> NDArray[Any]:
        # cast() refuses what does not fit, where numpy's astype would wrap it
        whole = table.column(column).cast(pa.from_numpy_dtype(dtype)).combine_chunks()
        # Not to_numpy() and fill_null(): they import pandas where it is installed, 0.2 s in every worker.
        if whole.null_count:
            return np.array([absent if value is None else value for value in whole.to_pylist()], dtype)
        return np.from_dlpack(whole)

    def known_or_zero(column: str, dtype: Any) -> NDArray[Any]:
        return numbers(column, dtype) if column in table.column_names else np.zeros(len(table), dtype)

    def texts(column: str) -> list[str]:
        if table.column(column).null_count:
            raise ValueError(f"column {column!r} has rows without a value")
        made: list[str] = []
        for chunk in table.column(column).cast(_WORDS).chunks:  # rows of the same text share it
            chunk.validate(full=True)  # Arrow takes the numbers of words from the file as they are
            words = chunk.dictionary.to_pylist()
            made += [words[number] for number in chunk.indices.to_pylist()]
        return made

    return Index(
        shard=about["shard"],
        shard_bytes=about["shard_bytes"],
        shard_xxh3=about["shard_xxh3"],
        keys=texts("key"),
        fields={
            name: FieldColumns(
                numbers(f"{name}.offset", np.int64, ABSENT),
                numbers(f"{name}.size", np.int64),
                numbers(f"{name}.xxh3", np.uint64),
            )
            for name in about["fields"]
        },
        label=numbers("label", np.int64, NO_LABEL),
        width=numbers("width", np.int32),
        height=numbers("height", np.int32),
        mode=texts("mode"),
        orientation=numbers("orientation", np.int8, 1),
        **{name: known_or_zero(name, dtype) for name, dtype in _JPEG_COLUMNS.items()},
    )


def _check_values(index: Index) -> None:
    if not isinstance(index.shard, str) or not isinstance(index.shard_xxh3, str):
        raise TypeError(f"the shard is {index.shard!r} with checksum {index.shard_xxh3!r}")
    if np.any(index.width < 0) or np.any(index.height < 0):
        raise ValueError("an image has a negative size")
    if np.any(index.orientation < 1) or np.any(index.orientation > 8):
        raise ValueError("an orientation is not 1 to 8")
    if any(np.any(getattr(index, name) < 0) for name in _JPEG_COLUMNS):
        raise ValueError("an image has a negative restart interval or MCU")


def _check_places(index: Index, name: str) -> None:
    for field_name, part in index.fields.items():
        there = part.offset != ABSENT
        # Compared without adding, so that a hostile size cannot overflow.
        bad = there & ((part.offset < 0) | (part.size < 0) | (part.size > index.shard_bytes - part.offset))
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise ManifestError(
                f"{name}: field {field_name!r} is said to be {part.size[row]:,} bytes at {part.offset[row]:,} "
                f"of a shard of {index.shard_bytes:,}: make the index again with `wds-tools index`",
                shard=index.shard,
                key=index.keys[row],
            )


def image_field(index: Index) -> list[str]:
    """Return the image fields that this shard has, in order of preference."""
    return [name for name in IMAGE_FIELDS if name in index.fields]
