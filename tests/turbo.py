"""libjpeg-turbo, as Pillow's wheel brings it: JPEGs of any coding are written, and read as the planes they store."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
from jpegtools import DECOMPRESS_BYTES, TURBO_ABI, Component, Errors, Scan, Writer
from numpy.typing import NDArray

Pixels = NDArray[np.uint8] | NDArray[np.int16]
Script = list[tuple[tuple[int, ...], int, int, int, int]]  # components, Ss, Se, Ah, Al

SPACES = {"L": 1, "RGB": 2, "YCC": 3, "CMYK": 4}  # J_COLOR_SPACE


class Decompress(ctypes.Structure):
    """jpeg_decompress_struct."""

    _fields_ = (
        ("err", ctypes.c_void_p),
        ("common", ctypes.c_char * 40),
        ("image_width", ctypes.c_uint),
        ("image_height", ctypes.c_uint),
        ("num_components", ctypes.c_int),
        ("jpeg_color_space", ctypes.c_int),
        ("out_color_space", ctypes.c_int),
        ("scale_num", ctypes.c_uint),
        ("scale_denom", ctypes.c_uint),
        ("output_gamma", ctypes.c_double),
        ("buffered_image", ctypes.c_int),
        ("raw_data_out", ctypes.c_int),
        ("dct_method", ctypes.c_int),
        ("do_fancy_upsampling", ctypes.c_int),
        ("do_block_smoothing", ctypes.c_int),
        ("colours", ctypes.c_char * 24),
        ("output_width", ctypes.c_uint),
        ("output_height", ctypes.c_uint),
        ("output", ctypes.c_char * 24),
        ("output_scanline", ctypes.c_uint),
        ("progress", ctypes.c_char * 132),
        ("comp_info", ctypes.POINTER(Component)),
        ("coding", ctypes.c_char * 96),
        ("max_h_samp_factor", ctypes.c_int),
        ("max_v_samp_factor", ctypes.c_int),
        ("min_DCT_scaled_size", ctypes.c_int),
        ("rest", ctypes.c_char * (DECOMPRESS_BYTES - 420)),
    )


assert ctypes.sizeof(Decompress) == DECOMPRESS_BYTES
assert Decompress.comp_info.offset == 304


@dataclass(frozen=True)
class Coding:
    """How a picture is written."""

    space: str = "YCC"
    factors: tuple[tuple[int, int], ...] = ((2, 2), (1, 1), (1, 1))  # across, down: of each component
    quality: int = 75
    baseline: bool = True  # numbers of quantization tables are 255 at most
    restart: int = 0  # MCUs between restart markers
    restart_rows: int = 0  # rows of MCUs between them
    optimize: bool = False
    progressive: bool = False  # by libjpeg's own script
    script: Script | None = None
    arithmetic: bool = False
    lossless: bool = False
    bits: int = 8


ON_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@ON_ERROR
def end(info: int) -> None:
    """Say what an error of libjpeg is, and end the process: nothing can be raised through its code."""
    errors = ctypes.c_void_p.from_address(info).value
    assert errors is not None
    ON_ERROR(ctypes.c_void_p.from_address(errors + 16).value)(info)  # output_message
    os._exit(1)


def trap(errors: Errors) -> None:
    """Take errors to `end`, and leave remarks such as that about coarse tables unsaid."""
    ctypes.c_int.from_address(errors.address + 124).value = -1  # trace_level
    ctypes.c_void_p.from_address(errors.address).value = ctypes.cast(end, ctypes.c_void_p).value


def library() -> ctypes.CDLL:
    (path,) = Path(PIL.__file__).parents[1].glob("[Pp]illow.libs/libjpeg*")
    return ctypes.CDLL(str(path))


def rows_of(array: Pixels) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of the rows of an array."""
    first, stride = array.ctypes.data, array.strides[0]
    return (ctypes.c_void_p * array.shape[0])(*range(first, first + stride * array.shape[0], stride))


def scans_of(script: Script) -> ctypes.Array[Scan]:
    scans = (Scan * len(script))()
    for scan, (components, *band) in zip(scans, script, strict=True):
        scan.comps_in_scan = len(components)
        scan.component_index[: len(components)] = components
        scan.band[:] = band
    return scans


def encode(turbo: ctypes.CDLL, pixels: Pixels, coding: Coding) -> bytes:
    """Write pixels [height][width][components], which are in the colour space that is stored."""
    writer = Writer(turbo)
    trap(writer.errors)
    info = writer.info
    info.image_height, info.image_width, info.input_components = pixels.shape
    info.in_color_space = SPACES[coding.space]
    info.data_precision = coding.bits
    turbo.jpeg_set_defaults(writer)
    info.data_precision = coding.bits
    turbo.jpeg_set_colorspace(writer, SPACES[coding.space])
    turbo.jpeg_set_quality(writer, coding.quality, coding.baseline)
    for component, (across, down) in zip(info.comp_info[: len(coding.factors)], coding.factors, strict=True):
        component.h_samp_factor, component.v_samp_factor = across, down
    info.restart_interval, info.restart_in_rows = coding.restart, coding.restart_rows
    info.optimize_coding, info.arith_code = coding.optimize, coding.arithmetic
    if coding.progressive:
        turbo.jpeg_simple_progression(writer)
    if coding.script is not None:
        scans = scans_of(coding.script)  # must last as long as the writer
        info.num_scans, info.scan_info = len(scans), scans
    if coding.lossless:
        turbo.jpeg_enable_lossless(writer, 1, 0)
    turbo.jpeg_start_compress(writer, 1)
    write = turbo.jpeg_write_scanlines if coding.bits == 8 else turbo.jpeg12_write_scanlines
    rows = np.ascontiguousarray(pixels, np.uint8 if coding.bits == 8 else np.int16)
    assert write(writer, rows_of(rows), len(rows)) == len(rows)
    made = writer.finish()
    turbo.jpeg_destroy_compress(writer)
    turbo.free(writer.data)
    return made


@dataclass(frozen=True)
class Plane:
    """The samples that one component of a picture has at some scale."""

    samples: NDArray[np.uint8]
    across: tuple[int, int]  # numerator, denominator: samples of each pixel of the picture
    down: tuple[int, int]


def decode(turbo: ctypes.CDLL, data: bytes, smaller: int) -> list[Plane]:
    """Read the planes at 1/smaller of the size, as libjpeg stores them before it interpolates and converts anything."""
    errors = Errors(turbo)
    trap(errors)
    info = Decompress(err=errors.address)
    reader = ctypes.byref(info)
    turbo.jpeg_CreateDecompress(reader, TURBO_ABI, ctypes.c_size_t(DECOMPRESS_BYTES))
    turbo.jpeg_mem_src(reader, data, ctypes.c_ulong(len(data)))
    turbo.jpeg_read_header(reader, 1)
    info.scale_num, info.scale_denom = 1, smaller
    info.raw_data_out, info.do_block_smoothing, info.dct_method = 1, 0, 0
    turbo.jpeg_start_decompress(reader)
    most_across, most_down, side = info.max_h_samp_factor, info.max_v_samp_factor, info.min_DCT_scaled_size
    bands, columns = -(-info.image_height // (8 * most_down)), -(-info.image_width // (8 * most_across))
    components, whole = info.comp_info[: info.num_components], []
    for each in components:
        shape = bands * each.v_samp_factor * each.DCT_scaled_size, columns * each.h_samp_factor * each.DCT_scaled_size
        whole.append(np.zeros(shape, np.uint8))
    rows = [rows_of(array) for array in whole]
    addresses = [ctypes.addressof(each) for each in rows]
    heights = [8 * each.v_samp_factor * each.DCT_scaled_size for each in components]  # bytes of addresses of a band
    for band in range(bands):
        starts = [address + band * height for address, height in zip(addresses, heights, strict=True)]
        planes = (ctypes.c_void_p * len(rows))(*starts)
        assert turbo.jpeg_read_raw_data(reader, planes, most_down * side) == most_down * side
    turbo.jpeg_finish_decompress(reader)
    made = [
        Plane(
            array[: each.downsampled_height, : each.downsampled_width],
            (each.h_samp_factor * each.DCT_scaled_size, 8 * most_across),
            (each.v_samp_factor * each.DCT_scaled_size, 8 * most_down),
        )
        for each, array in zip(components, whole, strict=True)
    ]
    turbo.jpeg_destroy_decompress(reader)
    assert not errors.warnings
    return made
