"""Train a detector of torchvision: boxes and their classes move with the crop and the flip of the image.

    python examples/10_detection.py

The dataset is made from the sample photographs: on each, up to three others are pasted, whose boxes and classes are to
be found. Boxes are JSON as in COCO, ``{"objects": [{"bbox": [left, top, width, height], "category": 3}, ...]}``.
"""

import argparse
import io
import random
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn
from torchvision.transforms import v2

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent


def make_dataset(folder: Path, count: int) -> list[str]:
    """Pack photographs with pasted objects; return the names of their classes."""
    paths = sorted((ROOT / "shards/sample/images").glob("*/*.jpg"), key=lambda path: path.name)
    classes = sorted({path.parent.name for path in paths})
    rng = random.Random(0)
    with wt.ShardWriter(folder / "train-%06d.tar", maxcount=100, fresh=True) as writer:
        for number, path in enumerate(paths[:count]):
            image = Image.open(path).convert("RGB")
            objects = [paste(image, rng.choice(paths), classes, rng) for _ in range(rng.randint(1, 3))]
            data = io.BytesIO()
            image.save(data, "JPEG", quality=90)
            writer.write({"__key__": f"{number:06}", "jpg": data.getvalue(), "json": {"objects": objects}})
    return classes


def paste(image: Image.Image, path: Path, classes: list[str], rng: random.Random) -> dict[str, Any]:
    """Paste a photograph at a random position; return its box and class number, from 1 on as torchvision requires."""
    side = rng.randint(min(image.size) // 4, min(image.size) // 2)
    left, top = rng.randint(0, image.width - side), rng.randint(0, image.height - side)
    image.paste(Image.open(path).convert("RGB").resize((side, side)), (left, top))
    return {"bbox": [left, top, side, side], "category": 1 + classes.index(path.parent.name)}


def collate(samples: list[Any]) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    """Return images and targets as torchvision's detectors take them."""
    images = [sample.image / 255 for sample in samples]
    return images, [{"boxes": sample.boxes, "labels": sample.labels} for sample in samples]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a detector.")
    parser.add_argument("data", nargs="?", type=Path, default=ROOT / "shards/boxes", help="folder for the dataset")
    parser.add_argument("--count", type=int, default=400, help="photographs to use")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--size", type=int, default=224, help="pixels per side")
    args = parser.parse_args()
    classes = make_dataset(args.data, args.count)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    fields = {
        "image": wt.Image(view=wt.RandomResizedCrop(args.size, scale=(0.5, 1), flip=True)),
        "boxes": wt.Boxes("json", path="objects.bbox", like="image"),  # clipped; dropped if nothing is left
        "labels": wt.Field("json", path="objects.category", like="boxes"),  # those of the remaining boxes
    }
    # Called in the workers. The sanitizer removes boxes whose width or height the crop left below 8 pixels.
    augment = v2.Compose([v2.ColorJitter(0.3, 0.3), v2.SanitizeBoundingBoxes(min_size=8)])
    torch.manual_seed(0)
    few = {"rpn_pre_nms_top_n_train": 200, "rpn_post_nms_top_n_train": 64, "box_batch_size_per_image": 32}  # for a CPU
    sizes = {"min_size": args.size, "max_size": args.size}
    model = fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=1 + len(classes), **sizes, **few
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    with wt.make_loader(
        args.data,
        batch_size=8,
        shuffle=True,
        fields=fields,
        sample_transform=augment,
        collate_fn=collate,
        device=device,
    ) as loader:
        for epoch in range(args.epochs):
            objects = 0
            for images, targets in loader:
                losses = model(images, targets)
                loss = sum(losses.values())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                objects += sum(len(target["boxes"]) for target in targets)
            parts = ", ".join(f"{name} {value.item():.3f}" for name, value in losses.items())
            print(f"epoch {epoch}: {objects} objects, {parts}")


if __name__ == "__main__":
    main()
