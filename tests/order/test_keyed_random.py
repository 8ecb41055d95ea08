"""Counter-based random numbers and permutations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.order.keyed_random import Streams, hashes, key_of, permute, uniform, unpermute

KEYS = st.integers(0, 2**64 - 1)


@given(KEYS, st.integers(1, 5000))
def test_permute_returns_every_value_once_and_unpermute_inverts_it(key, n):
    values = np.arange(n)
    permuted = permute(key, n, values)
    assert sorted(permuted.tolist()) == list(range(n))
    assert (unpermute(key, n, permuted) == values).all()


@given(KEYS, st.integers(2, 2**40), st.lists(st.integers(0, 2**40), min_size=1, max_size=50))
def test_permute_of_a_few_values_stays_in_a_huge_range_and_unpermute_inverts_it(key, n, values):
    values = np.array(values) % n
    permuted = permute(key, n, values)
    assert (permuted >= 0).all()
    assert (permuted < n).all()
    assert (unpermute(key, n, permuted) == values).all()


@given(KEYS, st.integers(1, 300), st.integers(1, 9))
def test_each_stream_is_permuted_over_its_own_domain_by_its_own_permutation(key, size, count):
    numbers = np.repeat(np.arange(count), size)  # the last stream is one shorter
    values = np.tile(np.arange(size), count)[: count * size - (size > 1)]
    sizes = np.full(len(values), size)
    sizes[(count - 1) * size :] -= size > 1
    streams = Streams(numbers[: len(values)], sizes)
    permuted = permute(key, size, values, streams)
    assert (unpermute(key, size, permuted, streams) == values).all()
    for number in range(count):
        own = streams.numbers == number
        assert sorted(permuted[own].tolist()) == list(range(own.sum()))
        alone = Streams(streams.numbers[own], streams.sizes[own])
        assert (permute(key, size, values[own], alone) == permuted[own]).all()
    if size > 100 and count > 2:
        assert (permuted[:size] == permuted[size : 2 * size]).mean() < 0.2


def test_permutations_of_two_keys_differ():
    assert (permute(1, 1000, np.arange(1000)) != permute(2, 1000, np.arange(1000))).mean() > 0.9


@pytest.mark.parametrize("keys", [300, pytest.param(20_000, marks=pytest.mark.torture)])
def test_permute_maps_each_value_to_every_result_about_equally_often(keys):
    counts = np.zeros((8, 8))
    for key in range(keys):
        counts[np.arange(8), permute(key, 8, np.arange(8))] += 1
    deviation = (keys * 1 / 8 * 7 / 8) ** 0.5
    assert abs(counts - keys / 8).max() < 5 * deviation


@given(KEYS, st.integers(0, 10**12), st.integers(1, 40))
def test_uniform_depends_only_on_key_and_position(key, position, count):
    single = uniform(key, np.array([position]), count)
    several = uniform(key, np.arange(position, position + 5), count)
    assert (single[0] == several[0]).all()
    assert ((several >= 0) & (several < 1)).all()


def test_uniform_is_uniform_and_uncorrelated():
    u = uniform(7, np.arange(50_000), 4)
    histogram = np.histogram(u, bins=20, range=(0, 1))[0] / u.size
    assert abs(histogram - 0.05).max() < 0.002
    assert abs(np.corrcoef(u.T) - np.eye(4)).max() < 0.03
    assert abs(np.corrcoef(u[:-1, 0], u[1:, 0])[0, 1]) < 0.03


def test_hashes_of_consecutive_counters_differ_in_half_of_their_bits():
    x = hashes(3, np.arange(10_000))
    different = np.unpackbits((x[1:] ^ x[:-1]).view(np.uint8)).sum() / len(x[1:])
    assert abs(different - 32) < 0.2


def test_key_of_distinguishes_numbers_from_text_and_separates_parts():
    assert len({key_of(1), key_of("1"), key_of("a", "b"), key_of("ab"), key_of("b", "a")}) == 5
