"""One request from its headers to the end of its response: a synchronous state machine.

Every method is called by an event (bytes, a timer, free room in a pool) and returns at once. There is no task and no
future for a request. Read it in this order:

1. The client: the request's headers and body arrive, or the client leaves.
2. Choosing a pool: `_start_attempt` uses an idle connection, or waits for a new one. If every pool is full, the
   request waits for room first.
3. The pool: the response's headers and body arrive, or the attempt fails.
4. The end: `_close_ticket` is the only place that closes a ticket. Then another attempt begins, or the request ends.

    RECEIVED --> QUEUED --> CONNECTING --> SENT --> RESPONDING --> DONE
        |          |            |           |           |---> TUNNEL --> DONE
        |          |            |<----------|  another attempt
        |          |----------------------->|  a connection is idle
        |-------------------> CONNECTING or SENT: a pool has room at once
    Every phase may go to DONE: the request fails, or the client leaves.

A ticket is closed exactly once. `_close_ticket` clears `_ticket` and `_connection` first. Later events find one of them
empty, or cannot come: a released connection has no requester, a cancelled dial calls nothing, and a tunnel ends once. A
ticket is closed in any case, because each attempt has an event that must come: the end of the dial, the loss of
the pool's connection or its deadline, the loss of the client's connection, or the end of the tunnel.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from dispatcher.core.evidence import REJECTIONS, judge
from dispatcher.core.types import Job, Report, Ticket
from dispatcher.errors import (
    BadRequest,
    ClientLeft,
    HandlerFailed,
    PoolsFull,
    QueueFull,
    QueueTimeout,
    RequestError,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamRejected,
    UpstreamStale,
    UpstreamTimeout,
)
from dispatcher.http import load_report
from dispatcher.http.forwarded import Peer
from dispatcher.http.framing import Body
from dispatcher.http.request import Request, forward_request
from dispatcher.http.response import (
    Response,
    forward_response,
    last_chunk,
    own_response,
    parse_retry_after,
    parse_server_timing,
)
from dispatcher.platform.clock import http_date, wall
from dispatcher.proxy.admission_queue import Waiter
from dispatcher.proxy.connection import BODY_BUFFER_FULL, CLIENT_SLOW, POOL_SLOW
from dispatcher.proxy.context import ProxyContext, Span
from dispatcher.proxy.request_body import RequestBody
from dispatcher.proxy.upstream import SWITCHING_PROTOCOLS, PoolConnection

if TYPE_CHECKING:
    from dispatcher.proxy.downstream import ClientConnection

MAX_BUFFERED_BODY_BYTES = 65536  # of a request's body, while its pool cannot take it
CLIENT_CLOSED_REQUEST = 499
NONE_EXCLUDED: frozenset[str] = frozenset()
NO_FIELDS: frozenset[bytes] = frozenset()
LOAD_REPORT_FIELDS = frozenset({load_report.FIELD})  # are for the dispatcher, unless configured otherwise


class Phase(Enum):
    """Where a request is on its way."""

    RECEIVED = auto()  # its headers are read, and nothing has been done
    QUEUED = auto()  # every pool is full: it waits for room
    CONNECTING = auto()  # a ticket is open, and a connection to its pool is being made
    SENT = auto()  # its headers went to the pool, and no final response has begun
    RESPONDING = auto()  # response headers go to the client: no other attempt is possible
    TUNNEL = auto()  # the pool switched protocols: bytes pass both ways
    DONE = auto()


# In Python 3.11 the name of a module is looked up much faster than a member of an Enum.
RECEIVED, QUEUED, CONNECTING, SENT, RESPONDING, TUNNEL, DONE = Phase


@dataclass(slots=True, eq=False, repr=False)
class Exchange:
    """One request and its response. A ticket is open in the phases CONNECTING, SENT, RESPONDING and TUNNEL."""

    context: ProxyContext
    request: Request
    client: ClientConnection

    # What logs and traces show at the end.
    status: int = field(init=False, default=500)  # as the client saw it
    pool: str = field(init=False, default="")  # of the last attempt
    last_ticket: Ticket | None = field(init=False, default=None)
    retries: int = field(init=False, default=0)
    error: RequestError | None = field(init=False, default=None)  # why the client did not get a whole response
    reported_service_time: float | None = field(init=False, default=None)  # seconds, as the pool says
    response_bytes: int = field(init=False, default=0)  # of the pool's response, headers and framing included
    began_at: float = field(init=False, default=0.0)
    ended_at: float = field(init=False, default=0.0)

    # The request. method and upgrade are those of upstream.Requester.
    phase: Phase = field(init=False, default=RECEIVED)
    method: bytes = field(init=False)
    upgrade: bytes | None = field(init=False)
    keep_alive: bool = field(init=False)  # the client's connection may serve another request
    request_complete: bool = field(init=False)  # its last byte has arrived
    _body: RequestBody | None = field(init=False, default=None)  # None if it has none
    _waiter: Waiter | None = field(init=False, default=None)
    _span: Span | None = field(init=False, default=None)
    _failed_pools: frozenset[str] = field(init=False, default=NONE_EXCLUDED)
    _needs_new_connection: bool = field(init=False, default=False)  # kept-alive ones turned out closed

    # The attempt under way. `_start_attempt` resets what an attempt without response headers may have changed.
    _ticket: Ticket | None = field(init=False, default=None)
    _dial: asyncio.Task[None] | None = field(init=False, default=None)
    _connection: PoolConnection | None = field(init=False, default=None)
    _request_sent: bool = field(init=False, default=False)  # its last byte has been sent on this connection
    _retry_after: float = field(init=False, default=0.0)  # seconds that the pool wants to be left alone
    _first_byte_at: float | None = field(init=False, default=None)
    _responded_at: float | None = field(init=False, default=None)  # when the last byte of the response arrived

    # The final response, and what is to be written to the client next.
    _response: Response | None = field(init=False, default=None)
    _report: Report | None = field(init=False, default=None)
    _chunks_response: bool = field(init=False, default=False)  # its body goes to the client in chunks
    _head_out: bytes = field(init=False, default=b"")
    _body_out: list[bytes] = field(init=False)
    _tail_out: bytes = field(init=False, default=b"")

    def __post_init__(self) -> None:
        request = self.request
        self.method = request.method
        self.upgrade = request.upgrade
        self.keep_alive = request.keep_alive
        self.request_complete = request.length == 0
        self._body_out = []
        if request.length != 0:
            settings = self.context.settings
            may_repeat = request.idempotent or "non_idempotent" in settings.retry.on
            replay_bytes = settings.retry.buffer_bytes if may_repeat else None
            self._body = RequestBody(request.length is Body.CHUNKED, settings.limits.body_bytes, replay_bytes)

    def __repr__(self) -> str:
        return f"<Exchange {self.request!r}, {self.phase.name.lower()}>"

    # -- 1. The client

    def advance(self) -> None:
        """Go on after all bytes at hand of the request were read."""
        if self.phase is RECEIVED:
            self._start()
        elif self._body is not None:
            self._send_body(self._body)

    def on_request_body(self, data: bytes) -> None:
        """A piece of the body has arrived. Raises BadRequest if it is too large."""
        if self._body is not None:
            self._body.add(data)

    def on_request_end(self) -> None:
        """The last byte of the request has arrived."""
        self.request_complete = True
        # It is sent at once, if a connection is there. A response that came before it teaches no service time.
        if self._ticket is not None and self._response is None:
            self.context.router.request_sent(self._ticket, self.context.clock())

    def on_request_error(self, error: BadRequest) -> None:
        """The client's body is malformed, too large or too slow."""
        self._give_up(error)

    def on_client_writable(self, writable: bool) -> None:
        """The client takes its response too slowly, or takes it again."""
        connection, ticket = self._connection, self._ticket
        if connection is None or self.phase is TUNNEL:
            return
        if writable:
            connection.resume(CLIENT_SLOW)
        else:
            connection.pause(CLIENT_SLOW)
        self._update_deadline(connection)
        if ticket is not None:
            # From now on the end of the response depends on the client. It says nothing about the pool's speed.
            self.context.router.discard_timing(ticket, self.context.clock())

    def on_client_gone(self) -> None:
        """The client's connection is lost."""
        if self.phase not in (TUNNEL, DONE):  # a tunnel still delivers what is on its way to the pool
            self._give_up(ClientLeft("the client closed its connection"))

    def fail(self, bug: Exception) -> None:
        """An exception came out of the dispatcher's own code: end the request with status 500."""
        self.context.events.internal_error(bug)
        if self.phase is DONE:
            self.client.reset()
        else:
            self.keep_alive = False
            try:
                self._give_up(HandlerFailed(f"{type(bug).__name__}: {bug}"))
            except Exception as second_bug:  # noqa: BLE001 - the client must not wait for a response for ever
                self.context.events.internal_error(second_bug)
                self.client.reset()

    def _give_up(self, error: RequestError) -> None:
        """End the request wherever it is."""
        self._leave_queue()
        if self._ticket is not None:
            self._end_attempt(error)
        else:
            self._finish(error)

    # -- 2. Choosing a pool

    def _start(self) -> None:
        context, request = self.context, self.request
        self.began_at = context.clock()
        if context.begin_span is not None:
            self._span = context.begin_span(request)
        if context.name in request.passed:
            context.events.rejected("loop")
            self._respond(508, "the request has been here before: pools and dispatchers form a loop")
            self._finish(None)
        elif request.hops == 0:
            self._respond(200, "Max-Forwards: 0 ends at the dispatcher")
            self._finish(None)
        elif len(context.queue) > 0:  # no request is overtaken
            self._wait_for_room()
        else:
            self.on_room()

    def on_room(self) -> None:
        """No other request waits before this one, and there may be room in a pool."""
        try:
            self._route(NONE_EXCLUDED)
        except PoolsFull:
            if self._waiter is None:
                self._wait_for_room()
        except RequestError as error:
            self._refuse(error)
        else:
            self._leave_queue()
            self.context.retry_budget.earn()
            self._start_attempt()

    def _wait_for_room(self) -> None:
        try:
            self._waiter = self.context.queue.wait(self)
        except QueueFull as error:
            self.context.events.queued(0.0)  # the histogram counts every request that found all pools full
            self._refuse(error)
        else:
            self.phase = QUEUED
            self._hold_body()

    def on_wait_timeout(self) -> None:
        """No pool had room in time."""
        self._refuse(QueueTimeout("no pool had room in time"))

    def _refuse(self, error: RequestError) -> None:
        """No pool takes the request."""
        self._leave_queue()
        self.context.events.rejected(error.reason)
        self._finish(error)

    def _leave_queue(self) -> None:
        """The request waits no more, if it did."""
        if self._waiter is not None:
            self.context.queue.leave(self._waiter)
            self._waiter = None
            self.context.events.queued(self.context.clock() - self.began_at)

    def _route(self, exclude: frozenset[str]) -> None:
        """Open a ticket. Raises NoPoolAvailable or PoolsFull."""
        context = self.context
        job = Job(next(context.job_numbers))
        ticket = context.router.route(job, context.clock(), exclude, sent=self.request_complete)
        self._ticket = self.last_ticket = ticket
        self.pool = ticket.pool.id

    def _start_attempt(self) -> None:
        """Send the request to the pool of the ticket."""
        self._retry_after = 0.0
        self._first_byte_at = None
        connection_pool = self.context.connection_pools[self.pool]
        connection = None if self._needs_new_connection else connection_pool.take_idle()
        if connection is not None:
            self._send(connection)
        else:
            self.phase = CONNECTING
            self._hold_body()
            self._dial = connection_pool.dial(self)

    def on_connected(self, connection: PoolConnection) -> None:
        """The new connection is there."""
        self._dial = None
        self._send(connection)

    def on_connect_failed(self, error: RequestError) -> None:
        """The pool did not accept a connection."""
        self._dial = None
        self._end_attempt(error)

    def _send(self, connection: PoolConnection) -> None:
        """Send the request's headers, and what has arrived of its body."""
        context, body = self.context, self._body
        self.phase = SENT
        self._connection = connection
        trace = self._span.traceparent if self._span is not None else None
        connection.begin(self, forward_request(self.request, self.client.peer, context.name, trace))
        self._request_sent = body is None
        if not connection.is_open:
            self._end_attempt(connection.reason_lost())
            return
        if not self.client.is_writable:  # it has not taken the interim responses of the last attempt yet
            self.on_client_writable(False)
        if body is not None:
            self._send_body(body)
        else:
            self._update_deadline(connection)

    def _send_body(self, body: RequestBody) -> None:
        connection = self._connection
        if connection is None or self._request_sent:
            self._hold_body()
            return
        data = body.take(self.request_complete)
        if data:
            connection.write(data)
        self._request_sent = self.request_complete
        self.client.resume(BODY_BUFFER_FULL)
        self._update_deadline(connection)

    def _hold_body(self) -> None:
        """Read no more of the request's body than the buffer holds, while it cannot be sent."""
        if self._body is not None and self._body.unsent_bytes > MAX_BUFFERED_BODY_BYTES:
            self.client.pause(BODY_BUFFER_FULL)

    def _update_deadline(self, connection: PoolConnection) -> None:
        """Give the pool a deadline if the next bytes are its own to send or to take, and none otherwise.

        So a client that sends its body or takes its response too slowly never causes a timeout of the pool.
        """
        timeouts = self.context.settings.timeouts
        client_is_next = bool(connection.pause_reasons) or (not self._request_sent and connection.is_writable)
        if client_is_next:
            connection.deadline.clear()
        elif self._response is None and connection.is_writable:
            connection.deadline.set(timeouts.answer)
        else:
            connection.deadline.set(timeouts.idle)

    # -- 3. The pool (upstream.Requester)

    def on_pool_writable(self, writable: bool) -> None:
        """The pool takes the request's body too slowly, or takes it again."""
        if self._connection is None:
            return
        if writable:
            self.client.resume(POOL_SLOW)
        else:
            self.client.pause(POOL_SLOW)
        self._update_deadline(self._connection)

    def on_response(self, response: Response) -> None:
        """Response headers have arrived. The attempt may end here, if another one is to be made."""
        context, status = self.context, response.status
        if self._first_byte_at is None:
            self._first_byte_at = context.clock()
        is_interim = status < 200 and status != SWITCHING_PROTOCOLS
        if is_interim:
            if self.request.minor > 0:  # HTTP/1.0 knows no interim responses
                self._add_head(response)
            return
        if status in REJECTIONS:
            self._retry_after = parse_retry_after(response.retry_after, wall())
        if status >= 429:  # the least status in `retry.on`
            rejected = UpstreamRejected(status)
            # Ask before the ticket is closed: without another attempt, this response goes to the client.
            if self._claim_retry(rejected):
                self._flush()  # interim responses
                self._close_ticket(rejected)
                self._retry(rejected)
                return
        self.phase = RESPONDING
        self._response = response
        self._chunks_response = isinstance(response.length, Body) and self.request.minor > 0
        self.keep_alive = self.keep_alive and self.request_complete and not self._ends_with_connection
        self.reported_service_time = parse_server_timing(response.timing)
        if response.load is not None and context.settings.reports.read:
            self._report = load_report.parse(response.load, context.clock())
        self._add_head(response)

    def on_response_body(self, data: bytes) -> None:
        self._body_out.append(data)

    def on_response_end(self, trailers: list[bytes]) -> bool:
        """A response is complete. Return whether another one follows it."""
        if self._response is None:
            return True  # it was an interim response
        if self._response.status != SWITCHING_PROTOCOLS:  # what follows a 101 belongs to the tunnel
            if self._chunks_response:
                self._tail_out = last_chunk(trailers if self.request.trailers else ())
            self._responded_at = self.context.clock()
        return False

    def on_read_end(self) -> None:
        """The bytes at hand of the response were read: write them to the client."""
        if self._connection is None:
            return  # the attempt has ended in the meantime
        self._flush()
        if self._responded_at is not None:
            self._end_attempt(None)
        elif self._response is not None:
            if self._response.status == SWITCHING_PROTOCOLS:
                self._start_tunnel(self._connection)
            else:
                # Interim responses and parts of headers do not extend the deadline.
                self._update_deadline(self._connection)

    def on_pool_failed(self, error: RequestError) -> None:
        """The response will not come, or not the rest of it."""
        if self._connection is None:
            return
        self._flush()
        self._end_attempt(error)

    def on_pool_timeout(self) -> None:
        what = "did not answer" if self._response is None else "did not go on with its answer"
        self.on_pool_failed(UpstreamTimeout(f"pool {self.pool} {what} in time"))

    def _add_head(self, response: Response) -> None:
        context = self.context
        hidden = NO_FIELDS if context.settings.reports.forward else LOAD_REPORT_FIELDS
        self._head_out += forward_response(
            response, self.request.minor, self.keep_alive, context.name, http_date(), hidden
        )

    def _flush(self) -> None:
        """Write to the client what has arrived of the response."""
        data = b"".join(self._body_out)
        self._body_out.clear()
        if self._chunks_response and data:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head_out or self._tail_out:
            data = b"".join((self._head_out, data, self._tail_out))
            self._head_out = self._tail_out = b""
        if data:
            self.response_bytes += len(data)
            self.client.write(data)

    @property
    def _ends_with_connection(self) -> bool:
        """The client sees the end of its response only by the end of the connection."""
        return self._response is not None and isinstance(self._response.length, Body) and not self._chunks_response

    def _start_tunnel(self, connection: PoolConnection) -> None:
        if not self.client.is_open:
            return  # the loss of the client's connection is on its way, and ends the request
        if not connection.is_open or self._ticket is None:
            self._end_attempt(UpstreamProtocolError(f"pool {self.pool} switched protocols and left"))
            return
        self.phase = TUNNEL
        self.keep_alive = False
        self.context.router.discard_timing(self._ticket, self.context.clock())
        self.client.start_tunnel(connection, self)

    def on_tunnel_end(self) -> None:
        """Both connections of the tunnel are closed."""
        self._responded_at = self.context.clock()
        try:
            self._end_attempt(None)
        except Exception as bug:  # noqa: BLE001 - the event loop would only log it
            self.fail(bug)

    # -- 4. The end

    def _end_attempt(self, error: RequestError | None) -> None:
        """Close the ticket; then make another attempt, or finish the request.

        error: why the attempt ended without a whole response; None if there is one.
        """
        self._close_ticket(error)  # no response can be forwarded, so the ticket is closed before a retry is claimed
        if error is not None and self._claim_retry(error):
            self._retry(error)
        else:
            self._finish(error)

    def _close_ticket(self, error: RequestError | None) -> None:
        """Count the request out of its pool, and report what the attempt says about the pool."""
        context, ticket, connection = self.context, self._ticket, self._connection
        assert ticket is not None, "an attempt ends once"
        self._ticket = self._connection = None  # nothing from here to `complete` may raise
        status = self._response.status if self._response is not None else 0
        if isinstance(error, UpstreamRejected):
            status = error.status
        evidence = judge(error, status, context.router.learns_rejections)
        completion = context.router.complete(
            ticket,
            self._responded_at or context.clock(),
            evidence.outcome,
            self.reported_service_time,
            evidence.teaches,
            self._report,
            evidence.accepted,
            self._retry_after,
            self._first_byte_at,
        )
        # The count is right now, whatever the following calls do.
        if self._dial is not None:
            self._dial.cancel()
            self._dial = None
        if self.client.pause_reasons:
            self.client.resume(POOL_SLOW)
        if connection is not None:
            response = self._response
            clean = error is None and self._request_sent and response is not None and response.keep_alive
            connection.release(clean)
        # A stale connection counts as an error of the pool, although it says nothing about the pool's health.
        if isinstance(error, UpstreamError) and error.status >= 500 and evidence.failure is not False:
            context.events.upstream_failed(self.pool, error)
        if evidence.failure is not None:
            context.health.attempt_ended(completion, evidence.failure)

    def _claim_retry(self, error: RequestError) -> bool:
        """Return whether to try again, and spend one retry of the budget. The caller must go on with `_retry`.

        Another attempt must be configured for this error and be within `retry.attempts`. It must not do harm: to
        connect again is harmless, and other attempts may repeat the request. It needs a pool with room, unless it
        only replaces a stale connection.
        """
        context, retry = self.context, self.context.settings.retry
        cause = error.retry_cause
        # Errors without a cause (the client left, a bad request, a bug) are in no configuration.
        if cause not in retry.on or self._response is not None or self.retries >= retry.attempts - 1:
            return False
        if cause != "connect" and not self._may_be_repeated:
            return False
        if cause != "stale" and not context.router.fleet.has_room_outside(self._failed_pools | {self.pool}):
            return False
        return context.retry_budget.spend(context.clock())

    @property
    def _may_be_repeated(self) -> bool:
        """The pool may have served the request already, and serving it twice is allowed and possible."""
        allowed = self.request.idempotent or "non_idempotent" in self.context.settings.retry.on
        return allowed and (self._body is None or self._body.can_be_replayed)

    def _retry(self, error: RequestError) -> None:
        """Make another attempt, at a pool that has not failed. error: why the last attempt failed."""
        if isinstance(error, UpstreamStale):  # the pool works, but its other old connections may be closed, too
            self._needs_new_connection = True
        else:
            self._failed_pools |= {self.pool}
        try:
            self._route(self._failed_pools)
        except RequestError:  # after a stale connection, whose pool need not have had room
            self._finish(error)
            return
        self.retries += 1
        self.context.events.retried(error.reason)
        if self._body is not None:
            self._body.rewind()
        self._start_attempt()

    def _finish(self, error: RequestError | None) -> None:
        """End the request: the client has its response, gets an error response, or sees a broken response."""
        context = self.context
        client_left = isinstance(error, ClientLeft)
        if client_left:
            context.events.client_left()
            self.status = CLIENT_CLOSED_REQUEST
        elif error is not None:
            self.error = error
        if self._response is not None and not client_left:
            self.status = self._response.status
        self.phase = DONE
        if error is not None and not client_left:
            if self._response is None:
                self._respond(error.status, error.public)
            else:
                self.keep_alive = False
                self.client.break_off(self._ends_with_connection)
        try:
            self._record()
        except Exception as bug:  # noqa: BLE001 - a log that fails must not cost the client its response
            context.events.internal_error(bug)
            self.keep_alive = False
        if not client_left:
            self.client.on_exchange_end()

    def _respond(self, status: int, text: str) -> None:
        """Send a response of the dispatcher's own."""
        self.status = status
        self.keep_alive = self.keep_alive and self.request_complete
        self.client.write(own_response(status, text, http_date(), self.keep_alive, self.method))

    def _record(self) -> None:
        """Write the request to metrics, access log and trace."""
        context = self.context
        self.ended_at = context.clock()
        if self.pool:
            context.events.answered(self.pool, self.status, self.ended_at - self.began_at)
        if context.on_finished is not None:
            context.on_finished(self)
        if self._span is not None:
            self._span.end(self)

    # -- What logs show

    @property
    def peer(self) -> Peer:
        """The client."""
        return self.client.peer

    @property
    def ended_by(self) -> str | None:
        """Which side kept the request from its end: client, pool or dispatcher; None if it came to its end."""
        if self.status == CLIENT_CLOSED_REQUEST or isinstance(self.error, BadRequest):
            return "client"
        if self.error is None:
            return None
        return "pool" if isinstance(self.error, UpstreamError) else "dispatcher"
