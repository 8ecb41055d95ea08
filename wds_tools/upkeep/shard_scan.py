"""Reads a shard of another tool once, and makes its index; reads the table that the tool wrote next to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from wds_tools.errors import DecodeError, LabelError, ShardError
from wds_tools.format import image_header, tar
from wds_tools.format.image_header import ImageInfo
from wds_tools.format.index import Index
from wds_tools.format.index_builder import IndexBuilder
from wds_tools.format.index_edit import column_name
from wds_tools.format.label import parse
from wds_tools.format.label_lists import items_of, several_in_an_index
from wds_tools.format.label_source import NAMED, LabelSource, NamesOfNumbers
from wds_tools.format.pages import memory_of
from wds_tools.format.sample import IMAGE_FIELDS, split_name
from wds_tools.format.tar import Bytes, Member

MAX_FIELDS = 1000
"""Limit for the distinct fields of a shard. Each field takes three columns of the index."""

_STEP_BYTES = 1 << 20  # other fields are read in parts of this size: both checksums find them in the CPU cache

DOTS_REMEDY = (
    "If the dots belong to the keys, pack the shards again with `wds-tools pack SHARDS DST --from dotted`, which "
    "splits at the last dot; if they belong to field names, index with --dots-in-fields (dots_in_fields=True)"
)


@dataclass(slots=True)
class ScanResult:
    """The content of one shard.

    Attributes:
        ignored: Number of members that WebDataset ignores: folders, links, hidden files, names
            without an extension.
        broken: Keys of the samples whose image header cannot be read.
        labels: The label of each sample as it is stored; the index has only those that are plainly numbers.
    """

    index: Index
    ignored: int
    broken: list[str]
    labels: list[Any]


def scan_shard(view: Bytes, shard: str, label: LabelSource, names: NamesOfNumbers | None = None) -> ScanResult:
    """Read a shard once, from start to end.

    Raises:
        ShardError: The shard is damaged or truncated, the members of a sample are not consecutive,
            or a sample has a field twice.
    """
    scan = _ShardScan(view, shard, label, names)
    for member in tar.walk(view, shard=shard):
        scan.add(member)
    return scan.finish()


@dataclass
class _ShardScan:
    """Collects the members of a shard, added in order, into samples."""

    view: Bytes
    shard: str
    label: LabelSource
    names: NamesOfNumbers | None
    rows: IndexBuilder = field(default_factory=IndexBuilder)
    ignored: int = 0
    broken: list[str] = field(default_factory=list)
    labels: list[Any] = field(default_factory=list)
    _digest: Any = field(default_factory=xxhash.xxh3_128)
    _digested: int = 0
    _keys: set[str] = field(default_factory=set)
    _names: set[str] = field(default_factory=set)
    _key: str | None = None
    _fields: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # name -> offset, size, XXH3-64
    _headers: dict[str, int] = field(default_factory=dict)  # name -> bytes of the tar headers, if not one block
    _contents: dict[str, memoryview] = field(default_factory=dict)  # of images and the label

    def __post_init__(self) -> None:
        # Fields whose content is needed at the end.
        self._kept = frozenset({*IMAGE_FIELDS, self.label.field, NAMED.field if self.names is not None else None})

    def add(self, member: Member) -> None:
        """Add the next member."""
        parts = split_name(member.name) if member.is_file else None
        if parts is None:
            self.ignored += 1
            self.rows.has_other_members = True
            return
        key, name = parts
        if key != self._key:
            self._begin(key, member)
        if name in self._fields:
            raise self._error(f"field {name!r} occurs twice in one sample", member)
        self._names.add(name)
        if len(self._names) > MAX_FIELDS:
            raise self._error(
                f"more than {MAX_FIELDS} distinct fields, probably because keys have dots. {DOTS_REMEDY}", member
            )
        self._fields[name] = (member.offset, member.size, self._digest_field(member, name))
        if member.offset - member.header_offset != tar.BLOCK:
            self._headers[name] = member.offset - member.header_offset

    def finish(self) -> ScanResult:
        """Return the content of the shard."""
        self._end()
        self._digest_to(len(self.view))
        index = self.rows.build(shard=self.shard, shard_bytes=len(self.view), shard_xxh3=self._digest.hexdigest())
        return ScanResult(index, self.ignored, self.broken, self.labels)

    def _begin(self, key: str, member: Member) -> None:
        self._end()
        try:
            member.name.encode()
        except UnicodeEncodeError as error:
            raise self._error("its name is not UTF-8, which an index requires", member) from error
        if key in self._keys:
            raise self._error(
                "its sample began earlier, and other samples are in between: sort the members by name", member
            )
        self._key = key
        self._keys.add(key)

    def _end(self) -> None:
        if self._key is None:
            return
        label = self._label(self._key)
        if self.names is not None:
            self.names.add(self._key, label, self._contents.get("json", b""))
        self.rows.add(self._key, self._fields, label, self._image(self._key), self._headers)
        self._fields, self._contents, self._headers = {}, {}, {}

    def _label(self, key: str) -> int | None:
        """Add the label of a sample to ``labels``, and return its number if it is plainly one."""
        try:
            value = self.label.value(key, self._contents.get(self.label.field or ""))
        except ValueError as error:
            raise ShardError(f"{error}: choose another label, or fix the sample", shard=self.shard, key=key) from error
        if items_of(value, None) is not None:
            raise ShardError(several_in_an_index(str(self.label)), shard=self.shard, key=key)
        self.labels.append(value)
        try:
            return None if self.label.field is None else parse(value).number
        except LabelError:
            return None  # `Labels` decides about the labels of all shards

    def _image(self, key: str) -> ImageInfo | None:
        name = next((name for name in IMAGE_FIELDS if name in self._fields), None)
        if name is None:
            return None
        try:
            return image_header.probe(self._contents.get(name, memoryview(b"")))
        except DecodeError:
            if name != "npy":  # an array need not be an image
                self.broken.append(key)
            return None

    def _digest_field(self, member: Member, name: str) -> int:
        """Return the XXH3-64 of a field, and add it to the checksum of the shard. Keep images and labels."""
        self._digest_to(member.offset)
        stop = self._digested = member.offset + member.size
        if name in self._kept or member.size <= _STEP_BYTES:
            data = self.view[member.offset : stop]
            self._digest.update(data)
            if name in self._kept:
                self._contents[name] = data
            return xxhash.xxh3_64_intdigest(data)
        digest = xxhash.xxh3_64()
        for start in range(member.offset, stop, _STEP_BYTES):
            part = self.view[start : min(start + _STEP_BYTES, stop)]
            digest.update(part)
            self._digest.update(part)
        return digest.intdigest()

    def _digest_to(self, stop: int) -> None:
        for start in range(self._digested, stop, _STEP_BYTES):
            self._digest.update(self.view[start : min(start + _STEP_BYTES, stop)])
        self._digested = max(self._digested, stop)

    def _error(self, what: str, member: Member) -> ShardError:
        return ShardError(
            f"member {member.name[:200]!r}: {what}; fix the shard or pack it again",
            shard=self.shard,
            offset=member.header_offset,
        )


KEY = "key"
MAX_MEMORY = 4 << 30
"""Limit for the memory that such a table may take, found before it is read."""

_REPEATED = ("key", "width", "height")  # img2dataset states these, and the index has them from the shard


def is_table(data: bytes) -> bool:
    """Return whether a file is a complete Parquet file, by its footer and the headers of its pages."""
    try:
        return memory_of(data) >= 0
    except ValueError:
        return False


def columns_by_key(data: bytes, keys: Sequence[str], *, name: str) -> pa.Table | None:
    """Return the columns of a table that a condition can use, with a row for each sample.

    Columns of numbers, booleans, text and times are taken; lists, structures and bytes are not. A sample without
    a row has nulls, and rows without a sample, such as failed downloads, are left out.

    Returns:
        The columns; None if the table has no text column ``key``.

    Raises:
        ShardError: The file is damaged, not a Parquet file, or far too large.
    """
    try:
        if (memory := memory_of(data)) > MAX_MEMORY:
            raise ValueError(f"it would take {memory:,} bytes of memory; allowed are {MAX_MEMORY:,}")
        file = pq.ParquetFile(pa.BufferReader(data))
        schema = file.schema_arrow
        if KEY not in schema.names or not _is_text(schema.field(KEY).type):
            return None
        taken = [column for column in schema.names if column not in _REPEATED and _is_plain(schema.field(column).type)]
        table = file.read(columns=[KEY, *taken], use_threads=False)
        for column in table.columns:
            column.validate(full=True)
        rows = pc.index_in(pa.array(keys, pa.string()), value_set=table[KEY].cast(pa.string()).combine_chunks())
        columns = table.select(taken).take(rows)
        return columns.cast(_plain_schema(columns.schema)).rename_columns([column_name(column) for column in taken])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise ShardError(
            f"{name} is next to the shard, but cannot be read as a table of its samples "
            f"({' '.join(str(error).split())}): move it away, or download it again"
        ) from error


def _is_text(kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_plain(kind: Any) -> bool:
    """Return whether a condition can compare values of this type."""
    types = pa.types
    return _is_text(kind) or bool(
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_temporal(kind)
    )


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, pa.string() if _is_text(field.type) else field.type) for field in schema])
