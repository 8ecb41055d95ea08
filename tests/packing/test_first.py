"""`pack(first=N)`: a dataset of the first samples of the plan, which a later call continues.

The oracle is a pack of the whole source.
"""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import faults
import pytest
from folders import contents, manifest_of

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import DestinationError, OptionError

OPTIONS = {"shard_bytes": "60kB", "workers": 1, "images": "keep"}


@pytest.fixture(scope="module")
def source(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of twelve photographs and a file that cannot be packed."""
    folder = tmp_path_factory.mktemp("source") / "photos"
    for name in ("cat", "fig"):
        (folder / name).mkdir(parents=True)
        for path in sorted((photos / name).glob("*.jpg"))[:6]:
            shutil.copy(path, folder / name)
    (folder / "cat" / "bad.jpg").write_bytes(b"not a JPEG")
    return folder


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a dataset of all of them, in at least four shards."""
    folder = tmp_path_factory.mktemp("whole") / "photos"
    wt.pack(source, folder, **OPTIONS)
    assert len(manifest_of(folder).shards) >= 4
    return folder


def keys_of(folder: Path) -> list[str]:
    return [sample["__key__"] for sample in wt.StreamingDataset(folder, shuffle=False, decode=False)]


def packed(source: Path, dst: Path, **options: Any) -> Any:
    return wt.pack(source, dst, **OPTIONS | options)


@pytest.mark.parametrize("first", [1, 5, 8])
def test_it_is_a_dataset_of_the_first_samples(first, source, whole, tmp_path):
    report = packed(source, tmp_path / "dst", first=first)
    assert wt.verify(tmp_path / "dst").ok
    assert keys_of(tmp_path / "dst") == [key for key in keys_of(whole) if int(key) < first]
    account = report.manifest.account
    assert account.given == 13
    assert account.skipped[f"not among the first {first} (--first)"] == 13 - first
    shards = manifest_of(tmp_path / "dst").shards
    assert shards[:-1] == manifest_of(whole).shards[: len(shards) - 1]


def test_a_later_call_packs_the_rest_and_keeps_the_finished_shards(source, whole, tmp_path):
    dst = tmp_path / "dst"
    packed(source, dst, first=2)
    wanted = len(manifest_of(packed(source, dst, first=8).dst).shards)
    assert wanted > 2
    inodes = {path.name: path.stat().st_ino for path in dst.glob("*.tar")}
    report = packed(source, dst)
    assert report.kept >= wanted - 1
    assert contents(dst) == contents(whole)
    kept = [name for name, inode in inodes.items() if (dst / name).stat().st_ino == inode]
    assert len(kept) >= wanted - 1


def test_the_same_call_or_a_smaller_number_finds_nothing_to_do(source, whole, tmp_path):
    dst = tmp_path / "dst"
    packed(source, dst, first=5)
    before = contents(dst)
    for first in (5, 3):
        assert packed(source, dst, first=first).kept == len(manifest_of(dst).shards)
    assert contents(dst) == before
    packed(source, dst)
    assert packed(source, dst, first=5).packed == 12
    assert packed(source, tmp_path / "all", first=13).kept == 0
    assert contents(dst) == contents(tmp_path / "all") == contents(whole)


def test_a_dry_run_of_the_rest_changes_nothing(source, tmp_path):
    dst = tmp_path / "dst"
    packed(source, dst, first=5)
    before = contents(dst)
    assert len(packed(source, dst, dry_run=True).preview.samples) == 10
    assert len(packed(source, dst, dry_run=True, first=7).preview.samples) == 10
    assert contents(dst) == before


@pytest.mark.parametrize(("call", "number"), [("rename", 4), ("rename", 9), ("unlink", 1)])
@pytest.mark.torture_except("rename-9")
def test_a_killed_call_is_continued_with_and_without_it(call, number, source, whole, tmp_path):
    if reason := faults.missing():
        pytest.skip(reason)
    command = ["wds_tools", "pack", "--shard-bytes=60kB", "--workers=1", "--images=keep", source]
    for rest in ([], ["--first=8"]):
        dst = tmp_path / f"{call}{len(rest)}"
        packed(source, dst, first=5)
        done = faults.run_with_fault([*command, dst, "--first=7"], call, number, "KILL")
        assert done.returncode == -signal.SIGKILL
        main_of([*command[1:], dst, *rest])
        if rest:
            assert wt.verify(dst).ok
            assert keys_of(dst) == [key for key in keys_of(whole) if int(key) < 8]
            packed(source, dst)
        assert contents(dst) == contents(whole)


def main_of(words: list[Any]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main([os.fspath(word) for word in words])


def test_what_is_refused(source, six_photos, tmp_path):
    dst = tmp_path / "dst"
    packed(source, dst, first=5)
    before = contents(dst)
    with pytest.raises(DestinationError, match="another dataset"):
        packed(six_photos, dst)
    with pytest.raises(DestinationError, match="unfinished pack of something else"):
        wt.append(six_photos, dst, images="keep", workers=1)
    with pytest.raises(DestinationError, match="unfinished pack or append"):
        wt.reshard(dst, in_place=True, images="crop-ready")
    with pytest.raises(OptionError, match="is a URL"):
        packed(source, "memory://bucket/photos", first=5)
    with pytest.raises(OptionError, match="first cannot be combined with task"):
        packed(source, dst, first=5, task=(0, 2))
    with pytest.raises(OptionError, match="first=0"):
        packed(source, dst, first=0)
    assert contents(dst) == before


def test_the_command_states_that_there_is_more(source, tmp_path, capsys):
    words = ["pack", str(source), str(tmp_path / "dst"), "--images=keep", "--workers=1"]
    main_of([*words, "--first=5"])
    assert (
        "only the first of 13 images are packed; the same command without --first packs the rest"
        in capsys.readouterr().out
    )
    main_of(words)
    assert "only the first" not in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--first=5", "--split=train=0.5,val=0.5"])
