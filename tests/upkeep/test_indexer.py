"""`index_shards()` writes indexes and a manifest for existing shards; errors name the shard and the byte."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import mounts
import pytest
import webdataset
import xxhash
from folders import write_tar
from hypothesis import given
from hypothesis import strategies as st
from pictures import encode
from PIL import Image

import wds_tools as wt
from wds_tools.errors import (
    DestinationError,
    LabelError,
    NotADatasetError,
    OptionError,
    ShardError,
    SourceError,
    TruncatedShardError,
    WdsToolsError,
)
from wds_tools.format.index import ABSENT, NO_LABEL, Index, from_bytes
from wds_tools.format.manifest import from_json
from wds_tools.upkeep.indexer import index_shards


def image(width: int = 9, height: int = 7, kind: str = "JPEG") -> bytes:
    return encode(Image.new("RGB", (width, height), (200, 30, 90)), kind)


PLAIN = [("a.jpg", image()), ("a.cls", b"3"), ("b.jpg", image(20, 30)), ("b.cls", b"0")]


def index_of(path: Path) -> Index:
    return from_bytes(path.with_suffix(".parquet").read_bytes(), name=path.name)


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """Return a folder of three shards written by the webdataset library."""
    with webdataset.ShardWriter(str(tmp_path / "train-%06d.tar"), maxcount=4, verbose=0) as writer:
        for number in range(10):
            writer.write(
                {"__key__": f"n/{number:03d}", "jpg": image(10 + number, 20), "cls": number % 3, "json": {"a": 1}}
            )
    return tmp_path


def test_each_shard_gets_an_index_and_the_folder_a_manifest_and_a_card(theirs: Path) -> None:
    manifest = index_shards([f"{theirs}/train-{{000000..000002}}.tar"])
    assert sorted(path.name for path in theirs.iterdir()) == [
        "README.md",
        "manifest.json",
        *(f"train-00000{number}.{kind}" for number in range(3) for kind in ("parquet", "tar")),
    ]
    assert from_json((theirs / "manifest.json").read_bytes()) == manifest
    assert [entry.samples for entry in manifest.shards] == [4, 4, 2]
    assert manifest.fields == {"jpg": 10, "cls": 10, "json": 10}


def test_the_index_has_the_samples_that_webdataset_reads(theirs: Path) -> None:
    index_shards([f"{theirs}/*.tar"])
    for path in sorted(theirs.glob("*.tar")):
        index, data = index_of(path), path.read_bytes()
        read = list(webdataset.WebDataset(str(path), shardshuffle=False))
        assert index.keys == [sample["__key__"] for sample in read]
        for name, columns in index.fields.items():
            for row, sample in enumerate(read):
                offset, size = int(columns.offset[row]), int(columns.size[row])
                assert data[offset : offset + size] == sample[name]
                assert int(columns.xxh3[row]) == xxhash.xxh3_64_intdigest(sample[name])


def test_labels_and_image_sizes_are_read_from_the_shard(theirs: Path) -> None:
    manifest = index_shards([f"{theirs}/*.tar"])
    index = index_of(theirs / "train-000001.tar")
    assert index.label.tolist() == [1, 2, 0, 1]
    assert index.width.tolist() == [14, 15, 16, 17]
    assert (manifest.images.min_width, manifest.images.max_width) == (10, 19)


def test_the_manifest_states_length_and_checksum_of_every_file(theirs: Path) -> None:
    for entry in index_shards([f"{theirs}/*.tar"]).shards:
        shard, index = (theirs / entry.name).read_bytes(), (theirs / entry.index).read_bytes()
        assert (entry.bytes, entry.xxh3) == (len(shard), xxhash.xxh3_128_hexdigest(shard))
        assert (entry.index_bytes, entry.index_xxh3) == (len(index), xxhash.xxh3_128_hexdigest(index))


def test_the_manifest_has_no_classes_and_does_not_state_that_samples_are_shuffled(theirs: Path) -> None:
    manifest = index_shards([f"{theirs}/*.tar"])
    assert not manifest.shuffled
    assert manifest.source == {"kind": "shards"}
    assert manifest.classes == ()


def test_the_index_of_packed_shards_is_the_one_that_pack_wrote(packed_copy: Path, packed: Path) -> None:
    for path in packed_copy.iterdir():
        if path.suffix != ".tar":
            path.unlink()
    index_shards([f"{packed_copy}/*.tar"])
    for path in packed.glob("*.parquet"):
        assert (packed_copy / path.name).read_bytes() == path.read_bytes()


def test_the_shards_are_not_changed(theirs: Path) -> None:
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in theirs.iterdir()}
    index_shards([f"{theirs}/*.tar"])
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in before} == before


def test_gnu_tar_with_folders_and_long_names_is_indexed(tmp_path: Path) -> None:
    folder = tmp_path / "in" / ("d" * 90)
    folder.mkdir(parents=True)
    for name in ("1.jpg", "1.txt", "2.jpg"):
        (folder / f"{'n' * 90}{name}").write_bytes(image() if name.endswith("jpg") else b"text")
    subprocess.run(
        ["tar", "--format=gnu", "--sort=name", "-cf", tmp_path / "a.tar", "-C", tmp_path / "in", "."], check=True
    )
    manifest = index_shards([str(tmp_path / "a.tar")])
    assert manifest.samples == 2
    assert index_of(tmp_path / "a.tar").keys == [f"./{'d' * 90}/{'n' * 90}{number}" for number in (1, 2)]


@pytest.mark.parametrize("tar_format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_tar_format_is_indexed(tmp_path: Path, tar_format: int) -> None:
    path = write_tar(tmp_path / "a.tar", [("日本/é.jpg", image()), ("日本/é.cls", b"1")], tar_format)
    index_shards([str(path)])
    assert index_of(path).keys == ["日本/é"]


def test_samples_may_have_different_fields(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", image()), ("b.png", image(kind="PNG")), ("b.seg.png", b"x")])
    assert index_shards([str(path)]).fields == {"jpg": 1, "png": 1, "seg.png": 1}
    assert index_of(path).fields["seg.png"].offset.tolist()[0] == ABSENT
    assert index_of(path).width.tolist() == [9, 9]


@pytest.mark.parametrize("label", [b"9" * 30, b"1.5", b"1e3"])
def test_a_class_that_is_not_a_64_bit_integer_is_an_error(tmp_path: Path, label: bytes) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", image()), ("a.cls", label)])
    with pytest.raises(LabelError, match="--label-type"):
        index_shards([str(path)])
    assert index_shards([str(path)], label_type="name").classes == (label.decode(),)


@pytest.mark.parametrize("label", [b"", b"-9223372036854775808", b"-1", b"nan"])
def test_an_empty_or_negative_class_gives_no_label(tmp_path: Path, label: bytes) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", image()), ("a.cls", label)])
    index_shards([str(path)])
    assert index_of(path).label.tolist() == [NO_LABEL]


def test_samples_without_a_label_are_noted_if_others_have_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    members = [("a.jpg", image()), ("b.jpg", image())]
    index_shards([str(write_tar(tmp_path / "a.tar", members))])
    assert "no label" not in caplog.text
    index_shards([str(path := write_tar(tmp_path / "a.tar", [*members, ("b.cls", b"3")]))])
    assert index_of(path).label.tolist() == [NO_LABEL, 3]
    assert "1 of 2 samples have no label: load the others with where='label >= 0'" in caplog.text


def test_members_that_do_not_belong_to_samples_are_ignored_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_tar(tmp_path / "a.tar", [*PLAIN, ("README", b"x"), ("c/.hidden.jpg", b"x")])
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "a.jpg"
        archive.addfile(link)
        folder = tarfile.TarInfo("folder.d")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    with caplog.at_level(logging.WARNING, "wds_tools"):
        assert index_shards([str(path)]).samples == 2
    assert "a.tar: 4 members do not belong to samples and are ignored" in caplog.text


def test_a_broken_image_is_indexed_without_size_and_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"not an image"), ("b.jpg", image()), ("c.jpg", image()[:100])])
    with caplog.at_level(logging.WARNING, "wds_tools"):
        assert index_shards([str(path)]).samples == 3
    assert index_of(path).width.tolist() == [0, 9, 0]
    assert "the images of 2 samples cannot be read, the first is a" in caplog.text


def test_a_shard_of_text_only_has_no_image_sizes(tmp_path: Path) -> None:
    assert index_shards([str(write_tar(tmp_path / "a.tar", [("a.txt", b"x")]))]).images is None


# Invalid shards


def refused(path: Path, kind: type[WdsToolsError], match: str) -> WdsToolsError:
    with pytest.raises(kind, match=match) as caught:
        index_shards([str(path)])
    assert not path.with_suffix(".parquet").exists()
    assert not (path.parent / "manifest.json").exists()
    return caught.value


def test_a_sample_whose_members_are_not_consecutive_is_an_error_at_its_byte(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"1"), ("b.jpg", b"2"), ("a.cls", b"3")])
    error = refused(path, ShardError, "'a.cls': its sample began earlier")
    assert (error.shard, error.offset) == ("a.tar", 2048)


@pytest.mark.parametrize("twice", ["a.jpg", "a.JPG"])
def test_a_field_that_occurs_twice_is_an_error_at_its_byte(tmp_path: Path, twice: str) -> None:
    path = write_tar(tmp_path / "a.tar", [("a.jpg", b"1"), (twice, b"2")])
    error = refused(path, ShardError, "field 'jpg' occurs twice")
    assert (error.shard, error.offset) == ("a.tar", 1024)


@pytest.mark.parametrize("length", [0, 100, 512, 900, 1024, 3000])
def test_a_truncated_shard_is_an_error(tmp_path: Path, length: int) -> None:
    path = write_tar(tmp_path / "a.tar", PLAIN)
    os.truncate(path, length)
    assert refused(path, TruncatedShardError, "copy it again, or pack it again|was truncated").shard == "a.tar"


def test_a_file_that_is_not_a_tar_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(b"hello, world" * 100)
    refused(tmp_path / "a.tar", ShardError, "not a tar header")


def test_a_flipped_header_byte_is_an_error_at_its_member(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", PLAIN)
    data = bytearray(path.read_bytes())
    where = data.index(b"b.jpg")
    data[where + 130] ^= 1
    path.write_bytes(data)
    assert refused(path, ShardError, "checksum").offset == where


def test_a_name_that_is_not_utf8_is_an_error(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [(os.fsdecode(b"\xff.jpg"), b"1")])
    refused(path, ShardError, "not UTF-8")


def test_a_shard_with_thousands_of_fields_is_refused(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [(f"{number}.f{number}", b"") for number in range(1001)])
    refused(path, ShardError, "more than 1000 distinct fields")


def test_shards_without_any_sample_are_an_error(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", [("README", b"x")])
    with pytest.raises(ShardError, match="no sample in 1 shard: "):
        index_shards([str(path)])
    assert not (tmp_path / "manifest.json").exists()


def test_an_error_in_the_last_shard_removes_the_new_indexes(theirs: Path) -> None:
    os.truncate(theirs / "train-000002.tar", 1000)
    with pytest.raises(TruncatedShardError):
        index_shards([f"{theirs}/*.tar"])
    assert sorted(path.suffix for path in theirs.iterdir()) == [".tar"] * 3


def test_an_error_keeps_the_existing_indexes(theirs: Path) -> None:
    index_shards([f"{theirs}/*.tar"])
    os.truncate(theirs / "train-000002.tar", 1000)
    before = {path.name: path.read_bytes() for path in theirs.iterdir()}
    with pytest.raises(TruncatedShardError):
        index_shards([f"{theirs}/*.tar"])
    assert {path.name: path.read_bytes() for path in theirs.iterdir()} == before


def test_an_empty_shard_among_others_is_indexed(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", PLAIN)
    write_tar(tmp_path / "b.tar", [])
    assert [entry.samples for entry in index_shards([f"{tmp_path}/[ab].tar"]).shards] == [2, 0]


@given(st.integers(0, 10_239), st.integers(1, 255))
def test_a_shard_with_any_changed_byte_is_indexed_or_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, change: int
) -> None:
    path = write_tar(tmp_path_factory.mktemp("flip") / "a.tar", PLAIN)
    data = bytearray(path.read_bytes())
    data[position] ^= change
    path.write_bytes(data)
    try:
        manifest = index_shards([str(path)])
    except (ShardError, LabelError):  # a label may have become a name
        return
    assert manifest.shards[0].xxh3 == xxhash.xxh3_128_hexdigest(bytes(data))


# Patterns, and existing indexes and manifests


def test_a_shard_that_is_missing_is_an_error_that_names_it(theirs: Path) -> None:
    with pytest.raises(NotADatasetError, match=r"train-000003\.tar does not exist"):
        index_shards([f"{theirs}/train-{{000000..000003}}.tar"])
    assert not list(theirs.glob("*.parquet"))


def test_a_pattern_that_matches_nothing_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(NotADatasetError, match="val-"):
        index_shards([f"{tmp_path}/val-*.tar"])


def test_no_pattern_is_an_error() -> None:
    with pytest.raises(OptionError, match="no pattern"):
        index_shards([])


def test_shards_of_two_folders_are_an_error(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_tar(tmp_path / name / "a.tar", PLAIN)
    with pytest.raises(OptionError, match="2 folders"):
        index_shards([f"{tmp_path}/*/a.tar"])


def test_a_shard_that_is_named_twice_is_an_error(theirs: Path) -> None:
    with pytest.raises(OptionError, match=r"train-000001\.tar is named 2 times"):
        index_shards([f"{theirs}/*.tar", f"{theirs}/train-000001.tar"])


def test_shards_of_several_splits_need_manifests_of_their_own_with_the_same_class_numbers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They have the names of timm/imagenet-1k-wds; the folder above is no pattern that names both splits."""
    (tmp_path := tmp_path / "train_and_validation").mkdir()
    names = {
        "imagenet1k-train-0000.tar": "cat",
        "imagenet1k-train-0001.tar": "emu",
        "imagenet1k-validation-00.tar": "emu",
    }
    for number, (name, label) in enumerate(names.items()):
        with webdataset.TarWriter(str(tmp_path / name)) as writer:
            writer.write({"__key__": str(number), "jpg": image(), "cls": label.encode()})
    message = r"shards of several splits \(train, validation\): index .* such as '.*/imagenet1k-train-\*.tar' with"
    for patterns in ([f"{tmp_path}/*.tar"], [str(tmp_path / name) for name in names]):
        with pytest.raises(OptionError, match=message):
            index_shards(patterns)
    shutil.move(tmp_path / "imagenet1k-validation-00.tar", other := tmp_path / "imagenet1k-train_extra-0000.tar")
    with pytest.raises(OptionError, match=r"several splits \(train, train_extra\): .*/imagenet1k-train-\*.tar' with"):
        index_shards(f"{tmp_path}/*.tar")
    shutil.move(other, tmp_path / "imagenet1k-validation-00.tar")
    assert index_shards(f"{tmp_path}/*train*.tar", manifest="train.json").classes == ("cat", "emu")
    assert index_shards(f"{tmp_path}/*validation*.tar", manifest="validation.json").classes == ("cat", "emu")
    index = from_bytes((tmp_path / "imagenet1k-validation-00.parquet").read_bytes(), name="index")
    assert index.label.tolist() == [1]
    assert index_shards(f"{tmp_path}/*{{train,validation}}*.tar").samples == 3
    assert not caplog.records
    (tmp_path / "manifest.json").unlink()
    (tmp_path / "imagenet1k-validation-00.parquet").unlink()
    (tmp_path / "validation.json").unlink()
    index_shards(f"{tmp_path}/*validation*.tar", manifest="validation.json", classes=["emu"])
    assert "another manifest in" in caplog.text
    assert "has other class numbers (0 is 'cat' there, and 'emu' here)" in caplog.text


def test_a_compressed_shard_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"x")
    with pytest.raises(OptionError, match=r"does not end in \.tar"):
        index_shards([str(tmp_path / "a.tar.gz")])


def test_several_patterns_keep_their_order(theirs: Path) -> None:
    manifest = index_shards([f"{theirs}/train-000002.tar", f"{theirs}/train-00000[01].tar"])
    assert [entry.name[11] for entry in manifest.shards] == ["2", "0", "1"]


def test_indexing_again_gives_the_same_bytes(theirs: Path) -> None:
    index_shards([f"{theirs}/*.tar"])
    before = {path.name: path.read_bytes() for path in theirs.iterdir()}
    index_shards([f"{theirs}/*.tar"])
    assert {path.name: path.read_bytes() for path in theirs.iterdir()} == before


def test_indexing_a_packed_dataset_again_keeps_classes_and_source(packed_copy: Path, packed: Path) -> None:
    for path in packed_copy.glob("*.parquet"):
        path.unlink()
    index_shards([f"{packed_copy}/*.tar"])
    assert (packed_copy / "manifest.json").read_bytes() == (packed / "manifest.json").read_bytes()


def test_indexing_replaced_shards_does_not_keep_the_old_classes(packed_copy: Path) -> None:
    shutil.copy(packed_copy / "shard-000000.tar", packed_copy / "shard-000001.tar")
    manifest = index_shards([f"{packed_copy}/*.tar"])
    assert (manifest.classes, manifest.source) == ((), {"kind": "shards"})


def test_a_manifest_of_other_shards_is_not_replaced(theirs: Path) -> None:
    index_shards([f"{theirs}/train-00000[01].tar"])
    before = (theirs / "manifest.json").read_bytes()
    with pytest.raises(DestinationError, match=r"lists other shards \(2, .*--manifest"):
        index_shards([f"{theirs}/train-00000[02].tar"])
    assert (theirs / "manifest.json").read_bytes() == before


def test_shards_may_be_added_after_those_that_are_indexed(packed_copy: Path) -> None:
    last = max(packed_copy.glob("*.tar"))
    kept = last.read_bytes()
    last.unlink()
    (packed_copy / "manifest.json").unlink()
    first = index_shards([f"{packed_copy}/*.tar"])
    last.write_bytes(kept)
    grown = index_shards([f"{packed_copy}/*.tar"])
    assert grown.shards[:-1] == first.shards
    assert grown.samples == 400


def test_a_manifest_may_have_another_name(theirs: Path) -> None:
    index_shards([f"{theirs}/train-00000[01].tar"], manifest="train.json")
    index_shards([f"{theirs}/train-000002.tar"], manifest="val.json")
    assert json.loads((theirs / "train.json").read_text())["samples"] == 8
    assert json.loads((theirs / "val.json").read_text())["samples"] == 2
    assert not (theirs / "manifest.json").exists()


@pytest.mark.parametrize("name", ["../m.json", "m.txt", "/tmp/m.json", ".json"])
def test_a_manifest_name_with_a_folder_or_without_json_is_refused(theirs: Path, name: str) -> None:
    with pytest.raises(OptionError, match="not a file name ending in"):
        index_shards([f"{theirs}/*.tar"], manifest=name)


def test_a_json_file_that_is_not_a_manifest_is_not_overwritten(theirs: Path) -> None:
    (theirs / "manifest.json").write_text("[]")
    with pytest.raises(DestinationError, match="exists and is not a manifest"):
        index_shards([f"{theirs}/*.tar"])
    assert (theirs / "manifest.json").read_text() == "[]"


def test_a_parquet_file_that_is_not_an_index_is_not_overwritten(theirs: Path) -> None:
    (theirs / "train-000001.parquet").write_bytes(b"PAR1 their table PAR1")
    with pytest.raises(DestinationError, match=r"train-000001\.parquet exists and is not an index"):
        index_shards([f"{theirs}/*.tar"])
    assert not (theirs / "train-000000.parquet").exists()


def test_a_damaged_index_is_replaced(theirs: Path) -> None:
    index_shards([f"{theirs}/*.tar"])
    path = theirs / "train-000001.parquet"
    good = path.read_bytes()
    path.write_bytes(bytes(50) + good[50:])
    index_shards([f"{theirs}/*.tar"])
    assert path.read_bytes() == good


READ_ONLY = """
import sys, mounts
mounts.enter()
mounts.make_read_only(sys.argv[1])
from wds_tools.upkeep.indexer import index_shards
from wds_tools.errors import DestinationError
try: index_shards([f"{sys.argv[1]}/*.tar"])
except DestinationError as error: print(error)
"""


def test_a_read_only_folder_is_an_error_that_states_the_reason(theirs: Path, can_mount: None) -> None:
    done = mounts.run(READ_ONLY, theirs)
    assert done.returncode == 0, done.stderr
    assert "Read-only file system; indexes are written to the folder of the shards" in done.stdout


def test_a_progress_bar_is_shown_only_with_progress(theirs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index_shards([f"{theirs}/*.tar"], progress=True)
    assert "100%" in capsys.readouterr().err
    index_shards([f"{theirs}/*.tar"])
    assert capsys.readouterr().err == ""


# Keys with dots


@pytest.mark.parametrize(
    "names",
    [
        [f"photo.2024.{number:02}.jpg" for number in range(16)],
        ["a.b.jpg", "a.c.jpg"],
        [f"{animal}.{number:03}.jpg" for animal in ("cat", "dog") for number in range(5)],
        [f"{number:03}.{number}.png" for number in range(5)],
        ["a.jpg", "a.b.jpg", "a.c.jpg"],
    ],
)
def test_images_whose_keys_have_dots_are_not_put_into_one_sample_by_default(tmp_path: Path, names: list[str]) -> None:
    write_tar(tmp_path / "a.tar", [(name, image()) for name in names])
    with pytest.raises(ShardError, match=r"first dot\. If the dots .* keys, .*--from dotted.*--dots-in-fields"):
        index_shards(str(tmp_path / "a.tar"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]
    assert index_shards(str(tmp_path / "a.tar"), dots_in_fields=True).samples == len({n.split(".")[0] for n in names})


def test_the_error_about_dots_names_images_that_would_become_one_sample(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [(f"photo.2024.{number:02}.jpg", image()) for number in range(16)])
    words = "'photo.2024.00.jpg' and 'photo.2024.01.jpg' would become one sample, 'photo' (up to 16 images in one)"
    with pytest.raises(ShardError, match=re.escape(words)):
        index_shards(str(tmp_path / "a.tar"))


def test_the_error_about_too_many_fields_has_the_remedy_for_keys_with_dots(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [(f"photo.{number}.jpg", b"x") for number in range(1001)])
    with pytest.raises(ShardError, match=r"more than 1000 distinct fields.*--from dotted"):
        index_shards(str(tmp_path / "a.tar"))


@pytest.mark.parametrize("fields", [["jpg", "seg.png"], ["left.jpg", "right.jpg"], ["0.jpg", "1.jpg", "2.jpg"]])
def test_dots_belong_to_fields_that_occur_in_every_sample(tmp_path: Path, fields: list[str]) -> None:
    for shard in range(2):
        members = [(f"{shard}{key:03}.{name}", image()) for key in range(3) for name in fields]
        write_tar(tmp_path / f"{shard}.tar", members)
    assert index_shards(str(tmp_path / "*.tar")).fields == dict.fromkeys(fields, 6)


def test_shards_whose_keys_have_dots_are_packed_as_dotted_which_is_detected(tmp_path: Path) -> None:
    members = []
    for number in range(16):
        key = f"photo.2024.{number:02}"
        members += [(f"{key}.jpg", image(8 + number)), (f"{key}.cls", b"%d" % (number % 3)), (f"{key}.txt", b"words")]
    write_tar(tmp_path / "a.tar", members)
    with pytest.raises(SourceError, match=r"16 images in one.*--from dotted"):
        wt.pack(tmp_path / "a.tar", tmp_path / "dst", kind="webdataset", workers=1, images="keep")
    report = wt.pack(tmp_path / "a.tar", tmp_path / "dst", workers=1, images="keep")  # the kind is detected
    assert wt.pack(tmp_path / "a.tar", tmp_path / "dst", kind="dotted", workers=1, images="keep").kept == 1
    assert report.manifest.fields == {"jpg": 16, "cls": 16, "json": 16, "txt": 16}
    with wt.make_loader(tmp_path / "dst", batch_size=16, fields=("json", "label"), num_workers=0) as loader:
        (batch,) = loader
    expected = {(f"photo.2024.{number:02}", number % 3) for number in range(16)}
    assert {(facts["key"], label) for facts, label in zip(batch.json, batch.label.tolist(), strict=True)} == expected


def test_each_image_of_an_archive_whose_names_have_dots_is_packed_as_a_sample(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [(f"photo.2024.{number:02}.jpg", image(8 + number)) for number in range(16)])
    report = wt.pack(tmp_path / "a.tar", tmp_path / "dst", workers=1, images="keep")
    assert (report.packed, report.skipped) == (16, ())


def test_shards_indexed_with_dots_in_fields_can_be_resharded(tmp_path: Path) -> None:
    members = [(name, image()) for name in ("a.jpg", "a.b.jpg", "a.c.jpg")]
    write_tar(tmp_path / "old" / "a.tar", members)
    with pytest.raises(SourceError, match="--dots-in-fields"):
        wt.reshard(tmp_path / "old", tmp_path / "new", workers=1)
    index_shards(str(tmp_path / "old" / "a.tar"), dots_in_fields=True)
    assert wt.reshard(tmp_path / "old", tmp_path / "new", workers=1).manifest.fields["b.jpg"] == 1
