"""How long a learning policy remembers, counted in requests of the fleet, and which pools it has not used for long.

The option `memory` of a policy is the number of requests in which what was learned loses half of its weight.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from dispatcher.core.policy import FleetView, PoolView
from dispatcher.errors import ConfigError

AUTOMATIC, FOREVER = 0, -1  # values of the option
LEAST_MEMORY, MEMORY_PER_POOL = 5000, 500  # requests
LEAST_UNUSED, UNUSED_SHARE = 1750, 0.35  # requests, and the share of the memory, after which a pool is tried again
STALE = 1000  # requests without use after which what is remembered of a pool may be out of date
REVISIT = "revisit"  # the memo of a decision that tries an unused pool again
COMPETITIVE = 2.0  # a pool is fast if a revisit takes less than so many times the least service time of the others
SURPRISING = 2.0  # … and less than 1/SURPRISING of the service time that is remembered of the pool itself


def check_memory(memory: int) -> int:
    """The value of the option. Raises ConfigError."""
    if memory not in (AUTOMATIC, FOREVER) and not 10 <= memory <= 10**9:
        raise ConfigError(
            f"memory must be from 10 to 1,000,000,000 requests, {AUTOMATIC} for automatic or {FOREVER} for no "
            f"forgetting, not {memory}"
        )
    return memory


def half_life(memory: int, pools: int) -> float:
    """Requests in which the weight of what was learned falls by half; infinite if nothing is forgotten."""
    if memory == FOREVER:
        return float("inf")
    return memory or max(LEAST_MEMORY, MEMORY_PER_POOL * pools)


def unused_after(half_life: float) -> float:
    """Requests after which a pool that received none of them is tried again."""
    return max(LEAST_UNUSED, UNUSED_SHARE * half_life)


class LastUse:
    """When each pool was last used, by the number of the request.

    >>> last = LastUse()
    >>> last.use("a", 1); last.use("b", 2); last.use("a", 10)
    >>> list(last.unused(5, 12))
    ['b']
    """

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: OrderedDict[str, int] = OrderedDict()  # the longest unused pool first

    def use(self, pool: str, request: int) -> None:
        self._requests[pool] = request
        self._requests.move_to_end(pool)

    def forget(self, pool: str) -> None:
        """The pool counts as never used."""
        self._requests.pop(pool, None)

    def unused_for(self, pool: str, now: int) -> int:
        """The number of requests since the last use of a pool; 0 if it was never used."""
        return now - self._requests.get(pool, now)

    def unused(self, requests: float, now: int) -> Iterator[str]:
        """The pools that were used once, and not in the last `requests` before request `now`."""
        for pool, used in self._requests.items():
            if now - used <= requests:
                return
            yield pool

    def idle_and_unused(self, requests: float, now: int, fleet: FleetView) -> list[PoolView]:
        """Those of them that may be chosen and have no request in flight."""
        if now - next(iter(self._requests.values()), now) <= requests:
            return []  # the usual case, on every request's way
        found = []
        for name in self.unused(requests, now):
            try:
                pool = fleet[name]
            except KeyError:
                continue  # not open, or not to be chosen now
            if pool.in_flight == 0:
                found.append(pool)
        return found
