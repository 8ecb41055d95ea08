"""HDF5 files: a dataset of images, and optionally labels, in the root group or in others; or a group per class.

Images are uint8 pixels, or encoded images. A file can refer to data in other files; such links and datasets are
refused. Files of MATLAB 7.3 are HDF5 too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from wds_tools.errors import SourceError
from wds_tools.format.image_header import sniff
from wds_tools.format.label import name as class_name
from wds_tools.sources import matlab
from wds_tools.sources.array_contents import Contents, Unusable, role_rank
from wds_tools.sources.array_kinds import kind_of, of_items, to_bytes
from wds_tools.sources.arrays import ArraySource
from wds_tools.sources.base import as_read_error
from wds_tools.sources.columns import IMAGE, LABEL
from wds_tools.sources.layouts import is_split_name
from wds_tools.sources.optional_dependencies import import_optional
from wds_tools.sources.pixels import CHANNELS

_ERRORS = (KeyError, ValueError, RuntimeError, TypeError)


class Hdf5Source(ArraySource):
    """An HDF5 file. A chunk is read once per worker and window, not once per image.

    Sizes of encoded images are estimates: the mean of the file.
    """

    kind = "hdf5"

    def open(self) -> Contents:
        """Open the file and list all that it has."""
        matlab.refuse_old(self.path)
        h5py = import_optional("h5py", "HDF5")
        with as_read_error(f"{self.path} cannot be read as HDF5", *_ERRORS):
            file = h5py.File(self.path, "r", locking=False)
            tree = _Tree(h5py, file, self.path)
            if matlab.is_matlab(self.path, tree.datasets):
                contents = matlab.contents(file, tree.datasets | tree.references, tree.unusable)
            else:
                contents = _class_groups(tree, self.columns.get(IMAGE), str(self.path)) or _flat_contents(tree)
        rows = max((array.shape[0] for array in contents.arrays.values()), default=1)
        contents.mean_bytes = max(1, self.path.stat().st_size // max(1, rows))
        return contents


class _Tree:
    """All datasets of a file by their paths, each once, and what else it has.

    Attributes:
        datasets: Path -> dataset with data.
        references: Path -> dataset of references to other objects or regions.
        attributes: Name -> value: ``name`` of the root group, ``path@name`` of others.
        unusable: Parts without rows.
    """

    def __init__(self, h5py: Any, file: Any, path: Path) -> None:
        self._h5py, self._path = h5py, path
        self.unusable: list[Unusable] = []
        self.attributes: dict[str, Any] = {}
        self._add_attributes("", file)
        names: dict[int, list[str]] = {}
        items: dict[str, Any] = {}
        for name, item in self._walk(file):
            names.setdefault(h5py.h5o.get_info(item.id).addr, []).append(name)
            items[name] = item
        self.datasets: dict[str, Any] = {}
        self.references: dict[str, Any] = {}
        for same in names.values():
            best = max(same, key=lambda name: max(role_rank(name, IMAGE), role_rank(name, LABEL)))
            for name in same:
                if name != best:
                    self.unusable.append(Unusable("array", name, f"is the same dataset as {best!r}"))
            self._add(best, items[best])

    def _walk(self, root: Any) -> Iterator[tuple[str, Any]]:
        """Yield the path of every dataset, by each of its names. A group is entered once."""
        entered = {self._h5py.h5o.get_info(root.id).addr}
        pending = [("", root)]
        while pending:
            prefix, group = pending.pop()
            below = []
            for key in group:
                name = f"{prefix}{key}"
                item = self._item(group, key, name)
                if isinstance(item, self._h5py.Group):
                    address = self._h5py.h5o.get_info(item.id).addr
                    if address in entered:
                        self.unusable.append(Unusable("group", name, "is the same group as another"))
                        continue
                    entered.add(address)
                    self._add_attributes(name, item)
                    below.append((f"{name}/", item))
                elif isinstance(item, self._h5py.Dataset):
                    yield name, item
                elif item is not None:
                    self.unusable.append(Unusable("entry", name, "is a type without data"))
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
            self.unusable.append(Unusable("array", name, f"is a link to {link.path!r}, which does not exist", True))
            return None

    def _add_attributes(self, owner: str, item: Any) -> None:
        for attribute in _attribute_names(item):
            name = f"{owner}@{attribute}" if owner else attribute
            try:
                self.attributes[name] = item.attrs.get(attribute)
            except (OSError, TypeError):  # a type that h5py does not know
                self.attributes[name] = None

    def _add(self, name: str, item: Any) -> None:
        """Add a dataset, if it has data."""
        self._add_attributes(name, item)
        if item.is_virtual or item.external:
            raise SourceError(f"{self._path}: {name!r} has its data in other files: copy the data into one")
        try:
            dtype = item.dtype
        except TypeError as error:
            self.unusable.append(Unusable("array", name, f"has a type that h5py cannot read ({error})", True))
            return
        if item.shape is None:
            self.unusable.append(Unusable("array", name, "has no data (a null dataspace)", True))
        elif _has_references(self._h5py, dtype):
            self.references[name] = item
        else:
            self._check_filters(name, item)
            self.datasets[name] = item

    def _check_filters(self, name: str, item: Any) -> None:
        """Check that the compression of a dataset can be undone."""
        properties = item.id.get_create_plist()
        for number in range(properties.get_nfilters()):
            code, _, _, text = properties.get_filter(number)
            if not self._h5py.h5z.filter_avail(code):
                raise SourceError(
                    f"{self._path}: {name!r} is compressed with filter {code} ({text.decode(errors='replace')}), which "
                    "h5py does not have: write the file again with gzip, for example with h5repack"
                )


def _attribute_names(item: Any) -> list[str]:
    return [name for name in item.attrs if not name.startswith(("MATLAB_", "Python.")) and name != "H5PATH"]


def _has_references(h5py: Any, dtype: Any) -> bool:
    inner = (dtype[name] for name in dtype.names) if dtype.names else ()
    return h5py.check_ref_dtype(dtype) is not None or any(_has_references(h5py, part) for part in inner)


def _flat_contents(tree: _Tree) -> Contents:
    """Return the datasets with rows as arrays, and fields of records as arrays of their own."""
    contents = Contents({}, _unusable(tree))
    for name, item in tree.datasets.items():
        contents.add(name, item)
    for name, value in tree.attributes.items():
        contents.add_entry("attribute", name, name.rpartition("@")[2], value)
    return contents


def _unusable(tree: _Tree) -> list[Unusable]:
    reason = "has references to other objects or regions"
    return [*tree.unusable, *(Unusable("array", name, reason, True) for name in tree.references)]


# One dataset per image, in groups


def _class_groups(tree: _Tree, chosen: str | None, where: str) -> Contents | None:
    """Return the images of groups that have one dataset per image, with the group as label; None for another layout.

    Raises:
        SourceError: The groups are not classes.
    """
    inside = f"{chosen.rstrip('/')}/" if chosen and chosen not in tree.datasets else ""
    groups: dict[str, dict[str, Any]] = {}
    others: dict[str, Any] = {}
    for name, item in tree.datasets.items():
        if name.startswith(inside):
            groups.setdefault(name.rpartition("/")[0], {})[name] = item
        else:
            others[name] = item
    found = {group: items for group, items in groups.items() if all(map(_is_one_image, items.values()))}
    if not found or any(_has_rows_of_images(item) for item in tree.datasets.values()):
        return None
    _check_groups(found, inside, where)
    for group, items in groups.items():
        if group not in found and any(map(_is_one_image, items.values())):
            other = next(name for name, item in items.items() if not _is_one_image(item))
            raise SourceError(
                f"{where} has images in group {group!r}, and {other!r}, which is not one; allowed are groups with only "
                "one dataset per image: remove it, or save all images in one array"
            )
    rest = {name: item for group, items in groups.items() if group not in found for name, item in items.items()}
    images = {name: item for items in found.values() for name, item in items.items()}
    contents = Contents({chosen or "images": of_items([_Image(item) for item in images.values()])}, _unusable(tree))
    contents.arrays["name"] = np.array(list(images))
    contents.labels = [class_name(name[len(inside) :].partition("/")[0]) for name in images]
    contents.used += [("group", group, "class") for group in found]
    reason = "is not in a group of images"
    contents.unusable += [Unusable("array", name, reason) for name in (*others, *rest)]
    contents.unusable += [Unusable("attribute", name, "is an attribute") for name in tree.attributes]
    return contents


def _check_groups(found: Mapping[str, Mapping[str, Any]], inside: str, where: str) -> None:
    """Check that groups with one dataset per image are classes."""
    paths = {group: group[len(inside) :] for group in found}
    example = next(iter(next(iter(found.values()))))
    inner = {frozenset(name.rpartition("/")[2] for name in items) for items in found.values()}
    roles = [name for names in inner for name in names if role_rank(name, IMAGE) or role_rank(name, LABEL)]
    if len(inner) == 1 and roles:
        raise SourceError(
            f"{where} has a group for each image, such as {example!r}; allowed are arrays with all images and all "
            "labels, or a group for each class with a dataset per image"
        )
    tops = sorted({path.split("/")[0] for path in paths.values()})
    if all(map(is_split_name, tops)):
        raise SourceError(
            f"{where} has one group per split ({', '.join(tops)}): name one, as in --column image={inside}{tops[0]} "
            "(columns={'image': ...}), and pack each split separately"
        )
    if len(tops) < 2 or any("/" in path or not path for path in paths.values()):
        raise SourceError(
            f"{where} has one dataset per image, such as {example!r}, but not in one group per class; allowed are "
            "groups CLASS/NAME, with the group above the classes as in --column image=GROUP, and arrays of all images"
        )


class _Image:
    """A dataset with one image, whose pixels or bytes are read when they are needed."""

    def __init__(self, item: Any) -> None:
        self._item = item
        is_binary = item.dtype != np.uint8
        self.shape = (item.dtype.itemsize,) if is_binary else item.shape
        self.ndim = len(self.shape)
        self.dtype = np.dtype(np.uint8)

    def __getitem__(self, part: Any) -> Any:
        if self._item.dtype != np.uint8:
            return np.frombuffer(to_bytes(self._item[()]), np.uint8)[slice(None) if part == () else part]
        return self._item[part]


def _is_one_image(item: Any) -> bool:
    """Return whether a dataset is one image: [H, W], [H, W, C], or the bytes of an encoded image."""
    if item.ndim == 0:
        return kind_of(item) in ("binary", "text") and item.dtype.kind in "VS" and sniff(to_bytes(item[()])) is not None
    if item.dtype != np.uint8 or kind_of(item) == "names" or min(item.shape) == 0:
        return False
    if item.ndim == 1:
        return sniff(item[:12].tobytes()) is not None
    return item.ndim == 2 or (item.ndim == 3 and item.shape[2] in CHANNELS and item.shape[0] not in CHANNELS)


def _has_rows_of_images(item: Any) -> bool:
    return kind_of(item) == "bytes" or bool(item.dtype.names) or (item.ndim > 2 and not _is_one_image(item))
