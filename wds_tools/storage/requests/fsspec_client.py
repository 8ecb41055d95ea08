"""A client for every URL that fsspec supports, such as ``memory://``, ``hf://`` and ``sftp://``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import fsspec.asyn

from wds_tools.errors import OptionError, StoreError
from wds_tools.storage.requests.client_base import BaseClient, Part, Partial
from wds_tools.storage.requests.failures import Failure, clean_url, failure_of
from wds_tools.storage.requests.remote_folder import RemoteFolder

os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)  # newer versions of fsspec do this themselves

PACKAGES = {
    **dict.fromkeys(("http", "https"), "wds-tools[http]"),
    **dict.fromkeys(("s3", "s3a"), "wds-tools[s3]"),
    **dict.fromkeys(("gs", "gcs"), "wds-tools[gs]"),
    **dict.fromkeys(("abfs", "abfss", "az"), "wds-tools[az]"),
    "hf": "huggingface_hub",
    "hdfs": "pyarrow",
    "sftp": "paramiko",
    "ssh": "paramiko",
}


class FsspecClient(BaseClient):
    """Requests through fsspec's `cat_file`.

    fsspec returns neither the length nor the ETag of an object with its bytes. Both are requested once per object,
    before its first range is read.

    Args:
        folder: The folder; its options are arguments of the file system. The file system sets the time limits of
            connections.

    Raises:
        OptionError: The file system does not accept the URL or the options.
        StoreError: A required package is not installed.
    """

    def __init__(self, folder: RemoteFolder) -> None:
        super().__init__(folder)
        self._system, self._root = connect(folder)

    def _read(self, path: str, most_bytes: int, partial: Partial) -> bytes:  # noqa: ARG002 - not continued
        data = bytes(self._system.cat_file(self._path(path), start=0, end=most_bytes + 1))
        if len(data) > most_bytes:
            self._raise_too_large(path, len(data), most_bytes)
        return data

    def _fill(self, path: str, part: Part, total_bytes: int | None) -> None:
        recorded = self._versions.get(path)
        if recorded is None:
            info = self._system.info(self._path(path))
            tag = info.get("ETag") or info.get("etag") or ""
            self._check_version(path, str(tag), info.get("size"), total_bytes)
        else:
            self._check_version(path, None, recorded[1], total_bytes)
        data = self._system.cat_file(self._path(path), start=part.position, end=part.stop)
        if len(data) > part.stop - part.position:
            raise Failure(
                f"{len(data):,} bytes arrived instead of {part.stop - part.position:,}",
                retry=False,
                remedy="check that the server supports range requests",
            )
        part.add(data)

    def _list(self, folder: str) -> Sequence[str]:
        self._system.invalidate_cache()
        entries = self._system.ls(self._path(folder), detail=True)
        return [entry["name"].rpartition("/")[2] for entry in entries if entry["type"] == "file"]

    def _path(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}" if path else self._root


def connect(folder: RemoteFolder) -> tuple[Any, str]:
    """Return fsspec's file system for a folder or an object, which no other code shares, and the path in it.

    Raises:
        OptionError: The file system does not accept the URL or the options.
        StoreError: A required package is not installed, or the storage fails.
    """
    url, secrets = folder.url, folder.secrets
    scheme = url.partition("://")[0]
    try:
        # Not an instance that fsspec shares: that one may return outdated listings, and may come from before a fork.
        system, root = fsspec.core.url_to_fs(url, skip_instance_cache=True, **folder.options)
    except ImportError as error:
        package = PACKAGES.get(scheme)
        remedy = f"try `pip install '{package}'`" if package else "install it, then start again"
        failed: Exception = StoreError(f"{scheme}:// needs a package that is not installed: {error}; {remedy}")
    except (TypeError, ValueError) as error:
        reason = failure_of(error, secrets).reason
        if not _schemes(url) <= {*fsspec.available_protocols(), *fsspec.registry}:
            failed = StoreError(f"{clean_url(url)}: {reason}; allowed are s3://, gs:// and other schemes of fsspec")
        else:
            names = ", ".join(sorted(folder.options)) or "none"
            failed = OptionError(
                f"{clean_url(url)}: {reason}; check the storage options (given: {names}) against the file system"
            )
    except Exception as error:  # each file system has its own errors
        failed = StoreError(f"{clean_url(url)}: {failure_of(error, secrets).reason}")
    else:
        return system, str(root)
    raise failed


def _schemes(url: str) -> set[str]:
    """Return the schemes of a URL: several, if one file system is used through another."""
    return {part.partition("://")[0] for part in url.split("::")}
