"""Chunks that LitData wrote, here or in `tests/foreign/README.md`, compared with what LitData reads from them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from foreign_records import FOREIGN, account_of, checksum, checksum_of, expected, packed
from PIL import Image
from sources_conformance import photos_of

from wds_tools.errors import SourceError
from wds_tools.sources.detect import detect

FILES = FOREIGN / "litdata"
READ = expected("litdata")
NAMES = ["cat", "dog", "fox"]
DATA = [photo.data for photo in photos_of(6, size=12)]
Write = Callable[[Sequence[Any]], tuple[Path, list[Any]]]


@pytest.mark.parametrize("name", ["batch", "sample", "chunk", "optimize"])
def test_compressed_chunks_and_those_of_optimize_are_read(name: str, tmp_path: Path) -> None:
    assert detect(FILES / name) == "litdata"
    samples = packed(FILES / name, tmp_path / "dst")
    found = []
    for sample in samples:
        with Image.open(BytesIO(sample.fields["jpg"])) as image:
            pixels = np.asarray(image).transpose(2, 0, 1)
        found.append({"image": f"{checksum_of(pixels)} {list(pixels.shape)}", "label": sample.label})
    assert found == READ[name]
    assert account_of(FILES / name)[0] == {"image": "image", "label": "label"}


def test_chunks_that_litdata_has_decompressed_are_read(tmp_path: Path) -> None:
    folder = shutil.copytree(FILES / "chunk", tmp_path / "chunk")
    before = packed(folder, tmp_path / "compressed")
    for path in folder.glob("*.zstd.bin"):
        import pyarrow as pa

        with pa.input_stream(str(path), compression="zstd") as stream:
            path.with_name(path.name.replace(".zstd", "")).write_bytes(stream.read())
        path.unlink()
    assert [sample.pixels for sample in packed(folder, tmp_path / "content")] == [sample.pixels for sample in before]


def test_rows_of_plain_values_are_read_from_their_arrow_file(tmp_path: Path) -> None:
    samples = packed(FILES / "rows", tmp_path / "dst")
    found = [{"image": f"{s.pixels} RGB", "label": s.name, "boxes": s.facts["boxes"]} for s in samples]
    assert found == READ["rows"]
    assert account_of(FILES / "rows")[0]["boxes"] == "entries of json"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes items with LitData, and returns the folder and what LitData reads from it."""
    from litdata.streaming import StreamingDataset
    from litdata.streaming.writer import BinaryWriter

    def write(items: Sequence[Any]) -> tuple[Path, list[Any]]:
        folder = tmp_path / "chunks"
        writer = BinaryWriter(str(folder), chunk_size=4)
        for number, item in enumerate(items):
            writer[number] = item
        writer.done()
        writer.merge()
        dataset = StreamingDataset(str(folder), shuffle=False)
        return folder, [dataset[number] for number in range(len(dataset))]

    return write


def picture(number: int) -> Image.Image:
    """Return an image in memory: for the file of a JPEG, LitData imports torchvision, which takes seconds."""
    return Image.open(BytesIO(DATA[number])).convert("RGB")


def array(image: Any) -> np.ndarray:
    """Return an image that LitData read as RGB pixels [H, W, 3]."""
    if isinstance(image, (bytes, memoryview)):
        image = Image.open(BytesIO(image))
    if isinstance(image, Image.Image):
        return np.asarray(image.convert("RGB"))
    pixels = np.asarray(image)
    return pixels.transpose(1, 2, 0) if pixels.shape[0] == 3 else pixels


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")  # of LitData
class TestWrittenHere:
    @pytest.mark.parametrize(
        "image",
        [
            lambda n: DATA[n],
            picture,
            lambda n: np.asarray(picture(n)),
        ],
        ids=["bytes", "pil", "numpy"],
    )
    def test_images_of_each_type_have_the_pixels_and_labels_that_litdata_reads(
        self, image: Callable[[int], Any], write: Write, tmp_path: Path
    ) -> None:
        folder, read = write([{"image": image(n), "label": NAMES[n % 3]} for n in range(6)])
        samples = packed(folder, tmp_path / "dst")
        assert [(s.pixels, s.name) for s in samples] == [(checksum_of(array(r["image"])), r["label"]) for r in read]

    def test_of_a_pair_the_first_is_the_image_and_the_second_the_label(self, write: Write, tmp_path: Path) -> None:
        folder, read = write([(picture(n), n % 3) for n in range(6)])
        samples = packed(folder, tmp_path / "dst")
        assert [(s.pixels, s.label) for s in samples] == [(checksum_of(array(image)), label) for image, label in read]
        assert account_of(folder)[0] == {"0": "image", "1": "label"}

    def test_a_single_value_is_the_image(self, write: Write, tmp_path: Path) -> None:
        folder, read = write([picture(n) for n in range(6)])
        samples = packed(folder, tmp_path / "dst")
        assert [(s.pixels, s.label) for s in samples] == [(checksum_of(array(image)), None) for image in read]

    def test_all_other_values_are_kept(self, write: Write, tmp_path: Path) -> None:
        import torch

        items = [
            {
                "image": picture(n),
                "class_id": n % 3,
                "meta": {"width": 12, "score": 0.5 * n, "flipped": n % 2 == 0},
                "boxes": [[1.5, float(k)] for k in range(n)],
                "tags": NAMES[: n % 3],
                "counts": list(range(n)),
                "objects": [{"name": "a", "area": n, "iscrowd": False, "note": None}] * n,
                "matrix": torch.full((2, 2), n),
                "vector": np.arange(3.0) + n,
                "mask": Image.fromarray(np.full((12, 12), n, np.uint8)),
            }
            for n in range(6)
        ]
        folder, read = write(items)
        samples = packed(folder, tmp_path / "dst")
        for sample, row in zip(samples, read, strict=True):
            assert (sample.pixels, sample.label) == (checksum_of(array(row["image"])), row["class_id"])
            lists = {name: sample.facts[name] for name in ("boxes", "tags", "counts", "objects")}
            assert lists == {name: row[name] for name in lists}
            meta = {name: sample.facts[f"meta.{name}"] for name in row["meta"]}
            assert meta == row["meta"]
            assert np.array_equal(np.load(BytesIO(sample.fields["matrix.npy"])), row["matrix"].numpy())
            assert np.array_equal(np.load(BytesIO(sample.fields["vector.npy"])), row["vector"])
            with Image.open(BytesIO(sample.fields["mask.png"])) as mask:
                assert np.array_equal(np.asarray(mask), np.asarray(row["mask"]))
        assert set(account_of(folder)[0]) == {
            *(items[0].keys() - {"meta"}),
            *("meta.width", "meta.score", "meta.flipped"),
        }

    def test_a_pickled_label_is_an_error_and_another_pickled_value_is_left_out(
        self, write: Write, tmp_path: Path
    ) -> None:
        folder, _ = write([{"image": picture(n), "label": n % 3, "extra": {1, n}} for n in range(6)])
        assert account_of(folder)[0]["extra"] == "a pickle, which is never read"
        assert [sample.label for sample in packed(folder, tmp_path / "dst")] == [0, 1, 2] * 2
        shutil.rmtree(folder)
        folder, _ = write([{"image": picture(n), "label": {n}} for n in range(3)])
        with pytest.raises(SourceError, match="'label' is not read, because it is a pickle"):
            packed(folder, tmp_path / "labels")

    def test_several_labels_are_a_field(self, write: Write, tmp_path: Path) -> None:
        folder, _ = write([{"image": picture(n), "label": [n, n + 1]} for n in range(3)])
        samples = packed(folder, tmp_path / "dst")
        assert [json.loads(sample.fields["labels.json"]) for sample in samples] == [[n, n + 1] for n in range(3)]

    def test_chunks_of_tokens_are_refused_by_name(self, tmp_path: Path) -> None:
        import torch
        from litdata import TokensLoader
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(tmp_path / "chunks"), chunk_size=4, item_loader=TokensLoader())
        writer[0] = torch.arange(10)
        writer.done()
        writer.merge()
        with pytest.raises(SourceError, match="is for litdata's TokensLoader; allowed is PyTreeLoader"):
            packed(tmp_path / "chunks", tmp_path / "dst")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encryption": {"algorithm": "fernet"}}, "is encrypted: write it without"),
        ({"item_loader": "ParquetLoader"}, "pack the Parquet files with --from parquet"),
        ({"data_format": ["jpeg"]}, "index.json is damaged"),
        ({"compression": "lz4"}, "compressed by 'lz4'; allowed is zstd"),
    ],
)
def test_an_index_of_another_kind_is_an_error(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FILES / "optimize", tmp_path / "chunks")
    index = json.loads((folder / "index.json").read_bytes())
    index["config"] |= change
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(SourceError, match=message):
        packed(folder, tmp_path / "dst")


@pytest.mark.parametrize("name", ["batch", "sample", "chunk", "optimize", "rows"])
def test_a_truncated_chunk_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    folder = shutil.copytree(FILES / name, tmp_path / "chunks")
    path = min(folder.glob("*.bin"))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SourceError, match=rf"{path.name} (is truncated|cannot be decompressed)"):
        packed(folder, tmp_path / "dst")


def test_a_chunk_of_groups_that_states_too_many_items_is_an_error(tmp_path: Path) -> None:
    folder = shutil.copytree(FILES / "batch", tmp_path / "chunks")
    path = folder / "chunk-0-0.bin"
    data = path.read_bytes()
    path.write_bytes(data[:12] + b"\xff\xff\xff\x00" + data[16:])
    with pytest.raises(SourceError, match=r"chunk-0-0\.bin is damaged"):
        packed(folder, tmp_path / "dst")


def test_images_of_one_dataset_have_the_same_pixels_in_every_compression(tmp_path: Path) -> None:
    found = {
        name: [checksum(sample.fields["jpg"]) for sample in packed(FILES / name, tmp_path / name)]
        for name in ("batch", "sample", "chunk", "optimize")
    }
    assert len(set(map(tuple, found.values()))) == 1
