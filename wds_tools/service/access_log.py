"""The access log: one line of JSON for each request, refused ones included.

A line is written by one call to a file that is only appended to. So several processes share a file, and logrotate may
truncate it (``copytruncate``).
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

from aiohttp import web

from wds_tools.errors import OptionError
from wds_tools.service.access import GRANT, TARGET
from wds_tools.service.sending import FileResponse
from wds_tools.service.tokens import PREFIX

STANDARD_OUTPUT = Path("-")
_MAX_TEXT = 1000  # characters of a text that a client has sent
_SECRET = re.compile(rf"{PREFIX}[\w-]*")  # somebody may have put a token into a path
_log = logging.getLogger("wds_tools")


class AccessLog:
    """An open access log.

    Args:
        path: The file, which is created if needed; `STANDARD_OUTPUT`: the standard output.

    Raises:
        OptionError: It cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_warned = False
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._file = os.dup(1) if path == STANDARD_OUTPUT else os.open(path, flags, 0o640)
        except OSError as error:
            reason = error.strerror or error
            raise OptionError(f"the access log {path} cannot be written: {reason}; name another file") from error

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """Close the file with the application."""
        yield
        os.close(self._file)

    def add(self, request: web.Request, response: web.StreamResponse | None, *, route: str, seconds: float) -> None:
        """Write the line of a request.

        Args:
            request: The request.
            response: Its response; None: the client disconnected before there was one.
            route: Name of the route.
            seconds: Duration, the body included.
        """
        grant, target = request.get(GRANT), request.get(TARGET)
        values = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "client": request.remote,
            "token": grant.token.name or grant.token.id if grant and grant.token else None,
            "method": request.method[:_MAX_TEXT],
            "route": route,
            "dataset": target.dataset[:_MAX_TEXT] if target else None,
            "file": target.file[:_MAX_TEXT] if target else None,
            "range": request.headers.get("Range", "")[:_MAX_TEXT] or None,
            "status": response.status if response else None,
            "bytes": _body_bytes(request, response),
            "seconds": round(seconds, 6),
        }
        line = _SECRET.sub(f"{PREFIX}***", json.dumps(values)) + "\n"
        try:
            os.write(self._file, line.encode())
        except OSError as error:
            if not self._has_warned:
                _log.warning("the access log %s cannot be written: %s", self._path, error.strerror or error)
            self._has_warned = True


def _body_bytes(request: web.Request, response: web.StreamResponse | None) -> int:
    """Return the length of the body that was sent; for responses in one piece, of the body that is about to be sent."""
    if isinstance(response, FileResponse):
        return response.sent_bytes
    if response is None or request.method == "HEAD":
        return 0
    return (response.content_length or 0) if isinstance(response, web.Response) else response.body_length
