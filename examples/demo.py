"""The program of `make demo`: pack the sample images, verify them, stream them, and train a small model on them."""

import contextlib
import io
import os
import shlex
import shutil
import sys
import time
from pathlib import Path

import torch
from torch import nn

import wds_tools as wt
from wds_tools import cli

ROOT = Path(__file__).resolve().parent.parent
PHOTOS = Path("shards/sample/images")  # relative paths, because the commands are printed; main() changes to ROOT
TRAIN, VAL = Path("shards/demo/train"), Path("shards/demo/val")
HELD_OUT = 5  # every fifth image of a class
SIZE, BATCH_SIZE, EPOCHS, LEARNING_RATE = 64, 32, 8, 3e-3
MEASURE_SECONDS, TRAIN_SECONDS = 3.0, 30.0  # the limit for training on a busy machine


def main() -> None:
    os.chdir(ROOT)
    started = time.monotonic()
    title("1. Pack: image folders become shards, each with an index, and a manifest")
    split(PHOTOS, Path("build/demo"))
    for part in (TRAIN, VAL):
        wds_tools("pack", f"build/demo/{part.name}", part, "--shard-bytes", "1MB", "--workers", "1", "--fresh")
    show_folder(TRAIN)

    title("2. Inspect and verify: every checksum of the shards on disk")
    wds_tools("info", TRAIN)
    wds_tools("verify", TRAIN)
    wds_tools("verify", VAL)

    title("3. Stream: RandomResizedCrop(224) and a flip, as for ImageNet training, without a model")
    measure_loader()

    title("4. Resume: the next batch depends only on the state")
    show_resume()

    title(f"5. Train: a small network from scratch, at {SIZE} pixels, on the CPU")
    train()

    title(f"Done in {time.monotonic() - started:.0f} s. Next steps")
    print("  README.md               the loader on one page, and how to pack your own folder")
    print("  examples/02_train.py    training with checkpoints, on one GPU or on many with torchrun")
    print("  docs/how-it-works.md    why the order is the same on any number of workers and ranks")
    print("  docs/format.md          the files that are now in shards/demo/")
    print(f"  wds-tools view {TRAIN}   look at this data in the browser (pip install 'wds-tools[serve]')")
    print("  make test               all tests;  make help  the other targets")


def title(text: str) -> None:
    print(f"\n== {text}\n", flush=True)


def wds_tools(*words: str | Path) -> None:
    """Print a command of wds-tools, run it, and print its output without its advice on the next step."""
    arguments = [str(word) for word in words]
    print(f"$ wds-tools {shlex.join(arguments)}", flush=True)
    code: object = 0
    with contextlib.redirect_stdout(io.StringIO()) as output:
        try:
            cli.main(arguments)
        except SystemExit as end:
            code = end.code
    print(output.getvalue().partition("\nnext: ")[0].rstrip() + "\n")
    if code:
        sys.exit(f"demo: that command failed with exit code {code}")


def split(photos: Path, to: Path) -> None:
    """Link the images into two folders: ``train``, and ``val`` with those held out."""
    shutil.rmtree(to, ignore_errors=True)
    counts = {"train": 0, "val": 0}
    for folder in sorted(photos.iterdir()):
        for number, path in enumerate(sorted(folder.iterdir())):
            part = "val" if number % HELD_OUT == HELD_OUT - 1 else "train"
            (to / part / folder.name).mkdir(parents=True, exist_ok=True)
            (to / part / folder.name / path.name).symlink_to(path.resolve())
            counts[part] += 1
    print(f"{photos}: {counts['train']} images to train on, {counts['val']} held out (every {HELD_OUT}th of a class)\n")


def show_folder(folder: Path) -> None:
    print(f"{folder}/")
    for path in sorted(folder.iterdir()):
        print(f"  {path.name:22} {path.stat().st_size:>9,} bytes")


def measure_loader() -> None:
    workers = min(2, os.cpu_count() or 1)
    view = wt.RandomResizedCrop(224, flip=True)
    with wt.make_loader(TRAIN, batch_size=BATCH_SIZE, view=view, shuffle=True, num_workers=workers) as loader:
        for images, labels in loader:  # the first epoch starts the workers
            shapes = f"images {images.dtype} {list(images.shape)}, labels {labels.dtype} {list(labels.shape)}"
        count, started = 0, time.monotonic()
        while (seconds := time.monotonic() - started) < MEASURE_SECONDS:
            for images, _ in loader:
                count += len(images)
    print(f"a batch is {shapes}")
    print(f"{count / seconds:,.0f} images per second, decoded, checksummed, cropped and resized by {workers} workers")


def show_resume() -> None:
    def make(workers: int) -> object:
        view = wt.RandomResizedCrop(SIZE, flip=True)
        return wt.make_loader(TRAIN, batch_size=BATCH_SIZE, view=view, shuffle=True, num_workers=workers)

    with make(2) as first, make(1) as second:
        batches = iter(first)
        for _ in range(3):
            next(batches)
        state = first.state_dict()
        expected = next(batches)
        second.load_state_dict(state)
        got = next(iter(second))
    print(f"stopped after 3 of {len(first)} steps with 2 workers, in this state:\n  {state}")
    same = torch.equal(got.image, expected.image) and torch.equal(got.label, expected.label)
    verdict = "the same, pixel by pixel" if same else "DIFFERENT"
    print(f"another loader with 1 worker continues from it: its next batch is {verdict}")
    if not same:
        sys.exit("demo: the batch after the resume differs from the expected one")


def network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 24), (24, 48), (48, 96)):
        convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
        layers += [convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, classes))


def normalise(images: torch.Tensor) -> torch.Tensor:
    """Turn a batch of uint8 into float32 from -1 to 1."""
    return images.float().div_(127.5).sub_(1)


def train() -> None:
    torch.manual_seed(0)
    shared = {"batch_size": BATCH_SIZE, "num_workers": 2, "batch_transform": normalise}
    view = wt.RandomResizedCrop(SIZE, scale=(0.3, 1.0), flip=True)
    loader = wt.make_loader(TRAIN, view=view, shuffle=True, seed=0, **shared)
    held_out = wt.make_loader(VAL, view=wt.CenterCrop(SIZE, resize=SIZE * 8 // 7), tail="mask", **shared)
    model = network(len(loader.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=EPOCHS * len(loader))
    print(f"{len(loader.classes)} classes, so chance is {1 / len(loader.classes):.1%}")
    started = time.monotonic()
    with loader, held_out:
        for epoch in range(EPOCHS):
            if time.monotonic() - started > TRAIN_SECONDS:
                print(f"stopped: the limit of {TRAIN_SECONDS:.0f} seconds was reached")
                break
            losses = []
            for images, labels in loader:
                loss = nn.functional.cross_entropy(model(images), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                losses.append(loss.item())
            held_out_accuracy = accuracy(model, held_out)
            mean = sum(losses) / len(losses)
            print(
                f"epoch {epoch + 1:2}   loss {mean:.2f}   held-out accuracy {held_out_accuracy:6.1%} "
                f"{'#' * round(40 * held_out_accuracy)}",
                flush=True,
            )
    print(
        "\nThe held-out images were not used for training, but they are crops of the same eight photographs. This shows"
    )
    print("that packing, loading and training work together. It says nothing about the quality of the model.")


@torch.no_grad()
def accuracy(model: nn.Module, loader: object) -> float:
    """Return the accuracy of the model; the padding of the last batch is not counted."""
    correct = total = 0
    model.eval()
    for images, labels, valid in loader:
        correct += int(((model(images).argmax(1) == labels) & valid).sum())
        total += int(valid.sum())
    model.train()
    return correct / total


if __name__ == "__main__":
    main()
