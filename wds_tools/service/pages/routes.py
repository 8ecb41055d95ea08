"""Routes of the web page: ``/``, ``/datasets/``, ``/thumbnails/``, ``/batches/``, ``/fields/`` and ``/static/``.

Everything is rendered here, by templates that escape all values. Names from URLs are looked up in the catalogue, in
manifests and indexes, and in the list of our own static files.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import xxhash
from aiohttp import web
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from wds_tools import __version__
from wds_tools.format.manifest import ShardEntry
from wds_tools.format.objects import CATEGORY_PATH
from wds_tools.format.sample import shows_mask
from wds_tools.service.access import ANY_TOKEN, GRANT, TARGET, Access, Route, dataset_after
from wds_tools.service.connections import Connection
from wds_tools.service.contents import PREFIX, Library, Target, names_of
from wds_tools.service.metrics import Metrics
from wds_tools.service.pages import glance, overlays, snippets, thumbnail_cache, views
from wds_tools.service.pages.background import Tasks
from wds_tools.service.pages.batches import IMAGE_SECONDS, ROWS, Batches, Question, batch_view
from wds_tools.service.pages.browse import MAX_VALUES, BrowseError, Browser, Opened
from wds_tools.service.pages.described_view import MAX_SIDE, VIEWS
from wds_tools.service.pages.helpers import HelperError, HelperPool
from wds_tools.service.pages.kept_results import KeptResults
from wds_tools.service.pages.problem_search import ProblemSearch
from wds_tools.service.pages.texts import TextCache
from wds_tools.service.pages.thumbnail_cache import (
    ThumbnailCache,
    image_field_of,
    may_hold_image,
)
from wds_tools.service.pages.views import State
from wds_tools.service.reports import ReportTable, packs_of, runs_of, verdict
from wds_tools.service.responses import error_response
from wds_tools.stages import STEP, cause_name
from wds_tools.wording import counted, human_bytes

_FOLDER = Path(__file__).parent
_PAGE_PREFIX = "/datasets/"
_STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_INDEX_MEMORY = 4 << 30
_INDEX_SECONDS = 20.0
_SIZES = {"160": 160, "1024": 1024}
_MAX_PROBLEMS = 50
_DATASETS_PER_PAGE = 100
_PREVIEW_BYTES = 1 << 20
_MAX_FIELDS = 200
_MAX_MASKS = 4  # that lie over an image
_MASK_SECONDS = 0.5  # for which a page waits for the numbers of its masks
_PICTURE_SIDE = 1024
_OBJECT_BYTES = 2 << 20  # longest JSON whose objects are drawn
_DOWNLOAD_SECONDS = 30.0
_PIECE_BYTES = 256 << 10


class PageRoutes:
    """Routes of the web page.

    Args:
        table: Reports of loaders and packers.
        metrics: For the saved egress.
        kept: Results that outlive the service.
        disks: Names and paths of folders whose free space is shown.
        has_upstreams: Whether some datasets are read through a cache.
    """

    def __init__(
        self,
        library: Library,
        table: ReportTable,
        metrics: Metrics,
        kept: KeptResults,
        *,
        disks: Sequence[tuple[str, Path]] = (),
        has_upstreams: bool = False,
    ) -> None:
        self._library = library
        self._table = table
        self._metrics = metrics
        self._disks = disks
        self._has_upstreams = has_upstreams
        self._indexes = HelperPool("indexes", 1, _INDEX_MEMORY, _INDEX_SECONDS)
        self._decoders = HelperPool(
            "thumbnail", thumbnail_cache.PROCESSES, thumbnail_cache.MEMORY_BYTES, thumbnail_cache.SECONDS
        )
        self._browser = Browser(library, self._indexes, kept)
        self._problems = ProblemSearch(self._browser, kept)
        self._batches = Batches(self._browser)
        self._thumbnails = ThumbnailCache(self._browser, self._decoders)
        self._texts = TextCache(self._browser, self._decoders)
        self._static = {path.name: path.read_bytes() for path in (_FOLDER / "static").iterdir() if path.is_file()}
        self._templates = _templates()
        self._downloads = asyncio.Semaphore(MAX_VALUES)
        self._reading = asyncio.Semaphore(MAX_VALUES)
        self._tasks = Tasks()
        self._is_warm = False

    def routes(self) -> list[Route]:
        """Return the routes."""
        page = Access(target_of=self._target_of_page, refuse=self._error)
        thumbnail = dataset_after("/thumbnails/", refuse=self._error)
        batch = dataset_after("/batches/", refuse=self._error)
        field = dataset_after("/fields/", parts=2, refuse=self._error)
        sample_path = "{path:.+}/{sample:[0-9]{1,16}}"
        return [
            Route("GET", "/", self.get_overview, "page", ANY_TOKEN),
            Route("GET", _PAGE_PREFIX + "{path:.+}", self._opened(self.get_dataset), "dataset_page", page),
            Route("GET", f"/thumbnails/{sample_path}", self._opened(self.get_thumbnail), "thumbnail", thumbnail),
            Route("GET", f"/batches/{sample_path}", self._opened(self.get_batch_image), "batch_image", batch),
            Route("GET", f"/fields/{sample_path}/{{field:[^/]+}}", self._opened(self.get_field), "field", field),
            Route("GET", "/static/{name}", self.get_static, "static", ANY_TOKEN),
        ]

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """End the helper processes with the application."""
        yield
        parts = (self._tasks, self._problems, self._batches, self._texts, self._browser, self._indexes, self._decoders)
        for part in parts:
            await part.close()

    async def get_overview(self, request: web.Request) -> web.StreamResponse:
        """Show the runs, the datasets, and the machine."""
        if not self._is_warm:  # the next page is probably that of a dataset
            self._is_warm = True
            self._tasks.start(self._indexes.warm_up())
        grant = request[GRANT]
        summaries = [summary for summary in self._library.summaries() if grant.allows(summary.name)]
        reports = self._table.visible(grant)
        runs = runs_of(reports)
        problems = sorted(self._library.problems().items()) if grant.allows_all else []
        page, last, part = views.part_of(len(summaries), _DATASETS_PER_PAGE, State.of(request.query).page)
        return self.render(
            "overview.html",
            verdict=verdict(runs),
            mood=_mood(runs),
            runs=[views.run_view(run) for run in runs[: views.MAX_RUNS]],
            hidden_runs=max(0, len(runs) - views.MAX_RUNS),
            packs=packs_of(reports)[: views.MAX_RUNS],
            datasets=[summary.details for summary in summaries[part]],
            total=len(summaries),
            page=page,
            last=last,
            problems=problems[:_MAX_PROBLEMS],
            hidden_problems=max(0, len(problems) - _MAX_PROBLEMS),
            disks=await self._disk_usage() if grant.allows_all else [],
            saved=self._metrics.saved_bytes() if self._has_upstreams and grant.allows_all else None,
            origin=_origin(request),
        )

    async def get_dataset(self, request: web.Request, opened: Opened) -> web.StreamResponse:
        """Show a dataset, or one of its samples."""
        state, sample = State.of(request.query), request[TARGET].file
        try:
            if sample:
                return await self._sample_page(request, opened, int(sample.partition("/")[2]), state)
            if state.tab == "batches":
                return await self._batches_page(request, opened, state)
            tabs = {"health": self._health_page, "problems": self._problems_page, "glance": self._glance_page}
            if state.tab in tabs:
                return await tabs[state.tab](opened, state)
            return await self._samples_page(request, opened, state)
        except BrowseError as error:
            return self._error(500, f"{opened.name} cannot be shown: {error}")

    async def get_thumbnail(self, request: web.Request, opened: Opened) -> web.StreamResponse:
        """Send a thumbnail that a helper process has encoded."""
        sample, size = int(request.match_info["sample"]), _SIZES.get(request.query.get("size", "160"), 160)
        if sample >= opened.manifest.samples:
            return error_response(404, "the dataset has no such sample")
        thumbnail = await self._thumbnails.thumbnail(opened, sample, size=size, field=request.query.get("field", ""))
        return _unless_known(request, thumbnail.data, thumbnail.content_type, thumbnail.etag)

    async def get_batch_image(self, request: web.Request, opened: Opened) -> web.StreamResponse:
        """Send an image of a step as a loader gets it."""
        question, mistake = Question.of(request.query, opened.manifest.samples)
        batch = (
            None if mistake else await self._batches.find(opened, replace(question, sample=None), seconds=IMAGE_SECONDS)
        )
        index = int(request.match_info["sample"])
        data = batch.images[index] if batch and index < len(batch.images) else b""
        kind = "image/png" if data else "image/svg+xml"
        return _unless_known(request, data or thumbnail_cache.PLACEHOLDER, kind)

    async def get_field(self, request: web.Request, opened: Opened) -> web.StreamResponse:
        """Send the stored bytes of a field, as a file to save: a browser must not interpret them."""
        sample, name = int(request.match_info["sample"]), request.match_info["field"]
        if sample >= opened.manifest.samples:
            return error_response(404, "the dataset has no such sample")
        try:
            _, fields, shard = await self._browser.sample(opened, sample)
            stored = next((field for field in fields if field["name"] == name), None)
            if stored is None:
                return error_response(404, "the sample has no such field")
            async with self._downloads:
                data = await self._browser.value(opened, shard, stored)
                return await _send_attachment(request, data, f"{sample}.{name}")
        except BrowseError as error:
            return error_response(500, f"the field cannot be sent: {error}")

    async def get_static(self, request: web.Request) -> web.StreamResponse:
        """Send one of our own files."""
        name = request.match_info["name"]
        if name not in self._static:
            return error_response(404, "no such file")
        return _unless_known(request, self._static[name], _STATIC_TYPES[Path(name).suffix], charset="utf-8")

    def _target_of_page(self, request: web.Request) -> Target | None:
        target = names_of(request.rel_url.raw_path.removeprefix(_PAGE_PREFIX), parts=0)
        if target and self._library.find(target.dataset) is None and (match := _SAMPLE.fullmatch(target.dataset)):
            return Target(match[1], f"samples/{match[2]}")
        return target

    def _opened(
        self, handler: Callable[[web.Request, Opened], Awaitable[web.StreamResponse]]
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Return a handler that opens the dataset of a request first."""

        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                opened = await self._browser.open(request[TARGET].dataset)
            except BrowseError as error:
                return self._error(500, f"the manifest cannot be read: {error}")
            return self._error(404, "no such dataset") if opened is None else await handler(request, opened)

        return handle

    async def _samples_page(self, request: web.Request, opened: Opened, state: State) -> web.Response:
        page = await self._browser.page(opened, state.filter, state.page, views.SAMPLES_PER_PAGE)
        await self._browser.summary(opened)  # after the page, as both need the helper process
        texts = await self._texts.texts(opened, page.samples)
        links = views.page_links(page, views.SAMPLES_PER_PAGE)
        state = replace(state, page=links["page"])
        names = opened.manifest.classes
        return self.render(
            "dataset.html",
            **_common(opened, state),
            samples=[
                {**sample, "class": views.class_name(names, sample["label"]), "text": text or ""}
                for sample, text in zip(page.samples, texts, strict=True)
            ],
            is_final=None not in texts and (page.is_complete or len(page.samples) == views.SAMPLES_PER_PAGE),
            result=page,
            links=links,
            mistake=views.mistake_view(state.where, page.mistake),
            classes=views.class_bars(opened, state),
            sorts=views.SORTS,
            chosen=views.class_name(names, state.label),
            code=views.python_of(
                _data_url(request, opened),
                opened,
                snippets.fields_of_dataset(opened),
                state=state,
                samples=page.total,
            ),
        )

    async def _sample_page(self, request: web.Request, opened: Opened, sample: int, state: State) -> web.Response:
        if sample >= opened.manifest.samples:
            return self._error(404, f"no sample {sample}: the dataset has {counted(opened.manifest.samples, 'sample')}")
        row, stored, shard = await self._browser.sample(opened, sample)
        fields = []
        for item in stored[:_MAX_FIELDS]:
            status, text = "not checked: too long", None
            if item["size"] <= _PREVIEW_BYTES or item is image_field_of(stored):
                try:
                    data = await self._browser.value(opened, shard, item)
                    status = "correct"
                    text = None if may_hold_image(item["name"]) or len(data) > _PREVIEW_BYTES else views.text_of(data)
                except BrowseError as error:
                    status = str(error)
            link = f"/fields/{quote(opened.name)}/{sample}/{quote(item['name'], safe='')}"
            is_shown = may_hold_image(item["name"]) and (shows_mask(item["name"]) or not item["name"].endswith("npy"))
            fields.append({**item, "status": status, "text": text, "link": link, "may_hold_image": is_shown})
        main = image_field_of(stored)
        objects, problem = await self._objects(opened, shard, row, stored)
        masks = await self._masks(opened, sample, row, stored) if main else []
        return self.render(
            "sample.html",
            **_common(opened, state),
            sample=sample,
            row=row,
            class_name=views.class_name(opened.manifest.classes, row["label"]),
            shard=shard,
            fields=fields,
            hidden_fields=max(0, len(stored) - _MAX_FIELDS),
            main=main["name"] if main else "",
            objects=objects,
            objects_problem=problem,
            masks=masks,
            frame=overlays.frame_of(row["width"], row["height"]) if objects or masks else None,
            code=views.python_of(
                _data_url(request, opened),
                opened,
                snippets.fields_of_sample(opened, objects, masks),
                sample=sample,
            ),
        )

    async def _objects(
        self, opened: Opened, shard: ShardEntry, row: dict[str, Any], stored: list[dict[str, Any]]
    ) -> tuple[dict[str, Any] | None, str]:
        """Return the objects of a sample as they are drawn, and why they are not.

        As for `wt.Boxes`, the order of the numbers of a box is known if the dataset has the class list of objects.
        """
        field, lists = CATEGORY_PATH.partition(":")[0], opened.manifest.field_classes
        entry = next((entry for entry in stored if entry["name"] == field), None)
        if entry is None or CATEGORY_PATH not in lists or min(row["width"], row["height"]) <= 0:
            return None, ""
        if entry["size"] > _OBJECT_BYTES:
            return None, f"its JSON has {entry['size']:,} bytes; allowed are {_OBJECT_BYTES:,}"
        size = {"width": row["width"], "height": row["height"]}
        try:
            async with self._reading:
                data = await self._browser.value(opened, shard, entry)
                answer, _ = await self._decoders.ask({"question": "objects", **size}, data)
        except (BrowseError, HelperError) as error:
            return None, str(error)
        return overlays.objects_view(answer, lists, **size), ""

    async def _masks(
        self, opened: Opened, sample: int, row: dict[str, Any], stored: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return the masks that lie over the image of a sample; without their numbers if they take too long."""
        if min(row["width"], row["height"]) <= 0:
            return []
        main = image_field_of(stored)
        names = [item["name"] for item in stored if item is not main and shows_mask(item["name"])][:_MAX_MASKS]
        made = [
            self._tasks.start(self._thumbnails.thumbnail(opened, sample, size=_PICTURE_SIDE, field=name))
            for name in names
        ]
        if made:  # those that take longer are kept for the page that is loaded next
            await asyncio.wait(made, timeout=_MASK_SECONDS)
        size, lists = [row["width"], row["height"]], opened.manifest.field_classes
        facts = [task.result().facts if task.done() else None for task in made]
        return [overlays.mask_view(name, of, lists, size) for name, of in zip(names, facts, strict=True)]

    async def _problems_page(self, opened: Opened, state: State) -> web.Response:
        search = await self._problems.find(opened)
        problems = [views.problem_view(opened.name, problem, state) for problem in search.problems or ()]
        return self.render("problems.html", **_common(opened, state), search=search, problems=problems)

    async def _batches_page(self, request: web.Request, opened: Opened, state: State) -> web.Response:
        question, mistake = Question.of(request.query, opened.manifest.samples)
        batch = None if mistake else await self._batches.find(opened, question)
        mistake = mistake or (batch.mistake if batch else "")
        is_step = question.sample is None and not mistake
        return self.render(
            "batches.html",
            **_common(opened, state),
            question=question,
            mistake=mistake,
            batch=batch,
            link=partial(question.url, opened.name),
            image=partial(question.image_url, opened.name),
            shown=batch_view(opened, question, batch) if batch and batch.facts else None,
            code=snippets.code_of_step(_data_url(request, opened), opened, question) if is_step else "",
            names=VIEWS,
            rows=ROWS,
            most=MAX_SIDE,
        )

    async def _glance_page(self, opened: Opened, state: State) -> web.Response:
        await self._browser.summary(opened)
        return self.render("glance.html", **_common(opened, state), glance=glance.glance(opened, state))

    async def _health_page(self, opened: Opened, state: State) -> web.Response:
        page, last, part = views.part_of(len(opened.manifest.shards), views.ROWS_PER_PAGE, state.page)
        shards = opened.manifest.shards[part]
        problems = await self._browser.check_lengths(opened, shards)
        return self.render(
            "health.html",
            **_common(opened, replace(state, page=page)),
            shards=list(zip(shards, problems, strict=True)),
            damaged=sum(map(bool, problems)),
            links={"page": page, "last": last},
            problem=self._library.problems().get(opened.name, ""),
        )

    async def _disk_usage(self) -> list[dict[str, Any]]:
        disks: list[dict[str, Any]] = []
        for name, path in self._disks:
            with contextlib.suppress(OSError):
                total, _, free = await asyncio.to_thread(shutil.disk_usage, path)
                disks.append({"name": views.shown(name), "total": total, "free": free, "used": 1 - free / total})
        return disks

    def _error(self, status: int, message: str) -> web.Response:
        return self.render("error.html", message=message, status=status)

    def render(self, template: str, *, status: int = 200, **values: Any) -> web.Response:
        """Return a page."""
        text = self._templates.get_template(template).render(values, status=status)
        body = text.encode("utf-8", "replace")  # names may contain surrogates
        return web.Response(body=body, status=status, content_type="text/html", charset="utf-8")


def _unless_known(
    request: web.Request, data: bytes, content_type: str, etag: str = "", charset: str | None = None
) -> web.Response:
    """Return a response with an ETag, which depends on the data by default; without them if the client has them."""
    headers = {"ETag": f'"{etag or xxhash.xxh3_64_hexdigest(data)}"'}
    if request.headers.get("If-None-Match") == headers["ETag"]:
        return web.Response(status=304, headers=headers)
    return web.Response(body=data, content_type=content_type, charset=charset, headers=headers)


async def _send_attachment(request: web.Request, data: bytes, name: str) -> web.StreamResponse:
    """Send bytes as a file. A client that does not take them is disconnected: they are in memory until then."""
    file = re.sub(r"[^A-Za-z0-9._-]", "_", name)[:100]
    headers = {
        "Content-Disposition": f'attachment; filename="{file}"',
        "Content-Type": "application/octet-stream",
        "Content-Length": str(len(data)),
    }
    response = web.StreamResponse(headers=headers)
    try:
        async with asyncio.timeout(_DOWNLOAD_SECONDS):
            await response.prepare(request)
            if request.method == "GET":
                for start in range(0, len(data), _PIECE_BYTES):
                    await response.write(data[start : start + _PIECE_BYTES])
                await response.write_eof()
    except TimeoutError:
        Connection.of(request).abort()
    return response


_SAMPLE = re.compile(r"(.+)/samples/([0-9]{1,16})", re.DOTALL)


def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {"size": human_bytes, "shown": views.shown, "duration": views.duration}
    environment.filters |= {"path": quote, "cause": cause_name}
    environment.globals |= {"version": __version__, "counted": counted, "day": views.day}
    return environment


def _common(opened: Opened, state: State) -> dict[str, Any]:
    """Return what all pages of a dataset show."""
    return {
        "name": opened.name,
        "manifest": opened.manifest,
        "opened": opened,
        "state": state,
        "url": partial(state.url, opened.name),
        "tabs": views.TABS,
    }


def _mood(runs: list[dict[str, Any]]) -> str:
    """Return the CSS class of the verdict, which sets the colour of its mark."""
    running = [run for run in runs if run["status"] == "running"]
    if not running:
        return "idle"
    return "fed" if all(run["main_cause"] == STEP for run in running) else "waiting"


def _origin(request: web.Request) -> str:
    """Return the address that a browser has for the service; a reverse proxy may add TLS."""
    scheme = "https" if request.headers.get("X-Forwarded-Proto") == "https" else request.scheme
    return f"{scheme}://{request.headers.get('Host', '')}"


def _data_url(request: web.Request, opened: Opened) -> str:
    return f"{_origin(request)}{PREFIX}{quote(opened.name)}"
