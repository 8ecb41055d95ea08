"""Weights that change during a run: the order against a plain oracle, and the bounds that are promised."""

import itertools
import json
from bisect import bisect_right
from collections import Counter
from dataclasses import astuple
from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import OptionError
from wds_tools.order import weights as weights_module
from wds_tools.order.buckets import BucketOrder
from wds_tools.order.changes import DatasetWeights, Weights
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.planner import Cursor, EpochOrders, EpochPlan, World
from wds_tools.order.resuming import resume, state_dict
from wds_tools.order.selection import Selection
from wds_tools.order.sequence import Order
from wds_tools.order.shares import LAG, pattern_of
from wds_tools.order.weights import UNIT, Chain, Factors, Phases, Rates, packed_bits


@pytest.fixture(autouse=True, params=[7, 1 << 16], ids=lambda n: f"chunks-of-{n}")
def chunk(request, monkeypatch):
    monkeypatch.setattr(weights_module, "_CHUNK", request.param)
    return request.param


def order_of(name, shards, *, window=20, block=3, lanes=1, every=1):
    selection = Selection(np.arange(0, sum(shards), every)) if every > 1 else None
    return Order(
        fingerprint=name, shard_samples=shards, seed=1, window=window, block=block, lanes=lanes, selection=selection
    )


def phases_of(order):
    labels = np.arange(order.identity.stored) * 7 % 5 // 2  # classes 0, 1 and 2
    return Phases.of(labels, order.selection.selected_ids if order.selection else None, 0)


def weighted(base, weights, cursor):
    return EpochOrders(base, find_weights=lambda _: weights).reweighting({"number": 0}, cursor)


def rate_of(one, sample, left_out):
    """Return the rate of a sample as a whole number of `UNIT`, by the definition."""
    factors = one.by_sample[:]
    if one.by_group is not None:
        factors = factors * one.by_group[one.phases.group]
    selected = np.arange(len(factors))[one.phases.selected]
    most = float(max(factors[other] for other in selected.tolist() if other not in left_out))
    return max(round(float(factors[sample] / factors.dtype.type(most) * UNIT)), int(factors[sample] > 0))


def draws_by_definition(scan, start, one, left_out):
    """Yield the scan position, id and lane of each sample that is drawn, one after another, without an end."""
    rates = {}
    for number in itertools.count():
        epoch, first = start[0] + number, start[1] if number == 0 else 0
        rows = zip(*(column.tolist() for column in scan.slice(epoch, first, scan.samples)), strict=True)
        for position, (sample, lane) in enumerate(rows, first):
            if sample not in rates:
                rates[sample] = UNIT if one is None else rate_of(one, sample, left_out)
            phase = int(one.phases.at(np.array([sample]))[0]) if one else 0
            before = floor(Fraction(phase + epoch * rates[sample], UNIT))
            if sample not in left_out and floor(Fraction(phase + (epoch + 1) * rates[sample], UNIT)) > before:
                yield (epoch, position), sample, lane


class Oracle:
    """A run in plain Python. It only goes forward."""

    def __init__(self, base):
        self.base, self.banned = base, set()
        self.streams = self.weights = None
        self.continue_plain(Cursor())

    def continue_plain(self, cursor):
        self.cursor, self.streams = cursor, None

    def scan_positions(self):
        if self.streams is None:
            return [one[:2] for one in self.base.source_positions(self.cursor.epoch, self.cursor.position)]
        found = []
        for number, stream in enumerate(self.streams):
            first = next(stream)
            self.streams[number] = itertools.chain([first], stream)
            found.append(first[0])
        return found

    def find_lags(self):
        """Return how far each dataset is behind the share that it was promised, in whole numbers of 1 / `LAG`."""
        if self.streams is None:
            start, shares, (epoch, position) = [0] * len(self.base.scans), self.base.shares, astuple(self.cursor)
            earlier = range(epoch) if getattr(self.base, "epoch_length", None) else ()
            parts = [self.base.ids(one, 0, self.base.samples) for one in earlier] + [self.base.ids(epoch, 0, position)]
            drawn = [bisect_right(self.base.first_ids, sample) - 1 for sample in np.concatenate(parts).tolist()]
        else:
            start, shares, drawn = self.lags, self.shares, self.drawn
        return [
            lag + round(LAG * (Fraction(len(drawn) * share, sum(shares)) - drawn.count(number)))
            for number, (lag, share) in enumerate(zip(start, shares, strict=True))
        ]

    def change(self, weights, banned, *, moved=False):
        self.lags = self.find_lags()
        if self.streams is None or self.turn or moved:
            self.starts = self.first_starts = self.scan_positions()
        else:  # a ban follows the change at this position, other weights replace it
            self.starts = self.scan_positions() if banned else self.first_starts
        self.banned |= banned
        self.weights = weights
        self.restart()

    def restart(self):
        """Go back to where the weights were changed."""
        self.turn, self.drawn, self.streams, weights = 0, [], [], self.weights
        self.shares = shares = weights.shares or self.base.shares
        self.pattern = pattern_of(shares, self.lags).tolist()
        for number, (scan, start) in enumerate(zip(self.base.scans, self.starts, strict=True)):
            first, last = self.base.first_ids[number : number + 2]
            own = {sample - first for sample in self.banned if first <= sample < last} if shares[number] else set()
            one = weights.datasets[number] if weights.datasets and shares[number] else None
            self.streams.append(draws_by_definition(scan, start, one, own))

    def rewind(self, row):
        """Go back to a row of the plain epoch, or of the sequence since the last change."""
        if self.streams is None:
            self.cursor = Cursor(self.cursor.epoch, row)
            return
        self.restart()
        for _ in range(row):
            self.next()

    def is_drawn(self, sample):
        number = bisect_right(self.base.first_ids, sample) - 1
        one = self.weights.datasets[number] if self.weights.datasets else None
        has_weight = one is None or rate_of(one, sample - self.base.first_ids[number], ()) > 0
        return sample not in self.banned and has_weight and bool((self.weights.shares or self.base.shares)[number])

    def next(self):
        return self.next_with_lane()[0]

    def next_with_lane(self):
        if self.streams is None:
            ids, lanes = self.base.slice(self.cursor.epoch, self.cursor.position, self.cursor.position + 1)
            self.cursor = Cursor(self.cursor.epoch, self.cursor.position + 1)
            return int(ids[0]), int(lanes[0])
        number = self.pattern[self.turn % len(self.pattern)]
        self.turn += 1
        self.drawn.append(number)
        _, sample, lane = next(self.streams[number])
        is_turned = number % 2 and len(self.streams) > 1
        return sample + self.base.first_ids[number], self.base.identity.lanes - 1 - lane if is_turned else lane


@st.composite
def bases(draw):
    lanes, window, block = draw(st.integers(1, 3)), draw(st.sampled_from([0, 15])), draw(st.integers(1, 5))
    options = {"lanes": lanes, "window": window, "block": block}
    shards = st.lists(st.integers(6, 15), min_size=1, max_size=3)
    one = order_of("x", draw(shards), every=draw(st.integers(1, 2)), **options)
    kind = draw(st.sampled_from(["one", "first_exhausted", "all_exhausted", "length"]))
    if kind == "one":
        return one
    parts = [one, order_of("y", draw(shards), **options)]
    length = draw(st.integers(10, 50)) if kind == "length" else None
    return MixtureOrder(parts, [2, 1], "first_exhausted" if length else kind, length)


@st.composite
def random_weights(draw, base):
    datasets = None
    if draw(st.booleans()):
        factor = st.sampled_from([0.0, 0.25, 1.0, 1.0, 3.0, 7.5])
        datasets = []
        for scan in base.scans:
            phases = phases_of(scan)
            by_group = np.array([1.0, *(draw(factor) for _ in range(2)), draw(st.sampled_from([0.5, 2.0]))])
            by_sample = np.resize(
                np.array(draw(st.sampled_from([[1], [1, 0.5, 0.01]])), np.float32), scan.identity.stored
            )
            if draw(st.booleans()):
                phases = Phases.by_id(scan.identity.stored, scan.selection and scan.selection.selected_ids, 0)
                by_group, by_sample = None, np.resize(np.array([1, 0.3, 0, 2.5], np.float32), len(by_sample))
            conditions = []
            for factor_of_condition in draw(st.lists(st.sampled_from([0.1, 3.0]), max_size=2)):
                ids = np.flatnonzero(np.random.default_rng(draw(st.integers(0, 9))).random(scan.identity.stored) < 0.5)
                conditions.append((packed_bits(ids, scan.identity.stored), factor_of_condition))
            datasets.append(DatasetWeights(phases, by_group, Factors(by_sample, conditions)))
    several = len(base.scans) > 1
    shares = draw(st.sampled_from([None, (1, 3), (2, 5), (0, 1)])) if several else None
    return Weights(shares, None if datasets is None else tuple(datasets))


@given(bases(), st.data())
@pytest.mark.torture_except("chunks-of-7")
def test_changes_bans_resumes_and_other_ranks_give_the_order_of_the_definition(base, data):
    made = []
    orders = EpochOrders(base, find_weights=lambda entries: made[entries["number"]])
    cursor, oracle = Cursor(), Oracle(base)
    for _ in range(data.draw(st.integers(1, 5))):
        for _ in range(data.draw(st.integers(0, 3))):  # some steps
            world, batch = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))
            plans = [
                EpochPlan(orders.of(cursor.epoch), cursor, World(rank, world), batch, "mask") for rank in range(world)
            ]
            steps = [plan.step(0) for plan in plans]
            rows = sorted(
                row for one in steps for row in zip(one.positions.tolist(), one.ids.tolist(), one.valid, strict=True)
            )
            got = [sample for _, sample, valid in rows if valid]
            if oracle.streams is None and oracle.cursor.epoch != cursor.epoch:
                oracle.continue_plain(cursor)
            assert got == [oracle.next() for _ in got]
            assert not {*got} & oracle.banned
            cursor = plans[0].cursor_after(0)
            if oracle.streams is None and cursor.position == 0:
                oracle.continue_plain(cursor)
        if oracle.streams and data.draw(st.booleans()):
            banned = (
                data.draw(st.sets(st.integers(0, base.identity.stored - 1), min_size=1, max_size=3)) - oracle.banned
            )
            if leaves_samples(orders, banned, cursor):
                orders = orders.banning(banned, cursor)
                oracle.change(oracle.weights, banned)
            continue
        weights = data.draw(random_weights(base))
        made.append(weights)
        try:
            orders = orders.reweighting({"number": len(made) - 1}, cursor)
        except OptionError:
            continue  # all weights of a dataset are 0
        oracle.change(weights, set())
        if data.draw(st.booleans()):
            state = {**state_dict(orders.of(cursor.epoch), cursor), **orders.for_state(cursor).state_dict(cursor)}
            state = json.loads(json.dumps(state))
            orders, cursor = resume(state, base, find_weights=lambda entries: made[entries["number"]])
            assert orders.of(cursor.epoch).ids(0, cursor.position).shape == (cursor.position,)


class OracleInBuckets:
    """The epochs of a run in buckets, in plain Python.

    An entry of ``pool`` is a sample of the epoch that can come from the last change on: its row in the sequence of the
    oracle without buckets (-1, -2, ... for samples that waited at the change), its id and its lane.
    """

    def __init__(self, base, labels, group):
        self.labels, self.group, self.oracle = labels.tolist(), group, Oracle(base)
        self.is_plain = True
        self.begin(0)

    @property
    def rows(self):
        """The samples of the epoch, and whether each is valid."""
        return [(entry[1], valid) for entry, valid in self.head + self.tail]

    def begin(self, epoch):
        if self.is_plain:
            self.oracle.continue_plain(Cursor(epoch))
        self.following, self.head, self.pool = 0 if self.is_plain else self.oracle.turn, [], []
        self.draw(self.oracle.base.samples if self.is_plain else self.length)

    def draw(self, count):
        drawn = [(row, *self.oracle.next_with_lane()) for row in range(self.following, self.following + count)]
        self.pool += [entry for entry in drawn if entry[1] not in self.oracle.banned]
        self.plan()
        self.length = sum(valid for _, valid in self.rows)

    def plan(self):
        """Divide the pool into groups."""
        by_lane, rest = {}, []
        for lane in sorted({lane for *_, lane in self.pool}):
            of_lane = [entry for entry in self.pool if entry[2] == lane]
            by_lane[lane], left = self.grouped(of_lane)
            rest += itertools.chain(*left.values())
        second, left = self.grouped([entry for entry in self.pool if entry in rest])
        groups = [group for turn in itertools.zip_longest(*by_lane.values()) for group in turn if group] + second
        self.tail = [(entry, True) for group in groups for entry in group]
        for label, last in sorted(left.items()):
            others = itertools.cycle(entry for entry in self.pool if self.labels[entry[1]] == label)
            filling = [(next(others), False) for _ in range(self.group - len(last))]
            self.tail += [(entry, True) for entry in last] + filling

    def grouped(self, entries):
        """Return the complete groups in the order in which they are complete, and what is left of each bucket."""
        groups, left = [], {}
        for entry in entries:
            last = left.setdefault(self.labels[entry[1]], [])
            last.append(entry)
            if len(last) == self.group:
                groups.append(left.pop(self.labels[entry[1]]))
        return groups, left

    def deliver(self, position):
        """Move the rows before a position to ``head``; return what is left of the pool."""
        taken = self.tail[: position - len(self.head)]
        delivered = {entry for entry, valid in taken if valid}
        self.head += taken
        self.following = max([self.following, *(entry[0] + 1 for entry in delivered)])
        return [entry for entry in self.pool if entry not in delivered]

    def ban(self, position, banned):
        """Leave out samples in a plain epoch."""
        left = self.deliver(position)
        self.oracle.banned |= banned
        self.pool = [entry for entry in left if entry[1] not in banned]
        self.plan()
        self.length = sum(valid for _, valid in self.rows)

    def change(self, position, weights, banned, *, is_plain=False):
        waiting = [entry for entry in self.deliver(position) if entry[0] < self.following]
        if self.oracle.streams is None:  # weights begin
            self.length = getattr(self.oracle.base, "epoch_length", None) or self.length
        self.oracle.rewind(self.following)
        self.oracle.change(weights, banned, moved=True)
        kept = [entry[1:] for entry in waiting if self.oracle.is_drawn(entry[1])]
        self.pool = [(number - len(kept), *entry) for number, entry in enumerate(kept)]
        self.following, self.is_plain = 0, is_plain
        self.draw(self.length - sum(valid for _, valid in self.head) - len(kept))


def leaves_samples(orders, banned, cursor):
    """Return whether samples are banned, and some of each dataset are left."""
    without = orders.banning(banned, cursor)
    try:
        for change in without.reweights[-1:]:
            without.check(change)
        return bool(banned) and without.of(cursor.epoch).samples > 0
    except OptionError:
        return False


@given(bases(), st.data())
@pytest.mark.torture_except("chunks-of-65536")
def test_in_buckets_samples_that_wait_for_their_group_come_after_a_change(base, data):
    labels, group = np.arange(base.identity.stored) % 7 // 3, data.draw(st.integers(1, 4))
    buckets, made = BucketOrder(base, labels, [(1, 1), (2, 1), (3, 1)], group), []
    orders = EpochOrders(buckets, find_weights=lambda entries: made[entries["number"]])
    cursor, oracle = Cursor(), OracleInBuckets(base, labels, group)
    for _ in range(data.draw(st.integers(1, 6))):
        found = orders.of(cursor.epoch)
        rows = zip(found.ids(0, found.samples).tolist(), found.valid(0, found.samples).tolist(), strict=True)
        assert list(rows) == oracle.rows
        epoch, steps = cursor.epoch, data.draw(st.integers(1, 9))
        batch = data.draw(st.sampled_from([n for n in (1, 2, 3, 4) if found.largest_batch(cursor.position) % n == 0]))
        plan = EpochPlan(found, cursor, World(0, data.draw(st.integers(1, 3))), batch, "mask")
        cursor = plan.cursor_after(min(steps, len(plan)) - 1)
        if cursor.epoch > epoch:
            oracle.begin(cursor.epoch)
        banned = data.draw(st.sets(st.integers(0, base.identity.stored - 1), max_size=3)) - oracle.oracle.banned
        kind = data.draw(st.sampled_from(["weights", "ban", "plain", "resume"]))
        if kind == "weights":
            made.append(data.draw(random_weights(base)))
            try:
                orders = orders.reweighting({"number": len(made) - 1}, cursor)
            except OptionError:
                continue  # all weights of a dataset are 0
            oracle.change(cursor.position, made[-1], set())
        elif kind == "plain" and cursor.position and not oracle.is_plain:
            orders = orders.reweighting(None, cursor)
            oracle.change(cursor.position, Weights(), set(), is_plain=True)
        elif kind == "ban" and leaves_samples(orders, banned, cursor):
            orders = orders.banning(banned, cursor)
            if oracle.oracle.streams is None:
                oracle.ban(cursor.position, banned)
            else:
                oracle.change(cursor.position, oracle.oracle.weights, banned, is_plain=oracle.is_plain)
        elif kind == "resume":
            state = {**state_dict(orders.of(cursor.epoch), cursor), **orders.for_state(cursor).state_dict(cursor)}
            state = json.loads(json.dumps(state))
            orders, cursor = resume(state, buckets, find_weights=lambda entries: made[entries["number"]])


@given(bases(), st.data())
@pytest.mark.torture_except("chunks-of-65536")
def test_a_run_with_weights_goes_on_after_a_ban_and_returns_to_the_plain_epochs(base, data):
    weights = Weights(
        None, tuple(DatasetWeights(phases_of(scan), np.array([1.0, 1.0, 2.0, 4.0])) for scan in base.scans)
    )
    position = data.draw(st.integers(0, base.samples - 1))
    orders = weighted(base, weights, Cursor(0, position))
    banned = data.draw(st.sets(st.integers(0, base.identity.stored - 1), max_size=2))
    following = orders.banning(banned, Cursor(1, 1))
    later = following.of(1)
    assert later.ids(0, 1).tolist() == orders.of(1).ids(0, 1).tolist()
    assert not banned & {*later.ids(1, later.samples).tolist(), *following.of(2).ids(0, base.samples).tolist()}
    assert later.samples == base.samples
    plain = following.reweighting(None, Cursor(2, 2))
    assert plain.of(2).ids(0, 2).tolist() == following.of(2).ids(0, 2).tolist()
    assert plain.of(2).samples == base.samples
    expected = [sample for sample in base.ids(3, 0, base.samples).tolist() if sample not in banned]
    assert plain.of(3).ids(0, plain.of(3).samples).tolist() == expected


def test_frequent_changes_leave_out_no_sample():
    base, cursor, ids = order_of("x", [100]), Cursor(), []
    weights = Weights(None, (DatasetWeights(phases_of(base), np.array([1.0, 1.0, 1.0, 4.0])),))
    once = orders = weighted(base, weights, cursor)
    for _ in range(40):
        plan = EpochPlan(orders.of(cursor.epoch), cursor, World(), 10, "drop")
        ids += plan.step(0).ids.tolist()
        cursor = plan.cursor_after(0)
        orders = orders.reweighting({"number": 0}, cursor)
    assert ids == np.concatenate([once.of(epoch).ids(0, 100) for epoch in range(4)]).tolist()
    assert set(ids) == set(range(100))


@pytest.mark.parametrize("has_buckets", [False, True])
def test_substitutes_are_drawn_by_the_weights_of_their_row(has_buckets):
    base = order_of("x", [60])
    order = BucketOrder(base, np.arange(60) % 2, [(1, 1), (2, 1)], 4) if has_buckets else base
    weights = Weights(None, (DatasetWeights(phases_of(base), np.array([1.0, 0.0, 1.0, 1.0])),))
    found = weighted(order, weights, Cursor(0, 20)).of(0)
    groups = phases_of(base).group
    before, after = ({found.substitute(row, number) for number in range(99)} for row in (19, 20))
    assert before <= {*found.ids(0, 20).tolist()}
    assert after <= {*found.ids(20, found.samples).tolist()}
    assert 1 not in groups[list(after)]
    assert 1 in groups[list(before)]


def test_equal_weights_give_the_plain_epochs():
    base = order_of("x", [40, 33], lanes=2)
    weights = Weights(None, (DatasetWeights(phases_of(base), np.array([1.0, 5.0, 5.0, 5.0])),))
    orders = weighted(base, weights, Cursor(0, 11))
    for epoch in range(3):
        assert orders.of(epoch).ids(0, 73).tolist() == base.ids(epoch, 0, 73).tolist()


@given(st.lists(st.integers(6, 15), min_size=1, max_size=3), st.integers(1, 3), st.integers(1, 5), st.integers(0, 30))
def test_rows_of_a_block_are_not_further_apart_than_in_a_plain_epoch(shards, lanes, block, position):
    base = order_of("x", shards, lanes=lanes, block=block, window=15)
    weights = Weights(None, (DatasetWeights(phases_of(base), np.array([1.0, 1.0, 2.0, 4.0])),))
    epoch = weighted(base, weights, Cursor(0, min(position, base.samples - 1))).of(0)
    assert epoch.reach == base.reach
    blocks, passes = base.block_of(epoch.ids(0, epoch.samples))[1], epoch.passes(0, epoch.samples)
    assert (np.diff(passes) >= 0).all()
    for block_and_pass in {*zip(blocks.tolist(), passes.tolist(), strict=True)}:
        rows = np.flatnonzero((blocks == block_and_pass[0]) & (passes == block_and_pass[1]))
        assert np.ptp(rows) <= epoch.reach


@pytest.mark.parametrize(("classes", "size"), [(1, 1), (126, 1), (127, 1), (128, 2), (40_000, 4)])
def test_class_numbers_take_as_few_bytes_as_they_need(classes, size):
    phases = Phases.of(np.arange(classes), None, 0)
    assert phases.group.itemsize == size
    assert phases.group.tolist() == list(range(1, classes + 1))


@given(st.integers(1, 200), st.integers(0, 9), st.integers(1, 6), st.data())
def test_draws_are_within_one_of_their_share_by_sample_and_by_class(samples, first, passes, data):
    labels = np.array(data.draw(st.lists(st.integers(0, 3), min_size=samples, max_size=samples)))
    factors = np.array([1.0, *data.draw(st.lists(st.sampled_from([0.1, 0.3, 1.0, 2.5]), min_size=4, max_size=4))])
    phases = Phases.of(labels, None, 3)
    rates = Rates(phases, factors[: len(phases.counts)])
    drawn = sum(rates.drawn(np.arange(samples), number).astype(int) for number in range(first, first + passes))
    rate = factors[labels + 1] / factors[np.unique(labels) + 1].max()
    assert (abs(drawn - passes * rate) < 1 + 1e-6).all()
    for label in np.unique(labels):
        of_class = drawn[labels == label]
        assert np.ptp(of_class) <= 1
        assert abs(of_class.sum() - passes * rate[labels == label].sum()) < 1 + 1e-3


def test_a_product_of_small_factors_does_not_become_0():
    phases = phases_of(order_of("x", [30]))
    factors = Factors(np.resize(np.array([1e-30, 1, 0], np.float32), 30))
    rates = Rates(phases, np.array([1.0, 1e-30, 1e-30, 1.0]), factors)
    assert ((rates.of(np.arange(30)) > 0) == (np.arange(30) % 3 < 2)).all()


@given(st.data())
def test_factors_of_conditions_multiply_one_after_the_other_in_float32(data):
    first, stored = data.draw(st.integers(0, 30)), data.draw(st.integers(1, 40))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    own = rng.random(first + stored).astype(np.float32) if data.draw(st.booleans()) else None
    given_conditions, expected = [], np.ones(first + stored, np.float32) if own is None else own.copy()
    for factor in data.draw(st.lists(st.sampled_from([0.1, 0.0, 3.7, 1e30]), max_size=3)):
        ids = np.flatnonzero(rng.random(first + stored + 3) < 0.5)
        given_conditions.append((packed_bits(ids, first + stored + 3), factor))
        ids = ids[ids < len(expected)]
        ids = ids[np.isfinite(expected[ids])]  # a product that is too large stays so, even times 0
        with np.errstate(over="ignore"):
            expected[ids] = expected[ids].astype(np.float64) * factor
    factors = Factors(own, given_conditions, stored=first + stored).of_dataset(first, first + stored)
    assert len(factors) == stored
    assert factors.bytes == (0 if own is None else 4 * stored)
    start, stop = sorted((data.draw(st.integers(0, stored)), data.draw(st.integers(0, stored + 9))))
    assert factors[start:stop].tolist() == expected[first:][start:stop].tolist()
    ids = rng.integers(0, stored, 9)
    assert factors[ids].tolist() == expected[first:][ids].tolist()
    assert factors[ids].dtype == factors[start:stop].dtype == np.float32


@pytest.mark.parametrize("kind", ["classes", "samples"])
def test_draws_follow_the_weights_by_chi_square(chunk, kind):
    base = order_of("x", [500] * 4, window=300, block=10)
    if kind == "classes":
        phases, by_group = phases_of(base), np.array([1.0, 1.0, 2.0, 6.0])
        weight, rates = by_group[phases.group], Rates(phases, by_group)
    else:
        weight = np.random.default_rng(0).uniform(0.1, 1, 2000).astype(np.float32)
        rates = Rates(Phases.by_id(2000, None, 0), None, Factors(weight))
    draws = 10_000 if chunk == 7 else 100_000
    ids, _ = Chain(base, rates, (0, 0)).slice(0, draws)
    expected = draws * weight / weight.sum()
    counts = np.bincount(ids, minlength=2000)
    assert ((counts - expected) ** 2 / expected).sum() < 2000 / 5  # independent draws would have about 2000
    assert abs(counts - expected).max() < 2  # the last pass is not complete


def test_buckets_and_weights_combine():
    base = order_of("x", [40, 40])
    labels = np.arange(80) % 3
    order = BucketOrder(base, labels, [(1, 1), (2, 2), (3, 3)], 4)
    weights = Weights(None, (DatasetWeights(phases_of(base), np.array([1.0, 1.0, 2.0, 0.0])),))
    orders = weighted(order, weights, Cursor(0, 8))
    assert orders.of(0).ids(0, 8).tolist() == order.at(0).ids(0, 8).tolist()
    group = phases_of(base).group
    for epoch, first in ((0, 8), (1, 0)):
        found = orders.of(epoch)
        assert found.distinct == 80
        assert all(len({*labels[found.ids(row, row + 4)].tolist()}) == 1 for row in range(0, found.samples, 4))
        counts = Counter(group[found.ids(first, found.complete)].tolist())
        assert counts[3] == 0
        assert 1.5 < counts[2] * (group == 1).sum() / (counts[1] * (group == 2).sum()) < 2.7
