"""Parquet and Arrow files that other programs wrote: types, schemas of several files, folders that are columns."""

from __future__ import annotations

import decimal
import io
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from foreign_tables import COUNT, FOREIGN, NAMES, Packed, colour, packed, png

import wds_tools as wt
from wds_tools.errors import SourceError
from wds_tools.sources.base import Listing, SourceOptions
from wds_tools.sources.detect import open_source

IMAGES = [png(row) for row in range(COUNT)]
CYCLE = [0, 1, 2, 0, 1, 2]


def scan(path: Path | str, **options: Any) -> Listing:
    return open_source(path, options=SourceOptions(**options)).scan()


def parts(path: Path | str, **options: Any) -> dict[str, str]:
    """Return what becomes of each column."""
    return {part.name: part.role or part.reason for part in scan(path, **options).account.parts}


def numbers(found: dict[int, Packed]) -> dict[int, int | None]:
    return {row: one.number for row, one in found.items()}


@pytest.fixture
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder outside of `tmp_path`."""
    return tmp_path_factory.mktemp("out") / "dst"


# Files of other programs


def rows(numbers: Sequence[int] = CYCLE, names: Sequence[str] = NAMES) -> dict[int, Packed]:
    """Return the rows of the files of polars."""
    return {
        row: Packed(names[numbers[row]], numbers[row], f"photo {row}, é", {"score": row / 4, "id": 100 + row})
        for row in range(COUNT)
    }


@pytest.mark.parametrize(
    "name",
    ["polars.parquet", "polars-categorical.parquet", "polars-enum.parquet", "polars.arrow", "polars-list.parquet"],
)
def test_columns_of_polars(tmp_path: Path, name: str) -> None:
    assert packed(FOREIGN / name, tmp_path / "dst") == rows()


def test_the_arrow_file_of_polars_has_views() -> None:
    kinds = {str(field.type) for field in pa.ipc.open_file(pa.memory_map(str(FOREIGN / "polars.arrow"))).schema}
    assert {"string_view", "binary_view"} <= kinds


def test_structs_of_polars_as_hugging_face_has_images(tmp_path: Path) -> None:
    found = packed(FOREIGN / "polars-struct.parquet", tmp_path / "dst")
    assert [one.facts.pop("file_name") for one in found.values()] == [f"{100 + row}.png" for row in range(COUNT)]
    assert found == rows()


def test_lists_of_labels_of_polars_are_several_labels_unless_there_is_no_label(tmp_path: Path) -> None:
    labels = [entry.labels for entry in scan(FOREIGN / "polars-lists.parquet").inputs]
    assert labels == [(0,), (1, 2), (2,), (0,), (1,), (2,)]
    found = packed(FOREIGN / "polars-lists.parquet", tmp_path / "dst", columns={"label": ""})
    assert [one.facts["label"] for one in found.values()] == [[0], [1, 2], [2], [0], [1], [2]]


def test_folders_that_duckdb_named_by_a_column_are_that_column(tmp_path: Path) -> None:
    assert packed(FOREIGN / "duckdb", tmp_path / "dst") == rows()
    assert packed(f"{FOREIGN}/duckdb/label=[cd]*/*.parquet", tmp_path / "two") == {
        row: one for row, one in rows().items() if one.name != "fig"
    }
    paths = [entry.path for entry in scan(FOREIGN / "duckdb").inputs]
    assert len(set(paths)) == COUNT
    assert paths[0] == "label=cat/data_0.parquet#0"


def test_folders_of_two_columns_that_duckdb_wrote_into_the_files_too(tmp_path: Path) -> None:
    found = packed(FOREIGN / "duckdb-two", tmp_path / "dst", kind="parquet")
    assert [one.facts.pop("n") for one in found.values()] == list(range(COUNT))
    assert found == rows()


def test_types_of_duckdb(tmp_path: Path) -> None:
    found = packed(FOREIGN / "duckdb.parquet", tmp_path / "dst")
    for row, one in found.items():
        assert one.name == NAMES[row % 3]
        assert decimal.Decimal(one.facts["price"]) == decimal.Decimal(100 + row) / 10
        assert one.facts["meta"] == {"a": 100 + row, "b": [100 + row, 101 + row]}
        assert one.facts["pairs"] == [["k", 100 + row]]
        assert one.facts["day"] == "2024-01-02"
    assert len(found) == COUNT


FRAME = pd.DataFrame({"image": IMAGES, "label": CYCLE, "caption": [f"photo {row}" for row in range(COUNT)]})


def test_labels_of_pandas_with_missing_values_are_numbers(tmp_path: Path) -> None:
    FRAME.assign(label=pd.Series([0, None, 2, 0, 1, 2])).to_parquet(tmp_path / "t.parquet")
    assert str(pq.read_schema(tmp_path / "t.parquet").field("label").type) == "double"
    assert numbers(packed(tmp_path / "t.parquet", tmp_path / "dst")) == {0: 0, 2: 2, 3: 0, 4: 1, 5: 2}


@pytest.mark.parametrize("dtype", ["Int8", "uint16", "Float32", "object", "int64[pyarrow]"])
def test_labels_of_pandas_of_every_type_of_numbers(tmp_path: Path, dtype: str) -> None:
    FRAME.assign(label=FRAME["label"].astype(dtype)).to_parquet(tmp_path / "t.parquet")
    assert numbers(packed(tmp_path / "t.parquet", tmp_path / "dst")) == dict(enumerate(CYCLE))


def test_categories_and_booleans_of_pandas_are_classes(tmp_path: Path) -> None:
    names = pd.Categorical.from_codes(CYCLE, categories=["dog", "cat", "ant"])
    FRAME.assign(label=names).to_parquet(tmp_path / "names.parquet")
    found = packed(tmp_path / "names.parquet", tmp_path / "dst")
    assert [one.name for one in found.values()] == ["dog", "cat", "ant"] * 2
    FRAME.assign(label=[True, False] * 3).to_parquet(tmp_path / "flags.parquet")
    found = packed(tmp_path / "flags.parquet", tmp_path / "flags")
    assert [one[:2] for one in found.values()] == [("true", 1), ("false", 0)] * 3


def test_numbers_with_fractions_of_pandas_are_kept_and_are_not_the_label(tmp_path: Path) -> None:
    FRAME.assign(label=[0.5, 1, 2, 0.5, 1, 2]).to_parquet(tmp_path / "t.parquet")
    found = packed(tmp_path / "t.parquet", tmp_path / "dst")
    assert [one[1::2] for one in found.values()] == [(None, {"label": one}) for one in [0.5, 1, 2, 0.5, 1, 2]]
    assert "numbers with fractions, such as 0.5" in scan(tmp_path / "t.parquet").account.notes[0]


def test_an_index_of_pandas_is_kept(tmp_path: Path) -> None:
    FRAME.set_index(pd.Index(list("uvwxyz"), name="key")).to_parquet(tmp_path / "t.parquet")
    found = packed(tmp_path / "t.parquet", tmp_path / "dst")
    assert [one.facts for one in found.values()] == [{"key": one} for one in "uvwxyz"]


def test_folders_that_pyarrow_named_by_numbers(tmp_path: Path) -> None:
    pa.dataset.write_dataset(
        pa.Table.from_pandas(FRAME),
        tmp_path / "src",
        format="parquet",
        partitioning=["label"],
        partitioning_flavor="hive",
    )
    found = packed(tmp_path / "src", tmp_path / "dst")
    assert numbers(found) == dict(enumerate(CYCLE))
    assert {one.name for one in found.values()} == {None}


def test_folders_of_splits_are_not_mixed(tmp_path: Path) -> None:
    table = pa.Table.from_pandas(FRAME.assign(split=["train", "test"] * 3))
    src = tmp_path / "src"
    pq.write_to_dataset(table, src, partition_cols=["split", "label"])
    message = "several splits (test, train): pack with --split folders (pack_splits), or one at a time, such as "
    with pytest.raises(SourceError) as caught:
        scan(src)
    assert f"{message}'{src}/split=test'; the pattern '{src}/*/*/*.parquet' packs them together" in str(caught.value)
    train = {0: 0, 2: 2, 4: 1}
    assert numbers(packed(src / "split=train", tmp_path / "one")) == train
    assert len(scan(f"{src}/*/*/*.parquet").inputs) == COUNT
    reports = wt.pack_splits(src, tmp_path / "both", split="folders", workers=1)
    assert {name: report.packed for name, report in reports.items()} == {"test": 3, "train": 3}


def test_files_of_splits_are_not_mixed(tmp_path: Path) -> None:
    for name in ("train", "test"):
        FRAME.to_parquet(tmp_path / f"x-{name}-0.parquet")
    with pytest.raises(SourceError) as caught:
        scan(tmp_path)
    one, both = re.findall("(?:such as|pattern) '(.*?)'", str(caught.value))
    assert (len(scan(one).inputs), len(scan(both).inputs)) == (COUNT, 2 * COUNT)


def write_parquet(table: pa.Table, path: Path) -> None:
    pq.write_table(table, path.with_suffix(".parquet"))


def write_arrow(table: pa.Table, path: Path) -> None:
    pa.feather.write_feather(table, path.with_suffix(".arrow"), compression="lz4")


BOTH = pytest.mark.parametrize("write", [write_parquet, write_arrow])
Write = Callable[[pa.Table, Path], None]


@BOTH
@pytest.mark.parametrize(
    "image",
    [
        pa.large_binary(),
        pa.binary_view(),
        pa.list_(pa.uint8()),
        pa.large_list(pa.uint8()),
        pa.list_(pa.int64()),  # pandas writes a list of numbers so
        pa.dictionary(pa.int32(), pa.binary()),
        pa.struct([("bytes", pa.large_binary()), ("path", pa.large_string())]),
        pa.struct([("path", pa.string()), ("bytes", pa.binary()), ("width", pa.int32())]),
    ],
    ids=str,
)
def test_images_of_every_type_of_pyarrow(tmp_path: Path, write: Write, image: pa.DataType) -> None:
    values: list[Any] = [
        list(data) if pa.types.is_list(image) or pa.types.is_large_list(image) else data for data in IMAGES
    ]
    if pa.types.is_struct(image):
        values = [{"bytes": data, "path": None} for data in IMAGES]
    column = pa.array(values).dictionary_encode() if pa.types.is_dictionary(image) else pa.array(values, image)
    write(pa.table({"photo_column": column, "label": pa.array(CYCLE, pa.uint8())}), tmp_path / "t")
    src = next(tmp_path.glob("t.*"))
    assert numbers(packed(src, tmp_path / "dst")) == dict(enumerate(CYCLE))


@BOTH
def test_lists_of_small_numbers_that_are_not_images_are_lists(tmp_path: Path, write: Write) -> None:
    several = pa.array([[row % 3, 3] for row in range(COUNT)], pa.list_(pa.uint8()))
    write(pa.table({"image": IMAGES, "label": several, "sizes": several}), tmp_path / "t")
    src = next(tmp_path.glob("t.*"))
    assert [entry.labels for entry in scan(src).inputs] == [(row % 3, 3) for row in range(COUNT)]
    assert [one.facts["sizes"] for one in packed(src, tmp_path / "dst").values()] == several.to_pylist()


@BOTH
@pytest.mark.parametrize("image", [pa.binary(), pa.struct([("bytes", pa.binary()), ("path", pa.string())])], ids=str)
def test_lists_with_one_image_are_images(tmp_path: Path, write: Write, image: pa.DataType) -> None:
    values = [[data] if image == pa.binary() else [{"bytes": data, "path": None}] for data in IMAGES]
    write(pa.table({"images": pa.array(values, pa.list_(image)), "label": CYCLE}), tmp_path / "t")
    src = next(tmp_path.glob("t.*"))
    assert numbers(packed(src, tmp_path / "dst")) == dict(enumerate(CYCLE))
    write(pa.table({"images": pa.array([2 * one for one in values], pa.list_(image))}), tmp_path / "t")
    with pytest.raises(SourceError, match=r"has 2 images in 'images'; allowed is one per record"):
        packed(src, tmp_path / "two")


@BOTH
def test_identifiers_are_texts_and_values_of_structs_are_named_with_the_way_out(tmp_path: Path, write: Write) -> None:
    ids = pa.array([bytes([row]) * 16 for row in range(COUNT)], pa.uuid())
    labels = [{"name": NAMES[row % 3]} for row in range(COUNT)]
    write(pa.table({"image": IMAGES, "id": ids, "label": labels}), tmp_path / "t")
    src = next(tmp_path.glob("t.*"))
    assert packed(src, tmp_path / "dst")[1].facts["id"] == "01010101-0101-0101-0101-010101010101"
    assert "it has nested values: write the label as a separate value" in "".join(scan(src).account.notes)
    write(pa.table({"sample": [{"image": data} for data in IMAGES], "label": CYCLE}), tmp_path / "t")
    with pytest.raises(SourceError, match=r"bytes in lists and structs, as in 'sample', must be values of their own"):
        scan(src)


@BOTH
def test_raw_pixels_have_the_size_that_other_columns_state(tmp_path: Path, write: Write) -> None:
    pixels = [np.broadcast_to(np.array(colour(row), np.uint8), (5, 6, 3)).tobytes() for row in range(COUNT)]
    write(pa.table({"image": pixels, "height": [5] * COUNT, "width": [6] * COUNT, "label": CYCLE}), tmp_path / "t")
    assert numbers(packed(next(tmp_path.glob("t.*")), tmp_path / "dst")) == dict(enumerate(CYCLE))


@BOTH
@pytest.mark.parametrize("form", ["lists", "tensors", "columns"])
def test_pixels_as_numbers_are_refused_with_the_way_out(form: str, tmp_path: Path, write: Write) -> None:
    pixels = np.zeros((COUNT, 4, 6, 3), np.uint8)
    columns = {
        "lists": {"image": pixels.reshape(COUNT, -1).tolist()},
        "tensors": {"image": pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)},
        "columns": {f"pixel{one}": pixels.reshape(COUNT, -1)[:, one] for one in range(72)},
    }
    write(pa.table({**columns[form], "label": CYCLE}), tmp_path / "t")
    with pytest.raises(SourceError, match=r"pixels of images as numbers in column '(image|pixel0)'.* docs/sources.md"):
        scan(next(tmp_path.glob("t.*")))


@BOTH
@pytest.mark.parametrize(
    "label",
    [pa.string_view(), pa.large_string(), pa.dictionary(pa.int8(), pa.string()), pa.binary(), pa.binary_view()],
    ids=str,
)
def test_labels_of_every_type_of_text(tmp_path: Path, write: Write, label: pa.DataType) -> None:
    names = pa.array([NAMES[one] for one in CYCLE])
    column = names.dictionary_encode() if pa.types.is_dictionary(label) else names.cast(label)
    write(pa.table({"image": IMAGES, "label": column}), tmp_path / "t")
    found = packed(next(tmp_path.glob("t.*")), tmp_path / "dst")
    assert [one.name for one in found.values()] == [NAMES[one] for one in CYCLE]


@BOTH
def test_whole_decimals_are_class_numbers(tmp_path: Path, write: Write) -> None:
    label = pa.array(list(map(decimal.Decimal, CYCLE)), pa.decimal128(5, 2))
    write(pa.table({"image": IMAGES, "label": label}), tmp_path / "t")
    assert numbers(packed(next(tmp_path.glob("t.*")), tmp_path / "dst")) == dict(enumerate(CYCLE))


@BOTH
def test_binary_values_that_are_not_images_are_left_out_with_the_reason(tmp_path: Path, write: Write) -> None:
    inner = pa.list_(pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    table = pa.table(
        {
            "image": IMAGES,
            "sound": [b"RIFF1234WAVE"] * COUNT,
            "pages": pa.array([[{"bytes": b"x", "path": None}]] * COUNT, inner),
            "raw": [list(range(5))] * COUNT,
        }
    )
    write(table, tmp_path / "t")
    assert parts(next(tmp_path.glob("t.*"))) == {
        "image": "image",
        "sound": "binary, and not an image",
        "pages": "several images per record",
        "raw": "entries of json",
    }


@BOTH
def test_a_second_column_of_images_is_a_field(tmp_path: Path, write: Write) -> None:
    write(pa.table({"depth": IMAGES[::-1], "image": IMAGES}), tmp_path / "t")
    src = next(tmp_path.glob("t.*"))
    assert parts(src) == {"image": "image", "depth": "image field depth"}
    assert packed(src, tmp_path / "dst").keys() == set(range(COUNT))


@BOTH
def test_a_column_of_text_that_could_be_the_label_is_reported(tmp_path: Path, write: Write) -> None:
    write(pa.table({"image": IMAGES, "animal": [NAMES[one] for one in CYCLE], "width": [4] * COUNT}), tmp_path / "t")
    src = next(tmp_path.glob("t.*"))
    assert scan(src).account.notes == [
        "no label: the column 'animal' (cat, dog, fig) could be it; pass --label NAME if it is"
    ]


def test_a_column_of_text_is_not_the_image(tmp_path: Path) -> None:
    write_parquet(pa.table({"path": ["a.jpg"] * COUNT, "label": CYCLE}), tmp_path / "t")
    for columns in ({}, {"image": "path"}):
        with pytest.raises(SourceError, match=r"column 'path' has text; images are bytes.* --from table .*base64"):
            scan(tmp_path / "t.parquet", columns=columns)


# Several files


def feature(names: Sequence[str]) -> dict[str, Any]:
    return {"image": {"_type": "Image"}, "label": {"names": list(names), "_type": "ClassLabel"}}


def saved(path: Path, images: list[bytes], labels: list[int], names: Sequence[str]) -> None:
    """Write a file with `datasets`."""
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=list(names))})
    cells = [{"bytes": data, "path": None} for data in images]
    datasets.Dataset.from_dict({"image": cells, "label": labels}, features=features).to_parquet(str(path))


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("other", "union"),
    [(("dog", "fig", "cat"), NAMES), (("ant", "dog"), ("cat", "dog", "fig", "ant")), (("cat", "dog"), NAMES)],
)
def test_class_names_of_files_of_datasets_are_matched(
    tmp_path: Path, out: Path, other: tuple[str, ...], union: tuple[str, ...]
) -> None:
    saved(tmp_path / "0.parquet", IMAGES[:3], [0, 1, 2], NAMES)
    saved(tmp_path / "1.parquet", IMAGES[3:], [0, 1, -1], other)
    assert scan(tmp_path).classes == union
    found = packed(tmp_path, out)
    assert [one.name for one in found.values()] == ["cat", "dog", "fig", *other[:2]]


@pytest.mark.frameworks
@pytest.mark.parametrize("in_structs", [True, False])
def test_class_names_inside_of_columns_are_matched_by_name(tmp_path: Path, out: Path, in_structs: bool) -> None:
    import datasets

    orders = [["cat", "dog"], ["dog", "cat", "fig"]]
    for file, order in enumerate(orders):
        category = datasets.ClassLabel(names=order)
        objects = datasets.List({"category": category}) if in_structs else {"category": datasets.List(category)}
        features = datasets.Features({"image": datasets.Image(), "objects": objects, "kind": category})
        cells: list[Any] = [{"category": name} for name in order] if in_structs else {"category": order}
        values = {"image": [{"bytes": IMAGES[file], "path": None}], "objects": [cells], "kind": ["cat"]}
        (tmp_path / "src").mkdir(exist_ok=True)
        datasets.Dataset.from_dict(values, features=features).to_parquet(str(tmp_path / "src" / f"{file}.parquet"))
    found = packed(tmp_path / "src", out, columns={"label": ""})
    classes = scan(tmp_path / "src", columns={"label": ""}).field_classes
    names = classes["json:objects.category"].names
    assert names == classes["json:kind"].names == ("cat", "dog", "fig")
    for file, order in enumerate(orders):
        objects = found[file].facts["objects"]
        numbers = [one["category"] for one in objects] if in_structs else objects["category"]
        assert ([names[number] for number in numbers], found[file].facts["kind"]) == (order, 0)


@pytest.mark.frameworks
def test_class_names_inside_of_columns_of_only_one_file_are_an_error(tmp_path: Path) -> None:
    import datasets

    for file, category in enumerate((datasets.ClassLabel(names=["cat"]), datasets.Value("int64"))):
        features = datasets.Features({"image": datasets.Image(), "objects": {"category": datasets.List(category)}})
        values = {"image": [{"bytes": IMAGES[file], "path": None}], "objects": [{"category": [0]}]}
        datasets.Dataset.from_dict(values, features=features).to_parquet(str(tmp_path / f"{file}.parquet"))
    with pytest.raises(SourceError, match=r"'objects\.category' has class names in 0\.parquet, and none in 1\.parquet"):
        scan(tmp_path)


def test_class_names_in_only_one_of_two_files_are_an_error(tmp_path: Path) -> None:
    table = pa.table({"image": IMAGES, "label": CYCLE})
    metadata = {"huggingface": json.dumps({"info": {"features": feature(NAMES)}})}
    write_parquet(table.replace_schema_metadata(metadata), tmp_path / "0")
    write_parquet(table, tmp_path / "1")
    with pytest.raises(SourceError, match=r"'label' has class names in 0\.parquet, and none in 1\.parquet"):
        scan(tmp_path)


@BOTH
def test_a_column_with_another_type_in_a_later_file_is_an_error(tmp_path: Path, write: Write) -> None:
    write(pa.table({"image": IMAGES, "label": CYCLE}), tmp_path / "0")
    write(pa.table({"image": IMAGES, "label": [NAMES[one] for one in CYCLE]}), tmp_path / "1")
    with pytest.raises(
        SourceError, match=r"column 'label' has numbers \(int64\) in 0\.\w+, and text \(string\) in 1\.\w+"
    ):
        scan(tmp_path)


@BOTH
def test_columns_that_only_some_files_have_are_kept_and_reported(tmp_path: Path, out: Path, write: Write) -> None:
    write(pa.table({"image": IMAGES[:3], "label": CYCLE[:3]}), tmp_path / "0")
    table = pa.table({"label": pa.array(CYCLE[3:], pa.int8()), "weight": [1.5, 2.5, 3.5], "image": IMAGES[3:]})
    write(table.append_column("caption", [["a", "b", None]]), tmp_path / "1")
    suffix = next(tmp_path.iterdir()).suffix
    found = packed(tmp_path, out)
    assert {row: (one.number, one.caption, one.facts) for row, one in found.items()} == {
        0: (0, None, {}),
        1: (1, None, {}),
        2: (2, None, {}),
        3: (0, "a", {"weight": 1.5}),
        4: (1, "b", {"weight": 2.5}),
        5: (2, None, {"weight": 3.5}),
    }
    src = f"{tmp_path}/*{suffix}"
    assert f"column 'caption' is missing in '0{suffix}': their samples are packed without it" in scan(src).account.notes
    assert set(parts(src)) == {"image", "label", "weight", "caption"}


@BOTH
def test_a_label_that_only_some_files_have_is_an_error(tmp_path: Path, write: Write) -> None:
    write(pa.table({"image": IMAGES}), tmp_path / "0")
    write(pa.table({"image": IMAGES, "label": CYCLE}), tmp_path / "1")
    with pytest.raises(SourceError, match=r"0\.\w+ has no column 'label', which 1\.\w+ has: add it"):
        scan(tmp_path)


@BOTH
def test_files_without_rows_and_columns_without_values_have_no_say(tmp_path: Path, out: Path, write: Write) -> None:
    write(pa.table({"image": pa.array([], pa.string()), "x": pa.array([], pa.int8())}), tmp_path / "0")
    nothing = {"caption": pa.nulls(3), "tags": pa.array([[]] * 3, pa.list_(pa.null()))}
    write(pa.table({"image": IMAGES[:3], "label": CYCLE[:3], **nothing}), tmp_path / "1")
    write(
        pa.table({"image": IMAGES[3:], "label": CYCLE[3:], "caption": list("abc"), "tags": [["u"]] * 3}), tmp_path / "2"
    )
    found = packed(tmp_path, out)
    assert numbers(found) == dict(enumerate(CYCLE))
    assert [one.caption for one in found.values()] == [None, None, None, "a", "b", "c"]
    assert [one.facts["tags"] for one in found.values()] == [[]] * 3 + [["u"]] * 3


@pytest.mark.frameworks
def test_two_columns_of_class_names_of_datasets_are_an_error(tmp_path: Path) -> None:
    import datasets

    features = datasets.Features(
        {
            "img": datasets.Image(),
            "fine_label": datasets.ClassLabel(names=["a", "b", "c"]),
            "coarse_label": datasets.ClassLabel(names=["u", "v"]),
        }
    )
    cells = [{"bytes": data, "path": None} for data in IMAGES]
    values = {"img": cells, "fine_label": CYCLE, "coarse_label": [0, 1, 1, 0, 1, 1]}
    datasets.Dataset.from_dict(values, features=features).save_to_disk(str(tmp_path / "saved"))
    with pytest.raises(SourceError, match=r"could be the label: 'fine_label' .*, 'coarse_label' "):
        scan(tmp_path / "saved")
    found = packed(tmp_path / "saved", tmp_path / "dst", columns={"label": "coarse_label"})
    assert [(one.name, one.facts["fine_label"]) for one in found.values()] == [
        (name, one) for name, one in zip("uvvuvv", CYCLE, strict=True)
    ]


@BOTH
def test_numbers_and_names_of_classes_in_two_columns(tmp_path: Path, write: Write) -> None:
    names = ["dog", "ant", "cat"]
    write(pa.table({"image": IMAGES, "label": CYCLE, "label_name": [names[one] for one in CYCLE]}), tmp_path / "t")
    src = next(tmp_path.glob("t.*"))
    found = packed(src, tmp_path / "dst")
    assert [one[:2] for one in found.values()] == [(names[one], one) for one in CYCLE]
    assert parts(src) == {"image": "image", "label": "label", "label_name": "class names"}


def test_every_image_is_that_of_its_row_in_row_groups_of_two_files(tmp_path: Path, out: Path) -> None:
    for part, file in enumerate((range(4), range(4, 6))):
        table = pa.table({"image": [IMAGES[row] for row in file], "label": [NAMES[row % 3] for row in file]})
        pq.write_table(table, tmp_path / f"{part}.parquet", row_group_size=1)
    found = packed(tmp_path, out)
    assert [one.name for one in found.values()] == [NAMES[row % 3] for row in range(COUNT)]
    assert io.BytesIO(IMAGES[0]).read(4) == b"\x89PNG"


@pytest.mark.parametrize("door", ["parquet", "stream"])
def test_class_names_of_a_column_that_is_not_the_label_are_kept(tmp_path: Path, door: str) -> None:
    """As in CIFAR-100, which has fine and coarse labels."""
    import datasets

    names = {"label": ["a", "b"], "coarse_label": ["u", "v"]}
    features = {name: datasets.ClassLabel(names=values) for name, values in names.items()}
    rows = {"image": [png(row) for row in range(4)], "label": [0, 1] * 2, "coarse_label": [0, 0, 1, 1]}
    data = datasets.Dataset.from_dict(rows, datasets.Features({"image": datasets.Image(), **features}))
    data.to_parquet(tmp_path / "a.parquet")
    src = tmp_path / "a.parquet" if door == "parquet" else data.to_iterable_dataset()
    manifest = wt.pack(src, tmp_path / "dst", columns={"label": "label"}, workers=1).manifest
    assert manifest.classes == ("a", "b")
    assert {place: found.names for place, found in manifest.field_classes.items()} == {"json:coarse_label": ("u", "v")}
