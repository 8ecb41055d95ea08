"""Albumentations on the unpacked files: OpenCV reads them, and its transforms move images and boxes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from albumentations import (
    Affine,
    BboxParams,
    Compose,
    HorizontalFlip,
    HueSaturationValue,
    LongestMaxSize,
    Mosaic,
    PadIfNeeded,
    ToTensorV2,
)
from torch.utils.data import Dataset

from wds_tools.bench.peers.samples import shuffled_batch_sizes
from wds_tools.bench.workloads import HSV_GAINS, Setup

_SIDE, _FILL, _PARTNERS = 640, 114, 3
cv2.setNumThreads(0)  # the workers are the parallelism, as its documentation recommends


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    mosaic = setup.workload == "mosaic"
    dataset = _Samples(setup, _mosaic() if mosaic else _letterbox(), partners=_PARTNERS if mosaic else 0)
    return shuffled_batch_sizes(dataset, setup, seed)


def probe_pixels(setup: Setup) -> Sequence[torch.Tensor]:
    """Return the pixels of the probes, as whole images in a frame."""
    return [image for image, _ in _probes(setup)]


def probe_boxes(setup: Setup) -> Sequence[torch.Tensor]:
    """Return the boxes of the probes."""
    return [torch.cat([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]], dim=1) for _, boxes in _probes(setup)]


def _probes(setup: Setup) -> list[tuple[torch.Tensor, torch.Tensor]]:
    dataset = _Samples(setup, _letterbox(), partners=0)
    return [dataset[dataset.names.index(probe)] for probe in setup.probes]


class _Samples(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Images and their boxes, left, top, width and height, which are in memory."""

    def __init__(self, setup: Setup, steps: list[Any], *, partners: int) -> None:
        boxes_by_file = setup.boxes()
        self.names, self._boxes = list(boxes_by_file), [np.array(boxes, np.float32) for boxes in boxes_by_file.values()]
        self._tree, self._partners = Path(setup.tree), partners
        boxes = BboxParams("coco", label_fields=["labels"], clip=True, min_visibility=0.1)
        self._transform = Compose([*steps, ToTensorV2()], bbox_params=boxes)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        others = [self._read(other) for other in torch.randint(len(self), (self._partners,)).tolist()]
        shown = self._transform(**self._read(index), mosaic_metadata=others)
        return shown["image"], torch.from_numpy(shown["bboxes"].astype(np.float32))

    def _read(self, index: int) -> dict[str, Any]:
        boxes = self._boxes[index]
        image = cv2.imread(str(self._tree / self.names[index]))
        image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        return {"image": image, "bboxes": boxes, "labels": np.zeros(len(boxes), np.int64)}


def _letterbox() -> list[Any]:
    return [LongestMaxSize(_SIDE), PadIfNeeded(_SIDE, _SIDE, fill=_FILL)]


def _mosaic() -> list[Any]:
    shape, everything = (_SIDE, _SIDE), {"fill": _FILL, "p": 1}
    hue, saturation, value = (round(gain * whole) for gain, whole in zip(HSV_GAINS, (180, 128, 128), strict=True))
    return [
        Mosaic(target_size=shape, cell_shape=shape, fit_mode="contain", **everything),
        Affine(scale=(0.5, 1.5), translate_percent=(-0.1, 0.1), keep_ratio=True, **everything),
        HueSaturationValue(hue, saturation, value, p=1),
        HorizontalFlip(),
    ]
