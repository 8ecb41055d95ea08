"""How to pack: the arguments of `pack`, checked and in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from wds_tools.errors import OptionError
from wds_tools.options import PackOptions, check_counts, parse_bytes
from wds_tools.packing.transcode import Policy, choose

Engine = Literal["local", "ray"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """How to pack.

    Attributes:
        kind: Of the source.
        columns: Of the source, by role.
        options: What decides the bytes.
        policy: What becomes of images.
        workers: Processes.
        fresh: Start over.
        spool: Where shards wait for their upload.
        shuffle: Put the samples in random order.
        task: (index, count): pack only every count-th shard, and leave the manifest to who finishes.
        finish: Pack nothing; complete what tasks have packed.
        engine: What runs the work: processes of this machine, or Ray.
        progress: Show a bar.
    """

    kind: str | None
    columns: Mapping[str, str] | None
    options: PackOptions
    policy: Policy
    workers: int | None
    fresh: bool
    spool: Path | None
    progress: bool | None
    shuffle: bool = True
    task: tuple[int, int] | None = None
    finish: bool = False
    engine: Engine = "local"

    def __post_init__(self) -> None:
        index, count = self.task or (0, 1)
        if not 0 <= index < count:
            raise OptionError(f"task {index} of {count}: allowed are indexes from 0 to count - 1")
        if self.task and (self.fresh or self.finish):
            raise OptionError("a task of several neither starts over nor finishes: do that once, without a task")
        if self.engine not in get_args(Engine):
            raise OptionError(f"engine={self.engine!r}; allowed are {', '.join(map(repr, get_args(Engine)))}")

    def has(self, number: int) -> bool:
        """Tell whether a shard is ours to pack."""
        index, count = self.task or (0, 1)
        return not self.finish and number % count == index

    @classmethod
    def of(
        cls,
        *,
        kind: str | None,
        columns: Mapping[str, str] | None,
        shard_bytes: int | str,
        seed: int,
        workers: int | None,
        classes: str | Path | Sequence[str] | None,
        strict: bool,
        fresh: bool,
        images: str | None,
        resize: int | str | tuple[int, int] | None,
        quality: int | None,
        verify_pixels: bool,
        spool: str | Path | None,
        progress: bool | None,
        shuffle: bool = True,
        task: tuple[int, int] | None = None,
        finish: bool = False,
        engine: Engine = "local",
    ) -> Packing:
        """Check the arguments of `pack`.

        Raises:
            OptionError: One that cannot be.
        """
        size = parse_bytes(shard_bytes, what="shard_bytes")
        options = PackOptions(shard_bytes=size, seed=seed, classes=_class_names(classes), strict=strict)
        policy = choose(images, resize=resize, quality=quality, verify_pixels=verify_pixels)
        check_counts({"workers": workers})
        return cls(
            kind=kind,
            columns=columns,
            options=options,
            policy=policy,
            workers=workers,
            fresh=fresh,
            spool=None if spool is None else Path(spool),
            progress=progress,
            shuffle=shuffle,
            task=task,
            finish=finish,
            engine=engine,
        )


def _class_names(classes: str | Path | Sequence[str] | None) -> tuple[str, ...] | None:
    """Return class names as they are given, or from a file with one per line."""
    if classes is None:
        return None
    if isinstance(classes, (str, Path)):
        try:
            lines = Path(classes).read_text("utf-8", "surrogateescape").splitlines()
        except OSError as error:
            raise OptionError(
                f"classes={str(classes)!r} cannot be read: {error.strerror}; expected a file with one name per line"
            ) from error
        classes = [line for line in lines if line]
    if not classes:
        raise OptionError("classes names no class; give at least one, or leave it out to take the class folders")
    return tuple(classes)
