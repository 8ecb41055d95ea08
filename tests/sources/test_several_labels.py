"""Samples with several labels in files of other programs: a field ``labels.json`` and its class list."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import h5py
import numpy as np
import pandas as pd
import pytest
import torch
import webdataset
import zarr
from folders import manifest_of
from pictures import encode
from PIL import Image
from tfrecords import example, frame

import wds_tools as wt
from wds_tools.errors import LabelError, MissingFieldError, OptionError, SampleError, SourceError
from wds_tools.format.field_classes import ClassList
from wds_tools.reading.opening import open_shards
from wds_tools.reading.stored_samples import stored_samples
from wds_tools.sources.base import SourceOptions
from wds_tools.sources.detect import open_source

NAMES = ("cat", "dog", "fig")
LABELS = [[2, 0], [1], [], [0, 1, 2]]
WORDS = [[NAMES[number] for number in one] for one in LABELS]
HOT = np.array([[number in one for number in range(3)] for one in LABELS], np.uint8)
PIXELS = np.stack([np.full((8, 8, 3), 60 * number, np.uint8) for number in range(4)])


def png(number: int) -> bytes:
    return encode(Image.fromarray(PIXELS[number]), "PNG")


def table_of(tmp_path: Path, labels: list[Any]) -> pd.DataFrame:
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    return pd.DataFrame({"path": [f"{number}.png" for number in range(len(labels))], "labels": labels})


def csv_with_separators(tmp_path: Path) -> dict[str, Any]:
    table = table_of(tmp_path, [" ".join(words) for words in WORDS])
    table.drop(2).to_csv(tmp_path / "t.csv", index=False)
    return {"src": tmp_path / "t.csv", "label_separator": " "}


def csv_of_python_lists(tmp_path: Path) -> dict[str, Any]:
    table_of(tmp_path, WORDS).to_csv(tmp_path / "t.csv", index=False)
    return {"src": tmp_path / "t.csv"}


def json_lines(tmp_path: Path) -> dict[str, Any]:
    table_of(tmp_path, WORDS).to_json(tmp_path / "t.jsonl", orient="records", lines=True)
    return {"src": tmp_path / "t.jsonl"}


def parquet_of_names(tmp_path: Path) -> dict[str, Any]:
    frame = pd.DataFrame({"image": [png(number) for number in range(4)], "labels": WORDS})
    frame.to_parquet(tmp_path / "t.parquet")
    return {"src": tmp_path / "t.parquet"}


def parquet_of_numbers(tmp_path: Path) -> dict[str, Any]:
    frame = pd.DataFrame({"image": [png(number) for number in range(4)], "labels": LABELS})
    frame.to_parquet(tmp_path / "t.parquet")
    return {"src": tmp_path / "t.parquet", "classes": NAMES}


def hugging_face() -> Any:
    import datasets

    features = datasets.Features(
        {"image": datasets.Image(), "tags": datasets.Sequence(datasets.ClassLabel(names=list(NAMES)))}
    )
    images = [Image.fromarray(pixels) for pixels in PIXELS]
    return datasets.Dataset.from_dict({"image": images, "tags": LABELS}, features=features)


def hugging_face_parquet(tmp_path: Path) -> dict[str, Any]:
    hugging_face().to_parquet(tmp_path / "t.parquet")
    return {"src": tmp_path / "t.parquet"}


def hugging_face_on_disk(tmp_path: Path) -> dict[str, Any]:
    hugging_face().save_to_disk(tmp_path / "saved")
    return {"src": tmp_path / "saved"}


def hugging_face_stream(tmp_path: Path) -> dict[str, Any]:
    return {"src": hugging_face().to_iterable_dataset()}


def hugging_face_object(tmp_path: Path) -> dict[str, Any]:
    return {"src": hugging_face()}


def hdf5_rows(tmp_path: Path) -> dict[str, Any]:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["labels"] = PIXELS, HOT.astype(np.float32)
        file["class_names"] = list(NAMES)
    return {"src": tmp_path / "a.h5"}


def numpy_rows(tmp_path: Path) -> dict[str, Any]:
    np.savez(tmp_path / "a.npz", images=PIXELS, labels=HOT.astype(bool))
    return {"src": tmp_path / "a.npz", "classes": NAMES}


def zarr_rows(tmp_path: Path) -> dict[str, Any]:
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w")
    group["images"], group["labels"] = PIXELS, HOT
    group.attrs["classes"] = list(NAMES)
    return {"src": tmp_path / "a.zarr"}


def tensors(tmp_path: Path) -> dict[str, Any]:
    torch.save({"images": torch.from_numpy(PIXELS), "labels": torch.from_numpy(HOT)}, tmp_path / "a.pt")
    return {"src": tmp_path / "a.pt", "classes": NAMES}


class Items(torch.utils.data.Dataset[Any]):
    """A dataset of torch, as torchvision's CelebA: an image, and 0 or 1 for each attribute."""

    classes = NAMES

    def __len__(self) -> int:
        return 4

    def __getitem__(self, number: int) -> Any:
        return Image.fromarray(PIXELS[number]), torch.from_numpy(HOT[number])


def torch_dataset(tmp_path: Path) -> dict[str, Any]:
    return {"src": Items()}


def shards_of_webdataset(tmp_path: Path) -> dict[str, Any]:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for number, words in enumerate(WORDS):
            writer.write({"__key__": f"{number}", "png": png(number), "json": {"labels": words}})
    return {"src": tmp_path / "a.tar", "columns": {"label": "json:labels"}}


def shards_with_rows(tmp_path: Path) -> dict[str, Any]:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        for number, row in enumerate(HOT):
            writer.write({"__key__": f"{number}", "png": png(number), "target.npy": row})
    return {"src": tmp_path / "a.tar", "columns": {"label": "target.npy"}, "classes": NAMES}


SOURCES = [
    csv_with_separators, csv_of_python_lists, json_lines, parquet_of_names, parquet_of_numbers, hugging_face_parquet,
    hugging_face_on_disk, hugging_face_stream, hugging_face_object, hdf5_rows, numpy_rows, zarr_rows, tensors,
    torch_dataset, shards_of_webdataset, shards_with_rows,
]  # fmt: skip


def stored(folder: Path) -> dict[int, list[str]]:
    """Return the names of the labels of each sample, by the grey value of its image."""
    shards = open_shards(folder)
    names = shards.manifest.field_classes["labels.json"].names
    found = {}
    for number in range(len(shards.locations)):
        for sample in stored_samples(shards, number):
            assert "cls" not in sample.fields
            image = next(data for name, data in sample.fields.items() if name in ("png", "jpg"))
            grey = Image.open(io.BytesIO(bytes(image))).convert("L").getpixel((0, 0))
            found[int(grey) // 60] = [names[label] for label in json.loads(bytes(sample.fields["labels.json"]))]
    return found


@pytest.mark.parametrize("source", SOURCES, ids=lambda function: function.__name__)
def test_several_labels_become_a_field_with_a_class_list(
    source: Callable[[Path], dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    report = wt.pack(dst=tmp_path / "d", workers=1, **source(tmp_path / "src"))
    assert dict(report.manifest.field_classes) == {"labels.json": ClassList(NAMES)}
    assert report.manifest.classes == ()
    expected = {number: sorted(words) for number, words in enumerate(WORDS)}
    if source is csv_with_separators:
        del expected[2]  # pandas reads an empty text as a missing value
    assert {number: sorted(words) for number, words in stored(tmp_path / "d").items()} == expected


@pytest.fixture
def packed_labels(tmp_path: Path) -> Path:
    (tmp_path / "src").mkdir()
    wt.pack(dst=tmp_path / "packed_labels", workers=1, shuffle=False, **json_lines(tmp_path / "src"))
    return tmp_path / "packed_labels"


def test_a_batch_has_1_for_each_label(packed_labels: Path) -> None:
    fields = {"image": wt.Image(), "labels": wt.MultiHot()}
    with wt.make_loader(packed_labels, batch_size=4, fields=fields, num_workers=0) as loader:
        (batch,) = loader
    assert batch.labels.dtype == torch.float32
    assert torch.equal(batch.labels, torch.from_numpy(HOT).float())
    torch.nn.functional.binary_cross_entropy_with_logits(torch.zeros(4, 3), batch.labels)
    dataset = wt.StreamingDataset(packed_labels, batch_size=2, fields={"labels": wt.MultiHot()})
    assert torch.equal(torch.stack([sample.labels for sample in dataset]), torch.from_numpy(HOT).float())


def test_labels_of_a_json_entry_are_loaded_by_number_and_by_name(tmp_path: Path) -> None:
    with wt.ShardWriter(tmp_path / "d" / "a-%d.tar") as writer:
        for number, words in enumerate(WORDS):
            objects = [{"category": one} for one in LABELS[number]]
            writer.write({"__key__": f"{number}", "png": png(number), "json": {"words": words, "objects": objects}})
    fields = {
        "words": wt.MultiHot("json", path="words", classes=NAMES),
        "objects": wt.MultiHot("json", path="objects.category", classes=3),
    }
    with wt.make_loader(tmp_path / "d", batch_size=4, fields=fields, num_workers=0) as loader:
        (batch,) = loader
    assert torch.equal(batch.words, torch.from_numpy(HOT).float())
    assert torch.equal(batch.objects, torch.from_numpy(HOT).float())


@pytest.mark.parametrize(("classes", "found"), [(2, "2"), (["cat", "dog"], "fig")])
def test_a_label_that_is_not_among_the_classes_is_an_error(tmp_path: Path, classes: Any, found: str) -> None:
    with wt.ShardWriter(tmp_path / "d" / "a-%d.tar") as writer:
        writer.write({"__key__": "0", "json": {"labels": [2 if classes == 2 else "fig"]}})
    fields = {"labels": wt.MultiHot("json", path="labels", classes=classes)}
    with (
        wt.make_loader(tmp_path / "d", batch_size=1, fields=fields, num_workers=0) as loader,
        pytest.raises(SampleError, match=f"has the label '{found}'; allowed are class numbers from 0 to 1"),
    ):
        next(iter(loader))


def test_labels_without_class_list_need_their_number(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    arguments = parquet_of_numbers(tmp_path / "src") | {"classes": None}
    wt.pack(dst=tmp_path / "d", workers=1, **arguments)
    with pytest.raises(OptionError, match=r"no class list for 'labels.json': give the number of classes"):
        wt.make_loader(tmp_path / "d", batch_size=1, fields={"labels": wt.MultiHot()})
    with pytest.raises(MissingFieldError, match=r"several labels: load them as .*MultiHot\(\)"):
        wt.make_loader(tmp_path / "d", batch_size=1)


@pytest.mark.parametrize("classes", [0, True, [], "cat"])
def test_classes_that_are_none_are_refused(classes: Any) -> None:
    with pytest.raises(OptionError, match="MultiHot"):
        wt.MultiHot(classes=classes)


def test_reshard_append_merge_and_splits_keep_the_labels(packed_labels: Path, tmp_path: Path) -> None:
    report = wt.reshard(packed_labels, tmp_path / "again", workers=1, shuffle=True)
    assert not [note for note in report.account.notes if "--label" in note]
    assert stored(tmp_path / "again") == dict(enumerate(WORDS))
    more = pd.DataFrame({"path": ["0.png", "1.png"], "labels": [["dog", "ant"], ["ant"]]})
    more.to_json(tmp_path / "src" / "more.jsonl", orient="records", lines=True)
    wt.append(tmp_path / "src" / "more.jsonl", packed_labels, repeated="append", workers=1)
    assert manifest_of(packed_labels).field_classes == {"labels.json": ClassList((*NAMES, "ant"))}
    assert stored(packed_labels) == {0: ["dog", "ant"], 1: ["ant"], 2: [], 3: WORDS[3]}
    with pytest.raises(LabelError, match="'ant' or no name"):
        wt.merge([packed_labels, tmp_path / "again"], tmp_path / "merged")
    wt.pack(tmp_path / "src" / "more.jsonl", tmp_path / "same", classes=(*NAMES, "ant"), workers=1)
    wt.merge([packed_labels, tmp_path / "same"], tmp_path / "merged")
    assert manifest_of(tmp_path / "merged").field_classes == manifest_of(packed_labels).field_classes
    report = wt.pack(tmp_path / "merged", tmp_path / "whole", dry_run=True)  # its keys occur twice
    assert not [note for note in report.account.notes if "names begin with" in note]
    assert report.preview.lines[0].endswith(": 8 images, 4 classes (cat, dog, fig, ...)")
    reports = wt.pack_splits(tmp_path / "src" / "t.jsonl", tmp_path / "splits", split="a=0.5,b=0.5", workers=1)
    assert {report.manifest.field_classes["labels.json"] for report in reports.values()} == {ClassList(NAMES)}


def test_another_label_replaces_several_labels(packed_labels: Path, tmp_path: Path) -> None:
    for number, (label, count) in enumerate([("", 0), ("json:path", 4)]):
        report = wt.pack(packed_labels, tmp_path / str(number), columns={"label": label}, workers=1)
        assert not report.manifest.field_classes
        assert len(report.manifest.classes or ()) == count
        assert ("cls" in report.manifest.all_fields, "labels.json" in report.manifest.all_fields) == (count > 0, False)
        assert next(part for part in report.account.parts if part.name == "labels.json").reason.startswith("labels are")


def test_samples_with_one_label_and_with_several_are_not_in_one_dataset(packed_labels: Path, tmp_path: Path) -> None:
    pd.DataFrame({"path": ["0.png"], "label": ["cat"]}).to_csv(tmp_path / "src" / "one.csv", index=False)
    with pytest.raises(OptionError, match="have several labels each"):
        wt.append(tmp_path / "src" / "one.csv", packed_labels, workers=1)
    wt.pack(tmp_path / "src" / "one.csv", tmp_path / "one", workers=1)
    with pytest.raises(LabelError, match=r"have several labels each, those of .*one do not"):
        wt.merge([tmp_path / "one", packed_labels], tmp_path / "merged")


def test_one_hot_rows_are_one_label(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["labels"] = PIXELS[:3], np.eye(3)[[2, 0, 1]]
    manifest = wt.pack(tmp_path / "a.h5", tmp_path / "d", classes=NAMES, workers=1, shuffle=False).manifest
    assert (manifest.classes, dict(manifest.field_classes)) == (NAMES, {})
    assert open_shards(tmp_path / "d").index(0).label.tolist() == [2, 0, 1]


def test_features_of_tfrecord_with_several_values_are_several_labels(tmp_path: Path) -> None:
    records = [
        {"image/encoded": png(number), "image/class/label": list(map(float, LABELS[number]))} for number in (0, 1, 3)
    ]
    (tmp_path / "a.tfrecord").write_bytes(b"".join(frame(example(record)) for record in records))
    wt.pack(tmp_path / "a.tfrecord", tmp_path / "d", classes=NAMES, workers=1)
    assert stored(tmp_path / "d") == {number: WORDS[number] for number in (0, 1, 3)}


def test_an_array_of_other_numbers_is_not_several_labels(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["labels"] = PIXELS, np.arange(12).reshape(4, 3)
    report = wt.pack(tmp_path / "a.h5", tmp_path / "d", dry_run=True)
    assert report.account.notes == [
        "array 'labels' is not the label, because its values are not numbers or names (array)"
    ]


def test_a_writer_numbers_names_by_its_class_list(tmp_path: Path) -> None:
    with wt.ShardWriter(tmp_path / "d" / "a-%d.tar", field_classes={"labels.json": NAMES}) as writer:
        for number, words in enumerate(WORDS):
            writer.write({"__key__": f"{number}", "png": png(number), "labels.json": words})
        with pytest.raises(SampleError, match=r"class 'ant' in labels.json is not among the given classes"):
            writer.write({"__key__": "4", "labels.json": ["ant"]})
        with pytest.raises(SampleError, match="label 3, but there are only 3 class names"):
            writer.write({"__key__": "4", "labels.json": [3]})
    assert stored(tmp_path / "d") == dict(enumerate(WORDS))


def test_a_writer_refuses_names_without_numbers_and_lists_in_cls(tmp_path: Path) -> None:
    with wt.ShardWriter(tmp_path / "d" / "a-%d.tar") as writer:
        with pytest.raises(SampleError, match=r"'labels.json' has the names .'cat'., whose numbers are not known"):
            writer.write({"__key__": "0", "labels.json": ["cat"]})
        with pytest.raises(SampleError, match=r"several labels of a sample are the field 'labels.json'"):
            writer.write({"__key__": "0", "cls": [1, 2]})
        writer.write({"__key__": "0", "labels.json": [1, 2]})


def test_packed_names_are_not_one_class(tmp_path: Path) -> None:
    table_of(tmp_path, ["cat dog", "dog", "cat"]).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(
        LabelError, match="'cat dog', and its parts 'cat', 'dog' are labels too: pass --label-separator"
    ):
        wt.pack(tmp_path / "t.csv", tmp_path / "d", workers=1)
    assert not (tmp_path / "d").exists()


def test_a_label_of_several_lines_is_not_one_class(tmp_path: Path) -> None:
    table_of(tmp_path, ["cat\ndog", "cat\n", "dog"]).to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(LabelError, match=r"the label 'cat\\ndog', which has several lines: pass --label-separator \$"):
        wt.pack(tmp_path / "t.csv", tmp_path / "d", workers=1)
    report = wt.pack(tmp_path / "t.csv", tmp_path / "d", label_separator="\n", workers=1)
    assert report.manifest.field_classes["labels.json"].names == ("cat", "dog")


def test_values_that_are_missing_in_lists_of_labels_are_counted(tmp_path: Path) -> None:
    table_of(tmp_path, [["cat", None], ["dog"], ["fig", None], ["cat"]]).to_json(
        tmp_path / "t.jsonl", orient="records", lines=True
    )
    report = wt.pack(tmp_path / "t.jsonl", tmp_path / "d", workers=1)
    assert report.account.notes == ["2 missing values in lists of labels: the other labels are kept"]


def test_pairs_of_numbers_that_all_differ_are_not_taken_as_several_labels() -> None:
    pairs = [(PIXELS[0], (number, 100 + number)) for number in range(24)]
    with pytest.raises(LabelError, match=r"lists of 2 numbers as labels, and all differ.*--label-type number"):
        open_source(pairs).scan()
    listing = open_source(pairs, options=SourceOptions(label_type="number")).scan()
    assert listing.inputs[1].labels == (1, 101)


@pytest.mark.parametrize(
    "flags",
    [
        {"is_train": [0, 0, 1, 1], "is_val": [1, 1, 0, 0]},
        {"has_text": [1, 1, 1, 1], "flipped": [0, 0, 0, 0]},
        {"x_sign": [1, -1, 1, -1], "y_sign": [-1, -1, 1, 1]},
    ],
)
def test_columns_of_splits_constants_and_signs_are_not_classes(tmp_path: Path, flags: dict[str, list[int]]) -> None:
    names = [f"{row}.png" for row in range(4)]
    src = tmp_path / "src"
    src.mkdir()
    for row, name in enumerate(names):
        (src / name).write_bytes(png(row))
    pd.DataFrame({"image": names, **flags}).to_csv(src / "t.csv", index=False)
    found = open_source(src, kind="table").scan()
    assert not found.classes
    assert "label" not in {part.role for part in found.account.parts}


def test_two_columns_of_0_and_1_next_to_a_column_of_names_are_refused(tmp_path: Path) -> None:
    names = [f"{row}.png" for row in range(4)]
    src = tmp_path / "src"
    src.mkdir()
    for row, name in enumerate(names):
        (src / name).write_bytes(png(row))
    table = pd.DataFrame({"image": names, "male": [0, 1, 0, 1], "female": [1, 0, 1, 0], "diagnosis": ["a", "b"] * 2})
    table.to_csv(src / "t.csv", index=False)
    with pytest.raises(SourceError, match=r"'diagnosis' \(a, b\), 'male' .*--label diagnosis"):
        open_source(src, kind="table").scan()
    report = wt.pack(src, tmp_path / "dst", columns={"label": "diagnosis"}, workers=1, images="keep")
    assert report.manifest.classes == ("a", "b")


OF_BOXES = [[7, 3, 7], [3], []]
BOXES = [[[0.0, 0, 2, 2], [1.0, 1, 3, 3], [2.0, 2, 4, 4]], [[1.0, 1, 2, 2]], []]


def boxes_in_parquet(path: Path) -> Any:
    images = [png(number) for number in range(3)]
    pd.DataFrame({"image": images, "boxes": BOXES, "labels": OF_BOXES}).to_parquet(path / "a.parquet")
    return path / "a.parquet"


def boxes_in_csv(path: Path) -> Any:
    table = table_of(path, OF_BOXES)
    table["boxes"] = BOXES
    table.to_csv(path / "t.csv", index=False)
    return path / "t.csv"


def boxes_in_hdf5(path: Path) -> Any:
    with h5py.File(path / "a.h5", "w") as file:
        file["images"] = PIXELS[:3]
        labels = file.create_dataset("labels", (3,), h5py.vlen_dtype("i8"))
        boxes = file.create_dataset("boxes", (3,), h5py.vlen_dtype("f4"))
        for row in range(3):
            labels[row], boxes[row] = OF_BOXES[row], np.ravel(BOXES[row])
    return path / "a.h5"


def flat_boxes_in_tfrecord(path: Path) -> Any:
    rows = [(png(0), [7, 3, 7], [0.5] * 12), (png(1), [3], [0.5] * 4)]
    records = (frame(example({"image": image, "label": labels, "bbox": boxes})) for image, labels, boxes in rows)
    (path / "a.tfrecord").write_bytes(b"".join(records))
    return path / "a.tfrecord"


def boxes_in_objects(_: Path) -> Any:
    return [
        {"image": PIXELS[row], "boxes": torch.tensor(BOXES[row]).reshape(-1, 4), "labels": torch.tensor(OF_BOXES[row])}
        for row in range(3)
    ]


def tokens_in_parquet(path: Path) -> Any:
    rows = {"image": [png(0), png(1)], "tokens": [["a", "b", "c"], ["d"]], "labels": [[7, 3, 7], [3]]}
    pd.DataFrame(rows).to_parquet(path / "a.parquet")
    return path / "a.parquet"


@pytest.mark.parametrize(
    "write",
    [boxes_in_parquet, boxes_in_csv, boxes_in_hdf5, flat_boxes_in_tfrecord, boxes_in_objects, tokens_in_parquet],
)
def test_labels_of_boxes_are_not_labels_of_the_image(tmp_path: Path, write: Callable[[Path], Any]) -> None:
    report = wt.pack(write(tmp_path), tmp_path / "d", workers=1, shuffle=False)
    assert any("is not the label, because it has a value for each entry of" in note for note in report.account.notes)
    fields = next(iter(stored_samples(open_shards(tmp_path / "d"), 0))).fields
    assert not {"cls", "labels.json"} & fields.keys()
    name = "label" if "tfrecord" in write.__name__ else "labels"
    if f"{name}.npy" in fields:
        kept = np.load(io.BytesIO(fields[f"{name}.npy"])).tolist()
    else:
        kept = json.loads(bytes(fields["json"]))[name]
    assert kept in ([7, 3, 7], "[7, 3, 7]")


def test_a_text_next_to_one_box_per_image_is_the_label(tmp_path: Path) -> None:
    rows = {"image": [png(0), png(1)], "bbox": [[[1, 1, 2, 2]], [[0, 0, 2, 2]]], "label": ["cat", "dog"]}
    pd.DataFrame(rows).to_parquet(tmp_path / "a.parquet")
    assert wt.pack(tmp_path / "a.parquet", tmp_path / "d", workers=1).manifest.classes == ("cat", "dog")


def test_numbers_of_classes_are_not_one_hot(tmp_path: Path) -> None:
    features = datasets.Features(
        {"image": datasets.Image(), "labels": datasets.List(datasets.ClassLabel(names=["a", "b"]))}
    )
    rows = {"image": [{"bytes": png(row), "path": None} for row in range(3)], "labels": [[0, 1], [1, 0], [0, 1]]}
    datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "a.parquet")
    wt.pack(tmp_path / "a.parquet", tmp_path / "d", workers=1)
    assert {tuple(sorted(names)) for names in stored(tmp_path / "d").values()} == {("a", "b")}


def test_bytes_of_a_number_are_not_the_name_of_a_class(tmp_path: Path) -> None:
    with webdataset.TarWriter(str(tmp_path / "a.tar")) as writer:
        writer.write({"__key__": "0", "png": png(0), "cls": struct.pack("<q", 3)})
    with pytest.raises(LabelError, match="has control characters, so it is binary data and not a name"):
        wt.pack(tmp_path / "a.tar", tmp_path / "d", workers=1)
