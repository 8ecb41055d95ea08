"""Brace patterns and globs, and the limit on the number of names."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from braceexpand import braceexpand
from hypothesis import assume, given
from hypothesis import strategies as st

from wds_tools.errors import NotADatasetError, OptionError
from wds_tools.storage.patterns import MAX_NAMES, _count, expand_pattern, has_pattern


def test_a_range_expands_in_order_with_leading_zeros() -> None:
    assert expand_pattern("train-{008..010}.tar") == ["train-008.tar", "train-009.tar", "train-010.tar"]


def test_alternatives_and_ranges_multiply() -> None:
    assert len(expand_pattern("{train,val}-{0..9}-{a..c}.tar")) == 60


def test_a_name_without_a_pattern_is_unchanged() -> None:
    assert expand_pattern("no/such/file.tar") == ["no/such/file.tar"]


def test_the_names_of_a_glob_are_sorted(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "c.txt"):
        (tmp_path / name).touch()
    assert expand_pattern(f"{tmp_path}/*.tar") == [f"{tmp_path}/a.tar", f"{tmp_path}/b.tar"]


def test_a_glob_does_not_match_hidden_files(tmp_path: Path) -> None:
    (tmp_path / ".a.tar").touch()
    (tmp_path / "b.tar").touch()
    assert expand_pattern(f"{tmp_path}/*.tar") == [f"{tmp_path}/b.tar"]


def test_braces_and_globs_can_be_combined(tmp_path: Path) -> None:
    for name in ("val-1.tar", "train-2.tar", "train-1.tar"):
        (tmp_path / name).touch()
    found = [Path(name).name for name in expand_pattern(f"{tmp_path}/{{train,val}}-*.tar")]
    assert found == ["train-1.tar", "train-2.tar", "val-1.tar"]


def test_a_glob_that_matches_nothing_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(NotADatasetError, match=r"none-\*\.tar"):
        expand_pattern(f"{tmp_path}/none-*.tar")


def test_an_existing_file_with_pattern_characters_is_not_treated_as_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "a[1]{2,3}.tar"
    path.touch()
    assert expand_pattern(str(path)) == [str(path)]


def test_a_url_with_a_query_is_not_a_glob() -> None:
    url = "https://host/a.tar?versionId=*[1]"
    assert not has_pattern(url)
    assert expand_pattern(url) == [url]


def test_braces_in_a_url_expand() -> None:
    assert expand_pattern("s3://b/{0..1}.tar?x=*") == ["s3://b/0.tar?x=*", "s3://b/1.tar?x=*"]


def test_a_brace_that_is_not_closed_is_an_error() -> None:
    with pytest.raises(OptionError, match="not closed"):
        expand_pattern("train-{000..009.tar")


@pytest.mark.parametrize(
    "pattern",
    [
        "{0..1000000}.tar",
        "{0..999999999999999999999999999999}",
        "{0..00000000000000000000000000009999999}",
        "{0..9" + "9" * 5000 + "}",
        "{0..999}" * 3,
        "{a,b}" * 30,
        "{{0..2000},{0..2000}}{0..999}",
        "{" * 100 + "a,b" + "}" * 100,
        "{a..z..-1}" * 9,
    ],
)
def test_a_pattern_of_too_many_names_is_refused_before_they_are_made(pattern: str) -> None:
    started = time.monotonic()
    with pytest.raises(OptionError):
        expand_pattern(pattern)
    assert time.monotonic() - started < 20


def test_a_million_names_are_allowed() -> None:
    assert _count(f"{{0..{MAX_NAMES - 1}}}.tar", 0) == MAX_NAMES
    assert len(expand_pattern("{0..9999}.tar")) == 10_000


groups = st.recursive(
    st.sampled_from(["a", "", "0..12", "03..1", "5..-5..2", "a..e", "e..a..2", "x,y", "1..2,3", "\\{", "\\,"]),
    lambda inner: (
        st.lists(inner.map(lambda text: "{" + text + "}"), min_size=1, max_size=3).map(",".join)
        | st.tuples(inner, inner).map(lambda pair: pair[0] + "{" + pair[1] + "}")
    ),
    max_leaves=6,
)


@given(st.lists(groups, min_size=1, max_size=3).map(lambda parts: "-".join("{" + part + "}" for part in parts)))
def test_the_count_is_at_least_the_number_of_expanded_names(pattern: str) -> None:
    assume(_count(pattern, 0) < 5000)
    assert len(list(braceexpand(pattern))) <= _count(pattern, 0)


@given(st.lists(st.sampled_from(["a", "{0..12}", "{x,y,z}", "{9..3}", "{a,{1..3}}"]), max_size=4).map("".join))
def test_the_count_of_ranges_and_alternatives_is_exact(pattern: str) -> None:
    assert len(list(braceexpand(pattern))) == _count(pattern, 0)
