"""Columns of a table that have 0 or 1 for each class: together they are the label. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from wds_tools.format.label import quoted
from wds_tools.sources.columns import LABEL
from wds_tools.sources.label_choice import ambiguous, could_be_classes, some_of
from wds_tools.sources.row_names import split_in
from wds_tools.sources.text_table import Row, TextTable

_ONE_HOT_NAME = "_classes.csv"  # Roboflow's, with a column for each class
_FLAGS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "-1": 0, "-1.0": 0}
_ZERO, _SIGNED = ("0", "0.0", "1", "1.0"), ("-1", "-1.0", "1", "1.0")  # CelebA has -1 and 1; -1, 0 and 1 are no flags


def one_hot(given: Iterable[tuple[TextTable, str]]) -> list[str]:
    """Return the columns that have 0 or 1 for each class, if the tables have no others of this kind.

    Args:
        given: Tables with the same classes, such as those of splits, and their columns of images.

    Roboflow's ``_classes.csv`` has them by its name; in others, exactly one in each row must be 1, unless the columns
    have -1 and 1.
    """
    tables = list({id(table): (table, image) for table, image in given}.values())
    if any(states_classes(table) for table, _ in tables):
        return _flags_of_classes(tables)
    columns = _flags_of_classes(tables)
    different = {tuple(flags_of(row, columns)) for table, _ in tables for _, row in table.rows()}
    return [] if len(different) < 2 or any(map(split_in, columns)) else columns


def states_classes(table: TextTable) -> bool:
    """Return whether a table has the name of Roboflow's, whose columns are classes."""
    return table.path.name == _ONE_HOT_NAME


def check_only_label(table: TextTable, image: str, hot: Sequence[str]) -> None:
    """Check that besides two columns of 0 and 1 no column has texts that occur several times, as names of classes do.

    Raises:
        SourceError: One has.
    """
    rows = [row for _, row in table.rows()]
    others = {name: [row.get(name) for row in rows] for name in table.columns if name not in {image, *hot}}
    found = {name: some_of(values) for name, values in others.items() if could_be_classes(values)}
    if found:
        remedy = f"; or remove {', '.join(map(repr, found))} from the table if the classes are {quoted(hot)}"
        flags = {name: some_of([row.get(name) for row in rows]) for name in hot}
        raise ambiguous(LABEL, str(table.path), {**found, **flags}, remedy=remedy)


def _flags_of_classes(tables: Sequence[tuple[TextTable, str]]) -> list[str]:
    """Return the columns of 0 and 1, or -1 and 1, by their values."""
    columns = max((_flag_columns(*table, _SIGNED) for table in tables), key=len)
    if len(columns) > 2 and any(0 in flags_of(row, columns) for table, _ in tables for _, row in table.rows()):
        return columns
    flags = [_flag_columns(*table, _ZERO) for table in tables]
    columns = max(flags, key=len)
    if all(states_classes(table) for table, _ in tables):
        others = {name for (table, _), found in zip(tables, flags, strict=True) for name in {*table.columns} - {*found}}
        columns = [name for name in dict.fromkeys([*columns, *chain(*flags)]) if name not in others]
    if len(columns) < 2:
        return []
    for table, _ in tables:
        has_them = not {*columns}.isdisjoint(table.columns) and not states_classes(table)
        if has_them and any(sum(flags_of(row, columns)) != 1 for _, row in table.rows()):
            return []
    return columns


def _flag_columns(table: TextTable, image: str, flags: tuple[str, ...]) -> list[str]:
    columns = [name for name in table.columns if name != image]
    for _, row in table.rows():
        columns = [name for name in columns if str(row.get(name)).strip() in flags]
        if not columns:
            break
    return columns


def flags_of(row: Row, columns: Sequence[str]) -> list[int]:
    """Return 0 or 1 for each of some columns."""
    return [_FLAGS.get(str(row.get(name)).strip(), 0) for name in columns]
