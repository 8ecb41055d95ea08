"""Metrics for Prometheus. Labels have few values, whatever clients send: routes by name, and statuses.

With several processes, each writes its values to files in one folder, by the multiprocess mode of prometheus-client,
and any of them reports the sum.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.multiprocess import MultiProcessCollector

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per counter: its time of creation
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
_STATUSES = {200, 204, 206, 304, 308, 400, 401, 403, 404, 405, 412, 413, 415, 416, 421, 429, 431, 500, 503}
_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()

        def counter(name: str, text: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(f"wds_tools_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str, mode: Literal["livesum", "livemax"]) -> Gauge:
            return Gauge(f"wds_tools_{name}", text, registry=registry, multiprocess_mode=mode)

        self.requests = counter("requests", "Requests, by route and status.", ["route", "status"])
        self.seconds = Histogram(
            "wds_tools_request_seconds",
            "Duration of requests in seconds, the body included.",
            ["route"],
            buckets=_BUCKETS,
            registry=registry,
        )
        self._series: dict[tuple[str, int], tuple[Counter, Histogram]] = {}  # labels() takes longer than inc()
        self.sent_bytes = counter("sent_bytes", "Bytes of files that were sent.")
        self.cold_reads = counter("cold_reads", "Pieces of files that were read from a disk first.")
        self.upstream_bytes = counter("upstream_bytes", "Bytes of blocks that were fetched from upstreams.")
        self.upstream_sent_bytes = counter("upstream_sent_bytes", "Bytes of datasets of upstreams that were sent.")
        self.cache_hits = counter("cache_hits", "Blocks of upstreams that were in the cache.")
        self.cut_connections = counter("cut_connections", "Connections closed by the service, by reason.", ["reason"])
        self.connections = gauge("connections", "Open connections.", "livesum")
        self.datasets = gauge("datasets", "Datasets that are served.", "livemax")
        self.problems = gauge("dataset_problems", "Datasets that are not served because of an error.", "livemax")

    def count_request(self, route: str, status: int, seconds: float) -> None:
        """Count a request by the name of its route, which is not a part of the URL."""
        series = self._series.get((route, status))
        if series is None:
            counter = self.requests.labels(route, str(status) if status in _STATUSES else "other")
            series = counter, self.seconds.labels(route)
            if status in _STATUSES:
                self._series[route, status] = series
        series[0].inc()
        series[1].observe(seconds)

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus, of all processes."""
        return generate_latest(self._all())

    def saved_bytes(self) -> int:
        """Return how many bytes of upstreams were sent without being fetched, by all processes."""
        registry = self._all()
        sent, fetched = (
            registry.get_sample_value(f"wds_tools_upstream_{name}_total") or 0.0 for name in ("sent_bytes", "bytes")
        )
        return max(0, round(sent - fetched))

    def _all(self) -> CollectorRegistry:
        """Return the metrics of all processes."""
        if FOLDER_VARIABLE not in os.environ:
            return self._registry
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return registry
