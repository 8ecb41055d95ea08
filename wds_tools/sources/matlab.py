"""Files of MATLAB 7.3, which are HDF5: arrays with their axes in reverse, text as numbers, cells as references.

MATLAB stores the first axis of an array last. Images are usually [H, W, C, N] there, and values for each image
[N, 1] or [1, N].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import SourceError
from wds_tools.format.image_header import sniff
from wds_tools.sources.array_contents import Contents, Unusable
from wds_tools.sources.array_kinds import of_items
from wds_tools.sources.base import as_read_error
from wds_tools.sources.pixels import layout_of

_HEADER_BYTES = 128
_NUMBERS = frozenset(
    [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "single", "double", "logical"]
)
_BLOCK_BYTES = 32 << 20  # of rows that are read together where a row is scattered over the file
_SCATTERED = "it is not clear whether its first or its last size is the number of images"


def refuse_old(path: Path) -> None:
    """Raise an error for a file of an earlier version of MATLAB, which is not HDF5."""
    if _header(path).startswith(b"MATLAB 5.0 MAT-file"):
        raise SourceError(
            f"{path} is a MAT-file of version 5, which is not read: save it with -v7.3 in MATLAB, or convert it in "
            "Python with numpy.savez('x.npz', images=..., labels=...) after scipy.io.loadmat"
        )


def is_matlab(path: Path, datasets: Mapping[str, Any]) -> bool:
    """Return whether an HDF5 file is one of MATLAB 7.3, or was written like one."""
    return _header(path).startswith(b"MATLAB 7.3 MAT-file") or any(
        "MATLAB_class" in item.attrs for item in datasets.values()
    )


def _header(path: Path) -> bytes:
    with as_read_error(f"{path} cannot be read"), path.open("rb") as file:
        return file.read(_HEADER_BYTES)


def contents(file: Any, datasets: Mapping[str, Any], unusable: Sequence[Unusable]) -> Contents:
    """Return the variables of a file as arrays, with a row for each image.

    Args:
        file: The open file, for references.
        datasets: Path -> dataset, those of references too.
        unusable: What is known not to be an array.
    """
    found = Contents({}, [part for part in unusable if not part.name.startswith("#")], counts_from_one=True)
    hidden = sorted({name.partition("/")[0] for name in datasets if name.startswith("#")})
    found.used += [("group", name, "contents of cells") for name in hidden]
    large: dict[str, Any] = {}
    for name, item in datasets.items():
        if name.startswith("#"):
            continue
        try:
            value = _variable(file, item)
        except SourceError as error:
            found.unusable.append(Unusable("array", name, str(error), is_array=True))
            continue
        if isinstance(value, str):
            found.unusable.append(Unusable("array", name, "is a single text, not one for each image"))
        elif value is item:
            large[name] = item
        else:
            found.arrays[name] = value
    _orient(found, large)
    return found


def _variable(file: Any, item: Any) -> Any:
    """Return a vector, texts, or images of cells as an array with rows; other arrays of numbers as they are.

    Raises:
        SourceError: It has no rows. The message is the reason.
    """
    kind = _class_of(item)
    if item.shape is None or item.attrs.get("MATLAB_empty", 0):
        raise SourceError("is empty")
    if "MATLAB_sparse" in item.parent.attrs:
        raise SourceError("is a part of a sparse matrix, which is not read: save full(x)")
    if item.dtype.kind == "O":
        if kind != "cell":
            raise SourceError("is a field of an array of structs, which is not read: save each field as an array")
        return _cell(file, item)
    if kind == "char":
        texts = _texts(item)
        return texts[0] if len(texts) == 1 else np.array(texts)
    if item.dtype.names:
        raise SourceError("has complex numbers, which are not read: save real(x) and imag(x)")
    if kind not in _NUMBERS:
        raise SourceError(
            f"is of MATLAB's class {kind or 'unknown'!r}, which is not read: save numbers, or text with cellstr(x)"
        )
    if item.ndim <= 2 and min(item.shape, default=1) <= 1:
        values = item[()].reshape(-1)
        return values.astype(bool) if kind == "logical" else values
    return item


def _class_of(item: Any) -> str:
    kind = item.attrs.get("MATLAB_class", b"")
    return kind.decode() if isinstance(kind, bytes) else str(kind)


def _texts(item: Any) -> list[str]:
    """Return the rows of an array of characters."""
    codes = np.atleast_2d(item[()].T).astype("<u2")
    return [row.tobytes().decode("utf-16-le", "replace").rstrip(" \0") for row in codes]


def _cell(file: Any, item: Any) -> Any:
    """Return a cell array as texts, numbers or images.

    Raises:
        SourceError: It has values of other types, or more than one axis.
    """
    if max(item.shape) != item.size:
        raise SourceError(f"is a cell array of size {_size(item)}; only lists of cells are read")
    cells = [file[reference] for reference in item[()].reshape(-1)]
    kinds = {_class_of(cell) for cell in cells if not cell.attrs.get("MATLAB_empty", 0)}
    if kinds <= {"char"}:
        texts = [[""] if cell.attrs.get("MATLAB_empty", 0) else _texts(cell) for cell in cells]
        if all(len(rows) == 1 for rows in texts):
            return np.array([rows[0] for rows in texts])
    elif any(cell.attrs.get("MATLAB_empty", 0) for cell in cells):
        raise SourceError("is a cell array with empty cells, which are not read")
    elif kinds <= _NUMBERS and all(cell.size == 1 for cell in cells):
        return np.array([cell[()].item() for cell in cells])
    elif kinds == {"uint8"}:
        return of_items([_Cell(cell) for cell in cells])
    raise SourceError(f"is a cell array of {', '.join(sorted(kinds))}; cells of text, numbers or uint8 images are read")


class _Cell:
    """A cell with an image, [H, W], [H, W, C] or the bytes of an encoded image, which is read when it is needed."""

    def __init__(self, item: Any) -> None:
        self._item = item
        self.shape = tuple(reversed(item.shape))
        self.dtype = item.dtype
        if len(self.shape) == 2 and min(self.shape) == 1 and sniff(item[()].tobytes()[:12]):
            self.shape = (item.size,)
        self.ndim = len(self.shape)

    def __getitem__(self, part: Any) -> NDArray[Any]:
        values: NDArray[Any] = self._item[()].T.reshape(self.shape)
        row: NDArray[Any] = values[part]
        return row


def _orient(found: Contents, large: Mapping[str, Any]) -> None:
    """Add arrays with several axes, the rows first."""
    lengths = {array.shape[0] for array in found.arrays.values()}
    counts = {array.shape[0] for array in found.arrays.values() if array.dtype == object or array.ndim > 1}
    axes: dict[str, int | None] = {}
    for name, item in sorted(large.items(), key=lambda entry: -entry[1].ndim):  # four axes show the number of images
        if item.ndim > 2:
            shape = tuple(reversed(item.shape))
            axis = axes[name] = _row_axis(shape, lengths)
            lengths |= {shape[axis]} if axis is not None and item.ndim > 3 else set()
    counts |= {tuple(reversed(large[name].shape))[axis] for name, axis in axes.items() if axis is not None}
    for name, item in large.items():
        shape = tuple(reversed(item.shape))
        both = shape[0] in counts and shape[-1] in counts
        axis = axes.get(name, -1 if shape[-1] in counts and shape[0] not in counts else None if both else 0)
        if axis is None:
            reason = f"is of size {_size(item)}, and {_SCATTERED}: save it as [H, W, C, N], and labels as long"
            found.unusable.append(Unusable("array", name, reason, is_array=True))
        else:
            found.arrays[name] = _Rows(item, axis)


def _row_axis(shape: tuple[int, ...], lengths: set[int]) -> int | None:
    """Return 0 or -1, the axis of the images in an array of MATLAB; None if it is not clear."""
    if len(shape) > 3:
        options = [axis for axis, inner in ((-1, shape[:-1]), (0, shape[1:])) if layout_of(inner) is not None]
    else:
        options = [-1, 0]
    fitting = [axis for axis in options if shape[axis] in lengths]
    if len(fitting) == 1:
        return fitting[0]
    return options[0] if len(options) == 1 else None


class _Rows:
    """An array of MATLAB with the axis of the images first, and the others in MATLAB's order."""

    def __init__(self, item: Any, axis: int) -> None:
        self._item, self._axis = item, axis
        self._is_logical = _class_of(item) == "logical"
        shape = tuple(reversed(item.shape))
        self.shape = (shape[0], *shape[1:]) if axis == 0 else (shape[-1], *shape[:-1])
        self.ndim = item.ndim
        self.dtype = np.dtype(bool) if self._is_logical else item.dtype
        row_bytes = max(1, item.size // max(1, self.shape[0]) * item.dtype.itemsize)
        chunks = item.chunks[0 if axis == -1 else -1] if item.chunks else 1
        self.chunks = (max(chunks, _BLOCK_BYTES // row_bytes if axis == 0 else 1),)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        values: NDArray[Any] = self._item[rows] if self._axis == -1 else self._item[..., rows]
        if isinstance(rows, slice) and self._axis == -1:
            values = values.transpose(0, *range(self.ndim - 1, 0, -1))
        else:
            values = values.T
        return np.asarray(values, bool if self._is_logical else None)


def _size(item: Any) -> str:
    return "x".join(map(str, reversed(item.shape)))
