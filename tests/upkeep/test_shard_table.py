"""Shards with a table of another tool beside them, as img2dataset writes them: indexed, and selected by its columns."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from buckets import Bucketful
from img2dataset_layout import write_img2dataset

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import DestinationError, NotADatasetError, OptionError, ShardError
from wds_tools.upkeep.indexer import index_shards

ROWS = [
    {"caption": "a cat", "similarity": 0.31, "punsafe": 0.001},
    {"caption": "gone", "similarity": 0.20, "punsafe": 0.5, "fails": True},
    {"caption": 'another "cat"', "similarity": 0.35, "punsafe": 0.9},
    {"caption": None, "similarity": 0.40, "punsafe": None},
    {"caption": "a fig", "similarity": 0.29, "punsafe": 0.01},
    {"caption": "a cat", "similarity": 0.11, "punsafe": 0.02},
]
COLUMNS = [
    *("similarity", "punsafe", "caption", "url", "status", "error_message"),
    *("original_width", "original_height", "exif", "sha256"),
]


@pytest.fixture
def downloaded(tmp_path: Path) -> Path:
    """Return a folder with two shards of three rows, of which one download failed."""
    return write_img2dataset(tmp_path / "laion", ROWS, per_shard=3)


def keys(dataset: Path | str, where: object) -> list[str]:
    with wt.make_loader(
        dataset, batch_size=1, fields=("__key__",), where=where, num_workers=0, shuffle=False, tail="pad"
    ) as loader:
        return [batch.key[0] for batch in loader]


def test_the_output_of_img2dataset_is_indexed_and_its_files_are_kept(downloaded: Path) -> None:
    before = {path.name: path.read_bytes() for path in downloaded.iterdir()}
    manifest = index_shards(f"{downloaded}/*.tar")
    assert [entry.index for entry in manifest.shards] == ["00000.index.parquet", "00001.index.parquet"]
    assert [entry.samples for entry in manifest.shards] == [2, 3]
    assert manifest.fields == {"jpg": 5, "json": 5, "txt": 5}
    assert {name: (downloaded / name).read_bytes() for name in before} == before
    assert wt.verify(downloaded).ok


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("similarity > 0.3", ["000000000", "000000002", "000010000"]),
        ("punsafe < 0.5 and width == 32", ["000000000", "000010001", "000010002"]),
        ("caption == 'a cat'", ["000000000", "000010002"]),
        ("original_width >= 322", ["000000002", "000010002"]),
        ("url == 'http://localhost/000010001.jpg'", ["000010001"]),
        (pc.field("similarity") < 0.3, ["000010001", "000010002"]),
    ],
)
def test_where_accepts_the_columns_of_the_table(downloaded: Path, where: object, expected: list[str]) -> None:
    index_shards(f"{downloaded}/*.tar")
    assert keys(downloaded, where) == expected


def test_shards_and_tables_in_a_bucket_are_indexed_as_in_a_folder(downloaded: Path, tmp_path: Path) -> None:
    there = shutil.copytree(downloaded, tmp_path / "there")
    Bucketful.reset()
    assert index_shards(f"bucket://{there}/*.tar") == index_shards(f"{downloaded}/*.tar")
    for path in downloaded.iterdir():
        assert (there / path.name).read_bytes() == path.read_bytes()
    where = "similarity > 0.3 and caption != 'a cat'"
    assert keys(f"bucket://{there}", where) == keys(downloaded, where) == ["000000002"]


def test_the_columns_are_in_the_index_beside_its_own(downloaded: Path) -> None:
    index_shards(f"{downloaded}/*.tar")
    table = pq.read_table(downloaded / "00000.index.parquet")
    assert table.column_names[-len(COLUMNS) :] == COLUMNS
    assert table["key"].to_pylist() == ["000000000", "000000002"]
    assert table["similarity"].to_pylist() == [0.31, 0.35]
    assert table["caption"].to_pylist() == ["a cat", 'another "cat"']


def test_an_unknown_column_is_an_error_that_lists_those_of_the_table(downloaded: Path) -> None:
    index_shards(f"{downloaded}/*.tar")
    with pytest.raises(OptionError, match=r"there is no column 'pwatermark'; the index has .*similarity, punsafe"):
        keys(downloaded, "pwatermark < 0.5")


def test_shards_without_the_table_have_nulls(downloaded: Path) -> None:
    (downloaded / "00000.parquet").unlink()
    manifest = index_shards(f"{downloaded}/*.tar")
    assert [entry.index for entry in manifest.shards] == ["00000.parquet", "00001.index.parquet"]
    assert keys(downloaded, "similarity > 0.2") == ["000010000", "000010001"]


def test_a_second_run_changes_nothing(downloaded: Path) -> None:
    index_shards(f"{downloaded}/*.tar")
    before = {path.name: path.read_bytes() for path in downloaded.iterdir()}
    index_shards(f"{downloaded}/*.tar")
    assert {path.name: path.read_bytes() for path in downloaded.iterdir()} == before


def test_a_pattern_finds_the_indexes_without_a_manifest(downloaded: Path) -> None:
    with pytest.raises(NotADatasetError, match="no such shard, or no index next to it"):
        keys(f"{downloaded}/*.tar", "similarity > 0.3")
    index_shards(f"{downloaded}/*.tar")
    (downloaded / "manifest.json").unlink()
    assert keys(f"{downloaded}/*.tar", "similarity > 0.3") == ["000000000", "000000002", "000010000"]


def test_merge_keeps_the_columns(downloaded: Path, tmp_path: Path) -> None:
    index_shards(f"{downloaded}/*.tar")
    wt.merge([downloaded], tmp_path / "merged")
    assert keys(tmp_path / "merged", "caption == 'a cat'") == ["000000000", "000010002"]


def test_a_table_of_nested_columns_or_without_keys_is_not_used(
    downloaded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    table = pa.table({"key": ["000000000"], "label": [7], "faces": [[[0.1, 0.2]]], "clip": [b"\0\1"]})
    pq.write_table(table, downloaded / "00000.parquet")
    pq.write_table(table.select(["label"]), downloaded / "00001.parquet")
    with caplog.at_level(logging.WARNING, "wds_tools"):
        index_shards(f"{downloaded}/*.tar")
    assert "00001.parquet has no text column 'key'" in caplog.text
    written = pq.read_table(downloaded / "00000.index.parquet")
    assert written.column_names[-1] == "label_"
    assert written["label_"].to_pylist() == [7, None]


def test_a_truncated_table_is_refused_before_anything_is_written(downloaded: Path) -> None:
    data = (downloaded / "00001.parquet").read_bytes()
    (downloaded / "00001.parquet").write_bytes(data[:-100])
    with pytest.raises(DestinationError, match=r"00001.parquet exists and is not an index"):
        index_shards(f"{downloaded}/*.tar")
    assert not list(downloaded.glob("*.index.parquet"))


def test_a_damaged_table_is_an_error_and_leaves_no_index(downloaded: Path) -> None:
    path = downloaded / "00001.parquet"
    data = bytearray(path.read_bytes())
    keys = pq.read_metadata(path).row_group(0).column(4)
    start = keys.dictionary_page_offset + 20  # after the header of the page
    data[start : start + 20] = b"\xff" * 20
    path.write_bytes(data)
    with pytest.raises(ShardError, match=r"00001.parquet is next to the shard, but cannot be read .*move it away"):
        index_shards(f"{downloaded}/*.tar")
    assert not list(downloaded.glob("*.index.parquet"))


def test_files_of_others_under_both_names_are_not_replaced(downloaded: Path) -> None:
    shutil.copy(downloaded / "00001.parquet", downloaded / "00001.index.parquet")
    with pytest.raises(DestinationError, match=r"00001.index.parquet exists and is not an index of wds_tools"):
        index_shards(f"{downloaded}/*.tar")


def test_the_command_names_the_columns(downloaded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["index", f"{downloaded}/*.tar"])
    assert end.value.code == 0
    assert f"\ncolumns for where=: {', '.join(COLUMNS)}\n" in capsys.readouterr().out
