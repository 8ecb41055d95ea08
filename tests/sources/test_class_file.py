"""Files of class names, as people and programs write them, through `pack`."""

from __future__ import annotations

import contextlib
import csv
import json
from pathlib import Path

import pytest
import yaml

import wds_tools as wt
from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.sources.class_file import names_of

NAMES = ("zero", "one", "two", "three")
LABEL_MAP = b"""
item { id: 1 name: 'one' }
item { id: 0, name: "zero" }
item {
  name: 'two'
  id: 2
}
item {
  id: 3
  name: '/m/03'
  display_name: 'three'
  keypoints { id: 7 label: 'nose' }
}
"""


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


FORMS = (
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
    yaml.safe_dump({"classes": {name: number for number, name in enumerate(NAMES)}}).encode(),
    b'"zero"\n"one"\n"two"\n"three"\n',
    b"'zero',\n'one',\n'two',\n'three'\n",
    b'names = ["zero", "one", "two", "three"]\n',
    b"CLASSES = (\n    'zero',\n    'one',\n    'two',\n    'three',\n)\n",
    b"zero, one, two, three\n",
    b"0. zero\n1. one\n2. two\n3. three\n",
    b"0) zero\n1) one\n2) two\n3) three\n",
    b"0 - zero\n1 - one\n2 - two\n3 - three\n",
    LABEL_MAP,
    json.dumps({number: [f"n0144076{number}", name] for number, name in enumerate(NAMES)}).encode(),
    "".join(f"n0144076{number} {name}\n" for number, name in enumerate(NAMES)).encode(),
    json.dumps([{"id": number, "name": name} for number, name in enumerate(NAMES)]).encode(),
    json.dumps({"id2label": dict(enumerate(NAMES)), "label2id": {one: NAMES.index(one) for one in NAMES}}).encode(),
)


def test_all_usual_forms_are_read(table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for content in FORMS:
        (tmp_path / "names").write_bytes(content)
        report = wt.pack(table, tmp_path / "dst", classes=tmp_path / "names", dry_run=True)
        assert report.manifest.classes == NAMES, content
        assert not caplog.records, content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"class\nzero\none\ntwo\nthree\n", "begins with 'class'.*header.*JSON list"),
        (b"#classes\nzero\none\ntwo\nthree\n", "begins with '#classes'.*comment"),
        (b"2 zero\n3 one\n4 two\n5 three\n", "numbers '2', '3', '4', '5'; class numbers are 0 to 3.* add a name for 0"),
        (b"0 zero\n1 one\n2 two\n9 nine\n", "numbers '0', '1', '2', '9'; .*: add a name for the missing numbers, "),
        (
            b"zero 120\none 80\ntwo 120\nthree 7\n",
            "numbers '120', '80', '120', '7'.* leave them out if they are counts",
        ),
        (b"zero: 120\none: 80\ntwo: 120\nthree: 7\n", "leave them out if they are counts"),
        (b"label count\nzero 120\none 80\ntwo 5\nthree 7\n", "leave them out if they are counts"),
        (b" 120 zero\n  80 one\n 120 two\n   7 three\n", "leave them out if they are counts"),  # of uniq -c
        (b"zero (120)\none (80)\ntwo (5)\nthree (7)\n", "leave them out if they are counts"),
        (b"0 zero 120\n1 one 80\n2 two 5\n3 three 7\n", "leave them out if they are counts"),
        (b"0,zero,120\n1,one,80\n2,two,5\n3,three,7\n", "several columns"),
        (b'{"id2label": {"0": "zero", "1": "one"}, "label2id": {"zero": 1, "one": 0}}', "different class names"),
        (b'{"zero": 120, "one": 80}', "leave them out if they are counts"),
        (b"wnid,name\nn01,zero\nn02,one\n", "several columns"),
        ("zero\none\ntwo\ntr\xeas\n".encode("latin-1"), "not text in UTF-8.*save it as UTF-8"),
        ("\n".join(NAMES).encode("utf-16-le"), "not text"),
        (b'[["zero", ["one"]]]', "no class names"),
        (b'["zero", "one"', "begins like JSON"),
        (b"names: {0: zero, 2: one}", "class numbers are 0 to 1"),
        (b"zero\none\ntwo\n", "label 3, but there are only 3 class names"),
    ],
)
def test_what_may_shift_the_names_is_an_error(table: Path, tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "names").write_bytes(content)
    with pytest.raises((OptionError, wt.WdsToolsError), match=message):
        wt.pack(table, tmp_path / "dst", classes=tmp_path / "names", dry_run=True)


@pytest.mark.parametrize(
    "content",
    [
        b"item { id: 1 name: 'one' }\nitem { id: 2 name: 'two' }\nitem { id: 3 name: 'three' }\n",  # of TensorFlow
        b"1 one\n2 two\n3 three\n",  # of CUB-200
        b'{"3": "three", "1": "one", "2": "two"}',  # of Flowers-102
        b"three 3\none 1\ntwo 2\n",
    ],
)
def test_names_may_count_from_1_if_the_labels_do(
    table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    (tmp_path / "names").write_bytes(content)
    with pytest.raises(LabelError, match=r"has label 0, and the class names .* have the numbers 1 to 3: add a name"):
        wt.pack(table, tmp_path / "dst", classes=tmp_path / "names", dry_run=True)
    table.write_text("\n".join(line for line in table.read_text().splitlines() if not line.endswith(",0")))
    manifest = wt.pack(table, tmp_path / "dst", classes=tmp_path / "names", workers=1).manifest
    assert manifest.classes == ("0", "one", "two", "three")
    with wt.make_loader(tmp_path / "dst", batch_size=3, num_workers=0, view=wt.CenterCrop(32)) as loader:
        assert sorted(next(iter(loader)).label.tolist()) == [1, 2, 3]
    assert [record.message for record in caplog.records if "class" in record.message] == [
        f"{table}: the class names that were given count from 1: class 0 has no name"
    ]


WITH_NUMBERS = (
    ("Audi A4 2012", "BMW M3 2012", "Dodge Ram 2010", "Fiat 500 2012"),
    ("n01 tench, Tinca tinca", "n02 goldfish", "n03 hen", "n04 cock"),
    ("class 0", "other 0", "class 1", "other 1"),
    ("Boeing 737", "Boeing 747", "Airbus 320", "Airbus 330"),
    ("iPhone 12", "Pixel", "Galaxy 9", "3310"),
    ("1 cent", "2 cent", "5 cent", "10 cent"),
    ("001.Black_footed_Albatross", "002.Laysan", "COVID-19", "C. elegans"),
)


def test_names_with_numbers_in_them_stay_as_they_are(table: Path, tmp_path: Path) -> None:
    for names in WITH_NUMBERS:
        (tmp_path / "names").write_text("\n".join(names))
        assert wt.pack(table, tmp_path / "dst", classes=tmp_path / "names", dry_run=True).manifest.classes == names


def test_quoted_names_are_taken_as_they_are(table: Path, tmp_path: Path) -> None:
    names = ("Boeing 737", "tench, Tinca tinca", 'the "red" one', "7 Up")
    with (tmp_path / "names").open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows([name] for name in names)
    assert wt.pack(table, tmp_path / "dst", classes=tmp_path / "names", dry_run=True).manifest.classes == names


def test_a_name_that_two_ids_of_wordnet_have_keeps_the_id(table: Path, tmp_path: Path) -> None:
    synsets = ["n02012849 crane", "n01440764 tench, Tinca tinca", "n03126707 crane", "n01443537 goldfish"]
    index = {number: synset.split(" ", 1) for number, synset in enumerate(synsets)}  # as Keras has it
    for content in ("\n".join(synsets), json.dumps(index)):
        (tmp_path / "names").write_text(content)
        found = wt.pack(table, tmp_path / "dst", classes=tmp_path / "names", dry_run=True).manifest.classes
        assert found == ("crane (n02012849)", "tench, Tinca tinca", "crane (n03126707)", "goldfish")


HOSTILE = (
    b"9" * 5000 + b" ant\n1 bee\n",
    b'{"' + b"9" * 5000 + b'": "ant"}',
    b'{"1000000000000": "ant"}',
    b"x" * 200_000 + b", bee",
    b"a" + b" " * 100_000 + b"b\na\n",
    b"\n" * 100_000 + b"item {",
    b"item { id: 0 name: " + b"x" * 100_000 + b" }",
    b"item { id: 0 name: '\\x' }\nitem { id: 1 name: '\\",
    b"[" * 100_000,
    b"\x00\x01\x02\n\x03",
    b"names: &a [*a]",
    b"'",
    b'"\n"\n',
    b"",
)


def test_damaged_and_hostile_files_are_read_or_refused_quickly() -> None:
    for content in HOSTILE:
        with contextlib.suppress(SourceError):
            assert all(isinstance(name, str) for name in names_of(content, "classes.txt"))


def test_bytes_in_label_maps_are_read_as_protocol_buffers_write_them() -> None:
    content = rb"item { id: 0 name: 'caf\303\251' } item { id: 1 name: 'it\'s \"x\"' }"
    assert names_of(content, "a.pbtxt") == ("caf\xe9", 'it\'s "x"')


def test_more_names_than_labels_are_a_note(table: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "names").write_text("background\n" + "\n".join(NAMES))
    wt.pack(table, tmp_path / "dst", classes=tmp_path / "names", dry_run=True)
    assert "there are 5 class names, and the largest label is 3: no sample is 'three'" in caplog.text


def test_folders_that_are_numbers_have_the_names_of_a_label_map(photos: Path, tmp_path: Path) -> None:
    for number, image in enumerate(sorted(photos.rglob("*.jpg"))[:2], 1):
        (tmp_path / "train" / str(number)).mkdir(parents=True)
        (tmp_path / "train" / str(number) / image.name).write_bytes(image.read_bytes())
    (tmp_path / "cat_to_name.json").write_text('{"1": "rose", "2": "tulip"}')
    given = {"classes": tmp_path / "cat_to_name.json", "dry_run": True}
    with pytest.raises(LabelError, match=r"class '1' in .* add it, or pass --label-type number"):
        wt.pack(tmp_path / "train", tmp_path / "dst", **given)
    report = wt.pack(tmp_path / "train", tmp_path / "dst", label_type="number", **given)
    assert report.manifest.classes == ("0", "rose", "tulip")
