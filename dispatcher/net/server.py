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
from typing import Any, cast

from dispatcher.core.router import Router
from dispatcher.net.addresses import Address, bound, listen_on
from dispatcher.net.answers import own_answer
from dispatcher.net.clock import http_date
from dispatcher.net.forwarder import Forwarder
from dispatcher.net.frontend import ClientConnection

BACKLOG = 4096


class _TooMany(asyncio.Protocol):
    """A connection beyond the limit: told so and closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        refused = cast(asyncio.Transport, transport)
        refused.write(own_answer(503, "too many connections", http_date(), keep_alive=False))
        refused.close()


class Server:
    """forwarder: what its exchanges share, the settings among it. tls: to speak TLS to clients."""

    def __init__(self, forwarder: Forwarder, tls: ssl.SSLContext | None = None) -> None:
        self.forwarder = forwarder
        self.tls = tls
        self.draining = False
        self._connections: set[ClientConnection] = set()
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._files: list[str] = []  # of Unix sockets that are ours to remove
        self._accepting: set[asyncio.Task[object]] = set()
        self._all_closed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Server {len(self._connections)} connections{', draining' if self.draining else ''}>"

    @property
    def router(self) -> Router:
        return self.forwarder.router

    @property
    def ready(self) -> bool:
        """Listening, not draining, and some pool is open."""
        return bool(self._servers) and not self.draining and bool(self.router.fleet.pools)

    async def listen(
        self, address: Address, reuse_port: bool = False, inherited: list[socket.socket] | None = None
    ) -> Address:
        """Start; returns the bound address. Raises StartError if it cannot be had.

        reuse_port: share it with another process, for a hand-over. inherited: sockets that listen there already."""
        self._sockets = inherited or listen_on("listen", address, BACKLOG, reuse_port)
        self._files = [address.path] if address.path and not inherited else []
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            create = loop.create_unix_server if listening.family == socket.AF_UNIX else loop.create_server
            server = await create(self._accept, sock=listening, backlog=BACKLOG, **self._encryption)
            self._servers.append(server)
        return bound(self._sockets[0])

    @property
    def _encryption(self) -> dict[str, Any]:
        seconds = self.forwarder.settings.timeouts.head or None
        return {"ssl": self.tls, "ssl_handshake_timeout": seconds} if self.tls is not None else {}

    def _accept(self) -> asyncio.Protocol:
        limit = self.forwarder.settings.limits.connections
        if limit and len(self._connections) >= limit:
            self.forwarder.events.rejected("connections")
            return _TooMany()
        return ClientConnection(self.forwarder, self._opened, self._closed)

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
                    taken, _ = listening.accept()
                    task = loop.create_task(loop.connect_accepted_socket(self._accept, taken, **self._encryption))
                    self._accepting.add(task)
                    task.add_done_callback(self._accepting.discard)
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
            async with asyncio.timeout(self.forwarder.settings.timeouts.drain or None):
                await asyncio.gather(*self._accepting, return_exceptions=True)
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
            connection.cut()
        self._stop_listening()
        self.forwarder.health.close()
        for upstream in self.forwarder.upstreams.values():
            upstream.close()
        for _ in range(3):
            await asyncio.sleep(0)  # let the transports tell their protocols
        return len(cut)
