"""Images at URLs, read through fsspec."""

from __future__ import annotations

import os
import time

from wds_tools.errors import SourceError, WdsToolsError
from wds_tools.lru_cache import LRUCache
from wds_tools.options import RemoteOptions
from wds_tools.storage import Store, open_store, split_folder

URL_BYTES = 150_000
"""Estimated length of an image at a URL. To request the real length would take as long as to read it."""

_ATTEMPTS = 3


_stores = LRUCache[str, Store](max_items=16)
"""Recently used folders of this process, so that their connections are used again."""


def fetch(url: str, remote: RemoteOptions) -> bytes:
    """Read the bytes at a URL; errors that may be temporary are retried.

    Raises:
        SourceError: There is no such file, or the server cannot be reached.
    """
    if "::" in url:
        raise SourceError(f"URL {url!r} is a chain of file systems; allowed are plain URLs")
    folder, name = split_folder(url)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _open(folder, remote).read(name)
        except FileNotFoundError as error:
            raise SourceError(f"URL {url!r} does not exist") from error
        except WdsToolsError as error:
            if attempt == _ATTEMPTS:
                raise SourceError(f"URL {url!r} cannot be read: {error}") from error
            time.sleep(attempt)
    raise AssertionError("every attempt returns or raises")


def _open(folder: str, remote: RemoteOptions) -> Store:
    key = f"{os.getpid()} {folder} {remote} {sorted(remote.storage_options.items(), key=str)}"
    store = _stores.get(key)
    if store is None:
        store = open_store(folder, remote=remote)
        _stores.put(key, store)
    return store
