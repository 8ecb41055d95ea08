"""The options of packing: checked, and passed on as one object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from pathlib import Path
from typing import Literal, get_args

from wds_tools.errors import OptionError
from wds_tools.format.label import LabelType
from wds_tools.options import RemoteOptions, check_counts
from wds_tools.packing.transcode import ImageOptions
from wds_tools.sources.base import SourceOptions

Engine = Literal["local", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """The options of `pack`, which documents them. `append`, `reshard` and `pack_splits` have some of them.

    Raises:
        OptionError: An invalid option, or two that exclude each other.
    """

    kind: str | None = None
    columns: Mapping[str, str] | None = None
    label_type: LabelType | None = None
    label_separator: str | None = None
    encoding: str | None = None
    shard_bytes: int = 10**9
    seed: int = 0
    workers: int | None = None
    classes: tuple[str, ...] | None = None
    strict: bool = False
    fresh: bool = False
    dry_run: bool = False
    images: ImageOptions = field(default_factory=ImageOptions)
    spool: Path | None = None
    shuffle: bool = True
    task: tuple[int, int] | None = None
    finish: bool = False
    engine: Engine = "local"
    progress: bool | None = None
    remote: RemoteOptions = field(default_factory=RemoteOptions.of)

    def __post_init__(self) -> None:
        check_counts({"workers": self.workers})
        if self.shard_bytes < 10_240:
            raise OptionError(f"shard_bytes={self.shard_bytes} is too small; allowed are 10,240 bytes and more")
        if not isinstance(self.seed, Integral) or not 0 <= self.seed < 2**63:
            raise OptionError(f"seed={self.seed!r} is out of range; allowed are 0 to 2**63 - 1")
        if self.columns is not None and not isinstance(self.columns, Mapping):
            raise OptionError(f"columns={self.columns!r}; allowed are dictionaries such as {{'image': 'photo'}}")
        if self.classes is not None and len(set(self.classes)) < len(self.classes):
            twice = sorted({name for name in self.classes if self.classes.count(name) > 1})
            raise OptionError(f"class names {twice} are given twice; each class needs a unique name")
        if self.label_type not in (None, *get_args(LabelType)):
            raise OptionError(f"label_type={self.label_type!r}; allowed are {', '.join(get_args(LabelType))}")
        if self.label_separator == "":
            raise OptionError("label_separator is empty; allowed are texts such as ' ', ',' and '|'")
        if self.encoding is not None:
            _check_encoding(self.encoding)
        self._check_mode()

    def _check_mode(self) -> None:
        """Check what this call does: all, one of several tasks, or a preview."""
        index, count = self.task or (0, 1)
        if not 0 <= index < count:
            raise OptionError(f"invalid task {index} of {count}; allowed are indexes from 0 to count - 1")
        if self.task and (self.fresh or self.finish):
            raise OptionError(
                "task cannot be combined with fresh or finish: start over, or finish, in one call without task"
            )
        if self.dry_run and (self.task or self.finish):
            raise OptionError("dry_run cannot be combined with task or finish: it writes nothing, whatever the task")
        if self.engine not in get_args(Engine):
            raise OptionError(f"engine={self.engine!r}; allowed are {', '.join(map(repr, get_args(Engine)))}")

    @property
    def source(self) -> SourceOptions:
        """What the user states about the source."""
        return SourceOptions(
            classes=self.classes,
            columns=self.columns or {},
            label_type=self.label_type,
            label_separator=self.label_separator,
            encoding=self.encoding,
            remote=self.remote,
        )

    def packs(self, number: int) -> bool:
        """Return whether this task packs the shard ``number``."""
        index, count = self.task or (0, 1)
        return not self.finish and number % count == index


def class_names(classes: str | Path | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return class names as given, or read them from a file with one name per line.

    Raises:
        OptionError: There are no names, or the file cannot be read.
    """
    if classes is None:
        return None
    if isinstance(classes, (str, Path)):
        try:
            lines = Path(classes).read_text("utf-8-sig", "surrogateescape").splitlines()
        except OSError as error:
            raise OptionError(
                f"classes={str(classes)!r} cannot be read: {error.strerror}; expected a file with one name per line"
            ) from error
        classes = [line for line in lines if line]
    if not classes:
        raise OptionError("classes is empty; give at least one name, or omit it to use the names of the class folders")
    return tuple(classes)


def _check_encoding(name: str) -> None:
    try:
        "".encode(name)
    except (LookupError, TypeError) as error:
        raise OptionError(
            f"encoding={name!r} is not an encoding of text; allowed are the names that Python knows, such as utf-8, "
            "utf-16, latin-1, cp1252 and shift-jis"
        ) from error
