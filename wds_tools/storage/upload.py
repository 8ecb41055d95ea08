"""Upload of objects to a URL through any writable fsspec file system, with retries and a length check."""

from __future__ import annotations

import inspect
import re
import tempfile
import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import fsspec

from wds_tools.errors import ManifestError, OptionError, StoreError
from wds_tools.options import DEFAULT_RETRY_SECONDS, RemoteOptions
from wds_tools.storage.base import MAX_FILE_BYTES, too_large
from wds_tools.storage.requests.failures import clean_url, without_secrets
from wds_tools.storage.requests.fsspec_client import PACKAGES
from wds_tools.storage.requests.remote_folder import options_for
from wds_tools.storage.requests.retry import RetryPolicy, call
from wds_tools.storage_options import cause_without_secrets, redacted, secrets_of

POLICY = RetryPolicy()
_LEAST_ATTEMPTS = 5  # an upload may take longer than the time of the policy
_PAUSE_SECONDS = 0.2
_READ_ONLY_SCHEMES = {"http", "https", "data", "zip", "tar", "github", "git", "libarchive", "hf"}
_SETTINGS = {  # by default s3fs reads 10 parts of 50 MB of an object at once; 4 saturate a network too
    "s3": {"max_concurrency": 4},
    "s3a": {"max_concurrency": 4},
}
_Result = TypeVar("_Result")


def _settings(scheme: str) -> dict[str, int]:
    """Return the settings that the installed file system supports; old versions upload part by part."""
    if scheme not in _SETTINGS:
        return {}
    supported = inspect.signature(fsspec.get_filesystem_class(scheme).__init__).parameters
    return {name: value for name, value in _SETTINGS[scheme].items() if name in supported}


class StopUploadError(Exception):
    """Raised by the ``advance`` function of `Bucket.put` to cancel an upload."""


class Bucket:
    """Objects in one folder at a URL. Several threads may use it, but not a forked process.

    On S3, Google, Azure and in memory an object becomes visible when it is complete. Other file
    systems, such as SFTP, may show a partial object, so write an object before the one that refers
    to it.

    Args:
        url: URL of the folder.
        remote: How URLs are read and written; None uses the defaults.

    Raises:
        OptionError: The URL is not writable, or a loader could not read it.
        StoreError: A required package is not installed.
    """

    def __init__(self, url: str, *, remote: RemoteOptions | None = None) -> None:
        self.url = clean_url(url).rstrip("/")
        self._remote = remote or RemoteOptions.of()
        self._secrets = secrets_of(self._remote.storage_options, url)
        has_default = self._remote.retry_seconds == DEFAULT_RETRY_SECONDS
        self._policy = POLICY if has_default else RetryPolicy(self._remote.retry_seconds)
        scheme, _, path = url.partition("://")
        if scheme in _READ_ONLY_SCHEMES or "::" in url:
            raise OptionError(
                f"{clean_url(url)} is not writable; allowed are folders and URLs that fsspec can write to, such as "
                "s3://bucket/train, gs://bucket/train or abfs://container/train"
            )
        if not path or re.search(r"[\\*?\[\]{}#\s]", path):
            raise OptionError(
                f"{redacted(url, self._secrets)!r} is not the URL of a folder: expected a path without spaces and "
                "without *?[]{}#\\, such as s3://bucket/train"
            )
        try:
            # Not the instance that fsspec shares: that one may return cached, outdated listings.
            options = {**_settings(scheme), **options_for(url, self._remote.storage_options)}
            self._system, self._root = fsspec.core.url_to_fs(url.rstrip("/"), skip_instance_cache=True, **options)
        except ImportError as error:
            package = PACKAGES.get(scheme)
            remedy = f"try `pip install '{package}'`" if package else "install it, then run the same command again"
            raise StoreError(f"{scheme}:// needs a package that is not installed: {error}; {remedy}") from error
        except (TypeError, ValueError) as error:
            reason = redacted(str(error), self._secrets)
            raise OptionError(
                f"{clean_url(url)}: {reason}; allowed are s3://, gs:// and other URLs that fsspec supports, and the "
                "options of their file systems in storage_options="
            ) from cause_without_secrets(error, self._secrets)

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return object name to length in bytes for the folder or a subfolder; {} if it does not exist."""
        try:
            entries = self._request(folder, lambda path: self._system.ls(path, detail=True), verb="listed")
        except FileNotFoundError:
            return {}
        files = [entry for entry in entries if entry["type"] == "file"]
        return {entry["name"].rpartition("/")[2]: int(entry["size"] or 0) for entry in files}

    def read(self, name: str) -> bytes | None:
        """Return the content of an object, or None if it does not exist.

        Raises:
            ManifestError: It is too large for a manifest or an index.
        """

        def read(path: str) -> bytes:
            length = self._system.info(path)["size"]
            if length is not None and length > MAX_FILE_BYTES:
                raise too_large(f"{self.url}/{name}", length)
            return bytes(self._system.cat_file(path))

        try:
            return self._request(name, read, verb="read")
        except FileNotFoundError:
            return None

    def read_all(self, folder: str, requested: Container[str]) -> dict[str, bytes]:
        """Return name to content of the requested objects of a subfolder, read in parallel if the file system can."""
        names = [name for name in self.sizes(folder) if name in requested]
        if not names:
            return {}
        root = self._path(folder)
        contents = self._request(
            folder, lambda path: self._system.cat([f"{path}/{name}" for name in names], on_error="omit"), verb="read"
        )
        return {path.removeprefix(root).lstrip("/").rpartition("/")[2]: bytes(data) for path, data in contents.items()}

    def put(self, path: Path, name: str, *, advance: Callable[[int], None] | None = None) -> None:
        """Upload a file, and check the length of the object.

        Args:
            path: Path of the file.
            name: Name of the object; an existing object is replaced.
            advance: Called with the number of bytes uploaded since its last call, negative when a
                failed attempt is repeated; it may raise `StopUploadError`.

        Raises:
            StoreError: All attempts failed, or the error is permanent.
            StopUploadError: ``advance`` raised it.
        """
        size = path.stat().st_size
        progress = _Progress(advance or (lambda _: None))

        def upload(object_path: str) -> None:
            progress.restart()
            self._system.put_file(str(path), object_path, callback=progress)
            arrived = self._system.info(object_path)["size"]
            if arrived != size:
                with suppress(Exception):  # so that no reader finds a truncated manifest
                    self._system.rm([object_path])
                raise OSError(f"{size:,} bytes were sent, but the object has {arrived:,}")
            progress.finish(size)

        try:
            self._request(name, upload, progress.pause)
        except FileNotFoundError as error:
            reason = without_secrets(str(error), self._secrets) or "not found"
            raise StoreError(f"{self.url}/{name} cannot be written: {reason}; check that the bucket exists") from None

    def write(self, name: str, data: bytes) -> None:
        """Upload ``data`` as an object; raises as `put` does."""
        # put_file takes a file, and unlike pipe_file it creates missing folders.
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            self.put(Path(file.name), name)

    def create(self, name: str, data: bytes) -> None:
        """Upload ``data`` as an object, unless there is one of this name, which is kept; raises as `put` does.

        S3, Google, Azure and memory decide this in one request. Others are asked before: of two writers at the same
        moment, the later one may win there, so read the object afterwards.
        """
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()

            accepted = inspect.signature(self._system.put_file).parameters
            conditions = {"mode": "create", "overwrite": False}  # the latter for Azure
            condition = {name: value for name, value in conditions.items() if name in accepted}

            def upload(path: str) -> None:
                with suppress(FileExistsError):
                    self._system.put_file(file.name, path, **condition)

            if condition:
                with suppress(FileNotFoundError, StoreError):  # a store that does not know the condition
                    self._request(name, upload)
        if self.read(name) is None:
            self.write(name, data)

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop`` of an object.

        Raises:
            StoreError: It does not exist, or has fewer bytes.
        """
        try:
            data = bytes(
                self._request(name, lambda path: self._system.cat_file(path, start=start, end=stop), verb="read")
            )
        except FileNotFoundError:
            data = b""
        if len(data) != stop - start:
            raise StoreError(f"{self.url}/{name} was removed or replaced while it was read: run the same command again")
        return data

    def remove(self, names: Iterable[str], folder: str = "") -> None:
        """Remove objects of the folder or a subfolder; names that do not exist are ignored."""
        existing = self.sizes(folder)
        paths = [f"{self._path(folder)}/{name}" for name in names if name in existing]
        if paths:
            self._request(folder, lambda _: self._system.rm(paths), verb="removed")

    def remove_folder(self, name: str) -> None:
        """Remove a subfolder with all its objects."""
        with suppress(FileNotFoundError):
            self._request(name, lambda path: self._system.rm(path, recursive=True), verb="removed")

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else str(self._root)

    def _request(
        self,
        name: str,
        request: Callable[[str], _Result],
        pause: Callable[[float], None] = time.sleep,
        *,
        verb: str = "written",
    ) -> _Result:
        """Call ``request(path)``, with retries; raise FileNotFoundError, or StoreError for other failures."""

        def request_uncached() -> _Result:
            self._system.invalidate_cache()
            return request(self._path(name))

        return call(
            self._policy,
            request_uncached,
            url=f"{self.url}/{name}" if name else self.url,
            secrets=self._secrets,
            wait=pause,
            passed_on=(FileNotFoundError, StopUploadError, ManifestError),
            verb=verb,
            least_attempts=_LEAST_ATTEMPTS,
        )


class _Progress(fsspec.Callback):  # type: ignore[misc]
    """Reports the number of uploaded bytes to a function; subtracts the bytes of a failed attempt."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        super().__init__()
        self._advance = advance
        self._reported = 0

    def relative_update(self, inc: int = 1) -> None:
        self._reported += inc
        self._advance(inc)

    def restart(self) -> None:
        self._advance(-self._reported)
        self._reported = 0

    def pause(self, seconds: float) -> None:
        """Sleep between two attempts; call the function meanwhile, which may cancel the upload."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._advance(0)
            time.sleep(min(seconds, _PAUSE_SECONDS))

    def finish(self, size: int) -> None:
        self.relative_update(size - self._reported)  # some file systems report no progress
