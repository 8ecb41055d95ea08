import numpy as np
from numpy.typing import NDArray

AC_LOOKUP_BITS: int

def render_jpegs(
    files: list[memoryview | None],
    crops: NDArray[np.float64],
    outputs: list[NDArray[np.uint8]],
    sizes: NDArray[np.int32],
    max_pixels: int,
    timings: NDArray[np.float64] | None,
    /,
) -> bytes: ...
def copy_pixels(files: list[memoryview], offset: int, out: NDArray[np.uint8], height: int, width: int, /) -> None: ...
def change_hsv(pixels: NDArray[np.uint8], changes: NDArray[np.float32], /) -> None: ...
def blend_colors(pixels: NDArray[np.uint8], gain: float, offset: float, grey: float, /) -> float: ...
def convert_pixels(
    pixels: NDArray[np.uint8],
    images: int,
    table: NDArray[np.uint8],
    out: NDArray[np.uint8],
    is_interleaved: bool,
    /,
) -> None: ...
def decode_jpeg(
    file: bytes | memoryview, region: tuple[int, int, int, int], scale_denominator: int, /
) -> list[tuple[int, bytes]] | None: ...
def transcode_jpeg(
    file: bytes | memoryview, restart_interval: int, max_code_length: int, max_pixels: int, orientation: int = 1, /
) -> tuple[bytes, tuple[int, float, float, float] | None] | None: ...
def sign_jpeg(
    file: bytes | memoryview, orientation: int, max_pixels: int, /
) -> tuple[int, float, float, float] | None: ...
def sign_pixels(
    luma: bytes | NDArray[np.uint8], height: int, width: int, orientation: int, /
) -> tuple[int, float, float, float]: ...
def join_clusters(
    hashes: NDArray[np.uint64], distance: int, first: int, step: int, parents: NDArray[np.uint32], /
) -> None: ...
def simd(enable: bool = ..., /) -> str: ...
