"""tf.data without antialias, which resizes faster but gives different pixels."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from wds_tools.bench.peers import tfdata
from wds_tools.bench.peers.tfdata import prepare
from wds_tools.bench.workloads import Setup

__all__ = ["batch_sizes", "prepare", "probe_pixels"]


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    return tfdata.batch_sizes(setup, seed, antialias=False)


def probe_pixels(setup: Setup) -> Sequence[Any] | None:
    """Return the pixels of the probes."""
    return tfdata.probe_pixels(setup, antialias=False)
