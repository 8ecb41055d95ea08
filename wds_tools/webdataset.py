"""The names of webdataset, for programs that change only ``import webdataset as wds``.

``import wds_tools.webdataset as wds`` has all names of webdataset. These are ours:

* `WebDataset` and `ShardWriter`
* ``tarfile_to_samples`` and ``tarfile_samples``: the stage of a ``DataPipeline`` that reads shards. It verifies every
  byte; which shards it gets, and in which order, is decided by the stages before it.
"""

from __future__ import annotations

from typing import Any

import webdataset

from wds_tools.loading.web_dataset import WebDataset
from wds_tools.loading.web_source import tarfile_samples, tarfile_to_samples
from wds_tools.packing.shard_writer import ShardWriter

__all__ = ["ShardWriter", "WebDataset", "tarfile_samples", "tarfile_to_samples"]


def __getattr__(name: str) -> Any:
    try:
        return getattr(webdataset, name)
    except AttributeError:
        raise AttributeError(f"neither wds_tools.webdataset nor webdataset has {name!r}") from None


def __dir__() -> list[str]:
    return sorted({*dir(webdataset), *__all__})
