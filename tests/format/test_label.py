"""One rule for labels: what a value means, and which number its class gets."""

from __future__ import annotations

import decimal
import pickle
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import LabelError
from wds_tools.format.label import NONE, Classes, Label, Labels, name, number, parse

THREE = Label(number=3)


def add_all(labels: Labels, values: Iterable[Any]) -> None:
    for value in values:
        labels.add(value)


THREES = [
    3,
    "3",
    "3.0",
    " 3 ",
    "3.",
    "+3",
    b"3",
    3.0,
    np.int64(3),
    np.uint8(3),
    np.float32(3),
    np.array(3),
    decimal.Decimal(3),
]


def test_three_is_one_number_however_it_is_written() -> None:
    assert [value for value in THREES if parse(value) != THREE] == []


NAMED = [("cat", "cat"), (" cat\t", "cat"), ("fig 3", "fig 3"), ("007", "007"), ("00", "00"), ("10_11", "10_11"),
     (True, "true"), (np.bool_(False), "false"), ("TRUE", "true"), ("False", "false"), ("nano", "nano"),
     ("0x10", "0x10"), ("inf", "inf"), (b"caf\xc3\xa9", "caf\xe9"), ("n01440764", "n01440764"), ("-", "-"),
     ("\u0663", "\u0663"), (b"\xef\xbb\xbfcat\r\n", "cat"), ("\ufeffcat".encode("utf-16-le"), "cat")]  # fmt: skip


def test_other_texts_and_booleans_are_names() -> None:
    assert [parse(value) for value, _ in NAMED] == [Label(name=text) for _, text in NAMED]


MISSING = [
    None,
    "",
    "  ",
    "nan",
    "NaN",
    "None",
    "NULL",
    "<NA>",
    "N/A",
    "n/a",
    "#N/A",
    "NA",
    "na",
    " none ",
    "NONE",
    "Null",
    float("nan"),
    np.float32("nan"),
    -1,
    "-1",
    -1.0,
    -7,
]


def test_missing_and_negative_values_are_no_label() -> None:
    assert [value for value in MISSING if parse(value) != NONE] == []


@pytest.mark.parametrize("value", [0.5, "0.5", "1e3", "-0.5", ".5", float("inf"), 2**63, str(2**63), 1e300, "9" * 5000])
def test_fractions_and_numbers_beyond_int64_are_errors(value: Any) -> None:
    with pytest.raises(LabelError):
        parse(value)


@pytest.mark.parametrize("value", [{"a": 1}, object(), 1j])
def test_other_types_are_errors(value: Any) -> None:
    with pytest.raises(LabelError, match="label"):
        Labels("t.csv").add(value) if isinstance(value, dict) else parse(value)


@given(st.integers(0, 2**63 - 1), st.sampled_from(["{}", " {}", "{}.0", "+{}", "{}\n"]))
def test_every_whole_number_of_int64_is_read_exactly(value: int, form: str) -> None:
    assert parse(form.format(value)) == parse(value) == Label(number=value)


@given(st.text())
def test_every_text_is_a_number_a_name_or_none_and_never_two_of_them(text: str) -> None:
    try:
        label = parse(text)
    except LabelError:
        return
    assert label.number is None or label.name is None
    assert label.name is None or label.name == text.strip() or label.name in ("false", "true")


def numbered(values: list[Any], **options: Any) -> tuple[list[int], tuple[str, ...]]:
    """Return class numbers and class names of a column."""
    label_type = options.pop("label_type", None)
    labels = Labels("t.csv", label_type=label_type)
    add_all(labels, values)
    found = labels.numbered(**options)
    return found.numbers.tolist(), found.classes


def test_names_get_numbers_in_the_order_of_image_folder() -> None:
    folders = [name(folder) for folder in ("10", "2", "1", "B", "a", "2")]
    assert numbered(folders) == ([1, 2, 0, 3, 4, 2], ("1", "10", "2", "B", "a"))


def test_numbers_keep_their_values() -> None:
    assert numbered(["10", 2, "1.0", None, float("nan")]) == ([10, 2, 1, -1, -1], ())


@pytest.mark.parametrize("values", [["true", "False"], [True, False], ["TRUE", False], [np.True_, "false"]])
def test_booleans_are_two_classes(values: list[Any]) -> None:
    assert numbered(values) == ([1, 0], ("false", "true"))


def test_booleans_of_one_value_are_two_classes_too() -> None:
    assert numbered([True, True]) == ([1, 1], ("false", "true"))


@pytest.mark.parametrize("values", [["fig", "3", "cat", 4], ["007", "7"], [True, 1], ["a", 1.0]])
def test_numbers_and_names_in_one_column_are_an_error_that_shows_both(values: list[Any]) -> None:
    with pytest.raises(LabelError, match="--label-type") as caught:
        numbered(values)
    assert all(str(parse(value).name or parse(value).number) in str(caught.value) for value in values)


def test_the_option_decides_what_a_mixed_column_is() -> None:
    assert numbered(["fig", "3", 3, "007"], label_type="name") == ([2, 1, 1, 0], ("007", "3", "fig"))
    assert numbered(["fig", "3", 3, "007", True], label_type="number") == ([-1, 3, 3, 7, 1], ())


def test_fractions_are_an_error_that_shows_two_and_the_option() -> None:
    with pytest.raises(LabelError, match=r"0\.5.*0\.25.*--label-type name"):
        numbered(["0.5", "1", 0.25])
    assert numbered(["0.5", "1"], label_type="name") == ([0, 1], ("0.5", "1"))


def test_a_note_counts_texts_that_look_like_missing_values() -> None:
    labels = Labels("t.csv")
    add_all(labels, ["cat", "nan", None, "", "None", "nan", -1])
    remedy = "pass --label-type name if it is the name of a class"
    assert labels.numbered().notes == (f"4 samples without a label: the value is 'nan', 'None', '-1'; {remedy}",)
    numbers = Labels("t.csv")
    add_all(numbers, [3, -1])
    assert numbers.numbered().notes == ("1 sample without a label: the value is '-1'",)


def test_a_class_may_have_the_name_of_a_missing_value() -> None:
    assert numbered(["crack", "none"], label_type="name") == ([0, 1], ("crack", "none"))
    assert numbered(["crack", "none"], given=["none", "crack"]) == ([1, 0], ("none", "crack"))


def test_a_note_names_classes_that_differ_only_in_case() -> None:
    labels = Labels("t.csv")
    add_all(labels, ["Cat", "cat", "dog"])
    assert "'Cat' and 'cat'" in labels.numbered().notes[0]


def test_no_label_at_all_gives_no_classes() -> None:
    assert numbered([None, "", float("nan")]) == ([-1, -1, -1], ())
    assert numbered([]) == ([], ())


def test_given_names_number_the_names() -> None:
    assert numbered(["dog", "cat"], given=["fig", "dog", "cat"]) == ([1, 2], ("fig", "dog", "cat"))
    with pytest.raises(LabelError, match=r"'dog' in t\.csv is not among the given classes \('cat'\)"):
        numbered(["dog"], given=["cat"])


def test_a_number_without_a_name_among_the_given_ones_is_an_error() -> None:
    assert numbered([0, 1], given=["cat", "dog"]) == ([0, 1], ("cat", "dog"))
    with pytest.raises(LabelError, match="label 2, but there are only 2 class names"):
        numbered([0, 2], given=["cat", "dog"])


def test_a_text_that_is_a_number_and_another_given_name_is_an_error() -> None:
    with pytest.raises(LabelError, match="--label-type"):
        numbered(["0", "1"], given=["1", "0"])
    assert numbered(["0", "1"], given=["1", "0"], label_type="name") == ([1, 0], ("1", "0"))
    assert numbered(["0", "1"], given=["1", "0"], label_type="number") == ([0, 1], ("1", "0"))
    assert numbered(["0", "1"], given=["0", "1"]) == ([0, 1], ("0", "1"))
    assert numbered(["3", "cat"], given=["cat", "3"]) == ([1, 0], ("cat", "3"))


def test_given_names_replace_those_of_the_source_or_are_matched() -> None:
    assert numbered([0, 1], own=["n01", "n02"], given=["tench", "goldfish"]) == ([0, 1], ("tench", "goldfish"))
    assert numbered([0, 1, None], own=["cat", "dog"], given=["dog", "cat"]) == ([1, 0, -1], ("dog", "cat"))
    with pytest.raises(LabelError, match=r"'cat' of t\.csv is not among the given classes"):
        numbered([0], own=["cat", "dog"], given=["dog", "fig"])
    with pytest.raises(LabelError, match="name all"):
        numbered([0], own=["cat", "dog", "fig"], given=["cat", "dog"])


def test_classes_have_no_name_twice() -> None:
    with pytest.raises(LabelError, match="'cat' occurs twice"):
        Classes(["cat", "dog", "cat"])


def test_classes_survive_pickling() -> None:
    assert pickle.loads(pickle.dumps(Classes(["cat", "dog"]))) == Classes(["cat", "dog"])


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(NAMES, NAMES)
def test_united_classes_keep_the_first_numbers_and_each_name(one: list[str], other: list[str]) -> None:
    union, numbers = Classes(one).united(other)
    assert list(union[: len(one)]) == one
    assert [union[number] for number in numbers] == other
    assert len(union) == len({*one, *other})


@given(st.lists(st.one_of(st.none(), st.integers(-2, 12), st.sampled_from(["cat", "Dog", "x y"])), max_size=30))
def test_numbering_depends_on_the_values_and_not_on_their_order(values: list[Any]) -> None:
    def pairs(column: list[Any]) -> object:
        try:
            numbers, classes = numbered(column)
        except LabelError as error:
            return type(error)
        return sorted(zip(map(str, column), numbers, strict=True)), classes

    assert pairs(values) == pairs(values[::-1])


def test_a_number_is_never_negative() -> None:
    assert number(-1) is NONE
    assert number(0) == Label(0)


# --- several labels of a sample ---


def several(*values: Any, given: Any = None, own: Any = None, **options: Any) -> tuple[Any, tuple[str, ...]]:
    labels = Labels("t.csv", **options)
    add_all(labels, values)
    numbered = labels.numbered(given, own)
    return numbered.several, tuple(numbered.classes)


@pytest.mark.parametrize(
    ("values", "numbers", "classes"),
    [
        ([[3, 1], [1], []], [(3, 1), (1,), ()], ()),
        ([["dog", "cat"], ["cat"]], [(1, 0), (0,)], ("cat", "dog")),
        ([[" dog ", "cat"], None, float("nan"), ""], [(1, 0), None, None, None], ("cat", "dog")),
        ([np.array([2, 7]), (7, 5)], [(2, 7), (7, 5)], ()),
        ([{"b", "a"}, "a"], [(0, 1), (0,)], ("a", "b")),
        (['["cat", "dog"]', "['dog']", "[]"], [(0, 1), (1,), ()], ("cat", "dog")),
        ([[3, 3, 5]], [(3, 5)], ()),
        ([["3", "3.0", 5]], [(3, 5)], ()),
        ([[3, None, "nan"]], [(3,)], ()),
        ([[0, 1, 1], [0, 0, 0]], [(1, 2), ()], ()),
        ([[0.0, 1.0], [1.0, 1.0], None], [(1,), (0, 1), None], ()),
        ([[True, False], [True, True]], [(0,), (0, 1)], ()),
        ([[0, 1], [0]], [(0, 1), (0,)], ()),
    ],
)
def test_lists_are_several_labels(values: list[Any], numbers: list[Any], classes: tuple[str, ...]) -> None:
    assert several(*values) == (numbers, classes)


def test_lists_with_a_single_one_are_one_label() -> None:
    labels = Labels("t.csv")
    add_all(labels, [[0, 1, 0], None, [1, 0, 0]])
    numbered = labels.numbered(["cat", "dog", "fig"])
    assert numbered.several is None
    assert numbered.numbers.tolist() == [1, -1, 0]
    assert numbered.classes == ("cat", "dog", "fig")
    assert "lists of 0 and 1 for 3 classes, so a sample has one label" in numbered.notes[0]


def test_classes_of_lists_are_matched_by_name() -> None:
    assert several([0, 1], [1], own=["cat", "dog"], given=["dog", "cat", "fig"]) == (
        [(1, 0), (0,)], ("dog", "cat", "fig"),
    )  # fmt: skip
    assert several([0, 1, 1], [1, 1, 0], own=["a", "b", "c"], given=["c", "b", "a"]) == (
        [(1, 0), (2, 1)], ("c", "b", "a"),
    )  # fmt: skip
    assert several([0, 1], [1, 0], own=["a", "b", "c"])[0] == [(0, 1), (1, 0)]  # too short for one value for each class


def test_text_has_several_labels_only_with_a_separator() -> None:
    assert several("cat dog", " dog", None, separator=" ") == ([(0, 1), (1,), None], ("cat", "dog"))
    assert several("1,3", "2", "", separator=",") == ([(1, 3), (2,), None], ())
    assert several("polar bear", "bear", label_type="name") == (None, ("bear", "polar bear"))
    assert several("cat dog", "cat", "dog", label_type="name") == (None, ("cat", "cat dog", "dog"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["cat dog", "dog", "cat"], "--label-separator ' ' .* --label-type name"),
        (["1|2", "1", "2"], r"--label-separator '\|'"),
        ([[1, "cat"]], "labels that are numbers ('1') and labels that are names ('cat')"),
        ([[0.5, 0.25]], "'0.5|0.5 is not a whole number"),
        ([[2**63]], "does not fit into 64 bits"),
        ([[[1], [2]]], "of type list; allowed are numbers, names, and lists of these"),
        ([np.ones((2, 2))], "allowed are numbers, names, and lists of these"),
        ([{"a": 1}], "of type dict"),
        ([[True, False], [True]], "lists of 0 and 1, or of booleans"),
        ([[1, 0, None], [0, 0, 1]], "some values are missing"),
        ([[1, 0, -1], [0, 0, 1]], "some values are missing"),
        ([[1, 0, 1], 1], "lists of 0 and 1"),
        (["[1 2 3]"], "is not a list.*--label-type name"),
    ],
)
def test_lists_that_are_not_labels_are_errors(values: list[Any], message: str) -> None:
    with pytest.raises(LabelError, match=message.replace("('", r"\('").replace("')", r"'\)")):
        several(*values)


def test_lists_of_0_and_1_need_a_name_for_each_class() -> None:
    with pytest.raises(
        LabelError, match="lists of 3 values as labels, one for each class, but there are 2 class names"
    ):
        several([0, 1, 1], given=["cat", "dog"])


@pytest.mark.parametrize(
    ("one", "other"), [("Cat", "cat"), ("caf\u00e9", "cafe\u0301"), ("cat", "cat\u200b"), ("a cat", "a\u00a0cat")]
)
def test_classes_that_look_the_same_are_noted(one: str, other: str) -> None:
    labels = Labels("t.csv")
    add_all(labels, [one, other, "dog"])
    (note,) = labels.numbered().notes
    assert note == f"the classes {one!a} and {other!a} differ only in upper and lower case, or look the same"


@pytest.mark.parametrize(
    ("values", "separator"),
    [
        (["0 1 1", "1 0 0", "0 1 0"], " "),
        (["5 0", "5", "25", "0 5"], " "),
        (["a;b", "b;c", "a;c"], ";"),
        (["a|b", "b|a", "a|b|c", "c"], "|"),
        (["chair person", "car", "chair", "person"], " "),
        (["scab", "scab;rust"], ";"),
    ],
)
def test_texts_that_probably_mean_several_labels_are_an_error(values: list[str], separator: str) -> None:
    labels = Labels("t.csv")
    add_all(labels, values)
    with pytest.raises(LabelError, match=rf"pass --label-separator '{re.escape(separator)}'"):
        labels.numbered()
    named = Labels("t.csv", label_type="name")
    add_all(named, values)
    assert named.numbered().classes == tuple(sorted(values))


def test_names_of_few_words_are_noted() -> None:
    labels = Labels("t.csv")
    add_all(labels, ["haze primary", "clear primary road", "clear road", "haze road", "primary road"])
    (note,) = labels.numbered().notes
    assert "are names of classes, and are made of only 4 words: pass --label-separator ' '" in note
    bears = Labels("t.csv")
    add_all(bears, ["bear", "dog", "polar bear", "fig"])
    (note,) = bears.numbered().notes
    assert note.startswith(
        "labels such as 'polar bear' are names of classes, and have a word that is a class too: pass"
    )
    others = Labels("t.csv")
    add_all(others, ["black cat", "golden retriever", "blue jay", "tench, Tinca tinca", "crane, bird"])
    assert others.numbered().notes == ()


@pytest.mark.parametrize(
    "values", [[(0, 0), (1, 0), (2, 1)], ["[0, 1]", "[2, 2]"], [np.array([3, 3]), np.array([3, 4])]]
)
def test_lists_of_one_length_with_a_number_twice_are_an_error(values: list[Any]) -> None:
    labels = Labels("t.csv")
    add_all(labels, values)
    with pytest.raises(LabelError, match=r"lists of 2 numbers as labels, and .* has a number twice; if the"):
        labels.numbered()
    numbers = Labels("t.csv", label_type="number")
    add_all(numbers, values)
    assert numbers.numbered().several is not None
    different = Labels("t.csv")
    add_all(different, [[3, 1], [1, 2], [0, 3]])
    assert different.numbered().several == [(3, 1), (1, 2), (0, 3)]


@given(st.lists(st.sampled_from(["cat", "dog", 3, None, ("cat", "dog"), ("cat",), name("dog"), ()]), max_size=5))
def test_a_label_of_several_samples_is_that_of_each(values: list[Any]) -> None:
    together, single = (Labels("it", label_type="name") for _ in range(2))
    for count, value in enumerate(values, 1):
        together.add(value, count)
        for _ in range(count):
            single.add(value)
    one, other = together.numbered(), single.numbered()
    assert (one.numbers.tolist(), one.classes, one.several) == (other.numbers.tolist(), other.classes, other.several)
