"""LMDB databases that py-lmdb, msgpack and msgpack-numpy's layout wrote, compared with what was put in."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import lmdb
import msgpack
import numpy as np
import pytest
from foreign_records import Sample, account_of, checksum, checksum_of, packed
from pictures import encode
from PIL import Image
from sources_conformance import decode, photos_of
from tfrecords import message, varint

from wds_tools.errors import LabelError, OptionError, SourceError
from wds_tools.sources.base import SourceOptions
from wds_tools.sources.detect import open_source

DATA = [photo.data for photo in photos_of(6, size=12)]
PIXELS = [decode(data) for data in DATA]
SUMS = [checksum(data) for data in DATA]
NAMES = ["cat", "dog", "fox"]


def write(path: Path, records: Mapping[str | bytes, bytes], database: str | None = None, **options: Any) -> Path:
    with lmdb.open(str(path), map_size=1 << 24, max_dbs=4) as environment:
        opened = environment.open_db(database.encode(), **options) if database else None
        with environment.begin(write=True, db=opened) as transaction:
            for key, value in records.items():
                transaction.put(key if isinstance(key, bytes) else key.encode(), value)
    return path


def png(pixels: np.ndarray) -> bytes:
    return encode(Image.fromarray(pixels), "PNG")


def nd(array: np.ndarray) -> dict[bytes, Any]:
    """Return an array as msgpack-numpy encodes it."""
    shape = list(array.shape)
    return {b"nd": True, b"type": array.dtype.str.encode(), b"kind": b"", b"shape": shape, b"data": array.tobytes()}


def found(samples: list[Sample]) -> list[tuple[int | str | None, str]]:
    """Return (class name or number, pixels) in the order of the keys."""
    return [(sample.name if sample.name is not None else sample.label, sample.pixels) for sample in samples]


def listed(src: Path) -> list[tuple[int | None, str]]:
    """Return (class number, pixels) as the packer reads them."""
    source = open_source(src)
    images = [(entry.label, source.read(entry).image) for entry in source.scan().inputs]
    return [
        (label, checksum(image) if isinstance(image, bytes) else checksum_of(np.asarray(image)))
        for label, image in images
    ]


NUMBERED = list(zip([0, 1, 2] * 2, SUMS, strict=True))
NAMED = list(zip(NAMES * 2, SUMS, strict=True))

# Values by msgpack


def test_images_and_labels_of_dictionaries_and_lists_are_found(tmp_path: Path) -> None:
    values: list[Any] = [
        lambda n: {"image": DATA[n], "label": n % 3},
        lambda n: {"label": n % 3, "image": DATA[n], "width": 12},
        lambda n: {"img": DATA[n], "target": n % 3},
        lambda n: {"data": {"jpg": DATA[n]}, "label": n % 3},
        lambda n: [DATA[n], n % 3],
        lambda n: [n % 3, DATA[n]],
        lambda n: [DATA[n], n % 3, "extra"],
        lambda n: {"image": nd(np.frombuffer(DATA[n], np.uint8)), "label": n % 3},  # tensorpack's JPEG
        lambda n: {"image": nd(PIXELS[n]), "label": nd(np.array([n % 3]))},
        lambda n: {"image": png(PIXELS[n]), "label": float(n % 3)},
    ]
    for number, value in enumerate(values):
        records = {f"{n:08d}": msgpack.packb(value(n)) for n in range(6)}
        records |= {"__len__": msgpack.packb(6), "__keys__": msgpack.packb(sorted(records))}
        src = write(tmp_path / f"{number}.lmdb", records)
        assert listed(src) == NUMBERED
        roles, account = account_of(src)
        assert (roles["__len__"], roles["__keys__"]) == ("it describes the database",) * 2
        assert {"image", "label"} <= set(roles.values())
        assert account.given == 6


def test_values_of_the_old_format_without_a_type_for_bytes_are_read(tmp_path: Path) -> None:
    records = {f"{n}": msgpack.packb({"image": DATA[n], "label": NAMES[n % 3]}, use_bin_type=False) for n in range(6)}
    assert found(packed(write(tmp_path / "a.lmdb", records), tmp_path / "dst")) == NAMED


def test_other_values_of_a_record_are_kept_or_accounted_for(tmp_path: Path) -> None:
    vector = np.arange(3, dtype=np.float32)
    records = {
        f"{n}": msgpack.packb(
            {
                "image": DATA[n],
                "label": NAMES[n % 3],
                "caption": f"text {n}",
                "boxes": [[1, 2.5], [3, n], {"w": n}],
                "meta": {"score": 0.25, "source": "web"},
                "vector": nd(vector + n),
                "mask": png(np.full((4, 4), n, np.uint8)),
                "raw": b"\0\1\2",
                "when": msgpack.Timestamp(5),
            }
        )
        for n in range(6)
    }
    src = write(tmp_path / "a.lmdb", records)
    samples = packed(src, tmp_path / "dst")
    assert found(samples) == NAMED
    for n, sample in enumerate(samples):
        assert sample.fields["txt"] == f"text {n}".encode()
        assert sample.facts["boxes"] == [[1, 2.5], [3, n], {"w": n}]
        assert (sample.facts["meta.score"], sample.facts["meta.source"]) == (0.25, "web")
        assert np.array_equal(np.load(BytesIO(sample.fields["vector.npy"])), vector + n)
        assert sample.fields["mask.png"] == png(np.full((4, 4), n, np.uint8))
    roles, _ = account_of(src)
    assert roles["raw"] == "binary, and not an image"
    assert roles["when"] == "an extension type of msgpack"


def test_several_labels_of_a_record_are_a_field(tmp_path: Path) -> None:
    records = {f"{n}": msgpack.packb({"image": DATA[n], "label": [n, n + 1]}) for n in range(3)}
    samples = packed(write(tmp_path / "a.lmdb", records), tmp_path / "dst")
    assert [json.loads(sample.fields["labels.json"]) for sample in samples] == [[n, n + 1] for n in range(3)]


# Labels under other keys


def test_a_label_is_found_under_the_key_of_its_image_with_another_word(tmp_path: Path) -> None:
    keys = [
        ("image-{:09d}", "label-{:09d}"),
        ("image_{}", "label_{}"),
        ("img/{}", "label/{}"),
        ("{:06d}", "{:06d}_label"),
        ("{}", "{}/label"),
        ("{}", "label_{}"),
        ("{}", "{}.cls"),
        ("{}_img", "{}_target"),
        ("{}/image", "{}/label"),
        ("{}.jpg", "{}.cls"),
        ("set/{}.jpg", "set/{}.label"),
        ("train_{}", "train_{}_label"),
    ]
    for number, (image, label) in enumerate(keys):
        records = {image.format(n): DATA[n] for n in range(6)} | {label.format(n): b"%d" % (n % 3) for n in range(6)}
        src = write(tmp_path / f"{number}.lmdb", {**records, "num-samples": b"6"})
        assert listed(src) == NUMBERED
        roles, account = account_of(src)
        assert roles["num-samples"] == "it describes the database"
        assert account.given == 6


def test_further_values_and_masks_of_an_image_belong_to_its_sample(tmp_path: Path) -> None:
    records: dict[str | bytes, bytes] = {}
    for n in range(6):
        records |= {f"image-{n}": DATA[n], f"label-{n}": b"%d" % (n % 3), f"caption-{n}": b"text %d" % n}
        records[f"mask-{n}"] = png(np.full((4, 4), n, np.uint8))
    src = write(tmp_path / "a.lmdb", records)
    samples = packed(src, tmp_path / "dst")
    assert found(samples) == NUMBERED
    assert [(s.fields["txt"], s.fields["mask.png"]) for s in samples] == [
        (records[f"caption-{n}"], records[f"mask-{n}"]) for n in range(6)
    ]
    assert account_of(src)[0] == {
        "image": "image",
        "label": "label",
        "caption": "field txt",
        "mask": "image field mask",
    }


def test_names_of_cameras_and_names_that_begin_alike_are_images_of_their_own(tmp_path: Path) -> None:
    keys = ["DSC_001", "IMG_001", "sun", "sun_set", "cat/1.jpg", "cat/1.png"]
    src = write(tmp_path / "a.lmdb", dict(zip(keys, DATA, strict=True)))
    samples = packed(src, tmp_path / "dst", classes=None)
    assert [sample.pixels for sample in samples] == [SUMS[keys.index(key)] for key in ("cat/1.jpg", "cat/1.png")]
    assert account_of(src)[1].skipped == {"has no label": 4}  # only two of the keys have a class folder


def test_splits_have_the_same_names_in_keys_as_in_folders(tmp_path: Path) -> None:
    folders = ["train2017/cat", "train2017/dog", "val2017/cat", "val2017/dog"]
    src = write(tmp_path / "a.lmdb", {f"{folder}/1.jpg": data for folder, data in zip(folders, DATA, strict=False)})
    with pytest.raises(SourceError, match=r"keys for each split \('train2017', 'val2017'\), which are not classes"):
        packed(src, tmp_path / "dst")


def test_entries_of_a_json_value_are_those_of_the_sample(tmp_path: Path) -> None:
    records = {f"{n}.jpg": DATA[n] for n in range(6)}
    records |= {f"{n}.json": json.dumps({"label": NAMES[n % 3], "size": {"width": n}}).encode() for n in range(6)}
    samples = packed(write(tmp_path / "a.lmdb", records), tmp_path / "dst")
    assert found(samples) == NAMED
    assert [sample.facts["size.width"] for sample in samples] == list(range(6))


@pytest.mark.parametrize(
    ("key", "word"),
    [
        ("{size}-{n:05}", "{size}"),
        ("{n:05}_{size}", "{size}"),
        ("{size}x{size}/{n}.jpg", "{size}x{size}"),
        ("hr_{size}_{n:05}", "hr_{size}"),
    ],
)
def test_images_in_several_sizes_are_one_sample(key: str, word: str, tmp_path: Path) -> None:
    """StyleGAN 2, diffusion models and SR3 have such keys; the size of the user's choice is the image."""
    images = map(Image.fromarray, PIXELS)
    sizes = {12: [*map(png, PIXELS)], 6: [png(np.asarray(image.resize((6, 6)))) for image in images]}
    records = {key.format(size=size, n=n): data for size in sizes for n, data in enumerate(sizes[size])}
    src = write(tmp_path / "a.lmdb", records | {"length": b"6"})
    small, large = word.format(size=6), word.format(size=12)
    with pytest.raises(
        SourceError, match=rf"in 2 sizes, by their keys \('{small}', '{large}' .*--column image={large}"
    ):
        packed(src, tmp_path / "dst")
    for size, name, other in ((12, large, small), (6, small, large)):
        samples = packed(src, tmp_path / name, columns={"image": name})
        assert found(samples) == [(None, checksum(data)) for data in sizes[size]]
        assert [sample.fields[f"{other}.png"] for sample in samples] == sizes[18 - size]


def test_keys_with_the_size_of_some_images_or_other_ids_are_samples(tmp_path: Path) -> None:
    for number, keys in enumerate((["12-{n}"], ["12-{n}", "12-1{n}"], ["12/{n}", "7/{n}"], ["12_{n}", "cat_{n}"])):
        records = {key.format(n=n): DATA[n] for key in keys for n in range(6)}
        samples = packed(write(tmp_path / f"{number}.lmdb", records), tmp_path / f"{number}")
        assert len(samples) == len(records)
        assert {sample.name for sample in samples} == ({"12", "7"} if "/" in keys[0] else {None})


def test_a_number_of_samples_that_is_not_right_is_noted(tmp_path: Path) -> None:
    records = {f"image-{n}": DATA[n] for n in range(3)} | {"num-samples": b"5"}
    _, account = account_of(write(tmp_path / "a.lmdb", records))
    assert account.notes == ["the database states 5 samples, and has 3 images"]


def test_lists_without_an_image_at_the_start_need_the_name_of_the_label(tmp_path: Path) -> None:
    records = {f"{n}": msgpack.packb([f"name {n}", DATA[n], n % 3]) for n in range(6)}
    src = write(tmp_path / "a.lmdb", records)
    with pytest.raises(SourceError, match=r"2 entries that could be the label: '0' .*, '2' \(0, 1, 2\)"):
        packed(src, tmp_path / "dst")
    assert found(packed(src, tmp_path / "named", columns={"label": "2"})) == NUMBERED


def test_values_that_are_nested_too_deeply_are_skipped(tmp_path: Path) -> None:
    deep: Any = 1
    for _ in range(500):
        deep = [deep]
    records = {f"{n}": msgpack.packb({"image": DATA[n], "label": n % 3}) for n in range(6)}
    records["9"] = msgpack.packb({"image": DATA[0], "label": 1, "tree": deep})
    src = write(tmp_path / "a.lmdb", records)
    assert found(packed(src, tmp_path / "dst")) == NUMBERED
    assert account_of(src)[1].skipped == {"has values that are nested too deeply": 1}


def test_images_of_floats_are_skipped_with_the_way_out(tmp_path: Path) -> None:
    records = {f"{n}": msgpack.packb({"image": nd((PIXELS[n] / 255).astype("f4")), "label": n}) for n in range(3)}
    with pytest.raises(SourceError, match=r"'image' is float32; allowed are uint8 pixels.*convert it"):
        packed(write(tmp_path / "a.lmdb", records), tmp_path / "dst")


def test_a_label_without_an_image_is_skipped_with_that_reason(tmp_path: Path) -> None:
    records = {f"image-{n}": DATA[n] for n in range(3)} | {f"label-{n}": b"%d" % n for n in range(4)}
    src = write(tmp_path / "a.lmdb", records)
    _, account = account_of(src)
    assert account.skipped == {"belongs to no image with the same number or name in its key": 1}
    assert (account.given, account.packed) == (4, 3)


@pytest.mark.parametrize("value", [np.int64(2).tobytes(), np.int32(2).tobytes(), b"\x02"])
def test_a_label_of_binary_numbers_is_an_error(value: bytes, tmp_path: Path) -> None:
    records = {f"image-{n}": DATA[n] for n in range(3)} | {f"label-{n}": value for n in range(3)}
    with pytest.raises(SourceError, match=r"label 'label' is binary; allowed are numbers and names.*write it as text"):
        packed(write(tmp_path / "a.lmdb", records), tmp_path / "dst")


def test_a_pickled_label_is_an_error(tmp_path: Path) -> None:
    records = {f"{n}": DATA[n] for n in range(3)} | {f"{n}_label": pickle.dumps(n) for n in range(3)}
    with pytest.raises(SourceError, match=r"'label' is not read, because it is a pickle"):
        packed(write(tmp_path / "a.lmdb", records), tmp_path / "dst")


def test_names_in_label_keys_are_classes_or_texts_but_never_lost(tmp_path: Path) -> None:
    records = {f"image-{n}": DATA[n] for n in range(6)} | {f"label-{n}": NAMES[n % 3].encode() for n in range(6)}
    src = write(tmp_path / "a.lmdb", records)
    with pytest.raises(LabelError, match=r"'cat', 'dog', 'fox'.*3 different.*6 images: pass --label label"):
        packed(src, tmp_path / "dst")
    assert found(packed(src, tmp_path / "classes", columns={"label": "label"})) == NAMED
    assert found(packed(src, tmp_path / "typed", label_type="name")) == NAMED
    words = write(tmp_path / "words.lmdb", records | {f"label-{n}": f"word {n}".encode() for n in range(6)})
    roles, account = account_of(words)
    assert roles["label"] == "field txt"
    assert account.notes == ["'label' has texts to recognise, not classes: pass --label-type name if they are classes"]


# Folders in keys


@pytest.mark.parametrize("key", ["{}/{}", "photos/{}/{}.jpg", "train/{}/{}", "images/{}/{}.jpeg"])
def test_the_first_folder_below_those_of_all_keys_is_the_class(key: str, tmp_path: Path) -> None:
    src = write(tmp_path / "a.lmdb", {key.format(NAMES[n % 3], n): DATA[n] for n in range(6)})
    assert sorted(found(packed(src, tmp_path / "dst"))) == sorted(NAMED)
    assert account_of(src)[0]["first folder"] == "label"


def test_entries_of_0_and_1_are_not_the_label_next_to_folders_of_classes(tmp_path: Path) -> None:
    records = {f"{NAMES[n % 3]}/{n}.jpg": DATA[n] for n in range(6)}
    records |= {f"{NAMES[n % 3]}/{n}.json": json.dumps({"in": n % 2, "out": 1 - n % 2}).encode() for n in range(6)}
    samples = packed(write(tmp_path / "a.lmdb", records), tmp_path / "dst")
    assert sorted(found(samples)) == sorted(NAMED)
    assert {sample.facts["in"] + sample.facts["out"] for sample in samples} == {1}


def test_a_key_without_a_folder_does_not_remove_the_labels_of_the_others(tmp_path: Path) -> None:
    src = write(tmp_path / "a.lmdb", {f"{NAMES[n % 3]}/{n}" if n else "0": DATA[n] for n in range(6)})
    assert sorted(found(packed(src, tmp_path / "dst"))) == sorted(NAMED[1:])
    assert account_of(src)[1].skipped == {"has no label": 1}


@pytest.mark.parametrize("key", ["{split}/{name}/{n}", "{split}/{n}"])
def test_splits_in_keys_are_never_classes(key: str, tmp_path: Path) -> None:
    splits = ["train", "val"]
    keys = [key.format(split=splits[n // 3], name=NAMES[n % 3], n=n) for n in range(6)]
    src = write(tmp_path / "a.lmdb", dict(zip(keys, DATA, strict=True)))
    with pytest.raises(SourceError, match=r"keys for each split \('train', 'val'\).*--column split=train"):
        packed(src, tmp_path / "dst")
    expected = NAMED[3:] if "name" in key else [(None, pixels) for pixels in SUMS[3:]]
    assert found(packed(src, tmp_path / "val", columns={"split": "val"})) == expected
    assert account_of(src, columns={"split": "val"})[1].notes[0] == "3 keys outside 'val' left out"


def test_splits_of_keys_and_databases_are_sources_of_their_own(tmp_path: Path) -> None:
    keys = [f"{'train' if n < 4 else 'val'}/{NAMES[n % 3]}/{n}" for n in range(6)]
    src = write(tmp_path / "keys.lmdb", dict(zip(keys, DATA, strict=True)))
    databases = write(tmp_path / "databases.lmdb", {f"a/{n}": DATA[n] for n in range(4)}, "train")
    write(databases, {f"a/{n}": DATA[n] for n in range(4, 6)}, "val")
    for path in (src, databases):
        splits = open_source(path).splits()
        listings = {name: source.scan() for name, source in splits.items()}
        assert {name: len(listing.inputs) for name, listing in listings.items()} == {"train": 4, "val": 2}
        assert {splits["val"].read(entry).image for entry in listings["val"].inputs} == set(DATA[4:])
    assert not open_source(src, options=SourceOptions(columns={"split": "val"})).splits()


def test_one_split_alone_is_not_a_class(tmp_path: Path) -> None:
    src = write(tmp_path / "a.lmdb", {f"train/{n}": DATA[n] for n in range(6)})
    assert found(packed(src, tmp_path / "dst")) == [(None, pixels) for pixels in SUMS]


# Named databases


def test_named_databases_are_read_if_they_are_named(tmp_path: Path) -> None:
    src = write(tmp_path / "a.lmdb", {f"{n}": DATA[n] for n in range(6)}, "images")
    write(src, {f"{n}": b"%d" % (n % 3) for n in range(6)}, "labels")
    write(src, {f"{n}": b"text" for n in range(6)}, "texts")
    with pytest.raises(SourceError, match=r"named databases 'images', 'labels', 'texts': .*--column image=images"):
        packed(src, tmp_path / "dst")
    columns = {"image": "images", "label": "labels"}
    assert found(packed(src, tmp_path / "pair", columns=columns)) == NUMBERED
    roles, account = account_of(src, columns=columns)
    assert roles["texts"] == "it was not named with --column image="
    assert [part.role for part in account.parts if part.kind == "database"] == ["image", "label", ""]


def test_a_named_database_of_records_has_its_own_labels(tmp_path: Path) -> None:
    records = {f"{n}": msgpack.packb({"image": DATA[n], "label": NAMES[n % 3], "x": n}) for n in range(6)}
    src = write(tmp_path / "a.lmdb", records, "train")
    write(src, {"0": records["0"]}, "val")
    assert found(packed(src, tmp_path / "dst", columns={"image": "train"})) == NAMED


def test_several_values_per_key_are_an_error(tmp_path: Path) -> None:
    src = write(tmp_path / "a.lmdb", {"cat": b"1"}, "images", dupsort=True)
    with pytest.raises(SourceError, match=r"'images' has several values per key \(dupsort\)"):
        packed(src, tmp_path / "dst", columns={"image": "images"})


# Caffe's Datum, and arrays of NumPy


def datum(n: int, *, grey: bool = False, label: bool = True) -> bytes:
    """Return a Datum of raw pixels as Caffe's convert_imageset writes it: B, G, R; one channel after the other."""
    pixels = PIXELS[n][..., ::-1].transpose(2, 0, 1) if not grey else PIXELS[n][None, ..., 0]
    sizes = b"".join(varint(number << 3) + varint(size) for number, size in enumerate(pixels.shape, 1))
    return sizes + message(4, pixels.tobytes()) + (varint(5 << 3) + varint(n % 3) if label else b"")


def test_the_order_of_raw_colours_of_a_datum_is_given_by_the_user(tmp_path: Path) -> None:
    src = write(tmp_path / "a.lmdb", {f"{n:08d}_cat/{n}.jpg": datum(n) for n in range(6)})
    with pytest.raises(SourceError, match=r"channel order is not known: pass --column channels=BGR"):
        packed(src, tmp_path / "dst")
    assert found(packed(src, tmp_path / "bgr", columns={"channels": "BGR"})) == NUMBERED
    swapped = [checksum_of(pixels[..., ::-1]) for pixels in PIXELS]
    assert [pixels for _, pixels in found(packed(src, tmp_path / "rgb", columns={"channels": "RGB"}))] == swapped
    with pytest.raises(OptionError, match=r"channels='HSV'; allowed are RGB and BGR"):
        packed(src, tmp_path / "hsv", columns={"channels": "HSV"})


def test_a_grey_datum_is_read_and_one_without_a_label_is_not_class_0(tmp_path: Path) -> None:
    src = write(tmp_path / "a.lmdb", {f"{n}": datum(n, grey=True, label=n > 0) for n in range(6)})
    samples = packed(src, tmp_path / "dst")
    assert [sample.label for sample in samples] == [1, 2, 0, 1, 2]
    with Image.open(BytesIO(samples[0].fields["png"])) as image:
        assert np.array_equal(np.asarray(image), PIXELS[1][..., 0])


def test_arrays_in_npy_format_are_images_and_arrays_of_objects_are_not_read(tmp_path: Path) -> None:
    records = {}
    for n in range(6):
        out = BytesIO()
        np.save(out, PIXELS[n])
        records |= {f"{n}": out.getvalue(), f"{n}_label": b"%d" % (n % 3)}
    out = BytesIO()
    np.save(out, np.array([{}], object), allow_pickle=True)
    src = write(tmp_path / "a.lmdb", records | {"9": out.getvalue()})
    assert found(packed(src, tmp_path / "dst")) == NUMBERED
    (reason,) = account_of(src)[1].skipped
    assert reason == "'image' is not read: it is a damaged array of NumPy, or one of Python objects"


def test_a_pickle_among_records_is_skipped_with_the_way_out(tmp_path: Path) -> None:
    records = {f"{n}": msgpack.packb({"image": DATA[n], "label": n % 3}) for n in range(6)}
    src = write(tmp_path / "a.lmdb", records | {"x": pickle.dumps((DATA[0], 1))})
    assert found(packed(src, tmp_path / "dst")) == NUMBERED
    (reason,) = account_of(src)[1].skipped
    assert reason == "is a pickle, which is never read: write the encoded image itself as the value"


@pytest.mark.parametrize("value", [[0, 1, 2] * 2, {"labels": NAMES * 2}, "0\n1\n2\n0\n1\n2\n"])
def test_a_record_with_the_labels_of_all_images_is_refused_instead_of_losing_them(value: Any, tmp_path: Path) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    images = {f"{number:08}": data for number, data in enumerate(DATA)}
    path = write(tmp_path / "db", {**images, "labels": text.encode()})
    with pytest.raises(SourceError, match=r"the record 'labels' has a value for each image .*label-7.*--column label="):
        open_source(path).scan()
    without = open_source(path, options=SourceOptions(columns={"label": ""})).scan()
    assert (len(without.inputs), without.has_labels) == (6, False)
    labelled = {f"{number:08}_label": str(number % 3).encode() for number in range(6)}
    listing = open_source(write(tmp_path / "known", {**images, **labelled, "labels": text.encode()})).scan()
    assert [entry.label for entry in listing.inputs] == [0, 1, 2] * 2
    assert any(note.startswith("'labels' has a value for each image") for note in listing.account.notes)


@pytest.mark.parametrize("pack", [lambda value: json.dumps(value).encode(), msgpack.packb])
def test_keys_that_describe_the_database_have_class_names_or_labels(pack: Any, tmp_path: Path) -> None:
    records = {f"{n}": msgpack.packb({"image": DATA[n], "label": n % 3}) for n in range(6)}
    keys: dict[str, Any] = {"__keys__": [*records], "__len__": 6, "__meta__": {"version": 1, "classes": NAMES}}
    src = write(tmp_path / "meta", records | {key: pack(value) for key, value in keys.items()})
    assert found(packed(src, tmp_path / "dst")) == NAMED
    roles, account = account_of(src)
    assert roles["__meta__"] == "class names"
    assert (account.notes, account.skipped, account.given) == ([], {}, 6)
    src = write(tmp_path / "own", records | {"class_to_idx": pack({name: n for n, name in enumerate(NAMES)})})
    assert found(packed(src, tmp_path / "own_dst")) == NAMED
    with pytest.raises(LabelError, match="label 2 can be the class '2' by its name, or '1' by its position"):
        open_source(write(tmp_path / "numbers", records | {"classes": pack(["0", "2", "1"])})).scan()
    images = {f"{n:08}": DATA[n] for n in range(6)}
    for number, value in enumerate(({"labels": NAMES * 2}, {key: {"label": 1} for key in images})):
        src = write(tmp_path / f"labels{number}", images | {"__meta__": pack(value)})
        with pytest.raises(SourceError, match=r"the record '__meta__' (has a value for each image|is about images)"):
            open_source(src).scan()


@pytest.mark.parametrize("key", ["__meta__", "meta"])
def test_a_pickle_that_may_have_labels_is_named_in_a_note(key: str, tmp_path: Path) -> None:
    images = {f"{n:08}": DATA[n] for n in range(6)}
    records = images | {key: pickle.dumps([0] * 6), "__keys__": pickle.dumps([*images])}
    [note] = open_source(write(tmp_path / "db", records)).scan().account.notes
    assert note.startswith(f"{key!r} is a pickle, which is never read: if it has labels, store each label")


@pytest.mark.parametrize("value", [pickle.dumps([0] * 6), np.arange(6).tobytes()])
def test_labels_of_all_images_that_cannot_be_read_are_an_error(value: bytes, tmp_path: Path) -> None:
    src = write(tmp_path / "db", {**{f"{n:08}": DATA[n] for n in range(6)}, "labels": value})
    with pytest.raises(SourceError, match=r"the record 'labels' is (a pickle|named like).*: store each label"):
        open_source(src).scan()


def test_labels_in_a_folder_next_to_that_of_the_images_are_an_error_and_no_class(tmp_path: Path) -> None:
    images = {f"train/images/{n}.png": DATA[n] for n in range(6)}
    assert found(packed(write(tmp_path / "images", images), tmp_path / "dst")) == [(None, pixels) for pixels in SUMS]
    src = write(tmp_path / "db", images | {f"train/labels/{n}.txt": NAMES[n % 3].encode() for n in range(6)})
    with pytest.raises(SourceError, match=r"record 'train/labels/0.txt' has the name of an image in another folder"):
        open_source(src).scan()


def test_a_record_named_like_labels_is_named_in_a_note(tmp_path: Path) -> None:
    images = {f"{number:08}": data for number, data in enumerate(DATA)}
    path = write(tmp_path / "db", {**images, "classes": json.dumps(NAMES).encode(), "about": b"photographs"})
    [note] = open_source(path).scan().account.notes
    assert note.startswith("'classes' is named like a file about the images")
