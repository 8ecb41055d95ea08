"""Unreadable samples: raise an error, or take another sample instead, within a budget.

A substitute is a function of the seed, the epoch and the position alone. So the steps, the order and a resumed run stay
what they are, on any number of ranks and workers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import ChecksumError, OptionError, SampleError, WdsToolsError
from wds_tools.order.keyed_random import hashes, key_of
from wds_tools.order.planner import AnyOrder

OnError = Literal["raise", "replace"]

_MOST_ATTEMPTS = 20  # substitutes that may be unreadable in a row
_log = logging.getLogger("wds_tools")


def is_about_data(error: Exception) -> bool:
    """Return whether an error is the fault of one stored sample, and not of the user's code or of the storage."""
    return isinstance(error, SampleError | ChecksumError) and error.key is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """What happens to an unreadable sample.

    Attributes:
        on_error: ``"raise"``, or ``"replace"`` it by another sample.
        max_errors: How many may be replaced in an epoch on each rank: a number, or a fraction of its samples.

    Raises:
        OptionError: Another policy, or a number below 0.
    """

    on_error: OnError = "raise"
    max_errors: int | float = 0.01

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "replace"):
            raise OptionError(f"on_error={self.on_error!r}; allowed are 'raise' and 'replace'")
        number = self.max_errors
        if isinstance(number, bool) or not isinstance(number, int | float) or not number >= 0:
            raise OptionError(f"max_errors={number!r}; allowed are a number of samples, or a fraction such as 0.01")
        if isinstance(number, float) and number > 1:
            raise OptionError(f"max_errors={number}; a fraction is at most 1.0, a number of samples is an int")

    @property
    def replaces(self) -> bool:
        """Whether samples are replaced."""
        return self.on_error == "replace"

    def budget(self, samples: int) -> int:
        """Return how many of ``samples`` may be replaced."""
        return math.ceil(self.max_errors * samples) if isinstance(self.max_errors, float) else self.max_errors


@dataclass(frozen=True, slots=True)
class ReplacedSample:
    """An unreadable sample that was replaced.

    Attributes:
        epoch: Number of the epoch.
        position: Its place in the sequence of the epoch.
        shard: Name of its shard.
        key: Its key.
        reason: The error.
    """

    epoch: int
    position: int
    shard: str | None
    key: str | None
    reason: str


class ErrorLog:
    """The replaced samples of the current epoch, each logged as a warning.

    Args:
        policy: How many there may be.
    """

    def __init__(self, policy: ErrorPolicy) -> None:
        self.policy = policy
        self.samples: list[ReplacedSample] = []
        self._budget = 0

    def begin(self, samples: int) -> None:
        """Start an epoch, or the rest of one, of so many samples."""
        self.samples = []
        self._budget = self.policy.budget(samples)

    def add(self, error: WdsToolsError, *, epoch: int, position: int) -> None:
        """Note a sample that is to be replaced.

        Raises:
            SampleError: There are more than the policy allows; the cause is the sample's own error.
        """
        if len(self.samples) >= self._budget:
            raise SampleError(
                f"{len(self.samples) + 1} unreadable samples in epoch {epoch}, and max_errors="
                f"{self.policy.max_errors} allows {self._budget}: {error.args[0]}; check the dataset with "
                "`wds-tools verify`, or allow more",
                shard=error.shard,
                key=error.key,
            ) from error
        reason = f"{type(error).__name__}: {error}"
        self.samples.append(ReplacedSample(epoch, position, error.shard, error.key, reason))
        _log.warning("sample replaced (%d of at most %d): %s", len(self.samples), self._budget, reason)


def fill_in(
    pieces: list[list[Any] | WdsToolsError],
    make: Callable[[int, int], list[Any] | WdsToolsError],
    errors: ErrorLog,
    *,
    order: AnyOrder,
    epoch: int,
    positions: NDArray[np.int64],
) -> list[int]:
    """Replace unreadable samples; return their rows.

    Args:
        pieces: The values of each sample, or its error; changed in place.
        make: Makes the sample for a row from an id.
        errors: Where they are noted.
        order: Of the epoch.
        epoch: Its number.
        positions: int64 [n], place of each sample in the epoch.

    Raises:
        SampleError: There are more than the policy allows, or their substitutes are unreadable too.
    """
    rows = [row for row, piece in enumerate(pieces) if isinstance(piece, WdsToolsError)]
    for row in rows:
        error, position = pieces[row], int(positions[row])
        assert isinstance(error, WdsToolsError)
        errors.add(error, epoch=epoch, position=position)
        tried = (make(row, sample) for sample in islice(_substitutes(order, epoch, position), _MOST_ATTEMPTS))
        substitute = next((piece for piece in tried if isinstance(piece, list)), None)
        if substitute is None:
            raise error
        pieces[row] = substitute
    return rows


def _substitutes(order: AnyOrder, epoch: int, position: int) -> Iterator[int]:
    """Yield the ids of samples that may take the place of the one at a position of an epoch."""
    key = key_of("substitute", order.seed, epoch)
    for attempt in count():
        draw = int(hashes(key, np.array([position * _MOST_ATTEMPTS + attempt]))[0]) % order.samples
        yield int(order.ids(epoch, draw, draw + 1)[0])
