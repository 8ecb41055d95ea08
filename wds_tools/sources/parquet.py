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
from wds_tools.sources.base import (
    WINDOW_BYTES,
    Collector,
    Input,
    Record,
    Source,
    SourceOptions,
    as_read_error,
    as_source_error,
    file_states,
    stamp_files,
)
from wds_tools.sources.files import find_files
from wds_tools.sources.huggingface import Roles, find_roles, to_record

_MAX_GROUP_BYTES = 16 << 30
_FIELD_BYTES = 1024  # upper bound of header and padding of a field of unknown length
_Group = tuple[int, int, int, int, int]  # file, row group, rows, mean bytes of an image, of other fields


def is_parquet(name: str) -> bool:
    """Return whether a file name is that of a Parquet file."""
    return name.lower().endswith((".parquet", ".pq"))


class ParquetSource(Source):
    """Parquet files: a file, a pattern, or a folder with the files of one split, also in folders below it.

    A row group is read at once, and once per worker and window.
    """

    kind = "parquet"
    unit = "row"

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(src)
        self.paths = find_files(self.path, is_parquet, "Parquet")

    def collect(self, found: Collector) -> None:
        """Add the rows of all files.

        Raises:
            SourceError: There is no such file, or no column of images.
        """
        states = file_states(self.paths)
        with as_source_error(f"{self.path} cannot be read as Parquet", pa.ArrowException):
            groups = list(self._groups())
            labels = iter(self._labels())
        found.account.given = sum(self._open(file).metadata.num_rows for file in range(len(self.paths)))
        names, first = [path.name for path in self.paths], [0] * len(self.paths)
        for group, (file, number, rows, size, extra) in enumerate(groups):
            for row in range(rows):
                path = f"{names[file]}#{first[file] + row}"
                found.add(Input(path, size, None, (file, number, row), group, extra), next(labels))
            first[file] += rows
        self._roles.collect(found)
        found.files = states
        found.stamp = stamp_files(list(self.paths)) + repr(sorted(self.columns.items()))

    def read(self, entry: Input) -> Record:
        """Read one row.

        Raises:
            SourceError: The row cannot be read, or contains no image.
        """
        file, number, row = entry.location
        with as_read_error(f"{self.path} cannot be read", pa.ArrowException, ValueError):
            table = self._load(file, number)
            return to_record({name: table.column(name)[row].as_py() for name in table.column_names}, self._roles)

    @cached_property
    def _loaded(self) -> LRUCache[tuple[int, int], Any]:
        return LRUCache(max_bytes=WINDOW_BYTES)

    @cached_property
    def _files(self) -> dict[int, Any]:
        return {}

    @cached_property
    def _roles(self) -> Roles:
        return find_roles(self._open(0).schema_arrow, self.columns, str(self.paths[0]))

    def _open(self, file: int) -> Any:
        if file not in self._files:
            self._files[file] = pq.ParquetFile(self.paths[file], memory_map=True)
        return self._files[file]

    def _load(self, file: int, number: int) -> Any:
        table = self._loaded.get((file, number))
        if table is None:
            columns = [self._roles.image, *self._roles.rest]
            table = self._open(file).read_row_group(number, columns=columns, use_threads=False)
            self._loaded.put((file, number), table, table.nbytes)
        return table

    def _groups(self) -> Iterator[_Group]:
        for file, path in enumerate(self.paths):
            metadata = self._open(file).metadata
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                if group.num_rows == 0:
                    continue
                if group.total_byte_size > _MAX_GROUP_BYTES:
                    raise SourceError(
                        f"{path}: row group {number} has {group.total_byte_size:,} bytes; allowed are "
                        f"{_MAX_GROUP_BYTES:,}, because it is read at once: write the file with smaller row groups"
                    )
                yield file, number, group.num_rows, *self._mean_bytes(group)

    def _mean_bytes(self, group: Any) -> tuple[int, int]:
        """Return the mean bytes of an image, and of the fields that the other columns become."""
        image = rest = 0
        names = [self._roles.image, *self._roles.rest]
        for index in range(group.num_columns):
            column = group.column(index)
            path = column.path_in_schema  # such as mask.png.bytes, for the column mask.png
            name = max((name for name in names if f"{path}.".startswith(f"{name}.")), key=len, default=None)
            image += column.total_uncompressed_size if name == self._roles.image else 0
            rest += column.total_uncompressed_size if name in self._roles.rest else 0
        fields = len(self._roles.fields) + len(self._roles.more_images)
        json_keys = sum(len(name) + 8 for name in self._roles.facts)
        extra = rest // group.num_rows + json_keys + _FIELD_BYTES * fields if self._roles.rest else 0
        return max(1, image // group.num_rows), extra

    def _labels(self) -> list[Any]:
        labels: list[Any] = []
        for file, path in enumerate(self.paths):
            opened = self._open(file)
            missing = {self._roles.image, self._roles.label, *self._roles.rest} - {None, *opened.schema_arrow.names}
            if missing:
                raise SourceError(f"{path} has no column {min(map(str, missing))!r}, which {self.paths[0].name} has")
            if self._roles.label is None:
                labels += [None] * opened.metadata.num_rows
            else:
                labels += opened.read(columns=[self._roles.label]).column(0).to_pylist()
        return labels
