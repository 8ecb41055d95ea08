"""Records sorted by shard: kept in memory up to a limit, and above it in one file per shard."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from wds_tools.upkeep.field_source import KeyedFields

MEMORY_BYTES = 256 << 20
"""Bytes of records that are kept in memory before they are written."""

_LENGTH = struct.Struct("<Q")
_RECORD_BYTES = 200  # memory of a record besides its bytes


class Spool:
    """Key and fields of samples, by the number of their shard.

    Args:
        folder: Local folder for the files; it is created when it is needed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[int, list[KeyedFields]] = {}
        self._bytes = 0

    def add(self, shard: int, record: KeyedFields) -> None:
        """Add a record of a shard."""
        self._kept.setdefault(shard, []).append(record)
        self._bytes += _RECORD_BYTES + sum(map(len, record[1].values()))
        if self._bytes > MEMORY_BYTES:
            self._write()

    def records(self, shard: int) -> Iterator[KeyedFields]:
        """Yield the records of a shard, in the order in which they were added."""
        path = self._path(shard)
        if path.exists():
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
                key, rest = words[0].decode("utf-8", "surrogatepass"), words[1:]
                yield key, {name.decode(): value for name, value in zip(rest[::2], rest[1::2], strict=True)}
        yield from self._kept.get(shard, [])

    def _path(self, shard: int) -> Path:
        return self._folder / f"{shard:06d}"

    def _write(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for shard, records in self._kept.items():
            with self._path(shard).open("ab") as file:
                for key, fields in records:
                    words = [key.encode("utf-8", "surrogatepass")]  # a path in JSON may have surrogate escapes
                    words += [word for name, data in fields.items() for word in (name.encode(), data)]
                    file.write(_LENGTH.pack(len(words)))
                    for word in words:
                        file.write(_LENGTH.pack(len(word)))
                        file.write(word)
        self._kept, self._bytes = {}, 0
