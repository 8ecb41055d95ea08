"""Encode values as the bytes of a field, chosen by its extension, in the same way as `webdataset`'s writer.

Not supported are formats that run code when they are read (pickle, ``torch.save``), and formats that need further
packages. Such fields accept only bytes. Source: webdataset 1.0.2, ``writer.py``, ``make_handlers`` and
``imageencoder``.
"""

from __future__ import annotations

import gzip
import io
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from wds_tools.errors import SampleError
from wds_tools.format.codecs import CODECS

_RUNS_CODE = ("pyd", "pickle", "pkl", "pth", "pt")
_JPEG = ("JPEG", {"quality": 100})
_TIFF = ("TIFF", {"quality": 100})
_WEBP = ("WEBP", {"lossless": True})  # webdataset does not write WebP; lossless, so that no pixel changes
_IMAGES: dict[str, tuple[str, dict[str, Any]]] = {
    **dict.fromkeys(("jpg", "jpeg", "img", "image"), _JPEG),
    **dict.fromkeys(("ppm", "pgm", "pbm"), ("PPM", {})),
    **dict.fromkeys(("tif", "tiff"), _TIFF),
    "png": ("PNG", {}),
    "webp": _WEBP,
}
_ALIASES = {"class": "cls", "count": "cls", "html": "txt", "htm": "txt"}
_REMEDY = "give bytes, or a value of a supported type"


def encode_field(name: str, value: Any) -> bytes:
    """Encode a value as the bytes of a field.

    Bytes stay unchanged and text becomes UTF-8 in any field. Otherwise the last extension of the name decides: integers
    for ``cls index id ...``, JSON values for ``json``, an array without objects for ``npy``, a dictionary of arrays for
    ``npz``, an image for ``jpg png webp ppm tif``. With ``.gz`` after that extension, the result is compressed.

    An image is a `PIL.Image.Image`; a numpy array, [height, width] or [height, width, channels]; or a torch tensor,
    [channels, height, width]. It has 1, 3 or 4 channels of uint8, or of float32 or float64 from 0 to 1, which are
    multiplied by 255 and rounded down. A single channel can also be uint16, such as a depth map, for ``png``, ``tif``
    and ``pgm``. JPEG is written at quality 100, and WebP is lossless.

    >>> encode_field("cls", 3), encode_field("boxes.json", [1, 2]), encode_field("txt", "hello")
    (b'3', b'[1,2]', b'hello')
    """
    plain = name.removesuffix(".gz")
    kind = plain.rpartition(".")[2].lower()
    try:
        data = _encode(kind, value)
    except (TypeError, ValueError, OverflowError, OSError, KeyError, RecursionError) as error:
        reason = str(error) if error.args else type(error).__name__
        raise SampleError(f"field {name!r} cannot hold {_type_and_shape(value)}: {reason}; {_REMEDY}") from error
    return gzip.compress(data, mtime=0) if plain != name else data


def _encode(kind: str, value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if kind in _RUNS_CODE:
        raise TypeError(f".{kind} would be a pickle, which runs code when it is read; use .npy, .json or bytes")
    if kind in _IMAGES:
        return _encode_image(kind, value)
    if kind == "npz":
        return _encode_npz(value)
    codec = CODECS.get(_ALIASES.get(kind, kind))
    if codec is None:
        raise TypeError(f"there is no encoder for .{kind}")
    return codec.encode(_without_torch(value))


def _encode_image(kind: str, value: Any) -> bytes:
    image = value if isinstance(value, Image.Image) else Image.fromarray(_pixels(value))
    file_format, options = _IMAGES[kind]
    _check_depth(image, file_format)
    out = io.BytesIO()
    image.save(out, file_format, **options)
    return out.getvalue()


def _check_depth(image: Image.Image, file_format: str) -> None:
    """Raise an error for values that Pillow would silently clip. For other formats Pillow itself raises one."""
    if image.mode[0] not in "IF":
        return
    if file_format == "WEBP":
        raise ValueError(f"mode {image.mode} has more than 8 bits, and WebP has 8: use png or tif")
    if file_format == "PPM" and image.mode == "I":
        low, high = np.asarray(image).min(), np.asarray(image).max()
        if low < 0 or high > 65_535:
            raise ValueError(f"its values go from {low} to {high}; allowed are 0 to 65535: use tif")


def _pixels(value: Any) -> NDArray[Any]:
    """Return an array or tensor as uint8 [height, width] or [height, width, 3 or 4], or as uint16 [height, width]."""
    array = _without_torch(value)
    if not isinstance(array, np.ndarray):
        raise TypeError("an image must be a PIL image, an array, a tensor, or encoded bytes")
    if array is not value and array.ndim == 3:
        array = array.transpose(1, 2, 0)  # tensors have their channels first, as in torchvision
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or not array.size:
        raise ValueError(
            "its shape must be [height, width] or [height, width, 1, 3 or 4]; for a tensor, [1, 3 or 4, height, width]"
        )
    if array.dtype in (np.float32, np.float64):
        if not (array.min() > -0.001 and array.max() < 1.001):  # also refuses NaN
            raise ValueError(f"its values go from {array.min()} to {array.max()}; allowed are 0 to 1, or uint8")
        array = (np.clip(array, 0.0, 1.0) * 255.0).astype(np.uint8)
    array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if array.dtype != np.uint8 and not (array.dtype == np.uint16 and array.ndim == 2):
        raise TypeError(f"its type is {array.dtype}; allowed are uint8, float32, float64, and uint16 with one channel")
    return np.ascontiguousarray(array)


def _encode_npz(value: Any) -> bytes:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise TypeError("an npz needs a dictionary of arrays by name")
    arrays = {name: np.asarray(_without_torch(part)) for name, part in value.items()}
    if any(array.dtype.hasobject for array in arrays.values()):
        raise ValueError("an array of objects would be a pickle, which runs code when it is read")
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def _without_torch(value: Any) -> Any:
    """Return a tensor as an array, without importing torch."""
    torch = sys.modules.get("torch")
    return value.detach().cpu().numpy() if torch is not None and isinstance(value, torch.Tensor) else value


def _type_and_shape(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}{f' {list(shape)}' if shape else ''}"
