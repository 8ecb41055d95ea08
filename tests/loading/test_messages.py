"""Messages of workers: what arrives equals what was sent, with large arrays outside the pickle."""

import multiprocessing
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from wds_tools.loading.workers.messages import Failure, pack_message, receive_message, send_message

ARRAYS = st.builds(
    lambda shape, dtype, seed: np.random.default_rng(seed).integers(0, 200, shape).astype(dtype),
    st.tuples(st.integers(0, 300), st.integers(0, 300)),
    st.sampled_from(["u1", "<u2", "f4", "c16", "?"]),
    st.integers(0, 9),
)
VALUES = st.recursive(
    st.none() | st.integers() | st.text() | ARRAYS | ARRAYS.map(np.transpose) | nps.arrays("O", 2, elements=st.text()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def sent(number, value):
    """Send a message through a pipe, and return what arrives."""
    near, far = multiprocessing.Pipe()
    with near, far:
        sender = threading.Thread(target=send_message, args=(far, pack_message(number, value)))
        sender.start()
        arrived = receive_message(near)
        sender.join()
        return arrived


def are_equal(one, other):
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
    return one == other


@given(st.integers(-1, 2**40), VALUES)
def test_what_arrives_equals_what_was_sent(number, value):
    arrived = sent(number, value)
    assert arrived[0] == number
    assert are_equal(value, arrived[1])


def test_large_arrays_are_sent_without_a_copy_and_arrive_writable_and_aligned():
    sizes = [20_001, 16_400] * 300
    value = [np.arange(size).astype(dtype) for size in sizes for dtype in ("u1", "f2", "f8")]
    message = pack_message(1, value)
    assert all(np.shares_memory(array, view) for array, view in zip(value, message.arrays, strict=True))
    assert len(message.head) < 1e6
    arrived = sent(1, value)[1]
    assert are_equal(value, arrived)
    assert all(array.flags.aligned for array in arrived)
    arrived[0][:] = 7
    assert are_equal(value[1:], arrived[1:])


def test_arrays_that_are_kept_are_not_overwritten_by_later_messages():
    kept = [sent(number, [np.full(2_000_000, number, np.uint8)])[1][0] for number in range(5)]
    assert [set(np.unique(array)) for array in kept] == [{0}, {1}, {2}, {3}, {4}]


def test_a_sender_that_ends_within_an_array_is_reported():
    near, far = multiprocessing.Pipe()
    with near:
        message = pack_message(3, np.zeros(1_000_000))
        far.send_bytes(message.head)
        far.close()
        with pytest.raises(EOFError):
            receive_message(near)


class Unloadable:
    def __reduce__(self):
        return int, ("x",)


def test_a_value_that_cannot_be_unpickled_becomes_a_failure_and_the_next_message_arrives():
    near, far = multiprocessing.Pipe()
    with near, far:
        values = [Unloadable(), np.zeros(100_000)], "next"
        sender = threading.Thread(
            target=lambda: [send_message(far, pack_message(i, one)) for i, one in enumerate(values)]
        )
        sender.start()
        number, failure = receive_message(near)
        assert (number, type(failure)) == (0, Failure)
        assert "cannot be unpickled: ValueError: invalid literal" in failure.text
        assert receive_message(near) == (1, "next")
        sender.join()
