"""How long a learning policy remembers, counted in requests of the fleet, and which pools have long been unused.

The option `memory` of a policy is the number of requests in which an observation loses half of its weight.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from dispatcher.core.policy import FleetView, PoolView
from dispatcher.errors import ConfigError

AUTOMATIC, FOREVER = 0, -1  # special values of the option
MIN_AUTOMATIC_MEMORY, MEMORY_PER_POOL = 5000, 500  # requests
MIN_UNUSED, UNUSED_SHARE = 1750, 0.35  # requests, and the share of the memory, after which a pool is tried again
STALE_AFTER = 1000  # requests without a use after which the estimate of a pool may be out of date
REVISIT = "revisit"  # the memo of a decision that tries an unused pool again
COMPETITIVE = 2.0  # a pool is fast if a revisit takes less than this many times the least service time of the others
SURPRISING = 2.0  # … and less than 1/SURPRISING of the pool's own estimated service time


def check_memory(memory: int) -> int:
    """Return the value of the option. Raises ConfigError if it is out of range."""
    if memory not in (AUTOMATIC, FOREVER) and not 10 <= memory <= 10**9:
        raise ConfigError(
            f"memory must be from 10 to 1,000,000,000 requests, {AUTOMATIC} for automatic or {FOREVER} for no "
            f"forgetting, not {memory}"
        )
    return memory


def half_life(memory: int, pools: int) -> float:
    """Return the requests in which the weight of an observation falls by half; infinite for `FOREVER`.

    memory: the value of the option.
    pools: the number of open pools.
    """
    if memory == FOREVER:
        return float("inf")
    return memory or max(MIN_AUTOMATIC_MEMORY, MEMORY_PER_POOL * pools)


def unused_after(half_life: float) -> float:
    """Return the requests after which a pool that received none of them is tried again."""
    return max(MIN_UNUSED, UNUSED_SHARE * half_life)


class LastUse:
    """The number of the request by which each pool was last used.

    >>> last = LastUse()
    >>> last.use("a", 1); last.use("b", 2); last.use("a", 10)
    >>> list(last.unused(5, 12))
    ['b']
    """

    __slots__ = ("_requests",)

    def __init__(self) -> None:
        self._requests: OrderedDict[str, int] = OrderedDict()  # the pool that has been unused for longest comes first

    def use(self, pool: str, request: int) -> None:
        """Note that this request uses the pool."""
        self._requests[pool] = request
        self._requests.move_to_end(pool)

    def discard(self, pool: str) -> None:
        """Treat the pool as never used."""
        self._requests.pop(pool, None)

    def unused_for(self, pool: str, now: int) -> int:
        """Return the number of requests since the last use of a pool, 0 if it was never used.

        now: the number of the present request.
        """
        return now - self._requests.get(pool, now)

    def unused(self, requests: float, now: int) -> Iterator[str]:
        """Yield the pools that were used before, but not within the last `requests` before request `now`."""
        for pool, used_at in self._requests.items():
            if now - used_at <= requests:
                return
            yield pool

    def idle_and_unused(self, requests: float, now: int, fleet: FleetView) -> list[PoolView]:
        """Return the `unused` pools that may be chosen now and have no request in flight."""
        # Usually no pool is unused. This check is cheap, and every request passes here.
        if now - next(iter(self._requests.values()), now) <= requests:
            return []
        pools = []
        for name in self.unused(requests, now):
            try:
                pool = fleet[name]
            except KeyError:
                continue  # the pool is closed, or this request must not go there
            if pool.in_flight == 0:
                pools.append(pool)
        return pools
