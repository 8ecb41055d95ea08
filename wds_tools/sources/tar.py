"""Tar archives of image folders: ``photos.tar`` with ``cat/1.jpg``, or one per class, as in ImageNet.

Members are listed by the strict reader of `wds_tools.format.tar`. They are read from the mapped
archive, which is not unpacked to disk; a compressed one is decompressed as a stream.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from wds_tools.errors import OptionError, ShardError, SourceError
from wds_tools.format import tar
from wds_tools.options import RemoteOptions
from wds_tools.sources.base import Input, LazySource, Listing, Record, Skip
from wds_tools.sources.compressed import TarFiles, is_tar, tar_stem
from wds_tools.sources.image_tree import (
    NOT_AN_IMAGE,
    ImageFile,
    is_image_name,
    list_tree,
    path_bytes,
    without_common_folder,
)
from wds_tools.sources.remote_files import locate, open_files, shown_path, stamp_of, states_of
from wds_tools.storage.listing import RemoteFile

_LINK = "is a link and has no content: write the archive with `tar --dereference --hard-dereference`"
# gzip, bzip2, xz, zstd. A tar archive begins with the name of its first member, such as BZ/1.jpg.
_COMPRESSED = re.compile(rb"\x1f\x8b|BZh[1-9]1AY&SY|\xfd7zXZ\0|\x28\xb5\x2f\xfd")


class TarSource(LazySource):
    """Tar archives, treated as one folder of images.

    Args:
        path: An archive, a pattern, or a folder of archives. If there are several archives without
            folders inside, each is a class with the name of the file.
        classes: Names of the class folders, by number.
        columns: Must be None: an archive has no columns.
        remote: How URLs are read, if ``path`` is a URL; otherwise None.
    """

    kind = "tar"

    def __init__(
        self,
        path: str | Path,
        classes: tuple[str, ...] | None = None,
        columns: Mapping[str, str] | None = None,
        remote: RemoteOptions | None = None,
    ) -> None:
        if columns:
            raise OptionError(
                f"columns={columns!r}, but an archive has no columns: omit --column and --label (columns=)"
            )
        self.path = str(path)
        self.classes = classes
        self.remote = remote
        self.paths = locate(path, is_tar, "tar", remote)

    def scan(self) -> Listing:
        """List all members.

        Raises:
            SourceError: An archive is damaged or truncated, or there is no image.
        """
        states = states_of(self.paths)
        files: list[ImageFile] = []
        skipped: list[Skip] = []
        for number, path in enumerate(self.paths):
            found: dict[str, ImageFile] = {}  # a name may occur again after `tar -r` or `tar -u`: the last one counts
            for member in self._members(number, path):
                is_image = is_image_name(member.name)
                hidden = any(part.startswith(".") and part != "." for part in member.name.split("/"))
                if hidden or not (member.is_file or is_image):
                    continue
                name = member.name.removeprefix("./").lstrip("/")
                found.pop(name, None)
                if member.is_file and is_image:
                    found[name] = (path_bytes(name), member.size, (number, member.offset, member.size))
                else:
                    skipped.append(Skip(member.name, NOT_AN_IMAGE if member.is_file else _LINK))
            files += found.values()
        if len(self.paths) > 1 and not any(b"/" in name for name, _, _ in files):
            stems = [path_bytes(tar_stem(path.name)) + b"/" for path in self.paths]
            files = [(stems[location[0]] + name, size, location) for name, size, location in files]
        listing = list_tree(
            shown_path(self.path), without_common_folder(files), skipped, self.classes, stamp_of(self.paths), states
        )
        grouped = [entry._replace(group=self._mapped.group(*entry.location[:2])) for entry in listing.inputs]
        return replace(listing, inputs=grouped)

    def read(self, entry: Input) -> Record:
        """Read a member.

        Raises:
            SourceStoreError: The archive cannot be read, or has become shorter.
        """
        number, offset, size = entry.location
        return Record(bytes(self._mapped.slice(number, offset, offset + size)))

    @cached_property
    def _mapped(self) -> TarFiles:
        return TarFiles(open_files(self.paths, self.remote), [path.name for path in self.paths])

    def _members(self, number: int, path: Path | RemoteFile) -> list[tar.Member]:
        data = self._mapped[number]
        if _COMPRESSED.match(bytes(data[:10])):
            raise SourceError(
                f"{path} is compressed, but does not end in .tar.gz, .tgz or .tar.zst: rename it, or decompress it"
            )
        try:
            return list(tar.walk(data, shard=path.name))
        except ShardError as error:
            raise SourceError(f"{path} cannot be packed: {error}") from error
