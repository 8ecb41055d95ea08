"""Weights that change during a run: the order against a plain oracle, and the bounds that are promised."""

import itertools
import json
from collections import Counter
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
from wds_tools.order.shares import pattern_of
from wds_tools.order.weights import UNIT, Chain, Phases, Rates


@pytest.fixture(autouse=True, params=[7, 1 << 16], ids=lambda n: f"chunks-of-{n}")
def chunk(request, monkeypatch):
    monkeypatch.setattr(weights_module, "_CHUNK", request.param)


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
    """Return the rate of a sample as a whole number of `UNIT`, by the definition; factors are 32-bit numbers."""
    factors = one.by_sample
    if one.by_group is not None:
        factors = factors * one.by_group.astype(np.float32)[one.phases.group]
    selected = np.arange(len(factors))[one.phases.selected]
    most = float(max(factors[other] for other in selected.tolist() if other not in left_out))
    return max(round(float(factors[sample] / np.float32(most) * np.float32(UNIT))), int(factors[sample] > 0))


def draws_by_definition(scan, start, one, left_out):
    """Yield the scan position and the id of each sample that is drawn, one after another, without an end."""
    rates = {}
    for number in itertools.count():
        epoch, first = start[0] + number, start[1] if number == 0 else 0
        for position, sample in enumerate(scan.ids(epoch, first, scan.samples).tolist(), first):
            if sample not in rates:
                rates[sample] = UNIT if one is None else rate_of(one, sample, left_out)
            phase = int(one.phases.at(np.array([sample]))[0]) if one else 0
            before = floor(Fraction(phase + epoch * rates[sample], UNIT))
            if sample not in left_out and floor(Fraction(phase + (epoch + 1) * rates[sample], UNIT)) > before:
                yield (epoch, position), sample


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
            return self.base.scan_positions(self.cursor.epoch, self.cursor.position)
        found = []
        for number, stream in enumerate(self.streams):
            first = next(stream)
            self.streams[number] = itertools.chain([first], stream)
            found.append(first[0])
        return found

    def change(self, weights, banned):
        if self.streams is None or self.turn or banned:  # else this change replaces the one before it
            self.starts = self.scan_positions()
        self.banned |= banned
        self.weights = weights
        self.turn, self.streams = 0, []
        shares = weights.shares or self.base.shares
        self.pattern = pattern_of(shares).tolist()
        for number, (scan, start) in enumerate(zip(self.base.scans, self.starts, strict=True)):
            first, last = self.base.first_ids[number : number + 2]
            own = {sample - first for sample in self.banned if first <= sample < last} if shares[number] else set()
            one = weights.datasets[number] if weights.datasets and shares[number] else None
            self.streams.append(draws_by_definition(scan, start, one, own))

    def next(self):
        if self.streams is None:
            sample = int(self.base.ids(self.cursor.epoch, self.cursor.position, self.cursor.position + 1)[0])
            self.cursor = Cursor(self.cursor.epoch, self.cursor.position + 1)
            return sample
        number = self.pattern[self.turn % len(self.pattern)]
        self.turn += 1
        return next(self.streams[number])[1] + self.base.first_ids[number]


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
            datasets.append(DatasetWeights(phases, by_group, by_sample))
    several = len(base.scans) > 1
    shares = draw(st.sampled_from([None, (1, 3), (2, 5), (0, 1)])) if several else None
    return Weights(shares, None if datasets is None else tuple(datasets))


@given(bases(), st.data())
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
            without = orders.banning(banned, cursor)
            try:
                without.check(without.reweights[-1])
            except OptionError:
                continue  # no sample of a dataset is left
            if banned:
                orders = without
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


@given(bases(), st.data())
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


@pytest.mark.parametrize("kind", ["classes", "samples"])
def test_draws_follow_the_weights_by_chi_square(kind):
    base = order_of("x", [500] * 4, window=300, block=10)
    if kind == "classes":
        phases, by_group = phases_of(base), np.array([1.0, 1.0, 2.0, 6.0])
        weight, rates = by_group[phases.group], Rates(phases, by_group)
    else:
        weight = np.random.default_rng(0).uniform(0.1, 1, 2000).astype(np.float32)
        rates = Rates(Phases.by_id(2000, None, 0), None, weight)
    ids, _ = Chain(base, rates, (0, 0)).slice(0, 100_000)
    expected = 100_000 * weight / weight.sum()
    counts = np.bincount(ids, minlength=2000)
    assert ((counts - expected) ** 2 / expected).sum() < 2000 / 5  # independent draws would have about 2000
    assert abs(counts - expected).max() < 2  # the last pass is not complete


@given(st.data())
def test_buckets_group_what_weights_and_bans_leave(data):
    base, group = order_of("x", [40, 33], lanes=data.draw(st.integers(1, 2))), 4
    labels = np.arange(73) % 3
    weights = Weights(None, (DatasetWeights(phases_of(base), np.array([1.0, 1.0, 2.0, 4.0])),))
    positions = sorted({0, *data.draw(st.lists(st.integers(0, 14), max_size=4))})
    plain, grouped = (
        weighted(order, weights, Cursor(0, 0)) for order in (base, BucketOrder(base, labels, [(1, 1)] * 3, group))
    )
    banned = set()
    for position in positions:
        cursor, new = Cursor(0, position * group), data.draw(st.sets(st.integers(0, 72), max_size=3))
        plain, grouped = (orders.banning(new, cursor).reweighting({"number": 0}, cursor) for orders in (plain, grouped))
        banned |= new
    rows, start = grouped.of(0), positions[-1] * group
    found = rows.ids(start, rows.samples)[rows.valid(start, rows.samples)].tolist()
    assert sorted(found) == sorted(plain.of(0).ids(start, 73).tolist())
    assert not banned & set(found)
    for row in range(0, rows.samples, group):
        assert len({*labels[rows.ids(row, row + group)].tolist()}) == 1


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
