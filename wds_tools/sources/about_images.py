"""Files next to images that may have their labels or other values: the one rule of all layouts and sources.

A file is about images if its rows, keys or lines name them, if it has as many values as there are images, if it has the
name of an image, or if its name says so, such as ``labels.xlsx``. It is packed, an error, or named in a note.

`wds_tools.sources.around` lists the files: in a tree of images, in the folder of other sources, and next to a source.
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from wds_tools.errors import OptionError, SourceError
from wds_tools.format.field_classes import CLASS_LISTS_NAME
from wds_tools.format.image_header import LFS_POINTER, LFS_START
from wds_tools.format.label import quoted
from wds_tools.sources import coco, yolo
from wds_tools.sources.class_file import is_class_list, likely_names, names_of
from wds_tools.sources.columns import IMAGE, json_or, usual_columns
from wds_tools.sources.file_list import RowNames, are_most, in_other_letters
from wds_tools.sources.file_names import ABOUT_ALL, LABELS_DOCUMENT, LABELS_FILE, LABELS_OR_SPLIT_FILE
from wds_tools.sources.inputs import File
from wds_tools.sources.label_choice import is_x, some_of
from wds_tools.sources.layouts import TABLES, file_stem, is_shard_table, names_a_file
from wds_tools.sources.refused import (
    ARCHIVE,
    DATA,
    LINES,
    NAMED,
    NEXT,
    NOT_AN_IMAGE,
    OF_CLASSES,
    OF_SPLIT,
    RECORDS,
    SAME_NAME,
    TABLE,
    About,
    is_template_name,
    why_not_packed,
)
from wds_tools.sources.text_table import Row, TextTable
from wds_tools.sources.values import Excluded
from wds_tools.wording import counted

LOOKED_AT = 200  # rows of a table, lines of a text
ENOUGH = 0.5  # share of values that name images

_MAX_FILES = 1000  # that are looked at, those in the upper folders first
_MAX_BYTES = 1 << 30
_OF_IMAGES = re.compile(
    r"(?<![a-z])(id|key(?![a-z]))|id$|image|img|file|name|photo|picture|path"
)  # columns of names or ids of images
MAX_TEXT = 1 << 20  # bytes of JSON, markup or a text that are looked at
HEAD = 1000  # bytes at the beginning of a text
_MARKUP = (".xml", ".html", ".htm")
_LOOKED_INTO = (*TABLES, *_MARKUP, *LINES, ".names", ".pbtxt", ".npy", ".npz", "")
_TEXTS = re.compile(  # of JSON, with numbers of images, and attributes and contents of markup
    r'"image_?id"\s*:\s*(\d{1,18})\b|"((?:[^"\\]|\\.)*)"|>([^<>]+)<', re.IGNORECASE
)
_DOCUMENTS = (".md", ".rst", ".pdf", ".py", ".ipynb", ".sh", ".m", ".c", ".cpp", ".h", ".tex", ".doc", ".docx", ".log")
_CORRECT = "correct the other names, in which upper and lower case, leading zeros and accents count"
_CHECKSUM = re.compile("[0-9a-f]{32,}")
_CAPTION_NUMBER = re.compile(r"#\d+$")  # Flickr8k

OF_NAMES = re.compile(
    r"(class|label|categor|synset|species|breed)[^/]*\.(txt|json|ya?ml|pbtxt|csv|tsv|lst|list)$|(^|\.)names(\.txt)?$"
)
_SOME = "has values for some of the images"
_OF_CLASSES = re.compile(r"(class|categor|species|breed|names)[^/]*$")
_OF_PIXELS = re.compile("pixel([ _-]?value)?")
_PLAIN = (NOT_AN_IMAGE, TABLE)  # why files that describe one image may not be packed
_AS_CSV = (
    "so it is not read: write it as CSV with a first line such as path,label; or move the images into class folders"
)
_NOT_READ = (
    "in a layout that is not read: write boxes and outlines as COCO, YOLO or VOC, and class labels as CSV with a first "
    "line such as path,label"
)


def names_most(path: str, data: bytes, names: RowNames, images: Sequence[File], *, enough: float = ENOUGH) -> str:
    """Return how a file names most of the images, if it is one that is read next to them; otherwise nothing.

    Numbers are names of images if their share, and that of these images, is ``enough``.
    """
    if path.lower().endswith(".json") and coco.is_coco(data):
        return _in_texts(data, names, images).partition(",")[0]
    table, rows = _rows_in(path, data)
    for column in table.columns if table is not None else ():
        values = [row[column] for row in rows if names.has(row.get(column))]
        named = names.all_of(values)
        is_of_images = _OF_IMAGES.search(column.lower()) and share_of_names(column, rows, names) >= enough
        is_of_images = is_of_images and len(named) >= enough * len(images)
        if (is_of_images or not all(map(_is_number, values))) and are_most(named, images):
            return f"names {counted(len(named), 'image')} in column {column!r} ({some_of(values)})"
    return ""


def names_any(path: str, data: bytes, names: RowNames) -> bool:
    """Return whether a table has the name of an image; numbers alone are not names."""
    _, rows = _rows_in(path, data)
    return any(names.has(value) and not _is_number(value) for row in rows for value in row.values())


def lists_most(path: str, data: bytes, names: RowNames, images: Sequence[File]) -> str:
    """Return how the lines of a text have values for most images, named by more than numbers; otherwise nothing."""
    reason = "" if b"\0" in data[:HEAD] else _in_lines(path, data, names, images)
    pairs = map(_pair_in, data[:HEAD].decode("utf-8", "replace").splitlines()) if reason else ()
    are_names = any(pair is not None and names.has(pair[0]) and not _is_number(pair[0]) for pair in pairs)
    return reason if are_names and not reason.startswith(_SOME) else ""


def about(
    unread: Sequence[File],
    images: Sequence[File],
    read: Callable[[File], bytes],
    *,
    are_labelled: bool,
    names: RowNames | None = None,
) -> dict[str, About]:
    """Return what files have to do with images, by their path; without files that have nothing to do with them.

    Args:
        unread: Files that are not packed.
        images: The images.
        read: Returns the content of a file.
        are_labelled: Whether labels are known. Then a file that is not read is about the images only if its name says
            so.
        names: The names of these images and of the images of other splits, which a file may name as well.
    """
    same = elsewhere((file.path for file in unread), (file.path for file in images))
    reason = f"has the name of an image in another folder{_format_of(same, unread, read)}"
    about_files = dict.fromkeys(same, About(reason, is_certain=2 * len(same) >= len(images)))
    undecided = [file for file in unread if file.path not in about_files and not is_about_all(file.path)]
    differing = in_other_letters((file.path for file in undecided), (file.path for file in images))
    for path, image in differing.items():
        reason = f"has the name of {image!r} except for case or accents, and is not read: rename one of them"
        about_files[path] = About(reason, is_certain=2 * len(differing) >= len(images))
    undecided = [file for file in undecided if file.path not in differing]
    texts = candidates(undecided, images)
    names = names or RowNames(images if texts else ())
    for file in texts:
        if are_labelled and why_not_packed(file.path) == OF_SPLIT and file.path.lower().endswith(".json"):
            continue
        if reason := _in_content(file.path.lower(), read(file), names, images):
            is_vague = reason.startswith((*OF_CLASSES, _SOME))
            about_files[file.path] = About(reason, is_certain=not is_vague)
    plain = {posixpath.splitext(file.path)[0]: file.path for file in undecided if why_not_packed(file.path) in _PLAIN}
    of_one = {plain[stem] for file in images if (stem := posixpath.splitext(file.path)[0]) in plain} if plain else ()
    for file in undecided:
        if file.path in of_one:
            about_files.setdefault(file.path, About(SAME_NAME))
        if file.path not in about_files and (reason := _by_name(file.path, are_labelled=are_labelled)):
            about_files[file.path] = About(reason, is_certain=reason in DATA and says_labels(file.path))
    return about_files


def _format_of(same: Sequence[str], files: Sequence[File], read: Callable[[File], bytes]) -> str:
    """Return the format of the first of some files, and what to do, as the end of a sentence."""
    first = next((file for file in files if file.path in same[:1] and not file.reason), None)
    data = read(first) if first is not None and first.size <= MAX_TEXT else b""
    name = " (KITTI)" if any("label_2" in path.split("/") for path in same[:1]) else ""
    kind = "voc" if b"<annotation" in data[:HEAD] else "yolo" if not name and yolo.are_boxes(data) else ""
    if kind:
        return f", in the format of {kind.upper()}: pass --from {kind} (kind={kind!r}) to pack it"
    return f"{name}, {_NOT_READ}; move captions next to the images"


def says_labels(path: str) -> bool:
    """Return whether a file is named like labels; a compressed table even if it is only named like a split.

    >>> says_labels("data/imagelabels.mat"), says_labels("labels/features.npy"), says_labels("train.csv.gz")
    (True, False, True)
    """
    name = posixpath.basename(path.lower())
    is_table = any(f"{ending}." in name for ending in TABLES)
    return (LABELS_OR_SPLIT_FILE if is_table else LABELS_FILE).match(name) is not None


def candidates(files: Iterable[File], images: Sequence[File], endings: tuple[str, ...] = _LOOKED_INTO) -> list[File]:
    """Return the files with these endings that can be about all images: not those that describe one image.

    The ending "" stands for names without an extension.
    """
    fitting = []
    for file in files:
        name = posixpath.basename(file.path.lower())
        has_ending = name.endswith(tuple(filter(None, endings))) or ("" in endings and "." not in name)
        if has_ending:
            fitting += [file] if not file.reason and 0 < file.size <= _MAX_BYTES else []
    stems, described = {file_stem(file.path) for file in fitting}, {file_stem(CLASS_LISTS_NAME)}
    for image in images if fitting else ():
        name = posixpath.basename(image.path)
        described |= stems.intersection((name, file_stem(name)))  # 1.json and 1.jpg.json are about 1.jpg
    fitting = [file for file in fitting if file_stem(file.path) not in described and not is_template_name(file.path)]
    return sorted(fitting, key=lambda file: (file.path.count("/"), file.path))[:_MAX_FILES]


def elsewhere(paths: Iterable[str], images: Iterable[str]) -> list[str]:
    """Return the files that have the name of an image, and no image next to them, such as annotations.

    >>> elsewhere(["label_2/1.txt", "ann/1.jpg.json", "image_2/1.txt", "label_2/readme.txt"], ["image_2/1.jpg"])
    ['label_2/1.txt', 'ann/1.jpg.json']
    """
    parts = [(path, *path.rpartition("/")[::2]) for path in paths]
    file_names = {form for _, _, name in parts for form in (name, name.rpartition(".")[0])}
    folders, image_names = set(), set()
    for image in images if parts else ():
        folder, _, name = image.rpartition("/")
        folders.add(folder)
        image_names |= file_names.intersection((name, name.rpartition(".")[0]))
    return [
        path
        for path, folder, name in parts
        if folder not in folders and not image_names.isdisjoint((name, name.rpartition(".")[0]))
    ]


def table_in(path: str, data: bytes, encoding: str | None = None) -> tuple[TextTable, list[Row]] | None:
    """Return a table and its first rows; None for JSON and text that are not a table.

    A text is one if its first line has names of columns, one of which is usual for images.
    """
    is_json, is_text = path.lower().endswith(".json"), path.lower().endswith(".txt")
    if is_json and data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] not in (b"[", b"{"):
        return None
    try:
        table = TextTable(Path(path), encoding, data)
        head = [row for _, row in islice(table.rows(), LOOKED_AT)]
    except SourceError:
        if is_json or is_text:
            return None
        raise
    if is_json and len(head) < 2 and not table.is_whole:
        return None  # a single object
    has_header = len(table.columns) > 1 and usual_columns(IMAGE, table.columns)
    return (table, head) if has_header or not is_text else None


def share_of_names(column: str, rows: Sequence[Row], names: RowNames) -> float:
    """Return the share of the values of a column that name images; 0 if few numbers differ, as class numbers do.

    The numbers in the column ``Pixel Value`` of Roboflow's tables are classes of masks.
    """
    values = [row[column] for row in rows if row.get(column) not in (None, "")]
    if not values or any(isinstance(value, (dict, list)) for value in values):
        return 0.0
    are_classes = _OF_PIXELS.fullmatch(column.lower()) is not None or 2 * len(set(values)) < len(values)
    if are_classes and all(map(_is_number, values)):
        return 0.0
    return sum(map(names.has, values)) / len(values)


def are_lists_of_images(data: bytes, columns: Sequence[str], rows: Sequence[Row], names: RowNames) -> bool:
    """Return whether JSON is an object with a list of images for each class or split, not for each column."""
    is_object = data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{" and len(columns) > 1
    is_table = any(not is_x(name) for name in usual_columns(IMAGE, columns) if name in columns)
    return is_object and not is_table and all(share_of_names(name, rows, names) >= ENOUGH for name in columns)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) or str(value).strip().isdigit()


def is_about_all(path: str) -> bool:
    """Return whether a file is named as one about the dataset or its programs, such as ``README.md``."""
    name = posixpath.basename(path.lower())
    return ABOUT_ALL.match(name) is not None and not name.endswith(TABLES)


def _by_name(path: str, *, are_labelled: bool) -> str:
    """Return what to know of a file whose name shows that it is about images, or whose format can have their labels."""
    lower, reason = posixpath.basename(path.lower()), why_not_packed(path)
    if reason == TABLE:
        reason = f"is a table that does not name most of the images: if it has the labels, {_CORRECT}"
    if is_template_name(path) or is_shard_table(lower) or lower == "thumbs.db":
        return ""
    if lower.endswith(_DOCUMENTS):
        return NAMED if LABELS_DOCUMENT.match(lower) else ""
    if LABELS_OR_SPLIT_FILE.match(lower) or reason == OF_SPLIT:
        return NAMED if reason == NOT_AN_IMAGE else reason
    return "" if are_labelled or reason in (NOT_AN_IMAGE, ARCHIVE, RECORDS) else reason


def _in_content(path: str, data: bytes, names: RowNames, images: Sequence[File]) -> str:
    """Return what to know of a file whose content is about images; empty if it is not."""
    if data.startswith(LFS_START):
        return LFS_POINTER
    if path.endswith((".npy", ".npz")):
        return why_not_packed(path) if _are_labels(data, len(images)) else ""
    is_table = path.endswith(TABLES)
    is_json = path.endswith(".json") or (not is_table and not path.endswith(_MARKUP) and data[:1] in (b"[", b"{"))
    table, rows = _rows_in(path, data) if is_table else (None, [])
    reason = _in_columns(path, data, table, rows, names, images) if table is not None else ""
    if not reason and (is_json or path.endswith(_MARKUP)):
        reason = _in_texts(data, names, images)
        first_line = data.strip().partition(b"\n")[0]  # a file of JSON lines is not damaged
        if reason and is_json and json_or(None, data) is json_or(None, first_line) is None:
            reason = "names images and is not valid JSON, so it is not read: it may be truncated, copy it again"
    elif not reason and not is_table and b"\0" not in data[:HEAD]:
        reason = _in_lines(path, data, names, images)
    value = json_or({}, data) if is_json and not reason else None
    reason = reason or of_class_names(path, data)
    if reason or len(images) < 2:
        return reason
    if table is not None and not is_json:
        same = len(rows) == len(images)
        return f"has a row for each image, and does not name most of them: {_CORRECT}" if same else ""
    are_as_many = _has_as_many(value, data, len(images))
    return f"has a value for each image and does not name them, {_AS_CSV}" if are_as_many else ""


def of_class_names(path: str, data: bytes) -> str:
    """Return what to know of a file with class names; empty for other files."""
    name = posixpath.basename(path.lower())
    value = json_or(None, data) if name.endswith(".json") else None
    classes = likely_names(value) if isinstance(value, dict) else ()
    if not classes and OF_NAMES.search(name) and len(data) <= MAX_TEXT:
        try:
            classes = likely_names([*names_of(data, path, may_count_from_1=True)])
        except (SourceError, OptionError):
            are_colours = b"r,g,b" in data[:HEAD].lower().replace(b" ", b"")  # CamVid
            remedy = "masks keep its colours" if are_colours else "pass it with --classes (classes=)"
            return f"{OF_CLASSES[1]}, and is not read: {remedy}" if is_class_list(file_stem(name)) else ""
    if not classes or any(map(names_a_file, classes)):
        return ""
    return f"{OF_CLASSES[0]} ({quoted(classes)}), {NEXT}: pass them with --classes (classes=) if they are the classes"


def _are_labels(data: bytes, count: int) -> bool:
    """Return whether arrays of NumPy have a label for each image, and no images of their own."""
    try:
        loaded = np.load(io.BytesIO(data))
        arrays = list(loaded.values()) if isinstance(loaded, Mapping) else [loaded]
    except (ValueError, EOFError, OSError, zipfile.BadZipFile):
        return False
    have_images = any(array.ndim > 2 for array in arrays)
    are_labels = any(array.shape in ((count,), (count, 1)) and array.dtype.kind in "biuSU" for array in arrays)
    return are_labels and not have_images


def _rows_in(path: str, data: bytes) -> tuple[TextTable | None, list[Row]]:
    """Return a table and its rows; None if it cannot be read, is not a table, or has binary values such as images."""
    try:
        table, _ = table_in(path, data) or (None, [])
        rows = [row for _, row in table.rows()] if table is not None else []
    except SourceError:
        return None, []
    is_of_others = any(isinstance(value, Excluded) for row in rows[:1] for value in row.values())
    return (None, []) if is_of_others else (table, rows)


def _in_columns(
    path: str, data: bytes, table: TextTable, rows: Sequence[Row], names: RowNames, images: Sequence[File]
) -> str:
    """Return what to know of a table with a column of file names, or of ids most of which are names of images."""
    if table.is_json and any(map(names.has, table.columns)):
        return ""  # an object with a value for each image
    if path.endswith(".json") and are_lists_of_images(data, table.columns, rows, names):
        return f"has lists of images for {quoted(table.columns[:3])}, {_NOT_READ}"
    for column in table.columns:
        values = [row[column] for row in rows if names.has(row.get(column))]
        named = names.all_of(values)
        are_numbers = all(map(_is_number, values))
        are_classes = not are_most(named, images) and (_OF_CLASSES.search(path) or of_class_names(path, data))
        if not values or (
            are_numbers and (are_classes or len(values) == 1 or share_of_names(column, rows, names) < ENOUGH)
        ):
            continue
        shown = f"names {counted(len(named), 'image')} in column {column!r} ({some_of(values)})"
        if are_most(named, images):
            return f"{shown}: pass --from table (kind='table') to pack its rows"
        return (
            f"{shown}, and not most: {_CORRECT}; pass --column image={column} (columns={{'image': {column!r}}}) to "
            "pack only the images that it names"
        )
    return _in_values(table, rows, names)


def _in_values(table: TextTable, rows: Sequence[Row], names: RowNames) -> str:
    """Return what to know of a table that names images in another way: by other paths, or without names of columns."""
    if not table.is_json and any(map(names_a_file, table.columns)):
        first = next(filter(names_a_file, table.columns))
        return f"begins with a row of values, such as {first!r}: add a first line such as path,label"
    for column in table.columns:
        paths = [str(row[column]) for row in rows if names_a_file(row.get(column))]
        elsewhere = [path for path in paths if names.has(re.split(r"[/\\]", path)[-1])]
        if 2 * len(elsewhere) > len(rows):
            return (
                f"names images by paths that are not here, such as {elsewhere[0]!r} in column {column!r}: write their "
                "paths in this folder, or only the names of the files"
            )
    return ""


def _in_texts(data: bytes, names: RowNames, images: Sequence[File]) -> str:
    """Return what to know of JSON or markup that names images, and is not only a list of them."""
    head = data[:MAX_TEXT].replace(b"\\/", b"/").decode("utf-8", "replace")
    texts = {"".join(groups) for groups in _TEXTS.findall(head)} - {""}
    paths = sorted(text for text in texts if names_a_file(text) and names.has(text.rpartition("/")[2]))
    image_texts = paths or sorted(filter(names.has, texts))
    is_list = len(image_texts) == len(texts) and not _TEXTS.sub("", head).strip(" \t\r\n,[]")
    if is_list or not image_texts or (not paths and 2 * len(image_texts) <= min(LOOKED_AT, len(images))):
        return ""
    format_name = " (CVAT for images)" if "<annotations" in head[:HEAD] else ""
    return f"is about images such as {image_texts[0]!r}{format_name}, {_NOT_READ}"


def _in_lines(path: str, data: bytes, names: RowNames, images: Sequence[File]) -> str:
    """Return what to know of a text whose lines have the name of an image and a value."""
    lines = data[: LOOKED_AT * 1000].decode("utf-8", "replace").splitlines()[:LOOKED_AT]
    listed = list(filter(None, map(_pair_in, lines)))
    pairs = [(name, value) for name, value in listed if names.has(name)]
    if all(names_a_file(value) for _, value in pairs):  # pairs of files, such as images and masks
        return ""
    are_files = any(names_a_file(name) for name, _ in pairs)  # numbers may also be class numbers
    if 2 * len(pairs) <= (len(listed) - 1 if are_files else min(LOOKED_AT, len(images))):
        return ""
    files = names.all_of(name for name, _ in pairs)
    of_folders = {(posixpath.dirname(file.path), value) for file, (_, value) in zip(files, pairs, strict=True)}
    are_same = len(dict(of_folders)) == len({value for _, value in of_folders}) == len(of_folders)
    if are_same and 1 < len(of_folders) < len(pairs):
        return ""  # the folders are these classes
    name, value = pairs[0]
    are_all = len(lines) == LOOKED_AT or are_most(names.all_of(dict(pairs)), images)
    has = "has a value for each image" if are_all else _SOME
    if not are_all and LABELS_OR_SPLIT_FILE.match(posixpath.basename(path)):
        has = f"has a value for {counted(len(dict(pairs)), 'image')}"
    return f"{has}, such as {value!r} for {name!r}, and no names of columns, {_AS_CSV}"


def _pair_in(line: str) -> tuple[str, str] | None:
    """Return the name and the value in a line; the name is the first word, or the last one if that is a file."""
    name, *words = re.split(r"[\s,;|]+|:\s", line.strip(" \t|"))
    name = _CAPTION_NUMBER.sub("", name)
    if words and names_a_file(words[-1]) and not names_a_file(name):
        name, words = words[-1], [name, *words[:-1]]
    is_value = any(words) and _CHECKSUM.fullmatch(words[0]) is None
    return (name, " ".join(words)) if is_value else None


def _has_as_many(value: Any, data: bytes, count: int) -> bool:
    """Return whether a text, or a list in JSON, has as many values as there are images, and some are equal."""
    if value is not None:
        lists = [value, *(value.values() if isinstance(value, dict) else ())]
        values = next((entry for entry in lists if isinstance(entry, list) and len(entry) == count), [])
        return any(values) and all(isinstance(entry, (str, int)) for entry in values) and len(set(values)) < count
    lines = [line.strip() for line in data.decode("utf-8", "replace").splitlines() if line.strip()]
    values = lines[len(lines) == count + 1 :]  # without the names of the columns
    are_labels = 1 < len(set(values)) < count and not any(" " in value for value in values)
    return len(values) == count and are_labels
