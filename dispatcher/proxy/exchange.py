"""One request's straight path: route, send, relay, settle. The only place that routes and settles.

Each try opens its ticket and closes it in the same scope, whatever happens in between. The request's body and the
answer flow by callbacks straight between the two connections, held back when the far side is slow; the coroutine
waits for the end.
"""

from __future__ import annotations

import asyncio
import contextlib

from dispatcher.core.router import NOTHING
from dispatcher.core.types import Job, Outcome, Report, Ticket
from dispatcher.errors import BadRequest, OutOfResources, PoolsFull, RequestError, UpstreamRefused, UpstreamStale
from dispatcher.http import load_report as orca
from dispatcher.http.forwarded import Peer
from dispatcher.http.framing import Body
from dispatcher.http.request import Request, forward_request
from dispatcher.http.response import Response, forward_response, last_chunk, own_answer, retry_after, service_time
from dispatcher.platform.clock import http_date, wall
from dispatcher.proxy.admission_queue import Place
from dispatcher.proxy.context import Client, Forwarder, Span
from dispatcher.proxy.retry_budget import accepted, cause
from dispatcher.proxy.upstream import SWITCHING, PoolConnection

CLIENT_LEFT = 499
SHOWN: frozenset[bytes] = frozenset()
HIDDEN = frozenset({orca.FIELD})  # load reports are for us, unless told otherwise


class Exchange:
    """One request and its answer. After `run`, `keep_alive` says whether the client's connection may go on."""

    __slots__ = (
        "_answered_at",
        "_chunked",
        "_client",
        "_connection",
        "_failed",
        "_first_byte_at",
        "_forwarder",
        "_head",
        "_pieces",
        "_place",
        "_refused",
        "_report",
        "_response",
        "_rest",
        "_retriable",
        "_span",
        "_tail",
        "_ticket",
        "_turned_away",
        "began_at",
        "ended_at",
        "fault",
        "keep_alive",
        "last",
        "method",
        "pool",
        "reported",
        "request",
        "retries",
        "sent",
        "status",
        "upgrade",
    )  # fmt: skip

    def __init__(self, forwarder: Forwarder, request: Request, client: Client) -> None:
        self._forwarder = forwarder
        self._client = client
        self.request = request
        self.method = request.method
        self.upgrade = request.upgrade
        self.keep_alive = request.keep_alive
        self._connection: PoolConnection | None = None
        self._response: Response | None = None
        self._answered_at: float | None = None  # when the last byte of the answer was here
        self._first_byte_at: float | None = None  # when the first head of the answer arrived, interim ones included
        self._report: Report | None = None
        self.reported: float | None = None  # seconds of service, in the pool's own word
        self._refused: BadRequest | None = None
        self._place: Place | None = None  # in the queue
        self._ticket: Ticket | None = None
        self._chunked = False
        self._head = b""  # what is to be written next: heads, pieces of the body, what ends it
        self._pieces: list[bytes] = []
        self._tail = b""
        self._failed = NOTHING  # pools that had their try
        self._turned_away = False  # the pool has answered that it takes no more
        self._rest = 0.0  # seconds for which it wants to be left alone
        self._retriable = False  # the try under way may be followed by another
        self._span: Span | None = None
        self.last: Ticket | None = None
        self.pool = ""  # the last one tried
        self.retries = 0
        self.fault: RequestError | None = None  # why the client got no answer, or not the whole of one
        self.sent = 0  # bytes of the pool's answer, heads and framing included, that went to the client
        self.status = 500  # as the client saw it
        self.began_at = self.ended_at = 0.0

    def __repr__(self) -> str:
        return f"<Exchange {self.request!r} {self._response or 'unanswered'}>"

    async def run(self) -> None:
        """Serve the request. Raises nothing but CancelledError, when the client has left."""
        forwarder = self._forwarder
        self.began_at = forwarder.clock()
        if forwarder.spans is not None:
            self._span = forwarder.spans.begin(self.request)
        try:
            if not self._is_ours():
                self.fault = await self._tries()
                if self.fault is None:
                    self.status = self._status
                else:
                    self._answer_error(self.fault)
        except asyncio.CancelledError:
            self.status = CLIENT_LEFT
            forwarder.events.client_left()
            raise
        finally:
            self._over()

    def _over(self) -> None:
        """Tell everybody who wants to know."""
        forwarder = self._forwarder
        self.ended_at = forwarder.clock()
        if self.pool:
            forwarder.events.answered(self.pool, self.status, self.ended_at - self.began_at)
        if forwarder.log is not None:
            forwarder.log.over(self)
        if self._span is not None:
            self._span.end(self)

    def _is_ours(self) -> bool:
        """Answer what must not go on: a request that has been here before, or may make no further hop."""
        if self._forwarder.name in self.request.passed:
            self._forwarder.events.rejected("loop")
            self._answer(508, "the request has been here before: pools and dispatchers form a loop")
        elif self.request.hops == 0:
            self._answer(200, "Max-Forwards: 0 ends at the dispatcher")
        else:
            return False
        return True

    async def _tries(self) -> RequestError | None:
        """Try until an answer is here or there is no more to try; the error of the last try."""
        try:
            ticket = await self._admit()
        except RequestError as error:
            if error is not self._refused:  # which has been counted
                self._forwarder.events.rejected(error.reason)
            return error
        self._forwarder.budget.request()
        fresh = False
        while True:
            self._retriable = self.retries < self._forwarder.settings.retry.attempts - 1
            fault = await self._try(ticket, fresh)
            if fault is None or not (isinstance(fault, UpstreamRefused) or self._may_try_again(fault)):
                return fault
            if isinstance(fault, UpstreamStale):  # it says nothing of the pool, but of its other old connections
                fresh = True
            else:
                self._failed |= {self.pool}
            try:
                ticket = self._route(self._failed)
            except RequestError:
                return fault
            self.retries += 1
            self._forwarder.events.retried(fault.reason)

    def _may_try_again(self, fault: RequestError) -> bool:
        """Configured, harmless, possible, with somewhere to go, and within the budget; asked in this order."""
        forwarder, on, word = self._forwarder, self._forwarder.settings.retry.on, cause(fault)
        if not self._retriable or self.begun or word not in on:
            return False
        if word != "connect" and not self._may_be_repeated:
            return False
        if word != "stale" and not forwarder.router.fleet.has_room_outside(self._failed | {self.pool}):
            return False
        return forwarder.budget.take(forwarder.clock())

    @property
    def _may_be_repeated(self) -> bool:
        allowed = self.request.idempotent or "non_idempotent" in self._forwarder.settings.retry.on
        return allowed and self._client.replayable

    def _route(self, failed: frozenset[str] = NOTHING) -> Ticket:
        job, now = Job(next(self._forwarder.numbers)), self._forwarder.clock()
        return self._forwarder.router.route(job, now, failed, sent=self._client.upload_complete)

    async def _admit(self) -> Ticket:
        """A ticket, at once if nobody waits and a pool has room, else in turn."""
        queue = self._forwarder.queue
        if queue.empty:
            with contextlib.suppress(PoolsFull):
                return self._route()
        try:
            with queue.place() as self._place:
                while True:
                    await self._place.turn()
                    with contextlib.suppress(PoolsFull):
                        return self._route()
        finally:
            self._forwarder.events.queued(self._forwarder.clock() - self.began_at)

    async def _try(self, ticket: Ticket, fresh: bool) -> RequestError | None:
        """Send the request where the ticket says and relay the answer; settles the ticket."""
        forwarder, pool = self._forwarder, ticket.pool.id
        outcome = Outcome.CANCELLED
        fault: RequestError | None = None
        connection: PoolConnection | None = None
        self._ticket = self.last = ticket
        self.pool = pool
        self._turned_away, self._rest, self._first_byte_at = False, 0.0, None
        try:
            upstream = forwarder.upstreams[pool]
            connection = (None if fresh else upstream.idle()) or await upstream.connect()
            self._connection = connection
            if self._refused is not None:
                raise self._refused
            trace = self._span.traceparent if self._span is not None else None
            head = forward_request(self.request, self._client.peer, forwarder.name, trace)
            over = connection.begin(self, head, self.request.length)
            self._client.attach_upload(connection)
            await over
        except (BadRequest, OutOfResources) as error:
            fault = error  # the client broke its own upload, or we have no files left: nothing to hold against the pool
        except RequestError as error:
            fault = error
            if error.status < 500:
                outcome = Outcome.OK  # 429 is an answer, and no failure
            else:
                if not isinstance(error, UpstreamStale):  # an old connection's end says nothing of the pool now
                    outcome = Outcome.TIMED_OUT if error.status == 504 else Outcome.FAILED
                if not self._is_expected(error):
                    forwarder.events.upstream_failed(pool, error)
        finally:
            if (
                fault is None and self._answered_at is not None
            ):  # also if the client left when the pool had done its part
                outcome = Outcome.OK if self._status < 500 else Outcome.FAILED
            self._ticket = self._connection = None
            ended_at = self._answered_at or forwarder.clock()
            teaches = 200 <= self._status < 400  # not the length of a tunnel, nor how fast something went wrong
            done = forwarder.router.complete(
                ticket,
                ended_at,
                outcome,
                self.reported,
                teaches,
                self._report,
                accepted(fault, self.begun, self._turned_away),
                self._rest,
                self._first_byte_at,
            )
            self._client.attach_upload(None)  # after the count: nothing that follows may keep it from coming down
            if connection is not None:
                connection.release()
            if not isinstance(fault, UpstreamStale):  # the end of an old connection says nothing of the pool now
                forwarder.health.attempt_ended(done, self._is_expected(fault))
        return fault

    def _is_expected(self, fault: RequestError | None) -> bool:
        """The pool has turned the request away as it should, and that is what the policy is to learn: no sign of
        illness."""
        whole = fault is None or isinstance(fault, UpstreamRefused)
        return whole and self._turned_away and self._forwarder.router.learns_rejections

    @property
    def peer(self) -> Peer:
        """Who asked."""
        return self._client.peer

    @property
    def ended_by(self) -> str | None:
        """Who kept the request from its end: client, pool or dispatcher; None if nobody did."""
        if self.status == CLIENT_LEFT or isinstance(self.fault, BadRequest):
            return "client"
        if self.fault is None:
            return None
        return "dispatcher" if self.fault.status == 503 and not isinstance(self.fault, UpstreamRefused) else "pool"

    @property
    def _status(self) -> int:
        """Of the pool's answer, 0 while there is none."""
        return self._response.status if self._response is not None else 0

    def _answer_error(self, error: RequestError) -> None:
        """An answer of our own, or a broken one if the pool's has begun."""
        if self.begun:
            self.status = self._status
            self.break_off()
            return
        self._answer(error.status, error.public)

    def _answer(self, status: int, text: str) -> None:
        self.status = status
        self.keep_alive = self.keep_alive and self._client.upload_complete
        self._client.write(own_answer(status, text, http_date(), self.keep_alive, self.method))

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
        elif self._place is not None:
            self._place.give_up(error)

    def upload_ended(self) -> None:
        """The last byte of the request is here, and goes on at once."""
        if self._ticket is not None and not self.begun:
            self._forwarder.router.request_sent(self._ticket, self._forwarder.clock())

    def client_writable(self, writable: bool) -> None:
        """The client takes its answer too slowly; or well again."""
        if self._connection is not None:
            self._connection.hold(not writable)
            if self._ticket is not None:
                self._forwarder.router.discard_timing(self._ticket, self._forwarder.clock())

    # -- upstream.Conversation: called by the pool's connection

    def answer_head(self, response: Response) -> None:
        if self._first_byte_at is None:
            self._first_byte_at = self._forwarder.clock()
        interim = response.status < 200 and response.status != SWITCHING
        if interim and self.request.minor == 0:
            return  # HTTP/1.0 knows no interim answers
        if response.status in (429, 503):
            self._turned_away, self._rest = True, retry_after(response.retry_after, wall())
        if response.status >= 429 and self._retriable:
            refused = UpstreamRefused(response.status)
            if self._may_try_again(refused):
                raise refused
        if not interim:
            self._response = response
            self._chunked = isinstance(response.length, Body) and self.request.minor > 0
            self.keep_alive = self.keep_alive and not self.unframed and self._client.upload_complete
            self.reported = service_time(response.timing)
            if response.load is not None and self._forwarder.settings.reports.read:
                self._report = orca.parse(response.load, self._forwarder.clock())
        forwarder = self._forwarder
        hidden = SHOWN if forwarder.settings.reports.forward else HIDDEN
        date = http_date()
        self._head += forward_response(response, self.request.minor, self.keep_alive, forwarder.name, date, hidden)

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
            self.sent += len(data)
            self._client.write(data)

    def switched(self, rest: bytes) -> None:
        assert self._connection is not None
        assert self._ticket is not None
        self.keep_alive = False
        self._forwarder.router.discard_timing(self._ticket, self._forwarder.clock())
        self._client.join(self._connection, rest, self._tunnel_over)

    @property
    def tunnelled(self) -> bool:
        return self._connection is not None and self._connection.tunnelled

    def _tunnel_over(self) -> None:
        self._answered_at = self._forwarder.clock()
        if self._connection is not None:
            self._connection.tunnel_over()

    def hold_upload(self, hold: bool) -> None:
        self._client.hold_reading(hold)
