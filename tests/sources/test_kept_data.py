"""What sources must keep: labels, other features and every image, or say that they do not."""

from __future__ import annotations

import io
import json
import struct
import tarfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from folders import write_tar
from sources_conformance import Photo, photos_of, stored
from tfrecords import frame, message, varint

import wds_tools as wt
from wds_tools.errors import SourceError
from wds_tools.format.image_header import encode_png
from wds_tools.sources.detect import open_source

LABELS = [5, 4, 3, 2, 1, 0]


@pytest.fixture(scope="module")
def six() -> list[Photo]:
    return photos_of(6)


@pytest.fixture(scope="module")
def pixels(six: list[Photo]) -> np.ndarray:
    return np.stack([photo.pixels for photo in six])


def pack(src: Path, **options: Any) -> tuple[list[tuple[dict[str, bytes], dict[str, Any]]], Any]:
    """Pack in the order of the source; return (fields, entries of the json field) of each sample, and the report."""
    dst = src.with_name(f"{src.name}-packed")
    report = wt.pack(src, dst, images="keep", workers=1, shuffle=False, **options)
    return [(sample, json.loads(sample["json"])) for sample in stored(dst)], report


def labels_of(src: Path) -> list[int]:
    return [int(sample["cls"]) for sample, _ in pack(src)[0]]


# TFRecord


def records(path: Path, *examples: dict[str, Any]) -> Path:
    """Write examples whose features are bytes, integers, or lists of them."""
    data = b""
    for features in examples:
        entries = b""
        for name, value in features.items():
            values = value if isinstance(value, list) else [value]
            if isinstance(values[0], bytes):
                feature = message(1, b"".join(message(1, one) for one in values))
            elif isinstance(values[0], float):
                feature = message(2, message(1, struct.pack(f"<{len(values)}f", *values)))
            else:
                feature = message(3, message(1, b"".join(map(varint, values))))
            entries += message(1, message(1, name.encode()) + message(2, feature))
        data += frame(message(1, entries))
    path.write_bytes(data)
    return path


def test_several_labels_of_an_example_are_a_field(tmp_path: Path, six: list[Photo]) -> None:
    examples = [{"image/encoded": six[n].data, "image/class/label": [n, n + 1]} for n in range(2)]
    path = records(tmp_path / "a.tfrecord", *examples)
    samples, _ = pack(path)
    assert [json.loads(fields["labels.json"]) for fields, _ in samples] == [[0, 1], [1, 2]]


def test_another_feature_is_not_the_label_of_an_example_that_lacks_it(tmp_path: Path, six: list[Photo]) -> None:
    examples = [
        {"image": six[0].data, "target": 8},
        {"image": six[1].data, "label": 3, "target": 9},
    ]
    path = records(tmp_path / "a.tfrecord", *examples)
    with pytest.raises(SourceError, match=r"2 features that could be the label: 'label' \(3\), 'target' \(8, 9\)"):
        pack(path)
    samples, report = pack(path, columns={"label": "label"})
    assert [(sample["cls"], facts["target"]) for sample, facts in samples] == [(b"3", 9)]
    assert [(skip.path, skip.reason) for skip in report.skipped] == [("a.tfrecord#0", "has no label")]


def test_long_texts_and_further_images_of_an_example_are_kept(tmp_path: Path, six: list[Photo]) -> None:
    mask = encode_png(np.arange(64, dtype=np.uint8).reshape(8, 8))
    features = {
        "image/encoded": six[0].data,
        "image/class/label": 1,
        "caption": b"long " * 2000,
        "mask.png": mask,
        "image/segmentation/class/encoded": mask,
        "raw": bytes(5000),
    }
    [(sample, facts)], _ = pack(records(tmp_path / "a.tfrecord", features))
    assert facts == {"path": "a.tfrecord#0"}
    assert sample["txt"] == b"long " * 2000
    assert sample["mask.png"] == sample["image_segmentation_class_encoded.png"] == mask
    assert sample["jpg"] == six[0].data


# Arrays and tensors


def test_labels_that_are_not_one_per_image_are_an_error(tmp_path: Path, pixels: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", images=pixels, labels=np.arange(5))
    with pytest.raises(SourceError, match=r"has 5 labels in 'labels', but 6 images in 'images'; allowed is one"):
        wt.pack(tmp_path / "a.npz", tmp_path / "dst")
    np.savez(tmp_path / "b.npz", images=pixels, labels=LABELS, ids=np.arange(5))
    assert labels_of(tmp_path / "b.npz") == LABELS


def test_arrays_of_one_name_are_an_error_and_times_are_kept(tmp_path: Path, pixels: np.ndarray) -> None:
    days = np.array(["2020-01-02", "NaT"] * 3, "M8[D]")
    np.savez(tmp_path / "a.npz", images=pixels, labels=LABELS, day=days)
    assert [facts["day"] for _, facts in pack(tmp_path / "a.npz")[0]] == ["2020-01-02", None] * 3
    np.savez(tmp_path / "b.npz", images=pixels, labels=LABELS, Day=days, day=days)
    with pytest.raises(SourceError, match=r"would be packed as 'day': rename one of 'Day' and 'day'"):
        wt.pack(tmp_path / "b.npz", tmp_path / "dst")


def test_labels_of_tensors_may_be_a_list(tmp_path: Path, pixels: np.ndarray) -> None:
    images = torch.from_numpy(pixels)
    for is_zip in (True, False):  # the latter before torch 1.6
        torch.save((images, LABELS), tmp_path / f"{is_zip}.pt", _use_new_zipfile_serialization=is_zip)
        assert labels_of(tmp_path / f"{is_zip}.pt") == LABELS
    torch.save({"images": images, "labels": list("baabba")}, tmp_path / "names.pt")
    samples, report = pack(tmp_path / "names.pt")
    assert report.manifest.classes == ("a", "b")
    assert [facts["class"] for _, facts in samples] == list("baabba")


def test_other_values_beside_tensors_are_kept(tmp_path: Path, pixels: np.ndarray) -> None:
    vectors = torch.arange(12).reshape(6, 2).bfloat16()
    values = {"images": torch.from_numpy(pixels), "labels": LABELS, "vector": vectors, "name": list("uvwxyz")}
    torch.save({**values, "classes": [f"class {number}" for number in range(6)]}, tmp_path / "a.pt")
    samples, report = pack(tmp_path / "a.pt")
    assert report.manifest.classes[5] == "class 5"
    assert [facts["name"] for _, facts in samples] == list("uvwxyz")
    assert [np.load(io.BytesIO(sample["vector.npy"])).tolist() for sample, _ in samples] == vectors.tolist()


def test_a_list_of_more_than_images_and_labels_is_an_error(tmp_path: Path, pixels: np.ndarray) -> None:
    images, labels = torch.from_numpy(pixels), torch.tensor(LABELS)
    torch.save((images, labels, labels), tmp_path / "a.pt")
    with pytest.raises(SourceError, match=r"contains a tuple of 3 values; allowed are images alone, \(images, "):
        wt.pack(tmp_path / "a.pt", tmp_path / "dst")


# Archives


def test_of_members_with_one_name_the_last_is_packed_as_it_is_unpacked(tmp_path: Path, six: list[Photo]) -> None:
    members = [("cat/1.jpg", six[0]), ("dog/2.jpg", six[1]), ("cat/1.jpg", six[2])]
    write_tar(tmp_path / "a.tar", [(name, photo.data) for name, photo in members])
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a name that occurs twice
        for name, photo in members:
            archive.writestr(name, photo.data)
    for source in (tmp_path / "a.tar", tmp_path / "a.zip"):
        assert [sample["jpg"] for sample, _ in pack(source)[0]] == [six[2].data, six[1].data]


def test_a_hard_link_in_a_tar_has_the_content_of_its_target_and_other_links_are_skipped(
    tmp_path: Path, six: list[Photo]
) -> None:
    folder = tmp_path / "photos" / "cat"
    folder.mkdir(parents=True)
    (folder / "1.jpg").write_bytes(six[0].data)
    (folder / "2.jpg").hardlink_to(folder / "1.jpg")
    (folder / "3.jpg").symlink_to("1.jpg")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(folder, "cat")
    samples, report = pack(tmp_path / "a.tar", kind="tar")
    assert [sample["jpg"] for sample, _ in samples] == [six[0].data] * 2
    [skip] = report.skipped
    assert skip.path == "cat/3.jpg"
    assert "is a link and has no content" in skip.reason


def test_folders_in_a_zip_of_windows_may_have_backslashes(tmp_path: Path, six: list[Photo]) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, data in (("dog\\", b""), ("dog\\1.jpg", six[0].data), ("cat\\2.jpg", six[1].data)):
            info = zipfile.ZipInfo(name)
            info.create_system = 0
            archive.writestr(info, data)
    samples, report = pack(tmp_path / "a.zip")
    assert report.manifest.classes == ("cat", "dog")
    assert not report.skipped
    assert [(sample["cls"], sample["jpg"]) for sample, _ in samples] == [(b"0", six[1].data), (b"1", six[0].data)]


@pytest.mark.parametrize(("kind", "encoding", "name"), [("zip", "gbk", "猫咪"), ("tar", "latin-1", "Käse")])
def test_names_in_an_archive_that_are_not_utf_8_are_an_error(
    tmp_path: Path, six: list[Photo], kind: str, encoding: str, name: str
) -> None:
    src, encoded = tmp_path / f"a.{kind}", name.encode(encoding)
    stand_in = "x" * len(encoded)  # Python marks names in zip archives as UTF-8, so that others are put in their place
    if kind == "tar":
        (tmp_path / "1.jpg").write_bytes(six[0].data)
        with tarfile.open(src, "w", format=tarfile.GNU_FORMAT, encoding=encoding) as archive:
            archive.add(tmp_path / "1.jpg", f"{name}/1.jpg")
    else:
        with zipfile.ZipFile(src, "w") as zipped:
            zipped.writestr(f"{stand_in}/1.jpg", six[0].data)
        src.write_bytes(src.read_bytes().replace(stand_in.encode(), encoded))
    with pytest.raises(
        SourceError, match=r"names that are not UTF-8, such as b'.*/1.jpg': unpack it .* `unzip -O gbk`"
    ):
        pack(src)


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_backslashes_are_separators_in_an_archive_without_slashes(tmp_path: Path, six: list[Photo], kind: str) -> None:
    members = [("data\\dog\\1.jpg", six[0]), ("data\\cat\\2.jpg", six[1]), ("data\\..\\3.jpg", six[2])]
    if kind == "tar":
        write_tar(tmp_path / "a.tar", [(name, photo.data) for name, photo in members])
    else:
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            for name, photo in members:
                archive.writestr(name, photo.data)
    samples, report = pack(tmp_path / f"a.{kind}")
    assert report.manifest.classes == ("cat", "dog")
    assert [(sample["cls"], sample["jpg"]) for sample, _ in samples] == [(b"0", six[1].data), (b"1", six[0].data)]
    assert [skip.reason for skip in report.skipped] == ["has a path that leads out of the archive"]


def test_backslashes_in_a_zip_with_other_slashes_are_separators_and_noted(tmp_path: Path, six: list[Photo]) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name, photo in zip(["a\\b/1.jpg", "a\\b\\2.jpg", "c/d/3.jpg"], six, strict=False):
            archive.writestr(name, photo.data)
    samples, report = pack(tmp_path / "a.zip")
    assert report.manifest.classes == ("a", "c")
    assert [sample["cls"] for sample, _ in samples] == [b"0", b"0", b"1"]
    assert any("backslashes in names such as 'a\\\\b/1.jpg' of a.zip" in note for note in report.account.notes)
    with zipfile.ZipFile(tmp_path / "a.zip", "a") as archive:
        archive.writestr("c\\d/3.jpg", six[0].data)
    with pytest.raises(SourceError, match=r"a.zip has .*'c/d/3.jpg', which are one path"):
        pack(tmp_path / "a.zip")


def test_parquet_files_in_folders_without_a_label_name_the_folders(tmp_path: Path, six: list[Photo]) -> None:
    src = tmp_path / "src"
    for name in ("cat", "dog"):
        (src / name).mkdir(parents=True)
        pq.write_table(pa.table({"image": [photo.data for photo in six]}), src / name / "p.parquet")
    [note] = (note for note in pack(src)[1].account.notes if "in the folders" in note)
    assert note.startswith("no label: the files are in the folders 'cat', 'dog'; if these are the classes, move the")
    for name in ("cat", "dog"):
        (src / name).rename(src / f"label={name}")
    assert wt.pack(src, tmp_path / "renamed", workers=1).manifest.classes == ("cat", "dog")


def test_two_configurations_in_folders_are_not_packed_together(tmp_path: Path, six: list[Photo]) -> None:
    for name in ("coarse", "fine"):
        (tmp_path / "src" / name).mkdir(parents=True)
        path = tmp_path / "src" / name / "train-00000-of-00001.parquet"
        pq.write_table(pa.table({"image": [photo.data for photo in six]}), path)
    with pytest.raises(
        SourceError, match=r"'train-00000-of-00001.parquet' in the folders 'coarse' and 'fine', so they"
    ):
        pack(tmp_path / "src")


def test_a_column_that_contradicts_the_folder_of_its_file_is_an_error(tmp_path: Path, six: list[Photo]) -> None:
    (tmp_path / "src" / "id=7").mkdir(parents=True)
    for own in ([7] * 6, [7] * 5 + [8]):
        rows = {"image": [photo.data for photo in six], "id": own}
        pq.write_table(pa.table(rows), tmp_path / "src" / "id=7" / "a.parquet")
        if own[-1] == 7:
            assert len(pack(tmp_path / "src")[0]) == 6
    with pytest.raises(SourceError, match=r"a.parquet is in the folder 'id=7', and its column 'id' has 8"):
        pack(tmp_path / "src")


def test_entries_of_images_and_metadata_of_parquet_files_are_in_the_account(tmp_path: Path, six: list[Photo]) -> None:
    images = [{"bytes": photo.data, "path": "a.jpg", "width": 3} for photo in six]
    others = [{"bytes": photo.data, "path": "b.jpg"} for photo in six]
    left = [{"bytes": photo.data, "path": None} for photo in six]
    table = pa.table({"image": images, "right": others, "left": left})
    pq.write_table(table.replace_schema_metadata({"class_names": '["cat", "dog"]'}), tmp_path / "a.parquet")
    parts = {part.name: part.reason for part in pack(tmp_path / "a.parquet")[1].account.parts if not part.role}
    assert parts.keys() == {"image.width", "right.path", "class_names"}
    assert "may name the classes ('cat', 'dog')" in parts["class_names"]


# Shards


def test_an_indexed_or_packed_dataset_without_class_names_keeps_its_numbers(tmp_path: Path, pixels: np.ndarray) -> None:
    np.savez(tmp_path / "a.npz", images=pixels, labels=LABELS)
    wt.pack(tmp_path / "a.npz", tmp_path / "first", shuffle=False)
    wt.reshard(tmp_path / "first", tmp_path / "second")
    assert [int(sample["cls"]) for sample in stored(tmp_path / "second")] == LABELS
    assert labels_of(tmp_path / "first") == LABELS


def test_a_sample_whose_fields_are_in_several_places_is_an_error(tmp_path: Path, six: list[Photo]) -> None:
    images = [(f"{n}.jpg", six[n].data) for n in range(3)]
    path = write_tar(tmp_path / "a.tar", [*images, *((f"{n}.cls", b"%d" % n) for n in range(3))])
    with pytest.raises(SourceError, match=r"key 0, .*fields 'jpg' and 'cls' have other samples in between: sort"):
        wt.pack(path, tmp_path / "dst", kind="webdataset")


def test_another_sample_with_the_same_key_is_packed(tmp_path: Path, six: list[Photo]) -> None:
    path = write_tar(tmp_path / "a.tar", ((f"{key}.jpg", photo.data) for key, photo in zip("aba", six, strict=False)))
    assert [sample["jpg"] for sample, _ in pack(path, kind="webdataset")[0]] == [photo.data for photo in six[:3]]


@pytest.mark.parametrize("field", ["npy", "png"])
def test_another_field_never_takes_the_place_of_the_image(tmp_path: Path, six: list[Photo], field: str) -> None:
    other = io.BytesIO()
    np.save(other, np.arange(4.0))
    data = other.getvalue() if field == "npy" else encode_png(np.zeros((8, 8), np.uint8))
    write_tar(tmp_path / "old" / "a.tar", [("a.jpg", six[0].data), (f"a.{field}", data), ("b.jpg", six[1].data)])
    wt.index_shards(f"{tmp_path}/old/a.tar")
    report = wt.reshard(tmp_path / "old", tmp_path / "raw", images="raw", resize=16)
    assert [skip.path for skip in report.skipped] == ["a.tar/a"]
    assert f"its image in field 'npy', and field '{field}' would be taken for it: rename" in report.skipped[0].reason
    wt.reshard(tmp_path / "old", tmp_path / "kept")
    assert [sample.get(field) for sample in stored(tmp_path / "kept")] == [data, None]


SCORES = [float("inf"), float("nan"), 0.5, 1.0]


def scores_npz(folder: Path, images: list[bytes]) -> Path:
    np.savez(folder / "a.npz", images=np.zeros((len(images), 8, 8, 3), np.uint8), score=np.array(SCORES))
    return folder / "a.npz"


def scores_parquet(folder: Path, images: list[bytes]) -> Path:
    pq.write_table(pa.table({"image": images, "score": SCORES}), folder / "a.parquet")
    return folder / "a.parquet"


def scores_in_structs(folder: Path, images: list[bytes]) -> Path:
    pq.write_table(pa.table({"image": images, "score": [{"a": [{"b": one}]} for one in SCORES]}), folder / "a.parquet")
    return folder / "a.parquet"


def scores_json_lines(folder: Path, images: list[bytes]) -> Path:
    for number, data in enumerate(images):
        (folder / f"{number}.jpg").write_bytes(data)
    rows = [{"path": f"{number}.jpg", "score": one} for number, one in enumerate(SCORES)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "a.jsonl"


def scores_object(_: Path, images: list[bytes]) -> Any:
    return [{"image": image, "score": np.float32(one)} for image, one in zip(images, SCORES, strict=True)]


@pytest.mark.parametrize("write", [scores_npz, scores_parquet, scores_in_structs, scores_json_lines, scores_object])
def test_numbers_that_json_does_not_have_are_counted(tmp_path: Path, six: list[Photo], write: Any) -> None:
    found = open_source(write(tmp_path, [photo.data for photo in six[:4]])).scan()
    assert "NaN and infinite numbers of 'score' are null in json: 2" in found.account.notes
