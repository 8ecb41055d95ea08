"""Changes of a run from a position on, bans and weights: what a state records of them. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import ResumeError
from wds_tools.order.saved_state import MAX_EPOCH, MAX_NUMBER, entries_of, whole_number
from wds_tools.order.weights import Factors, Phases, SourcePosition


@dataclass(frozen=True, slots=True)
class Ban:
    """Samples that are left out from a position of an epoch on, and in all later epochs.

    Attributes:
        position: Position in that epoch, counted without the samples of earlier bans.
        ids: Sample ids, ascending; none of them is in an earlier ban.
        file: Path and hash of the file that has the ids; None if they are in no file.
    """

    epoch: int
    position: int
    ids: tuple[int, ...]
    file: tuple[str, str] | None = None

    @property
    def start(self) -> tuple[int, int]:
        """Epoch and position."""
        return self.epoch, self.position

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for a state: the ids, or the file that has them."""
        start = {"epoch": self.epoch, "position": self.position}
        if self.file is None:
            return {**start, "ids": list(self.ids)}
        return {**start, "file": self.file[0], "xxh3": self.file[1]}


ReadIds: TypeAlias = Callable[[str, str], Sequence[int]]
"""Returns the sample ids of a file, by its path and its hash; raises ResumeError if it is missing or has changed."""


def bans_of(state: Any, stored: int, read_ids: ReadIds | None) -> tuple[Ban, ...]:
    """Return the bans of a state, see `Ban.to_dict`.

    Raises:
        ResumeError: They are damaged, or a file is missing or has changed.
    """
    try:
        return tuple(_ban_of(entry, stored, read_ids) for entry in entries_of(state, "bans"))
    except (LookupError, TypeError) as error:
        raise ResumeError(f"the entry 'bans' of the state is damaged ({type(error).__name__}: {error})") from error


def _ban_of(entry: Any, stored: int, read_ids: ReadIds | None) -> Ban:
    file: tuple[str, str] | None = None
    ids: Sequence[int]
    if "ids" in entry:
        ids = entries_of(entry["ids"], "bans")
    else:
        file = str(entry["file"]), str(entry["xxh3"])
        if read_ids is None:
            raise ResumeError("the state has a ban whose ids are in a file, which only make_loader resumes")
        ids = read_ids(*file)
    return Ban(
        whole_number(entry["epoch"], "epoch of a ban", most=MAX_EPOCH),
        whole_number(entry["position"], "position of a ban"),
        tuple(whole_number(sample, "id of a ban", most=stored - 1) for sample in ids),
        file,
    )


@dataclass(frozen=True, slots=True)
class DatasetWeights:
    """Factors of the samples of one dataset; see `Rates`."""

    phases: Phases
    by_group: NDArray[np.float64] | None = None
    by_sample: Factors | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Weights of a run.

    Attributes:
        shares: Share of each dataset as a whole number; None keeps those of the run.
        datasets: Factors of the samples of each dataset; None draws all samples equally often.
    """

    shares: tuple[int, ...] | None = None
    datasets: tuple[DatasetWeights, ...] | None = None


Entries = dict[str, Any]
"""Weights as a user gives them, as plain values: by class, dataset and condition, and the file of those of samples."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is at a change of weights.

    Attributes:
        drawn: Samples of the epoch that were delivered before, or wait for their bucket and are kept.
        sources: Where each dataset continues.
    """

    drawn: int
    sources: tuple[SourcePosition, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Reweight:
    """Samples are drawn by weights from a position of an epoch on.

    A ban while weights hold is followed by a `Reweight` at the same position with the same weights.

    Attributes:
        position: Position in that epoch.
        entries: The weights; None returns to the plain epochs.
        length: Samples of an epoch while these weights hold.
        progress: How far the run is at this position; None if it has not reached it.
    """

    epoch: int
    position: int
    entries: Entries | None
    length: int
    progress: Progress | None = None

    @property
    def start(self) -> tuple[int, int]:
        """Epoch and position."""
        return self.epoch, self.position

    def to_list(self, progress: Progress | None) -> list[Any]:
        """Return plain values for a state, which has many of these; ``progress`` is None if it is not known yet."""
        numbers = [] if progress is None else [progress.drawn, *chain.from_iterable(progress.sources)]
        return [self.epoch, self.position, self.length, numbers, self.entries]


Change: TypeAlias = Ban | Reweight


@dataclass(frozen=True, slots=True)
class Planned:
    """Weights that are known before the run.

    Attributes:
        unit: What the numbers count: epochs, or steps from the start of the run.
        points: Numbers, ascending from 0, and the weights from there on.
        has_first: Whether the orders of the run have the first weights already.
    """

    unit: Literal["epochs", "steps"]
    points: tuple[tuple[int, Entries], ...]
    has_first: bool

    def since(self, point: int) -> tuple[tuple[int, Entries], ...]:
        """Return the point that holds at a number, and the later ones."""
        return self.points[bisect_right([start for start, _ in self.points], point) - 1 :]


class FindWeights(Protocol):
    """Returns the weights of the entries of a state."""

    def __call__(self, entries: Entries | None) -> Weights:
        """Return the weights."""


def reweights_of(state: Any) -> tuple[Reweight, ...]:
    """Return the changes of weights of a state, see `Reweight.to_list`."""
    try:
        return tuple(_reweight_of(*entries_of(entry, "weights")) for entry in entries_of(state, "weights"))
    except (TypeError, ValueError) as error:
        if isinstance(error, ResumeError):
            raise
        raise ResumeError(f"the entry 'weights' of the state is damaged ({type(error).__name__}: {error})") from error


def _reweight_of(epoch: Any, position: Any, length: Any, progress: Any, entries: Entries | None) -> Reweight:
    numbers = [
        whole_number(number, "position at weights", least=-MAX_NUMBER if index and index % 3 == 0 else 0)
        for index, number in enumerate(entries_of(progress, "weights"))
    ]
    return Reweight(
        whole_number(epoch, "epoch of weights", most=MAX_EPOCH),
        whole_number(position, "position of weights"),
        entries,
        whole_number(length, "length of an epoch with weights", least=1),
        Progress(numbers[0], tuple(zip(*(numbers[first::3] for first in (1, 2, 3)), strict=True))) if numbers else None,
    )
