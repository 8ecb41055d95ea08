"""What the page shows of a dataset: rows of its indexes, numbers of samples by class, fields of a sample.

Files are read through the library, as clients get them, and indexes are parsed in a helper process. Only the indexes of
the shards on a page are read. A filter is applied shard by shard until the page is full.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import xxhash

from wds_tools.errors import ManifestError
from wds_tools.format.image_signature import COLUMNS as SIGNATURE_COLUMNS
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, ShardEntry, from_json
from wds_tools.lru_cache import LRUCache
from wds_tools.service.contents import DamagedFileError, FilePiece, Library, UnavailableError
from wds_tools.service.pages.background import Tasks
from wds_tools.service.pages.helpers import HelperError, HelperPool
from wds_tools.service.pages.kept_results import KeptResults
from wds_tools.service.pages.summary import Summary

MAX_VALUE_BYTES = 32 << 20
"""Longest field that is read at once."""

MAX_VALUES = 4
"""Fields, and indexes, that are in memory at the same time, however many requests there are."""

_MAX_FILE_BYTES = 256 << 20
_MAX_FILTERS = 32
_MAX_OPENED = 64  # datasets
_MAX_LABEL = 10**12  # that a page links to
_AT_ONCE = 16  # shards, which take some hundredths of a second each
_COUNT_SECONDS = 0.3  # for which a page waits for the sums over all shards
_FILTER_SECONDS = 0.6  # for which a page waits for its samples
_FEW_FILTER_SECONDS = 5.0  # as above, if few shards are left
_SEARCH_SECONDS = 10.0  # for which a search goes on after a request
_ERRORS = (DamagedFileError, UnavailableError, HelperError, ManifestError, OSError)


class BrowseError(Exception):
    """A dataset cannot be shown. The message has no paths of the server."""


@dataclass(slots=True)
class Opened:
    """A version of a dataset.

    Attributes:
        name: Its name.
        version: XXH3-128 of its manifest.
        manifest: Its manifest.
        starts: Number of the first sample of each shard.
        summary: Sums over the shards counted so far.
        further: Further columns of the first index, once it has been read.
    """

    name: str
    version: str
    manifest: Manifest
    starts: list[int]
    summary: Summary = field(default_factory=Summary)
    further: list[str] = field(default_factory=list)
    counting: asyncio.Task[None] | None = None
    error: str = ""

    def locate(self, sample: int) -> tuple[int, int]:
        """Return the shard of a sample, and its row there."""
        shard = bisect_right(self.starts, sample) - 1
        return shard, sample - self.starts[shard]

    @property
    def columns(self) -> list[str]:
        """The columns that a condition may use."""
        sizes = [f"{name}.size" for name in self.manifest.fields]
        return ["id", "key", "label", "width", "height", "mode", "orientation", *sizes, *self.further]

    @property
    def is_counted(self) -> bool:
        """Whether all shards have been counted."""
        return self.summary.shards == len(self.manifest.shards)

    def class_counts(self) -> dict[int, int]:
        """Return the samples of each class, in the order of the numbers, with the classes that have none so far."""
        labels = self.summary.labels
        unnamed = (label for label in labels if label is not None and 0 <= label < _MAX_LABEL)
        return {label: labels[label] for label in sorted({*range(len(self.manifest.classes)), *unnamed})}


@dataclass(slots=True)
class Matches:
    """The samples that match a filter, in the shards searched so far.

    Attributes:
        rows: Rows of each searched shard.
        ends: Number of samples found up to the end of each searched shard.
        enough: Number of samples with which the search stops.
        until: Time of the monotonic clock at which it stops.
        mistake: What is wrong with the condition, see `Page`.
        error: Why the search has stopped.
    """

    rows: list[array[int]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    enough: int = 0
    until: float = 0.0
    mistake: dict[str, Any] | None = None
    error: str = ""
    task: asyncio.Task[None] | None = None

    @property
    def count(self) -> int:
        """Samples found so far."""
        return self.ends[-1] if self.ends else 0


@dataclass(frozen=True, slots=True)
class Filter:
    """Which samples a page shows: of one class, and those that meet a condition."""

    label: int | None = None
    where: str = ""

    def __bool__(self) -> bool:
        return self.label is not None or bool(self.where)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of samples.

    Attributes:
        samples: Numbers of the samples, and what their rows show.
        first: Position of the first one among all that match the filter.
        total: Number of samples that match; if not all shards were searched, of those found so far.
        searched: Number of shards that were searched.
        is_complete: Whether ``total`` is final.
        mistake: What is wrong with the condition: message, start and stop.
    """

    samples: list[dict[str, Any]]
    first: int = 0
    total: int = 0
    searched: int = 0
    is_complete: bool = True
    mistake: dict[str, Any] | None = None


class Browser:
    """Reads datasets for the page.

    Args:
        helpers: Processes that parse indexes.
        kept: Results that outlive the service.
    """

    def __init__(self, library: Library, helpers: HelperPool, kept: KeptResults) -> None:
        self._library = library
        self._kept = kept
        self._helpers = helpers
        self._opened = LRUCache[str, Opened](max_items=_MAX_OPENED)
        self._loading = asyncio.Semaphore(MAX_VALUES)
        self._tasks = Tasks()
        self._matches = LRUCache[tuple[str, Filter], Matches](max_items=_MAX_FILTERS)

    async def close(self) -> None:
        """End what runs in the background."""
        await self._tasks.close()

    async def open(self, name: str) -> Opened | None:
        """Return a dataset by its name; None if there is none.

        Raises:
            BrowseError: Its manifest cannot be read.
        """
        summary = self._library.find(name)
        if summary is None:
            return None
        cached = self._opened.get(name)
        if cached is not None and cached.version == summary.version:
            return cached
        with _as_browse_error():
            data = await self._read_file(name, MANIFEST_NAME)
            manifest = await asyncio.to_thread(from_json, data)
        starts = [0, *accumulate(shard.samples for shard in manifest.shards)][:-1]
        opened = Opened(name, xxhash.xxh3_128_hexdigest(data), manifest, starts)
        if cached is not None and cached.counting is not None:
            cached.counting.cancel()
        self._opened.put(name, opened)
        return opened

    async def page(self, opened: Opened, selection: Filter, page_number: int, size: int) -> Page:
        """Return a page of samples; pages count from 1, and a number beyond the end becomes the last page.

        Raises:
            BrowseError: An index cannot be read.
        """
        with _as_browse_error():
            if not selection:
                total = opened.manifest.samples
                first = min((page_number - 1) * size, max(0, total - 1) // size * size)
                ids = list(range(first, min(first + size, total)))
                return Page(await self._rows(opened, ids), first, total, len(opened.manifest.shards))
            checked = await self._check(opened, selection) if selection.where else {}
            if "mistake" in checked:
                return Page([], mistake=checked["mistake"])
            return await self._filtered(opened, selection, page_number, size, checked.get("further", []))

    async def sample(self, opened: Opened, sample: int) -> tuple[dict[str, Any], list[dict[str, Any]], ShardEntry]:
        """Return the row of a sample, its fields with their offsets, and its shard.

        Raises:
            BrowseError: The index cannot be read.
        """
        shard, row = opened.locate(sample)
        with _as_browse_error():
            answer, _ = await self._ask(opened, shard, {"question": "sample", "row": row})
        return answer["sample"], answer["fields"], opened.manifest.shards[shard]

    async def value(self, opened: Opened, shard: ShardEntry, stored: dict[str, Any]) -> bytes:
        """Return the bytes of a field.

        Raises:
            BrowseError: They cannot be read, are too long, or do not match their checksum.
        """
        start, size = stored["offset"], stored["size"]
        if size > MAX_VALUE_BYTES:
            raise BrowseError(f"the field has {size:,} bytes; the page shows at most {MAX_VALUE_BYTES:,}")
        with _as_browse_error():
            data = await self._read_file(opened.name, shard.name, start, start + size)
        if f"{xxhash.xxh3_64_intdigest(data):016x}" != stored["xxh3"]:
            raise BrowseError("the bytes have changed since they were packed: their checksum is different")
        return data

    async def summary(self, opened: Opened) -> Summary:
        """Return the sums over the shards that have been counted after a short time."""
        if opened.counting is None or (opened.counting.done() and not opened.is_counted and not opened.error):
            opened.counting = self._tasks.start(self._count(opened))
        is_soon = len(opened.manifest.shards) - opened.summary.shards <= _AT_ONCE
        await asyncio.wait([opened.counting], timeout=_COUNT_SECONDS if is_soon else 0)
        return opened.summary

    async def image_columns(self, opened: Opened, shard: int) -> bytes:
        """Return the columns of a shard that say what is wrong with its images, see `problem_search`.

        Raises:
            BrowseError: The index cannot be read.
        """
        with _as_browse_error():
            _, data = await self._ask(opened, shard, {"question": "image_columns", "further": SIGNATURE_COLUMNS})
        return data

    async def read(self, opened: Opened, name: str, start: int, stop: int) -> bytes:
        """Return bytes of a file of a dataset. They are not compared with a checksum.

        Raises:
            BrowseError: They cannot be read, or are too long.
        """
        with _as_browse_error():
            return await self._read_file(opened.name, name, start, stop)

    async def read_manifest(self, opened: Opened) -> bytes:
        """Return the manifest of this version of a dataset.

        Raises:
            BrowseError: It cannot be read, or has been replaced.
        """
        with _as_browse_error():
            data = await self._read_file(opened.name, MANIFEST_NAME)
        if xxhash.xxh3_128_hexdigest(data) != opened.version:
            raise BrowseError("the dataset has changed: reload the page")
        return data

    async def check_lengths(self, opened: Opened, shards: Sequence[ShardEntry]) -> list[str]:
        """Return for each shard what is wrong with it or its index, such as a wrong length; "" if nothing is."""
        problems = []
        for shard in shards:
            problem = ""
            for name in (shard.name, shard.index):
                try:
                    if await self._library.open(opened.name, name) is None:
                        problem = "the dataset has changed"
                except (DamagedFileError, UnavailableError) as error:
                    problem = f"{name}: {error}"
            problems.append(problem)
        return problems

    async def _check(self, opened: Opened, selection: Filter) -> dict[str, Any]:
        """Return the mistake in a condition, or the further columns that it uses. The first index decides."""
        arguments = {"where": selection.where, "classes": list(opened.manifest.classes)}
        answer, _ = await self._ask(opened, 0, {"question": "check", "arguments": arguments})
        return answer

    async def _filtered(self, opened: Opened, selection: Filter, page: int, size: int, further: list[str]) -> Page:
        key = (opened.version, selection)
        matches = self._matches.get(key)
        if matches is None:
            matches = Matches()
            self._matches.put(key, matches)
        matches.enough = max(matches.enough, page * size)
        matches.until = time.monotonic() + _SEARCH_SECONDS
        if matches.task is None or matches.task.done():
            matches.task = self._tasks.start(self._search(opened, selection, matches, further))
        shards = len(opened.manifest.shards)
        is_soon = shards - len(matches.ends) <= _AT_ONCE
        await asyncio.wait([matches.task], timeout=_FEW_FILTER_SECONDS if is_soon else _FILTER_SECONDS)
        if matches.error:
            raise BrowseError(matches.error)
        if matches.mistake:
            return Page([], mistake=matches.mistake)
        total, searched = matches.count, len(matches.ends)  # the search goes on
        first = min(page - 1, max(0, total - 1) // size) * size
        ids = [_nth(opened, matches, position) for position in range(first, min(first + size, total))]
        return Page(await self._rows(opened, ids), first, total, searched, searched == shards)

    async def _search(self, opened: Opened, selection: Filter, matches: Matches, further: list[str]) -> None:
        """Search the shards that have not been searched, until there are enough samples or nobody waits for them."""
        matches.error = ""
        try:
            while (
                len(matches.ends) < len(opened.manifest.shards)
                and matches.count <= matches.enough
                and time.monotonic() < matches.until
                and not matches.mistake
            ):
                matches.mistake = await self._search_next(opened, selection, matches, further)
        except _ERRORS as error:
            matches.error = _message(error)

    async def _search_next(
        self, opened: Opened, selection: Filter, matches: Matches, further: list[str]
    ) -> dict[str, Any] | None:
        """Search the next shard; return the mistake in the condition, if there is one."""
        shard = len(matches.ends)
        arguments = {
            "where": selection.where,
            "label": selection.label,
            "classes": list(opened.manifest.classes) if selection.where else [],
            "first": opened.starts[shard],
        }
        message = {"question": "match", "further": further, "arguments": arguments}
        answer, data = await self._ask(opened, shard, message)
        if "mistake" in answer:
            return dict(answer["mistake"])
        rows = array("I")
        rows.frombytes(data)
        samples = opened.manifest.shards[shard].samples
        if rows and max(rows) >= samples:
            raise HelperError("an index has rows beyond its end")
        matches.rows.append(rows)
        matches.ends.append(matches.count + len(rows))
        return None

    async def _rows(self, opened: Opened, ids: Sequence[int]) -> list[dict[str, Any]]:
        """Return what a page shows of some samples, in ascending order."""
        by_shard: dict[int, list[int]] = {}
        for sample in ids:
            shard, row = opened.locate(sample)
            by_shard.setdefault(shard, []).append(row)
        samples: list[dict[str, Any]] = []
        for shard, rows in by_shard.items():
            answer, _ = await self._ask(opened, shard, {"question": "rows", "rows": rows})
            if shard == 0:
                opened.further = answer["further"]
            samples += [{"id": opened.starts[shard] + n, **row} for n, row in zip(rows, answer["rows"], strict=True)]
        return samples

    async def _count(self, opened: Opened) -> None:
        try:
            if (stored := await self._kept.find("summary", opened.version)) is not None:
                opened.summary = Summary.from_dict(stored)
                return
            for shard in range(opened.summary.shards, len(opened.manifest.shards)):
                answer, _ = await self._ask(opened, shard, {"question": "summary"})
                opened.summary.add(answer)
            await self._kept.put("summary", opened.version, opened.summary.to_dict())
        except _ERRORS as error:
            opened.error = _message(error)

    async def _ask(self, opened: Opened, shard: int, message: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Ask about the index of a shard; send the index if the helper does not have it."""
        entry = opened.manifest.shards[shard]
        message = {**message, "index": entry.index_xxh3, "samples": entry.samples}
        answer, data = await self._helpers.ask(message)
        if answer.get("missing"):
            async with self._loading:
                index = await self._read_file(opened.name, entry.index)
                if xxhash.xxh3_128_hexdigest(index) != entry.index_xxh3:
                    raise HelperError(f"{entry.index} does not match its checksum in the manifest")
                answer, data = await self._helpers.ask(message, index)
        return answer, data

    async def _read_file(self, dataset: str, name: str, start: int = 0, stop: int | None = None) -> bytes:
        content = await self._library.open(dataset, name)
        if content is None:
            raise DamagedFileError("the dataset has changed: reload the page")
        stop = content.size if stop is None else stop
        if not 0 <= start <= stop <= content.size or stop - start > _MAX_FILE_BYTES:
            raise DamagedFileError(f"bytes {start:,} to {stop:,} of {name} cannot be shown")
        parts = []
        async with aclosing(content.pieces(start, stop)) as pieces:
            async for piece in pieces:
                if isinstance(piece, FilePiece):  # it is in memory already
                    parts.append(os.pread(piece.file.fileno(), piece.count, piece.offset))
                else:
                    parts.append(bytes(piece))
        data = b"".join(parts)
        if len(data) != stop - start:
            raise DamagedFileError(f"{name} was truncated")
        return data


def _nth(opened: Opened, matches: Matches, position: int) -> int:
    """Return the number of the sample at a position among those found."""
    shard = bisect_right(matches.ends, position)
    before = matches.ends[shard - 1] if shard else 0
    return opened.starts[shard] + matches.rows[shard][position - before]


@contextmanager
def _as_browse_error() -> Iterator[None]:
    try:
        yield
    except _ERRORS as error:
        raise BrowseError(_message(error)) from error


def _message(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)
