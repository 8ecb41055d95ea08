"""`wds-tools plan`: forecast of an epoch: steps, quality of the shuffle, reading, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import OptionError
from wds_tools.format.manifest import order_fingerprint
from wds_tools.loading.pipeline.autoscale import slots_for
from wds_tools.options import check_counts
from wds_tools.order.planner import Cursor, EpochPlan, Tail, World
from wds_tools.order.quality import (
    DEFAULT_QUALITY,
    MeasuredReading,
    measure_reading,
    measured_quality,
    predicted,
    window_for,
    window_of,
)
from wds_tools.order.sequence import Order, default_block
from wds_tools.reading.columns import labels_of
from wds_tools.reading.select import Choice
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage.cache.fetcher import DIRECT_SHARE, MAX_DIRECT_BYTES
from wds_tools.wording import counted, human_bytes

_MAX_MEASURED_SAMPLES = 5_000_000  # for more samples, reading the labels would take more than seconds
_STEADY_SAMPLES, _MAX_EPOCHS = 100_000, 20
_PREFETCH_FACTOR = 2  # the default of `make_loader`
_MAX_CLASSES = 10  # classes that the text lists
_MAX_COUNTED_SAMPLES = 2_000_000  # for more samples, counting the blocks of two epochs would take more than seconds
_MAX_STEPS = 200  # steps that are examined for what each machine reads of a larger dataset


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of an epoch.

    Attributes:
        global_batch: Samples of a step over all ranks.
        epoch_samples: Samples of an epoch, repetitions included.
        class_factors: How often a sample of each class occurs in an epoch; None without
            ``class_weights=``.
        dropped: Samples that an epoch does not deliver (``tail="drop"``).
        padded: Rows that repeat a sample (``tail="pad"``), or are marked as padding (``"mask"``).
        block_samples: Samples of a block, the unit of reading.
        window_samples: Samples of the shuffle window; 0 without a shuffle.
        window_bytes: Bytes of the window in the page cache, over all machines.
        quality: Expected quality of the shuffle: 1 is a full shuffle.
        measured_quality: Quality measured on the labels; None if they were not read.
        sufficient_window: Window in samples for a quality of 0.9; None if the expected quality is not below it.
        read_bytes_per_node: Bytes that one machine reads in an epoch.
        read_twice: Fraction of the dataset that more than one machine reads: 0 if each machine has
            its own lanes.
        requests_per_node: Requests of one machine in the first epoch of a remote dataset, with an empty cache:
            one for the manifest, one for each index and each block, and some for samples of the first batch.
            Adjacent blocks that are fetched together need fewer.
        requests_later_per_node: Requests of one machine in each later epoch; None if the number is not known.
        hit_rate_later: Fraction of the blocks of a later epoch that are already in a cache that holds
            ``read_bytes_per_node``; None if it is not known. In the first epoch it is 0.
        slots_bytes_per_rank: Memory of the batch slots of one rank; None if the size of images is
            not known.
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
    measured_quality: float | None
    sufficient_window: int | None
    read_bytes_per_node: int
    read_twice: float
    requests_per_node: int
    requests_later_per_node: int | None
    hit_rate_later: float | None
    slots_bytes_per_rank: int | None

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as values for JSON."""
        return asdict(self)


def forecast(
    shards: ShardSet,
    *,
    batch_size: int,
    world_size: int = 1,
    ranks_per_node: int | None = None,
    num_workers: int = 1,
    shuffle: bool | int | float = True,
    seed: int = 0,
    tail: Tail = "drop",
    image_bytes: int | None = None,
    choice: Choice | None = None,
) -> Forecast:
    """Return the forecast of an epoch."""
    manifest = shards.manifest
    per_node = world_size if ranks_per_node is None else ranks_per_node
    check_counts(
        {
            "batch_size": batch_size,
            "world_size": world_size,
            "ranks_per_node": per_node,
            "image_bytes": image_bytes,
        }
    )
    check_counts({"num_workers": num_workers}, least=0)
    if tail not in ("drop", "pad", "mask"):
        raise OptionError(f"tail={tail!r}; allowed are 'drop', 'pad' and 'mask'")
    if world_size % per_node:
        raise OptionError(
            f"world_size={world_size} with ranks_per_node={per_node}; world_size must be a multiple of ranks_per_node"
        )
    nodes, global_batch = world_size // per_node, batch_size * world_size
    block = default_block(manifest.samples, manifest.order_bytes)
    window = window_of(shuffle, block=block, samples=manifest.samples, shuffled=manifest.shuffled, batch=global_batch)
    order = order_of(shards, choice, seed=seed, window=window, block=block, lanes=nodes)
    steps = len(EpochPlan(order.at(0), Cursor(), World(), global_batch, tail))
    if not steps:
        raise OptionError(
            f"a step has {global_batch:,} samples, but an epoch has only {order.samples:,}: choose a smaller "
            "batch, or tail='pad'"
        )
    enough = window_for(DEFAULT_QUALITY, batch=global_batch, block=block)
    quality = predicted(batch=global_batch, block=block, window=window, shuffled=manifest.shuffled)
    mean_bytes = manifest.bytes / manifest.samples
    window_bytes = round(min(window, manifest.samples) * mean_bytes)
    reading = _reading(order, nodes=nodes, node_batch=batch_size * per_node, tail=tail)
    all_blocks = _count_blocks(order)
    blocks = round(all_blocks * reading.share)
    read_bytes = round(manifest.bytes * reading.share * all_blocks / _count_blocks(order, chosen=False))
    hits = None if reading.new is None else 1 - reading.new
    first_samples = _count_first_samples(batch_size * per_node, mean_bytes, manifest.bytes // order.lanes)
    slots = slots_for(batch_size, num_workers, _PREFETCH_FACTOR)
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
        window_bytes=window_bytes,
        quality=quality,
        measured_quality=_measured(shards, order, global_batch),
        sufficient_window=enough if 0 < window < enough and not manifest.shuffled else None,
        read_bytes_per_node=read_bytes,
        read_twice=reading.read_twice,
        requests_per_node=1 + min(blocks, len(manifest.shards)) + blocks + first_samples,
        requests_later_per_node=None if hits is None else round((blocks + first_samples) * (1 - hits)),
        hit_rate_later=hits,
        slots_bytes_per_rank=slots * batch_size * image_bytes if image_bytes else None,
    )


def order_of(shards: ShardSet, choice: Choice | None, *, seed: int, window: int, block: int, lanes: int) -> Order:
    """Return the order of a dataset, or of a choice of its samples."""
    manifest = shards.manifest
    return Order(
        fingerprint=order_fingerprint(manifest.shards),
        shard_samples=manifest.shard_samples,
        seed=seed,
        window=window,
        block=block,
        lanes=lanes,
        selection=choice.select(shards, progress=None) if choice else None,
    )


def _factors(order: Order, classes: Sequence[str]) -> dict[str, float] | None:
    if order.selection is None or order.selection.balance is None:
        return None
    names = dict(enumerate(classes))
    return {names.get(n, str(n)): factor for n, factor in enumerate(order.selection.balance.factors.tolist())}


def _measured(shards: ShardSet, order: Order, global_batch: int) -> float | None:
    labels = labels_to_measure(shards, order, global_batch)
    if labels is None:
        return None
    return measured_quality(order, labels, batch=global_batch, epochs=epochs_to_measure(order))


def epochs_to_measure(order: Order) -> int:
    """Return how many epochs to measure for a stable result: one epoch of 400 samples varies by a sixth."""
    return max(1, min(_MAX_EPOCHS, _STEADY_SAMPLES // order.samples)) if order.window else 1


def labels_to_measure(shards: ShardSet, order: Order, global_batch: int) -> NDArray[np.int64] | None:
    """Return the labels to measure a shuffle; None for too many samples or samples without a label."""
    if order.samples > _MAX_MEASURED_SAMPLES or not shards.manifest.has_labels or global_batch > order.samples:
        return None
    labels = labels_of(shards, progress=None)
    return None if (labels < 0).any() else labels.astype(np.int64)


def _reading(order: Order, *, nodes: int, node_batch: int, tail: Tail) -> MeasuredReading:
    """Return what machines read in an epoch and in the next one; of a large dataset, measured in its first steps."""
    if nodes == 1:
        return MeasuredReading(share=1.0, read_twice=0.0, new=0.0)
    max_steps = _MAX_STEPS if order.samples > _MAX_COUNTED_SAMPLES else None
    return measure_reading(order, nodes=nodes, node_batch=node_batch, tail=tail, max_steps=max_steps)


def _count_blocks(order: Order, *, chosen: bool = True) -> int:
    """Return the number of blocks of a dataset, or only of those with chosen samples."""
    if chosen and order.selection is not None:
        return len(np.unique(order.block_of(order.selection.ids(0))[1]))
    return int(order.block_of(np.array([order.identity.stored - 1]))[1][0]) + 1


def _count_first_samples(node_batch: int, mean_bytes: float, dataset_bytes: int) -> int:
    """Return how many samples of the first batch a machine requests separately, in addition to their blocks."""
    return min(node_batch, int(min(MAX_DIRECT_BYTES, DIRECT_SHARE * dataset_bytes) / mean_bytes))


def format_forecast(plan: Forecast) -> str:
    """Return a forecast as text."""
    rows = [
        ("dataset", f"{plan.samples:,} samples in {plan.shards:,} shards, {human_bytes(plan.bytes)}"),
        ("steps", f"{plan.steps:,} of {plan.global_batch:,} samples, the same on every rank"),
        ("tail", _tail_text(plan)),
        ("shuffle", _window_text(plan)),
        ("quality", _quality_text(plan)),
        ("reading", _reading_text(plan)),
        ("remote", _fetching_text(plan)),
    ]
    if plan.epoch_samples != plan.samples or plan.class_factors:
        rows.insert(1, ("epoch", _epoch_text(plan)))
    if plan.slots_bytes_per_rank is not None:
        rows.append(("memory", f"{human_bytes(plan.slots_bytes_per_rank)} of batch slots per rank"))
    return "\n".join(f"{name:<9}{text}" for name, text in rows)


def _epoch_text(plan: Forecast) -> str:
    text = f"{plan.epoch_samples:,} samples chosen"
    if plan.class_factors:
        by_factor = sorted(plan.class_factors.items(), key=lambda item: item[1])
        shown = by_factor if len(by_factor) <= _MAX_CLASSES else [*by_factor[:3], *by_factor[-3:]]
        text += ", a sample of " + ", ".join(f"{name} x{factor:.2f}" for name, factor in shown)
        text += " (lowest and highest)" if len(shown) < len(by_factor) else ""
    return text


def _tail_text(plan: Forecast) -> str:
    if plan.padded:
        return f"{plan.padded:,} rows of padding in the last step"
    if plan.dropped:
        return f"{plan.dropped:,} samples dropped in each epoch, different ones each time"
    return "no samples dropped"


def _window_text(plan: Forecast) -> str:
    blocks = f"blocks of {plan.block_samples:,} samples ({human_bytes(plan.block_bytes)})"
    if not plan.window_samples:
        return f"none: stored order; {blocks}"
    window = f"window of {plan.window_samples:,} samples ({human_bytes(plan.window_bytes)} of page cache)"
    return f"{window}, {blocks}, {plan.lanes} lane{'s' if plan.lanes > 1 else ''}"


def _quality_text(plan: Forecast) -> str:
    text = f"{plan.quality:.2f} of a full shuffle expected"
    if plan.measured_quality is not None:
        text += f", {plan.measured_quality:.2f} measured on the labels"
    if plan.sufficient_window:
        text += f"; {DEFAULT_QUALITY} requires shuffle={plan.sufficient_window} (samples), or packing again"
    return text


def _reading_text(plan: Forecast) -> str:
    return (
        f"{human_bytes(plan.read_bytes_per_node)} per machine and epoch, "
        f"{plan.read_twice:.0%} of the dataset by more than one machine"
    )


def _fetching_text(plan: Forecast) -> str:
    first = f"about {counted(plan.requests_per_node, 'request')} per machine in the first epoch"
    if plan.requests_later_per_node is None:
        return first
    later = f"about {counted(plan.requests_later_per_node, 'request')} and {plan.hit_rate_later:.0%} cache hits"
    return f"{first}; in later ones {later}, with a cache of {human_bytes(plan.read_bytes_per_node)}"
