"""Access to the files of a folder: a local one, or any URL that fsspec supports."""

from __future__ import annotations

from wds_tools.options import RemoteOptions
from wds_tools.storage.base import Block, Extent, FetchStatistics, Range, Store, StoredFile, whole_file
from wds_tools.storage.local import LocalStore

__all__ = [
    "Block",
    "Extent",
    "FetchStatistics",
    "Range",
    "Store",
    "StoredFile",
    "is_url",
    "join",
    "open_store",
    "split_folder",
    "whole_file",
]


def is_url(spec: str) -> bool:
    """Return True for a URL and False for a local path.

    >>> is_url("s3://bucket/train"), is_url("shards/photos")
    (True, False)
    """
    return "://" in spec


def split_folder(spec: str) -> tuple[str, str]:
    """Split a path or URL into its folder and its last component.

    >>> split_folder("s3://bucket/train/a.tar"), split_folder("a.tar")
    (('s3://bucket/train', 'a.tar'), ('.', 'a.tar'))
    """
    folder, slash, name = spec.rpartition("/")
    return (folder or "/" if slash else "."), name


def join(folder: str, name: str) -> str:
    """Return the path or URL of a file in a folder."""
    return f"{folder.rstrip('/')}/{name}"


def open_store(folder: str, *, remote: RemoteOptions, for_training: bool = False) -> Store:
    """Return a store for a folder; nothing is read yet.

    Args:
        folder: Local path, or URL.
        remote: How URLs are read; not used for ``file://``.
        for_training: Fetch from a URL in a separate process, which all processes that read the same folder share.
    """
    if folder.startswith("file://"):
        folder = folder.removeprefix("file://")
    if not is_url(folder):
        return LocalStore(folder)
    from wds_tools.storage.cache.remote import RemoteStore  # noqa: PLC0415 - loads fsspec and the clients of HTTP and S3

    return RemoteStore(folder, remote=remote, for_training=for_training)
