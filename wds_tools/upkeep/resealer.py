"""`reseal()`: writes a new checksum into a manifest that was edited on purpose or has an older version."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wds_tools.errors import ManifestError, NotADatasetError, OptionError
from wds_tools.format import manifest as manifests
from wds_tools.format.manifest import MANIFEST_NAME, Manifest
from wds_tools.format.totals import Totals
from wds_tools.options import RemoteOptions
from wds_tools.packing.card import card
from wds_tools.packing.output_folder import open_folder
from wds_tools.reading.locations import ShardLocation
from wds_tools.reading.names import is_pattern, split_manifest, why_not_a_dataset
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage import Store, is_url, join, open_store
from wds_tools.storage.commit import write_errors
from wds_tools.terminal import phase_bar


@dataclass(frozen=True, slots=True)
class ResealReport:
    """The result of `reseal`.

    Attributes:
        path: Path or URL of the manifest.
        manifest: The manifest with its new checksum.
        before: State before the call. ``"sealed"``: the checksum was right, and nothing was
            written; ``"edited"``: the checksum was wrong or not in the last line; ``"unsealed"``:
            version 1, which has no checksum.
    """

    path: str
    manifest: Manifest
    before: str


def reseal(dataset: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None) -> ResealReport:
    """Write a new checksum into a manifest that you edited on purpose, or that has version 1.

    Only the manifest and the dataset card are written, and only if the manifest is valid and agrees
    with the indexes and the lengths of all its shards. Other mistakes, such as wrong class names,
    cannot be detected: check them first.

    Example::

        wds_tools.reseal("shards/photos").before  # 'edited'

    Args:
        dataset: Folder or URL with a manifest, or the manifest itself.
        storage_options: Options for URLs, by the names of fsspec, such as ``{"anon": True}``. They are not saved.

    Returns:
        The state before the call, and the manifest.

    Raises:
        NotADatasetError: There is no manifest.
        OptionError: ``dataset`` is a pattern of shards.
        ManifestError: The manifest is invalid or contradicts its shards; the message states how.
        ChecksumError: An index does not match its checksum in the manifest.
        TruncatedShardError: A shard does not have the length that the manifest states.
        StoreError: A shard or an index is missing, or the storage cannot be read.
        DestinationError: The manifest cannot be written.
    """
    spec = os.fspath(dataset)
    if is_pattern(spec):
        raise OptionError(f"{spec} is a pattern of shards; name the folder of the dataset, or its manifest")
    folder, name = split_manifest(spec)
    if not is_url(folder) and Path(folder).is_file():
        raise NotADatasetError(f"{folder} is a file; name the folder of a dataset, or its manifest")
    remote = RemoteOptions.of(storage_options=storage_options)
    store, path = open_store(folder, remote=remote), join(folder, name)
    try:
        data = store.read(name)
    except (FileNotFoundError, NotADirectoryError):
        raise NotADatasetError(why_not_a_dataset(spec, folder, name)) from None
    values, manifest = manifests.from_unsealed(data, name=path)
    before = _state(data)
    if contradictions := list(_contradictions(store, manifest)):
        raise ManifestError(f"{path} contradicts its shards: {'; '.join(contradictions)}; correct it, then reseal it")
    if before != "sealed":
        data, output = manifests.seal(values).encode(), open_folder(folder, remote)
        with write_errors(folder, "check the folder, then try again"):
            if name == MANIFEST_NAME:
                output.write_card(card(manifests.from_json(data)))  # it has the class names too
            output.write(name, data)
    return ResealReport(path, manifests.from_json(data, name=path), before)


def _state(data: bytes) -> str:
    try:
        return "unsealed" if manifests.from_json(data).checksum is None else "sealed"
    except ManifestError:
        return "edited"


def _contradictions(store: Store, manifest: Manifest) -> Iterator[str]:
    """Compare the manifest with all indexes and the lengths of all shards; yield the differences."""
    shards = ShardSet(manifest, [ShardLocation(store, entry) for entry in manifest.shards], name=store.folder)
    totals = Totals()
    for position, entry in enumerate(phase_bar("reading indexes", manifest.shards)):
        index = shards.index(position, keep=False)
        shards.fetch(position, [])
        if (index.shard, index.shard_xxh3) != (entry.name, entry.xxh3):
            yield f"the index of {entry.name} is for {index.shard} with XXH3-128 {index.shard_xxh3}"
        totals.add(Totals.of(index))
    yield from totals.contradictions(manifest)
    if (unnamed := totals.unnamed_classes(manifest)) is not None:
        yield unnamed
