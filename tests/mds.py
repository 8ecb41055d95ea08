"""Writes MDS without MosaicML Streaming."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


def write(folder: Path, samples: Sequence[tuple[bytes, int]], *, per_shard: int = 5, compressed: bool = False) -> Path:
    """Write images and labels in the columns ``image`` and ``label``."""
    folder.mkdir(parents=True)
    shards = []
    for number, start in enumerate(range(0, len(samples), per_shard)):
        data = _shard(samples[start : start + per_shard])
        name = f"shard.{number:05d}.mds"
        raw = {"basename": name, "bytes": len(data), "hashes": {}}
        packed = None
        if compressed:
            out = pa.compress(data, codec="zstd", asbytes=True)
            packed = {"basename": f"{name}.zstd", "bytes": len(out), "hashes": {}}
        (folder / (packed["basename"] if packed else name)).write_bytes(out if compressed else data)
        shards.append(
            {
                "column_encodings": ["jpeg", "int"],
                "column_names": ["image", "label"],
                "column_sizes": [None, 8],
                "compression": "zstd" if compressed else None,
                "format": "mds",
                "hashes": [],
                "raw_data": raw,
                "samples": len(samples[start : start + per_shard]),
                "size_limit": 1 << 26,
                "version": 2,
                "zip_data": packed,
            }
        )
    (folder / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))
    return folder


def _shard(samples: Sequence[tuple[bytes, int]]) -> bytes:
    rows = [np.uint32(len(image)).tobytes() + image + np.int64(label).tobytes() for image, label in samples]
    header: dict[str, Any] = {"format": "mds"}
    text = json.dumps(header).encode()
    offsets = np.cumsum([0, *map(len, rows)]) + 4 * (len(rows) + 2) + len(text)
    return np.uint32(len(rows)).tobytes() + offsets.astype("<u4").tobytes() + text + b"".join(rows)
