"""Warnings about valid arguments that are probably a mistake. Each warning names a better choice."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch.utils.data

from wds_tools.format.label_source import INDEX
from wds_tools.images.buckets import Buckets
from wds_tools.images.schedule import may_mirror
from wds_tools.loading.fields.keypoints import Keypoints
from wds_tools.loading.load_options import LoaderOptions
from wds_tools.loading.pipeline.autoscale import NumWorkers
from wds_tools.loading.request import OpenedDataset
from wds_tools.options import available_cores, launcher_number

_MAX_WORKERS_PER_CORE = 4  # reading from slow storage can keep more than one worker per core busy
_LIBRARY_FOLDERS = (f"{Path(__file__).parents[1]}{os.sep}", f"{Path(torch.utils.data.__file__).parent}{os.sep}")


def warn_of_many_workers(num_workers: NumWorkers) -> None:
    """Warn if there are many more workers than cores."""
    ranks = launcher_number("LOCAL_WORLD_SIZE") or 1
    cores = available_cores()
    if isinstance(num_workers, int) and num_workers * ranks > _MAX_WORKERS_PER_CORE * cores:
        on_each = f" on each of {ranks} ranks" if ranks > 1 else ""
        _warn(
            f"num_workers={num_workers}{on_each}, but this machine has {cores} cores: omit num_workers= for one worker "
            "per core, or measure the best number with `wds-tools tune`"
        )


def warn_of_image_lists(opened: OpenedDataset, options: LoaderOptions) -> None:
    """Warn if a batch will contain a list of images instead of a tensor, because their sizes differ."""
    images = opened.shards.manifest.images
    pairs = zip(options.fields_by_dataset, opened.recipe.columns_by_dataset, strict=True)
    plain = [column for fields, columns in pairs if not isinstance(fields, Mapping) for column in columns]
    views = [column.geometry.views[0] if column.geometry else None for column in plain if column.name == "image"]
    views = [view for view in views if not isinstance(view, Buckets) and not (view and view.shape)]
    if not views or options.transform is not None:
        return
    if options.where is not None or options.batch_size == 1:
        return
    if images and (images.min_width, images.min_height) == (images.max_width, images.max_height):
        return
    sizes = f"{images.min_width}x{images.min_height} to {images.max_width}x{images.max_height}" if images else "unknown"
    _warn(
        f"images will come as a list of tensors: their sizes differ ({sizes}), and view={views[0]} does not make "
        "them equal. For one tensor per batch use view=wds_tools.RandomResizedCrop(224), "
        "CenterCrop(224, resize=256) or Resize((224, 224)), or a transform= that returns images of one size; to pad "
        "them, use fields={'image': wds_tools.Image(view=..., pad=0), ...}"
    )


def warn_of_merged_labels(opened: OpenedDataset, *, is_decoded: bool = True) -> None:
    """Warn if samples have the field ``cls``, but its class numbers come from before a merge."""
    manifest, fields = opened.shards.manifest, [column.spec.field for column in opened.recipe.columns]
    if manifest.label == INDEX and "cls" in (fields if is_decoded else manifest.fields):
        _warn(
            f"{opened.shards.name} was merged from datasets with different class numbers, which the field 'cls' "
            "still has: read the field 'label', or write shards with the new numbers with `wds-tools reshard`"
        )


def warn_of_mirrored_points(opened: OpenedDataset) -> None:
    """Warn if a view mirrors key points, and it is not known which of them are pairs."""
    for column in opened.recipe.columns:
        if not isinstance(column.spec, Keypoints) or column.spec.flip_index is not None or column.geometry is None:
            continue
        mirroring = next((view for view in column.geometry.views if may_mirror(view)), None)
        if mirroring is not None:
            _warn(
                f"{mirroring} mirrors images, and the key points of field {column.name!r} keep their indices, so "
                "the point of a left eye would be on a right eye of the image: state the pairs, such as "
                "wds_tools.Keypoints(..., flip_index=[0, 2, 1]), or flip_index=range(number of points) if there are "
                "none"
            )


def warn_of_batch_sizes(dataset_batch: int, dataloader_batch: int | None) -> None:
    """Warn if a `StreamingDataset` and the DataLoader that reads it have different batch sizes."""
    if dataloader_batch is not None and 1 != dataset_batch != dataloader_batch:
        _warn(
            f"StreamingDataset(batch_size={dataset_batch}) is read by a DataLoader with batch_size={dataloader_batch}: "
            "the batches differ from make_loader, and the last batch of each worker may be smaller; use the "
            "same number for both"
        )


def batch_size_of_dataloader() -> int | None:
    """Return the batch size of the DataLoader that reads from the generator that calls this function.

    A worker does not know this number, so it is taken from the local variables of the fetcher in the call stack.
    Returns None if there is no DataLoader, or if it does not form batches.
    """
    frame = sys._getframe(2)  # noqa: SLF001 - there is no public way to get the caller
    batch = frame.f_locals.get("possibly_batched_index")
    return len(batch) if isinstance(batch, list | tuple) else None


def _warn(message: str) -> None:
    """Issue a UserWarning at the line of the user's program that called the library."""
    frame, level = sys._getframe(1), 2  # noqa: SLF001
    while frame.f_back and frame.f_code.co_filename.startswith(_LIBRARY_FOLDERS):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, stacklevel=level)
