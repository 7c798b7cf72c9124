"""The live pool in which all requests in service share the servers, on the exact schedule of `ProcessorSharing`.

Ends are computed from the model and not from the instant at which a timer fired. So only single responses are late, by
the error of a timer. A request draws its work when it arrives; under a profile it draws at the rate of that instant.

A request whose client leaves while it waits is dropped. A request whose client leaves while it is in service goes on to
its end and slows the others down, as on most real servers.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass

from workers.distributions import ServiceTime
from workers.pool import TIMER_SLACK_SECONDS, Pool, QueueFullError, draw_work
from workers.processor_sharing import ProcessorSharing
from workers.scheduling.logistic import Context


@dataclass(slots=True, eq=False)
class SharingRequest:
    """A request in the pool.

    arrived_at: the instant of its arrival, on the loop's clock.
    work: its work, in seconds.
    done: a future that is resolved with the work when the request ends.
    """

    arrived_at: float
    work: float
    done: asyncio.Future[float]


class SharingPool(Pool):
    """Serves requests by processor sharing, in real time. With infinitely many servers no request slows another.

    law: the law of the work of a request, which is the seconds that it takes when it is alone.
    servers: number of servers, at least 1; it may be infinite.
    limit: number of requests in service at once, None for all. The others wait in the order of arrival.
    capacity: number of requests in service and waiting at the most; 0 for no limit.
    """

    def __init__(self, law: ServiceTime, servers: float = 1, limit: int | None = None, capacity: int = 0) -> None:
        super().__init__()
        self._law = law
        self._servers = min(servers, math.inf if limit is None else limit)  # the servers that can work at once
        self._capacity = capacity
        self._schedule: ProcessorSharing[SharingRequest] = ProcessorSharing(servers, limit)
        self._waiting: deque[SharingRequest] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<SharingPool {self._schedule.in_service} in service, {self._schedule.waiting} waiting>"

    async def serve(self, context: Context = ()) -> float:
        loop = asyncio.get_running_loop()
        now = self._end_due(loop)  # the schedule takes events in order only, and a timer may be late
        if self._capacity and self.backlog >= self._capacity:
            raise QueueFullError
        request = SharingRequest(now, draw_work(self._law, context, now), loop.create_future())
        self._waiting.append(request)
        self._schedule.join(now, request, request.work)
        self._count_begun(now)
        self._set_timer(loop)
        try:
            return await request.done
        except asyncio.CancelledError:
            # The request may have begun on the schedule although a timer is late, so the schedule comes first.
            now = self._end_due(loop)
            if request in self._waiting:
                self._waiting.remove(request)
                self._schedule.leave(now, request)
                self.dropped += 1
            raise

    @property
    def backlog(self) -> int:
        return len(self._schedule)

    @property
    def until_room(self) -> float:
        return max(0.0, self._schedule.next_end() - asyncio.get_running_loop().time())

    @property
    def utilization(self) -> float:
        if math.isinf(self._servers):
            return 0.0
        return min(self._schedule.in_service, self._servers) / self._servers

    def _end_due(self, loop: asyncio.AbstractEventLoop) -> float:
        """End the requests that the schedule ends by now. Return the present instant, but not before the last end."""
        now = loop.time()
        while (end := self._schedule.next_end()) <= now + TIMER_SLACK_SECONDS:
            request = self._schedule.pop(end)
            self.count_end(end, request.work)
            if not request.done.done():  # it is cancelled if the client has left
                request.done.set_result(request.work)
            self._count_begun(end)
        self._set_timer(loop)
        return max(now, self._schedule.at)

    def _count_begun(self, at: float) -> None:
        """Count the requests that have just begun service.

        The schedule starts requests in the order of arrival. So those that wait there are the last ones of `_waiting`.
        """
        while len(self._waiting) > self._schedule.waiting:
            self.count_begun(at - self._waiting.popleft().arrived_at)

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the one timer to the next end, unless it is set to that already."""
        end = self._schedule.next_end()
        if self._timer is not None and self._timer.when() != end:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and math.isfinite(end):
            self._timer = loop.call_at(end, self._timer_fired, loop)

    def _timer_fired(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._end_due(loop)
