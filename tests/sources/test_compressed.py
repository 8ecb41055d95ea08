"""Compressed tar archives: read as a stream, in bounded memory, and errors that name the archive."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import webdataset
from pictures import encode
from PIL import Image

import wds_tools as wt
from wds_tools.errors import OptionError, SourceError
from wds_tools.sources import base, files
from wds_tools.sources.base import SourceChangedError
from wds_tools.sources.detect import open_source


def jpeg(seed: int) -> bytes:
    return encode(Image.fromarray(np.random.default_rng(seed).integers(0, 255, (24, 32, 3), np.uint8)), "JPEG")


def tar_of(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def samples(count: int, first: int = 0) -> bytes:
    files = {}
    for number in range(first, first + count):
        files |= {f"{number:03d}.jpg": jpeg(number), f"{number:03d}.cls": b"%d" % (number % 3)}
    return tar_of(files)


def read(folder: Path) -> list[tuple[bytes, bytes]]:
    urls = sorted(map(str, folder.glob("*.tar")))
    return [(sample["jpg"], sample["cls"]) for sample in webdataset.WebDataset(urls, shardshuffle=False)]


PLAIN = samples(20)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let archives of a few kilobytes have many chunks and groups."""
    monkeypatch.setattr(files, "CHUNK_BYTES", 3000)
    monkeypatch.setattr(files, "WINDOW_BYTES", 12_000)


@pytest.mark.parametrize(
    ("suffix", "codec"), [(".tar.gz", "gzip"), (".tgz", "gzip"), (".TAR.ZST", "zstd"), (".tar.zstd", "zstd")]
)
def test_reshard_keeps_every_sample_in_order(tmp_path: Path, small_chunks: None, suffix: str, codec: str) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pa.compress(PLAIN, codec, asbytes=True))
    report = wt.reshard(path, tmp_path / "dst", shard_bytes=15_000, workers=1)
    assert len(report.manifest.shards) > 2
    assert read(tmp_path / "dst") == [(jpeg(number), b"%d" % (number % 3)) for number in range(20)]


@pytest.mark.parametrize(("suffix", "codec"), [(".tar.bz2", bz2), (".tbz2", bz2), (".tar.xz", lzma), (".txz", lzma)])
def test_archives_of_bzip2_and_xz_are_read_or_a_truncated_one_is_named(tmp_path: Path, suffix: str, codec: Any) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(codec.compress(PLAIN))
    wt.reshard(path, tmp_path / "dst", workers=1)
    assert read(tmp_path / "dst") == [(jpeg(number), b"%d" % (number % 3)) for number in range(20)]
    path.write_bytes(codec.compress(PLAIN)[:-500])
    with pytest.raises(SourceError, match=rf"a{suffix} cannot be .*truncated"):
        wt.reshard(path, tmp_path / "other", workers=1)


def test_packing_shuffles_and_reads_every_sample_once(tmp_path: Path, small_chunks: None) -> None:
    for number in range(2):
        data = samples(20, 20 * number)
        (tmp_path / f"a{number}.tar.gz").write_bytes(
            gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :])
        )
    wt.pack(f"{tmp_path}/a*.tar.gz", tmp_path / "dst", shard_bytes=30_000, workers=1, images="keep")
    found, expected = read(tmp_path / "dst"), [(jpeg(number), b"%d" % (number % 3)) for number in range(40)]
    assert sorted(found) == sorted(expected)
    assert found != expected


def test_records_of_one_window_are_decompressed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(PLAIN))
    opened = []
    stream = pa.CompressedInputStream
    monkeypatch.setattr(files.pa, "CompressedInputStream", lambda *a: opened.append(a) or stream(*a))
    source = open_source(tmp_path / "a.tar.gz")
    listing = source.scan()
    for entry in reversed(listing.inputs):
        source.read(entry)
    assert len({entry.group for entry in listing.inputs}) == 1
    assert len(opened) == 3  # to detect the format, to list it, to read it


def test_a_chunk_that_was_evicted_is_decompressed_again(tmp_path: Path, small_chunks: None) -> None:
    contents = [np.random.default_rng(number).bytes(40_000) for number in range(2)]
    paths = tuple(tmp_path / f"{number}.tar.gz" for number in range(2))
    for path, content in zip(paths, contents, strict=True):
        path.write_bytes(gzip.compress(content))
    archives = files.TarFiles(paths)
    for number, start in ((0, 39_500), (1, 0), (0, 39_500), (0, 0)):  # the cache has 24,000 bytes
        assert archives.slice(number, start, 40_000) == contents[number][start:]


def test_class_folders_in_a_compressed_archive_are_packed(tmp_path: Path) -> None:
    for name in ("cat", "fig"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        (tmp_path / "photos" / name / "1.jpg").write_bytes(jpeg(1))
    with tarfile.open(tmp_path / "photos.tgz", "w:gz") as archive:
        archive.add(tmp_path / "photos", "photos")
    manifest = wt.pack(tmp_path / "photos.tgz", tmp_path / "dst", workers=1).manifest
    assert (manifest.samples, manifest.classes) == (2, ("cat", "fig"))


def test_one_compressed_archive_per_class_gives_the_names_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    for name in ("n01440764", "n01443537"):
        data = tar_of({f"{name}_1.JPEG": jpeg(1)})
        (tmp_path / "src" / f"{name}.tar.gz").write_bytes(gzip.compress(data))
    assert wt.pack(tmp_path / "src", tmp_path / "dst", workers=1).manifest.classes == ("n01440764", "n01443537")


def test_an_archive_at_a_url_is_read(tmp_path: Path) -> None:
    with fsspec.open("memory://compressed/a.tar.zst", "wb") as file:
        file.write(pa.compress(PLAIN, "zstd", asbytes=True))
    wt.reshard("memory://compressed/a.tar.zst", tmp_path / "dst", workers=1)
    assert len(read(tmp_path / "dst")) == 20


@pytest.mark.parametrize(("suffix", "codec"), [(".gz", "gzip"), (".zst", "zstd")])
def test_a_truncated_archive_is_an_error_that_names_it(tmp_path: Path, suffix: str, codec: str) -> None:
    path = tmp_path / f"a.tar{suffix}"
    path.write_bytes(pa.compress(PLAIN, codec, asbytes=True)[:-300])
    with pytest.raises(SourceError, match=rf"a.tar{suffix} cannot be decompressed after byte .*download it again"):
        wt.reshard(path, tmp_path / "dst")


def test_a_compressed_truncated_archive_is_an_error(tmp_path: Path) -> None:
    end = len(PLAIN.rstrip(b"\0"))
    last = -(-end // 512) * 512  # end of the last member
    for stop in (end - 10, last, last + 512):
        (tmp_path / "a.tar.gz").write_bytes(gzip.compress(PLAIN[:stop]))
        with pytest.raises(SourceError, match=r"the shard was truncated|may have been truncated"):
            wt.reshard(tmp_path / "a.tar.gz", tmp_path / "dst")


def test_data_after_the_end_of_a_compressed_archive_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(PLAIN + b"more"))
    with pytest.raises(SourceError, match="data after the end of the archive"):
        wt.reshard(tmp_path / "a.tar.gz", tmp_path / "dst")


def test_a_member_larger_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_RECORD_BYTES", 2000)
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar_of({"a.jpg": bytes(4000), "a.cls": b"1"})))
    with pytest.raises(SourceError, match=r"has a member of 4,000 bytes; allowed are 2,000"):
        wt.reshard(tmp_path / "a.tar.gz", tmp_path / "dst")


def test_an_archive_that_was_replaced_while_it_is_packed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(PLAIN))
    source = open_source(path)
    entry = source.scan().inputs[-1]
    path.write_bytes(gzip.compress(samples(2)))
    again = open_source(path, kind="webdataset")
    with pytest.raises(SourceChangedError, match="changed while it was packed"):
        again.read(entry)


def test_a_compressed_archive_with_the_name_of_a_plain_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(gzip.compress(PLAIN))
    with pytest.raises(SourceError, match=r"is compressed, but its name does not end in .tar.gz"):
        wt.pack(tmp_path / "a.tar", tmp_path / "dst")


def test_index_names_reshard_for_a_compressed_archive(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(PLAIN))
    with pytest.raises(OptionError, match=r"`wds-tools reshard`, which also reads compressed ones"):
        wt.index_shards(str(tmp_path / "a.tar.gz"))
    assert base.WINDOW_BYTES == files.WINDOW_BYTES
