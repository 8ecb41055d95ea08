"""Which files of a folder are packed, where other programs left files that are not meant, or not all of them."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sources_conformance import Photo, photos_of
from tfrecords import example, frame

from wds_tools.errors import SourceError
from wds_tools.format.account import Account
from wds_tools.sources.detect import open_source, open_splits


@pytest.fixture(scope="module")
def six() -> list[Photo]:
    return photos_of(6)


def write_parquet(path: Path, photos: Iterable[Photo]) -> None:
    pq.write_table(
        pa.table({"image": [photo.data for photo in photos], "label": [photo.label for photo in photos]}), path
    )


def write_tfrecord(path: Path, photos: Iterable[Photo]) -> None:
    examples = (example({"image/encoded": photo.data, "image/class/label": photo.label}) for photo in photos)
    path.write_bytes(b"".join(map(frame, examples)))


def write_tar(path: Path, photos: Iterable[Photo]) -> None:
    with tarfile.open(path, "w") as shard:
        for photo in photos:
            for name, data in ((f"{photo.name}.jpg", photo.data), (f"{photo.name}.cls", str(photo.label).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                shard.addfile(member, BytesIO(data))


WRITERS: dict[str, Callable[[Path, Iterable[Photo]], None]] = {
    "parquet": write_parquet,
    "tfrecord": write_tfrecord,
    "tar": write_tar,
}
every_format = pytest.mark.parametrize("extension", WRITERS)


def fill(folder: Path, names: dict[str, Iterable[Photo]], extension: str) -> Path:
    for name, photos in names.items():
        path = folder / f"{name}.{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        WRITERS[extension](path, photos)
    return folder


def account_of(src: Path) -> Account:
    return open_source(src).scan().account


def left_out(account: Account) -> dict[str, str]:
    return {part.name: part.reason for part in account.parts if part.reason}


@every_format
def test_hidden_folders_unfinished_files_and_backups_are_left_out(
    tmp_path: Path, six: list[Photo], extension: str
) -> None:
    hidden = [".ipynb_checkpoints", ".Trash-0/files", "__MACOSX"]
    endings = [".tmp", ".part", ".bak", ".crdownload", "~"]
    src = fill(tmp_path / "src", dict.fromkeys(["a", "b", *(f"{folder}/a" for folder in hidden)], six), extension)
    for ending in endings:
        (src / f"b.{extension}{ending}").write_bytes((src / f"b.{extension}").read_bytes())
    (src / f"b.{extension}").unlink()
    account = account_of(src)
    assert account.packed == 6
    unfinished = {f"b.{extension}{ending}": "is named like an unfinished file or a backup" for ending in endings}
    reasons = left_out(account)
    assert reasons.keys() == unfinished.keys() | {folder.partition("/")[0] for folder in hidden}
    assert unfinished.items() <= reasons.items()
    with pytest.raises(SourceError, match="give a pattern that does not match it"):
        account_of(src / "*")


def test_an_empty_file_is_named(tmp_path: Path, six: list[Photo]) -> None:
    src = fill(tmp_path / "src", {"a": six}, "tfrecord")
    (src / "b.tfrecord").touch()
    assert left_out(account_of(src)) == {"b.tfrecord": "is empty"}


@every_format
def test_a_missing_part_is_named(tmp_path: Path, six: list[Photo], extension: str) -> None:
    names = {"train-00000-of-00003": six[:2], "train-00001-of-00003": six[2:4]}
    src = fill(tmp_path / "src", names, extension)
    message = rf"state 3: '00002' is missing.*'.*/train-\*-of-00003.{extension}'"
    with pytest.raises(SourceError, match=message):
        account_of(src)
    assert account_of(src / f"train-*-of-00003.{extension}").packed == 4  # the way out that it names
    fill(src, {"train-00002-of-00003": six[4:]}, extension)
    assert account_of(src).packed == 6


def test_parts_with_fingerprints_are_one_set(tmp_path: Path, six: list[Photo]) -> None:
    names = {  # as versions of datasets before 2.14 wrote them
        "data/train-00000-of-00002-b4aaeceff1d90ecb": six[:2],
        "data/train-00001-of-00002-7dbbe248962764c5": six[2:],
    }
    src = fill(tmp_path / "src", names, "parquet")
    assert account_of(src).packed == 6
    (src / "data" / "train-00001-of-00002-7dbbe248962764c5.parquet").unlink()
    with pytest.raises(SourceError, match=r"'00001' is missing: .*/data/train-\*-of-00002-\*.parquet'"):
        account_of(src)


def test_configurations_and_splits_are_folders(tmp_path: Path, six: list[Photo]) -> None:
    src = fill(tmp_path / "src", {"default/train/0000": six[:4]}, "parquet")  # as the Hub converts every dataset
    assert account_of(src).packed == 4
    fill(src, {"default/test/0000": six[4:]}, "parquet")
    assert {name: source.scan().account.packed for name, source in open_splits(src).items()} == {"test": 2, "train": 4}


def test_parts_in_several_folders_are_one_set(tmp_path: Path, six: list[Photo]) -> None:
    names = {"one/a-1-of-2": six[:2], "two/a-2-of-2": six[2:]}
    assert account_of(fill(tmp_path / "src", names, "tfrecord")).packed == 6


@every_format
def test_two_sets_of_parts_are_not_mixed(tmp_path: Path, six: list[Photo], extension: str) -> None:
    names = {"train-00000-of-00002": six[:3], "train-00001-of-00002": six[3:], "train-00000-of-00001": six}
    src = fill(tmp_path / "src", names, extension)
    with pytest.raises(SourceError, match="parts of two sets"):
        account_of(src)
    assert account_of(src / f"train-*-of-00002.{extension}").packed == 6


@every_format
def test_a_second_download_is_an_error_only_if_it_is_the_same(tmp_path: Path, six: list[Photo], extension: str) -> None:
    with pytest.raises(SourceError, match=r"a \(1\).* is named like a copy of 'a.* has the same content"):
        account_of(fill(tmp_path / "same", {"a": six, "a (1)": six}, extension))
    account = account_of(fill(tmp_path / "other", {"a": six[:3], "a (1)": six[3:]}, extension))
    assert [note for note in account.notes if "is named like a copy of" in note]
    account = account_of(fill(tmp_path / "names", {"a": six, "b": six}, extension))
    assert f"'a.{extension}' and 'b.{extension}' have the same content: their samples are packed twice" in account.notes


@every_format
def test_files_next_to_a_split_are_not_mixed_with_it(tmp_path: Path, six: list[Photo], extension: str) -> None:
    for number, place in enumerate(["{}", "{}_00000", "{}/a"]):
        for other in ["quiz", "holdout", "\u6d4b\u8bd5", "extra"]:
            names = {place.format("train"): six[:4], place.format(other): six[4:]}
            src = fill(tmp_path / f"{number}-{other}", names, extension)
            with pytest.raises(SourceError, match=r"contains (a split next to other files|several splits).*--split"):
                account_of(src)
            assert {split: len(s.scan().inputs) for split, s in open_splits(src).items()} == {"train": 4, other: 2}


def test_each_file_with_more_than_a_split_in_its_name_is_a_split(tmp_path: Path, six: list[Photo]) -> None:
    several = {
        "train val val_blurred": {"train", "val", "val_blurred"},
        "train test test2 extra": {"train", "test", "test2", "extra"},
        "train-0 train-1 train_extra-0 train_extra-1 val": {"train": 2, "train_extra": 2, "val": 1},
        "test-00000-of-00001 test_ood-00000-of-00001 train-00000-of-00001": {"test", "test_ood", "train"},
        "train_10k train_100k val": {"train_10k", "train_100k", "val"},
        "train valid_seen valid_unseen unlabeled": {"train", "valid_seen", "valid_unseen", "unlabeled"},
        "train.clean train.other val": {"train.clean", "train.other", "val"},
        "default/train/0 default/test/0 default/extra/0": {"train", "test", "extra"},
        "train/0000 test/test-0 test_ood/test-0 test_ood/test-1": {"train": 1, "test": 1, "test_ood": 2},
        # one word for a split
        "train train_extra-0 train_extra-1": {"train": 1, "train_extra": 2},
        "en-train/0 en-train/1 fr-train/0": {"en-train": 2, "fr-train": 1},
        "test_1/0 test_2/0": {"test_1": 1, "test_2": 1},
        "en-train-0 en-train-1 fr-train-0": {"en-train": 2, "fr-train": 1},
        "train-00000 more-train-00001 test-00000": {"train", "more-train", "test"},
        "trainA-0 trainA-1 trainB-0 TestSet": {"trainA": 2, "trainB": 1, "test": 1},
        # folds
        "train_fold1 val_fold1 train_fold2 val_fold2": {"train_fold1", "val_fold1", "train_fold2", "val_fold2"},
        "fold1_train fold1_val fold2_train fold2_val": {"fold1_train", "fold1_val", "fold2_train", "fold2_val"},
        "train_fold0 val_fold0": {"train", "val"},
        "split1_train split1_val split2_train": {"split1_train", "val", "split2_train"},
        # names with numbers of parts or of years only
        "mnist-train mnist-test": {"train", "test"},
        "train_part1 train_part2 val": {"train": 2, "val": 1},
        "train2017-0 train2017-1 val2017-0": {"train": 2, "val": 1},
        "train train_masks val val_masks": {"train": 2, "val": 2},  # archives of images and of their masks
    }
    for number, (names, counts) in enumerate(several.items()):
        extension = [*WRITERS][number % len(WRITERS)]
        src = fill(tmp_path / str(number), dict.fromkeys(names.split(), six[:1]), extension)
        with pytest.raises(SourceError, match=r"contains several splits .*--split folders"):
            account_of(src)
        expected = counts if isinstance(counts, dict) else dict.fromkeys(counts, 1)
        assert {split: len(source.scan().inputs) for split, source in open_splits(src).items()} == expected


@every_format
def test_parts_of_one_split_are_packed_together(tmp_path: Path, six: list[Photo], extension: str) -> None:
    for one, two in [
        ("train-0", "train-1"),
        ("training_a", "training_b"),
        ("my_dev_box", "b"),
        ("x_00_train", "x_01_train"),
        ("fold1", "fold2"),
    ]:
        assert account_of(fill(tmp_path / one, {one: six[:3], two: six[3:]}, extension)).packed == 6


def test_a_column_in_folders_is_no_split(tmp_path: Path, six: list[Photo]) -> None:
    src = fill(tmp_path / "src", {"kind=train/a": six[:3], "kind=car/b": six[3:]}, "parquet")
    assert account_of(src).packed == 6
