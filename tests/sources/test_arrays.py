"""Files of arrays as other programs write them: what is packed is compared with what was written."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import zarr
from array_cases import CLASSES, N, Packed, encoded, grey, labels, packed, parts, refusal, rgb, ways_of

import wds_tools as wt
from wds_tools.errors import LabelError, SourceError
from wds_tools.sources.base import SourceOptions
from wds_tools.sources.detect import open_source, open_splits

Write = Callable[[Path, Mapping[str, Any]], Path]


def npz(folder: Path, arrays: Mapping[str, Any]) -> Path:
    np.savez(folder / "a.npz", **{name: np.asarray(value) for name, value in arrays.items()})
    return folder / "a.npz"


def hdf5(folder: Path, arrays: Mapping[str, Any]) -> Path:
    with h5py.File(folder / "a.h5", "w") as file:
        for name, value in arrays.items():
            file[name] = value if not isinstance(value, np.ndarray) or value.dtype.kind != "U" else value.tolist()
    return folder / "a.h5"


def zarr_store(folder: Path, arrays: Mapping[str, Any]) -> Path:
    group = zarr.open_group(folder / "a.zarr", mode="w", zarr_format=2)
    for name, value in arrays.items():
        group.create_array(name, data=np.asarray(value))
    return folder / "a.zarr"


def tensors(folder: Path, arrays: Mapping[str, Any]) -> Path:
    torch.save(
        {
            name: torch.from_numpy(value)
            if isinstance(value, np.ndarray) and value.dtype.kind != "U"
            else np.asarray(value).tolist()
            for name, value in arrays.items()
        },
        folder / "a.pt",
    )
    return folder / "a.pt"


every_format = pytest.mark.parametrize("write", [npz, hdf5, zarr_store, tensors])


def role(path: Path, name: str, **columns: str) -> Any:
    return next(part for part in parts(path, **columns) if part.name == name)


# Roles


@every_format
def test_every_array_is_packed_or_left_out_with_a_reason(tmp_path: Path, write: Write) -> None:
    path = write(
        tmp_path,
        {
            "images": rgb(),
            "labels": labels(),
            "mask": grey(7),
            "boxes": np.arange(4 * N, dtype=np.float32).reshape(N, 4),
            "score": np.linspace(0, 1, N),
            "caption": np.array([f"a photo {row}" for row in range(N)]),
            "photographer": np.array(["ann", "bob"] * (N // 2)),
            "mean": np.zeros(3),
        },
    )
    assert {(part.name, part.role, part.reason) for part in parts(path)} == {
        ("images", "image", ""),
        ("labels", "label", ""),
        ("mask", "image field mask", ""),
        ("boxes", "field boxes.npy", ""),
        ("score", "entries of json", ""),
        ("caption", "field txt", ""),
        ("photographer", "entries of json", ""),
        ("mean", "", f"has 3 rows, and there are {N} images"),
    }
    found = packed(path, tmp_path)
    found.check(rgb(), labels())
    for row, sample in enumerate(found.samples):
        assert sample["txt"] == f"a photo {row}".encode()
        assert np.array_equal(np.load(io.BytesIO(sample["boxes.npy"])), np.arange(4 * row, 4 * row + 4))
        assert found.facts[row]["photographer"] == ("ann", "bob")[row % 2]
        assert found.facts[row]["score"] == pytest.approx(row / (N - 1))
    assert [pixels.tolist() for pixels in found.pixels("mask.png")] == grey(7).tolist()


@every_format
def test_two_arrays_that_could_be_the_images_are_an_error_that_shows_them(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path, {"left": rgb(), "right": rgb(1), "labels": labels()})
    assert "2 arrays that could be the image: 'left' (uint8" in refusal(path)
    assert "--column image=left" in refusal(path)
    packed(path, tmp_path, image="right").check(rgb(1), labels())


@every_format
def test_two_arrays_that_could_be_the_label_are_an_error_that_shows_them(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path, {"images": rgb(), "label": labels(), "target": labels()[::-1].copy()})
    assert "2 arrays that could be the label: 'label' (0, 2, 1), 'target' " in refusal(path)
    assert "--column label=" in refusal(path)
    found = packed(path, tmp_path, label="target")
    found.check(rgb(), labels()[::-1])
    assert [fact["label"] for fact in found.facts] == labels().tolist()


@every_format
def test_integers_with_a_name_of_their_own_are_not_taken_as_labels_without_a_word(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path, {"images": rgb(), "patient": labels()})
    found = packed(path, tmp_path)
    found.check(rgb(), None)
    assert "no label: the array 'patient' (0, 2, 1) could be it; pass --label NAME if it is" in found.notes
    assert [fact["patient"] for fact in found.facts] == labels().tolist()


@every_format
def test_coordinates_and_numbers_with_fractions_are_not_labels(tmp_path: Path, write: Write) -> None:
    values = np.linspace(0, 1, N)
    path = write(tmp_path, {"images": rgb(), "x": values, "y": values * 2})
    found = packed(path, tmp_path)
    found.check(rgb(), None)
    assert [fact["y"] for fact in found.facts] == pytest.approx((values * 2).tolist())
    assert "'y' is not the label, because it is a coordinate next to 'x'" in found.notes


def test_pairs_of_integer_coordinates_are_not_labels(tmp_path: Path) -> None:
    path = npz(tmp_path, {"images": rgb(), "x": labels(), "y": labels()})
    found = packed(path, tmp_path)
    found.check(rgb(), None)
    assert "array 'y' is not the label, because it is a coordinate next to 'x': pass --label y if it is" in found.notes
    packed(path, tmp_path, "y", label="y").check(rgb(), labels())


@every_format
def test_arrays_that_may_be_labels_by_their_values_are_noted(tmp_path: Path, write: Write) -> None:
    hot = np.eye(3, dtype=np.int64)[labels()]
    cases: list[tuple[Any, str]] = [
        (np.array(CLASSES)[labels()], "the array 'kind' (cat, sea, dog) could be it; pass --label NAME if it is"),
        (hot, "the array 'kind' has only 0 and 1 in lists of 3 values: pass --label kind if they are classes"),
        (
            2 * hot - 1,
            "the array 'kind' has only -1 and 1 in lists of 3 values: write 0 instead of -1",
        ),
        (hot * 0.5, ""),
        (labels() == 1, "the array 'kind' (False, True) could be it; pass --label NAME if it is"),
        ([f"{row}" for row in range(N)], ""),
    ]
    for values, note in cases:
        path = write(tmp_path, {"images": rgb(), "kind": values})
        notes = open_source(path).scan().account.notes
        assert len(notes) == bool(note)
        assert all(one.startswith(f"no label: {note}") for one in notes)
        if "pass --label kind" in note or "NAME" in note:
            chosen = open_source(path, options=SourceOptions(columns={"label": "kind"})).scan()
            numbers = labels() == 1 if values.dtype.kind == "b" else labels()
            assert [entry.label for entry in chosen.inputs] == numbers.astype(int).tolist()
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_an_identifier_of_every_row_is_not_a_label(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (120, 5, 5), np.uint8)
    path = npz(tmp_path, {"images": images, "id": np.arange(120), "y": np.arange(120) + 7})
    found = packed(path, tmp_path)
    found.check(images, None)
    assert [fact["id"] for fact in found.facts] == list(range(120))
    assert "'y' is not the label, because it has a different value in each row" in found.notes


def test_whole_numbers_stored_as_floats_are_labels(tmp_path: Path) -> None:
    packed(npz(tmp_path, {"images": rgb(), "labels": labels().astype(float)}), tmp_path).check(rgb(), labels())


def test_masks_are_not_the_images_if_the_images_have_another_type(tmp_path: Path) -> None:
    path = npz(tmp_path, {"images": rgb().astype(np.float32), "masks": grey()})
    assert "'images' is float32; allowed are uint8 pixels" in refusal(path)


def test_images_that_are_flattened_are_an_error_even_next_to_masks(tmp_path: Path) -> None:
    path = npz(tmp_path, {"data": rgb().reshape(N, -1), "masks": grey(), "labels": labels()})
    assert "'data' is uint8[6, 504]; allowed are uint8 pixels [N, H, W]" in refusal(path)


def test_labels_of_another_length_are_an_error(tmp_path: Path) -> None:
    path = npz(tmp_path, {"images": rgb(), "labels": labels()[:4]})
    assert "4 labels in 'labels', but 6 images in 'images'" in refusal(path)
    assert role(path, "labels", label="").reason == "has 4 rows, and there are 6 images"


def test_one_hot_labels_are_labels(tmp_path: Path) -> None:
    path = npz(tmp_path, {"images": rgb(), "labels": np.eye(3, dtype=int)[labels()]})
    packed(path, tmp_path).check(rgb(), labels())


def test_labels_with_several_numbers_per_image_are_a_field_with_a_note_if_they_are_not_0_and_1(tmp_path: Path) -> None:
    path = npz(tmp_path, {"images": rgb(), "labels": np.arange(N * 3).reshape(N, 3)})
    assert "label 'labels' is array; allowed are numbers and names" in refusal(path, label="labels")
    found = packed(path, tmp_path)
    found.check(rgb(), None)
    assert "array 'labels' is not the label, because its values are not numbers or names (array)" in found.notes
    assert [np.load(io.BytesIO(sample["labels.npy"])).tolist()[0] for sample in found.samples] == [0, 3, 6, 9, 12, 15]


@pytest.mark.parametrize("shape", [(N, 1), (N, 1, 1, 1), (1, N)])  # the last as of scipy.io.loadmat
def test_labels_with_axes_of_one_value_are_labels(tmp_path: Path, shape: tuple[int, ...]) -> None:
    packed(npz(tmp_path, {"x": rgb(), "y": labels().reshape(shape)}), tmp_path).check(rgb(), labels())


@every_format
def test_splits_in_one_file_are_packed_one_at_a_time_with_their_own_labels(tmp_path: Path, write: Write) -> None:
    arrays = {"x_train": rgb(), "y_train": labels(), "x_test": rgb(1), "y_test": labels()[::-1].copy()}
    path = write(tmp_path, arrays)
    assert "pack one split at a time" in refusal(path)
    if path.is_file():
        with pytest.raises(SourceError, match="one at a time, as with --column image=x_train and then image=x_test"):
            open_splits(path)
    packed(path, tmp_path, image="x_test").check(rgb(1), labels()[::-1])
    assert role(path, "y_train", image="x_test").reason == "belongs to another split than 'x_test'"
    assert role(path, "x_train", image="x_test").reason == "belongs to another split than 'x_test'"


@every_format
def test_class_names_in_an_array_are_those_of_the_labels(tmp_path: Path, write: Write) -> None:
    path = write(tmp_path, {"images": rgb(), "labels": labels(), "class_names": np.array(CLASSES)})
    assert packed(path, tmp_path).classes == CLASSES
    assert role(path, "class_names").role == "class names"


def test_as_many_class_names_as_images_are_not_labels(tmp_path: Path) -> None:
    names = [f"class {number}" for number in range(N)]
    path = npz(tmp_path, {"images": rgb(), "labels": labels(), "classes": np.array(names)})
    found = packed(path, tmp_path)
    found.check(rgb(), labels())
    assert found.classes == tuple(names)


def test_class_names_that_can_be_the_class_of_each_image_are_noted(tmp_path: Path) -> None:
    arrays = {"images": rgb()[:3], "labels": np.array([2, 0, 1]), "categories": ["sea", "cat", "dog"]}
    found = packed(npz(tmp_path, arrays), tmp_path)
    assert found.classes == ("sea", "cat", "dog")
    assert "array 'categories', as long as there are images, is taken as the class names" in found.notes


def test_an_array_or_attribute_called_names_has_class_names_if_it_has_one_for_each_number(tmp_path: Path) -> None:
    arrays = {"images": rgb(), "labels": np.arange(N) % 3}
    for names, classes in ((CLASSES[:3], CLASSES[:3]), ([f"{row}.jpg" for row in range(N)], ()), (["x", "y"], ())):
        found = packed(npz(tmp_path, {**arrays, "names": names}), tmp_path / str(len(names)))
        assert found.classes == classes
    for owner in ("labels", "/"):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["images"], file["labels"] = arrays["images"], arrays["labels"]
            file[owner].attrs["names"] = CLASSES[:3]
        report = wt.pack(tmp_path / "a.h5", tmp_path / "dst", dry_run=True)
        assert report.manifest.classes == (CLASSES[:3] if owner == "labels" else ())
        reasons = [part.reason for part in report.account.parts if part.kind == "attribute" and part.reason]
        assert ["pass them with --classes" in reason for reason in reasons] == [True] * (owner == "/")


@pytest.mark.parametrize(("first", "is_noted"), [(1, True), (0, False), (2, False)])
def test_labels_that_may_count_from_one_are_noted(tmp_path: Path, first: int, is_noted: bool) -> None:
    numbers = np.array([first, 2, 3, 2, 3, 3])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["labels"] = rgb(), numbers
        file["labels"].attrs["classes"] = ["ant", "bee", "cat", "dog"]
    np.savez(tmp_path / "a.npz", images=rgb(), labels=numbers, classes=["ant", "bee", "cat", "dog"])
    for path in (tmp_path / "a.h5", tmp_path / "a.npz"):
        account = wt.pack(path, tmp_path / "dst", dry_run=True).account
        assert any("no sample has class 0, 'ant'" in note for note in account.notes) == is_noted


@pytest.mark.parametrize("names", [["0", "2", "5"], ["1", "2", "3"]])
def test_class_names_that_are_numbers_are_never_those_of_other_labels(tmp_path: Path, names: list[str]) -> None:
    positions = np.arange(N) % 3
    values, few = np.array(names, int)[positions], np.array(names, int)[positions % 2]
    for numbers in (values, few, positions):  # by value, either, by position
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["images"], file["labels"], file.attrs["classes"] = rgb(), numbers, names
        arrays = {"images": torch.tensor(rgb()), "labels": torch.tensor(numbers), "classes": names}
        torch.save(arrays, tmp_path / "a.pt")
        for path in (npz(tmp_path, arrays), tmp_path / "a.h5", tmp_path / "a.pt"):
            if numbers is few:
                with pytest.raises(LabelError, match=r"by its name, or '\d' by its position; pass --classes"):
                    wt.pack(path, tmp_path / "either")
                continue
            found = packed(path, tmp_path / f"{path.suffix}{numbers is values}")
            found.check(rgb(), numbers)
            assert found.classes == (() if numbers is values else tuple(names))


def test_two_lists_of_class_names_in_different_orders_are_an_error(tmp_path: Path) -> None:
    path = npz(tmp_path, {"images": rgb(), "labels": labels(), "classes": CLASSES, "class_names": CLASSES[::-1]})
    with pytest.raises(LabelError, match=r"different order in 'classes' \('cat', 'dog', 'sea'\) than in 'class_names'"):
        open_source(path).scan()


def test_a_mask_named_labels_is_a_field_with_a_note(tmp_path: Path) -> None:
    found = packed(npz(tmp_path, {"images": rgb(), "labels": grey()}), tmp_path)
    found.check(rgb(), None)
    assert [pixels.tolist() for pixels in found.pixels("labels.png")] == grey().tolist()
    assert "array 'labels' is not the label, because its values are not numbers or names (pixels of" in found.notes


# Layouts


@every_format
@pytest.mark.parametrize("axes", ways_of(4))
def test_channels_come_last_or_first(tmp_path: Path, write: Write, axes: tuple[int, ...]) -> None:
    path = write(tmp_path, {"images": np.ascontiguousarray(rgb().transpose(axes)), "labels": labels()})
    packed(path, tmp_path).check(rgb(), labels())


@pytest.mark.parametrize("shape", [(5, 3, 3, 3), (5, 3, 8, 3), (5, 8, 8, 2), (8, 7, 3, 30), (5, 1, 8, 1)])
def test_an_ambiguous_or_unknown_layout_is_an_error(tmp_path: Path, shape: tuple[int, ...]) -> None:
    assert "allowed are [H, W]" in refusal(npz(tmp_path, {"images": np.zeros(shape, np.uint8)}))


@pytest.mark.parametrize("shape", [(40, 50, 3), (3, 40, 50), (40, 50, 1)])
def test_a_single_image_is_not_taken_as_several_grey_ones(tmp_path: Path, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "a.npy", np.zeros(shape, np.uint8))
    assert "one image with channels or several images without" in refusal(tmp_path / "a.npy")


def test_three_grey_images_with_labels_are_packed(tmp_path: Path) -> None:
    packed(npz(tmp_path, {"images": grey()[:3], "labels": labels()[:3]}), tmp_path).check(grey()[:3], labels()[:3])


# NumPy


RECORDS = [("photo", "u1", (12, 14, 3)), ("label", ">i2"), ("meta", [("iso", "f4"), ("by", "S5")])]


def records() -> np.ndarray:
    made = np.zeros(N, RECORDS)
    made["photo"], made["label"] = rgb(), labels()
    made["meta"]["iso"], made["meta"]["by"] = np.arange(N) / 2, [b"ann", b"bob"] * (N // 2)
    return made


def check_records(found: Packed) -> None:
    found.check(rgb(), labels())
    assert [fact["meta_iso"] for fact in found.facts] == [row / 2 for row in range(N)]
    assert [fact["meta_by"] for fact in found.facts] == ["ann", "bob"] * (N // 2)


def test_records_of_a_npy_file_are_read_by_their_fields(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", records())
    check_records(packed(tmp_path / "a.npy", tmp_path))


def test_pickled_objects_in_a_npz_file_are_left_out_or_refused_if_they_are_the_labels(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=rgb(), labels=labels(), meta=np.array({"a": 1}, object), n=np.array(3))
    assert "because they are pickles" in role(tmp_path / "a.npz", "meta").reason
    assert role(tmp_path / "a.npz", "n").reason == "is a single value, not one for each image"
    np.savez(tmp_path / "b.npz", images=rgb(), labels=np.array(["cat"] * N, object))
    assert "'labels' cannot be used" in refusal(tmp_path / "b.npz")


def test_fortran_order_and_big_endian_values_are_read(tmp_path: Path) -> None:
    path = npz(
        tmp_path,
        {
            "images": np.asfortranarray(rgb()),
            "labels": labels().astype(">i4"),
            "boxes": np.arange(N * 4, dtype=">f8").reshape(N, 4),
        },
    )
    found = packed(path, tmp_path)
    found.check(rgb(), labels())
    boxes = [np.load(io.BytesIO(sample["boxes.npy"])) for sample in found.samples]
    assert np.array_equal(boxes, np.arange(N * 4).reshape(N, 4))
    assert {box.dtype.isnative for box in boxes} == {True}


def test_text_that_is_not_utf_8_is_an_error_that_names_the_row(tmp_path: Path) -> None:
    path = npz(tmp_path, {"images": rgb(), "title": np.array([b"caf\xe9"] * N)})
    assert "array 'title' has text in row 0 that is not UTF-8" in refusal(path)


def test_a_second_text_goes_into_json(tmp_path: Path) -> None:
    texts = {name: [f"{name} {row}" for row in range(N)] for name in ("caption", "text")}
    found = packed(npz(tmp_path, {"images": rgb(), **texts}), tmp_path)
    assert found.samples[2]["txt"] == b"caption 2"
    assert found.facts[2]["text"] == "text 2"


@every_format
def test_a_text_that_names_splits_is_stated(tmp_path: Path, write: Write) -> None:
    splits = np.array(["train"] * (N - 1) + ["test"])
    path = write(tmp_path, {"images": rgb(), "labels": labels(), "split": splits})
    notes = wt.pack(path, tmp_path / "dst", dry_run=True).account.notes
    assert any("array 'split' names splits, 'test', 'train': it becomes an entry of json" in note for note in notes)


def test_several_texts_per_image_become_a_list_in_json(tmp_path: Path) -> None:
    path = npz(tmp_path, {"images": rgb(), "captions": np.array([[f"a{row}", f"b{row}"] for row in range(N)])})
    assert [fact["captions"] for fact in packed(path, tmp_path).facts] == [[f"a{row}", f"b{row}"] for row in range(N)]


def test_encoded_images_of_a_fixed_length_are_packed_byte_for_byte(tmp_path: Path) -> None:
    path = npz(tmp_path, {"images": np.array(encoded()), "labels": labels()})
    found = packed(path, tmp_path)
    assert [sample["jpg"] for sample in found.samples] == encoded()
    assert found.labels == labels().tolist()


# Zarr


@pytest.mark.parametrize("version", [2, 3])
def test_groups_of_zarr_are_read_with_their_own_labels_and_attributes(tmp_path: Path, version: int) -> None:
    root = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    for name, images, numbers in (("train", rgb(), labels()), ("test", rgb(1), labels()[::-1].copy())):
        group = root.create_group(name)
        group.create_array("images", data=images, chunks=(4, 12, 14, 3))
        group.create_array("labels", data=numbers.astype("i2")).attrs["class_names"] = list(CLASSES)
        group.create_array("sharp", data=np.arange(N) % 2 == 0)
    root.attrs["version"] = "1.0"
    assert "--column image=test/images" in refusal(tmp_path / "a.zarr")
    found = packed(tmp_path / "a.zarr", tmp_path, image="train/images")
    found.check(rgb(), labels())
    assert found.classes == CLASSES
    assert [fact["sharp"] for fact in found.facts] == [True, False] * (N // 2)
    by_name = {part.name: part for part in parts(tmp_path / "a.zarr", image="train/images")}
    assert by_name["train/labels@class_names"].role == "class names"
    assert by_name["version"].kind == "attribute"
    assert by_name["version"].reason
    assert by_name["test/sharp"].reason == "belongs to another split than 'train/images'"
    columns = {"image": "train/images"}
    assert wt.pack(tmp_path / "a.zarr", tmp_path / "dst", columns=columns, dry_run=True).account.notes == []
    for group in ("test", "train"):
        del root[f"{group}/labels"], root[f"{group}/sharp"]
    assert wt.pack(tmp_path / "a.zarr", tmp_path / "dst", columns=columns, dry_run=True).account.notes == []


def test_text_of_a_fixed_length_in_zarr_is_a_label(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    group.create_array("images", data=rgb())
    group.create_array("labels", data=np.array([CLASSES[number].encode() for number in labels()]))
    found = packed(tmp_path / "a.zarr", tmp_path)
    found.check(rgb(), labels())
    assert found.classes == CLASSES


def test_shards_of_zarr_are_read(tmp_path: Path) -> None:
    root = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=3)
    root.create_array("images", shape=rgb().shape, dtype="u1", chunks=(1, 12, 14, 3), shards=(4, 12, 14, 3))[:] = rgb()
    root.create_array("labels", data=labels())
    packed(tmp_path / "a.zarr", tmp_path).check(rgb(), labels())


def test_text_and_times_of_zarr_are_kept(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2)
    group.create_array("images", data=rgb())
    group.create_array("species", shape=(N,), dtype="string")[:] = np.array([CLASSES[number] for number in labels()])
    group.create_array("taken", data=np.array(["2020-01-01", "NaT"] * (N // 2), "M8[s]"))
    found = packed(tmp_path / "a.zarr", tmp_path)
    found.check(rgb(), labels())
    assert found.classes == CLASSES
    assert [fact["taken"] for fact in found.facts] == ["2020-01-01T00:00:00", None] * (N // 2)


def test_records_of_zarr_are_read_by_their_fields(tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=2).create_array(
        "table", data=np.array([(number, number / 2) for number in labels()], [("label", "i2"), ("iso", "f4")])
    )
    root = zarr.open_group(tmp_path / "a.zarr")
    root.create_array("images", data=rgb())
    found = packed(tmp_path / "a.zarr", tmp_path)
    found.check(rgb(), labels())
    assert [fact["table_iso"] for fact in found.facts] == [number / 2 for number in labels()]


def test_missing_chunks_of_images_are_mentioned(tmp_path: Path) -> None:
    store = tmp_path / "a.zarr"
    zarr.open_group(store, mode="w", zarr_format=2).create_array("images", data=rgb() | 1, chunks=(2, 12, 14, 3))
    assert not packed(store, tmp_path).notes
    (store / "images" / "1.0.0.0").unlink()
    assert "1 of 3 chunks of the images are missing" in packed(store, tmp_path, "second").notes


def test_missing_shards_of_images_are_mentioned(tmp_path: Path) -> None:
    store = tmp_path / "a.zarr"
    root = zarr.open_group(store, mode="w", zarr_format=3)
    sizes = {"chunks": (2, 12, 14, 3), "shards": (4, 12, 14, 3)}
    root.create_array("images", shape=rgb().shape, dtype="u1", **sizes)[:] = rgb() | 1
    assert not packed(store, tmp_path).notes
    (store / "images" / "c" / "1" / "0" / "0" / "0").unlink()
    assert "1 of 2 shards of the images are missing" in packed(store, tmp_path, "second").notes


# Tensors


def test_dictionaries_in_a_tensor_file_are_read_with_a_path(tmp_path: Path) -> None:
    splits = {
        name: {"images": torch.from_numpy(images).permute(0, 3, 1, 2), "labels": torch.from_numpy(labels())}
        for name, images in (("train", rgb()), ("val", rgb(1)))
    }
    torch.save({"data": splits, "classes": list(CLASSES), "epoch": 3, "note": None}, tmp_path / "a.pt")
    assert "'data/train/images' (uint8" in refusal(tmp_path / "a.pt")
    found = packed(tmp_path / "a.pt", tmp_path, image="data/val/images")
    found.check(rgb(1), labels())
    assert found.classes == CLASSES
    by_name = {part.name: part.reason for part in parts(tmp_path / "a.pt", image="data/val/images")}
    assert by_name["epoch"] == by_name["note"] == "is a single value, not one for each image"


@pytest.mark.parametrize("form", ["pairs", "dictionaries", "dictionaries of one size", "list of images"])
def test_lists_of_samples_are_read_even_if_sizes_differ(tmp_path: Path, form: str) -> None:
    images = [torch.from_numpy(image[: 8 + row]).permute(2, 0, 1).contiguous() for row, image in enumerate(rgb())]
    samples = list(zip(images, labels().tolist(), strict=True))
    content: dict[str, Any] = {
        "pairs": samples,
        "dictionaries": [{"img": image, "label": CLASSES[label], "n": label} for image, label in samples],
        "dictionaries of one size": [
            {"img": torch.from_numpy(image), "mask": torch.from_numpy(image[..., 0].copy()), "label": label}
            for image, label in zip(rgb(), labels().tolist(), strict=True)
        ],
        "list of images": images,
    }
    torch.save(content[form], tmp_path / "a.pt")
    found = packed(tmp_path / "a.pt", tmp_path)
    heights = [12 if form == "dictionaries of one size" else 8 + row for row in range(N)]
    expected = [image[:height] for image, height in zip(rgb(), heights, strict=True)]
    found.check(expected, None if form == "list of images" else labels())
    if form == "dictionaries of one size":
        assert [pixels.tolist() for pixels in found.pixels("mask.png")] == grey().tolist()
    assert found.classes == (CLASSES if form == "dictionaries" else ())


def test_pairs_of_images_and_labels_in_a_dictionary_are_splits(tmp_path: Path) -> None:
    pairs = {name: (torch.from_numpy(rgb(seed)), torch.from_numpy(labels())) for seed, name in enumerate(("a", "b"))}
    torch.save(pairs, tmp_path / "a.pt")
    assert "'a/images' (uint8[6, 12, 14, 3]), 'b/images'" in refusal(tmp_path / "a.pt")
    packed(tmp_path / "a.pt", tmp_path, image="b/images").check(rgb(1), labels())
    assert role(tmp_path / "a.pt", "a/labels", image="b/images").reason == "belongs to 'a/images'"


@pytest.mark.parametrize("form", ["bytes", "tensors"])
def test_encoded_images_in_a_list_are_packed_byte_for_byte(tmp_path: Path, form: str) -> None:
    files = [data if form == "bytes" else torch.frombuffer(bytearray(data), dtype=torch.uint8) for data in encoded()]
    torch.save({"image": files, "label": labels().tolist()}, tmp_path / "a.pt")
    found = packed(tmp_path / "a.pt", tmp_path)
    assert [sample["jpg"] for sample in found.samples] == encoded()
    assert found.labels == labels().tolist()


def test_boxes_of_different_numbers_become_a_field_each(tmp_path: Path) -> None:
    boxes = [torch.full((row, 4), row, dtype=torch.bfloat16) for row in range(N)]
    torch.save({"images": torch.from_numpy(rgb()), "boxes": boxes}, tmp_path / "a.pt")
    found = packed(tmp_path / "a.pt", tmp_path)
    for row, sample in enumerate(found.samples):
        assert np.array_equal(np.load(io.BytesIO(sample["boxes.npy"])), np.full((row, 4), row))


def test_numbers_of_torchvisions_class_to_idx_are_class_names(tmp_path: Path) -> None:
    content = {"data": torch.from_numpy(rgb()), "targets": labels().tolist(), "class_to_idx": {"b": 1, "c": 2, "a": 0}}
    torch.save(content, tmp_path / "a.pt")
    found = packed(tmp_path / "a.pt", tmp_path)
    found.check(rgb(), labels())
    assert found.classes == ("a", "b", "c")


def test_the_weights_of_a_model_are_no_images(tmp_path: Path) -> None:
    weights = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4)).state_dict()
    torch.save({"model": weights, "epoch": 1}, tmp_path / "a.pt")
    assert "has no array of images with a known name; it has 'model/0.weight float32" in refusal(tmp_path / "a.pt")


def test_two_images_or_one_in_a_list_are_not_taken_as_images_and_labels(tmp_path: Path) -> None:
    image = torch.zeros((3, 20, 20), dtype=torch.uint8)
    for number, content in enumerate(([image], [image, image], image, (image[None], image[None], image[None]))):
        torch.save(content, tmp_path / f"{number}.pt")
        assert "allowed are images alone" in refusal(tmp_path / f"{number}.pt") or "four dimensions" in refusal(
            tmp_path / f"{number}.pt"
        )


def test_objects_that_torch_does_not_create_are_named(tmp_path: Path) -> None:
    torch.save({"images": torch.from_numpy(rgb()), "n": np.float64(3)}, tmp_path / "a.pt")
    assert "it has objects of numpy._core.multiarray.scalar, which are not created" in refusal(tmp_path / "a.pt")


def test_sparse_tensors_are_left_out_with_a_reason(tmp_path: Path) -> None:
    torch.save({"images": torch.from_numpy(rgb()), "graph": torch.eye(N).to_sparse()}, tmp_path / "a.pt")
    assert "torch.sparse_coo, which is not read" in role(tmp_path / "a.pt", "graph").reason


def test_facts_are_stored_as_json(tmp_path: Path) -> None:
    path = npz(tmp_path, {"images": rgb(), "big": np.full(N, 2**63, np.uint64), "half": np.full(N, 0.5, np.float16)})
    assert [json.loads(sample["json"])["big"] for sample in packed(path, tmp_path).samples] == [2**63] * N
