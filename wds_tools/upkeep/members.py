"""The members of a shard with their tar headers, found by its index alone, for the files of other readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import ManifestError
from wds_tools.format.index import ABSENT, Index
from wds_tools.format.tar import BLOCK


class Part(NamedTuple):
    """A field of a sample as a member of a shard.

    Attributes:
        start: Offset of its first tar header.
        offset: Offset of its content.
    """

    name: str
    start: int
    offset: int
    size: int


class StoredKey(NamedTuple):
    """A sample in a shard: its key, and its fields in the order of the shard."""

    key: str
    parts: list[Part]


def stored_keys(index: Index, headers: Mapping[str, NDArray[np.int32] | None], *, name: str) -> list[StoredKey]:
    """Return the samples of a shard with their members.

    Raises:
        ManifestError: The index does not record tar headers longer than one block, as in older releases.
    """
    indexes, rows, offsets, sizes, starts = [], [], [], [], []
    for field_index, (field, columns) in enumerate(index.fields.items()):
        present = np.flatnonzero(columns.offset != ABSENT)
        header = headers.get(field)
        before = np.full(len(present), BLOCK) if header is None else header[present].astype(np.int64)
        indexes.append(np.full(len(present), field_index))
        rows.append(present)
        offsets.append(columns.offset[present])
        sizes.append(columns.size[present])
        starts.append(columns.offset[present] - before)
    if not rows:
        return []
    order = np.argsort(np.concatenate(offsets), kind="stable")
    field_of, row, offset, size, start = (
        np.concatenate(part)[order] for part in (indexes, rows, offsets, sizes, starts)
    )
    ends = np.concatenate([[0], offset + -(-size // BLOCK) * BLOCK])
    if all(header is None for header in headers.values()) and not np.array_equal(start, ends[:-1]):
        raise ManifestError(
            f"the index of {name} does not record where its tar headers are: rebuild it with `wds-tools index`",
            shard=index.shard,
        )
    fields = list(index.fields)
    samples = [StoredKey(key, []) for key in index.keys]
    for field_index, at, first, content, length in zip(
        field_of.tolist(), row.tolist(), start.tolist(), offset.tolist(), size.tolist(), strict=True
    ):
        samples[at].parts.append(Part(fields[field_index], first, content, length))
    return samples


def end_of(samples: list[StoredKey]) -> int:
    """Return the offset after the last member."""
    return max((part.offset + -(-part.size // BLOCK) * BLOCK for sample in samples for part in sample.parts), default=0)
