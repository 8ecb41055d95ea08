"""HDF5 files: a dataset of images, and optionally labels, in the root group or in others; or a group per class.

Images are uint8 pixels, or encoded images. A file can refer to data in other files; such links and datasets are
refused.

Files of MATLAB 7.3 are HDF5 too: arrays with their axes in reverse, text as numbers, cells as references. MATLAB stores
the first axis of an array last. Images are usually [H, W, C, N] there, and values for each image [N, 1] or [1, N].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import SourceError
from wds_tools.format.image_header import sniff
from wds_tools.format.label import name as class_name
from wds_tools.format.label import quoted
from wds_tools.sources import masks
from wds_tools.sources.array_roles import Contents, Rows, Unusable, array_kind, of_items, role_rank, to_bytes
from wds_tools.sources.arrays import ArraySource
from wds_tools.sources.base import as_read_error, import_optional
from wds_tools.sources.columns import IMAGE, LABEL
from wds_tools.sources.file_names import is_split_name
from wds_tools.sources.values import CHANNELS, layout_of

_ERRORS = (KeyError, ValueError, RuntimeError, TypeError)
_HEADER_BYTES = 128  # of a MAT-file
_BLOCK_BYTES = 32 << 20  # of rows that are read together where a row is scattered over the file
_NUMBERS = frozenset(
    [*(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "single", "double", "logical"]
)


class Hdf5Source(ArraySource):
    """An HDF5 file. A chunk is read once per worker and window, not once per image.

    Sizes of encoded images are estimates: the mean of the file.
    """

    kind = "hdf5"
    why_missing = "HDF5 does not store what was never written"

    def open(self) -> Contents:
        with as_read_error(f"{self.path} cannot be read"), self.path.open("rb") as stored:
            header = stored.read(_HEADER_BYTES)
        if header.startswith(b"MATLAB 5.0 MAT-file"):
            raise SourceError(
                f"{self.path} is a MAT-file of version 5, which is not read: save it with -v7.3 in MATLAB, or convert "
                "it in Python with numpy.savez('x.npz', images=..., labels=...) after scipy.io.loadmat"
            )
        h5py = import_optional("h5py", "HDF5")
        with as_read_error(f"{self.path} cannot be read as HDF5", *_ERRORS):
            file = h5py.File(self.path, "r", locking=False)
            tree = _Tree(h5py, file, self.path)
            is_matlab = any("MATLAB_class" in item.attrs for item in tree.datasets.values())
            if is_matlab or header.startswith(b"MATLAB 7.3 MAT-file"):
                return _matlab_contents(file, tree)
            return _class_groups(tree, self.columns.get(IMAGE), str(self.path)) or _flat_contents(tree)

    def missing_parts(self, name: str) -> str:
        array = self._contents.arrays[name]
        if isinstance(array, Rows) or not array.size:
            return ""
        if array.chunks is None:
            return "" if array.id.get_storage_size() else "all pixels"
        expected = math.prod(-(-size // part) for size, part in zip(array.shape, array.chunks, strict=True))
        missing = expected - array.id.get_num_chunks()
        return f"{missing:,} of {expected:,} chunks" if missing > 0 else ""


class _Tree:
    """All datasets of a file by their paths, each once, and what else it has.

    Attributes:
        datasets: Path -> dataset with data.
        references: Path -> dataset of references to other objects or regions.
        attributes: Name -> value: ``name`` of the root group, ``path@name`` of others.
        contents: The parts without rows.
    """

    def __init__(self, h5py: Any, file: Any, path: Path) -> None:
        self._h5py, self._path = h5py, path
        self.contents = Contents()
        self.attributes: dict[str, Any] = {}
        self.datasets: dict[str, Any] = {}
        self.references: dict[str, Any] = {}
        self._add_attributes("", file)
        for name, item in self._walk(file):
            self._add(name, item)

    def _address(self, item: Any) -> int:
        return int(self._h5py.h5o.get_info(item.id).addr)

    def _leave_out(self, kind: str, name: str, reason: str) -> None:
        self.contents.unusable.append(Unusable(kind, name, reason))

    def _walk(self, root: Any) -> Iterator[tuple[str, Any]]:
        """Yield the path of every dataset, once, by the usual name of a role if it has several names in a group."""
        entered = {self._address(root)}
        pending = [("", root)]
        while pending:
            prefix, group = pending.pop()
            below = []
            for key in sorted(group, key=lambda key: not any(role_rank(key, role) == 2 for role in (IMAGE, LABEL))):
                name = f"{prefix}{key}"
                item = self._item(group, key, name)
                is_group = isinstance(item, self._h5py.Group)
                if not is_group and not isinstance(item, self._h5py.Dataset):
                    if item is not None:
                        self._leave_out("entry", name, "is a type without data")
                elif self._address(item) in entered:
                    kind = "group" if is_group else "array"
                    self._leave_out(kind, name, f"is the same {'group' if is_group else 'dataset'} as another")
                else:
                    entered.add(self._address(item))
                    if is_group:
                        self._add_attributes(name, item)
                        below.append((f"{name}/", item))
                    else:
                        yield name, item
            pending += reversed(below)

    def _item(self, group: Any, key: str, name: str) -> Any | None:
        """Return what a name of a group leads to."""
        link = group.get(key, getlink=True)
        if isinstance(link, self._h5py.ExternalLink):
            raise SourceError(f"{self._path}: {name!r} is a link to another file: copy the data into one")
        try:
            return group[key]
        except KeyError:
            if not isinstance(link, self._h5py.SoftLink):
                raise
            self.contents.refuse(name, f"is a link to {link.path!r}, which does not exist")
            return None

    def _add_attributes(self, owner: str, item: Any) -> None:
        for attribute in item.attrs:
            if attribute.startswith(("MATLAB_", "Python.")) or attribute == "H5PATH":
                continue
            name = f"{owner}@{attribute}" if owner else attribute
            try:
                self.attributes[name] = item.attrs.get(attribute)
            except (OSError, TypeError):  # a type that h5py does not know
                self.attributes[name] = None

    def _add(self, name: str, item: Any) -> None:
        """Add a dataset, if it has data."""
        self._add_attributes(name, item)
        if item.is_virtual or item.external:
            raise SourceError(f"{self._path}: {name!r} is virtual, or has its data in other files: copy the data")
        try:
            dtype = item.dtype
        except TypeError as error:
            self.contents.refuse(name, f"has a type that h5py cannot read ({error})")
            return
        if item.shape is None:
            self.contents.refuse(name, "has no data (a null dataspace)")
        elif _has_references(self._h5py, dtype):
            self.references[name] = item
        else:
            self._check_filters(name, item)
            self.datasets[name] = item

    def _check_filters(self, name: str, item: Any) -> None:
        """Check that the compression of a dataset can be undone."""
        properties = item.id.get_create_plist()
        for position in range(properties.get_nfilters()):
            code, _, _, text = properties.get_filter(position)
            if not self._h5py.h5z.filter_avail(code):
                raise SourceError(
                    f"{self._path}: {name!r} is compressed with filter {code} ({text.decode(errors='replace')}), which "
                    "h5py does not have: write the file again with gzip, for example with h5repack"
                )


def _has_references(h5py: Any, dtype: Any) -> bool:
    inner = (dtype[name] for name in dtype.names or ())
    return h5py.check_ref_dtype(dtype) is not None or any(_has_references(h5py, part) for part in inner)


def _without_references(tree: _Tree) -> Contents:
    for name in tree.references:
        tree.contents.refuse(name, "has references to other objects or regions")
    return tree.contents


def _flat_contents(tree: _Tree) -> Contents:
    """Return the datasets with rows as arrays, and fields of records as separate arrays."""
    contents = _without_references(tree)
    for name, item in tree.datasets.items():
        contents.add(name, item)
    for name, value in tree.attributes.items():
        contents.add_entry("attribute", name, name.rpartition("@")[2], value)
    return contents


# One dataset per image, in groups


def _class_groups(tree: _Tree, chosen: str | None, where: str) -> Contents | None:
    """Return the images of groups that have one dataset per image, with the group as label; None for another layout."""
    inside = f"{chosen.rstrip('/')}/" if chosen and chosen not in tree.datasets else ""
    groups: dict[str, dict[str, Any]] = {}
    for name, item in tree.datasets.items():
        if name.startswith(inside):
            groups.setdefault(name.rpartition("/")[0], {})[name] = item
    classes = {group: items for group, items in groups.items() if all(map(_is_image, items.values()))}
    deep = [item for item in tree.datasets.values() if item.ndim > 2 and not _is_image(item)]
    if not classes or deep or any(array_kind(item) == "bytes" or item.dtype.names for item in tree.datasets.values()):
        return None  # an array has rows of images
    _check_groups(classes, inside, where)
    for group, items in groups.items():
        if group not in classes and any(map(_is_image, items.values())):
            not_image = next(name for name, item in items.items() if not _is_image(item))
            raise SourceError(
                f"{where} has images in group {group!r}, but also {not_image!r}, which is not an image; allowed are "
                "groups with only one dataset per image: remove it, or save all images in one array"
            )
    images = {name: item for items in classes.values() for name, item in items.items()}
    contents = _without_references(tree)
    contents.arrays = {chosen or "images": of_items([*map(_image, images.values())]), "name": np.array(list(images))}
    contents.labels = [class_name(name[len(inside) :].partition("/")[0]) for name in images]
    contents.used = [("group", group, "class") for group in classes]
    not_in_groups = [name for name in tree.datasets if name not in images]
    contents.unusable += [Unusable("array", name, "is not in a group of images") for name in not_in_groups]
    contents.unusable += [Unusable("attribute", name, "is an attribute") for name in tree.attributes]
    return contents


def _check_groups(groups: Mapping[str, Mapping[str, Any]], inside: str, where: str) -> None:
    """Check that groups with one dataset per image are classes."""
    paths = {group: group[len(inside) :] for group in groups}
    inner = {frozenset(name.rpartition("/")[2] for name in items) for items in groups.values()}
    tops = sorted({path.split("/")[0] for path in paths.values()})
    if all(map(is_split_name, tops)):
        raise SourceError(
            f"{where} has one group per split ({', '.join(tops)}): name one, as in --column image={inside}{tops[0]} "
            "(columns={'image': ...}), and pack each split separately"
        )
    what = ""
    if len(inner) == 1 and any(role_rank(name, role) for names in inner for name in names for role in (IMAGE, LABEL)):
        what = "a group for each image"
    elif len(tops) > 1 and all(role_rank(top, IMAGE) == 2 or masks.is_mask(f"{top}/1.png") for top in tops):
        what = f"a dataset for each image and each mask, in the groups {quoted(tops)}"
    elif len(tops) < 2 or any("/" in path or not path for path in paths.values()):
        what = "a dataset for each image, but not in one group per class"
    if what:
        raise SourceError(
            f"{where} has {what}, such as {next(iter(next(iter(groups.values()))))!r}; allowed are arrays of all "
            "images, of all labels and of all masks, and groups CLASS/NAME, with the group above the classes as in "
            "--column image=GROUP"
        )


def _image(item: Any) -> Rows:
    """Return a dataset with one image, whose pixels or bytes are read when they are needed."""
    if item.dtype == np.uint8:
        return Rows(item.shape, item.dtype, item.__getitem__)
    return Rows(
        (item.dtype.itemsize,), np.dtype(np.uint8), lambda part: np.frombuffer(to_bytes(item[()]), np.uint8)[part]
    )


def _is_image(item: Any) -> bool:
    """Return whether a dataset is one image: [H, W], [H, W, C], or the bytes of an encoded image."""
    if item.ndim == 0:
        return (
            array_kind(item) in ("binary", "text") and item.dtype.kind in "VS" and sniff(to_bytes(item[()])) is not None
        )
    if item.dtype != np.uint8 or array_kind(item) == "names" or min(item.shape) == 0:
        return False
    if item.ndim == 1:
        return sniff(item[:12].tobytes()) is not None
    return item.ndim == 2 or (item.ndim == 3 and item.shape[2] in CHANNELS and item.shape[0] not in CHANNELS)


# Files of MATLAB 7.3


def _matlab_contents(file: Any, tree: _Tree) -> Contents:
    """Return the variables of a file as arrays, with a row for each image."""
    hidden = sorted({name.partition("/")[0] for name in tree.datasets | tree.references if name.startswith("#")})
    contents = Contents(
        unusable=[part for part in tree.contents.unusable if not part.name.startswith("#")],
        used=[("group", name, "contents of cells") for name in hidden],
    )
    large: dict[str, Any] = {}
    for name, item in (tree.datasets | tree.references).items():
        if name.startswith("#"):
            continue
        try:
            value = _variable(file, item)
        except SourceError as error:
            contents.refuse(name, error)
            continue
        if isinstance(value, str):
            contents.unusable.append(Unusable("array", name, "is a single text, not one for each image"))
        elif value is item:
            large[name] = item
        else:
            contents.arrays[name] = value
    _orient(contents, large)
    return contents


def _variable(file: Any, item: Any) -> Any:
    """Return a vector, texts, or images of cells as an array with rows; other arrays of numbers as they are."""
    kind = _class_of(item)
    if item.shape is None or _is_empty(item):
        raise SourceError("is empty")
    if "MATLAB_sparse" in item.parent.attrs:
        raise SourceError("is a part of a sparse matrix, which is not read: save full(x)")
    if item.dtype.kind == "O":
        if kind != "cell":
            raise SourceError("is a field of an array of structs, which is not read: save each field as an array")
        return _cells(file, item)
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


def _is_empty(item: Any) -> bool:
    return bool(item.attrs.get("MATLAB_empty", 0))


def _class_of(item: Any) -> str:
    kind = item.attrs.get("MATLAB_class", b"")
    return kind.decode() if isinstance(kind, bytes) else str(kind)


def _texts(item: Any) -> list[str]:
    """Return the rows of an array of characters."""
    codes = np.atleast_2d(item[()].T).astype("<u2")
    return [row.tobytes().decode("utf-16-le", "replace").rstrip(" \0") for row in codes]


def _cells(file: Any, item: Any) -> Any:
    """Return a cell array as texts, numbers or images."""
    if max(item.shape) != item.size:
        raise SourceError(f"is a cell array of size {_size(item)}; only lists of cells are read")
    cells = [file[reference] for reference in item[()].reshape(-1)]
    kinds = {_class_of(cell) for cell in cells if not _is_empty(cell)}
    if kinds <= {"char"}:
        texts = [[""] if _is_empty(cell) else _texts(cell) for cell in cells]
        if all(len(rows) == 1 for rows in texts):
            return np.array([rows[0] for rows in texts])
    elif any(map(_is_empty, cells)):
        raise SourceError("is a cell array with empty cells, which are not read")
    elif kinds <= _NUMBERS and all(cell.size == 1 for cell in cells):
        return np.array([cell[()].item() for cell in cells])
    elif kinds == {"uint8"}:
        return of_items([*map(_cell, cells)])
    raise SourceError(f"is a cell array of {', '.join(sorted(kinds))}; cells of text, numbers or uint8 images are read")


def _cell(item: Any) -> Rows:
    """Return a cell with an image, [H, W], [H, W, C] or the bytes of an encoded image, read when it is needed."""
    shape = tuple(reversed(item.shape))
    if len(shape) == 2 and min(shape) == 1 and sniff(item[()].tobytes()[:12]):
        shape = (item.size,)
    return Rows(shape, item.dtype, lambda part: item[()].T.reshape(shape)[part])


def _orient(contents: Contents, large: Mapping[str, Any]) -> None:
    """Add arrays with several axes, the rows first."""
    lengths = {array.shape[0] for array in contents.arrays.values()}
    counts = {array.shape[0] for array in contents.arrays.values() if array.dtype == object or array.ndim > 1}
    shapes = {name: tuple(reversed(item.shape)) for name, item in large.items()}
    axes: dict[str, int | None] = {}
    for name, shape in sorted(shapes.items(), key=lambda entry: -len(entry[1])):  # four axes show the number of images
        if len(shape) > 2:
            axis = axes[name] = _row_axis(shape, lengths)
            lengths |= {shape[axis]} if axis is not None and len(shape) > 3 else set()
    counts |= {shapes[name][axis] for name, axis in axes.items() if axis is not None}
    for name, item in large.items():
        first, last = shapes[name][0] in counts, shapes[name][-1] in counts
        axis = axes.get(name, -1 if last and not first else None if first and last else 0)
        if axis is None:
            contents.refuse(
                name,
                f"is of size {_size(item)}, and it is not clear whether its first or its last size is the number of "
                "images: save it as [H, W, C, N], and labels as long",
            )
        else:
            contents.arrays[name] = _oriented(item, axis)


def _row_axis(shape: tuple[int, ...], lengths: set[int]) -> int | None:
    """Return 0 or -1, the axis of the images in an array of MATLAB; None if it is not clear."""
    inner = {-1: shape[:-1], 0: shape[1:]}
    options = [axis for axis in inner if len(shape) == 3 or layout_of(inner[axis]) is not None]
    fitting = [axis for axis in options if shape[axis] in lengths]
    return fitting[0] if len(fitting) == 1 else options[0] if len(options) == 1 else None


def _oriented(item: Any, axis: int) -> Rows:
    """Return an array of MATLAB with the axis of the images first, and the others in MATLAB's order."""
    dtype = np.dtype(bool) if _class_of(item) == "logical" else item.dtype

    def read(rows: Any) -> NDArray[Any]:
        values = item[rows] if axis == -1 else item[..., rows]
        if isinstance(rows, slice) and axis == -1:
            return np.asarray(values.transpose(0, *range(item.ndim - 1, 0, -1)), dtype)
        return np.asarray(values.T, dtype)

    shape = tuple(reversed(item.shape))
    shape = shape if axis == 0 else (shape[-1], *shape[:-1])
    row_bytes = max(1, item.size // max(1, shape[0]) * item.dtype.itemsize)
    chunks = item.chunks[0 if axis == -1 else -1] if item.chunks else 1
    return Rows(shape, dtype, read, (max(chunks, _BLOCK_BYTES // row_bytes if axis == 0 else 1),))


def _size(item: Any) -> str:
    return "x".join(map(str, reversed(item.shape)))
