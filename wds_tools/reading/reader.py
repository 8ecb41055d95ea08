"""Sample ids become verified bytes.

Reading is by whole blocks: of each block that a batch touches, the byte range is fetched (a view of the page cache
for local shards, one request for neighbours of remote ones) and the fields are cut from it. No byte is copied, and
every field's checksum is compared before anyone sees it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import ChecksumError, MissingFieldError
from wds_tools.format.index import ABSENT, FieldColumns, Index, image_field
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.lru_cache import LRUCache
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage import Range

_log = logging.getLogger("wds_tools")
_MAX_SHARDS = 1024
_MAX_EXPECTED = 8192  # a window of this many blocks is 16 GB; older ones may have left the page cache


@dataclass(frozen=True, slots=True)
class _Shard:
    """A shard's index, with what every batch needs of it computed once."""

    name: str
    index: Index
    image: FieldColumns  # the columns of whichever image field a sample has
    kind: NDArray[np.int8]  # [samples] place of that field in IMAGE_FIELDS, -1 where there is none
    block: int  # samples of a block
    spans: NDArray[np.int64]  # [blocks, 2] byte range of each block


class Rows:
    """Samples of a dataset, in the order they were asked for, before and after their bytes are read.

    Attributes:
        ids: int64 [n], sample ids.
        shard: int64 [n], number of each sample's shard.
        row: int64 [n], place in its shard.
    """

    def __init__(self, reader: Reader, ids: NDArray[np.int64]) -> None:
        self._reader = reader
        self.ids = ids
        self.shard, self.row = reader.locate(ids)
        # One group per shard: (shard, positions in this batch, rows in the shard).
        order = np.argsort(self.shard, kind="stable")
        edges = np.flatnonzero(np.diff(self.shard[order])) + 1
        self._groups = [
            (reader.shard(int(self.shard[group[0]])), group, self.row[group])
            for group in np.split(order, edges)
            if len(group)
        ]

    def __len__(self) -> int:
        return len(self.ids)

    def gather(self, column: str) -> NDArray[np.int64]:
        """Return one numeric column of the index (``label``, ``width``, ``height``, ``orientation``): int64 [n]."""
        out = np.empty(len(self), np.int64)
        for shard, group, rows in self._groups:
            out[group] = getattr(shard.index, column)[rows]
        return out

    def keys(self) -> list[str]:
        """Return the keys of the samples."""
        return self._strings("keys")

    def modes(self) -> list[str]:
        """Return the modes of the images."""
        return self._strings("mode")

    def kinds(self) -> list[str]:
        """Return the image fields of the samples, ``""`` where there is none."""
        out = np.empty(len(self), np.int64)
        for shard, group, rows in self._groups:
            out[group] = shard.kind[rows]
        return [IMAGE_FIELDS[kind] if kind >= 0 else "" for kind in out.tolist()]

    def where(self, position: int) -> tuple[str, str]:
        """Return (shard name, key) of one sample, for error messages."""
        shard = self._reader.shard(int(self.shard[position]))
        return shard.name, shard.index.keys[int(self.row[position])]

    def images(self) -> list[memoryview]:
        """Return the verified bytes of each sample's image.

        Raises:
            MissingFieldError: A sample has no image.
            ChecksumError: Bytes have changed since they were packed.
        """
        return self._read("image")

    def field(self, name: str) -> list[memoryview]:
        """Return the verified bytes of one field of each sample; raises as `images` does."""
        return self._read(name)

    def stored(self) -> Iterator[dict[str, Any]]:
        """Yield each sample as it is stored, verified: ``__key__``, ``__url__`` of its shard, and fields as bytes.

        One at a time, so that bytes are copied while the checksum has left them in the cache, into memory that the last
        sample has just given back: a third of the time of a batch at once.

        Raises:
            ChecksumError: Bytes have changed since they were packed.
        """
        groups = [self._stored(shard, int(self.shard[group[0]]), rows) for shard, group, rows in self._groups]
        group_of = np.empty(len(self), np.int64)
        for number, (_, group, _) in enumerate(self._groups):
            group_of[group] = number
        for number in group_of.tolist():
            yield next(groups[number])

    def _stored(self, shard: _Shard, number: int, rows: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
        """Yield samples of one shard."""
        fields = []
        for name, columns in shard.index.fields.items():
            there = columns.offset[rows] != ABSENT
            pieces = self._reader.pieces(shard, number, name, columns, rows[there])
            fields.append((name, there.tolist(), pieces))
        url, keys = self._reader.shards.shard_url(number), shard.index.keys
        for place, row in enumerate(rows.tolist()):
            sample: dict[str, Any] = {"__key__": keys[row], "__url__": url}
            for name, there, pieces in fields:
                if there[place]:
                    sample[name] = bytes(next(pieces))
            yield sample

    def _strings(self, column: str) -> list[str]:
        out = [""] * len(self)
        for shard, group, rows in self._groups:
            values = getattr(shard.index, column)
            for position, row in zip(group.tolist(), rows.tolist(), strict=True):
                out[position] = values[row]
        return out

    def _read(self, name: str) -> list[memoryview]:
        out: list[memoryview] = [memoryview(b"")] * len(self)
        for shard, group, rows in self._groups:
            columns = shard.image if name == "image" else shard.index.fields.get(name)
            offset = columns.offset[rows] if columns else np.full(len(rows), ABSENT)
            if columns is None or (offset == ABSENT).any():
                row = int(rows[np.flatnonzero(offset == ABSENT)[0]])
                raise MissingFieldError(
                    f"the sample has no field {name!r}; it has {_fields_of(shard.index, row)}",
                    shard=shard.name,
                    key=shard.index.keys[row],
                )
            found = self._reader.pieces(shard, int(self.shard[group[0]]), name, columns, rows)
            for position, data in zip(group.tolist(), found, strict=True):
                out[position] = data
        return out


class Reader:
    """Reads samples of a dataset by id.

    Args:
        shards: The dataset.
        block: Samples of a block, as the planner has it: a number, or int64 [shards].
    """

    def __init__(self, shards: ShardSet, *, block: int | NDArray[np.int64]) -> None:
        self.shards = shards
        self._blocks = np.broadcast_to(block, len(shards.places))
        counts = [entry.samples for entry in shards.manifest.shards]
        self._first_id = np.concatenate([[0], np.cumsum(np.asarray(counts, np.int64))])
        self._shard = lru_cache(maxsize=_MAX_SHARDS)(partial(_open_shard, shards, self._blocks))
        self._expected = LRUCache[tuple[int, int], None](max_items=_MAX_EXPECTED)  # blocks announced lately

    def rows(self, ids: NDArray[np.int64]) -> Rows:
        """Return the samples with these ids, int64 [n]; their bytes are read when they are asked for."""
        return Rows(self, ids)

    def locate(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (shard, row) of each id."""
        shard = np.searchsorted(self._first_id, ids, side="right") - 1
        return shard, ids - self._first_id[shard]

    def expect(self, ids: NDArray[np.int64]) -> None:
        """Start reading the blocks of these samples, which will be asked for soon."""
        shards, rows = self.locate(ids)
        wanted = dict.fromkeys(zip(shards.tolist(), (rows // self._blocks[shards]).tolist(), strict=True))
        for number, block in self._expected.missing(wanted):
            self._expected.put((number, block), None)
            start, stop = self.shard(number).spans[block].tolist()
            self.shards.expect(number, [(start, stop)])

    def shard(self, number: int) -> _Shard:
        """Return what is known of a shard, its index read and verified when it is first needed."""
        return self._shard(number)

    def pieces(
        self, shard: _Shard, number: int, name: str, columns: FieldColumns, rows: NDArray[np.int64]
    ) -> Iterator[memoryview]:
        """Yield one field of some samples of one shard, verified."""
        of_row = rows // shard.block
        blocks, which = np.unique(of_row, return_inverse=True)
        spans: list[Range] = [(start, stop) for start, stop in shard.spans[blocks].tolist()]
        data = self.shards.fetch(number, spans)
        starts = columns.offset[rows] - shard.spans[of_row, 0]
        stops = starts + columns.size[rows]
        expected = columns.xxh3[rows]
        places = (which.tolist(), starts.tolist(), stops.tolist(), expected.tolist())
        for i, (block, start, stop, checksum) in enumerate(zip(*places, strict=True)):
            piece = data[block][start:stop]
            if xxhash.xxh3_64_intdigest(piece) != checksum:
                piece = self._read_again(shard, number, name, columns, int(rows[i]), spans[block])
            yield piece

    def _read_again(
        self, shard: _Shard, number: int, name: str, columns: FieldColumns, row: int, span: Range
    ) -> memoryview:
        """Fetch a damaged block once more if there is a better copy; otherwise say what is damaged."""
        offset, size, expected = int(columns.offset[row]), int(columns.size[row]), int(columns.xxh3[row])
        got = 0
        if self.shards.forget(number, [span]):
            piece = self.shards.fetch(number, [span])[0][offset - span[0] : offset - span[0] + size]
            got = xxhash.xxh3_64_intdigest(piece)
            if got == expected:
                _log.debug("shard %s: the block at byte %d was damaged and was fetched again", shard.name, span[0])
                return piece
        raise ChecksumError(
            f"field {name!r} ({size:,} bytes) has changed since it was packed: its checksum is not {expected:016x}; "
            f"copy {self.shards.shard_url(number)} again, `wds-tools verify` lists all damage",
            shard=shard.name,
            key=shard.index.keys[row],
            offset=offset,
        )


def _open_shard(shards: ShardSet, blocks: NDArray[np.int64], number: int) -> _Shard:
    index = shards.index(number)
    image, kind = _image_columns(index)
    block = int(blocks[number])
    return _Shard(shards.shard_name(number), index, image, kind, block, _spans(index, block))


def _fields_of(index: Index, row: int) -> str:
    return ", ".join(name for name, columns in index.fields.items() if columns.offset[row] != ABSENT) or "none"


def _image_columns(index: Index) -> tuple[FieldColumns, NDArray[np.int8]]:
    """Merge the image fields of a shard into one: each sample's first in order of preference."""
    n = len(index)
    kind = np.full(n, -1, np.int8)
    merged = FieldColumns(np.full(n, ABSENT, np.int64), np.zeros(n, np.int64), np.zeros(n, np.uint64))
    for name in image_field(index):
        columns = index.fields[name]
        take = (kind < 0) & (columns.offset != ABSENT)
        kind[take] = IMAGE_FIELDS.index(name)
        merged.offset[take] = columns.offset[take]
        merged.size[take] = columns.size[take]
        merged.xxh3[take] = columns.xxh3[take]
    return merged, kind


def _spans(index: Index, block: int) -> NDArray[np.int64]:
    """Return the byte range of every block of a shard: int64 [blocks, 2]."""
    if not len(index):
        return np.zeros((0, 2), np.int64)
    edges = np.arange(0, len(index), block)
    start = np.full(len(edges), index.shard_bytes, np.int64)
    stop = np.zeros(len(edges), np.int64)
    for columns in index.fields.values():
        there = columns.offset != ABSENT
        first = np.where(there, columns.offset, index.shard_bytes)
        last = np.where(there, columns.offset + columns.size, 0)
        start = np.minimum(start, np.minimum.reduceat(first, edges))
        stop = np.maximum(stop, np.maximum.reduceat(last, edges))
    return np.stack([np.minimum(start, stop), stop], axis=1)


def check_fields(fields: Sequence[str], available: Iterable[str]) -> None:
    """Check that a dataset has the fields that are asked for.

    Raises:
        MissingFieldError: It does not; the message says which there are.
    """
    there = set(available)
    virtual = {"__key__"}
    if there & set(IMAGE_FIELDS):
        virtual.add("image")
    if "cls" in there:
        virtual.add("label")
    missing = [name for name in fields if name not in there | virtual]
    if missing:
        raise MissingFieldError(
            f"fields={tuple(fields)!r}: the dataset has no {', '.join(map(repr, missing))}; "
            f"it has {', '.join(sorted(virtual) + sorted(there))}"
        )
