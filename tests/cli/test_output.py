"""The output of the command line on a terminal, in a log, to a closed pipe and to a full disk."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import preloaded
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from terminals import in_terminal, watched

import wds_tools as wt
from wds_tools.cli import main

PROGRAM = ("-m", "wds_tools.cli")
COMMANDS = {
    "pack": "pack {photos} {out} --images keep --shard-bytes 1MB",
    "append": "append {photos} {copy} --images keep --repeated append",
    "reshard": "reshard {packed} {out}",
    "index": "index {copy}/*.tar --manifest again.json",
    "merge": "merge {packed} -o {out} --copy",
    "unpack": "unpack {packed} {out}",
    "verify": "verify {packed}",
    "add-fields": "add-fields {copy} --from {captions}",
    "export": "export {copy} --to dali",
}
"""The commands that can take long, and therefore show a progress bar."""


@pytest.fixture(scope="module")
def packed(packed_few: Path) -> Path:
    """Return a small dataset, also to `packed_copy`."""
    return packed_few


@pytest.fixture(scope="module")
def photos(packed_few: Path) -> Path:
    """Return its photographs."""
    return packed_few.parent / "images"


@pytest.fixture
def words(request: pytest.FixtureRequest, photos: Path, packed: Path, packed_copy: Path, tmp_path: Path) -> list[str]:
    """Return the arguments of a command."""
    captions = tmp_path / "captions.csv"
    captions.write_text("".join(f"{key},text\n" for key in ("key", *keys_of(packed))))
    paths = {"photos": photos, "packed": packed, "copy": packed_copy, "out": tmp_path / "out", "captions": captions}
    return COMMANDS[request.param].format(**paths).split()


@pytest.mark.parametrize("words", COMMANDS, indirect=True)
@pytest.mark.torture_except("pack", "verify", "unpack")
def test_a_terminal_shows_a_progress_bar(words: list[str]) -> None:
    code, shown = in_terminal([*PROGRAM, *words])
    assert code == 0, shown
    assert "100%|" in shown


def keys_of(dataset: Path) -> list[str]:
    return [key for index in sorted(dataset.glob("*.parquet")) for key in pq.read_table(index)["key"].to_pylist()]


def test_add_fields_shows_how_much_is_left_to_read_and_to_write(
    packed_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(packed_copy)
    (tmp_path / "rows.csv").write_text("key,one\n" + "".join(f"{key},text\n" for key in keys[:30]))
    (tmp_path / "rows.jsonl").write_text("".join(f'{{"key": "{key}", "two": "2"}}\n' for key in keys[:30]))
    pq.write_table(pa.table({"key": keys[:40], "three": [3] * 40}), tmp_path / "rows.parquet")
    rows = [{"__key__": key, "five.txt": key} for key in keys[:7]]
    sources = {"rows.csv": 30, "rows.jsonl": 30, "rows.parquet": 40, None: 7}
    for number, (name, total) in enumerate(sources.items()):
        shown = watched(monkeypatch)
        wt.add_fields(packed_copy, rows if name is None else tmp_path / name, name=f"added{number}")
        assert re.search(rf"reading: 100%\|#+\| {total}/{total} \[.*samples/s", shown.getvalue()), name
        assert re.search(rf"writing: 100%\|#+\| {len(keys)}/{len(keys)} \[.*samples/s", shown.getvalue()), name


def test_commands_that_read_every_index_show_it(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = watched(monkeypatch)
    wt.describe(packed)
    assert "reading indexes:   0%|" in shown.getvalue()
    for options in ((), ("--where", "label > 1"), ("--class-weights", "balanced")):
        shown = watched(monkeypatch)
        with pytest.raises(SystemExit, match=r"^0$"):
            main(["plan", str(packed), "--batch-size", "8", *options])
        assert shown.getvalue().count("reading indexes:   0%|") == 1 + bool(options)  # also to measure the shuffle


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"CI": "true"}])
@pytest.mark.parametrize("words", ["verify"], indirect=True)
def test_a_dumb_terminal_and_a_ci_job_show_no_progress_bar(words: list[str], variables: dict[str, str]) -> None:
    code, shown = in_terminal([*PROGRAM, *words], env={**os.environ, "TERM": "xterm", "CI": "", **variables})
    assert code == 0, shown
    assert "is undamaged" in shown
    assert "%|" not in shown


@pytest.mark.parametrize("words", COMMANDS, indirect=True)
@pytest.mark.torture_except("pack", "reshard", "merge")
def test_a_log_has_no_progress_bars_and_no_control_characters(words: list[str]) -> None:
    done = preloaded.command(*words)
    assert done.returncode == 0
    account, *_ = done.stderr.splitlines() or [""]
    has_account = words[0] in ("pack", "append", "reshard")
    assert account == (f"{words[1]}: 40 images, 8 classes (astronaut, brushes, cat, ...)" if has_account else "")
    assert done.stderr.replace("\n", "").isprintable()
    assert done.stdout.replace("\n", "").isprintable()


@pytest.mark.parametrize("command", ["info", "verify --json", "plan --json --batch-size 8"])
def test_a_full_disk_for_the_output_is_one_line_and_a_failure(packed: Path, command: str) -> None:
    with Path("/dev/full").open("w") as full:
        done = preloaded.command(*command.split(), packed, stdout=full.fileno())
    assert done.returncode == (2 if command.startswith("verify") else 1)
    assert done.stderr == "error: No space left on device\n"


def test_an_error_that_cannot_be_printed_still_has_its_exit_code(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = preloaded.command("info", tmp_path, stderr=full.fileno())
    assert done.returncode == 2


def test_a_closed_stdout_is_no_error(packed: Path) -> None:
    words = [sys.executable, *PROGRAM, "info", str(packed)]
    run = f"import os, sys; os.close(1); os.execv(sys.executable, {words!r})"
    done = subprocess.run([sys.executable, "-c", run], stderr=subprocess.PIPE, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("command", ["tune", "bench"])
def test_nothing_is_measured_if_an_output_file_cannot_be_written(
    packed: Path, tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([command, str(packed), "--json", str(tmp_path / "none" / "a.json")])
    assert capsys.readouterr() == ("", f"error: cannot write {tmp_path}/none/a.json: no folder {tmp_path}/none\n")


@pytest.mark.torture
def test_a_reader_that_closes_the_output_ends_a_long_command_silently(packed: Path) -> None:
    """``wds-tools tune ... 2>&1 | head -1``."""
    read, write = os.pipe()
    words = [*PROGRAM, "tune", packed, "--view", "small", "--batch-size", "8", "--rounds", "1", "--seconds", "0.05"]
    program = preloaded.Process(words, stdout=write, stderr=write)
    os.close(write)
    assert os.read(read, 1 << 16).startswith(b"warming up")
    os.close(read)
    assert program.wait() == 141
