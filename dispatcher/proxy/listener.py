"""The listening side: it accepts connections up to a limit, and drains them at the end.

To drain is to stop listening, to close idle connections, to answer busy ones with `Connection: close`, to wait for them
up to a deadline, and to close the rest.
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
ACCEPT_PAUSE_SECONDS = 1.0  # without accepting a connection when no file descriptor is left


class _TooManyConnections(asyncio.Protocol):
    """A connection beyond the limit: it gets status 503 and is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        refused = cast(asyncio.Transport, transport)
        refused.write(own_response(503, "too many connections", http_date(), keep_alive=False))
        refused.close()


class Listener:
    """Accepts client connections. tls: the context to speak TLS with; None for plain text."""

    def __init__(self, context: ProxyContext, tls: ssl.SSLContext | None = None) -> None:
        self.context = context
        self.tls = tls
        self.is_draining = False
        self._connections: set[ClientConnection] = set()
        self._servers: list[asyncio.Server] = []
        self._sockets: list[socket.socket] = []
        self._socket_files: list[str] = []  # of Unix sockets that this process has made
        self._handshakes: set[asyncio.Task[None]] = set()  # accepted connections that are not connected yet
        self._all_closed = asyncio.Event()

    def __repr__(self) -> str:
        return f"<Listener {len(self._connections)} connections{', draining' if self.is_draining else ''}>"

    @property
    def router(self) -> Router:
        return self.context.router

    @property
    def is_ready(self) -> bool:
        """It listens, does not drain, and some pool is open."""
        return bool(self._sockets) and not self.is_draining and bool(self.router.fleet.pools)

    # -- accepting

    async def listen(
        self, address: Address, reuse_port: bool = False, inherited: list[socket.socket] | None = None
    ) -> Address:
        """Start to listen. Return the bound address. Raises StartError if it cannot be bound.

        reuse_port: share the port with another process, to hand over to it.
        inherited: sockets that listen there already.
        """
        self._sockets = inherited or listen_on("listen", address, BACKLOG, reuse_port)
        self._socket_files = [address.path] if address.path and not inherited else []
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            if self.tls is not None:
                loop.add_reader(listening, self._accept_tls, listening)
                continue
            create = loop.create_unix_server if listening.family == socket.AF_UNIX else loop.create_server
            self._servers.append(await create(self._new_protocol, sock=listening, backlog=BACKLOG))
        return bound(self._sockets[0])

    @property
    def _is_full(self) -> bool:
        limit = self.context.settings.limits.connections
        return 0 < limit <= len(self._connections) + len(self._handshakes)

    def _new_protocol(self) -> asyncio.Protocol:
        if self._is_full:
            self.context.events.rejected("connections")
            return _TooManyConnections()
        return self._new_connection()

    def _new_connection(self) -> ClientConnection:
        return ClientConnection(self.context, self._on_opened, self._on_closed)

    def _accept_tls(self, listening: socket.socket) -> None:
        """Accept TLS connections ourselves.

        asyncio creates the protocol only after the handshake. Unfinished handshakes would then not count against
        `limits.connections`, and any number of silent connections could be open.
        """
        loop = asyncio.get_running_loop()
        try:
            for _ in range(BACKLOG):
                self._adopt(listening.accept()[0])
        except BlockingIOError:
            pass  # all that were waiting are accepted
        except OSError as error:
            # Most likely no descriptor is left. The loop would call this method again at once, for ever.
            self.context.events.internal_error(error)
            loop.remove_reader(listening)
            loop.call_later(ACCEPT_PAUSE_SECONDS, self._resume_accepting, listening)

    def _resume_accepting(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listening, self._accept_tls, listening)

    def _adopt(self, accepted: socket.socket) -> None:
        """Make a client connection of a socket that was accepted here."""
        if self.tls is not None and self._is_full:
            self.context.events.rejected("connections")
            accepted.close()
            return
        seconds = self.context.settings.timeouts.head or None
        tls = {"ssl": self.tls, "ssl_handshake_timeout": seconds} if self.tls is not None else {}
        loop = asyncio.get_running_loop()
        protocol = self._new_connection if self.tls is not None else self._new_protocol
        handshake = loop.connect_accepted_socket(protocol, accepted, **tls)  # type: ignore[arg-type]
        task = loop.create_task(self._finish_handshake(handshake))
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    async def _finish_handshake(self, handshake: Awaitable[object]) -> None:
        with contextlib.suppress(OSError):  # a handshake that failed or took too long is the client's affair
            await handshake

    def _on_opened(self, connection: ClientConnection) -> None:
        self._connections.add(connection)
        if self.is_draining:
            connection.drain()

    def _on_closed(self, connection: ClientConnection) -> None:
        self._connections.discard(connection)
        if not self._connections:
            self._all_closed.set()

    # -- the end

    def _stop_listening(self) -> None:
        """Accept the connections that are waiting, because to close the socket would reset them; then close it."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            with contextlib.suppress(OSError):  # no connection waits any more, or the socket is closed
                while listening.fileno() >= 0:
                    self._adopt(listening.accept()[0])
            if self.tls is not None:
                loop.remove_reader(listening)
                listening.close()
        for server in self._servers:
            server.close()
        for path in self._socket_files:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        self._sockets, self._socket_files = [], []

    async def drain(self) -> int:
        """Stop listening, and wait for open requests up to the drain timeout. Return how many connections were cut."""
        self.is_draining = True
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
            pass  # the connections that are left are cut
        return await self.close()

    async def close(self) -> int:
        """Close everything at once. Return how many client connections were open."""
        connections = list(self._connections)
        for connection in connections:
            connection.reset()
        for task in list(self._handshakes):
            task.cancel()
        self._stop_listening()
        self.context.health.close()
        for connection_pool in self.context.connection_pools.values():
            connection_pool.close()
        for _ in range(3):
            await asyncio.sleep(0)  # lets the transports call their protocols
        return len(connections)
