"""Warnings about arguments that are allowed and are probably not meant. Each names a better choice."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import torch.utils.data

from wds_tools.loading.request import Opened, Request
from wds_tools.options import available_cores

_MOST_PER_CORE = 4  # workers: reading from a slow store keeps more than one per core busy
_LIBRARIES = tuple(str(Path(path).parent) + os.sep for path in (__file__, torch.utils.data.__file__))


def about_workers(num_workers: int | str | None) -> None:
    """Warn of many more workers than this machine has cores."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    cores = available_cores()
    if isinstance(num_workers, int) and num_workers * ranks > _MOST_PER_CORE * cores:
        on_each = f" on each of {ranks} ranks" if ranks > 1 else ""
        _warn(
            f"num_workers={num_workers}{on_each}, and this machine has {cores} cores: leave num_workers= out for one "
            "worker per core, or measure what is best with `wds-tools tune`"
        )


def about_sizes(opened: Opened, request: Request) -> None:
    """Warn if images will come as a list, because their sizes differ and nothing makes them equal."""
    recipe, images = opened.recipe, opened.shards.manifest.images
    if "image" not in recipe.fields or recipe.transform is not None or (recipe.view and recipe.view.shape):
        return
    if request.where is not None or request.batch_size == 1:
        return
    if images and (images.min_width, images.min_height) == (images.max_width, images.max_height):
        return
    sizes = f"{images.min_width}x{images.min_height} to {images.max_width}x{images.max_height}" if images else "unknown"
    _warn(
        f"images will come as a list of tensors: their sizes differ ({sizes}), and view={recipe.view} does not make "
        "them equal. For one tensor per batch take view=wds_tools.RandomResizedCrop(224), "
        "CenterCrop(224, resize=256) or Resize((224, 224)), or a transform= that returns one size"
    )


def about_batch_sizes(ours: int, dataloaders: int | None) -> None:
    """Warn if a `StreamingDataset` and the DataLoader that reads it have different batch sizes."""
    if dataloaders is not None and 1 != ours != dataloaders:
        _warn(
            f"StreamingDataset(batch_size={ours}) is read by a DataLoader with batch_size={dataloaders}: its batches "
            "are not those of make_loader, and each worker may end with a smaller one; give both the same number"
        )


def batch_size_of_reader() -> int | None:
    """Return the batch size of the DataLoader that takes the next sample from the generator that calls this.

    A DataLoader does not tell its workers, so this looks at the call of its fetcher. None without a DataLoader, or one
    without batches.
    """
    frame = sys._getframe(2)  # noqa: SLF001 - the only way to the caller
    batch = frame.f_locals.get("possibly_batched_index")
    return len(batch) if isinstance(batch, list | tuple) else None


def _warn(message: str) -> None:
    """Warn about the line of the user's program that led here."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001
    while frame.f_back and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
