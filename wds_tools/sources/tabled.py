"""Trees of images with a table: what its rows and columns become."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from itertools import islice
from typing import Any

from wds_tools.errors import OptionError, SourceError
from wds_tools.format.label import NONE, quoted
from wds_tools.format.objects import packed
from wds_tools.sources import masks
from wds_tools.sources.about_images import ENOUGH, LOOKED_AT, share_of_names
from wds_tools.sources.base import Collector, Record, SourceOptions
from wds_tools.sources.columns import IMAGE, LABEL, field_name
from wds_tools.sources.file_list import Files, RowNames, are_most
from wds_tools.sources.image_tables import Named, SplitRows, check_folders, planned, tables_of, without_masks
from wds_tools.sources.inputs import File, field_bytes
from wds_tools.sources.label_choice import Flags, one_hot
from wds_tools.sources.layouts import is_image_name, names_a_file, split_folder, split_of, split_of_table
from wds_tools.sources.record_roles import Roles
from wds_tools.sources.table import TableRows, with_images
from wds_tools.sources.text_table import COUNT, Row, states_classes
from wds_tools.sources.tree import LAYOUTS, Layout, imported
from wds_tools.sources.values import Kind
from wds_tools.wording import counted


class _Columns:
    """The columns of a table.

    Args:
        files: All files, which the columns may name.
        table: The table.
        options: What the user states.
        label_columns: The columns with the label and its class names, if another table shows which these are.
        hot: The columns with 0 or 1 for each class, of the tables of all splits; None if they are not known yet.

    Attributes:
        names: What the columns have.
        choice: The column that is the label.
    """

    def __init__(
        self,
        files: Files,
        table: Named,
        options: SourceOptions,
        label_columns: tuple[str | None, str | None] | None = None,
        hot: tuple[str, ...] | None = None,
    ) -> None:
        self.table = table
        self._files = files
        self._source = TableRows(table.file.path, options)
        self.names = self._source.seen(table.rows)
        for _, row in table.rows.rows():
            if COUNT not in row:
                self.names.add(row)
        if label_columns is not None:
            self.names.labels = {name: values for name, values in self.names.labels.items() if name in label_columns}
            self.names.names_of_label = label_columns[1]
        self.names.hot = hot
        self._head = [row for _, row in islice(table.rows.rows(), LOOKED_AT)]
        self.choice = self.names.label(table.image)

    @cached_property
    def roles(self) -> Roles:
        """The roles of the columns. Columns of image names become fields, named after the column and the image type."""
        names = [name for name in self.names.kinds if name != self.table.image and not field_name(name)]
        paths = [name for name in names if any(names_a_file(row.get(name)) for row in self._head)]
        more = [name for name in paths if share_of_names(name, self._head, self._names) >= ENOUGH]
        for name in more:
            self.names.declare(name, Kind.ENCODED)
        return with_images(self.names.roles(self.table.image), more)

    def account(self, collector: Collector) -> None:
        """State what becomes of the columns."""
        collector.account.notes += self.names.hints(self.roles, lambda name: [row.get(name) for row in self._head])
        self.names.account(collector, self.roles)

    def content(self, row: Row) -> tuple[Record, dict[str, File]]:
        """Return the texts and entries of ``json`` of a row, and the files that are fields."""
        values, named = self._source.divided(row, self.roles, self.table.rows)
        values = {name: value for name, value in values.items() if name in self.names.kinds}
        files = {}
        for column, value in named.items():
            file = self._names.find(value, table=self.table.file.path)
            if file is None:
                raise SourceError(f"its row names {str(value)!r} in column {column!r}, and there is no such file")
            field = self.roles.fields[column]
            is_image = Kind.ENCODED in self.names.kinds[column]
            files[f"{field}{posixpath.splitext(file.path)[1].lower()}" if is_image else field] = file
        return self._source.to_record(values, self.roles, b""), files

    @cached_property
    def _names(self) -> RowNames:
        return RowNames(self._files.files)


class Table(Layout):
    """Images, and a table next to them or above them whose rows name them: CSV, TSV, JSON Lines or JSON.

    A row names an image by its path, by the end of its path, or by these without extension. Columns are as in
    `TableSource`: the label, fields, and entries of the ``json`` field.
    """

    kind, labels = "table", "rows"
    _plan: dict[str, SplitRows] | None = None

    @classmethod
    def recognised(cls, files: Files) -> Layout | None:
        """Return the layout if a table names most of the images.

        Raises:
            SourceError: A table names the images, and their folders are classes; or several tables do.
        """
        layout = cls()
        tables = tables_of(files, layout.options)
        named = [image for table in tables for image in table.images if image is not None]
        if not tables or not are_most(named, without_masks(files)[0]):
            return None
        check_folders(files, tables)
        layout._plan = planned(files, tables, layout.options)
        return layout

    def splits(self, files: Files) -> Mapping[str, Sequence[File]]:
        """Return the files of each split; an image without a row by its folder. Files of no split are in the first."""
        if self._plan is None:
            tables = tables_of(files, self.options)
            if not tables:
                raise self._no_table(files)
            self._plan = planned(files, tables, self.options)
        if list(self._plan) == [""]:
            self.no_splits = self._plan[""].no_splits or self.no_splits
            return {}
        claimed = {
            name: {
                *(file.path for file in (split.table.file, *split.table.further)),
                *(image.path for _, _, image in split.rows() if image is not None),
            }
            for name, split in self._plan.items()
        }
        with_rows = set().union(*claimed.values())
        for file in files.images:
            if file.path not in with_rows and (name := _split_without_row(file, self._plan)):
                claimed[name].add(file.path)
        return files.divided(claimed)

    def _collect(self, collector: Collector, files: Files, split: SplitRows) -> None:
        files.check_fields()
        _, parts = without_masks(files)
        columns, values = self._state(collector, files, split)
        done = {file.path for file in (split.table.file, *split.table.further)}
        for (location, row, image), label in zip(split.rows(), values, strict=True):
            if image is None:
                collector.account.given += 1
                name = str(row.get(split.table.image) or split.table.rows.position(location))
                reason = f"is named in {split.table.file.path!r}, but there is no such image"
                try:
                    split.table.rows.check_count(row)
                except SourceError as error:
                    reason = str(error)
                collector.skip(name, reason)
                continue
            split.table.rows.check_encoding(row, location)
            self._add_row(collector, columns, row, image, parts.get(image.path, {}), label, done)
        self._check_without_row(files, split, done)
        for file in files.files:
            if file.path not in done:
                is_image = is_image_name(file.path)
                reason = f"has no row in {split.table.file.path!r}" if is_image else files.why_not_packed(file.path)
                self.skip(collector, file, reason)

    def _check_without_row(self, files: Files, split: SplitRows, done: Set[str]) -> None:
        """Check that images without a row are not masks, or further images, of most of the images with a row."""
        without_row = [file.path for file in files.images if file.path not in done]
        named = [image.path for _, _, image in split.rows() if image is not None] if without_row else []
        partners = masks.partners(named, without_row)
        if self.options.kind is None and partners and 2 * len(partners) >= len(named):
            image, unpaired = next(iter(partners.items()))
            raise SourceError(
                f"{files.where} has images without a row in {split.table.file.path}, such as {unpaired!r}, with the "
                f"names of images that have one, such as {image!r}: name masks as in masks/1.png next to images/1.png, "
                "or 1_mask.png; or pass --from table (kind='table') to pack without them"
            )

    def _state(self, collector: Collector, files: Files, split: SplitRows) -> tuple[_Columns, Sequence[Any]]:
        """State what the table and its columns become; return the columns, and the label of each row of the split."""
        table, plan = split.table, self._plan or {}
        collector.account.attach("table", 1 + len(table.further))
        collector.account.notes += [*table.notes, *split.notes]
        columns = _labelled(collector, files, plan, table, self.options)
        if sum(rows.table is table for rows in plan.values()) > 1:
            columns.names.splits.clear()  # its rows are packed by split
        columns.account(collector)
        collector.add_to_stamp([*map(files.read, (table.file, *table.further)), repr(self.options).encode()])
        if missing := [name for name in columns.choice.hot if name not in table.rows.columns]:
            collector.account.notes.append(
                f"{table.file.path} has no column for {counted(len(missing), 'class', 'classes')} of other splits "
                f"({quoted(missing)}): no image of it has them"
            )
        values = iter(columns.names.values_of(columns.roles))
        labels = [NONE if COUNT in row else next(values, NONE) for _, row in table.rows.rows()]
        return columns, [label for label, is_member in zip(labels, split.is_member, strict=True) if is_member]

    def _add_row(
        self,
        collector: Collector,
        columns: _Columns,
        row: Row,
        image: File,
        further: Mapping[str, File],
        label: Any,
        done: set[str],
    ) -> None:
        """Add the image of a row with the fields of the row, or skip both."""
        _claim(collector, done, image)
        try:
            record, named = columns.content(row)
        except SourceError as error:
            for part in further.values():
                _claim(collector, done, part)
            self.skip(collector, image, str(error), further)
            return
        facts, parts = record.facts, dict(named)
        texts = {name: text.decode("utf-8", "surrogateescape") for name, text in record.fields.items()}
        for file in named.values():
            _claim(collector, done, file)
        for field, file in further.items():
            if parts.get(field) == file:
                continue
            _claim(collector, done, file)
            if field in texts or field in parts or field == "cls" or (field == "json" and facts):
                self.skip(collector, file, "is a field that the table has too")
            else:
                parts[field] = file
        content = {"facts": facts, "texts": texts} if facts or texts else None
        extra = sum(max(0, field_bytes(len(text)) - len(text)) for text in record.fields.values())
        self.add_image(collector, image, label, parts=parts, facts=packed(content) if content else b"", extra=extra)

    def files_read(self, files: Files) -> Set[str]:
        assert self._plan is not None, "it is recognised by its tables"
        tables = (split.table for split in self._plan.values())
        return {file.path for table in tables for file in (table.file, *table.further)} | super().files_read(files)

    def record(self, image: bytes, parts: Mapping[str, bytes], facts: Mapping[str, Any]) -> Record:
        """Return an image with the fields and entries of its row."""
        record = super().record(image, parts, facts.get("facts", {}))
        texts = {name: text.encode("utf-8", "surrogateescape") for name, text in facts.get("texts", {}).items()}
        return record._replace(fields={**record.fields, **texts})

    def _no_table(self, files: Files) -> Exception:
        where = files.where
        reason = "no table (.csv, .tsv, .jsonl, .json, .parquet) in it names the images"
        if IMAGE in self.options.columns:
            reason = f"no table in it has a column {self.options.columns[IMAGE]!r}"
        given, no_columns, omit = "--encoding (encoding=) is for text files", "", "it"
        if self.options.columns:
            given, no_columns = f"columns={dict(self.options.columns)!r}", ", which has no columns"
            omit = "--column and --label (columns=)"
        if self.options.columns or self.options.encoding:
            annotated = (name for name in ("coco", "yolo", "voc") if imported(LAYOUTS[name]).matches(files))
            kind = next(annotated, "folder")
            return OptionError(f"{given}, but {where} is read as {kind}{no_columns}, because {reason}: omit {omit}")
        return SourceError(f"{where} is not in the layout {self.kind}: {reason}")


def _split_without_row(file: File, plan: Mapping[str, SplitRows]) -> str | None:
    """Return the split whose name or table agrees with the folder of an image; None if there is none."""
    folder, split = split_folder(file.path), split_of(file.path)
    if not folder or folder in plan:
        return folder or None
    return next((name for name, rows in plan.items() if split_of_table(rows.table.file.path) == split), None)


def _claim(collector: Collector, done: set[str], file: File) -> None:
    """Take note of a file that is used or skipped. It may be a part of several samples."""
    collector.account.given += file.path in done
    done.add(file.path)


def _labelled(
    collector: Collector, files: Files, plan: Mapping[str, SplitRows], split_table: Named, options: SourceOptions
) -> _Columns:
    """Return the columns of the table of a split.

    A column is the label in all tables if it is in the largest one that has labels: in a small one, classes may look
    like ids.
    """
    given = options.columns.get(LABEL)
    tables = sorted((split.table for split in plan.values()), key=lambda table: -len(table.images))
    if given:
        tables = [table for table in tables if given in table.rows.columns] or tables
    hot = None if given is not None or len(plan) < 2 else _one_hot([split.table for split in plan.values()])
    every = (_Columns(files, table, options, hot=hot) for table in tables)
    first = next((columns for columns in every if columns.choice.label is not None), None)
    if first is None or first.table is split_table:
        return first or _Columns(files, split_table, options, hot=hot)
    label, names = first.choice.label, first.choice.names
    if {label, names} - {None} <= {*split_table.rows.columns}:
        columns = _Columns(files, split_table, options, (label, names))
        if columns.choice.label == label:
            return columns
    if label not in split_table.rows.columns and names in split_table.rows.columns:
        label = names
    if label not in split_table.rows.columns:
        collector.account.notes.append(f"without labels: {split_table.file.path} has no column {label!r}")
        label = ""
    options = replace(options, columns={**options.columns, LABEL: str(label)})
    return _Columns(files, split_table, options, (label, None))


def _one_hot(tables: Sequence[Named]) -> tuple[str, ...]:
    """Return the columns with 0 or 1 for each class, of the tables of all splits."""
    flags = [
        Flags.of_rows(
            [name for name in table.rows.columns if name != table.image],
            (pair for pair in table.rows.rows() if COUNT not in pair[1]),
        )
        for table in tables
    ]
    return one_hot(flags, is_stated=all(states_classes(table.rows) for table in tables))
