"""The loader's witness: it adds up what is delivered, and compares it over all ranks when the epoch is over."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import ProofError
from wds_tools.loading.ranks import Board, RankOptions
from wds_tools.order.keyed_random import key_of
from wds_tools.order.planner import EpochPlan, Step, Tail, World
from wds_tools.order.tally import EpochProof, Report, Tally, tally


@dataclass(slots=True)
class _Account:
    """Of one run through an epoch, or the rest of one."""

    plan: EpochPlan
    occasion: str
    mine: Tally = field(default_factory=Tally)
    replaced: Tally = field(default_factory=Tally)
    whole: Tally = field(default_factory=Tally)  # of all ranks, by the steps of the plan
    steps: int = 0

    @property
    def finished(self) -> bool:
        return self.steps == len(self.plan)

    @property
    def report(self) -> Report:
        world = self.plan.world
        return Report(world.rank, world.world_size, self.mine, self.replaced)

    def proof(self, reports: tuple[Report | None, ...]) -> EpochProof:
        plan = self.plan
        expected = plan.expected() if self.finished and None not in reports else None
        return EpochProof(
            epoch=plan.cursor.epoch,
            expected=expected or self.whole,
            reports=reports,
            finished=self.finished,
            from_position=plan.cursor.position,
            samples=plan.order.stored,
            once=plan.order.once,
        )


class Witness:
    """Keeps the sums of one loader.

    Args:
        ranks: How this process finds its rank.
        batch_size: Of the loader; with the tail and the order it tells loaders apart.
        tail: Of the loader.
    """

    def __init__(self, ranks: RankOptions, *, batch_size: int, tail: Tail) -> None:
        self._ranks = ranks
        self._about = (batch_size, tail)
        self._board: Board | None = None
        self._times: Counter[str] = Counter()
        self._account: _Account | None = None
        self._finished: _Account | None = None

    def begin(self, plan: EpochPlan) -> None:
        """Start an account."""
        if self._board is None:
            self._board = Board(f"{key_of('loader', plan.order.fingerprint, plan.order.seed, *self._about):016x}")
        place = f"{plan.cursor.epoch}/{plan.cursor.position}"
        self._times[place] += 1
        self._account = _Account(plan, f"{place}/{self._times[place]}")

    def saw(self, step: Step, replaced: NDArray[np.bool_]) -> None:
        """Count a batch that was handed over; with the last one, tell the others.

        Args:
            step: The batch.
            replaced: bool [batch], the samples that others took the place of.

        Raises:
            ProofError: All ranks have told, and what they delivered is not the epoch.
        """
        account, board = self._account, self._board
        assert account is not None
        assert board is not None
        account.mine += tally(step.ids[step.valid & ~replaced])
        account.replaced += tally(step.ids[step.valid & replaced])
        account.whole += step.global_tally
        account.steps += 1
        if not account.finished:
            return
        self._finished = account
        if board.post(self._ranks.find(), account.occasion, account.report):
            proof = self.proof(timeout_seconds=60)
            if not proof.ok:
                raise ProofError(str(proof))

    def proof(self, *, timeout_seconds: float) -> EpochProof:
        """Return the proof of the last epoch that was finished, or what is known of the first one."""
        account = self._finished or self._account
        if account is None or self._board is None:
            raise ProofError("nothing has been delivered yet: take an epoch from the loader first")
        if not account.finished:
            return account.proof((account.report,))
        # The ranks are looked up again: if a process group was created in the meantime, its members are asked.
        ranks = self._ranks.find()
        _check_unchanged(account.plan.world, ranks.world)
        return account.proof(self._board.read(ranks, account.occasion, account.report, timeout_seconds=timeout_seconds))


def _check_unchanged(then: World, now: World) -> None:
    """Refuse to prove an epoch that was not read as the rank that this process turned out to be."""
    if then != now:
        raise ProofError(
            f"the epoch was read as rank {then.rank} of {then.world_size}, but this process is rank {now.rank} of "
            f"{now.world_size}: other processes may have read the same samples. Start an epoch only when the process "
            "group exists"
        )
