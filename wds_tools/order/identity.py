"""The identity of an order: what determines it, and what states record of it. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What determines the orders of a run, with the shuffle. States and messages take it from here.

    Attributes:
        selection: Digest of the selection; None if there is none, and for mixtures, whose fingerprint has it.
        once: Whether no sample repeats within an epoch.
        window: Shuffle window in samples, 0 for the stored order; for mixtures a list.
        buckets: Height and width of each bucket; empty without buckets.
        group: Consecutive rows that belong to one bucket, or are of one dataset of a mixture; 1 if there is no such
            rule.
        group_is_of_rank: Whether the rows of a group go to one rank, and not to all.
        epoch_step: Samples of a step, of which an epoch has a whole number; None if there is no such rule.
    """

    fingerprint: str
    seed: int
    shards: int
    stored: int
    selection: str | None
    once: bool
    lanes: int
    window: int | list[int]
    block: int | list[int]
    buckets: tuple[tuple[int, int], ...] = ()
    group: int = 1
    group_is_of_rank: bool = True
    epoch_step: int | None = None

    @property
    def shuffles(self) -> bool:
        """Whether the order is not the stored one."""
        return bool(np.any(self.window))

    @property
    def shape(self) -> dict[str, Any]:
        """The arguments of `RunOrder.like`, and entries of a state."""
        shape = {"lanes": self.lanes, "window": self.window, "block": self.block}
        if self.epoch_step is not None:
            return {**shape, "group": self.group, "epoch_step": self.epoch_step}
        return {**shape, "group": self.group} if self.buckets else shape

    @property
    def sizes(self) -> list[list[int]] | None:
        """The buckets as an entry of a state; None without buckets."""
        return list(map(list, self.buckets)) or None
