"""Terminals: a program in a pseudo-terminal with its output, and a stream of this process that passes for one."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

import preloaded
import pytest
from preloaded import COMMANDS


class Stream(io.StringIO):
    """A stream that is a terminal or is not."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def watched(monkeypatch: pytest.MonkeyPatch) -> Stream:
    """Let stderr be a terminal that a person watches; return it."""
    stream = Stream(terminal=True)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def in_terminal(words: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a Python program in a terminal of 100 columns; return its exit code and its output.

    Args:
        words: The command line, as for `preloaded.Process`.
        env: Environment variables; by default this process's, as in a terminal that a person watches.
    """
    if env is None:
        env = {**os.environ, "TERM": "xterm", "CI": ""}
    ours, theirs = _terminal()
    program = preloaded.Process(words, stdin=theirs, stdout=theirs, stderr=theirs, env=env, imports=COMMANDS)
    os.close(theirs)
    output = _output(ours)
    return program.wait(), output


def shell_in_terminal(command: Sequence[str | Path], typed: str, cwd: Path, env: Mapping[str, str]) -> tuple[int, str]:
    """Run a shell in a terminal in which a person has typed something; return its exit code and its output."""
    ours, theirs = _terminal()
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=cwd, start_new_session=True
    ) as program:
        os.close(theirs)
        os.write(ours, typed.encode())
        output = _output(ours)
        return program.wait(300), output


def _terminal() -> tuple[int, int]:
    """Return both ends of a new terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    return ours, theirs


def _output(terminal: int) -> str:
    """Return all that is written to a terminal until the program ends."""
    output = b""
    while data := _read(terminal):
        output += data
    os.close(terminal)
    return output.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # on Linux, the other end is closed
        return b""
