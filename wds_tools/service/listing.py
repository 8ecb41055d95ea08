"""Catalogue of datasets, metrics and health check, for programs: ``/api/datasets``, ``/metrics``, ``/healthz``."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from aiohttp import web

from wds_tools.service.access import ALL_DATASETS, ANY_TOKEN, GRANT, PUBLIC, Route
from wds_tools.service.answers import json_answer
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

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("GET", "/api/datasets", self.get_datasets, "catalogue", ANY_TOKEN),
            Route("GET", "/metrics", self.get_metrics, "metrics", ALL_DATASETS),
            Route("GET", "/healthz", self.get_health, "healthz", PUBLIC),  # probes have no token
        ]

    async def get_datasets(self, request: web.Request) -> web.Response:
        """List the datasets that the token of a request is for."""
        grant = request[GRANT]
        datasets = [_entry(summary) for summary in self._library.summaries() if grant.allows(summary.name)]
        problems = [{"name": name, "problem": text} for name, text in self._library.problems().items()]
        return json_answer({"datasets": datasets, "problems": problems if grant.allows_all else []})

    async def get_metrics(self, _request: web.Request) -> web.Response:
        """Return the metrics; they are about all datasets."""
        self._metrics.datasets.set(len(self._library.summaries()))
        self._metrics.problems.set(len(self._library.problems()))
        return web.Response(body=self._metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def get_health(self, _request: web.Request) -> web.Response:
        """Answer a probe."""
        return web.Response(text="ok\n")


def _entry(summary: Summary) -> dict[str, Any]:
    return {**summary.details, "url": f"{PREFIX}{quote(summary.name)}/", "etag": f'"{summary.version}"'}
