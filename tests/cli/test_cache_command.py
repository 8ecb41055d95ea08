"""`wds-tools cache`: list, verify, clear."""

import json

import pytest
from click.testing import CliRunner

from wds_tools.cli import cli
from wds_tools.cli.common import Run
from wds_tools.storage.cache.blocks import CHECKSUM_BYTES, BlockCache


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a cache with blocks of two datasets."""
    folder = tmp_path / "blocks"
    monkeypatch.setenv("WDS_TOOLS_CACHE_DIR", str(folder))
    for name in "xy":
        blocks = BlockCache(folder, 10**6, url=f"s3://bucket/{name}")
        for number in range(3):
            assert blocks.put(f"{number}", bytes(1000))
    return folder


def blocks_of(folder):
    return [path for path in folder.glob("*/*") if path.name != "url"]


def run(*arguments, code=0):
    result = CliRunner().invoke(cli, ["cache", *arguments], obj=Run(), standalone_mode=False)
    if result.exception:
        raise result.exception
    assert (result.return_value or 0) == code
    return result.output


def test_list_shows_each_dataset_and_the_total(folder):
    lines = run("list").splitlines()
    assert [line.rpartition(" ")[2] for line in lines[:2]] == ["s3://bucket/x", "s3://bucket/y"]
    assert all("3 blocks" in line and "3.05 kB" in line for line in lines[:2])
    assert lines[2] == f"{folder}: 2 datasets, 6.1 kB"


def test_list_as_json_has_exact_numbers(folder):
    found = json.loads(run("list", "--json"))
    assert found["cache"] == str(folder)
    assert [(d["url"], d["blocks"], d["bytes"]) for d in found["datasets"]] == [
        (f"s3://bucket/{name}", 3, 3 * (1000 + CHECKSUM_BYTES)) for name in "xy"
    ]


def test_list_shows_no_time_for_a_dataset_without_blocks(folder):
    for path in blocks_of(folder):
        path.unlink()
    assert all("0 blocks  all removed to make space  s3://" in line for line in run("list").splitlines()[:2])
    assert [d["last_use"] for d in json.loads(run("list", "--json"))["datasets"]] == [None, None]


def test_list_of_a_cache_that_does_not_exist_is_empty(tmp_path):
    assert "0 datasets" in run("list", "--cache-dir", str(tmp_path / "none"))


def test_verify_removes_damaged_blocks_and_exits_with_1(folder):
    assert "6 blocks checked, 0 damaged" in run("verify")
    path = min(blocks_of(folder))
    path.write_bytes(b"x" + path.read_bytes()[1:])
    output = run("verify", code=1)
    assert f"damaged, removed: {path}" in output
    assert "6 blocks checked, 1 damaged" in output
    assert "5 blocks checked, 0 damaged" in run("verify")


def test_clear_removes_one_dataset_or_all(folder):
    assert "removed 1 dataset, 3.05 kB" in run("clear", "s3://bucket/x/")
    assert "s3://bucket/x" not in run("list")
    assert "s3://bucket/y" in run("list")
    assert BlockCache(folder, 10**6, url="s3://bucket/x").put("new", bytes(500))
    assert int((folder / "usage").read_text()) == 3 * 1016 + 516
    run("clear")
    assert "0 datasets" in run("list")


def test_an_unknown_url_is_an_error_that_names_the_cached_ones(folder):
    with pytest.raises(ValueError, match=r"s3://other is not in the cache .*s3://bucket/x, s3://bucket/y"):
        run("clear", "s3://other")
    assert len(list(blocks_of(folder))) == 6
