"""Samples drawn by weights from a position of a run on: the same sequence on any number of ranks. No I/O.

With weights, a run continues through the plain orders of its epochs, one **pass** after another, and draws only some of
the samples that it comes to. With the weight f of a sample, and the largest weight F of its dataset, its **rate** is
g = f / F, from 0 to 1. A sample with the phase x, in [0, 1), is drawn in pass p, which is that through the plain order
of epoch p, if a whole number is in (x + p g, x + (p + 1) g]. So:

* In any number of passes, the draws of a sample differ from their number times g by less than 1, and those of two
  samples of one rate by at most 1. A sample is drawn at most once per pass.
* The samples of a class have the phases 0 / n, 1 / n, ... (n - 1) / n in a mixed order. The sum of floor(k / n + x)
  over k = 0 ... n - 1 is floor(n x) (Hermite), so in P whole passes from pass p on, a class with one rate is drawn
  floor(n (p + P) g) - floor(n p g) times.
* Within a pass, blocks come in the shuffled order of the plain epoch, so a class is drawn as evenly as it is spread
  there. Between neighbours in stored order the draws are spread evenly too: their phases are multiples of a number near
  the golden ratio.

A change continues at the next sample of the sequence, in the same pass. So a change to the same weights changes
nothing, and frequent changes leave out no sample. If all weights are equal, the sequence is that of the plain epochs.
Rates and phases are whole numbers of `UNIT`, so that the sums are exact.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.lru_cache import LRUCache
from wds_tools.order.keyed_random import key_of
from wds_tools.order.selection import PART, Selection, within_class
from wds_tools.order.shares import Ints, Part, Pattern

UNIT = 1 << 31
"""The rate of a sample that is drawn in every pass."""

_IN_TABLE = 8  # conditions whose products are computed once
_CHUNK = 1 << 16  # samples of a pass that are tested at a time
_KEPT_CHUNKS = 8
_PART = 1 << 16  # samples whose rates are computed at a time
_GOLDEN = (math.sqrt(5) - 1) / 2
_STRIDE = round(UNIT * _GOLDEN) | 1  # odd, so that UNIT consecutive ids have different phases

ScanPosition = tuple[int, int]
"""Epoch whose plain order is read, and a position in it."""

SourcePosition = tuple[int, int, int]
"""How far a run is in a dataset: the epoch whose plain order is read, the position in it, and `Pattern.lag`."""

Marks = tuple[tuple[int, int], ...]
"""For each dataset, see `Chain.mark`."""


class Scan(Protocol):
    """The plain orders of one dataset; see `PlainOrder`."""

    samples: int
    selection: Selection | None
    window: int
    block: int
    lanes: int

    def block_of(self, ids: Ints) -> tuple[Ints, Ints]:
        """Return shard number and block number of each id."""

    def slice(self, epoch: int, start: int, stop: int) -> Part:
        """Return the ids and lanes at positions ``start`` to ``stop``."""


@dataclass(frozen=True, slots=True)
class Phases:
    """What the draws of a dataset need to know of each sample, whatever the weights are.

    Attributes:
        selected: Whole numbers [n], ids of the selected samples, ascending; or all of them.
        group: Signed integers [stored], class number of each sample plus 1, and 0 for samples without a class;
            None if classes do not matter.
        phase: uint32 [stored], phase of each sample in units of 1 / `UNIT`; None computes them from the ids.
        counts: int64 [groups], number of selected samples of each group.
        offset: Phase of the sample 0, if phases are computed.
    """

    selected: Ints | slice
    group: NDArray[np.signedinteger] | None
    phase: NDArray[np.integer] | None
    counts: Ints
    offset: int = 0

    def at(self, ids: Ints) -> NDArray[np.uint64]:
        """Return the phases of samples: uint64 [n]."""
        if self.phase is None:
            return (ids.astype(np.uint64) * np.uint64(_STRIDE) + np.uint64(self.offset)) % np.uint64(UNIT)
        return self.phase[ids].astype(np.uint64)

    @classmethod
    def by_id(cls, stored: int, selected: Ints | None, seed: int) -> Phases:
        """Return phases that do not depend on classes, and take no memory; for weights of single samples."""
        ids: Ints | slice = slice(None) if selected is None else np.unique(selected)
        count = stored if isinstance(ids, slice) else len(ids)
        return cls(ids, None, None, np.array([count]), key_of("phases", seed) % UNIT)

    @classmethod
    def of(cls, labels: Ints, selected: Ints | None, seed: int) -> Phases:
        """Return the phases of a dataset."""
        highest = int(labels.max(initial=-1)) + 1
        kinds: tuple[type[np.signedinteger], ...] = (np.int8, np.int16, np.int32, np.int64)
        group = np.empty(len(labels), next(kind for kind in kinds if highest <= np.iinfo(kind).max))
        for start in range(0, len(labels), PART):
            group[start : start + PART] = np.maximum(labels[start : start + PART], -1) + 1
        ids = slice(None) if selected is None else np.unique(selected)
        counts = np.zeros(int(group.max(initial=0)) + 1, np.int64)
        for rows in _parts_of(ids, len(group)):
            counts += np.bincount(group[rows], minlength=len(counts))
        divisors = np.maximum(counts, 1)
        steps = np.array([_coprime_near(count) for count in divisors.tolist()])
        starts = np.array([key_of("phases", seed, index) % count for index, count in enumerate(divisors.tolist())])
        phase, seen = np.zeros(len(group), np.uint32), np.zeros_like(counts)
        for rows in _parts_of(ids, len(group)):
            own = group[rows]
            divisor = divisors[own]
            turns = (within_class(own, seen) * steps[own] + starts[own]) % divisor
            phase[rows] = turns * UNIT // divisor
        return cls(ids, group, phase, counts)


class Factors:
    """Factors of single samples, of which at most one array takes memory for each sample.

    Args:
        own: float32 [stored], factor of each sample; None for 1.
        conditions: Which samples meet each condition, as `packed_bits`, and the factor of these samples.
        first: Id of the first sample, by which the bits are found.
        stored: Number of samples.
    """

    def __init__(
        self,
        own: NDArray[np.float32] | None,
        conditions: Sequence[tuple[NDArray[np.uint8], float]] = (),
        *,
        first: int = 0,
        stored: int | None = None,
    ) -> None:
        assert own is not None or stored is not None
        self._own, self._conditions, self._first = own, conditions, first
        self._stored = len(own) if own is not None else stored or 0

    def __len__(self) -> int:
        return self._stored

    def of_dataset(self, first: int, last: int) -> Factors:
        """Return the factors of the samples of one dataset, of those of all datasets."""
        own = None if self._own is None else self._own[first:last]
        return Factors(own, self._conditions, first=first, stored=last - first)

    def __getitem__(self, ids: Ints | slice) -> NDArray[np.float32]:
        """Return the factors of samples: float32 [n]; infinite for a product that is too large."""
        if self._own is None and 0 < len(self._conditions) <= _IN_TABLE:
            row: NDArray[np.uint8] = np.zeros(1, np.uint8)
            for index, (bits, _) in enumerate(self._conditions):
                row = row | np.left_shift(self._meet(bits, ids).view(np.uint8), np.uint8(index))
            return np.take(self._table, row)
        factors = self._of_array(ids)
        for product in self.products(ids):
            factors = product
        with np.errstate(over="ignore"):
            return factors.astype(np.float32, copy=False)

    @cached_property
    def _table(self) -> NDArray[np.float32]:
        """Factors of samples by the conditions that they meet, a bit for each: float32 [2 ^ conditions]."""
        rows = np.arange(1 << len(self._conditions))
        bits = [packed_bits(np.flatnonzero(rows >> n & 1), len(rows)) for n in range(len(self._conditions))]
        alike = Factors(np.ones(len(rows), np.float32), list(zip(bits, (f for _, f in self._conditions), strict=True)))
        return alike[:]

    def products(self, ids: Ints | slice) -> Iterator[NDArray[Any]]:
        """Yield the factors of samples after each condition, before they are rounded: float64 [n]."""
        products = self._of_array(ids)
        for bits, factor in self._conditions:
            meets = self._meet(bits, ids) & np.isfinite(products)  # infinite times 0 stays infinite, which is refused
            product = np.where(meets, np.where(meets, products, 0).astype(np.float64) * factor, products)
            yield product
            with np.errstate(over="ignore"):
                products = product.astype(np.float32)

    def _of_array(self, ids: Ints | slice) -> NDArray[np.float32]:
        if self._own is not None:
            return self._own[ids]
        return np.ones(len(range(self._stored)[ids]) if isinstance(ids, slice) else len(ids), np.float32)

    def _meet(self, bits: NDArray[np.uint8], ids: Ints | slice) -> NDArray[np.bool_]:
        """Return which samples meet a condition: bool [n]."""
        meets: NDArray[np.bool_]
        if isinstance(ids, slice):
            rows = range(self._first, self._first + self._stored)[ids]
            start = rows.start - rows.start % 8
            meets = np.unpackbits(bits[start // 8 : -(-rows.stop // 8)], axis=0, bitorder="little").view(np.bool_)
            return meets[rows.start - start : rows.stop - start]
        indexes = ids + self._first
        meets = (bits[indexes >> 3] >> (indexes & 7).astype(np.uint8) & 1).astype(np.bool_)
        return meets

    @property
    def bytes(self) -> int:
        """Memory that only these factors need; 0 for a file that is mapped."""
        return 0 if self._own is None or isinstance(self._own, np.memmap) else self._own.nbytes


def packed_bits(ids: Ints, stored: int) -> NDArray[np.uint8]:
    """Return which of all samples are in an ascending list, as one bit each: uint8 [stored / 8, rounded up]."""
    parts = [np.empty(0, np.uint8)]
    for start in range(0, stored, PART):
        is_in = np.zeros(min(PART, stored - start), np.bool_)
        kind = ids.dtype.type  # of other types, all ids are copied
        first = np.searchsorted(ids, kind(start))
        last = np.searchsorted(ids, kind(start + len(is_in) - 1), side="right")
        is_in[ids[first:last] - start] = True
        parts.append(np.packbits(is_in, bitorder="little"))
    return np.concatenate(parts)


def _parts_of(ids: Ints | slice, stored: int) -> Iterator[Ints | slice]:
    """Yield some ids part by part."""
    for start in range(0, stored if isinstance(ids, slice) else len(ids), PART):
        part = slice(start, start + PART)
        yield part if isinstance(ids, slice) else ids[part]


def _coprime_near(count: int) -> int:
    """Return a number near the golden ratio of ``count`` that has no divisor in common with it."""
    return next(n for n in range(max(1, round(count * _GOLDEN)), 2 * count + 2) if math.gcd(n, count) == 1)


class Rates:
    """Which samples of a dataset each pass draws.

    Raises:
        OptionError: No sample has a factor above 0, or a product of factors is too large.
    """

    def __init__(
        self,
        phases: Phases,
        by_group: NDArray[np.float64] | None = None,
        by_sample: Factors | None = None,
        left_out: Sequence[int] | Ints = (),
        name: str = "the dataset",
    ) -> None:
        self._phases = phases
        self._left_out = np.array(left_out, np.int64)
        factors = np.ones(len(phases.counts)) if by_group is None else by_group
        self._by_sample, self._factors = by_sample, factors
        if by_sample is None:
            assert phases.group is not None
            left = np.isin(self._left_out, phases.selected) if isinstance(phases.selected, np.ndarray) else slice(None)
            removed = np.bincount(phases.group[self._left_out[left]], minlength=len(factors))
            self._most = float(factors[phases.counts > removed].max(initial=0.0))
        else:
            self._most = self._largest_factor(len(by_sample))
        if not np.isfinite(self._most):
            raise OptionError(
                f"the factors of a sample of {name} multiply to more than {np.finfo(np.float32).max:.2g}: make the "
                "largest factors smaller; only their ratios matter"
            )
        if not self._most > 0:
            raise OptionError(
                f"the weights leave no sample to draw: all samples of {name} have weight 0; change a weight, or, in a "
                "Mixture, give that dataset the share 0 with sources="
            )
        self._by_group = _in_units(factors, self._most).astype(np.uint64)

    def _largest_factor(self, stored: int) -> float:
        """Return the largest factor of a sample. Parts that stay in the cache of a core are faster."""
        selected, left_out = self._phases.selected, np.sort(self._left_out)
        most = 0.0
        for start in range(0, stored, _PART):
            stop = min(start + _PART, stored)
            factors = self._factors_of(slice(start, stop))
            lost = left_out[slice(*np.searchsorted(left_out, (start, stop)))]
            if len(lost):
                factors = factors.copy()
                factors[lost - start] = 0
            if isinstance(selected, np.ndarray):
                own = np.searchsorted(
                    selected, np.array((start, stop), selected.dtype)
                )  # of other types, all are copied
                factors = factors[selected[slice(*own)] - start]
            most = max(most, float(factors.max(initial=0.0)))
        return most

    def _factors_of(self, ids: Ints | slice) -> NDArray[np.floating]:
        """Return the factors of samples, if there are weights of single samples: float [n]."""
        assert self._by_sample is not None
        group = self._phases.group
        own = self._by_sample[ids]
        with np.errstate(over="ignore", invalid="ignore"):
            return np.asarray(own if group is None else own * self._factors[group[ids]])

    @property
    def bytes(self) -> int:
        """Memory that only these rates need; 0 for the weights of classes and conditions."""
        return 0 if self._by_sample is None else self._by_sample.bytes

    @classmethod
    def without(cls, left_out: Ints, stored: int) -> Rates:
        """Return rates that draw all samples equally often, without some of them."""
        zeros = np.zeros(stored, np.int8)
        return cls(Phases(slice(None), zeros, zeros, np.array([stored])), left_out=left_out)

    def of(self, ids: Ints) -> NDArray[np.float64]:
        """Return the rates of samples, from 0 to 1: float64 [n]."""
        rates = self._in_units(ids)[0] / UNIT
        return np.where(np.isin(ids, self._left_out), 0, rates)

    def drawn(self, ids: Ints, pass_: int) -> NDArray[np.bool_]:
        """Return which samples a pass draws: bool [n]."""
        rate, advance = self._in_units(ids, pass_)
        draws: NDArray[np.bool_] = (self._phases.at(ids) + advance) % np.uint64(UNIT) + rate >= UNIT
        return draws & ~np.isin(ids, self._left_out) if len(self._left_out) else draws

    def _in_units(self, ids: Ints, pass_: int = 0) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the rates of samples, and their sums over the passes before one: uint64 [n] each."""
        if self._by_sample is None:
            assert self._phases.group is not None
            group = self._phases.group[ids]
            return self._by_group[group], (self._by_group * np.uint64(pass_) % np.uint64(UNIT))[group]
        rate = _in_units(self._factors_of(ids), self._most).astype(np.uint64)
        return rate, rate * np.uint64(pass_)


Draws = tuple[tuple[int, ...], tuple[Rates | None, ...]]
"""Share of each dataset as a whole number, and which of its samples are drawn; None for all."""


def are_drawn(draws: Draws, ids: Ints, first_ids: Sequence[int]) -> NDArray[np.bool_]:
    """Return which samples are drawn at all: bool [n]."""
    drawn = np.zeros(len(ids), np.bool_)
    for dataset, (share, rates) in enumerate(zip(*draws, strict=True)):
        first, last = first_ids[dataset : dataset + 2]
        own = (ids >= first) & (ids < last)
        if share:
            drawn[own] = True if rates is None else rates.of(ids[own] - first) > 0
    return drawn


def _in_units(factors: NDArray[np.floating], most: float) -> NDArray[np.uint32]:
    """Return rates as whole numbers; one above 0 stays above 0."""
    rates = np.minimum(factors / most, 1)
    rates *= UNIT
    units: NDArray[np.uint32] = np.rint(rates, out=rates).astype(np.uint32)
    units[(units == 0) & (factors > 0)] = 1
    return units


class Chain:
    """The endless sequence of the samples that are drawn from one dataset.

    The draws of a part of a pass are known only after it was tested. So the numbers of rows are learned from the start
    on, and a start in the middle is faster with a `mark`.
    """

    def __init__(self, scan: Scan, rates: Rates | None, start: ScanPosition) -> None:
        self._scan, self._rates, self._start = scan, rates, start
        self.set_mark((0, 0))
        self._chunks = LRUCache[int, tuple[Part, Ints]](max_items=_KEPT_CHUNKS)

    def set_mark(self, mark: tuple[int, int]) -> None:
        """Take the number of rows before a chunk from a state."""
        self._first, self._rows = mark[0], [mark[1]]  # rows before each chunk from the first known one on

    @cached_property
    def _chunks_of_start(self) -> int:
        return -(-(self._scan.samples - self._start[1]) // _CHUNK)

    def _bounds(self, chunk: int) -> tuple[int, int, int]:
        """Return the pass of a chunk, and its first and last position in it."""
        if chunk < self._chunks_of_start:
            start, turn = self._start[1] + chunk * _CHUNK, self._start[0]
        else:
            per_pass = -(-self._scan.samples // _CHUNK)
            turn, row = divmod(chunk - self._chunks_of_start, per_pass)
            start, turn = row * _CHUNK, self._start[0] + turn + 1
        return turn, start, min(start + _CHUNK, self._scan.samples)

    def _chunk(self, index: int) -> tuple[Part, Ints]:
        """Return ids and lanes of the samples that are drawn in a chunk, and their positions in it."""
        cached = self._chunks.get(index)
        if cached is not None:
            return cached
        turn, start, stop = self._bounds(index)
        ids, lanes = self._scan.slice(turn, start, stop)
        rows = np.arange(len(ids)) if self._rates is None else np.flatnonzero(self._rates.drawn(ids, turn))
        result = (ids[rows], lanes[rows]), rows
        self._chunks.put(index, result)
        return result

    def _chunk_of(self, row: int) -> tuple[int, int]:
        """Return the chunk that has a row, and the number of rows before it."""
        if row < self._rows[0]:
            self.set_mark((0, 0))
        while self._rows[-1] <= row:
            self._rows.append(self._rows[-1] + len(self._chunk(self._first + len(self._rows) - 1)[1]))
        index = bisect_right(self._rows, row) - 1
        return self._first + index, self._rows[index]

    def slice(self, start: int, stop: int) -> Part:
        """Return the ids and lanes in rows ``start`` to ``stop``: int64 and int16 [stop - start]."""
        parts = [part for _, part in self._parts(start, stop)]
        ids, lanes = zip(*parts, strict=True) if parts else ((np.empty(0, np.int64),), (np.empty(0, np.int16),))
        return np.concatenate(ids), np.concatenate(lanes)

    def passes(self, start: int, stop: int) -> Ints:
        """Return the pass of the rows ``start`` to ``stop``: int64 [stop - start]."""
        passes = [np.full(len(ids), pass_) for pass_, (ids, _) in self._parts(start, stop)]
        return np.concatenate([np.empty(0, np.int64), *passes])

    def _parts(self, start: int, stop: int) -> Iterator[tuple[int, Part]]:
        """Yield the rows ``start`` to ``stop`` by chunk, with the pass of each."""
        while start < stop:
            chunk, before = self._chunk_of(start)
            (ids, lanes), _ = self._chunk(chunk)
            first, last = start - before, stop - before
            yield self._bounds(chunk)[0], (ids[first:last], lanes[first:last])
            start = before + len(ids)

    def scan_position(self, row: int) -> ScanPosition:
        """Return where the plain orders have the sample of a row."""
        chunk, before = self._chunk_of(row)
        turn, start, _ = self._bounds(chunk)
        return turn, start + int(self._chunk(chunk)[1][row - before])

    def mark(self, row: int) -> tuple[int, int]:
        """Return the chunk that has a row and the number of rows before it, with which a later start is fast."""
        return self._chunk_of(row)


class Regime:
    """The endless sequence of the samples that are drawn with one set of weights.

    Args:
        draws: How samples are drawn.
        chains: The sequences of the datasets.
        first_ids: Id of the first sample of each dataset.
        lanes: Number of lanes.
        drawn_before: Samples that were drawn before in the epoch in which the sequence begins.
        lags: How far each dataset is behind its share, see `Pattern.lag`.
        unit: Consecutive rows that are of one dataset.
    """

    def __init__(
        self,
        draws: Draws,
        chains: Sequence[Chain],
        first_ids: Sequence[int],
        lanes: int,
        drawn_before: int,
        lags: Sequence[int],
        unit: int = 1,
    ) -> None:
        self.draws, self.drawn_before = draws, drawn_before
        self.pattern = Pattern(draws[0], unit, lags)
        self._chains, self._first_ids, self._lanes = chains, first_ids, lanes

    @property
    def bytes(self) -> int:
        """Memory of its weights of samples."""
        return sum(rates.bytes for rates in self.draws[1] if rates)

    def are_drawn(self, ids: Ints) -> NDArray[np.bool_]:
        """Return which samples are drawn at all: bool [n]."""
        return are_drawn(self.draws, ids, self._first_ids)

    def slice(self, start: int, stop: int) -> Part:
        """Return the ids and lanes in rows ``start`` to ``stop``: int64 and int16 [stop - start]."""
        return self.pattern.merged(start, stop, self._lanes, self._slice_part)

    def _slice_part(self, dataset: int, start: int, stop: int) -> Part:
        ids, lanes = self._chains[dataset].slice(start, stop)
        return ids + self._first_ids[dataset], lanes

    def passes(self, start: int, stop: int) -> Ints:
        """Return the pass through its dataset of the rows ``start`` to ``stop``: int64 [stop - start]."""
        return self.pattern.merged(start, stop, 1, self._passes_of_part)[0]

    def _passes_of_part(self, dataset: int, start: int, stop: int) -> Part:
        passes = self._chains[dataset].passes(start, stop)
        return passes, np.zeros(len(passes), np.int16)

    def source_positions(self, row: int) -> tuple[SourcePosition, ...]:
        """Return where the plain orders of each dataset have its next sample, and its lag."""
        return tuple(
            (*chain.scan_position(self.pattern.count_before(dataset, row)), self.pattern.lag(dataset, row))
            for dataset, chain in enumerate(self._chains)
        )

    def marks(self, row: int) -> Marks:
        """Return the mark of each dataset, see `Chain.mark`."""
        return tuple(chain.mark(self.pattern.count_before(dataset, row)) for dataset, chain in enumerate(self._chains))

    def set_marks(self, marks: Sequence[tuple[int, int]]) -> None:
        """Take the marks of a state, so that nothing before them has to be computed."""
        for chain, mark in zip(self._chains, marks, strict=True):
            chain.set_mark(mark)
