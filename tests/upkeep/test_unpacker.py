"""`unpack()` restores the tree that was packed, byte for byte, and never writes outside its folder."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import preloaded
import pytest
from bad_server import BadServer
from folders import write_tar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import encode
from PIL import Image
from sources_conformance import stored

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import (
    ChecksumError,
    DestinationError,
    MissingFieldError,
    NotADatasetError,
    OptionError,
    SampleError,
    SourceError,
)
from wds_tools.reading.opening import open_shards
from wds_tools.upkeep.unpacker import unpack

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def packed(packed_few: Path) -> Path:
    """Return a small dataset, also to `packed_copy`."""
    return packed_few


@pytest.fixture(scope="module")
def photos(packed_few: Path) -> Path:
    """Return its photographs."""
    return packed_few.parent / "images"


def png(colour: int = 0) -> bytes:
    return encode(Image.new("RGB", (8, 6), (colour % 256, colour // 256, 77)), "PNG")


def files(folder: Path) -> dict[bytes, bytes]:
    """Return the bytes of the relative path -> content, for every file below a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {os.fsencode(path.relative_to(folder)): path.read_bytes() for path in found}


def write(folder: Path, *samples: dict[str, Any], **options: Any) -> Path:
    with wt.ShardWriter(folder / "a-%03d.tar", **options) as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": f"{number:03}", **sample})
    return folder


# --- restored trees ---


def test_pack_and_unpack_give_the_same_tree(photos: Path, packed: Path, tmp_path: Path) -> None:
    report = unpack(packed, tmp_path / "out")
    assert files(tmp_path / "out") == files(photos)
    assert (report.samples, report.written, report.kept) == (40, 40, 0)
    assert report.bytes == sum(map(len, files(photos).values()))


def test_a_flat_folder_is_restored(photos: Path, tmp_path: Path) -> None:
    wt.pack(photos / "cat", tmp_path / "packed", workers=1, images="keep")
    unpack(tmp_path / "packed", tmp_path / "out")
    assert files(tmp_path / "out") == files(photos / "cat")


names = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=40).map(str.encode),
    st.binary(min_size=1, max_size=20).filter(lambda name: not set(name) & {0, 47}),
    st.sampled_from(
        [b"a", b"A", b"-rf", b"a.b", b"a b", b"\n", b"\xff", "é".encode(), "e\u0301".encode(), b"a\\b", b"~"]
    ),
    st.sampled_from([b"x" * 251, "é".encode() * 125]),
).filter(lambda name: not name.startswith(b"."))
trees = st.dictionaries(
    st.tuples(names, names, st.sampled_from([b".png", b".PNG", b".jpg", b".a.png"])), st.integers(0, 60_000), min_size=1
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees)
def test_files_with_any_names_are_restored_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, tree: dict[tuple[bytes, bytes, bytes], int]
) -> None:
    folder = tmp_path_factory.mktemp("names")
    for (outer, name, ending), colour in tree.items():
        path = folder / "in" / os.fsdecode(outer) / os.fsdecode(name[: 255 - len(ending)] + ending)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(colour))
    wt.pack(folder / "in", folder / "packed", workers=1, shard_bytes=10_240, images="keep")
    unpack(folder / "packed", folder / "out")
    assert files(folder / "out") == files(folder / "in")


keys = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=30),
    st.sampled_from(["a", "a/b", "../a", "/a", "a//b", ".a/b", "-x", "a/../b", "A", "x" * 250, "a\n"]),
)
contents = st.dictionaries(st.sampled_from(["txt", "bin", "a.b", "txt.gz"]), st.binary(max_size=20), min_size=1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(keys, contents, min_size=1, max_size=5))
def test_samples_with_any_keys_are_restored_or_refused_and_never_written_outside(
    tmp_path_factory: pytest.TempPathFactory, samples: dict[str, dict[str, bytes]]
) -> None:
    folder = tmp_path_factory.mktemp("keys")
    stored = {}
    with wt.ShardWriter(folder / "in" / "a-%d.tar", maxcount=2, encoder=None) as writer:
        writer.write({"__key__": "first", "txt": b""})
        for key, fields in samples.items():
            try:
                writer.write({"__key__": key, **fields})
            except (SampleError, OptionError):
                continue
            stored |= {f"{key}.{name}".encode(): data for name, data in fields.items()}
    try:
        unpack(folder / "in", folder / "out" / "deep")
    except DestinationError:
        assert any(os.path.normpath(b"/x/" + name) != b"/x/" + name or len(name) > 200 for name in stored) or any(
            a != b and b.startswith(a + b"/") for a in stored for b in stored
        )
    else:
        assert files(folder / "out" / "deep") == stored | {b"first.txt": b""}
    assert {path.name for path in folder.iterdir()} <= {"in", "out"}
    assert {path.name for path in (folder / "out").glob("*")} <= {"deep"}


def test_fields_are_named_after_the_image_and_omitted_if_the_path_implies_them(tmp_path: Path) -> None:
    write(
        tmp_path / "in",
        {"png": png(), "cls": 0, "json": {"path": "cat/1.png", "class": "cat"}, "txt": "a cat"},
        {"png": png(1), "cls": 0, "json": {"path": "cat/1.jpg", "class": "cat"}, "txt": "another"},
        {"png": png(2), "cls": 0, "json": {"path": "cat/2.png", "class": "cat", "seen": 3}},
        {"png": png(3), "cls": 1, "json": {"path": "img/3.png", "class": "dog"}},
        {"png": png(4), "cls": 7, "json": {"path": "img/4.png"}},
        {"png": png(5), "json": {"path": "table.h5#5"}},
        {"png": png(6), "jpg": png(7), "json": {"path": "img/6.jpg"}},
    )
    unpack(tmp_path / "in", tmp_path / "out")
    assert sorted(files(tmp_path / "out")) == [
        b"cat/1.jpg",  # the original name, although the image is a PNG
        b"cat/1.jpg.txt",
        b"cat/1.png",
        b"cat/1.png.txt",
        b"cat/2.png",
        b"cat/2.png.json",
        b"img/3.png",
        b"img/3.png.cls",  # the folder is not the class
        b"img/3.png.json",
        b"img/4.png",
        b"img/4.png.cls",
        b"img/6.jpg",
        b"img/6.jpg.png",
        b"table.h5#5.png",
    ]


def test_further_images_of_records_are_their_fields_when_the_files_are_packed(tmp_path: Path) -> None:
    """As datasets for ControlNet have them. Views whose names do not begin with that of a file are samples."""
    rows = {name: [png(start + row) for row in range(3)] for name, start in (("image", 0), ("conditioning_image", 9))}
    pd.DataFrame(rows | {"text": ["a", "b", "c"]}).to_parquet(tmp_path / "hf.parquet")
    wt.pack(tmp_path / "hf.parquet", tmp_path / "first", images="keep", workers=1)
    unpack(tmp_path / "first", tmp_path / "files")
    (tmp_path / "files" / "hf.parquet#0.front.png").write_bytes(png(20))
    wt.pack(tmp_path / "files", tmp_path / "second", images="keep", workers=1)
    names = ("png", "conditioning_image.png", "txt")
    found = sorted((tuple(map(sample.get, names)) for sample in stored(tmp_path / "second")), key=lambda one: one[0])
    expected = [(rows["image"][row], rows["conditioning_image"][row], b"abc"[row : row + 1]) for row in range(3)]
    assert found == sorted([*expected, (png(20), None, None)], key=lambda one: one[0])


def test_raw_pixels_get_the_extension_npy(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.PNG").write_bytes(png())
    wt.pack(tmp_path / "src", tmp_path / "dst", images="raw", workers=1)
    unpack(tmp_path / "dst", tmp_path / "out")
    (name,) = (path.name for path in (tmp_path / "out").iterdir())
    assert name == "a.PNG.npy"
    assert np.load(tmp_path / "out" / name).shape == (6, 8, 3)


def test_files_of_samples_without_a_path_are_named_by_key(tmp_path: Path) -> None:
    write(
        tmp_path / "in",
        {"png": png(), "cls": 3, "seg.png": b"mask"},
        {"txt": "no image", "json": {"path": "cat/1.png"}},
        {"png": png(1), "json": b"[1]"},
        {"png": png(2), "json": b"no json"},
        {"png": png(3), "json": {"path": 5}},
        {"__key__": "deep/er/5", "txt": "x"},
    )
    unpack(tmp_path / "in", tmp_path / "out")
    assert sorted(files(tmp_path / "out")) == [
        b"000.cls",
        b"000.png",
        b"000.seg.png",
        b"001.json",
        b"001.txt",
        b"002.json",
        b"002.png",
        b"003.json",
        b"003.png",
        b"004.json",
        b"004.png",
        b"deep/er/5.txt",
    ]


@pytest.mark.parametrize(
    ("fields", "layout", "written"),
    [
        (["image"], "paths", ["cat/1.png"]),
        (["png"], "paths", ["cat/1.png"]),
        (["cls", "json"], "paths", ["cat/1.png.cls", "cat/1.png.json"]),
        (["image", "txt"], "paths", ["cat/1.png", "cat/1.png.txt"]),
        (None, "keys", ["000.cls", "000.json", "000.png", "000.txt"]),
        (["image"], "keys", ["000.png"]),
        (["txt"], "shards", ["a-000/000.txt"]),
    ],
)
def test_fields_and_layout_determine_the_files(
    tmp_path: Path, fields: list[str] | None, layout: Any, written: list[str]
) -> None:
    sample = {"png": png(), "cls": 0, "txt": "x", "json": {"path": "cat/1.png", "class": "cat"}}
    write(tmp_path / "in", sample)
    unpack(tmp_path / "in", tmp_path / "out", fields=fields, layout=layout)
    assert sorted(map(os.fsdecode, files(tmp_path / "out"))) == written


def test_invalid_options_are_refused_before_anything_is_written(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingFieldError, match=r"has no 'mask'; it has cls, .*json"):
        unpack(packed, tmp_path / "out", fields=["image", "mask"])
    with pytest.raises(MissingFieldError):
        unpack(packed, tmp_path / "out", fields=[])
    with pytest.raises(OptionError, match="layout='flat'; allowed are paths, keys, shards"):
        unpack(packed, tmp_path / "out", layout="flat")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="is not a local folder"):
        unpack(packed, "s3://bucket/out")
    with pytest.raises(NotADatasetError):
        unpack(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    before = files(packed)
    with pytest.raises(OptionError, match="is the folder of the dataset"):
        unpack(packed, packed, layout="keys", overwrite=True)
    assert files(packed) == before


# --- hostile datasets ---


@pytest.mark.parametrize(
    "path", ["../evil.png", "/tmp/evil.png", "a/../../evil.png", "", "a//b.png", "\0.png", "\ud800"]
)
def test_a_path_that_leads_outside_is_refused_with_shard_and_key(tmp_path: Path, path: str) -> None:
    write(tmp_path / "in", {"png": png(), "json": {"path": path}})
    with pytest.raises(
        DestinationError, match=r"shard a-000\.tar, key 000: .* is not a relative path inside a folder.*--layout keys"
    ):
        unpack(tmp_path / "in", tmp_path / "deep" / "out")
    assert sorted(path.name for path in tmp_path.rglob("*.png")) == []
    unpack(tmp_path / "in", tmp_path / "deep" / "out", layout="keys")
    assert sorted(files(tmp_path / "deep")) == [b"out/000.json", b"out/000.png"]


def test_a_key_that_leads_outside_is_refused(tmp_path: Path) -> None:
    write_tar(tmp_path / "in" / "x.tar", [("good.txt", b"x"), ("../../evil.txt", b"x")])
    wt.index_shards(str(tmp_path / "in" / "x.tar"))
    with pytest.raises(DestinationError, match=r"'../../evil.txt' is not a relative path"):
        unpack(tmp_path / "in", tmp_path / "out" / "deep")
    assert not list(tmp_path.rglob("evil*"))


def test_two_samples_with_one_path_are_refused_even_if_they_are_equal(tmp_path: Path) -> None:
    same = {"png": png(), "json": {"path": "cat/1.png"}}
    other = {"png": png(1), "json": {"path": "cat/0.png"}}
    write(tmp_path / "in", other, same, same)
    for options in ({}, {"overwrite": True}, {"fields": ["image"]}):
        with pytest.raises(OptionError, match=r"key 002: file 'cat/1\.png' would be written for two samples"):
            unpack(tmp_path / "in", tmp_path / "out", **options)
        assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit, match=r"^2$"):
        main(["unpack", str(tmp_path / "in"), str(tmp_path / "out")])
    server = BadServer({f"/{path.name}": path.read_bytes() for path in (tmp_path / "in").iterdir()})
    with server.running(), pytest.raises(OptionError, match=r"key 002: file 'cat/1\.png' would be written for two"):
        unpack(server.url, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out" / "cat").iterdir()} == {"0.png", "1.png"}


def test_layout_shards_restores_samples_of_two_shards_with_one_key(tmp_path: Path) -> None:
    write(tmp_path / "in", {"__key__": "a", "txt": "1"}, {"__key__": "a", "txt": "2"}, maxcount=1)
    with pytest.raises(OptionError, match="--layout shards"):
        unpack(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    unpack(tmp_path / "in", tmp_path / "two", layout="shards")
    assert files(tmp_path / "two") == {b"a-000/a.txt": b"1", b"a-001/a.txt": b"2"}


def test_a_damaged_sample_is_an_error_and_not_written(packed_copy: Path, tmp_path: Path) -> None:
    index = open_shards(packed_copy).index(0)
    path = packed_copy / "shard-000000.tar"
    data = bytearray(path.read_bytes())
    data[int(index.fields["jpg"].offset[3]) + 100] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError, match="key 000000003"):
        unpack(packed_copy, tmp_path / "out")
    left = {path for path in files(tmp_path / "out") if not path.startswith(b".unpacking/")}
    assert len(left) == 3


# --- repeated and interrupted runs, full disks ---


def test_a_folder_that_is_not_empty_is_refused_unless_files_may_be_replaced(
    photos: Path, packed: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    unpack(packed, tmp_path / "out")
    changed = next((tmp_path / "out").glob("*/*.jpg"))
    changed.write_bytes(b"mine")
    (tmp_path / "out" / "notes").write_text("mine")
    with pytest.raises(DestinationError, match="out is not empty: choose a new or empty folder, or unpack with"):
        unpack(packed, tmp_path / "out")
    assert changed.read_bytes() == b"mine"
    report = unpack(packed, tmp_path / "out", overwrite=True)
    assert (report.written, report.kept) == (1, 39)
    assert files(tmp_path / "out") == files(photos) | {b"notes": b"mine"}


def test_after_an_error_the_same_call_continues(photos: Path, packed_copy: Path, tmp_path: Path) -> None:
    shard = packed_copy / "shard-000001.tar"
    data = shard.read_bytes()
    shard.write_bytes(data[:-20_000] + b"x" + data[-19_999:])
    with pytest.raises(ChecksumError):
        unpack(packed_copy, tmp_path / "out")
    unfinished = r"out is unfinished: run the same `wds-tools unpack` command again"
    with pytest.raises(SourceError, match=unfinished):
        wt.pack(tmp_path / "out", tmp_path / "again")
    for read in (wt.describe, wt.verify, open_shards):
        with pytest.raises(NotADatasetError, match=unfinished):
            read(tmp_path / "out")
    shard.write_bytes(data)
    report = unpack(packed_copy, tmp_path / "out")
    assert report.kept > 0
    assert report.kept + report.written == 40
    assert files(tmp_path / "out") == files(photos)


def test_another_call_does_not_continue_an_unfinished_one(tmp_path: Path) -> None:
    one, other = {"png": png(1), "json": {"path": "cat/1.png"}}, {"png": png(2), "json": {"path": "cat/2.png"}}
    below = {"png": png(1), "json": {"path": "cat/1.png/2.png"}}
    write(tmp_path / "in", one, below)  # the second sample is an error after the first one was written
    write(tmp_path / "other", other)
    with pytest.raises(DestinationError, match=r"needs a folder '1\.png'"):
        unpack(tmp_path / "in", tmp_path / "out")
    before = files(tmp_path / "out")
    calls: list[tuple[str, dict[str, Any]]] = [
        ("in", {"layout": "shards"}),
        ("in", {"fields": ["image"]}),
        ("other", {}),
    ]
    for dataset, options in calls:
        with pytest.raises(DestinationError, match=r"holds an unfinished unpack or export of another"):
            unpack(tmp_path / dataset, tmp_path / "out", **options)
        assert files(tmp_path / "out") == before
    unpack(tmp_path / "other", tmp_path / "out", overwrite=True)
    assert files(tmp_path / "out") == {b"cat/1.png": png(1), b"cat/2.png": png(2)}


def test_a_rerun_that_fails_at_once_leaves_the_folder_unfinished(packed_copy: Path, tmp_path: Path) -> None:
    for name in ("shard-000001.tar", "shard-000000.tar"):
        data = (packed_copy / name).read_bytes()
        (packed_copy / name).write_bytes(data[:600] + bytes([data[600] ^ 1]) + data[601:])
        with pytest.raises(wt.WdsToolsError):
            unpack(packed_copy, tmp_path / "out")
    with pytest.raises(NotADatasetError, match="is unfinished: run the same `wds-tools unpack`"):
        open_shards(tmp_path / "out")


@pytest.mark.parametrize("goal", [1, 15, 39])
@pytest.mark.torture_except("15")
def test_after_a_kill_between_two_files_the_same_call_completes_the_tree(
    photos: Path, packed: Path, tmp_path: Path, goal: int
) -> None:
    code = (
        "import os; from wds_tools import unpack; from wds_tools.upkeep import restore\n"
        f"put, left = restore.RestoreFolder.put, [{goal}]\n"
        "def counting(self, *arguments):\n"
        "    left[0] -= 1\n"
        "    if left[0] < 0: os.link = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        "    return put(self, *arguments)\n"
        "restore.RestoreFolder.put = counting\n"
        f"unpack({str(packed)!r}, 'out')"
    )
    done = preloaded.run(["-c", code], cwd=tmp_path, imports=preloaded.COMMANDS)
    assert done.returncode == -signal.SIGKILL
    report = unpack(packed, tmp_path / "out")
    assert (report.written, report.kept) == (40 - goal, goal)
    assert files(tmp_path / "out") == files(photos)


@pytest.mark.torture
def test_after_a_kill_at_any_time_there_are_only_complete_files(photos: Path, packed: Path, tmp_path: Path) -> None:
    expected = files(photos)
    code = f"from wds_tools import unpack; unpack({str(packed)!r}, 'out')"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environment) as process:
        while process.poll() is None and len(list(tmp_path.glob("out/*/*.jpg"))) < 20:
            time.sleep(0.001)
        process.kill()
    left = {name: data for name, data in files(tmp_path / "out").items() if not name.startswith(b".unpacking")}
    assert left.items() <= expected.items()
    unpack(packed, tmp_path / "out")
    assert files(tmp_path / "out") == expected


def test_a_full_disk_is_reported_and_the_files_so_far_are_kept(packed: Path, tmp_path: Path) -> None:
    code = (
        "import resource; from wds_tools import unpack\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, 15_000))\n"
        f"unpack({str(packed)!r}, 'out')"
    )
    done = preloaded.run(["-c", code], cwd=tmp_path, imports=preloaded.COMMANDS)
    assert "DestinationError: cannot write to out: File too large; the files so far are kept" in done.stderr
    assert all(len(data) <= 15_000 for data in files(tmp_path / "out").values())
    assert unpack(packed, tmp_path / "out").kept > 0


def test_a_dataset_at_a_url_is_unpacked_without_the_cache(
    photos: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in packed.iterdir():
        memory.pipe(f"/unpack-test/{path.name}", path.read_bytes())
    try:
        unpack("memory://unpack-test", tmp_path / "out")
    finally:
        memory.rm("/unpack-test", recursive=True)
    assert files(tmp_path / "out") == files(photos)
    assert not (tmp_path / "cache").exists()


def test_a_class_that_is_not_text_is_not_implied_by_the_path(tmp_path: Path) -> None:
    write(tmp_path / "in", {"png": png(), "cls": 3, "json": {"path": "3/1.png", "class": 3}})
    unpack(tmp_path / "in", tmp_path / "out")
    assert sorted(files(tmp_path / "out")) == [b"3/1.png", b"3/1.png.cls", b"3/1.png.json"]


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (("cat", "dog"), [[0, 1], [1, 0], [1, 0]]),
        (("cat", "dog", "fig"), [[0], [1, 2], []]),
        (("cat", "dog", "fig"), [2, 0, 1]),
    ],
)
def test_labels_with_their_class_names_are_packed_again_as_they_were(
    names: tuple[str, ...], labels: list[Any], tmp_path: Path
) -> None:
    src = tmp_path / "src"
    src.mkdir()
    with (src / "labels.jsonl").open("w") as table:
        for row, one in enumerate(labels):
            (src / f"{row}.png").write_bytes(png(row))
            stated = names[one] if isinstance(one, int) else [names[number] for number in one]
            print(json.dumps({"path": f"{row}.png", "label": stated}), file=table)
    wt.pack(src, tmp_path / "first", classes=names, images="keep", workers=1)
    unpack(tmp_path / "first", tmp_path / "files")
    again = wt.pack(tmp_path / "files", tmp_path / "second", images="keep", workers=1)
    assert not again.skipped
    unpack(tmp_path / "second", tmp_path / "again")
    assert files(tmp_path / "again") == files(tmp_path / "files")
    found = {}
    for sample in stored(tmp_path / "second"):
        one = json.loads(sample["labels.json"] if "labels.json" in sample else sample["cls"])
        found[int(json.loads(sample["json"])["path"][0])] = one
    assert found == dict(enumerate(labels))
    lists = again.manifest.field_classes
    assert (lists["labels.json"].names if lists else again.manifest.classes) == names
