"""From sample ids to the fields of a batch: read, decode, crop and transform. This is the work of one worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import WdsToolsError
from wds_tools.format.sample import make_record
from wds_tools.images import native
from wds_tools.images.buckets import Buckets
from wds_tools.loading.fields.base import Column, Output
from wds_tools.loading.fields.collate import map_tensors
from wds_tools.loading.fields.part import Part
from wds_tools.loading.fields.slots import SlotLayout, column_spec, write_values
from wds_tools.loading.fields.user_functions import call_for_sample, seeded
from wds_tools.loading.samples.bad_samples import Unreadable, is_sample_error
from wds_tools.loading.samples.batch_padding import fit_values, padded_values
from wds_tools.loading.samples.recipe import Recipe, Samples
from wds_tools.loading.samples.sample_transform import call_sample_transform
from wds_tools.order.keyed_random import key_of
from wds_tools.reading.reader import Reader
from wds_tools.reading.rows import Rows

Out: TypeAlias = Sequence[Output]
"""For each column the tensor or tensors [n, ...] to write to, or None to return the values."""


class Assembler:
    """Reads and decodes the samples of batches."""

    def __init__(self, recipe: Recipe) -> None:
        native.check_worker(compiled_in_parent=recipe.compiled)
        self.recipe = recipe
        self.reader = Reader(recipe.shards, block=recipe.block)
        self._columns: dict[int, tuple[Column, ...]] = {}  # by variant

    def read_ahead(self, ids: NDArray[np.int64]) -> None:
        """Start reading the samples of a later batch."""
        self.reader.read_ahead(ids)

    def layouts(self, samples: Sequence[Samples]) -> tuple[SlotLayout, ...] | None:
        """Return what slots hold in each variant of a batch; None if no column has tensors of one shape and dtype.

        The first readable one of the `Recipe.first_samples` is loaded to find out.
        """
        kinds = len(samples)
        layouts = [self._layout(variant, *samples[variant % kinds]) for variant in range(len(self.recipe.variants))]
        complete = tuple(layout for layout in layouts if layout is not None)
        return complete if len(complete) == len(layouts) and any(layout.specs for layout in complete) else None

    def _layout(
        self, variant: int, positions: NDArray[np.int64], ids: NDArray[np.int64], partners: NDArray[np.int64]
    ) -> SlotLayout | None:
        """Return what slots hold in a variant of a batch, or None if all samples are unreadable."""
        epoch, bucket = self.recipe.variants[variant]
        for i in range(len(ids)):
            sample = slice(i, i + 1)
            try:
                samples = {"positions": positions[sample], "ids": ids[sample], "partners": partners[sample]}
                values = self.batch(epoch=epoch, bucket=bucket, **samples, out=None)
            except WdsToolsError as error:
                if not is_sample_error(error):
                    raise
                continue  # it is raised, or the sample replaced, where the sample is in a batch
            specs = [
                column_spec(padded_values(column, value)[0], channels_last=column.channels_last)
                if column.shapes
                else None
                for column, value in zip(self._columns_in(variant), values, strict=True)
            ]
            return SlotLayout(tuple(specs))
        return None

    def batch(
        self,
        *,
        epoch: int,
        positions: NDArray[np.int64],
        ids: NDArray[np.int64],
        partners: NDArray[np.int64],
        out: Out | None,
        bucket: int | None = None,
    ) -> list[Any]:
        """Return the values of each field for n samples.

        Args:
            epoch: Zero-based epoch.
            positions: int64 [n], positions in the epoch. They determine crops and flips.
            ids: int64 [n], sample ids.
            partners: int64 [n, k], ids of further samples that the images show, see `Recipe.partners`.
            out: For each column where to write its values, or None; None for all columns returns all values. Columns
                that will be padded have None.
            bucket: Bucket of all samples. None if there are no buckets, or if it is not known; ``out`` is then None.

        Returns:
            One value per field: ``label`` is int64 [n], others are lists of n values; None for values that were written
            to ``out``.

        Raises:
            SampleError: A sample cannot be decoded or lacks a field.
            ChecksumError: Bytes have changed since they were packed.
        """
        if bucket is None and self.recipe.buckets:
            return self._batch_of_buckets(
                self.recipe.buckets, epoch=epoch, positions=positions, ids=ids, partners=partners
            )
        self.reader.begin(epoch)
        columns = self._columns_in(self.recipe.variant_at(epoch, bucket))
        part = self.recipe.part(Rows(self.reader, ids), columns, epoch=epoch, positions=positions, partners=partners)
        out = [None] * len(columns) if out is None else out
        if self.recipe.sample_transform is None:
            values = [column.spec.load_into(part, column, target) for column, target in zip(columns, out, strict=True)]
        else:
            values = self._transformed(part, columns, [column.spec.load(part, column) for column in columns])
            pairs = zip(values, out, strict=True)
            values = [None if write_values(value, target) else value for value, target in pairs]
        return [
            value if column.padding is None else fit_values(part, column, value)
            for column, value in zip(columns, values, strict=True)
        ]

    def samples_or_errors(
        self,
        *,
        epoch: int,
        positions: NDArray[np.int64],
        ids: NDArray[np.int64],
        partners: NDArray[np.int64],
        out: Out | None,
        bucket: int | None = None,
    ) -> list[list[Any] | Unreadable]:
        """Load each sample separately. Return its values, as a batch of one sample, or its error."""
        samples: list[list[Any] | Unreadable] = []
        for i in range(len(ids)):
            row = slice(i, i + 1)
            try:
                target = rows_of(out, row)
                sample = {"positions": positions[row], "ids": ids[row], "partners": partners[row]}
                samples.append(self.batch(epoch=epoch, **sample, out=target, bucket=bucket))
            except WdsToolsError as error:
                if not is_sample_error(error):
                    raise
                samples.append(Unreadable(error, self._tile_of(error, np.append(ids[i], partners[i]))))
        return samples

    def _tile_of(self, error: WdsToolsError, ids: NDArray[np.int64]) -> int:
        """Return which of the samples that an image shows is the one that an error names."""
        rows, named = Rows(self.reader, ids), (error.shard, error.key)
        return next(
            (tile for tile in range(1, len(ids)) if rows.shard_and_key(tile) == named != rows.shard_and_key(0)), 0
        )

    def _batch_of_buckets(
        self,
        buckets: Buckets,
        *,
        epoch: int,
        positions: NDArray[np.int64],
        ids: NDArray[np.int64],
        partners: NDArray[np.int64],
    ) -> list[Any]:
        """Return the values of each field for samples that may belong to several buckets."""
        rows = Rows(self.reader, ids)
        labels = buckets.bucket_of(rows.gather("width"), rows.gather("height"))
        values: list[list[Any]] = [[None] * len(ids) for _ in self.recipe.columns]
        for label in np.unique(labels).tolist():
            chosen = np.flatnonzero(labels == label)
            samples = {"positions": positions[chosen], "ids": ids[chosen], "partners": partners[chosen]}
            part = self.batch(epoch=epoch, **samples, out=None, bucket=label)
            for column, part_values in zip(values, part, strict=True):
                for i, value in zip(chosen.tolist(), part_values, strict=True):
                    column[i] = value
        return values

    def _columns_in(self, variant: int) -> tuple[Column, ...]:
        if variant not in self._columns:
            self._columns[variant] = self.recipe.columns_in(variant)
        return self._columns[variant]

    def _transformed(self, part: Part, columns: Sequence[Column], values: list[Any]) -> list[list[Any]]:
        """Return the values of each field after ``sample_transform=`` was called for each sample."""
        function = self.recipe.sample_transform
        assert function is not None
        lists = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
        results = []
        with stages.TRANSFORM:
            for i, (sample, position) in enumerate(zip(zip(*lists, strict=True), part.positions.tolist(), strict=True)):
                seed = key_of("sample_transform", part.seed, part.epoch, position)
                call = partial(call_sample_transform, function, columns, list(sample), seed)
                with seeded(seed):
                    results.append(call_for_sample("sample_transform=", part.rows, i, call))
        return [list(column) for column in zip(*results, strict=True)]


def rows_of(out: Out | None, rows: slice) -> Out | None:
    """Return some rows of the tensors for each column."""
    return None if out is None else [map_tensors(lambda tensor: tensor[rows], target) for target in out]


def samples_of(values: list[Any], fields: tuple[str, ...], *, is_bare: bool) -> Iterator[Any]:
    """Yield the samples of a batch as named tuples, or, with ``is_bare``, as the values of the only field."""
    columns = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    if is_bare:
        return iter(columns[0])
    return map(partial(make_record, fields), zip(*columns, strict=True))
