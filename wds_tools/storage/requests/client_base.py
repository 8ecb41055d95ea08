"""The protocol of a client of remote storage, and what all clients share: retries, versions, counts, the process."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from wds_tools.errors import ManifestError, StoreError, TruncatedShardError, WdsToolsError
from wds_tools.storage.requests.failures import Failure, clean_url, failure_of, host_of
from wds_tools.storage.requests.remote_folder import RemoteFolder
from wds_tools.storage.requests.retry import Outages, call


class Client(Protocol):
    """Requests to the objects below one URL.

    Threads may share a client. A process that was forked creates its own: any process other than the one that created
    the client gets a StoreError. A path is the name of an object, relative to the URL.

    Attributes:
        url: The URL, without user, password and query.
    """

    url: str

    def read(self, path: str, *, most_bytes: int) -> bytes:
        """Return a whole object: a manifest or an index.

        Raises:
            MissingFileError: The object does not exist.
            ManifestError: The object is larger than ``most_bytes``.
            StoreError: The storage fails.
        """

    def read_range(self, path: str, start: int, stop: int, into: memoryview, *, total_bytes: int | None = None) -> None:
        """Fill a buffer with the bytes ``start`` to ``stop`` of an object.

        After an error the content of the buffer is undefined.

        Args:
            path: Name of the object.
            start: First byte.
            stop: End of the range, which is not read.
            into: Writable buffer of exactly ``stop - start`` bytes.
            total_bytes: Expected length of the object; None if it is not known.

        Raises:
            MissingFileError: The object does not exist.
            TruncatedShardError: The length of the object is not ``total_bytes``.
            StoreError: The storage fails, or the object was replaced since this client first read it.
        """

    def forget_versions(self) -> None:
        """Forget which versions of objects were read, so that replaced objects are read too."""

    def list(self, folder: str = "") -> list[str]:
        """Return the sorted names of the objects in a folder, but not in its subfolders.

        Raises:
            MissingFileError: The folder does not exist, where the storage has folders.
            StoreError: The storage fails.
        """

    def counts(self) -> RequestCounts:
        """Return what has been requested so far."""

    def close(self) -> None:
        """End requests that wait for another attempt, and close the connections."""


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """What a client has requested so far.

    Attributes:
        requests: Number of requests, including repeated ones.
        failures: Number of requests that failed and were repeated or given up.
        received_bytes: Bytes of objects that arrived.
    """

    requests: int = 0
    failures: int = 0
    received_bytes: int = 0


class Part:
    """The range of one call of `Client.read_range`, and how much of it has arrived."""

    def __init__(self, start: int, stop: int, into: memoryview) -> None:
        self.position = start
        self.stop = stop
        self._start = start
        self._into = into

    def remaining(self) -> memoryview:
        """Return the part of the buffer that is not filled yet."""
        return self._into[self.position - self._start :]

    def add(self, data: bytes | memoryview) -> None:
        """Copy bytes that have arrived into the buffer."""
        if len(data) > self.stop - self.position:
            raise Failure(f"the response has more than the {self.stop - self._start:,} bytes that were requested")
        self._into[self.position - self._start : self.position - self._start + len(data)] = data
        self.position += len(data)


@dataclass(slots=True)
class Partial:
    """What has arrived of a whole object, in one call of `Client.read`.

    Attributes:
        data: The bytes from the start.
        tag: Strong ETag of the object, or an empty text.
    """

    data: bytearray = field(default_factory=bytearray)
    tag: str = ""


class BaseClient:
    """What all clients share. A subclass sends one request at a time, in `_read`, `_fill` and `_list`.

    Args:
        folder: The folder. The secrets of its options appear in no message.
        host: Host that requests are sent to, for messages; default: the one of the URL.
    """

    def __init__(
        self,
        folder: RemoteFolder,
        *,
        host: str = "",
    ) -> None:
        self.url = clean_url(folder.url).rstrip("/")
        self._policy = folder.policy
        self._outages = Outages()
        self._host = host or host_of(folder.url)
        self._secrets = folder.secrets
        self._stop = folder.stop
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._versions: dict[str, tuple[str, int | None]] = {}  # path → strong ETag or "", length of the object
        self._counts = [0, 0, 0]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a client cannot be pickled or copied: call open_client() in the other process")

    def read(self, path: str, *, most_bytes: int) -> bytes:
        """Return a whole object."""
        self._check_process()
        partial = Partial()

        def request() -> bytes:
            before = len(partial.data)
            try:
                data = self._read(path, most_bytes, partial)
            except WdsToolsError:
                raise
            except Exception as error:
                failure = failure_of(error, self._secrets)
                failure.received = max(0, len(partial.data) - before)
                self._count(received=failure.received)
            else:
                self._count(received=max(0, len(data) - before))
                return data
            raise failure

        return bytes(self._call(path, request))

    def read_range(self, path: str, start: int, stop: int, into: memoryview, *, total_bytes: int | None = None) -> None:
        """Fill a buffer with a range of an object; a failed request is continued from the byte reached."""
        self._check_process()
        view = into.cast("B") if into.format != "B" or into.ndim != 1 else into
        if not 0 <= start <= stop or len(view) != stop - start:
            raise ValueError(f"bytes {start} to {stop} do not fit a buffer of {len(view)} bytes")
        if start == stop:
            return
        part = Part(start, stop, view)

        def request() -> None:
            before = part.position
            try:
                self._fill(path, part, total_bytes)
                if part.position < stop:
                    raise Failure(f"the response ended after {part.position - before:,} of {stop - before:,} bytes")
            except WdsToolsError:
                raise
            except Exception as error:
                failure = failure_of(error, self._secrets)
                failure.received = part.position - before
            else:
                return
            finally:
                self._count(received=part.position - before)
            raise failure

        self._call(path, request, part, is_listed=total_bytes is not None)

    def forget_versions(self) -> None:
        """Forget which versions of objects were read."""
        with self._lock:
            self._versions.clear()

    def list(self, folder: str = "") -> list[str]:
        """Return the sorted names of the objects in a folder."""
        self._check_process()
        return sorted(self._call(folder, lambda: self._list(folder), verb="listed"))

    def counts(self) -> RequestCounts:
        """Return what has been requested so far."""
        with self._lock:
            return RequestCounts(*self._counts)

    def close(self) -> None:
        """End requests that wait for another attempt."""
        self._stop.set()

    def _read(self, path: str, most_bytes: int, partial: Partial) -> bytes:
        """Send one request for an object, or for what is missing in ``partial``."""
        raise NotImplementedError

    def _fill(self, path: str, part: Part, total_bytes: int | None) -> None:
        """Send one request for ``part.position`` to ``part.stop``, and add to ``part`` what arrives."""
        raise NotImplementedError

    def _list(self, folder: str) -> Sequence[str]:
        raise NotImplementedError

    def _url_of(self, path: str) -> str:
        return f"{self.url}/{path}" if path else self.url

    def _call(
        self,
        path: str,
        request: Any,
        part: Part | None = None,
        *,
        verb: str = "read",
        is_listed: bool = False,
    ) -> Any:
        def counted() -> Any:
            self._count(requests=1)
            try:
                return request()
            except Exception:
                self._count(failures=1)
                raise

        return call(
            self._policy,
            counted,
            url=self._url_of(path),
            host=self._host,
            shard=path if part else None,
            offset=(lambda: part.position) if part else None,
            secrets=self._secrets,
            stop=self._stop,
            verb=verb,
            is_listed=is_listed,
            outages=self._outages,
        )

    def _count(self, *, requests: int = 0, failures: int = 0, received: int = 0) -> None:
        with self._lock:
            self._counts = [a + b for a, b in zip(self._counts, (requests, failures, received), strict=True)]

    def _check_process(self) -> None:
        if self._pid != os.getpid():
            raise StoreError(
                f"{self.url}: the client was created in process {self._pid}, and this is process {os.getpid()}: "
                "connections do not survive a fork; call open_client() in each process"
            )
        if self._stop.is_set():
            raise StoreError(f"{self.url}: the client is closed")

    def _known_tag(self, path: str) -> str:
        """Return the strong ETag of the first response for an object, or an empty text."""
        return self._versions.get(path, ("", None))[0]

    def _check_version(self, path: str, tag: str | None, length: int | None, total_bytes: int | None) -> None:
        """Compare the ETag and length of a response with the expected ones and with the first response."""
        if total_bytes is not None and length is not None and length != total_bytes:
            raise TruncatedShardError(
                f"{self._url_of(path)} has {length:,} bytes, but its manifest records {total_bytes:,}: "
                "it was truncated or replaced; upload it again",
                shard=path,
                offset=min(length, total_bytes),
            )
        strong = tag if tag and not tag.startswith("W/") else ""
        with self._lock:
            first_tag, first_length = self._versions.get(path, ("", None))
            self._versions[path] = (first_tag or strong, length if first_length is None else first_length)
        if first_tag and strong and first_tag != strong:
            self._raise_replaced(path, f"its ETag was {first_tag} and is {strong}")
        if first_length is not None and length is not None and first_length != length:
            self._raise_replaced(path, f"it had {first_length:,} bytes and has {length:,}")

    def _raise_ended(self, path: str, position: int, total_bytes: int) -> NoReturn:
        raise TruncatedShardError(
            f"{self._url_of(path)} ends before byte {position:,}, but its manifest records {total_bytes:,} bytes: "
            "it was truncated or replaced; upload it again",
            shard=path,
            offset=position,
        )

    def _raise_replaced(self, path: str, fact: str) -> NoReturn:
        raise StoreError(
            f"{self._url_of(path)} was replaced while it was being read ({fact}): packed shards must not change; "
            "pack changed data to another URL, and start again",
            shard=path,
        )

    def _raise_too_large(self, path: str, length: int, most_bytes: int) -> NoReturn:
        raise ManifestError(
            f"{self._url_of(path)} has {length:,} bytes or more; a manifest or an index has at most {most_bytes:,}: "
            "it was damaged or replaced; upload it again"
        )
