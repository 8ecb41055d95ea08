"""Tar archives of image folders: ``photos.tar`` with ``cat/1.jpg``, or one per class, as in ImageNet.

Members are listed by the strict reader of `wds_tools.format.tar`. They are read from the mapped
archive, which is not unpacked to disk; a compressed one is decompressed as a stream.
"""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path

from wds_tools.errors import ShardError, SourceError
from wds_tools.format import tar
from wds_tools.sources.base import Collector, Input, Record, Source, SourceOptions
from wds_tools.sources.compressed import TarFiles, is_tar, tar_stem
from wds_tools.sources.image_tree import (
    NOT_AN_IMAGE,
    ImageFile,
    collect_tree,
    is_image_name,
    path_bytes,
    without_common_folder,
)
from wds_tools.sources.remote_files import locate, open_files, shown_path, stamp_of, states_of
from wds_tools.storage import is_url
from wds_tools.storage.listing import RemoteFile

_LINK = "is a link and has no content: write the archive with `tar --dereference --hard-dereference`"
# gzip, bzip2, xz, zstd. A tar archive begins with the name of its first member, such as BZ/1.jpg.
_COMPRESSED = re.compile(rb"\x1f\x8b|BZh[1-9]1AY&SY|\xfd7zXZ\0|\x28\xb5\x2f\xfd")


class TarSource(Source):
    """Tar archives, treated as one folder of images: an archive, a pattern, a folder of archives, or a URL of these.

    If there are several archives without folders inside, each is a class with the name of the file.
    """

    kind = "tar"
    unit = "file"
    roles = ()

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(shown_path(str(src)), options)
        self.remote = self.options.remote if is_url(str(src)) else None
        self.paths = locate(src, is_tar, "tar", self.remote)

    def collect(self, found: Collector) -> None:
        """Add all members.

        Raises:
            SourceError: An archive is damaged or truncated, or there is no image.
        """
        states = states_of(self.paths)
        files: list[ImageFile] = []
        for number, path in enumerate(self.paths):
            images: dict[str, ImageFile] = {}  # a name may occur again after `tar -r` or `tar -u`: the last one counts
            for member in self._members(number, path):
                is_image = is_image_name(member.name)
                hidden = any(part.startswith(".") and part != "." for part in member.name.split("/"))
                if hidden or not (member.is_file or is_image):
                    continue
                name = member.name.removeprefix("./").lstrip("/")
                images.pop(name, None)
                if member.is_file and is_image:
                    images[name] = (path_bytes(name), member.size, (number, member.offset, member.size))
                else:
                    found.account.given += 1
                    found.skip(member.name, NOT_AN_IMAGE if member.is_file else _LINK)
            files += images.values()
        if len(self.paths) > 1 and not any(b"/" in name for name, _, _ in files):
            stems = [path_bytes(tar_stem(path.name)) + b"/" for path in self.paths]
            files = [(stems[location[0]] + name, size, location) for name, size, location in files]
        found.files = states
        found.stamp = stamp_of(self.paths)
        collect_tree(found, without_common_folder(files))
        found.inputs = [entry._replace(group=self._mapped.group(*entry.location[:2])) for entry in found.inputs]

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
