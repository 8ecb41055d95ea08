"""The workloads that loaders are measured on, and the setup that a loader process gets; `registry` lists the loaders.

This module is also imported in environments that have only numpy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wds_tools.images.framed import Letterbox
from wds_tools.images.mosaic import Mosaic
from wds_tools.images.views import CenterCrop, RandomResizedCrop, Regions, Resize, View

RAW_SIDE = 128
RAW_SHAPE = (RAW_SIDE, RAW_SIDE, 3)
RAW_BYTES = 3 * RAW_SIDE * RAW_SIDE
ANNOTATIONS = "instances.json"
WITH_BOXES = ("detect", "letterbox", "mosaic")
"""Workloads whose samples have boxes."""
HSV_GAINS = (0.015, 0.7, 0.4)  # of the *mosaic* workload: hue, saturation and value, the defaults of Ultralytics
SMALL_SIDE = 224  # pixels of the images of the *small* workload before they are resized

WORKER_STAGES = ("read", "verify", "slice", "decode", "resize", "write", "other")
MAIN_PROCESS_STAGES = ("hand-over", "wait")


@dataclass(frozen=True, slots=True)
class Workload:
    """What a loader has to do for each image.

    Attributes:
        view: The crop and size that all loaders produce; None if no image is decoded.
        crops: All views, if there are several crops of each image; ``view`` is then the first.
    """

    title: str
    view: View | None
    batch_size: int
    crops: tuple[View, ...] = ()


_LARGE = RandomResizedCrop(224, scale=(0.4, 1.0), flip=True)
_SMALL = RandomResizedCrop(96, scale=(0.05, 0.4), flip=True)


WORKLOADS = {
    "train": Workload("images as stored, RandomResizedCrop(224) and flip", RandomResizedCrop(224, flip=True), 128),
    "eval": Workload("images as stored, resized to 256, CenterCrop(224)", CenterCrop(224, resize=256), 128),
    "small": Workload(
        f"JPEGs of {SMALL_SIDE} x {SMALL_SIDE} pixels made from the images, resized to 128 x 128",
        Resize((128, 128)),
        256,
    ),
    "ssl": Workload(
        "images as stored, 2 crops of 224 and 8 of 96 pixels of each, with flip",
        _LARGE,
        64,
        (_LARGE,) * 2 + (_SMALL,) * 8,
    ),
    "detect": Workload("images as stored, resized to 640 x 640, with boxes", Resize((640, 640)), 16),
    "letterbox": Workload(
        "images as stored, resized to fit into 640 x 640, the rest filled, with boxes", Letterbox(640), 16
    ),
    "mosaic": Workload(
        "mosaics of four images as stored, 640 x 640, scale 0.5 to 1.5, translate 0.1, HSV, flip, with boxes",
        Mosaic(640, scale=(0.5, 1.5), translate=0.1, flip=0.5),
        16,
    ),
    "raw": Workload(f"arrays of {RAW_SIDE} x {RAW_SIDE} x 3 bytes made from the images, stored decoded", None, 256),
    "bytes": Workload("stored bytes of the images, not decoded", None, 256),
}
"""Workloads by name."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a loader process has to know; sent to it as JSON.

    Attributes:
        folder: The temporary folder; removed by the process that ends last.
        tree: The dataset as files, ``<class>/<name>``.
        shards: The dataset as shards.
        probes: The first images in the shards, as paths in ``tree``; their pixels are compared
            between loaders.
    """

    name: str
    folder: str
    tree: str
    shards: str
    workload: str
    workers: int
    batch_size: int
    probes: tuple[str, ...]

    @property
    def view(self) -> View | None:
        """The view of the workload."""
        return WORKLOADS[self.workload].view

    @property
    def crops(self) -> tuple[View, ...]:
        """The views of a workload with several crops per image, otherwise empty."""
        return WORKLOADS[self.workload].crops

    @property
    def has_several_values(self) -> bool:
        """Whether a sample has several values, so that the first one of a batch has its number of samples."""
        return bool(self.crops) or self.has_boxes

    @property
    def has_boxes(self) -> bool:
        """Whether samples have boxes."""
        return self.workload in WITH_BOXES

    @property
    def annotations(self) -> Path:
        """The boxes of workloads with boxes, in the JSON of COCO; file names are relative to ``tree``."""
        return Path(self.folder) / ANNOTATIONS

    def boxes(self) -> dict[str, list[list[float]]]:
        """Return the boxes by file name: left, top, width and height in pixels."""
        coco = json.loads(self.annotations.read_text())
        names = {image["id"]: image["file_name"] for image in coco["images"]}
        boxes: dict[str, list[list[float]]] = {name: [] for name in names.values()}
        for annotation in coco["annotations"]:
            boxes[names[annotation["image_id"]]].append(annotation["bbox"])
        return boxes

    @property
    def fixed_view(self) -> View | None:
        """The same without randomness, to compare pixels; for mosaics the whole images that they are made of."""
        if self.workload in ("letterbox", "mosaic"):
            return Letterbox(640)
        return FixedCrop(224) if self.view and self.view.draws else self.view

    @property
    def own_folder(self) -> Path:
        """Folder for the dataset in the loader's own format; the loader creates it."""
        return Path(self.folder) / f"as-{self.name}"

    def files(self) -> list[tuple[Path, int]]:
        """Return the files of the dataset with their class numbers, in a random but fixed order."""
        folders = sorted(path for path in Path(self.tree).iterdir() if path.is_dir())
        files = [(path, label) for label, folder in enumerate(folders) for path in sorted(folder.iterdir())]
        return [files[index] for index in np.random.default_rng(0).permutation(len(files))]

    def payload(self, path: Path) -> bytes:
        """Return what a format stores for a file: its bytes or, for the *raw* workload, its pixels."""
        return np.load(path, allow_pickle=False).tobytes() if self.workload == "raw" else path.read_bytes()

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Setup:
        """Return the setup that `to_json` was called on."""
        return cls(**{**values, "probes": tuple(values["probes"])})


class LoaderModule(Protocol):
    """Functions of a module that runs a loader; `prepare` and `probe_boxes` are optional."""

    def prepare(self, setup: Setup) -> None:
        """Write the dataset in the loader's own format to ``setup.own_folder``."""

    def batch_sizes(self, setup: Setup, seed: int) -> Any:
        """Yield the number of samples of each batch, epoch after epoch; closing the generator ends all workers."""

    def probe_pixels(self, setup: Setup) -> Sequence[Any] | None:
        """Return ``setup.fixed_view`` of the probes, each uint8 [3, height, width]; None if not supported."""

    def probe_boxes(self, setup: Setup) -> Sequence[Any]:
        """Return the boxes of the probes in ``setup.fixed_view``, each [boxes, 4]: left, top, right and bottom."""


@dataclass(frozen=True)
class FixedCrop:
    """A resized crop that depends on the image size alone, in place of a random one."""

    size: int

    draws = 0
    least = (8, 8)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result."""
        return (self.size, self.size)

    def box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """Return left, top, width and height of the crop."""
        return width // 7, height // 5, width * 4 // 7, height * 3 // 5

    def regions(
        self,
        width: NDArray[np.int64],
        height: NDArray[np.int64],
        u: NDArray[np.float64],  # noqa: ARG002 - part of the protocol
    ) -> Regions:
        """Return the crop of each image."""
        n = len(width)
        size = np.broadcast_to(np.array(self.shape, np.int64), (n, 2))
        boxes = [self.box(w, h) for w, h in zip(width.tolist(), height.tolist(), strict=True)]
        box = np.array(boxes, np.int64).reshape(n, 4)
        return Regions(box, size, np.zeros((n, 2), np.int64), size, np.zeros(n, np.bool_))
