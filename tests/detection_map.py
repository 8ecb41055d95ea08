"""Prints the mAP of a detector that answers by the pixels of an image, by pycocotools.

    python tests/detection_map.py FOLDER torchvision|ours

FOLDER is what `examples/10_detection.py` writes. The detector knows images by their pixels, and returns their boxes,
moved by some of their size. An image that differs in one pixel from that of torchvision's dataset is an error, and one
that is evaluated twice or not at all changes the mAP.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torchvision.datasets import CocoDetection
from torchvision.transforms.v2.functional import pil_to_tensor

import wds_tools as wt

EXAMPLE = Path(__file__).parents[1] / "examples" / "10_detection.py"


class KnowsImages(torch.nn.Module):
    """A detector that was shown the images and their objects."""

    def __init__(self, dataset: CocoDetection) -> None:
        super().__init__()
        self.known: dict[bytes, list[dict[str, Any]]] = {}
        for image, objects in dataset:
            self.known[pil_to_tensor(image).numpy().tobytes()] = objects

    def forward(self, images: list[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        [image] = images
        objects = self.known[(image * 255).round().to(torch.uint8).numpy().tobytes()]
        corners = torch.tensor([one["bbox"][:2] for one in objects])
        sizes = torch.tensor([one["bbox"][2:] for one in objects])
        numbers = torch.tensor([one["id"] for one in objects])
        corners = corners + sizes * (numbers % 3)[:, None] * 0.06
        labels = torch.tensor([one["category_id"] for one in objects])
        return [{"boxes": torch.cat([corners, corners + sizes], 1), "labels": labels, "scores": 1 / numbers}]


def main(folder: Path, kind: str) -> None:
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    example = runpy.run_path(str(EXAMPLE))
    with contextlib.redirect_stdout(io.StringIO()):
        dataset = CocoDetection(folder / "coco/images/val", folder / "coco/annotations/instances_val.json")
    for one in dataset.coco.anns.values():
        one["category_id"] = 1  # so that a box that is found twice comes before others of its class
    model = KnowsImages(dataset)
    if kind == "ours":
        fields = {"image": wt.Image(), "id": wt.Field("json", path="id")}
        with wt.make_loader(folder / "val", batch_size=1, tail="mask", fields=fields, num_workers=0) as loader:
            found = example["evaluate"](model, loader, dataset.coco)
    else:
        batches = (
            SimpleNamespace(image=pil_to_tensor(dataset[i][0])[None], id=[dataset.ids[i]], valid=[True])
            for i in range(len(dataset))
        )
        found = example["evaluate"](model, batches, dataset.coco)
    sys.stdout.write(f"{found}\n")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
