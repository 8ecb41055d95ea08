"""Which epoch comes next, and how much of it the training loop has received: what a loader saves and resumes."""

from __future__ import annotations

import logging
from typing import Any

from wds_tools.errors import LoaderError, ResumeError
from wds_tools.images import native
from wds_tools.loading.request import Opened, check_plan
from wds_tools.order import planner
from wds_tools.order.planner import Cursor, EpochOrders, EpochPlan, Tail

_log = logging.getLogger("wds_tools")
_NEWER = "a newer one was started, and a loader has one at a time"


class Epochs:
    """The epochs of a loader.

    Args:
        opened: The dataset.
        batch_size: Samples per batch of this rank.
        tail: What happens to the samples that do not fill a batch on every rank.
    """

    def __init__(self, opened: Opened, *, batch_size: int, tail: Tail) -> None:
        self.batch_size = batch_size
        self._opened = opened
        self._tail: Tail = tail
        self._orders = EpochOrders(opened.order)
        self._cursor = Cursor()  # what has been consumed
        self._start: Cursor | None = Cursor()  # where the next iteration starts; None: at the next epoch
        self._begun = -1  # epoch of the last iteration
        self._running: EpochPlan | None = None
        self._why_ended = _NEWER  # earlier plans
        self._is_counted = True
        self._trainer_epoch: int | None = None  # the last one that a trainer told
        self._is_loaded = False  # the next iteration starts at a state that was loaded
        check_plan(self._plan(Cursor()))

    def __len__(self) -> int:
        """Return the steps of a whole epoch, the same on every rank."""
        return len(self._plan(Cursor(self._cursor.epoch)))

    @property
    def epoch(self) -> int:
        """Epoch of the last batch, or the one that comes next."""
        return self._cursor.epoch

    @property
    def samples(self) -> int:
        """Samples of an epoch, over all ranks."""
        return self._orders.of(self._cursor.epoch).samples

    def begin(self, *, is_counted: bool = True) -> EpochPlan:
        """Return the plan of the epoch that starts now, or of the rest of one after a resume.

        Args:
            is_counted: Whether `received` will be told of each batch. If not, there is no state until the next epoch.
        """
        start = self._start or Cursor(self._begun + 1)
        check_plan(self._plan(Cursor(start.epoch)))
        self.stop()
        self._running = self._plan(start)
        self._start, self._begun, self._cursor = None, start.epoch, start
        self._is_counted, self._is_loaded = is_counted, False
        return self._running

    def check_running(self, plan: EpochPlan) -> None:
        """Refuse to go on with a plan after another one has begun.

        Raises:
            LoaderError: There is a newer plan, or all were stopped.
        """
        if plan is not self._running:
            raise LoaderError(f"this iterator has ended because {self._why_ended}: take a new one with iter(loader)")

    def stop(self, why: str = _NEWER) -> None:
        """End the running plan, if there is one."""
        self._running, self._why_ended = None, why

    def received(self, plan: EpochPlan, number: int) -> None:
        """Note that the training loop has received step ``number`` of a plan."""
        self._cursor = plan.cursor_after(number)

    def end(self, plan: EpochPlan) -> None:
        """Note that a plan is at its end, even if it had no step: what was left of the epoch may fill none."""
        if not len(plan):
            self._cursor = Cursor(plan.cursor.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration epoch ``epoch``; a position inside that epoch, as after a resume, is kept."""
        if self._start is None or self._start.epoch != epoch:
            self._start = self._cursor = Cursor(epoch)
            self._is_counted = True

    def follow(self, epoch: int) -> None:
        """Do what `set_epoch` does, for a trainer that counts its own epochs and tells them after loading a state.

        A state that was saved in the same epoch of the trainer is kept, whatever the epoch of the loader: beside a
        longer loader, Lightning goes through a shorter one several times in one epoch.
        """
        if not self._is_loaded or self._trainer_epoch not in (epoch, None):
            self.set_epoch(epoch)
        self._trainer_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return where training stands.

        Raises:
            ResumeError: The samples of this epoch are taken by a DataLoader, which does not tell how many it has made.
        """
        if not self._is_counted:
            raise ResumeError(
                f"epoch {self.epoch} is read by a torch DataLoader through loader.sampler, which does not tell how far "
                "it has come: save the state in an epoch that is read from the loader itself, or resume with "
                "loader.load_state_dict() instead of skipping batches"
            )
        state = planner.state_dict(self._orders.of(self._cursor.epoch), self._cursor)
        return {**state, "trainer_epoch": self._trainer_epoch, "compiled": native.is_enabled()}

    def load_state_dict(self, state: dict[str, Any], *, force: bool) -> None:
        """Go on where a state was taken; see `planner.resume`."""
        self._orders, self._cursor = planner.resume(state, self._opened.order, prefix=self._opened.prefix, force=force)
        self._start = self._cursor
        self._trainer_epoch = state.get("trainer_epoch")
        _warn_of_other_pixels(state.get("compiled"))
        self._is_loaded = self._is_counted = True

    def _plan(self, cursor: Cursor) -> EpochPlan:
        order = self._orders.of(cursor.epoch)
        return EpochPlan(order, cursor, self._opened.ranks.find().world, self.batch_size, self._tail)


def _warn_of_other_pixels(compiled: bool | None) -> None:
    """Warn if the state was saved with the compiled module and this process has none, or the reverse."""
    if compiled is None or compiled == native.is_enabled():
        return
    then, now = ("with", "without") if compiled else ("without", "with")
    _log.warning(
        "the state was saved %s the compiled module of wds_tools, and this run goes on %s it: samples, order and crops "
        "are the same, pixels differ by 0.4 of 255 on average (`wds-tools doctor` reports on the module)",
        then,
        now,
    )
