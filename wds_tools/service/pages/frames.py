"""Messages between the service and its helper processes: a JSON object and bytes. Neither side trusts the other's data.

JSON and not pickle: a helper reads files that may have been made to attack it, and must not be able to run code in the
service.
"""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

HEAD = struct.Struct(">IQ")  # lengths of the JSON text and of the bytes
MAX_TEXT_BYTES = 16 << 20
MAX_PAYLOAD_BYTES = 256 << 20


def encode(message: dict[str, Any], payload: bytes = b"") -> bytes:
    """Return a message as bytes, without its payload."""
    text = json.dumps(message).encode()
    return HEAD.pack(len(text), len(payload)) + text


def lengths(head: bytes) -> tuple[int, int]:
    """Return the lengths in the head of a message."""
    text, payload = HEAD.unpack(head)
    if text > MAX_TEXT_BYTES or payload > MAX_PAYLOAD_BYTES:
        raise ValueError(f"a message of {text:,} and {payload:,} bytes")
    return text, payload


def decode(text: bytes) -> dict[str, Any]:
    """Return the JSON object of a message."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("a message is not an object")  # noqa: TRY004 - one error for all
    return value


def read(stream: BinaryIO) -> tuple[dict[str, Any], bytes] | None:
    """Read a message; None at the end of the stream."""
    head = stream.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    text, payload = lengths(head)
    return decode(stream.read(text)), stream.read(payload)


def write(stream: BinaryIO, message: dict[str, Any], payload: bytes = b"") -> None:
    """Write a message."""
    stream.write(encode(message, payload))
    stream.write(payload)
    stream.flush()
