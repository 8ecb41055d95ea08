"""FSDP2 on a DeviceMesh with torch.distributed.checkpoint and gloo, in the environment of torchrun."""

import json
import os
from pathlib import Path

import preloaded
import pytest

ROOT = Path(__file__).parents[2]


def run(world, *words):
    """Run the program on some processes; return the samples and the loss of each step."""
    *_, out, _ = words
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = preloaded.run([ROOT / "tests" / "fsdp_program.py", *words], ranks=world, env=environment)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(Path(f"{out}-{rank}.json").read_text()) for rank in range(world)]
    return [
        (sorted(key for part in parts for key in part["keys"]), parts[0]["loss"]) for parts in zip(*ranks, strict=True)
    ]


def test_a_sharded_run_continues_from_a_distributed_checkpoint_on_another_number_of_processes(few, tmp_path):
    whole = run(1, few, tmp_path / "whole", tmp_path / "whole", 5)
    parts = run(2, few, tmp_path / "parts", tmp_path / "two", 2) + run(1, few, tmp_path / "parts", tmp_path / "one", 3)
    assert [keys for keys, _ in parts] == [keys for keys, _ in whole]
    assert [loss for _, loss in parts] == pytest.approx([loss for _, loss in whole], rel=1e-4)
    assert len({key for keys, _ in parts for key in keys}) == 40
