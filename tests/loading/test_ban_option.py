"""``ban=`` of make_loader and StreamingDataset: keys, ids and files; recorded in the state."""

import json
from itertools import islice

import numpy as np
import pytest
from ranks import run_ranks
from torch.utils.data import DataLoader

import wds_tools as wt
from wds_tools.errors import OptionError, ResumeError


def make(dataset, **options):
    return wt.make_loader(
        dataset, **{"batch_size": 10, "fields": ("__key__",), "shuffle": True, "num_workers": 0, **options}
    )


def keys_of(loader, steps=None):
    return [key for batch in islice(loader, steps) for key in batch.key]


@pytest.fixture(scope="module")
def order(packed):
    """Return the keys of the first two epochs without a ban, and the id of each key."""
    with make(packed) as loader:
        epochs = [keys_of(loader), keys_of(loader)]
        return epochs, {sample.key: sample.id for step in range(40) for sample in loader.explain(step).samples}


@pytest.mark.parametrize("kind", ["keys", "ids", "array", "file of keys", "file of ids"])
@pytest.mark.torture_except("keys")
def test_banned_samples_are_left_out_and_all_others_come_once_in_their_order(packed, tmp_path, order, kind):
    epochs, ids = order
    keys = epochs[0][5:25]
    (tmp_path / "ban.txt").write_text("\n".join(keys if kind == "file of keys" else [str(ids[key]) for key in keys]))
    ban = {
        "keys": keys,
        "ids": [ids[key] for key in keys],
        "array": np.array([ids[key] for key in keys]),
    }.get(kind, tmp_path / "ban.txt")
    with make(packed, ban=ban) as loader:
        assert (len(loader), loader.samples) == (38, 380)
        for epoch in epochs:
            assert keys_of(loader) == [key for key in epoch if key not in keys]
            assert loader.epoch_proof().ok
    dataset = wt.StreamingDataset(packed, ban=ban, shuffle=True, batch_size=10, fields=("__key__",))
    batches = DataLoader(dataset, batch_size=10, num_workers=2)
    for epoch in epochs:
        assert [key for batch in batches for key in batch.key] == [key for key in epoch if key not in keys]


def test_a_ban_after_a_resume_changes_no_earlier_step_and_is_recorded(packed, order):
    (first, second), _ = order
    with make(packed) as loader:
        taken = keys_of(loader, 12)
        state = loader.state_dict()
    ban = [*taken[:7], *first[125:160:3], *first[300:305]]
    expected = taken + [key for key in first[120:] if key not in ban]
    with make(packed, ban=ban) as loader:
        loader.load_state_dict(json.loads(json.dumps(state)))
        taken += keys_of(loader, 5)
        state = json.loads(json.dumps(loader.state_dict()))
        assert [sample.key for sample in loader.explain(15).samples] == taken[150:160]
        assert [sample.key for sample in loader.explain(3).samples] == first[30:40]
    assert taken == expected[: len(taken)]
    for options in ({}, {"ban": ban}, {"ban": ban[:3]}):  # the state has it, whatever the option is
        for world in (1,) if options else (1, 2, 5):
            loaders = [
                make(packed, rank=rank, world_size=world, batch_size=10 // world, **options) for rank in range(world)
            ]
            rest = []
            for loader in loaders:
                loader.load_state_dict(state)
                assert loader.state_dict()["bans"] == state["bans"]
                rest.append([batch.key for batch in loader])
                assert len(rest[-1]) == len(rest[0])
            steps = [{key for part in step for key in part} for step in zip(*rest, strict=True)]
            wanted = expected[170:]
            assert steps == [set(wanted[10 * n : 10 * n + 10]) for n in range(len(steps))]
            assert len(wanted) - 10 * len(steps) < 10
            if world == 1:
                assert keys_of(loaders[0]) == [key for key in second if key not in ban][:370]
                assert loaders[0].epoch_proof().ok


def test_further_samples_can_be_banned_at_each_resume(packed, order):
    (first, _), _ = order
    taken, state, banned = [], None, []
    for number in range(3):
        banned += first[60 * number + 45 : 60 * number + 48]
        with make(packed, ban=banned) as loader:
            if state:
                loader.load_state_dict(state)
            taken += keys_of(loader, 5)
            state = loader.state_dict()
    assert [ban["epoch"] for ban in state["bans"]] == [0, 0, 0]
    assert [len(ban["ids"]) for ban in state["bans"]] == [3, 3, 3]
    assert len(set(taken)) == 150
    assert taken == [key for key in first if key not in banned][:150]


def test_a_state_has_the_files_of_bans_and_their_hashes(packed, tmp_path, order):
    first, folder = order[0][0], tmp_path / "checkpoints"
    banned = [first[45:60], [*first[45:60], *first[200:203]]]
    with make(packed, ban=banned[0], save_ban_to=folder) as loader:
        keys_of(loader, 5)
        state = json.loads(json.dumps(loader.state_dict()))
    with make(packed, ban=banned[1], save_ban_to=folder) as loader:
        loader.load_state_dict(state)
        keys_of(loader, 2)
        state = json.loads(json.dumps(loader.state_dict()))
    rest = [key for key in first if key not in banned[1]][70:380]
    assert [set(ban) for ban in state["bans"]] == [{"epoch", "position", "file", "xxh3"}] * 2
    assert sorted(ban["file"] for ban in state["bans"]) == sorted(map(str, folder.iterdir()))
    for options in ({}, {"save_ban_to": folder}, {"ban": banned[0]}):
        with make(packed, **options) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert keys_of(loader) == rest


def test_a_ban_of_an_earlier_state_gets_a_file(packed, tmp_path, order):
    with make(packed, ban=order[0][0][:5]) as loader:
        state = loader.state_dict()
    with make(packed, save_ban_to=tmp_path) as loader:
        loader.load_state_dict(state)
        ids = state["bans"][0]["ids"]
        assert np.load(loader.state_dict()["bans"][0]["file"]).tolist() == ids


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), r"ban-.*npy cannot be read .No such file"),
        (lambda path: np.save(path, np.arange(5)), r"ban-.*npy has changed: its hash is .* restore the file"),
        (lambda path: path.write_bytes(b""), r"ban-.*npy has changed"),
    ],
)
def test_a_missing_or_changed_file_of_a_ban_is_named(packed, tmp_path, damage, message):
    with make(packed, ban=[3, 5], save_ban_to=tmp_path) as loader:
        state = loader.state_dict()
    damage(next(tmp_path.iterdir()))
    with make(packed) as loader, pytest.raises(ResumeError, match=message):
        loader.load_state_dict(state)


def test_a_folder_for_bans_that_cannot_be_written_is_named(packed, tmp_path):
    (tmp_path / "file").write_text("")
    with (
        make(packed, ban=[3], save_ban_to=tmp_path / "file") as loader,
        pytest.raises(OptionError, match=r"save_ban_to='.*file' is not a folder that can be written to"),
    ):
        loader.state_dict()


def test_the_state_of_a_streaming_dataset_has_a_hash_of_the_banned_ids(packed):
    def stream(ban):
        return wt.StreamingDataset(packed, ban=ban, batch_size=10, fields=("__key__",))

    state = stream(list(range(200))).state_dict()
    assert [set(ban) for ban in state["bans"]] == [{"epoch", "position", "xxh3"}]
    earlier = {name: value for name, value in state.items() if name != "xxh3"}
    earlier["bans"] = [{"epoch": 0, "position": 0, "ids": list(range(200))}]
    for one in (state, earlier):
        stream(list(range(200))).load_state_dict(one)
        with pytest.raises(ResumeError, match="the state has bans="):
            stream(list(range(201))).load_state_dict(one)


def test_all_ranks_have_equal_steps_with_every_tail(packed, order):
    ban = order[0][0][::3]
    for tail in ("drop", "pad", "mask"):
        got = []
        for rank in range(3):
            with make(packed, ban=ban, tail=tail, batch_size=7, rank=rank, world_size=3) as loader:
                got.append(list(loader))
        assert len({len(batches) for batches in got}) == 1
        assert not {key for batches in got for batch in batches for key in batch.key} & set(ban)


def test_a_banned_sample_is_no_substitute_of_an_unreadable_one(packed_copy, order):
    (first, _), _ = order
    shard = sorted(packed_copy.glob("*.tar"))[0]
    data = bytearray(shard.read_bytes())
    for offset in range(3000, len(data), 9000):
        data[offset] ^= 1
    shard.write_bytes(data)
    keep = first[:60]
    ban = [key for key in first if key not in keep]
    with make(
        packed_copy, ban=ban, fields=("image", "__key__"), view=wt.Resize((8, 8)), on_error="replace", max_errors=60
    ) as loader:
        keys = keys_of(loader)
        assert loader.errors
        assert set(keys) <= set(keep)


def test_a_mixture_leaves_out_samples_of_each_dataset(packed, few, order):
    mixture = wt.Mixture([packed, few], weights=[3, 1], stop="all_exhausted")
    with make(mixture) as loader:
        full = [sample.id for step in range(len(loader)) for sample in loader.explain(step).samples]
    ban = [full[3], full[4], 410, 411]
    with make(mixture, ban=ban) as loader:
        got = [sample.id for step in range(len(loader)) for sample in loader.explain(step).samples]
        assert got == [sample for sample in full if sample not in ban][: len(got)]
        keys_of(loader)
        assert loader.epoch_proof().ok


def test_a_key_that_several_datasets_of_a_mixture_have_is_refused_with_its_ids(packed, few, tmp_path):
    (tmp_path / "ban.txt").write_text("000000300\n000000003\n")
    mixture = wt.Mixture([packed, few], weights=[3, 1])
    for ban in (["000000003"], tmp_path / "ban.txt"):
        with pytest.raises(
            OptionError, match=r"'000000003', which the datasets 0 .* and 1 .* ids, which are 3 and 403"
        ):
            make(mixture, ban=ban)
    with make(mixture, ban=["000000300"]) as loader:  # only the first one has it
        assert 300 not in {sample.id for step in range(len(loader)) for sample in loader.explain(step).samples}


@pytest.mark.parametrize(
    ("ban", "message"),
    [
        (["nonsense", "other"], "ban= has keys that the dataset does not have: 'nonsense', 'other'; remove them"),
        ([3, 400], "ban= has the sample id 400; the dataset has the ids 0 to 399"),
        ([1, "x"], "values of type int, str; allowed are keys .str. or sample ids .int., not both"),
        ([True], "values of type bool; allowed"),
        (np.array([1.5]), "values of type float; allowed"),
        ("none.txt", "ban='none.txt' cannot be read .No such file or directory.: pass a text file"),
        (5, "ban=5; allowed are text files"),
        (range(400), "ban=range"),
        (list(range(400)), "ban= leaves no sample"),
        (list(range(395)), "the dataset has 5 without the banned ones"),
    ],
)
def test_an_invalid_ban_is_an_error_of_the_call(packed, ban, message):
    with pytest.raises(OptionError, match=message):
        make(packed, ban=ban)


def test_numbers_in_a_file_are_keys_if_one_of_them_is_a_key(packed, tmp_path, order):
    key = order[0][0][0]
    assert key.isdecimal()
    (tmp_path / "ban.txt").write_text(f"{key}\n7\n")
    with pytest.raises(OptionError, match=r"ban.txt has keys that the dataset does not have: '7'"):
        make(packed, ban=tmp_path / "ban.txt")


@pytest.mark.parametrize("by_shards", [False, True])
def test_webdataset_leaves_out_banned_samples(few, by_shards):
    options = {"workersplitter": lambda shards: list(shards) * 2} if by_shards else {}
    full = [sample["__key__"] for sample in wt.WebDataset(str(few), shardshuffle=True, seed=1, **options)]
    banned = sorted(full)[3:30:4]
    got = [sample["__key__"] for sample in wt.WebDataset(str(few), shardshuffle=True, seed=1, ban=banned, **options)]
    assert sorted(got) == sorted(key for key in full if key not in banned)
    if not by_shards:  # with splitters, the samples of the chosen shards are ordered without the banned ones
        assert got == [key for key in full if key not in banned]


def test_ranks_in_processes_of_their_own_have_equal_steps_and_prove_the_rest_of_the_epoch(packed, order):
    (first, _), ids = order
    banned = [ids[key] for key in first[3:50:5]]
    results = run_ranks(dataset=packed, world=2, batch=5, options={"ban": banned, "seed": 0})
    assert [result["proof"] for result in results] == ["epoch 0: 390 samples, each once"] * 2
    left = [key for step in zip(*(result["steps"] for result in results), strict=True) for part in step for key in part]
    assert sorted(left) == sorted(key for key in first if ids[key] not in banned)
