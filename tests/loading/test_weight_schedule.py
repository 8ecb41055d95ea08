"""`Schedule` of weights: by epoch and by step, in a straight line, on any number of ranks, and after a resume."""

import json
from itertools import islice

import numpy as np
import pytest

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import OptionError


def make(dataset, **options):
    return wt.make_loader(
        dataset,
        **{"batch_size": 10, "fields": ("__key__", "label"), "shuffle": True, "num_workers": 0, **options},
    )


def keys_of(loader, steps):
    """Return the keys of the next steps, over the ends of epochs."""
    return list(islice((list(batch.key) for _ in range(steps) for batch in loader), steps))


def changed_by_hand(dataset, changes, steps, **options):
    """Return the keys of the steps of a run that calls ``reweight`` before some of them."""
    with make(dataset, **options) as loader:
        found, batches = [], iter(loader)
        for step in range(steps):
            if step in changes:
                loader.reweight(**changes[step])
            batch = next(batches, None)
            if batch is None:
                batches = iter(loader)
                batch = next(batches)
            found.append(list(batch.key))
        return found


def test_weights_of_classes_by_step_are_the_same_as_changes_by_hand(packed):
    with make(packed) as loader:
        first, second = loader.classes[:2]
    weights = wt.Schedule({0: {}, 7: {first: 3}, 55: {second: 0.5}}, unit="steps")
    changes = {7: {"classes": {first: 3}}, 55: {"classes": {second: 0.5}}}
    with make(packed, class_weights=weights, num_workers=1) as loader:
        assert keys_of(loader, 90) == changed_by_hand(packed, changes, 90)
        assert [sorted(loader.explain(step).weights["classes"].values())[-1] for step in (6, 7)] == [1, 3]
        with pytest.raises(OptionError, match="Schedule"):
            loader.reweight(classes={first: 2})
        with pytest.raises(OptionError, match="steps are not counted"):
            list(loader.sampler)


def test_weights_of_datasets_by_epoch_resume_with_other_ranks(packed):
    weights = wt.Schedule({0: [1, 0], 1: [1, 1], 3: [1, 3]})
    mixture = wt.Mixture([packed, packed], weights, epoch_length=80)
    with make(mixture) as loader:
        run = keys_of(loader, 40)
        shares = [(loader.explain(step).ids < 400).mean() for step in (0, 7, 8, 23, 24, 31)]
        assert shares == pytest.approx([1, 1, 0.5, 0.5, 0.25, 0.25], abs=0.05)
    with make(mixture) as loader:
        keys_of(loader, 11)
        state = json.loads(json.dumps(loader.state_dict()))
    parts = []
    for rank in range(2):
        with make(mixture, batch_size=5, rank=rank, world_size=2) as loader:
            loader.load_state_dict(state)
            parts.append(keys_of(loader, 29))
    assert [{*one, *two} for one, two in zip(*parts, strict=True)] == list(map(set, run[11:]))


def test_weights_go_in_a_straight_line(packed, tmp_path, capsys):
    with make(packed) as loader:
        name = loader.classes[0]
    weights = wt.Schedule({0: {name: 0}, 50: {name: 1}, 60: "balanced"}, unit="steps", linear=True)
    with make(packed, class_weights=weights) as loader:
        run = keys_of(loader, 45)
        state = loader.state_dict()
        assert [loader.explain(step).weights["classes"][name] for step in (0, 1, 25, 44, 50)] == [0, 0.02, 0.5, 0.88, 1]
    counts = np.zeros(50)
    with make(packed, class_weights=weights) as loader:
        counts = [(batch.label == 0).sum() for _ in range(2) for batch in loader]
    assert sum(counts[:10]) < sum(counts[20:30]) < sum(counts[40:50])
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(SystemExit):
        main(["plan", str(packed), "--state", str(tmp_path / "state.json"), "--step", "42", "--json"])
    printed = json.loads(capsys.readouterr().out)
    with make(packed, class_weights=weights) as loader:
        loader.load_state_dict(state)
        assert printed["weights"] == loader.explain(42).weights
        assert [one["key"] for one in printed["samples"]] == [one.key for one in loader.explain(42).samples] == run[42]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({0: {"no such class": 1}}, "no such class"),
        ({0: {"cat": -1}}, "-1"),
        ({0: [1]}, "weights"),
        ({0: "other"}, "or weights"),
        ({1: "balanced"}, "epoch 0"),
        ({0: "balanced", 1: wt.Resize(8)}, "epoch 0"),
    ],
)
def test_an_invalid_schedule_is_refused_before_the_run(packed, weights, message):
    with pytest.raises(OptionError, match=message):
        make(packed, class_weights=wt.Schedule(weights))


def test_a_schedule_for_something_else_is_refused(packed):
    with pytest.raises(OptionError, match="view="):
        make(packed, fields="image", view=wt.Schedule({0: "balanced"}))
    with pytest.raises(OptionError, match="class_weights"):
        make(packed, class_weights=wt.Schedule({0: wt.Resize(8)}))
    with pytest.raises(OptionError, match="unit='steps'"):
        wt.Schedule({0: wt.Resize(8)}, unit="steps")
    with pytest.raises(OptionError, match="Mixture"):
        wt.Mixture([packed, packed], wt.Schedule({0: [1, 2, 3]}))
    with pytest.raises(OptionError, match="requires make_loader"):
        wt.StreamingDataset(packed, class_weights=wt.Schedule({0: "balanced"}))
    with pytest.raises(OptionError, match="use make_loader"):
        wt.StreamingDataset(packed).reweight(classes={"cat": 2})


@pytest.mark.parametrize("kind", ["buckets", "single"])
def test_a_schedule_by_step_combines_with_buckets_and_batches_of_one_dataset(packed, few, kind):
    schedule = {"unit": "steps", "linear": True}
    if kind == "buckets":
        weights = wt.Schedule({0: {"cat": 1}, 3: {"cat": 8}, 13: {"cat": 0}}, **schedule)
        options = {"fields": ("image", "__key__"), "view": wt.Buckets([(24, 24), (16, 32)]), "class_weights": weights}
        data = few
    else:
        data = wt.Mixture(
            [packed, few], wt.Schedule({0: [1, 0], 20: [0, 1]}, **schedule), batches="single", epoch_length=150
        )
        options = {}
    with make(data, **options) as loader:
        run = keys_of(loader, 20)
        for step in (0, 2, 3, 12, 13, 19):
            assert [sample.key for sample in loader.explain(step).samples] == run[step]
            if kind == "single":
                assert len({sample >= 400 for sample in loader.explain(step).ids.tolist()}) == 1
        assert loader.epoch_proof().segments
    with make(data, num_workers=1, **options) as loader:
        assert keys_of(loader, 11) == run[:11]
        state = json.loads(json.dumps(loader.state_dict()))
    with make(data, **options) as loader:
        loader.load_state_dict(state)
        assert keys_of(loader, 9) == run[11:]
