"""``sample_transform=``: a function of all fields of a sample, for torchvision, Albumentations and own code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from wds_tools.errors import OptionError
from wds_tools.loading.fields.base import Column, tv_tensors
from wds_tools.loading.fields.user_functions import described, is_albumentations, tensors_noted
from wds_tools.loading.samples.albumentations import AlbumentationsCall


def check_sample_transform(function: Callable[..., Any] | None, columns: Sequence[Column]) -> None:
    """Check at the call of `make_loader` that a function fits the fields, and import what it needs.

    Workers that are forked then share the imported modules.

    Raises:
        OptionError: A transform of Albumentations has no target for a field.
    """
    if function is None:
        return
    if is_albumentations(function):
        AlbumentationsCall(function, columns)
    else:
        tv_tensors()


def call_sample_transform(function: Callable[..., Any], columns: Sequence[Column], values: list[Any], seed: int) -> Any:
    """Call the user's function of a sample.

    Args:
        function: The function.
        columns: The fields.
        values: One value per field.
        seed: Seed for a transform with a random generator of its own; all others are seeded already.

    Returns:
        One value per field.

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
        if column.like is not None and column.spec.takes == "entries":
            _check_entries(column, column.like.name, sample, after)
    return [after[column.name] for column in columns]


def _described(sample: Mapping[str, Any]) -> str:
    """Return what a sample has, in words."""
    return ", ".join(f"{name!r}: {described(value)}" for name, value in sample.items())


def _check_entries(column: Column, boxes: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Check that a field with one entry for each box has not kept its entries while boxes were dropped.

    Raises:
        OptionError: It has.
    """
    count, own, new_count, new_own = (
        [len(one) if isinstance(one, list | torch.Tensor) else None for one in (value if column.is_list else [value])]
        for value in (before[boxes], before[column.name], after[boxes], after[column.name])
    )
    if own == count == new_own != new_count:
        raise OptionError(
            f"sample_transform= dropped boxes of the field {boxes!r}, but not their entries in the field "
            f"{column.name!r}: drop the same entries there, for example with v2.SanitizeBoundingBoxes(labels_getter="
            f"lambda sample: sample[{column.name!r}]), whose function may return a tuple of several tensors"
        )


def _wrapped(column: Column, value: Any, sample: dict[str, Any]) -> Any:
    """Return a value as the tensor of torchvision that tells its transforms what it is."""
    image = sample[column.like.name] if column.like else None
    if column.is_list:
        images: list[Any] = value if image is None else image
        return [_wrapped_one(column, one, other) for one, other in zip(value, images, strict=True)]
    return _wrapped_one(column, value, image)


def _wrapped_one(column: Column, value: Any, image: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value  # what a transform= returned
    return column.spec.as_tv_tensor(value, tuple(image.shape[-2:]) if isinstance(image, torch.Tensor) else None)


def _unwrapped(value: Any, before: Any) -> Any:
    """Return a value as plain tensors. Points get back the further numbers that they had before."""
    if isinstance(value, list):
        befores = before if isinstance(before, list) and len(before) == len(value) else [None] * len(value)
        return [_unwrapped(one, other) for one, other in zip(value, befores, strict=True)]
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
