"""Files are only restored inside the folder, and never replace others unless that is allowed."""

from __future__ import annotations

import os
from pathlib import Path

import preloaded
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import DestinationError, OptionError
from wds_tools.upkeep.restore import RestoreFolder, check_path


def paths_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_is_written_and_no_temporary_file_remains(tmp_path: Path) -> None:
    with RestoreFolder(tmp_path / "out") as folder:
        assert folder.put("a/b/c.jpg", b"data")
        assert folder.put("d", b"")
    assert paths_below(tmp_path / "out") == ["a", "a/b", "a/b/c.jpg", "d"]
    assert (tmp_path / "out/a/b/c.jpg").read_bytes() == b"data"
    assert (tmp_path / "out/d").stat().st_nlink == 1


def test_a_file_with_the_same_content_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    before = (tmp_path / "a").stat().st_ino
    with RestoreFolder(tmp_path) as folder:
        assert not folder.put("a", b"x" * 3_000_000)
    assert (tmp_path / "a").stat().st_ino == before


@pytest.mark.parametrize("data", [b"other", b"", b"x" * 2_000_000 + b"y"])
def test_a_file_with_other_content_is_replaced_only_with_overwrite(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(b"x" * 2_000_001)
    with (
        pytest.raises(DestinationError, match=r"'a' already exists with other content; .* --overwrite"),
        RestoreFolder(tmp_path) as folder,
    ):
        folder.put("a", data)
    assert (tmp_path / "a").read_bytes() == b"x" * 2_000_001
    with RestoreFolder(tmp_path, overwrite=True) as folder:
        assert folder.put("a", data)
    assert (tmp_path / "a").read_bytes() == data


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("first", [b"same", b"other"])
def test_one_path_cannot_be_written_twice(tmp_path: Path, overwrite: bool, first: bytes) -> None:
    with RestoreFolder(tmp_path, overwrite=overwrite) as folder:
        folder.put("a", first)
        with pytest.raises(OptionError, match="would be written for two samples"):
            folder.put("a", b"same")
    assert (tmp_path / "a").read_bytes() == first


def test_two_paths_of_one_file_cannot_both_be_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    os.link(tmp_path / "a", tmp_path / "A")  # like a file system that ignores case
    with RestoreFolder(tmp_path) as folder:
        folder.put("a", b"x")
        with pytest.raises(OptionError, match="would be written for two samples"):
            folder.put("A", b"x")


@pytest.mark.parametrize(
    "path",
    ["", "/", "/etc/x", "..", "../x", "a/../../x", "a/..", "a//b", "./a", "a/", "a\0b", "\ud800", ".unpacking/x"],
)
def test_a_path_that_leads_outside_or_is_invalid_is_refused(tmp_path: Path, path: str) -> None:
    with (
        pytest.raises(DestinationError, match="is not a relative path inside a folder"),
        RestoreFolder(tmp_path / "out") as folder,
    ):
        folder.put(path, b"x")
    assert paths_below(tmp_path) == []


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b", "\0", "...", ".unpacking"]), min_size=1).map("/".join))
def test_an_accepted_path_does_not_change_when_it_is_normalized(path: str) -> None:
    try:
        parts = check_path(path)
    except DestinationError:
        return
    assert os.path.normpath("/top/of/all/" + "/".join(map(os.fsdecode, parts))) == f"/top/of/all/{path}"


def test_links_in_the_folder_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "precious")
    (root / "dangling").symlink_to(outside / "new")
    for overwrite in (False, True):
        with RestoreFolder(root, overwrite=overwrite) as folder:
            for path in ("folder/a", "folder/precious", "file", "dangling"):
                with pytest.raises(DestinationError):
                    folder.put(path, b"hostile")
    assert paths_below(outside) == ["precious"]
    assert (outside / "precious").read_bytes() == b"x"


@pytest.mark.parametrize("overwrite", [False, True])
def test_folders_and_pipes_are_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"x")
    with RestoreFolder(tmp_path, overwrite=overwrite) as folder:
        for path in ("folder", "pipe", "file/below"):
            with pytest.raises(DestinationError, match=path):
                folder.put(path, b"x")
    assert paths_below(tmp_path) == ["file", "folder", "pipe"]


def test_names_of_255_bytes_and_names_that_are_not_utf8_are_written(tmp_path: Path) -> None:
    long, odd = "é" * 127 + "x", b"\xff\n-".decode("utf-8", "surrogateescape")
    with RestoreFolder(tmp_path) as folder:
        folder.put(f"{long}/{long}", b"1")
        folder.put(odd, b"2")
        with pytest.raises(DestinationError, match="File name too long"):
            folder.put(long + "y", b"3")
        with pytest.raises(DestinationError, match="File name too long"):
            folder.put(f"{long}y/a", b"3")
    assert {os.fsencode(path.name) for path in tmp_path.iterdir()} == {long.encode(), b"\xff\n-"}


def test_files_are_renamed_if_hard_links_are_impossible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    with RestoreFolder(tmp_path) as folder:
        assert folder.put("a/b", b"x")
    assert paths_below(tmp_path) == ["a", "a/b"]


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with (
        RestoreFolder(tmp_path),
        pytest.raises(DestinationError, match="another program is writing"),
        RestoreFolder(tmp_path),
    ):
        pass
    assert paths_below(tmp_path) == []


def test_temporary_files_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from wds_tools.upkeep.restore import RestoreFolder\n"
        "os.link = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        "with RestoreFolder(pathlib.Path('.')) as folder: folder.put('a', b'x' * 1000)"
    )
    done = preloaded.run(["-c", code], cwd=tmp_path, imports=preloaded.COMMANDS)
    assert done.returncode == -9
    assert len(paths_below(tmp_path)) == 4  # .unpacking, its lock, its plan, and a temporary file
    with RestoreFolder(tmp_path) as folder:
        assert folder.put("a", b"x" * 1000)
    assert paths_below(tmp_path) == ["a"]
