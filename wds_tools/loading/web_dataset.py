"""`WebDataset`: webdataset's own pipeline, with our source of samples."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

from webdataset import cache, filters, shardlists
from webdataset.compat import FluidInterface
from webdataset.filters import reraise_exception
from webdataset.pipeline import DataPipeline

from wds_tools.errors import OptionError
from wds_tools.loading.dataset import StreamingDataset
from wds_tools.loading.web_source import FieldNames, Handler, NameFunction, Splitter, WebSource, dataset_of


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
    """webdataset's `WebDataset` with another source: it verifies bytes, has each sample once per epoch, and resumes.

    The stages are those of webdataset: ``WebDataset(...).decode("pil").to_tuple("jpg", "cls").map(f).batched(64)``. The
    samples are divided among ranks and workers; each rank has the same number of samples. Each iteration is the next
    epoch.

    Args:
        urls: Folder or URL of a dataset, its manifest, a pattern of indexed shards (see `index_shards`), or a list of
            such shards. Paths and URLs, including ``file:``; not commands with ``pipe:``.
        handler: Handler of webdataset for unreadable samples, such as ``wds.warn_and_continue``. If it returns False,
            the iteration ends.
        mode: None or ``"resampled"``.
        resampled: Continue with the next epoch, endlessly; limit it by ``with_epoch``. Samples are not drawn with
            replacement: each epoch has each sample once.
        repeat: The same as ``resampled``.
        shardshuffle: Any true value means ``shuffle=True``.
        cache_size: Size limit of the cache for URLs in bytes, as ``cache_bytes``; -1 is the default of `make_loader`.
        cache_dir: Folder of the cache for URLs.
        url_to_name: Not supported.
        detshuffle: Changes nothing, with a warning: every order is deterministic.
        nodesplitter: ``wds.split_by_node`` and the default divide the samples among the ranks; None gives all samples
            to each rank. Another function is called with the shards, as in webdataset, and only those that it returns
            are read on this rank, in stored order or shuffled by ``shuffle``.
        workersplitter: ``wds.split_by_worker``, the default, divides the samples among the workers; None gives all
            samples to each worker. Another function chooses shards, as ``nodesplitter`` does.
        select_files: Function of a file name in the shard, such as ``cat-1.jpg``: whether to keep this field.
        rename_files: Function of a file name in the shard that returns another one.
        empty_check: Raise an error in a worker that has no sample. A dataset without samples is always an error.
        verbose: Changes nothing, with a warning.
        seed: Seed of the order (default 0).
        shuffle: As for `make_loader`. By default it follows ``shardshuffle``.
        options: Other arguments of `StreamingDataset`: where, subset, class_weights, storage_options, ...

    Raises:
        OptionError: An option that is not supported here; the message names the alternative. Later, in the iteration:
            a worker has no sample, or a splitter returns a shard that is not in ``urls``.
        NotADatasetError: There is no packed or indexed dataset.

    Warns:
        UserWarning: An option changes nothing here.

    Example::

        from wds_tools import WebDataset
        dataset = WebDataset("shards/photos", shardshuffle=100).shuffle(1000).decode("pil").to_tuple("jpg", "cls")
    """

    def __init__(
        self,
        urls: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        handler: Handler = reraise_exception,
        mode: str | None = None,
        resampled: bool = False,
        repeat: bool = False,
        shardshuffle: int | bool | None = None,
        cache_size: int = -1,
        cache_dir: str | None = None,
        url_to_name: Any = cache.pipe_cleaner,
        detshuffle: bool = False,
        nodesplitter: Splitter | None = shardlists.single_node_only,
        workersplitter: Splitter | None = shardlists.split_by_worker,
        select_files: NameFunction | None = None,
        rename_files: NameFunction | None = None,
        empty_check: bool = True,
        verbose: bool = False,
        seed: int | None = None,
        *,
        shuffle: bool | int | float | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        _check(mode in (None, "resampled"), f"mode={mode!r}", "use resampled=True, or nothing")
        _check(url_to_name is cache.pipe_cleaner, "url_to_name=", "use cache_dir= with the folder of the cache")
        _warn_of_no_effect(
            {
                "detshuffle=True": detshuffle and "every order is deterministic",
                "verbose=True": verbose and "logging at level DEBUG shows more",
            }
        )
        if cache_size >= 0:
            options["cache_bytes"] = cache_size
        self._arguments = {
            "dataset": dataset_of(urls),
            "is_endless": bool(resampled or repeat or mode == "resampled"),
            "handler": handler,
            "nodesplitter": nodesplitter,
            "workersplitter": workersplitter,
            "empty_check": empty_check,
            "shuffle": bool(shardshuffle) if shuffle is None else shuffle,
            "seed": seed or 0,
            "cache_dir": cache_dir,
            **options,
        }
        self.append(WebSource(**self._arguments))
        if select_files or rename_files:
            self.append(FieldNames(select_files, rename_files))

    @property
    def source(self) -> StreamingDataset:
        """The first stage: an iterable dataset of stored samples."""
        dataset = self.pipeline[0]
        assert isinstance(dataset, StreamingDataset)
        return dataset

    def shuffle(self, size: int, **options: Any) -> Any:
        """Shuffle the samples.

        As the first stage after the source, this is the shuffle of the source: no sample is kept in a buffer, and the
        state is exact. After other stages it is webdataset's buffer of ``size`` samples.

        Args:
            size: Size of the shuffle window or of the buffer, in samples.
            options: Other arguments of webdataset's ``shuffle``, for the buffer.

        Warns:
            UserWarning: There is no buffer for ``options``.
        """
        if len(self.pipeline) > 1 or size < 1:
            return super().shuffle(size, **options)
        _warn_of_no_effect(
            {f"shuffle({name}=)": "no buffer is filled, and seed= is for WebDataset" for name in options}
        )
        if self._arguments["shuffle"] is not False:
            return self
        result: Any = self.compose()
        arguments = result.__dict__["_arguments"] = {**self._arguments, "shuffle": size}
        result.pipeline = [WebSource(**arguments)]
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration start epoch ``epoch`` (zero-based)."""
        self.source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the source, in this process or DataLoader worker.

        It is exact if no stage keeps samples in a buffer: ``batched`` does not; a ``shuffle`` after another stage does.
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


def _warn_of_no_effect(reasons: dict[str, str | bool]) -> None:
    """Warn once of all options that have a reason why they change nothing."""
    if unused := [f"{name} ({reason})" for name, reason in reasons.items() if reason]:
        warnings.warn(f"WebDataset: these options have no effect here: {', '.join(unused)}", stacklevel=3)
