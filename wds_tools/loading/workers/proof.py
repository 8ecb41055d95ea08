"""Proof that both ends of a connection know the token of a run. Nothing is unpickled before it.

::

    host                                  worker
      | -- 32 random bytes ----------------> |
      | <-- 32 random bytes, HMAC ---------- |   HMAC of "worker" and both, with the token
      | -- HMAC ---------------------------> |   HMAC of "host" and both
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Generator
from contextlib import suppress

TOKEN_BYTES = 32
SECONDS = 10.0
"""Time until a peer must have proved itself."""

_CHALLENGE_BYTES = 32
_DIGEST = "sha256"
_DIGEST_BYTES = 32
_KEEP_ALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}


class ProofFailedError(Exception):
    """The other end of a connection does not know the token."""


def prove_as_host(token: bytes, outgoing: bytearray) -> Generator[memoryview, None, None]:
    """Prove that this end knows the token, and let the worker prove it.

    What is to be sent is appended to ``outgoing``; memory that is to be filled with what the worker sends is yielded.
    """
    challenge = secrets.token_bytes(_CHALLENGE_BYTES)
    outgoing += challenge
    answer = bytearray(_CHALLENGE_BYTES + _DIGEST_BYTES)
    yield memoryview(answer)
    both = challenge + answer[:_CHALLENGE_BYTES]
    if not hmac.compare_digest(answer[_CHALLENGE_BYTES:], _digest(token, b"worker", both)):
        raise ProofFailedError
    outgoing += _digest(token, b"host", both)


def connect_and_prove(address: tuple[str, int], token: bytes) -> socket.socket:
    """Connect to the host of a run, and let both ends prove that they know the token."""
    connection = socket.create_connection(address, timeout=SECONDS)
    try:
        challenge, nonce = receive_exactly(connection, _CHALLENGE_BYTES), secrets.token_bytes(_CHALLENGE_BYTES)
        both = challenge + nonce
        connection.sendall(nonce + _digest(token, b"worker", both))
        if not hmac.compare_digest(receive_exactly(connection, _DIGEST_BYTES), _digest(token, b"host", both)):
            raise ProofFailedError
        connection.settimeout(None)
        configure(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Receive some bytes, or raise an OSError."""
    data = bytearray(count)
    view = memoryview(data)
    while view:
        received = connection.recv_into(view)
        if not received:
            raise ConnectionError("the other end closed the connection")
        view = view[received:]
    return bytes(data)


def configure(connection: socket.socket) -> None:
    """Send small messages at once, and notice within half a minute that the other machine is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEP_ALIVE.items():
        with suppress(AttributeError, OSError):  # not every system has them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _digest(token: bytes, role: bytes, challenges: bytes | bytearray) -> bytes:
    return hmac.digest(token, role + challenges, _DIGEST)
