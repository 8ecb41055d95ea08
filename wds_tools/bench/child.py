"""The commands of a loader process, which `start` runs: requests arrive over a pipe, and replies are sent back.

Both are JSON, so that a loader can run in another environment, which has only numpy and the
loader's own packages.
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

from wds_tools.bench.registry import LOADERS
from wds_tools.bench.timing import time_batches, wait_for_workers
from wds_tools.bench.workloads import LoaderModule, Setup


class _Commands:
    """The commands of a loader process; arguments and results are plain values."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: LoaderModule

    def load(self) -> dict[str, str]:
        """Import the loader; return the versions of its packages that are installed under the registered names."""
        entry = LOADERS[self._name]
        self._module = importlib.import_module(f"wds_tools.bench.{entry.module}")
        versions = {}
        for package in entry.packages:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # installed under another name
                versions[package] = importlib.metadata.version(package)
        return versions

    def prepare(self, setup: dict[str, Any]) -> dict[str, float] | None:
        """Write the dataset in the loader's own format; return seconds and bytes, or None without such a format."""
        if not hasattr(self._module, "prepare"):
            return None
        parsed, started = Setup.from_json(setup), time.perf_counter()
        self._module.prepare(parsed)
        seconds = time.perf_counter() - started
        return {"seconds": seconds, "bytes": _size_of(parsed.own_folder)}

    def probe(self, setup: dict[str, Any], file: str) -> None:
        """Write what the loader makes of the probes to an npz file.

        ``pixels`` are uint8 [n, 3, height, width], and ``boxes`` [boxes of all probes, 4]; a loader that does not
        support one omits it.
        """
        parsed = Setup.from_json(setup)
        arrays: dict[str, Any] = {}
        pixels = self._module.probe_pixels(parsed)
        if pixels is not None:
            arrays["pixels"] = np.stack([np.asarray(image) for image in pixels])
        if parsed.has_boxes and hasattr(self._module, "probe_boxes"):
            arrays["boxes"] = np.concatenate([np.asarray(boxes) for boxes in self._module.probe_boxes(parsed)])
        np.savez(file, **arrays)

    def measure_round(self, setup: dict[str, Any], seed: int, seconds: float) -> dict[str, float]:
        """Measure the loader once."""
        parsed = Setup.from_json(setup)
        start = partial(self._module.batch_sizes, parsed, seed)
        return time_batches(start, workers=parsed.workers, seconds=seconds)

    def measure_stages(self, setup: dict[str, Any], seconds: float) -> dict[str, float]:
        """Measure the stages of our loader, in microseconds per sample."""
        stages = importlib.import_module("wds_tools.bench.stages")  # imports torch
        measured: dict[str, float] = stages.measure_stages(Setup.from_json(setup), seconds)
        wait_for_workers()
        return measured


def _size_of(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())  # of links, not what they name


def _answer(command: Callable[[], Any]) -> dict[str, Any]:
    """Run a command; return its result or its error."""
    try:
        return {"reply": command()}
    except ModuleNotFoundError as error:
        return {"missing": error.name}
    except Exception as error:  # any error of a peer goes into the report
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def serve(pipe: Connection, name: str, folder: str) -> None:
    """Import a loader and run commands until the pipe is closed.

    Then the temporary folder is removed here too, in case the main process was killed.
    """
    commands = _Commands(name)
    try:
        pipe.send_bytes(json.dumps(_answer(commands.load)).encode())
        while True:
            request = json.loads(pipe.recv_bytes())
            command = partial(getattr(commands, request.pop("command")), **request)
            pipe.send_bytes(json.dumps(_answer(command)).encode())
    except (EOFError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
