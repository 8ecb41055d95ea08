"""A shard and its index are correct for every reader; if writing fails, neither exists."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import tarfile
import threading
from pathlib import Path

import numpy as np
import preloaded
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from wds_tools.errors import SampleError
from wds_tools.format import tar
from wds_tools.format.image_header import ImageInfo
from wds_tools.format.index import ABSENT, NO_LABEL, from_bytes
from wds_tools.format.manifest import ImageStats
from wds_tools.format.sample import Sample
from wds_tools.format.totals import count_fields, image_stats, merge_stats
from wds_tools.packing.shard_file import CHUNK_BYTES, ShardFile
from wds_tools.storage.commit import final_name

REPOSITORY = Path(__file__).parents[2]
SAMPLES = [
    Sample("000", {"jpg": b"\xff" * 1000, "cls": b"3", "json": b"{}"}),
    Sample("001", {"png": b"", "cls": b"0", "json": b"[" + bytes(1536 - 2) + b"]"}),
    Sample("dir/002", {"jpg": b"x" * 512, "seg.png": b"mask"}),
]


def write(path: Path, samples: list[Sample] = SAMPLES) -> ShardFile:
    with ShardFile(path) as shard:
        for number, sample in enumerate(samples):
            shard.write(sample, label=number or None, image=ImageInfo("jpg", 10 + number, 20, "RGB", 1))
    return shard


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_pythons_tarfile_reads_back_every_member(tmp_path: Path) -> None:
    write(tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar") as archive:
        read = {member.name: archive.extractfile(member).read() for member in archive}
    assert read == {f"{sample.key}.{name}": data for sample in SAMPLES for name, data in sample.fields.items()}


def test_gnu_tar_reads_back_every_member(tmp_path: Path) -> None:
    write(tmp_path / "a.tar")
    out = tmp_path / "out"
    out.mkdir()
    done = subprocess.run(
        ["tar", "-xf", "../a.tar"], cwd=out, check=True, capture_output=True, env={**os.environ, "LC_ALL": "C"}
    )
    assert done.stderr == b""
    for sample in SAMPLES:
        for name, data in sample.fields.items():
            assert (out / f"{sample.key}.{name}").read_bytes() == data


def test_the_strict_reader_finds_members_in_the_order_written_and_the_end(tmp_path: Path) -> None:
    write(tmp_path / "a.tar")
    members = list(tar.walk(memoryview((tmp_path / "a.tar").read_bytes()), shard="a.tar"))
    assert [member.name for member in members] == [
        f"{sample.key}.{name}" for sample in SAMPLES for name in sample.fields
    ]


def test_the_index_has_offset_and_checksum_of_every_field(tmp_path: Path) -> None:
    write(tmp_path / "a.tar")
    data = (tmp_path / "a.tar").read_bytes()
    index = from_bytes((tmp_path / "a.parquet").read_bytes(), name="a.parquet")
    assert index.keys == [sample.key for sample in SAMPLES]
    for name, columns in index.fields.items():
        for row, sample in enumerate(SAMPLES):
            offset, size = int(columns.offset[row]), int(columns.size[row])
            if name not in sample.fields:
                assert offset == ABSENT
                continue
            assert data[offset : offset + size] == sample.fields[name]
            assert int(columns.xxh3[row]) == xxhash.xxh3_64_intdigest(sample.fields[name])


def test_label_and_image_size_are_in_the_index(tmp_path: Path) -> None:
    index = write(tmp_path / "a.tar").index
    assert index.label.tolist() == [NO_LABEL, 1, 2]
    assert index.width.tolist() == [10, 11, 12]
    assert index.height.tolist() == [20, 20, 20]
    assert index.mode == ["RGB"] * 3


def test_the_entry_has_lengths_and_checksums_of_both_files(tmp_path: Path) -> None:
    entry = write(tmp_path / "a.tar").entry
    for name, size, checksum in (
        (entry.name, entry.bytes, entry.xxh3),
        (entry.index, entry.index_bytes, entry.index_xxh3),
    ):
        data = (tmp_path / name).read_bytes()
        assert (len(data), xxhash.xxh3_128_hexdigest(data)) == (size, checksum)
    assert entry.samples == 3
    assert names(tmp_path) == ["a.parquet", "a.tar"]


def test_equal_samples_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "a.tar")
    for name in names(tmp_path / "one"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_length_and_count_are_known_while_writing(tmp_path: Path) -> None:
    with ShardFile(tmp_path / "a.tar") as shard:
        assert (shard.samples, shard.bytes) == (0, 0)
        shard.write(SAMPLES[0])
        assert (shard.samples, shard.bytes) == (1, 3 * 512 + 1024 + 512 + 512)
        assert shard.entry is None


def test_an_exception_leaves_neither_shard_nor_index(tmp_path: Path) -> None:
    shard = ShardFile(tmp_path / "a.tar")

    def fail() -> None:
        with shard:
            shard.write(SAMPLES[0])
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert names(tmp_path) == []
    assert shard.entry is None


def test_a_shard_without_samples_leaves_no_file(tmp_path: Path) -> None:
    with ShardFile(tmp_path / "a.tar") as shard:
        pass
    assert names(tmp_path) == []
    assert shard.entry is None


def test_the_index_is_written_after_the_shard(tmp_path: Path) -> None:
    # Killed at the second rename: the shard exists, but its index does not.
    script = (
        "import os, pathlib\n"
        "from wds_tools.packing.shard_file import ShardFile\nfrom wds_tools.format.sample import Sample\n"
        "replace = pathlib.Path.replace\n"
        "def only_tar(self, target):\n"
        "    if str(target).endswith('.parquet'): os.kill(os.getpid(), 9)\n"
        "    return replace(self, target)\n"
        "pathlib.Path.replace = only_tar\n"
        "with ShardFile('a.tar') as shard: shard.write(Sample('0', {'txt': b'x'}))"
    )
    done = preloaded.run(["-c", script], cwd=tmp_path, imports=preloaded.COMMANDS)
    assert done.returncode == -signal.SIGKILL
    assert [final_name(name) or name for name in names(tmp_path)] == ["a.parquet", "a.tar"]
    assert (tmp_path / "a.tar").exists()
    assert not (tmp_path / "a.parquet").exists()


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "import resource\n"
        "from wds_tools.packing.shard_file import ShardFile\nfrom wds_tools.format.sample import Sample\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try:\n"
        "    with ShardFile('a.tar') as shard:\n"
        "        for key in range(9): shard.write(Sample(str(key), {'bin': bytes(300_000)}))\n"
        "except OSError: raise SystemExit(3)"
    )
    done = preloaded.run(["-c", script], cwd=tmp_path, imports=preloaded.COMMANDS)
    assert done.returncode == 3
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("a.b", "jpg"),
        ("a", "JPG"),
        ("", "jpg"),
        ("a", ""),
        ("a/", "jpg"),
        (".a", "jpg"),
        ("a\0b", "jpg"),
        ("a\udcff", "jpg"),
        ("a", "j/pg"),
    ],
)
def test_a_name_that_would_be_split_differently_is_refused(tmp_path: Path, key: str, field: str) -> None:
    with ShardFile(tmp_path / "a.tar") as shard:
        shard.write(SAMPLES[0])
        with pytest.raises(SampleError, match=r"a\.tar"):
            shard.write(Sample(key, {"cls": b"1", field: b"x"}))
    assert shard.entry.samples == 1


def test_nothing_of_a_refused_sample_is_written(tmp_path: Path) -> None:
    write(tmp_path / "a.tar", SAMPLES[:1])
    with ShardFile(tmp_path / "b.tar") as shard:
        shard.write(SAMPLES[0], image=ImageInfo("jpg", 10, 20, "RGB", 1))
        with pytest.raises(SampleError):
            shard.write(Sample("b", {"cls": b"1", "JPG": b"x"}))
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_a_duplicate_key_is_refused(tmp_path: Path) -> None:
    with ShardFile(tmp_path / "a.tar") as shard:
        shard.write(SAMPLES[0])
        with pytest.raises(SampleError, match=r"shard a.tar, key 000: was already written"):
            shard.write(SAMPLES[0])


def test_a_sample_without_fields_is_refused(tmp_path: Path) -> None:
    with ShardFile(tmp_path / "a.tar") as shard, pytest.raises(SampleError, match="no fields"):
        shard.write(Sample("a", {}))


def large(path: Path, samples: list[Sample]) -> ShardFile:
    """Write samples; check entry, index and files, and that no thread is left."""
    shard = fill(path, samples)
    data = path.read_bytes()
    assert (shard.entry.bytes, shard.entry.xxh3) == (len(data), xxhash.xxh3_128_hexdigest(data))
    for name, columns in shard.index.fields.items():
        for sample, offset, size in zip(samples, columns.offset.tolist(), columns.size.tolist(), strict=True):
            assert data[offset : offset + size] == sample.fields[name]
    assert writing_threads() == []
    return shard


def fill(path: Path, samples: list[Sample]) -> ShardFile:
    with ShardFile(path) as shard:
        for sample in samples:
            shard.write(sample)
    return shard


def writing_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("wds_tools-write")]


def random_samples(count: int, size: int, fields: int = 1) -> list[Sample]:
    data = np.random.default_rng(0).bytes(count * size)
    return [
        Sample(f"{row:06d}", {f"f{field}": data[row * size + field : (row + 1) * size] for field in range(fields)})
        for row in range(count)
    ]


@pytest.mark.parametrize(
    ("count", "size", "fields"),
    [(40, CHUNK_BYTES // 8, 2), (3, 2 * CHUNK_BYTES + 1, 1), (9_000, 3, 1), (2, 1500, 1500)],
    ids=["several in a chunk", "several chunks in one", "more than a call takes", "many fields"],
)
def test_length_and_checksum_of_shards_of_many_chunks_are_right(
    tmp_path: Path, count: int, size: int, fields: int
) -> None:
    large(tmp_path / "a.tar", random_samples(count, size, fields))


def test_a_partial_write_of_the_system_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writev = os.writev
    monkeypatch.setattr(os, "writev", lambda file, parts: writev(file, [*parts[:1], parts[1][:7]]))
    large(tmp_path / "a.tar", random_samples(30, CHUNK_BYTES // 8, 2))


def test_a_chunk_is_written_while_the_next_one_is_gathered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writev, begun, may_end = os.writev, threading.Event(), threading.Event()

    def slow(file: int, parts: list[bytes]) -> int:
        begun.set()
        assert may_end.wait(300)
        return writev(file, parts)

    monkeypatch.setattr(os, "writev", slow)
    with ShardFile(tmp_path / "a.tar") as shard:
        shard.write(Sample("0", {"bin": bytes(CHUNK_BYTES)}))
        assert begun.wait(300)
        shard.write(Sample("1", {"bin": b"x"}))  # would wait forever if it were blocked by the first chunk
        may_end.set()
    assert shard.entry.samples == 2


@pytest.mark.parametrize("more", [0, 1])
def test_a_write_that_fails_on_the_thread_is_raised_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    def fail(file: int, parts: list[bytes]) -> int:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "writev", fail)
    with pytest.raises(OSError, match="broken"):
        fill(tmp_path / "a.tar", [Sample(str(key), {"bin": bytes(CHUNK_BYTES)}) for key in range(1 + more)])
    assert names(tmp_path) == []
    assert writing_threads() == []


text = st.text(st.characters(codec="utf-8", exclude_characters="\0./"), min_size=1, max_size=60)
words = st.text("abcdefghijklmnopqrstuvwxyz0123456789_", min_size=1, max_size=8)


@settings(deadline=None)
@given(
    st.dictionaries(
        text, st.dictionaries(words, st.binary(max_size=1500), min_size=1, max_size=3), min_size=1, max_size=6
    )
)
def test_any_sample_is_read_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, samples: dict[str, dict[str, bytes]]
) -> None:
    path = tmp_path_factory.mktemp("any") / "a.tar"
    with ShardFile(path) as shard:
        for key, fields in samples.items():
            shard.write(Sample(key, fields))
    with tarfile.open(path) as archive:
        read = [(member.name, archive.extractfile(member).read()) for member in archive]
    assert read == [(f"{key}.{name}", data) for key, fields in samples.items() for name, data in fields.items()]
    assert shard.entry.bytes == path.stat().st_size
    assert shard.entry.xxh3 == xxhash.xxh3_128_hexdigest(path.read_bytes())


def test_fields_are_counted_by_the_samples_that_have_them(tmp_path: Path) -> None:
    index = write(tmp_path / "a.tar").index
    assert count_fields(index) == {"jpg": 2, "cls": 2, "json": 2, "png": 1, "seg.png": 1}


def test_image_stats_are_the_range_and_ignore_unknown_sizes(tmp_path: Path) -> None:
    with ShardFile(tmp_path / "a.tar") as shard:
        for key, image in (
            ("a", ImageInfo("jpg", 10, 90, "RGB", 1)),
            ("b", None),
            ("c", ImageInfo("jpg", 30, 50, "L", 1)),
        ):
            shard.write(Sample(key, {"jpg": b"x"}), image=image)
    assert image_stats(shard.index) == ImageStats(10, 30, 50, 90)
    assert np.count_nonzero(shard.index.width) == 2


def test_merged_stats_span_all_shards() -> None:
    assert merge_stats([ImageStats(1, 5, 2, 6), None, ImageStats(3, 9, 1, 4)]) == ImageStats(1, 9, 1, 6)
    assert merge_stats([None]) is None
