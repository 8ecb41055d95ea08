"""The benchmark measures every contender, says who is missing, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import wds_tools as wt
import wds_tools.bench.dataset
from wds_tools.bench import BenchReports, bench, dataset, procfs, stages
from wds_tools.bench.process import Contestant
from wds_tools.bench.registry import ALL, CONTENDERS, LIMIT, OURS, PEERS
from wds_tools.bench.report import BenchReport, Prepared, Round
from wds_tools.bench.workloads import IN_A_WORKER, WORKS
from wds_tools.errors import DestinationError, NotADatasetError, OptionError, WorkerError
from wds_tools.reading.shardset import open_shards


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder in which temporary folders are made; a small epoch keeps the tests short."""
    with tempfile.TemporaryDirectory(prefix="b") as folder:  # a short name, as users have it: sockets are made below
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setattr(wds_tools.bench.dataset, "EPOCH_IMAGES", 80)
        yield Path(folder)


@pytest.fixture
def without_webdataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make webdataset impossible to import in the contenders' processes."""
    stub = tmp_path / "stub" / "webdataset.py"
    stub.parent.mkdir()
    stub.write_text("raise ModuleNotFoundError('no webdataset', name='webdataset')")
    monkeypatch.setenv("PYTHONPATH", str(stub.parent))


def processes_of(folder: Path) -> list[bytes]:
    """Return the command lines that name a folder, as those of the contenders do; their workers share them."""
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
        "prepared": {},
        "crop_ready": False,
        "stages": {},
        "load": 0.0,
        "machine": {"cores": "2"},
    }
    return BenchReport(**{**values, **changes})


@pytest.mark.parametrize(
    ("view", "peers", "pixels_apart"),
    [
        ("train", ["imagefolder", "webdataset", "hdf5"], 2),
        ("eval", ["imagefolder-io", "crop-ready", "lmdb"], 2),
        ("small", ["imagefolder", "webdataset", "hdf5-uint8"], 1),
        ("raw", ["imagefolder", "webdataset", "lmdb"], None),
        ("bytes", ["imagefolder", "webdataset", "hdf5"], None),
    ],
)
def test_every_contender_is_measured_and_nothing_is_left(few, temporary, view, peers, pixels_apart):
    told = []
    workers = 2 if view in ("train", "eval") else 1
    found = bench(
        few, view=view, against=peers, rounds=1, seconds=0.1, workers=workers, batch_size=8, progress=told.append
    )
    (report,) = found.reports
    everyone = ["limit", "ours", *peers]
    assert list(report.rounds) == everyone
    assert not report.missing
    for measured in (rounds[0] for rounds in report.rounds.values()):
        assert view == "bytes" or measured.images % (8 * workers) == 0  # whole shards are read there
        assert measured.seconds >= 0.1
        assert min(measured.images, measured.cpu_seconds, measured.memory_bytes, measured.first_batch_seconds) > 0
    assert list(report.pixels) == ([] if pixels_apart is None else peers)
    assert all(0 <= levels <= pixels_apart for levels in report.pixels.values())
    assert report.mean_bytes == 49_152 + 128 if view == "raw" else report.mean_bytes > 1000
    values = json.loads(json.dumps(report.to_dict()))
    assert all(values["summary"][name]["images_per_second"]["median"] > 0 for name in everyone)
    assert all(f"\n{name} " in found.render() for name in everyone)
    assert any("ours" in line and "images/s" in line for line in told)
    assert WORKS[view].says in found.render()
    assert_peers_have_written_their_formats(found)
    assert_nothing_left(temporary)


def assert_peers_have_written_their_formats(found: BenchReports) -> None:
    (report,) = found.reports
    stored = [name for name in report.rounds if CONTENDERS[name].stores or CONTENDERS[name].floats]
    assert all(report.prepared[name].bytes > 0 for name in stored)
    assert found.render().count("its own format took") >= len(stored)


@pytest.mark.parametrize(
    ("peer", "view"),
    [
        pytest.param("litdata", "raw", marks=pytest.mark.frameworks),
        pytest.param("dali", "train", marks=pytest.mark.peers),
        pytest.param("ffcv", "raw", marks=pytest.mark.peers),
        pytest.param("tfdata", "train", marks=pytest.mark.peers),
        pytest.param("mosaic", "bytes", marks=pytest.mark.peers),
    ],
)
def test_a_peer_that_may_be_missing_is_measured_where_it_is_installed(few, temporary, peer, view):
    found = bench(few, view=view, against=[peer], rounds=1, seconds=0.1, workers=1, batch_size=8)
    (report,) = found.reports
    assert not report.missing
    assert list(report.rounds) == ["limit", "ours", peer]
    assert_peers_have_written_their_formats(found)
    assert_nothing_left(temporary)


def test_several_numbers_of_workers_have_a_table_each_and_a_line_of_scaling(few, temporary):
    found = bench(few, against=[], rounds=2, seconds=0.1, workers=[2, 1], batch_size=8, stages=True)
    assert [report.workers for report in found.reports] == [1, 2]
    assert all(len(rounds) == 2 for report in found.reports for rounds in report.rounds.values())
    assert found.scaling("ours")[1].median == 1
    assert "ours: images/s by workers, 1: 1 x, 2: " in found.render()
    for report in found.reports:
        assert all(report.stages[stage] > 0 for stage in IN_A_WORKER), report.stages
        assert report.stages["wait"] > 0 < report.stages["hand-over"]
    assert found.render().count("our own path") == 2
    assert_nothing_left(temporary)


def test_the_stages_are_taken_apart_and_put_back():
    before = [getattr(wrap.owner, wrap.inside or wrap.name) for wrap in stages._WRAPS]
    clock = stages._Clock()
    inner = clock.timed("inner", lambda: time.sleep(0.02))
    with stages._wrapped(clock):
        assert all(
            getattr(w.owner, w.inside or w.name) is not old for w, old in zip(stages._WRAPS, before, strict=True)
        )
        clock.timed("outer", inner)()
    assert [getattr(wrap.owner, wrap.inside or wrap.name) for wrap in stages._WRAPS] == before
    assert clock.seconds["inner"] >= 0.02 > clock.seconds["outer"] > 0


def test_a_peer_that_is_not_installed_is_reported_and_left_out(few, temporary, without_webdataset):
    found = bench(few, against=["webdataset"], rounds=1, seconds=0.1, workers=1, batch_size=8)
    (report,) = found.reports
    told = report.missing["webdataset"]
    assert told.startswith("not installed: there is no module webdataset; pip install torch torchvision webdataset")
    assert "--python webdataset=PATH" in told
    assert list(report.rounds) == ["limit", "ours"]
    assert "webdataset: not installed: there is no module" in found.render()
    assert_nothing_left(temporary)


def test_a_peer_that_does_not_do_the_work_is_reported(few, temporary):
    found = bench(few, view="bytes", against=["ffcv"], rounds=1, seconds=0.1, workers=1, batch_size=8)
    assert found.reports[0].missing == {"ffcv": "does not do 'bytes'; it does train, eval, small, raw"}
    assert_nothing_left(temporary)


def test_another_environment_needs_nothing_but_numpy_and_the_peer(temporary, tmp_path, monkeypatch):
    """An interpreter that finds numpy alone gets as far as importing the peer."""
    site = Path(np.__file__).parents[1]
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            (packages / name).symlink_to(site / name)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(site))  # of this environment: it must not be seen there
    folder = temporary / "foreign"
    folder.mkdir()
    contestant = Contestant("dali", folder, str(python))
    try:
        with pytest.raises(WorkerError, match=rf"in {python} there is no module nvidia; pip install nvidia-dali"):
            contestant.wait_until_loaded()
    finally:
        contestant.leave()
        contestant.end(time.monotonic() + 10)
    assert_nothing_left(temporary)


def test_the_table_of_contenders_is_sound():
    folder = Path(wds_tools.bench.dataset.__file__).parent
    for name, contender in CONTENDERS.items():
        assert (folder / f"{contender.module.replace('.', '/')}.py").is_file(), name
        assert set(contender.works) <= set(ALL) == set(WORKS)
        assert set(contender.notes) <= set(contender.works)
        assert all(contender.says(work) for work in contender.works)
    assert set(PEERS) == set(CONTENDERS) - {LIMIT, OURS}


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_an_interrupt_leaves_nothing(few, temporary, number, expected):
    with pytest.raises(expected):
        bench(few, against=["imagefolder"], progress=lambda _: signal.raise_signal(number))
    assert_nothing_left(temporary)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_an_interrupt_after_a_peer_has_written_its_format_leaves_nothing(few, temporary):
    def interrupt(line: str) -> None:
        if "its own format written" in line:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        bench(few, view="bytes", against=["lmdb"], workers=1, batch_size=8, progress=interrupt)
    assert_nothing_left(temporary)


def test_the_temporary_folder_goes_even_if_the_main_process_is_killed(temporary):
    folder = temporary / "killed"
    folder.mkdir()
    contestant = Contestant("limit", folder)
    contestant.wait_until_loaded()
    contestant.leave()  # as the end of the main process would
    contestant.end(time.monotonic() + 10)
    assert_nothing_left(temporary)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"view": "nap"}, "allowed are train, eval"),
        ({"against": ["dali9"]}, "names 'dali9'; allowed are crop-ready, imagefolder"),
        ({"workers": 0}, "workers=0"),
        ({"workers": []}, "names no number"),
        ({"workers": [2, 0]}, "workers=0; allowed are whole numbers of 1"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"pythons": {"dali": sys.executable}}, "'dali' is not compared with; allowed are crop-ready"),
        ({"pythons": {"imagefolder": "/no/python"}}, "imagefolder=/no/python: there is no program"),
        ({"rounds": 0}, "rounds=0"),
        ({"seconds": 0}, "seconds=0"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_before_anything_starts(few, temporary, options, named):
    with pytest.raises(OptionError, match=named):
        bench(few, **options)
    assert_nothing_left(temporary)


def test_what_is_no_dataset_is_an_error_before_anything_else_is_said(temporary, tmp_path):
    told = []
    with pytest.raises(NotADatasetError):
        bench(tmp_path / "nowhere", progress=told.append)
    assert told == []
    assert_nothing_left(temporary)


def test_too_little_room_is_an_error_that_counts_the_formats_of_peers(packed, temporary, monkeypatch):
    free = 10_000_000
    monkeypatch.setattr(dataset.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(free, 0, free))
    with pytest.raises(DestinationError, match=r"take 0\.\d GB; .* has 0\.0 GB left: .* fewer peers"):
        bench(packed, view="small", against=["hdf5"])
    assert_nothing_left(temporary)
    floats = CONTENDERS["hdf5"].room_bytes("small", samples=10, size=100, pixels=128 * 128)
    assert floats == 10 * 4 * 3 * 128 * 128
    assert CONTENDERS["hdf5"].room_bytes("train", samples=10, size=100, pixels=128 * 128) == 110


def test_a_broken_picture_becomes_nothing():
    assert dataset._square(memoryview(b"\xff\xd8 broken"), 128) is None


def test_ratios_are_taken_within_a_round():
    summary = a_report().to_dict()["summary"]
    assert summary["ours"]["of_limit"] == {"median": 0.875, "lowest": 0.75, "highest": 1.0}
    assert summary["webdataset"]["ours_is"] == {"median": 2.5, "lowest": 2.0, "highest": 3.0}
    assert summary["limit"]["ours_is_by_cpu"] == {
        "median": pytest.approx((2 / 3 + 3 / 4) / 2),
        "lowest": pytest.approx(2 / 3),
        "highest": pytest.approx(3 / 4),
    }


def test_the_table_shows_median_and_range():
    lines = a_report().render().splitlines()
    ours = next(line for line in lines if line.startswith("ours "))
    for cell in ("625 [500-750]", "0.88 [0.75-1.00]", "2.83 [2.67-3.00]", "200 MB", "0.20 s"):
        assert cell in ours
    webdataset = next(line for line in lines if line.startswith("webdataset "))
    for cell in ("250", "2.50 [2.00-3.00] x", "2.83 [2.67-3.00] x", "0.25"):
        assert cell in webdataset


def test_pixels_that_differ_and_a_busy_machine_are_noted():
    text = BenchReports([a_report(pixels={"webdataset": 3.1}, load=2.5)]).render()
    assert "webdataset: its pixels differ from ours by 3.1 of 255" in text
    assert "the machine was busy before the start: load 2.5" in text
    assert "differ" not in BenchReports([a_report()]).render().replace("mean difference", "")


def test_a_dataset_that_is_crop_ready_is_noted_because_all_decode_its_files():
    assert "the dataset is crop-ready" in BenchReports([a_report(crop_ready=True)]).render()
    assert "the dataset is crop-ready" not in BenchReports([a_report()]).render()


def test_it_is_found_out_whether_a_dataset_is_crop_ready(six_photos, temporary, tmp_path):
    for images in ("keep", "crop-ready"):
        wt.pack(six_photos, tmp_path / images, images=images, workers=1, progress=False)
        folder = temporary / images
        folder.mkdir()
        made = dataset.prepare(open_shards(tmp_path / images), folder, work="train", workers=1, batch_size=1)
        assert made.crop_ready == (images == "crop-ready")


def test_what_a_peer_stores_is_told():
    text = BenchReports([a_report(prepared={"webdataset": Prepared(2.5, 240 * 13 * 54_000)})]).render()
    assert "webdataset: WebDataset()" in text
    assert "its own format took 2.5 s to write and has 50% of the bytes" in text


def test_the_picture_has_a_bar_and_a_range_for_each_contender_and_a_line_of_scaling():
    found = BenchReports([a_report(workers=1), a_report(workers=2)])
    picture = ElementTree.fromstring(found.picture())
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("webdataset") == 3  # two bars and a line
    assert "625 [500-750]; 0.88" in texts
    assert "train, workers: 2: images/s, median and range; share of the limit" in texts
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}polyline"))) == 4
    assert len(list(ElementTree.fromstring(BenchReports([a_report()]).picture()).iter())) < len(list(picture.iter()))


def test_scaling_is_taken_within_a_round():
    twice = [Round(3000, 2.0, 4.0, 1, 0.2), Round(1800, 2.0, 3.0, 1, 0.2)]
    found = BenchReports([a_report(workers=1), a_report(workers=2, rounds={**a_report().rounds, "ours": twice})])
    gain = found.to_dict()["scaling"]["ours"]["2"]
    assert gain == {"median": 1.9, "lowest": 1.8, "highest": 2.0}


def test_cpu_time_and_memory_are_those_of_the_whole_family():
    busy = "import time; data = bytearray(50_000_000); t = time.process_time()\n"
    busy += "while time.process_time() - t < 0.3: pass\nprint(flush=True); input()"
    family = procfs.family(os.getpid())
    before = procfs.cpu_seconds(os.getpid())
    held = procfs.memory_bytes(os.getpid())
    with subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        assert set(procfs.family(os.getpid())) - set(family) == {child.pid}
        assert procfs.cpu_seconds(os.getpid()) - before >= 0.3
        assert procfs.memory_bytes(os.getpid()) - held >= 50_000_000
    assert procfs.cpu_seconds(os.getpid()) - before >= 0.3  # also when the child has ended
    assert child.pid not in procfs.family(os.getpid())
