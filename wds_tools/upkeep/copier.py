"""`copy_dataset()`: a dataset at a URL becomes the same dataset in a local folder, verified and resumable.

During a run, the folder has a work area ``.copying/`` with a lock, the manifest that is being copied, and the parts of
unfinished files. A file gets its name when its checksum is right. The manifest is written last.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import xxhash
from tqdm import tqdm

from wds_tools.errors import ChecksumError, DestinationError, ManifestError, NotADatasetError, OptionError
from wds_tools.format.manifest import MANIFEST_NAME, Manifest, from_json
from wds_tools.options import RemoteOptions
from wds_tools.packing.card import CARD_NAME, card, commit_card
from wds_tools.packing.remote_destination import parse_destination
from wds_tools.reading.names import split_manifest
from wds_tools.storage import StoredFile, is_url
from wds_tools.storage.base import MAX_FILE_BYTES
from wds_tools.storage.commit import commit_bytes, sync_folder, write_errors
from wds_tools.storage.lock import COPY_NAME, lock_file, unlock
from wds_tools.storage.requests.clients import Client, open_client
from wds_tools.storage.requests.remote_folder import RemoteFolder
from wds_tools.terminal import shows_progress

PART_BYTES = 8 << 20  # of one request, and what is lost at most if the copy is killed
THREADS = 4
_WRITE_BYTES = 64 << 10  # Linux takes larger pages for larger writes: 2.7 CPU-s per GB with 8 MiB, 0.7 with 64 KiB
_TRIES = 2  # a file with a wrong checksum is copied once more, from its start
_CONTINUE = "finished files are kept: run the same command again to continue"


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The result of `copy_dataset`.

    Attributes:
        copied_bytes: Bytes that were copied by this call.
        kept_bytes: Bytes that an earlier call had copied.
    """

    manifest: Manifest
    dst: Path
    copied_bytes: int
    kept_bytes: int
    seconds: float


def copy_dataset(
    url: str,
    dst: str | Path,
    *,
    progress: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    retry_seconds: float | None = None,
) -> CopyReport:
    """Copy a dataset from a URL to a local folder. After an interruption, the same call continues.

    Every shard and index is compared with its checksum in the manifest. The copy has the same manifest, byte for byte.
    Fields that were added later are copied too.

    Args:
        url: URL of the dataset's folder or manifest.
        dst: Local folder: new, empty, or with an unfinished copy of the same dataset.
        progress: Show a progress bar on stderr; None shows it if stderr is a terminal.
        storage_options: Options for the URL, by the names of fsspec. They are not saved.
        retry_seconds: For how long a failed request is repeated; default: ``WDS_TOOLS_RETRY_SECONDS``, or 300.

    Raises:
        OptionError: ``url`` is not a URL, or ``dst`` is one.
        NotADatasetError: There is no manifest at the URL.
        ManifestError: The manifest is invalid.
        ChecksumError: A file at the URL does not match its checksum.
        DestinationError: ``dst`` contains something else, is in use, or its disk is full.
        StoreError: The storage fails.
    """
    started = time.monotonic()
    destination = parse_destination(dst)
    if not is_url(url) or isinstance(destination, str):
        raise OptionError(
            f"copy reads a URL and writes a local folder, not {url} and {dst}; copy a local dataset with `cp -r`, or "
            "join datasets with `wds-tools merge`"
        )
    remote = RemoteOptions.of(None, 1, storage_options=storage_options, retry_seconds=retry_seconds)
    folder, manifest_name = split_manifest(url)
    opened = RemoteFolder.of(folder, remote)
    client, stop = open_client(opened), opened.stop
    try:
        try:
            data = client.read(manifest_name, most_bytes=MAX_FILE_BYTES)
        except FileNotFoundError:
            raise NotADatasetError(f"{client.url} has no {manifest_name}; pass the URL of a dataset") from None
        manifest = from_json(data, name=f"{client.url}/{manifest_name}")
        files = _files_of(manifest)
        parts: list[CopyReport] = []

        def copy_additions() -> None:
            for addition in manifest.additions:
                source, target = f"{folder.rstrip('/')}/{addition.folder}", destination / addition.folder
                options = {"progress": progress, "storage_options": storage_options, "retry_seconds": retry_seconds}
                parts.append(copy_dataset(source, target, **options))  # type: ignore[arg-type]

        copy = _Copy(client, destination, data, files, stop, copy_additions)
        _run(copy, shows_progress(progress))
        copied = copy.copied + sum(part.copied_bytes for part in parts)
        kept = copy.kept + sum(part.kept_bytes for part in parts)
        return CopyReport(manifest, destination, copied, kept, time.monotonic() - started)
    finally:
        client.close()


def _run(copy: _Copy, show: bool) -> None:
    total = sum(file.bytes for file in copy.files)
    with (
        write_errors(copy.folder, f"fix the cause; {_CONTINUE}"),
        copy,
        tqdm(total=total, unit="B", unit_scale=True, disable=not show, file=sys.stderr) as bar,
    ):
        copy.run(bar)


def _files_of(manifest: Manifest) -> list[StoredFile]:
    files = []
    for shard in manifest.shards:
        files.append(StoredFile(shard.index, shard.index_bytes, shard.index_xxh3))
        files.append(StoredFile(shard.name, shard.bytes, shard.xxh3))
    for file in files:
        if file.name.startswith(".") or file.name in (MANIFEST_NAME, CARD_NAME):
            raise ManifestError(f"the manifest lists {file.name!r}, but this name has another use: rename the file")
    return files


class _Copy:
    """One run. A ``with`` block locks the folder."""

    def __init__(
        self,
        client: Client,
        folder: Path,
        manifest: bytes,
        files: list[StoredFile],
        stop: threading.Event,
        before_manifest: Callable[[], None],
    ) -> None:
        self.folder = folder
        self.files = files
        self.copied = 0
        self.kept = 0
        self._client = client
        self._manifest = manifest
        self._stop = stop
        self._before_manifest = before_manifest
        self._work = folder / COPY_NAME
        self._is_complete = False
        self._mutex = threading.Lock()

    def __enter__(self) -> _Copy:
        self._check_folder()
        try:
            self._lock = lock_file(self._work / "lock")
        except BlockingIOError as error:
            raise DestinationError(f"another program is copying into {self.folder}; wait for it to end") from error
        try:
            self._is_complete = self._read(self.folder / MANIFEST_NAME) == self._manifest
            if self._read(self._work / MANIFEST_NAME) != self._manifest:
                commit_bytes(self._work / MANIFEST_NAME, self._manifest)
        except BaseException:
            unlock(self._lock)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            for path in sorted(self._work.iterdir(), key=lambda path: path.name == "lock"):
                path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # another process may have begun
                self._work.rmdir()
        unlock(self._lock)

    def run(self, bar: Any) -> None:
        """Copy what is missing, then write the manifest."""
        with ThreadPoolExecutor(THREADS, thread_name_prefix="copy") as executor:
            futures = [executor.submit(self._copy, file, bar) for file in self.files]
            try:
                done, _ = wait(futures, return_when=FIRST_EXCEPTION)
                # Found before the client is closed, which makes other files fail.
                errors = [error for future in done if (error := future.exception())]
            finally:
                if not all(future.done() and not future.exception() for future in futures):
                    self._client.close()  # which sets the event, and ends requests
                    executor.shutdown(cancel_futures=True)
        if errors:
            raise errors[0]
        sync_folder(self.folder)
        self._before_manifest()
        if not self._is_complete:
            commit_card(self.folder, card(from_json(self._manifest)))
            commit_bytes(self.folder / MANIFEST_NAME, self._manifest)

    def _check_folder(self) -> None:
        """Check that the folder is empty, or has this dataset or an unfinished copy of it."""
        if not self.folder.exists():
            return
        if not self.folder.is_dir():
            raise DestinationError(f"{self.folder} is not a folder; choose another DST")
        earlier = self._read(self.folder / MANIFEST_NAME)
        if earlier is None:
            earlier = self._read(self._work / MANIFEST_NAME)
        names = {path.name for path in self.folder.iterdir()} - {COPY_NAME}
        if earlier is None and names:
            raise DestinationError(f"{self.folder} contains {min(names)}, and is not a copy: choose another folder")
        if earlier is not None and earlier != self._manifest:
            raise DestinationError(
                f"{self.folder} is a copy of another dataset, or of another version of this one: choose another "
                "folder, or remove it"
            )

    @staticmethod
    def _read(path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _copy(self, file: StoredFile, bar: Any) -> None:
        """Copy one file, unless it has its name already: then an earlier run has verified it."""
        path = self.folder / file.name
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size == file.bytes:
                self._count(bar, kept=file.bytes)
                return
        part = self._work / f"{file.name}.part"
        for _ in range(_TRIES):
            digest, counted = self._receive(file, part, bar)
            if digest == file.checksum:
                part.replace(path)
                return
            part.unlink()
            bar.update(-counted)
        raise ChecksumError(
            f"its XXH3-128 is {digest}, its manifest states {file.checksum}: it is damaged at the URL; upload or pack "
            "it again",
            shard=f"{self._client.url}/{file.name}",
        )

    def _receive(self, file: StoredFile, part: Path, bar: Any) -> tuple[str, int]:
        """Receive the rest of a file; return the checksum of the whole file, and the bytes that were counted."""
        digest, buffer = xxhash.xxh3_128(), memoryview(bytearray(min(PART_BYTES, file.bytes)))
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        with open(descriptor, "r+b", buffering=0) as opened:  # noqa: PTH123 - opens a descriptor
            position = 0
            while position < file.bytes and (count := opened.readinto(buffer[: file.bytes - position])):
                digest.update(buffer[:count])
                position += count
                self._count(bar, kept=count)
            opened.truncate(position)
            while position < file.bytes:
                if self._stop.is_set():
                    raise _StoppedError
                stop = min(position + PART_BYTES, file.bytes)
                data = buffer[: stop - position]
                self._client.read_range(file.name, position, stop, data, total_bytes=file.bytes)
                _write(opened.fileno(), position, data, digest)
                self._count(bar, copied=len(data))
                position = stop
            os.fsync(opened.fileno())
        return digest.hexdigest(), position

    def _count(self, bar: Any, *, copied: int = 0, kept: int = 0) -> None:
        with self._mutex:
            self.copied += copied
            self.kept += kept
            bar.update(copied + kept)


class _StoppedError(Exception):
    """Another file has failed."""


def _write(descriptor: int, position: int, data: memoryview, digest: xxhash.xxh3_128) -> None:
    """Append to a file and to its checksum, in pieces that the processor's cache holds. The disk starts at once."""
    for start in range(0, len(data), _WRITE_BYTES):
        piece = data[start : start + _WRITE_BYTES]
        digest.update(piece)
        while piece:
            piece = piece[os.write(descriptor, piece) :]
    if hasattr(os, "posix_fadvise"):  # dirty pages are kept, but Linux starts to write them; fsync then waits less
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, position, len(data), os.POSIX_FADV_DONTNEED)
