"""Images with objects, written to a folder with the annotation files of COCO and YOLO."""

from __future__ import annotations

import json
import os
import posixpath
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from wds_tools.errors import DestinationError, OptionError, SampleError, SourceError
from wds_tools.format.codecs import decode_field
from wds_tools.format.field_classes import ClassList
from wds_tools.format.objects import CATEGORY_PATH, packed, unpacked
from wds_tools.format.sample import IMAGE_FIELDS
from wds_tools.packing.encode import encode_field
from wds_tools.reading.shardset import ShardSet
from wds_tools.reading.stored_samples import StoredSample, stored_samples
from wds_tools.sources.layouts import is_image_name
from wds_tools.terminal import shows_progress
from wds_tools.upkeep import annotation_files
from wds_tools.upkeep.annotation_files import DATA_YAML, Described
from wds_tools.upkeep.restore import RestoreFolder


@dataclass
class ObjectExport:
    """One export of images with objects.

    Attributes:
        dst: The folder, which may have other splits and the same images.
        notes: What the formats cannot hold as it is.
    """

    shards: ShardSet
    dst: Path
    split: str
    overwrite: bool
    progress: bool | None
    notes: list[str] = field(default_factory=list)

    def write(self, formats: Sequence[str]) -> dict[str, list[str]]:
        """Write the images once, and the files of each format; return the names of files and folders by format."""
        classes = self._classes()
        plan = json.dumps({"dataset": self.shards.manifest.fingerprint, "to": formats, "split": self.split})
        images = _Images()
        with RestoreFolder(self.dst, plan=plan.encode(), overwrite=self.overwrite) as folder:
            self._put_images(folder, images, classes, by_stem="yolo" in formats)
            written = {name: self._put_annotations(folder, name, images, classes) for name in formats}
            os.sync()
        return written

    def _classes(self) -> ClassList:
        manifest = self.shards.manifest
        if "json" not in manifest.all_fields or CATEGORY_PATH not in manifest.field_classes:
            raise OptionError(
                f"{self.shards.name} has no objects to export: it has no class list for {CATEGORY_PATH!r}, which "
                "`wds-tools pack` writes for COCO, YOLO and VOC, and ShardWriter with field_classes="
            )
        further = sorted(set(manifest.all_fields) - {"json", *IMAGE_FIELDS})
        if further:
            self.notes.append(f"other fields are left out: {', '.join(further)}; `wds-tools unpack` writes them")
        return manifest.field_classes[CATEGORY_PATH]

    def _put_images(self, folder: RestoreFolder, images: _Images, classes: ClassList, *, by_stem: bool) -> None:
        paths: dict[str, str] = {}
        hidden = not shows_progress(self.progress)
        with tqdm(total=self.shards.manifest.samples, unit=" images", disable=hidden, file=sys.stderr) as bar:
            for shard in range(len(self.shards.locations)):
                for sample in stored_samples(self.shards, shard):
                    described, data = _described(sample, classes)
                    stem = posixpath.splitext(described.name)[0] if by_stem else described.name
                    if stem in paths:
                        raise DestinationError(
                            f"{paths[stem]!r} and {described.facts.get('path', sample.key)!r} would both be "
                            f"images/{self.split}/{stem}{' with one label file' if by_stem else ''}: "
                            "`wds-tools unpack` writes images with all their folders",
                            shard=sample.shard,
                            key=sample.key,
                        )
                    paths[stem] = str(described.facts.get("path", sample.key))
                    folder.put(f"images/{self.split}/{described.name}", data)
                    images.add(described)
                    bar.update()

    def _put_annotations(self, folder: RestoreFolder, to: str, images: _Images, classes: ClassList) -> list[str]:
        """Write the files of one format; return the names of files and folders."""
        names = [f"images/{self.split}/"]
        if to == "coco":
            for name, data in annotation_files.coco_files(images, classes, self.split, self._note(to)):
                folder.put(name, data)
                names.append(name)
            return names
        for name, data in annotation_files.yolo_files(images, self.split, self._note(to)):
            folder.put(name, data)
        self._put_data_yaml(folder, images, classes)
        return [*names, f"labels/{self.split}/", DATA_YAML]

    def _note(self, to: str) -> annotation_files.Note:
        return lambda text: self.notes.append(f"{to}: {text}")

    def _put_data_yaml(self, folder: RestoreFolder, images: _Images, classes: ClassList) -> None:
        """Write ``data.yaml``, in which splits of an earlier export are kept."""
        shape = annotation_files.keypoint_shape(images)
        path = self.dst / DATA_YAML
        old = path.read_bytes() if path.is_file() else b""
        splits = annotation_files.splits_in(old)
        same = old == annotation_files.data_yaml(classes, splits, shape)
        new = annotation_files.data_yaml(classes, {*splits, self.split} if same else {self.split}, shape)
        folder.put(DATA_YAML, new, overwrite=same)


class _Images:
    """Images that were written, with their entries: compressed, as there may be millions of objects."""

    def __init__(self) -> None:
        self._packed: list[tuple[str, bytes]] = []

    def add(self, image: Described) -> None:
        self._packed.append((image.name, packed(image.facts)))

    def __iter__(self) -> Iterator[Described]:
        return (Described(name, unpacked(facts)) for name, facts in self._packed)


def _described(sample: StoredSample, classes: ClassList) -> tuple[Described, bytes | memoryview]:
    """Return an image with its entries, and its file; raw pixels become PNG."""
    stored = next((name for name in IMAGE_FIELDS if name in sample.fields), None)
    if stored is None or "json" not in sample.fields:
        missing = "image" if stored is None else "field 'json'"
        raise SampleError(f"it has no {missing}, so it cannot be exported", shard=sample.shard, key=sample.key)
    facts: Any = decode_field("json", bytes(sample.fields["json"]), where=lambda: (sample.shard, sample.key))
    try:
        annotation_files.checked_objects(facts if isinstance(facts, dict) else {}, classes)
    except SourceError as error:
        raise SampleError(f"field 'json': {error}", shard=sample.shard, key=sample.key) from error
    path, data = facts.get("path"), sample.fields[stored]
    path = path if isinstance(path, str) else f"{sample.key}.{stored}"
    if stored == "npy":
        pixels = decode_field(stored, bytes(data), where=lambda: (sample.shard, sample.key))
        return Described(f"{annotation_files.name_in_split(path)}.png", facts), encode_field("png", pixels)
    name = annotation_files.name_in_split(path, facts.get("file_name"))
    return Described(name if is_image_name(name) else f"{name}.{stored}", facts), data
