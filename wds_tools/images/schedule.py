"""Views that depend on the epoch: `Schedule`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import numpy as np

from wds_tools.errors import OptionError
from wds_tools.images.buckets import Buckets, OneBucket
from wds_tools.images.framed import Letterbox, RandomAffine
from wds_tools.images.jitter import LargeScaleJitter, ZoomOut
from wds_tools.images.mosaic import Mosaic
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize, View

_KINDS = (RandomResizedCrop, CenterCrop, Resize, Letterbox, LargeScaleJitter, ZoomOut, RandomAffine, Mosaic)


@dataclass(frozen=True)
class Schedule:
    """A view that changes at some epochs, for example for progressive resizing. Pass it as ``view=``.

    The view of an epoch depends on nothing but the epoch, so a resumed run gets the same crops.

    Attributes:
        views: Zero-based epoch to the view from that epoch on: `RandomResizedCrop`, `CenterCrop` or `Resize`. Epoch 0
            must be among them.

    Raises:
        OptionError: An attribute is invalid.

    >>> from wds_tools.images.views import RandomResizedCrop
    >>> Schedule({0: RandomResizedCrop(128), 10: RandomResizedCrop(224)}).at(12).size
    224
    """

    views: Mapping[int, View]

    def __post_init__(self) -> None:
        is_mapping = isinstance(self.views, Mapping) and 0 in self.views
        if not is_mapping or not all(_is_epoch(epoch) and is_plain_view(view) for epoch, view in self.views.items()):
            raise OptionError(
                f"Schedule({self.views!r}); allowed is a mapping from epochs to views, with epoch 0, such as "
                "{0: RandomResizedCrop(128), 10: RandomResizedCrop(224)}"
            )
        object.__setattr__(self, "views", dict(sorted(self.views.items())))

    @property
    def epochs(self) -> list[int]:
        """Epochs at which the view changes, ascending."""
        return list(self.views)

    def at(self, epoch: int) -> View:
        """Return the view of an epoch."""
        epochs = self.epochs
        return self.views[epochs[bisect_right(epochs, epoch) - 1]]

    @property
    def shape(self) -> tuple[int, int] | None:
        """Height and width of the largest result in pixels, or None if they differ within an epoch."""
        shapes = [view.shape for view in self.views.values()]
        known = [shape for shape in shapes if shape is not None]
        return max(known, key=lambda shape: shape[0] * shape[1]) if len(known) == len(shapes) else None


AnyView: TypeAlias = View | Schedule


def _is_epoch(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_plain_view(value: Any) -> bool:
    """Return whether this is a view that is the same in all epochs and batches."""
    return hasattr(value, "regions") and not isinstance(value, type | Buckets)


def is_view(value: Any) -> bool:
    """Return whether this is a view, a schedule of views, or `Buckets`."""
    return is_plain_view(value) or isinstance(value, Schedule | Buckets)


def views_in(view: AnyView) -> list[View]:
    """Return all views that this one uses."""
    return list(view.views.values()) if isinstance(view, Schedule) else [view]


def view_at(view: AnyView, epoch: int, bucket: int | None = None) -> View:
    """Return the view that is used in an epoch, for a batch with images of one of the sizes of `Buckets` if given."""
    if isinstance(view, Buckets) and bucket is not None:
        return OneBucket(view, bucket)
    return view.at(epoch) if isinstance(view, Schedule) else view


def any_view_to_dict(view: AnyView) -> dict[str, Any]:
    """Return a view or schedule as plain values for a state: its class, and what differs from the defaults.

    >>> from wds_tools.images.views import CenterCrop
    >>> any_view_to_dict(Schedule({0: CenterCrop(8), 3: CenterCrop(9)}))["views"]["3"]
    {'kind': 'CenterCrop', 'size': 9}
    """
    if isinstance(view, Buckets):
        sizes = list(map(list, view.sizes))
        return {"kind": "Buckets", "sizes": sizes, "crop": view.crop, "flip": view.flip}
    if not isinstance(view, Schedule):
        return _view_to_dict(view)
    return {"kind": "Schedule", "views": {str(epoch): _view_to_dict(one) for epoch, one in view.views.items()}}


def any_view_from_dict(values: Mapping[str, Any]) -> AnyView:
    """Return the view or schedule that `any_view_to_dict` described; raises as `_view_from_dict` does."""
    if values.get("kind") == "Buckets":
        return Buckets([tuple(size) for size in values["sizes"]], values["crop"], values["flip"])
    if values.get("kind") != "Schedule":
        return _view_from_dict(values)
    return Schedule({int(epoch): _view_from_dict(one) for epoch, one in values["views"].items()})


def _view_to_dict(view: View) -> dict[str, Any]:
    """Return a view as plain values for a state, see `any_view_to_dict`."""
    attributes = fields(view) if isinstance(view, _KINDS) else ()
    values = {one.name: getattr(view, one.name) for one in attributes if getattr(view, one.name) != one.default}
    return {"kind": type(view).__name__, **{name: _plain(value) for name, value in values.items()}}


def _view_from_dict(values: Mapping[str, Any]) -> View:
    """Return a view from plain values.

    Raises:
        OptionError: It is not a view of this package.
    """
    kinds: dict[Any, Callable[..., View]] = {kind.__name__: kind for kind in _KINDS}
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    kind = options.pop("kind", None)
    if kind not in kinds:
        raise OptionError(
            f"the state has a view of your own class, {kind}, which only your program can create: call "
            "loader.explain() there"
        )
    try:
        return kinds[kind](**options)
    except TypeError as error:
        raise OptionError(f"the state has an invalid view: {error}") from error


def _plain(value: Any) -> Any:
    """Return a value of a view as JSON has it."""
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value.item() if isinstance(value, np.generic) else value
