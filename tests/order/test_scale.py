"""A billion samples in 100,000 shards: planned and resumed from the counts alone, in little memory."""

import json
import subprocess
import sys

import pytest

SHARDS, SAMPLES = 100_000, 10_000

PROGRAM = """
import json, pathlib, sys, time
import numpy, torch, wds_tools.loading.loader, wds_tools.loading.request
from wds_tools.inspection.forecast import forecast
from wds_tools.loading.request import Request, open_dataset
from wds_tools.order.planner import Cursor, EpochPlan, World, resume, state_dict
from wds_tools.reading.shardset import open_shards

def memory():
    status = pathlib.Path("/proc/self/status").read_text()  # ru_maxrss would start at that of the test process
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

def timed(name, work):
    start = time.perf_counter()
    result = work()
    told[name + "_seconds"] = round(time.perf_counter() - start, 3)
    return result

told = {}
before = memory()
shards = timed("manifest", lambda: open_shards(sys.argv[1]))
with_manifest = memory()
request = Request(batch_size=256, view=None, shuffle=True, seed=0, fields=("label",), transform=None, where=None,
                  subset=None, class_weights=None, rank=5, world_size=64, group=None, lanes=8, cache_dir=None,
                  cache_bytes=None)
wds_tools.loading.request.open_shards = lambda *a, **k: shards  # it was read just now
opened = timed("plan", lambda: open_dataset(sys.argv[1], request))
plan = EpochPlan(opened.order, Cursor(), opened.ranks.find().world, 256, "drop")
first = timed("first_ids", lambda: plan.step(0))
state = json.loads(json.dumps(state_dict(opened.order, Cursor(3, 777_777_777))))
def again():
    course, cursor = resume(state, open_dataset(sys.argv[1], request).order)
    return EpochPlan(course.of(3), cursor, World(1, 7), 100, "drop").step(0)
step = timed("resume", again)
told["forecast"] = forecast(shards, batch_size=256, world_size=64, ranks_per_node=8).steps
told["steps"] = len(plan)
told["ids"] = step.ids.tolist()
told["manifest_mb"], told["plan_mb"] = round(with_manifest - before), round(memory() - with_manifest)
sys.stdout.write(json.dumps(told))
"""


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """Return a manifest of a billion samples; there are no shards and no indexes."""
    from wds_tools.format.manifest import Manifest, ShardEntry, to_json

    entries = tuple(
        ShardEntry(f"shard-{n:06}.tar", SAMPLES, 10**9, f"{n:032x}", f"shard-{n:06}.parquet", 500_000, f"{n:032x}")
        for n in range(SHARDS)
    )
    fields = {"jpg": SHARDS * SAMPLES, "cls": SHARDS * SAMPLES}
    folder = tmp_path_factory.mktemp("billion")
    (folder / "manifest.json").write_text(to_json(Manifest(entries, fields, shuffled=True)))
    return folder


def test_a_billion_samples_are_planned_and_resumed_in_little_memory_and_without_an_index(simulated):
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(simulated)], capture_output=True, text=True, check=True)
    told = json.loads(done.stdout)
    sys.stdout.write(f"{ {word: value for word, value in told.items() if word != 'ids'} }\n")
    assert told["steps"] == told["forecast"] == SHARDS * SAMPLES // (64 * 256)
    assert len(set(told["ids"])) == 100
    assert max(told["ids"]) - min(told["ids"]) > 5e8  # they come from everywhere
    assert told["plan_mb"] < 200
