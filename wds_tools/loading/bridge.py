"""What other libraries read from a torch ``DataLoader``: ``dataset``, ``sampler``, ``batch_sampler``, ``collate_fn``.

Accelerate's ``skip_first_batches`` builds a ``DataLoader`` from these four, so together they make the loader's batches.
Lightning, Ray Train and many training scripts call ``sampler.set_epoch``, and look for a ``DistributedSampler`` before
they put in one of their own.
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
from wds_tools.loading.assemble import Assembler, Recipe, samples_of
from wds_tools.loading.bad_samples import ErrorLog, ErrorPolicy
from wds_tools.loading.dataset import values_of
from wds_tools.loading.epochs import Epochs
from wds_tools.loading.handover import PlacedSamples
from wds_tools.loading.request import Opened


class Place(NamedTuple):
    """A sample at its place in an epoch, which decides its crop."""

    epoch: int
    position: int
    id: int
    valid: bool


class Samples(Dataset[Any]):
    """The samples of an epoch, in the order in which they are stored: `make_loader`'s ``loader.dataset``.

    ``len()`` is the number of samples over all ranks. An index is a number below it, or a `Place`.

    Args:
        opened: The dataset.
        errors: What happens when a sample cannot be read, in each DataLoader worker.
        has_valid: Each sample ends with ``valid``, False for padding.
    """

    def __init__(self, opened: Opened, *, errors: ErrorPolicy, has_valid: bool) -> None:
        selection = opened.order.selection
        self._recipe: Recipe = opened.recipe
        self._order = opened.order
        self._chosen = selection.ids(0) if selection else None
        self._samples = opened.order.samples
        self._errors = ErrorLog(errors)
        self._epoch = -1  # of the last samples
        self._is_bare = opened.is_bare and not has_valid
        self._has_valid = has_valid
        self._assembler: Assembler | None = None

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int | Place) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int | Place]) -> list[Any]:
        """Return several samples; torch's ``DataLoader`` asks for a batch at a time."""
        places = [index if isinstance(index, Place) else self._place(index) for index in indices]
        samples = [
            sample
            for epoch, group in groupby(places, key=lambda place: place.epoch)
            for sample in self._made(epoch, list(group))
        ]
        return PlacedSamples(samples, places[0][:2])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_assembler": None}

    def _place(self, index: int) -> Place:
        if not -self._samples <= index < self._samples:
            raise IndexError(f"sample {index} of {self._samples}")
        position = index % self._samples
        return Place(0, position, position if self._chosen is None else int(self._chosen[position]), valid=True)

    def _made(self, epoch: int, places: list[Place]) -> Iterator[Any]:
        self._assembler = self._assembler or Assembler(self._recipe)
        if epoch != self._epoch:
            self._epoch = epoch
            self._errors.begin(self._samples)
        positions, ids = np.array([[place.position, place.id] for place in places], np.int64).T
        values = values_of(self._assembler, self._errors, order=self._order, epoch=epoch, positions=positions, ids=ids)
        if not self._has_valid:
            return samples_of(values, self._recipe.fields, is_bare=self._is_bare)
        return samples_of([*values, [place.valid for place in places]], (*self._recipe.fields, "valid"), is_bare=False)


class RankSampler(DistributedSampler[Place]):
    """The places of this rank's samples, in the order of the loader. Each iteration is an epoch, as of the loader."""

    def __init__(self, epochs: Epochs, samples: Samples, device: torch.device) -> None:
        # Not torch's __init__: it requires a process group, and the epochs know the rank.
        self.dataset = samples
        self._epochs = epochs
        self._device = device

    def __len__(self) -> int:
        return len(self._epochs) * self._epochs.batch_size

    def __iter__(self) -> Iterator[Place]:
        if self._device.type != "cpu":
            warnings.warn(
                "a torch DataLoader made from a loader, as Accelerate's skip_first_batches does, cannot put batches "
                f"on {self._device}: they come in memory, where batch_transform= runs too. With "
                "loader.load_state_dict() instead of skipping batches, the loader itself goes on where it stood",
                stacklevel=2,
            )
        plan = self._epochs.begin(is_counted=False)
        for number in range(len(plan)):
            step = plan.step(number)
            for position, sample, valid in zip(
                step.positions.tolist(), step.ids.tolist(), step.valid.tolist(), strict=True
            ):
                yield Place(plan.cursor.epoch, position, sample, valid)

    @checked()
    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration, of the loader too, epoch ``epoch``; a position that was just loaded is kept."""
        self._epochs.follow(epoch)


class StepSampler(Sampler[list[Place]]):
    """The places of each step of this rank."""

    def __init__(self, sampler: RankSampler, batch_size: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = False  # all are full

    def __len__(self) -> int:
        return len(self.sampler) // self.batch_size

    def __iter__(self) -> Iterator[list[Place]]:
        places = iter(self.sampler)
        while step := list(islice(places, self.batch_size)):
            yield step

    def set_epoch(self, epoch: int) -> None:
        """Do what the sampler does: the Trainer of Hugging Face calls it here."""
        self.sampler.set_epoch(epoch)
