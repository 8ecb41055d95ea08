"""`make gpu`: the benchmark runs, and without a GPU it reports so in one line."""

import os
from pathlib import Path

import preloaded

ROOT = Path(__file__).parents[1]


def benchmark(*words):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    return preloaded.run([ROOT / "tests" / "gpu_benchmark.py", *words], env=environment)


def test_without_a_gpu_one_line_reports_it_and_the_exit_status_is_1():
    done = benchmark("--check")
    assert done.returncode == 1
    assert done.stderr.startswith("make gpu needs a CUDA device: torch ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_rehearsal_prints_the_table():
    done = benchmark("--rehearse")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    assert rows[0] == "| measured | result |"
    assert "| 4 batches compared with the CPU's | 0 different |" in rows
    assert any("of the loop on one repeated batch" in row for row in rows)
