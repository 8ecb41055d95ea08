"""Values are encoded as the same bytes as by webdataset's writer, and formats that run code are refused."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from webdataset.writer import default_handlers, encode_based_on_extension1

from wds_tools.errors import SampleError
from wds_tools.packing.encode import encode_field

RNG = np.random.default_rng(0)
COLOUR = RNG.integers(0, 256, (6, 9, 3), np.uint8)
GREY = COLOUR[..., 0]


VALUES = [
    ("cls", 3),
    ("cls", "cat"),
    ("index", np.int64(-7)),
    ("count", 12),
    ("txt", "héllo"),
    ("html", "<p>"),
    ("bin", b"\0\xff"),
    ("xyz", "text"),
    ("jpg", b"not looked at"),
    ("npy", np.arange(6, dtype=np.float32).reshape(2, 3)),
    ("jpg", COLOUR),
    ("jpg", GREY),
    ("jpg", Image.fromarray(COLOUR)),
    ("jpeg", COLOUR / 255.0),
    ("img", COLOUR),
    ("png", COLOUR),
    ("seg.png", GREY),
    ("png", (COLOUR / 255.0).astype(np.float32)),
    ("png", np.array([[-0.0009, 1.0009], [0.5, 0.9999]])),
    ("ppm", COLOUR),
    ("tif", COLOUR),
]


def test_encoded_bytes_equal_those_of_webdataset() -> None:
    for name, value in VALUES:
        assert encode_field(name, value) == encode_based_on_extension1(value, name, default_handlers), name


def test_json_decodes_to_the_same_value_as_json_of_webdataset() -> None:
    value = {"b": [1, 2.5, None], "a": "é"}
    assert json.loads(encode_field("json", value)) == value
    assert json.loads(encode_based_on_extension1(value, "json", default_handlers)) == value


def test_gz_compresses_as_webdataset_does_and_always_to_the_same_bytes() -> None:
    for name, value in (("json.gz", [1]), ("txt.gz", "x"), ("bin.gz", b"\1")):
        theirs = gzip.decompress(encode_based_on_extension1(value, name, default_handlers))
        assert gzip.decompress(encode_field(name, value)).replace(b" ", b"") == theirs.replace(b" ", b"")
        assert encode_field(name, value)[4:8] == bytes(4)  # the header has no time


def test_npz_is_read_back_unchanged() -> None:
    data = encode_field("npz", {"a": GREY, "b": torch.arange(3)})
    with np.load(io.BytesIO(data), allow_pickle=False) as read:
        assert (read["a"] == GREY).all()
        assert read["b"].tolist() == [0, 1, 2]


def test_an_image_tensor_has_its_channels_first() -> None:
    tensor = torch.from_numpy(COLOUR).permute(2, 0, 1)
    assert encode_field("png", tensor) == encode_field("png", COLOUR)
    assert encode_field("png", tensor[0]) == encode_field("png", GREY)
    assert encode_field("png", tensor[:1]) == encode_field("png", GREY)
    assert encode_field("png", tensor.float() / 255) == encode_field("png", COLOUR / np.float32(255))


def test_a_tensor_can_be_a_number_an_array_or_a_label() -> None:
    assert encode_field("cls", torch.tensor(3)) == b"3"
    assert encode_field("npy", torch.arange(3)) == encode_field("npy", np.arange(3))


def test_webp_keeps_every_pixel() -> None:
    with Image.open(io.BytesIO(encode_field("webp", COLOUR))) as image:
        assert image.format == "WEBP"
        assert (np.asarray(image) == COLOUR).all()


def test_alpha_is_kept_where_the_format_has_it() -> None:
    pixels = RNG.integers(0, 256, (4, 4, 4), np.uint8)
    for kind in ("png", "webp"):
        with Image.open(io.BytesIO(encode_field(kind, pixels))) as image:
            assert image.mode == "RGBA"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("pyd", {"a": 1}, "would be a pickle, which runs code"),
        ("pickle", [1], "would be a pickle"),
        ("pth", torch.zeros(2), "would be a pickle"),
        ("npy", np.array([object()]), "allow_pickle"),
        ("npz", {"a": np.array([object()])}, "would be a pickle"),
        ("npz", [1], "a dictionary of arrays"),
        ("cls", 3.7, "cannot hold float"),
        ("cls", None, "cannot hold NoneType"),
        ("cls", torch.tensor([1, 2]), "cannot hold Tensor"),
        ("txt", 5, "requires text, not int"),
        ("json", {1, 2}, "not JSON serializable"),
        ("txt", "\ud800", "surrogates not allowed"),
        ("mp", {"a": 1}, "there is no encoder for .mp"),
        ("xyz", 5, "there is no encoder for .xyz"),
        ("jpg", ["file", "jpg"], "an image must be a PIL image"),
        (
            "jpg",
            COLOUR.astype(np.int64),
            "its type is int64; allowed are uint8, float32, float64, and uint16 with one channel",
        ),
        ("jpg", COLOUR.astype(np.float32), "allowed are 0 to 1, or uint8"),
        ("jpg", np.full((2, 2), np.nan), "from nan to nan"),
        ("jpg", np.zeros((3, 8, 8), np.uint8), "shape"),
        ("jpg", np.zeros((0, 8, 3), np.uint8), "shape"),
        ("jpg", np.zeros((4, 4, 4), np.uint8), "RGBA"),
        ("png", torch.zeros((8, 8, 3), dtype=torch.uint8), "shape"),
    ],
)
def test_an_invalid_value_is_refused_with_the_reason(name: str, value: Any, message: str) -> None:
    with pytest.raises(SampleError, match=name) as caught:
        encode_field(name, value)
    assert message in str(caught.value)
    assert "give bytes, or a value of a supported type" in str(caught.value)


def test_bytes_of_any_field_are_stored_unchanged_even_of_pickles() -> None:
    assert encode_field("pyd", b"x") == b"x"
    assert encode_field("mp", bytearray(b"y")) == b"y"
    assert encode_field("jpg", memoryview(b"z")) == b"z"
