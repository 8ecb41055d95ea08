"""Detection of image types and sizes, and safe decoding of other fields."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pictures import encode
from PIL import Image

from wds_tools.errors import DecodeError, SampleError
from wds_tools.format.codecs import CODECS, codec_for, decode_field
from wds_tools.format.image_header import ImageInfo, probe, sniff

IMAGES = Path(__file__).parents[2] / "shards" / "sample" / "images"


def exif_of(orientation: int) -> bytes:
    """Build EXIF data with an orientation, without the prefix that it has in a JPEG."""
    return b"MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHIH2x", 0x0112, 3, 1, orientation) + bytes(4)


def encoded(kind: str, mode: str = "RGB", size: tuple[int, int] = (31, 17), **options: Any) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 4), np.uint8)
    image = Image.fromarray(pixels, "RGBA") if mode != "I;16" else Image.new("I;16", size, 777)
    return encode(image if mode in ("RGBA", "I;16") else image.convert(mode), kind, **options)


def chunk(kind: bytes, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", zlib.crc32(kind + payload))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    ihdr = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + ihdr + b"".join(chunks) + chunk(b"IEND", b"")


# --- images ---


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_the_mode_and_size_of_every_kind_of_png_are_detected(mode: str) -> None:
    assert probe(encoded("PNG", mode)) == ImageInfo("png", 31, 17, mode, 1)


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
@pytest.mark.parametrize("lossless", [False, True])
def test_the_mode_and_size_of_webp_are_detected(mode: str, lossless: bool) -> None:
    assert probe(encoded("WEBP", mode, lossless=lossless)) == ImageInfo("webp", 31, 17, mode, 1)


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_the_mode_and_size_of_jpeg_are_detected(mode: str) -> None:
    mcu = 16 if mode == "RGB" else 8  # Pillow halves the chroma of RGB
    assert probe(encoded("JPEG", mode)) == ImageInfo("jpg", 31, 17, mode, 1, 0, mcu, mcu)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_the_size_of_an_image_is_that_after_its_orientation_is_applied(kind: str) -> None:
    for orientation in range(1, 9):
        info = probe(encoded(kind, exif=b"Exif\0\0" + exif_of(orientation)))
        size = (17, 31) if orientation in (5, 6, 7, 8) else (31, 17)
        assert (info.width, info.height, info.orientation) == (*size, orientation)


def test_exif_after_the_pixels_of_a_png_is_read() -> None:
    data = encoded("PNG")
    assert probe(data[:-12] + chunk(b"eXIf", exif_of(6)) + data[-12:]).orientation == 6


def test_every_sample_image_is_detected_as_pillow_detects_it() -> None:
    for path in sorted(IMAGES.rglob("*.*")):
        info = probe(path.read_bytes())
        with Image.open(path) as image:
            assert (info.width, info.height, info.mode) == (*image.size, image.mode)
            assert {"jpg": "JPEG", "png": "PNG"}[info.kind] == image.format


def test_a_memoryview_gives_the_same_result_as_bytes() -> None:
    for kind in ("JPEG", "PNG", "WEBP"):
        assert probe(memoryview(encoded(kind))) == probe(encoded(kind))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"hello, I am text", r"is not a JPEG, PNG, WebP, TIFF, GIF or AVIF: it starts with b'hello, I'"),
        (b"BM", "is not a JPEG, PNG, WebP, TIFF, GIF or AVIF"),
        (b"<svg/>", "is not a JPEG, PNG, WebP, TIFF, GIF or AVIF"),
        (b"RIFF\0\0\0\0WAVE", "is not a JPEG, PNG, WebP, TIFF, GIF or AVIF"),
        (b"\xff\xd8\xff", "JPEG"),
    ],
)
def test_data_that_is_not_an_image_is_refused(data: bytes, message: str) -> None:
    assert sniff(data) in (None, "jpg")
    with pytest.raises(DecodeError, match=message):
        probe(data)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_an_image_truncated_at_any_byte_is_refused(kind: str) -> None:
    data = encoded(kind)
    for length in range(len(data) - (1 if kind == "WEBP" else 0)):  # RIFF may lack its last padding byte
        with pytest.raises(DecodeError, match="is truncated" if kind != "JPEG" and length >= 12 else None):
            probe(data[:length])


@pytest.mark.parametrize("name", ["IHDR", "IDAT", "IEND"])
def test_a_png_with_a_flipped_bit_is_refused(name: str) -> None:
    data = bytearray(encoded("PNG"))
    data[data.index(name.encode()) + 5 if name != "IEND" else -1] ^= 1
    with pytest.raises(DecodeError, match=r"PNG is damaged: chunk b'I.* does not match its checksum"):
        probe(data)


@pytest.mark.parametrize(
    ("bomb", "message"),
    [
        (png(65535, 65535), "4294836225 pixels"),
        (png(10_001, 10_000), "is 10001x10000 = 100,010,000 pixels; allowed are 100,000,000"),
        (encoded("JPEG").replace(b"\0\x11\0\x1f", b"\xff\xff" * 2, 1), "is 65535x65535 = 4,294,836,225 pixels"),
        # Pillow before 13 first looks for the pixels, which this file lacks.
        (b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff\x3f\0" * 2, "268435456 pixels|could not create decoder"),
    ],
)
def test_a_decompression_bomb_is_refused_for_its_size(bomb: bytes, message: str) -> None:
    with pytest.raises(DecodeError, match=message):
        probe(bomb)


def test_a_large_image_within_the_limit_is_probed_without_decoding() -> None:
    assert probe(png(9999, 10_000, chunk(b"IDAT", b"no pixels here"))).width == 9999


@given(
    st.sampled_from(["JPEG", "PNG", "WEBP"]),
    st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=6),
)
def test_a_damaged_image_raises_nothing_but_a_decode_error(kind: str, changes: list[tuple[int, int]]) -> None:
    data = bytearray(encoded(kind, exif=b"Exif\0\0" + exif_of(6)))
    for position, value in changes:
        data[position % len(data)] = value
    try:
        info = probe(data)
    except DecodeError:
        return
    assert min(info.width, info.height) > 0


@given(
    st.sampled_from([b"IHDR", b"eXIf", b"tRNS", b"PLTE", b"zTXt", b"iTXt", b"iCCP", b"pHYs"]),
    st.binary(max_size=40),
)
def test_a_hostile_png_chunk_raises_nothing_but_a_decode_error(kind: bytes, payload: bytes) -> None:
    data = encoded("PNG", "P")
    try:
        info = probe(data[:33] + chunk(kind, payload) + data[33:])
    except DecodeError:
        return
    assert 1 <= info.orientation <= 8


def test_a_jpeg_of_two_components_is_refused_with_the_allowed_numbers() -> None:
    data = encoded("JPEG", "L").replace(struct.pack(">HHB", 17, 31, 1), struct.pack(">HHB", 17, 31, 2), 1)
    with pytest.raises(DecodeError, match="2 components at 8 bits; allowed are 1, 3 or 4 at 8 bits"):
        probe(data)


# --- other fields ---


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cls", 7),
        ("cls", -(2**70)),
        ("txt", "grüß dich"),
        ("caption.txt", "a\nb"),
        ("json", {"a": [1, None, "ü"]}),
        ("boxes.json", []),
        ("xyz", b"\0\xff"),
        ("pyd", b"cos\nsystem\n"),
    ],
)
def test_a_field_decodes_to_the_encoded_value(field: str, value: object) -> None:
    data = codec_for(field).encode(value)
    assert isinstance(data, bytes)
    assert decode_field(field, data, where=lambda: ("s.tar", "k")) == value


@given(hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0)), st.booleans())
def test_any_array_decodes_to_the_encoded_array(array: np.ndarray[Any, Any], fortran: bool) -> None:
    array = np.asfortranarray(array) if fortran else array
    again = CODECS["npy"].decode(CODECS["npy"].encode(array))
    assert again.dtype == array.dtype
    assert again.shape == array.shape
    assert again.tobytes() == array.tobytes()
    assert again.flags.writeable


def npy(header: str, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + content


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x09\x00",
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (-1, -1), }", bytes(8)),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (2,), }", bytes(8)),
        npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }", pickle.dumps([1])),
        npy("{'descr': '|V0', 'fortran_order': False, 'shape': (1,), }"),
        npy("{'descr'"),
        npy("(" * 5000),
        npy("[" * 90),
        npy("  x\n y"),
        npy("{'descr': [('a', 1)], 'fortran_order': False, 'shape': (1,)}"),
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': 1}"),
        npy("{}"),
        npy("{1: 2, [3]: 4}"),
        npy("'" * 3),
    ],
)
def test_a_hostile_array_is_a_sample_error(data: bytes) -> None:
    with pytest.raises(SampleError, match="which is not npy"):
        decode_field("npy", data, where=lambda: ("s.tar", "k"))


def test_an_array_field_opens_neither_zip_files_nor_pickles() -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("a.npy", b"x")
    for data in (target.getvalue(), pickle.dumps([1])):
        with pytest.raises(SampleError, match="which is not npy"):
            decode_field("npy", data, where=lambda: ("s.tar", "k"))


@pytest.mark.filterwarnings("ignore:Reading")  # numpy's warning of a header written by Python 2
@given(st.binary(max_size=60), st.text(alphabet="{}[]()'\"descr:,fotan_hp<8 \n\\#0", max_size=60))
def test_any_bytes_of_an_array_raise_nothing_but_a_sample_error(data: bytes, header: str) -> None:
    for content in (data, b"\x93NUMPY\x01\x00" + data, npy(header)):
        with pytest.raises(SampleError):
            decode_field("npy", content, where=lambda: ("s.tar", "k"))


@pytest.mark.parametrize(
    ("field", "data", "extension"),
    [
        ("cls", b"dog", "cls"),
        ("cls", b"", "cls"),
        ("cls", b"9" * 5000, "cls"),
        ("txt", b"\xff\xfe", "txt"),
        ("json", b"{", "json"),
        ("json", b"[" * 100_000, "json"),
        ("a.json", b"\xff", "json"),
    ],
)
def test_data_of_another_type_is_a_sample_error_that_names_shard_key_and_field(
    field: str, data: bytes, extension: str
) -> None:
    with pytest.raises(SampleError, match=f"field '{field}' holds b'.*which is not {extension}") as caught:
        decode_field(field, data, where=lambda: ("s.tar", "k"))
    assert (caught.value.shard, caught.value.key) == ("s.tar", "k")


def test_types_that_run_code_or_decompress_stay_bytes() -> None:
    for field in ("pyd", "pickle", "pkl", "pth", "pt", "cbor", "mp", "ten", "tb", "gz", "npz", "mp4"):
        assert decode_field(field, b"\x80\x04.", where=lambda: ("s", "k")) == b"\x80\x04.", field


def test_json_is_written_as_compact_utf8() -> None:
    assert codec_for("json").encode({"a": [1, 2]}) == b'{"a":[1,2]}'
    assert json.loads(codec_for("json").encode("ü")) == "ü"
