"""Self-supervised training as in DINO: two large and eight small crops of each image, which is decoded once.

    python examples/01_pack_folder.py                      # writes shards/photos
    python examples/11_self_supervised.py

The student sees all crops, the teacher only the large ones. The student learns to predict what the teacher returns for
another crop of the same image. The weights of the teacher are a moving average of those of the student.
"""

import argparse
import copy
from pathlib import Path

import torch
from torch import nn

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent
DIMENSIONS = 64
# Called on the device, on the batch of each crop. Random numbers are different for each crop.
AUGMENT = [wt.ColorJitter(0.4, 0.4, 0.2), wt.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]


def network() -> nn.Module:
    """Return a small network for images of any size: [B, 3, H, W] to [B, dimensions]."""
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, DIMENSIONS))


def dino_loss(students: list[torch.Tensor], teachers: list[torch.Tensor], centre: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy over all pairs of different crops."""
    targets = [((teacher - centre) / 0.04).softmax(1) for teacher in teachers]
    predictions = [(student / 0.1).log_softmax(1) for student in students]
    pairs = [(t, s) for i, t in enumerate(targets) for j, s in enumerate(predictions) if i != j]
    return torch.stack([-(t * s).sum(1).mean() for t, s in pairs]).mean()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train without labels on many crops of each image.")
    parser.add_argument("data", nargs="?", default=ROOT / "shards/photos", help="a packed dataset")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--sizes", type=int, nargs=2, default=(96, 48), help="pixels per side of large and small crops")
    args = parser.parse_args()

    large = wt.RandomResizedCrop(args.sizes[0], scale=(0.4, 1), flip=True)
    small = wt.RandomResizedCrop(args.sizes[1], scale=(0.05, 0.4), flip=True)
    fields = {"image": wt.Image(view=[large] * 2 + [small] * 8)}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    student = network().to(device)
    teacher = copy.deepcopy(student).requires_grad_(requires_grad=False)
    centre = torch.zeros(DIMENSIONS, device=device)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    with wt.make_loader(
        args.data, batch_size=args.batch_size, shuffle=True, fields=fields, device=device, batch_transform=AUGMENT
    ) as loader:
        for epoch in range(args.epochs):
            for (crops,) in loader:  # ten tensors: float32 [B, 3, 96, 96] twice, [B, 3, 48, 48] eight times
                with torch.no_grad():
                    teachers = [teacher(crop) for crop in crops[:2]]
                loss = dino_loss([student(crop) for crop in crops], teachers, centre)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                centre.lerp_(torch.cat(teachers).mean(0), 0.1)
                for average, new in zip(teacher.parameters(), student.parameters(), strict=True):
                    average.lerp_(new.detach(), 0.01)
            shapes = ", ".join(f"{shape}" for shape in sorted({tuple(crop.shape) for crop in crops}, reverse=True))
            print(f"epoch {epoch}: loss {loss.item():.3f}, {len(crops)} crops per image: {shapes}")


if __name__ == "__main__":
    main()
