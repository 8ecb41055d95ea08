"""StreamingDataset in a torch DataLoader: the same samples in the same order as make_loader."""

import json
import time

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, get_worker_info

import wds_tools as wt
from wds_tools.errors import ChecksumError, OptionError

VIEW = wt.RandomResizedCrop(24, flip=True)
FIELDS = ("__key__", "image", "label")


def make(packed, **options):
    return wt.StreamingDataset(packed, **{"view": VIEW, "fields": FIELDS, "shuffle": True, **options})


def batches(packed, **options):
    with wt.make_loader(packed, view=VIEW, fields=FIELDS, shuffle=True, **options) as loader:
        return [(batch.key, batch.image.clone(), batch.label) for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.torture_except("2")
def test_a_dataloader_gives_the_batches_of_make_loader(packed, num_workers):
    expected = batches(packed, batch_size=30, num_workers=0)
    loader = DataLoader(make(packed, batch_size=30), batch_size=30, num_workers=num_workers)
    got = list(loader)
    assert len(got) == len(expected) == len(loader)
    for batch, (key, image, label) in zip(got, expected, strict=True):
        assert list(batch.key) == list(key)
        assert torch.equal(batch.image, image)
        assert torch.equal(batch.label, label)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.torture_except("2")
def test_without_a_batch_size_single_samples_are_yielded_in_order(few, num_workers):
    expected = [key for keys, _, _ in batches(few, batch_size=10, num_workers=0) for key in keys]
    loader = DataLoader(make(few), batch_size=None, num_workers=num_workers)
    assert [sample.key for sample in loader] == expected


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True},
    ],
)
@pytest.mark.torture_except("options2")
def test_each_iteration_is_the_next_epoch_for_all_workers(packed, options):
    with wt.make_loader(packed, batch_size=20, fields=("__key__",), shuffle=True, num_workers=0) as loader:
        expected = [[key for batch in loader for key in batch.key] for _ in range(3)]
    dataset = make(packed, batch_size=20, fields=("__key__",), view=None)
    loader = DataLoader(dataset, batch_size=20, **options)
    assert [[key for batch in loader for key in batch.key] for _ in range(2)] == expected[:2]
    for _ in loader:
        break
    dataset.set_epoch(1)
    assert [key for batch in loader for key in batch.key] == expected[1]
    assert [key for batch in loader for key in batch.key] == expected[2]


class LateWorker(wt.StreamingDataset):
    def __iter__(self):
        if get_worker_info().id == 1:
            time.sleep(0.3)
        yield from super().__iter__()


@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.torture_except("False")
def test_a_late_worker_of_an_abandoned_epoch_does_not_advance_the_next_one(packed, persistent_workers):
    dataset = LateWorker(packed, batch_size=20, fields=("__key__",), shuffle=True)
    loader = DataLoader(dataset, batch_size=20, num_workers=2, persistent_workers=persistent_workers)
    next(iter(loader))  # worker 1 has not started its epoch yet
    dataset.set_epoch(1)
    keys = [key for batch in loader for key in batch.key]
    with wt.make_loader(packed, batch_size=20, fields=("__key__",), shuffle=True, num_workers=0) as expected:
        assert [[key for batch in expected for key in batch.key] for _ in range(2)][1] == keys


@pytest.mark.parametrize("context", ["forkserver", pytest.param("spawn", marks=pytest.mark.torture)])
def test_a_worker_that_is_not_forked_gives_the_same_samples_as_the_training_process(packed, context):
    dataset = make(packed, batch_size=100, fields=("__key__",), view=None)
    epochs = []
    for options in ({}, {"num_workers": 1, "multiprocessing_context": context}):
        loader = DataLoader(dataset, batch_size=100, **options)
        dataset.set_epoch(5)
        epochs.append([key for batch in loader for key in batch.key])
    assert epochs[0] == epochs[1]


@pytest.mark.torture
def test_ranks_get_equal_disjoint_parts(packed):
    parts = [[sample.key for sample in make(packed, rank=rank, world_size=3)] for rank in range(3)]
    assert {len(part) for part in parts} == {133}
    assert len({key for part in parts for key in part}) == 399


def test_len_is_the_number_of_samples_of_this_rank(packed):
    assert len(make(packed, batch_size=32)) == 384
    assert len(make(packed, batch_size=32, tail="pad")) == 416
    assert len(make(packed, batch_size=32, rank=0, world_size=2)) == 192


def test_labels_are_plain_ints_and_images_tensors(packed):
    sample = next(iter(make(packed)))
    assert isinstance(sample.label, int)
    assert sample.image.shape == (3, 24, 24)
    assert sample.image.dtype == torch.uint8


def test_tail_mask_is_refused_and_the_error_names_make_loader(packed):
    with pytest.raises(OptionError, match="make_loader"):
        make(packed, tail="mask")


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.torture_except("2")
def test_decode_false_yields_the_stored_bytes_in_the_same_order(packed, photos, num_workers):
    dataset = wt.StreamingDataset(packed, batch_size=20, shuffle=True, decode=False)
    samples = list(DataLoader(dataset, batch_size=None, num_workers=num_workers))
    keys = make(packed, batch_size=20, view=None, fields=("__key__",))
    expected = [sample.key for sample in DataLoader(keys, batch_size=None, num_workers=num_workers)]
    assert [sample["__key__"] for sample in samples] == expected
    for sample in samples:
        path = photos / json.loads(sample["json"])["path"]
        assert sample["jpg" if path.suffix == ".jpg" else "png"] == path.read_bytes()
        assert sample["__url__"].endswith(".tar")
        assert int(sample["cls"]) == sorted(p.name for p in photos.iterdir() if p.is_dir()).index(path.parent.name)


def test_a_webdataset_pipeline_accepts_undecoded_samples(few):
    import webdataset

    dataset = wt.StreamingDataset(few, batch_size=20, shuffle=True, decode=False, tail="pad")
    pipeline = webdataset.DataPipeline(
        dataset, webdataset.decode("pil"), webdataset.to_tuple("jpg;png", "cls"), webdataset.map_tuple(np.array, int)
    )
    rows = list(DataLoader(pipeline, batch_size=None, num_workers=2))
    assert len(rows) == 40
    assert all(image.shape[2] == 3 and 0 <= label < 8 for image, label in rows)


def test_undecoded_bytes_are_verified_and_a_view_is_refused(packed_copy):
    with pytest.raises(OptionError, match="decode=False"):
        wt.StreamingDataset(packed_copy, decode=False, view=VIEW)
    path = packed_copy / "shard-000001.tar"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ChecksumError, match=r"shard-000001\.tar"):
        list(wt.StreamingDataset(packed_copy, decode=False))


@pytest.mark.torture
def test_a_single_field_name_yields_values_without_a_tuple(packed):
    images = list(wt.StreamingDataset(packed, view=VIEW, fields="image"))
    tuples = list(wt.StreamingDataset(packed, view=VIEW, fields=("image",)))
    assert all(isinstance(image, torch.Tensor) for image in images)
    assert all(torch.equal(image, image_of) for image, (image_of,) in zip(images, tuples, strict=True))
    assert {type(label) for label in wt.StreamingDataset(packed, fields="label")} == {int}
    batch = next(iter(DataLoader(wt.StreamingDataset(packed, view=VIEW, fields="image"), batch_size=4)))
    assert torch.equal(batch, torch.stack(images[:4]))


def test_repr_shows_the_dataset_and_its_options(packed):
    text = repr(make(packed, batch_size=30, rank=0, world_size=2, view=None))
    assert text == f"StreamingDataset({str(packed)!r}, samples=400, this_rank=180, batch_size=30, view=None)"
