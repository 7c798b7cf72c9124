"""An HTTP/1.1 client that adds as little as can be: a request is one write, and its answer one call back.

llhttp (by httptools) parses; no cookies, no redirects, no decompression; bodies are counted, not kept. Idle
connections are a stack, the last used on top; there is no limit to them, a limit would make open load closed.
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

Over = Callable[["Sending"], None]


class Sending:
    """One request under way. status: of its answer, 0 for none; error: index into records.ERRORS; pool: X-Pool."""

    __slots__ = ("connecting", "connection", "error", "i", "pool", "resent", "size", "started", "status", "target")

    def __init__(self, i: int, target: int, size: int) -> None:
        self.i, self.target, self.size = i, target, size
        self.status, self.error, self.pool = 0, 0, b""
        self.started = 0.0
        self.resent = False
        self.connection: _Connection | None = None
        self.connecting: asyncio.Task[None] | None = None


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, client: Client, origin: Origin) -> None:
        self._client, self._origin = client, origin
        self._transport: asyncio.Transport
        self._parser = httptools.HttpResponseParser(self)
        self._sending: Sending | None = None
        self._heard = self._framed = self._used = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, sending: Sending, data: bytes) -> None:
        self._sending, sending.connection = sending, self
        self._heard = False
        self._transport.write(data)

    def abort(self) -> None:
        self._sending = None
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()

    @property
    def closing(self) -> bool:
        return self._transport.is_closing()

    def data_received(self, data: bytes) -> None:
        self._client.received += len(data)
        self._heard = True
        if self._sending is None:
            self._unasked()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(BAD_ANSWER)
            self._transport.abort()

    def _unasked(self) -> None:
        """An answer that nobody waits for: it must not become the answer to what is sent next."""
        self._client.lost(self._origin, self)
        self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._client.lost(self._origin, self)
        sending = self._sending
        if sending is None:
            return
        if sending.status and not self._framed and error is None:  # a body that lasts until the connection ends
            self._finish(sending)
        elif self._used and not self._heard and not sending.resent and self._client.request.idempotent:
            self._sending = None  # it was closed as we took it: RFC 9112, section 9.3.1
            self._client.resend(sending)
        else:
            sending.status = 0
            self._fail(TLS if isinstance(error, ssl.SSLError) else RESET if isinstance(error, OSError) else CLOSED)

    def on_header(self, name: bytes, value: bytes) -> None:
        size = len(name)
        if size == 6:
            if name.lower() == b"x-pool" and self._sending:
                self._sending.pool = value
        elif size == 14 and name.lower() == b"content-length":
            self._framed = True
        elif size == 17 and name.lower() == b"transfer-encoding":
            self._framed = value.lower().endswith(b"chunked")  # else it lasts until the connection ends

    def on_message_begin(self) -> None:
        self._framed = False
        if self._sending is None:
            self._unasked()
        else:
            self._sending.pool = b""

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if (sending := self._sending) is None or status < 200:
            return
        sending.status = status
        self._framed = self._framed or status in (204, 304)
        if self._client.request.method == "HEAD":  # the parser would wait for a body
            self._finish(sending)
            self._parser = httptools.HttpResponseParser(self)

    def on_message_complete(self) -> None:
        if (sending := self._sending) is not None and sending.status:
            self._finish(sending)
        elif self._parser.get_status_code() < 100:
            raise httptools.HttpParserError("no status")

    def _finish(self, sending: Sending) -> None:
        self._sending, sending.connection = None, None
        self._used = True
        if self._transport.get_write_buffer_size():  # it was answered before it was read
            self._transport.abort()
        elif self._client.request.keepalive and self._parser.should_keep_alive():
            self._client.idle[self._origin].append(self)
        else:
            self._transport.close()
        self._client.over(sending)

    def _fail(self, error: int) -> None:
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.connection = None
            sending.status, sending.error = 0, error
            self._client.over(sending)


class Client:
    """Connections to the origins of a request. over: told of each that has ended.

    Raises OSError from `start` if a name has no address or the authorities' file cannot be read.
    """

    def __init__(self, request: Request, over: Over) -> None:
        self.request, self.over = request, over
        self.idle: dict[Origin, list[_Connection]] = {target.origin: [] for target in request.targets}
        self.opened = self.resent = self.received = 0
        self._origins = [target.origin for target in request.targets]
        self._fixed = [request.bytes_for(i, 0) for i in range(len(request.targets))] if request.alike else None
        self._addresses: dict[Origin, list[tuple[str, int]]] = {}
        self._connections: dict[_Connection, None] = {}
        self._tls: ssl.SSLContext | None = None
        self.ready = False

    async def start(self) -> None:
        """Ask for the addresses, so that no request waits for them."""
        loop = asyncio.get_running_loop()
        for origin in self.idle:
            try:
                self._addresses[origin] = await loop.run_in_executor(None, origin.addresses)
            except OSError as error:
                raise OSError(error.errno, f"cannot look up {origin.host}: {error.strerror}") from error
        self._tls = self.request.tls()
        self.ready = True

    def send(self, sending: Sending) -> None:
        idle = self.idle[self._origins[sending.target]]
        while idle:
            if not (connection := idle.pop()).closing:
                connection.send(sending, self._bytes(sending))
                return
        sending.connecting = asyncio.get_running_loop().create_task(self._connect(sending))

    def resend(self, sending: Sending) -> None:
        self.resent += 1
        sending.resent, sending.connection = True, None
        sending.connecting = asyncio.get_running_loop().create_task(self._connect(sending))

    def abort(self, sending: Sending, error: int) -> None:
        """End it here."""
        if sending.connecting is not None:
            sending.connecting.cancel()
        if sending.connection is not None:
            sending.connection.abort()
        sending.status, sending.error = 0, error
        self.over(sending)

    def lost(self, origin: Origin, connection: _Connection) -> None:
        self._connections.pop(connection, None)
        with contextlib.suppress(ValueError):
            self.idle[origin].remove(connection)

    async def close(self) -> None:
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)

    def _bytes(self, sending: Sending) -> bytes:
        if self._fixed is not None:
            return self._fixed[sending.target]
        return self.request.bytes_for(sending.target, sending.size, sending.i)

    async def _connect(self, sending: Sending) -> None:
        loop, origin = asyncio.get_running_loop(), self._origins[sending.target]
        tls: dict[str, Any] = {"ssl": self._tls, "server_hostname": origin.host} if origin.scheme == "https" else {}
        failed: Exception | None = None
        for address in self._addresses[origin]:
            try:
                _, connection = await loop.create_connection(lambda: _Connection(self, origin), *address, **tls)
            except OSError as error:
                failed = error
                continue
            self.opened += 1
            self._connections[connection] = None
            sending.connecting = None
            connection.send(sending, self._bytes(sending))
            return
        sending.connecting = None
        sending.error = _kind(failed)
        self.over(sending)


def _kind(error: Exception | None) -> int:
    if isinstance(error, ssl.SSLError):
        return TLS
    if isinstance(error, ConnectionRefusedError):
        return REFUSED
    if isinstance(error, ConnectionResetError):
        return RESET
    return NO_CONNECTION if isinstance(error, OSError) and error.errno in _LOCAL else UNREACHABLE


_LOCAL = frozenset({errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL})  # this machine has no more
