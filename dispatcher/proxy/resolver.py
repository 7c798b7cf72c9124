"""The addresses of a pool's host name. They are resolved again and again, because a name may move to another machine.

If the resolver fails, the last known addresses are used further.
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable

from dispatcher.errors import UpstreamUnreachable
from dispatcher.platform.sockets import Address

MAX_RETRY_SECONDS = 5.0  # between two lookups after one has failed


class Resolver:
    """Resolves one host name.

    address: its host name and port.
    ttl: returns the seconds for which an answer is used; 0 means for ever.
    on_gone: called with the addresses to which the name no longer resolves.
    on_failed: called with the reason when a lookup fails although addresses are known.
    """

    def __init__(
        self,
        address: Address,
        ttl: Callable[[], float],
        on_gone: Callable[[set[str]], None],
        on_failed: Callable[[str], None],
    ) -> None:
        self._address = address
        self._ttl = ttl
        self._on_gone = on_gone
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._addresses: list[str] = []
        self._unreachable: set[str] = set()
        self._rotation = 0
        self._fresh_until = 0.0
        self._lookup: asyncio.Task[None] | None = None

    def refresh_if_old(self) -> None:
        """Start a lookup in the background if the known addresses are too old."""
        if self._loop.time() >= self._fresh_until and self._lookup is None:
            self._lookup = self._loop.create_task(self._look_up(), name=f"resolve {self._address.host}")

    async def addresses(self) -> list[str]:
        """Return all addresses, beginning with another one at each call. Raises UpstreamUnreachable without any."""
        self.refresh_if_old()
        if not self._addresses and self._lookup is not None:
            await asyncio.shield(self._lookup)
        if not self._addresses:
            raise UpstreamUnreachable(f"the name {self._address.host} cannot be resolved")
        self._rotation = (self._rotation + 1) % len(self._addresses)
        rotated = self._addresses[self._rotation :] + self._addresses[: self._rotation]
        return sorted(rotated, key=self._unreachable.__contains__)

    def mark_unreachable(self, address: str) -> None:
        """Try this address after all others until the next lookup."""
        self._unreachable.add(address)

    def _keep_for(self, seconds: float) -> None:
        self._fresh_until = max(self._fresh_until, self._loop.time() + seconds)  # which is infinity once closed

    async def _look_up(self) -> None:
        host, ttl = self._address.host, self._ttl()
        try:
            answers = await self._loop.getaddrinfo(host, self._address.port, type=socket.SOCK_STREAM)
        except OSError as error:
            self._keep_for(min(ttl, MAX_RETRY_SECONDS))
            if self._addresses:
                self._on_failed(f"{host}: {error.strerror or error}")
        else:
            self._keep_for(ttl or math.inf)
            self._unreachable.clear()
            addresses = list(dict.fromkeys(str(where[0]) for *_, where in answers))
            gone = set(self._addresses) - set(addresses)
            self._addresses = addresses
            if gone:
                self._on_gone(gone)
        finally:
            self._lookup = None

    def close(self) -> None:
        """Start no further lookup. One that is under way goes on, for requests that wait for it."""
        self._fresh_until = math.inf
