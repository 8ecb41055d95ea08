"""Views as the page gets them: a name and a size, or a description as JSON, which may be anything."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from wds_tools.errors import OptionError, printable, shortened
from wds_tools.images.buckets import Buckets
from wds_tools.images.framed import Letterbox
from wds_tools.images.mosaic import Mosaic
from wds_tools.images.schedule import VIEW_KINDS, AnyView, any_view_from_dict, views_in
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize, View

MAX_SIDE = 1024
"""Longest side in pixels of an image that a view of the page makes."""

MAX_DESCRIPTION = 2000
"""Characters of a description."""

VIEWS: dict[str, Callable[[int], View]] = {
    "RandomResizedCrop": lambda size: RandomResizedCrop(size, flip=True),
    "CenterCrop": lambda size: CenterCrop(size, resize=round(size * 256 / 224)),
    "Resize": Resize,
    "Letterbox": Letterbox,
    "Mosaic": Mosaic,
}
"""The views that have a name on the page, by size; the default first."""

_MAX_DEPTH = 6
_MAX_NUMBER = 100_000
_ERRORS = (TypeError, ValueError, KeyError, AttributeError, IndexError, OverflowError, ArithmeticError, RecursionError)


def view_of(name: str, size: int, description: str) -> AnyView:
    """Return a view.

    Args:
        name: One of `VIEWS`.
        size: Its size in pixels.
        description: JSON as in the state of a loader, such as ``{"kind": "Letterbox", "size": 640}``; "" for the view
            of this name.

    Raises:
        OptionError: There is no such view, or it is too large.

    >>> view_of("Resize", 64, ""), view_of("", 0, '{"kind": "Resize", "size": [32, 64]}')
    (Resize(size=64), Resize(size=(32, 64)))
    """
    if not description and name not in VIEWS:
        raise OptionError(f"view={shortened(printable(name), 50)!r}; allowed are {', '.join(VIEWS)}")
    view = _described(description) if description else VIEWS[name](size)
    if isinstance(view, Buckets):
        raise OptionError("Buckets need the sizes of all images, which the page does not read: use another view")
    for part in views_in(view):
        sides = [side for stage in (part, getattr(part, "view", part)) for side in _sides(stage)]
        if max(sides, default=0) > MAX_SIDE:
            raise OptionError(f"{part} makes images of {max(sides):,} pixels; the page shows at most {MAX_SIDE:,}")
    return view


def _described(text: str) -> AnyView:
    """Return the view of a description."""
    if len(text) > MAX_DESCRIPTION:
        raise OptionError(f"the description has {len(text):,} characters; allowed are {MAX_DESCRIPTION:,}")
    try:
        values = json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"the description is not JSON: {shortened(printable(str(error)), 200)}") from error
    _check(values, _MAX_DEPTH)
    if not isinstance(values, dict):
        raise OptionError('a description is an object, such as {"kind": "Letterbox", "size": 640}')
    try:
        return any_view_from_dict(values)
    except _ERRORS as error:
        if isinstance(error, OptionError):
            raise
        reason = f"{type(error).__name__}: {shortened(printable(str(error)), 200)}"
        raise OptionError(f"the description is not that of a view ({reason})") from error


def _check(value: Any, depth: int) -> None:
    """Check that a description has only known kinds, moderate numbers, and is not nested too deeply."""
    if depth == 0:
        raise OptionError(f"the description is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        if "kind" in value and value["kind"] not in VIEW_KINDS:
            raise OptionError(
                f"kind={shortened(printable(str(value['kind'])), 50)!r}; allowed are {', '.join(VIEW_KINDS)}"
            )
        for part in value.values():
            _check(part, depth - 1)
    elif isinstance(value, list):
        for part in value:
            _check(part, depth - 1)
    elif isinstance(value, int | float) and not abs(value) <= _MAX_NUMBER:
        raise OptionError(f"the description has a number beyond {_MAX_NUMBER:,}")


def _sides(view: View) -> list[int]:
    """Return the sides that a view states: of its result, and of what it resizes to before."""
    stated = [view.shape] + [getattr(view, name, None) for name in ("size", "resize", "max_size")]
    sides = [side for value in stated for side in (value if isinstance(value, tuple) else (value,))]
    return [int(side) for side in sides if isinstance(side, int | float) and math.isfinite(side)]


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not a number")
