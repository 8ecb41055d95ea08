"""Energon's ``index.sqlite``: where each sample and each of its fields is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path

from wds_tools.errors import OptionError
from wds_tools.upkeep.members import StoredKey, end_of

_TABLES = (
    """CREATE TABLE samples (tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE,
    sample_index INTEGER NOT NULL, byte_offset INTEGER, byte_size INTEGER)""",
    """CREATE TABLE sample_parts (tar_file_id INTEGER, sample_index INTEGER, part_name TEXT,
    content_byte_offset INTEGER, content_byte_size INTEGER)""",
)
_INDEXES = (
    "CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index)",
    "CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset)",
    """CREATE INDEX idx_sample_parts_full ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset,
    content_byte_size)""",
)


def write_database(path: Path, shards: Iterable[Sequence[StoredKey]]) -> None:
    """Write the database of the shards, in their order, without those that have no samples.

    Raises:
        OptionError: A key occurs twice.
    """
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA synchronous = OFF")  # the file gets its name when it is complete
        for statement in _TABLES:
            connection.execute(statement)
        for number, samples in enumerate(shards):
            _insert(connection, number, samples)
        for statement in _INDEXES:
            connection.execute(statement)
        connection.commit()
    except sqlite3.IntegrityError as error:
        raise OptionError(
            "a key occurs twice, and Energon requires unique keys: `wds-tools reshard` writes the same samples with "
            "unique keys"
        ) from error
    finally:
        connection.close()


def _insert(connection: sqlite3.Connection, shard: int, samples: Sequence[StoredKey]) -> None:
    starts = [sample.parts[0].start for sample in samples]
    stops = [*starts[1:], end_of(list(samples))]
    connection.executemany(
        "INSERT INTO samples VALUES (?, ?, ?, ?, ?)",
        (
            (shard, sample.key, row, start, stop - start)
            for row, (sample, start, stop) in enumerate(zip(samples, starts, stops, strict=True))
        ),
    )
    connection.executemany(
        "INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)",
        (
            (shard, row, part.name, part.offset, part.size)
            for row, sample in enumerate(samples)
            for part in sample.parts
        ),
    )
