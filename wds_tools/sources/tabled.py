"""Trees of images with a table: which table names the images, their splits, and what rows and columns become."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import compress, islice, repeat
from typing import Any

from wds_tools.errors import OptionError, SourceError
from wds_tools.format.label import NONE, quoted
from wds_tools.format.objects import packed
from wds_tools.sources import layouts
from wds_tools.sources.about_images import (
    ENOUGH,
    are_lists_of_images,
    candidates,
    share_of_names,
    table_in,
)
from wds_tools.sources.base import Collector, Record, SourceOptions
from wds_tools.sources.columns import IMAGE, LABEL, usual_columns
from wds_tools.sources.file_list import Files, RowNames, are_most
from wds_tools.sources.inputs import File, field_bytes
from wds_tools.sources.label_choice import Flags, ambiguous, one_hot, some_of
from wds_tools.sources.layouts import (
    are_parts,
    first_folders,
    is_image_name,
    names_a_file,
    split_folder,
    split_of,
    split_of_table,
)
from wds_tools.sources.table import Columns, Named
from wds_tools.sources.text_table import COUNT, Row, states_classes
from wds_tools.sources.tree import LAYOUTS, Layout, imported
from wds_tools.wording import counted

CAPTIONS = "captions"
"""The entry of ``json`` with the captions of an image, as from COCO."""

_CAPTION = re.compile("caption|text|comment|sentence|description")  # columns that may differ in the rows of an image
_PATHS = re.compile(r"[^\s\"'<>()\[\]{},;|?#=&]+")  # in a text, such as <img>1.jpg</img> or ['1.jpg']
_UPLOADED = re.compile("^[0-9a-f]{4,}-")  # what Label Studio writes before the name of a file
_FOR_EACH = "add a table that names the images of each, or pack without --split folders"
_ROW_NUMBER = re.compile(r"(?<![a-z])(id|number|num|no|index|idx)(?![a-z])|id$")  # columns that number these rows


def tables_of(files: Files, options: SourceOptions) -> list[Named]:
    """Return the tables that name images. One of few images is left out if others name all of them."""
    others = [file for file in files.others if not (layouts.is_shard_table(file.path) and files.have_json)]
    texts = candidates(others, files.images, layouts.TABLES)
    lines = candidates(files.others, files.images, (".txt",))
    texts += [file for file in lines if table_in(file.path, files.read(file), options.encoding) is not None]
    if not texts:
        return []
    images = files.without_masks[0]
    named = (_named(files, options, file, images, RowNames(images)) for file in texts)
    tables = [table for table in named if table is not None]
    claimed: set[str] = set()
    kept = []
    for table in sorted(tables, key=lambda table: -len(list(filter(None, table.images)))):
        table_images = list(filter(None, table.images))
        more = {image.path for image in table_images} - claimed
        if len(tables) == 1 or split_of_table(table.file.path) or are_most(table_images, images) or len(more) > 1:
            claimed |= more  # a table of one image describes it
            kept.append(table)
    return [table for table in tables if table in kept]


def _named(files: Files, options: SourceOptions, file: File, images: Sequence[File], names: RowNames) -> Named | None:
    """Return a table with the image of each row; None if its rows do not name images."""
    data = files.read(file)
    try:
        table_and_head = table_in(file.path, data, options.encoding)
    except SourceError as error:
        raise SourceError(f"{error}; or pass --from folder (kind='folder') to pack the images without it") from error
    if table_and_head is None:
        return None
    rows, head = table_and_head
    if any(names_a_file(column) and names.has(column) for column in rows.columns):
        if rows.is_json:
            return None  # an object with a value for each image, see `about_images`
        raise _no_header(file.path, rows.columns)
    is_json = file.path.lower().endswith(".json")
    if is_json and IMAGE not in options.columns and are_lists_of_images(data, rows.columns, head, names):
        return None  # see `about_images`
    image = _image_column(file.path, rows.columns, head, names, options)
    values = [row.get(image) for _, row in rows.rows()] if image is not None else []
    are_ids = IMAGE not in options.columns and not any(map(names_a_file, values))
    if image is None or (are_ids and not split_of_table(file.path) and not are_most(names.all_of(values), images)):
        return None  # such as a table of classes, whose numbers are also names of images
    if are_ids:
        _check_ids(file.path, image, head, names)
    if names.has(image) and not rows.is_json:
        raise _no_header(file.path, rows.columns)
    return _with_captions(Named(file, rows, image, [names.find(value, table=file.path) for value in values]))


def _check_ids(table: str, image: str, rows: Sequence[Row], names: RowNames) -> None:
    """Check that the id and the other values of a row, even inside lists and objects, name the same image."""
    for row in rows:
        row_image = names.find(row.get(image), table=table)
        waiting = [(column, value) for column, value in row.items() if column != image and row_image is not None]
        while waiting:
            column, value = waiting.pop()
            if isinstance(value, (dict, list)):
                waiting += [(column, entry) for entry in (value.values() if isinstance(value, dict) else value)]
            elif row_image is not None and not {*_stems_in(value, names)} <= {layouts.file_stem(row_image.path)}:
                raise SourceError(
                    f"{table} has names of images in {image!r} ({row[image]!r}), and names of other images in "
                    f"{column!r} of the same rows ({value!r}): write the paths of the images into a column 'path', or "
                    f"pass --column image={image} (columns={{'image': {image!r}}}) if these are the names"
                )


def _stems_in(value: Any, names: RowNames) -> Iterator[str]:
    """Yield the names, without extension, of the images at the end of a path or URL, or of paths in a text."""
    for path in (value, *_PATHS.findall(value)) if isinstance(value, str) else ():
        if names_a_file(path):
            stem = layouts.file_stem(path.replace("\\", "/"))
            yield from islice(filter(names.has, (stem, _UPLOADED.sub("", stem))), 1)


def _no_header(table: str, columns: Sequence[str]) -> SourceError:
    return SourceError(
        f"{table} begins with a row of values, {', '.join(columns[:3])}: its first line must have the names of the "
        "columns, such as path,label; or pass --from folder (kind='folder') to pack without it"
    )


def _with_captions(table: Named) -> Named:
    """Return a table with one row for each image, if the rows of an image differ only in captions and row numbers.

    These columns become lists; a single column of captions becomes the list ``captions``.
    """
    paths = [image.path for image in table.images if image is not None]
    if len({*paths}) == len(paths):
        return table
    rows, columns = [row for _, row in table.rows.rows()], table.rows.columns
    of_image: dict[Any, list[int]] = {}
    for index, (row, image) in enumerate(zip(rows, table.images, strict=True)):
        key = index if COUNT in row else f"/{row.get(table.image)}" if image is None else image.path
        of_image.setdefault(key, []).append(index)  # a row with COUNT is skipped; the other rows of its image are not
    several = [[rows[index] for index in indexes] for indexes in of_image.values() if len(indexes) > 1]
    varied = [
        name
        for name in columns
        if name != table.image and any(row.get(name) != same[0].get(name) for same in several for row in same)
    ]
    numbered = [name for name in varied if _ROW_NUMBER.search(name.lower()) or name in table.rows.unnamed]
    texts = [name for name in varied if _CAPTION.search(name.lower()) and name not in numbered]
    if not texts or {*varied} - {*texts, *numbered} or usual_columns(LABEL, varied):
        return table
    is_only = len(texts) == 1 and CAPTIONS not in columns
    names = {name: CAPTIONS if is_only and name in texts else name for name in varied}
    joined, images = [], []
    for key, indexes in of_image.items():
        row, image = rows[indexes[0]], table.images[indexes[0]]
        if key in indexes:
            joined.append(row)
            images.append(None if image is not None and image.path in of_image else image)
            continue
        lists = {new: [rows[index].get(name) for index in indexes] for name, new in names.items()}
        lists = {name: [cell for cell in cells if cell not in (None, "")] for name, cells in lists.items()}
        joined.append({name: value for name, value in row.items() if name not in names} | lists)
        images.append(image)
    count = counted(len(several), "image")
    note = f"{table.file.path!r} has several rows for {count}: {quoted(names.values())} are lists in json"
    rows_of_images = table.rows.with_rows([names.get(name, name) for name in columns], joined)
    return replace(table, rows=rows_of_images, images=images, notes=(note,))


def _image_column(
    table: str, columns: Sequence[str], head: Sequence[Row], names: RowNames, options: SourceOptions
) -> str | None:
    """Return the column that names images; None if there is none."""
    if IMAGE in options.columns:
        return options.columns[IMAGE] if options.columns[IMAGE] in columns else None
    if layouts.file_stem(table) == "metadata" and "file_name" in columns:
        return "file_name"
    values = {name: [row.get(name) for row in head] for name in columns}
    fitting = [name for name in columns if share_of_names(name, head, names) >= ENOUGH]
    paths = [name for name in fitting if any(map(names_a_file, values[name]))]
    usual, labels = usual_columns(IMAGE, columns), usual_columns(LABEL, columns)
    if not paths:  # class numbers may be names of other images
        ids = [name for name in fitting if name not in labels]
        fitting = ids or [name for name in fitting if len({*map(str, values[name])}) == len(head)]
        others = [name for name in usual if any(map(names_a_file, values[name]))]
        if fitting and others:  # ids of rows may be names of other images
            raise ambiguous(IMAGE, table, {name: some_of(values[name]) for name in (*others, *fitting)})
    fitting = paths or fitting
    fitting = [name for name in usual if name in fitting] or fitting
    if len(fitting) > 1:
        same = {tuple(names.find(value, table=table) for value in values[name]) for name in fitting}
        if len(same) > 1:
            raise ambiguous(IMAGE, table, {name: some_of(values[name]) for name in fitting})
    return next(iter(fitting), None)


def _check_folders(files: Files, tables: Sequence[Named]) -> None:
    """Check that the folders of images cannot be classes."""
    named = [image.path for table in tables for image in table.images if image is not None]
    if (folders := first_folders(named)) and not are_parts(folders):
        table = max(tables, key=lambda table: len(table.images))
        rows = "--from table (kind='table') to pack the rows"
        if _by_split(tables) is None:  # then it refuses them
            rows = f"pack one table, such as {files.where}/{table.file.path}, for its rows"
        raise SourceError(
            f"{files.where} has folders of images ({quoted(folders[:3])}), and {table.file.path}, which names the "
            f"images: {_packing_of_folders(files, named)} --from folder (kind='folder') if the folders are the "
            f"classes, or {rows}"
        )


def _packing_of_folders(files: Files, images: Sequence[str]) -> str:
    """Return how to pack the class folders of images: what is before ``--from folder``."""
    above: dict[str, set[str]] = {}
    for image in images:
        above.setdefault(split_folder(image), set()).add(posixpath.dirname(posixpath.dirname(image)))
    bases = {split: posixpath.commonpath(folders) for split, folders in above.items()}
    if all(posixpath.basename(base) == split for split, base in bases.items()):
        return "pass --split folders" if any(bases) else "pass"
    base = max(bases.values())
    return f"unpack it, and pack {base}" if files.in_archive else f"pack {files.where}/{base}"


def _planned(files: Files, tables: Sequence[Named], options: SourceOptions) -> dict[str, Named]:
    """Return the rows of each split by its name; of a tree without splits, one with an empty name."""
    by_split = _by_split(tables)
    if by_split is None:  # the user may have named a label that only one of them has
        tables = [table for table in tables if options.columns.get(LABEL) in table.rows.columns] or tables
        by_split = _by_split(tables)
    if by_split is None:
        shown = ", ".join(f"{table.file.path!r} ({', '.join(table.rows.columns)})" for table in tables)
        raise SourceError(
            f"{files.where} has several tables that name its images, {shown}: pack one of them by its path, if the "
            "paths in it begin at its folder; pass --label with a column that only one has; keep one, or one for each "
            "split, with names such as train.csv and val.csv; or pass --from folder (kind='folder') to omit them"
        )
    for table in tables:
        _check_once(table)
    if list(by_split) == [""]:
        return _by_folder(files, tables[0])
    folders: dict[str, dict[str, None]] = {}
    for file in files.images:
        folders.setdefault(split_of(file.path), {})[split_folder(file.path)] = None
    if len(tables) > 1:
        named = {split: [*filter(None, folders.get(split, ()))] for split in sorted(by_split)}
        return {names[0] if len(names) == 1 else split: by_split[split] for split, names in named.items()}
    [(split, table)] = by_split.items()
    others = sorted({name for other, names in folders.items() if other != split for name in names} - {""})
    classes = first_folders(file.path for file in files.images if split_folder(file.path) in others)
    if classes and options.kind is None and not options.columns:
        raise SourceError(
            f"{files.where} has a table of {split!r} only, {table.file.path}, and class folders ({quoted(classes)}) in "
            f"{quoted(others)}: pack one of them at a time, or pass --from table (kind='table') to pack only the rows"
        )
    if not others:
        names = [*folders.get(split, ())]
        return {names[0] if len(names) == len(folders) == 1 else "": table}
    note = f"there is a table of {split!r} only, and none of {quoted(others)}"
    return {"": replace(table, notes=(*table.notes, note), no_splits=f"{note}: {_FOR_EACH}")}


def _by_split(tables: Sequence[Named]) -> dict[str, Named] | None:
    """Return the table of each split, or a single table of no split; None if there are more."""
    by_split = {split_of_table(table.file.path): table for table in tables}
    return None if len(by_split) < len(tables) or ("" in by_split and len(by_split) > 1) else by_split


def _by_folder(files: Files, table: Named) -> dict[str, Named]:
    """Return the rows of a table by the split that is a folder of their image, if all images with a row are in splits.

    Rows without an image are in the first split.
    """
    folders = [None if image is None else split_folder(image.path) for image in table.images]
    names = sorted({name for name in folders if name is not None})
    if not names or "" in names:
        return {"": table}
    if len(names) == 1:
        others = sorted({split_folder(file.path) for file in files.images} - {*names, ""})
        note = f"{table.file.path} names images of {names[0]!r} only, and none of {quoted(others)}"
        return {"": replace(table, no_splits=f"{note}: {_FOR_EACH}")} if others else {names[0]: table}
    splits = [names[0] if folder is None else folder for folder in folders]
    return {name: replace(table, is_member=[split == name for split in splits]) for name in names}


def _check_once(table: Named) -> None:
    """Check that no image has several rows."""
    counts = Counter(image.path for image in table.images if image is not None)
    path, count = next(iter(counts.most_common(1)), ("", 0))
    if count > 1:
        raise SourceError(
            f"{table.file.path} has {count:,} rows for {path!r}, and a sample has one row: write the rows of an image "
            "as one, with a list for several labels or captions (as JSON), or as COCO if they are boxes; or pass "
            "--from folder (kind='folder') to pack the images without it"
        )


class Table(Layout):
    """Images, and a table next to them or above them whose rows name them: CSV, TSV, JSON Lines or JSON.

    A row names an image by its path, by the end of its path, or by these without extension. Columns are as in
    `TableSource`: the label, fields, and entries of the ``json`` field.
    """

    kind, labels = "table", "rows"
    _plan: dict[str, Named] | None = None

    @classmethod
    def recognised(cls, files: Files) -> Layout | None:
        """Return the layout if a table names most of the images.

        Raises:
            SourceError: A table names the images, and their folders are classes; or several tables do.
        """
        layout = cls()
        tables = tables_of(files, layout.options)
        named = [image for table in tables for image in table.images if image is not None]
        if not tables or not are_most(named, files.without_masks[0]):
            return None
        _check_folders(files, tables)
        layout._plan = _planned(files, tables, layout.options)
        return layout

    def splits(self, files: Files) -> Mapping[str, Sequence[File]]:
        """Return the files of each split; an image without a row by its folder. Files of no split are in the first."""
        if self._plan is None:
            tables = tables_of(files, self.options)
            if not tables:
                raise self._no_table(files)
            self._plan = _planned(files, tables, self.options)
        if list(self._plan) == [""]:
            self.no_splits = self._plan[""].no_splits or self.no_splits
            return {}
        claimed = {
            name: {
                split.file.path,
                *(image.path for _, _, image in split.of_split() if image is not None),
            }
            for name, split in self._plan.items()
        }
        with_rows = set().union(*claimed.values())
        for file in files.images:
            if file.path not in with_rows and (folder := split_folder(file.path)) in claimed:
                claimed[folder].add(file.path)
        return files.divided(claimed)

    def _collect(self, collector: Collector, files: Files, split: Named) -> None:
        files.check_fields()
        _, parts = files.without_masks
        columns, values = self._state(collector, files, split)
        done = {split.file.path}
        for (location, row, image), label in zip(split.of_split(), values, strict=True):
            if image is None:
                collector.account.given += 1
                name = str(row.get(split.image) or split.rows.position(location))
                reason = f"is named in {split.file.path!r}, but there is no such image"
                try:
                    split.rows.check_count(row)
                except SourceError as error:
                    reason = str(error)
                collector.skip(name, reason)
                continue
            split.rows.check_encoding(row, location)
            self._add_row(collector, columns, row, image, parts.get(image.path, {}), label, done)
        for file in files.files:
            if file.path not in done:
                is_image = is_image_name(file.path)
                reason = f"has no row in {split.file.path!r}" if is_image else files.why_not_packed(file.path)
                self.skip(collector, file, reason)

    def _state(self, collector: Collector, files: Files, split: Named) -> tuple[Columns, Sequence[Any]]:
        """State what the table and its columns become; return the columns, and the label of each row of the split."""
        collector.account.attach("table")
        collector.account.notes += split.notes
        columns = _labelled(collector, files, self._plan or {}, split, self.options)
        if split.is_member:
            columns.names.splits.clear()  # its rows are packed by split
        columns.account(collector)
        collector.add_to_stamp([files.read(split.file), repr(self.options).encode()])
        if missing := [name for name in columns.choice.hot if name not in split.rows.columns]:
            collector.account.notes.append(
                f"{split.file.path} has no column for {counted(len(missing), 'class', 'classes')} of other splits "
                f"({quoted(missing)}): no image of it has them"
            )
        values = iter(columns.names.values_of(columns.roles))
        labels = [NONE if COUNT in row else next(values, NONE) for _, row in split.rows.rows()]
        return columns, [*compress(labels, split.is_member or repeat(True))]

    def _add_row(
        self,
        collector: Collector,
        columns: Columns,
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
        return {table.file.path for table in self._plan.values()} | super().files_read(files)

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


def _claim(collector: Collector, done: set[str], file: File) -> None:
    """Take note of a file that is used or skipped. It may be a part of several samples."""
    collector.account.given += file.path in done
    done.add(file.path)


def _labelled(
    collector: Collector, files: Files, plan: Mapping[str, Named], split_table: Named, options: SourceOptions
) -> Columns:
    """Return the columns of the table of a split.

    A column is the label in all tables if it is in the largest one that has labels: in a small one, classes may look
    like ids.
    """
    given = options.columns.get(LABEL)
    tables = sorted({table.file: table for table in plan.values()}.values(), key=lambda table: -len(table.images))
    if given:
        tables = [table for table in tables if given in table.rows.columns] or tables
    hot = None if given is not None or len(plan) < 2 else _one_hot(tables)
    every = (Columns(files, table, options, hot=hot) for table in tables)
    first = next((columns for columns in every if columns.choice.label is not None), None)
    if first is None or first.table.file is split_table.file:
        return first or Columns(files, split_table, options, hot=hot)
    label, names = first.choice.label, first.choice.names
    if {label, names} - {None} <= {*split_table.rows.columns}:
        columns = Columns(files, split_table, options, (label, names))
        if columns.choice.label == label:
            return columns
    if label not in split_table.rows.columns and names in split_table.rows.columns:
        label = names
    if label not in split_table.rows.columns:
        collector.account.notes.append(f"without labels: {split_table.file.path} has no column {label!r}")
        label = ""
    options = replace(options, columns={**options.columns, LABEL: str(label)})
    return Columns(files, split_table, options, (label, None))


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
