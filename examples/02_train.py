"""Train a ResNet-18 on packed images, on the CPU or on GPUs, in one process or many; resume at the very next batch.

    python examples/01_pack_folder.py                      # writes shards/photos
    python examples/02_train.py --epochs 3
    python examples/02_train.py --epochs 6 --resume        # continues from the checkpoint
    python examples/02_train.py --images photos/ --data shards/new   # packs photos/ into shards/new while it trains
    torchrun --nproc-per-node 2 examples/02_train.py       # the loader detects rank and world size

A checkpoint contains the model, the optimizer and the loader's state: a few values that do not depend on ranks and
workers. You may stop the script at any time, even with kill -9. With --resume it continues with the batch after the
last checkpoint.
"""

import argparse
import json
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torchvision.models import resnet18
from torchvision.transforms import v2

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent

# Runs on the device, on a whole batch: uint8 [B, 3, H, W] becomes normalised float32.
NORMALISE = v2.Compose(
    [v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])]
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a ResNet-18 on packed images.")
    parser.add_argument("--data", default=ROOT / "shards/photos", help="dataset to train on")
    parser.add_argument("--images", type=Path, help="images to pack into --data while the first epoch trains")
    parser.add_argument("--val", help="dataset to measure the accuracy on after each epoch")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per batch of each rank")
    parser.add_argument("--size", type=int, default=96, help="pixels per side")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--checkpoint", type=Path, default=ROOT / "build/checkpoint.pt")
    parser.add_argument("--save-every", type=int, default=10, help="steps from one checkpoint to the next")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    parser.add_argument("--metrics", type=Path, help="file for a JSON line per step and rank: loss, and sample keys")
    return parser.parse_args()


def save(path: Path, **state: object) -> None:
    """Write a checkpoint atomically: after a kill there is the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


@torch.no_grad()
def accuracy(model: nn.Module, data: str, args: argparse.Namespace, device: torch.device) -> float:
    """Return the accuracy of the model on a dataset, over all ranks."""
    view = wt.CenterCrop(args.size, resize=args.size * 8 // 7)
    counts = torch.zeros(2, device=device)  # correct, all
    model.eval()
    with wt.make_loader(
        data, batch_size=args.batch_size, view=view, tail="mask", device=device, batch_transform=NORMALISE
    ) as loader:
        for images, labels, valid in loader:  # padding is not valid
            counts += torch.stack([((model(images).argmax(1) == labels) & valid).sum(), valid.sum()])
    model.train()
    if dist.is_initialized():
        dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def main() -> None:
    args = parse()
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if "WORLD_SIZE" in os.environ:  # started by torchrun
        dist.init_process_group("nccl" if cuda else "gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0

    loader = wt.make_loader(
        args.images or args.data,
        pack_to=args.data if args.images else None,
        batch_size=args.batch_size,
        view=wt.RandomResizedCrop(args.size, scale=(0.35, 1.0), flip=True),
        shuffle=True,
        seed=0,
        fields=("image", "label", "__key__"),
        device=device,
        batch_transform=NORMALISE,
    )
    torch.manual_seed(0)
    model = resnet18(weights=None, num_classes=len(loader.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    step = 0
    if args.resume:
        saved = torch.load(args.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # a state of another dataset or seed is refused
        step = saved["step"]
    parallel = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model

    for epoch in range(loader.epoch, args.epochs):
        for images, labels, keys in loader:
            loss = nn.functional.cross_entropy(parallel(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if args.metrics:
                line = {"epoch": epoch, "step": step, "rank": rank, "loss": loss.item(), "keys": keys}
                with args.metrics.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            if rank == 0 and (
                step % args.save_every == 0 or loader.epoch > epoch
            ):  # every few steps, and at the end of the epoch
                parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(args.checkpoint, step=step, loader=loader.state_dict(), **parts)
        held_out = f", accuracy {accuracy(model, args.val, args, device):.1%}" if args.val else ""
        if rank == 0:
            print(f"epoch {epoch}: step {step}, loss {loss.item():.3f}{held_out}", flush=True)
    loader.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
