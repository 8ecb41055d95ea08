"""A destination at a URL: shards are packed into a local spool folder, and each is uploaded when it is finished.

The spool is locked during the run. It holds few shards at a time: if uploads are slower than packing, packing waits.
Everything that is needed to resume is at the URL, so a rerun can be on another machine: ``.packing/`` there holds
``plan.json`` and one report per shard, uploaded after the shard and its index. The manifest is uploaded last; then
``.packing/`` is removed. Each of several tasks has its own spool.
"""

from __future__ import annotations

import glob
import json
import mmap
import os
import platform
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO

import xxhash
from tqdm import tqdm

from wds_tools.errors import DestinationError, OptionError
from wds_tools.format import manifest as manifests
from wds_tools.format.index import index_name
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, ShardEntry
from wds_tools.options import RemoteOptions
from wds_tools.packing.card import CARD_NAME, card, is_card, may_replace
from wds_tools.packing.destination import (
    Destination,
    FolderDestination,
    parse_manifest,
    parse_skipped,
    skipped_lines,
    start_or_resume,
)
from wds_tools.packing.plan import shard_name
from wds_tools.packing.stored_plan import Rows
from wds_tools.packing.work_folder import (
    HEAD_NAME,
    ROWS_NAME,
    SKIPPED_NAME,
    ShardReport,
    WorkFolder,
    is_pack_file,
    remove_shard,
    report_path,
)
from wds_tools.packing.worker import ShardTarget
from wds_tools.sources.base import Skip
from wds_tools.storage import StoredFile, is_url, whole_file
from wds_tools.storage.cache.blocks import BlockCache
from wds_tools.storage.lock import PLAN_NAME, WORK_NAME, is_locked, parse_plan
from wds_tools.storage.requests.failures import clean_url
from wds_tools.storage.upload import Bucket, StopUploadError
from wds_tools.wording import broken_url_remedy

UPLOADS = 2  # shards at a time: the store joins the parts of one while the next is sent; s3fs sends four parts at once
_LOCAL = re.compile("(file|local)://")


def parse_destination(dst: str | Path) -> str | Path:
    """Return a destination as a URL (`str`) or as a local folder (`Path`).

    >>> parse_destination("s3://bucket/train/"), str(parse_destination("file:///data/train"))
    ('s3://bucket/train', '/data/train')
    >>> str(parse_destination("train"))
    'train'
    """
    if not isinstance(dst, str | os.PathLike):
        raise OptionError(f"dst={dst!r}; allowed are paths of folders, and URLs such as 's3://bucket/train'")
    text = os.fspath(dst)
    if remedy := broken_url_remedy(text):
        raise OptionError(remedy)
    if is_url(text) and not _LOCAL.match(text):
        return text.rstrip("/")
    return Path(_LOCAL.sub("", text))


def open_destination(
    location: str | Path,
    *,
    spool: str | Path | None,
    progress: bool,
    remote: RemoteOptions,
    task: tuple[int, int] | None = None,
    cache: RemoteOptions | None = None,
) -> Destination:
    """Return a destination, not locked yet.

    Args:
        location: From `parse_destination`.
        spool: Folder for the spools of URLs; None uses a folder in the user's cache directory.
        progress: Show a progress bar of the uploads.
        remote: How URLs are read and written.
        task: (index, count) if this is one of several tasks.
        cache: How a loader reads the URL meanwhile: uploaded shards are put into its cache. None without a loader.
    """
    if isinstance(location, str):
        return BucketDestination(location, spool, progress=progress, remote=remote, task=task, cache=cache)
    if spool is not None:
        raise OptionError(
            f"spool={str(spool)!r} is for URLs such as s3://bucket/train; the folder {location} needs none: omit spool"
        )
    return FolderDestination(location, task=task)


def spool_folder(url: str, spool: str | Path | None, user: str = "") -> Path:
    """Return the spool folder of a URL. Each URL has its own, and so has each user of it: a task, or a process."""
    root = RemoteOptions.of().cache_folder / "spool" if spool is None else Path(spool).expanduser()
    return root / (xxhash.xxh3_128_hexdigest(url.encode()) + (user and f"-{user}"))


class BucketDestination:
    """A URL as a `Destination`. The lock excludes other packers on this machine only.

    Packers on several machines cannot damage the dataset: a packer with another plan finds the plan at the URL, when it
    starts and before each shard, and raises an error, and packers with the same plan write the same bytes.

    Args:
        url: URL of the dataset.
        spool: As for `open_destination`. Shards that are not uploaded yet are in a subfolder; it is removed when it is
            empty.
        progress: Show a progress bar of the uploads.
        remote: How URLs are read and written.
        task: (index, count) if this is one of several tasks.
        user: What else has a spool of its own, such as a process.
        cache: How a loader reads the URL meanwhile, see `open_destination`.
        plan: What is packed, of a process that uploads a shard for the run that has started the pack.
    """

    is_bounded = True

    def __init__(
        self,
        url: str,
        spool: str | Path | None,
        *,
        progress: bool,
        remote: RemoteOptions,
        task: tuple[int, int] | None = None,
        user: str = "",
        cache: RemoteOptions | None = None,
        plan: dict[str, Any] | None = None,
    ) -> None:
        without = "the first epoch reads them from the URL"
        self._cache = BlockCache(cache.cache_folder, cache.cache_bytes, url=url, without=without) if cache else None
        self.name = clean_url(url)
        self.folder = spool_folder(url, spool, user if task is None else f"task-{task[0]}-of-{task[1]}")
        self._target = _BucketTarget(url, spool, remote)
        self.task = task
        self._spool = WorkFolder(self.folder, self.name, keep_empty=False)
        self._bucket = Bucket(url, remote=remote)
        self._uploads = _Uploads(self._upload_shard)
        self._progress = progress
        self._plan_is_new = False
        self._plan = plan

    def __enter__(self) -> BucketDestination:
        self._spool.__enter__()
        self._bar = tqdm(
            desc="uploaded", unit="B", unit_scale=True, unit_divisor=1000, position=1, disable=not self._progress
        )
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            self._uploads.stop()
        finally:
            self._bar.close()
            self._spool.__exit__(kind, error, trace)

    def manifest(self) -> Manifest | None:
        """Return the manifest at the URL."""
        data = self._bucket.read(MANIFEST_NAME)
        return None if data is None else parse_manifest(data, where=self.name)

    def skipped(self) -> tuple[Skip, ...]:
        """Return the list of skipped files at the URL."""
        return parse_skipped(self._bucket.read(SKIPPED_NAME) or b"")

    def missing_shards(self, entries: Iterable[ShardEntry]) -> list[ShardEntry]:
        """Return the shards that are missing at the URL or have the wrong length."""
        sizes = self._bucket.sizes()
        return [entry for entry in entries if not _is_there(entry, sizes)]

    def remove_leftover_work(self) -> None:
        """Remove the work area of a packer that was killed after it had completed the dataset."""
        if self._bucket.sizes(WORK_NAME):
            self._bucket.remove_folder(WORK_NAME)
        if self._spool.work.exists():
            with self:
                self._clear_spool()
                self._spool.remove_work()

    def start(self, source: dict[str, Any], *, fresh: bool, onto: Manifest | None = None) -> None:
        """Start or resume packing ``source``. Leftovers of other runs in the spool are removed."""
        self._plan_is_new = start_or_resume(self, source, fresh=fresh, onto=onto)
        self._plan = source
        self._spool.remove_temporary_files()
        if self._spool.read_plan() != source:
            self._clear_spool()
            self._spool.write_plan(json.dumps(source).encode())

    def finished_shards(self, numbers: Iterable[int]) -> dict[int, ShardReport]:
        """Return the reports of shards that are at the URL or in the spool, by number. The latter are uploaded."""
        names = {report_path(self.folder, number).name: number for number in numbers}
        sizes = self._bucket.sizes()
        arrived = filter(None, (_parse_report(*item) for item in self._bucket.read_all(WORK_NAME, names).items()))
        reports = {r.number: r for r in arrived if r.entry is None or _is_there(r.entry, sizes)}
        in_spool = self._spool.finished_shards(names.values())
        waiting = {number: report for number, report in in_spool.items() if number not in reports}
        self._keep_only(waiting)
        for report in waiting.values():
            self.add_shard(report)
        return reports | waiting

    def add_shard(self, report: ShardReport) -> None:
        """Upload a finished shard in the background. First waits while `UPLOADS` others are being uploaded."""
        self._uploads.add(report)

    def shard_target(self) -> ShardTarget:
        """Return the URL for tasks on other machines. Each uploads its shard itself."""
        return replace(self._target, plan=self._plan)

    def finish_task(self) -> None:
        """Wait until the shards of this task have arrived, and remove its spool."""
        self._uploads.finish()
        self._clear_spool()
        self._spool.remove_work()

    def commit(self, manifest: Manifest, skipped: Iterable[Skip]) -> None:
        """Complete the dataset: check that all shards exist, then write the list of skipped files, card and manifest.

        Raises:
            StoreError: An upload failed, even after retries.
            DestinationError: An uploaded shard is missing, or another packer has started over.
        """
        self._uploads.finish()
        if self._is_open(manifest.shards):
            self._publish(manifest, skipped)
        self._spool.remove_work()

    def _publish(self, manifest: Manifest, skipped: Iterable[Skip]) -> None:
        if missing := self.missing_shards(manifest.shards):
            raise DestinationError(
                f"{len(missing)} of {len(manifest.shards)} shards were uploaded to {self.name} and are now missing or "
                f"have the wrong length, such as {missing[0].name}: check whether another program writes there, then "
                "run the same command again to pack them again"
            )
        if lines := skipped_lines(skipped):
            self._bucket.write(SKIPPED_NAME, lines)
        else:
            self._bucket.remove([SKIPPED_NAME])
        publish_card(self._bucket, card(manifest))
        self._bucket.write(MANIFEST_NAME, manifests.to_json(manifest).encode())
        self._bucket.remove_folder(WORK_NAME)

    def roll_back(self, packed: Iterable[ShardReport]) -> None:
        """Remove the shards that this run has ``packed``, at the URL and in the spool."""
        packed = list(packed)
        self._uploads.stop()
        if self.read_plan() == self._plan:  # the shards of another packer stay
            names = [name for report in packed for name in _object_names(report.number)]
            self._bucket.remove([report_path(self.folder, report.number).name for report in packed], WORK_NAME)
            self._bucket.remove(names)
            if self._plan_is_new and self.task is None:
                self._bucket.remove_folder(WORK_NAME)
        self._spool.remove_shards(packed)
        if self._plan_is_new or self.task is not None:
            self._spool.remove_work()

    def read_plan(self) -> dict[str, Any] | None:
        """Return the source that is being packed to the URL, or None."""
        data = self._bucket.read(f"{WORK_NAME}/{PLAN_NAME}")
        return None if data is None else parse_plan(data)

    def write_plan(self, data: bytes) -> None:
        """Record the source that is being packed to the URL, unless another packer has recorded one meanwhile."""
        self._bucket.create(f"{WORK_NAME}/{PLAN_NAME}", data)

    def read_listing(self) -> tuple[bytes, Rows] | None:
        """Return the files of the plan; of the larger one, only the parts that are needed are read."""
        head = self._bucket.read(f"{WORK_NAME}/{HEAD_NAME}")
        size = self._bucket.sizes(WORK_NAME).get(ROWS_NAME)
        return None if head is None or size is None else (head, _RemoteRows(self._bucket, size))

    def write_listing(self, write: Callable[[BinaryIO], bytes]) -> None:
        """Write the files of the plan: the rows, then what ``write`` returns."""
        with tempfile.TemporaryFile(dir=self.folder) as file:
            head = write(file)
            file.flush()
            self._bucket.put(_path_of(file), f"{WORK_NAME}/{ROWS_NAME}")
        self._bucket.write(f"{WORK_NAME}/{HEAD_NAME}", head)

    def remove_listing(self) -> None:
        """Remove the files of the plan, so that the next run lists the source again."""
        self._bucket.remove([HEAD_NAME, ROWS_NAME], WORK_NAME)

    def write_planned(self, manifest: Manifest) -> None:
        """Record the manifest of the plan for loaders."""
        self._bucket.write(f"{WORK_NAME}/{MANIFEST_NAME}", manifests.to_json(manifest).encode())

    def names(self) -> Iterable[str]:
        """Return the names of the objects at the URL."""
        return self._bucket.sizes()

    def remove_earlier(self) -> None:
        """Remove an earlier dataset, its manifest first, so that a partly removed dataset never looks complete."""
        self._bucket.remove([MANIFEST_NAME])
        if is_card(self._bucket.read(CARD_NAME) or b""):
            self._bucket.remove([CARD_NAME])
        self._bucket.remove(filter(is_pack_file, self._bucket.sizes()))
        self._bucket.remove_folder(WORK_NAME)
        self._clear_spool()

    def remove_unlisted(self, manifest: Manifest) -> None:
        """Raise an error: nothing is appended to a URL."""
        raise NotImplementedError

    def _upload_shard(self, report: ShardReport) -> None:
        """Upload a shard and then its report, and remove both from the spool. Runs in a thread."""
        path = report_path(self.folder, report.number)
        if self._is_open([report.entry] if report.entry else []):
            self._send(report, path)
        remove_shard(self.folder, report.number)
        path.unlink(missing_ok=True)

    def _is_open(self, entries: Iterable[ShardEntry]) -> bool:
        """Return whether the pack of this run is still unfinished at the URL; False if another machine completed it.

        A process that was stopped for a while, such as a task that also runs elsewhere, would otherwise write over
        shards of the dataset that is there now.
        """
        plan = self.read_plan()
        if plan == self._plan:
            return True
        there = self.manifest() if plan is None else None
        if there is not None:
            shards = {entry.name: entry for entry in there.shards}
            if all(shards.get(entry.name) == entry for entry in entries):
                return False
        raise DestinationError(
            f"another packer has started over at {self.name}, or removed this pack, since this one began: "
            "nothing more was uploaded. Choose another URL for one of them, and check the other with wds-tools verify: "
            "a shard that was being sent may have replaced one of its shards"
        )

    def _send(self, report: ShardReport, path: Path) -> None:
        if report.entry is None:
            # An earlier run may have packed inputs that cannot be read any more.
            self._bucket.remove(_object_names(report.number))
        else:
            for name in (report.entry.index, report.entry.name):
                self._bucket.put(self.folder / name, name, advance=self._advance)
            if self._cache is not None:
                _put_into(self._cache, self.folder, report.entry)
        self._bucket.put(path, f"{WORK_NAME}/{path.name}", advance=self._check_stopped)

    def _advance(self, size: int) -> None:
        self._check_stopped(size)
        self._bar.update(size)

    def _check_stopped(self, _size: int) -> None:
        if self._uploads.stopped:
            raise StopUploadError

    def _clear_spool(self) -> None:
        self._keep_only({})
        (self._spool.work / PLAN_NAME).unlink(missing_ok=True)

    def _keep_only(self, waiting: dict[int, ShardReport]) -> None:
        """Remove all shards from the spool that do not wait for upload."""
        shards = {name for number in waiting for name in _object_names(number)}
        reports = {report_path(self.folder, number).name for number in waiting}
        for path in list(self.folder.iterdir()):
            if is_pack_file(path.name) and path.name not in shards:
                path.unlink()
        for path in list(self._spool.work.glob("shard-*.json")):
            if path.name not in reports:
                path.unlink()


@dataclass(frozen=True, slots=True)
class _BucketTarget:
    """A URL as a `ShardTarget`: a shard is packed into a spool of this process, then uploaded."""

    url: str
    spool: str | Path | None
    remote: RemoteOptions
    plan: dict[str, Any] | None = None

    def put(self, pack: Callable[[Path], ShardReport]) -> ShardReport:
        """Pack a shard and upload it. Spools of processes of this machine that have died are removed."""
        machine = f"on-{platform.node()}-"
        spool = spool_folder(self.url, self.spool)
        for folder in spool.parent.glob(f"{glob.escape(f'{spool.name}-{machine}')}*"):
            pid = folder.name.rpartition("-")[2]
            if not Path("/proc", pid).exists() and not is_locked(folder / WORK_NAME / "lock"):
                shutil.rmtree(folder, ignore_errors=True)
        user = f"{machine}{os.getpid()}"
        with BucketDestination(
            self.url, self.spool, progress=False, remote=self.remote, user=user, plan=self.plan
        ) as destination:
            report = pack(destination.folder)
            destination.add_shard(report)
            destination.finish_task()
        return report


class _RemoteRows:
    """The rows of a plan at a URL, read in ranges."""

    def __init__(self, bucket: Bucket, size: int) -> None:
        self._bucket, self._size = bucket, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        return self._bucket.read_range(f"{WORK_NAME}/{ROWS_NAME}", part.start, part.stop)


def _path_of(file: IO[bytes]) -> Path:
    """Return a path of an open file, which may have no name."""
    return Path(f"/proc/self/fd/{file.fileno()}")


def _put_into(cache: BlockCache, folder: Path, entry: ShardEntry) -> None:
    """Put a shard and its index into the cache of a loader, before their report lets the loader read them."""
    index = StoredFile(entry.index, entry.index_bytes, entry.index_xxh3)
    for file in (index, StoredFile(entry.name, entry.bytes, entry.xxh3)):
        with (
            (folder / file.name).open("rb") as opened,
            mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            cache.put(whole_file(file).key, data)


def publish_card(bucket: Bucket, data: bytes) -> None:
    """Write a card to a URL, unless a user wrote or edited the README.md there."""
    old = bucket.read(CARD_NAME)
    if old != data and may_replace(old, where=bucket.url):
        bucket.write(CARD_NAME, data)


class _Uploads:
    """Threads that upload, at most `UPLOADS` at a time. After a failed upload, the next `add` raises its error."""

    def __init__(self, upload: Callable[[ShardReport], None]) -> None:
        self.stopped = False
        self._upload = upload
        self._slots = threading.Semaphore(UPLOADS)
        self._threads: list[threading.Thread] = []
        self._error: BaseException | None = None

    def add(self, report: ShardReport) -> None:
        self._slots.acquire()
        if self._error is not None:
            self._slots.release()
            raise self._error
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        # Daemon threads, so that a program that ends for another reason does not wait for them.
        self._threads.append(threading.Thread(target=self._run, args=(report,), daemon=True))
        self._threads[-1].start()

    def finish(self) -> None:
        """Wait for all uploads."""
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Stop all uploads after the part that each is sending, and wait for them."""
        self.stopped = True
        with suppress(Exception):
            self.finish()

    def _run(self, report: ShardReport) -> None:
        try:
            self._upload(report)
        except BaseException as error:
            self._error = self._error or error
        finally:
            self._slots.release()


def _parse_report(name: str, data: bytes) -> ShardReport | None:
    """Return a report; None for the plan file, and for a report that was only partly uploaded."""
    try:
        report = ShardReport.from_json(data.decode())
        entry, names = report.entry, _object_names(report.number)
    except (ValueError, KeyError, TypeError):
        return None
    is_valid = name == report_path(Path(), report.number).name and (entry is None or (entry.name, entry.index) == names)
    return report if is_valid else None


def _is_there(entry: ShardEntry, sizes: dict[str, int]) -> bool:
    return sizes.get(entry.name) == entry.bytes and sizes.get(entry.index) == entry.index_bytes


def _object_names(shard: int) -> tuple[str, str]:
    return shard_name(shard), index_name(shard_name(shard))
