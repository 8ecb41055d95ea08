"""A transform of Albumentations as a function of all fields of a sample.

Albumentations gets arrays by keyword. The first image is its ``image``, the first mask or array its ``mask``, the first
boxes its ``bboxes`` and the first key points its ``keypoints``; further ones need ``additional_targets`` of the
transform, with their names (https://albumentations.ai/docs/).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.loading.columns import Column
from wds_tools.loading.fields.plain import Array, Boxes, Field, Image, Keypoints, Mask

_TARGETS: tuple[tuple[Any, str], ...] = (
    (Image, "image"),
    ((Mask, Array), "mask"),
    (Boxes, "bboxes"),
    (Keypoints, "keypoints"),
)


class AlbumentationsCall:
    """Calls a transform of Albumentations with the fields of a sample.

    Args:
        transform: The transform, such as ``A.Compose([...], bbox_params=...)``.
        columns: The fields.

    Raises:
        OptionError: The transform has no target for a field.
    """

    def __init__(self, transform: Callable[..., Any], columns: Sequence[Column]) -> None:
        self._transform = transform
        self._columns = columns
        self._targets = self._find_targets()
        if "image" not in self._targets.values():
            raise OptionError("sample_transform= is a transform of Albumentations, which requires an image in fields=")
        self._image = next(number for number, target in self._targets.items() if target == "image")

    def __call__(self, values: list[Any], seed: int) -> list[Any]:
        """Return one value per field.

        Args:
            values: One value per field.
            seed: Seed of the generator of the transform.
        """
        if hasattr(self._transform, "set_random_seed"):
            self._transform.set_random_seed(seed % 2**32)
        size = _size_of(values[self._image])
        arguments = {target: self._to_target(number, values[number], size) for number, target in self._targets.items()}
        result = self._transform(**arguments)
        size = _size_of(_as_tensor(result["image"]))
        values = list(values)
        for number, target in self._targets.items():
            values[number] = self._from_target(number, result[target], values[number], size)
        return values

    def _find_targets(self) -> dict[int, str]:
        """Return the names of the arguments of the transform by number of the column."""
        additional = getattr(self._transform, "additional_targets", None) or {}
        targets: dict[int, str] = {}
        for number, column in enumerate(self._columns):
            target = next((target for kinds, target in _TARGETS if isinstance(column.spec, kinds)), None)
            if target is not None:
                if column.is_list:
                    raise OptionError(
                        f"sample_transform= is a transform of Albumentations, but the field {column.name!r} has "
                        "several crops: use wds_tools.Image(transform=...), which is called for each crop"
                    )
                if column.name in additional or target in targets.values():
                    self._check_additional(column.name, additional.get(column.name), target)
                    target = column.name
                self._check_format(column)
            elif column.name in self._label_fields("bboxes") or column.name in self._label_fields("keypoints"):
                target = column.name
            elif isinstance(column.spec, Field) and column.spec.like is not None:
                raise OptionError(
                    f"sample_transform= may drop boxes, but does not know that the field {column.name!r} belongs to "
                    f"them: name it in A.BboxParams(label_fields=[{column.name!r}])"
                )
            if target is not None:
                targets[number] = target
        return targets

    def _check_additional(self, name: str, found: str | None, wanted: str) -> None:
        if found != wanted:
            raise OptionError(
                f"sample_transform= has no target for the field {name!r}: use "
                f"A.Compose([...], additional_targets={{{name!r}: {wanted!r}}})"
            )

    def _check_format(self, column: Column) -> None:
        if isinstance(column.spec, Boxes) and not self._format("bboxes"):
            raise OptionError(
                f"sample_transform= does not move the field {column.name!r}: use "
                "A.Compose([...], bbox_params=A.BboxParams(format='pascal_voc'))"
            )
        if isinstance(column.spec, Keypoints) and self._format("keypoints") != "xy":
            raise OptionError(
                f"sample_transform= does not move the field {column.name!r}: use "
                "A.Compose([...], keypoint_params=A.KeypointParams(format='xy'))"
            )

    def _params(self, kind: str) -> Any:
        """Return the parameters that the transform has for ``bboxes`` or ``keypoints``, None if it has none."""
        return getattr((getattr(self._transform, "processors", None) or {}).get(kind), "params", None)

    def _format(self, kind: str) -> str | None:
        params = self._params(kind)
        return getattr(params, "format", None) or getattr(params, "coord_format", None)

    def _label_fields(self, kind: str) -> Sequence[str]:
        return getattr(self._params(kind), "label_fields", None) or ()

    def _to_target(self, number: int, value: Any, size: tuple[int, int]) -> Any:
        """Return a value as Albumentations takes it."""
        spec = self._columns[number].spec
        if isinstance(spec, Image | Array):
            return np.ascontiguousarray(value.permute(1, 2, 0).numpy())
        if isinstance(spec, Boxes):
            return _as_format(value.numpy().astype(np.float64), self._format("bboxes"), size)
        if isinstance(spec, Keypoints):
            return value.reshape(-1, value.shape[-1]).numpy() if value.ndim > 1 else np.zeros((0, 2), np.float32)
        return value.numpy() if isinstance(value, torch.Tensor) else value

    def _from_target(self, number: int, value: Any, before: Any, size: tuple[int, int]) -> Any:
        """Return a value of Albumentations as a value of the field."""
        spec = self._columns[number].spec
        if isinstance(spec, Image | Array):
            return _as_tensor(value)
        if isinstance(spec, Boxes):
            array = np.asarray(value, np.float64)[:, :4] if len(value) else np.zeros((0, 4))
            return torch.from_numpy(_from_format(array, self._format("bboxes"), size).astype(np.float32))
        if isinstance(spec, Keypoints):
            points = torch.as_tensor(np.asarray(value, np.float32))
            return points.reshape(before.shape) if points.numel() == before.numel() else points
        if isinstance(before, torch.Tensor):
            return torch.as_tensor(np.asarray(value)).to(before.dtype)
        return value


def _size_of(image: torch.Tensor) -> tuple[int, int]:
    """Return height and width of an image [channels, height, width]."""
    return int(image.shape[-2]), int(image.shape[-1])


def _as_tensor(value: Any) -> torch.Tensor:
    """Return an image as a tensor [channels, height, width]; it is one already after ToTensorV2."""
    if isinstance(value, torch.Tensor):
        return value
    array = value[:, :, None] if value.ndim == 2 else value
    return torch.from_numpy(np.ascontiguousarray(array.transpose(2, 0, 1)))


def _as_format(edges: NDArray[np.float64], form: str | None, size: tuple[int, int]) -> NDArray[np.float64]:
    """Return boxes [k, 4], which are edges in pixels, in a format of Albumentations."""
    height, width = size
    start, stop = edges[:, :2], edges[:, 2:]
    if form in ("coco", "yolo", "cxcywh"):
        first = start if form == "coco" else (start + stop) / 2
        edges = np.concatenate([first, stop - start], axis=1)
    return edges / [width, height, width, height] if form in ("albumentations", "yolo") else edges


def _from_format(boxes: NDArray[np.float64], form: str | None, size: tuple[int, int]) -> NDArray[np.float64]:
    """Return boxes [k, 4] in a format of Albumentations as edges in pixels."""
    height, width = size
    if form in ("albumentations", "yolo"):
        boxes = boxes * [width, height, width, height]
    if form in ("coco", "yolo", "cxcywh"):
        start = boxes[:, :2] if form == "coco" else boxes[:, :2] - boxes[:, 2:] / 2
        boxes = np.concatenate([start, start + boxes[:, 2:]], axis=1)
    return boxes
