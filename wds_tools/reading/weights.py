"""Weights of a run: what a user gives or a state records, as factors of the samples of each dataset. Reads indexes."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from wds_tools.errors import OptionError, ResumeError
from wds_tools.format.field_classes import first_difference
from wds_tools.images.schedule import Schedule
from wds_tools.lru_cache import LRUCache
from wds_tools.order.changes import DatasetWeights, Entries, Planned, Weights
from wds_tools.order.epoch import PlainOrder
from wds_tools.order.shares import whole_shares
from wds_tools.order.weights import Factors, Phases, Scan, packed_bits
from wds_tools.reading import saved_arrays
from wds_tools.reading.columns import labels_of
from wds_tools.reading.select import Choice, ids_by_key, matching, narrow, weights_by_class
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage.cache.arrays import Arrays

SampleWeights = NDArray[np.floating[Any]] | Sequence[float] | Mapping[Any, float] | str | os.PathLike[str]
"""One factor per sample of the dataset, factors by key or sample id, or a Parquet file with ``key`` and ``weight``."""

WeightSchedule = tuple[Literal["classes", "sources"], Schedule]
"""The argument of `Loader.reweight` whose values change, and the values."""

_KEPT, _KEPT_BYTES = 8, 64 << 20
_PART = 1 << 18  # samples that are checked at a time
_LEAST = float(np.finfo(np.float32).tiny)  # smaller factors would lose digits, or become 0
_LEAST_ALLOWED = f"allowed are 0 and numbers of at least {_LEAST:.2g}, as only ratios matter"
_NOTHING = object()
_WHAT = "the weights of samples"


class WeightFinder:
    """Turns the entries of a state into weights. Indexes are read once, when weights are first needed."""

    def __init__(self, shards: ShardSet, order: PlainOrder, seed: int) -> None:
        self._shards, self._order, self._seed = shards, order, seed
        # By hash: factors of samples that are in no file yet. Only the last ones are kept.
        self._unsaved = LRUCache[str, NDArray[np.float32]](max_items=_KEPT, max_bytes=_KEPT_BYTES)

    def entries(
        self,
        classes: Mapping[Any, float] | None,
        sources: Sequence[float] | None,
        samples: SampleWeights | None,
        where: Mapping[str, float] | None,
        save_to: str | os.PathLike[str] | None,
    ) -> Entries:
        """Return weights as entries of a state; see `Loader.reweight`. No file is written."""
        entries: Entries = {}
        if classes is not None:
            _check_mapping("classes", classes, "class names or numbers")
            entries["classes"] = {str(name): _factor("classes", name, value) for name, value in classes.items()}
        if sources is not None:
            entries["sources"] = [_factor("sources", number, value) for number, value in enumerate(sources)]
        if where is not None:
            _check_mapping("where", where, "conditions")
            entries["where"] = {str(text): _factor("where", text, value) for text, value in where.items()}
        if samples is None and save_to is not None:
            raise OptionError(f"save_to={os.fspath(save_to)!r} is for the weights of samples=: give both, or neither")
        if samples is not None:
            entries["samples"] = self._sample_entry(samples, save_to)
        return entries

    def save(self, entries: Entries) -> bool:
        """Write the weights of samples to the file of ``save_to=``; return whether there is one."""
        path, digest = (entries.get("samples", {}).get(name) for name in ("file", "xxh3"))
        if path is None or (factors := self._unsaved.get(digest)) is None:
            return False
        saved_arrays.save(path, factors, digest, "save_to")
        self._unsaved.pop(digest)
        return True

    def planned(self, schedule: WeightSchedule) -> Planned:
        """Return the weights of a schedule."""
        argument, given = schedule
        of_class = argument == "classes"
        values = {point: self._by_class(value) if of_class else list(value) for point, value in given.values.items()}
        numeric = Schedule(values, given.unit, given.linear)
        for value in values.values():
            self._order.draws(self({argument: value}), ())
        points: list[tuple[int, Entries]] = [(number, {argument: numeric.at(number)}) for number in numeric.changes]
        return Planned(given.unit, tuple(points), has_first=not of_class)

    def _by_class(self, weights: Any) -> dict[str, float]:
        """Return the values of ``class_weights=`` as factors by class."""
        names = self._shards.manifest.classes
        counts = self._phases[0].counts[1:]
        numbers = range(max(len(names), len(counts)))
        samples = np.bincount(np.repeat(np.arange(len(counts)), counts), minlength=len(numbers))
        per_class = weights_by_class(weights, len(numbers), names, samples)
        texts = [names[number] if number < len(names) else str(number) for number in numbers]
        most = per_class.max(initial=0.0) if isinstance(weights, str) else 1.0
        factors = [float(f"{weight / most:.6g}") for weight in per_class.tolist()]
        return {text: _factor("class_weights", text, factor) for text, factor in zip(texts, factors, strict=True)}

    def __call__(self, entries: Entries | None) -> Weights:
        """Return the weights of entries; None is for the plain epochs."""
        if not entries:
            return Weights()
        shares = None if entries.get("sources") is None else self._shares(entries["sources"])
        if set(entries) <= {"sources"} and not any(part.balance for part in self._order.parts):
            return Weights(shares)
        classes = self._classes(entries["classes"]) if "classes" in entries else {}
        by_sample = self._by_sample(entries)
        datasets = []
        for dataset, part in enumerate(self._order.parts):
            first, last = self._order.first_ids[dataset : dataset + 2]
            if by_sample is not None and "samples" in entries and not classes and part.balance is None:
                own = by_sample.of_dataset(first, last)
                datasets.append(DatasetWeights(self._phases_by_id(dataset), None, own))
                continue
            phases = self._phases[dataset]
            by_group = np.ones(len(phases.counts))
            for label, factor in classes.items():
                if label + 1 < len(by_group):
                    by_group[label + 1] *= factor
            balance = part.balance
            if balance is not None:
                count = min(len(by_group) - 1, len(balance.factors))
                by_group[1 : count + 1] *= balance.factors[:count]
            of_samples = None if by_sample is None else by_sample.of_dataset(first, last)
            datasets.append(DatasetWeights(phases, by_group, of_samples))
        return Weights(shares, tuple(datasets))

    @property
    def labels(self) -> NDArray[np.signedinteger]:
        """Class number of each sample: [stored]; negative for none, see `labels_of`."""
        return labels_of(self._shards)

    @cached_property
    def _phases(self) -> list[Phases]:
        return [self._phases_of(dataset) for dataset in range(len(self._order.scans))]

    def _phases_of(self, dataset: int) -> Phases:
        """Return the phases of a dataset; one process of a machine computes them, and all ranks map them."""
        first, last = self._order.first_ids[dataset : dataset + 2]

        def compute() -> Arrays:
            phases = Phases.of(self.labels[first:last], _selected(self._order.scans[dataset]), self._seed)
            arrays = {"group": phases.group, "phase": phases.phase, "counts": phases.counts}
            if isinstance(phases.selected, np.ndarray):
                arrays["selected"] = narrow(phases.selected, last)
            return Arrays({name: array for name, array in arrays.items() if array is not None})

        selection = self._order.parts[dataset].identity.selection
        arrays = self._shards.computed(f"phases {first} {last} {selection} {self._seed}", compute).arrays
        return Phases(arrays.get("selected", slice(None)), arrays["group"], arrays["phase"], arrays["counts"])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_phases"}  # each process maps them

    def _phases_by_id(self, dataset: int) -> Phases:
        first, last = self._order.first_ids[dataset : dataset + 2]
        return Phases.by_id(last - first, _selected(self._order.scans[dataset]), self._seed)

    def _shares(self, sources: Sequence[float]) -> tuple[int, ...]:
        if len(sources) != len(self._order.scans) or not sum(sources) > 0:
            raise OptionError(
                f"sources={list(sources)} has {len(sources)} weights; allowed are one number of at least 0 for each of "
                f"the {len(self._order.scans)} dataset(s) of the Mixture, at least one of them above 0"
            )
        return tuple(whole_shares(sources))

    def _classes(self, classes: Mapping[str, float]) -> dict[int, float]:
        """Return the factors by class number."""
        names = self._shards.manifest.classes
        lists = {class_list.label: class_list.name for class_list in self._shards.class_lists}
        if classes and len(lists) > 1:
            first, other = list(lists.values())[:2]
            raise OptionError(
                f"classes= names {next(iter(classes))!r}, but {first} and {other} have different classes "
                f"({first_difference(lists)}): join them with `wds-tools merge`, which unites classes by name, or give "
                "samples= with sample ids"
            )
        highest = max(len(phases.counts) for phases in self._phases) - 2
        numbers = {str(number): number for number in range(highest + 1)} | {name: n for n, name in enumerate(names)}
        unknown = [name for name in classes if name not in numbers]
        if unknown:
            allowed = ", ".join(names) or (f"0 to {highest}" if highest >= 0 else "none: the dataset has no labels")
            raise OptionError(f"classes= has {unknown[0]!r}; the classes of the dataset are {allowed}")
        names_by_number = {numbers[name]: name for name in classes}
        for name in classes:
            if (other := names_by_number[numbers[name]]) != name:
                raise OptionError(f"classes= has {name!r} and {other!r}, which are the same class: give it one factor")
        return {numbers[name]: factor for name, factor in classes.items()}

    def _by_sample(self, entries: Mapping[str, Any]) -> Factors | None:
        """Return the factors of single samples, or None if all are 1."""
        if not {"samples", "where"} & set(entries):
            return None
        own = self._factors_of_samples(entries["samples"]) if "samples" in entries else None
        where = entries.get("where", {})
        stored = self._order.identity.stored
        factors = Factors(own, [(self._matching(text), factor) for text, factor in where.items()], stored=stored)
        if math.prod(min(1.0, factor) for factor in where.values() if factor) < 1:
            _check_products(factors, list(where))
        return factors

    def _matching(self, text: str) -> NDArray[np.uint8]:
        """Return which samples meet a condition, as `packed_bits`; one process of a machine reads the indexes."""

        def compute() -> Arrays:
            ids = matching(self._shards, len(self._shards.locations), text, progress=False)
            return Arrays({"bits": packed_bits(ids, self._order.identity.stored)})

        return self._shards.computed(f"bits matching {Choice(where=text).source(self._shards)}", compute).arrays["bits"]

    def _sample_entry(self, samples: SampleWeights, save_to: str | os.PathLike[str] | None) -> dict[str, Any]:
        if isinstance(samples, str | os.PathLike):
            if save_to is not None:
                raise OptionError(f"samples={os.fspath(samples)!r} is a file already: omit save_to=")
            content = saved_arrays.content_of(samples, _WHAT, OptionError)
            return {"file": os.fspath(samples), "xxh3": saved_arrays.hash_of(content)}
        factors = self._checked(samples)
        if save_to is None and isinstance(samples, np.ndarray) and np.may_share_memory(factors, samples):
            factors = factors.copy()  # the user may change it later
        digest = saved_arrays.hash_of_array(factors)
        self._unsaved.put(digest, factors, factors.nbytes)
        return {"file": None if save_to is None else os.fspath(save_to), "xxh3": digest}

    def _factors_of_samples(self, entry: Mapping[str, Any]) -> NDArray[np.float32]:
        """Return the factors of an entry of a state: float32 [stored]."""
        path, digest = entry["file"], entry["xxh3"]
        if (unsaved := self._unsaved.get(digest)) is not None:
            return unsaved
        if path is None:
            raise ResumeError(
                "the state has weights of samples that were not saved: give save_to= to loader.reweight()"
            )
        content = saved_arrays.saved_content(path, digest, _WHAT)
        if bytes(content[:4]) == b"PAR1":
            return self._checked(self._of_parquet(content, path))
        try:
            return self._checked(np.load(path, mmap_mode="r"))  # one copy for all ranks of a machine
        except ValueError as error:
            raise OptionError(f"{path} is neither a Parquet file nor the file of save_to= ({error})") from error

    def _of_parquet(self, content: memoryview, path: str) -> dict[Any, float]:
        try:
            table = pq.read_table(pa.BufferReader(content))
        except pa.ArrowException as error:
            raise OptionError(f"{path} cannot be read as Parquet: {error}") from error
        names = [name for name in ("key", "id") if name in table.column_names]
        if len(names) != 1 or "weight" not in table.column_names:
            raise OptionError(
                f"{path} has the columns {', '.join(table.column_names)}; required are 'weight', and either 'key' or "
                "'id'"
            )
        values = table[names[0]].to_pylist()
        kind: type = str if names == ["key"] else int
        wrong = next((value for value in values if not isinstance(value, kind)), _NOTHING)
        if wrong is not _NOTHING:
            allowed = "keys, as text" if kind is str else "sample ids, as whole numbers"
            raise OptionError(f"{path} has {wrong!r} in the column '{names[0]}'; allowed are {allowed}")
        if len(set(values)) < len(values):
            twice = next(value for value, count in Counter(values).items() if count > 1)
            raise OptionError(f"{path} has several rows for {twice!r}: give each sample one weight")
        return dict(zip(values, table["weight"].to_pylist(), strict=True))

    def _checked(self, samples: Any) -> NDArray[np.float32]:
        """Return factors as float32 [stored]."""
        stored = self._order.identity.stored
        if isinstance(samples, Mapping):
            factors = np.ones(stored, np.float32)
            values = [_factor("samples", name, value) for name, value in samples.items()]
            by_key = ids_by_key(
                self._shards, (name for name in samples if isinstance(name, str)), self._order.first_ids, "samples="
            )
            given = dict[int, Any]()
            for name, value in zip(samples, values, strict=True):
                ids = by_key.get(name, []) if isinstance(name, str) else [name]
                if not ids or not all(isinstance(item, int | np.integer) and 0 <= item < stored for item in ids):
                    raise OptionError(
                        f"samples= has {name!r}; the dataset has no such key, and the ids 0 to {stored - 1}: remove it"
                    )
                if (earlier := next((given[item] for item in ids if item in given), None)) is not None:
                    raise OptionError(
                        f"samples= has {earlier!r} and {name!r}, which are the same sample: give it one factor"
                    )
                given.update(dict.fromkeys(ids, name))
                factors[ids] = np.float32(value)
            return factors
        try:
            numbers = np.asanyarray(samples)
            with np.errstate(over="ignore"):
                factors = numbers.astype(np.float32, copy=False) if numbers.dtype.kind in "biuf" else numbers[:0]
        except ValueError:  # lists of different lengths
            factors = numbers = np.empty(0, np.float32)
        if factors.shape != (stored,):
            raise OptionError(
                f"samples= has the shape {np.shape(samples)}; allowed are one number for each of the {stored:,} "
                "samples, a mapping from keys or ids to numbers, and a Parquet file"
            )
        parts = [factors[start : start + _PART] for start in range(0, stored, _PART)]
        least = [part.min() for part in parts]
        if not all(item >= 0 for item in least) or not all(part.max() < np.inf for part in parts):
            wrong = np.flatnonzero(~np.isfinite(factors) | (factors < 0))
            raise OptionError(
                f"samples= has {factors[wrong[0]]} for sample {wrong[0]}; allowed are finite numbers from 0"
            )
        if min(least, default=1) < _LEAST and (small := _first_too_small(numbers)) is not None:
            raise OptionError(f"samples= has {numbers[small]} for sample {small}; {_LEAST_ALLOWED}")
        return factors


def schedule_to_list(schedule: WeightSchedule) -> list[Any]:
    """Return a schedule as plain values for a state."""
    argument, given = schedule
    return [argument, given.unit, given.linear, {str(number): value for number, value in given.values.items()}]


def schedule_of_state(entry: Any) -> WeightSchedule:
    """Return the schedule of a state."""
    try:
        argument, unit, linear, values = entry
        return argument, Schedule({int(number): value for number, value in values.items()}, unit, linear)
    except (TypeError, ValueError, AttributeError) as error:
        raise ResumeError(f"the entry 'schedule' of the state is damaged ({error})") from error


def _check_mapping(option: str, value: Any, names: str) -> None:
    if not isinstance(value, Mapping):
        raise OptionError(f"{option}={value!r}; allowed is a mapping from {names} to factors, such as {{...: 2.0}}")


def _factor(option: str, name: Any, value: Any) -> float:
    try:
        factor = float(value)
    except (TypeError, ValueError):
        factor = -1.0
    if not 0 <= factor < np.inf or isinstance(value, str):
        raise OptionError(f"{option}= has {value!r} for {name!r}; allowed are finite numbers of at least 0")
    if 0 < factor < _LEAST:
        raise OptionError(f"{option}= has {value!r} for {name!r}; {_LEAST_ALLOWED}")
    return factor


def _check_products(factors: Factors, conditions: Sequence[str]) -> None:
    """Refuse products with the factors of conditions that are too small. Those that are too large are refused later."""
    for start in range(0, len(factors), _PART):
        for text, product in zip(conditions, factors.products(slice(start, start + _PART)), strict=True):
            if (small := _first_too_small(product)) is not None:
                raise OptionError(
                    f"factors of a sample with {text!r} multiply to {product[small]:.2g}; {_LEAST_ALLOWED}"
                )


def _first_too_small(factors: NDArray[Any]) -> int | None:
    """Return the index of the first factor above 0 that is too small; None if there is none."""
    for start in range(0, len(factors), _PART):
        part = factors[start : start + _PART]
        if ((part < _LEAST) & (part > 0)).any():
            return start + int(np.flatnonzero((part < _LEAST) & (part > 0))[0])
    return None


def _selected(scan: Scan) -> NDArray[np.int64] | None:
    return None if scan.selection is None or scan.selection.has_all else scan.selection.selected_ids
