"""From ``where=``, ``subset=`` and ``class_weights=`` to a `Selection`: the indexes are read, no shard is."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wds_tools.errors import MissingFieldError, OptionError
from wds_tools.format.index import ABSENT, NO_LABEL, Index
from wds_tools.options import CacheOptions
from wds_tools.order.selection import Balance, Selection, balance, draw, in_rounds, split_by_class
from wds_tools.order.where import Where, parse
from wds_tools.reading.shardset import ShardSet, open_shards

Weights = str | Mapping[Any, float] | Sequence[float] | NDArray[np.floating[Any]]
"""``"balanced"``, weights by class name or number, or one weight per class."""

Subset = float | Sequence[int] | NDArray[np.integer[Any]]
"""A fraction, or sample ids; an id that is named several times comes that often."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Which samples are wanted.

    Attributes:
        where: A condition on the columns of the index.
        subset: A fraction of the samples, or sample ids, each as often as it is to come.
        class_weights: How often the classes are to come.
        seed: Of what is drawn.
    """

    where: Where | None = None
    subset: Subset | None = None
    class_weights: Weights | None = None
    seed: int = 0

    def __bool__(self) -> bool:
        return any(part is not None for part in (self.where, self.subset, self.class_weights))

    def select(self, shards: ShardSet, *, first_shards: int | None = None) -> Selection | None:
        """Return the selection, of the first shards alone if asked for; None takes all samples.

        Raises:
            OptionError: Something that cannot be, or that leaves nothing.
            MissingFieldError: Weights of classes for samples that have none.
        """
        if not self:
            return None
        entries = shards.manifest.shards[:first_shards]
        if self.where is None:
            ids = _all_ids(sum(entry.samples for entry in entries))
        else:
            ids = _matching(shards, len(entries), self.where)
        if self.subset is not None and len(ids):
            ids = _subset(ids, self.subset, total=shards.manifest.samples, seed=self.seed)
        weights = self.class_weights
        return Selection(
            ids,
            balance=None if weights is None or not len(ids) else _balance(shards, len(entries), ids, weights),
            seed=self.seed,
        )


def parse_weights(text: str) -> Weights:
    """Read ``class_weights=`` from the command line.

    >>> parse_weights("balanced"), parse_weights("cat=2,dog=0.5")
    ('balanced', {'cat': 2.0, 'dog': 0.5})

    Raises:
        OptionError: It means nothing.
    """
    if "=" not in text:
        return text
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        return {name.strip(): float(weight) for name, _, weight in parts}
    except ValueError as error:
        raise OptionError(f"class_weights={text!r}; allowed are 'balanced' and name=weight,name=weight") from error


def labels_of(shards: ShardSet, first_shards: int | None = None) -> NDArray[np.int64]:
    """Return the class number of every sample, from the indexes: int64 [samples]."""
    return np.concatenate([index.label for index in _indexes(shards, first_shards)])


def train_test_split(
    dataset: str | os.PathLike[str],
    test_size: float = 0.2,
    *,
    seed: int = 0,
    stratify: bool = True,
    where: Where | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Divide a dataset in two without packing it again: give each part to a loader as ``subset=``.

    Args:
        dataset: Folder or URL with a manifest, the manifest, or a brace pattern of indexed shards.
        test_size: Fraction of the samples, or how many.
        seed: Of the draw; another seed is another split.
        stratify: Each class in the same proportion, to within one sample; ignored without labels.
        where: Divide only these samples, as for `make_loader`.

    Returns:
        Ids for training and for testing: int64, ascending, disjoint.

    Raises:
        NotADatasetError: There is no dataset.
        OptionError: A size that leaves one side empty.

    Example::

        train, test = train_test_split("shards/photos", 0.1)
        loader = make_loader("shards/photos", batch_size=256, subset=train)
    """
    shards = open_shards(dataset, cache=CacheOptions.of())
    selection = Choice(where=where).select(shards)
    ids = selection.chosen if selection else _all_ids(shards.manifest.samples)
    count = round(test_size * len(ids)) if isinstance(test_size, float) else test_size
    if not 0 < count < len(ids):
        raise OptionError(
            f"test_size={test_size} is {count:,} of {len(ids):,} samples; allowed is what leaves both sides some"
        )
    label = labels_of(shards)[ids] if stratify else None
    return split_by_class(ids, label, count, seed=seed)


def _all_ids(samples: int) -> NDArray[np.int64]:
    try:
        return np.arange(samples, dtype=np.int64)
    except MemoryError as error:
        raise OptionError(
            f"subset= and class_weights= take 8 bytes for each of {samples:,} samples, more than there is memory: "
            "leave them out, or choose by where="
        ) from error


def _indexes(shards: ShardSet, first_shards: int | None) -> Iterator[Index]:
    return (shards.index(number) for number in range(len(shards.places))[:first_shards])


def _matching(shards: ShardSet, first_shards: int, where: Where) -> NDArray[np.int64]:
    found, start, expression = [], 0, None
    for index in _indexes(shards, first_shards):
        table = _table(index, start)
        if expression is None:
            expression = parse(where, columns=table.column_names, classes=shards.manifest.classes)
        try:
            found.append(table.filter(expression)["id"].to_numpy())
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise OptionError(
                f"where={str(where)!r} cannot be applied ({' '.join(str(error).split())}); "
                f"the index has {', '.join(table.column_names)}"
            ) from error
        start += len(index)
    return np.concatenate(found)


def _table(index: Index, start: int) -> pa.Table:
    """Return the columns that a condition may use."""
    columns: dict[str, Any] = {
        "id": np.arange(start, start + len(index)),
        "key": index.keys,
        "label": pa.array(index.label, mask=index.label == NO_LABEL),
        "width": index.width.astype(np.int64),  # so that width * height does not overflow
        "height": index.height.astype(np.int64),
        "mode": index.mode,
        "orientation": index.orientation,
    }
    for name, part in index.fields.items():
        columns[f"{name}.size"] = pa.array(part.size, mask=part.offset == ABSENT)
    return pa.table(columns)


def _subset(ids: NDArray[np.int64], subset: Any, *, total: int, seed: int) -> NDArray[np.int64]:
    if isinstance(subset, float):
        if not 0 < subset <= 1:
            raise OptionError(f"subset={subset}; allowed is a fraction above 0 and up to 1, or sample ids")
        return draw(ids, max(1, round(subset * len(ids))), seed=seed, purpose="subset")
    wanted = np.asarray(subset)
    if wanted.ndim != 1 or not np.issubdtype(wanted.dtype, np.integer):
        raise OptionError(f"subset={subset!r}; allowed is a fraction such as 0.1, or a list of sample ids")
    wanted, counts = np.unique(wanted.astype(np.int64), return_counts=True)
    if len(wanted) and not 0 <= wanted[0] <= wanted[-1] < total:
        raise OptionError(f"subset= names samples {wanted[0]} to {wanted[-1]}; the dataset has 0 to {total - 1}")
    there = np.isin(wanted, ids, assume_unique=True)
    return in_rounds(wanted[there], counts[there])


def _balance(shards: ShardSet, first_shards: int, ids: NDArray[np.int64], weights: Weights) -> Balance:
    label = labels_of(shards, first_shards)[ids]
    if (label < 0).any():
        raise MissingFieldError("class_weights= needs a class number for every sample, and some have none")
    names = shards.manifest.classes
    count = max(len(names), int(label.max()) + 1)
    return balance(label, _weight_of_each(weights, count, names, np.bincount(label, minlength=count)))


def _weight_of_each(
    weights: Weights, count: int, names: Sequence[str], samples: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return a weight for each class: float64 [classes]."""
    if isinstance(weights, str):
        if weights != "balanced":
            raise OptionError(f"class_weights={weights!r}; allowed are 'balanced', a mapping, one weight per class")
        return np.where(samples, 1 / np.maximum(samples, 1), 0.0)
    if isinstance(weights, Mapping):
        numbers = {name: number for number, name in enumerate(names)} | {n: n for n in range(count)}
        strangers = [name for name in weights if name not in numbers]
        if strangers:
            raise OptionError(f"class_weights names {strangers[0]!r}; the classes are {', '.join(names) or count}")
        each = np.ones(count)
        for name, weight in weights.items():
            each[numbers[name]] = weight
        return each
    each = np.asarray(weights, np.float64)
    if each.shape != (count,):
        raise OptionError(f"class_weights has shape {each.shape}; the dataset has {count} classes")
    return each
