"""A client for ``http://`` and ``https://``: ranges are received directly into the caller's buffer."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html.parser import HTMLParser
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit

from wds_tools.errors import OptionError
from wds_tools.storage.client_base import BaseClient, Part, Partial
from wds_tools.storage.failures import (
    SECRET_NAMES,
    Failure,
    clean_url,
    code_in,
    failure_of_status,
    retry_after_seconds,
)
from wds_tools.storage.http_pool import Pool, basic_auth, head_is_complete, origin_of, proxy_auth
from wds_tools.storage.retry import RetryPolicy

OPTIONS = ("client_kwargs", "encoded", "headers")
CLIENT_OPTIONS = ("auth", "headers")
_MAX_REDIRECTS = 5
_MAX_ERROR_BYTES = 1 << 16  # of the body of an error that are read for the store's code
_MAX_LIST_BYTES = 1 << 26
_SAFE = "!$%&'()*+,/:;=@~-._"  # characters of a path that are not quoted; % begins what is quoted already
_NO_RANGES = "the server does not support range requests: check its settings, or download the dataset"


class HttpClient(BaseClient):
    """Requests to an HTTP server.

    Args:
        url: URL of the folder. A query, such as a signature, is sent with each request.
        storage_options: ``headers``; ``client_kwargs`` with ``headers`` and ``auth``, a pair or an
            ``aiohttp.BasicAuth``; ``encoded``: True if the URL is quoted already.
        policy: When a request is repeated.
        stop: Ends all waits between two attempts.

    Raises:
        OptionError: The URL or an option is invalid.
    """

    def __init__(
        self,
        url: str,
        storage_options: Mapping[str, Any],
        policy: RetryPolicy,
        *,
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__(url, storage_options, policy, stop=stop)
        self._base = _split(url)
        self._headers = _headers_of(self._base, storage_options)
        self._encoded = bool(storage_options.get("encoded", False))
        self._pool = Pool(policy)

    def close(self) -> None:
        """End all requests, and close the connections."""
        super().close()
        self._pool.close()

    def _fill(self, path: str, part: Part, total_bytes: int | None) -> None:
        tag = self._known_tag(path)
        wanted = {"Range": f"bytes={part.position}-{part.stop - 1}", **({"If-Match": tag} if tag else {})}
        with self._get(path, wanted) as response:
            if response.status == 412:
                self._raise_replaced(path, f"its ETag is no longer {tag}")
            if response.status == 416:
                length = re.fullmatch(r"bytes \*/(\d+)", response.headers.get("Content-Range", ""))
                self._check_version(path, None, int(length[1]) if length else None, total_bytes)
            if response.status != 206:
                raise self._failure(response, wants_range=True)
            length_of_answer = self._check_range(path, response, part, total_bytes)
            _receive(response, part, length_of_answer)

    def _check_range(self, path: str, response: http.client.HTTPResponse, part: Part, total_bytes: int | None) -> int:
        """Return the number of bytes of an answer with a range."""
        _check_encoding(response)
        text = response.headers.get("Content-Range", "")
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", text.strip())
        if not found:
            raise Failure(f"the answer has no valid Content-Range ({text[:100]!r})", remedy=_NO_RANGES)
        start, stop = int(found[1]), int(found[2]) + 1
        self._check_version(path, response.headers.get("ETag"), int(found[3]) if found[3] != "*" else None, total_bytes)
        if start != part.position or not start < stop <= part.stop:
            raise Failure(
                f"bytes {start:,} to {stop:,} arrived instead of {part.position:,} to {part.stop:,}", remedy=_NO_RANGES
            )
        if response.length is not None and response.length != stop - start:
            raise Failure(f"Content-Length is {response.length:,} for a range of {stop - start:,} bytes")
        return stop - start

    def _read(self, path: str, most_bytes: int, partial: Partial) -> bytes:
        wanted = {}
        if partial.data and partial.tag:
            wanted = {"Range": f"bytes={len(partial.data)}-", "If-Match": partial.tag}
        with self._get(path, wanted) as response:
            if response.status in {206, 412, 416} and not _continues(response, wanted, len(partial.data)):
                partial.data.clear()
                raise Failure(f"HTTP {response.status} to the rest of an object, which is read from its start again")
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
                raise Failure(f"the answer ended after {len(partial.data):,} of {expected:,} bytes")
            data = bytes(partial.data)
            if _is_html(response) and not path.endswith((".html", ".htm")) and data[:1000].lstrip()[:1] == b"<":
                partial.data.clear()
                raise Failure(_HTML, remedy=_HTML_REMEDY)
            return data

    def _list(self, folder: str) -> Sequence[str]:
        partial = Partial()
        page = f"{folder.strip('/')}/" if folder.strip("/") else "/"
        with self._get(page, {}) as response:
            if response.status != 200:
                raise self._failure(response)
            head_is_complete(response)
            while data := response.read1(1 << 18):
                partial.data += data
                if len(partial.data) > _MAX_LIST_BYTES:
                    raise Failure(f"the page has more than {_MAX_LIST_BYTES:,} bytes", retry=False)
        base = urlunsplit(self._request_url(page)._replace(query=""))
        links = _Links()
        links.feed(partial.data.decode("utf-8", "replace"))
        below = (urljoin(base, link).partition("?")[0].partition("#")[0] for link in links.found)
        names = {unquote(url.removeprefix(base)) for url in below if url.startswith(base)}
        return [name for name in names if name and "/" not in name]

    def _request_url(self, path: str) -> SplitResult:
        name = path if self._encoded else quote(path, safe=_SAFE.replace("%", ""))
        base = (
            self._base.path if self._encoded else quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", self._base.path), _SAFE)
        )
        full = f"{base.rstrip('/')}/{name.lstrip('/')}" if path else base
        return self._base._replace(path=full or "/", fragment="")

    @contextmanager
    def _get(self, path: str, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        """Send a GET request and follow redirects; the connection is kept if the whole answer is read."""
        url, sent = self._request_url(path), {**self._headers, **headers}
        for _ in range(_MAX_REDIRECTS):
            response, connection = self._send(url, sent)
            origin = origin_of(url)
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
        """Keep a connection whose answer was read to its end, close any other."""
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
                    raise
                fresh = True  # the server closed a connection that was idle: that is no failure
            except BaseException:
                self._pool.drop(connection)
                raise

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


_HTML = "an HTML page arrived instead of data"
_HTML_REMEDY = "check the URL; a proxy or a login page may answer in place of the server"


def _split(url: str) -> SplitResult:
    try:
        split = urlsplit(url)
        valid = split.hostname and split.port != 0
    except ValueError:
        valid = None
    if not valid:
        raise OptionError(f"{clean_url(url)!r} is not a valid URL; allowed is https://host/folder")
    return split


def _headers_of(url: SplitResult, options: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers of all requests; check the options."""
    client = options.get("client_kwargs") or {}
    _check_names(options, OPTIONS, "storage option")
    _check_names(client, CLIENT_OPTIONS, "client_kwargs")
    headers = {"User-Agent": "wds-tools", "Accept": "*/*", "Accept-Encoding": "identity"}
    if url.username:
        headers["Authorization"] = basic_auth(unquote(url.username), unquote(url.password or ""))
    auth = client.get("auth")
    if auth is not None:
        if not isinstance(auth, tuple | list) or not 2 <= len(auth) <= 3:
            raise OptionError("client_kwargs 'auth' is not a pair (user, password) or an aiohttp.BasicAuth")
        headers["Authorization"] = basic_auth(*map(str, auth))
    for given in (client.get("headers") or {}, options.get("headers") or {}):
        for name, value in dict(given).items():
            if re.search(r"[\r\n]", f"{name}{value}"):
                raise OptionError(f"the header {str(name).splitlines()[0]!r} contains a line break")
            for known in [known for known in headers if known.lower() == str(name).lower()]:
                del headers[known]
            headers[str(name)] = str(value)
    return headers


def _check_names(options: Any, allowed: tuple[str, ...], what: str) -> None:
    if not isinstance(options, Mapping):
        raise OptionError(f"{what} is not a dict; allowed keys are {', '.join(allowed)}")
    unknown = ", ".join(sorted(map(str, set(options) - set(allowed))))
    if unknown:
        raise OptionError(f"unknown {what} for http:// and https://: {unknown}; allowed are {', '.join(allowed)}")


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
        headers = {name: value for name, value in headers.items() if not SECRET_NAMES.search(name)}
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
            # HTTPResponse.readinto does not return before its whole buffer is full; this one returns what has arrived.
            count = response.fp.readinto1(part.rest()[: stop - part.position])
            part.position += count
        if not count:
            raise Failure(f"the answer ended {stop - part.position:,} bytes too early")
    if not response.chunked:
        response.length = 0


def _continues(response: http.client.HTTPResponse, wanted: Mapping[str, str], position: int) -> bool:
    """Return whether an answer is the rest of an object, which begins at a position."""
    found = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return bool(wanted) and response.status == 206 and found is not None and int(found[1]) == position


def _check_encoding(response: http.client.HTTPResponse) -> None:
    encoding = response.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in {"", "identity"}:
        remedy = "store the object uncompressed, or switch compression off for it"
        raise Failure(
            f"the server compresses the object (Content-Encoding: {encoding[:50]})", retry=False, remedy=remedy
        )


def _is_html(response: http.client.HTTPResponse) -> bool:
    return response.headers.get_content_type() in {"text/html", "application/xhtml+xml"}


class _Links(HTMLParser):
    """Collects the targets of links."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the target of a link."""
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]
