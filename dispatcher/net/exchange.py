"""One request's straight path: route, send, relay, settle. The only place that routes and settles.

Each try opens its ticket and closes it in the same scope, whatever happens in between. The request's body and the
answer flow by callbacks straight between the two connections, held back when the far side is slow; the coroutine
waits for the end.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from itertools import count
from typing import Protocol

from dispatcher.core.router import NOTHING, Router
from dispatcher.core.types import Job, Outcome, Ticket
from dispatcher.errors import BadRequest, OutOfResources, PoolsFull, RequestError, UpstreamStale, UpstreamUnreachable
from dispatcher.net.events import Events
from dispatcher.net.framing import Body
from dispatcher.net.heads import (
    NAME,
    Request,
    Response,
    forward_request,
    forward_response,
    last_chunk,
    own_answer,
    service_time,
)
from dispatcher.net.health import PassiveHealth
from dispatcher.net.queue import Queue
from dispatcher.net.upstream import PoolConnection, Upstream

CONNECT_TRIES = 3  # pools that a request is offered to while none of them has accepted a connection
CLIENT_LEFT = 499


class Client(Protocol):
    """The client's side of an exchange."""

    @property
    def address(self) -> bytes: ...
    @property
    def upload_complete(self) -> bool:
        """The whole request is here."""
        ...

    def write(self, data: bytes) -> None: ...
    def attach_upload(self, connection: PoolConnection | None) -> None:
        """Send the body, what is here of it and what comes, to this connection."""
        ...

    def hold_reading(self, hold: bool) -> None: ...
    def break_off(self) -> None:
        """End the connection inside an answer, so that the client sees it broken."""
        ...


class Forwarder:
    """What all exchanges share: the router, the pools' connections, who counts."""

    def __init__(
        self,
        router: Router,
        upstreams: Mapping[str, Upstream],
        health: PassiveHealth,
        events: Events,
        clock: Callable[[], float],
        name: bytes = NAME,
        queue: Queue | None = None,
    ) -> None:
        self.queue = queue if queue is not None else Queue(0, 0.0)
        self.name = name  # ours in Via: by it a request that comes round again is known
        self.router = router
        self.upstreams = upstreams
        self.health = health
        self.events = events
        self.clock = clock
        self.numbers = count(1)


class Exchange:
    """One request and its answer. After `run`, `keep_alive` says whether the client's connection may go on."""

    __slots__ = (
        "_answered_at",
        "_chunked",
        "_client",
        "_connection",
        "_forwarder",
        "_head",
        "_pieces",
        "_pool",
        "_refused",
        "_reported",
        "_response",
        "_tail",
        "_ticket",
        "keep_alive",
        "method",
        "request",
    )  # fmt: skip

    def __init__(self, forwarder: Forwarder, request: Request, client: Client) -> None:
        self._forwarder = forwarder
        self._client = client
        self.request = request
        self.method = request.method
        self.keep_alive = request.keep_alive
        self._connection: PoolConnection | None = None
        self._response: Response | None = None
        self._answered_at: float | None = None  # when the last byte of the answer was here
        self._reported: float | None = None
        self._refused: BadRequest | None = None
        self._ticket: Ticket | None = None
        self._chunked = False
        self._head = b""  # what is to be written next: heads, pieces of the body, what ends it
        self._pieces: list[bytes] = []
        self._tail = b""
        self._pool = ""

    def __repr__(self) -> str:
        return f"<Exchange {self.request!r} {self._response or 'unanswered'}>"

    async def run(self) -> None:
        """Serve the request. Raises nothing but CancelledError, when the client has left."""
        forwarder = self._forwarder
        began_at = forwarder.clock()
        status = 500
        if self._is_ours():
            return
        try:
            error = await self._tries()
            if error is not None:
                status = error.status
                self._answer_error(error)
            else:
                status = self._status
        except asyncio.CancelledError:
            status = CLIENT_LEFT
            raise
        finally:
            if self._pool:
                forwarder.events.answered(self._pool, status, forwarder.clock() - began_at)
            if status == CLIENT_LEFT:
                forwarder.events.client_left()

    def _is_ours(self) -> bool:
        """Answer what must not go on: a request that has been here before, or may make no further hop."""
        status, text = 0, ""
        if self._forwarder.name in self.request.passed:
            self._forwarder.events.rejected("loop")
            status, text = 508, "the request has been here before: pools and dispatchers form a loop"
        elif self.request.hops == 0:
            status, text = 200, "Max-Forwards: 0 ends at the dispatcher"
        if status:
            self.keep_alive = self.keep_alive and self._client.upload_complete
            self._client.write(own_answer(status, text, self.keep_alive, self.method))
        return bool(status)

    async def _tries(self) -> RequestError | None:
        """Try until an answer is here or there is no more to try; the error of the last try."""
        failed: frozenset[str] = NOTHING
        fresh = False
        while True:
            try:
                ticket = self._route(failed) if failed else await self._admit()
            except RequestError as error:
                self._forwarder.events.rejected(error.reason)
                return error
            self._pool = ticket.pool.id
            fault = await self._try(ticket, fresh)
            if isinstance(fault, UpstreamUnreachable) and len(failed) < CONNECT_TRIES - 1:
                failed |= {self._pool}
                if not self._forwarder.router.fleet.without(failed).pools:
                    return fault
            elif isinstance(fault, UpstreamStale) and not fresh and self.request.replayable:
                fresh = True
            else:
                return fault
            self._forwarder.events.retried(fault.reason)

    def _route(self, failed: frozenset[str] = NOTHING) -> Ticket:
        job, now = Job(next(self._forwarder.numbers)), self._forwarder.clock()
        return self._forwarder.router.route(job, now, failed, sent=self._client.upload_complete)

    async def _admit(self) -> Ticket:
        """A ticket, at once if nobody waits and a pool has room, else in turn."""
        queue = self._forwarder.queue
        if queue.empty:
            with contextlib.suppress(PoolsFull):
                return self._route()
        with queue.place() as place:
            while True:
                await place.turn()
                with contextlib.suppress(PoolsFull):
                    return self._route()

    async def _try(self, ticket: Ticket, fresh: bool) -> RequestError | None:
        """Send the request where the ticket says and relay the answer; settles the ticket."""
        forwarder, pool = self._forwarder, ticket.pool.id
        outcome = Outcome.CANCELLED
        fault: RequestError | None = None
        connection: PoolConnection | None = None
        self._ticket = ticket
        try:
            upstream = forwarder.upstreams[pool]
            connection = (None if fresh else upstream.idle()) or await upstream.connect()
            self._connection = connection
            if self._refused is not None:
                raise self._refused
            over = connection.begin(
                self, forward_request(self.request, self._client.address, name=forwarder.name), self.request.length
            )
            self._client.attach_upload(connection)
            await over
        except (BadRequest, OutOfResources) as error:
            fault = error  # the client broke its own upload, or we have no files left: nothing to hold against the pool
        except RequestError as error:
            fault = error
            outcome = Outcome.TIMED_OUT if error.status == 504 else Outcome.FAILED
            forwarder.events.upstream_failed(pool, error)
        finally:
            if (
                fault is None and self._answered_at is not None
            ):  # also if the client left when the pool had done its part
                outcome = Outcome.OK if self._status < 500 else Outcome.FAILED
            self._ticket = self._connection = None
            ended_at = self._answered_at or forwarder.clock()
            forwarder.router.settle(ticket, ended_at, outcome, self._reported, teaches=self._status < 400)
            self._client.attach_upload(None)  # after the count: nothing that follows may keep it from coming down
            if connection is not None:
                connection.release()
            if not isinstance(fault, UpstreamStale):  # the end of an old connection says nothing of the pool now
                forwarder.health.settled(pool, outcome, ticket.routed_at)
        return fault

    @property
    def _status(self) -> int:
        """Of the pool's answer, 0 while there is none."""
        return self._response.status if self._response is not None else 0

    def _answer_error(self, error: RequestError) -> None:
        """An answer of our own, or a broken one if the pool's has begun."""
        if self.begun:
            self.break_off()
            return
        self.keep_alive = self.keep_alive and self._client.upload_complete
        self._client.write(own_answer(error.status, error.public, self.keep_alive, self.method))

    @property
    def begun(self) -> bool:
        """The head of the pool's answer has gone to the client."""
        return self._response is not None

    @property
    def unframed(self) -> bool:
        """Nothing but the end of the connection tells the client where its answer ends."""
        return self._response is not None and isinstance(self._response.length, Body) and not self._chunked

    def break_off(self) -> None:
        """End the client's connection so that it sees a broken answer."""
        self.keep_alive = False
        self._client.break_off()

    def refuse(self, error: BadRequest) -> None:
        """The client's body turned out malformed or too large: stop here and say so."""
        self._refused = error
        if self._connection is not None:
            self._connection.give_up(error)

    def upload_ended(self) -> None:
        """The last byte of the request is here, and goes on at once."""
        if self._ticket is not None and not self.begun:
            self._forwarder.router.sent(self._ticket, self._forwarder.clock())

    def client_writable(self, writable: bool) -> None:
        """The client takes its answer too slowly; or well again."""
        if self._connection is not None:
            self._connection.hold(not writable)
            if self._ticket is not None:
                self._forwarder.router.blur(self._ticket, self._forwarder.clock())

    # -- upstream.Conversation: called by the pool's connection

    def answer_head(self, response: Response) -> None:
        interim = response.status < 200
        if interim and self.request.minor == 0:
            return  # HTTP/1.0 knows no interim answers
        if not interim:
            self._response = response
            self._chunked = isinstance(response.length, Body) and self.request.minor > 0
            self.keep_alive = self.keep_alive and not self.unframed and self._client.upload_complete
            self._reported = service_time(response.timing)
        self._head += forward_response(response, self.request.minor, self.keep_alive, self._forwarder.name)

    def answer_data(self, data: bytes) -> None:
        self._pieces.append(data)

    def answer_end(self, trailers: list[bytes]) -> None:
        if self._chunked:
            self._tail = last_chunk(trailers if self.request.trailers else ())
        self._answered_at = self._forwarder.clock()

    def flush(self) -> None:
        data = b"".join(self._pieces)
        if self._chunked and data:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head or self._tail:
            data = b"".join((self._head, data, self._tail))
            self._head = self._tail = b""
        self._pieces.clear()
        if data:
            self._client.write(data)

    def hold_upload(self, hold: bool) -> None:
        self._client.hold_reading(hold)
