"""A Ray cluster: the connection to it, and checks of the machines on which this package is called there."""

from __future__ import annotations

import importlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import PIL

from wds_tools.errors import OptionError, WdsToolsError, WorkerError
from wds_tools.images import native


def load_ray(option: str) -> Any:
    """Return the module ``ray``, or raise an error with the option that needs it."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise OptionError(f"{option} needs Ray: pip install 'wds-tools[ray]'") from error


def connect(ray: Any) -> bool:
    """Connect to the cluster at RAY_ADDRESS, or start one on this machine only.

    Without an address, Ray would connect to the cluster that a file in its temporary folder names, and wait for minutes
    if that cluster has ended.

    Returns:
        Whether this process was not connected before.
    """
    if ray.is_initialized():
        return False
    if address := os.environ.get("RAY_ADDRESS"):
        try:
            ray.init(log_to_driver=False, logging_level="ERROR")
        except ConnectionError as error:
            raise WorkerError(
                f"no connection to the Ray cluster at RAY_ADDRESS={address}: {error}. Check that it runs. If "
                "messages of Ray above name a token, set the same RAY_AUTH_MODE here and on all machines of the cluster"
            ) from error
        return True
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init("local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    return True


@dataclass(frozen=True)
class Machine:
    """What a machine of the cluster must have in common with the starting process.

    Attributes:
        folder: The working directory, to which relative paths refer.
        compiled: Whether there is the compiled module.
        pillow: The version of Pillow, which decodes and encodes images.
    """

    shared: tuple[Path, ...]
    folder: str = field(default_factory=os.getcwd)
    compiled: bool = field(default_factory=native.is_available)
    pillow: str = PIL.__version__

    def check(self) -> None:
        """Check this machine, and go to the working directory if there is one of its name."""
        native.check_worker(compiled_in_parent=self.compiled)
        if self.pillow != PIL.__version__:
            raise WorkerError(f"Pillow {PIL.__version__} is installed, but {self.pillow} at the starting process")
        with suppress(OSError):
            os.chdir(self.folder)
        for path in self.shared:
            if not path.exists():
                raise WorkerError(f"{path} does not exist there: mount it on all machines, or use URLs")


@contextmanager
def machine_named() -> Iterator[None]:
    """Let the errors of this package name this machine."""
    try:
        yield
    except WdsToolsError as error:
        raise on_this_machine(error) from error


def on_this_machine(error: WdsToolsError) -> WdsToolsError:
    """Return an error that names this machine."""
    message = f"on {platform.node()}: {error.args[0]}"
    return type(error)(message, shard=error.shard, key=error.key, offset=error.offset)


class RemoteFunction:
    """A function of this package as tasks of Ray Core.

    Args:
        name: Its module and name.
        options: Options of ``ray.remote``.
    """

    def __init__(self, ray: Any, name: tuple[str, str], **options: Any) -> None:
        self._ray = ray
        self._remote = ray.remote(**options)(_imported_there())
        self._given = (_version(), *name)

    def submit(self, *arguments: Any) -> Any:
        """Submit a call; return Ray's reference to its result."""
        return self._remote.remote(*self._given, *arguments)

    def result(self, reference: Any) -> Any:
        """Wait for a call and return its result, or raise its error, or that the machine lacks this package."""
        errors = self._ray.exceptions
        try:
            problem, answer = self._ray.get(reference)
        except errors.RayTaskError as error:
            if isinstance(error.cause, errors.RayError):  # Ray could not send the error itself
                raise WorkerError(f"a Ray task failed: {error.cause}") from error
            raise error.cause from error
        if problem:
            raise WorkerError(f"{problem}: install the same version on all machines of the Ray cluster")
        return answer


def _version() -> str:
    return str(importlib.import_module("wds_tools").__version__)


def _imported_there() -> Any:
    def task(version: str, module: str, name: str, *arguments: Any) -> tuple[str, Any]:
        # Ray sends the code of a nested function, and imports others, which fails where this package is missing.
        try:
            there = importlib.import_module("wds_tools").__version__
            function = getattr(importlib.import_module(module), name)
        except ImportError as error:
            return f"{platform.node()} cannot import wds_tools ({error})", None
        if there != version:
            return f"{platform.node()} has wds_tools {there}, and the starting process {version}", None
        return "", function(*arguments)

    return task
