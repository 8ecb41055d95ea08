"""Listings that are larger than what is kept as objects: same files, same order, same datasets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.sources import file_list
from wds_tools.sources.base import Listing, SourceOptions
from wds_tools.sources.file_list import FileList, Sorter
from wds_tools.sources.inputs import File, path_bytes
from wds_tools.sources.tree import TreeSource

files = st.builds(
    File,
    st.text("aé\udcff/.\U0001f600", max_size=4),
    st.integers(0, 2**40),
    st.sampled_from([(), (), (1, 2**40)]),
    st.sampled_from(["", "", "is a broken link"]),
    st.sampled_from(["", "", "etag"]),
)
parts = st.lists(st.lists(files, max_size=9), max_size=9)


@contextmanager
def few_objects(*, is_full: bool = False) -> Iterator[None]:
    made = OSError(28, "full") if is_full else tempfile.TemporaryFile
    with (
        patch.object(file_list, "_MOST_OBJECTS", 4),
        patch.object(file_list, "_BLOCK_FILES", 3),
        patch.object(tempfile, "TemporaryFile", side_effect=made),
    ):
        yield


@given(parts, st.booleans())
def test_a_stored_list_is_a_list(parts: list[list[File]], is_full: bool) -> None:
    expected = [file for part in parts for file in part]
    with few_objects(is_full=is_full):
        found = FileList()
        for part in parts:
            found.extend(part)
        assert list(found) == expected
        assert len(found) == len(expected)
        assert [found[number] for number in range(-len(expected), len(expected))] == expected * 2
        assert found[1:7:2] == expected[1:7:2]
        paths = found.paths
        assert (list(paths), paths[::3], len(paths)) == (
            [file.path for file in expected],
            [file.path for file in expected[::3]],
            len(expected),
        )


@given(st.lists(files, unique_by=lambda file: file.path), st.integers(1, 9), st.booleans())
def test_files_are_sorted_by_bytes_however_many(
    files: list[File],
    count: int,
    is_full: bool,
) -> None:
    with few_objects(is_full=is_full):
        sorter = Sorter()
        for start in range(0, len(files), count):
            sorter.add(files[start : start + count])
        assert list(sorter.result()) == sorted(files, key=lambda file: path_bytes(file.path))


def test_a_large_tree_has_the_same_listing(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for number in range(12):
            name = tmp_path / split / f"class {number % 3}" / f"{number}"
            name.parent.mkdir(parents=True, exist_ok=True)
            name.with_suffix(".jpg" if number % 5 else ".JPEG").write_bytes(bytes(number + 1))
            if number % 2:
                name.with_suffix(".txt").write_text(f"image {number}")
        (tmp_path / split / "class 0" / ".hidden.jpg").write_bytes(b"image")
        (tmp_path / split / "class 0" / "A.jpg").write_bytes(b"image")
        (tmp_path / split / "class 0" / "a.jpg").write_bytes(b"image")
        (tmp_path / split / "class 1" / "empty.jpg").write_bytes(b"")
        (tmp_path / split / "README.md").write_text("about all")
    expected = listings(tmp_path)
    assert [len(one["inputs"]) for one in expected] == [14, 14]
    with few_objects():
        assert listings(tmp_path) == expected


def listings(root: Path) -> list[dict[str, Any]]:
    return [facts(source.scan()) for source in TreeSource(root).splits().values()]


def facts(listing: Listing) -> dict[str, Any]:
    return {**vars(listing), "inputs": list(listing.inputs)}


@pytest.mark.parametrize("endings", [("jpg", "jpg"), ("jpg", "png")])
def test_a_large_flat_folder_has_the_same_notes(tmp_path: Path, endings: tuple[str, str]) -> None:
    for number in range(20):
        name = f"{['cat', 'dog'][number % 2]}_{number}.{endings[number % 2]}"
        (tmp_path / name).write_bytes(b"image")
    (tmp_path / "Cat_0.jpg").write_bytes(b"image")
    (tmp_path / "dog_1_mask.jpg").write_bytes(b"image")
    options = SourceOptions()
    expected = facts(TreeSource(tmp_path, options).scan())
    assert expected["account"].notes
    with few_objects():
        assert facts(TreeSource(tmp_path, options).scan()) == expected


def test_a_large_bucket_has_the_same_listing() -> None:
    store = fsspec.filesystem("memory")
    names = [f"c{number % 3}/{number}.jpg" for number in range(20)]
    for name in [*names, "c0/.hidden.jpg", "c1/1.txt"]:
        store.pipe_file(f"/large/{name}", name.encode())

    def listed() -> tuple[dict[str, Any], str | None, str | None]:
        source = TreeSource("memory://large")
        return facts(source.scan()), source.checksum(None), source.checksum(lambda: False)

    expected = listed()
    assert [entry.path for entry in expected[0]["inputs"]] == sorted(names)
    assert expected[1] == expected[2]
    with few_objects():
        assert listed() == expected
    store.pipe_file("/large/c0/0.jpg", b"longer than before")
    assert listed()[1] != expected[1]
    store.rm("/large", recursive=True)
