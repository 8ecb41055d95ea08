"""Options of file systems, by the names of fsspec: parsed from the command line, and kept out of messages.

They may contain secrets. So no message contains a value, and the command line, which other users of the machine can
read, accepts only options that are not secret.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, unquote

from wds_tools.errors import OptionError

_HIDDEN = "***"
_MIN_HIDDEN = 4  # characters; a shorter value would remove parts of ordinary words
_SECRET = re.compile(
    "auth|bearer|connectionstring|cookie|credential|headers|key|passphrase|passwd|password|pwd|sas|secret|signature|token"
)
_NOT_SECRET = {"ssekmskeyid", "tokenservice", "lookforkeys", "maxkeys"}
_NOT_SECRET_TOKENS = ("anon", "cloud", "google_default")  # names of methods in gcsfs
_USER_IN_URL = re.compile(r"[a-z][a-z0-9+.-]*://.*@", re.IGNORECASE)  # a password may contain a slash
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?")
_NAMES = re.compile(r"[^.=\s]+(\.[^.=\s]+)*")
_REMEDIES = {
    "key": "AWS_ACCESS_KEY_ID, or the file ~/.aws/credentials",
    "secret": "AWS_SECRET_ACCESS_KEY, or the file ~/.aws/credentials",
    "token": "AWS_SESSION_TOKEN for S3, or GOOGLE_APPLICATION_CREDENTIALS with the path of a key file for Google",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "sas_token": "AZURE_STORAGE_SAS_TOKEN",
    "connection_string": "AZURE_STORAGE_CONNECTION_STRING",
    "client_secret": "AZURE_STORAGE_CLIENT_SECRET",
}
_OTHER_REMEDY = "FSSPEC_<SCHEME>_<NAME>, such as FSSPEC_SFTP_PASSWORD, or a file in ~/.config/fsspec"


def parse_storage_options(words: Iterable[str]) -> dict[str, Any]:
    """Return options from the words of a command line: ``key=value``, nested as ``client_kwargs.endpoint_url=...``.

    >>> parse_storage_options(["anon=true", "client_kwargs.endpoint_url=http://localhost:9000", "max_concurrency=4"])
    {'anon': True, 'client_kwargs': {'endpoint_url': 'http://localhost:9000'}, 'max_concurrency': 4}

    Raises:
        OptionError: A word without ``=``, a name that is given twice, or a secret.
    """
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not _NAMES.fullmatch(name):
            raise OptionError(
                "a --storage-option is not KEY=VALUE; expected words such as anon=true or "
                "client_kwargs.endpoint_url=http://localhost:9000"
            )
        _refuse_secret(name, value)
        *outer, last = name.split(".")
        inner = options
        for part in outer:
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                raise OptionError(f"--storage-option {part} has a value and {name}; only one of the two is allowed")
        if last in inner:
            raise OptionError(f"--storage-option {name} is given twice; give it once")
        inner[last] = _parse_value(value)
    return options


def check_storage_options(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of options that were given in Python; None gives no options."""
    if options is None:
        return {}
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise OptionError(
            f"storage_options= is of type {type(options).__name__}; expected a dict of fsspec options by name, such as "
            "{'anon': True}"
        )
    return dict(options)


def is_secret(name: str) -> bool:
    """Return whether an option may be a secret, from its name.

    >>> [is_secret(name) for name in ("key", "client_kwargs.aws_secret_access_key", "SSECustomerKey")]
    [True, True, True]
    >>> [is_secret(name) for name in ("anon", "client_kwargs.endpoint_url", "s3_additional_kwargs.SSEKMSKeyId")]
    [False, False, False]
    """
    return any(map(_is_secret_part, name.split(".")))


def secrets_of(options: Mapping[str, Any], url: str = "") -> frozenset[str]:
    """Return the texts in storage options and in a URL that no message may contain.

    >>> sorted(secrets_of({"key": "AKIA", "anon": False, "client_kwargs": {"headers": {"X-Own": "abcd"}}}))
    ['AKIA', 'abcd']
    """
    user_info = url.partition("://")[2].partition("/")[0].rpartition("@")[0]
    secrets = {*_secret_texts(options), *user_info.split(":", 1)}
    return frozenset(text for text in {*secrets, *map(unquote, secrets)} if len(text) >= _MIN_HIDDEN)


def redacted(text: str, secrets: Iterable[str]) -> str:
    """Return a text in which secrets are replaced by ``***``.

    >>> redacted("403: secret s3cr3t/1 is wrong: ?signature=s3cr3t%2F1", {"s3cr3t/1"})
    '403: secret *** is wrong: ?signature=***'
    """
    for value in sorted(secrets, key=len, reverse=True):
        for form in (value, quote(value, safe=""), quote(value)):
            text = text.replace(form, _HIDDEN)
    return text


def cause_without_secrets(error: BaseException, secrets: Iterable[str]) -> BaseException | None:
    """Return an error for ``raise ... from``; None if its traceback contains a secret."""
    text = "".join(traceback.format_exception(error))
    return error if redacted(text, secrets) == text else None


def _is_secret_part(part: str) -> bool:
    joined = re.sub(r"[^a-z0-9]", "", part.lower())
    return joined not in _NOT_SECRET and bool(_SECRET.search(joined))


def _secret_texts(value: Any, *, secret: bool = False) -> Iterator[str]:
    """Yield all texts of a value whose name, or the name of an outer value, is the name of a secret."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _secret_texts(part, secret=secret or is_secret(str(name)))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _secret_texts(part, secret=secret)
    elif isinstance(value, bytes):
        for encoding in ("utf-8", "latin-1"):
            yield from _secret_texts(value.decode(encoding, "replace"), secret=secret)
    elif secret and isinstance(value, str):
        yield value
        yield from value.split()[1:]  # a header such as "Bearer abc"


def _refuse_secret(name: str, value: str) -> None:
    last = name.rpartition(".")[2].lower()
    if last == "token" and value in _NOT_SECRET_TOKENS:
        return
    if is_secret(name):
        raise OptionError(
            f"--storage-option {name}: other users of this machine can read a command line, so it must not contain a "
            f"secret: set the environment variable {_REMEDIES.get(last, _OTHER_REMEDY)}; in Python, use "
            "storage_options="
        )
    if _USER_IN_URL.match(value):
        raise OptionError(
            f"--storage-option {name} is a URL with a user name or password, which other users of this machine can "
            f"read on a command line: remove it from the URL, and set {_OTHER_REMEDY}"
        )


def _parse_value(text: str) -> bool | int | float | str:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if match := _NUMBER.fullmatch(text):
        return float(text) if match[1] or match[2] else int(text)
    return text
