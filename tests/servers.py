"""Helpers of the tests of the service: it runs as a program, or in a thread with limits that a test chooses."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import preloaded

from wds_tools.service.config import ServeOptions, Started
from wds_tools.service.process import bind, run

PROGRAM = (sys.executable, "-m", "wds_tools.cli")
IMPORTS = preloaded.COMMANDS


@dataclass
class Reply:
    """An answer of the service."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Running:
    """A service that runs as a program, with its output and errors."""

    line: str  # its first line
    process: preloaded.Process
    output: IO[str]
    messages: IO[str]
    errors: str = ""  # all other messages, after the end

    @property
    def url(self) -> str:
        return self.line.split()[-1].rstrip("/")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return the exit status, and what is left of output and messages."""
        return self.process.wait(), self.output.read(), self.messages.read()


def request(url: str, path: str, method: str = "GET", body: bytes | None = None, **headers: str) -> Reply:
    """Send one request; the path is sent as it is. Underscores in names of headers are hyphens."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        response = connection.getresponse()
        return Reply(response.status, dict(response.headers.items()), response.read())
    finally:
        connection.close()


@contextlib.contextmanager
def program(
    *arguments: str | Path, port: int = 0, env: Mapping[str, str] | None = None, prefix: Sequence[str | Path] = ()
) -> Iterator[Running]:
    """Run ``wds-tools serve``, on a free port by default; with ``prefix``, as the arguments of that Python program."""
    with started("serve", *arguments, "--port", str(port), env=env, prefix=prefix) as running:
        if " at http" not in running.line:
            running.process.wait()
            raise AssertionError(running.line + running.messages.read())
        yield running


@contextlib.contextmanager
def started(
    *arguments: str | Path, env: Mapping[str, str] | None = None, prefix: Sequence[str | Path] = ()
) -> Iterator[Running]:
    """Run a command of ``wds-tools`` that serves, and wait for its first line."""
    words = ["-m", "wds_tools.cli", *map(str, arguments)]
    if prefix:
        words = [*map(str, prefix), sys.executable, *words]
    (out, their_out), (err, their_err) = os.pipe(), os.pipe()
    environment = {**os.environ, **(env or {})}
    process = preloaded.Process(words, stdout=their_out, stderr=their_err, env=environment, imports=IMPORTS)
    os.close(their_out)
    os.close(their_err)
    with os.fdopen(out) as output, os.fdopen(err) as messages:
        running = Running(output.readline(), process, output, messages)
        try:
            yield running
        finally:
            process.send_signal(signal.SIGTERM)
            _, _, running.errors = running.end()


@contextlib.contextmanager
def in_thread(*roots: Path, **options: Any) -> Iterator[str]:
    """Run the service in a thread; the value is its URL."""
    checked = ServeOptions(roots=roots, port=0, **options)
    checked.check()
    ours, theirs = multiprocessing.Pipe()
    started: Future[Started] = Future()

    def main() -> None:
        try:
            asyncio.run(run(checked, listener, on_start=started.set_result, parent=theirs))
        except BaseException as error:
            if not started.done():
                started.set_exception(error)
            raise

    with bind(checked) as listener:
        thread = threading.Thread(target=main)
        thread.start()
        try:
            yield started.result(120).url.rstrip("/")
        finally:
            ours.close()
            thread.join(120)
            theirs.close()
            assert not thread.is_alive()


def copy_of(dataset: Path, folder: Path) -> Path:
    """Return a copy of a dataset as hard links, which take no time."""
    shutil.copytree(dataset, folder, copy_function=os.link)
    return folder
