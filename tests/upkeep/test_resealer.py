"""`reseal()` gives an edited manifest a new checksum, unless it contradicts its shards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fsspec
import pytest

import wds_tools as wt
from wds_tools.errors import (
    ChecksumError,
    DestinationError,
    ManifestError,
    NotADatasetError,
    OptionError,
    StoreError,
    TruncatedShardError,
)
from wds_tools.format.manifest import from_json


def edit(path: Path, **changes: Any) -> dict[str, Any]:
    """Change values of a manifest like a person with an editor, without changing the checksum."""
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(values, indent=1))
    return values


@pytest.fixture(scope="module")
def packed(packed_few: Path) -> Path:
    """Return a small dataset, also to `packed_copy`."""
    return packed_few


def test_a_renamed_class_is_refused_until_the_manifest_is_resealed(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    before = from_json(path.read_bytes())
    names = ["renamed", *before.classes[1:]]
    edit(path, classes=names)
    with pytest.raises(ManifestError, match="wds-tools reseal"):
        wt.describe(packed_copy)
    report = wt.reseal(packed_copy)
    assert (report.path, report.before) == (str(path), "edited")
    assert wt.describe(packed_copy).classes[0].name == "renamed"
    assert wt.verify(packed_copy).ok
    assert report.manifest.fingerprint == before.fingerprint
    assert report.manifest.checksum not in (None, before.checksum)


def test_only_the_checksum_of_the_file_changes(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    text = path.read_text()
    name = from_json(text).classes[0]
    path.write_text(text.replace(f'"{name}"', '"renamed"'))
    wt.reseal(path)
    assert path.read_text()[:-36] == text.replace(f'"{name}"', '"renamed"')[:-36]


def test_a_manifest_with_a_valid_checksum_is_not_written(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    before = path.stat()
    assert wt.reseal(packed_copy).before == "sealed"
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_manifest_of_version_1_becomes_one_of_version_2(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    original = path.read_bytes()
    values = json.loads(original)
    del values["xxh3"]
    path.write_text(json.dumps(values | {"version": 1}))
    assert wt.reseal(packed_copy).before == "unsealed"
    assert path.read_bytes() == original


def test_unknown_entries_of_the_manifest_are_kept(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    edit(path, licence="CC0 1.0", shards=json.loads(path.read_text())["shards"])
    wt.reseal(packed_copy)
    assert json.loads(path.read_text())["licence"] == "CC0 1.0"
    assert wt.verify(packed_copy).ok


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 5}, "samples is 5, but its shards give 40"),
        ({"fields": {"jpg": 40}}, "it records the field counts"),
        ({"images": {"min_width": 1, "max_width": 2, "min_height": 3, "max_height": 4}}, "it records the image sizes"),
        ({"classes": ["only"]}, "names 1 classes, but samples have class numbers up to"),
        ({"classes": "cat"}, "breaks the format"),
        ({"version": 3}, "upgrade"),
    ],
)
def test_an_edit_that_is_invalid_or_contradicts_the_shards_is_refused(
    packed_copy: Path, changes: dict[str, Any], message: str
) -> None:
    path = packed_copy / "manifest.json"
    edit(path, **changes)
    before = path.read_bytes()
    with pytest.raises(ManifestError, match=message):
        wt.reseal(packed_copy)
    assert path.read_bytes() == before


def test_a_dataset_with_damaged_or_missing_files_is_not_resealed(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    names = from_json(path.read_bytes()).classes
    edit(path, classes=["renamed", *names[1:]])
    shard, index = packed_copy / "shard-000001.tar", packed_copy / "shard-000001.parquet"
    shard_data, index_data = shard.read_bytes(), index.read_bytes()
    shard.write_bytes(shard_data[:-512])
    with pytest.raises(TruncatedShardError, match=r"shard-000001\.tar"):
        wt.reseal(packed_copy)
    shard.unlink()
    with pytest.raises(StoreError, match=r"shard-000001\.tar is missing"):
        wt.reseal(packed_copy)
    shard.write_bytes(shard_data)
    index.write_bytes(index_data[:500] + bytes([index_data[500] ^ 1]) + index_data[501:])
    with pytest.raises(ChecksumError, match=r"shard-000001\.parquet"):
        wt.reseal(packed_copy)
    index.write_bytes(index_data)
    assert wt.reseal(packed_copy).before == "edited"


def test_a_manifest_without_one_of_its_shards_is_refused_if_its_totals_were_not_changed(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    edit(path, shards=json.loads(path.read_text())["shards"][1:])
    with pytest.raises(ManifestError, match=r"samples is 40, but its shards give \d+"):
        wt.reseal(packed_copy)


def test_a_folder_without_a_manifest_and_a_pattern_are_refused(tmp_path: Path, packed: Path) -> None:
    with pytest.raises(NotADatasetError, match=r"is not a packed dataset \(no manifest\.json\)"):
        wt.reseal(tmp_path)
    with pytest.raises(OptionError, match="name the folder"):
        wt.reseal(f"{packed}/shard-*.tar")


def test_a_manifest_that_cannot_be_written_is_an_error_that_names_it(packed_copy: Path) -> None:
    path = packed_copy / f"{'a' * 245}.json"  # the name of the temporary file is too long
    (packed_copy / "manifest.json").rename(path)
    edit(path)
    with pytest.raises(DestinationError, match=r"cannot write .*File name too long"):
        wt.reseal(path)


def test_a_manifest_at_a_url_is_resealed(packed_copy: Path) -> None:
    edit(packed_copy / "manifest.json")
    memory = fsspec.filesystem("memory")
    memory.put(str(packed_copy), "/resealed", recursive=True)
    try:
        url = "memory://resealed"
        assert wt.reseal(url).before == "edited"
        assert wt.reseal(url).before == "sealed"
        assert wt.verify(url).ok
    finally:
        memory.rm("/resealed", recursive=True)


def test_a_loader_state_from_before_an_edit_can_be_resumed_after_it(packed_copy: Path) -> None:
    options: dict[str, Any] = {"batch_size": 10, "fields": ("__key__",), "num_workers": 0, "shuffle": True}
    with wt.make_loader(packed_copy, **options) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        expected = list(batches)
    edit(packed_copy / "manifest.json")
    wt.reseal(packed_copy)
    with wt.make_loader(packed_copy, **options) as loader:
        loader.load_state_dict(state)
        assert list(loader) == expected
