"""Roles of arrays: which is the image, which the label, and what becomes of all others. Types decide, then names.

What could be one thing or another is an error that shows the choices. What is not packed is left out with a reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from wds_tools.errors import SourceError
from wds_tools.sources import array_kinds
from wds_tools.sources.array_contents import (
    CLASS_NAMES,
    Contents,
    Unusable,
    in_another_split,
    role_rank,
    split_of,
    words_of,
)
from wds_tools.sources.array_kinds import kind_of
from wds_tools.sources.base import MAX_RECORD_BYTES, SourceOptions
from wds_tools.sources.columns import IMAGE, LABEL, field_name, find_column, no_image_error, plain_name
from wds_tools.sources.label_choice import LabelChoice, LabelColumns, ambiguous, is_x
from wds_tools.sources.pixels import CHANNELS, check_pixels
from wds_tools.sources.record_values import ARRAY, ENCODED, LIST, PICTURE, TEXT, WHOLE
from wds_tools.wording import counted

_POSITION = re.compile(r"arr_[0-9]+")  # the names that numpy.savez gives
_STORED = ("integers", "booleans", "numbers", "complex")  # kinds of values that become fields of their own
_FLATTENED = 16  # values in a row of two dimensions, from which on it is probably an image without its shape


class Roles:
    """The roles of the arrays of a file.

    Args:
        contents: What the file has.
        options: What the user states.
        where: The file, for messages.

    Raises:
        SourceError: There is no array of images, there are several, or what the label is cannot be decided.

    Attributes:
        images: The array of images.
        layout: "HW", "HWC" or "CHW"; "items" for arrays of their own, or "bytes" for encoded images.
        labels: Label of each row; None without labels.
        classes: Class names by number; None without them.
        rest: Array -> name in records, of those that are neither image nor label nor class names.
        used: Array -> what it is packed as, of the others.
        left_out: Array -> the reason why it is not packed.
        names_in: Which of `Contents.class_names` are the classes.
        notes: What the user should know.
    """

    def __init__(self, contents: Contents, options: SourceOptions, where: str) -> None:
        self._contents, self._arrays, self._options, self._where = contents, contents.arrays, options, where
        self._image = self._find_image()
        self.images = self._arrays[self._image]
        self.layout = self._find_layout()
        self.used = {self._image: "image"}
        others = {name: self._not_beside(name, array) for name, array in self._arrays.items() if name != self._image}
        self.left_out = {name: reason for name, reason in others.items() if reason}
        self._beside = {name: self._arrays[name] for name, reason in others.items() if not reason}
        self.labels: list[Any] | None = contents.labels if LABEL not in options.columns else None
        self.classes: tuple[str, ...] | None = None
        self.names_in: list[tuple[str, str]] = []
        self.notes: list[str] = []
        if self.labels is None:
            self._set_label(self._find_label())
        self.rest: dict[str, str] = {}
        for name, array in self._beside.items():
            self._add_rest(name, array)

    def _set_label(self, choice: LabelChoice) -> None:
        self.notes += choice.notes
        if choice.label is None:
            return
        self.labels, self.classes = list(choice.values), choice.classes
        self.used[choice.label] = "label"
        self.used |= {choice.names: "class names"} if choice.names else {}
        self._beside = {name: array for name, array in self._beside.items() if name not in self.used}
        if choice.classes is None:
            self._find_classes(choice.label)

    def _add_rest(self, name: str, array: Any) -> None:
        """Add an array that is neither image nor label.

        Its name in records is that below the group of the images, unless its end names a field.
        """
        last, group = name.rsplit("/", maxsplit=1)[-1], self._image.rpartition("/")[0]
        short = last if field_name(last) else plain_name(name.removeprefix(f"{group}/") if group else name)
        if other := next((other for other, known in self.rest.items() if known == short), None):
            raise SourceError(
                f"{self._where} has two arrays that would be packed as {short!r}: rename one of {other!r} and {name!r}"
            )
        self.rest[name] = short
        is_given = self.labels is not None or LABEL in self._options.columns
        if not is_given and role_rank(name, LABEL) == 2 and not _holds_scalars(array):
            self.notes.append(f"array {name!r} is not the label, because it has not one number or name per image")

    # The image

    def _find_image(self) -> str:
        arrays, columns, where = self._arrays, self._options.columns, self._where
        if IMAGE in columns:
            self._refuse_unusable(lambda part: part.name == columns[IMAGE])
            return str(find_column(IMAGE, arrays, columns, where=where))
        fitting = [name for name, array in arrays.items() if _is_images(array)]
        possible = [name for name, array in arrays.items() if name in fitting or _may_be_images(array)]
        meant = {name: role_rank(name, IMAGE) for name in possible}
        best = max(meant.values(), default=0)
        found = [name for name, rank in meant.items() if rank == best] if best else fitting
        if len(found) > 1:
            splits = "; pack each split by itself" if any(map(split_of, found)) else ""
            raise ambiguous(IMAGE, where, {name: _type_of(arrays[name]) for name in found}, "array", splits)
        if best < 2:
            self._refuse_unusable(lambda part: part.is_array and role_rank(part.name, IMAGE) == 2)
        if not found:
            raise no_image_error(where, [f"{name} {_type_of(array)}" for name, array in arrays.items()], "array")
        return found[0]

    def _refuse_unusable(self, test: Callable[[Unusable], bool]) -> None:
        """Raise an error for a part that has the name of a role, but cannot be used."""
        for part in self._contents.unusable:
            if test(part):
                remedy = "; --column label= leaves it out" if role_rank(part.name, LABEL) == 2 else ""
                raise SourceError(f"{self._where}: {part.name!r} cannot be used: it {part.reason}{remedy}")

    def _find_layout(self) -> str:
        """Return the layout of a row.

        Raises:
            SourceError: It is not known, or the type is not that of images.
        """
        array, what = self.images, f"{self._where}: array {self._image!r}"
        if kind_of(array) == "items":
            if not array.are_images():
                raise SourceError(f"{what} has rows of different shapes that are not all uint8 images: convert them")
            for row in range(array.shape[0]):
                if len(array.row_shape(row)) > 1:
                    check_pixels(array.row_shape(row), np.dtype(np.uint8), f"{what}, row {row},")
            return "items"
        if (kind_of(array) == "bytes" and array.ndim == 1) or array_kinds.is_encoded(array):
            return "bytes"
        shape = tuple(array.shape)
        if array.ndim < 3 or kind_of(array) in ("text", "objects", "names", "lists"):
            raise SourceError(
                f"{what} is {array.dtype}{list(shape)}; allowed are uint8 pixels [N, H, W], [N, H, W, C] or [N, C, H, "
                "W], and encoded images [N]: name another array with --column image=NAME, or reshape it"
            )
        others = (other for name, other in self._arrays.items() if name != self._image and other.ndim)
        is_alone = not any(other.shape[0] == shape[0] for other in others)
        if array.ndim == 3 and (shape[2] in CHANNELS or (shape[0] in CHANNELS[1:] and is_alone)):
            raise SourceError(
                f"{what} has shape {list(shape)}, which can be one image with channels or several images without: give "
                "it four dimensions, [N, H, W, C]"
            )
        return check_pixels(shape[1:], array.dtype, what)

    def _not_beside(self, name: str, array: Any) -> str:
        """Return why an array does not have the rows of the images; "" if it has."""
        if array.shape[0] != self.images.shape[0]:
            return f"has {counted(array.shape[0], 'row')}, and there are {counted(self.images.shape[0], 'image')}"
        if in_another_split(name, self._image):
            return f"belongs to another split than {self._image!r}"
        parts, others = name.split("/"), self._other_groups
        paths = ("/".join(parts[: end + 1]) for end in range(len(parts)))
        owner = next((others[path] for path in paths if path in others), None)
        return f"belongs to {owner!r}" if owner else ""

    @cached_property
    def _other_groups(self) -> dict[str, str]:
        """The groups that have images of their own with the same name, and the path of these images."""
        ours = self._image.split("/")
        found: dict[str, str] = {}
        for other, array in self._arrays.items():
            theirs = other.split("/")
            # not images/train and masks/train
            same_name = theirs[-1] == ours[-1] and words_of(other) == words_of(self._image)
            if other != self._image and same_name and _is_images(array):
                differing = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
                if differing is not None:
                    found["/".join(theirs[: differing + 1])] = other
        return found

    # The label

    def _find_label(self) -> LabelChoice:
        """Return the array of labels: the one that the user named, or the one that `LabelColumns` chooses.

        Arrays with a usual name come before those with a usual word in their name.
        """
        rest, where = self._beside, self._where
        chosen = self._options.columns.get(LABEL)
        if chosen == "":
            return LabelChoice()
        if chosen is not None:
            name = self._named_label(chosen)
            classes = _names_of_type(rest[name]) if kind_of(rest[name]) == "names" else None
            return LabelChoice(name, None, _values(rest, name, where), classes)
        pool = _without_class_names({name: array for name, array in rest.items() if _holds_scalars(array)})
        typed = {name: _names_of_type(array) for name, array in pool.items() if kind_of(array) == "names"}
        notes: list[str] = []
        for rank in (2, 1):
            names = [name for name in rest if role_rank(name, LABEL) == rank or is_x(name)]
            names = [name for name in names if name in pool or (rank == 2 and _holds_several(rest[name]))]
            values = {name: _values(rest, name, where) for name in dict.fromkeys([*names, *typed])}
            choice = LabelColumns(where, values, self._options, typed, part="array").choose()
            if rank == 2 and not {choice.label, choice.names} & {*names}:
                self._refuse_named_like_labels()
            if choice.label is not None:
                return choice
            notes += choice.notes
        return self._unnamed_label(pool)._replace(notes=tuple(notes))

    def _unnamed_label(self, pool: Mapping[str, Any]) -> LabelChoice:
        """Return the second array of ``numpy.savez(images, labels)``.

        Raises:
            SourceError: There are other integers that could be labels.
        """
        integers = [name for name, array in pool.items() if kind_of(array) == "integers"]
        names = [name for name in integers if _POSITION.fullmatch(name) or _repeats(pool[name])]
        values = {name: _values(pool, name, self._where) for name in names}
        columns = LabelColumns(self._where, values, self._options, part="array")
        if len(names) > 1 or not all(map(_POSITION.fullmatch, names)):
            raise columns.ambiguous(names)
        return columns.choose()

    def _named_label(self, name: str) -> str:
        """Return the array that the user named, if it has a value for each image."""
        rest, where = self._beside, self._where
        self._refuse_unusable(lambda part: part.name == name)
        if name in self.left_out:
            raise SourceError(f"{where}: {name!r} cannot be the label: it {self.left_out[name]}")
        find_column(LABEL, rest, self._options.columns, where=where)
        if not _holds_scalars(rest[name]) and not _holds_several(rest[name]):
            raise _label_error(name, rest[name], where)
        return name

    def _refuse_named_like_labels(self) -> None:
        """Raise an error if an array has the usual name of labels, but they are not those of the images."""
        self._refuse_unusable(lambda part: part.is_array and role_rank(part.name, LABEL) == 2)
        named = [name for name in self._arrays if name != self._image and role_rank(name, LABEL) == 2]
        for name in named:
            array = self._arrays[name]
            if kind_of(array) not in ("integers", "names", "text", "lists") or in_another_split(name, self._image):
                continue
            if name not in self._beside and _holds_scalars(array) and "_".join(words_of(name)) not in CLASS_NAMES:
                raise SourceError(
                    f"{self._where} has {array.shape[0]:,} labels in {name!r}, but {self.images.shape[0]:,} images in "
                    f"{self._image!r}; allowed is one label per image: correct the file, or pass --column label= if "
                    f"{name!r} has no labels"
                )
            if name in self._beside and (array.ndim == 2 or kind_of(array) == "lists"):
                raise _label_error(name, array, self._where)

    # Class names

    def _find_classes(self, label: str) -> None:
        """Take the class names from attributes and other arrays."""
        own = {*words_of(label), *(word.removesuffix("s") for word in words_of(label))}
        for name, array in self._arrays.items():
            words = words_of(name)
            is_named = _is_class_names(name, array) or (
                words[-1:] == ["names"] and {word.removesuffix("s") for word in words[:-1]} <= own and len(words) > 1
            )
            if name in self.used or not is_named or kind_of(array) != "text" or split_of(name) - split_of(label):
                continue
            if name in self._beside and not _is_class_names(name, array):
                continue
            self._beside.pop(name, None)
            names = tuple(array_kinds.texts_of(array_kinds.flat(array), f"{self._where}: array {name!r}"))
            self._check_not_of_rows(name, names)
            self._take_classes(name, names)
            self.left_out.pop(name, None)
            self.used[name] = "class names"
        for part, names in self._contents.class_names.items():
            if not split_of(part[1]) - split_of(label):
                self._take_classes(part[1], names)
                self.names_in.append(part)
        if self._contents.counts_from_one and self.classes:
            self._check_numbers(label)

    def _check_not_of_rows(self, name: str, names: tuple[str, ...]) -> None:
        """Check that a list of names is that of the classes by number, not that of the class of each image."""
        numbers = self.labels or []
        are_all_different = len(names) == len(numbers) == len(set(map(str, numbers)))
        is_either = "_".join(words_of(name)) == "categories" and are_all_different
        by_number = dict(enumerate(names))
        if is_either and any(by_number.get(number) != text for number, text in zip(numbers, names, strict=True)):
            raise SourceError(
                f"{self._where} has as many texts in {name!r} as images and as classes: they can be the names of the "
                "classes by number, or the class of each image. Remove them and pass --classes, or name them with "
                "--column label="
            )

    def _take_classes(self, name: str, names: tuple[str, ...]) -> None:
        names = tuple(text.strip() for text in names)
        if self.classes is not None and self.classes != names:
            raise SourceError(
                f"{self._where} has two lists of class names, {', '.join(map(repr, self.classes[:3]))} and "
                f"{', '.join(map(repr, names[:3]))} ({name!r}): remove one of them"
            )
        self.classes = names

    def _check_numbers(self, label: str) -> None:
        """Check that numbers of a program that counts from 1 are not taken as positions from 0."""
        numbers = [value for value in self.labels or () if isinstance(value, (int, float)) and not math.isnan(value)]
        if numbers and min(numbers) > 0:
            raise SourceError(
                f"{self._where} has labels from {min(numbers):g} to {max(numbers):g} in {label!r}, and class names: "
                "MATLAB counts them from 1, and here class numbers begin with 0: subtract 1 from the labels, or save "
                "the names as labels"
            )

    # Other values

    def record_kind(self, name: str) -> str:
        """Return what the values in the rows of an array are in a record, or why they are not packed."""
        array = self._arrays[name]
        kind, is_column = kind_of(array), array.ndim == 1
        if array_kinds.is_encoded(array):
            return ENCODED
        if kind == "text" or (kind == "lists" and is_column and array_kinds.base_kind(array) == "text"):
            return TEXT if kind == "text" and is_column else LIST
        if kind == "time" or (is_column and kind in ("integers", "booleans", "numbers", "names")):
            return WHOLE
        if not _is_stored(array):
            return f"has values of type {array.dtype}, which cannot be packed"
        if math.prod(array.shape[1:]) > MAX_RECORD_BYTES // 8:
            return f"has rows of shape {list(array.shape[1:])}, which are too large"
        return PICTURE if self._is_mask(array) else ARRAY

    def _is_mask(self, array: Any) -> bool:
        """Return whether an array is uint8 [H, W] of the size of the images."""
        if self.layout in ("bytes", "items"):
            return False
        size = self.images.shape[2:4] if self.layout == "CHW" else self.images.shape[1:3]
        return bool(array.ndim == 3 and array.dtype == np.uint8 and array.shape[1:3] == size)


def _type_of(array: Any) -> str:
    return f"{'arrays' if kind_of(array) == 'items' else array.dtype}{list(array.shape)}"


def _is_images(array: Any) -> bool:
    """Return whether the type and shape of an array are those of images."""
    if kind_of(array) == "items":
        return bool(array.are_images())
    return (array.ndim in (3, 4) and array.dtype == np.uint8 and kind_of(array) != "names") or array_kinds.is_encoded(
        array
    )


def _may_be_images(array: Any) -> bool:
    """Return whether an array with the usual name of images was meant as them: then no other one is taken."""
    if kind_of(array) in ("bytes", "binary", "items"):
        return True
    is_number = array.dtype.kind in "iufb"
    return is_number and (array.ndim > 2 or (array.ndim == 2 and array.shape[1] >= _FLATTENED))


def _names_of_type(array: Any) -> tuple[str, ...]:
    return tuple(str(member.name) for member in array_kinds.names_of(array).values())


def _values(arrays: Mapping[str, Any], name: str, where: str) -> list[Any]:
    return array_kinds.values_of(arrays[name], f"{where}: array {name!r}")


def _label_error(name: str, array: Any, where: str) -> SourceError:
    kind = "" if kind_of(array) in (*_STORED, "text") else f", which are {kind_of(array)}"
    return SourceError(
        f"{where} has labels of shape {list(array.shape)} in {name!r}{kind}; allowed are one number or name per image, "
        "and rows of 0 and 1 with a value for each class: name others with --column label=NAME, or pass --column "
        "label= if there are no labels"
    )


def _holds_scalars(array: Any) -> bool:
    """Return whether an array has one number, text or boolean in each row."""
    kinds = ("integers", "booleans", "numbers", "names", "text")
    return array_kinds.is_column(array) and kind_of(array) in kinds and not array_kinds.is_encoded(array)


def _holds_several(array: Any) -> bool:
    """Return whether an array has several labels in each row: a list of them, or 0 and 1 for each class."""
    kind = kind_of(array)
    if kind in ("lists", "items"):
        return True
    return array.ndim == 2 and kind in ("integers", "booleans", "numbers") and bool(np.isin(array[:], (0, 1)).all())


def _without_class_names(pool: dict[str, Any]) -> dict[str, Any]:
    """Leave out lists of class names that happen to be as long as there are images."""
    numbers = [name for name, array in pool.items() if kind_of(array) != "text" and role_rank(name, LABEL)]
    return {name: array for name, array in pool.items() if not (numbers and _is_class_names(name, array))}


def _repeats(array: Any) -> bool:
    """Return whether values occur several times, as class numbers do and identifiers do not."""
    values = array_kinds.flat(array)
    return 1 < len(np.unique(values)) < len(values)


def _is_class_names(name: str, array: Any) -> bool:
    if "_".join(words_of(name)) not in CLASS_NAMES or kind_of(array) != "text" or not array_kinds.is_column(array):
        return False
    values = array_kinds.flat(array).tolist()
    return len(set(values)) == len(values)


def column_of(array: Any, what: str) -> Any:
    """Return the values of an array with text, numbers, times or names in each row."""
    kind = kind_of(array)
    if kind == "text":
        values = np.asarray(array[:])
        return np.array(array_kinds.texts_of(values.reshape(-1), what), object).reshape(values.shape)
    if kind == "lists":
        return [array_kinds.texts_of(array[row], what) for row in range(array.shape[0])]
    if kind == "names":
        return [label.name for label in array_kinds.values_of(array, what)]
    return np.asarray(array[:])


def _is_stored(array: Any) -> bool:
    """Return whether the values in a row can be stored as an array."""
    if (kind := kind_of(array)) in ("lists", "bytes"):
        return array.ndim == 1 and array_kinds.base_kind(array) in _STORED
    return kind in ("items", "names", *_STORED)
