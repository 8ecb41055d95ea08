"""Object stores for tests: a fake one, and a server of S3.

The fake one is `bucket:///folder`: objects are files of a folder, and uploads can fail.

It is configured by attributes of the class, in the process that packs. `Bucketful.fault` is called
before each upload with its number and path, and returns the name of a fault or None.
`Bucketful.log` records all changes in order, and `Bucketful.ranges` what is read. `vault://` is the same, but
requires a secret, which its errors contain.
"""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from waiting import wait_for


class Bucketful(LocalFileSystem):
    protocol = "bucket"
    fault: Callable[[int, str], str | None] = staticmethod(lambda _number, _path: None)
    puts = 0
    seconds = 0.0
    log: ClassVar[list[tuple[str, str]]] = []
    ranges: ClassVar[list[tuple[str, int, int]]] = []

    @classmethod
    def reset(cls) -> None:
        Bucketful.fault, Bucketful.puts, Bucketful.seconds = staticmethod(lambda _number, _path: None), 0, 0.0
        Bucketful.log, Bucketful.ranges = [], []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix(f"{cls.protocol}://").rstrip("/")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        file = Path(self._strip_protocol(path))
        length = file.stat().st_size
        start, end = start or 0, length if end is None else min(end, length)
        Bucketful.ranges.append((file.name, start, end))
        with file.open("rb") as opened:
            opened.seek(start)
            return opened.read(end - start)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, **_: Any) -> None:
        Bucketful.puts += 1
        fault = Bucketful.fault(Bucketful.puts, rpath)
        target, data = Path(rpath), Path(lpath).read_bytes()
        target.parent.mkdir(parents=True, exist_ok=True)
        if fault == "fails":
            raise OSError("the store is busy")
        if fault == "forbidden":
            raise PermissionError("access denied")
        if fault == "kill":
            os.kill(os.getpid(), 9)
        seconds = Bucketful.seconds  # a fault in another thread may change it
        parts = max(10, round(5 * seconds))
        for _part in range(parts):
            time.sleep(seconds / parts)
            callback.relative_update(len(data) // parts)
        if fault == "dies in the middle":
            raise ConnectionResetError("connection reset")
        self._write(target, data[: len(data) // 2] if fault == "cuts" else data)
        Bucketful.log.append(("put", target.name))
        if fault == "kill afterwards":
            os.kill(os.getpid(), 9)

    @staticmethod
    def _write(target: Path, data: bytes) -> None:
        """Write an object atomically, like object storage."""
        descriptor, temporary = tempfile.mkstemp()
        os.write(descriptor, data)
        os.close(descriptor)
        shutil.move(temporary, target)

    def rm(self, path: str | list[str], recursive: bool = False) -> None:
        for one in [path] if isinstance(path, str) else path:
            file = Path(self._strip_protocol(one))
            Bucketful.log.append(("rm", file.name))
            shutil.rmtree(file) if recursive else file.unlink()


class Vault(Bucketful):
    protocol = "vault"
    SECRET = "s3cr3t-sentinel-/+value"

    def __init__(self, *, secret: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.secret = secret

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        self._check()
        return super().cat_file(path, start, end, **options)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, **options: Any) -> None:
        self._check()
        super().put_file(lpath, rpath, callback, **options)

    def _check(self) -> None:
        if self.secret != Vault.SECRET:
            raise PermissionError(
                f"403 AccessDenied: the secret {self.secret} is wrong (Authorization: {self.secret!r})"
            )


def each_call_fails_once(patch: pytest.MonkeyPatch, *names: str) -> set[str]:
    """Let the first call of these methods of `Bucketful` for each path fail; return the set of methods that failed."""
    failed: set[str] = set()

    def failing(name: str) -> Callable[..., Any]:
        method, paths = getattr(Bucketful, name), set()

        def call(self: Bucketful, path: str, *arguments: Any, **options: Any) -> Any:
            if path not in paths:
                paths.add(path)
                failed.add(name)
                raise ConnectionResetError("connection reset")
            return method(self, path, *arguments, **options)

        return call

    for name in names:
        patch.setattr(Bucketful, name, failing(name))
    return failed


fsspec.register_implementation("bucket", Bucketful, clobber=True)
fsspec.register_implementation("vault", Vault, clobber=True)


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Start moto's server of S3 in a process of its own; return its URL.

    Args:
        folder: Where its log is written.
    """
    log = folder / "log"
    with log.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", "0"], stdout=file, stderr=file)

    def address() -> re.Match[str] | None:
        assert process.poll() is None, log.read_text()
        return re.search(r"Running on (http://\S+)\n", log.read_text())  # it listens already

    try:
        yield wait_for(address)[1]
    finally:
        process.terminate()
        process.wait(timeout=100)


def reset_s3(server: str) -> None:
    """Remove all buckets of the server."""
    urllib.request.urlopen(urllib.request.Request(f"{server}/moto-api/reset", method="POST")).close()


def empty_s3(server: str) -> Any:
    """Empty the server, create a bucket of the name ``bucket``, and return the file system."""
    reset_s3(server)
    system = _s3_system(server)
    system.mkdir("bucket")
    return system


@functools.cache  # one for all tests of a process: botocore takes 0.2 s of CPU time to make one
def _s3_system(server: str) -> Any:
    import s3fs

    return s3fs.S3FileSystem(
        key="test", secret="test", endpoint_url=server, skip_instance_cache=True, use_listings_cache=False
    )
