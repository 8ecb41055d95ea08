"""What is in a folder, and tar files as other programs write them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from pathlib import Path

from wds_tools.format.manifest import Manifest, from_json


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder and of the folders in it, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def manifest_of(folder: Path) -> Manifest:
    """Return the manifest of a dataset."""
    return from_json((folder / "manifest.json").read_bytes())


def write_tar(path: Path, members: Iterable[tuple[str, bytes]], tar_format: int = tarfile.DEFAULT_FORMAT) -> Path:
    """Write names and contents as a tar file, with Python's own library; return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path
