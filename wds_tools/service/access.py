"""Who may request what: host names, origins, sizes of headers, and tokens. Every request passes here first.

Each route declares what a request needs. The dataset that a request is about is found here too, so that a route
answers for the dataset that was checked.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain

from aiohttp import hdrs, web

from wds_tools.options import TOKEN_REALM
from wds_tools.service.config import Limits
from wds_tools.service.contents import Target, names_of
from wds_tools.service.responses import error_response
from wds_tools.service.tokens import Token, TokenChecker

NOT_FOUND = "no such dataset or file: the catalogue at /api/datasets lists the datasets, their manifests the files"
_CHALLENGE = {"WWW-Authenticate": f'Bearer {TOKEN_REALM}, Basic {TOKEN_REALM}, charset="UTF-8"'}
_HOW_TO_AUTHORIZE = "send one in the header Authorization, after Bearer"
_SAFE_METHODS = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class Grant:
    """What a request may read.

    Attributes:
        token: The token of the request; None: the service has no tokens, and everything is allowed.
    """

    token: Token | None = None

    def allows(self, dataset: str) -> bool:
        """Return whether a dataset may be read, even one that does not exist."""
        return self.token is None or self.token.allows(dataset)

    @property
    def allows_all(self) -> bool:
        """Whether everything may be read."""
        return self.token is None or self.token.allows_all

    @property
    def owner(self) -> str:
        """Id of the token; "" without tokens."""
        return self.token.id if self.token else ""


_ALL = Grant()

GRANT = web.RequestKey("grant", Grant)
"""Set for every request that reaches a route that is not `PUBLIC`."""

TARGET = web.RequestKey("target", Target)
"""Set for every request to a route that is about one dataset."""


@dataclass(frozen=True, slots=True)
class Access:
    """What a request needs, so that its route is called.

    Attributes:
        needs_token: It needs a valid token, if the service has tokens.
        needs_all: The token has to be for all datasets.
        target_of: Returns the dataset that the token has to be for; None if the path has no valid name of one. Without
            this function, the route shows only what the `Grant` of a request allows.
        refuse: Makes the response to a request that is refused, from status and message.
    """

    needs_token: bool = True
    needs_all: bool = False
    target_of: Callable[[web.Request], Target | None] | None = None
    refuse: Callable[[int, str], web.Response] = error_response


PUBLIC = Access(needs_token=False)
ANY_TOKEN = Access()
ALL_DATASETS = Access(needs_all=True)


def dataset_after(
    prefix: str, *, parts: int = 1, refuse: Callable[[int, str], web.Response] = error_response
) -> Access:
    """Return what a request needs if its path has a prefix, the name of a dataset, and some more parts."""
    return Access(
        target_of=lambda request: names_of(request.rel_url.raw_path.removeprefix(prefix), parts=parts), refuse=refuse
    )


@dataclass(frozen=True, slots=True)
class Route:
    """One route of the service.

    Attributes:
        method: GET, which includes HEAD, or POST.
        path: Its path, with variable parts as in aiohttp.
        handler: Called for a request that `access` allows.
        name: Its name in metrics and in the access log.
        access: What a request needs.
    """

    method: str
    path: str
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    name: str
    access: Access


class Gate:
    """Checks requests before a route is called.

    Args:
        host_names: Further names of the service in the header ``Host``. IP addresses and the name of the machine are
            always allowed: a page of another site can let its own name point to this machine, but not these.
        tokens: Finds tokens; None: everyone may read everything.
    """

    def __init__(self, limits: Limits, *, host_names: Iterable[str] = (), tokens: TokenChecker | None = None) -> None:
        machine = socket.gethostname().lower()
        self._limits = limits
        self._is_own_host = lru_cache(maxsize=256)(self._check_host)
        self._hosts = {"localhost", machine, machine.partition(".")[0], *(name.lower() for name in host_names)}
        self._tokens = tokens

    def check(self, request: web.Request, access: Access) -> web.Response | None:
        """Return the response to a refused request; None if it is allowed. Then `GRANT` and `TARGET` are set."""
        if access.target_of is not None and (target := access.target_of(request)) is not None:
            request[TARGET] = target
        return self._check_head(request) or self._check_token(request, access) or _check_grant(request, access)

    def _check_head(self, request: web.Request) -> web.Response | None:
        fields = request.raw_headers
        if sum(map(len, chain.from_iterable(fields))) + 4 * len(fields) > self._limits.head_bytes:
            return error_response(431, f"the headers have more than {self._limits.head_bytes:,} bytes")
        if not self._is_own_host(request.headers.get(hdrs.HOST, "")):
            return error_response(
                421, "the name in the header Host is not a name of this service: start it with --allow-host NAME"
            )
        if request.method not in _SAFE_METHODS and not _is_same_origin(request):
            return error_response(403, "the request comes from a page of another site")
        return None

    def _check_token(self, request: web.Request, access: Access) -> web.Response | None:
        if not access.needs_token:
            return None
        if self._tokens is None:
            request[GRANT] = _ALL
            return None
        secret = _secret_of(request.headers.getall("Authorization", []))
        token = self._tokens.find(secret)
        if token is None:
            fact = "the token is wrong, has expired or was revoked" if secret else "the request has no token"
            return error_response(401, f"{fact}: {_HOW_TO_AUTHORIZE}", _CHALLENGE)
        request[GRANT] = Grant(token)
        return None

    def _check_host(self, host: str) -> bool:
        match = re.fullmatch(r"(\[[0-9A-Fa-f:.]{2,45}\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?", host)
        if not match:
            return False
        name = match[1].strip("[]").lower()
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name.rstrip(".") in self._hosts
        return True


def _check_grant(request: web.Request, access: Access) -> web.Response | None:
    if access.needs_all and not request[GRANT].allows_all:
        return access.refuse(403, "this needs a token for all datasets")
    if access.target_of is None:
        return None
    if TARGET not in request:
        return access.refuse(404, NOT_FOUND)
    if not request[GRANT].allows(request[TARGET].dataset):
        return access.refuse(403, "the token is not for this dataset")
    return None


def _is_same_origin(request: web.Request) -> bool:
    """Return whether a request is not from a page of another site. Clients that are not browsers send no Origin."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("Origin")
    return origin is None or origin.lower() == f"{request.scheme}://{request.headers.get('Host', '')}".lower()


def _secret_of(fields: list[str]) -> str:
    """Return the token of the header Authorization: as Bearer, or as the password of Basic, which browsers send."""
    scheme, _, value = (fields[0] if len(fields) == 1 else "").partition(" ")
    value = value.strip()
    if scheme.lower() == "bearer":
        return value
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return ""
    return ""
