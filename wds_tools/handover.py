"""The last step of a batch, in the training process: `batch_transform`, and the named tuple that the loop gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from wds_tools.job import as_tensors, stacked
from wds_tools.planner import Tail
from wds_tools.sample import make_record, record_type

BatchTransform = Callable[[torch.Tensor], torch.Tensor]


class Handover:
    """Turns the values of a batch into what the training loop gets.

    Args:
        fields: What a sample is made of.
        is_bare: There is one field, and its value comes without a tuple.
        tail: With ``"mask"`` there is another value, ``valid``.
        batch_transform: The user's function.
    """

    def __init__(
        self, fields: tuple[str, ...], *, is_bare: bool, tail: Tail, batch_transform: BatchTransform | None
    ) -> None:
        self._fields = (*fields, "valid") if tail == "mask" else fields
        record_type(self._fields)  # an error about their names comes here, not with the first batch
        self._is_bare = is_bare and tail != "mask"
        self._batch_transform = batch_transform

    def batch(self, values: list[Any]) -> Any:
        """Return the batch of these values, one for each field."""
        if self._batch_transform and "image" in self._fields:
            place = self._fields.index("image")
            values[place] = self._batch_transform(values[place])
        return values[0] if self._is_bare else make_record(self._fields, values)

    def collate(self, samples: list[Any]) -> Any:
        """Return the batch of these samples, as a ``collate_fn`` does."""
        columns = [samples] if self._is_bare else [list(column) for column in zip(*samples, strict=True)]
        return self.batch([_as_batch(column) for column in columns])


def _as_batch(values: list[Any]) -> Any:
    """Return the values of a field as a batch has them: numbers, and tensors of one shape, as a tensor."""
    if all(isinstance(value, int | float) for value in values):
        return torch.from_numpy(np.array(values))
    return as_tensors(stacked(values))
