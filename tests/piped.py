"""Programs that are forked from a loaded Python, with pipes as their standard input and output."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from preloaded import Process


@contextmanager
def piped(words: Sequence[str | Path]) -> Iterator[tuple[Process, IO[str], IO[str]]]:
    """Run a program; yield it, what writes its input, and its output. At the end its input is closed."""
    (stdin, writes), (reads, stdout) = os.pipe(), os.pipe()
    process = Process(words, stdin=stdin, stdout=stdout)
    os.close(stdin)
    os.close(stdout)
    with os.fdopen(reads) as lines:
        with os.fdopen(writes, "w", buffering=1) as text:
            yield process, text, lines
        process.wait()
