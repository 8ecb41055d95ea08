"""The catalogue: which datasets are found, under which names, and that nothing else can be read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from servers import copy_of

from wds_tools.errors import OptionError
from wds_tools.service import catalogue as catalogues
from wds_tools.service.catalogue import Catalogue
from wds_tools.service.contents import DamagedFileError, names_of
from wds_tools.storage.base import StoredFile


@contextmanager
def opened(*roots: Path) -> Iterator[Catalogue]:
    catalogue = Catalogue(roots)
    try:
        catalogue.scan()
        yield catalogue
    finally:
        catalogue.close()


def test_datasets_are_named_by_their_paths_below_the_roots(few: Path, tmp_path: Path) -> None:
    for name in ("a/photos", "a/train/one", "b/more"):
        copy_of(few, tmp_path / name)
    with opened(tmp_path / "a", tmp_path / "b" / "more") as catalogue:
        assert list(catalogue.datasets) == ["more", "photos", "train/one"]
        details = catalogue.datasets["photos"].summary.details
        assert (details["samples"], details["classes"], details["shards"]) == (40, 8, len(list(few.glob("*.tar"))))


def test_new_changed_and_removed_datasets_are_found_by_the_next_scan(few: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with opened(tmp_path / "root") as catalogue:
        assert not catalogue.datasets
        copy_of(few, tmp_path / "root" / "deep" / "er" / "photos")
        catalogue.scan()
        first = catalogue.datasets["deep/er/photos"].summary
        shutil.rmtree(tmp_path / "root" / "deep" / "er" / "photos")
        copy_of(packed, tmp_path / "root" / "deep" / "er" / "photos")
        catalogue.scan()
        assert catalogue.datasets["deep/er/photos"].summary.version != first.version
        shutil.rmtree(tmp_path / "root" / "deep")
        catalogue.scan()
        assert not catalogue.datasets


def test_a_scan_notices_changes_below_folders_that_were_listed_long_ago(
    few: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        os.utime(folder, (1, 1))
    monkeypatch.setattr(catalogues.os, "scandir", counted := Counted(os.scandir))
    with opened(tmp_path) as catalogue:
        listed = counted.calls
        catalogue.scan()
        assert counted.calls == listed
        copy_of(few, tmp_path / "a" / "b" / "photos")
        catalogue.scan()
        assert list(catalogue.datasets) == ["a/b/photos"]


class Counted:
    """A function that counts its calls."""

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def __call__(self, *arguments):
        self.calls += 1
        return self.function(*arguments)


def test_a_damaged_manifest_is_a_problem_of_its_own_dataset_only(few: Path, tmp_path: Path) -> None:
    copy_of(few, tmp_path / "good")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "manifest.json").write_bytes((few / "manifest.json").read_bytes()[:-30])
    with opened(tmp_path) as catalogue:
        assert list(catalogue.datasets) == ["good"]
        assert "is not JSON" in catalogue.problems["bad"]
        assert str(tmp_path) not in str(catalogue.problems)


def test_the_first_of_two_datasets_with_one_name_is_served_and_the_other_reported(
    few: Path, packed: Path, tmp_path: Path
) -> None:
    copy_of(few, tmp_path / "a" / "photos")
    copy_of(packed, tmp_path / "b" / "photos")
    with opened(tmp_path / "a", tmp_path / "b") as catalogue:
        assert catalogue.datasets["photos"].summary.details["samples"] == 40
        assert "rename one" in catalogue.problems["photos (root 2)"]


def test_links_below_a_root_are_not_followed(few: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(few)
    (root / "files").mkdir()
    (root / "files" / "manifest.json").symlink_to(few / "manifest.json")
    with opened(root) as catalogue:
        assert not catalogue.datasets


def test_a_root_may_be_a_link(few: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(few)
    with opened(tmp_path / "link") as catalogue:
        assert list(catalogue.datasets) == [few.name]


@pytest.mark.parametrize("what", ["file", "folder", "fifo"])
def test_a_file_that_became_something_else_is_not_opened(few: Path, tmp_path: Path, what: str) -> None:
    copy_of(few, tmp_path / "root" / "photos")
    (tmp_path / "secret").write_text("secret")
    with opened(tmp_path / "root") as catalogue:
        dataset = catalogue.datasets["photos"]
        file = catalogue.files(dataset)["shard-000000.tar"]
        path = tmp_path / "root" / "photos" / file.name
        if what == "folder":
            (tmp_path / "root" / "photos").rename(tmp_path / "away")
            (tmp_path / "root" / "photos").symlink_to(tmp_path / "away")
        else:
            path.unlink()
            os.mkfifo(path) if what == "fifo" else path.symlink_to(tmp_path / "secret")
        with pytest.raises(DamagedFileError) as raised:
            catalogue.open(dataset, file)
        assert str(tmp_path) not in str(raised.value)


def test_a_file_of_another_length_is_not_opened(few: Path, tmp_path: Path) -> None:
    shutil.copytree(few, tmp_path / "root" / "photos")
    with opened(tmp_path / "root") as catalogue:
        dataset = catalogue.datasets["photos"]
        file = catalogue.files(dataset)["shard-000000.tar"]
        with (tmp_path / "root" / "photos" / file.name).open("ab") as shard:
            shard.write(b"x")
        with pytest.raises(DamagedFileError, match=f"it has {file.bytes + 1:,} bytes, but its manifest records"):
            catalogue.open(dataset, file)


def test_datasets_that_have_not_changed_are_not_read_again_by_a_scan(few: Path, tmp_path: Path) -> None:
    manifest = (few / "manifest.json").read_bytes()
    for number in range(100):
        folder = tmp_path / f"{number % 10}" / f"{number:04}"
        folder.mkdir(parents=True)
        (folder / "manifest.json").write_bytes(manifest)
    with opened(tmp_path) as catalogue:
        before = dict(catalogue.datasets)
        catalogue.scan()
        assert len(before) == len(catalogue.datasets) == 100
        assert all(catalogue.datasets[name] is located for name, located in before.items())


def test_a_root_that_is_not_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="none is not a folder that can be read"):
        Catalogue([tmp_path / "none"])


NAMES = st.text(st.sampled_from("ab./%20efEF\\\0:~ \n") | st.characters(codec="utf-8"), max_size=30)


@given(path=NAMES, parts=st.integers(0, 2))
@example(path="photos/%2e%2e/%2e%2e/etc/passwd", parts=1)
@example(path="..%2f..%2fetc/passwd", parts=1)
@example(path="photos/0/..%2fpasswd", parts=2)
@example(path="photos/%00", parts=1)
@example(path="%ff/a", parts=1)
@example(path="%2e%2e", parts=0)
@example(path="a" * 100_000 + "/b", parts=1)
def test_a_path_names_something_below_a_dataset_or_nothing(path: str, parts: int) -> None:
    found = names_of(path, parts=parts)
    if found is not None:
        dataset, file = found
        assert file.count("/") == max(0, parts - 1)
        assert not {"", ".", ".."} & set(dataset.split("/"))
        assert f"{dataset}{file}".isprintable()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=NAMES)
def test_only_names_of_the_manifest_are_opened(few: Path, name: str) -> None:
    with opened(few.parent) as catalogue:
        dataset = catalogue.datasets["packed"]
        files = catalogue.files(dataset)
        assert name not in files
        assert set(files) == {"manifest.json"} | {p.name for p in few.iterdir() if p.suffix in (".tar", ".parquet")}
        assert isinstance(files["manifest.json"], StoredFile)
