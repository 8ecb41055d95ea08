"""Give tar shards of others an index and a manifest, with one strict sequential read of each."""

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

SOURCE_KIND = "shards"
"""What the manifest names as source: such shards were not made by `pack`, which therefore never removes them."""

MAX_FIELDS = 1000
"""Distinct fields of a shard: each takes three columns of its index."""

INDEX_MARK = b"wds_tools"
"""Stands in the metadata of every index."""

_log = logging.getLogger("wds_tools")


@dataclass(slots=True)
class ScanResult:
    """What one shard holds.

    Attributes:
        index: Of its samples.
        ignored: Members that WebDataset ignores: folders, links, hidden files, names without an extension.
        broken: Keys of samples whose image header cannot be read.
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
    """Write an index beside each shard, and then a manifest.

    Args:
        patterns: Local shards of one folder, one pattern or several: names, globs, or braces such as
            ``train-{000000..000009}.tar``.
        manifest: File name of the manifest, ``manifest.json`` if it is not given.
        dots_in_fields: Names such as ``photo.2024.01.jpg`` mean the key ``photo`` and the field ``2024.01.jpg``. By
            default it is an error if that would make one sample of pictures whose keys seem to have dots.
        progress: Show a bar on stderr; None does if it is a terminal.

    Returns:
        The manifest. Members that are no samples and images that are broken are logged as warnings.

    Raises:
        NotADatasetError: A pattern that matches nothing, or a shard that is not there.
        OptionError: Shards of several folders, or one that is named twice.
        ShardError: A shard that is damaged or cut, or no WebDataset; shard and byte are named. Or keys with dots.
        DestinationError: The folder cannot be written to, or has files of these names that are something else.
    """
    paths = _find_shards([patterns] if isinstance(patterns, str) else patterns)
    folder = paths[0].parent
    manifest_path = folder / _manifest_name(manifest)
    old = _old_manifest(manifest_path, paths)
    new = _check_indexes(paths)
    try:
        made = _index_all(paths, progress, dots_in_fields=dots_in_fields)
        # The same bytes: what was known still holds; of shards that were added, only the names of the classes do.
        if old is not None and old.fingerprint == made.fingerprint:
            made = replace(made, classes=old.classes, shuffled=old.shuffled, source=old.source)
        elif old is not None and old.fingerprint == manifests.fingerprint(made.shards[: len(old.shards)]):
            made = replace(made, classes=old.classes)
        if manifest_path.name == MANIFEST_NAME:  # of several datasets in one folder, a card could be of one only
            commit_card(folder, card(made))
        commit_bytes(manifest_path, manifests.to_json(made).encode())
        if (repeated := find_repeated_key(open_shards(manifest_path))) is not None:
            _log.warning("%s", repeated)
    except BaseException as error:
        _remove(new)
        if isinstance(error, OSError) and not isinstance(error, WdsToolsError):
            raise _not_writable(folder, error) from error
        raise
    return made


def _index_all(paths: Sequence[Path], progress: bool | None, *, dots_in_fields: bool) -> Manifest:
    """Write every index; return the manifest of them."""
    entries, totals, dots = [], Totals(), Dots()
    with _bar(paths, progress) as bar:
        for path in paths:
            result = scan_shard(path)
            entries.append(commit_index(result.index, path.parent))
            totals.add(result.index)
            dots.add_index(result.index)
            _warn(result)
            bar.update(result.index.shard_bytes)
    if not any(entry.samples for entry in entries):
        raise ShardError(f"{len(paths)} shards hold no sample: members need names such as 000001.jpg, 000001.cls")
    if dots.belong_to_keys and not dots_in_fields:
        raise ShardError(f"{dots}. {_DOTS_REMEDY}")
    return Manifest(tuple(entries), dict(totals.fields), images=totals.images, source={"kind": SOURCE_KIND})


_DOTS_REMEDY = (
    "If the dots belong to the keys, pack the shards anew with `wds-tools pack SHARDS DST --from dotted`, which splits "
    "at the last dot; if they belong to field names, index with --dots-in-fields (dots_in_fields=True)"
)


def scan_shard(path: Path) -> ScanResult:
    """Read a shard from start to end, once.

    Raises:
        ShardError: It is damaged or cut, a key comes back behind another one, or a sample has a field twice.
    """
    view = _mapped(path)
    scan = _Scan(view, path.name)
    for member in tar.walk(view, shard=path.name):
        scan.add(member)
    return scan.finish()


@dataclass(slots=True)
class _Scan:
    """Gathers the members of a shard, which come one by one, into samples."""

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
    _places: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def add(self, member: Member) -> None:
        """Take the next member."""
        self._digest_to(member.offset + tar.padded(member.size))
        parts = split_name(member.name) if member.is_file else None
        if parts is None:
            self.ignored += 1
            return
        key, name = parts
        if key != self._key:
            self._begin(key, member)
        if name in self._places:
            raise self._error(f"field {name!r} comes twice in one sample", member)
        self._names.add(name)
        if len(self._names) > MAX_FIELDS:
            raise self._error(f"more than {MAX_FIELDS} distinct fields, as keys with dots give. {_DOTS_REMEDY}", member)
        data = self.view[member.offset : member.offset + member.size]
        self._places[name] = (member.offset, member.size, xxhash.xxh3_64_intdigest(data))

    def finish(self) -> ScanResult:
        """Return the index of the whole shard."""
        self._end()
        self._digest_to(len(self.view))
        index = self.rows.build(shard=self.shard, shard_bytes=len(self.view), shard_xxh3=self._digest.hexdigest())
        return ScanResult(index, self.ignored, self.broken)

    def _begin(self, key: str, member: Member) -> None:
        self._end()
        try:
            member.name.encode()
        except UnicodeEncodeError as error:
            raise self._error("its name is no UTF-8, which an index cannot hold", member) from error
        if key in self._keys:
            raise self._error("its sample began earlier, and others lie between: sort the members by name", member)
        self._key = key
        self._keys.add(key)

    def _end(self) -> None:
        if self._key is None:
            return
        self.rows.add(self._key, self._places, self._label(), self._image(self._key))
        self._places = {}

    def _label(self) -> int | None:
        if "cls" not in self._places:
            return None
        label = codecs.parse_label(bytes(self._content("cls")))
        return label if label is not None and NO_LABEL < label < -NO_LABEL else None

    def _image(self, key: str) -> ImageInfo | None:
        name = next((name for name in IMAGE_FIELDS if name in self._places), None)
        if name is None:
            return None
        try:
            return codecs.probe(self._content(name))
        except DecodeError:
            if name != "npy":  # which may hold anything
                self.broken.append(key)
            return None

    def _content(self, name: str) -> memoryview:
        offset, size, _ = self._places[name]
        return self.view[offset : offset + size]

    def _digest_to(self, stop: int) -> None:
        # Member by member: the bytes are still in the cache when the field is hashed and the image probed.
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
                raise TruncatedShardError("is empty: copy or pack it again", shard=path.name, offset=0)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise NotADatasetError(f"shard {path} cannot be read: {error.strerror}; check the path") from error
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    # Not closed here: an error's traceback may hold a part of it, and closing would then raise another error.
    return memoryview(mapped)


def _find_shards(patterns: Sequence[str]) -> list[Path]:
    paths = [Path(name) for pattern in patterns for name in expand_pattern(pattern)]
    if not paths:
        raise OptionError("no pattern was given; name shards, such as 'train-{000000..000009}.tar'")
    for path in paths:
        if path.is_dir():
            raise NotADatasetError(f"{path} is a folder; name the shards in it, such as '{path}/*.tar'")
        if not path.is_file():
            raise NotADatasetError(f"shard {path} is not there; check the path and the range of the pattern")
        if path.suffix != ".tar":
            raise OptionError(f"shard {path} does not end in .tar; indexed are plain tar files: unpack it first")
    twice = [path.name for path, count in Counter(paths).items() if count > 1]
    if twice:
        raise OptionError(f"shard {twice[0]} is named {len(twice) + 1} times; name each shard once")
    folders = sorted({str(path.parent) for path in paths})
    if len(folders) > 1:
        raise OptionError(
            f"shards lie in {len(folders)} folders ({folders[0]}, {folders[1]}, ...); allowed is one, "
            "because a manifest lies beside its shards: index each folder by itself"
        )
    return paths


def _manifest_name(name: str | None) -> str:
    if name is None:
        return MANIFEST_NAME
    if "/" in name or not name.endswith(".json") or name.startswith("."):
        raise OptionError(f"manifest={name!r} is no file name ending in .json; it is written beside the shards")
    return name


def _old_manifest(path: Path, shards: Sequence[Path]) -> Manifest | None:
    """Return the manifest that is there; it is replaced only if it lists the same shards, or the first of them."""
    try:
        old = manifests.from_json(path.read_bytes(), name=str(path))
    except FileNotFoundError:
        return None
    except (ManifestError, OSError) as error:
        raise DestinationError(f"{path} is there and is no manifest: {error}; remove it, or name another") from error
    before, now = [entry.name for entry in old.shards], [shard.name for shard in shards]
    if before != now[: len(before)]:
        raise DestinationError(
            f"{path} lists other shards ({len(before)}, from {before[:1]}; given are {len(now)}, from {now[:1]}): "
            "give --manifest another name, or remove that file"
        )
    return old


def _check_indexes(shards: Sequence[Path]) -> list[Path]:
    """Return the indexes that are not there yet.

    A file of an index's name that is none was put there by someone else; a damaged index is replaced.
    """
    paths = [shard.with_name(index_name(shard.name)) for shard in shards]
    for path in paths:
        if path.exists() and INDEX_MARK not in path.read_bytes():
            raise DestinationError(f"{path} is there and is no index of wds_tools: move it away first")
    return [path for path in paths if not path.exists()]


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        with suppress(OSError):  # the folder may be read-only; the first error is the one to report
            path.unlink(missing_ok=True)


def _not_writable(folder: Path, error: OSError) -> DestinationError:
    return DestinationError(
        f"cannot write to {folder}: {error.strerror}; indexes lie beside their shards: make the folder writable, "
        "or copy the shards to one that is"
    )


def _warn(result: ScanResult) -> None:
    if result.ignored:
        _log.warning("%s: %d members are no sample's and are ignored", result.index.shard, result.ignored)
    if result.broken:
        _log.warning(
            "%s: the images of %d samples cannot be read, the first is %s",
            result.index.shard,
            len(result.broken),
            result.broken[0],
        )


def _bar(paths: Sequence[Path], progress: bool | None) -> Any:
    total = sum(path.stat().st_size for path in paths)
    return tqdm(total=total, unit="B", unit_scale=True, disable=not shows_progress(progress), file=sys.stderr)
