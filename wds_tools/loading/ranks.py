"""The data-parallel rank of this process, and the exchange of reports between ranks at the end of an epoch.

The exchange uses the key-value store of torch.distributed, and no collective operations. So a rank that leaves a loop
early, or reads its loader in a thread, cannot make the other ranks hang.

A process group is often created after the loader (Lightning, ``torch.multiprocessing.spawn``), so the rank is looked up
at the start of each iteration.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from wds_tools.errors import LoaderError, OptionError, ProofError
from wds_tools.options import launcher_number
from wds_tools.order.keyed_random import key_of
from wds_tools.order.planner import Cursor, World
from wds_tools.order.tally import Report

_log = logging.getLogger("wds_tools")
Group = Any
"""A process group or a DeviceMesh."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The rank of this process among the processes that share the data.

    Attributes:
        world: Its data-parallel rank, and the number of ranks.
        members: torch.distributed ranks of all processes that read the dataset, in order; None if unknown. With tensor
            parallelism, several of them have the same data-parallel rank.
    """

    world: World
    members: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class RankOptions:
    """The options of the user about ranks. What is not given is looked up by `find`.

    Attributes:
        rank: Data-parallel rank of this process.
        world_size: Number of data-parallel ranks.
        group: Process group or DeviceMesh whose members share the data.
        inherited: In a DataLoader worker, the ranks that were found by the process that started it.
    """

    rank: int | None = None
    world_size: int | None = None
    group: Group | None = None
    inherited: Ranks | None = None

    def find(self) -> Ranks:
        """Return the rank: as given, from the group, from torch.distributed, or from the environment of torchrun.

        Raises:
            OptionError: Only one of ``rank`` and ``world_size`` is given, or ``group`` in addition to them; the process
                is not in the group; or the rank contradicts torch.distributed.
        """
        if (self.rank is None) != (self.world_size is None):
            raise OptionError(f"rank={self.rank}, world_size={self.world_size}: give both, or neither")
        if self.rank is not None and self.world_size is not None:
            if self.group is not None:
                raise OptionError("rank= and group= both specify the rank of this process: give only one of them")
            return _check_given(World(self.rank, self.world_size))
        if self.group is not None:
            return _ranks_of_group(self.group)
        if _is_distributed():
            return Ranks(World(dist.get_rank(), dist.get_world_size()), tuple(range(dist.get_world_size())))
        if self.inherited:
            return self.inherited
        rank, world_size = launcher_number("RANK"), launcher_number("WORLD_SIZE")
        if rank is not None and world_size is not None:
            return Ranks(World(rank, world_size))
        return Ranks(World())

    def for_worker(self) -> RankOptions:
        """Return the options for a DataLoader worker. Groups cannot be pickled, so the ranks are looked up here."""
        return RankOptions(self.rank, self.world_size, inherited=self.find())


def _is_distributed() -> bool:
    return dist.is_available() and dist.is_initialized()


def _check_given(world: World) -> Ranks:
    """Check a given rank against torch.distributed, if that is initialized.

    There may be fewer ranks than processes: with tensor parallelism, several processes read the same samples.
    """
    if not _is_distributed():
        return Ranks(world)
    rank, processes = dist.get_rank(), dist.get_world_size()
    if world.world_size > processes or (world.world_size == processes and world.rank != rank):
        raise OptionError(
            f"rank={world.rank}, world_size={world.world_size} contradicts torch.distributed, where this process is "
            f"rank {rank} of {processes}: omit both options, or give group= with the processes that share the data"
        )
    return Ranks(world, None if processes % world.world_size else tuple(range(processes)))


def _ranks_of_group(group: Group) -> Ranks:
    """Return the ranks for the members of a group, or of all dimensions of a mesh."""
    if not _is_distributed():
        raise OptionError("group= needs torch.distributed: call torch.distributed.init_process_group() first")
    if isinstance(group, DeviceMesh):
        members = tuple(group.mesh.flatten().tolist())
    elif isinstance(group, dist.ProcessGroup):
        members = tuple(dist.get_process_group_ranks(group))
    else:
        raise OptionError(f"group={group!r}; allowed are a process group and a DeviceMesh, such as mesh['dp']")
    rank = dist.get_rank()
    if rank not in members:
        raise OptionError(
            f"this process is rank {rank}, but group= has the ranks {members}: create the loader on those ranks only"
        )
    return Ranks(World(members.index(rank), len(members)), members)


def default_lanes(world: World) -> int:
    """Return the default number of lanes: one per machine of torchrun, reduced to a divisor of the number of ranks."""
    local = launcher_number("LOCAL_WORLD_SIZE")
    processes = launcher_number("WORLD_SIZE") or world.world_size
    return math.gcd(world.world_size, max(1, processes // local)) if local else 1


_reported_worlds: set[int] = set()  # world sizes for which `report_assumed_machine` has logged


def report_assumed_machine(world: World) -> None:
    """Log, once and on rank 0, that all ranks are assumed to be on one machine, unless LOCAL_WORLD_SIZE is set.

    It is a warning if the environment indicates several machines. Otherwise the assumption is probably right.
    """
    if (
        world.rank
        or world.world_size == 1
        or launcher_number("LOCAL_WORLD_SIZE")
        or world.world_size in _reported_worlds
    ):
        return
    _reported_worlds.add(world.world_size)
    _log.log(
        logging.WARNING if _has_several_machines() else logging.INFO,
        "LOCAL_WORLD_SIZE is not set: all %d ranks are assumed to be on one machine (lanes=1). If they are on several "
        "machines, each machine reads nearly all blocks of the dataset instead of its own part: start the ranks with "
        "torchrun, set LOCAL_WORLD_SIZE to the number of ranks per machine, or set lanes= to the number of machines",
        world.world_size,
    )


def _has_several_machines() -> bool:
    """Return whether SLURM or the address of the first rank indicates that the ranks are on several machines."""
    nodes = os.environ.get("SLURM_JOB_NUM_NODES", os.environ.get("SLURM_NNODES", ""))
    if nodes.isdecimal():
        return int(nodes) > 1
    address = os.environ.get("MASTER_ADDR", "localhost")
    return not (address in ("localhost", "::1") or address.startswith("127."))


_MAX_REPORTS = 1000  # reports that a process keeps in the store; it may be many epochs ahead of another process
_exchanges: Counter[str] = Counter()  # exchanges of this process by topic; all ranks create them in the same order


class ReportExchange:
    """Exchange of delivery reports between ranks, through the key-value store of torch.distributed.

    Args:
        topic: Identifies the loader; equal on all ranks.
    """

    def __init__(self, topic: str) -> None:
        self._topic = f"wds_tools/{topic}/{_exchanges[topic]}"
        _exchanges[topic] += 1
        self._published: list[str] = []

    def publish(self, ranks: Ranks, run_id: str, report: Report) -> bool:
        """Publish the report of this process; return whether it was the last one.

        Args:
            ranks: Rank of this process.
            run_id: Identifies the run through an epoch; equal on all ranks.
            report: What this process delivered.
        """
        if ranks.members is None:
            return ranks.world.world_size == 1
        store, key = _store(), self._key(ranks, run_id)
        own_key = f"{key}/{dist.get_rank()}"
        store.set(own_key, report.to_text())
        self._published.append(own_key)
        if len(self._published) > _MAX_REPORTS:
            store.delete_key(self._published.pop(0))
        return bool(store.add(f"{key}/count", 1) == len(ranks.members))

    def collect(self, ranks: Ranks, run_id: str, local: Report, *, timeout_seconds: float) -> tuple[Report | None, ...]:
        """Return the reports of all processes; None for other processes if the members are not known.

        Raises:
            ProofError: A process has not published its report in time.
        """
        if ranks.members is None:
            return tuple(local if rank == local.rank else None for rank in range(local.world_size))
        key = self._key(ranks, run_id)
        return tuple(_wait_for_report(f"{key}/{member}", member, timeout_seconds) for member in ranks.members)

    def _key(self, ranks: Ranks, run_id: str) -> str:
        return f"{self._topic}/{key_of('members', *(ranks.members or ()))}/{run_id}"


AGREEMENT_SECONDS = 60.0
LOOK_SECONDS = 1.0
"""How often a rank looks whether others have changed weights."""


class Agreement:
    """Compares the changes of weights of all ranks, through the key-value store of torch.distributed.

    Args:
        ranks: How to find the rank of this process.
    """

    def __init__(self, ranks: RankOptions) -> None:
        self._ranks = ranks
        self._exchange = f"wds_tools/weights/{_exchanges['weights']}"
        _exchanges["weights"] += 1
        self._count = 0
        self._open: list[tuple[int, str]] = []  # changes that were not compared yet
        self._next_look = 0.0

    def add(self, cursor: Cursor, entries: Any, steps: int) -> None:
        """Publish a change of weights of this rank."""
        text = json.dumps([cursor.epoch, cursor.position, entries], sort_keys=True)
        if (members := self._ranks.find().members) is not None:
            _store().set(f"{self._exchange}/{self._count}/{dist.get_rank()}", text)
            _store().set(self._key_of_any(members), f"{dist.get_rank()} {steps} {text}")
            self._open.append((self._count, text))
        self._count += 1

    def _key_of_any(self, members: Sequence[int]) -> str:
        """Return the key that the first rank writes that makes the next change."""
        return f"{self._exchange}/{self._count}/any/{key_of('members', *members)}"

    def check(self, steps: int) -> None:
        """Check that all ranks have made the same changes.

        Raises:
            LoaderError: A rank has not, or its change differs.
        """
        if not self._open and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_SECONDS
            self._check_missed(steps)
        store = _store() if self._open else None
        while store and self._open:
            index, change = self._open.pop(0)
            keys = {member: f"{self._exchange}/{index}/{member}" for member in self._ranks.find().members or ()}
            try:
                store.wait(list(keys.values()), timedelta(seconds=AGREEMENT_SECONDS))
            except RuntimeError as error:
                missing = ", ".join(str(member) for member, key in keys.items() if not store.check([key]))
                raise LoaderError(
                    f"rank {dist.get_rank()} has called loader.reweight() {index + 1} times, and rank(s) {missing} "
                    f"have not within {AGREEMENT_SECONDS:g} s: all ranks must make the same calls after the same step"
                ) from error
            for member, key in keys.items():
                peer_change = store.get(key).decode()
                if peer_change != change:
                    raise LoaderError(
                        f"call {index + 1} of loader.reweight() differs between ranks: on rank {dist.get_rank()} "
                        f"{_change_as_text(change)}, on rank {member} {_change_as_text(peer_change)}: "
                        "all ranks must make the same calls after the same step"
                    )

    def _check_missed(self, steps: int) -> None:
        """Check that this rank does not continue without a change that another rank has made."""
        members = self._ranks.find().members
        if members is None or not _store().check([key := self._key_of_any(members)]):
            return
        rank, called_after, text = _store().get(key).decode().split(" ", 2)
        if steps >= int(called_after):
            raise LoaderError(
                f"rank {rank} has called loader.reweight() {self._count + 1} times, for {_change_as_text(text)}, after "
                f"{called_after} steps, and rank {dist.get_rank()} continues after {steps} steps without that call: "
                "all ranks must make the same calls after the same step"
            )


def _change_as_text(text: str) -> str:
    epoch, position, entries = json.loads(text)
    return f"{json.dumps(entries)[:300]} from epoch {epoch}, position {position:,} on"


def _wait_for_report(key: str, member: int, timeout_seconds: float) -> Report:
    store = _store()
    try:
        store.wait([key], timedelta(seconds=timeout_seconds))
    except RuntimeError as error:
        raise ProofError(
            f"rank {member} has not finished this epoch of its loader within {timeout_seconds:g} s: "
            "all ranks must iterate to the end of the epoch, with the same dataset, seed and batch size"
        ) from error
    return Report.from_text(store.get(key).decode())


def _store() -> dist.distributed_c10d.Store:
    return dist.distributed_c10d._get_default_store()  # noqa: SLF001 - there is no public function
