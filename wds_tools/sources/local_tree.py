"""A local folder as a tree: listed in the order of its paths, in threads if storage is slow, and read file by file."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from wds_tools.errors import SourceError
from wds_tools.options import RemoteOptions
from wds_tools.sources.base import FileTimes, SourceStoreError, as_read_error, check_size
from wds_tools.sources.file_names import is_hidden_name, may_have_hidden
from wds_tools.sources.inputs import File, path_bytes, path_text
from wds_tools.sources.trees import RemoteTree, TarTree, Tree, ZipTree
from wds_tools.storage import is_url
from wds_tools.storage.lock import why_unfinished

_NOT_LISTED = (errno.EACCES, errno.EPERM, errno.ELOOP)  # of a folder or link, for this user and until it is changed
_LISTING_THREADS = 16  # for a local folder on slow storage, such as a network
_MOST_PENDING = 4 * _LISTING_THREADS  # parts of folders that are listed, and those whose files are not used yet
_LONG_WAIT_SECONDS = 0.1  # in all
_ENTRIES = 1000  # entries of a folder that one thread looks at

_Identity = tuple[int, int]  # (device, inode)


class FolderTree(Tree):
    """A local folder; links are followed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = str(root)

    def read(self, path: str, size: int, location: tuple[int, ...]) -> bytes:  # noqa: ARG002 - found by its path
        """Read a file with one call."""
        if ".." in path.split("/"):
            raise SourceStoreError(
                f"{path!r} leads out of {self.name}: the plan is damaged, so pack again, into another folder"
            )
        full = os.fsencode(self.root) + b"/" + path_bytes(path)
        with as_read_error(f"{path_text(full)} cannot be read"):
            data, status = _read_all(full, size)
        check_size(path_text(full), len(data), size)
        if self.times is not None:
            self.times.check(path, status, shown=path_text(full))
        return data

    def later_than(self, paths: Iterable[str], time_ns: int) -> list[str]:
        """Return the files with a later modification time that is not in the future."""
        assert self.times is not None, "a tree is listed before"
        root = os.fsencode(self.root) + b"/"
        return self.times.later(((path, root + path_bytes(path)) for path in paths), time_ns)

    def _parts(self) -> Iterator[Sequence[File]]:
        root = _root_bytes(self.root)
        if (reason := why_unfinished(self.name, lambda name: (self.root / name).read_bytes())) is not None:
            raise SourceError(reason)
        empty_folders: list[str] = []
        times = FileTimes()
        for scanned in _called(partial(_scan, root, _Folder(b""), times.started_ns)):
            times.merge(scanned.times)
            if scanned.is_empty and scanned.path:
                empty_folders.append(path_text(scanned.path))
            yield scanned.files
        self.empty_folders, self.times = tuple(sorted(empty_folders)), times


def open_tree(src: str | Path, kind: str, remote: RemoteOptions) -> Tree:
    """Return a tree of a kind: "folder", which may be at a URL, "tar" or "zip"."""
    if kind == "tar":
        return TarTree(src, remote)
    if kind == "zip":
        return ZipTree(src)
    return RemoteTree(src, remote) if isinstance(src, str) and is_url(src) else FolderTree(Path(src))


def _root_bytes(root: Path) -> bytes:
    try:
        is_folder = stat.S_ISDIR(root.stat().st_mode)
    except OSError as error:
        raise SourceError(f"{root} cannot be read: {error.strerror}; expected a folder of images") from error
    if not is_folder:
        raise SourceError(f"{root} is not a folder; expected a folder of images")
    return os.fsencode(root)


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        _raise_failure(error, entry.path)
        return False  # a link to itself


def _raise_failure(error: OSError, path: bytes) -> None:
    """Raise an error if storage fails. A file that cannot be listed for another reason is skipped."""
    if error.errno not in _NOT_LISTED:
        raise SourceStoreError(f"{path_text(path)} cannot be listed: {error.strerror or error}") from error


class _Folder(NamedTuple):
    """A folder to list: its path, and the identities of its parents."""

    path: bytes
    parents: tuple[_Identity, ...] = ()


@dataclass(slots=True)
class _Scanned:
    """A part of a folder.

    Attributes:
        path: The folder.
        times: Times of its files.
        files: Its files.
        more: Lists further parts, and the folders in it.
        is_empty: Whether nothing is in the folder.
    """

    path: bytes
    times: FileTimes
    files: list[File] = field(default_factory=list)
    more: list[Callable[[], _Scanned]] = field(default_factory=list)
    is_empty: bool = False


def _called(first: Callable[[], _Scanned]) -> Iterator[_Scanned]:
    """Yield the results of functions that name others; in threads as soon as most of the time is spent waiting."""
    functions, started, used = [first], time.monotonic(), time.thread_time()
    while functions:
        busy = time.thread_time() - used
        if time.monotonic() - started - busy > max(busy, _LONG_WAIT_SECONDS):
            yield from _in_threads(functions)
            return
        scanned = functions.pop()()
        functions += reversed(scanned.more)  # in the order of their paths, which need not be sorted then
        yield scanned


def _in_threads(functions: list[Callable[[], _Scanned]]) -> Iterator[_Scanned]:
    results: SimpleQueue[Future[_Scanned]] = SimpleQueue()
    pool = ThreadPoolExecutor(_LISTING_THREADS)
    pending = 0
    try:
        while functions or pending:
            while functions and pending < _MOST_PENDING:
                pool.submit(functions.pop()).add_done_callback(results.put)
                pending += 1
            scanned = results.get().result()
            pending -= 1
            functions += reversed(scanned.more)
            yield scanned
    finally:
        pool.shutdown(cancel_futures=True)


def _scan(root: bytes, folder: _Folder, started_ns: int) -> _Scanned:
    """List a folder; of a large one, only the first entries."""
    path, parents = folder
    scanned = _Scanned(path, FileTimes(started_ns))
    try:
        status = os.stat(root + b"/" + path)  # noqa: PTH116 - Path does not accept bytes
        entries = sorted(os.scandir(root + b"/" + path), key=attrgetter("name"))
    except OSError as error:
        if not path:
            raise SourceError(f"{path_text(root)} cannot be read: {error.strerror}") from error
        _raise_failure(error, root + b"/" + path)
        scanned.files.append(File(path_text(path), 0, (), f"folder cannot be read: {error.strerror}"))
        return scanned
    identity = status.st_dev, status.st_ino
    if identity in parents:
        scanned.files.append(File(path_text(path), 0, (), "is a link to a folder that contains it"))
        return scanned
    scanned.is_empty = not entries
    inside = _Folder(path, (*parents, identity))
    for start in range(_ENTRIES, len(entries), _ENTRIES):
        scanned.more.append(partial(_look_at, root, inside, entries[start : start + _ENTRIES], started_ns))
    first = _look_at(root, inside, entries[:_ENTRIES], started_ns)
    scanned.files, scanned.times = first.files, first.times
    scanned.more += first.more
    return scanned


def _look_at(root: bytes, folder: _Folder, entries: Sequence[os.DirEntry[bytes]], started_ns: int) -> _Scanned:
    """Return the files among entries of a folder, with their lengths and times."""
    scanned = _Scanned(folder.path, FileTimes(started_ns))
    start = f"{path_text(folder.path)}/" if folder.path else ""
    names = path_text(b"\0".join([entry.name for entry in entries])).split("\0") if entries else []
    has_hidden = may_have_hidden(names)
    paths: list[str] = []
    statuses: list[os.stat_result] = []
    for name, entry in zip(names, entries, strict=True):
        path = start + name
        if has_hidden and is_hidden_name(name):
            # A slash at its end tells a folder, whose content is not listed, from a file.
            scanned.files.append(File(f"{path}/" if _is_folder(entry) else path, 0, ()))
            continue
        try:
            if entry.is_dir():
                scanned.more.append(partial(_scan, root, _Folder(path_bytes(path), folder.parents), started_ns))
                continue
            status = entry.stat()
        except OSError as error:
            scanned.files.append(File(path, 0, (), _why_not_listed(entry, error)))
            continue
        if stat.S_ISREG(status.st_mode):
            paths.append(path)
            statuses.append(status)
        else:
            scanned.files.append(File(path, 0, (), "is not a regular file"))
    scanned.files += map(File, paths, [status.st_size for status in statuses])
    scanned.times.add(paths, statuses)
    return scanned


def _why_not_listed(entry: os.DirEntry[bytes], error: OSError) -> str:
    """Return why a file is listed without its length; raise an error if storage fails."""
    if not (entry.is_symlink() and error.errno in (errno.ENOENT, errno.ENOTDIR)):
        _raise_failure(error, entry.path)
    return "is a broken link" if entry.is_symlink() else f"cannot be read: {error.strerror}"


def _read_all(path: bytes, size: int) -> tuple[bytes, os.stat_result]:
    """Read a file with one call, and return its status too.

    One byte more than ``size`` is requested, to notice a file that has grown.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe of this name must not block
    try:
        data = os.read(descriptor, size + 1)
        if len(data) == size:
            return data, os.fstat(descriptor)
        parts = [data]
        while sum(map(len, parts)) <= size and (data := os.read(descriptor, size + 1)):
            parts.append(data)  # one read returns 2 GiB at most
        return b"".join(parts), os.fstat(descriptor)
    finally:
        os.close(descriptor)
