"""The same mistake has the same exit code in every command, and is one line without a traceback."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from wds_tools.cli import cli, main

Fails = Callable[..., tuple[int, str]]

READS = {
    "append": ["images", "DATASET"],
    "reshard": ["DATASET", "out"],
    "merge": ["DATASET", "-o", "out"],
    "unpack": ["DATASET", "out"],
    "export": ["DATASET", "--to", "dali"],
    "add-fields": ["DATASET", "--from", "texts.csv"],
    "info": ["DATASET"],
    "verify": ["DATASET"],
    "reseal": ["DATASET"],
    "sample": ["DATASET"],
    "plan": ["DATASET"],
    "tune": ["DATASET"],
    "bench": ["DATASET"],
    "view": ["DATASET"],
}
"""Arguments of the commands that read a dataset."""

WRITES = {
    "pack": ["images", "DST"],
    "reshard": ["dataset", "DST"],
    "merge": ["dataset", "-o", "DST"],
    "unpack": ["dataset", "DST"],
}
"""Arguments of the commands that write to a new folder; `copy` reads only URLs."""

WRONG_VALUES = {
    "pack": ["images", "out", "--shard-bytes", "many"],
    "append": ["images", "dataset", "--workers", "0"],
    "reshard": ["dataset", "out", "--images", "better"],
    "index": ["dataset/*.tar", "--classes", "nowhere.txt"],
    "merge": ["dataset", "-o", ""],
    "copy": ["dataset", "out"],
    "unpack": ["dataset", "out", "--layout", "flat"],
    "export": ["dataset", "--to", "nobody"],
    "add-fields": ["dataset", "--from", "texts.csv", "--field", "txt"],
    "info": [""],
    "verify": [""],
    "reseal": ["dataset/*.tar"],
    "sample": ["dataset", "--view", "round"],
    "plan": ["dataset", "--shuffle", "often"],
    "tune": ["dataset", "--rounds", "few"],
    "bench": ["dataset", "--workers", "two"],
    "serve": ["dataset", "--port", "high"],
    "view": ["dataset", "--port", "high"],
    "token": ["create", "--name"],
    "runs": ["show", "unknown"],
    "cache": ["clear", "s3://bucket/unknown"],
    "doctor": [""],
}


@pytest.fixture
def fails(few: Path, six_photos: Path, tmp_path: Path, capsys, monkeypatch, no_probe_of_packages) -> Fails:
    """Return a function that runs a command beside ``dataset``, ``images`` and ``texts.csv``; it must fail."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(few, "dataset")
    shutil.move(six_photos, "images")
    Path("texts.csv").write_text("key,caption\n000000000,a cat\n")

    def run(command: str, *words: str) -> tuple[int, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main([command, *words])
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: ")
        return end.value.code, error

    return run


def words_with(words: list[str], name: str) -> list[str]:
    return [name if word in ("DATASET", "DST") else word for word in words]


def test_a_path_that_does_not_exist_is_a_wrong_argument(fails: Fails) -> None:
    commands = {
        **READS,
        "pack": ["DATASET", "out"],
        "index": ["DATASET.tar"],
        "serve": ["DATASET"],
        "doctor": ["DATASET"],
    }
    for command, words in commands.items():
        code, error = fails(command, *words_with(words, "nowhere"))
        assert (code, "nowhere" in error or command == "index") == (2, True), error


def test_a_folder_that_is_not_a_dataset_is_a_wrong_argument(fails: Fails) -> None:
    Path("empty").mkdir()
    for command, words in {**READS, "index": ["DATASET"], "pack": ["DATASET", "out"]}.items():
        code, error = fails(command, *words_with(words, "empty"))
        assert (code, "empty" in error) == (2, True), f"{command}: {error}"


def test_a_folder_of_splits_names_its_datasets(fails: Fails) -> None:
    for split in ("val", "train"):
        shutil.copytree("dataset", Path("splits", split))
    for command, words in READS.items():
        code, error = fails(command, *words_with(words, "splits"))
        if command == "reshard":  # which also reads shards without a manifest
            assert (code, "splits contains several splits (train, val)" in error) == (1, True)
            continue
        assert code == 2, f"{command}: {error}"
        assert "splits is not one dataset: it holds the datasets train, val; name one of them" in error


def test_a_damaged_manifest_is_a_failure(fails: Fails, capsys) -> None:
    (Path("dataset") / "manifest.json").write_text("{")
    for command, words in READS.items():
        if command == "verify":  # which lists it as damage
            continue
        code, error = fails(command, *words_with(words, "dataset"))
        assert (code, "is not JSON" in error) == (1, True), f"{command}: {error}"
    with pytest.raises(SystemExit) as end:
        main(["verify", "dataset"])
    assert (end.value.code, "is not JSON" in capsys.readouterr().out) == (1, True)


def test_an_unknown_option_and_a_wrong_value_are_wrong_arguments(fails: Fails) -> None:
    assert WRONG_VALUES.keys() == cli.commands.keys()
    for command, words in WRONG_VALUES.items():
        assert fails(command, "--nope")[0] == 2
        code, error = fails(command, *words)
        assert code == 2, f"{command}: {error}"


def test_a_destination_that_is_not_empty_is_a_failure_and_stays_as_it_is(fails: Fails, packed: Path) -> None:
    shutil.copytree(packed, "other")
    before = sorted(path.read_bytes() for path in Path("other").iterdir())
    for command, words in WRITES.items():
        code, error = fails(command, *words_with(words, "other"))
        assert (code, "other " in error) == (1, True), f"{command}: {error}"
        assert sorted(path.read_bytes() for path in Path("other").iterdir()) == before


def test_a_destination_that_cannot_be_written_is_a_failure(fails: Fails) -> None:
    for command, words in WRITES.items():
        code, error = fails(command, *words_with(words, "texts.csv/out"))
        assert (code, "cannot write to texts.csv/out" in error) == (1, True), f"{command}: {error}"
