"""What follows from the figures of `tune`: the numbers to measure, the choice, the words, the call."""

import ast
import json
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wds_tools as wt
from wds_tools.bench.report import Round
from wds_tools.bench.tune_report import GOOD_ENOUGH, Proposal, Task, between, ladder, shares, smallest
from wds_tools.packing.snippet import spell

VIEW = wt.RandomResizedCrop(224, flip=True)


def rounds_of(**speeds):
    """Return rounds of one second by number; each keyword is a number after a letter: ``n2=[100, 110]``."""
    return {
        int(name[1:]): [Round(images, 1.0, 2.0, 10**8, 0.2) for images in images_of_each]
        for name, images_of_each in speeds.items()
    }


def a_proposal(**changes):
    task = {
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
        "prefetch": rounds_of(n1=[200, 200], n2=[262, 270], n4=[270, 260]),
        "load": 0.0,
        "machine": {"cores": "4"},
    }
    task.update({name: changes.pop(name) for name in list(changes) if name in task})
    return Proposal(Task(**task), **{**values, **changes})


@given(cores=st.integers(1, 1000))
def test_a_ladder_goes_from_none_to_all_cores_in_few_steps(cores):
    rungs = ladder(cores)
    assert rungs == sorted(set(rungs))
    assert (rungs[0], rungs[-1]) == (0, cores)
    assert len(rungs) <= 22
    assert all(upper <= 1.6 * lower for lower, upper in pairwise(rungs[4:]))


@given(rungs=st.sets(st.integers(0, 200), min_size=1), data=st.data())
def test_what_is_tried_between_two_rungs_is_new_and_spread_evenly(rungs, data):
    chosen = data.draw(st.sampled_from(sorted(rungs)))
    tried = between(sorted(rungs), chosen)
    assert len(tried) <= 3
    assert not rungs & set(tried)
    lower = max((rung for rung in rungs if rung < chosen), default=chosen)
    steps = [b - a for a, b in zip([lower, *tried], [*tried, chosen], strict=True)]
    assert max(steps) - min(steps) <= 1


@given(st.dictionaries(st.integers(1, 64), st.lists(st.integers(1, 10**6), min_size=3, max_size=3), min_size=1))
def test_the_smallest_number_that_is_good_enough_is_taken(speeds):
    rounds = {number: [Round(images, 1.0, 1.0, 1, 0.1) for images in three] for number, three in speeds.items()}
    chosen, told = smallest(rounds), shares(rounds)
    assert told[chosen].median >= GOOD_ENOUGH
    assert all(share.median < GOOD_ENOUGH for number, share in told.items() if number < chosen)


def test_no_workers_are_measured_but_never_proposed():
    assert smallest(rounds_of(n0=[200, 210], n1=[190, 200], n2=[191, 199])) == 1


def test_shares_are_taken_within_a_round():
    slow_round = rounds_of(n1=[96, 48, 96], n2=[100, 50, 100])
    assert shares(slow_round)[1].lowest == shares(slow_round)[1].highest == 0.96
    assert smallest(slow_round) == 1


def test_the_choice_is_told_in_a_sentence():
    told = a_proposal()
    assert (told.num_workers, told.prefetch_factor, told.slots) == (3, 2, 7)
    assert told.reason() == (
        "3 workers: the fewest within 5 % of the best, 270 images/s with 4; 2 workers would reach 69%"
    )
    best = a_proposal(workers=rounds_of(n0=[1, 1], n1=[10, 10], n2=[20, 20]))
    assert best.reason() == "2 workers: the fastest, at 20 images/s; 1 worker would reach 50%"
    assert a_proposal(workers=rounds_of(n0=[1], n1=[10])).reason() == "1 worker: the fastest, at 10 images/s"


def test_the_text_has_tables_a_curve_the_reason_and_the_call():
    told = a_proposal()
    lines = told.render().splitlines()
    assert lines[0] == (
        "shards/photos: RandomResizedCrop(224, flip=True), batches of 128, 1,000 steps an epoch; 4 cores"
    )
    row = next(line for line in lines if line.startswith("3  "))
    assert "262 [255-270]" in row
    assert "0.97 [0.96-0.98]" in row
    bars = [line.count("█") for line in lines if line[:3] in {"0  ", "1  ", "2  ", "3  ", "4  "}]
    assert bars[:5] == sorted(bars[:5])
    assert f"{told.reason()}." in lines
    assert "prefetch_factor=2: 7 slots, 135 MB of shared memory." in lines
    assert told.render().endswith("import wds_tools\n\n" + told.call())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 12}, "An epoch is over in 12 steps"),
        ({"load": 3.25}, "busy before the start, load 3.2"),
        ({"device": "cuda"}, "batches of 128 to cuda"),
        ({"prefetch": rounds_of(n1=[270], n2=[262], n4=[270])}, "prefetch_factor=1 (2 for a loop"),
    ],
)
def test_what_has_to_be_known_is_said(changes, said):
    assert said in a_proposal(**changes).render()
    assert said not in a_proposal().render()


def test_the_call_says_what_was_measured_and_chosen():
    call = ast.parse(a_proposal(device="cuda", fields=("image",)).call()).body[0].value
    assert ast.literal_eval(call.args[0]) == "shards/photos"
    options = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    assert options == {
        "batch_size": "128",
        "view": "wds_tools.RandomResizedCrop(224, flip=True)",
        "fields": "'image'",
        "shuffle": "True",
        "num_workers": "3",
        "prefetch_factor": "2",
        "device": "'cuda'",
    }
    assert "device" not in a_proposal().call()


@pytest.mark.parametrize(
    "view", [VIEW, wt.CenterCrop(224, resize=256), wt.Resize((128, 64)), wt.RandomResizedCrop((9, 8), scale=(0.5, 1.0))]
)
def test_a_view_is_spelt_so_that_it_can_be_read_back(view):
    assert eval("wt." + spell(view)) == view


def test_json_has_every_round_and_the_proposal():
    told = json.loads(json.dumps(a_proposal().to_dict()))
    assert told["proposed"] == {"num_workers": 3, "prefetch_factor": 2, "slots": 7}
    assert list(told["workers"]) == ["0", "1", "2", "3", "4"]
    assert told["workers"]["2"]["images_per_second"] == {"median": 185.0, "lowest": 180.0, "highest": 190.0}
    assert len(told["prefetch"]["4"]["rounds"]) == 2
    assert told["view"] == "RandomResizedCrop(224, flip=True)"
    assert told["call"] == a_proposal().call()


def test_the_picture_has_a_curve_for_each_figure_and_marks_the_proposal():
    picture = ElementTree.fromstring(a_proposal().picture())
    texts = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    assert {"images/s by workers", "CPU-s per 1,000 images by workers", "images/s by prefetch_factor"} <= {*texts}
    assert texts.count("proposed") == 3
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}polyline"))) == 3
