"""Where the shards of a dataset are, and those with fields that were added later."""

from __future__ import annotations

import os
from dataclasses import dataclass

from wds_tools.errors import NotADatasetError
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, ShardEntry, from_json
from wds_tools.options import RemoteOptions
from wds_tools.storage import Store, is_url, join, open_store
from wds_tools.storage.unfinished import why_unfinished
from wds_tools.wording import broken_url_remedy


@dataclass(frozen=True, slots=True)
class ShardLocation:
    """A shard and the store that has it.

    Attributes:
        store: The store.
        entry: What the manifest records about the shard.
        fields: Names of its fields, if it has fields that were added to another shard; otherwise empty.
        added: Shards with fields of the same samples that were added later.
    """

    store: Store
    entry: ShardEntry
    fields: tuple[str, ...] = ()
    added: tuple[ShardLocation, ...] = ()


def added_shards(
    store: Store, manifest: Manifest, remote: RemoteOptions, *, for_training: bool
) -> dict[str, tuple[ShardLocation, ...]]:
    """Return the shards with fields that were added later, by the name of the shard of their samples.

    Raises:
        NotADatasetError: The folder of an addition is missing, or holds another dataset.
    """
    found: dict[str, tuple[ShardLocation, ...]] = {}
    for addition in manifest.additions:
        folder = join(store.folder, addition.folder)
        other = open_store(folder, remote=remote, for_training=for_training)
        path = join(folder, MANIFEST_NAME)
        try:
            added = from_json(other.read(MANIFEST_NAME), name=path)
        except (FileNotFoundError, NotADirectoryError):
            raise NotADatasetError(
                f"{path} is missing: the fields {', '.join(addition.fields)} were added to this dataset; copy the "
                f"folder, or run `wds-tools add-fields {store.folder} --remove {addition.folder}`"
            ) from None
        if added.fingerprint != addition.fingerprint or added.fields != addition.fields:
            raise NotADatasetError(
                f"{path} is another dataset than the fields that were added to {store.folder}: copy the folder again"
            )
        for entry in added.shards:
            location = ShardLocation(other, entry, tuple(added.fields))
            found[entry.name] = (*found.get(entry.name, ()), location)
    return found


def why_not_a_dataset(name: str, store: Store, manifest_name: str) -> str:
    """Return why a folder without a manifest is not a dataset, and what to do.

    Args:
        name: The folder or manifest as the user gave it.
        store: The folder.
        manifest_name: Name of the manifest that is missing.
    """
    folder = store.folder
    if (reason := why_unfinished(name, store.read)) is not None:
        return reason
    if is_url(name):
        return f"{name} has no {manifest_name}; pass the folder that `wds-tools pack` or `wds-tools index` wrote"
    if not os.path.isdir(folder):  # noqa: PTH112 - Path would normalize the string
        if remedy := broken_url_remedy(name):
            return remedy
        return f"{folder}: no such folder; pass the folder that `wds-tools pack` wrote"
    if any(entry.endswith(".tar") for entry in os.listdir(folder)):  # noqa: PTH208
        return (
            f"{folder} contains tar files but no {manifest_name}: "
            f"index them once with `wds-tools index '{folder.rstrip('/')}/*.tar'`"
        )
    return f"{folder} is not a packed dataset (no {manifest_name}): pack it with `wds-tools pack {folder} DST`"
