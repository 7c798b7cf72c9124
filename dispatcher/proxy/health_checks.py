"""Active health: every pool is asked for a page now and then, on a fresh connection. Any 2xx or 3xx answer is well.

What a probe finds goes to `PoolHealth`, which decides. Probes do not count as requests: no policy sees them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from random import Random

from dispatcher.errors import OutOfResources, RequestError
from dispatcher.http.response import Response
from dispatcher.proxy.connection_pool import Upstream
from dispatcher.proxy.outlier_detection import PoolHealth

JITTER = 0.1  # of the interval, either way, so that many dispatchers do not ask in step


class _Question:
    """upstream.Conversation of a probe: only the status matters."""

    method = b"GET"
    upgrade = None

    def __init__(self) -> None:
        self.status = 0

    def answer_head(self, response: Response) -> None:
        if response.status >= 200:
            self.status = response.status

    def answer_data(self, data: bytes) -> None: ...
    def answer_end(self, trailers: list[bytes]) -> None: ...
    def flush(self) -> None: ...
    def hold_upload(self, hold: bool) -> None: ...
    def switched(self, rest: bytes) -> None: ...


async def probe(upstream: Upstream, path: str, seconds: float) -> bool | None:
    """Whether the pool answers this path well, whole and in so many seconds; None if we could not ask."""
    question = _Question()
    fields = f"Host: {upstream.authority}\r\nUser-Agent: lased-dispatcher\r\nConnection: close\r\n"
    head = f"GET {path} HTTP/1.1\r\n{fields}\r\n"
    connection = None
    try:
        async with asyncio.timeout(seconds or None):
            connection = await upstream.connect()
            await connection.begin(question, head.encode(), 0)
    except OutOfResources:
        return None
    except (RequestError, TimeoutError):
        return False
    finally:
        if connection is not None:
            connection.close()
    return 200 <= question.status < 400


class Prober:
    """A task a pool. upstreams: by pool, as they are now. paths: of the pools that have one of their own. rng: for the
    jitter."""

    def __init__(
        self, health: PoolHealth, upstreams: Mapping[str, Upstream], paths: Mapping[str, str], rng: Random
    ) -> None:
        self._health = health
        self._upstreams = upstreams
        self._paths = paths
        self._rng = rng
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def path(self, pool: str) -> str:
        return self._paths.get(pool) or self._health.settings.path

    def follow(self) -> None:
        """Probe the pools that there are now, and no others."""
        wanted = {pool for pool in self._upstreams if self.path(pool)}
        self._tasks = {pool: task for pool, task in self._tasks.items() if not task.done()}
        for pool in self._tasks.keys() - wanted:
            self._tasks.pop(pool).cancel()
            self._health.unprobed(pool)
        for pool in wanted - self._tasks.keys():
            self._tasks[pool] = asyncio.create_task(self._watch(pool), name=f"probe {pool}")

    async def _watch(self, pool: str) -> None:
        wait = self._rng.random() * JITTER  # the first one soon
        while True:
            settings = self._health.settings
            await asyncio.sleep(wait * (settings.interval or 1.0))
            well = await probe(self._upstreams[pool], self.path(pool), settings.timeout)
            if well is not None:
                self._health.probed(pool, well)
            wait = 1 + self._rng.uniform(-JITTER, JITTER)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        for task in self._tasks.values():
            with contextlib.suppress(asyncio.CancelledError):
                await task
