"""Small files that would cost a lot are refused, or cost no more than their size and the result explain."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sixteen_bits import chunk

import wds_tools as wt
from wds_tools.codecs import probe
from wds_tools.decode import decode_rgb
from wds_tools.errors import DecodeError, ManifestError, SampleError
from wds_tools.index import from_bytes
from wds_tools.manifest import MAX_SAMPLES, Manifest, ShardEntry, from_json, to_json
from wds_tools.render import render
from wds_tools.views import CenterCrop

LOAD = """
import sys, torch, wds_tools as wt
views = {"crop": wt.CenterCrop(224, resize=256), "short": wt.Resize(128)}
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024
before = peak()
try:
    with wt.make_loader(sys.argv[1], batch_size=1, fields=("image", "__key__"), view=views[sys.argv[2]],
                        num_workers=0) as loader:
        shape = tuple(next(iter(loader)).image[0].shape)
except wt.errors.WdsToolsError as error:
    shape = f"{type(error).__name__}: {error}"
print(peak() - before, shape)
"""


def segment(marker: int, data: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(data) + 2) + data


def progressive(side: int, scans: int) -> bytes:
    """Return a JPEG whose scans say in a few bytes that nothing changes."""
    blocks = (-(-side // 8)) ** 2
    runs = "0" + "1" * 14
    bits = runs * -(-blocks // 32_767)
    body = int(bits.ljust(-(-len(bits) // 8) * 8, "1"), 2).to_bytes(-(-len(bits) // 8), "big")
    out = b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64)
    out += segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\x01\x11\x00")
    out += segment(0xC4, b"\x00\x01" + bytes(15) + b"\x00") + segment(0xC4, b"\x10\x01" + bytes(15) + b"\xe0")
    out += segment(0xDA, b"\x01\x01\x00\x00\x00\x00") + bytes(-(-blocks // 8))
    places = [(band, bit) for band in range(1, 64) for bit in range(13, -1, -1)]
    for band, bit in places[: scans - 1]:
        above = 0 if bit == 13 else bit + 1
        out += segment(0xDA, bytes([1, 1, 0, band, band, above << 4 | bit])) + body.replace(b"\xff", b"\xff\x00")
    return out + b"\xff\xd9"


def small_jpeg(**options: object) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (64, 64)).save(out, "JPEG", **options)
    return out.getvalue()


def cut_jpeg(side: int) -> bytes:
    head = small_jpeg()
    frame = head.index(b"\xff\xc0")
    return head[: frame + 5] + struct.pack(">HH", side, side) + head[frame + 9 :]


def many_chunks() -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "PNG")
    png = out.getvalue()
    return png[:33] + chunk(b"tEXt", b"a\0b") * 50_000 + png[33:]


def long_png() -> bytes:
    head = struct.pack(">IIBBBBB", 99_000_000, 1, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1 + 99_000_000 // 8))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def hostile_files() -> dict[str, tuple[bytes, str]]:
    head = small_jpeg()
    return {
        "scans.jpg": (progressive(4000, 300), "301? scans|300 scans"),
        "cut.jpg": (cut_jpeg(9000), "JPEG is cut: "),
        "segments.jpg": (head[:2] + segment(0xFE, b"") * 100_000 + head[2:], "more than 4,096 segments"),
        "fill.jpg": (head[:2] + b"\xff" * 100_000 + head[2:], "more than 4,096 fill bytes"),
        "chunks.png": (many_chunks(), "more than 4,096 chunks"),
        "long.png": (long_png(), "99000000x1 .* 1,048,576 a side"),
        "header.jpg": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 99_999) + b"(" * 99_999, "npy header of"),
    }


@pytest.mark.parametrize("name", hostile_files())
def test_a_file_that_costs_far_more_than_it_holds_is_skipped_when_it_is_packed(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data, reason = hostile_files()[name]
    (tmp_path / "in" / name).write_bytes(data)
    (tmp_path / "in" / "good.jpg").write_bytes(small_jpeg())
    report = wt.pack(tmp_path / "in", tmp_path / "out", images="keep", workers=1)
    assert [skip.path for skip in report.skipped] == [name]
    with pytest.raises(DecodeError, match=reason):
        probe(data)


@pytest.mark.parametrize("name", ["scans.jpg", "cut.jpg", "segments.jpg"])
def test_it_is_refused_when_it_is_loaded_too(name: str) -> None:
    data, reason = hostile_files()[name]
    with pytest.raises(DecodeError, match=reason):
        decode_rgb(memoryview(data), kind="jpg", mode="L", orientation=1)


def test_usual_numbers_of_scans_are_decoded() -> None:
    assert probe(small_jpeg(progressive=True)).width == 64
    data = progressive(1000, 300)
    assert decode_rgb(memoryview(data), kind="jpg", mode="L", orientation=1).shape == (1000, 1000, 3)


def loaded(folder: Path, view: str) -> tuple[int, str]:
    """Load one picture in a process of its own; return the megabytes that took, and what came."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(folder), view], capture_output=True, text=True, check=True, timeout=110
    )
    megabytes, _, told = done.stdout.strip().partition(" ")
    return int(megabytes), told


@pytest.mark.parametrize("size", [(65_500, 1), (1, 65_500)])
def test_a_thin_picture_takes_the_memory_of_its_crop(size: tuple[int, int], tmp_path: Path) -> None:
    out = io.BytesIO()
    Image.new("RGB", size, (9, 99, 199)).save(out, "JPEG")
    with wt.ShardWriter(tmp_path / "s-%06d.tar") as writer:
        writer.write({"__key__": "thin", "jpg": out.getvalue()})
    megabytes, told = loaded(tmp_path, "crop")
    assert told == "(3, 224, 224)"
    assert megabytes < 200
    megabytes, told = loaded(tmp_path, "short")
    assert "8384000" in told
    assert "allowed are 100,000,000 pixels" in told
    assert megabytes < 200


@pytest.mark.parametrize("size", [(3000, 2), (2, 3000)])
def test_the_crop_of_a_thin_picture_has_the_pixels_of_the_whole_one(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    regions = CenterCrop(112, resize=128).regions(np.array([size[0]]), np.array([size[1]]), np.zeros((1, 0)))
    left, top, width, height = needed = regions.needed()[0].tolist()
    crop = render(pixels[top : top + height, left : left + width], regions, 0, needed)
    resized = tuple(regions.resize[0].tolist())
    whole = np.asarray(Image.fromarray(pixels).resize(resized[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    y, x = regions.corner[0].tolist()
    assert abs(crop.astype(int) - whole[:, y : y + 112, x : x + 112]).max() <= 1


def index_of(rows: int, *, key: str = "a", shard_bytes: int = 2**50, fields: tuple[str, ...] = ("jpg",)) -> bytes:
    """Return an index of equal rows, which take nearly no room."""
    numbers = {"jpg.offset": np.int64, "jpg.size": np.int64, "jpg.xxh3": np.uint64, "label": np.int64}
    columns = {name: pa.array(np.zeros(rows, kind)) for name, kind in numbers.items()}
    columns |= {name: pa.array(np.ones(rows, np.int32)) for name in ("width", "height", "orientation")}
    columns |= {
        name: pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), [word])
        for name, word in (("key", key), ("mode", "RGB"))
    }
    about = {"version": 1, "shard": "s.tar", "shard_bytes": shard_bytes, "shard_xxh3": "0" * 32, "fields": fields}
    sink = io.BytesIO()
    pq.write_table(
        pa.table(columns).replace_schema_metadata({"wds_tools": json.dumps(about)}), sink, compression="zstd"
    )
    return sink.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda: index_of(3_000_000), "would become .* in memory"),
        (lambda: index_of(1, key="x" * 200_000_000), "would become .* in memory"),
        (lambda: index_of(1000, shard_bytes=100 * 512), "1,000 samples, and its shard 51,200 bytes"),
        (lambda: index_of(1, fields=("jpg",) * 1000), "a field is named twice"),
    ],
)
def test_an_index_that_claims_more_than_its_bytes_explain_is_refused(data, reason: str) -> None:
    with pytest.raises(ManifestError, match=reason):
        from_bytes(data(), name="s.parquet")


def test_a_long_key_that_many_rows_share_is_held_once() -> None:
    assert len(set(map(id, from_bytes(index_of(10_000, key="x" * 1_000_000), name="s.parquet").keys))) == 1


@pytest.mark.parametrize(("samples", "size"), [(2**61, 2**62), (2, 1023), (MAX_SAMPLES + 1, 2**62)])
def test_a_manifest_that_claims_more_samples_than_its_bytes_hold_is_refused(samples: int, size: int) -> None:
    def text(samples: int, size: int) -> str:
        return to_json(Manifest((ShardEntry("s.tar", samples, size, "0" * 32, "s.parquet", 9, "0" * 32),), {}))

    assert from_json(text(1, 1024)).samples == 1
    with pytest.raises(ManifestError, match=r"each takes 512 at least|allowed are 1,099,511,627,776"):
        from_json(text(samples, size))


def test_an_array_without_size_is_an_error_of_ours() -> None:
    head = b"{'descr': '|S0', 'fortran_order': False, 'shape': (1099511627776, 1099511627776, 3), }\n"
    from wds_tools.codecs import decode_field

    with pytest.raises(SampleError, match="does not fit"):
        decode_field("npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head, shard="s", key="k")
