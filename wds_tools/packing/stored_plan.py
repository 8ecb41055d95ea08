"""A plan as files in ``.packing/``: restarts and tasks map it, instead of listing the source and planning again.

``listing.arrow`` is a stream of Arrow batches with the inputs in packed order. ``listing.json``, which is written after
it, has everything else: what the user asked for, where the batches are, and their checksums. Its own checksum is its
first line. A plan that is missing, damaged, of another version or of other options is not used: the source is listed
again, and compared with ``plan.json`` as ever.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import xxhash

from wds_tools.errors import DestinationError, WdsToolsError
from wds_tools.format import account as accounts
from wds_tools.format.account import Account
from wds_tools.format.field_classes import from_raw, to_raw
from wds_tools.lru_cache import LRUCache
from wds_tools.packing.config import PackOptions
from wds_tools.packing.plan import Plan
from wds_tools.packing.work_folder import ROWS_NAME
from wds_tools.sources.base import FileState, Listing, Skip, Source, SourceChangedError
from wds_tools.sources.detect import open_source
from wds_tools.sources.inputs import InputRows, Inputs, same_columns, schema_of
from wds_tools.storage.requests.failures import clean_url

_VERSION = 2
_STORED_ROWS = 1 << 13  # of a batch: a task reads those with rows of its shards, 0.5 MB each
_KEPT_BATCHES = 2  # the first rows of a shard are often in the last batch of the one before
_QUICK_SECONDS = 5  # in which a restart waits for a comparison with the source; a longer one continues while it packs


class Rows(Protocol):
    """The bytes of ``listing.arrow``: a mapped file, or an object of which ranges are read."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes | memoryview: ...


class StoredInputs(Inputs):
    """The inputs of a stored plan. Only the batches that are used are read, and checked."""

    def __init__(self, data: Rows, head: dict[str, Any], name: str) -> None:
        super().__init__()
        self._starts = np.cumsum([0, *(rows for _, _, rows, _ in head["batches"])]).tolist()
        self._found: list[list[Any]] = head["batches"]
        self._data = data
        self._schema = schema_of(head["columns"])
        self._name = name
        self._recent = LRUCache[int, pa.RecordBatch](max_items=_KEPT_BATCHES)

    def batch(self, index: int) -> pa.RecordBatch:
        """Return a batch."""
        if (cached := self._recent.get(index)) is not None:
            return cached
        start, length, rows, checksum = self._found[index]
        part = self._data[start : start + length]
        if xxhash.xxh3_128_hexdigest(part) != checksum:
            raise DestinationError(
                f"{self._name} has a damaged .packing/{ROWS_NAME}: remove this file, then run the same command again "
                "to continue"
            )
        batch = pa.ipc.read_record_batch(pa.py_buffer(part), self._schema)
        assert len(batch) == rows, "the checksum is that of these rows"
        self._recent.put(index, batch)
        return batch


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """A plan from its files.

    Attributes:
        lines: The account of the source as text.
        check: Compares the source with the listing; None for a task, which only reads its own inputs.
    """

    source: Source
    listing: Listing
    plan: Plan
    lines: tuple[str, ...]
    check: SourceCheck | None


class SourceCheck:
    """A thread that lists a source again, without keeping the listing, and compares its checksum."""

    def __init__(self, source: Source, checksum: str) -> None:
        self._source = source
        self._checksum = checksum
        self._is_stopped = threading.Event()
        self._error: BaseException | None = None
        self._is_same = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether the comparison has ended."""
        return not self._thread.is_alive()

    def is_same(self, seconds: float | None = None) -> bool:
        """Return whether the source is as it was listed, or the comparison takes longer than this time."""
        self._thread.join(seconds)
        return self._thread.is_alive() or self._is_same

    def check(self, *, wait: bool = False) -> None:
        """Check the result, if there is one yet, or wait for it."""
        if not self.is_same(None if wait else 0):
            reason = f"{self._error}" if self._error is not None else f"{self._source.name} has other files"
            raise SourceChangedError(reason)

    def stop(self) -> None:
        """End the comparison."""
        self._is_stopped.set()

    def _run(self) -> None:
        try:
            self._is_same = self._source.checksum(self._is_stopped.is_set) == self._checksum
        except (OSError, WdsToolsError) as error:
            self._error = error


def request_of(src: Any, options: PackOptions) -> dict[str, Any] | None:
    """Return what determines a plan, as JSON; None for an object, or a URL that contains secrets."""
    if not isinstance(src, (str, Path)) or clean_url(str(src)) != str(src):
        return None
    source = options.source
    return {
        "version": _VERSION,
        # The processes of `bench` import modules of the package without its `__init__`.
        "wds_tools": getattr(sys.modules["wds_tools"], "__version__", None),
        "src": str(src),
        "kind": options.kind,
        "columns": dict(source.columns),
        "label_type": source.label_type,
        "label_separator": source.label_separator,
        "encoding": source.encoding,
        "classes": None if source.classes is None else list(source.classes),
        "seed": int(options.seed),
        "shard_bytes": options.max_bytes,
        "images": str(options.policy),
        "shuffle": options.shuffle,
    }


def write(
    file: BinaryIO, request: dict[str, Any], source: Source, listing: Listing, plan: Plan, lines: Iterable[str]
) -> bytes:
    """Write the rows of a plan to a file, and return the content of ``listing.json``."""
    inputs = plan.inputs if isinstance(plan.inputs, InputRows) else Inputs(plan.inputs)
    columns = inputs.columns
    batches: list[list[Any]] = []
    start = file.write(schema_of(columns).serialize())
    for batch in same_columns(inputs.rows(0, len(inputs)), columns):
        for first in range(0, len(batch), _STORED_ROWS):
            part = batch.slice(first, _STORED_ROWS)
            data = part.serialize()
            batches.append([start, len(data), len(part), xxhash.xxh3_128_hexdigest(data)])
            start += file.write(data)
    start += file.write(b"\xff\xff\xff\xff\0\0\0\0")  # ends a stream of Arrow
    head = {
        "request": request,
        "batches": batches,
        "columns": columns,
        "bytes": start,
        "detected": source.detected,
        "state": source.state(),
        "checksum": source.checksum(None),
        "lines": list(lines),
        "plan": {
            "source": plan.source,
            "boundaries": plan.boundaries,
            "classes": list(plan.classes),
            "shuffled": plan.shuffled,
            "deep": plan.deep,
            "field_classes": to_raw(plan.field_classes),
            "input_bytes": plan.input_bytes,
        },
        "listing": {
            "skipped": listing.skipped,
            "files": [[str(source_file.path), source_file.size, source_file.mtime_ns] for source_file in listing.files],
            "account": _raw_account(listing.account),
            "earlier": None if listing.earlier is None else _raw_account(listing.earlier),
        },
    }
    data = json.dumps(head).encode()
    return xxhash.xxh3_128_hexdigest(data).encode() + b"\n" + data


def parse_head(data: bytes, request: dict[str, Any], planned: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the content of ``listing.json``; None if it is damaged, or that of another plan."""
    checksum, _, text = data.partition(b"\n")
    if xxhash.xxh3_128_hexdigest(text).encode() != checksum:
        return None
    head: dict[str, Any] = json.loads(text)
    return head if head["request"] == request and head["plan"]["source"] == planned else None


def restore(
    head: dict[str, Any], rows: Rows, src: Any, options: PackOptions, name: str, *, compare: bool
) -> StoredPlan | None:
    """Return a stored plan; None if its source has changed, or a file has another length than stated."""
    if len(rows) != head["bytes"]:
        return None
    source = open_source(src, kind=options.kind, options=options.source, detected=head["detected"])
    source.restore(head["state"])
    check = SourceCheck(source, head["checksum"]) if compare else None
    inputs = StoredInputs(rows, head, name)
    raw, listed = head["plan"], head["listing"]
    field_classes = from_raw(raw["field_classes"])
    plan = Plan(
        inputs,
        raw["boundaries"],
        tuple(raw["classes"]),
        raw["source"],
        shuffled=raw["shuffled"],
        deep=raw["deep"],
        field_classes=field_classes,
        input_bytes=raw["input_bytes"],
    )
    listing = Listing(
        inputs,
        [Skip(*skip) for skip in listed["skipped"]],
        plan.classes,
        accounts.from_json(listed["account"]),
        files=tuple(FileState(Path(path), size, time) for path, size, time in listed["files"]),
        earlier=None if listed["earlier"] is None else accounts.from_json(listed["earlier"]),
        field_classes=dict(field_classes),
    )
    if check is not None and not check.is_same(_QUICK_SECONDS):
        return None
    return StoredPlan(source, listing, plan, tuple(head["lines"]), check)


def _raw_account(account: Account) -> dict[str, Any]:
    """Return a complete account for `accounts.from_json`; that of a manifest is shortened."""
    return {
        "unit": account.unit,
        "given": account.given,
        "packed": account.packed,
        "skipped": dict(account.skipped),
        "attached": dict(account.attached),
        "parts": [part._asdict() for part in account.parts],
        "notes": account.notes,
        "options": dict(account.options),
    }
