"""FFCV: its own file, its own decoders and threads."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
from ffcv.fields import NDArrayField, RGBImageField
from ffcv.fields.decoders import (
    CenterCropRGBImageDecoder,
    NDArrayDecoder,
    RandomResizedCropRGBImageDecoder,
)
from ffcv.loader import Loader, OrderOption
from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage
from ffcv.writer import DatasetWriter
from PIL import Image

from wds_tools.bench.workloads import RAW_SHAPE, Setup
from wds_tools.images.views import CenterCrop, RandomResizedCrop

_QUALITY, _MAX_PIXELS = 90, 512  # as in its own benchmark
_MAX_WRITERS = 4


class _Files:
    """The files by number, as FFCV's writer requires them."""

    def __init__(self, setup: Setup) -> None:
        self._files = setup.files()
        self._raw = setup.workload == "raw"

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[Any]:
        path = self._files[index][0]
        if self._raw:
            return (np.load(path),)
        with Image.open(path) as image:
            return (image.convert("RGB"),)


def prepare(setup: Setup) -> None:
    """Write one file."""
    setup.own_folder.mkdir()
    field = (
        NDArrayField(np.dtype(np.uint8), RAW_SHAPE)
        if setup.workload == "raw"
        else RGBImageField(write_mode="jpg", max_resolution=_MAX_PIXELS, jpeg_quality=_QUALITY)
    )
    writer = DatasetWriter(_file(setup), {"sample": field}, num_workers=min(_MAX_WRITERS, setup.workers))
    writer.from_indexed_dataset(_Files(setup))


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    loader = Loader(
        _file(setup),
        batch_size=setup.batch_size,
        num_workers=setup.workers,
        order=OrderOption.QUASI_RANDOM if setup.workload != "raw" else OrderOption.RANDOM,
        os_cache=True,
        drop_last=True,
        seed=seed,
        pipelines={"sample": _steps(setup)},
    )
    while True:
        for (samples,) in loader:
            yield len(samples)


def probe_pixels(_setup: Setup) -> None:
    """Return None: the images are encoded again, and the crops cannot be fixed."""


def _steps(setup: Setup) -> list[Any]:
    view = setup.view
    if view is None:
        return [NDArrayDecoder(), ToTensor()]
    if isinstance(view, RandomResizedCrop):
        decoder = RandomResizedCropRGBImageDecoder(view.shape, view.scale, view.ratio)
        return [decoder, RandomHorizontalFlip(), ToTensor(), ToTorchImage()]
    ratio = view.shape[0] / view.resize if isinstance(view, CenterCrop) and view.resize else 1.0
    return [CenterCropRGBImageDecoder(view.shape or RAW_SHAPE[:2], ratio), ToTensor(), ToTorchImage()]


def _file(setup: Setup) -> str:
    return str(setup.own_folder / "samples.beton")
