"""Implements a minimal HTTP/1.1 client: a request is one write, and its response is one callback.

llhttp (by httptools) parses the responses. There are no cookies, no redirects and no decompression. Bodies are counted
and dropped. Idle connections form a stack with the last used on top. Their number has no limit, because a limit would
turn open load into closed load.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ssl
from collections.abc import Callable
from typing import Any

import httptools

from loadgen.attack.records import BAD_ANSWER, CLOSED, NO_CONNECTION, REFUSED, RESET, TLS, UNREACHABLE
from loadgen.attack.targets import Origin, Request

OnFinished = Callable[["PendingRequest"], None]
# This machine has no more file descriptors or ports.
_LOCAL_SHORTAGE_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL})


class PendingRequest:
    """One request that has no complete response yet.

    row: of the records. target: index of the URL. size: bytes of the body, if sizes are drawn.
    status: of the response, 0 for none. error: index into records.ERRORS. pool: the header X-Pool.
    sent_at: time of the event loop. resent: whether it was sent a second time.
    """

    __slots__ = ("connecting", "connection", "error", "pool", "resent", "row", "sent_at", "size", "status", "target")

    def __init__(self, row: int, target: int, size: int) -> None:
        self.row, self.target, self.size = row, target, size
        self.status, self.error, self.pool = 0, 0, b""
        self.sent_at = 0.0
        self.resent = False
        self.connection: _Connection | None = None
        self.connecting: asyncio.Task[None] | None = None


class _Connection(asyncio.Protocol):
    """A connection to an origin, with one request at a time."""

    def __init__(self, client: Client, origin: Origin) -> None:
        self._client, self._origin = client, origin
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._pending: PendingRequest | None = None
        self._received = 0  # bytes since the last request was sent
        self._responses = 0
        self._framed = False  # whether the response shows where its body ends

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, pending: PendingRequest, data: bytes) -> None:
        self._pending, pending.connection = pending, self
        self._received = 0
        self._transport.write(data)

    def abort(self) -> None:
        self._pending = None
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()

    @property
    def closing(self) -> bool:
        return self._transport.is_closing()

    def data_received(self, data: bytes) -> None:
        self._client.received += len(data)
        self._received += len(data)
        if self._pending is None:
            self._reject_unsolicited()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            # The client has no second protocol, so it treats an upgrade like a malformed response.
            self._fail(BAD_ANSWER)
            self._transport.abort()

    def _reject_unsolicited(self) -> None:
        """Close the connection after data that no request asked for.

        Otherwise these data would become the response to the next request.
        """
        self._client.remove(self._origin, self)
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._client.remove(self._origin, self)
        pending = self._pending
        if pending is None:
            return
        closed_while_idle = self._responses and not self._received
        if pending.status and not self._framed and error is None:
            self._finish(pending)  # the end of the connection is the end of such a body
        elif closed_while_idle and not pending.resent and self._client.request.idempotent:
            # The server closed the kept-alive connection as the request was sent: RFC 9112, section 9.3.1.
            self._pending = None
            self._client.resend(pending)
        else:
            # A part of a response does not count as a response.
            pending.status = 0
            self._fail(TLS if isinstance(error, ssl.SSLError) else RESET if isinstance(error, OSError) else CLOSED)

    def on_header(self, name: bytes, value: bytes) -> None:
        # Each header of each response comes here, and an integer is cheaper to compare than a name in lower case.
        size = len(name)
        if size == 6:
            if name.lower() == b"x-pool" and self._pending:
                self._pending.pool = value
        elif size == 14 and name.lower() == b"content-length":
            self._framed = True
        elif size == 17 and name.lower() == b"transfer-encoding":
            # Any other last coding means that the body lasts until the connection ends.
            self._framed = value.lower().endswith(b"chunked")

    def on_message_begin(self) -> None:
        self._framed = False
        if self._pending is None:
            self._reject_unsolicited()
        else:
            # An interim response (1xx) may have come before, and its X-Pool does not count.
            self._pending.pool = b""

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if (pending := self._pending) is None or status < 200:
            return  # the final response follows an interim one
        pending.status = status
        self._framed = self._framed or status in (204, 304)  # these never have a body
        if self._client.request.method == "HEAD":
            # The parser does not know the request's method and would wait for a body.
            self._finish(pending)
            self._parser = httptools.HttpResponseParser(self)

    def on_message_complete(self) -> None:
        if (pending := self._pending) is not None and pending.status:
            self._finish(pending)
        elif self._parser.get_status_code() < 100:
            # llhttp accepts status codes that HTTP does not have.
            raise httptools.HttpParserError("no status")

    def _finish(self, pending: PendingRequest) -> None:
        self._pending, pending.connection = None, None
        self._responses += 1
        if self._transport.get_write_buffer_size():
            # The response came before the whole request was sent, so the connection cannot be used again.
            self._transport.abort()
        elif self._client.request.keepalive and self._parser.should_keep_alive():
            self._client.idle[self._origin].append(self)
        else:
            self._transport.close()
        self._client.on_finished(pending)

    def _fail(self, error: int) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.connection = None
            pending.status, pending.error = 0, error
            self._client.on_finished(pending)


class Client:
    """Connections to the origins of a request.

    request: what all requests have in common. on_finished: called with each request that has a response or has failed.
    """

    def __init__(self, request: Request, on_finished: OnFinished) -> None:
        self.request, self.on_finished = request, on_finished
        self.idle: dict[Origin, list[_Connection]] = {target.origin: [] for target in request.targets}
        self.opened = self.resent = self.received = 0
        self._origins = [target.origin for target in request.targets]
        self._fixed = [request.bytes_for(i, 0) for i in range(len(request.targets))] if request.alike else None
        self._addresses: dict[Origin, list[tuple[str, int]]] = {}
        self._connections: dict[_Connection, None] = {}
        self._tls: ssl.SSLContext | None = None
        self.ready = False

    async def start(self) -> None:
        """Resolve all host names, so that no request waits for that.

        Raises OSError if a name has no address or the file of certificates cannot be read.
        """
        loop = asyncio.get_running_loop()
        for origin in self.idle:
            try:
                self._addresses[origin] = await loop.run_in_executor(None, origin.addresses)
            except OSError as error:
                raise OSError(error.errno, f"cannot look up {origin.host}: {error.strerror}") from error
        self._tls = self.request.tls()
        self.ready = True

    def send(self, pending: PendingRequest) -> None:
        """Send the request on the connection that was used last, or on a new one."""
        idle = self.idle[self._origins[pending.target]]
        while idle:
            # A connection that has just begun to close is still on the stack.
            if not (connection := idle.pop()).closing:
                connection.send(pending, self._bytes(pending))
                return
        pending.connecting = asyncio.get_running_loop().create_task(self._connect(pending))

    def resend(self, pending: PendingRequest) -> None:
        """Send the request again on a new connection."""
        self.resent += 1
        pending.resent, pending.connection = True, None
        pending.connecting = asyncio.get_running_loop().create_task(self._connect(pending))

    def abort(self, pending: PendingRequest, error: int) -> None:
        """End the request with this error, and close its connection."""
        if pending.connecting is not None:
            pending.connecting.cancel()
        if pending.connection is not None:
            pending.connection.abort()
        pending.status, pending.error = 0, error
        self.on_finished(pending)

    def remove(self, origin: Origin, connection: _Connection) -> None:
        """Remove a connection that cannot be used any more."""
        self._connections.pop(connection, None)
        with contextlib.suppress(ValueError):
            self.idle[origin].remove(connection)

    async def close(self) -> None:
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)  # the loop reports the end of a connection in its next iteration

    def _bytes(self, pending: PendingRequest) -> bytes:
        if self._fixed is not None:
            return self._fixed[pending.target]
        return self.request.bytes_for(pending.target, pending.size, pending.row)

    async def _connect(self, pending: PendingRequest) -> None:
        loop, origin = asyncio.get_running_loop(), self._origins[pending.target]
        tls: dict[str, Any] = {"ssl": self._tls, "server_hostname": origin.host} if origin.scheme == "https" else {}
        failed: Exception | None = None
        for address in self._addresses[origin]:
            try:
                _, connection = await loop.create_connection(lambda: _Connection(self, origin), *address, **tls)
            except OSError as error:
                failed = error  # the next address may work, as with a server that listens on IPv4 only
                continue
            self.opened += 1
            self._connections[connection] = None
            pending.connecting = None  # from here on `abort` must not cancel this task
            connection.send(pending, self._bytes(pending))
            return
        pending.connecting = None
        pending.error = _error_code(failed)
        self.on_finished(pending)


def _error_code(error: Exception | None) -> int:
    if isinstance(error, ssl.SSLError):
        return TLS
    if isinstance(error, ConnectionRefusedError):
        return REFUSED
    if isinstance(error, ConnectionResetError):
        return RESET
    return NO_CONNECTION if isinstance(error, OSError) and error.errno in _LOCAL_SHORTAGE_ERRNOS else UNREACHABLE
