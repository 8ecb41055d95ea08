"""Tar archives of image folders: ``photos.tar`` with ``cat/1.jpg``, or one tar per class, as ImageNet comes.

Members are listed by our own strict reader and read where they lie; nothing is unpacked to disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from wds_tools.errors import OptionError, ShardError, SourceError
from wds_tools.format import tar
from wds_tools.sources.base import Input, Lazy, Listing, Record, Skip, stamp_files
from wds_tools.sources.files import Maps, find_files
from wds_tools.sources.image_tree import NO_IMAGE, Found, is_image_name, list_tree, raw, without_common_folder


def is_tar(name: str) -> bool:
    """Tell by a file's name."""
    return name.lower().endswith(".tar")


class TarSource(Lazy):
    """Plain tar archives, taken together as one folder.

    Args:
        path: An archive, a pattern, or a folder of archives. Of several archives without folders inside, each is a
            class, named as the file is.
        classes: Names of the class folders, by number.
        columns: None: an archive has no columns.
    """

    kind = "tar"

    def __init__(
        self, path: str | Path, classes: tuple[str, ...] | None = None, columns: Mapping[str, str] | None = None
    ) -> None:
        if columns:
            raise OptionError(f"columns={columns!r}, but an archive has none: leave them out")
        self.path = Path(path)
        self.classes = classes
        self.paths = find_files(self.path, is_tar, "tar")

    def scan(self) -> Listing:
        """List all members.

        Raises:
            SourceError: An archive that is damaged or cut, or none with an image.
        """
        files: list[Found] = []
        skipped: list[Skip] = []
        for number, path in enumerate(self.paths):
            for member in self._members(number, path):
                hidden = any(part.startswith(".") and part != "." for part in member.name.split("/"))
                if not member.is_file or hidden:
                    continue
                if is_image_name(member.name):
                    name = raw(member.name.removeprefix("./").lstrip("/"))
                    files.append((name, member.size, (number, member.offset, member.size)))
                else:
                    skipped.append(Skip(member.name, NO_IMAGE))
        if len(self.paths) > 1 and not any(b"/" in name for name, _, _ in files):
            stems = [raw(path.stem) + b"/" for path in self.paths]
            files = [(stems[place[0]] + name, size, place) for name, size, place in files]
        stamp = stamp_files(list(self.paths))
        return list_tree(str(self.path), without_common_folder(files), skipped, self.classes, stamp)

    def read(self, entry: Input) -> Record:
        """Return a member's bytes.

        Raises:
            SourceError: The archive has become shorter.
        """
        number, offset, size = entry.place
        return Record(bytes(self._maps.cut(number, offset, offset + size)))

    @cached_property
    def _maps(self) -> Maps:
        return Maps(self.paths)

    def _members(self, number: int, path: Path) -> list[tar.Member]:
        data = self._maps[number]
        if bytes(data[:2]) in (b"\x1f\x8b", b"BZ", b"\xfd7"):
            raise SourceError(f"{path} is compressed, so its members cannot be found: unpack it first, with gunzip")
        try:
            return list(tar.walk(data, shard=path.name))
        except ShardError as error:
            raise SourceError(f"{path} cannot be packed: {error}") from error
