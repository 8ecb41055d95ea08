"""Train with Lightning on several processes; checkpoints inside an epoch and at its end resume at the very next batch.

    pip install lightning
    python examples/01_pack_folder.py                      # writes shards/photos
    python examples/07_lightning.py --devices 2
    python examples/07_lightning.py --devices 2 --epochs 5 --resume build/lightning/last.ckpt

Lightning saves the state of the loader in its checkpoints and restores it. The loader detects its rank when an epoch
starts.
"""

import argparse
import json
from pathlib import Path

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torchmetrics.classification import MulticlassAccuracy
from torchvision.models import shufflenet_v2_x0_5

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on packed images with Lightning.")
    parser.add_argument("--data", default=ROOT / "shards/photos", help="dataset to train and to validate on")
    parser.add_argument("--devices", type=int, default=1, help="processes, each with its own device")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per batch of each process")
    parser.add_argument("--size", type=int, default=96, help="pixels per side")
    parser.add_argument("--out", type=Path, default=ROOT / "build/lightning", help="folder for checkpoints")
    parser.add_argument("--save-every", type=int, default=10, help="steps from one checkpoint to the next")
    parser.add_argument("--resume", help="checkpoint to continue from")
    parser.add_argument("--metrics", type=Path, help="file for a JSON line per step and rank: loss, and sample keys")
    return parser.parse_args()


class Classifier(LightningModule):
    """A small network without pretrained weights."""

    def __init__(self, classes: int, metrics: Path | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = shufflenet_v2_x0_5(weights=None, num_classes=classes)
        self.accuracy = MulticlassAccuracy(classes, average="micro")
        self.metrics = metrics

    def training_step(self, batch: tuple, _: int) -> torch.Tensor:
        """Return the loss of a batch."""
        images, labels, keys = batch
        loss = nn.functional.cross_entropy(self.model(images / 255), labels)
        if self.metrics:
            line = {"epoch": self.current_epoch, "step": self.global_step, "rank": self.global_rank, "keys": keys}
            with self.metrics.open("a") as file:
                file.write(json.dumps({**line, "loss": loss.item()}) + "\n")
        return loss

    def validation_step(self, batch: tuple, _: int) -> None:
        """Update the accuracy, without the padding of the last batches."""
        images, labels, valid = batch
        self.accuracy.update(self.model(images / 255)[valid], labels[valid])
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)


def main() -> None:
    args = parse()
    # Created before Lightning starts its processes. On GPUs, create them in the LightningModule's train_dataloader()
    # with device=self.device instead: then each batch is copied while the previous one is used.
    train = wt.make_loader(
        args.data,
        batch_size=args.batch_size,
        view=wt.RandomResizedCrop(args.size, scale=(0.35, 1.0), flip=True),
        shuffle=True,
        fields=("image", "label", "__key__"),
    )
    val = wt.make_loader(
        args.data,
        batch_size=args.batch_size,
        view=wt.CenterCrop(args.size, resize=args.size * 8 // 7),
        tail="mask",  # pads the last batches and marks the padding
    )
    every_steps = ModelCheckpoint(
        args.out, filename="{step}", every_n_train_steps=args.save_every, save_top_k=-1, save_last="link"
    )
    every_epoch = ModelCheckpoint(args.out, filename="{epoch}", save_on_train_epoch_end=True, save_top_k=-1)
    trainer = Trainer(
        devices=args.devices,
        strategy="ddp" if args.devices > 1 else "auto",
        accelerator="gpu" if torch.cuda.device_count() >= args.devices else "cpu",
        max_epochs=args.epochs,
        callbacks=[every_steps, every_epoch],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(len(train.classes), args.metrics), train, val, ckpt_path=args.resume)
    proof = train.epoch_proof()  # compares all ranks
    if trainer.is_global_zero:
        print(f"{proof}; accuracy {trainer.callback_metrics['accuracy']:.1%}")


if __name__ == "__main__":
    main()
