"""LMDB databases whose values are encoded images, or Caffe's ``Datum`` around one.

Labels come from keys ``class/name``, from pairs ``image-000000001`` and ``label-000000001``, or from the ``Datum``.
Values that are pickles, as some tools write them, are refused: reading one would run whatever it says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from wds_tools.errors import OptionError, SourceError
from wds_tools.format import codecs
from wds_tools.sources.base import Input, Lazy, Listing, Record, Skip, field_bytes, refusing, stamp_files
from wds_tools.sources.image_tree import raw, text
from wds_tools.sources.labels import label_inputs
from wds_tools.sources.optional_dependencies import load
from wds_tools.sources.protobuf import parse_datum

_PAIR = re.compile(rb"image-(\d+)$")
_PLAIN, _DATUM = 0, 1


class LmdbSource(Lazy):
    """An LMDB database: a folder with ``data.mdb``, or the file itself. It is opened without its lock file.

    Args:
        path: Folder or file.
        classes: Class names by number.
        columns: None: a database has no columns.
    """

    kind = "lmdb"

    def __init__(
        self, path: str | Path, classes: tuple[str, ...] | None = None, columns: Mapping[str, str] | None = None
    ) -> None:
        if columns:
            raise OptionError(f"columns={columns!r}, but an LMDB database has none: leave them out")
        self.path = Path(path)
        self.classes = classes

    def scan(self) -> Listing:
        """List the records in the order of their keys.

        Raises:
            SourceError: No database, or one without images.
        """
        skipped: list[Skip] = []
        with refusing(f"{self.path} cannot be read as LMDB", self._lmdb.Error):
            found = list(self._found(skipped))
        written = [label for _, _, _, label in found]
        texts = [None] * len(found)
        if all(label is None for label in written) and all(b"/" in key for key, _, _, _ in found):
            written = [key.partition(b"/")[0] for key, _, _, _ in found]
        elif any(isinstance(label, bytes) and not label.isdigit() for label in written):
            written, texts = texts, written  # what a picture of writing says, and no class
        inputs = [
            Input(text(key), size, None, (form,), -1, field_bytes(len(words)) if words else 0)
            for (key, size, form, _), words in zip(found, texts, strict=True)
        ]
        inputs, classes = label_inputs(inputs, written, self.classes, skipped, where=str(self.path))
        data = self.path / "data.mdb" if self.path.is_dir() else self.path
        return Listing(inputs, skipped, classes, stamp_files([data]))

    def read(self, entry: Input) -> Record:
        """Return one record.

        Raises:
            SourceError: It is gone or no longer an image.
        """
        key = raw(entry.path)
        with refusing("cannot be read", self._lmdb.Error, ValueError), self._env.begin(buffers=True) as transaction:
            value = transaction.get(key)
            if value is None:
                raise SourceError("is gone: the database changed while it was packed")
            image = bytes(parse_datum(value)[0] if entry.place == (_DATUM,) else value)
            written = transaction.get(_label_key(key)) if entry.extra else None
            return Record(image, {"txt": bytes(written)} if written is not None else {})

    @cached_property
    def _lmdb(self) -> Any:
        return load("lmdb", "LMDB")

    @cached_property
    def _env(self) -> Any:
        is_folder = self.path.is_dir()
        data = self.path / "data.mdb" if is_folder else self.path
        opened = self._lmdb.open(
            str(self.path), subdir=is_folder, readonly=True, lock=False, readahead=False, create=False, max_dbs=0
        )
        needed = (opened.info()["last_pgno"] + 1) * opened.stat()["psize"]
        if data.stat().st_size < needed:  # reading behind the end would kill the process
            opened.close()
            raise SourceError(f"{data} was cut: it has {data.stat().st_size:,} of {needed:,} bytes, copy it again")
        return opened

    def _found(self, skipped: list[Skip]) -> Iterator[tuple[bytes, int, int, Any]]:
        """Yield (key, bytes of the image, form, what is written as its label) of each image."""
        with self._env.begin(buffers=True) as transaction:
            for key, value in transaction.cursor():
                name = bytes(key)
                if name.startswith(b"label-"):
                    continue
                if codecs.sniff(value):
                    written = transaction.get(_label_key(name))
                    yield name, len(value), _PLAIN, bytes(written) if written is not None else None
                    continue
                datum, reason = _datum(value)
                if datum is None:
                    skipped.append(Skip(text(name), reason))
                else:
                    yield name, len(datum[0]), _DATUM, datum[1]


def _label_key(key: bytes) -> bytes:
    return _PAIR.sub(rb"label-\1", key) if _PAIR.match(key) else b"label-"


def _datum(value: memoryview) -> tuple[tuple[memoryview, int] | None, str]:
    """Return (image, label) of a Datum, or None and why it is none."""
    head = bytes(value[:2])
    if head[:1] == b"\x80" and head[1:] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return None, "is a pickle, which is never read: write the encoded image itself as the value"
    try:
        data, label, _ = parse_datum(value)
    except ValueError:
        data, label = memoryview(b""), 0
    if codecs.sniff(data):
        return (data, label), ""
    if len(data) > len(value) // 2:
        return None, "is a Datum of raw pixels, whose order of colours it does not say: write encoded images"
    return None, f"is no JPEG, PNG or WebP: it starts with {bytes(value[:8])!r}"
