"""`Mixture`: several datasets in place of one."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wds_tools.errors import OptionError
from wds_tools.images.schedule import Schedule, is_plain_view
from wds_tools.images.views import View
from wds_tools.loading.samples.columns import Fields, are_fields
from wds_tools.order.mixture import Stop


@dataclass(frozen=True, slots=True)
class Mixture:
    """Several datasets, for `make_loader` or `StreamingDataset` in place of one.

    Attributes:
        datasets: Folders, URLs, manifests, patterns or lists of shards.
        weights: Share of each dataset in every batch; the shares need not sum to 1. Or a `Schedule` of these.
        stop: End of an epoch. ``"first_exhausted"``: when a dataset has no more samples, so that no
            sample repeats. ``"all_exhausted"``: when each dataset has been read completely; smaller ones
            start again.
        epoch_length: Number of samples of an epoch, instead of ``stop``. The next epoch continues at the positions that
            were reached in the datasets. All samples of a dataset come once before any of them repeats, in a new order
            each time. Use a multiple of the batch size times the number of ranks; otherwise ``tail=`` applies to the
            last samples of each epoch.
        batches: ``"mixed"``: each batch has samples of all datasets. ``"single"``: each batch has samples of one
            dataset, drawn by the weights.
        same_source_on_ranks: With ``batches="single"``, whether the batches of all ranks in a step are of the same
            dataset. If not, the batches of a step are assigned to the ranks at random.
        views: With ``batches="single"``, the view of each dataset, instead of ``view=``.
        fields: With ``batches="single"``, the fields of each dataset, instead of ``fields=``. A batch has the fields of
            its dataset, and is always a named tuple.

    Raises:
        OptionError: There is not one positive weight for each dataset, or another attribute is invalid.

    Example::

        loader = make_loader(Mixture(["shards/a", "shards/b"], weights=[0.7, 0.3]), batch_size=100)
    """

    datasets: Sequence[str | os.PathLike[str] | Sequence[str | os.PathLike[str]]]
    weights: Sequence[float] | Schedule
    stop: Stop = "first_exhausted"
    epoch_length: int | None = None
    batches: Literal["mixed", "single"] = "mixed"
    same_source_on_ranks: bool = True
    views: Sequence[View] | None = None
    fields: Sequence[Fields] | None = None

    def __post_init__(self) -> None:
        count = len(self.datasets) if _is_list(self.datasets) else 0
        if not count or not self._has_weights(count):
            raise OptionError(
                f"Mixture of {self.datasets!r} with weights={self.weights!r}; expected a list of datasets, and a "
                "number above 0 for each of them, or a Schedule of lists of numbers of at least 0"
            )
        if self.stop not in ("first_exhausted", "all_exhausted"):
            raise OptionError(f"stop={self.stop!r}; allowed are 'first_exhausted' and 'all_exhausted'")
        length = self.epoch_length
        if length is not None and (isinstance(length, bool) or not isinstance(length, int) or length < 1):
            raise OptionError(f"epoch_length={length!r}; allowed are a number of samples of at least 1, and None")
        if length is not None and self.stop != "first_exhausted":
            raise OptionError(f"epoch_length={length} ends the epoch, so stop={self.stop!r} has no effect: remove it")
        if self.batches not in ("mixed", "single"):
            raise OptionError(f"batches={self.batches!r}; allowed are 'mixed' and 'single'")
        self._check_own(count)

    def _check_own(self, count: int) -> None:
        """Check the lists that have an entry for each dataset."""
        lists = {name: value for name in _OF_DATASETS if (value := getattr(self, name)) is not None}
        if self.batches == "mixed" and (lists or not self.same_source_on_ranks):
            names = [f"{name}=" for name in (*lists, *([] if self.same_source_on_ranks else ["same_source_on_ranks"]))]
            raise OptionError(f"{' and '.join(names)} are for batches='single': add it, or remove them")
        for name, values in lists.items():
            is_allowed, noun = _OF_DATASETS[name]
            if not isinstance(values, list | tuple) or len(values) != count or not all(map(is_allowed, values)):
                raise OptionError(
                    f"{name}={values!r}; allowed is a list with the {noun} of each of the {count} datasets"
                )
            if not self.same_source_on_ranks:
                raise OptionError(
                    f"{name}= requires same_source_on_ranks=True: all ranks have the same {noun} in a step"
                )

    def _has_weights(self, count: int) -> bool:
        if isinstance(self.weights, Schedule):
            lists = self.weights.values.values()
            return all(_is_list(row) and len(row) == count and _are_numbers(row) and sum(row) > 0 for row in lists)
        return _is_list(self.weights) and len(self.weights) == count and all(map(_is_weight, self.weights))

    @property
    def has_own_columns(self) -> bool:
        """Whether datasets have fields or views of their own."""
        return self.views is not None or self.fields is not None

    @property
    def first_weights(self) -> Sequence[float]:
        """Share of each dataset at the start of a run."""
        first: Sequence[float] = self.weights.at(0) if isinstance(self.weights, Schedule) else self.weights
        return first


_OF_DATASETS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "views": (is_plain_view, "view"),
    "fields": (lambda value: not isinstance(value, str) and are_fields(value), "fields, such as ['image'],"),
}


def _are_numbers(values: Any) -> bool:
    return all(isinstance(value, int | float) and 0 <= value < math.inf for value in values)


def _is_list(value: Any) -> bool:
    return isinstance(value, Collection) and not isinstance(value, str | os.PathLike)


def _is_weight(value: Any) -> bool:
    try:
        return math.isfinite(value) and value > 0
    except TypeError:
        return False
