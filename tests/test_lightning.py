"""Lightning trains on our loaders: each sample once over two processes, and every checkpoint resumes exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(300)]  # each starts processes that import torch and Lightning

ROOT = Path(__file__).parents[1]


def run(*words: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *map(str, words)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


Steps = dict[tuple[int, int], dict[str, Any]]


def train(few: Path, out: Path, *words: str | Path) -> tuple[str, Steps]:
    """Run the example; return what it prints, and what each rank was trained on in each step."""
    options = ("--devices", "2", "--epochs", "2", "--batch-size", "4", "--size", "32", "--save-every", "3")
    metrics = out / "metrics.jsonl"
    printed = run(
        ROOT / "examples" / "07_lightning.py", "--data", few, *options, "--out", out, "--metrics", metrics, *words
    )
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    steps = {(line["step"], line["rank"]): line for line in lines}
    assert len(steps) == len(lines), "a step was done twice"
    return printed, steps


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory, few: Path) -> tuple[Path, str, Steps]:
    out = tmp_path_factory.mktemp("straight")
    return out, *train(few, out)


def test_each_process_trains_on_its_part(straight: tuple[Path, str, Steps]) -> None:
    _, printed, steps = straight
    assert "epoch 1: 40 samples, each once; accuracy" in printed
    assert len(steps) == 20
    for epoch in (0, 1):
        keys = Counter(key for line in steps.values() if line["epoch"] == epoch for key in line["keys"])
        assert len(keys) == 40
        assert set(keys.values()) == {1}
    assert steps[0, 0]["keys"] != steps[5, 0]["keys"], "each epoch has an order of its own"


@pytest.mark.parametrize(("checkpoint", "first"), [("step=3.ckpt", 3), ("epoch=0.ckpt", 5), ("last.ckpt", 9)])
def test_a_run_goes_on_at_the_very_next_batch(
    checkpoint: str, first: int, straight: tuple[Path, str, Steps], few: Path, tmp_path: Path
) -> None:
    """In the first epoch, at its end, and in the second epoch: keys, crops and losses are those of a whole run."""
    folder, _, steps = straight
    printed, resumed = train(few, tmp_path, "--resume", folder / checkpoint)
    assert resumed == {place: line for place, line in steps.items() if place[0] >= first}
    assert "epoch 1" in printed
    assert "each once" in printed
