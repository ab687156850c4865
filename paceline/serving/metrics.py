"""What every process tells a scraper: one registry, served over HTTP, and the calls it refused.

Each service declares its own metrics in its `metrics.py`. The registry is the service's: it is
handed down, and nothing is registered anywhere else. What is worth a metric is not known here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.gc_collector import GCCollector

# A round of table models takes 2 ms, a step of a large target 100 ms: every stage of either is told
# apart. In seconds.
FINE_BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.0025, 0.005, 0.0075),
    *(0.01, 0.015, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0),
)
# Waits that people notice, and whole generations. In seconds.
COARSE_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


def new_registry() -> CollectorRegistry:
    """The registry of one process, with what is true of every process already in it."""
    # A second series for every counter, with the time of its first value, that nobody asked for.
    disable_created_metrics()  # type: ignore[no-untyped-call]  # the library has no types here
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    GCCollector(registry=registry)
    return registry


@contextlib.contextmanager
def serve_metrics(registry: CollectorRegistry, host: str, port: int | None) -> Iterator[str]:
    """Serves a registry at `/metrics` for as long as the block runs; gives host:port.

    Port 0 takes a free one; without a port nothing is served and the address is empty. Scrapes are
    answered by threads of their own, also while a model loads.

    Raises:
        OSError: the port is taken.
    """
    if port is None:
        yield ""
        return
    server, thread = start_http_server(port, host, registry)
    try:
        form = "[{}]:{}" if ":" in host else "{}:{}"
        yield form.format(host, server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class CallMetrics:
    """Counts of calls, the same for every service."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._refusals = Counter(
            "paceline_refusals",
            "Calls that ended with an error of ours, by the reason in its details",
            ("rpc", "reason"),
            registry=registry,
        )

    def refuse(self, rpc: str, reason: str) -> None:
        """Counts a call that ended with an error."""
        self._refusals.labels(rpc, reason).inc()
