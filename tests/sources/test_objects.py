"""Python objects: datasets of torch and torchvision, dictionaries, dataclasses; their labels and class names."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import torchvision
from foreign_tables import COUNT, NAMES, Packed, beside_images, colour, packed, png
from pictures import encode
from PIL import Image
from sources_conformance import stored

import wds_tools
from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.sources.base import Listing, SourceOptions
from wds_tools.sources.objects import ObjectSource

CYCLE = [0, 1, 2, 0, 1, 2]


def scan(items: Any, **options: Any) -> Listing:
    return ObjectSource(items, SourceOptions(**options)).scan()


def parts(items: Any, **options: Any) -> dict[str, str]:
    """Return what becomes of each entry."""
    return {part.name: part.role or part.reason for part in scan(items, **options).account.parts}


def numbers(found: dict[int, Packed]) -> list[int | None]:
    return [one.number for one in found.values()]


def names(found: dict[int, Packed]) -> list[str | None]:
    return [one.name for one in found.values()]


@pytest.fixture
def folders(tmp_path: Path) -> torchvision.datasets.ImageFolder:
    """Return torchvision's dataset of class folders."""
    for row in range(COUNT):
        (tmp_path / "src" / NAMES[row % 3]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "src" / NAMES[row % 3] / f"{row}.png").write_bytes(png(row))
    return torchvision.datasets.ImageFolder(tmp_path / "src")


class Images(torch.utils.data.Dataset):
    """A dataset with the attributes of those of torchvision."""

    def __init__(self, labels: list[Any], **attributes: Any) -> None:
        self.labels = labels
        self.__dict__ |= attributes

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> tuple[Image.Image, Any]:
        return Image.open(io.BytesIO(png(row))), self.labels[row]


class NamedItem(NamedTuple):
    """An item of a dataset."""

    image: Any
    label: int
    width: int


@dataclass
class Item:
    """An item of a dataset."""

    photo: Any
    label: int
    caption: str


# Class names


def test_an_image_folder_of_torchvision_and_parts_of_it(
    folders: torchvision.datasets.ImageFolder, tmp_path: Path
) -> None:
    assert names(packed(folders, tmp_path / "all")) == list(NAMES) * 2
    part = torch.utils.data.Subset(folders, [5, 0])
    assert {row: one.name for row, one in packed(part, tmp_path / "part").items()} == {0: "cat", 5: "fig"}
    parts_ = torch.utils.data.random_split(folders, [2, 4], torch.Generator().manual_seed(0))
    for number, one in enumerate(parts_):
        found = packed(one, tmp_path / str(number))
        assert {row: item.name for row, item in found.items()} == {row: NAMES[row % 3] for row in found}
    both = torch.utils.data.ConcatDataset(
        [torch.utils.data.Subset(folders, [0]), torch.utils.data.Subset(folders, [4])]
    )
    assert {row: one.name for row, one in packed(both, tmp_path / "both").items()} == {0: "cat", 2: "fig"}


def test_datasets_with_other_classes_in_one_are_an_error() -> None:
    both = torch.utils.data.ConcatDataset(
        [Images(CYCLE, classes=list(NAMES)), Images(CYCLE, classes=["dog", "cat", "fig"])]
    )
    with pytest.raises(
        LabelError, match=r"datasets with different classes \('cat', 'dog', 'fig'; 'dog', 'cat', 'fig'\)"
    ):
        scan(both)


def test_cifar10_of_torchvision(tmp_path: Path) -> None:
    class Cifar(torchvision.datasets.CIFAR10):
        def __init__(self) -> None:  # the files are not here
            self.data = np.stack([np.full((4, 6, 3), colour(row), np.uint8) for row in range(COUNT)])
            self.targets = [3, 0, 9, 3, 1, 0]
            self.classes = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
            self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
            self.transform = self.target_transform = None

    found = packed(Cifar(), tmp_path / "dst")
    assert names(found) == ["cat", "airplane", "truck", "cat", "automobile", "airplane"]


def test_class_names_of_objects_in_every_form() -> None:
    forms: list[dict[str, Any]] = [
        {"classes": [("tench", "Tinca tinca"), ("goldfish",), ("shark", "white shark")]},  # as ImageNet's are
        {"classes": np.array(["tench, Tinca tinca", "goldfish", "shark, white shark"])},
        {"class_to_idx": {"shark, white shark": 2, "goldfish": 1, "tench, Tinca tinca": 0}},
        {"classes": {0: "tench, Tinca tinca", 1: "goldfish", 2: "shark, white shark"}},
        {"classes": {"tench, Tinca tinca": 0, "goldfish": 1, "shark, white shark": 2}},
        *(
            {name: ["tench, Tinca tinca", "goldfish", "shark, white shark"]}
            for name in ("class_names", "label_names", "names", "categories")  # of torchvision's Caltech101
        ),
        {"idx_to_class": dict(enumerate(["tench, Tinca tinca", "goldfish", "shark, white shark"]))},
        {"id2label": {"2": "shark, white shark", "0": "tench, Tinca tinca", "1": "goldfish"}},
        {"info": {"label": {"0": "tench, Tinca tinca", "1": "goldfish", "2": "shark, white shark"}}},  # of MedMNIST
        {
            "categories": [
                {"id": 1, "name": "goldfish"},
                {"id": 2, "name": "shark, white shark"},
                {"id": 0, "name": "tench, Tinca tinca"},
            ]
        },
    ]
    for attributes in forms:
        listing = scan(Images(CYCLE, **attributes))
        assert listing.classes == ("tench, Tinca tinca", "goldfish", "shark, white shark"), attributes
        assert [entry.label for entry in listing.inputs] == CYCLE


@pytest.mark.parametrize("attributes", [{"class_to_idx": {"a": 1, "b": 2}}, {"classes": {1: "a", 2: "b"}}])
def test_class_numbers_that_do_not_begin_at_0(tmp_path: Path, attributes: dict[str, Any]) -> None:
    found = packed(Images([1, 2, 1, 2, 1, 2], **attributes), tmp_path / "dst")
    assert [one[:2] for one in found.values()] == [("a", 1), ("b", 2)] * 3


def test_numbers_as_class_names(tmp_path: Path) -> None:
    assert names(packed(Images(CYCLE, classes=[7, 8, 9]), tmp_path / "dst")) == ["7", "8", "9"] * 2


@pytest.mark.parametrize(
    ("labels", "attributes", "message"),
    [
        (
            [0, 1],
            {"classes": ["cat", "dog"], "class_to_idx": {"dog": 0, "cat": 1}},
            r"a different order in 'classes' \('cat', 'dog'\) than in 'class_to_idx'",
        ),
        (
            [0, 1],
            {"class_to_idx": {"cat": 0, "dog": 1}, "idx_to_class": {0: "dog", 1: "cat"}},
            "different order in 'class_to_idx' .* than in 'idx_to_class'",
        ),
        (
            [0, 2],
            {"label_names": ["cat", "dog"]},
            "label 2, but there are only 2 class names, numbered from 0: name all",
        ),
        ([1, 2], {"class_names": ["cat", "dog"]}, "numbered from 0, and labels begin with 1: if they count from 1"),
        ([0, 2], {"classes": np.array([0, 2, 5])}, "label 2 can be the class '2' by its name, or '5' by its position"),
        ([1, 2], {"classes": ["1", "2", "3"]}, "label 1 can be the class '1' by its name, or '2' by its position"),
    ],
)
def test_class_names_that_contradict_each_other_or_the_labels_are_an_error(
    labels: list[int], attributes: dict[str, Any], message: str
) -> None:
    with pytest.raises(LabelError, match=message):
        scan(Images(labels, **attributes))
    assert scan(Images(labels, **attributes), classes=["a", "b", "c"]).classes == ("a", "b", "c")


def test_attributes_that_may_have_class_names_are_noted() -> None:
    cases: list[tuple[list[Any], dict[str, Any], tuple[str, ...], str | None]] = [
        ([0, 1, 0], {"names": ["ann", "bob", "cid"]}, (), None),  # of the items
        ([0, 1, 0], {"names": ["ann", "bob", "cid", "dan"]}, (), "'names' .*, which may name the classes"),
        (["cat", "dog"], {"names": ["ann", "bob", "cid"]}, ("cat", "dog"), "which may name the classes"),
        ([0, 1], {"classes": ["n01", "n02"], "class_names": ["ant", "bee"]}, ("n01", "n02"), "'class_names' has other"),
        ([0, 1], {"class_map": {0: 1, 1: 0}}, (), "'class_map' .* is a dict, and not a list with a name for each"),
        ([1, 2], {"class_names": ["ant", "bee", "cat"]}, ("ant", "bee", "cat"), "labels begin with 1"),
        ([1, 2], {"class_names": ["_background_", "bee", "cat"]}, ("_background_", "bee", "cat"), None),
        ([0, 2, 5], {"classes": [0, 2, 5]}, (), "'classes' .* is a list, and not a list with a name for each"),
        (["1", "3"], {"classes": ["1", "3"]}, (), "'classes' .* is a list"),
        ([0, 2, 1], {"classes": ["1", "2", "10"]}, ("1", "2", "10"), None),
        ([2, 1, 2], {"classes": [0, 1, 2, 5]}, ("0", "1", "2", "5"), None),
        ([2, 1], {"class_to_idx": {"0": 0, "10": 1, "2": 2}, "classes": ["0", "10", "2"]}, ("0", "10", "2"), None),
        ([0, 1, 0], {"names": ("img", "label")}, (), None),
        ([0, 1], {"names": ["Photo", "label_id"], "classes": ["a", "b"]}, ("a", "b"), None),
        ([0, 1, 0], {"label_names": ["label"]}, (), "'label_names' .* is a list"),
        ([0, 1, 0], {"categories": ["train", "test", "val"]}, (), "'categories' .* is a list"),
        ([0, 1, 1], {"categories": ["train", "car"]}, ("train", "car"), None),
        ([0, 1, 1], {"names": ["x", "y"]}, ("x", "y"), None),
        ([0, 1, 0], {"categories": ["cat", "dog", "cat"]}, (), "'categories' .* is a list"),
        (["b", "a", "b"], {"classes": ["b", "a", "b"], "class_names": ["a", "b"]}, ("a", "b"), None),
    ]
    for labels, attributes, names, note in cases:
        listing = scan(Images(labels, **attributes))
        assert listing.classes == names, attributes
        notes = [text for text in listing.account.notes if "PIL" not in text]
        assert [bool(re.search(note or "", text)) for text in notes] == [True] * bool(note), attributes


def test_names_of_attributes_are_those_of_lists_of_0_and_1() -> None:
    labels = [torch.tensor(row) for row in ([0, 1, 1], [1, 1, 0], [0, 0, 0])]
    listing = scan(Images(labels, attr_names=["Male", "Young", "Bald", ""]))  # as torchvision's CelebA has them
    assert listing.label_classes == ("Male", "Young", "Bald")
    assert [entry.labels for entry in listing.inputs] == [(1, 2), (0, 1), ()]


def test_labels_that_a_target_transform_has_changed_do_not_get_the_names_of_targets(tmp_path: Path) -> None:
    items = Images([2, 0, 1, 2, 0, 1], targets=torch.tensor(CYCLE), classes=list(NAMES))
    with pytest.raises(LabelError, match=r"item 0 .* has label 2, and its dataset has 0 as its target.*pass classes="):
        scan(items)
    found = packed(items, tmp_path / "dst", classes=["a", "b", "c"])
    assert names(found) == ["c", "a", "b"] * 2


class Transformed(torch.utils.data.Dataset):
    """A dataset with private labels, as torchvision's Food101 has them."""

    def __init__(self, attribute: str) -> None:
        self.classes, self.attribute = list(NAMES), attribute
        self.target_transform: Any = None
        self.__dict__[attribute] = CYCLE

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, row: int) -> tuple[Image.Image, int]:
        label = self.__dict__[self.attribute][row]
        return Image.open(io.BytesIO(png(row))), self.target_transform(label) if self.target_transform else label


def test_a_target_transform_is_noticed_in_parts_and_with_other_attributes(
    folders: torchvision.datasets.ImageFolder,
) -> None:
    for dataset in (folders, Transformed("labels"), Transformed("_labels"), Transformed("hidden")):
        part = torch.utils.data.Subset(torch.utils.data.ConcatDataset([dataset, dataset]), [5, 6])
        functions = (None, NAMES.__getitem__, int, torch.eye(3).__getitem__, lambda label: 2 - label)
        for number, function in enumerate(functions):
            dataset.target_transform = function
            is_right = number < (2 if hasattr(dataset, "hidden") else 4)
            for items in (dataset, part):
                if is_right:
                    assert scan(items).label_classes == NAMES
                    continue
                with pytest.raises(LabelError, match=r"target_transform.* pass classes="):
                    scan(items)
                assert scan(items, classes=["a", "b", "c"]).classes == ("a", "b", "c")


# Labels


@pytest.mark.parametrize(
    "label",
    [
        lambda one: torch.tensor([one]),  # as MedMNIST has them
        lambda one: np.array([one]),
        lambda one: np.array([[one]], np.uint8),
        np.float32,
        lambda one: f" {one}.0",
    ],
)
def test_a_label_in_every_form(tmp_path: Path, label: Callable[[int], Any]) -> None:
    assert numbers(packed(Images([label(one) for one in CYCLE]), tmp_path / "dst")) == CYCLE


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (np.zeros((2, 2), np.uint8), "has the type ndarray; allowed are numbers and names: let items be dictionaries"),
        ({"boxes": [[0, 0, 1, 1]]}, r"has the type dict; .* for objects, .*'objects'"),
        (Image.new("L", (6, 4)), "has the type Image"),
    ],
)
def test_what_is_not_a_label_in_a_tuple_is_an_error(label: Any, message: str) -> None:
    with pytest.raises(LabelError, match=message):
        scan(Images([label]))


@pytest.mark.parametrize(
    "label",
    [
        lambda row: 1000 + row,
        lambda row: f"a photo of thing {row}",
        lambda row: [f"a photo of thing {row}", f"thing no. {row}"],  # as CocoCaptions of torchvision returns
    ],
)
def test_second_entries_that_all_differ_are_ids_or_captions_and_not_labels(label: Callable[[int], Any]) -> None:
    labels = [label(row) for row in range(20)]
    pair = (np.zeros((20, 5, 6, 3), np.uint8), labels)
    for items in (Images(labels), pair):
        listing = scan(items)
        assert ({entry.label for entry in listing.inputs}, listing.classes) == ({None}, ())
        assert (
            "entry 'label' is not the label, because it has a different value in each row" in listing.account.notes[0]
        )
    chosen = scan(pair, columns={"label": "label"}).inputs
    assert len({entry.label if entry.labels is None else tuple(entry.labels) for entry in chosen}) == 20
    if not isinstance(labels[0], list):
        assert len({entry.label for entry in scan(Images(labels[:19])).inputs}) == 19
    [note] = (note for note in scan(Images([0.5, 2.0])).account.notes if "label" in note)
    assert "'label' is not the label, because it has numbers with fractions, such as 0.5: pass --label label" in note
    names = [f"class {number}" for number in range(20)]
    assert [entry.label for entry in scan(Images(list(range(20)), classes=names)).inputs] == list(range(20))


@pytest.mark.parametrize("missing", [None, -1, "-1", float("nan"), "absent"])
def test_items_without_a_label_are_skipped_if_others_have_one(tmp_path: Path, missing: Any) -> None:
    items: list[dict[str, Any]] = [{"image": png(row), "label": one} for row, one in enumerate(CYCLE)]
    items[2]["label"] = missing
    if missing == "absent":
        del items[2]["label"]
    report = wds_tools.pack(items, tmp_path / "dst", progress=False)
    assert (report.manifest.samples, [skip.reason for skip in report.skipped]) == (5, ["has no label"])


@pytest.mark.frameworks
def test_hugging_face_data_without_some_labels_is_the_same_as_object_and_as_stream(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))})
    values = {"image": [{"bytes": png(row), "path": None} for row in range(COUNT)], "label": [0, None, 2, -1, 1, 2]}
    data = datasets.Dataset.from_dict(values, features=features)
    found = packed(data, tmp_path / "object")
    assert names(found) == ["cat", "fig", "dog", "fig"]
    assert names(packed(data.to_iterable_dataset(), tmp_path / "stream")) == names(found)


@pytest.mark.parametrize("table", [pd.DataFrame({"a": [1]}), pa.table({"a": [1]}), pd.Series([1, 2])])
def test_a_table_in_memory_is_an_error_that_names_files(table: Any) -> None:
    with pytest.raises(OptionError, match=rf"a {type(table).__name__} in memory: write it to Parquet or CSV, and pass"):
        scan(table)


# Entries


def test_dataclasses_and_named_tuples_are_like_dictionaries(tmp_path: Path) -> None:
    items = [Item(png(row), CYCLE[row], f"photo {row}") for row in range(COUNT)]
    found = packed(items, tmp_path / "dataclasses")
    assert {row: one[1:3] for row, one in found.items()} == {row: (CYCLE[row], f"photo {row}") for row in range(COUNT)}
    assert parts(items) == {"photo": "image", "label": "label", "caption": "field txt"}
    tuples = [NamedItem(png(row), CYCLE[row], 10 * row) for row in range(COUNT)]
    found = packed(tuples, tmp_path / "tuples")
    assert {row: (one.number, one.facts) for row, one in found.items()} == {
        row: (CYCLE[row], {"width": 10 * row}) for row in range(COUNT)
    }


def test_dates_of_numpy_are_text(tmp_path: Path) -> None:
    days = [np.datetime64(f"2024-05-0{row + 1}", "ns") for row in range(3)]
    items = [{"image": Image.open(io.BytesIO(png(row))), "label": row, "day": days[row]} for row in range(3)]
    found = packed(items, tmp_path / "dst")
    assert [found[row].facts["day"] for row in range(3)] == list(map(str, days))


def test_every_entry_of_items_is_accounted_for() -> None:
    items = [
        {
            "image": png(row),
            "label": CYCLE[row],
            "mask": Image.new("L", (6, 4)),
            "boxes": np.zeros((2, 4), np.float32),
            "caption": "a",
            "size": (6, 4),
            "odd": object(),
            **({"late": 1} if row == 5 else {}),
        }
        for row in range(COUNT)
    ]
    assert parts(items) == {
        "image": "image",
        "label": "label",
        "mask": "image field mask",
        "boxes": "field boxes.npy",
        "caption": "field txt",
        "size": "entries of json",
        "odd": "of the type object, which is not kept",
        "late": "entries of json",
    }
    assert parts([(png(0), 1, "a caption", 5)]) == {
        "image": "image", "label": "label", **dict.fromkeys("23", "an entry that follows the label")
    }  # fmt: skip


def test_an_entry_that_names_splits_is_stated() -> None:
    items = [{"image": png(row), "label": CYCLE[row], "split": ("train", "val")[row == 5]} for row in range(COUNT)]
    assert any("entry 'split' names splits, 'train', 'val'" in note for note in scan(items).account.notes)


def test_bytes_in_entries_are_left_out_with_a_reason() -> None:
    items = [
        {"image": png(row), "label": CYCLE[row], "parts": [b"\0abc"], "info": {"a": [b"\0"]}} for row in range(COUNT)
    ]
    reason = "a list or dictionary with binary values"
    assert parts(items) == {"image": "image", "label": "label", "parts": reason, "info": reason}


@pytest.mark.parametrize("mode", ["RGB", "P"])
def test_a_pil_image_has_its_pixels_as_they_are_like_a_mask_next_to_it(tmp_path: Path, mode: str) -> None:
    pixels = np.zeros((16, 8, 3), np.uint8)
    pixels[:8] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # the first row is on the right
    Image.fromarray(pixels).convert(mode).save(tmp_path / "0.png", exif=exif)
    items = [{"image": Image.open(tmp_path / "0.png"), "mask": Image.fromarray(pixels[..., 0])}]
    wds_tools.pack(items, tmp_path / "dst", images="keep", progress=False)
    fields = {"image": wds_tools.Image("png"), "mask": wds_tools.Mask("mask.png", like="image")}
    with wds_tools.make_loader(tmp_path / "dst", batch_size=1, fields=fields, num_workers=0) as loader:
        batch = next(iter(loader))
    assert np.array_equal(batch.image[0].permute(1, 2, 0), pixels)
    assert np.array_equal(batch.mask[0], pixels[..., 0])


def test_the_label_of_dictionaries_is_found_by_type_and_value(tmp_path: Path) -> None:
    def items(**columns: list[Any]) -> list[dict[str, Any]]:
        return [{"image": png(row), **{name: column[row] for name, column in columns.items()}} for row in range(COUNT)]

    assert numbers(packed(items(target=[{"box": [1]}] * COUNT, label=CYCLE), tmp_path / "a")) == CYCLE
    assert numbers(packed(items(label=[0.5, 1, 2, 1, 1, 1], category=CYCLE), tmp_path / "b")) == CYCLE
    found = packed(items(label=CYCLE, label_name=[NAMES[2 - one] for one in CYCLE]), tmp_path / "c")
    assert [one[:2] for one in found.values()] == [(NAMES[2 - one], one) for one in CYCLE]
    with pytest.raises(SourceError, match=r"could be the label: 'label' \(0, 1, 2\), 'class' \(1, 0\)"):
        scan(items(label=CYCLE, **{"class": [1, 0, 0, 1, 0, 0]}))


@pytest.mark.parametrize(
    ("wrap", "reason"),
    [(io.BytesIO, "is of the type BytesIO, which is not kept"), (lambda _: Path("a.png"), "has text")],
)
def test_files_instead_of_images_are_refused_by_what_they_are(tmp_path: Path, wrap: Any, reason: str) -> None:
    with pytest.raises(SourceError, match=f"'image' .*{reason}"):
        wds_tools.pack([(wrap(png(row)), row % 3) for row in range(COUNT)], tmp_path / "dst")


def test_the_image_of_dictionaries_is_an_image_whatever_its_name(tmp_path: Path) -> None:
    rows = [{"path": f"{row}.png", "scan": png(row), "label": CYCLE[row]} for row in range(COUNT)]
    found = packed(rows, tmp_path / "dst")
    assert parts(rows) == {"path": "entries of json", "scan": "image", "label": "label"}
    assert numbers(found) == CYCLE
    with pytest.raises(SourceError, match=r"entry 'path' has text; images are bytes.*paths and URLs are read with"):
        scan([{"path": str(beside_images(tmp_path / "src") / "0.png"), "label": 1}])


@pytest.mark.frameworks
def test_a_dataset_of_hugging_face_with_names_of_classes_in_a_second_column(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {
            "image": datasets.Value("binary"),
            "label": datasets.ClassLabel(names=["fig", "dog", "cat"]),
            "class_name": datasets.Value("string"),
        }
    )
    values = {
        "image": [png(row) for row in range(COUNT)],
        "label": CYCLE,
        "class_name": [("Fig", "Dog", "Cat")[one] for one in CYCLE],
    }
    data = datasets.Dataset.from_dict(values, features=features)
    found = packed(data, tmp_path / "dst")
    assert [(one.name, one.facts) for one in found.values()] == [
        (("fig", "dog", "cat")[one], {"class_name": ("Fig", "Dog", "Cat")[one]}) for one in CYCLE
    ]


def test_names_of_classes_are_numbered_in_sorted_order_as_everywhere(tmp_path: Path) -> None:
    expected = [(one, sorted(NAMES).index(one)) for one in NAMES] * 2
    tuples = [(png(row), NAMES[row % 3]) for row in range(COUNT)]
    assert [one[:2] for one in packed(tuples, tmp_path / "tuples").values()] == expected
    rows = [{"image": data, "label": label} for data, label in tuples]
    assert [one[:2] for one in packed(rows, tmp_path / "rows").values()] == expected


@pytest.mark.frameworks
def test_class_names_of_entries_that_are_not_the_label_are_kept(tmp_path: Path) -> None:
    import datasets

    coarse = datasets.ClassLabel(names=["pet", "fruit"])
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES)), "coarse": coarse}
    )
    values = {"image": [{"bytes": png(row), "path": None} for row in range(COUNT)], "label": CYCLE, "coarse": CYCLE}
    values["coarse"] = [one // 2 for one in CYCLE]
    data = datasets.Dataset.from_dict(values, features=features)
    manifest = wds_tools.pack(data, tmp_path / "dst", columns={"label": "label"}, progress=False).manifest
    assert manifest.field_classes["json:coarse"].names == ("pet", "fruit")


def test_a_pair_of_arrays_is_images_and_labels(tmp_path: Path) -> None:
    images = np.stack([np.full((8, 6, 3), colour(row), np.uint8) for row in range(COUNT)])
    assert names(packed((images, [NAMES[one] for one in CYCLE]), tmp_path / "names")) == list(NAMES) * 2
    assert numbers(packed((torch.from_numpy(images), np.array(CYCLE)), tmp_path / "numbers")) == CYCLE
    assert numbers(packed(([*map(Image.fromarray, images)], CYCLE), tmp_path / "pil")) == CYCLE


@pytest.mark.frameworks
@pytest.mark.parametrize("form", ["object", "parquet", "stream"])
def test_images_of_hugging_face_that_are_not_decoded_and_nested_class_names(tmp_path: Path, form: str) -> None:
    import datasets

    category = datasets.List(datasets.ClassLabel(names=["wheel", "door"]))
    features = datasets.Features(
        {
            "image": datasets.Image(decode=False),
            "label": datasets.ClassLabel(names=list(NAMES)),
            "objects": {"category": category},
        }
    )
    cells = [{"bytes": png(row), "path": None} for row in range(COUNT)]
    values = {"image": cells, "label": CYCLE, "objects": [{"category": [0, 1]}] * COUNT}
    data = datasets.Dataset.from_dict(values, features=features)
    data.to_parquet(str(tmp_path / "t.parquet"))
    src = {"object": data, "parquet": tmp_path / "t.parquet", "stream": data.to_iterable_dataset()}[form]
    report = wds_tools.pack(src, tmp_path / "dst", progress=False)
    assert report.manifest.classes == NAMES
    assert {place: one.names for place, one in report.manifest.field_classes.items()} == {
        "json:objects.category": ("wheel", "door")
    }
    data = data.remove_columns("label")
    data.to_parquet(str(tmp_path / "t.parquet"))
    src = {"object": data, "parquet": tmp_path / "t.parquet", "stream": data.to_iterable_dataset()}[form]
    given = ["door", "handle", "wheel"]
    report = wds_tools.pack(src, tmp_path / "given", progress=False, classes=given)
    assert report.manifest.field_classes["json:objects.category"].names == tuple(given)
    assert report.account.notes == []
    facts = [json.loads(sample["json"]) for sample in stored(tmp_path / "given")]
    assert [fact["objects"]["category"] for fact in facts] == [[2, 0]] * COUNT
    with pytest.raises(LabelError, match="has classes of objects or masks, and no labels"):
        wds_tools.pack(src, tmp_path / "others", progress=False, classes=["door", "handle"])


@pytest.mark.frameworks
@pytest.mark.parametrize("form", ["decoded", "torch", "selected"])
def test_a_dataset_of_hugging_face_keeps_the_bytes_and_names_of_its_images(tmp_path: Path, form: str) -> None:
    import datasets

    data = [encode(Image.new("RGB", (8, 6), colour(row)), "JPEG") for row in range(COUNT)]
    (tmp_path / "0.jpg").write_bytes(data[0])
    cells = [{"bytes": one, "path": f"{row}.jpg"} for row, one in enumerate(data)]
    cells[0] = {"bytes": None, "path": str(tmp_path / "0.jpg")}
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))})
    src = datasets.Dataset.from_dict({"image": cells, "label": CYCLE}, features=features)
    if form == "torch":
        src = src.with_format("torch", columns=["image", "label"])
    if form == "selected":
        src = src.select(range(COUNT))
    wds_tools.pack(src, tmp_path / "dst", images="keep", progress=False)
    found = {
        sample["jpg"]: (int(sample["cls"]), json.loads(sample["json"])["file_name"])
        for sample in stored(tmp_path / "dst")
    }
    assert found == {one: (CYCLE[row], cells[row]["path"]) for row, one in enumerate(data)}


@pytest.mark.frameworks
def test_a_dataset_of_hugging_face_with_a_transform_has_what_it_returns(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(NAMES))})
    cells = [{"bytes": png(row), "path": None} for row in range(COUNT)]
    src = datasets.Dataset.from_dict({"image": cells, "label": CYCLE}, features=features)
    src.set_transform(lambda rows: {"image": rows["image"], "label": [2 - one for one in rows["label"]]})
    assert names(packed(src, tmp_path / "dst")) == [NAMES[2 - one] for one in CYCLE]
    assert "'image' has PIL images: their pixels are packed, by default as PNG" in scan(src).account.notes[-1]


@pytest.mark.frameworks
def test_arrays_and_lists_with_one_image_of_hugging_face_are_images(tmp_path: Path) -> None:
    import datasets

    pixels = [np.full((8, 6, 3), colour(row), np.uint8) for row in range(COUNT)]
    features = datasets.Features({"image": datasets.Array3D((8, 6, 3), "uint8"), "label": datasets.Value("int64")})
    arrays = datasets.Dataset.from_dict({"image": pixels, "label": CYCLE}, features=features)
    assert numbers(packed(arrays, tmp_path / "arrays")) == CYCLE
    arrays.to_parquet(str(tmp_path / "t.parquet"))
    with pytest.raises(SourceError, match="the pixels of images as numbers in column 'image'"):
        packed(tmp_path / "t.parquet", tmp_path / "none")
    features = datasets.Features({"images": datasets.List(datasets.Image()), "label": datasets.Value("int64")})
    cells = [[{"bytes": png(row), "path": None}] * (1 + (row == 5)) for row in range(COUNT)]
    lists = datasets.Dataset.from_dict({"images": cells, "label": CYCLE}, features=features)
    lists.to_parquet(str(tmp_path / "l.parquet"))
    for number, src in enumerate((lists, tmp_path / "l.parquet")):
        assert numbers(packed(src, tmp_path / str(number))) == CYCLE[:5]


def test_a_pair_with_fewer_labels_than_images_names_both_counts(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="the first array has 4 images, and there are 3 labels; allowed is one label"):
        wds_tools.pack((np.zeros((4, 6, 8, 3), np.uint8), [1, 2, 1]), tmp_path / "d")
