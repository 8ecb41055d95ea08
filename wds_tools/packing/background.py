"""A packer in a separate process, for a training that reads the shards as they are finished.

It is started as a new program, so it copies nothing of the training. It ends with the process that started it, and with
its workers. It packs only while no other packer has the folder: otherwise it waits, and takes over if that one ends
before the dataset is complete. So several trainings may start one each.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from wds_tools.errors import DestinationError, OptionError, WdsToolsError, WorkerError
from wds_tools.format.recorded_source import plan_of
from wds_tools.options import RemoteOptions
from wds_tools.packing.config import PackOptions
from wds_tools.packing.in_place import make_crop_ready
from wds_tools.packing.packer import list_or_restore, pack_listing
from wds_tools.packing.plan import Plan
from wds_tools.packing.remote_destination import open_destination, parse_destination
from wds_tools.storage.lock import WORK_NAME, is_locked

_PROGRAM = "from wds_tools.packing.background import main; main()"
_NICE = 19
_SESSION_NICE = 6  # about a sixth of the cores if the training could use all of them
_WAIT_SECONDS = 0.2  # between two attempts to lock the folder
_PLAN, _COMPLETE, _ERROR = b"plan ", b"complete", b"error "  # how the lines begin that the process writes
_log = logging.getLogger("wds_tools")


class BackgroundPacker:
    """A packer process. Its messages go to stderr of this process.

    Args:
        options: The arguments of `pack`.
        crop_ready: Make the images crop-ready when the dataset is complete, in place.
        cache: How the training reads a URL, see `open_destination`.
        environment: Environment variables to set.

    Raises:
        OptionError: The source is an object that cannot be sent to another process.
        WorkerError: The process cannot be started.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        *,
        crop_ready: bool = False,
        cache: RemoteOptions | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        path = os.pathsep.join(filter(None, sys.path))
        try:
            sent = pickle.dumps((dict(options), crop_ready, cache))
        except Exception as error:  # whatever the methods of an object raise
            raise _cannot_be_sent(options["src"], error) from error
        try:
            self._process = subprocess.Popen(  # noqa: S603 - the program is this package
                [sys.executable, "-c", _PROGRAM],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **(environment or {}), "PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the training; this process ends when its input is closed
            )
        except OSError as error:
            raise WorkerError(f"the packer cannot be started: {error}") from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        os.set_blocking(self._process.stdout.fileno(), False)
        self._output = b""
        with contextlib.suppress(BrokenPipeError):  # it ended already, which `poll` reports
            # Not as arguments: they may be secret.
            self._process.stdin.write(sent)
            self._process.stdin.flush()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def lower_priority(self) -> None:
        """Give the packer and its workers low priority: the training has the cores first from now on."""
        with contextlib.suppress(OSError):  # it has ended
            os.setpriority(os.PRIO_PGRP, self.pid, _NICE)
            # Linux first divides the cores among sessions, if it groups processes so: nice counts only inside of one.
            Path(f"/proc/{self.pid}/autogroup").write_text(str(_SESSION_NICE))

    def plan(self) -> str | None:
        """Return the identity of the plan of the packer, see `plan_of`; None while it lists the source."""
        line = self._line(_PLAN)
        return None if line is None else line.decode()

    def poll(self) -> bool:
        """Return whether the dataset is complete. The process may still make its images crop-ready."""
        status = self._process.poll()  # before its last lines are read
        if self._line(_COMPLETE) is not None:
            return True
        if status is None:
            return False
        if (error := self._line(_ERROR)) is not None:
            raise pickle.loads(bytes.fromhex(error.decode()))  # noqa: S301 - written by our own process
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise PackerDiedError(f"the packer {how}")

    def close(self) -> None:
        """Stop the packer and its workers. Finished shards are kept."""
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()

    def _line(self, start: bytes) -> bytes | None:
        """Return the rest of the line that begins so, if the process has written it."""
        assert self._process.stdout is not None
        while not self._process.stdout.closed and (data := self._process.stdout.read()):
            self._output += data
        lines = self._output.split(b"\n")[:-1]
        return next((line.removeprefix(start) for line in lines if line.startswith(start)), None)


class PackerDiedError(WorkerError):
    """The packer process was killed, or ended in an unknown way."""


def main() -> None:
    """Run the process: read the options from standard input, write the plan and an error to standard output."""
    output, sys.stdout = os.dup(1), sys.stderr
    os.dup2(2, 1)  # whatever is printed is a message
    try:
        arguments, crop_ready, cache = pickle.load(sys.stdin.buffer)  # noqa: S301 - written by the parent
    except EOFError:  # the parent was killed
        return
    except Exception as error:  # the source is an object of a class that this process does not find
        _fail(output, _cannot_be_sent(None, error))
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    try:
        location = _pack(PackOptions(**arguments), cache, output)
    except WdsToolsError as error:
        _fail(output, error)
    os.write(output, _COMPLETE + b"\n")
    if crop_ready:
        assert isinstance(location, Path), "the loader has checked it"
        _make_crop_ready(location)


def _fail(output: int, error: WdsToolsError) -> NoReturn:
    os.write(output, _ERROR + pickle.dumps(error).hex().encode() + b"\n")
    sys.exit(1)


def _cannot_be_sent(source: Any, error: Exception) -> OptionError:
    name = "the dataset" if source is None else f"the {type(source).__name__}"
    return OptionError(
        f"{name} cannot be sent to the process that packs ({type(error).__name__}: {error}): define its class and its "
        "functions in a module that can be imported, not in the program itself, or pack it first with wds_tools.pack"
    )


def _exit_with_parent() -> None:
    """Kill this process and its workers when the training is gone: it has closed the pipe to our standard input."""
    with contextlib.suppress(OSError, ValueError):
        while os.read(0, 1):
            pass
    os.killpg(0, signal.SIGKILL)


def _make_crop_ready(folder: Path) -> None:
    """Make the images of the dataset crop-ready. The training does not need that, so an error is a warning."""
    while True:
        try:
            make_crop_ready(folder, progress=False)
        except WdsToolsError as error:
            if isinstance(error.__cause__, BlockingIOError):
                _wait_for_others(folder)
                continue
            _log.warning("the images of %s are not made crop-ready: %s", folder, error)
        return


def _wait_for_others(folder: Path) -> None:
    while is_locked(folder / WORK_NAME / "lock"):
        time.sleep(_WAIT_SECONDS)


def _pack(options: PackOptions, cache: RemoteOptions | None, output: int) -> Path | str:
    """Pack, and return the folder or URL."""
    location = parse_destination(options.dst)
    source, listing, stored = list_or_restore(location, replace(options, progress=False))
    is_told = False

    def tell(plan: Plan) -> None:
        nonlocal is_told
        if not is_told:
            os.write(output, _PLAN + plan_of(plan.source).encode() + b"\n")
        is_told = True

    destination = open_destination(location, spool=options.spool_folder, progress=False, remote=options.remote)
    while True:
        was_complete = destination.manifest() is not None
        try:
            pack_listing(source, listing, location, options, planned=tell, cache=cache, whole=True, stored=stored)
        except DestinationError as error:
            is_taken = isinstance(error.__cause__, BlockingIOError)
            if not is_taken and (was_complete or destination.manifest() is None):
                raise  # otherwise another packer has completed the dataset meanwhile
            _wait_for_others(destination.folder)
        else:
            return location
