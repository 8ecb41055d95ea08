"""Values of `Frames`: the numbered images of a sample, all with one region."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import DecodeError, MissingFieldError, SampleError
from wds_tools.format.codecs import ImageInfo, probe
from wds_tools.images.decode import Pixels
from wds_tools.images.views import Regions
from wds_tools.loading.columns import Column
from wds_tools.loading.fields.image import render_files
from wds_tools.loading.fields.plain import Frames
from wds_tools.loading.part import ImageFiles, Part
from wds_tools.order.keyed_random import key_of, uniform


def load_frames(part: Part, column: Column, out: torch.Tensor | None) -> list[torch.Tensor] | None:
    """Return the frames of each sample, uint8 [frames, 3, height, width], or None if they were written to ``out``.

    Args:
        part: The n samples.
        column: The column; its specification is `Frames`.
        out: Tensor [n, frames, 3, height, width] to write to, or None.
    """
    names = chosen_names(part, column)
    counts = np.array([len(chosen) for chosen in names], np.int64)
    files = [data for sample in part.rows.several_fields(names) for data in sample]
    rows = np.repeat(np.arange(len(part)), counts).tolist()
    flat = [name for chosen in names for name in chosen]
    infos = _headers(part, files, flat, rows)
    regions = _regions(part, column, infos, np.cumsum(counts) - counts)
    shape = (regions[0].size[0] if _have_one_size(column) else None) if regions else None
    buffer: Pixels | None = None
    if out is not None:
        buffer = np.asarray(out.numpy()).reshape(len(files), *out.shape[2:])
    elif shape is not None:
        buffer = np.empty((len(files), 3, *shape.tolist()), np.uint8)
    encoded = ImageFiles.of_headers(files, infos)
    repeated = [one.repeated(counts) for one in regions]
    (images,) = render_files(encoded, repeated, [buffer], lambda k: part.naming(rows[k], flat[k]))
    if out is not None:
        return None
    stops = np.cumsum(counts).tolist()
    clips = [slice(stop - count, stop) for count, stop in zip(counts.tolist(), stops, strict=True)]
    return [torch.from_numpy(np.stack(images[clip]) if buffer is None else buffer[clip]) for clip in clips]


def frame_regions(part: Part, column: Column) -> list[Regions]:
    """Return the regions of the samples, none for whole images. Only the first frame of each sample is read."""
    names = [chosen[:1] for chosen in chosen_names(part, column)]
    files = [data for sample in part.rows.several_fields(names) for data in sample]
    rows = list(range(len(part)))
    return _regions(part, column, _headers(part, files, [name for (name,) in names], rows), np.array(rows, np.int64))


def chosen_names(part: Part, column: Column) -> list[list[str]]:
    """Return the names of the frames to use of each sample."""
    spec = column.spec
    assert isinstance(spec, Frames)
    found = part.rows.numbered_fields(spec.field)
    u = uniform(key_of("frames", part.seed, part.epoch, column.name), part.positions, 1)[:, 0].tolist()
    return [_choose(part, i, column, names, draw) for i, (names, draw) in enumerate(zip(found, u, strict=True))]


def _choose(part: Part, i: int, column: Column, names: list[str], draw: float) -> list[str]:
    """Return the names of the frames of sample ``i`` to use, for a random number in [0, 1)."""
    spec = column.spec
    assert isinstance(spec, Frames)
    if not names:
        shard, key = part.rows.shard_and_key(i)
        raise MissingFieldError(f"the sample has no field {spec.field!r}", shard=shard, key=key)
    if spec.frames is None:
        return names[:: spec.stride]
    span = (spec.frames - 1) * spec.stride + 1
    spare = len(names) - span
    if spare < 0 and column.padding is None:
        shard, key = part.rows.shard_and_key(i)
        raise SampleError(
            f"field {column.name!r}: the sample has {len(names)} frames, but frames={spec.frames} with "
            f"stride={spec.stride} needs {span}: use fewer, or pad=",
            shard=shard,
            key=key,
        )
    first = {"first": 0, "center": spare // 2, "random": int(draw * (spare + 1))}[spec.start]
    first = max(first, 0)
    return names[first : first + span : spec.stride]


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


def _regions(part: Part, column: Column, infos: list[ImageInfo], firsts: NDArray[np.int64]) -> list[Regions]:
    """Return the regions of the samples, none for whole images."""
    geometry = column.geometry
    if geometry is None:
        return []
    sizes = np.array([(infos[k].width, infos[k].height) for k in firsts.tolist()], np.int64).reshape(-1, 2)
    return [part.choose_regions(geometry.views_at(part.epoch)[0], geometry.key, sizes[:, 0], sizes[:, 1])]


def _have_one_size(column: Column) -> bool:
    return column.geometry is not None and column.geometry.views[0].shape is not None
