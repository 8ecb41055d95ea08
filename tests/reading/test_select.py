"""where=, subset=, class_weights= and train_test_split on a real dataset, through the loader."""

import json
from collections import Counter
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
import pytest

import wds_tools as wt
from wds_tools.errors import MissingFieldError, OptionError, ResumeError
from wds_tools.format.index import from_bytes


class Row(NamedTuple):
    key: str
    label: int
    width: int
    height: int


@pytest.fixture(scope="module")
def rows(packed):
    """Return every sample as recorded in the indexes."""
    found = []
    for path in sorted(packed.glob("*.parquet")):
        index = from_bytes(path.read_bytes(), name=path.name)
        found += map(Row, index.keys, index.label.tolist(), index.width.tolist(), index.height.tolist())
    return found


def epoch(packed, *, epoch=0, **options):
    with wt.make_loader(
        packed, batch_size=7, tail="mask", fields=("__key__", "label"), num_workers=0, shuffle=True, **options
    ) as loader:
        loader.set_epoch(epoch)
        return [
            (key, label)
            for batch in loader
            for key, label, ok in zip(batch.key, batch.label.tolist(), batch.valid.tolist(), strict=True)
            if ok
        ]


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ("width >= 200 and label in (3, 7)", lambda row: row.width >= 200 and row.label in (3, 7)),
        ("label == 'cat' or height > width", lambda row: row.label == 2 or row.height > row.width),
        (pc.field("label") == 5, lambda row: row.label == 5),
        ("id >= 390", lambda row: int(row.key) >= 390),
    ],
)
def test_where_selects_exactly_the_samples_that_meet_the_condition(packed, rows, where, holds):
    got = epoch(packed, where=where)
    assert sorted(got) == sorted((row.key, row.label) for row in rows if holds(row))
    assert got != sorted(got)
    assert len(got) > 5


def test_a_fraction_is_drawn_by_seed_and_is_the_same_in_every_epoch(packed):
    one, again = (sorted(epoch(packed, subset=0.25, epoch=number)) for number in (0, 3))
    assert one == again
    assert len(one) == 100
    assert sorted(epoch(packed, subset=0.25, seed=1)) != one


def test_ids_select_samples_in_any_order(packed):
    assert sorted(key for key, _ in epoch(packed, subset=[399, 5, 7])) == ["000000005", "000000007", "000000399"]
    got = epoch(packed, subset=np.arange(0, 400, 10), where="label != 0")
    assert all(int(key) % 10 == 0 and label for key, label in got)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_id_that_is_listed_several_times_is_delivered_as_often(packed, shuffle, num_workers):
    ids = [*range(20, 60)] * 3 + [7, 399, 7]
    options = {"batch_size": 10, "fields": ("__key__",), "tail": "mask", "num_workers": num_workers}
    with wt.make_loader(packed, subset=ids, shuffle=shuffle, **options) as loader:
        assert loader.samples == 123
        for _ in range(2):
            got = [key for batch in loader for key, ok in zip(batch.key, batch.valid.tolist(), strict=True) if ok]
            assert Counter(map(int, got)) == Counter(ids)
            assert str(loader.epoch_proof()).endswith(": 123 samples, each as often as requested")
            assert loader.epoch_proof().ok
    if not shuffle:  # one pass after the other, each in stored order
        assert [int(key) for key in got] == [7, *range(20, 60), 399, 7, *range(20, 60), *range(20, 60)]


def test_repeated_ids_can_be_combined_with_where_and_class_weights(packed, rows):
    chosen = [number for number, row in enumerate(rows) if row.label in (1, 2)]
    got = epoch(packed, subset=list(range(400)) * 2, where="label in (1, 2)")
    assert Counter(int(key) for key, _ in got) == dict.fromkeys(chosen, 2)
    labels = Counter(label for _, label in epoch(packed, subset=chosen * 3, class_weights="balanced"))
    assert sum(labels.values()) == 3 * len(chosen)
    assert abs(labels[1] - labels[2]) <= 1


def test_repeated_ids_resume_at_the_next_sample_and_are_a_selection_of_their_own(packed):
    options = {"batch_size": 10, "fields": ("__key__",), "shuffle": True, "num_workers": 0}
    with wt.make_loader(packed, subset=list(range(100)) * 3, **options) as loader:
        expected = [key for batch in loader for key in batch.key]
    with wt.make_loader(packed, subset=list(range(100)) * 3, **options) as loader:
        seen = iter(loader)
        got = [key for _ in range(17) for key in next(seen).key]
        state = json.loads(json.dumps(loader.state_dict()))
    with wt.make_loader(packed, subset=sorted(list(range(100)) * 3), **options) as loader:  # whatever their order
        loader.load_state_dict(state)
        assert got + [key for batch in loader for key in batch.key] == expected
    for other in (range(100), list(range(100)) * 2):
        with wt.make_loader(packed, subset=other, **options) as loader, pytest.raises(ResumeError, match="selection"):
            loader.load_state_dict(state)


def test_the_digest_of_a_selection_without_repetitions_has_not_changed(packed):
    with wt.make_loader(packed, subset=[399, 5, 7], batch_size=1, fields=("__key__",), num_workers=0) as loader:
        assert loader.state_dict()["selection"] == "0bdd4e8623ab0380"


def test_a_split_is_disjoint_complete_stratified_and_usable_as_subset(packed, rows):
    train, test = wt.train_test_split(packed, 0.2, seed=1)
    assert (len(train), len(test)) == (320, 80)
    parts = [epoch(packed, subset=part) for part in (train, test)]
    assert sorted(key for part in parts for key, _ in part) == [row.key for row in rows]
    label_counts = Counter(row.label for row in rows)
    in_test = Counter(label for _, label in parts[1])
    assert all(abs(in_test[label] - count / 5) < 1 for label, count in label_counts.items())
    assert (wt.train_test_split(packed, 80, seed=1)[1] == test).all()
    assert (wt.train_test_split(packed, 80, seed=2)[1] != test).any()


def test_class_weights_repeat_and_omit_samples_like_a_weighted_sampler(packed, rows):
    weights = {"cat": 3.0, "fig": 0.0}
    label_counts = Counter(row.label for row in rows)
    with wt.make_loader(packed, batch_size=10, fields=("label",), class_weights=weights, num_workers=0) as loader:
        classes = loader.classes
        assert loader.samples == 400
        factors = loader.class_factors
    total = sum(count * weights.get(classes[label], 1.0) for label, count in label_counts.items())
    got = Counter(label for _, label in epoch(packed, class_weights=weights))
    for label, count in label_counts.items():
        expected = 400 * count * weights.get(classes[label], 1.0) / total
        assert abs(got[label] - expected) < 1
        assert factors[classes[label]] == pytest.approx(got[label] / count)


def test_balanced_weights_give_all_classes_the_same_share_even_with_few_samples(packed):
    got = Counter(label for _, label in epoch(packed, where="label != 1 or id < 40", class_weights="balanced"))
    assert max(got.values()) - min(got.values()) <= 1
    assert len(got) == 8


def test_a_selection_resumes_at_the_next_sample_and_refuses_the_state_of_another_selection(packed):
    options = {"batch_size": 10, "fields": ("__key__",), "shuffle": True, "num_workers": 0}
    with wt.make_loader(packed, class_weights="balanced", where="width > 0", subset=0.5, **options) as loader:
        expected = [key for batch in loader for key in batch.key]
    with wt.make_loader(packed, class_weights="balanced", where="width > 0", subset=0.5, **options) as loader:
        seen = iter(loader)
        got = [key for _ in range(7) for key in next(seen).key]
        state = json.loads(json.dumps(loader.state_dict()))
    with wt.make_loader(packed, class_weights="balanced", where="width > 0", subset=0.5, **options) as loader:
        loader.load_state_dict(state)
        assert got + [key for batch in loader for key in batch.key] == expected
        assert loader.epoch_proof().ok
    with wt.make_loader(packed, subset=0.5, **options) as loader, pytest.raises(ResumeError, match="selection"):
        loader.load_state_dict(state)
    with wt.make_loader(packed, **options) as loader, pytest.raises(ResumeError, match="the loader has none"):
        loader.load_state_dict(state)


def test_a_streaming_dataset_selects_the_same_samples_as_a_loader(packed):
    choice = {"where": "label in (1, 2)", "class_weights": {1: 2.0}, "subset": 0.9}
    dataset = wt.StreamingDataset(packed, fields=("__key__", "label"), shuffle=True, **choice)
    assert [(sample.key, sample.label) for sample in dataset] == epoch(packed, **choice)


def test_sample_ids_of_a_mixture_count_through_its_datasets(packed, few):
    mixture = wt.Mixture([packed, few], weights=[1, 1], stop="all_exhausted")
    options = {"batch_size": 1, "fields": "__key__", "num_workers": 0, "shuffle": True}
    chosen = [3, 8, 399, 400, 404, 404]
    with wt.make_loader(mixture, subset=chosen, **options) as loader:
        found = [sample.id for step in range(6) for sample in loader.explain(step).samples]
        assert len(loader) == 6
        assert sorted(found) == chosen
    with pytest.raises(OptionError, match="the dataset has 0 to 439"):
        wt.make_loader(mixture, subset=[3, 440], **options)
    with pytest.raises(OptionError, match="leave no sample"):
        wt.make_loader(mixture, subset=[3], **options)
    with pytest.raises(OptionError, match=r"class_weights= requires a single dataset, because"):
        wt.make_loader(mixture, class_weights={0: 2}, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "width > 1e9"}, "leave no sample"),
        ({"where": "mode > 3"}, "cannot be applied"),
        ({"subset": 0.0}, "above 0"),
        ({"subset": [400]}, "0 to 399"),
        ({"subset": ["000000001"]}, "sample ids"),
        ({"class_weights": "fair"}, "'balanced'"),
        ({"class_weights": {"cow": 1}}, "cow"),
        ({"class_weights": [1, 2]}, "8 classes"),
        ({"class_weights": {"cat": "much"}}, "has ['much']; allowed are 'balanced', a mapping"),
        ({"class_weights": 3}, "has 3; allowed are"),
        ({"class_weights": dict.fromkeys(range(8), 0)}, "weight 0"),
    ],
)
def test_an_invalid_selection_is_refused_with_the_allowed_values(packed, options, message):
    with pytest.raises(OptionError) as caught:
        wt.make_loader(packed, batch_size=4, fields=("label",), **options)
    assert message in str(caught.value)


def test_class_weights_for_a_dataset_without_labels_are_refused(photos, tmp_path):
    wt.pack(photos / "cat", tmp_path / "flat", workers=1)
    with pytest.raises(MissingFieldError, match="class number"):
        wt.make_loader(tmp_path / "flat", batch_size=4, fields=("image",), class_weights="balanced")


@pytest.mark.parametrize("size", [0, 400, 1.0, 0.0001, -1])
def test_a_split_with_an_empty_part_is_refused(packed, size):
    with pytest.raises(OptionError, match="test_size"):
        wt.train_test_split(packed, size)
