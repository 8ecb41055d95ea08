"""Objects written below a URL: whole, checked, tried again; by any file system of fsspec that can write."""

from __future__ import annotations

import inspect
import logging
import re
import secrets
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import fsspec

from wds_tools.errors import OptionError, StoreError

_log = logging.getLogger("wds_tools")
ATTEMPTS = 5
FIRST_DELAY_SECONDS = 1.0  # doubled each time, with jitter: 15 to 30 s in all
_PAUSE_SECONDS = 0.2
_NO_WRITING = {"http", "https", "data", "zip", "tar", "github", "git", "libarchive", "hf"}
_SETTINGS = {  # s3fs reads ahead 10 parts of 50 MB for each object; 4 fill a network as well
    "s3": {"max_concurrency": 4},
    "s3a": {"max_concurrency": 4},
}
_PACKAGES = {
    **dict.fromkeys(("s3", "s3a"), "wds-tools[s3]"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("abfs", "abfss", "az"), "adlfs"),
}
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError, TypeError, ValueError)
_Answer = TypeVar("_Answer")


def _settings(scheme: str) -> dict[str, int]:
    """Return the settings that the installed file system has: earlier ones upload one part at a time."""
    if scheme not in _SETTINGS:
        return {}
    known = inspect.signature(fsspec.get_filesystem_class(scheme).__init__).parameters
    return {name: value for name, value in _SETTINGS[scheme].items() if name in known}


class StopUploadError(Exception):
    """The upload is wanted no more."""


class Bucket:
    """The objects of one folder at a URL. It may be used from several threads, but not in a forked process.

    An object appears whole where the store works that way (S3, Google, Azure, memory: one request, or parts that are
    joined at the end). Elsewhere, as with SFTP, it may be seen half-written: what names it has to be written later.

    Args:
        url: Of the folder.

    Raises:
        OptionError: Nothing can be written there, or no loader could read it.
        StoreError: A package is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        scheme, _, path = self.url.partition("://")
        if scheme in _NO_WRITING or "::" in url:
            raise OptionError(
                f"{url}: nothing can be written there; allowed are folders and what fsspec writes to, such as "
                "s3://bucket/train, gs://bucket/train or abfs://container/train"
            )
        if not path or re.search(r"[\\*?\[\]{}#\s]", path):
            raise OptionError(
                f"{url!r} is no URL of a folder: it needs a path without spaces and any of *?[]{{}}#\\, such as "
                "s3://bucket/train"
            )
        try:
            # Not an instance that others share: what they have listed is not asked for again.
            self._system, self._root = fsspec.core.url_to_fs(self.url, skip_instance_cache=True, **_settings(scheme))
        except ImportError as error:
            package = _PACKAGES.get(scheme)
            remedy = f"try `pip install '{package}'`" if package else "install that, then run the same command again"
            raise StoreError(f"{scheme}:// needs a package that is not installed: {error}; {remedy}") from error
        except ValueError as error:
            raise OptionError(f"{url}: {error}; allowed are s3://, gs:// and other URLs that fsspec knows") from error

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the objects in the folder, or in one in it, by name, with their lengths."""
        try:
            entries = self._ask(folder, lambda path: self._system.ls(path, detail=True))
        except FileNotFoundError:
            return {}
        files = [entry for entry in entries if entry["type"] == "file"]
        return {entry["name"].rpartition("/")[2]: int(entry["size"] or 0) for entry in files}

    def read(self, name: str) -> bytes | None:
        """Return an object, or None if it is not there."""
        try:
            return bytes(self._ask(name, self._system.cat_file))
        except FileNotFoundError:
            return None

    def read_all(self, folder: str) -> dict[str, bytes]:
        """Return all objects of a folder in it, many at a time where the store can."""
        names = list(self.sizes(folder))
        if not names:
            return {}
        root = self._path(folder)
        found = self._ask(folder, lambda path: self._system.cat([f"{path}/{name}" for name in names], on_error="omit"))
        return {path.removeprefix(root).lstrip("/").rpartition("/")[2]: bytes(data) for path, data in found.items()}

    def put(self, path: Path, name: str, *, advance: Callable[[int], None] | None = None) -> None:
        """Upload a file, and check that its length arrived.

        Args:
            path: Of the file.
            name: Of the object; one of that name is replaced.
            advance: Told how many bytes are up; may raise `StopUploadError`.

        Raises:
            StoreError: It could not be done, however often it was tried.
        """
        size = path.stat().st_size
        watch = _Watch(advance or (lambda _: None))

        def upload(where: str) -> None:
            watch.restart()
            self._system.put_file(str(path), where, callback=watch)
            arrived = self._system.info(where)["size"]
            if arrived != size:
                with suppress(Exception):  # nobody shall find half a manifest; the error is another
                    self._system.rm([where])
                raise OSError(f"{size:,} bytes were sent, {arrived:,} are there")
            watch.finish(size)

        try:
            self._ask(name, upload, watch.pause)
        except FileNotFoundError as error:
            reason = str(error) or "not found"
            raise StoreError(f"{self.url}/{name} cannot be written: {reason}; is the bucket there?") from error

    def write(self, name: str, data: bytes) -> None:
        """Upload a few bytes."""
        # A file, because put_file makes the folder where a store has folders, and pipe_file does not.
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            self.put(Path(file.name), name)

    def remove(self, names: Iterable[str], folder: str = "") -> None:
        """Remove those of these objects that are there."""
        there = self.sizes(folder)
        paths = [f"{self._path(folder)}/{name}" for name in names if name in there]
        if paths:
            self._ask(folder, lambda _: self._system.rm(paths))

    def remove_folder(self, name: str) -> None:
        """Remove a folder in it with all that it holds."""
        with suppress(FileNotFoundError):
            self._ask(name, lambda path: self._system.rm(path, recursive=True))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else str(self._root)

    def _ask(
        self, name: str, request: Callable[[str], _Answer], pause: Callable[[float], None] = time.sleep
    ) -> _Answer:
        """Run a request, several times if it fails; FileNotFoundError stays itself."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                self._system.invalidate_cache()
                return request(self._path(name))
            except (FileNotFoundError, StopUploadError):
                raise
            except Exception as error:  # each of fsspec's many backends has its own errors
                if attempt == ATTEMPTS or _is_final(error):
                    raise self._explain(name, error, attempt) from error
                _log.debug("attempt %d of %d failed: %s", attempt, ATTEMPTS, self._explain(name, error, 1))
            pause(FIRST_DELAY_SECONDS * 2 ** (attempt - 1) * (1 + secrets.randbelow(1000) / 1000))
        raise AssertionError("the last attempt returns or raises")

    def _explain(self, name: str, error: Exception, attempts: int) -> StoreError:
        times = f" (tried {attempts} times)" if attempts > 1 else ""
        reason = str(error).partition("?")[0] or "no reason given"  # what follows may be a signature
        where = f"{self.url}/{name}" if name else self.url
        return StoreError(f"{where}: {type(error).__name__}: {reason}{times}")


class _Watch(fsspec.Callback):  # type: ignore[misc]
    """Passes on how many bytes are up; those of an attempt that failed are taken back."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        super().__init__()
        self._advance = advance
        self._told = 0

    def relative_update(self, inc: int = 1) -> None:
        self._told += inc
        self._advance(inc)

    def restart(self) -> None:
        self._advance(-self._told)
        self._told = 0

    def pause(self, seconds: float) -> None:
        """Sleep, unless the upload is wanted no more."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._advance(0)
            time.sleep(min(seconds, _PAUSE_SECONDS))

    def finish(self, size: int) -> None:
        self.relative_update(size - self._told)  # some file systems tell nothing


def _is_final(error: Exception) -> bool:
    """Tell whether the same error would come again."""
    return isinstance(error, _FINAL) or "Credential" in type(error).__name__
