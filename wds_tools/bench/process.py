"""The processes in which loaders run, seen from the benchmark; `child` is the other end of the pipe."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wds_tools.bench.registry import LOADERS
from wds_tools.errors import WorkerError

_START = Path(__file__).with_name("start.py")
_REPLY_SECONDS = 120.0
_EXIT_SECONDS = 1.0
_TERMINATE_SECONDS = 0.5
_PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_MAX_TMPDIR_BYTES = 70  # multiprocessing creates sockets below it, whose paths may have 107


class LoaderProcess:
    """A loader in its own process, which imports it and then waits for commands."""

    def __init__(self, name: str, folder: Path, python: str | None = None) -> None:
        self.name = name
        self.python = python
        self.versions: dict[str, str] = {}
        self._log = folder / f"{name}.log"
        self._pipe, child_pipe = multiprocessing.Pipe()
        # In a new process group: Ctrl-C does not reach it, and one signal ends all its workers too.
        with self._log.open("wb") as log, child_pipe:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [python or sys.executable, str(_START), str(child_pipe.fileno()), name, str(folder)],
                pass_fds=[child_pipe.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_environment(folder, foreign=python is not None),
            )

    def wait_until_loaded(self) -> None:
        """Wait until the loader is imported, and take the versions of its packages."""
        self.versions = self._reply(_REPLY_SECONDS)

    def call(self, command: str, values: dict[str, Any], *, timeout: float = _REPLY_SECONDS) -> Any:
        """Run a command in the process.

        Raises:
            WorkerError: The command failed, or the process died or did not reply in time.
        """
        self._pipe.send_bytes(json.dumps({"command": command, **values}).encode())
        return self._reply(timeout)

    def close(self) -> None:
        """Close the pipe, which ends the process."""
        self._pipe.close()

    def wait_or_kill(self, deadline: float) -> None:
        """Wait for the process to end, and then end every process that it has left."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, deadline - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            # SIGTERM first: multiprocessing's resource tracker survives it and removes what the
            # others leave.
            os.killpg(self._process.pid, signal.SIGTERM)
            self._wait_for_group(time.monotonic() + _TERMINATE_SECONDS)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _wait_for_group(self, deadline: float) -> None:
        """Wait for the process group to end, at most until a deadline."""
        while time.monotonic() < deadline:
            self._process.poll()  # a zombie would count as a member
            os.killpg(self._process.pid, 0)
            time.sleep(0.01)

    def _reply(self, timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        while not self._pipe.poll(0.5):
            if self._process.poll() is not None:
                raise WorkerError(f"its process ended with exit code {self._process.returncode}{self._last_output()}")
            if time.monotonic() > deadline:
                raise WorkerError(f"no reply within {timeout:.0f} s{self._last_output()}")
        try:
            answer = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerError(f"its process ended{self._last_output()}") from None
        if "missing" in answer:
            raise WorkerError(self._not_installed(answer["missing"]))
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["reply"]

    def _not_installed(self, module: str) -> str:
        where = f" in {self.python}" if self.python else ""
        install = f"pip install {' '.join(LOADERS[self.name].packages)}"
        remedy = "" if self.python else f", or name the Python of an environment that has it: --python {self.name}=PATH"
        return f"not installed: no module {module}{where}; {install}{remedy}"

    def _last_output(self) -> str:
        line = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
        return f": {line}" if line else ""


@contextmanager
def loader_processes(names: Iterable[str], folder: Path, pythons: Mapping[str, str]) -> Iterator[list[LoaderProcess]]:
    """Start one process per loader; on exit they and their workers have ended, even after an exception."""
    started: list[LoaderProcess] = []
    try:
        for name in names:
            started.append(LoaderProcess(name, folder, pythons.get(name)))  # noqa: PERF401 - each must be ended
        yield started
    finally:
        for process in started:
            process.close()
        deadline = time.monotonic() + _EXIT_SECONDS
        for process in started:
            process.wait_or_kill(deadline)


def _environment(folder: Path, *, foreign: bool) -> dict[str, str]:
    """Return the variables for a loader process.

    Its temporary files go into our temporary folder, which is removed. The Python of another
    environment must not find packages of this one.
    """
    variables = dict(os.environ)
    temporary = folder / "tmp"
    if len(os.fsencode(temporary)) <= _MAX_TMPDIR_BYTES:
        temporary.mkdir(exist_ok=True)
        variables["TMPDIR"] = str(temporary)
    if foreign:
        return {name: value for name, value in variables.items() if name not in _PYTHON_VARIABLES}
    root = str(_START.parents[2])
    return {**variables, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
