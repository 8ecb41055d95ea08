"""`sample` and `view` show a source that is not packed, of every kind that `pack` reads."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from conformance_cases import CASES, Case
from folders import contents, manifest_of
from PIL import Image
from servers import request, started

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.inspection.unpacked import as_dataset
from wds_tools.options import RemoteOptions

OBJECTS = ("object", "stream")  # the command line has no name for them
LITDATA = [pytest.mark.frameworks, pytest.mark.filterwarnings("ignore")]
PATHS = [
    pytest.param(name, marks=LITDATA if name == "litdata" else ()) for name in sorted(CASES) if name not in OBJECTS
]
USUAL = ("coco", "folder", "hdf5", "parquet", "table", "webdataset")  # the others are read by the same call of `pack`


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def output_of(*words: object, code: int = 0, capsys: Any) -> str:
    with pytest.raises(SystemExit, match=str(code)):
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return captured.err if code else captured.out


def options_of(case: Case) -> list[str]:
    return [f"--column={role}={name}" for role, name in (case.columns or {}).items()]


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.torture_except(*USUAL)
def test_each_kind_of_source_is_drawn_with_its_labels(name, tmp_path, temporary, capsys):
    (tmp_path / "source").mkdir()
    case = CASES[name](tmp_path / "source")
    out, number = tmp_path / "grid.png", len(case.labels)
    shown = output_of("sample", case.src, "--out", out, "--view=whole", "--size=32", *options_of(case), capsys=capsys)
    assert f"wrote {number} samples of {case.src} with view whole to {out}" in shown
    assert f"is not packed: shown are the first {number} image" in shown
    with Image.open(out) as sheet:
        columns = int(np.ceil(np.sqrt(number)))
        assert sheet.size == (36 * columns + 4, 50 * -(-number // columns) + 4)
    given = {"columns": case.columns}
    with as_dataset(str(case.src), given, first=48, remote=RemoteOptions.of()) as found:
        classes = manifest_of(Path(found.dataset)).classes
        numbers = [sample.get("cls") for sample in wt.StreamingDataset(found.dataset, decode=False, shuffle=False)]
        labels = [None if one is None else classes[int(one)] if classes else int(one) for one in numbers]
        several = any("labels.json" in name for name in manifest_of(Path(found.dataset)).fields)
    assert several or Counter(labels) == Counter(case.labels.values())
    assert not list(temporary.iterdir())


def test_the_first_images_are_those_that_pack_packs_first(photos, tmp_path, capsys):
    wt.pack(photos, tmp_path / "packed", images="keep", first=9, workers=1)
    for dataset, name in ((photos, "source"), (tmp_path / "packed", "dataset")):
        shown = output_of("sample", dataset, "--out", tmp_path / f"{name}.png", "--count=9", "--seed=3", capsys=capsys)
        assert ("shown are the first 9 images of 400, in the order" in shown) == (name == "source")
    assert (tmp_path / "source.png").read_bytes() == (tmp_path / "dataset.png").read_bytes()


def test_labels_can_be_chosen(photos, tmp_path, capsys):
    path = sorted((photos / "cat").iterdir())[0]
    (tmp_path / "images.csv").write_text(f"file,a,b\n{path},dog,cow\n")
    drawn = []
    for label in ("a", "b"):
        output_of(
            "sample", tmp_path / "images.csv", "--label", label, "--out", tmp_path / f"{label}.png", capsys=capsys
        )
        drawn.append((tmp_path / f"{label}.png").read_bytes())
    assert drawn[0] != drawn[1]


def test_what_is_neither_a_dataset_nor_a_source_is_an_error(packed, six_photos, tmp_path, capsys):
    def error_of(*words: object, code: int = 2) -> str:
        return output_of("sample", *words, "--out", tmp_path / "grid.png", code=code, capsys=capsys)

    assert "no such folder" in error_of(tmp_path / "none")
    assert "is a packed dataset; omit --from, --column or --label, for sources that are not packed" in error_of(
        packed, "--from=folder", "--label=x"
    )
    assert "holds the dataset photos; name one of them" in error_of(packed.parent)
    (tmp_path / "empty").mkdir()
    assert "empty" in error_of(tmp_path / "empty")
    wt.pack(six_photos, tmp_path / "part", task=(0, 2), workers=1)
    assert "is unfinished" in error_of(tmp_path / "part")
    copy = shutil.copytree(packed, tmp_path / "damaged")
    (copy / "manifest.json").write_bytes((copy / "manifest.json").read_bytes().replace(b'"cat"', b'"dog"'))
    assert "it was damaged, or edited" in error_of(copy, code=1)
    assert "it was damaged, or edited" in error_of(copy / "manifest.json", code=1)
    assert not (tmp_path / "grid.png").exists()


def test_view_shows_the_first_images_and_removes_them_at_the_end(six_photos, temporary):
    before = contents(six_photos)
    with started("view", six_photos, "--first=4", "--no-browser", env={"TMPDIR": str(temporary)}) as running:
        assert running.line.startswith(f"{six_photos} is not packed: shown are the first 4 images of 6, in the order")
        line = running.output.readline()
        assert line.startswith(f"{six_photos} is shown at http://127.0.0.1")
        url = urlsplit(line.split(" at ")[1].partition(";")[0])
        reply = request(f"http://{url.netloc}", url.path)
        assert reply.status == 200
        assert "six_photos (not packed, first 4 of 6)" in reply.body.decode()
        assert list(temporary.iterdir())
        running.process.send_signal(signal.SIGINT)
        assert running.end()[:2] == (0, "stopped\n")
    assert not list(temporary.iterdir())
    assert contents(six_photos) == before
