"""A billion samples in 5,000 to 100,000 shards: planned and resumed from the manifest alone, in little memory."""

import json
import sys

import preloaded
import pytest

SAMPLES = 1_000_000_000

PROGRAM = """
import json, pathlib, sys, time
import numpy, torch, wds_tools.loading.loader, wds_tools.loading.request
from wds_tools.inspection.forecast import forecast
from wds_tools.loading.load_options import LoadOptions
from wds_tools.loading.request import open_dataset
from wds_tools.order.planner import Cursor, EpochPlan, World
from wds_tools.order.resuming import resume, state_dict
from wds_tools.reading.opening import open_shards

def memory():
    status = pathlib.Path("/proc/self/status").read_text()  # ru_maxrss would include the peak of the test process
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

def timed(name, work):
    start = time.perf_counter()
    result = work()
    results[name + "_seconds"] = round(time.perf_counter() - start, 3)
    return result

results = {}
before = memory()
shards = timed("manifest", lambda: open_shards(sys.argv[1]))
with_manifest = memory()
options = LoadOptions(
    sys.argv[1], batch_size=256, shuffle=True, fields=("label",), lanes=8, rank=5, world_size=64
)
wds_tools.loading.request.open_shards = lambda *a, **k: shards  # the manifest has just been read
opened = timed("plan", lambda: open_dataset(options))
plan = EpochPlan(opened.order.at(0), Cursor(), opened.ranks.find().world, 256, "drop")
first = timed("first_ids", lambda: plan.step(0))
state = json.loads(json.dumps(state_dict(opened.order, Cursor(3, 777_777_777))))
def again():
    orders, cursor = resume(state, open_dataset(options).order)
    return EpochPlan(orders.of(3), cursor, World(1, 7), 100, "drop").step(0)
step = timed("resume", again)
results["forecast"] = forecast(shards, batch_size=256, world_size=64, ranks_per_node=8).steps
results["steps"] = len(plan)
results["ids"] = step.ids.tolist()
results["manifest_mb"], results["plan_mb"] = round(with_manifest - before), round(memory() - with_manifest)
sys.stdout.write(json.dumps(results))
"""


@pytest.fixture(
    scope="module", params=[5_000, *(pytest.param(one, marks=pytest.mark.torture) for one in (20_000, 100_000))]
)
def simulated(request, tmp_path_factory):
    """Return a folder with a manifest of a billion samples, without shards and indexes."""
    from wds_tools.format.manifest import Manifest, ShardEntry, to_json

    entries = tuple(
        ShardEntry(f"{n:06}.tar", SAMPLES // request.param, 10**9, f"{n:032x}", f"{n:06}.parquet", 500_000, f"{n:032x}")
        for n in range(request.param)
    )
    fields = {"jpg": SAMPLES, "cls": SAMPLES}
    folder = tmp_path_factory.mktemp("billion")
    (folder / "manifest.json").write_text(to_json(Manifest(entries, fields, shuffled=True)))
    return folder


def test_a_billion_samples_are_planned_and_resumed_in_little_memory_and_without_an_index(simulated):
    done = preloaded.run(["-c", PROGRAM, simulated])
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    sys.stdout.write(f"{ {name: value for name, value in results.items() if name != 'ids'} }\n")
    assert results["steps"] == results["forecast"] == SAMPLES // (64 * 256)
    assert len(set(results["ids"])) == 100
    assert max(results["ids"]) - min(results["ids"]) > 5e8  # the ids are spread over the whole dataset
    assert results["plan_mb"] < 200
