"""Steps of ``batch_transform=``: what they are, how they are applied one after the other, and `Normalize`.

The random numbers of a sample depend on the seed, the epoch and the position of the sample in the epoch. So a sample
gets the same augmentation on any number of ranks and after a resume. The exceptions are the partners of `MixUp` and
`CutMix`: they are samples of the same rank's batch, so they are the same only on the same number of ranks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.images import native
from wds_tools.order.keyed_random import key_of, uniform

MAX_VALUES = {torch.uint8: 255.0, torch.uint16: 65535.0}
"""White, by dtype; 1.0 for floating-point dtypes."""
_ALIGNMENT = 16  # bytes; a tensor starts at a multiple of its item size


@dataclass(frozen=True, slots=True)
class SampleKeys:
    """What determines the random numbers of the samples of a batch.

    Attributes:
        positions: int64 [n], positions of the samples in the epoch, over all ranks.
    """

    seed: int
    epoch: int
    positions: NDArray[np.int64]

    def uniform(self, purpose: str, count: int, columns: slice = slice(None)) -> NDArray[np.float64]:
        """Return random numbers in [0, 1): the columns of float64 [n, count]. Each purpose has its own."""
        return uniform(key_of("batch step", purpose, self.seed, self.epoch), self.positions, count, columns)


def sent_to(device: torch.device, *arrays: NDArray[Any]) -> list[torch.Tensor]:
    """Return arrays as tensors on a device, fractional numbers as float32.

    They are one copy from pinned memory, for which the CPU does not wait. A copy from other memory would wait until the
    device has finished all work that it was given before.
    """
    arrays = tuple(array.astype(np.float32) if array.dtype.kind == "f" else array for array in arrays)
    starts = np.cumsum([0, *(-(-array.nbytes // _ALIGNMENT) * _ALIGNMENT for array in arrays)]).tolist()
    buffer = torch.empty(starts[-1], dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
    parts = [slice(start, start + array.nbytes) for start, array in zip(starts, arrays, strict=False)]
    for part, array in zip(parts, arrays, strict=True):
        buffer.numpy()[part] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    # On Metal, an asynchronous copy may read the buffer after it was freed.
    sent = buffer.to(device, non_blocking=device.type != "mps")
    dtypes = [torch.from_numpy(array[:0]).dtype for array in arrays]
    return [sent[part].view(dtype).view(array.shape) for part, dtype, array in zip(parts, dtypes, arrays, strict=True)]


def per_image(values: torch.Tensor) -> torch.Tensor:
    """Return one value per image as [n, 1, 1, 1], a view."""
    return values[:, None, None, None]


class BatchStep(ABC):
    """A step of ``batch_transform=`` that draws random numbers for each sample."""

    needs_labels = False
    moves_pixels = False  # also whether it takes pixels of other images

    @abstractmethod
    def apply(self, images: torch.Tensor, labels: torch.Tensor | None, keys: SampleKeys, purpose: str) -> Any:
        """Return the images, and if the step needs labels, a pair (images, labels).

        Args:
            images: [n, 3, height, width], uint8 unless an earlier step changed the dtype.
            labels: int64 [n] or float [n, classes]; None if the step does not need them.
            keys: What the random numbers depend on.
            purpose: Name of this step, unique in the batch.
        """


class BatchSteps:
    """Steps that are applied one after the other."""

    def __init__(self, steps: Sequence[Any]) -> None:
        self._steps = tuple(steps)
        for step in self._steps:
            is_class = isinstance(step, type)
            if is_class or not (callable(step) or isinstance(step, BatchStep)):
                raise OptionError(
                    f"batch_transform= has the step {step!r}; allowed are steps such as "
                    "wds_tools.RandomHorizontalFlip(), and functions of the images"
                )

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that the steps need."""
        needs_labels = any(isinstance(step, BatchStep) and step.needs_labels for step in self._steps)
        return ("image", "label") if needs_labels else ("image",)

    @property
    def changing(self) -> list[BatchStep]:
        """Steps that move pixels or compute with several of them."""
        return [step for step in self._steps if isinstance(step, BatchStep) and not isinstance(step, Normalize)]

    def check_scale(self, dtype: torch.dtype) -> None:
        """Check the constants of `Normalize` for images of a dtype, up to the first function, which may change it."""
        for step in self._steps:
            if isinstance(step, Normalize):
                step.check_scale(dtype)
            if isinstance(step, Normalize) or not isinstance(step, BatchStep):
                return

    def apply(self, images: Any, labels: Any, keys: SampleKeys) -> tuple[Any, Any]:
        """Return images and labels after all steps."""
        for index, step in enumerate(self._steps):
            purpose = f"{index} {type(step).__name__}"
            if not isinstance(step, BatchStep):
                images = step(images)
            elif isinstance(images, torch.Tensor):
                if step.needs_labels:
                    images, labels = step.apply(images, labels, keys, purpose)
                else:
                    images = step.apply(images, None, keys, purpose)
            else:
                images = _applied_to_crops(step, images, keys, purpose)
        return images, labels


def _applied_to_crops(step: BatchStep, crops: Any, keys: SampleKeys, purpose: str) -> list[torch.Tensor]:
    """Return the images of each view after a step, with random numbers of their own."""
    if not isinstance(crops, list) or not all(isinstance(crop, torch.Tensor) and crop.ndim == 4 for crop in crops):
        raise OptionError(
            f"{type(step).__name__} needs images of one size, but this batch is a list: use a view that gives all "
            "images the same size, such as RandomResizedCrop(224)"
        )
    if step.needs_labels:
        raise OptionError(
            f"{type(step).__name__} mixes labels, so it needs one crop of each image, but this batch has several: use "
            "a single view= instead of a list"
        )
    return [
        step.apply(images, None, keys, f"{purpose} crop {index}" if index else purpose)
        for index, images in enumerate(crops)
    ]


def only_normalize(batch_transform: Any) -> Normalize | None:
    """Return the `Normalize` of RGB images that is the only step of ``batch_transform=``, or None."""
    steps = batch_transform if isinstance(batch_transform, list | tuple) else [batch_transform]
    is_only = len(steps) == 1 and isinstance(steps[0], Normalize) and steps[0].channels == 3
    return steps[0] if is_only else None


def _numbers(values: Any) -> tuple[float, ...]:
    """Return a sequence of finite numbers as a tuple; () if it is something else."""
    try:
        numbers = tuple(map(float, values))
    except (TypeError, ValueError):
        return ()
    return numbers if all(map(math.isfinite, numbers)) else ()


class Normalize(BatchStep):
    """Convert images to floating point, subtract the mean and divide by the standard deviation, in one pass.

    The result is ``(images / 255 - mean) / std``, computed in float32 and then rounded to ``dtype``. Images with
    floating-point values are not divided by 255. It can also be called as a function: ``Normalize(mean, std)(images)``.

    If it is the only step of ``batch_transform=``, ``device`` is the CPU, and a view gives all images one size, the
    workers write the normalized images to the batch. The values are the same in both cases. Shared memory then has
    values of ``dtype``: it takes four times the memory of bytes for float32, and twice for bfloat16.

    Args:
        mean: Mean of each channel, in the scale 0 to 1, such as ``(0.485, 0.456, 0.406)``.
        std: Standard deviation of each channel, in the same scale.
        dtype: Floating-point dtype of the result.
        channels_last: Store the result in the memory format ``torch.channels_last``, which convolutions on CUDA prefer.

    Raises:
        OptionError: ``mean`` or ``std`` is not a sequence of numbers, they differ in length, a standard deviation is
            not above 0, or ``dtype`` is not a floating-point dtype. A mean or a standard deviation above 1 for images
            of integers: by `make_loader` where it knows the dtype, otherwise when it is called.
    """

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        self._mean, self._std = _numbers(mean), _numbers(std)
        if not self._mean or len(self._mean) != len(self._std) or min(self._std) <= 0:
            raise OptionError(
                f"Normalize(mean={mean!r}, std={std!r}): both need one number per channel, such as [0.5, 0.5, 0.5], "
                "and each standard deviation must be above 0"
            )
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise OptionError(f"Normalize(dtype={dtype!r}): allowed are floating-point dtypes, such as torch.bfloat16")
        self.dtype = dtype
        self.channels_last = channels_last
        self._constants: dict[tuple[torch.device, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}
        self._table: NDArray[np.uint8] | None = None

    def __repr__(self) -> str:
        return f"Normalize({self._mean}, {self._std}, dtype={self.dtype}, channels_last={self.channels_last})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_constants": {}, "_table": None}

    @property
    def channels(self) -> int:
        """Number of channels that the images must have."""
        return len(self._mean)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Return the normalized images, [n, channels, height, width]."""
        if images.shape[-3] != len(self._mean):
            raise OptionError(f"{self}: it has {len(self._mean)} channels, but the images have {images.shape[-3]}")
        memory_format = torch.channels_last if self.channels_last else torch.contiguous_format
        out = torch.empty(images.shape, dtype=self.dtype, device=images.device, memory_format=memory_format)
        return self.write(images, out)

    def write(self, images: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """Write the normalized images to a tensor of the same shape, and return it.

        Bytes in CPU memory are looked up in a table of all 256 results per channel. The arithmetic of torch converts
        each value in a separate call there, which takes 10 times as long.

        Args:
            images: [n, channels, height, width].
            out: Of ``dtype``, and in the memory format ``torch.channels_last`` if ``channels_last``.
        """
        is_supported = images.dtype == torch.uint8 and images.ndim == 4 and images.is_contiguous()
        has_table = self.channels == 3 and self.dtype.itemsize in (2, 4, 8) and native.is_enabled()
        if not is_supported or not has_table or images.device.type != "cpu":
            scale, bias = self._constants_for(images)
            return torch.addcmul(bias, images, scale, out=out)
        stored = out.permute(0, 2, 3, 1) if self.channels_last else out
        values = stored[..., None].view(torch.uint8).numpy()
        native.convert_pixels(images.numpy(), self._table_of_bytes(), values, is_interleaved=self.channels_last)
        return out

    def _table_of_bytes(self) -> NDArray[np.uint8]:
        """Return the results for all bytes of each channel, see `native.convert_pixels`."""
        if self._table is None:
            every = torch.arange(256, dtype=torch.uint8).expand(3, 1, 256)
            scale, bias = self._constants_for(every)
            results = torch.addcmul(bias, every, scale, out=torch.empty(3, 1, 256, dtype=self.dtype))
            self._table = results[..., None].view(torch.uint8).numpy()
        return self._table

    def apply(self, images: torch.Tensor, labels: torch.Tensor | None, keys: SampleKeys, purpose: str) -> torch.Tensor:  # noqa: ARG002
        """See `BatchStep.apply`."""
        return self(images)

    def check_scale(self, dtype: torch.dtype) -> None:
        """Check that the constants may belong to images of a dtype.

        Raises:
            OptionError: The images are integers, and a mean or a standard deviation is above 1.
        """
        if dtype in MAX_VALUES and max(*self._mean, *self._std) > 1:
            raise OptionError(
                f"{self}: mean and standard deviation of {dtype} images are in the scale 0 to 1: divide mean and "
                f"standard deviation by {MAX_VALUES[dtype]:g}"
            )

    def _constants_for(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the factor and the summand of each channel, float32 [channels, 1, 1] on the device."""
        key = images.device, images.dtype
        if key not in self._constants:
            self.check_scale(images.dtype)
            most = MAX_VALUES.get(images.dtype, 1.0)
            std = torch.tensor(self._std, dtype=torch.float64)[:, None, None]
            mean = torch.tensor(self._mean, dtype=torch.float64)[:, None, None]
            scale, bias = 1 / (most * std), -mean / std
            self._constants[key] = scale.float().to(images.device), bias.float().to(images.device)
        return self._constants[key]
