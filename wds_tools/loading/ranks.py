"""Which data-parallel rank this process is, and what the ranks tell each other when an epoch is over.

They use the key-value store that torch.distributed keeps anyway, never a collective: a rank that leaves a loop early,
or reads its loader in a thread, cannot make the others hang.

A process group is often created after the loader (Lightning, ``torch.multiprocessing.spawn``), so the rank is looked up
again at the start of each iteration.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from wds_tools.errors import OptionError, ProofError
from wds_tools.order.keyed_random import key_of
from wds_tools.order.planner import World
from wds_tools.order.tally import Report

Group = Any
"""A process group or a DeviceMesh."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The place of this process among those that share the data.

    Attributes:
        world: Its data-parallel rank, of how many.
        members: Ranks in torch.distributed of the processes that read the dataset, in order; None where they are not
            known. Several may read as the same rank of ``world``, as with tensor parallelism.
    """

    world: World
    members: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class RankOptions:
    """What the user says about ranks; the rest is looked up when it is needed.

    Attributes:
        rank: Data-parallel rank of this process.
        world_size: Number of ranks.
        group: Process group or DeviceMesh whose members share the data.
        inherited: What the process that started this DataLoader worker has found.
    """

    rank: int | None = None
    world_size: int | None = None
    group: Group | None = None
    inherited: Ranks | None = None

    def find(self) -> Ranks:
        """Return this process's rank: as given, of the group, of torch.distributed, or of torchrun's environment.

        Raises:
            OptionError: Half of an answer, two answers, a group that this process is not in, or a rank that contradicts
                torch.distributed.
        """
        if (self.rank is None) != (self.world_size is None):
            raise OptionError(f"rank={self.rank}, world_size={self.world_size}: give both, or neither")
        if self.rank is not None and self.world_size is not None:
            if self.group is not None:
                raise OptionError("rank= and group= both say which rank this is: give one of them")
            return _given(World(self.rank, self.world_size))
        if self.group is not None:
            return _of_group(self.group)
        if _is_distributed():
            return Ranks(World(dist.get_rank(), dist.get_world_size()), tuple(range(dist.get_world_size())))
        if self.inherited:
            return self.inherited
        if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
            return Ranks(World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])))
        return Ranks(World())

    def for_worker(self) -> RankOptions:
        """Return the same options for a process where torch.distributed may not run: groups cannot be pickled."""
        return RankOptions(self.rank, self.world_size, inherited=self.find())


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _given(world: World) -> Ranks:
    """Check a rank that was given against torch.distributed, where that runs already.

    Fewer ranks than processes are allowed: several processes may read the same samples, as with tensor parallelism.
    """
    if not _is_distributed():
        return Ranks(world)
    rank, processes = dist.get_rank(), dist.get_world_size()
    if world.world_size > processes or (world.world_size == processes and world.rank != rank):
        raise OptionError(
            f"rank={world.rank}, world_size={world.world_size} contradicts torch.distributed, where this process is "
            f"rank {rank} of {processes}: leave both options out, or give group= for the processes that share the data"
        )
    return Ranks(world, None if processes % world.world_size else tuple(range(processes)))


def _of_group(group: Group) -> Ranks:
    """Take the members of a group, or all dimensions of a mesh, as the data-parallel ranks."""
    if not _is_distributed():
        raise OptionError("group= needs torch.distributed: call torch.distributed.init_process_group() first")
    if isinstance(group, DeviceMesh):
        peers = tuple(group.mesh.flatten().tolist())
    elif isinstance(group, dist.ProcessGroup):
        peers = tuple(dist.get_process_group_ranks(group))
    else:
        raise OptionError(f"group={group!r}; allowed are a process group and a DeviceMesh, such as mesh['dp']")
    me = dist.get_rank()
    if me not in peers:
        raise OptionError(f"this process is rank {me}, and group= has {peers}: make the loader on those ranks only")
    return Ranks(World(peers.index(me), len(peers)), peers)


def default_lanes(world: World) -> int:
    """Return one lane per machine, as torchrun tells their number, if the ranks divide evenly over them."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "0"))
    processes = int(os.environ.get("WORLD_SIZE", world.world_size))
    return math.gcd(world.world_size, max(1, processes // local)) if local else 1


_KEPT_REPORTS = 1000  # of one process: without collectives, it may be many epochs ahead of another one
_boards: Counter[str] = Counter()  # of this process, by topic: the ranks create theirs in the same order


class Board:
    """Where the ranks leave what they have delivered, for each to read.

    Args:
        topic: Equal on all ranks for loaders that belong together.
    """

    def __init__(self, topic: str) -> None:
        self._topic = f"wds_tools/{topic}/{_boards[topic]}"
        _boards[topic] += 1
        self._posted: list[str] = []

    def post(self, ranks: Ranks, occasion: str, report: Report) -> bool:
        """Leave this process's report; return whether those of all others are there too."""
        if ranks.members is None:
            return ranks.world.world_size == 1
        store, key = _store(), self._key(ranks, occasion)
        mine = f"{key}/{dist.get_rank()}"
        store.set(mine, report.to_text())
        self._posted.append(mine)
        if len(self._posted) > _KEPT_REPORTS:
            store.delete_key(self._posted.pop(0))
        return bool(store.add(f"{key}/count", 1) == len(ranks.members))

    def read(self, ranks: Ranks, occasion: str, mine: Report, *, timeout_seconds: float) -> tuple[Report | None, ...]:
        """Return the reports of all processes; None for those that cannot be asked.

        Raises:
            ProofError: A process has not left its report in time.
        """
        if ranks.members is None:
            return tuple(mine if rank == mine.rank else None for rank in range(mine.world_size))
        key = self._key(ranks, occasion)
        return tuple(_report_of(f"{key}/{member}", member, timeout_seconds) for member in ranks.members)

    def _key(self, ranks: Ranks, occasion: str) -> str:
        return f"{self._topic}/{key_of('members', *(ranks.members or ()))}/{occasion}"


def _report_of(key: str, member: int, timeout_seconds: float) -> Report:
    store = _store()
    try:
        store.wait([key], timedelta(seconds=timeout_seconds))
    except RuntimeError as error:
        raise ProofError(
            f"rank {member} has not finished this epoch of its loader within {timeout_seconds:g} s: "
            "all ranks must take the epoch to its end, with the same dataset, seed and batch size"
        ) from error
    return Report.from_text(store.get(key).decode())


def _store() -> dist.distributed_c10d.Store:
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no public way to it
