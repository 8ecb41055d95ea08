"""Changes to the file of an index, and its further columns, which come from the user's tables. No I/O."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from wds_tools.errors import ManifestError
from wds_tools.format.index import (
    CHECKSUM,
    METADATA_KEY,
    NO_LABEL,
    content_checksum,
    from_bytes,
    number_array,
    write_table,
)
from wds_tools.format.pages import memory_of
from wds_tools.wording import one_line

COLUMNS = "columns"
"""Key of the metadata with the names of the further columns."""

_OWN = (
    *("id", "key", "label", "width", "height", "mode", "orientation", "restart", "mcu_width", "mcu_height"),
    *("phash", "brightness", "contrast", "sharpness"),  # of `image_signature`
)
_OWN_SUFFIXES = (".offset", ".size", ".xxh3", ".header")


def is_index(data: bytes) -> bool:
    """Return whether a file is an index, by its metadata; for a damaged file, by the name of that metadata."""
    try:
        memory_of(data, ())
        return METADATA_KEY in (pq.read_schema(pa.BufferReader(data)).metadata or {})
    except (pa.ArrowException, OSError, ValueError):
        return METADATA_KEY in data


def rename(data: bytes, *, name: str, shard: str) -> bytes:
    """Return the index of the same shard under another name; unknown columns are kept."""
    index = from_bytes(data, name=name)
    table, metadata = _read(data)
    return write_table(table, {**metadata, "shard": shard, CHECKSUM: content_checksum(replace(index, shard=shard))})


def relabel(data: bytes, label: NDArray[np.int64], *, name: str) -> bytes:
    """Return the index with other labels; unknown columns are kept."""
    index = from_bytes(data, name=name)
    table, metadata = _read(data)
    column = table.schema.get_field_index("label")
    table = table.set_column(column, "label", number_array(label, label != NO_LABEL))
    return write_table(table, {**metadata, CHECKSUM: content_checksum(replace(index, label=label))})


def column_name(name: str) -> str:
    """Return the name of a further column, with an underscore if the index has a column of that name.

    >>> column_name("caption"), column_name("label"), column_name("jpg.size")
    ('caption', 'label_', 'jpg.size_')
    """
    return f"{name}_" if name in _OWN or name.endswith(_OWN_SUFFIXES) else name


def add_columns(data: bytes, columns: pa.Table) -> bytes:
    """Return an index with further columns, one row for each of its samples.

    Those that it has already are replaced. Names that come from a user are those of `column_name`.
    """
    table, metadata = _read(data)
    earlier = [name for name in metadata.get(COLUMNS, ()) if name not in columns.column_names]
    table = table.select([name for name in table.column_names if name not in columns.column_names])
    for name in columns.column_names:
        table = table.append_column(name, columns[name])
    return write_table(table, {**metadata, COLUMNS: [*earlier, *columns.column_names]})


def read_columns(data: bytes, names: Sequence[str], *, name: str) -> pa.Table:
    """Return some of the further columns of an index that `from_bytes` has accepted."""
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        table = file.read(columns=list(names), use_threads=False).select(list(names))
        for column in table.columns:
            column.validate(full=True)
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise ManifestError(
            f"{name} cannot be read: its columns {', '.join(names)}: {one_line(error)}; rebuild it with "
            "`wds-tools index`"
        ) from error
    return table


def header_bytes(data: bytes, field: str, *, name: str) -> NDArray[np.int32] | None:
    """Return the bytes of the tar headers before a field, int32 [n], 0 for a sample without it; None: not recorded."""
    if f"{field}.header" not in pq.read_schema(pa.BufferReader(data)).names:
        return None
    column = read_columns(data, [f"{field}.header"], name=name).column(0)
    return np.array([value or 0 for value in column.to_pylist()], np.int32)


def _read(data: bytes) -> tuple[Any, dict[str, Any]]:
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    return table, json.loads(table.schema.metadata[METADATA_KEY])
