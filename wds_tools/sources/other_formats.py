"""Formats that are recognised but not read: their names, and what a user can do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

HEAD_BYTES = 132
"""Bytes from the start of a file that `refused_format` looks at."""


class OtherFormat(NamedTuple):
    """A format that is not read.

    Attributes:
        name: Its name.
        remedy: What to do, as the end of a sentence.
    """

    name: str
    remedy: str


_FFCV = OtherFormat("FFCV (.beton)", "pack the images that it was written from, or FFCV's dataset object in Python")
_LANCE = OtherFormat("Lance", "write it as Parquet with lance.dataset(PATH).to_table() and pack that")
_DICOM = OtherFormat("DICOM", "write the pixels as PNG, with the window that you want, for example with pydicom")
_MATLAB = OtherFormat(
    "MATLAB version 5 (.mat)",
    "read it with scipy.io.loadmat and save its arrays with numpy.savez, or save it in MATLAB with -v7.3",
)
_MXNET = OtherFormat("MXNet RecordIO (.rec)", "unpack its images into class folders with MXNet's im2rec or recordio")
_PICKLE = OtherFormat(
    "a pickle (.pkl), which can run code when it is read", "load it yourself and pass the object to wds_tools.pack"
)
_CIFAR = OtherFormat(
    "CIFAR (pickles, or binary batches)", "load the arrays in Python and pack them: docs/packing.md shows the lines"
)
_IDX = OtherFormat(
    "idx (MNIST)", "read the arrays with numpy.frombuffer and pack them: docs/packing.md shows the lines"
)
_LOG = "whose log states which of its Parquet files count"
_PATTERN = "or give a pattern of files, to pack these as they are"
TABLES_WITH_LOGS = {
    "_delta_log": OtherFormat(
        f"a Delta Lake table, {_LOG}",
        f"write it as Parquet with deltalake.DeltaTable(PATH).to_pyarrow_table(), {_PATTERN}",
    ),
    ".hoodie": OtherFormat(f"a Hudi table, {_LOG}", f"write it as Parquet with Spark, {_PATTERN}"),
    "metadata/*.metadata.json": OtherFormat(
        f"an Iceberg table, {_LOG}", f"write it as Parquet with pyiceberg's scan().to_arrow(), {_PATTERN}"
    ),
}
"""What a folder of Parquet files has if only some of them count, as a pattern -> the format."""

_BY_NAME = {
    r"(data|test)_batch(_\d)?(\.bin)?|batches\.meta(\.txt)?": _CIFAR,
    r".*-idx\d-u?(byte|int)(\.gz)?": _IDX,
}
_BY_EXTENSION = {
    ".beton": _FFCV,
    ".lance": _LANCE,
    ".dcm": _DICOM,
    ".dicom": _DICOM,
    ".rec": _MXNET,
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
}
_COMPRESSED = OtherFormat("a compressed table", "decompress it first, for example with `gzip -d` or `zstd -d`")
_COMPRESSED_TABLE = re.compile(r"\.(csv|tsv|jsonl|ndjson|json)\.(gz|bz2|xz|zst|zip)")
_PICKLE_STARTS = tuple(bytes([0x80, version]) for version in (2, 3, 4, 5))
_IDX_START = b"\0\0\x08"  # arrays of uint8
_MXNET_START = (0xCED7230A).to_bytes(4, "little")


def refused_format(names: Iterable[str], head: bytes = b"") -> OtherFormat | None:
    """Return the format of a file or folder if it is known and not read; otherwise None.

    Args:
        names: The name of the file; or for a folder, its name and the names in it, folders with a slash at the end.
        head: The first `HEAD_BYTES` bytes of the file; empty for a folder.

    >>> refused_format(["train.beton"]).name, refused_format(["scan"], bytes(128) + b"DICM").name
    ('FFCV (.beton)', 'DICOM')
    >>> refused_format(["photos.lance/", "data/", "_versions/"]).name, refused_format(["cat.jpg"])
    ('Lance', None)
    """
    lower = [name.lower() for name in names]
    if "_versions/" in lower:
        return _LANCE
    stems = [name.removesuffix("/") for name in lower]
    endings = {f".{stem.rpartition('.')[2]}" for stem in stems if "." in stem}
    found = [_BY_EXTENSION[ending] for ending in sorted(endings & _BY_EXTENSION.keys())]
    found += [_COMPRESSED] if any(map(_COMPRESSED_TABLE.search, stems)) else []
    found[:0] = [one for pattern, one in _BY_NAME.items() if any(re.fullmatch(pattern, stem) for stem in stems)]
    images_too = any(
        ending in (".jpg", ".jpeg", ".png", ".webp", ".tif", ".tiff", ".gif", ".avif") for ending in endings
    )
    by_content = _by_content(head)
    by_name = found[0] if found and not images_too else None
    return by_name if by_name in (_CIFAR, _IDX) else by_content or by_name


def _by_content(head: bytes) -> OtherFormat | None:
    if head[128:132] == b"DICM":
        return _DICOM
    if head.startswith(b"MATLAB 5.0"):
        return _MATLAB
    if head.startswith(_MXNET_START):
        return _MXNET
    if head.startswith(_IDX_START) and head[3:4] in (b"\1", b"\2", b"\3", b"\4"):
        return _IDX
    return _PICKLE if head.startswith(_PICKLE_STARTS) else None
