"""Training frameworks with two processes: each sample is delivered once, and interrupted runs resume exactly."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import preloaded
import pytest

# Slow: each test runs two processes of a framework.
pytestmark = [pytest.mark.frameworks, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "framework_runs.py"
KEYS = 40  # samples of the dataset
# Once for all these frameworks. Lightning imports s3fs when it saves a checkpoint.
IMPORTS = ("wds_tools.loading.loader", "accelerate", "transformers.trainer", "lightning.pytorch", "s3fs")

Facts = dict[str, Any]


def run(folder: Path, *words: str | Path, imports: Sequence[str] = (), ranks: int | None = None) -> str:
    """Run a program after some imports; return its standard output."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "ACCELERATE_USE_CPU": "true",  # without it and without a GPU, Accelerate ignores the second process
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",  # the default of 60 is too short on a busy machine
    }
    done = preloaded.run(words, cwd=folder, env=environment, ranks=ranks, imports=("torch", *imports))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path, few: Path) -> Path:
    """Return a working directory with the dataset shards/photos."""
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "photos").symlink_to(few)
    return tmp_path


@pytest.fixture
def facts(folder: Path) -> Callable[..., list[Facts]]:
    """Return a function that runs a framework, and returns the results of each process."""

    def facts(name: str, *words: str, **options: Any) -> list[Facts]:
        (folder / "printed").write_text(run(folder, PROGRAM, name, folder, *words, **options))
        return [json.loads(path.read_text()) for path in sorted(folder.glob("[01].json"))]

    return facts


def each_once(steps: Iterable[list[str]]) -> bool:
    counts = Counter(key for keys in steps for key in keys)
    return len(counts) == KEYS == sum(counts.values())


@pytest.mark.long
@pytest.mark.parametrize("words", [["briefly"], pytest.param([], marks=pytest.mark.torture)])
def test_the_hugging_face_trainer_resumes_at_the_next_batch(
    facts: Callable[..., list[Facts]], words: list[str]
) -> None:
    ranks = facts("trainer", *words, ranks=2, imports=IMPORTS)
    for rank in ranks:
        straight = rank["straight"]
        assert len(straight["keys"]) == 10
        for part, first in ({"mid": 3} if words else {"mid": 3, "second epoch": 6, "end": 10}).items():
            assert rank[part]["keys"] == straight["keys"][first:]
            assert rank[part]["weights"] == straight["weights"]
        whole = rank["reweighted"]["keys"]
        assert whole[:3] == straight["keys"][:3]
        assert whole[5:] != straight["keys"][5:]
        assert rank["reweighted mid"]["keys"] == whole[3:]
        if not words:
            assert rank["proofs"] == ["epoch 1: 32 samples, each once", "epoch 0: 40 samples, each once"]
            assert rank["reweighted second epoch"]["keys"] == whole[6:]
    for epoch in (slice(5), slice(5, 10)):
        assert each_once(keys for rank in ranks for keys in rank["straight"]["keys"][epoch])


def test_accelerate_skips_batches_and_resumes_at_the_next_batch(
    folder: Path, facts: Callable[..., list[Facts]]
) -> None:
    ranks = facts("accelerate", ranks=2, imports=IMPORTS)
    assert "epoch 1: 32 samples, each once" in (folder / "printed").read_text()
    for rank in ranks:
        assert (rank["processes"], rank["same"]) == (2, True)
        assert rank["skipped"] == rank["epochs"][0][2:]
        assert rank["after"] == rank["epochs"][1]
        assert rank["loaded"] == rank["epochs"][1][2:]
        assert rank["reloaded"] == rank["changed"][3:]
        assert len(rank["changed"]) == 5
        assert all(1 not in labels for _, labels in rank["changed"][2:])
        assert "Accelerate's prepare() splits it a second time" in rank["refused"]
    for epoch in (0, 1):
        assert each_once(keys for rank in ranks for keys in rank["epochs"][epoch])
    assert each_once(rank["divided"] for rank in ranks)


@pytest.mark.torture
def test_timm_trains_on_a_loader_and_on_its_prefetch_loader(facts: Callable[..., list[Facts]]) -> None:
    for rank in facts("timm", ranks=2, imports=["timm.data.loader"]):
        assert rank == {
            "proof": "epoch 1: 32 samples, each once",
            "equal": [True] * 10,
            "steps": 5,
            "samples": KEYS,
            "mixup": False,
        }


@pytest.mark.torture
def test_ray_train_accepts_a_loader_unchanged_or_prepared(facts: Callable[..., list[Facts]]) -> None:
    ranks = facts("ray")
    for rank in ranks:
        assert rank["documented"] == "epoch 1: 32 samples, each once"
        assert rank["prepared"] == rank["plain"]
        assert rank["steps"] == 5
        assert rank["proof"] == "epoch 0: 40 samples, each once"
    for epoch in (0, 1):
        assert each_once(keys for rank in ranks for keys in rank["plain"][epoch])
    assert each_once(keys for rank in ranks for keys in rank["streamed"])


@pytest.mark.torture
def test_spawned_processes_may_create_the_loader_before_the_process_group(facts: Callable[..., list[Facts]]) -> None:
    ranks = facts("spawned")
    assert {rank["proof"] for rank in ranks} == {"epoch 0: 40 samples, each once"}
    assert each_once(keys for rank in ranks for keys in rank["steps"])


# Lightning


Steps = dict[tuple[int, int], Facts]


def read_steps(*paths: Path) -> Steps:
    """Return the epoch, keys and loss of each (step, rank)."""
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    steps = {(line["step"], line["rank"]): line for line in lines}
    assert len(steps) == len(lines), "a step was done twice"
    return steps


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "more"), [(2, ["briefly"]), *(pytest.param(one, [], marks=pytest.mark.torture) for one in (2, None))]
)
def test_lightning_resumes_at_the_next_batch(
    folder: Path, facts: Callable[..., list[Facts]], ranks: int | None, more: list[str]
) -> None:
    """The example creates its loaders before the process group. Without `ranks` it starts its own processes."""
    epochs = 1 if more else 2
    words = ("--data", "shards/photos", "--devices", "2", "--epochs", str(epochs), "--batch-size", "4", "--size", "32")
    words += ("--save-every", "3", "--out", "straight", "--metrics", "metrics.jsonl")
    printed = run(folder, ROOT / "examples" / "07_lightning.py", *words, imports=IMPORTS, ranks=ranks)
    assert f"epoch {epochs - 1}: 40 samples, each once; accuracy" in printed
    steps = read_steps(folder / "metrics.jsonl")
    assert len(steps) == 10 * epochs
    for epoch in range(epochs):
        assert each_once(line["keys"] for line in steps.values() if line["epoch"] == epoch)

    ranks = facts("lightning", *more, ranks=2, imports=IMPORTS)
    checkpoints = {"step=3": 3} if more else {"step=3": 3, "epoch=0": 5, "last": 9}
    for checkpoint, first in checkpoints.items():  # inside an epoch, at its end, in the next
        resumed = read_steps(*folder.glob(f"{checkpoint}-[01].jsonl"))
        assert resumed == {step_rank: line for step_rank, line in steps.items() if step_rank[0] >= first}
    if more:
        return

    for rank in ranks:
        assert rank["proof"] == "epoch 1: 32 samples, each once"
        assert len(rank["whole"]) == 10
        assert len({tuple(keys["short"]) for _, keys in rank["whole"]}) > 4
        for step, keys in rank["resumed"].items():
            assert keys == rank["whole"][int(step) :]
        changed, *resumed = rank["changed"]
        assert len(changed) == 10
        left_out = set(rank["left out"])
        assert not any(left_out & set(keys["only"]) for _, keys in changed[3:])
        assert left_out & {key for one in ranks for _, keys in one["changed"][0][:3] for key in keys["only"]}
        assert resumed == [changed[2:], changed[4:]]
    for epoch in (0, 1):
        assert each_once(keys["only"] for rank in ranks for number, keys in rank["streamed"] if number == epoch)
