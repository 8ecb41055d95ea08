"""Sequential reading of verified samples, a few megabytes at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from buckets import Bucketful

import wds_tools as wt
from wds_tools.errors import ChecksumError
from wds_tools.options import RemoteOptions
from wds_tools.reading import stored_samples as module
from wds_tools.reading.opening import open_shards
from wds_tools.reading.stored_samples import stored_samples
from wds_tools.storage import stream


@pytest.fixture(autouse=True)
def new_bucket() -> None:
    Bucketful.reset()


def test_all_samples_are_returned_in_order_with_all_their_fields(packed: Path) -> None:
    shards = open_shards(packed)
    read = [sample for number in range(len(shards.locations)) for sample in stored_samples(shards, number)]
    assert [sample.key for sample in read] == [f"{number:09d}" for number in range(400)]
    data = (packed / "shard-000000.tar").read_bytes()
    for sample in read[:10]:
        assert sample.shard == "shard-000000.tar"
        assert list(sample.fields)[1:] == ["cls", "json"]
        assert all(bytes(part) in data for part in sample.fields.values())


@pytest.mark.parametrize("limit", [10_000, 100_000, 10**9])
def test_no_range_that_is_read_from_a_url_exceeds_the_limit_and_no_byte_is_read_twice(
    packed: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", limit)
    monkeypatch.setattr(module, "READ_BYTES", limit)
    shards = open_shards(f"bucket://{packed}", remote=RemoteOptions.of(None, 1))
    samples = [bytes(part) for sample in stored_samples(shards, 0) for part in sample.fields.values()]
    local = [bytes(part) for sample in stored_samples(open_shards(packed), 0) for part in sample.fields.values()]
    assert samples == local
    ranges = [stop - start for name, start, stop in Bucketful.ranges if name == "shard-000000.tar"]
    assert max(ranges) <= limit
    assert sum(ranges) <= (packed / "shard-000000.tar").stat().st_size


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
