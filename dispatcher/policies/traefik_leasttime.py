"""traefik_leasttime: Traefik's `leasttime`; the least mean time to first byte × (requests in flight + 1)/weight.

Rule: argmin T_i (q_i + 1)/w_i. T_i is the mean of the last 100 times to first byte of pool i, each cut to whole
milliseconds; w_i is the weight, `guess` times `servers`. T_i = 0 before the first response, so such a pool gets every
request until then. Ties go by weighted round robin in its form of earliest deadline first: the pool with the earliest
deadline wins and its deadline moves by 1/w_i. Every response counts, whatever its status; a request without a
response does not.

Source: traefik/traefik v3, pkg/server/service/loadbalancer/leasttime/leasttime.go. T_i holds the wait at the pool as
well as the service, so the load counts twice.

Differences from the source: the time runs to the head of the response, which is usually one read with the first byte.
Where no driver gives it (in simulations), the whole response time of a success takes its place. Scores within a
relative 1e-9 tie. What was measured survives a removal of the pool, as it survives a failed health check in Traefik.
A change of Traefik's configuration forgets it; here only a restart does.

Limits, all of them the source's: a pool that was slow in its first responses gets no more requests while the others
are busy less than its T_i allows, and T_i never changes without requests (traefik/traefik#12306). A pool that never
responds keeps T_i = 0 and gets every request; the health checks must remove it. Pools that respond within a
millisecond all have T_i = 0, so the rule is then weighted round robin.
"""

from __future__ import annotations

from collections import deque
from random import Random

from dispatcher.core.choosing import equals
from dispatcher.core.interfaces import FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion, Outcome
from dispatcher.errors import ConfigError
from dispatcher.policies.base import IndexPolicy, forget_oldest

MOST = 100_000  # times that are kept of one pool
NANOSECONDS = 1_000_000_000  # in a second; the source measures in them


class Times:
    """The last times to first byte of one pool, and its deadline for ties.

    size: times that are kept. deadline: in units of the weighted round robin.

    >>> times = Times(size=2, deadline=1.0)
    >>> for ticks in (10, 20, 40): times.add(ticks)
    >>> times.mean
    30.0
    """

    __slots__ = ("_kept", "_sum", "deadline")

    def __init__(self, size: int, deadline: float) -> None:
        self._kept: deque[int] = deque(maxlen=size)
        self._sum = 0
        self.deadline = deadline

    def add(self, ticks: int) -> None:
        if len(self._kept) == self._kept.maxlen:
            self._sum -= self._kept[0]
        self._kept.append(ticks)
        self._sum += ticks

    @property
    def mean(self) -> float:
        """T_i in ticks, 0 before the first response."""
        return self._sum / len(self._kept) if self._kept else 0.0


class TraefikLeasttime(IndexPolicy):
    """Least mean time to first byte × (requests in flight + 1)/weight, as in Traefik.

    window: responses in the mean of one pool. resolution: seconds to whose multiples each time is cut.
    """

    def __init__(self, *, rng: Random, window: int = 100, resolution: float = 0.001) -> None:
        super().__init__(rng=rng)
        if not 1 <= window <= MOST:
            raise ConfigError(f"window must be from 1 to {MOST:,}, not {window}")
        if not 1e-9 <= resolution <= 1:
            raise ConfigError(f"resolution must be from 1e-9 to 1 second, not {resolution:g}")
        self.window = window
        self._tick = round(resolution * NANOSECONDS)
        self._times: dict[str, Times] = {}  # also of pools that left and may come back
        self._deadline = 0.0  # the latest that was given to any pool

    def score(self, pool: PoolView, now: float) -> float:
        return self._times[pool.id].mean * (pool.in_flight + 1) / self.weight(pool.id)

    def best(self, fleet: FleetView, now: float) -> PoolView:
        pools = fleet.pools
        if len(pools) == 1:
            return pools[0]
        tied = equals(pools, [self.score(pool, now) for pool in pools])
        return tied[0] if len(tied) == 1 else self._earliest(tied)

    def _earliest(self, tied: list[PoolView]) -> PoolView:
        """The pool with the earliest deadline, which moves by 1/w_i."""
        pool = min(tied, key=lambda pool: self._times[pool.id].deadline)
        times = self._times[pool.id]
        times.deadline += 1 / self.weight(pool.id)
        self._deadline = max(self._deadline, times.deadline)
        return pool

    def learn(self, done: Completion, fleet: FleetView) -> None:
        ticket = done.ticket
        times = self._times.get(ticket.decision.pool)
        until = done.first_byte_at
        if until is None and done.outcome is Outcome.OK:
            until = done.finished_at
        if times is not None and until is not None:
            times.add(round((until - ticket.routed_at) * NANOSECONDS) // self._tick)
        super().learn(done, fleet)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        super().adapt(change, fleet)
        if isinstance(change, Added) and change.spec.id not in self._times:
            self._deadline += 1 / self.weight(change.spec.id)
            self._times[change.spec.id] = Times(self.window, self._deadline)
            forget_oldest(self._times, self.specs)
