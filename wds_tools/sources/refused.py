"""Formats that are known and not read, with the way out. No I/O."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from wds_tools.format.label import quoted
from wds_tools.sources.layouts import ARRAY_EXTENSIONS, EXTENSIONS, TABLES, is_image_name
from wds_tools.wording import counted

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


_LINES = "docs/packing.md shows the lines"
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
_CIFAR = OtherFormat("CIFAR (pickles, or binary batches)", f"load the arrays in Python and pack them: {_LINES}")
_IDX = OtherFormat("idx (MNIST)", f"read the arrays with numpy.frombuffer and pack them: {_LINES}")
_SQLITE = OtherFormat(
    "an SQLite database",
    "write the rows as Parquet, for example with pandas.read_sql('SELECT * FROM TABLE', "
    "sqlite3.connect(PATH)).to_parquet('x.parquet')",
)
_ORC = OtherFormat("ORC", "write it as Parquet with pyarrow.orc.read_table(PATH) and pyarrow.parquet.write_table")
_FEATHER = OtherFormat("Feather version 1", "write it as Parquet with pandas.read_feather(PATH).to_parquet")
_SAFETENSORS = OtherFormat(
    "safetensors", "save its arrays with numpy.savez('x.npz', **safetensors.numpy.load_file(PATH)) and pack that"
)
_ZARR = OtherFormat(
    "Zarr in an archive or below a folder", "pack the folder with zarr.json, .zgroup or .zarray, unpacked if necessary"
)
_NAMES: dict[str, OtherFormat] = {
    r"(data|test)_batch(_\d)?(\.bin)?|batches\.meta(\.txt)?": _CIFAR,
    r".*[-.]idx\d-u?(byte|int)(\.gz)?": _IDX,
    r"\.zarray|\.zgroup|zarr\.json": _ZARR,
    r"_versions/|.*\.lance/?": _LANCE,
    r".*\.beton": OtherFormat(
        "FFCV (.beton)", "pack the images that it was written from, or FFCV's dataset object in Python"
    ),
    r".*\.(dcm|dicom)": _DICOM,
    r".*\.rec": _MXNET,
    r".*\.(pkl|pickle)": _PICKLE,
    r".*\.(csv|tsv|jsonl|ndjson|json)\.(gz|bz2|xz|zst|zip)": OtherFormat(
        "a compressed table", "decompress it first, for example with `gzip -d` or `zstd -d`"
    ),
    r"(?!thumbs).*\.(db3?|sqlite3?)": _SQLITE,
    r".*\.orc": _ORC,
    r".*\.safetensors": _SAFETENSORS,
    r".*\.(xlsx?|ods)": OtherFormat("a spreadsheet", "save it as CSV"),
    r".*\.(7z|rar)": OtherFormat("an archive that is not read", "unpack it"),
}
"""Names of files, and of folders with a slash, in lower case; the first that fits counts."""

_SURE = (_CIFAR, _IDX)  # content is less certain than these names
_STARTS: dict[bytes, OtherFormat] = {
    b"MATLAB 5.0": _MATLAB,
    (0xCED7230A).to_bytes(4, "little"): _MXNET,
    b"SQLite format 3\0": _SQLITE,
    b"ORC": _ORC,
    b"FEA1": _FEATHER,
    **{b"\0\0\x08" + bytes([axes]): _IDX for axes in (1, 2, 3, 4)},  # arrays of uint8
    **{bytes([0x80, version]): _PICKLE for version in (2, 3, 4, 5)},
}


def refused_format(names: Iterable[str], head: bytes = b"") -> OtherFormat | None:
    """Return the format of a file, folder or archive if it is known and not read; otherwise None.

    Args:
        names: The name of the file; or for a folder, its name and the names in it, folders with a slash at the end.
        head: The first `HEAD_BYTES` bytes of the file; empty for a folder.

    >>> refused_format(["train.beton"]).name, refused_format(["scan"], bytes(128) + b"DICM").name
    ('FFCV (.beton)', 'DICOM')
    >>> refused_format(["photos.lance/", "data/", "_versions/"]).name, refused_format(["cat.jpg"])
    ('Lance', None)
    """
    lower = [name.lower() for name in names]
    has_images = any(map(is_image_name, lower))
    by_name = next((one for pattern, one in _NAMES.items() if any(re.fullmatch(pattern, name) for name in lower)), None)
    by_name = None if has_images else by_name
    return by_name if by_name in _SURE else _by_content(head) or by_name


def _by_content(head: bytes) -> OtherFormat | None:
    if head[128:132] == b"DICM":
        return _DICOM
    return next((one for start, one in _STARTS.items() if head.startswith(start)), None)


def why_no_images(where: str, paths: Iterable[str], skipped: Sequence[tuple[str, str]]) -> str:
    """Return the message for a tree of files without images, of which none is packed."""
    parts = {part for path in paths for part in (posixpath.basename(path), *_folders(path))}
    if (other := refused_format(parts)) is not None:
        return f"{where} has {other.name}, which is not read: {other.remedy}"
    if not skipped:
        return f"{where} is empty; expected class folders with images, or images ({', '.join(EXTENSIONS)})"
    if all(path.lower().endswith((".tar", ".zip")) for path, _ in skipped):  # as those of ImageNet's classes in one
        return (
            f"{where} contains archives, such as {skipped[0][0]!r}: unpack it into a folder, and pack this folder; "
            "tars without folders inside are one class each"
        )
    if arrays := [path for path, _ in skipped if path.lower().endswith(ARRAY_EXTENSIONS)]:
        return (
            f"{where} contains no image files, but {counted(len(arrays), 'file')} of arrays ({quoted(arrays)}): name "
            "the file that has both images and labels; if they are in several files, write the arrays into one first, "
            "such as an .npz with 'images' and 'labels', or pass an object with len() and [] to wds_tools.pack"
        )
    path, reason = skipped[0]
    table = next((path for path, _ in skipped if path.lower().endswith(TABLES)), None)
    hint = "" if table is None else f"; or name the table, {where}/{table}, if its rows have URLs, paths or pixels"
    return (
        f"{where} contains no image that can be packed, but {counted(len(skipped), 'other file')} ({path!r} {reason}); "
        f"expected <class>/**/*{{{','.join(EXTENSIONS)}}}{hint}"
    )


def _folders(path: str) -> list[str]:
    return [f"{folder}/" for folder in path.split("/")[:-1]]
