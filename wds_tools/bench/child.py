"""What the process of one contender does; `start` starts it.

Commands come over a pipe as JSON, replies go back the same way: only plain values travel, so that a contender can
run in an environment of its own, which has numpy and what that contender needs.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import shutil
import time
import traceback
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from wds_tools.bench.registry import CONTENDERS
from wds_tools.bench.timing import time_batches, wait_for_workers
from wds_tools.bench.workloads import Runner, Setup


class _Child:
    """Does what is asked of one contender."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._runner: Runner

    def load(self) -> dict[str, str]:
        """Import the contender; return the versions of what it needs, where they are known."""
        contender = CONTENDERS[self._name]
        self._runner = importlib.import_module(f"wds_tools.bench.{contender.module}")
        versions = {}
        for package in contender.needs:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # another build of the same
                versions[package] = importlib.metadata.version(package)
        return versions

    def prepare(self, setup: dict[str, Any]) -> dict[str, float] | None:
        """Have the contender write the material in its own format; return how long that took and what it takes."""
        if not hasattr(self._runner, "prepare"):
            return None
        made, started = Setup.from_json(setup), time.perf_counter()
        self._runner.prepare(made)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "bytes": _size_of(made.own)}

    def pictures(self, setup: dict[str, Any], file: str) -> bool:
        """Write the probes to a file: uint8 [n, 3, height, width]; return whether there is such a thing."""
        pictures = self._runner.pictures(Setup.from_json(setup))
        if pictures is not None:
            np.save(file, np.stack([np.asarray(picture) for picture in pictures]), allow_pickle=False)
        return pictures is not None

    def round(self, setup: dict[str, Any], seed: int, seconds: float) -> dict[str, float]:
        """Measure the contender once."""
        made = Setup.from_json(setup)
        return time_batches(lambda: self._runner.batches(made, seed), workers=made.workers, seconds=seconds)

    def stages(self, setup: dict[str, Any], seconds: float) -> dict[str, float]:
        """Measure the stages of our own path, in microseconds per sample."""
        measured: dict[str, float] = importlib.import_module("wds_tools.bench.stages").measure(
            Setup.from_json(setup), seconds
        )
        wait_for_workers()
        return measured


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _attempt(job: Callable[[], Any]) -> dict[str, Any]:
    """Return what a job returns, or what went wrong."""
    try:
        return {"reply": job()}
    except ModuleNotFoundError as error:
        return {"missing": error.name}
    except Exception as error:  # whatever a peer raises is for the report
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def serve(pipe: Connection, name: str, folder: str) -> None:
    """Load a contender and do what is asked of it until the pipe is closed.

    Then the temporary folder is removed from here too, in case the main process was killed.
    """
    child = _Child(name)
    try:
        pipe.send_bytes(json.dumps(_attempt(child.load)).encode())
        while True:
            command = json.loads(pipe.recv_bytes())
            job = partial(getattr(child, command.pop("do")), **command)
            pipe.send_bytes(json.dumps(_attempt(job)).encode())
    except (EOFError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
