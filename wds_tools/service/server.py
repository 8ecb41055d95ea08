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
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

from wds_tools.errors import WdsToolsError, WorkerError
from wds_tools.service.config import ServeOptions, Started
from wds_tools.service.metrics import FOLDER_VARIABLE
from wds_tools.service.process import bind, run
from wds_tools.service.rights import forbid_inspection
from wds_tools.storage.local import raise_file_limit

_log = logging.getLogger("wds_tools")
_JOIN_SECONDS = 10.0
_RESTART_SECONDS = 1.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(options: ServeOptions, *, on_start: Callable[[Started], object] = lambda _: None) -> None:
    """Serve datasets until the process gets SIGTERM or SIGINT.

    Raises:
        OptionError: An option is invalid, or the port is in use.
        WorkerError: A process cannot be started.
    """
    options.check()
    forbid_inspection()  # by the processes that decode images, if one of them is taken over
    if options.processes == 1:
        with bind(options) as listener:
            raise_file_limit()
            asyncio.run(run(options, listener, on_start=on_start))
        return
    _supervise(options, on_start)


def _supervise(options: ServeOptions, on_start: Callable[[Started], object]) -> None:
    """Run several processes on one port; restart any that dies."""
    resource_tracker.ensure_running()  # its start would unblock the signals that `_Process` blocks
    with (
        _stop_signals() as stop,
        tempfile.TemporaryDirectory(prefix="wds_tools-metrics-") as folder,
        bind(options) as listener,
    ):
        os.environ[FOLDER_VARIABLE] = folder
        options = replace(options, port=listener.getsockname()[1])
        processes: list[_Process] = []
        try:
            processes.extend(_Process(options) for _ in range(options.processes))
            if _are_started(processes, stop, on_start):
                _watch(options, processes, stop, folder)
        finally:
            for process in processes:
                process.start_to_stop()
            for process in processes:
                process.wait_until_stopped()
            os.environ.pop(FOLDER_VARIABLE, None)


@contextlib.contextmanager
def _stop_signals() -> Iterator[Connection]:
    """Yield a pipe that is readable after SIGTERM or SIGINT: an exception could leave a process half started."""
    reader, writer = multiprocessing.Pipe(duplex=False)

    def handle(_number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            writer.send_bytes(b"stop")

    with reader, writer:
        handlers = {signal_number: signal.signal(signal_number, handle) for signal_number in _STOP_SIGNALS}
        try:
            yield reader
        finally:
            for signal_number, handler in handlers.items():
                signal.signal(signal_number, handler)


def _are_started(processes: list[_Process], stop: Connection, on_start: Callable[[Started], object]) -> bool:
    """Wait until all processes accept connections; return False if a signal comes first."""
    for process in processes:
        if stop in multiprocessing.connection.wait([process.pipe, stop]):
            return False
        started = process.receive_started()
    on_start(started)
    return True


def _watch(options: ServeOptions, processes: list[_Process], stop: Connection, folder: str) -> None:
    """Restart processes that die, until a signal comes."""
    while True:
        ended = multiprocessing.connection.wait([stop, *(process.sentinel for process in processes)])
        if stop in ended:
            return
        for position, process in enumerate(processes):
            if process.sentinel in ended:
                _log.error("process %d of the service ended with code %s: started again", process.pid, process.code)
                for path in Path(folder).glob(f"gauge_live*_{process.pid}.db"):
                    path.unlink(missing_ok=True)
                if stop.poll(_RESTART_SECONDS):  # one that cannot start must not be started without a pause
                    return
                processes[position] = _Process(options)


class _Process:
    """One of several processes of the service."""

    def __init__(self, options: ServeOptions) -> None:
        context = multiprocessing.get_context("spawn")  # without the state of this process
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_main, args=(options, theirs))
        self._is_started = False
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)  # Ctrl-C in a terminal is for the parent only
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
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

    def receive_started(self) -> Started:
        """Return what the process has reported."""
        try:
            started = self.pipe.recv()
        except EOFError:
            raise WorkerError("a process of the service ended before it listened: see the messages above") from None
        if isinstance(started, WdsToolsError):
            raise started
        assert isinstance(started, Started)
        self._is_started = True
        return started

    def start_to_stop(self) -> None:
        """Let the process complete the responses that have begun; one that does not listen yet is killed."""
        if not self._is_started and not self.pipe.poll():
            self._process.kill()
        self.pipe.close()  # the process sees the end of the pipe

    def wait_until_stopped(self) -> None:
        """Wait for the end of the process, and kill it if it does not end."""
        self._process.join(_JOIN_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _main(options: ServeOptions, pipe: Connection) -> None:
    """Main function of one of several processes."""

    def report(result: Started | WdsToolsError) -> None:
        with contextlib.suppress(OSError):  # the parent has ended
            pipe.send(result)

    forbid_inspection()
    try:
        with bind(options) as listener:
            raise_file_limit()
            asyncio.run(run(options, listener, on_start=report, parent=pipe))
    except WdsToolsError as error:
        report(error)
