"""The objects below a URL with their lengths, listed through fsspec under the retry policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from wds_tools.options import RemoteOptions
from wds_tools.storage.requests.failures import clean_url
from wds_tools.storage.requests.fsspec_client import connect
from wds_tools.storage.requests.http_client import with_server_token
from wds_tools.storage.requests.remote_folder import RemoteFolder
from wds_tools.storage.requests.retry import call

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
        return clean_url(self.url)


def list_objects(url: str, remote: RemoteOptions) -> dict[str, RemoteFile]:
    """Return all objects below a URL, by their path relative to it; none if it does not exist.

    Raises:
        StoreError: The storage fails, or, like most HTTP servers, cannot list objects.
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
    """Return ``request(file system, path)``, repeated by the policy of `retry`."""
    folder = RemoteFolder.of(url, remote)
    if url.partition("://")[0].lower() in {"http", "https"}:  # aiohttp drops the token on a redirect to another server
        folder = replace(folder, options=with_server_token(url, folder.options))
    system, path = connect(folder)

    def request_uncached() -> _Result:
        system.invalidate_cache()
        try:
            return request(system, path)
        except FileNotFoundError as error:
            if url.startswith("http") and error.__cause__:  # fsspec raises it for every failed request for a length
                raise error.__cause__ from None
            raise

    passed_on = (FileNotFoundError,)
    try:
        return call(
            folder.policy, request_uncached, url=url, secrets=folder.secrets, passed_on=passed_on, verb="listed"
        )
    except FileNotFoundError:
        raise FileNotFoundError(f"{clean_url(url)} does not exist") from None
