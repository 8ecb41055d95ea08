"""Pascal VOC: an XML file per image in ``Annotations/``, images in ``JPEGImages/``, splits in ``ImageSets/``."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Iterable, Mapping
from typing import Any
from xml.parsers import expat

from wds_tools.errors import SourceError
from wds_tools.format.account import Part
from wds_tools.format.label import Classes
from wds_tools.format.objects import OBJECT_KEYS, SAMPLE_KEYS, Object, box_of, further
from wds_tools.sources.annotations import Annotations, Collected, lines_of, notes_on_names, packed, stem_of, unpacked
from wds_tools.sources.layouts import is_image_name

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
    builder = _Builder(where)
    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler = builder.start, builder.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = builder.text, builder.refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:  # also an unknown encoding
        raise SourceError(f"{where} is not valid XML: {error}") from error
    if builder.name != "annotation" or not isinstance(builder.root, dict):
        raise SourceError(f"{where} is not a VOC annotation: its first element is <{builder.name}>")
    return builder.root


class _Builder:
    """Handlers of the parser, which build dictionaries."""

    def __init__(self, where: str) -> None:
        self.root: Any = None
        self.name = ""
        self._where = where
        self._open: list[tuple[str, _Tree, list[str]]] = []

    def start(self, name: str, attributes: Mapping[str, str]) -> None:
        if len(self._open) >= _MAX_DEPTH:
            raise SourceError(f"{self._where} has elements nested more than {_MAX_DEPTH} levels deep")
        self._open.append((name, {f"@{key}": value for key, value in attributes.items()}, []))

    def text(self, data: str) -> None:
        self._open[-1][2].append(data)

    def end(self, name: str) -> None:
        _, children, texts = self._open.pop()
        text = "".join(texts).strip()
        value: Any = (children | {"#text": text} if text else children) if children else text
        if not self._open:
            self.name, self.root = name, value
            return
        parent = self._open[-1][1]
        if name not in parent:
            parent[name] = value
        elif isinstance(parent[name], list):
            parent[name].append(value)
        else:
            parent[name] = [parent[name], value]

    def refuse(self, *_: Any) -> None:
        raise SourceError(f"{self._where} has a document type declaration, which VOC files do not need: remove it")


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
    return tuple(stem_of(name) if is_image_name(name) else name for name in names if name)


def pair_key(path: str) -> tuple[str, ...]:
    """Return what an image and its XML file have in common: folders and name without what only states the kind.

    >>> pair_key("VOC2012/JPEGImages/1.jpg") == pair_key("VOC2012/Annotations/1.xml")
    True
    >>> pair_key("ILSVRC/Data/CLS-LOC/val/1.JPEG") == pair_key("ILSVRC/Annotations/CLS-LOC/val/1.xml")
    True
    """
    folder, name = posixpath.split(path)
    kept = [part for part in folder.split("/") if part.lower() not in _PAIR_FOLDERS]
    return (*kept, stem_of(name))
