"""Sequential reading of a large object: ranges of bounded length, and a bounded part of it in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from wds_tools.storage.base import Store
from wds_tools.storage.local import LocalStore

CHUNK_BYTES = 8 << 20
"""Bytes per range; AWS recommends requests of 8 to 16 MiB."""


class ObjectStream:
    """The bytes of an object, sliced like a memoryview from the start to the end.

    Chunks are read in order, each once. The last chunks are kept, so that a slice may begin a little before the end of
    the one before. Bytes before them are read again.

    >>> content = memoryview(bytes(range(10)))
    >>> stream = ObjectStream(lambda start, stop: content[start:stop], 10, chunk_bytes=4)
    >>> list(stream[2:7]), len(stream)
    ([2, 3, 4, 5, 6], 10)

    Args:
        fetch: Function of (start, stop) that returns these bytes.
        size: Length of the object in bytes.
        chunk_bytes: Length of a range in bytes.
        on_chunk: Called with the offset and the bytes of each chunk, in order, when it is first read.
    """

    def __init__(
        self,
        fetch: Callable[[int, int], memoryview],
        size: int,
        *,
        chunk_bytes: int = CHUNK_BYTES,
        on_chunk: Callable[[int, memoryview], object] | None = None,
    ) -> None:
        self._fetch = fetch
        self._size = size
        self._chunk_bytes = chunk_bytes
        self._on_chunk = on_chunk
        self._chunks: deque[tuple[int, memoryview]] = deque()  # offset and bytes, without gaps
        self._last = (0, memoryview(b""))  # the last of them
        self._read = 0  # bytes read so far

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> memoryview:
        start, stop, _ = part.indices(self._size)
        offset, data = self._last
        if offset <= start < stop <= offset + len(data):  # most slices
            return data[start - offset : stop - offset]
        if stop <= start:
            return memoryview(b"")
        pieces = list(self._pieces(start, stop))
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def finish(self) -> None:
        """Read the chunks that have not been read. Of an empty object, read that."""
        if not self._size:
            self._fetch(0, 0)
        while self._read < self._size:
            self._read_chunk(self._read)

    def _pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        kept = self._chunks[0][0] if self._chunks else self._read
        while start < min(stop, kept):
            end = min(stop, kept, start + self._chunk_bytes)
            yield self._fetch(start, end)
            start = end
        for offset, data in list(self._chunks):
            if start < stop and offset <= start < offset + len(data):
                yield data[start - offset : stop - offset]
                start = offset + len(data)
        while start < stop:
            offset, data = self._read_chunk(start)
            if start < offset + len(data):
                yield data[start - offset : stop - offset]
                start = offset + len(data)

    def _read_chunk(self, needed: int) -> tuple[int, memoryview]:
        """Read the next chunk. Drop the chunks that end more than one chunk before ``needed``."""
        offset = self._read
        data = self._fetch(offset, min(offset + self._chunk_bytes, self._size))
        self._read += len(data)
        while self._chunks and self._chunks[0][0] + len(self._chunks[0][1]) <= needed - self._chunk_bytes:
            self._chunks.popleft()
        self._last = (offset, data)
        self._chunks.append(self._last)
        if self._on_chunk is not None:
            self._on_chunk(offset, data)
        return offset, data


def stream_object(
    store: Store, name: str, *, total_bytes: int, on_chunk: Callable[[int, memoryview], object] | None = None
) -> ObjectStream:
    """Return a stream of a shard in a store.

    Args:
        store: The store.
        name: File name of the shard.
        total_bytes: Length of the shard in bytes.
        on_chunk: Called with the offset and the bytes of each chunk.

    Reading it raises:
        TruncatedShardError: The length of the shard is not ``total_bytes``.
        StoreError: The storage fails, or the shard does not exist.
    """

    def fetch(start: int, stop: int) -> memoryview:
        return store.fetch(name, [(start, stop)], total_bytes=total_bytes)[0]

    # A local file is mapped, so that one chunk of any length takes no memory.
    chunk_bytes = total_bytes if isinstance(store, LocalStore) else CHUNK_BYTES
    return ObjectStream(fetch, total_bytes, chunk_bytes=max(1, chunk_bytes), on_chunk=on_chunk)
