"""Attributes that other libraries read from a torch ``DataLoader``.

They are ``dataset``, ``sampler``, ``batch_sampler`` and ``collate_fn``.
``skip_first_batches`` of Accelerate creates a ``DataLoader`` from these four, so together they make the batches of the
loader. Lightning, Ray Train and many training scripts call ``sampler.set_epoch``. They insert their own sampler unless
they find a ``DistributedSampler``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset, DistributedSampler, Sampler

from wds_tools.loading.arguments import checked
from wds_tools.loading.assemble import Assembler, samples_of
from wds_tools.loading.bad_samples import ErrorLog, ErrorPolicy
from wds_tools.loading.dataset import values_of
from wds_tools.loading.epochs import Epochs
from wds_tools.loading.handover import PositionedSamples
from wds_tools.loading.recipe import Recipe
from wds_tools.loading.request import OpenedDataset
from wds_tools.order.buckets import BucketOrder


class SamplePosition(NamedTuple):
    """A sample and its position in an epoch. The position determines the crop.

    Attributes:
        epoch: Zero-based epoch.
        position: Position in the epoch, over all ranks.
        id: Sample id.
        valid: False for padding.
    """

    epoch: int
    position: int
    id: int
    valid: bool


class SampleDataset(Dataset[Any]):
    """The samples of an epoch in stored order, as a map-style dataset (``loader.dataset``).

    ``len()`` is the number of samples over all ranks. An index is an integer below it, or a `SamplePosition`.

    Args:
        opened: The dataset.
        errors: Handling of unreadable samples in each ``DataLoader`` worker.
        has_valid: Whether the last field of a sample is ``valid``, False for padding.
    """

    def __init__(self, opened: OpenedDataset, *, errors: ErrorPolicy, has_valid: bool) -> None:
        selection = opened.order.selection
        self._recipe: Recipe = opened.recipe
        self._order = opened.order
        self._selected_ids = selection.ids(0) if selection else None
        self._samples = opened.order.samples
        self._errors = ErrorLog(errors)
        self._epoch = -1  # epoch of the samples that were loaded last
        self._is_bare = opened.is_bare and not has_valid
        self._has_valid = has_valid
        self._assembler: Assembler | None = None

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int | SamplePosition) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int | SamplePosition]) -> list[Any]:
        """Return several samples. torch's ``DataLoader`` calls this with the indices of a batch."""
        positions = [index if isinstance(index, SamplePosition) else self._position_of(index) for index in indices]
        samples = [
            sample
            for epoch, group in groupby(positions, key=lambda position: position.epoch)
            for sample in self._load(epoch, list(group))
        ]
        return PositionedSamples(samples, positions[0].epoch, [one.position for one in positions])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_assembler": None}

    def _position_of(self, index: int) -> SamplePosition:
        if not -self._samples <= index < self._samples:
            raise IndexError(f"sample {index} is out of range: there are {self._samples} samples")
        position = index % self._samples
        return SamplePosition(
            0, position, position if self._selected_ids is None else int(self._selected_ids[position]), valid=True
        )

    def _load(self, epoch: int, samples: list[SamplePosition]) -> Iterator[Any]:
        self._assembler = self._assembler or Assembler(self._recipe)
        if epoch != self._epoch:
            self._epoch = epoch
            self._errors.begin(self._samples)
        positions, ids = np.array([[sample.position, sample.id] for sample in samples], np.int64).T
        order = self._order.at(epoch) if isinstance(self._order, BucketOrder) else self._order
        values = values_of(self._assembler, self._errors, order=order, epoch=epoch, positions=positions, ids=ids)
        if not self._has_valid:
            return samples_of(values, self._recipe.fields, is_bare=self._is_bare)
        return samples_of(
            [*values, [sample.valid for sample in samples]], (*self._recipe.fields, "valid"), is_bare=False
        )


class RankSampler(DistributedSampler[SamplePosition]):
    """The samples of this rank, in the order of the loader. Each iteration is an epoch of the loader."""

    def __init__(self, epochs: Epochs, samples: SampleDataset, device: torch.device) -> None:
        # torch's __init__ is not called, because it requires a process group. The epochs find the rank.
        self.dataset = samples
        self._epochs = epochs
        self._device = device

    def __len__(self) -> int:
        return len(self._epochs) * self._epochs.batch_size

    def __iter__(self) -> Iterator[SamplePosition]:
        if self._device.type != "cpu":
            warnings.warn(
                "a torch DataLoader created from a loader, as by Accelerate's skip_first_batches, cannot put batches "
                f"on {self._device}: they stay in CPU memory, where batch_transform= runs too. To continue with the "
                "loader itself, use loader.load_state_dict() instead of skipping batches",
                stacklevel=2,
            )
        plan = self._epochs.begin(is_counted=False)
        for number in range(len(plan)):
            step = plan.step(number)
            for position, sample, valid in zip(
                step.positions.tolist(), step.ids.tolist(), step.valid.tolist(), strict=True
            ):
                yield SamplePosition(plan.cursor.epoch, position, sample, valid)

    @checked()
    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration, also of the loader, start epoch ``epoch``; a position just loaded is kept."""
        self._epochs.set_trainer_epoch(epoch)


class RankBatchSampler(Sampler[list[SamplePosition]]):
    """The samples of this rank in batches."""

    def __init__(self, sampler: RankSampler, batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = False  # all batches are full

    def __len__(self) -> int:
        return len(self.sampler) // self.batch_size

    def __iter__(self) -> Iterator[list[SamplePosition]]:
        samples = iter(self.sampler)
        while batch := list(islice(samples, self.batch_size)):
            yield batch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the sampler. The Trainer of Hugging Face calls this method."""
        self.sampler.set_epoch(epoch)
