"""Programs that write records with other libraries, and what these libraries read from them.

``python tests/interop_writers.py WRITER FOLDER`` writes ``tests/foreign/tfrecord``, ``mds`` or ``litdata``. Each folder
gets an ``expected.json`` with the records of each file or dataset, and checksums of decoded pixels. ``make interop``
runs these programs with the newest versions of the libraries, and the tests of the sources on what they wrote.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SAMPLE = Path(__file__).parents[1] / "shards" / "sample" / "images"
NAMES = ("cat", "dog", "fox")
COUNT = 6


def picture(number: int, mode: str = "RGB", size: tuple[int, int] = (10, 8)) -> Image.Image:
    """Return a reduced photograph."""
    folders = sorted(path for path in SAMPLE.iterdir() if path.is_dir())[:3]
    path = sorted(folders[number % 3].glob("*.jpg"))[number // 3 % 2]
    with Image.open(path) as image:
        return image.convert("RGB").resize(size).convert(mode)


def encoded(number: int, kind: str = "PNG", mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    picture(number, mode).save(out, kind)
    return out.getvalue()


def jpeg(number: int) -> Image.Image:
    return Image.open(io.BytesIO(encoded(number, "JPEG")))


def pixels(number: int, mode: str = "RGB", size: tuple[int, int] = (10, 8)) -> np.ndarray:
    return np.asarray(picture(number, mode, size))


def checksum(array: Any) -> str:
    return hashlib.md5(np.ascontiguousarray(array).tobytes()).hexdigest()


# TensorFlow


def _tensorflow(folder: Path) -> dict[str, list[dict[str, Any]]]:
    import tensorflow as tf

    def feature(value: Any) -> Any:
        values = list(value) if isinstance(value, (list, tuple)) else [value]
        if isinstance(values[0], (bytes, str)):
            data = [one.encode() if isinstance(one, str) else one for one in values]
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=data))
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def features(values: Mapping[str, Any]) -> Any:
        return tf.train.Features(feature={name: feature(value) for name, value in values.items()})

    def example(values: Mapping[str, Any]) -> bytes:
        return tf.train.Example(features=features(values)).SerializeToString()

    def sequence(context: Mapping[str, Any], lists: Mapping[str, Iterable[Any]]) -> bytes:
        steps = {name: tf.train.FeatureList(feature=map(feature, values)) for name, values in lists.items()}
        lists_ = tf.train.FeatureLists(feature_list=steps)
        return tf.train.SequenceExample(context=features(context), feature_lists=lists_).SerializeToString()

    for name, records in _tfrecords(example, sequence):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with tf.io.TFRecordWriter(str(path), _compression(name)) as writer:
            for record in records:
                writer.write(record)
    serialized = [tf.io.serialize_tensor(pixels(n)).numpy() for n in range(3)]
    with tf.io.TFRecordWriter(str(folder / "serialized.tfrecord")) as writer:
        for record in serialized:
            writer.write(record)
    (folder / "tfds/toy/1.0.0/label.labels.txt").write_text("zebra\napple\nmango\n")
    (folder / "tfds/toy/1.0.0/features.json").write_text("{}\n")
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in (".txt", ".json"))
    return {str(path.relative_to(folder)): list(_read_tfrecord(path)) for path in paths}


def _compression(name: str) -> str:
    return "GZIP" if "gzip" in name else "ZLIB" if "zlib" in name else ""


def _slim(number: int) -> dict[str, Any]:
    """Return the features of TensorFlow's ImageNet."""
    return {
        "image/encoded": encoded(number),
        "image/format": "png",
        "image/class/label": number % 3 + 1,
        "image/class/text": NAMES[number % 3],
        "image/height": 8,
        "image/width": 10,
        "image/filename": f"{number}.png",
        "image/object/bbox/xmin": [0.25, 0.5][: number % 2 + 1],
    }


def _tfrecords(example: Any, sequence: Any) -> Iterator[tuple[str, list[bytes]]]:
    """Yield name and records of each file."""
    n_all = range(COUNT)
    slim = [example(_slim(n)) for n in n_all]
    for name in ("slim.tfrecord", "compressed/gzip.tfrecord.gz", "compressed/zlib.tfrecord"):
        yield name, slim
    yield "two_texts.tfrecord", [*slim[:5], example(_slim(5) | {"image/class/text": "wolf"})]
    cranes = ["crane", "dog", "crane"]
    yield "same_text.tfrecord", [example(_slim(n) | {"image/class/text": cranes[n % 3]}) for n in n_all]
    size = {"height": 8, "width": 10}
    raw = [{"image_raw": pixels(n).tobytes(), **size, "depth": 3, "label": n % 3} for n in n_all]
    yield "raw.tfrecord", list(map(example, raw))
    grey = [{"image_raw": pixels(n, "L").tobytes(), **size, "label": n % 3} for n in n_all]
    yield "grey.tfrecord", list(map(example, grey))
    floats = [row | {"image_raw": (pixels(n) / 255).astype("f4").tobytes()} for n, row in enumerate(raw)]
    yield "floats.tfrecord", list(map(example, floats))
    stylegan = [{"shape": [3, 8, 10], "data": pixels(n).transpose(2, 0, 1).tobytes()} for n in n_all]
    yield "stylegan.tfrecords", list(map(example, stylegan))
    tokens = [["a", "b"][: n % 2 + 1] for n in n_all]
    contexts = [{"label": n % 3, "id": f"s{n}"} for n in n_all]
    yield (
        "sequence.tfrecord",
        [sequence(contexts[n], {"image": [encoded(n)], "tokens": tokens[n]}) for n in n_all],
    )
    pair = [[encoded(n), encoded(n + 1)] for n in n_all]
    yield "video.tfrecord", [sequence({"label": n}, {"image": pair[n]}) for n in range(3)]
    yield "frames.tfrecord", [example({"image": pair[n], "label": n}) for n in range(3)]
    for name, more in _labels().items():
        yield f"{name}.tfrecord", [example({"image": encoded(n), **more[n]}) for n in n_all]
    both = [{"left": pair[n][0], "right": pair[n][1], "label": n % 3} for n in n_all]
    yield "two_images.tfrecord", list(map(example, both))
    plain = [{"image": encoded(n), "label": n % 3} for n in n_all]
    more = [
        row | {"caption": f"text {n}", "mask": encoded(n, mode="L"), "scores": [0.5, 1.5]}
        for n, row in enumerate(plain)
    ]
    yield "union/part-00000-of-00002", list(map(example, plain[:3]))
    yield "union/part-00001-of-00002", list(map(example, more[3:]))
    named = [row | {"file_name": f"{n}.png"} for n, row in enumerate(plain)]
    for part in range(2):
        yield (
            f"tfds/toy/1.0.0/toy-train.tfrecord-0000{part}-of-00002",
            list(map(example, named[3 * part : 3 * part + 3])),
        )
    for split in ("train", "test"):
        yield f"tfds_splits/toy-{split}.tfrecord-00000-of-00001", [example(plain[0])]


def _labels() -> dict[str, list[dict[str, Any]]]:
    """Return the labels of files that differ only in them."""
    n_all = range(COUNT)
    return {
        "several_labels": [{"image/class/label": [n, n + 1][: n % 2 + 1]} for n in n_all],
        "names": [{"label": NAMES[n % 3]} for n in n_all],
        "texts": [{"image/class/text": NAMES[n % 3]} for n in n_all],
        "fractions": [{"label": n + 0.5} for n in n_all],
        "whole_floats": [{"label": float(n % 3)} for n in n_all],
        "two_labels": [{"label": n % 3, "target": n % 2} for n in n_all],
        "missing": [{} if n == 1 else {"label": -1 if n == 3 else n % 3} for n in n_all],
    }


def _read_tfrecord(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the features that TensorFlow reads from a file."""
    import tensorflow as tf

    def value(name: str, one: Any) -> Any:
        if not isinstance(one, bytes):
            return one
        if one.startswith(b"\x89PNG"):
            return checksum(tf.io.decode_image(one).numpy())
        return checksum(np.frombuffer(one, np.uint8)) if name in ("image_raw", "data") else one.decode()

    def values(name: str, feature: Any) -> list[Any]:
        kind = feature.WhichOneof("kind")
        return [value(name, one) for one in getattr(feature, kind).value] if kind else []

    if path.name.startswith("serialized"):
        return
    is_sequence = path.stem in ("sequence", "video")
    for record in tf.data.TFRecordDataset(str(path), compression_type=_compression(path.name)):
        parsed = (tf.train.SequenceExample if is_sequence else tf.train.Example)()
        parsed.ParseFromString(record.numpy())
        context = parsed.context if is_sequence else parsed.features
        row = {name: values(name, feature) for name, feature in context.feature.items()}
        for name, steps in parsed.feature_lists.feature_list.items() if is_sequence else ():
            row[name] = [one for step in steps.feature for one in values(name, step)]
        yield row


# MosaicML Streaming


def _streaming(folder: Path) -> dict[str, list[dict[str, Any]]]:
    import streaming

    for name, columns, rows, options in _mds():
        with streaming.MDSWriter(out=str(folder / name), columns=columns, size_limit=1200, **options) as writer:
            for row in rows:
                writer.write(row)
    streaming.base.util.merge_index(str(folder / "merged"))
    found = {}
    for index in sorted(folder.rglob("index.json")):
        with tempfile.TemporaryDirectory() as local:
            dataset = streaming.StreamingDataset(
                remote=str(index.parent), local=local, shuffle=False, batch_size=1, allow_unsafe_types=True
            )
            rows = [{name: _plain(value) for name, value in dataset[n].items()} for n in range(len(dataset))]
        found[str(index.parent.relative_to(folder))] = rows
    return found


def _mds() -> Iterator[tuple[str, dict[str, str], list[dict[str, Any]], dict[str, Any]]]:
    """Yield name, columns, rows and options of each dataset."""
    n_all = range(COUNT)
    pictures = [{"image": picture(n), "label": n % 3} for n in n_all]
    png = {"image": "png", "label": "int"}
    yield "merged/0", png, pictures[:3], {}
    yield "merged/1", {**png, "extra": "str"}, [row | {"extra": "more"} for row in pictures[3:]], {}
    both = [row | {"category": n % 2} for n, row in enumerate(pictures)]
    yield "two_labels", {**png, "category": "int"}, both, {}
    fractions = [row | {"label": n + 0.5} for n, row in enumerate(pictures)]
    yield "fractions", {"image": "png", "label": "float64"}, fractions, {}
    unique = [{"image": picture(n % COUNT, "L", (3, 2)), "label": 1000 + n} for n in range(100)]
    yield "unique", png, unique, {}
    yield "jpeg", {"image": "jpeg", "label": "int"}, [{"image": jpeg(n), "label": n % 3} for n in n_all], {}
    for compression in ("zstd", "br:4", "gz", "bz2", "snappy"):
        options = {"compression": compression, "hashes": ["xxh64"]}
        yield compression.partition(":")[0], {"image": "png", "label": "uint8"}, pictures, options
    modes = ["RGB", "L", "RGBA", "CMYK", "1", "LA"]
    pil = {"image": "pil", "label": "str"}
    yield "pil", pil, [{"image": picture(n, modes[n]), "label": NAMES[n % 3]} for n in n_all], {}
    palette = [{"image": picture(n, ["RGB", "P"][n % 2]), "label": NAMES[n % 3]} for n in range(4)]
    yield "palette", pil, palette, {}
    static = [{"x": pixels(n), "y": np.int32(n % 3)} for n in n_all]
    yield "static", {"x": "ndarray:uint8:8,10,3", "y": "int32"}, static, {}
    dynamic = [
        {
            "x": pixels(n, "L" if n % 2 else "RGB", (10 + n, 300 if n == 5 else 8)),
            "y": n % 3,
            "vector": np.arange(3, dtype="f4") + n,
        }
        for n in n_all
    ]
    yield "dynamic", {"x": "ndarray", "y": "int64", "vector": "ndarray:float32"}, dynamic, {}
    yield "values", *_mds_values(), {}
    extra = [row | {"meta": {1, n}} for n, row in enumerate(pictures)]
    yield "pickled_label", {"image": "png", "label": "pkl"}, pictures[:3], {}
    yield "pickled_extra", {**png, "meta": "pkl"}, extra, {}
    pairs = [{"image": [encoded(n, "JPEG"), encoded(n + 1, "JPEG")], "label": n} for n in range(2)]
    yield "several_images", {"image": "jpeg_array", "label": "int"}, pairs, {}
    yield (
        "one_of_list",
        {"image": "list[png]", "label": "int"},
        [row | {"image": [row["image"]]} for row in pictures],
        {},
    )
    several = [{"image": picture(n), "label": np.array([n, n + 1])} for n in range(3)]
    yield "several_labels", {"image": "png", "label": "ndarray:int64"}, several, {}
    for split in ("train", "val"):
        yield f"splits/{split}", png, pictures[:3], {}


def _mds_values() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return columns of every other encoding, and their rows."""
    columns = {"picture": "bytes", "category": "str", "i8": "int8", "u64": "uint64", "f16": "float16", "f64": "float64"}
    columns |= {"big": "str_int", "price": "str_decimal", "ratio": "str_float", "boxes": "json", "caption": "str"}
    columns |= {"raw": "bytes", "mask": "png"}
    rows = [
        {
            "picture": encoded(n),
            "category": NAMES[n % 3],
            "i8": -n,
            "u64": 2**63 + n,
            "f16": 0.5 * n,
            "f64": 1 / 3,
            "big": 10**20 + n,
            "price": Decimal("1.50"),
            "ratio": 0.1,
            "boxes": [[1, 2], [3, n]],
            "caption": f"text {n}",
            "raw": bytes([0, n, 255]),
            "mask": picture(n, "L"),
        }
        for n in range(COUNT)
    ]
    return columns, rows


def _plain(value: Any) -> Any:
    """Return a value for JSON: of an image the checksum of its RGB pixels and its mode, of an array also its shape."""
    if isinstance(value, Image.Image):
        return f"{checksum(np.asarray(value.convert('RGB')))} {value.mode}"
    if isinstance(value, (bytes, memoryview)):
        is_png = bytes(value[:4]) == b"\x89PNG"
        return _plain(Image.open(io.BytesIO(value))) if is_png else f"{len(value)} bytes"
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], Image.Image):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    if hasattr(value, "numpy"):  # a tensor
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return (
            f"{checksum(value)} {list(value.shape)}" if value.dtype == np.uint8 and value.ndim > 1 else value.tolist()
        )
    return value if isinstance(value, (int, float, str, list, dict)) else str(value)


# LitData


def _pair(number: int) -> dict[str, Any]:
    return {"image": jpeg(number), "label": number % 3}


def _litdata(folder: Path) -> dict[str, list[dict[str, Any]]]:
    import litdata
    from litdata.streaming import StreamingDataset
    from litdata.streaming.writer import BinaryWriter

    levels: dict[str, dict[str, Any]] = {
        "batch": {"compression": "zstd", "compression_batch_size": 2},
        "sample": {"compression": "zstd:5", "compression_level": "sample"},
        "chunk": {"compression": "zstd", "compression_level": "chunk"},
    }
    datasets = [(name, [_pair(n) for n in range(COUNT)], options) for name, options in levels.items()]
    rows = [{"image": encoded(n), "label": NAMES[n % 3], "boxes": [[1.5, n]] * (n % 3)} for n in range(COUNT)]
    for name, items, options in [*datasets, ("rows", rows, {"compression": "zstd"})]:
        writer = BinaryWriter(str(folder / name), chunk_size=4, **options)
        for number, item in enumerate(items):
            writer[number] = item
        writer.done()
        writer.merge()
    litdata.optimize(_pair, list(range(COUNT)), output_dir=str(folder / "optimize"), num_workers=1, chunk_size=4)
    found = {}
    for index in sorted(folder.rglob("index.json")):
        with tempfile.TemporaryDirectory() as copy:  # LitData replaces compressed chunks by their content
            local = shutil.copytree(index.parent, Path(copy) / "chunks")
            dataset = StreamingDataset(str(local), shuffle=False)
            found[index.parent.name] = [
                {name: _plain(value) for name, value in dataset[n].items()} for n in range(len(dataset))
            ]
    return found


WRITERS = {"tfrecord": _tensorflow, "mds": _streaming, "litdata": _litdata}

if __name__ == "__main__":
    destination = Path(sys.argv[2])
    shutil.rmtree(destination, ignore_errors=True)
    destination.mkdir(parents=True)
    text = json.dumps(WRITERS[sys.argv[1]](destination), sort_keys=True)
    (destination / "expected.json").write_text(text.replace("}], ", "}],\n") + "\n")
