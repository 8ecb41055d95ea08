"""Calls of the user's functions for one sample: with seeded random numbers, and errors that name the sample."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch

from wds_tools.errors import OptionError, SampleError, TransformError, printable
from wds_tools.reading.rows import Rows

Transform: TypeAlias = Callable[..., Any]


def call_for_sample(name: str, rows: Rows, i: int, call: Callable[[], Any]) -> Any:
    """Call a function of the user for one sample, and add shard and key to its exceptions."""
    try:
        return call()
    except BaseException as error:
        shard, key = rows.shard_and_key(i)
        if _needs_wrapping(error):
            raise TransformError(
                f"{name} raised {error!r}, which would silently end a process or an iteration: raise another exception",
                shard=shard,
                key=key,
            ) from error
        error.add_note(printable(f"in {name} of shard {shard}, key {key}"))
        raise


def _needs_wrapping(error: BaseException) -> bool:
    """Return whether an exception of the user's function must be wrapped in a TransformError.

    StopIteration and SystemExit would silently end an iteration or a process. A SampleError would be mistaken for
    damaged data. KeyboardInterrupt is passed on, as it may be the user's Ctrl-C, except in a worker, which ignores that
    signal.
    """
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    return not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration | SampleError)


@contextmanager
def tensors_noted(what: Callable[[], str]) -> Iterator[None]:
    """Add what a function gets to its exceptions, and what to use instead if it may be for PIL images."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, AttributeError | TypeError):
            error.add_note(what())
            raise
        error.add_note(
            f"{what()}; if this one needs a PIL image, use torchvision.transforms.v2, without ToTensor() and "
            "PILToTensor(), and v2.ToDtype(torch.float32, scale=True) for floats, or call "
            "v2.functional.to_pil_image() first"
        )
        raise


def described(value: object) -> str:
    """Return dtype and shape of a tensor in words, such as "uint8 tensor [3, 8, 8]", or the type of another value."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')} tensor {list(value.shape)}"


def transformed(transform: Transform, image: torch.Tensor, seed: int) -> Any:
    """Call a transform of one image with all random generators that it may use seeded."""
    with seeded(seed):
        if not is_albumentations(transform):
            with tensors_noted(lambda: f"transform= gets a {described(image)}"):
                result = transform(image)
            if result is None:
                raise OptionError("transform= returned None: return the image, even if it was changed in place")
            return result
        # Albumentations takes and returns uint8 arrays [height, width, 3], and has its own random generator.
        if hasattr(transform, "set_random_seed"):
            transform.set_random_seed(seed % 2**32)
        result = transform(image=np.ascontiguousarray(image.permute(1, 2, 0).numpy()))["image"]
        if isinstance(result, np.ndarray) and result.ndim == 3:
            return torch.from_numpy(np.ascontiguousarray(result.transpose(2, 0, 1)))
        return result


def is_albumentations(transform: Transform) -> bool:
    """Return whether this is a transform of Albumentations, which takes arrays by keyword."""
    return type(transform).__module__.startswith("albumentations")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of random, NumPy and torch in this context, and restore their states afterwards."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed CUDA, which fails after a fork
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
