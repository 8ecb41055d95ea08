"""Run a program in a pseudo-terminal, and return what it shows there."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path


def in_terminal(
    command: Sequence[str | Path], *, typed: str = "", cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a command in a terminal of 100 columns and type a text; return the exit code and what the terminal shows.

    By default the environment is this process's, as in a terminal that a person watches: `wds_tools.terminal`.
    """
    if env is None:
        env = {**os.environ, "TERM": "xterm", "CI": ""}
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=cwd, start_new_session=True
    ) as program:
        os.close(theirs)
        os.write(ours, typed.encode())
        shown = b""
        while data := _read(ours):
            shown += data
        code = program.wait(300)
    os.close(ours)
    return code, shown.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # Linux reports in this way that the other end is closed
        return b""
