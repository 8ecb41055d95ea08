"""Train a ResNet-50 on many GPUs: DDP, bf16, channels-last, exact evaluation, and resume with another number of GPUs.

    wds-tools pack imagenet/train shards/imagenet/train && wds-tools pack imagenet/val shards/imagenet/val
    torchrun --nproc-per-node 8 examples/05_ddp_imagenet.py --train shards/imagenet/train --val shards/imagenet/val
    torchrun --nproc-per-node 4 examples/05_ddp_imagenet.py --train ... --val ... --resume     # continues on 4 GPUs

The batch size is that of all ranks together, so a step has the same samples on any number of GPUs. The state of the
loader is a few values that do not depend on ranks. Without a GPU the script runs on the CPU with gloo.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wds_tools as wt

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a ResNet-50 on many GPUs.")
    parser.add_argument("--train", required=True, help="packed dataset to train on")
    parser.add_argument("--val", required=True, help="packed dataset to measure the accuracy on")
    parser.add_argument("--model", default="resnet50", help="a classification model of torchvision")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=1024, help="samples per step over all ranks")
    parser.add_argument("--size", type=int, default=224, help="pixels per side")
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--workers", type=int, help="workers per rank; by default the cores divided among the ranks")
    parser.add_argument("--checkpoint", type=Path, default=Path("build/imagenet.pt"))
    parser.add_argument("--save-every", type=int, default=500, help="steps between two checkpoints")
    parser.add_argument("--stop-after", type=int, help="stop after this many steps, like a preempted job")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("start it with torchrun, such as torchrun --nproc-per-node 1 examples/05_ddp_imagenet.py ...")
    return args


@torch.no_grad()
def accuracy(model: nn.Module, loader: wt.Loader) -> tuple[int, int]:
    """Return the number of correct answers and of samples over all ranks. Each sample counts once."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=loader.device)  # correct, all
    for images, labels, valid in loader:  # padding, which makes the steps of all ranks equal, is not valid
        with torch.autocast(loader.device.type, torch.bfloat16):
            correct = model(images).argmax(1) == labels
        counts += torch.stack([(correct & valid).sum(), valid.sum()])
    model.train()
    dist.all_reduce(counts)
    return int(counts[0]), int(counts[1])


def save(path: Path, **state: object) -> None:
    """Write a checkpoint atomically: after a kill there is the old one or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").replace(path)


def main() -> None:
    args = parse()
    cuda = torch.cuda.device_count() > 0
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("nccl" if cuda else "gloo", device_id=device if cuda else None)
    rank, world = dist.get_rank(), dist.get_world_size()
    options = {
        "batch_size": args.batch_size // world,
        "num_workers": args.workers,
        "device": device,
        "batch_transform": wt.Normalize(MEAN, STD, dtype=torch.bfloat16, channels_last=True),
    }
    crop, center = wt.RandomResizedCrop(args.size, flip=True), wt.CenterCrop(args.size, resize=args.size * 8 // 7)
    loader = wt.make_loader(args.train, view=crop, shuffle=True, lanes=1, **options)
    val_loader = wt.make_loader(args.val, view=center, tail="mask", **options)

    torch.manual_seed(0)
    model = torchvision.models.get_model(args.model, num_classes=len(loader.classes))
    model = model.to(device, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=5e-5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs * len(loader))
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader}
    if args.resume:
        saved = torch.load(args.checkpoint, map_location=device, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    parallel = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)

    step = scheduler.last_epoch
    for epoch in range(loader.epoch, args.epochs):
        for images, labels in loader:
            with torch.autocast(device.type, torch.bfloat16):
                loss = nn.functional.cross_entropy(parallel(images), labels, label_smoothing=0.1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if rank == 0 and (step % args.save_every == 0 or loader.epoch > epoch or step == args.stop_after):
                save(args.checkpoint, **{name: part.state_dict() for name, part in parts.items()})
            if step == args.stop_after:
                break
        if step == args.stop_after:
            break
        proof = loader.epoch_proof()  # that all ranks together have delivered each sample once
        correct, samples = accuracy(model, val_loader)
        if rank == 0:
            print(f"{proof}; step {step}, loss {loss.item():.3f}, accuracy {correct / samples:.1%} of {samples}")
    loader.close()
    val_loader.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
