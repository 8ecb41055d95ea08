"""``loader.reweight()``: which samples come after it, resumes, files of weights, bad input, several ranks."""

import json
import re
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ranks import run_ranks

import wds_tools as wt
from wds_tools.cli import main
from wds_tools.errors import LoaderError, OptionError, ResumeError


def make(dataset, **options):
    return wt.make_loader(
        dataset,
        **{"batch_size": 10, "fields": ("__key__", "label"), "shuffle": True, "num_workers": 0, **options},
    )


def keys_of(batches, steps=None):
    return [list(batch.key) for batch in islice(batches, steps)]


def explained(loader, step):
    return [sample.key for sample in loader.explain(step).samples]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture_except("2")
def test_the_next_step_has_the_new_weights_although_batches_were_prefetched(packed, workers):
    with make(packed, num_workers=workers) as loader:
        plain = [explained(loader, step) for step in range(4)]
        cat = loader.classes[0]
        batches = iter(loader)
        steps = keys_of(batches, 4)
        loader.reweight(classes={cat: 3.0})
        labels = []
        for batch in batches:
            steps.append(list(batch.key))
            labels += batch.label.tolist()
        steps += keys_of(loader)
        assert len(steps) == 80  # an epoch keeps its length
        assert steps[:4] == plain
        assert [explained(loader, step) for step in range(0, 80, 9)] == steps[::9]
        assert loader.epoch_proof().ok
        counts, stored = Counter(labels), Counter(np.concatenate([np.zeros(0, int), labels_of(packed)]).tolist())
        rates = {label: counts[label] / stored[label] for label in stored}
        assert all(rates[0] / rates[label] == pytest.approx(3, rel=0.4) for label in stored if label)
        loader.reweight()
        assert keys_of(loader, 3) == [explained(loader, step) for step in range(80, 83)]
    with make(packed) as other:
        third = [explained(other, step) for step in range(80, 84)]
    with make(packed, num_workers=workers) as loader:
        loader.reweight(classes={cat: 3.0})
        loader.set_epoch(2)
        loader.reweight()
        assert keys_of(loader, 4) == third


def labels_of(dataset):
    with make(dataset, shuffle=False) as loader:
        return np.concatenate([batch.label for batch in loader])


def test_a_run_resumes_across_changes_from_its_state_with_any_number_of_ranks(packed, tmp_path, capsys):
    weights = np.linspace(0, 1, 400)
    with make(packed) as loader:
        batches = iter(loader)
        steps = keys_of(batches, 3)
        loader.reweight(samples=weights, save_to=tmp_path / "weights.npy", where={"label == 0": 0.5})
        steps += keys_of(batches, 5)
        loader.reweight(classes={loader.classes[1]: 0}, at=12)
        state = json.loads(json.dumps(loader.state_dict()))
        steps += keys_of(batches)
        steps += keys_of(loader, 3)
    assert len(json.dumps(state)) < 1500
    for world in (1, 5):
        ranks = [make(packed, batch_size=10 // world, rank=rank, world_size=world) for rank in range(world)]
        parts = []
        for loader in ranks:
            loader.load_state_dict(state)
            parts.append([*keys_of(loader), *keys_of(loader, 3)])
        assert [{key for part in step for key in part} for step in zip(*parts, strict=True)] == list(
            map(set, steps[8:])
        )
    with make(packed) as loader:
        loader.load_state_dict(state)
        assert [explained(loader, step) for step in range(0, 43, 3)] == steps[::3]
        shown = [loader.explain(step).weights for step in (2, 3, 11, 12)]
        assert shown[0] is None
        assert shown[1] == shown[2] == state["weights"][0][-1]
        assert shown[3] == {"classes": {loader.classes[1]: 0.0}}
    (tmp_path / "state.json").write_text(json.dumps(state))
    with pytest.raises(SystemExit):
        main(["plan", str(packed), "--state", str(tmp_path / "state.json"), "--step", "20", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed["weights"] == shown[3]
    assert [sample["key"] for sample in printed["samples"]] == steps[20]
    with make(packed) as loader:
        (tmp_path / "weights.npy").write_bytes(b"other")
    with make(packed) as loader:
        with pytest.raises(ResumeError, match=r"weights\.npy has changed"):
            loader.load_state_dict(state)
        (tmp_path / "weights.npy").unlink()
        with pytest.raises(ResumeError, match=r"weights\.npy cannot be read"):
            loader.load_state_dict(state)
        assert loader.state_dict().get("weights") is None


def test_weights_of_samples_may_be_a_mapping_or_a_parquet_file(packed, tmp_path):
    with make(packed) as loader:
        some = explained(loader, 3)
        pq.write_table(pa.table({"key": some, "weight": [0.0] * len(some)}), tmp_path / "weights.parquet")
        for samples in (dict.fromkeys(some, 0.0), tmp_path / "weights.parquet"):
            loader.reweight(samples=samples)
            assert {key for step in range(40) for key in explained(loader, step)}.isdisjoint(some)
        loader.state_dict()
        loader.reweight(samples={0: 2.0})
        with pytest.raises(ResumeError, match="save_to="):
            loader.state_dict()


def test_an_array_of_weights_may_be_changed_after_the_call(packed):
    weights = np.linspace(0, 1, 400).astype(np.float32)
    with make(packed) as loader:
        loader.reweight(samples=weights)
        weights[:] = 1
        found = keys_of(loader)
    with make(packed) as loader:
        loader.reweight(samples=np.linspace(0, 1, 400))
        assert keys_of(loader) == found


def test_the_shares_of_a_mixture_hold_at_every_step(packed):
    mixture = wt.Mixture([packed, packed], weights=[1, 1], epoch_length=200)
    with make(mixture) as loader:
        batches = iter(loader)
        keys_of(batches, 5)
        loader.reweight(sources=[0.8, 0.2], where={"label == 0": 2})
        state = loader.state_dict()
        for step in range(5, 30):
            assert (loader.explain(step).ids < 400).sum() == 8
        rest = keys_of(batches)
    with make(mixture) as loader:
        loader.load_state_dict(state)
        assert keys_of(loader) == rest
        loader.reweight(sources=[0, 1])
        assert (loader.explain(30).ids >= 400).all()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"classes": {"no such class": 2}}, "classes= has 'no such class'"),
        ({"classes": {"0": -1}}, "classes= has -1"),
        ({"sources": [1, 2]}, "sources="),
        ({"samples": [1.0]}, "shape"),
        ({"samples": np.full(400, np.nan)}, "nan for sample 0"),
        ({"samples": np.zeros(400)}, "no sample to draw"),
        ({"samples": {"no such key": 1}}, "no such key"),
        ({"samples": "missing.parquet"}, "cannot be read"),
        ({"samples": __file__}, "neither a Parquet file"),
        ({"where": {"no_such_column > 1": 1}}, "no_such_column"),
        ({"where": {"label == 0": float("inf")}}, "inf"),
        ({"classes": {"0": 2}, "at": 1}, "at=1"),
        ({"save_to": "x.npy"}, "save_to="),
        ({"classes": {"0": 1e300}, "where": {"width > 0": 1e300}}, "multiply to more than 3.4e"),
        ({"where": {"id >= 0": 1e30, "id > 5": 1e30}}, "multiply to more than 3.4e"),
        ({"classes": {"0": 1e-46}}, "classes= has 1e-46 for '0'; allowed are 0 and numbers of at least 1.2e-38"),
        ({"samples": {3: 1e-46}}, "1e-46 for 3; allowed are 0 and numbers of at least 1.2e-38"),
        ({"samples": np.full(400, 1e-50)}, "1e-50 for sample 0; allowed are 0 and numbers of at least 1.2e-38"),
        (
            {"where": {"id < 9": 1e-30, "id < 5": 1e-30}},
            "a sample with 'id < 5' multiply to 1e-60; allowed",
        ),
        ({"classes": [1, 2, 3]}, r"classes=\[1, 2, 3\]; allowed is a mapping"),
        ({"where": "width > 3"}, "where='width > 3'; allowed is a mapping"),
        ({"classes": {0: 0, "astronaut": 3}}, "'0' and 'astronaut', which are the same class"),
    ],
)
def test_bad_weights_are_refused_and_change_nothing(packed, weights, message):
    with make(packed) as loader:
        batches = iter(loader)
        keys_of(batches, 2)
        before = loader.state_dict()
        with pytest.raises(OptionError, match=message):
            loader.reweight(**weights)
        assert loader.state_dict() == before
        assert keys_of(batches, 1) == [explained(loader, 2)]


@pytest.mark.parametrize("kind", ["invalid", "not writable"])
def test_bad_input_writes_no_file_and_changes_nothing(packed, tmp_path, kind):
    (tmp_path / "w.npy").write_bytes(b"earlier")
    invalid = {"classes": {"no such class": 1}, "save_to": tmp_path / "w.npy"}
    options = invalid if kind == "invalid" else {"save_to": tmp_path / "no such folder" / "w.npy"}
    with make(packed) as loader:
        before = loader.state_dict()
        with pytest.raises(OptionError):
            loader.reweight(samples=np.linspace(0, 1, 400), **options)
        assert loader.state_dict() == before
    assert [path.name for path in tmp_path.iterdir()] == ["w.npy"]
    assert (tmp_path / "w.npy").read_bytes() == b"earlier"


def test_the_state_does_not_grow_with_the_number_of_changes(packed, tmp_path):
    with make(packed, batch_size=20) as loader:
        batches = iter(loader)
        for number in range(19):  # a change at the start and in the middle of each epoch
            batches = iter(loader) if number and number % 2 == 0 else batches
            loader.reweight(samples={number: 2.0}, save_to=tmp_path / f"{number}.npy")
            keys_of(batches, 10)
        state = json.loads(json.dumps(loader.state_dict()))
        without = [one[:-1] for one in state["weights"]]
        assert len(json.dumps({**state, "weights": without})) < 1024
        known = [explained(loader, step) for step in (180, 195)]
    for number in range(18):
        (tmp_path / f"{number}.npy").unlink()
    with make(packed, batch_size=20) as loader:
        loader.load_state_dict(state)
        assert [explained(loader, step) for step in (180, 195)] == known
        with pytest.raises(ResumeError, match=r"12\.npy cannot be read"):
            loader.explain(125)
        with pytest.raises(OptionError, match="records the steps from 120 on"):
            loader.explain(115)
        loader.set_epoch(2)
        with pytest.raises(OptionError, match="epoch=2; the state"):
            next(iter(loader))


def test_a_state_with_weights_needs_the_dataset_that_it_was_made_with(packed):
    with make(packed) as loader:
        loader.reweight(classes={"0": 2})
        state = loader.state_dict()
    with make(wt.Mixture([packed], [1], epoch_length=100)) as loader, pytest.raises(ResumeError):
        loader.load_state_dict(state)


def test_all_ranks_draw_by_the_same_weights(packed):
    ranks = run_ranks(dataset=packed, world=2, batch=10, reweight={rank: {"classes": {"0": 4}} for rank in "01"})
    assert all("error" not in rank for rank in ranks)
    with make(packed, batch_size=20) as loader:
        loader.reweight(classes={"0": 4}, at=2)
        steps = keys_of(loader)
    pairs = zip(ranks[0]["steps"], ranks[1]["steps"], strict=True)
    assert [{*first, *second} for first, second in pairs] == list(map(set, steps))


def test_ranks_that_reweight_differently_fail_at_the_next_step(packed):
    ranks = run_ranks(
        dataset=packed, world=2, batch=10, may_fail=True, lockstep=False,
        reweight={"0": {"classes": {"0": 4}}, "1": {"classes": {"0": 5}}},
    )  # fmt: skip
    for rank in ranks:
        assert LoaderError.__name__ in rank["error"]
        assert '"0": 4.0' in rank["error"]
        assert '"0": 5.0' in rank["error"]
        assert "on rank 0" in rank["error"]
        assert "on rank 1" in rank["error"]


def test_ranks_that_never_reweight_are_named(packed):
    calls = {"1": {"classes": {"0": 4}}}
    ranks = run_ranks(
        dataset=packed, world=2, batch=10, may_fail=True, lockstep=False, reweight=calls, agreement_seconds=1,
        look_seconds=0,
    )  # fmt: skip
    assert all(LoaderError.__name__ in rank["error"] for rank in ranks)
    assert "rank 1 has called loader.reweight() 1 times, and rank(s) 0 have not" in ranks[1]["error"]
    assert 'rank 1 has called loader.reweight() 1 times, for {"classes": {"0": 4.0}}' in ranks[0]["error"]
    assert "after 2 steps, and rank 0 continues after 2 steps without that call" in ranks[0]["error"]


def test_the_code_on_the_page_runs(packed, tmp_path, monkeypatch):
    (tmp_path / "shards").mkdir()
    for name in ("photos", "more"):
        (tmp_path / "shards" / name).symlink_to(packed)
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[2] / "docs" / "weights.md"
    first, second, _ = re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    names = {"__name__": "__main__"}
    exec(compile(first, str(page), "exec"), names)
    changes = names["loader"].state_dict()["weights"]
    exec(compile(second, str(page), "exec"), names)
    with names["loader"] as loader, names["mixed"] as mixed:
        assert loader.explain(0).weights["classes"]["cat"] == 1
        assert loader.explain(0, epoch=5).weights["classes"]["cat"] == 2
        assert mixed.explain(5_000).weights["sources"] == [0.75, 0.25]
    assert [(position, entries is None) for _, position, *_, entries in changes] == [(88, False), (168, True)]


def test_the_proof_counts_classes_and_datasets_between_changes(packed):
    mixture = wt.Mixture([packed, packed], weights=[1, 1], epoch_length=800)
    with make(mixture, batch_size=20) as loader:
        cat = loader.classes[0]
        labels = []
        for step, batch in enumerate(loader):
            labels += batch.label.tolist()
            if step == 9:
                loader.reweight(classes={cat: 0}, sources=[3, 1])
            if step == 29:
                loader.reweight(samples={0: 0, 1: 5.0})
        proof = loader.epoch_proof()
        assert proof.ok
        assert [(one.start, one.stop) for one in proof.segments] == [(0, 200), (200, 600), (600, 800)]
        for one in proof.segments:
            found = Counter(labels[one.start : one.stop])
            counts = {name: one.classes[name].delivered for name in loader.classes if name in one.classes}
            assert counts == {name: found[n] for n, name in enumerate(loader.classes) if name in counts}
            assert sum(counts.values()) == one.stop - one.start
            assert sum(count.promised for count in one.classes.values()) == pytest.approx(one.stop - one.start)
        middle, last = proof.segments[1:]
        assert cat not in middle.classes
        assert [(source.promised, source.delivered) for source in middle.sources] == [(300, 300), (100, 100)]
        times = Counter(sample for step in range(10, 30) for sample in loader.explain(step).ids.tolist())
        stored = labels_of(packed)
        assert middle.most == max(times.values())
        assert middle.least == min(times[sample] for sample in range(800) if stored[sample % 400])
        assert last.weights["samples"]
        assert "positions 200 to 600" in str(proof)
        assert "300 of 300.0" in str(proof)
    with make(packed) as loader:
        list(loader)
        assert loader.epoch_proof().segments == ()


def test_the_proof_of_a_resumed_epoch_in_buckets_counts_what_was_delivered(packed):
    buckets = wt.Buckets([(32, 32), (24, 40)])
    with make(packed, fields=("image", "label"), view=buckets) as loader:
        loader.reweight(classes={loader.classes[0]: 4})
        list(islice(loader, 5))
        state = loader.state_dict()
        assert sum(count.delivered for count in loader.epoch_proof().segments[0].classes.values()) == 50
    with make(packed, fields=("image", "label"), view=buckets) as loader:
        loader.load_state_dict(state)
        labels = [label for batch in loader for label in batch.label.tolist()]
        (segment,) = loader.epoch_proof().segments
        assert segment.start == 50
        assert segment.classes[loader.classes[0]].delivered == labels.count(0)
        assert segment.classes[loader.classes[0]].promised == pytest.approx(labels.count(0), rel=0.3)


@pytest.mark.parametrize("tail", ["mask", "pad"])
@pytest.mark.torture_except("pad")
def test_weights_may_change_in_the_rows_that_fill_the_last_groups_of_an_epoch(packed, tail):
    options = {"batch_size": 12, "fields": ("__key__", "image"), "tail": tail, "where": "id < 60"}
    options["view"] = wt.Buckets([(32, 32), (24, 40), (40, 24)])
    with make(packed, **options) as loader:
        plain = len(keys_of(loader))
        assert plain > 5  # more than 60 samples need
        batches = iter(loader)
        steps = keys_of(batches, plain - 1)
        loader.reweight(where={"id < 30": 0.5})
        state = loader.state_dict()
        rest = [*keys_of(batches), *keys_of(loader)]
        assert len(keys_of(loader)) >= 5
        count = len(steps) + len(rest)
        assert [explained(loader, step) for step in range(plain, plain + count)] == [*steps, *rest]
    with make(packed, **options) as loader:
        loader.load_state_dict(state)
        assert [*keys_of(loader), *keys_of(loader)] == rest


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": [0, 1]}, "has 0 in the column 'key'; allowed are keys"),
        ({"id": ["a", "b"]}, "has 'a' in the column 'id'; allowed are sample ids"),
        ({"id": [4, 4]}, "several rows for 4"),
        ({"id": [0, 1], "key": ["a", "b"]}, "either 'key' or 'id'"),
        ({}, "either 'key' or 'id'"),
    ],
)
def test_a_parquet_file_must_say_clearly_which_samples_have_its_weights(packed, tmp_path, columns, message):
    pq.write_table(pa.table({**columns, "weight": [0.0, 5.0]}), tmp_path / "weights.parquet")
    with make(packed) as loader:
        before = loader.state_dict()
        with pytest.raises(OptionError, match=message):
            loader.reweight(samples=tmp_path / "weights.parquet")
        assert loader.state_dict() == before


def test_a_key_and_an_id_of_one_sample_are_refused(packed):
    with make(packed, shuffle=False) as loader:
        key = explained(loader, 0)[0]
        with pytest.raises(OptionError, match="which are the same sample"):
            loader.reweight(samples={key: 0, 0: 5})


def test_the_dataset_of_a_mixture_that_has_only_weights_of_0_is_named(packed, few):
    with make(wt.Mixture([packed, few], [1, 1])) as loader:
        none_of_first = dict.fromkeys(range(400), 0)
        with pytest.raises(OptionError, match=r"all samples of dataset 0 of the Mixture have weight 0.*sources="):
            loader.reweight(samples=none_of_first)
        loader.reweight(samples=none_of_first, sources=[0, 1])
        keys = {key for step in range(3) for key in explained(loader, step)}
    with make(few) as loader:
        assert keys <= {key for step in range(len(loader)) for key in explained(loader, step)}


@pytest.mark.parametrize("kind", ["no file", "deleted file"])
@pytest.mark.torture_except("deleted file")
def test_a_state_needs_only_weights_that_a_resumed_run_uses(packed, tmp_path, kind):
    """Padding and substitutes are drawn by the weights of the last step too, and not by earlier ones."""
    options = {"batch_size": 32, "tail": "pad"}
    old = tmp_path / "old.npy"
    with make(packed, **options) as loader:
        batches = iter(loader)
        loader.reweight(samples=np.linspace(0, 1, 400), save_to=old if kind == "deleted file" else None)
        steps = keys_of(batches, 5)
        if kind == "no file":
            with pytest.raises(ResumeError, match="save_to="):
                loader.state_dict()
        loader.reweight(where={"id < 200": 0})
        state = json.loads(json.dumps(loader.state_dict()))
        steps += keys_of(batches)
        padded = [sample.id for sample in loader.explain(12).samples if sample.is_padding]
        assert padded
        assert min(padded) >= 200
    old.unlink(missing_ok=True)
    with make(packed, **options) as loader:
        loader.load_state_dict(state)
        assert keys_of(loader) == steps[5:]
        later = loader.state_dict()
        with pytest.raises(ResumeError, match=r"save_to=|old\.npy cannot be read"):
            loader.explain(2)
    with make(packed, **options) as loader:
        loader.load_state_dict(later)
        keys_of(loader, 1)


@pytest.mark.parametrize("view", [wt.Buckets([(16, 16), (16, 24)]), wt.Mosaic(32)], ids=["buckets", "mosaic"])
def test_a_state_needs_the_weights_of_samples_that_wait_or_are_shown_again(few, view):
    with make(few, batch_size=4, fields=("__key__", "image"), view=view) as loader:
        batches = iter(loader)
        loader.reweight(samples=np.linspace(0.1, 1, 40))
        keys_of(batches, 2)
        loader.reweight()
        with pytest.raises(ResumeError, match="save_to="):
            loader.state_dict()
        keys_of(batches)
        loader.state_dict()


@pytest.mark.parametrize("tail", ["mask", "drop"])
@pytest.mark.torture_except("drop")
def test_samples_of_a_rare_size_come_even_if_weights_change_every_few_steps(few, tail):
    options = {"batch_size": 4, "fields": ("__key__", "image"), "tail": tail, "view": wt.Buckets([(16, 16), (16, 24)])}
    with make(few, **options) as loader:
        plain = [[key for batch in loader for key in valid_keys(batch)] for _ in range(3)]
        sizes = Counter(loader.explain(step).samples[0].crops["image"][0].size for step in range(len(loader)))
        assert 1 <= sizes[16, 24] <= 3  # batches of an epoch
    with make(few, **options) as loader:
        for number in range(3):
            keys = []
            for step, batch in enumerate(loader):
                keys += valid_keys(batch)
                if step % 2:  # equal weights, which are other ones each time
                    loader.reweight(classes=dict.fromkeys(loader.classes, 1 + step))
            assert keys == plain[number]
            assert loader.epoch_proof().ok


def test_a_run_in_buckets_resumes_across_changes_on_another_number_of_ranks(few):
    options = {"batch_size": 4, "fields": ("__key__", "image"), "tail": "mask"}
    options["view"] = wt.Buckets([(16, 16), (16, 24)])
    changes = {2: {"where": {"id < 20": 0.25}}, 5: {"classes": {"0": 3, "1": 0}}, 9: {}}
    parts, states = [], []
    for rank in range(2):
        with make(few, rank=rank, world_size=2, **options) as loader:
            parts.append([])
            states.append({})
            while len(parts[-1]) < 12:
                for batch in loader:
                    parts[-1].append(valid_keys(batch))
                    if (step := len(parts[-1])) in changes:
                        loader.reweight(**changes[step])
                    states[-1][step] = json.loads(json.dumps(loader.state_dict()))
    assert states[0] == states[1]
    for step, last in ((3, 5), (6, 9), (10, 12)):
        with make(few, **options) as loader:
            loader.load_state_dict(states[0][step])
            expected = [
                keys for pair in zip(*(part[step:last] for part in parts), strict=True) for keys in pair if keys
            ]
            run = (valid_keys(batch) for _ in range(2) for batch in loader)
            assert list(islice(run, len(expected))) == expected


def valid_keys(batch):
    valid = getattr(batch, "valid", [True] * len(batch.key))
    return [key for key, is_valid in zip(batch.key, valid, strict=True) if is_valid]


def test_a_key_of_several_datasets_of_a_mixture_is_refused_with_its_ids(packed, few, tmp_path):
    pq.write_table(pa.table({"key": ["000000003"], "weight": [0.0]}), tmp_path / "weights.parquet")
    with make(wt.Mixture([packed, few], [1, 1])) as loader:
        before = loader.state_dict()
        for samples in ({"000000003": 0}, tmp_path / "weights.parquet"):
            with pytest.raises(OptionError) as raised:
                loader.reweight(samples=samples)
            assert f"'000000003', which the datasets 0 ({packed}) and 1 ({few})" in str(raised.value)
            assert "by their ids, which are 3 and 403" in str(raised.value)
        loader.reweight(samples={"000000300": 0})  # only the first one has it
        loader.reweight(samples={403: 0})
        loader.reweight()
        assert loader.state_dict().keys() == before.keys()


def test_classes_of_datasets_with_different_class_lists_are_refused(packed, six_photos, tmp_path):
    wt.pack(six_photos, tmp_path / "six", workers=1)
    with make(wt.Mixture([packed, tmp_path / "six"], [1, 1]), fields="__key__", batch_size=2) as loader:
        for classes in ({0: 0}, {"cat": 0}):
            with pytest.raises(OptionError) as raised:
                loader.reweight(classes=classes)
            assert f"{packed} and {tmp_path / 'six'} have different classes (class 0 is " in str(raised.value)
            assert "wds-tools merge" in str(raised.value)
        loader.reweight(samples={400: 2.0}, classes={})
