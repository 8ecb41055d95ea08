"""Formats and files that are not read, with the reason and the way out. No I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from wds_tools.format.image_header import LFS_POINTER, LFS_START
from wds_tools.format.label import quoted
from wds_tools.sources.file_names import TEMPLATE, is_split_name
from wds_tools.sources.layouts import (
    ARRAY_EXTENSIONS,
    EXTENSIONS,
    FIELDS,
    SHARD_TABLE,
    TABLES,
    file_stem,
    is_image_name,
    is_shard_table,
)
from wds_tools.wording import counted

HEAD_BYTES = 262
"""Bytes from the start of a file that `refused_format` and `why_not_the_file` look at."""


class About(NamedTuple):
    """What a file has to do with the images next to it.

    Attributes:
        reason: What it is or has, and after a colon what to do: the end of a sentence that begins with its path.
        is_certain: Whether its content shows that it is about them, or it has the name of an image.
    """

    reason: str
    is_certain: bool = False


class OtherFormat(NamedTuple):
    """A format that is not read.

    Attributes:
        name: Its name.
        remedy: What to do, as the end of a sentence.
    """

    name: str
    remedy: str


_IN_PYTHON = "docs/sources.md shows the lines"
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
_CIFAR = OtherFormat("CIFAR (pickles, or binary batches)", f"load the arrays in Python and pack them: {_IN_PYTHON}")
_IDX = OtherFormat("idx (MNIST)", f"read the arrays with numpy.frombuffer and pack them: {_IN_PYTHON}")
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
    r".*\.(7z|rar)": OtherFormat("an archive of 7z or RAR", "unpack it"),
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

_TAR = r"\.(tar(\.\w+)?|tgz|tbz2|txz)$"
_WRONG = (  # end of a name, start of a file, what the file is
    ("", LFS_START, LFS_POINTER),
    ("", rb"(?i)\s*<(!doctype )?html", "is a web page, and not the file itself: download it again"),
    (_TAR, rb"PK\x03\x04", "is a zip archive: rename it to a name that ends in .zip"),
    (r"\.zip$", rb".{257}ustar", "is a tar archive: rename it to a name that ends in .tar"),
    (rf"{_TAR}|\.zip$", rb"Rar!|7z\xbc\xaf", "is an archive of RAR or 7z: unpack it"),
)

LINES = tuple(".txt .lst .list .dat .tab .yaml .yml .manifest .md .log .odgt .ann .gt .labels".split())  # noqa: SIM905
NOT_AN_IMAGE = f"does not have the extension of an image ({', '.join(EXTENSIONS)})"
NEXT = "which is not read with images next to it"
ARCHIVE = f"is an archive, {NEXT}: pack it on its own, or unpack it"
RECORDS = f"has records, {NEXT}: pack it on its own"
NEXT_ARCHIVE = "is an archive next to what is packed, and is not read: pack it on its own"
SAME_NAME = (
    f"has the name of an image next to it, and is not read: rename such files to one of .{', .'.join(FIELDS)}; "
    "or write a table with a row for each image"
)
NAMED = (
    "is named like a file about the images, which is not read: if it has labels, write them as CSV with a first line "
    "such as path,label"
)
OF_CLASSES = ("has a name for each number", "is named like a list of classes")
"""How the reason of a file with class names begins."""

OF_SPLIT = "is named like a list of a split, which is not read: move the images of each split into a folder"
TABLE = "is a table, which --from table reads if its rows name the images"
_FORMATS = {
    "csv|tsv|jsonl|ndjson|parquet|pq": TABLE,
    "feather|arrow|orc": f"has columns in a binary format, {NEXT}: write its rows as CSV or JSON Lines",
    "xlsx?|ods": f"has a spreadsheet, {NEXT}: save it as CSV",
    "db|sqlite3?": f"has a database, {NEXT}: export its rows as CSV",
    "|".join(ending[1:] for ending in (*ARRAY_EXTENSIONS, ".pkl", ".pickle")): (
        f"has arrays or objects, {NEXT}: write its values as CSV, with the names of the images"
    ),
    "tfrecords?|tfrec|record": RECORDS,
    r"tar(\.\w+)?|tgz|(?<!csv\.)(?<!tsv\.)(?<!txt\.)(?<!json\.)zip|7z|rar": ARCHIVE,
    "gz|bz2|xz|zst|zip": "is compressed, and so not read: decompress it first, for example with `gzip -d` or `unzip`",
}
"""End of a name -> why such a file is not packed."""

DATA = {*_FORMATS.values()} - {TABLE, ARCHIVE, RECORDS}
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")  # in a reason


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
    refused = (format_ for pattern, format_ in _NAMES.items() if any(re.fullmatch(pattern, name) for name in lower))
    by_name = None if any(map(is_image_name, lower)) else next(refused, None)
    return by_name if by_name in _SURE else _by_content(head) or by_name


def why_not_the_file(name: str, head: bytes) -> str:
    r"""Return why the content of a file cannot be what its name states, and what to do; empty if it can.

    >>> why_not_the_file("a.tar", b"PK\x03\x04"), why_not_the_file("a.npz", b"PK\x03\x04")
    ('is a zip archive: rename it to a name that ends in .zip', '')
    """
    wrong = (why for ending, start, why in _WRONG if re.search(ending, name.lower()) and re.match(start, head, re.S))
    return next(wrong, "")


def _by_content(head: bytes) -> OtherFormat | None:
    if head[128:132] == b"DICM":
        return _DICOM
    return next((refused for start, refused in _STARTS.items() if head.startswith(start)), None)


def why_no_images(where: str, paths: Iterable[str], skipped: Sequence[tuple[str, str]]) -> str:
    """Return the message for a tree of files without images, of which none is packed."""
    parts = {part for path in paths for part in re.findall("[^/]+/?", path)}
    if (refused := refused_format(parts)) is not None:
        return f"{where} has {refused.name}, which is not read: {refused.remedy}"
    if not skipped:
        return f"{where} is empty; expected class folders with images, or images ({', '.join(EXTENSIONS)})"
    if all(path.lower().endswith((".tar", ".zip")) for path, _ in skipped):  # as in ImageNet
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
    if images := [(path, reason) for path, reason in skipped if is_image_name(path) and reason != NOT_AN_IMAGE]:
        path, reason = images[0]
        return f"{where} has {counted(len(images), 'image')}, and none can be packed; correct them: {path!r} {reason}"
    path, reason = skipped[0]
    table = next((path for path, _ in skipped if path.lower().endswith(TABLES)), None)
    hint = "" if table is None else f"; or name the table, {where}/{table}, if its rows have URLs, paths or pixels"
    if stores := [path.split("/")[-2] for path, _ in skipped if path.endswith("/data.mdb")]:
        hint = f"; or name one LMDB, such as {stores[0]!r}, or pass --split folders if these are splits"
    return (
        f"{where} contains no image that can be packed, but {counted(len(skipped), 'other file')} ({path!r} {reason}); "
        f"expected <class>/**/*{{{','.join(EXTENSIONS)}}}{hint}"
    )


def notes_on(files: Mapping[str, About]) -> list[str]:
    """Return a note for each reason, which names the first file that has it; quoted text does not count."""
    by_reason: dict[str, list[str]] = {}
    for path, about in sorted(files.items()):
        by_reason.setdefault(_QUOTED.sub("", about.reason), []).append(path)
    more = {first: f" (and {counted(len(more), 'other file')})" for first, *more in by_reason.values() if more}
    return [f"{first!r}{more.get(first, '')} {files[first].reason}" for first, *_ in by_reason.values()]


def why_not_packed(path: str) -> str:
    """Return why a file that is neither an image nor known to be about images is not packed."""
    lower = path.lower()
    if is_template_name(path):
        return "is a template of predictions, whose labels do not belong to the images"
    if is_shard_table(lower):
        return SHARD_TABLE
    if is_split_name(file_stem(lower)) and lower.endswith((*LINES, ".json")):
        return OF_SPLIT
    return next((reason for pattern, reason in _FORMATS.items() if re.search(rf"\.({pattern})$", lower)), NOT_AN_IMAGE)


def is_template_name(name: str) -> bool:
    """Return whether a table is named like Kaggle's templates of predictions, whose labels do not belong to the images.

    >>> is_template_name("data/sample_submission.csv"), is_template_name("submissions/labels.csv")
    (True, False)
    """
    return name.lower().endswith(TABLES) and TEMPLATE.match(name) is not None
