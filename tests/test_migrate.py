"""docs/migrate.md: the program after each migration runs, and so does the one before if its library is installed.

Tests of TensorFlow, DALI and MosaicML Streaming have the mark ``peers``: run them in an environment with that library,
with ``-m peers -k DALI``.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import preloaded
import pyarrow.parquet as pq
import pytest
import torch
from migration_data import CLASSES, Photos

import wds_tools
from wds_tools.reading.opening import open_shards

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "migrate.md"
PER_CLASS = 5
LIBRARIES = ["ImageFolder", "webdataset", "HDF5", "LMDB", "TFRecord", "FFCV", "LitData", "MosaicML Streaming", "DALI"]
ANNOTATED = "COCO, YOLO and VOC"
DATASETS = {"ImageFolder": "shards/photos", "webdataset": "old", "MosaicML Streaming": "shards/mosaic"}
LITDATA = pytest.param("LitData", marks=pytest.mark.frameworks)
MOSAIC = pytest.param("MosaicML Streaming", marks=pytest.mark.peers)


def section(library: str) -> str:
    """Return the text under a heading, with the lines before it empty, for tracebacks."""
    before, found, after = PAGE.read_text().partition(f"\n## {library}\n")
    assert found, library
    return "\n" * (before.count("\n") + 2) + after.partition("\n## ")[0]


def blocks(library: str, part: str) -> Iterator[tuple[str, str]]:
    """Yield the language and code of the blocks of a part, Before or After."""
    text = section(library)
    start = text.index(f"**{part}**")
    stop = text.index("**After**") if part == "Before" else len(text)
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text[start:stop], re.MULTILINE | re.DOTALL):
        lines = text[: start + match.start(2)].count("\n")
        yield match[1], "\n" * lines + match[2]


@pytest.fixture(scope="module")
def formats(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Photos:
    """Return a folder with a few photographs; other formats are written when a test needs them."""
    folder = tmp_path_factory.mktemp("migrate")
    for path in sorted(photos.glob(f"*/00[0-{PER_CLASS - 1}].jpg")):
        (folder / "photos" / path.parent.name).mkdir(parents=True, exist_ok=True)
        (folder / "photos" / path.parent.name / path.name).symlink_to(path)
    return Photos(folder)


@pytest.fixture
def run(formats: Photos, monkeypatch: pytest.MonkeyPatch):
    """Return a function that runs a part of a section in that folder and returns its global names."""
    monkeypatch.chdir(formats.folder)
    names: dict[str, Any] = {"__name__": "__main__"}

    def run(library: str, part: str) -> dict[str, Any]:
        formats.write(library)
        for language, code in blocks(library, part):
            if language == "bash":
                run_command(code)
            else:
                exec(compile(code, str(PAGE), "exec"), names)
        return names

    yield run
    if hasattr(names.get("loader"), "close"):
        names["loader"].close()


def run_command(text: str) -> None:
    (line,) = text.strip().splitlines()
    done = preloaded.command(*shlex.split(line)[1:])
    assert done.returncode == 0, f"{line}\n{done.stderr}"


def test_the_page_has_a_program_before_and_after_for_every_library() -> None:
    assert re.findall(r"^## (.*)", PAGE.read_text(), re.MULTILINE)[1:] == [*LIBRARIES, ANNOTATED]
    for library in LIBRARIES:
        assert [language for language, _ in blocks(library, "Before")] == ["python"]
        assert [language for language, _ in blocks(library, "After")][-1] == "python"


BEFORE = ["ImageFolder", "webdataset", "HDF5", "LMDB", LITDATA, MOSAIC]
BEFORE += [pytest.param(library, marks=pytest.mark.peers) for library in ("TFRecord", "DALI")]


@pytest.mark.filterwarnings("ignore")  # of other libraries, some of which leave files open
@pytest.mark.parametrize("library", BEFORE)
@pytest.mark.torture_except("ImageFolder")
def test_the_program_before_runs(library: str, run) -> None:
    names = run(library, "Before")
    images, labels = names["images"], names["labels"]
    expected = (16, 224, 224, 3) if library == "TFRecord" else (16, 3, 224, 224)
    if library == "webdataset":  # its last batch is smaller
        expected = (len(labels), 3, 224, 224)
    assert tuple(images.shape) == expected
    assert set(labels.numpy().tolist()) <= set(range(CLASSES))


AFTER = [name for name in LIBRARIES if name not in ("LitData", "MosaicML Streaming")]


@pytest.mark.parametrize("library", [*AFTER, LITDATA, MOSAIC])
@pytest.mark.torture_except("ImageFolder", "webdataset")
def test_the_program_after_runs_on_the_same_samples(library: str, run, formats: Photos) -> None:
    names = run(library, "After")
    assert names["images"].shape == (16, 3, 224, 224)
    assert names["images"].dtype == torch.uint8
    assert names["labels"].dtype == torch.int64
    assert labels_of(formats.folder / DATASETS.get(library, f"shards/{library.lower()}")) == sorted(
        list(range(CLASSES)) * PER_CLASS
    )


def labels_of(folder: Path) -> list[int]:
    shards = open_shards(folder).manifest.shards
    return sorted(label for shard in shards for label in pq.read_table(folder / shard.index)["label"].to_pylist())


TREES = {
    "COCO": ("coco/datumaro_instances_box", "images/{split}"),
    "YOLO": ("yolo/datumaro_boxes", "images/{split}"),
    "VOC": ("voc/datumaro", "JPEGImages"),
}


@pytest.mark.parametrize("library", TREES)
@pytest.mark.torture_except("COCO")  # tests/sources read the boxes of the others
def test_the_three_lines_for_annotations_read_all_boxes(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign, (annotations, place) = ROOT / "tests" / "foreign", TREES[library]
    src = tmp_path / "coco"
    shutil.copytree(foreign / annotations, src)
    for split, names in {"train": ("photo_1.jpg", "photo 3.jpg"), "val": ("photo_2.jpg", "photo_4.jpg")}.items():
        folder = src / place.format(split=split)
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copy(foreign / "images" / name, folder)
    monkeypatch.chdir(tmp_path)
    command, code = (match[1] for match in re.finditer(r"^```\w+\n(.*?)^```$", section(ANNOTATED), re.M | re.S))
    run_command(command)
    names: dict[str, Any] = {"wt": wds_tools}
    exec(compile(code.replace("batch_size=16", "batch_size=2, num_workers=0"), str(PAGE), "exec"), names)
    [batch] = names["loader"]
    found = sorted(box for boxes in batch.boxes for box in boxes.round().tolist())
    assert found == [[0, 0, 64, 48], [1, 2, 39, 58], [10, 8, 30, 40]]
    assert sorted(number for numbers in batch.classes for number in numbers.tolist()) == [0, 1, 1]
