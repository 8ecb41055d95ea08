"""The interface between the sources and the packer."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import NotADatasetError, OptionError, SourceError, StoreError
from wds_tools.format.tar import BLOCK, MAX_OCTAL_SIZE, member_bytes, padded
from wds_tools.wording import one_line

MAX_RECORD_BYTES = 1 << 30
"""Limit for one record of a container. A larger one is refused before memory is allocated for it."""

WINDOW_BYTES = 256_000_000
"""For sources that are read in groups: bytes of groups that are shuffled together, and cached by each worker."""

_FULLY_HASHED_BYTES = 4 << 20  # files up to this length are hashed completely, longer ones in pieces
_PIECE_BYTES = 1 << 16
_PIECES = 64


class SourceStoreError(StoreError):
    """A source that fails, local or remote. It ends packing: otherwise the failure would leave samples out."""


class SourceChangedError(SourceStoreError):
    """A source that is not as it was listed. It ends packing, which cannot continue with another source."""


class Input(NamedTuple):
    """One image to pack, without its bytes: small, because there may be millions.

    Attributes:
        path: Name in the source: a path, UTF-8 with surrogate escapes, or ``file#row``.
        size: Length of the image in bytes: exact, an upper bound, or an estimate where the docstring of
            the source states that.
        label: Class number; None in a source without labels, or if the label is known only after
            reading.
        location: Numbers with which the source finds the record again.
        group: Number of a chunk or row group, whose records are cheap to read together; -1 without
            groups.
        extra: Bytes that the other fields take in a shard, as exact as ``size``.
    """

    path: str
    size: int
    label: int | None
    location: tuple[int, ...] = ()
    group: int = -1
    extra: int = 0


class Record(NamedTuple):
    """The content of one input.

    Attributes:
        image: Encoded bytes, or uint8 pixels [H, W] or [H, W, 1 | 3 | 4] in the order R, G, B, A.
        fields: Other fields by name, encoded.
        facts: Entries of the ``json`` field besides path and class.
        label: Class number, if `Input.label` did not have it.
    """

    image: bytes | NDArray[np.uint8]
    fields: Mapping[str, bytes] = MappingProxyType({})
    facts: Mapping[str, Any] = MappingProxyType({})
    label: int | None = None


class FileState(NamedTuple):
    """A file that contains records, as it was when they were listed."""

    path: Path
    size: int
    mtime_ns: int


class Skip(NamedTuple):
    """A file or record that is not packed, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a source, listed once.

    Attributes:
        inputs: In a deterministic order: sorted by the bytes of the path, or the order of the records.
        skipped: Files and records that cannot be packed.
        classes: Class names by number; empty without labels, or if labels are only numbers.
        stamp: Changes with what ``inputs`` does not show, such as the content of the file that
            contains them.
        shuffled: Whether ``inputs`` are already in random order.
        files: The local files that contain the records. They must stay the same until all records are read: a record
            of another version of a file could have the label of a different image.
    """

    inputs: list[Input]
    skipped: list[Skip]
    classes: tuple[str, ...]
    stamp: str = ""
    shuffled: bool = False
    files: tuple[FileState, ...] = ()


class Source(Protocol):
    """A source is pickled for worker processes, so its state contains no listing and no open file.

    Attributes:
        kind: Name of the format, as for ``--from``.
        in_process: The source cannot be pickled, so it is packed in this process.
    """

    kind: str
    in_process: bool

    def scan(self) -> Listing:
        """List all inputs."""

    def read(self, entry: Input) -> Record:
        """Read one input.

        Raises:
            SourceError: The content of this input is damaged, so it is skipped.
            SourceStoreError: The source fails, so packing ends.
        """


class LazySource:
    """Base of sources that open files at first use. Attributes that start with ``_`` are not pickled."""

    in_process = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}


@contextmanager
def as_source_error(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Convert ``errors`` and OSError into a SourceError of one line, which begins with ``what``."""
    caught: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except (SourceError, OptionError, NotADatasetError, SourceStoreError):
        raise
    except caught as error:
        reason = one_line(getattr(error, "strerror", None) or error or type(error).__name__)
        raise SourceError(f"{what}: {reason}") from error


@contextmanager
def as_read_error(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Do as `as_source_error` while records are read, where a SourceError skips one.

    An OSError of the operating system becomes a SourceStoreError, which ends packing. Libraries raise an OSError
    without a number for damaged content.
    """
    try:
        with as_source_error(what, *errors):
            yield
    except SourceError as error:
        if isinstance(error.__cause__, OSError) and is_system_error(error.__cause__):
            raise SourceStoreError(str(error)) from error.__cause__
        raise


def is_system_error(error: Exception) -> bool:
    """Return whether the operating system reported this error: storage fails, and the content may be undamaged."""
    return isinstance(error, OSError) and error.errno is not None


def check_size(name: str, size: int, listed: int) -> None:
    """Check that a file that was read has the length with which it was listed.

    Raises:
        SourceChangedError: It has another one.
    """
    if size != listed:
        more = "more than" if size > listed else f"{size:,} of"
        raise SourceChangedError(
            f"{name} changed while it was packed: it has {more} the {listed:,} bytes that were listed"
        )


def file_states(paths: Iterable[Path]) -> tuple[FileState, ...]:
    """Return the present state of files."""
    return tuple(map(_state, paths))


def check_unchanged(files: Iterable[FileState]) -> None:
    """Check that files are as they were listed.

    Raises:
        SourceChangedError: A file has another length or modification time.
        SourceStoreError: A file is missing, or its storage fails.
    """
    for file in files:
        if _state(file.path) != file:
            raise SourceChangedError(f"{file.path} changed while it was packed")


def _state(path: Path) -> FileState:
    with as_read_error(f"{path} cannot be read"):
        status = path.stat()
    return FileState(path, status.st_size, status.st_mtime_ns)


def stamp_files(paths: list[Path]) -> str:
    """Return a hash of the lengths and contents of files.

    Of a long file, only some pieces and the modification time are hashed.
    """
    digest = xxhash.xxh3_128()
    for path in paths:
        with as_source_error(f"{path} cannot be read"), path.open("rb") as file:
            status = os.fstat(file.fileno())
            digest.update(b"%d\n" % status.st_size)
            if status.st_size <= _FULLY_HASHED_BYTES:
                digest.update(file.read(_FULLY_HASHED_BYTES))
                continue
            digest.update(b"%d\n" % status.st_mtime_ns)  # the pieces may miss a change
            for number in range(_PIECES):
                file.seek((status.st_size - _PIECE_BYTES) * number // (_PIECES - 1))
                digest.update(file.read(_PIECE_BYTES))
    return digest.hexdigest()


def field_bytes(size: int) -> int:
    """Return the bytes that a field of ``size`` bytes takes in a shard."""
    # The packer's member names are short and ASCII, so the header is one block unless the size
    # needs a pax record.
    return BLOCK + padded(size) if size <= MAX_OCTAL_SIZE else member_bytes("000000000.jpg", size)
