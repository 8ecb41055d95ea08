"""Attributes that other libraries read from a torch ``DataLoader``.

They are ``dataset``, ``sampler``, ``batch_sampler`` and ``collate_fn``.
``skip_first_batches`` of Accelerate creates a ``DataLoader`` from these four, so together they make the batches of the
loader. Lightning, Ray Train and many training scripts call ``sampler.set_epoch``. They insert their own sampler unless
they find a ``DistributedSampler``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset, DistributedSampler, Sampler

from wds_tools.loading.arguments import checked
from wds_tools.loading.dataset import values_of
from wds_tools.loading.epochs import Epochs
from wds_tools.loading.request import OpenedDataset
from wds_tools.loading.samples.assemble import Assembler, samples_of
from wds_tools.loading.samples.bad_samples import ErrorLog, ErrorPolicy
from wds_tools.loading.samples.handover import PositionedSamples
from wds_tools.loading.samples.recipe import Recipe
from wds_tools.order.planner import EpochPlan, Step


class SamplePosition(NamedTuple):
    """A sample and its position in an epoch. The position determines the crop.

    Attributes:
        epoch: Zero-based epoch.
        position: Position in the epoch, over all ranks.
        id: Sample id.
        valid: False for padding.
        bucket: See `Recipe.bucket_of`; 0 is the first view of a `MultiScale`.
    """

    epoch: int
    position: int
    id: int
    valid: bool
    bucket: int | None = 0


class SampleDataset(Dataset[Any]):
    """The samples of an epoch in stored order, as a map-style dataset (``loader.dataset``).

    ``len()`` is the number of samples over all ranks. An index is an integer below it, or a `SamplePosition`.

    Args:
        errors: Handling of unreadable samples in each ``DataLoader`` worker.
        has_valid: Whether the last field of a sample is ``valid``, False for padding.
    """

    def __init__(self, opened: OpenedDataset, *, errors: ErrorPolicy, has_valid: bool) -> None:
        self._recipe: Recipe = opened.recipe
        self._orders = opened.orders()
        self._errors = ErrorLog(errors)
        self._epoch = -1  # epoch of the samples that were loaded last
        self._is_bare = opened.is_bare and not has_valid
        self._has_valid = has_valid
        self._assembler: Assembler | None = None

    def __len__(self) -> int:
        return self._orders.of(0).distinct

    def __getitem__(self, index: int | SamplePosition) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int | SamplePosition]) -> list[Any]:
        """Return several samples. torch's ``DataLoader`` calls this with the indices of a batch."""
        positions = [index if isinstance(index, SamplePosition) else self._position_of(index) for index in indices]
        samples = [
            sample
            for (epoch, bucket), group in groupby(positions, key=lambda position: (position.epoch, position.bucket))
            for sample in self._load(epoch, bucket, list(group))
        ]
        first = positions[0]
        return PositionedSamples(samples, first.epoch, [position.position for position in positions], first.bucket)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_assembler": None}

    def _position_of(self, index: int) -> SamplePosition:
        samples = len(self)
        if not -samples <= index < samples:
            raise IndexError(f"sample {index} is out of range: there are {samples} samples")
        position = index % samples
        sample_id = int(self._stored_ids[position])
        bucket = self._orders.of(0).bucket_of(np.array([sample_id])) if self._recipe.is_by_dataset else 0
        return SamplePosition(0, position, sample_id, valid=True, bucket=bucket)

    @cached_property
    def _stored_ids(self) -> Sequence[int] | NDArray[np.int64]:
        """Ids of the samples of epoch 0 in stored order."""
        order = self._orders.of(0)
        has_all = order.identity.once and order.distinct == order.identity.stored
        return range(order.distinct) if has_all else order.stored_ids()

    def bucket_of(self, plan: EpochPlan, step: Step) -> int | None:
        """Return the bucket of a step, see `Recipe.bucket_of`."""
        return self._recipe.bucket_of(plan, step)

    def _load(self, epoch: int, bucket: int | None, samples: list[SamplePosition]) -> Iterator[Any]:
        self._assembler = self._assembler or Assembler(self._recipe)
        if epoch != self._epoch:
            self._epoch = epoch
            self._errors.begin(len(self))
        positions, ids = np.array([[sample.position, sample.id] for sample in samples], np.int64).T
        order = self._orders.of(epoch)
        arguments: Any = {"order": order, "epoch": epoch, "positions": positions, "ids": ids}
        values = values_of(self._assembler, self._errors, **arguments, bucket=bucket)
        fields = self._recipe.fields_of(bucket)
        if not self._has_valid:
            return samples_of(values, fields, is_bare=self._is_bare)
        return samples_of([*values, [sample.valid for sample in samples]], (*fields, "valid"), is_bare=False)


class RankSampler(DistributedSampler[SamplePosition]):
    """The samples of this rank, in the order of the loader. Each iteration is an epoch of the loader."""

    def __init__(self, epochs: Epochs, samples: SampleDataset, device: torch.device) -> None:
        # torch's __init__ is not called, because it requires a process group. The epochs find the rank.
        self.dataset = self._samples = samples
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
        for index in range(len(plan)):
            step = plan.step(index)
            bucket = self._samples.bucket_of(plan, step)
            for position, sample, valid in zip(
                step.positions.tolist(), step.ids.tolist(), step.valid.tolist(), strict=True
            ):
                yield SamplePosition(plan.cursor.epoch, position, sample, valid, bucket)

    @checked()
    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration, even of the loader itself, start epoch ``epoch``; a position just loaded is kept."""
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
