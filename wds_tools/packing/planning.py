"""One of several tasks lists the source and writes the plan, and the others wait for it.

In a folder they wait for a lock. At a URL, the task that plans writes an object, `planning-INDEX`, and changes it every
few seconds. The others wait as long as they see it change. This is not a lock: two tasks that start at the same moment
may both list. Only one plan stays, see `BucketDestination.write_plan`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from wds_tools.errors import StoreError
from wds_tools.options import RemoteOptions
from wds_tools.packing.config import PackOptions
from wds_tools.packing.work_folder import HEAD_NAME
from wds_tools.storage.commit import write_errors
from wds_tools.storage.lock import PLAN_NAME, PLANNING_NAME, WORK_NAME, unlock, wait_for_lock
from wds_tools.storage.upload import Bucket

_MARK = "planning-"  # start of the names of objects of tasks that want to plan or do
BEAT_SECONDS = 15.0  # between two changes of such an object
DEAD_SECONDS = 60.0  # without a change
POLL_SECONDS = 3.0
SETTLE_SECONDS = 1.0  # in which tasks that start together see each other


@contextmanager
def one_task_plans(location: Path | str, options: PackOptions) -> Iterator[Callable[[], None]]:
    """Let the tasks of a destination wait while one of them lists the source and writes the plan.

    Yields:
        A function to call when the plan is written.
    """
    if options.task is None:
        yield lambda: None
    elif isinstance(location, Path):
        with _locked(location) as unlock:
            yield unlock
    else:
        with ExitStack() as stack:
            if not options.fresh:
                stack.enter_context(_marked(location, options.task[0], options.remote))
            yield stack.close


@contextmanager
def _locked(folder: Path) -> Iterator[Callable[[], None]]:
    work, existed = folder / WORK_NAME, folder.exists()
    with ExitStack() as stack:
        with write_errors(folder, "choose a writable folder"):
            stack.callback(unlock, wait_for_lock(work / PLANNING_NAME))
        try:
            yield stack.close
        except BaseException:
            if not (work / PLAN_NAME).exists():
                (work / PLANNING_NAME).unlink(missing_ok=True)
                with suppress(OSError):  # there are other files
                    work.rmdir()
                    if not existed:
                        folder.rmdir()
            raise


@contextmanager
def _marked(url: str, index: int, remote: RemoteOptions) -> Iterator[None]:
    """Wait until there is a plan, or until no other task plans; then show that this one does."""
    own = _Mark(Bucket(url, remote=remote), index)
    try:
        while not own.has_plan():
            if not own.others():
                own.write()
                time.sleep(SETTLE_SECONDS)
                if all(index < other for other in own.others()):
                    own.keep()
                    break
                own.remove()
            time.sleep(POLL_SECONDS)
        yield
    finally:
        own.remove()


class _Mark:
    """The object of a task that plans, and what it sees of those of others.

    Args:
        bucket: The destination.
        index: Index of the task.
    """

    def __init__(self, bucket: Bucket, index: int) -> None:
        self._bucket, self._name = bucket, f"{_MARK}{index}"
        self._seen: dict[str, tuple[bytes, float]] = {}  # content, and when it was seen first
        self._is_there = False
        self._end = threading.Event()
        self._beats = threading.Thread(target=self._beat, daemon=True)

    def has_plan(self) -> bool:
        """Return whether there is a plan. A source that is listed by each task has no listing: then nobody waits."""
        names = self._bucket.sizes(WORK_NAME)
        return HEAD_NAME in names or (PLAN_NAME in names and not self.others())

    def others(self) -> list[int]:
        """Return the indices of the other tasks whose objects still change."""
        names = {name for name in self._bucket.sizes(WORK_NAME) if name.startswith(_MARK) and name != self._name}
        now, found = time.monotonic(), self._bucket.read_all(WORK_NAME, names) if names else {}
        for name, content in found.items():
            if name not in self._seen or self._seen[name][0] != content:
                self._seen[name] = content, now
        return [int(name.removeprefix(_MARK)) for name in found if now - self._seen[name][1] < DEAD_SECONDS]

    def write(self) -> None:
        """Show that this task wants to plan."""
        self._is_there = True
        self._bucket.write(f"{WORK_NAME}/{self._name}", str(time.time()).encode())

    def keep(self) -> None:
        """Show that this task plans, until `remove`."""
        self._beats.start()

    def remove(self) -> None:
        """Show that this task does not plan."""
        self._end.set()
        if self._beats.is_alive():
            self._beats.join()
        if self._is_there:
            self._is_there = False
            with suppress(StoreError):  # it counts as dead soon
                self._bucket.remove([self._name], WORK_NAME)

    def _beat(self) -> None:
        while not self._end.wait(BEAT_SECONDS):
            with suppress(StoreError):
                self.write()
