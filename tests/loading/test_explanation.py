"""`loader.explain(step)` reports what the loader delivers, from the state alone."""

import json
import shutil
import tracemalloc
from itertools import islice

import pytest
from torchvision.transforms.v2 import functional

import wds_tools as wt
from wds_tools.errors import MissingFieldError, OptionError
from wds_tools.format.manifest import Manifest, ShardEntry, to_json

VIEWS = [wt.RandomResizedCrop(48, flip=True), wt.CenterCrop(40, resize=56)]
FIELDS = {"image": wt.Image(view=VIEWS), "key": wt.Key(), "label": wt.Label()}


def make(dataset, **options):
    return wt.make_loader(
        dataset, **{"batch_size": 6, "fields": FIELDS, "shuffle": True, "num_workers": 0, "seed": 4, **options}
    )


def run(dataset, world, state, steps, **options):
    """Return the batches of each rank in the next steps of a run, and the state after them."""
    batches, states = [], []
    for rank in range(world):
        with make(dataset, rank=rank, world_size=world, **options) as loader:
            if state:
                loader.load_state_dict(state)
            got = []
            while len(got) < steps:
                got += list(islice(loader, steps - len(got)))
            batches.append(got)
            states.append(json.loads(json.dumps(loader.state_dict())))
    assert all(one == states[0] for one in states)
    return batches, states[0]


def assert_is_batch(explanation, batch):
    assert [sample.key for sample in explanation.samples] == batch.key
    for i in range(len(batch.key)):
        for crop, expected in zip(explanation.images("image", i), batch.image, strict=True):
            assert (crop == expected[i]).all()


def test_every_step_of_a_run_that_changed_its_ranks_and_batch_size_is_explained_by_its_last_state(few):
    parts = [(2, {"batch_size": 3}, 8), (3, {"batch_size": 2}, 6), (1, {"batch_size": 10, "tail": "pad"}, 4)]
    state, taken = None, []
    for world, options, steps in parts:
        batches, state = run(few, world, state, steps, **options)
        taken += [[batches[rank][number] for rank in range(world)] for number in range(steps)]
    assert state["step"] == len(taken) == 18
    assert state["epoch"] == 3
    assert [section[0] for section in state["sections"]] == [0, 8, 14]
    with make(few, batch_size=30) as loader:  # the options of this loader do not matter
        loader.load_state_dict(state)
        for number in range(18):
            for rank, batch in enumerate(taken[number]):
                assert_is_batch(loader.explain(number, rank=rank), batch)
        future = loader.explain(23)
    with make(few, batch_size=10, tail="pad") as loader:
        loader.load_state_dict(state)
        batches = [*loader, *loader]
    assert_is_batch(future, batches[5])


def test_steps_can_be_counted_from_the_start_of_an_epoch(packed):
    with make(packed, batch_size=32) as loader:
        first = [batch.key for batch in loader]
        second = [batch.key for batch in loader]
        for epoch, expected in enumerate((first, second)):
            found = loader.explain(7, epoch=epoch)
            assert [sample.key for sample in found.samples] == expected[7]
            assert (found.epoch, found.step) == (epoch, 12 * epoch + 7)
        assert loader.explain(0, epoch=5).step == 60
        with pytest.raises(OptionError, match="step=12; epoch 1 has the steps 0 to 11"):
            loader.explain(12, epoch=1)


def test_a_step_is_known_before_the_first_batch(packed):
    with make(packed) as loader:
        future = loader.explain(3)
        batches = list(islice(loader, 4))
        assert_is_batch(future, batches[3])


def test_the_crops_are_the_regions_of_the_stored_images_that_were_delivered(packed):
    with make(packed, fields=("image", "__key__"), view=wt.RandomResizedCrop(48, flip=True)) as loader:
        batch = next(iter(loader))
        for sample, got in zip(loader.explain(0).samples, batch.image, strict=True):
            (crop,) = sample.crops["image"]
            stored = whole_image(packed, sample.id)
            region = functional.resized_crop(stored, crop.top, crop.left, crop.height, crop.width, [*crop.size])
            region = region.flip(-1) if crop.flip else region
            assert (region.int() - got.int()).abs().float().mean() < 3


def whole_image(dataset, sample_id):
    with wt.make_loader(dataset, batch_size=1, fields="image", subset=[sample_id], num_workers=0) as loader:
        return next(iter(loader))[0]


def test_steps_before_the_dataset_grew_are_explained_with_the_shards_of_that_time(packed, tmp_path):
    shards = sorted(packed.glob("*.tar"))
    for shard in shards[:4]:
        shutil.copy(shard, tmp_path)
    wt.index_shards([str(tmp_path / "*.tar")])
    options = {"fields": ("__key__",), "batch_size": 20}
    with make(tmp_path, **options) as loader:
        before = [batch.key for batch in loader]
        before += [batch.key for batch in islice(loader, 3)]
        state = loader.state_dict()
    for shard in shards[4:]:
        shutil.copy(shard, tmp_path)
    wt.index_shards([str(tmp_path / "*.tar")])
    with make(tmp_path, **options) as loader:
        loader.load_state_dict(state)
        after = [batch.key for batch in loader]
        after += [batch.key for batch in islice(loader, 3)]
        for number, keys in enumerate(before + after):
            assert [sample.key for sample in loader.explain(number).samples] == keys


def test_iterations_that_are_left_early_are_sections_of_which_the_last_64_are_kept(packed):
    with make(packed, fields=("__key__",)) as loader:
        taken = [next(iter(loader)).key for _ in range(66)]
        assert len(loader.state_dict()["sections"]) == 64
        assert [sample.key for sample in loader.explain(65).samples] == taken[65]
        assert [sample.key for sample in loader.explain(2).samples] == taken[2]
        with pytest.raises(OptionError, match="step=1; the state records the steps from 2 on: only the last 64"):
            loader.explain(1)
        with pytest.raises(OptionError, match="epoch=1; its start is not among the steps"):
            loader.explain(0, epoch=1)


def test_padding_is_marked(packed):
    with make(packed, tail="mask", batch_size=150, fields=("__key__",)) as loader:
        batches = list(loader)
        found = loader.explain(2)
        assert [not sample.is_padding for sample in found.samples] == batches[2].valid.tolist()


def test_steps_and_ranks_that_do_not_exist_are_errors(packed):
    with make(packed) as loader:
        next(iter(loader))
        for wrong in ({"step": -1}, {"step": 0, "epoch": -1}, {"step": 1.5}):
            with pytest.raises(OptionError, match="allowed are whole numbers of 0 and more"):
                loader.explain(**wrong)
        with pytest.raises(OptionError, match="rank=1; step 0 was or will be read by the ranks 0 to 0"):
            loader.explain(0, rank=1)
        with pytest.raises(OptionError, match="no image field 'nonsense'; its image fields are image"):
            loader.explain(0).images("nonsense", 0)


def test_a_sample_without_an_image_is_explained_without_crops(tmp_path, photos):
    photo = min(photos.glob("cat/*.jpg")).read_bytes()
    with wt.ShardWriter(str(tmp_path / "x-%06d.tar")) as writer:
        for number in range(6):
            writer.write({"__key__": f"sample{number}", "cls": 0, **({} if number == 2 else {"jpg": photo})})
    with make(tmp_path, shuffle=False, on_error="replace") as loader:
        found = loader.explain(0)
        assert [len(sample.crops["image"]) for sample in found.samples] == [2, 2, 0, 2, 2, 2]
        assert "x-000000.tar sample2\n" in str(found)
        with pytest.raises(MissingFieldError, match="no field 'image'; it has cls"):
            found.images("image", 2)


@pytest.mark.torture
def test_a_step_of_a_billion_samples_is_found_without_computing_the_epoch(tmp_path):
    entries = tuple(
        ShardEntry(f"shard-{n:06}.tar", 50_000, 10**9, f"{n:032x}", f"shard-{n:06}.parquet", 500_000, f"{n:032x}")
        for n in range(20_000)
    )
    (tmp_path / "manifest.json").write_text(to_json(Manifest(entries, {"jpg": 10**9, "cls": 10**9}, shuffled=True)))
    options = {"fields": ("label",), "shuffle": True, "num_workers": 0, "lanes": 8, "rank": 0, "world_size": 64}
    with wt.make_loader(tmp_path, batch_size=256, **options) as loader:
        loader.explain(5)  # the manifest is read and the tables of the order are built
        tracemalloc.start()
        for step in (777_777, 1_000_000_007):
            found = loader.explain(step)
            assert len(set(found.ids.tolist())) == 64 * 256
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 300 << 20  # the ids of an epoch take 8 GB
