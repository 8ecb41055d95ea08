"""Train a detector of Ultralytics on shards: its trainer gets its batches from here, and is otherwise unchanged.

    pip install ultralytics                       # AGPL-3.0
    wds-tools pack coco/ shards/coco --split folders
    python examples/13_ultralytics.py shards/coco/train shards/coco/val

On several GPUs, start it with torchrun: each rank gets its share of the samples, and validation counts each image once.
"""

import argparse
import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from ultralytics.models.yolo.detect import DetectionTrainer

import wds_tools as wt

BOXES = {"path": "objects.box", "format": "xyxy", "like": "image", "pad": "flat"}
FIELDS = {
    "boxes": wt.Boxes("json", **BOXES),
    "classes": wt.Field("json", path="objects.category", like="boxes", pad="flat"),
    "width": wt.Field("json", path="width"),
    "height": wt.Field("json", path="height"),
    "file": wt.Text("json", path="path"),
}
VISIBLE = wt.Boxes("json", **BOXES, min_side=2, max_aspect=100, min_visible=0.1)  # of which an augmentation left enough


class Batches:
    """A loader of ours with the attributes that Ultralytics uses of a DataLoader."""

    drop_last = True
    num_workers = 0  # for a message

    def __init__(self, loader: wt.Loader, convert: Callable[[Any], dict[str, Any]], batch_size: int) -> None:
        self.loader, self.convert, self.batch_size = loader, convert, batch_size
        self.dataset = loader.dataset
        self.sampler = self

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(self.convert, self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch."""
        self.loader.set_epoch(epoch)

    def reset(self) -> None:
        """Nothing: the view of an epoch is that of its `Schedule`."""

    def close(self) -> None:
        """End the workers."""
        self.loader.close()


def as_batch(batch: Any) -> dict[str, Any]:
    """Return a batch as Ultralytics takes it: centre and size of boxes as fractions, and the image of each."""
    images = batch.image
    valid = batch.valid if hasattr(batch, "valid") else torch.ones(len(images), dtype=torch.bool)
    shown = valid[batch.boxes_index]
    corner, stop = batch.boxes[shown].split(2, dim=1)
    fractions = torch.cat([(corner + stop) / 2, stop - corner], dim=1)
    fractions /= torch.tensor([images.shape[3], images.shape[2]] * 2)
    sizes = zip(batch.height[valid].tolist(), batch.width[valid].tolist(), strict=True)
    return {
        "img": images if valid.all() else images[valid],
        "cls": batch.classes[shown, None].float(),
        "bboxes": fractions,
        "batch_idx": (valid.cumsum(0) - 1)[batch.boxes_index[shown]].float(),
        "im_file": tuple(file for file, one in zip(batch.file, valid.tolist(), strict=True) if one),
        "ori_shape": tuple(sizes),
        "ratio_pad": [None] * int(valid.sum()),  # computed from the sizes
    }


class Trainer(DetectionTrainer):
    """The trainer of Ultralytics, with datasets of ours as ``train`` and ``val`` of its data.yaml."""

    def get_dataloader(self, dataset_path: str, batch_size: int = 16, mode: str = "train", **_: Any) -> Batches:
        """Return the batches of a dataset: augmented for training, each image once for validation."""
        trains, args = mode == "train", self.args
        fields = {"image": wt.Image(view=wt.Letterbox(args.imgsz)), **FIELDS}
        if trains:
            color = wt.HSV(args.hsv_h, args.hsv_s, args.hsv_v)
            fields |= {"image": wt.Image(view=self.training_view(), color=color), "boxes": VISIBLE}
        loader = wt.make_loader(
            dataset_path,
            batch_size=batch_size,
            shuffle=trains,
            seed=args.seed,
            tail="drop" if trains else "mask",
            num_workers=args.workers,
            fields=fields,
        )
        return Batches(loader, as_batch, batch_size)

    def training_view(self) -> wt.Schedule:
        """Return mosaics for all epochs but the last ones, whose images are whole: ``close_mosaic`` of Ultralytics."""
        args = self.args
        flips = {"flip": args.fliplr, "flip_vertical": args.flipud}
        whole: Any = wt.Letterbox(args.imgsz, **flips)
        scale = (1 - args.scale, 1 + args.scale)
        mosaic = wt.Mosaic(args.imgsz, scale=scale, translate=args.translate, p=args.mosaic, **flips)
        last = max(self.epochs - args.close_mosaic, 0) if args.mosaic else 0
        return wt.Schedule({0: mosaic, last: whole} if last else {0: whole})


def write_data_yaml(path: Path, train: Path, val: Path) -> None:
    """Write where the datasets are, and the names of the classes."""
    with wt.make_loader(train, batch_size=1, fields=("json",), num_workers=0) as loader:
        names = loader.field_classes["json:objects.category"].names
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"train": str(train.resolve()), "val": str(val.resolve()), "names": names}))  # is YAML


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a detector of Ultralytics.")
    parser.add_argument("train", type=Path, help="dataset to train on")
    parser.add_argument("val", type=Path, help="dataset to validate on")
    parser.add_argument("options", nargs="*", help="options of Ultralytics, such as model=yolo11n.pt epochs=10")
    args = parser.parse_args()
    data = Path("build/ultralytics/data.yaml")
    write_data_yaml(data, args.train, args.val)
    options = dict(option.split("=", 1) for option in args.options)
    defaults = {"model": "yolo11n.yaml", "data": str(data), "plots": False}
    Trainer(overrides={**defaults, **{name: value_of(text) for name, text in options.items()}}).train()


def value_of(text: str) -> Any:
    """Return a number, True, False or None as such, other text unchanged."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    main()
