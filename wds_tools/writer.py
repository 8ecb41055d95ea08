"""One shard, written once from start to end: commit or nothing, its index right after it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

import numpy as np
import xxhash

from wds_tools.codecs import ImageInfo
from wds_tools.errors import SampleError
from wds_tools.index import ABSENT, Index, IndexBuilder, index_name, to_bytes
from wds_tools.manifest import ImageStats, ShardEntry
from wds_tools.sample import Sample, split_name
from wds_tools.storage.commit import CommitFile, commit_bytes
from wds_tools.tarfmt import BLOCK, END, build_header

_PADDING = bytes(BLOCK)


class ShardFile:
    """A tar shard and its index; both appear when the ``with`` block ends without error, or neither.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "shard-000000.tar"
    >>> with ShardFile(path) as shard:
    ...     shard.write(Sample("000000000", {"txt": b"hello"}))
    >>> shard.entry.bytes, sorted(file.name for file in path.parent.iterdir())
    (2048, ['shard-000000.parquet', 'shard-000000.tar'])

    Args:
        path: Final name of the shard, ending in ``.tar``; a shard of that name is replaced.

    Attributes:
        bytes: Length so far, without the blocks that close an archive.
        entry: What the manifest says of the shard; None until it is committed, and for a shard without samples,
            which leaves no file.
        index: What the index says of it; None as long as ``entry`` is.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.bytes = 0
        self.entry: ShardEntry | None = None
        self.index: Index | None = None
        self._commit = CommitFile(self.path)
        self._digest = xxhash.xxh3_128()
        self._rows = IndexBuilder()
        self._keys: set[str] = set()

    @property
    def samples(self) -> int:
        """Number of samples so far."""
        return len(self._keys)

    def __enter__(self) -> ShardFile:
        self._file = self._commit.__enter__()
        return self

    def write(self, sample: Sample, *, label: int | None = None, image: ImageInfo | None = None) -> None:
        """Append a sample, its fields in their order.

        Args:
            sample: Key and encoded fields.
            label: Class number for the index.
            image: What the header of its image says, for the index.

        Raises:
            SampleError: A key that was written before, or names that a reader would split in another way.
            OSError: The disk is full.
        """
        headers = self._headers(sample)
        self._keys.add(sample.key)
        places = {}
        for header, (name, data) in zip(headers, sample.fields.items(), strict=True):
            size = len(data)
            padding = _PADDING[: -size % BLOCK]
            places[name] = (self.bytes + len(header), size, xxhash.xxh3_64_intdigest(data))
            for part in (header, data, padding):
                self._digest.update(part)
                self._file.write(part)
            self.bytes += len(header) + size + len(padding)
        self._rows.add(sample.key, places, label, image)

    def _headers(self, sample: Sample) -> list[bytes]:
        """Return the header of each member, all checked before the first byte is written."""
        if sample.key in self._keys:
            raise SampleError("was written before; keys must be unique", shard=self.path.name, key=sample.key)
        return member_headers(sample, shard=self.path.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self.samples:
            nothing = SampleError("no samples")
            self._commit.__exit__(SampleError, nothing, None)
            return
        if error is None:
            try:
                self._digest.update(END)
                self._file.write(END)
            except BaseException as failure:
                self._commit.__exit__(type(failure), failure, failure.__traceback__)
                raise
        self._commit.__exit__(kind, error, trace)
        if error is None:
            self._commit_index()

    def _commit_index(self) -> None:
        length = self.bytes + len(END)
        index = self._rows.build(shard=self.path.name, shard_bytes=length, shard_xxh3=self._digest.hexdigest())
        self.entry = commit_index(index, self.path.parent)
        self.index = index


def member_headers(sample: Sample, *, shard: str | None = None) -> list[bytes]:
    """Return the tar header of each field of a sample.

    Raises:
        SampleError: No fields, or names that a reader would split in another way.
        OptionError: A name that is too long for tar readers.
    """
    if not sample.fields:
        raise SampleError("has no fields", shard=shard, key=sample.key)
    headers = []
    for name, data in sample.fields.items():
        member = f"{sample.key}.{name}"
        if split_name(member) != (sample.key, name) or not _storable(member):
            raise SampleError(
                f"field {name!r} would be read back as (key, field) = {split_name(member)}; allowed are keys "
                "without a dot behind the last slash, lower-case fields, and text that UTF-8 can hold",
                shard=shard,
                key=sample.key,
            )
        headers.append(build_header(member, len(data)))
    return headers


def commit_index(index: Index, folder: Path) -> ShardEntry:
    """Write a shard's index beside it; return what the manifest says of both."""
    data, name = to_bytes(index), index_name(index.shard)
    commit_bytes(folder / name, data)
    return ShardEntry(
        name=index.shard,
        samples=len(index),
        bytes=index.shard_bytes,
        xxh3=index.shard_xxh3,
        index=name,
        index_bytes=len(data),
        index_xxh3=xxhash.xxh3_128_hexdigest(data),
    )


def count_fields(index: Index) -> dict[str, int]:
    """Return how many samples of a shard have each field."""
    return {name: int((columns.offset != ABSENT).sum()) for name, columns in index.fields.items()}


def image_stats(index: Index) -> ImageStats | None:
    """Return the range of a shard's image sizes; None if no image's size is known."""
    known = (index.width > 0) & (index.height > 0)
    if not known.any():
        return None
    width, height = index.width[known], index.height[known]
    return ImageStats(int(np.min(width)), int(np.max(width)), int(np.min(height)), int(np.max(height)))


def merge_stats(parts: Iterable[ImageStats | None]) -> ImageStats | None:
    """Return the range of image sizes over all shards."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return ImageStats(
        min(part.min_width for part in known),
        max(part.max_width for part in known),
        min(part.min_height for part in known),
        max(part.max_height for part in known),
    )


def _storable(name: str) -> bool:
    """The index holds names as UTF-8, and a tar name ends at its first zero byte."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in name
