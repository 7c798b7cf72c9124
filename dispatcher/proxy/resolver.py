"""The addresses of a pool's host name, looked up again and again: what a name meant yesterday may be another machine
today. A resolver that fails changes nothing: the addresses known last are used on."""

from __future__ import annotations

import asyncio
import math
import socket
from collections.abc import Callable

from dispatcher.errors import UpstreamUnreachable

AGAIN = 5.0  # seconds until the next try, at the most, when the resolver failed


class Names:
    """moved: called with the addresses that are no longer the host's. failed: with the reason, when a lookup fails
    although addresses are known."""

    def __init__(
        self,
        host: str,
        port: int,
        ttl: Callable[[], float],
        moved: Callable[[set[str]], None],
        failed: Callable[[str], None],
    ) -> None:
        self._host = host
        self._port = port
        self._ttl = ttl
        self._moved = moved
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._known: list[str] = []
        self._dead: set[str] = set()
        self._turn = 0
        self._until = 0.0
        self._lookup: asyncio.Task[None] | None = None

    def touch(self) -> None:
        """Look up again, in the background, if what is known has become old."""
        if self._loop.time() >= self._until and self._lookup is None:
            self._lookup = self._loop.create_task(self._look_up(), name=f"resolve {self._host}")

    async def addresses(self) -> list[str]:
        """All of them, another one first at each call. Raises UpstreamUnreachable if none was ever found."""
        self.touch()
        if not self._known and self._lookup is not None:
            await asyncio.shield(self._lookup)
        if not self._known:
            raise UpstreamUnreachable(f"the name {self._host} cannot be resolved")
        self._turn = (self._turn + 1) % len(self._known)
        return sorted(self._known[self._turn :] + self._known[: self._turn], key=self._dead.__contains__)

    def dead(self, address: str) -> None:
        """Nobody answers there: the others come first until the next lookup."""
        self._dead.add(address)

    def _fresh_for(self, seconds: float) -> None:
        self._until = max(self._until, self._loop.time() + seconds)  # which is infinity once closed

    async def _look_up(self) -> None:
        ttl = self._ttl()
        try:
            found = await self._loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            self._fresh_for(min(ttl, AGAIN))
            if self._known:
                self._failed(f"{self._host}: {error.strerror or error}")
        else:
            self._fresh_for(ttl or math.inf)
            self._dead.clear()
            now = list(dict.fromkeys(str(where[0]) for *_, where in found))
            gone = set(self._known) - set(now)
            self._known = now
            if gone:
                self._moved(gone)
        finally:
            self._lookup = None

    def close(self) -> None:
        """Look up no more. A lookup under way goes on, for who waits for it."""
        self._until = math.inf
