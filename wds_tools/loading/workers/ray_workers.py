"""`RayWorkers`: what a user says about workers on the machines of a Ray cluster."""

from __future__ import annotations

from dataclasses import dataclass

from wds_tools.errors import OptionError


@dataclass(frozen=True, slots=True)
class RayWorkers:
    """Workers on the machines of a Ray cluster, as ``num_workers=`` of `make_loader`.

    They send batches over TCP to this process, which then needs fewer cores. docs/clusters.md says when that helps.

    Args:
        count: Number of workers.
        num_cpus: CPUs that Ray reserves for a worker. A worker uses one core, except for what ``transform=`` starts.

    Raises:
        OptionError: A number is not above 0.

    Example::

        loader = make_loader("s3://bucket/train", batch_size=256, num_workers=RayWorkers(32))
    """

    count: int
    num_cpus: float = 1

    def __post_init__(self) -> None:
        is_count = isinstance(self.count, int) and not isinstance(self.count, bool)
        if not is_count or self.count < 1 or not isinstance(self.num_cpus, int | float) or self.num_cpus <= 0:
            raise OptionError(f"{self}; allowed are 1 worker and more, and a num_cpus above 0")
