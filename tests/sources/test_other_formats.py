"""Formats that are recognised and refused, by files that their own programs wrote, or by names and first bytes."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from foreign_records import FOREIGN

import wds_tools as wt
from wds_tools.errors import MissingSourceError, SourceError
from wds_tools.sources.other_formats import HEAD_BYTES, refused_format

DICOM = bytes(128) + b"DICM" + bytes(40)
MATLAB = b"MATLAB 5.0 MAT-file Platform: posix, Created on: Mon Nov 23 12:00:00 2026".ljust(128)
MXNET = (0xCED7230A).to_bytes(4, "little") + bytes(40)


@pytest.mark.parametrize(
    ("names", "head", "format_", "remedy"),
    [
        (["train.beton"], b"", "FFCV", "pack the images"),
        (["photos.lance/", "_versions/", "data/"], b"", "Lance", "Parquet"),
        (["dataset/", "_versions/", "data/"], b"", "Lance", "Parquet"),
        (["scan.dcm"], b"", "DICOM", "PNG"),
        (["scans/", "1.dcm", "2.dcm", "notes.txt"], b"", "DICOM", "PNG"),
        (["IM0001"], DICOM, "DICOM", "PNG"),
        (["digits.mat"], MATLAB, "MATLAB version 5", "numpy.savez"),
        (["train.rec"], b"", "MXNet RecordIO", "im2rec"),
        (["train.bin"], MXNET, "MXNet RecordIO", "im2rec"),
        (["data_batch_1"], pickle.dumps({"data": 1}), "a pickle", "load it yourself"),
        (["train.pkl"], b"", "a pickle", "load it yourself"),
        (["train.csv.gz"], b"\x1f\x8b", "a compressed table", "gzip -d"),
        (["train.jsonl.zst"], b"", "a compressed table", "zstd -d"),
    ],
)
def test_a_format_is_named_with_the_way_out(names: list[str], head: bytes, format_: str, remedy: str) -> None:
    found = refused_format(names, head[:HEAD_BYTES])
    assert found is not None
    assert format_ in found.name
    assert remedy in found.remedy


@pytest.mark.parametrize(("name", "format_"), [("scipy.mat", "MATLAB"), ("IM0001", "DICOM"), ("photos", "Lance")])
def test_files_that_other_programs_wrote_are_named(name: str, format_: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"{name} (is|cannot be read).*{format_}"):
        wt.pack(FOREIGN / "refused" / name, tmp_path / "dst")


@pytest.mark.parametrize(
    ("name", "folder", "message"),
    [
        ("kitti", "image_2", r"label_2/photo 3.txt has .* another folder \(KITTI\), in a layout that is not read"),
        ("cvat", "images", r"annotations.xml is about images such as 'photo 3.jpg' \(CVAT for images\), in a layout"),
    ],
)
def test_annotations_next_to_a_folder_of_images_are_named(name: str, folder: str, message: str, tmp_path: Path) -> None:
    src = shutil.copytree(FOREIGN / "refused" / name, tmp_path / "src")
    shutil.copytree(FOREIGN / "images", src / folder)
    with pytest.raises(
        SourceError, match=rf"{message}.* as COCO, YOLO or VOC.* or pack .*src/{folder} to pack the images"
    ):
        wt.pack(src, tmp_path / "dst")
    alone = wt.pack(src / folder, tmp_path / "dst", images="keep", workers=1).manifest
    assert (alone.samples, alone.has_labels) == (4, False)


def test_annotations_of_images_in_class_folders_are_left_out_with_the_reason(tmp_path: Path) -> None:
    """Stanford Dogs has files of VOC without extension."""
    for number, path in enumerate(sorted((FOREIGN / "images").iterdir())):
        xml = FOREIGN / "voc" / "pascal_voc_writer" / "Annotations" / f"{path.stem}.xml"
        for folder, name, file in (("Images", path.name, path), ("Annotation", path.stem, xml)):
            (tmp_path / "src" / folder / f"n{number % 2}").mkdir(parents=True, exist_ok=True)
            shutil.copy(file, tmp_path / "src" / folder / f"n{number % 2}" / name)
    report = wt.pack(tmp_path / "src", tmp_path / "dst", images="keep", workers=1)
    assert report.manifest.classes == ("n0", "n1")
    assert {skip.reason.partition(",")[0] for skip in report.skipped} == {"has the name of an image in another folder"}
    assert len(report.skipped) == 4
    assert report.manifest.account.notes[0].startswith("'Annotation/n0/photo 3' (also 3 other files) has the name")


@pytest.mark.parametrize(
    ("names", "head"),
    [
        (["photo.jpg"], b"\xff\xd8\xff\xe0"),
        (["data.mat"], b"MATLAB 7.3 MAT-file"),  # HDF5, which is read
        (["a.h5"], b"\x89HDF\r\n\x1a\n"),
        (["photos/", "cat.jpg", "features.pkl"], b""),
        (["readme"], b""),
    ],
)
def test_what_is_read_is_not_refused(names: list[str], head: bytes) -> None:
    assert refused_format(names, head) is None


def test_a_folder_of_arrays_in_several_files_is_refused_with_the_way_out(tmp_path: Path) -> None:
    src, images, labels = tmp_path / "src", np.zeros((4, 8, 8, 3), np.uint8), np.arange(4)
    src.mkdir()
    for name, values in (("x", images), ("y", labels)):
        with h5py.File(src / f"{name}.h5", "w") as file:
            file[name] = values
    with pytest.raises(MissingSourceError, match=r"2 files of arrays \('x\.h5', 'y\.h5'\): .* 'images' and 'labels'"):
        wt.pack(src, tmp_path / "dst")
    np.savez(src / "all.npz", images=images, labels=labels)
    with pytest.raises(MissingSourceError, match=r"3 files of arrays .* name the file that has both images and labels"):
        wt.pack(src, tmp_path / "dst")
    assert wt.pack(src / "all.npz", tmp_path / "dst", images="keep", workers=1).manifest.fields["cls"] == 4
