"""The tests of `sources_conformance` for every format, one class per format."""

from __future__ import annotations

import csv
import gzip
import json
import zipfile
from collections.abc import Sequence
from pathlib import Path

import h5py
import lmdb
import mds
import numpy as np
import preloaded
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zarr
from folders import write_tar
from sources_conformance import CLASSES, Conformance, DamageableConformance, Photo
from tfrecords import example, frame


def arrays(photos: Sequence[Photo]) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 [N, H, W, 3] and int64 [N]."""
    return np.stack([photo.pixels for photo in photos]), np.array([photo.label for photo in photos])


class TestFolder(DamageableConformance):
    kind = "folder"

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        for photo in photos:
            path = folder / CLASSES[photo.label] / f"{photo.name}.jpg"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(photo.data)
        return folder

    def damage(self, path: Path) -> int:
        next(path.rglob("*.jpg")).write_bytes(b"not an image")
        return 11


class TestCsv(DamageableConformance):
    kind = "table"

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        with (folder / "table.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["path", "species", "class", "remark"])
            for photo in photos:
                (folder / f"{photo.name}.jpg").write_bytes(photo.data)
                table.writerow([f"{photo.name}.jpg", "x", CLASSES[photo.label], 'two\nlines, "é"'])
        return folder / "table.csv"

    def damage(self, path: Path) -> int:
        (path.parent / "003.jpg").unlink()
        return 11


class TestJsonLines(DamageableConformance):
    kind = "table"
    named = False

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        lines = []
        for photo in photos:
            (folder / f"{photo.name}.jpg").write_bytes(photo.data)
            lines.append(json.dumps({"file_name": f"{photo.name}.jpg", "label": photo.label, "box": [1, 2, 3, 4]}))
        (folder / "metadata.jsonl").write_text("\n".join(lines))
        return folder

    def test_the_format_is_detected(self, src: Path) -> None:
        source = self.open(src)
        source.scan()
        assert source.kind == self.kind

    def damage(self, path: Path) -> int:
        (path / "003.jpg").write_bytes(b"")
        return 11


FEATURES = {
    "image": {"_type": "Image"},
    "label": {"names": list(CLASSES), "_type": "ClassLabel"},
    "caption": {"dtype": "string", "_type": "Value"},
}


def hugging_face_table(photos: Sequence[Photo]) -> pa.Table:
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table(
        {
            "image": pa.array([{"bytes": photo.data, "path": f"{photo.name}.jpg"} for photo in photos], image),
            "label": pa.array([photo.label for photo in photos], pa.int64()),
            "caption": [f"photo {photo.name}" for photo in photos],
            "width": [1.5] * len(photos),
        }
    )
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": FEATURES}})})


class TestParquet(DamageableConformance):
    kind = "parquet"
    exact = False

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        (folder / "data").mkdir()
        for number, part in enumerate((photos[:7], photos[7:])):
            path = folder / "data" / f"train-{number:05d}-of-00002.parquet"
            pq.write_table(hugging_face_table(part), path, row_group_size=3)
        return folder

    def damage(self, path: Path) -> int:
        name = path / "data" / "train-00001-of-00002.parquet"
        table = pq.read_table(name)
        images = [{"bytes": b"not an image", "path": None}, *table.column("image").to_pylist()[1:]]
        pq.write_table(table.set_column(0, "image", pa.array(images, table.schema.field("image").type)), name)
        return 11

    def test_two_workers_write_the_same_bytes_as_one(self, src: Path, tmp_path: Path) -> None:
        super().test_two_workers_write_the_same_bytes_as_one(src, tmp_path)

    def test_a_source_that_disappears_ends_packing_which_continues_later(
        self, src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        super().test_a_source_that_disappears_ends_packing_which_continues_later(src, tmp_path, monkeypatch)


class TestArrow(Conformance):
    kind = "arrow"

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        table = hugging_face_table(photos)
        with (
            pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink,
            pa.ipc.new_stream(sink, table.schema) as stream,
        ):
            for batch in table.to_batches(max_chunksize=5):
                stream.write_batch(batch)
        (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
        return folder


class TestHdf5(Conformance):
    kind = "hdf5"
    encoded = False
    named = False

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        images, labels = arrays(photos)
        with h5py.File(folder / "photos.h5", "w") as file:
            file.create_dataset("images", data=images, chunks=(5, 16, 48, 3), compression="gzip")
            file["labels"] = labels
            file["score"] = np.linspace(0, 1, len(photos))
        return folder / "photos.h5"

    def test_two_workers_write_the_same_bytes_as_one(self, src: Path, tmp_path: Path) -> None:
        super().test_two_workers_write_the_same_bytes_as_one(src, tmp_path)

    def test_a_source_that_disappears_ends_packing_which_continues_later(
        self, src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        super().test_a_source_that_disappears_ends_packing_which_continues_later(src, tmp_path, monkeypatch)


class TestHdf5OfEncodedImages(DamageableConformance):
    kind = "hdf5"
    exact = False

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        with h5py.File(folder / "photos.hdf5", "w") as file:
            data = file.create_dataset("images", (len(photos),), h5py.vlen_dtype(np.uint8), chunks=(4,))
            for row, photo in enumerate(photos):
                data[row] = np.frombuffer(photo.data, np.uint8)
            file["labels"] = [CLASSES[photo.label] for photo in photos]
        return folder / "photos.hdf5"

    def damage(self, path: Path) -> int:
        with h5py.File(path, "a") as file:
            file["images"][4] = np.frombuffer(b"not an image", np.uint8)
        return 11


class TestNpz(Conformance):
    kind = "numpy"
    encoded = False
    named = False

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        images, labels = arrays(photos)
        np.savez(folder / "photos.npz", images=images, labels=labels)
        return folder / "photos.npz"


@pytest.mark.torture
class TestCompressedNpz(Conformance):
    kind = "numpy"
    encoded = False

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        images, labels = arrays(photos)
        np.savez_compressed(folder / "photos.npz", x=images.transpose(0, 3, 1, 2), y=np.array(CLASSES)[labels])
        return folder / "photos.npz"


class TestTensors(Conformance):
    kind = "tensors"
    encoded = False
    named = False
    imports = preloaded.IMPORTS

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        import torch

        images, labels = (torch.from_numpy(array) for array in arrays(photos))
        torch.save({"images": images.permute(0, 3, 1, 2).contiguous(), "labels": labels}, folder / "photos.pt")
        return folder / "photos.pt"


class TestZarr(Conformance):
    kind = "zarr"
    encoded = False
    version = 3

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        images, labels = arrays(photos)
        group = zarr.open_group(folder / "photos.zarr", mode="w", zarr_format=self.version)
        for name, array, chunks in (("images", images, (5, 48, 48, 3)), ("labels", labels, labels.shape)):
            group.create_array(name, shape=array.shape, dtype=array.dtype, chunks=chunks)[:] = array
        group.attrs["classes"] = list(CLASSES)
        return folder / "photos.zarr"


@pytest.mark.torture
class TestZarr2(TestZarr):
    version = 2


class TestLmdb(DamageableConformance):
    kind = "lmdb"

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        with lmdb.open(str(folder / "photos.lmdb"), map_size=1 << 24) as database, database.begin(write=True) as out:
            for photo in photos:
                out.put(f"{CLASSES[photo.label]}/{photo.name}".encode(), photo.data)
        return folder / "photos.lmdb"

    def damage(self, path: Path) -> int:
        with lmdb.open(str(path), map_size=1 << 24) as database, database.begin(write=True) as out:
            out.put(b"sea/bad", b"\x80\x04pickle")
        return 12


class TestTfRecord(DamageableConformance):
    kind = "tfrecord"
    named = False

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        for number, part in enumerate((photos[:5], photos[5:])):
            records = [
                example(
                    {
                        "image/encoded": photo.data,
                        "image/class/label": photo.label,
                        "image/filename": photo.name.encode(),
                        "image/object/bbox/xmin": [0.25, 0.5],
                    }
                )
                for photo in part
            ]
            (folder / f"train-{number:05d}-of-00002").write_bytes(b"".join(map(frame, records)))
        return folder

    def damage(self, path: Path) -> int:
        name = path / "train-00000-of-00002"
        data = bytearray(name.read_bytes())
        data[len(data) // 2] ^= 1
        name.write_bytes(data)
        return 11


class TestMds(Conformance):
    kind = "mds"
    named = False
    compressed = False

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        samples = [(photo.data, photo.label) for photo in photos]
        return mds.write(folder / "mds", samples, compressed=self.compressed)


@pytest.mark.torture
class TestCompressedMds(TestMds):
    compressed = True


@pytest.mark.frameworks
@pytest.mark.filterwarnings("ignore")  # of LitData
class TestLitData(Conformance):
    kind = "litdata"
    named = False

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        from litdata.streaming.writer import BinaryWriter

        writer = BinaryWriter(str(folder / "chunks"), chunk_size=5)
        for number, photo in enumerate(photos):
            writer[number] = (photo.data, photo.label)
        writer.done()
        writer.merge()
        return folder / "chunks"


class TestTar(DamageableConformance):
    kind = "tar"

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        files = {f"photos/{CLASSES[photo.label]}/{photo.name}.jpg": photo.data for photo in photos}
        return write_tar(folder / "photos.tar", files.items())

    def damage(self, path: Path) -> int:
        path.write_bytes(path.read_bytes().replace(b"\xff\xd8\xff", b"\0\0\0", 1))
        return 11

    def test_two_workers_write_the_same_bytes_as_one(self, src: Path, tmp_path: Path) -> None:
        super().test_two_workers_write_the_same_bytes_as_one(src, tmp_path)

    def test_a_source_that_disappears_ends_packing_which_continues_later(
        self, src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        super().test_a_source_that_disappears_ends_packing_which_continues_later(src, tmp_path, monkeypatch)


@pytest.mark.torture
class TestTarPerClass(Conformance):
    kind = "tar"

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        for label, name in enumerate(CLASSES):
            write_tar(folder / f"{name}.tar", [(f"{p.name}.jpg", p.data) for p in photos if p.label == label])
        return folder


class TestZip(DamageableConformance):
    kind = "zip"

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        with zipfile.ZipFile(folder / "photos.zip", "w") as archive:
            for number, photo in enumerate(photos):
                method = zipfile.ZIP_DEFLATED if number % 2 else zipfile.ZIP_STORED
                archive.writestr(f"{CLASSES[photo.label]}/{photo.name}.jpg", photo.data, method)
        return folder / "photos.zip"

    def damage(self, path: Path) -> int:
        data = bytearray(path.read_bytes())
        data[400] ^= 1
        path.write_bytes(data)
        return 11


class TestWebDataset(DamageableConformance):
    kind = "webdataset"
    key = "{}"

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        for number, part in enumerate((photos[:5], photos[5:])):
            files = {}
            for photo in part:
                key = self.key.format(photo.name)
                files[f"{key}.jpg"] = photo.data
                files[f"{key}.cls"] = CLASSES[photo.label].encode()
                files[f"{key}.json"] = json.dumps({"photographer": photo.name}).encode()
            write_tar(folder / f"train-{number}.tar", files.items())
        return folder

    def damage(self, path: Path) -> int:
        name = path / "train-0.tar"
        name.write_bytes(name.read_bytes().replace(b"\xff\xd8\xff", b"\0\0\0", 1))
        return 11


class TestCompressed(TestWebDataset):
    """Two shards, as .tar.gz and as .tar.zst."""

    def write(self, folder: Path, photos: Sequence[Photo]) -> Path:
        super().write(folder, photos)
        for path, suffix, codec in zip(sorted(folder.iterdir()), (".gz", ".zst"), ("gzip", "zstd"), strict=True):
            path.with_name(f"{path.name}{suffix}").write_bytes(pa.compress(path.read_bytes(), codec, asbytes=True))
            path.unlink()
        return folder

    def damage(self, path: Path) -> int:
        name = path / "train-0.tar.gz"
        data = gzip.decompress(name.read_bytes())
        name.write_bytes(gzip.compress(data.replace(b"\xff\xd8\xff", b"\0\0\0", 1)))
        return 11


class TestDotted(TestWebDataset):
    kind = "dotted"
    key = "photo.2024.{}"
