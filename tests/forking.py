"""Makes it cheap to fork the processes that the tests fork most: they have imported torch and all tests."""

import contextlib
import ctypes
import gc
from pathlib import Path

HUGE_PAGE_BYTES = 1 << 21
MADV_COLLAPSE = 25


def prepare_to_fork() -> None:
    """Exempt all objects from garbage collection, and move the memory of this process to huge pages.

    Collecting garbage would copy memory that forked processes share. To fork, Linux copies an entry for each page:
    160,000 of them for 600 MB, which takes longer than most of what forked processes do in the tests. On a system
    without huge pages, or with a Linux before 6.1, the memory stays where it is.
    """
    gc.freeze()
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
