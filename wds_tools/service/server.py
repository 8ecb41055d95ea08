"""Runs the service in this process, or in several processes that share a port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import multiprocessing.connection
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from wds_tools.errors import WdsToolsError, WorkerError
from wds_tools.service.config import ServeOptions, Started
from wds_tools.service.metrics import FOLDER_VARIABLE
from wds_tools.service.process import bind, raise_file_limit, run

_log = logging.getLogger("wds_tools")
_JOIN_SECONDS = 10.0
_RESTART_SECONDS = 1.0


def serve(options: ServeOptions, *, on_start: Callable[[Started], object] = lambda _: None) -> None:
    """Serve datasets until the process gets SIGTERM or SIGINT.

    Args:
        options: The options.
        on_start: Called when connections are accepted.

    Raises:
        OptionError: An option is invalid, or the port is in use.
        WorkerError: A process cannot be started.
    """
    options.check()
    if options.processes == 1:
        with bind(options) as listener:
            raise_file_limit()
            asyncio.run(run(options, listener, on_start=on_start))
        return
    _supervise(options, on_start)


class _Stopped(Exception):  # noqa: N818 - it ends the supervisor
    pass


def _supervise(options: ServeOptions, on_start: Callable[[Started], object]) -> None:
    """Run several processes on one port; start one again that has died."""
    handlers = {number: signal.signal(number, _raise_stopped) for number in (signal.SIGTERM, signal.SIGINT)}
    processes: list[_Process] = []
    try:
        with tempfile.TemporaryDirectory(prefix="wds_tools-metrics-") as folder, bind(options) as listener:
            os.environ[FOLDER_VARIABLE] = folder
            options = replace(options, port=listener.getsockname()[1])
            try:
                processes.extend(_Process(options) for _ in range(options.processes))
                started = [process.wait_until_started() for process in processes]
                on_start(started[0])
                _watch(options, processes, folder)
            except _Stopped:
                pass
            finally:
                for number in handlers:
                    signal.signal(number, signal.SIG_IGN)
                for process in processes:
                    process.stop()
    finally:
        os.environ.pop(FOLDER_VARIABLE, None)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _watch(options: ServeOptions, processes: list[_Process], folder: str) -> None:
    while True:
        ended = multiprocessing.connection.wait([process.sentinel for process in processes])
        for position, process in enumerate(processes):
            if process.sentinel in ended:
                _log.error("process %d of the service ended with code %s: started again", process.pid, process.code)
                for path in Path(folder).glob(f"gauge_live*_{process.pid}.db"):
                    path.unlink(missing_ok=True)
                time.sleep(_RESTART_SECONDS)  # one that cannot start must not be started without a pause
                processes[position] = _Process(options)


class _Process:
    """One of several processes of the service."""

    def __init__(self, options: ServeOptions) -> None:
        context = multiprocessing.get_context("spawn")  # without the state of this process
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(options, theirs))
        self._process.start()
        theirs.close()

    @property
    def sentinel(self) -> int:
        return self._process.sentinel

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def code(self) -> int | None:
        self._process.join()  # its end is seen before its exit code is known
        return self._process.exitcode

    def wait_until_started(self) -> Started:
        try:
            started = self._pipe.recv()
        except EOFError:
            raise WorkerError("a process of the service ended before it listened: see the messages above") from None
        if isinstance(started, WdsToolsError):
            raise started
        assert isinstance(started, Started)
        return started

    def stop(self) -> None:
        self._pipe.close()  # the process sees the end of the pipe
        self._process.join(_JOIN_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _main(options: ServeOptions, pipe: Connection) -> None:
    """Main function of one of several processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops it
    try:
        with bind(options) as listener:
            raise_file_limit()
            asyncio.run(run(options, listener, on_start=pipe.send, parent=pipe))
    except WdsToolsError as error:
        with contextlib.suppress(OSError):
            pipe.send(error)


def _raise_stopped(_number: int, _frame: FrameType | None) -> None:
    raise _Stopped
