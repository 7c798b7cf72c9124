"""One client connection: requests in, one at a time, answers out in the same order.

Protocol callbacks feed a `Reader`; a task a connection takes each request through its exchange. While a request is
under way, what the client pipelines stays unread bytes up to a bound. A client that ends its side of the connection is
taken to have left (as nginx does): its request is given up at once and its pool's connection closed.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
from typing import TYPE_CHECKING, cast

from dispatcher.errors import BadRequest
from dispatcher.http.forwarded import Peer
from dispatcher.http.framing import Body, Reader
from dispatcher.http.request import Request, parse_request
from dispatcher.http.response import own_answer
from dispatcher.platform.clock import Timer, http_date
from dispatcher.proxy.context import Forwarder
from dispatcher.proxy.exchange import Exchange
from dispatcher.proxy.tunnel import Tunnel
from dispatcher.settings import LiveSettings

if TYPE_CHECKING:
    from collections.abc import Callable

    from dispatcher.proxy.upstream import PoolConnection

PIPELINED = 65536  # unread bytes beyond which reading stops
UPLOAD_HELD = 65536  # bytes of a body kept while its pool's connection is being made
PIPELINE_FULL, UPLOAD_WAITS, POOL_SLOW = 1, 2, 4  # reasons not to read, as bits
LOOK = 0.25  # seconds between two looks at a client that is not read
GRACE = 0.25  # seconds in which a request that has met our wish to close is still served
LINGER = 2.0  # seconds in which a client may still read its answer while it goes on sending


class ClientConnection(asyncio.Protocol):
    """opened, closed: called once each, when the connection is made and when it is gone."""

    def __init__(
        self,
        forwarder: Forwarder,
        opened: Callable[[ClientConnection], None],
        closed: Callable[[ClientConnection], None],
    ) -> None:
        self._forwarder = forwarder
        self._opened = opened
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(self, self._settings.limits.head_bytes)
        self._sending = Timer(self._loop, self._sent_too_slowly)  # what the client owes us
        self._taking = Timer(self._loop, self._abort)  # for the client to take what we owe it
        self._looking = Timer(self._loop, self._look)  # whether it is still there while we do not read
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None  # read, and not answered yet
        self._waiting: asyncio.Future[None] | None = None  # the task waits for a request, or for room to write
        self._exchange: Exchange | None = None
        self._upload_to: PoolConnection | None = None
        self._upload: list[bytes] = []  # pieces of the body that have not gone on yet
        self._upload_size = 0
        self._kept: bytearray | None = None  # what has gone on of a body, for another try; None if that may not be kept
        self._body_size = 0
        self._holds = 0
        self._deaf = False  # what more comes cannot be understood, or does not matter
        self._lingering = False
        self._writing_held = False
        self.draining = False
        self._unused = True  # has not brought a request yet
        self.peer: Peer
        self.upload_complete = True

    def __repr__(self) -> str:
        return f"<ClientConnection {self._exchange or 'idle'}>"

    @property
    def _settings(self) -> LiveSettings:
        return self._forwarder.settings

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's are not derived from it
        name = transport.get_extra_info("peername")
        host, port = (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)
        scheme = b"http" if transport.get_extra_info("sslcontext") is None else b"https"
        self.peer = Peer(host, port, scheme, self._settings.trusted)
        self._sending.set(self._settings.timeouts.head)
        self._task = self._loop.create_task(self._serve())
        self._opened(self)

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        if self._request is not None and self.upload_complete:
            self._reader.rest += data
            self._hold(PIPELINE_FULL, len(self._reader.rest) > PIPELINED)
            return
        fresh = self._request is None and not self._reader.begun
        self._feed(data)
        if self._request is not None and not self.upload_complete:
            self._sending.set(self._settings.timeouts.idle)
        elif fresh and self._reader.begun:
            self._sending.set(self._settings.timeouts.head)  # absolute: further bytes do not move it

    def eof_received(self) -> bool:
        if self._exchange is not None:
            self._abort()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None  # a dead one must not be touched again
        self._sending.stop()
        self._taking.stop()
        self._looking.stop()
        self._closed(self)
        if self._exchange is not None and self._exchange.tunnelled:
            return  # what is on its way to the pool still gets there
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writing_held = True
        self._taking.set(self._settings.timeouts.idle)
        if self._exchange is not None:
            self._exchange.client_writable(False)

    def resume_writing(self) -> None:
        self._writing_held = False
        self._taking.clear()
        if self._exchange is not None:
            self._exchange.client_writable(True)
        self._wake()

    # -- framing.Sink

    def on_head(self, raw: bytes) -> int | Body:
        limits = self._settings.limits
        request = parse_request(raw, limits.headers or len(raw))
        if limits.body_bytes and isinstance(request.length, int) and request.length > limits.body_bytes:
            raise BadRequest(f"the body is over {limits.body_bytes} bytes", 413, "body_too_large")
        self._request = request
        self._unused = False
        self._body_size = 0
        retry = self._settings.retry
        self._kept = bytearray() if request.idempotent or "non_idempotent" in retry.on else None
        self.upload_complete = request.length == 0
        self._wake()
        return request.length

    def on_data(self, data: bytes) -> None:
        self._body_size += len(data)
        limit = self._settings.limits.body_bytes
        if limit and self._body_size > limit:
            raise BadRequest(f"the body is over {limit} bytes", 413, "body_too_large")
        self._upload.append(data)
        self._upload_size += len(data)

    def on_end(self, trailers: list[bytes]) -> bool:
        self.upload_complete = True
        self._sending.clear()
        if self._exchange is not None:
            self._exchange.upload_ended()
        return False

    # -- exchange.Client

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def attach_upload(self, connection: PoolConnection | None) -> None:
        self._upload_to = connection
        if connection is None:
            if self._holds:
                self._hold(POOL_SLOW, False)
            return
        if self._kept:
            self._upload.insert(0, bytes(self._kept))
            self._kept.clear()
        self._pass_upload()

    @property
    def replayable(self) -> bool:
        return self._kept is not None

    def join(self, connection: PoolConnection, rest: bytes, over: Callable[[], None]) -> None:
        if self._transport is None or connection.transport is None:
            connection.close()  # the client has left in the same moment, and its exchange is being cancelled
            return
        self._sending.stop()
        self._taking.stop()
        self._looking.stop()
        self._hold(PIPELINE_FULL | UPLOAD_WAITS | POOL_SLOW, False)
        unread, self._reader.rest = self._reader.rest, b""
        timeouts = self._settings.timeouts
        tunnel = Tunnel(self._loop, timeouts.tunnel, timeouts.idle, over)
        tunnel.join((self._transport, self, unread), (connection.transport, connection, rest))

    def hold_reading(self, hold: bool) -> None:
        self._hold(POOL_SLOW, hold)

    def break_off(self) -> None:
        if self._exchange is not None and self._exchange.unframed:
            self._abort()
        else:
            self._close()

    # -- the life of the connection

    async def _serve(self) -> None:
        """Requests one after the other, until one of them, or the client, is the last."""
        try:
            while True:
                if self._request is None:
                    await self._wait()
                    continue
                self._exchange = Exchange(self._forwarder, self._request, self)
                self._exchange.keep_alive &= not self.draining
                if self.upload_complete:
                    self._sending.clear()
                await self._exchange.run()
                keep_alive = self._exchange.keep_alive and self.upload_complete
                self._exchange = None
                while keep_alive and self._writing_held:
                    await self._wait()
                if not keep_alive or self.draining:
                    break
                self._next_request()
        except asyncio.CancelledError:
            self._abort()
            raise
        except Exception as error:  # noqa: BLE001 - our own bug: counted, logged, and the client told
            self._forwarder.events.internal_error(error)
            if self._exchange is not None and self._exchange.begun:
                self._exchange.break_off()
            else:
                self.write(own_answer(500, "internal error", http_date(), keep_alive=False))
        self._close_gently(self._reader.rest != b"" or not self.upload_complete)

    def _next_request(self) -> None:
        self._request = None
        self._upload.clear()  # what no pool has taken of the last one's body
        self._upload_size = 0
        self._kept = None
        self._sending.set(self._settings.timeouts.keepalive)
        self._feed(None)
        if self._has_request:
            self._hold(PIPELINE_FULL, len(self._reader.rest) > PIPELINED)
            return
        if self._holds:
            self._hold(PIPELINE_FULL | UPLOAD_WAITS, False)
        if self._reader.begun:
            self._sending.set(self._settings.timeouts.head)

    @property
    def _has_request(self) -> bool:
        return self._request is not None

    async def _wait(self) -> None:
        self._waiting = self._loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _feed(self, data: bytes | None) -> None:
        """Let the reader go on, with what has come or with what it has, and pass on what it found of a body."""
        try:
            if data is None:
                self._reader.next()
            else:
                self._reader.feed(data)
        except BadRequest as error:
            self._refuse(error)
        else:
            if self._upload or self._upload_to is not None:
                self._pass_upload()

    def _pass_upload(self) -> None:
        if self._upload_to is not None:
            self._upload_to.upload(self._upload, self.upload_complete)
            if self._kept is not None and self._upload:
                self._kept += b"".join(self._upload)
                if len(self._kept) > self._settings.retry.buffer_bytes:
                    self._kept = None
            self._upload.clear()
            self._upload_size = 0
        if self._holds or self._upload_size > UPLOAD_HELD:
            self._hold(UPLOAD_WAITS, self._upload_size > UPLOAD_HELD)

    def _refuse(self, error: BadRequest) -> None:
        """The request cannot be understood, or may not go on: nothing after it can be read either."""
        self._forwarder.events.rejected(error.reason)
        self._deaf = True
        if self._exchange is None:
            if self._forwarder.log is not None:
                self._forwarder.log.refused(self.peer, error)
            self._request = None
            self.write(own_answer(error.status, error.public, http_date(), keep_alive=False))
            self._close_gently(linger=True)
        else:
            self._exchange.refuse(error)

    def _hold(self, reason: int, hold: bool) -> None:
        before = self._holds
        self._holds = before | reason if hold else before & ~reason
        if self._transport is None or self._transport.is_closing() or bool(before) is bool(self._holds):
            return
        if self._holds:
            self._transport.pause_reading()
            self._looking.set(LOOK)
        else:
            self._transport.resume_reading()

    def _look(self) -> None:
        """A loop that does not read does not notice that the other side is gone; who waits for nobody must not hold a
        pool."""
        connected = self._transport.get_extra_info("socket") if self._transport is not None else None
        if connected is None or not self._holds or connected.fileno() < 0:
            return
        seen = select.poll()
        seen.register(connected.fileno(), select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        if self._exchange is not None and seen.poll(0):
            self._abort()
        else:
            self._looking.set(LOOK)

    # -- its end

    def _sent_too_slowly(self) -> None:
        if self._lingering:
            self._abort()
        elif self._holds:
            self._sending.set(self._settings.timeouts.idle)  # we do not read: the silence is ours
        elif self._exchange is not None:
            self._refuse(BadRequest("the body of the request did not go on in time", 408, "body_timeout"))
        elif self._reader.begun:
            self._refuse(BadRequest("the head of the request did not come in time", 408, "head_timeout"))
        else:
            self._close()

    def _close(self) -> None:
        """When what was written has gone out, and that in time."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self._taking.set(self._settings.timeouts.idle)

    def _close_gently(self, linger: bool) -> None:
        """Close. linger: the client may still be sending, and a reset would destroy our answer: end our side only and
        read on for a while."""
        if not linger or self._lingering or self._transport is None or self._transport.is_closing():
            if not self._lingering:
                self._close()
            return
        self._deaf = self._lingering = True
        self._hold(PIPELINE_FULL | UPLOAD_WAITS | POOL_SLOW, False)
        self._sending.set(LINGER)
        try:
            if self._transport.can_write_eof():
                self._transport.write_eof()
            else:
                self._close()  # TLS says goodbye by itself, and reads on meanwhile
        except OSError:
            self._abort()  # the client is gone already

    def _abort(self) -> None:
        """At once, by a reset: what the client has of an answer must not look whole."""
        if self._transport is None:
            return
        connected = self._transport.get_extra_info("socket")
        if connected is not None and connected.fileno() >= 0:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._transport.abort()

    def drain(self) -> None:
        """Take no further request; close now if none is under way. Who has just connected gets his first one served: it
        may be on its way."""
        self.draining = True
        if self._unused:
            self._sending.set(LINGER)
        elif self._exchange is not None:
            self._exchange.keep_alive = False
        elif self._request is None and not self._reader.begun:
            self._sending.set(GRACE)

    def cut(self) -> None:
        """Close now, whatever is under way."""
        self._abort()
