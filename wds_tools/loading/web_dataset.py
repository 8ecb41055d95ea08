"""`WebDataset`: webdataset's own pipeline, with our source of samples."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import get_worker_info
from webdataset import cache, filters, shardlists
from webdataset.compat import FluidInterface
from webdataset.filters import reraise_exception
from webdataset.pipeline import DataPipeline

from wds_tools.errors import OptionError, ResumeError, WdsToolsError
from wds_tools.loading.assemble import Assembler
from wds_tools.loading.dataset import StreamingDataset, worker_of
from wds_tools.order.planner import Cursor, EpochPlan
from wds_tools.order.saved_state import MAX_EPOCH, check_seal, sealed, whole_number
from wds_tools.reading.read_ahead import ReadAhead

_CHUNK = 64  # samples that are read together
_NameFunction = Callable[[str], Any]


class _Source(StreamingDataset):
    """Yields stored samples. Each rank has the same number of them, and its workers divide them.

    Args:
        dataset: See `StreamingDataset`.
        is_endless: Whether an iteration continues with the next epoch.
        handler: webdataset's handler of errors: True leaves out an unreadable sample.
        options: Other arguments of `StreamingDataset`.
    """

    def __init__(self, dataset: str, *, is_endless: bool, handler: Callable[[Exception], bool], **options: Any) -> None:
        if options.get("ban") is not None:
            raise OptionError("ban= requires make_loader or StreamingDataset: use where=, such as where='key != \"x\"'")
        super().__init__(dataset, decode=False, **options)
        self._is_endless = is_endless
        self._handler = handler

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
        return self._samples_from(epoch, worker, num_workers, skipped)

    def _samples_from(self, epoch: int, worker: int, num_workers: int, skipped: int) -> Iterator[dict[str, Any]]:
        """Yield the samples of one worker, without the first ``skipped`` ones."""
        while True:
            yield from self._epoch(epoch, worker, num_workers, skipped)
            if not self._is_endless:
                return
            epoch, skipped = epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this worker, or of this process if there are no workers."""
        epoch, samples = self._position
        worker, num_workers = worker_of()
        return sealed({"epoch": epoch, "samples": samples, "worker": worker, "num_workers": num_workers})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue at a position that `state_dict` returned.

        Raises:
            ResumeError: It is not such a state.
        """
        check_seal(state)
        try:
            names = ("epoch", "samples", "worker", "num_workers")
            self._loaded = {name: whole_number(state[name], name, most=MAX_EPOCH) for name in names}
        except KeyError as error:
            raise ResumeError(
                f"this is not a state of a WebDataset ({type(error).__name__}: {error}): pass the result of its "
                "state_dict()"
            ) from error

    def _epoch(self, epoch: int, worker: int, num_workers: int, skipped: int) -> Iterator[dict[str, Any]]:
        """Yield the samples of one worker in one epoch."""
        self._assembler = self._assembler or Assembler(self._opened.recipe)
        self._position = (epoch, skipped)
        reader = self._assembler.reader
        read_ahead = ReadAhead(reader.reopened(), self._opened.read_ahead_bytes // num_workers)
        for first, plan in self._plans(epoch):
            numbers = range((worker - first) % num_workers, len(plan), num_workers)
            read_ahead.begin(plan, numbers)
            try:
                for number in numbers:
                    read_ahead.advance(number)
                    ids = plan.step(number).ids
                    left_out = min(skipped, len(ids))
                    skipped -= left_out
                    for sample in self._stored(ids[left_out:]):
                        self._position = (epoch, self._position[1] + 1)
                        if sample is not None:
                            yield sample
            finally:
                read_ahead.stop()

    def _plans(self, epoch: int) -> Iterator[tuple[int, EpochPlan]]:
        """Yield a plan of large steps, and one of a last step, each with the number of its first step.

        So at most one sample per rank is left out.
        """
        world, order = self._opened.find_world(), self._orders.of(epoch)
        whole = EpochPlan(order, Cursor(epoch, 0), world, _CHUNK, "drop")
        yield 0, whole
        position = len(whole) * whole.global_batch
        if rest := (order.samples - position) // world.world_size:
            yield len(whole), EpochPlan(order, Cursor(epoch, position), world, rest, "drop")

    def _stored(self, ids: NDArray[np.int64]) -> Iterator[dict[str, Any] | None]:
        """Yield the stored samples; None for one that the handler leaves out."""
        assert self._assembler is not None
        reader = self._assembler.reader
        done = 0
        try:
            for sample in reader.rows(ids).stored():
                done += 1
                yield sample
        except WdsToolsError:
            if self._handler is reraise_exception:
                raise
        for i in range(done, len(ids)):
            try:
                yield next(reader.rows(ids[i : i + 1]).stored())
            except WdsToolsError as error:
                if not self._handler(error):
                    return
                yield None


class _Fields:
    """A stage that selects and renames the fields of samples, as webdataset does with files."""

    def __init__(self, select: _NameFunction | None, rename: _NameFunction | None) -> None:
        self._select, self._rename = select, rename

    def __call__(self, samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            found = {}
            for name, value in sample.items():
                if name.startswith("__"):
                    found[name] = value
                    continue
                path = f"{sample['__key__']}.{name}"
                path = self._rename(path) if self._rename else path
                if not self._select or self._select(path):
                    found[path.removeprefix(f"{sample['__key__']}.")] = value
            yield found


class _Batches:
    """A stage that makes batches; see `WebDataset.batched`."""

    def __init__(self, size: int, collate: Callable[[list[Any]], Any] | None, *, partial: bool) -> None:
        self._size, self._collate, self._partial = size, collate or list, partial

    def __call__(self, samples: Iterator[Any]) -> Iterator[Any]:
        left = iter(samples)
        while batch := list(itertools.islice(left, self._size)):
            if self._partial or len(batch) == self._size:
                yield self._collate(batch)


class WebDataset(DataPipeline, FluidInterface):  # type: ignore[misc]
    """webdataset's `WebDataset`, over a verified source that delivers each sample once per epoch, and resumes.

    The stages are webdataset's own: ``WebDataset(...).decode("pil").to_tuple("jpg", "cls").map(f).batched(64)``. The
    samples are divided among ranks and workers; each rank has the same number of samples. Each iteration is the next
    epoch.

    Args:
        urls: Folder or URL of a dataset, its manifest, or a pattern of indexed shards (see `index_shards`).
        handler: Handler of webdataset for unreadable samples, such as ``wds.warn_and_continue``.
        mode: None or ``"resampled"``.
        resampled: Continue with the next epoch, without an end; limit it by ``with_epoch``. Samples are not drawn with
            replacement: each epoch has each sample once.
        repeat: The same as ``resampled``.
        shardshuffle: Any true value means ``shuffle=True``.
        cache_size: Size limit of the cache for URLs in bytes, as ``cache_bytes``; -1 is the default of `make_loader`.
        cache_dir: Folder of the cache for URLs.
        url_to_name: Not supported.
        detshuffle: Every order is deterministic, so it changes nothing.
        nodesplitter: ``wds.split_by_node`` and the default divide the samples among the ranks; None gives all samples
            to each rank.
        workersplitter: Only the default: the samples are divided among the workers.
        select_files: Function of a file name in the shard, such as ``cat-1.jpg``: whether to keep this field.
        rename_files: Function of a file name in the shard that returns another one.
        empty_check: Changes nothing: a dataset without samples is always an error.
        verbose: Changes nothing.
        seed: Seed of the order (default 0).
        shuffle: As for `make_loader`. By default it follows ``shardshuffle``.
        options: Other arguments of `StreamingDataset`: where, subset, class_weights, storage_options, ...

    Raises:
        OptionError: An option that has no meaning here; the text names the alternative.
        NotADatasetError: There is no packed or indexed dataset.

    Example::

        from wds_tools import WebDataset
        dataset = WebDataset("shards/photos", shardshuffle=100).shuffle(1000).decode("pil").to_tuple("jpg", "cls")
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str],
        handler: Callable[[Exception], bool] = reraise_exception,
        mode: str | None = None,
        resampled: bool = False,
        repeat: bool = False,
        shardshuffle: int | bool | None = None,
        cache_size: int = -1,
        cache_dir: str | None = None,
        url_to_name: Any = cache.pipe_cleaner,
        detshuffle: bool = False,
        nodesplitter: Any = shardlists.single_node_only,
        workersplitter: Any = shardlists.split_by_worker,
        select_files: _NameFunction | None = None,
        rename_files: _NameFunction | None = None,
        empty_check: bool = True,
        verbose: bool = False,
        seed: int | None = None,
        *,
        shuffle: bool | int | float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        del detshuffle, empty_check, verbose
        _check(mode in (None, "resampled"), f"mode={mode!r}", "use resampled=True, or nothing")
        _check(url_to_name is cache.pipe_cleaner, "url_to_name=", "use cache_dir= with the folder of the cache")
        _check(workersplitter is shardlists.split_by_worker, "workersplitter=", "samples are divided among the workers")
        _check(
            nodesplitter in (None, shardlists.single_node_only, shardlists.split_by_node),
            "nodesplitter=",
            "use rank= and world_size=, or group=",
        )
        if nodesplitter is None:
            options = {"rank": 0, "world_size": 1, **options}
        if cache_size >= 0:
            options["cache_bytes"] = cache_size
        self._arguments = {
            "dataset": _location(urls),
            "is_endless": bool(resampled or repeat or mode == "resampled"),
            "handler": handler,
            "shuffle": bool(shardshuffle) if shuffle is None else shuffle,
            "seed": seed or 0,
            "cache_dir": cache_dir,
            **options,
        }
        self.append(_Source(**self._arguments))
        if select_files or rename_files:
            self.append(_Fields(select_files, rename_files))

    @property
    def source(self) -> StreamingDataset:
        """The first stage: an iterable dataset of stored samples."""
        found = self.pipeline[0]
        assert isinstance(found, StreamingDataset)
        return found

    def shuffle(self, size: int, **options: Any) -> Any:
        """Shuffle the samples.

        As the first stage after the source, this is the shuffle of the source: no sample is held in a buffer, and the
        state is exact. After other stages it is webdataset's buffer of ``size`` samples.

        Args:
            size: Size of the shuffle window or of the buffer, in samples.
            options: Other arguments of webdataset's ``shuffle``, for the buffer.
        """
        if len(self.pipeline) > 1 or size < 1:
            return super().shuffle(size, **options)
        if self._arguments["shuffle"] is not False:
            return self
        result: Any = self.compose()
        arguments = result.__dict__["_arguments"] = {**self._arguments, "shuffle": size}
        result.pipeline = [_Source(**arguments)]
        return result

    def batched(
        self,
        batchsize: int,
        collation_fn: Callable[[list[Any]], Any] | None = filters.default_collation_fn,
        partial: bool = True,
    ) -> Any:
        """Make batches. Unlike webdataset's stage, it takes no sample of the next batch in advance.

        Args:
            batchsize: Samples of a batch.
            collation_fn: Function of the samples of a batch; None returns the list.
            partial: Whether a last batch with fewer samples is returned.
        """
        return self.compose(_Batches(batchsize, collation_fn, partial=partial))

    def listed(self, batchsize: int, partial: bool = True) -> Any:
        """Make lists of samples; see `batched`."""
        return self.batched(batchsize, None, partial)

    def __iter__(self) -> Iterator[Any]:
        # webdataset's own method is a generator, in which the source chooses its epoch at the first sample.
        iterator: Iterator[Any] = self.iterator1() if self.repetitions == 1 else super().__iter__()
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start epoch ``epoch`` (zero-based)."""
        self.source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the source, in this process or DataLoader worker.

        It is exact if no stage holds samples back: ``batched`` does not; a ``shuffle`` after another stage does.
        """
        source: Any = self.source
        return dict(source.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue at a position that `state_dict` returned.

        Raises:
            ResumeError: It is not such a state. Later, in the iteration: the number of workers differs.
        """
        source: Any = self.source
        source.load_state_dict(state)


def _check(is_valid: bool, name: str, alternative: str) -> None:
    if not is_valid:
        raise OptionError(f"{name} is not supported: {alternative}")


def _location(urls: str | os.PathLike[str] | Sequence[str]) -> str:
    """Return the folder or pattern of the shards."""
    if isinstance(urls, dict) or not isinstance(urls, str | os.PathLike):
        if isinstance(urls, dict) or len(urls) != 1:
            raise OptionError(
                "urls= must be one folder, URL or pattern such as 'shards/photo-{000000..000009}.tar': combine several "
                "datasets with wds_tools.merge, or read a Mixture with StreamingDataset"
            )
        urls = urls[0]
    text = os.fspath(urls)
    if text.startswith("pipe:"):
        raise OptionError(f"urls={text!r} is a command: pass the URL itself (https://, s3://, gs://, az://)")
    return text
