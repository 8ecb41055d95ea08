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
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wds_tools.appender import append, reshard
    from wds_tools.choose import train_test_split
    from wds_tools.dataset import StreamingDataset
    from wds_tools.errors import (
        ChecksumError,
        DecodeError,
        DestinationError,
        DeviceError,
        LoaderError,
        ManifestError,
        MissingFieldError,
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
    from wds_tools.indexer import index_shards
    from wds_tools.loader import Loader, make_loader
    from wds_tools.manifest import Manifest
    from wds_tools.merger import merge
    from wds_tools.mixture import Mixture
    from wds_tools.packer import pack
    from wds_tools.resealer import reseal
    from wds_tools.shardwriter import ShardWriter
    from wds_tools.splits import pack_splits
    from wds_tools.stats import describe
    from wds_tools.unpacker import unpack
    from wds_tools.verifier import verify
    from wds_tools.views import CenterCrop, RandomResizedCrop, Resize

__version__ = "0.1.0"

# Each name is loaded when it is first used: packing needs no torch, and `wds-tools --help` needs almost nothing.
_HOMES = {
    "CenterCrop": "views",
    "ChecksumError": "errors",
    "DecodeError": "errors",
    "DestinationError": "errors",
    "DeviceError": "errors",
    "Loader": "loader",
    "Manifest": "manifest",
    "LoaderError": "errors",
    "ManifestError": "errors",
    "MissingFieldError": "errors",
    "Mixture": "mixture",
    "NotADatasetError": "errors",
    "OptionError": "errors",
    "ProofError": "errors",
    "RandomResizedCrop": "views",
    "Resize": "views",
    "ResumeError": "errors",
    "SampleError": "errors",
    "ShardError": "errors",
    "ShardWriter": "shardwriter",
    "SourceError": "errors",
    "StoreError": "errors",
    "StreamingDataset": "dataset",
    "TruncatedShardError": "errors",
    "WdsToolsError": "errors",
    "TransformError": "errors",
    "WorkerError": "errors",
    "append": "appender",
    "describe": "stats",
    "index_shards": "indexer",
    "make_loader": "loader",
    "merge": "merger",
    "pack": "packer",
    "pack_splits": "splits",
    "reseal": "resealer",
    "reshard": "appender",
    "train_test_split": "choose",
    "unpack": "unpacker",
    "verify": "verifier",
}

__all__ = [
    "CenterCrop",
    "ChecksumError",
    "DecodeError",
    "DestinationError",
    "DeviceError",
    "Loader",
    "LoaderError",
    "Manifest",
    "ManifestError",
    "MissingFieldError",
    "Mixture",
    "NotADatasetError",
    "OptionError",
    "ProofError",
    "RandomResizedCrop",
    "Resize",
    "ResumeError",
    "SampleError",
    "ShardError",
    "ShardWriter",
    "SourceError",
    "StoreError",
    "StreamingDataset",
    "TransformError",
    "TruncatedShardError",
    "WdsToolsError",
    "WorkerError",
    "__version__",
    "append",
    "describe",
    "index_shards",
    "make_loader",
    "merge",
    "pack",
    "pack_splits",
    "reseal",
    "reshard",
    "train_test_split",
    "unpack",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
