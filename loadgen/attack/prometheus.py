"""Serves the load generator's own metrics for Prometheus while a run lasts.

A thread of the process that watches the run serves them. It is not a sending process, so a scrape delays no request.
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
from loadgen.attack.progress import Buckets, RunProgress


class RunMetrics(Collector):
    """The metrics of a run. progress: of the run. rate: planned requests a second."""

    def __init__(self, progress: RunProgress, rate: float) -> None:
        self._progress, self._rate = progress, rate
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        progress = self._progress
        yield GaugeMetricFamily("loadgen_target_rate", "Planned requests a second, on average.", self._rate)
        yield CounterMetricFamily("loadgen_sent", "Requests sent.", progress.sent)
        yield CounterMetricFamily(
            "loadgen_dropped", "Requests due and not sent, over --max-in-flight.", progress.dropped
        )
        requests = CounterMetricFamily("loadgen_requests", "Finished requests.", labels=["outcome"])
        for outcome, count in progress.outcomes.items():
            requests.add_metric([outcome], count)
        yield requests
        yield _histogram("send_lateness", "From the planned instant to the sending.", progress.lateness)
        yield _histogram("response_duration", "From the planned instant to the response.", progress.response)
        yield _histogram("service_duration", "From the sending to the response.", progress.service)

    @contextmanager
    def serve(self, host: str, port: int) -> Iterator[int]:
        """Respond to scrapes inside the block; yields the port. Raises ConfigError if the port is not available."""
        try:
            server, thread = start_http_server(port, host, self.registry)
        except OSError as error:
            reason = "in use by another program" if error.errno == errno.EADDRINUSE else error.strerror
            raise ConfigError(f"--metrics: {host}:{port}: {reason}") from error
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def _histogram(name: str, text: str, times: Buckets) -> HistogramMetricFamily:
    counts = np.cumsum(times.counts).tolist()
    bounds = [*map(str, times.bounds), "+Inf"]
    return HistogramMetricFamily(
        f"loadgen_{name}_seconds", text, buckets=list(zip(bounds, counts, strict=True)), sum_value=times.total
    )
