"""Sequential reading of objects: the same bytes as one read, in ranges of bounded length, each read once."""

import random
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.storage.stream import ObjectStream

CONTENT = memoryview(random.Random(0).randbytes(1000))


class Recorder:
    def __init__(self):
        self.ranges, self.chunks = [], []

    def fetch(self, start, stop):
        self.ranges.append((start, stop))
        return CONTENT[start:stop]

    def stream(self, chunk_bytes):
        return ObjectStream(
            self.fetch, len(CONTENT), chunk_bytes=chunk_bytes, on_chunk=lambda *chunk: self.chunks.append(chunk)
        )


@given(st.lists(st.tuples(st.integers(0, 1100), st.integers(0, 400)), max_size=20), st.integers(1, 300))
def test_any_slices_are_those_of_the_content_and_no_range_is_longer_than_a_chunk(slices, chunk_bytes):
    record = Recorder()
    stream = record.stream(chunk_bytes)
    for start, size in slices:
        assert stream[start : start + size] == CONTENT[start : start + size]
    stream.finish()
    assert all(0 < stop - start <= chunk_bytes for start, stop in record.ranges)
    assert b"".join(data for _, data in record.chunks) == CONTENT
    assert [offset for offset, _ in record.chunks] == list(range(0, len(CONTENT), chunk_bytes))


@pytest.mark.parametrize("chunk_bytes", [64, 333, 1000, 5000])
def test_slices_in_order_read_every_byte_once_though_each_begins_before_the_end_of_the_last(chunk_bytes):
    record = Recorder()
    stream = record.stream(chunk_bytes)
    for start in range(0, len(CONTENT), 30):
        assert stream[start : start + 60] == CONTENT[start : start + 60]
    assert sum(stop - start for start, stop in record.ranges) == len(CONTENT)


@pytest.mark.parametrize("step", [5, 990])
def test_at_most_three_chunks_are_kept_in_memory(step):
    arrays = []

    def fetch(start, stop):
        array = np.frombuffer(CONTENT[start:stop], np.uint8).copy()
        arrays.append(weakref.ref(array))
        return memoryview(array)

    stream = ObjectStream(fetch, len(CONTENT), chunk_bytes=10)
    for start in range(0, len(CONTENT), step):
        assert stream[start : start + 5] == CONTENT[start : start + 5]
        assert sum(array() is not None for array in arrays) <= 3
    assert len(arrays) == 100


def test_an_empty_object_has_no_bytes():
    assert bytes(ObjectStream(lambda _start, _stop: memoryview(b""), 0)[0:10]) == b""
