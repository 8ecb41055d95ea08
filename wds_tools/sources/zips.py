"""Zip archives of image folders. Members are decompressed in memory, one at a time, up to their stated size."""

from __future__ import annotations

import struct
import zipfile
import zlib
from functools import cached_property
from pathlib import Path

from wds_tools.errors import SourceError
from wds_tools.sources.base import (
    MAX_RECORD_BYTES,
    Collector,
    Input,
    Record,
    Source,
    SourceOptions,
    as_source_error,
    file_states,
    stamp_files,
)
from wds_tools.sources.files import MappedFiles, find_files
from wds_tools.sources.image_tree import (
    NOT_AN_IMAGE,
    ImageFile,
    collect_tree,
    is_image_name,
    path_bytes,
    without_common_folder,
)

_LOCAL_HEADER = 30
_ENCRYPTED = 1
_WINDOWS = 0


def is_zip(name: str) -> bool:
    """Return whether a file name is that of a zip archive."""
    return name.lower().endswith(".zip")


class ZipSource(Source):
    """Zip archives: an archive, a pattern, or a folder of archives.

    Workers read a member at its offset, without reading the central directory again.
    """

    kind = "zip"
    unit = "file"
    roles = ()

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(src)
        self.paths = find_files(self.path, is_zip, "zip")

    def collect(self, found: Collector) -> None:
        """Add all members.

        Raises:
            SourceError: There is no archive, an archive is damaged, or there is no image.
        """
        states = file_states(self.paths)
        files: list[ImageFile] = []
        for number, path in enumerate(self.paths):
            bad = (zipfile.BadZipFile, ValueError, NotImplementedError)
            with as_source_error(f"{path} cannot be read as zip", *bad), zipfile.ZipFile(path) as archive:
                members = archive.infolist()
            images: dict[str, ImageFile] = {}  # of members with the same name, the last one counts
            for info in members:
                is_windows = info.create_system == _WINDOWS  # where some programs write backslashes
                name = info.filename.replace("\\", "/") if is_windows else info.filename
                name = name.removeprefix("./").lstrip("/")
                if name.endswith("/") or any(part.startswith((".", "__MACOSX")) for part in name.split("/")):
                    continue
                reason = _reason_to_skip(info, name)
                if reason:
                    found.account.given += 1
                    found.skip(name, reason)
                else:
                    location = (number, info.header_offset, info.compress_size, info.compress_type, info.CRC)
                    images[name] = (path_bytes(name), info.file_size, location)
            files += images.values()
        found.files = states
        found.stamp = stamp_files(list(self.paths))
        collect_tree(found, without_common_folder(files))

    def read(self, entry: Input) -> Record:
        """Read a member.

        Raises:
            SourceError: The member is damaged.
            SourceStoreError: The archive cannot be read, or has become shorter.
        """
        number, offset, packed_size, method, checksum = entry.location
        head = self._mapped.slice(number, offset, offset + _LOCAL_HEADER)
        if bytes(head[:4]) != b"PK\x03\x04":
            raise SourceError("is damaged: there is no local header at the offset in the central directory")
        start = offset + _LOCAL_HEADER + sum(struct.unpack_from("<HH", head, 26))
        data = bytes(self._mapped.slice(number, start, start + packed_size))
        if method == zipfile.ZIP_DEFLATED:
            with as_source_error("is damaged", zlib.error):
                data = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, entry.size + 1)
        if len(data) != entry.size or zlib.crc32(data) != checksum:
            raise SourceError("is damaged: its length or checksum differs from the central directory")
        return Record(data)

    @cached_property
    def _mapped(self) -> MappedFiles:
        return MappedFiles(self.paths)


def _reason_to_skip(info: zipfile.ZipInfo, name: str) -> str | None:
    """Return why a member is not packed; None if it is."""
    if not is_image_name(name):
        return NOT_AN_IMAGE
    if info.flag_bits & _ENCRYPTED:
        return "is encrypted"
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return f"is compressed with method {info.compress_type}; allowed are stored and deflated members"
    if info.file_size > MAX_RECORD_BYTES:
        return f"states {info.file_size:,} bytes; allowed are {MAX_RECORD_BYTES:,}"
    return None
