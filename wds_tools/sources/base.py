"""What every source gives the packer."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import OptionError, SourceError
from wds_tools.format.tar import BLOCK, MAX_OCTAL_SIZE, member_bytes, padded

MAX_RECORD_BYTES = 1 << 30
"""One record of a container that claims more is damaged or hostile: refused before memory is allocated."""

WINDOW_BYTES = 256_000_000
"""Where records are read in groups, so many bytes of groups are shuffled together, and held by each worker."""

_WHOLE_BYTES = 4 << 20  # files up to this length are hashed whole, others in pieces
_PIECE_BYTES = 1 << 16
_PIECES = 64


class Input(NamedTuple):
    """One picture to pack: a record that is light enough for a million of them.

    Attributes:
        path: Its name in the source: a path, UTF-8 with surrogate escapes, or ``file#row``.
        size: Bytes of the picture: exact, or not less, or where a source can only estimate (it says so), about.
        label: Class number; None in a source without labels, or where only reading the record tells it.
        place: Numbers that let the source find it again.
        group: Records of one group are cheap to read together (a chunk, a row group); -1 where each stands alone.
        extra: Bytes that its further fields take in a shard, as exact as ``size``.
    """

    path: str
    size: int
    label: int | None
    place: tuple[int, ...] = ()
    group: int = -1
    extra: int = 0


class Record(NamedTuple):
    """One input, read.

    Attributes:
        image: Encoded, or uint8 pixels [H, W] or [H, W, 1 | 3 | 4] in the order R, G, B, A.
        fields: Further fields by name, encoded.
        facts: What goes into the ``json`` field besides path and class.
        label: Class number, where the listing did not tell it.
    """

    image: bytes | NDArray[np.uint8]
    fields: Mapping[str, bytes] = MappingProxyType({})
    facts: Mapping[str, Any] = MappingProxyType({})
    label: int | None = None


class Skip(NamedTuple):
    """One file or record that is not packed, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """All that a source holds, read once.

    Attributes:
        inputs: In an order that is the source's alone: sorted by path in bytes, or the order of its records.
        skipped: Files and records that are no input.
        classes: Class names by number; empty without labels, or where labels are only numbers.
        stamp: Identity of what ``inputs`` does not show, such as the content of the file that holds them.
        shuffled: They are in random order already.
    """

    inputs: list[Input]
    skipped: list[Skip]
    classes: tuple[str, ...]
    stamp: str = ""
    shuffled: bool = False


class Source(Protocol):
    """A source travels to worker processes by pickle, so it keeps no listing and no open file.

    Attributes:
        kind: As ``--from`` names it.
        in_process: It cannot travel at all, so it is packed in the process that has it.
    """

    kind: str
    in_process: bool

    def scan(self) -> Listing:
        """List everything there is to pack."""

    def read(self, entry: Input) -> Record:
        """Return one input.

        Raises:
            SourceError: It cannot be read; the others can.
        """


class Lazy:
    """Base of sources that open files when they first need them: what is open (``_names``) does not travel."""

    in_process = False

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}


@contextmanager
def refusing(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn a library's ``errors`` (and OSError) into one SourceError that begins with ``what``."""
    caught: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except (SourceError, OptionError):
        raise
    except caught as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error or type(error).__name__).split())
        raise SourceError(f"{what}: {reason}") from error


def stamp_files(paths: list[Path]) -> str:
    """Return the identity of files: lengths and content; of long files some of the content, and the time of change."""
    digest = xxhash.xxh3_128()
    for path in paths:
        with refusing(f"{path} cannot be read"), path.open("rb") as file:
            status = os.fstat(file.fileno())
            digest.update(b"%d\n" % status.st_size)
            if status.st_size <= _WHOLE_BYTES:
                digest.update(file.read(_WHOLE_BYTES))
                continue
            digest.update(b"%d\n" % status.st_mtime_ns)  # the pieces may miss a change
            for number in range(_PIECES):
                file.seek((status.st_size - _PIECE_BYTES) * number // (_PIECES - 1))
                digest.update(file.read(_PIECE_BYTES))
    return digest.hexdigest()


def field_bytes(size: int) -> int:
    """Return the bytes that a field of ``size`` bytes takes in a shard."""
    # Our member names are short and ASCII: one block of header, except where the size needs a pax record.
    return BLOCK + padded(size) if size <= MAX_OCTAL_SIZE else member_bytes("000000000.jpg", size)
