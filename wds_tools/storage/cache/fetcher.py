"""Fetching of blocks from a URL into the cache: urgent ones first, then those that will be needed next.

A `Fetcher` runs requests in threads. A loader has it in a separate process, see `fetcher_process`;
tools have it in their own process.

Each block is requested once, even if several threads and processes wait for it. The first samples of
an iteration lie in as many blocks as there are samples. So that the first batch does not wait for all
of these blocks, the bytes of its samples are requested separately, in addition to the blocks.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from time import monotonic, perf_counter

from wds_tools.errors import StoreError
from wds_tools.storage.base import MAX_FILE_BYTES, Block, Extent, FetchStatistics, StoredFile, whole_file
from wds_tools.storage.cache.blocks import BlockCache
from wds_tools.storage.requests.clients import Client
from wds_tools.wording import human_bytes

THREADS = 32
MAX_FILE_THREADS = 256  # in which indexes are read
MAX_REQUEST_BYTES = 8 << 20  # of adjacent blocks in one request; AWS recommends requests of 8 to 16 MiB
MAX_DIRECT_BYTES = 64 << 20  # of samples that are requested in addition to their blocks; they are kept in memory
DIRECT_SHARE = 0.018  # of the bytes of a dataset
MAX_GAP_BYTES = 64 << 10  # between blocks that share a request, such as the header of the next sample
RECENT_SECONDS = 10.0  # in which a manifest is not read again: the ranks of a machine start at about the same time
RETRY_STORING_SECONDS = 30.0  # after a block could not be stored
_DIRECT, _URGENT, _AHEAD = range(3)  # priorities
Buffer = bytes | bytearray


@dataclass(slots=True)
class _Task:
    """A range that is requested once. The result is its bytes, or None for a block, whose bytes are in the cache."""

    block: Block
    is_direct: bool = False
    is_started: bool = False
    future: Future[Buffer | None] = field(default_factory=Future)


class _NotStoredError(Exception):
    """The cache cannot store a block."""


class _ClaimedError(Exception):
    """Another process is fetching a block."""


class Fetcher:
    """Fetches blocks of one folder into a cache. All methods may be called from several threads.

    Args:
        client: Client for the folder.
        cache: Cache for the blocks.
        threads: Number of requests at a time.
    """

    def __init__(self, client: Client, cache: BlockCache, *, threads: int = THREADS) -> None:
        self._client = client
        self._cache = cache
        self._condition = threading.Condition()
        self._queue: list[tuple[int, int, _Task]] = []  # heap of (priority, sequence number, task)
        self._sequence = itertools.count()
        self._blocks: dict[str, _Task] = {}  # unfinished tasks of blocks, by key
        self._unannounced: set[str] = set()  # keys of blocks that were fetched before `read_ahead` named them
        self._direct: dict[
            str, list[_Task]
        ] = {}  # samples requested in addition to their blocks, by checksum of the shard
        self._direct_bytes = 0
        self._files: dict[str, tuple[Future[bytes], float]] = {}  # manifests and indexes, and when reading began
        self._statistics = FetchStatistics()
        self._no_storing_until = 0.0  # time.monotonic() until which nothing is stored, because storing has failed
        self._is_closed = False
        self._max_threads = threads
        self._threads = 0
        self._idle_threads = 0

    @property
    def statistics(self) -> FetchStatistics:
        """What has been read so far."""
        with self._condition:
            return self._statistics + FetchStatistics()

    def read(self, name: str, file: StoredFile | None = None, *, fresh: bool = False) -> bytes:
        """Return a whole file. If its checksum is known, it may come from the cache; it is not verified.

        A manifest is read once within `RECENT_SECONDS`, except with ``fresh``.
        """
        key = whole_file(file).key if file else ""
        if file and (cached := self._cache.get(key, file.bytes)) is not None:
            return bytes(cached)
        with self._condition:
            now = monotonic()
            oldest = now - RECENT_SECONDS
            for path in [
                path for path, (earlier, begun) in self._files.items() if earlier.done() and (begun < oldest or fresh)
            ]:
                del self._files[path]
            is_new = name not in self._files
            future = self._files.setdefault(name, (Future(), now))[0]
        if not is_new:
            return future.result()
        try:
            data = self._client.read(name, most_bytes=MAX_FILE_BYTES)
            self._count(1, len(data))
            if file and len(data) == file.bytes:
                self._cache.put(key, data)
            future.set_result(data)
        except BaseException as error:
            future.set_exception(error)
            raise
        finally:
            if file or future.exception():  # a manifest is kept: the other ranks of a machine read it soon
                with self._condition:
                    self._files.pop(name, None)
        return data

    def read_many(self, files: Sequence[StoredFile], *, wait: bool = True) -> None:
        """Read files into the cache, at the same time; errors are raised when a file is read by `read`."""
        missing = deque(file for file in files if not self._cache.contains(whole_file(file).key))

        def read_missing() -> None:
            while missing:
                with contextlib.suppress(Exception):  # from popleft() too, if another thread took the last file
                    file = missing.popleft()
                    self.read(file.name, file)

        count = min(len(missing), MAX_FILE_THREADS)
        threads = [threading.Thread(target=read_missing, daemon=True) for _ in range(count)]
        started = []
        with contextlib.suppress(RuntimeError):  # the system allows no further thread
            for thread in threads:
                thread.start()
                started.append(thread)
        for thread in started if wait else ():
            thread.join()

    def fetch(self, extents: Sequence[Extent], *, inline: bool = False) -> list[Buffer | None]:
        """Wait until ranges can be read.

        Args:
            extents: The ranges.
            inline: Return bytes even of blocks that are in the cache.

        Returns:
            For each range its bytes, or None if its block is in the cache.

        Raises:
            TruncatedShardError: The length of a shard is not the expected one.
            StoreError: The storage fails, or a shard does not exist.
        """
        started = perf_counter()
        try:
            if inline:
                return self._fetch_directly(extents)
            direct = [self._find_direct(extent) for extent in extents]
            blocks = {extent.block.key: extent.block for extent, task in zip(extents, direct, strict=True) if not task}
            waiting = {key: self._submit(block, _URGENT) for key, block in blocks.items() if not self._cache.has(block)}
            missing = {key for key, task in waiting.items() if not self._wait(task)}
            values: list[Buffer | None] = [None] * len(extents)
            uncached = [i for i, extent in enumerate(extents) if not direct[i] and extent.block.key in missing]
            for i, data in zip(uncached, self._fetch_directly([extents[i] for i in uncached]), strict=True):
                values[i] = data
            for i, (extent, task) in enumerate(zip(extents, direct, strict=True)):
                if task:
                    start = task.block.start
                    values[i] = task.future.result()[extent.start - start : extent.stop - start]  # type: ignore[index]
            return values
        finally:
            with self._condition:
                self._statistics.waiting_seconds += perf_counter() - started

    def fetch_samples(self, extents: Sequence[Extent], *, dataset_bytes: int) -> None:
        """Start fetching single samples whose blocks are not in the cache, before all blocks.

        Args:
            extents: The samples.
            dataset_bytes: Size of the part of the dataset that this machine reads. Samples are fetched up to a small
                share of it, because their blocks are fetched too.
        """
        limit = min(MAX_DIRECT_BYTES, int(DIRECT_SHARE * dataset_bytes))
        for extent in extents:
            block, start, stop = extent
            if self._cache.has(block):
                continue
            with self._condition:
                if self._direct_bytes + stop - start > limit:
                    return
                self._direct_bytes += stop - start
                task = _Task(Block(block.file, start, stop), is_direct=True)
                self._direct.setdefault(block.file.checksum, []).append(task)
                self._push(_DIRECT, task)

    def read_ahead(self, blocks: Iterable[Block]) -> None:
        """Start fetching blocks, in this order, after everything that is needed at once."""
        for block in blocks:
            is_cached = self._cache.has(block)
            with self._condition:
                self._statistics.blocks += 1
                self._statistics.cached_blocks += is_cached and block.key not in self._unannounced
                self._unannounced.discard(block.key)
                if not is_cached:  # within the lock: a reader that asks first would mark the block as unannounced
                    self._submit(block, _AHEAD)

    def release(self, blocks: Iterable[Block]) -> None:
        """Mark blocks that will not be fetched again in this epoch."""
        self._cache.release(block.key for block in blocks)

    def list_files(self) -> list[str]:
        """Return the sorted names of the files in the folder."""
        return self._client.list()

    def close(self) -> None:
        """Stop the threads after their current requests; waiting readers get a CancelledError."""
        with self._condition:
            self._is_closed = True
            for _, _, task in self._queue:
                task.future.cancel()
            self._queue.clear()
            self._condition.notify_all()
        self._client.close()

    def _find_direct(self, extent: Extent) -> _Task | None:
        """Return the task of a sample that contains a range, unless the block of the range is in the cache."""
        with self._condition:
            tasks = self._direct.get(extent.block.file.checksum, ())
            matches = (task for task in tasks if task.block.start <= extent.start and extent.stop <= task.block.stop)
            task = next(matches, None)
        if task is None or self._cache.has(extent.block):
            return None
        if task.future.done() and task.future.exception():
            return None
        return task

    def _wait(self, task: _Task) -> bool:
        """Wait for the task of a block; return whether its block is in the cache then."""
        while True:
            try:
                task.future.result()
            except _NotStoredError:
                return False
            except _ClaimedError:  # found by a task that did not wait for the other process
                task = self._submit(task.block, _URGENT)
            else:
                return True

    def _fetch_directly(self, extents: Sequence[Extent]) -> list[Buffer | None]:
        tasks = [_Task(Block(extent.block.file, extent.start, extent.stop), is_direct=True) for extent in extents]
        with self._condition:
            for task in tasks:
                self._push(_URGENT, task)
        return [task.future.result() for task in tasks]

    def _submit(self, block: Block, priority: int) -> _Task:
        with self._condition:
            task = self._blocks.get(block.key)
            if task is None:
                task = self._blocks[block.key] = _Task(block)
                if priority == _URGENT:
                    self._unannounced.add(block.key)
            elif task.is_started or priority == _AHEAD:
                return task
            self._push(priority, task)
            return task

    def _push(self, priority: int, task: _Task) -> None:
        heapq.heappush(self._queue, (priority, next(self._sequence), task))
        if self._idle_threads < len(self._queue) and self._threads < self._max_threads:
            try:
                threading.Thread(target=self._work, daemon=True).start()
                self._threads += 1
            except RuntimeError as error:  # the system allows no further thread
                if not self._threads:
                    self._queue.clear()
                    raise StoreError(
                        f"no thread can be started to read from storage ({error}): raise the limit of processes with "
                        "`ulimit -u`"
                    ) from error
        self._condition.notify()

    def _work(self) -> None:
        """Main function of a thread."""
        buffer = bytearray()
        while tasks := self._next_tasks():
            first = tasks[0][1]
            size = tasks[-1][1].block.stop - first.block.start
            if first.is_direct:  # the bytes are the result
                self._request_directly(first)
                continue
            if len(buffer) < size:
                try:
                    buffer = bytearray(size)
                except MemoryError as error:
                    for _, task in tasks:
                        self._finish(task, error)
                    continue
            self._run(tasks, memoryview(buffer))

    def _next_tasks(self) -> list[tuple[int, _Task]]:
        """Return (priority, task) of the next block, and of blocks that follow it in the same shard; [] at the end."""
        with self._condition:
            while not self._is_closed:
                if not self._queue:
                    self._idle_threads += 1
                    self._condition.wait()
                    self._idle_threads -= 1
                    continue
                batch: list[tuple[int, _Task]] = []
                while self._queue and (not batch or _can_join(batch, self._queue[0][2])):
                    priority, _, task = heapq.heappop(self._queue)
                    if not task.is_started:
                        task.is_started = True
                        batch.append((priority, task))
                if batch:
                    return batch
            return []

    def _run(self, tasks: list[tuple[int, _Task]], buffer: memoryview) -> None:
        """Fetch neighbouring blocks with one request."""
        with contextlib.ExitStack() as claims:
            claimed: list[_Task] = []
            for position, (priority, task) in enumerate(tasks):
                wait = (
                    priority == _URGENT and position == 0
                )  # only one: two waiting processes must not wait in a circle
                if monotonic() < self._no_storing_until:
                    self._finish(task, _NotStoredError())
                elif not claims.enter_context(self._cache.claim(task.block.key, wait=wait)):
                    self._finish(task, _ClaimedError())
                elif self._cache.has(task.block):
                    self._finish(task, None)
                else:
                    claimed.append(task)
            for adjacent in _runs(claimed):
                self._request(adjacent, buffer)

    def _request_directly(self, task: _Task) -> None:
        """Fetch a range that is not cached."""
        file, start, stop = task.block
        try:
            data = bytearray(stop - start)
            self._client.read_range(file.name, start, stop, memoryview(data), total_bytes=file.bytes)
        except BaseException as error:
            self._finish(task, error)
            return
        self._count(1, len(data))
        self._finish(task, data)

    def _request(self, tasks: list[_Task], buffer: memoryview) -> None:
        """Fetch neighbouring blocks into the cache."""
        file, start, stop = tasks[0].block.file, tasks[0].block.start, tasks[-1].block.stop
        data = buffer[: stop - start]
        try:
            self._client.read_range(file.name, start, stop, data, total_bytes=file.bytes)
        except BaseException as error:
            for task in tasks:
                self._finish(task, error)
            return
        self._count(1, len(data))
        for task in tasks:
            part = data[task.block.start - start : task.block.stop - start]
            if self._cache.put(task.block.key, part):
                self._finish(task, None)
            else:
                self._no_storing_until = monotonic() + RETRY_STORING_SECONDS
                self._finish(task, _NotStoredError())

    def _finish(self, task: _Task, result: Buffer | BaseException | None) -> None:
        with self._condition:
            if not task.is_direct:
                del self._blocks[task.block.key]
        if isinstance(result, MemoryError):
            file, start, stop = task.block
            size = human_bytes(stop - start)
            result = StoreError(f"there is no memory to read {size} of {file.name}: raise the limit (`ulimit -v`)")
        if isinstance(result, BaseException):
            task.future.set_exception(result)
        else:
            task.future.set_result(result)

    def _count(self, requests: int, count: int) -> None:
        with self._condition:
            self._statistics.requests += requests
            self._statistics.fetched_bytes += count


def _can_join(batch: list[tuple[int, _Task]], task: _Task) -> bool:
    """Return whether a task can share a request with the tasks that were found before it."""
    first, last = batch[0][1], batch[-1][1]
    return (
        not (task.is_started or task.is_direct or first.is_direct)
        and task.block.file == last.block.file
        and 0 <= task.block.start - last.block.stop <= MAX_GAP_BYTES
        and task.block.stop - first.block.start <= MAX_REQUEST_BYTES
    )


def _runs(tasks: list[_Task]) -> list[list[_Task]]:
    """Divide sorted tasks into runs of neighbours, after some were left out."""
    runs: list[list[_Task]] = []
    for task in tasks:
        if runs and 0 <= task.block.start - runs[-1][-1].block.stop <= MAX_GAP_BYTES:
            runs[-1].append(task)
        else:
            runs.append([task])
    return runs
