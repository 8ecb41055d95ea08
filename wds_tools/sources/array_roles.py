"""What a file of arrays has: which array is the image, and which have a row for each image; and what their values are.

Types decide, then names. What could be one thing or another is an error that shows the choices. What is not packed is
left out with a reason. An array here has ``shape``, ``ndim``, ``dtype`` and ``[]`` with a row or a slice of rows, like
arrays of NumPy, h5py and Zarr; and perhaps ``chunks``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from operator import getitem
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import SourceError
from wds_tools.format.account import Account
from wds_tools.format.image_header import sniff
from wds_tools.format.label import Label
from wds_tools.format.label import name as class_name
from wds_tools.sources.base import MAX_RECORD_BYTES
from wds_tools.sources.class_file import MAYBE_LISTS, is_class_list, may_name_classes, names_in
from wds_tools.sources.columns import IMAGE, LABEL, field_name, find_column, no_image_error, plain_name, usual_names
from wds_tools.sources.file_names import SPLIT_OF
from wds_tools.sources.label_choice import ambiguous
from wds_tools.sources.values import CHANNELS, Kind, check_pixels, layout_of
from wds_tools.wording import counted

# Kinds of values: "names" are an enumeration of HDF5, "bytes" and "lists" are of variable length in each row, "items"
# are arrays with a different shape in each row, and "binary" is of one length without a meaning.
_KINDS = {
    **dict.fromkeys("iu", "integers"),
    **dict.fromkeys("SUT", "text"),
    **dict.fromkeys("Mm", "time"),
    "b": "booleans",
    "f": "numbers",
    "c": "complex",
    "V": "binary",
}
STORED = ("integers", "booleans", "numbers", "complex")
"""Kinds of values that become separate fields."""

_LOOKED_AT = 8  # rows whose first bytes are read to find out whether bytes are images
_ENDS_ITSELF = ("jpg", "png", "gif")  # zeros at the end are never a part of such a file
_PROBED_ROWS = 1000  # that are looked at for 0 and 1
_OF_LABELS = ("integers", "names", "text")
_FLATTENED = 16  # values in a row of two dimensions, from which on it is probably an image without its shape
_MASKS = frozenset(["mask", "masks", "seg", "segmentation", "depth", "gt", "annotation", "annotations", "mean", "std"])
_MEASURES = frozenset(
    ["num", "n", "count", "counts", "weight", "weights", "score", "scores", "confidence", "prob", "probs", "logits"]
)
_VAGUE = frozenset(["x", "y", "data", "file", "path", "url", "filename", "filepath"])  # part of many other names
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")


class Unusable(NamedTuple):
    """A part of a file that is not an array with rows.

    Attributes:
        kind: Kind of the part, as in an account.
        name: Its name.
        reason: Why it is not packed.
        is_array: Whether it would be an array in a file of another kind, so that it could have a role.
    """

    kind: str
    name: str
    reason: str
    is_array: bool = False


@dataclass(slots=True)
class Contents:
    """What an open file has.

    Attributes:
        arrays: Name -> array.
        unusable: Other parts, which are left out.
        labels: The label of each row, if it is not in an array.
        class_names: (kind, name) of an attribute or entry -> class names.
        used: Further parts that are used: (kind, name, what they are used as).
    """

    arrays: dict[str, Any] = field(default_factory=dict)
    unusable: list[Unusable] = field(default_factory=list)
    labels: list[Any] | None = None
    class_names: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    used: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, name: str, array: Any, inside: str | None = None) -> None:
        """Add an array; of records, each field as an array, below the name ``inside``; or a single value."""
        if array.ndim == 0:
            self.add_entry("array", name, name, array[()])
        elif array.dtype.names and array.ndim == 1:
            prefix = f"{name}/" if inside is None else inside
            self.arrays |= {f"{prefix}{field}": values for field, values in fields_of(array)}
        else:
            self.arrays[name] = array

    def add_entry(self, kind: str, name: str, word: str, value: Any) -> None:
        """Add a value that has no entry for each image: class names, by its name in the file, or an unusable value."""
        is_list = is_class_list("".join(words_of(word)))
        if word in MAYBE_LISTS:
            is_list = isinstance(value, Mapping) or role_rank(name.rpartition("@")[0], LABEL) > 0
        reason = "is an attribute" if kind == "attribute" else "is a single value, not one for each image"
        if is_list and (names := names_in(value)):
            self.class_names[kind, name] = names
        else:
            may_be_labels = kind == "attribute" and np.size(value) > 1 and role_rank(name, LABEL) == 2
            remedy = ": save labels as an array" if may_be_labels else may_name_classes(value)
            self.unusable.append(Unusable(kind, name, reason + remedy, may_be_labels))

    def refuse(self, name: str, reason: object) -> None:
        """Add an array that is left out."""
        self.unusable.append(Unusable("array", name, str(reason), is_array=True))


def words_of(name: str) -> list[str]:
    """Return the words of the last part of a path, without names of splits; of an earlier part if none is left.

    >>> words_of("train/X"), words_of("images/test"), words_of("trainLabels"), words_of("images@y")
    (['x'], ['images'], ['labels'], ['y'])
    """
    parts = ([word.lower() for word in _WORD.findall(part)] for part in reversed(re.split("[/@]", name)))
    kept = ([word for word in words if word not in SPLIT_OF and word != "set"] for words in parts)  # as in train_set_x
    return next(filter(None, kept), [])


def splits_in(name: str) -> frozenset[str]:
    """Return the splits that a path names.

    >>> sorted(splits_in("training/images")), sorted(splits_in("y_dev"))
    (['train'], ['val'])
    """
    return frozenset(SPLIT_OF[word] for word in map(str.lower, _WORD.findall(name)) if word in SPLIT_OF)


def role_rank(name: str, role: str) -> int:
    """Return 2 for a usual name of a role, 1 for a name with a word of one, otherwise 0."""
    words, usual = words_of(name), usual_names(role)
    if "_".join(words) in usual:
        return 2
    excluded = _MASKS | (usual_names(LABEL) if role == IMAGE else _MEASURES | usual_names(IMAGE))
    return int(bool((usual & {*words}) - _VAGUE) and not {*words} & (excluded - _VAGUE))


class Rows:
    """An array whose rows are read by a function.

    Args:
        shape: Its shape.
        dtype: Its type.
        read: Returns a row or a slice of rows.
        chunks: The first is the number of rows that are read together; None if any row is cheap to read.
    """

    def __init__(
        self, shape: Sequence[int], dtype: Any, read: Callable[[Any], Any], chunks: Sequence[int] | None = None
    ) -> None:
        self.shape, self.ndim, self.dtype, self.chunks = tuple(shape), len(shape), dtype, chunks
        self._read = read

    def __getitem__(self, rows: Any) -> Any:
        return self._read(rows)


class Items(Rows):
    """Arrays of different shapes, one for each row. Each has ``shape``, ``dtype`` and ``[()]``."""

    def __init__(self, items: Sequence[Any]) -> None:
        super().__init__((len(items),), np.dtype(object), lambda row: np.asarray(items[row][()]))
        self._items = items

    def row_shape(self, row: int) -> tuple[int, ...]:
        """Return the shape of a row, without reading it."""
        return tuple(self._items[row].shape)

    def are_images(self) -> bool:
        """Return whether each row is uint8 with the shape of an image, or an encoded image."""
        return all(
            item.dtype == np.uint8 and (layout_of(tuple(item.shape)) or (item.ndim == 1 and sniff(item[:12].tobytes())))
            for item in self._items
        )


def of_items(items: Sequence[Any]) -> Rows:
    """Return arrays, one for each row, as one array: with a further axis if they have one shape and type."""
    first = items[0]
    is_encoded_image = first.ndim == 1 and first.dtype == np.uint8 and sniff(first[:12].tobytes()) is not None
    if is_encoded_image or len({(tuple(item.shape), item.dtype) for item in items}) != 1:
        return Items(items)

    def read(rows: Any) -> NDArray[Any]:
        return np.stack([np.asarray(item[()]) for item in items[rows]]) if isinstance(rows, slice) else items[rows][()]

    return Rows((len(items), *items[0].shape), items[0].dtype, read)


def row_as_column(array: Any) -> Rows:
    """Return an array [1, N] as an array [N]."""
    return Rows(array.shape[1:], array.dtype, lambda rows: np.asarray(array[0])[rows])


def fields_of(
    records: Any, dtype: np.dtype[Any] | None = None, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, Any]]:
    """Yield the names and arrays of the fields of an array of records, including fields of records in records."""
    dtype = records.dtype if dtype is None else dtype
    for part in dtype.names or ():
        if dtype[part].names:
            yield from fields_of(records, dtype[part], (*path, part))
        else:
            yield "/".join((*path, part)), _field(records, dtype[part], (*path, part))


def _field(records: Any, dtype: np.dtype[Any], path: tuple[str, ...]) -> Rows:
    def read(rows: Any) -> Any:
        only = hasattr(records, "fields")  # h5py reads a single field
        return reduce(getitem, path[1:], records.fields(path[0])[rows] if only else records[rows][path[0]])

    dtype, shape = dtype.subdtype or (dtype, ())
    return Rows((records.shape[0], *shape), dtype, read, getattr(records, "chunks", None))


def array_kind(array: Any) -> str:
    """Return what the values of an array are."""
    if isinstance(array, Items):
        return "items"
    metadata = array.dtype.metadata or {}
    if "enum" in metadata:
        return "names"
    if "vlen" in metadata:
        base = metadata["vlen"]
        return "text" if base in (str, bytes) else "bytes" if base == np.uint8 else "lists"
    return _KINDS.get(array.dtype.kind, "objects")


def base_kind(array: Any) -> str:
    """Return what the values in the rows of variable length of an HDF5 array are."""
    base = np.dtype(array.dtype.metadata["vlen"])
    return "text" if (base.metadata or {}).get("vlen") in (str, bytes) else _KINDS.get(base.kind, "objects")


def is_encoded(array: Any) -> bool:
    """Return whether each row is an encoded image: bytes of variable length, or of one length and filled with zeros."""
    if array.ndim != 1 or array_kind(array) not in ("bytes", "binary", "text") or array.dtype.kind in "UT":
        return False
    return any(sniff(to_bytes(array[row])) for row in range(min(_LOOKED_AT, array.shape[0])))


def to_bytes(value: Any) -> bytes:
    """Return the encoded image in a row, without the zeros with which HDF5 and NumPy fill bytes of one length."""
    if isinstance(value, np.ndarray) and value.ndim:
        return np.asarray(value, np.uint8).tobytes()
    data: bytes = value if isinstance(value, bytes) else value.tobytes()
    return data.rstrip(b"\0") if sniff(data) in _ENDS_ITSELF else data


def is_column(array: Any) -> bool:
    """Return whether an array has one value in each row: [N], [N, 1], [N, 1, 1] and so on."""
    return bool(array.ndim and math.prod(array.shape[1:]) == 1)


def has_scalars(array: Any) -> bool:
    """Return whether an array has one number, text or boolean in each row."""
    kinds = ("integers", "booleans", "numbers", "names", "text")
    return is_column(array) and array_kind(array) in kinds and not is_encoded(array)


def is_stored(array: Any) -> bool:
    """Return whether the values in a row can be stored as an array."""
    if (kind := array_kind(array)) in ("lists", "bytes"):
        return array.ndim == 1 and base_kind(array) in STORED
    return kind in ("items", "names", *STORED)


def texts_of(values: Any, what: str) -> list[str]:
    """Return text as a list."""
    texts = []
    for row, value in enumerate(values.tolist() if hasattr(values, "tolist") else values):
        try:
            texts.append(value.decode() if isinstance(value, bytes) else str(value))
        except UnicodeDecodeError:
            raise SourceError(
                f"{what} has text in row {row} that is not UTF-8, {value[:40]!r}: convert it, for example with "
                "numpy.char.decode(x, 'latin-1')"
            ) from None
    return texts


def labels_of(array: Any, what: str) -> list[Any]:
    """Return the values of an array as labels: numbers, texts, names of an enumeration, or a list in each row."""
    kind = array_kind(array)
    if kind in ("lists", "items"):
        return [np.asarray(array[row]).tolist() for row in range(array.shape[0])]
    if not is_column(array):
        return list(np.asarray(array[:]))  # rows of 0 and 1, which are not lists of class numbers
    values = np.asarray(array[:]).reshape(-1)
    if kind == "text":
        return list(texts_of(values, what))
    if kind == "time":
        return list(values.astype(f"{values.dtype.kind}8[us]").tolist())
    if kind == "names":
        names = names_of(array)
        try:
            return [names[value] for value in values.tolist()]
        except KeyError as error:
            raise SourceError(f"{what} has the value {error}, which has no name in its enumeration") from None
    return list(values.tolist())


def names_of(array: Any) -> dict[int, Label]:
    """Return number -> name for an enumeration, sorted by number."""
    members = sorted((int(value), text) for text, value in array.dtype.metadata["enum"].items())
    return {value: class_name(text) for value, text in members}


def cells_of(array: Any, what: str) -> Any:
    """Return the values of an array with text, numbers, times or names in each row."""
    kind = array_kind(array)
    if kind == "text":
        values = np.asarray(array[:])
        return np.array(texts_of(values.reshape(-1), what), object).reshape(values.shape)
    if kind == "lists":
        return [texts_of(array[row], what) for row in range(array.shape[0])]
    return [label.name for label in labels_of(array, what)] if kind == "names" else np.asarray(array[:])


# Roles


class ArrayRoles:
    """Which array of a file is the image, and which have a row for each image. `Names` finds the label among these.

    Args:
        contents: What the file has.
        columns: Role -> array that the user named.
        where: The file, for messages.

    Raises:
        SourceError: There is no array of images, or there are several.

    Attributes:
        image: Name of the array of images.
        images: This array.
        layout: "HW", "HWC" or "CHW"; "items" for one array per image, or "bytes" for encoded images.
        rows: Name of an array with a row for each image -> array.
        kinds: Its name -> what its values are in a record, or why they are not packed.
        class_lists: (kind, name) of an array, attribute or entry -> class names.
        notes: What the user should know.
    """

    def __init__(self, contents: Contents, columns: Mapping[str, str], where: str) -> None:
        self._contents, self._arrays, self._columns, self._where = contents, contents.arrays, columns, where
        self.image = self._find_image()
        self.images = self._arrays[self.image]
        self.layout = self._find_layout()
        for name, array in self._arrays.items():
            if array.shape == (1, self.images.shape[0]) and has_scalars(row_as_column(array)):
                self._arrays[name] = row_as_column(array)  # as scipy.io.loadmat returns a vector
        reasons = {key: self._why_not_per_image(key, array) for key, array in self._arrays.items() if key != self.image}
        self._left_out = {name: reason for name, reason in reasons.items() if reason}
        self.rows = {name: self._arrays[name] for name, reason in reasons.items() if not reason}
        self.class_lists = {}
        for part, names in contents.class_names.items():
            if self._in_another_split(part[1]):
                contents.unusable.append(Unusable(*part, "has class names of another split"))
            else:
                self.class_lists[part] = names
        self.notes: list[str] = []
        self._take_class_lists()
        self.kinds = {name: self._record_kind(array) for name, array in self.rows.items()}

    def account(self, account: Account) -> None:
        """State what becomes of everything in the file but the rows and the lists of class names."""
        for kind, name, reason, _ in self._contents.unusable:
            account.leave_out(kind, name, reason)
        for used in self._contents.used:
            account.use(*used)
        account.notes += self.notes
        account.declare("array", self._arrays)
        for name, why in self._left_out.items():
            account.leave_out("array", name, why)

    def entry_name(self, name: str) -> str:
        """Return the name of an array in records: its path below the group of the images, or its end for a field."""
        last, group = name.rsplit("/", maxsplit=1)[-1], self.image.rpartition("/")[0]
        return last if field_name(last) else plain_name(name.removeprefix(f"{group}/") if group else name)

    @property
    def names_of_types(self) -> dict[str, tuple[str, ...]]:
        """Name of an array with an enumeration -> its class names."""
        typed = {name: array for name, array in self.rows.items() if array_kind(array) == "names"}
        return {name: tuple(str(label.name) for label in names_of(array).values()) for name, array in typed.items()}

    # The image

    def _find_image(self) -> str:
        arrays, columns, where = self._arrays, self._columns, self._where
        if IMAGE in columns:
            self._refuse_unusable(lambda part: part.name == columns[IMAGE])
            return str(find_column(IMAGE, arrays, columns, where=where))
        fitting = [name for name, array in arrays.items() if _is_images(array)]
        possible = [name for name, array in arrays.items() if name in fitting or _may_be_images(array)]
        meant = {name: role_rank(name, IMAGE) for name in possible}
        best = max(meant.values(), default=0)
        names = [name for name, rank in meant.items() if rank == best] if best else fitting
        if len(names) > 1 and all(arrays[name].ndim == 3 and arrays[name].shape[2] in CHANNELS for name in names):
            raise SourceError(
                f"{where} has {len(names):,} arrays that are one image each, such as {names[0]!r} "
                f"({_type_of(arrays[names[0]])}): save the images as one array [N, H, W, C], and the labels as another "
                "[N]; or pass a list of dictionaries with image and label in Python"
            )
        if len(names) > 1:
            splits = "; pack one split at a time" if any(map(splits_in, names)) else ""
            raise ambiguous(IMAGE, where, {name: _type_of(arrays[name]) for name in names}, "array", splits)
        if best < 2:
            self._refuse_unusable(lambda part: part.is_array and role_rank(part.name, IMAGE) == 2)
        if not names:
            raise no_image_error(where, [f"{name} {_type_of(array)}" for name, array in arrays.items()], "array")
        return names[0]

    def _refuse_unusable(self, test: Callable[[Unusable], bool]) -> None:
        """Raise an error for a part that has the name of a role, but cannot be used."""
        for part in filter(test, self._contents.unusable):
            remedy = "; --column label= leaves it out" if role_rank(part.name, LABEL) == 2 else ""
            raise SourceError(f"{self._where}: {part.name!r} cannot be used: it {part.reason}{remedy}")

    def _find_layout(self) -> str:
        array, what = self.images, f"{self._where}: array {self.image!r}"
        if array_kind(array) == "items":
            if not array.are_images():
                raise SourceError(f"{what} has rows of different shapes that are not all uint8 images: convert them")
            for row in range(array.shape[0]):
                if len(array.row_shape(row)) > 1:
                    check_pixels(array.row_shape(row), np.dtype(np.uint8), f"{what}, row {row},")
            return "items"
        if (array_kind(array) == "bytes" and array.ndim == 1) or is_encoded(array):
            return "bytes"
        shape = tuple(array.shape)
        if array.ndim < 3 or array_kind(array) in ("text", "objects", "names", "lists"):
            raise SourceError(
                f"{what} is {array.dtype}{list(shape)}; allowed are uint8 pixels [N, H, W], [N, H, W, C] or [N, C, H, "
                "W], and encoded images [N]: name another array with --column image=NAME, or reshape it"
            )
        others = (values.shape for name, values in self._arrays.items() if name != self.image)
        is_alone = not any(other_shape[:1] == shape[:1] for other_shape in others)
        if array.ndim == 3 and (shape[2] in CHANNELS or (shape[0] in CHANNELS[1:] and is_alone)):
            raise SourceError(
                f"{what} has shape {list(shape)}, which can be one image with channels or several images without: give "
                "it four dimensions, [N, H, W, C]"
            )
        return check_pixels(shape[1:], array.dtype, what)

    # The other arrays

    def _why_not_per_image(self, name: str, array: Any) -> str:
        """Return why an array does not have the rows of the images; "" if it has."""
        if array.shape[0] != self.images.shape[0]:
            return f"has {counted(array.shape[0], 'row')}, and there are {counted(self.images.shape[0], 'image')}"
        if self._in_another_split(name):
            return f"belongs to another split than {self.image!r}"
        parts, others = name.split("/"), self._other_groups
        paths = ("/".join(parts[: end + 1]) for end in range(len(parts)))
        owner = next((others[path] for path in paths if path in others), None)
        return f"belongs to {owner!r}" if owner else ""

    def _in_another_split(self, name: str) -> bool:
        """Return whether a path names another split than the path of the images."""
        ours, theirs = splits_in(self.image), splits_in(name)
        return bool(ours and theirs) and ours.isdisjoint(theirs)

    @cached_property
    def _other_groups(self) -> dict[str, str]:
        """Other groups with an array of images that has the same name -> path of this array."""
        ours = self.image.split("/")
        groups: dict[str, str] = {}
        for name, array in self._arrays.items():
            theirs = name.split("/")
            # not images/train and masks/train
            same_name = theirs[-1] == ours[-1] and words_of(name) == words_of(self.image)
            if name != self.image and same_name and _is_images(array):
                differing = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
                if differing is not None:
                    groups["/".join(theirs[: differing + 1])] = name
        return groups

    def _take_class_lists(self) -> None:
        """Take arrays of texts as class names, by their names, even if there are as many as images."""
        are_labelled = any(
            array_kind(array) != "text" and has_scalars(array) and role_rank(name, LABEL)
            for name, array in self.rows.items()
        )
        for name, array in self._arrays.items():
            is_named = is_named_like_classes(name)
            if name in self.rows and not (is_named and are_labelled):
                continue
            is_possible = is_named or words_of(name)[-1:] == [*MAYBE_LISTS]  # which must have a name for each class
            if is_possible and array_kind(array) == "text" and is_column(array) and not self._in_another_split(name):
                names = texts_of(np.asarray(array[:]).reshape(-1), f"{self._where}: array {name!r}")
                if len(set(names)) == len(names):
                    self.class_lists["array", name] = tuple(text.strip() for text in names)
                    if self.rows.pop(name, None) is not None:
                        self.notes.append(f"array {name!r}, as long as there are images, is taken as the class names")
                    self._left_out.pop(name, None)
                elif name in self._left_out:
                    self._left_out[name] = "has a name several times, and so is not a list of class names"

    def _record_kind(self, array: Any) -> str:  # noqa: PLR0911 - a list of cases
        """Return what the values in the rows of an array are in a record, or why they are not packed."""
        kind, is_vector = array_kind(array), array.ndim == 1
        if is_encoded(array):
            return Kind.ENCODED
        if kind == "text" or (kind == "lists" and is_vector and base_kind(array) == "text"):
            return Kind.TEXT if kind == "text" and is_vector else Kind.LIST
        if kind == "time" or (is_vector and has_scalars(array)):
            return Kind.DECIMAL if kind == "time" else Kind.WHOLE
        if not is_stored(array) or math.prod(array.shape[1:]) > MAX_RECORD_BYTES // 8:
            return f"of type {array.dtype} and shape {list(array.shape[1:])}, which cannot be packed"
        if kind == "lists" or has_scalars(array) or _are_flags(array):
            return Kind.VECTOR
        if kind == "items" and all(len(array.row_shape(row)) == 1 for row in range(array.shape[0])):
            return Kind.VECTOR
        size = self.images.shape[2:4] if self.layout == "CHW" else self.images.shape[1:3]
        is_mask = self.layout not in ("bytes", "items") and array.ndim == 3 and array.dtype == np.uint8
        return Kind.PICTURE if is_mask and array.shape[1:3] == size else Kind.ARRAY

    # The label

    def check_label(self) -> None:
        """Check that the label that the user named is an array with a row for each image."""
        if label := self._columns.get(LABEL):
            self._refuse_unusable(lambda part: part.name == label)
            if label in self._left_out:
                raise SourceError(f"{self._where}: {label!r} cannot be the label: it {self._left_out[label]}")

    def check_no_other_label(self) -> None:
        """Check that no array has the usual name of labels, but cannot be used, or has another length."""
        self._refuse_unusable(lambda part: part.is_array and role_rank(part.name, LABEL) == 2)
        for name in self._left_out:
            array = self._arrays[name]
            is_label = role_rank(name, LABEL) == 2 and has_scalars(array) and array_kind(array) in _OF_LABELS
            if is_label and not self._in_another_split(name) and not is_named_like_classes(name):
                raise SourceError(
                    f"{self._where} has {array.shape[0]:,} labels in {name!r}, but {self.images.shape[0]:,} images in "
                    f"{self.image!r}; allowed is one label per image: correct the file, or pass --column label= if "
                    f"{name!r} has no labels"
                )


def is_named_like_classes(name: str) -> bool:
    """Return whether the path of an array ends like a list of class names."""
    return is_class_list("".join(words_of(name)))


def _type_of(array: Any) -> str:
    return f"{'arrays' if array_kind(array) == 'items' else array.dtype}{list(array.shape)}"


def _is_images(array: Any) -> bool:
    """Return whether an array has the type and shape of images."""
    if array_kind(array) == "items":
        return bool(array.are_images())
    return (array.ndim in (3, 4) and array.dtype == np.uint8 and array_kind(array) != "names") or is_encoded(array)


def _may_be_images(array: Any) -> bool:
    """Return whether an array with the usual name of images was meant as images: then no other array is taken."""
    is_number = array.dtype.kind in "iufb"
    is_deep = is_number and (array.ndim > 2 or (array.ndim == 2 and array.shape[1] >= _FLATTENED))
    return is_deep or array_kind(array) in ("bytes", "binary", "items")


def _are_flags(array: Any) -> bool:
    """Return whether the rows of an array have only 0 and 1, or -1 and 1, as for each class."""
    is_flat = array.ndim == 2 and array.dtype.kind in "iufb"
    return is_flat and all(np.isin(array[:rows], (-1, 0, 1)).all() for rows in (_PROBED_ROWS, array.shape[0]))
