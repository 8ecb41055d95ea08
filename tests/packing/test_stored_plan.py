"""The plan in files: restarts and tasks map it, and a source that has changed is noticed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import preloaded
import pyarrow as pa
import pytest
from folders import contents
from pictures import encode
from PIL import Image

import wds_tools as wt
from wds_tools.errors import DestinationError, StoreError
from wds_tools.packing import packer, stored_plan
from wds_tools.packing.destination import FolderDestination
from wds_tools.sources.detect import open_source
from wds_tools.sources.inputs import BATCH_ROWS, File, Input, Inputs, Ordered, to_batch

OPTIONS: dict[str, Any] = {"shard_bytes": 12_000, "workers": 1, "images": "keep"}


@pytest.fixture
def src(tmp_path: Path) -> Path:
    """Return 18 small images in three folders, with captions: six shards."""
    folder = tmp_path / "src"
    for number in range(18):
        image = folder / "abc"[number % 3] / f"{number:02d}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(encode(Image.new("RGB", (8, 6), (number * 9, 1, 2)), "JPEG"))
        image.with_suffix(".txt").write_text(f"caption {number}")
    return folder


def stopped(src: Path, dst: Path, monkeypatch: pytest.MonkeyPatch, shards: int = 2, **options: Any) -> None:
    """Leave a pack that ended after a number of shards."""
    add = FolderDestination.add_shard
    count = iter(range(1, 100))

    def fail(self: FolderDestination, report: Any) -> None:
        add(self, report)
        if next(count) == shards:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FolderDestination, "add_shard", fail)
        with pytest.raises(KeyboardInterrupt):
            wt.pack(src, dst, **{**OPTIONS, **options})


def scans(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the sources that are listed from now on."""
    listed = []
    original = packer.list_inputs

    def list_inputs(source: Any, *arguments: Any, **options: Any) -> Any:
        listed.append(source.name)
        return original(source, *arguments, **options)

    monkeypatch.setattr(packer, "list_inputs", list_inputs)
    return listed


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_restart_maps_the_plan_and_writes_the_same_bytes(src, tmp_path, monkeypatch, shuffle):
    wt.pack(src, tmp_path / "whole", **OPTIONS, shuffle=shuffle)
    stopped(src, tmp_path / "dst", monkeypatch, shuffle=shuffle)
    listed = scans(monkeypatch)
    report = wt.pack(src, tmp_path / "dst", **OPTIONS, shuffle=shuffle)
    assert (report.kept, listed) == (2, [])
    assert contents(tmp_path / "dst") == contents(tmp_path / "whole")


@pytest.mark.parametrize("layout", ["tar", "zip", "shards"])
@pytest.mark.torture_except("tar", "zip")
def test_archives_and_shards_are_not_listed_again(src, tmp_path, monkeypatch, layout):
    source = tmp_path / f"photos.{layout}"
    if layout == "shards":
        wt.pack(src, source, **OPTIONS)
    else:
        shutil.make_archive(str(tmp_path / "photos"), layout, src)
    wt.pack(source, tmp_path / "whole", **OPTIONS)
    stopped(source, tmp_path / "dst", monkeypatch)
    listed = scans(monkeypatch)
    assert wt.pack(source, tmp_path / "dst", **OPTIONS).kept == 2
    assert listed == []
    assert contents(tmp_path / "dst") == contents(tmp_path / "whole")


def test_tasks_use_the_plan_of_the_first_one(src, tmp_path, monkeypatch):
    wt.pack(src, tmp_path / "whole", **OPTIONS)
    listed = scans(monkeypatch)
    for index in range(3):
        wt.pack(src, tmp_path / "dst", **OPTIONS, task=(index, 3))
    wt.pack(src, tmp_path / "dst", **OPTIONS, finish=True)
    assert len(listed) == 1
    assert contents(tmp_path / "dst") == contents(tmp_path / "whole")


def test_of_tasks_that_start_together_one_lists(src, tmp_path):
    script = (
        "import sys, wds_tools; from wds_tools.packing import packer; original = packer.list_inputs\n"
        "def listed(*a, **k):\n    print('listed'); return original(*a, **k)\n"
        f"packer.list_inputs = listed; wds_tools.pack({str(src)!r}, {str(tmp_path / 'dst')!r}, shard_bytes=12_000, "
        "workers=1, images='keep', task=(int(sys.argv[1]), 3))"
    )
    tasks = [preloaded.Process(["-c", script, str(n)], imports=preloaded.COMMANDS) for n in range(3)]
    assert [task.wait() for task in tasks] == [0, 0, 0]
    assert "".join(task.stdout for task in tasks).split() == ["listed"]
    assert wt.pack(src, tmp_path / "dst", **OPTIONS, finish=True).packed == 18


def test_errors_of_tasks_name_what_tasks_accept(src, tmp_path, monkeypatch):
    again = "then run all tasks again"
    wt.pack(src, tmp_path / "dst", **OPTIONS, task=(0, 2))
    with pytest.raises(DestinationError, match=f"unfinished pack of something else .* remove it, {again}"):
        wt.pack(src, tmp_path / "dst", **OPTIONS, task=(1, 2), seed=1)
    wt.pack(src, tmp_path / "dst", **OPTIONS)
    with pytest.raises(DestinationError, match=f"another dataset .* remove it, {again}"):
        wt.pack(src, tmp_path / "dst", **OPTIONS, task=(1, 2), seed=1)
    with monkeypatch.context() as patch:
        original = packer.PackJob.run
        image = src / "a" / "00.jpg"
        patch.setattr(
            packer.PackJob, "run", lambda *args, **kw: (image.write_bytes(b"short"), original(*args, **kw))[1]
        )
        with pytest.raises(StoreError, match=f"changed while it was packed.* remove .*other, {again}"):
            wt.pack(src, tmp_path / "other", **OPTIONS, task=(0, 1))


def test_a_task_that_fails_while_it_lists_leaves_nothing(tmp_path):
    (tmp_path / "src").mkdir()
    with pytest.raises(wt.SourceError):
        wt.pack(tmp_path / "src", tmp_path / "dst", **OPTIONS, task=(0, 2))
    assert not (tmp_path / "dst").exists()


@pytest.mark.parametrize("change", ["added", "removed", "longer"])
def test_a_restart_from_a_source_that_changed_is_refused_as_before(src, tmp_path, monkeypatch, change):
    stopped(src, tmp_path / "dst", monkeypatch)
    image = src / "a" / "00.jpg"
    if change == "added":
        (src / "a" / "new.jpg").write_bytes(image.read_bytes())
    elif change == "removed":
        image.unlink()
    else:
        image.write_bytes(image.read_bytes() + b"more")
    with pytest.raises(DestinationError, match="unfinished pack of something else"):
        wt.pack(src, tmp_path / "dst", **OPTIONS)


def test_a_file_that_was_changed_later_without_a_new_length_is_refused_as_before(src, tmp_path, monkeypatch):
    stopped(src, tmp_path / "dst", monkeypatch)
    image = src / "a" / "00.jpg"
    later = (tmp_path / "dst" / ".packing" / "plan.json").stat().st_mtime + 1
    os.utime(image, (later, later))
    time.sleep(max(0, later - time.time()) + 0.01)
    with pytest.raises(DestinationError, match="1 file of the source has a later modification time"):
        wt.pack(src, tmp_path / "dst", **OPTIONS)


def test_a_change_that_is_found_while_shards_are_packed_ends_the_run_and_the_next_one_lists_again(
    src, tmp_path, monkeypatch
):
    stopped(src, tmp_path / "dst", monkeypatch)
    (src / "b" / "notes.rst").write_text("not an image, so the plan stays the same")
    with monkeypatch.context() as patch:
        patch.setattr(stored_plan, "_QUICK_SECONDS", 0)
        slow = stored_plan.SourceCheck._run  # noqa: SLF001 - it is made slower
        patch.setattr(stored_plan.SourceCheck, "_run", lambda self: (time.sleep(0.3), slow(self)))
        with pytest.raises(StoreError, match="the source has changed since it was listed"):
            wt.pack(src, tmp_path / "dst", **OPTIONS)
    assert not (tmp_path / "dst" / "manifest.json").exists()
    assert wt.pack(src, tmp_path / "dst", **OPTIONS).packed == 18


@pytest.mark.parametrize("damage", ["head", "rows", "head is missing", "rows are shorter", "another version"])
@pytest.mark.torture_except("rows", "head is missing", "another version")
def test_a_damaged_plan_is_not_used(src, tmp_path, monkeypatch, damage):
    wt.pack(src, tmp_path / "whole", **OPTIONS)
    stopped(src, tmp_path / "dst", monkeypatch)
    work = tmp_path / "dst" / ".packing"
    head, rows = work / "listing.json", work / "listing.arrow"
    if damage == "head":
        head.write_bytes(head.read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    elif damage == "head is missing":
        head.unlink()
    elif damage == "rows are shorter":
        rows.write_bytes(rows.read_bytes()[:-8])
    elif damage == "another version":
        monkeypatch.setattr(stored_plan, "_VERSION", 0)
    else:
        data = bytearray(rows.read_bytes())
        data[data.index(b".jpg") - 1] ^= 1
        rows.write_bytes(data)
        with pytest.raises(DestinationError, match=r"damaged \.packing/listing\.arrow: remove this file"):
            wt.pack(src, tmp_path / "dst", **OPTIONS)
        rows.unlink()
    listed = scans(monkeypatch)
    wt.pack(src, tmp_path / "dst", **OPTIONS)
    assert len(listed) == 1
    assert contents(tmp_path / "dst") == contents(tmp_path / "whole")


def test_a_plan_cannot_name_files_outside_of_the_source(src, tmp_path):
    opened = open_source(src)
    opened.scan()
    with pytest.raises(StoreError, match="leads out of"):
        opened.read(Input("../secret", 3, None))


def test_the_rows_are_a_stream_of_arrow_without_secrets(src, tmp_path, monkeypatch):
    stopped(src, tmp_path / "dst", monkeypatch, storage_options={"key": "s3cr3t"})
    work = tmp_path / "dst" / ".packing"
    table = pa.ipc.open_stream((work / "listing.arrow").read_bytes()).read_all()
    head = json.loads((work / "listing.json").read_bytes().partition(b"\n")[2])
    assert table.num_rows == 18 == head["plan"]["source"]["files"]
    assert sorted(path.as_py() for path in table["path"])[0] == b"a/00.jpg"
    assert b"s3cr3t" not in (work / "listing.json").read_bytes() + (work / "listing.arrow").read_bytes()


STEPS = """
import os, signal, sys
from pathlib import Path
import wds_tools
from wds_tools.storage import commit
step, calls = int(sys.argv[1]), iter(range(100))
def killed(function):
    def call(*arguments, **options):
        if next(calls) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return call
os.fsync, Path.replace = killed(os.fsync), killed(Path.replace)
from wds_tools.packing.work_folder import WorkFolder
original = WorkFolder.write_listing
def write_listing(self, write):
    original(self, write)
    os.kill(os.getpid(), signal.SIGKILL)
WorkFolder.write_listing = write_listing
wds_tools.pack(sys.argv[2], sys.argv[3], shard_bytes=12_000, workers=1, images="keep")
"""


@pytest.mark.torture
def test_a_kill_at_each_step_of_writing_the_plan_loses_nothing(src, tmp_path):
    """Steps are the calls that sync and rename the files of the plan; the last run is killed when all are written."""
    wt.pack(src, tmp_path / "whole", **OPTIONS)
    found = set()
    for step in range(12):
        dst = tmp_path / f"dst{step}"
        done = preloaded.run(["-c", STEPS, str(step), src, dst], imports=preloaded.COMMANDS)
        assert done.returncode == -signal.SIGKILL
        found.add(tuple(sorted(path.name for path in (dst / ".packing").glob("[lp]*.[ja]*"))))
        wt.pack(src, dst, **OPTIONS)
        assert contents(dst) == contents(tmp_path / "whole"), f"after a kill at step {step}"
    assert {(), ("plan.json",), ("listing.arrow", "plan.json"), ("listing.arrow", "listing.json", "plan.json")} <= found


def test_inputs_keep_all_values_in_any_order():
    part = File("a/1.txt", 3, (7, 8), "", "v1")
    some = [
        Input("caf\udce9.jpg", 5, None),
        Input("b.jpg", 6, 3, (1, 2), 4, 7, (("txt", part),), b"zz", (1, 2)),
        Input("c.jpg", 2**40, 0, labels=()),
    ]
    inputs = Inputs(some)
    order = np.array([2, 0, 1])
    assert list(inputs) == some
    assert list(Ordered(inputs, order)) == [some[number] for number in order]
    assert inputs[1:] == some[1:]
    assert inputs[-1] == some[-1]
    assert list(inputs.chosen(np.array([1]))) == some[1:2]


def test_inputs_of_several_batches_are_found_by_their_position():
    count = 2 * BATCH_ROWS + 5
    inputs = Inputs(Input(f"{number}.jpg", number + 1, number % 3 if number % 2 else None) for number in range(count))
    backwards = Ordered(inputs, np.arange(count)[::-1].copy())
    for position in (0, BATCH_ROWS - 1, BATCH_ROWS, count - 1):
        assert inputs[position].path == f"{position}.jpg"
        assert backwards[position].path == f"{count - 1 - position}.jpg"
    assert [entry.size for entry in inputs[BATCH_ROWS - 2 : BATCH_ROWS + 2]] == [BATCH_ROWS + n for n in (-1, 0, 1, 2)]
    assert inputs.numbers("label").tolist() == [number % 3 if number % 2 else -1 for number in range(count)]


@pytest.mark.parametrize("disk", ["free", "full"])
def test_inputs_in_files_are_those_in_memory(monkeypatch, disk):
    rows = [
        Input(
            f"ü/{number}\udcff.jpg" if number % 3 else "",
            number * 7 << (40 if number > 50 else 0),
            None if number % 4 == 0 else number,
            (number, 2) if number % 5 else (),
            group=number % 2,
            extra=number,
            parts=(("txt", File("a.txt", number)),) if number % 6 == 0 else (),
            facts=b"x" * number,
            labels=(1, number) if number % 7 == 0 else None,
        )
        for number in range(60)
    ]
    plain = [Input(f"{number}.jpg", number, number % 3) for number in range(20)]
    batches = [to_batch(part) for part in (rows[:9], rows[9:10], plain, rows[10:])]
    batches[-1] = batches[-1].slice(5, 40)
    expected = [*rows[:10], *plain, *rows[15:55]]
    order = np.random.default_rng(0).permutation(len(expected))
    files = []
    monkeypatch.setattr("wds_tools.sources.inputs._ROWS_IN_MEMORY", 5)
    made = tempfile.TemporaryFile

    def counted() -> Any:
        files.append("made")
        if disk == "full":
            raise OSError(28, "No space left on device")
        return made()

    monkeypatch.setattr("tempfile.TemporaryFile", counted)
    inputs = Inputs.of_batches(batches)
    assert list(inputs) == expected
    numbers = np.arange(len(expected))
    assert [one.label for one in inputs.with_labels(numbers, None)] == numbers.tolist()
    assert list(inputs.chosen(order[:30])) == [expected[number] for number in order[:30]]
    assert list(Ordered(inputs, order)) == [expected[number] for number in order]
    monkeypatch.setattr("wds_tools.sources.inputs._WINDOW_ROWS", 16)  # now the rows are divided into windows
    divided, before = Ordered(inputs, order[:50]), len(files)
    assert [list(divided) for _ in range(2)] == [[expected[number] for number in order[:50]]] * 2
    assert len(files) == before + 1
    assert divided[20:40] == [expected[number] for number in order[20:40]]
    assert list(inputs) == expected
    assert inputs.bytes == sum(entry.size for entry in expected)
    assert len(files) >= 4
