"""A dataset that is being packed, opened for reading: its shards are found as they are finished, in their order."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wds_tools.errors import StoreError
from wds_tools.format import manifest as manifests
from wds_tools.format.manifest import MANIFEST_NAME, Manifest
from wds_tools.format.recorded_source import is_beginning, is_source
from wds_tools.format.totals import merge_stats
from wds_tools.packing.work_folder import ShardReport, entry_exists, report_path
from wds_tools.reading.locations import ShardLocation
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage import Store, join
from wds_tools.storage.local import LocalStore
from wds_tools.storage.lock import WORK_NAME


def read_plan(store: Store) -> Manifest | None:
    """Return the manifest of a dataset that is being packed, which has no shards yet; None if nothing is planned."""
    return _manifest_in(store, f"{WORK_NAME}/{MANIFEST_NAME}")


class UnfinishedShards(ShardSet):
    """A dataset that is being packed. `grow` finds the shards that were finished since."""

    def __init__(
        self,
        store: Store,
        manifest: Manifest,
        *,
        number: int = 0,
        done: int = 0,
        gaps: NDArray[np.int64] | None = None,
        is_complete: bool = False,
    ) -> None:
        locations = [ShardLocation(store, entry) for entry in manifest.shards]
        super().__init__(manifest, locations, name=store.folder)
        self.store = store
        self._checks: list[Callable[[], object]] = []
        self.is_complete = is_complete
        self.number = number
        self.done = done
        self.gaps = np.empty(0, np.int64) if gaps is None else gaps
        self.stores = (store,)
        self._one_folder = True

    def __getstate__(self) -> dict[str, Any]:
        names = ("store", "manifest", "number", "done", "gaps", "is_complete")
        return {name: getattr(self, name) for name in names}

    def refresh(self) -> None:
        """Continue with shards whose images were rewritten in place; that begins only when the dataset is complete."""
        if self.is_complete:
            super().refresh()

    def reopened(self) -> ShardSet:
        """Return the same dataset with its own store, for another thread."""
        return UnfinishedShards(**{**self.__getstate__(), "store": copy.copy(self.store)})

    @property
    def source(self) -> dict[str, Any]:
        """The source of the plan."""
        assert self.manifest.source is not None, "pack writes it"
        return self.manifest.source

    @property
    def inputs(self) -> int:
        """Number of inputs of the plan."""
        return int(self.source["files"])

    def check_new(self, check: Callable[[], object]) -> None:
        """Call a function whenever there are new shards; it raises an error if the loader cannot use these."""
        self._checks.append(check)

    def packed(self) -> tuple[int, NDArray[np.int64]]:
        """Return how many inputs are in finished shards, counted from the first one on, and the gaps among them."""
        return self.done, self.gaps

    def grow(self) -> bool:
        """Find shards that were finished since; return whether there are any, or the dataset is complete."""
        has_grown = False
        while not self.is_complete:
            report = self._next_report()
            if report is not None:
                self._add(report)
            elif (manifest := read_complete(self.store)) is not None:
                self._complete(manifest)
            else:
                break
            has_grown = True
        return has_grown

    def _next_report(self) -> ShardReport | None:
        """Return the report of the next shard if it is finished. When the dataset is complete, there are no reports."""
        try:
            report = ShardReport.from_json(self.store.read(str(report_path(Path(), self.number))).decode())
        except FileNotFoundError:
            return None
        if report.entry is None or not isinstance(self.store, LocalStore):  # to a URL the report is uploaded last
            return report
        return report if entry_exists(Path(self.store.folder), report.entry) else None

    def _add(self, report: ShardReport) -> None:
        so_far, start = self.manifest, self.done
        stop = start + report.inputs
        if report.entry is not None:
            fields = {name: so_far.fields.get(name, 0) + count for name, count in report.fields.items()}
            images = merge_stats([so_far.images, report.images])
            shards = (*so_far.shards, report.entry)
            self._take(replace(so_far, shards=shards, fields={**so_far.fields, **fields}, images=images))
        if report.skipped:
            new = range(len(so_far.shards), len(self.manifest.shards))
            self.gaps = np.append(self.gaps, self.find_gaps(new, start, stop))
        self.done, self.number = stop, self.number + 1
        for check in self._checks:
            check()

    def _complete(self, manifest: Manifest) -> None:
        entries = [entry.first for entry in self.manifest.shards]
        firsts = [entry.first for entry in manifest.shards[: len(entries)]]
        if not is_source(manifest.source, self.source) or firsts != entries:
            raise StoreError(
                f"{self.name} was replaced by another dataset while it was open: start again to read that one"
            )
        self._take(manifest)
        if self.done + manifest.samples - sum(entry.samples for entry in entries) < self.inputs:
            new = range(len(entries), len(manifest.shards))
            self.gaps = np.append(self.gaps, self.find_gaps(new, self.done, self.inputs))
        self.done, self.is_complete = self.inputs, True
        for check in self._checks:
            check()

    def _take(self, manifest: Manifest) -> None:
        """Take a manifest with further shards."""
        new = manifest.shards[len(self.locations) :]
        self.locations = self._all = (*self.locations, *(ShardLocation(self.store, entry) for entry in new))
        self.manifest = manifest


def read_complete(store: Store) -> Manifest | None:
    """Return the manifest of a dataset; None if there is none, or if it has only the first samples."""
    manifest = _manifest_in(store, MANIFEST_NAME)
    return None if manifest is None or is_beginning(manifest.source) else manifest


def _manifest_in(store: Store, name: str) -> Manifest | None:
    try:
        return manifests.from_json(store.read(name, fresh=True), name=join(store.folder, name))
    except (FileNotFoundError, NotADirectoryError):
        return None
