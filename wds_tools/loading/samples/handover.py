"""The last step of a batch, in the training process: `batch_transform`, and the named tuple for the training loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import OptionError
from wds_tools.format.sample import make_record, record_type
from wds_tools.loading.fields.base import Column
from wds_tools.loading.fields.collate import as_tensors, stack_values
from wds_tools.loading.fields.user_functions import described, seeded, tensors_noted
from wds_tools.loading.samples.batch_padding import BatchPadding
from wds_tools.loading.samples.batch_steps import BatchStep, BatchSteps, SampleKeys
from wds_tools.order.keyed_random import key_of
from wds_tools.order.planner import Step, Tail

BatchTransform: TypeAlias = Callable[..., Any] | BatchStep | Sequence[BatchStep | Callable[..., Any]]


class PositionedSamples(list[Any]):
    """The samples of a batch, with their positions."""

    def __init__(self, samples: Iterable[Any], epoch: int, positions: Sequence[int], bucket: int | None = None) -> None:
        super().__init__(samples)
        self.epoch, self.bucket = epoch, bucket
        self.positions = np.array(positions, np.int64)


class Handover:
    """Turns the values of a batch into the object that the training loop receives.

    Args:
        columns: The fields of a sample.
        is_bare: Whether a batch is the value of the only field, without a named tuple.
        tail: With ``"mask"``, a batch also has the field ``valid``.
        collate_fn: The user's function of a list of samples; `make_loader` documents it.
        batch_transform: The user's function; `make_loader` documents it.
        has_sample_transform: Whether the images are what ``sample_transform=`` returned.
        seed: Seed of its random numbers.

    Raises:
        OptionError: The arguments of the function do not fit the fields, or a field name is invalid.
    """

    def __init__(
        self,
        columns: Sequence[Column],
        *,
        is_bare: bool,
        tail: Tail,
        batch_transform: BatchTransform | None,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        has_sample_transform: bool = False,
        seed: int,
    ) -> None:
        self._columns = columns
        self._padding = BatchPadding(columns)
        self._fields = (
            *(column.name for column in columns),
            *self._padding.names,
            *(["valid"] if tail == "mask" else []),
        )
        record_type(self._fields)  # raises an error for invalid names now, not at the first batch
        self._is_bare = is_bare and tail != "mask"
        if isinstance(batch_transform, BatchStep):
            batch_transform = [batch_transform]
        self._steps = None if batch_transform is None or callable(batch_transform) else BatchSteps(batch_transform)
        self._function = batch_transform if callable(batch_transform) else None
        self._takes_all = self._function is not None and takes_whole_batch(self._function)
        self._seed = seed
        self._collate_fn = collate_fn
        if collate_fn is not None:
            self._check_collate()
        elif self._function is not None:
            self._check_arguments(self._function)
        elif self._steps:
            self._check_steps(self._steps, columns)
            if not has_sample_transform and any(column.name == "image" and column.spec.is_rgb for column in columns):
                self._steps.check_scale(torch.uint8)
            self._check_fields(self._steps)

    def _check_collate(self) -> None:
        """Refuse options that do not go together with ``collate_fn=``."""
        if self._padding.names:
            raise OptionError(
                "collate_fn= gets samples, which are not padded: remove pad= from the fields, and pad them there"
            )
        if self._steps:
            raise OptionError(
                "collate_fn= returns a batch of unknown fields: batch_transform= must be a function of that batch"
            )

    def _check_fields(self, steps: BatchSteps) -> None:
        for name in steps.fields:
            if name not in self._fields:
                raise OptionError(
                    f"batch_transform= needs the field {name!r}, but fields= has only {', '.join(self._fields)}"
                )

    def without_transform(self) -> Handover:
        """Return this handover for batches to which the workers have applied ``batch_transform=`` already."""
        result = copy(self)
        vars(result).update(_steps=None, _function=None)
        return result

    @property
    def collates(self) -> bool:
        """Whether the user's ``collate_fn=`` makes the batches."""
        return self._collate_fn is not None

    def collated(self, columns: list[list[Any]], epoch: int, positions: NDArray[np.int64]) -> Any:
        """Return what the user's ``collate_fn=`` makes of the samples of a batch."""
        samples = columns[0] if self._is_bare else map(partial(make_record, self._fields), zip(*columns, strict=True))
        return self._collated(list(samples), epoch, positions)

    def _collated(self, samples: list[Any], epoch: int, positions: NDArray[np.int64]) -> Any:
        assert self._collate_fn is not None
        with seeded(key_of("collate_fn", self._seed, epoch, int(positions[0]))):
            return self._collate_fn(samples)

    def batch(self, values: list[Any], epoch: int, positions: NDArray[np.int64]) -> Any:
        """Return the batch for the training loop."""
        values = values if self.collates else self._padding.with_masks(values)
        if self._function is not None or self._steps:
            with stages.BATCH_TRANSFORM, seeded(key_of("batch_transform", self._seed, epoch, int(positions[0]))):
                if self._steps:
                    result: Any = self._after_steps(self._steps, values, SampleKeys(self._seed, epoch, positions))
                else:
                    assert self._function is not None
                    result = self._transformed(self._function, values)
            if isinstance(result, Mapping):
                return result
            values = result
        if self.collates:
            return values[0]
        return values[0] if self._is_bare else make_record(self._fields, values)

    def collate(self, samples: list[Any]) -> Any:
        """Return the batch for a list of samples: the ``collate_fn`` of a ``DataLoader``."""
        epoch, positions = 0, np.arange(len(samples))
        if isinstance(samples, PositionedSamples):
            epoch, positions = samples.epoch, samples.positions
        if self.collates:
            return self.batch([self._collated(list(samples), epoch, positions)], epoch, positions)
        columns = [samples] if self._is_bare else [list(column) for column in zip(*samples, strict=True)]
        further = [as_tensors(stack_values(column)) for column in columns[len(self._columns) :]]  # `valid`
        stacked = self._padding.stacked(columns[: len(self._columns)])
        return self.batch([*map(as_tensors, stacked), *further], epoch, positions)

    def _after_steps(self, steps: BatchSteps, values: list[Any], keys: SampleKeys) -> list[Any]:
        """Return the values with images and labels after all steps."""
        named = dict(zip(self._fields, values, strict=True))
        images, labels = steps.apply(named["image"], named.get("label"), keys)
        changed = {"image": images, **({"label": labels} if "label" in named else {})}
        return list({**named, **changed}.values())

    def _transformed(self, function: Callable[..., Any], values: list[Any]) -> list[Any] | Mapping[str, Any]:
        """Return one value per field, or the dictionary if the function returned one."""
        if self.collates:
            return [function(values[0])]
        i = None if self._takes_all else self._fields.index("image")
        given = values if i is None else [values[i]]
        with tensors_noted(lambda: f"batch_transform= gets the whole batch: {', '.join(map(described, given))}"):
            result = function(*given)
        if result is None:
            raise OptionError("batch_transform= returned None: return the values, even if they were changed in place")
        if i is not None:
            return [*values[:i], result, *values[i + 1 :]]
        if isinstance(result, Mapping):
            return result
        if len(values) == 1:
            return [result]
        if not isinstance(result, tuple | list) or len(result) != len(values):
            got = f"{len(result)} values" if isinstance(result, tuple | list) else f"one {type(result).__name__}"
            raise OptionError(
                f"batch_transform= returned {got}; a function of the whole batch must return one value for each of "
                f"{', '.join(self._fields)}, or a dictionary"
            )
        return list(result)

    def _check_steps(self, steps: BatchSteps, columns: Sequence[Column]) -> None:
        """Check that no step would move the padding of images, or compute with it, or leave other fields behind."""
        image = next((column for column in columns if column.name == "image"), None)
        if image and image.padding and steps.changing:
            raise OptionError(
                f"batch_transform= has {steps.changing[0]!r}, which would also change the padding of the field "
                "'image': use transform= or sample_transform= instead, which get images without padding"
            )
        like = image.spec.like if image else None
        left = [field.name for field in columns if field.spec.like == "image" or field.name == like]
        moving = next((step for step in steps.changing if step.moves_pixels), None)
        if moving and left:
            raise OptionError(
                f"batch_transform= has {moving!r}, which changes the field 'image', but not "
                f"{', '.join(map(repr, left))}, which must have the same region: use flip= of the view, or "
                "sample_transform=, which move them together"
            )

    def _check_arguments(self, function: Callable[..., Any]) -> None:
        if not self._takes_all:
            if "image" not in self._fields:
                raise OptionError(
                    f"batch_transform= takes one argument, the images, but fields= has only {', '.join(self._fields)}: "
                    "add 'image', or pass a function of all fields"
                )
            return
        try:
            inspect.signature(_function_with_signature(function)).bind(*self._fields)
        except TypeError as error:
            raise OptionError(
                f"batch_transform= cannot take the {len(self._fields)} values of a batch, {', '.join(self._fields)}: "
                f"{error}; it must take either the images only, or all of these"
            ) from error


class Handovers:
    """The handover of the batches of each dataset; one if all batches have the same fields."""

    def __init__(self, handovers: Sequence[Handover]) -> None:
        self._handovers = handovers

    def without_transform(self) -> Handovers:
        """See `Handover.without_transform`."""
        return Handovers([handover.without_transform() for handover in self._handovers])

    def _of(self, bucket: int | None) -> Handover:
        return self._handovers[(bucket or 0) if len(self._handovers) > 1 else 0]

    @property
    def collates(self) -> bool:
        """Whether the user's ``collate_fn=`` makes the batches."""
        return self._handovers[0].collates

    def collated(self, columns: list[list[Any]], epoch: int, step: Step) -> Any:
        """Return what the user's ``collate_fn=`` makes of the samples of a step, see `Handover.collated`."""
        return self._of(step.bucket).collated(columns, epoch, step.positions)

    def batch(self, values: list[Any], epoch: int, step: Step) -> Any:
        """Return the batch of a step for the training loop, see `Handover.batch`."""
        return self._of(step.bucket).batch(values, epoch, step.positions)

    def collate(self, samples: list[Any]) -> Any:
        """Return the batch for a list of samples: the ``collate_fn`` of a ``DataLoader``."""
        return self._of(samples.bucket if isinstance(samples, PositionedSamples) else None).collate(samples)


def takes_whole_batch(function: Callable[..., Any]) -> bool:
    """Return whether a function is called with the values of all fields, and not with the images only.

    >>> takes_whole_batch(lambda images: images), takes_whole_batch(lambda images, labels: (images, labels))
    (False, True)
    """
    if _mixes_labels(function):
        return True
    try:
        parameters = inspect.signature(_function_with_signature(function)).parameters.values()
    except (TypeError, ValueError):  # a function written in C
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in positional and parameter.default is parameter.empty for parameter in parameters) > 1


def _function_with_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function whose signature counts: ``forward`` of a torch module, as its ``__call__`` takes anything."""
    return function.forward if isinstance(function, torch.nn.Module) else function


def _mixes_labels(transform: Any) -> bool:
    """Return whether this is CutMix or MixUp of torchvision, or contains one.

    The signature does not show it, because all transforms of torchvision take ``*inputs``.
    """
    kinds = [kind for kind in type(transform).__mro__ if kind.__module__.startswith("torchvision.")]
    if any(kind.__name__ in ("CutMix", "MixUp") for kind in kinds):
        return True
    parts = getattr(transform, "transforms", None) if kinds else None
    return isinstance(parts, list | tuple) and any(map(_mixes_labels, parts))
