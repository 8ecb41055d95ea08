"""WebDataset shards as a source: packed again, they get another order and size, an index and a manifest.

Samples keep their fields byte for byte and get new keys. Their ``json`` field keeps its entries and
gets ``path`` (shard and old key), ``class`` and ``key`` (the old key) where it lacks them.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import ManifestError, ShardError, SourceError
from wds_tools.format import image_header, tar
from wds_tools.format.dots import Dots, split_at_last_dot
from wds_tools.format.image_signature import COLUMNS as SIGNATURE_COLUMNS
from wds_tools.format.image_signature import Signature, Signatures, has_signatures
from wds_tools.format.index import ABSENT, NO_LABEL, from_bytes
from wds_tools.format.index_edit import read_columns
from wds_tools.format.label import quoted
from wds_tools.format.label_lists import LABELS
from wds_tools.format.label_source import INDEX, NAMED, LabelSource, NamesOfNumbers
from wds_tools.format.manifest import MANIFEST_NAME, Manifest
from wds_tools.format.sample import IMAGE_FIELDS, split_name
from wds_tools.options import RemoteOptions
from wds_tools.sources.base import (
    Collector,
    Record,
    Source,
    SourceChangedError,
    SourceOptions,
    as_read_error,
    as_source_error,
)
from wds_tools.sources.columns import (
    IMAGE,
    LABEL,
    LABEL_WORD,
    facts_bytes,
    json_object,
    usual_columns,
    usual_names,
)
from wds_tools.sources.file_names import shown_path
from wds_tools.sources.files import TarFiles, content_of, is_tar, locate, stamp_of, states_of
from wds_tools.sources.inputs import Input
from wds_tools.sources.label_choice import hint, names_by_number
from wds_tools.sources.layouts import are_shard_folders
from wds_tools.sources.packed_shards import (
    AddedFields,
    IndexedSample,
    Indexes,
    folder_of,
    manifest_of_shards,
    read_manifest,
)
from wds_tools.storage import Store, is_url, open_store
from wds_tools.storage.patterns import has_pattern
from wds_tools.wording import counted

_PARSED = 20  # samples whose JSON is looked at for a label
_UNREAD = ("pyd", "pickle", "pkl", "mp", "msg", "msgpack", "cbor")  # types of fields that may have any values
_MAX_WORDS = 1000  # different texts of a field, if it could be the label
_MAX_WORD = 64  # bytes of a text that are looked at
_CANDIDATES = 3  # places of a label that a note names
_CARD_NAME = "README.md"  # of a dataset
_NOT_A_FIELD = "its name has no key or no extension"
_Location = tuple[int, int, int]  # index of the shard, first byte, end
_Fields = dict[str, memoryview]


class _Listed(NamedTuple):
    """A sample of a shard that was listed.

    Attributes:
        key: Its key.
        location: Where it is.
        sizes: Length of each field in bytes.
        facts: The entries of its field ``json``; None if that is not an object, or was not read.
        json_bytes: What its facts add to the field ``json`` of a new shard; None if it is packed as it is.
        label: Its label.
        content: Its fields, if they were read.
    """

    key: str
    location: _Location
    sizes: dict[str, int]
    facts: dict[str, Any] | None
    json_bytes: int | None
    label: Any
    content: Mapping[str, memoryview] = MappingProxyType({})


_IMAGES = tuple(name for name in IMAGE_FIELDS if name != "npy")
_PHOTOGRAPHS = ("jpg", "jpeg", "webp", "avif")
Split = Callable[[str], tuple[str, str] | None]
"""Splits the name of a member into key and field; None if it is not a field of a sample."""


class WebDatasetSource(Source):
    """Tar shards of samples, plain or compressed: a shard, a pattern, or a folder; of a manifest, its shards.

    The image is the field of `image_field`; ``columns`` may name another field. The label may be a field, an entry of a
    JSON field as ``json:label``, or ``folder``, see `LabelSource`. By default, labels come from the index if the
    manifest states where they come from, otherwise from the field ``cls``.
    """

    kind = "webdataset"
    unit = "sample"
    split = staticmethod(split_name)

    def __init__(self, src: str | Path, options: SourceOptions | None = None) -> None:
        super().__init__(shown_path(str(src)), options)
        self.path = str(src)
        self.remote = self.options.remote if is_url(self.path) else None
        self.folder = self.path
        manifest = self._manifest()
        self.label = LabelSource.given(self.columns.get(LABEL, "cls"))
        self.paths = locate(
            src, is_tar, "tar", self.remote, [shard.name for shard in manifest.shards] if manifest else None
        )
        self._is_shuffled = manifest.shuffled if manifest else False  # some shards of a dataset are not a random part
        is_usual = not self.columns.keys() & {IMAGE, LABEL} and self.kind == WebDatasetSource.kind
        self._indexes = Indexes.of(self._open(self.path), manifest) if manifest is not None and is_usual else None
        self.is_packed = self._indexes is not None
        self._facts: list[dict[str, Any] | None] = []  # of the first samples, if they are listed from an index
        if manifest is None and (listing := manifest_of_shards(self.name, self.paths, self.remote)) is not None:
            self.folder, manifest = listing
        self.indexed = manifest is not None
        self._fingerprint = manifest.fingerprint if manifest is not None else ""
        self.additions = manifest.additions if manifest is not None else ()
        self.entries = (
            {shard.name: shard for shard in manifest.shards}
            if manifest and len({*map(folder_of, self.paths)}) == 1
            else {}
        )
        self.first_names = {shard.name: shard.first.name for shard in manifest.shards} if manifest else {}
        self._dataset_files = {addition.folder for addition in self.additions}
        if manifest is not None:
            self._dataset_files |= {MANIFEST_NAME, _CARD_NAME, *(shard.index for shard in manifest.shards)}
        self._stated = (
            manifest if manifest is not None and manifest.label is not None and LABEL not in self.columns else None
        )
        # After a merge, the shards have other class numbers than the manifest names.
        named = LabelSource() if manifest is None else _label_of(manifest)
        has_other_label = LABEL in self.columns and named != self.label and (named is None or self.label != NAMED)
        self.has_new_class = self._stated is not None or self.label != LabelSource()
        self._class_names = manifest.classes if manifest and not has_other_label else None
        lists = manifest.field_classes if manifest else {}
        self.replaced = (LABELS,) if LABELS in lists and LABEL in self.columns and self.label.field != LABELS else ()
        self._field_classes = {path: names for path, names in lists.items() if path not in self.replaced}
        self._earlier = manifest.account if manifest else None

    def collect(self, collector: Collector) -> None:
        """Add the samples of all shards, with their labels."""
        states = states_of((*self.paths, *(self._added.paths if self._added else ())))
        inputs: list[Input] = []
        labels: list[Any] = []
        dots, seen, names = Dots(), _Seen(), NamesOfNumbers()
        for shard_index, path in enumerate(self.paths):
            added = self._added.spans(self.first_names[path.name]) if self._added else []
            with as_source_error(f"{path} cannot be packed", ShardError):
                listed = self._samples(shard_index, seen.non_fields)
                for key, location, fields, facts, json_bytes, label, content in listed:
                    collector.account.given += 1
                    dots.add(key, fields)
                    name, image = f"{path.name}/{key}", self._image_field(fields)
                    if image is None:
                        missing = f"field {self.columns[IMAGE]!r}" if IMAGE in self.columns else "image"
                        remedy = "" if IMAGE in self.columns else _image_remedy(fields, content)
                        collector.skip(name, f"has no {missing} among its fields {quoted(fields)}{remedy}")
                        seen.add_skipped(fields)
                        continue
                    seen.add(key, name, fields, image, facts, content)
                    group, extra = self._mapped.group(*location[:2]), _extra_bytes(fields, image, json_bytes)
                    spans = [part.get(key, ((0, 0), 0)) for part in added]
                    where = (*location, *(end for span, _ in spans for end in span))
                    extra += sum(size for _, size in spans)
                    inputs.append(Input(name, fields[image], None, where, group, extra))
                    labels.append(label)
                    names.add(name, label, content.get("json", b""))
        if dots.belong_to_keys and not self.indexed:  # `wds-tools index` has already checked an indexed dataset
            raise SourceError(f"{self.name} cannot be packed: {dots}. {_DOTS_REMEDY}")
        if IMAGE not in self.columns:
            collector.account.notes += seen.notes_on_images()
        self._check_labels(labels, names, seen)
        if LABEL not in self.columns and self._stated is None and all(label is None for label in labels):
            collector.account.notes += seen.notes_on_labels(len(inputs))
        for entry, label in zip(inputs, self.label.resolved(labels), strict=True):
            collector.add(entry, label)
        seen.collect(collector, self.label, self.replaced, is_indexed=self._stated is not None)
        for name in (name for addition in self.additions for name in addition.fields):
            collector.account.use("field", name, f"field {name}")
        has_names = LABEL not in self.columns and self._stated is None and not self._class_names
        collector.classes = (names_by_number(names.by_number) if has_names else self._class_names) or ()
        collector.earlier = self._earlier
        collector.field_classes |= self._field_classes
        collector.files = states
        collector.stamp = stamp_of(self.paths)
        collector.shuffled = self._is_shuffled

    def _samples(self, shard_index: int, non_fields: dict[str, str]) -> Iterator[_Listed]:
        """Yield the samples of a shard: from its index if it has one, otherwise by reading the shard."""
        listed = self._indexes.samples(self.paths[shard_index]) if self._indexes else None
        if listed is not None and (shard_index or self._check(listed[:_PARSED])):
            for row, indexed in enumerate(listed):
                facts = self._facts[row] if not shard_index and row < _PARSED else None
                location = (shard_index, indexed.start, indexed.stop)
                yield _Listed(indexed.key, location, indexed.sizes, facts, indexed.json_bytes, indexed.label)
            return
        path, labels = self.paths[shard_index], self._indexed_labels(shard_index)
        data = self._mapped[shard_index]
        for key, location, fields in samples(data, shard_index, path.name, split=self.split, non_fields=non_fields):
            facts = json_object(fields.get("json", b"{}"))
            size = None if facts is None else facts_bytes({"key": key, **facts})
            label = self._label(key, fields, f"{path.name}/{key}") if labels is None else labels.get(key)
            yield _Listed(key, location, {name: len(data) for name, data in fields.items()}, facts, size, label, fields)

    def _check(self, listed: Sequence[IndexedSample]) -> bool:
        """Return whether the first samples of the first shard are as its index describes them, and keep their facts."""
        self._facts = []
        for indexed in listed:
            data = self._mapped.slice(0, indexed.start, indexed.stop)
            described = (indexed.key, list(indexed.sizes.items()), indexed.json_bytes)
            with contextlib.suppress(ShardError):
                for key, _, fields in samples(data, 0, self.paths[0].name, part=True):
                    facts = json_object(fields.get("json", b"{}"))
                    sizes = {name: len(field) for name, field in fields.items()}
                    size = None if facts is None else facts_bytes({"key": key, **facts})
                    if (key, list(sizes.items()), size) == described:
                        self._facts.append(facts)
        if len(self._facts) != len(listed):
            self._indexes = None
        return self._indexes is not None

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Do nothing: shards and manifest were found when the source was opened."""

    def checksum(self, is_stopped: Callable[[], bool] | None) -> str:  # noqa: ARG002 - no shard is read
        added = self._added.paths if self._added else ()
        return f"{self._fingerprint} {content_of((*self.paths, *added), states_of((*self.paths, *added)))}"

    def _check_labels(self, labels: Iterable[Any], names: NamesOfNumbers, seen: _Seen) -> None:
        """Check that there are labels if the user chose them, and that class numbers agree with class names."""
        if self.columns.get(LABEL) and all(label is None for label in labels):
            raise SourceError(
                f"{self.name}: no sample has the label {str(self.label)!r}: choose another label, such as "
                f"--label cls, json:label or folder; samples have {quoted([*seen.roles, *seen.entries])}"
            )
        if names.contradiction and LABEL not in self.columns and not self.indexed:
            raise SourceError(f"{self.name}: {names.remedy}")

    def why_left_out(self, path: str) -> str | None:
        return None if path.partition("/")[0] in self._dataset_files else super().why_left_out(path)

    def read(self, entry: Input) -> Record:
        """Read a sample."""
        shard_index, start, stop, *ends = entry.location
        path = self.paths[shard_index]
        part = self._mapped.slice(shard_index, start, stop)
        try:
            with as_read_error("cannot be read", ShardError):
                read_samples = list(samples(part, shard_index, path.name, split=self.split, part=True))
        except SourceError as error:
            if not self.is_packed:
                raise
            raise SourceChangedError(
                f"{path} is damaged, or changed while it was packed ({error}): check it with `wds-tools verify`"
            ) from error
        if len(read_samples) != 1:
            raise SourceChangedError(f"{path} changed while it was packed")
        key, _, fields = read_samples[0]
        image = self._image_field(fields)
        if image is None or (self.is_packed and len(fields[image]) != entry.size):
            raise SourceChangedError(
                f"{path} changed while it was packed: sample {key!r} has no image as it was listed"
            )
        replaced = (image, "cls", "json", *([LABELS] if entry.labels is not None else self.replaced))
        kept = {name: bytes(data) for name, data in fields.items() if name not in replaced}
        kind = image_header.sniff(fields[image])
        for name in IMAGE_FIELDS[: IMAGE_FIELDS.index(kind) + 1] if kind else ():  # loaders would take it as the image
            if name in kept:
                if f"other.{name}" in kept:
                    raise SourceError(f"has fields {name!r} and 'other.{name}' next to its image: rename one of them")
                kept[f"other.{name}"] = kept.pop(name)
        if self._added:
            kept |= self._added.fields(
                self.first_names[self.paths[shard_index].name], list(zip(ends[::2], ends[1::2], strict=True))
            )
        facts = json_object(fields.get("json", b"{}"))
        # The index has the signature of the first of these fields.
        is_signed = image == next((name for name in IMAGE_FIELDS if name in fields), None)
        signature = self._signature(shard_index, start, stop) if is_signed else None
        if facts is None:
            kept["json"] = bytes(fields["json"])
            return Record(bytes(fields[image]), kept, signature=signature)
        return Record(bytes(fields[image]), kept, self._new_facts(entry, key, facts), signature=signature)

    def _new_facts(self, entry: Input, key: str, facts: dict[str, Any]) -> dict[str, Any]:
        """Return the entries of the new field ``json``, without the class name of another label."""
        is_labelled = entry.label is not None or entry.labels is not None
        kept = {name: value for name, value in facts.items() if (name,) != NAMED.path or not self.has_new_class}
        return {**(kept if is_labelled else facts), "key": facts.get("key", key)}

    def _signature(self, shard_index: int, start: int, stop: int) -> Signature | None:
        """Return the signature that the index of a shard has for the image of the sample at these bytes."""
        if shard_index not in self._signed:
            self._signed[shard_index] = self._read_signatures(self.paths[shard_index].name)
        signed = self._signed[shard_index]
        if signed is None:
            return None
        starts, signatures = signed
        row = int(np.searchsorted(starts, start))
        return signatures.row(row) if row < len(starts) and starts[row] < stop else None

    def _read_signatures(self, shard: str) -> tuple[NDArray[np.int64], Signatures] | None:
        """Return the first byte of a field of each sample of a shard, and the signatures; None without any."""
        entry = self.entries.get(shard)
        if entry is None:
            return None
        try:
            data = self._open(self.folder).read(entry.index)
            index = from_bytes(data, name=entry.index, samples=entry.samples)
            if not has_signatures(index.columns) or index.shard_xxh3 != entry.xxh3:
                return None
            signatures = Signatures.of(read_columns(data, SIGNATURE_COLUMNS, name=entry.index))
        except (FileNotFoundError, ManifestError, ValueError):  # packing needs no index
            return None
        offsets = [np.where(part.offset == ABSENT, entry.bytes, part.offset) for part in index.fields.values()]
        return np.min(offsets, axis=0), signatures

    def _image_field(self, fields: Mapping[str, Any]) -> str | None:
        """Return the field with the image of a sample: the chosen one, or by the rule of `image_field`; or None."""
        chosen = self.columns.get(IMAGE)
        return image_field(fields) if chosen is None else chosen if chosen in fields else None

    def _label(self, key: str, fields: _Fields, name: str) -> Any:
        try:
            return self.label.value(key, fields.get(self.label.field or ""))
        except ValueError as error:
            raise SourceError(f"{name}: {error}; choose another label, or fix the sample") from error

    def _indexed_labels(self, shard_index: int) -> dict[str, int] | None:
        """Return the labels of a shard by key, if the manifest states that they are in its index."""
        if self._stated is None:
            return None
        entry = next(shard for shard in self._stated.shards if shard.name == self.paths[shard_index].name)
        with as_source_error(f"the index {entry.index} cannot be read", ManifestError):
            data = self._open(self.folder).read(entry.index)
            index = from_bytes(data, name=entry.index, samples=entry.samples)
        labelled = np.flatnonzero(index.label != NO_LABEL).tolist()
        return {index.keys[row]: int(index.label[row]) for row in labelled}

    @cached_property
    def _added(self) -> AddedFields | None:
        """The fields that were added to the dataset later, if there are any."""
        return AddedFields(self.folder, self.additions, self.remote) if self.additions else None

    @cached_property
    def _signed(self) -> dict[int, tuple[NDArray[np.int64], Signatures] | None]:
        """The signatures of the shards that this process has read, by their index."""
        return {}

    @cached_property
    def _mapped(self) -> TarFiles:
        return TarFiles(self.paths, self.remote)

    def _manifest(self) -> Manifest | None:
        """Return the manifest of a folder; None without one."""
        return None if has_pattern(self.path) or is_tar(self.path) else read_manifest(self.path, self.remote)

    def _open(self, folder: str) -> Store:
        return open_store(folder, remote=self.remote or RemoteOptions.of())


_DOTS_REMEDY = (
    "If keys have dots, pack with --from dotted (kind='dotted'), which splits at the last dot; if each file is an "
    "image without other fields, with --from tar; if the dots belong to fields, run "
    "`wds-tools index --dots-in-fields` first"
)


class DottedSource(WebDatasetSource):
    """Tar shards whose keys have dots: names are split at the last dot, not the first as in WebDataset."""

    kind = "dotted"
    split = staticmethod(split_at_last_dot)


def _label_of(manifest: Manifest) -> LabelSource | None:
    """Return where the labels are that a manifest names; None if they are only in the index."""
    return None if manifest.label == INDEX else LabelSource.parse(manifest.label or "cls")


def _image_remedy(fields: Iterable[str], content: Mapping[str, memoryview]) -> str:
    """Return which field the user could choose as the image; empty if none looks like one."""
    are_images = ((name, image_header.sniff(content.get(name, b"")) in _IMAGES) for name in fields)
    field = next((name for name, is_image in are_images if is_image or name.rpartition(".")[2] in _IMAGES), None)
    return f": pass --column image={field} if it is the image" if field else ""


class _Seen:
    """What the samples of shards have: fields, other members, and what could be their label.

    Attributes:
        non_fields: Members that are not fields -> why not.
        roles: Field -> what it is in the samples; entries: ``json:NAME`` -> values in the first samples.
    """

    def __init__(self) -> None:
        self.non_fields: dict[str, str] = {}
        self._invalid: list[str] = []  # samples whose field ``json`` is not JSON
        self.roles: dict[str, set[str]] = {}
        self._several = Counter[tuple[str, tuple[str, ...]]]()  # field of the image, other images
        self._places: dict[str, None] = {}
        self.entries: dict[str, list[Any]] = {}
        self._words: dict[str, Counter[str]] = {}  # texts of one word of other fields, and how often they occur
        self._folders: set[str] = set()
        self._parsed = 0

    def add_skipped(self, fields: Iterable[str]) -> None:
        """Add a sample without an image."""
        for name in fields:
            self.roles.setdefault(name, set())

    def add(
        self,
        key: str,
        sample: str,
        fields: Iterable[str],
        image: str,
        facts: dict[str, Any] | None,
        content: Mapping[str, memoryview],
    ) -> None:
        """Add a sample.

        ``facts`` are the entries of its field ``json``; None if that is not an object, or was not read. ``content`` has
        the fields if they were read.
        """
        for name in fields:
            role = "image" if name == image else "entries of json" if name == "json" else f"field {name}"
            self.roles.setdefault(name, set()).add(role)
        if facts and facts.keys() == {"json"} and facts["json"] == str(content.get("json", b""), "utf-8", "replace"):
            self._invalid.append(sample)
        self._several[image, tuple(name for name in _IMAGES if name in fields and name != image)] += 1
        self._folders.add(key.rpartition("/")[0])
        for name, text in content.items():
            words = self._words.setdefault(name, Counter())
            if len(words) <= _MAX_WORDS and LABEL_WORD.fullmatch(word := bytes(text[:_MAX_WORD]).strip()):
                words[word.decode()] += 1
        usual = usual_names(LABEL)
        self._places |= dict.fromkeys(name for name in fields if not usual.isdisjoint(name.lower().split(".")))
        if "json" in fields and self._parsed < _PARSED:
            self._parsed += 1
            self._places |= dict.fromkeys(f"json:{name}" for name in usual_columns(LABEL, facts or {}))
            for name, value in (facts or {}).items():
                self.entries.setdefault(f"json:{name}", []).append(value)
                for entry, nested in value.items() if isinstance(value, dict) else ():
                    self.entries.setdefault(f"json:{name}.{entry}", []).append(nested)

    def notes_on_labels(self, samples: int) -> list[str]:
        """Return how to name the labels of samples that have no field ``cls``; nothing if they have several labels."""
        if LABELS in self.roles:
            return []
        folders = sorted(filter(None, self._folders))
        if 1 < len(folders) <= samples // 2 and not are_shard_folders(folders):
            self._places["folder"] = None
        if not self._places:
            few = {name: words for name, words in self._words.items() if len(words) <= _MAX_WORDS}
            texts = {name: [word for word in words for _ in range(min(words[word], 9))] for name, words in few.items()}
            unread = [name for name in self.roles if name.rpartition(".")[2] in _UNREAD]
            note = f"no label: fields that are not read may have it ({quoted(unread)}): write it as a field cls"
            return hint({**texts, **self.entries}, "field") or [note] * bool(unread)
        shown = ", ".join(f"--label {place}" for place in list(self._places)[:_CANDIDATES])
        return [f"samples have no field cls, so they are packed without labels; {shown} could be the label"]

    def notes_on_images(self) -> list[str]:
        """Return notes about samples with several images."""
        return [
            f"{counted(count, 'sample')} with several images: {image!r} is packed as the image, and {quoted(further)} "
            f"as further fields; if another is the image, pack with --column image={further[0]} "
            f"(columns={{'image': {further[0]!r}}})"
            for (image, further), count in self._several.items()
            if further
        ]

    def collect(self, collector: Collector, label: LabelSource, replaced: Sequence[str], *, is_indexed: bool) -> None:
        """State what becomes of each field and of the other members; ``label`` replaces some fields."""
        account = collector.account
        account.declare("field", self.roles)
        for name, roles in self.roles.items():
            if not roles:
                account.leave_out("field", name, "only samples without an image have it")
            elif name in replaced or (name == "cls" and (label.field != "cls" or is_indexed)):
                account.leave_out("field", name, f"labels are {'in the index' if is_indexed else label}")
            else:
                chosen = {"label"} if name == label.field and not is_indexed else set()
                for role in sorted(chosen | (roles if name != "cls" else set())):
                    account.use("field", name, role)
        if is_indexed:
            account.use("column", "label", "label")
        for name, reason in self.non_fields.items():
            account.leave_out("member", name, reason)
        if self._invalid:
            account.notes.append(
                f"{counted(len(self._invalid), 'sample')} with a field json that is not valid JSON, such as "
                f"{self._invalid[0]!r}: its text is the entry 'json'"
            )


def samples(
    data: tar.Bytes,
    shard_index: int,
    shard: str,
    *,
    split: Split = split_name,
    part: bool = False,
    non_fields: dict[str, str] | None = None,
) -> Iterator[tuple[str, _Location, _Fields]]:
    """Yield (key, location, fields) of each sample of a shard, or of a part of one.

    Args:
        data: The shard, or the part.
        shard_index: Position of the shard in the source.
        shard: Its name.
        split: Splits names into key and field.
        part: Whether ``data`` may end between members.
        non_fields: Gets the names of members that are not fields, and why they are not.

    Raises:
        ShardError: The shard is damaged, or a sample has a field twice, or its fields are in several places.
    """
    key, start, stop = None, 0, 0
    fields: _Fields = {}
    earlier: dict[str, frozenset[str]] = {}  # key -> fields
    sets: dict[frozenset[str], frozenset[str]] = {}  # each set of fields is kept once

    def sample(key: str) -> tuple[str, _Location, _Fields]:
        names = frozenset(fields)
        if key in earlier and not names & earlier[key]:  # with a common field it is another sample with the same key
            raise ShardError(
                f"its fields {quoted(sorted(earlier[key]))} and {quoted(sorted(names))} have other samples "
                "in between: sort the members by name",
                shard=shard,
                key=key,
                offset=start,
            )
        earlier[key] = sets.setdefault(names, names)
        return key, (shard_index, start, stop), fields

    for member in tar.walk(data, shard=shard, complete=part):
        parts = split(member.name) if member.is_file else None
        if parts is None:
            if non_fields is not None and not member.name.endswith("/"):
                non_fields[f"{shard}/{member.name}"] = _NOT_A_FIELD if member.is_file else "is a link or a device"
            continue
        if parts[0] != key:
            if key is not None:
                yield sample(key)
            key, start, fields = parts[0], member.header_offset, {}
        if parts[1] in fields:
            raise ShardError(f"field {parts[1]!r} occurs twice", shard=shard, key=key, offset=member.header_offset)
        fields[parts[1]] = data[member.offset : member.offset + member.size]
        stop = member.offset + tar.padded(member.size)
    if key is not None:
        yield sample(key)


def image_field(fields: Mapping[str, Any]) -> str | None:
    """Return the name of the field with the image of a sample; None without an image.

    Fields for photographs come first: a PNG next to a JPEG is usually its mask.

    >>> image_field({"png": b"", "jpeg": b""}), image_field({"mask.png": b"", "webp": b""}), image_field({"txt": b""})
    ('jpeg', 'webp', None)
    """
    return next((name for name in (*_PHOTOGRAPHS, *IMAGE_FIELDS) if name in fields), None)


def _extra_bytes(sizes: Mapping[str, int], image: str, json_bytes: int | None) -> int:
    """Return the bytes in a shard of all fields but image and label.

    Args:
        sizes: Length of each field in bytes.
        image: Name of the field with the image.
        json_bytes: What its facts add to the field ``json``; None if it is packed as it is.
    """
    excluded = (image, "cls") if json_bytes is None else (image, "cls", "json")
    kept_sizes = {name: size for name, size in sizes.items() if name not in excluded}
    return sum(tar.member_bytes(f"000000000.{name}", size) for name, size in kept_sizes.items()) + (json_bytes or 0)
