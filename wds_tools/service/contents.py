"""The protocol between libraries, which have datasets, and routes, which send their files in pieces; names in URLs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

PREFIX = "/data/"
"""Where the paths of files begin."""


class Descriptor(Protocol):
    """An open file; it stays open at least as long as it is referred to."""

    def fileno(self) -> int:
        """Return the number of the descriptor."""


@dataclass(frozen=True, slots=True)
class FilePiece:
    """A range of an open file that is in memory, so that sending it does not wait for a disk."""

    file: Descriptor
    offset: int
    count: int


Piece = FilePiece | memoryview


class Content(Protocol):
    """One file of a dataset.

    Attributes:
        size: Length in bytes.
        checksum: XXH3-128, 32 hexadecimal digits; the ETag.
    """

    size: int
    checksum: str

    def at_once(self, start: int, stop: int) -> FilePiece | None:
        """Return the bytes ``start`` to ``stop`` as one piece, or None if they have to be read first, or are many."""

    def pieces(self, start: int, stop: int) -> AsyncGenerator[Piece, None]:
        """Return the bytes ``start`` to ``stop`` in order.

        Iterating raises:
            UnavailableError: They cannot be read at present.
            OSError: They cannot be read.
        """


class UnavailableError(Exception):
    """The bytes of a file cannot be read at present; another request may succeed.

    Args:
        message: What is wrong, without paths and secrets.
        retry_seconds: When to try again.
    """

    def __init__(self, message: str, *, retry_seconds: int = 5) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class DamagedFileError(Exception):
    """A file of a dataset is missing, or is not the one that the manifest lists. The message has no paths."""


@dataclass(frozen=True, slots=True)
class Summary:
    """What the catalogue shows of a dataset.

    Attributes:
        name: Its name in URLs.
        version: XXH3-128 of its manifest file.
        details: Values of its entry in the JSON catalogue.
    """

    name: str
    version: str
    details: Mapping[str, Any]


class Library(Protocol):
    """Datasets that are served. All names come from requests; none of them is used as a path."""

    def summaries(self) -> list[Summary]:
        """Return all datasets, sorted by name."""

    def problems(self) -> dict[str, str]:
        """Return the names of datasets with errors, and the error of each."""

    def find(self, dataset: str) -> Summary | None:
        """Return a dataset by its name."""

    async def files(self, dataset: str) -> Mapping[str, int]:
        """Return the names and lengths of the files of a dataset: manifest, shards and indexes; {} if it is unknown.

        Raises:
            DamagedFileError: The manifest cannot be read.
        """

    async def open(self, dataset: str, name: str) -> Content | None:
        """Return a file, or None if there is no such dataset or its manifest does not list the file.

        Raises:
            DamagedFileError: The file is missing, or has a length other than the manifest records.
            UnavailableError: It cannot be read at present.
        """


class Target(NamedTuple):
    """What a request is about.

    Attributes:
        dataset: Name of the dataset, which may not exist.
        file: The part of the dataset: a file, or the number of a sample and a field; "" for the whole dataset.
    """

    dataset: str
    file: str = ""


@lru_cache(maxsize=1024)  # a loader reads a shard in many ranges
def names_of(raw_path: str, *, parts: int = 1) -> Target | None:
    """Return the dataset and the file that a path names, or None if it is not a valid name.

    Args:
        raw_path: The part of the path after the prefix, percent-encoded as it was sent.
        parts: Number of parts after the dataset.

    >>> names_of("imagenet/train/shard-000000.tar"), names_of("photos/")
    (Target(dataset='imagenet/train', file='shard-000000.tar'), Target(dataset='photos', file=''))
    >>> names_of("a%2Fb/c.tar"), names_of("a/../c.tar"), names_of("a.tar")
    (None, None, None)
    """
    try:
        names = [unquote(part, errors="strict") for part in raw_path.split("/")]
    except UnicodeDecodeError:
        return None
    folders, last = names[: len(names) - parts], names[len(names) - parts :]
    if not folders or any(name in ("", ".", "..") for name in folders):
        return None
    if not "".join(names).isprintable() or any("/" in name for name in names):
        return None
    return Target("/".join(folders), "/".join(last))
