"""Zip archives of image folders. Members are inflated one by one in memory, never more than they state."""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from wds_tools.errors import OptionError, SourceError
from wds_tools.sources.base import MAX_RECORD_BYTES, Input, Lazy, Listing, Record, Skip, refusing, stamp_files
from wds_tools.sources.files import Maps, find_files
from wds_tools.sources.image_tree import NO_IMAGE, Found, is_image_name, list_tree, raw, without_common_folder

_LOCAL_HEADER = 30
_ENCRYPTED = 1


def is_zip(name: str) -> bool:
    """Tell by a file's name."""
    return name.lower().endswith(".zip")


class ZipSource(Lazy):
    """A zip archive; a worker finds a member by its place, and does not read the directory again.

    Args:
        path: The archive.
        classes: Names of the class folders, by number.
        columns: None: an archive has no columns.
    """

    kind = "zip"

    def __init__(
        self, path: str | Path, classes: tuple[str, ...] | None = None, columns: Mapping[str, str] | None = None
    ) -> None:
        if columns:
            raise OptionError(f"columns={columns!r}, but an archive has none: leave them out")
        self.path = Path(path)
        self.classes = classes
        self.paths = find_files(self.path, is_zip, "zip")

    def scan(self) -> Listing:
        """List all members.

        Raises:
            SourceError: No archive, a damaged one, or one without an image.
        """
        files: list[Found] = []
        skipped: list[Skip] = []
        for number, path in enumerate(self.paths):
            bad = (zipfile.BadZipFile, ValueError, NotImplementedError)
            with refusing(f"{path} cannot be read as zip", *bad), zipfile.ZipFile(path) as archive:
                members = archive.infolist()
            for info in members:
                name = info.filename.removeprefix("./").lstrip("/")
                if info.is_dir() or any(part.startswith((".", "__MACOSX")) for part in name.split("/")):
                    continue
                reason = _refusal(info, name)
                if reason:
                    skipped.append(Skip(name, reason))
                else:
                    place = (number, info.header_offset, info.compress_size, info.compress_type, info.CRC)
                    files.append((raw(name), info.file_size, place))
        stamp = stamp_files(list(self.paths))
        return list_tree(str(self.path), without_common_folder(files), skipped, self.classes, stamp)

    def read(self, entry: Input) -> Record:
        """Return a member's bytes.

        Raises:
            SourceError: It is damaged.
        """
        number, offset, packed_size, method, checksum = entry.place
        head = self._maps.cut(number, offset, offset + _LOCAL_HEADER)
        if bytes(head[:4]) != b"PK\x03\x04":
            raise SourceError("is damaged: its header is not where the directory says")
        start = offset + _LOCAL_HEADER + sum(struct.unpack_from("<HH", head, 26))
        data = bytes(self._maps.cut(number, start, start + packed_size))
        if method == zipfile.ZIP_DEFLATED:
            with refusing("is damaged", zlib.error):
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, entry.size + 1)
        if len(data) != entry.size or zlib.crc32(data) != checksum:
            raise SourceError("is damaged: its length or checksum is not what the directory says")
        return Record(data)

    @cached_property
    def _maps(self) -> Maps:
        return Maps(self.paths)


def _refusal(info: zipfile.ZipInfo, name: str) -> str | None:
    """Return why a member is not packed."""
    if not is_image_name(name):
        return NO_IMAGE
    if info.flag_bits & _ENCRYPTED:
        return "is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed by method {info.compress_type}; read are stored and deflated members"
    if info.file_size > MAX_RECORD_BYTES:
        return f"states {info.file_size:,} bytes; allowed are {MAX_RECORD_BYTES:,}"
    return None
