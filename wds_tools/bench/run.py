"""`bench`: who is measured, on what, in which order."""

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
from wds_tools.bench.dataset import Material, prepare
from wds_tools.bench.process import contestants
from wds_tools.bench.registry import CONTENDERS, LIMIT, OURS, PEERS
from wds_tools.bench.scaling import BenchReports
from wds_tools.bench.session import Contest, Progress
from wds_tools.bench.workloads import WORKS, Setup
from wds_tools.errors import OptionError
from wds_tools.images import native
from wds_tools.options import check_counts, check_seconds
from wds_tools.reading.shardset import open_shards


def bench(
    dataset: str | os.PathLike[str],
    *,
    view: str = "train",
    against: Sequence[str] = ("crop-ready", "imagefolder", "webdataset"),
    workers: int | Sequence[int] = 2,
    rounds: int = 5,
    seconds: float = 5.0,
    batch_size: int | None = None,
    pythons: Mapping[str, str] | None = None,
    stages: bool = False,
    progress: Progress | None = None,
) -> BenchReports:
    """Measure the loader on a dataset, beside its peers and the speed of decoding alone.

    Every contender has a process of its own and gets the same pictures, which are unpacked and packed again in a
    temporary folder. Rounds alternate (A B C D A B C D ...); start and warm-up do not count, nor does the time in
    which a peer writes the pictures in its own format.

    Args:
        dataset: Folder or URL with a manifest, the manifest, or a brace pattern of indexed shards.
        view: The work, a name in `WORKS`: ``train``, ``eval``, ``small``, ``raw`` or ``bytes``.
        against: Peers to compare with, of `PEERS`; those that are not installed are left out and reported.
        workers: Processes or threads that decode, of each contender; of several numbers, each is measured.
        rounds: How often each contender is measured.
        seconds: Least duration of a round.
        batch_size: Samples per batch; by default what the work says.
        pythons: Interpreters of the peers that live in other environments, by name.
        stages: Measure the stages of our own path too.
        progress: Called with a line of text before and after each step.

    Returns:
        The figures; ``render()`` makes tables of them, ``picture()`` a chart.

    Raises:
        OptionError: An argument that cannot be, or no Linux.
        NotADatasetError: There is no dataset.
        DestinationError: The temporary folder has too little room.
        WorkerError: Our own loader failed, or simplejpeg did.

    Example::

        print(bench("shards/photos", rounds=3).render())
    """
    counts = sorted({workers} if isinstance(workers, int) else set(workers))
    pythons = pythons or {}
    _check(view, against, counts, rounds, seconds, batch_size, pythons)
    source = open_shards(dataset)
    tell = progress or (lambda _line: None)
    able = [name for name in dict.fromkeys(against) if view in CONTENDERS[name].works]
    load = os.getloadavg()[0]
    with (
        _signals_unwind(),
        tempfile.TemporaryDirectory(prefix="wds-tools-bench-", ignore_cleanup_errors=True) as temporary,
        contestants([LIMIT, OURS, *able], Path(temporary), pythons) as field,
    ):
        tell("unpacking and packing the pictures")
        size, most = batch_size or WORKS[view].batch_size, counts[-1]
        material = prepare(source, Path(temporary), work=view, workers=most, batch_size=size, names=able)
        contest = Contest(field, _setup(Path(temporary), material, view, most, size), tell)
        contest.refuse([name for name in against if name not in able])
        contest.load()
        contest.prepare()
        contest.compare_pixels()
        for number in range(rounds):
            for count in counts:
                contest.round(count, number, rounds, seconds)
        if stages:
            contest.stages(counts, seconds)
        return contest.reports(material, load, machine())


def _setup(folder: Path, material: Material, work: str, workers: int, batch_size: int) -> Setup:
    return Setup(
        name=OURS,
        folder=str(folder),
        tree=str(material.tree),
        shards=str(material.shards),
        work=work,
        workers=workers,
        batch_size=batch_size,
        probes=material.probes,
    )


def _check(
    view: str,
    against: Sequence[str],
    counts: Sequence[int],
    rounds: int,
    seconds: float,
    batch_size: int | None,
    pythons: Mapping[str, str],
) -> None:
    if view not in WORKS:
        raise OptionError(f"view={view!r}; allowed are {', '.join(WORKS)}")
    unknown = [name for name in against if name not in PEERS]
    if unknown:
        raise OptionError(f"against={tuple(against)!r} names {unknown[0]!r}; allowed are {', '.join(PEERS)}")
    if not counts:
        raise OptionError("workers= names no number; allowed are whole numbers of 1 and more, such as 2 or [1, 2, 4]")
    check_counts({"workers": counts[0], "rounds": rounds, "batch_size": batch_size})
    check_seconds("seconds", seconds)
    _check_pythons(pythons, against)
    procfs.check_available()


def _check_pythons(pythons: Mapping[str, str], against: Sequence[str]) -> None:
    for name, path in pythons.items():
        if name not in against:
            raise OptionError(f"python {name}={path}: {name!r} is not compared with; allowed are {', '.join(against)}")
        if not (Path(path).is_file() and os.access(path, os.X_OK)):
            raise OptionError(
                f"python {name}={path}: there is no program of this name; give the interpreter of the environment "
                f"that has {name}, such as /opt/{name}/bin/python"
            )


def machine() -> dict[str, str]:
    """Return what figures depend on beside the data."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": names[0].partition(":")[2].strip() if names else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "wds_tools": f"{wds_tools.__version__}{'' if native.is_enabled() else ' (not compiled)'}",
    }


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does, so that nothing is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return
    wanted = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, _unwind) for number in wanted}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _unwind(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
