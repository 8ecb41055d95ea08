"""The options of packing: names, types, defaults and checks. The docstring of `pack` describes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, get_args

from wds_tools.errors import OptionError
from wds_tools.format.label import LabelType
from wds_tools.options import RemoteOptions, check_counts, parse_bytes
from wds_tools.packing.engines import EngineName, check_engine
from wds_tools.packing.transcode import ImageOptions
from wds_tools.sources.base import SourceOptions

Repeated = Literal["skip", "append"]
"""What `append` does with records whose paths are those of samples."""


@dataclass(frozen=True)
class CommonOptions:
    """The options that `append`, `pack` and `pack_splits` share. `pack` documents them."""

    src: Any
    dst: str | Path
    _: KW_ONLY
    kind: str | None = None
    columns: Mapping[str, str] | None = None
    label_type: LabelType | None = None
    label_separator: str | None = None
    encoding: str | None = None
    classes: str | Path | Sequence[str] | None = None
    shard_bytes: int | str | None = None
    seed: int = 0
    workers: int | None = None
    strict: bool = False
    fresh: bool = False
    images: str | None = None
    resize: int | str | tuple[int, int] | None = None
    quality: int | None = None
    progress: bool | None = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True)
class AppendOptions(CommonOptions):
    """The options of `append`."""

    _: KW_ONLY
    repeated: Repeated | None = None

    def __post_init__(self) -> None:
        if self.repeated not in (None, *get_args(Repeated)):
            raise OptionError(f"repeated={self.repeated!r}; allowed are {', '.join(map(repr, get_args(Repeated)))}")


@dataclass(frozen=True)
class NewDatasetOptions(CommonOptions):
    """The options that `pack` and `pack_splits` share."""

    _: KW_ONLY
    shard_bytes: int | str = "1GB"
    dry_run: bool = False
    verify_pixels: bool = False
    spool: str | Path | None = None


@dataclass(frozen=True)
class SplitOptions(NewDatasetOptions):
    """The options of `pack_splits`."""

    _: KW_ONLY
    split: str | Mapping[str, float]
    keep_together: str | None = None


@dataclass(frozen=True)
class PackOptions(NewDatasetOptions):
    """The options of `pack`, checked. `append` and `pack_splits` make them from theirs.

    Attributes:
        remote: The options for URLs, or their defaults.

    Raises:
        OptionError: An invalid option, or two that exclude each other.
    """

    _: KW_ONLY
    shuffle: bool = True
    task: tuple[int, int] | None = None
    finish: bool = False
    first: int | None = None
    engine: EngineName = "local"
    num_cpus: int = 1

    max_bytes: int = field(init=False)
    names: tuple[str, ...] | None = field(init=False)
    policy: ImageOptions = field(init=False)
    remote: RemoteOptions = field(init=False)

    @classmethod
    def of(cls, given: CommonOptions, **changes: Any) -> PackOptions:
        """Convert options of `append` or `pack_splits` to options of `pack`."""
        names = {field_.name for field_ in fields(cls)}
        same = {field_.name: getattr(given, field_.name) for field_ in fields(given) if field_.name in names}
        return cls(**{**same, **changes})

    def __post_init__(self) -> None:
        policy = ImageOptions(
            images=self.images, resize=self.resize, quality=self.quality, verify_pixels=self.verify_pixels
        )
        for name, value in {
            "max_bytes": parse_bytes(self.shard_bytes, what="shard_bytes"),
            "names": class_names(self.classes),
            "policy": policy,
            "remote": RemoteOptions.of(storage_options=self.storage_options),
        }.items():
            object.__setattr__(self, name, value)
        self._check()
        self._check_mode()

    def _check(self) -> None:
        check_counts({"workers": self.workers, "first": self.first, "num_cpus": self.num_cpus})
        if self.max_bytes < 10_240:
            raise OptionError(f"shard_bytes={self.max_bytes} is too small; allowed are 10,240 bytes and more")
        if not isinstance(self.seed, Integral) or not 0 <= self.seed < 2**63:
            raise OptionError(f"seed={self.seed!r} is out of range; allowed are 0 to 2**63 - 1")
        if self.columns is not None and not isinstance(self.columns, Mapping):
            raise OptionError(f"columns={self.columns!r}; allowed are dictionaries such as {{'image': 'photo'}}")
        if self.names is not None and len(set(self.names)) < len(self.names):
            twice = sorted({name for name in self.names if self.names.count(name) > 1})
            raise OptionError(f"class names {twice} are given twice; each class needs a unique name")
        if self.label_type not in (None, *get_args(LabelType)):
            raise OptionError(f"label_type={self.label_type!r}; allowed are {', '.join(get_args(LabelType))}")
        if self.label_separator == "":
            raise OptionError("label_separator is empty; allowed are texts such as ' ', ',' and '|'")
        if self.encoding is not None:
            _check_encoding(self.encoding)

    def _check_mode(self) -> None:
        """Check what this call does: all, one of several tasks, or a preview."""
        index, count = self.task or (0, 1)
        if not 0 <= index < count:
            raise OptionError(f"invalid task {index} of {count}; allowed are indexes from 0 to count - 1")
        if self.task and (self.fresh or self.finish):
            raise OptionError(
                "task cannot be combined with fresh or finish: finish in one call without task; to start over with "
                "tasks, remove dst and run all of them again"
            )
        if self.finish and self.fresh:
            raise OptionError(
                "finish cannot be combined with fresh, which would remove the shards of the tasks: to start over with "
                "tasks, remove dst and run all of them again"
            )
        if self.first is not None and (self.task or self.finish):
            raise OptionError(
                "first cannot be combined with task or finish: it packs a few samples to look at; then pack the rest"
            )
        if self.dry_run and (self.task or self.finish):
            raise OptionError("dry_run cannot be combined with task or finish: it writes nothing, whatever the task")
        check_engine(self.engine)
        if self.num_cpus != 1 and self.engine != "ray":
            raise OptionError(f"num_cpus={self.num_cpus} needs engine='ray'; for this machine, give workers")

    @property
    def spool_folder(self) -> Path | None:
        """``spool`` as a path."""
        return None if self.spool is None else Path(self.spool)

    @property
    def source(self) -> SourceOptions:
        """What the user states about the source."""
        return SourceOptions(
            classes=self.names,
            columns=self.columns or {},
            label_type=self.label_type,
            label_separator=self.label_separator,
            encoding=self.encoding,
            remote=self.remote,
        )

    def packs(self, shard: int) -> bool:
        """Return whether this task packs a shard, by its index."""
        index, count = self.task or (0, 1)
        return not self.finish and shard % count == index


def class_names(classes: str | Path | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return class names as given, or read them from a file, see `read_class_names`."""
    if classes is None:
        return None
    if isinstance(classes, (str, Path)):
        from wds_tools.sources.class_file import read_class_names  # noqa: PLC0415 - it imports what reads tables

        classes = read_class_names(Path(classes))
    if not classes:
        raise OptionError("classes is empty; give at least one name, or omit it to use the names of the class folders")
    return classes if isinstance(classes, tuple) else tuple(classes)  # perhaps `Classes`


def _check_encoding(name: str) -> None:
    try:
        "".encode(name)
    except (LookupError, TypeError) as error:
        raise OptionError(
            f"encoding={name!r} is not an encoding of text; allowed are the names that Python knows, such as utf-8, "
            "utf-16, latin-1, cp1252 and shift-jis"
        ) from error
