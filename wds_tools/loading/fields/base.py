"""Checks of the attributes of specifications: each raises OptionError with the allowed values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from wds_tools.errors import OptionError


def _name_of(spec: Any) -> str:
    return f"wds_tools.{type(spec).__name__}"


def is_number(value: Any) -> bool:
    """Return whether this is an int or a float."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_length(value: Any) -> bool:
    """Return whether this is a whole number of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_field(spec: Any, examples: str) -> None:
    """Check the name of the stored field."""
    if not isinstance(spec.field, str) or not spec.field:
        raise OptionError(f"{_name_of(spec)}({spec.field!r}); allowed are names of stored fields, such as {examples}")


def check_choice(spec: Any, name: str, choices: Sequence[Any]) -> None:
    """Check that an attribute is one of several values."""
    value = getattr(spec, name)
    if value not in choices:
        raise OptionError(f"{_name_of(spec)}({name}={value!r}); allowed are {', '.join(map(repr, choices))}")


def check_name(spec: Any, name: str) -> None:
    """Check an attribute that names another field of the batch."""
    value = getattr(spec, name)
    if value is not None and not isinstance(value, str):
        raise OptionError(f"{_name_of(spec)}({name}={value!r}); allowed is the name of another field of the batch")


def check_text(spec: Any, name: str) -> None:
    """Check that an attribute is text."""
    value = getattr(spec, name)
    if not isinstance(value, str):
        raise OptionError(f"{_name_of(spec)}({name}={value!r}); allowed is text such as 'objects.bbox'")


def check_function(spec: Any, name: str) -> None:
    """Check that an attribute is a function or None."""
    value = getattr(spec, name)
    if value is not None and not callable(value):
        raise OptionError(f"{_name_of(spec)}({name}={value!r}); allowed are functions and None")


def check_pad(spec: Any, kind: type, axes: int) -> None:
    """Check the attribute ``pad`` of a specification.

    Args:
        spec: The specification.
        kind: `fields.Pad`.
        axes: Number of dimensions that are padded: 2 for images, 1 for sequences.
    """
    pad = spec.pad
    if pad is not None and not isinstance(pad, kind) and not is_number(pad):
        raise OptionError(f"{_name_of(spec)}(pad={pad!r}); allowed are numbers, wds_tools.Pad(...) and None")
    if axes == 1 and not isinstance(getattr(pad, "size", None), int | None):
        raise OptionError(f"{_name_of(spec)}(pad={pad!r}): its size is a length, one number")
    if axes == 2 and getattr(pad, "truncate", False):
        raise OptionError(f"{_name_of(spec)}(pad={pad!r}): images are not truncated; use a view, such as CenterCrop")
