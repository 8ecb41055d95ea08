"""Small and read-only file systems in a mount namespace, which only the calling process sees.

A script must call `enter` first, before it imports anything that starts threads. See
mount_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import preloaded

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
READ_ONLY, REMOUNT, BIND, REC, PRIVATE = 1, 32, 4096, 16384, 1 << 18
libc = ctypes.CDLL(None, use_errno=True)


def missing(folder: Path) -> str:
    """Return which feature the kernel lacks; "" if it lacks none."""
    script = "import sys, mounts; mounts.enter(); mounts.make_small(sys.argv[1], 64)"
    done = run(script, folder)
    return (
        f"missing kernel feature: mounting in a namespace ({done.stderr.splitlines()[-1]})" if done.returncode else ""
    )


def run(
    script: str, *arguments: object, imports: Sequence[str] = preloaded.COMMANDS
) -> subprocess.CompletedProcess[str]:
    """Run a Python script that can import this module and wds_tools; ``imports`` are imported before."""
    path = {"PYTHONPATH": str(Path(__file__).parent)}
    return preloaded.run(["-c", script, *map(str, arguments)], env={**os.environ, **path}, imports=imports)


def enter() -> None:
    """Move this process to a new mount namespace, as root of a new user namespace if that is allowed."""
    user, group = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    else:
        _check(libc.unshare(CLONE_NEWNS), "unshare")
    _mount("none", "/", None, REC | PRIVATE)


def make_small(folder: str | os.PathLike[str], kilobytes: int) -> None:
    """Mount an empty file system of this size on a folder."""
    _mount("tmpfs", folder, "tmpfs", 0, f"size={kilobytes}k")


def resize(folder: str | os.PathLike[str], kilobytes: int) -> None:
    """Change the size of a small file system."""
    _mount("tmpfs", folder, "tmpfs", REMOUNT, f"size={kilobytes}k")


def make_read_only(folder: str | os.PathLike[str]) -> None:
    """Make a folder read-only, even for root."""
    _mount(folder, folder, None, BIND)
    _mount(folder, folder, None, REMOUNT | BIND | READ_ONLY)


def unmount(folder: str | os.PathLike[str]) -> None:
    """Undo the last mount on a folder."""
    _check(libc.umount2(os.fsencode(folder), 0), "umount")


def _mount(
    source: str | os.PathLike[str], target: str | os.PathLike[str], kind: str | None, flags: int, data: str = ""
) -> None:
    kind_name = None if kind is None else kind.encode()
    _check(libc.mount(os.fsencode(source), os.fsencode(target), kind_name, flags, data.encode()), "mount")


def _check(result: int, call: str) -> None:
    if result:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")
