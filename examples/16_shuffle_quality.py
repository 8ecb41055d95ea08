"""Measure the quality of shuffles on a simulated dataset: all numbers and the chart of docs/how-shuffling-works.md.

    python examples/16_shuffle_quality.py                          # less than a minute on one core
    python examples/16_shuffle_quality.py --out /tmp/quality.svg --samples 200000

The dataset has 1,000 classes and samples of 110 kB, like ImageNet. Only orders are computed; there are no images.
`wds-tools plan DATASET --plot shuffle.svg` does the same for your own dataset.
"""

import argparse
from pathlib import Path

import numpy as np

from wds_tools.inspection.forecast_chart import block_positions, quality_curves
from wds_tools.inspection.svg import Plot, Series, draw, write_svg
from wds_tools.order.quality import MIN_WINDOW, measured_quality, predicted, window_for, window_of
from wds_tools.order.sequence import Order, default_block

SAMPLE_BYTES = 110_000
SHARD_SAMPLES = 9_000
CLASSES = 1_000
BATCH = 256
MIB = 1 << 20
ROOT = Path(__file__).resolve().parent.parent


def order_of(samples: int, *, window: int, block: int, lanes: int = 1) -> Order:
    shards = [SHARD_SAMPLES] * (samples // SHARD_SAMPLES) + [samples % SHARD_SAMPLES]
    return Order(fingerprint="imagined", shard_samples=shards, seed=0, window=window, block=block, lanes=lanes)


def block_sizes(labels: np.ndarray, windows: list[int]) -> Plot:
    """Print the quality for data that is stored sorted by class, for several blocks and windows; return a chart."""
    mebibytes = (0.5, 1, 2, 4, 8)
    blocks = [round(size * MIB / SAMPLE_BYTES) for size in mebibytes]
    measured: list[tuple[int, float]] = []
    print(f"Sorted by class, batch {BATCH}: measured quality, in parentheses 1 / (1 + (B - 1) b / W)\n")
    print("| block | samples | reads per epoch |", " | ".join(f"W = {window:,}" for window in windows), "| W for 0.9 |")
    print("|" + "---|" * (len(windows) + 4))
    for size, block in zip(mebibytes, blocks, strict=True):
        row = []
        for window in windows:
            order = order_of(len(labels), window=window, block=block)
            measured.append((window, measured_quality(order, labels, batch=BATCH)))
            expected = predicted(batch=BATCH, block=block, window=window, shuffled=False)
            row.append(f"{measured[-1][1]:.2f} ({expected:.2f})")
        reads = len(np.unique(order.block_of(np.arange(len(labels)))[1]))
        wanted = window_for(0.9, batch=BATCH, block=block)
        memory = f"{wanted:,}, {wanted * SAMPLE_BYTES / 1e9:.1f} GB"
        print(f"| {size} MiB | {block} | {reads:,} |", " | ".join(row), f"| {memory} |")
    curves = quality_curves(blocks, (windows[0] / 2, windows[-1] * 2), batch=BATCH)
    return Plot(
        title=f"Shuffle quality: {len(labels):,} samples sorted by class, batches of {BATCH}",
        x_label="window in samples",
        y_label="quality: 1 is a full shuffle",
        series=[*curves, Series("measured", *zip(*measured, strict=True), points=True)],
        log_x=True,
        x_range=(windows[0] / 2, windows[-1] * 2),
        y_range=(0, 1.1),
    )


def defaults(by_class: np.ndarray, packed: np.ndarray) -> None:
    """Print the results of `shuffle=True`."""
    block = default_block(len(packed), len(packed) * SAMPLE_BYTES)
    print("\n`shuffle=True`, in parentheses a full shuffle\n")
    print(
        "| stored | window | lanes | batch | quality | blocks per batch | shards per batch | distance of neighbours |"
    )
    print("|" + "---|" * 8)
    for stored, labels, shuffled in (("sorted by class", by_class, False), ("packed by `pack`", packed, True)):
        for lanes, batch in ((1, 256), (8, 256), (1, 1024), (1, 4096)):
            window = window_of(True, block=block, samples=len(by_class), shuffled=shuffled)
            order = order_of(len(labels), window=window, block=block, lanes=lanes)
            ids = order.ids(0, 0, order.samples)
            full = np.random.default_rng(0).permutation(ids)
            shards, blocks = distinct(order, ids, batch)
            shards_full, blocks_full = distinct(order, full, batch)
            print(
                f"| {stored} | {window:,} | {lanes} | {batch:,} | {measured_quality(order, labels, batch=batch):.2f} "
                f"| {blocks:,.0f} ({blocks_full:,.0f}) | {shards:,.0f} ({shards_full:,.0f}) "
                f"| {distance_in_block(order):,.0f} ({np.abs(np.diff(np.argsort(full))).mean():,.0f}) |"
            )


def distinct(order: Order, ids: np.ndarray, batch: int) -> list[float]:
    """Return the mean numbers of distinct shards and distinct blocks in a batch."""
    steps = len(ids) // batch
    step = np.repeat(np.arange(steps), batch)
    columns = order.block_of(ids[: steps * batch])
    return [len(np.unique(step * (int(which.max()) + 1) + which)) / steps for which in columns]


def distance_in_block(order: Order) -> float:
    """Return the mean distance, in an epoch, of two samples that are neighbours in a block."""
    positions = np.argsort(order.ids(0, 0, order.samples))
    same_block = np.diff(order.block_of(np.arange(order.samples))[1]) == 0
    return float(np.abs(np.diff(positions))[same_block].mean())


def repeated_neighbours(first: np.ndarray, second: np.ndarray, batch: int) -> float:
    """Return how many of the other samples in a sample's batch are in its batch of the next epoch too."""
    used = len(first) // batch * batch
    steps = np.arange(used) // batch
    next_step = np.full(len(first), -1, np.int64)
    next_step[second[:used]] = steps
    next_steps, in_both = next_step[first[:used]], next_step[first[:used]] >= 0
    together = np.unique((steps * (len(first) // batch + 1) + next_steps)[in_both], return_counts=True)[1]
    return float((together * (together - 1)).sum() / used)


def epochs(samples: int) -> None:
    """Print how much the batches of two epochs have in common."""
    block = default_block(samples, samples * SAMPLE_BYTES)
    print("\nOther samples of a sample's batch that are in its batch of the next epoch too\n")
    print("| window | lanes | batch 256 | batch 4,096 |\n|---|---|---|---|")
    random = np.random.default_rng(0)
    full = [random.permutation(samples) for _ in range(2)]
    rows = [("full shuffle", 1, full)]
    default = window_of(True, block=block, samples=samples, shuffled=True)
    for window, lanes in ((MIN_WINDOW, 1), (default, 1), (default, 8), (16 * MIN_WINDOW, 1)):
        order = order_of(samples, window=window, block=block, lanes=lanes)
        rows.append((f"{window:,}", lanes, [order.ids(epoch, 0, samples) for epoch in (0, 1)]))
    for name, lanes, (first, second) in rows:
        repeated = (repeated_neighbours(first, second, batch) for batch in (256, 4096))
        print(f"| {name} | {lanes} |", " | ".join(f"{number:.3f}" for number in repeated), "|")


def first_steps(by_class: np.ndarray) -> None:
    """Print the quality at the start of an epoch, where the window grows."""
    block = default_block(len(by_class), len(by_class) * SAMPLE_BYTES)
    order = order_of(
        len(by_class), window=window_of(True, block=block, samples=len(by_class), shuffled=False), block=block
    )
    steps = (0, 1, 2, 5, 10, 20, 50, 100, 200)
    full = BATCH * (1 - 1 / CLASSES)
    spread = np.zeros(len(steps))
    for epoch in range(20):
        labels = by_class[order.ids(epoch, 0, min(len(by_class), (steps[-1] + 1) * BATCH))]
        for number, step in enumerate(steps):
            counts = np.bincount(labels[step * BATCH : (step + 1) * BATCH], minlength=CLASSES)
            spread[number] += ((counts - BATCH / CLASSES) ** 2).sum() / 20
    print("\nSorted by class, `shuffle=True`: quality of the first batches of 256, over 20 epochs\n")
    print("| step |", " | ".join(map(str, steps)), "|\n|" + "---|" * (len(steps) + 1))
    print("| quality |", " | ".join(f"{full / value:.2f}" for value in spread), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure how good shuffles are.")
    parser.add_argument("--samples", type=int, default=1_280_000, help="samples of the dataset (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs/pictures/shuffle-quality.svg", help="chart (default: %(default)s)"
    )
    args = parser.parse_args()

    by_class = np.arange(args.samples) * CLASSES // args.samples
    packed = np.random.default_rng(1).permutation(by_class)
    chart = block_sizes(by_class, [1_000, 4_000, 16_000, 43_605, 160_000])
    defaults(by_class, packed)
    epochs(args.samples)
    first_steps(by_class)

    block = default_block(args.samples, args.samples * SAMPLE_BYTES)
    panels = [chart]
    for window in (MIN_WINDOW, window_of(True, block=block, samples=len(by_class), shuffled=False)):
        order = order_of(args.samples, window=window, block=block)
        panels.append(
            block_positions(f"A window of {window:,}: each row is one block", order, order.ids(0, 0, args.samples))
        )
    description = "Quality grows with the window and falls with the size of blocks; measured points lie on the curves."
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_svg(args.out, draw(panels, title="How good a shuffle is", description=description))
    print(f"\nchart: {args.out}")


if __name__ == "__main__":
    main()
