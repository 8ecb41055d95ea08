"""What the contenders are measured at, and who they are: two tables. A peer to come is a line here and a module."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wds_tools.views import CenterCrop, RandomResizedCrop, Regions, View

WORKS: dict[str, View] = {
    "train": RandomResizedCrop(224, flip=True),
    "eval": CenterCrop(224, resize=256),
}
"""Kinds of work by name; every contender yields uint8 batches of this view."""


@dataclass(frozen=True, slots=True)
class Contender:
    """One way to do the work.

    Attributes:
        module: Where it is, in this package; imported only in the process that it runs in.
        needs: What has to be installed, by the names that pip knows; its version is reported.
        note: How it is set up.
    """

    module: str
    needs: tuple[str, ...]
    note: str


LIMIT, OURS = "limit", "ours"
CONTENDERS = {
    LIMIT: Contender(
        "limit",
        ("simplejpeg",),
        "simplejpeg decodes the same files whole; no reading, no resize",
    ),
    OURS: Contender("ours", ("torch",), "wds_tools.make_loader(shuffle=True)"),
    "imagefolder": Contender(
        "imagefolder",
        ("torch", "torchvision"),
        "torchvision's ImageFolder with its own loader (Pillow), v2 transforms on uint8 tensors with antialias, "
        "DataLoader with persistent workers",
    ),
    "imagefolder-io": Contender(
        "imagefolder_io",
        ("torch", "torchvision"),
        "as imagefolder, with loader=torchvision.io.decode_image instead of Pillow",
    ),
    "webdataset": Contender(
        "webdataset",
        ("torch", "torchvision", "webdataset"),
        "WebDataset().shuffle(1000).decode('pil'), the same transforms, batched in the workers of a WebLoader; "
        "it does not pause between epochs",
    ),
}
"""Contenders by name."""
PEERS = tuple(name for name in CONTENDERS if name not in (LIMIT, OURS))


@dataclass(frozen=True, slots=True)
class Setup:
    """What a contender needs to know; it travels to its process as JSON.

    Attributes:
        folder: The temporary folder; removed by whoever lives longest.
        tree: The pictures as files, ``<class>/<name>``.
        shards: The same pictures, packed.
        work: Name in `WORKS`.
        workers: Processes that decode.
        batch_size: Images per batch.
        probes: The first pictures in the shards, as paths in ``tree``.
    """

    folder: str
    tree: str
    shards: str
    work: str
    workers: int
    batch_size: int
    probes: tuple[str, ...]

    @property
    def view(self) -> View:
        """The view of every contender."""
        return WORKS[self.work]

    @property
    def fixed_view(self) -> View:
        """The same without chance, to compare pixels by."""
        return FixedCrop(224) if self.view.draws else self.view

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Setup:
        """Return what `to_json` was called on."""
        return cls(**{**values, "probes": tuple(values["probes"])})


class Runner(Protocol):
    """What the module of a contender has."""

    def batches(self, setup: Setup, seed: int) -> Any:
        """Yield the number of images of each batch, epoch after epoch; closing the generator ends all workers."""

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
