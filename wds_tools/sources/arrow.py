"""Arrow files in the stream format, which ``datasets.save_to_disk`` writes, and in the file format.

They are memory-mapped: a record is read without its neighbours, and lengths are exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from wds_tools.sources.arrow_columns import file_names, lengths
from wds_tools.sources.base import as_source_error
from wds_tools.sources.batches import BatchSource, Group
from wds_tools.sources.files import find_files

_HEAD_ROWS = 8


def is_arrow(name: str) -> bool:
    """Return whether a file name is that of an Arrow file."""
    return name.lower().endswith((".arrow", ".feather", ".ipc"))


class ArrowSource(BatchSource):
    """Arrow files with images in a column: a file, a pattern, or a folder, such as one that ``save_to_disk`` wrote."""

    kind = "arrow"
    format = "Arrow"
    grouped = False

    def find(self) -> tuple[Path, ...]:
        """Return the files: those that the state of a saved dataset names, or those of the folder."""
        state = self.path / "state.json"
        if state.is_file():
            with as_source_error(f"{state} cannot be read", ValueError, KeyError, TypeError):
                names = [Path(entry["filename"]).name for entry in json.loads(state.read_bytes())["_data_files"]]
            return tuple(self.path / name for name in names)
        return find_files(self.path, is_arrow, "Arrow")

    def schema(self, file: int) -> pa.Schema:
        """Return the schema of a file."""
        return self._open(file)[0]

    def rows(self, file: int) -> int:
        """Return the number of rows that a file states."""
        return sum(batch.num_rows for batch in self._open(file)[1])

    def column(self, file: int, column: str) -> list[Any]:
        """Return all values of a column."""
        return [value for batch in self._open(file)[1] for value in batch.column(column).to_pylist()]

    def head(self, file: int, column: str) -> list[Any]:
        """Return the first values of a column."""
        for batch in self._open(file)[1]:
            values: list[Any] = batch.column(column).drop_null()[:_HEAD_ROWS].to_pylist()
            if values:
                return values
        return []

    def groups(self, file: int) -> Iterator[Group]:
        """Yield the batches of a file, with exact lengths."""
        for batch in self._open(file)[1]:
            image = self.found_roles.image
            rest = [name for name in self.packed_columns(file) if name != image]
            rows = batch.select(rest).to_pylist() if rest else [{}] * batch.num_rows
            paths = file_names(batch.column(image))
            cells = (row | {image: {"bytes": b"", "path": path}} for row, path in zip(rows, paths, strict=True))
            extras = [self.extra_bytes(self.row_values(file, row), self.found_roles) for row in cells]
            yield Group(lengths(batch.column(image)), extras)

    def load(self, file: int, group: int) -> Any:
        """Return a batch with the columns that are packed."""
        return self._open(file)[1][group].select(self.packed_columns(file))

    @cached_property
    def _opened(self) -> dict[int, tuple[pa.Schema, list[Any]]]:
        return {}

    def _open(self, file: int) -> tuple[pa.Schema, list[Any]]:
        """Return the schema and the mapped batches of a file, validated: wrong offsets would read outside the file."""
        if file not in self._opened:
            source = pa.memory_map(str(self.paths[file]))
            try:
                table = pa.ipc.open_file(source).read_all()
            except pa.ArrowInvalid:
                source.seek(0)
                table = pa.ipc.open_stream(source).read_all()
            batches = table.to_batches()
            for batch in batches:
                batch.validate(full=True)
            self._opened[file] = table.schema, batches
        return self._opened[file]
