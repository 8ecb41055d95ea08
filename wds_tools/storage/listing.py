"""Lists of objects at URLs, through fsspec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import fsspec

from wds_tools.errors import StoreError
from wds_tools.options import RemoteOptions
from wds_tools.storage.schemes import options_for
from wds_tools.storage_options import cause_without_secrets, redacted, secrets_of

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """An object at a URL.

    Attributes:
        url: Its URL.
        size: Length in bytes.
        version: Text that changes with the content, such as an ETag; empty if the storage has none.
    """

    url: str
    size: int
    version: str

    @property
    def name(self) -> str:
        """Last component of the URL."""
        return self.url.rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The name without its extension."""
        return self.name.rpartition(".")[0] or self.name

    def __str__(self) -> str:
        return self.url


def list_objects(url: str, remote: RemoteOptions) -> dict[str, RemoteFile]:
    """Return all objects below a URL, by their path relative to it; none if it does not exist.

    Raises:
        StoreError: The storage fails, or cannot list objects, as most HTTP servers.
    """

    def find(system: Any, root: str) -> dict[str, RemoteFile]:
        root = root.rstrip("/")
        found = system.find(root, detail=True)
        paths = {name.removeprefix(root).lstrip("/"): info for name, info in found.items() if name != root}
        return {path: _file(f"{url.rstrip('/')}/{path}", info) for path, info in paths.items()}

    try:
        return _request(url, remote, find)
    except FileNotFoundError:
        return {}


def find_object(url: str, remote: RemoteOptions) -> RemoteFile:
    """Return one object.

    Raises:
        FileNotFoundError: There is none.
        StoreError: The storage fails.
    """
    return _request(url, remote, lambda system, path: _file(url, system.info(path)))


def _file(url: str, info: Mapping[str, Any]) -> RemoteFile:
    version = info.get("ETag") or info.get("etag") or info.get("LastModified") or info.get("mtime") or ""
    return RemoteFile(url, int(info.get("size") or 0), str(version))


def _request(url: str, remote: RemoteOptions, request: Callable[[Any, str], _Result]) -> _Result:
    options = remote.storage_options
    try:
        system, path = fsspec.core.url_to_fs(url, skip_instance_cache=True, **options_for(url, options))
        return request(system, path)
    except FileNotFoundError:
        raise FileNotFoundError(f"{url} does not exist") from None
    except ImportError as error:
        scheme = url.partition("://")[0]
        raise StoreError(
            f"{scheme}:// needs a package that is not installed: {error}; try `pip install 'wds-tools[{scheme}]'`"
        ) from error
    except Exception as error:  # each backend of fsspec has its own errors
        secrets = secrets_of(options, url)
        reason = redacted(f"{url}: {type(error).__name__}: {error}".partition("?")[0], secrets)
        raise StoreError(reason) from cause_without_secrets(error, secrets)
