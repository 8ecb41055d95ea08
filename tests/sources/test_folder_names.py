"""Names of folders and archives that are parts of a dataset, not classes."""

from __future__ import annotations

import json
import tarfile
import zipfile
from pathlib import Path

import pandas as pd
import pytest
import webdataset
from sources_conformance import Photo, photos_of, stored

import wds_tools as wt
from wds_tools.errors import LabelError, OptionError, SourceError


@pytest.fixture(scope="module")
def photos() -> list[Photo]:
    return photos_of(4)


def pack(src: Path | str, dst: Path, **options: object) -> tuple[dict[str, str | None], str]:
    """Pack; return path -> class name or number, and the notes as text."""
    report = wt.pack(src, dst, images="keep", workers=1, **options)  # type: ignore[arg-type]
    classes = report.manifest.classes
    labels: dict[str, str | None] = {}
    if report.preview is not None:
        labels = {sample.path: sample.class_name for sample in report.preview.samples}
        return labels, "\n".join(report.account.notes)
    for sample in stored(dst):
        number = sample.get("cls")
        labels[json.loads(sample["json"])["path"]] = number and (classes[int(number)] if classes else number.decode())
    return labels, "\n".join(report.account.notes)


def write_archives(root: Path, files: dict[str, list[str]], photos: list[Photo], kind: str = "tar") -> Path:
    """Write archives with these members."""
    src = root / "src"
    src.mkdir(parents=True)
    (root / "1.jpg").write_bytes(photos[0].data)
    for name, members in files.items():
        (src / name).parent.mkdir(exist_ok=True)
        if kind == "tar":
            with tarfile.open(src / f"{name}.tar", "w") as archive:
                for member in members:
                    archive.add(root / "1.jpg", member)
        else:
            with zipfile.ZipFile(src / f"{name}.zip", "w") as archive:
                for member in members:
                    archive.write(root / "1.jpg", member)
    return src


def test_shards_of_webdataset_with_only_images_have_no_labels(tmp_path: Path, photos: list[Photo]) -> None:
    for shard in range(2):
        with webdataset.TarWriter(str(tmp_path / f"shard-{shard:06d}.tar")) as writer:
            for sample in range(2):
                writer.write({"__key__": f"{shard:03d}{sample:04d}", "jpg": photos[sample].data})
    labels, notes = pack(f"{tmp_path}/shard-{{000000..000001}}.tar", tmp_path / "dst")
    assert labels == dict.fromkeys(["0000000.jpg", "0000001.jpg", "0010000.jpg", "0010001.jpg"])
    assert "the archives 'shard-000000', 'shard-000001' are parts and not classes" in notes


def test_archives_whose_names_differ_only_in_numbers_are_classes_with_a_note(
    tmp_path: Path, photos: list[Photo]
) -> None:
    cases = [
        "class_0 class_1",
        "0 1 10",
        "room1 room2",
        "2CV 4CV",
        "cat-001 cat-002",
        "cat1 cat2 dog_1",
        "cat cat_2 dog",
    ]
    for names in cases:
        src = write_archives(tmp_path / names, {name: [f"{name}.jpg"] for name in names.split()}, photos)
        labels, notes = pack(src, tmp_path / names / "dst", dry_run=True)
        assert labels == {f"{name}/{name}.jpg": name for name in names.split()}
        assert "are classes, and their names differ only in numbers: if they are parts, patients or videos" in notes
    assert pack(src, tmp_path / "none", columns={"label": ""}) == (dict.fromkeys(labels), "")


@pytest.mark.parametrize(
    ("names", "classes"), [("cat/1 cat/2 dog/1", "cat cat dog"), ("all/cat all/dog all/owl", "cat dog owl")]
)
def test_archives_with_one_inner_folder_of_images_are_in_class_folders(
    tmp_path: Path, photos: list[Photo], names: str, classes: str
) -> None:
    files = {name: [f"images/{number}.jpg"] for number, name in enumerate(names.split())}
    labels = pack(write_archives(tmp_path, files, photos, "zip"), tmp_path / "dst")[0]
    assert [labels[path] for path in sorted(labels, key=lambda path: path.rpartition("/")[2])] == classes.split()


def test_archives_next_to_folders_of_archives_are_an_error(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_archives(tmp_path, {"cat/1": ["1.jpg"], "cat/2": ["2.jpg"], "dog": ["3.jpg"]}, photos, "zip")
    with pytest.raises(SourceError, match=r"the archive 'dog' next to a folder of archives, 'cat': move each archive"):
        wt.pack(src, tmp_path / "dst")
    (src / "dog").mkdir()
    (src / "dog.zip").rename(src / "dog" / "dog.zip")
    assert pack(src, tmp_path / "dst")[0] == {"cat/1.jpg": "cat", "cat/2.jpg": "cat", "dog/3.jpg": "dog"}


def test_parts_of_a_download_with_class_folders_have_no_note(tmp_path: Path, photos: list[Photo]) -> None:
    drive = "drive-download-20240101T000000Z"  # Google Drive divides a folder into several archives
    files = {f"{drive}-001": ["photos/cat/1.jpg", "photos/dog/2.jpg"], f"{drive}-002": ["photos/dog/3.jpg"]}
    labels, notes = pack(write_archives(tmp_path, files, photos, "zip"), tmp_path / "dst")
    assert (labels, notes) == ({"cat/1.jpg": "cat", "dog/2.jpg": "dog", "dog/3.jpg": "dog"}, "")


def test_numbered_archives_are_not_classes(tmp_path: Path, photos: list[Photo]) -> None:
    takeout = "takeout-20240101T000000Z"
    cases = [("00000", "00017"), ("photos_part1", "photos_part2"), ("vol01", "vol02"), ("photos", "photos (2)")]
    for names in [*cases, (f"{takeout}-001", f"{takeout}-002")]:
        src = write_archives(tmp_path / names[0], {name: [f"{name}.jpg"] for name in names}, photos, "zip")
        labels, notes = pack(src, tmp_path / names[0] / "dst", dry_run=True)
        assert set(labels.values()) == {None}
        assert "are parts and not classes" in notes


def test_archives_with_ids_of_wordnet_are_classes(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_archives(tmp_path, {name: [f"{name}_1.jpg"] for name in ("n01440764", "n01443537")}, photos)
    assert pack(src, tmp_path / "dst") == (
        {f"{name}/{name}_1.jpg": name for name in ("n01440764", "n01443537")},
        "",
    )


def test_shards_of_several_splits_are_not_classes(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_archives(tmp_path, {name: [f"{name}.jpg"] for name in ("train-0", "train-1", "val-0")}, photos)
    labels, notes = pack(f"{src}/{{train,val}}-*.tar", tmp_path / "dst")
    assert set(labels.values()) == {None}
    assert "are parts and not classes" in notes


def test_archives_with_one_inner_folder_of_images_are_classes(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_archives(tmp_path, {name: [f"images/{name}.jpg"] for name in ("cat", "dog")}, photos, "zip")
    assert pack(src, tmp_path / "dst")[0] == {f"{name}/images/{name}.jpg": name for name in ("cat", "dog")}


def test_tables_of_img2dataset_without_json_are_named(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_archives(
        tmp_path, {name: [f"{name}0000.jpg", f"{name}0001.jpg"] for name in ("00000", "00001")}, photos
    )
    for name in ("00000", "00001"):
        pd.DataFrame({"key": [f"{name}0000", f"{name}0001"], "caption": ["a cat", "a dog"]}).to_parquet(
            src / f"{name}.parquet"
        )
    with pytest.raises(SourceError, match=r"00000.parquet names 2 images in column 'key' .* --from tar"):
        wt.pack(src, tmp_path / "dst")
    assert set(pack(src, tmp_path / "dst", kind="tar")[0].values()) == {None}


@pytest.mark.parametrize(
    "names",
    [
        ("batch_1", "batch_2"),
        ("100CANON", "101CANON"),
        ("New folder", "New folder (2)"),
        ("2020", "2021"),
        ("00000", "01000"),  # FFHQ has 00000/00000.png
    ],
)
def test_numbered_folders_are_classes_with_a_note(tmp_path: Path, photos: list[Photo], names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / f"{name}.jpg").write_bytes(photos[0].data)
    labels, notes = pack(tmp_path / "src", tmp_path / "dst")
    assert set(labels.values()) == {*names}
    assert "pass --column label= (columns={'label': ''}) to pack without labels" in notes
    for kind in (None, "folder"):
        labels, notes = pack(tmp_path / "src", tmp_path / f"none-{kind}", kind=kind, columns={"label": ""})
        assert (set(labels.values()), notes) == ({None}, "")
    with pytest.raises(OptionError, match="which has no columns"):
        wt.pack(tmp_path / "src", tmp_path / "other", kind="folder", columns={"label": "species"})


def test_class_names_with_numbers_have_no_note(tmp_path: Path, photos: list[Photo]) -> None:
    for case in ["0 1 10", "n01440764 n01443537", "class1 class2", "n0 n1", "-1 -2", "v1.0 v2.0", "0000045 0000099"]:
        names = case.split()
        src = write_images(tmp_path / case, photos, *(f"{name}/1.jpg" for name in names))
        assert pack(src, tmp_path / "dst", dry_run=True) == ({f"{name}/1.jpg": name for name in names}, "")


def write_images(src: Path, photos: list[Photo], *names: str) -> Path:
    for name in names:
        (src / name).parent.mkdir(parents=True, exist_ok=True)
        (src / name).write_bytes(photos[0].data)
    return src


def test_a_split_without_labels_is_named(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_images(tmp_path / "src", photos, "train/cat/1.jpg", "train/dog/2.jpg", "val/3.jpg")
    reports = wt.pack_splits(src, tmp_path / "dst", split="folders", workers=1)
    assert reports["val"].account.notes == ["it has no labels, unlike the split 'train'"]


def test_splits_in_only_some_class_folders_are_an_error(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_images(tmp_path / "src", photos, "cat/train/1.jpg", "cat/test/2.jpg", "dog/3.jpg", "dog/4.jpg")
    with pytest.raises(SourceError, match=r"named like splits \('test', 'train'\), and images outside .* 'dog'"):
        wt.pack(src, tmp_path / "dst")


def test_another_class_in_the_json_of_an_image_is_kept_under_another_name(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_images(tmp_path / "src", photos, "cat/1.jpg")
    (src / "cat" / "1.json").write_text('{"class": "tiger"}')
    wt.pack(src, tmp_path / "dst", workers=1)
    [sample] = stored(tmp_path / "dst")
    assert json.loads(sample["json"]) == {"path": "cat/1.jpg", "class": "cat", "class_": "tiger"}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_files_that_an_archive_has_twice_are_named(kind: str, tmp_path: Path, photos: list[Photo]) -> None:
    src = write_archives(tmp_path, {"a": ["cat/1.jpg", "cat/2.jpg", "cat/1.jpg"]}, photos, kind)
    labels, notes = pack(src / f"a.{kind}", tmp_path / "dst")
    assert len(labels) == 2
    assert f"a.{kind} has 'cat/1.jpg' several times: only the last one is read" in notes


def test_a_given_class_that_looks_the_same_is_shown(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_images(tmp_path / "src", photos, "cafe\u0301/1.jpg")
    with pytest.raises(LabelError, match=r"'cafe\\u0301' and 'caf\\xe9' differ only in case, spaces or the form"):
        wt.pack(src, tmp_path / "dst", classes=["dog", "caf\u00e9"])


def test_class_folders_are_numbers_if_the_user_says_so(tmp_path: Path, photos: list[Photo]) -> None:
    for name in ("0", "2", "10"):
        (tmp_path / "src" / name).mkdir(parents=True)
        (tmp_path / "src" / name / "1.jpg").write_bytes(photos[0].data)
    labels, _ = pack(tmp_path / "src", tmp_path / "dst", label_type="number")
    assert labels == {"0/1.jpg": "0", "2/1.jpg": "2", "10/1.jpg": "10"}
    (tmp_path / "src" / "2").rename(tmp_path / "src" / "010")
    with pytest.raises(LabelError, match=r"'010', '10', the same number: rename one, .*--label-type number"):
        wt.pack(tmp_path / "src", tmp_path / "same", label_type="number")
    (tmp_path / "src" / "0").rename(tmp_path / "src" / "cat")
    with pytest.raises(LabelError, match=r"classes such as 'cat', which are names .*: omit --label-type number"):
        wt.pack(tmp_path / "src", tmp_path / "names", label_type="number")
