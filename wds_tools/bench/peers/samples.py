"""Shared by the peers that use torch's DataLoader: stored bytes to samples, and samples to endless batches."""

from __future__ import annotations

import io
from collections.abc import Callable, Generator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, default_collate
from torchvision.io import ImageReadMode, decode_image
from torchvision.transforms.v2 import functional

from wds_tools.bench.peers.transforms import WithBoxes, transform_for, transform_of
from wds_tools.bench.workloads import RAW_SHAPE, WITH_BOXES, Setup


def sample_decoder(setup: Setup) -> Callable[[Any], Any]:
    """Return the function from stored bytes, or an array of them, to a sample of the workload."""
    if setup.workload == "bytes":
        return bytes
    if setup.workload == "raw":
        return _raw_pixels
    return partial(_decode_and_transform, transform_for(setup))  # picklable, as LitData requires


def decode_rgb(data: Any) -> torch.Tensor:
    """Decode an image: uint8 [3, height, width]."""
    encoded = _tensor(data)
    try:
        image: torch.Tensor = decode_image(encoded, ImageReadMode.RGB)
    except RuntimeError:  # CMYK, or extra bytes: Pillow decodes it
        with Image.open(io.BytesIO(encoded.numpy().tobytes())) as opened:
            image = functional.pil_to_tensor(opened.convert("RGB"))
    return image


def probe_pixels(setup: Setup) -> Sequence[torch.Tensor] | None:
    """Return the pixels of the probes, decoded from their files."""
    if setup.fixed_view is None:
        return None
    transform = transform_of(setup.fixed_view)
    return [transform(decode_rgb((Path(setup.tree) / probe).read_bytes())) for probe in setup.probes]


def probe_boxes(setup: Setup) -> Sequence[torch.Tensor]:
    """Return the boxes of the probes, moved by the transform of their images."""
    transform, stored, moved = WithBoxes(setup.fixed_view), setup.boxes(), []
    for probe in setup.probes:
        with Image.open(Path(setup.tree) / probe) as image:
            moved.append(transform(image.convert("RGB"), stored[probe])[1])
    return moved


def collate_fn(setup: Setup) -> Callable[[list[Any]], Any]:
    """Return the function from samples to a batch; bytes of different lengths and boxes stay a list."""
    return {"bytes": _as_is, **dict.fromkeys(WITH_BOXES, _images_and_boxes)}.get(setup.workload, default_collate)


def shuffled_batch_sizes(dataset: Dataset[Any], setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch of a shuffled dataset with random access."""
    loader = DataLoader(
        dataset,
        batch_size=setup.batch_size,
        shuffle=True,
        num_workers=setup.workers,
        persistent_workers=True,
        drop_last=True,
        collate_fn=collate_fn(setup),
        generator=torch.Generator().manual_seed(seed),
    )
    return endless_batch_sizes(loader, setup)


def endless_batch_sizes(loader: Any, setup: Setup) -> Generator[int]:
    """Yield the number of samples of each batch, epoch after epoch."""
    while True:
        for batch in loader:
            yield len(batch[0] if setup.has_several_values else batch)


def _as_is(value: Any) -> Any:
    return value


def _images_and_boxes(samples: list[tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    images, boxes = zip(*samples, strict=True)
    return default_collate(list(images)), list(boxes)


def _decode_and_transform(transform: Callable[[torch.Tensor], Any], data: Any) -> Any:
    return transform(decode_rgb(data))


def _raw_pixels(data: Any) -> torch.Tensor:
    return _tensor(data).view(RAW_SHAPE)


def _tensor(data: Any) -> torch.Tensor:
    """Return bytes as a tensor; torch requires writable memory."""
    if isinstance(data, np.ndarray) and data.flags.writeable:
        return torch.from_numpy(data)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
