"""Runs Python programs in processes that are forked from one that has imported large packages already.

Importing torch takes longer than most programs of the tests. Such a program runs as if Python had started it: in a
process of its own, as ``__main__``, with its own arguments, environment, working directory, output and exit status.

This file is also the program from which the others are forked. All processes of a run of the tests share it: it listens
on a socket, and forks a process for each connection, which receives requests as JSON, together with the streams of a
program, and sends an answer to each.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from waiting import wait_for

ROOT = Path(__file__).parents[1]
IMPORTS = ("torch", "torchvision", "wds_tools.loading.loader")
"""One set for all that needs torch. torchvision imports also what torch imports for a DeviceMesh and for FSDP."""
COMMANDS = (
    "wds_tools.cli",
    "wds_tools.inspection.stats",
    "wds_tools.packing.packer",
    "wds_tools.service.process",
    "wds_tools.upkeep.verifier",
)
"""What the commands that need no torch import."""
LONGEST_REQUEST_BYTES = 1 << 20
HUGE_PAGE_BYTES = 1 << 21
MADV_COLLAPSE = 25


class Process:
    """A running program. When it has ended, its output is in ``stdout`` and ``stderr``.

    Args:
        words: Words of the command line without the interpreter: a path, ``-m`` and a module, or ``-c`` and code,
            each followed by arguments.
        env: Environment; that of this process by default.
        cwd: Working directory.
        stdin: Descriptor of its standard input, which is empty by default.
        stdout: Descriptor of its standard output; by default a file, whose text is in ``stdout`` at the end.
        stderr: The same for errors.
        ranks: Number of processes that run the program, each with the environment variables of torchrun; None means
            one process without them.
        imports: Modules that are imported before. They are imported in the environment of the first program with the
            same modules.
    """

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        ranks: int | None = None,
        imports: Sequence[str] = IMPORTS,
    ) -> None:
        environment = {**(os.environ if env is None else env)}
        self._server = _Server.of(tuple(imports), environment)
        self.args = [*map(str, words)]
        self._outputs = [tempfile.TemporaryFile("w+") for _ in range(2)]  # noqa: SIM115 - closed by _wait
        files = [
            file.fileno() if given is None else given
            for file, given in zip(self._outputs, (stdout, stderr), strict=True)
        ]
        with Path(os.devnull).open() as empty:
            self.pid = self._server.ask(
                [empty.fileno() if stdin is None else stdin, *files],
                words=self.args,
                environment=environment,
                folder=str(cwd or Path.cwd()),
                ranks=ranks,
            )
        self.returncode: int | None = None
        self.stdout = self.stderr = ""

    def poll(self) -> int | None:
        """Return the exit status, or None if the program is still running."""
        return self._wait(os.WNOHANG)

    def wait(self) -> int:
        """Wait for the end of the program and return its exit status."""
        status = self._wait(0)
        assert status is not None
        return status

    def kill(self) -> None:
        """Kill the program."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal to the program, if it has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _wait(self, flags: int) -> int | None:
        if self.returncode is None:
            self.returncode, seconds = self._server.ask(wait=self.pid, flags=int(flags))
            if self.returncode is not None:
                _cpu_seconds.append(seconds)
                self.stdout, self.stderr = map(_read, self._outputs)
        return self.returncode


def run(words: Sequence[str | Path], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, like `subprocess.run`. The arguments are those of `Process`."""
    process = Process(words, **options)
    status = process.wait()
    return subprocess.CompletedProcess(process.args, status, process.stdout, process.stderr)


class Program:
    """What the packer of a loader needs of `subprocess.Popen`, of a program that is forked instead of started.

    Args:
        words: The interpreter, ``-c`` and code that needs no torch.
        stdin: A new pipe.
        stdout: A new pipe.
        env: Environment.
        start_new_session: Always true.
    """

    def __init__(
        self, words: Sequence[str], *, stdin: int, stdout: int, env: Mapping[str, str], start_new_session: bool
    ) -> None:
        assert (words[:2], stdin, stdout, start_new_session) == ([sys.executable, "-c"], *[subprocess.PIPE] * 2, True)
        (theirs, write), (read, others) = os.pipe(), os.pipe()
        code = f"import os; os.setsid()\n{words[2]}"
        self._process = Process(["-c", code], env=env, stdin=theirs, stdout=others, stderr=2, imports=COMMANDS)
        os.close(theirs)
        os.close(others)
        self.stdin, self.stdout = os.fdopen(write, "wb"), os.fdopen(read, "rb")
        self.pid, self.poll, self.wait = self._process.pid, self._process.poll, self._process.wait
        wait_for(lambda: os.getsid(self.pid) == self.pid, poll_seconds=0.001)


def command(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of ``wds-tools`` that needs no torch. The options are those of `Process`."""
    return run(["-m", "wds_tools.cli", *words], imports=COMMANDS, **options)


_cpu_seconds: list[float] = []


def cpu_seconds() -> float:
    """Return the CPU time of all programs that have ended, with the processes that they have waited for."""
    return sum(_cpu_seconds)


def _read(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()


class _Server:
    """A connection to the process from which programs are forked. It is started by the first one that needs it."""

    def __init__(self, imports: tuple[str, ...], environment: dict[str, str]) -> None:
        run = os.environ.get("PYTEST_XDIST_TESTRUNUID") or str(os.getpid())
        name = "\0" + "-".join(("wds-tools-tests", run, *imports))[:100]
        self._socket = _new_socket()
        self._lock = threading.Lock()  # a loader may ask in a thread
        self._starter, theirs = socket.socketpair()  # the process ends when this one has ended
        with theirs, _new_socket() as listener:
            if _is_bound(listener, name):
                descriptors = (listener.fileno(), theirs.fileno())
                subprocess.run(
                    [sys.executable, __file__, *map(str, descriptors), *imports],
                    env={**environment, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                    pass_fds=descriptors,
                    check=True,
                )
        wait_for(lambda: not self._socket.connect_ex(name))  # another process may have bound it, but not listen yet
        atexit.register(self.close)

    @classmethod
    def of(cls, imports: tuple[str, ...], environment: dict[str, str]) -> _Server:
        if imports not in _servers():
            _servers()[imports] = cls(imports, environment)
        return _servers()[imports]

    def close(self) -> None:
        """End the process of this connection, and the process that this one has started."""
        for connection in (self._socket, self._starter):
            with connection, contextlib.suppress(OSError):  # the other end may be closed
                connection.shutdown(socket.SHUT_RDWR)

    def ask(self, streams: Sequence[int] = (), **request: Any) -> Any:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
            return json.loads(self._socket.recv(LONGEST_REQUEST_BYTES))


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _is_bound(listener: socket.socket, name: str) -> bool:
    try:
        listener.bind(name)
        listener.listen()
    except OSError:
        return False
    return True


@functools.cache
def _servers() -> dict[tuple[str, ...], _Server]:
    return {}


def free_port() -> int:
    """Return a free port. It is not an ephemeral port, so connections of other tests do not take it meanwhile."""
    while True:
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            port: int = free.getsockname()[1]
            return port


def main() -> None:
    """Serve requests; in a forked process, run the program of one."""
    if os.fork():
        os._exit(0)  # so the other process is not a child of a process of the tests, which may look at its children
    os.fsync, os.sync = os.fstat, lambda: None  # as in the tests themselves: see conftest.py
    statuses: list[int] = []
    atexit.register(_end, statuses)  # the first one to be registered is the last one to be called
    gc.disable()
    for name in sys.argv[3:]:
        importlib.import_module(name)
    gc.freeze()  # collecting garbage would copy the memory that forked programs share
    gc.set_threshold(20_000)  # as in the tests themselves
    gc.enable()
    if tuple(sys.argv[3:]) == IMPORTS:  # from others, too few programs are forked: moving takes as long as 40 forks
        use_huge_pages()
    try:
        connection = _connection(socket.socket(fileno=int(sys.argv[1])), socket.socket(fileno=int(sys.argv[2])))
        request = connection and _serve(connection)
        if request:
            _run(request)
        statuses.append(0)
    except SystemExit as end:
        statuses.append(end.code if isinstance(end.code, int) else int(end.code is not None))
        raise
    except Exception:
        statuses.append(1)
        raise


def use_huge_pages() -> None:
    """Move the memory of this process to huge pages, where Linux has MADV_COLLAPSE (since 6.1).

    To fork, Linux copies an entry for each page. Of 400 MB, this takes longer than most of the programs run.
    """
    with contextlib.suppress(OSError, AttributeError):
        advise = ctypes.CDLL(None).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        for line in Path("/proc/self/maps").read_text().splitlines():
            addresses, access, _, _, inode, *name = line.split()
            if access == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
                start, stop = (int(address, 16) for address in addresses.split("-"))
                first = -(-start // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
                for address in range(first, stop - HUGE_PAGE_BYTES + 1, HUGE_PAGE_BYTES):
                    advise(address, HUGE_PAGE_BYTES, MADV_COLLAPSE)


def _connection(listener: socket.socket, starter: socket.socket) -> socket.socket | None:
    """Return a connection in the process that is forked for it; None when the process that started this one ends."""
    with listener, starter:
        while starter not in select.select([listener, starter], [], [])[0]:
            connection, _ = listener.accept()
            if not os.fork():
                return connection
            connection.close()
            while _child_has_ended():
                pass
    return None


def _child_has_ended() -> bool:
    try:
        return bool(os.waitpid(-1, os.WNOHANG)[0])
    except ChildProcessError:
        return False


def _end(statuses: list[int]) -> None:
    """End the process without releasing each module, which takes 0.3 s and copies the memory that is shared."""
    program = sys.modules["__main__"].__dict__
    if program is not globals():
        program.clear()  # as Python does, so that what the program has left open is closed
        gc.collect()
    if statuses:  # not after Ctrl-C, which ends a process with a signal
        for stream in filter(None, (sys.stdout, sys.stderr)):
            try:
                stream.flush()
            except (OSError, ValueError) as error:
                statuses.append(120)  # as Python does
                os.write(2, f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}\n".encode())
        os._exit(statuses.pop() & 255)


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Answer requests; return None at the end, and a request in the process that is forked for it."""
    with requests:
        while True:
            data, streams, _, _ = socket.recv_fds(requests, LONGEST_REQUEST_BYTES, 3)
            if not data:
                return None
            request: dict[str, Any] = json.loads(data)
            if "wait" in request:
                pid, status, used = os.wait4(request["wait"], request["flags"])
                answer: Any = (os.waitstatus_to_exitcode(status) if pid else None, used.ru_utime + used.ru_stime)
            else:
                answer = os.fork()
                if not answer:
                    for number, file in enumerate(streams):
                        os.dup2(file, number)
                for file in streams:
                    os.close(file)
                if not answer:
                    return request
            requests.sendall(json.dumps(answer).encode())


def _run(request: dict[str, Any]) -> None:
    sys.stdin, sys.stdout, sys.stderr = open(0), _text(1, "strict"), _text(2, "backslashreplace")  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    if request["ranks"] and not _is_rank(request["ranks"]):
        return
    sys.path[1:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    first, *sys.argv[:] = request["words"]
    if first == "-m":
        sys.path[0] = str(Path.cwd())
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path[0] = ""
        code, sys.argv[0] = sys.argv[0], "-c"
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), module.__dict__)
    else:
        sys.path[0] = str(Path(first).resolve().parent)
        sys.argv.insert(0, first)
        runpy.run_path(first, run_name="__main__")


def _text(descriptor: int, errors: str) -> IO[str]:
    lines = descriptor == 2 or os.isatty(descriptor)
    return open(descriptor, "w", buffering=1 if lines else -1, encoding="utf-8", errors=errors, closefd=False)


def _is_rank(world: int) -> bool:
    """Fork a process for each rank and return True there; here, wait for them, and fail if one fails."""
    import torch.distributed

    port = free_port()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    # As under torchrun, the store is in this process, so that no rank has to end last.
    os.environ.update(TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RESTART_COUNT="0")
    os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(world)
    children = []
    for rank in range(world):
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        child = os.fork()
        if not child:
            return True
        children.append(child)
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    del store
    if any(codes):
        sys.exit(f"exit statuses of the ranks: {codes}")
    return False


if __name__ == "__main__":
    main()
