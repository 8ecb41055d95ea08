"""The folder of the shards that `index_shards` indexes: a local one, or one at a URL, which is read as a stream."""

from __future__ import annotations

import glob
import io
import mmap
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from wds_tools.errors import NotADatasetError, OptionError, TruncatedShardError, WdsToolsError
from wds_tools.format.tar import Bytes
from wds_tools.options import RemoteOptions
from wds_tools.packing.output_folder import BucketFolder, LocalFolder
from wds_tools.packing.remote_destination import parse_destination
from wds_tools.sources.file_names import mixed_splits
from wds_tools.storage import Store, join, open_store, split_folder
from wds_tools.storage.lock import why_unfinished
from wds_tools.storage.patterns import expand_pattern
from wds_tools.storage.stream import stream_object

Advance = Callable[[int], object]
NOT_WRITABLE = (
    "indexes are written to the folder of the shards: make it writable, or copy the shards to a writable folder"
)
"""What to do if the folder of shards is not writable."""


@dataclass(frozen=True)
class LocalShards:
    """The shards of a local folder. It can be sent to other processes."""

    folder: Path

    @contextmanager
    def open(self, shard: str, size: int, advance: Advance) -> Iterator[Bytes]:
        """Open a shard, to be read once from start to end; ``advance`` is called with the number of bytes read."""
        path = self.folder / shard
        try:
            with path.open("rb") as file:
                _refuse_empty(size, shard)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except WdsToolsError:
            raise
        except OSError as error:
            raise NotADatasetError(f"shard {path} cannot be read: {error.strerror}; check the path") from error
        mapped.madvise(mmap.MADV_SEQUENTIAL)
        # Not closed here: closing fails while the traceback of an error refers to a part of the view.
        yield memoryview(mapped)
        advance(len(mapped))


@dataclass(frozen=True)
class RemoteShards:
    """The shards of a folder at a URL. It can be sent to other processes."""

    store: Store

    @contextmanager
    def open(self, shard: str, size: int, advance: Advance) -> Iterator[Bytes]:
        """Open a shard as a stream."""
        _refuse_empty(size, shard)
        yield stream_object(self.store, shard, total_bytes=size, on_chunk=lambda _start, data: advance(len(data)))


class LocalIndexFolder(LocalFolder):
    """A local folder of shards."""

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        return sorted(entry.name for entry in os.scandir(self.folder) if entry.is_file())

    def size(self, shard: str) -> int:
        """Return the length of a shard in bytes."""
        return (self.folder / shard).stat().st_size

    @property
    def shards(self) -> LocalShards:
        """What reads its shards."""
        return LocalShards(self.folder)


class RemoteIndexFolder(BucketFolder):
    """A folder of shards at a URL. Shards are read in ranges, and nothing of them is written to the local disk."""

    def __init__(self, url: str, remote: RemoteOptions) -> None:
        super().__init__(url, remote)
        self._sizes = self.bucket.sizes()
        self._store = open_store(self.name, remote=replace(remote, cache_bytes=1))  # every byte is read only once

    def names(self) -> list[str]:
        """Return the names of all files, sorted."""
        return sorted(self._sizes)

    def size(self, shard: str) -> int:
        """Return the length of a shard."""
        return self._sizes[shard]

    @property
    def shards(self) -> RemoteShards:
        """What reads its shards."""
        return RemoteShards(self._store)

    def read(self, name: str) -> bytes | None:
        """Return the content of an object."""
        return super().read(name) if name in self._sizes or "/" in name else None


IndexFolder = LocalIndexFolder | RemoteIndexFolder


def _refuse_empty(size: int, shard: str) -> None:
    if size == 0:
        raise TruncatedShardError("is empty: copy it again, or pack it again", shard=shard, offset=0)


def open_folders(patterns: Sequence[str], remote: RemoteOptions) -> list[tuple[IndexFolder, list[str]]]:
    """Return the folders of the shards that patterns name, and the names of the shards in each.

    Raises:
        NotADatasetError: A pattern matches nothing, a shard does not exist, or a folder is unfinished.
        OptionError: A shard is given twice, or a URL is not writable.
        StoreError: The storage at a URL fails.
    """
    remote_folders: dict[str, RemoteIndexFolder] = {}

    def remote_folder(url: str) -> RemoteIndexFolder:
        if url not in remote_folders:
            remote_folders[url] = RemoteIndexFolder(url, remote)
        return remote_folders[url]

    locations = [location for pattern in patterns for location in _expand(pattern, remote_folder)]
    if not locations:
        raise OptionError("no pattern was given; name shards, such as 'train-{000000..000009}.tar'")
    for location in locations:
        if isinstance(location, Path):
            _check_local_shard(location)
        else:
            _check_remote_shard(location, remote_folder)
    repeated = [(location, count) for location, count in Counter(locations).items() if count > 1]
    if repeated:
        location, count = repeated[0]
        raise OptionError(f"shard {split_folder(str(location))[1]} is named {count} times; name each shard once")
    by_folder: dict[str, list[Path | str]] = {}
    for location in locations:
        by_folder.setdefault(_folder_of(location), []).append(location)
    folders: list[tuple[IndexFolder, list[str]]] = []
    for name, shards in by_folder.items():
        first = shards[0]
        folder = LocalIndexFolder(first.parent) if isinstance(first, Path) else remote_folder(name)
        if (reason := why_unfinished(folder.name, folder.read)) is not None:
            raise NotADatasetError(reason)
        folders.append((folder, [split_folder(str(location))[1] for location in shards]))
    return folders


def _folder_of(location: Path | str) -> str:
    return str(location.parent) if isinstance(location, Path) else split_folder(location)[0]


def _expand(pattern: str, remote_folder: Callable[[str], RemoteIndexFolder]) -> Iterator[Path | str]:
    """Yield the shards that a pattern names: local paths, and URLs as text. Globs of URLs use a listing."""
    for name in expand_pattern(pattern):
        location = parse_destination(name)
        if isinstance(location, Path):
            yield location
            continue
        url, last = split_folder(location)
        if not glob.has_magic(last):
            yield location
            continue
        matching = [file for file in remote_folder(url).names() if fnmatchcase(file, last)]
        if not matching:
            raise NotADatasetError(f"pattern {pattern!r} matches no file; check the URL, and quote it in the shell")
        yield from (join(url, file) for file in matching)


def _check_local_shard(path: Path) -> None:
    if path.is_dir():
        raise NotADatasetError(f"{path} is a folder; name the shards in it, such as '{path}/*.tar'")
    if not path.is_file():
        raise NotADatasetError(f"shard {path} does not exist; check the path and the range of the pattern")
    if path.suffix != ".tar":
        raise OptionError(
            f"shard {path} does not end in .tar; only plain tar files can be indexed: decompress it first, or write it "
            "again with `wds-tools reshard`, which also reads compressed ones"
        )


def _check_remote_shard(location: str, remote_folder: Callable[[str], RemoteIndexFolder]) -> None:
    url, name = split_folder(location)
    if not name.endswith(".tar"):
        raise OptionError(
            f"{location} does not end in .tar; only plain tar files can be indexed: name the shards in a folder, such "
            f"as '{location}/*.tar'"
        )
    if name not in remote_folder(url).names():
        raise NotADatasetError(f"shard {location} does not exist; check the URL and the range of the pattern")


class Replaced:
    """Contents of replaced index files, in a temporary file, until the manifest of the new ones is written."""

    def __init__(self) -> None:
        self._file: IO[bytes] = io.BytesIO()
        self._sizes: list[tuple[str, int]] = []

    def add(self, name: str, data: bytes) -> None:
        """Keep the content of an index file that is about to be replaced."""
        if not self._sizes:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._sizes.append((name, self._file.write(data)))

    def restore(self, folder: IndexFolder) -> None:
        """Write the index files as they were."""
        self._file.seek(0)
        for name, size in self._sizes:
            folder.write(name, self._file.read(size))

    def close(self) -> None:
        """Delete the temporary file."""
        self._file.close()


def check_splits(folder: IndexFolder, shards: Sequence[str], given: str) -> None:
    """Check that the shards of a folder are of one split, or that the pattern names all of them."""
    if not (splits := mixed_splits(shards, given)):
        return
    first, names = next(iter(splits)), ", ".join(splits)
    one, together = join(folder.name, splits[first]), join(folder.name, f"*{{{','.join(splits)}}}*.tar")
    raise OptionError(
        f"{folder.name} has shards of several splits ({names}): index each with a manifest of its own, such as "
        f"'{one}' with --manifest {first}.json (manifest='{first}.json'); the pattern '{together}' indexes all of them"
    )
