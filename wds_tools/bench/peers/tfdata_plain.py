"""tf.data without antialias, which resizes faster and makes other pixels."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from wds_tools.bench.peers import tfdata
from wds_tools.bench.peers.tfdata import prepare
from wds_tools.bench.workloads import Setup

__all__ = ["batches", "pictures", "prepare"]


def batches(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    return tfdata.batches(setup, seed, antialias=False)


def pictures(setup: Setup) -> Sequence[Any] | None:
    """Return the probes."""
    return tfdata.pictures(setup, antialias=False)
