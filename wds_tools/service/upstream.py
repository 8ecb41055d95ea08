"""Datasets at URLs as a library: blocks are fetched once for all clients and processes, verified, and cached.

A block that one client needs is fetched by one process, under the lock of the block cache; the others wait for it. If
the cache cannot store it, it is passed through. If the upstream fails, cached blocks are still served.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import xxhash

from wds_tools.errors import ManifestError, OptionError, StoreError, TruncatedShardError, WdsToolsError
from wds_tools.format.index import from_bytes
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, from_json
from wds_tools.lru_cache import LRUCache
from wds_tools.options import RemoteOptions
from wds_tools.service.blocks import ShardBlocks
from wds_tools.service.catalogue import files_of, summary_of
from wds_tools.service.contents import Content, DamagedFileError, Piece, Summary, UnavailableError
from wds_tools.service.local_files import LocalContent, OpenFile
from wds_tools.service.metrics import Metrics
from wds_tools.storage.base import MAX_FILE_BYTES, Block, StoredFile, whole_file
from wds_tools.storage.cache.blocks import BlockCache
from wds_tools.storage.commit import commit_bytes
from wds_tools.storage.requests.clients import open_client
from wds_tools.storage.requests.remote_folder import RemoteFolder
from wds_tools.storage.requests.retry import RetryPolicy

_log = logging.getLogger("wds_tools")
REFRESH_SECONDS = 30.0  # after which a manifest is read again
_POLICY = RetryPolicy(seconds=3.0, connect_seconds=3.0)  # then the response is 503, and the client repeats its request
_THREADS = 32
_BLOCKS_AHEAD = 3
_CLAIMED_SECONDS = 0.02  # between two looks at a block that another process fetches
_MAX_INDEX_MEMORY = 32 << 20
_Damage = Callable[[memoryview], str]
_FAILED = "the storage behind this service fails at present"


def name_of(url: str) -> str:
    """Return the name of the dataset at a URL.

    >>> name_of("s3://bucket/photos/")
    'photos'
    """
    return url.partition("?")[0].rstrip("/").rpartition("/")[2]


class UpstreamLibrary:
    """The datasets at some URLs.

    Args:
        urls: The URLs, which only the operator chooses.
        remote: The cache, and the options of the storage.
        metrics: Where bytes and hits are counted.

    Raises:
        OptionError: Two URLs have the same name.
    """

    def __init__(self, urls: Sequence[str], remote: RemoteOptions, metrics: Metrics) -> None:
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="upstream")
        self._datasets = {name_of(url): _Upstream(url, remote, metrics, self._executor) for url in urls}
        if len(self._datasets) < len(urls):
            raise OptionError(f"two of {', '.join(map(name_of, urls))} have the same name: serve them separately")

    def summaries(self) -> list[Summary]:
        """Return the datasets whose manifests are known."""
        available = [dataset.summary for dataset in self._datasets.values() if dataset.summary]
        return sorted(available, key=lambda summary: summary.name)

    def problems(self) -> dict[str, str]:
        """Return the datasets whose manifests could not be read."""
        return {name: dataset.problem for name, dataset in self._datasets.items() if dataset.problem}

    def find(self, dataset: str) -> Summary | None:
        """Return a dataset by its name."""
        upstream = self._datasets.get(dataset)
        return upstream.summary if upstream else None

    async def scan(self) -> None:
        """Read the manifests again that were last read more than `REFRESH_SECONDS` ago."""
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._executor, d.refresh) for d in self._datasets.values()))

    async def files(self, dataset: str) -> Mapping[str, int]:
        """Return the names and lengths of the files of a dataset."""
        upstream = self._datasets.get(dataset)
        return {name: file.bytes for name, file in upstream.files.items()} if upstream else {}

    async def open(self, dataset: str, name: str) -> Content | None:
        """Return a file of a dataset."""
        upstream = self._datasets.get(dataset)
        file = upstream.files.get(name) if upstream else None
        return _UpstreamContent(upstream, file) if upstream and file else None

    def close(self) -> None:
        """End all requests."""
        for dataset in self._datasets.values():
            dataset.client.close()
        self._executor.shutdown(wait=False, cancel_futures=True)


class _Upstream:
    """One dataset at a URL."""

    def __init__(self, url: str, remote: RemoteOptions, metrics: Metrics, executor: ThreadPoolExecutor) -> None:
        self.client = open_client(replace(RemoteFolder.of(url, remote), policy=_POLICY))
        self.summary: Summary | None = None
        self.problem = ""
        self.files: dict[str, StoredFile] = {}
        self.manifest_bytes = b""
        self.metrics = metrics
        self.executor = executor
        self._manifest: Manifest | None = None
        self._cache = BlockCache(
            remote.cache_folder, remote.cache_bytes, url=url, without="they are fetched again for each request"
        )
        self._copy = remote.cache_folder / f"manifest-{xxhash.xxh3_128_hexdigest(self.client.url.encode())}.json"
        self._name = name_of(url)
        self._read_at = float("-inf")
        self._fills: dict[str, asyncio.Task[OpenFile | memoryview]] = {}
        self._shards = LRUCache[str, ShardBlocks](max_items=1000, max_bytes=_MAX_INDEX_MEMORY)

    def refresh(self) -> None:
        """Read the manifest, unless it was just read. At the start, the copy that an earlier run saved is used."""
        if self.summary is None:
            with suppress(OSError, ManifestError):
                self._use(self._copy.read_bytes())  # at once, even if the upstream fails
                return
        if self.summary and time.monotonic() < self._read_at + REFRESH_SECONDS:
            return
        self._read_at = time.monotonic()
        try:
            data = self.client.read(MANIFEST_NAME, most_bytes=MAX_FILE_BYTES)
            if data != self.manifest_bytes:
                self._use(data)
                self.client.forget_versions()  # shards may have been packed again under their names
                self._save(data)
        except (OSError, WdsToolsError) as error:
            _log.warning("%s: its manifest cannot be read: %s", self._name, error)
            if not self.summary:
                self.problem = _FAILED

    def _save(self, data: bytes) -> None:
        try:
            self._copy.parent.mkdir(parents=True, exist_ok=True)
            commit_bytes(self._copy, data)
        except OSError as error:  # a restart then needs the upstream; the cache reports the same error
            _log.debug("%s cannot be written: %s", self._copy, error.strerror or error)

    def _use(self, data: bytes) -> None:
        manifest = from_json(data, name=f"{self.client.url}/{MANIFEST_NAME}")
        self.manifest_bytes, self.files, self._manifest = data, files_of(data, manifest), manifest
        self.summary, self.problem = summary_of(self._name, data, manifest), ""

    async def shard_blocks(self, file: StoredFile) -> ShardBlocks | None:
        """Return the blocks of a shard; None for an index."""
        cached = self._shards.get(file.checksum)
        if cached is not None:
            return cached
        assert self._manifest is not None
        entry = next((shard for shard in self._manifest.shards if shard.xxh3 == file.checksum), None)
        if entry is None or entry.name != file.name:
            return None
        index = StoredFile(entry.index, entry.index_bytes, entry.index_xxh3)
        data = await self.block(whole_file(index), index_damage(index))

        def build() -> ShardBlocks:
            content = data.read(index.bytes) if isinstance(data, OpenFile) else bytes(data)
            return ShardBlocks(from_bytes(content, name=index.name, samples=entry.samples))

        try:
            blocks = await asyncio.get_running_loop().run_in_executor(self.executor, build)
        except (ManifestError, ValueError) as error:
            raise DamagedFileError(f"its index is invalid: {error}") from error
        self._shards.put(file.checksum, blocks, blocks.memory_bytes)
        return blocks

    async def block(self, block: Block, damage: _Damage) -> OpenFile | memoryview:
        """Return a block, as a file of the cache or as bytes. Clients that wait for one block share a request."""
        task = self._fills.get(block.key)
        if task is None:
            loop = asyncio.get_running_loop()
            task = asyncio.ensure_future(_as_task(loop.run_in_executor(self.executor, self._fill, block, damage)))
            self._fills[block.key] = task
            task.add_done_callback(lambda done: self._forget(block.key, done))
        return await asyncio.shield(task)  # a client that goes away does not end it for the others

    def _forget(self, key: str, task: asyncio.Task[OpenFile | memoryview]) -> None:
        self._fills.pop(key, None)
        if not task.cancelled():
            task.exception()  # nobody may have waited for it

    def _fill(self, block: Block, damage: _Damage) -> OpenFile | memoryview:
        """Return a block from the cache, or fetch it. Called in a thread."""
        try:
            while True:
                if (cached := self._cached(block)) is not None:
                    self.metrics.cache_hits.inc()
                    return cached
                with self._cache.claim(block.key, wait=False) as is_claimed:
                    if is_claimed:  # another process may have stored it just before
                        return self._cached(block) or self._fetch_verified(block, damage)
                time.sleep(_CLAIMED_SECONDS)  # not wait=True: processes that wait for each other would not end
        except (TruncatedShardError, FileNotFoundError) as error:
            self.client.forget_versions()  # it may be repaired later
            _log.error("%s: %s", self._name, error)
            raise DamagedFileError("the object at the upstream is missing, or has the wrong length") from None
        except StoreError as error:
            self.client.forget_versions()  # it may have been replaced
            _log.warning("%s: %s", self._name, error)
            raise UnavailableError(_FAILED) from None

    def _fetch_verified(self, block: Block, damage: _Damage) -> OpenFile | memoryview:
        data = memoryview(bytearray(block.stop - block.start))
        self._fetch(block, data)
        if damage(data):
            self.client.forget_versions()
            self._fetch(block, data)
            if reason := damage(data):
                self.client.forget_versions()
                raise DamagedFileError(f"{reason}: it is damaged at the upstream")
        if self._cache.put(block.key, data) and (cached := self._cached(block)) is not None:
            return cached
        return data

    def _cached(self, block: Block) -> OpenFile | None:
        descriptor = self._cache.open(block.key, block.stop - block.start)
        return None if descriptor is None else OpenFile(descriptor)

    def _fetch(self, block: Block, into: memoryview) -> None:
        file, start, stop = block
        self.client.read_range(file.name, start, stop, into, total_bytes=file.bytes)
        self.metrics.upstream_bytes.inc(len(into))


class _UpstreamContent:
    """One file of a dataset at a URL."""

    def __init__(self, upstream: _Upstream, file: StoredFile) -> None:
        self.size = file.bytes
        self.checksum = file.checksum
        self._upstream = upstream
        self._file = file

    def at_once(self, start: int, stop: int) -> None:
        """Return None: blocks may have to be fetched first."""

    async def pieces(self, start: int, stop: int) -> AsyncGenerator[Piece, None]:
        """Return the bytes ``start`` to ``stop``; the next blocks of the range are fetched meanwhile."""
        if self._file.name == MANIFEST_NAME:
            yield memoryview(self._upstream.manifest_bytes)[start:stop]
            return
        if start >= stop:
            return
        blocks = await self._blocks(start, stop)
        tasks: list[asyncio.Task[OpenFile | memoryview]] = []
        try:
            for index, (block, _) in enumerate(blocks):
                for next_block, damage in blocks[len(tasks) : index + 1 + _BLOCKS_AHEAD]:
                    tasks.append(asyncio.ensure_future(self._upstream.block(next_block, damage)))
                data = await tasks[index]
                first, last = max(start, block.start) - block.start, min(stop, block.stop) - block.start
                if isinstance(data, OpenFile):
                    stored = StoredFile(block.file.name, block.stop - block.start, "")
                    counted = self._upstream.metrics.cold_reads.inc
                    content = LocalContent(data, stored, self._upstream.executor, counted)
                    async for piece in content.pieces(first, last):
                        yield piece
                else:
                    yield data[first:last]
                self._upstream.metrics.upstream_sent_bytes.inc(last - first)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _blocks(self, start: int, stop: int) -> list[tuple[Block, _Damage]]:
        """Return the blocks of a range, and how each is verified."""
        shard = await self._upstream.shard_blocks(self._file)
        if shard is None:
            return [(whole_file(self._file), index_damage(self._file))]
        bounds = shard.bounds.tolist()
        blocks = [Block(self._file, a, b) for a, b in pairwise(bounds) if a < stop and start < b]
        return [(block, lambda data, at=block.start: shard.damage(at, data)) for block in blocks]  # type: ignore[misc]


def index_damage(file: StoredFile) -> _Damage:
    """Return the check of a whole file by its checksum."""

    def damage(data: memoryview) -> str:
        return (
            "" if xxhash.xxh3_128_hexdigest(data) == file.checksum else "it does not match the checksum in its manifest"
        )

    return damage


async def _as_task(future: asyncio.Future[OpenFile | memoryview]) -> OpenFile | memoryview:
    return await future
