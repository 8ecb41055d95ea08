"""Packed datasets in other software: webdataset, tar programs, Hugging Face datasets, pandas, the specification."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import webdataset
import xxhash
from PIL import Image

from wds_tools.format.index import FORMAT_VERSION as INDEX_VERSION

FORMAT = (Path(__file__).parents[2] / "docs" / "format.md").read_text()


@pytest.fixture(scope="module")
def packed(packed_few: Path) -> Path:
    """Return a small dataset."""
    return packed_few


@pytest.fixture(scope="module")
def photos(packed_few: Path) -> Path:
    """Return its photographs."""
    return packed_few.parent / "images"


@pytest.fixture(scope="module")
def source(photos: Path) -> Counter[tuple[str, bytes]]:
    """Return (class, bytes) of every photograph in the folder."""
    return Counter((path.parent.name, path.read_bytes()) for path in photos.rglob("*.*"))


def shards(packed: Path) -> list[str]:
    return sorted(map(str, packed.glob("*.tar")))


# --- webdataset ---


def test_webdataset_reads_every_byte_of_the_folder(packed: Path, source: Counter[tuple[str, bytes]]) -> None:
    dataset = webdataset.WebDataset(shards(packed), shardshuffle=False)
    names = json.loads((packed / "manifest.json").read_text())["classes"]
    read = Counter((names[int(s["cls"])], s.get("jpg") or s["png"]) for s in dataset)
    assert read == source


def test_webdataset_decodes_images_labels_and_json(packed: Path, photos: Path) -> None:
    count = 0
    for sample in webdataset.WebDataset(shards(packed), shardshuffle=False).decode("pil"):
        image = sample.get("jpg") or sample["png"]
        with Image.open(photos / sample["json"]["path"]) as original:
            assert image.size == original.size
        assert sorted(path.name for path in photos.iterdir())[sample["cls"]] == sample["json"]["class"]
        count += 1
    assert count == 40


# --- GNU tar, and libarchive through CMake ---


@pytest.mark.parametrize("program", [("tar", "-xf"), (sys.executable, "-m", "cmake", "-E", "tar", "xf")])
@pytest.mark.torture_except("program0")
def test_tar_programs_unpack_every_byte_of_the_folder(
    program: tuple[str, ...], packed: Path, photos: Path, tmp_path: Path
) -> None:
    for shard in shards(packed):
        run = subprocess.run([*program, shard], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert run.stderr == ""
    images = {path.stem: path for path in tmp_path.iterdir() if path.suffix in (".jpg", ".png")}
    described = sorted(tmp_path.glob("*.json"))
    assert len(described) == len(images) == 40
    for path in described:
        description = json.loads(path.read_text())
        image = images[path.stem]
        assert image.read_bytes() == (photos / description["path"]).read_bytes()
        assert image.stat().st_mtime == 0


def test_the_members_of_a_sample_are_adjacent_and_in_the_order_of_keys(packed: Path) -> None:
    listed = [
        name
        for shard in shards(packed)
        for name in subprocess.run(["tar", "-tf", shard], capture_output=True, text=True, check=True).stdout.split()
    ]
    keys = [f"{number:09d}" for number in range(40) for _ in range(3)]
    assert [name.partition(".")[0] for name in listed] == keys
    assert [name.partition(".")[2] for name in listed[1::3]] == ["cls"] * 40
    assert [name.partition(".")[2] for name in listed[2::3]] == ["json"] * 40


# --- Hugging Face ---


@pytest.fixture
def load_dataset(tmp_path: Path, hugging_face_offline: None) -> Callable[..., Any]:
    import datasets

    def load(files: list[str], **options: Any) -> Any:
        return datasets.load_dataset(
            "webdataset", data_files={"train": files}, split="train", cache_dir=str(tmp_path / "cache"), **options
        )

    return load


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("streaming", [False, True])
def test_hugging_face_reads_every_jpeg_of_the_folder(
    load_dataset: Callable[..., Any], packed: Path, source: Counter[tuple[str, bytes]], streaming: bool
) -> None:
    from datasets import Image as HuggingFaceImage

    dataset = load_dataset(shards(packed), streaming=streaming)
    read = Counter(
        (sample["json"]["class"], sample["jpg"]["bytes"])
        for sample in dataset.cast_column("jpg", HuggingFaceImage(decode=False))
        if sample["jpg"] is not None  # datasets takes the fields from the first samples and ignores later PNGs
    )
    jpegs = Counter({(name, data): count for (name, data), count in source.items() if data[:2] == b"\xff\xd8"})
    assert read == jpegs


def test_the_first_samples_have_the_same_fields_as_hugging_face_requires(packed: Path) -> None:
    first = list(webdataset.WebDataset(shards(packed)[:1], shardshuffle=False))[:5]
    assert len({frozenset(name for name in sample if not name.startswith("__")) for sample in first}) == 1


# --- the index and the specification ---


def test_a_field_is_found_by_reading_the_index_with_pandas(packed: Path) -> None:
    frame = pd.read_parquet(packed / "shard-000000.parquet")
    row = frame[frame["width"] > frame["height"]].iloc[0]
    data = (packed / "shard-000000.tar").read_bytes()[int(row["jpg.offset"]) :][: int(row["jpg.size"])]
    assert data.startswith(b"\xff\xd8")
    assert data.endswith(b"\xff\xd9")


def snippet() -> str:
    (code,) = re.findall(r"```python\n(.*?)```", FORMAT.partition("## Read a sample")[2], re.DOTALL)
    return code


def test_the_snippet_of_the_specification_reads_every_sample(packed: Path, source: Counter[tuple[str, bytes]]) -> None:
    names: dict[str, Any] = {}
    exec(snippet(), names)
    numbers = range(0, 40, 3)  # in all shards
    samples = [names["read_sample"](packed, number) for number in numbers]
    assert [key for key, _, _ in samples] == [f"{number:09d}" for number in numbers]
    classes = json.loads((packed / "manifest.json").read_text())["classes"]
    assert Counter((classes[label], f.get("jpg") or f["png"]) for _, label, f in samples) <= source
    assert all(fields["cls"] == b"%d" % label for _, label, fields in samples)


def test_the_snippet_needs_only_a_parquet_library_and_is_short() -> None:
    imports = [
        alias.name for node in ast.walk(ast.parse(snippet())) if isinstance(node, ast.Import) for alias in node.names
    ]
    assert imports == ["json", "pyarrow.parquet"]
    assert len([line for line in snippet().partition("def ")[2].splitlines() if line]) <= 20


def test_the_snippet_of_the_checksum_detects_a_changed_manifest(packed: Path) -> None:
    code = re.findall(r"```python\n(.*?)```", FORMAT.partition("## Read a sample")[0], re.DOTALL)
    assert len(code) == 1
    data = (packed / "manifest.json").read_bytes()
    for changed, expected in ((data, True), (data[:-1], False), (data.replace(b"cat", b"dog", 1), False)):
        names: dict[str, Any] = {"data": changed, "xxhash": xxhash}
        exec(code[0], names)
        assert names["whole"] is expected


def specified(heading: str) -> list[str]:
    """Return the names in the first column of the table under ``heading``."""
    table = FORMAT.partition(heading)[2].partition("|---|")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[1:]]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_the_specification_lists_every_key_of_the_manifest(packed: Path) -> None:
    manifest = json.loads((packed / "manifest.json").read_text())
    assert specified("## Manifest") == list(manifest)
    assert sorted(specified("| JSON key of a shard | value |")) == sorted(manifest["shards"][0])


def test_the_specification_lists_every_column_of_an_index_with_its_type(packed: Path) -> None:
    table = pq.read_table(packed / "shard-000000.parquet")
    metadata = json.loads(table.schema.metadata[b"wds_tools"])
    columns = [
        column.replace("F", field)
        for column in specified("## Index")
        for field in (metadata["fields"] if column.startswith("F.") else [""])
    ]
    assert sorted(columns) == sorted(table.column_names)
    for column in specified("## Index"):
        written = table.schema.field(column.replace("F", "jpg")).type
        assert re.search(rf"\| `{re.escape(column)}` \| {written} \|", FORMAT)
    assert sorted(specified("key-value metadata")) == sorted(metadata)


def test_the_specification_states_the_name_and_version_of_the_format(packed: Path) -> None:
    manifest = json.loads((packed / "manifest.json").read_text())
    assert f"\nVersion {manifest['version']} of the manifest, version {INDEX_VERSION} of the index.\n" in FORMAT
    assert f'"{manifest["format"]}"' in FORMAT
