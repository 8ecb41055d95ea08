"""LMDB databases whose values are encoded images, or messages of Caffe's ``Datum`` that contain one.

Labels come from keys ``class/name``, from pairs ``image-000000001`` and ``label-000000001``, or
from the ``Datum``. Values that are pickles, which some tools write, are skipped: unpickling can run
code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

from wds_tools.errors import SourceError
from wds_tools.format import codecs
from wds_tools.format.label import name, parse
from wds_tools.sources.base import (
    Collector,
    Input,
    Record,
    Source,
    SourceChangedError,
    SourceOptions,
    SourceStoreError,
    as_read_error,
    as_source_error,
    field_bytes,
    file_states,
    stamp_files,
)
from wds_tools.sources.optional_dependencies import import_optional
from wds_tools.sources.protobuf import parse_datum
from wds_tools.sources.trees import path_bytes, path_text

_IMAGE_KEY = re.compile(rb"image-(\d+)$")
_PLAIN, _DATUM = 0, 1  # what a value is: an encoded image, or a Datum


class LmdbSource(Source):
    """An LMDB database: a folder with ``data.mdb``, or the file itself. Its lock file is not used."""

    kind = "lmdb"
    roles = ()

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(src, options)
        self.path = Path(src)

    def collect(self, found: Collector) -> None:
        """Add the records in the order of their keys.

        Raises:
            SourceError: There is no database, or it has no images.
        """
        data = self.path / "data.mdb" if self.path.is_dir() else self.path
        states = file_states([data])
        with as_source_error(f"{self.path} cannot be read as LMDB", self._lmdb.Error):
            images = list(self._find_images(found))
        found.account.given += len(images)
        labels = [label for _, _, _, label in images]
        texts = [None] * len(images)
        if all(label is None for label in labels) and all(b"/" in key for key, _, _, _ in images):
            labels = [name(path_text(key.partition(b"/")[0])) for key, _, _, _ in images]
        elif any(isinstance(label, bytes) and parse(label).name is not None for label in labels):
            labels, texts = texts, labels  # transcriptions, as in text recognition datasets, not classes
        for (key, size, form, _), label, text in zip(images, labels, texts, strict=True):
            found.add(Input(path_text(key), size, None, (form,), -1, field_bytes(len(text)) if text else 0), label)
        found.files = states
        found.stamp = stamp_files([data])

    def read(self, entry: Input) -> Record:
        """Read one record.

        Raises:
            SourceError: The record is damaged.
            SourceStoreError: The database cannot be read.
            SourceChangedError: The record was deleted.
        """
        key = path_bytes(entry.path)
        with as_read_error("cannot be read", ValueError), self._transaction() as transaction:
            value = transaction.get(key)
            if value is None:
                raise SourceChangedError(f"{self.path} changed while it was packed: {entry.path!r} was deleted")
            image = bytes(parse_datum(value)[0] if entry.location == (_DATUM,) else value)
            text = transaction.get(_label_key(key)) if entry.extra else None
            return Record(image, {"txt": bytes(text)} if text is not None else {})

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """Begin a transaction. An error of LMDB concerns the database, not a single record."""
        try:
            with self._env.begin(buffers=True) as transaction:
                yield transaction
        except self._lmdb.Error as error:
            raise SourceStoreError(f"{self.path} cannot be read as LMDB: {error}") from error

    @cached_property
    def _lmdb(self) -> Any:
        return import_optional("lmdb", "LMDB")

    @cached_property
    def _env(self) -> Any:
        is_folder = self.path.is_dir()
        data = self.path / "data.mdb" if is_folder else self.path
        opened = self._lmdb.open(
            str(self.path), subdir=is_folder, readonly=True, lock=False, readahead=False, create=False, max_dbs=0
        )
        needed = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
        if data.stat().st_size < needed:  # reading past the end would kill the process with SIGBUS
            opened.close()
            raise SourceError(f"{data} is truncated: it has {data.stat().st_size:,} of {needed:,} bytes, copy it again")
        return opened

    def _find_images(self, found: Collector) -> Iterator[tuple[bytes, int, int, Any]]:
        """Yield (key, length of the image, _PLAIN or _DATUM, label) of each image."""
        with self._env.begin(buffers=True) as transaction:
            for stored, value in transaction.cursor():
                key = bytes(stored)
                if key.startswith(b"label-"):
                    continue
                if codecs.sniff(value):
                    label = transaction.get(_label_key(key))
                    yield key, len(value), _PLAIN, bytes(label) if label is not None else None
                    continue
                datum, reason = _datum(value)
                if datum is None:
                    found.account.given += 1
                    found.skip(path_text(key), reason)
                else:
                    yield key, len(datum[0]), _DATUM, datum[1]


def _label_key(key: bytes) -> bytes:
    """Return the key of an image's label. For an image without a number it is ``label-``, which no record has."""
    return _IMAGE_KEY.sub(rb"label-\1", key) if _IMAGE_KEY.match(key) else b"label-"


def _datum(value: memoryview) -> tuple[tuple[memoryview, int] | None, str]:
    """Return (image, label) of a Datum and "", or None and the reason why it is skipped."""
    head = bytes(value[:2])
    if head[:1] == b"\x80" and head[1:] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return None, "is a pickle, which is never read: write the encoded image itself as the value"
    try:
        data, label = parse_datum(value)
    except ValueError:
        data, label = memoryview(b""), 0
    if codecs.sniff(data):
        return (data, label), ""
    if len(data) > len(value) // 2:
        return None, "is a Datum of raw pixels, whose channel order is not known: write encoded images"
    return None, f"is not a {codecs.IMAGE_TYPES}: it starts with {bytes(value[:8])!r}"
