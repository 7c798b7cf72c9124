"""Kept-alive connections to the pools, one request at a time on each.

What is not surely clean after a conversation is closed, never used again.
"""

from __future__ import annotations

import asyncio
import errno
from typing import Protocol, cast

from dispatcher.errors import (
    BadRequest,
    OutOfResources,
    RequestError,
    UpstreamConnectTimeout,
    UpstreamProtocolError,
    UpstreamStale,
    UpstreamTimeout,
    UpstreamUnreachable,
)
from dispatcher.net.clock import Timer
from dispatcher.net.framing import Body, Reader
from dispatcher.net.heads import Response, parse_response
from dispatcher.net.settings import Timeouts

HEAD_LIMIT = 32768  # bytes of an answer's head
EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
IDLE_KEPT = 512  # unused connections kept for a pool


class Conversation(Protocol):
    """Who sent the request and gets the answer."""

    @property
    def method(self) -> bytes: ...
    def answer_head(self, response: Response) -> None: ...
    def answer_data(self, data: bytes) -> None: ...
    def answer_end(self, trailers: list[bytes]) -> None: ...
    def flush(self) -> None:
        """The bytes at hand are all told: a good moment to write them out."""
        ...

    def hold_upload(self, hold: bool) -> None:
        """The pool takes the request's body too slowly; or well again."""
        ...


class PoolConnection(asyncio.Protocol):
    """One connection to one pool."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.transport: asyncio.Transport | None = None
        self.used = 0  # requests begun on it
        self._reader = Reader(self, HEAD_LIMIT)
        self._timer = Timer(upstream.loop, self._timed_out)
        self._conversation: Conversation | None = None
        self._over: asyncio.Future[None] | None = None
        self._response: Response | None = None
        self._got_bytes = False
        self._chunked_upload = False
        self._upload_open = False
        self._write_held = False  # the pool takes the request's body too slowly
        self._read_held = False  # the client takes its answer too slowly
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "busy" if self._conversation else "idle"
        return f"<PoolConnection to {self.upstream.id}, {state}, {self.used} used>"

    # -- the request

    def begin(self, conversation: Conversation, head: bytes, length: int | Body) -> asyncio.Future[None]:
        """Send a request head; its body follows by `upload`, the answer goes to the conversation.

        The future is done at the end of the answer, or fails: UpstreamStale, UpstreamProtocolError, UpstreamTimeout, or
        what `give_up` was told. Whoever called must `release` the connection afterwards.
        """
        self.used += 1
        self._conversation = conversation
        self._response = None
        self._got_bytes = False
        self._over = over = self.upstream.loop.create_future()
        self._chunked_upload = length is Body.CHUNKED
        self._upload_open = length != 0
        self._reader.next()
        if self._closed or self.transport is None:
            over.set_exception(UpstreamStale(f"pool {self.upstream.id} closed the connection before the request"))
        else:
            self.transport.write(head)
            self._arm()
        return over

    def upload(self, pieces: list[bytes], complete: bool) -> None:
        """What there is of the request's body, in order; one chunk where the body is chunked."""
        if not self._upload_open or self._closed or self.transport is None or self.transport.is_closing():
            return
        data = b"".join(pieces)
        if self._chunked_upload:
            end = b"0\r\n\r\n" if complete else b""
            data = b"%x\r\n%b\r\n%b" % (len(data), data, end) if data else end
        if data:
            self.transport.write(data)
        self._upload_open = not complete
        self._arm()

    def give_up(self, error: RequestError) -> None:
        """End the conversation with this error; the connection cannot be used again."""
        self._fail(error)

    def hold(self, hold: bool) -> None:
        """Stop reading while the client takes its answer too slowly."""
        if self._closed or hold is self._read_held or self.transport is None or self.transport.is_closing():
            return
        self._read_held = hold
        if hold:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
        self._arm()

    def release(self) -> None:
        """The conversation is over, however: keep the connection if it is clean, else close it."""
        self.hold(False)
        over, self._conversation = self._over, None
        ended_well = over is not None and over.done() and not over.cancelled() and over.exception() is None
        clean = (
            ended_well
            and not self._closed
            and not self._upload_open
            and not self._reader.rest
            and self._response is not None
            and self._response.keep_alive
            and self.transport is not None
            and not self.transport.get_write_buffer_size()  # it answered without having taken the whole request
        )
        if clean:
            self._timer.set(self.upstream.timeouts.pool_idle)
            self.upstream.keep(self)
        else:
            self.close()

    def _arm(self) -> None:
        """Start the clock for what the pool owes us now, if it owes us anything.

        While the client is still to send its body, or does not take the answer, the silence is the client's.
        """
        if self._read_held or (self._upload_open and not self._write_held):
            self._timer.clear()
        elif self._response is None and not self._write_held:
            self._timer.set(self.upstream.timeouts.answer)
        else:
            self._timer.set(self.upstream.timeouts.idle)

    def close(self) -> None:
        self._closed = True
        self._timer.stop()
        if self.transport is not None:
            self.transport.abort()

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are not derived from it

    def data_received(self, data: bytes) -> None:
        if self._conversation is None or self._over is None or self._over.done():
            self._unasked()
            return
        self._got_bytes = True
        try:
            self._reader.feed(data)
        except BadRequest as error:
            self._fail(UpstreamProtocolError(f"the answer of pool {self.upstream.id} is malformed: {error}"))
        except UpstreamProtocolError as error:
            self._fail(error)
        else:
            if not self._over.done():
                self._arm()
        self._conversation.flush()

    def eof_received(self) -> bool:
        return False  # a pool that will not write any more is done with this connection

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self.transport = None  # a dead one must not be touched again
        self._timer.stop()
        self.upstream.forget(self)
        if self._conversation is None or self._over is None or self._over.done():
            return
        if self._reader.ends_with_connection and error is None:
            self._finish([])
            self._conversation.flush()
        elif self._got_bytes:
            self._fail(UpstreamProtocolError(f"pool {self.upstream.id} broke off its answer"))
        elif self.used > 1:
            self._fail(UpstreamStale(f"pool {self.upstream.id} closed a kept-alive connection without an answer"))
        else:
            self._fail(UpstreamProtocolError(f"pool {self.upstream.id} closed the connection without an answer"))

    def pause_writing(self) -> None:
        self._hold_upload(True)

    def resume_writing(self) -> None:
        self._hold_upload(False)

    def _hold_upload(self, hold: bool) -> None:
        self._write_held = hold
        if self._conversation is not None:
            self._arm()
            self._conversation.hold_upload(hold)

    # -- framing.Sink

    def on_head(self, raw: bytes) -> int | Body:
        assert self._conversation is not None
        response = parse_response(raw, self._conversation.method)
        if response.status == 101:
            raise UpstreamProtocolError(f"pool {self.upstream.id} switched protocols without being asked")
        if response.status >= 200:
            self._response = response
        self._conversation.answer_head(response)
        return response.length

    def on_data(self, data: bytes) -> None:
        assert self._conversation is not None
        self._conversation.answer_data(data)

    def on_end(self, trailers: list[bytes]) -> bool:
        if self._response is not None:
            self._finish(trailers)
            return False  # a byte more would belong to nothing
        return True  # after an interim answer comes the final one

    def _finish(self, trailers: list[bytes]) -> None:
        assert self._conversation is not None
        assert self._over is not None
        self._timer.clear()
        self._conversation.answer_end(trailers)
        self._over.set_result(None)

    def _fail(self, error: RequestError) -> None:
        if self._over is not None and not self._over.done():
            self._over.set_exception(error)
        self.close()

    def _unasked(self) -> None:
        """Bytes when nothing was asked: the connection is out of step."""
        self.upstream.forget(self)
        self.close()

    def _timed_out(self) -> None:
        if self._conversation is None:
            self.upstream.forget(self)
            self.close()
        else:
            what = "did not answer" if self._response is None else "did not go on with its answer"
            self._fail(UpstreamTimeout(f"pool {self.upstream.id} {what} in time"))


class Upstream:
    """The connections of one pool. id: the pool's name. host, port: where it listens."""

    def __init__(self, pool_id: str, host: str, port: int, timeouts: Timeouts) -> None:
        self.id = pool_id
        self.host = host
        self.port = port
        self.timeouts = timeouts
        self.loop = asyncio.get_running_loop()
        self._idle: list[PoolConnection] = []
        self._all: set[PoolConnection] = set()
        self._retired = False

    def __repr__(self) -> str:
        return f"<Upstream {self.id} at {self.host}:{self.port}, {len(self._idle)} idle of {len(self._all)}>"

    @property
    def connections(self) -> int:
        return len(self._all)

    def idle(self) -> PoolConnection | None:
        """A kept-alive connection, the most recently used; None if there is none."""
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        return None

    async def connect(self) -> PoolConnection:
        """A fresh connection. Raises UpstreamUnreachable, OutOfResources."""
        seconds = self.timeouts.connect or None
        try:
            async with asyncio.timeout(seconds):
                _, connection = await self.loop.create_connection(lambda: PoolConnection(self), self.host, self.port)
        except TimeoutError as error:
            raise UpstreamConnectTimeout(f"pool {self.id} did not accept a connection in {seconds:g} s") from error
        except (OSError, UnicodeError) as error:
            text = f"pool {self.id} at {self.host}:{self.port}: {getattr(error, 'strerror', None) or error}"
            if isinstance(error, OSError) and error.errno in EXHAUSTED:
                raise OutOfResources(text) from error
            raise UpstreamUnreachable(text) from error
        self._all.add(connection)
        return connection

    def retire(self) -> None:
        """Keep no connection from now on: those that are idle end, those in use when their request does."""
        self._retired = True
        for connection in list(self._idle):
            connection.close()

    def keep(self, connection: PoolConnection) -> None:
        if len(self._idle) < IDLE_KEPT and not self._retired:
            self._idle.append(connection)
        else:
            connection.close()

    def forget(self, connection: PoolConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        for connection in list(self._all):
            connection.close()
