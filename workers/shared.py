"""The live pool in which requests share the servers, on the exact schedule of `Sharing`.

Ends are computed from the model and not from when a timer fired, so only single responses are late, by the timer's
error. A request draws its work when it arrives; under a profile, at the pool's rate of that instant. If its client
leaves while it waits in front, it is dropped. If its client leaves while it is in service, it goes on to its end and
slows the others down, as in most real servers.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass

from workers.distributions import ServiceTime
from workers.pool import SLACK, Pool, QueueFullError, drawn
from workers.scheduling.logistic import Context
from workers.sharing import Sharing


@dataclass(slots=True, eq=False)
class Sharer:
    """One request. arrived_at: on the loop's clock. work: seconds. done: resolved with the work at the end."""

    arrived_at: float
    work: float
    done: asyncio.Future[float]


class SharedPool(Pool):
    """Requests that share servers in real time: processor sharing, and at infinitely many servers no sharing at all.

    law: draws the work of a request, the seconds that it takes alone. servers: 1 or more, or infinite. limit: requests
    in service at once, None for all; the others wait in front in the order of arrival. capacity: requests in service
    and waiting, 0 for no limit.
    """

    def __init__(self, law: ServiceTime, servers: float = 1, limit: int | None = None, capacity: int = 0) -> None:
        super().__init__()
        self._law = law
        self._servers = min(servers, math.inf if limit is None else limit)
        self._capacity = capacity
        self._sharing: Sharing[Sharer] = Sharing(servers, limit)
        self._front: deque[Sharer] = deque()  # those that wait
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<SharedPool {self._sharing.in_service} in service, {self._sharing.waiting} waiting>"

    async def serve(self, x: Context = ()) -> float:
        loop = asyncio.get_running_loop()
        now = self._end_due(loop)
        if self._capacity and self.backlog >= self._capacity:
            raise QueueFullError
        request = Sharer(now, drawn(self._law, x, now), loop.create_future())
        self._front.append(request)
        self._sharing.join(now, request, request.work)
        self._begin(now)
        self._arm(loop)
        try:
            return await request.done
        except asyncio.CancelledError:
            now = self._end_due(loop)  # it may have begun by the schedule, though a timer is late
            if request in self._front:
                self._front.remove(request)
                self._sharing.leave(now, request)
                self.dropped += 1
            raise

    @property
    def backlog(self) -> int:
        return len(self._sharing)

    @property
    def until_room(self) -> float:
        return max(0.0, self._sharing.next_end() - asyncio.get_running_loop().time())

    @property
    def utilization(self) -> float:
        return min(self._sharing.in_service, self._servers) / self._servers if math.isfinite(self._servers) else 0.0

    def _end_due(self, loop: asyncio.AbstractEventLoop) -> float:
        """End what is over by now on the schedule. Returns the present instant, not before the last end."""
        now = loop.time()
        while (end := self._sharing.next_end()) <= now + SLACK:
            request = self._sharing.pop(end)
            self.count_end(end, request.work)
            if not request.done.done():
                request.done.set_result(request.work)
            self._begin(end)
        self._arm(loop)
        return max(now, self._sharing.at)

    def _begin(self, at: float) -> None:
        """Count those that have just left the front."""
        while len(self._front) > self._sharing.waiting:
            self.count_begun(at - self._front.popleft().arrived_at)

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """One timer waits for the next end."""
        end = self._sharing.next_end()
        if self._timer is not None and self._timer.when() != end:
            self._timer.cancel()
            self._timer = None
        if self._timer is None and math.isfinite(end):
            self._timer = loop.call_at(end, self._fire, loop)

    def _fire(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._end_due(loop)
