"""The files that other readers need next to the shards, as text and bytes. No I/O.

Sources: DALI 2.4.0, ``wds2idx.py`` and ``webdataset_loader.cc``; Megatron-Energon 7.4.1, ``energon prepare``; timm
1.0.31, ``data/readers/reader_wds.py``; wids 0.1.11, ``wids_index.py``.
"""

from __future__ import annotations

import json
import re
import sqlite3
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wds_tools.errors import OptionError
from wds_tools.format.label_source import INDEX, LabelSource
from wds_tools.format.manifest import Manifest
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.upkeep.members import StoredKey, end_of

DALI_VERSION = "v1.2"
ENERGON_VERSION = "7.4.1"
"""The release of Energon that these files are for."""

_SPACE = re.compile(r"\s")


def dali_index(samples: Sequence[StoredKey], *, shard: str) -> bytes:
    """Return DALI's index of a shard: extension, offset, size and name of each field, one line per sample.

    White space in a name becomes an underscore, because it separates the values. DALI uses names only in messages.
    """
    lines = [f"{DALI_VERSION} {len(samples)}"]
    for sample in samples:
        key = _SPACE.sub("_", sample.key)
        words = []
        for part in sample.parts:
            if _SPACE.search(part.name):
                raise OptionError(f"{shard} has field {part.name!r}; DALI allows no white space in the name of a field")
            words.append(f"{part.name} {part.offset} {part.size} {key}.{part.name}")
        lines.append(" ".join(words))
    return "".join(f"{line}\n" for line in lines).encode()


def energon_index(samples: Sequence[StoredKey]) -> bytes:
    """Return Energon's index of a shard: the offset of each sample, and the end of the last one, as uint64."""
    offsets = [sample.parts[0].start for sample in samples]
    return struct.pack(f"<{len(samples) + 1}Q", *offsets, end_of(list(samples)))


def energon_files(manifest: Manifest, *, split: str) -> dict[str, bytes]:
    """Return the small files of ``.nv-meta/`` by name. The file ``dataset.yaml`` may be edited by a user."""
    counts = {entry.name: entry.samples for entry in manifest.shards if entry.samples}
    parts = {name: list(counts) if name == split else [] for name in dict.fromkeys((split, "train", "val", "test"))}
    lines = ["split_parts:"]
    for name, shards in parts.items():
        lines += [f"  {name}:", *(f"  - {json.dumps(shard)}" for shard in shards)] if shards else [f"  {name}: []"]
    info = {"energon_version": ENERGON_VERSION, "shard_counts": counts}
    return {
        ".info.json": json.dumps(info, indent=2).encode(),
        "split.yaml": "\n".join([*lines, "exclude: []", ""]).encode(),
        "dataset.yaml": _energon_dataset(manifest).encode(),
        "index.uuid": str(uuid.UUID(manifest.fingerprint)).encode(),
    }


def _energon_dataset(manifest: Manifest) -> str:
    """Return the type of the samples and where their values are, for images with a label or a caption."""
    images = [name for name in IMAGE_FIELDS if name in manifest.fields and name != "npy"]
    label = _energon_label(manifest)
    if images and label:
        sample, values = "ImageClassificationSample", {"image": ",".join(images), "label": label}
    elif images and "txt" in manifest.fields:
        sample, values = "CaptioningSample", {"image": ",".join(images), "caption": "txt"}
    else:
        return "__module__: megatron.energon\n__class__: CrudeWebdataset\n"
    fields = "".join(f"  {name}: {field}\n" for name, field in values.items())
    return f"sample_type:\n  __module__: megatron.energon\n  __class__: {sample}\nfield_map:\n{fields}"


def _energon_label(manifest: Manifest) -> str | None:
    if manifest.label in (None, INDEX):
        return "cls" if "cls" in manifest.fields else None
    source = LabelSource.parse(str(manifest.label))
    return None if source.field is None else source.field + "".join(f"[{name}]" for name in source.path)


def timm_info(manifest: Manifest, *, split: str, old: Mapping[str, Any]) -> bytes:
    """Return timm's ``_info.json``."""
    info: dict[str, Any] = {
        "name": split,
        "num_samples": manifest.samples,
        "filenames": [entry.name for entry in manifest.shards],
        "shard_lengths": [entry.samples for entry in manifest.shards],
    }
    source = LabelSource.parse(manifest.label) if manifest.label not in (None, INDEX) else None
    if source is not None and source.field == "json" and len(source.path) == 1:
        info["alt_label"] = source.path[0]
    splits = old.get("splits") if isinstance(old.get("splits"), dict) else {}
    return _json({**old, "splits": {**(splits or {}), split: info}})


def wids_index(manifest: Manifest, *, name: str) -> bytes:
    """Return the list of shards that wids reads."""
    shards = [
        {"url": entry.name, "nsamples": entry.samples, "filesize": entry.bytes}
        for entry in manifest.shards
        if entry.samples
    ]
    return _json({"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards, "name": name})


def _json(value: Any) -> bytes:
    return f"{json.dumps(value, indent=2)}\n".encode()


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
    """Write the database of the shards, in their order, without those that have no samples."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA synchronous = OFF")  # the file gets its name when it is complete
        for statement in _TABLES:
            connection.execute(statement)
        for index, samples in enumerate(shards):
            _insert(connection, index, samples)
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
