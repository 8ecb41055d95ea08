"""Views that place the image in a frame, which may show less or more than the image: `Letterbox`, `RandomAffine`.

An image is mapped to its frame by one factor and one shift per axis, however many steps a view is described by. So a
view decides where the edges of the image are in the frame, and `place` returns the pixels inside both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.images.views import Frame, OfOneSize, Regions, Warp, check_flip, height_and_width

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GREY = 114  # the usual value around an image in detection, that of YOLO


def check_fill(fill: Any) -> None:
    """Check the value around an image."""
    if not isinstance(fill, int | np.integer) or isinstance(fill, bool) or not 0 <= fill <= 255:
        raise OptionError(f"fill={fill!r}; allowed are whole numbers from 0 to 255")


def check_flips(flip: Any, flip_vertical: Any) -> None:
    """Check the probabilities of both flips."""
    check_flip(flip)
    try:
        check_flip(flip_vertical)
    except OptionError as error:
        raise OptionError(f"flip_vertical={flip_vertical!r}; allowed are True, False, or a probability") from error


def are_flipped(u: Floats, flip: bool | float, flip_vertical: bool | float) -> NDArray[np.bool_]:
    """Return whether results are mirrored left to right, and top to bottom: bool [n, 2]."""
    return u < [0.5 if probability is True else float(probability) for probability in (flip, flip_vertical)]


def place(
    sides: Ints,
    resized: Ints | Floats,
    offset: Ints | Floats,
    size: tuple[int, int],
    *,
    fill: int,
    flips: NDArray[np.bool_],
    tiles: int = 1,
    canvas: Floats | None = None,
    warp: Warp | None = None,
) -> Regions:
    """Return the regions of n images that are resized and placed in frames.

    A pixel of the frame shows the image if its centre is between the edges of the image.

    Args:
        sides: int64 [n, 2], height and width of each image.
        resized: [n, 2], height and width of the resized image.
        offset: [n, 2], top and left edge of the resized image in the frame. If there is a warp, frames are larger than
            outputs, and the positions are those in the middle of the frame, in a rectangle of the size of an output. So
            the pixels do not depend on how large the frames are.
        size: Height and width of the frame.
        fill: Value around the image.
        flips: bool [n, 2], whether the frame is mirrored in the end, left to right and top to bottom; not with a warp.
        tiles: Images in a frame.
        canvas: float64 [n, 4], top, left, bottom and right of the canvas on which the image is pasted and cut off; None
            if nothing is cut off.
        warp: How the frames become outputs.
    """
    frame = np.array(size, np.int64)
    origin = (frame - warp.size) // 2 if warp else np.zeros_like(frame)
    start, stop = np.ceil(offset - 0.5), np.ceil(offset + resized - 0.5)
    # What is drawn of an image does not depend on the other ones, although these may need larger frames.
    margin = np.repeat(warp.margin, tiles, axis=0) if warp else np.zeros_like(sides)
    low, high = -margin, frame - 2 * origin + margin
    if canvas is not None:
        low, high = (np.clip(np.ceil(edges - 0.5), low, high) for edges in np.split(canvas, 2, axis=1))
    start = np.clip(start, low, high).astype(np.int64)
    stop = np.clip(stop, start, np.maximum(high, start)).astype(np.int64)
    length, corner = stop - start, start - offset
    length[(length == 0).any(axis=1)] = 0
    start += origin
    flip_columns, flip_rows = flips.T
    mirrored = np.stack([flip_rows, flip_columns], axis=1)
    if canvas is not None:
        edges = canvas.reshape(-1, 2, 2)[:, :, ::-1] + origin[::-1]  # [n, start and stop, x and y]
        canvas = np.where(flips[:, None], frame[::-1] - edges[:, ::-1], edges).reshape(-1, 4)
    return Regions(
        box=np.concatenate([np.zeros_like(sides), sides[:, ::-1]], axis=1),
        resize=resized,
        corner=corner,
        size=length,
        flip=flip_columns,
        frame=Frame(size, np.where(mirrored, frame - start - length, start), fill, flip_rows, tiles, canvas, warp),
    )


@dataclass(frozen=True)
class Letterbox(OfOneSize):
    """The whole image, resized to fit into a rectangle without changing its aspect ratio; the area around it is filled.

    Attributes:
        size: Height and width of the result in pixels, or one number for both.
        fill: Value of all channels around the image, 0 to 255; 114 by default, as for YOLO.
        center: Whether the image is at the centre. False places it at the top left.
        enlarge: Whether images that are smaller than the result are enlarged.
        flip: Probability of mirroring left to right; True means 0.5.
        flip_vertical: Probability of mirroring top to bottom; True means 0.5.

    Raises:
        OptionError: An attribute is invalid.

    >>> Letterbox(640).shape
    (640, 640)
    """

    size: int | tuple[int, int]
    fill: int = GREY
    center: bool = True
    enlarge: bool = True
    flip: bool | float = False
    flip_vertical: bool | float = False

    draws = 2  # one for each flip

    def __post_init__(self) -> None:
        height_and_width(self.size)
        check_fill(self.fill)
        for name in ("center", "enlarge"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise OptionError(f"Letterbox({name}={getattr(self, name)!r}); allowed are True and False")
        check_flips(self.flip, self.flip_vertical)

    def regions(self, width: Ints, height: Ints, u: Floats) -> Regions:
        """Return the place of each image, see `View.regions`."""
        sides, frame = np.stack([height, width], axis=1), np.array(self.shape, np.int64)
        resized = fitted(sides, frame).astype(np.int64)
        if not self.enlarge:
            resized = np.where((sides <= frame).all(axis=1, keepdims=True), sides, resized)
        # Half a pixel more is below and to the right.
        offset = centred(frame, resized).astype(np.int64) * self.center
        flips = are_flipped(u, self.flip, self.flip_vertical)
        return place(sides, resized, offset, self.shape, fill=int(self.fill), flips=flips)


@dataclass(frozen=True)
class RandomAffine(OfOneSize):
    """The image in a `Letterbox`, zoomed and shifted at random, and optionally rotated and sheared, as in YOLO.

    Without rotation, shear and perspective, each image is resized once, directly into the result. With them, the
    visible part is drawn upright, and then warped with bilinear interpolation.

    Attributes:
        size: Height and width of the result in pixels, or one number for both.
        scale: Smallest and largest factor of the zoom. With 1, the image is as large as in a `Letterbox`.
        translate: Largest shift, as a fraction of the size, in both directions.
        degrees: Largest angle of the rotation, in both directions.
        shear: Largest angle of the shear in degrees, along both axes and in both directions.
        perspective: Largest coefficient of the perspective, 0 to 0.001.
        flip: Probability of mirroring left to right; True means 0.5.
        flip_vertical: Probability of mirroring top to bottom; True means 0.5.
        fill: Value of all channels where no image is, 0 to 255; 114 by default, as for YOLO.

    Raises:
        OptionError: An attribute is invalid.

    >>> RandomAffine(640).shape
    (640, 640)
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.5, 1.5)
    translate: float = 0.1
    degrees: float = 0.0
    shear: float = 0.0
    perspective: float = 0.0
    flip: bool | float = 0.5
    flip_vertical: bool | float = False
    fill: int = GREY

    draws = 10  # zoom, two for the shift, flips, shear and perspective, and the angle

    def __post_init__(self) -> None:
        height_and_width(self.size)
        check_scale(self.scale)
        for name, most in (("translate", 1), ("degrees", 180), ("shear", 60), ("perspective", 0.001)):
            check_number(name, getattr(self, name), most)
        check_flips(self.flip, self.flip_vertical)
        check_fill(self.fill)

    def regions(self, width: Ints, height: Ints, u: Floats) -> Regions:
        """Return the place of each image, see `View.regions`."""
        sides = np.stack([height, width], axis=1)
        frame = np.array(self.shape, np.float64)
        resized, canvas = fitted(sides, frame), np.tile([0.0, 0.0, *frame], (len(u), 1))
        return self.shown(sides, resized, centred(frame, resized), canvas, u)

    def shown(
        self, sides: Ints, resized: Floats, offset: Floats, canvas: Floats, u: Floats, *, tiles: int = 1
    ) -> Regions:
        """Return the regions of images on canvases of which random affine maps show a part.

        Args:
            sides: int64 [n * tiles, 2], height and width of each image.
            resized: float64 [n * tiles, 2], its size on the canvas.
            offset: float64 [n * tiles, 2], its top and left edge on the canvas.
            canvas: float64 [n, 4], top, left, bottom and right of the canvases.
            u: float64 [n, 10], random numbers.
            tiles: Images on a canvas.
        """
        size = np.array(self.shape, np.float64)
        zoom = self.scale[0] + u[:, :1] * (self.scale[1] - self.scale[0])  # [n, 1]
        shift = (0.5 + self.translate * (2 * u[:, 1:3] - 1)) * size  # where the middle of the canvas is shown
        flips, frame, warp = are_flipped(u[:, 3:5], self.flip, self.flip_vertical), self.shape, None
        if self.degrees or self.shear or self.perspective:
            warp, frame = self._warp(zoom[:, 0], shift, u[:, 5:], flips)
            shift, flips = np.tile(size / 2, (len(u), 1)), np.zeros_like(flips)
        shift = shift - zoom * (canvas[:, :2] + canvas[:, 2:]) / 2
        edges = (zoom[:, :, None] * canvas.reshape(-1, 2, 2) + shift[:, None]).reshape(-1, 4)
        rows = np.repeat(np.arange(len(u)), tiles)
        return place(
            sides,
            zoom[rows] * resized,
            zoom[rows] * offset + shift[rows],
            frame,
            fill=int(self.fill),
            flips=flips[rows],
            tiles=tiles,
            canvas=edges[rows],
            warp=warp,
        )

    def _warp(self, zoom: Floats, shift: Floats, u: Floats, flips: NDArray[np.bool_]) -> tuple[Warp, tuple[int, int]]:
        """Return the maps from upright frames to outputs, and a size of the frames that shows all of the outputs."""
        angle, *shears = (
            np.radians(most) * (2 * u[:, i] - 1) for i, most in enumerate([self.degrees, *[self.shear] * 2])
        )
        matrix, turn, bend = (np.tile(np.eye(3), (len(u), 1, 1)) for _ in range(3))
        turn[:, 0, 0] = turn[:, 1, 1] = np.cos(angle)
        turn[:, 0, 1], turn[:, 1, 0] = (
            np.sin(angle),
            -np.sin(angle),
        )  # counterclockwise for positive angles, as in OpenCV
        matrix[:, 0, 1], matrix[:, 1, 0] = map(np.tan, shears)
        bend[:, 2, :2] = self.perspective * (2 * u[:, 3:5] - 1) / zoom[:, None]
        around = matrix @ turn @ bend  # of the middle
        reach = _extent(around, shift, np.array(self.shape, np.float64))
        margin = np.maximum(np.ceil(reach - np.array(self.shape) / 2), 0).astype(np.int64)
        frame = np.array(self.shape) + 2 * margin.max(axis=0)
        moved, centred_at = (np.tile(np.eye(3), (len(u), 1, 1)) for _ in range(2))
        moved[:, :2, 2], centred_at[:, :2, 2] = shift[:, ::-1], -frame[::-1] / 2
        return Warp(moved @ around @ centred_at, self.shape, flips, margin), (int(frame[0]), int(frame[1]))


def _extent(around: Floats, shift: Floats, size: Floats) -> Floats:
    """Return how far from the middle of the frame outputs show it: [n, 2], in pixels, vertically and horizontally.

    Args:
        around: float64 [n, 3, 3], maps from the middle of a frame to the middle of an output.
        shift: float64 [n, 2], top and left of the middle of each output.
        size: float64 [2], height and width of the outputs.
    """
    corners = (
        np.stack(np.meshgrid([0.0, size[0]], [0.0, size[1]], indexing="ij"), axis=-1).reshape(1, 4, 2) - shift[:, None]
    )
    points = np.concatenate([corners[..., ::-1], np.ones((*corners.shape[:2], 1))], axis=2) @ np.linalg.inv(
        around
    ).swapaxes(1, 2)
    seen = np.abs(points[..., 1::-1] / np.maximum(points[..., 2:], 0.1)).max(axis=1)  # no more than ten times as far
    return np.asarray(np.minimum(seen + 2, 2 * size))


def fitted(sides: Ints, frame: Ints | Floats) -> Floats:
    """Return the sizes of images that are resized to fit into a frame, rounded up as by YOLO's dataset: [n, 2]."""
    return np.asarray(np.minimum(np.ceil(sides * (frame / sides).min(axis=1, keepdims=True)), frame))


def centred(frame: Ints | Floats, resized: Ints | Floats) -> Floats:
    """Return top and left of images at the centre of a frame, where YOLO puts them: [n, 2]."""
    return np.asarray(np.round((frame - resized) / 2 - 0.1))


def check_number(name: str, value: Any, most: float) -> None:
    """Check that a value is a number from 0 to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 <= value <= most:
        raise OptionError(f"{name}={value!r}; allowed are 0 to {most}")


def check_scale(scale: Any) -> None:
    """Check a range of factors."""
    is_pair = isinstance(scale, tuple | list) and len(scale) == 2
    if (
        not is_pair
        or not all(isinstance(end, int | float | np.number) for end in scale)
        or not 0 < scale[0] <= scale[1] <= 100
    ):
        raise OptionError(f"scale={scale!r}; allowed are 0 < smallest <= largest <= 100: factors of the size")
