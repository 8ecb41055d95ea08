"""Pack one shard as one task: a pure function that can be repeated, called in this process or in worker processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from wds_tools.errors import DecodeError, DestinationError, SourceError, WorkerError
from wds_tools.format.label_lists import LABELS
from wds_tools.format.sample import IMAGE_FIELDS, Sample
from wds_tools.format.totals import count_fields, image_stats
from wds_tools.images import native
from wds_tools.packing.geometry import resized
from wds_tools.packing.plan import json_field, labels_field, sample_key, shard_name
from wds_tools.packing.shard_file import ShardFile
from wds_tools.packing.transcode import Encoded, ImageOptions, transcode
from wds_tools.packing.work_folder import ShardReport, remove_shard, save_report
from wds_tools.sources.base import FileState, Input, Record, Skip, Source, SourceStoreError, check_unchanged

Advance = Callable[[int, int], None]
"""Called with (samples, bytes) as they are finished. It can raise an error to stop the work."""

_POLL_SECONDS = 0.1
_COUNTERS = 1024  # one per process, by its process id; a lock would stay locked if its holder is killed


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Everything that a worker needs to pack one shard.

    Attributes:
        number: Number of the shard.
        start: Position of its first sample in the packed order.
        inputs: Its inputs, in order.
        classes: Class names by number.
        source: Where the inputs are read.
        folder: Where the shard is written.
        images: What happens to images.
        threads: Number of samples that are encoded at the same time.
        deep: Whether images with 16 bits per channel are packed, as in `Plan`.
        files: `Listing.files`.
        plan: `Plan.id`.
    """

    number: int
    start: int
    inputs: tuple[Input, ...]
    classes: tuple[str, ...]
    source: Source
    folder: Path
    images: ImageOptions
    threads: int
    deep: bool = True
    files: tuple[FileState, ...] = ()
    plan: str = ""


class Place(Protocol):
    """Where a task on another machine writes its shard. It can be pickled."""

    def put(self, pack: Callable[[Path], ShardReport]) -> ShardReport:
        """Call ``pack`` with a local folder for the shard, its index and its report; bring them to the destination."""


def pack_part(common: tuple[ShardTask, Place], part: tuple[int, int, tuple[Input, ...]]) -> ShardReport:
    """Pack a shard on another machine.

    Args:
        common: What all shards have: a task without inputs, and where they are written.
        part: ``number``, ``start`` and ``inputs`` of the task.
    """
    task, place = common
    number, start, inputs = part
    task = replace(task, number=number, start=start, inputs=inputs)
    return place.put(lambda folder: pack_shard(replace(task, folder=folder)))


def pack_shard(task: ShardTask, advance: Advance | None = None) -> ShardReport:
    """Write one shard, its index and its report. The same task always gives the same bytes.

    Raises:
        DestinationError: The shard cannot be written; the attribute ``shard`` has its name.
        WorkerError: This process lacks the compiled module, which the main process has.
        SourceStoreError: The source fails, or has changed since it was listed.
    """
    native.check_worker(compiled_in_parent=task.images.compiled)
    name = shard_name(task.number)
    skipped = []
    remarks: Counter[str] = Counter()
    try:
        with ShardFile(task.folder / name) as shard, closing(_encode_calls(task)) as calls:
            for entry, encode in calls:
                try:
                    sample, image, label, noted = encode()
                except (SourceError, DecodeError) as error:
                    skipped.append(Skip(entry.path, str(error)))
                else:
                    shard.write(sample, label=label, image=image.info, signature=image.signature)
                    remarks.update(noted)
                if advance is not None:
                    advance(1, entry.size)
        check_unchanged(task.files)
        report = replace(_report(task.number, shard, tuple(skipped)), remarks=dict(remarks), plan=task.plan)
        if report.entry is None:
            remove_shard(task.folder, task.number)  # an earlier run may have packed inputs that cannot be read any more
        save_report(task.folder, report)
    except SourceStoreError:
        raise
    except OSError as error:
        raise DestinationError(error.strerror or str(error), shard=name) from error
    return report


def bad_inputs(task: ShardTask, advance: Advance) -> Iterator[Skip]:
    """Encode the samples of a task without writing them, and yield the inputs that cannot be packed."""
    with closing(_encode_calls(task)) as calls:
        for entry, encode in calls:
            try:
                encode()
            except (SourceError, DecodeError) as error:
                yield Skip(entry.path, str(error))
            advance(1, entry.size)


_EncodedSample = tuple[Sample, Encoded, int | None, tuple[str, ...]]
_EncodeCall = Callable[[], _EncodedSample]


def _encode_calls(task: ShardTask) -> Generator[tuple[Input, _EncodeCall], None, None]:
    """Yield each input in order, with a function that returns its encoded sample. Threads encode samples ahead."""
    numbered = enumerate(task.inputs, task.start)
    if task.threads == 1:
        yield from ((entry, partial(make_sample, task, position, entry)) for position, entry in numbered)
        return
    submitted: deque[tuple[Input, _EncodeCall]] = deque()
    with ThreadPoolExecutor(task.threads) as pool:
        try:
            for position, entry in numbered:
                submitted.append((entry, _submit(pool, task, position, entry)))
                if len(submitted) > 2 * task.threads:
                    yield submitted.popleft()
            yield from submitted
        finally:
            pool.shutdown(cancel_futures=True)


def _submit(pool: ThreadPoolExecutor, task: ShardTask, position: int, entry: Input) -> _EncodeCall:
    """Read an input in this thread, because open files of a source are not thread-safe, and encode it in another."""
    try:
        record = task.source.read(entry)
    except SourceError as error:
        return partial(_raise, error)
    return pool.submit(_encode_record, task, position, entry, record).result


def _raise(error: SourceError) -> _EncodedSample:
    raise error


def make_sample(task: ShardTask, position: int, entry: Input) -> _EncodedSample:
    """Read an input and encode its sample: the image, ``cls`` if it has a label, ``json``, and further fields.

    Raises:
        SourceError: The input cannot be read.
        DecodeError: The image is damaged or of an unsupported type.
    """
    return _encode_record(task, position, entry, task.source.read(entry))


def _encode_record(task: ShardTask, position: int, entry: Input, record: Record) -> _EncodedSample:
    image = transcode(record.image, task.images)
    if image.info.mode.endswith(";16") and not task.deep:
        raise DecodeError(
            "has 16 bits per channel, where most images have 8: convert it to 8 bits, or pack with images='keep', "
            "which keeps every file unchanged"
        )
    hiding = IMAGE_FIELDS[: IMAGE_FIELDS.index(image.kind) + 1]  # readers would take the first of these as the image
    if (other := next((name for name in hiding if name in record.fields), None)) is not None:
        raise SourceError(
            f"would have its image in field {image.kind!r}, and field {other!r} would be taken for it: rename that "
            f"field, for example to 'mask.{other}', or keep the images (images='keep')"
        )
    fields = {image.kind: image.data}
    if entry.label is not None:
        fields["cls"] = b"%d" % entry.label
    if entry.labels is not None:
        if LABELS in record.fields:
            raise SourceError(f"has labels, and another field {LABELS!r}: rename that field, or choose it as the label")
        fields[LABELS] = labels_field(entry.labels)
    if task.images.size is not None:
        record = resized(record, (image.info.height, image.info.width))
    fields["json"] = json_field(entry, task.classes, record.facts)
    return Sample(sample_key(position), fields | dict(record.fields)), image, entry.label, record.remarks


def _report(number: int, shard: ShardFile, skipped: tuple[Skip, ...]) -> ShardReport:
    if shard.index is None:
        return ShardReport(number, None, {}, None, skipped)
    deep = sum(mode.endswith(";16") for mode in shard.index.mode)
    return ShardReport(number, shard.entry, count_fields(shard.index), image_stats(shard.index), skipped, deep)


def run_tasks(
    tasks: Iterator[ShardTask], *, processes: int, advance: Advance, bounded: bool = False
) -> Generator[ShardReport, None, None]:
    """Pack shards in parallel, and yield their reports in the order of completion. Close the generator to stop.

    Args:
        tasks: One task per shard.
        processes: Maximum number of worker processes; 1 packs in this process.
        advance: Called in this process with finished samples and bytes.
        bounded: Have at most ``processes`` shards in progress. The next one starts only when the report of an earlier
            one has been taken.

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
    # Forked workers would inherit the locks of this process's threads; workers of a fork server do not.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # imported once, not by each worker: 0.4 s to start, not 0.6
    counters, stop = context.RawArray("q", 2 * _COUNTERS), context.Value("b", 0, lock=False)
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_start_worker, initargs=(counters, stop)
    ) as pool:
        try:
            yield from _collect(pool, tasks, max_pending, _SharedProgress(counters, advance))
        except BrokenProcessPool as error:
            raise WorkerError(
                "a worker process died; it was killed or ran out of memory. Finished shards are kept: run the same "
                "command again to continue, with fewer workers if memory ran out"
            ) from error
        finally:
            stop.value = 1
            pool.shutdown(cancel_futures=True)


def _collect(
    pool: ProcessPoolExecutor, tasks: Iterator[ShardTask], max_pending: int, poll: _SharedProgress
) -> Iterator[ShardReport]:
    running: set[Future[ShardReport]] = set()
    while True:
        # At most one task waits per worker. A task holds thousands of paths, so not all are created at once.
        running |= _submit_tasks(pool, list(islice(tasks, max_pending - len(running))))
        if not running:
            return
        finished, running = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
        poll.report()
        for future in finished:
            yield future.result()


def _submit_tasks(pool: ProcessPoolExecutor, tasks: list[ShardTask]) -> set[Future[ShardReport]]:
    with _main_module_hidden():  # the first submission starts the processes
        try:
            return {pool.submit(_run_task, task) for task in tasks}
        except (EOFError, ConnectionError) as error:
            raise BrokenProcessPool("the fork server died") from error


class _SharedProgress:
    """Progress of all workers, from counters in shared memory."""

    def __init__(self, counters: Any, advance: Advance) -> None:
        self._counters = counters
        self._advance = advance
        self._reported = (0, 0)

    def report(self) -> None:
        """Report what was finished since the last call."""
        samples, size = sum(self._counters[::2]), sum(self._counters[1::2])
        self._advance(samples - self._reported[0], size - self._reported[1])
        self._reported = (samples, size)


class _StopError(Exception):
    """The main process has set the stop flag."""


_shared: tuple[Any, Any] | None = None  # (counters, stop flag), in a worker process


def _start_worker(counters: Any, stop: Any) -> None:
    global _shared  # noqa: PLW0603 - a pool passes shared memory to its processes only through the initializer
    _shared = (counters, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the main process
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    """Exit when the main process is gone; otherwise the worker would wait forever for its next task."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# In a worker process: the source of the first task, which keeps its files open for the next tasks.
_source: Source | None = None


def _run_task(task: ShardTask) -> ShardReport:
    global _source  # noqa: PLW0603 - open files must outlive a task
    if _source is None:
        _source = task.source
    return pack_shard(replace(task, source=_source), _advance_shared)


def _advance_shared(samples: int, size: int) -> None:
    assert _shared is not None, "called only in a worker process"
    counters, stop = _shared
    if stop.value:
        raise _StopError
    slot = 2 * (os.getpid() % _COUNTERS)
    counters[slot] += samples
    counters[slot + 1] += size


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Hide the main module from processes that start inside this block.

    Otherwise each of them would import it. A script that packs without an ``if __name__ == "__main__"`` guard would
    then pack again, and a script that imports torch would make every worker import it too. Tasks contain no classes of
    the main module, so workers do not need it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
