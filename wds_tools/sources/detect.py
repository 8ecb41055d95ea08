"""The format of a source: named by the user, or detected from the files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, groupby, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from wds_tools.errors import ManifestError, MissingSourceError, OptionError, ShardError, SourceError
from wds_tools.format import tar
from wds_tools.format.dots import Dots, split_at_last_dot
from wds_tools.format.label import quoted
from wds_tools.format.manifest import MANIFEST_NAME, from_json
from wds_tools.format.sample import split_name
from wds_tools.options import RemoteOptions
from wds_tools.sources.base import Source, SourceOptions, as_source_error
from wds_tools.sources.chunks import INDEX, has_index_of
from wds_tools.sources.file_list import FileList
from wds_tools.sources.file_names import SplitsError, hidden_root, is_split_name, split_value
from wds_tools.sources.files import CODECS, TarFiles, find_remote_files, is_tar
from wds_tools.sources.layouts import is_image_name, is_shard_table
from wds_tools.sources.objects import is_stream
from wds_tools.sources.refused import HEAD_BYTES, OtherFormat, refused_format
from wds_tools.sources.tree import ClassFolders, TreeSource, imported
from wds_tools.sources.trees import RemoteTree, is_zip, objects_below
from wds_tools.storage import is_url
from wds_tools.storage.patterns import expand_pattern, has_pattern
from wds_tools.storage.requests.failures import clean_url
from wds_tools.storage.requests.listing import RemoteFile, check_not_empty
from wds_tools.wording import broken_url_remedy, counted

_FORMAT = re.compile(r"[._](lmdb|zarr)\Z", re.IGNORECASE)  # at the end of the name of a folder
_MAX_NAMES = 200  # files of a folder, or members of an archive, whose names are read to detect the kind
_LEVELS = 8  # of folders in which images are looked for
_MAX_ARCHIVES = 8  # at a URL, that are looked into
_FILE_KINDS = ("hdf5", "numpy", "tensors")  # read from a file
_TABLE_EXTENSIONS = (".csv", ".tsv", ".jsonl", ".ndjson")
_ZARR_METADATA = ("zarr.json", ".zarray", ".zgroup")
_MARKED = ("zarr", "lmdb", "mds", "litdata")  # kinds of folders that have a file of one of these names
_MARKERS = (*_ZARR_METADATA, "data.mdb", INDEX)
_LMDB_MAGIC = 0xBEEFC0DE.to_bytes(4, "little")  # in the first page, after its header
_TREES = ("folder", "tar", "zip")
_ANNOTATED = ("coco", "yolo", "voc", "masks")  # trees of any kind in this layout
_IN_TREES = (*_ANNOTATED, "table")  # a table may also be a single file
_REMOTE_KINDS = ("folder", "tar", "webdataset", "dotted", *_IN_TREES)
_PYTHON_KINDS = {"object", "stream"}
_IN_FILES = ("webdataset", "dotted", "tar", "zip", "arrow", "parquet", "tfrecord")  # in folders of files
_WITH_IMAGES = (".tar", *CODECS, ".zip", ".arrow", ".parquet", ".pq", ".tfrecord", ".tfrecords")
_OBJECTS_IN_JSON = re.compile(rb"(\xef\xbb\xbf)?\s*(\[\s*\{|\{[^\n]*\}\r?\n\s*\{)")  # a list of them, or one per line


def open_source(
    src: Any, *, kind: str | None = None, options: SourceOptions | None = None, detected: str = ""
) -> Source:
    """Return the source that reads ``src``.

    Args:
        src: A path, a URL, a pattern, an object with ``len()`` and ``[]``, or a stream of ``datasets``.
        kind: A name in `KINDS`, or one of its aliases; None detects it.
        options: What the user states about the source.
        detected: `Source.detected` of an earlier call, instead of detecting it again.
    """
    src = without_file_scheme(src)
    kind = _without_alias(kind)
    options = replace(options or SourceOptions(), kind=kind)
    if isinstance(src, str) and is_url(src):
        kind_of_source, objects = (kind or detected, None) if kind or detected else _detect_remote(src, options.remote)
        _check_remote_kind(src, kind_of_source)
        source = _open(src, kind_of_source, options, given=kind is not None)
        if objects is not None and isinstance(source, TreeSource) and isinstance(source.tree, RemoteTree):
            source.tree.take(objects)
        return source
    if not isinstance(src, (str, Path)):
        return _open(src, _kind_of_object(src, kind), options, given=True)
    if kind in _PYTHON_KINDS:
        raise OptionError(f"kind={kind!r}, but {src} is a path: objects are packed from Python")
    path = Path(src)
    with as_source_error(f"{path} cannot be read"):  # such as a folder without permission
        _check_exists(path, kind)
        kind_of_source = kind or detected or detect(path)
    return _open(path, kind_of_source, options, given=kind is not None)


def open_splits(src: Any, *, kind: str | None = None, options: SourceOptions | None = None) -> dict[str, Source]:
    """Return the source of each split by its name."""
    folders = _split_folders(Path(without_file_scheme(src))) if isinstance(src, (str, Path)) else []
    if folders and (kind or detect(folders[0])) not in (*_TREES, *_IN_TREES):
        return {_split_of(folder): open_source(folder, kind=kind, options=options) for folder in folders}
    try:
        source = open_source(src, kind=kind, options=options)
        splits = dict(source.splits())
    except SplitsError as error:
        if not error.places:
            raise
        places = error.places.items()
    else:
        if not splits:
            raise SourceError(f"{source.name} cannot be packed with --split folders: {source.no_splits}")
        return splits
    return {split: open_source(place, kind=kind, options=options) for split, place in places}


def _open(src: Any, kind: str, options: SourceOptions, *, given: bool) -> Source:
    """Return the source of a kind, and for a tree of files whether the user named it: then folders are classes."""
    source: Source
    if kind in _TREES:
        source = TreeSource(src, options, tree=kind, layout=ClassFolders.kind if given else None)
    elif kind in _ANNOTATED or (kind == "table" and _is_tree(src)):
        tree = "tar" if is_tar(str(src)) else "zip" if is_zip(str(src)) else "folder"
        source = TreeSource(src, options, tree=tree, layout=kind)
    else:
        source = imported(KINDS[kind].source)(src, options)
    source.detected = kind
    return source


def _is_tree(src: str | Path) -> bool:
    """Return whether files are below a path or URL; a table may also be a file."""
    return Path(src).is_dir() or (is_url(str(src)) and not _is_table(str(src))) or is_tar(str(src)) or is_zip(str(src))


def without_file_scheme(src: Any) -> Any:
    """Return ``src``, or its path if it is a URL such as ``file:///data/photos``."""
    return src.removeprefix("file://") if isinstance(src, str) else src


def _kind_of_object(src: Any, kind: str | None) -> str:
    """Return whether an object is packed as a stream or by ``[]``."""
    kind_of_src = "stream" if is_stream(src) else "object"
    if isinstance(src, Mapping) and kind != "object":
        raise OptionError(
            f"src is a {type(src).__name__} with {quoted(map(str, src))}; pack one of them, such as one split; or of "
            "arrays, a pair such as (src['images'], src['labels']), or a list of dictionaries, one per image"
        )
    if kind not in (None, kind_of_src):
        raise OptionError(f"kind={kind!r} cannot read a {type(src).__name__}: omit kind, or pass a path")
    return kind_of_src


def _check_remote_kind(url: str, kind: str) -> None:
    """Check that a kind can be read from a URL."""
    if kind not in _REMOTE_KINDS or _is_table(url):
        raise OptionError(
            f"{clean_url(url)}: {kind} cannot be read from a URL; allowed are {', '.join(_REMOTE_KINDS)}: copy it to "
            "this machine first, or list the URLs of the images in a local table"
        )


def _detect_remote(url: str, remote: RemoteOptions) -> tuple[str, FileList | None]:
    """Return the kind of a URL: that of the first archive, or a folder of images, with the objects in it."""
    if has_pattern(url) or is_tar(url) or "*" in url:
        return _kind_of_archives(find_remote_files(url, is_tar, "tar", remote), remote), None
    objects = objects_below(url, remote)
    check_not_empty(objects, url, remote)
    if any(is_image_name(path) and not _is_hidden(path) for path in objects.paths):
        return "folder", objects
    tars = islice((file for file in objects if is_tar(file.path) and not _is_hidden(file.path)), _MAX_ARCHIVES)
    if archives := [RemoteFile(f"{url.rstrip('/')}/{file.path}", file.size, file.version) for file in tars]:
        return _kind_of_archives(archives, remote), None
    raise SourceError(
        f"{clean_url(url)} contains neither images nor tar files; these can be packed from a URL: check it, or copy "
        "other formats to this machine first"
    )


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") for part in path.split("/"))


def _without_alias(kind: str | None) -> str | None:
    if kind is None:
        return None
    name = kind.lower()
    canonical = next((key for key, form in KINDS.items() if name in (key, *form.aliases)), None)
    if canonical is None:
        raise OptionError(f"unknown format {kind!r} (--from, kind=); allowed are {_all_names()}")
    return canonical


def _check_exists(path: Path, kind: str | None) -> None:
    if not path.exists() and (remedy := broken_url_remedy(str(path))):
        raise MissingSourceError(remedy)
    if not path.exists() and not has_pattern(str(path)):
        raise MissingSourceError(f"{path} cannot be read: no such file or folder; check the path")
    if kind in _FILE_KINDS and path.is_dir():
        raise SourceError(f"{path} is a folder, but {kind} is read from a file: name the file, or omit --from")


def detect(path: Path) -> str:
    """Return the kind of a file or folder; ``"folder"`` for a folder that fits no other kind."""
    if not path.exists() and has_pattern(str(path)):
        files = list(map(Path, expand_pattern(str(path))))
        if all(is_tar(file.name) for file in files):
            return _kind_of_archives(files)
        path = files[0]
    if any((path / name).is_file() for name in _MARKERS) and (stated := _first_kind(path, _MARKED)):
        return stated  # whatever other files there are
    images = filter(is_image_name, _file_names(path, levels=_LEVELS)) if path.is_dir() else iter(())
    if (first := next(images, None)) is not None:
        _check_images_decide(path, chain([first], images))
        return "folder"
    _check_not_packed(path)
    if path.exists() and (kind := _first_kind(path, KINDS)):
        return kind
    if path.exists() and (refused := _refused_format(path)) is not None:
        raise SourceError(f"{path} is {refused.name}, which is not read: {refused.remedy}")
    if path.is_file() and is_image_name(path.name):
        raise SourceError(f"{path} is a single image: name the folder that contains it")
    if path.exists() and not path.is_dir():
        raise SourceError(
            f"{path} is not a folder, and its format cannot be detected from its name: if it has annotations (COCO, "
            "VOC, YOLO), pack the folder that contains it and the images; otherwise name its format with --from, as "
            f"in --from table (kind='table'): {_all_names()}"
        )
    return "folder"


def _check_not_packed(path: Path) -> None:
    """Check that a path is not the manifest of a dataset, nor a folder that contains datasets."""
    if path.name == MANIFEST_NAME and path.is_file() and _is_indexed(path.parent):
        raise SourceError(
            f"{path} is the manifest of a packed dataset: name its folder, {path.parent}, to pack its shards "
            "again, or use wds-tools reshard"
        )
    datasets = [file.parent.name for file in sorted(path.glob(f"*/{MANIFEST_NAME}")) if _is_indexed(file.parent)]
    if datasets and not _is_indexed(path) and not _split_folders(path):
        raise SourceError(
            f"{path} contains packed datasets ({quoted(datasets)}): name one of them, join them with wds-tools merge, "
            "or pass --from webdataset (kind='webdataset') to pack the shards of all again"
        )


def _check_images_decide(path: Path, names: Iterable[str]) -> None:
    """Check that images are more than a few next to files that contain images."""
    files = sorted(
        name for name in _file_names(path) if name.lower().endswith(_WITH_IMAGES) and not is_shard_table(name)
    )
    images = list(islice(names, len(files) + 1))  # to find more, all folders of a large tree would be listed
    kind = _first_kind(path, _IN_FILES) if len(files) >= len(images) else None
    if kind is not None:
        raise SourceError(
            f"{path} has {counted(len(images), 'image')}, such as {min(images)!r}, and {counted(len(files), 'file')} "
            f"that can contain images, such as {files[0]!r}: pass --from folder (kind='folder') to pack the images, "
            f"or --from {kind} for the other files"
        )


def _first_kind(path: Path, kinds: Iterable[str]) -> str | None:
    return next((kind for kind in kinds if KINDS[kind].matches(path)), None)


def _refused_format(path: Path) -> OtherFormat | None:
    """Return the format of a file or folder if it is known and not read."""
    if path.is_file():
        with path.open("rb") as file:
            return refused_format([path.name], file.read(HEAD_BYTES))
    there = sorted(islice(path.glob("*"), _MAX_NAMES))
    folders = [path, *(entry for entry in there if entry.is_dir())]
    refused = refused_format([*(f"{folder.name}/" for folder in folders), *_file_names(path, hidden=True)])
    first = next((entry for entry in there if entry.is_file() and not entry.suffix), None)  # such as train of CIFAR-100
    return refused if refused or first is None else _refused_format(first)


def _split_folders(path: Path) -> list[Path]:
    """Return the folders in a folder if there are two or more, all named like splits, see `_split_of`; else []."""
    try:
        folders = [entry for entry in sorted(path.iterdir()) if entry.is_dir() and entry.name[0] != "."]
    except OSError:
        return []  # the caller lists the folder next and reports the error
    return folders if len(folders) > 1 and all(map(is_split_name, map(_split_of, folders))) else []


def _split_of(folder: Path) -> str:
    """Return the split of a folder such as ``split=train``, or of an LMDB or Zarr such as ``train.lmdb``."""
    return _FORMAT.sub("", split_value(folder.name))


def _has_extension(*extensions: str) -> Callable[[Path], bool]:
    """Return a function that tests the name of a file, or the first names in a folder."""
    return lambda path: any(name.lower().endswith(extensions) for name in _file_names(path))


def _file_names(path: Path, levels: int = 2, *, hidden: bool = False) -> Iterator[str]:
    """Yield the name of a file, or the first names in a folder, some levels below it."""
    if not path.is_dir():
        yield path.name
        return
    for level in range(levels):
        for entry in islice(path.glob("*/" * level + "*"), _MAX_NAMES):
            if (hidden or hidden_root(entry.relative_to(path).as_posix()) is None) and entry.is_file():
                yield entry.name


def _is_file(*extensions: str) -> Callable[[Path], bool]:
    """Return a function that tests whether a path is a file with one of these extensions."""
    return lambda path: path.is_file() and path.suffix.lower() in extensions


def _is_hdf5(path: Path) -> bool:
    is_matlab = _is_file(".mat")(path) and _refused_format(path) is None  # version 5 is not HDF5
    return is_matlab or _is_file(".h5", ".hdf5", ".hdf", ".he5")(path)


def _is_zarr(path: Path) -> bool:
    return path.is_dir() and any((path / name).is_file() for name in _ZARR_METADATA)


def _is_lmdb(path: Path) -> bool:
    if path.is_dir():
        return (path / "data.mdb").is_file()
    if path.suffix.lower() in (".lmdb", ".mdb") or path.suffix or not path.is_file():
        return path.suffix.lower() in (".lmdb", ".mdb")
    with path.open("rb") as file:
        return file.read(20)[16:] == _LMDB_MAGIC


def _is_table(path: str | Path) -> bool:
    if str(path).lower().endswith(_TABLE_EXTENSIONS):
        return not Path(path).is_dir()
    if not str(path).lower().endswith(".json") or not Path(path).is_file():
        return False
    with Path(path).open("rb") as file:
        return _OBJECTS_IN_JSON.match(file.read(HEAD_BYTES)) is not None


def _is_arrow(path: Path) -> bool:
    is_refused = path.is_file() and _refused_format(path) is not None  # Feather version 1
    return _has_extension(".arrow", ".feather", ".ipc")(path) and not is_refused


def _is_parquet(path: Path) -> bool:
    if path.is_dir() and any(islice(path.glob("*=*/*=*/**/*.parquet"), 1)):  # Hive's folders are nested
        return True
    # The Hub writes CONFIG/SPLIT/0000.parquet for each dataset.
    return any(name.lower().endswith((".parquet", ".pq")) for name in _file_names(path, levels=3))


def _is_tfrecord(path: Path) -> bool:
    from wds_tools.sources.tfrecord import is_tfrecord  # noqa: PLC0415 - imported only if earlier kinds do not match

    return any(map(is_tfrecord, _file_names(path, levels=3)))  # DATASET/VERSION of TensorFlow Datasets


def _is_indexed(path: Path) -> bool:
    """Return whether a folder has a manifest of shards."""
    try:
        from_json((path / MANIFEST_NAME).read_bytes())
    except (OSError, ManifestError):
        return False
    return True


def _has_samples(kind: str) -> Callable[[Path], bool]:
    """Return a function that tests for an archive, or the first ones in a folder, whether one has samples of a kind."""

    def test(path: Path) -> bool:
        tars = [path] if path.is_file() else sorted(file for file in path.glob("*") if is_tar(file.name))
        if not tars or not is_tar(tars[0].name):
            return False
        return _kind_of_archives(tars, is_indexed=_is_indexed(path)) == kind

    return test


def _kind_of_archives(
    files: Sequence[Path | RemoteFile], remote: RemoteOptions | None = None, *, is_indexed: bool = False
) -> str:
    """Return what archives have: samples if one has samples. At URLs, only the first are looked into."""
    looked_at = files if remote is None else files[:_MAX_ARCHIVES]
    kinds = (_kind_of_archive(file, remote, is_indexed=is_indexed) for file in looked_at)
    return next((kind for kind in kinds if kind != "tar"), "tar")


def _kind_of_archive(path: Path | RemoteFile, remote: RemoteOptions | None = None, *, is_indexed: bool = False) -> str:
    """Return what an archive has: samples, samples whose keys have dots, or a tree of files."""
    try:
        members = islice(tar.walk(TarFiles([path], remote)[0], shard=path.name), _MAX_NAMES)
        names = [member.name for member in members if member.is_file]
    except (ShardError, SourceError):
        return "tar"
    if names and is_indexed:  # the index has already settled which dots belong to keys
        return "webdataset"
    if _keys_have_dots(names):
        return "dotted" if _are_samples(names, split_at_last_dot) else "tar"
    return "webdataset" if _are_samples(names, split_name) else "tar"


def _are_samples(names: Sequence[str], split: Callable[[str], tuple[str, str] | None]) -> bool:
    """Return whether members are fields of samples: two in a row have one key, or one is named ``cls``.

    If there are images, one of the two is an image: Food-101 has ``meta/train.json`` and ``meta/train.txt``.
    """
    parts = [(part, is_image_name(name)) for name in names if (part := split(name))]
    have_images = any(is_image for _, is_image in parts)
    same_key = any(
        key == next_key and (is_image or is_next or not have_images)
        for ((key, _), is_image), ((next_key, _), is_next) in pairwise(parts)
    )
    return same_key or any(field == "cls" for (_, field), _ in parts)


def _keys_have_dots(names: Sequence[str]) -> bool:
    dots = Dots()
    parts = [part for name in names if (part := split_name(name))]
    for key, members in groupby(parts, key=lambda part: part[0]):
        dots.add(key, [field for _, field in members])
    return dots.are_mostly_unique


def _not_detected(path: Path) -> bool:  # noqa: ARG001 - same signature as the other tests
    return False


class Format(NamedTuple):
    """What ``--from`` names. The table in docs/sources.md has the same names and texts.

    Attributes:
        source: Module and class.
        matches: Test for a path.
        what: What it is.
        aliases: Other names.
    """

    source: str
    matches: Callable[[Path], bool]
    what: str
    aliases: tuple[str, ...] = ()


_ARCHIVE = (
    "an image folder in an archive (`.zip`, or `.tar`, plain or with `.gz`, `.zst`, `.bz2` or `.xz`); several tars "
    "without folders inside are one class each, as ImageNet is distributed"
)
_OBJECTS = "images with boxes, outlines, key points or masks, in a folder, an archive or at a URL"
KINDS: dict[str, Format] = {
    "zarr": Format("arrays:ZarrSource", _is_zarr, "a folder, version 2 or 3, with or without groups"),
    "lmdb": Format("lmdb:LmdbSource", _is_lmdb, "a folder with `data.mdb`, or the file"),
    "mds": Format(
        "chunks:MdsSource",
        has_index_of("shards"),
        "MosaicML Streaming: `index.json` and `.mds` shards, plain or compressed",
    ),
    "litdata": Format(
        "chunks:LitDataSource",
        has_index_of("chunks"),
        "LitData: `index.json` and `chunk-*.bin`, plain or compressed",
    ),
    "hdf5": Format("hdf5:Hdf5Source", _is_hdf5, "`.h5`, `.hdf5`, `.mat` of MATLAB 7.3", ("h5", "mat")),
    "numpy": Format(
        "arrays:NumpySource",
        _is_file(".npy", ".npz"),
        "`.npz`, `.npy`, structured arrays included",
        ("npy", "npz"),
    ),
    "tensors": Format(
        "arrays:TensorSource",
        _is_file(".pt", ".pth"),
        "`.pt`, `.pth`: dictionaries, a pair, only images, or a list of samples",
        ("pt", "pth"),
    ),
    "table": Format(
        "table:TableSource",
        _is_table,
        "`.csv`, `.tsv`, `.jsonl`, a `.json` that is a list of objects; images and one table next to them or above "
        "them, such as `train.csv` or `metadata.jsonl`, in a folder, an archive or at a URL; with `--from table` other "
        "`.json` files and text",
        ("csv", "tsv", "jsonl", "ndjson", "json"),
    ),
    "webdataset": Format(
        "webdataset:WebDatasetSource",
        _has_samples("webdataset"),
        "tar shards, of other tools or of wds_tools, plain or compressed",
        ("wds",),
    ),
    "dotted": Format(
        "webdataset:DottedSource",
        _has_samples("dotted"),
        "tar shards with dots in their keys, such as `photo.2024.01.jpg`: "
        "names are split at the last dot instead of the first",
    ),
    "tar": Format("tree:TreeSource", _has_extension(".tar", *CODECS), _ARCHIVE),
    "zip": Format("tree:TreeSource", _has_extension(".zip"), _ARCHIVE),
    "arrow": Format(
        "arrow:ArrowSource",
        _is_arrow,
        "written by `datasets.save_to_disk`; stream or file format, such as `.feather` of version 2",
    ),
    "parquet": Format(
        "arrow:ParquetSource",
        _is_parquet,
        "a file, a pattern, or a folder of them; folders such as `label=cat` are columns",
    ),
    "tfrecord": Format(
        "tfrecord:TfRecordSource",
        _is_tfrecord,
        "files of `tf.train.Example` or `SequenceExample`, plain or compressed (GZIP, ZLIB)",
        ("tfrecords",),
    ),
    **dict.fromkeys(
        _ANNOTATED, Format("tree:TreeSource", _not_detected, _OBJECTS)
    ),  # `TreeSource` finds out the layout
    "folder": Format(
        "tree:TreeSource", _not_detected, "`<class>/**`, or images without class folders", ("imagefolder",)
    ),
    "object": Format(
        "objects:ObjectSource",
        _not_detected,
        "only in Python: any object with `len()` and `[]`, such as a torch `Dataset`, or `(X, y)` with two arrays or "
        "lists; each item is read twice",
    ),
    "stream": Format(
        "objects:StreamSource", _not_detected, 'only in Python: `datasets.load_dataset(..., streaming=True)["train"]`'
    ),
}
"""In the order in which they are tried."""


def names_of_kinds() -> dict[str, str]:
    """Return all names that ``--from`` accepts, sorted, and what they are."""
    kinds = [(kind, form) for kind, form in KINDS.items() if kind not in _PYTHON_KINDS]
    return dict(sorted((name, form.what) for kind, form in kinds for name in (kind, *form.aliases)))


def _all_names() -> str:
    """Return the names that ``--from`` accepts as text: each kind with its aliases in parentheses."""
    kinds = sorted((kind, form.aliases) for kind, form in KINDS.items() if kind not in _PYTHON_KINDS)
    return ", ".join(f"{kind} ({', '.join(aliases)})" if aliases else kind for kind, aliases in kinds)
