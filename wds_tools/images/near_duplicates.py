"""Clusters of images whose hashes differ in few bits, found by the compiled module."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from wds_tools.images import native
from wds_tools.options import available_cores

DISTANCE = 6
"""Bits in which the hashes of similar images differ at most, by default: docs/problems.md has the measurements."""

BLANK_CONTRAST = 2
"""Images with less contrast are blank: their hashes say nothing."""

MAX_DISTANCE = 16
"""Largest distance: `MAX_DISTANCE` of ``cluster.h``."""


def clusters_of(hashes: NDArray[np.uint64], distance: int, *, threads: int | None = None) -> NDArray[np.int64]:
    """Return the cluster of each hash: int64 [n], numbers from 0.

    Two hashes that differ in at most ``distance`` bits are in one cluster, so that the ends of a chain of them may
    differ in more. Every such pair is found. 10 million random hashes take 20 s of CPU time at a distance of 4.

    Args:
        hashes: uint64 [n].
        distance: 0 to `MAX_DISTANCE` bits. More than 0 requires the compiled module.
        threads: Number of threads; by default one per core.
    """
    different, index = np.unique(hashes, return_inverse=True)
    if not distance or len(different) < 2:
        return index.astype(np.int64, copy=False)
    parents = np.arange(len(different), dtype=np.uint32)
    count = min(threads or available_cores(), distance + 1)
    with ThreadPoolExecutor(count) as pool:
        calls = [
            pool.submit(native.join_clusters, different, distance, first, count, parents) for first in range(count)
        ]
    for call in calls:
        call.result()
    while not np.array_equal(parents, higher := parents[parents]):
        parents = higher
    return np.unique(parents, return_inverse=True)[1][index].astype(np.int64, copy=False)
