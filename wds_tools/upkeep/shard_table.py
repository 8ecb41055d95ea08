"""The table that another tool wrote beside a shard, such as img2dataset's ``00000.parquet``: its columns by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wds_tools.errors import ShardError
from wds_tools.format.index_edit import column_name
from wds_tools.format.pages import memory_of

KEY = "key"
MAX_MEMORY = 4 << 30
"""Limit for the memory that such a table may take, found before it is read."""

_REPEATED = ("key", "width", "height")  # img2dataset states these, and the index has them from the shard


def is_table(data: bytes) -> bool:
    """Return whether a file is a complete Parquet file, by its footer and the headers of its pages."""
    try:
        return memory_of(data) >= 0
    except ValueError:
        return False


def columns_by_key(data: bytes, keys: Sequence[str], *, name: str) -> pa.Table | None:
    """Return the columns of a table that a condition can use, with a row for each sample.

    Columns of numbers, truth values, text and times are taken; lists, structures and bytes are not. A sample without
    a row has nulls, and rows without a sample, such as failed downloads, are left out.

    Args:
        data: The Parquet file.
        keys: Keys of the samples.
        name: Name of the file, for error messages.

    Returns:
        The columns; None if the table has no text column ``key``.

    Raises:
        ShardError: The file is damaged, not a Parquet file, or far too large.
    """
    try:
        if (memory := memory_of(data)) > MAX_MEMORY:
            raise ValueError(f"it would take {memory:,} bytes of memory; allowed are {MAX_MEMORY:,}")
        file = pq.ParquetFile(pa.BufferReader(data))
        schema = file.schema_arrow
        if KEY not in schema.names or not _is_text(schema.field(KEY).type):
            return None
        taken = [column for column in schema.names if column not in _REPEATED and _is_plain(schema.field(column).type)]
        table = file.read(columns=[KEY, *taken], use_threads=False)
        for column in table.columns:
            column.validate(full=True)
        rows = pc.index_in(pa.array(keys, pa.string()), value_set=table[KEY].cast(pa.string()).combine_chunks())
        found = table.select(taken).take(rows)
        return found.cast(_plain_schema(found.schema)).rename_columns([column_name(column) for column in taken])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise ShardError(
            f"{name} lies beside the shard, but cannot be read as a table of its samples "
            f"({' '.join(str(error).split())}): move it away, or download it again"
        ) from error


def _is_text(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_plain(kind: Any) -> bool:
    """Return whether a condition can compare values of this type."""
    types = pa.types
    return _is_text(kind) or bool(
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_temporal(kind)
    )


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, pa.string() if _is_text(field.type) else field.type) for field in schema])
