"""The connections of one pool: which are idle, how a fresh one is made, and where the pool listens."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import math
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from dispatcher.errors import OutOfResources, UpstreamConnectTimeout, UpstreamUnreachable
from dispatcher.platform.sockets import Address
from dispatcher.proxy.resolver import Names
from dispatcher.proxy.upstream import PoolConnection
from dispatcher.settings import Timeouts

EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM}
IDLE_KEPT = 512  # unused connections kept for a pool


@dataclass(frozen=True)
class Target:
    """Where a pool listens. tls: how to speak to it, None for plain text. server_name: in its certificate. trust: what
    its certificate is held against, so that two targets can be told apart."""

    address: Address
    tls: ssl.SSLContext | None = field(default=None, compare=False)
    server_name: str = ""
    trust: str = ""

    @property
    def is_named(self) -> bool:
        """By a host name, whose addresses may change."""
        try:
            ipaddress.ip_address(self.address.host)
        except ValueError:
            return not self.address.path
        return False


class Upstream:
    """id: the pool's name. failed: told why a host name could not be looked up again."""

    def __init__(
        self, pool_id: str, target: Target, timeouts: Timeouts, failed: Callable[[str], None] = lambda _: None
    ) -> None:
        self.id = pool_id
        self.target = target
        self.timeouts = timeouts
        self.loop = asyncio.get_running_loop()
        where = target.address
        self._names = (
            Names(where.host, where.port, lambda: self.timeouts.dns, self._moved, failed) if target.is_named else None
        )
        self._idle: list[PoolConnection] = []
        self._all: set[PoolConnection] = set()
        self._retired = False

    def __repr__(self) -> str:
        return f"<Upstream {self.id} at {self.target.address}, {len(self._idle)} idle of {len(self._all)}>"

    @property
    def connections(self) -> int:
        return len(self._all)

    @property
    def authority(self) -> str:
        """What a request of our own says in Host."""
        return "localhost" if self.target.address.path else str(self.target.address)

    def idle(self) -> PoolConnection | None:
        """A kept-alive connection, the most recently used; None if there is none."""
        if self._names is not None:
            self._names.touch()
        while self._idle:
            connection = self._idle.pop()
            if connection.transport is not None and not connection.transport.is_closing():
                return connection
        return None

    async def connect(self) -> PoolConnection:
        """A fresh connection, to the first address that takes it. Raises UpstreamUnreachable, OutOfResources."""
        seconds = self.timeouts.connect or None
        try:
            async with asyncio.timeout(seconds):
                connection = await self._connect()
        except TimeoutError as error:
            raise UpstreamConnectTimeout(f"pool {self.id} did not accept a connection in {seconds:g} s") from error
        except (OSError, UnicodeError) as error:
            text = f"pool {self.id} at {self.target.address}: {getattr(error, 'strerror', None) or error}"
            if isinstance(error, OSError) and error.errno in EXHAUSTED:
                raise OutOfResources(text) from error
            raise UpstreamUnreachable(text) from error
        self._all.add(connection)
        return connection

    async def _connect(self) -> PoolConnection:
        address, tls = self.target.address, self.target.tls
        name = (self.target.server_name or address.host) if tls else None
        if address.path:
            _, connection = await self.loop.create_unix_connection(
                self._made, address.path, ssl=tls, server_hostname=name
            )
            return connection
        hosts = await self._names.addresses() if self._names else [address.host]
        until = self.loop.time() + (self.timeouts.connect or math.inf)
        for left, host in zip(range(len(hosts), 0, -1), hosts, strict=True):
            share = (until - self.loop.time()) / left  # so that one that is silent leaves time for the others
            try:
                async with asyncio.timeout(share if left > 1 and share < math.inf else None):
                    _, connection = await self.loop.create_connection(
                        self._made, host, address.port, ssl=tls, server_hostname=name
                    )
                return connection
            except OSError as error:  # of which TimeoutError is one
                if self._names is not None:
                    self._names.dead(host)
                if left == 1 or error.errno in EXHAUSTED:
                    raise
        raise AssertionError("a pool has an address")

    def _made(self) -> PoolConnection:
        return PoolConnection(self)

    def _moved(self, gone: set[str]) -> None:
        """The host has left these addresses: keep no connection to them."""
        for connection in self._all:
            connection.keepable = connection.keepable and connection.peer not in gone
        for connection in [each for each in self._idle if not each.keepable]:
            connection.close()

    def retire(self) -> None:
        """Keep no connection from now on: those that are idle end, those in use when their request does, tunnels after
        the time of a drain."""
        self._retired = True
        if self._names is not None:
            self._names.close()
        for connection in list(self._idle):
            connection.close()
        self.tunnelled()

    def tunnelled(self) -> None:
        """A connection has become a tunnel: for a pool that is gone, not for long."""
        if self._retired and self._all and self.timeouts.drain:
            self.loop.call_later(self.timeouts.drain, self._end_tunnels)

    def _end_tunnels(self) -> None:
        for connection in [each for each in self._all if each.tunnelled]:
            connection.close()

    def keep(self, connection: PoolConnection) -> None:
        if len(self._idle) < IDLE_KEPT and not self._retired and connection.keepable:
            self._idle.append(connection)
        else:
            connection.close()

    def forget(self, connection: PoolConnection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def close(self) -> None:
        if self._names is not None:
            self._names.close()
        for connection in list(self._all):
            connection.close()
