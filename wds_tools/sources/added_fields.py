"""Fields that were added to a dataset later, while it is packed again: shards of their own, with the same keys."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wds_tools.errors import ManifestError, ShardError, StoreError
from wds_tools.format import tar
from wds_tools.format.manifest import MANIFEST_NAME, Addition, from_json
from wds_tools.format.sample import split_name
from wds_tools.options import RemoteOptions
from wds_tools.sources.base import as_read_error, as_source_error
from wds_tools.sources.files import TarFiles, is_tar, locate, shown_path
from wds_tools.storage import join, open_store
from wds_tools.storage.requests.listing import RemoteFile

Span = tuple[int, int]
"""First byte and end of the added fields of a sample in their shard; (0, 0) for none."""


class AddedFields:
    """The shards with added fields of a dataset. It is not pickled; each process creates its own.

    Args:
        path: Folder or URL of the dataset.
        additions: What its manifest lists.
        remote: How URLs are read, if it is at a URL; otherwise None.

    Attributes:
        paths: The shards.

    Raises:
        SourceError: The folder of added fields is missing or damaged.
    """

    def __init__(self, path: str, additions: Sequence[Addition], remote: RemoteOptions | None) -> None:
        self.paths: tuple[Path | RemoteFile, ...] = ()
        self._parts: list[tuple[TarFiles, dict[str, int]]] = []  # archives, and the number of each by its name
        for addition in additions:
            folder = join(path, addition.folder)
            with as_source_error(f"{shown_path(folder)} cannot be read", ManifestError, StoreError):
                data = open_store(folder, remote=remote or RemoteOptions.of()).read(MANIFEST_NAME)
                names = [entry.name for entry in from_json(data, name=join(folder, MANIFEST_NAME)).shards]
            paths = locate(folder, is_tar, "tar", remote, names)
            self.paths += paths
            self._parts.append((TarFiles(paths, remote), {name: number for number, name in enumerate(names)}))

    def spans(self, shard: str) -> list[dict[str, tuple[Span, int]]]:
        """Return for each addition: key -> (span, bytes that the fields take in a shard), of the samples of a shard."""
        found = []
        for archives, numbers in self._parts:
            part: dict[str, tuple[Span, int]] = {}
            if shard in numbers:
                with as_source_error(f"{shard} with added fields cannot be packed", ShardError):
                    for member in tar.walk(archives[numbers[shard]], shard=shard):
                        key, name = split_name(member.name) or ("", "")
                        (start, _), size = part.get(key, ((member.header_offset, 0), 0))
                        size += tar.member_bytes(f"000000000.{name}", member.size)
                        part[key] = (start, member.offset + tar.padded(member.size)), size
            found.append(part)
        return found

    def fields(self, shard: str, spans: list[Span]) -> dict[str, bytes]:
        """Return the added fields of a sample."""
        found = {}
        for (archives, numbers), (start, stop) in zip(self._parts, spans, strict=True):
            if stop:
                data = archives.slice(numbers[shard], start, stop)
                with as_read_error("cannot be read", ShardError):
                    for member in tar.walk(data, shard=shard, complete=True):
                        _, name = split_name(member.name) or ("", "")
                        found[name] = bytes(data[member.offset : member.offset + member.size])
        return found
