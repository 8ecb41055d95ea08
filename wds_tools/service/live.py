"""Routes for live figures: loaders and packers post to ``/api/reports``, and ``/api/runs`` returns what they do."""

from __future__ import annotations

import asyncio

from aiohttp import web

from wds_tools.reporting import REPORT_PATH
from wds_tools.service.access import ANY_TOKEN, GRANT, Grant, Route
from wds_tools.service.answers import error_answer, json_answer
from wds_tools.service.connections import Connection
from wds_tools.service.reports import (
    InvalidReportError,
    Report,
    ReportTable,
    check_report,
    packs_of,
    runs_of,
    verdict,
)
from wds_tools.service.verifications import Verifications

BODY_SECONDS = 5.0
"""Time in which a report has to arrive."""


class LiveRoutes:
    """Routes for reports.

    Args:
        table: Where those of loaders and packers are kept.
        verifications: Where results of `wds-tools verify` are kept.
    """

    def __init__(self, table: ReportTable, verifications: Verifications) -> None:
        self._table = table
        self._verifications = verifications

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            Route("POST", REPORT_PATH, self.post_report, "report", ANY_TOKEN),
            Route("GET", "/api/runs", self.get_runs, "runs", ANY_TOKEN),
        ]

    async def post_report(self, request: web.Request) -> web.Response:
        """Accept a report."""
        try:
            if request.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise InvalidReportError("it is compressed: send it without Content-Encoding")
            if request.content_type != "application/json":
                return error_answer(415, "a report has the Content-Type application/json")
            async with asyncio.timeout(BODY_SECONDS):
                body = await request.read()
            values = check_report(body)
            if values["kind"] != "verify":
                self._table.add(_owner(request[GRANT]), request.remote or "", values)
            elif request[GRANT].allows_all:
                await asyncio.get_running_loop().run_in_executor(None, self._verifications.add, values)
            else:
                return error_answer(403, "verifications need a token for all datasets")
        except TimeoutError:
            Connection.cut(request.protocol)  # otherwise it could send slowly forever
            return error_answer(408, f"the report did not arrive within {BODY_SECONDS:.0f} s")
        except InvalidReportError as error:
            return error_answer(400, f"the report is invalid: {error}")
        return web.Response(status=204)

    async def get_runs(self, request: web.Request) -> web.Response:
        """Return the runs that a token may see."""
        reports = visible(self._table, request[GRANT])
        runs = runs_of(reports)
        return json_answer({"verdict": verdict(runs), "runs": runs, "packs": packs_of(reports)})


def visible(table: ReportTable, grant: Grant) -> list[Report]:
    """Return the reports that a request may see: all with a token for all datasets, otherwise those of its token."""
    return [report for report in table.reports() if grant.allows_all or report.owner == _owner(grant)]


def _owner(grant: Grant) -> str:
    return grant.token.id if grant.token else ""
