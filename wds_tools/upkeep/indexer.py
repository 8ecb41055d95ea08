"""`index_shards()`: writes indexes and a manifest for existing tar shards, reading each shard once."""

from __future__ import annotations

import logging
import mmap
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import xxhash
from tqdm import tqdm

from wds_tools.errors import (
    DecodeError,
    DestinationError,
    ManifestError,
    NotADatasetError,
    OptionError,
    ShardError,
    TruncatedShardError,
    WdsToolsError,
)
from wds_tools.format import codecs, tar
from wds_tools.format import manifest as manifests
from wds_tools.format.codecs import ImageInfo
from wds_tools.format.dots import Dots
from wds_tools.format.index import NO_LABEL, Index, IndexBuilder, index_name
from wds_tools.format.manifest import MANIFEST_NAME, Manifest
from wds_tools.format.sample import IMAGE_FIELDS, split_name
from wds_tools.format.tar import Member
from wds_tools.format.totals import Totals
from wds_tools.packing.card import card, commit_card
from wds_tools.packing.shard_file import commit_index
from wds_tools.reading.keys import find_repeated_key
from wds_tools.reading.shardset import open_shards
from wds_tools.storage.commit import commit_bytes
from wds_tools.storage.patterns import expand_pattern
from wds_tools.terminal import shows_progress
from wds_tools.wording import counted

SOURCE_KIND = "shards"
"""``source.kind`` of the manifest. `pack` did not write such shards, so it never removes them."""

MAX_FIELDS = 1000
"""Limit for the distinct fields of a shard. Each field takes three columns of the index."""

INDEX_MARK = b"wds_tools"
"""Occurs in the metadata of every index."""

_log = logging.getLogger("wds_tools")


@dataclass(slots=True)
class ScanResult:
    """The content of one shard.

    Attributes:
        index: Its index.
        ignored: Number of members that WebDataset ignores: folders, links, hidden files, names
            without an extension.
        broken: Keys of the samples whose image header cannot be read.
    """

    index: Index
    ignored: int
    broken: list[str]


def index_shards(
    patterns: str | Sequence[str],
    *,
    manifest: str | None = None,
    dots_in_fields: bool = False,
    progress: bool | None = None,
) -> Manifest:
    """Write an index next to each shard, and then a manifest.

    Args:
        patterns: Local shards of one folder, as one pattern or several: names, globs, or braces such as
            ``train-{000000..000009}.tar``.
        manifest: File name of the manifest; None means ``manifest.json``.
        dots_in_fields: Names such as ``photo.2024.01.jpg`` mean the key ``photo`` and the field
            ``2024.01.jpg``. By default, it is an error if this would put several images whose keys
            seem to have dots into one sample.
        progress: Show a progress bar on stderr; None shows it if stderr is a terminal.

    Returns:
        The manifest. Members that are not fields of samples, and broken images, are logged as warnings.

    Raises:
        NotADatasetError: A pattern matches nothing, or a shard does not exist.
        OptionError: Shards are in several folders, or a shard is given twice.
        ShardError: A shard is damaged, truncated or not a WebDataset; the error has shard and byte.
            Or keys have dots.
        DestinationError: The folder cannot be written to, or has other files with the names of
            indexes or manifest.
    """
    paths = _find_shards([patterns] if isinstance(patterns, str) else patterns)
    folder = paths[0].parent
    manifest_path = folder / _manifest_name(manifest)
    old = _old_manifest(manifest_path, paths)
    missing_indexes = _check_indexes(paths)
    try:
        new = _index_all(paths, progress, dots_in_fields=dots_in_fields)
        # What the old manifest states about the same shards is still true.
        if old is not None and old.fingerprint == new.fingerprint:
            new = replace(new, classes=old.classes, shuffled=old.shuffled, source=old.source)
        elif old is not None and old.fingerprint == manifests.fingerprint(new.shards[: len(old.shards)]):
            new = replace(new, classes=old.classes)  # shards were added
        if manifest_path.name == MANIFEST_NAME:  # a folder of several datasets has no card
            commit_card(folder, card(new))
        commit_bytes(manifest_path, manifests.to_json(new).encode())
        if (repeated := find_repeated_key(open_shards(manifest_path))) is not None:
            _log.warning("%s", repeated)
    except BaseException as error:
        _remove(missing_indexes)
        if isinstance(error, OSError) and not isinstance(error, WdsToolsError):
            raise _not_writable(folder, error) from error
        raise
    return new


def _index_all(paths: Sequence[Path], progress: bool | None, *, dots_in_fields: bool) -> Manifest:
    """Write the index of every shard; return their manifest."""
    entries, totals, dots = [], Totals(), Dots()
    with _progress_bar(paths, progress) as bar:
        for path in paths:
            result = scan_shard(path)
            entries.append(commit_index(result.index, path.parent))
            totals.add(result.index)
            dots.add_index(result.index)
            _log_warnings(result)
            bar.update(result.index.shard_bytes)
    if not any(entry.samples for entry in entries):
        raise ShardError(
            f"no sample in {counted(len(paths), 'shard')}: members need names such as 000001.jpg, 000001.cls"
        )
    if dots.belong_to_keys and not dots_in_fields:
        raise ShardError(f"{dots}. {_DOTS_REMEDY}")
    return Manifest(tuple(entries), dict(totals.fields), images=totals.images, source={"kind": SOURCE_KIND})


_DOTS_REMEDY = (
    "If the dots belong to the keys, pack the shards again with `wds-tools pack SHARDS DST --from dotted`, which "
    "splits at the last dot; if they belong to field names, index with --dots-in-fields (dots_in_fields=True)"
)


def scan_shard(path: Path) -> ScanResult:
    """Read a shard once, from start to end.

    Raises:
        ShardError: The shard is damaged or truncated, the members of a sample are not consecutive,
            or a sample has a field twice.
    """
    view = _mapped(path)
    scan = _ShardScan(view, path.name)
    for member in tar.walk(view, shard=path.name):
        scan.add(member)
    return scan.finish()


@dataclass(slots=True)
class _ShardScan:
    """Collects the members of a shard, added in order, into samples."""

    view: memoryview
    shard: str
    rows: IndexBuilder = field(default_factory=IndexBuilder)
    ignored: int = 0
    broken: list[str] = field(default_factory=list)
    _digest: Any = field(default_factory=xxhash.xxh3_128)
    _digested: int = 0
    _keys: set[str] = field(default_factory=set)
    _names: set[str] = field(default_factory=set)
    _key: str | None = None
    _fields: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # name -> offset, size, XXH3-64

    def add(self, member: Member) -> None:
        """Add the next member."""
        self._digest_to(member.offset + tar.padded(member.size))
        parts = split_name(member.name) if member.is_file else None
        if parts is None:
            self.ignored += 1
            return
        key, name = parts
        if key != self._key:
            self._begin(key, member)
        if name in self._fields:
            raise self._error(f"field {name!r} occurs twice in one sample", member)
        self._names.add(name)
        if len(self._names) > MAX_FIELDS:
            raise self._error(
                f"more than {MAX_FIELDS} distinct fields, probably because keys have dots. {_DOTS_REMEDY}", member
            )
        data = self.view[member.offset : member.offset + member.size]
        self._fields[name] = (member.offset, member.size, xxhash.xxh3_64_intdigest(data))

    def finish(self) -> ScanResult:
        """Return the content of the shard."""
        self._end()
        self._digest_to(len(self.view))
        index = self.rows.build(shard=self.shard, shard_bytes=len(self.view), shard_xxh3=self._digest.hexdigest())
        return ScanResult(index, self.ignored, self.broken)

    def _begin(self, key: str, member: Member) -> None:
        self._end()
        try:
            member.name.encode()
        except UnicodeEncodeError as error:
            raise self._error("its name is not UTF-8, which an index requires", member) from error
        if key in self._keys:
            raise self._error(
                "its sample began earlier, and other samples are in between: sort the members by name", member
            )
        self._key = key
        self._keys.add(key)

    def _end(self) -> None:
        if self._key is None:
            return
        self.rows.add(self._key, self._fields, self._label(), self._image(self._key))
        self._fields = {}

    def _label(self) -> int | None:
        if "cls" not in self._fields:
            return None
        label = codecs.parse_label(bytes(self._content("cls")))
        return label if label is not None and NO_LABEL < label < -NO_LABEL else None

    def _image(self, key: str) -> ImageInfo | None:
        name = next((name for name in IMAGE_FIELDS if name in self._fields), None)
        if name is None:
            return None
        try:
            return codecs.probe(self._content(name))
        except DecodeError:
            if name != "npy":  # an array need not be an image
                self.broken.append(key)
            return None

    def _content(self, name: str) -> memoryview:
        offset, size, _ = self._fields[name]
        return self.view[offset : offset + size]

    def _digest_to(self, stop: int) -> None:
        # Called per member, so that its bytes are still in the CPU cache when its field is hashed.
        self._digest.update(self.view[self._digested : stop])
        self._digested = stop

    def _error(self, what: str, member: Member) -> ShardError:
        return ShardError(
            f"member {member.name[:200]!r}: {what}; fix the shard or pack it again",
            shard=self.shard,
            offset=member.header_offset,
        )


def _mapped(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise TruncatedShardError("is empty: copy it again, or pack it again", shard=path.name, offset=0)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise NotADatasetError(f"shard {path} cannot be read: {error.strerror}; check the path") from error
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    # Not closed here: closing fails while the traceback of an error refers to a part of the view.
    return memoryview(mapped)


def _find_shards(patterns: Sequence[str]) -> list[Path]:
    paths = [Path(name) for pattern in patterns for name in expand_pattern(pattern)]
    if not paths:
        raise OptionError("no pattern was given; name shards, such as 'train-{000000..000009}.tar'")
    for path in paths:
        if path.is_dir():
            raise NotADatasetError(f"{path} is a folder; name the shards in it, such as '{path}/*.tar'")
        if not path.is_file():
            raise NotADatasetError(f"shard {path} does not exist; check the path and the range of the pattern")
        if path.suffix != ".tar":
            raise OptionError(
                f"shard {path} does not end in .tar; only plain tar files can be indexed: decompress it first"
            )
    repeated = [path.name for path, count in Counter(paths).items() if count > 1]
    if repeated:
        raise OptionError(f"shard {repeated[0]} is named {len(repeated) + 1} times; name each shard once")
    folders = sorted({str(path.parent) for path in paths})
    if len(folders) > 1:
        raise OptionError(
            f"shards are in {len(folders)} folders ({folders[0]}, {folders[1]}, ...); allowed is one, "
            "because a manifest is in the folder of its shards: index each folder separately"
        )
    return paths


def _manifest_name(name: str | None) -> str:
    if name is None:
        return MANIFEST_NAME
    if "/" in name or not name.endswith(".json") or name.startswith("."):
        raise OptionError(
            f"manifest={name!r} is not a file name ending in .json; the manifest is written to the folder of the shards"
        )
    return name


def _old_manifest(path: Path, shards: Sequence[Path]) -> Manifest | None:
    """Return an existing manifest, which must list the same shards or the first of them."""
    try:
        old = manifests.from_json(path.read_bytes(), name=str(path))
    except FileNotFoundError:
        return None
    except (ManifestError, OSError) as error:
        raise DestinationError(
            f"{path} exists and is not a manifest: {error}; remove it, or choose another name"
        ) from error
    listed, given = [entry.name for entry in old.shards], [shard.name for shard in shards]
    if listed != given[: len(listed)]:
        raise DestinationError(
            f"{path} lists other shards ({len(listed)}, from {listed[:1]}; given are {len(given)}, from {given[:1]}): "
            "choose another name with --manifest, or remove that file"
        )
    return old


def _check_indexes(shards: Sequence[Path]) -> list[Path]:
    """Return the paths of the indexes that do not exist.

    Existing indexes will be replaced, so a file with the name of an index that is not an index is
    an error.
    """
    paths = [shard.with_name(index_name(shard.name)) for shard in shards]
    for path in paths:
        if path.exists() and INDEX_MARK not in path.read_bytes():
            raise DestinationError(f"{path} exists and is not an index of wds_tools: move it away first")
    return [path for path in paths if not path.exists()]


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        with suppress(OSError):  # such as a read-only folder; the caller raises the first error
            path.unlink(missing_ok=True)


def _not_writable(folder: Path, error: OSError) -> DestinationError:
    return DestinationError(
        f"cannot write to {folder}: {error.strerror}; indexes are written to the folder of the shards: make it "
        "writable, or copy the shards to a writable folder"
    )


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


def _progress_bar(paths: Sequence[Path], progress: bool | None) -> Any:
    total = sum(path.stat().st_size for path in paths)
    return tqdm(total=total, unit="B", unit_scale=True, disable=not shows_progress(progress), file=sys.stderr)
