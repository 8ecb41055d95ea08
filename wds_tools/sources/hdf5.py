"""HDF5 files: a dataset ``images``, and optionally ``labels``.

Images are uint8 pixels, or encoded images as variable-length uint8.
A file can refer to data in other files; such links and datasets are refused.
"""

from __future__ import annotations

from typing import Any

from wds_tools.errors import SourceError
from wds_tools.sources.arrays import Arrays, ArraySource
from wds_tools.sources.base import as_read_error
from wds_tools.sources.optional_dependencies import import_optional

_CLASSES = ("classes", "class_names", "label_names")


class Hdf5Source(ArraySource):
    """An HDF5 file. A chunk is read once per worker and window, not once per image.

    Sizes of encoded images are estimates: the mean of the file.
    """

    kind = "hdf5"

    def open(self) -> Arrays:
        """Open the file and its datasets: those in the root group, and those that ``columns`` names."""
        h5py = import_optional("h5py", "HDF5")
        with as_read_error(f"{self.path} cannot be read as HDF5", KeyError, ValueError, RuntimeError):
            file = h5py.File(self.path, "r", locking=False)
            names = dict.fromkeys([*file.keys(), *(name for name in self.columns.values() if name in file)])
            arrays = {name: item for name in names if (item := self._dataset(h5py, file, name)) is not None}
            classes = _class_names(file, arrays)
        mean = max(1, self.path.stat().st_size // max((array.shape[0] for array in arrays.values()), default=1))
        return Arrays(arrays, classes, mean)

    def _dataset(self, h5py: Any, file: Any, name: str) -> Any | None:
        if isinstance(file.get(name, getlink=True), h5py.ExternalLink):
            raise SourceError(f"{self.path}: {name!r} is a link to another file: copy the data into one")
        item = file[name]
        if not isinstance(item, h5py.Dataset) or item.ndim == 0:
            return None
        if item.is_virtual or item.external:
            raise SourceError(f"{self.path}: {name!r} has its data in other files: copy the data into one")
        return item


def _class_names(file: Any, arrays: dict[str, Any]) -> tuple[str, ...] | None:
    """Return class names from an attribute, or from a dataset of text, which is removed from ``arrays``."""
    for name in _CLASSES:
        values = file.attrs.get(name)
        if values is None and name in arrays and arrays[name].dtype.kind in "OS" and arrays[name].ndim == 1:
            values = arrays.pop(name)[:]
        if values is not None and getattr(values, "ndim", 0) == 1 and values.dtype.kind in "OSU":
            return tuple(value.decode() if isinstance(value, bytes) else str(value) for value in values)
    return None
