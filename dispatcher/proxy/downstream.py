"""One client connection: requests in, one at a time, and their responses out in the same order.

What a client sends beyond the request under way stays unread, up to a bound. A client that closes its side of the
connection is taken to have left, as nginx does: its request is given up at once.
"""

from __future__ import annotations

import asyncio
import select
import sys
from collections.abc import Callable
from enum import Enum, auto

from dispatcher.errors import BadRequest
from dispatcher.http.forwarded import Peer
from dispatcher.http.framing import Body
from dispatcher.http.request import parse_request
from dispatcher.http.response import own_response
from dispatcher.platform.clock import Timer, http_date
from dispatcher.proxy.connection import ANY_REASON, BODY_BUFFER_FULL, PIPELINE_FULL, Connection
from dispatcher.proxy.context import ProxyContext
from dispatcher.proxy.exchange import RECEIVED, Exchange
from dispatcher.proxy.tunnel import Tunnel
from dispatcher.proxy.upstream import PoolConnection
from dispatcher.settings import LiveSettings

MAX_PIPELINED_BYTES = 65536  # that are kept unread while a request is under way
HANGUP_POLL_SECONDS = 0.25  # between two checks whether a client that is not read from is still connected
DRAIN_GRACE_SECONDS = 0.25  # in which a request that was sent before the client knew of the drain is still served
LINGER_SECONDS = 2.0  # in which a client may still read its response while it goes on sending


class State(Enum):
    """Where a client's connection is in its life."""

    READING = auto()  # waits for a request, or for the rest of its headers
    BUSY = auto()  # a request is under way
    BETWEEN = auto()  # a response is written, and the next request is not begun yet
    TUNNEL = auto()  # another protocol took over
    LINGERING = auto()  # our side is closed, and what the client still sends is discarded
    CLOSED = auto()  # closing, or closed


# In Python 3.11 the name of a module is looked up much faster than a member of an Enum.
READING, BUSY, BETWEEN, TUNNEL, LINGERING, CLOSED = State


class ClientConnection(Connection):
    """One connection from a client.

    on_opened, on_closed: called once each, when the connection is made and when it is lost.
    """

    __slots__ = (
        "_context",
        "_exchange",
        "_hangup_poll",
        "_is_unused",
        "_on_closed",
        "_on_opened",
        "_read_deadline",
        "_settings",
        "_state",
        "_write_deadline",
        "is_draining",
        "peer",
    )

    def __init__(
        self,
        context: ProxyContext,
        on_opened: Callable[[ClientConnection], None],
        on_closed: Callable[[ClientConnection], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop, context.settings.limits.head_bytes or sys.maxsize)
        self._context = context
        self._settings: LiveSettings = context.settings
        self._on_opened = on_opened
        self._on_closed = on_closed
        self._state = READING
        self._exchange: Exchange | None = None
        self._read_deadline = Timer(loop, self._on_read_deadline)  # for the client to send what it owes
        self._write_deadline = Timer(loop, self.reset)  # for the client to take what it is sent
        self._hangup_poll = Timer(loop, self._poll_hangup)
        self._is_unused = True  # no request has arrived on it
        self.is_draining = False
        self.peer: Peer

    def __repr__(self) -> str:
        return f"<ClientConnection {self._exchange or self._state.name.lower()}>"

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        name = transport.get_extra_info("peername")
        host, port = (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)
        scheme = b"http" if transport.get_extra_info("sslcontext") is None else b"https"
        self.peer = Peer(host, port, scheme, self._settings.trusted)
        self._read_deadline.set(self._settings.timeouts.head)
        self._on_opened(self)

    def data_received(self, data: bytes) -> None:
        state = self._state
        if state is READING:
            is_first = not self.reader.has_begun_message
            self._read(data)
            if is_first and self.reader.has_begun_message and self._state is READING:
                # The deadline is for all headers together: further bytes do not move it.
                self._read_deadline.set(self._settings.timeouts.head)
        elif state is BUSY and self._exchange is not None and not self._exchange.request_complete:
            self._read(data)
        elif state is BUSY or state is BETWEEN:
            self.reader.rest += data
            if len(self.reader.rest) > MAX_PIPELINED_BYTES:
                self.pause(PIPELINE_FULL)

    def eof_received(self) -> bool:
        if self._exchange is not None:
            self.reset()
        else:
            self._close(linger=False)  # as the transport would, but with a deadline for what is not sent yet
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.transport = None
        self._read_deadline.stop()
        self._write_deadline.stop()
        self._hangup_poll.stop()
        self._state = CLOSED
        self._on_closed(self)
        exchange = self._exchange
        if exchange is not None:
            try:
                exchange.on_client_gone()
            except Exception as bug:  # noqa: BLE001 - the ticket must be closed in any case
                exchange.fail(bug)

    def pause_writing(self) -> None:
        self._write_deadline.set(self._settings.timeouts.idle)
        self._set_writable(False)

    def resume_writing(self) -> None:
        if self._state is CLOSED:
            self._write_deadline.set(self._settings.timeouts.idle)  # for the rest, before the connection closes
        else:
            self._write_deadline.clear()
        self._set_writable(True)
        if self._state is BETWEEN:
            self._begin_next()

    def _set_writable(self, writable: bool) -> None:
        self.is_writable = writable
        if self._exchange is not None:
            try:
                self._exchange.on_client_writable(writable)
            except Exception as bug:  # noqa: BLE001 - as above
                self._exchange.fail(bug)

    # -- framing.Sink

    def on_head(self, raw: bytes) -> int | Body:
        limits = self._settings.limits
        request = parse_request(raw, limits.headers or len(raw))
        if limits.body_bytes and isinstance(request.length, int) and request.length > limits.body_bytes:
            raise BadRequest(f"the body is over {limits.body_bytes} bytes", 413, "body_too_large")
        self._is_unused = False
        self._exchange = exchange = Exchange(self._context, request, self)
        if self.is_draining:
            exchange.keep_alive = False
        return request.length

    def on_data(self, data: bytes) -> None:
        if self._exchange is not None:
            self._exchange.on_request_body(data)

    def on_end(self, trailers: list[bytes]) -> bool:
        self._read_deadline.clear()
        if self._exchange is not None and not self._exchange.request_complete:
            self._exchange.on_request_end()
        return False  # the next request is read when this one has its response

    # -- reading requests

    def _read(self, data: bytes | None) -> None:
        """Read these bytes, or those at hand if there are none, and let the request go on."""
        try:
            try:
                if data is None:
                    self.reader.next()
                else:
                    self.reader.feed(data)
            except BadRequest as error:
                self._reject(error)
                return
            if self._exchange is not None:
                self._state = BUSY
                self._exchange.advance()
            if self._exchange is not None and not self._exchange.request_complete:
                self._read_deadline.set(self._settings.timeouts.idle)  # for the next piece of its body
        except Exception as bug:  # noqa: BLE001 - it is counted and logged, and the client gets status 500
            self._fail(bug)

    def _reject(self, error: BadRequest) -> None:
        """The request cannot be understood, or must not be forwarded. What follows it cannot be read, either."""
        self._context.events.rejected(error.reason)
        exchange = self._exchange
        if exchange is not None and exchange.phase is not RECEIVED:
            exchange.on_request_error(error)
            return
        if self._context.on_unreadable is not None:
            self._context.on_unreadable(self.peer, error)
        self._exchange = None
        self.write(own_response(error.status, error.public, http_date(), keep_alive=False))
        self._close(linger=True)

    def on_exchange_end(self) -> None:
        """The response is written: go on with the next request, or close."""
        exchange = self._exchange
        assert exchange is not None
        self._exchange = None
        keep_alive = exchange.keep_alive and exchange.request_complete and not self.is_draining
        if not keep_alive:
            # A client that is still sending would lose its response by a plain close.
            self._close(linger=not exchange.request_complete or self.reader.rest != b"")
        elif self.reader.rest or not self.is_writable:
            self._state = BETWEEN
            if self.is_writable:
                # The event loop comes first, so that a long pipeline does not keep other connections waiting.
                self.loop.call_soon(self._begin_next)
        else:
            self._state = READING
            self._read_deadline.set(self._settings.timeouts.keepalive)
            self.reader.next()
            if self.pause_reasons:
                self.resume(PIPELINE_FULL | BODY_BUFFER_FULL)

    def _begin_next(self) -> None:
        """Read the next request from the bytes at hand."""
        if self._state is not BETWEEN:
            return
        if self.is_draining:
            self._close(linger=self.reader.rest != b"")
            return
        self._state = READING
        self._read_deadline.set(self._settings.timeouts.keepalive)
        self._read(None)
        if len(self.reader.rest) > MAX_PIPELINED_BYTES and self._exchange is not None:
            self.pause(PIPELINE_FULL)
            return
        if self.pause_reasons and self._exchange is None:
            self.resume(PIPELINE_FULL | BODY_BUFFER_FULL)
        elif self.pause_reasons:
            self.resume(PIPELINE_FULL)
        if self._state is READING and self.reader.has_begun_message:
            self._read_deadline.set(self._settings.timeouts.head)

    def pause(self, reason: int) -> None:
        super().pause(reason)
        self._hangup_poll.set(HANGUP_POLL_SECONDS)

    def _poll_hangup(self) -> None:
        """Check whether the client has left.

        While reading is paused, an event loop does not report that. Without the check an abandoned request would keep
        its place in the pool.
        """
        sock = self.transport.get_extra_info("socket") if self.transport is not None else None
        if sock is None or not self.pause_reasons or sock.fileno() < 0:
            return
        poll = select.poll()
        poll.register(sock.fileno(), select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        if self._exchange is not None and poll.poll(0):
            self.reset()
        else:
            self._hangup_poll.set(HANGUP_POLL_SECONDS)

    def _on_read_deadline(self) -> None:
        if self._state is LINGERING:
            self.reset()
        elif self.pause_reasons:
            self._read_deadline.set(self._settings.timeouts.idle)  # the client cannot send: we do not read
        elif self._exchange is not None:
            self._reject_late(BadRequest("the body of the request did not go on in time", 408, "body_timeout"))
        elif self.reader.has_begun_message:
            self._reject_late(BadRequest("the head of the request did not come in time", 408, "head_timeout"))
        else:
            self._close(linger=False)

    def _reject_late(self, error: BadRequest) -> None:
        try:
            self._reject(error)
        except Exception as bug:  # noqa: BLE001 - as in `_read`
            self._fail(bug)

    def _fail(self, bug: Exception) -> None:
        """An exception came out of the dispatcher's own code."""
        if self._exchange is not None:
            self._exchange.fail(bug)
        else:
            self._context.events.internal_error(bug)
            self.write(own_response(500, "internal error", http_date(), keep_alive=False))
            self._close(linger=True)

    def start_tunnel(self, connection: PoolConnection, exchange: Exchange) -> None:
        """Become a tunnel to this connection of a pool. At its end `on_tunnel_end` of the exchange is called."""
        assert self.transport is not None
        assert connection.transport is not None
        self._state = TUNNEL
        self._read_deadline.stop()
        self._write_deadline.stop()
        self._hangup_poll.stop()
        self.resume(ANY_REASON)
        from_client, self.reader.rest = self.reader.rest, b""
        from_pool = connection.start_tunnel()
        timeouts = self._settings.timeouts
        tunnel = Tunnel(self.loop, timeouts.tunnel, timeouts.idle, exchange.on_tunnel_end)
        tunnel.join((self.transport, self, from_client), (connection.transport, connection, from_pool))

    # -- its end

    def break_off(self, ends_with_connection: bool) -> None:
        """Close in the middle of a response, so that the client sees that it is not whole.

        ends_with_connection: an orderly close would look like the end of the response.
        """
        if ends_with_connection:
            self.reset()
        else:
            self._close(linger=False)

    def _close(self, linger: bool) -> None:
        """Close when everything that was written has been sent.

        linger: the client may still be sending. A close would then answer its bytes by a reset, which destroys the
        response on its way. So only our side is closed, and the client's bytes are discarded for a while.
        """
        if not self.is_open or self.transport is None or self._state is LINGERING:
            return
        if not linger:
            self._state = CLOSED
            self._close_transport(self.transport)
            return
        self._state = LINGERING
        self.resume(ANY_REASON)
        self._read_deadline.set(LINGER_SECONDS)
        try:
            if self.transport.can_write_eof():
                self.transport.write_eof()
            else:
                self._close_transport(self.transport)  # TLS has no half-close: its own goodbye reads on meanwhile
        except OSError:
            self.reset()  # the client is gone already

    def _close_transport(self, transport: asyncio.Transport) -> None:
        transport.close()
        if transport.get_write_buffer_size():
            self._write_deadline.set(self._settings.timeouts.idle)

    def drain(self) -> None:
        """Take no further request. Close now if none is under way; a client that has just connected may send one."""
        self.is_draining = True
        if self._is_unused:
            self._read_deadline.set(LINGER_SECONDS)
        elif self._exchange is not None:
            self._exchange.keep_alive = False
        elif self._state is READING and not self.reader.has_begun_message:
            self._read_deadline.set(DRAIN_GRACE_SECONDS)
