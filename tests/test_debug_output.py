"""Debug messages of the logger "wds_tools": nothing by default, and at DEBUG the choices and fallbacks of a run."""

from __future__ import annotations

import logging
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import preloaded
import pytest
from buckets import Bucketful

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.storage import upload
from wds_tools.storage.requests.retry import RetryPolicy

VIEW = wt.Resize((16, 16))
DECODER = r"JPEGs are decoded by the compiled module \(SIMD: (avx2|neon|none)\)"


@pytest.fixture
def messages(tmp_path: Path) -> Iterator[Path]:
    """Write debug messages to a file, those of forked workers too, and return its path."""
    logger, path = logging.getLogger("wds_tools"), tmp_path / "messages.txt"
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(processName)s: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield path
    logger.setLevel(logging.NOTSET)
    logger.removeHandler(handler)
    handler.close()


@pytest.fixture
def in_memory(few: Path) -> Iterator[str]:
    """Return the URL of a dataset in fsspec's memory."""
    memory = fsspec.filesystem("memory")
    memory.put(str(few), "/debug", recursive=True)
    yield "memory://debug"
    memory.rm("/debug", recursive=True)


def run_epochs(dataset: Any, epochs: int = 1, **options: Any) -> None:
    with wt.make_loader(dataset, batch_size=8, **{"view": VIEW, **options}) as loader:
        for _ in range(epochs):
            assert len(list(loader)) == 5


def run_program(*words: str | Path) -> subprocess.CompletedProcess[str]:
    done = preloaded.run(["-m", "wds_tools.cli", *words])
    assert done.returncode == 0, done.stderr
    return done


def test_the_program_prints_debug_messages_on_stderr_with_the_option_only(
    few: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["sample", str(few), "--out", str(tmp_path / "sheet.png")]
    with pytest.raises(SystemExit):
        main(words)
    debug = run_program("--debug", *words)
    assert capfd.readouterr() == (debug.stdout, "")
    lines = debug.stderr.splitlines()
    assert re.match(r"debug MainProcess: workers: 0 now, at most 0 \(num_workers=0, usable cores: \d+, ", lines[0])
    assert re.fullmatch(r"debug MainProcess: no workers: this process makes the batches; " + DECODER, lines[1])


def test_packing_reports_its_processes_and_threads(six_photos: Path, tmp_path: Path) -> None:
    done = run_program("--debug", "pack", six_photos, tmp_path / "packed", "--workers", "1")
    _, account, line = done.stderr.splitlines()  # after a warning
    assert account == f"{six_photos}: 6 images, 2 classes (cat, fig)"
    expected = r"debug MainProcess: packing 1 of 1 shards \(processes: 1, threads in each: \d+, usable cores: \d+\); "
    assert re.fullmatch(expected + "the compiled module is there", line)


def test_the_level_of_the_logger_is_restored_after_a_command(few: Path) -> None:
    with pytest.raises(SystemExit):
        main(["--debug", "info", str(few)])
    assert logging.getLogger("wds_tools").level == logging.NOTSET


@pytest.mark.parametrize("workers", [0, 1])
def test_a_closed_loader_reports_what_came_from_the_cache(in_memory: str, messages: Path, workers: int) -> None:
    counts = (
        r"^MainProcess: memory://debug: (\d+) of (\d+) blocks came from the cache; (\d+) requests fetched (\d+) bytes"
    )
    run_epochs(in_memory, num_workers=workers)
    ((hits, blocks, _, _),) = re.findall(counts, messages.read_text(), re.M)
    assert int(hits) < int(blocks) == wt.describe(in_memory).shards, "the cache was empty"

    messages.write_text("")
    run_epochs(in_memory, num_workers=workers)
    ((hits, blocks, requests, _),) = re.findall(counts, messages.read_text(), re.M)
    assert hits == blocks
    assert requests == "0"


def test_workers_and_their_start_method_are_reported(few: Path, messages: Path) -> None:
    run_epochs(few, num_workers=2)
    first, second = messages.read_text().splitlines()
    assert first.startswith("MainProcess: workers: 2 now, at most 2 (num_workers=2, ")
    assert re.fullmatch(r"MainProcess: starting worker processes: 2, start method \w+; " + DECODER, second)


def test_decoding_without_the_compiled_module_is_reported(
    few: Path, messages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDS_TOOLS_NATIVE", "0")
    run_epochs(few, num_workers=0)
    assert messages.read_text().endswith("JPEGs are decoded by Python (WDS_TOOLS_NATIVE=0)\n")


def test_batches_that_cannot_be_in_shared_memory_are_reported(few: Path, messages: Path) -> None:
    run_epochs(few, num_workers=1, transform=lambda image: str(image.shape))
    assert "MainProcess: transform= returns no tensors: images are pickled" in messages.read_text()


def test_a_damaged_block_of_the_cache_is_reported(in_memory: str, messages: Path, tmp_path: Path) -> None:
    run_epochs(in_memory, num_workers=0)
    for path in (tmp_path / "cache").glob("*/[0-9a-f]*"):
        path.write_bytes(bytes(path.stat().st_size))
    run_epochs(in_memory, num_workers=0)
    assert len(re.findall(r"was damaged and was fetched again", messages.read_text())) >= 2


def test_uploads_that_are_tried_again_are_reported(
    six_photos: Path, tmp_path: Path, messages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upload, "POLICY", RetryPolicy(seconds=0.05, first_seconds=0.001, most_seconds=0.01))
    monkeypatch.setattr(Bucketful, "fault", staticmethod(lambda number, _path: "fails" if number == 1 else None))
    monkeypatch.setattr(Bucketful, "puts", 0)
    wt.pack(six_photos, f"bucket://{tmp_path}/bucket", workers=1)
    text = messages.read_text()
    assert len(re.findall(r"bucket://\S+: attempt 1 failed, next in \S+ s: .*the store is busy", text, re.M)) == 1
