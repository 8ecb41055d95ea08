"""What every source gives the packer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Input(NamedTuple):
    """One picture to pack: a record that is light enough for a million of them.

    Attributes:
        path: Place in the source, with ``/`` between folders; UTF-8 with surrogate escapes.
        size: Bytes, as the source lists them.
        label: Class number, None in a source without labels.
    """

    path: str
    size: int
    label: int | None


class Skip(NamedTuple):
    """One file that is not packed, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """All that a source holds, read once.

    Attributes:
        inputs: Sorted by path (order of bytes), so that it does not depend on the file system.
        skipped: Files that are no input, sorted by path.
        classes: Class names by number; empty without labels.
    """

    inputs: list[Input]
    skipped: list[Skip]
    classes: tuple[str, ...]


class Source(Protocol):
    """A source travels to worker processes by pickle, so it keeps no listing and no open file."""

    def scan(self) -> Listing:
        """List everything there is to pack."""

    def read(self, entry: Input) -> bytes:
        """Return the bytes of one input."""
