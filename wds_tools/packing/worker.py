"""Pack one shard as one task: a pure function that can be repeated, called in this process or in worker processes."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from wds_tools.errors import DecodeError, DestinationError, SourceError
from wds_tools.format.label_lists import LABELS
from wds_tools.format.sample import IMAGE_FIELDS, Sample
from wds_tools.format.totals import count_fields, image_stats
from wds_tools.images import native
from wds_tools.packing.geometry import resized, turned
from wds_tools.packing.plan import json_field, labels_field, sample_key, shard_name
from wds_tools.packing.ray_engine import Advance
from wds_tools.packing.shard_file import ShardFile
from wds_tools.packing.transcode import Encoded, ImageOptions, transcode
from wds_tools.packing.work_folder import ShardReport, remove_shard, save_report
from wds_tools.sources.base import FileState, Record, Skip, Source, SourceStoreError, check_unchanged
from wds_tools.sources.inputs import Input


@dataclass(frozen=True, slots=True)
class ShardTask:
    """Everything that a worker needs to pack one shard.

    Attributes:
        start: Position of its first sample in the packed order.
        threads: Number of samples that are encoded at the same time.
        deep: Whether images with 16 bits per channel are packed, as in `Plan`.
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


class ShardTarget(Protocol):
    """Where a task on another machine writes its shard. It can be pickled."""

    def put(self, pack: Callable[[Path], ShardReport]) -> ShardReport:
        """Call ``pack`` with a local folder for the shard, its index and its report; bring them to the destination."""


def pack_part(
    common: tuple[ShardTask, ShardTarget | None], part: tuple[int, int, tuple[Input, ...]], advance: Advance
) -> ShardReport:
    """Pack a shard where an engine calls this function."""
    task, target = common
    number, start, inputs = part
    task = replace(task, number=number, start=start, inputs=inputs)
    if target is None:
        return pack_shard(task, advance)
    return target.put(lambda folder: pack_shard(replace(task, folder=folder), advance))


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
        with ShardFile(task.folder / name) as shard, closing(encode_calls(task)) as calls:
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
    with closing(encode_calls(task)) as calls:
        for entry, encode in calls:
            try:
                encode()
            except (SourceError, DecodeError) as error:
                yield Skip(entry.path, str(error))
            advance(1, entry.size)


_EncodedSample = tuple[Sample, Encoded, int | None, tuple[str, ...]]
_EncodeCall = Callable[[], _EncodedSample]


def encode_calls(task: ShardTask) -> Generator[tuple[Input, _EncodeCall], None, None]:
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
    """Read an input and encode its sample: the image, ``cls`` if it has a label, ``json``, and further fields."""
    return _encode_record(task, position, entry, task.source.read(entry))


def _encode_record(task: ShardTask, position: int, entry: Input, record: Record) -> _EncodedSample:
    image = transcode(record.image, task.images)
    if image.info.mode.endswith(";16") and not task.deep:
        raise DecodeError(
            "has 16 bits per channel, where most images have 8: convert it to 8 bits, or pack with images='keep', "
            "which keeps every file unchanged"
        )
    if image.signature is None and record.signature is not None and image.data == record.image:
        image = replace(image, signature=record.signature)
    hiding = IMAGE_FIELDS[: IMAGE_FIELDS.index(image.kind) + 1]  # readers would take the first of these as the image
    if (hidden := next((name for name in hiding if name in record.fields), None)) is not None:
        raise SourceError(
            f"would have its image in field {image.kind!r}, and field {hidden!r} would be taken for it: rename that "
            f"field, for example to 'mask.{hidden}', or keep the images (images='keep')"
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
    else:
        record = turned(record, strictly=task.images.images == "raw")
    fields["json"] = json_field(entry, task.classes, record.facts)
    return Sample(sample_key(position), fields | dict(record.fields)), image, entry.label, record.remarks


def _report(number: int, shard: ShardFile, skipped: tuple[Skip, ...]) -> ShardReport:
    if shard.index is None:
        return ShardReport(number, None, {}, None, skipped)
    deep = sum(mode.endswith(";16") for mode in shard.index.mode)
    return ShardReport(number, shard.entry, count_fields(shard.index), image_stats(shard.index), skipped, deep)
