"""`bench()`: which loaders are measured, on which dataset, in which order."""

from __future__ import annotations

import os
import platform
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import wds_tools
from wds_tools.bench import procfs
from wds_tools.bench.dataset import BenchDataset, prepare_dataset
from wds_tools.bench.process import loader_processes
from wds_tools.bench.registry import LIMIT, LOADERS, OURS, PEERS
from wds_tools.bench.report import BenchReport
from wds_tools.bench.session import Progress, Session
from wds_tools.bench.workloads import WORKLOADS, Setup
from wds_tools.errors import OptionError
from wds_tools.images import native
from wds_tools.options import RemoteOptions, check_counts, check_seconds
from wds_tools.reading.opening import open_shards


def bench(
    dataset: str | os.PathLike[str],
    *,
    view: str = "train",
    against: Sequence[str] = ("crop-ready", "imagefolder", "webdataset"),
    workers: int = 2,
    rounds: int = 5,
    seconds: float = 5.0,
    batch_size: int | None = None,
    pythons: Mapping[str, str] | None = None,
    stages: bool = False,
    progress: Progress | None = None,
    remote: RemoteOptions | None = None,
) -> BenchReport:
    """Measure our loader on a dataset, together with other loaders and the speed of decoding alone.

    Each loader runs in its own process. All get the same images, which are unpacked and packed
    again in a temporary folder. Rounds alternate (A B C D A B C D ...). Start and warm-up are not
    measured, nor is the time in which a peer writes the images in its own format. If stderr is a terminal, it shows a
    progress bar.

    Args:
        dataset: Folder or URL with a manifest, the manifest, or a brace pattern of indexed shards.
        view: The workload, a name in `WORKLOADS`: ``train``, ``eval``, ``small``, ``ssl``, ``detect``, ``letterbox``,
            ``mosaic``, ``raw`` or ``bytes``.
        against: Peers to compare with, names in `PEERS`. Those that are not installed are skipped
            and reported.
        workers: Processes or threads that decode, for each loader.
        rounds: How often each loader is measured.
        seconds: Minimum duration of a round.
        batch_size: Samples per batch; by default as the workload defines.
        pythons: Interpreters for peers that are installed in other environments, by name of the peer.
        stages: Measure the stages of our loader too.
        progress: Called with a line of text before and after each step.
        remote: How URLs are read; None uses the defaults.

    Returns:
        The measurements: ``to_text()`` returns them as tables, ``to_dict()`` as JSON values.

    Raises:
        OptionError: An invalid argument, or the system is not Linux.
        NotADatasetError: ``dataset`` is not a dataset.
        DestinationError: The temporary folder has too little free space.
        WorkerError: Our own loader or simplejpeg failed.

    Example::

        print(bench("shards/photos", rounds=3).to_text())
    """
    pythons = pythons or {}
    _check(view, against, workers, rounds, seconds, batch_size, pythons)
    source = open_shards(dataset, remote=remote)
    progress = progress or (lambda _line: None)
    reasons = {name: LOADERS[name].why_unavailable(view) for name in against}
    peers = [name for name, reason in reasons.items() if not reason]
    load = os.getloadavg()[0]
    with (
        _exit_on_signals(),
        tempfile.TemporaryDirectory(prefix="wds-tools-bench-", ignore_cleanup_errors=True) as temporary,
        loader_processes([LIMIT, OURS, *peers], Path(temporary), pythons) as processes,
    ):
        progress("unpacking and packing the images")
        size = batch_size or WORKLOADS[view].batch_size
        copy = prepare_dataset(source, Path(temporary), workload=view, workers=workers, batch_size=size, names=peers)
        session = Session(processes, _setup(Path(temporary), copy, view, workers, size), progress)
        session.exclude({name: reason for name, reason in reasons.items() if reason})
        session.load()
        session.prepare()
        session.compare()
        session.measure(rounds, seconds)
        if stages:
            session.measure_stages(seconds)
        return session.report(copy, load, machine())


def _setup(folder: Path, dataset: BenchDataset, workload: str, workers: int, batch_size: int) -> Setup:
    return Setup(
        name=OURS,
        folder=str(folder),
        tree=str(dataset.tree),
        shards=str(dataset.shards),
        workload=workload,
        workers=workers,
        batch_size=batch_size,
        probes=dataset.probes,
    )


def _check(
    view: str,
    against: Sequence[str],
    workers: int,
    rounds: int,
    seconds: float,
    batch_size: int | None,
    pythons: Mapping[str, str],
) -> None:
    if view not in WORKLOADS:
        raise OptionError(f"view={view!r}; allowed are {', '.join(WORKLOADS)}")
    unknown = [name for name in against if name not in PEERS]
    if unknown:
        raise OptionError(f"against={tuple(against)!r}: unknown peer {unknown[0]!r}; allowed are {', '.join(PEERS)}")
    check_counts({"workers": workers, "rounds": rounds, "batch_size": batch_size})
    check_seconds("seconds", seconds)
    _check_pythons(pythons, against)
    procfs.check_available()


def _check_pythons(pythons: Mapping[str, str], against: Sequence[str]) -> None:
    for name, path in pythons.items():
        if name not in against:
            raise OptionError(
                f"python {name}={path}: {name!r} is not one of the peers of this run; these are "
                f"{', '.join(against) or 'none'}"
            )
        if not (Path(path).is_file() and os.access(path, os.X_OK)):
            raise OptionError(
                f"python {name}={path}: no such program; give the interpreter of the environment in which {name} is "
                f"installed, such as /opt/{name}/bin/python"
            )


def machine() -> dict[str, str]:
    """Return what the measurements depend on besides the data: processor, cores and versions."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": names[0].partition(":")[2].strip() if names else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "wds_tools": f"{wds_tools.__version__}{'' if native.is_enabled() else ' (not compiled)'}",
    }


@contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into an exception, as Ctrl-C is, so that processes and files are removed."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set signal handlers
        return
    before = {number: signal.signal(number, _exit) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
