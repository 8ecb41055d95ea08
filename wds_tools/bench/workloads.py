"""What the contenders are measured at, and what a contender is told; `contenders` says who they are.

This module is imported in environments that may have nothing but numpy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wds_tools.images.views import CenterCrop, RandomResizedCrop, Regions, Resize, View

RAW_SIDE = 128
RAW_SHAPE = (RAW_SIDE, RAW_SIDE, 3)
RAW_BYTES = 3 * RAW_SIDE * RAW_SIDE
SMALL_SIDE = 224  # pixels of the pictures of the *small* work before it resizes them

IN_A_WORKER = ("read", "verify", "slice", "decode", "resize", "write", "other")
IN_THE_MAIN_PROCESS = ("hand-over", "wait")
"""The stages of our own path."""


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of work.

    Attributes:
        says: What it is, for the title of a table.
        view: The part of each picture that all contenders make; None where there are no pictures to decode.
        batch_size: Unless the user says another.
    """

    says: str
    view: View | None
    batch_size: int


WORKS = {
    "train": Work("the pictures as they are, RandomResizedCrop(224) and flip", RandomResizedCrop(224, flip=True), 128),
    "eval": Work("the pictures as they are, resized to 256, CenterCrop(224)", CenterCrop(224, resize=256), 128),
    "small": Work(
        f"JPEGs of {SMALL_SIDE} x {SMALL_SIDE} pixels made of the pictures, resized to 128 x 128",
        Resize((128, 128)),
        256,
    ),
    "raw": Work(f"arrays of {RAW_SIDE} x {RAW_SIDE} x 3 bytes made of the pictures, stored decoded", None, 256),
    "bytes": Work("the pictures as stored bytes, not decoded", None, 256),
}
"""Kinds of work by name."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a contender needs to know; it travels to its process as JSON.

    Attributes:
        name: Of the contender.
        folder: The temporary folder; removed by whoever lives longest.
        tree: The material as files, ``<class>/<name>``.
        shards: The same, packed.
        work: Name in `WORKS`.
        workers: Processes that decode, or threads.
        batch_size: Samples per batch.
        probes: The first pictures in the shards, as paths in ``tree``.
    """

    name: str
    folder: str
    tree: str
    shards: str
    work: str
    workers: int
    batch_size: int
    probes: tuple[str, ...]

    @property
    def view(self) -> View | None:
        """The view of every contender."""
        return WORKS[self.work].view

    @property
    def fixed_view(self) -> View | None:
        """The same without chance, to compare pixels by."""
        return FixedCrop(224) if self.view and self.view.draws else self.view

    @property
    def own(self) -> Path:
        """The folder in which a contender keeps the material in its own format; it makes the folder."""
        return Path(self.folder) / f"as-{self.name}"

    def files(self) -> list[tuple[Path, int]]:
        """Return the files of the material with their class numbers, in an order without meaning."""
        folders = sorted(path for path in Path(self.tree).iterdir() if path.is_dir())
        found = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
        return [found[number] for number in np.random.default_rng(0).permutation(len(found))]

    def payload(self, path: Path) -> bytes:
        """Return what a format stores of a file: its bytes, or the pixels of the *raw* work alone."""
        return np.load(path, allow_pickle=False).tobytes() if self.work == "raw" else path.read_bytes()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Setup:
        """Return what `to_json` was called on."""
        return cls(**{**values, "probes": tuple(values["probes"])})


class Runner(Protocol):
    """What the module of a contender has; `prepare` only if it has a format of its own."""

    def prepare(self, setup: Setup) -> None:
        """Write the material in the contender's own format to the folder ``setup.own``."""

    def batches(self, setup: Setup, seed: int) -> Any:
        """Yield the number of samples of each batch, epoch after epoch; closing the generator ends all workers."""

    def pictures(self, setup: Setup) -> Sequence[Any] | None:
        """Return ``setup.fixed_view`` of the probes, each uint8 [3, height, width], or None if it makes none."""


@dataclass(frozen=True)
class FixedCrop:
    """A part of the picture that depends on its size alone, resized: a random crop without the chance.

    Attributes:
        size: Height and width of the result.
    """

    size: int

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result."""
        return (self.size, self.size)

    @property
    def draws(self) -> int:
        """Nothing is random."""
        return 0

    @property
    def least(self) -> tuple[int, int]:
        """Small enough that every photograph will do."""
        return (8, 8)

    def box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return left, top, width and height."""
        return width // 7, height // 5, width * 4 // 7, height * 3 // 5

    def regions(
        self,
        width: NDArray[np.int64],
        height: NDArray[np.int64],
        u: NDArray[np.float64],  # noqa: ARG002 - the protocol's
    ) -> Regions:
        """Return the part of each picture."""
        n = len(width)
        size = np.broadcast_to(np.array(self.shape, np.int64), (n, 2))
        boxes = [self.box(w, h) for w, h in zip(width.tolist(), height.tolist(), strict=True)]
        box = np.array(boxes, np.int64).reshape(n, 4)
        return Regions(box, size, np.zeros((n, 2), np.int64), size, np.zeros(n, np.bool_))
