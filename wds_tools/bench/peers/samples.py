"""What the peers on torch's DataLoader share: bytes to samples to batches without end."""

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

from wds_tools.bench.peers.transforms import transform_of
from wds_tools.bench.workloads import RAW_SHAPE, Setup


def opener(setup: Setup) -> Callable[[Any], Any]:
    """Return the function that makes a sample of what a format has stored, bytes or an array of them."""
    if setup.work == "bytes":
        return bytes
    if setup.work == "raw":
        return _raw
    return partial(_shown, transform_of(setup.view))  # to be pickled, as litdata wants


def decoded(data: Any) -> torch.Tensor:
    """Decode a picture: uint8 [3, height, width]."""
    encoded = _tensor(data)
    try:
        image: torch.Tensor = decode_image(encoded, ImageReadMode.RGB)
    except RuntimeError:  # CMYK, or stray bytes: Pillow takes it
        with Image.open(io.BytesIO(encoded.numpy().tobytes())) as opened:
            image = functional.pil_to_tensor(opened.convert("RGB"))
    return image


def pictures(setup: Setup) -> Sequence[torch.Tensor] | None:
    """Return the probes, from their files."""
    if setup.fixed_view is None:
        return None
    transform = transform_of(setup.fixed_view)
    return [transform(decoded((Path(setup.tree) / probe).read_bytes())) for probe in setup.probes]


def collate(setup: Setup) -> Callable[[list[Any]], Any]:
    """Return what makes a batch of samples: bytes of different lengths stay a list."""
    return _as_is if setup.work == "bytes" else default_collate


def shuffled(dataset: Dataset[Any], setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch of a dataset with random access."""
    loader = DataLoader(
        dataset,
        batch_size=setup.batch_size,
        shuffle=True,
        num_workers=setup.workers,
        persistent_workers=True,
        drop_last=True,
        collate_fn=collate(setup),
        generator=torch.Generator().manual_seed(seed),
    )
    return counted(loader)


def counted(loader: Any) -> Generator[int]:
    """Yield the number of samples of each batch, epoch after epoch."""
    while True:
        for batch in loader:
            yield len(batch)


def _as_is(value: Any) -> Any:
    return value


def _shown(transform: Callable[[torch.Tensor], Any], data: Any) -> Any:
    return transform(decoded(data))


def _raw(data: Any) -> torch.Tensor:
    return _tensor(data).view(RAW_SHAPE)


def _tensor(data: Any) -> torch.Tensor:
    """Return bytes as a tensor; torch wants memory that may be written."""
    if isinstance(data, np.ndarray) and data.flags.writeable:
        return torch.from_numpy(data)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
