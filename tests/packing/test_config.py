"""The options of packing are checked when the object is created."""

from __future__ import annotations

import re

import pytest

from wds_tools.errors import OptionError
from wds_tools.packing.config import PackOptions


def test_shards_below_the_smallest_tar_file_are_refused() -> None:
    assert PackOptions("src", "dst", shard_bytes=10_240).max_bytes == 10_240
    with pytest.raises(OptionError, match=r"shard_bytes=10239 is too small; allowed are 10,240"):
        PackOptions("src", "dst", shard_bytes=10_239)


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(OptionError, match=f"seed={seed} is out of range; allowed are 0 to"):
        PackOptions("src", "dst", seed=seed)


def test_the_error_for_a_duplicate_class_names_it() -> None:
    with pytest.raises(OptionError, match=re.escape("class names ['cat'] are given twice")):
        PackOptions("src", "dst", classes=("cat", "dog", "cat"))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"workers": 0}, "workers=0"),
        ({"task": (2, 2)}, "invalid task 2 of 2"),
        ({"task": (0, 2), "fresh": True}, "cannot be combined with fresh or finish"),
        ({"finish": True, "fresh": True}, "would remove the shards of the tasks"),
        ({"engine": "dask"}, "engine='dask'; allowed are 'local', 'ray'"),
    ],
)
def test_invalid_options_are_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(OptionError, match=re.escape(reason)):
        PackOptions("src", "dst", **options)  # type: ignore[arg-type]


def test_every_shard_is_packed_by_exactly_one_task() -> None:
    tasks = [PackOptions("src", "dst", task=(index, 3)) for index in range(3)]
    assert [[task.packs(number) for number in range(5)] for task in tasks] == [
        [True, False, False, True, False],
        [False, True, False, False, True],
        [False, False, True, False, False],
    ]
    assert not PackOptions("src", "dst", finish=True).packs(0)
