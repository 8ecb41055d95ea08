"""The order of samples of all combinations of options, as an earlier version had it.

``pinned_orders.json`` has for each combination the first ids, a digest of the steps of all ranks in two epochs, and a
state. A change of this file is a change of the order of samples: it belongs under "Iteration order changed" in the
changelog. ``python tests/order/test_pinned_orders.py`` writes the file.
"""

import json
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import xxhash

from wds_tools.order import mixture as mixture_module
from wds_tools.order import sequence as order_module
from wds_tools.order.buckets import BucketOrder
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.planner import Cursor, EpochOrders, EpochPlan, World
from wds_tools.order.resuming import state_dict
from wds_tools.order.selection import Selection, balance
from wds_tools.order.sequence import Order

FILE = Path(__file__).with_name("pinned_orders.json")
SHARDS = [90, 70, 33, 107]
SEED, BATCH, RANKS, EPOCH, POSITION = 5, 8, 2, 1, 48


def order_of(fingerprint="x", shards=SHARDS, *, window=60, block=7, lanes=3, selection=None):
    return Order(
        fingerprint=fingerprint,
        shard_samples=shards,
        seed=SEED,
        window=window,
        block=block,
        lanes=lanes,
        selection=selection,
    )


def mixed(stop, length=None):
    return MixtureOrder([order_of(window=40), order_of("y", [50, 41], window=30, block=5)], [2, 1], stop, length)


def balanced():
    label = np.arange(sum(SHARDS)) % 7 // 5
    return Selection(np.arange(sum(SHARDS)), balance=balance(label, np.array([1.0, 2.0])))


ORDERS = {
    "stored": lambda: order_of(window=0, lanes=1),
    "stored in lanes": lambda: order_of(window=0),
    "one lane": lambda: order_of(lanes=1),
    "lanes": order_of,
    "selection": lambda: order_of(selection=Selection(np.arange(0, sum(SHARDS), 2))),
    "balance": lambda: order_of(selection=balanced()),
    "mixture until the first end": lambda: mixed("first_exhausted"),
    "mixture until the last end": lambda: mixed("all_exhausted"),
    "mixture of a length": lambda: mixed("first_exhausted", 150),
}


def grouped(order, stored):
    return BucketOrder(order, (np.arange(stored) % 5 // 2).astype(np.int16), [(1, 1), (2, 1), (1, 2)], BATCH)


def run_of(order, *, has_bans, has_buckets):
    """Return the orders of a run: two bans, one from epoch 0 on, one from within epoch 1 on."""
    stored = sum(SHARDS) + (91 if isinstance(order, MixtureOrder) else 0)
    orders = EpochOrders(grouped(order, stored) if has_buckets else order)
    if has_bans:
        orders = orders.banning(range(0, stored, 11), Cursor()).banning(range(3, stored, 13), Cursor(EPOCH, POSITION))
    return orders


def summary(orders):
    """Return what is pinned of a run."""
    digest, first = xxhash.xxh3_64(), None
    for epoch in (EPOCH, EPOCH + 1):
        for rank in range(RANKS):
            plan = EpochPlan(orders.of(epoch), Cursor(epoch), World(rank, RANKS), BATCH, "mask")
            expected = plan.expected()
            digest.update(f"{len(plan)} {plan.end} {expected and expected.digest}".encode())
            for step in islice(map(plan.step, range(len(plan))), 25):
                first = step.ids.tolist() if first is None else first
                for column in (step.positions, step.ids, step.valid):
                    digest.update(np.ascontiguousarray(column, "<i8").tobytes())
                digest.update(f"{step.bucket} {step.global_tally.digest}".encode())
    return {"first": first, "digest": digest.hexdigest(), "state": state_dict(orders.of(EPOCH), Cursor(EPOCH, 64))}


CASES = [
    f"{name}{bans}{buckets}{segments}"
    for name in ORDERS
    for bans in ("", ", bans")
    for buckets in ("", ", buckets")
    for segments in ("", ", short segments")
    if not segments or (bans and name != "stored")
]


def found(case):
    name, *parts = case.split(", ")
    return summary(run_of(ORDERS[name](), has_bans="bans" in parts, has_buckets="buckets" in parts))


def set_segments(monkeypatch, case):
    if "short segments" in case:
        monkeypatch.setattr(order_module, "SEGMENT_SAMPLES", 100)
        monkeypatch.setattr(mixture_module, "_SEGMENT_SAMPLES", 100)


def test_every_combination_is_pinned():
    assert list(json.loads(FILE.read_text())) == CASES


@pytest.mark.parametrize("case", CASES)
def test_the_order_and_the_state_have_not_changed(case, monkeypatch):
    set_segments(monkeypatch, case)
    assert found(case) == json.loads(FILE.read_text())[case]


def _write():
    lines = []
    for case in CASES:
        with pytest.MonkeyPatch.context() as monkeypatch:
            set_segments(monkeypatch, case)
            lines.append(f"{json.dumps(case)}: {json.dumps(found(case))}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    _write()
