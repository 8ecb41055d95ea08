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
import pyarrow.compute as pc

from wds_tools.errors import SourceError
from wds_tools.sources.base import (
    Collector,
    Input,
    Record,
    Source,
    SourceOptions,
    as_read_error,
    as_source_error,
    field_bytes,
    file_states,
    stamp_files,
)
from wds_tools.sources.columns import facts_bytes
from wds_tools.sources.files import find_files
from wds_tools.sources.huggingface import Roles, find_roles, to_facts, to_record


def is_arrow(name: str) -> bool:
    """Return whether a file name is that of an Arrow file."""
    return name.lower().endswith((".arrow", ".feather", ".ipc"))


class ArrowSource(Source):
    """Arrow files with images in a column: a file, a pattern, or a folder, such as one that ``save_to_disk`` wrote."""

    kind = "arrow"
    unit = "row"

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(src)
        self.paths = self._find()

    def collect(self, found: Collector) -> None:
        """Add the rows of all files.

        Raises:
            SourceError: There is no such file, or no column of images.
        """
        states = file_states(self.paths)
        with as_source_error(f"{self.path} cannot be read as Arrow", pa.ArrowException, ValueError):
            for path, location, size, label, extra in self._rows():
                if size:
                    found.add(Input(path, size, None, location, -1, extra), label)
                else:
                    found.skip(path, "is empty")
            found.account.given = sum(
                batch.num_rows for file in range(len(self.paths)) for batch in self._batches(file)
            )
        self._roles.collect(found)
        found.files = states
        found.stamp = stamp_files(list(self.paths)) + repr(sorted(self.columns.items()))

    def read(self, entry: Input) -> Record:
        """Read one row.

        Raises:
            SourceError: The row cannot be read, or contains no image.
        """
        file, number, row = entry.location
        with as_read_error(f"{self.path} cannot be read", pa.ArrowException, ValueError, IndexError, KeyError):
            roles = self._roles
            batch = self._batches(file)[number]
            return to_record({name: batch.column(name)[row].as_py() for name in [roles.image, *roles.rest]}, roles)

    def _find(self) -> tuple[Path, ...]:
        state = self.path / "state.json"
        if state.is_file():
            with as_source_error(f"{state} cannot be read", ValueError, KeyError, TypeError):
                names = [Path(entry["filename"]).name for entry in json.loads(state.read_bytes())["_data_files"]]
            return tuple(self.path / name for name in names)
        return find_files(self.path, is_arrow, "Arrow")

    @cached_property
    def _opened(self) -> dict[int, tuple[pa.Schema, list[Any]]]:
        return {}

    @cached_property
    def _roles(self) -> Roles:
        return find_roles(self._open(0)[0], self.columns, str(self.paths[0]))

    def _batches(self, file: int) -> list[Any]:
        return self._open(file)[1]

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

    def _rows(self) -> Iterator[tuple[str, tuple[int, ...], int, Any, int]]:
        """Yield (path, location, length of the image, label, bytes of other fields) of every row."""
        needed = {self._roles.image, self._roles.label, *self._roles.rest} - {None}
        for file, path in enumerate(self.paths):
            if missing := needed - set(self._open(file)[0].names):
                raise SourceError(f"{path} has no column {min(map(str, missing))!r}, which {self.paths[0].name} has")
            first = 0
            for number, batch in enumerate(self._batches(file)):
                count = batch.num_rows
                sizes = _lengths(batch.column(self._roles.image)).to_pylist()
                labels = batch.column(self._roles.label).to_pylist() if self._roles.label else [None] * count
                extra = _extra_bytes(batch, self._roles)
                for row in range(count):
                    yield f"{path.name}#{first + row}", (file, number, row), sizes[row] or 0, labels[row], extra[row]
                first += count


def _lengths(column: Any) -> Any:
    """Return the length of each image; null for a row without one."""
    return pc.binary_length(column.field("bytes") if pa.types.is_struct(column.type) else column)


def _extra_bytes(batch: Any, roles: Roles) -> list[int]:
    """Return for each row the bytes that its fields besides image and label take in a shard."""
    total = [0] * batch.num_rows
    for name in roles.more_images:
        total = [a + field_bytes(b or 0) for a, b in zip(total, _lengths(batch.column(name)).to_pylist(), strict=True)]
    for name in roles.fields:
        sizes = pc.binary_length(batch.column(name)).to_pylist()
        total = [a + field_bytes(b or 0) for a, b in zip(total, sizes, strict=True)]
    image = batch.column(roles.image)
    files = image.field("path").to_pylist() if pa.types.is_struct(image.type) else [None] * len(total)
    rows = batch.select(list(roles.facts)).to_pylist() if roles.facts else [{}] * len(total)
    return [a + facts_bytes(to_facts(row, roles, file)) for a, row, file in zip(total, rows, files, strict=True)]
