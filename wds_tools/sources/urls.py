"""Images at URLs."""

from __future__ import annotations

import os
import re
from typing import Any

from wds_tools.errors import SourceError, StoreError, WdsToolsError
from wds_tools.lru_cache import LRUCache
from wds_tools.options import RemoteOptions
from wds_tools.sources.base import SourceStoreError
from wds_tools.storage import split_folder
from wds_tools.storage.base import MAX_FILE_BYTES
from wds_tools.storage.requests.clients import Client, open_client
from wds_tools.storage.requests.failures import clean_url
from wds_tools.storage.requests.http_client import quote_again
from wds_tools.storage.requests.retry import RetryPolicy
from wds_tools.storage.requests.schemes import options_for

URL_BYTES = 150_000
"""Estimated length of an image at a URL. To request the real length would take as long as to read it."""

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
        folder, name, options = _split(url, remote)
        return _client(folder, options, remote.retry_seconds).read(name, most_bytes=MAX_FILE_BYTES)
    except FileNotFoundError as error:
        raise SourceError(f"URL {shown!r} does not exist") from error
    except StoreError as error:
        raise SourceStoreError(f"URL {shown!r} cannot be read: {error}") from error
    except WdsToolsError as error:
        raise SourceError(f"URL {shown!r} cannot be read: {error}") from error


def _split(url: str, remote: RemoteOptions) -> tuple[str, str, dict[str, Any]]:
    """Return folder and name of a URL, and its options. An HTTP URL is percent-encoded, and may have a query."""
    options = options_for(url, remote.storage_options)
    match = re.fullmatch(r"(?is)(https?://[^/?#]*)([^?#]*)(\?[^#]*)?(#.*)?", url)
    if not match:
        return (*split_folder(url), options)
    folder, name = split_folder(match[1] + quote_again(match[2]))
    return folder, name + quote_again(match[3] or ""), {**options, "encoded": True}


def _client(folder: str, options: dict[str, Any], retry_seconds: float) -> Client:
    key = f"{os.getpid()} {folder} {retry_seconds} {sorted(options.items(), key=str)}"
    client = _clients.get(key)
    if client is None:
        client = open_client(folder, options, RetryPolicy(retry_seconds))
        _clients.put(key, client)
    return client
