"""NumPy files: ``.npy`` with images, ``.npz`` with images and labels. Nothing is unpickled."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from wds_tools.errors import SourceError
from wds_tools.format import codecs
from wds_tools.sources.array_roles import Contents, Unusable
from wds_tools.sources.arrays import ArraySource
from wds_tools.sources.base import as_read_error
from wds_tools.sources.files import map_file

_READ_ERRORS = (ValueError, zipfile.BadZipFile, EOFError, struct.error, zlib.error, RuntimeError)
MAX_UNPACKED_BYTES = 16 << 30
"""Limit for a compressed array, which each worker decompresses into memory."""


class NumpySource(ArraySource):
    """A ``.npy`` or ``.npz`` file. Each worker decompresses a compressed ``.npz`` into its memory."""

    kind = "numpy"

    def open(self) -> Contents:
        contents = Contents()
        with as_read_error(f"{self.path} cannot be read as NumPy", *_READ_ERRORS):
            content = map_file(self.path)
            if bytes(content[:6]) == b"\x93NUMPY":
                _add(contents, "images", partial(_array, content, str(self.path)), inside="")
                return contents
            with zipfile.ZipFile(self.path) as archive:
                for info in archive.infolist():
                    name = info.filename.removesuffix(".npy")
                    if name == info.filename:
                        contents.unusable.append(Unusable("member", name, "is not an array (.npy)"))
                        continue
                    if name in contents.arrays:
                        raise SourceError(f"{self.path} has two arrays named {name!r}: save it again")
                    _add(contents, name, partial(self._member, archive, info, content))
        return contents

    def _member(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, content: memoryview) -> Any:
        """Return an array of a ``.npz`` file: without a copy if it is stored uncompressed."""
        where = f"{self.path}: array {info.filename!r}"
        if info.compress_type == zipfile.ZIP_STORED:
            lengths = struct.unpack_from("<HH", content, info.header_offset + 26)
            start = info.header_offset + 30 + sum(lengths)
            return _array(content[start : start + info.file_size], where)
        if info.file_size > MAX_UNPACKED_BYTES:
            raise SourceError(
                f"{where} has {info.file_size:,} bytes when decompressed; allowed are {MAX_UNPACKED_BYTES:,}: save it "
                "with numpy.savez, which does not compress, or as .npy"
            )
        with archive.open(info) as member:
            return _array(memoryview(member.read(info.file_size)), where)


def _add(contents: Contents, name: str, read: Callable[[], Any], inside: str | None = None) -> None:
    """Add an array, unless it has objects."""
    try:
        contents.add(name, read(), inside)
    except codecs.ObjectsError:
        contents.refuse(
            name,
            "has objects, which are not read, because they are pickles, which can run code: save text as np.array(x, "
            "dtype=str), and rows of different lengths in a format such as HDF5",
        )


def _array(data: memoryview, where: str) -> Any:
    """Return the array in a ``.npy`` file, without a copy."""
    try:
        shape, fortran, dtype, start = codecs.npy_header(data)
    except codecs.ObjectsError:
        raise
    except ValueError as error:
        raise SourceError(f"{where}: {error}") from error
    array = np.frombuffer(data, dtype, math.prod(shape), start)
    return array.reshape(shape, order="F" if fortran else "C")
