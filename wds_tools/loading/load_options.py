"""The options of `make_loader` and `StreamingDataset`: each has its name, type and default here.

The docstring of `make_loader` describes them, and `arguments` has the values that are allowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch

from wds_tools.errors import OptionError
from wds_tools.format.sample import record_type
from wds_tools.images.schedule import AnyView, Schedule
from wds_tools.loading.fields.base import Column
from wds_tools.loading.fields.user_functions import Transform
from wds_tools.loading.mixture import Mixture
from wds_tools.loading.pipeline.autoscale import NumWorkers
from wds_tools.loading.ranks import Group, RankOptions
from wds_tools.loading.samples.bad_samples import ErrorPolicy, OnError
from wds_tools.loading.samples.columns import Fields, columns_of
from wds_tools.loading.samples.handover import BatchTransform
from wds_tools.loading.samples.sample_transform import check_sample_transform
from wds_tools.loading.workers.pool import STALL_SECONDS
from wds_tools.options import RemoteOptions
from wds_tools.order.planner import Tail
from wds_tools.order.where import Where
from wds_tools.reading.names import Dataset
from wds_tools.reading.select import Banned, Choice, Subset, Weights
from wds_tools.reading.weights import WeightSchedule


@dataclass(frozen=True)
class LoadOptions:
    """The options that `make_loader` and `StreamingDataset` share.

    Attributes:
        ranks: ``rank``, ``world_size`` and ``group``.
        remote: The options for URLs, or their defaults.
        errors: ``on_error`` and ``max_errors``.

    Raises:
        OptionError: ``fields`` cannot be the fields of a named tuple, or options contradict each other.
    """

    dataset: Dataset | Mixture
    _: KW_ONLY
    batch_size: int
    view: AnyView | None = None
    shuffle: bool | int | float = False
    seed: int = 0
    fields: Fields = ("image", "label")
    transform: Transform | None = None
    sample_transform: Transform | None = None
    tail: Tail = "drop"
    on_error: OnError = "raise"
    max_errors: int | float = 0.01
    where: Where | None = None
    subset: Subset | None = None
    class_weights: Weights | Schedule | None = None
    ban: Banned | None = None
    rank: int | None = None
    world_size: int | None = None
    group: Group | None = None
    lanes: int | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_bytes: int | str | None = None
    read_ahead_bytes: int | str | None = None
    retry_seconds: float | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)

    ranks: RankOptions = field(init=False)
    remote: RemoteOptions = field(init=False)
    errors: ErrorPolicy = field(init=False)

    def __post_init__(self) -> None:
        mixture = self.dataset if isinstance(self.dataset, Mixture) else None
        if mixture and mixture.views is not None and self.view is not None:
            raise OptionError("view= and the views= of the Mixture both give the views: remove one of them")
        if mixture and mixture.fields is not None and self.fields != LoadOptions.fields:
            raise OptionError("fields= of the loader and of the Mixture both give the fields: remove one of them")
        object.__setattr__(self, "ranks", RankOptions(self.rank, self.world_size, self.group))
        object.__setattr__(self, "errors", ErrorPolicy(on_error=self.on_error, max_errors=self.max_errors))
        remote = RemoteOptions.of(
            self.cache_dir,
            self.cache_bytes,
            read_ahead_bytes=self.read_ahead_bytes,
            retry_seconds=self.retry_seconds,
            storage_options=self.storage_options,
        )
        object.__setattr__(self, "remote", remote)
        for columns in self.columns_by_dataset:
            record_type(tuple(column.name for column in columns))
            check_sample_transform(self.sample_transform, columns)

    @property
    def columns_by_dataset(self) -> tuple[tuple[Column, ...], ...]:
        """The fields of a batch; those of each dataset of a `Mixture` that has fields or views of its own for them."""
        fields = self.fields_by_dataset
        separate = self.dataset.views if isinstance(self.dataset, Mixture) else None
        views: Sequence[AnyView | None] = [self.view] * len(fields) if separate is None else separate
        pairs = zip(fields, views, strict=True)
        return tuple(columns_of(dataset_fields, view=view, transform=self.transform) for dataset_fields, view in pairs)

    @property
    def fields_by_dataset(self) -> Sequence[Fields]:
        """The values of ``fields=`` for the `columns_by_dataset`."""
        if not isinstance(self.dataset, Mixture) or not self.dataset.has_own_columns:
            return [self.fields]
        return self.dataset.fields or [self.fields] * len(self.dataset.datasets)

    def columns_of(self, index: int) -> tuple[Column, ...]:
        """Return the fields of a batch with samples of one dataset."""
        columns = self.columns_by_dataset
        return columns[index if len(columns) > 1 else 0]

    @property
    def choice(self) -> Choice:
        """Which samples are used, and how often."""
        weights = None if isinstance(self.class_weights, Schedule) else self.class_weights
        return Choice(self.where, self.subset, weights, self.seed)

    @property
    def schedule(self) -> WeightSchedule | None:
        """The weights that change during the run."""
        if isinstance(self.class_weights, Schedule):
            return "classes", self.class_weights
        if isinstance(self.dataset, Mixture) and isinstance(self.dataset.weights, Schedule):
            return "sources", self.dataset.weights
        return None


@dataclass(frozen=True)
class LoaderOptions(LoadOptions):
    """The options of `make_loader`."""

    _: KW_ONLY
    pack_to: str | os.PathLike[str] | None = None
    pack: Mapping[str, Any] | None = field(default=None, repr=False)
    save_ban_to: str | os.PathLike[str] | None = None
    num_workers: NumWorkers = None
    prefetch_factor: int = 2
    device: str | int | torch.device | None = None
    device_prefetch: int = 2
    collate_fn: Callable[[list[Any]], Any] | None = None
    batch_transform: BatchTransform | None = None
    multiprocessing_context: str | None = None
    stall_seconds: float = STALL_SECONDS
    progress: bool | None = False
    report_to: str | None = None


@dataclass(frozen=True)
class StreamOptions(LoadOptions):
    """The options of `StreamingDataset`."""

    _: KW_ONLY
    batch_size: int = 1
    decode: bool = True

    def __post_init__(self) -> None:
        if self.tail == "mask":
            raise OptionError("tail='mask' requires make_loader: a single sample has no field to mark it as padding")
        if not self.decode:
            if any(option is not None for option in (self.view, self.transform, self.sample_transform)):
                raise OptionError(
                    "decode=False yields undecoded bytes: remove view=, transform= and sample_transform=, and apply "
                    "them after decoding"
                )
            object.__setattr__(self, "fields", ("__key__",))
        if isinstance(self.dataset, Mixture) and self.dataset.batches == "single":
            raise OptionError("a Mixture with batches='single' requires make_loader, which makes the batches")
        if self.schedule is not None:
            raise OptionError("a Schedule of weights requires make_loader: give weights that do not change")
        super().__post_init__()
        if self.errors.replaces and not self.decode:
            raise OptionError(
                "decode=False yields undecoded bytes, so unreadable images are not detected: on_error='replace' "
                "requires decode=True"
            )
