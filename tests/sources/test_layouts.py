"""How files of a tree are arranged: splits, classes and further fields, the same in folders, archives and URLs."""

from __future__ import annotations

import json
import tarfile
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import preloaded
import pytest
import torchvision
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sources_conformance import Photo, photos_of, stored

import wds_tools as wt
from wds_tools.errors import DestinationError, SourceError
from wds_tools.sources.file_list import further_fields
from wds_tools.sources.inputs import path_bytes
from wds_tools.sources.layouts import image_endings, is_image_name
from wds_tools.sources.local_tree import FolderTree

FOREIGN = Path(__file__).parents[1] / "foreign"


names = st.sets(
    st.builds(
        "".join,
        st.tuples(
            st.sampled_from(["", "a/", "a.b/", "b/"]),
            st.sampled_from(["1", "2", "1.mask", "a", ""]),
            st.sampled_from(["", ".jpg", ".JPG", ".png", ".mask.png", ".txt", ".jpg.json", ".cls", ".x.y", "."]),
        ),
    ),
    max_size=12,
)


@given(names)
def test_a_further_field_belongs_to_the_one_image_whose_path_it_begins_with(paths: set[str]) -> None:
    expected: dict[str, tuple[str, str]] = {}
    for path in paths:
        folder, slash, name = path.rpartition("/")
        words = name.split(".")
        for count in range(len(words) - 1, 0, -1):
            start, field = folder + slash + ".".join(words[:count]), ".".join(words[count:]).lower()
            others = [one for one in paths if one != path and is_image_name(one)]
            owners = [one for one in others if start in (one, one.rpartition(".")[0])]
            is_mask = f".{field}".endswith((".mask.png", ".mask.jpg"))
            is_field = is_mask or field.rpartition(".")[2] in ("txt", "json", "cls")
            if owners and is_field:
                expected |= {path: (owners[0], field)} if len(owners) == 1 else {}
                break
    expected = {path: found for path, found in expected.items() if found[0] not in expected}
    assert further_fields(sorted(paths), image_endings(paths)) == expected


@given(st.sets(st.binary(min_size=1, max_size=4).filter(lambda name: not set(name) & {0, 47} and name[0] != 46)))
def test_files_of_a_folder_are_listed_in_the_order_of_their_bytes(
    tmp_path_factory: pytest.TempPathFactory, parts: set[bytes]
) -> None:
    root, paths = tmp_path_factory.mktemp("tree"), []
    for number, part in enumerate(sorted(parts)):
        folder = [b"", b"a/", b"a b/", part + b"x/"][number % 4]
        (root / folder.decode("utf-8", "surrogateescape")).mkdir(exist_ok=True)
        path = folder + part + b".jpg"
        (root / path.decode("utf-8", "surrogateescape")).write_bytes(bytes(number + 1))
        paths.append((path, number + 1))
    tree = FolderTree(root)
    assert [(path_bytes(file.path), file.size) for file in tree.list()] == sorted(paths)
    assert tree.listed_again(lambda: False) == tree.checksum
    if paths:
        with (root / sorted(paths)[0][0].decode("utf-8", "surrogateescape")).open("ab") as file:
            file.write(b"more")
        assert tree.listed_again(lambda: False) != tree.checksum


@pytest.fixture(scope="module")
def photos() -> list[Photo]:
    return photos_of(6)


def write_folder(root: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = root / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root / "src"


def write_tar(root: Path, files: dict[str, bytes]) -> Path:
    folder = write_folder(root, files)
    with tarfile.open(root / "src.tar", "w") as archive:
        archive.add(folder, ".")
    return root / "src.tar"


def write_zip(root: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(root / "src.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return root / "src.zip"


def write_url(root: Path, files: dict[str, bytes]) -> str:
    for name, data in files.items():
        fsspec.filesystem("memory").pipe_file(f"/{root.name}/{name}", data)
    return f"memory://{root.name}"


CLASSES = ["cat", "cat", "cat", "dog", "dog", "dog"]  # of the photographs
TREES = pytest.mark.parametrize("write", [write_folder, write_tar, write_zip, write_url])
Write = Callable[[Path, dict[str, bytes]], Any]


def pack(src: Any, dst: Path, **options: Any) -> tuple[dict[str, dict[str, bytes]], Any]:
    """Pack; return the samples by their path, and the report."""
    report = wt.pack(src, dst, images="keep", workers=1, **options)
    return {json.loads(sample["json"])["path"]: sample for sample in stored(dst)}, report


def labels(samples: dict[str, dict[str, bytes]], report: Any) -> dict[str, str | None]:
    """Return path -> class name."""
    classes = report.manifest.classes
    return {path: classes[int(sample["cls"])] if "cls" in sample else None for path, sample in samples.items()}


SPLITS = {
    "splits above classes": "{split}/{class}/{name}.jpg",
    "classes above splits": "{class}/{split}/{name}.jpg",
    "a folder above splits": "photos/v2/{split}/{class}/{name}.jpg",
    "years": "{split}2017/{class}/{name}.jpg",
}


@TREES
@pytest.mark.parametrize("layout", SPLITS)
@pytest.mark.torture_except(
    "splits above classes-write_folder",
    "classes above splits-write_tar",
    "a folder above splits-write_zip",
    "splits above classes-write_url",
)
def test_splits_are_never_classes(write: Write, tmp_path: Path, photos: list[Photo], layout: str) -> None:
    def path(split: str, label: str, name: str) -> str:
        return SPLITS[layout].replace("{split}", split).replace("{class}", label).replace("{name}", name)

    files = {path(("train", "val")[n % 2], ("cat", "dog")[n // 3], str(n)): photos[n].data for n in range(6)}
    src = write(tmp_path, files)
    with pytest.raises(SourceError, match=r"one folder per split \(train(2017)?, val(2017)?\).*--split folders"):
        wt.pack(src, tmp_path / "dst")
    reports = wt.pack_splits(src, tmp_path / "dst", split="folders", images="keep", workers=1)
    assert [name.removesuffix("2017") for name in reports] == ["train", "val"]
    found = {}
    for name, report in reports.items():
        assert report.manifest.classes == ("cat", "dog")
        for sample in stored(tmp_path / "dst" / name):
            found[sample["jpg"]] = (name.removesuffix("2017"), int(sample["cls"]))
    assert found == {photos[n].data: (("train", "val")[n % 2], n // 3) for n in range(6)}


@TREES
def test_a_split_alone_is_not_a_class(write: Write, tmp_path: Path, photos: list[Photo]) -> None:
    src = write(tmp_path, {f"train/{label}/{n}.jpg": photos[n].data for n, label in enumerate(CLASSES)})
    samples, report = pack(src, tmp_path / "dst")
    assert labels(samples, report) == {
        f"{'cat' if n < 3 else 'dog'}/{n}.jpg": "cat" if n < 3 else "dog" for n in range(6)
    }


@TREES
def test_folders_named_like_splits_are_classes_if_the_user_says_so(
    write: Write, tmp_path: Path, photos: list[Photo]
) -> None:
    src = write(tmp_path, {f"{'train' if n < 3 else 'test'}/{n}.jpg": photos[n].data for n in range(6)})
    kind = "folder" if write in (write_folder, write_url) else write.__name__.removeprefix("write_")
    assert pack(src, tmp_path / "dst", kind=kind)[1].manifest.classes == ("test", "train")


def test_a_class_may_be_named_train_among_others(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_folder(tmp_path, {f"{name}/1.jpg": photos[0].data for name in ("bus", "car", "train")})
    assert pack(src, tmp_path / "dst")[1].manifest.classes == ("bus", "car", "train")


@pytest.mark.parametrize(
    ("above", "stray"), [("", "cover.jpg"), ("data/", "docs/fig.jpg"), ("data/", "docs/img/fig.jpg")]
)
@pytest.mark.parametrize("name", ["cat/", ""])
def test_stray_images_next_to_splits_are_skipped_and_listed(
    tmp_path: Path, photos: list[Photo], above: str, stray: str, name: str
) -> None:
    files = {f"{above}{('train', 'val')[n % 2]}/{name}{n}.jpg": photos[n % 6].data for n in range(20)}
    src = write_folder(tmp_path, {**files, stray: photos[0].data})
    reports = wt.pack_splits(src, tmp_path / "dst", split="folders", dry_run=True)
    assert [(skip.path, skip.reason) for skip in reports["train"].skipped] == [(stray, "is outside the class folders")]
    assert not reports["val"].skipped
    assert {split: report.manifest.classes for split, report in reports.items()} == dict.fromkeys(
        ("train", "val"), ("cat",) if name else ()
    )
    samples = [sample for report in reports.values() for sample in (report.preview or pytest.fail("none")).samples]
    assert {sample.problem for sample in samples} == {""}


@pytest.mark.parametrize("write", [write_folder, write_zip, write_url])  # a tar of these is read as shards of samples
def test_files_with_the_name_of_an_image_are_fields_of_it(write: Write, tmp_path: Path, photos: list[Photo]) -> None:
    mask = BytesIO()
    Image.fromarray(photos[0].pixels[..., 0] // 32).save(mask, "PNG")
    files = {
        "cat/1.jpg": photos[0].data,
        "cat/1.txt": b"a cat",
        "cat/1.json": b'{"url": "http://x/1"}',
        "cat/1.mask.png": mask.getvalue(),
        "dog/2.v2.jpg": photos[1].data,
        "dog/2.v2.jpg.txt": b"a dog",
        "dog/readme.txt": b"about dogs",
    }
    samples, report = pack(write(tmp_path, files), tmp_path / "dst")
    assert labels(samples, report) == {"cat/1.jpg": "cat", "dog/2.v2.jpg": "dog"}
    assert samples["cat/1.jpg"]["txt"] == b"a cat"
    assert samples["cat/1.jpg"]["mask.png"] == mask.getvalue()
    assert json.loads(samples["cat/1.jpg"]["json"])["url"] == "http://x/1"
    assert samples["dog/2.v2.jpg"]["txt"] == b"a dog"
    assert [skip.path for skip in report.skipped] == ["dog/readme.txt"]


def test_folders_of_a_download_are_not_classes(tmp_path: Path, photos: list[Photo]) -> None:
    """img2dataset with ``output_format="files"`` writes folders 00000, 00001 with an image, a text and a JSON file."""
    files = {}
    for number, photo in enumerate(photos):
        stem = f"{number // 3:05d}/{number:09d}"
        files |= {
            f"{stem}.jpg": photo.data,
            f"{stem}.txt": f"caption {number}".encode(),
            f"{stem}.json": json.dumps({"caption": f"caption {number}", "status": "success"}).encode(),
        }
    src = write_folder(tmp_path, {**files, "00000_stats.json": b"{}"})
    samples, report = pack(src, tmp_path / "dst")
    assert {path: sample["txt"].decode() for path, sample in samples.items()} == {
        f"{number // 3:05d}/{number:09d}.jpg": f"caption {number}" for number in range(6)
    }
    assert not report.manifest.classes
    assert all("cls" not in sample for sample in samples.values())
    assert json.loads(samples["00001/000000005.jpg"]["json"])["status"] == "success"
    assert [skip.path for skip in report.skipped] == ["00000_stats.json"]


def test_labels_in_files_next_to_images_are_used_instead_of_folders(tmp_path: Path, photos: list[Photo]) -> None:
    """webdataset's ``wds2dir`` and our ``unpack --layout shards`` write these."""
    files: dict[str, bytes] = {}
    for number, photo in enumerate(photos):
        files |= {f"shard-0/{number}.jpg": photo.data, f"shard-0/{number}.cls": str(number % 2).encode()}
    samples, _ = pack(write_folder(tmp_path, files), tmp_path / "dst")
    assert {path: int(sample["cls"]) for path, sample in samples.items()} == {
        f"shard-0/{n}.jpg": n % 2 for n in range(6)
    }


@pytest.mark.parametrize("layout", ["paths", "keys", "shards"])
def test_what_unpack_writes_is_packed_again_as_it_was(tmp_path: Path, photos: list[Photo], layout: Any) -> None:
    mask = np.eye(48, dtype=np.uint8)
    (tmp_path / "a").mkdir()
    with wt.ShardWriter(str(tmp_path / "a" / "shard-%06d.tar")) as writer:
        for number, photo in enumerate(photos):
            sample = {"__key__": f"k{number}", "jpg": photo.data, "cls": number % 3, "txt": f"photo {number}"}
            writer.write({**sample, "mask.png": mask})
    wt.unpack(tmp_path / "a", tmp_path / "files", layout=layout)
    samples, report = pack(tmp_path / "files", tmp_path / "b")
    assert not report.skipped
    assert {sample["jpg"]: (sample["cls"], sample["txt"], sample["mask.png"]) for sample in samples.values()} == {
        sample["jpg"]: (sample["cls"], sample["txt"], sample["mask.png"]) for sample in stored(tmp_path / "a")
    }


@TREES
@pytest.mark.parametrize("extension", ["bmp", "ppm", "pgm"])
@pytest.mark.torture_except("bmp-write_folder", "ppm-write_tar", "pgm-write_zip", "pgm-write_url")
def test_images_that_only_pillow_reads_become_png_and_classes_are_those_of_imagefolder(
    write: Write, tmp_path: Path, photos: list[Photo], extension: str
) -> None:
    mode = "L" if extension == "pgm" else "RGB"
    expected = [Image.fromarray(photo.pixels).convert(mode) for photo in photos[:2]]
    folder = tmp_path / "images"
    for name, image in zip(("ant", "bee"), expected, strict=True):
        (folder / name).mkdir(parents=True)
        image.save(folder / name / f"1.{extension}")
    (folder / "cat").mkdir()
    (folder / "cat" / "1.jpg").write_bytes(photos[2].data)
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*")}
    samples, report = pack(write(tmp_path, files), tmp_path / "dst")
    assert list(report.manifest.classes) == torchvision.datasets.ImageFolder(str(folder)).classes
    for name, image in zip(("ant", "bee"), expected, strict=True):
        with Image.open(BytesIO(samples[f"{name}/1.{extension}"]["png"])) as found:
            np.testing.assert_array_equal(np.asarray(found), np.asarray(image))


def test_a_ppm_of_16_bits_is_skipped_as_a_tiff_is(tmp_path: Path, photos: list[Photo]) -> None:
    deep = b"P6 2 1 65535\n" + bytes(range(12))
    shallow = b"P6 2 1 255\n" + bytes(range(6))
    src = write_folder(tmp_path, {"cat/1.ppm": deep, "cat/2.jpg": photos[0].data, "cat/3.ppm": shallow})
    samples, report = pack(src, tmp_path / "dst")
    assert list(samples) == ["cat/2.jpg", "cat/3.ppm"]
    assert [(skip.path, skip.reason.partition(",")[0]) for skip in report.skipped] == [
        ("cat/1.ppm", "is a PPM with 16 bits per colour")
    ]


def test_a_bitmap_that_is_damaged_is_skipped(tmp_path: Path, photos: list[Photo]) -> None:
    Image.fromarray(photos[0].pixels).save(tmp_path / "a.bmp")
    data = (tmp_path / "a.bmp").read_bytes()
    src = write_folder(tmp_path, {"cat/1.bmp": data[: len(data) // 2], "cat/2.bmp": data, "cat/3.bmp": b"BM"})
    samples, report = pack(src, tmp_path / "dst")
    assert list(samples) == ["cat/2.bmp"]
    assert [skip.path for skip in report.skipped] == ["cat/1.bmp", "cat/3.bmp"]


def test_names_in_a_zip_that_unix_wrote_are_utf8(tmp_path: Path) -> None:
    samples, report = pack(FOREIGN / "zip" / "infozip.zip", tmp_path / "dst")
    assert report.manifest.classes == ("Bär", "日本")
    assert sorted(samples) == ["Bär/größe 1.jpg", "日本/写真.jpg"]


def test_hard_links_in_a_tar_of_gnu_tar_are_read(tmp_path: Path) -> None:
    samples, report = pack(FOREIGN / "tar" / "hardlinks.tar", tmp_path / "dst")
    assert labels(samples, report) == {"cat/1.jpg": "cat", "dog/2.jpg": "dog"}
    assert samples["cat/1.jpg"]["jpg"] == samples["dog/2.jpg"]["jpg"]
    assert not report.skipped


def test_splits_in_a_source_of_another_kind_are_found_by_folder(tmp_path: Path, photos: list[Photo]) -> None:
    for split, rows in (("train", photos[:4]), ("test", photos[4:])):
        (tmp_path / "src" / split).mkdir(parents=True)
        table = {"image": [photo.data for photo in rows], "label": [photo.label for photo in rows]}
        pd.DataFrame(table).to_parquet(tmp_path / "src" / split / "0.parquet")
    reports = wt.pack_splits(tmp_path / "src", tmp_path / "dst", split="folders", workers=1)
    assert {name: report.packed for name, report in reports.items()} == {"test": 2, "train": 4}


def test_help_of_an_archive_of_splits_from_the_command_line(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_zip(tmp_path, {f"{split}/cat/1.jpg": photos[0].data for split in ("train", "val")})
    done = preloaded.command("pack", src, tmp_path / "dst", "--split", "folders")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "dst" / "train" / "manifest.json").is_file()


def test_a_folder_with_the_name_of_a_role_is_not_a_class(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_folder(
        tmp_path, {"images/1.jpg": photos[0].data, "images/2.jpg": photos[1].data, "a.jpg": photos[2].data}
    )
    samples, report = pack(src, tmp_path / "dst")
    assert not report.manifest.classes
    assert sorted(samples) == ["a.jpg", "images/1.jpg", "images/2.jpg"]
    assert any("'images'" in note for note in report.account.notes)
    same = write_folder(tmp_path / "same", {"src/1.jpg": photos[0].data})
    [note] = wt.pack(same, tmp_path / "dst-same", dry_run=True).account.notes
    assert note.startswith("the folder 'src' of all images is not read as a class")
    assert pack(src, tmp_path / "given", kind="folder")[1].manifest.classes == ("images",)


def test_role_folders_in_classes_and_in_a_split_without_labels(tmp_path: Path, photos: list[Photo]) -> None:
    """As Tiny ImageNet is distributed."""
    files = {f"train/{label}/images/{n}.JPEG": photos[n].data for n, label in enumerate(CLASSES)}
    src = write_folder(tmp_path, {**files, "val/images/9.JPEG": photos[0].data})
    reports = wt.pack_splits(src, tmp_path / "dst", split="folders", images="keep", workers=1)
    assert reports["train"].manifest.classes == ("cat", "dog")
    assert reports["val"].manifest.classes == ()
    assert [int(sample["cls"]) for sample in sorted(stored(tmp_path / "dst" / "train"), key=lambda s: s["json"])] == (
        [0, 0, 0, 1, 1, 1]
    )


@pytest.mark.parametrize("upper", [("fold1", "fold2"), ("2021", "2022")])
def test_the_same_folders_in_several_folders_are_an_error(
    tmp_path: Path, photos: list[Photo], upper: tuple[str, ...]
) -> None:
    src = write_folder(tmp_path, {f"{one}/{name}/1.jpg": photos[0].data for one in upper for name in ("cat", "dog")})
    with pytest.raises(SourceError, match=r"contain the same folders \('cat', 'dog'\): pack one of them"):
        wt.pack(src, tmp_path / "dst")


@pytest.mark.parametrize(
    ("upper", "lower", "shown"),
    [
        (("amazon", "dslr"), ("images/bag", "images/bike"), "'images/bag', 'images/bike'"),  # Office-31
        (("s1", "s2"), ("left/fist", "left/palm", "right/fist"), "'left', 'right'"),
    ],
)
def test_the_same_folders_further_below_are_an_error(
    tmp_path: Path, photos: list[Photo], upper: tuple[str, ...], lower: tuple[str, ...], shown: str
) -> None:
    src = write_folder(tmp_path, {f"{one}/{name}/1.jpg": photos[0].data for one in upper for name in lower})
    with pytest.raises(SourceError, match=rf"contain the same folders \({shown}\): pack one of them"):
        wt.pack(src, tmp_path / "dst")
    assert wt.pack(src, tmp_path / "dst", kind="folder", dry_run=True).manifest.classes == upper


def test_folders_named_by_the_first_letter_of_those_in_them_are_not_classes(
    tmp_path: Path, photos: list[Photo]
) -> None:
    """Places365 and SUN397."""
    paths = ["a/abbey/1.jpg", "a/alley/1.jpg", "b/bakery/kitchen/1.jpg"]
    src = write_folder(tmp_path, dict.fromkeys(paths, photos[0].data))
    with pytest.raises(SourceError, match=r"such as a/abbey \(Places365, SUN397\): move the inner folders"):
        wt.pack(src, tmp_path / "dst")
    assert wt.pack(src, tmp_path / "dst", kind="folder", dry_run=True).manifest.classes == ("a", "b")


def test_words_with_which_names_begin_are_named_if_there_are_no_labels(tmp_path: Path, photos: list[Photo]) -> None:
    names = {
        "'cat', 'dog'": ["cat.0.jpg", "cat.1.jpg", "dog.2.jpg", "dog.3.jpg"],
        "'n01440764', 'n01443537'": ["n01440764_18.jpg", "n01440764_2.jpg", "n01443537_2.jpg", "n01443537_7.jpg"],
        "": ["IMG_0001.jpg", "IMG_0002.jpg", "IMG_0003.jpg"],
    }
    for number, (words, paths) in enumerate(names.items()):
        src = write_folder(tmp_path / str(number), dict.fromkeys(paths, photos[0].data))
        notes = wt.pack(src, tmp_path / "dst", dry_run=True).account.notes
        assert [note for note in notes if f"names begin with {words}: if these are classes" in note] == notes
        assert len(notes) == bool(words)


def test_folders_in_class_folders_are_named(tmp_path: Path, photos: list[Photo]) -> None:
    data = photos[0].data
    src = write_folder(tmp_path, dict.fromkeys(["cat/lion/1.jpg", "cat/puma/1.jpg", "owl/barn/1.jpg"], data))
    report = wt.pack(src, tmp_path / "dst", dry_run=True)
    assert report.manifest.classes == ("cat", "owl") == tuple(torchvision.datasets.ImageFolder(src).classes)
    assert report.account.notes == ["the first folder is the class: folders in it, such as 'cat/lion', are not classes"]


@pytest.mark.parametrize(
    "names", [("trainA", "trainB", "testA", "testB"), ("train_cat", "train_dog", "val_cat", "val_dog")]
)
def test_a_split_and_a_class_in_one_name_are_an_error(
    tmp_path: Path, photos: list[Photo], names: tuple[str, ...]
) -> None:
    """CycleGAN's datasets have trainA and testA."""
    src = write_folder(tmp_path, {f"{name}/1.jpg": photos[0].data for name in names})
    with pytest.raises(SourceError, match="has folders named like splits and classes"):
        wt.pack(src, tmp_path / "dst")
    assert wt.pack(src, tmp_path / "dst", kind="folder", dry_run=True).manifest.classes == tuple(sorted(names))


@pytest.mark.parametrize(
    "names",
    [
        ("trainA", "trainB", "testA", "other"),
        ("test_tube", "training_shoe", "cup"),
        ("training_fake", "training_real"),
        ("train_sd", "val_hd"),
    ],
)
def test_other_names_that_begin_with_a_split_are_classes(
    tmp_path: Path, photos: list[Photo], names: tuple[str, ...]
) -> None:
    """A note says so if all names have the word for a split, and not all the same."""
    src = write_folder(tmp_path, {f"{name}/1.jpg": photos[0].data for name in names})
    report = wt.pack(src, tmp_path / "dst", dry_run=True)
    assert report.manifest.classes == tuple(sorted(names))
    assert any("are named like splits: " in note for note in report.account.notes) == (names == ("train_sd", "val_hd"))


def test_labels_in_json_next_to_images_are_named_and_can_be_taken_later(tmp_path: Path, photos: list[Photo]) -> None:
    names = ["cat", "dog", "cat"]
    files = {f"{row}.json": json.dumps({"label": name, "iso": row}).encode() for row, name in enumerate(names)}
    src = write_folder(tmp_path, {**files, **{f"{row}.jpg": photos[row].data for row in range(3)}})
    report = wt.pack(src, tmp_path / "dst", images="keep", workers=1)
    [note] = report.account.notes
    assert "without labels; --label json:label could be the label" in note
    wt.pack(tmp_path / "dst", tmp_path / "again", columns={"label": "json:label"}, images="keep", workers=1)
    found = {json.loads(one["json"])["iso"]: int(one["cls"]) for one in stored(tmp_path / "again")}
    assert found == {0: 0, 1: 1, 2: 0}


PARTS = {
    "the same folders": ("train/cat/1.jpg", "train/dog/2.jpg", "extra/cat/3.jpg"),
    "STL-10": ("train_images/cat/1.jpg", "train_images/dog/2.jpg", "unlabeled_images/3.jpg"),
    "labeled": ("labeled/cat/1.jpg", "labeled/dog/2.jpg", "unlabeled/3.jpg"),
    "Omniglot": (
        "images_background/A/x/1.jpg",
        "images_background/B/x/1.jpg",
        "images_evaluation/C/x/2.jpg",
        "images_evaluation/D/x/2.jpg",
    ),
    "Market-1501": ("bounding_box_train/2.jpg", "gallery/1.jpg", "query/1.jpg"),
    "with a test": ("bounding_box_test/2.jpg", "bounding_box_train/2.jpg", "query/1.jpg"),
    "in a folder": ("photos/train/cat/1.jpg", "photos/train/dog/2.jpg", "photos/more/3.jpg"),
    "two splits": ("train/cat/1.jpg", "val/cat/1.jpg", "extra/cat/1.jpg"),
    "MNIST": ("t10k/1.jpg", "train/2.jpg"),
    "further words": ("minival/1.jpg", "train_50k/2.jpg", "test_public/3.jpg", "hold-out/4.jpg", "validate/5.jpg"),
}
"""Trees of which each folder, or each in ``photos``, is a part of a dataset."""


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_dataset_are_a_dataset_each(name: str, tmp_path: Path, photos: list[Photo]) -> None:
    src = write_folder(tmp_path, dict.fromkeys(PARTS[name], photos[0].data))
    above = src / "photos" if name == "in a folder" else src
    remedy = rf"one of them, such as {above}/\w+, or pa.* --from folder .* classes"
    with pytest.raises(SourceError, match=rf"one folder per split .* --split folders .*, pack {remedy}") as e:
        wt.pack(src, tmp_path / "dst")
    assert (f"pack {above} with --from" in str(e.value)) == (above != src)
    reports = wt.pack_splits(src, tmp_path / "dst", split="folders", dry_run=True)
    assert {*reports} == {path.name for path in above.iterdir()}
    assert sum(report.account.packed for report in reports.values()) == len(PARTS[name])
    for part, report in reports.items():
        labelled = {path.name for path in (above / part).iterdir() if path.is_dir()}
        assert {sample.class_name for sample in report.preview.samples} == (labelled or {None})
    classes = wt.pack(above, tmp_path / "all", kind="folder", dry_run=True).manifest.classes
    assert classes == tuple(sorted(path.name for path in above.iterdir()))


def test_a_class_named_like_a_split_next_to_others_is_a_class(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_folder(tmp_path, dict.fromkeys(["train/1.jpg", "car/2.jpg", "background/3.jpg"], photos[0].data))
    assert wt.pack(src, tmp_path / "dst", dry_run=True).manifest.classes == ("background", "car", "train")


@pytest.mark.parametrize("name", ["test", "Validation", "unlabeled_images"])
@pytest.mark.parametrize("above", ["", "photos/"])
def test_a_flat_folder_named_like_a_test_set_next_to_others_is_not_a_class_without_asking(
    name: str, above: str, tmp_path: Path, photos: list[Photo]
) -> None:
    folders = ["cat", "dog", name]
    src = write_folder(tmp_path, {f"{above}{folder}/1.jpg": photos[0].data for folder in folders})
    with pytest.raises(SourceError, match=rf"'{name}', which is named like a part .* next to .* 'cat'.* --from folder"):
        wt.pack(src, tmp_path / "dst", dry_run=True)
    report = wt.pack(src / above, tmp_path / "dst", kind="folder", dry_run=True)
    assert report.manifest.classes == tuple(sorted(folders))


def test_class_folders_in_a_split_next_to_its_table_are_asked_for(tmp_path: Path, photos: list[Photo]) -> None:
    """Kaggle's paddy doctor has test_images/ too."""
    names = [f"train_images/{name}/{number}.jpg" for number, name in enumerate(["blast", "blight"])]
    src = write_folder(tmp_path, dict.fromkeys([*names, "test_images/9.jpg"], photos[0].data))
    (src / "train.csv").write_text("image_id,label\n0.jpg,blast\n1.jpg,blight\n")
    with pytest.raises(SourceError, match=r"--split folders --from folder .*, or --from table"):
        wt.pack(src, tmp_path / "dst")
    with pytest.raises(
        SourceError, match=r"one folder per split .*: pack with --split folders .* --from folder .* or pack"
    ):
        wt.pack(src, tmp_path / "dst", kind="folder")
    reports = wt.pack_splits(src, tmp_path / "dst", split="folders", kind="folder", dry_run=True)
    assert {name: one.manifest.classes for name, one in reports.items()} == {
        "test_images": (),
        "train_images": ("blast", "blight"),
    }


def test_splits_with_a_word_before_them_and_a_folder_of_the_same_name(tmp_path: Path, photos: list[Photo]) -> None:
    files = {f"seg_{split}/seg_{split}/{name}/1.jpg": photos[0].data for split in ("train", "test") for name in "ab"}
    reports = wt.pack_splits(write_folder(tmp_path, files), tmp_path / "dst", split="folders", workers=1)
    assert {name: report.manifest.classes for name, report in reports.items()} == {
        "seg_test": ("a", "b"),
        "seg_train": ("a", "b"),
    }


@pytest.mark.parametrize("extension", ["txt", "json"])
def test_captions_in_a_flat_folder_are_fields(tmp_path: Path, photos: list[Photo], extension: str) -> None:
    data = b'{"caption": "a"}'
    samples, report = pack(write_folder(tmp_path, {"1.jpg": photos[0].data, f"1.{extension}": data}), tmp_path / "dst")
    assert not report.skipped
    assert samples["1.jpg"].get("txt", data) == data


def test_class_folders_next_to_files_of_labels_are_an_error(tmp_path: Path, photos: list[Photo]) -> None:
    files = {"a/1.jpg": photos[0].data, "b/1.jpg": photos[1].data, "a/1.cls": b"9"}
    src = write_folder(tmp_path, files)
    with pytest.raises(SourceError, match=r"class folders \('a', 'b'\) and files of labels, such as 'a/1.cls'"):
        wt.pack(src, tmp_path / "dst")
    assert labels(*pack(src, tmp_path / "given", kind="folder")) == {"a/1.jpg": "a", "b/1.jpg": "b"}


def test_several_zips_without_folders_are_one_class_each(tmp_path: Path, photos: list[Photo]) -> None:
    (tmp_path / "src").mkdir()
    for name, photo in zip(("cat", "dog"), photos, strict=False):
        with zipfile.ZipFile(tmp_path / "src" / f"{name}.zip", "w") as archive:
            archive.writestr("1.jpg", photo.data)
    assert labels(*pack(tmp_path / "src", tmp_path / "dst")) == {"cat/1.jpg": "cat", "dog/1.jpg": "dog"}


@TREES
def test_hidden_folders_and_paths_out_of_an_archive_are_in_the_account(
    write: Write, tmp_path: Path, photos: list[Photo]
) -> None:
    files = {"cat/1.jpg": photos[0].data, ".cache/2.jpg": photos[1].data, "cat/.3.jpg": photos[2].data}
    _, report = pack(write(tmp_path, files), tmp_path / "dst")
    assert [part.name for part in report.account.parts if not part.role] == [".cache", "cat/.3.jpg"]
    if write is write_zip:
        _, report = pack(write_zip(tmp_path, {**files, "../dog/1.jpg": photos[3].data}), tmp_path / "out")
        assert [(skip.path, skip.reason) for skip in report.skipped] == [
            ("../dog/1.jpg", "has a path that leads out of the archive")
        ]


def test_a_changed_caption_is_another_dataset(tmp_path: Path, photos: list[Photo]) -> None:
    src = write_folder(tmp_path, {"cat/1.jpg": photos[0].data, "cat/1.txt": b"a cat"})
    pack(src, tmp_path / "dst")
    (src / "cat" / "1.txt").write_bytes(b"a cat!")
    with pytest.raises(DestinationError, match="holds another dataset"):
        pack(src, tmp_path / "dst")


def test_a_pattern_that_mixes_splits_is_an_error_unless_it_names_them(tmp_path: Path, photos: list[Photo]) -> None:
    (tmp_path := tmp_path / "VOCtrainval_11-May-2012").mkdir()
    for split in ("Train", "val"):
        with tarfile.open(tmp_path / f"{split}-0.tar", "w") as archive:
            (tmp_path / "1.jpg").write_bytes(photos[0].data)
            archive.add(tmp_path / "1.jpg", f"{split}/1.jpg")
    with pytest.raises(SourceError, match=r"several splits \(train, val\).*'.*\*\{Train,val\}\*' packs them together"):
        wt.pack(f"{tmp_path}/*.tar", tmp_path / "dst", kind="tar")
    assert wt.pack(f"{tmp_path}/*{{Train,val}}*", tmp_path / "dst", kind="tar").packed == 2


@TREES
def test_files_that_systems_add_are_left_out_and_in_the_account(
    tmp_path: Path, photos: list[Photo], write: Write
) -> None:
    files = {
        f"{name}/{number}.jpg": data
        for number, (name, data) in enumerate(zip(CLASSES, (photo.data for photo in photos), strict=True))
    }
    added = {
        "cat/@eaDir/0.jpg/SYNOPHOTO_THUMB_M.jpg": photos[5].data,
        "@eaDir/0.jpg": photos[5].data,
        "__MACOSX/cat/._0.jpg": b"resource fork",
        "cat/.DS_Store": b"folder",
        "dog/.DS_Store": b"folder",
    }
    samples, report = pack(write(tmp_path, {**files, **added}), tmp_path / "d")
    assert set(samples) == set(files)
    assert labels(samples, report) == {path: path.partition("/")[0] for path in files}
    left_out = {part.name: part.reason for part in report.manifest.account.parts if part.reason}
    assert left_out == {
        "cat/@eaDir": "Synology keeps thumbnails in it",
        "@eaDir": "Synology keeps thumbnails in it",
        "__MACOSX": "macOS adds it to archives",
        ".DS_Store": "its name starts with a dot",
    }
