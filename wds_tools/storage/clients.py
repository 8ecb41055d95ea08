"""`open_client`: the client for a URL."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from wds_tools.storage.client_base import Client, Part, RequestCounts
from wds_tools.storage.fsspec_client import FsspecClient
from wds_tools.storage.http_client import HttpClient
from wds_tools.storage.retry import RetryPolicy

__all__ = ["Client", "Part", "RequestCounts", "open_client"]


def open_client(
    url: str,
    storage_options: Mapping[str, Any] | None = None,
    policy: RetryPolicy | None = None,
    *,
    stop: threading.Event | None = None,
) -> Client:
    """Return a client for the objects below a URL. No request is sent yet.

    Args:
        url: URL of a folder.
        storage_options: Options of the storage, by fsspec's names.
        policy: When a request is repeated; default: `RetryPolicy()`.
        stop: Ends requests that wait for another attempt; `Client.close` sets it.

    Raises:
        OptionError: An option is unknown or invalid.
        StoreError: A required package is not installed.
    """
    options, policy = storage_options or {}, policy or RetryPolicy()
    scheme = url.partition("://")[0].lower()
    if scheme in {"http", "https"}:
        return HttpClient(url, options, policy, stop=stop)
    return FsspecClient(url, options, policy, stop=stop)
