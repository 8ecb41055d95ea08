"""The dataset: its shards, counts, bytes, fields and classes, and a fingerprint. No I/O.

A dataset is what its manifest says; a stray or half-written file is never read. Since version 2 a manifest ends with
a checksum of everything before it, so that no changed byte goes unnoticed. `docs/format.md` specifies it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import xxhash

from wds_tools.errors import ManifestError
from wds_tools.format.tar import BLOCK

FORMAT = "wds_tools manifest"
FORMAT_VERSION = 2
OLD_VERSION = 1
"""Without a checksum; still read."""

MANIFEST_NAME = "manifest.json"
MAX_SAMPLES = 1 << 40
"""More in a dataset cannot be planned: the order of an epoch takes a few bytes for each million samples."""

_CHECKSUM = re.compile("[0-9a-f]{32}")
_SEAL = "xxh3"  # the last word of a manifest: the checksum of all bytes before its digits
_SEAL_END = '"\n}\n'  # the bytes after its digits
_SEALED = re.compile(f'"{_SEAL}": "({_CHECKSUM.pattern}){_SEAL_END}'.encode())
_SEALED_BYTES = len(f'"{_SEAL}": "') + 32 + len(_SEAL_END)
_NO_FILE_NAME = re.compile(r"[/\\]|::")


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard.

    Attributes:
        name: File name, beside the manifest.
        samples: Number of samples.
        bytes: Length of the shard.
        xxh3: XXH3-128 of the shard, 32 hexadecimal digits.
        index: File name of its index.
        index_bytes: Length of the index.
        index_xxh3: XXH3-128 of the index.
    """

    name: str
    samples: int
    bytes: int
    xxh3: str
    index: str
    index_bytes: int
    index_xxh3: str


@dataclass(frozen=True, slots=True)
class ImageStats:
    """Smallest and largest image of a dataset, in pixels as shown."""

    min_width: int
    max_width: int
    min_height: int
    max_height: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a dataset consists of.

    Attributes:
        shards: In order; sample ids count through them.
        fields: Field name to the number of samples that have it.
        classes: Class names by number; empty for a dataset without labels or names.
        shuffled: The samples were put in random order when packed.
        images: Range of image sizes, None where it is not known.
        source: What the packer was given: its options and a digest of the list of inputs.
        checksum: The checksum at the end of the file that it was read from; None for a file of version 1, which has
            none, and for a manifest that was not read from a file. Not compared.
    """

    shards: tuple[ShardEntry, ...]
    fields: dict[str, int]
    classes: tuple[str, ...] = ()
    shuffled: bool = False
    images: ImageStats | None = None
    source: dict[str, Any] | None = None
    checksum: str | None = field(default=None, compare=False)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(shard.samples for shard in self.shards)

    @property
    def bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @property
    def fingerprint(self) -> str:
        """Identity of the dataset's content: 32 hexadecimal digits, the same wherever it is stored."""
        return fingerprint(self.shards)


def fingerprint(shards: Iterable[ShardEntry]) -> str:
    """Return the XXH3-128 of the lines ``checksum samples`` of all shards, in order."""
    digest = xxhash.xxh3_128()
    for shard in shards:
        digest.update(f"{shard.xxh3} {shard.samples}\n".encode())
    return digest.hexdigest()


def to_json(manifest: Manifest) -> str:
    """Write a manifest: one line per shard, so that it can be read and compared by people too.

    Raises:
        ManifestError: A shard that `from_json` would refuse, such as one with a control character in its name.
    """
    try:
        for shard in manifest.shards:
            _check_entry(shard)
    except ValueError as error:
        raise ManifestError(f"cannot be written to a manifest: {error}; rename the file") from error
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
            "shards": [asdict(shard) for shard in manifest.shards],
        }
    )


def seal(words: dict[str, Any]) -> str:
    """Return the text of a manifest with these words, of the current version and with its checksum at the end."""
    values = {word: _readable(value) for word, value in words.items() if word not in ("shards", _SEAL)}
    values["version"] = str(FORMAT_VERSION)
    values["shards"] = "[\n" + ",\n".join("    " + _readable(shard) for shard in words["shards"]) + "\n  ]"
    lines = "".join(f"  {json.dumps(word)}: {value},\n" for word, value in values.items())
    body = f'{{\n{lines}  "{_SEAL}": "'
    return f"{body}{xxhash.xxh3_128_hexdigest(body.encode())}{_SEAL_END}"


def _readable(value: Any) -> str:
    """Write JSON with letters as they are; a class folder whose name is no UTF-8 needs them escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text) else json.dumps(value)


def from_json(text: str | bytes, *, name: str = MANIFEST_NAME) -> Manifest:
    """Read a manifest; its checksum must fit, and what is stated twice (totals, fingerprint) must agree.

    Raises:
        ManifestError: Not a manifest, of a newer version, damaged or contradictory.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    checksum = _check_seal(data, name)
    words, manifest = from_unsealed(data, name=name)
    if words["version"] == FORMAT_VERSION and checksum is None:
        raise ManifestError(f"{name} does not end with its checksum, as version {FORMAT_VERSION} must: {_REMEDY}")
    if words["version"] == OLD_VERSION and _SEAL in words:
        raise ManifestError(f"{name} says version {OLD_VERSION}, which has no checksum, and has one: {_REMEDY}")
    return replace(manifest, checksum=checksum)


_REMEDY = (
    "it was damaged, or edited; copy it again, or, if you edited it on purpose, give it a new checksum with "
    "`wds-tools reseal`"
)


def _check_seal(data: bytes, name: str) -> str | None:
    """Return the checksum at the end of a manifest, which must fit; None if there is none."""
    match = _SEALED.fullmatch(data[-_SEALED_BYTES:])
    if match is None:
        return None
    stated = match[1].decode()
    found = xxhash.xxh3_128_hexdigest(memoryview(data)[: -len(stated) - len(_SEAL_END)])
    if found != stated:
        raise ManifestError(f"{name} has the checksum {found}, and its last line says {stated}: {_REMEDY}")
    return stated


def from_unsealed(text: str | bytes, *, name: str = MANIFEST_NAME) -> tuple[dict[str, Any], Manifest]:
    """Read a manifest whose checksum may be wrong or missing; all else is checked as by `from_json`.

    Returns:
        All words of the file, those that we do not know included, and the manifest.

    Raises:
        ManifestError: Not a manifest, of a newer version, damaged or contradictory.
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
    for word, is_now in (
        ("samples", manifest.samples),
        ("bytes", manifest.bytes),
        ("fingerprint", manifest.fingerprint),
    ):
        if raw.get(word) != is_now:
            raise ManifestError(
                f"{name} contradicts itself: {word} is {raw.get(word)!r}, but its shards give {is_now!r}; "
                "it was damaged or edited: copy it again, pack again, or correct what you edited"
            )
    return raw, manifest


def _from_dict(raw: dict[str, Any]) -> Manifest:
    shards = tuple(ShardEntry(**entry) for entry in raw["shards"])
    for shard in shards:
        _check_entry(shard)
    if not _is_count(sum(shard.bytes for shard in shards)):
        raise ValueError("all shards together have more than 2**63 - 1 bytes")
    if (samples := sum(shard.samples for shard in shards)) > MAX_SAMPLES:
        raise ValueError(f"all shards together have {samples:,} samples; allowed are {MAX_SAMPLES:,}")
    names = [name for shard in shards for name in (shard.name, shard.index)]
    if len(set(names)) < len(names):
        raise ValueError(f"{Counter(names).most_common(1)[0][0]!r} is named twice")
    fields, classes, source = raw["fields"], raw["classes"], raw.get("source")
    if not isinstance(fields, dict) or not all(_is_count(count) for count in fields.values()):
        raise TypeError(f"fields are {fields!r}; allowed is an object of counts")
    if not isinstance(classes, list) or not all(isinstance(word, str) for word in classes):
        raise TypeError(f"classes are {classes!r}; allowed is a list of names")
    if not isinstance(raw["shuffled"], bool) or not isinstance(source, dict | None):
        raise TypeError(f"shuffled is {raw['shuffled']!r} and source {source!r}; allowed are a boolean and an object")
    images = ImageStats(**raw["images"]) if raw.get("images") is not None else None
    if images is not None and not all(_is_count(size) for size in asdict(images).values()):
        raise TypeError(f"images are {raw['images']!r}; allowed are whole numbers")
    return Manifest(shards, fields, tuple(classes), raw["shuffled"], images, source)


def _check_entry(shard: ShardEntry) -> None:
    for file_name in (shard.name, shard.index):
        if not isinstance(file_name, str) or not _is_plain_name(file_name):
            raise ValueError(f"{file_name!r} is no file name beside the manifest")
    for count in (shard.samples, shard.bytes, shard.index_bytes):
        if not _is_count(count):
            raise ValueError(f"shard {shard.name!r} has a count of {count!r}; allowed are 0 to 2**63 - 1")
    if shard.samples > shard.bytes // BLOCK:
        raise ValueError(
            f"shard {shard.name!r} has {shard.samples:,} samples in {shard.bytes:,} bytes; each takes {BLOCK} at least"
        )
    for checksum in (shard.xxh3, shard.index_xxh3):
        if not isinstance(checksum, str) or not _CHECKSUM.fullmatch(checksum):
            raise ValueError(f"shard {shard.name!r} has checksum {checksum!r}; allowed are 32 hexadecimal digits")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_plain_name(name: str) -> bool:
    """A manifest may name only files beside it: no folders, no parents, no absolute paths, nothing unprintable."""
    return name.isprintable() and not _NO_FILE_NAME.search(name) and name not in ("", ".", "..")
