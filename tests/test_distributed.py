"""Real processes with torch.distributed (gloo): equal steps, every sample once."""

import json
import os
import subprocess
import sys
from collections import Counter

import pytest

SCRIPT = """
import json, sys, torch, torch.distributed as dist, wds_tools as wt
dist.init_process_group("gloo")
with wt.make_loader(sys.argv[1], batch_size=int(sys.argv[2]), fields=("__key__",), shuffle=True, tail=sys.argv[3],
                    num_workers=1) as loader:
    for batch in loader:
        valid = batch.valid.tolist() if sys.argv[3] == "mask" else [True] * len(batch.key)
        one = torch.ones(1)
        dist.all_reduce(one)  # hangs if a rank takes fewer steps
        assert int(one) == dist.get_world_size()
        print(json.dumps([key for key, ok in zip(batch.key, valid) if ok]), flush=True)
dist.destroy_process_group()
"""


def run_ranks(packed, world_size, batch_size, tail, tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(SCRIPT)
    environment = {
        **os.environ,
        "WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(20_000 + os.getpid() % 20_000),
        "OMP_NUM_THREADS": "1",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(packed), str(batch_size), tail],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    outputs = [rank.communicate(timeout=100)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world_size
    return [[json.loads(line) for line in output.splitlines()] for output in outputs]


@pytest.mark.parametrize(("world_size", "batch_size", "tail"), [(2, 30, "drop"), (3, 50, "mask")])
def test_ranks_take_equal_steps_and_each_sample_once(packed, tmp_path, world_size, batch_size, tail):
    ranks = run_ranks(packed, world_size, batch_size, tail, tmp_path)
    assert len({len(steps) for steps in ranks}) == 1
    counts = Counter(key for steps in ranks for keys in steps for key in keys)
    assert set(counts.values()) == {1}
    assert len(counts) == (400 if tail == "mask" else 400 // (world_size * batch_size) * world_size * batch_size)
