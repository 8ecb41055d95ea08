"""A folder of images at a URL: listed with one request per 1,000 objects, and read with one request per image."""

from __future__ import annotations

import os
from functools import cached_property

from wds_tools.errors import StoreError
from wds_tools.options import RemoteOptions
from wds_tools.sources.base import Input, LazySource, Listing, Record, Skip, SourceStoreError, check_size
from wds_tools.sources.image_tree import NOT_AN_IMAGE, ImageFile, is_image_name, list_tree, path_bytes
from wds_tools.sources.remote_files import stamp_remote_files
from wds_tools.storage.base import MAX_FILE_BYTES
from wds_tools.storage.clients import Client, open_client
from wds_tools.storage.failures import clean_url
from wds_tools.storage.listing import RemoteFile, list_objects
from wds_tools.storage.retry import RetryPolicy
from wds_tools.storage.schemes import options_for


class RemoteFolderSource(LazySource):
    """Images below a URL, labelled as in `FolderSource`.

    Args:
        url: URL of the folder; names that start with a dot are ignored.
        classes: Names of the class folders, by number; None numbers those with images in sorted order.
        remote: How URLs are read.
    """

    kind = "folder"

    def __init__(self, url: str, classes: tuple[str, ...] | None, remote: RemoteOptions) -> None:
        self.url = url.rstrip("/")
        self.classes = classes
        self.remote = remote

    def scan(self) -> Listing:
        """List all images and their sizes.

        Raises:
            SourceError: There are no images, or ``classes`` lacks the name of a class folder.
            StoreError: The storage fails.
        """
        files: list[ImageFile] = []
        found: list[RemoteFile] = []
        skipped: list[Skip] = []
        for path, file in sorted(list_objects(self.url, self.remote).items()):
            if any(part.startswith(".") for part in path.split("/")):
                continue
            if is_image_name(path):
                files.append((path_bytes(path), file.size, ()))
                found.append(file)
            else:
                skipped.append(Skip(path, NOT_AN_IMAGE))
        return list_tree(clean_url(self.url), files, skipped, self.classes, stamp_remote_files(found))

    def read(self, entry: Input) -> Record:
        """Read an object.

        Raises:
            SourceStoreError: It is missing, or the storage fails.
            SourceChangedError: It has changed its size since it was listed.
        """
        try:
            data = self._client().read(entry.path, most_bytes=MAX_FILE_BYTES)
        except FileNotFoundError as error:
            raise SourceStoreError(f"{self._shown(entry)} was removed while it was packed") from error
        except StoreError as error:
            raise SourceStoreError(str(error)) from error
        check_size(self._shown(entry), len(data), entry.size)
        return Record(data)

    def _shown(self, entry: Input) -> str:
        return clean_url(f"{self.url}/{entry.path}")

    def _client(self) -> Client:
        """Return the client of this process."""
        process = os.getpid()
        if process not in self._clients:
            options = options_for(self.url, self.remote.storage_options)
            self._clients[process] = open_client(self.url, options, RetryPolicy(self.remote.retry_seconds))
        return self._clients[process]

    @cached_property
    def _clients(self) -> dict[int, Client]:
        return {}
