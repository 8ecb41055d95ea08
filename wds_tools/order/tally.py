"""The proof that an epoch delivered each sample once over all ranks. Arithmetic on sums of hashes, no I/O.

Each rank adds up a 64-bit hash of every sample id that it delivers. The sum does not depend on the
order. The sum over all ranks must equal the sum for the ids 0 to n - 1, which is computed
independently. A missing or repeated sample changes the sum; the probability that errors cancel out
is 2**-64.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wds_tools.order.changes import Entries
from wds_tools.order.keyed_random import hashes, key_of
from wds_tools.wording import counted

_KEY = key_of("epoch proof")
_CHUNK = 1 << 20
_MAX_SEARCHED = 50_000_000  # ids searched for the one that is missing or repeated; takes about a second
_MASK = 2**64 - 1
_MAX_CLASSES = 10  # classes that the text of a segment lists


@dataclass(frozen=True, slots=True)
class Tally:
    """Number of samples, and sum of their hashes."""

    samples: int = 0
    digest: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.samples + other.samples, (self.digest + other.digest) & _MASK)

    def __mul__(self, times: int) -> Tally:
        return Tally(self.samples * times, self.digest * times & _MASK)

    def __sub__(self, other: Tally) -> Tally:
        return Tally(self.samples - other.samples, (self.digest - other.digest) & _MASK)


def tally(ids: NDArray[np.int64]) -> Tally:
    """Return the tally of sample ids: int64 [n].

    >>> tally(np.array([3, 1])) == tally(np.array([1])) + tally(np.array([3]))
    True
    """
    return Tally(len(ids), int(hashes(_KEY, ids).sum(dtype=np.uint64)))


def tally_of_range(stop: int) -> Tally:
    """Return the tally of the ids 0 to ``stop`` - 1; takes about 10 ns per id."""
    total = Tally()
    for start in range(0, stop, _CHUNK):
        total += tally(np.arange(start, min(start + _CHUNK, stop)))
    return total


@dataclass(frozen=True, slots=True)
class Report:
    """What one process delivered in an epoch."""

    rank: int
    world_size: int
    delivered: Tally
    replaced: Tally = Tally()

    def to_text(self) -> str:
        """Encode the report as text for other processes."""
        tallies = (self.delivered.samples, self.delivered.digest, self.replaced.samples, self.replaced.digest)
        return " ".join(map(str, (self.rank, self.world_size, *tallies)))

    @classmethod
    def from_text(cls, text: str) -> Report:
        """Decode the result of `to_text`."""
        numbers = list(map(int, text.split()))
        return cls(numbers[0], numbers[1], Tally(*numbers[2:4]), Tally(*numbers[4:]))


@dataclass(frozen=True, slots=True)
class Count:
    """Samples of a class or of a dataset in a segment.

    Attributes:
        promised: Number of samples by the weights.
        delivered: Number of samples in the order, which the ranks delivered if `EpochProof.ok`.
    """

    promised: float
    delivered: int

    def __str__(self) -> str:
        return f"{self.delivered:,} of {self.promised:,.1f}"


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of an epoch that were drawn by the same weights.

    Attributes:
        start: Position of the first row.
        stop: Position after the last row.
        weights: The weights; None for rows without weights.
        classes: Counts by class.
        sources: Counts by dataset of the `Mixture`, or of the only dataset.
        least: How often the rarest sample with a weight above 0 was delivered.
        most: How often the most frequent sample was delivered.
    """

    start: int
    stop: int
    weights: Entries | None
    classes: dict[str, Count]
    sources: tuple[Count, ...]
    least: int
    most: int

    def __str__(self) -> str:
        shown, more = list(self.classes.items()), len(self.classes) - _MAX_CLASSES
        if more > 0:
            shown = sorted(shown, key=lambda item: -abs(item[1].delivered - item[1].promised))[:_MAX_CLASSES]
        parts = [f"{name} {count}" for name, count in shown]
        if more > 0:
            parts.append(f"{more:,} other classes, closer to their weights")
        if len(self.sources) > 1:
            parts += [f"dataset {dataset} {count}" for dataset, count in enumerate(self.sources)]
        repeats = f"each sample {self.least} to {self.most} times"
        return f"positions {self.start:,} to {self.stop:,}: {', '.join([*parts, repeats])}"


@dataclass(frozen=True, slots=True)
class EpochProof:
    """Comparison of the samples that an epoch should deliver with the samples that it delivered.

    Attributes:
        epoch: Zero-based epoch.
        expected: Tally of the samples that all ranks together should deliver.
        reports: Report of each process; None for a process that has not reported.
        finished: Whether the epoch has ended.
        from_position: Position at which this run started: 0, or the position of a state.
        samples: Number of samples of the dataset; all ids are smaller.
        once: Whether each sample should be delivered once; False for selections that repeat samples.
        segments: If the epoch has weights, how often each class and dataset came between two changes.
    """

    epoch: int
    expected: Tally
    reports: tuple[Report | None, ...]
    finished: bool
    from_position: int
    samples: int
    once: bool = True
    segments: tuple[Segment, ...] = ()

    @property
    def delivered(self) -> Tally:
        """Tally of the samples that all processes with a report delivered."""
        return sum((report.delivered for report in self._known), Tally())

    @property
    def replaced(self) -> Tally:
        """Tally of the unreadable samples that were replaced (``on_error="replace"``)."""
        return sum((report.replaced for report in self._known), Tally())

    @property
    def copies(self) -> int:
        """Number of processes per rank; more than 1 with tensor parallelism, for example."""
        return max(1, len(self.reports) // self._known[0].world_size)

    @property
    def ok(self) -> bool | None:
        """Whether each sample was delivered or replaced as often as expected; None if not yet known."""
        if not self.finished or None in self.reports:
            return None
        return _disagreement(self._known) is None and self.delivered + self.replaced == self.expected * self.copies

    @property
    def _known(self) -> list[Report]:
        return [report for report in self.reports if report]

    def __str__(self) -> str:
        part = f" from position {self.from_position:,} on" if self.from_position else ""
        count = self.delivered.samples // (self.copies if self.ok else 1)
        start = f"epoch {self.epoch}{part}: {counted(count, 'sample')}"
        if not self.finished:
            return f"{start} so far, the epoch is not over"
        unknown = self.reports.count(None)
        if unknown:
            return f"{start} counted; {unknown} of {len(self.reports)} ranks have not reported"
        if not self.ok:
            return f"{start} of {self._describe_mismatch()}"
        often = "each once" if self.once else "each as often as requested"
        groups = f" by each of {self.copies} groups of {self._known[0].world_size} rank(s)" if self.copies > 1 else ""
        replaced = f"; {self.replaced.samples:,} unreadable and replaced" if self.replaced.samples else ""
        return "\n  ".join([f"{start}, {often}{groups}{replaced}", *map(str, self.segments)])

    def _describe_mismatch(self) -> str:
        expected = self.expected * self.copies
        excess = self.delivered.samples + self.replaced.samples - expected.samples
        unequal = "some were repeated, others are missing" if self.once else "some repeat too often, others too rarely"
        count = f"{abs(excess):,} {'too many' if excess > 0 else 'missing'}" if excess else unequal
        facts = [f"{expected.samples:,}", count]
        if disagreement := _disagreement(self._known):
            return "; ".join([f"{self.expected.samples:,}", disagreement])
        if abs(excess) == 1 and (sample := self._find_sample(expected)) is not None:
            facts.append(f"namely sample {sample}")
        equal = _ranks_with_equal_tallies([report.delivered for report in self._known])
        if equal and self.copies == 1:
            facts.append(
                f"ranks {' and '.join(map(str, equal))} delivered the same samples: each process needs its own rank"
            )
        return "; ".join(facts)

    def _find_sample(self, expected: Tally) -> int | None:
        """Return the id of the only missing or repeated sample, or None if it is not found."""
        missing = (expected - self.delivered - self.replaced).digest
        sums = {np.uint64(missing), np.uint64(-missing & _MASK)}
        for start in range(0, min(self.samples, _MAX_SEARCHED), _CHUNK):
            values = hashes(_KEY, np.arange(start, min(start + _CHUNK, self.samples)))
            matches = np.flatnonzero(np.isin(values, list(sums)))
            if len(matches):
                return start + int(matches[0])
        return None


def _disagreement(reports: Sequence[Report]) -> str | None:
    """Describe how the reports contradict each other about ranks; None if they agree."""
    sizes = {report.world_size for report in reports}
    if len(sizes) > 1:
        claims = ", ".join(f"process {i} read as rank {r.rank} of {r.world_size}" for i, r in enumerate(reports[:8]))
        return f"the processes do not agree on the number of ranks: {claims}"
    counts = Counter(report.rank for report in reports)
    if len({counts[rank] for rank in range(sizes.pop())}) > 1:
        claims = ", ".join(f"{count} read as rank {rank}" for rank, count in sorted(counts.items())[:8])
        return f"of {len(reports)} processes, {claims}: all ranks must have the same number of processes"
    return None


def _ranks_with_equal_tallies(parts: Sequence[Tally]) -> list[int]:
    """Return the first ranks that delivered the same samples, empty if there are none."""
    by_tally = defaultdict(list)
    for rank, part in enumerate(parts):
        if part.samples:
            by_tally[part].append(rank)
    return next((ranks for ranks in by_tally.values() if len(ranks) > 1), [])
