"""What training on a dataset will look like, before it starts: steps, quality, reads, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.format.index import NO_LABEL
from wds_tools.loading.autoscale import slots_for
from wds_tools.options import check_counts, check_seconds
from wds_tools.order.planner import Cursor, EpochPlan, Tail, World
from wds_tools.order.quality import DEFAULT_QUALITY, MeasuredOrder, measure_order, predicted, window_for, window_of
from wds_tools.order.sequence import Order, default_block
from wds_tools.reading.select import Choice, labels_of
from wds_tools.reading.shardset import ShardSet
from wds_tools.wording import human_bytes

_MEASURED_SAMPLES = 5_000_000  # above, labels are not read: it would take more than seconds
_STEADY_SAMPLES, _MOST_EPOCHS = 100_000, 20
_SHOWN_CLASSES = 10
_WATCHED_STEPS = 200  # for what each machine reads


@dataclass(frozen=True, slots=True)
class Forecast:
    """What an epoch takes.

    Attributes:
        samples: Of the dataset.
        shards: Of the dataset.
        bytes: Of the dataset.
        global_batch: Samples of a step over all ranks.
        steps: Of an epoch, the same on every rank.
        epoch_samples: Of an epoch: those chosen, as often as they come.
        class_factors: How often a sample of each class comes in an epoch; None without ``class_weights=``.
        dropped: Samples left out of an epoch (``tail="drop"``).
        padded: Rows that repeat a sample (``tail="pad"``), or are marked as padding (``"mask"``).
        lanes: Independent streams.
        block_samples: Samples of a block, the unit of reading.
        block_bytes: Bytes of a block.
        window_samples: The shuffle window; 0 without a shuffle.
        window_bytes: What the window takes of the page cache, over all machines.
        quality: Expected quality of the shuffle: 1 is a full shuffle.
        measured: Quality and spread on the labels of the dataset, None if they were not read.
        window_for_wanted: Window that would give a quality of 0.9, if the expected one is below.
        read_bytes_per_node: What one machine reads in an epoch.
        read_twice: Part of the dataset that more than one machine reads: 0 where each has lanes of its own.
        slots_bytes_per_rank: Memory of the batch slots of one rank, None if pictures differ in size.
        needed_bytes_per_second: Read rate per machine for the given step time, None without one.
    """

    samples: int
    shards: int
    bytes: int
    global_batch: int
    steps: int
    epoch_samples: int
    class_factors: dict[str, float] | None
    dropped: int
    padded: int
    lanes: int
    block_samples: int
    block_bytes: int
    window_samples: int
    window_bytes: int
    quality: float
    measured: MeasuredOrder | None
    window_for_wanted: int | None
    read_bytes_per_node: int
    read_twice: float
    slots_bytes_per_rank: int | None
    needed_bytes_per_second: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def forecast(
    shards: ShardSet,
    *,
    batch_size: int,
    world_size: int = 1,
    ranks_per_node: int | None = None,
    num_workers: int = 1,
    prefetch_factor: int = 2,
    shuffle: bool | int | float = True,
    seed: int = 0,
    tail: Tail = "drop",
    image_bytes: int | None = None,
    step_seconds: float | None = None,
    choice: Choice | None = None,
) -> Forecast:
    """Plan an epoch.

    Args:
        shards: The dataset.
        batch_size: Samples per batch of a rank.
        world_size: Number of ranks.
        ranks_per_node: Ranks of one machine; all of them if not given.
        num_workers: Of each rank.
        prefetch_factor: Batches in the making per worker.
        shuffle: As for `make_loader`.
        seed: Of the order.
        tail: As for `make_loader`.
        image_bytes: Bytes of one decoded image.
        step_seconds: How long a training step takes.
        choice: Which samples; None takes all.

    Raises:
        OptionError: An option that cannot be.
    """
    manifest = shards.manifest
    per_node = world_size if ranks_per_node is None else ranks_per_node
    check_counts(
        {
            "batch_size": batch_size,
            "world_size": world_size,
            "ranks_per_node": per_node,
            "prefetch_factor": prefetch_factor,
            "image_bytes": image_bytes,
        }
    )
    check_counts({"num_workers": num_workers}, least=0)
    check_seconds("step_seconds", step_seconds)
    if tail not in ("drop", "pad", "mask"):
        raise OptionError(f"tail={tail!r}; allowed are 'drop', 'pad' and 'mask'")
    if world_size % per_node:
        raise OptionError(
            f"world_size={world_size} with ranks_per_node={per_node}; allowed are machines with equally many ranks"
        )
    nodes, global_batch = world_size // per_node, batch_size * world_size
    block = default_block(manifest.samples, manifest.bytes)
    window = window_of(shuffle, block=block, samples=manifest.samples, shuffled=manifest.shuffled, batch=global_batch)
    order = order_of(shards, choice, seed=seed, window=window, block=block, lanes=nodes)
    steps = len(EpochPlan(order, Cursor(), World(), global_batch, tail))
    if not steps:
        raise OptionError(
            f"a step of {global_batch:,} samples is more than the {order.samples:,} of an epoch: take a smaller "
            "batch, or tail='pad'"
        )
    wanted = window_for(DEFAULT_QUALITY, batch=global_batch, block=block)
    quality = predicted(batch=global_batch, block=block, window=window, shuffled=manifest.shuffled)
    mean_bytes = manifest.bytes / manifest.samples
    share, twice = _reading(order, per_node=per_node, nodes=nodes, batch_size=batch_size, tail=tail)
    slots = slots_for(batch_size, num_workers, prefetch_factor)
    return Forecast(
        samples=manifest.samples,
        shards=len(manifest.shards),
        bytes=manifest.bytes,
        global_batch=global_batch,
        steps=steps,
        epoch_samples=order.samples,
        class_factors=_factors(order, manifest.classes),
        dropped=max(0, order.samples - steps * global_batch),
        padded=max(0, steps * global_batch - order.samples),
        lanes=order.lanes,
        block_samples=block,
        block_bytes=round(block * mean_bytes),
        window_samples=window,
        window_bytes=round(min(window, manifest.samples) * mean_bytes),
        quality=quality,
        measured=_measured(shards, order, global_batch),
        window_for_wanted=wanted if 0 < window < wanted and not manifest.shuffled else None,
        read_bytes_per_node=round(manifest.bytes * share),
        read_twice=twice,
        slots_bytes_per_rank=slots * batch_size * image_bytes if image_bytes else None,
        needed_bytes_per_second=(batch_size * per_node * mean_bytes / step_seconds) if step_seconds else None,
    )


def order_of(shards: ShardSet, choice: Choice | None, *, seed: int, window: int, block: int, lanes: int) -> Order:
    """Return the order of a dataset, or of a choice of its samples."""
    manifest = shards.manifest
    return Order(
        fingerprint=manifest.fingerprint,
        shard_samples=[entry.samples for entry in manifest.shards],
        seed=seed,
        window=window,
        block=block,
        lanes=lanes,
        selection=choice.select(shards) if choice else None,
    )


def _factors(order: Order, classes: Sequence[str]) -> dict[str, float] | None:
    if order.selection is None or order.selection.balance is None:
        return None
    names = dict(enumerate(classes))
    return {names.get(n, str(n)): factor for n, factor in enumerate(order.selection.balance.factors.tolist())}


def _measured(shards: ShardSet, order: Order, global_batch: int) -> MeasuredOrder | None:
    labels = labels_to_measure(shards, order, global_batch)
    return None if labels is None else measure_order(order, labels, batch=global_batch, epochs=epochs_to_measure(order))


def epochs_to_measure(order: Order) -> int:
    """Return how many epochs give a steady figure: of 400 samples, one alone is uncertain by a sixth."""
    return max(1, min(_MOST_EPOCHS, _STEADY_SAMPLES // order.samples)) if order.window else 1


def labels_to_measure(shards: ShardSet, order: Order, global_batch: int) -> NDArray[np.int64] | None:
    """Return the labels if a shuffle can be measured on them: all samples have one, and they are soon read."""
    if order.samples > _MEASURED_SAMPLES or "cls" not in shards.manifest.fields or global_batch > order.samples:
        return None
    labels = labels_of(shards)
    return None if (labels == NO_LABEL).any() else labels


def _reading(order: Order, *, per_node: int, nodes: int, batch_size: int, tail: Tail) -> tuple[float, float]:
    """Return what part of the dataset one machine reads, and what part more than one reads, over the first steps."""
    if nodes == 1:
        return 1.0, 0.0
    read: list[Sequence[int]] = []
    for node in range(nodes):  # the ranks of a machine together take what one rank of their size would
        plan = EpochPlan(order, Cursor(), World(node, nodes), batch_size * per_node, tail)
        ids = [plan.step(number).ids for number in range(min(len(plan), _WATCHED_STEPS))]
        read.append(np.unique(order.block_of(np.concatenate(ids))[1]).tolist())
    blocks, times = np.unique(np.concatenate(read), return_counts=True)
    return float(np.mean([len(part) for part in read]) / len(blocks)), float((times > 1).mean())


def parse_shuffle(text: str) -> bool | int | float:
    """Read a ``shuffle=`` from the command line.

    >>> parse_shuffle("yes"), parse_shuffle("20_000"), parse_shuffle("0.95")
    (True, 20000, 0.95)

    Raises:
        OptionError: It means nothing.
    """
    words: dict[str, bool] = {"yes": True, "true": True, "no": False, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise OptionError(
        f"shuffle={text!r}; allowed are yes, no, a window in samples such as 20000, a quality such as 0.95"
    )


def render(told: Forecast) -> str:
    """Return a forecast as text."""
    rows = [
        ("dataset", f"{told.samples:,} samples in {told.shards:,} shards, {human_bytes(told.bytes)}"),
        ("steps", f"{told.steps:,} of {told.global_batch:,} samples, the same on every rank"),
        ("tail", _tail_text(told)),
        ("shuffle", _window_text(told)),
        ("quality", _quality_text(told)),
        ("reading", _reading_text(told)),
    ]
    if told.epoch_samples != told.samples or told.class_factors:
        rows.insert(1, ("epoch", _epoch_text(told)))
    if told.measured:
        rows.insert(len(rows) - 1, ("a batch", _spread_text(told.measured)))
    if told.slots_bytes_per_rank is not None:
        rows.append(("memory", f"{human_bytes(told.slots_bytes_per_rank)} of batch slots per rank"))
    if told.needed_bytes_per_second is not None:
        rows.append(("rate", f"{human_bytes(round(told.needed_bytes_per_second))}/s per machine to keep up"))
    return "\n".join(f"{word:<9}{text}" for word, text in rows)


def _epoch_text(told: Forecast) -> str:
    text = f"{told.epoch_samples:,} samples chosen"
    if told.class_factors:
        by_factor = sorted(told.class_factors.items(), key=lambda item: item[1])
        shown = by_factor if len(by_factor) <= _SHOWN_CLASSES else [*by_factor[:3], *by_factor[-3:]]
        text += ", a sample of " + ", ".join(f"{name} x{factor:.2f}" for name, factor in shown)
        text += " (the extremes)" if len(shown) < len(by_factor) else ""
    return text


def _tail_text(told: Forecast) -> str:
    if told.padded:
        return f"{told.padded:,} rows of padding in the last step"
    return f"{told.dropped:,} samples left out of each epoch, others each time" if told.dropped else "nothing left over"


def _window_text(told: Forecast) -> str:
    blocks = f"blocks of {told.block_samples:,} samples ({human_bytes(told.block_bytes)})"
    if not told.window_samples:
        return f"none: stored order; {blocks}"
    window = f"window of {told.window_samples:,} samples ({human_bytes(told.window_bytes)} of page cache)"
    return f"{window}, {blocks}, {told.lanes} lane{'s' if told.lanes > 1 else ''}"


def _quality_text(told: Forecast) -> str:
    text = f"{told.quality:.2f} of a full shuffle expected"
    if told.measured:
        text += f", {told.measured.quality:.2f} measured on the labels"
    if told.window_for_wanted:
        text += f"; {DEFAULT_QUALITY} takes shuffle={told.window_for_wanted} (samples), or packing again"
    return text


def _spread_text(measured: MeasuredOrder) -> str:
    return (
        f"comes from {measured.shards_per_batch:,.0f} shards and {measured.blocks_per_batch:,.0f} blocks "
        f"(full shuffle: {measured.shards_full:,.0f} and {measured.blocks_full:,.0f})"
    )


def _reading_text(told: Forecast) -> str:
    return (
        f"{human_bytes(told.read_bytes_per_node)} per machine and epoch, "
        f"{told.read_twice:.0%} of the dataset by more than one machine"
    )
