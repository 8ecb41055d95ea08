"""Shard an image dataset once, stream it into PyTorch training as fast as the hardware allows.

Example::

    import wds_tools as wt
    wt.pack("photos/", "shards/photos")
    loader = wt.make_loader("shards/photos", batch_size=256, view=wt.RandomResizedCrop(224, flip=True),
                            shuffle=True, device="cuda")
    for images, labels in loader: ...
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from wds_tools import wording as _wording

if TYPE_CHECKING:
    from wds_tools.errors import (
        ChecksumError,
        DecodeError,
        DestinationError,
        DeviceError,
        LabelError,
        LoaderError,
        ManifestError,
        MissingFieldError,
        MissingFileError,
        MissingSourceError,
        NotADatasetError,
        OptionError,
        ProofError,
        ResumeError,
        SampleError,
        ShardError,
        SourceError,
        StoreError,
        TransformError,
        TruncatedShardError,
        WdsToolsError,
        WorkerError,
    )
    from wds_tools.format.field_classes import ClassList
    from wds_tools.format.manifest import Manifest
    from wds_tools.images.blend import Blend, CopyPaste
    from wds_tools.images.buckets import Buckets
    from wds_tools.images.color import HSV, PhotometricDistort
    from wds_tools.images.framed import Letterbox, RandomAffine
    from wds_tools.images.jitter import LargeScaleJitter, RandomIoUCrop, ZoomOut
    from wds_tools.images.mosaic import Mosaic
    from wds_tools.images.schedule import MultiScale, Schedule
    from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize
    from wds_tools.inspection.stats import describe
    from wds_tools.loading.dataset import StreamingDataset
    from wds_tools.loading.factory import make_loader
    from wds_tools.loading.fields.boxes import Boxes
    from wds_tools.loading.fields.frames import Frames
    from wds_tools.loading.fields.image import Image
    from wds_tools.loading.fields.keypoints import Keypoints
    from wds_tools.loading.fields.object_masks import ObjectMasks
    from wds_tools.loading.fields.padding import Pad
    from wds_tools.loading.fields.pixels import Array, Mask
    from wds_tools.loading.fields.plain import Field, Key, Label, MultiHot, Text
    from wds_tools.loading.fields.polygons import Polygons
    from wds_tools.loading.loader import Loader
    from wds_tools.loading.mixture import Mixture
    from wds_tools.loading.pipeline.statistics import LoaderStats, PeriodStats
    from wds_tools.loading.samples.augment import ColorJitter, CutMix, MixUp, RandomHorizontalFlip
    from wds_tools.loading.samples.batch_steps import Normalize
    from wds_tools.loading.samples.rand_augment import RandAugment
    from wds_tools.loading.web_dataset import WebDataset
    from wds_tools.loading.workers.ray_workers import RayWorkers
    from wds_tools.packing.append import append, reshard
    from wds_tools.packing.packer import pack
    from wds_tools.packing.shard_writer import ShardWriter
    from wds_tools.packing.splits import pack_splits
    from wds_tools.reading.select import train_test_split
    from wds_tools.upkeep.exporter import export
    from wds_tools.upkeep.field_adder import add_fields, remove_fields
    from wds_tools.upkeep.indexer import index_folders, index_shards
    from wds_tools.upkeep.merger import merge
    from wds_tools.upkeep.resealer import reseal
    from wds_tools.upkeep.unpacker import unpack
    from wds_tools.upkeep.verifier import verify

__version__ = "0.1.0"

# Each name is loaded when it is first used: packing needs no torch, and `wds-tools --help` needs almost nothing.
_NAMES = {
    "errors": (
        "ChecksumError DecodeError DestinationError DeviceError LabelError LoaderError ManifestError "
        "MissingFieldError MissingFileError MissingSourceError NotADatasetError OptionError ProofError "
        "ResumeError SampleError ShardError SourceError StoreError TransformError TruncatedShardError "
        "WdsToolsError WorkerError"
    ),
    "format.field_classes": "ClassList",
    "format.manifest": "Manifest",
    "images.buckets": "Buckets",
    "images.blend": "Blend CopyPaste",
    "images.color": "HSV PhotometricDistort",
    "images.framed": "Letterbox RandomAffine",
    "images.jitter": "LargeScaleJitter RandomIoUCrop ZoomOut",
    "images.mosaic": "Mosaic",
    "images.schedule": "MultiScale Schedule",
    "images.views": "CenterCrop RandomResizedCrop Resize",
    "inspection.stats": "describe",
    "loading.dataset": "StreamingDataset",
    "loading.factory": "make_loader",
    "loading.fields.boxes": "Boxes",
    "loading.fields.frames": "Frames",
    "loading.fields.image": "Image",
    "loading.fields.keypoints": "Keypoints",
    "loading.fields.padding": "Pad",
    "loading.fields.pixels": "Array Mask",
    "loading.fields.plain": "Field Key Label MultiHot Text",
    "loading.fields.object_masks": "ObjectMasks",
    "loading.fields.polygons": "Polygons",
    "loading.loader": "Loader",
    "loading.mixture": "Mixture",
    "loading.pipeline.statistics": "LoaderStats PeriodStats",
    "loading.samples.augment": "ColorJitter CutMix MixUp RandomHorizontalFlip",
    "loading.samples.batch_steps": "Normalize",
    "loading.samples.rand_augment": "RandAugment",
    "loading.web_dataset": "WebDataset",
    "loading.workers.ray_workers": "RayWorkers",
    "packing.append": "append reshard",
    "packing.packer": "pack",
    "packing.shard_writer": "ShardWriter",
    "packing.splits": "pack_splits",
    "reading.select": "train_test_split",
    "upkeep.exporter": "export",
    "upkeep.field_adder": "add_fields remove_fields",
    "upkeep.indexer": "index_folders index_shards",
    "upkeep.merger": "merge",
    "upkeep.resealer": "reseal",
    "upkeep.unpacker": "unpack",
    "upkeep.verifier": "verify",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "HSV",
    "Array",
    "Blend",
    "Boxes",
    "Buckets",
    "CenterCrop",
    "ChecksumError",
    "ClassList",
    "ColorJitter",
    "CopyPaste",
    "CutMix",
    "DecodeError",
    "DestinationError",
    "DeviceError",
    "Field",
    "Frames",
    "Image",
    "Key",
    "Keypoints",
    "Label",
    "LabelError",
    "LargeScaleJitter",
    "Letterbox",
    "Loader",
    "LoaderError",
    "LoaderStats",
    "Manifest",
    "ManifestError",
    "Mask",
    "MissingFieldError",
    "MissingFileError",
    "MissingSourceError",
    "MixUp",
    "Mixture",
    "Mosaic",
    "MultiHot",
    "MultiScale",
    "Normalize",
    "NotADatasetError",
    "ObjectMasks",
    "OptionError",
    "Pad",
    "PeriodStats",
    "PhotometricDistort",
    "Polygons",
    "ProofError",
    "RandAugment",
    "RandomAffine",
    "RandomHorizontalFlip",
    "RandomIoUCrop",
    "RandomResizedCrop",
    "RayWorkers",
    "Resize",
    "ResumeError",
    "SampleError",
    "Schedule",
    "ShardError",
    "ShardWriter",
    "SourceError",
    "StoreError",
    "StreamingDataset",
    "Text",
    "TransformError",
    "TruncatedShardError",
    "WdsToolsError",
    "WebDataset",
    "WorkerError",
    "ZoomOut",
    "__version__",
    "add_fields",
    "append",
    "describe",
    "export",
    "index_folders",
    "index_shards",
    "make_loader",
    "merge",
    "pack",
    "pack_splits",
    "remove_fields",
    "reseal",
    "reshard",
    "train_test_split",
    "unpack",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        close = [] if name.startswith("_") else get_close_matches(name, __all__, 1)
        remedy = f"did you mean {close[0]!r}?" if close else "wds_tools.webdataset has the names of webdataset"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {remedy}")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        message = _wording.missing_package(f"wds_tools.{name}", error)
        if not message:
            raise
        raise ModuleNotFoundError(message, name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
