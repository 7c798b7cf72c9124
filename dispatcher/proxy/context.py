"""What all exchanges of a service share, and what is called at the end of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Protocol

from dispatcher.core.router import Router
from dispatcher.errors import RequestError
from dispatcher.http.forwarded import Peer
from dispatcher.http.request import NAME, Request
from dispatcher.proxy.admission_queue import AdmissionQueue
from dispatcher.proxy.connection_pool import ConnectionPool
from dispatcher.proxy.events import Events
from dispatcher.proxy.outlier_detection import PoolHealth
from dispatcher.proxy.retry_budget import RetryBudget
from dispatcher.settings import LiveSettings

if TYPE_CHECKING:
    from dispatcher.proxy.exchange import Exchange


class Span(Protocol):
    """A request as a tracing system sees it. The class is in an optional module that imports this package."""

    @property
    def traceparent(self) -> bytes:
        """The trace context that the pool gets, as in W3C Trace Context."""
        ...

    def end(self, exchange: Exchange) -> None: ...


class ProxyContext:
    """What all exchanges share.

    name: of this process in Via, by which it recognises a request that it has sent on before.
    on_finished: called with every exchange at its end.
    on_unreadable: called with the client and the error if what a client sent is no request.
    begin_span: starts a trace of a request.
    """

    def __init__(
        self,
        router: Router,
        connection_pools: Mapping[str, ConnectionPool],
        health: PoolHealth,
        events: Events,
        clock: Callable[[], float],
        settings: LiveSettings,
        queue: AdmissionQueue,
        name: bytes = NAME,
    ) -> None:
        self.router = router
        self.connection_pools = connection_pools  # by the name of the pool
        self.health = health
        self.events = events
        self.clock = clock
        self.settings = settings
        self.queue = queue
        self.name = name
        self.retry_budget = RetryBudget(settings)
        self.job_numbers = count(1)
        self.on_finished: Callable[[Exchange], None] | None = None
        self.on_unreadable: Callable[[Peer, RequestError], None] | None = None
        self.begin_span: Callable[[Request], Span] | None = None
