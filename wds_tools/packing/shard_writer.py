"""`ShardWriter` writes samples from a loop as a dataset. It is called like webdataset's class of the same name."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import xxhash

from wds_tools.errors import DecodeError, DestinationError, LabelError, OptionError, SampleError, WdsToolsError
from wds_tools.format import image_header
from wds_tools.format import manifest as manifests
from wds_tools.format.field_classes import ClassList, class_lists
from wds_tools.format.image_header import ImageInfo
from wds_tools.format.index import NO_LABEL, shard_entry
from wds_tools.format.index_edit import relabel
from wds_tools.format.label import NO_NUMBER, NONE, Classes, Label, Labels, parse
from wds_tools.format.label_lists import LABELS, Form, items_of
from wds_tools.format.manifest import ImageStats, Manifest, ShardEntry
from wds_tools.format.sample import IMAGE_FIELDS, Sample
from wds_tools.format.tar import END, padded
from wds_tools.format.totals import count_fields, image_stats, merge_stats
from wds_tools.options import parse_bytes
from wds_tools.packing.encode import encode_field
from wds_tools.packing.shard_file import ShardFile, member_headers
from wds_tools.packing.writer_lock import SOURCE_KIND, WriterLock
from wds_tools.storage import is_url
from wds_tools.storage.commit import commit_bytes
from wds_tools.wording import broken_url_remedy

_log = logging.getLogger("wds_tools")

Encoder = bool | None | Mapping[str, Callable[[Any], bytes]] | Callable[[dict[str, Any]], Mapping[str, Any]]


class ShardWriter:
    """Write samples one by one into a dataset: shards of limited size, an index for each, and a manifest.

    A drop-in replacement for ``webdataset.ShardWriter``. A shard file appears only when it is complete, and its index
    right after it. The manifest, and with it the dataset, is written when the ``with`` block ends without an error, or
    by `close`. After an error, the finished shards stay, without a manifest; the next writer with this pattern then
    raises an error by default (see ``fresh``). Keys must be unique within a shard. Across shards this is not checked,
    because remembering every key would take too much memory.

    >>> import tempfile, wds_tools as wt
    >>> folder = tempfile.mkdtemp()
    >>> with wt.ShardWriter(f"{folder}/train-%06d.tar", maxcount=1000) as writer:
    ...     for i in range(3):
    ...         writer.write({"__key__": f"{i:06}", "txt": "hello", "cls": i})
    >>> writer.manifest.samples, writer.manifest.fields
    (3, {'cls': 3, 'txt': 3})

    Args:
        pattern: Path of the shards with a placeholder for their number, such as ``out/train-%06d.tar``. The folder is
            created if missing.
        maxcount: Maximum number of samples in a shard.
        maxsize: Maximum size of a shard in bytes, or as text such as "1GB"; headers and padding count. Only a shard
            with a single sample can be larger.
        post: Function that is called with the path of each shard after the shard and its index are written.
        start_shard: Index of the first shard. The manifest lists only the shards of this writer.
        verbose: If not 0, log the name of each shard when it is started, at level INFO.
        opener: Not supported: a shard is written under a temporary name and renamed when it is complete, which is not
            possible with an opened stream.
        encoder: How values become bytes. True encodes by the extension of the field, see
            `wds_tools.packing.encode.encode_field`. A mapping has a function for each extension. A single function gets
            the whole sample and returns it encoded. With False or None, all values must be bytes or text.
        user: Not supported, like ``group`` and ``mode``: headers are constant, so that equal samples give equal bytes.
        group: Not supported.
        mode: Not supported.
        compress: Only False or None: a reader seeks to each sample, which a compressed archive does not allow.
        keep_meta: Only False: fields that begin with ``_`` are not written.
        mtime: Only 0 or None: the modification time of every member is 0.
        format: Not supported: members are ustar, with pax headers where needed.
        manifest: File name of the manifest, by default ``manifest.json``. Several writers into one folder need
            different names.
        classes: Class names by number, for the manifest. If given, every ``cls`` must be one of these numbers or
            names. By default, names in ``cls`` get numbers in sorted order when the writer is closed.
        field_classes: Class names of numbers in other fields, for the manifest: for each place, such as
            ``"json:objects.category"``, their names by number, or a `ClassList`.
        shuffled: Whether the samples arrive in random order, so that the loader does not need a large window to mix
            them.
        fresh: Remove what an earlier writer with this manifest name left, finished or not, and start over.

    Attributes:
        manifest: Manifest of the dataset; None until `close` has written it.
        total: Number of samples written so far.

    Raises:
        OptionError: An invalid argument.
        DestinationError: The folder contains a dataset or the shards of an unfinished dataset, is in use by another
            writer, or is not writable.
    """

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        maxcount: int = 100_000,
        maxsize: float | str = 3e9,
        post: Callable[[str], object] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: None = None,
        *,
        encoder: Encoder = True,
        user: None = None,
        group: None = None,
        mode: None = None,
        compress: bool | None = None,
        keep_meta: bool = False,
        mtime: float | None = None,
        format: None = None,  # noqa: A002 - the name in webdataset
        manifest: str | None = None,
        classes: Sequence[str] = (),
        field_classes: Mapping[str, ClassList | Sequence[str]] | None = None,
        shuffled: bool = False,
        fresh: bool = False,
    ) -> None:
        _refuse_unsupported(opener=opener, user=user, group=group, mode=mode, compress=compress or None, format=format)
        _refuse_unsupported(keep_meta=keep_meta or None, mtime=mtime or None)
        if maxcount < 1 or start_shard < 0:
            raise OptionError(
                f"maxcount={maxcount}, start_shard={start_shard}; maxcount must be at least 1, start_shard at least 0"
            )
        self.pattern = _check_pattern(os.fspath(pattern), start_shard)
        self.maxcount = maxcount
        self.maxsize = parse_bytes(maxsize, what="maxsize")
        self.total = 0
        self.manifest: Manifest | None = None
        self._post, self._verbose, self._encoder = post, verbose, encoder
        self._classes, self._shuffled = Classes(classes), shuffled
        self._field_classes = class_lists(field_classes or {})
        self._labels = Labels(self.pattern)
        self._first_label: Label | None = None
        self._number = start_shard
        self._shard: ShardFile | None = None
        self._entries: list[ShardEntry] = []
        self._fields: Counter[str] = Counter()
        self._images: ImageStats | None = None
        self._closed_reason: str | None = None  # why no more samples can be written
        self._writer_lock = WriterLock(self._path.parent, manifests.checked_name(manifest))
        self._writer_lock.acquire(self._path, fresh=fresh)

    @property
    def _path(self) -> Path:
        """Path of the next shard to be started."""
        return Path(self.pattern % self._number)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write a sample.

        Args:
            sample: The key as text under ``__key__``, and the values by field name. Fields are written in sorted
                order; names that begin with ``_`` are not written.

        Raises:
            SampleError: The sample cannot be stored. Nothing of it was written, and other samples can still be written.
            DecodeError: The image is damaged or of an unsupported type. Nothing was written either.
            OptionError: A key and field name that together are too long for tar readers. Nothing was written either.
            DestinationError: The disk is full, or a file with the shard's name exists. No more samples can be written.
        """
        if self._closed_reason:
            raise DestinationError(f"{self.pattern} accepts no more samples: {self._closed_reason}")
        encoded = self._encode(sample)
        size = sum(map(len, member_headers(encoded))) + sum(padded(len(data)) for data in encoded.fields.values())
        label, image = self._label(encoded), _image_info(encoded)
        try:
            self._shard_for(size).write(encoded, label=label.number, image=image)
        except SampleError:
            raise
        except BaseException as error:
            self._fail(error, f"an earlier write failed ({error})")
        self._labels.add(label)
        self.total += 1

    def close(self) -> None:
        """Finish the last shard and write the manifest, after the last sample. A second call does nothing.

        Raises:
            SampleError: No sample was written, so there is no dataset.
            DestinationError: The disk is full, or an earlier write failed. No manifest is written; finished shards
                stay.
        """
        if self.manifest is not None:
            return
        if self._closed_reason:
            raise DestinationError(f"{self.pattern} was not completed: {self._closed_reason}; {self._kept_shards()}")
        try:
            self._finish()
            if not self._entries:
                raise SampleError(f"no sample was written to {self.pattern}, so there is no dataset")
            manifest = self._manifest()
            self._writer_lock.complete(manifest)
        except BaseException as error:
            self._fail(error, f"closing it failed ({error})")
        self.manifest = manifest
        self._closed_reason = "it was closed"

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        elif self.manifest is None and self._closed_reason is None:
            self._abort("an exception ended the with block")

    def _shard_for(self, size: int) -> ShardFile:
        """Return the shard for a sample of ``size`` bytes."""
        shard = self._shard
        if shard is not None and (shard.samples >= self.maxcount or shard.bytes + size + len(END) > self.maxsize):
            self._finish()
        if self._shard is None:
            self._writer_lock.register_shard(self._path)
            if self._verbose:
                _log.info("writing %s after %d samples", self._path, self.total)
            self._shard = ShardFile(self._path).__enter__()
            self._number += 1
        return self._shard

    def _finish(self) -> None:
        """Commit the shard and its index."""
        shard, self._shard = self._shard, None
        if shard is None:
            return
        shard.__exit__(None, None, None)
        if shard.entry is None or shard.index is None:
            return  # it has no samples: the only one was refused
        self._entries.append(shard.entry)
        self._fields.update(count_fields(shard.index))
        self._images = merge_stats([self._images, image_stats(shard.index)])
        if self._post is not None:
            self._post(str(shard.path))

    def _abort(self, why: str) -> None:
        """Discard the shard that is being written, and release the folder."""
        self._closed_reason = why
        shard, self._shard = self._shard, None
        if shard is not None:
            failure = RuntimeError(why)
            shard.__exit__(RuntimeError, failure, None)
        self._writer_lock.release()

    def _encode(self, sample: Mapping[str, Any]) -> Sample:
        values: Mapping[str, Any] = sample
        if callable(self._encoder):
            values = self._encoder(dict(sample))
        if not isinstance(values, Mapping):
            raise SampleError(f"a sample is a {type(values).__name__}; expected a dictionary with __key__ and fields")
        key = values.get("__key__")
        if not isinstance(key, str):
            raise SampleError(f"a sample has __key__ {key!r}; expected text, such as '000042'")
        names = sorted(name for name in values if not name.startswith("_"))
        try:
            if LABELS in values:
                values = {**values, LABELS: self._several(values[LABELS])}
            if self._encoder is True and not isinstance(values.get("cls", ""), (str, bytes)):
                values = _with_label(values)
            names = [name for name in names if name in values]
            return Sample(key, {name: self._encode_one(name, values[name]) for name in names})
        except SampleError as error:
            error.key = key
            raise

    def _encode_one(self, name: str, value: Any) -> bytes:
        if self._encoder is True:
            return encode_field(name, value)
        if isinstance(self._encoder, Mapping) and not isinstance(value, (bytes, bytearray, memoryview, str)):
            handler = self._encoder.get(name.rpartition(".")[2].lower())
            if handler is None:
                raise SampleError(f"field {name!r}: the encoder has no function for it; it has {sorted(self._encoder)}")
            value = handler(value)
        if isinstance(value, str):
            value = value.encode()
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise SampleError(f"field {name!r} holds {type(value).__name__}, which is not encoded; expected bytes")
        return bytes(value)

    def _several(self, value: Any) -> Any:
        """Return the labels of a sample as class numbers, if the writer knows the classes.

        Raises:
            SampleError: They are not among the classes; or they are names, and the classes are not known.
        """
        items = items_of(value.decode() if isinstance(value, bytes) else value, None)
        classes = self._field_classes.get(LABELS)
        if classes is None and (not items or not all(isinstance(item, str) for item in items)):
            return value
        labels = Labels(LABELS, form=Form(is_several=True))
        labels.add(value if items is None else items)
        if classes is None:
            raise SampleError(
                f"{LABELS!r} has the names {items}, whose numbers are not known: name the classes, as in "
                f"field_classes={{{LABELS!r}: ['cat', 'dog']}}"
            )
        try:
            return list((labels.numbered(own=classes.names).several or [()])[0] or ())
        except LabelError as error:
            raise SampleError(str(error)) from error

    def _label(self, sample: Sample) -> Label:
        """Return the label of a sample. Where classes are known, it is their number; other names get numbers later.

        Raises:
            SampleError: It is not a label, not among the classes, or a number among names.
        """
        data = sample.fields.get("cls")
        if data is None:
            return NONE
        try:
            label = parse(data)
        except LabelError as error:
            raise SampleError(f"cls: {error}; allowed are whole numbers and names", key=sample.key) from error
        if label.name is not None and label.name in self._classes:
            return Label(self._classes.index(label.name))
        if self._classes and (label.number is None or label.number >= len(self._classes)):
            raise SampleError(
                f"cls is {data[:40]!r}; classes= names {len(self._classes)}, so allowed are 0 to "
                f"{len(self._classes) - 1} and these names",
                key=sample.key,
            )
        if label != NONE and self._first_label not in (None, label):
            first = self._first_label
            if (label.name is None) != (first.name is None):
                raise SampleError(
                    f"cls is {data[:40]!r}, and cls of an earlier sample is {first.name or first.number!r}: labels are "
                    "either numbers or names",
                    key=sample.key,
                )
        self._first_label = self._first_label or (label if label != NONE else None)
        return label

    def _number_names(self) -> Classes:
        """Number the labels that are names, write them to the indexes, and return the classes."""
        numbered = self._labels.numbered(self._classes)
        numbers, classes = numbered.numbers, numbered.classes
        stop = 0
        for shard, entry in enumerate(self._entries):
            start, stop = stop, stop + entry.samples
            if self._classes or not classes:
                continue
            path = self._path.parent / entry.index
            label = numbers[start:stop]
            data = relabel(path.read_bytes(), np.where(label == NO_NUMBER, NO_LABEL, label), name=str(path))
            commit_bytes(path, data)
            self._entries[shard] = replace(entry, index_bytes=len(data), index_xxh3=xxhash.xxh3_128_hexdigest(data))
        return classes

    def _manifest(self) -> Manifest:
        classes = self._number_names()  # changes the entries
        return Manifest(
            shards=tuple(self._entries),
            fields=dict(self._fields),
            classes=classes,
            shuffled=self._shuffled,
            images=self._images,
            source={"kind": SOURCE_KIND, "pattern": Path(self.pattern).name},
            field_classes=self._field_classes,
        )

    def _fail(self, error: BaseException, why: str) -> NoReturn:
        """Stop writing and raise the error; for an error of the disk, with the number of shards that are kept."""
        self._abort(why)
        if isinstance(error, OSError) and not isinstance(error, WdsToolsError):
            raise DestinationError(
                f"cannot write {self.pattern}: {error.strerror or error}; {self._kept_shards()}"
            ) from error
        raise error

    def _kept_shards(self) -> str:
        return (
            f"{len(self._entries)} finished shards are kept, without a manifest: run again with fresh=True to start "
            "over, or turn them into a dataset with `wds-tools index`"
        )


def _refuse_unsupported(**given: object) -> None:
    """Raise an error for options of webdataset that this writer does not support, instead of ignoring them."""
    wrong = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if wrong:
        raise OptionError(
            f"{', '.join(wrong)} is not supported: a shard is an uncompressed tar file with constant headers, "
            "renamed when complete; omit it (the docstring of ShardWriter has the reasons)"
        )


def _with_label(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sample whose ``cls`` is text: 3.0 is 3, True is "true"; without ``cls`` if that is not a label (NaN)."""
    value = values["cls"]
    if items_of(value, None) is not None:
        raise SampleError(
            f"cls is the list {str(value)[:40]}; allowed is one label: several labels of a sample are the field "
            f"{LABELS!r}"
        )
    try:
        label = parse(value)
    except LabelError as error:
        raise SampleError(f"cls: {error}; allowed are whole numbers and names") from error
    others = {name: item for name, item in values.items() if name != "cls"}
    return others if label == NONE else {**others, "cls": label.name or str(label.number)}


def _check_pattern(pattern: str, number: int) -> str:
    try:
        first, second = pattern % number, pattern % (number + 1)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"pattern {pattern!r} has no valid placeholder for a number ({error}); expected one, as in 'out-%06d.tar'"
        ) from error
    if remedy := broken_url_remedy(pattern):
        raise OptionError(remedy)
    if is_url(pattern) or pattern.startswith("pipe:"):
        raise OptionError(f"pattern {pattern!r} is not a local path; write to a local folder, then copy the folder")
    if first == second or not pattern.endswith(".tar") or Path(first).parent != Path(second).parent:
        raise OptionError(
            f"pattern {pattern!r}; expected a file name with one number that ends in .tar, as in 'out-%06d.tar'"
        )
    name = Path(first).name
    entry = shard_entry(name, b"", samples=0, shard_bytes=0, shard_xxh3="0" * 32)
    manifests.to_json(Manifest((entry,), {}))  # raises now the errors that it would raise at the end
    return pattern


def _image_info(sample: Sample) -> ImageInfo | None:
    """Return type and size of a sample's image from its header, for the index."""
    name = next((name for name in IMAGE_FIELDS if name in sample.fields), None)
    if name is None:
        return None
    try:
        return image_header.probe(sample.fields[name])
    except DecodeError as error:
        if name == "npy":  # an array need not be an image
            return None
        raise DecodeError(f"field {name!r} {error.args[0]}; fix the sample, or leave it out", key=sample.key) from error
