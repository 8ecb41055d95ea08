"""The option where=: it is parsed, never evaluated, and selects the same rows as the condition in Python."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import OptionError
from wds_tools.order.where import parse

COLUMNS = ["width", "height", "label", "mode", "jpg.size"]
CLASSES = ["cat", "dog", "fox"]
ROWS = [
    {"width": w, "height": h, "label": n, "mode": m, "jpg.size": w * h // 3}
    for w, h, n, m in [(100, 50, 0, "RGB"), (256, 256, 1, "L"), (640, 480, 2, "RGB"), (10, 2000, 1, "CMYK")]
]
TABLE = pa.Table.from_pylist(ROWS)


def found(where):
    rows = TABLE.filter(parse(where, columns=COLUMNS, classes=CLASSES).expression).to_pylist()
    return [ROWS.index(row) for row in rows]


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("width >= 256", [1, 2]),
        ("width >= 256 and label in (1, 2)", [1, 2]),
        ("label == 'cat' or label == 'fox'", [0, 2]),
        ("label in ('cat', 'dog')", [0, 1, 3]),
        ("'dog' == label", [1, 3]),
        ("label not in ['cat']", [1, 2, 3]),
        ("label in (-1, 0, 'fox')", [0, 2]),
        ("width in ()", []),
        ("not (mode == 'RGB')", [1, 3]),
        ("100 < width < 600", [1]),
        ("width / height > 1.3", [0, 2]),
        ("width * height >= 20_000 and jpg.size > 21_845", [2]),
        ("width - height == -1990", [3]),
        ("'GB' in mode", [0, 2]),
        ("'gb' in mode", []),
        ("width > 50 and 'GB' not in mode", [1]),
        ("True", [0, 1, 2, 3]),
        (pc.field("width") < 100, [3]),
    ],
)
def test_a_condition_selects_its_rows(where, rows):
    assert found(where) == rows


@pytest.mark.parametrize(
    "where", ["label != 'cat'", "label not in ('cat', 'fox')", "not label in ('cat',)", "not label == 'cat'"]
)
def test_a_null_meets_no_condition(where):
    table = pa.table({"label": pa.array([0, None, 1])})
    assert table.filter(parse(where, columns=["label"], classes=CLASSES).expression)["label"].to_pylist() == [1]


@pytest.mark.parametrize("where", ["'a dog' in caption", "'a dog' not in caption", "not 'a dog' in caption"])
def test_a_sample_without_a_text_is_not_found_by_a_search(where):
    table = pa.table({"caption": pa.array(["a dog", None, "a.dog"])})
    texts = table.filter(parse(where, columns=["caption"], classes=[]).expression)["caption"].to_pylist()
    assert texts == (["a.dog"] if "not" in where else ["a dog"])


@pytest.mark.parametrize("where", ["width / height > 1", "not width / height > 1", "width / height == 2"])
def test_a_division_by_0_is_a_null(where):
    table = pa.table({"width": [0, 4, 5, 1], "height": [0, 2, 0, 1]})
    widths = table.filter(parse(where, columns=["width", "height"], classes=[]).expression)["width"].to_pylist()
    assert widths == ([1] if "not" in where else [4])


def test_a_condition_names_the_columns_that_it_uses():
    names = ["width", "label", "cat", "wid", "jpg.size"]
    assert parse("label == 'cat' and 3 < width", columns=names, classes=CLASSES).columns == {"label", "width"}
    assert parse("jpg.size > 3", columns=names, classes=CLASSES).columns == {"jpg.size"}
    assert parse(pc.field("width") < 3, columns=names, classes=CLASSES).columns == set(names)


NUMBERS = st.sampled_from(["width", "height", "label", "3", "-1", "256", "2.5"])
SUMS = st.tuples(NUMBERS, st.sampled_from(["+", "-", "*"]), NUMBERS).map(" ".join)
COMPARISONS = st.tuples(SUMS, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), SUMS).map(" ".join)
CONDITIONS = st.recursive(
    COMPARISONS,
    lambda inner: (
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda t: f"({' '.join(t)})")
        | inner.map(lambda text: f"not ({text})")
    ),
    max_leaves=5,
)


@given(CONDITIONS)
def test_a_condition_selects_the_same_rows_as_in_python(text):
    expected = [number for number, row in enumerate(ROWS) if eval(text, {}, row)]
    assert found(text) == expected


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("weight > 3", "no column 'weight'; the index has width"),
        ("label == 'cow'", "no class 'cow'; the dataset has cat, dog, fox"),
        ("width >=", "cannot be parsed"),
        ("width = 3", "cannot be parsed"),
        ("__import__('os').system('true')", "not allowed"),
        ("(lambda: 1)()", "not allowed"),
        ("[x for x in (1,)]", "not allowed"),
        ("width ** 9", "not allowed"),
        ("width is 3", "'width is 3' is not allowed; allowed are"),
        ("width in 3", "'in' requires a list"),
        ("3 in mode", "'in' requires a text before the name of a column, such as 'dog' in caption"),
        ("mode in mode", "'in' requires a text before the name of a column"),
        ("'GB' in mood", "no column 'mood'"),
        ("width in (3, None)", "'in' requires a list"),
        ("width in (3, 'a')", "'in' requires values of one type"),
        ("(" * 500 + "1" + ")" * 500, "cannot be parsed"),
        (17, "allowed are text"),
    ],
)
def test_an_invalid_condition_is_refused_with_the_allowed_syntax(where, message):
    with pytest.raises(OptionError, match="where=") as caught:
        parse(where, columns=COLUMNS, classes=CLASSES)
    assert message in str(caught.value)
