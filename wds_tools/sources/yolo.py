"""YOLO: ``data.yaml``, and for each image in ``images/`` a text file in ``labels/`` with one object per line.

A line has a class number and fractions of the image: a box (centre, width, height), or an outline of three points or
more (such as an oriented box, which has four), or a box and key points. Programs that write predictions add
a confidence.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from wds_tools.errors import LabelError, SourceError
from wds_tools.format.account import Part
from wds_tools.format.label import Classes, quoted
from wds_tools.format.objects import Object, bounding_box, numbers_of
from wds_tools.sources import layouts
from wds_tools.sources.annotated import (
    LOOKED_AT,
    Annotated,
    Annotations,
    Collected,
    Described,
    Members,
    without_masks,
)
from wds_tools.sources.class_file import lines_of, load_yaml, names_of, of_value, text_of
from wds_tools.sources.file_list import Files
from wds_tools.sources.inputs import File
from wds_tools.sources.tree import Layout
from wds_tools.sources.voc import Voc

SPLITS = ("train", "val", "test")
_SPLIT_ALIASES = {"valid": "val", "validation": "val"}
_ROUNDING = 0.002  # fractions have few decimals; a pixel of 500
_KEPT_ENTRIES = ("path", "nc", "names", "kpt_shape", "flip_idx", "kpt_names", *SPLITS, *_SPLIT_ALIASES)
_MAX_BYTES = 1 << 20
_MANY = 4  # outlines that look like boxes and key points, and so may be
_NUMBER = re.compile(rb"[-+0-9.eE]+")
_NAMES_FILES = ("data.yaml", "data.yml"), (".yaml", ".yml"), ("obj.names",), ("classes.txt",)
_ANY_YAML = 1  # of these
_PROGRAM_ENTRIES = ("download", "roboflow", "channels")


class DataYaml(NamedTuple):
    """What ``data.yaml`` states.

    Attributes:
        names: Class names by number.
        splits: Split -> its images: folders, lists of images (``.txt``) or images, relative to the file.
        keypoints: (number of points, numbers per point), None without key points.
        attributes: Further facts about key points, for the class list.
        parts: What becomes of each entry.
        has_names: Whether it has names, not only how many classes there are.
    """

    names: tuple[str, ...]
    splits: dict[str, tuple[str, ...]]
    keypoints: tuple[int, int] | None
    attributes: dict[str, Any]
    parts: tuple[Part, ...]
    has_names: bool = True


def parse_yaml(data: bytes, where: str) -> DataYaml:
    """Return what ``data.yaml`` states. All its values are read as text, so that a class may be called ``no``."""
    raw = _loaded(data, where)
    names = _names(raw, where)
    paths = raw.get("path") or ""
    splits: dict[str, tuple[str, ...]] = {}
    for key, value in raw.items():
        split = _SPLIT_ALIASES.get(key, key)
        if split in SPLITS and value:
            entries = value if isinstance(value, list) else [value]
            if not all(isinstance(entry, str) for entry in entries):
                raise SourceError(f"{where}: {key} is not a path or a list of paths")
            splits[split] = tuple(posixpath.join(str(paths), entry.replace("\\", "/")) for entry in entries)
    splits = {split: splits[split] for split in SPLITS if split in splits}
    shape = raw.get("kpt_shape")
    attributes: dict[str, Any] = {key: raw[key] for key in ("flip_idx", "kpt_names") if key in raw}
    if "flip_idx" in attributes:
        attributes["flip_idx"] = _numbers(raw["flip_idx"], f"{where}: flip_idx is not a list of point numbers")
    parts = tuple(
        Part("entry", key, "class list" if key in ("names", "nc", *attributes) else "samples")
        if key in _KEPT_ENTRIES
        else Part("entry", key, "", "is for the training program" if key in _PROGRAM_ENTRIES else "is not known")
        for key in raw
    )
    keypoints = None if shape is None else _keypoint_shape(shape, where)
    return DataYaml(tuple(names), splits, keypoints, attributes, parts, "names" in raw)


def _loaded(data: bytes, where: str) -> dict[str, Any]:
    raw = load_yaml(text_of(data, where), where)
    if not isinstance(raw, dict) or not all(isinstance(key, str) for key in raw):
        raise SourceError(f"{where} has no entries such as 'names' and 'train'")
    return raw


def _names(raw: Mapping[str, Any], where: str) -> Classes:
    """Return the class names, from a list or by number, or numbers as names if there are none."""
    stated = raw.get("nc")
    if stated is not None and not (isinstance(stated, str) and stated.isascii() and stated.isdigit()):
        raise SourceError(f"{where}: nc is not a whole number")
    if "names" not in raw and stated is not None:
        return Classes(f"class_{index}" for index in range(min(int(stated), _MAX_BYTES)))
    return Classes(of_value({"names": raw.get("names"), **raw}, where))


def _keypoint_shape(shape: Any, where: str) -> tuple[int, int]:
    message = f"{where}: kpt_shape is not [number of points, 2 or 3]"
    points, size, *more = [*_numbers(shape, message), 0, 0]
    if size not in (2, 3) or points < 1 or len(more) > 2:
        raise SourceError(message)
    return points, size


def _numbers(value: Any, message: str) -> list[int]:
    texts: list[Any] = value if isinstance(value, list) else [None]
    if not all(isinstance(text, str) and text.isascii() and text.isdigit() for text in texts):
        raise SourceError(message)
    return [int(text) for text in texts]


def names_kind(path: str) -> int | None:
    """Return the kind of a file that is named like one with class names, the most usual one first; otherwise None."""
    return next((kind for kind, ending in enumerate(_NAMES_FILES) if path.lower().endswith(ending)), None)


def parse_list(data: bytes, where: str) -> tuple[str, ...]:
    """Return the paths of images that a text file lists."""
    return tuple(line.replace("\\", "/") for line in lines_of(data, where))


def parse_darknet(data: bytes, names: tuple[str, ...], where: str) -> DataYaml:
    """Return what ``obj.data`` of Darknet states: lines such as ``train = data/train.txt``."""
    pairs = [line.partition("=") for line in text_of(data, where).splitlines()]
    entries = {key.strip(): value.strip() for key, equals, value in pairs if equals}
    splits = {_SPLIT_ALIASES.get(key, key): (value,) for key, value in entries.items() if value}
    roles = {"classes": "class list", "names": "class list", "train": "samples", "valid": "samples", "val": "samples"}
    parts = tuple(
        Part("entry", key, roles[key]) if key in roles else Part("entry", key, "", "is for the training program")
        for key in entries
    )
    return DataYaml(names, {split: splits[split] for split in SPLITS if split in splits}, None, {}, parts)


def annotations_of(
    labels: Iterable[tuple[str, str, bytes | None]], yaml: DataYaml, *, where: str = "data.yaml"
) -> Annotations:
    """Return the annotations of images.

    Args:
        labels: For each image its name, the name of its label file, and the content of that; None without a file,
            which is an image without objects.
        yaml: Names and shape of key points.
        where: Name of the file with the names, for messages.
    """
    result = Collected()
    result.annotations.names = yaml.names
    result.annotations.attributes = tuple(dict(yaml.attributes) for _ in yaml.names) if yaml.attributes else ()
    result.annotations.parts += yaml.parts
    shapes, count = set[tuple[int, int]](), 0
    for image, name, data in labels:
        if data is None:
            result.add(image, _facts([]), (1, 1), file=name)
            continue
        try:
            objects = parse(data, name, keypoints=yaml.keypoints)
        except SourceError as error:
            result.skip(image, error, name)
            continue
        _check_numbers(objects, name)
        for entry in objects:
            shapes = shapes and shapes & _point_shapes(entry) if count else _point_shapes(entry)
            count += 1
        beyond = next((entry for entry in objects if entry["category"] >= len(yaml.names)), None)
        if beyond is not None:
            raise SourceError(
                f"{name} has class number {beyond['category']}, and {where} has {len(yaml.names)} names, numbered from "
                "0: add the missing names, or correct the label file"
            )
        if repeated := len(objects) - len({str(entry) for entry in objects}):
            result.remark("with the line of another in its label file", f"{repeated:,} in {name}", repeated)
        result.add(image, _facts(objects), (1, 1), file=name, tolerance=_ROUNDING)
    for points, size in sorted(shapes)[-1:] if count >= _MANY else ():
        result.annotations.notes.append(
            f"all {count:,} outlines can also be boxes and key points: add kpt_shape: [{points}, {size}] to "
            f"{where} if they are"
        )
    return result.finished()


def _point_shapes(entry: Object) -> set[tuple[int, int]]:
    """Return the values of ``kpt_shape`` with which an outline is a box in the image, and points in the box or at 0."""
    numbers = [*entry.get("polygons", [[]])[0], *([entry["confidence"]] if "confidence" in entry else [])]
    left, top, right, bottom = _box(numbers) if len(numbers) > 5 else (-1.0, 0.0, 0.0, 0.0)
    if min(left, top, 1 - right, 1 - bottom) < -_ROUNDING:
        return set()
    are_in = {
        size: all(
            (x, y) == (0, 0) or max(left - x, x - right, top - y, y - bottom) <= _ROUNDING
            for x, y in zip(numbers[4::size], numbers[5::size], strict=True)
        )
        for size in (2, 3)
        if (len(numbers) - 4) % size == 0 and all(value in (0, 1) for value in numbers[6::3] if size == 3)
    }
    return {((len(numbers) - 4) // size, size) for size, is_in in are_in.items() if is_in}


def _check_numbers(objects: Iterable[Object], where: str) -> None:
    """Check that outlines are fractions, and that the last number is a confidence.

    Raises:
        SourceError: A number is an angle, a track or a visibility. In other lines it may be 0 or 1, so skipping only
            this image would leave the others wrong.
    """
    for entry in objects:
        last = entry.get("confidence", 0)
        numbers = [number for outline in entry.get("polygons", ()) for number in outline if not -0.5 <= number <= 1.5]
        if numbers or not 0 <= last <= 1:
            raise SourceError(
                f"{where} has a line with {[*numbers, last][0]:g}, which is neither a fraction of the image nor a "
                "confidence (0 to 1): remove track numbers from all lines, write boxes with an angle as "
                "outlines of four corners, or add kpt_shape to data.yaml if the lines have key points"
            )


def _facts(objects: Sequence[Object]) -> Callable[[], dict[str, Any]]:
    return lambda: {"fractions": True, "objects": objects}


def parse(data: bytes, where: str, *, keypoints: tuple[int, int] | None = None) -> list[Object]:
    """Return the objects of a label file. All positions are fractions of the image; `objects.scaled` makes them pixels.

    >>> parse(b"3 0.5 0.5 0.2 0.4", "a.txt")
    [{'box': [0.4, 0.3, 0.6, 0.7], 'category': 3}]

    ``keypoints`` is ``kpt_shape``: the number of points, and the numbers per point.
    """
    objects = []
    for line_number, line in enumerate(text_of(data, where).splitlines(), 1):
        words = line.split()
        if words and not words[0].startswith("#"):
            try:
                objects.append(_object(words, keypoints))
            except SourceError as error:
                raise SourceError(f"line {line_number} of {where} has {error}") from error
    return objects


def _object(words: list[str], keypoints: tuple[int, int] | None) -> Object:
    try:
        category, *numbers = numbers_of(words, "numbers")
    except SourceError:
        raise SourceError(f"{' '.join(words)[:80]}; allowed are finite numbers, separated by spaces") from None
    if category < 0 or category != int(category):
        raise SourceError(f"class number {words[0]}; allowed are whole numbers of 0 and more")
    if keypoints is not None:
        return _with_points(int(category), numbers, *keypoints)
    if len(numbers) in (4, 5):
        return {"box": _box(numbers), "category": int(category)} | _confidence(numbers[4:])
    count = len(numbers) // 2 * 2
    if count < 6:
        raise SourceError(f"{len(words)} numbers; allowed are 5 for a box, or 7 and more for an outline")
    outline = numbers[:count]
    made: Object = {"box": list(bounding_box([outline])), "category": int(category), "polygons": [outline]}
    return made | _confidence(numbers[count:])


def _with_points(category: int, numbers: list[float], points: int, size: int) -> Object:
    """Return an object with key points; points of two numbers have no visibility."""
    end = 4 + points * size
    if len(numbers) not in (end, end + 1):
        raise SourceError(f"{1 + len(numbers)} numbers; allowed are {1 + end} with kpt_shape [{points}, {size}]")
    keypoints = [numbers[start : start + size] for start in range(4, end, size)]
    return {"box": _box(numbers), "category": category, "keypoints": keypoints} | _confidence(numbers[end:])


def _box(numbers: Sequence[float]) -> list[float]:
    x, y, width, height = numbers[:4]
    return [_exact(x - width / 2), _exact(y - height / 2), _exact(x + width / 2), _exact(y + height / 2)]


def _exact(fraction: float) -> float:
    return round(fraction, 12)  # finer than any image, without the digits that only floating point adds


def _confidence(numbers: Sequence[float]) -> dict[str, float]:
    return {"confidence": numbers[0]} if numbers else {}


def looks_like_labels(data: bytes) -> bool:
    """Return whether a text file can have labels, not a caption: its first line has only numbers.

    >>> looks_like_labels(b"0 0.5 0.5 0.1 0.1"), looks_like_labels(b"a cat on 2 mats")
    (True, False)
    """
    lines = data[:_MAX_BYTES].removeprefix(b"\xef\xbb\xbf").splitlines()
    line = next((line for line in lines if line.strip() and not line.startswith(b"#")), b"")
    return bool(line) and all(_NUMBER.fullmatch(word) for word in line.split())


def are_boxes(data: bytes) -> bool:
    """Return whether all lines of a text file are objects with boxes or outlines in the image.

    >>> are_boxes(b"0 0.5 0.5 0.1 0.1"), are_boxes(b"7 4 8 2 1"), are_boxes(b"3")
    (True, False, False)
    """
    try:
        objects = parse(data, "")
    except SourceError:
        return False
    return bool(objects) and all(-0.5 <= edge <= 1.5 for entry in objects for edge in entry["box"])


def label_path(image: str) -> str:
    """Return where the label file of an image is: the last folder ``images`` becomes ``labels``.

    >>> label_path("coco/images/train/1.jpg"), label_path("obj_train_data/1.jpg")
    ('coco/labels/train/1.txt', 'obj_train_data/1.txt')
    """
    folder, name = posixpath.split(image)
    parts = folder.split("/")
    if "images" in parts:
        last = len(parts) - 1 - parts[::-1].index("images")
        parts[last] = "labels"
    return posixpath.join("/".join(parts), f"{posixpath.splitext(name)[0]}.txt")


def find_folder(entry: str, folders: Collection[str], *, data_yaml: str) -> str | None:
    """Return which folder or file of a tree an entry of ``data.yaml`` means; None if there is none.

    Entries are relative to the file. Roboflow writes ``../train/images`` for the folder ``train/images`` next to it,
    and ``path`` is often that of another machine: then the longest end of the entry that exists is meant.

    ``folders`` are all folders and files of the tree, with slashes.
    """
    base = posixpath.dirname(data_yaml)
    parts = [part for part in posixpath.normpath(entry).split("/") if part not in ("", "..", ".")]
    exact = posixpath.normpath(posixpath.join(base, entry))
    if exact in folders or exact == ".":
        return "" if exact == "." else exact
    for start in range(len(parts)):
        candidate = posixpath.join(base, *parts[start:])
        if candidate in folders:
            return candidate
    return None


class Yolo(Annotated):
    """YOLO: ``data.yaml``, ``images/`` and ``labels/``; or Darknet's ``obj.data``; or ``classes.txt``."""

    kind = "yolo"
    expected = "data.yaml (or classes.txt, obj.names) and a label file for each image, labels/1.txt for images/1.jpg"
    annotation_ending = (".txt",)
    file_kind = "label file"

    @classmethod
    def matches(cls, files: Files) -> bool:
        """Return whether there are class names, and a label file for an image."""
        named = (file for file in files.others if names_kind(file.path) is not None and not file.reason)
        if not any(not file.path.endswith(("yaml", "yml")) or _states_names(files, file) for file in named):
            return False
        return any(looks_like_labels(files.read(label)) for label in _first_labels(files))

    @classmethod
    def recognised(cls, files: Files) -> Layout | None:
        """Return the layout if the files have it."""
        if cls.matches(files):
            return cls()
        labels = _first_labels(files)
        example = next((label.path for label in labels if are_boxes(files.read(label))), None)
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
        return self.matches(files) or any(looks_like_labels(files.read(label)) for label in labels)

    def _read(self, files: Files) -> dict[str, Described]:
        given = DataYaml(tuple(self.options.classes or ()), {}, None, {}, ())
        used, stated = _names_in_tree(files) if self.matches(files) else ([], [(given, "--classes")])
        (first, data_yaml), *_ = stated
        if not first.has_names and len(given.names) >= len(first.names):
            first = first._replace(names=given.names)
        source = posixpath.basename(data_yaml)
        label_of = {path: files.by_path.get(label_path(path)) for path in files.images.paths}
        described = {path: label for path, label in label_of.items() if label is not None}
        images, parts = without_masks(files, described)
        paths = {file.path for file in images}
        splits = _splits(files, stated)
        plan = {}
        for split, listed in splits.items():
            members = listed._replace(images=[file for file in listed.images if file.path in paths])
            labels = {file.path: label_of[file.path] for file in members.images}
            annotations = annotations_of(
                ((path, label_path(path), label and files.read(label)) for path, label in labels.items()),
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
    labels = (files.by_path.get(label_path(file.path)) for file in files.images)
    return list(islice((label for label in labels if label is not None and label.size and not label.reason), LOOKED_AT))


def _states_names(files: Files, file: File) -> bool:
    """Return whether a YAML file can state class names, or how many classes there are."""
    data = files.read(file)
    return b"names" in data or (b"nc:" in data and posixpath.basename(file.path).lower().startswith("data.y"))


def _names_in_tree(files: Files) -> tuple[list[File], list[tuple[DataYaml, str]]]:
    """Return the files with class names, and what they state, with the path of each: several state the same names.

    ``data.yaml`` counts before other YAML files, and these before texts. Further files may be about something else.
    """
    named = [(kind, file) for file in files.others if not file.reason and (kind := names_kind(file.path)) is not None]
    named.sort(key=lambda item: (item[0], item[1].path.count("/"), item[1].path))
    named = [item for item in named if item[0] != _ANY_YAML or _states_names(files, item[1])]
    used: list[File] = []
    stated: list[tuple[DataYaml, str]] = []
    for kind, file in named:
        try:
            yaml, path, of_one = _stated(files, file)
        except (SourceError, LabelError):
            if kind == named[0][0]:
                raise
            continue
        first = stated[0][0] if stated else yaml
        is_same = (first.names, first.keypoints, str(first.attributes)) == (
            yaml.names, yaml.keypoints, str(yaml.attributes),
        )  # fmt: skip
        if is_same if kind == named[0][0] else yaml.names == first.names:
            used += of_one
            stated += [(yaml, path)] if kind == named[0][0] else []
        elif kind == named[0][0] or {*yaml.names} & {*first.names}:
            raise SourceError(
                f"{stated[0][1]} has the class names {quoted(first.names)}, and {path} has {quoted(yaml.names)}, or "
                "other key points: keep one if all label files have its numbers; otherwise pack the folder of each "
                "separately, with the same --classes for all, and merge the results"
            )
    return used, stated


def _stated(files: Files, file: File) -> tuple[DataYaml, str, list[File]]:
    """Return what a file with class names states, the path of the file that states splits, and the files."""
    data = files.read(file)
    if file.path.lower().endswith((".yaml", ".yml")):
        return parse_yaml(data, file.path), file.path, [file]
    names = tuple(Classes(names_of(data, file.path, by_line=True)))
    darknet = files.by_path.get(posixpath.join(posixpath.dirname(file.path), "obj.data"))
    if darknet is not None and file.path.lower().endswith("obj.names"):
        return parse_darknet(files.read(darknet), names, darknet.path), darknet.path, [file, darknet]
    return DataYaml(names, {}, None, {}, ()), file.path, [file]


def _splits(files: Files, stated: Sequence[tuple[DataYaml, str]]) -> dict[str, Members]:
    """Return the images of each split; all images with an empty name if no file states splits."""
    entries = {
        (split, entry, path): None for yaml, path in stated for split in yaml.splits for entry in yaml.splits[split]
    }
    folders = {posixpath.dirname(file.path) for file in files.files}
    folders |= {folder[:end] for folder in folders for end, character in enumerate(folder) if character == "/"}
    paths = folders | files.by_path.keys()
    places: dict[str, dict[str, None]] = {}
    for split, entry, path in entries:
        if (place := find_folder(entry, paths, data_yaml=path)) is not None:
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
    names = parse_list(files.read(listed), place)
    paths = {name: find_folder(name, files.by_path.keys(), data_yaml=place) for name in names}
    missing |= {name: place for name, path in paths.items() if path is None}
    return [files.by_path[path] for path in paths.values() if path is not None and layouts.is_image_name(path)]
