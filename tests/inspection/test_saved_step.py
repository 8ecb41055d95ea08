"""`wds-tools plan DATASET --state FILE --step N` shows what the loader delivered, from a file with its state."""

import json
from itertools import islice

import pytest
import torch

import wds_tools as wt
from wds_tools.cli import main

FIELDS = {
    "photo": wt.Image(view=wt.RandomResizedCrop((40, 48), flip=True)),
    "small": wt.Image(view=[wt.CenterCrop(32, resize=40), wt.Resize((24, 24))]),
    "key": wt.Key(),
}


@pytest.fixture
def call(capsys):
    def run(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["plan", *map(str, words)])
        return end.value.code, *capsys.readouterr()

    return run


def train(dataset, steps, **options):
    """Return the keys of some steps, the explanation of each, and the state after them."""
    options = {"batch_size": 5, "fields": FIELDS, "shuffle": True, "num_workers": 0, "seed": 2, **options}
    with wt.make_loader(dataset, **options, rank=1, world_size=3) as loader:
        keys = [batch.key for batch in islice(loader, steps)]
        return keys, [loader.explain(number).to_dict() for number in range(steps)], loader.state_dict()


@pytest.mark.parametrize("kind", ["json", "checkpoint", "nested json"])
@pytest.mark.torture_except("json", "checkpoint")
def test_a_step_is_shown_from_any_file_that_has_the_state(packed, tmp_path, call, kind):
    keys, expected, state = train(packed, 4)
    file = tmp_path / "state"
    if kind == "json":
        file.write_text(json.dumps(state))
    elif kind == "nested json":
        file.write_text(json.dumps([{"trainer": {"loaders": [state]}}]))
    else:
        torch.save({"model": {"weight": torch.zeros(1000)}, "step": 4, "data": {"train": state}}, file)
    for number in (0, 2):
        code, out, _ = call(packed, "--state", file, "--step", number, "--json")
        assert code == 0
        assert json.loads(out) == json.loads(json.dumps(expected[number]))
        assert [one["key"] for one in json.loads(out)["samples"] if one["rank"] == 1] == keys[number]
    code, out, _ = call(packed, "--state", file, "--step", 1, "--rank", 1)
    assert out.startswith("step 1: epoch 0, 5 samples\nrank 1 row 0 ")
    assert all(key in line for key, line in zip(keys[1], out.splitlines()[1:], strict=True))
    assert "to 48x40" in out
    assert call(packed, "--state", file, "--step", 3, "--epoch", 7, "--json")[0] == 0


def test_a_run_with_a_selection_needs_the_same_one(packed, tmp_path, call):
    keys, _, state = train(packed, 2, where="width > height")
    (tmp_path / "state.json").write_text(json.dumps(state))
    code, out, _ = call(
        packed, "--state", tmp_path / "state.json", "--step", 1, "--rank", 1, "--json", "--where", "width > height"
    )
    assert [one["key"] for one in json.loads(out)["samples"]] == keys[1]
    code, _, err = call(packed, "--state", tmp_path / "state.json", "--step", 1)
    assert code == 1
    assert "selection" in err


def test_a_checkpoint_with_code_in_it_is_refused_and_not_run(packed, tmp_path, call):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "written"), "w"))

    torch.save({"data": train(packed, 1)[2], "evil": Evil()}, tmp_path / "state.pt")
    code, _, err = call(packed, "--state", tmp_path / "state.pt", "--step", 0)
    assert code == 2
    assert "write json.dumps(loader.state_dict()) to a file" in err
    assert not (tmp_path / "written").exists()


NOT_SHOWN = [
    (["--step", 1], "--step requires --state FILE"),
    (["--state", "state.json"], "--state FILE requires --step N"),
    (["--state", "state.json", "--step", 0, "--batch-size", 3], "--batch-size is recorded in the state"),
    (["--state", "none.json", "--step", 0], "cannot read none.json: No such file or directory"),
    (["--state", "empty.json", "--step", 0], "empty.json has no state of a loader"),
    (["--state", "bad.json", "--step", 0], "bad.json is not JSON"),
    (["--state", "noise", "--step", 0], "noise is neither JSON nor a file of torch.save"),
    (["--state", "other.json", "--step", 0], "of another dataset"),
    (["--state", "mixture.json", "--step", 0], "has the state of a Mixture: call loader.explain() in your program"),
    (["--state", "unstarted.json", "--step", 0], "was saved before the first step"),
    (["--state", "own.json", "--step", 0], "a view of your own class, Mine"),
    (["--state", "two.json", "--step", 0], "several states of this dataset, 0, 1"),
    (["--state", "state.json", "--step", 999, "--epoch", 0], "epoch 0 has the steps 0 to 25"),
    (["--state", "state.json", "--step", 0, "--rank", 3], "the ranks 0 to 2"),
]


def test_what_cannot_be_shown_is_an_error_in_one_line(packed, tmp_path, monkeypatch, call):
    monkeypatch.chdir(tmp_path)
    state = train(packed, 1)[2]
    unsealed = {name: value for name, value in state.items() if name != "xxh3"}
    files = {
        "state": state,
        "empty": {"epoch": 3},
        "other": {**state, "fingerprint": "0" * 32},
        "mixture": {**state, "fingerprint": "0" * 32, "window": [1, 2]},
        "unstarted": {**unsealed, "sections": []},
        "own": {**unsealed, "views": {"image": {"field": "image", "views": [{"kind": "Mine"}]}}},
        "two": [state, {**state, "position": 0}],
    }
    for name, content in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "bad.json").write_text("{nonsense")
    (tmp_path / "noise").write_bytes(b"noise" * 100)
    for words, message in NOT_SHOWN:
        code, out, err = call(packed, *words)
        assert code in (1, 2), words
        assert out == ""
        assert message in err
        assert err.count("\n") == 1
