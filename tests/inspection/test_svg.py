"""Charts are well-formed and accessible, and their points are at the right positions."""

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wds_tools.errors import DestinationError, OptionError
from wds_tools.inspection.svg import Plot, Series, check_svg_name, draw, short_number, write_svg

SVG = "{http://www.w3.org/2000/svg}"
finite = st.floats(-1e12, 1e12).filter(lambda value: value == 0 or abs(value) > 1e-6)


def parsed(*panels, title="t", description="d"):
    return ElementTree.fromstring(draw(panels, title=title, description=description))


def plot(*series, **options):
    return Plot(title="p", x_label="x", y_label="y", series=series, **options)


def circles(root):
    """Return the points of plots, without those of the legend, which is to the right."""
    found = [(float(c.get("cx")), float(c.get("cy"))) for c in root.iter(f"{SVG}circle")]
    return [point for point in found if point[0] <= 630]


def tick(root, text, anchor):
    """Return the position of a tick: x if it is below the plot, y if it is to the left."""
    (element,) = [t for t in root.iter(f"{SVG}text") if t.text == text and t.get("text-anchor") == anchor]
    return float(element.get("x")) if anchor == "middle" else float(element.get("y")) - 4


def test_points_are_at_the_ticks_of_their_values():
    root = parsed(plot(Series("s", [2, 4], [100, 300], points=True), x_range=(0, 10), y_range=(0, 400)))
    for point, (x, y) in zip(circles(root), (("2", "100"), ("4", "300")), strict=True):
        assert point == pytest.approx((tick(root, x, "middle"), tick(root, y, "end")), abs=0.01)


def test_larger_values_are_further_right_and_higher_in_equal_steps():
    root = parsed(plot(Series("", [0, 1, 2], [0, 1, 2], points=True)))
    (x0, y0), (x1, y1), (x2, y2) = circles(root)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.02)
    assert x1 > x0
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.02)
    assert y1 < y0


def test_equal_factors_are_equal_steps_on_a_log_scale():
    root = parsed(plot(Series("s", [10, 100, 1000], [1, 2, 3], points=True), log_x=True))
    (x0, _), (x1, _), (x2, _) = circles(root)
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.02)
    assert x1 == tick(root, "100", "middle")


def test_a_line_goes_through_its_points_and_a_mark_is_at_its_value():
    series = [Series("a", [1, 3], [5, 7]), Series("b", [1, 3], [5, 7], points=True)]
    root = parsed(plot(*series, marks=[(3, "here")], x_range=(0, 4)))
    (line,) = root.iter(f"{SVG}polyline")
    assert [tuple(map(float, pair.split(","))) for pair in line.get("points").split()] == circles(root)
    (label,) = [t for t in root.iter(f"{SVG}text") if t.text == "here"]
    assert float(label.get("x")) == circles(root)[1][0]


def test_a_chart_has_a_title_and_a_description_for_screen_readers():
    root = parsed(plot(), title="the title", description="what it shows")
    assert root.get("role") == "img"
    assert root.findtext(f"{SVG}title") == "the title"
    assert root.findtext(f"{SVG}desc") == "what it shows"


@pytest.mark.parametrize("hostile", ["</text><script>alert(1)</script>", "\"&<>'", "a\x00b\x1b[0m", "\udcff"])
def test_hostile_text_is_escaped(hostile):
    shown = Plot(hostile, hostile, hostile, [Series(hostile, [1], [1], points=True)], marks=[(1, hostile)])
    root = parsed(shown, title=hostile, description=hostile)
    assert not list(root.iter(f"{SVG}script"))
    clean = re.sub("[\x00\x1b\udcff]", "\ufffd", hostile)
    assert [t.text for t in root.iter(f"{SVG}text")].count(clean) == 5


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=5))
def test_all_points_of_any_data_are_inside_the_axes(data):
    x, y = zip(*data, strict=True)
    points = circles(parsed(plot(Series("", x, y, points=True))))
    assert len(points) == len(data)
    assert all(70 <= a <= 630 and 72 <= b <= 332 for a, b in points)


def test_values_outside_the_axes_are_omitted():
    series = Series("", [-1, 0, 10, float("nan"), 100], [1, 1, 1, 1, float("inf")], points=True)
    assert len(circles(parsed(plot(series, log_x=True)))) == 1
    assert circles(parsed(plot(Series("", [], [])))) == []
    beyond = Series("", [1, 2, 3], [1, 9, 1], points=True)
    assert len(circles(parsed(plot(beyond, x_range=(0, 2.5), y_range=(0, 5))))) == 1


@pytest.mark.parametrize("ends", [(2.1, 4.9), (1, 1e6), (1e-3, 1e30), (30, 60_000)])
def test_a_log_scale_has_2_to_12_ticks(ends):
    root = parsed(plot(log_x=True, x_range=ends, y_range=(0, 1)))
    numbers = [t for t in root.iter(f"{SVG}text") if t.get("text-anchor") == "middle" and t.text != "x"]
    assert 2 <= len(numbers) <= 12


def test_the_same_data_gives_the_same_bytes():
    panels = [plot(Series("s", [1, 2], [3, 4]))]
    assert draw(panels, title="t", description="d") == draw(panels, title="t", description="d")


@given(st.floats(1e-3, 1e10))
def test_numbers_on_axes_have_at_most_10_characters(value):
    assert len(short_number(value)) <= 10


def test_charts_are_written_only_to_svg_files_in_existing_folders(tmp_path):
    write_svg(tmp_path / "a.SVG", draw([], title="t", description="d"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.SVG"]
    for name in ("a.png", "a", "svg"):
        with pytest.raises(OptionError, match=r"\.svg"):
            check_svg_name(tmp_path / name)
    with pytest.raises(DestinationError, match="nowhere"):
        write_svg(tmp_path / "nowhere" / "a.svg", "")
