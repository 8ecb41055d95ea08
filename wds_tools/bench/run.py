"""`bench`: who is measured, on what, in which order."""

from __future__ import annotations

import os
import platform
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import wds_tools
from wds_tools.bench import procfs
from wds_tools.bench.contest import Contestant, contestants
from wds_tools.bench.material import Material, prepare
from wds_tools.bench.report import BenchReport, Round
from wds_tools.bench.works import LIMIT, OURS, PEERS, WORKS, Setup
from wds_tools.errors import OptionError, WorkerError

_START_SECONDS = 120.0  # for the first batch of a slow contender

Progress = Callable[[str], None]


def bench(
    dataset: str | os.PathLike[str],
    *,
    view: str = "train",
    against: Sequence[str] = ("imagefolder", "webdataset"),
    workers: int = 2,
    rounds: int = 5,
    seconds: float = 5.0,
    batch_size: int = 128,
    progress: Progress | None = None,
) -> BenchReport:
    """Measure the loader on a dataset, beside its peers and the speed of decoding alone.

    Every contender has a process of its own and gets the same pictures, which are unpacked and packed again in a
    temporary folder. Rounds alternate (A B C D A B C D ...); start and warm-up do not count.

    Args:
        dataset: Folder or URL with a manifest, the manifest, or a brace pattern of indexed shards.
        view: ``train`` or ``eval``.
        against: Peers to compare with, of `PEERS`; those that are not installed are left out and reported.
        workers: Processes that decode, of each contender.
        rounds: How often each contender is measured.
        seconds: Least duration of a round.
        batch_size: Images per batch.
        progress: Called with a line of text before and after each step.

    Returns:
        The figures; ``render()`` makes a table of them.

    Raises:
        OptionError: An argument that cannot be, or no Linux.
        NotADatasetError: There is no dataset.
        DestinationError: The temporary folder has too little room.
        WorkerError: Our own loader failed, or simplejpeg did.

    >>> print(bench("shards/photos", rounds=3).render())  # doctest: +SKIP
    """
    _check(view, against, workers, rounds, seconds, batch_size)
    tell = progress or (lambda _line: None)
    names = [LIMIT, OURS, *against]
    load = os.getloadavg()[0]
    with (
        _signals_unwind(),
        tempfile.TemporaryDirectory(prefix="wds-tools-bench-", ignore_cleanup_errors=True) as temporary,
        contestants(names, Path(temporary)) as field,
    ):
        tell("unpacking and packing the pictures")
        material = prepare(dataset, Path(temporary), workers=workers, batch_size=batch_size)
        setup = _setup(Path(temporary), material, view, workers, batch_size)
        contest = _Contest(field, setup, tell)
        contest.load()
        contest.compare_pixels()
        for number in range(rounds):
            contest.round(number, rounds, seconds)
        return contest.report(material, load)


class _Contest:
    """The contenders that are still in it, and what has been found."""

    def __init__(self, field: Sequence[Contestant], setup: Setup, tell: Progress) -> None:
        self._field = list(field)
        self._setup = setup
        self._tell = tell
        self._rounds: dict[str, list[Round]] = {}
        self._missing: dict[str, str] = {}
        self._pixels: dict[str, float] = {}
        self._versions: dict[str, str] = {}

    def load(self) -> None:
        """Wait until every contender is imported."""
        for contestant, _ in self._each(lambda c: c.wait_until_loaded()):
            self._versions.update(contestant.versions)

    def compare_pixels(self) -> None:
        """Have each contender make the same pictures, and compare them with ours."""
        shown: dict[str, Any] = {}
        for contestant, there in self._each(
            lambda c: c.ask("pictures", {"setup": self._setup.to_json(), "file": self._file(c)})
        ):
            if there:
                shown[contestant.name] = np.load(self._file(contestant), allow_pickle=False).astype(np.int64)
        for name in [name for name in shown if name != OURS]:
            apart = np.abs(shown[name] - shown[OURS]).mean(axis=(1, 2, 3))  # [pictures]
            # The median, because peers do not turn pictures as their EXIF orientation says.
            self._pixels[name] = float(np.median(apart))
            self._tell(f"{name}: pixels differ from ours by {self._pixels[name]:.2f} of 255")

    def round(self, number: int, rounds: int, seconds: float) -> None:
        """Measure each contender once."""
        values = {"setup": self._setup.to_json(), "seed": number, "seconds": seconds}
        for contestant, found in self._each(lambda c: c.ask("round", values, patience=_START_SECONDS + 3 * seconds)):
            measured = Round(**found)
            self._rounds.setdefault(contestant.name, []).append(measured)
            self._tell(f"round {number + 1} of {rounds}: {contestant.name} {measured.speed:,.0f} images/s")

    def report(self, material: Material, load: float) -> BenchReport:
        """Return what has been found."""
        return BenchReport(
            work=self._setup.work,
            view=str(self._setup.view),
            pictures=material.pictures,
            copies=material.copies,
            mean_bytes=material.bytes // (material.pictures * material.copies),
            workers=self._setup.workers,
            batch_size=self._setup.batch_size,
            rounds=self._rounds,
            missing=self._missing,
            pixels=self._pixels,
            load=load,
            machine={**_machine(), **self._versions},
        )

    def _each(self, job: Callable[[Contestant], Any]) -> Iterator[tuple[Contestant, Any]]:
        """Do something with each contender; one that fails is out."""
        for contestant in list(self._field):
            try:
                yield contestant, job(contestant)
            except WorkerError as error:
                if contestant.name in (LIMIT, OURS):
                    raise
                self._field.remove(contestant)
                self._missing[contestant.name] = str(error)
                self._tell(f"{contestant.name}: {error}")

    def _file(self, contestant: Contestant) -> str:
        return str(Path(self._setup.folder) / f"{contestant.name}.npy")


def _setup(folder: Path, material: Material, work: str, workers: int, batch_size: int) -> Setup:
    return Setup(
        folder=str(folder),
        tree=str(material.tree),
        shards=str(material.shards),
        work=work,
        workers=workers,
        batch_size=batch_size,
        probes=material.probes,
    )


def _check(view: str, against: Sequence[str], workers: int, rounds: int, seconds: float, batch_size: int) -> None:
    if view not in WORKS:
        raise OptionError(f"view={view!r}; allowed are {', '.join(WORKS)}")
    unknown = [name for name in against if name not in PEERS]
    if unknown:
        raise OptionError(f"against={tuple(against)!r} names {unknown[0]!r}; allowed are {', '.join(PEERS)}")
    if min(workers, rounds, batch_size) < 1 or not seconds > 0:
        raise OptionError(
            f"workers={workers}, rounds={rounds}, batch_size={batch_size}, seconds={seconds}: allowed are 1 and more, "
            "and more than 0 seconds"
        )
    if not procfs.available():
        raise OptionError(
            "bench reads CPU time and memory from /proc, which this system does not have; run it on Linux"
        )


def _machine() -> dict[str, str]:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "processor": names[0].partition(":")[2].strip() if names else platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "python": platform.python_version(),
        "wds_tools": wds_tools.__version__,
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
