"""Small datasets whose bytes never change, for comparison with the tools of other readers."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import wds_tools as wt

PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc0000003010100c9fe92ef"
    "0000000049454e44ae426082"
)
"""One red pixel."""


def write_plain(folder: Path) -> Path:
    """Write five samples in three shards; all tar headers have one block."""
    with wt.ShardWriter(folder / "plain-%02d.tar", maxcount=2, classes=["cat", "fig"]) as writer:
        for number in range(5):
            fields = {"png": PNG, "cls": number % 2, "txt": "hello" * 200 * number}
            writer.write({"__key__": f"{number:03d}", **fields})
    return folder


def write_long(folder: Path) -> Path:
    """Write four samples with names that need pax headers, and one that does not."""
    with wt.ShardWriter(folder / "long-%d.tar", maxcount=3) as writer:
        for number, key in enumerate(["é/1", "b" * 120, "plain", "train/" + "ü" * 60, "z"]):
            writer.write({"__key__": key, "png": PNG, "cls": number, "txt": f"caption {number}"})
    return folder


def write_foreign(folder: Path) -> Path:
    """Write shards as other tools do: fractions of seconds in pax headers, and folders between the samples."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(2):
        with tarfile.open(folder / f"foreign-{shard}.tar", "w") as archive:
            for number in range(2):
                key = f"part{shard}/{number}"
                info = tarfile.TarInfo(f"part{shard}/folder{number}")
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
                for name, data in {"png": PNG, "txt": b"caption", "json": b'{"a": 1}'}.items():
                    info = tarfile.TarInfo(f"{key}.{name}")
                    info.size, info.mtime = len(data), 1795355510.5 if number else 0
                    archive.addfile(info, io.BytesIO(data))
    wt.index_shards(f"{folder}/*.tar")
    return folder


WRITERS = {"plain": write_plain, "long": write_long, "foreign": write_foreign}
