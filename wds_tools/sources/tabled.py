"""Trees of images with a table: what its rows and columns become."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

from wds_tools.errors import OptionError, SourceError
from wds_tools.format.label import NONE
from wds_tools.sources import layouts
from wds_tools.sources.annotations import packed
from wds_tools.sources.base import Collector, File, Record, SourceOptions, field_bytes
from wds_tools.sources.columns import IMAGE, LABEL, fact_name, field_name, is_text_field, json_value, plain_name
from wds_tools.sources.image_tables import (
    ENOUGH,
    LOOKED_AT,
    Named,
    Rows,
    check_folders,
    check_lists,
    check_share,
    planned,
    share_of_names,
    tables_of,
    without_masks,
)
from wds_tools.sources.label_choice import LabelChoice, LabelColumns
from wds_tools.sources.roles import Roles, notes_about_splits, state_roles
from wds_tools.sources.row_names import RowNames, names_a_file
from wds_tools.sources.text_table import MORE, Row
from wds_tools.sources.tree import Files, Layout

_ONE_HOT_NAME = "_classes.csv"  # Roboflow's, with a column for each class
_FLAGS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "-1": 0, "-1.0": 0}
_ZERO, _SIGNED = ("0", "0.0", "1", "1.0"), ("-1", "-1.0", "1", "1.0")  # CelebA has -1 and 1; -1, 0 and 1 are no flags
_PATH_ENDINGS = ("_file_name", "_filename", "_path", "_file")


class _Columns:
    """The columns of a table and their roles; that of the label is decided later.

    Args:
        files: All files, which the columns may name.
        table: The table.

    Attributes:
        roles: The roles.
        notes: What a user should know.
    """

    def __init__(self, files: Files, table: Named) -> None:
        self._table = table
        self._files = files
        names = [name for name in table.rows.columns if name != table.image]
        fields: dict[str, str] = {}
        for name in names:
            if (field := field_name(name)) and field not in fields.values():
                fields[name] = field
        rest = [name for name in names if name not in fields]
        head = [row for _, row in islice(table.rows.rows(), LOOKED_AT)]
        paths = [name for name in rest if any(names_a_file(row.get(name)) for row in head)]
        more = tuple(name for name in paths if share_of_names(name, head, self._names) >= ENOUGH)
        self.roles = Roles(
            table.image, fields=fields, more_images=more, facts=tuple(name for name in rest if name not in more)
        )
        self.notes = notes_about_splits(rest, lambda name: (row.get(name) for _, row in table.rows.rows()))

    def fields(self, row: Row) -> tuple[dict[str, str], dict[str, File]]:
        """Return the texts and the files that are fields of a row.

        Raises:
            SourceError: A file is missing, or the row has more values than there are columns.
        """
        if MORE in row:
            count = len(self._table.rows.columns) + len(row[MORE])
            raise SourceError(
                f"its row has {count} values for {len(self._table.rows.columns)} columns: put values that contain the "
                "separator in quotes"
            )
        texts, files = {}, {}
        for name, field in self.roles.fields.items():
            if (value := row.get(name)) in (None, ""):
                continue
            if is_text_field(field):
                texts[field] = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
            else:
                files[field] = self._file(name, value)
        for name in self.roles.more_images:
            if (value := row.get(name)) not in (None, ""):
                file = self._file(name, value)
                files[f"{_image_field(name)}{posixpath.splitext(file.path)[1].lower()}"] = file
        return texts, files

    def facts(self, row: Row) -> Row:
        """Return the entries of the ``json`` field."""
        return {fact_name(name): json_value(row[name]) for name in self.roles.facts if name in row}

    def _file(self, column: str, value: Any) -> File:
        file = self._names.find(value, table=self._table.file.path)
        if file is None:
            raise SourceError(f"its row names {str(value)!r} in column {column!r}, and there is no such file")
        return file

    @cached_property
    def _names(self) -> RowNames:
        return RowNames(self._files.files)


def _image_field(column: str) -> str:
    """Return the first part of the name of the field that a column of images becomes."""
    name = plain_name(column)
    ending = next((ending for ending in _PATH_ENDINGS if name.endswith(ending)), "")
    return name.removesuffix(ending) or name


class Table(Layout):
    """Images, and a table next to them or above them whose rows name them: CSV, TSV, JSON Lines or JSON.

    A row names an image by its path, by the end of its path, or by these without extension. Columns are those of
    `TableSource`: the label, fields, and entries of the ``json`` field.
    """

    kind = "table"
    _plan: dict[str, Rows] | None = None

    @classmethod
    def recognised(cls, files: Files) -> Layout | None:
        """Return the layout if a table names the images.

        Raises:
            SourceError: A table names the images, and their folders are classes; or it names few of them.
        """
        layout = cls()
        tables = tables_of(files, layout.options)
        if not tables:
            check_lists(files)
            return None
        check_folders(files, tables)
        check_share(files, tables)
        layout._plan = planned(files, tables)
        return layout

    def splits(self, files: Files) -> Mapping[str, Sequence[File]]:
        """Return the files of each split. Files of no split are in the first."""
        if self._plan is None:
            tables = tables_of(files, self.options)
            if not tables:
                raise self._no_table(files.where)
            self._plan = planned(files, tables)
        if list(self._plan) == [""]:
            return {}
        return files.divided(
            {
                name: {split.table.file.path, *(image.path for _, _, image in split.rows() if image is not None)}
                for name, split in self._plan.items()
            }
        )

    def collect(self, found: Collector, files: Files, split: str) -> None:
        """Add the rows of the split, and state what becomes of all other files."""
        assert self._plan is not None, "`splits` was called before"
        self._collect(found, files, self._plan[split], self._plan)
        self._plan = None

    def _collect(self, found: Collector, files: Files, split: Rows, plan: Mapping[str, Rows]) -> None:
        _, parts = without_masks(files)
        columns = _Columns(files, split.table)
        values = self._state(found, files, split, columns, plan)
        done = {split.table.file.path}
        for (location, row, image), label in zip(split.rows(), values, strict=True):
            if image is None:
                found.account.given += 1
                name = str(row.get(split.table.image) or split.table.rows.position(location))
                found.skip(name, f"is named in {split.table.file.path!r}, but there is no such image")
                continue
            split.table.rows.check_encoding(row, location)
            self._add_row(found, columns, row, image, parts.get(image.path, {}), label, done)
        for file in files.files:
            if file.path not in done:
                is_image = layouts.is_image_name(file.path)
                reason = f"has no row in {split.table.file.path!r}" if is_image else layouts.why_not_packed(file.path)
                self.skip(found, file, reason)

    def _state(
        self, found: Collector, files: Files, split: Rows, columns: _Columns, plan: Mapping[str, Rows]
    ) -> Sequence[Any]:
        """State what the table and its columns become; return the label of each row of the split."""
        found.account.attach("table")
        found.account.notes += [*split.notes, *columns.notes]
        hot = [] if LABEL in self.options.columns else _one_hot(plan)
        is_named_so = posixpath.basename(split.table.file.path) == _ONE_HOT_NAME
        choice = LabelChoice(None, None, (), None)
        if not (hot and is_named_so):
            choice = _label_choice(plan, split, self.options)
        if choice.label is not None or not set(hot) <= set(split.table.rows.columns):
            hot = []
        columns.roles.facts = tuple(fact for fact in columns.roles.facts if fact not in hot)
        for name in hot:
            found.account.use("column", name, "label")
        state_roles(found, columns.roles, choice, declared=split.table.rows.columns)
        found.add_to_stamp([files.read(split.table.file), repr(self.options).encode()])
        if hot:
            found.classes = tuple(hot)
            return [_flags(row, hot) for _, row, _ in split.rows()]
        return choice.values

    def _add_row(
        self,
        found: Collector,
        columns: _Columns,
        row: Row,
        image: File,
        own: Mapping[str, File],
        label: Any,
        done: set[str],
    ) -> None:
        """Add the image of a row with the fields of the row, or skip both."""
        _claim(found, done, image)
        try:
            texts, named = columns.fields(row)
        except SourceError as error:
            for part in own.values():
                _claim(found, done, part)
            self.skip(found, image, str(error), own)
            return
        facts, parts = columns.facts(row), dict(named)
        for file in named.values():
            _claim(found, done, file)
        for field, file in own.items():
            if parts.get(field) == file:
                continue
            _claim(found, done, file)
            if field in texts or field in parts or field == "cls" or (field == "json" and facts):
                self.skip(found, file, "is a field that the table has too")
            else:
                parts[field] = file
        content = {"facts": facts, "texts": texts} if facts or texts else None
        extra = sum(
            max(0, field_bytes(len(text.encode("utf-8", "surrogateescape"))) - len(text)) for text in texts.values()
        )
        self.add_image(found, image, label, parts=parts, facts=packed(content) if content else b"", extra=extra)

    def record(self, image: bytes, parts: Mapping[str, bytes], facts: Mapping[str, Any]) -> Record:
        """Return an image with the fields and entries of its row."""
        record = super().record(image, parts, facts.get("facts", {}))
        texts = {name: text.encode("utf-8", "surrogateescape") for name, text in facts.get("texts", {}).items()}
        return record._replace(fields={**record.fields, **texts})

    def _no_table(self, where: str) -> Exception:
        """Return the error that there is no table."""
        reason = "no table (.csv, .tsv, .jsonl, .json) in it names the images"
        if IMAGE in self.options.columns:
            reason = f"no table in it has a column {self.options.columns[IMAGE]!r}"
        given, no_columns, omit = "--encoding (encoding=) is for text files", "", "it"
        if self.options.columns:
            given, no_columns = f"columns={dict(self.options.columns)!r}", ", which has no columns"
            omit = "--column and --label (columns=)"
        if self.options.columns or self.options.encoding:
            return OptionError(f"{given}, but {where} is read as folder{no_columns}, because {reason}: omit {omit}")
        return SourceError(f"{where} is not in the layout {self.kind}: {reason}")


def _claim(found: Collector, done: set[str], file: File) -> None:
    """Take note of a file that is used or skipped. It may be a part of several samples."""
    found.account.given += file.path in done
    done.add(file.path)


def _label_choice(plan: Mapping[str, Rows], split: Rows, options: SourceOptions) -> LabelChoice:
    """Return the label of a split, with a value for each of its rows.

    A column is the label in all tables if it is in the largest one that has labels: in a small one, classes may look
    like ids.
    """
    given = options.columns.get(LABEL)
    tables = sorted((one.table for one in plan.values()), key=lambda table: -len(table.found))
    if given:
        known = [table for table in tables if given in table.rows.columns]
        tables = known or tables
    choices = ((table, _choice(table, options)) for table in tables)
    table, choice = next((found for found in choices if found[1].label is not None), (split.table, None))
    if choice is None or table is not split.table:
        label = choice.label if choice is not None and choice.label in split.table.rows.columns else ""
        missing = (
            (f"without labels: {split.table.file.path} has no column {choice.label!r}",) if choice and not label else ()
        )
        columns = {**options.columns, LABEL: label or ""}
        choice = _choice(split.table, options if choice is None else replace(options, columns=columns))
        choice = choice._replace(notes=(*choice.notes, *missing))
    values = choice.values or [NONE] * len(split.is_member)
    return choice._replace(values=[value for value, own in zip(values, split.is_member, strict=True) if own])


def _choice(table: Named, options: SourceOptions) -> LabelChoice:
    names = [name for name in table.rows.columns if name != table.image]
    labels = LabelColumns(table.file.path, names, options)
    for _, row in table.rows.rows():
        labels.add(row)
    choice = labels.choose()
    head = [row for _, row in islice(table.rows.rows(), LOOKED_AT)]
    hints = labels.hint({name: [row.get(name) for row in head] for name in names if not field_name(name)})
    return choice._replace(notes=(*choice.notes, *hints))


def _one_hot(plan: Mapping[str, Rows]) -> list[str]:
    """Return the columns that have 0 or 1 for each class, if the tables have no others of this kind.

    Roboflow's ``_classes.csv`` has them by its name; in others, exactly one in each row must be 1, unless the columns
    have -1 and 1.
    """
    tables = list({id(split.table): split.table for split in plan.values()}.values())
    columns = max((_flag_columns(table, _SIGNED) for table in tables), key=len)
    if len(columns) > 1 and any(0 in _flags(row, columns) for table in tables for _, row in table.rows.rows()):
        return columns
    columns = max((_flag_columns(table, _ZERO) for table in tables), key=len)
    if len(columns) < 2:
        return []
    for table in tables:
        is_multi_hot = posixpath.basename(table.file.path) == _ONE_HOT_NAME
        has_them = set(columns) <= set(table.rows.columns)
        if has_them and not is_multi_hot and any(sum(_flags(row, columns)) != 1 for _, row in table.rows.rows()):
            return []
    return columns


def _flag_columns(table: Named, flags: tuple[str, ...]) -> list[str]:
    columns = [name for name in table.rows.columns if name != table.image]
    for _, row in table.rows.rows():
        columns = [name for name in columns if str(row.get(name)).strip() in flags]
        if not columns:
            break
    return columns


def _flags(row: Row, columns: Sequence[str]) -> list[int]:
    return [_FLAGS.get(str(row.get(name)).strip(), 0) for name in columns]
