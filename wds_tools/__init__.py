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
    from wds_tools.images.buckets import Buckets
    from wds_tools.images.schedule import Schedule
    from wds_tools.images.views import CenterCrop, RandomResizedCrop, Resize
    from wds_tools.inspection.stats import describe
    from wds_tools.loading.dataset import StreamingDataset
    from wds_tools.loading.factory import make_loader
    from wds_tools.loading.fields.boxes import Boxes
    from wds_tools.loading.fields.frames import Frames
    from wds_tools.loading.fields.image import Image
    from wds_tools.loading.fields.keypoints import Keypoints
    from wds_tools.loading.fields.padding import Pad
    from wds_tools.loading.fields.pixels import Array, Mask
    from wds_tools.loading.fields.plain import Field, Key, Label, MultiHot, Text
    from wds_tools.loading.loader import Loader
    from wds_tools.loading.pipeline.statistics import LoaderStats, PeriodStats
    from wds_tools.loading.samples.augment import ColorJitter, CutMix, MixUp, RandomHorizontalFlip
    from wds_tools.loading.samples.batch_steps import Normalize
    from wds_tools.loading.samples.rand_augment import RandAugment
    from wds_tools.loading.web_dataset import WebDataset
    from wds_tools.order.mixture import Mixture
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
_HOMES = {
    "Array": "loading.fields.pixels",
    "Boxes": "loading.fields.boxes",
    "Buckets": "images.buckets",
    "CenterCrop": "images.views",
    "ChecksumError": "errors",
    "ClassList": "format.field_classes",
    "ColorJitter": "loading.augment",
    "CutMix": "loading.augment",
    "DecodeError": "errors",
    "DestinationError": "errors",
    "DeviceError": "errors",
    "Field": "loading.fields.plain",
    "Frames": "loading.fields.frames",
    "Image": "loading.fields.image",
    "Key": "loading.fields.plain",
    "Keypoints": "loading.fields.keypoints",
    "Label": "loading.fields.plain",
    "Loader": "loading.loader",
    "LabelError": "errors",
    "LoaderError": "errors",
    "LoaderStats": "loading.statistics",
    "Manifest": "format.manifest",
    "ManifestError": "errors",
    "Mask": "loading.fields.pixels",
    "MissingFieldError": "errors",
    "MissingFileError": "errors",
    "MissingSourceError": "errors",
    "MixUp": "loading.augment",
    "Mixture": "order.mixture",
    "MultiHot": "loading.fields.plain",
    "Normalize": "loading.batch_steps",
    "NotADatasetError": "errors",
    "OptionError": "errors",
    "Pad": "loading.fields.padding",
    "PeriodStats": "loading.statistics",
    "ProofError": "errors",
    "RandAugment": "loading.rand_augment",
    "RandomHorizontalFlip": "loading.augment",
    "RandomResizedCrop": "images.views",
    "Resize": "images.views",
    "ResumeError": "errors",
    "SampleError": "errors",
    "Schedule": "images.schedule",
    "ShardError": "errors",
    "ShardWriter": "packing.shard_writer",
    "SourceError": "errors",
    "StoreError": "errors",
    "StreamingDataset": "loading.dataset",
    "Text": "loading.fields.plain",
    "TransformError": "errors",
    "TruncatedShardError": "errors",
    "WebDataset": "loading.web_dataset",
    "WdsToolsError": "errors",
    "WorkerError": "errors",
    "add_fields": "upkeep.field_adder",
    "append": "packing.append",
    "describe": "inspection.stats",
    "export": "upkeep.exporter",
    "index_folders": "upkeep.indexer",
    "index_shards": "upkeep.indexer",
    "make_loader": "loading.factory",
    "merge": "upkeep.merger",
    "pack": "packing.packer",
    "pack_splits": "packing.splits",
    "remove_fields": "upkeep.field_adder",
    "reseal": "upkeep.resealer",
    "reshard": "packing.append",
    "train_test_split": "reading.select",
    "unpack": "upkeep.unpacker",
    "verify": "upkeep.verifier",
}

__all__ = [
    "Array",
    "Boxes",
    "Buckets",
    "CenterCrop",
    "ChecksumError",
    "ClassList",
    "ColorJitter",
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
    "MultiHot",
    "Normalize",
    "NotADatasetError",
    "OptionError",
    "Pad",
    "PeriodStats",
    "ProofError",
    "RandAugment",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
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
        close = get_close_matches(name, __all__, 1)
        remedy = f"did you mean {close[0]!r}?" if close else "wds_tools.webdataset has the names of webdataset"
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; {remedy}")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in _wording.NOT_ON_SERVERS:
            raise
        message = _wording.missing_package(f"wds_tools.{name}", error.name)
        raise ModuleNotFoundError(message, name=error.name) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
