"""The manifest of a dataset: shards, counts, sizes, fields, classes and a fingerprint. No I/O.

A dataset consists of the files that its manifest lists; other files in the folder are never read.
Since version 2 a manifest ends with a checksum of everything before it, which detects any changed
byte. `docs/format.md` specifies the format.
"""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from typing import Any, Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import ManifestError, OptionError
from wds_tools.format import account as accounts
from wds_tools.format.account import Account
from wds_tools.format.field_classes import FieldClasses, check_field_classes, from_raw, to_raw
from wds_tools.format.label_lists import LABELS
from wds_tools.format.tar import BLOCK
from wds_tools.lazy_sequence import LazySequence

FORMAT = "wds_tools manifest"
FORMAT_VERSION = 2
OLD_VERSION = 1
"""The version without a checksum, which can still be read."""

MANIFEST_NAME = "manifest.json"
MAX_SAMPLES = 1 << 40
"""Maximum number of samples of a dataset: the order of an epoch takes a few bytes of memory per million samples."""

_CHECKSUM = re.compile("[0-9a-f]{32}")
_SEAL = "xxh3"  # the last JSON key: the checksum of all bytes before its digits
_SEAL_END = '"\n}\n'  # the bytes after its digits
_SEALED = re.compile(f'"{_SEAL}": "({_CHECKSUM.pattern}){_SEAL_END}'.encode())
_SEALED_BYTES = len(f'"{_SEAL}": "') + 32 + len(_SEAL_END)
_HEAD_BYTES = 1000  # of a file that begins as a manifest
_PATH_SEPARATOR = re.compile(r"[/\\]|::")  # fsspec chains URLs with "::"


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """What the manifest records about one shard.

    Attributes:
        name: File name, in the folder of the manifest.
        samples: Number of samples.
        bytes: Length of the shard in bytes.
        xxh3: XXH3-128 of the shard, 32 hexadecimal digits.
        index: File name of the index, in the same folder.
        index_bytes: Length of the index in bytes.
        index_xxh3: XXH3-128 of the index, 32 hexadecimal digits.
        before: The entry that the shard had before its images were rewritten in place; None if they were not.
    """

    name: str
    samples: int
    bytes: int
    xxh3: str
    index: str
    index_bytes: int
    index_xxh3: str
    before: ShardEntry | None = None

    @property
    def first(self) -> ShardEntry:
        """The entry that determines the order of the samples: the one before images were rewritten in place."""
        return self.before or self


@dataclass(frozen=True, slots=True)
class ShardTotals:
    """What a manifest has of all shards together."""

    samples: int
    bytes: int
    order_bytes: int
    fingerprint: str
    order_fingerprint: str

    @classmethod
    def of(cls, shards: Iterable[ShardEntry]) -> ShardTotals:
        """Return the totals of some shards."""
        shards = tuple(shards)
        return cls(
            sum(shard.samples for shard in shards),
            sum(shard.bytes for shard in shards),
            sum(shard.first.bytes for shard in shards),
            fingerprint(shards),
            order_fingerprint(shards),
        )


class KnownShards(LazySequence[ShardEntry]):
    """Shards whose totals are known, so that not each entry is needed for them.

    Attributes:
        samples: int64 [shards], number of samples of each shard.
    """

    samples: NDArray[np.int64]

    @property
    @abstractmethod
    def index_checksums(self) -> NDArray[np.uint8]:
        """The XXH3-128 of each index: uint8 [shards, 16]."""

    @abstractmethod
    def total(self, what: Literal["samples", "bytes", "order_bytes"]) -> int:
        """Return a total, see `ShardTotals`."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return what `fingerprint` returns for them."""

    @abstractmethod
    def order_fingerprint(self) -> str:
        """Return what `order_fingerprint` returns for them."""


@dataclass(frozen=True, slots=True)
class ImageStats:
    """Range of the image sizes of a dataset, in pixels after the EXIF orientation is applied."""

    min_width: int
    max_width: int
    min_height: int
    max_height: int


@dataclass(frozen=True, slots=True)
class Addition:
    """Fields that were added later: a dataset in a subfolder, with the same names of shards and the same keys.

    Attributes:
        folder: Name of the subfolder.
        fingerprint: Fingerprint of the dataset in it.
        fields: Field name to the number of samples that have the field.
    """

    folder: str
    fingerprint: str
    fields: dict[str, int]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents of a dataset.

    Attributes:
        shards: The shards in order; sample ids count through them. A tuple, or `KnownShards` if there are many.
        fields: Field name to the number of samples that have the field.
        classes: Class names by class number; empty for a dataset without labels or class names.
        shuffled: Whether packing put the samples in random order.
        images: Range of the image sizes, None if unknown.
        source: Options of the packer and a digest of its list of inputs, None if unknown.
        label: Source of the labels in the indexes: a field, an entry of a JSON field such as ``json:label``,
            ``folder``, or ``index``; None for the field ``cls``.
        additions: Fields that were added later.
        account: What the sources had, and how it was packed or why it was left out; None if unknown.
        field_classes: Class lists of numbers that are not the label, by field path: a field such as ``labels.json``,
            or an entry of a JSON field such as ``json:objects.category``.
        checksum: Checksum at the end of the manifest file; None for version 1, which has no
            checksum, and for a manifest that was not read from a file. Ignored by ``==``.
    """

    shards: Sequence[ShardEntry]
    fields: dict[str, int]
    classes: tuple[str, ...] = ()
    shuffled: bool = False
    images: ImageStats | None = None
    source: dict[str, Any] | None = None
    label: str | None = None
    additions: tuple[Addition, ...] = ()
    account: Account | None = None
    field_classes: FieldClasses = field(default_factory=dict)
    checksum: str | None = field(default=None, compare=False)

    @property
    def shard_samples(self) -> NDArray[np.int64]:
        """Number of samples of each shard: int64 [shards]."""
        if isinstance(self.shards, KnownShards):
            return self.shards.samples
        return np.array([shard.samples for shard in self.shards], np.int64)

    @property
    def samples(self) -> int:
        """Number of samples of all shards."""
        if isinstance(self.shards, KnownShards):
            return self.shards.total("samples")
        return sum(shard.samples for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Length of all shards in bytes."""
        if isinstance(self.shards, KnownShards):
            return self.shards.total("bytes")
        return sum(shard.bytes for shard in self.shards)

    @property
    def label_classes(self) -> tuple[str, ...]:
        """The class names of labels, by number, even if samples have several labels."""
        several = self.field_classes.get(LABELS)
        return (*self.classes, *(several.names if several else ()))

    @property
    def all_fields(self) -> dict[str, int]:
        """Field name to the number of samples that have the field, with the fields that were added later."""
        return {**self.fields, **{name: n for addition in self.additions for name, n in addition.fields.items()}}

    @property
    def has_labels(self) -> bool:
        """Whether samples may have labels."""
        return self.label is not None or "cls" in self.fields

    @property
    def order_bytes(self) -> int:
        """Length of all shards before images were rewritten in place; the order of samples depends on it."""
        if isinstance(self.shards, KnownShards):
            return self.shards.total("order_bytes")
        return sum(shard.first.bytes for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """Identity of the dataset's content, whatever its location: 32 hexadecimal digits."""
        return fingerprint(self.shards)


def order_fingerprint(shards: Iterable[ShardEntry]) -> str:
    """Return the fingerprint that determines the order of samples: images that are rewritten in place keep it."""
    if isinstance(shards, KnownShards):
        return shards.order_fingerprint()
    return fingerprint_of(shard.first for shard in shards)


def fingerprint(shards: Iterable[ShardEntry]) -> str:
    """Return the XXH3-128 of the lines ``checksum samples`` of all shards, in order."""
    return shards.fingerprint() if isinstance(shards, KnownShards) else fingerprint_of(shards)


def fingerprint_of(shards: Iterable[ShardEntry]) -> str:
    """Return the fingerprint of entries one by one."""
    digest = xxhash.xxh3_128()
    for shard in shards:
        digest.update(f"{shard.xxh3} {shard.samples}\n".encode())
    return digest.hexdigest()


def united_accounts(manifests: Iterable[Manifest]) -> Account | None:
    """Return the account of several datasets together; None if none of them has one."""
    manifests = list(manifests)
    if all(manifest.account is None for manifest in manifests):
        return None
    accounts_of = [single.account or Account.unknown(single.samples) for single in manifests]
    return reduce(Account.united, accounts_of).limited()


def checked_name(name: str | None) -> str:
    """Return the file name of a manifest that the user has chosen; None is `MANIFEST_NAME`."""
    if name is None:
        return MANIFEST_NAME
    if "/" in name or not name.endswith(".json") or name.startswith("."):
        raise OptionError(
            f"manifest={name!r} is not a file name ending in .json; the manifest is written to the folder of the shards"
        )
    return name


def manifests_among(names: Iterable[str], read: Callable[[str], bytes]) -> Iterator[tuple[str, Manifest]]:
    """Yield the manifests among the files of a folder, with their names, sorted.

    Args:
        names: The files.
        read: Returns the content of one of them.

    Raises:
        ManifestError: A manifest is damaged.
    """
    names = sorted(name for name in names if "/" not in name)
    # Other tools write a small JSON file next to each shard, such as 00000_stats.json.
    shards = {name.removesuffix(".tar") for name in names if name.endswith(".tar")}
    for name in names:
        stem = name.removesuffix(".json")
        if name != stem and not name.startswith(".") and stem.removesuffix("_stats") not in shards:
            try:
                data = read(name)
            except ManifestError:  # it is too large to be a manifest
                continue
            if FORMAT.encode() in data[:_HEAD_BYTES]:
                yield name, from_json(data, name=name)


def to_json(manifest: Manifest) -> str:
    """Encode a manifest as JSON, with one line per shard for people who read or compare it.

    Raises:
        ManifestError: `from_json` would refuse a shard, such as one with a control character in its
            name.
    """
    try:
        for shard in manifest.shards:
            _check_entry(shard)
            _check_entry(shard.first)
    except ValueError as error:
        raise ManifestError(f"cannot be written to a manifest: {error}; rename the file") from error
    check_field_classes(manifest.field_classes)
    rewritten = {shard.name: _entry_to_raw(shard.before) for shard in manifest.shards if shard.before}
    return seal(
        {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "fingerprint": manifest.fingerprint,
            "samples": manifest.samples,
            "bytes": manifest.bytes,
            "shuffled": manifest.shuffled,
            "fields": manifest.fields,
            "classes": list(manifest.classes),
            "images": asdict(manifest.images) if manifest.images else None,
            "source": manifest.source,
            **({"label": manifest.label} if manifest.label is not None else {}),
            **({"additions": list(map(asdict, manifest.additions))} if manifest.additions else {}),
            **({"account": manifest.account.to_json()} if manifest.account is not None else {}),
            **({"field_classes": to_raw(manifest.field_classes)} if manifest.field_classes else {}),
            **({"rewritten": rewritten} if rewritten else {}),
            "shards": list(map(_entry_to_raw, manifest.shards)),
        }
    )


def _entry_to_raw(shard: ShardEntry) -> dict[str, Any]:
    return {name: value for name, value in asdict(shard).items() if name != "before"}


def seal(raw: dict[str, Any]) -> str:
    """Return the text of a manifest in the current version, with a checksum at the end."""
    values = {key: _to_readable_json(value) for key, value in raw.items() if key not in ("shards", _SEAL)}
    values["version"] = str(FORMAT_VERSION)
    values["shards"] = "[\n" + ",\n".join("    " + _to_readable_json(shard) for shard in raw["shards"]) + "\n  ]"
    lines = "".join(f"  {json.dumps(key)}: {value},\n" for key, value in values.items())
    body = f'{{\n{lines}  "{_SEAL}": "'
    return f"{body}{xxhash.xxh3_128_hexdigest(body.encode())}{_SEAL_END}"


def _to_readable_json(value: Any) -> str:
    """Encode JSON without escaping non-ASCII characters, unless UTF-8 cannot represent one of them."""
    text = json.dumps(value, ensure_ascii=False)
    # Surrogates come from names of class folders that are not UTF-8.
    return text if text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text) else json.dumps(value)


def from_json(text: str | bytes, *, name: str = MANIFEST_NAME) -> Manifest:
    """Read a manifest, and check its checksum, its totals and its fingerprint.

    Raises:
        ManifestError: The text is not a manifest, is of a newer version, is damaged, or contradicts
            itself.
    """
    return parse(text, name=name)[1]


def parse(text: str | bytes, *, name: str = MANIFEST_NAME) -> tuple[dict[str, Any], Manifest]:
    """Return the JSON object of a manifest too; otherwise as `from_json`."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    checksum = check_seal(data, name=name)
    raw, manifest = from_unsealed(data, name=name)
    if raw["version"] == FORMAT_VERSION and checksum is None:
        raise ManifestError(
            f"{name} does not end with its checksum, which version {FORMAT_VERSION} requires: {_REMEDY}"
        )
    if raw["version"] == OLD_VERSION and _SEAL in raw:
        raise ManifestError(f"{name} has a checksum, but states version {OLD_VERSION}, which has none: {_REMEDY}")
    return raw, replace(manifest, checksum=checksum)


_REMEDY = (
    "it was damaged, or edited; copy it again, or, if you edited it on purpose, give it a new checksum with "
    "`wds-tools reseal`"
)


def check_seal(data: bytes | memoryview, *, name: str = MANIFEST_NAME) -> str | None:
    """Verify the checksum at the end of a manifest and return it; return None if there is none."""
    match = _SEALED.fullmatch(data[-_SEALED_BYTES:])
    if match is None:
        return None
    stated = match[1].decode()
    checksum = xxhash.xxh3_128_hexdigest(memoryview(data)[: -len(stated) - len(_SEAL_END)])
    if checksum != stated:
        raise ManifestError(f"{name} has the checksum {checksum}, but its last line states {stated}: {_REMEDY}")
    return stated


def from_unsealed(text: str | bytes, *, name: str = MANIFEST_NAME) -> tuple[dict[str, Any], Manifest]:
    """Read a manifest whose checksum may be wrong or missing; the other checks are the same as in `from_json`.

    Returns:
        The JSON object, including unknown keys, and the manifest.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{name} is not JSON: {error}; copy it again, or pack again") from error
    if not isinstance(raw, dict) or raw.get("format") != FORMAT:
        raise ManifestError(f'{name} is not a manifest of wds_tools: it lacks "format": "{FORMAT}"')
    version = raw.get("version")
    if type(version) is not int or version not in (OLD_VERSION, FORMAT_VERSION):
        raise ManifestError(
            f"{name} is of version {version!r}; this release reads {OLD_VERSION} and {FORMAT_VERSION}: upgrade"
        )
    try:
        manifest = _from_dict(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"{name} breaks the format: {type(error).__name__} {error}") from error
    for key, computed in (
        ("samples", manifest.samples),
        ("bytes", manifest.bytes),
        ("fingerprint", manifest.fingerprint),
    ):
        if raw.get(key) != computed:
            raise ManifestError(
                f"{name} contradicts itself: {key} is {raw.get(key)!r}, but its shards give {computed!r}; "
                "it was damaged or edited: copy it again, pack again, or correct the edit"
            )
    return raw, manifest


def _from_dict(raw: dict[str, Any]) -> Manifest:
    shards = _shards(raw)
    _check_shards(shards)
    return from_head(raw, shards)


def _check_shards(shards: Sequence[ShardEntry]) -> None:
    if not _is_count(sum(shard.bytes for shard in shards)):
        raise ValueError("all shards together have more than 2**63 - 1 bytes")
    if (samples := sum(shard.samples for shard in shards)) > MAX_SAMPLES:
        raise ValueError(f"all shards together have {samples:,} samples; allowed are {MAX_SAMPLES:,}")
    entries = [*shards, *(shard.before for shard in shards if shard.before)]
    names = [name for entry in entries for name in (entry.name, entry.index)]
    if len(set(names)) < len(names):
        raise ValueError(f"{Counter(names).most_common(1)[0][0]!r} is listed twice")


def from_head(raw: Mapping[str, Any], shards: Sequence[ShardEntry]) -> Manifest:
    """Return a manifest with these shards, and all else from its JSON object."""
    fields, classes, source = raw["fields"], raw["classes"], raw.get("source")
    if not isinstance(fields, dict) or not all(_is_count(count) for count in fields.values()):
        raise TypeError(f"fields are {fields!r}; allowed is an object with a count for each field")
    if not isinstance(classes, list) or not all(isinstance(class_name, str) for class_name in classes):
        raise TypeError(f"classes are {classes!r}; allowed is a list of names")
    if not isinstance(raw["shuffled"], bool) or not isinstance(source, dict | None):
        raise TypeError(
            f"shuffled is {raw['shuffled']!r} and source is {source!r}; allowed are a boolean, and an object or null"
        )
    if not isinstance(label := raw.get("label"), str | None):
        raise TypeError(f"label is {label!r}; allowed is text or null")
    images = ImageStats(**raw["images"]) if raw.get("images") is not None else None
    if images is not None and not all(_is_count(size) for size in asdict(images).values()):
        raise TypeError(f"images are {raw['images']!r}; allowed are whole numbers")
    account = accounts.from_json(raw["account"]) if raw.get("account") is not None else None
    return Manifest(
        shards,
        fields,
        tuple(classes),
        raw["shuffled"],
        images,
        source,
        label,
        additions=_additions(raw, fields),
        account=account,
        field_classes=from_raw(raw.get("field_classes", {})),
    )


def _additions(raw: Mapping[str, Any], fields: dict[str, int]) -> tuple[Addition, ...]:
    """Return the additions of a manifest, checked: plain names of folders, and fields that occur once."""
    additions = tuple(Addition(**entry) for entry in raw.get("additions", []))
    seen = set(fields)
    for addition in additions:
        if not isinstance(addition.folder, str) or not _is_plain_name(addition.folder) or addition.folder[0] == ".":
            raise ValueError(f"{addition.folder!r} is not the name of a folder next to the manifest")
        if not isinstance(addition.fingerprint, str) or not _CHECKSUM.fullmatch(addition.fingerprint):
            raise ValueError(f"addition {addition.folder!r} has fingerprint {addition.fingerprint!r}")
        if not isinstance(addition.fields, dict) or not all(map(_is_count, addition.fields.values())):
            raise TypeError(f"addition {addition.folder!r} has fields {addition.fields!r}; allowed are counts")
        if twice := seen & addition.fields.keys():
            raise ValueError(f"field {min(twice)!r} occurs twice")
        seen |= addition.fields.keys()
    return additions


def _shards(raw: dict[str, Any]) -> tuple[ShardEntry, ...]:
    """Return the shards of a manifest, checked, each with the entry that it had before it was rewritten."""
    earlier = raw.get("rewritten", {})
    if not isinstance(earlier, dict):
        raise TypeError(f"rewritten is {earlier!r}; allowed is an object")
    rewritten = dict(zip(earlier, _entries_from_raw(list(earlier.values())), strict=True))
    shards = _entries_from_raw(raw["shards"])
    if rewritten:
        shards = [replace(shard, before=rewritten.get(shard.name)) for shard in shards]
    if unknown := rewritten.keys() - {shard.name for shard in shards}:
        raise ValueError(f"rewritten has {min(unknown)!r}, which is not a shard of it")
    for shard in shards:
        if shard.samples != shard.first.samples:
            raise ValueError(f"shard {shard.name!r} has {shard.samples:,} samples, and had {shard.first.samples:,}")
    return tuple(shards)


def _entries_from_raw(raw: Sequence[dict[str, Any]]) -> list[ShardEntry]:
    """Return entries of shards, checked."""
    entries = [ShardEntry(**item) for item in raw]
    if not _are_valid(entries):
        for entry in entries:
            _check_entry(entry)  # raises the error of the first one that is not valid
    if (wrong := next((item for item in entries if item.before is not None), None)) is not None:
        raise ValueError(f"shard {wrong.name!r} has the unknown key 'before'")
    return entries


def _are_valid(entries: Sequence[ShardEntry]) -> bool:
    """Return True only if `_check_entry` accepts all entries; in less time, as large manifests have many."""
    names = [name for entry in entries for name in (entry.name, entry.index)]
    counts = [count for entry in entries for count in (entry.samples, entry.bytes, entry.index_bytes)]
    checksums = [checksum for entry in entries for checksum in (entry.xxh3, entry.index_xxh3)]
    if not set(map(type, counts)) <= {int} or not set(map(type, [*names, *checksums])) <= {str}:
        return False
    text, digits = "".join(names), "".join(checksums)
    return (
        text.isprintable()
        and not _PATH_SEPARATOR.search(text)
        and not {"", ".", ".."}.intersection(names)
        and (not counts or (min(counts) >= 0 and max(counts) < 2**63))
        and all(entry.samples <= entry.bytes // BLOCK for entry in entries)
        and set(map(len, checksums)) <= {32}
        and re.fullmatch("[0-9a-f]*", digits) is not None
    )


def _check_entry(shard: ShardEntry) -> None:
    for file_name in (shard.name, shard.index):
        if not isinstance(file_name, str) or not _is_plain_name(file_name):
            raise ValueError(f"{file_name!r} is not the name of a file next to the manifest")
    for count in (shard.samples, shard.bytes, shard.index_bytes):
        if not _is_count(count):
            raise ValueError(f"shard {shard.name!r} has a count of {count!r}; allowed are 0 to 2**63 - 1")
    if shard.samples > shard.bytes // BLOCK:
        raise ValueError(
            f"shard {shard.name!r} has {shard.samples:,} samples in {shard.bytes:,} bytes; "
            f"a sample takes at least {BLOCK}"
        )
    for checksum in (shard.xxh3, shard.index_xxh3):
        if not isinstance(checksum, str) or not _CHECKSUM.fullmatch(checksum):
            raise ValueError(f"shard {shard.name!r} has checksum {checksum!r}; allowed are 32 hexadecimal digits")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_plain_name(name: str) -> bool:
    """Return whether this is a printable file name without a folder."""
    return name.isprintable() and not _PATH_SEPARATOR.search(name) and name not in ("", ".", "..")
