"""What the proxy reports to metrics. The class that counts is `telemetry.metrics.PrometheusRecorder`."""

from __future__ import annotations

from typing import Protocol

from dispatcher.errors import RequestError


class Events(Protocol):
    """Calls on a request's path, so each must be quick. Every word in them is from a bounded set."""

    def answered(self, pool: str, status: int, seconds: float) -> None:
        """A routed request has ended.

        status: as the client saw it; 499 if the client left.
        seconds: from the request's headers to the end.
        """
        ...

    def upstream_failed(self, pool: str, error: RequestError) -> None:
        """An attempt has failed at its pool, and its response, if there is one, was not forwarded."""
        ...

    def retried(self, reason: str) -> None:
        """Another attempt is made."""
        ...

    def rejected(self, reason: str) -> None:
        """A request was rejected before it was routed."""
        ...

    def queued(self, seconds: float) -> None:
        """A request has waited for room for so long. It is routed now, or waits no more."""
        ...

    def client_left(self) -> None:
        """A client closed its connection before it had the whole response."""
        ...

    def pool_up(self, pool: str, verdict: str) -> None:
        """A pool is up, drained, down (by health checks) or ejected (by requests). Called if this may have changed."""
        ...

    def pool_gone(self, pool: str) -> None:
        """A pool is no longer configured. Requests on it may still end."""
        ...

    def internal_error(self, error: BaseException) -> None:
        """The dispatcher has a bug. The client has had status 500, or a broken response."""
        ...
