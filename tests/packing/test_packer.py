"""Packing a folder: the bytes are the same after any interruption, and every file that is not packed is reported."""

from __future__ import annotations

import errno
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mounts
import preloaded
import pytest
import webdataset
from folders import contents, manifest_of
from hypothesis import given
from hypothesis import strategies as st
from pictures import encode
from PIL import Image
from waiting import wait_for

from wds_tools.errors import DestinationError, OptionError, SourceError, StoreError
from wds_tools.format.index import NO_LABEL, from_bytes
from wds_tools.packing import packer, worker
from wds_tools.packing.append import append
from wds_tools.packing.config import PackOptions
from wds_tools.packing.destination import FolderDestination
from wds_tools.packing.estimate import process_count
from wds_tools.packing.packer import PackReport
from wds_tools.packing.plan import Plan
from wds_tools.packing.splits import pack_splits
from wds_tools.sources.detect import open_source
from wds_tools.sources.inputs import Input
from wds_tools.upkeep.resealer import reseal

REPOSITORY = Path(__file__).parents[2]


def pack(src: Path, dst: Path, **options: object) -> PackReport:
    """Pack the bytes of the files unchanged. Other options for images are tested in test_transcode.py."""
    return packer.pack(src, dst, **{"images": "keep", **options})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def packed(packed_few: Path) -> Path:
    """Return a small dataset."""
    return packed_few


@pytest.fixture(scope="module")
def photos(packed_few: Path) -> Path:
    """Return its photographs."""
    return packed_few.parent / "images"


def image_bytes(kind: str = "JPEG", size: tuple[int, int] = (8, 6), colour: int = 0) -> bytes:
    return encode(Image.new("RGB", size, (colour % 256, colour // 256 % 256, 77)), kind)


def fill(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Return a folder of 30 small images in three classes, enough for a few shards of 12 kB."""
    return fill(
        tmp_path / "small",
        {f"{'abc'[number % 3]}/{number:02d}.jpg": image_bytes(colour=number * 99) for number in range(30)},
    )


def shard_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("shard-*.tar"))


def members(folder: Path) -> list[tuple[str, bytes]]:
    found = []
    for name in shard_names(folder):
        with tarfile.open(folder / name) as archive:
            found += [(member.name, archive.extractfile(member).read()) for member in archive]
    return found


def samples(folder: Path) -> list[dict[str, bytes]]:
    """Return the samples as webdataset reads them, in order."""
    urls = [str(folder / name) for name in shard_names(folder)]
    return list(webdataset.WebDataset(urls, shardshuffle=False, empty_check=False))


# What is packed


def test_every_image_of_the_folder_is_in_the_dataset_byte_for_byte(photos: Path, packed: Path) -> None:
    folder = Counter((path.parent.name, path.read_bytes()) for path in photos.rglob("*.*"))
    classes = manifest_of(packed).classes
    read = Counter((classes[int(sample["cls"])], sample.get("jpg") or sample["png"]) for sample in samples(packed))
    assert read == folder


def test_webdataset_decodes_every_sample(packed: Path) -> None:
    urls = [str(packed / name) for name in shard_names(packed)]
    decoded = list(webdataset.WebDataset(urls, shardshuffle=False).decode("pil"))
    assert len(decoded) == manifest_of(packed).samples
    for sample in decoded:
        image = sample.get("jpg") or sample["png"]
        assert image.size[0] > 0
        assert sample["json"]["class"] == manifest_of(packed).classes[sample["cls"]]


def test_gnu_tar_unpacks_the_shards_without_warnings(packed: Path, tmp_path: Path) -> None:
    for name in shard_names(packed):
        done = subprocess.run(
            ["tar", "-xvf", str(packed / name)], cwd=tmp_path, check=True, capture_output=True, text=True
        )
        assert done.stderr == ""
    unpacked = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    assert unpacked == dict(members(packed))


@pytest.mark.frameworks
def test_hugging_face_reads_images_and_labels(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    files = [str(packed / name) for name in shard_names(packed)]
    stream = datasets.load_dataset("webdataset", data_files={"train": files}, split="train", streaming=True)
    rows = list(stream.take(20))
    assert {"jpg", "cls", "json", "__key__"} <= set(rows[0])
    assert [row["__key__"] for row in rows] == [f"{number:09d}" for number in range(20)]


def test_the_json_field_has_path_and_class_of_an_image(photos: Path, packed: Path) -> None:
    for sample in samples(packed):
        facts = json.loads(sample["json"])
        assert (photos / facts["path"]).read_bytes() == (sample.get("jpg") or sample["png"])
        assert facts["path"].startswith(facts["class"] + "/")


def test_fields_have_the_same_order_in_every_sample(packed: Path) -> None:
    fields = [name.partition(".")[2] for name, _ in members(packed)]
    triples = {tuple(fields[index : index + 3]) for index in range(0, len(fields), 3)}
    assert triples == {("jpg", "cls", "json"), ("png", "cls", "json")}


def test_the_type_of_an_image_is_detected_by_its_first_bytes_not_by_its_name(tmp_path: Path) -> None:
    src = fill(
        tmp_path / "src", {"a.jpg": image_bytes("PNG"), "b.png": image_bytes("WEBP"), "c.webp": image_bytes("JPEG")}
    )
    pack(src, tmp_path / "dst", workers=1)
    kinds = {
        json.loads(sample["json"])["path"]: next(name for name in ("jpg", "png", "webp") if name in sample)
        for sample in samples(tmp_path / "dst")
    }
    assert kinds == {"a.jpg": "png", "b.png": "webp", "c.webp": "jpg"}


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    src = fill(tmp_path / "src", {f"{number}.jpg": image_bytes() for number in range(3)})
    manifest = pack(src, tmp_path / "dst", workers=1).manifest
    assert manifest.fields == {"jpg": 3, "json": 3}
    assert manifest.classes == ()
    assert all("cls" not in sample for sample in samples(tmp_path / "dst"))
    index = from_bytes((tmp_path / "dst" / "shard-000000.parquet").read_bytes(), name="")
    assert index.label.tolist() == [NO_LABEL] * 3


def test_keys_count_up_through_all_shards(packed: Path) -> None:
    assert [sample["__key__"] for sample in samples(packed)] == [
        f"{number:09d}" for number in range(manifest_of(packed).samples)
    ]


def test_the_first_samples_are_of_several_classes(packed: Path) -> None:
    assert len({sample["cls"] for sample in samples(packed)[:50]}) >= 6


def test_the_seed_changes_the_order_and_nothing_else(small: Path, tmp_path: Path) -> None:
    one = [sample["jpg"] for sample in (pack(small, tmp_path / "0", workers=1), samples(tmp_path / "0"))[1]]
    two = [sample["jpg"] for sample in (pack(small, tmp_path / "1", seed=1, workers=1), samples(tmp_path / "1"))[1]]
    assert one != two
    assert sorted(one) == sorted(two)


def test_the_first_five_samples_have_the_same_fields_in_a_mixed_folder(tmp_path: Path) -> None:
    kinds = ["PNG", "JPEG", "WEBP"]
    src = fill(
        tmp_path / "src",
        {f"c/{number}.{kinds[number % 3].lower()}": image_bytes(kinds[number % 3]) for number in range(30)}
        | {f"c/x{number}.jpg": image_bytes("PNG") for number in range(20)},  # the type is not that of the name
    )
    for seed in range(4):
        pack(src, tmp_path / f"{seed}", workers=1, seed=seed)
        first = [set(sample) for sample in samples(tmp_path / f"{seed}")[:5]]
        assert first == [first[0]] * 5


# Index, manifest and sizes


def test_the_manifest_agrees_with_every_file(packed: Path) -> None:
    manifest = manifest_of(packed)
    assert [entry.name for entry in manifest.shards] == shard_names(packed)
    for entry in manifest.shards:
        index = from_bytes((packed / entry.index).read_bytes(), name=entry.index)
        assert (packed / entry.name).stat().st_size == entry.bytes == index.shard_bytes
        assert len(index) == entry.samples
    assert sum(entry.samples for entry in manifest.shards) == len(samples(packed)) == 40


def test_the_manifest_counts_fields_classes_and_image_sizes(photos: Path, packed: Path) -> None:
    manifest = manifest_of(packed)
    assert manifest.fields == {"jpg": 32, "cls": 40, "json": 40, "png": 8}
    assert manifest.classes == tuple(sorted(path.name for path in photos.iterdir()))
    sizes = []
    for path in photos.rglob("*.*"):
        with Image.open(path) as image:
            sizes.append(image.size)
    assert (manifest.images.min_width, manifest.images.max_height) == (
        min(width for width, _ in sizes),
        max(height for _, height in sizes),
    )


def test_the_manifest_has_no_paths_or_names_of_this_machine(small: Path, tmp_path: Path) -> None:
    manifest = pack(small, tmp_path / "dst", workers=1, seed=5).manifest
    assert manifest.shuffled
    assert set(manifest.source) == {
        "kind",
        "seed",
        "shard_bytes",
        "files",
        "images",
        "image_bytes",
        "shuffle",
        "digest",
    }
    assert str(tmp_path) not in (tmp_path / "dst" / "manifest.json").read_text()


def test_no_shard_exceeds_shard_bytes_and_all_but_the_last_are_nearly_full(small: Path, tmp_path: Path) -> None:
    pack(small, tmp_path / "dst", shard_bytes=20_000, workers=1)
    sizes = [(tmp_path / "dst" / name).stat().st_size for name in shard_names(tmp_path / "dst")]
    largest = max(path.stat().st_size for path in small.rglob("*.jpg")) + 4 * 512 + 1024
    assert len(sizes) > 3
    assert max(sizes) <= 20_000
    assert min(sizes[:-1]) > 20_000 - largest


def test_a_sample_larger_than_shard_bytes_gets_a_shard_of_its_own(small: Path, tmp_path: Path) -> None:
    fill(small, {"a/large.png": image_bytes("PNG") + bytes(30_000)})
    pack(small, tmp_path / "dst", shard_bytes=12_000, workers=1)
    large = [entry for entry in manifest_of(tmp_path / "dst").shards if entry.bytes > 12_000]
    assert [entry.samples for entry in large] == [1]


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=30).filter(
            lambda name: not name.startswith(".") and len(name.encode()) < 80
        ),
        st.integers(1, 4000),
        min_size=1,
        max_size=12,
    ),
    st.integers(10_240, 30_000),
)
def test_files_of_any_name_and_size_are_read_back_and_no_shard_is_too_long(
    tmp_path_factory: pytest.TempPathFactory, files: dict[str, int], limit: int
) -> None:
    root = tmp_path_factory.mktemp("any")
    expected = {f"k/{name}.png": image_bytes("PNG") + bytes(size) for name, size in files.items()}
    src = fill(root / "src", expected)
    pack(src, root / "dst", shard_bytes=limit, workers=1)
    assert {json.loads(sample["json"])["path"]: sample["png"] for sample in samples(root / "dst")} == expected
    assert all(entry.bytes <= limit for entry in manifest_of(root / "dst").shards)


def test_unusual_file_names_are_kept(tmp_path: Path) -> None:
    names = ["a.b.c.jpg", "new\nline.jpg", "sp ace.jpg", "日本/é.jpg", "Case.jpg", "case.jpg", "-rf.jpg", "'\".jpg"]
    names.append(os.fsdecode(b"caf\xe9/\xff.jpg"))
    src = fill(tmp_path / "src", {f"k/{name}": image_bytes(colour=number * 50) for number, name in enumerate(names)})
    report = pack(src, tmp_path / "dst", kind="folder", workers=1)
    assert report.packed == len(names)
    for sample in samples(tmp_path / "dst"):
        path = json.loads(sample["json"])["path"]
        assert (src / path).read_bytes() == sample["jpg"]


def test_a_class_name_that_is_not_utf8_is_kept_in_the_manifest(tmp_path: Path) -> None:
    src = fill(tmp_path / "src", {os.fsdecode(b"caf\xe9/1.jpg"): image_bytes()})
    assert pack(src, tmp_path / "dst", workers=1).manifest.classes == ("caf\udce9",)
    assert manifest_of(tmp_path / "dst").classes == ("caf\udce9",)


# The same bytes


@pytest.mark.parametrize("workers", [2, 4])
def test_the_number_of_workers_changes_no_byte(photos: Path, packed: Path, tmp_path: Path, workers: int) -> None:
    pack(photos, tmp_path / "dst", shard_bytes="150kB", workers=workers, images="keep")
    assert contents(tmp_path / "dst") == contents(packed)


@pytest.mark.parametrize(
    ("images", "cores", "megabytes", "processes"),
    [
        ("keep", 2, 9_000, 1),
        ("keep", 3, 9_000, 2),
        ("keep", 16, 1_100, 3),
        ("keep", 64, 90_000, 8),
        ("crop-ready", 2, 9_000, 2),
        ("crop-ready", 16, 15, 2),
    ],
)
def test_the_default_number_of_workers_depends_on_cores_and_bytes(
    photos: Path, monkeypatch: pytest.MonkeyPatch, images: str, cores: int, megabytes: int, processes: int
) -> None:
    monkeypatch.setattr("wds_tools.packing.estimate.available_cores", lambda: cores)
    size = megabytes * 1_000_000
    plan = Plan([Input("a.jpg", size, None)], [0, 1], (), {}, input_bytes=size)
    source = open_source(photos)
    assert process_count(plan, source, PackOptions(photos, "", images=images)) == processes
    assert process_count(plan, source, PackOptions(photos, "", workers=3)) == 3


def imports_of_a_pack(photos: Path, dst: Path, workers: int, images: str = "keep") -> list[str]:
    """Return the modules that packing imports, including those of the worker processes."""
    script = (
        f"import wds_tools; wds_tools.pack({str(photos)!r}, {str(dst)!r}, "
        f"images={images!r}, shard_bytes='150kB', workers={workers}, progress=False)"
    )
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", script],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]


@pytest.mark.torture
def test_workers_are_forked_from_a_server_that_has_imported_their_module(photos: Path, tmp_path: Path) -> None:
    assert imports_of_a_pack(photos, tmp_path / "dst", workers=3).count("wds_tools.packing.worker") == 2


@pytest.mark.torture
def test_pandas_is_not_imported_to_write_an_index(photos: Path, tmp_path: Path) -> None:
    assert "pandas" not in imports_of_a_pack(photos / "cat", tmp_path / "dst", workers=1, images="crop-ready")


def test_the_path_and_timestamps_of_the_source_change_no_byte(small: Path, tmp_path: Path) -> None:
    pack(small, tmp_path / "one", workers=1)
    moved = shutil.copytree(small, tmp_path / "elsewhere" / "moved")
    for path in moved.rglob("*"):
        os.utime(path, (1, 1))
    pack(moved, tmp_path / "two", workers=1)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_only_the_files_of_the_dataset_are_left(small: Path, tmp_path: Path) -> None:
    pack(small, tmp_path / "dst", workers=1)
    assert sorted(contents(tmp_path / "dst")) == [
        "README.md",
        "manifest.json",
        "shard-000000.parquet",
        "shard-000000.tar",
    ]


# Files that cannot be packed


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Return a folder of good and bad images."""
    return fill(
        tmp_path / "mixed",
        {f"k/{number:02d}.jpg": image_bytes(colour=number) for number in range(20)}
        | {
            "k/cut.jpg": image_bytes(size=(99, 99))[:300],
            "k/empty.jpg": b"",
            "k/text.jpg": b"hello, world",
            "k/readme.txt": b"hello",
            "k/huge.png": image_bytes("PNG").replace(b"\0\0\0\x08\0\0\0\x06", b"\0\1\0\0\0\1\0\0"),
        },
    )


def test_files_that_cannot_be_packed_are_listed_with_the_reason(mixed: Path, tmp_path: Path) -> None:
    report = pack(mixed, tmp_path / "dst", workers=1)
    reasons = dict(report.skipped)
    assert list(reasons) == ["k/cut.jpg", "k/empty.jpg", "k/huge.png", "k/readme.txt", "k/text.jpg"]
    assert "truncated" in reasons["k/cut.jpg"]
    assert reasons["k/empty.jpg"] == "is empty"
    assert "is not a JPEG, PNG, WebP, TIFF, GIF or AVIF" in reasons["k/text.jpg"]
    assert report.packed == 20


def test_skipped_jsonl_lists_the_same_files_as_the_report(mixed: Path, tmp_path: Path) -> None:
    report = pack(mixed, tmp_path / "dst", workers=1)
    lines = (tmp_path / "dst" / "skipped.jsonl").read_text().splitlines()
    assert [tuple(json.loads(line).values()) for line in lines] == [tuple(skip) for skip in report.skipped]
    assert set(json.loads(lines[0])) == {"path", "reason"}


def test_every_file_is_either_packed_or_skipped(mixed: Path, tmp_path: Path) -> None:
    report = pack(mixed, tmp_path / "dst", workers=1)
    files = {str(path.relative_to(mixed)) for path in mixed.rglob("*") if path.is_file()}
    packed_paths = [json.loads(sample["json"])["path"] for sample in samples(tmp_path / "dst")]
    assert sorted([*packed_paths, *(skip.path for skip in report.skipped)]) == sorted(files)


def test_a_bad_file_does_not_move_the_boundaries_of_shards(small: Path, tmp_path: Path) -> None:
    pack(small, tmp_path / "good", shard_bytes=12_000, workers=1)
    keys = {}
    for name in shard_names(tmp_path / "good"):
        with tarfile.open(tmp_path / "good" / name) as archive:
            keys[name] = [key for key in archive.getnames() if key.endswith("jpg")]
    bad = small / "b" / "28.jpg"
    bad.write_bytes(bytes(bad.stat().st_size))
    pack(small, tmp_path / "bad", shard_bytes=12_000, workers=1)
    lost = 0
    for name in shard_names(tmp_path / "bad"):
        with tarfile.open(tmp_path / "bad" / name) as archive:
            now = [key for key in archive.getnames() if key.endswith("jpg")]
        assert set(now) <= set(keys[name])
        lost += len(keys[name]) - len(now)
    assert lost == 1


def test_a_shard_of_bad_files_only_is_not_written(tmp_path: Path) -> None:
    good = {f"{number}.png": image_bytes("PNG") + bytes(3000) for number in range(8)}
    src = fill(tmp_path / "src", {**good, "bad.png": b"x" * 11_000})
    report = pack(src, tmp_path / "dst", shard_bytes=12_000, workers=1)
    assert [skip.path for skip in report.skipped] == ["bad.png"]
    numbers = [int(name[6:12]) for name in shard_names(tmp_path / "dst")]
    assert len(numbers) == max(numbers)  # one number is missing
    assert [entry.name for entry in report.manifest.shards] == shard_names(tmp_path / "dst")


def test_skipped_jsonl_is_not_written_if_no_file_was_skipped(mixed: Path, tmp_path: Path) -> None:
    pack(mixed, tmp_path / "dst", workers=1)
    for name in ("cut.jpg", "empty.jpg", "text.jpg", "readme.txt", "huge.png"):
        (mixed / "k" / name).unlink()
    pack(mixed, tmp_path / "dst", workers=1, fresh=True)
    assert not (tmp_path / "dst" / "skipped.jsonl").exists()


def after_planning(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Change the source when it is listed and its first images are read."""
    start = FolderDestination.start

    def change_and_start(self: FolderDestination, source: dict[str, object], **options: object) -> None:
        change()
        start(self, source, **options)

    monkeypatch.setattr(FolderDestination, "start", change_and_start)


@pytest.mark.parametrize("options", [{"workers": 1}, {"workers": 2}, {"workers": 1, "task": (0, 1)}])
@pytest.mark.torture_except("options0")
def test_a_file_that_is_removed_while_packing_ends_it(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    shard_bytes = 12_000
    with monkeypatch.context() as patch:
        after_planning(patch, lambda: (small / "a" / "00.jpg").rename(tmp_path / "00.jpg"))
        with pytest.raises(StoreError, match=r"a/00\.jpg cannot be read: No such file .* are finished and kept: fix"):
            pack(small, tmp_path / "dst", shard_bytes=shard_bytes, **options)
    assert not (tmp_path / "dst" / "manifest.json").exists()
    (tmp_path / "00.jpg").rename(small / "a" / "00.jpg")
    assert pack(small, tmp_path / "dst", shard_bytes=shard_bytes, workers=1).packed == 30


def test_a_file_that_changes_while_packing_ends_it(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        after_planning(patch, lambda: (small / "b" / "01.jpg").write_bytes(b"shorter"))
        with pytest.raises(StoreError, match=r"b/01\.jpg changed while it was packed: it has 7 of the .*--fresh"):
            pack(small, tmp_path / "dst", workers=1)
    assert not (tmp_path / "dst" / "manifest.json").exists()
    assert pack(small, tmp_path / "dst", workers=1, fresh=True).packed == 29


def rewrite(path: Path) -> None:
    """Write other content of the same length, as a program does that corrects images in place."""
    path.write_bytes(path.read_bytes()[::-1])
    later = path.stat().st_mtime_ns + 1_000_000_000  # the clock of a file system may be coarse
    os.utime(path, ns=(later, later))


def replace_by_older(path: Path) -> None:
    """Replace a file by an older one of the same length, as ``cp -p`` does."""
    other = path.with_name("older")
    other.write_bytes(path.read_bytes()[::-1])
    os.utime(other, (1e9, 1e9))
    time.sleep(0.02)  # the clock of a file system may be coarse
    subprocess.run(["cp", "-p", other, path], check=True)
    other.unlink()


@pytest.mark.parametrize("change", [rewrite, replace_by_older])
@pytest.mark.parametrize("kind", ["folder", "captions", "table"])
@pytest.mark.torture_except("folder-rewrite", "captions-rewrite", "table-replace_by_older")
def test_a_file_that_is_rewritten_with_the_same_length_while_packing_ends_it(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, change: Callable[[Path], None]
) -> None:
    source, changed = small, small / "b" / "01.jpg"
    if kind == "captions":
        changed = small / "b" / "01.txt"
        changed.write_text("a cat")
    if kind == "table":
        source = tmp_path / "photos.csv"
        source.write_text("path,label\nsmall/a/00.jpg,a\nsmall/b/01.jpg,b\n")
    os.utime(small / "a" / "00.jpg", (4e9, 4e9))  # a time in the future is no change
    with monkeypatch.context() as patch:
        after_planning(patch, lambda: change(changed))
        with pytest.raises(StoreError, match=rf"b/{changed.name}.* changed while it was packed: it was modified, "):
            pack(source, tmp_path / "dst", workers=1)
    assert not (tmp_path / "dst" / "manifest.json").exists()
    assert pack(source, tmp_path / "dst", workers=1, fresh=True).packed >= 1


@pytest.mark.parametrize("kind", ["folder", "table", "append"])
def test_an_unfinished_pack_is_not_continued_with_a_file_that_has_changed_since(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    moved = small / "a" / "00.jpg"
    source, start = small, pack
    if kind == "table":
        source = tmp_path / "photos.csv"
        names = sorted(str(path.relative_to(tmp_path)) for path in small.rglob("*.jpg"))
        source.write_text("\n".join(["path", *names]))
    if kind == "append":
        shutil.copytree(small, tmp_path / "earlier", ignore=shutil.ignore_patterns("00.jpg", "01.jpg"))
        pack(tmp_path / "earlier", tmp_path / "dst", workers=1)
        source, start = small, partial(append, images="keep")
    with monkeypatch.context() as patch:
        after_planning(patch, lambda: moved.rename(tmp_path / "00.jpg"))
        with pytest.raises(StoreError, match="are finished and kept"):
            start(source, tmp_path / "dst", shard_bytes=12_000, workers=1)
    (tmp_path / "00.jpg").rename(moved)
    later = time.time_ns()
    os.utime(small / "b" / "01.jpg", ns=(later, later))
    with pytest.raises(DestinationError, match=r"unfinished pack .* 1 file .* time, such as '.*b/01\.jpg': .*--fresh"):
        start(source, tmp_path / "dst", shard_bytes=12_000, workers=1)


def test_a_class_folder_that_cannot_be_listed_because_storage_fails_ends_packing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def fail(path: Any) -> Any:
        if isinstance(path, bytes) and path.endswith(b"/b"):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(StoreError, match="small/b cannot be listed: Stale file handle"):
        pack(small, tmp_path / "dst", workers=1)


def test_a_file_of_a_table_that_is_missing_when_it_is_listed_is_skipped_and_later_ends_packing(
    small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (small / "table.csv").write_text("path\na/00.jpg\nnone.jpg\nb/01.jpg\n")
    report = pack(small / "table.csv", tmp_path / "dst", workers=1)
    assert (report.packed, [skip.path for skip in report.skipped]) == (2, ["none.jpg"])
    after_planning(monkeypatch, (small / "b" / "01.jpg").unlink)
    with pytest.raises(StoreError, match=r"'b/01\.jpg' cannot be read: No such file"):
        pack(small / "table.csv", tmp_path / "later", workers=1)


def test_an_item_whose_file_is_missing_ends_packing(small: Path, tmp_path: Path) -> None:
    class Items:
        def __len__(self) -> int:
            return 60

        def __getitem__(self, number: int) -> Image.Image:
            return Image.open(small / "a" / ("none.jpg" if number == 40 else "00.jpg"))

    with pytest.raises(StoreError, match=r"Items#40 cannot be read: FileNotFoundError"):
        pack(Items(), tmp_path / "dst")


def test_a_read_that_fails_while_planning_ends_packing_with_the_advice_to_run_it_again(tmp_path: Path) -> None:
    class Items:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, number: int) -> Image.Image:
            return Image.open(tmp_path / "none.jpg")

    advice = "nothing was written: fix the cause, then run the same command again"
    with pytest.raises(StoreError, match=rf"cannot be read: FileNotFoundError.*; {advice}"):
        pack(Items(), tmp_path / "dst")
    assert not (tmp_path / "dst").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_strict_names_the_files_and_leaves_nothing(mixed: Path, tmp_path: Path, workers: int) -> None:
    for name in ("empty.jpg", "readme.txt"):  # found by listing; the others only by reading
        (mixed / "k" / name).unlink()
    with pytest.raises(SourceError, match=r"3 files cannot be packed: 'k/cut.jpg' JPEG is truncated.*'k/huge.png'"):
        pack(mixed, tmp_path / "dst", strict=True, workers=workers, shard_bytes=12_000)
    assert not (tmp_path / "dst").exists()


def test_strict_names_bad_files_found_by_listing_and_by_reading(
    mixed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    words = [r"5 files cannot be packed: 'k/cut.jpg' ", "'k/empty.jpg' is empty", "'k/huge.png' ", "'k/readme.txt' "]
    with pytest.raises(SourceError, match=".*".join(words)):
        pack(mixed, tmp_path / "dst", strict=True, images="keep")
    assert caplog.records[-1].getMessage() == (
        "2 files cannot be packed: nothing will be packed; reading the other files to find all such files"
    )
    assert not (tmp_path / "dst").exists()


def test_strict_names_the_files_of_all_splits(mixed: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        shutil.copytree(mixed / "k", mixed / name)
    with pytest.raises(SourceError, match="15 files cannot be packed"):
        pack_splits(mixed, tmp_path / "dst", split="train=0.5,val=0.5", strict=True, images="keep")
    assert not (tmp_path / "dst").exists()


def test_strict_names_many_files_in_warnings(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    src = fill(tmp_path / "src", {f"{number:02}.jpg": b"x" for number in range(12)})
    with pytest.raises(SourceError, match=r"^12 files cannot be packed: '00.jpg' .*; and 2 more: the warnings before"):
        pack(src, tmp_path / "dst", workers=1, strict=True, images="keep")
    assert [record.getMessage()[:8] for record in caplog.records] == [f"'{number:02}.jpg'" for number in range(12)]


def test_strict_keeps_other_files_in_the_folder(mixed: Path, tmp_path: Path) -> None:
    dst = fill(tmp_path / "dst", {"notes.txt": b"mine"})
    with pytest.raises(SourceError):
        pack(mixed, dst, strict=True, workers=1)
    assert contents(dst) == {"notes.txt": b"mine"}


def test_strict_packs_a_folder_without_bad_files(small: Path, tmp_path: Path) -> None:
    assert pack(small, tmp_path / "dst", strict=True, workers=1).packed == 30


def test_strict_refuses_a_finished_dataset_that_has_skipped_files(mixed: Path, tmp_path: Path) -> None:
    for name in ("empty.jpg", "readme.txt"):
        (mixed / "k" / name).unlink()
    pack(mixed, tmp_path / "dst", workers=1)
    before = contents(tmp_path / "dst")
    with pytest.raises(SourceError, match="3 files cannot be packed"):
        pack(mixed, tmp_path / "dst", workers=1, strict=True)
    assert contents(tmp_path / "dst") == before


def test_a_folder_with_only_bad_images_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    src = fill(tmp_path / "src", {"a.jpg": b"not an image", "b.jpg": b"neither"})
    with pytest.raises(SourceError, match=r"2 files cannot be packed: 'a.jpg' is not a JPEG") as raised:
        pack(src, tmp_path / "dst", workers=1)
    assert "strict" not in str(raised.value)
    assert not (tmp_path / "dst").exists()


# Options


def test_classes_can_be_names_or_a_file(small: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("c\nb\n\na\nd\n", "utf-8-sig")  # some editors write a byte order mark
    one = pack(small, tmp_path / "one", classes=["c", "b", "a", "d"], workers=1).manifest
    two = pack(small, tmp_path / "two", classes=str(tmp_path / "classes.txt"), workers=1).manifest
    assert one == two
    assert one.classes == ("c", "b", "a", "d")
    assert {(sample["cls"], json.loads(sample["json"])["class"]) for sample in samples(tmp_path / "one")} == {
        (b"0", "c"),
        (b"1", "b"),
        (b"2", "a"),
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": "no/such/file"}, "no/such/file"),
        ({"classes": []}, "classes is empty"),
        ({"classes": ["a", "a", "b", "c"]}, "given twice"),
        ({"workers": 0}, "workers=0"),
        ({"shard_bytes": "4 elephants"}, "4 elephants"),
        ({"shard_bytes": 100}, "too small"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_an_invalid_option_is_refused(small: Path, tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        pack(small, tmp_path / "dst", **options)
    assert not (tmp_path / "dst").exists()


def test_no_process_is_started_for_a_small_folder(small: Path, tmp_path: Path) -> None:
    done = run(
        f"""
        import multiprocessing
        from wds_tools.packing.packer import pack
        multiprocessing.get_context = None
        print(pack({str(small)!r}, {str(tmp_path / "dst")!r}, shard_bytes=12_000).packed)
        """
    )
    assert done.stdout == "30\n"


def test_the_report_has_counts_and_skipped_files(small: Path, tmp_path: Path) -> None:
    report = pack(str(small), str(tmp_path / "dst"), shard_bytes="12kB", workers=1)
    assert (report.packed, report.skipped, report.kept) == (30, (), 0)
    assert report.dst == tmp_path / "dst"
    assert 0 < report.seconds < 60
    assert report.manifest == manifest_of(tmp_path / "dst")


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_counts_images_and_speed(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    pack(small, tmp_path / "dst", shard_bytes=50_000, workers=workers, progress=True)
    assert len(shard_names(tmp_path / "dst")) == 3
    error = capsys.readouterr().err
    assert "30/30" in error
    assert "images/s" in error
    assert "MB/s" in error


def test_the_progress_of_a_rerun_starts_at_the_finished_samples(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted(small, tmp_path / "dst")
    pack(small, tmp_path / "dst", shard_bytes=12_000, workers=1, progress=True)
    assert "30/30" in capsys.readouterr().err


def test_nothing_is_printed_if_stderr_is_not_a_terminal(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack(small, tmp_path / "dst", workers=1)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


# A destination that is not empty


def test_packing_again_changes_nothing(mixed: Path, tmp_path: Path) -> None:
    first = pack(mixed, tmp_path / "dst", workers=1)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "dst").iterdir()}
    again = pack(mixed, tmp_path / "dst", workers=1)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "dst").iterdir()} == stamps
    assert (again.manifest, again.packed, again.skipped) == (first.manifest, first.packed, first.skipped)
    assert again.kept == len(again.manifest.shards)


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"seed": 1}, "seed was 0 and is 1"),
        ({"shard_bytes": "1MB"}, "shard_bytes was 12000 and is 1000000"),
        ({"classes": ["c", "b", "a"]}, "classes or the first images of the input differ"),
    ],
)
@pytest.mark.torture_except("options0-seed was 0 and is 1")
def test_another_dataset_in_the_folder_is_refused_and_untouched(
    small: Path, tmp_path: Path, options: dict[str, object], difference: str
) -> None:
    pack(small, tmp_path / "dst", shard_bytes=12_000, workers=1)
    before = contents(tmp_path / "dst")
    with pytest.raises(DestinationError, match=f"another dataset .*{difference}.*--fresh"):
        pack(small, tmp_path / "dst", **{"shard_bytes": 12_000, "workers": 1, **options})
    assert contents(tmp_path / "dst") == before


def test_other_input_files_are_another_dataset(small: Path, tmp_path: Path) -> None:
    pack(small, tmp_path / "dst", workers=1)
    (small / "a" / "00.jpg").unlink()
    with pytest.raises(DestinationError, match="files was 30 and is 29"):
        pack(small, tmp_path / "dst", workers=1)


def test_fresh_replaces_an_earlier_pack_and_nothing_else(small: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    pack(small, dst, shard_bytes=12_000, workers=1)
    others = {
        "notes.txt": b"mine",
        "shard-1.tar": b"mine",
        "sub/shard-000000.tar": b"mine",
        ".shard-000000.tar": b"mine",
    }
    fill(dst, others)
    pack(small, dst, seed=1, workers=1, fresh=True)
    pack(small, tmp_path / "new", seed=1, workers=1)
    assert contents(dst) == others | contents(tmp_path / "new")


def test_shards_of_another_tool_are_an_error_and_stay_unchanged(small: Path, tmp_path: Path) -> None:
    dst = fill(tmp_path / "dst", {"shard-000007.tar": b"theirs"})
    with pytest.raises(DestinationError, match=r"shard-000007\.tar.*--fresh"):
        pack(small, dst, workers=1)
    assert contents(dst) == {"shard-000007.tar": b"theirs"}
    assert not (dst / ".packing").exists()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_manifest_of_another_tool_is_never_removed(small: Path, tmp_path: Path, fresh: bool) -> None:
    dst = fill(tmp_path / "dst", {"manifest.json": b'{"name": "a web page"}'})
    with pytest.raises(DestinationError, match=r"manifest\.json"):
        pack(small, dst, workers=1, fresh=fresh)
    assert contents(dst) == {"manifest.json": b'{"name": "a web page"}'}


def test_fresh_does_not_remove_shards_that_were_only_indexed(small: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    pack(small, dst, workers=1)
    manifest = (dst / "manifest.json").read_text().replace('"kind": "folder"', '"kind": "shards"')
    (dst / "manifest.json").write_text(manifest)
    reseal(dst)
    before = contents(dst)
    with pytest.raises(DestinationError, match="was not written by pack"):
        pack(small, dst, workers=1, fresh=True)
    assert contents(dst) == before


def test_packing_again_is_an_error_if_a_shard_of_the_dataset_is_missing(small: Path, tmp_path: Path) -> None:
    pack(small, tmp_path / "dst", shard_bytes=12_000, workers=1)
    (tmp_path / "dst" / "shard-000001.tar").unlink()
    with pytest.raises(DestinationError, match=r"shard-000001\.tar.*--fresh"):
        pack(small, tmp_path / "dst", shard_bytes=12_000, workers=1)


@pytest.mark.parametrize("inside", ["", "out", "a/out"])
def test_a_destination_inside_the_source_is_refused(small: Path, inside: str) -> None:
    before = contents(small)
    for src in (small, f"file://{small}"):
        with pytest.raises(OptionError, match="is inside the source"):
            pack(src, small / inside, workers=1)
    assert contents(small) == before


def test_a_destination_that_links_into_the_source_is_refused(small: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(small)
    with pytest.raises(OptionError, match="is inside the source"):
        pack(small, tmp_path / "link" / "out", workers=1)


def test_a_destination_that_is_a_file_is_an_error(small: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DestinationError, match="cannot write to"):
        pack(small, tmp_path / "file", workers=1)


@pytest.mark.timeout(100)
def test_a_destination_that_cannot_be_created_is_an_error(small: Path) -> None:
    with pytest.raises(DestinationError, match="cannot write to /proc/none: No such file"):
        pack(small, "/proc/none", workers=1)


def test_a_missing_source_is_an_error_and_creates_no_destination(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="none cannot be read"):
        pack(tmp_path / "none", tmp_path / "dst")
    assert not (tmp_path / "dst").exists()


def test_a_second_packer_fails_at_once(small: Path, tmp_path: Path) -> None:
    with FolderDestination(tmp_path / "dst"):
        script = (
            f"from wds_tools.packing.packer import pack; pack({str(small)!r}, {str(tmp_path / 'dst')!r}, workers=1)"
        )
        done = run(script)
    assert done.returncode == 1
    assert "another packer is writing" in done.stderr


def test_of_several_packers_started_together_only_one_packs(photos: Path, packed: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    arguments = f"{str(photos)!r}, {str(dst)!r}, shard_bytes='150kB', workers=1, images='keep'"
    script = f"from wds_tools.packing.packer import pack; pack({arguments})"
    packers = [preloaded.Process(["-c", script], imports=preloaded.COMMANDS) for _ in range(4)]
    ends = [(packer.wait(), packer.stderr) for packer in packers]
    assert 0 in [code for code, _ in ends]
    assert all(code == 0 or "another packer" in error for code, error in ends)
    assert contents(dst) == contents(packed)


# Kills, full disks, dead workers


def run(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return preloaded.run(
        ["-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OPENBLAS_NUM_THREADS": "1", **environment},
        imports=preloaded.COMMANDS,
    )


# Packs in a forked process that is killed before its n-th change of the file system, for n = 1, 1 + step, ... until one
# run completes.
KILL_EVERYWHERE = """
import os, sys
from wds_tools.packing.packer import pack
src, dst = {src!r}, {dst!r}
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "fcntl.flock")

def fork(number):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    left = number

    def hook(event, arguments):
        nonlocal left
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_CREAT
        if (event in CHANGES or writes) and dst in str(arguments[0]) or event == "fcntl.flock":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), 9)

    sys.addaudithook(hook)
    try:
        pack(src, os.path.join(dst, str(number)), workers=1, shard_bytes=12_000, images="keep")
    except BaseException as error:
        print(error, file=sys.stderr)
        os._exit(1)
    os._exit(0)

number = 1
while (code := fork(number)) == -9:
    number += {step}
print(number)
sys.exit(code)
"""


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """Return a folder of images for two shards, and a file that is skipped."""
    images = {f"{'ab'[number % 2]}/{number:02d}.jpg": image_bytes(colour=number * 99) for number in range(5)}
    return fill(tmp_path / "few", {**images, "a/bad.jpg": b"not an image"})


STEPS = (8, pytest.param(1, marks=pytest.mark.torture))


@pytest.mark.parametrize("step", STEPS)
def test_a_rerun_recovers_from_a_kill_before_any_change_to_the_disk(few: Path, tmp_path: Path, step: int) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    pack(few, whole, workers=1, shard_bytes=12_000)
    assert len(shard_names(whole)) == 2
    done = run(KILL_EVERYWHERE.format(src=str(few), dst=str(killed), step=step))
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout) - 1
    assert kills > 20  # at least lock, plan, two shards with index and report, skipped, manifest, removals
    partial = 0
    for number in range(1, kills + 1, step):
        folder = killed / str(number)
        partial += (folder / ".packing" / "plan.json").exists()
        if (folder / "manifest.json").exists():  # the last file: everything that it lists must be complete
            assert {**contents(folder), **contents(whole)} == contents(folder)
        pack(few, folder, workers=1, shard_bytes=12_000)
        assert contents(folder) == contents(whole), f"after a kill before change {number}"
    assert partial > 15 // step


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.torture
def test_a_rerun_recovers_from_a_kill_while_an_earlier_dataset_is_replaced(
    few: Path, tmp_path: Path, step: int
) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    pack(few, whole, workers=1, shard_bytes=12_000)
    pack(few, killed / "template", workers=1, seed=1, shard_bytes=10_240)
    for number in range(1, 66, step):
        shutil.copytree(killed / "template", killed / str(number))
    script = KILL_EVERYWHERE.replace("shard_bytes=12_000", "shard_bytes=12_000, fresh=True")
    done = run(script.format(src=str(few), dst=str(killed), step=step))
    assert done.returncode == 0, done.stderr
    assert 30 < int(done.stdout) <= 65
    for number in range(1, int(done.stdout), step):
        if (killed / str(number) / "manifest.json").exists():
            manifest = manifest_of(killed / str(number))
            assert all((killed / str(number) / entry.name).exists() for entry in manifest.shards)
        pack(few, killed / str(number), workers=1, shard_bytes=12_000, fresh=True)
        assert contents(killed / str(number)) == contents(whole), f"after a kill before change {number}"


PACK = """
import sys
from wds_tools.packing.packer import pack
if __name__ == "__main__":
    pack({src!r}, {dst!r}, shard_bytes={shard_bytes!r}, workers=2, images={images!r})
"""


def start(src: Path, dst: Path, shard_bytes: str, mark: str, images: str = "keep") -> subprocess.Popen[bytes]:
    """Start packing in a process whose children can be found by ``mark`` in their environment."""
    script = dst.parent / "pack_script.py"
    script.write_text(PACK.format(src=str(src), dst=str(dst), shard_bytes=shard_bytes, images=images))
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "PACK_MARK": mark}
    return subprocess.Popen([sys.executable, str(script)], env=environment, stderr=subprocess.DEVNULL)


def family(mark: str) -> Iterator[tuple[int, int, str]]:
    """Yield (process, parent, command line) of every process that has ``mark`` in its environment."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if f"PACK_MARK={mark}".encode() in (folder / "environ").read_bytes():
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                yield int(folder.name), parent, (folder / "cmdline").read_text()
        except (OSError, ValueError):
            continue


def no_one_left(mark: str) -> bool:
    return wait_for(lambda: not list(family(mark)))


def ended_or_finished(process: subprocess.Popen[bytes], dst: Path, shards: int) -> bool:
    return process.poll() is not None or len(list(dst.glob(".packing/shard-*"))) >= shards


@pytest.mark.parametrize(
    ("images", "chains"),
    [("keep", 1), *(pytest.param(one, 3, marks=pytest.mark.torture) for one in ("keep", "crop-ready"))],
)
@pytest.mark.torture
def test_repeated_kills_at_random_times_still_give_the_same_bytes(
    photos: Path, tmp_path: Path, images: str, chains: int
) -> None:
    pack(photos, tmp_path / "whole", shard_bytes="150kB", workers=1, images=images)
    randomness = random.Random(20261121)
    landed = 0
    for chain in range(chains):
        dst, mark = tmp_path / f"{chain}" / "dst", uuid.uuid4().hex
        dst.parent.mkdir()
        for kill in (1, 2):
            process = start(photos, dst, "150kB", mark, images)
            goal = kill + randomness.randrange(2)  # finished shards; the process is killed a short time later
            wait_for(partial(ended_or_finished, process, dst, goal))
            time.sleep(0.03 * randomness.random())
            process.kill()
            landed += process.wait() == -signal.SIGKILL
            assert no_one_left(mark)
        pack(photos, dst, shard_bytes="150kB", workers=1, images=images)
        assert contents(dst) == contents(tmp_path / "whole")
    assert landed >= 1


def test_a_rerun_keeps_finished_shards(small: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    pack(small, tmp_path / "whole", shard_bytes=12_000, workers=1)
    done = run(
        f"""
        import os
        from wds_tools.packing import packer, worker
        save = worker.save_report
        def save_and_die(folder, report):
            save(folder, report)
            if report.number == 2: os.kill(os.getpid(), 9)
        worker.save_report = save_and_die
        packer.pack({str(small)!r}, {str(dst)!r}, shard_bytes=12_000, workers=1, images="keep")
        """
    )
    assert done.returncode == -signal.SIGKILL
    stamps = {name: (dst / name).stat().st_mtime_ns for name in shard_names(dst)}
    assert len(stamps) == 3
    report = pack(small, dst, shard_bytes=12_000, workers=1)
    assert report.kept == 3
    assert {name: (dst / name).stat().st_mtime_ns for name in stamps} == stamps
    assert contents(dst) == contents(tmp_path / "whole")


def interrupted(src: Path, dst: Path, **options: object) -> None:
    """Leave ``dst`` in the state of a packer that was interrupted after its second shard."""
    save = worker.save_report

    def save_and_stop(folder: Path, report: Any) -> None:
        save(folder, report)
        if report.number == 1:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "save_report", save_and_stop)
        with pytest.raises(KeyboardInterrupt):
            pack(src, dst, **{"shard_bytes": 12_000, "workers": 1, **options})
    assert (dst / ".packing" / "plan.json").exists()
    assert not (dst / "manifest.json").exists()


@pytest.mark.parametrize("lost", ["shard-000001.tar", "shard-000000.parquet"])
@pytest.mark.torture_except("shard-000000.parquet")
def test_a_rerun_packs_a_deleted_shard_again(small: Path, tmp_path: Path, lost: str) -> None:
    interrupted(small, tmp_path / "dst")
    (tmp_path / "dst" / lost).unlink()
    assert pack(small, tmp_path / "dst", shard_bytes=12_000, workers=1).kept == 1
    pack(small, tmp_path / "whole", shard_bytes=12_000, workers=1)
    assert contents(tmp_path / "dst") == contents(tmp_path / "whole")


def test_a_shard_is_removed_if_all_of_its_images_have_become_unreadable(tmp_path: Path) -> None:
    src = fill(tmp_path / "src", {f"{number}.png": image_bytes("PNG") + bytes(11_000) for number in range(8)})
    done = run(
        f"""
        import os
        from wds_tools.packing import packer, worker
        save = worker.save_report
        def save_or_die(folder, report):
            return save(folder, report) if report.number < 6 else os.kill(os.getpid(), 9)
        worker.save_report = save_or_die
        packer.pack({str(src)!r}, {str(tmp_path / "dst")!r}, shard_bytes=12_000, workers=1, images="keep")
        """
    )
    assert done.returncode == -signal.SIGKILL
    unreported = json.loads(samples(tmp_path / "dst")[6]["json"])["path"]
    status = (src / unreported).stat()
    (src / unreported).write_bytes(bytes(status.st_size))
    os.utime(src / unreported, ns=(status.st_atime_ns, status.st_mtime_ns))  # damage, not a change
    report = pack(src, tmp_path / "dst", shard_bytes=12_000, workers=1)
    assert [skip.path for skip in report.skipped] == [unreported]
    assert [int(entry.name[6:12]) for entry in report.manifest.shards] == [0, 1, 2, 3, 4, 5, 7]
    assert not (tmp_path / "dst" / "shard-000006.tar").exists()
    assert not (tmp_path / "dst" / "shard-000006.parquet").exists()


def test_the_list_of_skipped_files_of_an_earlier_run_is_removed(small: Path, tmp_path: Path) -> None:
    interrupted(small, tmp_path / "dst")
    fill(tmp_path / "dst", {"skipped.jsonl": b'{"path": "a/gone.txt", "reason": "is no image"}\n'})
    pack(small, tmp_path / "dst", shard_bytes=12_000, workers=1)
    assert not (tmp_path / "dst" / "skipped.jsonl").exists()


@pytest.mark.parametrize(
    ("options", "difference"), [({"seed": 1}, "seed was 0 and is 1"), ({"shard_bytes": "1MB"}, "shard_bytes was 12000")]
)
def test_other_options_do_not_continue_an_unfinished_pack(
    small: Path, tmp_path: Path, options: dict[str, object], difference: str
) -> None:
    interrupted(small, tmp_path / "dst")
    before = contents(tmp_path / "dst")
    with pytest.raises(DestinationError, match=f"unfinished pack .*{difference}.*--fresh"):
        pack(small, tmp_path / "dst", **{"shard_bytes": 12_000, "workers": 1, **options})
    assert contents(tmp_path / "dst") == before


def test_other_files_do_not_continue_an_unfinished_pack(small: Path, tmp_path: Path) -> None:
    interrupted(small, tmp_path / "dst")
    fill(small, {"a/new.jpg": image_bytes()})
    with pytest.raises(DestinationError, match="files was 30 and is 31"):
        pack(small, tmp_path / "dst", shard_bytes=12_000, workers=1)


def test_fresh_starts_over_after_an_unfinished_pack(small: Path, tmp_path: Path) -> None:
    interrupted(small, tmp_path / "dst")
    report = pack(small, tmp_path / "dst", seed=1, workers=1, fresh=True)
    pack(small, tmp_path / "whole", seed=1, workers=1)
    assert report.kept == 0
    assert contents(tmp_path / "dst") == contents(tmp_path / "whole")


def test_strict_leaves_an_unfinished_pack_unchanged(small: Path, tmp_path: Path) -> None:
    bad = small / "b" / "28.jpg"
    bad.write_bytes(bytes(bad.stat().st_size))
    interrupted(small, tmp_path / "dst")
    before = contents(tmp_path / "dst")
    with pytest.raises(SourceError, match="1 file cannot be packed"):
        pack(small, tmp_path / "dst", shard_bytes=12_000, workers=1, strict=True)
    assert contents(tmp_path / "dst") == before


def test_temporary_files_of_other_programs_are_not_removed(small: Path, tmp_path: Path) -> None:
    dst = tmp_path / "dst"
    interrupted(small, dst)
    ours, theirs = ".shard-000002.tar.0123456789abcdef.tmp", ".model.pt.0123456789abcdef.tmp"
    fill(dst, {ours: b"half", theirs: b"half"})
    pack(small, dst, shard_bytes=12_000, workers=1)
    assert not (dst / ours).exists()
    assert (dst / theirs).exists()


@pytest.mark.torture
def test_no_worker_outlives_a_killed_packer(photos: Path, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    process = start(photos, tmp_path / "dst", "10240B", mark)
    wait_for(lambda: len(list(family(mark))) >= 4)  # with two workers, the fork server and its tracker
    process.kill()
    process.wait()
    assert no_one_left(mark)


def test_a_killed_worker_is_an_error_and_a_rerun_continues(
    photos: Path, packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = uuid.uuid4().hex
    (tmp_path / "sitecustomize.py").write_text(  # every Python process runs it at the start, including the workers
        "import os\nfrom wds_tools.packing import worker\n"
        "make_sample = worker.make_sample\n"
        "def die(task, position, entry):\n"
        "    if task.number == 2: os.kill(os.getpid(), 9)\n"
        "    return make_sample(task, position, entry)\n"
        "worker.make_sample = die\n"
    )
    (tmp_path / "script.py").write_text(
        "import sys\nfrom wds_tools.packing import packer\nfrom wds_tools.errors import WorkerError\n"
        "try: packer.pack(sys.argv[1], sys.argv[2], shard_bytes='150kB', workers=2, images='keep')\n"
        "except WorkerError as error: sys.exit(f'WorkerError: {error}')\n"
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", photos, tmp_path / "dst"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "PACK_MARK": mark},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.stderr.startswith("WorkerError: a worker process died")
    assert "Traceback" not in done.stderr
    assert no_one_left(mark)
    assert not list((tmp_path / "dst").glob(".shard-*"))  # no half-written file is left
    pack(photos, tmp_path / "dst", shard_bytes="150kB", workers=1)
    assert contents(tmp_path / "dst") == contents(packed)


@pytest.mark.torture
def test_a_killed_fork_server_is_an_error(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif any('forkserver' in word for word in sys.orig_argv): os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "wds_tools", "pack", photos, tmp_path / "dst", "--shard-bytes=150kB", "--workers=2"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "error: a worker process died" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_stops_within_a_shard_and_keeps_finished_shards(photos: Path, packed: Path, tmp_path: Path) -> None:
    dst, mark = tmp_path / "dst", uuid.uuid4().hex
    (tmp_path / "sitecustomize.py").write_text(
        "import time\nfrom wds_tools.packing import worker\n"
        "make_sample = worker.make_sample\n"
        "def slow(task, position, entry):\n"
        "    time.sleep(task.number >= 2)\n"  # a shard of sixty images then takes a minute
        "    return make_sample(task, position, entry)\n"
        "worker.make_sample = slow\n"
    )
    (tmp_path / "script.py").write_text(
        "import sys\nfrom wds_tools.packing import packer\n"
        "packer.pack(sys.argv[1], sys.argv[2], shard_bytes='150kB', workers=2, images='keep')\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{REPOSITORY}", "PACK_MARK": mark}
    process = subprocess.Popen(
        [sys.executable, tmp_path / "script.py", photos, dst],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(lambda: len(list((dst / ".packing").glob("shard-*.json"))) == 2)
    os.killpg(process.pid, signal.SIGINT)  # to all processes, as a terminal does
    error = process.communicate(timeout=300)[1]
    # Python ignores an interrupt in its callback at the end of an import, and says so.
    error = re.sub(r"(?s)Exception ignored in: <function _get_module_lock.*?\nKeyboardInterrupt\n", "", error)
    assert process.returncode in (-signal.SIGINT, 130, 1)
    assert error.count("Traceback") == error.count("KeyboardInterrupt") == 1  # of the main process only
    assert no_one_left(mark)
    assert not list(dst.glob(".shard-*"))
    assert pack(photos, dst, shard_bytes="150kB", workers=1).kept == 2
    assert contents(dst) == contents(packed)


def test_a_script_without_a_main_guard_packs_once_and_is_not_run_by_workers(photos: Path, tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    arguments = f"{str(photos)!r}, {str(tmp_path / 'dst')!r}, shard_bytes='150kB', workers=2"
    script.write_text(f"print('run')\nfrom wds_tools.packing.packer import pack\npack({arguments})")
    done = subprocess.run(
        [sys.executable, script],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert done.stdout == "run\n"
    assert manifest_of(tmp_path / "dst").samples == 40


@pytest.mark.torture
def test_a_program_piped_into_python_packs_too(small: Path, tmp_path: Path) -> None:
    arguments = f"{str(small)!r}, {str(tmp_path / 'dst')!r}, shard_bytes=12_000, workers=2"
    program = f"from wds_tools.packing.packer import pack\npack({arguments})"
    subprocess.run(
        [sys.executable, "-"],
        input=program,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=True,
        timeout=300,
    )
    assert manifest_of(tmp_path / "dst").samples == 30


FULL_DISK = """
import os, shutil, sys, mounts
photos, disk, copy = sys.argv[1:]
mounts.enter()
mounts.make_small(disk, 350)
from wds_tools.packing.packer import pack
from wds_tools.errors import DestinationError
def pack_it(): pack(photos, f"{disk}/dst", shard_bytes="150kB", workers=1, images="keep")
try: pack_it()
except DestinationError as error: print(error)
print(*os.listdir(f"{disk}/dst"), sep="\\n")
mounts.resize(disk, 30_000)
pack_it()
shutil.copytree(f"{disk}/dst", copy)
"""


def test_a_full_disk_is_an_error_with_the_number_of_kept_shards_and_a_rerun_continues(
    photos: Path, packed: Path, tmp_path: Path, can_mount: None
) -> None:
    (tmp_path / "disk").mkdir()
    done = mounts.run(FULL_DISK, photos, tmp_path / "disk", tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    message, *left = done.stdout.splitlines()
    assert "No space left on device; 2 of 7 shards are finished and kept: free some space" in message
    assert message.startswith("shard shard-000002.tar: cannot be written")
    assert not [name for name in left if name.endswith(".tmp")]
    assert contents(tmp_path / "copy") == contents(packed)


def test_a_folder_with_files_of_something_else_is_refused(photos, tmp_path):
    src, dst = tmp_path / "src", tmp_path / "dst"
    (src / "cat").mkdir(parents=True)
    (src / "cat" / "1.jpg").write_bytes(next(photos.glob("*/*.jpg")).read_bytes())
    dst.mkdir()
    for name in ("README.md", ".gitignore", "thesis.tex"):
        (dst / name).write_text("mine")
    with pytest.raises(DestinationError, match=r"has 1 file that pack did not write, such as 'thesis\.tex'"):
        pack(src, dst, workers=1)
    assert not (dst / ".packing").exists()
    (dst / "thesis.tex").unlink()
    assert pack(src, dst, workers=1).packed == 1
    (dst / "thesis.tex").write_text("mine")
    assert pack(src, dst, workers=1).kept == 1
    assert pack(src, dst, workers=1, seed=1, fresh=True).packed == 1
    assert (dst / "thesis.tex").read_text() == (dst / "README.md").read_text() == "mine"
