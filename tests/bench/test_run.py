"""The benchmark measures every loader, reports missing ones, and leaves no process and no file behind."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from buckets import Vault
from secret_search import assert_hidden, assert_hidden_below, command_lines
from terminals import watched

import wds_tools as wt
import wds_tools.bench.dataset
from wds_tools.bench import BenchReport, bench, dataset, procfs, registry
from wds_tools.bench.process import LoaderProcess
from wds_tools.bench.registry import ALL, LIMIT, LOADERS, NOT_IN_WHEEL, OURS, PEERS
from wds_tools.bench.report import Prepared, Round, Spread
from wds_tools.bench.session import Session
from wds_tools.bench.workloads import WITH_BOXES, WORKER_STAGES, WORKLOADS, Setup
from wds_tools.errors import DestinationError, NotADatasetError, OptionError, WorkerError
from wds_tools.options import RemoteOptions
from wds_tools.reading.opening import open_shards


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder for temporary folders; a small epoch keeps the tests short."""
    with tempfile.TemporaryDirectory(prefix="b") as folder:  # a short path, because sockets are created below it
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(wds_tools.bench.dataset, "EPOCH_IMAGES", 80)
        yield Path(folder)


@pytest.fixture
def without_webdataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the import of webdataset fail in the loader processes."""
    stub = tmp_path / "stub" / "webdataset.py"
    stub.parent.mkdir()
    stub.write_text("raise ModuleNotFoundError('no webdataset', name='webdataset')")
    monkeypatch.setenv("PYTHONPATH", str(stub.parent))


def processes_of(folder: Path) -> list[bytes]:
    """Return the command lines that name a folder, as those of loader processes and their workers do."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(entry.read_bytes())
        except OSError:
            continue
    return [line for line in found if str(folder).encode() in line]


def assert_nothing_left(temporary: Path) -> None:
    assert list(temporary.iterdir()) == []
    assert processes_of(temporary) == []


def a_report(**changes) -> BenchReport:
    values = {
        "work": "train",
        "pictures": 240,
        "copies": 13,
        "mean_bytes": 108_000,
        "workers": 2,
        "batch_size": 128,
        "rounds": {
            "limit": [Round(2000, 2.0, 4.0, 10**8, 0.1), Round(1000, 2.0, 2.0, 10**8, 0.1)],
            "ours": [Round(1500, 2.0, 4.0, 2 * 10**8, 0.2), Round(1000, 2.0, 3.0, 2 * 10**8, 0.2)],
            "webdataset": [Round(500, 2.0, 4.0, 3 * 10**8, 0.3), Round(500, 2.0, 4.0, 3 * 10**8, 0.3)],
        },
        "missing": {},
        "pixels": {"webdataset": 0.25},
        "boxes": {},
        "prepared": {},
        "crop_ready": False,
        "stages": {},
        "load": 0.0,
        "machine": {"cores": "2"},
    }
    return BenchReport(**{**values, **changes})


MAX_DIFFERENCE = {
    "train": 2,
    "eval": 2,
    "small": 1,
    "ssl": 2,
    "detect": 2,
    "letterbox": 2,
    "mosaic": 2,
}  # of a peer's pixels from ours, by view


def assert_is_measured(found: BenchReport, view: str, peers: list[str], *, workers: int) -> None:
    names = ["limit", "ours", *peers]
    assert list(found.rounds) == names, found.missing
    for measured in (rounds[0] for rounds in found.rounds.values()):
        assert view == "bytes" or measured.images % (8 * workers) == 0  # whole shards are read there
        assert measured.seconds >= 0.1
        assert min(measured.images, measured.cpu_seconds, measured.memory_bytes, measured.first_batch_seconds) > 0
    assert list(found.pixels) == (peers if view in MAX_DIFFERENCE else [])
    assert all(0 <= levels <= MAX_DIFFERENCE[view] for levels in found.pixels.values())
    assert found.mean_bytes == 49_152 + 128 if view == "raw" else found.mean_bytes > 1000
    values = json.loads(json.dumps(found.to_dict()))
    assert all(values["summary"][name]["images_per_second"]["median"] > 0 for name in names)
    assert all(f"\n{name} " in found.to_text() for name in names)
    assert WORKLOADS[view].title in found.to_text()
    assert_own_formats_were_written(found)


@pytest.mark.torture
def test_one_run_measures_loaders_and_the_stages_of_ours_names_missing_peers_hides_a_secret_and_leaves_nothing(
    few, temporary, without_webdataset, monkeypatch, tmp_path
):
    """One run for all of this, because it starts a process per loader."""
    lines, shown = [], watched(monkeypatch)

    def look(line: str) -> None:
        lines.append(line)
        assert_hidden(command_lines())
        assert_hidden_below(temporary)

    (tmp_path / "peers").mkdir()
    for name in ("crop_ready", "peers/webdataset", "peers/hdf5"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.setattr(registry, "PACKAGE", tmp_path)  # imagefolder is missing there, as in an installed wheel
    remote = RemoteOptions.of(storage_options={"secret": Vault.SECRET})
    options = {"rounds": 1, "seconds": 0.1, "workers": 2, "batch_size": 8, "stages": True}
    peers = ["crop-ready", "webdataset", "hdf5-uint8", "imagefolder"]
    found = bench(f"vault://{few}", view="train", against=peers, **options, remote=remote, progress=look)
    assert_is_measured(found, "train", ["crop-ready"], workers=2)
    assert any("ours" in line and "images/s" in line for line in lines)
    for phase in ("starting the loaders", "writing their own formats", "comparing with ours", "measuring"):
        assert re.search(rf"{phase}:   0%\|          \| 0/[34] \[", shown.getvalue())
    assert "unpacking the images:   0%|" in shown.getvalue()

    assert all(found.stages[stage] > 0 for stage in WORKER_STAGES), found.stages
    assert found.stages["wait"] > 0 < found.stages["hand-over"]
    assert found.to_text().count("stages of our loader") == 1

    assert_hidden(json.dumps(found.to_dict()))
    reason = found.missing.pop("webdataset")
    assert reason.startswith("not installed: no module webdataset; pip install torch torchvision webdataset")
    assert "--python webdataset=PATH" in reason
    assert found.missing == {
        "hdf5-uint8": "workload 'train' is not supported, only small, raw",
        "imagefolder": NOT_IN_WHEEL,
    }
    assert "in the source repository only" in NOT_IN_WHEEL
    assert f"imagefolder: {NOT_IN_WHEEL}" in lines
    assert f"imagefolder: {NOT_IN_WHEEL}" in found.to_text()
    assert_nothing_left(temporary)


@pytest.mark.torture
@pytest.mark.parametrize(
    ("view", "peers"),
    [
        ("train", ["webdataset"]),
        ("eval", ["imagefolder-io", "crop-ready"]),
        ("ssl", ["imagefolder"]),
        ("detect", ["webdataset"]),
        ("letterbox", ["imagefolder", "imagefolder-io"]),
        ("train", ["imagefolder", "hdf5", "lmdb", "imagefolder-io"]),
        ("eval", ["imagefolder", "webdataset", "hdf5", "lmdb"]),
        ("small", ["imagefolder", "webdataset", "hdf5", "hdf5-uint8", "lmdb"]),
        ("ssl", ["imagefolder-io", "webdataset", "hdf5", "lmdb", "crop-ready"]),
        ("detect", ["imagefolder", "imagefolder-io"]),
        ("raw", ["imagefolder", "webdataset", "hdf5", "lmdb"]),
        ("bytes", ["imagefolder", "webdataset", "hdf5", "lmdb"]),
    ],
)
def test_every_loader_is_measured_and_nothing_is_left(few, temporary, view, peers):
    workers = 2 if view in ("train", "eval") else 1
    found = bench(few, view=view, against=peers, rounds=1, seconds=0.1, workers=workers, batch_size=8)
    assert not found.missing
    assert_is_measured(found, view, peers, workers=workers)
    assert_nothing_left(temporary)


@pytest.mark.parametrize(
    ("view", "peers"),
    [
        ("ssl", ("imagefolder", "webdataset")),
        ("detect", ("imagefolder", "webdataset")),
        ("letterbox", ("imagefolder",)),
        ("mosaic", ("crop-ready",)),
    ],
)
@pytest.mark.torture_except("detect-peers1")
def test_loaders_yield_whole_batches_of_several_crops_and_of_boxes(few, temporary, view, peers):
    """In this process, because starting a process per loader takes ten times as long."""
    copy = dataset.prepare_dataset(open_shards(few), temporary, workload=view, workers=1, batch_size=4)
    pixels, boxes = {}, {}
    for name in ("limit", "ours", *peers):
        setup = Setup(name, str(temporary), str(copy.tree), str(copy.shards), view, 1, 4, copy.probes)
        module = importlib.import_module(f"wds_tools.bench.{LOADERS[name].module}")
        if hasattr(module, "prepare"):
            module.prepare(setup)
        with closing(module.batch_sizes(setup, 0)) as batches:
            assert [next(batches) for _ in range(2)] == [4, 4], name
        pixels[name] = module.probe_pixels(setup)
        boxes[name] = module.probe_boxes(setup) if setup.has_boxes and name != "limit" else []
    for name in peers:
        levels = [
            (a.float() - b.float()).abs().mean().item() for a, b in zip(pixels[name], pixels["ours"], strict=True)
        ]
        assert np.median(levels) < MAX_DIFFERENCE[view], name
        assert (np.median(levels) > 0) == (name != "crop-ready"), name
        for expected, moved in zip(boxes[name], boxes["ours"], strict=True):
            assert len(moved) == 8
            assert torch.allclose(moved, expected, atol=0.01)


def assert_own_formats_were_written(found: BenchReport) -> None:
    stored = [name for name in found.rounds if LOADERS[name].size_ratio or LOADERS[name].stores_floats]
    assert all(found.prepared[name].bytes > 0 for name in stored)
    assert found.to_text().count("its own format took") >= len(stored)


@pytest.mark.parametrize(
    ("peer", "view"),
    [
        pytest.param("litdata", "raw", marks=[pytest.mark.frameworks, pytest.mark.torture]),
        pytest.param("litdata", "ssl", marks=[pytest.mark.frameworks, pytest.mark.torture]),
        pytest.param("dali", "train", marks=pytest.mark.peers),
        pytest.param("dali", "ssl", marks=pytest.mark.peers),
        pytest.param("dali", "detect", marks=pytest.mark.peers),
        pytest.param("albumentations", "letterbox", marks=pytest.mark.peers),
        pytest.param("albumentations", "mosaic", marks=pytest.mark.peers),
        pytest.param("ultralytics", "letterbox", marks=pytest.mark.peers),
        pytest.param("ultralytics", "mosaic", marks=pytest.mark.peers),
        pytest.param("ffcv", "raw", marks=pytest.mark.peers),
        pytest.param("tfdata", "train", marks=pytest.mark.peers),
        pytest.param("mosaic", "bytes", marks=pytest.mark.peers),
        pytest.param("mosaic", "ssl", marks=pytest.mark.peers),
    ],
)
def test_an_optional_peer_is_measured_where_it_is_installed(few, temporary, peer, view):
    found = bench(few, view=view, against=[peer], rounds=1, seconds=0.1, workers=1, batch_size=8)
    assert not found.missing
    assert list(found.rounds) == ["limit", "ours", peer]
    assert list(found.boxes) == ([peer] if view in WITH_BOXES and peer != "dali" else [])
    assert all(0 <= edges.median < 0.01 for edges in found.boxes.values())
    assert_own_formats_were_written(found)
    assert_nothing_left(temporary)


class KnowsBoxes:
    """A loader process that knows its boxes."""

    def __init__(self, name: str, boxes: list[list[float]]) -> None:
        self.name, self.boxes = name, boxes

    def call(self, _command: str, values: dict[str, Any]) -> None:
        np.savez(values["file"], boxes=np.array(self.boxes))


def test_a_peer_with_another_number_of_boxes_is_left_out_before_the_rounds(tmp_path):
    box = [1.0, 2.0, 30.0, 40.0]
    moved = {OURS: [box, box], "imagefolder": [box, [1.0, 2.0, 30.0, 43.5]], "ultralytics": [box]}
    setup = Setup("", str(tmp_path), "", "", "letterbox", 1, 1, ())
    session = Session([KnowsBoxes(name, boxes) for name, boxes in moved.items()], setup, lambda _: None)
    session.compare()
    found = session.report(dataset.BenchDataset(tmp_path, tmp_path, 1, 1, 1, (), crop_ready=False), 0.0, {})
    assert found.boxes == {"imagefolder": Spread(1.75, 0.0, 3.5)}
    assert found.missing == {"ultralytics": "1 box of the compared images, but 2 boxes of ours"}


def test_another_environment_needs_nothing_but_numpy_and_the_peer(temporary, tmp_path, monkeypatch):
    """An interpreter that has only numpy runs until the peer is imported."""
    site = Path(np.__file__).parents[1]
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            (packages / name).symlink_to(site / name)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(site))  # must not reach the other environment
    folder = temporary / "foreign"
    folder.mkdir()
    process = LoaderProcess("dali", folder, str(python))
    try:
        with pytest.raises(WorkerError, match=rf"no module nvidia in {python}; pip install nvidia-dali"):
            process.wait_until_loaded()
    finally:
        process.close()
        process.wait_or_kill(time.monotonic() + 10)
    assert_nothing_left(temporary)


def test_the_registry_is_consistent():
    folder = Path(wds_tools.bench.dataset.__file__).parent
    for name, entry in LOADERS.items():
        assert (folder / f"{entry.module.replace('.', '/')}.py").is_file(), name
        assert set(entry.workloads) <= set(ALL) == set(WORKLOADS)
        assert set(entry.workload_notes) <= set(entry.workloads)
        assert all(entry.note_for(workload) for workload in entry.workloads)
        assert not any(entry.why_unavailable(workload) for workload in entry.workloads)
    assert set(PEERS) == set(LOADERS) - {LIMIT, OURS}


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
@pytest.mark.torture_except("15-SystemExit")
def test_an_interrupt_leaves_nothing_behind(few, temporary, number, expected):
    with pytest.raises(expected):
        bench(few, against=["imagefolder"], progress=lambda _: signal.raise_signal(number))
    assert_nothing_left(temporary)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.torture
def test_an_interrupt_after_a_peer_has_written_its_format_leaves_nothing_behind(few, temporary):
    def interrupt(line: str) -> None:
        if "its own format written" in line:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        bench(few, view="bytes", against=["lmdb"], workers=1, batch_size=8, progress=interrupt)
    assert_nothing_left(temporary)


@pytest.mark.torture
def test_the_temporary_folder_is_removed_even_if_the_main_process_is_killed(temporary):
    folder = temporary / "killed"
    folder.mkdir()
    process = LoaderProcess("limit", folder)
    process.wait_until_loaded()
    process.close()  # as happens when the main process ends
    process.wait_or_kill(time.monotonic() + 10)
    assert_nothing_left(temporary)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"view": "nap"}, "allowed are train, eval"),
        ({"against": ["dali9"]}, "unknown peer 'dali9'; allowed are crop-ready, imagefolder"),
        ({"workers": 0}, "workers=0; allowed are whole numbers of 1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"pythons": {"dali": sys.executable}}, "'dali' is not one of the peers of this run; these are crop-ready"),
        ({"pythons": {"imagefolder": "/no/python"}}, "imagefolder=/no/python: no such program"),
        ({"rounds": 0}, "rounds=0"),
        ({"seconds": 0}, "seconds=0"),
    ],
)
def test_an_invalid_argument_is_an_error_before_anything_starts(few, temporary, options, message):
    with pytest.raises(OptionError, match=message):
        bench(few, **options)
    assert_nothing_left(temporary)


def test_a_missing_dataset_is_an_error_before_anything_starts(temporary, tmp_path):
    lines = []
    with pytest.raises(NotADatasetError):
        bench(tmp_path / "nowhere", progress=lines.append)
    assert lines == []
    assert_nothing_left(temporary)


def test_too_little_disk_space_is_an_error_and_formats_of_peers_count(few, temporary, monkeypatch):
    free = 10_000_000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(DestinationError, match=r"needs 0\.\d GB .* has only 0\.0 GB free: .* fewer peers"):
        bench(few, view="small", against=["hdf5"])
    assert_nothing_left(temporary)
    floats = LOADERS["hdf5"].disk_bytes("small", samples=10, size=100, pixels=128 * 128)
    assert floats == 10 * 4 * 3 * 128 * 128
    assert LOADERS["hdf5"].disk_bytes("train", samples=10, size=100, pixels=128 * 128) == 110


def test_a_damaged_image_is_left_out():
    assert dataset.square(memoryview(b"\xff\xd8 broken"), 128) is None


def test_ratios_are_computed_round_by_round():
    summary = a_report().to_dict()["summary"]
    assert summary["ours"]["of_limit"] == {"median": 0.875, "lowest": 0.75, "highest": 1.0}
    assert summary["webdataset"]["ours_is"] == {"median": 2.5, "lowest": 2.0, "highest": 3.0}
    assert summary["limit"]["ours_is_by_cpu"] == {
        "median": pytest.approx((2 / 3 + 3 / 4) / 2),
        "lowest": pytest.approx(2 / 3),
        "highest": pytest.approx(3 / 4),
    }


def test_the_table_has_median_and_range():
    lines = a_report().to_text().splitlines()
    ours = next(line for line in lines if line.startswith("ours "))
    for cell in ("625 [500-750]", "0.88 [0.75-1.00]", "2.83 [2.67-3.00]", "200 MB", "0.20 s"):
        assert cell in ours
    webdataset = next(line for line in lines if line.startswith("webdataset "))
    for cell in ("250", "2.50 [2.00-3.00] x", "2.83 [2.67-3.00] x", "0.25"):
        assert cell in webdataset


def test_pixels_that_differ_and_a_busy_machine_are_noted():
    text = a_report(pixels={"webdataset": 3.1}, load=2.5).to_text()
    assert "webdataset: its pixels differ from ours by 3.1 of 255" in text
    assert "the machine was busy before the start: load 2.5" in text
    assert "differ" not in a_report().to_text().replace("mean difference", "")


def test_boxes_have_a_column_where_there_are_boxes_and_a_note_where_they_differ():
    assert "boxes" not in a_report().to_text().splitlines()[3]
    same, differing = ({"webdataset": Spread(median, 0.0, 3.5)} for median in (0.5, 1.5))
    lines = a_report(boxes=same).to_text().splitlines()
    assert lines[3].endswith("pixels  boxes")
    assert next(line for line in lines if line.startswith("webdataset ")).endswith("0.25    0.50 [0.00-3.50]")
    assert "boxes differs" not in "\n".join(lines)
    assert "webdataset: an edge of its boxes differs from ours by 1.5 pixels" in a_report(boxes=differing).to_text()


def test_a_crop_ready_dataset_is_noted():
    assert "the dataset is crop-ready" in a_report(crop_ready=True).to_text()
    assert "the dataset is crop-ready" not in a_report().to_text()


def test_a_crop_ready_dataset_is_detected(six_photos, temporary, tmp_path):
    for images in ("keep", "crop-ready"):
        wt.pack(six_photos, tmp_path / images, images=images, workers=1, progress=False)
        folder = temporary / images
        folder.mkdir()
        copy = dataset.prepare_dataset(
            open_shards(tmp_path / images), folder, workload="train", workers=1, batch_size=1
        )
        assert copy.crop_ready == (images == "crop-ready")


def test_the_size_of_a_peers_own_format_is_noted():
    text = a_report(prepared={"webdataset": Prepared(2.5, 240 * 13 * 54_000)}).to_text()
    assert "webdataset: WebDataset()" in text
    assert "its own format took 2.5 s to write and has 50% of the bytes" in text


def test_cpu_time_and_memory_include_all_descendants():
    busy = "import time; data = bytearray(50_000_000); t = time.process_time()\n"
    busy += "while time.process_time() - t < 0.1: pass\nprint(flush=True); input()"
    members = procfs.process_tree(os.getpid())
    before = procfs.cpu_seconds(os.getpid())
    memory = procfs.memory_bytes(os.getpid())
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert set(procfs.process_tree(os.getpid())) - set(members) == {child.pid}
        assert procfs.cpu_seconds(os.getpid()) - before >= 0.1
        assert procfs.memory_bytes(os.getpid()) - memory >= 50_000_000
    assert procfs.cpu_seconds(os.getpid()) - before >= 0.1  # also when the child has ended
    assert child.pid not in procfs.process_tree(os.getpid())
