"""Parquet files with a column of images, as Hugging Face stores them.

Sizes are estimates: the mean of the row group. The metadata does not contain the lengths of images,
and reading them would mean to read all data. So shards may be somewhat longer than ``shard_bytes``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from wds_tools.errors import SourceError
from wds_tools.lru_cache import LRUCache
from wds_tools.sources.base import WINDOW_BYTES
from wds_tools.sources.batches import BatchSource, Group
from wds_tools.sources.files import find_files

_MAX_GROUP_BYTES = 16 << 30
_FIELD_BYTES = 1024  # upper bound of header and padding of a field of unknown length
_HEAD_ROWS = 8


def is_parquet(name: str) -> bool:
    """Return whether a file name is that of a Parquet file."""
    return name.lower().endswith((".parquet", ".pq"))


class ParquetSource(BatchSource):
    """Parquet files: a file, a pattern, or a folder with the files of one split, also in folders below it.

    A row group is read at once, and once per worker and window.
    """

    kind = "parquet"
    format = "Parquet"
    grouped = True

    def find(self) -> tuple[Path, ...]:
        """Return the files."""
        return find_files(self.path, is_parquet, "Parquet")

    def schema(self, file: int) -> pa.Schema:
        """Return the schema of a file."""
        return self._open(file).schema_arrow

    def rows(self, file: int) -> int:
        """Return the number of rows that a file states."""
        return int(self._open(file).metadata.num_rows)

    def column(self, file: int, column: str) -> list[Any]:
        """Return all values of a column."""
        values: list[Any] = self._open(file).read(columns=[column], use_threads=False).column(column).to_pylist()
        return values

    def head(self, file: int, column: str) -> list[Any]:
        """Return the first values of a column."""
        for batch in self._open(file).iter_batches(_HEAD_ROWS, columns=[column], use_threads=False):
            values: list[Any] = batch.column(column).to_pylist()
            if any(value is not None for value in values):
                return values
        return []

    def groups(self, file: int) -> Iterator[Group]:
        """Yield the row groups of a file, with mean lengths."""
        metadata = self._open(file).metadata
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            if group.total_byte_size > _MAX_GROUP_BYTES:
                raise SourceError(
                    f"{self.paths[file]}: row group {number} has {group.total_byte_size:,} bytes; allowed are "
                    f"{_MAX_GROUP_BYTES:,}, because it is read at once: write the file with smaller row groups"
                )
            size, extra = self._mean_bytes(group) if group.num_rows else (0, 0)
            yield Group([size] * group.num_rows, [extra] * group.num_rows)

    def load(self, file: int, group: int) -> Any:
        """Return a table with the columns of a row group that are packed."""
        table = self._loaded.get((file, group))
        if table is None:
            table = self._open(file).read_row_group(group, columns=self.packed_columns(file), use_threads=False)
            self._loaded.put((file, group), table, table.nbytes)
        return table

    @cached_property
    def _loaded(self) -> LRUCache[tuple[int, int], Any]:
        return LRUCache(max_bytes=WINDOW_BYTES)

    @cached_property
    def _files(self) -> dict[int, Any]:
        return {}

    def _open(self, file: int) -> Any:
        if file not in self._files:
            self._files[file] = pq.ParquetFile(self.paths[file], memory_map=True)
        return self._files[file]

    def _mean_bytes(self, group: Any) -> tuple[int, int]:
        """Return the mean bytes of an image, and of the fields that the other columns become."""
        roles = self.found_roles
        image = rest = 0
        others = self.packed - {roles.image}
        for index in range(group.num_columns):
            column = group.column(index)
            path = column.path_in_schema  # such as mask.png.bytes, for the column mask.png
            name = max((name for name in self.packed if f"{path}.".startswith(f"{name}.")), key=len, default=None)
            image += column.total_uncompressed_size if name == roles.image else 0
            rest += column.total_uncompressed_size if name in others else 0
        json_keys = sum(len(name) + 8 for name in others - roles.fields.keys())
        extra = rest // group.num_rows + json_keys + _FIELD_BYTES * len(roles.fields) if others else 0
        return max(1, image // group.num_rows), extra
