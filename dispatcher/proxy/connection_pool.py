"""The connections of one pool: the idle ones, new ones, and the address that they go to."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dispatcher.errors import OutOfResources, RequestError, UpstreamConnectTimeout, UpstreamUnreachable
from dispatcher.platform.sockets import Address
from dispatcher.proxy.resolver import Resolver
from dispatcher.proxy.upstream import PoolConnection, State
from dispatcher.settings import LiveSettings

if TYPE_CHECKING:
    from dispatcher.proxy.exchange import Exchange

EXHAUSTED_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
MAX_IDLE_CONNECTIONS = 512


@dataclass(frozen=True)
class Target:
    """Where a pool listens.

    tls: how to speak TLS to it; None for plain text.
    server_name: the name in its certificate.
    trust: a digest of what its certificate is checked against, so that two targets can be compared.
    """

    address: Address
    tls: ssl.SSLContext | None = field(default=None, compare=False)
    server_name: str = ""
    trust: str = ""

    @property
    def is_named(self) -> bool:
        """The address is a host name, and what it resolves to may change."""
        try:
            ipaddress.ip_address(self.address.host)
        except ValueError:
            return not self.address.path
        return False


class ConnectionPool:
    """All connections to one pool.

    pool_id: the pool's name.
    on_resolve_failed: called with the reason when its host name could not be resolved again.
    """

    def __init__(
        self,
        pool_id: str,
        target: Target,
        settings: LiveSettings,
        on_resolve_failed: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.id = pool_id
        self.target = target
        self.loop = asyncio.get_running_loop()
        self._settings = settings
        self._resolver = (
            Resolver(target.address, lambda: settings.timeouts.dns, self._addresses_gone, on_resolve_failed)
            if target.is_named
            else None
        )
        self._idle: list[PoolConnection] = []
        self._all: set[PoolConnection] = set()
        self._is_retired = False

    def __repr__(self) -> str:
        return f"<ConnectionPool {self.id} at {self.target.address}, {len(self._idle)} idle of {len(self._all)}>"

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._all)

    @property
    def idle_connections(self) -> int:
        return len(self._idle)

    @property
    def authority(self) -> str:
        """The Host field of a health check."""
        return "localhost" if self.target.address.path else str(self.target.address)

    # -- taking and keeping connections

    def take_idle(self) -> PoolConnection | None:
        """Return the kept-alive connection that was used last; None if there is none."""
        if self._resolver is not None:
            self._resolver.refresh_if_old()
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        return None

    def dial(self, exchange: Exchange) -> asyncio.Task[None]:
        """Make a new connection and hand it to the exchange. Cancel the task to give up."""
        return self.loop.create_task(self._dial(exchange))

    async def _dial(self, exchange: Exchange) -> None:
        try:
            try:
                connection = await self.connect()
            except RequestError as error:
                exchange.on_connect_failed(error)
            else:
                exchange.on_connected(connection)
        except Exception as bug:  # noqa: BLE001 - a bug must not leave a request in flight for ever
            exchange.fail(bug)

    def keep(self, connection: PoolConnection) -> None:
        """Keep a connection for another request, or close it if it is not needed."""
        if len(self._idle) < MAX_IDLE_CONNECTIONS and not self._is_retired and connection.is_reusable:
            connection.deadline.set(self._settings.timeouts.pool_idle)
            self._idle.append(connection)
        else:
            connection.close()

    def remove(self, connection: PoolConnection) -> None:
        """This connection is closed."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    # -- connecting

    async def connect(self) -> PoolConnection:
        """Connect to the first address that accepts. Raises UpstreamUnreachable, OutOfResources."""
        seconds = self._settings.timeouts.connect or None
        try:
            async with asyncio.timeout(seconds):
                connection = await self._connect()
        except TimeoutError as error:
            raise UpstreamConnectTimeout(f"pool {self.id} did not accept a connection in {seconds:g} s") from error
        except (OSError, UnicodeError) as error:
            text = f"pool {self.id} at {self.target.address}: {getattr(error, 'strerror', None) or error}"
            if isinstance(error, OSError) and error.errno in EXHAUSTED_ERRNOS:
                raise OutOfResources(text) from error
            raise UpstreamUnreachable(text) from error
        self._all.add(connection)
        return connection

    async def _connect(self) -> PoolConnection:
        address, tls = self.target.address, self.target.tls
        name = (self.target.server_name or address.host) if tls else None
        if address.path:
            _, connection = await self.loop.create_unix_connection(
                self._new_connection, address.path, ssl=tls, server_hostname=name
            )
            return connection
        hosts = await self._resolver.addresses() if self._resolver else [address.host]
        end = self.loop.time() + (self._settings.timeouts.connect or math.inf)
        for hosts_left, host in zip(range(len(hosts), 0, -1), hosts, strict=True):
            # Each address gets an equal share of the time, so that a silent one leaves time for the others.
            seconds = (end - self.loop.time()) / hosts_left
            try:
                async with asyncio.timeout(seconds if hosts_left > 1 and seconds < math.inf else None):
                    _, connection = await self.loop.create_connection(
                        self._new_connection, host, address.port, ssl=tls, server_hostname=name
                    )
                return connection
            except OSError as error:  # TimeoutError is one
                if self._resolver is not None:
                    self._resolver.mark_unreachable(host)
                if hosts_left == 1 or error.errno in EXHAUSTED_ERRNOS:
                    raise
        raise AssertionError("a pool has an address")

    def _new_connection(self) -> PoolConnection:
        return PoolConnection(self)

    # -- an address or a pool that is gone

    def _addresses_gone(self, gone: set[str]) -> None:
        """The host name no longer resolves to these addresses: keep no connection to them."""
        for connection in self._all:
            connection.is_reusable = connection.is_reusable and connection.peer not in gone
        for connection in [each for each in self._idle if not each.is_reusable]:
            connection.close()

    def retire(self) -> None:
        """Close idle connections now, busy ones after their request, and tunnels after the drain timeout."""
        self._is_retired = True
        if self._resolver is not None:
            self._resolver.close()
        for connection in list(self._idle):
            connection.close()
        self.tunnel_started()

    def tunnel_started(self) -> None:
        """A connection has become a tunnel. If the pool is gone, the tunnel may stay for the drain timeout only."""
        drain_seconds = self._settings.timeouts.drain
        if self._is_retired and self._all and drain_seconds:
            self.loop.call_later(drain_seconds, self._close_tunnels)

    def _close_tunnels(self) -> None:
        for connection in [each for each in self._all if each.state is State.TUNNEL]:
            connection.close()

    def close(self) -> None:
        """Close every connection now."""
        if self._resolver is not None:
            self._resolver.close()
        for connection in list(self._all):
            connection.close()
