"""`open_client`: the client for a URL."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Mapping
from typing import Any

import fsspec

from wds_tools.storage.requests.client_base import Client, Part, RequestCounts
from wds_tools.storage.requests.failures import clean_url
from wds_tools.storage.requests.fsspec_client import FsspecClient
from wds_tools.storage.requests.http_client import HttpClient
from wds_tools.storage.requests.object_client import ObjectClient, is_usable
from wds_tools.storage.requests.object_options import SCHEMES, UnsupportedOptionError
from wds_tools.storage.requests.retry import RetryPolicy
from wds_tools.storage.requests.s3_client import S3Client

_log = logging.getLogger("wds_tools")
__all__ = ["Client", "Part", "RequestCounts", "open_client"]


def open_client(
    url: str,
    storage_options: Mapping[str, Any] | None = None,
    policy: RetryPolicy | None = None,
    *,
    stop: threading.Event | None = None,
) -> Client:
    """Return a client for the objects below a URL. No object is requested yet.

    ``http://`` and ``https://`` have their own client, which S3 uses too, with URLs that obstore signs. Google and
    Azure are read by obstore. Without obstore, and for every other URL, there is fsspec.

    Args:
        url: URL of a folder.
        storage_options: Options of the storage, by fsspec's names.
        policy: When a request is repeated; default: `RetryPolicy()`.
        stop: Ends requests that wait for another attempt; `Client.close` sets it.

    Raises:
        OptionError: An option is unknown or invalid.
        StoreError: A required package is not installed.
    """
    scheme = url.partition("://")[0].lower()
    policy = policy or RetryPolicy()
    options = dict(storage_options or {})
    if scheme in {"http", "https"}:
        return HttpClient(url, options, policy, stop=stop)
    if scheme in SCHEMES and is_usable():
        for name in {scheme, SCHEMES[scheme]}:  # settings from fsspec's files, and from variables such as FSSPEC_S3_KEY
            options = {**fsspec.config.conf.get(name, {}), **options}
        try:
            signs = SCHEMES[scheme] == "s3" and not options.get("requester_pays")  # a header, which must be signed
            return (S3Client if signs else ObjectClient)(url, options, policy, stop=stop)
        except UnsupportedOptionError as error:
            if not _knows(scheme, options):
                raise
            _log.debug("%s: read through fsspec, because of an %s", clean_url(url), error)
    return FsspecClient(url, options, policy, stop=stop)


def _knows(scheme: str, options: Mapping[str, Any]) -> bool:
    """Return whether fsspec's file system is installed and has parameters of these names."""
    try:
        parameters = inspect.signature(fsspec.get_filesystem_class(scheme).__init__).parameters
    except (ImportError, ValueError):
        return False
    return set(options) <= set(parameters)
