"""The loader's witness: it adds up what is delivered, and compares it over all ranks when the epoch is over."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from wds_tools.errors import ProofError
from wds_tools.planner import EpochPlan, Step, Tail
from wds_tools.prng import key_of
from wds_tools.proof import EpochProof, Tally, tally
from wds_tools.ranks import Board, Ranks


@dataclass(slots=True)
class _Account:
    """Of one run through an epoch, or the rest of one."""

    plan: EpochPlan
    occasion: str
    mine: Tally = field(default_factory=Tally)
    whole: Tally = field(default_factory=Tally)  # of all ranks, by the steps of the plan
    steps: int = 0

    @property
    def finished(self) -> bool:
        return self.steps == len(self.plan)


class Witness:
    """Keeps the sums of one loader.

    Args:
        ranks: The place of this process.
        batch_size: Of the loader; with the tail and the order it tells loaders apart.
        tail: Of the loader.
    """

    def __init__(self, ranks: Ranks, *, batch_size: int, tail: Tail) -> None:
        self._ranks = ranks
        self._about = (batch_size, tail)
        self._board: Board | None = None
        self._times: Counter[str] = Counter()
        self._account: _Account | None = None
        self._finished: _Account | None = None

    def begin(self, plan: EpochPlan) -> None:
        """Start an account."""
        if self._board is None:
            order = plan.order
            topic = key_of("loader", order.fingerprint, order.seed, *self._about, self._ranks.world.world_size)
            self._board = Board(self._ranks, f"{topic:016x}")
        place = f"{plan.cursor.epoch}/{plan.cursor.position}"
        self._times[place] += 1
        self._account = _Account(plan, f"{place}/{self._times[place]}")

    def saw(self, step: Step) -> None:
        """Count a batch that was handed over; with the last one, tell the others.

        Raises:
            ProofError: All ranks have told, and what they delivered is not the epoch.
        """
        account, board = self._account, self._board
        assert account is not None
        assert board is not None
        account.mine += tally(step.ids[step.valid])
        account.whole += step.whole
        account.steps += 1
        if not account.finished:
            return
        self._finished = account
        if board.post(account.occasion, account.mine):
            proof = self._proof_of(account, board.read(account.occasion, account.mine, timeout_seconds=60))
            if not proof.ok:
                raise ProofError(str(proof))

    def proof(self, *, timeout_seconds: float) -> EpochProof:
        """Return the proof of the last epoch that was finished, or what is known of the first one."""
        account = self._finished or self._account
        if account is None or self._board is None:
            raise ProofError("nothing has been delivered yet: take an epoch from the loader first")
        if not account.finished:
            return self._proof_of(account, (account.mine,))
        return self._proof_of(
            account, self._board.read(account.occasion, account.mine, timeout_seconds=timeout_seconds)
        )

    def _proof_of(self, account: _Account, parts: tuple[Tally | None, ...]) -> EpochProof:
        plan = account.plan
        expected = plan.expected() if account.finished and None not in parts else None
        return EpochProof(
            epoch=plan.cursor.epoch,
            delivered=sum((part for part in parts if part), Tally()),
            expected=expected or account.whole,
            ranks=parts,
            finished=account.finished,
            from_position=plan.cursor.position,
            samples=plan.order.stored,
        )
