"""Stream packed images through torch's own DataLoader, for a training script that must keep it.

    python examples/01_pack_folder.py                      # writes shards/photos
    python examples/03_plain_dataloader.py

The order is that of ``make_loader``, which also offers exact resume, copies to the GPU and padding for evaluation.
"""

import argparse
from pathlib import Path

import torch
from torch.utils.data import DataLoader

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Stream packed images through torch's DataLoader.")
    parser.add_argument("data", nargs="?", default=ROOT / "shards/photos", help="a packed dataset")
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()

    # Both get the same batch_size, so that each worker makes whole batches.
    dataset = wt.StreamingDataset(
        args.data, batch_size=32, view=wt.RandomResizedCrop(96, flip=True), shuffle=True, fields=("image", "label")
    )
    loader = DataLoader(dataset, batch_size=32, num_workers=2)

    for epoch in range(args.epochs):  # each iteration over the loader is the next epoch
        counts = torch.zeros(len(dataset.classes), dtype=torch.int64)
        samples = 0
        for images, labels in loader:
            samples += len(images)
            counts += labels.bincount(minlength=len(counts))
        print(f"epoch {epoch}: {samples} of {len(dataset)} samples, as batches {images.dtype} {list(images.shape)}")
        for name, count in zip(dataset.classes, counts.tolist(), strict=True):
            print(f"  {name:12} {count}")


if __name__ == "__main__":
    main()
