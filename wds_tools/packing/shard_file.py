"""Write one shard and then its index. If an error occurs, neither file appears."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import xxhash

from wds_tools.errors import SampleError
from wds_tools.format.image_header import ImageInfo
from wds_tools.format.image_signature import Signature, add_signatures
from wds_tools.format.index import Index, index_name, shard_entry, to_bytes
from wds_tools.format.index_builder import IndexBuilder
from wds_tools.format.manifest import ShardEntry
from wds_tools.format.sample import Sample, split_name
from wds_tools.format.tar import BLOCK, END, build_header, padded
from wds_tools.storage.commit import CommitFile, commit_bytes

CHUNK_BYTES = 2 << 20  # the fastest of 0.5 to 4 MiB
_MAX_PARTS = 1024  # of one writev(): IOV_MAX on Linux and macOS
_PADDING = bytes(BLOCK)


class _Output:
    """Collects the bytes of a shard in chunks. A thread hashes and writes one while the next is collected.

    Hashing and writing release the GIL, so they do not slow down the encoding of samples.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = xxhash.xxh3_128()
        self._chunk: list[bytes] = []
        self._size = 0
        self._thread = ThreadPoolExecutor(1, "wds_tools-write")
        self._writing: Future[None] | None = None

    def write(self, parts: Sequence[bytes], size: int) -> None:
        """Append parts with ``size`` bytes in total."""
        self._chunk += parts
        self._size += size
        if self._size >= CHUNK_BYTES:
            self._wait()
            self._writing = self._thread.submit(self._append, self._chunk)
            self._chunk, self._size = [], 0

    def _wait(self) -> None:
        if self._writing is not None:
            self._writing.result()

    def _append(self, parts: list[bytes]) -> None:
        if len(parts) > _MAX_PARTS:
            parts = [b"".join(parts)]
        for part in parts:
            self._digest.update(part)
        written = os.writev(self._file.fileno(), parts)
        if written < sum(map(len, parts)):
            # The disk is full, so that the next write fails, or there were more than 2 GiB.
            self._file.write(memoryview(b"".join(parts))[written:])
            self._file.flush()  # writev() does not use the buffer of the file

    def finish(self) -> str:
        """Write the last chunk and the end of the archive; return the XXH3-128 of the shard as hexadecimal digits."""
        self._wait()
        self._append([*self._chunk, END])
        return self._digest.hexdigest()

    def close(self) -> None:
        """End the thread. Nothing is written after this."""
        self._thread.shutdown()


class ShardFile:
    """A tar shard and its index. Both appear when the ``with`` block ends without error; otherwise neither does.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "shard-000000.tar"
    >>> with ShardFile(path) as shard:
    ...     shard.write(Sample("000000000", {"txt": b"hello"}))
    >>> shard.entry.bytes, sorted(file.name for file in path.parent.iterdir())
    (2048, ['shard-000000.parquet', 'shard-000000.tar'])

    Args:
        path: Path of the finished shard, ending in ``.tar``. An existing file is replaced.

    Attributes:
        bytes: Length so far in bytes, without the blocks that end a tar file.
        entry: The shard's entry for the manifest. It is None until the shard is complete, and for a shard without
            samples, for which no file is written.
        index: The shard's index. It is None if ``entry`` is None.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.bytes = 0
        self.entry: ShardEntry | None = None
        self.index: Index | None = None
        self._rows = IndexBuilder()
        self._signatures: list[Signature | None] = []
        self._keys: set[str] = set()

    @property
    def samples(self) -> int:
        """Number of samples so far."""
        return len(self._keys)

    def __enter__(self) -> ShardFile:
        self._open = ExitStack()
        self._output = _Output(self._open.enter_context(CommitFile(self.path)))
        self._open.callback(self._output.close)
        return self

    def write(
        self,
        sample: Sample,
        *,
        label: int | None = None,
        image: ImageInfo | None = None,
        signature: Signature | None = None,
    ) -> None:
        """Append a sample, with its fields in the given order.

        Raises:
            SampleError: A duplicate key, or a name that readers would split into another key and field.
            OptionError: A name that is too long for tar readers.
            OSError: Writing failed, for example because the disk is full. The error can belong to an earlier sample.
        """
        headers = self._headers(sample)
        self._keys.add(sample.key)
        locations: dict[str, tuple[int, int, int]] = {}
        long_headers = {name: len(h) for name, h in zip(sample.fields, headers, strict=True) if len(h) != BLOCK}
        parts: list[bytes] = []
        end = self.bytes
        for header, (name, data) in zip(headers, sample.fields.items(), strict=True):
            size = len(data)
            locations[name] = (end + len(header), size, xxhash.xxh3_64_intdigest(data))
            parts += (header, data, _PADDING[: -size % BLOCK])
            end += len(header) + padded(size)
        self._output.write(parts, end - self.bytes)
        self.bytes = end
        self._rows.add(sample.key, locations, label, image, long_headers)
        self._signatures.append(signature)

    def _headers(self, sample: Sample) -> list[bytes]:
        """Return the header of each member. All are checked before the first byte is written."""
        if sample.key in self._keys:
            raise SampleError("was already written; keys must be unique", shard=self.path.name, key=sample.key)
        return member_headers(sample, shard=self.path.name)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.samples:
            with self._open:
                digest = self._output.finish()
            self._commit_index(digest)
        else:
            self._open.__exit__(kind or SampleError, error or SampleError("no samples"), trace)

    def _commit_index(self, digest: str) -> None:
        length = self.bytes + len(END)
        index = self._rows.build(shard=self.path.name, shard_bytes=length, shard_xxh3=digest)
        self.entry = commit_index(index, self.path.parent, self._signatures)
        self.index = index


def member_headers(sample: Sample, *, shard: str | None = None) -> list[bytes]:
    """Return the tar header of each field of a sample."""
    if not sample.fields:
        raise SampleError("has no fields", shard=shard, key=sample.key)
    headers, fitting = [], _round_trips(sample.key, "x")
    for name, data in sample.fields.items():
        member = f"{sample.key}.{name}"
        if not fitting or not _is_field(name):
            raise SampleError(
                f"field {name!r} would be read back as (key, field) = {split_name(member)}; allowed are keys "
                "without a dot after the last slash, lower-case fields, and text that can be encoded as UTF-8",
                shard=shard,
                key=sample.key,
            )
        headers.append(build_header(member, len(data)))
    return headers


def commit_index(index: Index, folder: Path, signatures: Sequence[Signature | None] = ()) -> ShardEntry:
    """Write a shard's index to its folder, and return the entry of both for the manifest.

    ``signatures`` has one for each sample, or None. If none has one, the index has no columns for them.
    """
    data = to_bytes(index)
    if any(signature is not None for signature in signatures):
        data = add_signatures(data, signatures)
    commit_bytes(folder / index_name(index.shard), data)
    return shard_entry(
        index.shard, data, samples=len(index), shard_bytes=index.shard_bytes, shard_xxh3=index.shard_xxh3
    )


@lru_cache(maxsize=1024)  # all samples of a dataset have the same few fields
def _is_field(name: str) -> bool:
    return _round_trips("x", name)


def _round_trips(key: str, name: str) -> bool:
    """Return whether readers split the member name ``key.name`` into this key and name again."""
    member = f"{key}.{name}"
    return split_name(member) == (key, name) and _is_storable(member)


def _is_storable(name: str) -> bool:
    """Return whether a name fits into the index, which is UTF-8, and into a tar header, where a zero byte ends it."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in name
