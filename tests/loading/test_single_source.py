"""``Mixture(batches="single")``: each batch of one dataset, on ranks, after a resume, with weights, bans and views."""

import json
from collections import Counter
from itertools import islice

import pytest
from torch.utils.data import DataLoader

import wds_tools as wt
from wds_tools.errors import LabelError, MissingFieldError, OptionError, ResumeError


def mixture(packed, few, weights=(3, 1), **options):
    return wt.Mixture([packed, few], list(weights), batches="single", **options)


def make(dataset, **options):
    options = {"batch_size": 8, "fields": ("__key__", "label"), "shuffle": True, "num_workers": 0, **options}
    return wt.make_loader(dataset, **options)


def keys_of(batches, steps=None):
    return [list(batch.key) for batch in islice(batches, steps)]


def sources_of(loader, steps, rank=None):
    """Return the numbers of the datasets of each step."""
    return [set((loader.explain(step, rank=rank).ids >= 400).astype(int).tolist()) for step in steps]


def test_each_batch_is_of_one_dataset_and_the_weights_hold(packed, few):
    data = mixture(packed, few, stop="all_exhausted")
    with make(data, num_workers=1) as loader:
        run = keys_of(loader)
        found = sources_of(loader, range(len(run)))
        assert all(len(one) == 1 for one in found)
        counts = Counter(source for one in found for source in one)
        assert abs(counts[0] - 3 * counts[1]) <= 3
        assert [[sample.key for sample in loader.explain(step).samples] for step in (0, 5, 9)] == [
            run[0],
            run[5],
            run[9],
        ]
        assert loader.epoch_proof().ok
        assert len({key for keys, one in zip(run, found, strict=True) if one == {0} for key in keys}) == 400
        assert keys_of(loader, 3) != run[:3]


@pytest.mark.parametrize("same", [True, False])
def test_ranks_have_the_same_dataset_or_not_and_a_run_resumes(packed, few, same):
    data = mixture(packed, few, (1, 1), epoch_length=160, same_source_on_ranks=same)
    ranks = [make(data, rank=rank, world_size=2) for rank in range(2)]
    runs = []
    for loader in ranks:
        batches = iter(loader)
        runs.append(keys_of(batches, 4))
        state = json.loads(json.dumps(loader.state_dict()))
        runs[-1] += keys_of(batches) + keys_of(loader)
    for rank in range(2):
        assert all(len(one) == 1 for one in sources_of(ranks[0], range(20), rank))
    assert all((len(one) == 1) == same for one in sources_of(ranks[0], range(20)))
    if same:  # one rank with batches of the same number of samples
        with make(data, batch_size=16) as loader:
            loader.load_state_dict(state)
            assert [*map(set, keys_of(loader) + keys_of(loader))] == [
                {*one, *two} for one, two in zip(*(run[4:] for run in runs), strict=True)
            ]
    with make(data, batch_size=8, rank=1, world_size=2) as loader:
        loader.load_state_dict(state)
        assert keys_of(loader) + keys_of(loader) == runs[1][4:]
    with make(data, batch_size=32) as loader:
        loader.load_state_dict(state)
        with pytest.raises(OptionError, match="mix datasets"):
            next(iter(loader))
    with make(wt.Mixture([packed, few], [1, 1], epoch_length=160)) as loader, pytest.raises(ResumeError):
        loader.load_state_dict(state)


def test_batches_stay_of_one_dataset_after_changes_of_weights_and_bans(packed, few):
    data = mixture(packed, few, epoch_length=240)
    with make(data) as loader:
        batches = iter(loader)
        keys_of(batches, 5)
        loader.reweight(sources=[0, 1])
        assert sources_of(loader, range(5, 9)) == [{1}] * 4
        keys_of(batches, 2)
        loader.reweight(sources=[1, 1], where={"label == 0": 0})
        state = loader.state_dict()
    banned = [0, 5, 401, 403]
    with make(data, ban=banned) as loader:
        loader.load_state_dict(state)
        run = [batch.label.tolist() for batch in loader] + [batch.label.tolist() for batch in loader]
        assert not any(0 in labels for labels in run)
        ids = [set(loader.explain(step).ids.tolist()) for step in range(7, 60)]
        assert not any(one & set(banned) for one in ids)
        assert all(len(one) == 1 for one in sources_of(loader, range(7, 60)))
    with make(data, ban=banned) as loader:
        assert not any(set(loader.explain(step).ids.tolist()) & set(banned) for step in range(60))
        assert all(len(one) == 1 for one in sources_of(loader, range(60)))
        assert len(keys_of(loader)) == 30


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.torture)])
def test_each_dataset_has_its_own_view(packed, few, workers):
    views = [wt.CenterCrop(24, resize=32), wt.RandomResizedCrop((16, 40), flip=True)]
    data = mixture(packed, few, (1, 1), epoch_length=80, views=views)
    with make(data, fields=("image", "__key__"), num_workers=workers) as loader:
        for step, batch in enumerate(loader):
            (source,) = sources_of(loader, [step])[0]
            assert tuple(batch.image.shape) == (8, 3, *((24, 24), (16, 40))[source])
            assert loader.explain(step).samples[0].crops["image"][0].size == ((24, 24), (16, 40))[source]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batches": "other"}, "batches="),
        ({"batches": "mixed", "same_source_on_ranks": False}, "are for batches='single'"),
        ({"views": [wt.Resize(8)]}, "list with the view of each of the 2"),
        ({"views": [wt.Resize(8)] * 2, "same_source_on_ranks": False}, "requires same_source_on_ranks"),
        ({"epoch_length": 81}, "multiples of 8"),
    ],
)
def test_invalid_options_are_refused(packed, few, options, message):
    with pytest.raises(OptionError, match=message):
        make(wt.Mixture([packed, few], [1, 1], **{"batches": "single", **options}))


def test_options_that_contradict_batches_of_one_dataset_are_refused(packed, few):
    data = mixture(packed, few, views=[wt.CenterCrop(8, resize=8)] * 2)
    with pytest.raises(OptionError, match="remove one of them"):
        make(data, fields="image", view=wt.CenterCrop(8))
    with pytest.raises(OptionError, match="requires make_loader"):
        wt.StreamingDataset(data)
    with pytest.raises(OptionError, match="Buckets divide"):
        make(mixture(packed, few), fields="image", view=wt.Buckets([(32, 32), (24, 40)]))


@pytest.mark.parametrize("batches", ["mixed", "single"])
def test_weights_that_begin_in_an_epoch_with_bans_leave_the_epoch_length_as_it_is(packed, few, batches):
    data = wt.Mixture([packed, few], [1, 1], epoch_length=160, batches=batches)
    with make(data) as loader:
        keys_of(loader, 3)
        state = loader.state_dict()
    with make(data, ban=[*range(0, 300, 6), *range(400, 410)]) as loader:
        loader.load_state_dict(state)
        loader.reweight(classes={loader.classes[0]: 2})
        assert [len(keys_of(loader)) for _ in range(4)] == [17, 20, 20, 20]


def test_batches_stay_of_one_dataset_if_weights_end_before_or_after_a_ban(packed, few):
    data = mixture(packed, few, epoch_length=160)
    with make(data) as loader:
        keys_of(loader, 3)
        loader.reweight(sources=[1, 1])
        keys_of(loader, 2)
        loader.reweight()
        state = loader.state_dict()
    with make(data, ban=[*range(0, 300, 6), *range(400, 410)]) as loader:
        loader.load_state_dict(state)
        keys_of(loader)
        assert all(len(one) == 1 for one in sources_of(loader, range(5, 60)))
        loader.reweight(sources=[1, 1])
        keys_of(loader, 5)
        loader.reweight()
        assert all(len(one) == 1 for one in sources_of(loader, range(5, 90)))
        assert len(keys_of(loader)) == 20


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
def test_an_epoch_is_a_whole_number_of_steps_if_each_rank_has_its_own_dataset(packed, few, stop):
    data = mixture(packed, few, (3, 1), stop=stop, same_source_on_ranks=False)
    ranks = [make(data, batch_size=5, rank=rank, world_size=4, tail="mask", fields="__key__") for rank in range(4)]
    assert ranks[0].samples == len(ranks[0]) * 20
    batches = [batch for loader in ranks for batch in loader]
    assert all(batch.valid.all() for batch in batches)
    ids = Counter(sample for step in range(len(ranks[0])) for sample in ranks[0].explain(step, epoch=0).ids.tolist())
    assert max(ids.values()) == 1 if stop == "first_exhausted" else len(ids) == 440
    with make(data, batch_size=5) as loader:
        loader.load_state_dict(json.loads(json.dumps(ranks[0].state_dict())))
        assert loader.samples == ranks[0].samples


def test_no_rank_has_always_the_same_dataset(packed, few):
    data = mixture(packed, few, (1, 1), epoch_length=320, same_source_on_ranks=False)
    ranks = [make(data, rank=rank, world_size=2) for rank in range(2)]
    found = [[one.pop() for one in sources_of(ranks[0], range(40), rank)] for rank in range(2)]
    assert [sum(pair) for pair in zip(*found, strict=True)] == [1] * 40
    assert 5 < sum(found[0]) < 35
    assert keys_of(ranks[1], 5) == [[one.key for one in ranks[0].explain(step, rank=1).samples] for step in range(5)]


def test_a_dataset_that_is_smaller_than_a_step_is_named_by_its_size(packed, few):
    with pytest.raises(OptionError, match="400, 40 samples has no step of 48 samples"):
        make(mixture(packed, few, (1, 5)), batch_size=48)


def test_shares_hold_if_weights_change_at_every_step(packed, few):
    data = mixture(packed, few, (3, 1), epoch_length=800)
    with make(data) as loader:
        for step, _ in enumerate(islice(loader, 40)):
            loader.reweight(classes={loader.classes[0]: 1 + step / 100})
        assert sources_of(loader, range(41)).count({1}) == 10
    by_step = wt.Schedule({0: [0.9, 0.1], 100: [0.8, 0.2]}, unit="steps", linear=True)
    with make(wt.Mixture([packed, few], by_step, batches="single", epoch_length=800)) as loader:
        assert sources_of(loader, range(100)).count({1}) == 15


@pytest.fixture(scope="module")
def captioned(tmp_path_factory, photos):
    """Return a packed dataset of 30 photographs with captions."""
    folder = tmp_path_factory.mktemp("captioned")
    with wt.ShardWriter(str(folder / "x-%06d.tar"), maxcount=10) as writer:
        for number, path in enumerate(sorted(photos.glob("*/*.jpg"))[:30]):
            writer.write({"__key__": f"photo{number:02}", "jpg": path.read_bytes(), "txt": f"caption {number}"})
    return folder


def scenes_and_captions(scenes, captioned, weights=(1, 1), **options):
    boxes = {
        "image": wt.Image(view=wt.CenterCrop(40, resize=48)),
        "mask": wt.Mask("mask.png", like="image"),
        "boxes": wt.Boxes("json", path="objects.bbox", like="image"),
        "key": wt.Key(),
    }
    captions = {"photo": wt.Image(view=wt.RandomResizedCrop((24, 32))), "caption": "txt", "key": wt.Key()}
    return wt.Mixture([scenes, captioned], list(weights), batches="single", fields=[boxes, captions], **options)


def values_of(batches, steps=None):
    """Return the values of batches by name, tensors as lists."""
    return [
        {name: value.tolist() if hasattr(value, "tolist") else [str(one) for one in value] for name, value in one}
        for one in (zip(batch._fields, batch, strict=True) for batch in islice(batches, steps))
    ]


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.torture_except("1")
def test_each_dataset_has_its_own_fields(scenes, captioned, workers):
    data, options = scenes_and_captions(scenes, captioned, epoch_length=48), {"batch_size": 4, "shuffle": True}
    with wt.make_loader(data, num_workers=workers, **options) as loader:
        batches = iter(loader)
        run = values_of(batches, 5)
        state = json.loads(json.dumps(loader.state_dict()))
        run += values_of(batches) + values_of(loader)
        steps = [loader.explain(step) for step in range(24)]
    names = [["image", "mask", "boxes", "key"], ["photo", "caption", "key"]]
    for values, step in zip(run, steps, strict=True):
        assert list(values) == names[int(step.ids[0] >= 40)]
        assert values["key"] == [sample.key for sample in step.samples]
        assert set(step.samples[0].crops) == {next(iter(values))}
    with wt.make_loader(captioned, batch_size=30, fields=("txt", "__key__"), num_workers=0) as loader:
        batch = next(iter(loader))
        captions = dict(zip(batch.key, batch.txt, strict=True))
    found = [
        (key, text) for one in run if "caption" in one for key, text in zip(one["key"], one["caption"], strict=True)
    ]
    assert len(found) == 48
    assert all(captions[key] == text for key, text in found)
    with wt.make_loader(data, num_workers=workers, **options) as loader:
        loader.load_state_dict(state)
        assert values_of(loader) + values_of(loader) == run[5:]


def test_a_dataloader_of_the_parts_of_a_loader_has_the_fields_of_each_dataset(scenes, captioned):
    data = scenes_and_captions(scenes, captioned, (2, 1), epoch_length=24)
    with wt.make_loader(data, num_workers=0, batch_size=4, shuffle=True) as loader:
        parts = DataLoader(loader.dataset, batch_sampler=loader.batch_sampler, collate_fn=loader.collate_fn)
        by_torch = values_of(parts)
        loader.set_epoch(0)
        assert values_of(loader) == by_torch
        assert [loader.dataset[0]._fields[0], loader.dataset[-1]._fields[0]] == ["image", "photo"]


def test_a_user_function_gets_the_samples_of_one_dataset(scenes, captioned):
    data = scenes_and_captions(scenes, captioned, epoch_length=16)
    options = {"num_workers": 0, "batch_size": 4, "collate_fn": lambda samples: {one._fields for one in samples}}
    with wt.make_loader(data, **options) as loader:
        assert {len(names) for names in loader} == {1}
        assert {next(iter(names))[1] for names in loader} == {"mask", "caption"}


def test_tiles_of_a_mosaic_and_substitutes_are_of_the_dataset_of_the_batch(scenes, few_copy):
    shard = sorted(few_copy.glob("*.tar"))[0]
    shard.write_bytes(bytes(byte ^ 1 for byte in shard.read_bytes()))
    fields = [
        {"image": wt.Image(view=wt.Mosaic(64)), "boxes": wt.Boxes("json", path="objects.bbox", like="image")},
        {"image": wt.Image(view=wt.CenterCrop(24, resize=32)), "key": wt.Key()},
    ]
    data = wt.Mixture([scenes, few_copy], [1, 1], batches="single", fields=fields, epoch_length=160)
    with wt.make_loader(data, batch_size=8, shuffle=True, num_workers=0, on_error="replace", max_errors=1.0) as loader:
        keys = [key for batch in loader if "key" in batch._fields for key in batch.key]
        with wt.make_loader(few_copy, batch_size=8, fields="__key__", num_workers=0) as names:
            known = {key for batch in names for key in batch}
        assert loader.errors
        assert len(keys) == 80
        assert set(keys) < known
        steps = [loader.explain(step) for step in range(20)]
        assert all((step.partners < 40).all() for step in steps if step.ids[0] < 40)


def test_labels_of_datasets_with_fields_of_their_own_may_have_other_classes(photos, tmp_path):
    for number, names in enumerate((("cat", "fig"), ("fig", "rocket"))):
        for name in names:
            (tmp_path / str(number) / name).mkdir(parents=True)
            for path in sorted((photos / name).glob("*"))[:4]:
                (tmp_path / str(number) / name / path.name).symlink_to(path)
        wt.pack(tmp_path / str(number), tmp_path / f"packed{number}", workers=1)
    both = [tmp_path / "packed0", tmp_path / "packed1"]
    with pytest.raises(LabelError, match="different classes"):
        make(wt.Mixture(both, [1, 1], batches="single"))
    own = wt.Mixture(both, [1, 1], batches="single", fields=[["label"], {"number": "label"}])
    with wt.make_loader(own, batch_size=8, num_workers=0) as loader:
        assert [(batch._fields, sorted(batch[0].tolist())) for batch in loader] == [
            ((name,), [0] * 4 + [1] * 4) for name in ("label", "number")
        ]


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"fields": ["image", "label"]}, {}, "a list with the fields"),
        ({"fields": [["image"]]}, {}, "each of the 2 datasets"),
        ({"fields": [["image"], ["label"]]}, {"fields": "image"}, "both give the fields"),
        ({"fields": [["__key__"], ["nothing"]]}, {}, "no 'nothing'"),
        ({"fields": [{"image": wt.Image(view=wt.MultiScale([wt.Resize(8), wt.Resize(9)]))}, ["label"]]}, {}, "MultiSc"),
        ({"fields": [["image"], ["label"]], "same_source_on_ranks": False}, {}, "requires same_source_on_ranks"),
        ({"fields": [["image"], ["label"]], "batches": "mixed"}, {}, "fields= are for batches='single'"),
    ],
)
def test_invalid_fields_of_datasets_are_refused(packed, few, given, options, message):
    with pytest.raises((OptionError, MissingFieldError), match=message):
        wt.make_loader(
            wt.Mixture([packed, few], [1, 1], **{"batches": "single", **given}), batch_size=8, num_workers=0, **options
        )
