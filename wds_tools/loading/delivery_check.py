"""Delivery check of a loader: sums over the delivered samples, compared over all ranks at the end of an epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import ProofError
from wds_tools.loading.ranks import RankOptions, ReportExchange
from wds_tools.order.keyed_random import key_of
from wds_tools.order.planner import EpochPlan, Step, Tail, World
from wds_tools.order.segments import segments_of
from wds_tools.order.shares import Ints
from wds_tools.order.tally import EpochProof, Report, Segment, Tally, tally


@dataclass(slots=True)
class _EpochRecord:
    """What was delivered in one run through an epoch, or through the rest of a resumed epoch."""

    plan: EpochPlan
    run_id: str
    delivered: Tally = field(default_factory=Tally)  # by this rank
    replaced: Tally = field(default_factory=Tally)  # unreadable samples of this rank
    planned: Tally = field(default_factory=Tally)  # over all ranks, from the steps of the plan
    steps: int = 0
    earlier_steps: int = 0  # before the weights changed, in plans that this one continues
    from_position: int = 0

    @property
    def finished(self) -> bool:
        return self.steps == self.earlier_steps + len(self.plan)

    @property
    def report(self) -> Report:
        world = self.plan.world
        return Report(world.rank, world.world_size, self.delivered, self.replaced)

    def proof(self, reports: tuple[Report | None, ...]) -> EpochProof:
        plan = self.plan
        is_known = self.finished and None not in reports and not self.earlier_steps
        expected = plan.expected() if is_known else None
        return EpochProof(
            epoch=plan.cursor.epoch,
            expected=expected or self.planned,
            reports=reports,
            finished=self.finished,
            from_position=self.from_position,
            samples=plan.order.identity.stored,
            once=plan.order.identity.once,
        )


class DeliveryCheck:
    """Adds up what a loader delivers, and compares the sums over all ranks.

    Args:
        ranks: How to find the rank of this process.
        batch_size: Batch size of the loader. Together with the tail and the order it identifies the loader.
        tail: Tail option of the loader.
    """

    def __init__(self, ranks: RankOptions, *, batch_size: int, tail: Tail) -> None:
        self._ranks = ranks
        self._loader_options = (batch_size, tail)
        self._exchange: ReportExchange | None = None
        self._runs: Counter[str] = Counter()  # runs by start position
        self._current: _EpochRecord | None = None
        self._finished: _EpochRecord | None = None

    def begin(self, plan: EpochPlan) -> None:
        """Start recording an epoch, or the rest of a resumed epoch."""
        if self._exchange is None:
            identity = plan.order.identity
            loader_key = key_of("loader", identity.fingerprint, identity.seed, *self._loader_options)
            self._exchange = ReportExchange(f"{loader_key:016x}")
        start = f"{plan.cursor.epoch}/{plan.cursor.position}"
        self._runs[start] += 1
        run_id = f"{start}/{self._runs[start]}"
        self._current = _EpochRecord(plan, run_id, from_position=plan.cursor.position)

    def change(self, plan: EpochPlan) -> None:
        """Record the rest of the epoch from now on, because its order has changed."""
        assert self._current is not None
        self._current.plan, self._current.earlier_steps = plan, self._current.steps

    def add(self, step: Step, replaced: NDArray[np.bool_]) -> None:
        """Add a delivered batch. After the last batch, publish the report of this rank.

        Args:
            step: The step of the batch.
            replaced: bool [batch], True for samples that were replaced with others.

        Raises:
            ProofError: All ranks have finished the epoch, and together they did not deliver each sample once.
        """
        record, exchange = self._current, self._exchange
        assert record is not None
        assert exchange is not None
        delivered = step.valid
        if replaced.any():
            delivered = step.valid & ~replaced
            record.replaced += tally(step.ids[step.valid & replaced])
        record.delivered += tally(step.ids[delivered])
        record.planned += step.global_tally
        record.steps += 1
        if not record.finished:
            return
        self._finished = record
        if exchange.publish(self._ranks.find(), record.run_id, record.report):
            proof = self.proof(timeout_seconds=60)
            if not proof.ok:
                raise ProofError(str(proof))

    def proof(self, *, timeout_seconds: float) -> EpochProof:
        """Return the proof of the last finished epoch; if none is finished, what is known about the current one."""
        record = self._finished or self._current
        if record is None or self._exchange is None:
            raise ProofError("nothing has been delivered yet: iterate over the loader first")
        if not record.finished:
            return record.proof((record.report,))
        # The rank is looked up again, because a process group may have been created in the meantime.
        ranks = self._ranks.find()
        _check_same_rank(record.plan.world, ranks.world)
        reports = self._exchange.collect(ranks, record.run_id, record.report, timeout_seconds=timeout_seconds)
        return record.proof(reports)

    def segments(self, labels: Ints, classes: Sequence[str]) -> tuple[Segment, ...]:
        """Return how often each class and dataset came between changes of weights in the epoch of `proof`.

        Args:
            labels: int64 [stored], class number of each sample; negative for none.
            classes: Names of the classes.
        """
        record = self._finished or self._current
        if record is None:
            return ()
        plan = record.plan
        stop = min(plan.position_of(record.steps - record.earlier_steps), plan.end)
        return segments_of(plan.order, record.from_position, stop, labels, classes)


def _check_same_rank(then: World, now: World) -> None:
    """Raise ProofError if this process had a different rank when it read the epoch."""
    if then != now:
        raise ProofError(
            f"the epoch was read as rank {then.rank} of {then.world_size}, but this process is rank {now.rank} of "
            f"{now.world_size}: other processes may have read the same samples. Create the process group before the "
            "first batch of an epoch"
        )
