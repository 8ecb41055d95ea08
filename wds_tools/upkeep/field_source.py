"""Values of new fields by key, sorted by shard: from Parquet, CSV, JSON Lines, folders, tar shards, or Python."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wds_tools.errors import MissingSourceError, OptionError, SampleError, ShardError, SourceError
from wds_tools.format.manifest import MANIFEST_NAME
from wds_tools.format.sample import split_name
from wds_tools.packing.encode import encode_field
from wds_tools.sources.arrow import is_parquet
from wds_tools.sources.base import as_source_error
from wds_tools.sources.columns import field_name, is_text_field, plain_name
from wds_tools.sources.files import TarFiles, find_files, is_tar
from wds_tools.sources.text_table import TextTable
from wds_tools.sources.webdataset import samples
from wds_tools.storage.patterns import has_pattern
from wds_tools.wording import broken_url_remedy

KeyedFields = tuple[str, dict[str, bytes]]
"""Key of a sample, and its new fields."""

_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
_CHUNK_BYTES = 1 << 20  # of a table whose lines are counted
_OTHER = pa.bool_()  # stands for values that are neither text nor lists of numbers, or of several types
_ROWS = 1000  # of a Parquet file that are converted at once


def keyed_fields(source: Any, *, key: str, fields: Mapping[str, str]) -> Iterator[KeyedFields]:
    """Yield the new fields of each sample, in the order of the source.

    Args:
        source: Path of a Parquet, CSV, TSV or JSON Lines file, of a folder of them or of files KEY.FIELD, or of tar
            shards; or an iterable of dictionaries with ``__key__``, as `ShardWriter` takes them.
        key: Column of the key, in tables.
        fields: Column of each field, in tables, or its name in files and shards; empty takes all.

    Raises:
        MissingSourceError: The source does not exist.
        SourceError: The source cannot be read, or has no column of keys.
        OptionError: An object that is not a source.
    """
    if not isinstance(source, (str, Path)):
        return _from_python(source, fields)
    path = Path(source)
    if not path.exists() and not has_pattern(str(source)):
        missing = f"{source} cannot be read: no such file or folder; check the path"
        raise MissingSourceError(broken_url_remedy(str(source)) or missing)
    kind = _kind(path)
    if kind == "table":
        return _from_table(path, key, fields)
    if kind == "parquet":
        return _from_parquet(path, key, fields)
    return _renamed(_from_shards(path) if kind == "shards" else _from_folder(path), fields)


def has_names_of_files(source: Any) -> bool:
    """Return whether keys are the beginnings of names of files, in a folder or in tar shards."""
    return isinstance(source, (str, Path)) and _kind(Path(source)) in ("folder", "shards")


def record_count(source: Any) -> int | None:
    """Return about how many records `keyed_fields` yields, for a progress bar.

    None for shards and iterators: counting them would take as long as reading them.
    """
    if not isinstance(source, (str, Path)):
        return len(source) if isinstance(source, Sized) else None
    path = Path(source)
    kind = _kind(path)
    with suppress(OSError, pa.ArrowException, SourceError):  # reading it raises the error
        if kind == "table":
            with path.open("rb") as file:
                lines = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(_CHUNK_BYTES), b""))
            return lines - path.name.lower().endswith((".csv", ".tsv"))  # their first line names the columns
        if kind == "parquet":
            return sum(int(pq.read_metadata(part).num_rows) for part in find_files(path, is_parquet, "Parquet"))
        if kind == "folder":
            return sum(file.is_file() for file in path.rglob("*"))
    return None


def _kind(path: Path) -> Literal["table", "parquet", "shards", "folder"]:
    name = path.name.lower()
    if name.endswith(_TABLES):
        return "table"
    is_dataset = (path / MANIFEST_NAME).is_file()  # whose Parquet files are indexes
    if is_parquet(name) or (not is_dataset and any(is_parquet(file.name) for file in path.glob("*"))):
        return "parquet"
    is_archive = is_tar(name) or (path.is_dir() and any(is_tar(file.name) for file in path.glob("*")))
    return "shards" if is_archive else "folder"


def _renamed(records: Iterator[KeyedFields], fields: Mapping[str, str]) -> Iterator[KeyedFields]:
    for key, new_fields in records:
        yield key, {new: new_fields[old] for new, old in fields.items() if old in new_fields} if fields else new_fields


def _from_python(items: Any, fields: Mapping[str, str]) -> Iterator[KeyedFields]:
    if not isinstance(items, Iterable) or isinstance(items, Mapping) or fields:
        raise OptionError(
            f"source is a {type(items).__name__}; allowed are paths, and iterables of dictionaries with __key__ and "
            "the new fields, without fields="
        )
    for item in items:
        if not isinstance(item, Mapping) or not isinstance(item.get("__key__"), str):
            raise SampleError(
                f"an item of the source is {str(item)[:80]!r}; it must be a dictionary with text in __key__"
            )
        yield item["__key__"], {name: encode_field(name, item[name]) for name in item if not name.startswith("__")}


def _from_table(path: Path, key: str, fields: Mapping[str, str]) -> Iterator[KeyedFields]:
    kinds = {} if fields else _kinds_of_table(path)
    for row in _rows_of_table(path):
        names = _fields_of(row, key, fields, where=str(path), kinds=kinds)
        cells = {}
        for field, column in names.items():
            value = row.get(column)
            if value not in (None, ""):
                is_json = kinds.get(column) == _OTHER and field_name(column) is None
                cells[field] = json.dumps(value).encode() if is_json else _table_value(path, field, value)
        yield str(row[key]), cells


def _kinds_of_table(path: Path) -> dict[str, pa.DataType]:
    """Return the type of the values of each column of JSON Lines: text, lists of numbers, or `_OTHER`."""
    if not TextTable(path).is_json:
        return {}
    kinds: dict[str, pa.DataType] = {}
    for row in _rows_of_table(path):
        for column, value in row.items():
            if value is not None:
                are_numbers = isinstance(value, list) and all(type(item) in (int, float) for item in value)
                kind = pa.string() if isinstance(value, str) else pa.list_(pa.float64()) if are_numbers else _OTHER
                kinds[column] = kind if kinds.get(column, kind) == kind else _OTHER
    return kinds


def _rows_of_table(path: Path) -> Iterator[dict[str, Any]]:
    with as_source_error(f"{path} cannot be read"):
        path.stat()
    table = TextTable(path)
    for location, row in table.rows():
        try:
            table.check_count(row)
        except SourceError as error:
            raise SourceError(f"{table.position(location)}: {error}") from error
        table.check_encoding(row, location)
        yield row if table.is_json else {**dict.fromkeys(table.columns), **row}


def _table_value(path: Path, field: str, value: Any) -> bytes:
    """Return the bytes of a field: text and JSON as they are; a text in another field is the path of a file."""
    if isinstance(value, str) and not is_text_field(field):
        with as_source_error(f"{path.parent / value} cannot be read"):
            return (path.parent / value).read_bytes()
    return value.encode() if isinstance(value, str) else encode_field(field, value)


def _from_parquet(path: Path, key: str, fields: Mapping[str, str]) -> Iterator[KeyedFields]:
    for part in find_files(path, is_parquet, "Parquet"):
        with as_source_error(f"{part} cannot be read as Parquet", pa.ArrowException):
            file = pq.ParquetFile(part)
            names = file.schema_arrow.names
            kinds = {name: file.schema_arrow.field(name).type for name in names}
            first = _fields_of(dict.fromkeys(names), key, fields, where=str(part), kinds=kinds)
            for batch in file.iter_batches(_ROWS, columns=[key, *dict.fromkeys(first.values())], use_threads=False):
                yield from _rows_of_batch(batch, key, first)


def _rows_of_batch(batch: Any, key: str, names: Mapping[str, str]) -> Iterator[KeyedFields]:
    keys = batch.column(key).cast(pa.string()).to_pylist()
    columns = {field: _values(field, batch.column(column)) for field, column in names.items()}
    for row, name in enumerate(keys):
        if name is not None:
            yield name, {field: data for field, value in columns.items() if (data := value(row)) is not None}


def _values(field: str, column: Any) -> Callable[[int], bytes | None]:
    """Return a function that returns the value of a row as bytes; None for a null."""
    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    are_numbers = is_list and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type))

    def value(row: int) -> bytes | None:
        cell = column[row]
        if not cell.is_valid:
            return None
        if are_numbers and field.endswith("npy"):
            return encode_field(field, np.asarray(cell.values.to_numpy(zero_copy_only=False)))
        item = cell.as_py()
        if isinstance(item, dict) and "bytes" in item:  # an image as Hugging Face stores it
            return item["bytes"]  # type: ignore[no-any-return]
        return encode_field(field, item)

    return value


def _fields_of(
    row: Mapping[str, Any], key: str, fields: Mapping[str, str], *, where: str, kinds: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Return field -> column."""
    if key not in row:
        raise SourceError(
            f"{where} has no column {key!r} of keys; it has {', '.join(map(repr, row))}: name it with --key (key=)"
        )
    if missing := [column for column in fields.values() if column not in row]:
        raise SourceError(f"{where} has no column {missing[0]!r}; it has {', '.join(map(repr, row))}")
    if fields:
        return dict(fields)
    columns: dict[str, str] = {}
    for name in row:
        if name == key or name is None:
            continue
        field = _field_of(name, (kinds or {}).get(name))
        if field in columns:
            raise SourceError(
                f"{where}: the columns {columns[field]!r} and {name!r} would both be the field {field!r}: name the "
                f"fields, as in --field {field}={name} (fields={{{field!r}: {name!r}}})"
            )
        columns[field] = name
    return columns


def _field_of(column: str, kind: Any) -> str:
    """Return the field of a column: its own name if that has an extension, otherwise one for the type of the values."""
    field = field_name(column)
    if field is not None:
        return field
    if kind is None or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return f"{plain_name(column)}.txt"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        plain = pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)
        return f"{plain_name(column)}.npy" if plain else f"{plain_name(column)}.json"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raise SourceError(
            f"column {column!r} has bytes, whose type is not known: name the field, as in --field mask.png={column} "
            f"(fields={{'mask.png': {column!r}}})"
        )
    return f"{plain_name(column)}.json"


def _from_shards(path: Path) -> Iterator[KeyedFields]:
    paths = find_files(path, is_tar, "tar")
    archives = TarFiles(paths)
    for index, part in enumerate(paths):
        with as_source_error(f"{part} cannot be read", ShardError):
            for key, _, new_fields in samples(archives[index], index, part.name):
                yield key, {name: bytes(data) for name, data in new_fields.items()}


def _from_folder(path: Path) -> Iterator[KeyedFields]:
    """Yield the files of a folder, one field at a time: a later field of a key is joined to the earlier ones."""
    if not path.is_dir():
        raise SourceError(f"{path} cannot be read: allowed are Parquet, CSV, TSV, JSON Lines, tar shards and folders")
    for file in sorted(path.rglob("*")):
        parts = split_name(str(file.relative_to(path)))
        if parts is None or not file.is_file() or file.name.startswith("."):
            continue
        with as_source_error(f"{file} cannot be read"):
            yield parts[0], {parts[1]: file.read_bytes()}


MEMORY_BYTES = 256 << 20
"""Bytes of records that are kept in memory before they are written."""

_LENGTH = struct.Struct("<Q")
_RECORD_BYTES = 200  # memory of a record besides its bytes


class Spool:
    """Key and fields of samples, by the index of their shard."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bytes = 0
        self._kept: dict[int, list[KeyedFields]] = {}
        self._kept_bytes = 0

    def add(self, shard: int, record: KeyedFields) -> None:
        """Add a record of a shard."""
        self._kept.setdefault(shard, []).append(record)
        size = _RECORD_BYTES + sum(map(len, record[1].values()))
        self.bytes += size
        self._kept_bytes += size
        if self._kept_bytes > MEMORY_BYTES:
            self._write()

    def take(self, shard: int) -> list[KeyedFields]:
        """Return the records of a shard that are in memory, and forget them. They follow those of `spooled_records`."""
        return self._kept.pop(shard, [])

    def _write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for shard, records in self._kept.items():
            with _spool_file(self.folder, shard).open("ab") as file:
                for key, fields in records:
                    words = [key.encode("utf-8", "surrogatepass")]  # a path in JSON may have surrogate escapes
                    words += [word for name, data in fields.items() for word in (name.encode(), data)]
                    file.write(_LENGTH.pack(len(words)))
                    for word in words:
                        file.write(_LENGTH.pack(len(word)))
                        file.write(word)
        self._kept, self._kept_bytes = {}, 0


def spooled_records(folder: Path, shard: int) -> Iterator[KeyedFields]:
    """Yield the records of a shard that a `Spool` wrote to its folder, in the order in which they were added."""
    path = _spool_file(folder, shard)
    if not path.exists():
        return
    data, position = memoryview(path.read_bytes()), 0
    while position < len(data):
        words = []
        (count,) = _LENGTH.unpack_from(data, position)
        position += _LENGTH.size
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(data, position)
            position += _LENGTH.size
            words.append(bytes(data[position : position + length]))
            position += length
        key, others = words[0].decode("utf-8", "surrogatepass"), words[1:]
        yield key, {name.decode(): value for name, value in zip(others[::2], others[1::2], strict=True)}


def _spool_file(folder: Path, shard: int) -> Path:
    return folder / f"{shard:06d}"
