"""A folder of images at a URL: listed with one request per 1,000 objects, and read with one request per image."""

from __future__ import annotations

import os
from functools import cached_property

from wds_tools.errors import StoreError
from wds_tools.sources.base import Collector, Input, Record, Source, SourceOptions, SourceStoreError, check_size
from wds_tools.sources.image_tree import NOT_AN_IMAGE, ImageFile, collect_tree, is_image_name, path_bytes
from wds_tools.sources.remote_files import stamp_remote_files
from wds_tools.storage.base import MAX_FILE_BYTES
from wds_tools.storage.clients import Client, open_client
from wds_tools.storage.failures import clean_url
from wds_tools.storage.listing import RemoteFile, list_objects
from wds_tools.storage.retry import RetryPolicy
from wds_tools.storage.schemes import options_for


class RemoteFolderSource(Source):
    """Images below a URL, labelled as in `FolderSource`; names that start with a dot are ignored."""

    kind = "folder"
    unit = "file"
    roles = ()

    def __init__(self, src: str, options: SourceOptions | None = None) -> None:
        super().__init__(clean_url(src.rstrip("/")), options)
        self.url = src.rstrip("/")
        self.remote = self.options.remote

    def collect(self, found: Collector) -> None:
        """Add all images and their sizes.

        Raises:
            SourceError: There are no images.
            StoreError: The storage fails.
        """
        files: list[ImageFile] = []
        objects: list[RemoteFile] = []
        for path, file in sorted(list_objects(self.url, self.remote).items()):
            if any(part.startswith(".") for part in path.split("/")):
                continue
            if is_image_name(path):
                files.append((path_bytes(path), file.size, ()))
                objects.append(file)
            else:
                found.account.given += 1
                found.skip(path, NOT_AN_IMAGE)
        found.stamp = stamp_remote_files(objects)
        collect_tree(found, files)

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
