"""Messages of a worker to the training process: the result of a task, or its exception.

Large arrays are not pickled. They follow the pickle as they are, and are received into memory that is used again.
"""

from __future__ import annotations

import io
import os
import pickle
import struct
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from wds_tools.errors import WorkerError
from wds_tools.loading.workers.memory import process_memory

_LEAST_ARRAY_BYTES = 1 << 14  # smaller arrays are part of the pickle
_ALIGNMENT = 64  # bytes; start of each array in the memory of a message
_MAX_VIEWS = 512  # of one system call; Linux allows 1,024
_HEADER = struct.Struct("<qI")  # id of the task, number of arrays; then the size of each array as "Q"


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception that is sent to the main process.

    Attributes:
        error: The exception; None if it cannot be pickled and unpickled.
        cause: Its ``__cause__``, which pickle omits; None if it has none or it cannot be pickled.
        text: The formatted traceback.
    """

    error: BaseException | None
    cause: BaseException | None
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the failure for an exception."""
        return cls(_if_picklable(error), _if_picklable(error.__cause__), "".join(traceback.format_exception(error)))


def _if_picklable(error: BaseException | None) -> BaseException | None:
    """Return the exception if it can be pickled and unpickled, otherwise None.

    Many exceptions with their own ``__init__`` cannot be unpickled.
    """
    try:
        return error if type(pickle.loads(pickle.dumps(error))) is type(error) else None  # noqa: S301 - pickled here
    except Exception:  # the code of the exception class may raise anything
        return None


def as_exception(failure: Failure) -> BaseException:
    """Return the exception to raise in the main process, with the traceback of the worker as a note."""
    error = failure.error
    if error is None:
        return WorkerError(f"a worker failed with an exception that pickle does not support:\n{failure.text}")
    if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
        # Raised here, it would end the iteration or the program without showing where it came from.
        wrapped = WorkerError(f"{type(error).__name__} was raised in a worker:\n{failure.text}")
        wrapped.__cause__ = error
        return wrapped
    error.__cause__ = failure.cause
    error.add_note(f"raised in a worker:\n{failure.text}")
    return error


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was prepared for sending.

    Attributes:
        head: Header and pickle.
        arrays: The large arrays.
    """

    head: bytes
    arrays: list[memoryview]


def pack_message(task_id: int, value: Any) -> Message:
    """Return a message with the id of a task and its result.

    Raises:
        Exception: The result cannot be pickled.
    """
    arrays: list[memoryview] = []

    def is_part_of_pickle(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < _LEAST_ARRAY_BYTES:
            return True
        arrays.append(view)
        return False

    out = io.BytesIO()
    ForkingPickler(out, pickle.HIGHEST_PROTOCOL, True, is_part_of_pickle).dump(value)
    header = _HEADER.pack(task_id, len(arrays)) + struct.pack(f"<{len(arrays)}Q", *(view.nbytes for view in arrays))
    return Message(header + out.getbuffer(), arrays)


def send_message(pipe: Connection, message: Message) -> None:
    """Send a message.

    Raises:
        OSError: The other end is closed.
    """
    pipe.send_bytes(message.head)
    transfer(os.writev, pipe.fileno(), message.arrays)


def receive_message(pipe: Connection) -> tuple[int, Any]:
    """Receive a message. Return the id of its task, and the result; a `Failure` if the result cannot be unpickled.

    Raises:
        OSError: The connection failed.
        EOFError: The other end is closed.
    """
    opened = open_message(pipe.recv_bytes())
    transfer(os.readv, pipe.fileno(), opened.arrays)
    return opened.task_id, opened.value()


@dataclass(frozen=True, slots=True)
class OpenedMessage:
    """A message whose head was received. Its arrays are memory that is to be filled next."""

    task_id: int
    arrays: list[memoryview]
    pickled: memoryview

    def value(self) -> Any:
        """Return the result when the arrays have been received; a `Failure` if it cannot be unpickled."""
        try:
            return pickle.loads(self.pickled, buffers=self.arrays)  # noqa: S301 - of a worker
        except Exception as error:  # the code of the class of the result may raise anything
            return Failure(None, None, f"the result cannot be unpickled: {type(error).__name__}: {error}")


def open_message(head: bytes | bytearray, *, most_bytes: int | None = None) -> OpenedMessage:
    """Return a message from its head, or raise a ValueError if it is too short or its arrays are too large."""
    view = memoryview(head)
    task_id, count = _HEADER.unpack_from(view) if len(view) >= _HEADER.size else (0, len(view))
    start = _HEADER.size + 8 * count
    if start > len(view):
        raise ValueError("the head of a message is too short")
    sizes = struct.unpack_from(f"<{count}Q", view, _HEADER.size)
    if most_bytes is not None and sum(sizes) > most_bytes:
        raise ValueError(f"a message has arrays of {sum(sizes):,} bytes")
    return OpenedMessage(task_id, _allocate(sizes), view[start:])


def _allocate(sizes: Sequence[int]) -> list[memoryview]:
    """Return memory for arrays of these sizes in bytes. It is used again when all of them are deleted."""
    if not sizes:
        return []
    offsets = list(accumulate((-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes), initial=0))
    memory = process_memory.empty((offsets[-1],), torch.uint8).numpy().data
    return [memory[offset : offset + size] for offset, size in zip(offsets, sizes, strict=False)]


def transfer(function: Any, fd: int, views: Sequence[memoryview]) -> None:
    """Write to views, or read them, completely."""
    remaining = list(views)
    while remaining:
        count = function(fd, remaining[:_MAX_VIEWS])
        if not count:
            raise EOFError
        while remaining and count >= len(remaining[0]):
            count -= len(remaining.pop(0))
        if count:
            remaining[0] = remaining[0][count:]
