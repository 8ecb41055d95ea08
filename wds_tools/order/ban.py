"""Samples that are left out of the order from a position on, as a state records them: ``ban=``. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wds_tools.errors import ResumeError
from wds_tools.order.saved_state import MAX_EPOCH, entries_of, whole_number


@dataclass(frozen=True, slots=True)
class Ban:
    """Samples that are left out from a position of an epoch on, and in all later epochs.

    Attributes:
        epoch: Zero-based epoch.
        position: Position in that epoch, counted without the samples of earlier bans.
        ids: Sample ids, ascending; none of them is in an earlier ban.
    """

    epoch: int
    position: int
    ids: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a state."""
        return {"epoch": self.epoch, "position": self.position, "ids": list(self.ids)}


def bans_of(state: Any, stored: int) -> tuple[Ban, ...]:
    """Return the bans of a state, see `Ban.to_dict`.

    Args:
        state: The entry of the state.
        stored: Number of samples of the dataset.

    Raises:
        ResumeError: They are damaged.
    """
    try:
        return tuple(
            Ban(
                whole_number(one["epoch"], "epoch of a ban", most=MAX_EPOCH),
                whole_number(one["position"], "position of a ban"),
                tuple(
                    whole_number(sample, "id of a ban", most=stored - 1) for sample in entries_of(one["ids"], "bans")
                ),
            )
            for one in entries_of(state, "bans")
        )
    except (LookupError, TypeError) as error:
        raise ResumeError(f"the entry 'bans' of the state is damaged ({type(error).__name__}: {error})") from error
