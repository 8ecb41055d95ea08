"""Tables of text that other programs wrote: CSV, JSON Lines and JSON, in several encodings."""

from __future__ import annotations

import base64
import csv
import json
import shutil
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
from foreign_tables import COUNT, NAMES, Packed, beside_images, packed, png
from PIL import Image
from sources_conformance import stored

import wds_tools as wt
from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.sources.base import Listing, SourceOptions
from wds_tools.sources.detect import open_source


def expected(*facts: str, caption: bool = True, text: bool = True) -> dict[int, Packed]:
    """Return the rows of the foreign files with some of their columns; numbers as text, as CSV has them, or not."""
    rows = {}
    for row in range(COUNT):
        values: dict[str, Any] = {
            "score": str(row / 4) if text else row / 4,
            "id": str(100 + row) if text else 100 + row,
            "box": [100 + row, 1],
            "line_number": str(row + 1),
        }
        kept = {name: values[name] for name in facts}
        rows[row] = Packed(NAMES[row % 3], row % 3, f"photo {row}, é" if caption else None, kept)
    return rows


def scan(path: Path, **options: Any) -> Listing:
    return open_source(path, kind="table", options=SourceOptions(**options)).scan()


def labels(path: Path, **options: Any) -> list[str | int | None]:
    """Return the class names of the rows, or their numbers."""
    listing = scan(path, **options)
    return [listing.classes[entry.label] if listing.classes else entry.label for entry in listing.inputs]


def parts(path: Path, **options: Any) -> dict[str, str]:
    """Return what becomes of each column."""
    return {part.name: part.role or part.reason for part in scan(path, **options).account.parts}


def path_of(sample: dict[str, bytes]) -> str:
    return str(json.loads(sample["json"])["path"])


def table(folder: Path, text: str | bytes, name: str = "t.csv") -> Path:
    """Write a table next to images."""
    path = beside_images(folder) / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


# Files of other programs


@pytest.mark.parametrize(
    "name",
    [
        "polars.csv",
        "polars-semicolon.csv",
        "polars-bom.tsv",
        "csvkit.tsv",
        "csvkit-quoted.csv",
        "csvkit-cr.csv",
        "iconv-utf16.csv",
    ],
)
def test_csv_of_polars_csvkit_and_iconv(tmp_path: Path, name: str) -> None:
    assert packed(beside_images(tmp_path / "src", name), tmp_path / "dst") == expected("score", "id")


@pytest.mark.parametrize(("name", "encoding"), [("iconv-latin1.csv", "latin-1"), ("iconv-utf16le.csv", "utf-16-le")])
def test_csv_of_iconv_whose_encoding_is_named(tmp_path: Path, name: str, encoding: str) -> None:
    path = beside_images(tmp_path / "src", name)
    assert packed(path, tmp_path / "dst", encoding=encoding) == expected("score", "id")
    with pytest.raises(SourceError, match=r"UTF-8.*--encoding"):
        packed(path, tmp_path / "other")


def test_csv_of_csvcut_with_line_numbers(tmp_path: Path) -> None:
    src = beside_images(tmp_path / "src", "csvkit-numbered.csv")
    assert packed(src, tmp_path / "dst") == expected("score", "id", "line_number")


def test_csv_of_duckdb_with_vertical_bars(tmp_path: Path) -> None:
    assert packed(beside_images(tmp_path / "src", "duckdb-pipe.csv"), tmp_path / "dst") == expected()


def test_csv_of_sqlite_with_quotes_and_line_breaks_in_values(tmp_path: Path) -> None:
    found = packed(beside_images(tmp_path / "src", "sqlite.csv"), tmp_path / "dst")
    assert {row: one.caption for row, one in found.items()} == {
        row: f'photo {row}, é\n"{100 + row}"' for row in range(COUNT)
    }
    assert [one.name for one in found.values()] == [NAMES[row % 3] for row in range(COUNT)]


@pytest.mark.parametrize(
    "name", ["polars.ndjson", "polars.json", "csvkit-in.json", "csvkit-keyed.json", "jq-array.json"]
)
def test_json_of_polars_csvkit_and_jq(tmp_path: Path, name: str) -> None:
    found = packed(beside_images(tmp_path / "src", name), tmp_path / "dst", kind="table")
    assert found == expected("score", "id", text=False)


@pytest.mark.parametrize("name", ["duckdb.json", "duckdb.jsonl"])
def test_json_of_duckdb(tmp_path: Path, name: str) -> None:
    assert packed(beside_images(tmp_path / "src", name), tmp_path / "dst", kind="table") == expected("box")


def test_json_lines_of_iconv_in_utf_16(tmp_path: Path) -> None:
    src = beside_images(tmp_path / "src", "iconv-utf16.jsonl")
    assert packed(src, tmp_path / "dst") == expected("score", "id", text=False)


def test_json_of_sqlite(tmp_path: Path) -> None:
    src = beside_images(tmp_path / "src", "sqlite.json")
    assert packed(src, tmp_path / "dst", kind="table") == expected(caption=False)


def test_json_of_jq_with_a_list_for_each_column(tmp_path: Path) -> None:
    src = beside_images(tmp_path / "src", "jq-columns.json")
    assert packed(src, tmp_path / "dst", kind="table") == expected("score", caption=False, text=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jq-many.json", r"jq-many\.json cannot be read: Extra data"),
        ("node-nested.json", r"is an object with 'images', 'annotations'; expected a list of objects"),
    ],
)
def test_other_json_is_refused(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        scan(beside_images(tmp_path / "src", name))


FRAME = pd.DataFrame(
    {
        "path": [f"{row}.png" for row in range(COUNT)],
        "label": [NAMES[row % 3] for row in range(COUNT)],
        "caption": [f"photo {row}, é" for row in range(COUNT)],
        "id": [100 + row for row in range(COUNT)],
    }
)


@pytest.mark.parametrize("orient", ["records", "columns", "index", "lines", "list"])
def test_json_of_pandas_in_every_orientation(tmp_path: Path, orient: str) -> None:
    path = beside_images(tmp_path / "src") / "t.json"
    if orient == "list":
        path.write_text(json.dumps(FRAME.to_dict(orient="list")))
    elif orient == "lines":
        FRAME.to_json(path, orient="records", lines=True)
    else:
        FRAME.to_json(path, orient=orient)
    assert packed(path, tmp_path / "dst", kind="table") == expected("id", text=False)


@pytest.mark.parametrize("orient", ["split", "table", "values"])
def test_other_json_of_pandas_is_refused(tmp_path: Path, orient: str) -> None:
    path = beside_images(tmp_path / "src") / "t.json"
    FRAME.to_json(path, orient=orient)
    with pytest.raises(SourceError, match=r"expected a list of objects|has objects or lists in column 'data'"):
        scan(path)


def test_the_index_that_pandas_writes_first_is_kept_under_the_number_of_its_column(tmp_path: Path) -> None:
    path = beside_images(tmp_path / "src") / "t.csv"
    FRAME.to_csv(path)
    found = packed(path, tmp_path / "dst")
    assert [one.facts for one in found.values()] == [
        {"column_1": str(row), "id": str(100 + row)} for row in range(COUNT)
    ]
    assert [one.name for one in found.values()] == [NAMES[row % 3] for row in range(COUNT)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_csv_of_pandas_with_a_byte_order_mark(tmp_path: Path, encoding: str) -> None:
    path = beside_images(tmp_path / "src") / "t.csv"
    FRAME.to_csv(path, index=False, encoding=encoding)
    assert packed(path, tmp_path / "dst") == expected("id")


@pytest.mark.parametrize("text", ["NA", "none", "N/A"])
def test_texts_of_missing_labels_in_any_case_are_counted_or_named_as_classes(tmp_path: Path, text: str) -> None:
    path = beside_images(tmp_path) / "t.csv"
    values = [text, "dog", "cat", "dog", "cat", text]
    pd.DataFrame({"image": [f"{row}.png" for row in range(COUNT)], "label": values}).to_csv(path, index=False)
    report = wt.pack(path, tmp_path / "dst", workers=1, progress=False)
    assert (report.packed, report.manifest.classes) == (4, ("cat", "dog"))
    assert any(
        f"2 samples without a label: the value is {text!r}; pass --label-type name" in note
        for note in report.account.notes
    )
    assert set(labels(path, label_type="name")) == {text, "cat", "dog"}


def test_float_labels_that_pandas_makes_of_missing_integers(tmp_path: Path) -> None:
    path = beside_images(tmp_path / "src") / "t.csv"
    FRAME.assign(label=pd.Series([0, 1, None, 0, 1, 2])).to_csv(path, index=False)
    assert "1.0" in path.read_text()
    found = packed(path, tmp_path / "dst")
    assert {row: one.number for row, one in found.items()} == {0: 0, 1: 1, 3: 0, 4: 1, 5: 2}


def test_the_column_of_images_cannot_be_the_label(tmp_path: Path) -> None:
    pd.DataFrame({"path": ["1.png"], "breed": ["pug"]}).to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "1.png").write_bytes(b"any")
    source = open_source(tmp_path / "t.csv", options=SourceOptions(columns={"label": "path"}))
    with pytest.raises(SourceError, match=r"'path' is the image, so it cannot be the label: .*--column image=NAME"):
        source.scan()


def test_csv_of_pandas_with_numbers_and_names_of_classes(tmp_path: Path) -> None:
    path = beside_images(tmp_path / "src") / "t.csv"
    numbers = pd.Series([2, 0, 1, 2, 0, 1])
    FRAME.rename(columns={"label": "class_name"}).assign(label=numbers).to_csv(path, index=False)
    found = packed(path, tmp_path / "dst")
    assert [(one.number, one.name) for one in found.values()] == list(zip(numbers, FRAME.label, strict=True))
    assert parts(path)["class_name"] == "class names"


def test_csv_of_pyarrow(tmp_path: Path) -> None:
    path = beside_images(tmp_path / "src") / "t.csv"
    pyarrow.csv.write_csv(pa.Table.from_pandas(FRAME), path)
    assert packed(path, tmp_path / "dst") == expected("id")


def test_csv_of_pythons_csv_module_with_minimal_quotes_and_old_line_ends(tmp_path: Path) -> None:
    path = beside_images(tmp_path / "src") / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\r").writerows([list(FRAME), *FRAME.to_numpy().tolist()])
    assert packed(path, tmp_path / "dst") == expected("id")


def test_csv_of_excel_with_a_separator_line(tmp_path: Path) -> None:
    path = table(tmp_path, 'sep=;\r\npath;label;note\r\n0.png;cat;"a;b"\r\n1.png;dog;c,d,e,f\r\n'.encode("utf-8-sig"))
    found = packed(path, tmp_path / "dst")
    assert {row: (one.name, one.facts) for row, one in found.items()} == {
        0: ("cat", {"note": "a;b"}),
        1: ("dog", {"note": "c,d,e,f"}),
    }


def test_unicode_text_of_excel(tmp_path: Path) -> None:
    text = "path\tlabel\r\n0.png\tBär\r\n1.png\t犬\r\n"
    assert labels(table(tmp_path, text.encode("utf-16"), "t.txt")) == ["Bär", "犬"]


def test_csv_of_excel_on_windows(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label\r\n0.png,Bär\r\n1.png,dog\r\n".encode("cp1252"))
    assert labels(path, encoding="cp1252") == ["Bär", "dog"]
    with pytest.raises(SourceError, match=r"not UTF-8: the row at byte 12 has 'B\\udce4r'.*--encoding latin-1"):
        scan(path)


# Rules


def test_empty_lines_before_the_header_are_skipped(tmp_path: Path) -> None:
    assert labels(table(tmp_path, "\r\n\npath,label\n0.png,cat\n\n1.png,dog\n")) == ["cat", "dog"]


def test_spaces_after_separators_are_dropped(tmp_path: Path) -> None:
    path = table(tmp_path, 'path, label, note\n0.png, cat, "a, b"\n1.png, dog, c\n')
    assert [one[0::3] for one in packed(path, tmp_path / "dst").values()] == [
        ("cat", {"note": "a, b"}),
        ("dog", {"note": "c"}),
    ]


def test_spaces_in_rows_but_not_in_the_header_stay_in_values_and_not_in_paths_and_labels(tmp_path: Path) -> None:
    path = table(tmp_path, "note,path,label\n a, 0.png, cat\nb ,1.png ,dog\n")
    assert [one[0::3] for one in packed(path, tmp_path / "dst").values()] == [
        ("cat", {"note": " a"}),
        ("dog", {"note": "b "}),
    ]


def test_backslashes_in_paths_separate_folders(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    for row in range(2):
        (tmp_path / f"{row}.png").rename(tmp_path / "a" / "b" / f"{row}.png")
    path.write_text("path,label\na\\b\\0.png,cat\n.\\a\\b\\1.png,dog\n")
    assert {row: one.name for row, one in packed(path, tmp_path / "dst").items()} == {0: "cat", 1: "dog"}


def test_a_file_whose_name_has_a_backslash_is_that_file(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label\na\\0.png,cat\n")
    (tmp_path / "a").mkdir()
    (tmp_path / "1.png").rename(tmp_path / "a" / "0.png")
    (tmp_path / "0.png").rename(tmp_path / "a\\0.png")
    assert list(packed(path, tmp_path / "dst")) == [0]


@pytest.mark.parametrize("header", ["path,label,", "path,label"])
def test_separators_at_the_end_of_lines(tmp_path: Path, header: str) -> None:
    path = table(tmp_path, f"{header}\n0.png,cat,\n1.png,dog,,\n")
    assert [one[0::3] for one in packed(path, tmp_path / "dst").values()] == [("cat", {}), ("dog", {})]
    assert parts(path).get("column_3", "has neither a name nor values") == "has neither a name nor values"


def test_an_image_that_rows_name_in_two_ways_is_one_image(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label\n0.png,cat\n1.png,dog\n./1.png,cat\n")
    assert any("1 image with several rows, such as './1.png'" in note for note in scan(path).account.notes)
    path = table(tmp_path, f"path,label\n0.png,cat\n{tmp_path}/0.png,cat\n1.png,dog\n")
    assert any("1 image with several rows" in note for note in scan(path).account.notes)


def test_a_quote_that_is_not_closed_is_an_error_and_does_not_join_rows(tmp_path: Path) -> None:
    path = table(tmp_path, 'path,label,note\n0.png,cat,a\n1.png,dog,"b\n2.png,fig,c\n')
    with pytest.raises(SourceError, match=r"t\.csv: row 2 cannot be read: unexpected end of data.*must be doubled"):
        scan(path)


def test_quotes_with_backslashes_are_an_error(tmp_path: Path) -> None:
    path = table(tmp_path, 'path,label,note\n0.png,cat,"a \\"b\\", c"\n')
    with pytest.raises(SourceError, match=r"row 1 cannot be read.*must be doubled"):
        scan(path)


def test_rows_with_fewer_values_are_skipped_because_the_missing_column_is_not_known(tmp_path: Path) -> None:
    path = table(tmp_path, "id,path,label,status\n0,0.png,cat,ok\n1,1.png,ok\n2,2.png,dog,\n")
    listing = scan(path)
    assert listing.classes == ("cat", "dog")
    assert [(skip.path, skip.reason) for skip in listing.skipped] == [
        ("1.png", "the row has 3 values for 4 columns: write the separators of empty values too")
    ]
    assert [one.name for one in packed(path, tmp_path / "dst").values()] == ["cat", "dog"]


def test_a_short_row_does_not_hide_columns_of_0_and_1(tmp_path: Path) -> None:
    path = table(tmp_path, "path,cat,dog,fig\n0.png,1,0,0\n1.png,0,1\n2.png,0,0,1\n")
    assert [one.name for one in packed(path, tmp_path / "dst").values()] == ["cat", "fig"]


def test_a_table_without_names_of_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"no column of images.*its first line must have the names of the columns"):
        scan(table(tmp_path, "0.png,cat\n1.png,dog\n"))
    with pytest.raises(SourceError, match=r"separated by a comma, semicolon, tab or \|"):
        scan(table(tmp_path, "path label\n0.png cat\n"))


def test_names_and_ids_of_images_below_a_folder_lead_to_packing_the_folder(tmp_path: Path) -> None:
    """The tables of most competitions of Kaggle have ids, and the images are in train_images."""
    src = tmp_path / "src"
    src.mkdir()
    beside_images(src / "train_images")
    frame = pd.DataFrame({"diagnosis": NAMES * (COUNT // 3), "id_code": [f"{row}" for row in range(COUNT)]})
    cases: list[tuple[str, dict[str, str]]] = [("{}", {}), ("{}", {"image": "id_code"}), ("{}.png", {})]
    for names, given in cases:
        (src / "t.csv").write_text(frame.assign(id_code=frame.id_code.map(names.format)).to_csv(index=False))
        message = rf"column 'id_code', .*for 'train_images/0\.png'\): pack {src} with --column image=id_code"
        with pytest.raises(SourceError, match=message):
            scan(src / "t.csv", columns=given)
    found = packed(src, tmp_path / "dst", columns={"image": "id_code", "label": "diagnosis"})
    assert [one.name for one in found.values()] == frame.diagnosis.to_list()
    (src / "lists").mkdir()
    above = frame.assign(image="train_images/" + frame.id_code + ".png")
    (src / "lists" / "t.csv").write_text(above.to_csv(index=False))
    with pytest.raises(SourceError, match=rf"by paths from {src}, such as 'train_images/0.png': move the table there"):
        scan(src / "lists" / "t.csv")
    paths = frame.assign(filepaths=[f"train_images/{row}.png" for row in range(COUNT)])
    (src / "t.csv").write_text(paths.to_csv(index=False))
    with pytest.raises(SourceError, match=r"\(image files in 'filepaths'\): name .* as in --column image=filepaths"):
        scan(src / "t.csv")
    assert labels(src / "t.csv", columns={"image": "filepaths", "label": "diagnosis"}) == frame.diagnosis.to_list()


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_folder_of_tables_has_their_splits(tmp_path: Path, ending: str) -> None:
    """The images are elsewhere, and ``val`` has no image of the first class."""
    data, src = beside_images(tmp_path / "data"), tmp_path / "src"
    src.mkdir()
    frame = pd.DataFrame({"path": [str(data / f"{row}.png") for row in range(COUNT)], "label": NAMES * (COUNT // 3)})
    frame.path = frame.path.where(frame.index < 2, "../data/" + frame.index.astype(str) + ".png")
    for split, rows in (("train", frame[:4]), ("val", frame[4:6])):
        text = rows.to_csv(index=False) if ending == "csv" else rows.to_json(orient="records", lines=True)
        (src / f"{split}.{ending}").write_text(text)
    (src / "README.md").write_text("# Lists")
    with pytest.raises(SourceError, match=rf"several splits \(train, val\).*--split folders.*{src}/train.{ending}"):
        wt.pack(src, tmp_path / "dst")
    with pytest.raises(SourceError, match=rf"is a pattern, and a table .*; or pack {src}, with --split folders if"):
        wt.pack(src / f"*.{ending}", tmp_path / "dst")
    reports = wt.pack_splits(src, tmp_path / "dst", split="folders", workers=1)
    assert {report.manifest.classes for report in reports.values()} == {tuple(sorted(NAMES))}
    for split, rows in (("train", range(4)), ("val", range(4, 6))):
        number = {path_of(one): int(one["cls"]) for one in stored(tmp_path / "dst" / split)}
        assert number == {frame.path[row]: sorted(NAMES).index(frame.label[row]) for row in rows}
    for more in ("holdout", "val_extra"):
        shutil.copy(src / f"val.{ending}", src / f"{more}.{ending}")
    (src / "stats.json").write_text('{"rows": 6}')
    (src / "classes.csv").write_text("id,name\n0,ant\n")
    reports = wt.pack_splits(src, tmp_path / "more", split="folders", workers=1)
    assert {split: report.account.packed for split, report in reports.items()} == {
        "train": 4,
        "val": 2,
        "holdout": 2,
        "val_extra": 2,
    }
    (src / f"val_extra.{ending}").rename(src / f"more.{ending}")
    shutil.copy(src / f"train.{ending}", src / f"train2.{ending}")
    for run, options in ((wt.pack, {}), (wt.pack_splits, {"split": "folders"})):
        message = rf"not one for each split \('more.{ending}', 'train.{ending}', 'train2.{ending}'\): pack one"
        with pytest.raises(SourceError, match=message):
            run(src, tmp_path / "other", **options)


def test_a_table_with_thousands_of_columns(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(3000)]
    rows = [["path", *names, "label"]] + [[f"{row}.png", *["x"] * 3000, NAMES[row % 3]] for row in range(COUNT)]
    path = table(tmp_path, "\n".join(map(",".join, rows)))
    found = packed(path, tmp_path / "dst")
    assert [one.name for one in found.values()] == [NAMES[row % 3] for row in range(COUNT)]
    assert all(list(one.facts) == names for one in found.values())


def test_json_lines_with_other_keys_in_each_row(tmp_path: Path) -> None:
    lines = [{"path": "0.png", "label": 1, "a": None}, {"label": 0, "path": "1.png", "b": [1]}, {"path": "2.png"}]
    path = table(tmp_path, "\n".join(map(json.dumps, lines)), "t.jsonl")
    found = packed(path, tmp_path / "dst")
    assert [one[1::2] for one in found.values()] == [(1, {"a": None}), (0, {"b": [1]})]
    assert parts(path) == {"path": "image", "label": "label", "a": "entries of json", "b": "entries of json"}
    assert [(skip.path, skip.reason) for skip in scan(path).skipped] == [("2.png", "has no label")]


def test_an_unknown_encoding_and_one_for_another_format_are_refused(tmp_path: Path) -> None:
    path = table(tmp_path, "path\n0.png\n")
    with pytest.raises(OptionError, match="encoding='utf-9' is not an encoding"):
        packed(path, tmp_path / "dst", encoding="utf-9")
    with pytest.raises(OptionError, match=r"--encoding .* is for text files, but .* is read as folder"):
        packed(beside_images(tmp_path / "src"), tmp_path / "dst", encoding="latin-1")
    with pytest.raises(SourceError, match=r"t\.csv is not ascii: 'ascii' codec can't decode"):
        scan(table(tmp_path, "path,label\n0.png,Bär\n"), encoding="ascii")


# Roles


def rows_of(columns: dict[str, list[Any]]) -> str:
    return "\n".join(",".join(map(str, row)) for row in [list(columns), *zip(*columns.values(), strict=True)])


PATHS = [f"{row}.png" for row in range(COUNT)]
CYCLE = [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("columns", "chosen"),
    [
        ({"label": [0.5, 1, 2.25, 3, 4, 5] * 4, "class": CYCLE * 4}, "class"),  # a regression target
        ({"label": list(range(24, 48)), "category": CYCLE * 4}, "category"),  # an id
        ({"target": [f"n{row}" for row in range(24)], "class": CYCLE * 4}, "class"),  # a name for each row
        ({"species": ["x"] * COUNT, "class": CYCLE}, "class"),  # one value
        ({"x": [4, 5, 4, 4, 5, 5], "y": [1, 1, 2, 2, 3, 3], "label": CYCLE}, "label"),  # coordinates
        ({"label": [""] * COUNT, "class": CYCLE}, "class"),
        ({"label": CYCLE, "class": CYCLE}, "label"),  # the same twice
        ({"class": [f"{one}.0" for one in CYCLE], "label": CYCLE}, "label"),
    ],
)
def test_the_label_is_the_column_with_values_of_classes(
    tmp_path: Path, columns: dict[str, list[Any]], chosen: str
) -> None:
    times = len(columns[chosen]) // COUNT
    path = table(tmp_path, rows_of({"path": PATHS * times, **columns}))
    assert labels(path) == CYCLE * times
    roles = parts(path)
    assert roles == {"path": "image", chosen: "label"} | dict.fromkeys(columns.keys() - {chosen}, "entries of json")


@pytest.mark.parametrize(
    "columns",
    [
        {"label": CYCLE, "class": ["a", "b", "c", "b", "c", "a"]},
        {"label": CYCLE, "category": [1, 0, 0, 1, 0, 0]},
        {"target": ["a", "b", "a", "b", "a", "b"], "category": ["u", "v", "u", "v", "u", "v"]},
        {"class_id": CYCLE, "label": ["a", "b", "c", "a", "b", ""]},
        {"label": [10**9, 1, 10**9, 1, 1, 1], "class": ["a", "b", "a", "b", "b", "b"]},
    ],
)
def test_two_columns_that_could_be_the_label_are_an_error_that_shows_them(
    tmp_path: Path, columns: dict[str, list[Any]]
) -> None:
    path = table(tmp_path, rows_of({"path": PATHS, **columns}))
    one, two = columns
    with pytest.raises(
        SourceError, match=r"2 columns that could be the label: .*; name one, as in --label .*--column label= if there"
    ) as error:
        scan(path)
    for name in (one, two):
        assert f"{name!r} ({', '.join(dict.fromkeys(str(value) for value in columns[name] if value != ''))})" in str(
            error.value
        )
    assert "--label" in str(error.value)
    assert parts(path, columns={"label": two})[one] == "entries of json"
    assert parts(path, columns={"label": ""})[one] == "entries of json"
    assert {entry.label for entry in scan(path, columns={"label": ""}).inputs} == {None}


def test_numbers_with_gaps_keep_their_names(tmp_path: Path) -> None:
    path = table(tmp_path, rows_of({"path": PATHS, "category_id": [3, 1, 3, 1, 3, 3], "category": list("bababb")}))
    listing = scan(path)
    assert [entry.label for entry in listing.inputs] == [3, 1, 3, 1, 3, 3]
    assert listing.classes == ("0", "a", "2", "b")
    assert any("2 class numbers of 4 without a row, and so without a name" in note for note in listing.account.notes)


def test_a_column_that_is_not_the_label_by_its_values_is_reported_and_can_be_chosen(tmp_path: Path) -> None:
    numbers = list(range(20))
    paths = [f"{row}.png" for row in numbers]
    beside_images(tmp_path, count=20)
    path = table(tmp_path, rows_of({"path": paths, "label": numbers}))
    listing = scan(path)
    assert {entry.label for entry in listing.inputs} == {None}
    (note,) = listing.account.notes
    reason = "it has a different value in each row, like an id"
    assert note == f"column 'label' is not the label, because {reason}: pass --label label if it is"
    assert labels(path, columns={"label": "label"}) == numbers
    path = table(tmp_path, rows_of({"path": paths[:19], "label": numbers[:19]}))
    assert labels(path) == numbers[:19]  # so few may be one image of each class
    path = table(tmp_path, rows_of({"path": PATHS, "x": [4, 5, 4, 4, 5, 5], "y": CYCLE}))
    assert "'y' is not the label, because it is a coordinate next to 'x'" in scan(path).account.notes[0]
    path = table(tmp_path, rows_of({"path": PATHS, "x": ["a", "b", "c", "d", "e", "f"], "y": CYCLE}))
    assert labels(path) == CYCLE
    path = table(tmp_path, rows_of({"path": PATHS, "target": [0.5, 1, 0.5, 1, 0.5, 1]}))
    assert "has numbers with fractions, such as 0.5" in scan(path).account.notes[0]
    with pytest.raises(LabelError, match=r"label '0\.5' is not a whole number"):
        scan(path, columns={"label": "target"})
    assert labels(path, label_type="name") == ["0.5", "1", "0.5", "1", "0.5", "1"]


@pytest.mark.parametrize(
    ("first", "second"), [("fine_label", "coarse_label"), ("label", "label_2"), ("category", "subCategory")]
)
def test_a_second_level_of_classes_is_a_label_only_next_to_another_one(tmp_path: Path, first: str, second: str) -> None:
    columns = {"path": PATHS, first: CYCLE, second: [0, 1, 1, 0, 1, 1]}
    path = table(tmp_path, rows_of(columns))
    with pytest.raises(
        SourceError, match=f"2 columns that could be the label: '{first}' .*, '{second}' .*--label {first}"
    ):
        scan(path)
    assert labels(path, columns={"label": first}) == CYCLE
    path = table(tmp_path, rows_of({**columns, second: [0.5, 1, 0, 1, 1, 1]}))  # such as a confidence
    assert labels(path) == CYCLE
    del columns[first]
    path = table(tmp_path, rows_of(columns))
    assert {entry.label for entry in scan(path).inputs} == {None}
    assert f"no label: the column '{second}' (0, 1) could be it" in scan(path).account.notes[0]


def test_a_column_with_values_of_classes_and_an_unusual_name_is_reported(tmp_path: Path) -> None:
    columns = {"animal": list("ababab"), "note": list("uvwxyz"), "width": [4, 5, 4, 5, 4, 5]}
    path = table(tmp_path, rows_of({"path": PATHS, **columns}))
    note = "no label: the column 'animal' (a, b) could be it; pass --label NAME if it is"
    assert scan(path).account.notes == [note]
    assert scan(path, columns={"label": "animal"}).account.notes == []
    assert scan(path, columns={"label": ""}).account.notes == []


def test_a_column_of_few_whole_numbers_and_an_unusual_name_is_reported(tmp_path: Path) -> None:
    columns = {"diagnosis": [0, 2, 4, 0, 2, 4], "width": [640, 480] * 3, "number": range(6), "score": [0.5, 1.5] * 3}
    path = table(tmp_path, pd.DataFrame({"path": PATHS, **columns}).to_csv(index=False))
    note = "no label: the column 'diagnosis' (0, 2, 4) could be it; pass --label NAME if it is"
    assert scan(path).account.notes == [note]
    assert labels(table(tmp_path, rows_of({"path": PATHS, "ClassId": [0, 1] * 3}))) == [0, 1] * 3


def test_two_columns_of_images_are_an_error_if_the_files_of_both_exist(tmp_path: Path) -> None:
    other = [f"{row}.png" for row in reversed(range(COUNT))]
    path = table(tmp_path, rows_of({"image": PATHS, "path": other, "label": CYCLE}))
    with pytest.raises(
        SourceError, match=r"could be the image: 'image' \(0\.png, 1\.png, 2\.png\), 'path' .* --column image"
    ):
        scan(path)
    assert [entry.path for entry in scan(path, columns={"image": "path"}).inputs] == other
    path = table(tmp_path, rows_of({"image": [f"gone/{name}" for name in PATHS], "path": other, "label": CYCLE}))
    assert [entry.path for entry in scan(path).inputs] == other
    assert parts(path)["image"] == "entries of json"
    url = [f"https://example.org/{name}" for name in PATHS]
    path = table(tmp_path, rows_of({"url": url, "file_name": PATHS, "label": CYCLE}))
    with pytest.raises(SourceError, match=r"could be the image: 'file_name' .*, 'url' "):
        scan(path)


def test_lists_may_be_kept_without_being_labels_and_lists_of_fractions_are_no_labels(tmp_path: Path) -> None:
    lines = [{"path": name, "labels": [0, 3]} for name in PATHS]
    path = table(tmp_path, "\n".join(map(json.dumps, lines)), "t.jsonl")
    assert [entry.labels for entry in scan(path).inputs] == [(0, 3)] * COUNT
    found = packed(path, tmp_path / "dst", columns={"label": ""})
    assert [one[1::2] for one in found.values()] == [(None, {"labels": [0, 3]})] * COUNT
    lines = [{"path": name, "target": [0.5, 1]} for name in PATHS]
    path = table(tmp_path, "\n".join(map(json.dumps, lines)), "t.jsonl")
    assert "lists of numbers with fractions" in scan(path).account.notes[0]


def test_one_value_that_cannot_be_a_label_among_labels_is_an_error_with_its_row(tmp_path: Path) -> None:
    rows = [{"path": f"{row % COUNT}.png", "species": "cat", "label": row % 3} for row in range(12)]
    rows[7]["label"] = {"a": 1}
    path = table(tmp_path, "\n".join(map(json.dumps, rows)), "t.jsonl")
    message = r"almost all values of column 'label' are labels, but the value of row 8 is \"\{'a': 1\}\": correct it"
    with pytest.raises(SourceError, match=message):
        scan(path)
    assert set(labels(path, columns={"label": "species"})) == {"cat"}


def test_an_image_in_several_rows_is_an_error_or_noted(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label,caption\n0.png,cat,a\n0.png,cat,b\n1.png,dog,c\n")
    listing = scan(path)
    assert len(listing.inputs) == 3
    assert listing.account.notes[0].startswith(
        "1 image with several rows, such as '0.png': each row is a separate sample"
    )
    with pytest.raises(SourceError, match=r"pack the folder of the images, .*, or pass --from table"):
        wt.pack(path, tmp_path / "dst", dry_run=True)


@pytest.mark.parametrize("no", ["0", "-1"])
def test_columns_of_two_numbers_for_each_class_are_the_label(tmp_path: Path, no: str) -> None:
    rows = [[f"{row}.png", *("1" if row == column else no for column in range(3))] for row in range(3)]
    found = scan(table(tmp_path, "\n".join(map(",".join, [["path", "MEL", "NV", "BCC"], *rows]))))
    assert found.classes == ("MEL", "NV", "BCC")
    assert [entry.label for entry in found.inputs] == [0, 1, 2]


def test_columns_of_0_and_1_of_which_a_row_has_two_are_noted(tmp_path: Path) -> None:
    path = table(tmp_path, "path,MEL,NV,BCC\n0.png,1,1,0\n1.png,0,1,0\n2.png,0,0,1\n")
    (note,) = scan(path).account.notes
    assert note.startswith("no label: 3 columns with only 0 and 1 ('MEL', 'NV', 'BCC'): if they are classes")


BASE64 = base64.b64encode(png(0)).decode()


@pytest.mark.parametrize("value", [BASE64, [*png(0)], {"bytes": BASE64}, str(png(0))], ids=["64", "list", "{}", "str"])
@pytest.mark.parametrize("name", ["t.csv", "t.json", "t.jsonl"])
def test_the_content_of_images_is_refused_by_what_it_is(tmp_path: Path, name: str, value: Any) -> None:
    frame = pd.DataFrame({"image": [BASE64 if name == "t.csv" and isinstance(value, dict) else value] * 2})
    write = frame.to_csv if name == "t.csv" else partial(frame.to_json, orient="records", lines=name == "t.jsonl")
    write(tmp_path / name)
    with pytest.raises(SourceError, match=r"bytes of images as base64 text or numbers in column 'image': decode"):
        scan(tmp_path / name)


def test_objects_in_the_column_of_images_are_refused_with_the_way_out(tmp_path: Path) -> None:
    path = table(tmp_path, '{"image": {"src": "0.png"}, "label": 0}\n{"image": {"src": "1.png"}, "label": 1}', "t.json")
    with pytest.raises(SourceError, match=r"objects or lists in column 'image', such as \{'src': '0.png'\}, and"):
        open_source(path).scan()


def test_json_with_an_object_per_line_is_a_table_whatever_its_ending(tmp_path: Path) -> None:
    path = table(tmp_path, '{"image": "0.png", "label": 2}\n{"image": "1.png", "label": 1}\n', "t.json")
    assert labels(path) == [2, 1]


@pytest.mark.parametrize("form", ["{}", "[{}]"])
def test_a_key_twice_in_an_object_is_an_error(tmp_path: Path, form: str) -> None:
    row = '{"path": "0.png", "label": 1, "label": 2}'
    path = table(tmp_path, form.replace("{}", row), "t.json" if form == "[{}]" else "t.jsonl")
    with pytest.raises(SourceError, match=r"an object has the key 'label' twice, with \[1, 2\]"):
        scan(path)


def test_a_label_without_values_is_noted(tmp_path: Path) -> None:
    rows = [{"path": name, "label": None} for name in PATHS]
    (note,) = scan(table(tmp_path, "\n".join(map(json.dumps, rows)), "t.jsonl")).account.notes
    assert note.startswith("column 'label' is not the label, because it has no values")


def test_numbers_with_an_exponent_are_not_labels_and_it_is_stated(tmp_path: Path) -> None:
    path = table(tmp_path, "path,label\n" + "".join(f"{n}.png,{n % 3}e0\n" for n in range(COUNT)))
    (note,) = scan(path).account.notes
    assert note.startswith("column 'label' is not the label, because it has numbers such as 2e0, which are not whole")
    with pytest.raises(LabelError, match=r"label '0e0' is not a whole number"):
        scan(path, columns={"label": "label"})


def test_a_comment_in_the_first_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"begins with a comment, '# made by x': the first line must have the names"):
        scan(table(tmp_path, "# made by x\npath,label\n0.png,1\n"))


def test_lists_of_labels_may_be_lists_and_texts_in_one_column(tmp_path: Path) -> None:
    for row, label in enumerate([[1, 2], "[1]"]):
        (tmp_path / f"{row}.png").write_bytes(b"any")
        with (tmp_path / "t.jsonl").open("a") as file:
            file.write(json.dumps({"path": f"{row}.png", "label": label}) + "\n")
    assert [entry.labels for entry in open_source(tmp_path / "t.jsonl").scan().inputs] == [(1, 2), (1,)]


def test_bitmaps_that_pillow_wrote_become_png_as_in_a_folder(tmp_path: Path) -> None:
    expected = {}
    for number, kind in enumerate(("bmp", "ppm", "pgm", "png")):
        image = Image.effect_noise((9, 7), 50 + number).convert("L" if kind == "pgm" else "RGB")
        image.save(tmp_path / f"{number}-noise.{kind}")
        Image.new("L", (9, 7), number).save(tmp_path / f"mask-{number}.bmp")
        expected[f"{number}-noise.{kind}"] = np.asarray(image)
    rows = "".join(f"{name},mask-{name[0]}.bmp\n" for name in expected)
    report = wt.pack(table(tmp_path, f"path,mask.png\n{rows}"), tmp_path / "dst", images="keep", workers=1)
    assert not report.skipped
    for sample in stored(tmp_path / "dst"):
        path = json.loads(sample["json"])["path"]
        with Image.open(BytesIO(sample["png"])) as image, Image.open(BytesIO(sample["mask.png"])) as mask:
            np.testing.assert_array_equal(np.asarray(image), expected[path])
            assert (mask.format, set(np.asarray(mask).flat)) == ("PNG", {int(path[0])})


@pytest.mark.parametrize("column", ["label", "target", "mask_path", "class_name"])
@pytest.mark.parametrize("count", [6, 25])
def test_a_column_of_names_of_images_is_a_field_and_not_the_label(column: str, count: int, tmp_path: Path) -> None:
    """Lists for segmentation often call the mask the label. With 25 rows, each value looks like an id."""
    src = beside_images(tmp_path / "src", count=count)
    (src / "gt").mkdir()
    for row in range(count):
        Image.fromarray(np.full((8, 8), row, np.uint8)).save(src / "gt" / f"m{row}.png")
    frame = pd.DataFrame({"image": [f"{row}.png" for row in range(count)]})
    frame[column] = [f"gt/m{row}.png" for row in range(count)]
    frame.to_csv(src / "t.csv", index=False)
    report = wt.pack(src / "t.csv", tmp_path / "dst", images="keep", workers=1)
    assert report.manifest.classes == ()
    field = {"mask_path": "mask.png"}.get(column, f"{column}.png")
    for sample in stored(tmp_path / "dst"):
        row = int(json.loads(sample["json"])["path"].removesuffix(".png"))
        assert np.asarray(Image.open(BytesIO(sample[field]))).tolist() == np.full((8, 8), row).tolist()
        assert "cls" not in sample


def test_names_of_images_that_do_not_exist_are_not_labels(tmp_path: Path) -> None:
    src = beside_images(tmp_path / "src")
    rows = [{"image": f"{row}.png", "label": f"elsewhere/{row}.png"} for row in range(COUNT)]
    pd.DataFrame(rows).to_csv(src / "t.csv", index=False)
    account = scan(src / "t.csv").account
    [note] = account.notes
    assert "'label' is not the label, because it has names of images, such as 'elsewhere/0.png'" in note
    assert parts(src / "t.csv")["label"] == "entries of json"


def test_a_second_column_with_the_same_images_is_not_a_field(tmp_path: Path) -> None:
    src = beside_images(tmp_path / "src")
    names = [f"{row}.png" for row in range(COUNT)]
    columns = {"file_name": names, "absolute": [str(src / name) for name in names], "similar": [*names[1:], names[0]]}
    pd.DataFrame(columns).to_csv(src / "t.csv", index=False)
    assert {name: parts(src / "t.csv")[name] for name in columns} == {
        "file_name": "image",
        "absolute": "entries of json",
        "similar": "entries of json",
    }
