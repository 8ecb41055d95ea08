"""Limits of the service: sizes of requests, deadlines, and numbers of connections."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """What one process of the service accepts.

    Attributes:
        head_bytes: Most bytes of the headers of a request.
        body_bytes: Most bytes of the body of a request.
        idle_seconds: Time in which a connection has to send its next request, from the first byte to the last.
        report_seconds: Time in which a report has to arrive.
        window_seconds: Length of the windows in which the speed of a client is measured.
        window_bytes: Bytes that a client has to receive in each of these windows, or else it is disconnected.
        connections: Most connections of a process.
        connections_per_address: Most connections from one address.
    """

    head_bytes: int = 8192
    body_bytes: int = 65536
    idle_seconds: float = 30.0
    report_seconds: float = 5.0
    window_seconds: float = 60.0  # shorter than a pause for validation, which socket buffers bridge only in part
    window_bytes: int = 256 << 10
    connections: int = 2048
    connections_per_address: int = 1536
