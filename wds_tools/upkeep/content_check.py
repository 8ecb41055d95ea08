"""Checks what checksums cannot: whether the rows of an index state what the samples hold.

An index may be wrong and intact at the same time, such as one that a program wrote. A loader trusts its labels, and
the sizes from which it chooses crops.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import numpy as np

from wds_tools.errors import DecodeError, LabelError, SourceError
from wds_tools.format.image_header import probe
from wds_tools.format.index import ABSENT, NO_LABEL, Index, image_field
from wds_tools.format.label import readings
from wds_tools.format.label_source import FOLDER, INDEX, LabelSource
from wds_tools.format.manifest import Manifest
from wds_tools.format.objects import CATEGORY_PATH
from wds_tools.upkeep.annotation_files import checked_objects


class ContentCheck:
    """Compares the images and labels of a shard with its index."""

    def __init__(self, index: Index, manifest: Manifest) -> None:
        self.remarks: list[str] = []
        self._index = index
        self._objects = manifest.field_classes.get(CATEGORY_PATH)
        self._classes = manifest.classes
        self._label = _label_source(manifest)
        self._images: dict[int, int] = {}  # offset of the image of a sample -> its row
        for name in reversed(image_field(index)):  # the preferred field last: it replaces others of its row
            rows = np.flatnonzero(index.fields[name].offset != ABSENT).tolist()
            self._images |= {row: int(index.fields[name].offset[row]) for row in rows}
        self._images = {offset: row for row, offset in self._images.items()}
        labels = index.fields.get(self._label.field or "") if self._label else None
        facts = index.fields.get(CATEGORY_PATH.partition(":")[0]) if self._objects else None
        self._facts = (
            {} if facts is None else {start: row for row, start in enumerate(facts.offset.tolist()) if start != ABSENT}
        )
        rows = [] if labels is None else np.flatnonzero(labels.offset != ABSENT).tolist()
        self._labels = {} if labels is None else {int(labels.offset[row]): row for row in rows}

    def needs(self, offset: int) -> bool:
        """Return whether the field at this offset is compared with the index."""
        return offset in self._images or offset in self._labels or offset in self._facts

    def differences(self, offset: int, data: memoryview) -> Iterator[str]:
        """Yield a sentence for each difference between the field at an offset and its row of the index."""
        if offset in self._images:
            yield from self._image_differences(self._images[offset], data)
        if offset in self._labels:
            yield from self._label_differences(self._labels[offset], data)
        if offset in self._facts:
            self._add_remarks(self._facts[offset], data)

    def _add_remarks(self, row: int, data: memoryview) -> None:
        assert self._objects is not None
        try:
            facts = json.loads(bytes(data))
            remarks = checked_objects(facts if isinstance(facts, dict) else {}, self._objects)
        except (SourceError, ValueError) as error:
            remarks = [str(error)]
        self.remarks += [f"key {self._index.keys[row]}: {remark}" for remark in remarks]

    def _image_differences(self, row: int, data: memoryview) -> Iterator[str]:
        index = self._index
        stated = int(index.width[row]), int(index.height[row]), int(index.orientation[row])
        if not stated[0] or not stated[1]:
            return  # the header could not be read when the shard was indexed: loaders report it
        try:
            info = probe(data)
        except DecodeError as error:
            yield f"its index records an image of {stated[0]}x{stated[1]}, but the file {error.args[0]}"
            return
        actual = info.width, info.height, info.orientation
        if actual != stated:
            yield (
                f"the image is {actual[0]}x{actual[1]} with EXIF orientation {actual[2]}, but its index records "
                f"{stated[0]}x{stated[1]} with {stated[2]}"
            )
        elif info.kind == "jpg" and info.mode != index.mode[row]:  # modes of other types depend on Pillow's version
            yield f"the image has mode {info.mode}, but its index records {index.mode[row]!r}"

    def _label_differences(self, row: int, data: memoryview) -> Iterator[str]:
        assert self._label is not None
        stated = int(self._index.label[row])
        if stated == NO_LABEL:
            return  # loaders report it
        try:
            value = self._label.value(self._index.keys[row], data)
            possible = readings(value, self._classes)
        except (LabelError, ValueError) as error:
            yield f"its label cannot be read: {error}"
            return
        if possible and stated not in possible:
            yield f"its label is {possible[0]}, but its index records {stated}"


def _label_source(manifest: Manifest) -> LabelSource | None:
    """Return where the labels of the index come from; None if they are not in a field of the shards."""
    if manifest.label in (INDEX, FOLDER):
        return None
    return LabelSource() if manifest.label is None else LabelSource.parse(manifest.label)


def row_differences(index: Index, classes: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (key, sentence) for rows of an index that cannot be right, whatever the shard holds."""
    for key, count in Counter(index.keys).items():
        if count > 1:
            yield key, f"its index has this key {count} times: keys are unique in a shard"
    present = np.zeros(len(index), np.bool_)
    for columns in index.fields.values():
        present |= columns.offset != ABSENT
    for row in np.flatnonzero(~present).tolist():
        yield index.keys[row], "its index has this sample without any field"
    if classes:
        for row in np.flatnonzero(index.label >= len(classes)).tolist():
            reason = (
                f"its index records label {index.label[row]}, but the manifest names {len(classes)} classes, so "
                f"allowed are 0 to {len(classes) - 1}: name all classes in the manifest, then `wds-tools reseal`"
            )
            yield index.keys[row], reason
