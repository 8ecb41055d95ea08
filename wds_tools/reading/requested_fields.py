"""Check of the fields that a user requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from wds_tools.errors import MissingFieldError
from wds_tools.format.label_lists import LABELS
from wds_tools.format.sample import IMAGE_FIELDS

_SEVERAL = (
    "Its samples have several labels: load them as fields={'image': wds_tools.Image(...), 'labels': "
    "wds_tools.MultiHot()}"
)


def check_fields(fields: Sequence[str], available: Iterable[str], *, has_labels: bool = False) -> None:
    """Check that a dataset has the requested fields.

    Args:
        fields: The requested fields.
        available: The stored fields of the dataset.
        has_labels: Whether samples have labels even without the field ``cls``.

    Raises:
        MissingFieldError: A field is missing; the message lists the available ones.
    """
    stored = set(available)
    virtual = {"__key__"}
    if stored & set(IMAGE_FIELDS):
        virtual.add("image")
    if has_labels or "cls" in stored:
        virtual.add("label")
    missing = [name for name in fields if name not in stored | virtual]
    if missing:
        raise MissingFieldError(
            f"fields={tuple(fields)!r}: the dataset has no {', '.join(map(repr, missing))}; "
            f"it has {', '.join(sorted(virtual) + sorted(stored))}"
            + (f". {_SEVERAL}" if "label" in missing and LABELS in stored else "")
        )
