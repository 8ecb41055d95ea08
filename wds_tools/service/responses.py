"""Responses that are not files: errors as JSON, and the headers of every response."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "private, no-cache",  # a cache may keep files, and has to compare their ETags each time
    "Server": "wds-tools",  # without versions
}


def error_response(
    status: int, message: str, headers: Mapping[str, str] | None = None, *, reason: str = ""
) -> web.Response:
    """Return an error as JSON, in the form that our client shows.

    Args:
        status: HTTP status.
        message: What is wrong and the remedy; no paths of the server, and nothing that the client sent.
        headers: Further headers.
        reason: The cause as one word, for programs.
    """
    error = {"message": message, "status": status, **({"reason": reason} if reason else {})}
    return json_response({"error": error}, status=status, headers=headers)


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a value as JSON."""
    body = json.dumps(value).encode()
    return web.Response(body=body, status=status, headers=headers, content_type="application/json", charset="utf-8")


async def add_security_headers(_request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Add the headers of every response; called before the head is sent."""
    response.headers.update(SECURITY_HEADERS)
