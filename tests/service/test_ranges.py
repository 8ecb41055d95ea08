"""Conditional and range requests, against the rules of RFC 9110."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wds_tools.service.ranges import range_response

TAG = '"0123"'
SIZE = 100


def ask(size: int = SIZE, is_get: bool = True, **headers: str) -> tuple[int, int, int]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return tuple(range_response(named, size=size, etag=TAG, is_get=is_get))  # type: ignore[return-value]


RANGES = [
    ("bytes=0-0", (206, 0, 1)),
    ("bytes=10-19", (206, 10, 20)),
    ("bytes=90-", (206, 90, 100)),
    ("bytes=90-1000", (206, 90, 100)),
    ("bytes=-5", (206, 95, 100)),
    ("bytes=-1000", (206, 0, 100)),
    ("BYTES=1-2", (206, 1, 3)),
    ("bytes=100-", (416, 0, 0)),
    ("bytes=100-200", (416, 0, 0)),
    ("bytes=-0", (416, 0, 0)),
    ("bytes=9999999999999999999-", (416, 0, 0)),
    ("bytes=0-1,5-6", (200, 0, 100)),  # several ranges: the whole
    ("bytes=5-4", (200, 0, 100)),  # invalid ones are ignored
    ("bytes=a-b", (200, 0, 100)),
    ("bytes=-", (200, 0, 100)),
    ("bytes=", (200, 0, 100)),
    ("bytes=+1-2", (200, 0, 100)),
    ("bytes=1-99999999999999999999", (200, 0, 100)),
    ("bytes=\u0661-\u0662", (200, 0, 100)),  # digits of another script
    ("items=0-1", (200, 0, 100)),
    ("", (200, 0, 100)),
]


def test_a_range_request_selects_these_bytes() -> None:
    assert [(text, ask(Range=text)) for text, _ in RANGES] == RANGES


CONDITIONS = [
    ({"If_Match": TAG}, 200),
    ({"If_Match": "*"}, 200),
    ({"If_Match": f'"x", {TAG}'}, 200),
    ({"If_Match": f"W/{TAG}"}, 412),  # the strong comparison
    ({"If_Match": '"x"'}, 412),
    ({"If_Match": "0123"}, 412),  # without quotes
    ({"If_Match": ""}, 412),
    ({"If_None_Match": TAG}, 304),
    ({"If_None_Match": f"W/{TAG}"}, 304),  # the weak comparison
    ({"If_None_Match": f'"a,b", {TAG}'}, 304),
    ({"If_None_Match": "*"}, 304),
    ({"If_None_Match": '"x"'}, 200),
    ({"If_None_Match": TAG, "Range": "bytes=0-1"}, 304),
    ({"If_Match": '"x"', "If_None_Match": TAG}, 412),  # If-Match is first
    ({"If_Match": '"x"', "Range": "bytes=500-"}, 412),  # conditions come before ranges
    ({"If_Range": TAG, "Range": "bytes=0-1"}, 206),
    ({"If_Range": '"x"', "Range": "bytes=0-1"}, 200),
    ({"If_Range": f"W/{TAG}", "Range": "bytes=0-1"}, 200),  # the strong comparison
    ({"If_Range": "Wed, 21 Oct 2015 07:28:00 GMT", "Range": "bytes=0-1"}, 200),  # there is no date to compare
    ({"If_Range": '"x"', "Range": "bytes=500-"}, 200),
    ({"If_Range": TAG}, 200),
]


def test_a_condition_gives_this_status() -> None:
    assert [(headers, ask(**headers)[0]) for headers, _ in CONDITIONS] == CONDITIONS


def test_a_range_of_a_head_request_is_ignored() -> None:
    assert ask(is_get=False, Range="bytes=0-1") == (200, 0, SIZE)


def test_no_range_of_an_empty_file_can_be_satisfied() -> None:
    assert [ask(0, Range=wanted)[0] for wanted in ("bytes=0-", "bytes=-1", "bytes=0-0")] == [416, 416, 416]
    assert ask(0) == (200, 0, 0)


TEXT = st.text(st.sampled_from('bytes=-,0123456789 \t"W/*x'), max_size=40)


@given(wanted=TEXT, match=TEXT | st.none(), none_match=TEXT | st.none(), size=st.integers(0, 20))
def test_every_answer_is_within_the_file(wanted: str, match: str | None, none_match: str | None, size: int) -> None:
    headers = {"Range": wanted, "If-Match": match, "If-None-Match": none_match}
    found = range_response({k: v for k, v in headers.items() if v is not None}, size=size, etag=TAG, is_get=True)
    assert found.status in (200, 206, 304, 412, 416)
    if found.status == 206:
        assert 0 <= found.start < found.stop <= size
    elif found.status == 200:
        assert (found.start, found.stop) == (0, size)


@given(first=st.integers(0, 200), last=st.integers(0, 200))
def test_a_range_has_the_bytes_that_a_slice_has(first: int, last: int) -> None:
    data = bytes(range(SIZE))
    status, start, stop = ask(Range=f"bytes={first}-{last}")
    if status == 206:
        assert data[start:stop] == data[first : last + 1]
    else:
        assert status == (416 if first <= last else 200)


def test_long_headers_take_linear_time() -> None:
    for text in ('"a",' * 2000, "," * 8000, " ," * 4000 + "x", '"' * 8000, "W/" * 4000):
        assert ask(If_Match=text)[0] in (200, 412)
