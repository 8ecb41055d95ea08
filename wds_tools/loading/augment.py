"""Augmentation of a batch on the device that holds it, built on torchvision."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torchvision.transforms.v2 import functional

from wds_tools.errors import OptionError
from wds_tools.loading.batch_steps import MAX_VALUES, BatchStep, SampleKeys

_JOHNK_ROUNDS = 64  # each round accepts at least a sixth of the draws for alpha <= 2
_OPERATIONS = (
    "Identity",
    "ShearX",
    "ShearY",
    "TranslateX",
    "TranslateY",
    "Rotate",
    "Brightness",
    "Color",
    "Contrast",
    "Sharpness",
    "Posterize",
    "Solarize",
    "AutoContrast",
    "Equalize",
)


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
        is_flipped = _per_image(keys.uniform(purpose, 1)[:, 0] < self._p, images)
        return torch.where(is_flipped, images.flip(-1), images)


class ColorJitter(BatchStep):
    """Change brightness, contrast, saturation and hue of each image at random, in this order.

    The arguments have the meaning that they have in ``torchvision.transforms.v2.ColorJitter``: a number x draws a
    factor from ``max(0, 1 - x)`` to ``1 + x``, for hue a shift from ``-x`` to ``x``. A pair is the range itself.
    torchvision changes the order of the four at random, and rounds after each of them.

    Args:
        brightness: Range of the factor.
        contrast: Range of the factor.
        saturation: Range of the factor.
        hue: Range of the shift, within -0.5 to 0.5. It is computed image by image, so it is slower than the others.

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
        most = MAX_VALUES.get(images.dtype, 1.0)
        draws = keys.uniform(purpose, 4)
        result = images.float()
        if self._brightness != (1, 1):
            result = (result * _drawn(self._brightness, draws[:, 0], result)).clamp_(0, most)
        if self._contrast != (1, 1):
            mean = functional.rgb_to_grayscale(result).mean((1, 2, 3), keepdim=True)
            result = torch.lerp(mean, result, _drawn(self._contrast, draws[:, 1], result)).clamp_(0, most)
        if self._saturation != (1, 1):
            grey = functional.rgb_to_grayscale(result)
            result = torch.lerp(grey, result, _drawn(self._saturation, draws[:, 2], result)).clamp_(0, most)
        if self._hue != (0, 0):
            shifts = self._hue[0] + (self._hue[1] - self._hue[0]) * draws[:, 3]
            scaled = [
                functional.adjust_hue(image, shift) for image, shift in zip(result / most, shifts.tolist(), strict=True)
            ]
            result = torch.stack(scaled) * most
        return (result if images.is_floating_point() else result.round_()).to(images.dtype)


class RandAugment(BatchStep):
    """Apply ``num_ops`` operations, drawn at random for each image, with one strength (Cubuk et al., 2019).

    The operations and strengths are those of ``torchvision.transforms.v2.RandAugment`` with its 31 bins.

    Args:
        num_ops: Operations per image.
        magnitude: Strength, a whole number from 0 to 30.

    Raises:
        OptionError: An argument is out of range.
    """

    moves_pixels = True

    def __init__(self, num_ops: int = 2, magnitude: int = 9) -> None:
        if num_ops < 1 or not 0 <= magnitude <= 30:
            raise OptionError(
                f"RandAugment(num_ops={num_ops}, magnitude={magnitude}): allowed are 1 operation or more, and "
                "magnitudes from 0 to 30"
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
        for number in range(self._num_ops):
            draws = keys.uniform(f"{purpose} {number}", 2)
            operations = (draws[:, 0] * len(_OPERATIONS)).astype(np.int64)
            signs = np.where(draws[:, 1] < 0.5, -1.0, 1.0)
            result = torch.empty_like(images)
            for operation, sign in sorted(set(zip(operations.tolist(), signs.tolist(), strict=True))):
                chosen = np.flatnonzero((operations == operation) & (signs == sign))
                rows = torch.from_numpy(chosen).to(images.device)
                result[rows] = augmented(images[rows], _OPERATIONS[operation], self._magnitude, sign)
            images = result
        return images


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
            labels = torch.nn.functional.one_hot(labels.long(), self._num_classes).float()
        shares = beta(self._alpha, keys.uniform(f"{purpose} share", 2 * _JOHNK_ROUNDS))
        images, shares = self._mix(images, shares, keys.uniform(f"{purpose} box", 2))
        own = torch.from_numpy(shares).float()[:, None].to(labels.device)
        return images, torch.lerp(labels.roll(-1, 0), labels, own)

    def _check_labels(self, labels: torch.Tensor) -> None:
        """Check that labels are numbers of classes; on a GPU only those of the first batch, as each check waits for it.

        Raises:
            OptionError: A label is not.
        """
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
        self, images: torch.Tensor, shares: NDArray[np.float64], draws: NDArray[np.float64]
    ) -> tuple[torch.Tensor, NDArray[np.float64]]:
        """Return the mixed images, and the share of its own image in each: float64 [n]."""


class MixUp(_Mix):
    """Blend each image, and its label, with the next sample of the batch (Zhang et al., 2018).

    The share of the image is drawn from Beta(alpha, alpha) for each sample. The partner is the next sample in the batch
    of this rank; for the last sample it is the first one. Labels become float32 [n, num_classes].

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
        draws: NDArray[np.float64],  # noqa: ARG002
    ) -> tuple[torch.Tensor, NDArray[np.float64]]:
        mixed = torch.lerp(images.roll(-1, 0).float(), images.float(), _per_image(shares, images))
        return (mixed if images.is_floating_point() else mixed.round_()).to(images.dtype), shares


class CutMix(_Mix):
    """Replace a rectangle of each image by that of the next sample of the batch (Yun et al., 2019).

    The share of the image to keep is drawn from Beta(alpha, alpha) for each sample. The rectangle is clipped to the
    image, and labels are mixed by the share that is then kept. The partner is the next sample in the batch of this
    rank; for the last sample it is the first one. Labels become float32 [n, num_classes].

    Args:
        num_classes: Number of classes.
        alpha: Parameter of the distribution, above 0 and at most 2.

    Raises:
        OptionError: An argument is out of range.
    """

    def _mix(
        self, images: torch.Tensor, shares: NDArray[np.float64], draws: NDArray[np.float64]
    ) -> tuple[torch.Tensor, NDArray[np.float64]]:
        height, width = images.shape[-2:]
        half = 0.5 * np.sqrt(1 - shares)
        top, bottom = _span(draws[:, 0], half, height)
        left, right = _span(draws[:, 1], half, width)
        rows = torch.arange(height, device=images.device)[:, None]
        columns = torch.arange(width, device=images.device)
        is_row_cut = (rows >= _per_image(top, images)) & (rows < _per_image(bottom, images))
        is_column_cut = (columns >= _per_image(left, images)) & (columns < _per_image(right, images))
        own = 1 - (bottom - top) * (right - left) / (height * width)
        return torch.where(is_row_cut & is_column_cut, images.roll(-1, 0), images), own


def beta(alpha: float, draws: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers with the distribution Beta(alpha, alpha), by the method of Jöhnk: float64 [n].

    Args:
        alpha: Above 0, and at most 2.
        draws: float64 [n, 2 * rounds], uniform in [0, 1).
    """
    powers = np.maximum(draws.reshape(len(draws), -1, 2), 1e-300) ** (1 / alpha)
    sums = powers.sum(-1)
    is_accepted = (sums <= 1) & (sums > 0)
    is_accepted[:, -1] = True
    rows, chosen = np.arange(len(powers)), is_accepted.argmax(1)
    return np.asarray(powers[rows, chosen, 0] / np.maximum(sums[rows, chosen], 1e-300))


def augmented(images: torch.Tensor, operation: str, magnitude: int, sign: float) -> torch.Tensor:
    """Return images after an operation of RandAugment.

    Args:
        images: uint8 [n, 3, height, width].
        operation: Name of the operation.
        magnitude: 0 to 30.
        sign: 1.0 or -1.0, for operations that have a direction.
    """
    height, width = images.shape[-2:]
    level = magnitude / 30 * sign
    factor = 1 + 0.9 * level
    still: dict[str, Any] = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    shear = float(np.degrees(np.arctan(0.3 * level)))
    functions: dict[str, Callable[[], Any]] = {
        "Identity": lambda: images,
        "ShearX": lambda: functional.affine(images, **{**still, "shear": [shear, 0.0]}, center=[0, 0]),
        "ShearY": lambda: functional.affine(images, **{**still, "shear": [0.0, shear]}, center=[0, 0]),
        "TranslateX": lambda: functional.affine(images, **{**still, "translate": [int(150 / 331 * width * level), 0]}),
        "TranslateY": lambda: functional.affine(images, **{**still, "translate": [0, int(150 / 331 * height * level)]}),
        "Rotate": lambda: functional.rotate(images, angle=30 * level),
        "Brightness": lambda: functional.adjust_brightness(images, factor),
        "Color": lambda: functional.adjust_saturation(images, factor),
        "Contrast": lambda: functional.adjust_contrast(images, factor),
        "Sharpness": lambda: functional.adjust_sharpness(images, factor),
        "Posterize": lambda: functional.posterize(images, 8 - round(magnitude / 7.5)),
        "Solarize": lambda: functional.solarize(images, 255 * (1 - magnitude / 30)),
        "AutoContrast": lambda: functional.autocontrast(images),
        "Equalize": lambda: functional.equalize(images),
    }
    result: torch.Tensor = functions[operation]()
    return result


def _per_image(values: NDArray[Any], images: torch.Tensor) -> torch.Tensor:
    """Return one value per image as a tensor [n, 1, 1, 1] on the device of the images, float32 if it is fractional."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    tensor = tensor.float() if tensor.is_floating_point() else tensor
    return tensor.to(images.device, non_blocking=True)[:, None, None, None]


def _drawn(limits: tuple[float, float], draws: NDArray[np.float64], images: torch.Tensor) -> torch.Tensor:
    low, high = limits
    return _per_image(low + (high - low) * draws, images)


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
