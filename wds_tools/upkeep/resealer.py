"""Give a manifest that was edited on purpose, or is of an older version, the checksum of what it says now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from wds_tools.errors import DestinationError, ManifestError, NotADatasetError, OptionError
from wds_tools.format import manifest as manifests
from wds_tools.format.manifest import MANIFEST_NAME, Manifest
from wds_tools.format.totals import Totals
from wds_tools.options import CacheOptions
from wds_tools.packing.card import card, commit_card
from wds_tools.packing.remote_destination import parse_destination, publish_card
from wds_tools.reading.shardset import Place, ShardSet, is_pattern, split_manifest
from wds_tools.storage import Store, join, open_store
from wds_tools.storage.commit import commit_bytes
from wds_tools.storage.upload import Bucket


@dataclass(frozen=True, slots=True)
class ResealReport:
    """What became of a manifest.

    Attributes:
        path: Path or URL of the manifest.
        manifest: What it says, with its new checksum.
        before: What was found: ``"sealed"``: the checksum was right, and nothing was written; ``"edited"``: there was
            one, and it was wrong or no longer at the end; ``"unsealed"``: version 1, which has none.
    """

    path: str
    manifest: Manifest
    before: str


def reseal(dataset: str | os.PathLike[str]) -> ResealReport:
    """Write a new checksum into a manifest that you edited on purpose, or that is of version 1.

    Only the manifest and the dataset card are written, and only if the manifest is valid and agrees with the indexes
    and the lengths of all its shards.
    What a checksum cannot know, such as whether the class names are the right ones, is for you to check first.

    Example::

        wds_tools.reseal("shards/photos").before  # 'edited'

    Args:
        dataset: Folder or URL with a manifest, or the manifest itself.

    Returns:
        What was found, and the manifest as it is now.

    Raises:
        NotADatasetError: There is no manifest.
        OptionError: A pattern of shards.
        ManifestError: The manifest breaks the format, or contradicts its shards; the message says where.
        ChecksumError: An index is not the one that the manifest names.
        TruncatedShardError: A shard does not have the length that the manifest states.
        StoreError: A shard or an index is missing, or the storage does not answer.
        DestinationError: The manifest cannot be written.
    """
    spec = os.fspath(dataset)
    if is_pattern(spec):
        raise OptionError(f"{spec} names shards; give the folder of the dataset, or its manifest")
    folder, name = split_manifest(spec)
    store, path = open_store(folder, cache=CacheOptions.of()), join(folder, name)
    try:
        data = store.read(name)
    except (FileNotFoundError, NotADirectoryError):
        raise NotADatasetError(f"{path} is not there; give the folder of a dataset, or its manifest") from None
    words, manifest = manifests.from_unsealed(data, name=path)
    before = _state(data)
    if contradictions := list(_contradictions(store, manifest)):
        raise ManifestError(f"{path} contradicts its shards: {'; '.join(contradictions)}; correct it, then reseal it")
    if before != "sealed":
        data = manifests.seal(words).encode()
        _write(folder, name, data)
    return ResealReport(path, manifests.from_json(data, name=path), before)


def _state(data: bytes) -> str:
    try:
        return "unsealed" if manifests.from_json(data).checksum is None else "sealed"
    except ManifestError:
        return "edited"


def _contradictions(store: Store, manifest: Manifest) -> Iterator[str]:
    """Read every index, look at the length of every shard, and yield what the manifest says otherwise."""
    shards = ShardSet(manifest, [Place(store, entry) for entry in manifest.shards], name=store.folder)
    totals = Totals()
    for number, entry in enumerate(manifest.shards):
        index = shards.index(number, keep=False)
        shards.fetch(number, [])
        if (index.shard, index.shard_xxh3) != (entry.name, entry.xxh3):
            yield f"the index of {entry.name} is for {index.shard} with XXH3-128 {index.shard_xxh3}"
        totals.add(index)
    yield from totals.contradictions(manifest)
    if (unnamed := totals.unnamed_classes(manifest)) is not None:
        yield unnamed


def _write(folder: str, name: str, data: bytes) -> None:
    """Write the manifest; before it the card, which has the class names too."""
    place, its_card = parse_destination(folder), card(manifests.from_json(data)) if name == MANIFEST_NAME else None
    if isinstance(place, str):
        bucket = Bucket(place)
        if its_card is not None:
            publish_card(bucket, its_card)
        bucket.write(name, data)
        return
    try:
        if its_card is not None:
            commit_card(place, its_card)
        commit_bytes(place / name, data)
    except OSError as error:
        raise DestinationError(
            f"cannot write {place / name}: {error.strerror}; check the folder, then try again"
        ) from error
