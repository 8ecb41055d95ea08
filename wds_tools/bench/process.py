"""The processes of all contenders, and how to talk to them."""

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

from wds_tools.bench.registry import CONTENDERS
from wds_tools.errors import WorkerError

_START = Path(__file__).with_name("start.py")
_PATIENCE_SECONDS = 120.0
_GOODBYE_SECONDS = 1.0
_TRACKER_SECONDS = 0.5
_OF_THIS_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_LONGEST_TMPDIR = 70  # bytes; multiprocessing makes sockets below it, whose names end at 107


class Contestant:
    """One contender in a process of its own, which starts with it and is idle until it is asked.

    Args:
        name: In `CONTENDERS`.
        folder: The temporary folder, where what the process prints is kept too.
        python: Interpreter of the environment that it lives in, if that is not ours.
    """

    def __init__(self, name: str, folder: Path, python: str | None = None) -> None:
        self.name = name
        self.python = python
        self.versions: dict[str, str] = {}
        self._log = folder / f"{name}.log"
        self._pipe, theirs = multiprocessing.Pipe()
        # Its own session: Ctrl-C reaches this process alone, and one signal ends it with all its workers.
        with self._log.open("wb") as log, theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                [python or sys.executable, str(_START), str(theirs.fileno()), name, str(folder)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=_environment(folder, foreign=python is not None),
            )

    def wait_until_loaded(self) -> None:
        """Wait for the imports to be done.

        Raises:
            WorkerError: It is not installed.
        """
        self.versions = self._reply(_PATIENCE_SECONDS)

    def ask(self, command: str, values: dict[str, Any], *, patience: float = _PATIENCE_SECONDS) -> Any:
        """Have a command done, and return the reply.

        Raises:
            WorkerError: It failed, died or does not answer.
        """
        self._pipe.send_bytes(json.dumps({"do": command, **values}).encode())
        return self._reply(patience)

    def leave(self) -> None:
        """Tell the process to end."""
        self._pipe.close()

    def end(self, patience: float) -> None:
        """Wait for that, and end it with all that it has started."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, patience - time.monotonic()))
        with contextlib.suppress(ProcessLookupError):
            # First the polite signal, which multiprocessing's resource tracker outlives, to remove what others leave.
            os.killpg(self._process.pid, signal.SIGTERM)
            self._wait_for_group(time.monotonic() + _TRACKER_SECONDS)
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _wait_for_group(self, patience: float) -> None:
        """Return when no process of the group is left, with ProcessLookupError, or out of patience."""
        while time.monotonic() < patience:
            self._process.poll()  # or its zombie would count
            os.killpg(self._process.pid, 0)
            time.sleep(0.01)

    def _reply(self, seconds: float) -> Any:
        patience = time.monotonic() + seconds
        while not self._pipe.poll(0.5):
            if self._process.poll() is not None:
                raise WorkerError(f"its process ended with exit code {self._process.returncode}{self._last_words()}")
            if time.monotonic() > patience:
                raise WorkerError(f"no answer within {seconds:.0f} s{self._last_words()}")
        try:
            answer = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerError(f"its process ended{self._last_words()}") from None
        if "missing" in answer:
            raise WorkerError(self._missing(answer["missing"]))
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["reply"]

    def _missing(self, module: str) -> str:
        where = f"in {self.python} " if self.python else ""
        advice = f"pip install {' '.join(CONTENDERS[self.name].needs)}"
        elsewhere = "" if self.python else f", or name another environment that has it: --python {self.name}=PATH"
        return f"not installed: {where}there is no module {module}; {advice}{elsewhere}"

    def _last_words(self) -> str:
        words = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
        return f": {words}" if words else ""


@contextmanager
def contestants(names: Iterable[str], folder: Path, pythons: Mapping[str, str]) -> Iterator[list[Contestant]]:
    """Start a process per contender; whatever happens, they and their workers are gone at the end."""
    started: list[Contestant] = []
    try:
        for name in names:
            started.append(Contestant(name, folder, pythons.get(name)))  # noqa: PERF401 - one that has started must be in the list
        yield started
    finally:
        for contestant in started:
            contestant.leave()
        patience = time.monotonic() + _GOODBYE_SECONDS
        for contestant in started:
            contestant.end(patience)


def _environment(folder: Path, *, foreign: bool) -> dict[str, str]:
    """Return the environment of this process; another Python must not find packages of this one.

    What peers leave in the folder for temporary files goes with ours.
    """
    found = dict(os.environ)
    own = folder / "tmp"
    if len(os.fsencode(own)) <= _LONGEST_TMPDIR:
        own.mkdir(exist_ok=True)
        found["TMPDIR"] = str(own)
    if foreign:
        return {name: value for name, value in found.items() if name not in _OF_THIS_PYTHON}
    root = str(_START.parents[2])
    return {**found, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
