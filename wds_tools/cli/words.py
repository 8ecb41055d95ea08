"""What the commands share: the run that they belong to, and how they word things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    from wds_tools.stats import counted, human_bytes

    return f"{counted(samples, word)} in {counted(shards, 'shard')}, {human_bytes(size)}"


def named(names: Sequence[str]) -> str:
    """Return names, the first few of many."""
    more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def next_steps(dataset: str) -> str:
    """Return what one does with a dataset next."""
    return (
        f"next: wds-tools info {dataset}\n"
        f'      loader = wds_tools.make_loader("{dataset}", batch_size=256,\n'
        "                                     view=wds_tools.RandomResizedCrop(224, flip=True), shuffle=True)"
    )


def one_line(message: object) -> str:
    """Return a message without line breaks."""
    return " ".join(str(message).split())
