"""Opening of datasets by folder, URL, manifest or pattern; errors for missing and damaged files."""

import json
import shutil

import pytest
import torch
import webdataset

import wds_tools as wt
from wds_tools.errors import (
    ChecksumError,
    LabelError,
    ManifestError,
    NotADatasetError,
    OptionError,
    StoreError,
    TruncatedShardError,
)
from wds_tools.format.manifest import MANIFEST_NAME
from wds_tools.reading.opening import open_shards


def names(shards):
    return [location.entry.name for location in shards.locations]


def test_a_folder_its_manifest_and_a_file_url_open_the_same_dataset(packed):
    by_folder = open_shards(packed)
    assert len(by_folder.locations) > 2
    for spec in (str(packed) + "/", packed / MANIFEST_NAME, f"file://{packed}"):
        assert open_shards(spec).manifest == by_folder.manifest


def test_a_pattern_opens_its_shards_in_its_order(packed):
    shards = open_shards(f"{packed}/shard-{{000002,000000}}.tar")
    assert names(shards) == ["shard-000002.tar", "shard-000000.tar"]
    full = open_shards(packed).manifest
    assert shards.manifest.samples == full.shards[2].samples + full.shards[0].samples
    assert shards.manifest.classes == full.classes
    assert shards.manifest.shuffled


def test_a_pattern_opens_shards_without_a_manifest_by_their_indexes(packed_copy):
    full = open_shards(packed_copy).manifest
    (packed_copy / MANIFEST_NAME).unlink()
    shards = open_shards(f"{packed_copy}/shard-*.tar")
    assert shards.manifest.shards == full.shards
    assert shards.manifest.fingerprint == full.fingerprint


def test_without_a_manifest_fields_and_image_sizes_come_from_the_indexes(packed_copy):
    full = open_shards(packed_copy).manifest
    (packed_copy / MANIFEST_NAME).unlink()
    rebuilt = open_shards(f"{packed_copy}/shard-{{000000..000006}}.tar").manifest
    assert rebuilt.fields == full.fields
    assert rebuilt.images == full.images
    assert rebuilt.classes == ()
    index = open_shards(f"{packed_copy}/shard-000002.tar").index(0)
    part = open_shards(f"{packed_copy}/shard-000002.tar").manifest
    assert part.fields == {name: (columns.offset >= 0).sum() for name, columns in index.fields.items()}
    assert "png" in part.fields
    assert part.images.max_width == index.width.max()


def test_a_pattern_without_a_manifest_can_be_loaded_split_described_verified_and_merged(packed, packed_copy, tmp_path):
    (packed_copy / MANIFEST_NAME).unlink()
    pattern = f"{packed_copy}/shard-{{000000..000006}}.tar"
    options = {"batch_size": 8, "view": wt.RandomResizedCrop(32), "shuffle": 64, "num_workers": 0}
    with wt.make_loader(packed, **options) as reference, wt.make_loader(pattern, **options) as loader:
        for (images, labels), (expected_images, expected_labels) in zip(loader, reference, strict=True):
            assert torch.equal(images, expected_images)
            assert torch.equal(labels, expected_labels)
    with pytest.raises(OptionError, match="needs images of at least 5000x5000"):
        wt.make_loader(pattern, batch_size=8, view=wt.CenterCrop(5000))
    assert len(wt.train_test_split(pattern)[1]) == 80
    assert wt.describe(pattern).samples == 400
    assert wt.verify(pattern).ok
    assert wt.merge([pattern], tmp_path / "merged").manifest.samples == 400


def test_a_shard_that_the_manifest_of_its_folder_does_not_list_adds_its_fields(packed_copy, tmp_path):
    with wt.ShardWriter(f"{tmp_path}/more-%06d.tar") as writer:
        writer.write({"__key__": "a", "txt": b"hello"})
    for name in ("more-000000.tar", "more-000000.parquet"):
        shutil.copy(tmp_path / name, packed_copy / name)
    assert set(open_shards(f"{packed_copy}/*.tar").manifest.fields) == {"jpg", "png", "cls", "json", "txt"}


@pytest.fixture
def two_manifests(tmp_path):
    """Return a folder with shards that the webdataset library wrote, with the names of classes as labels."""
    for name, classes in (("train", ["ant", "bee", "cow"]), ("val", ["cow", "bee"]), ("other", ["2", "1"])):
        with webdataset.ShardWriter(f"{tmp_path}/{name}-%06d.tar", verbose=0) as writer:
            for key, label in enumerate(classes):
                writer.write({"__key__": f"{name}{key}", "txt": label, "cls": label})
    return tmp_path


def names_of_labels(shards):
    return [shards.manifest.classes[label] for label in shards.index(0).label]


@pytest.mark.parametrize("first", ["manifest.json", "train.json"])
def test_shards_have_the_classes_of_the_manifest_that_lists_them(two_manifests, first):
    wt.index_shards(f"{two_manifests}/train-*.tar", manifest=first)
    (two_manifests / "alone").mkdir()  # next to the other manifest, the classes would get its numbers
    (two_manifests / "val-000000.tar").rename(two_manifests / "alone" / "val-000000.tar")
    wt.index_shards(f"{two_manifests}/alone/val-*.tar", manifest="val.json")
    for path in (two_manifests / "alone").iterdir():
        path.rename(two_manifests / path.name)
    (two_manifests / "notes.json").write_text("[1, 2]")  # of another program
    assert names_of_labels(open_shards(f"{two_manifests}/train-*.tar")) == ["ant", "bee", "cow"]
    assert names_of_labels(open_shards(f"{two_manifests}/val-*.tar")) == ["cow", "bee"]
    both = f"{two_manifests}/{{train,val}}-000000.tar"
    with pytest.raises(LabelError, match="different classes"):
        wt.make_loader(both, batch_size=1, fields=("label",))
    with pytest.raises(LabelError, match="different classes"):
        wt.merge([both], two_manifests / "merged")
    merged = wt.merge([f"{two_manifests}/{name}-000000.tar" for name in ("val", "train")], two_manifests / "merged")
    assert merged.manifest.classes == ("bee", "cow", "ant")


def test_labels_of_shards_in_no_manifest_have_no_names(two_manifests):
    wt.index_shards(f"{two_manifests}/other-*.tar")
    (two_manifests / MANIFEST_NAME).unlink()
    wt.index_shards(f"{two_manifests}/train-*.tar")
    assert open_shards(f"{two_manifests}/other-*.tar").manifest.classes == ()
    both = f"{two_manifests}/{{train,other}}-000000.tar"
    assert open_shards(both).manifest.classes == ()
    with pytest.raises(LabelError, match=r"different classes.*no name.*wds-tools index"):
        wt.make_loader(both, batch_size=1, fields=("label",))


def test_a_damaged_manifest_of_another_name_is_an_error(two_manifests):
    wt.index_shards(f"{two_manifests}/val-*.tar", manifest="val.json")
    damaged = two_manifests / "val.json"
    damaged.write_text(damaged.read_text().replace("bee", "fig"))
    with pytest.raises(ManifestError, match=r"val\.json"):
        open_shards(f"{two_manifests}/val-*.tar")


def test_an_index_gives_the_location_of_every_field(packed):
    shards = open_shards(packed)
    index = shards.index(0)
    columns = index.fields["json"]
    ranges = [(int(o), int(o + s)) for o, s in zip(columns.offset, columns.size, strict=True)]
    for data in shards.fetch(0, ranges):
        assert json.loads(bytes(data))["class"] in shards.manifest.classes


@pytest.mark.parametrize(
    ("spec", "phrases"),
    [
        ("missing", ["missing", "no such folder", "wds-tools pack"]),
        ("missing/x-{0..3}.tar", ["no such shard", "x-0.tar"]),
        ("missing/*.tar", ["*.tar"]),
        ("missing/manifest.json", ["no such folder"]),
    ],
)
def test_the_error_for_a_missing_dataset_names_it_with_the_next_step(tmp_path, spec, phrases):
    with pytest.raises(NotADatasetError) as caught:
        open_shards(f"{tmp_path}/{spec}")
    message = str(caught.value)
    assert "\n" not in message
    assert all(phrase in message for phrase in phrases), message


def test_the_error_for_a_missing_folder_names_the_datasets_next_to_it(tmp_path, packed):
    shutil.copytree(packed, tmp_path / "train2017")
    shutil.copytree(packed, tmp_path / "val2017")
    with pytest.raises(NotADatasetError, match=r"train: no such folder; .*: train2017, val2017"):
        open_shards(tmp_path / "train")


def test_the_error_for_a_folder_of_photographs_suggests_to_pack_it(photos):
    with pytest.raises(NotADatasetError, match="wds-tools pack"):
        open_shards(photos)


def test_the_error_for_tar_files_without_an_index_suggests_to_index_them(tmp_path, packed):
    shutil.copy(packed / "shard-000000.tar", tmp_path)
    with pytest.raises(NotADatasetError, match="wds-tools index"):
        open_shards(tmp_path)
    with pytest.raises(NotADatasetError, match="wds-tools index"):
        open_shards(tmp_path / "shard-000000.tar")


def test_a_url_without_a_manifest_is_not_a_dataset():
    with pytest.raises(NotADatasetError, match=r"memory://nowhere.*manifest\.json"):
        open_shards("memory://nowhere")


def test_a_truncated_shard_is_detected_when_it_is_opened(packed_copy):
    shard = packed_copy / "shard-000001.tar"
    shard.write_bytes(shard.read_bytes()[:-512])
    with pytest.raises(TruncatedShardError, match=r"shard-000001\.tar.*manifest records"):
        open_shards(packed_copy).fetch(1, [(0, 512)])


def test_the_error_for_a_missing_shard_names_it(packed_copy):
    (packed_copy / "shard-000001.tar").unlink()
    with pytest.raises(StoreError, match=r"shard-000001\.tar is missing"):
        open_shards(packed_copy).fetch(1, [(0, 512)])


def test_a_damaged_or_exchanged_index_is_refused(packed_copy):
    index = packed_copy / "shard-000001.parquet"
    data = bytearray(index.read_bytes())
    data[len(data) // 2] ^= 1
    index.write_bytes(data)
    with pytest.raises(ChecksumError, match=r"shard-000001\.parquet"):
        open_shards(packed_copy).index(1)
    shutil.copy(packed_copy / "shard-000000.parquet", index)
    with pytest.raises(ChecksumError, match="does not match the checksum in the manifest"):
        open_shards(packed_copy).index(1)


def test_the_error_for_a_missing_index_names_it(packed_copy):
    (packed_copy / "shard-000002.parquet").unlink()
    with pytest.raises(StoreError, match=r"shard-000002\.parquet is missing"):
        open_shards(packed_copy).index(2)


def test_a_manifest_edited_by_hand_is_refused(packed_copy):
    path = packed_copy / MANIFEST_NAME
    path.write_text(path.read_text().replace('"samples": ', '"samples": 1', 1))
    with pytest.raises(ManifestError, match="wds-tools reseal"):
        open_shards(packed_copy)
