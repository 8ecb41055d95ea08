"""Trees of images with annotations in JSON: COCO; LabelMe, VIA, CreateML and Scalabel are converted to it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from wds_tools.errors import SourceError
from wds_tools.format.label import quoted
from wds_tools.sources import coco, shapes
from wds_tools.sources.annotated import LOOKED_AT, Annotated, Described
from wds_tools.sources.annotations import Annotations
from wds_tools.sources.base import Skip
from wds_tools.sources.file_list import Files
from wds_tools.sources.inputs import File
from wds_tools.sources.layouts import RowNames, split_folder, split_in

_MAX_FILES = 50  # JSON files that are looked at; those with the names that COCO files have come first


class Coco(Annotated):
    """COCO: one JSON file per split, with the images anywhere in the tree; or files of shapes, per split or image."""

    kind = "coco"
    found_by = "a JSON file with 'images' and 'annotations', or files of LabelMe, VIA, CreateML or Scalabel"

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
            raise _several([file.path for same in by_split.values() for file in same])
        plan = {name: _coco_split(files, name, same) for name, same in sorted(by_split.items())}
        lists = {(part.annotations.ids, part.annotations.names): part.source for part in plan.values()}
        lists.pop(((), ()), None)
        if len(lists) > 1:
            raise SourceError(
                f"{' and '.join(list(lists.values())[:2])} have different categories, so a class number would mean "
                "different things: make the lists equal, or pack them separately"
            )
        return plan


def _coco_files(files: Files, *, first: bool = False) -> list[File]:
    """Return the JSON files that are COCO, or only the first. Those with the name of an image describe it."""
    described = [file for file in files.others if file.path.lower().endswith(".json") and not file.reason]
    stems = {posixpath.splitext(file.path)[0] for file in files.images} if described else set()
    candidates = [file for file in described if posixpath.splitext(file.path)[0] not in stems]
    candidates.sort(key=lambda file: not coco.has_usual_name(file.path))
    found = (file for file in candidates[:_MAX_FILES] if coco.is_coco(files.read(file)))
    return list(islice(found, 1) if first else found)


def _several(paths: Sequence[str]) -> SourceError:
    return SourceError(
        f"there are several COCO files about the same images, {quoted(sorted(paths))}: it is not known which one is "
        "meant. Keep one, or name them as COCO does: instances_train.json, person_keypoints_train.json, "
        "captions_train.json"
    )


def _coco_split(files: Files, split: str, same: Sequence[File]) -> Described:
    """Return the split that COCO files of one split describe together."""
    if len(same) > 1 and not all(coco.can_be_merged(file.path) for file in same):
        raise _several([file.path for file in same])
    annotations = coco.parse(files.read(same[0]), same[0].path)
    for file in same[1:]:
        annotations = coco.merged(annotations, coco.parse(files.read(file), file.path), file.path)
    return _described(files, split, annotations, same)


def _described(
    files: Files,
    split: str,
    annotations: Annotations,
    used: Sequence[File],
    own: Mapping[str, File] = MappingProxyType({}),
    own_kind: str = "",
) -> Described:
    """Return a split with the images that its annotations name; the arguments are those of `Described`."""
    first = used[0].path if used else ""
    source = posixpath.basename(first) or f"a {own_kind}"
    names = [*annotations.images, *(skip.path for skip in annotations.skipped)]
    known = RowNames(files.images)
    images = {name: known.find(coco.name_here(name), table=first, folder=split) for name in names}
    if names and not any(images.values()):
        raise SourceError(
            f"no image of {first} is in {files.where}, such as {names[0]!r}: put the images into a folder below it"
        )
    parts: dict[str, dict[str, File]] = {}
    for name, fields in annotations.fields.items():
        image = images[name]
        for kind, png in fields.items() if image is not None else ():
            part = known.find(coco.name_here(png), table=first, folder=posixpath.splitext(source)[0])
            if image is None or part is None:
                raise SourceError(f"{first} names {png!r}, but there is no such file in {files.where}")
            parts.setdefault(image.path, {})[kind] = part
    labels = {image.path: annotations.labels[name] for name, image in images.items() if image and annotations.labels}
    are_single = all(len(own) < 2 for own in labels.values())
    classes = {path: own[0] if are_single else own for path, own in labels.items() if own}
    return Described(annotations, images, parts, used, source, own, own_kind, classes)


def _shape_files(files: Files, *, first: bool = False) -> Iterator[tuple[File, bytes, str]]:
    """Yield the JSON files with shapes, their content and the name of their format; or only from the first of them.

    There may be one for each image, with its name.
    """
    described = [file for file in files.others if file.path.lower().endswith(".json") and not file.reason]
    names = {posixpath.basename(file.path) for file in files.images} if described else set()
    names |= {posixpath.splitext(name)[0] for name in names}
    own = [file for file in described if posixpath.splitext(posixpath.basename(file.path))[0] in names]
    others = sorted({*described} - {*own}, key=lambda file: (not coco.has_usual_name(file.path), file.path))
    for file in (*others[:_MAX_FILES], *(own[:LOOKED_AT] if first else own)):
        data = files.read(file)
        if (kind := shapes.format_of(data)) is not None:
            yield file, data, kind


def _splits_of_shapes(files: Files) -> dict[str, Described]:
    """Return the splits of files with shapes. If images have one each, those without have no objects, as in VOC."""
    known = RowNames(files.images)
    images: dict[str, list[shapes.Shaped]] = {}
    used: dict[str, list[File]] = {}
    own: dict[str, File] = {}
    skipped: list[Skip] = []
    kinds: dict[str, None] = {}
    for file, data, kind in _shape_files(files):
        kinds[kind] = None
        stem = posixpath.splitext(posixpath.basename(file.path))[0]
        image = known.find(stem, table=file.path)
        split = "" if image is not None or kind == shapes.LABELME else split_folder(file.path) or split_in(stem)
        if image is not None:
            own[image.path] = file
        else:
            used.setdefault(split, []).append(file)
        try:
            found = shapes.images_in(data, file.path)
        except SourceError as error:
            if image is None:
                raise
            skipped.append(Skip(image.path, str(error)))
            continue
        images.setdefault(split, []).extend(one._replace(name=image.path) if image else one for one in found)
    if len(kinds) > 1 or ("" in images and len(images) > 1):
        raise _several(
            [file.path for same in used.values() for file in same] + [file.path for file in own.values()][:1]
        )
    if own:
        images.setdefault("", []).extend(shapes.Shaped(file.path) for file in files.images if file.path not in own)
    classes = shapes.classes_of(one for same in images.values() for one in same)
    plan = {}
    for split, same in sorted(images.items()):
        files_of = used.get(split, [])
        where = files_of[0].path if files_of else "its file of shapes"
        parsed = coco.parse(shapes.as_coco(same, classes), where, left_out=shapes.MADE_UP, ids_repeat=True)
        parsed = replace(parsed, ids=(), parts=[], skipped=[*parsed.skipped, *skipped])
        plan[split] = _described(files, split, parsed, files_of, own, "file of shapes" if own else "")
    return plan
