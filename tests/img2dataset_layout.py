"""Writes a folder as img2dataset 1.47 does: the same names, columns and types, tar headers and order of rows.

It was compared with a run of img2dataset 1.47.0 (output_format webdataset, two additional columns) against a local
server: the schema of the tables, the members of the tars with their pax headers, and the keys of the statistics agree.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pictures import encode
from PIL import Image

SCHEMA = pa.schema(
    [
        ("similarity", pa.float64()),
        ("punsafe", pa.float64()),
        ("caption", pa.string()),
        ("url", pa.string()),
        ("key", pa.string()),
        ("status", pa.string()),
        ("error_message", pa.string()),
        ("width", pa.int32()),
        ("height", pa.int32()),
        ("original_width", pa.int32()),
        ("original_height", pa.int32()),
        ("exif", pa.string()),
        ("sha256", pa.string()),
    ]
)


def write_img2dataset(folder: Path, rows: Sequence[dict[str, Any]], *, per_shard: int) -> Path:
    """Write shards, tables and statistics.

    Args:
        folder: Where the files are written.
        rows: ``caption``, ``similarity``, ``punsafe``, and ``fails=True`` for a failed download.
        per_shard: Rows of a shard.
    """
    folder.mkdir(parents=True)
    for start in range(0, len(rows), per_shard):
        _write_shard(folder / f"{start // per_shard:05d}", start // per_shard, rows[start : start + per_shard])
    return folder


def _write_shard(stem: Path, shard: int, rows: Sequence[dict[str, Any]]) -> None:
    table = []
    with tarfile.open(f"{stem}.tar", "w") as archive:  # pax headers, because the times are fractions
        for number, row in enumerate(rows):
            key, meta = f"{shard:05d}{number:04d}", dict.fromkeys(SCHEMA.names)
            meta |= {name: row.get(name) for name in ("similarity", "punsafe", "caption")}
            meta |= {"url": f"http://localhost/{key}.jpg", "key": key}
            if row.get("fails"):
                meta |= {"status": "failed_to_download", "error_message": "HTTP Error 404: File not found"}
                table.append(meta)
                continue
            data = _image(100 + number)
            meta |= {"status": "success", "width": 32, "height": 24, "original_width": 320 + number}
            meta |= {"original_height": 240, "exif": "{}", "sha256": hashlib.sha256(data).hexdigest()}
            table.insert(0, meta)  # rows are in the order in which downloads end
            fields = {"jpg": data, "json": json.dumps(meta, indent=4).encode(), "txt": (meta["caption"] or "").encode()}
            for name, content in fields.items():
                info = tarfile.TarInfo(f"{key}.{name}")
                info.size, info.mode, info.mtime = len(content), 0o444, 1795355510.5056145
                info.uname = info.gname = "bigdata"
                archive.addfile(info, io.BytesIO(content))
    pq.write_table(pa.Table.from_pylist(table, SCHEMA), f"{stem}.parquet")
    successes = sum(row["status"] == "success" for row in table)
    statistics = {"count": len(rows), "successes": successes, "failed_to_download": len(rows) - successes}
    statistics |= {"failed_to_resize": 0, "duration": 0.5, "start_time": 1.0, "end_time": 1.5, "status_dict": {}}
    Path(f"{stem}_stats.json").write_text(json.dumps(statistics, indent=4))


def _image(red: int) -> bytes:
    return encode(Image.new("RGB", (32, 24), (red, 30, 90)), "JPEG")
