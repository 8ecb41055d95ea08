"""The tab "Batches": what a loader sees, computed in a helper process by `loaded`, and kept in memory.

The helper process opens no files. It reports which indexes and images it needs, and gets them from here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate, pairwise
from typing import Any
from urllib.parse import quote, urlencode

from wds_tools.format.manifest import MANIFEST_NAME
from wds_tools.lru_cache import LRUCache
from wds_tools.service.pages import overlays
from wds_tools.service.pages.background import Tasks
from wds_tools.service.pages.browse import BrowseError, Browser, Opened
from wds_tools.service.pages.described_view import MAX_DESCRIPTION, MAX_SIDE, VIEWS
from wds_tools.service.pages.helpers import BusyError, HelperError, HelperPool
from wds_tools.service.pages.views import class_name

ROWS = 24
"""Images of a step on one page."""

IMAGE_SECONDS = 60.0
"""For which an image waits for its step."""

_MAX_BATCH = 1 << 20
_MAX_EPOCH, _MAX_STEP = 10**9, 10**15
_MAX_SEED = 2**63 - 1
_MEMORY_BYTES = 16 << 30  # of addresses: torch alone takes several
_SECONDS = 30.0
_WAIT_SECONDS = 0.5  # of a page for its step
_REPEAT_SECONDS = 60.0  # after which a question without an answer is asked again
_MAX_ROUNDS = 8  # in which the helper reports what it needs
_MAX_SENT_BYTES = 128 << 20  # in one message
_MAX_READ_BYTES = 512 << 20  # for one question
_KEPT_BYTES = 128 << 20
_MAX_TASKS = 32
_IDLE_SECONDS = 300.0  # after which the helper process is ended, as torch takes much memory


@dataclass(frozen=True, slots=True)
class Question:
    """What is shown, as the URL has it.

    Attributes:
        seed: Seed of the loader.
        epoch: Zero-based epoch.
        step: Zero-based step of the epoch.
        batch: Samples of a step over all ranks.
        shuffle: ``yes``, ``no``, a window in samples, or a quality.
        view: One of `VIEWS`.
        size: Its size in pixels.
        description: JSON of another view; "" for none.
        row: First row of the step that is shown.
        sample: Number of the sample whose crops are shown instead; None for the images of the step.
    """

    seed: int = 0
    epoch: int = 0
    step: int = 0
    batch: int = ROWS
    shuffle: str = "yes"
    view: str = next(iter(VIEWS))
    size: int = 224
    description: str = ""
    row: int = 0
    sample: int | None = None

    @classmethod
    def of(cls, query: Mapping[str, str], samples: int) -> tuple[Question, str]:
        """Return what the query of a URL asks for, and what is wrong with it; "" if nothing is.

        Args:
            query: The query.
            samples: Samples of the dataset: the most for a batch whose size is not stated.
        """
        default: dict[str, Any] = {"batch": max(1, min(ROWS, samples))}
        values = dict(default)
        for name, (least, most) in _NUMBERS.items():
            text = query.get(name, "").strip()
            if not text:
                continue
            if not (text.isascii() and text.isdigit() and len(text) <= 19 and least <= int(text) <= most):
                return cls(**default), f"{name}={text[:40]!r}; allowed are whole numbers from {least:,} to {most:,}"
            values[name] = int(text)
        for name in ("shuffle", "view", "description"):
            if text := query.get(name, "").strip():
                values[name] = text[: MAX_DESCRIPTION + 1]
        return cls(**values), ""

    def url(self, dataset: str, **changes: Any) -> str:
        """Return the URL of the tab with some values changed."""
        return f"/datasets/{quote(dataset)}?{urlencode({'tab': 'batches', **replace(self, **changes).values()})}"

    def image_url(self, dataset: str, index: int) -> str:
        """Return the URL of an image, by its index on the page."""
        return f"/batches/{quote(dataset)}/{index}?{urlencode(self.values())}"

    def values(self) -> dict[str, str | int]:
        """Return the values that are not the defaults."""
        given = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        return {name: value for name, value in given.items() if value != getattr(_DEFAULT, name)}


_NUMBERS = {
    "seed": (0, _MAX_SEED),
    "epoch": (0, _MAX_EPOCH),
    "step": (0, _MAX_STEP),
    "batch": (1, _MAX_BATCH),
    "size": (1, MAX_SIDE),
    "row": (0, _MAX_BATCH),
    "sample": (0, _MAX_STEP),
}
_DEFAULT = Question()


@dataclass(frozen=True, slots=True)
class Batch:
    """The answer to a question.

    Attributes:
        facts: What the helper process says, see `LoadedSteps.answer`; empty without an answer.
        images: The images as PNG; empty ones could not be made.
        mistake: What is wrong with the question.
        error: Why there is no answer.
        repeat_at: Time of the monotonic clock from which on it is asked again.
    """

    facts: dict[str, Any] = field(default_factory=dict)
    images: tuple[bytes, ...] = ()
    mistake: str = ""
    error: str = ""
    repeat_at: float = float("inf")


class Batches:
    """Asks a helper process what loaders see, one question at a time."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._helpers = HelperPool("batches", 1, _MEMORY_BYTES, _SECONDS)
        self._kept = LRUCache[tuple[str, Question], Batch](max_items=1000, max_bytes=_KEPT_BYTES)
        self._background = Tasks()
        self._tasks: dict[tuple[str, Question], asyncio.Task[Batch]] = {}
        self._free = asyncio.Lock()
        self._resting: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End what runs in the background."""
        await self._background.close()
        await self._helpers.close()

    async def find(self, opened: Opened, question: Question, *, seconds: float = _WAIT_SECONDS) -> Batch | None:
        """Return the answer to a question; None if it takes longer than ``seconds``. It is kept until it is needed."""
        key = opened.version, question
        cached = self._kept.get(key)
        if cached is not None and time.monotonic() < cached.repeat_at:
            return cached
        task = self._tasks.get(key)
        if task is None:
            if len(self._tasks) >= _MAX_TASKS:
                return Batch(error="too many other requests wait: reload the page later")
            task = self._tasks[key] = self._background.start(self._run(opened, question))
            task.add_done_callback(lambda _: self._tasks.pop(key, None))
        await asyncio.wait([task], timeout=seconds)
        return task.result() if task.done() and not task.cancelled() else None

    async def _run(self, opened: Opened, question: Question) -> Batch:
        try:
            async with self._free:
                batch = await self._ask(opened, question)
        except (BrowseError, HelperError) as error:
            seconds = 0.0 if isinstance(error, BusyError) else _REPEAT_SECONDS
            batch = Batch(error=str(error), repeat_at=time.monotonic() + seconds)
        if self._resting is not None:
            self._resting.cancel()
        self._resting = self._background.start(self._rest())
        self._kept.put((opened.version, question), batch, sum(map(len, batch.images)) + 2000)
        return batch

    async def _rest(self) -> None:
        await asyncio.sleep(_IDLE_SECONDS)
        await self._helpers.end_idle()

    async def _ask(self, opened: Opened, question: Question) -> Batch:
        message = {"version": opened.version, "question": {**asdict(question), "count": ROWS}}
        sent: list[tuple[str, int, int]] = []
        data, read = b"", 0
        for _ in range(_MAX_ROUNDS):
            answer, images = await self._helpers.ask({**message, "sent": sent}, data)
            if "mistake" in answer:
                return Batch(mistake=answer["mistake"])
            if "missing" not in answer:
                ends = accumulate((sample["bytes"] for sample in answer.get("samples", ())), initial=0)
                return Batch(answer, tuple(images[start:stop] for start, stop in pairwise(ends)))
            sent, data = await self._read(opened, answer["missing"])
            read += len(data)
            if read > _MAX_READ_BYTES:
                break
        raise HelperError("its images and indexes have too many bytes for the page")

    async def _read(
        self, opened: Opened, missing: list[tuple[str, int, int]]
    ) -> tuple[list[tuple[str, int, int]], bytes]:
        """Return as much of what a helper needs as fits in a message."""
        sent: list[tuple[str, int, int]] = []
        parts: list[bytes] = []
        size = 0
        for name, start, stop in missing:
            if parts and size + stop - start > _MAX_SENT_BYTES:
                break
            is_manifest = name == MANIFEST_NAME
            reading = (
                self._browser.read_manifest(opened) if is_manifest else self._browser.read(opened, name, start, stop)
            )
            parts.append(await reading)
            sent.append((name, start, start + len(parts[-1])))
            size += len(parts[-1])
        return sent, b"".join(parts)


def batch_view(opened: Opened, question: Question, batch: Batch) -> dict[str, Any]:
    """Return an answer as the page shows it."""
    facts = batch.facts
    if question.sample is None:
        names = opened.manifest.classes
        samples = [{**sample, "class": class_name(names, sample["label"])} for sample in facts["samples"]]
        last = question.row + len(samples) - 1
        return {
            **facts,
            "samples": samples,
            "last": last,
            "previous_row": max(0, question.row - ROWS),
        }
    width, height = facts["width"], facts["height"]
    return {
        **facts,
        "frame": overlays.frame_of(width, height) if min(width, height) > 0 else None,
        "crops": [{**box, **overlays.numbered_box(box["epoch"], box["crop"], width, height)} for box in facts["crops"]],
    }
