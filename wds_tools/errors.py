"""One tree of errors; each also inherits the built-in that a caller would catch.

::

    WdsToolsError                     .shard .key .offset: where, as far as it is known
    ├── OptionError (ValueError)      an argument that cannot be
    ├── SourceError (OSError)         the packer's input: nothing there, unreadable, refused by --strict
    ├── DestinationError (OSError)    the packer's output folder or URL holds something else, is full, or fails
    ├── NotADatasetError (FileNotFoundError)   no manifest, no index, a pattern that matches nothing
    ├── ManifestError (ValueError)    a manifest or index that breaks its format
    ├── ShardError (ValueError)       a shard that is not what the manifest says
    │   ├── TruncatedShardError       it ends too early
    │   └── ChecksumError             its bytes have changed
    ├── SampleError (ValueError)      one sample
    │   ├── DecodeError               its image cannot be decoded
    │   └── MissingFieldError (LookupError)    it lacks a field that was asked for
    ├── StoreError (OSError)          storage that does not answer, or answers wrongly
    ├── ResumeError (ValueError)      a state that belongs to something else
    ├── ProofError (RuntimeError)     an epoch that did not deliver each sample once
    ├── DeviceError (RuntimeError)    a device that is not there
    ├── WorkerError (RuntimeError)    a worker process that died, stalled or could not start
    ├── TransformError (RuntimeError) transform= raised something that is not an ordinary exception
    └── LoaderError (RuntimeError)    a loader that is closed, copied, or used in another process

A message says four things: what, got, allowed, next step.
"""

from __future__ import annotations

import logging
from typing import Any

_LONG_NAME = 1000  # letters of a name or key that a message shows


def printable(text: str) -> str:
    r"""Escape what could control a terminal: keys and names come from data that anyone may have written.

    >>> printable("key \x1b[2J\u202e, next line:\n\tcafé")
    'key \\x1b[2J\\u202e, next line:\n\tcafé'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, most: int = 20_000) -> str:
    """Return the two ends of a text that is longer than ``most`` letters: a damaged file may put megabytes into it.

    >>> shortened("abcdefghij" * 100, 20)
    'abcdefghij … (980 characters left out) … abcdefghij'
    """
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} … ({len(text) - most:,} characters left out) … {text[len(text) - most // 2 :]}"


class _Printable(logging.Filter):
    """Makes the messages of our logger printable, wherever they go."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = printable(record.getMessage()), ()
        return True


logging.getLogger("wds_tools").addFilter(_Printable())


class WdsToolsError(Exception):
    """Base of all errors raised on purpose by this package.

    Args:
        message: What is wrong, what was found, what is allowed and what to do next.
        shard: Name of the shard concerned, if one is.
        key: Key of the sample concerned, if one is.
        offset: Byte offset in the shard where the trouble starts, if known.
    """

    def __init__(
        self, message: str, *, shard: str | None = None, key: str | None = None, offset: int | None = None
    ) -> None:
        super().__init__(shortened(message))
        self.shard = shard
        self.key = key
        self.offset = offset

    def __str__(self) -> str:
        where = [
            f"{word} {shortened(str(value), _LONG_NAME)}"
            for word, value in (("shard", self.shard), ("key", self.key), ("byte", self.offset))
            if value is not None
        ]
        message = str(self.args[0])
        return printable(f"{', '.join(where)}: {message}" if where else message)

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions pickle by their positional arguments alone; ours travel between processes with their place.
        return _rebuild, (type(self), self.args[0], self.shard, self.key, self.offset)


def _rebuild(
    kind: type[WdsToolsError], message: str, shard: str | None, key: str | None, offset: int | None
) -> WdsToolsError:
    return kind(message, shard=shard, key=key, offset=offset)


class OptionError(WdsToolsError, ValueError):
    """An argument that cannot be."""


class SourceError(WdsToolsError, OSError):
    """The packer's input: nothing there, unreadable, or refused by ``strict``."""

    __str__ = WdsToolsError.__str__


class DestinationError(WdsToolsError, OSError):
    """The packer's output folder holds something else, or is full."""

    __str__ = WdsToolsError.__str__


class NotADatasetError(WdsToolsError, FileNotFoundError):
    """No manifest, no index, or a pattern that matches nothing."""

    __str__ = WdsToolsError.__str__


class ManifestError(WdsToolsError, ValueError):
    """A manifest or index that breaks its format."""


class ShardError(WdsToolsError, ValueError):
    """A shard that is not what the manifest says, or no tar file."""


class TruncatedShardError(ShardError):
    """A shard that ends too early."""


class ChecksumError(ShardError):
    """Bytes that have changed since they were packed."""


class SampleError(WdsToolsError, ValueError):
    """Something about one sample."""


class DecodeError(SampleError):
    """An image that cannot be decoded."""


class MissingFieldError(SampleError, LookupError):
    """A sample or dataset lacks a field that was asked for."""


class StoreError(WdsToolsError, OSError):
    """Storage that does not answer, or answers wrongly."""

    __str__ = WdsToolsError.__str__


class ResumeError(WdsToolsError, ValueError):
    """A state that belongs to another dataset, seed or version."""


class ProofError(WdsToolsError, RuntimeError):
    """An epoch did not deliver each sample once over all ranks, or a rank did not tell."""


class DeviceError(WdsToolsError, RuntimeError):
    """A device that is not there."""


class WorkerError(WdsToolsError, RuntimeError):
    """A worker process that died, stalled or could not start."""


class TransformError(WdsToolsError, RuntimeError):
    """``transform=`` raised something that would end a process or an iteration, such as SystemExit."""


class LoaderError(WdsToolsError, RuntimeError):
    """A loader that is closed, copied, or used in another process than the one that its workers belong to."""
