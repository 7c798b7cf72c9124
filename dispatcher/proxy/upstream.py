"""One kept-alive connection to a pool: one request at a time, or a tunnel to its end.

What is not surely clean after a conversation is closed, never used again.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from dispatcher.errors import (
    BadRequest,
    RequestError,
    UpstreamClosed,
    UpstreamProtocolError,
    UpstreamStale,
    UpstreamTimeout,
)
from dispatcher.http.framing import Body, Reader
from dispatcher.http.response import Response, parse_response
from dispatcher.platform.clock import Timer
from dispatcher.proxy.tunnel import unread
from dispatcher.settings import Timeouts

HEAD_LIMIT = 32768  # bytes of an answer's head
SWITCHING = 101


class Keeper(Protocol):
    """Who has the connection between two requests."""

    @property
    def id(self) -> str: ...
    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def timeouts(self) -> Timeouts: ...
    def keep(self, connection: PoolConnection) -> None: ...
    def forget(self, connection: PoolConnection) -> None: ...
    def tunnelled(self) -> None: ...


class Conversation(Protocol):
    """Who sent the request and gets the answer."""

    @property
    def method(self) -> bytes: ...
    @property
    def upgrade(self) -> bytes | None:
        """The protocols that were asked for; without them no other may follow."""
        ...

    def answer_head(self, response: Response) -> None: ...
    def answer_data(self, data: bytes) -> None: ...
    def answer_end(self, trailers: list[bytes]) -> None: ...
    def flush(self) -> None:
        """The bytes at hand are all told: a good moment to write them out."""
        ...

    def hold_upload(self, hold: bool) -> None:
        """The pool takes the request's body too slowly; or well again."""
        ...

    def switched(self, rest: bytes) -> None:
        """The pool has answered 101: what follows on this connection, beginning with `rest`, is no HTTP."""
        ...


class PoolConnection(asyncio.Protocol):
    """One connection to one pool."""

    def __init__(self, upstream: Keeper) -> None:
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
        self._switching = False  # 101 has been read, and the tunnel not begun
        self.tunnelled = False
        self.keepable = True  # for another request, when this one is over

    def __repr__(self) -> str:
        state = "closed" if self._closed else "busy" if self._conversation else "idle"
        return f"<PoolConnection to {self.upstream.id}, {state}, {self.used} used>"

    @property
    def peer(self) -> str:
        """The address at the far side, empty for a Unix socket."""
        name = self.transport.get_extra_info("peername") if self.transport is not None else None
        return str(name[0]) if isinstance(name, tuple) else ""

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
            and not self.tunnelled
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
        except RequestError as error:
            self._fail(error)
        else:
            if self._response is not None and not self._over.done():
                self._arm()  # before, interim answers and bits of a head win a pool no time
        self._conversation.flush()
        if self._switching:
            self._switch()

    def eof_received(self) -> bool:
        return False  # a pool that will not write any more is done with this connection

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            self._hear_out()
        self._closed = True
        self.transport = None  # a dead one must not be touched again
        self._timer.stop()
        self.upstream.forget(self)
        if self.tunnelled or self._conversation is None or self._over is None or self._over.done():
            return
        if self._reader.ends_with_connection and error is None:
            self._finish([])
            self._conversation.flush()
        elif self._got_bytes:
            self._fail(UpstreamProtocolError(f"pool {self.upstream.id} broke off its answer"))
        elif self.used > 1:
            self._fail(UpstreamStale(f"pool {self.upstream.id} closed a kept-alive connection without an answer"))
        else:
            self._fail(UpstreamClosed(f"pool {self.upstream.id} closed the connection without an answer"))

    def _hear_out(self) -> None:
        """A pool that answers early and closes has answered nevertheless."""
        if self._conversation is not None and self.transport is not None:
            for data in unread(self.transport):
                self.data_received(data)

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
        if response.status == SWITCHING and self._conversation.upgrade is None:
            raise UpstreamProtocolError(f"pool {self.upstream.id} switched protocols without being asked")
        self._switching = response.status == SWITCHING
        if response.status >= 200 or self._switching:
            self._response = response
        self._conversation.answer_head(response)
        return response.length

    def on_data(self, data: bytes) -> None:
        assert self._conversation is not None
        self._conversation.answer_data(data)

    def on_end(self, trailers: list[bytes]) -> bool:
        if self._switching:
            return False  # the rest belongs to the tunnel
        if self._response is not None:
            self._finish(trailers)
            return False  # a byte more would belong to nothing
        return True  # after an interim answer comes the final one

    def _switch(self) -> None:
        assert self._conversation is not None
        assert self.transport is not None
        self._switching = False
        if self.transport.is_closing():  # its last words: there is nobody left to speak to
            self._fail(UpstreamProtocolError(f"pool {self.upstream.id} switched protocols and left"))
            return
        self.tunnelled = True
        self.upstream.tunnelled()
        self._timer.clear()
        rest, self._reader.rest = self._reader.rest, b""
        self._conversation.switched(rest)

    def tunnel_over(self) -> None:
        """Nothing moves any more on what was a tunnel."""
        if self._over is not None and not self._over.done():
            self._over.set_result(None)

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
