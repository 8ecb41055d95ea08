"""TIFF, GIF and AVIF: probed, indexed, packed and loaded where Pillow reads them."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures import encode
from PIL import Image, features

import wds_tools as wt
from wds_tools.errors import DecodeError
from wds_tools.format.image_header import probe, sixteen_bit_mode, sniff
from wds_tools.images.decode import decode_rgb, decode_stored

KINDS = ["tif", "gif", *(["avif"] if features.check("avif") else [])]
FORMATS = {"tif": "TIFF", "gif": "GIF", "avif": "AVIF"}


def image(seed: int = 0, mode: str = "RGB") -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (6, 4, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    return Image.fromarray(pixels).convert(mode)


def encoded(kind: str, picture: Image.Image | None = None, **options: Any) -> bytes:
    return encode(picture or image(), FORMATS[kind], **options)


def opened(data: bytes) -> np.ndarray:
    with Image.open(io.BytesIO(data)) as decoded:
        return np.asarray(decoded.convert("RGB"))


@pytest.mark.parametrize("kind", KINDS)
def test_type_and_size_are_found(kind: str) -> None:
    data = encoded(kind)
    info = probe(data)
    assert sniff(data) == info.kind == kind
    assert (info.width, info.height, info.orientation, info.restart) == (32, 48, 1, 0)
    assert probe(memoryview(data)) == info


@pytest.mark.parametrize("kind", KINDS)
def test_the_pixels_are_those_of_pillow(kind: str) -> None:
    data = encoded(kind)
    info = probe(data)
    pixels = decode_rgb(memoryview(data), kind=kind, mode=info.mode, orientation=info.orientation)
    assert np.array_equal(pixels, opened(data))
    box = decode_rgb(memoryview(data), kind=kind, mode=info.mode, orientation=1, box=(5, 7, 11, 13))
    assert np.array_equal(box, opened(data)[7:20, 5:16])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "gif"])
def test_the_orientation_is_applied_once(kind: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    options = {"tiffinfo": {274: orientation}} if kind == "tif" else {"exif": exif, "quality": 100}
    upright, info = image(), probe(data := encoded(kind, **options))
    turned = {
        1: lambda p: p, 2: lambda p: p[:, ::-1], 3: lambda p: p[::-1, ::-1], 4: lambda p: p[::-1],
        5: lambda p: p.transpose(1, 0, 2), 6: lambda p: p.transpose(1, 0, 2)[:, ::-1],
        7: lambda p: p[::-1, ::-1].transpose(1, 0, 2), 8: lambda p: p.transpose(1, 0, 2)[::-1],
    }  # fmt: skip
    expected = turned[orientation](np.asarray(upright)).astype(int)
    pixels = decode_rgb(memoryview(data), kind=kind, mode=info.mode, orientation=info.orientation)
    assert (info.height, info.width) == expected.shape[:2] == pixels.shape[:2]
    assert abs(pixels - expected).mean() < 12  # AVIF is lossy; another orientation gives 80


@pytest.mark.parametrize("mode", ["RGB", "L", "1", "P", "RGBA", "CMYK"])
def test_tiffs_of_every_8_bit_mode_are_read(mode: str) -> None:
    for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate"):
        data = encoded("tif", image(mode=mode), compression=compression)
        assert probe(data).mode == mode
        pixels = decode_rgb(memoryview(data), kind="tif", mode=mode, orientation=1)
        assert np.array_equal(pixels, opened(data)), compression


def test_a_grey_tiff_of_16_bits_keeps_them_as_a_stored_field_and_is_refused_as_an_image() -> None:
    values = (np.arange(48 * 32, dtype=np.uint16) * 40).reshape(48, 32)
    data = encoded("tif", Image.fromarray(values))
    assert (probe(data).mode, sixteen_bit_mode(data)) == ("I;16", "I;16")
    assert np.array_equal(decode_stored(memoryview(data))[:, :, 0], values)
    with pytest.raises(DecodeError, match=r"16 bits per channel, .*the stored field 'tif'"):
        decode_rgb(memoryview(data), kind="tif", mode="I;16", orientation=1)


def test_a_float_tiff_is_a_stored_field_only() -> None:
    values = np.linspace(0, 1, 48 * 32, dtype=np.float32).reshape(48, 32)
    data = encoded("tif", Image.fromarray(values))
    assert np.array_equal(decode_stored(memoryview(data))[:, :, 0], values)
    with pytest.raises(DecodeError, match="TIFF of mode F"):
        probe(data)
    with pytest.raises(DecodeError, match="mode F has more than 8 bits"):
        decode_rgb(memoryview(data), kind="tif", mode="F", orientation=1)


def deep_colour_tiff() -> bytes:
    """Return a TIFF of 2x2 pixels with 16 bits in each of three channels, which Pillow cannot write."""
    pixels = np.arange(12, dtype="<u2").tobytes()
    entries = [(256, 3, 1, 2), (257, 3, 1, 2), (258, 3, 3, 8 + len(pixels)), (259, 3, 1, 1), (262, 3, 1, 2)]
    entries += [(273, 4, 1, 8), (277, 3, 1, 3), (278, 3, 1, 2), (279, 4, 1, len(pixels)), (284, 3, 1, 1)]
    bits = np.array([16, 16, 16], "<u2").tobytes() + bytes(2)
    ifd = len(entries).to_bytes(2, "little")
    for entry in entries:
        ifd += struct.pack("<HHII", *entry)
    return b"II*\0" + (8 + len(pixels) + len(bits)).to_bytes(4, "little") + pixels + bits + ifd + bytes(4)


def test_a_tiff_of_deep_colours_is_refused_instead_of_reduced() -> None:
    data = deep_colour_tiff()
    assert opened(data).shape == (2, 2, 3)
    for read in (probe, decode_stored, lambda d: decode_rgb(d, kind="tif", mode="RGB", orientation=1)):
        with pytest.raises(DecodeError, match="16 bits in each of 3 channels, which Pillow reduces to 8"):
            read(memoryview(data))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keep", [9, 40, 0.5])
def test_truncated_files_are_refused(kind: str, keep: float) -> None:
    whole = encoded(kind)
    data = memoryview(whole[: int(keep if keep > 1 else keep * len(whole))])
    with pytest.raises(DecodeError):
        decode_rgb(data, kind=kind, mode=probe(data).mode, orientation=1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_of_a_damaged_header_names_the_type(kind: str) -> None:
    with pytest.raises(DecodeError, match=f"^starts as {kind.upper()}, but its header is damaged or truncated$"):
        probe(encoded(kind)[:12])


def test_a_tiff_of_many_bands_is_named_as_such() -> None:
    out = io.BytesIO()
    Image.new("RGB", (4, 4)).save(out, "TIFF")
    channels = struct.pack("<HHII", 277, 3, 1, 3)
    data = out.getvalue().replace(channels, struct.pack("<HHII", 277, 3, 1, 13))  # as EuroSAT's
    with pytest.raises(DecodeError, match="is a TIFF with 13 channels of 8 bits, which Pillow does not read: convert"):
        probe(data)


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    for number, kind in enumerate([*KINDS, "tiff"]):
        path = tmp_path / "photos" / f"class{number % 2}" / f"{number}.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded("tif" if kind == "tiff" else kind, image(number)))
    return tmp_path / "photos"


@pytest.mark.parametrize("images", ["keep", "crop-ready", "resize"])
def test_a_folder_of_them_is_packed_and_loaded(photographs: Path, tmp_path: Path, images: str) -> None:
    count = len(KINDS) + 1
    options = {"resize": 16} if images == "resize" else {}
    report = wt.pack(photographs, tmp_path / "dst", images=images, workers=1, **options)
    assert (report.packed, report.skipped) == (count, ())
    assert set(report.manifest.fields) - {"cls", "json"} == ({"jpg"} if options else set(KINDS))
    assert wt.verify(tmp_path / "dst").ok
    with wt.make_loader(tmp_path / "dst", batch_size=count, view=wt.RandomResizedCrop(8), num_workers=0) as loader:
        assert next(iter(loader)).image.shape == (count, 3, 8, 8)


def test_a_stored_field_is_decoded(tmp_path: Path) -> None:
    mask = image(mode="P")
    with wt.ShardWriter(tmp_path / "a-%d.tar") as writer:
        writer.write({"__key__": "a", "jpg": image(), "mask.gif": encoded("gif", mask), "tif": encoded("tif")})
    with wt.make_loader(tmp_path, batch_size=1, fields=("mask.gif", "tif"), num_workers=0) as loader:
        batch = next(iter(loader))
    assert batch.mask_gif[0].shape == (1, 48, 32)
    assert batch.tif[0].shape == (3, 48, 32)
