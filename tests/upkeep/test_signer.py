"""`wds-tools index --signatures`: more columns in the indexes of a packed dataset, and nothing else changes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from folders import contents

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import DestinationError, OptionError
from wds_tools.format import manifest as manifests
from wds_tools.format.image_signature import COLUMNS
from wds_tools.format.index_edit import add_columns
from wds_tools.reading.opening import open_shards
from wds_tools.reading.select import matching
from wds_tools.upkeep import signer
from wds_tools.upkeep.signer import sign_images


@pytest.fixture(scope="module")
def images(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of 20 photographs, one of them PNG."""
    folder = tmp_path_factory.mktemp("images") / "images"
    for path in [*photos.glob("*/00[0-1].jpg"), *sorted(photos.glob("*/*.png"))[:1]][:20]:
        (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, folder / path.parent.name / path.name)
    return folder


@pytest.fixture
def kept(images: Path, tmp_path: Path) -> Path:
    """Return a dataset without signatures."""
    wt.pack(images, tmp_path / "kept", shard_bytes="600kB", images="keep", workers=1, progress=False)
    return tmp_path / "kept"


def run(*words: str) -> int:
    """Call the command line, and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


def signatures(folder: Path) -> dict[str, Any]:
    """Return the signature of each sample by its key."""
    shards = open_shards(folder)
    found = {}
    for number in range(len(shards.locations)):
        rows = shards.columns(number, COLUMNS).to_pylist()
        found.update(zip(shards.index(number).keys, rows, strict=True))
    return found


def files_without_indexes(folder: Path) -> dict[str, bytes]:
    return {
        name: data
        for name, data in contents(folder).items()
        if not name.endswith(".parquet") and name != "manifest.json"
    }


def test_a_dataset_gets_the_signatures_that_packing_computes(kept: Path, images: Path, tmp_path: Path) -> None:
    before, manifest = files_without_indexes(kept), open_shards(kept).manifest
    report = sign_images(kept, progress=False)
    assert (report.signed, report.kept, report.unreadable) == (manifest.samples, 0, 0)
    assert files_without_indexes(kept) == before
    after = open_shards(kept).manifest
    assert (after.fingerprint, after.fields, after.source) == (manifest.fingerprint, manifest.fields, manifest.source)
    assert [entry.index for entry in after.shards] == [entry.index for entry in manifest.shards]
    assert not wt.verify(kept).damages
    wt.pack(images, tmp_path / "ready", shard_bytes="600kB", workers=1, progress=False)
    packed = signatures(tmp_path / "ready")
    assert sum(row["phash"] is None for row in packed.values()) == len(list(images.glob("*/*.png")))
    found = signatures(kept)
    assert {key: row for key, row in packed.items() if row["phash"]} == {
        key: found[key] for key, row in packed.items() if row["phash"]
    }
    sign_images(tmp_path / "ready", progress=False)
    assert signatures(tmp_path / "ready") == found


def test_repeating_it_changes_nothing(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("index", "--signatures", str(kept)) == 0
    before = contents(kept)
    assert run("index", "--signatures", str(kept)) == 0
    assert contents(kept) == before
    assert f"0 images got a signature, {len(signatures(kept))} had one" in capsys.readouterr().out


def test_indexing_the_same_shards_again_keeps_signatures(kept: Path, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    wt.reshard(kept, folder, shard_bytes="200kB", workers=1, progress=False)
    sign_images(folder, progress=False)
    before = signatures(folder)
    shards = [str(path) for path in sorted(folder.glob("*.tar"))]
    assert len(shards) > 1
    wt.index_shards(shards, workers=1)
    assert signatures(folder) == before
    shutil.copy(kept / "shard-000000.tar", shards[0])  # other samples
    wt.index_shards(shards, workers=1)
    shown = open_shards(folder)
    assert set(COLUMNS).isdisjoint(shown.index(0).columns)
    assert set(COLUMNS) <= set(shown.index(1).columns)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.torture_except("True")
def test_resharding_keeps_the_signatures_of_images_that_do_not_change(
    kept: Path, tmp_path: Path, shuffle: bool
) -> None:
    sign_images(kept, progress=False)
    before = {row["phash"]: row for row in signatures(kept).values()}
    options: dict[str, Any] = {"workers": 1, "progress": False}
    wt.reshard(kept, tmp_path / "again", shard_bytes="300kB", shuffle=shuffle, **options)
    after = signatures(tmp_path / "again")
    assert len(after) == len(signatures(kept))
    assert {row["phash"]: row for row in after.values()} == before
    assert not wt.verify(tmp_path / "again").damages
    sign_images(tmp_path / "again", progress=False)
    assert signatures(tmp_path / "again") == after
    wt.reshard(kept, tmp_path / "small", images="resize", resize=64, **options)
    assert {row["sharpness"] for row in signatures(tmp_path / "small").values()} != {
        row["sharpness"] for row in before.values()
    }


def test_conditions_select_by_signature(kept: Path) -> None:
    sign_images(kept, progress=False)
    shards = open_shards(kept)
    rows = list(signatures(kept).values())
    for where, is_chosen in (
        ("sharpness < 40", lambda row: row["sharpness"] < 40),
        (f"phash == '{rows[3]['phash']}'", lambda row: row["phash"] == rows[3]["phash"]),
    ):
        found = matching(shards, len(shards.locations), where, False).tolist()
        assert found == [number for number, row in enumerate(rows) if is_chosen(row)]
        assert found


@pytest.mark.parametrize("step", range(6))
@pytest.mark.torture_except("0", "3", "5")
def test_it_can_be_interrupted_at_any_time(kept: Path, monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    expected_files = set(contents(kept))
    calls = 0
    commit = signer.commit_bytes

    def fail(path: Path, data: bytes) -> None:
        nonlocal calls
        calls += 1
        if calls > stop:
            raise OSError(28, "No space left on device")
        commit(path, data)

    shards = len(open_shards(kept).manifest.shards)
    stop = [0, 1, shards, shards + 1, shards + 2, 2 * shards + 1][step]
    monkeypatch.setattr(signer, "commit_bytes", fail)
    with pytest.raises(DestinationError, match="the dataset is intact"):
        sign_images(kept, progress=False)
    assert not wt.verify(kept).damages
    monkeypatch.undo()
    sign_images(kept, progress=False)
    assert set(contents(kept)) == expected_files
    assert all(row["phash"] for row in signatures(kept).values())
    assert not wt.verify(kept).damages


def test_open_readers_go_on(kept: Path) -> None:
    opened = open_shards(kept)
    sign_images(kept, progress=False)
    assert opened.index(0).columns == COLUMNS


def test_signatures_stay_when_images_are_made_crop_ready_and_in_merged_datasets(kept: Path, tmp_path: Path) -> None:
    sign_images(kept, progress=False)
    before = signatures(kept)
    wt.merge([kept], tmp_path / "merged", progress=False)
    assert list(signatures(tmp_path / "merged").values()) == list(before.values())
    wt.reshard(kept, in_place=True, images="crop-ready", workers=1, progress=False)
    assert signatures(kept) == before
    assert sign_images(kept, progress=False).signed == 0


def test_a_dataset_with_signatures_in_some_shards(kept: Path, images: Path, tmp_path: Path) -> None:
    wt.pack(images, tmp_path / "ready", workers=1, progress=False)
    wt.merge([kept, tmp_path / "ready"], tmp_path / "both", progress=False)
    both = open_shards(tmp_path / "both")
    found = matching(both, len(both.locations), "brightness >= 0", False)
    own = open_shards(kept).manifest.samples
    assert found.min() >= own
    report = sign_images(tmp_path / "both", progress=False)
    assert (report.signed + report.kept, report.kept) == (2 * own, len(found))


def test_a_column_of_another_tool_with_a_name_of_ours_gets_another_name(kept: Path) -> None:
    manifest = open_shards(kept).manifest
    entry = manifest.shards[0]
    data = add_columns((kept / entry.index).read_bytes(), pa.table({"phash": pa.array(range(entry.samples))}))
    (kept / entry.index).write_bytes(data)
    changed = replace(entry, index_bytes=len(data), index_xxh3=xxhash.xxh3_128_hexdigest(data))
    new = replace(manifest, shards=(changed, *manifest.shards[1:]))
    (kept / "manifest.json").write_text(manifests.to_json(new))
    sign_images(kept, progress=False)
    assert all(row["phash"] for row in signatures(kept).values())
    assert open_shards(kept).columns(0, ["phash_"])["phash_"].to_pylist() == list(range(entry.samples))


def test_what_is_refused(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(OptionError, match="only to local datasets"):
        sign_images("s3://bucket/photos")
    assert run("index", "--signatures", "--label", "cls", str(kept)) != 0
    assert "--signatures cannot be combined with --label" in capsys.readouterr().err
