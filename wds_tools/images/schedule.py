"""`Schedule`: views and weights that change during a run; `MultiScale`: views by batch; views as entries of a state."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, Literal, TypeAlias

import numpy as np

from wds_tools.errors import OptionError
from wds_tools.images.blend import Blend, CopyPaste
from wds_tools.images.buckets import Buckets, OneBucket
from wds_tools.images.framed import Letterbox, RandomAffine
from wds_tools.images.jitter import LargeScaleJitter, RandomIoUCrop, ZoomOut
from wds_tools.images.mosaic import Mosaic
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize, View, tiles_of
from wds_tools.order.keyed_random import key_of, uniform

_KINDS = (
    *(RandomResizedCrop, CenterCrop, Resize, Letterbox),
    *(LargeScaleJitter, ZoomOut, RandomIoUCrop, RandomAffine, Mosaic, Blend, CopyPaste),
)
VIEW_KINDS = (*(kind.__name__ for kind in _KINDS), "MultiScale", "Schedule", "Buckets")
"""The values of ``kind`` in the description of a view, see `any_view_to_dict`."""

_MAX_PARTS = 100  # in which weights go in a straight line from one value to the next one


@dataclass(frozen=True)
class MultiScale:
    """A view that differs from batch to batch, such as in its size: one of several, the same on all ranks.

    The choice depends on the seed, the epoch and the position at which the step begins, so a resumed run makes the same
    choices with the same number of samples per step. A sample requested by its index, ``loader.dataset[5]``, has the
    first view.

    Attributes:
        views: The views. Each is used for an equal share of the batches. All must show the same number of samples.

    Raises:
        OptionError: An attribute is invalid.

    >>> from wds_tools.images.framed import Letterbox
    >>> MultiScale([Letterbox(side) for side in range(480, 801, 32)]).shape
    (800, 800)
    """

    views: Sequence[View]

    def __post_init__(self) -> None:
        is_list = isinstance(self.views, list | tuple) and len(self.views) > 0
        if not is_list or not all(map(is_plain_view, self.views)) or len({tiles_of(view) for view in self.views}) > 1:
            raise OptionError(
                f"MultiScale({self.views!r}); allowed is a list of views that show the same number of samples, such as "
                "[Letterbox(480), Letterbox(640)]"
            )
        object.__setattr__(self, "views", tuple(self.views))

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width of the largest result in pixels, or None if they differ within a batch."""
        return _largest([view.shape for view in self.views])


def choose(seed: int, epoch: int, start: int, count: int) -> int:
    """Return which of ``count`` views a batch has."""
    return int(uniform(key_of("view of batch", seed, epoch), np.array([start]), 1)[0, 0] * count)


@dataclass(frozen=True)
class Schedule:
    """A view or weights that change during a run: for ``view=``, ``class_weights=`` and ``Mixture(weights=)``.

    The value depends only on the epoch or step, so a resumed run gets the same crops and samples.

    Attributes:
        values: Mapping from zero-based epoch or step to the value from then on; 0 must be among the keys. A value is a
            view or a `MultiScale`, or weights. All `MultiScale` must have the same number of views.
        unit: What the numbers count: ``"epochs"``, or for weights ``"steps"`` from the start of the run.
        linear: Whether weights change linearly from one value to the next, in up to 100 equal parts.

    Raises:
        OptionError: An attribute is invalid.

    >>> from wds_tools.images.views import RandomResizedCrop
    >>> Schedule({0: RandomResizedCrop(128), 10: RandomResizedCrop(224)}).at(12).size
    224
    >>> Schedule({0: [1, 0], 400: [0.5, 0.5]}, unit="steps", linear=True).at(200)
    [0.75, 0.25]
    """

    values: Mapping[int, Any]
    unit: Literal["epochs", "steps"] = "epochs"
    linear: bool = False

    def __post_init__(self) -> None:
        is_mapping = isinstance(self.values, Mapping) and 0 in self.values and all(map(_is_number, self.values))
        entries = list(self.values.values()) if is_mapping else []
        has_views = bool(entries) and all(map(_is_entry, entries))
        if not has_views and not (entries and all(map(_are_weights, entries))):
            raise OptionError(
                f"Schedule({self.values!r}); allowed is a mapping from epochs to views, with epoch 0, such as "
                "{0: RandomResizedCrop(128), 10: RandomResizedCrop(224)}, or weights, such as {0: [1, 1], 10: [3, 1]}"
            )
        if self.unit not in (("epochs",) if has_views else ("epochs", "steps")) or (has_views and self.linear):
            raise OptionError(
                f"Schedule with unit={self.unit!r}, linear={self.linear}; allowed for views is unit='epochs', and for "
                "weights 'epochs' and 'steps', with linear=True or False"
            )
        counts = {len(view.views) for view in entries if isinstance(view, MultiScale)}
        if len(counts) > 1:
            raise OptionError(f"Schedule({self.values!r}): all MultiScale must have the same number of views")
        object.__setattr__(self, "values", dict(sorted(self.values.items())))

    @property
    def changes(self) -> list[int]:
        """Epochs or steps at which the value changes, ascending."""
        starts = list(self.values)
        parts = [range(start, stop, _stride(start, stop)) for start, stop in pairwise(starts) if self.linear]
        return sorted({*starts, *(number for part in parts for number in part)})

    def at(self, point: int) -> Any:
        """Return the value at an epoch or step."""
        starts = list(self.values)
        index = bisect_right(starts, point) - 1
        value = self.values[starts[index]]
        if not self.linear or index + 1 == len(starts):
            return value
        start, stop = starts[index : index + 2]
        stride = _stride(start, stop)
        return _between(value, self.values[stop], (point - start) // stride * stride / (stop - start))

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width of the largest result in pixels, or None if they differ within an epoch."""
        return _largest([view.shape for view in self.values.values()])


def _stride(start: int, stop: int) -> int:
    """Return how often weights change that go in a straight line from one number to another."""
    return max(1, -(-(stop - start) // _MAX_PARTS))


def _between(first: Any, second: Any, share: float) -> Any:
    """Return weights that are between two others; a class that only one of them names has the weight 1 in the other."""
    if not share:
        return first
    if isinstance(first, Mapping):
        names = [*first, *(name for name in second if name not in first)]
        return {name: _between([first.get(name, 1)], [second.get(name, 1)], share)[0] for name in names}
    return [float(f"{low + (high - low) * share:.6g}") for low, high in zip(first, second, strict=True)]


def _are_weights(value: Any) -> bool:
    """Return whether this is ``"balanced"``, a list or a mapping; the numbers are checked where they are used."""
    return value == "balanced" if isinstance(value, str) else isinstance(value, Mapping | list | tuple)


AnyView: TypeAlias = View | Schedule | MultiScale


def _largest(shapes: list[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Return the shape with most pixels, or None if one is not known."""
    given = [shape for shape in shapes if shape is not None]
    return max(given, key=lambda shape: shape[0] * shape[1]) if len(given) == len(shapes) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_plain_view(value: Any) -> bool:
    """Return whether this is a view that is the same in all epochs and batches."""
    return hasattr(value, "regions") and not isinstance(value, type | Buckets)


def _is_entry(value: Any) -> bool:
    return is_plain_view(value) or isinstance(value, MultiScale)


def is_view(value: Any) -> bool:
    """Return whether this is a view, a schedule of views, a `MultiScale`, or `Buckets`."""
    if isinstance(value, Schedule):
        return all(map(_is_entry, value.values.values()))
    return is_plain_view(value) or isinstance(value, MultiScale | Buckets)


def views_in(view: AnyView) -> list[View]:
    """Return all views that this one uses."""
    if isinstance(view, Schedule):
        return [part for entry in view.values.values() for part in views_in(entry)]
    return list(view.views) if isinstance(view, MultiScale) else [view]


def may_mirror(view: AnyView) -> bool:
    """Return whether a view mirrors some images."""
    of = [getattr(part, "view", part) for part in views_in(view)]  # that of a Blend or CopyPaste
    return any(getattr(part, name, 0) > 0 for part in of for name in ("flip", "flip_vertical"))


def count_in(view: AnyView) -> int:
    """Return the number of views of which each batch has one; 0 if it does not depend on the batch."""
    entries = view.values.values() if isinstance(view, Schedule) else [view]
    return max(len(entry.views) if isinstance(entry, MultiScale) else 0 for entry in entries)


def view_at(view: AnyView, epoch: int, bucket: int | None = None) -> View:
    """Return the view that is used in an epoch, for a batch of one of the `Buckets`, or views of a `MultiScale`."""
    if isinstance(view, Buckets) and bucket is not None:
        return OneBucket(view, bucket)
    current = view.at(epoch) if isinstance(view, Schedule) else view
    return current.views[bucket or 0] if isinstance(current, MultiScale) else current


def any_view_to_dict(view: AnyView) -> dict[str, Any]:
    """Return a view or schedule as plain values for a state: its class, and what differs from the defaults.

    >>> from wds_tools.images.views import CenterCrop
    >>> any_view_to_dict(Schedule({0: CenterCrop(8), 3: CenterCrop(9)}))["views"]["3"]
    {'kind': 'CenterCrop', 'size': 9}
    """
    if isinstance(view, Buckets):
        sizes = list(map(list, view.sizes))
        return {"kind": "Buckets", "sizes": sizes, "crop": view.crop, "flip": view.flip}
    if isinstance(view, MultiScale):
        return {"kind": "MultiScale", "views": [_view_to_dict(part) for part in view.views]}
    if not isinstance(view, Schedule):
        return _view_to_dict(view)
    return {"kind": "Schedule", "views": {str(epoch): any_view_to_dict(part) for epoch, part in view.values.items()}}


def any_view_from_dict(values: Mapping[str, Any]) -> AnyView:
    """Return the view or schedule that `any_view_to_dict` described; raises as `_view_from_dict` does."""
    if values.get("kind") == "Buckets":
        return Buckets([tuple(size) for size in values["sizes"]], values["crop"], values["flip"])
    if values.get("kind") == "MultiScale":
        return MultiScale([_view_from_dict(part) for part in values["views"]])
    if values.get("kind") != "Schedule":
        return _view_from_dict(values)
    return Schedule({int(epoch): any_view_from_dict(part) for epoch, part in values["views"].items()})


def _view_to_dict(view: View) -> dict[str, Any]:
    """Return a view as plain values for a state, see `any_view_to_dict`."""
    attributes = fields(view) if isinstance(view, _KINDS) else ()
    values = {item.name: getattr(view, item.name) for item in attributes if getattr(view, item.name) != item.default}
    return {"kind": type(view).__name__, **{name: _plain(value) for name, value in values.items()}}


def _view_from_dict(values: Mapping[str, Any]) -> View:
    """Return a view from plain values."""
    kinds: dict[Any, Callable[..., View]] = {kind.__name__: kind for kind in _KINDS}
    options = {name: _from_plain(value) for name, value in values.items()}
    kind = options.pop("kind", None)
    if kind not in kinds:
        raise OptionError(
            f"the state has a view of your own class, {kind}, which only your program can create: call "
            "loader.explain() there"
        )
    try:
        return kinds[kind](**options)
    except TypeError as error:
        raise OptionError(f"the view {kind} is not valid: {error}") from error


def _from_plain(value: Any) -> Any:
    """Return a value of a view that `_plain` described."""
    if isinstance(value, Mapping):
        return _view_from_dict(value)
    return tuple(value) if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Return a value of a view as JSON has it."""
    if isinstance(value, _KINDS):
        return _view_to_dict(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value.item() if isinstance(value, np.generic) else value
