"""Training while packing (``make_loader(..., pack_to=)``): the packer of a loader, and the dataset that it writes.

The first epoch of such a loader has the order of the plan, `PackedOrder`, whether the dataset is complete already or
not: so it is the same on all ranks, and in a run that is repeated or resumed. Later epochs are those of the dataset.
"""

from __future__ import annotations

import inspect
import logging
import math
import os
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from wds_tools.errors import DestinationError, MissingSourceError, OptionError, WdsToolsError, WorkerError
from wds_tools.format.manifest import Manifest
from wds_tools.format.recorded_source import packed_source, plan_of
from wds_tools.loading.load_options import LoaderOptions
from wds_tools.loading.mixture import Mixture
from wds_tools.loading.request import OpenedDataset, open_dataset
from wds_tools.loading.samples.columns import buckets_of
from wds_tools.options import launcher_number
from wds_tools.packing.background import BackgroundPacker, PackerDiedError
from wds_tools.packing.config import PackOptions
from wds_tools.packing.packer import check_place
from wds_tools.packing.remote_destination import parse_destination, spool_folder
from wds_tools.packing.unfinished import UnfinishedShards, read_complete, read_plan
from wds_tools.reporting import reporting_environment
from wds_tools.storage import open_store
from wds_tools.storage.cache.remote import is_known_elsewhere
from wds_tools.storage.lock import WORK_NAME
from wds_tools.storage.requests.failures import clean_url
from wds_tools.terminal import shows_progress
from wds_tools.wording import counted

_POLL_SECONDS = 0.02
_LOOK_SECONDS = 0.5  # between two looks at a URL
_SIZE_SECONDS = 1.0  # between two looks at how much the packer has written
_RESTARTS = 1
_OF_LOADER = ("src", "dst", "progress", "dry_run", "fresh", "task", "finish", "engine", "first")
_log = logging.getLogger("wds_tools")


@dataclass(frozen=True, slots=True)
class PackingProgress:
    """How far the packer of a loader is.

    Attributes:
        done: Inputs in finished shards.
        total: All inputs; 0 while the source is listed.
        images_per_second: Inputs per second since the loader was created.
        seconds_left: Time until the dataset is complete, in seconds; None if it is not known.
        is_complete: Whether the dataset is complete.
        pid: Id of the process that packs or waits for another packer; None if this rank has none, or it has ended.
    """

    done: int
    total: int
    images_per_second: float
    seconds_left: float | None
    is_complete: bool
    pid: int | None

    def __str__(self) -> str:
        if self.is_complete:
            return f"packing: all {counted(self.total, 'input')}"
        left = "" if self.seconds_left is None else f", {self.seconds_left:,.0f} s left"
        return f"packing: {self.done:,} of {self.total:,} inputs, {self.images_per_second:,.0f} images/s{left}"


class Packing:
    """The packer of a loader. Rank 0 has one, and with a folder the lowest rank of each machine.

    The others wait for its shards. At a URL all ranks find these; a folder may be shared by the machines or not.

    Args:
        options: The options of the loader.

    Raises:
        OptionError: ``pack=`` has an invalid option, or the options contradict each other.

    Attributes:
        was_complete: Whether the dataset was complete when it was opened.
    """

    def __init__(self, options: LoaderOptions) -> None:
        self._arguments, self._location, self._crop_ready = _checked(options)
        self._options = options
        self._store = open_store(str(self._location), remote=options.remote, for_training=True)
        is_url = isinstance(self._location, str)
        spool = self._arguments.get("spool")
        self._work = spool_folder(self._location, spool) if isinstance(self._location, str) else self._location
        is_lowest = not is_url and launcher_number("LOCAL_RANK") == 0
        self._has_packer = is_lowest or options.ranks.find().world.rank == 0
        self._look_seconds = _LOOK_SECONDS if is_url else 0.0
        self._looked = -math.inf
        self._packer: BackgroundPacker | None = None
        self._close_packer: Callable[[], object] = _nothing
        self._is_verified = not self._has_packer  # whether the packer has ended without an error
        self._restarts = 0
        self._is_low = False  # whether the packer has low priority: the training no longer waits for its first shard
        self._shards: UnfinishedShards | None = None
        self._begun = (time.monotonic(), 0)  # time, and inputs that were packed then
        is_shown = shows_progress(options.progress) and options.ranks.find().world.rank == 0
        self._line = PackingLine() if is_shown else None
        self.was_complete = False

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_packer": None,
            "_close_packer": _nothing,
            "_line": None,
        }  # another process starts its own

    def open(self) -> OpenedDataset:
        """Open the dataset when its first shard is finished, or when it is complete if the options need all of it.

        Raises:
            OptionError: The folder or URL has the dataset of another source, or an option is invalid.
            WdsToolsError: The packer has failed; its error.
        """
        try:
            opened = self._open()
        except BaseException:
            self.close()
            raise
        self._is_low = True  # until now, the training has waited for the packer
        if self._packer is not None:
            self._packer.lower_priority()
        return opened

    def _open(self) -> OpenedDataset:
        self.was_complete = read_complete(self._store) is not None
        if self.was_complete and not _exists(self._options.dataset):
            _log.info("%s does not exist: %s is used as it is", self._options.dataset, self._location)
            self._is_verified = True
        self.check()
        if self.was_complete:
            return self._opened()
        self._find_shards()
        if _needs_all(self._options):
            _log.warning(
                "where=, subset=, class_weights=, ban= and Buckets need the whole dataset: training begins when it is "
                "packed"
            )
            self.wait(lambda: self.is_complete)
            self.was_complete = True
            return self._opened()
        return open_dataset(self._options, unfinished=self._shards)

    def completed(self) -> OpenedDataset:
        """Return the dataset when it is complete; raises as `open` does."""
        self.finish()
        return self._opened()

    def finish(self) -> None:
        """Wait until the dataset is complete, and known to be of this source; raises as `open` does."""
        self.wait(lambda: self.is_complete)
        self.wait(lambda: self._is_verified, is_listing=True)

    def _opened(self) -> OpenedDataset:
        """Return the complete dataset. The first epoch has the order of the plan, unless the options need all of it."""
        options = replace(self._options, dataset=str(self._location), pack_to=None, pack=None)
        return replace(open_dataset(options), begins_packed=not _needs_all(options))

    def _find_shards(self) -> None:
        """Wait for the plan and the first samples."""
        plans: list[Manifest] = []

        def is_planned() -> bool:
            plans.extend(self._plan())
            return bool(plans)

        self.wait(is_planned, is_listing=True)
        plan = plans[0]
        source = packed_source(plan.source or {})
        self._shards = UnfinishedShards(self._store, replace(plan, shards=(), fields={}, images=None, source=source))
        self._shards.grow()
        self._begun = time.monotonic(), self._shards.done
        self.wait(self._has_samples)

    def _has_samples(self) -> bool:
        """Return whether there are samples, or will be none: all inputs of a finished shard may have been skipped."""
        if self._shards is None:
            return False
        if not self._shards.locations:
            self.look()
        return bool(self._shards.locations) or self._shards.is_complete

    def _plan(self) -> list[Manifest]:
        """Return the manifest of the plan of this source, which has no shards yet; none until it is known."""
        plan = None if self._packer is None else self._packer.plan()
        if (self._has_packer and plan is None) or not self._may_look():
            return []
        manifest = read_plan(self._store) or read_complete(self._store)
        return [manifest] if manifest and (plan is None or plan_of(manifest.source or {}) == plan) else []

    def _may_look(self) -> bool:
        """Return whether to look at the destination now: at a URL, each look is a request."""
        now = time.monotonic()
        if now < self._looked + self._look_seconds:
            return False
        self._looked = now
        return True

    def look(self) -> bool:
        """Look for shards that were finished since; return whether there are any, or the dataset is complete now."""
        if self._shards is None or not self._may_look():
            return False
        is_new = self._shards.grow()
        if self._line:
            self._line.show(self._shards)
        return is_new

    @property
    def is_complete(self) -> bool:
        """Whether the dataset is complete."""
        if self.was_complete or self._shards is None:
            return self.was_complete
        return self._shards.is_complete or (self.look() and self._shards.is_complete)

    @property
    def progress(self) -> PackingProgress | None:
        """How far the packer is; None if the dataset was complete."""
        shards = self._shards
        if self.was_complete or shards is None:
            return None
        self.look()
        since, before = self._begun
        rate = (shards.done - before) / max(1e-9, time.monotonic() - since)
        left = (shards.inputs - shards.done) / rate if rate else None
        pid = self._packer.pid if self._packer else None
        return PackingProgress(shards.done, shards.inputs, rate, left, shards.is_complete, pid)

    def check(self) -> None:
        """Start the packer if it does not run, and raise its error if it has failed.

        Raises:
            OptionError: The folder has the dataset of another source.
            WorkerError: The packer has died twice.
            WdsToolsError: The packer has failed; its error.
        """
        if self._is_verified:
            return
        if self._packer is None:
            self._packer = BackgroundPacker(
                self._arguments,
                crop_ready=self._crop_ready,
                cache=self._options.remote,
                environment=reporting_environment(self._options.report_to),
            )
            self._close_packer = weakref.finalize(self, self._packer.close)
            if self._is_low:
                self._packer.lower_priority()
        try:
            self._is_verified = self._packer.poll()
        except PackerDiedError as error:
            self._restart(error)
        except (DestinationError, MissingSourceError) as error:
            self.close()  # the next iteration starts it again
            self._check_complete(error)
        except WdsToolsError:
            self.close()
            raise
        if self._is_verified and not self._crop_ready:  # otherwise it continues with that until the loader is closed
            self.close()

    def _restart(self, error: PackerDiedError) -> None:
        """Let the packer be started again, unless it has been."""
        self.close()
        if self._restarts == _RESTARTS:
            raise WorkerError(
                f"{error}, for the second time. Finished shards are kept: start the program again to continue, or "
                f"find the cause with `wds-tools pack {_name(self._options.dataset)} {self._location}`"
            ) from None
        self._restarts += 1
        _log.warning("%s: it is started again, once; finished shards are kept", error)

    def _check_complete(self, error: DestinationError | MissingSourceError) -> None:
        """Raise the error of the packer, unless the dataset is complete and only its source is missing."""
        if not self.was_complete:
            raise error
        if isinstance(error, DestinationError):
            raise OptionError(
                f"pack_to={str(self._location)!r} is not the dataset of {_name(self._options.dataset)}: {error}"
            ) from error
        _log.info("%s: %s is used as it is", error, self._location)
        self._is_verified = True

    def wait(self, until: Callable[[], bool], *, is_listing: bool = False) -> None:
        """Wait until a function returns True.

        Args:
            until: The function.
            is_listing: Whether the source is being listed, so that nothing is written.

        Raises:
            WorkerError: The packer has died twice, or nothing was written for ``stall_seconds``.
            WdsToolsError: The packer has failed; its error.
        """
        limit = self._options.stall_seconds
        seen, since, looked = -1, time.monotonic(), 0.0
        while not until():
            self.check()
            time.sleep(_POLL_SECONDS)
            now = time.monotonic()
            if now - looked < min(_SIZE_SECONDS, limit / 4):
                continue
            looked = now
            written = _written(self._work) + (self._shards.done if self._shards else 0)
            if written != seen:
                seen, since = written, now
            elif now - since >= limit:
                if not is_listing:
                    raise WorkerError(
                        f"the packer has written nothing to {self._location} for {limit:g} s (stall_seconds): the "
                        "source or the disk may hang; finished shards are kept, and the same program continues with "
                        "them"
                    )
                _log.warning(
                    "still waiting for the list of %s, which %s is making: packing begins when it is complete",
                    _name(self._options.dataset),
                    "the packer" if self._has_packer else "the packer of the process with LOCAL_RANK or rank 0",
                )
                since = now

    def close(self) -> None:
        """Stop the packer. The next iteration starts it again, unless the dataset is complete."""
        self._close_packer()
        self._packer = None
        if self._line:
            self._line.close()


class PackingLine:
    """A line on stderr with how far the packer is. It disappears when the dataset is complete."""

    def __init__(self) -> None:
        self._bar: Any = None

    def show(self, shards: UnfinishedShards) -> None:
        """Show how many inputs are in finished shards."""
        if shards.is_complete:
            self.close()
            return
        if self._bar is None:
            count = {"total": shards.inputs, "initial": shards.done}
            self._bar = tqdm(**count, desc="packing", unit=" images", leave=False, file=sys.stderr)
        self._bar.update(shards.done - self._bar.n)

    def close(self) -> None:
        """Remove the line."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _checked(options: LoaderOptions) -> tuple[dict[str, Any], Path | str, bool]:
    """Return the arguments of `pack`, the folder or URL, and whether the images are made crop-ready later.

    Raises:
        OptionError: An option is invalid.
    """
    assert options.pack_to is not None
    src, given = options.dataset, dict(options.pack or {})
    if isinstance(src, list | tuple | Mixture):
        raise OptionError("with pack_to=, the dataset must be one source: a path, a URL or a Dataset object")
    if refused := [name for name in given if name in _OF_LOADER]:
        raise OptionError(f"pack={{{refused[0]!r}: ...}}: the loader sets this option of pack; remove it")
    then = given.pop("then", None)
    if then not in (None, "crop-ready"):
        raise OptionError(f"pack={{'then': {then!r}}}; allowed are 'crop-ready' and None")
    location = parse_destination(os.fspath(options.pack_to))
    if isinstance(location, str):
        _check_url(location, then)
    try:
        arguments = {
            "images": "keep",
            "shard_bytes": "256MB",
            "storage_options": options.storage_options,
            **given,
            "progress": False,
        }
        checked = PackOptions(src, location, **arguments)
    except TypeError as error:
        allowed = [name for name in inspect.signature(PackOptions).parameters if name not in _OF_LOADER]
        raise OptionError(
            f"pack={options.pack} has an option that wds_tools.pack does not have; it has {', '.join(allowed)}, and "
            "pack= also has then"
        ) from error
    if options.shuffle and not checked.shuffle:
        raise OptionError(
            "shuffle= of the loader needs shards that are packed in random order: remove 'shuffle' from pack="
        )
    check_place(src, location, checked)
    src = os.fspath(src) if isinstance(src, os.PathLike) else src
    return {"src": src, "dst": location, **arguments}, location, then is not None


def _check_url(url: str, then: str | None) -> None:
    if not is_known_elsewhere(url):
        raise OptionError(
            f"pack_to={clean_url(url)!r}: another process packs, and it cannot write there; allowed are folders, and "
            "URLs such as 's3://bucket/photos' that every program can write to"
        )
    if then is not None:
        raise OptionError(
            f"pack={{'then': {then!r}}} rewrites images in place, which needs a folder: remove it, or use "
            f"pack={{'images': {then!r}}}"
        )


def _nothing() -> None:
    pass


def _needs_all(options: LoaderOptions) -> bool:
    """Return whether options need all indexes before the first sample."""
    choice = (options.where, options.subset, options.class_weights, options.ban)
    return any(value is not None for value in choice) or buckets_of(options.columns_of(0)) is not None


def _exists(src: Any) -> bool:
    """Return whether a source may exist: a URL or an object may."""
    return not isinstance(src, str | os.PathLike) or "://" in str(src) or Path(src).exists()


def _name(src: Any) -> str:
    return str(src) if isinstance(src, str | os.PathLike) else f"the {type(src).__name__}"


def _written(folder: Path) -> int:
    """Return how many bytes the files of a folder have, and of its work area."""
    total = 0
    for parent in (folder, folder / WORK_NAME):
        try:
            with os.scandir(parent) as entries:
                total += sum(entry.stat().st_size for entry in entries)
        except OSError:  # it does not exist yet, or a file was renamed
            continue
    return total
