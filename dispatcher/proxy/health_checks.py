"""Active health checks: each pool is asked for a page at intervals, on a new connection. 2xx and 3xx mean healthy.

The result goes to `PoolHealth`, which decides. Health checks are no requests: no policy sees them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from random import Random

from dispatcher.errors import HandlerFailed, OutOfResources, RequestError
from dispatcher.http.response import Response
from dispatcher.proxy.connection_pool import ConnectionPool
from dispatcher.proxy.outlier_detection import PoolHealth
from dispatcher.settings import LiveSettings

JITTER = 0.1  # share of the interval, either way, so that many dispatchers do not check in step


class _Check:
    """The request of one health check (an upstream.Requester): only the status of its response matters."""

    method = b"GET"
    upgrade = None

    def __init__(self) -> None:
        self._status = 0
        self._is_complete = False
        self.result: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_response(self, response: Response) -> None:
        if response.status >= 200:
            self._status = response.status

    def on_response_body(self, data: bytes) -> None: ...

    def on_response_end(self, trailers: list[bytes]) -> bool:
        self._is_complete = self._status > 0
        return not self._is_complete  # the final response follows an interim one

    def on_read_end(self) -> None:
        if self._is_complete and not self.result.done():
            self.result.set_result(self._status)

    def on_pool_writable(self, writable: bool) -> None: ...

    def on_pool_failed(self, error: RequestError) -> None:
        if not self.result.done():
            self.result.set_exception(error)

    def on_pool_timeout(self) -> None: ...

    def fail(self, bug: Exception) -> None:
        self.on_pool_failed(HandlerFailed(f"{type(bug).__name__}: {bug}"))


async def check(pool: ConnectionPool, path: str, timeout_seconds: float) -> bool | None:
    """Return whether the pool answers this path with a healthy status in time; None if we could not ask."""
    request = _Check()
    head = f"GET {path} HTTP/1.1\r\nHost: {pool.authority}\r\nUser-Agent: lased-dispatcher\r\nConnection: close\r\n\r\n"
    connection = None
    try:
        async with asyncio.timeout(timeout_seconds or None):
            connection = await pool.connect()
            connection.begin(request, head.encode())
            status = await request.result
    except OutOfResources:
        return None
    except (RequestError, TimeoutError):
        return False
    finally:
        if connection is not None:
            connection.close()
    return 200 <= status < 400


class HealthChecks:
    """Runs the health checks, one task for each pool that has a path.

    pools: the connections of each pool, as they are now.
    paths: of the pools that have a path of their own.
    rng: for the jitter.
    """

    def __init__(
        self,
        health: PoolHealth,
        settings: LiveSettings,
        pools: Mapping[str, ConnectionPool],
        paths: Mapping[str, str],
        rng: Random,
    ) -> None:
        self._health = health
        self._settings = settings
        self._pools = pools
        self._paths = paths
        self._rng = rng
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def path(self, pool: str) -> str:
        return self._paths.get(pool) or self._settings.health.path

    def pools_changed(self) -> None:
        """Check the pools that there are now, and no others."""
        checked = {pool for pool in self._pools if self.path(pool)}
        self._tasks = {pool: task for pool, task in self._tasks.items() if not task.done()}
        for pool in self._tasks.keys() - checked:
            self._tasks.pop(pool).cancel()
            self._health.checks_ended(pool)
        for pool in checked - self._tasks.keys():
            self._tasks[pool] = asyncio.create_task(self._check_forever(pool), name=f"check {pool}")

    async def _check_forever(self, pool: str) -> None:
        intervals = self._rng.random() * JITTER  # the first check comes soon
        while True:
            settings = self._settings.health
            await asyncio.sleep(intervals * (settings.interval or 1.0))
            healthy = await check(self._pools[pool], self.path(pool), settings.timeout)
            if healthy is not None:
                self._health.checked(pool, healthy)
            intervals = 1 + self._rng.uniform(-JITTER, JITTER)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        for task in self._tasks.values():
            with contextlib.suppress(asyncio.CancelledError):
                await task
