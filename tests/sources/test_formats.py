"""Tests of single formats: names, classes, fields, and what is refused."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from contextlib import suppress
from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from folders import write_tar
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sources_conformance import CLASSES, Photo, contents, decode, image_of, photos_of, stored
from test_formats_conformance import hugging_face_table
from tfrecords import example, frame, message, varint

import wds_tools as wt
from wds_tools.errors import OptionError, SourceError, StoreError
from wds_tools.format.image_header import encode_png
from wds_tools.packing.worker import ShardFile
from wds_tools.sources.base import Listing, SourceOptions
from wds_tools.sources.detect import detect, open_source
from wds_tools.sources.objects import ObjectSource
from wds_tools.sources.tfrecord import parse_datum, parse_example
from wds_tools.sources.values import layout_of, png_bound


def pack(src, dst, **options):
    """Pack without converting the images, so that their bytes can be compared."""
    return wt.pack(src, dst, **{"images": "keep", **options})


@pytest.fixture(scope="module")
def six() -> list[Photo]:
    return photos_of(6)


def scan(path: Path, **columns: str) -> Listing:
    return open_source(path, options=SourceOptions(columns=columns)).scan()


def scan_as(path: Path, kind: str) -> Listing:
    return open_source(path, kind=kind).scan()


def pack_and_read(src: object, dst: Path, **options: object) -> list[dict[str, bytes]]:
    pack(src, dst, workers=1, **options)
    return stored(dst)


def pixels_of(photos: list[Photo]) -> np.ndarray:
    return np.stack([photo.pixels for photo in photos])


# Tables


@pytest.fixture
def birds(tmp_path: Path, six: list[Photo]) -> Path:
    """Return a table with several labels, captions, boxes and masks."""
    lines = ["id,photo_file,species,sex,caption,boxes.json,mask.png"]
    for number, photo in enumerate(six):
        (tmp_path / f"{photo.name}.jpg").write_bytes(photo.data)
        (tmp_path / f"{photo.name}-mask.png").write_bytes(encode_png(np.full((4, 4), number, np.uint8)))
        lines.append(
            f'{number},{photo.name}.jpg,{CLASSES[photo.label]},f,"a bird, no. {number}","[1,2]",{photo.name}-mask.png'
        )
    (tmp_path / "birds.csv").write_text("\r\n".join(lines), encoding="utf-8-sig")
    return tmp_path / "birds.csv"


def test_columns_of_a_table_become_fields_labels_and_json_entries(
    birds: Path, six: list[Photo], tmp_path: Path
) -> None:
    samples = pack_and_read(birds, tmp_path / "dst", columns={"image": "photo_file", "label": "species"})
    assert len(samples) == 6
    for sample in samples:
        facts = json.loads(sample["json"])
        number = int(facts["id"])
        assert facts == {"path": f"{number:03d}.jpg", "class": CLASSES[number % 3], "id": str(number), "sex": "f"}
        assert sample["jpg"] == six[number].data
        assert sample["txt"] == f"a bird, no. {number}".encode()
        assert sample["boxes.json"] == b"[1,2]"
        assert np.all(np.asarray(Image.open(io.BytesIO(sample["mask.png"]))) == number)
        assert int(sample["cls"]) == number % 3


def test_an_unknown_column_or_role_is_an_error_that_lists_the_known_ones(birds: Path) -> None:
    with pytest.raises(SourceError, match=r"no column of images.*'photo_file'.*--column image=photo_file"):
        scan(birds)
    with pytest.raises(SourceError, match=r"has no 'nothing' for the label; it has .*'species'"):
        scan(birds, image="photo_file", label="nothing")
    np.savez(birds.parent / "a.npz", images=np.zeros((4, 8, 8), np.uint8), kinds=[0, 1, 0, 1])
    with pytest.raises(SourceError, match="'images' is the image, so it cannot be the label"):
        scan(birds.parent / "a.npz", label="images")
    with pytest.raises(OptionError, match=r"role 'picture'; allowed are 'image' and 'label'"):
        scan(birds, picture="photo_file")


def test_a_row_whose_mask_is_missing_is_skipped(birds: Path, tmp_path: Path) -> None:
    (tmp_path / "002-mask.png").unlink()
    listing = scan(birds, image="photo_file", label="species")
    assert [skip.path for skip in listing.skipped] == ["002.jpg"]
    assert "002-mask.png" in listing.skipped[0].reason


def test_paths_may_be_absolute_or_lead_upwards_and_urls_are_fetched(tmp_path: Path, six: list[Photo]) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe("/bucket/b.jpg", six[1].data)
    (tmp_path / "a.jpg").write_bytes(six[0].data)
    (tmp_path / "c.jpg").write_bytes(six[2].data)
    (tmp_path / "deep").mkdir()
    rows = ["../a.jpg", str(tmp_path / "c.jpg"), "memory://bucket/b.jpg", "memory://bucket/gone.jpg"]
    (tmp_path / "deep" / "t.tsv").write_text("image_url\n" + "\n".join(rows))
    report = pack(tmp_path / "deep" / "t.tsv", tmp_path / "dst", workers=1)
    assert report.packed == 3
    assert [skip.reason for skip in report.skipped] == ["URL 'memory://bucket/gone.jpg' does not exist"]


def test_columns_named_path_and_class_are_stored_under_other_keys(tmp_path: Path, six: list[Photo]) -> None:
    (tmp_path / "a.jpg").write_bytes(six[0].data)
    (tmp_path / "t.csv").write_text("image;path;class;label\na.jpg;elsewhere;bird;2\n")
    (sample,) = pack_and_read(tmp_path / "t.csv", tmp_path / "dst", columns={"label": "label"})
    assert json.loads(sample["json"]) == {"path": "a.jpg", "path_": "elsewhere", "class_": "bird"}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_rows_of_several_lines_are_read_at_their_offset(tmp_path: Path, six: list[Photo], end: str) -> None:
    rows = ["path,remark"]
    for number, photo in enumerate(six):
        (tmp_path / f"{number}.jpg").write_bytes(photo.data)
        rows.append(f'{number}.jpg,"one{end}{number}\u2028, ""x"""{end if number == 2 else ""}')
    (tmp_path / "t.csv").write_text(end.join(rows), newline="")
    samples = pack_and_read(tmp_path / "t.csv", tmp_path / "dst")
    facts = [json.loads(sample["json"]) for sample in samples]
    assert {(fact["path"], fact["remark"]) for fact in facts} == {
        (f"{number}.jpg", f'one{end}{number}\u2028, "x"') for number in range(6)
    }


# Parquet and Arrow


@pytest.mark.frameworks
def test_files_written_by_the_datasets_library_are_read(tmp_path: Path, six: list[Photo]) -> None:
    import datasets

    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=list(CLASSES)), "text": datasets.Value("string")}
    )
    rows = {
        "image": [{"bytes": photo.data, "path": None} for photo in six],
        "label": [photo.label for photo in six],
        "text": [photo.name for photo in six],
    }
    dataset = datasets.Dataset.from_dict(rows, features=features)
    dataset.to_parquet(str(tmp_path / "train.parquet"))
    dataset.save_to_disk(str(tmp_path / "saved"))
    for number, src in enumerate((tmp_path / "train.parquet", tmp_path / "saved")):
        report = pack(src, tmp_path / f"{number}", workers=1)
        assert report.manifest.classes == CLASSES
        assert report.manifest.fields == {"jpg": 6, "cls": 6, "json": 6, "txt": 6}
        assert {(sample["txt"].decode(), sample["jpg"]) for sample in stored(tmp_path / f"{number}")} == {
            (photo.name, photo.data) for photo in six
        }


def test_several_splits_in_one_folder_are_an_error(tmp_path: Path, six: list[Photo]) -> None:
    for name in ("train", "test"):
        pq.write_table(hugging_face_table(six), tmp_path / f"{name}-00000-of-00001.parquet")
    with pytest.raises(SourceError, match=r"several splits \(test, train\): pack with --split folders"):
        scan(tmp_path)
    assert pack(f"{tmp_path}/train*.parquet", tmp_path / "dst", workers=1).packed == 6


def test_a_row_without_an_image_is_skipped_and_other_images_become_fields(tmp_path: Path, six: list[Photo]) -> None:
    table = pa.table(
        {
            "image": [None, *(photo.data for photo in six[1:])],
            "depth": [encode_png(np.zeros((4, 4), np.uint8))] * 6,
            "tags": [["a", "b"]] * 6,
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    report = pack(tmp_path / "t.parquet", tmp_path / "dst", workers=1)
    assert [(skip.path, skip.reason) for skip in report.skipped] == [("t.parquet#0", "has no image: it has no 'image'")]
    assert report.manifest.fields == {"jpg": 5, "json": 5, "depth.png": 5}
    assert json.loads(stored(tmp_path / "dst")[0]["json"])["tags"] == ["a", "b"]


def test_a_column_of_images_keeps_the_name_of_a_field_and_names_of_files_are_no_images(
    tmp_path: Path, six: list[Photo]
) -> None:
    mask = encode_png(np.zeros((4, 4), np.uint8))
    columns = {"image": [photo.data for photo in six], "mask.png": [mask] * 6, "depth.png": ["depth/0.png"] * 6}
    pq.write_table(pa.table({**columns, "boxes.json": ["[]"] * 6}), tmp_path / "t.parquet")
    report = pack(tmp_path / "t.parquet", tmp_path / "dst", workers=1)
    assert report.manifest.fields == {"jpg": 6, "json": 6, "mask.png": 6, "boxes.json": 6}
    assert json.loads(stored(tmp_path / "dst")[0]["json"])["depth.png"] == "depth/0.png"
    assert stored(tmp_path / "dst")[0]["mask.png"] == mask


def test_shards_of_a_table_with_large_further_fields_keep_to_their_size(tmp_path: Path, six: list[Photo]) -> None:
    noise = encode_png(np.random.default_rng(0).integers(0, 256, (100, 100), np.uint8))
    columns = {"image": [photo.data for photo in six] * 8, "mask.png": [noise] * 48}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", use_dictionary=False)
    pack(tmp_path / "t.parquet", tmp_path / "dst", shard_bytes=100_000, workers=1)
    assert max(path.stat().st_size for path in tmp_path.glob("dst/*.tar")) < 110_000


def test_a_file_with_another_content_than_its_extension_is_an_error_of_one_line(tmp_path: Path) -> None:
    for name in ("a.parquet", "a.arrow", "a.h5", "a.npz", "a.npy", "a.pt", "a.zip", "a.tar", "a.tfrecord", "a.lmdb"):
        (tmp_path / name).write_bytes(b"PAR1, but not a Parquet file" * 50)
        with pytest.raises(SourceError, match=name) as caught:
            scan(tmp_path / name)
        assert "\n" not in str(caught.value)


# Arrays


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint16", "bool"])
def test_pixels_that_are_not_uint8_are_an_error_that_shows_how_to_convert_them(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8, 3), dtype))
    with pytest.raises(SourceError, match=rf"is {dtype}; allowed are uint8.*astype\('uint8'\)"):
        scan(tmp_path / "a.npz")


def test_the_layout_is_found_from_the_shape_unless_it_is_ambiguous() -> None:
    assert [layout_of(shape) for shape in ((8, 8), (8, 8, 3), (3, 8, 8), (1, 8, 8), (8, 8, 4))] == [
        "HW",
        "HWC",
        "CHW",
        "CHW",
        "HWC",
    ]
    assert layout_of((3, 8, 3)) is None
    assert layout_of((8, 8, 2)) is None


def test_arrays_of_objects_are_refused_because_they_are_pickles(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.array([b"x", None], object))
    with pytest.raises(SourceError, match="has objects, which are not read, because they are pickles"):
        scan(tmp_path / "a.npz")


def test_arrays_with_unusual_names_are_found_if_only_one_fits_and_otherwise_listed(
    tmp_path: Path, six: list[Photo]
) -> None:
    images, labels = pixels_of(six), [photo.label for photo in six]
    np.savez(tmp_path / "one.npz", images, labels)  # arr_0 and arr_1
    assert [entry.label for entry in scan(tmp_path / "one.npz").inputs] == labels
    np.savez(tmp_path / "two.npz", x_train=images, y_train=labels, x_test=images[:2], y_test=labels[:2])
    with pytest.raises(SourceError, match=r"'x_train' \(uint8\[6, 48, 48, 3\]\)"):
        scan(tmp_path / "two.npz")
    assert len(scan(tmp_path / "two.npz", image="x_test", label="y_test").inputs) == 2


def test_a_npy_file_has_no_labels(tmp_path: Path, six: list[Photo]) -> None:
    np.save(tmp_path / "a.npy", pixels_of(six)[..., 0])
    samples = pack_and_read(tmp_path / "a.npy", tmp_path / "dst")
    assert {sample["png"][:4] for sample in samples} == {b"\x89PNG"}
    assert "cls" not in samples[0]


def test_a_file_of_tensors_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, ("touch /tmp/wds_tools_was_here",)

    import torch

    torch.save({"images": Evil()}, tmp_path / "a.pt")
    with pytest.raises(SourceError, match="cannot be read as tensors"):
        scan(tmp_path / "a.pt")
    assert not Path("/tmp/wds_tools_was_here").exists()


def test_other_arrays_and_class_names_of_hdf5_are_kept(tmp_path: Path, six: list[Photo]) -> None:
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = pixels_of(six)
        file["labels"] = [photo.label for photo in six]
        file["score"] = np.array([0.5, np.nan, 1, 2, 3, 4])
        file["boxes"] = np.arange(24, dtype=np.float32).reshape(6, 4)
        file["title"] = [f"é{number}" for number in range(6)]
        file.attrs["classes"] = list(CLASSES)
    report = pack(tmp_path / "a.h5", tmp_path / "dst", workers=1)
    assert report.manifest.classes == CLASSES
    scores = {}
    for sample in stored(tmp_path / "dst"):
        facts = json.loads(sample["json"])
        row = int(facts["path"].partition("#")[2])
        scores[row] = facts["score"]
        assert facts["title"] == f"é{row}"
        assert np.array_equal(np.load(io.BytesIO(sample["boxes.npy"])), np.arange(4 * row, 4 * row + 4))
    assert scores == {0: 0.5, 1: None, 2: 1, 3: 2, 4: 3, 5: 4}


def test_arrays_as_large_as_the_image_become_png_also_beside_channels_first(tmp_path: Path) -> None:
    masks = np.arange(2 * 8 * 6, dtype="u1").reshape(2, 8, 6)
    arrays = {"images": np.zeros((2, 3, 8, 6), "u1"), "mask": masks, "bits": np.zeros((2, 3, 8), "u1")}
    np.savez(tmp_path / "a.npz", **arrays)
    for sample in pack_and_read(tmp_path / "a.npz", tmp_path / "dst"):
        row = int(json.loads(sample["json"])["path"].partition("#")[2])
        assert np.array_equal(Image.open(io.BytesIO(sample["mask.png"])), masks[row])
        assert np.load(io.BytesIO(sample["bits.npy"])).shape == (3, 8)


def test_hdf5_with_data_in_other_files_is_refused(tmp_path: Path, six: list[Photo]) -> None:
    import h5py

    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["images"] = pixels_of(six)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["images"] = h5py.ExternalLink("other.h5", "images")
    with pytest.raises(SourceError, match="link to another file"):
        scan(tmp_path / "a.h5")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("images", (2, 8, 8), "u1", external=[(str(tmp_path / "raw"), 0, 128)])
    with pytest.raises(SourceError, match="data in other files"):
        scan(tmp_path / "b.h5")


def test_a_zarr_codec_that_unpickles_is_refused(tmp_path: Path) -> None:
    store = tmp_path / "a.zarr"
    store.mkdir()
    metadata = {
        "zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "|O", "compressor": None, "fill_value": 0,
        "filters": [{"id": "pickle"}], "order": "C",
    }  # fmt: skip
    (store / ".zarray").write_text(json.dumps(metadata))
    (store / "0").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(SourceError, match="names the codec 'pickle'"):
        scan(store)


@given(st.integers(1, 40), st.integers(1, 40), st.sampled_from([(), (1,), (3,), (4,)]), st.integers(0, 9))
def test_a_png_of_noise_is_not_longer_than_its_bound(
    height: int, width: int, channels: tuple[int, ...], seed: int
) -> None:
    shape = (height, width, *channels)
    noise = np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)
    assert len(encode_png(noise)) <= png_bound(shape, "HWC")


def test_a_large_png_of_noise_is_not_longer_than_its_bound() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1000, 1500, 3)).astype(np.uint8)
    assert len(encode_png(noise)) <= png_bound(noise.shape, "HWC")


def test_each_chunk_is_read_once(tmp_path: Path, six: list[Photo], monkeypatch: pytest.MonkeyPatch) -> None:
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("images", data=np.concatenate([pixels_of(six)] * 20), chunks=(10, 48, 48, 3))
    reads = []
    get = h5py.Dataset.__getitem__

    def recorded(self: h5py.Dataset, rows: slice) -> np.ndarray:
        reads.append(rows.start)
        return get(self, rows)

    monkeypatch.setattr(h5py.Dataset, "__getitem__", recorded)
    pack(tmp_path / "a.h5", tmp_path / "dst", shard_bytes=30_000, workers=1)
    assert sorted(reads) == list(range(0, 120, 10))


# TFRecord and LMDB


def test_a_truncated_or_damaged_tfrecord_is_an_error_that_names_the_byte(tmp_path: Path, six: list[Photo]) -> None:
    path = tmp_path / "a.tfrecord"
    record = frame(example({"image/encoded": six[0].data, "image/class/label": 1}))
    path.write_bytes(record + record[:-9])
    with pytest.raises(SourceError, match=rf"a\.tfrecord: the record at byte {len(record):,} states"):
        scan(path)
    path.write_bytes(record + b"\1" + record[1:])
    with pytest.raises(SourceError, match=rf"damaged or truncated at byte {len(record):,}"):
        scan(path)
    path.write_bytes(b"\x1f\x8b" + record)
    with pytest.raises(SourceError, match="cannot be decompressed after byte 0"):
        scan(path)


def test_a_tfrecord_whose_first_length_begins_like_gzip_is_read(tmp_path: Path, six: list[Photo]) -> None:
    for padding in range(35_615):
        data = example({"image/encoded": six[0].data, "padding": bytes(35_615 - len(six[0].data) - padding)})
        if len(data) == 35_615:
            break
    (tmp_path / "a.tfrecord").write_bytes(frame(data))
    assert (tmp_path / "a.tfrecord").read_bytes()[:2] == b"\x1f\x8b"
    assert len(scan(tmp_path / "a.tfrecord").inputs) == 1


def test_an_archive_whose_first_name_begins_like_bzip2_is_packed(tmp_path: Path, six: list[Photo]) -> None:
    path = write_tar(tmp_path / "a.tar", {"BZ/1.jpg": six[0].data, "US/1.jpg": six[1].data}.items())
    assert pack(path, tmp_path / "dst", workers=1).manifest.classes == ("BZ", "US")


def test_a_folder_with_the_extension_of_a_file_is_searched(tmp_path: Path, six: list[Photo]) -> None:
    folder = tmp_path / "src" / "images.parquet"
    folder.mkdir(parents=True)
    pq.write_table(hugging_face_table(six), folder / "part-0.parquet")
    assert pack(tmp_path / "src", tmp_path / "dst", workers=1).packed == 6


def test_an_arrow_file_without_rows_is_read_beside_others(tmp_path: Path, six: list[Photo]) -> None:
    table = pa.table({"image": [photo.data for photo in six]})
    (tmp_path / "src").mkdir()
    for name, part in (("0.arrow", table[:0]), ("1.arrow", table)):
        with pa.OSFile(str(tmp_path / "src" / name), "wb") as sink, pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_table(part)
    assert pack(tmp_path / "src", tmp_path / "dst", workers=1).packed == 6
    with pytest.raises(SourceError, match=r"0\.arrow contains no image that can be packed"):
        pack(tmp_path / "src" / "0.arrow", tmp_path / "other", workers=1)


def test_an_arrow_file_that_lacks_a_column_of_the_first_is_an_error_that_names_it(
    tmp_path: Path, six: list[Photo]
) -> None:
    for name, column in (("0.arrow", "image"), ("1.arrow", "photo")):
        table = pa.table({column: [six[0].data]})
        with pa.OSFile(str(tmp_path / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(SourceError, match=r"1\.arrow has no column 'image', which 0\.arrow has"):
        scan(tmp_path)


def test_blank_lines_before_the_first_row_of_json_lines_are_skipped(tmp_path: Path, six: list[Photo]) -> None:
    for name in ("1.jpg", "2.jpg", "3.jpg"):
        (tmp_path / name).write_bytes(six[0].data)
    (tmp_path / "a.jsonl").write_text('\n\n{"image": "1.jpg"}\n\n{"image": "2.jpg"}\n')
    assert len(scan(tmp_path / "a.jsonl").inputs) == 2


def test_columns_of_json_lines_are_those_of_all_rows(tmp_path: Path, six: list[Photo]) -> None:
    for name in ("1.jpg", "2.jpg", "3.jpg"):
        (tmp_path / name).write_bytes(six[0].data)
    rows = [{"image": "1.jpg"}, {"image": "2.jpg", "label": 3}, {"image": "3.jpg", "caption": "a"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    listing = scan(tmp_path / "a.jsonl")
    assert [entry.label for entry in listing.inputs] == [3]
    assert [skip.reason for skip in listing.skipped] == ["has no label"] * 2
    assert pack(tmp_path / "a.jsonl", tmp_path / "dst", workers=2).packed == 1
    assert [sample["cls"] for sample in stored(tmp_path / "dst")] == [b"3"]


def test_a_csv_row_with_more_values_than_columns_is_skipped_and_two_columns_of_a_name_are_an_error(
    tmp_path: Path, six: list[Photo]
) -> None:
    (tmp_path / "1.jpg").write_bytes(six[0].data)
    (tmp_path / "a.csv").write_text("path,caption\n1.jpg,a bird, at sea\n1.jpg,a bird,,\n")
    listing = scan(tmp_path / "a.csv")
    assert len(listing.inputs) == 1
    reason = "the row has 3 values for 2 columns: put values that contain the separator in quotes"
    assert [skip.reason for skip in listing.skipped] == [reason]
    (tmp_path / "a.csv").write_text("path,label,label,,\n1.jpg,1,2,,\n")
    with pytest.raises(SourceError, match=r"a\.csv has two columns named 'label': rename one"):
        scan(tmp_path / "a.csv")


def test_features_of_an_example_become_json_entries(tmp_path: Path, six: list[Photo]) -> None:
    features = {"image": six[0].data, "label": 2, "image/filename": b"a.jpg", "raw": b"\xff\xfe", "box": [0.5, 1.0]}
    (tmp_path / "a.tfrecord").write_bytes(frame(example(features)) + frame(b"\xff\xff\xff"))
    report = pack(tmp_path / "a.tfrecord", tmp_path / "dst", workers=1)
    assert json.loads(stored(tmp_path / "dst")[0]["json"]) == {
        "path": "a.tfrecord#0",
        "image/filename": "a.jpg",
        "box": [0.5, 1.0],
    }
    assert report.skipped[0].path == "a.tfrecord#1"
    assert "not a tf.train.Example" in report.skipped[0].reason


@given(
    st.binary(max_size=60)
    | st.lists(st.binary(max_size=12), max_size=4).map(lambda parts: b"".join(message(1, part) for part in parts))
)
def test_parsing_any_bytes_as_a_message_gives_no_error_but_a_value_error(data: bytes) -> None:
    for parse in (parse_example, parse_datum):
        with suppress(ValueError):
            parse(memoryview(data))


def test_lmdb_databases_of_pairs_and_of_datums_are_read(tmp_path: Path, six: list[Photo]) -> None:
    import lmdb

    with lmdb.open(str(tmp_path / "pairs.lmdb"), map_size=1 << 24) as database, database.begin(write=True) as out:
        out.put(b"num-samples", b"6")
        for number, photo in enumerate(six):
            out.put(f"image-{number:09d}".encode(), photo.data)
            out.put(f"label-{number:09d}".encode(), f"word {number}".encode())
    samples = pack_and_read(tmp_path / "pairs.lmdb", tmp_path / "pairs")
    assert {(sample["jpg"], sample["txt"]) for sample in samples} == {
        (photo.data, f"word {number}".encode()) for number, photo in enumerate(six)
    }
    with lmdb.open(str(tmp_path / "datum.lmdb"), map_size=1 << 24) as database, database.begin(write=True) as out:
        for photo in six:
            datum = message(4, photo.data) + varint(5 << 3) + varint(photo.label) + varint(7 << 3) + b"\1"
            out.put(photo.name.encode(), datum)
    samples = pack_and_read(tmp_path / "datum.lmdb", tmp_path / "datum")
    assert {(sample["jpg"], int(sample["cls"])) for sample in samples} == {(photo.data, photo.label) for photo in six}


def test_an_lmdb_label_below_0_is_none_and_does_not_make_texts_of_all_labels(tmp_path: Path, six: list[Photo]) -> None:
    import lmdb

    with lmdb.open(str(tmp_path / "a.lmdb"), map_size=1 << 24) as database, database.begin(write=True) as out:
        for number, photo in enumerate(six):
            out.put(f"image-{number:09d}".encode(), photo.data)
            out.put(f"label-{number:09d}".encode(), str(number - 1).encode())
    samples = pack_and_read(tmp_path / "a.lmdb", tmp_path / "packed")
    assert {(sample["jpg"], int(sample["cls"])) for sample in samples} == {
        (photo.data, number) for number, photo in enumerate(six[1:])
    }


def test_a_truncated_lmdb_is_an_error_and_does_not_kill_the_process(tmp_path: Path, six: list[Photo]) -> None:
    import lmdb

    with lmdb.open(str(tmp_path / "a.lmdb"), map_size=1 << 24) as database, database.begin(write=True) as out:
        for photo in six:
            out.put(photo.name.encode(), photo.data * 3)
    data = tmp_path / "a.lmdb" / "data.mdb"
    data.write_bytes(data.read_bytes()[:-12_000])
    with pytest.raises(SourceError, match="is truncated: it has"):
        scan(tmp_path / "a.lmdb")


def test_a_pickle_in_lmdb_is_refused(tmp_path: Path) -> None:
    import lmdb

    with lmdb.open(str(tmp_path / "a.lmdb"), map_size=1 << 24) as database, database.begin(write=True) as out:
        out.put(b"0", pickle.dumps((b"image", 3)))
    with pytest.raises(SourceError, match=r"'0': is a pickle, which is never read: write the encoded image"):
        scan(tmp_path / "a.lmdb")


# Archives and shards


def test_a_truncated_tar_is_an_error_that_names_the_byte(tmp_path: Path, six: list[Photo]) -> None:
    path = write_tar(tmp_path / "a.tar", {f"{photo.name}.jpg": photo.data for photo in six}.items())
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(SourceError, match=r"a\.tar cannot be packed: .*byte"):
        scan(path)


def test_a_zip_member_that_is_longer_than_it_states_is_skipped(tmp_path: Path, six: list[Photo]) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("cat/1.jpg", six[0].data)
        archive.writestr("cat/bomb.png", bytes(10**6))
    data = (tmp_path / "a.zip").read_bytes()
    (tmp_path / "a.zip").write_bytes(data.replace((10**6).to_bytes(4, "little"), (100).to_bytes(4, "little")))
    report = pack(tmp_path / "a.zip", tmp_path / "dst", workers=1)
    assert [(skip.path, skip.reason) for skip in report.skipped] == [
        ("cat/bomb.png", "is damaged: its length or checksum differs from the central directory")
    ]


def test_a_packed_dataset_can_be_packed_again(tmp_path: Path, packed: Path) -> None:
    pack(packed, tmp_path / "dst", shard_bytes="200kB", seed=3, workers=1)
    before = {json.loads(sample["json"])["path"]: sample for sample in stored(packed)}
    after = {json.loads(sample["json"])["path"]: sample for sample in stored(tmp_path / "dst")}
    assert before.keys() == after.keys()
    for path, sample in after.items():
        assert image_of(sample) == image_of(before[path])
        assert sample["cls"] == before[path]["cls"]
        assert json.loads(sample["json"])["key"] == before[path]["__key__"]
    assert wt.describe(tmp_path / "dst").samples == wt.describe(packed).samples


def test_fields_of_shards_are_kept(tmp_path: Path, six: list[Photo]) -> None:
    files = {}
    for photo in six:
        files |= {
            f"x/{photo.name}.JPEG": photo.data,
            f"x/{photo.name}.txt": b"caption",
            f"x/{photo.name}.seg.png": b"not decoded",
            f"x/{photo.name}.json": b"[1]",
        }
    write_tar(tmp_path / "a.tar", files.items())
    assert detect(tmp_path / "a.tar") == "webdataset"
    samples = pack_and_read(tmp_path / "a.tar", tmp_path / "dst")
    assert {name for sample in samples for name in sample if name[0] != "_"} == {"jpg", "txt", "seg.png", "json"}
    assert all(sample["json"] == b"[1]" and sample["seg.png"] == b"not decoded" for sample in samples)


# Objects


class Items:
    """A map-style dataset; an item that is callable is called each time it is read."""

    classes = CLASSES

    def __init__(self, items: list[object]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> object:
        item = self.items[number]
        return item() if callable(item) else item


def test_a_torch_dataset_is_packed(tmp_path: Path, six: list[Photo]) -> None:
    import torch

    class Dataset(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return len(six)

        def __getitem__(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.from_numpy(six[number].pixels.copy()).permute(2, 0, 1), torch.tensor(six[number].label)

    report = pack(Dataset(), tmp_path / "dst", shard_bytes=20_480)
    assert report.packed == 6
    assert report.manifest.source["kind"] == "object"
    found = {decode(sample["png"]).tobytes(): int(sample["cls"]) for sample in stored(tmp_path / "dst")}
    assert found == {photo.pixels.tobytes(): photo.label for photo in six}
    assert pack(Dataset(), tmp_path / "dst", shard_bytes=20_480).kept == len(report.manifest.shards)


def test_items_may_be_pil_images_bytes_arrays_and_dictionaries(tmp_path: Path, six: list[Photo]) -> None:
    items = Items(
        [
            (Image.fromarray(six[0].pixels), 2),
            (six[1].data, 1),
            {"image": six[2].pixels, "label": np.int64(0), "caption": "hello", "width": 48},
            (six[3].pixels[..., :1], 2),
        ]
    )
    samples = pack_and_read(items, tmp_path / "dst")
    assert sorted(json.loads(sample["json"])["class"] for sample in samples) == sorted(
        [CLASSES[2], CLASSES[1], CLASSES[0], CLASSES[2]]
    )
    described = next(sample for sample in samples if "txt" in sample)
    assert described["txt"] == b"hello"
    assert json.loads(described["json"]) == {"path": "Items#2", "class": CLASSES[0], "width": 48}


def test_entries_of_items_become_valid_json(tmp_path: Path, six: list[Photo]) -> None:
    entries = {"area": np.float32(0.5), "score": float("nan"), "box": [np.int64(1), float("inf"), object]}
    (sample,) = pack_and_read(Items([{"image": six[0].data, **entries}]), tmp_path / "dst")
    assert json.loads(sample["json"]) == {
        "path": "Items#0",
        "area": 0.5,
        "score": None,
        "box": [1, None, "<class 'object'>"],
    }


def test_further_images_arrays_and_nested_entries_of_items_are_kept(tmp_path: Path, six: list[Photo]) -> None:
    import torch

    mask, depth = np.arange(12, dtype="u1").reshape(3, 4), np.arange(6, dtype="f4").reshape(2, 3)
    entries = {"Mask": Image.fromarray(mask), "depth": Image.fromarray(depth), "clip": torch.arange(3), "size": (4, 3)}
    entries |= {
        "mask.png": "masks/1.png",
        "target": {"area": torch.tensor([1.5])},
        "score": torch.tensor(2),
        "when": date(2024, 1, 2),
    }
    (sample,) = pack_and_read(Items([{"image": six[0].data, "label": 1, **entries, "odd": object}]), tmp_path / "dst")
    assert np.array_equal(Image.open(io.BytesIO(sample["mask.png"])), mask)
    assert np.array_equal(np.load(io.BytesIO(sample["depth.npy"])), depth)
    assert np.load(io.BytesIO(sample["clip.npy"])).tolist() == [0, 1, 2]
    facts = {"mask.png": "masks/1.png", "size": [4, 3], "target": {"area": [1.5]}, "score": 2, "when": "2024-01-02"}
    assert json.loads(sample["json"]) == {"path": "Items#0", "class": CLASSES[1], **facts}


def test_labels_of_objects_may_be_numbers_as_text(tmp_path: Path, six: list[Photo]) -> None:
    items = Items([(six[0].data, "3.0"), (six[1].data, "-1"), (six[2].data, "10")])
    items.classes = ()
    samples = pack_and_read(items, tmp_path / "dst")
    assert {sample["jpg"]: sample.get("cls") for sample in samples} == {
        six[0].data: b"3",
        six[2].data: b"10",
    }


def test_class_names_of_objects_may_be_an_array(tmp_path: Path, six: list[Photo]) -> None:
    items = Items([(six[0].data, 1)])
    items.classes = np.array(CLASSES)
    assert pack(items, tmp_path / "dst").manifest.classes == CLASSES


@pytest.mark.frameworks
def test_a_map_style_dataset_of_hugging_face_keeps_its_class_names(tmp_path: Path, six: list[Photo]) -> None:
    import datasets

    rows = {"image": [photo.data for photo in six], "kind": [photo.label for photo in six]}
    features = datasets.Features(
        {"image": datasets.Value("binary"), "kind": datasets.ClassLabel(names=[*CLASSES[::-1]])}
    )
    samples = pack_and_read(datasets.Dataset.from_dict(rows, features=features), tmp_path / "dst")
    found = {(sample["jpg"], json.loads(sample["json"])["class"]) for sample in samples}
    assert found == {(photo.data, CLASSES[2 - photo.label]) for photo in six}


def test_an_unreadable_item_is_skipped_but_a_bug_of_the_dataset_is_raised(tmp_path: Path, six: list[Photo]) -> None:
    def broken() -> object:
        raise OSError("image file is truncated")

    report = pack(Items([(six[0].data, 0), broken]), tmp_path / "dst")
    assert [(skip.path, skip.reason) for skip in report.skipped] == [
        ("Items#1", "cannot be read: OSError: image file is truncated")
    ]
    with pytest.raises(ZeroDivisionError):
        pack(Items([lambda: 1 / 0]), tmp_path / "other")


def test_random_items_floats_iterators_and_workers_are_refused(tmp_path: Path, six: list[Photo]) -> None:
    random = Items([lambda: (np.random.default_rng().integers(0, 256, (8, 8, 3)).astype("u1"), 0)])
    with pytest.raises(SourceError, match=r"item 0 of the Items differs each time.*random transforms"):
        pack(random, tmp_path / "dst")
    with pytest.raises(SourceError, match="float32; allowed are uint8"):
        pack(Items([(np.zeros((8, 8, 3), "f4"), 0)]), tmp_path / "dst")
    with pytest.raises(OptionError, match="with len"):
        pack((photo for photo in six), tmp_path / "dst")
    with pytest.raises(OptionError, match="workers=2, but a Python object"):
        pack(Items([(six[0].data, 0)]), tmp_path / "dst", workers=2)
    items = [(six[0].data, 1)]
    source = ObjectSource(items)
    (entry,) = source.scan().inputs
    items[0] = (six[1].data, 1)
    with pytest.raises(StoreError, match="item 0 of the list differs each time"):
        source.read(entry)


# Several formats


@pytest.mark.parametrize("kind", ["arrow", "webdataset"])
def test_shards_keep_the_limit_with_text_that_json_makes_longer(tmp_path: Path, six: list[Photo], kind: str) -> None:
    words = 'é\x01"1e15 日本' * 40
    if kind == "arrow":
        path = tmp_path / "a.arrow"
        table = pa.table({"image": [photo.data for photo in six * 4], "words": [words] * 24})
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    else:
        files: dict[str, bytes] = {}
        for number, photo in enumerate(six * 4):
            facts = '{"words": "' + "é" * 400 + '", "numbers": [' + ",".join(["1e15"] * 200) + "]}"
            files |= {f"{number:02d}.jpg": photo.data, f"{number:02d}.json": facts.encode()}
        path = write_tar(tmp_path / "a.tar", files.items())
    manifest = pack(path, tmp_path / "dst", shard_bytes=24_000, workers=1).manifest
    assert len(manifest.shards) > 3
    assert max(shard.bytes for shard in manifest.shards) <= 24_000


def test_an_interrupted_pack_of_row_groups_is_continued_to_the_same_bytes(
    tmp_path: Path, six: list[Photo], monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(hugging_face_table(six * 5), tmp_path / "a.parquet", row_group_size=4)
    pack(tmp_path / "a.parquet", tmp_path / "whole", shard_bytes=12_000, workers=1)
    write, calls = ShardFile.write, []

    def stop(self: ShardFile, *args: object, **options: object) -> None:
        calls.append(1)
        if len(calls) > 17:
            raise KeyboardInterrupt
        write(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ShardFile, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(tmp_path / "a.parquet", tmp_path / "dst", shard_bytes=12_000, workers=1)
    assert pack(tmp_path / "a.parquet", tmp_path / "dst", shard_bytes=12_000, workers=1).kept > 0
    assert contents(tmp_path / "dst") == contents(tmp_path / "whole")


def test_a_folder_of_images_is_detected_whatever_other_files_it_has(tmp_path: Path, six: list[Photo]) -> None:
    (tmp_path / "cat").mkdir()
    for number in range(4):
        (tmp_path / "cat" / f"{number}.jpg").write_bytes(six[number].data)
    for name in ("notes.csv", "backup.zip", "shards.tar", "x.parquet"):
        (tmp_path / name).write_bytes(b"")
    assert detect(tmp_path) == "folder"


def test_images_below_splits_and_classes_decide_next_to_an_archive(tmp_path: Path, six: list[Photo]) -> None:
    (tmp_path / "train" / "cat").mkdir(parents=True)
    for number in range(4):
        (tmp_path / "train" / "cat" / f"{number}.jpg").write_bytes(six[number].data)
    with zipfile.ZipFile(tmp_path / "backup.zip", "w") as archive:
        archive.writestr("cat/0.jpg", six[0].data)
    assert detect(tmp_path) == "folder"


def test_an_unknown_kind_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"unknown format 'excel' .* allowed are arrow, coco, dotted, folder "):
        scan_as(tmp_path, "excel")
    for src, kind in ((Items([]), "hdf5"), (Items([]), "stream"), (tmp_path, "object"), (tmp_path, "stream")):
        with pytest.raises(OptionError, match=f"kind='{kind}'"):
            open_source(src, kind=kind)
    (tmp_path / "a.xyz").write_bytes(b"x")
    with pytest.raises(SourceError, match=r"a\.xyz is not a folder, and its format cannot be detected from its name"):
        pack(tmp_path / "a.xyz", tmp_path / "dst")


def test_a_missing_library_is_an_error_that_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.h5").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "h5py", None)
    with pytest.raises(OptionError, match=r'h5py, which is not installed: pip install "wds-tools\[sources\]"'):
        scan(tmp_path / "a.h5")


def test_texts_that_look_like_missing_labels_are_counted_in_a_warning(
    tmp_path: Path, six: list[Photo], caplog: pytest.LogCaptureFixture
) -> None:
    for photo in six[:3]:
        (tmp_path / photo.name).write_bytes(photo.data)
    rows = [f"{photo.name},{label}" for photo, label in zip(six, ["cat", "nan", "dog"], strict=False)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label", *rows]))
    report = pack(tmp_path / "t.csv", tmp_path / "dst", workers=1)
    assert (report.packed, [skip.reason for skip in report.skipped]) == (2, ["has no label"])
    assert "t.csv: 1 sample without a label: the value is 'nan'" in caplog.text
