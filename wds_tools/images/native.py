"""The compiled path: decode, crop, resize and flip a batch of JPEGs in one call without the GIL.

The module in ``csrc/`` is compiled when the package is installed
(`docs/decisions/0009-compiled-path.md`, `docs/jpeg.md`). Images that it does not support, or all
images if it is not available, are processed by `images.decode` and `images.resize`. Pixels of the
two paths differ by 0.4 of 255 on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from platform import node
from shlex import quote

import numpy as np
from numpy.typing import NDArray

from wds_tools import stages
from wds_tools.errors import WorkerError
from wds_tools.format.codecs import npy_header
from wds_tools.format.image_header import MAX_PIXELS
from wds_tools.format.image_signature import Signature
from wds_tools.images.views import Regions
from wds_tools.options import source_tree, use_native

_problem = ""  # why a module that exists cannot be loaded
try:
    import wds_tools.images._native as compiled
except ImportError as error:
    compiled = None  # type: ignore[assignment]
    _problem = "" if isinstance(error, ModuleNotFoundError) else str(error)
"""The compiled module, with the functions of ``_native.pyi``; None if it was not built."""

_FOLDER = __file__.rpartition("/images/")[0]  # of the package

LONGEST_CODE = 11
"""Maximum length in bits of the Huffman codes that `transcode_jpeg` writes. The decoder needs one table lookup for a
code if the code and the value bits that follow it fit into this number of bits."""

_STEPS = (stages.SLICE, stages.DECODE, stages.RESIZE, stages.WRITE)  # in the order of the timings of `render_jpegs`


def is_available() -> bool:
    """Return whether the compiled module was built and can be loaded."""
    return compiled is not None


def is_enabled() -> bool:
    """Return whether the compiled module is available, and not disabled by ``WDS_TOOLS_NATIVE=0``."""
    return is_available() and use_native()


def why_missing() -> str:
    """Return why there is no compiled module, and what to do."""
    if _problem:
        return f"the compiled module of wds_tools cannot be loaded ({_problem}): install wds_tools again"
    if root := source_tree():
        return (
            f"the compiled module of wds_tools is missing: Python imports the package from the source tree {root}, in "
            f"which it was not compiled; run `pip install --editable {quote(root)}`"
        )
    return (
        "the compiled module of wds_tools is missing: it was not compiled when the package was installed in "
        f"{_FOLDER}; install a C compiler, then wds_tools again"
    )


def check_worker(*, compiled_in_parent: bool) -> None:
    """Check that a worker process has the compiled module if the process that started it has it."""
    if compiled_in_parent and not is_available():
        raise WorkerError(
            f"a worker process on {node() or 'this machine'} differs from the process that started it, which has the "
            f"compiled module: {why_missing()}. Both need the same installation of wds_tools, and the same PYTHONPATH"
        )


def description() -> str:
    """Return in a few words what decodes JPEGs in this process, for debug output."""
    if is_enabled():
        return f"the compiled module (SIMD: {compiled.simd()})"
    return f"Python ({'WDS_TOOLS_NATIVE=0' if is_available() else 'the compiled module is missing'})"


def render_jpegs(
    data: Sequence[memoryview | None],
    sizes: NDArray[np.int64],
    crops: Sequence[Regions],
    outputs: Sequence[Sequence[NDArray[np.uint8]]],
) -> NDArray[np.bool_]:
    """Render those crops of a batch that the compiled path supports. Each image is decoded once for all its crops.

    The path must be available, see `is_enabled`. It skips crops that are not resized, images that are
    damaged or have a size other than expected, and files that are not grey or three-colour JPEGs of 8 bits.

    Args:
        data: The n files; None skips an image.
        sizes: int64 [n, 2], expected width and height of the images as stored; 0 if they are not known.
        crops: For each crop of an image the regions of the n images.
        outputs: For each crop n arrays, uint8 [3, height, width], to which the pixels are written. Each is contiguous,
            or a rectangle of a contiguous array. An array [n, 3, height, width] is also a sequence of them.

    Returns:
        bool [n, crops], whether a crop was rendered.
    """
    geometry = np.stack([_geometry(regions, sizes) for regions in crops], axis=1)
    rendered = _render(list(data), geometry, outputs)
    if len(crops) > 1:
        # A large and a small crop of one image may need different scales. Then the large one is decoded by itself.
        for k in np.flatnonzero(~rendered.all(axis=0)).tolist():
            files = [None if is_rendered else file for file, is_rendered in zip(data, rendered[:, k], strict=True)]
            rendered[:, k] |= _render(files, geometry[:, [k]], [outputs[k]])[:, 0]
    return rendered


def _geometry(regions: Regions, sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the numbers of `CropGeometry` in batch.h: float64 [n, 15]; -1 for images that are not rendered.

    Images that are only cropped are left to Python, so that their pixels are those of any other decoder.
    """
    flip = regions.flips @ [[1], [2]]
    parts = (regions.box, regions.resize, regions.corner, flip, regions.needed(), sizes)
    geometry = np.concatenate(parts, axis=1, dtype=np.float64)
    geometry[~(regions.are_resized if regions.frame is None else regions.are_visible)] = -1
    return geometry


def _render(
    files: list[memoryview | None], geometry: NDArray[np.float64], outputs: Sequence[Sequence[NDArray[np.uint8]]]
) -> NDArray[np.bool_]:
    recorder = stages.active_recorder()
    timings = np.zeros(len(_STEPS)) if recorder else None  # seconds: compiled code measures its own steps
    arrays = [array for crops in zip(*outputs, strict=True) for array in crops]
    sizes = np.array([array.shape[1:] for array in arrays], np.int32)
    rendered = compiled.render_jpegs(files, geometry, arrays, sizes, MAX_PIXELS, timings)
    if recorder and timings is not None:
        for stage, seconds in zip(_STEPS, timings.tolist(), strict=True):
            recorder.move(stage, int(1e9 * seconds))
    return np.frombuffer(rendered, np.bool_).reshape(len(files), len(outputs)).copy()


def transcode_jpeg(data: bytes | memoryview, restart: int, orientation: int) -> tuple[bytes, Signature | None] | None:
    """Rewrite a JPEG with restart markers and new Huffman codes; requires the module (see `is_available`).

    Returns:
        A sequential JPEG, verified to have the same coefficients. Its only metadata are the
        segments that define the colour space (JFIF, Adobe). And its signature; None if it is RGB, not YCbCr.
        None if the file is damaged, truncated, or not supported by the decoder (CMYK, arithmetic coding, 12 bits).
    """
    result = compiled.transcode_jpeg(data, restart, LONGEST_CODE, MAX_PIXELS, orientation)
    return None if result is None else (result[0], _signature(result[1]))


def sign_jpeg(data: bytes | memoryview, orientation: int) -> Signature | None:
    """Return the signature of a JPEG, or None if the decoder does not support it; requires the module."""
    return _signature(compiled.sign_jpeg(data, orientation, MAX_PIXELS))


def sign_pixels(luma: NDArray[np.uint8]) -> Signature:
    """Return the signature of an image with this luma, uint8 [height, width]; requires the module."""
    height, width = luma.shape
    return Signature(*compiled.sign_pixels(np.ascontiguousarray(luma), height, width, 1))


def _signature(values: tuple[int, float, float, float] | None) -> Signature | None:
    return None if values is None else Signature(*values)


def join_clusters(
    hashes: NDArray[np.uint64], distance: int, first: int, step: int, parents: NDArray[np.uint32]
) -> None:
    """Join the clusters of different hashes that differ in few bits: `join_clusters` of ``cluster.h``."""
    compiled.join_clusters(hashes, distance, first, step, parents)


def change_hsv(pixels: NDArray[np.uint8], changes: NDArray[np.float32]) -> None:
    """Change hue, saturation and value of images in place; requires the module (see `is_available`).

    Args:
        pixels: uint8 [n, 3, height, width], contiguous.
        changes: float32 [n, 3], see `HSV.changes`.
    """
    compiled.change_hsv(pixels, changes)


def blend_colors(pixels: NDArray[np.uint8], gain: float, offset: float, grey: float) -> float:
    """Change an image in place, and return its mean grey; requires the module (see `is_available`).

    Args:
        pixels: uint8 [3, height, width], contiguous.
        gain: Factor of the values.
        offset: Added to the values.
        grey: This share of the grey of a pixel is added to its values.
    """
    return compiled.blend_colors(pixels, gain, offset, grey)


def convert_pixels(
    pixels: NDArray[np.uint8], table: NDArray[np.uint8], out: NDArray[np.uint8], *, is_interleaved: bool
) -> None:
    """Write what each byte of each plane becomes; requires the module (see `is_available`).

    Args:
        pixels: uint8 [n, 3, height, width], contiguous.
        table: The values for the bytes of each plane, as their bytes: uint8 [3, 256, value_bytes], contiguous.
            Values have 2, 4 or 8 bytes.
        out: uint8 [n, 3, height, width, value_bytes], or [n, height, width, 3, value_bytes] if ``is_interleaved``,
            contiguous. Its memory is not that of the pixels.
        is_interleaved: Whether the values of a pixel are next to each other.
    """
    compiled.convert_pixels(pixels, len(pixels), table, out, is_interleaved)


def copy_pixels(data: Sequence[memoryview], regions: Regions, out: NDArray[np.uint8]) -> bool:
    """Copy images that are stored as pixels into a batch, if none of them is cropped, resized or flipped.

    Args:
        data: The n ``.npy`` files.
        regions: Regions of the n images.
        out: uint8 [n, 3, height, width], to which the pixels are written.

    Returns:
        True if all images were copied. False if none was: then `images.decode` handles them, and
        reports errors.
    """
    height, width = out.shape[2:]
    is_changed = regions.frame is not None or regions.are_resized.any() or regions.flip.any()
    if is_changed or (regions.size != (height, width)).any():
        return False
    try:
        shape, fortran, dtype, start = npy_header(data[0])
    except ValueError:
        return False
    if shape != (height, width, 3) or fortran or dtype != np.uint8 or (regions.box != (0, 0, width, height)).any():
        return False
    header, size = bytes(data[0][:start]), start + out[0].nbytes
    if any(file[:start] != header or len(file) != size for file in data):
        return False
    with stages.WRITE:
        compiled.copy_pixels(list(data), start, out, height, width)
    return True
