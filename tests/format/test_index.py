"""The index of a shard: round trip through Parquet, hostile offsets and sizes, damaged bytes."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import ManifestError
from wds_tools.format.image_header import ImageInfo
from wds_tools.format.index import (
    ABSENT,
    NO_LABEL,
    Index,
    content_checksum,
    from_bytes,
    image_field,
    index_name,
    to_bytes,
)
from wds_tools.format.index_builder import IndexBuilder
from wds_tools.format.index_edit import rename

SHARD_BYTES = 2**62
IMAGE = ImageInfo("jpg", 640, 480, "RGB", 6, 4, 16, 8)

NUMBERS = ("label", "width", "height", "orientation", "restart", "mcu_width", "mcu_height")

columns_of_field = st.tuples(st.integers(0, 2**61), st.integers(0, 2**61), st.integers(0, 2**64 - 1))
images = st.builds(
    ImageInfo,
    kind=st.just("jpg"),
    width=st.integers(1, 2**31 - 1),
    height=st.integers(1, 2**31 - 1),
    mode=st.sampled_from(["RGB", "L", "I;16"]),
    orientation=st.integers(1, 8),
    restart=st.integers(0, 65_535),
    mcu_width=st.integers(0, 32),
    mcu_height=st.integers(0, 32),
)
rows = st.lists(
    st.tuples(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.dictionaries(st.sampled_from(["jpg", "cls", "json", "mask.png"]), columns_of_field, min_size=1),
        st.none() | st.integers(-(2**63) + 1, 2**63 - 1),
        st.none() | images,
    ),
    max_size=8,
)


def build(content: list[tuple[str, dict[str, tuple[int, int, int]], int | None, ImageInfo | None]]) -> Index:
    builder = IndexBuilder()
    for row in content:
        builder.add(*row)
    return builder.build(shard="s.tar", shard_bytes=SHARD_BYTES, shard_xxh3="ab" * 16)


def small() -> Index:
    return build(
        [
            ("a", {"jpg": (512, 100, 2**64 - 1), "cls": (1536, 1, 0)}, 3, IMAGE),
            ("b", {"jpg": (3072, 0, 5)}, None, None),
            ("c", {"cls": (4096, 2, 9), "json": (5120, 30, 1)}, 0, None),
        ]
    )


def rewritten(change: dict[str, Any] | None = None, **changed_metadata: Any) -> bytes:
    """Encode the small index with changed columns (None removes one) and changed metadata."""
    table = pq.read_table(pa.BufferReader(to_bytes(small())))
    metadata = json.loads(table.schema.metadata[b"wds_tools"])
    del metadata["xxh3"]  # as in older indexes, which have no checksum
    metadata |= changed_metadata
    columns = {name: table.column(name) for name in table.column_names} | (change or {})
    table = pa.table({name: column for name, column in columns.items() if column is not None})
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({"wds_tools": json.dumps(metadata)}), sink)
    return bytes(sink.getvalue())


def assert_same(first: Index, second: Index) -> None:
    for name in ("shard", "shard_bytes", "shard_xxh3", "keys", "mode"):
        assert getattr(first, name) == getattr(second, name)
    assert list(first.fields) == list(second.fields)
    columns = [(getattr(first, name), getattr(second, name)) for name in NUMBERS]
    for field in first.fields:
        columns += [
            (getattr(first.fields[field], c), getattr(second.fields[field], c)) for c in ("offset", "size", "xxh3")
        ]
    for one, other in columns:
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@given(rows)
def test_an_index_is_the_same_after_a_round_trip(content: list[Any]) -> None:
    index = build(content)
    assert_same(from_bytes(to_bytes(index), name="s.parquet"), index)


def test_equal_indexes_have_equal_bytes() -> None:
    assert to_bytes(small()) == to_bytes(small())


def test_the_columns_have_the_types_of_the_specification() -> None:
    table = pq.read_table(pa.BufferReader(to_bytes(small())))
    assert {field.name: str(field.type) for field in table.schema} == {
        "key": "string",
        "jpg.offset": "int64", "jpg.size": "int64", "jpg.xxh3": "uint64",
        "cls.offset": "int64", "cls.size": "int64", "cls.xxh3": "uint64",
        "json.offset": "int64", "json.size": "int64", "json.xxh3": "uint64",
        "label": "int64", "width": "int32", "height": "int32", "mode": "string", "orientation": "int8",
        "restart": "int32", "mcu_width": "int8", "mcu_height": "int8",
    }  # fmt: skip
    assert json.loads(table.schema.metadata[b"wds_tools"]) == {
        "version": 1,
        "shard": "s.tar",
        "shard_bytes": SHARD_BYTES,
        "shard_xxh3": "ab" * 16,
        "fields": ["jpg", "cls", "json"],
        "xxh3": content_checksum(small()),
    }


def test_absent_fields_are_null_on_disk_and_have_markers_in_memory() -> None:
    table = pq.read_table(pa.BufferReader(to_bytes(small())))
    assert table.column("cls.offset").to_pylist() == [1536, None, 4096]
    assert table.column("json.xxh3").to_pylist() == [None, None, 1]
    assert table.column("label").to_pylist() == [3, None, 0]
    index = from_bytes(to_bytes(small()), name="s.parquet")
    assert index.fields["cls"].offset.tolist() == [1536, ABSENT, 4096]
    assert index.label.tolist() == [3, NO_LABEL, 0]
    assert (index.width.tolist(), index.height.tolist()) == ([640, 0, 0], [480, 0, 0])
    assert (index.mode, index.orientation.tolist()) == (["RGB", "", ""], [6, 1, 1])


def test_an_index_without_columns_of_restart_intervals_is_read() -> None:
    old = rewritten({"restart": None, "mcu_width": None, "mcu_height": None})
    index = from_bytes(old, name="s.parquet")
    assert [index.restart.tolist(), index.mcu_width.tolist(), index.mcu_height.tolist()] == [[0, 0, 0]] * 3
    now = from_bytes(to_bytes(small()), name="s.parquet")
    assert [now.restart.tolist(), now.mcu_width.tolist(), now.mcu_height.tolist()] == [[4, 0, 0], [16, 0, 0], [8, 0, 0]]


def test_a_checksum_of_64_bits_survives_a_round_trip() -> None:
    assert from_bytes(to_bytes(small()), name="s").fields["jpg"].xxh3.tolist() == [2**64 - 1, 5, 0]


def test_an_index_has_the_name_of_its_shard() -> None:
    assert index_name("shard-000000.tar") == "shard-000000.parquet"
    assert index_name("odd.name") == "odd.name.parquet"


def test_the_image_fields_are_those_of_the_shard_in_order_of_preference() -> None:
    assert image_field(small()) == ["jpg"]
    assert image_field(build([("a", {"png": (0, 1, 2), "jpg": (0, 1, 2), "cls": (0, 1, 2)}, None, None)])) == [
        "jpg",
        "png",
    ]


@given(rows, st.data())
def test_a_span_is_the_smallest_that_holds_all_fields(content: list[Any], data: st.DataObject) -> None:
    index = build(content)
    start = data.draw(st.integers(0, len(index)))
    stop = data.draw(st.integers(start, len(index)))
    present = [columns for _, fields, _, _ in content[start:stop] for columns in fields.values()]
    ends = [offset + size for offset, size, _ in present]
    expected = (min(offset for offset, _, _ in present), max(ends)) if present and max(ends) else (0, 0)
    assert index.span(start, stop) == expected


@pytest.mark.parametrize(
    ("offset", "size"),
    [(SHARD_BYTES, 1), (0, SHARD_BYTES + 1), (-2, 1), (5, -1), (2**63 - 1, 2**63 - 1), (2**62, 2**62)],
)
def test_a_field_outside_the_shard_is_refused_with_its_key(offset: int, size: int) -> None:
    data = rewritten({"jpg.offset": pa.array([512, offset, None]), "jpg.size": pa.array([1, size, None])})
    message = r"locates field 'jpg' outside the shard: .* bytes at .*, but the shard has 4,611,"
    with pytest.raises(ManifestError, match=message) as caught:
        from_bytes(data, name="s.parquet")
    assert (caught.value.shard, caught.value.key) == ("s.tar", "b")


def test_a_field_that_ends_with_the_shard_is_allowed() -> None:
    data = rewritten({"jpg.offset": pa.array([0, SHARD_BYTES, None]), "jpg.size": pa.array([SHARD_BYTES, 0, None])})
    assert from_bytes(data, name="s").span(0, 1) == (0, SHARD_BYTES)


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_version_is_refused_with_both_versions(version: object) -> None:
    with pytest.raises(ManifestError, match=r"s.parquet is an index of version .*; this release reads 1"):
        from_bytes(rewritten(version=version), name="s.parquet")


def not_refused(indexes: dict[str, bytes], message: str) -> list[str]:
    """Return the names of the indexes that are read, or refused with another message."""
    found = []
    for name, data in indexes.items():
        try:
            from_bytes(data, name="s.parquet")
        except ManifestError as error:
            if re.search(message, str(error)):
                continue
        found.append(name)
    return found


INVALID_METADATA = [
        {"shard_bytes": -1}, {"shard_bytes": 2**63}, {"shard_bytes": 10**30}, {"shard_bytes": "5"},
        {"shard_bytes": 1.0}, {"shard_bytes": True}, {"shard": None}, {"shard_xxh3": 5}, {"fields": None},
        {"fields": 3}, {"fields": ["png"]}, {"fields": [["jpg"]]}, {"fields": [None]},
    ]  # fmt: skip


def test_invalid_metadata_is_refused() -> None:
    indexes = {str(metadata): rewritten(**metadata) for metadata in INVALID_METADATA}
    assert not_refused(indexes, r"s.parquet breaks the format .*rebuild it with `wds-tools index`") == []


INVALID_COLUMNS = [
        {"key": None}, {"label": None}, {"jpg.xxh3": None}, {"mode": None},
        {"key": pa.array(["a", None, "c"])}, {"mode": pa.array(["a", None, "c"])},
        {"label": pa.array([1.5, 2.5, 3.5])}, {"label": pa.array(["x", "y", "z"])},
        {"label": pa.array([2**64 - 1, 0, 0], pa.uint64())},
        {"jpg.xxh3": pa.array([-1, 0, 0])}, {"width": pa.array([2**40, 0, 0])}, {"width": pa.array([-1, 0, 0])},
        {"height": pa.array([-1, 0, 0])}, {"orientation": pa.array([0, 1, 1])}, {"orientation": pa.array([9, 1, 1])},
        {"restart": pa.array([0, -1, 0])}, {"mcu_width": pa.array([-8, 0, 0])},
        {"key": pa.array([b"\xff", b"", b""])}, {"jpg.offset": pa.array([[1], [2], [3]])},
    ]  # fmt: skip


def test_an_invalid_or_missing_column_is_refused() -> None:
    indexes = {str(columns): rewritten(columns) for columns in INVALID_COLUMNS}
    assert not_refused(indexes, "s.parquet breaks the format") == []


@pytest.mark.parametrize("columns", [{"width": pa.array([7, 8, 9], pa.int64())}, {"extra": pa.array([1.0, 2.0, 3.0])}])
def test_a_column_of_another_integer_type_and_an_extra_column_are_accepted(columns: dict[str, Any]) -> None:
    assert len(from_bytes(rewritten(columns), name="s.parquet")) == 3


def test_reading_an_index_starts_no_thread(tmp_path: Path) -> None:
    (tmp_path / "s.parquet").write_bytes(to_bytes(small()))
    code = (
        "import os, sys\nfrom wds_tools.format.index import from_bytes\n"
        "count = lambda: len(os.listdir('/proc/self/task'))\n"
        "before = count()\nfrom_bytes(open(sys.argv[1], 'rb').read(), name='s')\nprint(count() - before)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "s.parquet")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0\n"


def parquet_with(metadata: dict[str, str] | None) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"key": ["a"]}).replace_schema_metadata(metadata), sink)
    return bytes(sink.getvalue())


NO_INDEXES = [
    b"",
    b"PAR1",
    b"PAR1" + bytes(8) + b"PAR1",
    b"hello",
    parquet_with(None),
    parquet_with({"other": "1"}),
    *(parquet_with({"wds_tools": text}) for text in ("", "{", "[]", "5", "null", '"x"', "[" * 100_000)),
]


def test_data_that_is_not_an_index_is_refused() -> None:
    indexes = {str(number): data for number, data in enumerate(NO_INDEXES)}
    assert not_refused(indexes, "s.parquet is not an index of wds_tools .*`wds-tools index`") == []


@pytest.mark.parametrize("damages", [300, pytest.param(30_000, marks=pytest.mark.torture)])
def test_a_damaged_index_raises_nothing_but_a_manifest_error(damages: int) -> None:
    chance = random.Random(0)
    intact = to_bytes(small())
    refused = 0
    for _ in range(damages):
        data = bytearray(intact)
        for _ in range(chance.choice([1, 1, 2, 8])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        if chance.random() < 0.2:
            del data[chance.randrange(len(data)) :]
        try:
            index = from_bytes(bytes(data), name="s.parquet")
        except ManifestError:
            refused += 1
        else:
            assert all(np.all(part.offset + part.size <= index.shard_bytes) for part in index.fields.values())
    assert refused > damages / 3


# --- its own checksum ---


def test_an_index_without_a_checksum_is_read() -> None:
    assert_same(from_bytes(rewritten(), name="s.parquet"), small())


@pytest.mark.parametrize(
    "change",
    [
        {"label": pa.array([2, None, 0])},
        {"label": pa.array([3, 3, 0])},
        {"key": pa.array(["a", "b", "d"])},
        {"width": pa.array([1, 0, 0], pa.int32())},
        {"orientation": pa.array([2, 1, 1], pa.int8())},
        {"mode": pa.array(["L", "", ""])},
        {"jpg.xxh3": pa.array([1, 5, None], pa.uint64())},
        {"jpg.size": pa.array([99, 0, None])},
        {"mcu_width": None},
    ],
)
def test_content_that_does_not_match_the_checksum_is_refused(change: dict[str, Any]) -> None:
    checksum = content_checksum(small())
    assert_same(from_bytes(rewritten(xxh3=checksum), name="s.parquet"), small())
    with pytest.raises(ManifestError, match=r"its checksum is .* it was damaged"):
        from_bytes(rewritten(change, xxh3=checksum), name="s.parquet")


def test_the_checksum_covers_the_metadata_of_the_shard() -> None:
    checksum = content_checksum(small())
    for metadata in ({"shard": "t.tar"}, {"shard_xxh3": "0" * 32}, {"shard_bytes": 10**6}, {"xxh3": None}):
        with pytest.raises(ManifestError, match="it was damaged"):
            from_bytes(rewritten(**({"xxh3": checksum} | metadata)), name="s.parquet")


def test_a_renamed_index_has_a_checksum_that_covers_its_new_name() -> None:
    renamed = rename(to_bytes(small()), name="s.parquet", shard="t.tar")
    assert_same(from_bytes(renamed, name="t.parquet"), replace(small(), shard="t.tar"))
    old = rename(rewritten(later=1), name="s.parquet", shard="t.tar")  # of an index without a checksum
    assert json.loads(pq.read_schema(pa.BufferReader(old)).metadata[b"wds_tools"])["xxh3"]


def test_the_size_of_an_absent_field_does_not_change_the_index() -> None:
    columns = small().fields["cls"]
    assert columns.offset[1] == ABSENT
    odd = replace(columns, size=columns.size + (columns.offset == ABSENT))
    index = replace(small(), fields=small().fields | {"cls": odd})
    assert_same(from_bytes(to_bytes(index), name="s.parquet"), small())
