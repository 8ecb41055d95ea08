"""A manifest that was edited on purpose gets a new checksum; one that contradicts its shards does not."""

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
    """Change words of a manifest as a person with an editor does: the checksum stays as it was."""
    words = json.loads(path.read_text()) | changes
    path.write_text(json.dumps(words, indent=1))
    return words


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


def test_one_changed_letter_is_enough_and_the_rest_of_the_file_stays(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    text = path.read_text()
    name = from_json(text).classes[0]
    path.write_text(text.replace(f'"{name}"', '"renamed"'))
    wt.reseal(path)
    assert path.read_text()[:-36] == text.replace(f'"{name}"', '"renamed"')[:-36]


def test_a_whole_manifest_is_not_written_again(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    before = path.stat()
    assert wt.reseal(packed_copy).before == "sealed"
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_manifest_of_version_1_becomes_one_of_version_2(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    whole = path.read_bytes()
    words = json.loads(whole)
    del words["xxh3"]
    path.write_text(json.dumps(words | {"version": 1}))
    assert wt.reseal(packed_copy).before == "unsealed"
    assert path.read_bytes() == whole


def test_words_that_are_not_known_stay(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    edit(path, licence="CC0 1.0", shards=json.loads(path.read_text())["shards"])
    wt.reseal(packed_copy)
    assert json.loads(path.read_text())["licence"] == "CC0 1.0"
    assert wt.verify(packed_copy).ok


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": 5}, "samples is 5, but its shards give 400"),
        ({"fields": {"jpg": 400}}, "it records the field counts"),
        ({"images": {"min_width": 1, "max_width": 2, "min_height": 3, "max_height": 4}}, "it records the image sizes"),
        ({"classes": ["only"]}, "names 1 classes, but samples have class numbers up to"),
        ({"classes": "cat"}, "breaks the format"),
        ({"version": 3}, "upgrade"),
    ],
)
def test_an_edit_that_contradicts_the_shards_is_refused(packed_copy: Path, changes: dict[str, Any], words: str) -> None:
    path = packed_copy / "manifest.json"
    edit(path, **changes)
    before = path.read_bytes()
    with pytest.raises(ManifestError, match=words):
        wt.reseal(packed_copy)
    assert path.read_bytes() == before


def test_shards_and_indexes_that_are_damaged_or_missing_are_refused(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    names = from_json(path.read_bytes()).classes
    edit(path, classes=["renamed", *names[1:]])
    shard, index = packed_copy / "shard-000001.tar", packed_copy / "shard-000001.parquet"
    whole = shard.read_bytes(), index.read_bytes()
    shard.write_bytes(whole[0][:-512])
    with pytest.raises(TruncatedShardError, match=r"shard-000001\.tar"):
        wt.reseal(packed_copy)
    shard.unlink()
    with pytest.raises(StoreError, match=r"shard-000001\.tar is missing"):
        wt.reseal(packed_copy)
    shard.write_bytes(whole[0])
    index.write_bytes(whole[1][:500] + bytes([whole[1][500] ^ 1]) + whole[1][501:])
    with pytest.raises(ChecksumError, match=r"shard-000001\.parquet"):
        wt.reseal(packed_copy)
    index.write_bytes(whole[1])
    assert wt.reseal(packed_copy).before == "edited"


def test_shards_that_are_left_out_on_purpose_need_the_totals_to_agree(packed_copy: Path) -> None:
    path = packed_copy / "manifest.json"
    edit(path, shards=json.loads(path.read_text())["shards"][1:])
    with pytest.raises(ManifestError, match=r"samples is 400, but its shards give \d+"):
        wt.reseal(packed_copy)


def test_what_has_no_manifest_is_not_resealed(tmp_path: Path, packed: Path) -> None:
    with pytest.raises(NotADatasetError, match=r"manifest\.json is not there"):
        wt.reseal(tmp_path)
    with pytest.raises(OptionError, match="give the folder"):
        wt.reseal(f"{packed}/shard-*.tar")


def test_a_manifest_that_cannot_be_written_is_named(packed_copy: Path) -> None:
    path = packed_copy / f"{'a' * 245}.json"  # the temporary file beside it would have a name that is too long
    (packed_copy / "manifest.json").rename(path)
    edit(path)
    with pytest.raises(DestinationError, match=r"cannot write .*File name too long"):
        wt.reseal(path)


def test_a_manifest_at_a_url_is_resealed_there(packed_copy: Path) -> None:
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


def test_a_state_of_before_an_edit_resumes_after_it(packed_copy: Path) -> None:
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
