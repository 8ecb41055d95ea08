"""A transform of Albumentations as a function of all fields of a sample.

Albumentations gets arrays by keyword. The first image is its ``image``, the first mask or array its ``mask``, the first
boxes its ``bboxes`` and the first key points its ``keypoints``; further ones need ``additional_targets`` of the
transform, with their names (https://albumentations.ai/docs/).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from wds_tools.errors import OptionError
from wds_tools.loading.fields.base import Column
from wds_tools.loading.fields.pixels import channels_first


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
        arguments = {}
        for number, target in self._targets.items():
            column = self._columns[number]
            arguments[target] = column.spec.to_target(values[number], self._format(column), size)
        result = self._transform(**arguments)
        size, values = _size_of(channels_first(result["image"])), list(values)
        for number, target in self._targets.items():
            column = self._columns[number]
            values[number] = column.spec.from_target(result[target], values[number], self._format(column), size)
        return values

    def _find_targets(self) -> dict[int, str]:
        """Return the names of the arguments of the transform by number of the column."""
        additional = getattr(self._transform, "additional_targets", None) or {}
        targets: dict[int, str] = {}
        for number, column in enumerate(self._columns):
            target = column.spec.target
            if target is not None:
                if column.is_list:
                    raise OptionError(
                        f"sample_transform= is a transform of Albumentations, but the field {column.name!r} has "
                        "several crops: use wds_tools.Image(transform=...), which is called for each crop"
                    )
                if column.name in additional or target in targets.values():
                    self._check_additional(column.name, additional.get(column.name), target)
                    target = column.name
                column.spec.check_target(column.name, self._format(column))
            elif column.name in self._label_fields("bboxes") or column.name in self._label_fields("keypoints"):
                target = column.name
            elif column.like is not None and column.spec.takes == "entries":
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

    def _params(self, kind: str | None) -> Any:
        """Return the parameters that the transform has for ``bboxes`` or ``keypoints``, None if it has none."""
        return getattr((getattr(self._transform, "processors", None) or {}).get(kind), "params", None)

    def _format(self, column: Column) -> str | None:
        """Return the format of boxes or points that the transform expects of a column, None if it expects none."""
        params = self._params(column.spec.target)
        return getattr(params, "format", None) or getattr(params, "coord_format", None)

    def _label_fields(self, kind: str) -> Sequence[str]:
        return getattr(self._params(kind), "label_fields", None) or ()


def _size_of(image: torch.Tensor) -> tuple[int, int]:
    """Return height and width of an image [channels, height, width]."""
    return int(image.shape[-2]), int(image.shape[-1])
