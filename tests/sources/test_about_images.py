"""Files next to images that are about them: packed, an error, or named in a note, in every layout.

pandas, NumPy, h5py, SQLite and gzip wrote the files.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sqlite3
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import h5py
import lmdb
import numpy as np
import pandas as pd
import pytest
from annotated_trees import FOREIGN, tree_of
from foreign_tables import COUNT, LABELS, NAMES, png

import wds_tools as wt
from wds_tools.errors import SourceError

FRAME = pd.DataFrame({"image": [f"{row}.png" for row in range(COUNT)], "label": list(LABELS.values())})
NUMBERS = np.array([NAMES.index(name) for name in LABELS.values()])


@pytest.fixture
def src(tmp_path: Path) -> Path:
    """Six images, without class folders."""
    (tmp_path / "src" / "images").mkdir(parents=True)
    for row in range(COUNT):
        (tmp_path / "src" / "images" / f"{row}.png").write_bytes(png(row))
    return tmp_path / "src"


def notes(src: Path) -> list[str]:
    return wt.pack(src, src.parent / "dst", dry_run=True).account.notes


def to_database(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        FRAME.to_sql("labels", database)


def to_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["labels"] = NUMBERS


NAMED: dict[str, tuple[Callable[[Path], object], str]] = {
    "list.feather": (FRAME.to_feather, "has columns in a binary format, .*: write its rows as CSV"),
    "list.pkl": (FRAME.to_pickle, "has arrays or objects, .*: write its values as CSV"),
    "list.h5": (to_hdf5, "has arrays or objects, .*: write its values as CSV"),
    "list.npz": (lambda path: np.savez(path, y=NUMBERS[:-1]), "has arrays or objects"),
    "features.npy": (
        lambda path: np.save(path, np.ones((COUNT, 3))),
        "has arrays or objects, .*: write its values as CSV",
    ),
    "photos.db": (to_database, "has a database, .*: export its rows as CSV"),
    "photos.xlsx": (lambda path: path.write_bytes(b"PK\3\4"), "has a spreadsheet, .*: save it as CSV"),
    "photos.ods": (lambda path: path.write_bytes(b"PK\3\4"), "has a spreadsheet, .*: save it as CSV"),
    "photos.csv.gz": (FRAME.to_csv, "is compressed, .*: decompress it first"),
    "photos.csv.zip": (FRAME.to_csv, "is compressed, .*: decompress it first"),
    "photos.txt.xz": (FRAME.to_csv, "is compressed, .*: decompress it first"),
    "label_num_to_disease_map.json": (
        lambda path: path.write_text(json.dumps(dict(enumerate(NAMES)))),
        "has a name for each number \\('cat', 'dog', 'fig'\\), .* pass them with --classes",
    ),
    "classes.txt": (lambda path: path.write_text("\n".join(NAMES)), "has a name for each number .* with --classes"),
    "labels.csv": (
        lambda path: pd.DataFrame({"ClassId": [0, 1], "Name": NAMES[:2]}).to_csv(path, index=False),
        "has a name for each number .* with --classes",
    ),
    "species.names": (lambda path: path.write_text("\n".join(NAMES)), "has a name for each number .* with --classes"),
    "label_map.pbtxt": (
        lambda path: path.write_text("item { id: 1 name: 'cat' }\nitem { id: 2 name: 'dog' }\n"),
        "has a name for each number .* with --classes",
    ),
    "class_dict.csv": (  # as CamVid has it
        lambda path: path.write_text("name,r,g,b\nAnimal,64,128,64\nArchway,192,0,128\n"),
        "is named like a list of classes, and is not read: masks keep its colours",
    ),
    "settings.json": (lambda path: path.write_text('{"width": 224, "height": 224}'), ""),
    "photos.xml": (lambda path: path.write_text("<a/>"), ""),
    "md5sums.txt": (lambda path: path.write_text("".join(f"{'0f' * 16}  {row}.png\n" for row in range(COUNT))), ""),
    "pairs.txt": (lambda path: path.write_text("".join(f"{row}.png {row + 1}.png\n" for row in range(COUNT))), ""),
    "readme.txt": (lambda path: path.write_text("".join(f"{row}.png is nice\n" for row in range(COUNT))), ""),
    "requirements.txt": (lambda path: path.write_text("numpy\n" * (COUNT - 1) + "torch\n"), ""),
    "SHA256SUMS": (lambda path: path.write_text("".join(f"abc  {row}.png\n" for row in range(COUNT))), ""),
    "remarks.txt": (lambda path: path.write_text("0.png is nice\n"), "has values for some of the images"),
    "labels.py": (lambda path: path.write_text(f"labels = {LABELS}\n"), "is named like a file .* if it has labels"),
    "train.py": (lambda path: path.write_text("import torch\n"), ""),
}
"""Files that are not read, or whose name alone says so, and what the note states; nothing of the last."""


@pytest.mark.parametrize("name", NAMED)
def test_a_file_that_can_have_labels_is_named_in_a_note(name: str, src: Path) -> None:
    write, text = NAMED[name]
    for path in (name, f"images/{name}"):
        write(src / path)
        found = notes(src)
        assert [
            note.startswith((f"{path!r} is ", f"{path!r} has "))
            for note in found
            if "is not read as a class" not in note
        ] == [True] * bool(text)
        assert not text or any(pd.Series([note]).str.contains(text).all() for note in found)
        (src / path).unlink()


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "labels.feather": (FRAME.to_feather, "has columns in a binary format"),
    "labels.pkl": (FRAME.to_pickle, "has arrays or objects"),
    "imagelabels.mat": (lambda path: shutil.copy(FOREIGN / "refused" / "scipy.mat", path), "has arrays or objects"),
    "labels.h5": (to_hdf5, "has arrays or objects"),
    "y.npy": (lambda path: np.save(path, NUMBERS), "has arrays or objects"),
    "emotions.npy": (lambda path: np.save(path, NUMBERS), "has arrays or objects"),
    "y.npz": (lambda path: np.savez(path, x=np.ones((COUNT, 3)), y=NUMBERS), "has arrays or objects"),
    "cars_annos.mat": (lambda path: shutil.copy(FOREIGN / "refused" / "scipy.mat", path), "has arrays or objects"),
    "metadata.xlsx": (lambda path: path.write_bytes(b"PK\3\4"), "has a spreadsheet"),
    "labels.csv.gz": (FRAME.to_csv, "is compressed, and so not read: decompress it first"),
    "train.csv.xz": (FRAME.to_csv, "is compressed, and so not read: decompress it first"),
    "metadata.parquet": (
        lambda path: path.write_bytes(b"PAR1" + bytes(20)),
        "cannot be read: it is not valid Parquet",
    ),
    "labels.html": (FRAME.to_html, "is about images such as '0.png'"),
    "annotation_train.odgt": (  # as CrowdHuman has it
        lambda path: path.write_text("".join(f'{{"ID": "{row}", "gtboxes": []}}\n' for row in range(COUNT))),
        "is about images such as '0'",
    ),
    "Eval/list_eval_partition.txt": (  # as DeepFashion has it, in a folder that is named like a split without images
        lambda path: path.write_text("".join(f"{row}.png train\n" for row in range(COUNT))),
        "has a value for each image, such as 'train' for '0.png'",
    ),
    "t.tab": (lambda path: FRAME.to_csv(path, sep="\t", index=False), "has a value for each image, such as 'cat'"),
    "t.dat": (lambda path: FRAME.to_csv(path, sep=" ", index=False), "has a value for each image, such as 'cat'"),
    "labels": (lambda path: FRAME.to_csv(path, sep=" ", header=False, index=False), "has a value for each image"),
    "train.lst": (  # as MXNet's im2rec writes it
        lambda path: path.write_text("".join(f"{row}\t{row % 3}.000000\t{row}.png\n" for row in range(COUNT))),
        "has a value for each image, such as '0 0.000000' for '0.png'",
    ),
    "t.yaml": (
        lambda path: path.write_text("".join(f"{row}.png: {name}\n" for row, name in LABELS.items())),
        "has a value for each image, such as 'cat' for '0.png'",
    ),
    "t.xml": (lambda path: FRAME.to_xml(path, parser="etree"), "is about images such as '0.png'"),
    "y.log": (
        lambda path: path.write_text("".join(f"{row}.png {name}\n" for row, name in LABELS.items())),
        "has a value for each image, such as 'cat' for '0.png'",
    ),
    "t.md": (
        lambda path: path.write_text("".join(f"| {row}.png | {name} |\n" for row, name in LABELS.items())),
        "has a value for each image, such as 'cat' for '0.png'",
    ),
    "photos.token.txt": (  # as Flickr8k has it
        lambda path: path.write_text("".join(f"{row // 2}.png#{row % 2}\tA cat .\n" for row in range(2 * COUNT))),
        "has a value for each image, such as 'A cat .' for '0.png'",
    ),
    "labels.txt": (lambda path: path.write_text("0.png cat\n"), "has a value for 1 image, such as 'cat' for '0.png'"),
    "ground_truth.txt": (lambda path: np.savetxt(path, NUMBERS, "%d"), "has a value for each image and does not name"),
    "t.json": (lambda path: path.write_text(json.dumps(NUMBERS.tolist())), "has a value for each image and does not"),
    "y.json": (
        lambda path: path.write_text(json.dumps({"y": list(LABELS.values())})),
        "has a value for each image and",
    ),
    "output.manifest": (  # as SageMaker Ground Truth has it
        lambda path: FRAME.to_json(path, orient="records", lines=True),
        "is about images such as '0.png'",
    ),
    "default.json": (  # as Datumaro has it
        lambda path: path.write_text(
            json.dumps(
                {
                    "categories": {"label": {"labels": [{"name": name, "parent": ""} for name in NAMES]}},
                    "items": [
                        {"id": f"{row}", "image": {"path": f"{row}.png"}, "annotations": [{"caption": "a <b> c"}]}
                        for row in range(COUNT)
                    ],
                }
            )
        ),
        "is about images such as '0.png'",
    ),
    "vqa.json": (  # numbers, as in VQA
        lambda path: path.write_text(json.dumps({"questions": [{"image_id": row} for row in range(COUNT)] * 2})),
        "is about images such as '0'",
    ),
    "images.txt": (  # as CUB-200 has it
        lambda path: path.write_text("".join(f"{row + 1} {row}.png\n" for row in range(COUNT))),
        "has a value for each image, such as '1' for '0.png'",
    ),
    "t.csv": (
        lambda path: FRAME["label"].to_csv(path, index=False),
        "has a row for each image, and does not name most",
    ),
}
"""Files whose content is about the images, and the error."""


@pytest.mark.parametrize("name", REFUSED)
def test_images_are_not_packed_without_labels_next_to_a_file_about_them(name: str, src: Path, tmp_path: Path) -> None:
    write, text = REFUSED[name]
    (src / name).parent.mkdir(exist_ok=True)
    write(src / name)
    with pytest.raises(
        SourceError,
        match=rf"^{name} {text}.*; or pa(ck .*src/images|ss --from folder .*) to pack the images without it",
    ):
        notes(src)
    assert wt.pack(src / "images", tmp_path / "dst", dry_run=True).account.packed == COUNT


def test_next_to_class_folders_a_file_about_the_images_is_a_note(src: Path) -> None:
    for row, name in LABELS.items():
        (src / name).mkdir(exist_ok=True)
        (src / "images" / f"{row}.png").rename(src / name / f"{row}.png")
    (src / "images").rmdir()
    np.savetxt(src / "order.txt", NUMBERS, "%d")
    FRAME.to_feather(src / "features.feather")  # its name says nothing of labels
    report = wt.pack(src, src.parent / "dst", dry_run=True)
    assert report.manifest.classes == NAMES
    [note] = report.account.notes
    assert note.startswith("'order.txt' has a value for each image")


ANNOTATED = {
    "coco": ("coco/datumaro_instances_poly", "{split}/{name}"),
    "yolo": ("yolo/datumaro_boxes", "images/{split}/{name}"),
    "voc": ("voc/datumaro", "JPEGImages/{name}"),
}


CHOICES = {
    "meta.csv": r"in column 'image' .*: pass --from table .*; or",
    "meta.txt": "write it as CSV",
    "meta.xlsx": "has a spreadsheet, .* save it as CSV",
}


@pytest.mark.parametrize("kind", ANNOTATED)
@pytest.mark.parametrize("name", CHOICES)
def test_annotations_do_not_hide_a_file_about_the_images(kind: str, name: str, tmp_path: Path) -> None:
    src = tree_of(tmp_path / "src", *ANNOTATED[kind])
    photos = sorted(path.name for path in (FOREIGN / "images").iterdir())
    pd.DataFrame({"image": photos, "label": ["x", "y"] * 2}).to_csv(src / name, index=False)
    choice = CHOICES[name]
    with pytest.raises(SourceError, match=rf"{name}.* {choice}.* pass --from {kind} .* without it"):
        wt.pack_splits(src, tmp_path / "dst", split="folders", dry_run=True)
    given = wt.pack_splits(src, tmp_path / "given", split="folders", kind=kind, dry_run=True)
    assert sum(report.account.packed for report in given.values()) == len(photos)


def test_files_about_the_images_of_an_archive_are_named_too(src: Path, tmp_path: Path) -> None:
    (tmp_path / "zip").mkdir()
    shutil.make_archive(str(tmp_path / "zip" / "photos"), "zip", src / "images")
    np.savetxt(tmp_path / "zip" / "targets.txt", NUMBERS, "%d")
    with pytest.raises(SourceError, match=r"targets.txt has a value for each image .* pass --from zip .* without it"):
        notes(tmp_path / "zip")
    (tmp_path / "zip" / "targets.txt").unlink()
    FRAME.to_csv(tmp_path / "zip" / "list.csv.gz", index=False)
    [note] = notes(tmp_path / "zip")
    assert note.startswith("'list.csv.gz' is compressed, and so not read: decompress it first")


def test_a_table_above_or_next_to_a_folder_of_records_is_named(tmp_path: Path) -> None:
    (tmp_path / "shards").mkdir()
    write_lmdb = lmdb.open(str(tmp_path / "train.lmdb"), map_size=1 << 22)
    with tarfile.open(tmp_path / "shards" / "00000.tar", "w") as shard, write_lmdb.begin(write=True) as rows:
        for row in range(COUNT):
            rows.put(b"photo_%d" % row, png(row))
            for ending, data in (("png", png(row)), ("txt", b"a photo")):
                member = tarfile.TarInfo(f"photo_{row}.{ending}")
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))
    write_lmdb.close()
    for folder in ("shards", "train.lmdb"):
        assert notes(tmp_path / folder) == []
    pd.DataFrame({"key": [f"photo_{row}" for row in range(COUNT)], "y": NUMBERS}).to_parquet(tmp_path / "y.parquet")
    for folder in ("shards", "train.lmdb"):
        [note] = notes(tmp_path / folder)
        assert re.match(r"'.*y.parquet' names 6 images in column 'key' \(photo_0, .*\), and is not read: if", note)


@pytest.mark.parametrize(("ending", "text"), [("pts", "version: 1\nn_points: 68\n"), ("csv", "x,y\n1,2\n3,4\n")])
def test_files_next_to_images_with_their_names_are_noted(src: Path, ending: str, text: str) -> None:
    """300-W has the landmarks of 1.png in 1.pts."""
    for row in range(COUNT):
        (src / "images" / f"{row}.{ending}").write_text(text)
    note = f"'images/0.{ending}' (and 5 other files) has the name of an image next to it, and is not read: rename"
    assert any(one.startswith(note) for one in notes(src))


def test_masks_of_another_folder_are_not_noted(src: Path) -> None:
    shutil.copytree(src / "images", src / "m_two_annot")
    assert notes(src / "images") == []


def test_masks_next_to_a_named_folder_are_noted(src: Path) -> None:
    assert notes(src / "images") == []
    shutil.copytree(src / "images", src / "masks")
    note = f"'{src}/masks/0.png' is a mask of 'images/0.png', and is not read: pack {src} to pack masks too"
    assert notes(src / "images") == [note]
    assert wt.pack(src, src.parent / "dst", dry_run=True).account.attached == {"field mask.png": COUNT}


def test_an_archive_of_another_kind_next_to_archives_is_an_error(src: Path) -> None:
    shutil.make_archive(str(src / "ant"), "gztar", src / "images")
    shutil.make_archive(str(src / "cow"), "zip", src / "images")
    shutil.rmtree(src / "images")
    with pytest.raises(SourceError, match=r"is read as tar, and 'cow.zip' in it is another archive: pack one of them"):
        notes(src)
    account = wt.pack(src, src.parent / "dst", kind="tar", dry_run=True).account
    assert account.packed == COUNT
    assert account.notes == ["'cow.zip' is an archive next to what is packed, and is not read: pack it on its own"]
