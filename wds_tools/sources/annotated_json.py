"""Trees of images with annotations in JSON: COCO, and files of shapes, which are converted to COCO's.

LabelMe, VIA, CreateML and Scalabel (BDD100K) write such files. Boxes and outlines are in pixels in all of them. What
else a shape has is kept as attributes of the object.
"""

from __future__ import annotations

import json
import math
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, NamedTuple

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.sources import coco
from wds_tools.sources.annotated import (
    LOOKED_AT,
    Annotated,
    Annotations,
    Described,
    masks_of_described,
    notes_on_names,
    without_masks,
)
from wds_tools.sources.base import Skip
from wds_tools.sources.columns import LABEL, json_or, usual_columns
from wds_tools.sources.file_list import Files, RowNames
from wds_tools.sources.inputs import File
from wds_tools.sources.layouts import file_stem, split_folder, split_in

_WORDS = (b'"shapes"', b'"shape_attributes"', b'"coordinates"', b'"box2d"', b'"poly2d"')
_ERRORS = (KeyError, TypeError, ValueError, AttributeError, IndexError)
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_CLASS = "category"  # of a shape, its class by name
LABELME = "LabelMe"
MADE_UP = ("id", "file_name")
"""Entries of images that only `as_coco` adds."""

_SPLITS = "with and without the name of a split"
_NO_CLASS = "object"  # of regions of VIA without attributes
_Points = Sequence[Sequence[float]]
_Shape = dict[str, Any]
_MAX_FILES = 50  # JSON files that are looked at, the largest ones


class Coco(Annotated):
    """COCO: one JSON file per split, with the images anywhere in the tree; or files of shapes, per split or image."""

    kind = "coco"
    file_kind = "file of shapes"
    expected = "a JSON file with 'images' and 'annotations', or files of LabelMe, VIA, CreateML or Scalabel"

    @classmethod
    def matches(cls, files: Files) -> bool:
        """Return whether there is a file of COCO, or of shapes."""
        return bool(_coco_files(files, first=True)) or any(_shape_files(files, first=True))

    def _read(self, files: Files) -> dict[str, Described]:
        by_split: dict[str, list[File]] = {}
        for file in _coco_files(files):
            by_split.setdefault(coco.split_of(file.path), []).append(file)
        if not by_split:
            return _splits_of_shapes(files)
        if "" in by_split and len(by_split) > 1:
            raise _several([file.path for same in by_split.values() for file in same], _SPLITS)
        plan = {name: _coco_split(files, name, same) for name, same in sorted(by_split.items())}
        lists = {(part.annotations.ids, part.annotations.names): part.used[0].path for part in plan.values()}
        lists.pop(((), ()), None)
        if len(lists) > 1 and not {name for _, names in lists for name in names} <= {*(self.options.classes or ())}:
            raise SourceError(
                f"{' and '.join(list(lists.values())[:2])} have different categories, so a class number would mean "
                "different things: pass the names of all with --classes (classes=), or make the lists equal"
            )
        return plan


def _coco_files(files: Files, *, first: bool = False) -> list[File]:
    """Return the JSON files that are COCO, or only the first. Those with the name of an image describe it."""
    described = [file for file in files.others if file.path.lower().endswith(".json") and not file.reason]
    stems = {posixpath.splitext(file.path)[0] for file in files.images} if described else set()
    candidates = [file for file in described if posixpath.splitext(file.path)[0] not in stems]
    candidates.sort(key=lambda file: -file.size)
    coco_files = (file for file in candidates[:_MAX_FILES] if coco.is_coco(files.read(file)))
    return list(islice(coco_files, 1)) if first else sorted(coco_files, key=lambda file: file.path)


def _several(paths: Sequence[str], about: str) -> SourceError:
    return SourceError(
        f"there are several annotation files {about}, {quoted(sorted(paths))}: keep one, and move the others away, or "
        "pack the folder of each and merge the datasets. Only files in one folder with the names that COCO gives them "
        "are joined: instances_train.json, person_keypoints_train.json and captions_train.json"
    )


def _coco_split(files: Files, split: str, same: Sequence[File]) -> Described:
    """Return the split that COCO files of one split describe together."""
    annotations = coco.parse(files.read(same[0]), same[0].path)
    if len(same) == 1:
        return _described(files, split, annotations, same)
    tables = {name: [same[0].path] for name in _listed(annotations)}  # image -> files that list it
    for file in same[1:]:
        added = coco.parse(files.read(file), file.path)
        for name in _listed(added):
            about = [*tables.get(name, ()), file.path]
            folders, kinds = {posixpath.dirname(path) for path in about}, {*filter(coco.can_be_merged, about)}
            if len(about) > 1 and (len(folders) > 1 or len(kinds) < len(about)):
                raise _several(about, f"about the same images, such as {name!r}")
            tables[name] = about
        annotations = coco.merged(annotations, added, file.path)
    return _described(files, split, annotations, same, tables={name: paths[0] for name, paths in tables.items()})


def _listed(annotations: Annotations) -> list[str]:
    return [*annotations.images, *(skip.path for skip in annotations.skipped)]


def _described(
    files: Files,
    split: str,
    annotations: Annotations,
    used: Sequence[File],
    file_of: Mapping[str, File] = MappingProxyType({}),
    masks_of: Mapping[str, dict[str, File]] = MappingProxyType({}),
    tables: Mapping[str, str] = MappingProxyType({}),
) -> Described:
    """Return a split with the images that its annotations name; further arguments are as in `Described`.

    ``tables`` has the file that names an image, by default the first one.
    """
    first = used[0].path if used else ""
    source = posixpath.basename(first) or "a file of shapes"
    names = _listed(annotations)
    row_names = RowNames(files.images)
    listed = {posixpath.basename(coco.name_here(name)) for name in names}
    pairs = [] if file_of else masks_of_described(files, {}, listed)[0]
    of_images = {mask for _, fields in pairs for mask in fields.values()}
    image_names = RowNames(file for file in files.images if file.path not in of_images) if of_images else row_names

    def find(name: str) -> File | None:
        folder, table = posixpath.split(tables.get(name, first))
        place = posixpath.join(folder.removesuffix("annotations"), table)
        return image_names.find(coco.name_here(name), table=place, folder=split)

    images = {name: find(name) for name in names}
    _check_once(images, first)
    if names and not any(images.values()):
        raise SourceError(
            f"no image of {first} is in {files.where}, such as {names[0]!r}: put the images into a folder below it"
        )
    parts: dict[str, dict[str, File]] = dict(masks_of)
    for name, fields in annotations.fields.items():
        image = images[name]
        for kind, png in fields.items() if image is not None else ():
            part = row_names.find(coco.name_here(png), table=first, folder=posixpath.splitext(source)[0])
            if image is None or part is None:
                raise SourceError(f"{first} names {png!r}, but there is no such file in {files.where}")
            parts.setdefault(image.path, {})[kind] = part
            of_images.discard(part.path)
    for path, masks in files.named(pairs).items():
        parts[path] = {kind: mask for kind, mask in masks.items() if mask.path in of_images} | parts.get(path, {})
    labels = {image.path: annotations.labels[name] for name, image in images.items() if image and annotations.labels}
    are_single = all(len(classes) < 2 for classes in labels.values())
    classes = {path: several[0] if are_single else several for path, several in labels.items() if several}
    return Described(annotations, images, parts, used, source, file_of, classes)


def _check_once(images: Mapping[str, File | None], where: str) -> None:
    """Check that no two names mean the same image."""
    names: dict[str, str] = {}
    for name, image in images.items():
        if image is not None and (before := names.setdefault(image.path, name)) != name:
            raise SourceError(
                f"{where} names {before!r} and {name!r}, and both can only be {image.path!r}: write paths into it that "
                "end like those of the images"
            )


def _shape_files(files: Files, *, first: bool = False) -> Iterator[tuple[File, bytes, str]]:
    """Yield the JSON files with shapes, their content and the name of their format; or only from the first of them.

    There may be one for each image, with its name.
    """
    described = [file for file in files.others if file.path.lower().endswith(".json") and not file.reason]
    names = {posixpath.basename(file.path) for file in files.images} if described else set()
    names |= {posixpath.splitext(name)[0] for name in names}
    of_images = [file for file in described if file_stem(file.path) in names]
    of_splits = sorted({*described} - {*of_images}, key=lambda file: (-file.size, file.path))
    for file in (*of_splits[:_MAX_FILES], *(of_images[:LOOKED_AT] if first else of_images)):
        data = files.read(file)
        if (kind := format_of(data)) is not None:
            yield file, data, kind


class _Shapes:
    """The files of shapes of a tree.

    Attributes:
        images: The images of each split, by its name.
        skipped: The images of each split that cannot be used, with the reasons.
        used: Split -> files about several images.
        file_of: Path of an image -> the file about only this image.
        stated: Path of such an image -> its name in the file.
        tables: Path of an image -> an empty text, because it is the whole path.
    """

    def __init__(self, files: Files) -> None:
        self.images: dict[str, list[Shaped]] = {}
        self.skipped: dict[str, list[Skip]] = {}
        self.used: dict[str, list[File]] = {}
        self.file_of: dict[str, File] = {}
        self.stated: dict[str, str] = {}
        self.tables: dict[str, str] = {}
        self._listed: dict[tuple[str, str], str] = {}  # split and image -> file
        self._files = files
        self._names = RowNames(files.images)

    def add(self, file: File, data: bytes, kind: str) -> None:
        """Add the images of a file."""
        try:
            shaped, problem = images_in(data, file.path), None
        except SourceError as error:
            shaped, problem = [], error
        stem, image = file_stem(file.path), self._image_of(file, shaped)
        split = "" if image is not None or kind == LABELME else split_folder(file.path) or split_in(stem)
        if image is None:
            self.used.setdefault(split, []).append(file)
        else:
            self.file_of[image.path] = file
        if problem is not None:
            if image is None:
                raise problem
            shaped = [Shaped(image.path, error=str(problem))]
        elif image is not None and shaped:
            self.stated[image.path] = shaped[0].name
        for entry in shaped:
            self._add_image(entry, image, file, split)

    def _image_of(self, file: File, shaped: Sequence[Shaped]) -> File | None:
        """Return the image that has the name of a file: of several, the one whose path is in it, as in LabelMe."""
        stem, folder = file_stem(file.path), posixpath.dirname(file.path)
        paths = [posixpath.normpath(posixpath.join(folder, entry.name.replace("\\", "/"))) for entry in shaped[:1]]
        image = next((self._files.by_path.get(path) for path in paths if file_stem(path) == stem), None)
        return image or self._names.find(stem, table=file.path)

    def _add_image(self, entry: Shaped, image: File | None, file: File, split: str) -> None:
        image = image or self._names.find(coco.name_here(entry.name), table=file.path, folder=split)
        name = image.path if image else entry.name
        self.tables |= {name: ""} if image else {}
        if (before := self._listed.setdefault((split, name), file.path)) != file.path:
            raise _several([before, file.path], f"about the same images, such as {name!r}")
        if entry.error:
            self.skipped.setdefault(split, []).append(Skip(name, entry.error))
        else:
            self.images.setdefault(split, []).append(entry._replace(name=name))


def _splits_of_shapes(files: Files) -> dict[str, Described]:
    """Return the splits of files with shapes. If images have one each, those without have no objects, as in VOC."""
    shapes, kinds = _Shapes(files), dict[str, None]()
    for file, data, kind in _shape_files(files):
        kinds[kind] = None
        shapes.add(file, data, kind)
    images, file_of = shapes.images, shapes.file_of
    if len(kinds) > 1 or ("" in images and len(images) > 1):
        raise _several(
            [file.path for same in shapes.used.values() for file in same]
            + [file.path for file in file_of.values()][:1],
            "of several formats" if len(kinds) > 1 else _SPLITS,
        )
    place = "imagePath" if LABELME in kinds else "the entry of the image"
    stated = {file.path: "" for file in files.images} | shapes.stated if shapes.stated else {}
    notes = notes_on_names(stated, {image: file.path for image, file in file_of.items()}, "JSON file", place)
    undescribed, parts = without_masks(files, file_of) if file_of else ([], {})
    if file_of:
        images.setdefault("", []).extend(Shaped(file.path) for file in undescribed if file.path not in file_of)
    classes = classes_of(chain.from_iterable(images.values()))
    plan = {}
    for split, same in sorted(images.items()):
        files_of = shapes.used.get(split, [])
        where = files_of[0].path if files_of else "its file of shapes"
        parsed = coco.parse(as_coco(same, classes), where, left_out=MADE_UP, ids_repeat=True)
        skipped = [*parsed.skipped, *shapes.skipped.get(split, ())]
        parsed = replace(parsed, ids=(), parts=[], skipped=skipped, notes=[*parsed.notes, *notes])
        plan[split] = _described(files, split, parsed, files_of, file_of, parts, shapes.tables)
    return plan


class Shaped(NamedTuple):
    """An image with shapes.

    Attributes:
        name: Its name in the file.
        entries: Further entries of it, such as its width.
        shapes: Annotations as in COCO, with the name of their class.
        error: Why the image cannot be used.
    """

    name: str
    entries: Mapping[str, Any] = {}
    shapes: Sequence[_Shape] = ()
    error: str = ""


def format_of(data: bytes) -> str | None:
    """Return the name of the format of JSON with shapes; None for any other content."""
    value = json_or(None, data) if any(word in data for word in _WORDS) else None
    return next((name for name, (is_it, _) in _FORMATS.items() if is_it(value)), None)


def images_in(data: bytes, where: str) -> list[Shaped]:
    """Return the images of a file."""
    try:
        return list(_FORMATS[str(format_of(data))][1](json.loads(data)))
    except _ERRORS as error:
        raise SourceError(f"{where} has an invalid shape ({type(error).__name__}: {error})") from error


def as_coco(images: Iterable[Shaped], names: Sequence[str]) -> bytes:
    """Return images as a file of COCO with these classes."""
    numbers = {name: class_number for class_number, name in enumerate(names)}
    images = list(images)
    annotations = [
        {key: value for key, value in shape.items() if key != _CLASS}
        | {"image_id": image.name, "category_id": numbers[shape[_CLASS]]}
        for image in images
        for shape in image.shapes
    ]
    listed = [{**image.entries, "id": image.name, "file_name": image.name} for image in images]
    categories = [{"id": class_number, "name": name} for name, class_number in numbers.items()]
    return json.dumps({"images": listed, "annotations": annotations, "categories": categories}).encode()


def classes_of(images: Iterable[Shaped]) -> list[str]:
    """Return the names of all classes, sorted."""
    return sorted({shape[_CLASS] for image in images for shape in image.shapes})


def _entries(source: Mapping[str, Any], *used: str) -> dict[str, Any]:
    """Return the entries that are neither used nor empty."""
    return {key: value for key, value in source.items() if key not in used and value not in _EMPTY}


def _made(name: Any, geometry: Mapping[str, Any], attributes: Mapping[str, Any]) -> _Shape:
    return {**_entries(attributes), **geometry, _CLASS: str(name)}


def _outline(points: _Points) -> _Shape:
    return {"segmentation": [[float(coordinate) for coordinate in chain.from_iterable(points)]]}


def _around(points: _Points) -> _Shape:
    """Return the box around points."""
    left, top = (min(float(point[axis]) for point in points) for axis in (0, 1))
    right, bottom = (max(float(point[axis]) for point in points) for axis in (0, 1))
    return {"bbox": [left, top, right - left, bottom - top]}


def _ellipse(x: float, y: float, width: float, height: float, angle: float = 0) -> _Shape:
    """Return the box around an ellipse, given by its centre, its semi-axes and its rotation."""
    a = math.hypot(width * math.cos(angle), height * math.sin(angle))
    b = math.hypot(width * math.sin(angle), height * math.cos(angle))
    return {"bbox": [x - a, y - b, 2 * a, 2 * b]}


def _is_labelme(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("shapes"), list) and "imagePath" in value


def _labelme(value: dict[str, Any]) -> Iterable[Shaped]:
    size = {"width": value.get("imageWidth"), "height": value.get("imageHeight")}
    further = _entries(value, "shapes", "imagePath", "imageData", "imageWidth", "imageHeight", "version")
    yield Shaped(str(value["imagePath"]), size | further, [_labelme_shape(entry) for entry in value["shapes"]])


def _labelme_shape(shape: dict[str, Any]) -> _Shape:
    points, kind = shape["points"], shape.get("shape_type") or "polygon"
    if kind == "polygon" and len(points) > 2:
        geometry, used = _outline(points), {"points", "shape_type"}
    elif kind == "circle":
        (x, y), edge = points
        radius = math.dist((x, y), edge)
        geometry, used = _ellipse(x, y, radius, radius), set()
    else:
        geometry, used = _around(points), {"points", "shape_type"} if kind == "rectangle" else set()
    return _made(shape["label"], geometry, {key: value for key, value in shape.items() if key not in {"label", *used}})


def _via_images(value: Any) -> list[Any]:
    images = value.get("_via_img_metadata", value) if isinstance(value, dict) else {}
    return list(images.values()) if isinstance(images, dict) else []


def _is_via(value: Any) -> bool:
    images = _via_images(value)
    return bool(images) and all(isinstance(image, dict) and {"filename", "regions"} <= image.keys() for image in images)


def _via(value: Any) -> Iterable[Shaped]:
    pairs = [(image, image["regions"]) for image in _via_images(value)]
    images = [(image, list(regions.values() if isinstance(regions, dict) else regions)) for image, regions in pairs]
    attributes = dict.fromkeys(key for _, regions in images for part in regions for key in part["region_attributes"])
    usual = usual_columns(LABEL, attributes) or [key for key in attributes if key.lower() in ("name", "type", "object")]
    if len(attributes) > 1 and len(usual) != 1:
        raise SourceError(
            f"regions of VIA have the attributes {quoted(attributes)}, and it is not known which one is the class: "
            "call it 'class', or write the objects as COCO"
        )
    key = next(iter(usual or attributes), None)
    for image, regions in images:
        try:
            shapes, error = [_via_shape(region, key) for region in regions], ""
        except SourceError as problem:
            shapes, error = [], str(problem)
        yield Shaped(str(image["filename"]), image.get("file_attributes") or {}, shapes, error)


def _via_shape(region: dict[str, Any], key: str | None) -> _Shape:
    shape, attributes = region["shape_attributes"], dict(region["region_attributes"])
    if key is not None and attributes.get(key) in _EMPTY:
        raise SourceError(f"a region has no value for {key!r}, which is the class")
    name = _NO_CLASS if key is None else attributes.pop(key)
    if isinstance(name, dict):  # options that can be chosen together
        chosen = [option for option, is_chosen in name.items() if is_chosen]
        if len(chosen) != 1:
            raise SourceError(f"a region has {len(chosen)} of the options of {key!r}, which is the class: choose one")
        [name] = chosen
    if shape["name"] == "rect":
        return _made(name, {"bbox": [shape[side] for side in ("x", "y", "width", "height")]}, attributes)
    if "all_points_x" in shape:
        points = list(zip(shape["all_points_x"], shape["all_points_y"], strict=True))
        if shape["name"] == "polygon" and len(points) > 2:
            return _made(name, _outline(points), attributes)
        return _made(name, _around(points), attributes | {"shape": shape})
    radius = shape.get("r", 0)
    sizes = (shape.get("rx", radius), shape.get("ry", radius), shape.get("theta", 0))
    return _made(name, _ellipse(shape["cx"], shape["cy"], *sizes), attributes | {"shape": shape})


def _has_lists(value: Any, name: str, parts: str, geometry: set[str]) -> bool:
    """Return whether JSON is a list of images with a name and a list of parts, of which one has a geometry."""
    if not isinstance(value, list) or not all(isinstance(image, dict) and name in image for image in value):
        return False
    image_parts = [part for image in value for part in image.get(parts) or () if isinstance(part, dict)]
    return any(not geometry.isdisjoint(part) for part in image_parts)


def _createml(value: Any) -> Iterable[Shaped]:
    for image in value:
        shapes = []
        for part in image["annotations"]:
            x, y, width, height = (float(part["coordinates"][side]) for side in ("x", "y", "width", "height"))
            attributes = {key: value for key, value in part.items() if key not in ("label", "coordinates")}
            shapes.append(_made(part["label"], {"bbox": [x - width / 2, y - height / 2, width, height]}, attributes))
        yield Shaped(str(image["image"]), _entries(image, "image", "annotations"), shapes)


def _frames(value: Any) -> Any:
    return value.get("frames") if isinstance(value, dict) else value


def _scalabel(value: Any) -> Iterable[Shaped]:
    for frame in _frames(value):
        entries = _entries(frame, "name", "labels", "size")
        shapes = [_scalabel_shape(part) for part in frame.get("labels") or ()]
        yield Shaped(str(frame["name"]), entries | (frame.get("size") or {}), shapes)


def _scalabel_shape(part: dict[str, Any]) -> _Shape:
    """Return a label; its box includes the pixels of its right and bottom edge."""
    attributes = {key: value for key, value in part.items() if key not in ("category", "box2d", "rle")}
    geometry: _Shape = {"segmentation": part["rle"]} if part.get("rle") else {}
    geometry["iscrowd"] = int(bool((part.get("attributes") or {}).get("crowd")))
    polygons = part.get("poly2d") or []
    if polygons and all(polygon["closed"] and "C" not in polygon["types"] for polygon in polygons):
        del attributes["poly2d"]
        geometry |= {"segmentation": [list(chain.from_iterable(polygon["vertices"])) for polygon in polygons]}
    elif polygons:  # lines and curves
        geometry |= _around([point for polygon in polygons for point in polygon["vertices"]])
    if box := part.get("box2d"):
        left, top, right, bottom = (float(box[edge]) for edge in ("x1", "y1", "x2", "y2"))
        geometry["bbox"] = [left, top, right - left + 1, bottom - top + 1]
    return _made(part["category"], geometry, attributes)


_FORMATS: dict[str, tuple[Callable[[Any], bool], Callable[[Any], Iterable[Shaped]]]] = {
    LABELME: (_is_labelme, _labelme),
    "VIA": (_is_via, _via),
    "CreateML": (lambda value: _has_lists(value, "image", "annotations", {"coordinates"}), _createml),
    "Scalabel": (lambda value: _has_lists(_frames(value), "name", "labels", {"box2d", "poly2d", "rle"}), _scalabel),
}
"""Name of a format -> whether JSON is in it, and its images."""
