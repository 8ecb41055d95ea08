"""`make_loader` on crop-ready shards, packed from the same shards: the same pixels."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace

import torch

from wds_tools.bench import ours
from wds_tools.bench.workloads import Setup
from wds_tools.packing.packer import pack


def prepare(setup: Setup) -> None:
    """Pack the shards again, in the same order, so that the probes come first here too."""
    size = sum(path.stat().st_size for path, _ in setup.files())
    limit = max(10_240, size // (4 * setup.workers))
    pack(setup.shards, setup.own_folder, shard_bytes=limit, images="crop-ready", shuffle=False, progress=False)


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    return ours.batch_sizes(_with_own_shards(setup), seed)


def probe_pixels(setup: Setup) -> Sequence[torch.Tensor] | None:
    """Return the pixels of the probes."""
    return ours.probe_pixels(_with_own_shards(setup))


def probe_boxes(setup: Setup) -> Sequence[torch.Tensor]:
    """Return the boxes of the probes."""
    return ours.probe_boxes(_with_own_shards(setup))


def _with_own_shards(setup: Setup) -> Setup:
    return replace(setup, shards=str(setup.own_folder))
