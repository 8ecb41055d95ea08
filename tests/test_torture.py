"""Long runs of `make torture`. Each case has a number. A failure reports it; it alone reproduces the case."""

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import wds_tools as wt
from wds_tools.errors import WdsToolsError
from wds_tools.order.mixture import MixtureOrder
from wds_tools.order.planner import Cursor, EpochPlan, World
from wds_tools.order.resuming import resume, state_dict
from wds_tools.order.selection import Selection, balance
from wds_tools.order.sequence import Order
from wds_tools.reading.opening import open_shards
from wds_tools.reading.reader import Reader
from wds_tools.reading.rows import Rows

pytestmark = [pytest.mark.torture, pytest.mark.timeout(1800)]

TESTS = Path(__file__).parent


def numbers(count, first):
    """Return numbers from 0 on as parameters; only the first few are not left to `make torture-night`."""
    return [*range(first), *(pytest.param(number, marks=pytest.mark.night) for number in range(first, count))]


@pytest.mark.parametrize("chunk", numbers(20, 1))
def test_resuming_with_other_ranks_and_batch_sizes_loses_and_repeats_nothing(chunk):
    for number in range(chunk * 10_000, (chunk + 1) * 10_000):
        _resume_with_other_ranks(number)


def _random_order(rng, name, lanes, seed):
    """Return a random order of a dataset; every third one has a selection, which may repeat samples."""
    shards = [rng.randrange(60) for _ in range(rng.randint(1, 8))] + [1]
    selection = None
    if rng.randrange(3) == 0:
        ids = np.array(sorted(rng.sample(range(sum(shards)), rng.randint(1, sum(shards)))), np.int64)
        weights = np.array([rng.choice([0.2, 1, 5]) for _ in range(3)])
        selection = Selection(ids, balance=rng.choice([None, balance(ids % 3, weights)]), seed=seed)
    return Order(
        fingerprint=name,
        shard_samples=shards,
        seed=seed,
        window=rng.choice([1, 20, 300]),
        block=rng.randint(1, 12),
        lanes=lanes,
        selection=selection,
    )


def _resume_with_other_ranks(number):
    rng = random.Random(number)
    lanes, seed = rng.randint(1, 4), rng.randrange(100)
    parts = [_random_order(rng, f"{number}-{part}", lanes, seed) for part in range(rng.choice([1, 1, 1, 2, 3]))]
    order = parts[0]
    if rng.randrange(10) == 0:
        order = order.like(window=0, block=order.block, lanes=lanes)
    if len(parts) > 1:
        shares = [rng.randint(1, 5) for _ in parts]
        order = MixtureOrder(parts, shares, rng.choice(["first_exhausted", "all_exhausted"]))
    expected = order.ids(0, 0, order.samples).tolist()
    cursor, got = Cursor(), []
    while cursor.epoch == 0:
        world, batch = rng.randint(1, 6), rng.randint(1, 9)
        plans = [EpochPlan(order.at(cursor.epoch), cursor, World(rank, world), batch, "mask") for rank in range(world)]
        steps = rng.randint(1, len(plans[0]))
        for step in range(steps):
            rows = [row for plan in plans for row in zip(*_columns(plan.step(step)), strict=True)]
            got += [sample for _, sample, valid in sorted(rows) if valid]
        state = state_dict(order, plans[0].cursor_after(steps - 1))
        orders, cursor = resume(state, _with_other_options(order))
        order = orders.order
    assert got == expected, f"case {number}"


def _with_other_options(order):
    """Return the order of a loader with other options. Resuming must use those of the state."""
    if isinstance(order, MixtureOrder):
        return order.like(window=[9] * len(order.parts), block=[5] * len(order.parts), lanes=2)
    return order.like(window=7 if order.window else 0, block=5, lanes=2)


def _columns(step):
    return step.positions.tolist(), step.ids.tolist(), step.valid.tolist()


MUTATORS = {
    "flip": lambda data, rng: _put(
        data, rng.randrange(len(data)), lambda byte: bytes([byte[0] ^ 1 << rng.randrange(8)])
    ),
    "truncated": lambda data, rng: data[: rng.randrange(len(data))],
    "lost block": lambda data, rng: _without(data, 512 * rng.randrange(len(data) // 512), 512),
    "doubled block": lambda data, rng: _doubled(data, 512 * rng.randrange(len(data) // 512)),
    "zeroed page": lambda data, rng: _put(data, 4096 * rng.randrange(len(data) // 4096), lambda _: bytes(4096)),
    "garbage": lambda data, rng: _put(data, rng.randrange(len(data) - 8192), lambda _: rng.randbytes(8192)),
}


def _put(data, offset, change):
    changed = change(data[offset : offset + 1])
    return data[:offset] + changed + data[offset + len(changed) :]


def _without(data, offset, size):
    return data[:offset] + data[offset + size :]


def _doubled(data, offset):
    return data[: offset + 512] + data[offset:]


@pytest.mark.parametrize("mutator", MUTATORS)
def test_damaged_shards_raise_errors_or_give_the_original_bytes(mutator, photos, tmp_path):
    wt.pack(photos / "cat", tmp_path / "whole", shard_bytes="60kB", workers=1)
    folder = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else tmp_path) / f"torture-{os.getpid()}"
    shutil.copytree(tmp_path / "whole", folder)
    try:
        _damage_and_read(mutator, folder)
    finally:
        shutil.rmtree(folder)


def _damage_and_read(mutator, folder):
    whole = open_shards(folder)
    ids = np.arange(whole.manifest.shards[0].samples)
    rows = Rows(Reader(whole, block=4), ids)
    expected = [bytes(part) for part in rows.images() + rows.field("json")]
    shard = folder / "shard-000000.tar"
    content = shard.read_bytes()
    outcomes = Counter()
    for number in range(3_000):
        shard.write_bytes(MUTATORS[mutator](content, random.Random(number)))
        try:
            rows = Rows(Reader(open_shards(folder), block=4), ids)
            read = [bytes(part) for part in rows.images() + rows.field("json")]
        except WdsToolsError as error:
            outcomes["named" if "shard-000000.tar" in str(error) else f"not named: case {mutator} {number}"] += 1
        else:
            assert read == expected, f"case {mutator} {number}"  # the damage is in a header or in padding
            outcomes["harmless"] += 1
    assert outcomes["named"] > 1_000
    assert outcomes["named"] + outcomes["harmless"] == 3_000, outcomes


def _any_process_with(variable):
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if variable.encode() in (folder / "environ").read_bytes():
                return True
        except OSError:
            continue
    return False


@pytest.mark.parametrize("chain", numbers(40, 5))
def test_packing_after_several_kills_writes_the_same_bytes(chain, packed, photos, tmp_path):
    rng = random.Random(chain)
    arguments = f"{str(photos)!r}, {str(tmp_path / 'dst')!r}, shard_bytes='1MB', workers=2, images='keep'"
    script = f"import wds_tools as wt; wt.pack({arguments})"
    for _ in range(rng.randint(1, 5)):
        environment = {**os.environ, "TORTURE": str(tmp_path)}
        process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL, env=environment)
        time.sleep(rng.uniform(0.2, 1.5))
        process.kill()
        process.wait()
        while _any_process_with(f"TORTURE={tmp_path}"):  # its workers may write until they notice
            time.sleep(0.02)
    wt.pack(photos, tmp_path / "dst", shard_bytes="1MB", workers=1, images="keep")
    written, expected = ({p.name: p.read_bytes() for p in f.iterdir()} for f in (tmp_path / "dst", packed))
    assert written == expected


@pytest.mark.parametrize("number", numbers(20, 2))
def test_the_fault_tests_of_the_loader_pass_repeatedly(number):
    _pass(TESTS / "loading" / "test_faults.py")


@pytest.mark.parametrize("folder", sorted({str(path.parent.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}))
def test_no_test_leaves_garbage_that_harms_another_one(folder):
    _pass("-p", "garbage", *sorted((TESTS / folder).glob("test_*.py")))


def _pass(*arguments):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # `-p` finds the plugin
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1700, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
