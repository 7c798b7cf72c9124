"""The live pool: c servers and one queue behind aiohttp, keeping the exact schedule of a `Station`.

Who is served next is for the discipline to say (`disciplines`; first come, first served unless told otherwise). A job
draws its service time when it starts, and ends at `Station.admit`'s instant, computed from the previous end and not
from when a timer happened to fire; so the rate is exact and only single answers are late, by the timer's error.
A job whose client leaves while it waits is dropped; one in service holds its server to the end, as a real one would.
"""

from __future__ import annotations

import asyncio
import heapq
import json
from collections import deque
from dataclasses import dataclass, field

from aiohttp import web

from workers.distributions import ServiceTime
from workers.pool import SLACK, Pool, QueueFullError, drawn
from workers.scheduling.contexts import HEADER, Logistic
from workers.scheduling.disciplines import Discipline, Fcfs, Job
from workers.scheduling.logistic import Context
from workers.station import Station


@dataclass(slots=True, eq=False)
class Work(Job):
    """One job in the pool. arrived_at: on the loop's clock. done: resolved with its service time, seconds."""

    arrived_at: float
    done: asyncio.Future[float]
    waits: bool = field(default=True, init=False)


class LivePool(Pool):
    """Runs jobs in real time.

    law: draws service times. capacity: jobs waiting and in service, 0 for no limit. order: who is served next; it
    counts in rounds of `tick` seconds since the first request.
    """

    def __init__(
        self, law: ServiceTime, servers: int = 1, capacity: int = 0, order: Discipline | None = None, tick: float = 1.0
    ) -> None:
        super().__init__()
        self._law = law
        self._servers = servers
        self._capacity = capacity
        self._station = Station(servers)
        self._waiting: Discipline = order if order is not None else Fcfs()
        self._arriving: deque[Work] = deque()  # since the last choice
        self._tick = tick
        self._began_at: float | None = None
        self._idled_until = float("-inf")  # it was better to wait until then
        self._running: list[tuple[float, int, Work, float]] = []  # end, number, job and seconds of those in service

    def __repr__(self) -> str:
        return f"<LivePool {self._busy} of {self._servers} busy, {self.backlog - self._busy} waiting>"

    async def serve(self, x: Context = ()) -> float:
        """Wait for one's turn and be served; returns the service time drawn. x: the context. Raises QueueFullError."""
        loop = asyncio.get_running_loop()
        if self._capacity and self.backlog >= self._capacity:
            self._end_due(loop)  # a late timer takes nobody's place
            if self.backlog >= self._capacity:
                raise QueueFullError
        now = loop.time()
        work = Work(x, self._round(now), now, loop.create_future())
        self._arriving.append(work)
        self._start(loop)
        try:
            return await work.done
        except asyncio.CancelledError:
            if work.waits:
                if work in self._arriving:
                    self._arriving.remove(work)
                else:
                    self._waiting.drop(work)
                self.dropped += 1
            raise

    def _round(self, now: float) -> float:
        """How many rounds have passed."""
        if self._began_at is None:
            self._began_at = now
        return (now - self._began_at) / self._tick

    @property
    def _busy(self) -> int:
        return len(self._running)

    @property
    def backlog(self) -> int:
        """Jobs in service and waiting."""
        return self._busy + len(self._waiting) + len(self._arriving)

    @property
    def until_room(self) -> float:
        """Seconds until a server is free."""
        now = asyncio.get_running_loop().time()
        return self._station.starts_at(now) - now

    @property
    def utilization(self) -> float:
        """Share of the servers at work."""
        return self._busy / self._servers

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin what can be begun. Each choice is that of the instant at which a server became free, from those that
        were there then, however late the timer is."""
        while (len(self._waiting) or self._arriving) and self._busy < self._servers:
            at = self._station.starts_at(self._idled_until)
            if at > loop.time() + SLACK:
                return  # idle until then
            while self._arriving and self._arriving[0].arrived_at <= at:
                self._waiting.add(self._arriving.popleft())
            if not len(self._waiting):
                at = self._arriving[0].arrived_at
                self._waiting.add(self._arriving.popleft())
            work = self._waiting.next(self._round(at))
            if isinstance(work, Work):
                self._begin(work, at, loop)
            else:
                self._idled_until = at + self._tick
                loop.call_at(self._idled_until, self._start, loop)

    def _begin(self, work: Work, at: float, loop: asyncio.AbstractEventLoop) -> None:
        work.waits = False
        service = drawn(self._law, work.x, at)
        self.count_begun(at - work.arrived_at)
        end = self._station.admit(at, service)
        heapq.heappush(self._running, (end, self.begun, work, service))
        loop.call_at(end, self._end_due, loop)

    def _end_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """End what is over by now, by the books."""
        while self._running and self._running[0][0] <= loop.time() + SLACK:
            _, _, work, service = heapq.heappop(self._running)
            self._finish(work, service, loop)

    def _finish(self, work: Work, service: float, loop: asyncio.AbstractEventLoop) -> None:
        self.count_end(loop.time(), service)
        if not work.done.done():
            work.done.set_result(service)
        try:
            self._waiting.done(work.x, service / self._tick)
        finally:
            self._start(loop)


def make_server(
    pool: Pool, name: str, report: bool = True, load: str = "none", law: Logistic | None = None
) -> web.Server:
    """An HTTP server that serves every request, whatever its method and path, from this pool.

    name: told in `X-Pool`. report: tell the service time, `Server-Timing: service;dur=<ms>`. load: the form in which
    each answer tells what it leaves behind, none, json or text (`endpoint-load-metrics` of Open Request Cost
    Aggregation). law: tells a request's context, where services depend on it.
    """

    async def handle(request: web.BaseRequest) -> web.Response:
        size = 0
        async for piece in request.content.iter_any():
            size += len(piece)  # a request arrives when its body has
        x = law.context(request.method, request.path, size, request.headers.get(HEADER, "")) if law else ()
        try:
            service = await pool.serve(x)
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


def load_report(pool: Pool, form: str) -> str:
    """The header's value, after a job has left.

    >>> from random import Random
    >>> from workers.distributions import Fixed
    >>> load_report(LivePool(Fixed(10.0, Random(1))), "text")[:48]
    'TEXT application_utilization=0, rps_fractional=0'
    """
    plain = {"application_utilization": pool.utilization, "rps_fractional": round(pool.rate, 6)}
    named = {"queue_depth": pool.backlog, "completed": pool.served, "busy_seconds": round(pool.busy_time, 9)}
    if form == "json":
        return "JSON " + json.dumps(plain | {"named_metrics": named}, separators=(",", ":"))
    pairs = plain | {f"named_metrics.{key}": value for key, value in named.items()}
    return "TEXT " + ", ".join(f"{key}={value:.15g}" for key, value in pairs.items())
