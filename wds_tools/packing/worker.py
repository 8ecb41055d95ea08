"""The work of packing: one shard is one task, pure and repeatable, run here or by worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from wds_tools.errors import DecodeError, DestinationError, SourceError, WorkerError
from wds_tools.format.codecs import ImageInfo
from wds_tools.format.sample import Sample
from wds_tools.format.totals import count_fields, image_stats
from wds_tools.packing.plan import json_field, sample_key, shard_name
from wds_tools.packing.shard_file import ShardFile
from wds_tools.packing.transcode import ImageOptions, transcode
from wds_tools.packing.work_folder import ShardReport, remove_shard, save_report
from wds_tools.sources.base import Input, Record, Skip, Source

Advance = Callable[[int, int], None]
"""Told of every (samples, bytes) that are done; may raise to stop the work."""

_POLL_SECONDS = 0.1
_COUNTERS = 1024  # one for each process, by its number; a lock would stay shut when its holder is killed


@dataclass(frozen=True, slots=True)
class ShardTask:
    """All that a worker needs to pack one shard.

    Attributes:
        number: Of the shard.
        start: Position of its first sample in the packed order.
        inputs: Its pictures.
        classes: Class names by number.
        source: Where to read them.
        folder: Where to write.
        images: What happens to images.
        threads: Samples that are made at a time.
    """

    number: int
    start: int
    inputs: tuple[Input, ...]
    classes: tuple[str, ...]
    source: Source
    folder: Path
    images: ImageOptions
    threads: int


def pack_shard(task: ShardTask, advance: Advance | None = None) -> ShardReport:
    """Write one shard, its index and its report; the same task gives the same bytes whenever and wherever it runs.

    Raises:
        DestinationError: The shard cannot be written; ``shard`` says which.
    """
    name = shard_name(task.number)
    skipped = []
    try:
        with ShardFile(task.folder / name) as shard, closing(_encode_calls(task)) as makers:
            for entry, make in makers:
                try:
                    sample, image, label = make()
                except (SourceError, DecodeError) as error:
                    skipped.append(Skip(entry.path, str(error)))
                else:
                    shard.write(sample, label=label, image=image)
                if advance is not None:
                    advance(1, entry.size)
        report = _report(task.number, shard, tuple(skipped))
        if report.entry is None:
            remove_shard(task.folder, task.number)  # an earlier run may still have found something to pack
        save_report(task.folder, report)
    except OSError as error:
        raise DestinationError(error.strerror or str(error), shard=name) from error
    return report


def bad_inputs(task: ShardTask, advance: Advance) -> Iterator[Skip]:
    """Make the samples of a task without writing them; yield those that cannot be packed."""
    with closing(_encode_calls(task)) as makers:
        for entry, make in makers:
            try:
                make()
            except (SourceError, DecodeError) as error:
                yield Skip(entry.path, str(error))
            advance(1, entry.size)


_EncodedSample = tuple[Sample, ImageInfo, int | None]
_EncodeCall = Callable[[], _EncodedSample]


def _encode_calls(task: ShardTask) -> Generator[tuple[Input, _EncodeCall], None, None]:
    """Yield each input with what makes its sample, in order; on threads, the next ones are being made already."""
    works = enumerate(task.inputs, task.start)
    if task.threads == 1:
        yield from ((entry, partial(make_sample, task, position, entry)) for position, entry in works)
        return
    begun: deque[tuple[Input, _EncodeCall]] = deque()
    with ThreadPoolExecutor(task.threads) as pool:
        try:
            for position, entry in works:
                begun.append((entry, _begin(pool, task, position, entry)))
                if len(begun) > 2 * task.threads:
                    yield begun.popleft()
            yield from begun
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(pool: ThreadPoolExecutor, task: ShardTask, position: int, entry: Input) -> _EncodeCall:
    """Read an input here, as a source's open files are not for several threads, and make its sample on a thread."""
    try:
        record = task.source.read(entry)
    except SourceError as error:
        return partial(_raise, error)
    return pool.submit(_sample_of, task, position, entry, record).result


def _raise(error: SourceError) -> _EncodedSample:
    raise error


def make_sample(task: ShardTask, position: int, entry: Input) -> _EncodedSample:
    """Read a picture and make its sample: the image under its type, ``cls`` if it has a label, ``json``, others.

    Raises:
        SourceError: It cannot be read.
        DecodeError: It is no whole image.
    """
    return _sample_of(task, position, entry, task.source.read(entry))


def _sample_of(task: ShardTask, position: int, entry: Input, record: Record) -> _EncodedSample:
    if record.label is not None:
        entry = entry._replace(label=record.label)
    image = transcode(record.image, task.images)
    fields = {image.kind: image.data}
    if entry.label is not None:
        fields["cls"] = b"%d" % entry.label
    fields["json"] = json_field(entry, task.classes, record.facts)
    return Sample(sample_key(position), fields | dict(record.fields)), image.info, entry.label


def _report(number: int, shard: ShardFile, skipped: tuple[Skip, ...]) -> ShardReport:
    if shard.index is None:
        return ShardReport(number, None, {}, None, skipped)
    deep = sum(mode.endswith(";16") for mode in shard.index.mode)
    return ShardReport(number, shard.entry, count_fields(shard.index), image_stats(shard.index), skipped, deep)


def run_tasks(
    tasks: Iterator[ShardTask], *, processes: int, advance: Advance, bounded: bool = False
) -> Generator[ShardReport, None, None]:
    """Pack shards, several at a time; yields their reports as they come. Close it to stop the workers.

    Args:
        tasks: What to do.
        processes: At most so many at a time; 1 works in this process.
        advance: Called in this process.
        bounded: Begin no shard before the report of an earlier one was taken, once each process has one.

    Raises:
        DestinationError: A shard cannot be written.
        WorkerError: A worker process died.
    """
    if processes <= 1:
        return (pack_shard(task, advance) for task in tasks)
    return _run_pool(tasks, processes, advance, max_pending=processes if bounded else 2 * processes)


def _run_pool(
    tasks: Iterator[ShardTask], processes: int, advance: Advance, *, max_pending: int
) -> Generator[ShardReport, None, None]:
    # Forked workers would inherit the locks of our threads; those of a fork server do not.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once, and not by each: 0.4 s to start, not 0.6
    done, stop = context.RawArray("q", 2 * _COUNTERS), context.Value("b", 0, lock=False)
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_start_worker, initargs=(done, stop)) as pool:
        try:
            yield from _collect(pool, tasks, max_pending, _SharedProgress(done, advance))
        except BrokenProcessPool as error:
            raise WorkerError(
                "a packing process died, killed from outside or for want of memory: "
                "finished shards are kept, run the same command again to go on (with fewer workers)"
            ) from error
        finally:
            stop.value = 1
            pool.shutdown(cancel_futures=True)


def _collect(
    pool: ProcessPoolExecutor, tasks: Iterator[ShardTask], max_pending: int, poll: _SharedProgress
) -> Iterator[ShardReport]:
    running: set[Future[ShardReport]] = set()
    while True:
        # At most one task waits for each worker: tasks hold thousands of paths, so not all are made at once.
        with _main_module_hidden():  # the first submission starts the processes
            running |= {pool.submit(_run_task, task) for task in islice(tasks, max_pending - len(running))}
        if not running:
            return
        finished, running = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        poll.report()
        for future in finished:
            yield future.result()


class _SharedProgress:
    """Reads the counters that all workers share."""

    def __init__(self, done: Any, advance: Advance) -> None:
        self._done = done
        self._advance = advance
        self._seen = (0, 0)

    def report(self) -> None:
        """Pass on what was done since the last call."""
        samples, size = sum(self._done[::2]), sum(self._done[1::2])
        self._advance(samples - self._seen[0], size - self._seen[1])
        self._seen = (samples, size)


class _StopError(Exception):
    """The main process wants no more."""


_shared: tuple[Any, Any] | None = None  # of a worker process: (counters, stop flag)


def _start_worker(done: Any, stop: Any) -> None:
    global _shared  # noqa: PLW0603 - shared memory reaches a pool's process only through its initializer
    _shared = (done, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the main process decides what Ctrl-C does
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """A pool's process would wait for ever for work from a main process that was killed."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


_source: Source | None = None  # of a worker process: every task has the same one, but this one has its files open


def _run_task(task: ShardTask) -> ShardReport:
    global _source  # noqa: PLW0603 - tasks come one by one, and what is open must outlive them
    if _source is None:
        _source = task.source
    return pack_shard(replace(task, source=_source), _advance_shared)


def _advance_shared(samples: int, size: int) -> None:
    assert _shared is not None, "runs in a worker"
    done, stop = _shared
    if stop.value:
        raise _StopError
    counter = 2 * (os.getpid() % _COUNTERS)
    done[counter] += samples
    done[counter + 1] += size


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Hide the main script from processes that start now.

    They would run it to learn of its classes, of which a task has none: a script that packs without a guard would pack
    again, and one that imports torch would have each process import it too.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
