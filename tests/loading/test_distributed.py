"""Processes with torch.distributed (gloo): equal steps, each sample once, the same order for any number of ranks."""

from collections import Counter

import pytest
import webdataset
from ranks import run_ranks

import wds_tools as wt


def keys(ranks):
    return Counter(key for rank in ranks for step in rank["steps"] for key in step)


def union_of_steps(ranks):
    return [sorted(key for rank in ranks for key in rank["steps"][number]) for number in range(len(ranks[0]["steps"]))]


def in_this_process(dataset, **options):
    """Return what `run_ranks` returns for one rank."""
    with wt.make_loader(dataset, fields=("__key__",), shuffle=True, num_workers=0, **options) as loader:
        return [{"steps": [batch.key for batch in loader]}]


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """Return datasets by name: text samples in shards of very different sizes, written by webdataset."""
    folders = {}
    for name, counts in {"three": [50, 3, 17], "one": [64], "five-samples": [4, 1]}.items():
        folder = folders[name] = tmp_path_factory.mktemp(name)
        for shard, count in enumerate(counts):
            with webdataset.TarWriter(str(folder / f"part-{shard}.tar")) as writer:
                for number in range(count):
                    writer.write({"__key__": f"{shard}-{number}", "txt": "x" * (number % 7)})
        wt.index_shards([str(folder / "*.tar")])
    return folders


@pytest.mark.parametrize(
    ("world", "batch", "tail", "options"),
    [
        (2, 30, "drop", {}),
        (3, 50, "mask", {}),
        (4, 16, "pad", {"lanes": 2}),
        pytest.param(8, 7, "mask", {"lanes": 4}, marks=pytest.mark.torture),
    ],
)
@pytest.mark.torture_except("3-50-mask-options1")
def test_ranks_take_equal_steps_and_prove_that_each_sample_was_delivered_once(packed, world, batch, tail, options):
    ranks = run_ranks(dataset=packed, world=world, batch=batch, workers=1, options={"tail": tail, **options})
    assert {len(rank["steps"]) for rank in ranks} == {ranks[0]["len"]}
    counts = keys(ranks)
    if tail == "pad":
        assert set(counts) == {f"{number:09}" for number in range(400)}
        assert sum(counts.values()) == ranks[0]["len"] * world * batch
    else:
        assert set(counts.values()) == {1}
        assert len(counts) == (400 if tail == "mask" else ranks[0]["len"] * world * batch)
    expected = min(400, ranks[0]["len"] * world * batch)
    assert {rank["proof"] for rank in ranks} == {f"epoch 0: {expected} samples, each once"}


@pytest.mark.parametrize(("name", "world", "batch"), [("three", 4, 3), ("one", 4, 5), ("five-samples", 6, 1)])
@pytest.mark.torture
def test_ranks_take_equal_steps_with_uneven_or_few_shards_and_few_samples(uneven, name, world, batch):
    ranks = run_ranks(dataset=uneven[name], world=world, batch=batch, options={"tail": "mask"})
    assert len({len(rank["steps"]) for rank in ranks}) == 1
    samples = {"three": 70, "one": 64, "five-samples": 5}[name]
    assert len(keys(ranks)) == sum(keys(ranks).values()) == samples
    assert {rank["proof"] for rank in ranks} == {f"epoch 0: {samples} samples, each once"}
    if name == "one":  # all ranks get data from a single shard
        assert min(len(rank["steps"][0]) for rank in ranks) == batch


def test_one_process_several_processes_and_a_dataloader_get_the_same_steps(packed):
    one = in_this_process(packed, batch_size=40)
    several = run_ranks(dataset=packed, world=2, batch=20)
    streamed = run_ranks(dataset=packed, world=2, batch=20, kind="streaming", workers=1)
    assert union_of_steps(one) == union_of_steps(several) == union_of_steps(streamed)


@pytest.mark.parametrize(
    "later", [[(3, 10, None)], pytest.param([(2, 5, 4), (3, 10, 2), (5, 8, None)], marks=pytest.mark.torture)]
)
def test_resuming_with_other_world_sizes_loses_and_repeats_nothing(packed, later):
    whole = union_of_steps(in_this_process(packed, batch_size=10, lanes=2))
    common = {"dataset": packed, "options": {"tail": "mask", "lanes": 2}}
    parts = [run_ranks(world=2, batch=20, stop=3, **common)]
    for world, batch, stop in later:
        states = [rank["state"] for rank in parts[-1]]
        assert all(state == states[0] for state in states)
        parts.append(run_ranks(world=world, batch=batch, stop=stop, state=states[0], **common))
    counts = sum((keys(part) for part in parts), Counter())
    assert set(counts.values()) == {1}
    assert len(counts) == 400
    assert sorted(key for step in union_of_steps(parts[0]) for key in step) == sorted(
        key for step in whole[:12] for key in step
    )
    start = 120 + sum(world * batch * stop for world, batch, stop in later[:-1])
    assert {rank["proof"] for rank in parts[-1]} == {
        f"epoch 0 from position {start} on: {400 - start} samples, each once"
    }


@pytest.mark.parametrize(
    "grouping",
    [
        {"mesh": ([2, 2], ["dp", "tp"], "dp")},
        {"group": [[0, 2], [1, 3]]},
    ],
    ids=["mesh", "group"],
)
@pytest.mark.torture_except("mesh")
def test_ranks_that_are_tensor_parallel_to_each_other_get_the_same_data(packed, grouping):
    ranks = run_ranks(dataset=packed, world=4, batch=25, options={"tail": "mask"}, **grouping)
    assert ranks[0]["steps"] == ranks[1]["steps"]
    assert ranks[2]["steps"] == ranks[3]["steps"]
    counts = keys([ranks[0], ranks[2]])
    assert len(counts) == sum(counts.values()) == 400
    assert {rank["proof"] for rank in ranks} == {"epoch 0: 400 samples, each once"}


def test_all_dimensions_of_a_mesh_share_the_data(packed):
    ranks = run_ranks(dataset=packed, world=2, batch=50, mesh=([2, 1], ["replicate", "shard"], None))
    assert set(keys(ranks).values()) == {1}
    assert len(keys(ranks)) == 400


def test_a_given_rank_that_contradicts_the_process_group_is_refused(packed):
    ranks = run_ranks(dataset=packed, world=2, batch=20, may_fail=True, options={"rank": 0, "world_size": 2})
    assert "contradicts torch.distributed, where this process is rank 1 of 2" in ranks[1]["error"]


@pytest.mark.torture
def test_a_given_number_of_ranks_that_contradicts_the_process_group_is_refused(packed):
    ranks = run_ranks(dataset=packed, world=2, batch=20, may_fail=True, options={"rank": 0, "world_size": 3})
    assert all("rank=0, world_size=3 contradicts" in rank["error"] for rank in ranks)


def test_a_rank_without_a_process_is_detected_at_the_end_of_the_epoch(packed):
    options = {"rank": 0, "world_size": 2}
    ranks = run_ranks(dataset=packed, world=4, batch=20, lockstep=False, may_fail=True, options=options)
    errors = [rank["error"] for rank in ranks if "error" in rank]
    assert any("of 4 processes, 4 read as rank 0" in error for error in errors), errors


def test_the_proof_counts_groups_if_all_processes_read_everything_on_purpose(packed):
    ranks = run_ranks(dataset=packed, world=2, batch=20, options={"rank": 0, "world_size": 1})
    assert {rank["proof"] for rank in ranks} == {"epoch 0: 400 samples, each once by each of 2 groups of 1 rank(s)"}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.torture_except("2")
def test_a_loader_created_before_the_process_group_reads_its_part(packed, workers):
    ranks = run_ranks(dataset=packed, world=2, batch=30, workers=workers, kind="late")
    assert [rank["lens"] for rank in ranks] == [[13, 6]] * 2
    assert len(keys(ranks)) == sum(keys(ranks).values()) == 360
    assert {rank["proof"] for rank in ranks} == {"epoch 0: 360 samples, each once"}


@pytest.mark.parametrize(("workers", "context"), [(0, None), (2, "fork"), (1, "spawn")])
@pytest.mark.torture_except("2-fork")
def test_a_dataset_created_before_the_process_group_reads_its_part(packed, workers, context):
    ranks = run_ranks(dataset=packed, world=2, batch=30, workers=workers, context=context, kind="late streaming")
    assert [rank["lens"] for rank in ranks] == [[390, 180]] * 2
    assert len(keys(ranks)) == sum(keys(ranks).values()) == 360


@pytest.mark.parametrize("early", [[0], [0, 1]])
@pytest.mark.torture_except("early0")
def test_an_epoch_started_before_the_process_group_is_not_proved(packed, early):
    ranks = run_ranks(dataset=packed, world=2, batch=20, kind="late", early=early, may_fail=True)
    results = [rank.get("error") or rank["proof"] for rank in ranks]
    assert not any("each once" in text for text in results), results
    assert all("rank 0 of 1" in text for text in results), results


@pytest.mark.torture
def test_ranks_that_leave_after_the_last_step_have_proved_the_epoch(packed):
    ranks = run_ranks(dataset=packed, world=2, batch=20, lockstep=False, stop=10, options={"tail": "mask"})
    assert {rank["ok"] for rank in ranks} == {True}  # both took all ten steps, and left the loop after the last one


def test_a_rank_that_leaves_early_does_not_make_the_others_hang(packed):
    ranks = run_ranks(dataset=packed, world=2, batch=20, lockstep=False, stop=9, options={"tail": "mask"})
    assert {rank["proof"] for rank in ranks} == {"epoch 0: 180 samples so far, the epoch is not over"}


def test_a_rank_may_be_many_epochs_ahead(packed):
    ranks = run_ranks(dataset=packed, world=2, batch=20, kind="ahead", epochs=5)
    assert [rank.get("error") or rank["proof"] for rank in ranks] == ["epoch 4: 400 samples, each once"] * 2
