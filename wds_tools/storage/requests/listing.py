"""The objects below a URL with their lengths, listed through fsspec under the retry policy."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from wds_tools.errors import MissingSourceError
from wds_tools.options import RemoteOptions
from wds_tools.storage.requests.failures import clean_url
from wds_tools.storage.requests.fsspec_client import connect
from wds_tools.storage.requests.http_client import with_server_token
from wds_tools.storage.requests.remote_folder import RemoteFolder
from wds_tools.storage.requests.retry import call

LISTS = 32
"""Folders of a bucket that are listed at the same time."""

_BY_PREFIX = {"s3", "s3a", "memory"}  # a listing of a folder is one request, and several may run in threads
_BUCKETS = dict.fromkeys(["s3", "s3a", "gs", "gcs"], "bucket") | dict.fromkeys(["abfs", "abfss", "az"], "container")
_LEVELS = 3  # of folders that are listed to find enough of them
_MOST_FOLDERS = 20_000
_MOST_LISTINGS = 2 * LISTS  # of folders, in memory at the same time
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


class Listed(NamedTuple):
    """An object of a listing.

    Attributes:
        path: Path below the URL that was listed.
        size: Length in bytes.
        version: As in `RemoteFile`.
    """

    path: str
    size: int
    version: str


def list_objects(url: str, remote: RemoteOptions) -> dict[str, RemoteFile]:
    """Return all objects below a URL, by their path relative to it; none if it does not exist.

    Raises:
        StoreError: The storage fails, or, like most HTTP servers, cannot list objects.
    """
    root = url.rstrip("/")
    return {item.path: RemoteFile(f"{root}/{item.path}", item.size, item.version) for item in each_object(url, remote)}


def each_object(url: str, remote: RemoteOptions) -> Iterator[Listed]:
    """Yield all objects below a URL, in any order, some of them twice; none if it does not exist.

    Raises:
        StoreError: The storage fails, or, like most HTTP servers, cannot list objects.
    """
    lister = _Lister(url, remote)
    folders, objects = [""], list[Listed]()
    if url.partition("://")[0].lower() in _BY_PREFIX:
        folders, objects = _divided(lister)
    yield from objects
    with ThreadPoolExecutor(LISTS) as pool:
        listings = deque[Future[list[Listed]]]()
        for folder in folders:
            if len(listings) == _MOST_LISTINGS:
                yield from listings.popleft().result()
            listings.append(pool.submit(lister.find, folder))
        while listings:
            yield from listings.popleft().result()


def check_bucket(url: str, remote: RemoteOptions) -> None:
    """Check that the bucket of a URL exists, below which nothing was found.

    Raises:
        MissingSourceError: There is none.
    """
    kind = _BUCKETS.get(url.partition("://")[0].lower())
    if kind is None:
        return
    system, root = connect(RemoteFolder.of(url, remote))
    bucket = root.lstrip("/").partition("/")[0]
    if not system.exists(bucket):
        raise MissingSourceError(
            f"{clean_url(url)} does not exist: there is no {kind} {bucket!r}, or these credentials cannot see it; "
            f"check the name of the {kind}, the endpoint and the credentials"
        )


def check_not_empty(objects: Sized, url: str, remote: RemoteOptions) -> None:
    """Check that there are objects below a URL.

    Raises:
        MissingSourceError: There are none.
    """
    if not objects:
        check_bucket(url, remote)
        raise MissingSourceError(f"{clean_url(url)} does not exist or is empty: check the URL")


def _divided(lister: _Lister) -> tuple[list[str], list[Listed]]:
    """Return folders that are worth a separate request, and the objects next to them.

    A listing of all objects returns them page by page, one request after another; those of folders run side by side.
    """
    folders, objects = [""], list[Listed]()
    for _level in range(_LEVELS):
        with ThreadPoolExecutor(LISTS) as pool:
            levels = list(pool.map(lister.level, folders))
        inner = [folder for folders_in, _ in levels for folder in folders_in]
        if len(inner) > _MOST_FOLDERS:  # they probably have few objects each
            return folders, objects
        for _, files in levels:
            objects += files
        folders = inner
        if not folders or len(folders) >= LISTS:
            break
    return folders, objects


class _Lister:
    """Lists folders below a URL. Several threads may use it.

    Args:
        remote: How URLs are read.
    """

    def __init__(self, url: str, remote: RemoteOptions) -> None:
        self._url = url
        self._request = _requests(url, remote)

    def level(self, folder: str) -> tuple[list[str], list[Listed]]:
        """Return the folders in a folder, and its own objects."""

        def look(system: Any, root: str) -> tuple[list[str], list[Listed]]:
            root = root.rstrip("/")
            listed = [entry for entry in system.ls(_join(root, folder), detail=True) if entry["name"] != root]
            named = [(_below(root, entry["name"]), entry) for entry in listed]  # a name may be an object and a folder
            folders = [path for path, entry in named if entry["type"] == "directory" and path != folder]
            return folders, [_listed(path, entry) for path, entry in named if entry["type"] != "directory"]

        try:
            return self._request(look)
        except FileNotFoundError:
            return [], []

    def find(self, folder: str) -> list[Listed]:
        """Return all objects below a folder."""

        def find(system: Any, root: str) -> list[Listed]:
            root = root.rstrip("/")
            infos = system.find(_join(root, folder), detail=True)
            return [_listed(_below(root, name), info) for name, info in infos.items() if name != root]

        try:
            return self._request(find)
        except FileNotFoundError:
            return []


def _join(root: str, folder: str) -> str:
    return f"{root}/{folder}" if folder else root


def _below(root: str, name: str) -> str:
    return name.removeprefix(root).lstrip("/")


def find_object(url: str, remote: RemoteOptions) -> RemoteFile:
    """Return one object.

    Raises:
        FileNotFoundError: There is none.
        StoreError: The storage fails.
    """
    return _requests(url, remote)(lambda system, path: RemoteFile(*_listed(url, system.info(path))))


def _listed(path: str, info: Mapping[str, Any]) -> Listed:
    version = info.get("ETag") or info.get("etag") or info.get("LastModified") or info.get("mtime") or ""
    return Listed(path, int(info.get("size") or 0), str(version))


def _requests(url: str, remote: RemoteOptions) -> Callable[[Callable[[Any, str], _Result]], _Result]:
    """Return a function that returns ``request(file system, path)``, repeated by the policy of `retry`."""
    folder = RemoteFolder.of(url, remote)
    if url.partition("://")[0].lower() in {"http", "https"}:  # aiohttp drops the token on a redirect to another server
        folder = replace(folder, options=with_server_token(url, folder.options))
    system, path = connect(folder)

    def repeated(request: Callable[[Any, str], _Result]) -> _Result:
        def request_uncached() -> _Result:
            system.invalidate_cache()
            try:
                return request(system, path)
            except FileNotFoundError as error:
                if url.startswith("http") and error.__cause__:  # fsspec raises it for each failed request for a length
                    raise error.__cause__ from None
                raise

        passed_on = (FileNotFoundError,)
        try:
            return call(
                folder.policy, request_uncached, url=url, secrets=folder.secrets, passed_on=passed_on, verb="listed"
            )
        except FileNotFoundError:
            raise FileNotFoundError(f"{clean_url(url)} does not exist") from None

    return repeated
