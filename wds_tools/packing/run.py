"""One run of the packer: it packs the shards of a plan that are missing, then completes the dataset."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from tqdm import tqdm

from wds_tools.errors import DestinationError, LabelError, OptionError, SourceError, StoreError, WdsToolsError
from wds_tools.format.account import Account
from wds_tools.format.label import quoted
from wds_tools.format.manifest import Manifest, united_accounts
from wds_tools.format.totals import merge_stats
from wds_tools.images import native
from wds_tools.options import available_cores
from wds_tools.packing.config import PackOptions
from wds_tools.packing.destination import (
    APPENDED,
    PLAN,
    Destination,
    empty_manifest,
    how_to_start_over,
    later_files,
    manifest_of,
)
from wds_tools.packing.engines import Engine
from wds_tools.packing.estimate import garbage_collection_paused, nothing_written
from wds_tools.packing.plan import Plan, shard_name
from wds_tools.packing.stored_plan import SourceCheck
from wds_tools.packing.work_folder import ShardReport, report_path
from wds_tools.packing.worker import ShardTask, bad_inputs, pack_part
from wds_tools.reporting import dataset_label, identity, reporter_of
from wds_tools.sources.base import FileState, Listing, Skip, Source, SourceChangedError, SourceStoreError
from wds_tools.sources.file_names import shown_path
from wds_tools.sources.inputs import Input
from wds_tools.storage import is_url
from wds_tools.terminal import shows_progress
from wds_tools.wording import counted

_NAMED_FILES = 10
_log = logging.getLogger("wds_tools")


@dataclass(eq=False)
class PackJob:
    """One run of the packer: packs the missing shards of a plan.

    Attributes:
        kept: Reports of shards that an earlier run has finished, by number.
        listed: Writes the files of the plan, see `Destination.write_listing`; None if an earlier run has.
        check: Compares the source with an earlier listing.
        is_restored: Whether an earlier run has written the plan.
    """

    plan: Plan
    source: Source
    destination: Destination
    processes: int
    bar: ProgressBar
    options: PackOptions
    kept: dict[int, ShardReport] = field(default_factory=dict, init=False)
    packed: list[ShardReport] = field(default_factory=list, init=False)
    listed: Callable[[BinaryIO], bytes] | None = field(default=None, init=False)
    written: Callable[[], object] | None = field(default=None, init=False)
    check: SourceCheck | None = field(default=None, init=False)
    is_restored: bool = field(default=False, init=False)

    def run(self, listing: Listing, *, onto: Manifest | None = None) -> tuple[Manifest, tuple[Skip, ...]]:
        """Pack the missing shards, and complete the dataset unless this is one of several tasks."""
        try:
            self.destination.start(self.plan.source, fresh=self.options.fresh, onto=onto)
            self._find_kept()
            self._record_plan(onto)
            self._pack_missing(listing.files)
            reports = sorted([*self.kept.values(), *self.packed], key=lambda report: report.number)
            skipped = _sorted([*listing.skipped, *(skip for report in reports for skip in report.skipped)])
            manifest = manifest_of(
                reports,
                classes=self.plan.classes,
                shuffled=self.plan.shuffled,
                source=self.plan.packed_source,
                account=self._account(listing, reports),
                field_classes=self.plan.field_classes,
            )
            strict = self.options.strict
            if (strict and skipped) or (not manifest.shards and len(reports) == self.plan.shards):
                self.destination.roll_back(self.packed)
                raise bad_files_error(skipped, strict=strict)
            if onto is not None and (error := _added_before(onto, manifest)):
                self.destination.roll_back(self.packed)
                raise error
            if self.options.task is not None:
                self.destination.finish_task()
                return manifest, tuple(skipped)
            self._refuse_missing(len(reports))
            self._check_source(wait=True)
            manifest = manifest if onto is None else _appended_manifest(onto, manifest)
            self.destination.commit(manifest, [*(self.destination.skipped() if onto else ()), *skipped])
            _warn_of_sixteen_bits(sum(report.sixteen_bit for report in reports))
        except SourceChangedError as error:
            again = how_to_start_over(self.options.task).replace("remove it", f"remove {self.destination.name}")
            again = "append it with --fresh (fresh=True)" if onto is not None else again
            raise StoreError(
                f"the source has changed since it was listed: {error}. Wait until nothing writes to it, then {again}, "
                "which starts again"
            ) from error
        except SourceStoreError as error:
            raise StoreError(
                f"{error}; {len(self.kept) + len(self.packed)} of {self.plan.shards} shards "
                "are finished and kept: fix the cause, then run the same command again to continue"
            ) from error
        except OSError as error:
            if isinstance(error, WdsToolsError) and error.shard is None and not isinstance(error, StoreError):
                raise
            raise self._write_error(error) from error
        finally:
            if self.check is not None:
                self.check.stop()
        return manifest, tuple(skipped)

    def _record_plan(self, onto: Manifest | None) -> None:
        """Write what loaders, restarts and other tasks need of the plan."""
        if onto is None and self.plan.first is None and not self.is_restored:
            self.destination.write_planned(empty_manifest(self.plan))
        if self.listed is not None:
            self.destination.write_listing(self.listed)
        if self.written is not None:
            self.written()

    def _account(self, listing: Listing, reports: Sequence[ShardReport]) -> Account:
        """Return the account for the manifest, with what was skipped during packing and by an earlier pack."""
        name = self.source.name  # a path on this machine; the manifest is the same on every machine
        reasons = [skip.reason.replace(name, Path(name).name) for report in reports for skip in report.skipped]
        left_out = len(listing.inputs) - len(self.plan.inputs)
        if self.plan.first is not None:
            reasons += [f"not among the first {self.plan.first:,} (--first)"] * left_out
        account = listing.account.after_reading(reasons)
        remarks = sum((Counter(report.remarks) for report in reports), Counter[str]())
        notes = [f"{counted(count, 'sample')} with {remark}" for remark, count in sorted(remarks.items())]
        for note in notes:
            _log.warning("%s: %s", shown_path(name), note)
        account = replace(account, notes=[*account.notes, *notes])
        earlier = listing.earlier
        if earlier is not None and earlier.packed == account.given:
            account = account.after(earlier)
        return account.limited()

    def _check_source(self, *, wait: bool = False) -> None:
        """Check that the source is as it was listed by the run that planned, as far as it has been compared."""
        if self.check is None:
            return
        try:
            self.check.check(wait=wait)
            later = later_files(self.destination, self.plan, self.source, since=PLAN) if wait else ""
        except SourceChangedError:
            self.destination.remove_listing()
            raise
        if later:
            raise SourceChangedError(later)

    def _refuse_missing(self, finished: int) -> None:
        missing = self.plan.shards - finished
        if missing:
            first = next(shard for shard in self.plan.numbers if shard not in self.kept)
            raise DestinationError(
                f"{missing} of {self.plan.shards} shards are missing in {self.destination.name}, such as "
                f"{shard_name(first)}: run the tasks that have not finished, then finish again"
            )

    def _find_kept(self) -> None:
        """Find the shards of this task that are finished. Reports of other ones are removed.

        These are of shorter shards, the last ones of ``first=``, or of another plan, which a task found that started
        at the same time.
        """
        shards = [shard for shard in self.plan.numbers if self.options.finish or self.options.packs(shard)]
        reports = self.destination.finished_shards(shards)
        sizes = {shard: stop - start for shard in shards for start, stop in [self.plan.range_of(shard)]}
        self.kept = {
            shard: reports[shard]
            for shard in sizes.keys() & reports
            if reports[shard].inputs == sizes[shard] and reports[shard].plan in ("", self.plan.id)
        }
        for shard in sizes.keys() & reports - self.kept.keys():
            report_path(self.destination.folder, shard).unlink(missing_ok=True)

    def _pack_missing(self, files: tuple[FileState, ...]) -> None:
        self.bar.start_at(sum(stop - start for start, stop in map(self.plan.range_of, self.kept)))
        missing = [shard for shard in self.plan.numbers if shard not in self.kept and self.options.packs(shard)]
        if not missing:
            return
        if self.options.policy.notice:
            self.bar.clear()
            _warn_once(self.options.policy.notice)
        is_remote = self.options.engine == "ray"
        processes = min(self.processes, len(missing))
        # Converting images takes a core per shard. If there are more cores than shards, the rest helps with threads.
        cores = self.options.num_cpus if is_remote else available_cores() // processes
        threads = 1 if self.options.policy.images == "keep" else max(1, cores)
        _log.debug(
            "packing %d of %d shards (processes: %d, threads in each: %d, usable cores: %d); the compiled module is %s",
            *(len(missing), self.plan.shards, processes, threads, available_cores()),
            "there" if native.is_available() else "missing",
        )
        engine = Engine(
            self.options.engine,
            processes=processes,
            num_cpus=self.options.num_cpus,
            bounded=self.destination.is_bounded,
            after_loss="finished shards are kept, run the same command again to continue",
        )
        common = self._common(threads, files), self.destination.shard_target() if is_remote else None
        parts = ((shard, (shard, *self._inputs(shard))) for shard in missing)
        shared = [] if is_url(self.source.name) else [path for path in [Path(self.source.name)] if path.exists()]
        with closing(engine.run(pack_part, common, parts, advance=self.bar.advance, shared=shared)) as results:
            for _, report in results:
                self.packed.append(report)
                if not is_remote:
                    self.destination.add_shard(report)
                self._check_source()

    def _common(self, threads: int, files: tuple[FileState, ...]) -> ShardTask:
        """Return what the tasks of all shards have in common."""
        return ShardTask(
            number=0,
            start=0,
            inputs=(),
            classes=self.plan.classes,
            source=self.source,
            folder=self.destination.folder,
            images=self.options.policy,
            threads=threads,
            deep=self.plan.deep,
            files=files,
            plan=self.plan.id,
        )

    def _inputs(self, shard: int) -> tuple[int, tuple[Input, ...]]:
        """Return the position of the first sample of a shard, and its inputs."""
        start, stop = self.plan.range_of(shard)
        return self.plan.first_position + start, tuple(self.plan.inputs[start:stop])

    def _write_error(self, error: OSError) -> DestinationError:
        """Return the error for a failed write, with the number of shards that are kept."""
        shard, reason = (
            (error.shard, str(error.args[0]))
            if isinstance(error, DestinationError)
            else (None, error.strerror or str(error))
        )
        remedy = "free some space" if reason == os.strerror(errno.ENOSPC) else "fix the cause"
        return DestinationError(
            f"cannot be written to {self._where(error)}: {reason}; "
            f"{len(self.kept) + len(self.packed)} of {self.plan.shards} shards are finished and kept: "
            f"{remedy}, then run the same command again to continue",
            shard=shard,
        )

    def _where(self, error: OSError) -> str:
        """Return where writing failed: at the URL, or in the local folder, which may be the spool of a URL."""
        return self.destination.name if isinstance(error, StoreError) else str(self.destination.folder)


class ProgressBar:
    """A bar on stderr with images, images/s, MB/s and remaining time; with ``WDS_TOOLS_REPORT_TO``, reports too."""

    def __init__(self, total: int, show: bool | None, *, dataset: str = "", work: str = "packing") -> None:
        self._total = total
        self._done = self._begun_at = 0  # samples
        self._dataset, self._work = dataset_label(dataset), work
        self._reporter = reporter_of(None, self._report) if dataset else None
        self._bar = tqdm(
            total=total, unit=" images", unit_scale=False, disable=not shows_progress(show), file=sys.stderr
        )
        self._bytes = 0
        self._started = time.monotonic()

    def __enter__(self) -> ProgressBar:
        if self._reporter:
            self._reporter.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._reporter:
            self._reporter.stop()
        self._bar.close()

    def _report(self) -> dict[str, Any]:
        """Return the next report."""
        done = self._done
        rate = (done - self._begun_at) / max(1e-9, time.monotonic() - self._started)
        return {
            "kind": "pack",
            **identity(),
            "dataset": self._dataset,
            "work": self._work,
            "done": done,
            "total": self._total,
            "images_per_second": rate,
            "seconds_left": (self._total - done) / rate if rate else None,
        }

    def start_at(self, samples: int) -> None:
        """Start at the samples that an earlier run has packed; they do not count for the speed."""
        self._bar.initial = self._bar.n = samples
        self._done = self._begun_at = samples

    def clear(self) -> None:
        """Hide the bar for a line of text; the next update draws it again below."""
        self._bar.clear()

    def advance(self, samples: int, size: int) -> None:
        """Add finished samples, and their input bytes."""
        self._done += samples
        if self._bar.disable:
            return
        self._bytes += size
        rate = self._bytes / max(1e-9, time.monotonic() - self._started)
        self._bar.set_postfix_str(f"{rate / 1e6:.1f} MB/s", refresh=False)
        self._bar.update(samples)


@cache
def _warn_once(notice: str) -> None:
    """Log a warning once per process, not again for each split or call."""
    _log.warning(notice)


def _warn_of_sixteen_bits(images: int) -> None:
    if images:
        _log.warning(
            "packed %s with 16 bits per channel unchanged: loaders return all bits with "
            "wds_tools.Image(mode='unchanged'), but not the default, which is an RGB image of 8 bits",
            counted(images, "image"),
        )


def _added_before(onto: Manifest, new: Manifest) -> OptionError | None:
    """Return an error if new samples have a field that was added to the dataset later, in separate shards."""
    for addition in onto.additions:
        if both := addition.fields.keys() & new.fields.keys():
            return OptionError(
                f"new samples have a field {min(both)!r}, which add-fields added to the dataset; nothing is appended: "
                "write the dataset again with `wds-tools reshard`, and append to the result, or remove the added "
                f"field (wds-tools add-fields --remove {addition.folder})"
            )
    return None


def _appended_manifest(onto: Manifest, new: Manifest) -> Manifest:
    """Return the manifest of a dataset with the shards that were appended to it."""
    assert onto.source is not None, "append accepts only datasets that pack wrote"
    parts = onto.source["parts"] if onto.source["kind"] == APPENDED else [onto.source]
    return Manifest(
        shards=(*onto.shards, *new.shards),
        fields=dict(Counter(onto.fields) + Counter(new.fields)),
        classes=new.classes,
        shuffled=onto.shuffled and new.shuffled,
        images=merge_stats([onto.images, new.images]),
        source={"kind": APPENDED, "parts": [*parts, new.source]},
        label=onto.label,
        additions=onto.additions,
        account=united_accounts([onto, new]),
        field_classes={**onto.field_classes, **new.field_classes},
    )


def check_labels(name: str, listings: Iterable[Listing], classes: Sequence[str] | None) -> None:
    """Check that there are labels if class names were given. A split may have none."""
    listings = list(listings)
    if classes and not any(listing.has_labels for listing in listings):
        lists = [listing.field_classes for listing in listings]
        if any(listed.names == tuple(classes) for of_fields in lists for listed in of_fields.values()):
            return
        if any(lists):
            raise LabelError(
                f"{shown_path(name)} has classes of objects or masks, and no labels, but --classes (classes=) names "
                "the classes of labels: omit it, and correct the names in the annotations"
            )
        raise LabelError(
            f"{shown_path(name)} has no labels, but class names were given ({quoted(classes)}): name the label "
            "(--label, --column label=...), or omit --classes (classes=)"
        )


def list_inputs(source: Source, progress: bool | None, *, is_split: bool = False) -> Listing:
    """List the inputs of a source, which may be one split of several. On a terminal, a line of text is shown."""
    with (
        tqdm(
            desc="listing the source ...",
            bar_format="{desc}",
            leave=False,
            disable=not shows_progress(progress),
        ),
        nothing_written(),
        garbage_collection_paused(),
    ):
        listing = source.scan()
    if not is_split:
        check_labels(source.name, [listing], source.options.classes)
    show_notes(source, listing.account.notes)
    return listing


def show_notes(source: Source, notes: Iterable[str]) -> None:
    """Log notes about a source as warnings."""
    for note in notes:
        _log.warning("%s: %s", shown_path(source.name), note)


def check_strict(parts: Sequence[tuple[Source, Listing]], options: PackOptions) -> None:
    """With ``strict``, raise an error if a listing skipped inputs. All others are read first, to name every bad one."""
    skipped = [skip for _, listing in parts for skip in listing.skipped]
    if not (options.strict and skipped):
        return
    _log.warning(
        "%s: nothing will be packed; reading the other files to find all such files", _bad_file_count(len(skipped))
    )
    with ProgressBar(sum(len(listing.inputs) for _, listing in parts), options.progress) as bar:
        for source, listing in parts:
            task = ShardTask(
                number=0,
                start=0,
                inputs=tuple(listing.inputs),
                classes=listing.classes,
                source=source,
                folder=Path(),
                images=options.policy,
                threads=available_cores(),
            )
            skipped += bad_inputs(task, bar.advance)
    raise bad_files_error(_sorted(skipped), strict=True)


def bad_files_error(skipped: Sequence[Skip], *, strict: bool) -> SourceError:
    """Return an error with the names of the first skipped files. If there are more, log a warning for each file."""
    named = "; ".join(f"{skip.path!r} {skip.reason}" for skip in skipped[:_NAMED_FILES])
    more = ""
    if len(skipped) > _NAMED_FILES:
        more = f"; and {len(skipped) - _NAMED_FILES:,} more: the warnings before this one name all"
        for skip in skipped:
            _log.warning("%r %s", skip.path, skip.reason)
    remedy = (
        "Fix or remove them, or pack without strict to leave them out"
        if strict
        else "There is no other file to pack: fix them, or check the path of the source"
    )
    return SourceError(f"{_bad_file_count(len(skipped))}: {named}{more}. {remedy}")


def _bad_file_count(count: int) -> str:
    return f"{counted(count, 'file')} cannot be packed"


def _sorted(skipped: Iterable[Skip]) -> list[Skip]:
    return sorted(skipped, key=lambda skip: skip.path.encode("utf-8", "surrogateescape"))
