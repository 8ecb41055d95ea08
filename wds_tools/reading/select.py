"""Selection of samples by ``where=``, ``subset=``, ``class_weights=`` and ``ban=``. Reads indexes, no shards."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import MissingFieldError, OptionError
from wds_tools.options import RemoteOptions, check_counts
from wds_tools.order.selection import Balance, Selection, balance, count_labels, draw, in_rounds, split_by_class
from wds_tools.order.where import Where, WhereError, parse
from wds_tools.reading.columns import columns_of, labels_of, numbers_of, table_of
from wds_tools.reading.names import Dataset
from wds_tools.reading.opening import open_shards
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage.cache.arrays import Arrays
from wds_tools.wording import first_few

Weights = str | Mapping[Any, float] | Sequence[float] | NDArray[np.floating[Any]]
"""``"balanced"``, weights by class name or class number, or one weight per class."""

Subset = float | Sequence[int] | NDArray[np.integer[Any]]
"""A fraction of the samples, or sample ids; a repeated id is delivered that often."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The options that select samples. An object without any of them is false.

    Attributes:
        subset: Fraction of the samples, or sample ids, repeated as often as the sample is to be
            delivered.
    """

    where: Where | None = None
    subset: Subset | None = None
    class_weights: Weights | None = None
    seed: int = 0

    def __bool__(self) -> bool:
        return any(part is not None for part in (self.where, self.subset, self.class_weights))

    def select(
        self, shards: ShardSet, *, first_shards: int | None = None, progress: bool | None = False
    ) -> Selection | None:
        """Return the selected samples of a dataset, or None if all are selected.

        Raises:
            OptionError: An option is invalid, or no sample is selected.
            MissingFieldError: ``class_weights`` is given, but a sample has no class.
        """
        if not self:
            return None
        computed = shards.computed(
            f"selection {self.source(shards)}",
            partial(self._compute, shards, first_shards, progress),
            first_shards=first_shards,
        )
        arrays, values = computed.arrays, computed.values
        samples = int(shards.manifest.shard_samples[:first_shards].sum())
        balance, turns = None, arrays.get("turns")
        if turns is not None:
            label = arrays["label"] if "label" in arrays else labels_of(shards, first_shards)
            balance = Balance(label, arrays["samples"], arrays["targets"])
        known = str(values["digest"]), bool(values["once"])
        return Selection(arrays.get("ids", range(samples)), balance=balance, seed=self.seed, turns=turns, known=known)

    def source(self, shards: ShardSet) -> str:
        """Return all that the selection depends on besides the indexes."""
        where, subset, weights = self.where, cast(Any, self.subset), cast(Any, self.class_weights)
        if where is not None and not isinstance(where, str):  # an expression
            where = xxhash.xxh3_128_hexdigest(pickle.dumps(where)), pa.__version__
        if subset is not None and not isinstance(subset, float):
            subset = xxhash.xxh3_128_hexdigest(checked_ids(subset, shards.manifest.samples).tobytes())
        if isinstance(weights, Mapping):
            weights = list(weights.items())
        elif weights is not None and not isinstance(weights, str):
            weights = _as_numbers(weights).tolist()
        classes = xxhash.xxh3_128_hexdigest("\0".join(shards.manifest.classes).encode("utf-8", "surrogatepass"))
        return repr((where, subset, weights, self.seed, classes))

    def _compute(self, shards: ShardSet, first_shards: int | None, progress: bool | None) -> Arrays:
        """Return what `select` makes the selection of."""
        counts = shards.manifest.shard_samples[:first_shards]
        ids: NDArray[np.signedinteger] | range = range(int(counts.sum()))
        if self.where is not None:
            ids = matching(shards, len(counts), self.where, progress)
        if self.subset is not None and len(ids):
            ids = _subset(ids, self.subset, total=shards.manifest.samples, seed=self.seed)
        balance = None
        if self.class_weights is not None and len(ids):
            balance = _balance(shards, first_shards, ids, self.class_weights, progress)
        selection = Selection(ids, balance=balance, seed=self.seed)
        arrays: dict[str, NDArray[Any]] = {}
        if not isinstance(ids, range):
            arrays["ids"] = narrow(ids, shards.manifest.samples)
        if balance is not None and selection.turns is not None:
            arrays |= {"turns": selection.turns, "samples": balance.samples, "targets": balance.targets}
            if not isinstance(ids, range):
                arrays["label"] = balance.label
        return Arrays(arrays, {"digest": selection.digest, "once": selection.once})


def parse_weights(text: str) -> Weights:
    """Parse the option ``--class-weights`` of the command line.

    >>> parse_weights("balanced"), parse_weights("cat=2,dog=0.5")
    ('balanced', {'cat': 2.0, 'dog': 0.5})
    """
    if "=" not in text:
        return text
    parts = [part.rpartition("=") for part in text.split(",")]
    try:
        return {name.strip(): float(weight) for name, _, weight in parts}
    except ValueError as error:
        raise OptionError(f"class_weights={text!r}; allowed are 'balanced' and name=weight,name=weight") from error


def train_test_split(
    dataset: Dataset,
    test_size: float = 0.2,
    *,
    seed: int = 0,
    stratify: bool = True,
    where: Where | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split a dataset in two without packing it again. Pass each part to a loader as ``subset=``.

    Args:
        dataset: Folder or URL with a manifest, the manifest itself, a brace pattern of indexed
            shards, or a list of such shards.
        test_size: Fraction (float) or number (int) of samples for testing.
        seed: Seed of the random split.
        stratify: Keep the proportion of each class in both parts, to within one sample; ignored
            without labels.
        where: Split only samples that meet this condition, see `make_loader`.
        storage_options: Options for URLs, by the names of fsspec, such as ``{"anon": True}``. They are not saved.

    Returns:
        Sample ids for training and sample ids for testing: int64, ascending, disjoint.

    Raises:
        NotADatasetError: The path is not a packed dataset.
        OptionError: ``test_size`` or ``seed`` is not a number, one part would be empty, or ``where`` is invalid.

    Example::

        train, test = train_test_split("shards/photos", 0.1)
        loader = make_loader("shards/photos", batch_size=256, subset=train)
    """
    if not isinstance(test_size, Real) or isinstance(test_size, bool):
        raise OptionError(f"test_size={test_size!r}; allowed are fractions, such as 0.2, and whole numbers of samples")
    check_counts({"seed": seed}, least=0)
    shards = open_shards(dataset, remote=RemoteOptions.of(storage_options=storage_options))
    choice = Choice(where=where)

    def compute() -> Arrays:
        selection = choice.select(shards)
        ids = selection.selected_ids if selection else np.arange(shards.manifest.samples)
        count = int(test_size) if isinstance(test_size, Integral) else round(float(test_size) * len(ids))
        if not 0 < count < len(ids):
            raise OptionError(
                f"test_size={test_size} is {count:,} of {len(ids):,} samples; both parts must have at least one sample"
            )
        labels = labels_of(shards) if stratify else None
        label = labels if labels is None or selection is None else labels[ids]
        train, test = split_by_class(ids, label, count, seed=seed)
        return Arrays({"train": train, "test": test})

    arrays = shards.computed(f"split {choice.source(shards)} {test_size!r} {seed} {stratify}", compute).arrays
    return arrays["train"], arrays["test"]


def narrow(ids: NDArray[np.signedinteger], samples: int) -> NDArray[np.signedinteger]:
    """Return ids in 4 bytes each, if these have all ids of the dataset."""
    return ids.astype(np.int32 if samples <= 1 << 31 else np.int64, copy=False)


def matching(shards: ShardSet, first_shards: int, where: Where, progress: bool | None) -> NDArray[np.signedinteger]:
    """Return the ids of the samples that meet a condition: int32 or int64 [n]. Only its columns are read."""
    parts, start = [], 0
    expression, columns, further = _parse(shards, first_shards, where)
    for shard in numbers_of(shards, first_shards, progress):
        table = table_of(shards, shard, start, columns, further)
        try:
            ids = table.filter(expression)["id"].to_numpy()
        except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
            names = [*columns_of(shards.index(shard, keep=False), 0).column_names, *further]
            raise OptionError(
                f"where={str(where)!r} cannot be applied ({' '.join(str(error).split())}); "
                f"the index has {', '.join(names)}"
            ) from error
        parts.append(narrow(ids, shards.manifest.samples))
        start += shards.entry(shard).samples
    return np.concatenate(parts)


def _parse(shards: ShardSet, first_shards: int, where: Where) -> tuple[Any, frozenset[str], list[str]]:
    """Return a condition as an expression, the columns that it uses, and the further ones among them.

    Usually all shards have the columns of the first; the other indexes are read only if it lacks a column.
    """
    first, classes = shards.index(0), shards.manifest.classes
    own = columns_of(first, 0).column_names
    further: Sequence[str] = first.columns
    try:
        condition = parse(where, columns=[*own, *further], classes=classes)
    except WhereError:
        names = (name for shard in numbers_of(shards, first_shards) for name in shards.stored_columns(shard, ())[1])
        further = list(dict.fromkeys(names))
        condition = parse(where, columns=[*own, *further], classes=classes)
    return condition.expression, condition.columns, [name for name in further if name in condition.columns]


def _subset(ids: NDArray[np.signedinteger] | range, subset: Any, *, total: int, seed: int) -> NDArray[np.signedinteger]:
    if isinstance(subset, float):
        if not 0 < subset <= 1:
            raise OptionError(f"subset={subset}; allowed is a fraction above 0 and up to 1, or sample ids")
        return draw(ids, max(1, round(subset * len(ids))), seed=seed, purpose="subset")
    requested, counts = np.unique(checked_ids(subset, total), return_counts=True)
    present = requested < len(ids) if isinstance(ids, range) else np.isin(requested, ids, assume_unique=True)
    return in_rounds(requested[present], counts[present])


def checked_ids(subset: Any, total: int) -> NDArray[np.int64]:
    """Return the sample ids of ``subset=`` as int64 [n]."""
    ids = np.asarray(subset)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise OptionError(f"subset={subset!r}; allowed is a fraction such as 0.1, or a list of sample ids")
    if len(ids) and not 0 <= ids.min() <= ids.max() < total:
        raise OptionError(f"subset= lists samples {ids.min()} to {ids.max()}; the dataset has 0 to {total - 1}")
    return ids.astype(np.int64)


def _balance(
    shards: ShardSet,
    first_shards: int | None,
    ids: NDArray[np.signedinteger] | range,
    weights: Weights,
    progress: bool | None,
) -> Balance:
    label = labels_of(shards, first_shards, progress)
    if not isinstance(ids, range):
        label = label[ids]
    if (label < 0).any():
        raise MissingFieldError(
            "class_weights= requires a class number for every sample, but some have none; select those with a label "
            "by where=, such as where='label >= 0'"
        )
    names = shards.manifest.classes
    count = max(len(names), int(label.max()) + 1)
    return balance(label, weights_by_class(weights, count, names, count_labels(label, count)))


def weights_by_class(
    weights: Weights, count: int, names: Sequence[str], samples: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the weight of each class: float64 [classes]."""
    if isinstance(weights, str):
        if weights != "balanced":
            raise OptionError(f"class_weights={weights!r}; allowed are 'balanced', a mapping, or one weight per class")
        return np.where(samples, 1 / np.maximum(samples, 1), 0.0)
    if isinstance(weights, Mapping):
        numbers = {name: number for number, name in enumerate(names)} | {n: n for n in range(count)}
        unknown = [name for name in weights if name not in numbers]
        if unknown:
            raise OptionError(f"class_weights names {unknown[0]!r}; the classes are {', '.join(names) or count}")
        result = np.ones(count)
        for name, weight in zip(weights, _as_numbers(list(weights.values())).tolist(), strict=True):
            result[numbers[name]] = weight
        return result
    result = _as_numbers(weights)
    if len(result) != count:
        raise OptionError(f"class_weights has {len(result)} weights; the dataset has {count} classes")
    return result


def _as_numbers(weights: Any) -> NDArray[np.float64]:
    try:
        array = np.asarray(weights, np.float64)
    except (TypeError, ValueError):
        array = None
    if array is None or array.ndim != 1:
        raise OptionError(
            f"class_weights has {weights!r}; allowed are 'balanced', a mapping from classes to numbers, or one number "
            "per class"
        )
    return array


Banned: TypeAlias = str | os.PathLike[str] | Sequence[str] | Sequence[int] | NDArray[np.integer]
"""A file with one key or sample id per line, keys, or sample ids."""


def banned_ids(shards: ShardSet, ban: Banned, first_ids: Sequence[int]) -> list[int]:
    """Return the ids of banned samples, ascending. Indexes are read only for keys.

    Args:
        shards: The dataset.
        ban: Keys (str), or sample ids (int). Or a file: its lines are sample ids if all of them are whole numbers and
            none is a key of the dataset, otherwise keys. All samples with a key are banned.
        first_ids: Id of the first sample of each dataset of a mixture, and the number of all samples.

    Raises:
        OptionError: The file cannot be read, or the dataset does not have a key or an id, or several datasets have a
            key.
    """
    if isinstance(ban, str | os.PathLike):
        return _ids_of_lines(shards, _lines(ban), first_ids, os.fspath(ban))
    values: list[Any] = ban.tolist() if isinstance(ban, np.ndarray) else list(ban)
    if all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values):
        return _checked_ids(shards, values, "ban=")
    if all(isinstance(value, str) for value in values):
        return _ids_of_keys(ids_by_key(shards, values, first_ids, "ban="), values, "ban=")
    types = ", ".join(sorted({type(value).__name__ for value in values}))
    raise OptionError(f"ban= has values of type {types}; allowed are keys (str) or sample ids (int), not both")


def _lines(path: str | os.PathLike[str]) -> list[str]:
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OptionError(
            f"ban={os.fspath(path)!r} cannot be read ({reason}): pass a text file with one key or sample id per line, "
            "or a list of keys"
        ) from error
    return [line.strip() for line in lines if line.strip()]


def _ids_of_lines(shards: ShardSet, lines: list[str], first_ids: Sequence[int], path: str) -> list[int]:
    by_key = ids_by_key(shards, lines, first_ids, path)
    if not by_key and all(line.isdecimal() for line in lines):
        return _checked_ids(shards, list(map(int, lines)), path)
    return _ids_of_keys(by_key, lines, path)


def ids_by_key(shards: ShardSet, keys: Iterable[str], first_ids: Sequence[int], where: str) -> dict[str, list[int]]:
    """Return the ids of the samples with these keys, without keys that no sample has.

    Raises:
        OptionError: Several datasets of a mixture have a key.
    """
    requested, by_key, start = set(keys), dict[str, list[int]](), 0
    for position in range(len(shards.locations)) if requested else ():
        index = shards.index(position)
        for row, key in enumerate(index.keys):
            if key in requested:
                by_key.setdefault(key, []).append(start + row)
        start += len(index)
    for key, ids in by_key.items():
        datasets = {int(dataset): None for dataset in np.searchsorted(first_ids, ids, side="right") - 1}
        if len(datasets) > 1:
            names = " and ".join(f"{dataset} ({shards.class_lists[dataset].name})" for dataset in datasets)
            raise OptionError(
                f"{where} has the key {key!r}, which the datasets {names} of the Mixture have: give the samples by "
                f"their ids, which are {' and '.join(map(str, ids))} for this key"
            )
    return by_key


def _ids_of_keys(by_key: dict[str, list[int]], keys: Sequence[str], where: str) -> list[int]:
    unknown = sorted(set(keys) - set(by_key))
    if unknown:
        raise OptionError(
            f"{where} has keys that the dataset does not have: {first_few(map(repr, unknown))}; "
            "remove them, or list keys as loader.explain() and `wds-tools plan --state` print them"
        )
    return sorted({sample for ids in by_key.values() for sample in ids})


def _checked_ids(shards: ShardSet, ids: Sequence[int], where: str) -> list[int]:
    samples = shards.manifest.samples
    wrong = [sample for sample in ids if not 0 <= sample < samples]
    if wrong:
        raise OptionError(f"{where} has the sample id {wrong[0]}; the dataset has the ids 0 to {samples - 1}")
    return sorted(set(map(int, ids)))
