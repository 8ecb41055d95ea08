"""What the commands share: the run that they belong to, and how they word things."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click


class Place(click.Path):
    """A folder, a file, a URL or a pattern; with this type, Tab completes the names of files."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Refuse nothing at all: as a path it would be the current folder, and is more likely an unset variable."""
        if not os.fspath(value):
            self.fail("it is empty; for the current folder give a dot.", param, ctx)
        return super().convert(value, param, ctx)


PLACE = Place()
FILE = Place(path_type=Path)
"""The same as a `Path`, where no URL is allowed."""

MAX_NAMED = 5  # files or shards that a summary names before it counts


@dataclass(slots=True)
class Run:
    """One run of the program: what its end depends on.

    Attributes:
        debug: Show tracebacks.
        failure_code: Exit code of an error that is not about the arguments.
        after_interrupt: What to tell who pressed Ctrl-C.
    """

    debug: bool = False
    failure_code: int = 1
    after_interrupt: str = ""


def example(*lines: str) -> str:
    """Return the end of a help text; click would join the lines without the mark."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def amount(samples: int, shards: int, size: int, *, word: str = "sample") -> str:
    """Return how much a dataset is, in words."""
    from wds_tools.wording import counted, human_bytes

    return f"{counted(samples, word)} in {counted(shards, 'shard')}, {human_bytes(size)}"


def named(names: Sequence[str]) -> str:
    """Return names, the first few of many."""
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def next_steps(calls: Mapping[str, str]) -> str:
    """Return what to do next with datasets that were just made; ``calls`` are the statements that load them."""
    from wds_tools.packing.snippet import IMPORT

    looks = "\n      ".join(f"wds-tools info {shlex.quote(dataset)}" for dataset in calls)
    return "\n".join([f"next: {looks}", "", IMPORT, "", *calls.values()])


def one_line(message: object) -> str:
    """Return a message without line breaks."""
    return " ".join(str(message).split())
