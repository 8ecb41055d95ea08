"""From sample ids to the fields of a batch: read, decode, crop and transform. This is the work of one worker."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import (
    DecodeError,
    MissingFieldError,
    OptionError,
    SampleError,
    TransformError,
    WdsToolsError,
    printable,
)
from wds_tools.format.codecs import CODECS, MAX_PIXELS, decode_field
from wds_tools.format.index import NO_LABEL
from wds_tools.format.sample import IMAGE_FIELDS, make_record
from wds_tools.images import native
from wds_tools.images.decode import DeepPixels, Pixels, decode_rgb, decode_stored
from wds_tools.images.resize import render_region
from wds_tools.images.views import Regions, View
from wds_tools.loading.bad_samples import is_sample_error
from wds_tools.order.keyed_random import key_of, uniform
from wds_tools.reading.reader import Reader, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wds_tools.reading.shardset import ShardSet

Transform = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Recipe:
    """Options that determine the content of a batch. They are pickled to every worker.

    Attributes:
        shards: The dataset.
        block: Samples per block: one number, or int64 [shards].
        seed: Seed of crops, flips and transforms.
        fields: Names of the fields of a sample.
        view: Region of the image and output size; None keeps the full image.
        transform: The user's function of a uint8 tensor [3, height, width], or an Albumentations transform.
        replaces: Whether unreadable samples are replaced. They are then reported one by one.
    """

    shards: ShardSet
    block: int | NDArray[np.int64]
    seed: int
    fields: tuple[str, ...]
    view: View | None
    transform: Transform | None
    replaces: bool = False

    @property
    def has_slots(self) -> bool:
        """Whether the view gives all images one size, so that they can be written to shared memory."""
        return "image" in self.fields and self.view is not None and self.view.shape is not None

    @property
    def image_spec(self) -> ImageSpec | None:
        """Shape and dtype of an image, if known in advance; None if sizes differ or a transform decides it."""
        if self.view is None or self.view.shape is None or "image" not in self.fields or self.transform is not None:
            return None
        return ImageSpec((3, *self.view.shape), torch.uint8)


@dataclass(frozen=True, slots=True)
class ImageSpec:
    """Shape and dtype of one image in a batch, after the transform."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Size of one image in bytes."""
        return int(np.prod(self.shape)) * self.dtype.itemsize


class Assembler:
    """Reads and decodes the samples of batches.

    Args:
        recipe: Options that determine the content of a batch.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.reader = Reader(recipe.shards, block=recipe.block)

    def read_ahead(self, ids: NDArray[np.int64]) -> None:
        """Start to read the samples of a later batch."""
        self.reader.read_ahead(ids)

    def image_spec(self, *, epoch: int, positions: NDArray[np.int64], ids: NDArray[np.int64]) -> ImageSpec | None:
        """Return the shape and dtype of images after the transform, or None if it does not return tensors.

        The first readable sample of ``ids`` is decoded and transformed to find out.
        """
        for i in range(len(ids)):
            one = slice(i, i + 1)
            try:
                image = self._images(self.reader.rows(ids[one]), epoch, positions[one], None)[0]
            except WdsToolsError as error:
                if not self.recipe.replaces or not is_sample_error(error):
                    raise
                continue
            return ImageSpec(tuple(image.shape), image.dtype) if isinstance(image, torch.Tensor) else None
        return None

    def batch(
        self, *, epoch: int, positions: NDArray[np.int64], ids: NDArray[np.int64], out: torch.Tensor | None
    ) -> list[Any]:
        """Return the values of each field for n samples.

        Args:
            epoch: Zero-based epoch.
            positions: int64 [n], positions in the epoch. They determine crops and flips.
            ids: int64 [n], sample ids.
            out: Tensor [n, *image_spec.shape] to write images to, or None to return them.

        Returns:
            One value per field: ``image`` is a list of n tensors, or None if written to ``out``; ``label`` is int64
            [n]; other fields are lists of n values.

        Raises:
            SampleError: A sample cannot be decoded or lacks a field.
            ChecksumError: Bytes have changed since they were packed.
        """
        rows = self.reader.rows(ids)
        values: list[Any] = []
        for name in self.recipe.fields:
            if name == "image":
                images = self._images(rows, epoch, positions, out)
                values.append(images if out is None else None)
            elif name == "label":
                values.append(_labels(rows))
            elif name == "__key__":
                values.append(rows.keys())
            else:
                values.append(_field(rows, name))
        return values

    def samples_or_errors(
        self, *, epoch: int, positions: NDArray[np.int64], ids: NDArray[np.int64], out: torch.Tensor | None
    ) -> list[list[Any] | WdsToolsError]:
        """Load each sample separately. Return its values, as a batch of one sample, or its error."""
        samples: list[list[Any] | WdsToolsError] = []
        for i in range(len(ids)):
            one = slice(i, i + 1)
            try:
                row = None if out is None else out[one]
                samples.append(self.batch(epoch=epoch, positions=positions[one], ids=ids[one], out=row))
            except WdsToolsError as error:
                if not is_sample_error(error):
                    raise
                samples.append(error)
        return samples

    def _images(
        self, rows: Rows, epoch: int, positions: NDArray[np.int64], out: torch.Tensor | None
    ) -> list[torch.Tensor]:
        view, transform = self.recipe.view, self.recipe.transform
        regions = self._regions(rows, epoch, positions) if view else None
        decoded = _decode_images(rows, regions, self._pixel_buffer(len(rows), out))
        if out is not None and transform is None:
            return []
        images = [torch.from_numpy(pixels) for pixels in decoded]
        if transform is None:
            return images
        with stages.TRANSFORM:
            return [
                self._transformed(image, rows, i, epoch, position, out)
                for i, (image, position) in enumerate(zip(images, positions.tolist(), strict=True))
            ]

    def _pixel_buffer(self, count: int, out: torch.Tensor | None) -> Pixels | None:
        """Return an array for the pixels, uint8 [count, 3, height, width], or None if the images differ in size."""
        view = self.recipe.view
        if view is None or view.shape is None:
            return None
        if out is not None and self.recipe.transform is None:
            return np.asarray(out.numpy())
        return np.empty((count, 3, *view.shape), np.uint8)

    def _regions(self, rows: Rows, epoch: int, positions: NDArray[np.int64]) -> Regions:
        view = self.recipe.view
        assert view is not None
        width, height = rows.gather("width"), rows.gather("height")
        unknown = np.flatnonzero((width < 1) | (height < 1))
        if len(unknown):
            raise _with_location(
                DecodeError("the image header could not be read when the shard was indexed"), rows, int(unknown[0])
            )
        least_h, least_w = view.least
        small = np.flatnonzero((height < least_h) | (width < least_w))
        if len(small):
            shard, key = rows.shard_and_key(int(small[0]))
            raise OptionError(
                f"{view} is larger than an image of {width[small[0]]}x{height[small[0]]}: "
                "use a smaller view, or resize first (CenterCrop(size, resize=...))",
                shard=shard,
                key=key,
            )
        u = uniform(key_of("view", self.recipe.seed, epoch), positions, view.draws)
        regions = view.regions(width, height, u)
        huge = np.flatnonzero(regions.size.prod(axis=1) > MAX_PIXELS)
        if len(huge):
            new_height, new_width = regions.size[huge[0]].tolist()
            reason = (
                f"{view} would resize an image of {width[huge[0]]}x{height[huge[0]]} to {new_width}x{new_height}; "
                f"allowed are {MAX_PIXELS:,} pixels: exclude such images (where='width <= 100 * height and "
                "height <= 100 * width'), or use CenterCrop(size, resize=...) or Resize((height, width))"
            )
            raise _with_location(DecodeError(reason), rows, int(huge[0]))
        return regions

    def _transformed(
        self, image: torch.Tensor, rows: Rows, i: int, epoch: int, position: int, out: torch.Tensor | None
    ) -> Any:
        """Call the user's transform, with random generators seeded from the position of the sample in the epoch."""
        transform = self.recipe.transform
        assert transform is not None
        try:
            result = _call_seeded(transform, image, key_of("transform", self.recipe.seed, epoch, position))
        except BaseException as error:
            shard, key = rows.shard_and_key(i)
            if _needs_wrapping(error):
                raise TransformError(
                    f"transform= raised {error!r}, which would silently end a process or an iteration: "
                    "raise another exception",
                    shard=shard,
                    key=key,
                ) from error
            error.add_note(printable(f"in transform= of shard {shard}, key {key}"))
            raise
        if out is None:
            return result
        if not isinstance(result, torch.Tensor) or result.shape != out.shape[1:] or result.dtype != out.dtype:
            shard, key = rows.shard_and_key(i)
            got = f"{tuple(result.shape)} {result.dtype}" if isinstance(result, torch.Tensor) else type(result)
            raise OptionError(
                f"transform= returned {got}; for the first sample it returned {tuple(out.shape[1:])} {out.dtype}: "
                "it must return the same shape and dtype for every sample",
                shard=shard,
                key=key,
            )
        out[i].copy_(result)
        return result


def samples_of(values: list[Any], fields: tuple[str, ...], *, is_bare: bool) -> Iterator[Any]:
    """Yield the samples of a batch as named tuples, or, with ``is_bare``, as the values of the only field."""
    columns = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    if is_bare:
        return iter(columns[0])
    return map(partial(make_record, fields), zip(*columns, strict=True))


def _decode_images(rows: Rows, regions: Regions | None, pixels: Pixels | None) -> list[Pixels]:
    """Decode images to uint8 [3, height, width] each; if ``pixels`` is given, into its rows."""
    data, kinds, modes = rows.images(), rows.kinds(), rows.modes()
    orientations = rows.gather("orientation").tolist()
    boxes: list[Any] = regions.needed().tolist() if regions else [None] * len(rows)
    is_decoded = [False] * len(rows)
    if regions is not None and pixels is not None:
        is_decoded = _decode_natively(data, kinds, orientations, regions, pixels)
    images: list[Any] = [None] * len(rows) if pixels is None else list(pixels)
    for i in range(len(rows)):
        if is_decoded[i]:
            continue
        try:
            with stages.DECODE:
                crop = decode_rgb(data[i], kind=kinds[i], mode=modes[i], orientation=orientations[i], box=boxes[i])
        except DecodeError as error:
            raise _with_location(error, rows, i) from error
        with stages.WRITE:
            if regions is None:
                images[i] = crop.transpose(2, 0, 1).copy()
            else:
                images[i] = render_region(crop, regions, i, boxes[i], images[i])
    return images


def _decode_natively(
    data: list[memoryview], kinds: list[str], orientations: list[int], regions: Regions, pixels: Pixels
) -> list[bool]:
    """Decode the images that the compiled module supports, and return which ones it decoded: bool per image."""
    if not native.is_enabled():
        return [False] * len(data)
    if set(kinds) == {"npy"}:
        return [native.copy_pixels(data, regions, pixels)] * len(data)
    upright_jpegs = [
        encoded if kind in ("jpg", "jpeg") and orientation == 1 else None
        for encoded, kind, orientation in zip(data, kinds, orientations, strict=True)
    ]
    return native.render_jpegs(upright_jpegs, regions, pixels)


def _with_location(error: DecodeError, rows: Rows, i: int) -> DecodeError:
    """Return the error with the shard and key of a sample."""
    shard, key = rows.shard_and_key(i)
    return DecodeError(str(error), shard=shard, key=key)


def _labels(rows: Rows) -> NDArray[np.int64]:
    labels = rows.gather("label")
    missing = np.flatnonzero(labels == NO_LABEL)
    if len(missing):
        shard, key = rows.shard_and_key(int(missing[0]))
        raise MissingFieldError("the sample has no class number in its field 'cls'", shard=shard, key=key)
    return labels


def _field(rows: Rows, name: str) -> Any:
    """Decode a field other than ``image``, ``label`` and ``__key__``: one value per sample."""
    data = rows.field(name)
    suffix = name.rpartition(".")[2]
    with stages.DECODE:
        if suffix in IMAGE_FIELDS and suffix not in CODECS:
            return [_stored_image(rows, i, encoded) for i, encoded in enumerate(data)]
        values = []
        for i, encoded in enumerate(data):
            shard, key = rows.shard_and_key(i)
            values.append(decode_field(name, bytes(encoded), shard=shard, key=key))
        return values


def _stored_image(rows: Rows, i: int, data: memoryview) -> Pixels | DeepPixels:
    """Decode an image with its stored channels and bit depth: [channels, height, width]."""
    try:
        return decode_stored(data).transpose(2, 0, 1).copy()  # torch warns about Pillow's read-only pixels
    except DecodeError as error:
        raise _with_location(error, rows, i) from error


def _needs_wrapping(error: BaseException) -> bool:
    """Return whether an exception of the user's function must be wrapped in a TransformError.

    StopIteration and SystemExit would silently end an iteration or a process. A SampleError would be mistaken for
    damaged data. KeyboardInterrupt is passed on, as it may be the user's Ctrl-C, except in a worker, which ignores that
    signal.
    """
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    return not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration | SampleError)


def _call_seeded(transform: Transform, image: torch.Tensor, seed: int) -> Any:
    """Call a transform with all random generators that it may use seeded."""
    with seeded(seed):
        if not type(transform).__module__.startswith("albumentations"):
            return transform(image)
        # Albumentations takes and returns uint8 arrays [height, width, 3], and has its own random generator.
        if hasattr(transform, "set_random_seed"):
            transform.set_random_seed(seed % 2**32)
        result = transform(image=np.ascontiguousarray(image.permute(1, 2, 0).numpy()))["image"]
        if isinstance(result, np.ndarray) and result.ndim == 3:
            return torch.from_numpy(np.ascontiguousarray(result.transpose(2, 0, 1)))
        return result


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
