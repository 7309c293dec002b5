"""The metrics of a server in the format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

# Seconds. From a small text model to the time limit.
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# One label for all other paths: a scanner would create thousands of series.
OTHER = "other"


class Metrics:
    """Counters and histograms of one server.

    Args:
        paths: Paths with a label of their own.
        waiting: Function that returns the number of samples that wait.
        restarts: Function that returns how often the model thread was started again.
    """

    def __init__(self, paths: set[str], *, waiting: Callable[[], int], restarts: Callable[[], int]):
        # Not the global registry: tests start several servers in a process.
        self.registry = CollectorRegistry()
        self.paths = paths
        self.requests = Counter(
            "dxn_requests", "Answered requests.", ["path", "status"], registry=self.registry
        )
        self.latency = Histogram(
            "dxn_request_seconds",
            "Seconds from the first byte of a request to the end of its answer.",
            ["path"],
            buckets=SECONDS,
            registry=self.registry,
        )
        self.batch_size = Histogram(
            "dxn_batch_samples",
            "Samples that were computed together.",
            buckets=SIZES,
            registry=self.registry,
        )
        self.batch_seconds = Histogram(
            "dxn_batch_seconds",
            "Seconds in which a batch was computed.",
            buckets=SECONDS,
            registry=self.registry,
        )
        depth = Gauge("dxn_queue_samples", "Samples that wait.", registry=self.registry)
        depth.set_function(waiting)
        again = Gauge("dxn_model_restarts", "Restarts of the model thread.", registry=self.registry)
        again.set_function(restarts)

    def observe_request(self, path: str, status: int, seconds: float) -> None:
        """Count an answered request."""
        path = path if path in self.paths else OTHER
        self.requests.labels(path, str(status)).inc()
        self.latency.labels(path).observe(seconds)

    def observe_batch(self, size: int, seconds: float) -> None:
        """Count a computed batch."""
        self.batch_size.observe(size)
        self.batch_seconds.observe(seconds)

    def page(self) -> bytes:
        """Return all metrics as text."""
        return generate_latest(self.registry)
