"""The layouts of Pascal VOC: an XML file per image, or masks; the splits are lists in ``ImageSets/``."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from wds_tools.errors import SourceError
from wds_tools.format.account import Part
from wds_tools.format.label import Classes, quoted
from wds_tools.format.objects import OBJECT_KEYS, SAMPLE_KEYS, Object, box_of, further, packed, unpacked
from wds_tools.sources import layouts, masks
from wds_tools.sources.annotated import (
    LOOKED_AT,
    Annotated,
    Annotations,
    Collected,
    Described,
    Members,
    notes_on_names,
    without_masks,
)
from wds_tools.sources.class_file import lines_of, names_in
from wds_tools.sources.columns import LABEL
from wds_tools.sources.file_list import Files
from wds_tools.sources.file_names import is_split_name
from wds_tools.sources.inputs import File
from wds_tools.sources.layouts import file_stem, is_image_name, split_folder
from wds_tools.sources.text_table import ONE_HOT_NAME, TextTable
from wds_tools.sources.tree import Layout

_PAIR_FOLDERS = frozenset(["jpegimages", "images", "data", "annotations", "xmls", "labels"])
_EDGES = ("xmin", "ymin", "xmax", "ymax")
_MAX_DEPTH = 20
_MAX_BYTES = 64 << 20  # 10,000 objects take 3 MB
_FLAGS = ("truncated", "difficult", "occluded", "segmented", "depth")  # whole numbers; everything else stays text
_Tree = dict[str, Any]


def read_xml(data: bytes, where: str) -> _Tree:
    """Return an XML file as dictionaries: elements that occur several times are lists, as in torchvision.

    >>> read_xml(b"<annotation><object><name>cat</name></object><size/></annotation>", "a.xml")
    {'object': {'name': 'cat'}, 'size': ''}
    """
    if len(data) > _MAX_BYTES:
        raise SourceError(f"{where} has {len(data):,} bytes; allowed are {_MAX_BYTES:,} for one image")
    parser = ElementTree.XMLParser(target=_Builder())  # noqa: S314 - document types are refused, and depth is limited
    try:
        parser.feed(data)
        root = parser.close()
        tree = _value(root)
    except SourceError as error:
        raise SourceError(f"{where} has {error}") from error
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # also an unknown encoding
        raise SourceError(f"{where} is not valid XML: {error}") from error
    if root.tag != "annotation" or not isinstance(tree, dict):
        raise SourceError(f"{where} is not a VOC annotation: its first element is <{root.tag}>")
    return tree


class _Builder(ElementTree.TreeBuilder):
    def doctype(self, *_: Any) -> None:
        raise SourceError("a document type declaration, which VOC files do not need: remove it")


def _value(element: ElementTree.Element, depth: int = 1) -> Any:
    """Return an element as a text, or as a dictionary if it has attributes or other elements."""
    if depth > _MAX_DEPTH:
        raise SourceError(f"elements nested more than {_MAX_DEPTH} levels deep")
    children: _Tree = {f"@{key}": value for key, value in element.attrib.items()}
    several: dict[str, list[Any]] = {}
    for child in element:
        several.setdefault(child.tag, []).append(_value(child, depth + 1))
    children |= {tag: values if len(values) > 1 else values[0] for tag, values in several.items()}
    text = "".join([element.text or "", *(child.tail or "" for child in element)]).strip()
    return (children | {"#text": text} if text else children) if children else text


def annotations_of(files: Iterable[tuple[str, str, bytes | None]]) -> Annotations:
    """Return the annotations of images.

    Classes are numbered in sorted order, as in VOC. VOC counts pixels from 1, and a box includes its last
    pixel: ``xmin`` 1 and ``xmax`` 500 are all of 500 pixels, left 0 and right 500. Many programs count from 0
    instead. A dataset counts from 0 if any ``xmin`` or ``ymin`` is below 1; then nothing is subtracted.

    Args:
        files: For each image its name, the name of its XML file, and the content of that; None without a file,
            which is an image without annotations.
    """
    result = Collected()
    raw: dict[str, bytes] = {}
    file_of: dict[str, str] = {}
    seen: set[str] = set()  # class names
    elements: set[str] = set()
    from_zero = ""
    stated: dict[str, str] = {}  # image -> name of the image in its file
    for image, name, data in files:
        if b"<pt>" in (data or b"") or b"LabelMe" in (data or b"")[:1000]:
            raise SourceError(
                f"{name} is an annotation of LabelMe (XML with <pt>), which is not read: write the objects as COCO, "
                "YOLO or VOC; or pass --from folder (kind='folder') to pack the images without them"
            )
        try:
            tree = read_xml(data, name) if data is not None else {}
            elements |= tree.keys()
            seen |= {_class_name(element, name) for element in _list(tree.get("object"))}
            from_zero = from_zero or (name if _counts_from_zero(tree) else "")
            raw[image] = packed(tree)
            file_of[image] = name
            stated[image] = str(tree.get("filename", ""))
        except SourceError as error:
            result.skip(image, error, name)
    names = Classes.sorted(seen)
    _convert(result, raw, file_of, names.numbers(), 0 if from_zero else 1)
    result.annotations.names = tuple(names)
    result.annotations.notes.append(
        f"boxes count pixels from 0: {from_zero} has an xmin or ymin below 1"
        if from_zero
        else "boxes count pixels from 1, as VOC defines it: no xmin or ymin is below 1"
    )
    result.annotations.notes += notes_on_names(stated, file_of, "XML file", "<filename>")
    result.annotations.parts += [Part("entry", name, "json") for name in sorted(elements)]
    return result.finished()


def _convert(
    result: Collected, raw: dict[str, bytes], file_of: Mapping[str, str], numbers: Mapping[str, int], first: int
) -> None:
    for image in list(raw):
        tree = unpacked(raw.pop(image))
        width, height = _side(tree, "width"), _side(tree, "height")

        def make(tree: _Tree = tree, width: int = width, height: int = height) -> _Tree:
            stated = {"width": width, "height": height} if width and height else {}
            entries = further(_size(tree), ("width", "height"), SAMPLE_KEYS)
            entries |= further(tree, ("object", "size"), SAMPLE_KEYS)
            elements = enumerate(_list(tree.get("object")))
            objects = [_object(element, numbers, first, index) for index, element in elements]
            return stated | _plain(entries) | {"objects": objects}

        result.add(image, make, (width or math.inf, height or math.inf), file=file_of[image])


def _list(value: Any) -> list[Any]:
    """Return the elements of a name, which may occur never, once or several times."""
    return [] if value in (None, "") else value if isinstance(value, list) else [value]


def _class_name(element: Any, where: str) -> str:
    name = element.get("name") if isinstance(element, dict) else None
    if not isinstance(name, str) or not name:
        raise SourceError(f"{where} has an object without a name")
    return name


def _counts_from_zero(tree: _Tree) -> bool:
    boxes = [element.get("bndbox") for element in _list(tree.get("object"))]
    edges = [box.get(edge) for box in boxes if isinstance(box, dict) for edge in ("xmin", "ymin")]
    try:
        return any(float(edge) < 1 for edge in edges if isinstance(edge, str))
    except ValueError:
        return False  # `_box` reports it


def _object(element: _Tree, numbers: Mapping[str, int], first: int, index: int) -> Object:
    try:
        made: Object = {"box": _box(element, first), "category": numbers[element["name"]]}
        if polygon := element.get("polygon"):
            made["polygons"] = [_polygon(points, first) for points in _list(polygon)]
        more = {name: value for name, value in element["bndbox"].items() if name not in _EDGES}  # such as an angle
        attributes = further(more | element, ("name", "bndbox", "polygon", "part"), OBJECT_KEYS)
        parts = [_part(part, first) for part in _list(element.get("part"))]
    except SourceError as error:
        raise SourceError(f"object {index} ({element['name']}) has {error}") from error
    return made | _plain(attributes) | ({"part": parts} if parts else {})


def _part(part: Any, first: int) -> _Tree:
    if not isinstance(part, dict):
        raise SourceError("a part without a box")
    attributes = {name: value for name, value in part.items() if name != "bndbox"}
    return attributes | ({"box": _box(part, first)} if "bndbox" in part else {})


def _box(element: _Tree, first: int) -> list[float]:
    box = element.get("bndbox")
    if not isinstance(box, dict):
        raise SourceError("no box (bndbox)")
    left, top, right, bottom = box_of([box.get(edge) for edge in _EDGES])
    return [left - first, top - first, right, bottom]


def _polygon(points: Any, first: int) -> list[float]:
    """Return an outline written as x1, y1, x2, y2 ..., as Roboflow does."""
    if not isinstance(points, dict):
        raise SourceError("a polygon without points")
    coordinates: list[float] = []
    for point in range(1, len(points) // 2 + 1):
        x, y, _, _ = box_of([points.get(f"x{point}"), points.get(f"y{point}"), 0, 0])
        coordinates += [x - first, y - first]
    if len(coordinates) != len(points) or not coordinates:
        raise SourceError("a polygon that is not x1, y1, x2, y2, ...")
    return coordinates


def _plain(tree: _Tree) -> _Tree:
    """Return attributes with the numbers that VOC defines as numbers."""
    return {
        name: int(value) if name in _FLAGS and isinstance(value, str) and value.isascii() and value.isdigit() else value
        for name, value in tree.items()
    }


def _size(tree: _Tree) -> _Tree:
    size = tree.get("size")
    return size if isinstance(size, dict) else {}


def _side(tree: _Tree, side: str) -> int:
    """Return the width or height in the XML, 0 if it is not stated or written as 0."""
    value = _size(tree).get(side)
    try:
        size = float(value) if isinstance(value, str) else 0.0
    except ValueError:
        return 0
    return int(size) if math.isfinite(size) and size == int(size) else 0


def image_set(data: bytes, where: str) -> tuple[str, ...]:
    r"""Return the names without extension that a file in ``ImageSets`` lists: a line for each, in quotes or not.

    >>> image_set(b'2008_000002\n"photo 3"\nJPEGImages/1.jpg\n', "train.txt")
    ('2008_000002', 'photo 3', '1')
    """
    names = (posixpath.basename(line.strip('"').replace("\\", "/")) for line in lines_of(data, where))
    return tuple(file_stem(name) if is_image_name(name) else name for name in names if name)


def pair_key(path: str) -> tuple[str, ...]:
    """Return what an image and its XML file have in common: folders and name without what only states the kind.

    >>> pair_key("VOC2012/JPEGImages/1.jpg") == pair_key("VOC2012/Annotations/1.xml")
    True
    >>> pair_key("ILSVRC/Data/CLS-LOC/val/1.JPEG") == pair_key("ILSVRC/Annotations/CLS-LOC/val/1.xml")
    True
    """
    folder, name = posixpath.split(path)
    kept = [part for part in folder.split("/") if part.lower() not in _PAIR_FOLDERS]
    return (*kept, file_stem(name))


class Voc(Annotated):
    """Pascal VOC: ``Annotations/1.xml`` for ``JPEGImages/1.jpg``, or both in one folder; ``ImageSets/Main``."""

    kind = "voc"
    expected = "an XML file <annotation> for an image, such as Annotations/1.xml for JPEGImages/1.jpg"
    annotation_ending = (".xml",)
    file_kind = "XML file"

    @classmethod
    def matches(cls, files: Files) -> bool:
        """Return whether an image has a VOC annotation."""
        xml_files = _xml_files(files)
        first = [xml_files[path] for path in files.images.paths if path in xml_files][:LOOKED_AT] if xml_files else []
        return any(b"<annotation" in files.read(file)[:1000] for file in first)

    def _read(self, files: Files) -> dict[str, Described]:
        annotation = _xml_files(files)
        images, parts = without_masks(files, annotation)
        annotated = [(file.path, annotation.get(file.path)) for file in images]
        everything = annotations_of(
            (path, xml.path if xml else "", files.read(xml) if xml else None) for path, xml in annotated
        )
        plan = {}
        for split, members in _image_sets(files, images).items():
            source = "ImageSets" if split else "Annotations"
            lists, missing = members.lists, members.missing
            plan[split] = Described(everything, members.by_path, parts, lists, source, annotation, missing=missing)
        return plan


def _xml_files(files: Files) -> dict[str, File]:
    """Return the XML file of each image that has one."""
    if not any(file.path.lower().endswith(".xml") for file in files.others):
        return {}
    by_key: dict[tuple[str, ...], File | None] = {}
    for file in files.others:
        if file.path.lower().endswith(".xml"):
            key = pair_key(file.path)
            by_key[key] = None if key in by_key else file
    pairs = {file.path: by_key.get(pair_key(file.path)) for file in files.images}
    return {path: xml for path, xml in pairs.items() if xml is not None}


def _image_sets(files: Files, images: Sequence[File], kind: str = "Main") -> dict[str, Members]:
    """Return the images of each split that ``ImageSets`` lists; all with an empty name without lists.

    VOC2007 and VOC2012 each have lists of the images next to their folder ``ImageSets``.
    """
    by_kind: dict[str, dict[str, list[tuple[str, File]]]] = {}  # folder in ImageSets -> folder above -> split, file
    for file in filter(lambda file: layouts.is_image_set(file.path), files.others):
        folder, name = posixpath.split(file.path)
        above, _, kind_here = f"{folder}/".rpartition("ImageSets/")
        if is_split_name(split := posixpath.splitext(name)[0]):
            by_kind.setdefault(kind_here.rstrip("/"), {}).setdefault(above, []).append((split, file))
    lists = next((by_kind[name] for name in (kind, "Main", "Segmentation", "") if name in by_kind), {})
    sets: dict[str, Members] = {}
    for folder, of_folder in lists.items():
        place = folder if len(lists) > 1 else ""
        stems = {file_stem(file.path): file for file in images if file.path.startswith(place)}
        others = (path for path in files.images.paths if path.startswith(place) and not masks.is_mask(path))
        all_stems = stems.keys() | set(map(file_stem, others))
        for split, file in of_folder:
            listed = dict.fromkeys(image_set(files.read(file), file.path))
            if there := [stems[stem] for stem in listed if stem in stems]:
                before = sets.get(split, Members(()))
                missing = dict(before.missing) | {stem: file.path for stem in listed if stem not in all_stems}
                sets[split] = Members([*before.images, *there], (*before.lists, file), missing)
    if {"train", "val"} <= sets.keys():
        sets.pop("trainval", None)
    return sets or {"": Members(images)}


class Masks(Annotated):
    """Images with masks of the same name: ``images/`` and ``masks/``, CamVid, Cityscapes, VOC without XML files."""

    kind = "masks"
    labels = "folders"
    place = "mask.png"
    expected = (
        "masks with the names of the images, such as masks/1.png for images/1.jpg; otherwise write a table with a row "
        "for each image, such as image,mask"
    )

    @classmethod
    def matches(cls, files: Files) -> bool:
        """Return whether an image has a mask."""
        return bool(files.pairing.pairs or masks.siblings(files.images.paths, files.folders))

    @classmethod
    def recognised(cls, files: Files) -> Layout | None:
        """Return the layout if at least half of the images have a mask."""
        paths, pairing = files.images.paths, files.pairing
        of_other_splits = {*_in_splits_without_masks(pairing)}
        pairing = pairing._replace(unpaired=[name for name in pairing.unpaired if name not in of_other_splits])
        is_most = len(pairing.pairs) >= max(1, len(pairing.unpaired))
        if is_most:
            pairing.check(files.where)
        used = {posixpath.dirname(mask) for _, fields in pairing.pairs for mask in fields.values()}
        lost = [name for name in pairing.unpaired if not masks.is_mask(name) or posixpath.dirname(name) not in used]
        without = [*(image for image, _ in pairing.pairs), *lost] if is_most else paths  # masks of other folders
        if pairing.unpaired and (together := masks.folders_together(without)):
            example = next(filter(masks.is_mask, lost or pairing.unpaired), pairing.unpaired[0])
            pair, only = "", ""
            if pairing.pairs:
                image, fields = pairing.pairs[0]
                mask = next(iter(fields.values()))
                pair = f", while {mask!r} is the mask of {image!r}"
                only = f"--from masks (kind='masks') to pack only masks such as {mask!r}, or "
            raise SourceError(
                f"{files.where} has images in {together[0]!r} and masks in {together[1]!r}, but {example!r} has no "
                f"partner with its name{pair}: merge the masks of an image into one file with its name, or write a "
                f"table with a row for each image, such as image,mask; or pass {only}--from folder (kind='folder') if "
                "the folders are classes"
            )
        if is_most:
            _check_further(files, pairing, lost)
            return cls()
        if siblings := masks.siblings(paths, files.folders):
            labels = quoted(sorted({*masks.classes(paths, siblings).values()}))
            if not labels and not pairing.pairs and masks.have_one_name(siblings):
                return cls()
            folders = quoted("/".join(folder) for folder in list(siblings)[:2])
            are_labels = (
                f" ({labels} are then labels: pass --column label= too if they are not, or pack each alone if they are "
                "splits)"
            )
            raise SourceError(
                f"{files.where} has the folders {folders} with files of the same names: pass --from masks "
                f"(kind='masks') if the second has the masks of the first{are_labels if labels else ''}, or --from "
                "folder (kind='folder') if they are classes"
            )
        return None

    def _read(self, files: Files) -> dict[str, Described]:
        paths, pairing = files.images.paths, files.pairing
        folders = {} if pairing.pairs else masks.siblings(paths, files.folders)
        pairing = masks.pairs(paths, folders) if folders else pairing
        parts = files.named(pairing.pairs)
        without = _in_splits_without_masks(pairing)
        images = [*parts, *without]
        is_unlabelled = self.options.columns.get(LABEL) == ""
        classes = {} if is_unlabelled else masks.classes(images, folders) or masks.classes(parts, folders)
        notes = pairing.check(files.where)
        packed = {posixpath.dirname(mask) for _, fields in pairing.pairs for mask in fields.values()}
        if unused := {posixpath.dirname(name) for name in pairing.unpaired if masks.is_mask(name)} - packed:
            notes.append(
                f"masks in {quoted(sorted(packed))} are packed, and those in {quoted(sorted(unused))} are left out, "
                "because no image has their names: rename them, or move the others away, if these are the masks"
            )
        if len(labels := sorted({*classes.values()})) > 1:
            notes += [f"the folders {quoted(labels)} of images with masks are their classes: {layouts.IF_PARTS}"]
        if without:
            splits, others = (quoted(sorted({*map(split_folder, paths)})) for paths in (parts, without))
            notes.append(f"there are masks of {splits} only, and none of {others}")
        names, used = _mask_classes(files)
        names = names or (() if classes else tuple(self.options.classes or ()))
        plan = {}
        for split, members in _image_sets(files, [files.by_path[path] for path in images], "Segmentation").items():
            described = Described(Annotations(names), members.by_path, parts, [*used, *members.lists], "a pair")
            plan[split] = replace(described, classes=classes, notes=notes, missing=members.missing)
        return plan

    def _why_skipped(self, files: Files, file: File, split: Described) -> str:
        if layouts.is_image_name(file.path):
            return "has no mask, or no image that is packed"
        return super()._why_skipped(files, file, split)


def _in_splits_without_masks(pairing: masks.Pairs) -> list[str]:
    """Return the images in folders of splits without any mask, as of a test set; none if some pairs are in no split."""
    paired = {split_folder(image) for image, _ in pairing.pairs}
    if not paired or "" in paired:
        return []
    with_masks = {"", *paired, *(split_folder(name) for name in pairing.unpaired if masks.is_mask(name))}
    return [name for name in pairing.unpaired if split_folder(name) not in with_masks]


def _check_further(files: Files, pairing: masks.Pairs, others: Sequence[str]) -> None:
    """Check that no further folder has files with the names of most of the images, which could be masks too."""
    folders = {posixpath.dirname(image) for image, _ in pairing.pairs}
    others = [name for name in others if posixpath.dirname(name) not in folders]
    further = masks.partners((image for image, _ in pairing.pairs), others)
    if further and 2 * len(further) >= len(pairing.pairs):
        image, unpaired = next(iter(further.items()))
        _, mask = min(dict(pairing.pairs)[image].items(), key=lambda item: not item[0].startswith("mask"))
        raise SourceError(
            f"{files.where} has {mask!r} as the mask of {image!r}, and another file {unpaired!r} with the same name: "
            f"if this is the mask, call its folder 'masks' and move masks such as {mask!r} away; if it is not, move it "
            f"away, or pass --from masks (kind='masks'), which takes masks such as {mask!r}"
        )


def _mask_classes(files: Files) -> tuple[tuple[str, ...], list[File]]:
    """Return the class names of masks by number, and their files: Roboflow writes the same one for each split."""
    files_by_classes: dict[tuple[str, ...], list[File]] = {}
    for file in files.others:
        if posixpath.basename(file.path) == ONE_HOT_NAME and not file.reason:
            table = TextTable(Path(file.path), None, files.read(file))
            if [name.lower() for name in table.columns] == ["pixel value", "class"]:
                rows = dict(tuple(row.values()) for _, row in table.rows())
                files_by_classes.setdefault(names_in(rows), []).append(file)
    if len(files_by_classes) > 1:
        paths = [class_files[0].path for class_files in files_by_classes.values()]
        raise SourceError(f"{quoted(paths[:2])} have different classes: correct them, or pack their folders separately")
    return next(iter(files_by_classes.items()), ((), []))
