"""The examples run as they stand, in processes of their own, on the sample photographs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
# Small enough to train a ResNet-18 in seconds: 40 samples are 5 steps of 8 an epoch.
TINY = ("--size", "32", "--batch-size", "8", "--save-every", "3")


def command(*words: str | Path) -> list[str]:
    """Return the command line of an example: its name, and its arguments."""
    return [sys.executable, str(EXAMPLES / words[0]), *map(str, words[1:])]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(words: list[str]) -> str:
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_steps(path: Path) -> dict[tuple[int, int], dict[str, Any]]:
    """Return what was trained on, by step and rank; a step that was done again must not differ."""
    steps: dict[tuple[int, int], dict[str, Any]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        assert steps.setdefault((line["step"], line["rank"]), line) == line
    return steps


def test_pack_folder_tells_what_it_made(tmp_path: Path, photos: Path) -> None:
    words = command("01_pack_folder.py", photos, tmp_path / "photos")
    first, second = run(words), run(words)
    assert first.startswith("400 images of 8 classes")
    assert "0 astronaut" in first
    assert "7 shards made, 0 kept" in first
    assert "0 shards made, 7 kept" in second


def test_train_goes_on_after_kill_9_as_if_nothing_had_happened(tmp_path: Path, few: Path) -> None:
    straight, broken = tmp_path / "straight.jsonl", tmp_path / "broken.jsonl"
    train = command("02_train.py", "--data", few, "--epochs", "2", *TINY)
    run([*train, "--checkpoint", str(tmp_path / "straight.pt"), "--metrics", str(straight)])

    checkpoint = tmp_path / "broken.pt"
    train += ["--checkpoint", str(checkpoint), "--metrics", str(broken)]
    process = subprocess.Popen(train, env=environment(), stdout=subprocess.DEVNULL)
    while process.poll() is None and not (broken.exists() and len(read_complete_lines(broken)) >= 4):
        time.sleep(0.01)
    process.kill()
    assert process.wait() == -9, "it was to be killed in the middle of an epoch"
    broken.write_text("".join(read_complete_lines(broken)))
    run([*train, "--resume"])

    expected, got = read_steps(straight), read_steps(broken)
    assert len(expected) == 10
    assert got == expected  # keys and losses


def read_complete_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def test_train_under_torchrun_takes_every_sample_once_and_the_same_samples_each_step(tmp_path: Path, few: Path) -> None:
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    train = command("02_train.py", "--data", few, "--epochs", "1", *TINY, "--checkpoint", tmp_path / "checkpoint.pt")
    run([*train, "--metrics", str(one)])
    out = run([*TORCHRUN, *train[1:], "--batch-size", "4", "--metrics", str(two), "--val", str(few)])
    assert "accuracy" in out
    assert out.count("epoch 0: step 5") == 1

    of_step: dict[int, list[str]] = defaultdict(list)
    for (step, _rank), line in read_steps(two).items():
        of_step[step] += line["keys"]
    assert {step: sorted(keys) for step, keys in of_step.items()} == {
        step: sorted(line["keys"]) for (step, _rank), line in read_steps(one).items()
    }
    assert len({key for keys in of_step.values() for key in keys}) == 40


def test_plain_dataloader_takes_whole_batches_of_both_workers(packed: Path) -> None:
    out = run(command("03_plain_dataloader.py", packed))
    assert "epoch 0: 384 of 384 samples, as batches torch.uint8 [32, 3, 96, 96]" in out
    assert "epoch 1: 384 of 384" in out


def test_shards_of_webdataset_are_indexed_and_streamed(tmp_path: Path) -> None:
    out = run(command("04_from_webdataset_shards.py", tmp_path))
    assert "indexed 4 shards with 384 samples; fields: cls, jpg, txt" in out
    assert "48 batches of 8" in out
    assert (tmp_path / "manifest.json").exists()


def test_demo_shows_every_step_and_learns(tmp_path: Path) -> None:
    # The demo works in the repository that it lies in; here that is a folder with the same photographs.
    (tmp_path / "examples").mkdir()
    demo = Path(shutil.copy(EXAMPLES / "demo.py", tmp_path / "examples"))
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "sample").symlink_to(ROOT / "shards" / "sample")
    out = run([sys.executable, str(demo)])
    assert "$ wds-tools pack build/demo/train shards/demo/train" in out
    assert "its next batch is the same, to the pixel" in out
    assert re.search(r"[0-9,]+ images per second", out)
    reached = [float(number) for number in re.findall(r"held-out accuracy +([0-9.]+)%", out)]
    assert len(reached) >= 2
    assert max(reached) > 60, "chance is 12.5"
    assert (tmp_path / "shards" / "demo" / "val" / "manifest.json").exists()


def test_shuffle_quality_prints_its_tables_and_draws_its_picture(tmp_path: Path) -> None:
    out = run(command("05_shuffle_quality.py", "--samples", "20000", "--out", tmp_path / "quality.svg"))
    assert "| packed by us | 4,096 | 1 | 256 | " in out
    assert out.count("|---") > 10
    assert "1 / (1 + (B - 1) b / W)" in out
    assert (tmp_path / "quality.svg").read_text().count("<circle") > 100


def test_processes_or_threads_makes_the_same_batches_and_prints_a_table(packed: Path) -> None:
    out = run(command("06_processes_or_threads.py", packed, "--rounds", "1", "--seconds", "0.05", "--batch-size", "16"))
    rows = [line.split()[:3] for line in out.partition("CPU-s per 1,000")[2].splitlines()[1:]]
    cores = min(2, len(os.sched_getaffinity(0)))
    assert rows == [[str(c), w, t] for c in range(1, cores + 1) for w in "12" for t in "12"]


def test_profile_prints_functions_and_stages(packed: Path, tmp_path: Path) -> None:
    options = ("--seconds", "0.1", "--batch-size", "16", "--rows", "5", "--workers", "1")
    out = run(command("profile_loader.py", packed, *options, "--out", tmp_path / "loader.pstats"))
    assert "cProfile of one process without workers" in out
    assert len(re.findall(r"^ +[0-9.]+ +[0-9.]+ +[0-9.]+  \S", out, re.MULTILINE)) == 5
    stages = re.findall(r"^ +[0-9.]+ +[0-9.]+%  (\S+)$", out, re.MULTILINE)
    assert stages == ["read", "verify", "slice", "decode", "resize", "write", "other", "hand-over", "wait"]
    assert (tmp_path / "loader.pstats").stat().st_size > 1000
