"""kill -9 in merge, append, reshard and add-fields: no reader sees a wrong dataset, and a rerun completes it.

`packing/test_crash.py` does the same for pack.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import textwrap
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bad_server
import faults
import mounts
import numpy as np
import preloaded
import pytest
import xxhash
from bad_server import BadServer
from folders import contents

import wds_tools as wt
from wds_tools.errors import DestinationError, NotADatasetError, SourceError, StoreError
from wds_tools.reading.opening import open_shards
from wds_tools.reading.reader import Reader
from wds_tools.reading.rows import Rows

PACK = {"shard_bytes": "60kB", "workers": 1, "images": "keep"}
COMMANDS = ["merge", "append", "reshard", "add-fields"]
Content = tuple[tuple[str, ...], Counter[tuple[int, str]], frozenset[str]]


@dataclass(frozen=True)
class Case:
    """A command that writes ``dst``.

    Attributes:
        words: The command without its destination.
        before: The dataset that is at the destination before, if any.
        contents: The files after a run without faults.
        allowed: What readers may see: the dataset before, and that after.
    """

    words: list[str]
    before: Path | None
    contents: dict[str, bytes]
    allowed: list[Content]

    def start(self, dst: Path) -> None:
        if self.before:
            shutil.copytree(self.before, dst)

    def command(self, dst: Path) -> list[str]:
        return [word.replace("DST", str(dst)) for word in self.words]


@pytest.fixture(scope="module", autouse=True)
def kernel() -> None:
    """Skip the test if the kernel does not support intercepting calls."""
    if reason := faults.missing():
        pytest.skip(reason)


def seen(spec: str | Path) -> Content:
    """Return what readers see: class names, labels with the hash of each image, and the names of fields."""
    shards = open_shards(spec)
    rows = Rows(Reader(shards, block=4), np.arange(shards.manifest.samples))
    labels = np.concatenate([shards.index(number).label for number in range(len(shards.locations))]).tolist()
    images = [xxhash.xxh3_64_hexdigest(bytes(image)) for image in rows.images()]
    return shards.manifest.classes, Counter(zip(labels, images, strict=True)), frozenset(shards.manifest.all_fields)


@pytest.fixture(scope="module")
def cases(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Return the commands. The datasets have one class each, so that both have label 0 in their shards."""
    folder = tmp_path_factory.mktemp("cases")
    for name in ("cat", "fig"):
        (folder / "photos" / f"of-{name}" / name).mkdir(parents=True)
        for path in sorted((photos / name).glob("*.jpg"))[:3]:
            shutil.copy(path, folder / "photos" / f"of-{name}" / name)
        wt.pack(folder / "photos" / f"of-{name}", folder / name, **PACK)
    captions = [{"key": f"{number:09d}", "caption": f"caption {number}"} for number in range(3)]
    (folder / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in captions))
    cat, fig, both = str(folder / "cat"), str(folder / "fig"), str(folder / "merged")
    wt.merge([cat, fig], both)
    options = ["--shard-bytes=60kB", "--workers=1", "--images=keep"]
    words: dict[str, tuple[list[str], Path | None]] = {
        "merge": (["merge", cat, fig, "-o", "DST"], None),
        "append": (["append", str(folder / "photos" / "of-fig"), "DST", *options], folder / "cat"),
        "reshard": (["reshard", both, "DST", *options], None),
        "add-fields": (["add-fields", "DST", "--from", str(folder / "captions.jsonl")], folder / "cat"),
    }
    found = {}
    for name, (line, before) in words.items():
        case = Case(line, before, {}, [])
        dst = folder / f"whole-{name}"
        case.start(dst)
        allowed = [seen(dst)] if before else []
        done = run(case, dst, "write", 100_000, "EIO")
        assert done.returncode == 0, done.stderr
        allowed.append(seen(dst))
        found[name] = Case(line, before, contents(dst), allowed)
    return found


def run(case: Case, dst: Path, call: str, number: int, fault: str) -> Any:
    return faults.run_with_fault(["wds_tools", *case.command(dst)], call, number, fault)


def check_readers(case: Case, dst: Path, copy: Path) -> None:
    """Check that a folder, a pattern, an index and a new pack give one of the allowed datasets, or an error."""
    for spec in (dst, f"{dst}/*.tar"):
        try:
            found = seen(spec)
        except NotADatasetError as error:
            found, reason = None, str(error)
        assert found in case.allowed or (found is None and "wds-tools index" not in reason)
    if not dst.exists():
        return
    shutil.copytree(dst, copy / "indexed")
    try:
        wt.index_shards(f"{copy}/indexed/*.tar", progress=False)
        assert seen(copy / "indexed") in case.allowed
    except (NotADatasetError, DestinationError):
        pass
    try:
        wt.reshard(dst, copy / "again", workers=1)
        assert seen(copy / "again")[1] in [labels for _, labels, _ in case.allowed]
    except (SourceError, StoreError, NotADatasetError):
        pass


def run_again(case: Case, dst: Path) -> None:
    """Run the same command again. Fields whose run had only its empty work area left to remove exist already."""
    had_report = (dst / ".adding" / "report.json").exists()
    again = run(case, dst, "write", 100_000, "EIO")
    done = not had_report and "has added fields already" in again.stderr
    assert again.returncode == 0 or done, again.stderr


def kill_and_rerun(case: Case, call: str, number: int, folder: Path) -> bool:
    """Kill a run at a call, check readers, and run again; return whether it was killed."""
    dst, copy = folder / "dst", folder / "copy"
    copy.mkdir(parents=True)
    case.start(dst)
    done = run(case, dst, call, number, "KILL")
    check_readers(case, dst, copy)
    if done.returncode:
        run_again(case, dst)
    assert contents(dst) == case.contents, f"{call} {number}"
    return done.returncode != 0


@pytest.mark.parametrize(
    ("name", "call", "number"),
    [
        ("merge", "link", 2),
        ("merge", "rename", 5),
        ("append", "rename", 5),
        ("append", "unlink", 4),
        ("reshard", "rename", 5),
        ("add-fields", "rename", 2),
        ("add-fields", "rename", 6),
        ("add-fields", "unlink", 8),
    ],
)
@pytest.mark.torture_except("merge-rename-5", "append-unlink-4", "reshard-rename-5", "add-fields-rename-2")
def test_after_a_kill_no_reader_sees_a_wrong_dataset_and_a_rerun_completes_it(name, call, number, cases, tmp_path):
    assert kill_and_rerun(cases[name], call, number, tmp_path)


@pytest.mark.torture
@pytest.mark.night
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("call", ["write", "writev", "fsync", "rename", "unlink", "mkdir", "rmdir", "link"])
@pytest.mark.parametrize("name", COMMANDS)
def test_after_a_kill_at_any_call_no_reader_sees_a_wrong_dataset(name, call, cases, tmp_path):
    number = 1
    while kill_and_rerun(cases[name], call, number, tmp_path / str(number)):
        number += 1
        assert number < 300


def test_an_unfinished_append_is_reported_by_info_and_verify(cases, tmp_path):
    case, dst = cases["append"], tmp_path / "dst"
    case.start(dst)
    assert wt.describe(dst).notes == wt.verify(dst).notes == []
    run(case, dst, "rename", 5, "KILL")
    for command in ("info", "verify"):
        done = preloaded.command(command, dst)
        assert done.returncode == 0
        assert "has an unfinished append: run the same `wds-tools append` command again" in done.stdout
    done = preloaded.command("export", dst, "--to", "dali")
    names: dict[str, Any] = {}
    exec(textwrap.dedent("      " + done.stdout[done.stdout.index("import json") :]), names)
    listed = [str(dst / shard["name"]) for shard in json.loads((dst / "manifest.json").read_text())["shards"]]
    assert names["tars"] == listed
    assert listed != sorted(map(str, dst.glob("*.tar")))


def test_an_unfinished_merge_is_not_indexed_even_without_its_work_area(cases, tmp_path):
    case, dst = cases["merge"], tmp_path / "dst"
    run(case, dst, "rename", 5, "KILL")  # both shards of the first dataset, and a part of the second
    for command in (["info", dst], ["verify", dst], ["index", f"{dst}/*.tar"], ["export", dst, "--to", "dali"]):
        done = preloaded.command(*command)
        assert done.returncode != 0
        assert "dst is unfinished: run the same `wds-tools merge` command again" in done.stderr + done.stdout
    shutil.rmtree(dst / ".packing")
    for path in dst.glob("*.tar"):
        assert path.with_suffix(".parquet").exists()


def test_unfinished_added_fields_are_reported_as_such(cases, tmp_path):
    case, dst = cases["add-fields"], tmp_path / "dst"
    case.start(dst)
    run(case, dst, "rename", 3, "KILL")
    for command in (["info", dst / "captions"], ["index", f"{dst}/captions/*.tar"]):
        done = preloaded.command(*command)
        assert done.returncode != 0
        assert "captions is unfinished: run the same `wds-tools add-fields` command again" in done.stderr + done.stdout


def test_an_interrupted_shard_writer_is_reported_as_such(cases, tmp_path, photos):
    photo = next((photos / "cat").iterdir()).read_bytes()

    def write_two() -> None:
        with wt.ShardWriter(f"{tmp_path}/shard-%06d.tar", maxcount=1) as writer:
            writer.write({"__key__": "a", "jpg": photo, "cls": 0})
            writer.write({"__key__": "b", "jpg": photo, "cls": 0})
            raise EOFError

    with pytest.raises(EOFError):
        write_two()
    for call in (open_shards, lambda folder: wt.index_shards(f"{folder}/*.tar")):
        with pytest.raises((NotADatasetError, DestinationError), match=r"is unfinished: .* with fresh=True"):
            call(tmp_path)


def test_a_folder_on_a_read_only_disk_gets_no_fields_and_the_error_names_the_cause(cases, tmp_path, can_mount):
    case, dst = cases["add-fields"], tmp_path / "dst"
    case.start(dst)
    script = (
        "import sys, mounts; mounts.enter(); mounts.make_read_only(sys.argv[1])\n"
        "from wds_tools.cli import main; sys.argv[:2] = ['wds-tools']; sys.exit(main())"
    )
    done = mounts.run(script, dst, *case.command(dst))
    assert done.returncode == 1
    assert "Read-only file system; the dataset is unchanged: fix the cause" in done.stderr


def test_index_refuses_shards_whose_labels_are_only_in_their_indexes(cases, tmp_path):
    start = Case(cases["merge"].words, None, {}, [])
    assert run(start, tmp_path / "dst", "write", 100_000, "EIO").returncode == 0
    before = contents(tmp_path / "dst")
    for label in (None, "cls", "json:class"):
        with pytest.raises(DestinationError, match="labels are only in the indexes") as caught:
            wt.index_shards(f"{tmp_path}/dst/*.tar", label=label)
        assert "--label" not in str(caught.value)
        assert contents(tmp_path / "dst") == before
    (tmp_path / "dst" / "manifest.json").unlink()
    with pytest.raises(DestinationError, match="has labels that differ from the field cls") as caught:
        wt.index_shards(f"{tmp_path}/dst/*.tar")
    assert "--label cls" not in str(caught.value)
    assert seen(f"{tmp_path}/dst/*.tar")[1] == cases["merge"].allowed[0][1]


def test_fields_stay_when_an_error_follows_their_entry_in_the_manifest(cases, tmp_path):
    case, dst = cases["add-fields"], tmp_path / "dst"
    case.start(dst)
    done = run(case, dst, "fsync", 17, "EIO")
    assert done.returncode == 1
    assert "Input/output error; the fields were added" in done.stderr
    assert seen(dst) == case.allowed[1]
    assert contents(dst) == case.contents


@pytest.mark.torture
@pytest.mark.night
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("fault", ["ENOSPC", "EROFS"])
@pytest.mark.parametrize("call", ["write", "writev", "fsync", "rename", "link", "mkdir"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_failing_call_is_an_error_of_one_line_and_a_rerun_completes_the_dataset(name, call, fault, cases, tmp_path):
    case, number, harmless = cases[name], 0, 0
    while harmless < 3:  # the error of a call may be ignored
        number += 1
        dst, copy = tmp_path / str(number) / "dst", tmp_path / str(number) / "copy"
        copy.mkdir(parents=True)
        case.start(dst)
        done = run(case, dst, call, number, fault)
        assert "Traceback" not in done.stderr or "Logging error" in done.stderr, done.stderr  # stderr itself failed
        check_readers(case, dst, copy)
        if not done.returncode:
            assert contents(dst) == case.contents
            harmless += 1
        else:
            assert "error: " in done.stderr, done.stderr
            run_again(case, dst)
            assert contents(dst) == case.contents, f"{call} {number}"
            harmless = 0


@pytest.fixture(scope="module")
def server(cases: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BadServer]:
    """Return a server with the merged dataset."""
    folder = Path(cases["reshard"].words[1])
    server = BadServer({f"/{path.name}": path.read_bytes() for path in folder.iterdir()})
    with server.running():
        yield server


@pytest.fixture(scope="module")
def more_cases(cases: dict[str, Case], server: BadServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """Return further commands, which Ctrl-C interrupts."""
    merged, tars = Path(cases["reshard"].words[1]), tmp_path_factory.mktemp("tars")
    for path in merged.glob("*.tar"):
        shutil.copy(path, tars)
    found = {
        "unpack": Case(["unpack", str(merged), "DST", "--layout", "shards"], None, {}, []),
        "index": Case(["index", "DST/*.tar", "--label", "json:class"], tars, {}, []),
        "copy": Case(["copy", server.url, "DST"], None, {}, []),
    }
    for name, case in found.items():
        dst = tmp_path_factory.mktemp("whole") / name
        case.start(dst)
        assert run(case, dst, "write", 100_000, "EIO").returncode == 0
        case.contents.update(contents(dst))
    return cases | found


def interrupted(stderr: str) -> str:
    """Return the one line that a command prints after Ctrl-C."""
    assert "Traceback" not in stderr
    (line,) = (line for line in stderr.splitlines() if line.startswith("error: "))
    assert line.startswith("error: interrupted"), stderr
    return line


def interrupt_and_rerun(case: Case, call: str, number: int, dst: Path) -> bool:
    """Interrupt a run at a call, and run again; return whether work was left."""
    case.start(dst)
    done = run(case, dst, call, number, "INT")
    if done.returncode:
        assert done.returncode == 130, done.stderr
        assert "run the same command again" in interrupted(done.stderr)
    was_left = contents(dst) != case.contents
    if was_left:
        assert done.returncode == 130
        again = run(case, dst, "write", 100_000, "EIO")
        assert again.returncode == 0, again.stderr
        assert contents(dst) == case.contents, f"{call} {number}"
    return was_left


@pytest.mark.parametrize(
    ("name", "call", "number"),
    [
        ("merge", "link", 2),
        ("append", "rename", 5),
        ("reshard", "rename", 5),
        ("add-fields", "rename", 2),
        ("unpack", "link", 2),
        ("index", "rename", 2),
        ("copy", "rename", 2),
    ],
)
@pytest.mark.torture_except("unpack-link-2", "index-rename-2")
def test_a_rerun_after_ctrl_c_completes_the_work(name, call, number, more_cases, tmp_path):
    assert interrupt_and_rerun(more_cases[name], call, number, tmp_path / "dst")


@pytest.mark.torture
@pytest.mark.parametrize("call", ["write", "rename", "link", "unlink"])
@pytest.mark.parametrize("name", [*COMMANDS, "unpack", "index", "copy"])
def test_a_rerun_after_ctrl_c_at_any_call_completes_the_work(name, call, more_cases, tmp_path):
    number, complete = 1, 0
    while complete < 3:
        complete += not interrupt_and_rerun(more_cases[name], call, number, tmp_path / str(number))
        number += 1


def test_verify_ends_at_once_after_ctrl_c(server):
    def interrupt(request):
        if request.path.endswith("1.tar"):
            os.kill(process.pid, signal.SIGINT)
        bad_server.good(request)

    server.default = interrupt
    process = preloaded.Process(["-m", "wds_tools.cli", "verify", server.url], imports=preloaded.COMMANDS)
    assert process.wait() == 130
    interrupted(process.stderr)
    assert process.stdout == ""
