"""Helpers of the tests of the compiled path: images rendered by it, and by the Python path for comparison."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray
from pictures import encode
from PIL import Image

from wds_tools.errors import DecodeError
from wds_tools.format.image_header import probe
from wds_tools.images import native
from wds_tools.images.decode import decode_rgb
from wds_tools.images.resize import render_region
from wds_tools.images.views import Regions, View
from wds_tools.order.keyed_random import uniform

Pixels = NDArray[np.uint8]

NOT_BUILT = "the compiled path is not built"
needs_native = pytest.mark.skipif(not native.is_available(), reason=NOT_BUILT)


def encoded(image: Image.Image, **options: object) -> bytes:
    """Encode as JPEG with Pillow."""
    return encode(image, "JPEG", **options)


def sampled(image: Image.Image, sampling: str) -> bytes:
    """Encode as JPEG with chroma subsampling 444, 422, 420, 440 or 411, of which Pillow does not offer all."""
    return simplejpeg.encode_jpeg(np.ascontiguousarray(image), quality=92, colorsubsampling=sampling)


def regions_of(view: View, files: Sequence[bytes], key: int = 4) -> Regions:
    """Return a random region of each file."""
    sizes = [probe(data) for data in files]
    u = uniform(key, np.arange(len(files)), view.draws)
    return view.regions(np.array([size.width for size in sizes]), np.array([size.height for size in sizes]), u)


def region(
    box: tuple[int, ...], resize: tuple[int, int], corner: tuple[int, int], size: tuple[int, int], flip: bool
) -> Regions:
    """Return one region. `box` is left, top, width and height; the other arguments are vertical, then horizontal."""
    arrays = [np.array([numbers], np.int64) for numbers in (box, resize, corner, size)]
    return Regions(*arrays, flip=np.array([flip]))


def unknown_sizes(count: int) -> NDArray[np.int64]:
    """Return the sizes of files of which no index records the size."""
    return np.zeros((count, 2), np.int64)


def by_native(files: Sequence[bytes | None], regions: Regions) -> tuple[list[bool], Pixels]:
    """Render with the compiled path; return which images were rendered, and the pixels: 0 for the others."""
    out = np.zeros((len(files), 3, *regions.size[0].tolist()), np.uint8)
    views = [memoryview(data) if data is not None else None for data in files]
    done = native.render_jpegs(views, unknown_sizes(len(files)), [regions], [out])
    return done[:, 0].tolist(), out


def by_python(files: Sequence[bytes], regions: Regions, mode: str = "RGB") -> Pixels:
    """Render with the Python path."""
    images = []
    for i, (data, box) in enumerate(zip(files, regions.needed().tolist(), strict=True)):
        part = decode_rgb(memoryview(data), kind="jpg", mode=mode, orientation=1, box=tuple(box))
        images.append(render_region(part, regions, i, box))
    return np.stack(images)


def python_refuses(data: bytes, regions: Regions) -> bool:
    """Return whether the Python path raises a DecodeError."""
    try:
        by_python([data], regions)
    except DecodeError:
        return True
    return False


def mean_difference(ours: Pixels, theirs: Pixels) -> float:
    """Return the largest of the mean differences of the images of a batch."""
    return float(abs(ours.astype(int) - theirs.astype(int)).mean(axis=(1, 2, 3)).max())
