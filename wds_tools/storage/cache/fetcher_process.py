"""A process that fetches blocks for all processes of a machine that read the same folder.

It is started as a new program, not by a fork, so that it may use libraries that do not survive a
fork. The name of its socket is a hash of the folder and the options. So the ranks of a machine share the
process: credentials and connections exist once, and each block is fetched once. It ends when its last
connection is closed. A process that loses its connection fetches blocks by itself.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import pickle
import select
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from multiprocessing import connection as sockets
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, cast

import xxhash

from wds_tools.errors import StoreError, WdsToolsError
from wds_tools.options import RemoteOptions, server_token
from wds_tools.storage.base import Block, Extent, FetchStatistics, StoredFile
from wds_tools.storage.cache.blocks import BlockCache
from wds_tools.storage.cache.fetcher import Fetcher
from wds_tools.storage.local import is_short, raise_file_limit
from wds_tools.storage.requests.clients import open_client
from wds_tools.storage.requests.remote_folder import RemoteFolder

_log = logging.getLogger("wds_tools")
_FIRST_CONNECTION_SECONDS = 30.0
_GRACE_SECONDS = 1.0  # after the last connection has been closed; a loader may be created again at once
_WATCH_SECONDS = 0.2  # between two looks at the connections
_PROGRAM = "from wds_tools.storage.cache.fetcher_process import main; main()"
_BACKLOG = 1024  # processes that connect at the same time


class FetcherGoneError(Exception):
    """The fetcher process has ended, or could not be started."""


def open_fetcher(folder: str, remote: RemoteOptions, *, threads: int | None = None) -> Fetcher:
    """Return a fetcher in this process."""
    cache = BlockCache(remote.cache_folder, remote.cache_bytes, url=folder)
    options = {"threads": threads} if threads else {}
    return Fetcher(open_client(RemoteFolder.of(folder, remote)), cache, **options)


class FetcherConnection:
    """A connection to the fetcher process of a folder, with the methods of `Fetcher`.

    Args:
        folder: URL of the folder.
        remote: How it is read.

    Raises:
        FetcherGoneError: The process cannot be started.
    """

    def __init__(self, folder: str, remote: RemoteOptions) -> None:
        self._lock = threading.Lock()  # a connection is used by one thread at a time
        self._connection = _connect_or_start(folder, remote)

    def read(self, name: str, file: StoredFile | None = None, *, fresh: bool = False) -> bytes:
        """See `Fetcher.read`."""
        return cast(bytes, self._call("read", name, file, fresh=fresh))

    def read_many(self, files: Sequence[StoredFile], *, wait: bool = True) -> None:
        """See `Fetcher.read_many`."""
        request = self._call if wait else self._send
        request("read_many", list(files), wait=wait)

    def fetch(self, extents: Sequence[Extent], *, inline: bool = False) -> list[bytes | None]:
        """See `Fetcher.fetch`."""
        return cast("list[bytes | None]", self._call("fetch", list(extents), inline=inline))

    def fetch_samples(self, extents: Sequence[Extent], *, dataset_bytes: int) -> None:
        """See `Fetcher.fetch_samples`."""
        self._send("fetch_samples", list(extents), dataset_bytes=dataset_bytes)

    def read_ahead(self, blocks: Sequence[Block]) -> None:
        """See `Fetcher.read_ahead`."""
        self._send("read_ahead", list(blocks))

    def release(self, blocks: Sequence[Block]) -> None:
        """See `Fetcher.release`."""
        self._send("release", list(blocks))

    def list_files(self) -> list[str]:
        """See `Fetcher.list_files`."""
        return cast("list[str]", self._call("list_files"))

    @property
    def statistics(self) -> FetchStatistics:
        """See `Fetcher.statistics`; for all processes that use the fetcher process."""
        return cast(FetchStatistics, self._call("statistics"))

    def close(self) -> None:
        """Close the connection. The process ends if it was the last one."""
        self._connection.close()

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        with self._lock, _gone_if_broken():
            self._connection.send((method, args, options, True))
            result = self._connection.recv()
        if isinstance(result, BaseException):
            raise result
        return result

    def _send(self, method: str, *args: Any, **options: Any) -> None:
        """Call a method that returns nothing, without waiting for it."""
        with self._lock, _gone_if_broken():
            self._connection.send((method, args, options, False))


@contextlib.contextmanager
def _gone_if_broken() -> Iterator[None]:
    try:
        yield
    except (EOFError, OSError) as error:
        raise FetcherGoneError("the process that fetches blocks has ended") from error


def _connect_or_start(folder: str, remote: RemoteOptions) -> Connection:
    """Connect to the fetcher process of a folder; start it if it is not running."""
    try:
        path = _socket_path(folder, remote)
        with path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one process starts it, the others wait and connect
            with contextlib.suppress(OSError, EOFError):
                return _connect(path)
            path.unlink(missing_ok=True)
            _start(path, folder, remote)
            return _connect(path)
    except (OSError, EOFError) as error:
        raise FetcherGoneError(f"the process that fetches blocks cannot be started: {error}") from error


def _connect(path: Path) -> Connection:
    connection = sockets.Client(str(path))
    connection.recv()  # sent when the process has counted this connection, so that it does not exit
    return connection


def _socket_path(folder: str, remote: RemoteOptions) -> Path:
    """Return the path of the socket, in a folder that only this user can read."""
    scheme, _, remaining = folder.partition("://")
    authority = remaining.partition("/")[0].rpartition("@")[2]
    token = server_token(scheme, authority) if scheme in {"http", "https"} else None  # another token, another fetcher
    identity = (folder, remote, sorted(map(repr, remote.storage_options.items())), sys.path, token)
    name = xxhash.xxh3_128_hexdigest(repr(identity).encode())
    parent = Path(tempfile.gettempdir()) / f"wds_tools-{os.getuid()}"
    parent.mkdir(mode=0o700, exist_ok=True)
    status = parent.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o077:
        raise PermissionError(f"{parent} must be a folder that only this user can access")
    return parent / name


def _start(path: Path, folder: str, remote: RemoteOptions) -> None:
    """Start the process, and wait until it listens. Options are written to a pipe: they may be secret."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(  # noqa: S603 - the program is this package
        [sys.executable, "-c", _PROGRAM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # Ctrl-C is for the training; this process ends when the training closes its connection
    ) as process:
        output, _ = process.communicate(pickle.dumps((str(path), folder, remote)))
    if output != b"ready":
        raise OSError(f"its exit status is {process.returncode}")


def main() -> None:
    """Run the fetcher process: read its options from standard input, and serve until nobody is connected."""
    try:
        path, folder, remote = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the parent
    except EOFError:  # the parent was killed
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise_file_limit()
    with Listener(path, backlog=_BACKLOG) as listener:
        Path(path).chmod(0o600)
        if os.fork():  # the parent of this process need not wait for the child
            os._exit(0)
        with contextlib.suppress(BrokenPipeError):  # the parent was killed; another process may connect
            os.write(1, b"ready")
        with Path(os.devnull).open("r+b") as null:
            os.dup2(null.fileno(), 0)
            os.dup2(null.fileno(), 1)
        _Server(listener, folder, remote).serve()


class _Server:
    """Answers the requests of all connections."""

    def __init__(self, listener: Listener, folder: str, remote: RemoteOptions) -> None:
        self._listener = listener
        self._folder = folder
        self._remote = remote
        self._lock = threading.Lock()
        self._fetcher: Fetcher | None = None
        self._connections: set[Connection] = set()
        self._unused_seconds = _FIRST_CONNECTION_SECONDS
        self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)  # closed to accept when no descriptor is left

    def serve(self) -> None:
        """Accept connections, each in a thread. The process exits when there are none."""
        threading.Thread(target=self._exit_when_unused, daemon=True).start()
        while True:
            connection = self._accept()
            with self._lock:
                self._connections.add(connection)
                self._unused_seconds = _GRACE_SECONDS
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _accept(self) -> Connection:
        """Return the next connection. If no descriptor is left, close it at once: its process fetches by itself."""
        while True:
            try:
                return self._listener.accept()
            except OSError as error:
                if not is_short(error):
                    raise
            os.close(self._spare)
            with contextlib.suppress(OSError):  # another thread took the descriptor
                self._listener.accept().close()
            self._spare = -1
            while self._spare < 0:
                try:
                    self._spare = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                except OSError:
                    time.sleep(_WATCH_SECONDS)

    def _answer(self, connection: Connection) -> None:
        with contextlib.suppress(EOFError, OSError):
            connection.send(None)
            while True:
                method, args, options, has_result = connection.recv()
                result = self._call(method, args, options)
                if has_result:
                    connection.send(result)
        with self._lock:
            self._connections.remove(connection)
            connection.close()

    def _call(self, method: str, args: Any, options: Any) -> Any:
        try:
            attribute = getattr(self._get_fetcher(), method)
            return attribute(*args, **options) if callable(attribute) else attribute
        except WdsToolsError as error:
            return error
        except Exception as error:  # whose class may not be picklable
            _log.debug("%s failed", method, exc_info=True)
            return StoreError(f"{self._folder}: {type(error).__name__}: {error}".partition("?")[0])

    def _get_fetcher(self) -> Fetcher:
        with self._lock:
            if self._fetcher is None:
                self._fetcher = open_fetcher(self._folder, self._remote)
            return self._fetcher

    def _exit_when_unused(self) -> None:
        """Exit when all connections have been closed, even if requests of their processes are still repeated."""
        used_at = time.monotonic()
        while True:
            time.sleep(_WATCH_SECONDS)
            if self._is_connected():
                used_at = time.monotonic()
            elif time.monotonic() - used_at >= self._unused_seconds:
                self._exit_if_unused()

    def _is_connected(self) -> bool:
        with self._lock:
            poll = select.poll()
            for connection in self._connections:
                poll.register(connection, 0)  # only whether its other end was closed
            return len(poll.poll(0)) < len(self._connections)

    def _exit_if_unused(self) -> None:
        path = Path(cast(str, self._listener.address))
        try:
            lock = path.with_suffix(".lock").open("w")
        except OSError:  # the folder was removed, so nobody can connect
            os._exit(0)
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # nobody is connecting now
            if not self._is_connected():
                path.unlink(missing_ok=True)
                os._exit(0)
