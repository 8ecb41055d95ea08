"""Small files that claim large contents are refused, or cost no more than their real contents."""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import preloaded
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from pictures import encode
from PIL import Image
from sixteen_bits import chunk

import wds_tools as wt
from wds_tools.errors import DecodeError, ManifestError, SampleError, StoreError
from wds_tools.format.image_header import probe
from wds_tools.format.index import from_bytes
from wds_tools.format.manifest import MAX_SAMPLES, Manifest, ShardEntry, from_json, seal, to_json
from wds_tools.images.decode import decode_rgb
from wds_tools.images.resize import render_region
from wds_tools.images.views import CenterCrop
from wds_tools.inspection.stats import format_stats
from wds_tools.reading import shardset
from wds_tools.reading.opening import open_shards

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
    """Return a small JPEG with many scans, which change nothing but must all be decoded."""
    blocks = (-(-side // 8)) ** 2
    runs = "0" + "1" * 14
    bits = runs * -(-blocks // 32_767)
    body = int(bits.ljust(-(-len(bits) // 8) * 8, "1"), 2).to_bytes(-(-len(bits) // 8), "big")
    out = b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64)
    out += segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\x01\x11\x00")
    out += segment(0xC4, b"\x00\x01" + bytes(15) + b"\x00") + segment(0xC4, b"\x10\x01" + bytes(15) + b"\xe0")
    out += segment(0xDA, b"\x01\x01\x00\x00\x00\x00") + bytes(-(-blocks // 8))
    refinements = [(band, bit) for band in range(1, 64) for bit in range(13, -1, -1)]
    for band, bit in refinements[: scans - 1]:
        above = 0 if bit == 13 else bit + 1
        out += segment(0xDA, bytes([1, 1, 0, band, band, above << 4 | bit])) + body.replace(b"\xff", b"\xff\x00")
    return out + b"\xff\xd9"


def small_jpeg(**options: object) -> bytes:
    return encode(Image.new("RGB", (64, 64)), "JPEG", **options)


def truncated_jpeg(side: int) -> bytes:
    """Return a small JPEG whose header states a larger size."""
    head = small_jpeg()
    frame = head.index(b"\xff\xc0")
    return head[: frame + 5] + struct.pack(">HH", side, side) + head[frame + 9 :]


def png_of_many_chunks() -> bytes:
    png = encode(Image.new("RGB", (8, 8)), "PNG")
    return png[:33] + chunk(b"tEXt", b"a\0b") * 50_000 + png[33:]


def wide_png() -> bytes:
    head = struct.pack(">IIBBBBB", 99_000_000, 1, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1 + 99_000_000 // 8))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def hostile_files() -> dict[str, tuple[bytes, str]]:
    """Return file name -> content and a pattern of the error."""
    head = small_jpeg()
    return {
        "scans.jpg": (progressive(4000, 300), "301? scans|300 scans"),
        "cut.jpg": (truncated_jpeg(9000), "JPEG is truncated: "),
        "segments.jpg": (head[:2] + segment(0xFE, b"") * 100_000 + head[2:], "more than 4,096 segments"),
        "fill.jpg": (head[:2] + b"\xff" * 100_000 + head[2:], "more than 4,096 fill bytes"),
        "chunks.png": (png_of_many_chunks(), "more than 4,096 chunks"),
        "wide.png": (wide_png(), "99000000x1 .* 1,048,576 per side"),
        "header.jpg": (b"\x93NUMPY\x02\x00" + struct.pack("<I", 99_999) + b"(" * 99_999, "npy header of"),
    }


@pytest.mark.parametrize("name", hostile_files())
def test_a_hostile_image_is_skipped_when_packing(name: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data, reason = hostile_files()[name]
    (tmp_path / "in" / name).write_bytes(data)
    (tmp_path / "in" / "good.jpg").write_bytes(small_jpeg())
    report = wt.pack(tmp_path / "in", tmp_path / "out", images="keep", workers=1)
    assert [skip.path for skip in report.skipped] == [name]
    with pytest.raises(DecodeError, match=reason):
        probe(data)


@pytest.mark.parametrize("name", ["scans.jpg", "cut.jpg", "segments.jpg"])
def test_a_hostile_image_is_refused_by_the_decoder_too(name: str) -> None:
    data, reason = hostile_files()[name]
    with pytest.raises(DecodeError, match=reason):
        decode_rgb(memoryview(data), kind="jpg", mode="L", orientation=1)


def test_a_warning_of_pillow_about_a_large_image_is_a_named_error_where_warnings_are_errors() -> None:
    head = struct.pack(">IIBBBBB", 9_999, 9_999, 1, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    with pytest.raises(DecodeError, match="99980001 pixels"):
        decode_rgb(memoryview(data), kind="png", mode="L", orientation=1)


def test_jpegs_with_up_to_300_scans_are_decoded() -> None:
    assert probe(small_jpeg(progressive=True)).width == 64
    data = progressive(1000, 300)
    assert decode_rgb(memoryview(data), kind="jpg", mode="L", orientation=1).shape == (1000, 1000, 3)


def load_in_new_process(folder: Path, view: str) -> tuple[int, str]:
    """Load one image; return the megabytes of memory that this took, and the shape or the error."""
    done = preloaded.run(["-c", LOAD, folder, view])
    assert done.returncode == 0, done.stderr
    megabytes, _, result = done.stdout.strip().partition(" ")
    return int(megabytes), result


@pytest.mark.parametrize("size", [(65_500, 1), (1, 65_500)])
@pytest.mark.torture_except("size0")
def test_a_crop_of_a_thin_image_takes_little_memory_and_a_full_resize_is_refused(
    size: tuple[int, int], tmp_path: Path
) -> None:
    with wt.ShardWriter(tmp_path / "s-%06d.tar") as writer:
        writer.write({"__key__": "thin", "jpg": encode(Image.new("RGB", size, (9, 99, 199)), "JPEG")})
    megabytes, result = load_in_new_process(tmp_path, "crop")
    assert result == "(3, 224, 224)"
    assert megabytes < 200
    megabytes, result = load_in_new_process(tmp_path, "short")
    assert "8384000" in result
    assert "allowed are 100,000,000 pixels" in result
    assert megabytes < 200


@pytest.mark.parametrize("size", [(3000, 2), (2, 3000)])
@pytest.mark.torture_except("size0")
def test_the_crop_of_a_thin_image_has_the_pixels_of_the_full_resize(size: tuple[int, int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), np.uint8)
    regions = CenterCrop(112, resize=128).regions(np.array([size[0]]), np.array([size[1]]), np.zeros((1, 0)))
    left, top, width, height = needed = regions.needed()[0].tolist()
    crop = render_region(pixels[top : top + height, left : left + width], regions, 0, needed)
    resized = tuple(regions.resize[0].tolist())
    whole = np.asarray(Image.fromarray(pixels).resize(resized[::-1], Image.Resampling.BILINEAR)).transpose(2, 0, 1)
    y, x = regions.corner[0].tolist()
    assert abs(crop.astype(int) - whole[:, y : y + 112, x : x + 112]).max() <= 1


def index_of(rows: int, *, key: str = "a", shard_bytes: int = 2**50, fields: tuple[str, ...] = ("jpg",)) -> bytes:
    """Return an index of equal rows, which compress to a few bytes."""
    numbers = {"jpg.offset": np.int64, "jpg.size": np.int64, "jpg.xxh3": np.uint64, "label": np.int64}
    columns = {name: pa.array(np.zeros(rows, kind)) for name, kind in numbers.items()}
    columns |= {name: pa.array(np.ones(rows, np.int32)) for name in ("width", "height", "orientation")}
    columns |= {
        name: pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), [value])
        for name, value in (("key", key), ("mode", "RGB"))
    }
    metadata = {"version": 1, "shard": "s.tar", "shard_bytes": shard_bytes, "shard_xxh3": "0" * 32, "fields": fields}
    sink = io.BytesIO()
    pq.write_table(
        pa.table(columns).replace_schema_metadata({"wds_tools": json.dumps(metadata)}), sink, compression="zstd"
    )
    return sink.getvalue()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda: index_of(3_000_000), "would become .* in memory"),
        (lambda: index_of(1, key="x" * 72_000_000), "would become .* in memory"),
        (lambda: index_of(1000, shard_bytes=100 * 512), "1,000 samples, but its shard has 51,200 bytes"),
        (lambda: index_of(1, fields=("jpg",) * 1000), "a field is listed twice"),
    ],
)
def test_an_index_that_is_far_larger_in_memory_or_contradicts_itself_is_refused(data, reason: str) -> None:
    with pytest.raises(ManifestError, match=reason):
        from_bytes(data(), name="s.parquet")


def test_a_key_that_many_rows_share_is_in_memory_once() -> None:
    assert len(set(map(id, from_bytes(index_of(10_000, key="x" * 1_000), name="s.parquet").keys))) == 1


def test_an_index_with_gigabytes_of_keys_is_refused() -> None:
    with pytest.raises(ManifestError, match="10,000,030,000 characters of keys"):
        from_bytes(index_of(10_000, key="x" * 1_000_000), name="s.parquet")


@pytest.mark.parametrize(("samples", "size"), [(2**61, 2**62), (2, 1023), (MAX_SAMPLES + 1, 2**62)])
def test_a_manifest_with_more_samples_than_fit_into_its_shards_is_refused(samples: int, size: int) -> None:
    def text(samples: int, size: int) -> str:
        return to_json(Manifest((ShardEntry("s.tar", samples, size, "0" * 32, "s.parquet", 9, "0" * 32),), {}))

    assert from_json(text(1, 1024)).samples == 1
    with pytest.raises(ManifestError, match=r"a sample takes at least 512|allowed are 1,099,511,627,776"):
        from_json(text(samples, size))


def test_an_array_of_items_without_bytes_is_a_sample_error() -> None:
    head = b"{'descr': '|S0', 'fortran_order': False, 'shape': (1099511627776, 1099511627776, 3), }\n"
    from wds_tools.format.codecs import decode_field

    with pytest.raises(SampleError, match="does not match the 0 bytes"):
        decode_field("npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head, where=lambda: ("s", "k"))


# `info` and `verify` with a hostile dataset


@pytest.fixture(scope="module")
def packed(packed_few: Path) -> Path:
    """Return a small dataset, also to `packed_copy`."""
    return packed_few


COMMAND = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from wds_tools.cli import main
main()
"""


def run_with_4_gib(name: str, folder: Path) -> tuple[int, str]:
    """Run a command of wds-tools with 4 GiB of address space; return its exit code and its output."""
    done = preloaded.run(["-c", COMMAND, name, folder], imports=preloaded.COMMANDS)
    return done.returncode, done.stdout + done.stderr


def edit_and_seal(folder: Path, **changed: object) -> None:
    """Change entries of a manifest and give it a valid checksum."""
    path = folder / "manifest.json"
    path.write_text(seal({**json.loads(path.read_text()), **changed}), encoding="utf-8")


LONG = "x" * 3_000_000
LONG_ENTRIES = {  # name of an entry -> value, pattern of the error
    "samples": (LONG, "contradicts itself: samples is 'xxx"),
    "fields": ([LONG], "fields are"),
    "classes": ({LONG: 1}, "classes are"),
    "shards": ([{LONG: 1}], "unexpected keyword argument 'xxx"),
    "images": ([1] * 1_000_000, "breaks the format"),
}


@pytest.mark.parametrize("name", LONG_ENTRIES)
def test_an_error_about_megabytes_in_a_manifest_is_short(packed_copy: Path, name: str) -> None:
    value, message = LONG_ENTRIES[name]
    edit_and_seal(packed_copy, **{name: value})
    with pytest.raises(ManifestError, match=message) as raised:
        wt.describe(packed_copy)
    assert len(str(raised.value)) < 25_000
    (damage,) = wt.verify(packed_copy, progress=False).damages
    assert len(str(damage)) < 25_000


@pytest.mark.parametrize("fields", [{LONG: 1}, {f"field{number}": 1 for number in range(100_000)}])
def test_many_or_long_fields_that_no_index_has_are_one_short_damage(packed_copy: Path, fields: dict[str, int]) -> None:
    edit_and_seal(packed_copy, fields=fields)
    (damage,) = wt.verify(packed_copy, progress=False).damages
    assert "it records the field counts" in damage.reason
    assert len(str(damage)) < 3_000


def test_a_key_of_megabytes_is_shortened_in_an_error() -> None:
    error = ManifestError("bad", key=LONG)
    assert str(error).startswith("key xxx")
    assert "2,999,000 characters left out" in str(error)
    assert len(str(error)) < 2_000


@pytest.mark.parametrize("name", ["manifest.json", "shard-000001.parquet"])
@pytest.mark.torture_except("shard-000001.parquet")
def test_a_file_that_is_far_too_large_is_refused_before_it_is_read(packed_copy: Path, name: str) -> None:
    os.truncate(packed_copy / name, 100 << 30)  # a sparse file, which takes no disk space
    code, text = run_with_4_gib("info", packed_copy)
    assert code == 1
    assert f"{name} has 107,374,182,400 bytes" in text
    code, text = run_with_4_gib("verify", packed_copy)
    assert code == 1
    assert text.startswith("damage: ")
    assert f"{name} has 107,374,182,400 bytes" in text


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
@pytest.mark.parametrize("name", ["manifest.json", "shard-000001.parquet", "shard-000001.tar"])
def test_a_pipe_a_device_or_a_folder_is_an_error_and_does_not_block(packed_copy: Path, name: str, kind: str) -> None:
    path = packed_copy / name
    path.unlink()
    {"pipe": lambda: os.mkfifo(path), "device": lambda: path.symlink_to("/dev/zero"), "folder": path.mkdir}[kind]()
    reason = "it is a folder, a pipe or a device"
    if name == "manifest.json":
        with pytest.raises(StoreError, match=reason):
            wt.verify(packed_copy, progress=False)
    else:
        assert reason in wt.verify(packed_copy, progress=False).unchecked["shard-000001.tar"]


def hostile_dataset(folder: Path, shards: int, rows: int) -> None:
    """Write indexes that take 12 MB of memory per 100,000 rows each, and their manifest, without shards."""
    data = index_of(rows, shard_bytes=rows * 512)
    digest = xxhash.xxh3_128_hexdigest(data)
    entries = []
    for number in range(shards):
        (folder / f"{number}.parquet").write_bytes(data)
        entries.append(ShardEntry(f"{number}.tar", rows, rows * 512, "0" * 32, f"{number}.parquet", len(data), digest))
    (folder / "manifest.json").write_text(to_json(Manifest(tuple(entries), {"jpg": shards * rows})))


@pytest.mark.torture
def test_the_indexes_of_many_shards_are_not_in_memory_at_the_same_time(tmp_path: Path) -> None:
    hostile_dataset(tmp_path, shards=4, rows=200_000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 300_000
    code = """
import sys, wds_tools as wt
def peak():
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024
found = []
for number in range(2):
    {"info": wt.describe, "verify": wt.verify}[sys.argv[1]](sys.argv[2 + number])
    found.append(peak())
print(found[1] - found[0])
"""
    (tmp_path / "one").mkdir()
    hostile_dataset(tmp_path / "one", shards=1, rows=200_000)
    for name in ("info", "verify"):  # the peak for four shards is only slightly higher than that for one
        done = preloaded.run(["-c", code, name, tmp_path / "one", tmp_path], imports=preloaded.COMMANDS)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) < 50, done.stdout


def test_the_memory_of_cached_indexes_is_limited(monkeypatch: pytest.MonkeyPatch, packed: Path) -> None:
    limit = 3 * open_shards(packed).index(0).memory_bytes
    monkeypatch.setattr(shardset, "MAX_INDEX_BYTES", limit)
    shards = open_shards(packed)
    numbers = range(len(shards.manifest.shards))
    indexes = [shards.index(number) for number in numbers]
    assert [index.shard_bytes for index in indexes] == [entry.bytes for entry in shards.manifest.shards]
    kept = [number for number in reversed(numbers) if shards.index(number) is indexes[number]]
    assert kept == list(reversed(numbers))[: len(kept)]  # the last ones; others are read again
    assert 1 < len(kept) < len(numbers)
    assert sum(indexes[number].memory_bytes for number in kept) <= limit


def test_names_and_modes_of_a_hostile_index_are_escaped_and_shortened_in_the_text(tmp_path: Path) -> None:
    numbers = np.zeros(1, np.int64)
    name = "a\x1b[2J" + "y" * 100_000
    columns = {f"{name}.{part}": pa.array(numbers) for part in ("offset", "size")}
    columns[f"{name}.xxh3"] = pa.array(numbers.astype(np.uint64))
    columns |= {"key": pa.array(["k"]), "mode": pa.array(["RGB\x1b[31m"]), "label": pa.array(numbers)}
    columns |= {word: pa.array(np.ones(1, np.int32)) for word in ("width", "height", "orientation")}
    metadata = {"version": 1, "shard": "s.tar", "shard_bytes": 512, "shard_xxh3": "0" * 32, "fields": [name]}
    table = pa.table(columns).replace_schema_metadata({"wds_tools": json.dumps(metadata)})
    pq.write_table(table, tmp_path / "s.parquet")
    text = format_stats(wt.describe(tmp_path / "s.tar"))
    assert "\x1b" not in text
    assert r"RGB\x1b[31m 1" in text
    assert max(map(len, text.splitlines())) < 200
