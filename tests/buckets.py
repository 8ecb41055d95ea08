"""A fake object store for tests, `bucket:///folder`: objects are files of a folder, and uploads can fail. And moto.

It is configured by attributes of the class, in the process that packs. `Bucketful.fault` is called
before each upload with its number and path, and returns the name of a fault or None.
`Bucketful.log` records all changes in order.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.local import LocalFileSystem


class Bucketful(LocalFileSystem):
    protocol = "bucket"
    fault: Callable[[int, str], str | None] = staticmethod(lambda _number, _path: None)
    puts = 0
    seconds = 0.0
    log: ClassVar[list[tuple[str, str]]] = []

    @classmethod
    def reset(cls) -> None:
        cls.fault, cls.puts, cls.seconds, cls.log = staticmethod(lambda _number, _path: None), 0, 0.0, []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("bucket://").rstrip("/")

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
        for _part in range(10):
            time.sleep(Bucketful.seconds / 10)
            callback.relative_update(len(data) // 10)
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


fsspec.register_implementation("bucket", Bucketful, clobber=True)


@contextmanager
def moto_server(folder: Path) -> Iterator[str]:
    """Run moto, a server for S3, in another process; its log is in the folder. Yields its URL."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=log, stderr=log
        )
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_for(url)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=100)


def _wait_for(url: str) -> None:
    for _ in range(3000):
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError("moto_server does not start")
