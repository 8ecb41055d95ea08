"""Files of class names, as people and programs write them, through `pack`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import yaml

import wds_tools as wt
from wds_tools.errors import OptionError

NAMES = ("zero", "one", "two", "three")


@pytest.fixture
def table(photos: Path, tmp_path: Path) -> Path:
    """A table of images with the labels 0 to 3."""
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", "label"])
        images = sorted(photos.rglob("*.jpg"))[:4]
        rows.writerows([image, label] for label, image in enumerate(images))
    assert len(images) == len(NAMES)
    return path


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffzero \r\n one\r\n\r\ntwo\r\nthree\r\n".encode(),
        "\r".join(NAMES).encode(),
        "\n".join(NAMES).encode("utf-16"),
        b"# our classes\n" + "\n".join(NAMES).encode(),
        b"3 three\n2 two\n1 one\n0 zero\n",
        b"0,zero\n1,one\n2,two\n3,three",
        b'label\tid\n"three"\t3\n"two"\t2\n"one"\t1\n"zero"\t0\n',
        b"0: zero\n1: one\n2: two\n3: three\n",
        b"- zero\n- one\n- two\n- three\n",
        json.dumps(NAMES, indent=1).encode(),
        json.dumps({name: number for number, name in enumerate(NAMES)}).encode(),
        json.dumps(dict(enumerate(NAMES))).encode(),
        str(dict(enumerate(NAMES))).encode(),
        yaml.safe_dump({"nc": 4, "names": dict(enumerate(NAMES))}).encode(),
        yaml.safe_dump({"names": [*NAMES], "train": "images"}).encode(),
    ],
)
def test_all_usual_forms_are_read(
    table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (tmp_path / "names").write_bytes(content)
    report = wt.pack(table, tmp_path / "dst", classes=tmp_path / "names", dry_run=True)
    assert report.manifest.classes == NAMES
    assert not caplog.records


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"class\nzero\none\ntwo\nthree\n", "begins with 'class'.*header.*JSON list"),
        (b"#classes\nzero\none\ntwo\nthree\n", "begins with '#classes'.*comment"),
        (b"1 zero\n2 one\n3 two\n4 three\n", "numbers '1', '2', '3', '4'; class numbers are 0 to 3"),
        (b"zero 1\none 2\ntwo 3\nthree 4\n", "numbers '1', '2', '3', '4'"),
        (b"wnid,name\nn01,zero\nn02,one\n", "several columns"),
        ("zero\none\ntwo\ntr\xeas\n".encode("latin-1"), "not utf-8.*save it as UTF-8"),
        ("\n".join(NAMES).encode("utf-16-le"), "not text"),
        (b'[["zero", "one"]]', "neither a list of names"),
        (b'{"zero": 1, "one": 2}', "each number from 0"),
        (b'["zero", "one"', "begins like JSON"),
        (b"names: {0: zero, 2: one}", "allowed are 0 to 1"),
        (b"zero\none\ntwo\n", "label 3, but there are only 3 class names"),
    ],
)
def test_what_may_shift_the_names_is_an_error(table: Path, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "names").write_bytes(content)
    with pytest.raises((OptionError, wt.WdsToolsError), match=message):
        wt.pack(table, tmp_path / "dst", classes=tmp_path / "names", dry_run=True)


@pytest.mark.parametrize(
    "names",
    [
        ("Audi A4 2012", "BMW M3 2012", "Dodge Ram 2010", "Fiat 500 2012"),
        ("n01 tench, Tinca tinca", "n02 goldfish", "n03 hen", "n04 cock"),
        ("class 0", "other 0", "class 1", "other 1"),
    ],
)
def test_names_with_numbers_in_them_stay_as_they_are(table: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    (tmp_path / "names").write_text("\n".join(names))
    assert wt.pack(table, tmp_path / "dst", classes=tmp_path / "names", dry_run=True).manifest.classes == names


def test_more_names_than_labels_are_a_note(table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "names").write_text("background\n" + "\n".join(NAMES))
    wt.pack(table, tmp_path / "dst", classes=tmp_path / "names", dry_run=True)
    assert "there are 5 class names, and the largest label is 3: no sample is 'three'" in caplog.text
