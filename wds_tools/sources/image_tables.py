"""Which table of a tree names its images, and which rows belong to which split."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.format.label_lists import LABELS
from wds_tools.sources import layouts, masks
from wds_tools.sources.about_images import (
    ENOUGH,
    about,
    are_lists_of_images,
    candidates,
    is_about_all,
    share_of_names,
    table_in,
)
from wds_tools.sources.base import SourceOptions
from wds_tools.sources.columns import IMAGE, LABEL, usual_columns
from wds_tools.sources.file_list import Files, RowNames, are_most
from wds_tools.sources.inputs import File
from wds_tools.sources.label_choice import ambiguous, some_of
from wds_tools.sources.layouts import (
    are_parts,
    file_stem,
    first_folders,
    names_a_file,
    split_folder,
    split_in,
    split_of,
    split_of_table,
)
from wds_tools.sources.refused import NAMED, OF_SPLIT, About
from wds_tools.sources.text_table import COUNT, Row, TextTable
from wds_tools.sources.tree import Layout
from wds_tools.wording import counted

CAPTIONS = "captions"
"""The entry of ``json`` with the captions of an image, as from COCO."""

_CAPTION = re.compile("caption|text|comment|sentence|description")  # columns that may differ in the rows of an image
_PATHS = re.compile(r"[^\s\"'<>()\[\]{},;|?#=&]+")  # in a text, such as <img>1.jpg</img> or ['1.jpg']
_UPLOADED = re.compile("^[0-9a-f]{4,}-")  # what Label Studio writes before the name of a file
_MAX_CLASS_LIST_BYTES = 1 << 20
_ROW_NUMBER = re.compile(r"(?<![a-z])(id|number|num|no|index|idx)(?![a-z])|id$")  # columns that number these rows


@dataclass(slots=True)
class Named:
    """A table that names images.

    Attributes:
        file: Its file; of a table in parts, the first one.
        rows: Its rows.
        image: The column with the names.
        images: Image of each row; None for a row that names none.
        further: Further files of a table in parts.
        notes: What a user should know about its rows.
    """

    file: File
    rows: TextTable
    image: str
    images: list[File | None]
    further: tuple[File, ...] = ()
    notes: tuple[str, ...] = ()


class SplitRows(NamedTuple):
    """The rows of a split.

    Attributes:
        table: The table that they are in.
        is_member: Whether each row of the table is in the split.
        notes: What a user should know about the split.
        no_splits: Why there is only this one, if its table is of a split.
    """

    table: Named
    is_member: list[bool]
    notes: tuple[str, ...] = ()
    no_splits: str = ""

    def rows(self) -> Iterator[tuple[tuple[int, int], Row, File | None]]:
        """Yield the location, the row and the image of each row of the split."""
        rows = self.table.rows.rows()
        for (location, row), image, is_member in zip(rows, self.table.images, self.is_member, strict=True):
            if is_member:
                yield location, row, image


def tables_of(files: Files, options: SourceOptions) -> list[Named]:
    """Return the tables that name images. One of few images is left out if others name all of them."""
    others = [file for file in files.others if not (layouts.is_shard_table(file.path) and files.have_json)]
    texts = candidates(others, files.images, layouts.TABLES)
    lines = candidates(files.others, files.images, (".txt",))
    texts += [file for file in lines if table_in(file.path, files.read(file), options.encoding) is not None]
    if not texts:
        return []
    images = without_masks(files)[0]
    named = (_named(files, options, file, images, RowNames(images)) for file in texts)
    tables = _joined([table for table in named if table is not None])
    claimed: set[str] = set()
    kept = []
    for table in sorted(tables, key=lambda table: -len(list(filter(None, table.images)))):
        table_images = list(filter(None, table.images))
        more = {image.path for image in table_images} - claimed
        if len(tables) == 1 or split_of_table(table.file.path) or are_most(table_images, images) or len(more) > 1:
            claimed |= more  # a table of one image describes it
            kept.append(table)
    return [table for table in tables if table in kept]


def _joined(tables: Sequence[Named]) -> list[Named]:
    """Return the tables, the parts of one table joined: each part names only images in the folder of the part."""
    by_form: dict[Any, list[Named]] = {}
    for table in tables:
        folder = posixpath.dirname(table.file.path)
        is_part = all(image is not None and posixpath.dirname(image.path) == folder for image in table.images)
        form = (split_of_table(table.file.path), table.image, *table.rows.columns) if is_part else table.file.path
        by_form.setdefault(form, []).append(table)
    whole = []
    for first, *further in by_form.values():
        folders = {posixpath.dirname(part.file.path) for part in (first, *further)}
        if not further or len(folders) <= len(further) or not all(part.rows.continues(first.rows) for part in further):
            whole += [first, *further]
            continue
        rows = first.rows.followed_by(part.rows for part in further)
        images = [image for part in (first, *further) for image in part.images]
        whole.append(Named(first.file, rows, first.image, images, tuple(part.file for part in further)))
    return whole


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
    other_names: dict[str, list[str]] = {}
    for row in rows:
        row_image = names.find(row.get(image), table=table)
        waiting = [(column, value) for column, value in row.items() if column != image and row_image is not None]
        while waiting:
            column, value = waiting.pop()
            if isinstance(value, (dict, list)):
                waiting += [(column, entry) for entry in (value.values() if isinstance(value, dict) else value)]
            elif row_image is not None and not {*_stems_in(value, names)} <= {file_stem(row_image.path)}:
                other_names.setdefault(column, []).append(str(value))
    if other_names:
        column, values = next(iter(other_names.items()))
        ids = some_of([row.get(image) for row in rows])
        raise SourceError(
            f"{table} has names of images in {image!r} ({ids}), and names of other images in {column!r} of the same "
            f"rows ({some_of(values)}): write the paths of the images into a column 'path', or pass --column "
            f"image={image} (columns={{'image': {image!r}}}) if these are the names"
        )


def _stems_in(value: Any, names: RowNames) -> Iterator[str]:
    """Yield the names, without extension, of the images at the end of a path or URL, or of paths in a text."""
    for path in (value, *_PATHS.findall(value)) if isinstance(value, str) else ():
        if names_a_file(path):
            stem = file_stem(path.replace("\\", "/"))
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
    rows = [row for _, row in table.rows.rows()]
    of_image: dict[str, list[int]] = {}
    for index, (row, image) in enumerate(zip(rows, table.images, strict=True)):
        if COUNT in row:
            continue
        of_image.setdefault(f"/{row.get(table.image)}" if image is None else image.path, []).append(index)
    several = [[rows[index] for index in indexes] for indexes in of_image.values() if len(indexes) > 1]
    further = [name for name in table.rows.columns if name != table.image]
    varied = [name for name in further if any(_differ(name, image_rows) for image_rows in several)]
    numbered = [name for name in varied if _ROW_NUMBER.search(name.lower()) or name in table.rows.unnamed]
    texts = [name for name in varied if _CAPTION.search(name.lower()) and name not in numbered]
    has_more = {*varied} - {*texts, *numbered} or usual_columns(LABEL, varied)
    if not texts or has_more:
        return table
    is_only = len(texts) == 1 and CAPTIONS not in table.rows.columns
    names = {name: CAPTIONS if is_only and name in texts else name for name in varied}
    joined = []
    for indexes in of_image.values():
        row = {name: value for name, value in rows[indexes[0]].items() if name not in names}
        lists = {new: [rows[index].get(name) for index in indexes] for name, new in names.items()}
        joined.append(row | {name: [cell for cell in cells if cell not in (None, "")] for name, cells in lists.items()})
    images = counted(len(several), "image")
    note = f"{table.file.path!r} has several rows for {images}: {quoted(names.values())} are lists in json"
    columns = [names.get(name, name) for name in table.rows.columns]
    images_of_rows = [table.images[indexes[0]] for indexes in of_image.values()]
    for row, image in zip(rows, table.images, strict=True):  # they are skipped; the other rows of their image are not
        if COUNT in row:
            joined.append(row)
            path = "" if image is None else image.path
            images_of_rows.append(None if path in of_image else image)
            of_image.setdefault(path, [])
    return replace(table, rows=table.rows.with_rows(columns, joined), images=images_of_rows, notes=(note,))


def _differ(column: str, rows: Sequence[Row]) -> bool:
    """Return whether a column has different values in some rows."""
    return any(row.get(column) != rows[0].get(column) for row in rows)


def without_masks(files: Files) -> tuple[Sequence[File], dict[str, dict[str, File]]]:
    """Return the images that are not masks of others, and path of an image -> field -> mask."""
    paths = files.images.paths
    parts = files.named(masks.pairs(paths).pairs if masks.may_have_masks(paths, files.folders) else [])
    taken = {mask.path for fields in parts.values() for mask in fields.values()}
    further = files.further_fields
    for path, (image, field) in further.items():
        if path not in taken and image not in taken:
            parts.setdefault(image, {}).setdefault(field, files.by_path[path])
    if not taken and not further:
        return files.images, parts
    return [file for file in files.images if file.path not in taken and file.path not in further], parts


def _image_column(
    table: str, columns: Sequence[str], head: Sequence[Row], names: RowNames, options: SourceOptions
) -> str | None:
    """Return the column that names images; None if there is none."""
    if IMAGE in options.columns:
        return options.columns[IMAGE] if options.columns[IMAGE] in columns else None
    if posixpath.splitext(posixpath.basename(table))[0] == "metadata" and "file_name" in columns:
        return "file_name"
    image_columns = [name for name in columns if share_of_names(name, head, names) >= ENOUGH]
    paths = [name for name in image_columns if any(names_a_file(row.get(name)) for row in head)]
    if not paths:  # class numbers may be names of other images
        labels = usual_columns(LABEL, columns)
        image_columns = [
            name
            for name in image_columns
            if name not in labels or len({str(row.get(name)) for row in head}) == len(head)
        ]
        image_columns = [name for name in image_columns if name not in labels] or image_columns
    image_columns = paths or image_columns
    image_columns = [name for name in usual_columns(IMAGE, image_columns) if name in image_columns] or image_columns
    values = {name: [row.get(name) for row in head] for name in columns}
    if image_columns and not paths:  # ids of rows may be names of other images
        usual = [name for name in usual_columns(IMAGE, columns) if any(map(names_a_file, values[name]))]
        if usual:
            raise ambiguous(IMAGE, table, {name: some_of(values[name]) for name in (*usual, *image_columns)})
    if len(image_columns) < 2:
        return next(iter(image_columns), None)
    values = {name: values[name] for name in image_columns}
    same = {tuple(names.find(value, table=table) for value in values[name]) for name in image_columns}
    if len(same) > 1:
        raise ambiguous(IMAGE, table, {name: some_of(column) for name, column in values.items()})
    return image_columns[0]


def check_folders(files: Files, tables: Sequence[Named]) -> None:
    """Check that the folders of images cannot be classes."""
    named = [image.path for table in tables for image in table.images if image is not None]
    if (folders := first_folders(named)) and not are_parts(folders):
        table = max(tables, key=lambda table: len(table.images))
        raise SourceError(
            f"{files.where} has folders of images ({quoted(folders[:3])}), and {table.file.path}, which names the "
            f"images: {_packing_of_folders(files, named)} --from folder (kind='folder') if the folders are the "
            "classes, or --from table (kind='table') to pack the rows"
        )


def _packing_of_folders(files: Files, images: Sequence[str]) -> str:
    """Return how to pack the class folders of images: what is before ``--from folder``."""
    by_split: dict[str, list[str]] = {}
    for image in images:
        by_split.setdefault(split_folder(image), []).append(image)
    bases = {
        split: posixpath.commonpath([posixpath.dirname(posixpath.dirname(image)) for image in split_images])
        for split, split_images in by_split.items()
        if first_folders(split_images)
    }
    if all(posixpath.basename(base) == split for split, base in bases.items()) and len(bases) == len(by_split):
        return "pass --split folders" if any(bases) else "pass"
    base = next(iter(bases.values()), "")
    if not base:
        return "pass"
    return f"unpack it, and pack {base}" if files.in_archive else f"pack {files.where}/{base}"


def about_images(files: Files, layout: Layout) -> dict[str, About]:
    """Return what files that a layout does not read have to do with the images, by path."""
    used = layout.files_read(files) if files.others else set()
    unread = [file for file in files.others if file.path not in used and not file.reason]
    unread = [file for file in unread if not (layouts.is_shard_table(file.path) and files.have_json)]
    every = without_masks(files)[0] if unread else ()
    may_name_images = candidates((file for file in unread if not is_about_all(file.path)), ())
    names = RowNames(every if may_name_images else ())
    have_files = any(file.path.endswith((".cls", f".{LABELS}")) for file in files.others)
    by_split: dict[str, list[str]] = {}
    for folder in sorted({posixpath.dirname(file.path) for file in every}):
        by_split.setdefault(split_folder(f"{folder}/"), []).append(folder)
    about_files: dict[str, About] = {}
    classes = set[str]()
    for split, folders in by_split.items():
        those = {*folders}
        is_all = len(by_split) == 1
        images = every if is_all else [file for file in every if posixpath.dirname(file.path) in those]
        elsewhere = by_split.keys() - {"", split}
        split_files = [file for file in unread if split_folder(file.path) not in elsewhere]
        class_folders = first_folders(f"{folder}/1.jpg" for folder in folders)
        are_classes = class_folders or (have_files and layout.kind == "folder")
        are_labelled = layout.labels == "rows" or (layout.labels == "folders" and bool(are_classes))
        classes |= {*class_folders}
        of_split = about(split_files, images, files.read, are_labelled=are_labelled, names=names)
        first = next((path for path, relation in of_split.items() if relation.is_certain and not are_labelled), None)
        if first is not None:
            above = posixpath.commonpath(folders)
            can_be_alone = above and not files.in_archive and layout.kind == "folder"
            alone = (
                f"pack {files.where}/{above}" if can_be_alone else f"pass --from {layout.kind} (kind={layout.kind!r})"
            )
            others = "" if is_all else ", and each other split on its own"
            raise SourceError(f"{first} {of_split[first].reason}; or {alone} to pack the images without it{others}")
        about_files = of_split | about_files
    names_of_splits = {*map(split_in, by_split)} - {""}
    small = {file.path: file for file in unread if file.size <= _MAX_CLASS_LIST_BYTES}
    return {
        path: relation
        for path, relation in about_files.items()
        if not (relation.reason == OF_SPLIT and split_in(file_stem(path)) in names_of_splits)
        and not (relation.reason == NAMED and path in small and _lists_classes(files.read(small[path]), classes))
    }


def _lists_classes(data: bytes, classes: Collection[str]) -> bool:
    r"""Return whether a text has only names of classes, one on each line, with or without numbers.

    >>> _lists_classes(b"apple pie\n2 Baklava\n", ["apple_pie", "baklava", "beignets"])
    True
    >>> _lists_classes(b"cat\nwolf\n", ["cat", "dog"])
    False
    """
    lines, names = filter(None, data.decode("utf-8", "replace").splitlines()), {*map(_letters, classes)}
    return bool(names) and all(
        not names.isdisjoint((_letters(line), _letters(line.partition(" ")[2]))) for line in lines
    )


def _letters(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()


def planned(files: Files, tables: Sequence[Named], options: SourceOptions) -> dict[str, SplitRows]:
    """Return the rows of each split by its name; of a tree without splits, one with an empty name."""
    by_split = _by_split(tables)
    if by_split is None:  # the user may have named a label that only one of them has
        tables = [table for table in tables if options.columns.get(LABEL) in table.rows.columns] or tables
        by_split = _by_split(tables)
    if by_split is None:
        shown = ", ".join(f"{table.file.path!r} ({', '.join(table.rows.columns)})" for table in tables)
        raise SourceError(
            f"{files.where} has several tables that name its images, {shown}: {_packing_of_table(files, tables)}pass "
            "--label with a column that only one has; or keep one, or one for each split, with names such as train.csv "
            "and val.csv; or pass --from folder (kind='folder') to pack without them"
        )
    folders: dict[str, dict[str, None]] = {}
    for file in files.images:
        folders.setdefault(split_of(file.path), {})[split_folder(file.path)] = None
    for table in tables:
        _check_once(table)
    if list(by_split) == [""]:
        return _by_folder(tables[0])
    if len(tables) == 1:
        other_splits = sorted(
            {split_folder(file.path) for file in files.images} - {"", *folders.get(next(iter(by_split)), ())}
        )
        classes = first_folders(file.path for file in files.images if split_folder(file.path) in other_splits)
        if classes and options.kind is None and not options.columns:
            raise SourceError(
                f"{files.where} has a table of {next(iter(by_split))!r} only, {tables[0].file.path}, and class folders "
                f"({quoted(classes)}) in {quoted(other_splits)}: pack one of them at a time, or pass --from table "
                "(kind='table') to pack only the rows"
            )
        rows = SplitRows(tables[0], [True] * len(tables[0].images))
        if not other_splits:
            return {"": rows}
        note = f"there is a table of {next(iter(by_split))!r} only, and none of {quoted(other_splits)}"
        reason = f"{note}: add a table that names the images of each, or pack without --split folders"
        return {"": rows._replace(notes=(note,), no_splits=reason)}
    plan = {}
    for split, table in sorted(by_split.items()):
        split_folders = [folder for folder in folders.get(split, {}) if folder]
        plan[split_folders[0] if len(split_folders) == 1 else split] = SplitRows(table, [True] * len(table.images))
    return plan


def _packing_of_table(files: Files, tables: Sequence[Named]) -> str:
    """Return how to pack one of several tables with its images, the one with the most; empty if it cannot be."""
    for table in sorted(tables, key=lambda table: -len(table.images)):
        rows = zip(table.rows.rows(), table.images, strict=True)
        paths = (
            (posixpath.join(posixpath.dirname(table.file.path), str(row[table.image])), image)
            for (_, row), image in rows
        )
        if not table.further and not files.in_archive and all(image and image.path == path for path, image in paths):
            return f"pack one of them, such as {files.where}/{table.file.path}; or "
    return ""


def _by_split(tables: Sequence[Named]) -> dict[str, Named] | None:
    """Return the table of each split, or a single table of no split; None if there are more."""
    by_split = {split_of_table(table.file.path): table for table in tables}
    return None if len(by_split) < len(tables) or ("" in by_split and len(by_split) > 1) else by_split


def _by_folder(table: Named) -> dict[str, SplitRows]:
    """Return the rows of a table by the split that is a folder of their image, if there are several splits.

    Rows without an image are in the first split.
    """
    folders = [None if image is None else split_folder(image.path) for image in table.images]
    names = sorted({name for name in folders if name is not None})
    if len(names) < 2 or "" in names:
        return {"": SplitRows(table, [True] * len(folders))}
    splits = [names[0] if folder is None else folder for folder in folders]
    return {name: SplitRows(table, [split == name for split in splits]) for name in names}


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
