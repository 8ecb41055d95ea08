"""The current epoch and position of a loader, which its state saves and restores."""

from __future__ import annotations

import json
import logging
import os
from functools import partial
from typing import TYPE_CHECKING, Any

from wds_tools.errors import LoaderError, OptionError, ResumeError
from wds_tools.images import native
from wds_tools.loading.request import OpenedDataset, check_batch_size, check_plan
from wds_tools.loading.samples.columns import views_of
from wds_tools.order import resuming, saved_state
from wds_tools.order.changes import Entries
from wds_tools.order.epoch import EpochOrder
from wds_tools.order.history import FoundStep, History, Section, find_step, with_planned
from wds_tools.order.planner import Cursor, EpochOrders, EpochPlan, Tail
from wds_tools.reading import saved_arrays
from wds_tools.reading.weights import WeightFinder, schedule_to_list

if TYPE_CHECKING:
    from wds_tools.loading.packing import Packing

_log = logging.getLogger("wds_tools")
_NEWER_ITERATOR = "a newer iterator was started, and a loader has only one iterator at a time"


class Epochs:
    """Position of a loader in its sequence of epochs.

    Args:
        batch_size: Samples per batch on this rank.
        tail: Handling of the last samples that do not fill a batch on every rank.
        packing: The packer of the dataset, if it is not complete: only the first epoch is known then.
        save_ban_to: Folder for files with the ids of banned samples; None puts them into states.

    Raises:
        OptionError: The dataset has fewer samples than one step.
    """

    def __init__(
        self,
        opened: OpenedDataset,
        *,
        batch_size: int,
        tail: Tail,
        packing: Packing | None = None,
        save_ban_to: str | os.PathLike[str] | None = None,
    ) -> None:
        self.batch_size = batch_size
        self._save_ban_to = save_ban_to
        self._opened = opened
        self._packing = packing if packing and not packing.was_complete else None
        self._tail: Tail = tail
        self.weights = WeightFinder(opened.shards, opened.order.plain, opened.recipe.seed)
        self._orders = opened.orders(self.weights)
        self._cursor = Cursor()  # what the training loop has received
        self._start: Cursor | None = Cursor()  # start of the next iteration; None: the next epoch
        self._last_started = -1  # epoch of the last iteration
        self._running: EpochPlan | None = None
        self._end_reason = _NEWER_ITERATOR  # why earlier plans ended
        self._is_counted = True  # whether `mark_received` is called for each batch
        self._trainer_epoch: int | None = None  # last argument of `set_trainer_epoch`
        self._is_loaded = False  # whether the next iteration starts from a loaded state
        self._is_reweighted = False  # since the running plan was made
        self._history = History()
        check_plan(self._plan(Cursor()))
        self._planned = None if opened.schedule is None else self.weights.planned(opened.schedule)
        self._plan_weights(Cursor())

    def __len__(self) -> int:
        """Return the number of steps of a full epoch, the same on every rank."""
        return len(self._plan(Cursor(self._known_epoch)))

    @property
    def _known_epoch(self) -> int:
        """The epoch of the last batch. While its order is not known, because the dataset is packed, the first one."""
        return 0 if self._packing and not self._packing.is_complete else self._cursor.epoch

    @property
    def steps(self) -> int:
        """Steps that the training loop has received since the start of the run."""
        return self._history.steps

    @property
    def epoch(self) -> int:
        """Epoch of the last batch, or the next epoch if that batch ended its epoch."""
        return self._cursor.epoch

    @property
    def next_epoch(self) -> int:
        """Epoch that the next iteration starts or continues."""
        return self._next_start().epoch

    @property
    def samples(self) -> int:
        """Samples of an epoch, over all ranks."""
        return self._order_of(self._known_epoch).distinct

    @property
    def has_weights(self) -> bool:
        """Whether weights hold in some part of the run."""
        return bool(self._orders.reweights)

    def first_batch(self) -> EpochPlan:
        """Return a plan whose first batch is the first one of the current epoch. The position does not change."""
        return self._plan(Cursor(self.epoch))

    def begin(self, *, is_counted: bool = True) -> EpochPlan:
        """Start an epoch, or the rest of a resumed one, and return its plan.

        Args:
            is_counted: Whether `mark_received` will be called for each batch. If not, there is no state until the next
                epoch.
        """
        if not is_counted and self._planned is not None and self._planned.unit == "steps":
            raise OptionError(
                "a torch DataLoader reads this epoch through loader.sampler, so steps are not counted: iterate over "
                "the loader itself, or use Schedule(..., unit='epochs')"
            )
        self._plan_weights(self._next_start())
        plan, self._is_reweighted = self._next_plan(), False
        check_batch_size(plan)
        self.stop()
        self._running = plan
        self._start, self._last_started, self._cursor = None, plan.cursor.epoch, plan.cursor
        self._is_counted, self._is_loaded = is_counted, False
        if is_counted:
            self._history.begin(plan)
        return self._running

    def _plan_weights(self, cursor: Cursor) -> None:
        """Take the weights of a schedule, whose steps follow from a cursor."""
        if self._planned is not None:
            section = Section.of(self._plan(cursor), self._history.steps)
            self._orders = with_planned(self._orders, self._planned, section, cursor, self._history.steps)

    @property
    def is_reweighted(self) -> bool:
        """Whether weights have changed since the plan of the running epoch, or the last one, was made."""
        return self._is_reweighted

    def following(self) -> EpochPlan | None:
        """Return the plan that `begin` would return now; None if it would raise an error."""
        if self._packing and self._next_start().epoch and not self._packing.is_complete:
            return None
        try:
            return self._next_plan()
        except OptionError:
            return None

    def check_running(self, plan: EpochPlan) -> None:
        """Check that a plan is still the running one."""
        if plan is not self._running:
            raise LoaderError(f"this iterator has ended because {self._end_reason}: create a new one with iter(loader)")

    def stop(self, reason: str = _NEWER_ITERATOR) -> None:
        """End the running plan, if there is one."""
        self._running, self._end_reason = None, reason

    def mark_received(self, plan: EpochPlan, step: int) -> None:
        """Record that the training loop has received a step of a plan."""
        self._cursor = plan.cursor_after(step)
        self._history.add_step(self._cursor)

    def end(self, plan: EpochPlan) -> None:
        """Record the end of a plan. It may have no steps, if the rest of a resumed epoch does not fill one."""
        if not len(plan):
            self._cursor = Cursor(plan.cursor.epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start epoch ``epoch``; a loaded position inside that epoch is kept."""
        if self._start is None or self._start.epoch != epoch:
            self._start = self._cursor = Cursor(epoch)
            self._is_counted = True

    def set_trainer_epoch(self, epoch: int) -> None:
        """Set the epoch for a trainer that counts its own epochs, and calls this after it loaded a state.

        A loaded state is kept if it was saved in the same epoch of the trainer, even if the loader was in another one.
        Lightning reads a short loader several times in one epoch if another loader is longer.
        """
        if not self._is_loaded or self._trainer_epoch not in (epoch, None):
            self.set_epoch(epoch)
        self._trainer_epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and position as plain values.

        Raises:
            ResumeError: A ``DataLoader`` reads this epoch, so the number of received samples is unknown.
        """
        if not self._is_counted:
            raise ResumeError(
                f"epoch {self.epoch} is read by a torch DataLoader through loader.sampler, which does not report its "
                "position: save the state in an epoch that is read from the loader itself, or resume with "
                "loader.load_state_dict() instead of skipping batches"
            )
        state, orders = resuming.state_dict(self._order_of(self._cursor.epoch), self._cursor), self._known_to_state()
        entries = {
            **state,
            "trainer_epoch": self._trainer_epoch,
            "compiled": native.is_enabled(),
            **self._history.state_dict(orders.first_epoch, self._orders, self._opened.prefix),
            "views": views_of(self._opened.recipe.columns_by_dataset),
            **self._in_files(orders).state_dict(self._cursor),
            **({} if self._opened.schedule is None else {"schedule": schedule_to_list(self._opened.schedule)}),
        }
        return saved_state.sealed(entries)

    def _in_files(self, orders: EpochOrders) -> EpochOrders:
        """Return orders whose bans are in files, if there is a folder for them."""
        if self._save_ban_to is None:
            return orders
        return orders.with_files_of_bans(partial(saved_arrays.save_ids, self._save_ban_to))

    def _known_to_state(self) -> EpochOrders:
        """Return the orders with the changes that a state needs. Those of a schedule follow from it."""
        orders = self._orders if self._planned is None else self._orders.until(self._cursor)
        orders = orders.for_state(self._cursor)
        needed = orders.needed(self._cursor, has_partners=self._opened.recipe.has_partners)
        if any((change.entries or {}).get("samples", {"file": ""})["file"] is None for change in needed):
            raise ResumeError(
                "the weights of samples are not in a file, so a state cannot record them: give save_to=, a path next "
                "to the checkpoint, to loader.reweight()"
            )
        return orders

    def reweight(self, entries: Entries, at: int | None) -> Cursor:
        """Draw samples by weights from a step on; return where it begins.

        Args:
            entries: The weights; none returns to the plain epochs.
            at: Step, counted from the start of the run; None is the next one that the training loop receives.

        Raises:
            OptionError: A value is invalid. Nothing has changed then.
        """
        if self._packing:
            raise OptionError(
                "the dataset is still being packed, and the weights of its samples are known when it is complete: "
                "reweight after the first epoch"
            )
        if not self._is_counted:
            raise OptionError(
                "a torch DataLoader reads this epoch through loader.sampler, so the next step is unknown: iterate over "
                "the loader itself, or reweight before the epoch"
            )
        if self._planned is not None:
            raise OptionError(
                "the weights of this loader are those of its Schedule: use reweight() without a Schedule, or add the "
                "change to it"
            )
        cursor = self._cursor_of_change(at)
        last = max(((change.epoch, change.position) for change in self._orders.changes), default=(0, 0))
        if (cursor.epoch, cursor.position) < last:
            raise OptionError(
                f"the weights already change at epoch {last[0]}, position {last[1]:,}, which is after epoch "
                f"{cursor.epoch}, position {cursor.position:,}: make changes in the order of their steps"
            )
        orders = self._orders.reweighting(entries or None, cursor)
        if self.weights.save(entries):
            orders.release_weights()
        self._orders, self._is_reweighted = orders, True
        return cursor

    def _cursor_of_change(self, at: int | None) -> Cursor:
        if at is None or at == self._history.steps:
            return self._cursor if self._running else self._next_start()
        if at < self._history.steps:
            raise OptionError(
                f"at={at}; the training loop has already received the steps up to {self._history.steps - 1}: the next "
                f"one is {self._history.steps}"
            )
        step = self.find_step(at, None)
        return Cursor(step.cursor.epoch, step.plan(0).position_of(step.number))

    def changed(self, plan: EpochPlan) -> EpochPlan | None:
        """Return the rest of the running epoch, if weights have changed since its plan was made; else None."""
        cursor = self._cursor
        if not self._is_reweighted or plan is not self._running:
            return None
        if cursor.epoch != plan.cursor.epoch:
            return None  # the plan is at its end
        self._is_reweighted = False
        self._running = self._plan(cursor)
        check_batch_size(self._running)
        self._history.begin(self._running)
        return self._running

    def find_step(self, step: int, epoch: int | None) -> FoundStep:
        """Return a step of the run, past or future; see `history.find_step`."""
        if self._packing and (epoch or (epoch is None and step >= len(self._plan(Cursor())))):
            self._complete()
        sections = self._history.sections or (Section.of(self._plan(self._next_start()), self._history.steps),)
        return find_step(sections, self._orders, step=step, epoch=epoch, prefix=self._opened.prefix)

    def load_state_dict(self, state: dict[str, Any], *, force: bool) -> None:
        """Continue from a state; see `resuming.resume`."""
        saved_state.check_seal(state)
        if self._packing and state.get("epoch"):
            self._complete()
        orders, cursor = resuming.resume(
            state,
            self._opened.order,
            prefix=self._opened.prefix,
            force=force,
            find_weights=self.weights,
            read_ids=saved_arrays.read_ids,
            packed=self._opened.packed,
            has_partners=self._opened.recipe.has_partners,
        )
        trainer_epoch, compiled = state.get("trainer_epoch"), state.get("compiled")
        if trainer_epoch is not None:
            trainer_epoch = saved_state.whole_number(trainer_epoch, "trainer_epoch")
        if not isinstance(compiled, bool | None):
            raise ResumeError(f"the state has compiled={compiled!r}; allowed are True and False: it was damaged")
        orders = orders.banning(self._opened.banned, cursor)
        self._history.load_state_dict(state, cursor)
        self._orders, self._cursor, self._start = orders, cursor, cursor
        self._trainer_epoch = trainer_epoch
        self._plan_weights(cursor)
        _warn_of_different_pixels(compiled)
        _warn_of_other_views(state.get("views"), views_of(self._opened.recipe.columns_by_dataset))
        self._is_loaded = self._is_counted = True

    def _next_start(self) -> Cursor:
        return self._start or Cursor(self._last_started + 1)

    def _next_plan(self) -> EpochPlan:
        start = self._next_start()
        check_plan(self._plan(Cursor(start.epoch)))
        return self._plan(start)

    def _plan(self, cursor: Cursor) -> EpochPlan:
        order = self._order_of(cursor.epoch)
        return EpochPlan(order, cursor, self._opened.find_world(), self.batch_size, self._tail)

    def _order_of(self, epoch: int) -> EpochOrder:
        if self._packing and epoch:
            self._complete()
        return self._orders.of(epoch)

    def _complete(self) -> None:
        """Wait until the dataset is complete: it has the orders of all epochs after the first one."""
        assert self._packing is not None
        self._opened, self._packing = self._packing.completed(), None
        self.weights = WeightFinder(self._opened.shards, self._opened.order.plain, self._opened.recipe.seed)
        self._orders = self._opened.orders(self.weights)


def _warn_of_different_pixels(compiled: bool | None) -> None:
    """Log a warning if only one of the saved run and this process uses the compiled module."""
    if compiled is None or compiled == native.is_enabled():
        return
    then, now = ("with", "without") if compiled else ("without", "with")
    _log.warning(
        "the state was saved %s the compiled module of wds_tools, and this run continues %s it: samples, order and "
        "crops are the same, pixels differ by 0.4 of 255 on average (`wds-tools doctor` shows the state of the module)",
        then,
        now,
    )


def _warn_of_other_views(then: Any, now: dict[str, Any]) -> None:
    """Log a warning if an image has another view in a state than in this run."""
    then = then if isinstance(then, dict) else {}
    for name in sorted(then.keys() & now.keys()):
        if saved_state.plain(then[name]) != saved_state.plain(now[name]):
            _log.warning(
                "the view of the field %r is %s in the state, and %s in this run: samples and their order are the "
                "same, but their regions differ, and explain() shows all steps with the view of this run (for "
                "views that change at an epoch use wds_tools.Schedule)",
                name,
                json.dumps(saved_state.plain(then[name])),
                json.dumps(saved_state.plain(now[name])),
            )
