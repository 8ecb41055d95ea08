"""Which data-parallel rank this process is, and what the ranks tell each other when an epoch is over.

They use the key-value store that torch.distributed keeps anyway, never a collective: a rank that leaves a loop early,
or reads its loader in a thread, cannot make the others hang.
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
from wds_tools.planner import World
from wds_tools.prng import key_of
from wds_tools.proof import Tally

Group = Any
"""A process group or a DeviceMesh."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The place of this process among those that share the data.

    Attributes:
        world: Its data-parallel rank, of how many.
        peers: Ranks in torch.distributed of all of them, in order; None where that is not known.
    """

    world: World
    peers: tuple[int, ...] | None = None


def find_ranks(rank: int | None = None, world_size: int | None = None, group: Group | None = None) -> Ranks:
    """Return this process's rank: as given, of the group, of torch.distributed, or of torchrun's environment.

    Raises:
        OptionError: Half of an answer, two answers, or a group that this process is not in.
    """
    if (rank is None) != (world_size is None):
        raise OptionError(f"rank={rank}, world_size={world_size}: give both, or neither")
    if rank is not None and world_size is not None:
        if group is not None:
            raise OptionError("rank= and group= both say which rank this is: give one of them")
        return Ranks(World(rank, world_size))
    if group is not None:
        return _of_group(group)
    if dist.is_available() and dist.is_initialized():
        return Ranks(World(dist.get_rank(), dist.get_world_size()), tuple(range(dist.get_world_size())))
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return Ranks(World(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])))
    return Ranks(World())


def _of_group(group: Group) -> Ranks:
    """Take the members of a group, or all dimensions of a mesh, as the data-parallel ranks."""
    if not (dist.is_available() and dist.is_initialized()):
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


_boards: Counter[str] = Counter()  # of this process, by topic: the ranks make theirs in the same order


class Board:
    """Where the ranks leave what they have delivered, for each to read.

    Args:
        ranks: The place of this process.
        topic: Equal on all ranks for loaders that belong together.
    """

    def __init__(self, ranks: Ranks, topic: str) -> None:
        self._ranks = ranks
        topic = f"{topic}/{key_of('peers', *(ranks.peers or ()))}"
        self._topic = f"wds_tools/{topic}/{_boards[topic]}"
        _boards[topic] += 1
        self._posted: list[str] = []

    def post(self, occasion: str, part: Tally) -> bool:
        """Leave this rank's part; return whether all others have left theirs."""
        store = _store()
        if store is None or not self._is_shared():
            return self._ranks.world.world_size == 1
        key = f"{self._topic}/{occasion}"
        mine = f"{key}/{self._member()}"
        store.set(mine, f"{part.samples} {part.digest}")
        self._posted.append(mine)
        if len(self._posted) > 2:  # nobody asks for what is two epochs old
            store.delete_key(self._posted.pop(0))
        return bool(store.add(f"{key}/count", 1) == self._ranks.world.world_size)

    def read(self, occasion: str, mine: Tally, *, timeout_seconds: float) -> tuple[Tally | None, ...]:
        """Return the parts of all ranks; None for those that have no way to tell.

        Raises:
            ProofError: A rank has not left its part in time.
        """
        world = self._ranks.world
        store = _store()
        if store is None or not self._is_shared():
            return tuple(mine if rank == world.rank else None for rank in range(world.world_size))
        return tuple(
            self._part(store, f"{self._topic}/{occasion}/{rank}", rank, timeout_seconds)
            for rank in range(world.world_size)
        )

    def _part(self, store: dist.distributed_c10d.Store, key: str, rank: int, timeout_seconds: float) -> Tally:
        try:
            store.wait([key], timedelta(seconds=timeout_seconds))
        except RuntimeError as error:
            raise ProofError(
                f"rank {rank} has not finished this epoch of its loader within {timeout_seconds:g} s: "
                "all ranks must take the epoch to its end, with the same dataset, seed and batch size"
            ) from error
        samples, digest = store.get(key).decode().split()
        return Tally(int(samples), int(digest))

    def _is_shared(self) -> bool:
        """Whether the ranks are processes of this torch.distributed, even if they were given by hand."""
        world = self._ranks.world
        return self._ranks.peers is not None or 1 < world.world_size == dist.get_world_size()

    def _member(self) -> int:
        """Which part is this process's: a rank given by hand may be given twice by mistake, and that must show."""
        return self._ranks.world.rank if self._ranks.peers else dist.get_rank()


def _store() -> dist.distributed_c10d.Store | None:
    if not (dist.is_available() and dist.is_initialized()):
        return None
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no public way to it
