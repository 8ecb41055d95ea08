"""The promise of every source: all that it was given is in the account by name, and values arrive as they are.

Each source here is written by another program and includes some unpackable content: an extra column, array, member
or feature, a damaged record, a second file with another schema. What is packed is read by the webdataset library and
Pillow, and compared with the arrays that were written.
"""

from __future__ import annotations

import csv
import io
import json
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conformance_cases import (
    CASES,
    CLASSES,
    COUNT,
    FEATURES,
    NAMES,
    NUMBER_OF,
    NUMBERS,
    PIXELS,
    SCORES,
    TREE,
    WRITE_TREE,
    Case,
    annotated,
    captions,
    photo_example,
    png,
    rows,
    samples,
    write_arrow,
    write_records,
    write_shard,
    write_zip,
)
from foreign_records import FOREIGN, checksum, expected
from sources_conformance import image_of, stored

import wds_tools as wt
from wds_tools.errors import LabelError, SourceError
from wds_tools.format.account import Account
from wds_tools.sources.detect import KINDS

LITDATA = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
MARKED = [pytest.param(name, marks=LITDATA if name == "litdata" else ()) for name in sorted(CASES)]


@pytest.fixture
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    (tmp_path / "src").mkdir()
    return CASES[request.param](tmp_path / "src")


def pack(src: Any, dst: Path, columns: Mapping[str, str] | None = None) -> Any:
    return wt.pack(src, dst, columns=columns, workers=1, images="keep")


def read(folder: Path, number_of: Mapping[str, int] = NUMBER_OF) -> dict[int, dict[str, Any]]:
    """Return the samples of a dataset as webdataset and Pillow read them, by the number of their image."""
    classes = json.loads((folder / "manifest.json").read_bytes())["classes"]
    found = {}
    for sample in stored(folder):
        label = int(sample["cls"]) if "cls" in sample else None
        name = classes[label] if classes and label is not None else label
        facts = json.loads(sample["json"])
        if "objects" in facts:
            facts["boxes"] = [[*(round(edge, 2) for edge in one["box"]), one["category"]] for one in facts["objects"]]
        found[number_of[checksum(image_of(sample))]] = {**sample, "label": name, "json": facts}
    return found


def test_every_kind_has_a_case() -> None:
    assert set(KINDS) <= CASES.keys()


@pytest.mark.parametrize("case", MARKED, indirect=True)
def test_everything_that_a_source_has_is_in_the_account_by_name(case: Case, tmp_path: Path) -> None:
    report = pack(case.src, tmp_path / "dst", case.columns)
    account = report.account
    assert (account.given, account.packed) == (case.given, len(case.labels))
    assert account.given == account.packed + account.skipped.total() + account.attached.total()
    assert len(report.skipped) == account.skipped.total()
    assert all(skip.reason for skip in report.skipped)
    assert all(bool(part.role) != bool(part.reason) for part in account.parts)
    named = {part.name for part in account.parts} | {skip.path for skip in report.skipped}
    assert case.names <= named
    assert report.skipped or any(part.reason for part in account.parts)  # the case has what cannot be packed


@pytest.mark.parametrize("case", MARKED, indirect=True)
def test_images_labels_and_values_are_those_that_the_other_program_wrote(case: Case, tmp_path: Path) -> None:
    pack(case.src, tmp_path / "dst", case.columns)
    found = read(tmp_path / "dst", case.images)
    assert {number: sample["label"] for number, sample in found.items()} == case.labels
    for number, sample in found.items():
        for name, values in case.facts.items():
            assert sample["json"][name] == values[number]
        for name, contents in case.fields.items():
            assert sample[name] == contents[number]


# --- A second file, row or item with another schema ---


def changed(change: str) -> pa.Table:
    """Return the later rows with a further column, another type of a column, or other numbers of the classes."""
    table = rows().slice(3, 3)
    if change == "column":
        return table.append_column("extra", pa.array(["more"] * 3))
    if change == "type":
        return table.set_column(table.column_names.index("score"), "score", pa.array(["low", "high", "low"]))
    names = json.dumps({"info": {"features": FEATURES | {"label": {"_type": "ClassLabel", "names": NAMES[::-1]}}}})
    return table.replace_schema_metadata({"huggingface": names})


def parquet_files(path: Path, change: str) -> Path:
    pq.write_table(rows(3).slice(0, 3), path / "a.parquet")
    pq.write_table(changed(change), path / "b.parquet")
    return path


def arrow_files(path: Path, change: str) -> Path:
    write_arrow(path / "a.arrow", rows(3).slice(0, 3))
    write_arrow(path / "b.arrow", changed(change))
    return path


def parquet_stream(path: Path, change: str) -> Any:
    files = sorted(map(str, parquet_files(path, change).glob("*.parquet")))
    return datasets.load_dataset("parquet", data_files=files, streaming=True, split="train")


def tfrecord_files(path: Path, change: str) -> Path:
    more = {"column": {"extra": b"more"}, "type": {"score": b"low"}}[change]
    write_records(path / "a.tfrecord", [photo_example(number) for number in range(3)])
    write_records(path / "b.tfrecord", [photo_example(number) | more for number in range(3, COUNT)])
    return path


def shard_files(path: Path, change: str, key: str = "{}") -> Path:
    more = {"column": {"extra": b"more"}, "type": {"json": {"score": "low"}}}[change]
    write_shard(path / "a.tar", samples(key, 0, 3))
    write_shard(path / "b.tar", samples(key, 3, **more))
    return path


def dotted_files(path: Path, change: str) -> Path:
    return shard_files(path, change, "photo.2024.{}")


def json_lines(path: Path, change: str) -> Path:
    lines: list[dict[str, Any]] = []
    more = {"column": {"extra": "more"}, "type": {"score": "low"}}[change]
    for number in range(COUNT):
        (path / f"{number}.png").write_bytes(png(number))
        row = {"path": f"{number}.png", "label": NUMBERS[number], "score": SCORES[number]}
        lines.append(row | (more if number > 2 else {}))
    (path / "photos.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return path / "photos.jsonl"


def later_items(_: Path, change: str) -> list[dict[str, Any]]:
    more = {"column": {"extra": "more"}, "type": {"score": "low"}}[change]
    first = [{"image": PIXELS[number], "label": NUMBERS[number], "score": SCORES[number]} for number in range(COUNT)]
    return [row | (more if number > 2 else {}) for number, row in enumerate(first)]


SECOND: dict[str, Callable[[Path, str], Any]] = {
    "arrow": arrow_files,
    "dotted": dotted_files,
    "object": later_items,
    "parquet": parquet_files,
    "stream": parquet_stream,
    "table": json_lines,
    "tfrecord": tfrecord_files,
    "webdataset": shard_files,
}
"""The kinds whose schema can change; each writer returns a source in which images 3 to 5 differ from those before."""


@pytest.mark.parametrize("kind", sorted(SECOND))
def test_what_only_a_later_file_has_is_in_the_account_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    src = SECOND[kind](tmp_path / "src", "column")
    if kind == "stream":  # datasets does not read it
        with pytest.raises(SourceError, match=r"has columns that differ from the features of the stream.*'extra'"):
            pack(src, tmp_path / "dst")
        return
    report = pack(src, tmp_path / "dst")
    (part,) = (part for part in report.account.parts if part.name == "extra")
    found = read(tmp_path / "dst")
    assert sorted(found) == list(range(COUNT))
    assert part.role
    assert {number for number, one in found.items() if "extra" in one or one["json"].get("extra")} == {3, 4, 5}


@pytest.mark.parametrize("kind", sorted(SECOND))
def test_values_of_another_type_in_a_later_file_are_kept_or_refused_by_name(kind: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    src = SECOND[kind](tmp_path / "src", "type")
    try:
        pack(src, tmp_path / "dst")
    except (SourceError, LabelError) as error:
        assert kind in ("arrow", "parquet", "stream")  # of typed columns
        assert ("'low'" if kind == "stream" else "'score'") in str(error)  # noqa: PT017
        return
    found = read(tmp_path / "dst")
    assert {number: one["json"]["score"] for number, one in found.items() if number < 3} == dict(enumerate(SCORES[:3]))
    assert {str(one["json"]["score"]) for number, one in found.items() if number >= 3} <= {"low", "high"}


@pytest.mark.parametrize("kind", ["arrow", "parquet"])  # datasets gives a stream the names of the first file
def test_a_later_file_with_other_numbers_of_the_classes_has_the_same_names(kind: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    src = SECOND[kind](tmp_path / "src", "classes")
    pack(src, tmp_path / "dst")
    labels = {number: one["label"] for number, one in read(tmp_path / "dst").items()}
    numbers = [number % 3 for number in range(COUNT)]
    assert labels == {n: NAMES[number] if n < 3 else NAMES[2 - number] for n, number in enumerate(numbers)}


def test_later_shards_of_mds_with_another_column_are_read_with_their_own_columns(tmp_path: Path) -> None:
    read_by_streaming = expected("mds")["merged"]
    report = pack(FOREIGN / "mds" / "merged", tmp_path / "dst")
    images = {row["image"].split()[0]: number for number, row in enumerate(read_by_streaming)}
    found = read(tmp_path / "dst", images)
    assert [found[number]["label"] for number in range(COUNT)] == [row["label"] for row in read_by_streaming]
    assert [found[number]["json"].get("extra") for number in range(COUNT)] == [None] * 3 + ["more"] * 3
    assert len({one["json"]["path"] for one in found.values()}) == COUNT
    parts = {part.name: part.role or part.reason for part in report.account.parts}
    assert parts["extra"] == "entries of json"
    assert parts["0/index.json"] == "index.json does not name it"


def test_annotations_with_further_elements_in_a_later_file_are_kept(tmp_path: Path) -> None:
    case = annotated(tmp_path, "voc/globox", "images", 0, set())
    shutil.copy(FOREIGN / "voc" / "datumaro" / "Annotations" / "photo_2.xml", case.src / "Annotations")
    report = pack(case.src, tmp_path / "dst")
    own = {part.name for part in report.account.parts if part.kind == "entry"}
    stored_elements = {name for one in read(tmp_path / "dst", case.images).values() for name in one["json"]}
    xml = {
        element.tag
        for path in (case.src / "Annotations").glob("*.xml")
        for element in ElementTree.parse(path).getroot()
    }
    assert own == xml
    assert xml - {"object", "size"} <= stored_elements


@pytest.mark.parametrize(
    ("first", "second", "name", "message"),
    [
        ("coco/datumaro_instances_box", "coco/sahi.json", "instances_val.json", "have different categories"),
        ("yolo/supervision_boxes", "yolo/sahi/data.yml", "data.yml", "keep one if all label files have its numbers"),
    ],
)
def test_annotation_files_with_different_classes_are_refused(
    first: str, second: str, name: str, message: str, tmp_path: Path
) -> None:
    case = annotated(tmp_path, first, "images", 0, set())
    (case.src / name).write_text((FOREIGN / second).read_text().replace("fig tree", "owl"))
    with pytest.raises(SourceError, match=message):
        pack(case.src, tmp_path / "dst")


@pytest.mark.parametrize("tree", ["folder", "tar", "zip"])
def test_a_caption_that_only_later_images_of_a_tree_have_is_their_field(tree: str, tmp_path: Path) -> None:
    files = TREE | {f"{CLASSES[n]}/{n}.txt": captions()[n].encode() for n in range(3, COUNT)}
    (tmp_path / "src").mkdir()
    report = pack(WRITE_TREE[tree](tmp_path / "src", files), tmp_path / "dst")
    assert report.account.attached == {"field txt": 3}
    assert {number: one.get("txt") for number, one in read(tmp_path / "dst").items()} == {
        number: captions()[number].encode() if number > 2 else None for number in range(COUNT)
    }


@pytest.mark.parametrize("kind", ["hdf5", "lmdb", "numpy", "tensors", "zarr"])
def test_two_files_of_a_format_of_single_files_are_refused(kind: str, tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / "src" / name).mkdir(parents=True)
        CASES[kind](tmp_path / "src" / name)
    with pytest.raises(SourceError, match=r"contains no image|has Zarr .* below a folder"):
        pack(tmp_path / "src", tmp_path / "dst")


def test_a_source_that_forgets_a_part_or_a_record_cannot_be_packed() -> None:
    account = Account("row", given=3)
    account.declare("column", ["a", "b"])
    account.use("column", "a", "image")
    with pytest.raises(AssertionError, match=r"no account of.*'b'"):
        account.close(3, [])
    account.leave_out("column", "b", "is empty")
    with pytest.raises(AssertionError, match="3 rows were given, 2 are accounted for"):
        account.close(1, ["is damaged"])


FILES_NEXT_TO_IT = ("preview.png", "labels.csv", "classes.txt", "shard.part", "notes/cat/9.png")
IN_FOLDERS = ["arrow", "dotted", "lmdb", "litdata", "mds", "parquet", "tar", "tfrecord", "webdataset", "zarr", "zip"]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=LITDATA if kind == "litdata" else ()) for kind in IN_FOLDERS]
)
def test_every_file_below_a_folder_is_in_the_account(kind: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    case = CASES[kind](tmp_path / "src")
    folder = case.src if case.src.is_dir() else case.src.parent
    for name in FILES_NEXT_TO_IT:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(0) if name.endswith("png") else b"photo,label\nx,y\n")
    report = wt.pack(folder, tmp_path / "dst", kind=kind, columns=case.columns, workers=1, images="keep")
    assert report.account.packed == len(case.labels)
    left_out = {part.name for part in report.account.parts if part.kind == "file" and part.reason}
    assert left_out - case.names == {*FILES_NEXT_TO_IT}
    assert any("'labels.csv' is a table that does not name" in note for note in report.account.notes)


@pytest.mark.parametrize("kind", ["lmdb", "mds", "zarr"])
def test_an_image_in_the_folder_of_a_format_does_not_decide_what_it_is(kind: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    case = CASES[kind](tmp_path / "src")
    (case.src / "preview.png").write_bytes(png(0))
    assert pack(case.src, tmp_path / "dst", case.columns).account.packed == len(case.labels)


@pytest.mark.parametrize("kind", ["parquet", "tar", "tfrecord", "webdataset", "zip"])
def test_an_image_next_to_files_of_images_is_an_error_that_names_both(kind: str, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    src = CASES[kind](tmp_path / "src").src
    folder = src if src.is_dir() else src.parent
    (folder / "preview.png").write_bytes(png(0))
    with pytest.raises(SourceError, match=rf"'preview.png', and .*: pass --from folder .*, or --from {kind} for"):
        pack(folder, tmp_path / "dst")


def table_of_ids(path: Path) -> Path:
    pq.write_table(pa.table({"image": [png(n) for n in range(COUNT)], "id": [f"a{n}" for n in range(COUNT)]}), path)
    return path


def keyed_shard(path: Path) -> Path:
    with tarfile.open(path, "w") as archive:
        for number in range(COUNT):
            member = tarfile.TarInfo(f"a{number}.png")
            member.size = len(png(number))
            archive.addfile(member, io.BytesIO(png(number)))
            archive.addfile(tarfile.TarInfo(f"a{number}.txt"))
    return path


def keyed_zip(path: Path) -> Path:
    return write_zip(path.parent, {f"a{number}.png": png(number) for number in range(COUNT)})


@pytest.mark.parametrize(
    ("write", "kind"),
    [(table_of_ids, "parquet"), (keyed_shard, "webdataset"), (keyed_zip, "zip")],
)
def test_a_table_that_names_the_images_next_to_it_is_an_error(
    write: Callable[[Path], Path], kind: str, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    write(tmp_path / "src" / f"photos.{'tar' if kind == 'webdataset' else kind}")
    with (tmp_path / "src" / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["photo", "label"], *([f"a{number}", number % 2] for number in range(COUNT))])
    with pytest.raises(
        SourceError, match=rf"labels.csv names {COUNT} images .*\(a0, .* pass --from {kind} .* without it"
    ):
        pack(tmp_path / "src", tmp_path / "dst")
    report = wt.pack(tmp_path / "src", tmp_path / "dst", kind=kind, workers=1, images="keep")
    assert report.account.packed == COUNT
    assert "labels.csv" in {part.name for part in report.account.parts if part.reason}


def test_a_table_of_class_numbers_next_to_numbered_images_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    write_zip(tmp_path / "src", {f"{number}.png": png(number) for number in range(COUNT)})
    (tmp_path / "src" / "classes.csv").write_text("number,name\n0,cat\n1,dog\n")
    report = pack(tmp_path / "src", tmp_path / "dst")
    assert {part.name: part.role for part in report.account.parts}["classes.csv"] == ""
