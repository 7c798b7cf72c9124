"""The listening side: accepts connections up to a limit, and ends in good order.

Drain: stop listening, close idle connections, say `Connection: close` to busy ones, wait for them up to a deadline,
cut what is left.
"""

from __future__ import annotations

import asyncio
import errno
import os
from typing import cast

from dispatcher.core.router import Router
from dispatcher.errors import StartError
from dispatcher.net.exchange import Forwarder
from dispatcher.net.frontend import ClientConnection
from dispatcher.net.heads import own_answer
from dispatcher.net.settings import Settings

BACKLOG = 4096


class _TooMany(asyncio.Protocol):
    """A connection beyond the limit: told so and closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        refused = cast(asyncio.Transport, transport)
        refused.write(own_answer(503, "too many connections", keep_alive=False))
        refused.close()


class Server:
    """forwarder: what its exchanges share. settings: limits and timeouts."""

    def __init__(self, forwarder: Forwarder, settings: Settings) -> None:
        self.forwarder = forwarder
        self.settings = settings
        self.draining = False
        self._connections: set[ClientConnection] = set()
        self._server: asyncio.Server | None = None
        self._all_closed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Server {len(self._connections)} connections{', draining' if self.draining else ''}>"

    @property
    def router(self) -> Router:
        return self.forwarder.router

    @property
    def ready(self) -> bool:
        """Listening, not draining, and some pool is open."""
        return self._server is not None and not self.draining and bool(self.router.fleet.pools)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Start; returns the bound address. Raises StartError if it cannot be had."""
        try:
            self._server = await asyncio.get_running_loop().create_server(self._accept, host, port, backlog=BACKLOG)
        except OSError as error:
            raise StartError(cannot_listen("listen", host, port, error)) from error
        address = self._server.sockets[0].getsockname()
        return address[0], address[1]

    def _accept(self) -> asyncio.Protocol:
        limit = self.settings.limits.connections
        if limit and len(self._connections) >= limit:
            self.forwarder.events.rejected("connections")
            return _TooMany()
        return ClientConnection(self.forwarder, self.settings, self._opened, self._closed)

    def _opened(self, connection: ClientConnection) -> None:
        self._connections.add(connection)
        if self.draining:
            connection.drain()

    def _closed(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    async def drain(self) -> int:
        """End in good order; returns how many connections had to be cut."""
        self.draining = True
        if self._server is not None:
            self._server.close()
        self._all_closed.clear()
        for connection in list(self._connections):
            connection.drain()
        if self._connections:
            try:
                async with asyncio.timeout(self.settings.timeouts.drain or None):
                    await self._all_closed.wait()
            except TimeoutError:
                pass  # the deadline is what the wait was for
        return await self.cut()

    async def cut(self) -> int:
        """Close everything at once; returns how many connections were open."""
        cut = list(self._connections)
        for connection in cut:
            connection.cut()
        if self._server is not None:
            self._server.close()
        self.forwarder.health.close()
        for upstream in self.forwarder.upstreams.values():
            upstream.close()
        for _ in range(3):
            await asyncio.sleep(0)  # let the transports tell their protocols
        return len(cut)


def cannot_listen(key: str, host: str, port: int, error: OSError) -> str:
    """What to tell a person when a port cannot be had."""
    if error.errno == errno.EADDRINUSE:
        return f"{key}: {host}:{port} is in use by another program; stop it or choose another port"
    if error.errno == errno.EACCES:
        return f"{key}: no permission to listen on {host}:{port}; ports below 1024 need privileges"
    return f"{key}: cannot listen on {host}:{port}: {os.strerror(error.errno) if error.errno else error}"
