"""Files around a source that may have labels of its images: in its tree or folder, next to it, and above it.

`about_images` has the rule for what such files are. A folder above a source may be any folder, such as the home folder.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.format.label_lists import LABELS
from wds_tools.sources import layouts, masks, yolo
from wds_tools.sources.about_images import (
    ENOUGH,
    HEAD,
    MAX_TEXT,
    OF_NAMES,
    about,
    candidates,
    elsewhere,
    is_about_all,
    lists_most,
    names_any,
    names_most,
    of_class_names,
    says_labels,
)
from wds_tools.sources.base import NEXT_TO_IT, Collector, Source, as_source_error
from wds_tools.sources.file_list import Files, RowNames
from wds_tools.sources.file_names import LABELS_OR_SPLIT_FILE, hidden_root, is_unfinished, why_hidden, words_of_files
from wds_tools.sources.files import notes_on_copies
from wds_tools.sources.inputs import File
from wds_tools.sources.layouts import ARRAY_EXTENSIONS, EXTENSIONS, TABLES, is_shard_table
from wds_tools.sources.refused import (
    ARCHIVE,
    LINES,
    NAMED,
    NEXT_ARCHIVE,
    OF_SPLIT,
    RECORDS,
    About,
    notes_on,
    why_not_packed,
)
from wds_tools.sources.tree import Layout

_MAX_CLASS_LIST_BYTES = 1 << 20
_MAX_ABOVE = 1000  # entries of the folder above a folder, and of each folder in it, that are looked at
_MAX_FOLDERS_NEXT = 20
_MAX_TABLES_ABOVE = 20  # tables and texts among them
_MAX_BYTES_ABOVE = 64 << 20  # of a table there
_NUMBERED = 0.9  # share of ids in a table of another folder, such as PassengerId, that are names of images
_PROBED = 3  # images whose annotations in other folders are looked for
_MOST_KEYS = 1000  # of records that are looked at
_MASK_ENDINGS = [f"{end}.png" for end in ("_mask", "_seg", "_segmentation", "_label", "_labels", "_gt")]
_OF_VOC = ("Annotations", "annotations", "xmls")  # folders of files about images in the folder next to them
_NOT_WITH_IT = (
    "as most files in its folder do, and is not read with it: pack the folder above if it has labels or objects"
)


def about_images(files: Files, layout: Layout) -> dict[str, About]:
    """Return what files that a layout does not read have to do with the images, by path."""
    used = layout.files_read(files) if files.others else set()
    unread = [file for file in files.others if file.path not in used and not file.reason]
    unread = [file for file in unread if not (layouts.is_shard_table(file.path) and files.have_json)]
    every = files.without_masks[0] if unread else ()
    may_name_images = candidates((file for file in unread if not is_about_all(file.path)), ())
    names = RowNames(every if may_name_images else ())
    have_files = any(file.path.endswith((".cls", f".{LABELS}")) for file in files.others)
    by_split: dict[str, list[str]] = {}
    for folder in sorted({posixpath.dirname(file.path) for file in every}):
        by_split.setdefault(layouts.split_folder(f"{folder}/"), []).append(folder)
    about_files: dict[str, About] = {}
    classes = set[str]()
    for split, folders in by_split.items():
        those = {*folders}
        is_all = len(by_split) == 1
        images = every if is_all else [file for file in every if posixpath.dirname(file.path) in those]
        elsewhere = by_split.keys() - {"", split}
        split_files = [file for file in unread if layouts.split_folder(file.path) not in elsewhere]
        class_folders = layouts.first_folders(f"{folder}/1.jpg" for folder in folders)
        are_classes = class_folders or (have_files and layout.kind == "folder")
        are_labelled = layout.labels == "rows" or (layout.labels == "folders" and bool(are_classes))
        classes |= {*class_folders}
        of_split = about(split_files, images, files.read, are_labelled=are_labelled, names=names)
        first = next((path for path, relation in of_split.items() if relation.is_certain and not are_labelled), None)
        if first is not None:
            above = posixpath.commonpath(folders)
            alone = f"pass --from {layout.kind} (kind={layout.kind!r}) to pack the images without it"
            if above and not files.in_archive and layout.kind == "folder":
                others = "" if is_all else ", and each other split on its own"
                alone = f"pack {files.where}/{above} to pack the images without it{others}"
            raise SourceError(f"{first} {of_split[first].reason}; or {alone}")
        about_files = of_split | about_files
    names_of_splits = {*map(layouts.split_in, by_split)} - {""}
    small = {file.path: file for file in unread if file.size <= _MAX_CLASS_LIST_BYTES}
    return {
        path: relation
        for path, relation in about_files.items()
        if not (relation.reason == OF_SPLIT and layouts.split_in(layouts.file_stem(path)) in names_of_splits)
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


def leave_out_files(source: Source, collector: Collector) -> None:
    """State the files below a folder that are not packed, and name the tables, which may have labels, in a note."""
    account, root = collector.account, source.root()
    account.notes += notes_on_copies([(file.path, file.size) for file in collector.files if source.has_records])
    if not collector.files or not root.is_dir():
        return
    accounted = {part.name for part in account.parts if part.kind == "file"}
    read = {file.path.relative_to(root).as_posix() for file in collector.files if file.path.is_relative_to(root)}
    start = len(f"{root}/")
    below = (f"{folder}/{name}"[start:] for folder, _, names in os.walk(root) for name in names)
    paths = sorted({*below} - read)
    for file in collector.files:
        if not file.size and file.path.is_relative_to(root):
            account.leave_out("file", file.path.relative_to(root).as_posix(), "is empty")
    reasons = {path: reason for path in paths if path not in accounted and (reason := source.why_left_out(path))}
    hidden = {path: hidden_root(path) for path in reasons}
    for name in dict.fromkeys(filter(None, hidden.values())):
        account.leave_out("path", name, why_hidden(name))
    left_out = [path for path in reasons if hidden[path] is None]
    suffixes = {posixpath.splitext(path)[1] for path in read} - {".json"}
    unknown = [p for p in left_out if posixpath.splitext(p)[1] not in suffixes and not is_unfinished(p)]
    about_files = _about_in(source, collector, root, unknown, are_labelled=source.is_stated)
    _check(source, {} if source.is_stated else about_files, root, source.joining)
    archives = {path: About(NEXT_ARCHIVE) for path in unknown if why_not_packed(path) == ARCHIVE}
    if archives and not source.is_stated and account.unit != "sample":
        raise SourceError(
            f"{root} is read as {source.kind}, and {min(archives)!r} in it is another archive: pack one of them by its "
            f"path, or pass --from {source.kind} (kind={source.kind!r}) to pack without it"
        )
    collector.note_files(about_files | archives)
    for path in left_out:
        is_plain = path in about_files and reasons[path] == NEXT_TO_IT
        account.leave_out("file", path, about_files[path].reason if is_plain else reasons[path])


def note_names(source: Source, collector: Collector) -> None:
    """Note names of folders, files and keys that could be the classes of records without labels."""
    if source.unit == "file":  # a tree of images has its own rule
        return
    names = [file.path.as_posix() for file in collector.files if source.has_records]
    root = posixpath.commonpath(map(posixpath.dirname, names)) if names else ""
    paths = [posixpath.relpath(name, root) for name in names]
    folders, files, inputs = layouts.first_folders(paths), words_of_files(paths), collector.inputs
    if folders and not any("=" in name for name in folders):
        note = f"the files are in the folders {quoted(folders)}; if these are the classes, "
        collector.account.notes.append(f"no label: {note}{source.remedy_for_names(folders[0])}")
    elif files:
        note = f"the files are named {quoted(files)}; if these are the classes, "
        collector.account.notes.append(f"no label: {note}{source.remedy_for_names(files[0])}")
    else:
        some = (inputs[index].path for index in range(0, len(inputs), len(inputs) // _MOST_KEYS + 1))
        keys = [path for path in some if "#" not in path]
        collector.account.notes += layouts.note_on_prefixes(keys, source.remedy_for_names("NAME"))


def check_next_to(source: Source, collector: Collector) -> None:
    """Check that no file next to the source, whose images have no labels, is about its images.

    Only what is certain is an error, because a folder of downloads has unrelated files. Next to a Parquet file, further
    ones are other parts of the same data, unless they are named like labels. In the folder above a folder, it is what
    packing the folder above would read.
    """
    if collector.files and not source.root().is_dir():
        root, packed = collector.files[0].path.parent, {file.path for file in collector.files}
        parts = {path.suffix for path in packed} & {*TABLES}
        with as_source_error(f"{root} cannot be read"):
            there = [path for path in sorted(root.iterdir()) if path.is_file()]
        there = [path for path in there if path.suffix not in parts or says_labels(path.name)]
        splits = {layouts.split_in(path.stem) for path in packed}
        of_others = {path for path in there if path.suffix in ARRAY_EXTENSIONS and "" not in splits}
        of_others = {path for path in of_others if layouts.split_in(path.stem) not in {*splits, ""}}
        names = [path.name for path in there if path.name[0] != "." and path not in packed | of_others]
        next_to = _about_in(source, collector, root, names, are_labelled=False)
        _check(source, next_to, root, source.joining)
        collector.account.notes += notes_on(_that_say_labels(next_to))
    elif not source.in_process and source.root().is_dir():
        _check_above(source, collector, _above(source.root()))


def note_class_names(source: Source, collector: Collector, *, are_numbers: bool) -> None:
    """Note files with class names; if labels ``are_numbers``, also those next to the source and in the folder above."""
    root, files = source.root(), collector.files
    places = [_above(root)] if root.is_dir() else [files[0].path.parent, _above(files[0].path.parent)] if files else []
    packed = {file.path for file in files}
    for place in places if are_numbers and not source.in_process else ():
        named = [file for file in _entries(place)[0] if OF_NAMES.search(file.path.lower()) and file.size <= MAX_TEXT]
        paths = [path for file in named if (path := place / file.path) not in packed]
        reasons = {str(path): of_class_names(path.name, _content(path)) for path in paths}
        collector.class_files |= {path: About(reason) for path, reason in reasons.items() if reason}
    collector.account.notes += notes_on(collector.class_files)


def _above(folder: Path) -> Path:
    return folder.parent if folder.name not in ("", "..") else folder.resolve().parent


def _about_in(
    source: Source, collector: Collector, root: Path, names: Sequence[str], *, are_labelled: bool
) -> dict[str, About]:
    """Return what files in a folder have to do with the images of a source."""
    names = [name for name in names if not (is_shard_table(name) and _have_json(collector))]
    with as_source_error(f"a file next to {source.name} cannot be read"):
        files = [File(name, (root / name).stat().st_size) for name in names if (root / name).is_file()]
        images = [File(name, 0) for name in source.image_names(collector)] if candidates(files, ()) else []
        return about(files, images, lambda file: (root / file.path).read_bytes(), are_labelled=are_labelled)


def _have_json(collector: Collector) -> bool:
    """Return whether images have JSON of their own. If so, img2dataset's table of a shard has the same values."""
    account = collector.account
    return "field json" in account.attached or any(part.role == "entries of json" for part in account.parts)


def _check_above(source: Source, collector: Collector, root: Path) -> None:
    """Check that no file in the folder above a folder, or in a folder next to it, is about most of its images.

    Other files with names of labels are noted. The folder above may be any folder, such as the home folder. Therefore
    only a few files are read, and a file that cannot be read is ignored. Numbers count as names of images only in a
    column of names or ids.
    """
    files, folders = _entries(root)
    first = source.root().resolve().name if collector.files else next(iter(source.image_names(collector)), "")
    source_folder = first.partition("/")[0]
    next_to = [name for name in folders[:_MAX_FOLDERS_NEXT] if name != source_folder and not _has_images(root, name)]
    # Masks, and files of the same format: another split or dataset.
    are_others = (*EXTENSIONS, *filter(None, {file.path.suffix.lower() for file in collector.files}))
    every = (file for name in next_to for file in _entries(root, name)[0])
    there = [file for file in every if not file.path.lower().endswith(are_others)]
    of_images = elsewhere((file.path for file in there), source.image_names(collector))
    counts = Counter(path.partition("/")[0] for path in of_images)
    totals = Counter(file.path.partition("/")[0] for file in there)
    described = {  # what `pack` of the folder above may not read either; of a home folder, few files have such names
        path: About(f"has the name of an image, {_NOT_WITH_IT}")
        for path in of_images
        if 2 * counts[folder := path.partition("/")[0]] > totals[folder]
    }
    files += [file for file in there if file.path not in described]
    has_json = _have_json(collector)
    files = [file for file in files if file.size <= _MAX_BYTES_ABOVE and not (has_json and is_shard_table(file.path))]
    texts = candidates(files, (), (*TABLES, *LINES))
    texts = sorted(texts, key=lambda file: not LABELS_OR_SPLIT_FILE.match(file.path.lower()))[:_MAX_TABLES_ABOVE]
    named = [file for file in files if says_labels(file.path)][:_MAX_TABLES_ABOVE]
    probed = [] if collector.files else [*islice(source.image_names(collector), _PROBED)]
    collector.account.notes += _check_folders_next_to(source, root, probed)
    images = [File(path, 0) for path in source.image_names(collector)] if texts or named else []
    names = RowNames(images)
    for file in texts:
        data, enough = _content(root / file.path), _NUMBERED if "/" in file.path else ENOUGH
        is_table = file.path.lower().endswith((*TABLES, ".txt"))
        if is_table and (reason := names_most(file.path, data, names, images, enough=enough)):
            if not collector.files:
                above = {file.path: About(reason, is_certain=True)}
                _check(source, above, root, f"pack {root}, with whose images it is read")
            reason = f"{reason}, and is not read: if it has the labels, {source.joining}"
            described[file.path] = About(reason)  # keys of records may be any numbers
        if not file.path.lower().endswith(TABLES) and (reason := lists_most(file.path, data, names, images)):
            described[file.path] = About(reason)
    about_files = about(named, images, lambda file: _content(root / file.path), are_labelled=False, names=names)
    described = {
        path: relation
        for path, relation in _that_say_labels(about_files).items()
        # A table in a folder next to the images may be about something else.
        if "/" not in path or not path.lower().endswith(TABLES) or names_any(path, _content(root / path), names)
    } | described
    collector.account.notes += notes_on({str(root / path): relation for path, relation in described.items()})


def _entries(root: Path, folder: str = "") -> tuple[list[File], list[str]]:
    """Return the first files of a folder with their lengths, and its folders, by name; nothing if it cannot be read.

    Names are paths below ``root``.
    """
    files, folders = list[File](), list[str]()
    with suppress(OSError), os.scandir(root / folder) as entries:
        for entry in sorted(islice(entries, _MAX_ABOVE), key=lambda entry: entry.name):
            path = f"{folder}/{entry.name}".removeprefix("/")
            if entry.name[0] != "." and entry.is_dir():
                folders.append(path)
            elif entry.name[0] != "." and entry.is_file():
                files.append(File(path, entry.stat().st_size))
    return files, folders


def images_below(root: Path, folder: str = "") -> list[File]:
    """Return the first images in a folder and in those below it."""
    folders, images = [folder], list[File]()
    for inner in islice(folders, _MAX_FOLDERS_NEXT):
        files, inside = _entries(root, inner)
        folders += inside
        images += [file for file in files if layouts.is_image_name(file.path)]
    return images


def _has_images(root: Path, folder: str) -> bool:
    """Return whether a folder has shards, or it or one below it has images that are not masks: its files are theirs."""
    has_shards = any(file.path.endswith(".tar") for file in _entries(root, folder)[0])
    return has_shards or not all(masks.is_mask(file.path) for file in images_below(root, folder))


def _check_folders_next_to(source: Source, root: Path, images: Sequence[str]) -> list[str]:
    """Check that images have no annotations of YOLO or VOC in a folder next to theirs, outside of the source.

    Returns:
        A note if they have masks there, which are not labels.
    """
    for image in images:
        path, inside = (root / image).as_posix(), (root / image.partition("/")[0]).as_posix()
        folder, stem = Path(path).parent.parent, Path(path).stem
        for annotation, word in [
            (yolo.label_path(path), b""),
            *((f"{folder}/{name}/{stem}.xml", b"<ann") for name in _OF_VOC),
        ]:
            data = b"" if annotation.startswith(f"{inside}/") else _content(Path(annotation))
            if word in data[:HEAD] if word else yolo.are_boxes(data):
                above = posixpath.commonpath([path, annotation])
                reason = About(f"has the objects of {posixpath.basename(path)!r}", is_certain=True)
                _check(source, {annotation: reason}, Path(), f"pack {above}, with whose images it is read")
    _, there = _entries(root)
    source_folder = images[0].partition("/")[0] if images else ""
    of_masks = (name for name in there if masks.is_mask(f"{name}/1.png"))
    folders = [name for name in of_masks if name.startswith(source_folder) or not name.endswith(masks.FOLDER_ENDINGS)]
    for image in images:
        stem = posixpath.splitext(image.partition("/")[2])[0]
        for mask in (f"{folder}/{stem}{ending}" for folder in folders for ending in (*EXTENSIONS, *_MASK_ENDINGS)):
            if (root / mask).is_file() and masks.pairs([image, mask]).pairs:
                return [f"{str(root / mask)!r} is a mask of {image!r}, and is not read: pack {root} to pack masks too"]
    return []


def _that_say_labels(about_files: Mapping[str, About]) -> dict[str, About]:
    plain = (NAMED, RECORDS)
    return {path: about for path, about in about_files.items() if says_labels(path) and about.reason not in plain}


def _content(path: Path) -> bytes:
    """Return the content of a file, or nothing if it cannot be read."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


def _check(source: Source, about_files: Mapping[str, About], root: Path, joining: str) -> None:
    """Check that no file is about the images of a source."""
    for path, relation in about_files.items():
        if relation.is_certain:
            what = re.split(":|, so it|, which is not read", relation.reason)[0]
            raise SourceError(
                f"{root / path} {what}, and is not read with {source.name}: if it has the labels, {joining}; or "
                f"pass --from {source.kind} (kind={source.kind!r}) to pack without it"
            )
