"""The examples run unchanged, each in its own process, on the sample images."""

from __future__ import annotations

import csv
import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import preloaded
import pytest
import torch

import wds_tools as wt

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")
FORKED_TORCHRUN = (str(Path(__file__).with_name("forked_torchrun.py")),)
# Small enough to train a ResNet-18 in seconds: 40 samples are 5 steps of 8 per epoch.
TINY = ("--size", "32", "--batch-size", "8", "--save-every", "3")


def command(*words: str | Path) -> list[str]:
    """Return the words that run an example with Python, given its file name and arguments."""
    return [str(EXAMPLES / words[0]), *map(str, words[1:])]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def run(words: list[str], *, ranks: int | None = None) -> str:
    done = preloaded.run(words, env=environment(), ranks=ranks)
    assert done.returncode == 0, done.stderr
    return done.stdout


def read_steps(path: Path) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the metrics by step and rank. A step that was repeated must have the same metrics."""
    steps: dict[tuple[int, int], dict[str, Any]] = {}
    for line in map(json.loads, path.read_text().splitlines()):
        assert steps.setdefault((line["step"], line["rank"]), line) == line
    return steps


def test_pack_folder_reports_classes_and_shards_and_keeps_them_on_a_rerun(tmp_path: Path, six_photos: Path) -> None:
    words = command("01_pack_folder.py", six_photos, tmp_path / "photos", "--shard-bytes", "100kB")
    first, second = run(words), run(words)
    assert first.startswith("6 images of 2 classes")
    assert "0 cat, 1 fig" in first
    written = re.search(r"(\d) shards written, 0 kept", first)
    assert written
    assert int(written[1]) > 1
    assert f"0 shards written, {written[1]} kept" in second


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory, few: Path) -> Path:
    """Return the metrics of two epochs of 02_train.py in one process, without interruption."""
    folder = tmp_path_factory.mktemp("one")
    run([*train_words(few, folder), "--epochs", "2", "--metrics", str(folder / "metrics.jsonl")])
    return folder / "metrics.jsonl"


@pytest.mark.torture
def test_train_packs_a_folder_of_images_while_it_trains(tmp_path: Path, six_photos: Path) -> None:
    metrics, packed = tmp_path / "metrics.jsonl", tmp_path / "packed"
    train = train_words(packed, tmp_path)
    run([*train, "--images", str(six_photos), "--batch-size", "2", "--epochs", "2", "--metrics", str(metrics)])
    steps = read_steps(metrics)
    assert sorted(steps) == [(step, 0) for step in range(1, 7)]
    with wt.make_loader(packed, batch_size=6, fields="__key__", num_workers=0) as loader:
        (all_keys,) = loader
    for epoch in range(2):
        assert sorted(key for line in steps.values() if line["epoch"] == epoch for key in line["keys"]) == sorted(
            all_keys
        )


def train_words(data: Path, folder: Path) -> list[str]:
    return command("02_train.py", "--data", data, *TINY, "--checkpoint", folder / "checkpoint.pt")


@pytest.mark.parametrize("compared", [False, pytest.param(True, marks=pytest.mark.torture)])
def test_train_after_kill_9_and_resume_has_the_same_samples_and_losses(
    request: pytest.FixtureRequest, tmp_path: Path, few: Path, compared: bool
) -> None:
    """Steps that are done twice are the same; all are those of a run without interruption."""
    killed, checkpoint = tmp_path / "killed.jsonl", tmp_path / "checkpoint.pt"
    epochs = 2 if compared else 1
    train = [*train_words(few, tmp_path), "--epochs", str(epochs), "--metrics", str(killed)]
    train += [] if compared else ["--save-every", "2"]
    while True:
        process = preloaded.Process(train, env=environment())
        while process.poll() is None and not (killed.exists() and len(read_complete_lines(killed)) >= 3 + compared):
            time.sleep(0.01)
        process.kill()
        if process.wait() == -9:
            break
        assert process.returncode == 0, process.stderr  # on a busy machine, it may end before it is killed
        killed.unlink()
        checkpoint.unlink()
    killed.write_text("".join(read_complete_lines(killed)))
    run([*train, "--resume"])

    steps = read_steps(killed)  # compares keys and losses
    assert len(steps) == 5 * epochs
    for epoch in range(epochs):
        assert len({key for line in steps.values() if line["epoch"] == epoch for key in line["keys"]}) == 40
    if compared:
        assert steps == read_steps(request.getfixturevalue("one_process"))


def read_complete_lines(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.parametrize("torchrun", [FORKED_TORCHRUN, TORCHRUN])
@pytest.mark.torture
def test_train_under_torchrun_has_every_sample_once_and_the_steps_of_one_process(
    tmp_path: Path, few: Path, one_process: Path, torchrun: tuple[str, ...]
) -> None:
    two = tmp_path / "two.jsonl"
    train = [*train_words(few, tmp_path), "--epochs", "1", "--batch-size", "4", "--metrics", str(two)]
    out = run([*torchrun, "--nproc-per-node", "2", *train, "--val", str(few)])
    assert "accuracy" in out
    assert out.count("epoch 0: step 5") == 1

    keys_by_step: dict[int, list[str]] = defaultdict(list)
    for (step, _rank), line in read_steps(two).items():
        keys_by_step[step] += line["keys"]
    assert {step: sorted(keys) for step, keys in keys_by_step.items()} == {
        step: sorted(line["keys"]) for (step, _rank), line in read_steps(one_process).items() if step <= 5
    }
    assert len({key for keys in keys_by_step.values() for key in keys}) == 40


@pytest.mark.torture
def test_plain_dataloader_yields_whole_batches_from_both_workers(packed: Path) -> None:
    out = run(command("03_plain_dataloader.py", packed))
    assert "epoch 0: 384 of 384 samples, as batches torch.uint8 [32, 3, 96, 96]" in out
    assert "epoch 1: 384 of 384" in out


def test_shards_written_by_webdataset_are_indexed_and_streamed(tmp_path: Path) -> None:
    out = run(command("04_from_webdataset_shards.py", tmp_path))
    assert "indexed 4 shards with 384 samples; fields: cls, jpg, txt" in out
    assert "48 batches of 8" in out
    assert (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize("shorter", [True, pytest.param(False, marks=pytest.mark.torture)])
def test_demo_runs_every_step_and_the_model_learns(tmp_path: Path, shorter: bool) -> None:
    # The demo works in the repository that contains it; here that is a folder with the same images.
    (tmp_path / "examples").mkdir()
    demo = Path(shutil.copy(EXAMPLES / "demo.py", tmp_path / "examples"))
    if shorter:
        code = demo.read_text()
        for usual, short in (("= 3.0, 30.0", "= 0.1, 30.0"), ("= 64, 32, 8, 3e-3", "= 48, 8, 3, 3e-3")):
            assert usual in code
            code = code.replace(usual, short)
        demo.write_text(code)
    images = tmp_path / "shards" / "sample" / "images"
    for path in sorted((ROOT / "shards" / "sample" / "images").glob("*/*[05].*" if shorter else "*/*")):
        (images / path.parent.name).mkdir(parents=True, exist_ok=True)
        (images / path.parent.name / path.name).symlink_to(path)
    out = run([str(demo)])
    assert "$ wds-tools pack build/demo/train shards/demo/train" in out
    assert "its next batch is the same, pixel by pixel" in out
    assert re.search(r"[0-9,]+ images per second", out)
    accuracies = [float(number) for number in re.findall(r"held-out accuracy +([0-9.]+)%", out)]
    assert len(accuracies) >= 2
    assert max(accuracies) > (30 if shorter else 60), "chance is 12.5"
    assert (tmp_path / "shards" / "demo" / "val" / "manifest.json").exists()


def test_ddp_training_resumes_on_one_process_and_evaluates_each_sample_once(tmp_path: Path, few: Path) -> None:
    words = ["--train", few, "--val", few, "--model", "shufflenet_v2_x0_5", "--size", "32", "--batch-size", "8"]
    train = command("05_ddp_imagenet.py", *words, "--epochs", "1", "--workers", "1", "--checkpoint", tmp_path / "c.pt")
    stopped = run([*train, "--stop-after", "3"], ranks=2)
    assert "samples" not in stopped
    resumed = run([*train, "--resume"], ranks=1)
    assert "epoch 0 from position 24 on: 16 samples, each once; step 5, " in resumed
    assert resumed.count(" of 40\n") == 1


@pytest.mark.torture
def test_shuffle_quality_prints_its_tables_and_draws_its_chart(tmp_path: Path) -> None:
    out = run(command("16_shuffle_quality.py", "--samples", "20000", "--out", tmp_path / "quality.svg"))
    assert "| packed by `pack` | 4,096 | 1 | 256 | " in out
    assert out.count("|---") > 10
    assert "1 / (1 + (B - 1) b / W)" in out
    assert (tmp_path / "quality.svg").read_text().count("<circle") > 100


@pytest.mark.torture
def test_processes_or_threads_makes_the_same_batches_and_prints_a_table(packed: Path) -> None:
    out = run(command("06_processes_or_threads.py", packed, "--rounds", "1", "--seconds", "0.05", "--batch-size", "16"))
    rows = [line.split()[:3] for line in out.partition("CPU-s per 1,000")[2].splitlines()[1:]]
    cores = min(2, len(os.sched_getaffinity(0)))
    assert rows == [[str(c), w, t] for c in range(1, cores + 1) for w in "12" for t in "12"]


def test_segmentation_learns_masks_that_follow_the_crops(tmp_path: Path) -> None:
    out = run(command("09_segmentation.py", tmp_path / "masks", "--count", "48", "--epochs", "2", "--size", "48"))
    shares = [float(number) for number in re.findall(r"epoch \d: loss [0-9.]+, ([0-9.]+)% of the pixels right", out)]
    assert len(shares) == 2
    assert shares[1] > 70, "about half of the pixels are brighter than the mean"


@pytest.mark.frameworks
@pytest.mark.torture
def test_detection_trains_a_detector_of_torchvision_on_the_boxes_and_masks_in_the_crops(tmp_path: Path) -> None:
    options = ("--model", "maskrcnn", "--count", "10", "--epochs", "1", "--size", "32")
    out = run(command("10_detection.py", tmp_path / "boxes", *options))
    found = re.search(r"epoch 0: (\d+) objects, loss [0-9.]+, mAP [0-9.]+", out)
    assert found, out
    assert 5 <= int(found[1]) <= 24, "one to three per image, less those outside the crop"


@pytest.fixture(scope="module")
def boxes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write datasets of 21 and 7 photographs with objects, and train a detector with the dataset of torchvision."""
    folder = tmp_path_factory.mktemp("objects")
    options = ("--count", "28", "--epochs", "1", "--size", "32", "--loader", "torchvision")
    trained = re.search(r"epoch 0: (\d+) objects, loss [0-9.]+, mAP", run(command("10_detection.py", folder, *options)))
    assert trained
    assert 12 <= int(trained[1]) <= 48, "one to three in each of 16 images, less those outside the crop"
    return folder


@pytest.mark.frameworks
@pytest.mark.torture
def test_detr_gets_what_the_processor_of_transformers_makes_of_the_images_and_boxes(boxes: Path) -> None:
    from transformers import DetrImageProcessor

    found = importlib.util.spec_from_file_location("detr", EXAMPLES / "14_detr.py")
    assert found
    assert found.loader
    detr = importlib.util.module_from_spec(found)
    found.loader.exec_module(detr)
    options: dict[str, Any] = {"batch_size": 7, "num_workers": 0}
    with wt.make_loader(boxes / "val", fields=detr.fields_of(64), **options) as loader:
        ours = detr.inputs_of(next(iter(loader)))
    stored = {"image": wt.Image(), "json": wt.Field("json")}
    with wt.make_loader(boxes / "val", fields=stored, **options) as loader:
        images, facts = next(iter(loader))
    annotations = [
        {"image_id": number, "annotations": [coco_of(item, number) for item in one["objects"]]}
        for number, one in enumerate(facts)
    ]
    processor = DetrImageProcessor(size={"shortest_edge": 64, "longest_edge": 1333})
    theirs = processor(list(images), annotations=annotations, return_tensors="pt")
    assert torch.equal(ours["pixel_mask"], theirs["pixel_mask"])
    assert (ours["pixel_values"] - theirs["pixel_values"]).abs().mean() < 0.05  # of about -2 to 2
    for one, other in zip(ours["labels"], theirs["labels"], strict=True):
        assert torch.equal(one["class_labels"], other["class_labels"])
        assert torch.allclose(one["boxes"], other["boxes"], atol=1e-5)


def coco_of(item: dict[str, Any], number: int) -> dict[str, Any]:
    """Return an object as an annotation of COCO."""
    left, top, right, bottom = item["box"]
    size = right - left, bottom - top
    entries = {"image_id": number, "category_id": item["category"], "iscrowd": 0}
    return {**entries, "bbox": [left, top, *size], "area": size[0] * size[1]}


@pytest.mark.peers
def test_detr_of_transformers_trains_on_shards(boxes: Path) -> None:
    out = run(command("14_detr.py", boxes / "train", "--size", "64", "--epochs", "2"))
    assert len(re.findall(r"epoch \d: loss \d+\.\d+", out)) == 2


@pytest.mark.peers
def test_the_trainer_of_ultralytics_trains_and_validates_on_shards(boxes: Path, tmp_path: Path) -> None:
    options = ("model=yolov8n.yaml", "imgsz=64", "epochs=2", "batch=7", "device=cpu", f"project={str(tmp_path)!r}")
    words = command("13_ultralytics.py", boxes / "train", boxes / "val", *options, "name='run'", "close_mosaic=1")
    how: dict[str, Any] = {"cwd": tmp_path, "env": environment(), "capture_output": True, "text": True}
    done = subprocess.run([sys.executable, *words], check=False, **how)
    assert done.returncode == 0, done.stderr
    assert re.search(r"all +7 +\d+", done.stdout + done.stderr), "validation has each of the 7 images once"
    rows = list(csv.DictReader((tmp_path / "run/results.csv").read_text().splitlines(), skipinitialspace=True))
    assert len(rows) == 2
    assert all(math.isfinite(float(row[f"{part}/box_loss"])) for row in rows for part in ("train", "val"))


@pytest.mark.frameworks
@pytest.mark.torture
def test_two_ranks_measure_the_map_that_torchvision_loads_on_one(boxes: Path) -> None:
    assert len(list((boxes / "coco/images/val").iterdir())) == 7, "an odd number, so one image fills up"
    program = str(Path(__file__).with_name("detection_map.py"))
    [expected] = {float(line) for line in run([program, str(boxes), "torchvision"]).splitlines()}
    assert 0.1 < expected < 0.9
    assert {float(line) for line in run([program, str(boxes), "ours"], ranks=2).splitlines()} == {expected}


def test_self_supervised_training_gets_two_large_and_eight_small_crops(few: Path) -> None:
    options = ("--epochs", "1", "--batch-size", "20", "--sizes", "48", "24")
    out = run(command("11_self_supervised.py", few, *options))
    assert re.search(r"epoch 0: loss \d+\.\d+, 10 crops per image: \(20, 3, 48, 48\), \(20, 3, 24, 24\)", out)


def test_captions_are_encoded_in_the_workers_and_learned(tmp_path: Path) -> None:
    out = run(command("12_captions.py", tmp_path / "captions", "--count", "64", "--epochs", "2", "--size", "32"))
    losses = [float(number) for number in re.findall(r"epoch \d: loss ([0-9.]+); for 'a \w+ photo of a ", out)]
    assert len(losses) == 2
    assert losses[1] < math.log(32), "the loss of guessing among 32 texts"


def test_weights_follow_the_losses_and_a_resumed_run_goes_on_with_the_same_ones(tmp_path: Path, few: Path) -> None:
    def steps(folder: str, *options: str) -> list[str]:
        words = ("--data", few, "--every", "2", "--batch-size", "8", "--folder", tmp_path / folder)
        return re.findall(r"^step .*$", run(command("15_reweight_from_loss.py", *words, *options)), re.MULTILINE)

    whole = steps("whole", "--steps", "6")
    assert len(whole) == 3
    assert re.fullmatch(r"step 6: loss [0-9.]+, hardest \w+ \(weight [1-4]\.\d\d\)", whole[-1])
    assert steps("parts", "--steps", "4") == whole[:2]
    assert steps("parts", "--steps", "6", "--resume") == whole[2:]


@pytest.mark.torture
def test_profile_prints_functions_and_stages(packed: Path, tmp_path: Path) -> None:
    options = ("--seconds", "0.1", "--batch-size", "16", "--rows", "5", "--workers", "1")
    out = run(command("profile_loader.py", packed, *options, "--out", tmp_path / "loader.pstats"))
    assert "cProfile of one process without workers" in out
    assert len(re.findall(r"^ +[0-9.]+ +[0-9.]+ +[0-9.]+  \S", out, re.MULTILINE)) == 5
    stages = re.findall(r"^ +[0-9.]+ +[0-9.]+%  (\S+)$", out, re.MULTILINE)
    assert stages == ["read", "verify", "slice", "decode", "resize", "write", "other", "hand-over", "wait"]
    assert (tmp_path / "loader.pstats").stat().st_size > 1000
