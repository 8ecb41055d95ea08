"""Roles of the columns of rows: the image, the label, and what becomes of all others. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from wds_tools.format.account import Account
from wds_tools.format.label import quoted
from wds_tools.sources.base import Collector
from wds_tools.sources.label_choice import LabelChoice
from wds_tools.sources.layouts import is_split_name


@dataclass(slots=True)
class Roles:
    """The roles of the columns of a source.

    Attributes:
        image: Column of the image.
        label: Column of the label; None without labels.
        names: Column with the name of the class whose number is in ``label``; None without it.
        fields: Column -> field, for columns that become fields of their own.
        more_images: Further columns of images; their fields are named after the column and the image type.
        facts: Columns that become entries of the ``json`` field.
        left_out: Column -> why it is not packed.
    """

    image: str
    label: str | None = None
    names: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    more_images: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    def set_label(self, label: str | None, names: str | None) -> None:
        """Set the column of the label and that of class names, which are no entries or fields then."""
        self.label, self.names = label, names
        self.facts = tuple(name for name in self.facts if name not in (label, names))
        self.fields = {name: value for name, value in self.fields.items() if name not in (label, names)}
        self.left_out = {name: value for name, value in self.left_out.items() if name not in (label, names)}

    def leave_out(self, name: str, reason: str) -> None:
        """State that a column is not packed."""
        self.facts = tuple(other for other in self.facts if other != name)
        self.left_out[name] = reason

    def collect(self, account: Account) -> None:
        """Add what becomes of each column."""
        account.use("column", self.image, "image")
        if self.label is not None:
            account.use("column", self.label, "label")
        if self.names is not None:
            account.use("column", self.names, "class names")
        for name, value in self.fields.items():
            account.use("column", name, f"field {value}")
        for name in self.more_images:
            account.use("column", name, "image fields")
        for name in self.facts:
            account.use("column", name, "entries of json")
        for name, reason in self.left_out.items():
            account.leave_out("column", name, reason)


def state_roles(found: Collector, roles: Roles, choice: LabelChoice, *, declared: Iterable[str]) -> None:
    """Add the account of all columns, and the class names.

    Args:
        found: Where they are added.
        roles: Roles of the columns.
        choice: The label.
        declared: All columns that the source has.
    """
    roles.set_label(choice.label, choice.names)
    found.classes = choice.classes or ()
    found.account.notes += choice.notes
    found.account.declare("column", declared)
    roles.collect(found.account)


def notes_about_splits(names: Iterable[str], values: Callable[[str], Iterable[Any]]) -> list[str]:
    """Return a note for each column that names the split of a row: such rows are packed together.

    Args:
        names: Columns that become entries of the ``json`` field.
        values: Returns the values of a column. Only the first ones are read if these are not names of splits.
    """
    found = {name: _splits_in(values(name)) for name in names}
    return [
        f"column {name!r} names splits, {quoted(splits)}: it is an entry of json, and all are packed together; for a "
        "dataset of each, write a table for each"
        for name, splits in found.items()
        if len(splits) > 1
    ]


def _splits_in(values: Iterable[Any]) -> list[str]:
    """Return the different values if all are names of splits."""
    found: set[str] = set()
    for value in values:
        if value in (None, ""):
            continue
        if not isinstance(value, str) or (value not in found and not is_split_name(value)):
            return []
        found.add(value)
    return sorted(found)
