"""Tokens: opaque, random, stored as SHA-256 in a file that only its owner can read.

The file is JSON. It is written as a whole or not at all, and the service reads it again when it has changed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from wds_tools.errors import OptionError
from wds_tools.storage.commit import CommitFile

_log = logging.getLogger("wds_tools")
FORMAT = "wds_tools tokens"
FORMAT_VERSION = 1
RELOAD_SECONDS = 1.0  # a revoked token is refused after at most this time
PREFIX = "wdst_"  # lets programs that search for leaked secrets recognise a token
_RANDOM_BYTES = 32
_MAX_FILE_BYTES = 16 << 20
_MAX_TOKEN_LENGTH = 200
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True)
class Token:
    """One token, without its secret.

    Attributes:
        id: Short random name, for `revoke`.
        name: Purpose or owner of the token.
        sha256: SHA-256 of the secret, 64 hexadecimal digits.
        datasets: Patterns of dataset names, such as ``imagenet*``.
        created: Time in seconds since 1970.
        expires: Time in seconds since 1970; None: never.
    """

    id: str
    name: str
    sha256: str
    datasets: tuple[str, ...]
    created: int
    expires: int | None

    def allows(self, dataset: str) -> bool:
        """Return whether the token is for a dataset; ``*`` in a pattern also matches ``/``."""
        return any(fnmatchcase(dataset, pattern) for pattern in self.datasets)

    @property
    def allows_all(self) -> bool:
        """Whether the token is for all datasets."""
        return "*" in self.datasets

    def is_expired(self, now: float) -> bool:
        """Return whether the token has expired."""
        return self.expires is not None and now >= self.expires


def create_token(
    path: Path, *, name: str = "", datasets: Sequence[str] = ("*",), valid_seconds: int | None = None
) -> tuple[Token, str]:
    """Add a token to a file, which is created if needed.

    Args:
        path: The file.
        name: Purpose or owner of the token.
        datasets: Patterns of dataset names that the token is for.
        valid_seconds: Time after which the token expires; None: never.

    Returns:
        The token, and its secret, which is stored nowhere.

    Raises:
        OptionError: The file is invalid, or other users can read it.
        OSError: It cannot be written.
    """
    if not datasets or not all(datasets):
        raise OptionError("a token without datasets allows nothing: name datasets, or * for all of them")
    if not name.isprintable() or len(name) > 100:
        raise OptionError(f"the name {name[:100]!r} is not printable or longer than 100 characters")
    secret = PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    now = int(time.time())
    expires = None if valid_seconds is None else now + valid_seconds
    token = Token(secrets.token_hex(4), name, _sha256(secret), tuple(datasets), now, expires)
    with _locked(path):
        _write(path, [*(read_tokens(path) if path.exists() else []), token])
    return token, secret


def revoke_token(path: Path, token_id: str) -> Token:
    """Remove a token from a file, and return it.

    Raises:
        OptionError: The file is invalid or has no such token.
        OSError: It cannot be written.
    """
    with _locked(path):
        tokens = read_tokens(path)
        matches = [token for token in tokens if token.id == token_id]
        if not matches:
            ids = ", ".join(token.id for token in tokens) or "no tokens"
            raise OptionError(f"{path} has no token with the id {token_id!r}; it has {ids}")
        _write(path, [token for token in tokens if token.id != token_id])
    return matches[0]


def read_tokens(path: Path) -> list[Token]:
    """Return the tokens of a file.

    Raises:
        OptionError: The file does not exist, is invalid, or other users can read it.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_MAX_FILE_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    except FileNotFoundError:
        raise OptionError(
            f"{path} does not exist: create it with `wds-tools token create --token-file {path}`"
        ) from None
    except OSError as error:
        raise OptionError(f"cannot read {path}: {error.strerror or error}") from error
    if status.st_mode & 0o077:
        raise OptionError(
            f"other users can access {path} (mode {stat.S_IMODE(status.st_mode):04o}): run `chmod 600 {path}`"
        )
    try:
        return _parse(data)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise OptionError(
            f"{path} is not a token file ({type(error).__name__}): restore it, or remove it and create new tokens"
        ) from None


def parse_duration(text: str) -> int:
    """Return a duration such as ``90d``, ``12h`` or ``30m`` in seconds.

    >>> parse_duration("90d"), parse_duration("12h")
    (7776000, 43200)
    """
    match = re.fullmatch(r"([0-9]{1,6})([smhdw])", text.strip().lower())
    if not match or int(match[1]) == 0:
        raise OptionError(f"{text!r} is not a duration; allowed are a number and s, m, h, d or w, such as 90d")
    return int(match[1]) * _UNITS[match[2]]


class TokenChecker:
    """Finds the token of a request. The file is read again when it has changed; if that fails, no token is valid.

    Args:
        clock: Returns the time in seconds since 1970.
        timer: Returns the time of a clock that does not go back, in seconds.

    Raises:
        OptionError: The file is invalid.
    """

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time.time, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = path
        self._clock = clock
        self._timer = timer
        self._tokens = read_tokens(path)
        self._state = self._state_of_file()
        self._checked_at = timer()

    def find(self, secret: str) -> Token | None:
        """Return the token with this secret, unless it has expired."""
        self._reload()
        if len(secret) > _MAX_TOKEN_LENGTH:
            return None
        digest = _sha256(secret)
        match = None
        for token in self._tokens:  # all of them, so that the time does not depend on which one it is
            if hmac.compare_digest(token.sha256, digest):
                match = token
        return None if match is None or match.is_expired(self._clock()) else match

    def _reload(self) -> None:
        now = self._timer()
        if now - self._checked_at < RELOAD_SECONDS:
            return
        self._checked_at = now
        state = self._state_of_file()
        if state is not None and state == self._state:
            return
        try:
            self._tokens = read_tokens(self._path)
        except OptionError as error:
            if self._tokens:
                _log.error("no token is valid any more: %s", error)
            self._tokens = []
        self._state = state

    def _state_of_file(self) -> tuple[int, ...] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size, status.st_mode


def _sha256(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _parse(data: bytes) -> list[Token]:
    if len(data) > _MAX_FILE_BYTES:
        raise ValueError
    raw = json.loads(data)
    if raw["format"] != FORMAT or raw["version"] != FORMAT_VERSION:
        raise ValueError
    return [_token_of(entry) for entry in raw["tokens"]]


def _token_of(entry: dict[str, Any]) -> Token:
    token = Token(**{**entry, "datasets": tuple(entry["datasets"])})
    texts = (token.id, token.name, token.sha256, *token.datasets)
    times = (token.created, token.expires if token.expires is not None else 0)
    if not all(isinstance(text, str) for text in texts) or not all(type(seconds) is int for seconds in times):
        raise TypeError
    if not re.fullmatch("[0-9a-f]{64}", token.sha256):
        raise ValueError
    return token


def _write(path: Path, tokens: list[Token]) -> None:
    raw = {"format": FORMAT, "version": FORMAT_VERSION, "tokens": [asdict(token) for token in tokens]}
    with CommitFile(path) as file:
        os.fchmod(file.fileno(), 0o600)  # before anything is written
        file.write(json.dumps(raw, indent=2).encode() + b"\n")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Exclude other processes that change the same file."""
    if not path.parent.is_dir():
        raise OptionError(f"cannot write {path}: no folder {path.parent}")
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # the file system has no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
