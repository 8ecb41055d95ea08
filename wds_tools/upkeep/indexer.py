"""`index_shards()`: writes indexes and a manifest for existing tar shards, reading each shard once."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tqdm import tqdm

from wds_tools.errors import DestinationError, ManifestError, OptionError, ShardError, StoreError, WdsToolsError
from wds_tools.format import manifest as manifests
from wds_tools.format.dots import Dots
from wds_tools.format.index import Index, index_names, shard_entry, to_bytes
from wds_tools.format.index_edit import add_columns, is_index
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, ShardEntry
from wds_tools.format.totals import Totals
from wds_tools.options import RemoteOptions
from wds_tools.packing.card import card
from wds_tools.reading.keys import find_repeated_key
from wds_tools.reading.shardset import open_shards
from wds_tools.storage import join
from wds_tools.terminal import shows_progress
from wds_tools.upkeep.index_folder import IndexFolder, not_writable, open_folder
from wds_tools.upkeep.shard_scan import DOTS_REMEDY, ScanResult, scan_shard
from wds_tools.upkeep.shard_table import columns_by_key, is_table
from wds_tools.wording import counted

SOURCE_KIND = "shards"
"""``source.kind`` of the manifest. `pack` did not write such shards, so it never removes them."""

_log = logging.getLogger("wds_tools")


def index_shards(
    patterns: str | Sequence[str],
    *,
    manifest: str | None = None,
    dots_in_fields: bool = False,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Write an index next to each shard, and then a manifest.

    If another tool has written a table beside a shard, as img2dataset writes ``00000.parquet`` beside ``00000.tar``,
    the index is named ``00000.index.parquet``. Columns of the table become columns of the index, by the column
    ``key``: ``where=`` accepts them.

    Args:
        patterns: Shards of one folder, as one pattern or several: names, globs, or braces such as
            ``train-{000000..000009}.tar``. They may be URLs that fsspec can write to, such as ``s3://bucket/train/*.tar``:
            shards are then read in ranges of a few MiB, and indexes and manifest are uploaded.
        manifest: File name of the manifest; None means ``manifest.json``.
        dots_in_fields: Names such as ``photo.2024.01.jpg`` mean the key ``photo`` and the field
            ``2024.01.jpg``. By default, it is an error if this would put several images whose keys
            seem to have dots into one sample.
        progress: Show a progress bar on stderr; None shows it if stderr is a terminal.
        storage_options: Options for URLs, by the names of fsspec, such as ``{"anon": True}``. They are not saved.

    Returns:
        The manifest. Members that are not fields of samples, and broken images, are logged as warnings.

    Raises:
        NotADatasetError: A pattern matches nothing, or a shard does not exist.
        OptionError: Shards are in several folders, a shard is given twice, or a URL is not writable.
        ShardError: A shard is damaged, truncated or not a WebDataset; the error has shard and byte.
            Or keys have dots.
            Or a table beside a shard cannot be read.
        DestinationError: The folder cannot be written to, or has other files with the names of
            indexes or manifest.
        StoreError: The storage at a URL fails.
    """
    remote = RemoteOptions.of(storage_options=storage_options)
    folder, shards = open_folder([patterns] if isinstance(patterns, str) else patterns, remote)
    manifest_name = _manifest_name(manifest)
    old = _old_manifest(folder, manifest_name, shards)
    files = [_files_beside(folder, shard) for shard in shards]
    try:
        new = _index_all(folder, shards, files, progress, dots_in_fields=dots_in_fields)
        # What the old manifest states about the same shards is still true.
        if old is not None and old.fingerprint == new.fingerprint:
            new = replace(new, classes=old.classes, shuffled=old.shuffled, source=old.source)
        elif old is not None and old.fingerprint == manifests.fingerprint(new.shards[: len(old.shards)]):
            new = replace(new, classes=old.classes)  # shards were added
        if manifest_name == MANIFEST_NAME:  # a folder of several datasets has no card
            folder.write_card(card(new))
        folder.write(manifest_name, manifests.to_json(new).encode())
        if (repeated := find_repeated_key(open_shards(join(folder.name, manifest_name), remote=remote))) is not None:
            _log.warning("%s", repeated)
    except BaseException as error:
        folder.remove(file.index_file for file in files if not file.exists)
        if isinstance(error, OSError) and not isinstance(error, WdsToolsError):
            raise not_writable(folder.name, error) from error
        raise
    return new


class _Files(NamedTuple):
    """The files beside a shard: name of its index, whether that exists, and the name of another tool's table."""

    index_file: str
    exists: bool
    table: str | None


def _index_all(
    folder: IndexFolder, shards: Sequence[str], files: Sequence[_Files], progress: bool | None, *, dots_in_fields: bool
) -> Manifest:
    """Write the index of every shard; return their manifest."""
    entries, totals, dots = [], Totals(), Dots()
    total, show = sum(map(folder.size, shards)), shows_progress(progress)
    with tqdm(total=total, unit="B", unit_scale=True, disable=not show, file=sys.stderr) as bar:
        for shard, beside in zip(shards, files, strict=True):
            with folder.open(shard, bar.update) as view:
                result = scan_shard(view, shard)
            entries.append(_write_index(folder, result.index, beside))
            totals.add(result.index)
            dots.add_index(result.index)
            _log_warnings(result)
    if not any(entry.samples for entry in entries):
        raise ShardError(
            f"no sample in {counted(len(shards), 'shard')}: members need names such as 000001.jpg, 000001.cls"
        )
    if dots.belong_to_keys and not dots_in_fields:
        raise ShardError(f"{dots}. {DOTS_REMEDY}")
    return Manifest(tuple(entries), dict(totals.fields), images=totals.images, source={"kind": SOURCE_KIND})


def _manifest_name(name: str | None) -> str:
    if name is None:
        return MANIFEST_NAME
    if "/" in name or not name.endswith(".json") or name.startswith("."):
        raise OptionError(
            f"manifest={name!r} is not a file name ending in .json; the manifest is written to the folder of the shards"
        )
    return name


def _old_manifest(folder: IndexFolder, name: str, shards: Sequence[str]) -> Manifest | None:
    """Return an existing manifest, which must list the same shards or the first of them."""
    path = join(folder.name, name)
    try:
        data = folder.read(name)
        old = None if data is None else manifests.from_json(data, name=path)
    except StoreError:
        raise
    except (ManifestError, OSError) as error:
        raise DestinationError(
            f"{path} exists and is not a manifest: {error}; remove it, or choose another name"
        ) from error
    if old is None:
        return None
    listed = [entry.name for entry in old.shards]
    if listed != list(shards[: len(listed)]):
        raise DestinationError(
            f"{path} lists other shards ({len(listed)}, from {listed[:1]}; given are {len(shards)}, from "
            f"{list(shards[:1])}): choose another name with --manifest, or remove that file"
        )
    return old


def _write_index(folder: IndexFolder, index: Index, files: _Files) -> ShardEntry:
    """Write an index, with the columns of another tool's table; return the entry of the shard."""
    data = to_bytes(index)
    if files.table is not None:
        columns = columns_by_key(folder.read(files.table) or b"", index.keys, name=join(folder.name, files.table))
        if columns is None:
            _log.warning("%s has no text column 'key', so its columns are not used", files.table)
        elif columns.num_columns:
            data = add_columns(data, columns)
    folder.write(files.index_file, data)
    return shard_entry(
        index.shard,
        data,
        samples=len(index),
        shard_bytes=index.shard_bytes,
        shard_xxh3=index.shard_xxh3,
        name=files.index_file,
    )


def _files_beside(folder: IndexFolder, shard: str) -> _Files:
    """Choose the name of an index. An existing index is replaced; the file of another tool is not."""
    table = None
    for name in index_names(shard):
        data = folder.read(name)
        if data is None or is_index(data):
            return _Files(name, data is not None, table)
        if table is not None or not is_table(data):
            break
        table = name
    raise DestinationError(f"{join(folder.name, name)} exists and is not an index of wds_tools: move it away first")


def _log_warnings(result: ScanResult) -> None:
    if result.ignored:
        _log.warning("%s: %d members do not belong to samples and are ignored", result.index.shard, result.ignored)
    if result.broken:
        _log.warning(
            "%s: the images of %d samples cannot be read, the first is %s",
            result.index.shard,
            len(result.broken),
            result.broken[0],
        )
