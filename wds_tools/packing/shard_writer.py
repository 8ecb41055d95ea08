"""`ShardWriter`: samples written in a loop become a dataset; called as webdataset's, with our guarantees."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from wds_tools.errors import DecodeError, DestinationError, OptionError, SampleError, WdsToolsError
from wds_tools.format import codecs
from wds_tools.format import manifest as manifests
from wds_tools.format.codecs import ImageInfo
from wds_tools.format.index import shard_entry
from wds_tools.format.manifest import MANIFEST_NAME, ImageStats, Manifest, ShardEntry
from wds_tools.format.sample import IMAGE_FIELDS, Sample
from wds_tools.format.tar import END, padded
from wds_tools.format.totals import count_fields, image_stats, merge_stats
from wds_tools.options import parse_bytes
from wds_tools.packing.encode import encode_field
from wds_tools.packing.shard_file import ShardFile, member_headers
from wds_tools.packing.writer_lock import SOURCE_KIND, Claim
from wds_tools.storage import is_url

_log = logging.getLogger("wds_tools")

Encoder = bool | None | Mapping[str, Callable[[Any], bytes]] | Callable[[dict[str, Any]], Mapping[str, Any]]


class ShardWriter:
    """Write samples one by one; they become shards of limited size, each with its index, and a manifest.

    A drop-in for ``webdataset.ShardWriter``. Each shard appears whole with its index, or not at all. The manifest, and
    so the dataset, appears when the ``with`` block ends without an error, or at `close`. After an error the finished
    shards stay, without a manifest; the next writer of this pattern refuses to begin unless it is told
    ``fresh=True``. A key may come once in a shard; over all shards that is not checked, for want of memory.

    >>> import tempfile, wds_tools as wt
    >>> folder = tempfile.mkdtemp()
    >>> with wt.ShardWriter(f"{folder}/train-%06d.tar", maxcount=1000) as writer:
    ...     for number in range(3):
    ...         writer.write({"__key__": f"{number:06}", "txt": "hello", "cls": number})
    >>> writer.manifest.samples, writer.manifest.fields
    (3, {'cls': 3, 'txt': 3})

    Args:
        pattern: Path of the shards with one number in it, such as ``out/train-%06d.tar``; the folder is made.
        maxcount: Most samples of a shard.
        maxsize: Largest shard in bytes, or as "1GB", headers and padding counted; exceeded only by a sample that is
            larger alone.
        post: Called with the path of each shard when it and its index are there.
        start_shard: Number of the first shard. The manifest lists what this writer wrote, nothing before it.
        verbose: Log the name of each shard that is begun, at level INFO.
        opener: Refused: a shard is renamed into place when it is whole, which no opened stream can.
        encoder: How values become bytes. True goes by the field's extension, see
            `wds_tools.packing.encode.encode_field`; a mapping of extensions to functions takes its place; a function
            gets the whole sample and returns it encoded; False or None take samples whose values are bytes.
        user: Refused, as are ``group`` and ``mode``: headers are constant, so that equal samples give equal bytes.
        group: Refused.
        mode: Refused.
        compress: Refused unless False: a reader jumps to a sample, which compressed archives do not allow.
        keep_meta: Refused unless False: fields that begin with ``_`` are left out.
        mtime: Only 0, which it always is.
        format: Refused: members are ustar, with pax headers where they are needed.
        manifest: File name of the manifest, ``manifest.json`` if it is not given; several writers into one folder
            need one each.
        classes: Class names by number, for the manifest; every ``cls`` must then be the number of one.
        shuffled: The samples come in random order, so that the loader needs no large window to mix them.
        fresh: Remove what an earlier writer left under this manifest's name, finished or not, and start over.

    Attributes:
        manifest: Of the dataset; None until `close` has written it.
        total: Number of samples so far.

    Raises:
        OptionError: An argument that cannot be.
        DestinationError: The folder holds a dataset or an unfinished one, another writer works on it, or it cannot be
            written to.
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
        format: None = None,  # noqa: A002 - webdataset's word
        manifest: str | None = None,
        classes: Sequence[str] = (),
        shuffled: bool = False,
        fresh: bool = False,
    ) -> None:
        _refuse(opener=opener, user=user, group=group, mode=mode, compress=compress or None, format=format)
        _refuse(keep_meta=keep_meta or None, mtime=mtime or None)
        if maxcount < 1 or start_shard < 0:
            raise OptionError(f"maxcount={maxcount}, start_shard={start_shard}; allowed are 1 and more, 0 and more")
        self.pattern = _check_pattern(os.fspath(pattern), start_shard)
        self.maxcount = maxcount
        self.maxsize = parse_bytes(maxsize, what="maxsize")
        self.total = 0
        self.manifest: Manifest | None = None
        self._post, self._verbose, self._encoder = post, verbose, encoder
        self._classes, self._shuffled = tuple(classes), shuffled
        self._number = start_shard
        self._shard: ShardFile | None = None
        self._entries: list[ShardEntry] = []
        self._fields: Counter[str] = Counter()
        self._images: ImageStats | None = None
        self._end: str | None = None  # why nothing more can be written
        self._claim = Claim(self._path.parent, _check_manifest_name(manifest))
        self._claim.take(self._path, fresh=fresh)

    @property
    def _path(self) -> Path:
        """Path of the shard that is begun next."""
        return Path(self.pattern % self._number)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Append a sample.

        Args:
            sample: ``__key__`` (text), and values by field. Fields are written in sorted order; those that begin with
                ``_`` are left out.

        Raises:
            SampleError: A sample that cannot be stored. Nothing of it was written, and writing can go on.
            DestinationError: The disk is full, or the shard's name is taken. Nothing more can be written.
        """
        if self._end:
            raise DestinationError(f"{self.pattern} takes no more samples: {self._end}")
        made = self._encode(sample)
        size = sum(map(len, member_headers(made))) + sum(padded(len(data)) for data in made.fields.values())
        label, image = self._label(made), _image(made)
        try:
            self._shard_for(size).write(made, label=label, image=image)
        except SampleError:
            raise
        except BaseException as error:
            self._fail(error, f"it failed before ({error})")
        self.total += 1

    def close(self) -> None:
        """Finish the last shard and write the manifest, when all samples are written. A second call does nothing.

        Raises:
            SampleError: No sample was written: there is no dataset.
            DestinationError: The disk is full, or writing failed before: there is no manifest, finished shards stay.
        """
        if self.manifest is not None:
            return
        if self._end:
            raise DestinationError(f"{self.pattern} was not completed: {self._end}; {self._kept()}")
        try:
            self._finish()
            if not self._entries:
                raise SampleError(f"no sample was written to {self.pattern}, so there is no dataset")
            made = self._manifest()
            self._claim.complete(made)
        except BaseException as error:
            self._fail(error, f"closing it failed ({error})")
        self.manifest = made
        self._end = "it was closed"

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif self.manifest is None and self._end is None:
            self._abort("an exception ended it")

    def _shard_for(self, size: int) -> ShardFile:
        """Return the shard that a sample of ``size`` bytes goes to."""
        shard = self._shard
        if shard is not None and (shard.samples >= self.maxcount or shard.bytes + size + len(END) > self.maxsize):
            self._finish()
        if self._shard is None:
            self._claim.begin(self._path)
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
            return  # it has no samples, because the only one was refused
        self._entries.append(shard.entry)
        self._fields.update(count_fields(shard.index))
        self._images = merge_stats([self._images, image_stats(shard.index)])
        if self._post is not None:
            self._post(str(shard.path))

    def _abort(self, why: str) -> None:
        """Drop the shard that is being written, and let the folder go."""
        self._end = why
        shard, self._shard = self._shard, None
        if shard is not None:
            failure = RuntimeError(why)
            shard.__exit__(RuntimeError, failure, None)
        self._claim.release()

    def _encode(self, sample: Mapping[str, Any]) -> Sample:
        values: Mapping[str, Any] = sample
        if callable(self._encoder):
            values = self._encoder(dict(sample))
        key = values.get("__key__")
        if not isinstance(key, str):
            raise SampleError(f"a sample has __key__ {key!r}; expected is text, such as '000042'")
        names = sorted(name for name in values if not name.startswith("_"))
        try:
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
            raise SampleError(f"field {name!r} holds {type(value).__name__}, which is not encoded; expected are bytes")
        return bytes(value)

    def _label(self, sample: Sample) -> int | None:
        """Return the class number for the index."""
        label = codecs.parse_label(sample.fields["cls"]) if "cls" in sample.fields else None
        if self._classes and "cls" in sample.fields and (label is None or not 0 <= label < len(self._classes)):
            raise SampleError(
                f"cls is {sample.fields['cls'][:40]!r}; classes= names {len(self._classes)}, "
                f"so allowed are 0 to {len(self._classes) - 1}",
                key=sample.key,
            )
        return label

    def _manifest(self) -> Manifest:
        return Manifest(
            shards=tuple(self._entries),
            fields=dict(self._fields),
            classes=self._classes,
            shuffled=self._shuffled,
            images=self._images,
            source={"kind": SOURCE_KIND, "pattern": Path(self.pattern).name},
        )

    def _fail(self, error: BaseException, why: str) -> NoReturn:
        """End the writing; of a disk that fails, say what is kept."""
        self._abort(why)
        if isinstance(error, OSError) and not isinstance(error, WdsToolsError):
            raise DestinationError(f"cannot write {self.pattern}: {error.strerror or error}; {self._kept()}") from error
        raise error

    def _kept(self) -> str:
        return (
            f"{len(self._entries)} finished shards are kept, without a manifest: run again with fresh=True to start "
            "over, or make a dataset of them with `wds-tools index`"
        )


def _refuse(**given: object) -> None:
    """Refuse what webdataset takes and we cannot honour, rather than ignore it."""
    wrong = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if wrong:
        raise OptionError(
            f"{', '.join(wrong)}: a shard is a plain tar file with constant headers, committed whole; leave it out "
            "(the docstring of ShardWriter says why)"
        )


def _check_pattern(pattern: str, number: int) -> str:
    try:
        one, two = pattern % number, pattern % (number + 1)
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"pattern {pattern!r} takes no number ({error}); expected one, as in 'out-%06d.tar'"
        ) from error
    if is_url(pattern) or pattern.startswith("pipe:"):
        raise OptionError(f"pattern {pattern!r} is no local path; write to a local folder, then copy it as a whole")
    if one == two or not pattern.endswith(".tar") or Path(one).parent != Path(two).parent:
        raise OptionError(f"pattern {pattern!r}; expected is one number in the file's name and .tar, as 'out-%06d.tar'")
    name = Path(one).name
    entry = shard_entry(name, b"", samples=0, shard_bytes=0, shard_xxh3="0" * 32)
    manifests.to_json(Manifest((entry,), {}))  # says now what it would say at the end
    return pattern


def _check_manifest_name(name: str | None) -> str:
    if name is None:
        return MANIFEST_NAME
    if "/" in name or not name.endswith(".json") or name.startswith("."):
        raise OptionError(f"manifest={name!r} is no file name ending in .json; it is written beside the shards")
    return name


def _image(sample: Sample) -> ImageInfo | None:
    """Return what the header of a sample's image says, for the index."""
    name = next((name for name in IMAGE_FIELDS if name in sample.fields), None)
    if name is None:
        return None
    try:
        return codecs.probe(sample.fields[name])
    except DecodeError as error:
        raise DecodeError(
            f"field {name!r} {error.args[0]}; leave the sample out, or mend it", key=sample.key
        ) from error
