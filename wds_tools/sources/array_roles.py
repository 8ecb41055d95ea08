"""What a file of arrays has, and roles: which array is the image, which the label, and what becomes of all others.

Types decide, then names. What could be one thing or another is an error that shows the choices. What is not packed is
left out with a reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from wds_tools.errors import SourceError
from wds_tools.format.account import Account
from wds_tools.format.class_notes import notes_on_first
from wds_tools.sources import array_kinds
from wds_tools.sources.array_kinds import STORED, array_kind, has_scalars, is_encoded
from wds_tools.sources.base import MAX_RECORD_BYTES, SourceOptions
from wds_tools.sources.class_file import MAYBE_LISTS, are_labels, is_class_list, may_name_classes, names_in
from wds_tools.sources.columns import (
    IMAGE,
    LABEL,
    check_not_image,
    field_name,
    find_column,
    no_image_error,
    plain_name,
    usual_names,
)
from wds_tools.sources.label_choice import (
    Flags,
    LabelChoice,
    LabelColumns,
    ambiguous,
    hint,
    is_x,
    one_hot,
    with_matching_names,
)
from wds_tools.sources.list_lengths import Lengths, owner, why_no_label
from wds_tools.sources.name_patterns import SPLIT_OF
from wds_tools.sources.values import CHANNELS, Kind, check_pixels
from wds_tools.wording import counted

_POSITION = re.compile(r"arr_[0-9]+")  # the names that numpy.savez gives
_PROBED_ROWS = 1000  # that are looked at for 0 and 1
_FLATTENED = 16  # values in a row of two dimensions, from which on it is probably an image without its shape


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_MASKS = _set("mask masks seg segmentation depth gt annotation annotations mean std")
_MEASURES = _set("num n count counts weight weights score scores confidence prob probs logits")
_VAGUE = _set("x y data file path url filename filepath")  # part of many other names
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
        counts_from_one: Whether the program that wrote the file counts from 1.
    """

    arrays: dict[str, Any] = field(default_factory=dict)
    unusable: list[Unusable] = field(default_factory=list)
    labels: list[Any] | None = None
    class_names: dict[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    used: list[tuple[str, str, str]] = field(default_factory=list)
    counts_from_one: bool = False

    def add(self, name: str, array: Any, inside: str | None = None) -> None:
        """Add an array; of records, each field as an array, below the name ``inside``; or a single value."""
        if array.ndim == 0:
            self.add_entry("array", name, name, array[()])
        elif array.dtype.names and array.ndim == 1:
            prefix = f"{name}/" if inside is None else inside
            self.arrays |= {f"{prefix}{field}": values for field, values in array_kinds.fields_of(array)}
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


class ArrayRoles:
    """The roles of the arrays of a file.

    Args:
        contents: What the file has.
        options: What the user states.
        where: The file, for messages.

    Raises:
        SourceError: There is no array of images, there are several, or what the label is cannot be decided.

    Attributes:
        image: Name of the array of images.
        images: This array.
        layout: "HW", "HWC" or "CHW"; "items" for one array per image, or "bytes" for encoded images.
        labels: Label of each row; None without labels.
        classes: Class names by number; None without them.
        further: Name in records -> array that is neither image nor label nor class names.
        notes: What the user should know.
    """

    def __init__(self, contents: Contents, options: SourceOptions, where: str) -> None:
        self._contents, self._arrays, self._options, self._where = contents, contents.arrays, options, where
        self.image = self._find_image()
        self.images = self._arrays[self.image]
        self.layout = self._find_layout()
        for name, array in self._arrays.items():
            if array.shape == (1, self.images.shape[0]) and has_scalars(array_kinds.row_as_column(array)):
                self._arrays[name] = array_kinds.row_as_column(array)  # as scipy.io.loadmat returns a vector
        self._used = {self.image: "image"}  # array -> what it is packed as
        reasons = {key: self._why_not_per_image(key, array) for key, array in self._arrays.items() if key != self.image}
        self._left_out = {name: reason for name, reason in reasons.items() if reason}
        self._per_image = {name: self._arrays[name] for name, reason in reasons.items() if not reason}
        self.labels: list[Any] | None = contents.labels if LABEL not in options.columns else None
        self.classes: tuple[str, ...] | None = None
        self._names_in: list[tuple[str, str]] = []  # which of `Contents.class_names` are the classes
        self._owners: dict[str, str] = {}  # array named like labels -> array whose entries they belong to
        self.notes: list[str] = []
        if self.labels is None:
            self._set_label(self._find_label())
        self.notes += self._hints() if self.labels is None and LABEL not in options.columns else []
        self.notes += notes_on_first(self.classes or (), self._numbers)
        self.further: dict[str, str] = {}
        for name, array in self._per_image.items():
            self._add_further(name, array)

    def account(self, account: Account) -> None:
        """State what becomes of everything in the file, except `further`."""
        contents = self._contents
        account.notes += self.notes
        account.declare("array", self._arrays)
        for kind, name, reason, _ in contents.unusable:
            account.leave_out(kind, name, reason)
        for used in contents.used:
            account.use(*used)
        for part in contents.class_names:
            if part in self._names_in:
                account.use(*part, "class names")
            else:
                account.leave_out(*part, "has class names that do not belong to the labels")
        for name, role in self._used.items():
            account.use("array", name, role)
        for name, why in self._left_out.items():
            account.leave_out("array", name, why)

    def _set_label(self, choice: LabelChoice) -> None:
        self.notes += choice.notes
        if choice.hot:
            self.labels, self.classes = list(choice.values), choice.classes
            self._used |= dict.fromkeys(choice.hot, "label")
            self._per_image = {name: array for name, array in self._per_image.items() if name not in choice.hot}
        if choice.label is None:
            return
        self.labels, self.classes = list(choice.values), choice.classes
        self._used |= {choice.label: "label"} | ({choice.names: "class names"} if choice.names else {})
        self._per_image = {name: array for name, array in self._per_image.items() if name not in self._used}
        if choice.classes is None:
            self._find_classes(choice.label)
        texts = {
            name: array_kinds.texts_of(np.asarray(array[:]), f"{self._where}: array {name!r}")
            for name, array in self._per_image.items()
            if array_kind(array) == "text" and array.ndim == 1 and not self.classes
        }
        named = with_matching_names(choice._replace(classes=self.classes, notes=()), texts, self._options, "array")
        self.notes += named.notes
        if named.names is not None and named.names in self._per_image:
            del self._per_image[named.names]
            self.classes, self._used[named.names] = named.classes, "class names"

    def _add_further(self, name: str, array: Any) -> None:
        """Add an array that is neither image nor label.

        Its name in records is its path below the group of the images, unless the end of the path names a field.
        """
        last, group = name.rsplit("/", maxsplit=1)[-1], self.image.rpartition("/")[0]
        short = last if field_name(last) else plain_name(name.removeprefix(f"{group}/") if group else name)
        if short in self.further:
            raise SourceError(
                f"{self._where} has two arrays that would be packed as {short!r}: rename one of "
                f"{self.further[short]!r} and {name!r}"
            )
        self.further[short] = name
        is_given = self.labels is not None or LABEL in self._options.columns or name in self._owners
        if not is_given and role_rank(name, LABEL) == 2 and not has_scalars(array):
            self.notes.append(f"array {name!r} is not the label, because it does not have one number or name per image")

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

    # The label

    def _find_label(self) -> LabelChoice:
        """Return the array of labels: the one that the user named, or the one that `LabelColumns` chooses.

        Arrays with a usual name come before arrays with a usual word in their name.
        """
        arrays, chosen = self._per_image, self._options.columns.get(LABEL)
        if chosen is not None:
            return self._named_label(chosen) if chosen else LabelChoice()
        pool = {name: array for name, array in arrays.items() if has_scalars(array)}
        if any(array_kind(array) != "text" and role_rank(name, LABEL) for name, array in pool.items()):
            # without lists of class names that happen to be as long as there are images
            pool = {name: array for name, array in pool.items() if not _is_class_names(name, array)}
        typed = {name: _names_of_type(array) for name, array in pool.items() if array_kind(array) == "names"}
        self._owners = self._find_owners()
        notes = [why_no_label(name, owner_name, "array") for name, owner_name in self._owners.items()]
        for rank in (2, 1):
            names = [name for name in arrays if role_rank(name, LABEL) == rank or is_x(name)]
            names = [name for name in names if name in pool or (rank == 2 and _has_several(arrays[name]))]
            names = [name for name in names if name not in self._owners]
            choice = self._columns([*names, *typed], typed).choose()
            if rank == 2 and not {choice.label, choice.names} & {*names}:
                self._refuse_named_like_labels()
            if choice.label is not None:
                return choice
            notes += choice.notes
        flags = Flags()
        for name in pool:
            flags.extend(name, self._labels_in(name))
        if hot := one_hot([(flags, self.images.shape[0])]):
            values = flags.rows(hot, self.images.shape[0]).astype(int).tolist()
            classes = tuple(name.rpartition("/")[2] for name in hot)
            return LabelChoice(None, None, values, classes, tuple(notes), hot)
        # the second array of numpy.savez(images, labels)
        integers = [name for name, array in pool.items() if array_kind(array) == "integers"]
        names = [name for name in integers if _POSITION.fullmatch(name) or _repeats(pool[name])]
        if len(names) > 1 or not all(map(_POSITION.fullmatch, names)):
            raise self._columns(names).ambiguous(names)
        return self._columns(names).choose()._replace(notes=tuple(notes))

    def _hints(self) -> list[str]:
        """Return a note on arrays that could be the label by their values, if none has a usual name."""
        scalars = {name: array for name, array in self._per_image.items() if has_scalars(array)}
        notes = hint({name: self._labels_in(name) for name in scalars}, "array")
        for name, array in self._per_image.items():
            if array.ndim == 2 and array.shape[1] > 1 and array_kind(array) in ("integers", "booleans", "numbers"):
                values = {*np.unique(array[:_PROBED_ROWS]).tolist()}
                if values in ({0, 1}, {-1, 1}):
                    remedy = f"pass --label {name}" if 0 in values else "write 0 instead of -1, and pass --label"
                    has = f"has only {min(values):g} and 1 in its {array.shape[1]:,} columns"
                    notes.append(f"no label: the array {name!r} {has}: {remedy} if they are classes")
        return notes

    def _find_owners(self) -> dict[str, str]:
        """Return name of an array named like labels -> array with an entry for each of its values, in each row."""
        lists = {name: array for name, array in self._per_image.items() if array_kind(array) in ("lists", "items")}
        owners = {}
        for name in [name for name in lists if role_rank(name, LABEL) == 2]:
            lengths = {key: n for key, array in self._per_image.items() if key != name and (n := _lengths(array))}
            if owner_name := owner(self._labels_in(name), lengths):
                owners[name] = owner_name
        return owners

    def _columns(self, names: list[str], typed: Mapping[str, tuple[str, ...]] | None = None) -> LabelColumns:
        values = {name: self._labels_in(name) for name in dict.fromkeys(names)}
        return LabelColumns(self._where, values, self._options, typed or {}, part="array")

    def _labels_in(self, name: str) -> list[Any]:
        return array_kinds.labels_of(self._arrays[name], f"{self._where}: array {name!r}")

    def _named_label(self, name: str) -> LabelChoice:
        """Return the array that the user named, if it has a value for each image."""
        arrays, where = self._per_image, self._where
        self._refuse_unusable(lambda part: part.name == name)
        if name in self._left_out:
            raise SourceError(f"{where}: {name!r} cannot be the label: it {self._left_out[name]}")
        check_not_image(name, self.image, where=where)
        find_column(LABEL, arrays, self._options.columns, where=where)
        if not has_scalars(arrays[name]) and not _has_several(arrays[name]):
            raise _label_error(name, arrays[name], where)
        classes = _names_of_type(arrays[name]) if array_kind(arrays[name]) == "names" else None
        return LabelChoice(name, None, self._labels_in(name), classes)

    def _refuse_named_like_labels(self) -> None:
        """Raise an error if an array has the usual name of labels, but does not have the labels of the images."""
        self._refuse_unusable(lambda part: part.is_array and role_rank(part.name, LABEL) == 2)
        for name, array in self._arrays.items():
            is_other = name == self.image or role_rank(name, LABEL) < 2 or self._in_another_split(name)
            if is_other or array_kind(array) not in ("integers", "names", "text", "lists"):
                continue
            if name not in self._per_image and has_scalars(array) and not is_class_list("".join(words_of(name))):
                raise SourceError(
                    f"{self._where} has {array.shape[0]:,} labels in {name!r}, but {self.images.shape[0]:,} images in "
                    f"{self.image!r}; allowed is one label per image: correct the file, or pass --column label= if "
                    f"{name!r} has no labels"
                )
            is_list = name in self._per_image and (array.ndim == 2 or array_kind(array) == "lists")
            if is_list and name not in self._owners:
                raise _label_error(name, array, self._where)

    # Class names

    def _find_classes(self, label: str) -> None:
        """Take the class names from attributes and other arrays."""
        label_words = {*words_of(label), *(word.removesuffix("s") for word in words_of(label))}
        for name, array in self._arrays.items():
            if name in self._used or array_kind(array) != "text" or splits_in(name) - splits_in(label):
                continue
            *words, last = words_of(name) or [""]
            is_named = last == "names" and {word.removesuffix("s") for word in words} <= label_words
            is_named = is_named and (bool(words) or array.shape[0] == 1 + max(self._numbers, default=0))
            if not _is_class_names(name, array) and (not is_named or name in self._per_image):
                if name in self._left_out and is_class_list("".join(words_of(name))):
                    self._left_out[name] = "has a name several times, and so is not a list of class names"
                continue
            self._per_image.pop(name, None)
            values = np.asarray(array[:]).reshape(-1)
            names = tuple(array_kinds.texts_of(values, f"{self._where}: array {name!r}"))
            self._check_not_of_rows(name, names)
            self._take_classes(name, names)
            self._left_out.pop(name, None)
            self._used[name] = "class names"
        for part, names in self._contents.class_names.items():
            if not splits_in(part[1]) - splits_in(label):
                self._take_classes(part[1], names)
                self._names_in.append(part)
        numbers = self._numbers
        lists = [name for name, role in self._used.items() if role == "class names"]
        sources = [*lists, *(name for _, name in self._names_in)]
        if are_labels(self.classes or (), numbers, self._where, sources, given=self._options.classes):
            self.classes, self._names_in = None, []
            for name in lists:
                del self._used[name]
                self._left_out[name] = "has the numbers of the classes, which the labels are"
        # numbers of a program that counts from 1 must not be taken as positions from 0
        if self._contents.counts_from_one and self.classes and numbers and min(numbers) > 0:
            raise SourceError(
                f"{self._where} has labels from {min(numbers):g} to {max(numbers):g} in {label!r}, and class names: "
                "MATLAB counts them from 1, and here class numbers begin with 0: subtract 1 from the labels, or save "
                "the names as labels"
            )

    @property
    def _numbers(self) -> list[float]:
        """The labels that are numbers."""
        return [value for value in self.labels or () if isinstance(value, (int, float)) and value >= 0]

    def _check_not_of_rows(self, name: str, names: tuple[str, ...]) -> None:
        """Check that a list of names has the names of the classes by number, and not the class of each image."""
        numbers = self.labels or []
        are_all_different = len(names) == len(numbers) == len(set(map(str, numbers)))
        is_either = "_".join(words_of(name)) == "categories" and are_all_different
        by_number = dict(enumerate(names))
        if is_either and any(by_number.get(label) != text for label, text in zip(numbers, names, strict=True)):
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

    # Other values

    def record_kind(self, array: Any) -> str:
        """Return what the values in the rows of an array are in a record, or why they are not packed."""
        kind, is_vector = array_kind(array), array.ndim == 1
        if is_encoded(array):
            return Kind.ENCODED
        if kind == "text" or (kind == "lists" and is_vector and array_kinds.base_kind(array) == "text"):
            return Kind.TEXT if kind == "text" and is_vector else Kind.LIST
        if kind == "time" or (is_vector and kind in ("integers", "booleans", "numbers", "names")):
            return Kind.WHOLE
        if not array_kinds.is_stored(array):
            return f"has values of type {array.dtype}, which cannot be packed"
        if math.prod(array.shape[1:]) > MAX_RECORD_BYTES // 8:
            return f"has rows of shape {list(array.shape[1:])}, which are too large"
        size = self.images.shape[2:4] if self.layout == "CHW" else self.images.shape[1:3]
        is_mask = self.layout not in ("bytes", "items") and array.ndim == 3 and array.dtype == np.uint8
        return Kind.PICTURE if is_mask and array.shape[1:3] == size else Kind.ARRAY


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


def _names_of_type(array: Any) -> tuple[str, ...]:
    return tuple(str(member.name) for member in array_kinds.names_of(array).values())


def _label_error(name: str, array: Any, where: str) -> SourceError:
    kind = "" if array_kind(array) in (*STORED, "text") else f", which are {array_kind(array)}"
    return SourceError(
        f"{where} has labels of shape {list(array.shape)} in {name!r}{kind}; allowed are one number or name per image, "
        "and rows of 0 and 1 with a value for each class: name others with --column label=NAME, or pass --column "
        "label= if there are no labels"
    )


def _has_several(array: Any) -> bool:
    """Return whether an array has several labels in each row: a list of them, or 0 and 1 for each class."""
    if (kind := array_kind(array)) in ("lists", "items"):
        return True
    return array.ndim == 2 and kind in ("integers", "booleans", "numbers") and bool(np.isin(array[:], (0, 1)).all())


def _lengths(array: Any) -> Lengths | None:
    """Return the lengths of the rows of an array, if they are lists or have several values."""
    if array_kind(array) in ("lists", "items"):
        return Lengths(np.asarray(array[row]) for row in range(array.shape[0]))
    return Lengths(repeat(np.asarray(array[0]), array.shape[0])) if array.ndim > 1 and array.shape[0] else None


def _repeats(array: Any) -> bool:
    """Return whether values occur several times, as class numbers do and identifiers do not."""
    return 1 < len(np.unique(array[:])) < int(array.shape[0])


def _is_class_names(name: str, array: Any) -> bool:
    if not is_class_list("".join(words_of(name))) or array_kind(array) != "text" or not array_kinds.is_column(array):
        return False
    values = np.asarray(array[:]).reshape(-1).tolist()
    return len(set(values)) == len(values)
