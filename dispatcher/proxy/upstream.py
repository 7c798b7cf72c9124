"""One connection to a pool: one request at a time, kept alive in between, or a tunnel until its end.

A connection whose last exchange did not end cleanly is closed and never used again.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from dispatcher.errors import (
    BadRequest,
    RequestError,
    UpstreamClosed,
    UpstreamProtocolError,
    UpstreamStale,
)
from dispatcher.http.framing import Body
from dispatcher.http.response import Response, parse_response
from dispatcher.platform.clock import Timer
from dispatcher.proxy.connection import ANY_REASON, Connection, unread_data

if TYPE_CHECKING:
    from dispatcher.proxy.connection_pool import ConnectionPool

MAX_RESPONSE_HEAD_BYTES = 32768
SWITCHING_PROTOCOLS = 101


class State(Enum):
    """Where a connection to a pool is in its life."""

    IDLE = auto()  # connected, and free for the next request
    BUSY = auto()  # a request is under way
    TUNNEL = auto()  # the pool answered 101: the bytes are no HTTP
    CLOSED = auto()


IDLE, BUSY, TUNNEL, CLOSED = State


class Requester(Protocol):
    """The sender of a request on a pool's connection: an `Exchange`, or a health check."""

    @property
    def method(self) -> bytes: ...
    @property
    def upgrade(self) -> bytes | None:
        """The protocols that the request asks to switch to; None if it does not ask."""
        ...

    def on_response(self, response: Response) -> None:
        """Response headers have arrived: an interim response's, or the final one's."""
        ...

    def on_response_body(self, data: bytes) -> None: ...
    def on_response_end(self, trailers: list[bytes]) -> bool:
        """A response is complete. Return whether another one follows, as after an interim response."""
        ...

    def on_read_end(self) -> None:
        """All bytes at hand have been read."""
        ...

    def on_pool_writable(self, writable: bool) -> None: ...
    def on_pool_failed(self, error: RequestError) -> None:
        """The response will not come, or not the rest of it."""
        ...

    def on_pool_timeout(self) -> None:
        """The deadline of the connection has passed."""
        ...

    def fail(self, bug: Exception) -> None:
        """An exception came out of the dispatcher's own code."""
        ...


class PoolConnection(Connection):
    """One connection to one pool.

    requests: how many were begun on it.
    deadline: for the next bytes of the pool; then `on_pool_timeout` is called, or an idle connection is closed.
    is_reusable: False if its address is no longer the pool's.
    """

    __slots__ = ("_pool", "_requester", "_response_begun", "deadline", "is_reusable", "requests", "state")

    def __init__(self, pool: ConnectionPool) -> None:
        super().__init__(pool.loop, MAX_RESPONSE_HEAD_BYTES)
        self.state = IDLE
        self.requests = 0
        self.is_reusable = True
        self._pool = pool
        self.deadline = Timer(pool.loop, self._on_deadline)
        self._requester: Requester | None = None
        self._response_begun = False

    def __repr__(self) -> str:
        return f"<PoolConnection to {self._pool.id}, {self.state.name.lower()}, {self.requests} requests>"

    @property
    def peer(self) -> str:
        """The address of the pool, empty for a Unix socket."""
        name = self.transport.get_extra_info("peername") if self.transport is not None else None
        return str(name[0]) if isinstance(name, tuple) else ""

    # -- one request

    def begin(self, requester: Requester, head: bytes) -> None:
        """Send the headers of a request; its body follows by `write`. The caller must `release` the connection."""
        self.requests += 1
        self.state = BUSY
        self._requester = requester
        self._response_begun = False
        self.reader.next()
        self.write(head)

    def release(self, clean: bool) -> None:
        """The request is over: keep the connection for another one if it is in step with the pool, or close it.

        clean: the whole request was sent, and the whole response was read and allows another request.
        """
        self._requester = None
        if self.pause_reasons:
            self.resume(ANY_REASON)
        transport = self.transport
        if (
            clean
            and self.state is BUSY
            and transport is not None
            and not transport.is_closing()
            and not self.reader.rest  # bytes that belong to no response
            and not transport.get_write_buffer_size()  # the pool has answered before it took the whole request
        ):
            self.state = IDLE
            self._pool.keep(self)
        else:
            self.close()

    def start_tunnel(self) -> bytes:
        """Stop reading HTTP. Return the bytes that have been read and belong to the tunnel."""
        self.state = TUNNEL
        self._requester = None  # the tunnel reports its end itself
        self._pool.tunnel_started()
        self.deadline.clear()
        rest, self.reader.rest = self.reader.rest, b""
        return rest

    def close(self) -> None:
        self.state = CLOSED
        self.deadline.stop()
        if self.transport is not None:
            self.transport.abort()

    # -- asyncio.Protocol

    def data_received(self, data: bytes) -> None:
        requester = self._requester
        if requester is None:
            # Nothing was asked: a response to these bytes' question would go to the wrong request.
            self._pool.remove(self)
            self.close()
            return
        self._response_begun = True
        try:
            self._read(requester, data)
        except Exception as bug:  # noqa: BLE001 - a bug must not leave a request in flight for ever
            requester.fail(bug)

    def _read(self, requester: Requester, data: bytes) -> None:
        error: RequestError
        try:
            self.reader.feed(data)
        except BadRequest as malformed:
            error = UpstreamProtocolError(f"the response of pool {self._pool.id} is malformed: {malformed}")
        except RequestError as failed:
            error = failed
        else:
            if self._requester is requester:  # it may have released this connection, to make another attempt
                requester.on_read_end()
            return
        requester.on_pool_failed(error)

    def eof_received(self) -> bool:
        return False  # a pool that has closed its side sends no other response: let the transport close

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and self.state is BUSY and self.transport is not None:
            for data in unread_data(self.transport):
                self.data_received(data)
        self.state = CLOSED
        self.transport = None
        self.deadline.stop()
        self._pool.remove(self)
        requester = self._requester
        if requester is None:
            return
        try:
            if self.reader.ends_with_connection and error is None:
                requester.on_response_end([])
                requester.on_read_end()
            else:
                requester.on_pool_failed(self.reason_lost())
        except Exception as bug:  # noqa: BLE001 - as above
            requester.fail(bug)

    def reason_lost(self) -> RequestError:
        """Return what the loss of this connection means for the request under way."""
        if self._response_begun:
            return UpstreamProtocolError(f"pool {self._pool.id} broke off its response")
        if self.requests > 1:  # it was kept alive
            return UpstreamStale(f"pool {self._pool.id} closed a kept-alive connection without a response")
        return UpstreamClosed(f"pool {self._pool.id} closed the connection without a response")

    def pause_writing(self) -> None:
        self._set_writable(False)

    def resume_writing(self) -> None:
        self._set_writable(True)

    def _set_writable(self, writable: bool) -> None:
        self.is_writable = writable
        requester = self._requester
        if requester is not None:
            try:
                requester.on_pool_writable(writable)
            except Exception as bug:  # noqa: BLE001 - as above
                requester.fail(bug)

    def _on_deadline(self) -> None:
        requester = self._requester
        if requester is None:
            self._pool.remove(self)
            self.close()
            return
        try:
            requester.on_pool_timeout()
        except Exception as bug:  # noqa: BLE001 - as above
            requester.fail(bug)

    # -- framing.Sink

    def on_head(self, raw: bytes) -> int | Body:
        requester = self._requester
        if requester is None:
            return 0
        response = parse_response(raw, requester.method)
        if response.status == SWITCHING_PROTOCOLS and requester.upgrade is None:
            raise UpstreamProtocolError(f"pool {self._pool.id} switched protocols without being asked")
        requester.on_response(response)
        # The exchange may have ended the attempt, to make another one. What follows is then not read.
        return response.length if self._requester is requester else 0

    def on_data(self, data: bytes) -> None:
        if self._requester is not None:
            self._requester.on_response_body(data)

    def on_end(self, trailers: list[bytes]) -> bool:
        return self._requester is not None and self._requester.on_response_end(trailers)
