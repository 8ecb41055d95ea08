"""Sample ids become the fields of a batch: read, decode, transform, place. The work of one worker."""

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
from wds_tools.loading.bad_samples import is_about_data
from wds_tools.order.keyed_random import key_of, uniform
from wds_tools.reading.reader import Reader, Rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from wds_tools.reading.shardset import ShardSet

Transform = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Recipe:
    """What makes a batch out of ids; small, and pickled to every worker.

    Attributes:
        shards: The dataset.
        block: Samples of a block: a number, or int64 [shards].
        seed: Of crops, flips and transforms.
        fields: What a sample is made of.
        view: What part of the picture, at what size; None keeps the whole picture.
        transform: The user's function on a uint8 tensor [3, height, width], or an Albumentations transform.
        replaces: Whether unreadable samples are to be replaced. They are then reported one by one.
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
        """Whether all images have one shape, so that they can be written to shared memory."""
        return "image" in self.fields and self.view is not None and self.view.shape is not None

    @property
    def layout(self) -> Layout | None:
        """How images lie in a batch, where that is known before the first one is made."""
        if self.view is None or self.view.shape is None or "image" not in self.fields or self.transform is not None:
            return None
        return Layout((3, *self.view.shape), torch.uint8)


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape and dtype of one image in a batch."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        """Bytes of one image."""
        return int(np.prod(self.shape)) * self.dtype.itemsize


class Assembler:
    """Makes batches by a recipe."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.reader = Reader(recipe.shards, block=recipe.block)

    def expect(self, ids: NDArray[np.int64]) -> None:
        """Start reading what a later batch needs."""
        self.reader.read_ahead(ids)

    def layout(self, *, epoch: int, positions: NDArray[np.int64], ids: NDArray[np.int64]) -> Layout | None:
        """Return how images lie in a batch, or None if the transform returns no tensors.

        This makes one sample, the first of these that can be read: only the transform knows what it returns.
        """
        for i in range(len(ids)):
            one = slice(i, i + 1)
            try:
                image = self._images(self.reader.rows(ids[one]), epoch, positions[one], None)[0]
            except WdsToolsError as error:
                if not self.recipe.replaces or not is_about_data(error):
                    raise
                continue
            return Layout(tuple(image.shape), image.dtype) if isinstance(image, torch.Tensor) else None
        return None

    def batch(
        self, *, epoch: int, positions: NDArray[np.int64], ids: NDArray[np.int64], out: torch.Tensor | None
    ) -> list[Any]:
        """Return the values of each field.

        Args:
            epoch: Number of the epoch.
            positions: int64 [n], places in the canonical sequence: they choose crops and flips.
            ids: int64 [n], samples.
            out: [n, *layout.shape], where images go; without it they come back as a list.

        Returns:
            One value per field: ``image`` a list of n tensors, or None when written to ``out``; ``label`` an array
            [n]; other fields lists of n values.
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

    def pieces(
        self, *, epoch: int, positions: NDArray[np.int64], ids: NDArray[np.int64], out: torch.Tensor | None
    ) -> list[list[Any] | WdsToolsError]:
        """Make each sample by itself: return its values, as of a batch of one, or its error."""
        made: list[list[Any] | WdsToolsError] = []
        for i in range(len(ids)):
            one = slice(i, i + 1)
            try:
                place = None if out is None else out[one]
                made.append(self.batch(epoch=epoch, positions=positions[one], ids=ids[one], out=place))
            except WdsToolsError as error:
                if not is_about_data(error):
                    raise
                made.append(error)
        return made

    def _images(
        self, rows: Rows, epoch: int, positions: NDArray[np.int64], out: torch.Tensor | None
    ) -> list[torch.Tensor]:
        view, transform = self.recipe.view, self.recipe.transform
        regions = self._regions(rows, epoch, positions) if view else None
        pictures = _pictures(rows, regions, self._place(len(rows), out))
        if out is not None and transform is None:
            return []
        images = [torch.from_numpy(picture) for picture in pictures]
        if transform is None:
            return images
        return [
            self._transformed(image, rows, i, epoch, position, out)
            for i, (image, position) in enumerate(zip(images, positions.tolist(), strict=True))
        ]

    def _place(self, count: int, out: torch.Tensor | None) -> Pixels | None:
        """Return where the pixels of a batch go, uint8 [count, 3, height, width], or None if they differ in size."""
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
            raise _placed(
                DecodeError("the image's header could not be read when it was indexed"), rows, int(unknown[0])
            )
        least_h, least_w = view.least
        small = np.flatnonzero((height < least_h) | (width < least_w))
        if len(small):
            shard, key = rows.shard_and_key(int(small[0]))
            raise OptionError(
                f"{view} is larger than an image of {width[small[0]]}x{height[small[0]]}: "
                "take a smaller view, or resize first (CenterCrop(size, resize=...))",
                shard=shard,
                key=key,
            )
        u = uniform(key_of("view", self.recipe.seed, epoch), positions, view.draws)
        regions = view.regions(width, height, u)
        huge = np.flatnonzero(regions.size.prod(axis=1) > MAX_PIXELS)
        if len(huge):
            made_height, made_width = regions.size[huge[0]].tolist()
            reason = (
                f"{view} would make an image of {width[huge[0]]}x{height[huge[0]]} one of {made_width}x{made_height}; "
                f"allowed are {MAX_PIXELS:,} pixels: leave such images out (where='width <= 100 * height and "
                "height <= 100 * width'), or take CenterCrop(size, resize=...) or Resize((height, width))"
            )
            raise _placed(DecodeError(reason), rows, int(huge[0]))
        return regions

    def _transformed(
        self, image: torch.Tensor, rows: Rows, i: int, epoch: int, position: int, out: torch.Tensor | None
    ) -> Any:
        """Run the user's transform with randomness that depends on the sample's place in the epoch alone."""
        transform = self.recipe.transform
        assert transform is not None
        try:
            result = _call(transform, image, key_of("transform", self.recipe.seed, epoch, position))
        except BaseException as error:
            shard, key = rows.shard_and_key(i)
            if _would_go_unseen(error):
                raise TransformError(
                    f"transform= raised {error!r}, which would end a process or an iteration without a word: "
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
    """Return the samples of a batch one by one: named tuples, or the values of the only field."""
    columns = [value.tolist() if isinstance(value, np.ndarray) else value for value in values]
    if is_bare:
        return iter(columns[0])
    return map(partial(make_record, fields), zip(*columns, strict=True))


def _pictures(rows: Rows, regions: Regions | None, pixels: Pixels | None) -> list[Pixels]:
    """Return each picture, uint8 [3, height, width], in its place in ``pixels`` if there is one."""
    data, kinds, modes = rows.images(), rows.kinds(), rows.modes()
    turns = rows.gather("orientation").tolist()
    boxes: list[Any] = regions.needed().tolist() if regions else [None] * len(rows)
    made = [False] * len(rows)
    if regions is not None and pixels is not None:
        made = _made_natively(data, kinds, turns, regions, pixels)
    pictures: list[Any] = [None] * len(rows) if pixels is None else list(pixels)
    for i in range(len(rows)):
        if made[i]:
            continue
        try:
            cut = decode_rgb(data[i], kind=kinds[i], mode=modes[i], orientation=turns[i], box=boxes[i])
        except DecodeError as error:
            raise _placed(error, rows, i) from error
        if regions is None:
            pictures[i] = cut.transpose(2, 0, 1).copy()
        else:
            pictures[i] = render_region(cut, regions, i, boxes[i], pictures[i])
    return pictures


def _made_natively(
    data: list[memoryview], kinds: list[str], turns: list[int], regions: Regions, pixels: Pixels
) -> list[bool]:
    """Make what the compiled path takes, and tell which pictures those are."""
    if not native.is_enabled():
        return [False] * len(data)
    if set(kinds) == {"npy"}:
        return [native.copy_pixels(data, regions, pixels)] * len(data)
    upright_jpegs = [
        piece if kind in ("jpg", "jpeg") and turn == 1 else None
        for piece, kind, turn in zip(data, kinds, turns, strict=True)
    ]
    return native.render_jpegs(upright_jpegs, regions, pixels)


def _placed(error: DecodeError, rows: Rows, i: int) -> DecodeError:
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
    """Decode another field."""
    data = rows.field(name)
    suffix = name.rpartition(".")[2]
    if suffix in IMAGE_FIELDS and suffix not in CODECS:
        return [_stored_image(rows, i, piece) for i, piece in enumerate(data)]
    values = []
    for i, piece in enumerate(data):
        shard, key = rows.shard_and_key(i)
        values.append(decode_field(name, bytes(piece), shard=shard, key=key))
    return values


def _stored_image(rows: Rows, i: int, data: memoryview) -> Pixels | DeepPixels:
    """Decode an image as it is stored: [channels, height, width]."""
    try:
        return decode_stored(data).transpose(2, 0, 1).copy()  # Pillow's pixels are read-only, which torch warns of
    except DecodeError as error:
        raise _placed(error, rows, i) from error


def _would_go_unseen(error: BaseException) -> bool:
    """Return whether an exception must not leave the user's function as it is.

    An error of ours would be taken for damaged data. KeyboardInterrupt may be the user's Ctrl-C, but not in a worker,
    which ignores the signal.
    """
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    return not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration | SampleError)


def _call(transform: Transform, image: torch.Tensor, seed: int) -> Any:
    """Call a transform with every generator that it may use seeded, and put them back afterwards."""
    with seeded(seed):
        if not type(transform).__module__.startswith("albumentations"):
            return transform(image)
        # Albumentations takes and returns uint8 arrays [height, width, 3], and keeps a generator of its own.
        if hasattr(transform, "set_random_seed"):
            transform.set_random_seed(seed % 2**32)
        result = transform(image=np.ascontiguousarray(image.permute(1, 2, 0).numpy()))["image"]
        if isinstance(result, np.ndarray) and result.ndim == 3:
            return torch.from_numpy(np.ascontiguousarray(result.transpose(2, 0, 1)))
        return result


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators of random, numpy and torch; without workers they are the user's own, so restore them."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed CUDA too, which a fork may not
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
