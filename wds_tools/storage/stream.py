"""Sequential reading of a large object: ranges of bounded length, and a bounded part of it in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from wds_tools.storage.base import Store

CHUNK_BYTES = 8 << 20
"""Bytes per range; AWS recommends requests of 8 to 16 MiB."""

CHUNKS_AHEAD = 1
"""Chunks of a remote object that are requested before they are needed."""


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
        """Read the chunks that have not been read. An empty object is requested too."""
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
    if not store.is_remote:  # a local file is mapped, so that one chunk of any length takes no memory
        return ObjectStream(
            lambda start, stop: store.fetch(name, [(start, stop)], total_bytes=total_bytes)[0],
            total_bytes,
            chunk_bytes=max(1, total_bytes),
            on_chunk=on_chunk,
        )
    return ObjectStream(_ReadAhead(store, name, total_bytes), total_bytes, chunk_bytes=CHUNK_BYTES, on_chunk=on_chunk)


class _ReadAhead:
    """Fetches ranges of an object, and the chunks after them at the same time."""

    def __init__(self, store: Store, name: str, total_bytes: int) -> None:
        self._store = store
        self._name = name
        self._total_bytes = total_bytes
        self._executor = ThreadPoolExecutor(CHUNKS_AHEAD + 1)
        self._chunks: dict[int, Future[memoryview]] = {}  # requested chunks, by their offset

    def __call__(self, start: int, stop: int) -> memoryview:
        if start not in self._chunks and (start % CHUNK_BYTES or start >= stop):
            return self._fetch(start, stop)
        for offset in range(start, min(self._total_bytes, start + (CHUNKS_AHEAD + 1) * CHUNK_BYTES), CHUNK_BYTES):
            if offset not in self._chunks:
                end = min(offset + CHUNK_BYTES, self._total_bytes)
                self._chunks[offset] = self._executor.submit(self._fetch, offset, end)
        return self._chunks.pop(start).result()[: stop - start]

    def _fetch(self, start: int, stop: int) -> memoryview:
        return self._store.fetch(self._name, [(start, stop)], total_bytes=self._total_bytes)[0]
