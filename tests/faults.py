"""Fault injection at system calls: the Nth call of one kind kills the program or returns an error.

The kernel forwards these calls to this process, which decides about them: seccomp_unotify(2), Linux
5.9 and newer. Nothing has to be installed, and all other calls run at full speed.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import posix
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import preloaded

CALL_NUMBERS = {
    "x86_64": {
        "write": [1], "writev": [20], "fsync": [74], "rename": [82, 264, 316],
        "unlink": [87, 263], "mkdir": [83, 258], "rmdir": [84], "link": [86, 265],
    },
    "aarch64": {
        "write": [64], "writev": [66], "fsync": [82], "rename": [38, 276],
        "unlink": [35], "mkdir": [34], "rmdir": [35], "link": [37],
    },
}  # fmt: skip
SECCOMP = {"x86_64": 317, "aarch64": 277}  # number of the system call seccomp
PR_SET_NO_NEW_PRIVS, SECCOMP_SET_MODE_FILTER, NEW_LISTENER = 38, 1, 8
LOAD_NUMBER, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, NOTIFY = 0x7FFF0000, 0x7FC00000  # SECCOMP_RET_ALLOW, SECCOMP_RET_USER_NOTIF
RECEIVE, SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV and _SEND
CONTINUE = 1  # SECCOMP_USER_NOTIF_FLAG_CONTINUE
TIMEOUT_SECONDS = 60


def missing() -> str:
    """Return which feature the kernel lacks; "" if it lacks none."""
    try:
        done = run_with_fault(["timeit", "-n1", "-r1", "print(flush=True)"], "write", 1, "EIO")
    except (EOFError, KeyError):
        return "missing kernel feature: seccomp_unotify"
    return "" if done.returncode else "missing kernel feature: seccomp_unotify"


def run_with_fault(
    words: Sequence[str | os.PathLike[str]], call: str, number: int, fault: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program and inject a fault at its Nth call of one kind, counted over all its threads.

    Args:
        words: A module and its arguments.
        call: A key of `CALL_NUMBERS`.
        number: Number of the call, from 1.
        fault: "KILL", "INT" for Ctrl-C before the call, or the name of an error such as "ENOSPC".
        env: Environment variables.
    """
    ours, theirs = socket.socketpair()
    numbers = ",".join(map(str, CALL_NUMBERS[os.uname().machine][call]))
    with ours:
        with theirs:
            words = [__file__, numbers, *map(str, words)]
            process = preloaded.Process(words, env=env, stdin=theirs.fileno(), imports=preloaded.COMMANDS)
        try:
            listener = receive_descriptor(ours)
            try:
                answer_calls(listener, process, number, fault)
            finally:
                os.close(listener)
        finally:
            process.kill()
            process.wait()
    return subprocess.CompletedProcess(process.args, process.returncode, process.stdout, process.stderr)


def receive_descriptor(ours: socket.socket) -> int:
    """Return the descriptor that the launched process sends."""
    ours.settimeout(TIMEOUT_SECONDS)
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        raise EOFError("the launched process has no listener for its calls")
    return descriptors[0]


def answer_calls(listener: int, process: preloaded.Process, number: int, fault: str) -> None:
    """Continue every call except the Nth, until the last process has ended."""
    waiting = select.poll()
    waiting.register(listener, select.POLLIN)
    end = time.monotonic() + TIMEOUT_SECONDS
    seen = 0
    while events := waiting.poll(1000 * max(0.0, end - time.monotonic())):
        if not events[0][1] & select.POLLIN:
            return  # the last process has ended
        notification = array.array("B", bytes(80))  # struct seccomp_notif: id, pid, flags, ...
        try:
            fcntl.ioctl(listener, RECEIVE, notification)
            seen += 1
            if seen == number and fault == "KILL":
                os.kill(process.pid, signal.SIGKILL)  # without a response, the call is not executed
                continue
            if seen == number and fault == "INT":
                os.kill(process.pid, signal.SIGINT)
            error, flags = (-getattr(errno, fault), 0) if seen == number and fault != "INT" else (0, CONTINUE)
            response = notification[:8].tobytes() + struct.pack("=qiI", 0, error, flags)
            fcntl.ioctl(listener, SEND, array.array("B", response))
        except FileNotFoundError:
            pass  # the process was killed in the meantime
    raise TimeoutError(f"{process.args} did not end within {TIMEOUT_SECONDS} s")


def install(numbers: Sequence[int]) -> None:
    """Install the filter, and send its descriptor through the socket that is the standard input."""
    rules = [(LOAD_NUMBER, 0, 0, 0)]
    for position, number in enumerate(numbers):
        rules.append((JUMP_IF_EQUAL, len(numbers) - position, 0, number))  # jumps to the last rule
    rules += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOTIFY)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *rule) for rule in rules))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(rules), ctypes.addressof(filters)))
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    listener = libc.syscall(SECCOMP[os.uname().machine], SECCOMP_SET_MODE_FILTER, NEW_LISTENER, program)
    if listener < 0:
        sys.exit("seccomp returned an error instead of a descriptor")
    with socket.socket(fileno=os.dup(0)) as end:
        socket.send_fds(end, [b"."], [listener])
    os.close(listener)
    with Path(os.devnull).open() as empty:
        os.dup2(empty.fileno(), 0)


if __name__ == "__main__":
    install([int(number) for number in sys.argv[1].split(",")])
    del sys.argv[:2]
    sys.dont_write_bytecode = True  # its calls would be counted
    os.fsync = posix.fsync  # which programs of the tests do not call otherwise
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
