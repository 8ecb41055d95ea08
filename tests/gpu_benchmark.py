"""The GPU part of the benchmark, for ``make gpu``: it prints the table for docs/performance.md.

    python tests/gpu_benchmark.py            # needs a CUDA device; about four minutes, no network

It packs the sample photographs several times over as crop-ready shards, and measures the loader alone, the copies, and
training steps. ``--rehearse`` runs everything for a moment on the CPU, to test this script; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PHOTOS = Path(__file__).resolve().parents[1] / "shards" / "sample" / "images"
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


@dataclass(frozen=True)
class Scale:
    """How much is measured, and where."""

    device: str = "cuda"
    copies: int = 16  # of the 400 photographs
    batch: int = 256
    size: int = 224
    seconds: float = 6.0
    workers: tuple[int, ...] = (1, 2, 4, 8, 16)
    finished: int = 12  # batches that workers may have finished while the loader was not read
    steps: int = 60
    rounds: int = 3
    compared: int = 200  # batches


REHEARSAL = Scale("cpu", 1, 4, 32, 0.2, (1,), 2, 2, 1, 4)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the loader with a GPU.")
    parser.add_argument("--rehearse", action="store_true", help="run everything for a moment on the CPU")
    run(REHEARSAL if parser.parse_args().rehearse else Scale())


def run(scale: Scale) -> None:
    """Print a Markdown table with all figures."""
    import torch

    name = torch.cuda.get_device_name() if scale.device == "cuda" else "CPU (a rehearsal: these figures mean nothing)"
    shape = f"{scale.batch} x {scale.size} x {scale.size}"
    print(f"\n{name}, torch {torch.__version__}, {_cores()} cores, batches of {shape}\n")
    print("| measured | result |\n|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        dataset = pack(Path(folder), scale)
        for what, result in itertools.chain(
            loader_alone(dataset, scale), link(scale), equal_batches(dataset, scale), training(dataset, scale)
        ):
            print(f"| {what} | {result} |", flush=True)


def pack(folder: Path, scale: Scale) -> Path:
    """Pack the photographs several times over, as crop-ready shards."""
    import wds_tools as wt

    for copy, path in itertools.product(range(scale.copies), sorted(PHOTOS.glob("*/*"))):
        link = folder / "images" / path.parent.name / f"{copy:02}-{path.name}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    wt.pack(folder / "images", folder / "packed", images="crop-ready", shard_bytes="32MB")
    return folder / "packed"


def loader_alone(dataset: Path, scale: Scale) -> Iterator[tuple[str, str]]:
    """Measure how fast batches arrive on the device if nothing uses them."""
    cores = _cores()
    for workers in scale.workers:
        with _loader(dataset, scale, num_workers=workers) as loader:
            batches = _endless(loader)
            for _ in range(2 * workers):
                next(batches)
            count, seconds = _count(batches, scale)
        on = "" if workers <= cores else f" (on {cores} cores)"
        yield f"loader alone, {workers} workers{on}", f"{count * scale.batch / seconds:,.0f} images/s"


def link(scale: Scale) -> Iterator[tuple[str, str]]:
    """Measure copies from batch slots against the fastest copy that the link allows."""
    import torch

    from wds_tools.loading.fields.slots import SlotLayout, TensorSpec
    from wds_tools.loading.pipeline.copier import CudaCopier
    from wds_tools.loading.pipeline.cuda import CudaDriver
    from wds_tools.loading.pipeline.ring import Ring

    if scale.device != "cuda":
        return
    pinned = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    on_device = torch.empty_like(pinned, device="cuda")
    limit = max(pinned.numel() / _timed(lambda: on_device.copy_(pinned, non_blocking=True)) for _ in range(20))
    layout = SlotLayout((TensorSpec((3, scale.size, scale.size), torch.uint8),))
    ring = Ring(slots=8, rows=scale.batch, layouts=[layout])
    copier = CudaCopier(CudaDriver(torch.device("cuda", torch.cuda.current_device())), ring)

    def copy(count: int) -> None:
        for _ in range(count):
            copier.release_copied(at_least_one=not ring.free)
            copier.finish(copier.start([None], ring.take()))

    _timed(lambda: copy(50))
    rate = 200 * ring.tensors(0)[0].numel() / _timed(lambda: copy(200))
    copier.close()
    yield "copies from batch slots", f"{rate / 1e9:.1f} GB/s, the link {limit / 1e9:.1f} GB/s: {rate / limit:.2f}"


def equal_batches(dataset: Path, scale: Scale) -> Iterator[tuple[str, str]]:
    """Compare batches on the device with those in CPU memory, while some are kept and the device is busy."""
    import torch

    small = Scale(**{**scale.__dict__, "batch": min(64, scale.batch)})
    kept: list[Any] = []
    different = 0
    with _loader(dataset, small) as cuda, _loader(dataset, Scale(**{**small.__dict__, "device": "cpu"})) as host:
        pairs = zip(_endless(cuda), _endless(host), strict=True)
        for number, ((images, labels), (expected, expected_labels)) in enumerate(
            itertools.islice(pairs, scale.compared)
        ):
            if number % 3:
                kept = [*kept[-4:], images]
            if number % 5 == 0 and scale.device == "cuda":
                torch.cuda._sleep(20_000_000)  # noqa: SLF001 - not public
            different += not (torch.equal(images.cpu(), expected) and torch.equal(labels.cpu(), expected_labels))
            del images
    yield f"{scale.compared} batches compared with the CPU's", f"{different} different"


def training(dataset: Path, scale: Scale) -> Iterator[tuple[str, str]]:
    """Measure training steps of a ResNet-50 with the loader against the same steps on one repeated batch."""
    import torch

    try:
        from torchvision.models import resnet50
    except (ImportError, RuntimeError) as error:
        yield "ResNet-50, bf16", f"not measured: torchvision cannot be imported ({error})"
        return
    model = resnet50().to(scale.device, memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    mean, std = (torch.tensor(values, device=scale.device).view(3, 1, 1) for values in (MEAN, STD))

    def step(images: Any, labels: Any) -> None:
        with torch.autocast(scale.device, torch.bfloat16):
            inputs = ((images - mean) / std).to(torch.bfloat16, memory_format=torch.channels_last)
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    ratios, fed_rates, ideal_rates, busy = [], [], [], []
    with _loader(dataset, scale) as loader:
        batches = _endless(loader)
        images, labels = (value.clone() for value in next(batches))
        for _ in range(min(10, scale.steps)):
            step(images, labels)
            step(*next(batches))
        for _ in range(scale.rounds):
            seconds = [_train(step, itertools.repeat((images, labels), scale.steps), scale, [])]
            _train(step, itertools.islice(batches, scale.finished), scale, [])
            seconds.append(_train(step, itertools.islice(batches, scale.steps), scale, busy))
            ideal, fed = (scale.steps * scale.batch / one for one in seconds)
            ideal_rates.append(ideal)
            fed_rates.append(fed)
            ratios.append(fed / ideal)
        workers = loader.num_workers
    yield (
        f"ResNet-50, bf16, {workers} workers, images/s (one repeated batch)",
        f"{statistics.median(fed_rates):,.0f} ({statistics.median(ideal_rates):,.0f})",
    )
    yield (
        "of the loop on one repeated batch",
        f"{statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}] (goal 0.98)",
    )
    if busy:
        yield "GPU utilisation", f"{statistics.mean(busy):.0f} %"


def _train(step: Any, batches: Iterable[Any], scale: Scale, busy: list[float]) -> float:
    def all_steps() -> None:
        for number, batch in enumerate(batches):
            step(*batch)
            if number % 20 == 19:
                busy.extend(_utilisation(scale))

    return _timed(all_steps, scale)


def _utilisation(scale: Scale) -> list[float]:
    """Return the utilisation that NVML reports, in percent, or nothing if its Python package is missing."""
    import torch

    try:
        return [float(torch.cuda.utilization())] if scale.device == "cuda" else []
    except (ImportError, RuntimeError):
        return []


def _loader(dataset: Path, scale: Scale, **options: Any) -> Any:
    import wds_tools as wt

    view = wt.RandomResizedCrop(scale.size, flip=True)
    return wt.make_loader(dataset, batch_size=scale.batch, view=view, shuffle=True, device=scale.device, **options)


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _count(batches: Iterator[Any], scale: Scale) -> tuple[int, float]:
    """Return the number of batches in the time of a measurement, and the exact time."""
    count = 0

    def take() -> None:
        nonlocal count
        end = time.perf_counter() + scale.seconds
        while time.perf_counter() < end:
            next(batches)
            count += 1

    seconds = _timed(take, scale)
    return count, seconds


def _timed(function: Any, scale: Scale | None = None) -> float:
    """Return the seconds that a function takes on the device."""
    import torch

    is_cuda = scale is None or scale.device == "cuda"
    if is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _cores() -> int:
    from wds_tools.options import available_cores

    return available_cores()


if __name__ == "__main__":
    main()
