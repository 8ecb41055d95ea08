"""Formats that are recognised and refused, by files that their own programs wrote, or by names and first bytes."""

from __future__ import annotations

import base64
import gzip
import pickle
import re
import shutil
import sqlite3
import tarfile
import warnings
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from foreign_records import FOREIGN
from foreign_tables import png
from pyarrow import orc

import wds_tools as wt
from wds_tools.errors import MissingSourceError, SourceError
from wds_tools.sources.refused import HEAD_BYTES, refused_format

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
        (["labels"], pickle.dumps({"data": 1}), "a pickle", "load it yourself"),
        (["data_batch_1"], pickle.dumps({"data": 1}), "CIFAR", "docs/sources.md"),
        (["cifar-10-batches-bin/", "data_batch_1.bin"], b"", "CIFAR", "docs/sources.md"),
        (["train.pkl"], b"", "a pickle", "load it yourself"),
        (["train.csv.gz"], b"\x1f\x8b", "a compressed table", "gzip -d"),
        (["train.jsonl.zst"], b"", "a compressed table", "zstd -d"),
        (["raw/", "train-images.idx3-ubyte"], b"", "idx", "docs/sources.md"),  # as Kaggle has it
        (["t.safetensors"], b"", "safetensors", "numpy.savez"),
        (["t.xlsx"], b"PK", "a spreadsheet", "CSV"),
        (["t.7z"], b"", "an archive", "unpack it"),
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


def write_zarr(path: Path, version: int) -> None:
    store = zarr.storage.ZipStore(path, mode="w")
    zarr.open_group(store, zarr_format=version).create_array("images", data=np.zeros((2, 8, 8, 3), np.uint8))
    store.close()


def write_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table images (image blob)")


TABLE = pa.table({"image": [png(0)], "label": [1]})
WRITTEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "t.orc": (lambda path: orc.write_table(TABLE, path), "ORC, .*pyarrow.orc"),
    "t": (lambda path: orc.write_table(TABLE, path), "ORC, .*pyarrow.orc"),
    "t.db": (write_database, "an SQLite database, .*read_sql"),
    "database": (write_database, "an SQLite database, .*read_sql"),
    "t.zarr.zip": (lambda path: write_zarr(path, 3), "Zarr in an archive .*pack the folder"),
    "v2.zip": (lambda path: write_zarr(path, 2), "Zarr in an archive .*pack the folder"),
    "old.feather": (
        lambda path: path.write_bytes(b"FEA1" + bytes(100)),  # pyarrow no longer writes it without a warning
        "(Feather version 1, .*to_parquet|cannot be read as Arrow)",
    ),
    "base64.csv": (
        lambda path: pd.DataFrame({"image": [base64.b64encode(png(0))]}).map(bytes.decode).to_csv(path),
        "base64 text or numbers in column 'image': .* docs/sources.md shows the lines",
    ),
}
"""Files of pyarrow, SQLite, Zarr and pandas, and how each is refused."""


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("place", ["", "folder"])
def test_files_that_are_not_read_are_named_also_in_a_folder(name: str, place: str, tmp_path: Path) -> None:
    write, message = WRITTEN[name]
    (tmp_path / "folder").mkdir()
    write(tmp_path / place / name)
    src = tmp_path / (place or name)
    message = "no image .*; or name the table, .*base64.csv" if place and name == "base64.csv" else message
    with pytest.raises(SourceError, match=message):
        wt.pack(src, tmp_path / "dst")


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
    assert report.manifest.account.notes[0].startswith("'Annotation/n0/photo 3' (and 3 other files) has the name")


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


def test_an_archive_of_archives_is_refused_with_the_way_out_which_works(tmp_path: Path) -> None:
    """ImageNet is distributed as a tar with a tar for each class."""
    for name in ("n01", "n02"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}_1.JPEG").write_bytes((FOREIGN / "images" / "photo_1.jpg").read_bytes())
        shutil.make_archive(str(tmp_path / "inner" / name), "tar", tmp_path / name)
    src = Path(shutil.make_archive(str(tmp_path / "ILSVRC2012_img_train"), "tar", tmp_path / "inner"))
    with pytest.raises(
        MissingSourceError, match=r"contains archives, such as 'n01.tar': unpack it into a folder, and pa"
    ):
        wt.pack(src, tmp_path / "dst")
    shutil.unpack_archive(src, tmp_path / "unpacked", **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
    assert wt.pack(tmp_path / "unpacked", tmp_path / "dst", workers=1).manifest.classes == ("n01", "n02")


def idx(array: np.ndarray) -> bytes:
    """Return an array as the files of MNIST have it."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def arrays_of_other_files(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> dict[str, list[Path]]:
    """Write CIFAR-10, MNIST, FER-2013 and MNIST as CSV; return the files and folders of each."""
    cifar, mnist = folder / "cifar-10-batches-py", folder / "raw"
    cifar.mkdir()
    mnist.mkdir()
    for batch in range(1, 6):
        rows = slice(2 * batch - 2, 2 * batch)
        content = {b"data": pixels[rows].transpose(0, 3, 1, 2).reshape(2, -1), b"labels": labels[rows].tolist()}
        (cifar / f"data_batch_{batch}").write_bytes(pickle.dumps(content, 2))
    grey = pixels[:, :28, :28, 0].copy()
    for name, array in (("images-idx3", grey), ("labels-idx1", labels.astype(np.uint8))):
        (mnist / f"train-{name}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
        (folder / f"plain-{array.ndim}").write_bytes(idx(array))
    (folder / "cifar-100-python").mkdir()
    (folder / "cifar-100-python" / "train").write_bytes(pickle.dumps({b"data": 1}, 2))
    fer = np.pad(pixels[..., 0], [(0, 0), (0, 16), (0, 16)])
    texts = [" ".join(map(str, image.ravel())) for image in fer]
    pd.DataFrame({"emotion": labels, "pixels": texts, "Usage": "Training"}).to_csv(folder / "fer2013.csv", index=False)
    pq.write_table(pa.table({"image": grey.tolist(), "label": labels}), folder / "pixels.parquet")
    columns = pd.DataFrame(grey.reshape(len(grey), -1)).add_prefix("pixel")
    pd.concat([pd.Series(labels, name="label"), columns], axis=1).to_csv(folder / "train.csv", index=False)
    return {
        "CIFAR": [cifar, cifar / "data_batch_1"],
        "idx (MNIST)": [mnist, mnist / "train-images-idx3-ubyte.gz", folder / "plain-3"],
        "FER-2013": [folder / "fer2013.csv"],
        "as numbers in column 'image'": [folder / "pixels.parquet"],
        "MNIST as CSV": [folder / "train.csv"],
    }


def test_the_lines_of_the_documentation_pack_the_arrays_of_files_that_are_refused_by_name(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), np.uint8)
    labels = np.arange(10) % 3
    for name, paths in arrays_of_other_files(tmp_path, pixels, labels).items():
        for path in paths:
            with pytest.raises(SourceError, match=rf"{re.escape(name)}.*docs/sources.md shows the lines"):
                wt.pack(path, tmp_path / "refused")
    with pytest.raises(SourceError, match=r"cifar-100-python is a pickle .*: load it yourself"):
        wt.pack(tmp_path / "cifar-100-python", tmp_path / "refused")
    text = Path(__file__).parents[2].joinpath("docs", "sources.md").read_text().split("## Arrays in other files")[1]
    lines, *parts = text.partition("```python\n")[2].partition("```")[0].split("\n\n# ")
    parts[-1], _, last = parts[-1].rpartition("\n\n")
    assert len(parts) == 5
    for number, part in enumerate(parts):
        here = {0: tmp_path / "cifar-10-batches-py", 1: tmp_path / "raw"}.get(number, tmp_path)
        for name in ("data_batch_", "train-", "fer2013.csv", "train.csv", "pixels.parquet"):
            part = part.replace(f'"{name}', f'"{here}/{name}')  # noqa: PLW2901 - the lines are for the current folder
        last_of_it = last.replace("shards/train", str(tmp_path / f"dst{number}"))
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            exec(f"{lines}\n# {part}\n{last_of_it}", {})
        samples = list(wt.make_loader(tmp_path / f"dst{number}", batch_size=10, num_workers=0))
        assert sorted(samples[0].label.tolist()) == sorted(labels.tolist())


@pytest.mark.parametrize(
    ("log", "name"),
    [
        ("_delta_log/00000000000000000001.json", "a Delta Lake table"),
        ("metadata/v1.metadata.json", "an Iceberg table"),
        (".hoodie/hoodie.properties", "a Hudi table"),
    ],
)
@pytest.mark.parametrize("place", ["", "data"])
def test_tables_with_a_log_are_refused_because_some_files_do_not_count(
    log: str, name: str, place: str, tmp_path: Path
) -> None:
    (tmp_path / "src" / "data").mkdir(parents=True)
    for part, label in (("a", "old"), ("b", "new")):
        table = pa.table({"image": [png(0)], "label": [label]})
        pq.write_table(table, tmp_path / "src" / "data" / f"part-{part}.parquet")
    (tmp_path / "src" / log).parent.mkdir()
    (tmp_path / "src" / log).write_text("{}")
    with pytest.raises(SourceError, match=rf"src is {name}: only its log, .* Write it as Parquet .*, or give"):
        wt.pack(tmp_path / "src" / place, tmp_path / "dst")
    report = wt.pack(tmp_path / "src" / "data" / "part-b*.parquet", tmp_path / "dst", dry_run=True)
    assert report.manifest.classes == ("new",)
