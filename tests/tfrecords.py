"""Writes TFRecord files without TensorFlow."""

from __future__ import annotations

import struct

import google_crc32c


def message(number: int, content: bytes) -> bytes:
    """Return a field of bytes in the encoding of protocol buffers."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    """Return an integer in the encoding of protocol buffers."""
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def example(features: dict[str, bytes | int | list[float]]) -> bytes:
    """Return a tf.train.Example."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = message(1, message(1, value))
        elif isinstance(value, int):
            feature = message(3, message(1, varint(value % (1 << 64))))
        else:
            feature = message(2, message(1, struct.pack(f"<{len(value)}f", *value)))
        entries += message(1, message(1, name.encode()) + message(2, feature))
    return message(1, entries)


def masked(data: bytes) -> bytes:
    """Return the masked CRC-32C of a TFRecord file."""
    crc = google_crc32c.value(data)
    return (((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def frame(data: bytes) -> bytes:
    """Return a record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)
