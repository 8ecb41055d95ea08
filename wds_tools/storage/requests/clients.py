"""`open_client`: the client for a URL."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import fsspec

from wds_tools.storage.requests.client_base import Client, Part, RequestCounts
from wds_tools.storage.requests.failures import clean_url
from wds_tools.storage.requests.fsspec_client import FsspecClient
from wds_tools.storage.requests.http_client import HttpClient
from wds_tools.storage.requests.object_client import ObjectClient, is_usable
from wds_tools.storage.requests.object_options import SCHEMES, UnsupportedOptionError
from wds_tools.storage.requests.remote_folder import RemoteFolder
from wds_tools.storage.requests.s3_client import S3Client

_log = logging.getLogger("wds_tools")
__all__ = ["Client", "Part", "RequestCounts", "open_client"]


def open_client(folder: RemoteFolder) -> Client:
    """Return a client for the objects in a folder. No object is requested yet.

    ``http://`` and ``https://`` have their own client, which S3 uses too, with URLs that obstore signs. Google and
    Azure are read by obstore. Without obstore, and for every other URL, there is fsspec.

    Raises:
        OptionError: An option is unknown or invalid.
        StoreError: A required package is not installed.
    """
    scheme = folder.url.partition("://")[0].lower()
    if scheme in {"http", "https"}:
        return HttpClient(folder)
    if scheme in SCHEMES and is_usable():
        for name in {scheme, SCHEMES[scheme]}:  # settings from fsspec's files, and from variables such as FSSPEC_S3_KEY
            folder = replace(folder, options={**fsspec.config.conf.get(name, {}), **folder.options})
        try:
            signs = SCHEMES[scheme] == "s3" and not folder.options.get("requester_pays")  # a header, to be signed
            return (S3Client if signs else ObjectClient)(folder)
        except UnsupportedOptionError as error:
            if not _knows(scheme, folder.options):
                raise
            _log.debug("%s: read through fsspec, because of an %s", clean_url(folder.url), error)
    return FsspecClient(folder)


def _knows(scheme: str, options: Mapping[str, Any]) -> bool:
    """Return whether fsspec's file system is installed and has parameters of these names."""
    try:
        parameters = inspect.signature(fsspec.get_filesystem_class(scheme).__init__).parameters
    except (ImportError, ValueError):
        return False
    return set(options) <= set(parameters)
