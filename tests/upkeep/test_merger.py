"""`merge()` writes the shards of several datasets under new names, and continues after any interruption."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import preloaded
import pytest
from folders import contents, manifest_of

import wds_tools as wt
from wds_tools.errors import (
    ChecksumError,
    DestinationError,
    LabelError,
    NotADatasetError,
    OptionError,
    TruncatedShardError,
)
from wds_tools.format.index import from_bytes, to_bytes
from wds_tools.format.index_edit import rename
from wds_tools.format.manifest import seal
from wds_tools.packing.packer import pack
from wds_tools.reading.opening import open_shards
from wds_tools.upkeep import merger
from wds_tools.upkeep.merger import MergeReport, merge

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def packed(packed_few: Path) -> Path:
    """Return a small dataset, also to `packed_copy`."""
    return packed_few


@pytest.fixture(scope="module")
def halves(few_photos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two datasets, each with half of the photographs of all classes, in a few shards."""
    folder = tmp_path_factory.mktemp("halves")
    for number, path in enumerate(sorted(few_photos.glob("*/*"))):
        half = folder / f"photos{number % 2}" / path.parent.name
        half.mkdir(parents=True, exist_ok=True)
        (half / path.name).symlink_to(path)
    for number in range(2):
        pack(folder / f"photos{number}", folder / f"{number}", shard_bytes="150kB", workers=1, images="keep")
    return folder / "0", folder / "1"


def labelled(folder: Path, classes: list[str], *, number: int = 0, **fields: Any) -> Path:
    """Write a dataset of one sample."""
    with wt.ShardWriter(folder / "a-%d.tar", classes=classes) as writer:
        writer.write({"__key__": "a", "txt": str(folder), **({"cls": number} if number >= 0 else {}), **fields})
    return folder


def run(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return preloaded.run(["-c", code], cwd=cwd, imports=preloaded.COMMANDS)


# --- the result ---


def test_the_shards_of_all_inputs_are_linked_in_order(halves: tuple[Path, Path], tmp_path: Path) -> None:
    report = merge(halves, tmp_path / "c")
    first, second, merged = manifest_of(halves[0]), manifest_of(halves[1]), report.manifest
    assert merged == manifest_of(tmp_path / "c")
    assert [entry.name for entry in merged.shards] == [f"shard-{n:06d}.tar" for n in range(len(merged.shards))]
    assert [entry.xxh3 for entry in merged.shards] == [entry.xxh3 for entry in (*first.shards, *second.shards)]
    assert (report.linked, report.copied, report.kept) == (len(merged.shards), 0, 0)
    assert all((tmp_path / "c" / entry.name).stat().st_nlink > 1 for entry in merged.shards)
    assert merged.samples == 40
    assert merged.fields == dict(Counter(first.fields) + Counter(second.fields))
    assert merged.classes == first.classes
    assert merged.images.max_width == max(first.images.max_width, second.images.max_width)
    assert sorted(contents(tmp_path / "c")) == sorted(
        ["README.md", "manifest.json", *(name for entry in merged.shards for name in (entry.name, entry.index))]
    )


def test_a_merged_dataset_can_be_verified_and_loaded(halves: tuple[Path, Path], tmp_path: Path) -> None:
    merge(halves, tmp_path / "c")
    report = wt.verify(tmp_path / "c")
    assert report.ok
    assert not report.strangers
    with wt.make_loader(
        tmp_path / "c", batch_size=20, view=wt.Resize((16, 16)), fields=("json",), num_workers=0
    ) as loader:
        paths = {record["path"] for batch in loader for record in batch.json}
    assert len(paths) == 40


def test_unpacking_a_merged_dataset_restores_the_files_of_both_inputs(
    halves: tuple[Path, Path], few_photos: Path, tmp_path: Path
) -> None:
    merge(halves, tmp_path / "c")
    wt.unpack(tmp_path / "c", tmp_path / "out")
    assert contents(tmp_path / "out") == contents(few_photos)


def test_the_result_is_shuffled_only_with_a_single_shuffled_input(halves: tuple[Path, Path], tmp_path: Path) -> None:
    assert not merge(halves, tmp_path / "c").manifest.shuffled
    assert merge(halves[:1], tmp_path / "one").manifest.shuffled
    assert merge(halves[:1], tmp_path / "one").manifest.fingerprint == manifest_of(halves[0]).fingerprint


def test_the_result_does_not_depend_on_the_paths_of_the_inputs_or_on_copying(
    halves: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(halves, tmp_path / "c")
    monkeypatch.chdir(halves[0].parent)
    assert merge(["0", "1/manifest.json"], tmp_path / "d", copy=True).copied > 0
    assert contents(tmp_path / "c") == contents(tmp_path / "d")
    assert merge(["1", "0"], tmp_path / "e").manifest.fingerprint != manifest_of(tmp_path / "c").fingerprint


def test_a_merged_dataset_can_be_merged_again(halves: tuple[Path, Path], packed: Path, tmp_path: Path) -> None:
    merge(halves, tmp_path / "c")
    assert merge([tmp_path / "c", packed], tmp_path / "d").manifest.samples == 80
    assert wt.verify(tmp_path / "d").ok


def test_the_inputs_are_not_changed_and_can_be_removed(halves: tuple[Path, Path], tmp_path: Path) -> None:
    before = contents(halves[0])
    merge([halves[0]], tmp_path / "b", copy=True)
    merge([tmp_path / "b"], tmp_path / "c")
    merge([halves[0]], tmp_path / "d")
    for path in (tmp_path / "b").iterdir():
        path.unlink()
    assert wt.verify(tmp_path / "c").ok
    assert contents(halves[0]) == before


def test_an_input_may_be_a_pattern_of_shards(halves: tuple[Path, Path], tmp_path: Path) -> None:
    merged = merge([f"{halves[0]}/shard-{{000000..000001}}.tar", halves[1]], tmp_path / "c").manifest
    assert len(merged.shards) == 2 + len(manifest_of(halves[1]).shards)
    assert merged.fields["json"] == merged.samples < 40
    assert wt.verify(tmp_path / "c").ok


def test_a_symbolic_link_to_a_shard_becomes_a_hard_link_to_its_target(
    halves: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "links").mkdir()
    for path in halves[0].iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    assert merge([tmp_path / "links"], tmp_path / "c").linked > 0
    assert not any(path.is_symlink() for path in (tmp_path / "c").iterdir())


def test_shards_are_copied_if_hard_links_are_impossible(
    halves: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    report = merge(halves, tmp_path / "c")
    assert (report.linked, report.copied) == (0, len(report.manifest.shards))
    assert wt.verify(tmp_path / "c").ok


def test_shards_are_copied_to_another_file_system(halves: tuple[Path, Path], tmp_path: Path) -> None:
    import shutil
    import tempfile

    other = Path(tempfile.mkdtemp(dir="/dev/shm"))
    try:
        report = merge(halves, other / "c")
        assert (report.copied > 0) == (other.stat().st_dev != halves[0].stat().st_dev)
        assert wt.verify(other / "c").ok
    finally:
        shutil.rmtree(other)


def test_remote_shards_are_copied_in_parts_without_the_cache(
    halves: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = fsspec.filesystem("memory")
    for path in halves[1].iterdir():
        memory.pipe(f"/merge-test/{path.name}", path.read_bytes())
    monkeypatch.setattr(merger, "COPY_BYTES", 100_000)
    try:
        report = merge([halves[0], "memory://merge-test"], tmp_path / "c")
    finally:
        memory.rm("/merge-test", recursive=True)
    assert report.linked == len(manifest_of(halves[0]).shards)
    assert report.copied == len(manifest_of(halves[1]).shards)
    assert not (tmp_path / "cache").exists()
    merge(halves, tmp_path / "d")
    assert contents(tmp_path / "c") == contents(tmp_path / "d")


def test_an_index_keeps_unknown_columns(halves: tuple[Path, Path]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(halves[0] / "shard-000000.parquet")
    table = table.append_column("caption", pa.array(["x"] * len(table)))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data = rename(sink.getvalue().to_pybytes(), name="a", shard="other.tar")
    assert pq.read_table(pa.BufferReader(data)).column("caption").to_pylist() == ["x"] * len(table)
    index = from_bytes(data, name="b")
    assert index.shard == "other.tar"
    assert index.keys == table.column("key").to_pylist()
    plain = to_bytes(index)
    assert rename(plain, name="c", shard="other.tar") == plain


# --- classes ---


def test_a_list_of_classes_may_be_the_beginning_of_another(tmp_path: Path) -> None:
    inputs = [
        labelled(tmp_path / "a", ["cat", "dog"]),
        labelled(tmp_path / "b", ["cat", "dog", "fig"], number=2),
    ]
    assert merge(inputs, tmp_path / "out").manifest.classes == ("cat", "dog", "fig")


def test_labels_without_class_names_get_none(tmp_path: Path) -> None:
    inputs = [labelled(tmp_path / "a", []), labelled(tmp_path / "b", [], number=5)]
    assert merge(inputs, tmp_path / "out").manifest.classes == ()


def stored_labels(folder: Path) -> list[int]:
    return [
        label
        for path in sorted(folder.glob("*.parquet"))
        for label in from_bytes(path.read_bytes(), name=path.name).label.tolist()
    ]


def test_classes_are_united_by_name_and_the_shards_are_linked(tmp_path: Path) -> None:
    inputs = [
        labelled(tmp_path / "a", ["cat", "fig", "pea"], number=2),
        labelled(tmp_path / "b", ["ant", "fig", "cat"], number=1),
        labelled(tmp_path / "d", ["ant"], number=0),
        labelled(tmp_path / "e", ["cat"], number=0),
    ]
    report = merge(inputs, tmp_path / "out")
    assert report.manifest.classes == ("cat", "fig", "pea", "ant")
    assert (report.manifest.label, report.linked, report.relabelled) == ("index", 4, 2)
    assert stored_labels(tmp_path / "out") == [2, 1, 3, 0]
    assert [entry.xxh3 for entry in report.manifest.shards] == [manifest_of(path).shards[0].xxh3 for path in inputs]
    assert wt.verify(tmp_path / "out").ok
    with wt.make_loader(
        tmp_path / "out", batch_size=1, fields=("label",), where="label == 'ant'", num_workers=0
    ) as loader:
        assert [batch.label.tolist() for batch in loader] == [[3]]
    assert merge(inputs, tmp_path / "out").kept == 4  # complete


def test_united_classes_can_be_merged_again_and_their_card_gives_cls_no_names(tmp_path: Path) -> None:
    one = [labelled(tmp_path / "a", ["cat"]), labelled(tmp_path / "b", ["dog"])]
    merge(one, tmp_path / "ab")
    merge([labelled(tmp_path / "c", ["dog"]), tmp_path / "ab"], tmp_path / "out")
    assert manifest_of(tmp_path / "out").classes == ("dog", "cat")
    assert stored_labels(tmp_path / "out") == [0, 1, 0]
    assert "class_label" in (tmp_path / "a" / "README.md").read_text()
    assert "class_label" not in (tmp_path / "out" / "README.md").read_text()


def test_reshard_writes_the_united_class_numbers_to_cls(tmp_path: Path, photos: Path) -> None:
    for name, kinds in (("a", ("cat", "fig")), ("b", ("fig", "dog"))):
        for kind in kinds:
            source = sorted((photos / ("cat" if kind == "dog" else kind)).iterdir())[len(kind) - 3]
            (tmp_path / name / kind).mkdir(parents=True)
            (tmp_path / name / kind / source.name).symlink_to(source)
        pack(tmp_path / name, tmp_path / f"{name}-packed", workers=1, shuffle=False)
    merge([tmp_path / "b-packed", tmp_path / "a-packed"], tmp_path / "out")
    manifest = wt.reshard(tmp_path / "out", tmp_path / "new", workers=1).manifest
    assert (manifest.classes, manifest.label) == (("dog", "fig", "cat"), None)
    with wt.make_loader(
        tmp_path / "new", batch_size=4, fields=("cls", "label", "json"), num_workers=0, shuffle=False
    ) as loader:
        batch = next(iter(loader))
    assert batch.cls.tolist() == batch.label.tolist() == [0, 1, 2, 1]
    assert [record["path"].rpartition("/")[0] for record in batch.json] == ["dog", "fig", "cat", "fig"]


def test_an_interrupted_merge_with_other_class_names_is_not_continued(tmp_path: Path) -> None:
    inputs = [labelled(tmp_path / "a", ["cat"]), labelled(tmp_path / "b", ["dog"])]
    merge(inputs, tmp_path / "out")
    manifest = tmp_path / "b" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"dog"', '"cat"'))
    wt.reseal(tmp_path / "b")
    with pytest.raises(DestinationError, match="holds another dataset"):
        merge(inputs, tmp_path / "out")


def test_labels_without_names_beside_names_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    inputs = [labelled(tmp_path / "a", ["cat"]), labelled(tmp_path / "b", [])]
    with pytest.raises(LabelError, match=r"b has labels without class names, .*a names 1 classes.*wds-tools reseal"):
        merge(inputs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_label_without_a_name_and_a_name_that_occurs_twice_cannot_be_matched(tmp_path: Path) -> None:
    other = labelled(tmp_path / "a", ["dog"])
    for name, names in (("b", ["cat", "cat"]), ("c", ["cat"])):
        path = labelled(tmp_path / name, ["cat", "fig"], number=1) / "manifest.json"
        path.write_text(seal({**json.loads(path.read_text()), "classes": names}))
    with pytest.raises(LabelError, match="'cat' occurs twice"):
        merge([other, tmp_path / "b"], tmp_path / "out")
    with pytest.raises(LabelError, match=r"c/a-0.tar has labels from 1 to 1, but its manifest names 1 classes"):
        merge([other, tmp_path / "c"], tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_equal_shards_whose_classes_have_other_names_are_not_the_same_dataset(
    halves: tuple[Path, Path], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(halves[0], other)
    raw = json.loads((other / "manifest.json").read_text())
    names = [f"new {name}" for name in raw["classes"]]
    (other / "manifest.json").write_text(seal({**raw, "classes": names}))
    report = merge([halves[0], other], tmp_path / "out")
    assert report.manifest.classes == (*raw["classes"], *names)
    (other / "manifest.json").write_text(seal({**raw, "field_classes": {"json:objects.category": {"names": ["dog"]}}}))
    assert merge([halves[0], other], tmp_path / "again").manifest.samples == report.manifest.samples
    remedies = {
        "json:objects.category": "pack them with the same classes",
        "mask.png": "make the class names and numbers",
    }
    for place, remedy in remedies.items():
        for name in ("cat", "dog"):
            shutil.copytree(halves[0], tmp_path / name, dirs_exist_ok=True)
            lists = {"field_classes": {place: {"names": [name]}}}
            (tmp_path / name / "manifest.json").write_text(seal(raw | lists))
        with pytest.raises(LabelError, match=f"different classes for '{place}' .*: {remedy}"):
            merge([tmp_path / "cat", tmp_path / "dog"], tmp_path / "third")


# --- invalid inputs ---


def test_invalid_inputs_are_refused_before_anything_is_written(halves: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"are the same dataset .*wds_tools\.Mixture"):
        merge([halves[0], str(halves[0] / "manifest.json")], tmp_path / "c")
    with pytest.raises(OptionError, match="no dataset was given"):
        merge([], tmp_path / "c")
    with pytest.raises(OptionError, match="is not a local folder"):
        merge(halves, "s3://bucket/c")
    with pytest.raises(NotADatasetError):
        merge([halves[0], tmp_path / "nothing"], tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("fresh", [False, True])
def test_the_result_cannot_replace_an_input(packed_copy: Path, fresh: bool) -> None:
    before = contents(packed_copy)
    with pytest.raises(OptionError, match="is one of the inputs"):
        merge([packed_copy], packed_copy, fresh=fresh)
    assert contents(packed_copy) == before


def test_a_folder_with_another_dataset_is_replaced_only_with_fresh(
    halves: tuple[Path, Path], packed_copy: Path, tmp_path: Path
) -> None:
    before = contents(packed_copy)
    with pytest.raises(DestinationError, match=r"holds another dataset, of 40 samples: .* --fresh"):
        merge(halves, packed_copy)
    assert contents(packed_copy) == before
    assert merge(halves, packed_copy, fresh=True).manifest.samples == 40
    merge(halves, tmp_path / "c")
    assert contents(packed_copy) == contents(tmp_path / "c")


def test_a_shard_with_a_wrong_length_is_not_linked(packed_copy: Path, tmp_path: Path) -> None:
    os.truncate(packed_copy / "shard-000001.tar", 5000)
    with pytest.raises(TruncatedShardError, match=r"shard-000001\.tar has 5,000 bytes"):
        merge([packed_copy], tmp_path / "c")
    assert (tmp_path / "c" / "shard-000000.tar").exists()
    assert not (tmp_path / "c" / "manifest.json").exists()
    os.truncate(packed_copy / "shard-000000.tar", 5000)
    with pytest.raises(TruncatedShardError):
        merge([packed_copy], tmp_path / "d")
    assert not (tmp_path / "d").exists(), "no shard was linked, so the folder is free for other inputs"


def test_a_damaged_shard_is_not_copied(packed_copy: Path, tmp_path: Path) -> None:
    path = packed_copy / "shard-000001.tar"
    data = bytearray(path.read_bytes())
    data[10_000] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError, match="its XXH3-128 is"):
        merge([packed_copy], tmp_path / "c", copy=True)
    assert not (tmp_path / "c" / "shard-000001.tar").exists()
    merge([packed_copy], tmp_path / "d")  # linked shards are not read, so the damage remains
    assert wt.verify(tmp_path / "d").damaged_shards == ["shard-000001.tar"]


# --- repeated and interrupted runs ---


def test_a_second_run_changes_nothing(halves: tuple[Path, Path], tmp_path: Path) -> None:
    merge(halves, tmp_path / "c")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "c").iterdir()}
    report = merge(halves, tmp_path / "c")
    assert (report.linked, report.copied, report.kept) == (0, 0, len(report.manifest.shards))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "c").iterdir()} == before
    (tmp_path / "c" / "shard-000000.tar").unlink()
    with pytest.raises(DestinationError, match="are missing or have the wrong length: merge with --fresh"):
        merge(halves, tmp_path / "c")
    assert merge(halves, tmp_path / "c", fresh=True).manifest == report.manifest


@pytest.mark.parametrize("copy", [False, True])
@pytest.mark.parametrize("moment", ["check of the inputs", "link", "copy", "index", "report", "manifest"])
@pytest.mark.torture_except(
    "link-False",
    "copy-True",
    "report-False",
    "manifest-True",
)
def test_after_a_kill_the_same_call_continues(
    halves: tuple[Path, Path], tmp_path: Path, moment: str, copy: bool
) -> None:
    code = (
        "import os; from wds_tools.packing import destination; from wds_tools.upkeep import merger\n"
        "from wds_tools.upkeep.merger import merge\n"
        "kill = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        "def third(function):  # kills the process at the third call\n"
        "    calls = []\n"
        "    def counting(*arguments, **named):\n"
        "        calls.append(1)\n"
        "        return (kill if len(calls) == 3 else function)(*arguments, **named)\n"
        "    return counting\n"
        + {
            "check of the inputs": "merger.xxhash.xxh3_128_hexdigest = third(merger.xxhash.xxh3_128_hexdigest)\n",
            "link": "os.link = third(os.link)\n",
            "copy": "merger.ShardSet.fetch = third(merger.ShardSet.fetch)\n",
            "index": "merger.commit_bytes = third(merger.commit_bytes)\n",
            "report": "merger.save_report = third(merger.save_report)\n",
            "manifest": "destination.FolderDestination.commit = kill\n",
        }[moment]
        + f"merge({[str(half) for half in halves]!r}, 'c', copy={copy})"
    )
    done = run(code, tmp_path)
    if moment == ("link" if copy else "copy"):
        assert done.returncode == 0, done.stderr  # this step does not occur
    else:
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert not (tmp_path / "c" / "manifest.json").exists()
    report: MergeReport = merge(halves, tmp_path / "c", copy=copy)
    assert report.kept >= (0 if moment == "check of the inputs" else 2)
    merge(halves, tmp_path / "uninterrupted")
    assert contents(tmp_path / "c") == contents(tmp_path / "uninterrupted")


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.torture)])
def test_after_a_kill_at_any_write_to_the_disk_the_same_call_completes_the_dataset(tmp_path: Path, step: int) -> None:
    inputs = [labelled(tmp_path / "a", []), labelled(tmp_path / "b", [], number=5)]
    merge(inputs, tmp_path / "uninterrupted")
    (tmp_path / "killed").mkdir()
    code = (
        "import os, sys; from wds_tools.upkeep.merger import merge\n"
        "CHANGES = ('os.rename', 'os.remove', 'os.mkdir', 'os.rmdir', 'os.link', 'fcntl.flock')\n"
        "def attempt(number):\n"
        "    left = [number]\n"
        "    def hook(event, arguments):\n"
        "        writes = event == 'open' and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT\n"
        "        if writes or event in CHANGES:\n"
        "            left[0] -= 1\n"
        "            if left[0] == 0: os.kill(os.getpid(), 9)\n"
        "    sys.addaudithook(hook)\n"
        f"    merge({list(map(str, inputs))!r}, f'killed/{{number}}')\n"
        "    os._exit(0)\n"
        "number = 1\n"
        "while True:\n"
        "    child = os.fork()\n"
        "    if not child: attempt(number)\n"
        "    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != -9: break\n"
        f"    number += {step}\n"
        "print(number)"
    )
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout) - 1
    assert kills > 15
    for number in range(1, kills + 1, step):
        if (tmp_path / "killed" / str(number) / "manifest.json").exists():
            assert wt.verify(tmp_path / "killed" / str(number)).ok
        merge(inputs, tmp_path / "killed" / str(number))
        assert contents(tmp_path / "killed" / str(number)) == contents(tmp_path / "uninterrupted"), number


def test_an_unfinished_merge_of_other_inputs_is_not_changed(
    halves: tuple[Path, Path], packed: Path, tmp_path: Path
) -> None:
    code = (
        "import os; from wds_tools.packing import destination; from wds_tools.upkeep.merger import merge\n"
        "destination.FolderDestination.commit = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        f"merge({[str(half) for half in halves]!r}, 'c')"
    )
    assert run(code, tmp_path).returncode == -signal.SIGKILL
    before = contents(tmp_path / "c")
    with pytest.raises(DestinationError, match="holds an unfinished pack of something else"):
        merge([packed], tmp_path / "c")
    assert contents(tmp_path / "c") == before
    assert merge([packed], tmp_path / "c", fresh=True).manifest.samples == 40


def test_a_full_disk_is_reported_and_the_same_call_continues(halves: tuple[Path, Path], tmp_path: Path) -> None:
    code = (
        "import resource; from wds_tools import merge\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n"
        f"merge({[str(half) for half in halves]!r}, 'c', copy=True)"
    )
    done = run(code, tmp_path)
    assert "DestinationError: cannot write to c: File too large; finished shards are kept" in done.stderr
    merge(halves, tmp_path / "c")
    assert wt.verify(tmp_path / "c").ok


def test_the_manifest_records_the_fingerprints_of_the_inputs_without_their_paths(
    halves: tuple[Path, Path], tmp_path: Path
) -> None:
    merge(halves, tmp_path / "c")
    source = json.loads((tmp_path / "c" / "manifest.json").read_text())["source"]
    assert source == {
        "kind": "merge",
        "inputs": [
            {
                "fingerprint": open_shards(half).manifest.fingerprint,
                "shards": len(manifest_of(half).shards),
                "samples": 20,
            }
            for half in halves
        ],
    }


# --- repeated keys ---


def test_a_key_in_two_inputs_is_named_in_a_warning_and_reshard_writes_unique_keys(
    photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("cat", "fig"):
        wt.pack(photos / name, tmp_path / name, workers=1, images="keep")
    report = merge([tmp_path / "cat", tmp_path / "fig"], tmp_path / "both")
    repeated = report.repeated_key
    assert repeated is not None
    assert repeated.key == "000000000"
    assert repeated.shards == (f"{tmp_path}/cat/shard-000000.tar", f"{tmp_path}/fig/shard-000000.tar")
    (record,) = caplog.records
    assert record.getMessage().startswith(f"key '000000000' occurs in {tmp_path}/cat/shard-000000.tar and in")
    assert "wds-tools reshard" in record.getMessage()
    assert wt.verify(tmp_path / "both").ok
    (note,) = wt.verify(tmp_path / "both").notes
    assert note.startswith("key '000000000' occurs in shard-000000.tar and in shard-000001.tar")
    wt.reshard(tmp_path / "both", tmp_path / "new", workers=1)
    assert wt.verify(tmp_path / "new").notes == []
    with wt.make_loader(tmp_path / "new", batch_size=100, fields=("__key__",), num_workers=0) as loader:
        assert len({key for batch in loader for key in batch.key}) == 100


def test_distinct_keys_give_no_warning(
    halves: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        with wt.ShardWriter(f"{tmp_path}/{name}/s-%d.tar", maxcount=3) as writer:
            for number in range(7):
                writer.write({"__key__": f"{name}{number}", "txt": b"x"})
    assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c").repeated_key is None
    assert not caplog.records
    assert wt.verify(tmp_path / "c").notes == []


def test_verify_and_index_name_the_first_repeated_key_of_a_dataset(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with wt.ShardWriter(f"{tmp_path}/s-%d.tar", maxcount=2) as writer:
        for key in ("a", "b", "c", "d", "e", "c", "f", "a"):
            writer.write({"__key__": key, "txt": b"x"})
    (note,) = wt.verify(tmp_path).notes
    assert note.startswith("key 'c' occurs in s-1.tar and in s-2.tar")
    for path in tmp_path.iterdir():
        if path.suffix != ".tar":
            path.unlink()
    wt.index_shards(f"{tmp_path}/*.tar")
    assert "key 'c' occurs in s-1.tar and in s-2.tar" in caplog.text
