"""Train on images and captions as CLIP does: the tokenizer runs in the workers.

    python examples/12_captions.py

The dataset is made from the sample photographs and captions such as "a wide photo of a cat". Your own captions: a
column ``caption`` of the table that ``wds-tools pack`` reads, or added to a packed dataset by
``wds-tools add-fields DATASET --from captions.parquet``. Shards of img2dataset have them in the field ``txt``.
"""

import argparse
import zlib
from pathlib import Path

import torch
from PIL import Image
from torch import nn

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent
WORDS, LENGTH, DIMENSIONS = 1000, 8, 64


def make_dataset(folder: Path, count: int) -> None:
    """Pack photographs with captions."""
    paths = sorted((ROOT / "shards/sample/images").glob("*/*.jpg"), key=lambda path: path.name)[:count]
    with wt.ShardWriter(folder / "train-%06d.tar", maxcount=100, fresh=True) as writer:
        for number, path in enumerate(paths):
            width, height = Image.open(path).size
            caption = f"a {'wide' if width > height else 'tall'} photo of a {path.parent.name}"
            writer.write({"__key__": f"{number:06}", "jpg": path.read_bytes(), "txt": caption})


def tokenize(text: str) -> torch.Tensor:
    """Return the number of each word: int64 [LENGTH], 0 is padding. Any function of a text can take its place."""
    numbers = [1 + zlib.crc32(word.encode()) % (WORDS - 1) for word in text.lower().split()][:LENGTH]
    return torch.tensor(numbers + [0] * (LENGTH - len(numbers)))


class ImagesAndTexts(nn.Module):
    """Return the similarity of each image to each text: [B, 3, H, W] and [B, LENGTH] to [B, B]."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        self.images = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, DIMENSIONS))
        self.texts = nn.EmbeddingBag(WORDS, DIMENSIONS, padding_idx=0)

    def forward(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Return scaled cosines."""
        image = nn.functional.normalize(self.images(images), dim=1)
        return image @ nn.functional.normalize(self.texts(tokens), dim=1).T / 0.07


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on images and captions.")
    parser.add_argument("data", nargs="?", type=Path, default=ROOT / "shards/captions", help="folder for the dataset")
    parser.add_argument("--count", type=int, default=400, help="photographs to use")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--size", type=int, default=64, help="pixels per side")
    args = parser.parse_args()
    make_dataset(args.data, args.count)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    fields = {
        "image": wt.Image(view=wt.RandomResizedCrop(args.size, scale=(0.5, 1), flip=True)),
        "tokens": wt.Text("txt", encode=tokenize),  # tensors of one shape are stacked
        "caption": wt.Text("txt"),
    }
    torch.manual_seed(0)
    model = ImagesAndTexts().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with wt.make_loader(args.data, batch_size=32, shuffle=True, fields=fields, device=device) as loader:
        for epoch in range(args.epochs):
            for batch in loader:
                # image: uint8 [32, 3, size, size]; tokens: int64 [32, LENGTH]; caption: list of 32 texts
                similarity = model(batch.image.float() / 127.5 - 1, batch.tokens)
                own = torch.arange(len(similarity), device=device)
                losses = [nn.functional.cross_entropy(one, own) for one in (similarity, similarity.T)]
                loss = sum(losses) / 2
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            best = batch.caption[similarity[0].argmax()]
            print(f"epoch {epoch}: loss {loss.item():.3f}; for {batch.caption[0]!r} the best text is {best!r}")


if __name__ == "__main__":
    main()
