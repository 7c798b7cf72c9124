"""The live pool: c servers and one FCFS queue behind aiohttp, keeping the exact schedule of a `Station`.

A job draws its service time when it starts, and ends at `Station.admit`'s instant, computed from the previous end and
not from when a timer happened to fire; so the rate is exact and only single answers are late, by the timer's error.
A job whose client leaves while it waits is dropped; one in service holds its server to the end, as a real one would.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass

from aiohttp import web

from workers.distributions import ServiceTime
from workers.station import Station

RATE_JOBS = 200  # jobs that the rate is an average of
LONGEST_GAP = 20  # mean gaps that one counts for at most, so that an hour of silence is not averaged away for long


class QueueFullError(Exception):
    """The pool holds as many jobs as it may."""


@dataclass(slots=True, eq=False)
class Work:
    """One job in the pool. done: resolved with its service time, seconds."""

    arrived_at: float
    done: asyncio.Future[float]


class LivePool:
    """Runs jobs in real time. law: draws service times. capacity: jobs waiting and in service, 0 for no limit."""

    def __init__(self, law: ServiceTime, servers: int = 1, capacity: int = 0) -> None:
        self._law = law
        self._servers = servers
        self._capacity = capacity
        self._station = Station(servers)
        self._waiting: deque[Work] = deque()
        self._busy = 0
        self.served = 0
        self.busy_time = 0.0
        self.rate = 0.0  # jobs a second, over about the last RATE_JOBS
        self._ended_at: float | None = None
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<LivePool {self._busy} of {self._servers} busy, {len(self._waiting)} waiting>"

    async def serve(self) -> float:
        """Wait for one's turn and be served; returns the service time drawn. Raises QueueFullError."""
        if self._capacity and self._busy + len(self._waiting) >= self._capacity:
            raise QueueFullError
        loop = asyncio.get_running_loop()
        work = Work(loop.time(), loop.create_future())
        self._waiting.append(work)
        self._start(loop)
        try:
            return await work.done
        except asyncio.CancelledError:
            if work in self._waiting:
                self._waiting.remove(work)
                self.dropped += 1
            raise

    @property
    def backlog(self) -> int:
        """Jobs in service and waiting."""
        return self._busy + len(self._waiting)

    @property
    def until_room(self) -> float:
        """Seconds until a server is expected to be free."""
        return self._law.mean(asyncio.get_running_loop().time()) / self._servers

    @property
    def utilization(self) -> float:
        """Share of the servers at work."""
        return self._busy / self._servers

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting and self._busy < self._servers:
            work = self._waiting.popleft()
            service = self._law.sample(self._station.starts_at(work.arrived_at))
            self._busy += 1
            loop.call_at(self._station.admit(work.arrived_at, service), self._finish, work, service, loop)

    def _count_rate(self, now: float) -> None:
        """A job is done now: the mean time between ends, older ones fading."""
        if self._ended_at is not None:
            weight = max(1 / RATE_JOBS, 1 / self.served)
            before = 1 / self.rate if self.rate else now - self._ended_at
            passed = min(now - self._ended_at, LONGEST_GAP * before) if self.served > 10 else now - self._ended_at
            gap = before + weight * (passed - before)
            self.rate = 1 / gap if gap > 0 else self.rate
        self._ended_at = now

    def _finish(self, work: Work, service: float, loop: asyncio.AbstractEventLoop) -> None:
        self._busy -= 1
        self.served += 1
        self.busy_time += service
        self._count_rate(loop.time())
        if not work.done.done():
            work.done.set_result(service)
        self._start(loop)


def make_server(pool: LivePool, name: str, report: bool = True, load: str = "none") -> web.Server:
    """An HTTP server that serves every request, whatever its method and path, from this pool.

    name: told in `X-Pool`. report: tell the service time, `Server-Timing: service;dur=<ms>`. load: the form in which
    each answer tells what it leaves behind, none, json or text (`endpoint-load-metrics` of Open Request Cost
    Aggregation).
    """

    async def handle(request: web.BaseRequest) -> web.Response:
        async for _ in request.content.iter_any():
            pass  # a request arrives when its body has
        try:
            service = await pool.serve()
        except QueueFullError:
            headers = {"X-Pool": name, "Retry-After": f"{pool.until_room:.0f}"}
            return web.Response(status=503, text="the queue is full\n", headers=headers)
        headers = {"X-Pool": name}
        if report:
            headers["Server-Timing"] = f"service;dur={service * 1e3:.6f}"
        if load != "none":
            headers["endpoint-load-metrics"] = load_report(pool, load)
        return web.Response(text=f"served by {name}\n", headers=headers)

    return web.Server(handle, handler_cancellation=True, access_log=None)


def load_report(pool: LivePool, form: str) -> str:
    """The header's value, after a job has left.

    >>> from random import Random
    >>> from workers.distributions import Fixed
    >>> load_report(LivePool(Fixed(10.0, Random(1))), "text")[:49]
    'TEXT application_utilization=0, rps_fractional=0, '
    """
    plain = {"application_utilization": pool.utilization, "rps_fractional": round(pool.rate, 6)}
    named = {"queue_depth": pool.backlog, "completed": pool.served, "busy_seconds": round(pool.busy_time, 9)}
    if form == "json":
        return "JSON " + json.dumps(plain | {"named_metrics": named}, separators=(",", ":"))
    pairs = plain | {f"named_metrics.{key}": value for key, value in named.items()}
    return "TEXT " + ", ".join(f"{key}={value:.15g}" for key, value in pairs.items())
