"""The load generator's own metrics for Prometheus, while a run lasts: planned, sent, late, answered, how fast.

Served by a thread, so that a scrape does not make the pacer late. The report at the end needs none of it.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from dispatcher.errors import ConfigError

SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0)
LATE = (0.0001, 0.0005, 0.001, 0.005, 0.02, 0.1, 0.5)
OUTCOMES = ("completed", "refused", "unanswered")  # below 400, 400 and more, no status


class Exposition:
    """rate: requests a second, as planned."""

    def __init__(self, rate: float) -> None:
        self.registry = registry = CollectorRegistry()
        Gauge("loadgen_target_rate", "Requests a second, as planned on average.", registry=registry).set(rate)
        self._sent = Counter("loadgen_sent_total", "Requests sent.", registry=registry)
        answered = Counter("loadgen_requests_total", "Requests that are over.", ["outcome"], registry=registry)
        self._outcomes = {outcome: answered.labels(outcome) for outcome in OUTCOMES}
        self._lateness = Histogram("loadgen_send_lateness_seconds", "From the planned instant to the sending.",
                                   buckets=LATE, registry=registry)  # fmt: skip
        self._response = Histogram("loadgen_response_duration_seconds", "From the planned instant to the answer.",
                                   buckets=SECONDS, registry=registry)  # fmt: skip
        self._service = Histogram("loadgen_service_duration_seconds", "From the sending to the answer.",
                                  buckets=SECONDS, registry=registry)  # fmt: skip

    def sent(self, planned: float, sent: float) -> None:
        self._sent.inc()
        self._lateness.observe(max(0.0, sent - planned))

    def over(self, planned: float, sent: float, done: float, status: int) -> None:
        completed = 200 <= status < 400
        self._outcomes["completed" if completed else "refused" if status else "unanswered"].inc()
        if completed:
            self._response.observe(done - planned)
            self._service.observe(done - sent)

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
