"""The load generator's own metrics for Prometheus, while a run lasts: planned, sent, late, answered, how fast.

Served by a thread of the process that watches, not of one that sends, so that a scrape makes nothing late.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from dispatcher.errors import ConfigError
from loadgen.attack.progress import Buckets, Watch


class Exposition(Collector):
    """rate: requests a second, as planned."""

    def __init__(self, watch: Watch, rate: float) -> None:
        self._watch, self._rate = watch, rate
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        watch = self._watch
        yield GaugeMetricFamily("loadgen_target_rate", "Requests a second, as planned on average.", self._rate)
        yield CounterMetricFamily("loadgen_sent", "Requests sent.", watch.sent)
        yield CounterMetricFamily("loadgen_dropped", "Requests due and not sent, over --max-in-flight.", watch.dropped)
        over = CounterMetricFamily("loadgen_requests", "Requests that are over.", labels=["outcome"])
        for outcome, count in watch.outcomes.items():
            over.add_metric([outcome], count)
        yield over
        yield _histogram("send_lateness", "From the planned instant to the sending.", watch.lateness)
        yield _histogram("response_duration", "From the planned instant to the answer.", watch.response)
        yield _histogram("service_duration", "From the sending to the answer.", watch.service)

    @contextmanager
    def served(self, host: str, port: int) -> Iterator[int]:
        """Answer scrapes inside this block; yields the port. Raises ConfigError if it cannot be had."""
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            busy = "in use by another program" if error.errno == errno.EADDRINUSE else error.strerror
            raise ConfigError(f"--metrics: {host}:{port}: {busy}") from error
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _histogram(name: str, says: str, times: Buckets) -> HistogramMetricFamily:
    counts = np.cumsum(times.counts).tolist()
    bounds = [*map(str, times.bounds), "+Inf"]
    return HistogramMetricFamily(
        f"loadgen_{name}_seconds", says, buckets=list(zip(bounds, counts, strict=True)), sum_value=times.total
    )
