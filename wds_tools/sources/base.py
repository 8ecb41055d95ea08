"""The interface between the sources and the packer.

What is wrong with a source is a SourceError, in all modules of this folder; while a record is read, it skips the
record. A SourceStoreError or SourceChangedError ends packing. Labels that contradict each other are a LabelError, and
what the user stated wrongly an OptionError. Docstrings name errors only where the code below does not show them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from wds_tools.errors import LabelError, NotADatasetError, OptionError, SourceError, StoreError
from wds_tools.format.account import Account
from wds_tools.format.class_notes import notes_on_similar
from wds_tools.format.field_classes import ClassList
from wds_tools.format.image_signature import Signature
from wds_tools.format.label import NO_NUMBER, NONE, Classes, Labels, LabelType, Numbered
from wds_tools.format.label_lists import LABELS, Form
from wds_tools.lru_cache import LRUCache
from wds_tools.options import RemoteOptions
from wds_tools.sources import layouts
from wds_tools.sources.file_names import UNFINISHED, is_unfinished
from wds_tools.sources.inputs import Input, Inputs
from wds_tools.sources.refused import HEAD_BYTES, OF_CLASSES, About, notes_on, why_not_the_file
from wds_tools.wording import one_line

MAX_RECORD_BYTES = 1 << 30
"""Limit for one record of a container. A larger one is refused before memory is allocated for it."""

WINDOW_BYTES = 256_000_000
"""For sources that are read in groups: bytes of groups that are shuffled together, and cached by each worker."""

_SMALL_BYTES = 1 << 16  # of a web page or a pointer in place of a file
_FULLY_HASHED_BYTES = 4 << 20  # files up to this length are hashed completely, longer ones in pieces
_PIECE_BYTES = 1 << 16
_PIECES = 64
NEXT_TO_IT = "is next to what is packed, and is not read"


class SourceStoreError(StoreError):
    """A source fails, local or remote. This ends packing: otherwise the failure would leave samples out."""


class SourceChangedError(SourceStoreError):
    """A source has changed since it was listed. This ends packing, which cannot continue with a different source."""


class Record(NamedTuple):
    """The content of one input.

    Attributes:
        image: Encoded bytes, or uint8 pixels [H, W] or [H, W, 1 | 3 | 4] in the order R, G, B, A.
        fields: Other fields by name, encoded.
        facts: Entries of the ``json`` field besides path and class.
        remarks: What is wrong with fields that are kept, in the same words for each record.
        signature: Signature of the image, if the source has it.
    """

    image: bytes | NDArray[np.uint8]
    fields: Mapping[str, bytes] = MappingProxyType({})
    facts: Mapping[str, Any] = MappingProxyType({})
    remarks: tuple[str, ...] = ()
    signature: Signature | None = None


class FileState(NamedTuple):
    """A file that contains records, as it was when they were listed."""

    path: Path
    size: int
    mtime_ns: int


class Skip(NamedTuple):
    """A file or record that is not packed, and the reason."""

    path: str
    reason: str


@dataclass
class Listing:
    """The content of a source, listed once.

    Attributes:
        inputs: In a deterministic order: sorted by the bytes of the path, or the order of the records.
        skipped: Files and records that cannot be packed.
        classes: Class names by number; empty without labels, or if labels are only numbers.
        account: What became of everything that the source was given.
        stamp: Changes with what ``inputs`` does not show, such as the content of the file that
            contains them.
        shuffled: Whether ``inputs`` are already in random order.
        earlier: If the source is a dataset, its account: what it was packed from.
        files: The local files that contain the records. They must stay the same until all records are read: a record
            of another version of a file could have the label of a different image.
        field_classes: Class lists of numbers that are not the label, see `Manifest.field_classes`.
        numbered_by: What gives a class its number: the names in sorted order, a list of class names that the source
            has, or records that have number and name.
        form: What the labels were read from.
    """

    inputs: Sequence[Input]
    skipped: list[Skip]
    classes: tuple[str, ...]
    account: Account = field(default_factory=lambda: Account("record"))
    stamp: str = ""
    shuffled: bool = False
    files: tuple[FileState, ...] = ()
    earlier: Account | None = None
    field_classes: dict[str, ClassList] = field(default_factory=dict)
    numbered_by: Literal["order", "list", "records"] = "order"
    form: Form = field(default_factory=Form)

    @property
    def has_labels(self) -> bool:
        """Whether any input has a label."""
        inputs = Inputs.of(self.inputs)
        return inputs.have_labels or inputs.have_several_labels

    @property
    def label_classes(self) -> Classes:
        """Class names of the labels by number, whether a sample has one label or several."""
        several = self.field_classes.get(LABELS)
        return Classes(several.names if several else self.classes)

    def with_classes(self, classes: Classes) -> Listing:
        """Return a listing with other classes. Labels get the numbers of their names; one without a name keeps it."""
        numbers = classes.numbers()
        new = [numbers.get(name, class_number) for class_number, name in enumerate(self.label_classes)]
        if LABELS in self.field_classes:
            inputs = Inputs(
                e._replace(labels=tuple(new[class_number] for class_number in e.labels or ())) for e in self.inputs
            )
            return replace(self, inputs=inputs, field_classes={**self.field_classes, LABELS: ClassList(tuple(classes))})
        inputs = Inputs(
            entry if entry.label is None else entry._replace(label=new[entry.label]) for entry in self.inputs
        )
        return replace(self, inputs=inputs, classes=classes)

    def with_several_labels(self) -> Listing:
        """Return a listing of samples with one label as one of samples that may have several."""
        inputs = Inputs(
            entry if entry.label is None else entry._replace(label=None, labels=(entry.label,)) for entry in self.inputs
        )
        lists = {LABELS: ClassList(tuple(self.classes))} if self.classes else {}
        return replace(self, inputs=inputs, classes=Classes(), field_classes={**self.field_classes, **lists})


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What the user states about a source.

    Attributes:
        classes: Class names by number.
        columns: Role (``image``, ``label``) -> column.
        label_type: Whether labels of unknown meaning are all names or all numbers.
        label_separator: Text between the labels of a sample, if a text has several.
        encoding: Encoding of a text file; None detects UTF-8 and what a byte order mark states.
        remote: How URLs are read.
        kind: Format of the source; None if it was detected.
    """

    classes: tuple[str, ...] | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    label_type: LabelType | None = None
    label_separator: str | None = None
    encoding: str | None = None
    remote: RemoteOptions = field(default_factory=RemoteOptions.of)
    kind: str | None = None

    @property
    def stated(self) -> dict[str, str]:
        """What decides which samples a source has, if the user states it, by name: for `Account.options`."""
        given = {"from": self.kind, "label_type": self.label_type, "label_separator": self.label_separator}
        return {name: text for name, text in {**given, **self.columns}.items() if text is not None}


class Collector(Listing):
    """A listing while it is collected: its inputs have no labels yet, and its classes are those that the source names.

    A source adds to ``account.given`` what it counts independently.

    Args:
        where: Name of the source, for messages.
        unit: What one input is, see `Account.unit`.
        options: What the user states about the source.
    """

    inputs: Inputs

    def __init__(self, where: str, unit: str, options: SourceOptions) -> None:
        super().__init__(Inputs(), [], (), Account(unit, options=options.stated))
        self.where = where
        self.numbered_by = "list"
        self.are_numbers = False  # whether the type of the labels says that they are class numbers
        self.class_files: dict[str, About] = {}  # with class names, which are not read
        self.are_labelled = False  # whether inputs have different labels, after `listing`
        self._options = options
        self._labels = Labels(where, label_type=options.label_type, separator=options.label_separator)

    def take_files(self, paths: Iterable[Path]) -> None:
        """Note state and content of the files that inputs are read from, before they are listed."""
        paths = list(paths)
        self.files = file_states(paths)
        columns = repr(sorted(self._options.columns.items()))
        self.stamp = stamp_files(paths) + columns + (self._options.encoding or "")

    def add_to_stamp(self, contents: Iterable[bytes]) -> None:
        """Note further content that inputs depend on."""
        digest = xxhash.xxh3_128(self.stamp.encode())
        for data in contents:
            digest.update(data)
        self.stamp = digest.hexdigest()

    def add(self, entry: Input, label: Any = NONE) -> None:
        """Add an input and its label: a `Label`, a value whose meaning is not known, or a list of these."""
        self.inputs.append(entry)
        self._add_label(label, 1, entry.path)

    def add_images(self, paths: Sequence[str], sizes: Sequence[int], labels: Sequence[Any]) -> None:
        """Add inputs that have only a path, a size and a label: quickly, because there may be millions."""
        self.inputs.append_images(paths, sizes)
        start = 0
        for _, same in groupby(labels, id):  # files come by folder
            label, *more = same
            self._add_label(label, 1 + len(more), paths[start])
            start += 1 + len(more)

    def _add_label(self, label: Any, count: int, path: str) -> None:
        """Add the label of the next inputs, of which the first has this path."""
        try:
            self._labels.add(label, count)
        except LabelError as error:
            raise LabelError(f"{path}: {error}") from error

    def note_files(self, files: Mapping[str, About]) -> None:
        """Note what files next to the inputs have, by path. Those with class names are noted if labels have none."""
        named = {path for path, about in files.items() if about.reason.startswith(OF_CLASSES)}
        self.class_files |= {path: files[path] for path in named}
        self.account.notes += notes_on({path: about for path, about in files.items() if path not in named})

    def skip(self, path: str, reason: str) -> None:
        """Record a file, row or sample that cannot be packed."""
        self.skipped.append(Skip(path, reason))

    def listing(self) -> Listing:
        """Return the listing: labels are numbered, and if only some inputs have one, the others are skipped."""
        given = self._options.classes
        numbered = self._labels.numbered(given, self.classes or None, are_numbers=self.are_numbers)
        self.numbered_by = self.numbered_by if self.classes else "order"
        self.form = numbered.form
        inputs = self.inputs
        has_label = _has_label(numbered)
        if has_label.any():
            missing = np.flatnonzero(~has_label)
            labels = numbered.numbers[has_label] if len(missing) else numbered.numbers
            self.are_labelled = numbered.several is not None or bool(np.ptp(labels))
            self.skipped += [Skip(inputs[index].path, "has no label") for index in missing.tolist()]
            inputs = inputs.with_labels(numbered.numbers, numbered.several)
            inputs = inputs.chosen(np.flatnonzero(has_label)) if len(missing) else inputs
        classes = numbered.classes
        if numbered.form.is_several:
            self.field_classes |= {LABELS: ClassList(tuple(classes))} if classes else {}
            classes = Classes()
        elif not has_label.any() and any(listed.names == tuple(classes) for listed in self.field_classes.values()):
            classes = Classes()  # those that were given are of objects or masks
        if not inputs:
            reason = f"; the first, {self.skipped[0].path!r}: {self.skipped[0].reason}" if self.skipped else ""
            raise SourceError(f"{self.where} contains no image that can be packed{reason}")
        self.account.notes += numbered.notes
        if given and not {*self.classes} <= {*given}:
            self.account.options["classes"] = "renamed"
        if not has_label.any() and self._options.label_separator is not None:
            self.account.notes.append("--label-separator (label_separator=) has no effect, because there is no label")
        for place, listed in self.field_classes.items():
            self.account.notes += [] if place == LABELS else notes_on_similar(listed.names)
        self.account.close(len(inputs), (skip.reason for skip in self.skipped))
        content = {attribute.name: getattr(self, attribute.name) for attribute in fields(Listing)}
        return Listing(**{**content, "inputs": inputs, "classes": classes})


def _has_label(numbered: Numbered) -> NDArray[np.bool_]:
    """Return which inputs have a label: bool [n]."""
    if numbered.several is not None:
        return np.array([labels is not None for labels in numbered.several], np.bool_)
    has_label: NDArray[np.bool_] = numbered.numbers != NO_NUMBER
    return has_label


class Source:
    """Base of all sources. A source is pickled for worker processes: attributes that start with ``_`` are not.

    Args:
        src: A path, a URL, a pattern or an object.
        options: What the user states about it.

    Attributes:
        kind: Name of the format, as for ``--from``.
        unit: What one input is, see `Account.unit`.
        in_process: The source cannot be pickled, so it is packed in this process.
        detected: Its kind for `open_source`, given or detected.
        roles: Roles that ``columns`` may name.
        reads_text: The source is a text file, which has an encoding.
        no_splits: Why `splits` is empty, and what to do.
        has_records: Whether each of its files has records. Those of a Zarr store only describe arrays.
        joining: How to pack the images with a file next to them that has their labels.
    """

    kind: str
    unit: ClassVar[str] = "record"
    joining: ClassVar[str] = "write the images as files next to it and pack them with --from table"
    in_process: ClassVar[bool] = False
    has_records: ClassVar[bool] = True
    detected: str = ""
    roles: tuple[str, ...] = ("image", "label")
    reads_text: bool = False
    no_splits: str = "it has no names such as train and val: rename splits, or give shares, such as train=0.9,val=0.1"

    def __init__(self, src: Any, options: SourceOptions | None = None) -> None:
        self.options = options or SourceOptions()
        self.columns = dict(self.options.columns)
        self.name = str(src)
        if self.columns and not self.roles:
            raise OptionError(
                f"columns={self.columns!r}, but {self.name} is read as {self.kind}, which has no columns: omit "
                "--column and --label (columns=)"
            )
        if self.options.encoding is not None and not self.reads_text:
            raise OptionError(
                f"--encoding (encoding=) is for text files, but {self.name} is read as {self.kind}: omit it"
            )
        if unknown := sorted(set(self.columns) - set(self.roles)):
            raise OptionError(
                f"columns name the role {unknown[0]!r}; allowed are {' and '.join(map(repr, self.roles))}, as in "
                "label=species"
            )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_")}

    @cached_property
    def _cache(self) -> LRUCache[Any, Any]:
        """What this process has read, and may soon need again."""
        return LRUCache(max_bytes=WINDOW_BYTES)

    def scan(self) -> Listing:
        """List all inputs, once, with their labels.

        Raises:
            SourceError: There is nothing to pack, or the source is damaged.
            LabelError: Invalid labels.
        """
        collector = Collector(self.name, self.unit, self.options)
        self.collect(collector)
        around = import_module("wds_tools.sources.around")  # it reads tables, which are sources too
        around.leave_out_files(self, collector)
        listing = collector.listing()
        if not listing.has_labels and not {"label", LABELS} & (self.columns.keys() | listing.field_classes.keys()):
            around.note_names(self, collector)
        of_objects = (name for listed in listing.field_classes.values() for name in listed.names)
        names = listing.label_classes if listing.has_labels else of_objects
        if all(name.removeprefix("class_").isdigit() for name in names) and not self.options.classes:
            around.note_class_names(self, collector, are_numbers=listing.has_labels)
        if not collector.are_labelled and not self.is_stated:
            around.check_next_to(self, collector)
        return listing

    def collect(self, collector: Collector) -> None:
        """Add all that the source has."""
        raise NotImplementedError

    def root(self) -> Path:
        """Return the path of the source, if it has one: all files below a folder are packed, skipped or left out."""
        return Path(self.name)

    def why_left_out(self, path: str) -> str | None:
        """Return why a file below the root with no record in it is not packed; None for a part of the format."""
        if is_unfinished(path):
            return UNFINISHED
        return layouts.SHARD_TABLE if layouts.is_shard_table(path) else NEXT_TO_IT

    def remedy_for_names(self, first: str) -> str:  # noqa: ARG002 - for formats with columns in paths
        """Return what to do if the names of files, folders or keys are the classes, as the end of a sentence."""
        return "write a label into each record, or pack the images as files in folders with these names"

    def image_names(self, collector: Collector) -> Iterable[str]:
        """Return the names by which a table can name the images."""
        return (entry.path for entry in collector.inputs)

    def state(self) -> dict[str, Any] | None:
        """Return what `read` needs besides the arguments of the source, as JSON; None if it must be listed again."""
        return None

    def restore(self, state: dict[str, Any]) -> None:
        """Make an open source that was not listed ready to be read, by what `state` returned after listing."""
        raise NotImplementedError

    def checksum(self, is_stopped: Callable[[], bool] | None) -> str | None:
        """Return a checksum of the paths, lengths and versions of all files; None if it must be listed again.

        Args:
            is_stopped: Lists the files again, until it returns True. None uses the last listing.
        """
        raise NotImplementedError

    def splits(self) -> Mapping[str, Source]:
        """Return the splits, such as train and val, by name, in a fixed order; empty if the source has none."""
        return {}

    @property
    def is_stated(self) -> bool:
        """Whether the user has named the format or the label, and so does not mean files next to it."""
        return self.options.kind is not None or "label" in self.columns

    def later_than(self, inputs: Iterable[Input], time_ns: int) -> list[str]:  # noqa: ARG002 - for files of images
        """Return the local image files, among the files of inputs, whose modification time is later."""
        return []

    def read(self, entry: Input) -> Record:
        """Read one input.

        Raises:
            SourceError: The content of this input is damaged, so it is skipped.
            SourceStoreError: The source fails, so packing ends.
        """
        raise NotImplementedError


def import_optional(library: str, what: str) -> Any:
    """Import a library of the extra ``sources``."""
    try:
        return import_module(library)
    except ImportError as error:
        raise OptionError(
            f'{what} needs the package {library}, which is not installed: pip install "wds-tools[sources]"'
        ) from error


@contextmanager
def as_source_error(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Convert ``errors`` and OSError into a SourceError of one line, which begins with ``what``."""
    caught: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except (SourceError, OptionError, LabelError, NotADatasetError, SourceStoreError):
        raise
    except caught as error:
        reason = one_line(getattr(error, "strerror", None) or error or type(error).__name__)
        raise SourceError(f"{what}: {reason}") from error


@contextmanager
def as_read_error(what: str, *errors: type[Exception]) -> Iterator[None]:
    """Do as `as_source_error` while records are read, where a SourceError skips one.

    An OSError of the operating system becomes a SourceStoreError, which ends packing. Libraries raise an OSError
    without a number for damaged content.
    """
    try:
        with as_source_error(what, *errors):
            yield
    except SourceError as error:
        if isinstance(error.__cause__, OSError) and is_system_error(error.__cause__):
            raise SourceStoreError(str(error)) from error.__cause__
        raise


def is_system_error(error: Exception) -> bool:
    """Return whether the operating system reported this error: storage fails, and the content may be undamaged."""
    return isinstance(error, OSError) and error.errno is not None


def check_size(name: str, size: int, listed: int) -> None:
    """Check that a file that was read has the length with which it was listed."""
    if size != listed:
        more = "more than" if size > listed else f"{size:,} of"
        raise SourceChangedError(
            f"{name} changed while it was packed: it has {more} the {listed:,} bytes that were listed"
        )


class FileTimes:
    """Times of files when they were listed: a file that was changed or replaced may have the same length.

    Of most files only the latest time is kept, because there may be millions. It is the time of the change of the
    inode, or the modification time if this is later: a file that replaces another may have been modified long before.

    Attributes:
        newest_ns: The latest time that is not in the future.
        future: Times in the future, by file.
    """

    def __init__(self, started_ns: int | None = None) -> None:
        self.newest_ns = 0
        self.future: dict[str, int] = {}
        self.started_ns = time.time_ns() if started_ns is None else started_ns

    @classmethod
    def of(cls, state: Sequence[Any]) -> FileTimes:
        """Return the times that `state` returned."""
        times = cls()
        times.newest_ns, times.started_ns, times.future = *state[:2], dict(state[2])
        return times

    def state(self) -> list[Any]:
        """Return all times as JSON."""
        return [self.newest_ns, self.started_ns, self.future]

    def merge(self, times: FileTimes) -> None:
        """Take note of the times of other files, listed at the same time."""
        self.newest_ns = max(self.newest_ns, times.newest_ns)
        self.future |= times.future

    def add(self, names: Sequence[str], statuses: Sequence[os.stat_result]) -> None:
        """Take note of the times of files."""
        times = [max(status.st_mtime_ns, status.st_ctime_ns) for status in statuses]
        if max(times, default=0) > self.started_ns:
            self.future |= {name: time for name, time in zip(names, times, strict=True) if time > self.started_ns}
            times = [time for time in times if time <= self.started_ns]
        self.newest_ns = max([*times, self.newest_ns])

    def check(self, name: str, status: os.stat_result, *, shown: str) -> None:
        """Check the times of a file that was read; ``shown`` is its name in messages."""
        time_ns = max(status.st_mtime_ns, status.st_ctime_ns)
        if time_ns > self.newest_ns and time_ns != self.future.get(name):
            raise SourceChangedError(
                f"{shown} changed while it was packed: it was modified, replaced or given other permissions after it "
                "was listed"
            )

    def later(self, paths: Iterable[tuple[str, str | bytes]], time_ns: int) -> list[str]:
        """Return the files, given by name and path, with a later modification time that is not in the future."""
        if self.newest_ns <= time_ns:
            return []
        return [name for name, path in paths if time_ns < _modified_ns(name, path) <= self.newest_ns]


def _modified_ns(name: str, path: str | bytes) -> int:
    with as_read_error(f"{name} cannot be read"):
        return os.stat(path).st_mtime_ns  # noqa: PTH116 - bytes


def file_states(paths: Iterable[Path]) -> tuple[FileState, ...]:
    """Return the present state of files. The first file and small ones are checked: they may have been replaced."""
    states = tuple(map(_state, paths))
    for index, (path, size, _) in enumerate(states):
        if index == 0 or size < _SMALL_BYTES:
            with as_read_error(f"{path} cannot be read"), path.open("rb") as file:
                if why := why_not_the_file(path.name, file.read(HEAD_BYTES)):
                    raise SourceError(f"{path} {why}")
    return states


def check_unchanged(files: Iterable[FileState]) -> None:
    """Check that files are as they were listed."""
    for file in files:
        if _state(file.path) != file:
            raise SourceChangedError(f"{file.path} changed while it was packed")


def _state(path: Path) -> FileState:
    with as_read_error(f"{path} cannot be read"):
        status = path.stat()
    return FileState(path, status.st_size, status.st_mtime_ns)


def stamp_files(paths: Iterable[Path]) -> str:
    """Return a hash of the lengths and contents of files.

    Of a long file, only some pieces and the modification time are hashed.
    """
    digest = xxhash.xxh3_128()
    for path in paths:
        with as_source_error(f"{path} cannot be read"), path.open("rb") as file:
            status = os.fstat(file.fileno())
            digest.update(b"%d\n" % status.st_size)
            if status.st_size <= _FULLY_HASHED_BYTES:
                digest.update(file.read(_FULLY_HASHED_BYTES))
                continue
            digest.update(b"%d\n" % status.st_mtime_ns)  # the pieces may miss a change
            for piece in range(_PIECES):
                file.seek((status.st_size - _PIECE_BYTES) * piece // (_PIECES - 1))
                digest.update(file.read(_PIECE_BYTES))
    return digest.hexdigest()
