"""What names a dataset: a folder, its manifest, a pattern of shards, or a list of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from wds_tools.errors import NotADatasetError, OptionError
from wds_tools.format.manifest import MANIFEST_NAME
from wds_tools.storage import is_url, join, split_folder
from wds_tools.storage.patterns import expand_pattern, has_pattern
from wds_tools.storage.requests.failures import clean_url
from wds_tools.wording import broken_url_remedy, first_few

Dataset = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A folder or URL with a manifest, the manifest itself, a pattern of indexed shards, or a list of such shards."""


def is_pattern(name: str) -> bool:
    """Return whether a dataset is given by its shards, not by its folder or manifest."""
    return not _is_folder(name) and (has_pattern(name) or name.endswith(".tar"))


def split_manifest(name: str) -> tuple[str, str]:
    """Split the path or URL of a dataset's folder or manifest into folder and file name of the manifest."""
    return split_folder(name) if name.endswith(".json") and not _is_folder(name) else (name, MANIFEST_NAME)


def listed_shards(names: Sequence[str]) -> list[str]:
    """Return the shards of a list of shards and patterns."""
    if not names:
        raise NotADatasetError("the list of shards is empty: check the path or pattern that it was made of")
    for name in names:
        if not is_pattern(name):
            raise OptionError(
                f"{name} is in a list of shards, but is neither a .tar file nor a pattern: give the folder of one "
                "dataset without a list; read several datasets with wds_tools.Mixture(['a', 'b'], weights=[1, 1]), or "
                "join them with wds_tools.merge"
            )
    return [url for name in names for url in expand_pattern(name)]


def name_of_list(names: Sequence[str]) -> str:
    """Return the name of a list of shards for messages."""
    return names[0] if len(names) == 1 else f"{names[0]} ... {names[-1]}"


def _is_folder(name: str) -> bool:
    """Return whether this is an existing local folder; its name may contain characters of patterns."""
    return not is_url(name) and os.path.isdir(name)  # noqa: PTH112 - Path would normalize the string


def why_not_a_dataset(name: str, folder: str, manifest_name: str) -> str:
    """Return why a name is not a dataset, and what to do."""
    if is_url(name):
        return (
            f"{name} has no {manifest_name}; pass the folder that `wds-tools pack` or `wds-tools index` wrote"
            f"{_place_in_service(folder)}"
        )
    if not os.path.isdir(folder):  # noqa: PTH112 - Path would normalize the string
        if remedy := broken_url_remedy(name):
            return remedy
        near = _datasets_in(str(Path(folder).parent), manifest_name)
        there = f", such as one next to it: {first_few(near)}" if near else ""
        return f"{folder}: no such folder; pass the folder that `wds-tools pack` wrote{there}"
    if any(entry.endswith(".tar") for entry in os.listdir(folder)):  # noqa: PTH208
        return (
            f"{folder} contains tar files but no {manifest_name}: "
            f"index them once with `wds-tools index '{folder.rstrip('/')}/*.tar'`"
        )
    if splits := _datasets_in(folder, manifest_name):
        return (
            f"{folder} is not one dataset: it holds the {'dataset' if len(splits) == 1 else 'datasets'} "
            f"{first_few(splits)}; name one of them, such as {join(folder, splits[0])}"
        )
    return f"{folder} is not a packed dataset (no {manifest_name}): pack it with `wds-tools pack {folder} DST`"


def _datasets_in(folder: str, manifest_name: str) -> list[str]:
    """Return the names of the datasets in a folder, sorted."""
    return sorted(path.parent.name for path in Path(folder).glob(f"*/{manifest_name}"))


def _place_in_service(folder: str) -> str:
    """Return where `wds-tools serve` would have a dataset at another URL of the same server; "" for other URLs."""
    url = urlsplit(clean_url(folder))
    path = url.path.strip("/")
    if url.scheme not in ("http", "https") or path.startswith("data/"):
        return ""
    name = path.removeprefix("datasets/") or "NAME"  # the page of a dataset is at /datasets/NAME
    return f"; with `wds-tools serve`, it is at {url.scheme}://{url.netloc}/data/{name}"
