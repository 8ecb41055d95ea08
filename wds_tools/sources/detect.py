"""What kind of source something is: as the user says, or by what is there."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from pathlib import Path
from typing import Any

from wds_tools.errors import OptionError, ShardError, SourceError
from wds_tools.format import tar
from wds_tools.format.dots import Dots, split_at_last_dot
from wds_tools.format.sample import split_name
from wds_tools.sources.base import Source, refusing
from wds_tools.sources.files import map_file
from wds_tools.sources.image_tree import is_image_name
from wds_tools.storage.patterns import expand_pattern, has_pattern

_LOOKED_AT = 200  # files of a folder, or members of an archive, that tell its kind
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # `Path` has taken a slash away
_FILES = ("hdf5", "numpy", "table", "tensors")  # kinds that are never a folder, but for a table beside its images
_TABLES = (".csv", ".tsv", ".jsonl", ".ndjson")
_SPLITS = ("train", "training", "test", "testing", "validation", "valid", "val", "dev")
_METADATA = ("metadata.csv", "metadata.jsonl")  # names that Hugging Face gives a table of the images beside it


def open_source(
    src: Any, *, kind: str | None, classes: tuple[str, ...] | None, columns: Mapping[str, str] | None
) -> Source:
    """Return the source that reads ``src``.

    Args:
        src: A path, a pattern, or an object with ``len()`` and ``[]``.
        kind: A word of `KINDS` or `OTHER_NAMES`; None looks at what is there.
        classes: Class names by number, if they are given.
        columns: Roles to columns, as the user names them.

    Raises:
        OptionError: No such kind, or one that ``src`` cannot be.
        SourceError: Nothing there.
    """
    is_path = isinstance(src, (str, Path))
    kind = _known(kind)
    if is_path == (kind == "object"):
        if is_path:
            raise OptionError(f"kind='object', but {src} is a path: objects are packed from Python")
        kind = "object"
    path = None
    if is_path:
        path, kind = _look_at(Path(src), kind)
    module, name = KINDS[kind or "object"][0].split(":")
    made = getattr(importlib.import_module(f"wds_tools.sources.{module}"), name)
    if kind == "folder":
        if columns:
            raise OptionError(
                f"columns={dict(columns)!r}, but {src} is a folder of images, which has none: leave them out"
            )
        return made(path, classes)  # type: ignore[no-any-return]
    return made(src if path is None else path, classes, columns)  # type: ignore[no-any-return]


def _known(kind: str | None) -> str | None:
    if kind is None:
        return None
    name = OTHER_NAMES.get(kind.lower(), kind.lower())
    if name not in KINDS:
        raise OptionError(f"unknown format {kind!r} (--from, kind=); allowed are {_all_names()}")
    return name


def _look_at(path: Path, kind: str | None) -> tuple[Path, str]:
    """Return what is read at a path, and of what kind it is."""
    with refusing(f"{path} cannot be read"):  # such as a folder above it that nobody else may enter
        _check_there(path, kind)
    if kind is None:
        kind = detect(path)
        if kind == "folder" and (parts := split_folders(path)):
            named = ", ".join(part.name for part in parts)
            raise SourceError(
                f"{path} holds a folder for each split ({named}), not for each class: pack with --split folders "
                "(pack_splits), pack one of them, or say --from folder (kind='folder') if those are classes"
            )
    if path.is_dir() and kind == "table":
        path = next((path / name for name in _METADATA if (path / name).is_file()), path)
    return path, kind


def _check_there(path: Path, kind: str | None) -> None:
    if not path.exists() and _URL.match(str(path)):
        raise SourceError(
            f"{path} looks like a URL, and what is packed is on this machine: copy it first, or list the URLs of the "
            "images in a table"
        )
    if not path.exists() and not has_pattern(str(path)):
        raise SourceError(f"{path} cannot be read: no such file or folder; check the path")
    if kind in _FILES and path.is_dir() and not (kind == "table" and _is_table(path)):
        raise SourceError(f"{path} is a folder, and {kind} is read from a file: give the file, or leave --from out")


def detect(path: Path) -> str:
    """Return the kind of what is at a path; a folder of which nothing else is known is one of images.

    Raises:
        SourceError: A file of no kind that is known.
    """
    if not path.exists() and has_pattern(str(path)):
        path = Path(expand_pattern(str(path))[0])
    if path.is_dir() and not _is_table(path) and any(map(is_image_name, _names(path))):
        return "folder"  # whatever else lies beside the images
    for kind, (_, fits) in KINDS.items():
        if path.exists() and fits(path):
            return kind
    if path.exists() and not path.is_dir():
        raise SourceError(
            f"{path} is not a folder, and its name tells no known format; expected a folder of images, or "
            f"the format with --from (kind=): {_all_names()}"
        )
    return "folder"


def split_folders(path: Path) -> list[Path]:
    """Return the folders of a folder if they are those of splits, two at least and nothing else."""
    try:
        folders = [part for part in sorted(path.iterdir()) if part.is_dir() and part.name[0] != "."]
    except OSError:
        return []  # no folder, or listing it will say what is wrong
    return folders if len(folders) > 1 and all(part.name.lower() in _SPLITS for part in folders) else []


def _ends(*endings: str) -> Callable[[Path], bool]:
    """Return a test for a file by its name, or a folder by the first names in it."""
    return lambda path: any(name.lower().endswith(endings) for name in _names(path))


def _names(path: Path) -> Iterator[str]:
    """Yield a file's name; of a folder, the first names one and two levels down."""
    if not path.is_dir():
        yield path.name
        return
    for pattern in ("*", "*/*"):
        yield from (found.name for found in islice(path.glob(pattern), _LOOKED_AT) if found.is_file())


def _is_hdf5(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in (".h5", ".hdf5", ".hdf", ".he5")


def _is_numpy(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in (".npy", ".npz")


def _is_tensors(path: Path) -> bool:
    return path.is_file() and path.suffix.lower() in (".pt", ".pth")


def _is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup"))


def _is_lmdb(path: Path) -> bool:
    return (path / "data.mdb").is_file() if path.is_dir() else path.suffix.lower() in (".lmdb", ".mdb")


def _is_table(path: Path) -> bool:
    if path.is_dir():
        return any(_names_files(path / name) for name in _METADATA)
    return path.suffix.lower() in _TABLES


def _names_files(table: Path) -> bool:
    """Tell whether a table beside images names them, as Hugging Face wants it to."""
    if not table.is_file():
        return False
    with table.open("rb") as file:
        return b"file_name" in file.readline(1 << 16)


def _is_tfrecord(path: Path) -> bool:
    from wds_tools.sources.tfrecord import is_tfrecord  # noqa: PLC0415 - loaded only when it is asked

    return any(map(is_tfrecord, _names(path)))


def _is_webdataset(path: Path) -> bool:
    names = _member_names(path)
    return _are_samples(names, split_name) and not _keys_have_dots(names)


def _is_dotted(path: Path) -> bool:
    names = _member_names(path)
    return _are_samples(names, split_at_last_dot) and _keys_have_dots(names)


def _member_names(path: Path) -> list[str]:
    """Return the names of the first files in an archive, or in the first one of a folder."""
    tars = [path] if path.is_file() else sorted(path.glob("*.tar"))
    if not tars or not tars[0].name.endswith(".tar"):
        return []
    try:
        members = list(islice(tar.walk(map_file(tars[0]), shard=tars[0].name), _LOOKED_AT))
    except ShardError:
        return []
    return [member.name for member in members if member.is_file]


def _are_samples(names: Sequence[str], split: Callable[[str], tuple[str, str] | None]) -> bool:
    """Shards have several members of one key, or a class beside an image; an archive of folders has neither."""
    parts = [part for name in names if (part := split(name))]
    neighbours = any(one == two for (one, _), (two, _) in pairwise(parts))
    return neighbours or any(field == "cls" for _, field in parts)


def _keys_have_dots(names: Sequence[str]) -> bool:
    dots = Dots()
    parts = [part for name in names if (part := split_name(name))]
    for key, members in groupby(parts, key=lambda part: part[0]):
        dots.add(key, [field for _, field in members])
    return dots.rarely_again


def _never(path: Path) -> bool:  # noqa: ARG001 - as the others
    return False


KINDS: dict[str, tuple[str, Callable[[Path], bool]]] = {
    "zarr": ("zarrs:ZarrSource", _is_zarr),
    "lmdb": ("lmdb:LmdbSource", _is_lmdb),
    "hdf5": ("hdf5:Hdf5Source", _is_hdf5),
    "numpy": ("numpy_files:NumpySource", _is_numpy),
    "tensors": ("tensors:TensorSource", _is_tensors),
    "table": ("table:TableSource", _is_table),
    "webdataset": ("webdataset:WebDatasetSource", _is_webdataset),
    "dotted": ("webdataset:DottedSource", _is_dotted),
    "tar": ("tar:TarSource", _ends(".tar")),
    "zip": ("zips:ZipSource", _ends(".zip")),
    "arrow": ("arrow:ArrowSource", _ends(".arrow")),
    "parquet": ("parquet:ParquetSource", _ends(".parquet", ".pq")),
    "tfrecord": ("tfrecord:TfRecordSource", _is_tfrecord),
    "folder": ("folder:FolderSource", _never),
    "object": ("objects:ObjectSource", _never),
}
"""Kind to (module and class, test), in the order in which they are tried."""

OTHER_NAMES = {
    "csv": "table",
    "tsv": "table",
    "jsonl": "table",
    "ndjson": "table",
    "h5": "hdf5",
    "npy": "numpy",
    "npz": "numpy",
    "pt": "tensors",
    "pth": "tensors",
    "tfrecords": "tfrecord",
    "wds": "webdataset",
    "imagefolder": "folder",
}
"""What else users call a kind."""


def names_of_kinds() -> list[str]:
    """Return all names of what can be packed from the command line."""
    return sorted({*KINDS, *OTHER_NAMES} - {"object"})


def _all_names() -> str:
    """Return the same for an error message: each kind, and in parentheses what else it is called."""
    also = {kind: [name for name, meant in OTHER_NAMES.items() if meant == kind] for kind in KINDS if kind != "object"}
    return ", ".join(f"{kind} ({', '.join(names)})" if names else kind for kind, names in sorted(also.items()))
