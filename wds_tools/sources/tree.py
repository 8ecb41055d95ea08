"""Images in a tree of files: a folder, a URL, tar or zip archives, arranged as one of several layouts."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import chain, groupby
from pathlib import Path
from typing import Any, ClassVar

from wds_tools.errors import MissingSourceError, SourceError
from wds_tools.format.field_classes import CLASS_LISTS_NAME, LABEL_PATH, from_raw
from wds_tools.format.label import NONE, name, quoted
from wds_tools.format.label_lists import LABELS
from wds_tools.format.label_source import LabelSource
from wds_tools.format.objects import unpacked, unpacked_bytes
from wds_tools.sources import layouts, masks
from wds_tools.sources.base import Collector, FileTimes, Record, Source, SourceOptions
from wds_tools.sources.columns import LABEL, json_object, json_or, note_on_labels
from wds_tools.sources.file_list import FileList, Files
from wds_tools.sources.file_names import SplitsError, shown_path, why_hidden
from wds_tools.sources.inputs import BATCH_ROWS, File, Input, Inputs, field_bytes, path_bytes
from wds_tools.sources.local_tree import FolderTree, open_tree
from wds_tools.sources.refused import is_template_name, why_no_images
from wds_tools.sources.trees import Archives, RemoteTree, TarTree
from wds_tools.sources.values import as_png, check_mask, converted, damage_of
from wds_tools.wording import counted

_OUTSIDE = object()  # in place of the label of an image outside of the class folders
_READ = 200  # texts and JSON files of images that may have labels
_STRAYS = 10  # it is an error if more than one in ten images is outside the class folders


class Layout:
    """What the files of a tree are. It is pickled for worker processes.

    Attributes:
        kind: Name for ``--from``.
        labels: What can have the labels of images: "folders", "rows" of a table, or nothing.
        base: Folders that contain all files that are packed. They are not part of the paths in the dataset.
        no_splits: Why `splits` is empty, and what to do.
    """

    kind: ClassVar[str]
    labels: ClassVar[str] = "folders"
    no_splits: str = Source.no_splits
    _plan: Any = None  # what each split is made of, if files are read to find that out

    def __init__(self, *, given: bool = False, options: SourceOptions | None = None) -> None:
        """Create the layout.

        Args:
            given: Whether the user named it, instead of the files showing it.
            options: What the user states about the source.
        """
        self.given = given
        self.options = options or SourceOptions()
        self.base = ""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    @classmethod
    def recognised(cls, files: Files) -> Layout | None:
        """Return this layout if files are arranged in it, otherwise None."""
        raise NotImplementedError

    def splits(self, files: Files) -> Mapping[str, Sequence[File]]:
        """Return the files of each split by its name; empty without splits.

        Files that belong to no split are in the first.
        """
        raise NotImplementedError

    def collect(self, collector: Collector, files: Files, split: str) -> None:
        """Add the images of a split, and state what becomes of all other files. `splits` was called before."""
        assert self._plan is not None, "`splits` was called before"
        self._collect(collector, files, self._plan[split])
        self._plan = None

    def _collect(self, collector: Collector, files: Files, split: Any) -> None:
        """Do what `collect` does, for a split from `_plan`."""
        raise NotImplementedError

    def files_read(self, files: Files) -> Set[str]:
        """Return the paths of the files that are read, as well as the images."""
        return files.further_fields.keys() | {self.base + CLASS_LISTS_NAME}

    def record(self, image: bytes, parts: Mapping[str, bytes], facts: Mapping[str, Any]) -> Record:
        """Return what is packed for an image.

        ``parts`` has the content of further files by field, ``facts`` are entries for ``json`` from the listing.

        Raises:
            SourceError: The content is damaged.
        """
        facts = dict(facts)
        fields = {field: as_png(data) if field.endswith(".png") else data for field, data in parts.items()}
        remarks = tuple(remark for field, data in fields.items() if (remark := damage_of(field, data)))
        if "json" in fields:
            data = fields.pop("json")
            entries = json_object(data)
            facts |= {"json": json.loads(data)} if entries is None else entries
        record = Record(converted(image), fields, facts, remarks)
        for field in filter(layouts.is_mask_field, fields):
            check_mask(field, fields[field], record.image)
        return record

    def add_image(
        self,
        collector: Collector,
        image: File,
        label: Any = NONE,
        *,
        parts: Mapping[str, File] | None = None,
        facts: bytes = b"",
        extra: int = 0,
    ) -> None:
        """Add an image with its further files. If the image cannot be read or is empty, all are skipped.

        Args:
            collector: Where it is added.
            image: Its file.
            label: Its label.
            parts: Further files of the sample, by field; `record` gets their content.
            facts: What `objects.packed` made of entries for the ``json`` field.
            extra: Bytes that `record` adds in a shard, as well as ``parts`` and ``facts``.
        """
        parts = parts or {}
        if image.reason or image.size == 0:
            self.skip(collector, image, "is empty", parts)
            return
        readable = []
        for name_in_source, part in parts.items():
            field = layouts.stored_name(name_in_source)
            if part.reason or (field != name_in_source and field in parts):
                self.skip(collector, part, f"would be the field {field!r}, like another file")
            else:
                collector.account.attach(f"field {field}")
                readable.append((field, part))
        extra += sum(field_bytes(part.size) for _, part in readable) + unpacked_bytes(facts)
        path = image.path.removeprefix(self.base)
        collector.add(Input(path, image.size, None, image.location, -1, extra, tuple(readable), facts), label)

    def skip(self, collector: Collector, file: File, reason: str, parts: Mapping[str, File] | None = None) -> None:
        """Skip a file, and the further files of its sample."""
        collector.skip(file.path.removeprefix(self.base), file.reason or reason)
        for part in (parts or {}).values():
            self.skip(collector, part, "belongs to an image that is skipped")


class ClassFolders(Layout):
    """Images in class folders, ``<class>/**``, or in a flat folder, which gives no labels.

    Class numbers are as in torchvision's ``ImageFolder``: the class folders in sorted order. Files with the name of an
    image and another extension, such as ``1.txt`` next to ``1.jpg``, are further fields of it.
    """

    kind = "folder"
    _level: int | None = None  # of the folders of splits
    _masks: Set[str] = frozenset()  # folders of masks next to the folders of splits

    @classmethod
    def recognised(cls, files: Files) -> Layout:  # noqa: ARG003 - any files can be arranged so
        return cls()

    def splits(self, files: Files) -> Mapping[str, Sequence[File]]:
        """Return the files of folders such as ``train`` and ``val``, on any level."""
        arrangement = layouts.arrangement(files.folders, where=files.where, in_archive=files.in_archive)
        self.base, self._level = arrangement.base, arrangement.level
        if arrangement.level is None:
            return {}
        position = arrangement.level + arrangement.base.count("/")
        splits = [name for name in arrangement.splits if not masks.is_mask(f"{name}/1.png")]
        parts = {split: FileList() for split in (splits if len(splits) > 1 else arrangement.splits)}

        self._masks = {*arrangement.splits} - parts.keys()

        def split_of(file: File) -> str:
            split = next(iter(file.path.split("/")[position:-1]), "")
            return split if split in parts else next(iter(parts))

        for split, group in groupby(files.files, split_of):  # files come by folder
            parts[split].extend(group)
        return parts

    def collect(self, collector: Collector, files: Files, split: str) -> None:
        """Add the images in class folders, or all images if there are no class folders."""
        if split and self._level == 0:  # the folder of the split contains the class folders
            self.base, self._level = f"{self.base}{split}/", None
        files.check_fields()
        fields = files.further_fields
        parts: dict[str, dict[str, File]] = {}
        for path, (image, field) in fields.items():
            parts.setdefault(image, {})[field] = files.by_path[path]
        images = self._samples(collector, files, parts)
        paths = images.paths
        if not self.given:
            layouts.check_stems(paths, where=files.where)
            collector.account.notes += masks.note_on_names(paths)
        lists = self._class_lists(collector, files)
        is_unlabelled = self.options.columns.get(LABEL) == ""
        label_of = None if is_unlabelled else self._labels(collector, files, paths, parts)
        if is_unlabelled:
            for field in ("cls", LABELS):
                for file in [further.pop(field) for further in parts.values() if field in further]:
                    self.skip(collector, file, "is not used: --column label= packs without labels")
        elif label_of is None:
            jsons, texts = ([p[field] for p in parts.values() if field in p][:_READ] for field in ("json", "txt"))
            hint = note_on_labels(map(files.read, jsons), list(map(files.read, texts)))
            collector.account.notes += hint or layouts.note_on_prefixes(paths)
        self._add_images(collector, images, parts, label_of or (lambda _: NONE))
        for file in files.others:
            if file.path not in fields and file is not lists:
                self.skip(collector, file, files.why_not_packed(file.path))

    def _samples(self, collector: Collector, files: Files, parts: dict[str, dict[str, File]]) -> FileList:
        """Return the images that are not further fields, and skip those that are not in the folder of a split."""
        outside: list[File] = []
        if self._masks or not all(folder.startswith(self.base) for folder in files.folders):
            outside = [
                f for f in files.images if not f.path.startswith(self.base) or self._masks & {*f.path.split("/")}
            ]
        for folder in sorted(folder for folder in self._masks if outside):
            collector.account.notes.append(
                f"the folder {folder!r} next to the splits is named like masks, and is not packed: write a table "
                "with a row for each image, such as image,mask, to pack masks; or pack it alone if it has images"
            )
        for file in outside:
            self.skip(collector, file, "is outside the class folders", parts.pop(file.path, {}))
        of_others = files.further_fields.keys() | {file.path for file in outside}
        return FileList(file for file in files.images if file.path not in of_others) if of_others else files.images

    def _add_images(
        self, collector: Collector, images: FileList, parts: dict[str, dict[str, File]], label_of: Callable[[str], Any]
    ) -> None:
        plain: list[tuple[str, int, Any]] = []  # there may be millions: they are added together
        for file in images:
            path, size, location, reason, _ = file
            further = parts.get(path, {})
            label = label_of(path)
            if label is _OUTSIDE:
                self.skip(collector, file, "is outside the class folders", further)
            elif further or reason or not size or location:
                self._add_plain(collector, plain)
                self.add_image(collector, file, label, parts=further)
            else:
                plain.append((path, size, label))
                if len(plain) == BATCH_ROWS:
                    self._add_plain(collector, plain)
        self._add_plain(collector, plain)

    def _add_plain(self, collector: Collector, images: list[tuple[str, int, Any]]) -> None:
        """Add images without further files, given by path, size and label, and empty their list."""
        if images:
            paths, sizes, labels = zip(*images, strict=True)
            collector.add_images([path.removeprefix(self.base) for path in paths], sizes, labels)
            images.clear()

    def _class_lists(self, collector: Collector, files: Files) -> File | None:
        """Take note of the class lists that `unpack` wrote; return their file."""
        path = self.base + CLASS_LISTS_NAME
        file = next((file for file in files.others if file.path == path), None)
        if file is None or file.reason:
            return None
        try:
            collector.field_classes |= from_raw(json.loads(files.read(file)))
        except (ValueError, TypeError, RecursionError) as error:
            raise SourceError(f"{file.path} does not have the class lists that unpack writes: {error}") from error
        if names := collector.field_classes.pop(LABEL_PATH, None) or collector.field_classes.pop(LABELS, None):
            collector.classes = names.names
        collector.account.attach("class names")
        return file

    def _labels(
        self, collector: Collector, files: Files, images: Sequence[str], parts: dict[str, dict[str, File]]
    ) -> Callable[[str], Any] | None:
        """Return the function from the path of an image to its label, or to `_OUTSIDE`; None if there are no labels.

        Files of labels are taken from ``parts``.
        """
        folders, above = self._class_folders(collector, files, images)
        names = {folder for folder in folders.values() if folder is not None}
        stated = {path: further.pop("cls") for path, further in parts.items() if "cls" in further}
        are_shards = not self.given and layouts.are_shard_folders(names)
        if stated and not self.given:
            if names and not are_shards and not collector.classes:
                raise SourceError(
                    f"{files.where} has class folders ({quoted(sorted(names))}) and files of labels, such as "
                    f"{min(stated.values()).path!r}: pass --from folder (kind='folder') to use the folders, or remove "
                    "one of them"
                )
            collector.account.attach("label", len(stated))
            labels = {path: LabelSource().value(path, files.read(file)) for path, file in stated.items()}
            return lambda path: labels.get(path, NONE)
        for file in stated.values():
            self.skip(collector, file, "is not used: the folder is the label")
        several = {path: further.pop(LABELS) for path, further in parts.items() if LABELS in further}
        if several:
            collector.account.attach("label", len(several))
            return {path: self._list_of(files, several.get(path), collector.classes) for path in images}.__getitem__
        described = sum(not {"txt", "json"}.isdisjoint(further) for further in parts.values())
        have_tables = any(layouts.is_shard_table(file.path) for file in files.others)
        if are_shards and (have_tables or 2 * described >= len(images)):
            collector.account.notes.append(
                f"folders such as {min(names)!r} are parts of a download, not classes: pass --from folder "
                "(kind='folder') if they are classes"
            )
            return None
        if names:
            paths = [*(file.path for file in files.others), *(f"{folder}/" for folder in files.empty_folders)]
            below = (self._without_split(path) for path in paths if path.startswith(self.base))
            others = {layouts.class_folder(path.removeprefix(above)) for path in below if path.startswith(above)}
            collector.account.notes += layouts.notes_about_names(images, names, filter(None, others))
            collector.account.notes += [] if self.given else layouts.notes_on_parts(names, images)
        labels = {folder: name(class_name) for folder, class_name in folders.items() if class_name is not None}
        missing = {folder for folder, class_name in folders.items() if class_name is None and labels and not self.given}
        outside = [path for path in images if path[: path.rfind("/") + 1] in missing] if missing else []
        if len(outside) > max(1, len(images) // _STRAYS):
            raise SourceError(
                f"{files.where} has class folders, and {counted(len(outside), 'image')} outside of them, such as "
                f"{outside[0]!r}: move these into class folders or away, or pass --from folder (kind='folder') to pack "
                "without them"
            )
        return (lambda path: labels.get(path[: path.rfind("/") + 1], _OUTSIDE)) if labels else None

    def _class_folders(
        self, collector: Collector, files: Files, images: Sequence[str]
    ) -> tuple[dict[str, str | None], str]:
        """Return the class of each folder with images, and the folders that contain all of these.

        Folders are as in `layouts.folder_of`. The class is None for images outside of folders.

        Raises:
            SourceError: It is not clear which folders are classes.
        """
        paths = {folder: self._without_split(folder) for folder in {path[: path.rfind("/") + 1] for path in images}}
        parent, above = f"{files.where}/{self.base}".rstrip("/").rpartition("/")[2], ""
        for wrapper in [] if self.given else layouts.wrappers(paths.values(), parent=parent):
            paths = {path: below.removeprefix(f"{wrapper}/") for path, below in paths.items()}
            is_usual = any(paths.values()) and (wrapper == parent or layouts.is_role(wrapper))
            if not is_usual and not (self.base and wrapper == parent):  # a split, as in train/train/1.jpg
                collector.account.notes.append(
                    f"the folder {wrapper!r} of all images is not read as a class: pass --from folder (kind='folder') "
                    "if it is one"
                )
            above += f"{wrapper}/"
            parent = wrapper
        if not self.given:
            layouts.check_classes(paths.values(), where=files.where)
            collector.account.notes += layouts.notes_about_levels(paths.values())
        classes = {path: layouts.class_folder(below) for path, below in paths.items()}
        if not self.given:
            class_of = {folder: class_name for folder, class_name in classes.items() if class_name is not None}
            collector.account.notes += masks.notes_on_classes(images, class_of, where=files.where)
        return classes, above

    def _list_of(self, files: Files, file: File | None, names: Sequence[str]) -> Any:
        """Return the classes in a file of several labels, as `unpack` writes it: by name, if names are known.

        Class numbers 0 and 1 could be read as flags.
        """
        if file is None:
            return NONE
        value = json_or(None, files.read(file))
        if not isinstance(value, list):
            raise SourceError(f"{file.path} is not a list of class numbers, such as [0, 2], or of names: correct it")
        are_numbers = all(type(class_number) is int and 0 <= class_number < len(names) for class_number in value)
        return [name(names[class_number]) for class_number in value] if are_numbers else value

    def _without_split(self, path: str) -> str:
        parts = path.removeprefix(self.base).split("/")
        return "/".join(name for level, name in enumerate(parts) if level != self._level)


_TABLE = "table"
LAYOUTS = {
    "coco": "annotated_json:Coco",
    "yolo": "yolo:Yolo",
    "voc": "voc:Voc",
    _TABLE: "tabled:Table",
    "masks": "voc:Masks",
    "folder": "tree:ClassFolders",
}
"""Name for ``--from`` -> module and class, in the order in which they are tried."""


def imported(name: str) -> Any:
    """Return a class of this package, named as ``module:class`` and imported only now."""
    module, _, class_name = name.partition(":")
    return getattr(importlib.import_module(f"wds_tools.sources.{module}"), class_name)


class TreeSource(Source):
    """Images in a folder, a folder at a URL, or tar or zip archives.

    Args:
        src: A path, a URL, or a pattern of archives.
        options: What the user states about it.
        tree: What it is: "folder", "tar" or "zip".
        layout: How its files are arranged, a name in `LAYOUTS`; None finds it out.

    Attributes:
        split: The split that is packed; None for all.
    """

    unit = "file"
    reads_text = True
    _listed: Files | None = None

    def __init__(
        self, src: str | Path, options: SourceOptions | None = None, *, tree: str = "folder", layout: str | None = None
    ) -> None:
        self.kind = tree if layout in (None, ClassFolders.kind) else layout
        is_unlabelled = options is not None and options.columns == {LABEL: ""}
        if layout not in (None, _TABLE):
            self.roles = (LABEL,) if is_unlabelled and layout in (ClassFolders.kind, "masks") else ()
            self.reads_text = False
        super().__init__(shown_path(str(src)), options)
        self.tree = open_tree(src, tree, self.options.remote)
        if isinstance(self.tree, Archives):
            self.tree.have_labels = not is_unlabelled
        if (self.columns and not is_unlabelled) or self.options.encoding:
            layout = _TABLE  # only tables have columns and an encoding
        self.name = self.tree.name
        self.split: str | None = None
        self.layout: Layout | None = imported(LAYOUTS[layout])(given=True, options=self.options) if layout else None

    def root(self) -> Path:
        return Path(self.tree.name)

    def image_names(self, collector: Collector) -> Iterable[str]:
        """Return the paths of the images; of a folder, with its name, because a table above it may name it too."""
        assert self.layout is not None, "a source is listed before"
        is_folder = isinstance(self.tree, FolderTree)
        above = f"{self.root().absolute().name}/{self.layout.base}" if is_folder else ""
        return (above + entry.path for entry in collector.inputs)

    def state(self) -> dict[str, Any] | None:
        assert self.layout is not None, "a source is listed before"
        layout = next(name for name, path in LAYOUTS.items() if imported(path) is type(self.layout))
        times = self.tree.times
        return {
            "kind": self.kind,
            "layout": layout,
            "given": self.layout.given,
            "base": self.layout.base,
            "times": None if times is None else times.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.kind = state["kind"]
        self.layout = imported(LAYOUTS[state["layout"]])(given=state["given"], options=self.options)
        assert self.layout is not None
        self.layout.base = state["base"]
        self.tree.times = None if state["times"] is None else FileTimes.of(state["times"])

    def checksum(self, is_stopped: Callable[[], bool] | None) -> str | None:
        return self.tree.checksum if is_stopped is None else self.tree.listed_again(is_stopped)

    def splits(self) -> Mapping[str, TreeSource]:
        """Return a source for each split. They share the listing of the tree."""
        files = self._files()
        parts: dict[str, TreeSource] = {}
        layout = self._layout_of(files)
        splits = layout.splits(files)
        self.no_splits = layout.no_splits
        for split in splits:
            parts[split] = copy.copy(self)
            vars(parts[split]).update(
                name=f"{self.name}/{split}", split=split, layout=copy.copy(self.layout), _listed=files
            )
        return parts

    def collect(self, collector: Collector) -> None:
        """Add the images of the tree, or of one split."""
        files = self._files()
        layout = self._layout_of(files)
        are_folders = isinstance(layout, ClassFolders)
        all_are_classes = are_folders and layout.given and self.split is None
        splits = {} if all_are_classes else layout.splits(files)
        folders = layouts.splits_with_classes(files.folders) if are_folders else []
        if self.split is None and (len(splits) > 1 or (all_are_classes and folders)):
            given = " --from folder (kind='folder')" * all_are_classes if folders else None
            names = [*(splits or folders)]
            aboves = [
                f"/{folder}".partition(f"/{names[0]}/") for folder in files.folders
            ]  # MVTec has splits per object
            base = min((f"{above}/"[1:] for above, is_below, _ in aboves if is_below), default=layout.base)
            raise layouts.splits_error(self.name, names, are_folders=are_folders, base=base, given=given)
        split = self.split or next(iter(splits), "")
        if splits:
            files = files.only(splits[split])
            if self.split is None and are_folders and not folders:
                collector.account.notes.append(f"all images are in {split!r}, which is a split and not a class")
        collector.account.given += len(files.files)
        collector.files, collector.stamp = self.tree.states, self.tree.stamp
        collector.account.notes += self.tree.notes
        for hidden in sorted(self.tree.hidden):
            collector.account.leave_out("path", hidden, why_hidden(hidden))
        collector.note_files(files.about)
        layout.collect(collector, files, split)
        collector.account.notes += _also_in(collector.inputs, layout.base, split, {} if are_folders else splits)
        collector.skipped.sort(key=lambda skip: path_bytes(skip.path))
        if not collector.inputs:
            paths = [*(file.path for file in files.files), *self.tree.hidden]
            raise MissingSourceError(why_no_images(self.name, paths, collector.skipped))
        if isinstance(self.tree, TarTree):
            collector.inputs = Inputs(e._replace(group=self.tree.group(e.location)) for e in collector.inputs)
        if self.split is None:
            self._listed = None  # other splits would use it

    def later_than(self, inputs: Iterable[Input], time_ns: int) -> list[str]:
        """Return the files of inputs whose modification time is later; none if this is not a local folder."""
        if not isinstance(self.tree, FolderTree):
            return []
        assert self.layout is not None, "a source is listed before"
        base = self.layout.base
        further = (file.path for entry in inputs for _, file in entry.parts)
        return self.tree.later_than(chain((base + entry.path for entry in inputs), further), time_ns)

    def read(self, entry: Input) -> Record:
        """Read an image and the further files of its sample.

        Raises:
            SourceError: A file is damaged.
            SourceStoreError: A file is missing, or the storage fails.
            SourceChangedError: A file has changed since it was listed.
        """
        assert self.layout is not None, "a source is listed before it is read"
        image = self.tree.read(self.layout.base + entry.path, entry.size, entry.location)
        parts = {field: self._read(file) for field, file in entry.parts}
        record = self.layout.record(image, parts, unpacked(entry.facts) if entry.facts else {})
        facts = dict(record.facts or {})
        if facts.get("path", entry.path) != entry.path:  # of a JSON file; the path of the sample has this name
            facts["path_"] = facts.pop("path")
        return record._replace(facts=facts)

    def _read(self, file: File) -> bytes:
        return self.tree.read(file.path, file.size, file.location)

    def _files(self) -> Files:
        if self._listed is None:
            in_archive = not isinstance(self.tree, (FolderTree, RemoteTree))
            listed = self.tree.list()
            empty = self.tree.empty_folders
            self._listed = Files(listed, self._read, self.name, in_archive=in_archive, empty_folders=empty)
            if isinstance(self.tree, FolderTree) and not self._listed.images:
                _check_tables(self._listed)
        return self._listed

    def _layout_of(self, files: Files) -> Layout:
        if self.layout is None:
            tried = (imported(name).recognised(files) for name in LAYOUTS.values())
            self.layout = next(layout for layout in tried if layout is not None)
            self.layout.options = self.options
            if not isinstance(self.layout, ClassFolders):
                self.kind = self.layout.kind
            files.about = imported("around:about_images")(files, self.layout)
        return self.layout


def _check_tables(files: Files) -> None:
    """Check that a folder without images has no tables of several splits, with paths or URLs, and no arrays."""
    endings = (*layouts.TABLES, *layouts.ARRAY_EXTENSIONS)
    tables = [file.path for file in files.others if file.path.lower().endswith(endings)]
    by_split, others = layouts.splits_of_tables([path for path in tables if not is_template_name(path)])
    if len({*by_split, *map(layouts.split_of_table, others)} - {""}) > 1:
        places = {split: f"{files.where}/{path}" for split, path in by_split.items()}
        first = next(iter([*by_split.values(), *others]))
        how, single = "pack with --split folders (pack_splits)", f"one at a time, such as {files.where}/{first}"
        what = f"a file for each of several splits ({', '.join(places)}): {how}, or {single}"
        if others:
            what = f"tables that are not one for each split ({quoted(others)}): pack {single}, or move these and {how}"
        raise SplitsError(f"{files.where} has no images, and {what}", {} if others else places)


def _also_in(inputs: Iterable[Input], base: str, split: str, splits: Mapping[str, Sequence[File]]) -> list[str]:
    """Return a note for each other split that shares images with a split."""
    notes = []
    packed = {base + entry.path: None for entry in inputs} if splits else {}
    for other_split, files in splits.items():
        there = {file.path for file in files} if other_split != split else set()
        if shared := [path for path in packed if path in there]:
            notes.append(
                f"{split!r} and {other_split!r} share {counted(len(shared), 'image')}, such as {shared[0]!r}: correct "
                "the lists or folders if models are trained with one of them and tested with the other"
            )
    return notes
