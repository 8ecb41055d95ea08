"""Which steps a run has taken: what the state records, so that the samples of any step can be found. No I/O.

A section is a sequence of steps that follow each other with the same batch size and number of ranks. Usually a run has
one; another one begins when a state is loaded with another batch size or number of ranks, or when an iteration does not
continue where the last one ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any, get_args

from wds_tools.errors import OptionError, ResumeError
from wds_tools.order.changes import Entries, Planned
from wds_tools.order.epoch import EpochOrder
from wds_tools.order.planner import Cursor, EpochOrders, EpochPlan, PrefixOrder, Tail, World
from wds_tools.order.saved_state import MAX_EPOCH, entries_of, whole_number

MAX_SECTIONS = 64
"""Maximum number of sections in a state; the oldest ones are dropped."""


@dataclass(frozen=True, slots=True)
class Section:
    """Steps that follow each other, with the same batch size and number of ranks.

    Attributes:
        step: Number of its first step, counted from the start of the run.
        epoch: Epoch of its first step.
        position: Position of its first step in that epoch.
    """

    step: int
    epoch: int
    position: int
    batch_size: int
    world_size: int
    tail: Tail
    shards: int

    @classmethod
    def of(cls, plan: EpochPlan, step: int) -> Section:
        """Return the section that begins with a plan."""
        cursor, shards = plan.cursor, plan.order.identity.shards
        return cls(step, cursor.epoch, cursor.position, plan.batch_size, plan.world.world_size, plan.tail, shards)

    def continues(self, other: Section) -> bool:
        """Return whether this section has the same options as another one."""
        return self == replace(other, step=self.step, epoch=self.epoch, position=self.position)

    def plan(self, order: EpochOrder, cursor: Cursor, rank: int = 0) -> EpochPlan:
        """Return the steps of a rank from a cursor to the end of its epoch."""
        return EpochPlan(order, cursor, World(rank, self.world_size), self.batch_size, self.tail)


class History:
    """The steps that the training loop has received."""

    def __init__(self) -> None:
        self.steps = 0
        self.sections: tuple[Section, ...] = ()
        self._next: Cursor | None = None  # where the next step begins if the section continues

    def begin(self, plan: EpochPlan) -> None:
        """Record that steps of a plan follow."""
        section = Section.of(plan, self.steps)
        if self.sections and plan.cursor == self._next and section.continues(self.sections[-1]):
            return
        kept = [earlier for earlier in self.sections if earlier.step < self.steps]
        self.sections, self._next = (*kept, section)[-MAX_SECTIONS:], plan.cursor

    def add_step(self, following: Cursor) -> None:
        """Record that a step was received; ``following`` is where the next one begins."""
        self.steps += 1
        self._next = following

    def state_dict(self, first_epoch: int, orders: EpochOrders, prefix: PrefixOrder | None) -> dict[str, Any]:
        """Return the entries of a state as plain values. A section is the list of its attributes."""
        sections = self._sections_since(first_epoch, orders, prefix) if first_epoch else self.sections
        return {"step": self.steps, "sections": [list(astuple(section)) for section in sections]}

    def _sections_since(self, epoch: int, orders: EpochOrders, prefix: PrefixOrder | None) -> list[Section]:
        sections = []
        ends = [*(following.step for following in self.sections[1:]), self.steps + 1]
        for section, end in zip(self.sections, ends, strict=True):
            cursor, step = Cursor(section.epoch, section.position), section.step
            while cursor.epoch < epoch and step < end:
                step += len(section.plan(_order_of(section, orders, cursor.epoch, prefix), cursor))
                cursor = Cursor(cursor.epoch + 1)
            if step < end:
                sections.append(replace(section, step=step, epoch=cursor.epoch, position=cursor.position))
        return sections

    def load_state_dict(self, state: dict[str, Any], cursor: Cursor) -> None:
        """Continue from a state, whose next step begins at a cursor."""
        steps = whole_number(state.get("step", 0), "step")
        try:
            sections = tuple(_section_of(*section) for section in entries_of(state.get("sections", ()), "sections"))
        except TypeError as error:
            raise ResumeError(f"the entry 'sections' of the state is damaged: {error}") from error
        starts = [section.step for section in sections]
        if starts != sorted(starts) or (starts and starts[-1] > steps):
            raise ResumeError(f"the entry 'sections' of the state is damaged: they start at {starts} of {steps} steps")
        self.steps, self.sections, self._next = steps, sections, cursor


def _section_of(
    step: Any, epoch: Any, position: Any, batch_size: Any, world_size: Any, tail: Any, shards: Any
) -> Section:
    """Return a section from its entries in a state."""
    if tail not in get_args(Tail):
        raise ResumeError(f"the entry 'sections' of the state is damaged: tail is {tail!r}")
    return Section(
        whole_number(step, "step of a section"),
        whole_number(epoch, "epoch of a section", most=MAX_EPOCH),
        whole_number(position, "position of a section"),
        whole_number(batch_size, "batch_size of a section", least=1, most=MAX_EPOCH),
        whole_number(world_size, "world_size of a section", least=1, most=MAX_EPOCH),
        tail,
        whole_number(shards, "shards of a section", most=MAX_EPOCH),
    )


@dataclass(frozen=True, slots=True)
class FoundStep:
    """One step of a run.

    Attributes:
        cursor: Epoch of the step, and where its section begins in it.
        number: Number of the step, counted from the cursor.
        step: Number of the step, counted from the start of the run.
        weights: Weights of its samples, as entries of a state; None in a plain epoch.
    """

    section: Section
    order: EpochOrder
    cursor: Cursor
    number: int
    step: int
    weights: Entries | None

    def plan(self, rank: int) -> EpochPlan:
        """Return the plan of a rank that has the step."""
        return self.section.plan(self.order, self.cursor, rank)


def find_step(
    sections: Sequence[Section],
    orders: EpochOrders,
    *,
    step: int,
    epoch: int | None = None,
    prefix: PrefixOrder | None = None,
) -> FoundStep:
    """Return a step of a run, past or future.

    Raises:
        OptionError: The step is before the first section, or the epoch has fewer steps.
    """
    if any(given is not None and (not isinstance(given, int) or given < 0) for given in (step, epoch)):
        raise OptionError(f"step={step!r}, epoch={epoch!r}; allowed are whole numbers of 0 and more")
    if epoch is not None:
        first, last = _steps_of_epoch(sections, orders, epoch, prefix)
        if step >= last - first:
            raise OptionError(f"step={step}; epoch {epoch} has the steps 0 to {last - first - 1}")
        step += first
    earlier = [section for section in sections if section.step <= step]
    if not earlier:
        raise OptionError(
            f"step={step}; the state records the steps from {sections[0].step} on: only the last {MAX_SECTIONS} "
            "changes of batch size, number of ranks and position, and the last changes of weights, are kept"
        )
    section = earlier[-1]
    cursor, index = Cursor(section.epoch, section.position), step - section.step
    while True:
        order = _order_of(section, orders, cursor.epoch, prefix)
        length = len(section.plan(order, cursor))
        if index < length:
            start = section.plan(order, cursor).position_of(index)
            return FoundStep(section, order, cursor, index, step, orders.weights_at(Cursor(cursor.epoch, start)))
        if not length and not cursor.position:
            raise OptionError(f"epoch {cursor.epoch} has no steps: it has fewer samples than a step")
        cursor, index = Cursor(cursor.epoch + 1), index - length


def with_planned(orders: EpochOrders, planned: Planned, section: Section, cursor: Cursor, step: int) -> EpochOrders:
    """Return the orders with the weights of a schedule from a cursor on."""
    (now, entries), *later = planned.since(step if planned.unit == "steps" else cursor.epoch)
    result = orders.until(cursor)
    is_plain = now == 0 and planned.has_first and not result.reweights
    if not is_plain and result.weights_at(cursor) != entries:
        result = result.reweighting(entries, cursor, check=False)
    for following_step, following in later:
        if planned.unit == "epochs":
            cursor = Cursor(following_step)
        else:
            cursor, step = _cursor_of_step(following_step, result, section, cursor, step), following_step
        result = result.reweighting(following, cursor, check=False)
    return orders if result.has_changes_of(orders) else result


def _cursor_of_step(target: int, orders: EpochOrders, section: Section, cursor: Cursor, step: int) -> Cursor:
    """Return where a later step begins if ``step`` begins at a cursor."""
    while True:
        plan = section.plan(orders.of(cursor.epoch), cursor)
        if target < step + len(plan):
            return Cursor(cursor.epoch, plan.position_of(target - step))
        step, epochs = step + len(plan), 1
        if cursor.position == 0 and not plan.order.identity.buckets:  # the following epochs have as many steps
            epochs += (target - step) // len(plan)
            step += (epochs - 1) * len(plan)
        cursor = Cursor(cursor.epoch + epochs)


def _steps_of_epoch(
    sections: Sequence[Section], orders: EpochOrders, epoch: int, prefix: PrefixOrder | None
) -> tuple[int, int]:
    """Return the first step of an epoch and the step after its last one, counted from the start of the run."""
    spans = []
    for section, following in zip(sections, [*sections[1:], None], strict=True):
        cursor, step = Cursor(section.epoch, section.position), section.step
        end = following.step if following else None
        while cursor.epoch <= epoch and (end is None or step < end):
            length = len(section.plan(_order_of(section, orders, cursor.epoch, prefix), cursor))
            last = step + length if end is None else min(step + length, end)
            if cursor.epoch == epoch:
                spans.append((cursor.position, step, last))
            cursor, step = Cursor(cursor.epoch + 1), last
    starts = [index for index, span in enumerate(spans) if span[0] == 0]
    if not starts:
        raise OptionError(
            f"epoch={epoch}; its start is not among the steps that the state records: count step= from the start "
            "of the run, without epoch="
        )
    return spans[starts[-1]][1], spans[-1][2]


def _order_of(section: Section, orders: EpochOrders, epoch: int, prefix: PrefixOrder | None) -> EpochOrder:
    """Return the order of an epoch when the dataset had the shards of a section."""
    order = orders.of(epoch)
    if prefix is None or section.shards >= order.identity.shards:
        return order
    return orders.with_order(prefix(section.shards)).of(epoch)
