"""A source that is not packed, as a dataset to look at: its first images are packed into a temporary folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wds_tools.errors import ManifestError, NotADatasetError, OptionError, SourceError
from wds_tools.format.manifest import FORMAT, MANIFEST_NAME
from wds_tools.options import RemoteOptions
from wds_tools.packing.packer import pack
from wds_tools.reading.opening import open_shards
from wds_tools.sources.file_names import shown_path
from wds_tools.storage import is_url
from wds_tools.storage.lock import why_unfinished
from wds_tools.wording import counted

_HEAD_BYTES = 1000  # of a JSON file, in which a manifest states its format
_OPTIONS = {"kind": "--from", "columns": "--column or --label"}  # of the command; the others have their names
_MAX_NAME = 80  # characters of a source in the name of a folder


@dataclass(frozen=True, slots=True)
class Shown:
    """What is shown: a dataset, or the first images of a source."""

    dataset: str
    note: str = ""


@contextmanager
def as_dataset(name: str, source: Mapping[str, Any], *, first: int, remote: RemoteOptions) -> Iterator[Shown]:
    """Yield a dataset as it is, and anything else that `pack` reads as a dataset of its first images.

    They are stored unchanged in a temporary folder, which is removed at the end.

    Raises:
        OptionError: Options about a source were given, and it is a dataset.
        NotADatasetError: There is nothing, or an unfinished dataset, or a folder of datasets; or a URL is neither.
        ManifestError: It is a damaged dataset.
        SourceError: The source has nothing that can be shown.
    """
    source = {option: value for option, value in source.items() if value}
    reason = why_not_packed(name, remote)
    if reason is None:
        if source:
            options = ", ".join(_OPTIONS.get(option, f"--{option.replace('_', '-')}") for option in source)
            raise OptionError(f"{name} is a packed dataset; omit {options}, for sources that are not packed")
        yield Shown(name)
        return
    with tempfile.TemporaryDirectory(prefix="wds-tools-") as folder:
        try:
            report = pack(
                name,
                Path(folder) / "dataset",
                images="keep",
                first=first,
                storage_options=remote.storage_options,
                **source,
            )
        except SourceError as error:
            if is_url(name) or not os.path.lexists(name):
                raise NotADatasetError(reason) from error
            raise
        manifest = report.manifest
        part = f"first {manifest.samples:,} of {(manifest.source or {})['files']:,}"
        title = "".join(letter if letter.isprintable() else "?" for letter in _last_part(name))[:_MAX_NAME]
        named = (Path(folder) / "dataset").rename(Path(folder) / f"{title} (not packed, {part})")
        note = (
            f"{shown_path(name)} is not packed: shown are the first {counted(manifest.samples, 'image')} of "
            f"{(manifest.source or {})['files']:,}, in the order in which `wds-tools pack` stores them"
        )
        yield Shown(str(named), note)


def why_not_packed(name: str, remote: RemoteOptions) -> str | None:
    """Return why a name is not that of a dataset, if it may be that of a source; None for a dataset.

    Raises:
        NotADatasetError: It cannot be a source either: it is an unfinished dataset, or has datasets in it.
        ManifestError: It is a damaged dataset.
    """
    try:
        open_shards(name, remote=remote)
    except NotADatasetError as error:
        if not is_url(name) and Path(name).is_dir() and _has_datasets(Path(name)):
            raise
        return str(error)
    except ManifestError as error:
        if is_url(name) or not os.path.isfile(name) or _is_manifest(Path(name)):  # noqa: PTH113 - a pattern is not one
            raise
        return str(error)
    return None


def _has_datasets(folder: Path) -> bool:
    """Return whether a folder has datasets in it, or is an unfinished one: its shards would be taken for a source."""
    unfinished = why_unfinished(str(folder), lambda name: (folder / name).read_bytes())
    return unfinished is not None or any(folder.glob(f"*/{MANIFEST_NAME}"))


def _is_manifest(path: Path) -> bool:
    with path.open("rb") as file:
        return path.name == MANIFEST_NAME or FORMAT.encode() in file.read(_HEAD_BYTES)


def _last_part(name: str) -> str:
    return shown_path(name).rstrip("/").rpartition("/")[2] or "source"
