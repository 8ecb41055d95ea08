"""Helper processes of the page: started when they are needed, killed when they take too long, and started again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import wds_tools
from wds_tools.service.pages import frames

_log = logging.getLogger("wds_tools")
_START_SECONDS = 60.0  # on a busy machine
_KILL_MARGIN_SECONDS = 1.0  # after the helper should have ended by itself


class HelperError(Exception):
    """A helper has no answer: the data is bad, or takes too much memory or time."""


class BusyError(HelperError):
    """No helper can be asked at present; a later question may be answered."""


@dataclass(slots=True)
class HelperPool:
    """Some processes of one kind.

    Args:
        kind: See `wds_tools.service.pages.helper.main`.
        count: Number of processes. Each works on one request at a time.
        memory_bytes: Memory limit of each.
        seconds: Time limit of an answer.
        max_waiting: Most questions that wait for a process.
    """

    kind: str
    count: int
    memory_bytes: int
    seconds: float
    max_waiting: int = 1000
    _idle: list[asyncio.subprocess.Process] = field(default_factory=list)
    _free: asyncio.Semaphore | None = None
    _waiting: int = 0
    _closed: bool = False

    async def ask(self, message: dict[str, Any], payload: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """Return the answer of a helper.

        Raises:
            HelperError: There is none.
        """
        if self._waiting >= self.max_waiting:
            raise BusyError("too many other requests wait")
        if self._free is None:
            self._free = asyncio.Semaphore(self.count)
        self._waiting += 1
        try:
            async with self._free:
                answer, data = await self._ask(message, payload)
        finally:
            self._waiting -= 1
        if "error" in answer:
            raise HelperError(str(answer["error"]))
        return answer, data

    async def warm_up(self) -> None:
        """Start the first process, which takes some tenths of a second."""
        if not self._idle and not self._waiting:
            with contextlib.suppress(HelperError):
                await self.ask({"question": "nothing"})

    async def end_idle(self) -> None:
        """End the processes that wait for questions; the next question starts one."""
        while self._idle:
            await _kill(self._idle.pop())

    async def close(self) -> None:
        """End all processes."""
        self._closed = True
        await self.end_idle()

    async def _ask(self, message: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        process = self._idle.pop() if self._idle else await self._start()
        try:
            async with asyncio.timeout(self.seconds + _KILL_MARGIN_SECONDS):
                assert process.stdin is not None
                process.stdin.write(frames.encode(message, payload))
                process.stdin.write(payload)
                await process.stdin.drain()
                answer, data = await _receive(process)
        except (TimeoutError, OSError, ValueError, EOFError):
            await _kill(process)
            raise HelperError("it takes too much time or memory") from None
        except BaseException:  # the client went away while the helper was working
            await asyncio.shield(_kill(process))
            raise
        if self._closed:
            await _kill(process)
        else:
            self._idle.append(process)
        return answer, data

    async def _start(self) -> asyncio.subprocess.Process:
        package = Path(wds_tools.__file__).parent.parent
        variables = {
            "PYTHONPATH": os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PATH": os.defpath,
            "ARROW_DEFAULT_MEMORY_POOL": "system",  # the others reserve address space
            **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "ARROW_IO_THREADS"), "1"),
        }  # without credentials
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "wds_tools.service.pages.helper"),
            *(self.kind, str(self.memory_bytes), str(self.seconds)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=variables,
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                ready, _ = await _receive(process)
        except (TimeoutError, OSError, ValueError, EOFError):
            await _kill(process)
            raise BusyError("a helper process of the page cannot be started") from None
        except BaseException:
            await asyncio.shield(_kill(process))
            raise
        if ready["refused"]:
            _warn_once("; ".join(ready["refused"]))
        return process


@cache
def _warn_once(refused: str) -> None:
    _log.warning("the processes that decode images keep rights that they do not need: the kernel refuses %s", refused)


async def _receive(process: asyncio.subprocess.Process) -> tuple[dict[str, Any], bytes]:
    assert process.stdout is not None
    text, size = frames.lengths(await process.stdout.readexactly(frames.HEAD.size))
    answer = frames.decode(await process.stdout.readexactly(text))
    return answer, await process.stdout.readexactly(size)


async def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.wait()
