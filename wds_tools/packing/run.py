"""One run of the packer over a plan: what is missing is packed, then the dataset is completed."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from types import TracebackType

from tqdm import tqdm

from wds_tools.errors import DestinationError, SourceError, StoreError, WdsToolsError
from wds_tools.format.manifest import Manifest
from wds_tools.format.totals import merge_stats
from wds_tools.images import native
from wds_tools.options import available_cores
from wds_tools.packing.config import Packing
from wds_tools.packing.destination import APPENDED, Destination, ShardReport, manifest_of
from wds_tools.packing.plan import Plan, shard_name
from wds_tools.packing.ray_engine import run_on_ray
from wds_tools.packing.worker import ShardTask, bad_inputs, run_tasks
from wds_tools.sources.base import Listing, Skip, Source
from wds_tools.wording import counted

_NAMED_FILES = 10
_log = logging.getLogger("wds_tools")


class PackJob:
    """One run of the packer over a plan."""

    def __init__(
        self, plan: Plan, source: Source, destination: Destination, processes: int, bar: Bar, packing: Packing
    ) -> None:
        self.plan = plan
        self.source = source
        self.destination = destination
        self.processes = processes
        self.bar = bar
        self.packing = packing
        self.kept: dict[int, ShardReport] = {}
        self.made: list[ShardReport] = []

    def run(self, skipped: Iterable[Skip], *, onto: Manifest | None = None) -> tuple[Manifest, tuple[Skip, ...]]:
        """Pack the shards that are missing, and complete the dataset if this is no task of several.

        Args:
            skipped: What the listing left out.
            onto: The dataset that these shards come behind.

        Returns:
            The manifest, and what was left out.
        """
        try:
            self.destination.claim(self.plan.source, fresh=self.packing.fresh, onto=onto)
            self._pack_missing()
            reports = sorted([*self.kept.values(), *self.made], key=lambda report: report.number)
            skipped = _sorted([*skipped, *(skip for report in reports for skip in report.skipped)])
            manifest = manifest_of(
                reports, classes=self.plan.classes, shuffled=self.plan.shuffled, source=self.plan.source
            )
            strict = self.packing.options.strict
            if (strict and skipped) or (not manifest.shards and len(reports) == self.plan.shards):
                self.destination.undo(self.made)
                raise strict_error(skipped)
            if self.packing.task is not None:
                return manifest, tuple(skipped)
            self._refuse_missing(len(reports))
            manifest = manifest if onto is None else _joined(onto, manifest)
            self.destination.commit(manifest, [*(self.destination.skipped() if onto else ()), *skipped])
            _warn_of_sixteen_bits(sum(report.sixteen_bit for report in reports))
        except OSError as error:
            if isinstance(error, WdsToolsError) and error.shard is None and not isinstance(error, StoreError):
                raise
            raise self._explain(error) from error
        return manifest, tuple(skipped)

    def _refuse_missing(self, finished: int) -> None:
        lost = self.plan.shards - finished
        if lost:
            first = next(number for number in self.plan.numbers if number not in self.kept)
            raise DestinationError(
                f"{lost} of {self.plan.shards} shards are missing in {self.destination.name}, such as "
                f"{shard_name(first)}: run the tasks that have not ended, then finish again"
            )

    def _pack_missing(self) -> None:
        self.kept = self.destination.finished_shards()
        self.bar.start_at(sum(stop - start for start, stop in map(self.plan.range_of, self.kept)))
        missing = [number for number in self.plan.numbers if number not in self.kept and self.packing.has(number)]
        if missing and self.packing.policy.notice:
            self.bar.clear()
            _say_once(self.packing.policy.notice)
        processes = min(self.processes, len(missing))
        # Images that change take a core each; cores that have no shard of their own help with those there are.
        keep, ray = self.packing.policy.images == "keep", self.packing.engine == "ray"
        threads = 1 if keep or ray else max(1, available_cores() // max(1, processes))
        _log.debug(
            "packing %d of %d shards (processes: %d, threads in each: %d, usable cores: %d); the compiled module is %s",
            *(len(missing), self.plan.shards, processes, threads, available_cores()),
            "there" if native.is_there() else "missing",
        )
        tasks = (self._task(number, threads) for number in missing)
        run = run_on_ray if ray else partial(run_tasks, processes=processes, bounded=self.destination.bounded)
        with closing(run(tasks, advance=self.bar.advance)) as reports:
            for report in reports:
                self.made.append(report)
                self.destination.accept(report)

    def _task(self, number: int, threads: int) -> ShardTask:
        start, stop = self.plan.range_of(number)
        return ShardTask(
            number=number,
            start=self.plan.first_position + start,
            inputs=tuple(self.plan.inputs[start:stop]),
            classes=self.plan.classes,
            source=self.source,
            folder=self.destination.folder,
            policy=self.packing.policy,
            threads=threads,
        )

    def _explain(self, error: OSError) -> DestinationError:
        """Say what is kept when the disk is full or fails."""
        shard, reason = (
            (error.shard, str(error.args[0]))
            if isinstance(error, DestinationError)
            else (None, error.strerror or str(error))
        )
        remedy = "make room" if reason == os.strerror(errno.ENOSPC) else "mend that"
        return DestinationError(
            f"cannot be written to {self._where(error)}: {reason}; "
            f"{len(self.kept) + len(self.made)} of {self.plan.shards} shards are finished and kept: "
            f"{remedy}, then run the same command again, which goes on from there",
            shard=shard,
        )

    def _where(self, error: OSError) -> str:
        """A full disk is that of the folder, even where shards only wait in it."""
        return self.destination.name if isinstance(error, StoreError) else str(self.destination.folder)


class Bar:
    """Images, images/s, MB/s and time left, on stderr."""

    def __init__(self, total: int, show: bool | None) -> None:
        self._bar = tqdm(total=total, unit=" images", unit_scale=False, disable=not shows(show), file=sys.stderr)
        self._bytes = 0
        self._started = time.monotonic()

    def __enter__(self) -> Bar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()

    def start_at(self, samples: int) -> None:
        """Begin with samples that an earlier run has packed, which do not count as speed."""
        self._bar.initial = self._bar.n = samples

    def clear(self) -> None:
        """Make room for a line of text; the bar comes back below it."""
        self._bar.clear()

    def advance(self, samples: int, size: int) -> None:
        """Count samples and bytes that are done."""
        if self._bar.disable:
            return
        self._bytes += size
        rate = self._bytes / max(1e-9, time.monotonic() - self._started)
        self._bar.set_postfix_str(f"{rate / 1e6:.1f} MB/s", refresh=False)
        self._bar.update(samples)


@cache
def _say_once(notice: str) -> None:
    """Warn; what holds for all splits, or for several calls, is said for the first one."""
    _log.warning(notice)


def shows(progress: bool | None) -> bool:
    """Tell whether a bar is shown: as asked, else on a terminal."""
    return sys.stderr.isatty() if progress is None else progress


def _warn_of_sixteen_bits(images: int) -> None:
    if images:
        _log.warning(
            "%d images have 16 bits a channel and were packed as they are: loaders give them as the stored field 'png' "
            "(fields=('png', 'label'), uint16), but not as 'image', which has 8 bits",
            images,
        )


def _joined(onto: Manifest, new: Manifest) -> Manifest:
    """Return the manifest of a dataset with what was appended to it."""
    assert onto.source is not None, "only what pack made is appended to"
    parts = onto.source["parts"] if onto.source["kind"] == APPENDED else [onto.source]
    return Manifest(
        shards=(*onto.shards, *new.shards),
        fields=dict(Counter(onto.fields) + Counter(new.fields)),
        classes=new.classes,
        shuffled=onto.shuffled and new.shuffled,
        images=merge_stats([onto.images, new.images]),
        source={"kind": APPENDED, "parts": [*parts, new.source]},
    )


def list_inputs(source: Source, progress: bool | None) -> Listing:
    """Return what a source holds; on a terminal, a line says that this is being found out."""
    with tqdm(desc="listing what there is to pack ...", bar_format="{desc}", leave=False, disable=not shows(progress)):
        return source.scan()


def refuse_skipped(parts: Sequence[tuple[Source, Listing]], packing: Packing) -> None:
    """Raise the error of ``strict`` if a listing has left something out; the rest is read first, to name all of it.

    Raises:
        SourceError: All that cannot be packed.
    """
    skipped = [skip for _, listing in parts for skip in listing.skipped]
    if not (packing.options.strict and skipped):
        return
    _log.warning("%s: nothing will be packed; the other files are read, to name all of these", _cannot(len(skipped)))
    with Bar(sum(len(listing.inputs) for _, listing in parts), packing.progress) as bar:
        for source, listing in parts:
            task = ShardTask(
                number=0,
                start=0,
                inputs=tuple(listing.inputs),
                classes=listing.classes,
                source=source,
                folder=Path(),
                policy=packing.policy,
                threads=available_cores(),
            )
            skipped += bad_inputs(task, bar.advance)
    raise strict_error(_sorted(skipped))


def strict_error(skipped: Sequence[Skip]) -> SourceError:
    """Say what cannot be packed: the first files, and if there are many, all of them in warnings."""
    named = "; ".join(f"{skip.path!r} {skip.reason}" for skip in skipped[:_NAMED_FILES])
    more = ""
    if len(skipped) > _NAMED_FILES:
        more = f"; and {len(skipped) - _NAMED_FILES:,} more: the warnings before this name all"
        for skip in skipped:
            _log.warning("%r %s", skip.path, skip.reason)
    return SourceError(
        f"{_cannot(len(skipped))}: {named}{more}. Fix or remove them, or pack without strict to leave them out"
    )


def _cannot(count: int) -> str:
    return f"{counted(count, 'file')} cannot be packed"


def _sorted(skipped: Iterable[Skip]) -> list[Skip]:
    return sorted(skipped, key=lambda skip: skip.path.encode("utf-8", "surrogateescape"))
