"""Draw hard samples more often: weights from a running loss of each sample, changed every N steps; resume.

    python examples/01_pack_folder.py                                # writes shards/photos
    python examples/15_reweight_from_loss.py --steps 200
    python examples/15_reweight_from_loss.py --steps 400 --resume    # continues with the next batch
    torchrun --nproc-per-node 2 examples/15_reweight_from_loss.py

A sample whose running loss is twice the mean has the weight 2, within 1/4 and 4. Samples that were not drawn yet have
the weight 1. All ranks must make the same call, so they exchange their losses before it. The weights are in a file next
to the checkpoint, and the state of the loader has its hash.
"""

import argparse
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import wds_tools as wt

ROOT = Path(__file__).resolve().parent.parent
MOMENTUM = 0.7  # of the running loss
LEAST, MOST = 0.25, 4.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Draw hard samples more often.")
    parser.add_argument("--data", default=ROOT / "shards/photos", help="dataset to train on")
    parser.add_argument("--steps", type=int, default=200, help="steps from the start of the run")
    parser.add_argument("--every", type=int, default=50, help="steps from one change of the weights to the next")
    parser.add_argument("--batch-size", type=int, default=16, help="samples per batch of each rank")
    parser.add_argument("--size", type=int, default=32, help="pixels per side")
    parser.add_argument("--folder", type=Path, default=ROOT / "build/reweight", help="folder for checkpoints")
    parser.add_argument("--resume", action="store_true", help="continue from the checkpoint")
    return parser.parse_args()


def weights_of(losses: dict[str, float]) -> dict[str, float]:
    """Return the weight of each sample from its running loss."""
    mean = sum(losses.values()) / len(losses)
    return {key: min(max(loss / mean, LEAST), MOST) for key, loss in losses.items()}


def of_all_ranks(recent: dict[str, float]) -> dict[str, float]:
    """Return the losses of all ranks since the last exchange, in the same order on each rank."""
    if not dist.is_initialized():
        return recent
    parts: list[dict[str, float]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(parts, recent)
    return {key: loss for part in parts for key, loss in part.items()}


def endless(loader: wt.Loader) -> Iterator[Any]:
    """Yield the batches of one epoch after another."""
    while True:
        yield from loader


def main() -> None:
    args = parse()
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(0)
    view = wt.RandomResizedCrop(args.size, flip=True)
    loader = wt.make_loader(
        args.data, batch_size=args.batch_size, view=view, shuffle=True, fields=("image", "label", "__key__")
    )
    model = nn.Sequential(nn.AdaptiveAvgPool2d(8), nn.Flatten(), nn.Linear(192, max(2, len(loader.classes))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    trained = DistributedDataParallel(model) if dist.is_initialized() else model
    losses: dict[str, float] = {}  # running loss by key
    recent: dict[str, float] = {}  # those that have changed on this rank since the last exchange
    step = 0
    args.folder.mkdir(parents=True, exist_ok=True)
    checkpoint = args.folder / "checkpoint.pt"
    if args.resume:
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        losses, step = saved["losses"], saved["step"]

    for images, labels, keys in itertools.islice(endless(loader), args.steps - step):
        of_sample = nn.functional.cross_entropy(trained(images / 255), labels, reduction="none")
        optimizer.zero_grad()
        of_sample.mean().backward()
        optimizer.step()
        step += 1
        for key, loss in zip(keys, of_sample.tolist(), strict=True):
            recent[key] = MOMENTUM * recent.get(key, losses.get(key, loss)) + (1 - MOMENTUM) * loss
        if step % args.every:
            continue
        losses |= of_all_ranks(recent)
        recent.clear()
        weights = weights_of(losses)
        loader.reweight(samples=weights, save_to=args.folder / f"weights-{step}.npy")
        if rank == 0:
            hardest = max(weights, key=weights.__getitem__)
            print(f"step {step}: loss {of_sample.mean():.3f}, hardest {hardest} (weight {weights[hardest]:.2f})")
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save({**state, "loader": loader.state_dict(), "losses": losses}, checkpoint)
    if rank == 0:
        print(loader.epoch_proof())
    loader.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
