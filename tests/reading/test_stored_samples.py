"""Sequential reading of verified samples, a few megabytes at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

import wds_tools as wt
from wds_tools.errors import ChecksumError
from wds_tools.reading import stored_samples as module
from wds_tools.reading.shardset import open_shards
from wds_tools.reading.stored_samples import stored_samples


def test_all_samples_are_returned_in_order_with_all_their_fields(packed: Path) -> None:
    shards = open_shards(packed)
    read = [sample for number in range(len(shards.locations)) for sample in stored_samples(shards, number)]
    assert [sample.key for sample in read] == [f"{number:09d}" for number in range(400)]
    data = (packed / "shard-000000.tar").read_bytes()
    for sample in read[:10]:
        assert sample.shard == "shard-000000.tar"
        assert list(sample.fields)[1:] == ["cls", "json"]
        assert all(bytes(part) in data for part in sample.fields.values())


@pytest.mark.parametrize("limit", [1, 100_000, 10**9])
def test_a_read_is_at_most_the_limit_or_one_sample(packed: Path, monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(module, "READ_BYTES", limit)
    shards = open_shards(packed)
    requested = []
    fetch = shards.fetch
    monkeypatch.setattr(shards, "fetch", lambda number, ranges: requested.extend(ranges) or fetch(number, ranges))
    samples = list(stored_samples(shards, 0))
    assert len(samples) == shards.manifest.shards[0].samples
    largest = max(sum(map(len, sample.fields.values())) + 3 * 1024 for sample in samples)
    assert all(stop - start <= max(limit, largest) for start, stop in requested)
    assert len(requested) == {1: len(samples), 10**9: 1}.get(limit, len(requested))


def test_a_changed_byte_is_an_error_that_names_the_sample(packed_copy: Path) -> None:
    index = open_shards(packed_copy).index(1)
    path = packed_copy / "shard-000001.tar"
    data = bytearray(path.read_bytes())
    data[int(index.fields["cls"].offset[2])] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError, match=f"shard shard-000001.tar, key {index.keys[2]}, byte .* field 'cls'"):
        list(stored_samples(open_shards(packed_copy), 1))


def test_a_sample_may_lack_a_field(tmp_path: Path) -> None:
    with wt.ShardWriter(tmp_path / "a-%d.tar") as writer:
        writer.write({"__key__": "a", "txt": "x"})
        writer.write({"__key__": "b", "cls": 1})
    assert [list(sample.fields) for sample in stored_samples(open_shards(tmp_path), 0)] == [["txt"], ["cls"]]
