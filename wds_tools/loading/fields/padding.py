"""Tensors of different sizes as one tensor: padded at the end of the dimensions in which they differ, or joined.

Workers write values with a fixed size to shared memory. Others are sent as they are, and padded in the training
process: padding is faster than sending it through a pipe.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import reduce
from typing import Any, Literal, TypeAlias

import numpy as np
import torch

from wds_tools.errors import OptionError
from wds_tools.loading.workers.memory import process_memory


def is_number(value: Any) -> bool:
    """Return whether this is an int or a float."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_length(value: Any) -> bool:
    """Return whether this is a whole number of 1 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


@dataclass(frozen=True)
class Pad:
    """How values of different sizes become one tensor per batch: padded at the end, images at the right and bottom.

    ``pad=0`` is short for ``pad=Pad(0)``. For each padded field, the batch has a mask after its other fields. Its name
    ends in ``_mask``, such as ``boxes_mask``. It is a bool tensor [batch, length], for images [batch, height, width],
    that is True for values and False for padding.

    Attributes:
        value: Value of the padding.
        size: Size after padding, so that all batches have one shape: a length; for images (height, width), or one
            number for both. None (the default) is the size of the largest value of the batch.
        multiple_of: Round that size up to a multiple of this number.
        truncate: Whether values longer than ``size`` are cut off at the end. They are an error by default.

    Raises:
        OptionError: An attribute is invalid.
    """

    value: float = 0
    _: KW_ONLY
    size: int | tuple[int, int] | None = None
    multiple_of: int = 1
    truncate: bool = False

    def __post_init__(self) -> None:
        if not is_number(self.value):
            raise OptionError(f"wds_tools.Pad({self.value!r}); allowed are numbers")
        if self.size is not None and not all(map(is_length, self.sides)):
            raise OptionError(
                f"wds_tools.Pad(size={self.size!r}); allowed are whole numbers of 1 and more, (height, width) "
                "for images, and None"
            )
        if not is_length(self.multiple_of) or (self.multiple_of != 1 and self.size is not None):
            with_size = " with size=" if self.size is not None else ""
            raise OptionError(
                f"wds_tools.Pad(multiple_of={self.multiple_of!r}){with_size}; allowed are whole numbers of 1 and more, "
                "without size="
            )
        if not isinstance(self.truncate, bool) or (self.truncate and self.size is None):
            raise OptionError(f"wds_tools.Pad(truncate={self.truncate!r}); allowed are False, and True with size=")

    @property
    def sides(self) -> tuple[int, ...]:
        """Height and width, or the same length twice; none without ``size``."""
        if self.size is None:
            return ()
        return tuple(self.size) if isinstance(self.size, tuple | list) and len(self.size) == 2 else (self.size,) * 2


FLAT = "flat"
"""``pad="flat"``: the values of all samples one after the other, without padding."""

AnyPad: TypeAlias = float | Pad | Literal["flat"] | None
"""What ``pad=`` of a field may be."""


@dataclass(frozen=True, slots=True)
class Padding:
    """How the values of a column become one tensor.

    Attributes:
        options: Size of the result: the ``pad=`` of the column ``source``.
        axes: Number of dimensions that are padded: 2 for pixels, which are the last two; otherwise 1, the first one.
        source: Name of the column that determines the size. Columns with ``like`` have the size of another one.
    """

    value: float
    options: Pad
    axes: int
    source: str
    is_flat: bool = False

    @property
    def size(self) -> tuple[int, ...] | None:
        """Fixed size of the padded dimensions, or None if it depends on the batch."""
        return self.options.sides[: self.axes] or None


@dataclass(frozen=True, slots=True)
class Padded:
    """Values of n samples that will be padded, or of parts of a batch that will be joined."""

    values: list[Any]
    padding: Padding

    def tensor(self) -> torch.Tensor:
        """Return one tensor: [n, ...], see `pad_tensors`, or [sum of lengths, ...], see `join_tensors`."""
        values = [torch.as_tensor(value, device="cpu") for value in self.values]
        return join_tensors(values, self.padding) if self.padding.is_flat else pad_tensors(values, self.padding)


def sizes_of(values: Sequence[torch.Tensor], padding: Padding) -> torch.Tensor:
    """Return the sizes of the padded dimensions of n values: int64 [n, axes]."""
    sizes = [_size(value, padding) for value in values]
    return torch.tensor(sizes, dtype=torch.int64, device="cpu").reshape(-1, padding.axes)


def pad_tensors(values: Sequence[torch.Tensor], padding: Padding) -> torch.Tensor:
    """Return the values of n samples as one tensor."""
    filled = [value for value in values if not _is_empty_list(value)] or list(values)
    dtype = _common_dtype(filled, padding)
    largest = np.max([_size(value, padding) for value in values], axis=0)
    size = padding.size or tuple(_rounded(length, padding) for length in largest)
    out = process_memory.empty((len(values), *_padded_shape(filled[0], size, padding)), dtype)
    write_padded(values, out, padding)
    return out


def join_tensors(values: Sequence[torch.Tensor], padding: Padding) -> torch.Tensor:
    """Return values [length, ...] one after the other."""
    filled = [value for value in values if not _is_empty_list(value)] or list(values[:1])
    return filled[0] if len(filled) == 1 else torch.cat(filled).to(_common_dtype(filled, padding))


def positions_of(sizes: torch.Tensor, joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return which of n samples each element of joined values belongs to, and where each sample starts and ends.

    Args:
        sizes: int64 [n, 1], lengths of the values.
        joined: [sum of lengths, ...].

    Returns:
        int64 [sum of lengths], and int64 [n + 1], on the device of ``sizes``.
    """
    lengths = sizes[:, 0]
    offsets = torch.zeros(len(lengths) + 1, dtype=torch.int64, device=sizes.device)
    torch.cumsum(lengths, 0, out=offsets[1:])
    if sizes.device.type == "cpu":  # NumPy, because torch would use all its threads, which then wait in a loop
        return torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths.numpy())), offsets
    indexes = torch.arange(len(lengths), device=sizes.device)
    return torch.repeat_interleave(indexes, lengths, output_size=len(joined)), offsets


def join_padded(parts: Sequence[Any]) -> Padded:
    """Return the parts of a batch, `Padded` or arrays of samples that need no padding, as one."""
    padding = next(part.padding for part in parts if isinstance(part, Padded))
    return Padded([value for part in parts for value in (part.values if isinstance(part, Padded) else part)], padding)


def write_padded(values: Sequence[torch.Tensor], out: torch.Tensor, padding: Padding) -> None:
    """Write n values and their padding to a tensor [n, ...]."""
    _check_value(padding.value, out.dtype)
    # NumPy, because torch would divide each row among threads, which costs more than it saves.
    rows: Any = out if out.dtype == torch.bfloat16 else out.numpy()
    for row, value in zip(rows, values, strict=True):
        given: Any = value.to(out.dtype)
        given = given if given.dtype == torch.bfloat16 else given.numpy()
        if padding.axes == 1:
            row[len(given) :] = padding.value
            row[: len(given)] = given.reshape(len(given), *row.shape[1:])
        else:
            height, width = given.shape[-2:]
            row[..., height:, :] = padding.value
            row[..., :height, width:] = padding.value
            row[..., :height, :width] = given


def fits_padded(value: Any, out: torch.Tensor, padding: Padding) -> bool:
    """Return whether a value, after padding, has the shape and dtype of the rows of ``out``."""
    return bool(value.dtype == out.dtype and _padded_shape(value, out.shape[-2:], padding) == tuple(out.shape[1:]))


def mask_of(sizes: torch.Tensor, padded: torch.Tensor) -> torch.Tensor:
    """Return where padded tensors have values: bool [n, length], or [n, height, width] for images, on their device.

    Args:
        sizes: int64 [n, axes], sizes of the values.
        padded: [n, length, ...], or [n, ..., height, width].
    """
    if sizes.shape[1] == 1:
        return torch.arange(padded.shape[1], device=sizes.device) < sizes
    if sizes.device.type == "cpu":  # faster than comparing each pixel
        mask = np.zeros((len(sizes), *padded.shape[-2:]), np.bool_)
        for row, (height, width) in zip(mask, sizes.tolist(), strict=True):
            row[:height, :width] = True
        return torch.from_numpy(mask)
    rows, columns = (torch.arange(length, device=sizes.device) for length in padded.shape[-2:])
    return (rows < sizes[:, :1])[:, :, None] & (columns < sizes[:, 1:])[:, None, :]


def fitted(value: torch.Tensor, padding: Padding, error: Callable[[str], Exception]) -> torch.Tensor:
    """Return a value that is not larger than the size after padding."""
    size, actual = padding.size, _size(value, padding)
    if size is None or all(length <= most for length, most in zip(actual, size, strict=True)):
        return value
    if padding.options.truncate:
        return value[: size[0]]
    if padding.axes == 1:
        remedy = f"has length {actual[0]}, but pad=Pad(size={size[0]}): increase size=, or use truncate=True"
    else:
        remedy = (
            f"is {actual[1]}x{actual[0]}, but pad=Pad(size=({size[0]}, {size[1]})), height and width: increase size=, "
            "or use a view that gives smaller images"
        )
    raise error(remedy)


def _size(value: torch.Tensor, padding: Padding) -> tuple[int, ...]:
    return tuple(value.shape[:1] if padding.axes == 1 else value.shape[-2:])


def _is_empty_list(value: torch.Tensor) -> bool:
    """Return whether this may be an empty list from JSON, whose dtype and further dimensions are not known."""
    return value.ndim == 1 and len(value) == 0


def _padded_shape(value: torch.Tensor, size: Sequence[int], padding: Padding) -> tuple[int, ...]:
    return (size[0], *value.shape[1:]) if padding.axes == 1 else (*value.shape[:-2], size[0], size[1])


def _rounded(length: int, padding: Padding) -> int:
    return -(-int(length) // padding.options.multiple_of) * padding.options.multiple_of


def _common_dtype(values: Sequence[torch.Tensor], padding: Padding) -> torch.dtype:
    """Return the dtype for values, which may differ in the padded dimensions only; pixels must have one dtype."""
    kinds = {(value.shape[1:], None) if padding.axes == 1 else (value.shape[:-2], value.dtype) for value in values}
    dtypes = {value.dtype for value in values}
    try:
        if len(kinds) == 1:
            return reduce(torch.promote_types, dtypes)
    except RuntimeError:  # torch has no common dtype of uint16 and others
        pass
    shown = sorted({f"{tuple(value.shape)} {value.dtype}" for value in values})
    which = "length" if padding.axes == 1 else "height and width"
    raise OptionError(
        f"pad= is for values that differ in {which}, but values of a batch differ in other ways: "
        f"{', '.join(shown[:4])}; use pad=None, which gives a list"
    )


def _check_value(value: float, dtype: torch.dtype) -> None:
    """Check that the value of the padding is a value of a dtype."""
    if dtype.is_floating_point or dtype.is_complex:
        return
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not low <= value <= high or int(value) != value:
        raise OptionError(f"pad={value} is not a value of {dtype}; allowed are whole numbers from {low} to {high}")
