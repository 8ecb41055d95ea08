"""Our views as torchvision transforms, for the peers that use these: uint8 tensors, antialias."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torchvision import tv_tensors
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional

from wds_tools.bench.workloads import FixedCrop, Setup
from wds_tools.images.framed import Letterbox
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize, View


def transform_for(setup: Setup) -> Callable[[Any], Any]:
    """Return the transform of a workload: of an image to one crop, or to a list of crops."""
    return ManyCrops(setup.crops) if setup.crops else transform_of(setup.view)


class ManyCrops:
    """Several crops of an image that is decoded once."""

    def __init__(self, views: Sequence[View]) -> None:
        self._steps = [v2.Compose(_steps(view)) for view in views]
        self._to_tensor = v2.PILToTensor()

    def __call__(self, image: Any) -> list[torch.Tensor]:
        """Return the crops, uint8 [3, height, width] each."""
        pixels = self._to_tensor(image)
        return [steps(pixels) for steps in self._steps]


class WithBoxes:
    """A transform of an image and its boxes together."""

    def __init__(self, view: View | None) -> None:
        self._steps = v2.Compose([*_steps(view), v2.ConvertBoundingBoxFormat("XYXY")])
        self._to_tensor = v2.PILToTensor()

    def __call__(self, image: Any, boxes: Sequence[Sequence[float]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return uint8 [3, height, width] and float32 [boxes, 4], given left, top, width and height."""
        pixels = tv_tensors.Image(self._to_tensor(image))
        edges = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
        box = tv_tensors.BoundingBoxes(edges, format="XYWH", canvas_size=pixels.shape[-2:])
        shown, moved = self._steps(pixels, box)
        return shown.as_subclass(torch.Tensor), moved.as_subclass(torch.Tensor)


def transform_of(view: View | None) -> v2.Transform:
    """Return a transform from a Pillow image or a uint8 tensor to uint8 [3, height, width].

    Pillow images become tensors first, because Pillow resizes more slowly: 2.3 ms of CPU time per
    image of the *train* workload instead of 1.95.
    """
    return v2.Compose([v2.PILToTensor(), *_steps(view)])


def _steps(view: View | None) -> list[Any]:
    if isinstance(view, RandomResizedCrop):
        crop = v2.RandomResizedCrop(view.shape, scale=view.scale, ratio=view.ratio, antialias=True)
        return [crop, v2.RandomHorizontalFlip(0.5 if view.flip is True else float(view.flip))]
    if isinstance(view, CenterCrop):
        return [v2.Resize(view.resize, antialias=True), v2.CenterCrop(list(view.shape))]
    if isinstance(view, Resize):
        return [v2.Resize(list(view.shape or ()), antialias=True)]
    if isinstance(view, Letterbox):
        return [_Letterbox(view)]
    assert isinstance(view, FixedCrop)
    return [v2.Lambda(lambda image: _fixed_crop(image, view))]


class _Letterbox(torch.nn.Module):
    """An image and its boxes resized to fit, and padded on both sides."""

    def __init__(self, view: Letterbox) -> None:
        super().__init__()
        self._shape, self._fill = view.shape, view.fill

    def forward(self, *inputs: Any) -> Any:
        """Return the image and its boxes in the frame."""
        sides = inputs[0].shape[-2:]
        ratio = min(length / side for length, side in zip(self._shape, sides, strict=True))
        size = [min(math.ceil(side * ratio), length) for length, side in zip(self._shape, sides, strict=True)]
        margins = [length - side for length, side in zip(self._shape, size, strict=True)]
        top, left = margins[0] // 2, margins[1] // 2
        padding = [left, top, margins[1] - left, margins[0] - top]
        resized = (functional.resize(value, size, antialias=True) for value in inputs)
        moved = [functional.pad(value, padding, self._fill) for value in resized]
        return moved[0] if len(moved) == 1 else tuple(moved)


def _fixed_crop(image: torch.Tensor, view: FixedCrop) -> torch.Tensor:
    left, top, width, height = view.box(image.shape[-1], image.shape[-2])
    cropped: torch.Tensor = functional.resized_crop(image, top, left, height, width, list(view.shape), antialias=True)
    return cropped
