"""`verify()` finds, names and counts every kind of damage to a packed dataset."""

from __future__ import annotations

import io
import json
import random
import shutil
import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from PIL import Image
from resealed import index_of, rewrite

from wds_tools.cli import main
from wds_tools.errors import NotADatasetError, StoreError
from wds_tools.format.manifest import ImageStats, from_json, to_json
from wds_tools.format.tar import BLOCK, END, build_header, padded
from wds_tools.packing.packer import pack
from wds_tools.packing.shard_writer import ShardWriter
from wds_tools.storage.local import LocalStore
from wds_tools.upkeep.indexer import index_shards
from wds_tools.upkeep.verifier import Damage, verify

SHARD = "shard-000001.tar"
NUMBER_COLUMNS = ("label", "width", "height", "orientation", "restart", "mcu_width", "mcu_height")


@pytest.fixture(scope="module")
def packed(packed_few: Path) -> Path:
    """Return a small dataset, also to `packed_copy`."""
    return packed_few


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def only_damage(folder: Path) -> Damage:
    report = verify(folder)
    assert not report.ok
    assert report.damage_count == len(report.damages) == 1, [str(damage) for damage in report.damages]
    return report.damages[0]


def test_a_packed_dataset_has_no_damage(packed: Path) -> None:
    report = verify(packed)
    manifest = from_json((packed / "manifest.json").read_bytes())
    assert report.ok
    assert (report.shards, report.samples, report.bytes) == (len(manifest.shards), manifest.samples, manifest.bytes)
    assert (report.damages, report.unchecked, report.strangers) == ([], {}, [])


@pytest.mark.parametrize("name", ["jpg", "cls", "json"])
@pytest.mark.parametrize("row", [0, -1])
@pytest.mark.torture_except("0-json", "-1-jpg")
def test_a_flipped_bit_in_a_field_names_key_field_and_byte(packed_copy: Path, name: str, row: int) -> None:
    index = index_of(packed_copy)
    columns = index.fields[name]
    row = [i for i in range(len(index)) if columns.offset[i] >= 0][row]
    flip(packed_copy / SHARD, int(columns.offset[row] + columns.size[row] - 1), bit=6)
    damage = only_damage(packed_copy)
    assert (damage.shard, damage.key, damage.field) == (SHARD, index.keys[row], name)
    assert damage.offset == columns.offset[row]
    assert f"the XXH3-64 of its {columns.size[row]:,} bytes is" in damage.reason
    assert f"its index states {columns.xxh3[row]:016x}" in damage.reason


@pytest.mark.parametrize("position", [0, 99, 124, 155, 257, 511])
@pytest.mark.torture_except("99", "257")
def test_a_flipped_bit_in_a_header_names_the_member_and_byte(packed_copy: Path, position: int) -> None:
    index = index_of(packed_copy)
    header = int(index.fields["cls"].offset[3]) - BLOCK
    flip(packed_copy / SHARD, header + position, bit=1)
    damage = only_damage(packed_copy)
    assert (damage.shard, damage.key, damage.field, damage.offset) == (SHARD, index.keys[3], "cls", header)
    assert "its tar header: not a tar header" in damage.reason


def test_several_damages_of_one_shard_and_of_the_next_are_all_found(packed_copy: Path) -> None:
    index = index_of(packed_copy)
    offset, size = index.fields["cls"].offset, index.fields["cls"].size
    flip(packed_copy / SHARD, int(offset[0]) - BLOCK)
    flip(packed_copy / SHARD, int(offset[1]) - BLOCK)
    flip(packed_copy / SHARD, int(offset[2]))
    flip(packed_copy / SHARD, int(offset[-1] + padded(int(size[-1]))))  # the header of the last json
    flip(packed_copy / "shard-000002.tar", 600)
    report = verify(packed_copy)
    assert [damage.key for damage in report.damages[:4]] == [*index.keys[:3], index.keys[-1]]
    assert [damage.field for damage in report.damages[:4]] == ["cls", "cls", "cls", "json"]
    assert [damage.shard for damage in report.damages] == [SHARD] * 4 + ["shard-000002.tar"]
    assert report.damaged_shards == [SHARD, "shard-000002.tar"]
    assert report.shards == len(from_json((packed_copy / "manifest.json").read_bytes()).shards)


def test_a_flipped_bit_in_padding_is_named_by_its_byte(packed_copy: Path) -> None:
    index = index_of(packed_copy)
    offset = int(index.fields["cls"].offset[5]) + 100
    flip(packed_copy / SHARD, offset)
    damage = only_damage(packed_copy)
    assert (damage.shard, damage.key, damage.offset) == (SHARD, None, offset)
    assert "bytes between them have changed" in damage.reason


def test_a_flipped_bit_in_the_closing_blocks_is_reported_after_the_last_member(packed_copy: Path) -> None:
    flip(packed_copy / SHARD, (packed_copy / SHARD).stat().st_size - 1)
    damage = only_damage(packed_copy)
    assert damage.key is None
    assert "after the last member: data after the end of the archive" in damage.reason
    assert damage.offset == (packed_copy / SHARD).stat().st_size - 1


def test_any_flipped_bit_of_a_shard_or_an_index_is_damage_of_that_shard(packed_copy: Path) -> None:
    chance = random.Random(0)
    files = sorted(path for path in packed_copy.iterdir() if path.suffix in (".tar", ".parquet"))
    for _ in range(6):
        path = chance.choice(files)
        whole = path.read_bytes()
        flip(path, chance.randrange(len(whole)), chance.randrange(8))
        report = verify(packed_copy)
        assert report.damage_count == 1
        assert report.damaged_shards == [path.with_suffix(".tar").name]
        path.write_bytes(whole)
    assert verify(packed_copy).ok


@pytest.mark.parametrize("keep", [0, 1, 511, 512, 5000, -1, -1024])
@pytest.mark.torture_except("511", "5000", "-1024")
def test_a_truncated_shard_is_damage_at_its_end(packed_copy: Path, keep: int) -> None:
    data = (packed_copy / SHARD).read_bytes()
    (packed_copy / SHARD).write_bytes(data[:keep])
    damage = only_damage(packed_copy)
    assert (damage.shard, damage.offset) == (SHARD, len(data[:keep]))
    assert f"has {len(data[:keep]):,} bytes, but its manifest records {len(data):,}" in damage.reason


def test_two_swapped_shards_are_both_damaged(packed_copy: Path) -> None:
    first, second = packed_copy / SHARD, packed_copy / "shard-000002.tar"
    first.rename(packed_copy / "x")
    second.rename(first)
    (packed_copy / "x").rename(second)
    report = verify(packed_copy)
    assert report.damaged_shards == [SHARD, "shard-000002.tar"]


@pytest.mark.parametrize("name", [SHARD, "shard-000001.parquet"])
def test_a_missing_file_is_damage_and_the_rest_is_checked(packed_copy: Path, name: str) -> None:
    (packed_copy / name).unlink()
    damage = only_damage(packed_copy)
    assert damage.shard == SHARD
    assert f"{name} is missing" in damage.reason
    assert verify(packed_copy).shards == len(from_json((packed_copy / "manifest.json").read_bytes()).shards)


def test_a_damaged_index_does_not_hide_a_damaged_shard(packed_copy: Path) -> None:
    flip(packed_copy / "shard-000001.parquet", 50)
    flip(packed_copy / SHARD, 600)
    report = verify(packed_copy)
    assert len(report.damages) == 2
    assert "does not match the checksum in the manifest" in report.damages[0].reason
    assert "its XXH3-128 is" in report.damages[1].reason


def test_a_damaged_manifest_is_damage(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    classes = from_json(path.read_bytes()).classes
    path.write_text(path.read_text().replace(f'"{classes[0]}"', '"other"'))
    damage = only_damage(packed_copy)
    assert damage.shard == "manifest.json"
    assert "has the checksum" in damage.reason
    assert "wds-tools reseal" in damage.reason


def edit_manifest(folder: Path, **changes: object) -> None:
    """Change a manifest and give it a valid checksum."""
    manifest = from_json((folder / "manifest.json").read_bytes())
    (folder / "manifest.json").write_text(to_json(replace(manifest, **changes)))


def test_field_counts_of_the_manifest_are_compared_with_the_indexes(packed_copy: Path) -> None:
    edit_manifest(packed_copy, fields={"jpg": 400, "cls": 399, "json": 400})
    damage = only_damage(packed_copy)
    assert damage.shard == "manifest.json"
    assert "it records the field counts" in damage.reason


def test_image_sizes_of_the_manifest_are_compared_with_the_indexes(packed_copy: Path) -> None:
    edit_manifest(packed_copy, images=ImageStats(1, 5_000, 1, 5_000))
    damage = only_damage(packed_copy)
    assert damage.shard == "manifest.json"
    assert "it records the image sizes {'min_width': 1" in damage.reason


def test_a_label_without_a_class_is_damage_of_its_sample(packed_copy: Path) -> None:
    manifest = from_json((packed_copy / "manifest.json").read_bytes())
    edit_manifest(packed_copy, classes=manifest.classes[:-1])
    report = verify(packed_copy)
    last = len(manifest.classes) - 1
    assert report.damage_count == sum(int((index_of(packed_copy, e.name).label == last).sum()) for e in manifest.shards)
    assert f"its index records label {last}, but the manifest names {last} classes" in report.damages[0].reason


def test_a_class_name_that_occurs_twice_is_damage(packed_copy: Path) -> None:
    manifest = from_json((packed_copy / "manifest.json").read_bytes())
    edit_manifest(packed_copy, classes=(*manifest.classes[:-1], manifest.classes[0]))
    damage = only_damage(packed_copy)
    assert damage.shard == "manifest.json"
    assert f"it has the class name {manifest.classes[0]!r} 2 times" in damage.reason


@pytest.mark.parametrize(
    ("column", "change", "found"),
    [
        ("width", -1, "the image is "),
        ("height", 1, "the image is "),
        ("orientation", 5, "with EXIF orientation 1, but its index records"),
        ("label", 1, "its label is "),
    ],
)
def test_an_index_that_states_another_image_or_label_is_damage(
    packed_copy: Path, column: str, change: int, found: str
) -> None:
    index = index_of(packed_copy)
    edit_manifest(packed_copy, images=None, classes=())
    values = getattr(index, column).copy()
    values[3] += change
    rewrite(packed_copy, replace(index, **{column: values}))
    damage = only_damage(packed_copy)
    assert (damage.shard, damage.key) == (SHARD, index.keys[3])
    assert found in damage.reason
    assert str(values[3]) in damage.reason


def test_a_sample_without_fields_and_a_repeated_key_are_damage(packed_copy: Path) -> None:
    index = index_of(packed_copy)
    fields = {
        name: replace(
            one, offset=np.append(one.offset, -1), size=np.append(one.size, 0), xxh3=np.append(one.xxh3, np.uint64(0))
        )
        for name, one in index.fields.items()
    }
    numbers = {name: np.append(getattr(index, name), getattr(index, name)[-1:]) for name in NUMBER_COLUMNS}
    longer = replace(index, keys=[*index.keys, index.keys[0]], mode=[*index.mode, ""], fields=fields, **numbers)
    manifest = from_json((packed_copy / "manifest.json").read_bytes())
    shards = (replace(e, samples=e.samples + (e.name == SHARD)) for e in manifest.shards)
    edit_manifest(packed_copy, shards=tuple(shards))
    rewrite(packed_copy, longer)
    reasons = [damage.reason for damage in verify(packed_copy).damages if damage.key == index.keys[0]]
    assert reasons == [
        "its index has this key 2 times: keys are unique in a shard",
        "its index has this sample without any field",
    ]


def test_all_strange_objects_are_named_and_are_not_damage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").mkdir()
    Image.new("RGB", (100, 80)).save(tmp_path / "in/a.jpg")
    boxes = [[i, 5, 0, 9] for i in range(12)] + [[90, 70, 30, 9], [1, 1, 9, 9]]
    annotations = [
        {"id": 50 + i, "image_id": 1, "category_id": 1, "bbox": box, "iscrowd": 0} for i, box in enumerate(boxes)
    ]
    annotations[-1]["segmentation"] = [[1, 1, 9, 9]]
    images = [{"id": 1, "file_name": "a.jpg", "width": 100, "height": 80}]
    facts = {"images": images, "annotations": annotations, "categories": [{"id": 1, "name": "cat"}]}
    (tmp_path / "in/instances.json").write_text(json.dumps(facts))
    pack(tmp_path / "in", tmp_path / "out", kind="coco", progress=False)
    report = verify(tmp_path / "out")
    assert report.ok
    where = "shard shard-000000.tar, key 000000000: annotation"
    without = [f"{where} {50 + i} without area" for i in range(12)]
    beyond = f"{where} 62 with a box that reaches beyond its image"
    assert report.objects == [*without, beyond, f"{where} 63 without area"]
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["verify", str(tmp_path / "out")])
    assert f"14 objects in images with unusual or invalid values, but no damage (--json lists all): {where}" in (
        capsys.readouterr().out
    )
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["verify", str(tmp_path / "out"), "--json"])
    assert json.loads(capsys.readouterr().out)["objects"] == report.objects


@pytest.mark.parametrize(
    ("item", "found"),
    [
        ({"box": [1, 1, 5, 5], "category": 7}, "object 0 has category 7; allowed are 0 to 1"),
        ({"box": [5, 1, 1, 5], "category": 0}, "object 0 has a box of negative size: [5, 1, 1, 5]"),
        ({"category": 0}, "object 0 has a box that is a NoneType"),
        (
            {"box": [1, 1, 5, 5], "category": 0, "rle": {"size": [3, 27], "counts": [81]}},
            "object 0 has a mask in run lengths of size [3, 27] (height, width), and its image has [9, 9]",
        ),
        ({"box": [1, 1, 5, 5], "category": 0, "keypoints": [[1, 12]]}, "object 0 with an outline or key points beyond"),
        ({"box": [1, 1, 5, 5], "category": 0, "keypoints": [[-40, 5], [0, 12, 0]]}, None),
        ({"box": [1, 1, 5, 5], "category": 1}, None),
    ],
)
def test_objects_of_other_programs_are_checked_by_the_same_rule(item: Any, found: str | None, tmp_path: Path) -> None:
    image = io.BytesIO()
    Image.new("RGB", (9, 9)).save(image, "PNG")
    names = {"json:objects.category": ("cat", "dog")}
    with ShardWriter(tmp_path / "a-%06d.tar", field_classes=names) as writer:
        facts = {"width": 9, "height": 9, "objects": [item]}
        writer.write({"__key__": "x", "png": image.getvalue(), "json": facts})
    report = verify(tmp_path)
    assert report.ok
    assert [one.startswith(f"shard a-000000.tar, key x: {found}") for one in report.objects] == [True] * bool(found)


def test_a_manifest_of_version_1_is_valid_and_its_lack_of_a_checksum_is_noted(packed_copy: Path) -> None:
    assert verify(packed_copy).notes == []
    make_version_1(packed_copy / "manifest.json")
    report = verify(packed_copy)
    assert report.ok
    assert len(report.notes) == 1
    assert "version 1, which has no checksum" in report.notes[0]
    assert f"wds-tools reseal {packed_copy}" in report.notes[0]


def make_version_1(path: Path) -> None:
    values = json.loads(path.read_text())
    del values["xxh3"]
    path.write_text(json.dumps(values | {"version": 1}, indent=2))


# --- an index with a valid checksum that contradicts its shard ---


def test_an_index_that_names_another_key_is_damage(packed_copy: Path) -> None:
    index = index_of(packed_copy)
    rewrite(packed_copy, replace(index, keys=["other", *index.keys[1:]]))
    report = verify(packed_copy)
    assert [damage.key for damage in report.damages] == [index.keys[0]] * 3
    assert "its index has field 'jpg' of key 'other'" in "".join(damage.reason for damage in report.damages)


def test_a_member_that_the_index_lacks_is_damage(packed_copy: Path) -> None:
    index = index_of(packed_copy)
    data = (packed_copy / SHARD).read_bytes()[: -len(END)]
    extra = build_header("stray.jpg", 3) + b"abc".ljust(BLOCK, b"\0")
    rewrite(packed_copy, index, data + extra + END)
    damage = only_damage(packed_copy)
    assert (damage.key, damage.field, damage.offset) == ("stray", "jpg", len(data))
    assert "its index has no field" in damage.reason


def test_a_field_that_the_archive_lacks_is_damage(packed_copy: Path) -> None:
    index = index_of(packed_copy)
    keys = [*index.keys, "ghost"]
    fields = {
        name: replace(
            part,
            offset=np.append(part.offset, BLOCK + 16 if name == "cls" else -1),
            size=np.append(part.size, 1),
            xxh3=np.append(part.xxh3, np.uint64(xxhash.xxh3_64_intdigest((packed_copy / SHARD).read_bytes()[528:529]))),
        )
        for name, part in index.fields.items()
    }
    more = {name: np.append(getattr(index, name), 1) for name in NUMBER_COLUMNS}
    index = replace(index, keys=keys, fields=fields, mode=[*index.mode, "RGB"], **more)
    rewrite(packed_copy, index)
    manifest = from_json((packed_copy / "manifest.json").read_bytes())
    shards = tuple(replace(e, samples=e.samples + 1) if e.name == SHARD else e for e in manifest.shards)
    (packed_copy / "manifest.json").write_text(to_json(replace(manifest, shards=shards)))
    damage = only_damage(packed_copy)
    assert (damage.key, damage.field, damage.offset) == ("ghost", "cls", 528)
    assert "the archive has no such member" in damage.reason


def test_two_fields_at_one_offset_are_damage(packed_copy: Path) -> None:
    index = index_of(packed_copy)
    cls = index.fields["cls"]
    twice = replace(cls, **{name: with_first_repeated(getattr(cls, name)) for name in ("offset", "size", "xxh3")})
    rewrite(packed_copy, replace(index, fields={**index.fields, "cls": twice}))
    report = verify(packed_copy)
    assert "its index has two fields at this byte" in "".join(damage.reason for damage in report.damages)
    assert {damage.shard for damage in report.damages} == {SHARD}


def with_first_repeated(column: np.ndarray) -> np.ndarray:
    """Return a column whose second value is replaced by the first."""
    return np.concatenate([column[:1], column[:1], column[2:]])


def test_an_index_with_another_shard_checksum_is_damage(packed_copy: Path) -> None:
    rewrite(packed_copy, replace(index_of(packed_copy), shard_xxh3="0" * 32))
    text = (packed_copy / "manifest.json").read_bytes()
    manifest = from_json(text)
    right = xxhash.xxh3_128_hexdigest((packed_copy / SHARD).read_bytes())
    shards = tuple(replace(e, xxh3=right) if e.name == SHARD else e for e in manifest.shards)
    (packed_copy / "manifest.json").write_text(to_json(replace(manifest, shards=shards)))
    assert f"its manifest states {right}" in only_damage(packed_copy).reason


# --- other datasets ---


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Return a folder with an indexed shard in GNU tar's format, which has a folder and long names."""
    with tarfile.open(tmp_path / "f.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        folder = tarfile.TarInfo("train")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for name in ("train/0001.txt", "train/" + "n" * 150 + ".txt", "train/README"):
            info = tarfile.TarInfo(name)
            info.size = 700
            tar.addfile(info, io.BytesIO(name.encode().ljust(700)))
    index_shards([str(tmp_path / "f.tar")])
    return tmp_path


def test_members_that_are_not_fields_are_not_damage(foreign: Path) -> None:
    assert verify(foreign).ok
    (foreign / "stray").write_text("x")
    assert (verify(foreign / "f.tar").ok, verify(foreign / "f.tar").strangers) == (True, [])
    assert verify(foreign / "manifest.json").ok


def test_damage_to_the_header_of_a_long_name_names_the_field(foreign: Path) -> None:
    index = index_of(foreign, "f.tar")
    content = int(index.fields["txt"].offset[1])
    flip(foreign / "f.tar", content - 3 * BLOCK + 3)  # the extra header before the block with the long name
    damage = only_damage(foreign)
    assert (damage.key, damage.field, damage.offset) == (index.keys[1], "txt", content - 3 * BLOCK)


def test_files_that_the_manifest_does_not_list_are_reported_but_not_as_damage(packed_copy: Path) -> None:
    shutil.copy(packed_copy / SHARD, packed_copy / "shard-000099.tar")
    (packed_copy / "notes.txt").write_text("x")
    (packed_copy / "skipped.jsonl").write_text("")
    report = verify(packed_copy)
    assert report.ok
    assert report.strangers == ["notes.txt", "shard-000099.tar"]


def test_a_manifest_with_another_name_is_not_reported_as_an_unlisted_file(packed_copy: Path) -> None:
    (packed_copy / "manifest.json").rename(packed_copy / "train.json")
    assert verify(packed_copy / "train.json").strangers == []


def test_only_the_shards_of_a_pattern_are_checked(packed_copy: Path) -> None:
    flip(packed_copy / "shard-000002.tar", 600)
    report = verify(f"{packed_copy}/shard-{{000000..000001}}.tar")
    assert (report.ok, report.shards, report.strangers) == (True, 2, [])
    assert not verify(f"{packed_copy}/shard-{{000000..000002}}.tar").ok


def test_a_dataset_at_a_url_is_checked(packed_copy: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(f"{packed_copy}/", "/verify/photos/", recursive=True)
    try:
        assert verify("memory://verify/photos").ok
        memory.rm("/verify/photos/" + SHARD)
        report = verify("memory://verify/photos")
        assert [(damage.shard, report.unchecked) for damage in report.damages] == [(SHARD, {})]
    finally:
        memory.rm("/verify", recursive=True)


def test_a_path_without_a_dataset_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path / "nothing", tmp_path):
        with pytest.raises(NotADatasetError):
            verify(folder)


def test_a_shard_that_cannot_be_read_is_unchecked_and_not_damaged(packed_copy: Path) -> None:
    (packed_copy / SHARD).unlink()
    (packed_copy / SHARD).mkdir()
    report = verify(packed_copy)
    assert not report.ok
    assert report.damages == []
    assert list(report.unchecked) == [SHARD]
    assert "it is a folder" in report.unchecked[SHARD]


def test_shards_on_failing_storage_are_unchecked_and_not_damaged(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: LocalStore, name: str, *_: object, **__: object) -> None:
        raise StoreError("connection refused")

    monkeypatch.setattr(LocalStore, "fetch", fail)
    report = verify(packed)
    assert (report.ok, report.damages, report.shards) == (False, [], 0)
    assert len(report.unchecked) == len(from_json((packed / "manifest.json").read_bytes()).shards)


# --- the report ---


def test_a_report_lists_a_limited_number_of_damages_and_counts_all(
    packed_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[verify.__module__], "MAX_DAMAGES", 5)
    index = index_of(packed_copy)
    data = bytearray((packed_copy / SHARD).read_bytes())
    for offset in index.fields["cls"].offset:
        data[offset] ^= 1
    (packed_copy / SHARD).write_bytes(data)
    flip(packed_copy / "shard-000000.tar", 600)
    report = verify(packed_copy)
    assert (len(report.damages), report.damage_count) == (5, len(index) + 1)
    assert [damage.shard for damage in report.damages] == ["shard-000000.tar", *[SHARD] * 4]


def test_a_progress_bar_is_shown_only_with_progress(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify(packed)
    verify(packed, progress=False)
    assert capsys.readouterr().err == ""
    verify(packed, progress=True)
    assert "100%" in capsys.readouterr().err


def test_a_report_can_be_converted_to_json(packed_copy: Path) -> None:
    flip(packed_copy / SHARD, 600)
    raw = json.loads(json.dumps(verify(packed_copy).to_dict()))
    assert (raw["ok"], raw["damage_count"], raw["damages"][0]["shard"]) == (False, 1, SHARD)


def test_a_damage_as_text_has_all_known_facts_in_one_line() -> None:
    assert str(Damage("s.tar", "k", "jpg", 5, "is broken")) == "shard s.tar, key k, field jpg, byte 5: is broken"
    assert str(Damage("s.tar", None, None, 0, "is broken")) == "shard s.tar, byte 0: is broken"
