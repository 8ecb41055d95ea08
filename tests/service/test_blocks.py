"""How a shard is divided into blocks, and that damage in a block is found."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.format.index_builder import IndexBuilder
from wds_tools.service import blocks
from wds_tools.service.blocks import ShardBlocks

MEBIBYTE = 1 << 20


def shard_of(sizes: list[int], *, content: bytes = b"") -> ShardBlocks:
    """Return the blocks of a shard whose samples have one field of these sizes."""
    builder, position = IndexBuilder(), 512
    for number, size in enumerate(sizes):
        checksum = xxhash.xxh3_64_intdigest(content[position : position + size])
        builder.add(f"{number}", {"bin": (position, size, checksum)})
        position += -(-size // 512) * 512 + 512
    return ShardBlocks(builder.build(shard="a.tar", shard_bytes=position + 512, shard_xxh3="0" * 32))


@given(sizes=st.lists(st.integers(0, 6 * MEBIBYTE) | st.just(100), min_size=1, max_size=30))
def test_blocks_cover_the_shard_and_cut_no_field(sizes: list[int]) -> None:
    bounds = shard_of(sizes).bounds.tolist()
    assert bounds[0] == 0
    assert bounds == sorted(set(bounds))
    position = 512
    for size in sizes:
        block = np.searchsorted(bounds, position, side="right") - 1
        assert position + size <= bounds[block + 1]
        position += -(-size // 512) * 512 + 512
    assert bounds[-1] == position + 512
    assert max(np.diff(bounds)) <= 2 * 6 * MEBIBYTE


def test_small_samples_give_blocks_of_about_the_usual_size() -> None:
    lengths = np.diff(shard_of([100_000] * 400).bounds)
    assert (lengths <= blocks.BLOCK_BYTES).all()
    assert (lengths[:-1] > blocks.BLOCK_BYTES - 200_000).all()


def test_a_field_of_more_than_the_largest_block_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "MAX_BLOCK_BYTES", 8 * MEBIBYTE)
    bounds = shard_of([100, 30 * MEBIBYTE, 100]).bounds
    assert max(np.diff(bounds)) <= 8 * MEBIBYTE


def test_damage_is_named_and_undamaged_blocks_are_not_reported() -> None:
    sizes = [3 * MEBIBYTE, 1000, 3 * MEBIBYTE]
    content = np.random.default_rng(0).bytes(7 * MEBIBYTE)
    shard = shard_of(sizes, content=content)
    for start, stop in zip(shard.bounds[:-1].tolist(), shard.bounds[1:].tolist(), strict=True):
        data = bytearray(content[start:stop])
        assert shard.damage(start, memoryview(data)) == ""
        data[len(data) // 2] ^= 1
        assert "does not match the checksum in its index" in shard.damage(start, memoryview(data))
