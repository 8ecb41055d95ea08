"""``sample_transform=``: a function of all fields of a sample, for torchvision, Albumentations and your own code.

Albumentations gets arrays by keyword. The first image is its ``image``, the first mask or array its ``mask``, the first
boxes its ``bboxes`` and the first key points its ``keypoints``; further ones need ``additional_targets`` of the
transform, with their names (https://albumentations.ai/docs/).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from wds_tools.errors import OptionError
from wds_tools.loading.fields.base import Column, tv_tensors
from wds_tools.loading.fields.pixels import channels_first
from wds_tools.loading.fields.user_functions import described, is_albumentations, tensors_noted


class AlbumentationsCall:
    """Calls a transform of Albumentations with the fields of a sample."""

    def __init__(self, transform: Callable[..., Any], columns: Sequence[Column]) -> None:
        self._transform = transform
        self._columns = columns
        self._targets = self._find_targets()
        if "image" not in self._targets.values():
            raise OptionError("sample_transform= is a transform of Albumentations, which requires an image in fields=")
        self._image = next(index for index, target in self._targets.items() if target == "image")

    def __call__(self, values: list[Any], seed: int) -> list[Any]:
        """Return one value per field."""
        if hasattr(self._transform, "set_random_seed"):
            self._transform.set_random_seed(seed % 2**32)
        size = _size_of(values[self._image])
        arguments = {}
        for index, target in self._targets.items():
            column = self._columns[index]
            arguments[target] = column.spec.to_target(values[index], self._format(column), size)
        result = self._transform(**arguments)
        size, values = _size_of(channels_first(result["image"])), list(values)
        for index, target in self._targets.items():
            column = self._columns[index]
            values[index] = column.spec.from_target(result[target], values[index], self._format(column), size)
        return values

    def _find_targets(self) -> dict[int, str]:
        """Return the names of the arguments of the transform by index of the column."""
        additional = getattr(self._transform, "additional_targets", None) or {}
        targets: dict[int, str] = {}
        for index, column in enumerate(self._columns):
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
            elif column.has_entries_of:
                raise OptionError(
                    f"sample_transform= may drop boxes, but does not know that the field {column.name!r} belongs to "
                    f"them: name it in A.BboxParams(label_fields=[{column.name!r}])"
                )
            if target is not None:
                targets[index] = target
        return targets

    def _check_additional(self, name: str, actual: str | None, expected: str) -> None:
        if actual != expected:
            raise OptionError(
                f"sample_transform= has no target for the field {name!r}: use "
                f"A.Compose([...], additional_targets={{{name!r}: {expected!r}}})"
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


def check_sample_transform(function: Callable[..., Any] | None, columns: Sequence[Column]) -> None:
    """Check at the call of `make_loader` that a function fits the fields, and import what it needs.

    Workers that are forked then share the imported modules.
    """
    if function is None:
        return
    if is_albumentations(function):
        AlbumentationsCall(function, columns)
    else:
        tv_tensors()


def call_sample_transform(function: Callable[..., Any], columns: Sequence[Column], values: list[Any], seed: int) -> Any:
    """Call the user's function of a sample.

    Raises:
        OptionError: The function does not return a dictionary with the fields of the sample.
    """
    if is_albumentations(function):
        return AlbumentationsCall(function, columns)(values, seed)
    sample = {column.name: value for column, value in zip(columns, values, strict=True)}
    given = {column.name: _wrapped(column, sample[column.name], sample) for column in columns}
    with tensors_noted(lambda: f"sample_transform= gets a dictionary with {_described(given)}"):
        result = function(given)
    if not isinstance(result, Mapping) or set(result) != set(sample):
        got = f"the fields {', '.join(map(str, result))}" if isinstance(result, Mapping) else type(result).__name__
        raise OptionError(
            f"sample_transform= returned {got}; it must return a dictionary with the fields {', '.join(sample)}"
        )
    after = {name: _unwrapped(result[name], before) for name, before in sample.items()}
    for column in columns:
        if boxes := column.has_entries_of:
            _check_entries(column, boxes.name, sample, after)
    return [after[column.name] for column in columns]


def _described(sample: Mapping[str, Any]) -> str:
    """Return what a sample has, in words."""
    return ", ".join(f"{name!r}: {described(value)}" for name, value in sample.items())


def _check_entries(column: Column, boxes: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Check that a field with one entry for each box has not kept its entries while boxes were dropped."""

    def lengths(sample: dict[str, Any], name: str) -> list[int | None]:
        crops = sample[name] if column.is_list else [sample[name]]
        return [len(value) if isinstance(value, list | torch.Tensor) else None for value in crops]

    had_one_per_box = lengths(before, column.name) == lengths(before, boxes)
    has_kept_all = lengths(after, column.name) == lengths(before, column.name)
    if had_one_per_box and has_kept_all and lengths(after, boxes) != lengths(before, boxes):
        raise OptionError(
            f"sample_transform= dropped boxes of the field {boxes!r}, but not their entries in the field "
            f"{column.name!r}: drop the same entries there, for example with v2.SanitizeBoundingBoxes(labels_getter="
            f"lambda sample: sample[{column.name!r}]), whose function may return a tuple of several tensors"
        )


def _wrapped(column: Column, value: Any, sample: dict[str, Any]) -> Any:
    """Return a value as the tensor of torchvision that tells its transforms what it is."""
    source = column
    while source.like is not None:
        source = source.like
    image = None if source is column else sample[source.name]
    if column.is_list:
        images: list[Any] = value if image is None else image
        return [_wrapped_one(column, item, other) for item, other in zip(value, images, strict=True)]
    return _wrapped_one(column, value, image)


def _wrapped_one(column: Column, value: Any, image: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value  # what a transform= returned
    return column.spec.as_tv_tensor(value, tuple(image.shape[-2:]) if isinstance(image, torch.Tensor) else None)


def _unwrapped(value: Any, before: Any) -> Any:
    """Return a value as plain tensors. Points get back the further numbers that they had before."""
    if isinstance(value, list):
        befores = before if isinstance(before, list) and len(before) == len(value) else [None] * len(value)
        return [_unwrapped(item, other) for item, other in zip(value, befores, strict=True)]
    if not isinstance(value, torch.Tensor) or type(value) is torch.Tensor:
        return value
    plain = value.as_subclass(torch.Tensor)
    if type(value).__name__ != "KeyPoints" or not isinstance(before, torch.Tensor):
        return plain
    if not before.numel():  # a sample without points has the shape that was stored
        return before
    if plain.shape[:-1] == before.shape[:-1]:
        return torch.cat([plain, before[..., 2:].to(plain.dtype)], dim=-1)
    return plain
