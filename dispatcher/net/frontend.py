"""One client connection: requests in, one at a time, answers out in the same order.

Protocol callbacks feed a `Reader`; a task a connection takes each request through its exchange. While a request is
under way, what the client pipelines stays unread bytes up to a bound. A client that ends its side of the connection is
taken to have left (as nginx does): its request is given up at once and its pool's connection closed.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING, cast

from dispatcher.errors import BadRequest
from dispatcher.net.clock import Timer
from dispatcher.net.exchange import Exchange, Forwarder
from dispatcher.net.framing import Body, Reader
from dispatcher.net.heads import Request, own_answer, parse_request
from dispatcher.net.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from dispatcher.net.upstream import PoolConnection

PIPELINED = 65536  # unread bytes beyond which reading stops
UPLOAD_HELD = 65536  # bytes of a body kept while its pool's connection is being made
PIPELINE_FULL, UPLOAD_WAITS, POOL_SLOW = 1, 2, 4  # reasons not to read, as bits
LINGER = 2.0  # seconds in which a client may still read its answer while it goes on sending


class ClientConnection(asyncio.Protocol):
    """closed: called once when the connection is gone."""

    def __init__(self, forwarder: Forwarder, settings: Settings, closed: Callable[[ClientConnection], None]) -> None:
        self._forwarder = forwarder
        self._settings = settings
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._reader = Reader(self, settings.limits.head_bytes)
        self._timer = Timer(self._loop, self._timed_out)
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None
        self._request: Request | None = None  # read, and not answered yet
        self._waiting: asyncio.Future[None] | None = None  # the task waits for a request, or for room to write
        self._exchange: Exchange | None = None
        self._upload_to: PoolConnection | None = None
        self._upload: list[bytes] = []  # pieces of the body that came before there was a connection to send them on
        self._upload_size = 0
        self._body_size = 0
        self._holds = 0
        self._deaf = False  # what more comes cannot be understood, or does not matter
        self._lingering = False
        self.draining = False
        self.address = b""
        self.upload_complete = True
        self.writing_held = False

    def __repr__(self) -> str:
        return f"<ClientConnection {self.address.decode()} {self._exchange or 'idle'}>"

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport = cast(asyncio.Transport, transport)  # uvloop's are not derived from it
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]).encode() if isinstance(peer, tuple) else b"unknown"
        self._timer.set(self._settings.timeouts.head)
        self._task = self._loop.create_task(self._serve())

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        reader = self._reader
        if self._request is not None and self.upload_complete:
            reader.rest += data
            if len(reader.rest) > PIPELINED:
                self._hold(PIPELINE_FULL, True)
            return
        self._feed(data)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._timer.stop()
        self._closed(self)
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def pause_writing(self) -> None:
        self.writing_held = True
        self._timer.set(self._settings.timeouts.idle)
        if self._exchange is not None:
            self._exchange.client_writable(False)

    def resume_writing(self) -> None:
        self.writing_held = False
        self._timer.clear()
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
        self._body_size = 0
        self.upload_complete = request.length == 0
        self._wake()
        return request.length

    def on_data(self, data: bytes) -> None:
        self._body_size += len(data)
        limit = self._settings.limits.body_bytes
        if limit and self._body_size > limit:
            raise BadRequest(f"the body is over {limit} bytes", 413, "body_too_large")
        if self._upload_to is not None:
            self._upload_to.upload(data)
            return
        self._upload.append(data)
        self._upload_size += len(data)
        if self._upload_size > UPLOAD_HELD:
            self._hold(UPLOAD_WAITS, True)

    def on_end(self, trailers: list[bytes]) -> bool:
        self.upload_complete = True
        self._timer.clear()
        if self._upload_to is not None:
            self._upload_to.upload_end()
        return False

    # -- exchange.Client

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def attach_upload(self, connection: PoolConnection | None) -> None:
        self._upload_to = connection
        if connection is None:
            self._hold(POOL_SLOW, False)
            return
        for data in self._upload:
            connection.upload(data)
        self._upload.clear()
        self._upload_size = 0
        if self.upload_complete:
            connection.upload_end()
        self._hold(UPLOAD_WAITS, False)

    def hold_reading(self, hold: bool) -> None:
        self._hold(POOL_SLOW, hold)

    def break_off(self, undetectable: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        if undetectable:
            connected = self._transport.get_extra_info("socket")
            if connected is not None:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()

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
                    self._timer.clear()
                await self._exchange.run()
                keep_alive = self._exchange.keep_alive and self.upload_complete
                self._exchange = None
                if not keep_alive:
                    break
                while self.writing_held:
                    await self._wait()
                self._next_request()
        except asyncio.CancelledError:
            if self._transport is not None:
                self._transport.abort()
            raise
        except Exception as error:  # noqa: BLE001 - our own bug: counted, logged, and the client told
            self._forwarder.events.internal_error(error)
            if self._exchange is not None and self._exchange.begun:
                self._exchange.break_off()
            else:
                self.write(own_answer(500, "internal error", keep_alive=False))
        self._close_gently(self._reader.rest != b"" or not self.upload_complete)

    def _next_request(self) -> None:
        self._request = None
        self._upload.clear()
        self._upload_size = 0
        self._timer.set(self._settings.timeouts.keepalive)
        try:
            self._reader.next()
        except BadRequest as error:
            self._refuse(error)
        self._hold(UPLOAD_WAITS | POOL_SLOW, False)
        self._hold(PIPELINE_FULL, len(self._reader.rest) > PIPELINED)
        if self._request is None and self._reader.rest:
            self._timer.set(self._settings.timeouts.head)

    async def _wait(self) -> None:
        self._waiting = self._loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _feed(self, data: bytes) -> None:
        fresh = self._request is None and not self._reader.rest
        try:
            self._reader.feed(data)
        except BadRequest as error:
            self._refuse(error)
            return
        if self._request is None:
            if fresh:
                self._timer.set(self._settings.timeouts.head)  # absolute: further bytes do not move it
        elif not self.upload_complete:
            self._timer.set(self._settings.timeouts.idle)

    def _refuse(self, error: BadRequest) -> None:
        """The request cannot be understood, or may not go on: nothing after it can be read either."""
        self._forwarder.events.rejected(error.reason)
        self._deaf = True
        if self._exchange is None:
            self._request = None
            self.write(own_answer(error.status, error.public, keep_alive=False))
            self._close_gently(linger=True)
        else:
            self._exchange.refuse(error)

    def _close_gently(self, linger: bool) -> None:
        """Close when what was written has gone out. linger: the client may still be sending, and a reset would destroy
        our answer: end our side only and read on for a while."""
        if self._lingering or self._transport is None or self._transport.is_closing():
            return
        if linger:
            self._deaf = self._lingering = True
            self._hold(PIPELINE_FULL | UPLOAD_WAITS | POOL_SLOW, False)
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._timer.set(LINGER)
        else:
            self._transport.close()

    def _timed_out(self) -> None:
        if self._transport is None:
            return
        if self._lingering or self.writing_held:
            self._transport.abort()
        elif self._holds:
            self._timer.set(self._settings.timeouts.idle)  # we do not read: the silence is ours
        elif self._exchange is not None:
            self._refuse(BadRequest("the body of the request did not go on in time", 408, "body_timeout"))
        elif self._reader.rest:
            self._refuse(BadRequest("the head of the request did not come in time", 408, "head_timeout"))
        else:
            self._transport.close()

    def _hold(self, reason: int, hold: bool) -> None:
        before = self._holds
        self._holds = before | reason if hold else before & ~reason
        if self._transport is None or self._transport.is_closing() or bool(before) is bool(self._holds):
            return
        if self._holds:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def drain(self) -> None:
        """Take no further request; close now if none is under way."""
        self.draining = True
        if self._exchange is not None:
            self._exchange.keep_alive = False
        if self._request is None and not self._reader.rest and self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """Close now, whatever is under way."""
        if self._transport is not None:
            self._transport.abort()
