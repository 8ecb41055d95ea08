"""`Frames`: the numbered images of a sample, all with one region."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import DecodeError, MissingFieldError, OptionError, SampleError
from wds_tools.format.image_header import ImageInfo, probe
from wds_tools.format.sample import numbered_names
from wds_tools.images.decode import Pixels
from wds_tools.images.schedule import AnyView, is_view
from wds_tools.images.views import Regions
from wds_tools.loading.fields.base import Column, FieldSpec, Output, tv_tensors
from wds_tools.loading.fields.image import render_files
from wds_tools.loading.fields.padding import Pad, is_length
from wds_tools.loading.fields.part import Geometry, ImageFiles, Part
from wds_tools.order.keyed_random import key_of, uniform

FrameStart = Literal["first", "center", "random"]


@dataclass(frozen=True)
class Frames(FieldSpec):
    """The numbered images of a sample, such as the frames of a clip: a uint8 tensor [batch, frames, 3, height, width].

    All frames of a sample have one size, and get the same region and flip. If the numbers of frames differ, a batch is
    a list of tensors, or padded.

    Attributes:
        field: Names of the stored fields, with ``*`` for the number: ``"*.jpg"`` for ``0000.jpg``, ``0001.jpg`` and so
            on, or ``"frame*.jpg"``. The frames are ordered by this number.
        view: Region of the images and its output size, as for `Image`.
        frames: Number of frames to use. A sample with fewer is an error, except with ``pad``. None (the default) uses
            all.
        stride: Use every ``stride``-th frame.
        start: Where the frames begin: ``"first"`` (the default), ``"center"``, or ``"random"``, which depends on the
            seed, the epoch, the position of the sample and the name of the field.
        pad: Value of the padding after the last frame, or a `Pad`, so that a batch is one tensor. None (the default)
            gives a list if the numbers of frames differ.

    Raises:
        OptionError: An attribute is invalid.
    """

    field: str = "*.jpg"
    _: KW_ONLY
    view: AnyView | None = None
    frames: int | None = None
    stride: int = 1
    start: FrameStart = "first"
    pad: float | Pad | None = None

    is_image = True
    is_clip = True
    is_rgb = True

    def __post_init__(self) -> None:
        self._check("'*.jpg' or 'frame*.jpg'")
        if self.field.count("*") != 1:
            raise OptionError(f"wds_tools.Frames({self.field!r}); allowed are names with one * for the number")
        if self.view is not None and not is_view(self.view):
            raise OptionError(
                f"wds_tools.Frames(view={self.view!r}); allowed are wds_tools.RandomResizedCrop(...), CenterCrop(...), "
                "Resize(...) and None"
            )
        if self.frames is not None and not is_length(self.frames):
            raise OptionError(
                f"wds_tools.Frames(frames={self.frames!r}); allowed are whole numbers of 1 and more, and None"
            )
        if not is_length(self.stride):
            raise OptionError(f"wds_tools.Frames(stride={self.stride!r}); allowed are whole numbers of 1 and more")
        self._check_choice("start", ("first", "center", "random"))
        if self.frames is None and self.start != "first":
            raise OptionError(f"wds_tools.Frames(start={self.start!r}) requires frames=, the number of frames to use")

    def stored_names(self, available: Iterable[str]) -> tuple[str, ...]:
        return numbered_names(tuple(available), self.field) or (self.field,)

    def shapes(self, column: Column) -> list[tuple[int, ...]] | None:
        """Return frames, channels, height and width."""
        frames = self.frames
        if column.padding is not None:
            frames = column.padding.size[0] if column.padding.size else None
        shape = self.view.shape if self.view else None
        return [(frames, 3, *shape)] if frames and shape else None

    def load(self, part: Part, column: Column) -> list[torch.Tensor] | None:
        """Return the frames of each sample: uint8 [frames, 3, height, width]."""
        return self.load_into(part, column, None)

    def load_into(self, part: Part, column: Column, out: Output) -> list[torch.Tensor] | None:
        """Return the frames of each sample, or None if they were decoded into ``out``."""
        assert not isinstance(out, list)
        names = self.frame_names(part, column)
        counts = np.array([len(chosen) for chosen in names], np.int64)
        files = [data for sample in part.rows.several_fields(names) for data in sample]
        rows = np.repeat(np.arange(len(part)), counts).tolist()
        flat = [name for chosen in names for name in chosen]
        infos = _headers(part, files, flat, rows)
        regions = _regions(part, column.geometry, infos, np.cumsum(counts) - counts)
        has_one_size = column.geometry is not None and column.geometry.views[0].shape is not None
        shape = regions[0].size[0] if has_one_size and regions else None
        buffer: Pixels | None = None
        if out is not None:
            buffer = np.asarray(out.numpy()).reshape(len(files), *out.shape[2:])
        elif shape is not None:
            buffer = np.empty((len(files), 3, *shape.tolist()), np.uint8)
        encoded = ImageFiles.of_headers(files, infos)
        repeated = [region.repeated(counts) for region in regions]
        (images,) = render_files(encoded, repeated, [buffer], lambda k: part.naming(rows[k], flat[k]))
        if out is not None:
            return None
        stops = np.cumsum(counts).tolist()
        clips = [slice(stop - count, stop) for count, stop in zip(counts.tolist(), stops, strict=True)]
        return [torch.from_numpy(np.stack(images[clip]) if buffer is None else buffer[clip]) for clip in clips]

    def pixels(self, part: Part, column: Column) -> list[list[torch.Tensor]]:
        return [list(frames) for frames in self.load(part, column) or []]

    def crops(self, part: Part, column: Column) -> list[Regions]:
        """Return the regions of the samples. Only the first frame of each sample is read."""
        names = [chosen[:1] for chosen in self.frame_names(part, column)]
        files = [data for sample in part.rows.several_fields(names) for data in sample]
        rows = list(range(len(part)))
        infos = _headers(part, files, [name for (name,) in names], rows)
        return _regions(part, column.geometry, infos, np.array(rows, np.int64))

    def frame_names(self, part: Part, column: Column) -> list[list[str]]:
        all_names = part.rows.numbered_fields(self.field)
        u = uniform(key_of("frames", part.seed, part.epoch, column.name), part.positions, 1)[:, 0].tolist()
        return [
            self._choose(part, i, column, names, draw) for i, (names, draw) in enumerate(zip(all_names, u, strict=True))
        ]

    def state(self) -> dict[str, Any]:
        """Return the name, and which frames are used; of the padding, only whether a clip may be shorter."""
        clip = {"frames": self.frames, "stride": self.stride, "start": self.start}
        return {**super().state(), "clip": clip if self.pad is None else {**clip, "pad": 0}}

    def as_tv_tensor(self, value: torch.Tensor, size: tuple[int, ...] | None) -> Any:
        return tv_tensors().Video(value)

    def _choose(self, part: Part, i: int, column: Column, names: list[str], draw: float) -> list[str]:
        """Return the names of the frames of sample ``i`` to use, for a random number in [0, 1)."""
        if not names:
            shard, key = part.rows.shard_and_key(i)
            raise MissingFieldError(f"the sample has no field {self.field!r}", shard=shard, key=key)
        if self.frames is None:
            return names[:: self.stride]
        span = (self.frames - 1) * self.stride + 1
        spare = len(names) - span
        if spare < 0 and column.padding is None:
            shard, key = part.rows.shard_and_key(i)
            raise SampleError(
                f"field {column.name!r}: the sample has {len(names)} frames, but frames={self.frames} with "
                f"stride={self.stride} needs {span}: use fewer, or pad=",
                shard=shard,
                key=key,
            )
        first = {"first": 0, "center": spare // 2, "random": int(draw * (spare + 1))}[self.start]
        first = max(first, 0)
        return names[first : first + span : self.stride]


def _headers(part: Part, files: Sequence[memoryview], names: Sequence[str], rows: Sequence[int]) -> list[ImageInfo]:
    """Return what the headers of the frames state. All frames of a sample must have one size."""
    infos: list[ImageInfo] = []
    for k, (data, name, i) in enumerate(zip(files, names, rows, strict=True)):
        with part.naming(i, name), stages.DECODE:
            info = probe(data)
            before = infos[-1] if k and rows[k - 1] == i else info
            if (info.width, info.height) != (before.width, before.height):
                raise DecodeError(
                    f"the size is {info.width}x{info.height}, but that of field {names[k - 1]!r} is "
                    f"{before.width}x{before.height}: all frames of a sample must have the same size"
                )
            infos.append(info)
    return infos


def _regions(part: Part, geometry: Geometry | None, infos: list[ImageInfo], firsts: NDArray[np.int64]) -> list[Regions]:
    """Return the regions of the samples, none for whole images."""
    if geometry is None:
        return []
    sizes = np.array([(infos[k].width, infos[k].height) for k in firsts.tolist()], np.int64).reshape(-1, 2)
    view = geometry.views_at(part.epoch)[0]
    return [part.choose_regions(view, geometry.key, sizes[:, 0], sizes[:, 1], geometry)]
