"""The data loader of Ultralytics, with its own augmentation."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import torch
from ultralytics.cfg import get_cfg
from ultralytics.data import build_dataloader, build_yolo_dataset

from wds_tools.bench.peers.samples import decode_rgb
from wds_tools.bench.workloads import HSV_GAINS, Setup

_SIDE = 640


def prepare(setup: Setup) -> None:
    """Write links to the images, and their boxes as label files: one class, centre and size as fractions."""
    for name, boxes in setup.boxes().items():
        path = Path(setup.tree) / name
        height, width = decode_rgb(path.read_bytes()).shape[1:]
        link, label = _path(setup, "images", name), _path(setup, "labels", name).with_suffix(".txt")
        for file in (link, label):
            file.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
        rows = [((x + w / 2) / width, (y + h / 2) / height, w / width, h / height) for x, y, w, h in boxes]
        label.write_text("".join(f"0 {' '.join(map(str, row))}\n" for row in rows))


def batch_sizes(setup: Setup, seed: int) -> Generator[int]:
    """Yield the number of samples of each batch."""
    torch.manual_seed(seed)
    dataset = _dataset(setup, augments=setup.workload == "mosaic")
    loader = build_dataloader(dataset, setup.batch_size, setup.workers, shuffle=True, drop_last=True, pin_memory=False)
    while True:
        for batch in loader:
            yield len(batch["img"])


def probe_pixels(setup: Setup) -> Sequence[torch.Tensor]:
    """Return the pixels of the probes, as whole images in a frame."""
    return [sample["img"] for sample in _probes(setup)]


def probe_boxes(setup: Setup) -> Sequence[torch.Tensor]:
    """Return the boxes of the probes: it has centre and size as fractions."""
    boxes = [_SIDE * sample["bboxes"] for sample in _probes(setup)]
    return [torch.cat([box[:, :2] - box[:, 2:] / 2, box[:, :2] + box[:, 2:] / 2], dim=1) for box in boxes]


def _probes(setup: Setup) -> list[dict[str, torch.Tensor]]:
    dataset = _dataset(setup, augments=False)
    indexes = {Path(path): index for index, path in enumerate(dataset.im_files)}
    return [dataset[indexes[_path(setup, "images", probe)]] for probe in setup.probes]


def _path(setup: Setup, kind: str, name: str) -> Path:
    return setup.own_folder / kind / name


def _dataset(setup: Setup, *, augments: bool) -> Any:
    hue, saturation, value = HSV_GAINS
    options: dict[str, Any] = {
        "imgsz": _SIDE,
        "mosaic": 1.0,
        "scale": 0.5,
        "translate": 0.1,
        "fliplr": 0.5,
        "task": "detect",
        "hsv_h": hue,
        "hsv_s": saturation,
        "hsv_v": value,
    }
    data = {"names": {0: "object"}, "nc": 1, "channels": 3}
    mode = "train" if augments else "val"
    return build_yolo_dataset(
        get_cfg(overrides=options), str(setup.own_folder / "images"), setup.batch_size, data, mode=mode, rect=False
    )
