"""Files are restored inside their folder or not at all, and never on top of others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import DestinationError
from wds_tools.upkeep.restore import Tree, check_path


def below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_file_is_put_in_its_folder_and_nothing_else_is_left(tmp_path: Path) -> None:
    with Tree(tmp_path / "out") as tree:
        assert tree.put("a/b/c.jpg", b"data")
        assert tree.put("d", b"")
    assert below(tmp_path / "out") == ["a", "a/b", "a/b/c.jpg", "d"]
    assert (tmp_path / "out/a/b/c.jpg").read_bytes() == b"data"
    assert (tmp_path / "out/d").stat().st_nlink == 1


def test_a_file_with_the_same_bytes_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 3_000_000)
    before = (tmp_path / "a").stat().st_ino
    with Tree(tmp_path) as tree:
        assert not tree.put("a", b"x" * 3_000_000)
    assert (tmp_path / "a").stat().st_ino == before


@pytest.mark.parametrize("data", [b"other", b"", b"x" * 2_000_000 + b"y"])
def test_a_file_with_other_bytes_is_replaced_only_if_asked(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(b"x" * 2_000_001)
    with (
        pytest.raises(DestinationError, match=r"'a' is there already and is something else; .* --overwrite"),
        Tree(tmp_path) as tree,
    ):
        tree.put("a", data)
    assert (tmp_path / "a").read_bytes() == b"x" * 2_000_001
    with Tree(tmp_path, overwrite=True) as tree:
        assert tree.put("a", data)
    assert (tmp_path / "a").read_bytes() == data


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("first", [b"same", b"other"])
def test_one_path_cannot_come_twice(tmp_path: Path, overwrite: bool, first: bytes) -> None:
    with Tree(tmp_path, overwrite=overwrite) as tree:
        tree.put("a", first)
        with pytest.raises(DestinationError, match="comes from two samples"):
            tree.put("a", b"same")
    assert (tmp_path / "a").read_bytes() == first


def test_two_paths_that_are_one_file_to_the_file_system_cannot_both_come(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    os.link(tmp_path / "a", tmp_path / "A")  # as a file system does that does not tell A from a
    with Tree(tmp_path) as tree:
        tree.put("a", b"x")
        with pytest.raises(DestinationError, match="comes from two samples"):
            tree.put("A", b"x")


@pytest.mark.parametrize(
    "path",
    ["", "/", "/etc/x", "..", "../x", "a/../../x", "a/..", "a//b", "./a", "a/", "a\0b", "\ud800", ".unpacking/x"],
)
def test_a_path_that_is_none_inside_a_folder_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(DestinationError, match="is no path inside a folder"), Tree(tmp_path / "out") as tree:
        tree.put(path, b"x")
    assert below(tmp_path) == []


@given(st.lists(st.sampled_from(["..", ".", "", "a", "b", "\0", "...", ".unpacking"]), min_size=1).map("/".join))
def test_no_path_that_is_taken_leads_outside(path: str) -> None:
    try:
        parts = check_path(path)
    except DestinationError:
        return
    assert os.path.normpath("/top/of/all/" + "/".join(map(os.fsdecode, parts))) == f"/top/of/all/{path}"


def test_no_link_in_the_folder_leads_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"x")
    root = tmp_path / "root"
    root.mkdir()
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "precious")
    (root / "dangling").symlink_to(outside / "new")
    for overwrite in (False, True):
        with Tree(root, overwrite=overwrite) as tree:
            for path in ("folder/a", "folder/precious", "file", "dangling"):
                with pytest.raises(DestinationError):
                    tree.put(path, b"hostile")
    assert below(outside) == ["precious"]
    assert (outside / "precious").read_bytes() == b"x"


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_file_is_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"x")
    with Tree(tmp_path, overwrite=overwrite) as tree:
        for path in ("folder", "pipe", "file/below"):
            with pytest.raises(DestinationError, match=path):
                tree.put(path, b"x")
    assert below(tmp_path) == ["file", "folder", "pipe"]


def test_names_of_255_bytes_and_names_that_are_no_text_are_taken(tmp_path: Path) -> None:
    long, odd = "é" * 127 + "x", b"\xff\n-".decode("utf-8", "surrogateescape")
    with Tree(tmp_path) as tree:
        tree.put(f"{long}/{long}", b"1")
        tree.put(odd, b"2")
        with pytest.raises(DestinationError, match="File name too long"):
            tree.put(long + "y", b"3")
        with pytest.raises(DestinationError, match="File name too long"):
            tree.put(f"{long}y/a", b"3")
    assert {os.fsencode(path.name) for path in tmp_path.iterdir()} == {long.encode(), b"\xff\n-"}


def test_where_there_are_no_hard_links_files_are_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_link(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_link)
    with Tree(tmp_path) as tree:
        assert tree.put("a/b", b"x")
    assert below(tmp_path) == ["a", "a/b"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Tree(tmp_path), pytest.raises(DestinationError, match="another program is unpacking"), Tree(tmp_path):
        pass
    assert below(tmp_path) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, pathlib; from wds_tools.upkeep.restore import Tree\n"
        "os.link = lambda *_, **__: os.kill(os.getpid(), 9)\n"
        "with Tree(pathlib.Path('.')) as tree: tree.put('a', b'x' * 1000)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=False)
    assert done.returncode == -9
    assert len(below(tmp_path)) == 3  # the work area, its lock, a file without its name
    with Tree(tmp_path) as tree:
        assert tree.put("a", b"x" * 1000)
    assert below(tmp_path) == ["a"]
