"""`wds-tools doctor DATASET`: quick checks of datasets, and problems with their images and labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from shlex import quote
from typing import Any

from wds_tools.errors import NotADatasetError, OptionError, WdsToolsError
from wds_tools.images.near_duplicates import DISTANCE, MAX_DISTANCE
from wds_tools.inspection.doctor import Finding
from wds_tools.inspection.problem_columns import read_columns, write_ban
from wds_tools.inspection.problems import ImageColumns, Problem, find_leaks, find_problems
from wds_tools.options import RemoteOptions
from wds_tools.reading.opening import open_shards
from wds_tools.reading.shardset import ShardSet
from wds_tools.storage import is_url
from wds_tools.terminal import phase_bar
from wds_tools.wording import counted, human_bytes

_MAX_CLUSTERS = 1000  # in JSON
_MAX_SHOWN = 120  # characters of a condition in the text


def examine_datasets(
    datasets: Sequence[str], *, remote: RemoteOptions, distance: int = DISTANCE, bans: Path | None = None
) -> list[Finding]:
    """Check manifest and indexes of datasets, and the lengths of their shards, which are not read; find problems.

    Args:
        datasets: Of each the folder or URL with a manifest, the manifest, or a pattern of indexed shards. Images of one
            that are in a later one too are a problem: training and validation data, in this order.
        remote: Folder and limit of the cache for remote shards.
        distance: Bits in which the hashes of similar images differ at most.
        bans: Folder for files that ``ban=`` takes, one for each problem; None writes none.
    """
    if not 0 <= distance <= MAX_DISTANCE:
        raise OptionError(f"distance={distance}; allowed are 0 to {MAX_DISTANCE} bits")
    if len(set(datasets)) < len(datasets):
        raise OptionError("a dataset is given twice: give each one once")
    findings: list[Finding] = []
    examined: list[_Examined] = []
    for dataset in datasets:
        shards = _open(dataset, remote)
        if isinstance(shards, Finding):
            findings.append(shards)
            continue
        checks = _examine(shards, dataset, remote)
        findings += checks
        if not any(check.status == "problem" for check in checks):
            folder = bans if len(datasets) == 1 else _own(bans, dataset)
            examined.append(_Examined(dataset, shards, read_columns(shards), folder))
            findings += examined[-1].findings(distance)
    for first, other in combinations(examined, 2):
        leaks = find_leaks(first.columns, other.columns, names=(first.name, other.name), distance=distance)
        findings += [first.finding(leak, f"leak-{_last(other.name)}") for leak in leaks]
        if not leaks:
            findings.append(Finding("leak", "ok", f"no image of {first.name} in {other.name}"))
    return findings


def _own(bans: Path | None, dataset: str) -> Path | None:
    return None if bans is None else bans / _last(dataset)


def _last(dataset: str) -> str:
    """Return the last part of a path or URL, as the name of a folder."""
    return dataset.rstrip("/").rpartition("/")[2].removesuffix(".json") or "dataset"


@dataclass(frozen=True, slots=True)
class _Examined:
    """A dataset, and where its bans are written."""

    name: str
    shards: ShardSet
    columns: ImageColumns
    bans: Path | None

    def findings(self, distance: int) -> Iterator[Finding]:
        """Yield the problems with images and labels."""
        without = int((self.columns.has_image & ~self.columns.is_signed).sum())
        if without:
            text = f"{counted(without, 'image')} without a signature: similar, blank and blurred images are not found"
            yield Finding("images", "note", text, f"wds-tools index --signatures {quote(self.name)}")
        problems = find_problems(self.columns, classes=self.shards.manifest.classes, distance=distance)
        yield from (self.finding(problem, problem.name) for problem in problems)
        if not problems and not without:
            yield Finding("images", "ok", "no copies, and no similar, blank, blurred, tiny or narrow images")

    def finding(self, problem: Problem, file: str) -> Finding:
        """Return a problem as a finding, and write its ban."""
        details: dict[str, Any] = {
            "dataset": self.name,
            "samples": len(problem.samples),
            "where": problem.where,
            "clusters": problem.clusters[:_MAX_CLUSTERS],
        }
        is_shown = 0 < len(problem.where) <= _MAX_SHOWN
        command = f"wds-tools sample {quote(self.name)} --where {quote(problem.where)}"
        if self.bans is not None:
            path = self.bans / f"{file}.txt"
            write_ban(path, self.shards, problem)
            details["ban"] = str(path)
        remedy = f"look at them: {command}" if is_shown else "--json lists them"
        ban = f"ban={str(self.bans / f'{file}.txt')!r}" if self.bans is not None else "--write-bans FOLDER, then ban="
        return Finding(problem.name, problem.status, problem.found, f"{remedy}; leave them out: {ban}", details)


def _open(dataset: str, remote: RemoteOptions) -> ShardSet | Finding:
    try:
        return open_shards(dataset, remote=remote)
    except NotADatasetError:
        raise
    except WdsToolsError as error:
        return Finding("dataset", "problem", str(error))


def _examine(shards: ShardSet, dataset: str, remote: RemoteOptions) -> list[Finding]:
    """Return the findings about the files of a dataset."""
    manifest = shards.manifest
    what = f"{counted(manifest.samples, 'sample')} in {counted(len(manifest.shards), 'shard')}, "
    return [
        Finding("dataset", "ok", f"{dataset}: {what}{human_bytes(manifest.bytes)}"),
        _check_indexes(shards),
        *_check_files(shards),
        *(_check_cache(manifest.bytes, remote.cache_bytes) if is_url(dataset) else ()),
    ]


def _check_indexes(shards: ShardSet) -> Finding:
    reasons = []
    for shard in phase_bar("reading indexes", range(len(shards.locations))):
        try:
            shards.index(shard, keep=False)
        except (WdsToolsError, OSError) as error:
            reasons.append(str(error))
    if reasons:
        more = f" (and {len(reasons) - 1:,} more)" if len(reasons) > 1 else ""
        return Finding("indexes", "problem", f"{reasons[0]}{more}", "wds-tools verify lists all damage")
    return Finding("indexes", "ok", f"{counted(len(shards.locations), 'index', 'indexes')} read, all checksums match")


def _check_files(shards: ShardSet) -> Iterator[Finding]:
    """Compare the lengths of local shards with the manifest."""
    local = [location for location in shards.locations if not is_url(location.store.folder)]
    if not local:
        return
    bad = [
        location.entry.name
        for location in local
        if _length(Path(location.store.folder) / location.entry.name) != location.entry.bytes
    ]
    if bad:
        text = f"{len(bad):,} of {len(local):,} are missing or have the wrong length, such as {bad[0]}"
        yield Finding("shards", "problem", text, "copy these again, or pack again")
    else:
        text = f"all {len(local):,} exist, with the right lengths; wds-tools verify reads every byte"
        yield Finding("shards", "ok", text)


def _length(path: Path) -> int:
    """Return the length of a file; -1 if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _check_cache(size: int, cache_bytes: int) -> Iterator[Finding]:
    """Report a remote dataset of which later epochs download a part again."""
    if size > cache_bytes:
        text = f"larger than the cache of {human_bytes(cache_bytes)}: much is downloaded again in every epoch"
        remedy = f"set WDS_TOOLS_CACHE_BYTES={size} if the disk has enough free space, or cache_bytes="
        yield Finding("reading", "note", text, remedy)
