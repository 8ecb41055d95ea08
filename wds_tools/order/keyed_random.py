"""Counter-based random numbers and permutations: stateless functions of a key, the same on any machine.

Every random number is a hash of (key, counter). So the numbers for sample 7 do not depend on those
for sample 6, and workers need no generator. The hash is the finaliser of SplitMix64 (Steele, Lea,
Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014). The permutation is a Feistel
network over the smallest domain with an even number of bits, with cycle walking for values outside
the range (Black, Rogaway: Ciphers with Arbitrary Finite Domains, 2002).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ROUNDS = 6  # four are enough in theory, with ideal functions (Luby, Rackoff); two more, as this hash is simple


def key_of(*parts: int | str) -> int:
    """Return a 64-bit key for names and numbers, such as a purpose, a seed and an epoch.

    >>> key_of("order", 0, 1) == key_of("order", 0, 1) != key_of("order", 1, 0)
    True
    """
    return xxhash.xxh3_64_intdigest("\0".join(f"{type(part).__name__}:{part}" for part in parts).encode())


def hashes(key: int | NDArray[np.uint64], counters: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each counter: uint64, in the shape of ``counters``.

    Args:
        key: A key for all counters, or an array with one key for each.
        counters: int64.
    """
    x = (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN + np.asarray(key, np.uint64)
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def uniform(key: int, positions: NDArray[np.int64], count: int, columns: slice = slice(None)) -> NDArray[np.float64]:
    """Return ``count`` random numbers in [0, 1) for each of n positions: float64 [n, count], or columns of it."""
    counters = positions[:, None] * np.int64(count) + np.arange(count)[columns]  # all distinct
    return (hashes(key, counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True, slots=True)
class Streams:
    """Streams of values that are permuted independently of each other.

    Attributes:
        sizes: int64 [n], size of the domain of each value; equal for all values of a stream, and not
            above the ``n`` of the permutation.
    """

    numbers: NDArray[np.int64]
    sizes: NDArray[np.int64]


def permute(key: int, n: int, values: NDArray[np.int64], streams: Streams | None = None) -> NDArray[np.int64]:
    """Apply the pseudo-random permutation of 0 .. n-1 that belongs to ``key`` to each value.

    >>> permute(5, 4, np.arange(4)).tolist() != [0, 1, 2, 3], sorted(permute(5, 4, np.arange(4)).tolist())
    (True, [0, 1, 2, 3])
    """
    return _cycle_walk(key, n, values, streams, range(_ROUNDS))


def permute_each(key: int, sizes: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``permute(key, size, value)`` for each value and the size of its domain: int64 [n].

    >>> permute_each(5, np.array([4, 4, 9]), np.array([1, 2, 2])).tolist() == [
    ...     int(permute(5, n, np.array([value]))[0]) for n, value in ((4, 1), (4, 2), (9, 2))
    ... ]
    True
    """
    result = np.empty(len(values), np.int64)
    halves = (np.frexp(np.maximum(sizes - 1, 1).astype(np.float64))[1] + 1) // 2
    for half in np.unique(halves).tolist():
        rows = np.flatnonzero(halves == half)
        limit = sizes[rows].astype(np.uint64)
        permuted = _feistel(key, half, values[rows].astype(np.uint64), None, range(_ROUNDS))
        outside = np.flatnonzero(permuted >= limit)
        while len(outside):
            permuted[outside] = _feistel(key, half, permuted[outside], None, range(_ROUNDS))
            outside = outside[permuted[outside] >= limit[outside]]
        result[rows] = permuted
    return result


def unpermute(key: int, n: int, values: NDArray[np.int64], streams: Streams | None = None) -> NDArray[np.int64]:
    """Return the inverse of `permute` for the same ``key``, ``n`` and ``streams``."""
    return _cycle_walk(key, n, values, streams, range(_ROUNDS - 1, -1, -1))


def _cycle_walk(
    key: int, n: int, values: NDArray[np.int64], streams: Streams | None, rounds: range
) -> NDArray[np.int64]:
    """Apply the Feistel network until every value lies in its domain: on average at most four times for 0 .. n-1."""
    half = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
    result = _feistel(key, half, values.astype(np.uint64), streams, rounds)
    outside = np.flatnonzero(result >= (n if streams is None else streams.sizes))
    while len(outside):
        part = None if streams is None else Streams(streams.numbers[outside], streams.sizes[outside])
        next_values = _feistel(key, half, result[outside], part, rounds)
        result[outside] = next_values
        outside = outside[next_values >= (n if part is None else part.sizes)]
    return result.astype(np.int64)


def _feistel(
    key: int, half: int, values: NDArray[np.uint64], streams: Streams | None, rounds: range
) -> NDArray[np.uint64]:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    forward = rounds.step > 0
    for round_ in rounds:
        round_key: int | NDArray[np.uint64] = key_of("round", key, round_)
        if streams is not None:
            round_key = hashes(round_key, streams.numbers)
        if forward:
            left, right = right, left ^ (hashes(round_key, right.astype(np.int64)) & mask)
        else:
            left, right = right ^ (hashes(round_key, left.astype(np.int64)) & mask), left
    return (left << shift) | right
