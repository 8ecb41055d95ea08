"""Randomness that is a function of its key: no state, no order, the same on any machine.

Every random number here is a hash of (key, counter), so that the draws of sample 7 need not wait for those of
sample 6, and a worker needs no generator of its own. The hash is SplitMix64's finaliser (Steele, Lea, Flood:
Fast Splittable Pseudorandom Number Generators, OOPSLA 2014); the permutation is a Feistel network over the
smallest even-bit domain, walked until it falls inside (Black, Rogaway: Ciphers with Arbitrary Finite Domains, 2002).
"""

from __future__ import annotations

import numpy as np
import xxhash
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ROUNDS = 6  # four pass for cryptographers with ideal rounds; two more cost little and cover a plain hash


def key_of(*parts: int | str) -> int:
    """Return a 64-bit key for a list of names and numbers, such as a seed, an epoch and a purpose.

    >>> key_of("order", 0, 1) == key_of("order", 0, 1) != key_of("order", 1, 0)
    True
    """
    return xxhash.xxh3_64_intdigest("\0".join(f"{type(part).__name__}:{part}" for part in parts).encode())


def hashes(key: int, counters: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return one 64-bit hash per counter; the shape is that of ``counters``."""
    x = (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN + np.uint64(key)
    x = (x ^ (x >> np.uint64(30))) * _MIX_1
    x = (x ^ (x >> np.uint64(27))) * _MIX_2
    return x ^ (x >> np.uint64(31))


def uniform(key: int, positions: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    """Return ``count`` numbers in [0, 1) for each of n positions: float64 [n, count]."""
    counters = positions[:, None] * np.int64(count) + np.arange(count)  # [n, count], no two alike
    return (hashes(key, counters) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permute(key: int, n: int, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Apply a pseudo-random permutation of 0 .. n-1, chosen by ``key``, to each value.

    >>> permute(5, 4, np.arange(4)).tolist() != [0, 1, 2, 3], sorted(permute(5, 4, np.arange(4)).tolist())
    (True, [0, 1, 2, 3])
    """
    return _walk(key, n, values, range(_ROUNDS))


def unpermute(key: int, n: int, values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Undo `permute`."""
    return _walk(key, n, values, range(_ROUNDS - 1, -1, -1))


def _walk(key: int, n: int, values: NDArray[np.int64], rounds: range) -> NDArray[np.int64]:
    """Encipher until every value lies in 0 .. n-1 again: at most four times as long as one pass, on average."""
    half = max(1, (max(n - 1, 1).bit_length() + 1) // 2)
    result = _feistel(key, half, values.astype(np.uint64), rounds)
    outside = np.flatnonzero(result >= n)
    while len(outside):
        again = _feistel(key, half, result[outside], rounds)
        result[outside] = again
        outside = outside[again >= n]
    return result.astype(np.int64)


def _feistel(key: int, half: int, values: NDArray[np.uint64], rounds: range) -> NDArray[np.uint64]:
    mask, shift = np.uint64((1 << half) - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    forward = rounds.step > 0
    for number in rounds:
        round_key = key_of("round", key, number)
        if forward:
            left, right = right, left ^ (hashes(round_key, right.astype(np.int64)) & mask)
        else:
            left, right = right ^ (hashes(round_key, left.astype(np.int64)) & mask), left
    return (left << shift) | right
