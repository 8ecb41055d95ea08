"""A client for ``http://`` and ``https://``."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit, urlunsplit

from wds_tools.errors import OptionError
from wds_tools.options import TOKEN_REALM, server_token, token_remedy
from wds_tools.storage.requests.client_base import Partial
from wds_tools.storage.requests.failures import Failure, clean_url
from wds_tools.storage.requests.http_pool import Pool, basic_auth, head_is_complete
from wds_tools.storage.requests.http_requests import HEADERS, HttpRequests
from wds_tools.storage.requests.remote_folder import RemoteFolder

OPTIONS = ("client_kwargs", "encoded", "headers")
CLIENT_OPTIONS = ("auth", "headers")
_MAX_LIST_BYTES = 1 << 26
_SAFE = "?!$%&'()*+,/:;=@~-._"  # characters of a path that are not quoted; % begins what is quoted already


class HttpClient(HttpRequests):
    """Requests to an HTTP server.

    Args:
        folder: The folder. A query of its URL, such as a signature, is sent with each request. The token for its server
            in ``WDS_TOOLS_TOKEN`` is sent too, unless the URL or the options have other credentials. The options are
            ``headers``; ``client_kwargs`` with ``headers`` and ``auth``, a pair or an ``aiohttp.BasicAuth``;
            ``encoded``: True if the URL and all paths are quoted already. A path may then end with a query.

    Raises:
        OptionError: The URL or an option is invalid.
    """

    def __init__(self, folder: RemoteFolder) -> None:
        self._base = _split(folder.url)
        self._encoded = bool(folder.options.get("encoded", False))
        headers = _headers_of(self._base, folder.options)
        credentials = {
            "sent": {"Authorization": headers.get("Authorization", "")}
        }  # they may come from the environment
        folder = replace(folder, options={**folder.options, **credentials})
        super().__init__(folder, headers=headers, pool=Pool(folder.policy))

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
        below = (urljoin(base, link).partition("?")[0].partition("#")[0] for link in links.targets)
        names = {unquote(url.removeprefix(base)) for url in below if url.startswith(base)}
        return [name for name in names if name and "/" not in name]

    def _request_url(self, path: str) -> SplitResult:
        name = path if self._encoded else quote(path, safe=re.sub("[%?]", "", _SAFE))
        base = self._base.path if self._encoded else quote_again(self._base.path)
        full = f"{base.rstrip('/')}/{name.lstrip('/')}" if path else base
        return self._base._replace(path=full or "/", fragment="")

    def _failure(self, response: http.client.HTTPResponse, *, wants_range: bool = False) -> Failure:
        failure = super()._failure(response, wants_range=wants_range)
        if response.status == 401 and TOKEN_REALM in response.headers.get("WWW-Authenticate", ""):
            failure.remedy = token_remedy(self._base.scheme, self._base.netloc.rpartition("@")[2])
        return failure

    def _url_of(self, path: str) -> str:
        url = super()._url_of(path)
        return clean_url(url) if self._encoded else url  # a query may contain a signature


def with_server_token(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options for another client of a URL, so that it sends the token of `HttpClient`, if that sends one.

    The other client must drop the header ``Authorization`` when it is redirected to another server.

    Raises:
        OptionError: The URL or an option is invalid.
    """
    split = _split(url)
    token = server_token(split.scheme, split.netloc.rpartition("@")[2])
    value = f"Bearer {token}"
    if token is None or _headers_of(split, options).get("Authorization") != value:
        return dict(options)
    return {**options, "headers": {**(options.get("headers") or {}), "Authorization": value}}


def quote_again(path: str) -> str:
    """Quote the path or the query of a URL, except for what is quoted already.

    >>> quote_again("/a b/100%/a%20b")
    '/a%20b/100%25/a%20b'
    """
    return quote(re.sub(r"%(?![0-9A-Fa-f]{2})", "%25", path), _SAFE)


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
    headers = dict(HEADERS)
    if token := server_token(url.scheme, url.netloc.rpartition("@")[2]):
        headers["Authorization"] = f"Bearer {token}"
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
            for header in [header for header in headers if header.lower() == str(name).lower()]:
                del headers[header]
            headers[str(name)] = str(value)
    return headers


def _check_names(options: Any, allowed: tuple[str, ...], what: str) -> None:
    if not isinstance(options, Mapping):
        raise OptionError(f"{what} is not a dict; allowed keys are {', '.join(allowed)}")
    unknown = ", ".join(sorted(map(str, set(options) - set(allowed))))
    if unknown:
        raise OptionError(f"unknown {what} for http:// and https://: {unknown}; allowed are {', '.join(allowed)}")


class _Links(HTMLParser):
    """Collects the targets of links."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the target of a link."""
        self.targets += [value for name, value in attrs if tag == "a" and name == "href" and value]
