"""Requests that share a pool, as arithmetic: processor sharing with any speed and with a limit. PURE.

All requests in service run at the same speed, which depends on their number n. So one sum is enough: the work that each
of them has done since a common origin. A request ends when this sum has grown by the request's own work. A heap holds
the requests by the sum at which they end, so an event costs O(log n). Requests beyond the limit wait, and begin service
in the order in which they came.

Source: Kleinrock, *Time-Shared Systems: A Theoretical Treatment*, 1967; Yashkov, *Processor-Sharing Queues*, 1987.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from workers.curves import Servers, Speed

Key = TypeVar("Key", bound=Hashable)


class ProcessorSharing(Generic[Key]):
    """A pool in which all requests in service run at the same speed.

    servers: the default speed is min(1, servers/n).
    limit: the number of requests that are in service at once, None for all.
    speed: replaces the default; by the number in service, the work that each request does in a second.

    Events must be reported in the order of time. Each end must be taken with `pop` at the instant `next_end`, before
    any later event. All methods raise ValueError if an instant breaks this order, and KeyError for an unknown request.
    First come, first served with c servers is `ProcessorSharing(math.inf, limit=c)`.

    >>> pool = ProcessorSharing()
    >>> pool.join(0.0, "a", 2.0)
    >>> pool.join(1.0, "b", 2.0)
    >>> pool.next_end(), pool.pop(3.0), pool.next_end()
    (3.0, 'a', 4.0)
    """

    __slots__ = ("_at", "_attained", "_count", "_heap", "_in_service", "_limit", "_next", "_speed", "_waiting")

    def __init__(self, servers: float = 1, limit: int | None = None, speed: Speed | None = None) -> None:
        self._speed: Speed = speed or Servers(servers)
        self._limit = _checked_limit(limit)
        self._attained = 0.0  # work of each request in service since the origin, seconds
        self._at = -math.inf  # the instant of the last event
        self._next = math.inf  # the instant of the next end
        self._count = 0  # requests that have begun service
        self._heap: list[tuple[float, int, Key]] = []  # `attained` at the end, order of beginning, request
        self._in_service: dict[Key, int] = {}  # in service: the order of beginning
        self._waiting: OrderedDict[Key, float] = OrderedDict()  # in front: the work

    def __len__(self) -> int:
        """The number of requests in service and waiting."""
        return len(self._in_service) + len(self._waiting)

    def __contains__(self, key: Key) -> bool:
        return key in self._in_service or key in self._waiting

    @property
    def at(self) -> float:
        """The instant of the last event; minus infinity before the first."""
        return self._at

    @property
    def in_service(self) -> int:
        return len(self._in_service)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def next_end(self) -> float:
        """The instant at which the next request ends if nothing else happens; infinite if none will."""
        return self._next

    def join(self, now: float, key: Key, work: float) -> None:
        """Add a request. work: the seconds that it would take alone, at speed 1."""
        if key in self:
            raise ValueError(f"request {key!r} is in the pool already")
        if not 0 <= work < math.inf:
            raise ValueError(f"the work of a request must be finite and not negative, not {work:g}")
        self._work_until(now)
        self._waiting[key] = work
        self._update()

    def pop(self, now: float) -> Key:
        """Take out the request that ends now and return it. `now` must be `next_end()`."""
        if now != self._next or not self._in_service:
            raise ValueError(f"no request ends at {now:.9g}; the next end is at {self._next:.9g}")
        end, _, key = heapq.heappop(self._heap)  # `_update` has removed requests that left from the top
        self._at, self._attained = now, end  # the exact sum, so that rounding errors do not add up
        del self._in_service[key]
        self._update()
        return key

    def leave(self, now: float, key: Key) -> None:
        """Take out a request before its end, whether it waits or is in service."""
        self._work_until(now)
        if key in self._waiting:
            del self._waiting[key]
        else:
            del self._in_service[key]
            # Entries of requests that left stay in the heap; it is rebuilt when they are more than half of it.
            if len(self._heap) > 2 * len(self._in_service) + 8:
                self._heap = [entry for entry in self._heap if self._in_service.get(entry[2]) == entry[1]]
                heapq.heapify(self._heap)
        self._update()

    def change(self, now: float, speed: Speed) -> None:
        """Change the speed from now on. The work that requests have done stays done."""
        self._work_until(now)
        self._speed = speed
        self._update()

    def change_limit(self, now: float, limit: int | None) -> None:
        """Change the limit from now on. Requests in service beyond a smaller limit stay in service."""
        self._work_until(now)
        self._limit = _checked_limit(limit)
        self._update()

    def _work_until(self, now: float) -> None:
        """Count the work that was done up to now. Raises ValueError if `now` breaks the order of events."""
        if not self._at <= now <= self._next:
            raise ValueError(
                f"an event at {now:.9g} is not between the last, {self._at:.9g}, and the end {self._next:.9g}"
            )
        if self._in_service:
            self._attained += (now - self._at) * self._speed(len(self._in_service))
        self._at = now

    def _update(self) -> None:
        """Start the requests that can start, and compute the next end."""
        while self._waiting and len(self._in_service) < self._limit:
            key, work = self._waiting.popitem(last=False)
            self._count += 1
            self._in_service[key] = self._count
            heapq.heappush(self._heap, (self._attained + work, self._count, key))
        while self._heap and self._in_service.get(self._heap[0][2]) != self._heap[0][1]:
            heapq.heappop(self._heap)  # this request has left
        if not self._heap:
            # An idle pool starts a new origin, so that the sum stays small and precise.
            self._attained, self._next = 0.0, math.inf
            return
        # Rounding may put the sum a little beyond the end.
        left, speed = max(0.0, self._heap[0][0] - self._attained), self._speed(len(self._in_service))
        self._next = self._at + left / speed if speed > 0 else math.inf


def _checked_limit(limit: int | None) -> float:
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    return math.inf if limit is None else limit
