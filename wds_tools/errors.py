"""The exception hierarchy. Each error also inherits from the built-in exception that fits it best.

::

    WdsToolsError                     .shard .key .offset: location of the problem, if known
    ├── OptionError (ValueError)      invalid option or argument
    ├── LabelError (ValueError)       invalid labels, or labels that do not match the classes
    ├── SourceError (OSError)         input of the packer: missing, unreadable, or refused by --strict
    │   └── MissingSourceError        no file or folder at the path of the input, or nothing of its format there
    ├── DestinationError (OSError)    output of the packer: in use for something else, full, or failing
    ├── NotADatasetError (FileNotFoundError)   no manifest, no index, a pattern without matches
    ├── ManifestError (ValueError)    invalid manifest or index
    ├── ShardError (ValueError)       shard that does not match its manifest, or is not a tar file
    │   ├── TruncatedShardError       shard that ends too early
    │   └── ChecksumError             bytes that changed after packing
    ├── SampleError (ValueError)      problem with one sample
    │   ├── DecodeError               image with damaged or unsupported data
    │   └── MissingFieldError (LookupError)    requested field that a sample or dataset lacks
    ├── StoreError (OSError)          storage that fails or returns wrong data
    │   └── MissingFileError (FileNotFoundError)   file or object that does not exist
    ├── ResumeError (ValueError)      state of another dataset, seed or version
    ├── ProofError (RuntimeError)     epoch that did not deliver each sample once
    ├── DeviceError (RuntimeError)    device that is not available
    ├── WorkerError (RuntimeError)    worker process that died, stalled or could not start
    ├── TransformError (RuntimeError) transform= raised something like SystemExit
    └── LoaderError (RuntimeError)    loader that is closed, copied, used in another process, or gets no memory

A message states what is wrong, the value found, the values allowed, and what to do next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

_MAX_NAME_LENGTH = 1000  # characters of a shard name or key that a message shows


def printable(text: str) -> str:
    r"""Escape control characters: keys and names come from untrusted data and may end up in a terminal.

    >>> printable("key \x1b[2J\u202e, next line:\n\tcafé")
    'key \\x1b[2J\\u202e, next line:\n\tcafé'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, most: int = 20_000) -> str:
    """Keep only the start and the end of a text of more than ``most`` characters.

    Error messages quote values from files. A damaged file may put megabytes into such a value.

    >>> shortened("abcdefghij" * 100, 20)
    'abcdefghij … (980 characters left out) … abcdefghij'
    """
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} … ({len(text) - most:,} characters left out) … {text[len(text) - most // 2 :]}"


class _PrintableFilter(logging.Filter):
    """Escapes control characters in all messages of the package's logger."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = printable(record.getMessage()), ()
        return True


logging.getLogger("wds_tools").addFilter(_PrintableFilter())


class WdsToolsError(Exception):
    """Base class of all errors that this package raises on purpose.

    Args:
        message: What is wrong, what was found, what is allowed and what to do next.
        shard: Name of the affected shard, or None.
        key: Key of the affected sample, or None.
        offset: Byte offset in the shard at which the problem starts, or None.
    """

    def __init__(
        self, message: str, *, shard: str | None = None, key: str | None = None, offset: int | None = None
    ) -> None:
        super().__init__(shortened(message))
        self.shard = shard
        self.key = key
        self.offset = offset

    def __str__(self) -> str:
        location = [
            f"{name} {shortened(str(value), _MAX_NAME_LENGTH)}"
            for name, value in (("shard", self.shard), ("key", self.key), ("byte", self.offset))
            if value is not None
        ]
        message = str(self.args[0])
        return printable(f"{', '.join(location)}: {message}" if location else message)

    def __reduce__(self) -> tuple[Any, ...]:
        # By default an exception is pickled with its positional arguments only.
        return _rebuild, (type(self), self.args[0], self.shard, self.key, self.offset)


def _rebuild(
    kind: type[WdsToolsError], message: str, shard: str | None, key: str | None, offset: int | None
) -> WdsToolsError:
    return kind(message, shard=shard, key=key, offset=offset)


class OptionError(WdsToolsError, ValueError):
    """An option or argument is invalid."""


class LabelError(WdsToolsError, ValueError):
    """Labels are invalid, or do not match the class names."""


class SourceError(WdsToolsError, OSError):
    """The input of the packer is missing, unreadable, or refused by ``strict``."""

    __str__ = WdsToolsError.__str__


class MissingSourceError(SourceError):
    """The path of the source does not exist, or has no files of the expected format."""


class DestinationError(WdsToolsError, OSError):
    """The output folder or URL of the packer is in use for something else, full, or failing."""

    __str__ = WdsToolsError.__str__


class NotADatasetError(WdsToolsError, FileNotFoundError):
    """There is no manifest, no index, or no file that matches the pattern."""

    __str__ = WdsToolsError.__str__


class ManifestError(WdsToolsError, ValueError):
    """A manifest or index is invalid."""


class ShardError(WdsToolsError, ValueError):
    """A shard does not match its manifest, or is not a tar file."""


class TruncatedShardError(ShardError):
    """A shard ends too early."""


class ChecksumError(ShardError):
    """Bytes have changed since they were packed."""


class SampleError(WdsToolsError, ValueError):
    """Something is wrong with one sample."""


class DecodeError(SampleError):
    """The data of an image is damaged or unsupported."""


class MissingFieldError(SampleError, LookupError):
    """A sample or dataset lacks a requested field."""


class StoreError(WdsToolsError, OSError):
    """Storage fails or returns wrong data."""

    __str__ = WdsToolsError.__str__


class MissingFileError(StoreError, FileNotFoundError):
    """A file or an object does not exist, such as a shard that its manifest lists."""


class ResumeError(WdsToolsError, ValueError):
    """A state belongs to another dataset, seed or version."""


class ProofError(WdsToolsError, RuntimeError):
    """An epoch did not deliver each sample once over all ranks, or a rank did not report."""


class DeviceError(WdsToolsError, RuntimeError):
    """A device is not available."""


class WorkerError(WdsToolsError, RuntimeError):
    """A worker process died, stalled or could not start."""


class TransformError(WdsToolsError, RuntimeError):
    """``transform=`` raised something that would end a process or an iteration, such as SystemExit."""


class LoaderError(WdsToolsError, RuntimeError):
    """A loader is closed, was copied, gets no shared memory, or is used in a process that did not start its workers."""


def run_all(*steps: Callable[[], object]) -> None:
    """Call all functions in order, even after an error. Then raise the first error."""
    first: BaseException | None = None
    for step in steps:
        try:
            step()
        except BaseException as error:  # it is raised below
            first = first or error
    if first:
        raise first


def run_after(error: BaseException | None, step: Callable[[], object]) -> None:
    """Call the last function of a loader. If an error is already being raised, another one is added to it as a note."""
    try:
        step()
    except Exception as later:
        if error is None:
            raise
        error.add_note(f"closing the loader failed too: {type(later).__name__}: {later}")
