"""Unreadable samples: raise an error, or use another sample instead, up to a limit per epoch.

The substitute depends only on the seed, the epoch and the position. So the order of samples and a resumed run are the
same on any number of ranks and workers.
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
from wds_tools.order.epoch import EpochOrder
from wds_tools.order.keyed_random import hashes, key_of

OnError = Literal["raise", "replace"]

_MAX_ATTEMPTS = 20  # substitutes to try for one sample
_log = logging.getLogger("wds_tools")


def is_sample_error(error: Exception) -> bool:
    """Return whether one stored sample caused the error, rather than the user's code or the storage."""
    return isinstance(error, SampleError | ChecksumError) and error.key is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """Handling of unreadable samples.

    Attributes:
        on_error: ``"raise"`` the error, or ``"replace"`` the sample with another one.
        max_errors: Maximum number of samples that may be replaced per epoch on each rank: a number (int), or a fraction
            of the samples of the rank (float).

    Raises:
        OptionError: An invalid value of an attribute.
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
        """Return how many of ``samples`` samples may be replaced."""
        return math.ceil(self.max_errors * samples) if isinstance(self.max_errors, float) else self.max_errors


@dataclass(frozen=True, slots=True)
class ReplacedSample:
    """An unreadable sample that was replaced.

    Attributes:
        epoch: Zero-based epoch.
        position: Position in the epoch, over all ranks.
        shard: Name of the shard.
        key: Key of the sample.
        reason: Type and message of the error.
    """

    epoch: int
    position: int
    shard: str | None
    key: str | None
    reason: str


class ErrorLog:
    """The replaced samples of the current epoch. Each one is also logged as a warning.

    Args:
        policy: Limit of replaced samples.
    """

    def __init__(self, policy: ErrorPolicy) -> None:
        self.policy = policy
        self.samples: list[ReplacedSample] = []
        self._budget = 0

    def begin(self, samples: int) -> None:
        """Start an epoch, or the rest of a resumed one, with this number of samples."""
        self.samples = []
        self._budget = self.policy.budget(samples)

    def add(self, error: WdsToolsError, *, epoch: int, position: int) -> None:
        """Add a sample that will be replaced.

        Raises:
            SampleError: The limit is exceeded. Its cause is the error of the sample.
        """
        if len(self.samples) >= self._budget:
            raise SampleError(
                f"{len(self.samples) + 1} unreadable samples in epoch {epoch}, and max_errors="
                f"{self.policy.max_errors} allows {self._budget}: {error.args[0]}; check the dataset with "
                "`wds-tools verify`, or increase max_errors=",
                shard=error.shard,
                key=error.key,
            ) from error
        reason = f"{type(error).__name__}: {error}"
        self.samples.append(ReplacedSample(epoch, position, error.shard, error.key, reason))
        _log.warning("sample replaced (%d of at most %d): %s", len(self.samples), self._budget, reason)


def replace_unreadable(
    samples: list[list[Any] | WdsToolsError],
    load: Callable[[int, int], list[Any] | WdsToolsError],
    errors: ErrorLog,
    *,
    order: EpochOrder,
    epoch: int,
    positions: NDArray[np.int64],
) -> list[int]:
    """Replace unreadable samples with others.

    Args:
        samples: The values of each sample, or its error; changed in place.
        load: Function of a row and a sample id that reads this sample for this row.
        errors: Log of the replaced samples.
        order: Order of the samples in the epoch.
        epoch: Zero-based epoch.
        positions: int64 [n], position of each sample in the epoch.

    Returns:
        The rows of the replaced samples.

    Raises:
        SampleError: The limit is exceeded, or the substitutes are unreadable too.
    """
    rows = [row for row, sample in enumerate(samples) if isinstance(sample, WdsToolsError)]
    for row in rows:
        error, position = samples[row], int(positions[row])
        assert isinstance(error, WdsToolsError)
        errors.add(error, epoch=epoch, position=position)
        ids = islice(_substitutes(order, position), _MAX_ATTEMPTS)
        substitute = next((sample for sample in (load(row, id_) for id_ in ids) if isinstance(sample, list)), None)
        if substitute is None:
            raise error
        samples[row] = substitute
    return rows


def _substitutes(order: EpochOrder, position: int) -> Iterator[int]:
    """Yield the ids of possible substitutes for the sample at a position of an epoch."""
    key = key_of("substitute", order.identity.seed, order.epoch)
    for attempt in count():
        yield order.substitute(position, int(hashes(key, np.array([position * _MAX_ATTEMPTS + attempt]))[0]))
