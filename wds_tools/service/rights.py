"""Rights that a process gives up. A kernel or a sandbox may refuse that; then the process continues with its rights."""

from __future__ import annotations

import ctypes
import os
import sys

_NOBODY = 65534
_SET_DUMPABLE, _SET_NO_NEW_PRIVS = 4, 38  # of linux/prctl.h


def forbid_inspection() -> str:
    """Let other processes of the same user read neither the memory nor the environment of this one.

    Returns:
        Why the kernel refuses it; "" if it does not.
    """
    return _prctl(_SET_DUMPABLE, 0)


def drop_rights() -> list[str]:
    """Give up what the decoding of hostile data does not need: being root, new rights, and being inspected.

    Call it when all modules are imported: the user ``nobody`` may not be allowed to read them.

    Returns:
        What the kernel refuses, in words.
    """
    refused = {"to become the user nobody": _become_nobody() if os.geteuid() == 0 else ""}
    refused["no_new_privs"] = _prctl(_SET_NO_NEW_PRIVS, 1)
    refused["not to be dumpable"] = forbid_inspection()
    return [f"{what} ({reason})" for what, reason in refused.items() if reason]


def _become_nobody() -> str:
    try:
        os.setgroups([])
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _prctl(option: int, value: int) -> str:
    if sys.platform != "linux":
        return ""
    zeros = (ctypes.c_ulong(0),) * 3
    library = ctypes.CDLL(None, use_errno=True)
    failed = library.prctl(option, ctypes.c_ulong(value), *zeros) != 0
    return os.strerror(ctypes.get_errno()) if failed else ""
