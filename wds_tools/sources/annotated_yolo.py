"""YOLO: trees of images with ``data.yaml`` and a label file for each image."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from wds_tools.errors import LabelError, SourceError
from wds_tools.format.label import quoted
from wds_tools.sources import layouts, yolo
from wds_tools.sources.annotated import LOOKED_AT, Annotated, Described, Members, Voc
from wds_tools.sources.file_list import Files
from wds_tools.sources.inputs import File
from wds_tools.sources.tree import Layout


class Yolo(Annotated):
    """YOLO: ``data.yaml``, ``images/`` and ``labels/``; or Darknet's ``obj.data``; or ``classes.txt``."""

    kind = "yolo"
    expected = "data.yaml (or classes.txt, obj.names) and a label file for each image, labels/1.txt for images/1.jpg"
    annotation_ending = (".txt",)

    @classmethod
    def matches(cls, files: Files) -> bool:
        """Return whether there are class names, and a label file for an image."""
        named = (file for file in files.others if yolo.is_names_file(file.path) and not file.reason)
        if not any(not file.path.endswith(("yaml", "yml")) or _states_names(files, file) for file in named):
            return False
        return any(yolo.looks_like_labels(files.read(label)) for label in _first_labels(files))

    @classmethod
    def recognised(cls, files: Files) -> Layout | None:
        """Return the layout if the files have it."""
        if cls.matches(files):
            return cls()
        labels = _first_labels(files)
        example = next((label.path for label in labels if yolo.are_boxes(files.read(label))), None)
        if example is not None and not Voc.matches(files):
            raise SourceError(
                f"{files.where} has label files of YOLO, such as {example!r}, and no class names: add data.yaml "
                "with 'names', or pass --from yolo and --classes (kind='yolo', classes=). If it is in the folder "
                "above, pack that folder, with --split folders (pack_splits) for its splits. If these are not labels, "
                "pass --from folder (kind='folder')"
            )
        return None

    def _is_there(self, files: Files) -> bool:
        labels = _first_labels(files) if self.options.classes else ()
        return self.matches(files) or any(yolo.looks_like_labels(files.read(label)) for label in labels)

    def _read(self, files: Files) -> dict[str, Described]:
        given = yolo.DataYaml(tuple(self.options.classes or ()), {}, None, {}, ())
        used, stated = _names(files) if self.matches(files) else ([], [(given, "--classes")])
        (first, data_yaml), *_ = stated
        if not first.has_names and len(given.names) >= len(first.names):
            first = first._replace(names=given.names)
        source = posixpath.basename(data_yaml)
        label_of = {path: files.by_path.get(yolo.label_path(path)) for path in files.images.paths}
        described = {path: label for path, label in label_of.items() if label is not None}
        images, parts = self.without_masks(files, described, "label file")
        paths = {file.path for file in images}
        splits = _splits(files, stated)
        plan = {}
        for split, listed in splits.items():
            members = listed._replace(images=[file for file in listed.images if file.path in paths])
            labels = {file.path: label_of[file.path] for file in members.images}
            annotations = yolo.annotations_of(
                ((path, yolo.label_path(path), label and files.read(label)) for path, label in labels.items()),
                first,
                where=data_yaml,
            )
            plan[split] = Described(
                annotations,
                members.by_path,
                parts,
                [*used, *members.lists],
                source,
                described,
                "label file",
                notes=[
                    f"{source} names images for {other_split!r}, {entries[0]!r}, which do not exist: left out"
                    for other_split, entries in first.splits.items()
                    if other_split not in splits
                ],
                missing=members.missing,
            )
        return plan


def _first_labels(files: Files) -> list[File]:
    """Return the first label files that are not empty."""
    if not any(file.path.endswith(".txt") for file in files.others):
        return []
    labels = (files.by_path.get(yolo.label_path(file.path)) for file in files.images)
    return list(islice((label for label in labels if label is not None and label.size and not label.reason), LOOKED_AT))


def _states_names(files: Files, file: File) -> bool:
    """Return whether a YAML file can state class names, or how many classes there are."""
    data = files.read(file)
    return b"names" in data or (b"nc:" in data and posixpath.basename(file.path).lower().startswith("data.y"))


def _names(files: Files) -> tuple[list[File], list[tuple[yolo.DataYaml, str]]]:
    """Return the files with class names, and what they state, with the path of each: several state the same names."""
    endings = ("data.yaml", "data.yml"), (".yaml", ".yml"), ("obj.names",), ("classes.txt",)
    for ending in endings:
        same = [file for file in files.others if file.path.lower().endswith(ending) and not file.reason]
        if ending[0] == ".yaml" and len(same) > 1:  # others are about training
            same = [file for file in same if _states_names(files, file)]
        if not same:
            continue
        stated = [_stated(files, file) for file in sorted(same, key=lambda file: (file.path.count("/"), file.path))]
        if len({(yaml.names, yaml.keypoints, str(yaml.attributes)) for yaml, _, _ in stated}) > 1:
            raise SourceError(
                f"{files.where} has several files that can state the class names, "
                f"{quoted(file.path for file in same)}: keep one if all label files have its numbers; otherwise "
                "pack the folder of each separately, with the same --classes for all, and merge the results"
            )
        used = [file for _, _, of_one in stated for file in of_one]
        return [*used, *_others(files, stated[0][0].names, used)], [(yaml, path) for yaml, path, _ in stated]
    raise SourceError(
        f"{files.where} has no class names for YOLO: add data.yaml with 'names', or pass --classes (classes=)"
    )


def _stated(files: Files, file: File) -> tuple[yolo.DataYaml, str, list[File]]:
    """Return what a file with class names states, the path of the file that states splits, and the files."""
    data = files.read(file)
    if file.path.lower().endswith((".yaml", ".yml")):
        return yolo.parse_yaml(data, file.path), file.path, [file]
    names = yolo.names_in(data, file.path)
    darknet = files.by_path.get(posixpath.join(posixpath.dirname(file.path), "obj.data"))
    if darknet is not None and file.path.lower().endswith("obj.names"):
        return yolo.parse_darknet(files.read(darknet), names, darknet.path), darknet.path, [file, darknet]
    return yolo.DataYaml(names, {}, None, {}, ()), file.path, [file]


def _others(files: Files, stated: Sequence[str], used: Sequence[File]) -> list[File]:
    """Return the other files with the same class names; those with the names in another order are an error."""
    same = []
    for file in files.others:
        others: tuple[str, ...] = ()
        if yolo.is_names_file(file.path) and file not in used and not file.reason:
            with suppress(SourceError, LabelError):  # it is not about classes
                others = yolo.names_in(files.read(file), file.path)
        same += [file] if others == stated else []
        if others != stated and {*others} & {*stated}:
            raise SourceError(
                f"{used[0].path} has the class names {quoted(stated)}, and {file.path} has {quoted(others)}: move one "
                "of the files away, because label files have only the numbers of classes"
            )
    return same


def _splits(files: Files, stated: Sequence[tuple[yolo.DataYaml, str]]) -> dict[str, Members]:
    """Return the images of each split; all images with an empty name if no file states splits."""
    entries = {
        (split, entry, path): None for yaml, path in stated for split in yaml.splits for entry in yaml.splits[split]
    }
    folders = {posixpath.dirname(file.path) for file in files.files}
    folders |= {folder[:end] for folder in folders for end, character in enumerate(folder) if character == "/"}
    paths = folders | files.by_path.keys()
    places: dict[str, dict[str, None]] = {}
    for split, entry, path in entries:
        if (place := yolo.find_folder(entry, paths, data_yaml=path)) is not None:
            places.setdefault(split, {})[place] = None
    plan: dict[str, Members] = {}
    for split, of_split in places.items():
        missing: dict[str, str] = {}
        images = dict.fromkeys(file for place in of_split for file in _images_in(files, place, missing))
        lists = [files.by_path[place] for place in of_split if place in files.by_path]
        if images:
            plan[split] = Members(list(images), tuple(file for file in lists if file not in files.images), missing)
    if not plan and all(yaml.splits for yaml, _ in stated):
        _, first, path = next(iter(entries))
        raise SourceError(f"{path} names {first!r}, and there are no images in {files.where}: correct the path")
    return plan or {"": Members(files.images)}


def _images_in(files: Files, place: str, missing: dict[str, str]) -> list[File]:
    """Return the images in a folder, or the images that a text file lists; ``missing`` gets names without a file."""
    listed = files.by_path.get(place)
    if listed is None:
        return [file for file in files.images if not place or file.path.startswith(f"{place}/")]
    if layouts.is_image_name(place):
        return [listed]
    names = yolo.parse_list(files.read(listed), place)
    paths = {name: yolo.find_folder(name, files.by_path.keys(), data_yaml=place) for name in names}
    missing |= {name: place for name, path in paths.items() if path is None}
    return [files.by_path[path] for path in paths.values() if path is not None and layouts.is_image_name(path)]
