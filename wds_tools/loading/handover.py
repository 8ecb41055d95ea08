"""The last step of a batch, in the training process: `batch_transform`, and the named tuple that the loop gets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from wds_tools.errors import OptionError
from wds_tools.format.sample import make_record, record_type
from wds_tools.loading.assemble import seeded
from wds_tools.loading.collate import as_tensors, packed
from wds_tools.order.keyed_random import key_of
from wds_tools.order.planner import Tail

BatchTransform = Callable[..., Any]


class PlacedSamples(list[Any]):
    """Samples of a batch.

    Args:
        samples: In order.
        place: Epoch, and position of the first sample in the canonical sequence: random numbers depend on it.
    """

    def __init__(self, samples: Iterable[Any], place: tuple[int, int]) -> None:
        super().__init__(samples)
        self.place = place


class Handover:
    """Turns the values of a batch into what the training loop gets.

    Args:
        fields: What a sample is made of.
        is_bare: There is one field, and its value comes without a tuple.
        tail: With ``"mask"`` there is another value, ``valid``.
        batch_transform: The user's function; `make_loader` documents it.
        seed: Of its random numbers.

    Raises:
        OptionError: The function takes something else than there is.
    """

    def __init__(
        self,
        fields: tuple[str, ...],
        *,
        is_bare: bool,
        tail: Tail,
        batch_transform: BatchTransform | None,
        seed: int,
    ) -> None:
        self._fields = (*fields, "valid") if tail == "mask" else fields
        record_type(self._fields)  # an error about their names comes here, not with the first batch
        self._is_bare = is_bare and tail != "mask"
        self._batch_transform = batch_transform
        self._takes_all = batch_transform is not None and takes_whole_batch(batch_transform)
        self._seed = seed
        if batch_transform is not None:
            self._check_arguments(batch_transform)

    def batch(self, values: list[Any], place: tuple[int, int]) -> Any:
        """Return the batch of these values, one for each field, on the device.

        Args:
            values: One for each field.
            place: Epoch of the batch, and position of its first sample in the canonical sequence.
        """
        if self._batch_transform is not None:
            with seeded(key_of("batch_transform", self._seed, *place)):
                made = self._transformed(self._batch_transform, values)
            if isinstance(made, Mapping):
                return made
            values = made
        return values[0] if self._is_bare else make_record(self._fields, values)

    def collate(self, samples: list[Any]) -> Any:
        """Return the batch of these samples, as a ``collate_fn`` does."""
        columns = [samples] if self._is_bare else [list(column) for column in zip(*samples, strict=True)]
        place = samples.place if isinstance(samples, PlacedSamples) else (0, 0)
        return self.batch([as_tensors(packed(column)) for column in columns], place)

    def _transformed(self, function: BatchTransform, values: list[Any]) -> list[Any] | Mapping[str, Any]:
        """Return the values that are left, or the batch itself if the function has made a dictionary."""
        if not self._takes_all:
            place = self._fields.index("image")
            return [*values[:place], function(values[place]), *values[place + 1 :]]
        result = function(*values)
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

    def _check_arguments(self, function: BatchTransform) -> None:
        if not self._takes_all:
            if "image" not in self._fields:
                raise OptionError(
                    f"batch_transform= takes one argument, the images, but fields= has only {', '.join(self._fields)}: "
                    "add 'image', or give a function of all values"
                )
            return
        try:
            inspect.signature(_called(function)).bind(*self._fields)
        except TypeError as error:
            raise OptionError(
                f"batch_transform= cannot take the {len(self._fields)} values of a batch, {', '.join(self._fields)}: "
                f"{error}; it takes either the images alone or all of these"
            ) from error


def takes_whole_batch(function: BatchTransform) -> bool:
    """Return whether a function is given all values of a batch, and not the images alone.

    >>> takes_whole_batch(lambda images: images), takes_whole_batch(lambda images, labels: (images, labels))
    (False, True)
    """
    if _mixes_labels(function):
        return True
    try:
        parameters = inspect.signature(_called(function)).parameters.values()
    except (TypeError, ValueError):  # a function written in C
        return False
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(one.kind in by_position and one.default is one.empty for one in parameters) > 1


def _called(function: BatchTransform) -> BatchTransform:
    """Return what has the signature: a module's ``__call__`` takes anything."""
    return function.forward if isinstance(function, torch.nn.Module) else function


def _mixes_labels(transform: Any) -> bool:
    """Return whether this is CutMix or MixUp of torchvision, or contains one; all its transforms take ``*inputs``."""
    kinds = [kind for kind in type(transform).__mro__ if kind.__module__.startswith("torchvision.")]
    if any(kind.__name__ in ("CutMix", "MixUp") for kind in kinds):
        return True
    parts = getattr(transform, "transforms", None) if kinds else None
    return isinstance(parts, list | tuple) and any(map(_mixes_labels, parts))
