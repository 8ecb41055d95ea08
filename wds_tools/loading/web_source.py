"""Verified samples for webdataset's pipelines: of a dataset, divided among ranks and workers, or shard by shard."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import get_worker_info
from webdataset import shardlists
from webdataset.filters import pipelinefilter, reraise_exception
from webdataset.pipeline import DataPipeline

from wds_tools.errors import OptionError, ResumeError, WdsToolsError
from wds_tools.format.manifest import order_fingerprint
from wds_tools.loading.dataset import StreamingDataset, worker_of
from wds_tools.loading.samples.assemble import Assembler
from wds_tools.options import RemoteOptions
from wds_tools.order.epoch import EpochOrder
from wds_tools.order.planner import Cursor, EpochPlan, World
from wds_tools.order.saved_state import MAX_EPOCH, check_seal, sealed, whole_number
from wds_tools.order.selection import Selection
from wds_tools.order.sequence import Order, default_block
from wds_tools.reading.names import is_pattern
from wds_tools.reading.opening import open_shards
from wds_tools.reading.read_ahead import ReadAhead, read_ahead_bytes
from wds_tools.reading.reader import Reader
from wds_tools.reading.rows import Rows

Handler = Callable[[Exception], bool]
NameFunction = Callable[[str], Any]
Splitter = Callable[[Iterable[dict[str, str]]], Iterable[dict[str, str]]]
"""A function of webdataset from shards, such as ``{"url": "a.tar"}``, to those that a rank or worker reads."""
BY_SAMPLES = (shardlists.single_node_only, shardlists.split_by_node, shardlists.split_by_worker)
"""Splitters of webdataset that are replaced by a division of samples, not of shards."""

_CHUNK = 64  # samples that are read together
_MAX_SHARDS = 1_000_000  # that a splitter may return
_OPEN_SHARDS = 64
_END: dict[str, Any] = {}


class WebSource(StreamingDataset):
    """Yields stored samples. Each rank has the same number of them, and its workers divide them.

    Args:
        dataset: See `StreamingDataset`.
        is_endless: Whether an iteration continues with the next epoch.
        handler: webdataset's handler of errors: True leaves out an unreadable sample, False ends the iteration.
        nodesplitter: None, one of `BY_SAMPLES`, or a function that chooses the shards of this rank.
        workersplitter: The same for this worker; None gives each worker all samples of its rank.
        empty_check: Whether a worker without a sample is an error.
        options: Other arguments of `StreamingDataset`.
    """

    def __init__(
        self,
        dataset: str | list[str],
        *,
        is_endless: bool,
        handler: Handler,
        nodesplitter: Splitter | None,
        workersplitter: Splitter | None,
        empty_check: bool,
        **options: Any,
    ) -> None:
        if nodesplitter not in BY_SAMPLES:
            options = {"rank": 0, "world_size": 1, **options}
        super().__init__(dataset, decode=False, **options)
        self._is_endless = is_endless
        self._handler = handler
        self._splitters = nodesplitter, workersplitter
        self._empty_check = empty_check

    def __iter__(self) -> Iterator[dict[str, Any]]:
        # Not a generator: `StatefulDataLoader` requests the state of an iterator that has not been advanced yet.
        worker, num_workers = worker_of()
        loaded, self._loaded = self._loaded, None
        skipped = 0
        if loaded:
            if (loaded["worker"], loaded["num_workers"]) != (worker, num_workers):
                raise ResumeError(
                    f"the state was saved with num_workers={loaded['num_workers']}, now num_workers={num_workers}: use "
                    "the same number, or make_loader, which resumes with any number"
                )
            self.set_epoch(loaded["epoch"])
            skipped = loaded["samples"]
        epoch = self._next_epoch(get_worker_info())
        if loaded:
            self.set_epoch(epoch + 1)
        self._position = (epoch, skipped)
        return self._samples_from(epoch, skipped)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker, or of this process if there are no workers."""
        epoch, samples = self._position
        worker, num_workers = worker_of()
        return sealed({"epoch": epoch, "samples": samples, "worker": worker, "num_workers": num_workers})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue at a position that `state_dict` returned."""
        check_seal(state)
        try:
            names = ("epoch", "samples", "worker", "num_workers")
            self._loaded = {name: whole_number(state[name], name, most=MAX_EPOCH) for name in names}
        except KeyError as error:
            raise ResumeError(
                f"this is not a state of a WebDataset ({type(error).__name__}: {error}): pass the result of its "
                "state_dict()"
            ) from error

    def _samples_from(self, epoch: int, skipped: int) -> Iterator[dict[str, Any]]:
        """Yield the samples of this worker, without the first ``skipped`` ones."""
        world, (worker, num_workers) = self._opened.find_world(), worker_of()
        shards, world, worker, num_workers = self._split(world, worker, num_workers)
        while True:
            every = self._orders.of(epoch)
            order = every if shards is None else _only_shards(every, shards, self._opened.banned)
            samples = order.samples // world.world_size if order else 0
            if samples <= worker:
                if self._empty_check:
                    raise OptionError(_why_empty(samples, worker, num_workers, world))
                return
            assert order is not None
            yielded = 0
            for sample in self._epoch(epoch, skipped, deal(order, world, worker, num_workers)):
                if sample is _END:  # the handler ends the iteration
                    return
                yielded += 1
                yield sample
            if not self._is_endless:
                return
            if not yielded and not skipped:
                raise OptionError(
                    f"handler= left out all samples of worker {worker} in epoch {epoch}, so resampled=True would never "
                    "yield one: `wds-tools verify` shows what is wrong with the shards"
                )
            epoch, skipped = epoch + 1, 0

    def _split(self, world: World, worker: int, num_workers: int) -> tuple[list[int] | None, World, int, int]:
        """Return the shards that the splitters choose, and among whom their samples are divided.

        None stands for all shards. A splitter of shards takes the place of a division of samples. If only the workers
        have one, the shards are first divided among the ranks.
        """
        node, by_worker = self._splitters
        stages: list[Splitter] = []
        if node is not None and node not in BY_SAMPLES:
            stages.append(node)
        if by_worker is None:
            worker, num_workers = 0, 1
        elif by_worker not in BY_SAMPLES:
            rank, ranks = world.rank, world.world_size
            stages += [lambda shards: itertools.islice(shards, rank, None, ranks), by_worker]
            world, worker, num_workers = World(), 0, 1
        return (self._chosen(stages) if stages else None), world, worker, num_workers

    def _chosen(self, stages: list[Splitter]) -> list[int]:
        """Return the indices of the shards that splitters choose; one may occur several times."""
        shards = self._opened.shards
        names = [shards.shard_url(index) for index in range(len(shards.locations))]
        number_of = {name: index for index, name in enumerate(names)}
        pipeline = DataPipeline(shardlists.SimpleShardList(names), *stages)
        urls = [shard["url"] for shard in itertools.islice(pipeline, _MAX_SHARDS + 1)]
        if len(urls) > _MAX_SHARDS:
            raise OptionError(
                f"nodesplitter= or workersplitter= returned more than {_MAX_SHARDS:,} shards: it must return each one "
                "once; resampled=True repeats them endlessly"
            )
        for url in urls:
            if url not in number_of:
                raise OptionError(f"nodesplitter= or workersplitter= returned the shard {url!r}, which is not in urls=")
        return [number_of[url] for url in urls]

    def _epoch(self, epoch: int, skipped: int, plans: Iterable[tuple[EpochPlan, range]]) -> Iterator[dict[str, Any]]:
        """Yield the samples of this worker in one epoch; `_END` if the handler ends the iteration."""
        self._assembler = self._assembler or Assembler(self._opened.recipe)
        self._position = (epoch, skipped)
        reader = self._assembler.reader
        read_ahead = ReadAhead(reader, self._opened.read_ahead_bytes // worker_of()[1])
        for sample in _read(reader, read_ahead, plans, self._handler, skipped):
            self._position = (epoch, self._position[1] + 1)
            if sample is not None:
                yield sample


def deal(order: EpochOrder, world: World, worker: int, num_workers: int) -> Iterator[tuple[EpochPlan, range]]:
    """Yield a plan of equal steps, and one of a last step, each with the numbers of the steps of a worker.

    So at most one sample per rank is left out, and each worker has samples if there are enough.
    """
    samples = order.samples // world.world_size
    size = min(_CHUNK, max(1, samples // num_workers))
    whole = EpochPlan(order, Cursor(order.epoch, 0), world, size, "drop")
    yield whole, range(worker, len(whole), num_workers)
    if remaining := samples - len(whole) * size:
        cursor = Cursor(order.epoch, len(whole) * whole.global_batch)
        yield EpochPlan(order, cursor, world, remaining, "drop"), range((worker - len(whole)) % num_workers, 1)


def _only_shards(every: EpochOrder, shards: list[int], banned: Sequence[int]) -> EpochOrder | None:
    """Return the order of the samples of some shards, as often as each is named; None if there are none."""
    order = every.run
    assert isinstance(order, Order)  # `StreamingDataset` of one dataset without a view
    selection = order.selection
    if selection and selection.balance:
        raise OptionError("class_weights= requires that samples are divided: remove nodesplitter= and workersplitter=")
    ids = selection.selected_ids if selection else np.arange(order.identity.stored)
    ids = ids[~np.isin(ids, banned)]
    counts = np.bincount(shards, minlength=order.identity.shards)
    ids = np.repeat(ids, counts[order.block_of(ids)[0]])
    return order.selecting(Selection(ids)).at(every.epoch) if len(ids) else None


def _why_empty(samples: int, worker: int, num_workers: int, world: World) -> str:
    of_rank = f" of rank {world.rank}" if world.world_size > 1 else ""
    if not samples:
        return (
            "nodesplitter= or workersplitter= leaves this worker no sample, so it would never yield one: use more "
            "shards or fewer workers, or remove both options, so that samples are divided instead of shards; "
            "empty_check=False allows empty workers"
        )
    return (
        f"worker {worker}{of_rank} would never yield a sample, because {num_workers} workers divide {samples}: use "
        f"num_workers={samples} at most; empty_check=False allows empty workers"
    )


def _read(
    reader: Reader,
    read_ahead: ReadAhead,
    plans: Iterable[tuple[EpochPlan, range]],
    handler: Handler,
    skipped: int = 0,
) -> Iterator[dict[str, Any] | None]:
    """Yield the stored samples of some steps, without the first ones.

    None stands for one that the handler leaves out, and `_END` is the last one if the handler ends the iteration.
    """
    for plan, numbers in plans:
        read_ahead.begin(plan, numbers)
        try:
            for index in numbers:
                read_ahead.advance(index)
                ids = plan.step(index).ids
                left_out = min(skipped, len(ids))
                skipped -= left_out
                for sample in _stored(reader, ids[left_out:], handler):
                    yield sample
                    if sample is _END:
                        return
        finally:
            read_ahead.stop()


def _stored(reader: Reader, ids: NDArray[np.int64], handler: Handler) -> Iterator[dict[str, Any] | None]:
    """Yield the stored samples; None for one that the handler leaves out, `_END` if it ends the iteration.

    No sample is yielded inside of ``try``: when Python exits, a generator may end after the names of errors are gone.
    """
    done, samples = 0, Rows(reader, ids).stored()
    while True:
        try:
            sample: dict[str, Any] | None = next(samples, _END)
        except WdsToolsError:
            if handler is reraise_exception:
                raise
            break
        if sample is _END:
            return
        done += 1
        yield sample
    for i in range(done, len(ids)):
        try:
            sample = next(Rows(reader, ids[i : i + 1]).stored())
        except WdsToolsError as error:
            sample = None if handler(error) else _END
        yield sample


class FieldNames:
    """A stage that selects and renames the fields of samples, as webdataset does with files."""

    def __init__(self, select: NameFunction | None, rename: NameFunction | None) -> None:
        self._select, self._rename = select, rename

    def __call__(self, samples: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the samples with their new fields."""
        for sample in samples:
            fields = {}
            for name, value in sample.items():
                if name.startswith("__"):
                    fields[name] = value
                    continue
                path = f"{sample['__key__']}.{name}"
                path = self._rename(path) if self._rename else path
                if not self._select or self._select(path):
                    fields[path.removeprefix(f"{sample['__key__']}.")] = value
            yield fields


def tarfile_samples(
    src: Iterable[dict[str, Any]],
    handler: Handler = reraise_exception,
    select_files: NameFunction | None = None,
    rename_files: NameFunction | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the verified samples of shards, one shard after the other, in the order in which they arrive.

    Args:
        src: Shards as dictionaries with a ``"url"``: local paths or URLs of indexed shards.
        handler: Handler of webdataset for unreadable shards and samples.
        select_files: See `WebDataset`.
        rename_files: See `WebDataset`.
    """
    samples = _samples_of_shards(src, handler)
    return FieldNames(select_files, rename_files)(samples) if select_files or rename_files else samples


tarfile_to_samples = pipelinefilter(tarfile_samples)
"""The stage of a ``DataPipeline`` that turns shards into samples: ``tarfile_to_samples(handler=...)``."""


def _samples_of_shards(src: Iterable[dict[str, Any]], handler: Handler) -> Iterator[dict[str, Any]]:
    opened = functools.lru_cache(maxsize=_OPEN_SHARDS)(_open_shard)
    for shard in src:
        try:
            reader, order = opened(local_path(shard["url"]))
        except WdsToolsError as error:
            if not handler(error):
                return
            continue
        read_ahead = ReadAhead(reader, read_ahead_bytes(RemoteOptions.of(), 0) // worker_of()[1])
        for sample in _read(reader, read_ahead, deal(order.at(0), World(), 0, 1), handler):
            if sample is _END:
                return
            if sample is not None:
                yield sample


def _open_shard(url: str) -> tuple[Reader, Order]:
    shards = open_shards([url], for_training=True)
    manifest = shards.manifest
    block = default_block(manifest.samples, manifest.order_bytes)
    order = Order(
        fingerprint=order_fingerprint(manifest.shards),
        shard_samples=manifest.shard_samples,
        seed=0,
        window=0,
        block=block,
    )
    return Reader(shards, block=block), order


def dataset_of(urls: Any) -> str | list[str]:
    """Return what webdataset's argument ``urls`` names: a folder, URL or pattern, or a list of shards."""
    text = os.fspath(urls) if isinstance(urls, str | os.PathLike) else ""
    if isinstance(urls, dict) or text.endswith((".yaml", ".yml")):
        raise OptionError(
            "urls= must be a folder, a URL, a pattern such as 'shards/photo-{000000..000009}.tar', or a list of "
            "shards: combine several datasets with wds_tools.merge, or read a Mixture with StreamingDataset"
        )
    parts = text.split("::")
    if text and not (len(parts) > 1 and all(map(is_pattern, parts))):
        return local_path(text)
    names = [local_path(url) for url in (parts if text else urls)]
    return names[0] if len(names) == 1 else names


def local_path(url: str | os.PathLike[str]) -> str:
    """Return a path or URL; of a ``file:`` URL, the path."""
    text = os.fspath(url)
    if text.startswith("pipe:"):
        raise OptionError(f"urls={text!r} is a command: pass the URL itself (https://, s3://, gs://, az://)")
    return text.removeprefix("file://").removeprefix("file:") if text.startswith("file:") else text
