"""Profile the loader: what `make profile` runs.

    python examples/profile_loader.py                                # the sample photographs
    python examples/profile_loader.py shards/photos --seconds 20 --out build/loader.pstats

Two tables. The first is of cProfile: functions of one process without workers. cProfile adds time to every call, so the
shares of cheap functions that are called often are too large. The second shows the stages of the loader, measured by
a clock around each: those of a worker, measured without workers, and those of the main process with workers. Times
are per image. ``snakeviz`` and ``pstats`` read the file of --out.
"""

import argparse
import cProfile
import pstats
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

import wds_tools as wt
from wds_tools.bench.stages import measure_stages
from wds_tools.bench.workloads import MAIN_PROCESS_STAGES, WORKER_STAGES, Setup

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("dataset", nargs="?", help="packed dataset; by default the sample photographs, packed first")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement (default: %(default)s)")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2, help="in the second table (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=15, help="functions in the first table (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="file for the figures of cProfile")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dataset = options.dataset or pack_sample(Path(folder))
        print_functions(dataset, options)
        print_stages(dataset, options)


def pack_sample(folder: Path) -> str:
    wt.pack(ROOT / "shards" / "sample" / "images", folder / "photos", shard_bytes="1MB", progress=False)
    return str(folder / "photos")


def print_functions(dataset: str, options: argparse.Namespace) -> None:
    """Print where one process without workers spends its time."""
    view = wt.RandomResizedCrop(224, flip=True)
    torch.set_num_threads(1)  # as in a worker
    with wt.make_loader(
        dataset, batch_size=options.batch_size, view=view, shuffle=True, num_workers=0, tail="pad"
    ) as loader:
        batches = endless(loader)
        next(batches)  # opens the shards
        profiler, begun, images = cProfile.Profile(), time.perf_counter(), 0
        while time.perf_counter() - begun < options.seconds:
            images += len(profiler.runcall(next, batches).image)
    figures = pstats.Stats(profiler)
    if options.out:
        figures.dump_stats(options.out)
    print(f"cProfile of one process without workers, {images:,} images, {view}\n")
    print(f"{'own us':>9} {'with calls':>11} {'calls':>8}  function")
    by_own_time = sorted(figures.stats.items(), key=lambda entry: -entry[1][2])
    for (path, line, name), (_, calls, own, total, _) in by_own_time[: options.rows]:
        times = f"{1e6 * own / images:9.1f} {1e6 * total / images:11.1f}"
        print(f"{times} {calls / images:8.2f}  {named(path, line, name)}")


def endless(loader: wt.Loader) -> Iterator:
    while True:
        yield from loader


def named(path: str, line: int, name: str) -> str:
    """Return a function's name with its file, from the folder of its package on."""
    if path == "~":
        return name
    parts = Path(path).parts
    roots = [number for number, part in enumerate(parts) if part in ("wds_tools", "site-packages")]
    return f"{Path(*parts[roots[-1] :]) if roots else Path(path).name}:{line} {name}"


def print_stages(dataset: str, options: argparse.Namespace) -> None:
    """Print the time of each stage."""
    setup = Setup(
        name="ours",
        folder="",
        tree="",
        shards=dataset,
        workload="train",
        workers=options.workers,
        batch_size=options.batch_size,
        probes=(),
    )
    found = measure_stages(setup, options.seconds)
    for title, stages in (
        ("a worker, measured without workers", WORKER_STAGES),
        (f"the main process with {options.workers} workers", MAIN_PROCESS_STAGES),
    ):
        total = sum(found[stage] for stage in stages)
        print(f"\nStages of {title}: {1e6 / total:,.0f} images/s\n\n{'us':>9} {'share':>6}  stage")
        for stage in stages:
            print(f"{found[stage]:9.1f} {found[stage] / total:6.1%}  {stage}")


if __name__ == "__main__":
    main()
