"""Failed requests to storage: whether another attempt can help, and the text of the error. No secrets in any text."""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from wds_tools.storage_options import redacted

_RETRIED = {408, 425, 429}  # and all of 500 to 599
_RETRIED_CODES = {"RequestTimeout", "SlowDown", "InternalError", "ServerBusy"}  # S3 sends RequestTimeout with HTTP 400
DAMAGED = "damaged"
"""The code of `wds-tools serve` for a file that is missing or damaged there, sent with HTTP 500."""

_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "authError"}
_NO_BUCKET = {"NoSuchBucket", "ContainerNotFound"}
_REMEDIES = {
    DAMAGED: "repair the dataset on the server: copy or pack it again",
    **dict.fromkeys(_NO_BUCKET, "the bucket or container does not exist: check its name, the endpoint and the account"),
    **dict.fromkeys(("InvalidAccessKeyId", "SignatureDoesNotMatch"), "check the access key and the secret key"),
    "RequestTimeTooSkewed": "set the clock of this machine",
}
_REGION = {
    "PermanentRedirect",
    "TemporaryRedirect",
    "AuthorizationHeaderMalformed",
    "AuthorizationQueryParametersError",
}
_PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, NotImplementedError)
CHECK_NETWORK = "check the network and the state of the storage service"
_LIBRARY_ERRORS: list[tuple[type[BaseException], bool, str, str]] = [  # type, retried, what happened, remedy
    (
        ssl.SSLCertVerificationError,
        False,
        "the certificate of the server is not trusted",
        "check it; SSL_CERT_FILE or REQUESTS_CA_BUNDLE names a file of trusted certificates",
    ),
    (socket.gaierror, True, "the host name was not found", "check the host name, and the DNS of this machine"),
    (TimeoutError, True, "no response in time", CHECK_NETWORK),
]
_MAX_REASON = 300  # characters of a text that a server or a library wrote
_URL = re.compile(r"[A-Za-z][\w+.-]*://[^\s\"'<>]+")
_QUERY = re.compile(r"\?[\w.%~-]+=[^\s\"'<>)]*")
_SCHEME_TOKEN = re.compile(r"(?i)\b(bearer|basic|sharedkey|aws4-hmac-sha256)[ :]+[^\s\"'<>]+")


class Failure(Exception):  # noqa: N818 - it is data about an error, which the retry policy turns into an error
    """A request that failed.

    Args:
        reason: What happened, without secrets.
        retry: Whether another attempt can help.
        code: The store's own code, such as ``SlowDown``.
        retry_after: Seconds to wait, from the header ``Retry-After``.
        remedy: What the user can do.
        missing: The object does not exist.
        received: Bytes of the object that arrived before the failure.
    """

    def __init__(
        self,
        reason: str,
        *,
        retry: bool = True,
        status: int | None = None,
        code: str = "",
        retry_after: float | None = None,
        remedy: str = "",
        missing: bool = False,
        received: int = 0,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.remedy = remedy
        self.missing = missing
        self.received = received


def clean_url(url: str) -> str:
    """Return a URL without user, password, query and fragment: these may be secrets.

    >>> clean_url("https://me:secret@host:8080/train/a.tar?X-Amz-Signature=123#x")
    'https://host:8080/train/a.tar'
    """
    head, separator, remaining = url.partition("://")
    if not separator:
        return url.partition("?")[0]
    authority, slash, path = re.split(r"[?#]", remaining, maxsplit=1)[0].partition("/")
    return f"{head}://{authority.rpartition('@')[2]}{slash}{path}"


def host_of(url: str) -> str:
    """Return host and port of a URL.

    >>> host_of("https://me:secret@host:8080/train")
    'host:8080'
    """
    return urlsplit(clean_url(url)).netloc


def without_secrets(text: str, secrets: frozenset[str] = frozenset()) -> str:
    """Remove secrets, the queries of URLs and credentials of requests from a text that somebody else wrote.

    >>> without_secrets("GET https://u:p@host/a?sig=1: Bearer abc was refused for k123", frozenset({"k123"}))
    'GET https://host/a Bearer *** was refused for ***'
    """
    text = _URL.sub(lambda match: clean_url(match[0]), redacted(text, secrets))
    text = _SCHEME_TOKEN.sub(r"\1 ***", _QUERY.sub("", text))
    text = " ".join(text.split())
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}…"


def retry_after_seconds(value: str | None, now: float) -> float | None:
    """Return the seconds of a ``Retry-After`` header, a number or an HTTP date; None if it is neither.

    Args:
        value: Value of the header.
        now: Current time in seconds since 1970.

    >>> retry_after_seconds("120", 0), retry_after_seconds("Thu, 01 Jan 1970 00:01:00 GMT", 50)
    (120.0, 10.0)
    """
    text = (value or "").strip()
    if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", text):
        return float(text)
    try:
        date = parsedate_to_datetime(text)
        date = date if date.tzinfo else date.replace(tzinfo=UTC)
        return max(0.0, (date - datetime.fromtimestamp(now, UTC)).total_seconds())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def code_in(body: bytes, headers: Mapping[str, str]) -> tuple[str, str]:
    """Return the store's code and message of an error: from XML, Google's JSON, or Azure's header.

    >>> code_in(b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>", {})
    ('ExpiredToken', 'The token has expired.')
    >>> code_in(b'{"error": {"message": "Slow down.", "errors": [{"reason": "rateLimitExceeded"}]}}', {})
    ('rateLimitExceeded', 'Slow down.')
    """
    text = body.decode("utf-8", "replace")
    if text.lstrip().startswith("{"):
        try:
            error = json.loads(text).get("error") or {}
        except (ValueError, AttributeError):
            error = {}
        if isinstance(error, dict):
            reasons = [item.get("reason") for item in error.get("errors") or [] if isinstance(item, dict)]
            status = error.get("status")  # Google's is a name, and that of `wds-tools serve` is a number
            default = error.get("reason") or (status if isinstance(status, str) else "")
            code = next((reason for reason in reasons if reason), default)
            return str(code)[:100], str(error.get("message") or "")
        return str(error)[:100], ""
    code = re.search(r"<Code>\s*([^<]{1,100}?)\s*</Code>", text)
    message = re.search(r"<Message>\s*([^<]{1,1000}?)\s*</Message>", text)
    return (code[1] if code else _azure_code(headers), message[1] if message else "")


def _azure_code(headers: Mapping[str, str]) -> str:
    return next((value[:100] for name, value in headers.items() if name.lower() == "x-ms-error-code"), "")


def failure_of_status(
    status: int,
    *,
    code: str = "",
    message: str = "",
    retry_after: float | None = None,
    secrets: frozenset[str] = frozenset(),
) -> Failure:
    """Return the failure for an HTTP status that is not a success."""
    try:
        phrase = http.client.responses[status]
    except KeyError:
        phrase = ""
    detail = ": ".join(part for part in (code, without_secrets(message, secrets)) if part)
    reason = f"HTTP {status} {phrase}".rstrip() + (f" ({detail})" if detail else "")
    return Failure(
        reason,
        retry=code != DAMAGED and (status in _RETRIED or 500 <= status <= 599 or code in _RETRIED_CODES),
        status=status,
        code=code,
        retry_after=retry_after,
        remedy=_remedy_of_status(status, code),
        missing=status in {404, 410} and code not in _NO_BUCKET,
    )


def _remedy_of_status(status: int, code: str) -> str:  # noqa: PLR0911 - one remedy per line
    if code in _EXPIRED or (code == "InvalidToken" and status in {400, 403}):
        return "the credentials have expired: renew them, then start again"
    if code in _REMEDIES:
        return _REMEDIES[code]
    if code in _REGION or (status in {301, 307} and not code):
        return "the bucket may be in another region: set AWS_REGION, or the region_name of client_kwargs"
    if status == 401:
        return "check that credentials are configured, and that they have not expired"
    if status == 403:
        return "check the credentials and their permission to read this URL"
    if status == 407:
        return "check user and password of the proxy in the environment (HTTPS_PROXY, HTTP_PROXY)"
    if status == 429 or code == "SlowDown":
        return "the store limits the rate of requests: use fewer processes, or another prefix"
    if status in _RETRIED or status >= 500:
        return "check the state of the storage service, then start again"
    return "check the URL and the storage options"


def failure_of(  # noqa: PLR0911 - one kind of error per return
    error: BaseException, secrets: frozenset[str] = frozenset()
) -> Failure:
    """Classify an exception of a client library.

    An error that is not known to be permanent is worth another attempt.
    """
    if isinstance(error, Failure):
        return error
    chain = list(_chain(error))
    for cause in chain:
        status, code, message = _response_of(cause)
        if status is not None:
            text = message or without_secrets(str(error) or str(cause), secrets)
            failure = failure_of_status(status, code=code, message=text, secrets=secrets)
            if isinstance(error, _PERMANENT):
                failure.retry = False
            return failure
    text = without_secrets(str(error), secrets) or "no reason given"
    reason = f"{type(error).__name__}: {text}"
    for kind, retry, what, remedy in _LIBRARY_ERRORS:
        if any(isinstance(cause, kind) for cause in chain):
            return Failure(f"{what}: {text}", retry=retry, remedy=remedy)
    if isinstance(error, FileNotFoundError):
        return Failure(text, retry=False, missing=True)
    if any("Credential" in type(cause).__name__ for cause in chain):
        return Failure(reason, retry=False, remedy=_remedy_of_status(401, ""))
    permanent = isinstance(error, (*_PERMANENT, ImportError, TypeError, ValueError))
    if permanent and not isinstance(error, json.JSONDecodeError):  # HTML where JSON was expected
        return Failure(
            reason, retry=False, remedy=_remedy_of_status(403 if isinstance(error, PermissionError) else 0, "")
        )
    return Failure(reason, remedy=CHECK_NETWORK)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _response_of(error: BaseException) -> tuple[int | None, str, str]:
    """Return HTTP status, code and message of an error of botocore, aiohttp, azure-core, gcsfs, requests or httpx."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        details = response.get("Error", {})
        return _as_status(status), str(details.get("Code", "")), str(details.get("Message", ""))
    code = getattr(error, "error_code", "") or ""  # azure-core
    for owner, name in ((error, "status_code"), (error, "status"), (response, "status_code"), (error, "code")):
        status = _as_status(getattr(owner, name, None))
        if status is not None:
            return status, str(getattr(code, "value", code)), str(getattr(error, "message", "") or "")
    return None, "", ""


def _as_status(value: Any) -> int | None:
    try:
        status = int(value)
    except (TypeError, ValueError):
        return None
    return status if 300 <= status <= 599 else None
