"""States that were edited, truncated or changed by another program: refused, or loaded as they are."""

from __future__ import annotations

import contextlib
import copy
import json
import math
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import wds_tools as wt
from wds_tools.errors import ResumeError, WdsToolsError

VALUES: list[Any] = [
    None,
    True,
    False,
    1.0,
    1.5,
    math.inf,
    -math.inf,
    math.nan,
    "5",
    "",
    [],
    {},
    [1],
    [1.5],
    -1,
    0,
    1,
    2,
]
VALUES += [10, 1 << 31, 1 << 62, 1 << 63, 1 << 80, 1e300, {"ids": [True]}, b"1", np.float64(2), object(), np.bool_(1)]
KINDS = ("plain", "shuffled", "selected", "banned", "buckets", "mixture", "StreamingDataset", "WebDataset")
# States of older versions lack these.
ADDED_LATER = ("step", "sections", "trainer_epoch", "compiled", "views", "bans", "group")
Path_ = tuple[Any, ...]


def make(kind: str, few: Path) -> Any:
    """Return a loader or dataset in the second epoch or later, whose state has entries that others lack."""
    options: dict[str, Any] = {"batch_size": 5, "fields": ("__key__",), "shuffle": True}
    if kind == "WebDataset":
        return wt.WebDataset(str(few), shuffle=True)
    if kind == "StreamingDataset":
        return wt.StreamingDataset(few, ban=[3, 4], **options)
    options["num_workers"] = 0
    if kind == "mixture":
        return wt.make_loader(wt.Mixture([few, few], weights=[2, 1]), **options)
    options |= {
        "plain": {"shuffle": False},
        "shuffled": {"seed": 7, "fields": ("image",), "view": wt.RandomResizedCrop(8)},
        "selected": {"where": "label < 5", "shuffle": 50},
        "banned": {"ban": [3, 4]},
        "buckets": {"fields": ("image",), "view": wt.Buckets([(8, 8), (8, 16)])},
    }[kind]
    return wt.make_loader(few, **options)


@pytest.fixture(scope="module", params=KINDS)
def real(request: pytest.FixtureRequest, few: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Return a loader or dataset, and a state that it saved after three batches of the second epoch."""
    loader = make(request.param, few)
    loader.set_epoch(1)
    iterator = iter(loader)
    for _ in islice(iterator, 3):
        pass
    state = json.loads(json.dumps(loader.state_dict()))
    del iterator
    yield loader, state
    if hasattr(loader, "close"):
        loader.close()


def entries(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the paths to all entries of a state, except its checksum."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        if name != "xxh3":
            yield (*path, name)
            yield from entries(part, (*path, name))


def changed(state: dict[str, Any], path: Path_, value: Any) -> dict[str, Any]:
    """Return a state with another value in one place; Ellipsis removes the entry."""
    new = copy.deepcopy(state)
    place: Any = new
    for name in path[:-1]:
        place = place[name]
    if value is Ellipsis:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return new


def text(state: dict[str, Any]) -> str:
    """Return a state as JSON without what the loader itself states: the checksum, and the views."""
    return json.dumps({name: one for name, one in state.items() if name not in ("xxh3", "views")}, sort_keys=True)


@pytest.mark.torture_except("shuffled", "selected", "StreamingDataset", "WebDataset")
def test_a_change_of_any_entry_of_a_state_without_checksum_is_refused_or_loaded_as_it_is(real) -> None:
    loader, state = real
    del (unsealed := dict(state))["xxh3"]
    loader.load_state_dict(unsealed)
    refused = 0
    paths = [path for path in entries(unsealed) if path[0] != "views"]  # they are not loaded
    for path in paths:
        for value in (*VALUES, ...):
            new = changed(unsealed, path, value)
            try:
                loader.load_state_dict(new)
            except ResumeError:
                refused += 1
                continue
            if value is ... and path[0] in ADDED_LATER:
                continue
            if not hasattr(loader, "close"):
                iter(loader)
            after = loader.state_dict()
            is_known_later = isinstance(loader, wt.WebDataset) or path[0] == "bans"  # ban= adds its own
            assert is_known_later or text(after) in (text(unsealed), json_or_none(new)), (path, value)
            if not state.get("views"):  # images take time
                with contextlib.suppress(WdsToolsError):
                    next(iter(loader), None)
            loader.load_state_dict(unsealed)
    assert refused > 5 * len(paths)


def json_or_none(state: dict[str, Any]) -> str | None:
    try:
        return text(state)
    except TypeError:
        return None


def as_json(state: dict[str, Any]) -> str | None:
    try:
        return json.dumps(state, sort_keys=True)
    except TypeError:
        return None


@given(data=st.data())
def test_a_change_of_any_entry_of_a_state_is_refused(real, data: st.DataObject) -> None:
    loader, state = real
    path = data.draw(st.sampled_from(list(entries(state))))
    value = data.draw(st.one_of(st.sampled_from([*VALUES[:-2], ...]), st.integers(), st.floats(), st.text()))
    new = changed(state, path, value)
    if value is not Ellipsis and as_json(new) == as_json(state):
        loader.load_state_dict(new)
        return
    with pytest.raises(ResumeError, match=r"checksum of the state|wrong type"):
        loader.load_state_dict(new)


@pytest.mark.parametrize("state", [None, 5, "state", [], [("epoch", 1)], {}, {"xxh3": "0"}, {"epoch": 1}])
def test_what_is_not_a_state_is_refused(real, state: Any) -> None:
    with pytest.raises(ResumeError):
        real[0].load_state_dict(state)


def test_a_state_is_accepted_as_other_libraries_return_it(real, tmp_path: Path) -> None:
    loader, state = real
    torch.save(state, tmp_path / "state.pt")
    tuples = {name: tuple(one) if isinstance(one, list) else one for name, one in state.items()}
    arrays = {name: np.int64(one) if type(one) is int else one for name, one in state.items()}
    tensors = {name: torch.tensor(one) if type(one) is int else one for name, one in state.items()}
    for same in (torch.load(tmp_path / "state.pt"), tuples, arrays, tensors, dict(reversed(state.items()))):
        loader.load_state_dict(same)


def test_a_refused_state_leaves_the_loader_where_it_was(few: Path) -> None:
    with wt.make_loader(few, batch_size=5, fields=("__key__",), num_workers=0, shuffle=True) as loader:
        next(iter(loader))
        before = loader.state_dict()
        wrong = {**before, "position": 20, "sections": [[0, 0, 0, 10, 1, "none", 3]]}
        del wrong["xxh3"]
        with pytest.raises(ResumeError, match="'sections'"):
            loader.load_state_dict(wrong)
        assert loader.state_dict() == before
