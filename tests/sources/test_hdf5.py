"""HDF5 files as h5py writes them: groups, links, types, attributes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from array_cases import CLASSES, N, encoded, grey, labels, packed, parts, refusal, rgb

NAMES = [CLASSES[number] for number in labels()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a file with images and labels."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["labels"] = rgb(), labels()
    return tmp_path / "a.h5"


def reasons(path: Path, **columns: str) -> dict[str, str]:
    return {part.name: part.reason for part in parts(path, **columns)}


def roles(path: Path, **columns: str) -> dict[str, str]:
    return {part.name: part.role for part in parts(path, **columns)}


# Groups


def test_groups_of_splits_are_packed_one_at_a_time(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, images, numbers in (("train", rgb(), labels()), ("test", rgb(1), labels()[::-1])):
            file[f"{name}/images"], file[f"{name}/labels"], file[f"{name}/id"] = images, numbers, np.arange(N)
    assert "'test/images' (uint8[6, 12, 14, 3]), 'train/images'" in refusal(tmp_path / "a.h5")
    assert "--column image=test/images" in refusal(tmp_path / "a.h5")
    found = packed(tmp_path / "a.h5", tmp_path, image="train/images")
    found.check(rgb(), labels())
    assert found.facts[2] == {"path": "a.h5#2", "id": 2}
    assert reasons(tmp_path / "a.h5", image="train/images")["test/id"].startswith("belongs to another split")


def test_splits_below_groups_of_images_and_labels_keep_together(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, images, numbers in (("train", rgb(), labels()), ("val", rgb(1), labels()[::-1])):
            file[f"images/{name}"], file[f"labels/{name}"], file[f"masks/{name}"] = images, numbers, images[..., 0]
    assert "pack one split at a time" in refusal(tmp_path / "a.h5")
    found = packed(tmp_path / "a.h5", tmp_path, image="images/val")
    found.check(rgb(1), labels()[::-1])
    assert [pixels.tolist() for pixels in found.pixels("masks_val.png")] == grey(1).tolist()


def test_arrays_of_another_group_of_images_are_not_paired_with_these(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, images, numbers in (("north", rgb(), labels()), ("south", rgb(1), labels()[::-1])):
            file[f"{name}/images"], file[f"{name}/labels"], file[f"{name}/temperature"] = images, numbers, np.ones(N)
    assert "2 arrays that could be the image" in refusal(tmp_path / "a.h5")
    packed(tmp_path / "a.h5", tmp_path, image="south/images").check(rgb(1), labels()[::-1])
    assert reasons(tmp_path / "a.h5", image="south/images")["north/temperature"] == "belongs to 'north/images'"


def test_labels_may_be_in_a_group_of_their_own(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["data/images"], file["annotations/labels"], file["annotations/time/hour"] = rgb(), labels(), np.arange(N)
    found = packed(tmp_path / "a.h5", tmp_path)
    found.check(rgb(), labels())
    assert found.facts[3]["annotations_time_hour"] == 3


@pytest.mark.parametrize("form", ["pixels", "bytes", "opaque"])
@pytest.mark.torture_except("bytes", "opaque")
def test_a_group_for_each_class_gives_the_names_of_the_classes(tmp_path: Path, form: str) -> None:
    classes = ["10", "9", "zebra"]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for row, (image, number, data) in enumerate(zip(rgb(), labels(), encoded(), strict=True)):
            values = {"pixels": image[: 8 + row], "bytes": np.frombuffer(data, "u1"), "opaque": np.void(data)}
            file[f"{classes[number]}/{row:04d}"] = values[form]
        file["version"] = 3
    found = packed(tmp_path / "a.h5", tmp_path)
    assert found.classes == ("10", "9", "zebra")
    rows = [int(fact["name"].rpartition("/")[2]) for fact in found.facts]
    assert sorted(rows) == list(range(N))
    assert [found.classes[number] for number in found.labels] == [classes[labels()[row]] for row in rows]
    if form == "pixels":
        assert [pixels.tolist() for pixels in found.pixels()] == [rgb()[row][: 8 + row].tolist() for row in rows]
    else:
        assert [sample["jpg"] for sample in found.samples] == [encoded()[row] for row in rows]
    assert roles(tmp_path / "a.h5")["zebra"] == "class"
    assert reasons(tmp_path / "a.h5")["version"] == "is not in a group of images"


def test_groups_of_classes_below_splits_are_packed_by_the_name_of_the_split(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for split, images in (("train", rgb()), ("test", rgb(1))):
            for row, image in enumerate(images):
                file[f"{split}/{NAMES[row]}/{row}"] = image
    assert "one group per split (test, train): name one, as in --column image=test" in refusal(tmp_path / "a.h5")
    found = packed(tmp_path / "a.h5", tmp_path, image="train")
    rows = [int(fact["name"].rpartition("/")[2]) for fact in found.facts]
    found.check(rgb()[rows], labels()[rows])
    assert found.classes == CLASSES


def test_groups_of_classes_without_labels_are_packed_without(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for row, image in enumerate(rgb()):
            file[f"{NAMES[row]}/{row}"] = image
    assert not any("cls" in sample for sample in packed(tmp_path / "a.h5", tmp_path, label="").samples)
    assert "has no 'kind' for the label" in refusal(tmp_path / "a.h5", label="kind")


def test_other_data_in_the_group_of_a_class_is_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for row, image in enumerate(rgb()):
            file[f"{NAMES[row]}/{row}"] = image
        file["sea/count"] = 2
    assert "images in group 'sea', but also 'sea/count', which is not an image" in refusal(tmp_path / "a.h5")


def test_a_group_for_each_image_is_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for row, image in enumerate(rgb()):
            file[f"{row}/image"], file[f"{row}/mask"] = image, image[..., 0]
    assert "a group for each image, such as '0/image'" in refusal(tmp_path / "a.h5")


@pytest.mark.parametrize(
    ("groups", "are_classes"), [(("images", "masks"), False), (("rgb", "depth"), True), (("mask", "no_mask"), True)]
)
def test_groups_of_images_and_masks_are_no_classes(tmp_path: Path, groups: tuple[str, str], are_classes: bool) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for row, image in enumerate(rgb()):
            file[f"{groups[0]}/{row}"], file[f"{groups[1]}/{row}"] = image, image[..., 0]
    if are_classes:
        assert packed(tmp_path / "a.h5", tmp_path).classes == tuple(sorted(groups))
    else:
        assert "a dataset for each image and each mask, in the groups 'images', 'masks'" in refusal(tmp_path / "a.h5")


def test_labels_in_an_attribute_are_not_left_out_in_silence(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["images"].attrs["y"] = labels()[::-1]
        file.attrs["label"] = 7
    packed(path, path.parent).check(rgb(), labels())
    with h5py.File(path, "a") as file:
        del file["labels"]
    assert "'images@y' cannot be used: it is an attribute: save labels as an array; --column label=" in refusal(path)
    assert not any("cls" in sample for sample in packed(path, path.parent / "none", label="").samples)


def test_images_in_one_group_without_classes_are_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for row, image in enumerate(rgb()):
            file[f"photos/{row}"] = image
    assert "not in one group per class" in refusal(tmp_path / "a.h5")


# Types


@pytest.mark.parametrize("numbers", [{"cat": 0, "dog": 1, "sea": 2}, {"sea": 30, "dog": 20, "cat": 10}])
def test_names_of_an_enumeration_are_the_classes(tmp_path: Path, numbers: dict[str, int]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = rgb()
        values = [numbers[name] for name in NAMES]
        file.create_dataset("kind", data=values, dtype=h5py.enum_dtype(numbers, "i2"))
        file.create_dataset("weather", data=[0, 1] * 3, dtype=h5py.enum_dtype({"dry": 0, "wet": 1}, "u1"))
    assert "2 arrays that could be the label: 'kind' " in refusal(tmp_path / "a.h5")
    found = packed(tmp_path / "a.h5", tmp_path, label="kind")
    found.check(rgb(), labels())
    assert found.classes == CLASSES
    assert [fact["weather"] for fact in found.facts] == ["dry", "wet"] * 3


def test_rows_of_records_are_read_by_their_fields(tmp_path: Path) -> None:
    kind = h5py.enum_dtype({"cat": 0, "dog": 1, "sea": 2}, "i1")
    rows = np.zeros(N, [("image", "u1", (12, 14, 3)), ("species", kind), ("box", ">f4", (4,)), ("sharp", "?")])
    rows["image"], rows["species"], rows["sharp"] = rgb(), labels(), labels() == 0
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("table", data=rows, chunks=(4,), compression="gzip")
    found = packed(tmp_path / "a.h5", tmp_path)
    found.check(rgb(), labels())
    assert found.classes == CLASSES
    assert [fact["sharp"] for fact in found.facts] == (labels() == 0).tolist()
    assert roles(tmp_path / "a.h5")["table/box"] == "field box.npy"


def test_references_are_refused_if_they_are_the_labels_and_otherwise_left_out(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file.create_dataset(
            "crops", data=[file["images"].regionref[row] for row in range(N)], dtype=h5py.regionref_dtype
        )
    assert reasons(path)["crops"] == "has references to other objects or regions"
    with h5py.File(path, "a") as file:
        del file["labels"]
        file.create_dataset("labels", data=[file["images"].ref] * N, dtype=h5py.ref_dtype)
    assert "'labels' cannot be used: it has references" in refusal(path)


def test_null_dataspaces_single_values_and_types_are_left_out_with_a_reason(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["nothing"], file["width"], file["kind"] = h5py.Empty("f4"), 14, np.dtype("i4")
    found = reasons(path)
    assert found["nothing"] == "has no data (a null dataspace)"
    assert found["width"] == "is a single value, not one for each image"
    assert found["kind"] == "is a type without data"


def test_labels_without_data_are_refused(path: Path) -> None:
    with h5py.File(path, "a") as file:
        del file["labels"]
        file["labels"] = h5py.Empty("i4")
    assert "'labels' cannot be used: it has no data" in refusal(path)


def test_a_file_without_rows_is_an_error(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["labels"] = rgb()[:0], labels()[:0]
    assert "contains no image that can be packed" in refusal(tmp_path / "a.h5")


@pytest.mark.parametrize(
    "dtype", ["S5", h5py.string_dtype("utf-8", 7), h5py.string_dtype(), h5py.string_dtype("ascii")]
)
@pytest.mark.torture_except("S5", "dtype3")
def test_text_of_fixed_and_variable_length_is_a_label_and_a_fact(tmp_path: Path, dtype: object) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = rgb()
        file.create_dataset("species", data=[name.encode() for name in NAMES], dtype=dtype)
        file.create_dataset("city", data=[b"Rome", b"Ulm"] * 3, dtype=dtype)
    found = packed(tmp_path / "a.h5", tmp_path)
    found.check(rgb(), labels())
    assert found.classes == CLASSES
    assert [fact["city"] for fact in found.facts] == ["Rome", "Ulm"] * 3


def test_booleans_and_big_endian_numbers_are_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["sharp"] = rgb(), labels() == 1
        file.create_dataset("labels", data=labels(), dtype=">i8")
        file.create_dataset("weight", data=np.arange(N) / 4, dtype=">f4")
    found = packed(tmp_path / "a.h5", tmp_path)
    found.check(rgb(), labels())
    assert [fact["sharp"] for fact in found.facts] == (labels() == 1).tolist()
    assert [fact["weight"] for fact in found.facts] == [row / 4 for row in range(N)]


def test_boolean_labels_are_the_classes_false_and_true(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["target"] = rgb(), labels() == 1
    found = packed(tmp_path / "a.h5", tmp_path)
    assert found.classes == ("false", "true")
    assert found.labels == (labels() == 1).astype(int).tolist()


@pytest.mark.parametrize(
    "options", [{"compression": "gzip", "shuffle": True}, {"compression": "lzf"}, {"fletcher32": True}]
)
def test_chunks_that_are_compressed_or_checksummed_are_read(tmp_path: Path, options: dict[str, object]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("images", data=rgb(), chunks=(4, 5, 14, 2), **options)
        file.create_dataset("labels", data=labels(), chunks=(4,), **options)
    packed(tmp_path / "a.h5", tmp_path).check(rgb(), labels())


def test_a_compression_that_h5py_lacks_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((2, 12, 14, 3))
        properties.set_filter(32001, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple(rgb().shape)
        h5py.h5d.create(file.id, b"images", h5py.h5t.STD_U8LE, space, properties)
    assert "'images' is compressed with filter 32001" in refusal(tmp_path / "a.h5")


def test_values_of_different_numbers_per_row_become_fields(path: Path) -> None:
    with h5py.File(path, "a") as file:
        boxes = file.create_dataset("boxes", (N,), h5py.vlen_dtype("f4"))
        thumbnails = file.create_dataset("thumbnail", (N,), h5py.vlen_dtype("u1"))
        tags = file.create_dataset("tags", (N,), h5py.vlen_dtype(h5py.string_dtype()))
        for row in range(N):
            boxes[row], thumbnails[row] = np.arange(row), np.frombuffer(encoded()[row], "u1")
            tags[row] = ["a", "é"][: row % 3]
    found = packed(path, path.parent)
    found.check(rgb(), labels())
    for row, sample in enumerate(found.samples):
        assert np.load(io.BytesIO(sample["boxes.npy"])).tolist() == list(range(row))
        assert sample["thumbnail.jpg"] == encoded()[row]
        assert found.facts[row]["tags"] == ["a", "é"][: row % 3]


def test_opaque_bytes_are_encoded_images(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"], file["labels"] = np.array([np.void(data.ljust(2000, b"\0")) for data in encoded()]), labels()
    assert [sample["jpg"] for sample in packed(tmp_path / "a.h5", tmp_path).samples] == encoded()


# Links and attributes


def test_a_soft_link_gives_a_dataset_the_name_of_its_role(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v2/raw"], file["v2/other"], file["labels"] = rgb(), rgb(1), labels()
        file["images"] = h5py.SoftLink("/v2/raw")
        file["again"] = file["labels"]
        file["v2/up"] = file["/"]
        file["gone"] = h5py.SoftLink("/nowhere")
    packed(tmp_path / "a.h5", tmp_path).check(rgb(), labels())
    found = reasons(tmp_path / "a.h5")
    assert found["v2/raw"] == "is the same dataset as another"
    assert found["again"] == "is the same dataset as another"
    assert found["v2/up"] == "is the same group as another"
    assert found["gone"] == "is a link to '/nowhere', which does not exist"


def test_virtual_datasets_are_refused(path: Path) -> None:
    layout = h5py.VirtualLayout((N,), "i8")
    layout[:] = h5py.VirtualSource("other.h5", "labels", (N,))
    with h5py.File(path, "a") as file:
        file.create_virtual_dataset("more", layout)
    assert "'more' is virtual, or has its data in other files" in refusal(path)


@pytest.mark.parametrize("owner", ["/", "labels"])
@pytest.mark.parametrize("value", [list(CLASSES), np.array(CLASSES, "S3"), json.dumps(CLASSES)])
def test_class_names_in_attributes_are_kept(path: Path, owner: str, value: object) -> None:
    with h5py.File(path, "a") as file:
        file[owner].attrs["classes"] = value
        file[owner].attrs["unit"] = "none"
    found = packed(path, path.parent)
    found.check(rgb(), labels())
    assert found.classes == CLASSES
    prefix = "" if owner == "/" else "labels@"
    assert roles(path)[f"{prefix}classes"] == "class names"
    assert reasons(path)[f"{prefix}unit"]


def test_the_layout_of_a_well_known_course_is_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "train_catvnoncat.h5", "w") as file:
        file["train_set_x"], file["train_set_y"] = rgb(), labels() % 2
        file["list_classes"] = np.array([b"non-cat", b"cat"])
    found = packed(tmp_path / "train_catvnoncat.h5", tmp_path)
    found.check(rgb(), labels() % 2)
    assert found.classes == ("non-cat", "cat")


def test_chunks_that_were_never_written_are_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        images = file.create_dataset("images", rgb().shape, "u1", chunks=(2, *rgb().shape[1:]))
        images[:4] = rgb()[:4]
        file["labels"] = labels()
    assert (
        "1 of 3 chunks of the images are missing, and are read as the fill value; HDF5"
        in packed(tmp_path / "a.h5", tmp_path).notes
    )


def test_an_array_for_each_image_is_not_read(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for row in range(3):
            file[f"{row:04}/image"], file[f"{row:04}/label"] = rgb()[row], labels()[row]
    assert "has 3 arrays that are one image each, such as '0000/image'" in refusal(tmp_path / "a.h5")
