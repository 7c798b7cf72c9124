"""What all exchanges share, and the seams around one: its client, and who is told of it. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import TYPE_CHECKING, Protocol

from dispatcher.core.router import Router
from dispatcher.errors import RequestError
from dispatcher.http.forwarded import Peer
from dispatcher.http.request import NAME, Request
from dispatcher.proxy.admission_queue import Queue
from dispatcher.proxy.connection_pool import Upstream
from dispatcher.proxy.events import Events
from dispatcher.proxy.outlier_detection import PoolHealth
from dispatcher.proxy.retry_budget import Budget
from dispatcher.proxy.upstream import PoolConnection
from dispatcher.settings import LiveSettings

if TYPE_CHECKING:
    from dispatcher.proxy.exchange import Exchange


class Client(Protocol):
    """The client's side of an exchange."""

    @property
    def peer(self) -> Peer: ...
    @property
    def upload_complete(self) -> bool:
        """The whole request is here."""
        ...

    def write(self, data: bytes) -> None: ...
    def attach_upload(self, connection: PoolConnection | None) -> None:
        """Send the body, from its beginning and what comes of it, to this connection."""
        ...

    @property
    def replayable(self) -> bool:
        """The body, as far as it has gone on, is kept and can be sent again."""
        ...

    def join(self, connection: PoolConnection, rest: bytes, over: Callable[[], None]) -> None:
        """Become a tunnel to this connection, which has sent `rest` already."""
        ...

    def hold_reading(self, hold: bool) -> None: ...
    def break_off(self) -> None:
        """End the connection inside an answer, so that the client sees it broken."""
        ...


class Log(Protocol):
    """Told of every request that is over, and of what was no request."""

    def over(self, exchange: Exchange) -> None: ...
    def refused(self, peer: Peer, error: RequestError) -> None: ...


class Span(Protocol):
    """A request as a tracing system sees it."""

    @property
    def traceparent(self) -> bytes:
        """What the pool is told, as in W3C Trace Context."""
        ...

    def end(self, exchange: Exchange) -> None: ...


class Spans(Protocol):
    """Makes spans."""

    def begin(self, request: Request) -> Span: ...


class Forwarder:
    """What all exchanges share: the router, the pools' connections, who counts."""

    def __init__(
        self,
        router: Router,
        upstreams: Mapping[str, Upstream],
        health: PoolHealth,
        events: Events,
        clock: Callable[[], float],
        settings: LiveSettings,
        queue: Queue,
        name: bytes = NAME,
    ) -> None:
        self.settings = settings  # read at each use, so that a reload is in force at once
        self.queue = queue
        self.budget = Budget(settings.retry)
        self.log: Log | None = None
        self.spans: Spans | None = None
        self.name = name  # ours in Via: by it a request that comes round again is known
        self.router = router
        self.upstreams = upstreams
        self.health = health
        self.events = events
        self.clock = clock
        self.numbers = count(1)
