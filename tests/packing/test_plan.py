"""Plan: exact sizes, boundaries that are never exceeded, and an order that depends only on the inputs."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wds_tools.format.recorded_source import differences
from wds_tools.format.sample import Sample
from wds_tools.format.tar import END, MAX_OCTAL_SIZE, build_header
from wds_tools.packing.plan import (
    HEAD,
    digest,
    extension_kind,
    json_field,
    make_plan,
    plan_boundaries,
    sample_bytes,
    sample_key,
    shard_name,
    shuffled,
    unify_head,
)
from wds_tools.packing.shard_file import ShardFile
from wds_tools.sources.base import Listing
from wds_tools.sources.inputs import Input, Inputs

CLASSES = ("cat", 'dog "x"', "caf\udce9", "日本")

any_inputs = st.lists(
    st.builds(
        Input,
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=120).map(
            lambda name: f"c/{name}.jpg"
        ),
        st.integers(1, 5000),
        st.integers(0, len(CLASSES) - 1),
        location=st.just(()),
        group=st.just(-1),
        extra=st.just(0),
        labels=st.none() | st.lists(st.integers(0, 10**6), max_size=300).map(tuple),
    ),
    min_size=1,
    max_size=30,
)


def image_inputs(count: int, kind: str = "jpg") -> list[Input]:
    return [Input(f"{number:03d}.{kind}", 100 + number, None) for number in range(count)]


def in_random_order(inputs: list[Input], seed: int, **options: int) -> list[Input]:
    return [inputs[number] for number in shuffled(Inputs(inputs), seed, **options)]


def with_unified_head(inputs: list[Input], kind_of: Callable[[Input], str | None]) -> None:
    order = np.arange(len(inputs))
    unify_head(Inputs(inputs), order, kind_of)
    inputs[:] = [inputs[number] for number in order]


def no_probe(entry: Input) -> str:
    return extension_kind(entry.path)


@settings(deadline=None)
@given(any_inputs)
def test_a_shard_has_exactly_the_planned_length(tmp_path_factory: pytest.TempPathFactory, inputs: list[Input]) -> None:
    path = tmp_path_factory.mktemp("any") / "shard-000000.tar"
    with ShardFile(path) as shard:
        for position, entry in enumerate(inputs):
            fields = {"jpg": bytes(entry.size), "cls": b"%d" % entry.label, "json": json_field(entry, CLASSES)}
            if entry.labels is not None:
                fields["labels.json"] = json.dumps(entry.labels, separators=(",", ":")).encode()
            shard.write(Sample(sample_key(position), fields))
    planned = sum(map(np.sum, sample_bytes(Inputs(inputs), CLASSES))) + len(END)
    assert path.stat().st_size == planned
    with tarfile.open(path) as archive:
        assert len(archive.getmembers()) == sum(3 + (entry.labels is not None) for entry in inputs)


def test_a_pax_header_counts_in_the_planned_size() -> None:
    small, large = Input("a.jpg", MAX_OCTAL_SIZE, None), Input("a.jpg", MAX_OCTAL_SIZE + 1, None)
    header = len(build_header("000000000.jpg", large.size))
    assert header > 512
    assert np.diff(next(sample_bytes(Inputs([small, large]), ()))) == [header - 512]


@settings(deadline=None)
@given(st.lists(st.integers(1, 60).map(lambda blocks: blocks * 512), min_size=1, max_size=60), st.integers(20, 80))
def test_no_shard_is_longer_than_the_limit_unless_it_holds_one_sample(sizes: list[int], blocks: int) -> None:
    limit = blocks * 512
    boundaries = plan_boundaries([np.array(sizes, np.int64)], limit)
    for start, stop in pairwise(boundaries):
        assert stop - start == 1 or sum(sizes[start:stop]) + len(END) <= limit


@settings(deadline=None)
@given(st.lists(st.integers(1, 10**12), min_size=1, max_size=60), st.integers(10_240, 10**12))
def test_every_sample_is_in_exactly_one_shard(sizes: list[int], limit: int) -> None:
    boundaries = plan_boundaries([np.array(sizes, np.int64)], limit)
    assert boundaries[0] == 0
    assert boundaries[-1] == len(sizes)
    assert all(start < stop for start, stop in pairwise(boundaries))


@settings(deadline=None)
@given(st.lists(st.integers(1, 60).map(lambda blocks: blocks * 512), min_size=1, max_size=60), st.integers(20, 80))
def test_a_shard_ends_only_where_the_next_sample_does_not_fit(sizes: list[int], blocks: int) -> None:
    limit = blocks * 512
    boundaries = plan_boundaries([np.array(sizes, np.int64)], limit)
    for start, stop in pairwise(boundaries[:-1]):
        assert sum(sizes[start : stop + 1]) + len(END) > limit


def test_a_shard_can_be_exactly_as_long_as_the_limit() -> None:
    assert plan_boundaries([np.array([512] * 4, np.int64)], 2 * 512 + len(END)) == [0, 2, 4]
    assert plan_boundaries([np.array([512] * 4, np.int64)], 2 * 512 + len(END) - 1) == [0, 1, 2, 3, 4]


def test_the_shuffle_keeps_every_input_once() -> None:
    inputs = image_inputs(1000)
    assert sorted(in_random_order(inputs, 0)) == inputs
    assert in_random_order(inputs, 0) != inputs


def test_the_order_depends_only_on_the_seed() -> None:
    inputs = image_inputs(100)
    assert in_random_order(inputs, 7) == in_random_order(inputs, 7)
    assert in_random_order(inputs, 7) != in_random_order(inputs, 8)


def test_the_order_of_a_seed_never_changes_between_releases() -> None:
    order = [int(entry.path[:3]) for entry in in_random_order(image_inputs(8), 0)]
    assert order == [1, 3, 7, 6, 0, 4, 2, 5]


def test_a_sorted_input_is_spread_evenly() -> None:
    inputs = [Input(f"{number:05d}.jpg", 1, number * 10 // 10_000) for number in range(10_000)]
    first = in_random_order(inputs, 0)[:1000]
    counts = np.bincount([entry.label for entry in first], minlength=10)
    assert counts.min() > 60  # 100 each on average; 4 standard deviations below


@settings(deadline=None)
@given(st.lists(st.sampled_from(["jpg", "JPEG", "png", "webp"]), min_size=1, max_size=40))
def test_the_first_samples_have_the_most_common_type_if_there_are_enough(kinds: list[str]) -> None:
    inputs = [Input(f"{number}.{kind}", 1, None) for number, kind in enumerate(kinds)]
    unified = list(inputs)
    with_unified_head(unified, no_probe)
    names = [extension_kind(entry.path) for entry in unified]
    most = max(names.count(name) for name in names)
    assert names.count(names[0]) == most
    assert set(names[: min(HEAD, most)]) == {names[0]}
    assert sorted(unified) == sorted(inputs)


def test_inputs_of_the_most_common_type_keep_their_order() -> None:
    inputs = [Input(name, 1, None) for name in ("a.jpg", "b.png", "c.jpg", "d.jpg", "e.jpg", "f.jpg", "g.jpg")]
    with_unified_head(inputs, no_probe)
    assert [entry.path[0] for entry in inputs] == ["a", "c", "d", "e", "f", "b", "g"]


def test_an_image_that_is_bad_or_has_another_type_than_its_name_does_not_come_first() -> None:
    inputs = image_inputs(10)
    truth = {"000.jpg": "png", "002.jpg": None}
    with_unified_head(inputs, lambda entry: truth.get(entry.path, "jpg"))
    assert [entry.path for entry in inputs[:HEAD]] == ["001.jpg", "003.jpg", "004.jpg", "005.jpg", "006.jpg"]


def test_a_plan_depends_only_on_the_listing() -> None:
    listing = Listing(image_inputs(50), [], ())
    plans = [make_plan(listing, kind="folder", seed=3, shard_bytes=20_000, kind_of=no_probe) for _ in range(2)]
    assert plans[0] == plans[1]
    assert plans[0].shards > 1


def test_changed_images_are_planned_with_their_new_size() -> None:
    listing = Listing(image_inputs(50), [], ())
    options = {"kind": "folder", "seed": 3, "shard_bytes": 20_000, "kind_of": no_probe}
    kept = make_plan(listing, **options)
    raw = make_plan(listing, **options, images="raw 64x64", image_bytes=4000)
    assert raw.inputs == kept.inputs  # the files, with their own sizes
    per_shard = (20_000 - len(END)) // int(next(sample_bytes(Inputs([Input("000.jpg", 4000, None)]), ()))[0])
    assert set(np.diff(raw.boundaries[:-1])) == {per_shard}
    assert (raw.source["images"], raw.source["image_bytes"]) == ("raw 64x64", 4000)
    assert (kept.source["images"], kept.source["image_bytes"]) == ("keep", None)


def test_the_digest_depends_on_paths_sizes_labels_order_and_classes() -> None:
    inputs = Inputs([Input("a", 1, 0), Input("b", 2, 1)])
    others = [
        digest(Inputs([Input("c", 1, 0), Input("b", 2, 1)]), ("x", "y")),
        digest(Inputs([Input("a", 3, 0), Input("b", 2, 1)]), ("x", "y")),
        digest(Inputs([Input("a", 1, None), Input("b", 2, 1)]), ("x", "y")),
        digest(Inputs(inputs[::-1]), ("x", "y")),
        digest(inputs, ("x", "z")),
    ]
    assert len({digest(inputs, ("x", "y")), *others}) == 6


def test_the_json_field_has_path_and_class_even_if_they_are_not_utf8() -> None:
    field = json_field(Input("caf\udce9/\udcff é\n.jpg", 1, 2), CLASSES)
    assert field.isascii()
    assert json.loads(field) == {"path": "caf\udce9/\udcff é\n.jpg", "class": "caf\udce9"}


@given(st.text(min_size=1), st.text(min_size=1))
def test_the_json_field_equals_the_output_of_json_dumps(path: str, name: str) -> None:
    plain = json.dumps({"path": path, "class": name}, separators=(",", ":")).encode()
    assert json_field(Input(path, 1, 0), [name]) == json_field(Input(path, 1, 0), [name], {"path": path}) == plain


def test_a_sample_without_a_label_has_no_class_in_its_json() -> None:
    assert json.loads(json_field(Input("a.jpg", 1, None), ())) == {"path": "a.jpg"}


def test_keys_are_unique_and_sort_like_their_positions() -> None:
    keys = [sample_key(position) for position in (0, 9, 10, 999_999_999)]
    assert keys == sorted(keys)
    assert sample_key(42) == "000000042"
    assert len(sample_key(10**9)) == 10
    assert shard_name(1_000_000) == "shard-1000000.tar"


def test_differences_names_the_options_that_differ() -> None:
    old = {"kind": "folder", "seed": 0, "shard_bytes": 1, "files": 3, "digest": "a"}
    assert differences(old, {**old, "seed": 1}) == "seed was 0 and is 1"
    assert "shard_bytes was 1 and is 2" in differences(old, {**old, "shard_bytes": 2, "files": 4})
    assert "files was 3 and is 4" in differences(old, {**old, "shard_bytes": 2, "files": 4})
    changed = differences({**old, "images": "raw 64"}, {**old, "images": "raw 32", "image_bytes": 9})
    assert changed == "images was 'raw 64' and is 'raw 32', image_bytes was None and is 9"
    assert (
        differences(old, {**old, "digest": "b"})
        == "paths, sizes, content, classes or the first images of the input differ"
    )


def grouped(groups: int, each: int, size: int = 100) -> list[Input]:
    return [Input(f"a.h5#{row}", size, None, (row,), row // each) for row in range(groups * each)]


@settings(deadline=None)
@given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 3000), st.integers(0, 5))
def test_groups_are_shuffled_in_windows_and_no_input_is_lost(groups: int, each: int, window: int, seed: int) -> None:
    inputs = grouped(groups, each)
    order = in_random_order(inputs, seed, window_bytes=window)
    assert sorted(order) == sorted(inputs)
    assert order == in_random_order(inputs, seed, window_bytes=window)
    rows = max(1, window // (100 * each)) * each  # rows in a window, which has complete groups
    for start in range(0, len(order), rows):
        parts = [entry.group for entry in order[start : start + rows]]
        assert all(parts.count(group) == each for group in parts), "a group lies in one window"


def test_inputs_without_groups_are_fully_shuffled() -> None:
    alone = image_inputs(1000)
    order = [alone.index(entry) for entry in in_random_order(alone, 0, window_bytes=1)]
    assert np.corrcoef(order, range(1000))[0, 1] < 0.1


def test_a_window_of_groups_mixes_an_input_that_is_sorted_by_class() -> None:
    order = in_random_order(grouped(200, 50), 0, window_bytes=100 * 50 * 20)
    distinct = [len({entry.group for entry in order[start : start + 20]}) for start in range(0, len(order), 20)]
    assert np.mean(distinct) > 11  # expected value for 20 draws from the 20 groups of a window: 12.8


def test_the_first_samples_have_one_type_if_names_do_not_show_it() -> None:
    inputs = [Input(f"a.parquet#{row}", 100, None, (row,)) for row in range(40)]
    with_unified_head(inputs, lambda entry: ("jpg", "png", "jpg+txt")[entry.location[0] % 3])
    assert len({entry.location[0] % 3 for entry in inputs[:HEAD]}) == 1
    assert len(set(inputs)) == 40


def test_a_shuffle_in_windows_of_groups_is_not_a_full_shuffle():
    def plan(groups, size):
        inputs = [Input(f"{n}.jpg", size, 0, group=n // 10 if groups else -1) for n in range(100)]
        listing = Listing(inputs, [], ("a",))
        return make_plan(listing, kind="parquet", seed=0, shard_bytes=10**9, kind_of=no_probe).shuffled

    assert plan(groups=False, size=10_000_000)
    assert plan(groups=True, size=1_000)
    assert not plan(groups=True, size=10_000_000)


def test_an_unchanged_order_counts_as_shuffled_only_if_the_source_was_shuffled():
    inputs = [Input(f"{n}.jpg", 1_000, 0) for n in range(10)]
    options = {"kind": "webdataset", "seed": 0, "shard_bytes": 10**9, "kind_of": no_probe, "shuffle": False}
    for was in (False, True):
        made = make_plan(Listing(inputs, [], ("a",), shuffled=was), **options)
        assert made.inputs == inputs
        assert made.shuffled == was
