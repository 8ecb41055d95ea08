"""From the measurements of `tune` to the numbers to measure, the proposed settings, the text and the call."""

import ast
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wds_tools as wt
from wds_tools.bench.report import Round
from wds_tools.bench.tune_report import (
    SUFFICIENT,
    TuneReport,
    TuneSetup,
    counts_below,
    shares,
    smallest_sufficient,
    worker_counts,
)
from wds_tools.packing.snippet import spell

VIEW = wt.RandomResizedCrop(224, flip=True)


def rounds_of(**speeds):
    """Return rounds of one second by number; each keyword is a number after a letter: ``n2=[100, 110]``."""
    return {
        int(name[1:]): [Round(images, 1.0, 2.0, 10**8, 0.2) for images in images_of_each]
        for name, images_of_each in speeds.items()
    }


def a_report(**changes):
    setup = {
        "dataset": "shards/photos",
        "work": "train",
        "view": VIEW,
        "fields": ("image", "label"),
        "batch_size": 128,
        "device": None,
        "image_bytes": 3 * 224 * 224,
        "steps": 1000,
        "cores": 4,
    }
    values = {
        "workers": rounds_of(n0=[90, 95], n1=[100, 98], n2=[190, 180], n3=[270, 255], n4=[280, 260]),
        "load": 0.0,
        "machine": {"cores": "4"},
    }
    setup.update({name: changes.pop(name) for name in list(changes) if name in setup})
    return TuneReport(TuneSetup(**setup), **{**values, **changes})


@given(cores=st.integers(1, 1000))
def test_worker_counts_go_from_0_to_all_cores_in_few_steps(cores):
    counts = worker_counts(cores)
    assert counts == sorted(set(counts))
    assert (counts[0], counts[-1]) == (0, cores)
    assert len(counts) <= 22
    assert all(upper <= 1.6 * lower for lower, upper in pairwise(counts[4:]))


@given(counts=st.sets(st.integers(0, 200), min_size=1), data=st.data())
def test_counts_below_the_chosen_one_are_new_and_evenly_spaced(counts, data):
    chosen = data.draw(st.sampled_from(sorted(counts)))
    tried = counts_below(sorted(counts), chosen)
    assert len(tried) <= 3
    assert not counts & set(tried)
    lower = max((count for count in counts if count < chosen), default=chosen)
    steps = [b - a for a, b in zip([lower, *tried], [*tried, chosen], strict=True)]
    assert max(steps) - min(steps) <= 1


@given(st.dictionaries(st.integers(1, 64), st.lists(st.integers(1, 10**6), min_size=3, max_size=3), min_size=1))
def test_the_smallest_sufficient_number_is_chosen(speeds):
    rounds = {number: [Round(images, 1.0, 1.0, 1, 0.1) for images in three] for number, three in speeds.items()}
    chosen, found = smallest_sufficient(rounds), shares(rounds)
    assert found[chosen].median >= SUFFICIENT
    assert all(share.median < SUFFICIENT for number, share in found.items() if number < chosen)


def test_0_workers_are_never_proposed():
    assert smallest_sufficient(rounds_of(n0=[200, 210], n1=[190, 200], n2=[191, 199])) == 1


def test_shares_are_computed_round_by_round():
    slow_round = rounds_of(n1=[96, 48, 96], n2=[100, 50, 100])
    assert shares(slow_round)[1].lowest == shares(slow_round)[1].highest == 0.96
    assert smallest_sufficient(slow_round) == 1


def test_the_reason_is_one_sentence():
    report = a_report()
    assert (report.num_workers, report.slots) == (3, 7)
    assert report.reason() == (
        "3 workers: the fewest within 5 % of the best, 270 images/s with 4; 2 workers would reach 69%"
    )
    best = a_report(workers=rounds_of(n0=[1, 1], n1=[10, 10], n2=[20, 20]))
    assert best.reason() == "2 workers: the fastest, at 20 images/s; 1 worker would reach 50%"
    assert a_report(workers=rounds_of(n0=[1], n1=[10])).reason() == "1 worker: the fastest, at 10 images/s"


def test_the_text_has_tables_a_curve_the_reason_and_the_call():
    report = a_report()
    lines = report.to_text().splitlines()
    assert lines[0] == (
        "shards/photos: RandomResizedCrop(224, flip=True), batches of 128, 1,000 steps per epoch; 4 cores"
    )
    row = next(line for line in lines if line.startswith("3  "))
    assert "262 [255-270]" in row
    assert "0.97 [0.96-0.98]" in row
    bars = [line.count("█") for line in lines if line[:3] in {"0  ", "1  ", "2  ", "3  ", "4  "}]
    assert bars[:5] == sorted(bars[:5])
    assert f"{report.reason()}." in lines
    assert "7 slots, 135 MB of shared memory." in lines
    assert report.to_text().endswith("import wds_tools\n\n" + report.call())


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"steps": 12}, "An epoch has only 12 steps"),
        ({"load": 3.25}, "busy before the start, load 3.2"),
        ({"device": "cuda"}, "batches of 128 to cuda"),
    ],
)
def test_notes_are_printed_only_when_they_apply(changes, remark):
    assert remark in a_report(**changes).to_text()
    assert remark not in a_report().to_text()


def test_the_call_has_what_was_measured_and_chosen():
    call = ast.parse(a_report(device="cuda", fields=("image",)).call()).body[0].value
    assert ast.literal_eval(call.args[0]) == "shards/photos"
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert options == {
        "batch_size": "128",
        "view": "wds_tools.RandomResizedCrop(224, flip=True)",
        "fields": "'image'",
        "shuffle": "True",
        "num_workers": "3",
        "device": "'cuda'",
    }
    assert "device" not in a_report().call()


@pytest.mark.parametrize(
    "view", [VIEW, wt.CenterCrop(224, resize=256), wt.Resize((128, 64)), wt.RandomResizedCrop((9, 8), scale=(0.5, 1.0))]
)
def test_the_text_of_a_view_evaluates_to_the_view(view):
    assert eval("wt." + spell(view)) == view


def test_json_has_every_round_and_the_proposal():
    values = json.loads(json.dumps(a_report().to_dict()))
    assert values["proposed"] == {"num_workers": 3, "slots": 7}
    assert list(values["workers"]) == ["0", "1", "2", "3", "4"]
    assert values["workers"]["2"]["images_per_second"] == {"median": 185.0, "lowest": 180.0, "highest": 190.0}
    assert len(values["workers"]["4"]["rounds"]) == 2
    assert values["view"] == "RandomResizedCrop(224, flip=True)"
    assert values["call"] == a_report().call()
