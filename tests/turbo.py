"""The libjpeg-turbo of Pillow's wheel: encodes JPEGs of any kind, and decodes them to planes."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL
from jpegtools import Errors, Reader, Script, Writer
from numpy.typing import NDArray

Pixels = NDArray[np.uint8] | NDArray[np.int16]

SPACES = {"L": 1, "RGB": 2, "YCC": 3, "CMYK": 4}  # J_COLOR_SPACE


@dataclass(frozen=True)
class Coding:
    """How an image is encoded."""

    space: str = "YCC"
    factors: tuple[tuple[int, int], ...] = ((2, 2), (1, 1), (1, 1))  # horizontal and vertical, of each component
    quality: int = 75
    baseline: bool = True  # limits the elements of quantization tables to 255
    restart: int = 0  # restart interval in MCUs; 0: no restart markers
    restart_rows: int = 0  # restart interval in MCU rows; replaces `restart` if not 0
    optimize: bool = False
    progressive: bool = False  # with libjpeg's default script
    script: Script | None = None
    arithmetic: bool = False
    lossless: bool = False
    bits: int = 8


ON_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@ON_ERROR
def exit_on_error(info: int) -> None:
    """Print the message of a libjpeg error and end the process: exceptions cannot pass through C code."""
    errors = ctypes.c_void_p.from_address(info).value
    assert errors is not None
    ON_ERROR(ctypes.c_void_p.from_address(errors + 16).value)(info)  # output_message
    os._exit(1)


def set_error_handlers(errors: Errors) -> None:
    """End the process on errors, and suppress remarks such as the one about coarse quantization tables."""
    ctypes.c_int.from_address(errors.address + 124).value = -1  # trace_level
    ctypes.c_void_p.from_address(errors.address).value = ctypes.cast(exit_on_error, ctypes.c_void_p).value


def library() -> ctypes.CDLL:
    """Load libjpeg-turbo."""
    (path,) = Path(PIL.__file__).parents[1].glob("[Pp]illow.libs/libjpeg*")
    return ctypes.CDLL(str(path))


def rows_of(array: Pixels) -> ctypes.Array[ctypes.c_void_p]:
    """Return the addresses of the rows of an array."""
    first, stride = array.ctypes.data, array.strides[0]
    return (ctypes.c_void_p * array.shape[0])(*range(first, first + stride * array.shape[0], stride))


def encode(turbo: ctypes.CDLL, pixels: Pixels, coding: Coding) -> bytes:
    """Encode pixels [height][width][components], which are already in the colour space `coding.space`."""
    writer = Writer(turbo)
    set_error_handlers(writer.errors)
    info = writer.info
    info.image_height, info.image_width, info.input_components = pixels.shape
    info.in_color_space = SPACES[coding.space]
    info.data_precision = coding.bits
    turbo.jpeg_set_defaults(writer)
    info.data_precision = coding.bits
    turbo.jpeg_set_colorspace(writer, SPACES[coding.space])
    turbo.jpeg_set_quality(writer, coding.quality, coding.baseline)
    for component, factors in zip(info.comp_info[: len(coding.factors)], coding.factors, strict=True):
        component.h_samp_factor, component.v_samp_factor = factors
    info.restart_interval, info.restart_in_rows = coding.restart, coding.restart_rows
    info.optimize_coding, info.arith_code = coding.optimize, coding.arithmetic
    if coding.progressive:
        turbo.jpeg_simple_progression(writer)
    if coding.script is not None:
        writer.set_script(coding.script)
    if coding.lossless:
        turbo.jpeg_enable_lossless(writer, 1, 0)
    turbo.jpeg_start_compress(writer, 1)
    write = turbo.jpeg_write_scanlines if coding.bits == 8 else turbo.jpeg12_write_scanlines
    rows = np.ascontiguousarray(pixels, np.uint8 if coding.bits == 8 else np.int16)
    assert write(writer, rows_of(rows), len(rows)) == len(rows)
    return writer.finish()


@dataclass(frozen=True)
class Plane:
    """The samples of one component of an image that was decoded at some scale.

    Attributes:
        samples: uint8 [height, width].
        x_scale: Samples per pixel of the image in x direction, as numerator and denominator.
        y_scale: The same in y direction.
    """

    samples: NDArray[np.uint8]
    x_scale: tuple[int, int]
    y_scale: tuple[int, int]


def decode(turbo: ctypes.CDLL, data: bytes, denominator: int) -> list[Plane]:
    """Decode the planes at 1/denominator of the full size, without upsampling and colour conversion."""
    reader = Reader(turbo)
    set_error_handlers(reader.errors)
    info = reader.info
    turbo.jpeg_mem_src(reader, data, ctypes.c_ulong(len(data)))
    turbo.jpeg_read_header(reader, 1)
    info.scale_num, info.scale_denom = 1, denominator
    info.raw_data_out, info.do_block_smoothing, info.dct_method = 1, 0, 0
    turbo.jpeg_start_decompress(reader)
    max_h, max_v, side = info.max_h_samp_factor, info.max_v_samp_factor, info.min_DCT_scaled_size
    mcu_rows, mcu_columns = -(-info.image_height // (8 * max_v)), -(-info.image_width // (8 * max_h))
    components, padded = info.comp_info[: info.num_components], []
    for each in components:
        height = mcu_rows * each.v_samp_factor * each.DCT_scaled_size
        padded.append(np.zeros((height, mcu_columns * each.h_samp_factor * each.DCT_scaled_size), np.uint8))
    row_addresses = [rows_of(array) for array in padded]
    tables = [ctypes.addressof(each) for each in row_addresses]
    table_bytes = [8 * each.v_samp_factor * each.DCT_scaled_size for each in components]  # for one MCU row
    for row in range(mcu_rows):
        starts = [table + row * size for table, size in zip(tables, table_bytes, strict=True)]
        planes = (ctypes.c_void_p * len(starts))(*starts)
        assert turbo.jpeg_read_raw_data(reader, planes, max_v * side) == max_v * side
    turbo.jpeg_finish_decompress(reader)
    decoded = [
        Plane(
            array[: each.downsampled_height, : each.downsampled_width],
            (each.h_samp_factor * each.DCT_scaled_size, 8 * max_h),
            (each.v_samp_factor * each.DCT_scaled_size, 8 * max_v),
        )
        for each, array in zip(components, padded, strict=True)
    ]
    turbo.jpeg_destroy_decompress(reader)
    assert not reader.errors.warnings
    return decoded


ACCESS = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint, ctypes.c_int
)  # access_virt_barray


def recode(
    turbo: ctypes.CDLL,
    data: bytes,
    edit: Callable[[int, NDArray[np.int16]], None],
    *,
    restart: int = 0,
    progressive: bool = False,
) -> bytes:
    """Let libjpeg write a file again with other coefficients, as jpegtran does.

    Args:
        turbo: The library.
        data: A JPEG.
        edit: Changes the coefficients of a component in place: int16 [columns, 64] of a row of blocks. A difference
            between the DC coefficients of two blocks is at most 2,047, and other coefficients at most 1,023.
        restart: Restart interval in MCUs; 0: no restart markers.
        progressive: Write a progressive file.
    """
    writer, reader = Writer(turbo), Reader(turbo)
    set_error_handlers(reader.errors)
    set_error_handlers(writer.errors)
    turbo.jpeg_mem_src(reader, data, ctypes.c_ulong(len(data)))
    turbo.jpeg_read_header(reader, 1)
    turbo.jpeg_read_coefficients.restype = ctypes.c_void_p
    arrays = turbo.jpeg_read_coefficients(reader)
    memory = ctypes.c_void_p.from_address(ctypes.addressof(reader.info) + 8).value  # cinfo.mem
    assert memory is not None
    access = ACCESS(ctypes.c_void_p.from_address(memory + 64).value)
    for number, component in enumerate(reader.info.comp_info[: reader.info.num_components]):
        array = ctypes.c_void_p.from_address(arrays + 8 * number).value
        for row in range(component.height_in_blocks):
            rows = access(ctypes.addressof(reader.info), array, row, 1, 1)
            address = ctypes.c_void_p.from_address(rows).value
            blocks = (ctypes.c_int16 * (64 * component.width_in_blocks)).from_address(address)
            edit(number, np.frombuffer(blocks, np.int16).reshape(-1, 64))
    turbo.jpeg_copy_critical_parameters(reader, writer)
    writer.info.optimize_coding, writer.info.restart_interval = 1, restart
    if progressive:
        turbo.jpeg_simple_progression(writer)
    turbo.jpeg_write_coefficients(writer, ctypes.c_void_p(arrays))
    coded = writer.finish()
    turbo.jpeg_destroy_decompress(reader)
    return coded
