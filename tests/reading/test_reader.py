"""Reading of verified bytes by sample id."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import ChecksumError, MissingFieldError
from wds_tools.reading.opening import open_shards
from wds_tools.reading.reader import Reader
from wds_tools.reading.rows import Rows
from wds_tools.reading.shardset import check_fields


@pytest.fixture(scope="module")
def reader(packed):
    return Reader(open_shards(packed), block=7)


@given(data=st.data())
def test_any_ids_give_the_bytes_keys_and_labels_of_their_samples_in_order(reader, packed, data):
    samples = reader.shards.manifest.samples
    ids = np.array(data.draw(st.lists(st.integers(0, samples - 1), min_size=1, max_size=30)))
    rows = Rows(reader, ids)
    images, labels, keys = rows.images(), rows.gather("label"), rows.keys()
    for i, number in enumerate(ids.tolist()):
        shard, row = (int(part[0]) for part in reader.locate(np.array([number])))
        index = reader.shards.index(shard)
        field = rows.kinds()[i]
        offset, size = index.fields[field].offset[row], index.fields[field].size[row]
        content = (packed / index.shard).read_bytes()
        assert bytes(images[i]) == content[offset : offset + size]
        assert keys[i] == index.keys[row]
        assert labels[i] == index.label[row]


def test_all_samples_together_are_the_packed_photographs(reader, photos):
    rows = Rows(reader, np.arange(reader.shards.manifest.samples))
    read = sorted(bytes(image) for image in rows.images())
    assert read == sorted(path.read_bytes() for path in photos.rglob("*") if path.is_file())


@pytest.mark.parametrize("field", ["image", "cls", "json"])
def test_a_flipped_bit_is_reported_with_shard_key_and_byte(packed_copy, field):
    shards = open_shards(packed_copy)
    index = shards.index(1)
    name = next(f for f in ("jpg", "png") if index.fields[f].offset[3] >= 0) if field == "image" else field
    offset = int(index.fields[name].offset[3] + index.fields[name].size[3] // 2)
    path = packed_copy / "shard-000001.tar"
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)
    reader = Reader(open_shards(packed_copy), block=7)
    first = shards.manifest.shards[0].samples
    rows = Rows(reader, np.arange(first, first + len(index)))
    with pytest.raises(ChecksumError) as caught:
        rows.images() if field == "image" else rows.field(field)
    assert caught.value.shard == "shard-000001.tar"
    assert caught.value.key == index.keys[3]
    assert caught.value.offset == int(index.fields[name].offset[3])
    assert "wds-tools verify" in str(caught.value)


def test_the_error_for_a_missing_field_lists_the_fields_of_the_sample(reader):
    ids = np.arange(reader.shards.manifest.samples)
    png = next(i for i, kind in enumerate(Rows(reader, ids).kinds()) if kind == "png")
    with pytest.raises(MissingFieldError, match=r"no field 'jpg'; it has .*png") as caught:
        Rows(reader, ids[png : png + 1]).field("jpg")
    assert caught.value.key


@pytest.mark.parametrize(
    ("fields", "available", "valid"),
    [
        (("image", "label", "__key__"), ["jpg", "cls"], True),
        (("webp",), ["webp"], True),
        (("label",), ["jpg", "json"], False),
        (("image",), ["txt"], False),
        (("mask.png",), ["jpg", "cls"], False),
    ],
)
def test_check_fields_refuses_fields_that_a_dataset_lacks(fields, available, valid):
    if valid:
        check_fields(fields, available)
        return
    with pytest.raises(MissingFieldError) as caught:
        check_fields(fields, available)
    assert all(name in str(caught.value) for name in available)


def test_a_damaged_block_of_the_cache_is_fetched_again(packed, tmp_path):
    import fsspec

    from wds_tools.options import RemoteOptions

    memory = fsspec.filesystem("memory")
    memory.put(str(packed), "/again", recursive=True)
    remote = RemoteOptions(cache_folder=tmp_path / "blocks")
    try:
        Rows(Reader(open_shards("memory://again", remote=remote), block=5), np.arange(20)).images()
        for path in remote.cache_folder.glob("*/[0-9a-f]*"):
            path.write_bytes(bytes(path.stat().st_size))
        images = Rows(Reader(open_shards("memory://again", remote=remote), block=5), np.arange(20)).images()
    finally:
        memory.rm("/again", recursive=True)
    assert [bytes(i) for i in images] == [
        bytes(i) for i in Rows(Reader(open_shards(packed), block=5), np.arange(20)).images()
    ]
