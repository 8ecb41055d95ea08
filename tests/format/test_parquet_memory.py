"""The memory of a Parquet file: of usual and unusual files, of some columns, and of files made to hide it."""

import random
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wds_tools.format import pages
from wds_tools.format.pages import memory_of


def parquet(table, **options):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())


def varied(rows):
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "key": [f"{number:09d}" for number in range(rows)],
            "label": pa.array(rng.integers(0, 9, rows), mask=rng.random(rows) < 0.1),
            "a.size": rng.integers(0, 2**40, rows),
            "some": [f"text {number % 3}" for number in range(rows)],
            "a": [{"size": number, "other": [1, 2]} for number in range(rows)],
            "flag": rng.random(rows) < 0.5,
            "a name that is longer than the texts which are matched by expressions": rng.random(rows),
        }
    )


FILES = [
    {},
    {"compression": "zstd"},
    {"use_dictionary": False, "write_statistics": False},
    {"data_page_version": "2.0", "data_page_size": 512},
    {"row_group_size": 30, "write_page_index": True},
    {"write_page_checksum": True, "version": "1.0"},
]


@pytest.mark.parametrize("options", FILES)
def test_the_memory_is_at_least_that_of_the_pages_that_pyarrow_states(options):
    data = parquet(varied(200), **options)
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    stated = [chunk.total_uncompressed_size + 8 * chunk.num_values for chunk in chunks]
    heads = 500 * len(chunks) + 200 * sum(200 // 10 for _ in chunks)  # the stated size includes the headers of pages
    assert sum(stated) - heads <= memory_of(data) <= sum(stated)


@pytest.mark.parametrize("options", FILES)
def test_usual_structures_are_matched_and_give_what_decoding_gives(options, monkeypatch):
    data = parquet(varied(200), **options)
    columns = [None, (), {"label"}, {"a"}, {"a.size"}, {"key", "flag"}]
    used = set()
    usual = pages._usual  # noqa: SLF001 - the expressions change nothing but the time

    class Seen:
        def __init__(self, structure):
            self.structure = structure

        def match(self, data, at):
            found = usual(self.structure).match(data, at)
            used.update([self.structure] if found else [])
            return found

    monkeypatch.setattr(pages, "_usual", Seen)
    expected = [memory_of(data, names) for names in columns]
    assert used == {"chunk", "page", "of no interest"}
    monkeypatch.setattr(pages, "_usual", lambda _: re.compile(b"(?!)"))
    assert [memory_of(data, names) for names in columns] == expected
    assert expected[1] == 0
    assert expected[0] > expected[3] > expected[2] > 0
    assert expected[4] > 2 * 8 * 200  # also a part of the structure "a"


def test_a_nested_column_counts_for_its_name_with_a_dot():
    data = parquet(pa.table({"a.size": [1], "a": [{"size": "x" * 100_000}]}), compression="zstd")
    assert len(data) < 2_000
    assert memory_of(data, {"a.size"}) > 100_000
    assert pq.ParquetFile(pa.BufferReader(data)).read(columns=["a.size"])["a"][0].as_py()["size"] == "x" * 100_000


@pytest.mark.parametrize("damages", [200, pytest.param(50_000, marks=pytest.mark.torture)])
def test_a_damaged_footer_is_refused_or_counts_the_same_with_and_without_expressions(damages, monkeypatch):
    chance, intact = random.Random(0), parquet(varied(50))
    start = len(intact) - 8 - int.from_bytes(intact[-8:-4], "little")

    def outcome(data):
        try:
            return memory_of(data)
        except ValueError:
            return None

    refused = 0
    for _ in range(damages):
        data = bytearray(intact)
        for _ in range(chance.choice([1, 1, 2, 8])):
            data[chance.randrange(start, len(data) - 8)] = chance.choice([0, 8, 127, 128, 255, chance.randrange(256)])
        found = outcome(bytes(data))
        with monkeypatch.context() as patch:
            patch.setattr(pages, "_usual", lambda _: re.compile(b"(?!)"))
            assert outcome(bytes(data)) == found
        refused += found is None
    assert refused > damages / 10
