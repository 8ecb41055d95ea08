"""Finds the datasets below folders by their manifests, and later those that are new or have changed.

Folders are opened relative to the folder above them, and symbolic links below a root are not followed. A folder whose
modification time has not changed is not listed again, so a scan takes a few system calls per folder.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from wds_tools.errors import ManifestError, OptionError, printable
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, from_json
from wds_tools.service.contents import DamagedFileError, Summary
from wds_tools.storage.base import MAX_FILE_BYTES, StoredFile, too_large

_log = logging.getLogger("wds_tools")
_MAX_DEPTH = 12
_SETTLED_SECONDS = 2.0  # after which a change of a folder must have changed its modification time
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Stamp(NamedTuple):
    """What changes when a file is replaced."""

    device: int
    inode: int
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Located:
    """A dataset, and where it is.

    Attributes:
        summary: What the catalogue shows.
        root: Index of its root.
        folders: Names of the folders from the root to the dataset.
        stamp: Of the manifest that was read.
    """

    summary: Summary
    root: int
    folders: tuple[str, ...]
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class _Listing:
    """The content of a folder that matters here."""

    mtime_ns: int
    folders: tuple[str, ...]
    has_manifest: bool
    is_settled: bool


class Catalogue:
    """The datasets below some folders. `scan` may run in a different thread from the readers.

    A dataset is named by its path below its root; a root that is a dataset, by the name of its folder. If two have the
    same name, the one of the first root is served.

    Raises:
        OptionError: A root does not exist or is not a folder.
    """

    def __init__(self, roots: Sequence[Path]) -> None:
        self._roots = [_open_root(root) for root in roots]
        self._root_names = [root.resolve().name or "dataset" for root in roots]
        self._listings: dict[tuple[int, tuple[str, ...]], _Listing] = {}
        self._datasets: dict[str, Located] = {}
        self._problems: dict[str, tuple[Stamp | None, str]] = {}
        self._mutex = threading.Lock()

    def close(self) -> None:
        """Close the folders."""
        with self._mutex:
            for root in self._roots:
                os.close(root)
            self._roots = []

    @property
    def datasets(self) -> Mapping[str, Located]:
        """The datasets of the last scan, by name, in order."""
        return self._datasets

    @property
    def problems(self) -> dict[str, str]:
        """Names of datasets with errors, and the error of each."""
        return {name: reason for name, (_, reason) in self._problems.items()}

    def scan(self) -> None:
        """Look for new, changed and removed datasets."""
        with self._mutex:
            datasets: dict[str, Located] = {}
            problems: dict[str, tuple[Stamp | None, str]] = {}
            listings: dict[tuple[int, tuple[str, ...]], _Listing] = {}
            for root, descriptor in enumerate(self._roots):
                for folders, folder in self._walk(root, descriptor, (), listings):
                    self._add(root, folders, folder, datasets, problems)
            for name in problems.keys() - self._problems.keys():
                _log.warning("%s is not served: %s", name, problems[name][1])
            self._listings = listings
            self._problems = problems
            self._datasets = dict(sorted(datasets.items()))

    @contextmanager
    def folder(self, dataset: Located) -> Iterator[int]:
        """Open the folder of a dataset; the value is its descriptor.

        Raises:
            OSError: It has been removed, or a part of its path has become a symbolic link.
        """
        descriptor = os.open(".", _FOLDER, dir_fd=self._roots[dataset.root])
        try:
            for name in dataset.folders:
                above, descriptor = descriptor, os.open(name, _FOLDER, dir_fd=descriptor)
                os.close(above)
            yield descriptor
        finally:
            os.close(descriptor)

    def files(self, dataset: Located) -> dict[str, StoredFile]:
        """Return the files of a dataset by name: the manifest, and the shards and indexes that it lists."""
        try:
            with self.folder(dataset) as folder:
                data, _ = _read_manifest(folder)
            if xxhash.xxh3_128_hexdigest(data) != dataset.summary.version:
                raise DamagedFileError("the manifest has changed")
            manifest = from_json(data)
        except (OSError, ManifestError) as error:
            raise DamagedFileError(f"the manifest cannot be read: {_reason(error)}") from error
        return files_of(data, manifest)

    def open(self, dataset: Located, file: StoredFile) -> int:
        """Open a file of a dataset and return the descriptor.

        Raises:
            DamagedFileError: It is missing, is not a regular file, or has the wrong length.
        """
        try:
            with self.folder(dataset) as folder:
                descriptor = os.open(file.name, _FILE, dir_fd=folder)
        except OSError as error:
            raise DamagedFileError(f"it cannot be opened: {_reason(error)}") from error
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size != file.bytes:
            os.close(descriptor)
            raise DamagedFileError(
                f"it has {status.st_size:,} bytes, but its manifest records {file.bytes:,}: "
                "it was truncated or replaced; copy or pack it again"
            )
        if file.name == MANIFEST_NAME and _stamp(status) != dataset.stamp:
            os.close(descriptor)
            raise DamagedFileError("the manifest has changed")
        return descriptor

    def has_file(self, dataset: Located, name: str, status: os.stat_result) -> bool:
        """Return whether a file that was opened is still the one of this name: not removed, and not replaced."""
        try:
            with self.folder(dataset) as folder:
                return os.path.samestat(os.stat(name, dir_fd=folder, follow_symlinks=False), status)
        except OSError:
            return False

    def _walk(
        self,
        root: int,
        descriptor: int,
        folders: tuple[str, ...],
        listings: dict[tuple[int, tuple[str, ...]], _Listing],
    ) -> Iterator[tuple[tuple[str, ...], int]]:
        """Yield (names of folders, descriptor) of each folder with a manifest; the descriptor is closed later."""
        try:
            listing = self._list(root, descriptor, folders)
        except OSError as error:
            _log.debug("%s cannot be listed: %s", "/".join(folders), error)
            return
        listings[root, folders] = listing
        if listing.has_manifest:
            yield folders, descriptor
            return
        for name in listing.folders if len(folders) < _MAX_DEPTH else ():
            try:
                below = os.open(name, _FOLDER, dir_fd=descriptor)
            except OSError:
                continue  # removed meanwhile, or not readable
            try:
                yield from self._walk(root, below, (*folders, name), listings)
            finally:
                os.close(below)

    def _list(self, root: int, descriptor: int, folders: tuple[str, ...]) -> _Listing:
        mtime_ns = os.fstat(descriptor).st_mtime_ns
        previous = self._listings.get((root, folders))
        if previous is not None and previous.is_settled and previous.mtime_ns == mtime_ns:
            return previous
        is_settled = abs(time.time() - mtime_ns / 1e9) > _SETTLED_SECONDS
        below, has_manifest = [], False
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if entry.name == MANIFEST_NAME:
                    has_manifest = entry.is_file(follow_symlinks=False)
                elif not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
        return _Listing(mtime_ns, tuple(sorted(below)), has_manifest, is_settled)

    def _add(
        self,
        root: int,
        folders: tuple[str, ...],
        folder: int,
        datasets: dict[str, Located],
        problems: dict[str, tuple[Stamp | None, str]],
    ) -> None:
        name = "/".join(folders) or self._root_names[root]
        if not name.isprintable():
            problems[printable(name).encode("ascii", "backslashreplace").decode()] = (None, "its name is not printable")
            return
        if name in datasets:
            problems[f"{name} (root {root + 1})"] = None, "another root has a dataset of the same name: rename one"
            return
        stamp = None
        try:
            stamp = _stamp(os.stat(MANIFEST_NAME, dir_fd=folder, follow_symlinks=False))
            previous, failed = self._datasets.get(name), self._problems.get(name)
            if previous is not None and (previous.stamp, previous.root) == (stamp, root):
                datasets[name] = previous
            elif failed is not None and failed[0] == stamp:
                problems[name] = failed
            else:
                data, stamp = _read_manifest(folder)
                summary = summary_of(name, data, from_json(data))
                datasets[name] = Located(summary, root, folders, stamp)
        except (OSError, ManifestError) as error:
            problems[name] = stamp, _reason(error)


def _open_root(root: Path) -> int:
    try:
        return os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise OptionError(f"{root} is not a folder that can be read ({error.strerror or error})") from error


def _stamp(status: os.stat_result) -> Stamp:
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _read_manifest(folder: int) -> tuple[bytes, Stamp]:
    descriptor = os.open(MANIFEST_NAME, _FILE, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE_BYTES:
            raise too_large(MANIFEST_NAME, status.st_size)
        return file.read(MAX_FILE_BYTES), _stamp(status)


def _reason(error: Exception) -> str:
    """Return what is wrong, without the path of a file."""
    return error.strerror or type(error).__name__ if isinstance(error, OSError) else str(error)


def files_of(data: bytes, manifest: Manifest) -> dict[str, StoredFile]:
    """Return the files of a dataset by name: the manifest, and the shards and indexes that it lists."""
    files = {MANIFEST_NAME: StoredFile(MANIFEST_NAME, len(data), xxhash.xxh3_128_hexdigest(data))}
    for shard in manifest.shards:
        files[shard.name] = StoredFile(shard.name, shard.bytes, shard.xxh3)
        files[shard.index] = StoredFile(shard.index, shard.index_bytes, shard.index_xxh3)
    return files


def summary_of(name: str, data: bytes, manifest: Manifest) -> Summary:
    """Return what the catalogue shows of a dataset."""
    details: dict[str, Any] = {
        "name": name,
        "samples": manifest.samples,
        "shards": len(manifest.shards),
        "bytes": manifest.bytes,
        "classes": len(manifest.classes),
        "fields": dict(manifest.fields),
        "images": asdict(manifest.images) if manifest.images else None,
        "shuffled": manifest.shuffled,
        "fingerprint": manifest.fingerprint,
    }
    return Summary(name, xxhash.xxh3_128_hexdigest(data), details)
