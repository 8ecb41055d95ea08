"""``index.json``, which MDS and LitData write beside their files."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from wds_tools.errors import MissingSourceError, SourceError
from wds_tools.sources.base import Collector, as_source_error

INDEX = "index.json"
_MAX_BYTES = 1 << 30


def read_index(folder: Path, what: str) -> dict[str, Any]:
    """Return the content of the index of a folder.

    Args:
        folder: The folder.
        what: Name of the format, for error messages.

    Raises:
        SourceError: There is none, or it is damaged.
    """
    path = folder / INDEX
    if not path.is_file():
        if below := datasets_in(folder):
            names = ", ".join(path.name for path in below)
            raise SourceError(
                f"{folder} has {what} in {names}: pack one at a time, such as {below[0]}, or each as a dataset of its "
                "own (--split folders)"
            )
        raise MissingSourceError(f"{folder} has no {INDEX}, so it is not {what}: check the path")
    with as_source_error(f"{path} cannot be read", ValueError, RecursionError):
        if path.stat().st_size > _MAX_BYTES:
            raise SourceError(f"{path} has {path.stat().st_size:,} bytes; allowed are {_MAX_BYTES:,}")
        found = json.loads(path.read_bytes())
    return found if isinstance(found, dict) else {}


def datasets_in(folder: Path) -> list[Path]:
    """Return the folders with an index in a folder that has none, sorted."""
    return [] if (folder / INDEX).is_file() else sorted(path.parent for path in folder.glob(f"*/{INDEX}"))


def child(folder: Path, name: str) -> Path:
    """Return the path of a file that an index names, which must be in the folder.

    Raises:
        ValueError: It is elsewhere.
    """
    path = Path(name)
    if path.is_absolute() or ".." in path.parts:
        raise ValueError(f"the file {name!r} is outside the folder")
    return folder / path


def account_files(found: Collector, folder: Path, used: Iterable[Path]) -> None:
    """State that the files below a folder that its index does not name are left out."""
    known = set(used)
    found_files = (path for path in folder.rglob("*") if path not in known and path.is_file())
    others = sorted(path.relative_to(folder).as_posix() for path in found_files)
    found.account.declare("file", others)
    for name in others:
        found.account.leave_out("file", name, f"{INDEX} does not name it")


def is_mds(path: Path) -> bool:
    """Return whether a folder, or a folder in it, has an index of MDS."""
    return _has(path, "shards")


def is_litdata(path: Path) -> bool:
    """Return whether a folder, or a folder in it, has an index of LitData."""
    return _has(path, "chunks")


def _has(path: Path, entry: str) -> bool:
    """Return whether the index of a folder, or of the first folder in it, has a list of dictionaries."""
    if path.name == INDEX and path.is_file():
        path = path.parent
    if not path.is_dir():
        return False
    folder = next(iter(datasets_in(path)), path)
    try:
        found = read_index(folder, "").get(entry)
    except SourceError:
        return False
    return isinstance(found, list) and bool(found) and all(isinstance(one, dict) for one in found)
