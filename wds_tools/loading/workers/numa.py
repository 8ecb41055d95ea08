"""The cores of a NUMA node, and processes that are bound to them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def cores_near(pci_address: str, root: Path = Path("/")) -> frozenset[int]:
    """Return the cores that this process may use of the NUMA node to which a PCI device is connected.

    Args:
        pci_address: Address of the device, such as "0000:17:00.0".
        root: The folder that contains ``sys``.

    Returns:
        The numbers of the cores; empty if the machine does not report the node.
    """
    try:
        node = int((root / "sys/bus/pci/devices" / pci_address / "numa_node").read_text())
        cores = parse_cpu_list((root / f"sys/devices/system/node/node{node}/cpulist").read_text())
    except (OSError, ValueError):
        return frozenset()
    return cores & os.sched_getaffinity(0)


def parse_cpu_list(text: str) -> frozenset[int]:
    """Return the numbers in a list of the Linux kernel.

    >>> sorted(parse_cpu_list("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def bind(pids: Iterable[int], cores: frozenset[int]) -> None:
    """Let all threads of some processes run on these cores only. Processes that have ended are ignored."""
    for pid in pids:
        with suppress(OSError):
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores)
