"""The folder of a dataset, local or at a URL, to which single files are written: indexes, manifest, card."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from wds_tools.errors import WdsToolsError
from wds_tools.options import RemoteOptions
from wds_tools.packing.card import commit_card
from wds_tools.packing.remote_destination import parse_destination, publish_card
from wds_tools.storage.commit import commit_bytes
from wds_tools.storage.upload import Bucket


class LocalFolder:
    """A local folder."""

    def __init__(self, folder: Path) -> None:
        self.name = str(folder)
        self.folder = folder

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it does not exist."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        """Write a file; it appears complete, or not at all."""
        (self.folder / name).parent.mkdir(exist_ok=True)
        commit_bytes(self.folder / name, data)

    def write_card(self, data: bytes) -> None:
        """Write the dataset card, unless a user wrote or edited the README.md."""
        commit_card(self.folder, data)

    def put(self, path: Path, name: str) -> None:
        """Move a local file here."""
        path.replace(self.folder / name)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, if they exist; errors are ignored, because the caller raises the first one."""
        for name in names:
            with suppress(OSError):  # such as a read-only folder
                (self.folder / name).unlink(missing_ok=True)


class BucketFolder:
    """A folder at a URL, with the methods of `LocalFolder`."""

    folder = None

    def __init__(self, url: str, remote: RemoteOptions) -> None:
        self.bucket = Bucket(url, remote=remote)
        self.name = self.bucket.url

    def read(self, name: str) -> bytes | None:
        """Return the content of an object."""
        return self.bucket.read(name)

    def write(self, name: str, data: bytes) -> None:
        """Write an object."""
        self.bucket.write(name, data)

    def write_card(self, data: bytes) -> None:
        """Write the dataset card."""
        publish_card(self.bucket, data)

    def put(self, path: Path, name: str) -> None:
        """Upload a local file."""
        self.bucket.put(path, name)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects."""
        with suppress(WdsToolsError):
            self.bucket.remove(names)


def open_folder(name: str, remote: RemoteOptions) -> LocalFolder | BucketFolder:
    """Return the folder with a path or URL."""
    location = parse_destination(name)
    return BucketFolder(location, remote) if isinstance(location, str) else LocalFolder(location)
