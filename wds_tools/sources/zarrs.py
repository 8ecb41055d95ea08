"""Zarr, versions 2 and 3, in a folder: an array, or a group with ``images`` and ``labels``, or in groups below it.

The metadata may name a codec that unpickles data, which can run code. So the metadata is checked
before Zarr opens the store, and only codecs that cannot run code are allowed.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import xxhash

from wds_tools.errors import SourceError
from wds_tools.sources.array_kinds import Rows
from wds_tools.sources.array_roles import Contents
from wds_tools.sources.arrays import ArraySource
from wds_tools.sources.base import Collector, SourceStoreError, as_read_error, import_optional

CODECS = frozenset(
    "blosc zlib gzip zstd lz4 lzma bz2 delta shuffle bitround packbits crc32 crc32c adler32 fletcher32 bytes endian "  # noqa: SIM905 - a list
    "transpose sharding_indexed vlen-utf8 vlen-bytes".split()
)
_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zmetadata")
_MAX_METADATA_BYTES = 16 << 20
_CHUNK = re.compile(r"c|(c[./])?\d+([./]\d+)*")  # its path in the folder of its array


class ZarrSource(ArraySource):
    """A Zarr store in a local folder. A chunk is read once per worker and window, not once per image."""

    kind = "zarr"

    def open(self) -> Contents:
        zarr = import_optional("zarr", "Zarr")
        for path in _walk(self.path):
            if path.name in _METADATA:
                _check_metadata(path)
        with as_read_error(f"{self.path} cannot be read as Zarr", KeyError, ValueError, TypeError, RuntimeError):
            node = zarr.open(self.path, mode="r")
            contents = Contents()
            with warnings.catch_warnings():  # about other files, which the account has
                warnings.filterwarnings("ignore", "Object at", UserWarning)
                members = [] if isinstance(node, zarr.Array) else sorted(node.members(max_depth=None))
            self._stored = {
                name: member for name, member in members or [("images", node)] if isinstance(member, zarr.Array)
            }
            self._nodes = {"", *(name for name, _ in members)}
            self._arrays = self._stored.keys() if members else {""}
            for prefix, member in [("", node), *((f"{name}@", member) for name, member in members)]:
                for word, value in member.attrs.asdict().items():
                    contents.add_entry("attribute", f"{prefix}{word}", word, value)
            for name, array in self._stored.items():
                if array.dtype.kind == "O":
                    contents.refuse(
                        name, "has objects, which are not read, because they can be pickles, which can run code"
                    )
                else:  # the units of reading are its shards, or its chunks if it has none
                    chunks = getattr(array, "shards", None) or array.chunks
                    contents.add(name, Rows(array.shape, array.dtype, array.__getitem__, chunks))
        return contents

    def files(self) -> list[Path]:
        # `collect` identifies the chunks by name, length and modification time
        return sorted(path for path in _walk(self.path) if path.name in _METADATA)

    def why_left_out(self, path: str) -> str | None:
        folder, _, name = path.rpartition("/")
        parts = path.split("/")
        splits = (("/".join(parts[:level]), "/".join(parts[level:])) for level in range(len(parts)))
        is_chunk = any(array in self._arrays and _CHUNK.fullmatch(chunk) for array, chunk in splits)
        is_metadata = name in (*_METADATA, ".zattrs") and folder in self._nodes
        return None if is_chunk or is_metadata else super().why_left_out(path)

    def collect(self, found: Collector) -> None:
        super().collect(found)
        images = self._stored.get(self._roles.image)
        if images is not None and (missing := self._missing(images)):
            found.account.notes.append(  # as in a copy that was interrupted: Zarr reads zeros there
                f"{missing} of the images are missing, and are read as the fill value; "
                "Zarr leaves them out if all pixels have this value, but the store can also be incomplete"
            )
        digest = xxhash.xxh3_128()
        for path in sorted(_walk(self.path)):
            status = path.stat()
            name = os.fsencode(path.relative_to(self.path))
            digest.update(b"%s\0%d\0%d\n" % (name, status.st_size, status.st_mtime_ns))
        found.stamp += digest.hexdigest()

    def _missing(self, array: Any) -> str:
        """Return how many files with chunks of an array are missing; empty if there are all."""
        unit = getattr(array, "shards", None)
        folder = self.path / array.path
        expected = math.prod(-(-size // part) for size, part in zip(array.shape, unit or array.chunks, strict=True))
        names = (path.relative_to(folder).as_posix() for path in _walk(folder))
        missing = expected - sum(map(bool, map(_CHUNK.fullmatch, names)))
        return f"{missing:,} of {expected:,} {'shards' if unit else 'chunks'}" if missing > 0 else ""


def _walk(root: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(root, onerror=_raise):
        for name in names:
            yield Path(folder, name)


def _raise(error: OSError) -> None:
    """Raise an error that `os.walk` would ignore: without a part of the chunks, Zarr reads zeros."""
    raise SourceStoreError(f"{error.filename} cannot be listed: {error.strerror}") from error


def _check_metadata(path: Path) -> None:
    """Raise an error for codecs that may run code from the data."""
    with as_read_error(f"{path} is not Zarr metadata", ValueError, RecursionError):
        if path.stat().st_size > _MAX_METADATA_BYTES:
            raise SourceError(f"{path} has {path.stat().st_size:,} bytes; allowed are {_MAX_METADATA_BYTES:,}")
        unknown = set(_codecs(json.loads(path.read_bytes()))) - CODECS
    if unknown:
        raise SourceError(
            f"{path} names the codec {min(unknown)!r}, which may run code from the data; "
            f"allowed are {', '.join(sorted(CODECS))}"
        )


def _codecs(node: Any, *, inside: bool = False) -> Iterator[str]:
    """Yield the name of every codec in the metadata, at any depth."""
    if isinstance(node, dict):
        if inside:
            yield str(node.get("id") or node.get("name") or "").removeprefix("numcodecs.")
        for word, value in node.items():
            yield from _codecs(value, inside=word in ("codecs", "filters", "compressor", "index_codecs"))
    elif isinstance(node, list):
        for value in node:
            yield from _codecs(value, inside=inside)
    elif inside and isinstance(node, str):
        yield node
