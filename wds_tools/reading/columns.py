"""Columns of all samples, read from the indexes: for conditions, and the class number of each sample."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wds_tools.format.index import ABSENT, NO_LABEL, Index
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage.cache.arrays import Arrays
from wds_tools.terminal import phase_bar, shows_progress

_READ_TOGETHER = 256  # remote indexes that are requested before the first of them is needed
_KINDS: tuple[type[np.signedinteger], ...] = (np.int8, np.int16, np.int32, np.int64)


def numbers_of(shards: ShardSet, first_shards: int | None, progress: bool | None = False) -> Iterator[int]:
    """Yield the numbers of the first shards, by default of all, with a bar while their indexes are read."""
    numbers = range(len(shards.locations))[:first_shards]
    shown = phase_bar("reading indexes", numbers, progress=progress) if shows_progress(progress) else numbers
    for shard in shown:
        if shards.is_remote and shard % _READ_TOGETHER == 0:
            shards.read_indexes_ahead(numbers[shard : shard + _READ_TOGETHER])
        yield shard


def labels_of(
    shards: ShardSet, first_shards: int | None = None, progress: bool | None = False
) -> NDArray[np.signedinteger]:
    """Return the class number of every sample of the first shards, by default of all: [samples].

    The type is the smallest one that has all numbers, and the next one; -1 is for samples without a label. The labels
    of a large dataset are mapped.
    """

    def compute() -> Arrays:
        parts = [labels_of_shard(shards, shard) for shard in numbers_of(shards, first_shards, progress)]
        return Arrays({"label": np.concatenate(parts)})

    return shards.computed("labels", compute, first_shards=first_shards).arrays["label"]


def labels_of_shard(shards: ShardSet, shard: int) -> NDArray[np.signedinteger]:
    """Return the class number of every sample of a shard, as `labels_of` does."""
    column = shards.stored_columns(shard, ["label"])[0]["label"]
    label = numbers(column.cast(pa.int64()), -1)
    highest = int(label.max(initial=-1)) + 1
    return label.astype(next(kind for kind in _KINDS if highest <= np.iinfo(kind).max))


def numbers(column: pa.ChunkedArray, absent: int) -> NDArray[Any]:
    """Return a column of numbers as an array; ``absent`` is for rows without a value."""
    # to_numpy() and fill_null() would import pandas if it is installed.
    if column.null_count:
        import pyarrow.compute as pc  # noqa: PLC0415 - slow, and a plain loader does not need it

        column = pc.if_else(column.is_valid(), column, pa.scalar(absent, column.type))
    return np.from_dlpack(column.combine_chunks())


def table_of(shards: ShardSet, shard: int, start: int, names: Collection[str], further: Collection[str]) -> pa.Table:
    """Return columns of the samples of a shard, as `columns_of` does, without reading the others."""
    table = shards.stored_columns(shard, {*names, *further})[0]
    samples = shards.entry(shard).samples
    columns: dict[str, Any] = {"id": np.arange(start, start + samples)}
    for name in table.column_names:
        columns[name] = table[name].cast(pa.int64()) if name in ("width", "height") else table[name]
    columns |= {name: pa.nulls(samples) for name in further if name not in columns}
    return pa.table(columns)


def with_columns(
    table: pa.Table, index: Index, names: Sequence[str], read: Callable[[Sequence[str]], pa.Table]
) -> pa.Table:
    """Return a table with further columns of an index; those that it lacks are null."""
    present = [name for name in names if name in index.columns]
    further = read(present) if present else None
    for name in names:
        column = pa.nulls(len(index)) if further is None or name not in present else further[name]
        table = table.append_column(name, column)
    return table


def columns_of(index: Index, start: int) -> pa.Table:
    """Return the columns that a condition may use; the first sample of the index has id ``start``."""
    columns: dict[str, Any] = {
        "id": np.arange(start, start + len(index)),
        "key": index.keys,
        "label": pa.array(index.label, mask=index.label == NO_LABEL),
        "width": index.width.astype(np.int64),  # so that width * height does not overflow
        "height": index.height.astype(np.int64),
        "mode": index.mode,
        "orientation": index.orientation,
    }
    for name, part in index.fields.items():
        columns[f"{name}.size"] = pa.array(part.size, mask=part.offset == ABSENT)
    return pa.table(columns)
