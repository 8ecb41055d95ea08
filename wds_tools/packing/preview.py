"""What `pack` states before it writes anything: the account of the source, and with ``dry_run`` ten of its samples."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tqdm import tqdm

from wds_tools.errors import DecodeError, SourceError
from wds_tools.format import image_header
from wds_tools.format.account import shown
from wds_tools.format.label import Classes
from wds_tools.format.label_lists import LABELS
from wds_tools.sources.base import Listing, Record, Source
from wds_tools.sources.file_names import shown_path
from wds_tools.sources.inputs import Input, Inputs
from wds_tools.terminal import shows_progress
from wds_tools.wording import counted, human_bytes

SAMPLES = 10
_EXAMPLES = 3  # classes or class numbers that the first line names
_FIELDS = 8  # of a sample
_MAX_VALUE = 40  # characters
_log = logging.getLogger("wds_tools")


@dataclass(frozen=True, slots=True)
class PreviewedSample:
    """A sample as it would be packed. As text, it is one line.

    Attributes:
        path: Its path in the source.
        label: Class number, None without a label.
        class_name: Name of the class; None if it has none.
        labels: Class numbers, in a source whose samples may have several labels; otherwise None.
        kind: Type of the image, such as ``jpg``; ``png`` for an image that is stored as pixels.
        width: Width in pixels, after the EXIF orientation is applied.
        height: Height in pixels, after the EXIF orientation is applied.
        fields: Name -> short value, of the further fields and of the entries of ``json``.
        problem: Why it cannot be packed; empty if it can.
    """

    path: str
    label: int | None = None
    class_name: str | None = None
    labels: tuple[int, ...] | None = None
    kind: str = ""
    width: int = 0
    height: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""

    def __str__(self) -> str:
        if self.problem:
            return f"{shown(self.path)}: cannot be packed: {shown(self.problem)}"
        name = "" if self.class_name is None else f" ({shown(self.class_name)})"
        label = "no label" if self.label is None else f"label {self.label}{name}"
        if self.labels is not None:
            label = f"labels {', '.join(map(str, self.labels[:_FIELDS])) or 'none'}"
        named = [f"{shown(name)}={value}" for name, value in list(self.fields.items())[:_FIELDS]]
        more = [f"{len(self.fields) - _FIELDS} more"] if len(self.fields) > _FIELDS else []
        parts = [label, f"{self.kind} {self.width}x{self.height}", ", ".join([*named, *more])]
        return f"{shown(self.path)}: {'; '.join(filter(None, parts))}"


@dataclass(frozen=True, slots=True)
class Preview:
    """What ``pack(..., dry_run=True)`` finds. As text, it is what ``wds-tools pack --dry-run`` prints.

    Attributes:
        lines: The account of the source, as lines of text.
        samples: Ten samples, spread evenly over the source.
    """

    lines: tuple[str, ...]
    samples: tuple[PreviewedSample, ...]

    def __str__(self) -> str:
        return "\n".join([*self.lines, *(f"  {sample}" for sample in self.samples)])


def preview(source: Source, listing: Listing) -> Preview:
    """Return the account of a source and some of its samples, which are read."""
    last, count = len(listing.inputs) - 1, min(SAMPLES, len(listing.inputs))
    chosen = [listing.inputs[index * last // max(1, count - 1)] for index in range(count)]
    return Preview(
        tuple(account_lines(source, listing)), tuple(_sample(source, entry, listing.label_classes) for entry in chosen)
    )


def show_account(lines: Iterable[str], *, progress: bool | None) -> None:
    """Show the lines of an account: as a log message of level INFO, or where a progress bar is shown.

    A message of this level is shown only if the program has set up logging, as the command line does.
    """
    text = "\n".join(lines)
    if _log.isEnabledFor(logging.INFO):
        _log.info("%s", text)
    elif shows_progress(progress):
        tqdm.write(text, file=sys.stderr)


def account_lines(source: Source, listing: Listing) -> list[str]:
    """Return the account of a source as a few lines: what is packed, as what, and what is not."""
    head = f"{shown_path(source.name)}: {counted(len(listing.inputs), 'image')}{_labels(listing)}"
    return [head, *(f"  {line}" for line in listing.account.lines())]


def _labels(listing: Listing) -> str:
    """Return the labels of a listing as text: the number of classes and the first of them."""
    inputs = Inputs.of(listing.inputs)
    numbers = sorted(inputs.different("label") - {-1})
    if inputs.have_several_labels:
        numbers = sorted({number for entry in inputs for number in _numbers(entry)})
    names: Sequence[str] = listing.label_classes
    if numbers:
        names = [names[number] for number in numbers] if names else []
    elif LABELS not in listing.field_classes:  # packed shards keep their field
        names = []
    if names:
        return f", {counted(len(names), 'class', 'classes')} ({_examples(names)})"
    if numbers:
        return f", {counted(len(numbers), 'class', 'classes')} without names ({_examples(list(map(str, numbers)))})"
    return " without labels"


def _numbers(entry: Input) -> tuple[int, ...]:
    return entry.labels or (() if entry.label is None else (entry.label,))


def _examples(names: Sequence[str]) -> str:
    more = ", ..." if len(names) > _EXAMPLES else ""
    return ", ".join(map(shown, names[:_EXAMPLES])) + more


def _sample(source: Source, entry: Input, classes: Classes) -> PreviewedSample:
    """Read a sample."""
    try:
        record = source.read(entry)
        kind, width, height = _image(record)
    except (SourceError, DecodeError) as error:
        return PreviewedSample(entry.path, problem=str(error))
    label = entry.label
    name = classes[label] if label is not None and label < len(classes) else None
    values = {field: _content(field, data) for field, data in record.fields.items()}
    values |= {fact: _short(json.dumps(value, ensure_ascii=False)) for fact, value in record.facts.items()}
    return PreviewedSample(entry.path, label, name, entry.labels, kind, width, height, values)


def _image(record: Record) -> tuple[str, int, int]:
    """Return type, width and height of the image of a record."""
    if isinstance(record.image, bytes):
        info = image_header.probe(record.image)
        return info.kind, info.width, info.height
    return "png", record.image.shape[1], record.image.shape[0]


def _content(field: str, data: bytes) -> str:
    """Return the content of a field as a short text: text itself, otherwise the number of bytes."""
    if field.rpartition(".")[2] in ("txt", "json", "cls"):
        return _short(repr(data[: 4 * _MAX_VALUE].decode("utf-8", "replace")))
    with suppress(DecodeError):
        info = image_header.probe_array(data)
        return f"{info.kind} {info.width}x{info.height}"
    return human_bytes(len(data))


def _short(text: str) -> str:
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 3]}..."
