"""In a helper process: what a loader sees, by the code of the loader itself, from bytes that the service sends.

The code reads as in a training. What the service has not sent yet is reported to it; it sends that, and asks again.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image as Pillow

from wds_tools.errors import OptionError, WdsToolsError, printable, shortened
from wds_tools.format.index import NO_LABEL
from wds_tools.format.manifest import MANIFEST_NAME, from_json
from wds_tools.format.objects import CATEGORY_PATH
from wds_tools.images import native
from wds_tools.images.schedule import AnyView, views_in
from wds_tools.images.views import chosen_by
from wds_tools.loading.explanation import Crop, StepExplanation
from wds_tools.loading.fields.base import FieldSpec
from wds_tools.loading.fields.boxes import Boxes
from wds_tools.loading.fields.image import Image
from wds_tools.loading.fields.polygons import Polygons
from wds_tools.loading.load_options import LoadOptions
from wds_tools.loading.request import OpenedDataset, open_dataset
from wds_tools.lru_cache import LRUCache
from wds_tools.options import parse_shuffle
from wds_tools.order.epoch import EpochOrder
from wds_tools.order.history import FoundStep, Section
from wds_tools.order.planner import Cursor, EpochPlan, World
from wds_tools.reading.locations import ShardLocation
from wds_tools.reading.reader import Reader
from wds_tools.reading.rows import Rows
from wds_tools.reading.shardset import ShardSet
from wds_tools.service.pages.described_view import view_of
from wds_tools.storage.base import Block, Extent, FetchStatistics, Range, StoredFile

EPOCHS = 8
"""Epochs whose crops of one sample are shown."""

MAX_SEARCHED = 4_000_000
"""Samples of the largest dataset in which the positions of a sample are searched."""

_MAX_PIXELS = 24 * 640 * 640  # of the images of one answer
_PIECE = 1 << 20  # positions of an order that are computed at a time
_MAX_TEXT = 300  # characters of a key or an error
_MAX_CROPS = 9  # of an image that are described
_KEPT = 4  # datasets
_Range = tuple[str, int, int]


class NotSentError(Exception):
    """Bytes that the service has not sent yet.

    Attributes:
        ranges: Name of the file, start and stop of each range.
    """

    def __init__(self, ranges: Iterable[_Range]) -> None:
        super().__init__("not sent yet")
        self.ranges = list(ranges)


class SentFiles:
    """The store of a dataset whose files are with the service."""

    folder = "the dataset"
    is_remote = False
    statistics = FetchStatistics()

    def __init__(self) -> None:
        self.sent: dict[_Range, bytes] = {}

    def read(self, name: str, *, file: StoredFile | None = None, fresh: bool = False) -> bytes:  # noqa: ARG002 - of the protocol
        """Return an index."""
        if file is None:
            raise FileNotFoundError(name)
        return self._ranges([(name, 0, file.bytes)])[0]

    def fetch(self, name: str, ranges: Sequence[Range], *, total_bytes: int) -> list[memoryview]:  # noqa: ARG002 - of the protocol
        """Return ranges of a shard."""
        return [memoryview(data) for data in self._ranges([(name, *span) for span in ranges])]

    def fetch_extents(self, extents: Sequence[Extent]) -> list[memoryview]:
        """Return parts of blocks."""
        return [memoryview(data) for data in self._ranges([(extent[0].file.name, *extent[1:]) for extent in extents])]

    def read_files_ahead(self, files: Sequence[StoredFile], *, wait: bool) -> None:
        """Report all indexes at once that have not been sent."""
        if wait:
            self._ranges([(file.name, 0, file.bytes) for file in files])

    def read_ahead(self, blocks: Sequence[Block]) -> None:
        """Do nothing: the service sends what is needed."""

    def read_samples_ahead(self, extents: Sequence[Extent], *, dataset_bytes: int) -> None:
        """Do nothing."""

    def release(self, blocks: Sequence[Block]) -> None:
        """Do nothing."""

    def drop_cached(self, blocks: Iterable[Block]) -> bool:  # noqa: ARG002 - of the protocol
        """Return that the bytes would be the same again."""
        return False

    def list(self) -> list[str]:
        """Return no names: the manifest has them."""
        return []

    def log_use(self) -> None:
        """Do nothing."""

    def _ranges(self, ranges: Sequence[_Range]) -> Sequence[bytes]:
        missing = [span for span in ranges if span not in self.sent]
        if missing:
            raise NotSentError(missing)
        return [self.sent[span] for span in ranges]


class LoadedSteps:
    """Answers questions about the steps of loaders."""

    def __init__(self) -> None:
        self._sets = LRUCache[str, tuple[ShardSet, SentFiles]](max_items=_KEPT)
        self._last: tuple[Any, _Question] | None = None

    def answer(self, message: dict[str, Any], payload: bytes) -> tuple[dict[str, Any], bytes]:
        """Answer a question: what a step has, or the crops of a sample.

        Args:
            message: ``version`` of the dataset; ``wanted``, the options of the loader by name, with the ``epoch``, the
                ``step`` and the first ``row`` and ``count`` of the images, or a ``sample`` for its crops; ``sent``,
                file name, start and stop of the ranges in the payload.
            payload: These ranges, one after the other.

        Returns:
            ``missing``, what has to be sent before the question is asked again; or ``mistake``, why it has no answer;
            or the answer, and the images as PNG, one after the other.
        """
        sent, at = {}, 0
        for name, start, stop in message["sent"]:
            sent[name, start, stop] = payload[at : at + stop - start]
            at += stop - start
        try:
            result = self._answer(message, sent)
        except NotSentError as error:
            return {"missing": error.ranges}, b""
        except WdsToolsError as error:
            self._last = None
            return {"mistake": shortened(printable(str(error)), 1000)}, b""
        except BaseException:
            self._sets.clear()
            self._last = None
            raise
        self._last = None
        return result

    def _answer(self, message: dict[str, Any], sent: dict[_Range, bytes]) -> tuple[dict[str, Any], bytes]:
        key, options = (message["version"], json.dumps(message["question"])), message["question"]
        shards, files = self._open(message["version"], sent)
        if self._last is None or self._last[0] != key:
            files.sent.clear()
            self._last = key, _Question(shards, options)
        files.sent.update(sent)
        question = self._last[1]
        if options["sample"] is not None:
            answer = question.crops(options["sample"]), b""
        else:
            answer = question.images(options["epoch"], options["step"], options["row"], options["count"])
        files.sent.clear()
        return answer

    def _open(self, version: str, sent: dict[_Range, bytes]) -> tuple[ShardSet, SentFiles]:
        opened = self._sets.get(version)
        if opened is None:
            data = next((sent for (name, *_), sent in sent.items() if name == MANIFEST_NAME), None)
            if data is None:
                raise NotSentError([(MANIFEST_NAME, 0, 0)])
            manifest, files = from_json(data), SentFiles()
            opened = ShardSet(manifest, [ShardLocation(files, entry) for entry in manifest.shards], name="it"), files
            self._sets.put(version, opened)
        return opened


class _Question:
    """A loader that a question is about. What was computed is kept until its bytes have been sent."""

    def __init__(self, shards: ShardSet, options: dict[str, Any]) -> None:
        self.shards = shards
        self.options = options
        self._steps: dict[tuple[int, int], StepExplanation] = {}
        self._positions: dict[int, int | None] = {}

    @cached_property
    def view(self) -> AnyView:
        return view_of(self.options["view"], self.options["size"], self.options["description"])

    @cached_property
    def opened(self) -> OpenedDataset:
        options = LoadOptions(
            self.shards.name,
            batch_size=self.options["batch"],
            shuffle=parse_shuffle(self.options["shuffle"]),
            seed=self.options["seed"],
            fields=_fields(self.view, has_objects=CATEGORY_PATH in self.shards.manifest.field_classes),
            rank=0,
            world_size=1,
        )
        return open_dataset(options, known=self.shards)

    @cached_property
    def orders(self) -> Any:
        return self.opened.orders()

    def plan(self, epoch: int) -> EpochPlan:
        plan = EpochPlan(self.orders.of(epoch), Cursor(epoch), World(), self.options["batch"], "drop")
        if not len(plan):
            raise OptionError(
                f"a batch of {plan.batch_size:,} samples, but the dataset has {plan.order.samples:,}: enter a smaller "
                "batch size"
            )
        return plan

    def step(self, epoch: int, index: int) -> StepExplanation:
        explanation = self._steps.get((epoch, index))
        if explanation is None:
            plan = self.plan(epoch)
            if index >= len(plan):
                raise OptionError(f"step={index}; epoch {epoch} has the steps 0 to {len(plan) - 1:,}")
            target = FoundStep(Section.of(plan, 0), plan.order, plan.cursor, index, index, None)
            explanation = self._steps[epoch, index] = StepExplanation(target, self.opened.recipe, rank=None)
        return explanation

    def images(self, epoch: int, step: int, row: int, count: int) -> tuple[dict[str, Any], bytes]:
        """Return some samples of a step, with their pixels."""
        explained = self.step(epoch, step).part(slice(row, row + count))
        self._read_indexes(explained)
        rows = Rows(Reader(self.shards, block=self.opened.recipe.block), explained.ids)
        labels = rows.gather("label").tolist()
        made = self._pixels(explained)
        samples = [
            {
                "id": sample.id,
                "key": shortened(printable(sample.key), _MAX_TEXT),
                "label": None if label == NO_LABEL else label,
                "position": sample.position,
                "crops": [shortened(printable(str(crop)), _MAX_TEXT) for crop in sample.crops["image"][:_MAX_CROPS]],
                "error": error,
                "bytes": len(png),
            }
            for sample, label, (png, error) in zip(explained.samples, labels, made, strict=True)
        ]
        facts = {"steps": len(self.plan(epoch)), "view": shortened(repr(self.view), 1000), "exact": native.is_enabled()}
        return {**facts, "samples": samples}, b"".join(png for png, _ in made)

    def crops(self, sample: int) -> dict[str, Any]:
        """Return the crops of a sample in the first epochs."""
        samples = self.shards.manifest.samples
        if sample >= samples:
            raise OptionError(f"sample={sample}; the dataset has {samples:,} samples")
        if samples > MAX_SEARCHED:
            raise OptionError(
                f"the dataset has {samples:,} samples; the positions of a sample are searched among at most "
                f"{MAX_SEARCHED:,}: call loader.explain() in a program"
            )
        epochs: list[dict[str, Any]] = []
        size = 0, 0
        for epoch in range(EPOCHS):
            if epoch not in self._positions:
                self._positions[epoch] = _position_in(self.orders.of(epoch), sample)
            position, plan = self._positions[epoch], self.plan(epoch)
            if position is None or position >= len(plan) * plan.batch_size:
                epochs.append({"epoch": epoch, "step": None, "crop": None, "text": ""})
                continue
            step = position // plan.batch_size
            explained = self.step(epoch, step)
            at = int(np.flatnonzero(explained.ids == sample)[0])
            explained = explained.part(slice(at, at + 1))
            self._read_indexes(explained)
            rows = Rows(Reader(self.shards, block=self.opened.recipe.block), explained.ids)
            size = int(rows.gather("width")[0]), int(rows.gather("height")[0])
            crops = [crop for crop in explained.samples[0].crops["image"] if crop.partner is None]
            crop = _box(crops[0]) if crops else None
            epochs.append({"epoch": epoch, "step": step, "crop": crop, "text": str(crops[0]) if crops else ""})
        return {"crops": epochs, "width": size[0], "height": size[1], "view": shortened(repr(self.view), 1000)}

    def _read_indexes(self, explained: StepExplanation) -> None:
        ends = np.cumsum([entry.samples for entry in self.shards.manifest.shards])
        ids = np.append(explained.partners, explained.ids)
        self.shards.read_indexes_ahead(np.unique(np.searchsorted(ends, ids, side="right")).tolist())

    def _pixels(self, explained: StepExplanation) -> list[tuple[bytes, str]]:
        """Return the image of each sample as PNG, or why there is none."""
        images: list[tuple[bytes, str]] = []
        missing: list[_Range] = []
        pixels = 0
        for i in range(len(explained.ids)):
            try:
                (image,) = explained.images("image", i)
            except NotSentError as error:
                missing += error.ranges
                continue
            except WdsToolsError as error:
                if isinstance(error, OptionError):
                    raise
                images.append((b"", shortened(printable(str(error)), _MAX_TEXT)))
                continue
            pixels += image.shape[1] * image.shape[2]
            if missing:
                continue
            if pixels > _MAX_PIXELS:
                images.append((b"", "not shown: the images before it have too many pixels for one page"))
            else:
                images.append((_png(image), ""))
        if missing:
            raise NotSentError(dict.fromkeys(missing))
        return images


def _fields(view: AnyView, *, has_objects: bool) -> dict[str, FieldSpec | str]:
    """Return the image, and the objects of packed annotations by which its view chooses a region."""
    fields: dict[str, FieldSpec | str] = {"image": Image(view=view)}
    field, _, _ = CATEGORY_PATH.partition(":")
    for part in views_in(view):
        if by := chosen_by(part):
            if not has_objects:
                raise OptionError(f"{part} chooses its region by objects, and the dataset has no packed annotations")
            kind, name = by
            if name == "image":
                raise OptionError(f"{part} has the name of the image for its objects: give them another one")
            boxes, outlines = Boxes(field, path="objects.box", like="image"), Polygons(field, like="image")
            fields[name] = boxes if kind == "Boxes" else outlines
    return fields


def _position_in(order: EpochOrder, sample: int) -> int | None:
    """Return the position of a sample in an epoch; None if it is left out."""
    for start in range(0, order.samples, _PIECE):
        ids, _ = order.slice(start, min(start + _PIECE, order.samples))
        at = np.flatnonzero(ids == sample)
        if len(at):
            return start + int(at[0])
    return None


def _box(crop: Crop) -> list[float]:
    return [crop.left, crop.top, crop.width, crop.height]


def _png(image: torch.Tensor) -> bytes:
    out = io.BytesIO()
    Pillow.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(out, "PNG", compress_level=1)
    return out.getvalue()
