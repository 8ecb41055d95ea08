"""Problems with images and labels: clusters compared with brute force, and datasets with known problems."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pictures import save_jpeg, some_pictures, write_problems

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.images import native
from wds_tools.images.near_duplicates import clusters_of
from wds_tools.inspection.problem_columns import read_columns
from wds_tools.inspection.problems import find_leaks, find_problems
from wds_tools.reading.opening import open_shards
from wds_tools.reading.select import banned_ids, matching

pytestmark = pytest.mark.usefixtures("no_probe_of_packages")


def brute_force(hashes: NDArray[np.uint64], distance: int) -> NDArray[np.int64]:
    """Return the smallest row of the cluster of each hash, by comparing all pairs."""
    bits = np.unpackbits(hashes[:, None].view(np.uint8), axis=1)
    near = (bits[:, None] != bits[None]).sum(2) <= distance
    cluster = np.arange(len(hashes))
    while True:
        lower = np.where(near, cluster[None], len(hashes)).min(axis=1)
        if np.array_equal(lower, cluster):
            return cluster
        cluster = lower


def random_hashes(kind: str, count: int, random: np.random.Generator) -> NDArray[np.uint64]:
    hashes = random.integers(0, 2**64, count, dtype=np.uint64)
    if kind == "few bits":
        return hashes & np.uint64(0x0F0F000F00FF0301)
    if kind == "few ones":
        ones = random.integers(0, 64, (3, count), dtype=np.uint64)
        return np.bitwise_or.reduce(np.uint64(1) << ones, axis=0)
    copies = hashes[random.integers(0, count, count // 4)]
    for _ in range(6):
        chosen = random.random(len(copies)) < 0.6
        copies[chosen] ^= np.uint64(1) << random.integers(0, 64, int(chosen.sum()), dtype=np.uint64)
    hashes[: len(copies)] = copies
    return hashes


@pytest.mark.parametrize("distance", [0, 1, 3, 6, 9, 16])
@pytest.mark.parametrize("kind", ["planted", "few bits", "few ones"])
def test_clusters_are_those_of_all_pairs(kind: str, distance: int) -> None:
    hashes = random_hashes(kind, 700, np.random.default_rng(distance))
    expected = brute_force(hashes, distance).tolist()
    for simd in (True, False):
        native.compiled.simd(simd)
        try:
            found = clusters_of(hashes, distance, threads=2)
        finally:
            native.compiled.simd(True)
        first = {number: row for row, number in reversed(list(enumerate(found.tolist())))}
        assert [first[number] for number in found.tolist()] == expected


def test_many_hashes_that_agree_in_most_bits_do_not_take_quadratic_time() -> None:
    hashes = np.arange(100_000, dtype=np.uint64)
    assert clusters_of(hashes, 4).max() == 0


def test_invalid_arguments_of_the_compiled_function_are_refused() -> None:
    hashes, parents = np.arange(4, dtype=np.uint64), np.arange(4, dtype=np.uint32)
    for distance, first, step, some in (
        (0, 0, 1, parents),
        (17, 0, 1, parents),
        (3, 0, 0, parents),
        (3, 0, 1, parents[1:]),
    ):
        with pytest.raises(ValueError, match="hashes"):
            native.compiled.join_clusters(hashes, distance, first, step, some)
    with pytest.raises(ValueError, match="a parent is too large"):
        native.compiled.join_clusters(hashes, 3, 0, 1, parents + 1)


def run(*words: str) -> int:
    """Call the command line, and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    return int(ended.value.code or 0)


@pytest.fixture(scope="module")
def datasets(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the datasets ``train`` and ``val``, which have one problem of each kind."""
    folder = tmp_path_factory.mktemp("problems")
    pictures, val = some_pictures(photos), folder / "images" / "val"
    write_problems(folder / "images" / "train", pictures)
    for number, image in enumerate(pictures[10:16]):
        save_jpeg(val / "ab"[number % 2] / f"{number}", image)
    save_jpeg(val / "a" / "same", pictures[1])
    save_jpeg(val / "b" / "reduced", pictures[3].resize((400, 300)))
    save_jpeg(val / "single" / "one", pictures[20])
    wt.pack_splits(folder / "images", folder / "packed", split="folders", workers=1, progress=False)
    return folder / "packed"


def names_of(dataset: Path, ids: Any) -> set[str]:
    """Return the names of the files of samples."""
    loader = wt.make_loader(dataset, batch_size=1, num_workers=0, shuffle=False, fields=("json",), tail="pad")
    paths = [batch.json[0]["path"] for batch in loader]
    return {Path(paths[number]).stem for number in ids}


def test_each_problem_is_found_with_a_condition_and_a_ban(
    datasets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, val = str(datasets / "train"), str(datasets / "val")
    assert run("doctor", train, val, "--json", "--write-bans", str(tmp_path)) == 1
    findings = [one for one in json.loads(capsys.readouterr().out) if one.get("dataset") == train]
    found = {one["name"]: one for one in findings}
    shards = open_shards(train)
    expected = {
        "copies": {"copy", "relabelled"},
        "similar": {"similar"},
        "labels": {"2", "relabelled"},
        "blank": {"blank", "blank2"},
        "tiny": {"tiny"},
        "narrow": {"narrow"},
        "classes": {"one"},
        "leak": {"1", "3"},
    }
    columns = read_columns(shards)
    by_name = {problem.name: problem.samples.tolist() for problem in find_problems(columns)}
    by_name["leak"] = find_leaks(columns, read_columns(open_shards(val)), names=("train", "val"))[0].samples.tolist()
    for name in {*expected, "blurred"}:
        ids = matching(shards, len(shards.locations), found[name]["where"], False).tolist()
        assert ids == by_name[name] == banned_ids(shards, found[name]["ban"], [0, len(columns)])
        assert found[name]["samples"] == len(ids)
    keys = shards.index(0).keys
    assert Path(found["tiny"]["ban"]).read_text() == "".join(f"{keys[number]}\n" for number in by_name["tiny"])
    for name, stems in expected.items():
        if name in ("copies", "similar"):  # of two files with the same content, either may be left
            assert len(by_name[name]) == len(stems)
        else:
            assert names_of(datasets / "train", by_name[name]) == stems, name
    assert "blurred" in names_of(datasets / "train", by_name["blurred"])
    assert {one["name"] for one in findings if one["status"] == "problem"} == {"labels", "leak"}


def test_each_finding_names_the_command_that_shows_its_samples_of_the_right_dataset(
    datasets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train, val = str(datasets / "train"), str(datasets / "val")
    assert run("doctor", train, val, "--json") == 1
    findings = json.loads(capsys.readouterr().out)
    monkeypatch.chdir(tmp_path)
    named = {one["name"] + one["dataset"]: one["remedy"] for one in findings if "where" in one}
    for name in (f"tiny{train}", f"classes{val}"):
        program, *words = shlex.split(named[name].removeprefix("look at them: ").partition(";")[0])
        assert (program, *words[:2]) == ("wds-tools", "sample", name.removeprefix("tiny").removeprefix("classes"))
        assert run(*words) == 0
        assert f"wrote 1 samples of {words[1]}" in capsys.readouterr().out


def test_a_dataset_without_leaks_is_no_problem(datasets: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", str(datasets / "val"), "--distance", "4") == 0
    assert "\nleak" not in capsys.readouterr().out
    assert run("doctor", str(datasets / "val"), "--distance", "17") == 2
    assert "allowed are 0 to 16 bits" in capsys.readouterr().err
    assert run("doctor", str(datasets / "val"), str(datasets / "val")) == 2
    assert "given twice" in capsys.readouterr().err


def test_without_signatures_copies_are_found_and_a_note_says_what_is_not(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(photos.rglob("*.jpg"))[:3]
    for number, path in enumerate([*files, files[0]]):
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "images" / f"{number}.jpg").write_bytes(path.read_bytes())
    wt.pack(tmp_path / "images", tmp_path / "packed", images="keep", workers=1, progress=False)
    assert run("doctor", str(tmp_path / "packed")) == 0
    shown = capsys.readouterr().out
    assert "4 images without a signature" in shown
    assert "1 image with the same bytes as an earlier one" in shown
