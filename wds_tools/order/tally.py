"""The proof that an epoch was delivered: each sample once, over all ranks. Arithmetic on sums of hashes.

Each rank adds up a 64-bit hash of every sample id that it hands to training. Sums do not depend on order, so those of
all ranks together must equal that of the ids 0 to n - 1, which nobody needs to deliver to know. A sample that is
missing, or comes twice, changes the sum; that two errors cancel has a chance of one in 2**64.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wds_tools.order.keyed_random import hashes, key_of

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

    def __mul__(self, times: int) -> Tally:
        return Tally(self.samples * times, self.digest * times & _MASK)

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
class Report:
    """What one process tells of an epoch.

    Attributes:
        rank: Which rank it read as.
        world_size: Of how many.
        delivered: What it handed to training.
        replaced: What it could not read; other samples took its place.
    """

    rank: int
    world_size: int
    delivered: Tally
    replaced: Tally = Tally()

    def to_text(self) -> str:
        """Return the report as text for the other processes."""
        tallies = (self.delivered.samples, self.delivered.digest, self.replaced.samples, self.replaced.digest)
        return " ".join(map(str, (self.rank, self.world_size, *tallies)))

    @classmethod
    def from_text(cls, text: str) -> Report:
        """Read what `to_text` wrote."""
        numbers = list(map(int, text.split()))
        return cls(numbers[0], numbers[1], Tally(*numbers[2:4]), Tally(*numbers[4:]))


@dataclass(frozen=True, slots=True)
class EpochProof:
    """What became of an epoch.

    Attributes:
        epoch: Which.
        expected: What all ranks together should deliver.
        reports: What each process delivered, and as which rank; None for processes that are not known.
        finished: The epoch was taken to its end.
        from_position: Where this run took it up: 0, or the position of a state.
        samples: Of the dataset; ids are below.
        once: No sample was to come twice; False for choices that repeat samples.
    """

    epoch: int
    expected: Tally
    reports: tuple[Report | None, ...]
    finished: bool
    from_position: int
    samples: int
    once: bool = True

    @property
    def delivered(self) -> Tally:
        """What all processes that are known delivered."""
        return sum((report.delivered for report in self._known), Tally())

    @property
    def replaced(self) -> Tally:
        """Unreadable samples that were replaced (``on_error="replace"``)."""
        return sum((report.replaced for report in self._known), Tally())

    @property
    def copies(self) -> int:
        """How many processes read as the same rank, as those do that are tensor-parallel to each other."""
        return max(1, len(self.reports) // self._known[0].world_size)

    @property
    def ok(self) -> bool | None:
        """Whether each sample was delivered or replaced as often as it should be; None as long as nobody can know."""
        if not self.finished or None in self.reports:
            return None
        return _disagreement(self._known) is None and self.delivered + self.replaced == self.expected * self.copies

    @property
    def _known(self) -> list[Report]:
        return [report for report in self.reports if report]

    def __str__(self) -> str:
        part = f" from position {self.from_position:,} on" if self.from_position else ""
        start = f"epoch {self.epoch}{part}: {self.delivered.samples // (self.copies if self.ok else 1):,}"
        if not self.finished:
            return f"{start} samples so far, the epoch is not over"
        unknown = self.reports.count(None)
        if unknown:
            return f"{start} samples here; {unknown} of {len(self.reports)} ranks have not told theirs"
        if not self.ok:
            return f"{start} samples of {self._trouble()}"
        often = "each once" if self.once else "each as often as asked for"
        groups = f" by each of {self.copies} groups of {self._known[0].world_size} rank(s)" if self.copies > 1 else ""
        replaced = f"; {self.replaced.samples:,} unreadable and replaced" if self.replaced.samples else ""
        return f"{start} samples, {often}{groups}{replaced}"

    def _trouble(self) -> str:
        expected = self.expected * self.copies
        more = self.delivered.samples + self.replaced.samples - expected.samples
        mixed_up = "some came twice, others not at all" if self.once else "some came too often, others too rarely"
        count = f"{abs(more):,} {'too many' if more > 0 else 'missing'}" if more else mixed_up
        words = [f"{expected.samples:,}", count]
        if disagreement := _disagreement(self._known):
            return "; ".join([f"{self.expected.samples:,}", disagreement])
        if abs(more) == 1 and (single := self._single(expected)) is not None:
            words.append(f"namely sample {single}")
        same = _same([report.delivered for report in self._known])
        if same and self.copies == 1:
            words.append(
                f"ranks {' and '.join(map(str, same))} delivered the same samples: each process needs a rank of its own"
            )
        return "; ".join(words)

    def _single(self, expected: Tally) -> int | None:
        """Find the one sample too many, or too few."""
        missing = (expected - self.delivered - self.replaced).digest
        wanted = {np.uint64(missing), np.uint64(-missing & _MASK)}
        for start in range(0, min(self.samples, _MOST_SEARCHED), _CHUNK):
            found = hashes(_KEY, np.arange(start, min(start + _CHUNK, self.samples)))
            places = np.flatnonzero(np.isin(found, list(wanted)))
            if len(places):
                return start + int(places[0])
        return None


def _disagreement(reports: Sequence[Report]) -> str | None:
    """Tell how the processes contradict each other about who reads what; None if they do not."""
    sizes = {report.world_size for report in reports}
    if len(sizes) > 1:
        beliefs = ", ".join(f"process {i} read as rank {r.rank} of {r.world_size}" for i, r in enumerate(reports[:8]))
        return f"the processes do not agree how many ranks there are: {beliefs}"
    counts = Counter(report.rank for report in reports)
    if len({counts[rank] for rank in range(sizes.pop())}) > 1:
        claims = ", ".join(f"{count} as rank {rank}" for rank, count in sorted(counts.items())[:8])
        return f"of {len(reports)} processes {claims} read: each rank must be given equally often"
    return None


def _same(parts: Sequence[Tally]) -> list[int]:
    """Return the first ranks that delivered one and the same."""
    by_tally = defaultdict(list)
    for number, part in enumerate(parts):
        if part.samples:
            by_tally[part].append(number)
    return next((numbers for numbers in by_tally.values() if len(numbers) > 1), [])
