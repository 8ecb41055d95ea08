"""Images at URLs."""

from __future__ import annotations

import os
import re
from dataclasses import replace

from wds_tools.errors import SourceError, StoreError, WdsToolsError
from wds_tools.lru_cache import LRUCache
from wds_tools.options import RemoteOptions
from wds_tools.sources.base import SourceStoreError
from wds_tools.storage import split_folder
from wds_tools.storage.base import MAX_FILE_BYTES
from wds_tools.storage.requests.clients import Client, open_client
from wds_tools.storage.requests.failures import clean_url
from wds_tools.storage.requests.http_client import quote_again
from wds_tools.storage.requests.remote_folder import RemoteFolder

URL_BYTES = 150_000
"""Estimated length of an image at a URL. Requesting the real length would take as long as reading it."""

_clients = LRUCache[str, Client](max_items=16)
"""Clients of recently used folders in this process, so that their connections are used again."""


def fetch(url: str, remote: RemoteOptions) -> bytes:
    """Read the bytes at a URL; failed requests are repeated for `RemoteOptions.retry_seconds`.

    Raises:
        SourceError: There is no such file, or the URL is not supported.
        SourceStoreError: The storage fails.
    """
    if "::" in url:
        raise SourceError(f"URL {url!r} is a chain of file systems; allowed are plain URLs")
    shown = clean_url(url)
    try:
        folder, name = _split(url, remote)
        return _client(folder).read(name, most_bytes=MAX_FILE_BYTES)
    except FileNotFoundError as error:
        raise SourceError(f"URL {shown!r} does not exist") from error
    except StoreError as error:
        raise SourceStoreError(f"URL {shown!r} cannot be read: {error}") from error
    except WdsToolsError as error:
        raise SourceError(f"URL {shown!r} cannot be read: {error}") from error


def _split(url: str, remote: RemoteOptions) -> tuple[RemoteFolder, str]:
    """Return folder and name of a URL. An HTTP URL is percent-encoded, and may have a query."""
    match = re.fullmatch(r"(?is)(https?://[^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", url)
    if not match:
        folder, name = split_folder(url)
        return RemoteFolder.of(folder, remote), name
    folder, name = split_folder(match[1] + quote_again(match[2]))
    found = RemoteFolder.of(folder, remote)
    return replace(found, options={**found.options, "encoded": True}), name + quote_again(match[3] or "")


def _client(folder: RemoteFolder) -> Client:
    key = f"{os.getpid()} {folder.url} {folder.policy} {sorted(folder.options.items(), key=str)}"
    client = _clients.get(key)
    if client is None:
        client = open_client(folder)
        _clients.put(key, client)
    return client
