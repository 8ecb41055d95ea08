"""The proof that an epoch was delivered: each sample once, over all ranks. Arithmetic on sums of hashes.

Each rank adds up a 64-bit hash of every sample id that it hands to training. Sums do not depend on order, so those of
all ranks together must equal that of the ids 0 to n - 1, which nobody needs to deliver to know. A sample that is
missing, or comes twice, changes the sum; that two errors cancel has a chance of one in 2**64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wds_tools.prng import hashes, key_of

_KEY = key_of("epoch proof")
_CHUNK = 1 << 20
_MOST_SEARCHED = 50_000_000  # ids that are tried to name the one that is missing: a second
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class Tally:
    """What was delivered.

    Attributes:
        samples: How many.
        digest: Sum of their hashes, modulo 2**64.
    """

    samples: int = 0
    digest: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.samples + other.samples, (self.digest + other.digest) & _MASK)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.samples - other.samples, (self.digest - other.digest) & _MASK)


def tally(ids: NDArray[np.int64]) -> Tally:
    """Count samples by their ids.

    >>> tally(np.array([3, 1])) == tally(np.array([1])) + tally(np.array([3]))
    True
    """
    return Tally(len(ids), int(hashes(_KEY, ids).sum(dtype=np.uint64)))


def tally_of_range(stop: int) -> Tally:
    """Count the samples 0 to ``stop`` - 1: 10 ns each."""
    total = Tally()
    for start in range(0, stop, _CHUNK):
        total += tally(np.arange(start, min(start + _CHUNK, stop)))
    return total


@dataclass(frozen=True, slots=True)
class EpochProof:
    """What became of an epoch.

    Attributes:
        epoch: Which.
        delivered: By all ranks that are known.
        expected: Of all ranks together.
        ranks: What each rank delivered; of ranks that are not known, None.
        finished: The epoch was taken to its end.
        from_position: Where this run took it up: 0, or the position of a state.
        samples: Of the dataset; ids are below.
    """

    epoch: int
    delivered: Tally
    expected: Tally
    ranks: tuple[Tally | None, ...]
    finished: bool
    from_position: int
    samples: int

    @property
    def ok(self) -> bool | None:
        """Whether each sample was delivered once; None as long as that cannot be known."""
        return self.delivered == self.expected if self.finished and None not in self.ranks else None

    def __str__(self) -> str:
        part = f" from position {self.from_position:,} on" if self.from_position else ""
        start = f"epoch {self.epoch}{part}: {self.delivered.samples:,}"
        if not self.finished:
            return f"{start} samples so far, the epoch is not over"
        unknown = sum(rank is None for rank in self.ranks)
        if unknown:
            return f"{start} samples here; {unknown} of {len(self.ranks)} ranks have not told theirs"
        return f"{start} samples, each once" if self.ok else f"{start} samples of {self._trouble()}"

    def _trouble(self) -> str:
        more = self.delivered.samples - self.expected.samples
        words = [
            f"{self.expected.samples:,}",
            f"{abs(more):,} {'too many' if more > 0 else 'missing'}" if more else "some came twice, others not at all",
        ]
        if abs(more) == 1 and (single := self._single()) is not None:
            words.append(f"namely sample {single}")
        same = _same([rank for rank in self.ranks if rank])
        if same:
            words.append(
                f"ranks {' and '.join(map(str, same))} delivered the same samples: each process needs a rank of its own"
            )
        return "; ".join(words)

    def _single(self) -> int | None:
        """Find the one sample too many, or too few."""
        missing = (self.expected - self.delivered).digest
        wanted = {np.uint64(missing), np.uint64(-missing & _MASK)}
        for start in range(0, min(self.samples, _MOST_SEARCHED), _CHUNK):
            found = hashes(_KEY, np.arange(start, min(start + _CHUNK, self.samples)))
            places = np.flatnonzero(np.isin(found, list(wanted)))
            if len(places):
                return start + int(places[0])
        return None


def _same(ranks: Sequence[Tally]) -> list[int]:
    """Return the first ranks that delivered one and the same."""
    by_tally = defaultdict(list)
    for number, part in enumerate(ranks):
        if part.samples:
            by_tally[part].append(number)
    return next((numbers for numbers in by_tally.values() if len(numbers) > 1), [])
