"""Train a segmentation network: image and mask with the same crop and flip.

    python examples/09_segmentation.py

The dataset is made from the sample photographs; the mask of each is its pixels that are brighter than its mean. For
your own masks, use PNG files with a class number per pixel, in a column ``mask.png`` of the table that ``wds-tools
pack`` reads, or added to a packed dataset by ``wds-tools add-fields DATASET --from masks/ --field mask.png=png``.
"""

import argparse
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent
CLASSES = 2


def make_dataset(folder: Path, count: int) -> None:
    """Pack photographs with masks."""
    paths = sorted((ROOT / "shards/sample/images").glob("*/*.jpg"), key=lambda path: path.name)[:count]
    with wt.ShardWriter(folder / "train-%06d.tar", maxcount=100, fresh=True) as writer:
        for number, path in enumerate(paths):
            grey = np.asarray(Image.open(path).convert("L"))
            mask = io.BytesIO()
            Image.fromarray((grey > grey.mean()).astype(np.uint8)).save(mask, "PNG")
            writer.write({"__key__": f"{number:06}", "jpg": path.read_bytes(), "mask.png": mask.getvalue()})


def network() -> nn.Module:
    """Return a small fully convolutional network: [B, 3, H, W] to [B, classes, H, W]."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Conv2d(32, CLASSES, 1), nn.Upsample(scale_factor=2, mode="bilinear"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a segmentation network.")
    parser.add_argument("data", nargs="?", type=Path, default=ROOT / "shards/masks", help="folder for the dataset")
    parser.add_argument("--count", type=int, default=400, help="photographs to use")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--size", type=int, default=96, help="pixels per side")
    args = parser.parse_args()
    make_dataset(args.data, args.count)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    fields = {
        "image": wt.Image(view=wt.RandomResizedCrop(args.size, scale=(0.3, 1), flip=True)),
        "mask": wt.Mask("mask.png", like="image"),
    }
    torch.manual_seed(0)
    model = network().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with wt.make_loader(args.data, batch_size=16, shuffle=True, fields=fields, device=device) as loader:
        for epoch in range(args.epochs):
            right = total = 0
            for images, masks in loader:  # uint8 [16, 3, size, size] and uint8 [16, size, size]
                scores = model(images.float() / 127.5 - 1)
                loss = nn.functional.cross_entropy(scores, masks.long())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right += (scores.argmax(1) == masks).sum().item()
                total += masks.numel()
            print(f"epoch {epoch}: loss {loss.item():.3f}, {right / total:.1%} of the pixels right")


if __name__ == "__main__":
    main()
