"""The tar reader and writer compared with Python's tarfile and GNU tar, and with damaged archives."""

from __future__ import annotations

import io
import mmap
import os
import shutil
import struct
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from wds_tools.errors import OptionError, ShardError, TruncatedShardError
from wds_tools.format.tar import (
    BLOCK,
    END,
    MAX_NAME_BYTES,
    MAX_OCTAL_SIZE,
    MAX_PAX_BYTES,
    Member,
    build_header,
    member_bytes,
    padded,
    walk,
)

QUICK = settings(suppress_health_check=list(HealthCheck))
CONTENTS = {
    "a/0001.jpg": b"\xff\xd8" * 700,
    "a/0001.cls": b"7",
    "a/0001.json": b'{"path":"x"}',
    "ü" * 60 + "/0002.png": bytes(range(256)) * 5,  # needs a pax header
    "b/0003.txt": b"t" * BLOCK,
}


def archive(contents: dict[str, bytes]) -> bytes:
    """Write an archive as the packer does."""
    parts = [build_header(name, len(data)) + data.ljust(padded(len(data)), b"\0") for name, data in contents.items()]
    return b"".join(parts) + END


def members(data: bytes | mmap.mmap, *, complete: bool = False) -> list[Member]:
    return list(walk(memoryview(data), shard="s.tar", complete=complete))


def members_or_error(data: bytes | bytearray) -> list[Member] | ShardError:
    try:
        return list(walk(memoryview(data), shard="s.tar"))
    except ShardError as error:
        return error


def by_tarfile(archive: Path | bytes) -> list[tuple[str, int, int, bool]]:
    options = {"fileobj": io.BytesIO(archive)} if isinstance(archive, bytes) else {"name": archive}
    with tarfile.open(mode="r:", encoding="utf-8", errors="surrogateescape", **options) as tar:
        return [
            (
                info.name,
                info.offset_data if info.isreg() else 0,
                info.size if info.isreg() else 0,
                info.isreg(),
            )
            for info in tar
        ]


def by_walk(data: bytes) -> list[tuple[str, int, int, bool]]:
    # tarfile removes the slash after the name of a folder.
    return [
        (m.name.rstrip("/") if not m.is_file else m.name, m.offset if m.is_file else 0, m.size, m.is_file)
        for m in members(data)
    ]


def gnu_tar(*arguments: str | Path, folder: Path) -> str:
    run = subprocess.run(["tar", *map(str, arguments)], cwd=folder, capture_output=True, check=True)
    assert not run.stderr, run.stderr.decode()
    return os.fsdecode(run.stdout)


def with_checksum(block: bytes) -> bytes:
    """Return a changed header block with the right checksum."""
    blank = block[:148] + b" " * 8 + block[156:]
    return block[:148] + b"%06o\0 " % sum(blank) + block[156:]


def header(name: bytes = b"a.jpg", *, size: bytes = b"%011o\0" % 0, kind: bytes = b"0") -> bytes:
    """Build a header block with any size field and type."""
    block = bytearray(build_header("x", 0))
    block[0:100] = name.ljust(100, b"\0")
    block[124:136] = size.ljust(12, b"\0")
    block[156:157] = kind
    return with_checksum(bytes(block))


def pax(records: bytes, kind: bytes = b"x", stated: int | None = None) -> bytes:
    size = len(records) if stated is None else stated
    return header(b"pax", size=b"%011o\0" % size, kind=kind) + records.ljust(padded(len(records)), b"\0")


names = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=300),
    st.binary(min_size=1, max_size=300).map(lambda raw: raw.replace(b"\0", b"x").decode("utf-8", "surrogateescape")),
    st.integers(90, 110).map(lambda length: "n" * length),
).filter(lambda name: not name.endswith("/"))
sizes = st.one_of(st.integers(0, 2048), st.integers(MAX_OCTAL_SIZE - 2, MAX_OCTAL_SIZE + 2), st.integers(0, 2**62))


class Sparse:
    """A buffer of any length: the given bytes, then zeros, which take no memory."""

    def __init__(self, start: bytes, length: int) -> None:
        self.start, self.length = start, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> bytes:
        begin, stop, _ = part.indices(self.length)
        assert stop - begin <= 1 << 20, "read more than a header at once"
        return self.start[begin:stop].ljust(stop - begin, b"\0")


# --- writing ---


@QUICK
@given(name=names, size=sizes)
def test_a_header_with_any_name_and_size_can_be_read(name: str, size: int) -> None:
    head = build_header(name, size)
    buffer = Sparse(head, len(head) + padded(size) + BLOCK)
    first = next(walk(buffer, shard="s.tar"))  # type: ignore[arg-type]
    assert first == Member(name, 0, len(head), size, is_file=True)
    assert member_bytes(name, size) == len(head) + padded(size)


@QUICK
@given(name=names, size=st.integers(0, 5000))
def test_tarfile_reads_a_header_with_any_name(name: str, size: int) -> None:
    data = archive({name: b"d" * size})
    assert by_tarfile(data) == [(name, len(build_header(name, size)), size, True)]


@QUICK
@given(st.dictionaries(names, st.binary(max_size=1200), max_size=8))
def test_an_archive_reads_back_as_it_was_written(contents: dict[str, bytes]) -> None:
    data = archive(contents)
    found = members(data)
    assert {m.name: data[m.offset : m.offset + m.size] for m in found} == contents
    ends = [m.offset + padded(m.size) for m in found]
    assert [m.header_offset for m in found] == [0, *ends][: len(found)]
    assert len(data) == sum(member_bytes(name, len(value)) for name, value in contents.items()) + len(END)


def test_equal_members_give_equal_bytes() -> None:
    assert archive(CONTENTS) == archive(dict(CONTENTS))
    assert build_header("a.jpg", 5)[136:148] == b"0" * 11 + b"\0"  # mtime 0


@pytest.mark.parametrize("name", ["", "a\0b", "folder/", "\ud800", "x" * (MAX_NAME_BYTES + 1)])
def test_a_name_that_readers_would_not_return_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="cannot be stored; allowed are"):
        build_header(name, 1)


def test_a_name_of_the_maximum_length_is_stored() -> None:
    name = "x" * MAX_NAME_BYTES
    assert members(archive({name: b"1"}))[0].name == name


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(OptionError, match="-1 bytes"):
        build_header("a", -1)


def test_gnu_tar_unpacks_a_written_archive(tmp_path: Path) -> None:
    raw_name = b"raw\xff\xfe.bin".decode("utf-8", "surrogateescape")
    contents = {**CONTENTS, "long/" + "n" * 200 + ".jpg": b"long", raw_name: b"bytes", "empty.txt": b""}
    (tmp_path / "s.tar").write_bytes(archive(contents))
    (tmp_path / "out").mkdir()
    gnu_tar("-xf", "../s.tar", folder=tmp_path / "out")
    found = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert found == contents


@pytest.mark.parametrize("size", [MAX_OCTAL_SIZE, MAX_OCTAL_SIZE + 1, 9 * 2**30 + 13])
def test_a_member_of_about_8_gib_is_read_by_walk_tarfile_and_gnu_tar(tmp_path: Path, size: int) -> None:
    path = tmp_path / "s.tar"
    with path.open("wb") as file:  # a sparse file, which takes no disk space
        file.write(build_header("big.bin", size))
        file.truncate(file.tell() + padded(size))
        file.seek(0, os.SEEK_END)
        file.write(build_header("after.txt", 3) + b"abc".ljust(BLOCK, b"\0") + END)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        buffer = memoryview(mapped)
        found = [(m.name, m.offset, m.size, m.is_file) for m in walk(buffer, shard="s.tar")]
        buffer.release()
    assert [(name, length) for name, _, length, _ in found] == [("big.bin", size), ("after.txt", 3)]
    assert by_tarfile(path) == found
    listed = gnu_tar("--list", "--verbose", "--seek", "-f", path, folder=tmp_path).splitlines()
    assert [line.split()[2] for line in listed] == [str(size), "3"]


# --- archives of other programs ---


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree")
    (root / "class a" / "deep").mkdir(parents=True)
    (root / "class a" / "deep" / "0001.jpg").write_bytes(os.urandom(3000))
    (root / "class a" / "0001.cls").write_bytes(b"3")
    (root / "class a" / "empty.txt").write_bytes(b"")
    (root / "class a" / "exact.bin").write_bytes(bytes(BLOCK))
    (root / "class a" / "link.jpg").symlink_to("deep/0001.jpg")
    (root / "class a" / "same.cls").hardlink_to(root / "class a" / "0001.cls")
    os.mkfifo(root / "class a" / "pipe")
    return root


def add_long_names(tree: Path, target: Path) -> None:
    shutil.copytree(tree, target, symlinks=True, ignore=shutil.ignore_patterns("pipe"))
    for name in ("ä" * 70 + ".jpg", "f" * 99 + ".cls", "g" * 101 + ".json"):
        (target / name).write_bytes(name.encode())
    (target / ("d" * 90) / ("e" * 90)).mkdir(parents=True)
    (target / ("d" * 90) / ("e" * 90) / "0002.jpg").write_bytes(b"deep")
    (target / "to").symlink_to("t" * 150)
    (target / os.fsdecode(b"latin-\xe4.txt")).write_bytes(b"latin")


@pytest.mark.parametrize("kind", ["v7", "oldgnu", "gnu", "ustar", "pax"])
def test_walk_finds_the_same_members_of_gnu_tar_archives_as_tarfile(tree: Path, tmp_path: Path, kind: str) -> None:
    excluded = ["--exclude=pipe"] if kind == "v7" else []  # v7 cannot store pipes
    gnu_tar("-cf", tmp_path / "s.tar", f"--format={kind}", *excluded, "class a", folder=tree)
    found = by_walk((tmp_path / "s.tar").read_bytes())
    assert found == by_tarfile(tmp_path / "s.tar")
    listed = gnu_tar("-tf", "s.tar", folder=tmp_path).splitlines()
    assert [name.rstrip("/") for name in listed] == [name for name, *_ in found]
    assert sum(is_file for *_, is_file in found) == 4  # the hard link has no bytes of its own


@pytest.mark.parametrize("kind", ["oldgnu", "gnu", "pax"])
def test_walk_finds_the_same_long_names_in_gnu_tar_archives_as_tarfile(tree: Path, tmp_path: Path, kind: str) -> None:
    add_long_names(tree, tmp_path / "t")
    gnu_tar("-cf", "s.tar", f"--format={kind}", "t", folder=tmp_path)
    found = by_walk((tmp_path / "s.tar").read_bytes())
    assert found == by_tarfile(tmp_path / "s.tar")
    data = (tmp_path / "s.tar").read_bytes()
    for name, offset, size, is_file in found:
        if is_file:
            assert (tmp_path / name).read_bytes() == data[offset : offset + size]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_archive_written_by_tarfile_is_read(form: int) -> None:
    for length in (1, 99, 100, 101, 155, 190):
        name = "p/" * (length // 4) + "n" * (length - length // 4 * 2)
        assert len(name) == length
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w", format=form) as tar:
            for extra in ("", "2"):
                info = tarfile.TarInfo(name + extra)
                info.size, info.mtime = 700, 1.5
                tar.addfile(info, io.BytesIO(b"x" * 700))
        found = by_walk(target.getvalue())
        assert found == by_tarfile(target.getvalue())
        assert [name for name, *_ in found] == [name, name + "2"]


def test_a_size_in_base_256_is_read() -> None:
    data = header(size=b"\x80" + (1000).to_bytes(11, "big")) + bytes(1024) + END
    assert members(data) == [Member("a.jpg", 0, BLOCK, 1000, is_file=True)]


def test_a_checksum_over_signed_characters_is_accepted() -> None:
    name = b"\x7f\x80\xff\xc3\xa4.jpg"
    block = header(name)
    signed = sum(struct.unpack("512b", block[:148] + b" " * 8 + block[156:]))
    assert members(block[:148] + b"%06o\0 " % signed + block[156:] + END)[0].name == os.fsdecode(name)


def test_the_largest_checksum_is_accepted() -> None:
    block = bytearray(header(b"\xff" * 100))
    block[157:257] = block[345:445] = b"\xff" * 100
    assert sum(block) > 0o100000
    assert members(with_checksum(bytes(block)) + END)[0].size == 0


def test_the_prefix_of_a_ustar_name_is_prepended() -> None:
    block = bytearray(header(b"0001.jpg"))
    block[345:350] = b"train"
    assert members(with_checksum(bytes(block)) + END)[0].name == "train/0001.jpg"


def test_a_comment_in_a_global_header_is_skipped() -> None:
    data = pax(b"13 comment=x\n", kind=b"g") + header() + END
    assert members(data) == [Member("a.jpg", 0, 3 * BLOCK, 0, is_file=True)]


def test_zeros_after_the_end_are_allowed() -> None:
    data = archive(CONTENTS)
    assert members(data + bytes(10_240)) == members(data) == members(data + bytes(3))


def test_an_archive_of_known_length_needs_no_zero_blocks() -> None:
    data = archive(CONTENTS)
    assert members(data[: -len(END)], complete=True) == members(data)
    assert members(b"", complete=True) == []


# --- damage ---


@pytest.mark.parametrize("bits", [1, 8])
@pytest.mark.torture_except("1")
def test_any_flipped_bit_in_a_header_is_an_error_with_its_offset_or_changes_nothing(bits: int) -> None:
    """One bit of each byte, another one for each position within eight bytes; or all bits."""
    data = archive(CONTENTS)
    expected = members(data)
    damaged = bytearray(data)
    unchanged = 0
    for member in expected:
        for byte in range(member.header_offset, member.offset):
            if is_pax_content(data, byte):
                continue
            for bit in range(byte, byte + bits):
                damaged[byte] ^= 1 << bit % 8
                found = members_or_error(damaged)
                if isinstance(found, ShardError):
                    assert (found.shard, found.offset) == ("s.tar", byte // BLOCK * BLOCK)
                else:
                    assert found == expected
                    unchanged += 1
                damaged[byte] ^= 1 << bit % 8
    assert bytes(damaged) == data
    assert unchanged < 5 * bits * len(expected)  # only the blanks and leading zeros of the checksum field


def is_pax_content(data: bytes, byte: int) -> bool:
    """Return whether a byte belongs to a pax record, which has no checksum in tar."""
    start = byte // BLOCK * BLOCK
    return data[start + 257 : start + 262] != b"ustar"


@QUICK
@given(st.data())
def test_a_flipped_bit_in_a_pax_record_is_an_error_or_leaves_all_offsets_unchanged(data: st.DataObject) -> None:
    intact = archive({"ü" * 60 + ".jpg": b"1" * 600, "b.jpg": b"2"})
    byte = data.draw(st.integers(BLOCK, 2 * BLOCK - 1))
    damaged = bytearray(intact)
    damaged[byte] ^= 1 << data.draw(st.integers(0, 7))
    found = members_or_error(damaged)
    if isinstance(found, ShardError):
        assert found.offset is not None
        assert found.offset <= byte
    else:
        assert [(m.offset, m.size) for m in found] == [(m.offset, m.size) for m in members(intact)]


def test_any_flipped_bit_after_the_last_member_is_an_error() -> None:
    data = archive({"a.jpg": b"1"}) + bytes(BLOCK)
    for byte in range(2 * BLOCK, len(data)):
        damaged = bytearray(data)
        damaged[byte] ^= 1 << (byte % 8)
        with pytest.raises(ShardError) as caught:
            members(damaged)
        assert caught.value.offset in (byte, byte // BLOCK * BLOCK)


def test_an_archive_truncated_at_any_byte_is_a_truncated_shard_error() -> None:
    data = archive(CONTENTS)
    for length in range(len(data)):
        with pytest.raises(TruncatedShardError) as caught:
            members(data[:length])
        assert caught.value.offset is not None
        assert caught.value.offset <= length


@pytest.mark.parametrize("change", ["lost", "repeated"])
def test_any_lost_or_repeated_block_is_an_error_or_changes_nothing(change: str) -> None:
    data = archive(CONTENTS)
    expected = members(data)
    same = 0
    for start in range(0, len(data), BLOCK):
        block = data[start : start + BLOCK] if change == "repeated" else b""
        damaged = data[:start] + block + block + data[start + BLOCK :]
        found = members_or_error(damaged)
        if isinstance(found, ShardError):
            assert found.offset is not None
        else:
            assert found == expected
            same += 1
    assert same == (2 if change == "repeated" else 0)  # a third zero block at the end


@QUICK
@given(st.lists(st.tuples(st.integers(0), st.binary(min_size=1, max_size=700)), min_size=1, max_size=4))
def test_overwritten_bytes_raise_nothing_but_a_shard_error(changes: list[tuple[int, bytes]]) -> None:
    damaged = bytearray(archive(CONTENTS))
    for position, content in changes:
        start = position % len(damaged)
        damaged[start : start + len(content)] = content
    check_quickly_read_or_refused(bytes(damaged))


@QUICK
@given(st.binary(max_size=3000))
def test_bytes_that_are_not_an_archive_are_refused(garbage: bytes) -> None:
    assume(garbage.strip(b"\0"))
    with pytest.raises(ShardError) as caught:
        members(garbage)
    assert caught.value.offset is not None


def check_quickly_read_or_refused(data: bytes) -> None:
    started = time.monotonic()
    found = members_or_error(data)
    if isinstance(found, ShardError):
        assert found.offset is not None
        assert 0 <= found.offset <= len(data)
    else:
        assert all(m.offset + m.size <= len(data) for m in found)
    assert time.monotonic() - started < 20


def test_the_error_for_data_after_the_end_has_its_offset() -> None:
    data = archive(CONTENTS)
    with pytest.raises(ShardError, match="data after the end") as caught:
        members(data + bytes(5) + b"x")
    assert caught.value.offset == len(data) + 5


def test_a_second_archive_after_the_end_is_an_error() -> None:
    data = archive(CONTENTS)
    with pytest.raises(ShardError, match="two tar archives in one file") as caught:
        members(data + data)
    assert caught.value.offset == len(data)


def test_a_zero_block_between_members_is_an_error() -> None:
    data = header() + bytes(BLOCK) + header() + END
    with pytest.raises(ShardError, match="data after the end") as caught:
        members(data)
    assert caught.value.offset == 2 * BLOCK


@pytest.mark.parametrize(
    ("size", "message", "kind"),
    [
        (b"\xff" * 12, "negative", ShardError),
        (b"\xff\x7f" + b"\xff" * 10, "negative", ShardError),
        (b"-0000000001\0", "is not an octal number", ShardError),
        (b"0000000009\0 ", "is not an octal number", ShardError),
        (b"00000\00001\0 ", "is not an octal number", ShardError),
        (b"\x81" + bytes(11), "is not an octal number", ShardError),
        (b"777777777777", "claims 68,719,476,735 bytes, but 1,024 are left", TruncatedShardError),
        (
            b"\x80" + (4 << 60).to_bytes(11, "big"),
            "claims 4,611,686,018,427,387,904 bytes",
            TruncatedShardError,
        ),
        (b"\x80" + b"\xff" * 11, "bytes, but 1,024 are left", TruncatedShardError),
    ],
)
def test_an_invalid_size_is_refused(size: bytes, message: str, kind: type[ShardError]) -> None:
    good = header(b"ok.jpg")
    with pytest.raises(kind, match=message) as caught:
        members(good + header(size=size) + END)
    assert caught.value.offset == len(good)


@pytest.mark.parametrize(
    "records",
    [
        b"path=x\n",
        b"9 path=x\n\n",
        b"99 path=x\n",
        b"-9 path=x\n",
        b"0 path=x\n",
        b"9 path_x\n",
        b"9 path=xy",
        b"99999999999999999999999 path=x\n",
        b"9 path=x\n9 path=",
        b"\xd9\xa9 path=x\n",  # an Arabic digit
    ],
)
def test_a_malformed_pax_record_is_refused(records: bytes) -> None:
    with pytest.raises(ShardError, match="malformed pax record") as caught:
        members(pax(records) + header() + END)
    assert caught.value.offset is not None
    assert BLOCK <= caught.value.offset < 2 * BLOCK


@pytest.mark.parametrize("size", [b"-1", b"x", b"", b"1" * 21, b"1.5"])
def test_a_pax_size_that_is_not_a_number_is_refused(size: bytes) -> None:
    record = b" size=" + size + b"\n"
    records = b"%d" % (len(record) + (1 if len(record) < 9 else 2)) + record
    with pytest.raises(ShardError, match="is not a decimal number") as caught:
        members(pax(records) + header() + END)
    assert caught.value.offset == 2 * BLOCK


def test_a_pax_size_of_4_eib_is_refused() -> None:
    with pytest.raises(TruncatedShardError, match="claims 4,611,686,018,427,387,904 bytes"):
        members(pax(b"28 size=4611686018427387904\n") + header() + END)


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
def test_an_extended_header_larger_than_a_mebibyte_is_refused_before_it_is_read(kind: bytes) -> None:
    claim = pax(b"", kind=kind, stated=MAX_PAX_BYTES + 1)
    buffer = Sparse(claim, 4 << 20)
    with pytest.raises(ShardError, match=r"claims 1,048,577 bytes; allowed are 1,048,576") as caught:
        list(walk(buffer, shard="s.tar"))  # type: ignore[arg-type]
    assert caught.value.offset == 0


def test_an_extended_header_that_exceeds_the_archive_is_a_truncated_shard_error() -> None:
    with pytest.raises(TruncatedShardError, match="extended header claims 100,000 bytes, but 1,024 are left"):
        members(pax(b"", stated=100_000) + END)


@pytest.mark.parametrize("record", [b"14 path=x.jpg\n", b"10 size=7\n"])
def test_a_global_header_with_a_name_or_size_is_refused(record: bytes) -> None:
    with pytest.raises(ShardError, match=r"global pax header sets '(path|size)'"):
        members(pax(record, kind=b"g") + header() + END)


@pytest.mark.parametrize("kind", [b"S", b"M", b"V", b"D", b"A", b"\xff"])
def test_a_member_of_an_unsupported_type_is_refused(kind: bytes) -> None:
    with pytest.raises(ShardError, match="repack with plain `tar`") as caught:
        members(header() + header(kind=kind) + END)
    assert caught.value.offset == BLOCK


def test_sparse_members_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 19)
        file.write(b"x")
    for kind in ("pax", "gnu"):
        gnu_tar("-cSf", "s.tar", f"--format={kind}", "holes", folder=tmp_path)
        with pytest.raises(ShardError, match=r"sparse|type b'S'"):
            members((tmp_path / "s.tar").read_bytes())


def test_a_folder_by_name_that_holds_bytes_is_refused() -> None:
    with pytest.raises(ShardError, match="is a folder by its name, but has 5 bytes"):
        members(header(b"folder/", size=b"%011o\0" % 5, kind=b"\0") + bytes(BLOCK) + END)


@pytest.mark.parametrize("name", [b"", b"\0x"])
def test_a_member_without_a_name_is_refused(name: bytes) -> None:
    with pytest.raises(ShardError, match="invalid name b''"):
        members(header(name) + END)


def test_an_unknown_magic_is_refused() -> None:
    block = bytearray(header())
    block[257:262] = b"tarrr"
    with pytest.raises(ShardError, match=r"unknown tar format b'tarrr.*allowed are ustar"):
        members(with_checksum(bytes(block)) + END)


def test_a_gzipped_tar_is_refused_at_byte_0() -> None:
    with pytest.raises(ShardError, match="not a tar header") as caught:
        members(b"\x1f\x8b\x08" + bytes(509) + END)
    assert caught.value.offset == 0


def test_a_folder_of_a_v7_archive_is_not_a_file() -> None:
    block = bytearray(header(b"folder/", kind=b"\0"))
    block[257:265] = bytes(8)
    found = members(with_checksum(bytes(block)) + END)
    assert [(m.name, m.is_file) for m in found] == [("folder/", False)]
