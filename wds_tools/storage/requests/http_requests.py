"""Requests over HTTP: ranges are received directly into the caller's buffer. Redirects, statuses, time limits."""

from __future__ import annotations

import contextlib
import http.client
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

from wds_tools.storage.requests.client_base import BaseClient, Part, Partial
from wds_tools.storage.requests.failures import (
    Failure,
    clean_url,
    code_in,
    failure_of_status,
    retry_after_seconds,
)
from wds_tools.storage.requests.http_pool import (
    Origin,
    Pool,
    head_is_complete,
    origin_of,
    proxy_auth,
    receive_into,
    speaks_tls,
)
from wds_tools.storage.requests.remote_folder import RemoteFolder
from wds_tools.storage_options import is_secret

HEADERS = {"User-Agent": "wds-tools", "Accept": "*/*", "Accept-Encoding": "identity"}
_MAX_REDIRECTS = 5
_MAX_ERROR_BYTES = 1 << 16  # of the body of an error that are read for the store's code
_NO_RANGES = "the server does not support range requests: check its settings, or download the dataset"
_HTML = "an HTML page arrived instead of data"
_HTML_REMEDY = "check the URL; a proxy or a login page may have answered instead of the server"


class HttpRequests(BaseClient):
    """Requests over HTTP. A subclass knows the URL of an object, in `_request_url`, and how a folder is listed.

    Args:
        folder: The folder. The secrets of its options appear in no message.
        headers: Headers of all requests.
        host: Host that requests are sent to, for messages; default: the one of the URL.
    """

    def __init__(
        self,
        folder: RemoteFolder,
        *,
        headers: Mapping[str, str],
        pool: Pool,
        host: str = "",
    ) -> None:
        super().__init__(folder, host=host)
        self._headers = headers
        self._pool = pool
        self._known: set[Origin] = set()  # servers that have answered, or do not speak TLS at their port

    def __del__(self) -> None:
        if getattr(self, "_pid", None) == os.getpid() and hasattr(self, "_pool"):
            self._pool.close()

    def close(self) -> None:
        """End all requests, and close the connections."""
        super().close()
        self._pool.close()

    def _fill(self, path: str, part: Part, total_bytes: int | None) -> None:
        tag = self._known_tag(path)
        range_headers = {"Range": f"bytes={part.position}-{part.stop - 1}", **({"If-Match": tag} if tag else {})}
        with self._get(path, range_headers) as response:
            if response.status == 412:
                self._raise_replaced(path, f"its ETag is no longer {tag}")
            if response.status == 416 and total_bytes is not None:
                length = re.fullmatch(r"bytes \*/(\d+)", response.headers.get("Content-Range", ""))
                self._check_version(path, None, int(length[1]) if length else None, total_bytes)
                self._raise_ended(path, part.position, total_bytes)
            if response.status != 206:
                raise self._failure(response, wants_range=True)
            response_bytes = self._check_range(path, response, part, total_bytes)
            _receive(response, part, response_bytes)

    def _check_range(self, path: str, response: http.client.HTTPResponse, part: Part, total_bytes: int | None) -> int:
        """Return the number of bytes of a response with a range."""
        _check_encoding(response)
        text = response.headers.get("Content-Range", "")
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", text.strip())
        if not match:
            raise Failure(f"the response has no valid Content-Range ({text[:100]!r})", remedy=_NO_RANGES)
        start, stop = int(match[1]), int(match[2]) + 1
        self._check_version(path, response.headers.get("ETag"), int(match[3]) if match[3] != "*" else None, total_bytes)
        if start != part.position or not start < stop <= part.stop:
            raise Failure(
                f"bytes {start:,} to {stop:,} arrived instead of {part.position:,} to {part.stop:,}", remedy=_NO_RANGES
            )
        if response.length is not None and response.length != stop - start:
            raise Failure(f"Content-Length is {response.length:,} for a range of {stop - start:,} bytes")
        return stop - start

    def _read(self, path: str, most_bytes: int, partial: Partial) -> bytes:
        range_headers = {}
        if partial.data and partial.tag:
            range_headers = {"Range": f"bytes={len(partial.data)}-", "If-Match": partial.tag}
        with self._get(path, range_headers) as response:
            if response.status in {206, 412, 416} and not _continues(response, range_headers, len(partial.data)):
                partial.data.clear()
                raise Failure(
                    f"HTTP {response.status} to a request for the rest of an object, which is read again from its start"
                )
            if response.status not in {200, 206}:
                raise self._failure(response)
            _check_encoding(response)
            if response.status == 200:
                partial.data.clear()
                tag = response.headers.get("ETag", "")
                partial.tag = "" if tag.startswith("W/") else tag
            expected = len(partial.data) + (response.length or 0)
            if expected > most_bytes:
                self._raise_too_large(path, expected, most_bytes)
            head_is_complete(response)
            while data := response.read1(1 << 18):
                partial.data += data
                if len(partial.data) > most_bytes:
                    self._raise_too_large(path, len(partial.data), most_bytes)
            if len(partial.data) < expected:
                raise Failure(f"the response ended after {len(partial.data):,} of {expected:,} bytes")
            data = bytes(partial.data)
            if _is_html(response) and not path.endswith((".html", ".htm")) and data[:1000].lstrip()[:1] == b"<":
                partial.data.clear()
                raise Failure(_HTML, remedy=_HTML_REMEDY)
            return data

    @contextmanager
    def _get(self, path: str, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        """Send a GET request and follow redirects; the connection is kept if the whole response is read."""
        url, sent = self._request_url(path), {**self._headers, **headers}
        for _ in range(_MAX_REDIRECTS):
            response, connection = self._send(url, sent)
            origin = origin_of(url)
            self._known.add(origin)
            location = response.headers.get("Location")
            if response.status in {301, 302, 303, 307, 308} and location:
                self._finish(origin, connection, response)
                url, sent = _redirected(url, location, sent)
                continue
            try:
                yield response
            except BaseException:
                response.close()
                self._pool.drop(connection)
                raise
            self._finish(origin, connection, response)
            return
        raise Failure(f"more than {_MAX_REDIRECTS} redirects, the last to {clean_url(urlunsplit(url))}", retry=False)

    def _finish(
        self,
        origin: tuple[str, str, int],
        connection: http.client.HTTPConnection,
        response: http.client.HTTPResponse,
    ) -> None:
        """Keep a connection whose response was read to the end, and close any other."""
        if not response.isclosed() and response.length is not None and response.length < _MAX_ERROR_BYTES:
            with contextlib.suppress(OSError, http.client.HTTPException, Failure):
                response.read()
        keep = response.isclosed() and not response.will_close
        response.close()
        if keep:
            self._pool.give(origin, connection)
        else:
            self._pool.drop(connection)

    def _send(
        self, url: SplitResult, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, http.client.HTTPConnection]:
        origin = origin_of(url)
        target = urlunsplit(("", "", url.path or "/", url.query, ""))
        proxy = self._pool.proxy_of(origin) if url.scheme == "http" else None
        if proxy:
            target = urlunsplit((url.scheme, url.netloc.rpartition("@")[2], url.path or "/", url.query, ""))
            if proxy.username:
                headers = {**headers, "Proxy-Authorization": proxy_auth(proxy)}
        fresh = False
        while True:
            connection, used = self._pool.take(origin, fresh=fresh)
            try:
                connection.request("GET", target, headers=dict(headers))
                return connection.getresponse(), connection
            except (http.client.RemoteDisconnected, ConnectionError):
                self._pool.drop(connection)
                if not used:
                    if url.scheme == "http" and not proxy:
                        self._check_plain(origin)
                    raise
                fresh = True  # the server closed an idle connection, which is not a failure
            except BaseException:
                self._pool.drop(connection)
                raise

    def _check_plain(self, origin: Origin) -> None:
        """Raise a failure if a server that closes connections without an answer speaks TLS at this port."""
        if origin in self._known:
            return
        self._known.add(origin)
        if speaks_tls(origin):
            remedy = "write https:// instead of http://"
            raise Failure("the server speaks TLS at this port", retry=False, remedy=remedy)

    def _failure(self, response: http.client.HTTPResponse, *, wants_range: bool = False) -> Failure:
        """Return the failure for a status other than the one that was expected."""
        status = response.status
        if status < 300:
            if _is_html(response):
                return Failure(_HTML, status=status, remedy=_HTML_REMEDY)
            if status == 200 and wants_range:
                reason = "the server ignores range requests (HTTP 200 instead of 206)"
                return Failure(reason, retry=False, status=status, remedy=_NO_RANGES)
            return Failure(f"unexpected HTTP {status}", status=status)
        body = b""
        with contextlib.suppress(OSError, http.client.HTTPException, Failure):
            head_is_complete(response)
            body = response.read(_MAX_ERROR_BYTES)
        code, message = code_in(body, dict(response.headers.items()))
        wait = retry_after_seconds(response.headers.get("Retry-After"), time.time())
        return failure_of_status(status, code=code, message=message, retry_after=wait, secrets=self._secrets)

    def _request_url(self, path: str) -> SplitResult:
        """Return the URL of an object, with its query."""
        raise NotImplementedError


def _redirected(url: SplitResult, location: str, headers: Mapping[str, str]) -> tuple[SplitResult, dict[str, str]]:
    """Return URL and headers of a redirected request. Another server gets no credentials."""
    try:
        target = urlsplit(urljoin(urlunsplit(url), location))._replace(fragment="")
        origin = origin_of(target)
    except ValueError:
        raise Failure(f"redirected to an invalid URL: {clean_url(location)[:200]}", retry=False) from None
    if (
        target.scheme not in {"http", "https"}
        or not target.hostname
        or (url.scheme, target.scheme) == ("https", "http")
    ):
        reason = f"redirected to {clean_url(urlunsplit(target))[:200]}, which is not followed from {url.scheme}://"
        raise Failure(reason, retry=False)
    if origin != origin_of(url):
        headers = {name: value for name, value in headers.items() if not is_secret(name)}
    return target, dict(headers)


def _receive(response: http.client.HTTPResponse, part: Part, length: int) -> None:
    """Receive the body of a range directly into the buffer."""
    head_is_complete(response)
    stop = part.position + length
    while part.position < stop:
        if response.chunked:
            data = response.read1(min(stop - part.position, 1 << 18))
            part.add(data)
            count = len(data)
        else:
            count = receive_into(response, part.remaining()[: stop - part.position])
            part.position += count
        if not count:
            raise Failure(f"the response ended {stop - part.position:,} bytes too early")
    if not response.chunked:
        response.length = 0


def _continues(response: http.client.HTTPResponse, range_headers: Mapping[str, str], position: int) -> bool:
    """Return whether a response is the rest of an object, which begins at a position."""
    match = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return bool(range_headers) and response.status == 206 and match is not None and int(match[1]) == position


def _check_encoding(response: http.client.HTTPResponse) -> None:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        remedy = "store the object uncompressed, or switch compression off for it"
        raise Failure(
            f"the server compresses the object (Content-Encoding: {encoding[:50]})", retry=False, remedy=remedy
        )


def _is_html(response: http.client.HTTPResponse) -> bool:
    return response.headers.get_content_type() in {"text/html", "application/xhtml+xml"}
