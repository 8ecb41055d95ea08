"""The epoch proof: it succeeds for a complete epoch and for nothing else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import wds_tools as wt
from wds_tools.errors import ProofError
from wds_tools.order.tally import EpochProof, Report, tally, tally_of_range

IDS = st.lists(st.integers(0, 200), max_size=60)


@given(IDS, IDS)
def test_tallies_are_equal_only_for_the_same_samples_with_the_same_counts(one, other):
    same = sorted(one) == sorted(other)
    assert (tally(np.array(one, np.int64)) == tally(np.array(other, np.int64))) == same


@given(IDS, st.integers(0, 60))
def test_tallies_of_parts_add_up(ids, middle):
    ids = np.array(ids, np.int64)
    assert tally(ids[:middle]) + tally(ids[middle:]) == tally(ids)
    assert tally(ids) - tally(ids[middle:]) == tally(ids[:middle])


def test_the_tally_of_a_range_is_that_of_its_ids_in_any_order():
    assert tally_of_range(2_500_000) == tally(np.random.default_rng(0).permutation(2_500_000))


def proof(*ranks, expected=None, finished=True):
    reports = tuple(
        None if ids is None else Report(rank, len(ranks), tally(np.array(ids))) for rank, ids in enumerate(ranks)
    )
    return EpochProof(2, expected or tally_of_range(100), reports, finished, 0, 100)


def test_the_text_of_a_proof_states_missing_and_repeated_samples():
    ids = list(range(100))
    assert str(proof(ids[:50], ids[50:])) == "epoch 2: 100 samples, each once"
    assert proof(ids[:50], ids[50:]).ok is True
    for parts, text in (
        ((ids[:50], ids[51:]), "99 samples of 100; 1 missing; namely sample 50"),
        ((ids, [17]), "101 samples of 100; 1 too many; namely sample 17"),
        ((ids[:50], ids[53:]), "97 samples of 100; 3 missing"),
        ((ids[:99], [3]), "some were repeated, others are missing"),
        ((ids[:50], ids[:50]), "ranks 0 and 1 delivered the same samples"),
    ):
        assert text in str(proof(*parts))
        assert proof(*parts).ok is False
    assert "not over" in str(proof(ids, finished=False))
    assert proof(ids, finished=False).ok is None
    assert "1 of 2 ranks have not reported" in str(proof(ids, None))
    assert proof(ids, None).ok is None


def test_a_proof_fails_if_processes_disagree_about_ranks():
    everything = tally_of_range(100)
    halves = tally(np.arange(50)), tally(np.arange(50, 100))
    for reports, text in (
        ([(0, 1, everything), (0, 1, everything)], "100 samples, each once by each of 2 groups of 1 rank(s)"),
        ([(0, 2, halves[0]), (1, 2, halves[1])] * 2, "100 samples, each once by each of 2 groups of 2 rank(s)"),
        ([(0, 1, everything), (1, 2, halves[1])], "process 0 read as rank 0 of 1, process 1 read as rank 1 of 2"),
        ([(0, 2, halves[0]), (0, 2, halves[0])], "of 2 processes, 2 read as rank 0"),
    ):
        result = EpochProof(0, everything, tuple(Report(*report) for report in reports), True, 0, 100)
        assert text in str(result)
        assert result.ok is ("groups" in text)


def make(packed, **options):
    return wt.make_loader(packed, **{"batch_size": 30, "fields": ("__key__",), "shuffle": True, **options})


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(("tail", "samples"), [("drop", 390), ("pad", 400), ("mask", 400)])
@pytest.mark.torture_except("drop-390-2", "pad-400-0", "mask-400-2")
def test_a_loader_proves_its_epochs(packed, tail, samples, num_workers):
    with make(packed, tail=tail, num_workers=num_workers) as loader:
        with pytest.raises(ProofError, match="nothing has been delivered"):
            loader.epoch_proof()
        for epoch in range(2):
            for number, _ in enumerate(loader):
                if number == 3 and epoch == 0:
                    assert str(loader.epoch_proof()) == "epoch 0: 120 samples so far, the epoch is not over"
            assert str(loader.epoch_proof()) == f"epoch {epoch}: {samples} samples, each once"
            assert loader.epoch_proof().ok


def test_the_rest_of_an_epoch_is_proved_after_a_resume(packed):
    with make(packed, tail="mask") as loader:
        seen = iter(loader)
        for _ in range(4):
            next(seen)
        state = loader.state_dict()
    with make(packed, tail="mask", batch_size=70) as loader:
        loader.load_state_dict(state)
        list(loader)
        assert str(loader.epoch_proof()) == "epoch 0 from position 120 on: 280 samples, each once"


def test_a_proof_detects_a_plan_that_repeats_one_sample_instead_of_another(packed, monkeypatch):
    from wds_tools.order.sequence import Order

    right = Order.slice
    with make(packed, num_workers=0, tail="mask") as loader:

        def wrong(self, epoch, start, stop):
            ids, lanes = right(self, epoch, start, stop)
            return np.where(ids == 123, 124, ids), lanes

        monkeypatch.setattr(Order, "slice", wrong)
        with pytest.raises(ProofError, match=r"400 samples of 400; some were repeated"):
            list(loader)
        assert loader.epoch_proof().ok is False


def test_the_proof_of_a_single_rank_states_that_other_ranks_have_not_reported(packed):
    with make(packed, rank=1, world_size=3, batch_size=10) as loader:
        list(loader)
        assert str(loader.epoch_proof()) == "epoch 0: 130 samples counted; 2 of 3 ranks have not reported"
