"""The listening side: accepts connections up to a limit, and ends in good order.

Drain: stop listening, close idle connections, say `Connection: close` to busy ones, wait for them up to a deadline,
cut what is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Awaitable
from typing import cast

from dispatcher.core.router import Router
from dispatcher.http.response import own_response
from dispatcher.platform.clock import http_date
from dispatcher.platform.sockets import Address, bound, listen_on
from dispatcher.proxy.context import ProxyContext
from dispatcher.proxy.downstream import ClientConnection

BACKLOG = 4096
ACCEPT_PAUSE_SECONDS = 1.0  # seconds without accepting anybody, when no descriptor is left


class _TooMany(asyncio.Protocol):
    """A connection beyond the limit: told so and closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        refused = cast(asyncio.Transport, transport)
        refused.write(own_response(503, "too many connections", http_date(), keep_alive=False))
        refused.close()


class Listener:
    """context: what its exchanges share, the settings among it. tls: to speak TLS to clients."""

    def __init__(self, context: ProxyContext, tls: ssl.SSLContext | None = None) -> None:
        self.context = context
        self.tls = tls
        self.draining = False
        self._connections: set[ClientConnection] = set()
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._files: list[str] = []  # of Unix sockets that are ours to remove
        self._handshakes: set[asyncio.Task[None]] = set()  # accepted by hand, and not connected yet
        self._all_closed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Listener {len(self._connections)} connections{', draining' if self.draining else ''}>"

    @property
    def router(self) -> Router:
        return self.context.router

    @property
    def ready(self) -> bool:
        """Listening, not draining, and some pool is open."""
        return bool(self._sockets) and not self.draining and bool(self.router.fleet.pools)

    async def listen(
        self, address: Address, reuse_port: bool = False, inherited: list[socket.socket] | None = None
    ) -> Address:
        """Start; returns the bound address. Raises StartError if it cannot be had.

        reuse_port: share it with another process, for a hand-over. inherited: sockets that listen there already."""
        self._sockets = inherited or listen_on("listen", address, BACKLOG, reuse_port)
        self._files = [address.path] if address.path and not inherited else []
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            if self.tls is not None:
                loop.add_reader(listening, self._accept_tls, listening)
                continue
            create = loop.create_unix_server if listening.family == socket.AF_UNIX else loop.create_server
            self._servers.append(await create(self._accept, sock=listening, backlog=BACKLOG))
        return bound(self._sockets[0])

    @property
    def _is_full(self) -> bool:
        limit = self.context.settings.limits.connections
        return 0 < limit <= len(self._connections) + len(self._handshakes)

    def _accept(self) -> asyncio.Protocol:
        if self._is_full:
            self.context.events.rejected("connections")
            return _TooMany()
        return self._connection()

    def _connection(self) -> ClientConnection:
        return ClientConnection(self.context, self._opened, self._closed)

    def _accept_tls(self, listening: socket.socket) -> None:
        """Take in who wants to speak TLS. Not left to the loop, which would count nobody before his handshake is done,
        and let any number of connections stand there silent."""
        loop = asyncio.get_running_loop()
        try:
            for _ in range(BACKLOG):
                self._adopt(listening.accept()[0])
        except BlockingIOError:
            pass  # that was all
        except OSError as error:  # no descriptor is left, most likely: it would be tried again at once, for ever
            self.context.events.internal_error(error)
            loop.remove_reader(listening)
            loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume_accepting, listening)

    def _resume_accepting(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening, self._accept_tls, listening)

    def _adopt(self, taken: socket.socket) -> None:
        """A connection that was accepted by hand."""
        if self.tls is not None and self._is_full:
            self.context.events.rejected("connections")
            taken.close()
            return
        seconds = self.context.settings.timeouts.head or None
        tls = {"ssl": self.tls, "ssl_handshake_timeout": seconds} if self.tls is not None else {}
        loop = asyncio.get_running_loop()
        make = self._connection if self.tls is not None else self._accept
        task = loop.create_task(self._handshake(loop.connect_accepted_socket(make, taken, **tls)))  # type: ignore[arg-type]
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _handshake(self, way_in: Awaitable[object]) -> None:
        with contextlib.suppress(OSError):  # a handshake that failed or took too long is the client's affair
            await way_in

    def _opened(self, connection: ClientConnection) -> None:
        self._connections.add(connection)
        if self.draining:
            connection.drain()

    def _closed(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    def _stop_listening(self) -> None:
        """Take what has been connected already, for closing the socket would reset it; then close."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            with contextlib.suppress(OSError):  # until none waits any more, or if it is closed
                while listening.fileno() >= 0:
                    self._adopt(listening.accept()[0])
            if self.tls is not None:
                loop.remove_reader(listening)
                listening.close()
        for server in self._servers:
            server.close()
        for path in self._files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._sockets, self._files = [], []

    async def drain(self) -> int:
        """End in good order; returns how many connections had to be cut."""
        self.draining = True
        for connection in list(self._connections):
            connection.drain()
        self._stop_listening()
        try:
            async with asyncio.timeout(self.context.settings.timeouts.drain or None):
                await asyncio.gather(*self._handshakes, return_exceptions=True)
                self._all_closed.clear()
                if self._connections:
                    await self._all_closed.wait()
        except TimeoutError:
            pass  # the deadline is what the wait was for
        return await self.cut()

    async def cut(self) -> int:
        """Close everything at once; returns how many connections were open."""
        cut = list(self._connections)
        for connection in cut:
            connection.reset()
        for task in list(self._handshakes):
            task.cancel()
        self._stop_listening()
        self.context.health.close()
        for pool in self.context.pools.values():
            pool.close()
        for _ in range(3):
            await asyncio.sleep(0)  # let the transports tell their protocols
        return len(cut)
