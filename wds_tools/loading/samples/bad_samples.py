"""Unreadable samples: raise an error, or use another sample instead, up to a limit per epoch.

The substitute depends only on the seed, the epoch and the position. So the order of samples and a resumed run are the
same on any number of ranks and workers.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Why a sample cannot be loaded.

    Attributes:
        error: The error that loading it raised.
        tile: Which of the samples that its image shows is the unreadable one: 0 for the sample itself, and otherwise a
            partner, counted from 1.
    """

    error: WdsToolsError
    tile: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorPolicy:
    """Handling of unreadable samples.

    Attributes:
        on_error: ``"raise"`` the error, or ``"replace"`` the sample with another one.
        max_errors: Maximum number of samples that may be replaced per epoch on each rank: a number (int), or a fraction
            of the samples of the rank (float).
    """

    on_error: OnError = "raise"
    max_errors: int | float = 0.01

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "replace"):
            raise OptionError(f"on_error={self.on_error!r}; allowed are 'raise' and 'replace'")
        limit = self.max_errors
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0:
            raise OptionError(f"max_errors={limit!r}; allowed are a number of samples, or a fraction such as 0.01")
        if isinstance(limit, float) and limit > 1:
            raise OptionError(f"max_errors={limit}; a fraction is at most 1.0, a number of samples is an int")

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
    """The replaced samples of the current epoch. Each one is also logged as a warning."""

    def __init__(self, policy: ErrorPolicy) -> None:
        self.policy = policy
        self.samples: list[ReplacedSample] = []
        self._budget = 0

    def begin(self, samples: int) -> None:
        """Start an epoch, or the rest of a resumed one, with this number of samples."""
        self.samples = []
        self._budget = self.policy.budget(samples)

    def add(self, unreadable: Unreadable, *, epoch: int, position: int) -> None:
        """Add a sample that will be replaced. A partner that was added before is not counted again."""
        error = unreadable.error
        if unreadable.tile and any((sample.shard, sample.key) == (error.shard, error.key) for sample in self.samples):
            return
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

    def add_gaps(self, positions: NDArray[np.int64], epoch: int) -> None:
        """Add inputs of an epoch that the packer has skipped, by their positions. They do not count for the limit."""
        for position in positions.tolist():
            key = f"{position:09}"
            reason = "it could not be packed: skipped.jsonl has the reason when the dataset is complete"
            self.samples.append(ReplacedSample(epoch, position, None, key, reason))
            _log.warning("sample replaced: input %s of the plan: %s", key, reason)


def replace_unreadable(
    samples: list[list[Any] | Unreadable],
    load: Callable[[int, NDArray[np.int64]], list[Any] | Unreadable],
    errors: ErrorLog,
    *,
    order: EpochOrder,
    epoch: int,
    positions: NDArray[np.int64],
    sources: NDArray[np.int64],
) -> list[int]:
    """Replace unreadable samples with others.

    Args:
        samples: The values of each sample, or its error; changed in place.
        load: Function of a row and int64 [1, 1 + partners] that reads these samples for this row.
        errors: Log of the replaced samples.
        order: Order of the samples in the epoch.
        epoch: Zero-based epoch.
        positions: int64 [n], position of each sample in the epoch.
        sources: int64 [n, 1 + partners], ids of each sample and of its partners.

    Returns:
        The rows whose sample was replaced, and not only a partner.

    Raises:
        SampleError: The limit is exceeded, or the substitutes are unreadable too.
    """
    rows = [row for row, sample in enumerate(samples) if isinstance(sample, Unreadable)]
    replaced = []
    for row in rows:
        result, position, ids = samples[row], int(positions[row]), sources[row : row + 1].copy()
        assert isinstance(result, Unreadable)
        first = result.error
        errors.add(result, epoch=epoch, position=position)
        for attempt in range(_MAX_ATTEMPTS):
            ids[0, result.tile] = _substitute(order, position, result.tile, attempt)
            result = load(row, ids)
            if isinstance(result, list):
                break
        else:
            raise first
        samples[row] = result
        if ids[0, 0] != sources[row, 0]:
            replaced.append(row)
    return replaced


def _substitute(order: EpochOrder, position: int, tile: int, attempt: int) -> int:
    """Return the id of a possible substitute for the sample at a position of an epoch, or for one of its partners."""
    key = key_of("substitute", order.identity.seed, order.epoch, *([tile] if tile else []))
    return order.substitute(position, int(hashes(key, np.array([position * _MAX_ATTEMPTS + attempt]))[0]))
