"""The live pool with one queue and c servers, where each request has a server to itself.

The discipline chooses the next request to serve (`scheduling.disciplines`); by default it is first come, first served.
A request draws its service time when it starts. It ends at the instant that `Station.admit` computes from the end
before it, and not from the instant at which a timer happened to fire. So the service rate is exact, and only single
responses are late, by the error of a timer.

A request whose client leaves while it waits is dropped. A request in service keeps its server to the end, as on a real
server.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from dataclasses import dataclass, field

from workers.distributions import ServiceTime
from workers.pool import TIMER_SLACK_SECONDS, Pool, QueueFullError, draw_work
from workers.scheduling.disciplines import Discipline, Fcfs, Job
from workers.scheduling.logistic import Context
from workers.station import Station


@dataclass(slots=True, eq=False)
class QueuedRequest(Job):
    """A request in the pool.

    arrived_at: the instant of its arrival, on the loop's clock.
    done: a future that is resolved with the service time, in seconds.
    waits: whether it has not begun service yet.
    """

    arrived_at: float
    done: asyncio.Future[float]
    waits: bool = field(default=True, init=False)


class QueuePool(Pool):
    """Serves requests one by one on each of its servers, in real time.

    law: the law of service times.
    servers: number of servers.
    capacity: number of requests waiting and in service at the most; 0 for no limit.
    order: the discipline, which counts time in rounds; None for first come, first served.
    tick: seconds of a round. Rounds are counted from the first request.
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
        self._arriving: deque[QueuedRequest] = deque()  # arrived since the last choice of the discipline
        self._tick = tick
        self._first_arrival: float | None = None
        self._idle_until = float("-inf")  # the discipline chose to serve no request before this instant
        self._in_service: list[tuple[float, int, QueuedRequest, float]] = []  # heap: end, number, request, seconds

    def __repr__(self) -> str:
        return f"<QueuePool {self._busy} of {self._servers} busy, {self.backlog - self._busy} waiting>"

    async def serve(self, context: Context = ()) -> float:
        loop = asyncio.get_running_loop()
        if self._capacity and self.backlog >= self._capacity:
            self._end_due(loop)  # a request that has ended on the schedule takes no place, even if its timer is late
            if self.backlog >= self._capacity:
                raise QueueFullError
        now = loop.time()
        request = QueuedRequest(context, self._round(now), now, loop.create_future())
        self._arriving.append(request)
        self._start_due(loop)
        try:
            return await request.done
        except asyncio.CancelledError:
            # A request in service stays on the schedule, because a real server does not notice that its client left.
            if request.waits:
                if request in self._arriving:
                    self._arriving.remove(request)
                else:
                    self._waiting.drop(request)
                self.dropped += 1
            raise

    def _round(self, now: float) -> float:
        """Return the number of rounds since the first request."""
        if self._first_arrival is None:
            self._first_arrival = now
        return (now - self._first_arrival) / self._tick

    @property
    def _busy(self) -> int:
        return len(self._in_service)

    @property
    def backlog(self) -> int:
        return self._busy + len(self._waiting) + len(self._arriving)

    @property
    def until_room(self) -> float:
        now = asyncio.get_running_loop().time()
        return self._station.starts_at(now) - now

    @property
    def utilization(self) -> float:
        return self._busy / self._servers

    def _start_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the requests that can start.

        The discipline chooses as at the instant at which the server became free. It sees only the requests that were
        there at that instant, however late the timer is.
        """
        while (len(self._waiting) or self._arriving) and self._busy < self._servers:
            at = self._station.starts_at(self._idle_until)
            if at > loop.time() + TIMER_SLACK_SECONDS:
                return
            while self._arriving and self._arriving[0].arrived_at <= at:
                self._waiting.add(self._arriving.popleft())
            if not len(self._waiting):
                # The server was free before any request arrived, so the first arrival starts at its own instant.
                at = self._arriving[0].arrived_at
                self._waiting.add(self._arriving.popleft())
            request = self._waiting.next(self._round(at))
            if isinstance(request, QueuedRequest):
                self._start(request, at, loop)
            else:  # the discipline prefers to idle, and is asked again after a round
                self._idle_until = at + self._tick
                loop.call_at(self._idle_until, self._start_due, loop)

    def _start(self, request: QueuedRequest, at: float, loop: asyncio.AbstractEventLoop) -> None:
        request.waits = False
        service = draw_work(self._law, request.x, at)  # at the speed of the instant of its start, not of its arrival
        self.count_begun(at - request.arrived_at)
        end = self._station.admit(at, service)
        heapq.heappush(self._in_service, (end, self.begun, request, service))
        loop.call_at(end, self._end_due, loop)

    def _end_due(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the requests that the schedule ends by now."""
        while self._in_service and self._in_service[0][0] <= loop.time() + TIMER_SLACK_SECONDS:
            _, _, request, service = heapq.heappop(self._in_service)
            self._end(request, service, loop)

    def _end(self, request: QueuedRequest, service: float, loop: asyncio.AbstractEventLoop) -> None:
        self.count_end(loop.time(), service)
        if not request.done.done():  # it is cancelled if the client has left
            request.done.set_result(service)
        try:
            self._waiting.done(request.x, service / self._tick)
        finally:
            # The server is free even if the discipline fails.
            self._start_due(loop)
