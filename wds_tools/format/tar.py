"""A strict reader and writer of tar: build headers, parse headers, list the members of an archive. No I/O.

Python's ``tarfile`` stops at a bad header without an error (python/cpython#120740), so that it
reads a damaged shard as a shorter one. Here everything that is neither a well-formed member nor the
end of the archive is an error with a byte offset.

Sources: POSIX.1-2017 ``pax``, "ustar Interchange Format" and "pax Interchange Format"; the GNU tar
manual, "Basic Tar Format", for long names ('L', 'K') and base-256 numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from wds_tools.errors import OptionError, ShardError, TruncatedShardError

BLOCK = 512
END = bytes(2 * BLOCK)
"""End of archive: two zero blocks."""

MAX_OCTAL_SIZE = 8**11 - 1  # eleven octal digits: 8 GiB - 1; larger sizes need a pax record
MAX_PAX_BYTES = 1 << 20  # of an extended header; legitimate ones are far smaller
MAX_USTAR_NAME = 100
MAX_NAME_BYTES = 4096  # PATH_MAX of Linux: other tools cannot unpack longer names

_REGULAR = (b"\0", b"0", b"7")
_WITHOUT_DATA = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes
_HARD_LINK = b"1"
_FOLDER = b"5"
_EXTENDED = (b"x", b"g", b"L", b"K")
_ZERO_BLOCK = bytes(BLOCK)

_MODE_AND_OWNER = b"0000644\0" + b"0000000\0" * 2
_MTIME = b"00000000000\0"
_MAGIC_AND_REST = bytes(100) + b"ustar\0" + b"00" + bytes(BLOCK - 265)
# For the checksum, the eight bytes of the checksum field count as spaces.
_CONSTANT_SUM = sum(_MODE_AND_OWNER) + sum(_MTIME) + 8 * ord(" ") + sum(_MAGIC_AND_REST)


class Bytes(Protocol):
    """The bytes of an archive: a memoryview, or a stream that is sliced from the start to the end.

    The length of a stream may be larger than the archive until its end has been read. A slice beyond it is shorter.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> memoryview: ...


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of an archive.

    Attributes:
        header_offset: Byte offset of the member, including its extended headers.
        offset: Byte offset of the content.
        is_file: True for regular files; False for folders, links and devices, which have no content.
        link: Full path of the member whose content a hard link shares; empty if this is not a hard link.
    """

    name: str
    header_offset: int
    offset: int
    size: int
    is_file: bool
    is_folder: bool = False
    link: str = ""


def padded(size: int) -> int:
    """Round a size in bytes up to a multiple of 512.

    >>> padded(0), padded(1), padded(512)
    (0, 512, 512)
    """
    return -(-size // BLOCK) * BLOCK


def member_bytes(name: str, size: int) -> int:
    """Return the number of bytes that a member takes in an archive: headers, content and padding."""
    return len(build_header(name, size)) + padded(size)


def build_header(name: str, size: int) -> bytes:
    """Return the header blocks of a regular file.

    They are a ustar header, preceded by a pax header if name or size do not fit ustar. Owner, time
    and mode are constant, so that equal contents give equal archives.

    Raises:
        OptionError: Tar readers would not return the same name, or the size is negative.
    """
    raw = _encode_name(name)
    if size < 0:
        raise OptionError(f"member {name!r} of {size} bytes; allowed are sizes of 0 and more")
    records = b""
    if len(raw) > MAX_USTAR_NAME or not raw.isascii():
        records += _pax_record(b"path", raw)
    if size > MAX_OCTAL_SIZE:
        records += _pax_record(b"size", b"%d" % size)
    plain = _ustar_block(raw[:MAX_USTAR_NAME], 0 if size > MAX_OCTAL_SIZE else size, b"0")
    if not records:
        return plain
    extended = _ustar_block(b"pax/" + raw[: MAX_USTAR_NAME - 4], len(records), b"x")
    return extended + records.ljust(padded(len(records)), b"\0") + plain


def _encode_name(name: str) -> bytes:
    try:
        raw = name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raw = b""
    if not raw or b"\0" in raw or raw.endswith(b"/") or len(raw) > MAX_NAME_BYTES:
        raise OptionError(
            f"member name {name[:80]!r} of {len(name):,} characters cannot be stored; allowed are 1 to "
            f"{MAX_NAME_BYTES:,} bytes of UTF-8 without NUL and without a slash at the end"
        )
    return raw


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    content = b" " + keyword + b"=" + value + b"\n"
    length = len(content) + len(str(len(content)))
    if length != len(str(length)) + len(content):  # the length counts its own digits, which may add a digit
        length = len(content) + len(str(length))
    return b"%d" % length + content


def _ustar_block(name: bytes, size: int, kind: bytes) -> bytes:
    """Return a header block, joined from constants for speed: packing needs about three per sample."""
    digits = b"%011o" % size
    checksum = _CONSTANT_SUM + sum(name) + sum(digits) + kind[0]
    return b"".join(
        (name.ljust(100, b"\0"), _MODE_AND_OWNER, digits, b"\0", _MTIME, b"%06o\0 " % checksum, kind, _MAGIC_AND_REST)
    )


def walk(buffer: Bytes, *, shard: str, complete: bool = False) -> Iterator[Member]:
    """Yield every member of an archive.

    Args:
        buffer: The whole archive. It is read in order, in slices of at most `MAX_PAX_BYTES`.
        shard: Name of the shard, for error messages.
        complete: Whether the length of ``buffer`` is known to be right. If so, the archive may end
            without zero blocks.

    Raises:
        TruncatedShardError: The archive ends inside a member, or without its two zero blocks.
        ShardError: A header is invalid, or data follows the end of the archive.
    """
    position = 0
    while position < len(buffer):
        block = buffer[position : position + BLOCK]
        if not len(block):
            break
        if len(block) < BLOCK:
            raise TruncatedShardError(
                f"ends with {len(block)} bytes of a header of {BLOCK}: the shard was truncated; copy or pack it again",
                shard=shard,
                offset=position,
            )
        if block == _ZERO_BLOCK:
            _check_end(buffer, position, shard)
            return
        member, position = _parse_member(buffer, position, shard)
        yield member
    if not complete:
        raise TruncatedShardError(
            "ends without the two zero blocks that close a tar archive: the shard may have been truncated; "
            "copy or pack it again",
            shard=shard,
            offset=position,
        )


def _check_end(buffer: Bytes, position: int, shard: str) -> None:
    """Check that another zero block follows the one at ``position``, and then nothing but zeros."""
    if len(buffer[position : position + 2 * BLOCK]) < 2 * BLOCK:
        raise TruncatedShardError(
            "ends with one zero block, but two close a tar archive: the shard was truncated; copy or pack it again",
            shard=shard,
            offset=position,
        )
    chunk = 1 << 20
    zeros = bytes(chunk)
    for start in range(position, len(buffer), chunk):
        part = buffer[start : start + chunk]
        if not len(part):
            return
        if part != zeros[: len(part)]:
            first = start + next(i for i, byte in enumerate(part) if byte)
            raise ShardError(
                "data after the end of the archive (a zero block between members, or two tar archives in one "
                "file): split the file, or pack it again",
                shard=shard,
                offset=first,
            )


def _parse_member(buffer: Bytes, start: int, shard: str) -> tuple[Member, int]:
    """Return the member at ``start``, with its extended headers applied, and the offset of the next one."""
    block, position, pax = _skip_extended(buffer, start, shard)
    kind = block[156:157]
    content = position + BLOCK
    name = _member_name(block, pax, shard, position)
    size = _parse_number(block[124:136], shard, position)
    if kind not in _REGULAR and kind not in _WITHOUT_DATA:
        raise ShardError(
            f"member {name[:80]!r} has type {kind!r}; allowed are files, folders, links and devices: "
            "repack with plain `tar`",
            shard=shard,
            offset=position,
        )
    if b"size" in pax:
        size = _parse_decimal(pax[b"size"], shard, position)
    if kind in _WITHOUT_DATA:
        size = 0  # a link may state the size of its target, but no data follows
    is_file = kind in _REGULAR and not name.endswith("/")  # v7 marks folders only by a slash
    if size and not is_file:
        raise ShardError(
            f"member {name[:80]!r} is a folder by its name, but has {size:,} bytes: "
            "tar readers treat this differently; repack with plain `tar`",
            shard=shard,
            offset=position,
        )
    if padded(size) > len(buffer) - content:
        raise TruncatedShardError(
            f"member {name[:80]!r} claims {size:,} bytes, but {len(buffer) - content:,} are left: "
            "the shard was truncated or the header is damaged; copy or pack it again",
            shard=shard,
            offset=position,
        )
    is_folder = kind == _FOLDER or name.endswith("/")
    target = pax.get(b"linkpath", block[157:257].partition(b"\0")[0]) if kind == _HARD_LINK else b""
    link = target.decode("utf-8", "surrogateescape")
    return Member(name, start, content, size, is_file, is_folder, link), content + padded(size)


def _skip_extended(buffer: Bytes, start: int, shard: str) -> tuple[bytes, int, dict[bytes, bytes]]:
    """Return a member's own header block, its offset, and the records of the extended headers before it."""
    position = start
    pax: dict[bytes, bytes] = {}
    while True:
        block = bytes(buffer[position : position + BLOCK])
        if len(block) < BLOCK:
            raise TruncatedShardError(
                "ends inside a header: the shard was truncated; copy or pack it again", shard=shard, offset=position
            )
        _check_block(block, shard, position)
        kind = block[156:157]
        if kind not in _EXTENDED:
            return block, position, pax
        content = position + BLOCK
        size = _parse_number(block[124:136], shard, position)
        payload = _extended_payload(buffer, content, size, shard)
        if kind == b"x":
            pax.update(_parse_pax(payload, shard, content))
        elif kind == b"g":
            _check_global(_parse_pax(payload, shard, content), shard, content)
        elif kind == b"L":
            pax[b"path"] = payload.rstrip(b"\0")
        elif kind == b"K":
            pax[b"linkpath"] = payload.rstrip(b"\0")
        position = content + padded(size)


def _check_block(block: bytes, shard: str, position: int) -> None:
    """Verify a header's checksum and magic."""
    stated = block[148:156].strip(b"\0 ")
    unsigned = sum(block) - sum(block[148:156]) + 8 * 32
    try:
        total = int(stated, 8)
    except ValueError:
        total = -1
    if total != unsigned and total != _signed_sum(block):
        raise ShardError(
            f"not a tar header: its checksum is {stated!r} and should be {unsigned:o} (octal); "
            "the shard is damaged, copy or pack it again",
            shard=shard,
            offset=position,
        )
    if block[257:262] not in (b"ustar", bytes(5)):
        raise ShardError(
            f"unknown tar format {block[257:265]!r}; allowed are ustar, pax, GNU and v7: repack with plain `tar`",
            shard=shard,
            offset=position,
        )


def _signed_sum(block: bytes) -> int:
    """Return the checksum over signed characters, as some old programs computed it."""
    others = block[:148] + block[156:]
    return sum(others) + 8 * 32 - 256 * sum(byte > 127 for byte in others)


def _parse_number(raw: bytes, shard: str, position: int) -> int:
    """Parse a size in octal digits or base 256."""
    if raw[0] == 0x80:
        return int.from_bytes(raw[1:], "big")
    if raw[0] == 0xFF:
        size = int.from_bytes(raw, "big", signed=True)
        raise ShardError(
            f"size {size} is negative: the header is damaged; copy or pack the shard again",
            shard=shard,
            offset=position,
        )
    digits = raw.strip(b"\0 ")
    if not all(byte in b"01234567" for byte in digits):
        raise ShardError(
            f"size {raw!r} is not an octal number: the header is damaged; copy or pack the shard again",
            shard=shard,
            offset=position,
        )
    return int(digits or b"0", 8)


def _parse_decimal(raw: bytes, shard: str, position: int) -> int:
    if not raw.isdigit() or len(raw) > 20:
        raise ShardError(
            f"pax size {raw[:40]!r} is not a decimal number: the header is damaged; copy or pack the shard again",
            shard=shard,
            offset=position,
        )
    return int(raw)


def _extended_payload(buffer: Bytes, content: int, size: int, shard: str) -> bytes:
    if size > MAX_PAX_BYTES:
        raise ShardError(
            f"an extended header claims {size:,} bytes; allowed are {MAX_PAX_BYTES:,}: "
            "the shard is damaged, copy or pack it again",
            shard=shard,
            offset=content - BLOCK,
        )
    if padded(size) > len(buffer) - content:
        raise TruncatedShardError(
            f"an extended header claims {size:,} bytes, but {len(buffer) - content:,} are left: "
            "the shard was truncated; copy or pack it again",
            shard=shard,
            offset=content - BLOCK,
        )
    return bytes(buffer[content : content + size])


def _parse_pax(payload: bytes, shard: str, offset: int) -> dict[bytes, bytes]:
    """Parse ``length key=value`` records; each length must be exact."""
    records: dict[bytes, bytes] = {}
    position = 0
    while position < len(payload):
        digits, space, _ = payload[position : position + 20].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = payload[position : position + length]
        keyword, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if length <= len(digits) + 2 or len(record) < length or record[-1:] != b"\n" or not equals:
            raise ShardError(
                "malformed pax record: the header is damaged; copy or pack the shard again",
                shard=shard,
                offset=offset + position,
            )
        if keyword.startswith(b"GNU.sparse"):
            raise ShardError("sparse members are not supported: repack without --sparse", shard=shard, offset=offset)
        records[keyword] = value
        position += length
    return records


def _check_global(records: dict[bytes, bytes], shard: str, offset: int) -> None:
    """Refuse a global header with a name or size for all members, which tar readers treat differently."""
    for keyword in (b"path", b"size"):
        if keyword in records:
            raise ShardError(
                f"a global pax header sets {keyword.decode()!r} for all members: repack with plain `tar`",
                shard=shard,
                offset=offset,
            )


def _member_name(block: bytes, pax: dict[bytes, bytes], shard: str, position: int) -> str:
    raw = pax.get(b"path")
    if raw is None:
        raw = block[:100].partition(b"\0")[0]
        prefix = block[345:500].partition(b"\0")[0]
        if block[257:263] == b"ustar\0" and prefix:
            raw = prefix + b"/" + raw
    if not raw or b"\0" in raw:
        raise ShardError(
            f"a member has the invalid name {raw[:40]!r}: repack with plain `tar`", shard=shard, offset=position
        )
    return raw.decode("utf-8", "surrogateescape")
