"""Augmentation of a batch on the device that holds it, built on torchvision."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional

from wds_tools.errors import OptionError
from wds_tools.loading.samples.batch_steps import MAX_VALUES, BatchStep, SampleKeys, per_image, sent_to

_JOHNK_ROUNDS = 64  # each round accepts at least a sixth of the draws for alpha <= 2
_ROUNDS_AT_ONCE = 8
_HUES = ((3, 1, -1), (2, -1, 2), (4, -1, 2))  # (h, a, b) of red, green, blue: their share at hue x is a * |x - h| + b


class RandomHorizontalFlip(BatchStep):
    """Mirror each image with a probability.

    Args:
        p: Probability, 0 to 1.

    Raises:
        OptionError: ``p`` is not a probability.
    """

    moves_pixels = True

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise OptionError(f"RandomHorizontalFlip(p={p}): allowed are 0 to 1")
        self._p = p

    def __repr__(self) -> str:
        return f"RandomHorizontalFlip({self._p})"

    def apply(self, images: torch.Tensor, labels: torch.Tensor | None, keys: SampleKeys, purpose: str) -> torch.Tensor:  # noqa: ARG002
        """See `BatchStep.apply`."""
        (is_flipped,) = sent_to(images.device, keys.uniform(purpose, 1)[:, 0] < self._p)
        return torch.where(per_image(is_flipped), images.flip(-1), images)


class ColorJitter(BatchStep):
    """Change brightness, contrast, saturation and hue of each image at random, in this order.

    The arguments mean the same as in ``torchvision.transforms.v2.ColorJitter``: a number x draws a
    factor from ``max(0, 1 - x)`` to ``1 + x``, for hue a shift from ``-x`` to ``x``. A pair is the range itself.
    torchvision changes the order of the four at random, and rounds after each of them.

    Args:
        brightness: Range of the factor.
        contrast: Range of the factor.
        saturation: Range of the factor.
        hue: Range of the shift, within -0.5 to 0.5.

    Raises:
        OptionError: A range is invalid.
    """

    def __init__(
        self,
        brightness: float | tuple[float, float] = 0,
        contrast: float | tuple[float, float] = 0,
        saturation: float | tuple[float, float] = 0,
        hue: float | tuple[float, float] = 0,
    ) -> None:
        self._brightness = _range("brightness", brightness)
        self._contrast = _range("contrast", contrast)
        self._saturation = _range("saturation", saturation)
        limits = (-hue, hue) if _is_number(hue) else hue
        if not _is_pair(limits) or not -0.5 <= limits[0] <= limits[1] <= 0.5:
            raise OptionError(f"ColorJitter(hue={hue!r}): allowed are 0 to 0.5, or a pair within -0.5 to 0.5")
        self._hue = limits[0], limits[1]

    def __repr__(self) -> str:
        return f"ColorJitter({self._brightness}, {self._contrast}, {self._saturation}, {self._hue})"

    def apply(self, images: torch.Tensor, labels: torch.Tensor | None, keys: SampleKeys, purpose: str) -> torch.Tensor:  # noqa: ARG002
        """See `BatchStep.apply`."""
        if not images.is_floating_point() and images.dtype not in MAX_VALUES:
            raise OptionError(
                f"ColorJitter: the images are {images.dtype}, whose white is unknown; allowed are uint8, uint16 and "
                "floating-point values from 0 to 1"
            )
        if images.shape[1] not in (1, 3) and self._needs_colors:
            raise OptionError(
                f"ColorJitter: the images have {images.shape[1]} channels; allowed are 1 and 3, and any number if only "
                "the brightness is changed"
            )
        most = MAX_VALUES.get(images.dtype, 1.0)
        low, high = np.array([self._brightness, self._contrast, self._saturation, self._hue]).T
        values, hues = sent_to(
            images.device, (low + (high - low) * keys.uniform(purpose, 4)).T, np.array(_HUES, np.float32).T
        )
        brightness, contrast, saturation, shift = (per_image(row) for row in values)
        result = images.float()
        if self._brightness != (1, 1):
            result = (result * brightness).clamp_(0, most)
        if self._contrast != (1, 1):
            mean = functional.rgb_to_grayscale(result).mean((1, 2, 3), keepdim=True)
            result = torch.lerp(mean, result, contrast).clamp_(0, most)
        if self._saturation != (1, 1):
            grey = functional.rgb_to_grayscale(result)
            result = torch.lerp(grey, result, saturation).clamp_(0, most)
        if self._hue != (0, 0) and images.shape[1] == 3:
            result = _with_hue(result, shift, hues)
        return (result if images.is_floating_point() else result.round_()).to(images.dtype)

    @property
    def _needs_colors(self) -> bool:
        return (self._contrast, self._saturation, self._hue) != ((1, 1), (1, 1), (0, 0))


def _with_hue(images: torch.Tensor, shift: torch.Tensor, hues: torch.Tensor) -> torch.Tensor:
    """Return images with another hue.

    Args:
        images: float32 [n, 3, height, width], with any white.
        shift: float32 [n, 1, 1, 1], -0.5 to 0.5; 1 is once around the circle of hues.
        hues: [3, 3], transposed `_HUES`.
    """
    low, high = torch.aminmax(images, dim=1, keepdim=True)
    chroma = high - low
    red, green, blue = images.split(1, 1)
    if_green, if_blue = (blue - red).add_(chroma, alpha=2), (red - green).add_(chroma, alpha=4)
    hue = torch.where(high == red, green - blue, torch.where(high == green, if_green, if_blue))
    hue.div_(chroma.clamp_min(torch.finfo(torch.float32).tiny))  # a grey pixel stays, with any hue
    hue.add_(shift, alpha=6).remainder_(6)
    peak, slope, start = hues[..., None, None]
    return torch.lerp(low, high, torch.addcmul(start, (hue - peak).abs_(), slope).clamp_(0, 1))


class _Mix(BatchStep):
    """What `MixUp` and `CutMix` share."""

    needs_labels = True
    moves_pixels = True

    def __init__(self, *, num_classes: int, alpha: float = 1.0) -> None:
        if not 0 < alpha <= 2 or num_classes < 1:
            raise OptionError(
                f"{type(self).__name__}(num_classes={num_classes}, alpha={alpha}): allowed are 1 class or more, and "
                "an alpha above 0 and at most 2"
            )
        self._alpha, self._num_classes = alpha, num_classes
        self._has_checked_labels = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_classes={self._num_classes}, alpha={self._alpha})"

    def apply(
        self, images: torch.Tensor, labels: torch.Tensor | None, keys: SampleKeys, purpose: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `BatchStep.apply`. The labels become float32 [n, num_classes]."""
        assert labels is not None
        if labels.ndim == 1:
            self._check_labels(labels)
            zeros = torch.zeros((len(labels), self._num_classes), device=labels.device)
            labels = zeros.scatter_(1, labels.long()[:, None], 1)
        images, own = self._mix(images, beta(self._alpha, keys, f"{purpose} share"), keys, f"{purpose} box")
        return images, torch.lerp(labels.roll(-1, 0), labels, own[:, None])

    def _check_labels(self, labels: torch.Tensor) -> None:
        """Check that labels are numbers of classes; on a GPU only in the first batch, as each check waits for it."""
        if self._has_checked_labels and labels.device.type != "cpu":
            return
        self._has_checked_labels = True
        lowest, highest = int(labels.min()), int(labels.max())
        if lowest < 0 or highest >= self._num_classes:
            raise OptionError(
                f"{type(self).__name__}(num_classes={self._num_classes}): a batch has the label "
                f"{lowest if lowest < 0 else highest}; allowed are labels from 0 to {self._num_classes - 1}: use "
                "num_classes=len(loader.classes), and exclude samples without a label"
            )

    @abstractmethod
    def _mix(
        self, images: torch.Tensor, shares: NDArray[np.float64], keys: SampleKeys, purpose: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mixed images, and the share of its own image in each: float32 [n] on their device."""


class MixUp(_Mix):
    """Blend each image, and its label, with the next sample of the batch (Zhang et al., 2018).

    The share of the image is drawn from Beta(alpha, alpha) for each sample. The partner is the next sample in the batch
    of this rank; for the last sample it is the first one. So the share does not depend on the number of ranks, but the
    partner does. A resumed run has the same partners on the same number of ranks. Labels become float32
    [n, num_classes].

    Args:
        num_classes: Number of classes.
        alpha: Parameter of the distribution, above 0 and at most 2.

    Raises:
        OptionError: An argument is out of range.
    """

    def _mix(
        self,
        images: torch.Tensor,
        shares: NDArray[np.float64],
        keys: SampleKeys,  # noqa: ARG002
        purpose: str,  # noqa: ARG002
    ) -> tuple[torch.Tensor, torch.Tensor]:
        (own,) = sent_to(images.device, shares)
        mixed = torch.lerp(images.roll(-1, 0).float(), images.float(), per_image(own))
        return (mixed if images.is_floating_point() else mixed.round_()).to(images.dtype), own


class CutMix(_Mix):
    """Replace a rectangle of each image with the same rectangle of the next sample of the batch (Yun et al., 2019).

    The share of the image to keep is drawn from Beta(alpha, alpha) for each sample. The rectangle is clipped to the
    image, and labels are mixed by the share that is actually kept. The partner is the next sample in the batch of this
    rank; for the last sample it is the first one. So the rectangle does not depend on the number of ranks, but the
    partner does. A resumed run has the same partners on the same number of ranks. Labels become float32
    [n, num_classes].

    Args:
        num_classes: Number of classes.
        alpha: Parameter of the distribution, above 0 and at most 2.

    Raises:
        OptionError: An argument is out of range.
    """

    def _mix(
        self, images: torch.Tensor, shares: NDArray[np.float64], keys: SampleKeys, purpose: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        height, width = images.shape[-2:]
        draws, half = keys.uniform(purpose, 2), 0.5 * np.sqrt(1 - shares)
        top, bottom = _span(draws[:, 0], half, height)
        left, right = _span(draws[:, 1], half, width)
        share = 1 - (bottom - top) * (right - left) / (height * width)
        spans, own = sent_to(images.device, np.stack([top, bottom, left, right]), share)
        first_row, last_row, first_column, last_column = (per_image(span) for span in spans)
        rows = torch.arange(height, device=images.device)[:, None]
        columns = torch.arange(width, device=images.device)
        is_row_cut = (rows >= first_row) & (rows < last_row)
        is_column_cut = (columns >= first_column) & (columns < last_column)
        return torch.where(is_row_cut & is_column_cut, images.roll(-1, 0), images), own


def beta(alpha: float, keys: SampleKeys, purpose: str) -> NDArray[np.float64]:
    """Return numbers with the distribution Beta(alpha, alpha), by the method of Jöhnk: float64 [n].

    Args:
        alpha: Above 0, and at most 2.
        keys: The samples.
        purpose: Purpose of the random numbers.
    """
    shares, left = np.empty(len(keys.positions)), np.arange(len(keys.positions))
    for start in range(0, _JOHNK_ROUNDS, _ROUNDS_AT_ONCE):
        columns = slice(2 * start, 2 * (start + _ROUNDS_AT_ONCE))
        draws = replace(keys, positions=keys.positions[left]).uniform(purpose, 2 * _JOHNK_ROUNDS, columns)
        powers = np.maximum(draws.reshape(-1, _ROUNDS_AT_ONCE, 2), 1e-300) ** (1 / alpha)
        sums = powers.sum(-1)
        is_accepted = (sums <= 1) & (sums > 0)
        is_accepted[:, -1] |= columns.stop == 2 * _JOHNK_ROUNDS
        rows, chosen = np.arange(len(left)), is_accepted.argmax(1)
        shares[left] = powers[rows, chosen, 0] / np.maximum(sums[rows, chosen], 1e-300)
        left = left[~is_accepted.any(1)]
    return shares


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float | np.number)


def _is_pair(value: Any) -> TypeGuard[tuple[float, float]]:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(_is_number, value))


def _range(name: str, value: float | tuple[float, float]) -> tuple[float, float]:
    """Return the limits of a factor."""
    limits = (max(0.0, 1 - value), 1 + value) if _is_number(value) and value >= 0 else value
    if not _is_pair(limits) or not 0 <= limits[0] <= limits[1]:
        raise OptionError(f"ColorJitter({name}={value!r}): allowed are 0 or more, or a pair of factors (low, high)")
    return limits[0], limits[1]


def _span(center: NDArray[np.float64], half: NDArray[np.float64], size: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return start and stop of a span of pixels around a centre, clipped to the image: int64 [n] each."""
    middle, radius = np.floor(center * size), np.floor(half * size)
    start, stop = np.clip(middle - radius, 0, size), np.clip(middle + radius, 0, size)
    return start.astype(np.int64), stop.astype(np.int64)
