"""One HDF5 file of ready uint8 pixels: a fourth of the bytes of the floats that users store."""

from __future__ import annotations

import numpy as np

from wds_tools.bench.peers import hdf5
from wds_tools.bench.peers.hdf5 import batches, pictures
from wds_tools.bench.workloads import Setup

__all__ = ["batches", "pictures", "prepare"]


def prepare(setup: Setup) -> None:
    """Write one file."""
    hdf5.prepare(setup, np.uint8)
