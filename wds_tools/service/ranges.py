"""Conditional and range requests of RFC 9110, for a resource with a strong ETag and no date of modification. No I/O.

One range is served per request. A request for several ranges gets the whole resource, as section 14.2 allows: a server
may ignore the header. Headers with dates are ignored, because there is no Last-Modified.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_ENTITY_TAG = re.compile(r'(W/)?"([\x21\x23-\x7e\x80-\xff]*)"')
_TAG_LIST = re.compile(rf"[ \t,]*{_ENTITY_TAG.pattern}(?:[ \t]*,[ \t,]*{_ENTITY_TAG.pattern})*[ \t,]*")
_ONE_RANGE = re.compile(r"bytes=[ \t]*(?:([0-9]{1,19})-([0-9]{0,19})|-([0-9]{1,19}))[ \t]*", re.IGNORECASE)


class RangeResponse(NamedTuple):
    """How a GET or HEAD request is answered.

    Attributes:
        status: 200, 206, 304, 412 or 416.
        start: First byte of the body.
        stop: End of the body; for 304, 412 and 416 there is none, and both are 0.
    """

    status: int
    start: int = 0
    stop: int = 0


def range_response(headers: Mapping[str, str], *, size: int, etag: str, is_get: bool) -> RangeResponse:
    """Return how a request is answered, in the order of section 13.2.2.

    Args:
        headers: ``If-Match``, ``If-None-Match``, ``If-Range`` and ``Range``, by these names, where the request has
            them. Fields that were sent several times are joined by commas.
        size: Length of the resource in bytes.
        etag: Its strong ETag, with quotes.
        is_get: Whether the method is GET: ranges have no meaning for others.

    >>> range_response({"Range": "bytes=2-4"}, size=10, etag='"a"', is_get=True)
    RangeResponse(status=206, start=2, stop=5)
    """
    if_match, if_none_match = headers.get("If-Match"), headers.get("If-None-Match")
    if if_match is not None and not _matches(if_match, etag, weak=False):
        return RangeResponse(412)
    if if_none_match is not None and _matches(if_none_match, etag, weak=True):
        return RangeResponse(304)
    requested = headers.get("Range")
    if requested is None or not is_get or headers.get("If-Range", etag).strip() != etag:
        return RangeResponse(200, 0, size)
    return _range_of(requested, size)


def _range_of(requested: str, size: int) -> RangeResponse:
    match = _ONE_RANGE.fullmatch(requested.strip())
    if match is None:
        return RangeResponse(200, 0, size)
    first, last, suffix = match.groups()
    if suffix is not None:
        start, stop = max(0, size - int(suffix)), size
        return RangeResponse(206, start, stop) if int(suffix) and size else RangeResponse(416)
    start = int(first)
    if last and int(last) < start:
        return RangeResponse(200, 0, size)  # invalid, so it is ignored
    if start >= size:
        return RangeResponse(416)
    return RangeResponse(206, start, min(size, int(last) + 1) if last else size)


def _matches(field: str, etag: str, *, weak: bool) -> bool:
    """Return whether a list of entity tags contains a strong one; with ``weak`` by the weak comparison."""
    if field.strip() == "*":
        return True
    if not _TAG_LIST.fullmatch(field):
        return False
    return any(f'"{tag}"' == etag and (weak or not is_weak) for is_weak, tag in _ENTITY_TAG.findall(field))
