"""LMDB databases whose values are encoded images, messages of Caffe's ``Datum``, or records by msgpack.

Labels are among the values of a record, or the first folder of its key. A key is an id, and perhaps a word before or
after it; values of several keys can be one record. Words are names, as in ``label-7`` and ``7_mask``, or the size of an
image that is stored in several sizes, as in ``256-00001`` and ``512-00001``. Pickles are never read: unpickling can run
code.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from wds_tools.errors import DecodeError, LabelError, OptionError, SourceError
from wds_tools.format import image_header
from wds_tools.format.label import NONE, Label, name, quoted
from wds_tools.sources.about_images import about
from wds_tools.sources.array_roles import Contents
from wds_tools.sources.base import (
    Collector,
    Source,
    SourceChangedError,
    SourceOptions,
    SourceStoreError,
    as_read_error,
    as_source_error,
    import_optional,
)
from wds_tools.sources.columns import IMAGE, LABEL, json_object, json_or
from wds_tools.sources.file_names import is_split_name
from wds_tools.sources.inputs import File, Input, path_bytes, path_text
from wds_tools.sources.label_choice import is_name
from wds_tools.sources.layouts import class_folder, common_folder
from wds_tools.sources.record_roles import IN_LISTS
from wds_tools.sources.records import Item, RecordSource, attempt, by_msgpack, flatten, unpacked
from wds_tools.sources.refused import NAMED, About
from wds_tools.sources.tfrecord import parse_datum
from wds_tools.sources.values import PICKLE, Excluded, image_size, is_text
from wds_tools.wording import counted

_IMAGE, _DATUM, _MSGPACK, _OTHER = range(4)  # what a value is
_DATABASE_BYTES = 48  # length of the value that describes a named database
_MAX_DATABASES = 126
_ORDERS = ("RGB", "BGR")
_environments: WeakValueDictionary[tuple[int, ...], Any] = WeakValueDictionary()

_OF_DATABASE = b"__len__ __keys__ __meta__ __version__ num-samples num_samples length len keys".split()
_COUNTS = (b"num-samples", b"num_samples", b"length")
_BY_KEY = "store each label under its own key, such as label-7 for image-7"
_NOT_READ = (
    f"is a pickle, which is never read: if it has labels, {_BY_KEY}; if it has class names, pass them with --classes "
    "(classes=)"
)
# The words of keys. Any other word is the name of a further value of the record.
IMAGES = re.compile("images?|imgs?|rgb|jpe?g|png|webp|tiff?|photo|picture")
_IMAGE_FOLDERS = re.compile("(image|img)s?")
_SECOND_IMAGES = re.compile(
    "masks?|segm?|segmentation|depth|gt|target|labels?|lbl|alpha|edges?|normals?|flow|instance|semantic|annotation"
)
_SEPARATOR = re.compile(rb"[-_:./]")


class Pattern(NamedTuple):
    """What is before and after the id in a key, and the name that its value gets in the record."""

    name: str
    before: bytes = b""
    after: bytes = b""

    def key(self, id_: bytes) -> bytes:
        """Return the key for an id."""
        return self.before + id_ + self.after

    def fits(self, key: bytes) -> bool:
        """Return whether a key is of this pattern."""
        return key.startswith(self.before) and key.endswith(self.after)

    def id_of(self, key: bytes) -> bytes:
        """Return the id of a key of this pattern."""
        return key[len(self.before) : len(key) - len(self.after)]


_PLAIN = Pattern("image")


def patterns_of(key: bytes) -> Iterator[Pattern]:
    """Yield the ways in which a key can be a word and an id.

    >>> [(pattern.name, pattern.id_of(b"train_1_label")) for pattern in patterns_of(b"train_1_label")]
    [('train', b'1_label'), ('label', b'train_1')]
    """
    separators = list(_SEPARATOR.finditer(key))
    if separators and (word := key[: separators[0].start()]) and not word.isdigit() and key[separators[0].end() :]:
        yield Pattern(path_text(word).lower(), key[: separators[0].end()], b"")
    if separators and (word := key[separators[-1].end() :]) and not word.isdigit() and key[: separators[-1].start()]:
        yield Pattern(path_text(word).lower(), b"", key[separators[-1].start() :])


def image_pattern(key: bytes) -> Pattern:
    """Return the pattern of an image's key.

    >>> image_pattern(b"image-01").id_of(b"image-01"), image_pattern(b"7/img").id_of(b"7/img")
    (b'01', b'7')
    """
    for pattern in patterns_of(key):
        if (_IMAGE_FOLDERS if pattern.before.endswith(b"/") else IMAGES).fullmatch(pattern.name):
            return pattern._replace(name="image")
    return _PLAIN


def size_patterns(keys: Sequence[bytes], sides: Callable[[bytes], tuple[int, int]]) -> list[Pattern]:
    """Return the patterns of keys of images that are stored in several sizes; an empty list for other keys.

    All keys have a word whose last number is the width or the height of its first image, and words have the same ids.
    ``sides`` returns the width and the height of the image of a key.

    >>> keys = [b"8-0001", b"8-0002", b"16-0001", b"16-0002"]
    >>> size_patterns(keys, lambda key: (8, 8) if key[:1] == b"8" else (16, 16))
    [Pattern(name='8', before=b'8-', after=b''), Pattern(name='16', before=b'16-', after=b'')]
    """
    for is_first in (True, False):
        first: dict[Pattern, bytes] = {}
        for key in keys:
            first.setdefault(_around(key, is_first=is_first), key)
        ids = {_around(key, is_first=is_first).id_of(key) for key in keys}
        are_joined = 1 < len(first) < len(keys) and len(ids) < len(keys)
        if are_joined and all(_size(pattern) in sides(key) for pattern, key in first.items()):
            return sorted(first, key=_size)
    return []


def _size(pattern: Pattern) -> int:
    *_, size = (0, *map(int, re.findall("[0-9]+", pattern.name)))
    return size


def _around(key: bytes, *, is_first: bool) -> Pattern:
    """Return the pattern with what is before or after the last separator of a key, without a file extension."""
    cut = max(key.rfind(mark) for mark in (b"-", b"_", b":", b"/"))
    if is_first:
        return Pattern(path_text(key[: max(cut, 0)]).lower(), before=key[: cut + 1])
    return Pattern(path_text(key[cut + 1 :].partition(b".")[0]).lower(), after=key[max(cut, 0) :])


def grouped(
    images: Sequence[bytes], others: Iterable[bytes], sizes: Sequence[Pattern] = ()
) -> tuple[list[tuple[Pattern, bytes, list[Pattern]]], list[bytes]]:
    """Return (pattern, key, patterns of further values) of each record in the order of the keys, and all other keys.

    ``images`` are keys whose values are images, or records with images. If they are stored in several sizes, the first
    of ``sizes`` is that of the image, and images of the other sizes are further values.
    """
    chosen = [pattern._replace(name="image") for pattern in sizes[:1]]
    others = [*others, *(key for key in images if not all(pattern.fits(key) for pattern in chosen))]
    images = [key for key in images if all(pattern.fits(key) for pattern in chosen)]
    records: dict[bytes, tuple[Pattern, bytes]] = {}  # by id
    further: dict[bytes, list[Pattern]] = {}

    def is_joined(key: bytes, words: re.Pattern[str] | None = None) -> bool:
        """Add a value to the record that its key names, if there is one."""
        for pattern in (*(size for size in sizes if size.fits(key)), *patterns_of(key)):
            if pattern.id_of(key) in records and (words is None or words.fullmatch(pattern.name)):
                further.setdefault(pattern.id_of(key), []).append(pattern)
                return True
        return False

    for key in images:
        pattern = next(iter(chosen), None) or image_pattern(key)
        id_ = pattern.id_of(key)
        records[key if id_ in records else id_] = (_PLAIN if id_ in records else pattern, key)
    for key in images:
        if records.get(key) == (_PLAIN, key) and is_joined(key, _SECOND_IMAGES):
            del records[key]
    alone = [key for key in others if not is_joined(key)]
    joined = [(pattern, key, further.get(id_, [])) for id_, (pattern, key) in records.items()]
    return sorted(joined, key=lambda record: record[1]), alone


class LmdbSource(RecordSource):
    """An LMDB database: a folder with ``data.mdb``, or the file itself. Its lock file is not used.

    Besides image and label, ``columns`` may name: for ``image`` and ``label``, named databases with the same keys; for
    ``split``, the first folder of the keys to read; for ``channels``, the order of raw pixels, RGB or BGR.
    """

    kind = "lmdb"
    roles = ("image", "label", "split", "channels")
    preferred = MappingProxyType({LABEL: IN_LISTS})  # of lists such as [image, label]

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.split = self.columns.pop("split", None)
        self.order = self.columns.pop("channels", None)
        if self.order not in (None, *_ORDERS):
            raise OptionError(f"channels={self.order!r}; allowed are {' and '.join(_ORDERS)}, as in channels=BGR")
        self.bgr = self.order == "BGR"
        self.databases: dict[str, str] = {}  # role -> name of a named database
        self.patterns: list[Pattern] = []
        self.base = ""  # folders of keys that contain all class folders
        self._class_lists: dict[bytes, tuple[str, ...]] = {}  # of keys that describe the database

    @property
    def _data(self) -> Path:
        return self.path / "data.mdb" if self.path.is_dir() else self.path

    def collect(self, collector: Collector) -> None:
        collector.take_files([self._data])
        with as_source_error(f"{self.path} cannot be read as LMDB", self._lmdb.Error):
            self._choose_databases(collector)
            self._group(collector)
            super().collect(collector)
        no_label = self.record_roles is not None and self.record_roles.label is None
        if no_label and any(self.label_of(entry) != NONE for entry in collector.inputs):
            collector.account.use("key", "first folder", "label")

    def why_left_out(self, path: str) -> str | None:
        return None if path == "lock.mdb" else super().why_left_out(path)

    def splits(self) -> Mapping[str, Source]:
        """Return the splits that are named databases, or the first folders of the keys."""
        if IMAGE in self.columns or self.split is not None:
            return {}
        with as_source_error(f"{self.path} cannot be read as LMDB", self._lmdb.Error):
            names, _ = self._database_names()
            role = IMAGE
            if len(names) < 2 or not all(map(is_split_name, names)):
                with self._transaction() as transaction:
                    ids = (image_pattern(bytes(key)).id_of(bytes(key)) for key, _ in transaction.cursor())
                    folders = {path_text(id_.rpartition(b"/")[0].partition(b"/")[0]) for id_ in ids}
                names = sorted(filter(is_split_name, folders))
                role = "split"
        columns = {name: {**self.options.columns, role: name} for name in names if len(names) > 1}
        return {name: LmdbSource(self.path, replace(self.options, columns=columns[name])) for name in columns}

    def items(self) -> Iterator[Item]:
        with self._transaction() as transaction:
            for key, location in self._records:
                yield Item(path_text(key), location, attempt(self._values, transaction, key, location))

    def values(self, entry: Input) -> Mapping[str, Any]:
        with as_read_error("cannot be read", ValueError), self._transaction() as transaction:
            values = self._values(transaction, path_bytes(entry.path), entry.location)
            return {name: bytes(value) if isinstance(value, memoryview) else value for name, value in values.items()}

    def is_transcription(self, name: str, values: Sequence[Any]) -> bool:  # noqa: ARG002
        """Return whether the labels of ``image-N`` and ``label-N`` are texts to recognise, not classes."""
        texts = [value for value in values if isinstance(value, str)]
        if self.options.label_type == "name" or not any(map(is_name, texts)):
            return False
        if not any(pattern.before == b"label-" for pattern in self.patterns):
            return False
        if len(set(texts)) <= len(texts) // 2:
            raise LabelError(
                f"{self.path} has texts in label-N ({quoted(sorted(set(texts))[:3])}), {len(set(texts)):,} different "
                f"ones for {len(texts):,} images: pass --label label (columns={{'label': 'label'}}) if they are "
                "classes; texts to recognise are different for most images"
            )
        return True

    def label_of(self, entry: Input) -> Label:
        """Return the first folder of a key as a label."""
        if entry.location[0] != _IMAGE:
            return NONE
        key = path_bytes(entry.path)
        return name(self._class_of(path_text(self.patterns[entry.location[1]].id_of(key))))

    def class_names(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        return {("key", path_text(key)): names for key, names in self._class_lists.items()}

    def _class_of(self, id_: str) -> str:
        return class_folder(id_.removeprefix(self.base)) or ""

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Begin a transaction of the images. An error of LMDB concerns the database, not a single record."""
        try:
            self._database(LABEL)
            with self._env.begin(buffers=True, db=self._database(IMAGE)) as transaction:
                yield transaction
        except self._lmdb.Error as error:
            raise SourceStoreError(f"{self.path} cannot be read as LMDB: {error}") from error

    @cached_property
    def _lmdb(self) -> Any:
        return import_optional("lmdb", "LMDB")

    @cached_property
    def _env(self) -> Any:
        """The environment. LMDB allows one per process and file, so all sources of a file share it."""
        status = self._data.stat()
        key = (os.getpid(), status.st_dev, status.st_ino)
        opened = _environments.get(key)
        if opened is None:
            opened = self._lmdb.open(
                str(self.path),
                subdir=self.path.is_dir(),
                readonly=True,
                lock=False,
                readahead=False,
                create=False,
                max_dbs=_MAX_DATABASES,
            )
            needed = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
            if status.st_size < needed:  # reading past the end would kill the process with SIGBUS
                opened.close()
                raise SourceError(
                    f"{self._data} is truncated: it has {status.st_size:,} of {needed:,} bytes, copy it again"
                )
            _environments[key] = opened
        return opened

    @cached_property
    def _opened(self) -> dict[str, Any]:
        return {}

    def _database(self, role: str) -> Any:
        """Return the database of a role; None for the unnamed one. It must not be called in a transaction."""
        database = self.databases.get(role)
        return None if database is None else self._open_database(database)

    def _open_database(self, name: str) -> Any:
        """Return a named database; None if there is none of this name."""
        if name not in self._opened:
            try:
                self._opened[name] = self._env.open_db(path_bytes(name), create=False)
            except (self._lmdb.IncompatibleError, self._lmdb.NotFoundError):
                return None
        return self._opened[name]

    def _choose_databases(self, collector: Collector) -> None:
        """Find the named databases, and the databases of image and label that the user named."""
        names, has_images = self._database_names()
        collector.account.declare("database", names)
        for role in (IMAGE, LABEL):
            if self.columns.get(role) in names:
                self.databases[role] = self.columns.pop(role)
                collector.account.use("database", self.databases[role], role)
        if names and IMAGE not in self.databases and not has_images:
            raise SourceError(
                f"{self.path} has the named databases {quoted(names)}: name the one with the images, as in "
                f"--column image={names[0]} (columns={{'image': {names[0]!r}}}), and --label for one with labels "
                "of the same keys"
            )
        for database in names:
            if database not in self.databases.values():
                collector.account.leave_out("database", database, "it was not named with --column image=")
        for chosen in self.databases.values():
            database = self._open_database(chosen)
            with self._env.begin() as transaction:
                if database.flags(transaction)["dupsort"]:  # of several values, only one would be read
                    raise SourceError(
                        f"{self.path}: the database {chosen!r} has several values per key (dupsort); allowed is one: "
                        "write each value with its own key"
                    )

    def _database_names(self) -> tuple[list[str], bool]:
        """Return the named databases, and whether the unnamed one has images."""
        has_images, possible = False, []
        with self._env.begin(buffers=True) as transaction:
            for key, value in transaction.cursor():
                has_images = has_images or image_header.sniff(value) is not None
                if len(value) == _DATABASE_BYTES:
                    possible.append(path_text(bytes(key)))
        return [database for database in possible if self._open_database(database) is not None], has_images

    def _group(self, collector: Collector) -> None:
        """Find which keys are the records, and account for all others."""
        forms: dict[bytes, int] = {}
        meta: dict[bytes, bytes] = {}
        stated = b""
        with self._transaction() as transaction:
            for stored, value in transaction.cursor():
                key = bytes(stored)
                if key in _OF_DATABASE and not image_header.sniff(value):
                    stated = bytes(value) if key in _COUNTS and bytes(value).isdigit() else stated
                    meta[key] = bytes(value)
                elif path_text(key) not in self._opened or IMAGE in self.databases:
                    forms[key] = _form(value)
        before = len(forms)
        keys = self._of_split([key for key in forms if forms[key] != _OTHER], forms)
        if len(forms) < before:
            collector.account.notes.append(f"{counted(before - len(forms), 'key')} outside {self.split!r} left out")
        records, alone = grouped(keys, [key for key in forms if forms[key] == _OTHER], self._sizes(keys, forms))
        if stated and int(stated) != len(records) and self.split is None:
            count = len(records)
            collector.account.notes.append(f"the database states {int(stated):,} samples, and has {count:,} images")
        are_labelled = LABEL in {**self.columns, **self.databases}
        are_labelled |= any(further or forms[key] != _IMAGE for _, key, further in records)
        self.has_classes = len({self._class_of(path_text(pattern.id_of(key))) for pattern, key, _ in records}) > 1
        are_labelled |= self.has_classes
        images = [File(path_text(key), 0) for _, key, _ in records]
        self._add_others(collector, meta, alone, images, labelled=are_labelled)
        indices: dict[Pattern, int] = {}
        self._records = []
        for pattern, key, further in records:
            used = [indices.setdefault(part, len(indices)) for part in (pattern, *further)]
            self._records.append((key, (forms[key], *used)))
        self.patterns = list(indices)

    def _sizes(self, keys: Sequence[bytes], forms: Mapping[bytes, int]) -> list[Pattern]:
        """Return the patterns of the keys, the chosen one first, if each image is stored in several sizes."""
        sizes: list[Pattern] = []
        with self._transaction() as transaction, suppress(DecodeError):  # a damaged image is skipped when it is read
            images = [key for key in keys if forms[key] == _IMAGE]
            sizes = size_patterns(images, lambda key: image_size(bytes(transaction.get(key))))
        names = [size.name for size in sizes]
        if sizes and self.columns.get(IMAGE) not in names:
            raise SourceError(
                f"{self.path} has images in {counted(len(sizes), 'size')}, by their keys ({quoted(names)} and the same "
                f"id): name the size to pack, as in --column image={names[-1]} (columns={{'image': {names[-1]!r}}}); "
                "the other sizes become further fields"
            )
        chosen = self.columns.pop(IMAGE) if sizes else ""
        return sorted(sizes, key=lambda size: size.name != chosen)

    def _add_others(
        self, collector: Collector, meta: dict[bytes, bytes], alone: list[bytes], images: list[File], *, labelled: bool
    ) -> None:
        """Account for the keys that describe the database, and the keys of no image: any of them may have labels."""
        with self._transaction() as transaction:
            stored = meta | {key: bytes(transaction.get(key)) for key in alone}
        contents = {key: _in_json(value) for key, value in stored.items()}
        lists = {key: _class_names(key, content) for key, content in contents.items() if labelled}
        self._class_lists = {key: names for key, names in lists.items() if names}
        contents = {key: content for key, content in contents.items() if key not in self._class_lists}
        for key, value in contents.items():
            if key in meta:
                collector.account.leave_out("key", path_text(key), "it describes the database")
            else:
                collector.skip(path_text(key), _reason(value))
        collector.account.given += len(contents.keys() - meta.keys())
        files = [File(path_text(key), len(content)) for key, content in contents.items()]
        others = about(files, images, lambda file: contents[path_bytes(file.path)], are_labelled=labelled)
        for path, described in [*others.items()]:
            key = path_bytes(path)
            if described.reason == NAMED and key in meta and contents[key][:1] in (b"{", b"["):
                del others[path]  # a name alone says little
            elif described.reason == NAMED:
                reason = _NOT_READ if _is_pickle(contents[key]) else f"{NAMED.partition(':')[0]}: {_BY_KEY}"
                others[path] = About(reason, is_certain="label" in path.lower())
        for path, described in others.items():
            if described.is_certain and not labelled:
                raise SourceError(
                    f"{self.path}: the record {path!r} {described.reason.partition(':')[0]}: {_BY_KEY}; or pass "
                    "--column label= (columns={'label': ''}) to pack without it"
                )
        collector.note_files(others)

    def _of_split(self, keys: list[bytes], forms: dict[bytes, int]) -> list[bytes]:
        """Return the keys of the chosen split, and find the folders of classes."""
        ids = {key: image_pattern(key).id_of(key) for key in keys}
        if self.split is not None:
            start = path_bytes(self.split.rstrip("/") + "/")
            ids = {key: id_ for key, id_ in ids.items() if id_.startswith(start)}
            if not ids:
                raise SourceError(f"{self.path} has no key that begins with {self.split!r} (--column split=)")
            for key in [key for key in forms if not image_pattern(key).id_of(key).startswith(start)]:
                del forms[key]
        in_folders = [path_text(id_) for key, id_ in ids.items() if b"/" in id_ and forms[key] == _IMAGE]
        self.base = common_folder(tuple(id_.split("/")[:-1]) for id_ in in_folders)
        first = set(filter(None, map(self._class_of, in_folders)))
        if len(first) > 1 and all(map(is_split_name, first)):
            raise SourceError(
                f"{self.path} has keys for each split ({quoted(sorted(first))}), which are not classes: pack one at a "
                f"time, with --column split={min(first)} (columns={{'split': {min(first)!r}}}), or each as a separate "
                "dataset (--split folders)"
            )
        if len(first) == 1 and (is_split_name(min(first)) or IMAGES.fullmatch(min(first))):
            self.base += f"{first.pop()}/"
        return list(ids)

    def _values(self, transaction: Any, key: bytes, location: tuple[int, ...]) -> dict[str, Any]:
        """Return the values of a record, as views that are valid in the transaction."""
        form, first, *further = location
        value: memoryview | None = transaction.get(key)
        if value is None:
            raise SourceChangedError(f"{self.path} changed while it was packed: {path_text(key)!r} was deleted")
        values = {"image": value} if form == _IMAGE else self._datum(value) if form == _DATUM else unpacked(value)
        id_ = self.patterns[first].id_of(key)
        for index in further:
            pattern = self.patterns[index]
            stored = transaction.get(pattern.key(id_))
            if pattern.name == "json" and stored is not None and (entries := json_object(stored)):
                flatten(entries, "", values)
                continue
            values[f"{pattern.name}_" if pattern.name in values else pattern.name] = _small(stored)
        if LABEL in self.databases:
            values["label"] = _small(transaction.get(key, db=self._opened[self.databases[LABEL]]))
        return values

    def _datum(self, value: memoryview) -> dict[str, Any]:
        """Return the image and the label of a Datum."""
        with as_source_error("is not a Datum", ValueError):
            datum = parse_datum(value)
        if image_header.sniff(datum.data):
            return {"image": datum.data, "label": datum.label}
        channels, height, width = datum.shape
        if datum.floats:
            raise SourceError(f"is a Datum of {datum.floats:,} floats; allowed are encoded images and bytes of pixels")
        if channels not in (1, 3) or height < 1 or width < 1 or channels * height * width != len(datum.data):
            raise SourceError(
                f"is a Datum of raw pixels with {len(datum.data):,} bytes, but states {channels} x {height} x {width}; "
                "allowed are 1 and 3 channels"
            )
        if channels == 3 and self.order is None:
            raise SourceError(
                "is a Datum of raw pixels, whose channel order is not known: pass --column channels=BGR (as OpenCV and "
                "Caffe write them) or channels=RGB"
            )
        pixels = np.frombuffer(datum.data, np.uint8).reshape(datum.shape)
        return {"image": pixels[0] if channels == 1 else pixels.transpose(1, 2, 0), "label": datum.label}


def _form(value: memoryview) -> int:
    """Return what a value is, by its first bytes."""
    if image_header.sniff(value):
        return _IMAGE
    if _is_pickle(value):
        return _OTHER
    if _may_be_msgpack(value) and not is_text(value) and _has_image(value):
        return _MSGPACK
    try:
        datum = parse_datum(value)
    except ValueError:
        return _OTHER
    is_datum = image_header.sniff(datum.data) or datum.floats or (min(datum.shape) > 0 and len(datum.data))
    return _DATUM if is_datum else _OTHER


def _may_be_msgpack(value: bytes | memoryview) -> bool:
    """Return whether a value begins like a dictionary or a list by msgpack."""
    first = value[0] if len(value) else 0
    return 0x80 <= first <= 0x9F or 0xDC <= first <= 0xDF


def _is_pickle(value: bytes | memoryview) -> bool:
    return bytes(value[:1]) == b"\x80" and bytes(value[1:2]) in (b"\x02", b"\x03", b"\x04", b"\x05")


def _in_json(value: bytes) -> bytes:
    """Return a dictionary or a list by msgpack as JSON; other values as they are."""
    if not _may_be_msgpack(value) or is_text(value):
        return value
    try:
        return json.dumps(by_msgpack(value, raw=False), default=str).encode()
    except (SourceError, TypeError, RecursionError):
        return value


def _class_names(key: bytes, content: bytes) -> tuple[str, ...]:
    """Return the class names in JSON: in the value of the key, or in an entry of an object."""
    value = json_or(None, content)
    described = Contents()
    for word, entry in [(path_text(key), value), *(value.items() if isinstance(value, dict) else ())]:
        described.add_entry("key", word, word, entry)
    return next(iter(described.class_names.values()), ())


def _has_image(value: memoryview) -> bool:
    """Return whether a value by msgpack has an image, or an array; values such as a list of keys do not."""
    try:
        values = unpacked(value)
    except SourceError:
        return False
    return any(
        isinstance(item, (np.ndarray, Excluded)) or (isinstance(item, bytes) and not is_text(item))
        for item in values.values()
    )


def _small(value: memoryview | None) -> Any:
    """Return a value that belongs to an image: bytes, or None."""
    return PICKLE if value is not None and _is_pickle(value) else value


def _reason(value: bytes) -> str:
    if not len(value):
        return "is empty"
    if _is_pickle(value):
        return "is a pickle, which is never read: write the encoded image itself as the value"
    if value[:1] == b"{":
        return "is an object in JSON, and belongs to no image: the bytes of images must not be base64"
    if is_text(value):
        return "belongs to no image with the same number or name in its key"
    return f"is not a {image_header.IMAGE_TYPES}: it starts with {value[:8]!r}"
