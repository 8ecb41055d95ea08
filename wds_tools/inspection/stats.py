"""`describe()`: counts, sizes, classes, image modes and fields, read from the manifest and the indexes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.format.account import MAX_TEXT, Account, shown
from wds_tools.format.field_classes import ClassList, to_raw
from wds_tools.format.index import NO_LABEL, Index
from wds_tools.format.totals import count_fields
from wds_tools.options import RemoteOptions
from wds_tools.reading.opening import open_shards
from wds_tools.terminal import phase_bar
from wds_tools.wording import counted, human_bytes

MAX_CLASSES = 20
"""Limit for the classes that `format_stats` lists. The others are counted."""

MAX_MODES = 20
"""Limit for the image modes that `format_stats` lists."""

MAX_NAME = 30
_BAR_WIDTH = 40
_EIGHTH_BLOCKS = " ▏▎▍▌▋▊▉"


@dataclass(frozen=True, slots=True)
class ClassCount:
    """Samples of one class."""

    label: int
    name: str
    samples: int


@dataclass(frozen=True, slots=True)
class FieldCount:
    """A field: the samples that have it, and its bytes without tar headers and padding."""

    samples: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, median and maximum in pixels, after the EXIF orientation is applied."""

    min: int
    median: float
    max: int


@dataclass(frozen=True, slots=True)
class DatasetStats:
    """Statistics of a dataset.

    Attributes:
        dataset: The argument of `describe`.
        fingerprint: Hash of the content.
        samples: Number of samples.
        shards: Number of shards.
        bytes: Total length of all shards.
        mean_sample_bytes: Bytes of the shards per sample, including tar headers and padding.
        shuffled: Whether the samples were shuffled when packed.
        classes: Classes by number, including those without a sample.
        unlabelled: Samples without a class number.
        images: Samples whose image header could be read.
        width: Widths of the images; None without images.
        height: Heights of the images; None without images.
        turned: Images with an EXIF orientation other than 1.
        crop_ready: Images of which a crop can be decoded without decoding the whole image.
        modes: Pillow's mode -> number of images, most common first.
        fields: Name -> counts of the field.
        account: What the sources had, and how it was packed or why it was left out; None if the manifest has no
            account.
        field_classes: Class lists of numbers that are not the label, by field path.
        notes: Further facts, such as an unfinished append.
    """

    dataset: str
    fingerprint: str
    samples: int
    shards: int
    bytes: int
    mean_sample_bytes: float
    shuffled: bool
    classes: tuple[ClassCount, ...]
    unlabelled: int
    images: int
    width: Spread | None
    height: Spread | None
    turned: int
    crop_ready: int
    modes: dict[str, int]
    fields: dict[str, FieldCount]
    account: Account | None
    field_classes: dict[str, ClassList]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as values for JSON."""
        account = self.account.to_json() if self.account else None
        values = asdict(replace(self, account=None, field_classes={}))
        return {**values, "account": account, "field_classes": to_raw(self.field_classes)}


def describe(
    dataset: str | os.PathLike[str],
    *,
    cache_dir: str | Path | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: bool | None = None,
) -> DatasetStats:
    """Return the statistics of a dataset from its manifest and indexes, without reading its shards.

    Args:
        dataset: Folder or URL with a manifest, the manifest itself, or a brace pattern of indexed
            shards.
        cache_dir: Cache folder for remote data; None takes ``WDS_TOOLS_CACHE_DIR`` or the user's cache.
        storage_options: Options for URLs, by the names of fsspec, such as ``{"anon": True}``. They are not saved.
        progress: Show a progress bar on stderr; None shows it if stderr is a terminal.

    Raises:
        NotADatasetError: The path is not a packed dataset.
        ManifestError: The manifest or an index is invalid.
        ChecksumError: An index does not match its checksum in the manifest.
        StoreError: The storage cannot be read.
    """
    shards = open_shards(dataset, remote=RemoteOptions.of(cache_dir, storage_options=storage_options))
    manifest = shards.manifest
    totals = _Totals()
    for shard in phase_bar("reading indexes", range(len(manifest.shards)), progress=progress):
        totals.add(shards.index(shard, keep=False))
        for added, _ in shards.added(shard):
            totals.add_fields(shards.index(added, keep=False))
    unlabelled = totals.labels.pop(NO_LABEL, 0)
    return DatasetStats(
        dataset=os.fspath(dataset),
        fingerprint=manifest.fingerprint,
        samples=manifest.samples,
        shards=len(manifest.shards),
        bytes=manifest.bytes,
        mean_sample_bytes=manifest.bytes / manifest.samples,
        shuffled=manifest.shuffled,
        classes=_class_counts(totals.labels, manifest.classes),
        unlabelled=unlabelled,
        images=totals.widths.total(),
        width=_spread(totals.widths),
        height=_spread(totals.heights),
        turned=totals.turned,
        crop_ready=totals.crop_ready,
        modes=dict(totals.modes.most_common()),
        fields={name: FieldCount(count, totals.field_bytes[name]) for name, count in totals.field_samples.items()},
        account=manifest.account,
        field_classes=dict(manifest.field_classes),
        notes=list(filter(None, [shards.unfinished_append])),
    )


@dataclass(slots=True)
class _Totals:
    """Sums over the indexes of all shards."""

    labels: Counter[int] = field(default_factory=Counter)
    modes: Counter[str] = field(default_factory=Counter)
    turned: int = 0
    crop_ready: int = 0
    widths: Counter[int] = field(default_factory=Counter)
    heights: Counter[int] = field(default_factory=Counter)
    field_samples: Counter[str] = field(default_factory=Counter)
    field_bytes: Counter[str] = field(default_factory=Counter)

    def add(self, index: Index) -> None:
        has_size = index.width > 0
        self.widths.update(_counts(index.width[has_size]))
        self.heights.update(_counts(index.height[has_size]))
        self.turned += int((index.orientation[has_size] != 1).sum())
        self.crop_ready += int((index.restart > 0).sum())
        self.modes.update(mode for mode in index.mode if mode)
        self.labels.update(_counts(index.label))
        self.add_fields(index)

    def add_fields(self, index: Index) -> None:
        """Add only the fields of an index."""
        self.field_samples.update(count_fields(index))
        self.field_bytes.update({name: int(columns.size.sum()) for name, columns in index.fields.items()})


def _class_counts(labels: Counter[int], names: tuple[str, ...]) -> tuple[ClassCount, ...]:
    numbers = sorted({*labels, *range(len(names))})
    name_of = dict(enumerate(names))
    return tuple(ClassCount(number, name_of.get(number, str(number)), labels[number]) for number in numbers)


def _counts(values: NDArray[Any]) -> dict[int, int]:
    different, counts = np.unique(values, return_counts=True)
    return dict(zip(different.tolist(), counts.tolist(), strict=True))


def _spread(counts: Counter[int]) -> Spread | None:
    if not counts:
        return None
    values = sorted(counts)
    ends = np.cumsum([counts[value] for value in values])
    middle = [(int(ends[-1]) - 1) // 2, int(ends[-1]) // 2]
    lower, upper = (values[index] for index in np.searchsorted(ends, middle, side="right"))
    return Spread(values[0], (lower + upper) / 2, values[-1])


def format_stats(stats: DatasetStats) -> str:
    """Return statistics as plain text, with a histogram of the classes."""
    lines = [
        f"{stats.dataset}",
        f"  samples      {stats.samples:,} in {counted(stats.shards, 'shard')}, {human_bytes(stats.bytes)}",
        f"  sample       {human_bytes(stats.mean_sample_bytes)} on average, with headers and padding",
        f"  order        {'shuffled when packed' if stats.shuffled else 'as in the source: not known to be shuffled'}",
        f"  fingerprint  {stats.fingerprint}",
        *_account_lines(stats.account),
        *_image_lines(stats),
        "",
        *_field_lines(stats),
        *_class_lines(stats),
        *_field_class_lines(stats),
        *(f"note: {note}" for note in stats.notes),
    ]
    return "\n".join(lines)


def _account_lines(account: Account | None) -> list[str]:
    """Return what the dataset was packed from, and what was left out."""
    if account is None:
        return []
    packed = "all packed" if account.packed == account.given else f"{account.packed:,} packed"
    lines = [*account.lines(), *(shown(note, MAX_TEXT) for note in account.notes)]
    return [
        f"  source       {counted(account.given, shown(account.unit))}, {packed}",
        *(f"               {line}" for line in lines),
    ]


def _image_lines(stats: DatasetStats) -> list[str]:
    if stats.width is None or stats.height is None:
        return ["  images       none"]
    modes = ", ".join(f"{_printable(mode)} {count:,}" for mode, count in list(stats.modes.items())[:MAX_MODES])
    lines = [f"  images       {stats.images:,}: {modes}"]
    if stats.turned:
        lines.append(f"               {stats.turned:,} are turned by their EXIF orientation; the sizes include this")
    if stats.crop_ready:
        lines.append(f"               {stats.crop_ready:,} are crop-ready: a crop is decoded without the rest")
    for name, spread in (("width", stats.width), ("height", stats.height)):
        lines.append(f"  {name:11}  {spread.min:,} to {spread.max:,} pixels, median {spread.median:,g}")
    return lines


def _field_lines(stats: DatasetStats) -> list[str]:
    names = [_printable(name) for name in stats.fields]
    width = max([5, *map(len, names)])
    lines = [f"  {'field':{width}}  {'samples':>12}  {'bytes':>10}"]
    lines += [
        f"  {name:{width}}  {count.samples:>12,}  {human_bytes(count.bytes):>10}"
        for name, count in zip(names, stats.fields.values(), strict=True)
    ]
    return lines


def _class_lines(stats: DatasetStats) -> list[str]:
    if not stats.classes:
        return ["", "  no labels"]
    shown = sorted(stats.classes, key=lambda count: (-count.samples, count.label))[:MAX_CLASSES]
    names = [_printable(count.name) for count in shown]
    width = max(map(len, names))
    digits = max(len(f"{count.samples:,}") for count in shown)
    most = max(1, shown[0].samples)
    lines = ["", f"  {counted(len(stats.classes), 'class', 'classes')}"]
    lines += [
        f"  {count.label:>5}  {name:{width}}  {count.samples:>{digits},}  {bar(count.samples / most)}".rstrip()
        for count, name in zip(shown, names, strict=True)
    ]
    hidden = len(stats.classes) - len(shown)
    if hidden:
        more = sum(count.samples for count in stats.classes) - sum(count.samples for count in shown)
        lines.append(f"         ... and {hidden:,} more with {counted(more, 'sample')}")
    if stats.unlabelled:
        lines.append(f"         {counted(stats.unlabelled, 'sample')} without a label")
    return lines


def _field_class_lines(stats: DatasetStats) -> list[str]:
    lines = []
    for path, classes in stats.field_classes.items():
        names = ", ".join(map(_printable, classes.names[:MAX_CLASSES]))
        hidden = len(classes.names) - MAX_CLASSES
        more = f", ... and {hidden:,} more" if hidden > 0 else ""
        lines += ["", f"  {counted(len(classes.names), 'class', 'classes')} of {_printable(path)}: {names}{more}"]
    return lines


def _printable(name: str) -> str:
    """Escape and shorten a name, which comes from data and may contain anything."""
    name = name if name.isprintable() else ascii(name)[1:-1]
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"


def bar(share: float, width: int = _BAR_WIDTH) -> str:
    """Draw a share of 1 as a bar with a resolution of an eighth of a character, at least one if not 0.

    >>> bar(1.0, 4), bar(0.5, 4), bar(0.001, 4), bar(0, 4)
    ('████', '██', '▏', '')
    """
    eighths = max(round(share * width * 8), share > 0)
    return "█" * (eighths // 8) + _EIGHTH_BLOCKS[eighths % 8].strip()
