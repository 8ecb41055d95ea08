"""RandAugment of a batch, with a number of kernels that does not depend on the number of images.

In each round the images are sorted by operation, so that the images of an operation are a slice. There are three kinds:

* warps (shear, translate, rotate) are one ``grid_sample``, with a matrix for each image;
* blends (contrast, colour, sharpness) move values away from or towards another image, by a factor for each image;
* tables (brightness, posterize, solarize, autocontrast, equalize) replace each value of a channel by another one.

All random numbers are drawn on the CPU, and sent in one copy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from wds_tools.errors import OptionError
from wds_tools.loading.samples.batch_steps import BatchStep, SampleKeys, per_image, sent_to

_OPERATIONS = (  # in the order of torchvision
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"),
    *("Brightness", "Color", "Contrast", "Sharpness"),
    *("Posterize", "Solarize", "AutoContrast", "Equalize"),
)
_WARPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_BLENDS = ("Contrast", "Color", "Sharpness")
_TABLES = ("Brightness", "Posterize", "Solarize", "AutoContrast", "Equalize")
_SORTED = ("Identity", *_WARPS, *_BLENDS, *_TABLES)
_RANKS = np.array([_SORTED.index(name) for name in _OPERATIONS])
_GREY = (0.2989, 0.587, 0.114)
_MAX_MAGNITUDE = 30
_IMAGES_ON_CPU = 24


class RandAugment(BatchStep):
    """Apply ``num_ops`` operations, drawn at random for each image, with one strength (Cubuk et al., 2019).

    The operations and strengths are the same as in ``torchvision.transforms.v2.RandAugment`` with its 31 bins.

    Args:
        num_ops: Operations per image.
        magnitude: Strength, a whole number from 0 to 30.

    Raises:
        OptionError: An argument is out of range.
    """

    moves_pixels = True

    def __init__(self, num_ops: int = 2, magnitude: int = 9) -> None:
        if num_ops < 1 or not 0 <= magnitude <= _MAX_MAGNITUDE:
            raise OptionError(
                f"RandAugment(num_ops={num_ops}, magnitude={magnitude}): allowed are 1 operation or more, and "
                f"magnitudes from 0 to {_MAX_MAGNITUDE}"
            )
        self._num_ops, self._magnitude = num_ops, magnitude

    def __repr__(self) -> str:
        return f"RandAugment({self._num_ops}, {self._magnitude})"

    def apply(self, images: torch.Tensor, labels: torch.Tensor | None, keys: SampleKeys, purpose: str) -> torch.Tensor:  # noqa: ARG002
        """See `BatchStep.apply`."""
        if images.dtype != torch.uint8:
            raise OptionError(
                f"{self}: the images are {images.dtype}; allowed is uint8, so this step must come before Normalize"
            )
        if images.shape[1] not in (1, 3):
            raise OptionError(f"{self}: the images have {images.shape[1]} channels; allowed are 1 and 3")
        # A CPU keeps the temporary tensors of a few images in its cache; a device needs as few kernels as possible.
        count = _IMAGES_ON_CPU if images.is_cpu else len(images)
        result = torch.empty(images.shape, dtype=images.dtype, device=images.device)
        for start in range(0, len(images), count):
            own = slice(start, start + count)
            self._write(images[own], replace(keys, positions=keys.positions[own]), purpose, result[own])
        return result

    def _write(self, images: torch.Tensor, keys: SampleKeys, purpose: str, out: torch.Tensor) -> None:
        rounds = [
            _Round.drawn(keys.uniform(f"{purpose} {index}", 2), self._magnitude) for index in range(self._num_ops)
        ]
        orders, parts = _sent(images, rounds, self._magnitude)
        for round_, order, constants in zip(rounds, orders, parts, strict=False):
            images = images.index_select(0, order)
            _augment(images[round_.unchanged :], round_, constants)
        torch.index_select(images, 0, orders[-1], out=out)


@dataclass(frozen=True, slots=True)
class _Round:
    """The operations of one round. Slices refer to the changed images: all but the first ``unchanged``.

    Attributes:
        order: int64 [n], the images sorted by operation.
        signs: float64, -1 or 1 for each changed image.
        magnitude: 0 to 30.
        stops: Where the images of each operation end among the changed ones.
    """

    order: NDArray[np.int64]
    signs: NDArray[np.float64]
    magnitude: int
    stops: NDArray[np.int64]

    @classmethod
    def drawn(cls, draws: NDArray[np.float64], magnitude: int) -> _Round:
        """Return the round for random numbers in [0, 1): float64 [n, 2]."""
        ranks = _RANKS[(draws[:, 0] * len(_OPERATIONS)).astype(np.int64)]
        order = np.argsort(ranks, kind="stable")
        stops = np.searchsorted(ranks[order], np.arange(len(_SORTED)), "right")
        signs = np.where(draws[order, 1] < 0.5, -1.0, 1.0)
        return cls(order, signs[stops[0] :], magnitude, stops - stops[0])

    @property
    def unchanged(self) -> int:
        """Number of images that stay as they are."""
        return len(self.order) - len(self.signs)

    def of(self, *names: str) -> slice:
        """Return the images of operations that follow one another in the sorted order."""
        return slice(int(self.stops[_SORTED.index(names[0]) - 1]), int(self.stops[_SORTED.index(names[-1])]))

    def warps(self, height: int, width: int) -> NDArray[np.float64]:
        """Return where the pixels of warped images come from: float64 [m, 2, 3].

        The position (x, y) is the product of such a matrix with (x, y, 1), in pixels from the centre of the image.
        """
        matrices = np.empty((len(self.signs), 2, 3))
        shear, angle = _strength(0.3, self.magnitude), np.radians(_strength(30, self.magnitude))
        x, y = (np.trunc(_strength(150 / 331 * size, self.magnitude)) for size in (width, height))
        by_name: dict[str, list[list[float]]] = {
            "ShearX": [[1, shear, shear * height / 2], [0, 1, 0]],  # the upper edge stays where it is
            "ShearY": [[1, 0, 0], [shear, 1, shear * width / 2]],  # the left edge
            "TranslateX": [[1, 0, -x], [0, 1, 0]],
            "TranslateY": [[1, 0, 0], [0, 1, -y]],
            "Rotate": [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0]],
        }
        for name, matrix in by_name.items():  # the numbers off the diagonal have the sign
            signs = self.signs[self.of(name), None, None]
            matrices[self.of(name)] = np.where(np.eye(2, 3, dtype=bool), matrix, signs * np.array(matrix))
        return matrices[self.of(*_WARPS)]

    def tables(self) -> NDArray[np.int64]:
        """Return the row of `_tables` for each image with a table: int64 [m]."""
        rows = np.full(len(self.signs), 4)
        rows[self.of("Brightness")] = self.signs[self.of("Brightness")] > 0
        rows[self.of("Posterize")], rows[self.of("Solarize")] = 2, 3
        return rows[self.of(*_TABLES)]

    def roundings(self) -> NDArray[np.float64]:
        """Return what is added before a value is rounded down, for each image with a table of its own: float64 [m]."""
        values = np.zeros(len(self.signs))
        values[self.of("Equalize")] = 0.5
        return values[self.of("AutoContrast", "Equalize")]


def _strength(limit: float, magnitude: int) -> float:
    """Return a strength from 0 to a limit, with the rounding of torchvision."""
    return float(torch.linspace(0, limit, _MAX_MAGNITUDE + 1, device="cpu")[magnitude])


def _tables(magnitude: int) -> NDArray[np.float32]:
    """Return the tables of darker, brighter, posterize, solarize and identity: [5, 256]."""
    values, change = np.arange(256), _strength(0.9, magnitude)
    brightness = values.astype(np.float32) * np.array([[1 - change], [1 + change]], np.float32)
    posterized = values & (0xFF << round(magnitude / 7.5))
    threshold = np.float32(255 * float(torch.linspace(1, 0, _MAX_MAGNITUDE + 1, device="cpu")[magnitude]))
    solarized = np.where(values >= threshold, 255 - values, values)
    return np.stack([*brightness, posterized, solarized, values], dtype=np.float32)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """What one round needs on the device, besides the images.

    Attributes:
        grid: float32 [warps, height, width, 2], see ``grid_sample``.
        factors: float32 [blends, 1, 1, 1].
        tables: float32 [tables, channels, 256].
        roundings: float32 [tables of their own, 1, 1].
        histograms: int64 [equalize, channels, 257], zeros.
        grey: float32 [channels, 1, 1], weights of a grey image.
        scaled: int64 [257], 255 times 0 to 256.
        one: int64 [1], 1.
    """

    grid: torch.Tensor
    factors: torch.Tensor
    tables: torch.Tensor
    roundings: torch.Tensor
    histograms: torch.Tensor
    grey: torch.Tensor
    scaled: torch.Tensor
    one: torch.Tensor


def _sent(images: torch.Tensor, rounds: list[_Round], magnitude: int) -> tuple[torch.Tensor, list[_Numbers]]:
    """Return the order of images for each round and at the end, int64 [rounds + 1, n], and what each round needs.

    What does not depend on pixels is computed for all rounds at once, which saves kernels.
    """
    channels, height, width = images.shape[1:]
    back = [np.argsort(round_.order) for round_ in rounds]
    between = [before[round_.order] for before, round_ in zip(back, rounds[1:], strict=False)]
    orders, x, y, grey, scaled, unit, fixed, warps, factors, rows, roundings = sent_to(
        images.device,
        np.stack([rounds[0].order, *between, back[-1]]),
        np.arange(width) - (width - 1) / 2,
        np.arange(height) - (height - 1) / 2,
        np.array(_GREY if channels == 3 else [1.0]),
        255 * np.arange(257),
        np.ones(1, np.int64),
        _tables(magnitude),
        np.concatenate([round_.warps(height, width) for round_ in rounds]) * [[2 / width], [2 / height]],
        1 + _strength(0.9, magnitude) * np.concatenate([round_.signs[round_.of(*_BLENDS)] for round_ in rounds]),
        np.concatenate([np.repeat(round_.tables(), channels) for round_ in rounds]),
        np.concatenate([round_.roundings() for round_ in rounds]),
    )

    def by_round(tensor: torch.Tensor, *names: str) -> tuple[torch.Tensor, ...]:
        parts: tuple[torch.Tensor, ...] = tensor.split([len(round_.signs[round_.of(*names)]) for round_ in rounds])
        return parts

    by_x, by_y, fix = warps[..., None, None].unbind(2)
    grids = torch.addcmul(torch.addcmul(fix, by_x, x), by_y, y[:, None])
    equalized = sum(len(round_.signs[round_.of("Equalize")]) for round_ in rounds)
    parts = zip(
        by_round(grids.permute(0, 2, 3, 1), *_WARPS),
        by_round(per_image(factors), *_BLENDS),
        by_round(fixed.index_select(0, rows).view(-1, channels, 256), *_TABLES),
        by_round(roundings[:, None, None], "AutoContrast", "Equalize"),
        by_round(torch.zeros((equalized, channels, 257), dtype=torch.int64, device=images.device), "Equalize"),
        strict=True,
    )
    return orders, [_Numbers(*part, grey[:, None, None], scaled, unit) for part in parts]


def _augment(images: torch.Tensor, round_: _Round, constants: _Numbers) -> None:
    """Apply the operations of a round to its changed images, in place."""
    floats = torch.empty(images.shape, device=images.device)
    warps, others = round_.of(*_WARPS), round_.of(*_BLENDS, *_TABLES)
    loaded = slice(0, round_.of(*_BLENDS).stop)
    floats[loaded].copy_(images[loaded])
    images[warps].copy_(functional.grid_sample(floats[warps], constants.grid, mode="nearest", align_corners=False))
    _blend(floats, round_, constants)
    _look_up(images[round_.of(*_TABLES)], floats[round_.of(*_TABLES)], constants)
    images[others].copy_(floats[others].clamp_(0, 255))  # rounds down, as torchvision does


def _blend(floats: torch.Tensor, round_: _Round, constants: _Numbers) -> None:
    """Apply contrast, colour and sharpness in place, to be clamped."""
    contrast, color, sharpness = (floats[round_.of(name)] for name in _BLENDS)
    factors = constants.factors.split([len(contrast), len(color), len(sharpness)])
    grey = (floats[round_.of("Contrast", "Color")] * constants.grey).sum(1, keepdim=True).floor_()
    mean = grey[: len(contrast)].mean((1, 2, 3), keepdim=True)
    torch.lerp(mean, contrast, factors[0], out=contrast)
    torch.lerp(grey[len(contrast) :], color, factors[1], out=color)
    if min(floats.shape[-2:]) > 2:  # as in torchvision; the pixels at the edges stay
        inner = sharpness[..., 1:-1, 1:-1]
        mean_of_nine = functional.avg_pool2d(sharpness, 3, 1, divisor_override=13)
        blurred = mean_of_nine.add_(inner, alpha=4 / 13).round_()  # weights 1/13, and 5/13 in the middle
        torch.lerp(blurred, inner, factors[2], out=inner)


def _look_up(images: torch.Tensor, floats: torch.Tensor, constants: _Numbers) -> None:
    """Write what the tables have for the values of images to ``floats``, to be clamped.

    The last tables are computed: first for autocontrast, then for equalize. Both are ``count / step``, and
    ``step`` is a 255th of the count of the highest value, rounded down. For equalize, ``count`` is how many pixels have
    a smaller value; for autocontrast it is ``255 * (value - lowest)``. A channel whose step is 0 stays as it is.
    """
    index = images.flatten(2).long()
    own = len(index) - len(constants.roundings)
    contrasted = len(constants.roundings) - len(constants.histograms)
    low, high = torch.aminmax(index[own:], dim=-1, keepdim=True)
    counts = torch.empty((len(low), *constants.histograms.shape[1:]), dtype=torch.int64, device=images.device)
    torch.sub(constants.scaled, low[:contrasted], alpha=255, out=counts[:contrasted])
    pixels = index[own + contrasted :]
    constants.histograms[..., 1:].scatter_add_(-1, pixels, constants.one.expand_as(pixels))
    torch.cumsum(constants.histograms, -1, out=counts[contrasted:])
    steps = torch.empty(high.shape, device=images.device)
    torch.div(counts.gather(-1, high), 255, rounding_mode="floor", out=steps)
    tables = constants.tables[own:]
    computed = torch.addcdiv(constants.roundings, counts[..., :256], steps)
    torch.where(steps > 0, computed, tables, out=tables)
    torch.gather(constants.tables, -1, index, out=floats.flatten(2))
