"""Reports of running loaders and packers to `wds-tools serve`, sent by a background thread.

A report must never disturb the work that it describes: timeouts are short, errors are logged once, and a server that
does not answer is tried less and less often.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from wds_tools.errors import OptionError
from wds_tools.options import report_url, run_name, server_token, token_remedy

REPORT_PATH = "/api/reports"
REPORT_SECONDS = 2.0
"""Time between two reports."""

MAX_REPORT_BYTES = 64 << 10
MAX_TEXT = 200
"""Maximum number of characters of a name in a report."""

MAX_ADVICE = 600
"""Maximum number of characters of a sentence in a report."""

EVENTS = ("start", "resume", "reweight")
"""Events that loaders report."""

MAX_EVENTS = 32
"""Maximum number of events in a report: the last ones."""

_TIMEOUT_SECONDS = 2.0
_MAX_PAUSE_SECONDS = 60.0
_JOIN_SECONDS = 0.5  # time to send the last report; the end of a process must not be delayed longer
_log = logging.getLogger("wds_tools")


class Reporter:
    """Sends reports until it is stopped. Nothing is sent before `start`.

    Args:
        url: Origin of the server, such as ``http://node1:8080``.
        read: Returns the content of the next report; called by the background thread.

    Raises:
        OptionError: The URL is not an origin.
    """

    def __init__(self, url: str, read: Callable[[], dict[str, Any]]) -> None:
        self._scheme, self._authority = parse_origin(url)
        self._read = read
        self._stopped: threading.Event | None = None
        self._thread: threading.Thread | None = None  # both are None before the start: they cannot be pickled
        self._context: ssl.SSLContext | None = None
        self._pid = 0
        self._has_warned = False
        server_token(self._scheme, self._authority)  # an invalid WDS_TOOLS_TOKEN is an error now, not a warning later

    def start(self) -> None:
        """Start sending, unless this process already does."""
        if self._thread is not None and self._pid == os.getpid() and self._thread.is_alive():
            return
        stopped, self._pid = threading.Event(), os.getpid()
        self._stopped = stopped
        self._thread = threading.Thread(target=self._send_until, args=(stopped,), name="report", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send a last report with ``"ended": true``, and end the thread. A slow server is not waited for."""
        (thread, self._thread), (stopped, self._stopped) = (self._thread, None), (self._stopped, None)
        if thread is None or stopped is None or self._pid != os.getpid():
            return  # not started, or a fork of the process that sends
        stopped.set()
        thread.join(_JOIN_SECONDS)
        self._context = None

    def _send_until(self, stopped: threading.Event) -> None:
        pause = 0.2  # so that the first figures are shown soon
        while not stopped.wait(pause):
            pause = REPORT_SECONDS if self._send(ended=False) else min(max(2 * pause, 4.0), _MAX_PAUSE_SECONDS)
        if pause <= REPORT_SECONDS:  # a server that did not answer is not tried again at the end
            self._send(ended=True)

    def _send(self, *, ended: bool) -> bool:
        """Send one report; return whether the server has accepted it."""
        try:
            body = json.dumps({"format": 1, **self._read(), "ended": ended}, allow_nan=False).encode()
            if len(body) > MAX_REPORT_BYTES:
                raise ValueError(f"the report has {len(body):,} bytes; allowed are {MAX_REPORT_BYTES:,}")
            status, message = self._post(body)
        except (OSError, http.client.HTTPException, ValueError) as error:
            status, message = 0, str(error) or type(error).__name__
        except Exception as error:  # no error of a report may end the work
            status, message = 0, f"{type(error).__name__} {error}"
        if status == 204:
            return True
        if not self._has_warned:
            self._has_warned = True
            reason = f"status {status}: {message}" if status else message
            reason += f"; {token_remedy(self._scheme, self._authority)}" if status == 401 else ""
            _log.warning(
                "%s://%s does not accept reports (%s); the work continues, and reports are tried again, less often",
                *(self._scheme, self._authority, reason),
            )
        return False

    def _post(self, body: bytes) -> tuple[int, str]:
        if self._scheme == "https":
            self._context = self._context or ssl.create_default_context()  # takes 30 ms of CPU time
            connection = http.client.HTTPSConnection(self._authority, timeout=_TIMEOUT_SECONDS, context=self._context)
        else:
            connection = http.client.HTTPConnection(self._authority, timeout=_TIMEOUT_SECONDS)  # type: ignore[assignment]
        headers = {"Content-Type": "application/json", "Connection": "close"}
        token = server_token(self._scheme, self._authority)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        try:
            connection.request("POST", REPORT_PATH, body, headers)
            response = connection.getresponse()  # redirects are not followed: the token is for this server only
            return response.status, _message_of(response.read(2000))
        finally:
            connection.close()


def parse_origin(url: str) -> tuple[str, str]:
    """Split the URL of a server into scheme and authority.

    >>> parse_origin("http://node1:8080/")
    ('http', 'node1:8080')
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/")
    except ValueError:
        valid = False
    if not valid or "@" in parts.netloc or parts.query or parts.fragment or not url.isprintable() or " " in url:
        raise OptionError(
            "report_to (or WDS_TOOLS_REPORT_TO) is not the URL of a server, such as http://node1:8080, without a path; "
            "the token belongs in WDS_TOOLS_TOKEN"
        )
    return parts.scheme, parts.netloc


def reporter_of(url: str | None, read: Callable[[], dict[str, Any]]) -> Reporter | None:
    """Return a reporter for a URL, by default for the URL in ``WDS_TOOLS_REPORT_TO``; None if there is neither."""
    url = url or report_url()
    return Reporter(url, read) if url else None


def identity() -> dict[str, Any]:
    """Return which run this process belongs to, and its host.

    All processes of a job have the same run: ``WDS_TOOLS_RUN``, or the id of torchrun or Slurm, or otherwise host and
    process.
    """
    host = label(socket.gethostname())
    return {"run": label(run_name() or f"{host}-{os.getpid()}"), "host": host}


def reporting_environment(url: str | None) -> dict[str, str]:
    """Return the environment variables with which a program reports to the same server as a part of the same run.

    Args:
        url: The server; by default the one in ``WDS_TOOLS_REPORT_TO``.
    """
    url = url or report_url()
    return {"WDS_TOOLS_REPORT_TO": url, "WDS_TOOLS_RUN": str(identity()["run"])} if url else {}


def dataset_label(name: str) -> str:
    """Return the name of a dataset for reports: without credentials, and with its parent folder.

    >>> dataset_label("https://user:secret@host/data/photos/?signature=x"), dataset_label("/data/imagenet/train")
    ('photos', 'imagenet/train')
    """
    if "://" in name:
        path = urlsplit(name.partition("?")[0]).path.rstrip("/").removesuffix("/manifest.json")
        return label(path.removeprefix("/data/") if path.startswith("/data/") else path.rpartition("/")[2])
    return label("/".join([part for part in name.split("/") if part not in ("", ".", "..")][-2:]))


def label(text: str, most: int = MAX_TEXT) -> str:
    r"""Return a text as the server accepts it: printable and short.

    >>> label("run\n1")
    'run 1'
    """
    return re.sub(r"[^ -~\u00a0-\uffff]", " ", text).strip()[:most] or "?"


def _message_of(body: bytes) -> str:
    """Return the message of an error of the server."""
    try:
        return label(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return "not a server of `wds-tools serve`?"
