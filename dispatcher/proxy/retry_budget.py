"""What the end of a try says: whether the pool took the request, whether it is tried again, and how often all of them
may be. PURE."""

from __future__ import annotations

from dispatcher.errors import (
    RequestError,
    UpstreamClosed,
    UpstreamRefused,
    UpstreamStale,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from dispatcher.settings import Retry

BURST_SECONDS, BURST_REQUESTS = 10, 100  # as many of each as the budget can save up


def cause(fault: RequestError) -> str:
    """The word in `retry.on` for what happened; empty for what is never tried again."""
    if isinstance(fault, UpstreamUnreachable):
        return "connect"
    if isinstance(fault, UpstreamStale | UpstreamClosed | UpstreamRefused | UpstreamTimeout):
        return fault.reason
    return ""


def accepted(fault: RequestError | None, begun: bool, turned_away: bool) -> bool | None:
    """Whether the pool took the request; None if nobody knows. begun: its answer has gone to the client. turned_away:
    that was, or would have been, 429 or 503."""
    if turned_away or isinstance(fault, UpstreamUnreachable):
        return False
    if begun or isinstance(fault, UpstreamRefused):
        return True
    return False if isinstance(fault, UpstreamTimeout) else None


class Budget:
    """A share of the requests, and so many a second: so that retries cannot multiply an overload.

    >>> budget = Budget(Retry(budget=0.5, per_second=0.0))
    >>> for _ in range(3):
    ...     budget.request()
    >>> budget.take(0.0), budget.take(0.0)
    (True, False)
    """

    def __init__(self, settings: Retry) -> None:
        self.settings = settings
        self._left = settings.per_second
        self._at: float | None = None

    def request(self) -> None:
        """A request has come."""
        settings = self.settings
        self._left = min(
            self._left + settings.budget, BURST_REQUESTS * settings.budget + BURST_SECONDS * settings.per_second
        )

    def take(self, now: float) -> bool:
        """Whether one retry more is within the budget; it is then spent."""
        settings = self.settings
        if self._at is not None:
            most = BURST_REQUESTS * settings.budget + BURST_SECONDS * settings.per_second
            self._left = min(self._left + (now - self._at) * settings.per_second, most)
        self._at = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
