"""Field types: a table from extension to encoder and decoder.

Nothing here runs code from data: no pickle, no ``torch.load``, no decompression. A field of an
unknown type stays bytes, as do images.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import operator
import tokenize
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import SampleError

_MAX_NPY_HEADER = 10_000  # numpy's own limit, because numpy gives the header to Python's parser


@dataclass(frozen=True, slots=True)
class Codec:
    """Encoder and decoder of one field type, and the type that Hugging Face's ``datasets`` has for it, if any."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]
    feature: str | None = None


def encode_npy(value: Any) -> bytes:
    """Encode an array, or anything that numpy converts to an array, as an ``.npy`` file."""
    out = io.BytesIO()
    np.save(out, np.asarray(value), allow_pickle=False)
    return out.getvalue()


class ObjectsError(ValueError):
    """An ``.npy`` file contains Python objects, which are pickled."""


def npy_header(data: bytes | memoryview) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Read the header of an ``.npy`` file, and check that the array has the size of the data after it.

    Returns:
        Shape, True for Fortran order, dtype, and the byte offset of the array.
    """
    size = 2 if bytes(data[6:7]) == b"\x01" else 4  # version 1.0 or 2.0
    start = 8 + size + int.from_bytes(data[8 : 8 + size], "little")
    if start > _MAX_NPY_HEADER:
        raise ValueError(f"npy header of {start:,} bytes; allowed are {_MAX_NPY_HEADER:,}")
    shape, fortran, dtype = _npy_header(bytes(data[:start]))
    fits = min(shape, default=0) >= 0 and math.prod(shape) * dtype.itemsize == len(data) - start
    if dtype.hasobject:
        raise ObjectsError("the array has Python objects, which are pickled")
    if not dtype.itemsize or not fits:
        raise ValueError(f"shape {shape} of {dtype} does not match the {len(data) - start:,} bytes after the header")
    return shape, fortran, dtype, start


def view_npy(data: bytes | memoryview) -> Any:
    """Return the array of an ``.npy`` file as a view of ``data``, without a copy.

    ``np.load`` is not safe here: it allocates any size that a header states, and opens zip files.
    """
    shape, fortran, dtype, start = npy_header(data)
    return np.frombuffer(data, dtype, math.prod(shape), start).reshape(shape, order="F" if fortran else "C")


@lru_cache(maxsize=1024)  # parsing a header, as Python source, takes longer than copying a small image
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    stream = io.BytesIO(header)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    version = np.lib.format.read_magic(stream)
    if version not in readers:
        raise ValueError(f"npy version {version}; allowed are 1.0 and 2.0")
    try:
        return readers[version](stream)
    except (SyntaxError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise ValueError(f"header: {error}") from error  # errors of Python's parser, which numpy uses


def stored_pixels(data: bytes | memoryview) -> NDArray[np.uint8]:
    """Return the pixels of an image that is stored as ``.npy``."""
    pixels = view_npy(data)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
        raise ValueError(f"npy of shape {pixels.shape} and {pixels.dtype} is not an image, which is uint8 [h, w, 3]")
    return pixels  # type: ignore[no-any-return]


_raw_decode = json.JSONDecoder().raw_decode


def _decode_json(data: bytes) -> Any:
    try:
        with contextlib.suppress(ValueError):  # json.loads takes 1.6 times as long for ten boxes
            text = data.decode()
            value, end = _raw_decode(text)
            if end == len(text):
                return value
        return json.loads(data)  # other encodings, spaces around the value, errors
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _encode_text(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"requires text, not {type(value).__name__}")
    return value.encode()


_INT = Codec(lambda value: b"%d" % operator.index(value), int, "int64")  # int() would truncate 3.7
_TEXT = Codec(_encode_text, lambda data: data.decode().removeprefix("\ufeff"), "string")
_JSON = Codec(lambda value: json.dumps(value, separators=(",", ":")).encode(), _decode_json, "json")
_NPY = Codec(encode_npy, lambda data: view_npy(data).copy())
_BYTES = Codec(bytes, bytes)

CODECS: dict[str, Codec] = {
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), _INT),
    **dict.fromkeys(("txt", "text", "transcript"), _TEXT),
    **dict.fromkeys(("json", "jsn"), _JSON),
    "npy": _NPY,
}
"""The field types that webdataset decodes, except images and types that run code from data."""


def codec_for(field: str) -> Codec:
    """Return the codec for the last extension of a field's name; fields of unknown types stay bytes.

    >>> codec_for("boxes.json").decode(b"[1, 2]"), codec_for("xyz").decode(b"raw")
    ([1, 2], b'raw')
    """
    return CODECS.get(field.rpartition(".")[2], _BYTES)


def decode_field(field: str, data: bytes, *, where: Callable[[], tuple[str, str]]) -> Any:
    """Decode a field that is not an image."""
    try:
        return codec_for(field).decode(data)
    except ValueError as error:
        shard, key = where()
        raise SampleError(
            f"field {field!r} holds {data[:40]!r}, which is not {field.rpartition('.')[2]}: {error}",
            shard=shard,
            key=key,
        ) from error
