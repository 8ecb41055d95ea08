"""The benchmark measures every contender, says who is missing, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import wds_tools.bench.material
from wds_tools.bench import BenchReport, bench, procfs
from wds_tools.bench.contest import Contestant
from wds_tools.bench.report import Round
from wds_tools.errors import NotADatasetError, OptionError


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which temporary folders are made; a small epoch keeps the tests short."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(wds_tools.bench.material, "EPOCH_IMAGES", 600)
    return folder


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
        "view": "RandomResizedCrop(224)",
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
        "load": 0.0,
        "machine": {"cores": "2"},
    }
    return BenchReport(**{**values, **changes})


@pytest.mark.parametrize(("view", "peers"), [("train", ["imagefolder", "webdataset"]), ("eval", ["imagefolder-io"])])
def test_every_contender_is_measured_and_nothing_is_left(packed, temporary, view, peers):
    told = []
    report = bench(packed, view=view, against=peers, rounds=1, seconds=0.3, batch_size=32, progress=told.append)
    everyone = ["limit", "ours", *peers]
    assert list(report.rounds) == everyone
    assert not report.missing
    for measured in (rounds[0] for rounds in report.rounds.values()):
        assert measured.images % 32 == 0
        assert measured.seconds >= 0.3
        assert min(measured.images, measured.cpu_seconds, measured.memory_bytes, measured.first_batch_seconds) > 0
    assert all(0 <= levels <= 2 for levels in report.pixels.values())
    assert list(report.pixels) == peers
    values = json.loads(json.dumps(report.to_dict()))
    assert all(values["summary"][name]["images_per_second"]["median"] > 0 for name in everyone)
    assert all(f"\n{name} " in report.render() for name in everyone)
    assert any("ours" in line and "images/s" in line for line in told)
    assert_nothing_left(temporary)


def test_a_peer_that_is_not_installed_is_reported_and_left_out(packed, temporary, without_webdataset):
    report = bench(packed, against=["webdataset"], rounds=1, seconds=0.1, workers=1, batch_size=16)
    assert report.missing == {"webdataset": "not installed: pip install torch torchvision webdataset"}
    assert list(report.rounds) == ["limit", "ours"]
    assert "webdataset: not installed: pip install" in report.render()
    assert_nothing_left(temporary)


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_an_interrupt_leaves_nothing(packed, temporary, number, expected):
    with pytest.raises(expected):
        bench(packed, against=["imagefolder"], progress=lambda _: signal.raise_signal(number))
    assert_nothing_left(temporary)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


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
        ({"against": ["dali9"]}, "names 'dali9'; allowed are imagefolder"),
        ({"workers": 0}, "workers=0"),
        ({"rounds": 0}, "rounds=0"),
        ({"seconds": 0}, "seconds=0"),
    ],
)
def test_an_argument_that_cannot_be_is_refused_before_anything_starts(packed, temporary, options, named):
    with pytest.raises(OptionError, match=named):
        bench(packed, **options)
    assert_nothing_left(temporary)


def test_what_is_no_dataset_is_an_error_and_leaves_nothing(temporary, tmp_path):
    with pytest.raises(NotADatasetError):
        bench(tmp_path / "nowhere")
    assert_nothing_left(temporary)


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
    text = a_report(pixels={"webdataset": 3.1}, load=2.5).render()
    assert "webdataset: its pixels differ from ours by 3.1 of 255" in text
    assert "the machine was busy before the start: load 2.5" in text
    assert "differ" not in a_report().render().replace("mean difference", "")


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
