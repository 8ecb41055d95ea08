"""Catalogue of datasets, metrics and health check, for programs: ``/api/datasets``, ``/metrics``, ``/healthz``."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from aiohttp import web

from wds_tools.service.access import GRANT
from wds_tools.service.answers import error_answer, json_answer
from wds_tools.service.contents import Library, Summary
from wds_tools.service.data import PREFIX
from wds_tools.service.metrics import CONTENT_TYPE, Metrics


class ListingRoutes:
    """Routes for the catalogue of datasets, for metrics and for probes.

    Args:
        library: The datasets.
        metrics: The metrics.
    """

    def __init__(self, library: Library, metrics: Metrics) -> None:
        self._library = library
        self._metrics = metrics

    def routes(self) -> list[web.RouteDef]:
        """Return the routes."""
        return [
            web.get("/api/datasets", self.get_datasets, name="catalogue"),
            web.get("/metrics", self.get_metrics, name="metrics"),
            web.get("/healthz", self.get_health, name="healthz"),
        ]

    async def get_datasets(self, request: web.Request) -> web.Response:
        """List the datasets that the token of a request is for."""
        grant = request[GRANT]
        datasets = [_entry(summary) for summary in self._library.summaries() if grant.allows(summary.name)]
        problems = [{"name": name, "problem": text} for name, text in self._library.problems().items()]
        return json_answer({"datasets": datasets, "problems": problems if grant.allows_all else []})

    async def get_metrics(self, request: web.Request) -> web.Response:
        """Return the metrics; they are about all datasets."""
        if not request[GRANT].allows_all:
            return error_answer(403, "metrics need a token for all datasets")
        self._metrics.datasets.set(len(self._library.summaries()))
        self._metrics.problems.set(len(self._library.problems()))
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def get_health(self, _request: web.Request) -> web.Response:
        """Answer a probe."""
        return web.Response(text="ok\n")


def _entry(summary: Summary) -> dict[str, Any]:
    return {**summary.details, "url": f"{PREFIX}{quote(summary.name)}/", "etag": f'"{summary.version}"'}
