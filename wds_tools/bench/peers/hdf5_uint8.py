"""One HDF5 file of uint8 pixels: a quarter of the bytes of the floats that users store."""

from __future__ import annotations

import numpy as np

from wds_tools.bench.peers import hdf5
from wds_tools.bench.peers.hdf5 import batch_sizes, probe_pixels
from wds_tools.bench.workloads import Setup

__all__ = ["batch_sizes", "prepare", "probe_pixels"]


def prepare(setup: Setup) -> None:
    """Write one file."""
    hdf5.prepare(setup, np.uint8)
