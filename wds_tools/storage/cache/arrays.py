"""Arrays that are computed from a dataset once per machine: a block of the cache, which all processes map.

A block has the length of its head in 8 bytes, the head as JSON, and the arrays, each at a multiple of 64 bytes::

    {"arrays": {NAME: [DTYPE, SHAPE, OFFSET]}, "values": {...}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.storage.cache.blocks import BlockCache

URL = "computed for datasets"
"""What `wds-tools cache list` shows instead of a URL."""

_VERSION = 1  # of the arrays and of how they are computed: part of each name
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Arrays:
    """Some arrays, and values that fit in JSON.

    Attributes:
        arrays: The arrays; those of the cache are mapped and cannot be written to.
        values: The values.
        is_mapped: Whether the arrays are those of the cache.
    """

    arrays: Mapping[str, NDArray[Any]]
    values: Mapping[str, Any] = field(default_factory=dict)
    is_mapped: bool = False


class ArrayCache:
    """Arrays by what they were computed from.

    Args:
        folder: Folder of the cache.
        limit_bytes: Size limit of that folder in bytes; 1 stores nothing.
    """

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._blocks = BlockCache(folder, limit_bytes, url=URL, without="each process computes its own")

    def __reduce__(self) -> tuple[Any, ...]:
        return ArrayCache, (self._folder, self._limit_bytes)  # each process maps the blocks that it needs

    def load(self, source: str, compute: Callable[[], Arrays]) -> Arrays:
        """Return arrays by all that they depend on; one process of the machine computes them, the others wait."""
        name = f"arrays {_VERSION} {xxhash.xxh3_128_hexdigest(source.encode('utf-8', 'surrogatepass'))}"
        arrays = self._find(name)
        if arrays is not None:
            return arrays
        with self._blocks.claim(name, wait=True):
            arrays = self._find(name)
            if arrays is None:
                arrays = compute()
                if self._blocks.put(name, *_encode(arrays)):
                    arrays = self._find(name) or arrays
        return arrays

    def _find(self, name: str) -> Arrays | None:
        if not self._blocks.contains(name):  # marks it as used now
            return None
        block = self._blocks.get_verified(name)
        return None if block is None else _decode(block)


def _encode(content: Arrays) -> list[memoryview | bytes]:
    """Return the parts of a block."""
    arrays = {name: np.ascontiguousarray(array) for name, array in content.arrays.items()}
    entries, offset = {}, 0
    for name, array in arrays.items():
        entries[name] = [array.dtype.str, array.shape, offset]
        offset += _padded(array.nbytes)
    head = json.dumps({"arrays": entries, "values": content.values}).encode()
    head = len(head).to_bytes(8, "little") + head
    parts: list[memoryview | bytes] = [head.ljust(_padded(len(head)), b"\0")]
    for array in arrays.values():
        parts += [array.reshape(-1).view(np.uint8).data, bytes(_padded(array.nbytes) - array.nbytes)]
    return [part for part in parts if len(part)]


def _decode(block: memoryview) -> Arrays:
    length = int.from_bytes(block[:8], "little")
    head = json.loads(bytes(block[8 : 8 + length]))
    start, arrays = _padded(8 + length), {}
    for name, (dtype, shape, offset) in head["arrays"].items():
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(block, dtype, count=count, offset=start + offset).reshape(shape)
    return Arrays(arrays, head["values"], is_mapped=True)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
