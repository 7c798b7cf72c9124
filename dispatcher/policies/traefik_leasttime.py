"""traefik_leasttime: each request joins the pool with the least mean time to first byte × (requests in flight + 1).

Rule: argmin T_i (q_i + 1)/w_i, where q_i is the number of requests in flight. T_i is the mean of the last 100 times to
first byte of pool i, each cut to whole milliseconds. w_i is the weight, `guess` times `servers`. T_i is 0 before the
first response, so such a pool gets every request until then. Every response counts, whatever its status; a request
without a response does not. Ties are broken by weighted round robin in the form of earliest deadline first: the pool
with the earliest deadline gets the request, and its deadline moves by 1/w_i.

Source: traefik/traefik v3, pkg/server/service/loadbalancer/leasttime/leasttime.go. T_i holds the wait at the pool as
well as the service, so a queue counts twice.

Differences from the source:
- The time runs to the head of the response, which usually arrives in one read with the first byte.
- A simulation does not give that time. The whole response time of a success takes its place.
- Scores within a relative 1e-9 tie.
- The measured times survive the removal of a pool, as they survive a failed health check in Traefik. In Traefik a
  change of the configuration deletes them; here only a restart does.

Limits, which are those of the source:
- A pool with slow first responses may get no more requests, and T_i never changes without any (traefik/traefik#12306).
- A pool that never responds keeps T_i = 0 and gets every request. The health checks must remove it.
- Pools that respond within a millisecond all have T_i = 0, and the rule is then weighted round robin.
"""

from __future__ import annotations

from collections import deque
from random import Random

from dispatcher.core.argmin import minimal
from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion, Outcome
from dispatcher.errors import ConfigError
from dispatcher.policies.base import ScoredPolicy, drop_oldest_departed

MAX_WINDOW = 100_000  # times of one pool in memory
NANOSECONDS = 1_000_000_000  # in a second; the source measures in them


class Times:
    """The last times to first byte of one pool, and its deadline for ties.

    size: how many times are kept.
    deadline: the place of its next turn in the weighted round robin, in units of 1/weight.

    >>> times = Times(size=2, deadline=1.0)
    >>> for ticks in (10, 20, 40): times.add(ticks)
    >>> times.mean
    30.0
    """

    __slots__ = ("_last", "_sum", "deadline")

    def __init__(self, size: int, deadline: float) -> None:
        self._last: deque[int] = deque(maxlen=size)
        self._sum = 0
        self.deadline = deadline

    def add(self, ticks: int) -> None:
        if len(self._last) == self._last.maxlen:
            self._sum -= self._last[0]
        self._last.append(ticks)
        self._sum += ticks

    @property
    def mean(self) -> float:
        """T_i in ticks; 0 before the first response."""
        return self._sum / len(self._last) if self._last else 0.0


class TraefikLeasttime(ScoredPolicy):
    """Least mean time to first byte × (requests in flight + 1)/weight, as in Traefik.

    window: how many responses the mean covers.
    resolution: times are cut to multiples of this many seconds.
    """

    def __init__(self, *, rng: Random, window: int = 100, resolution: float = 0.001) -> None:
        super().__init__(rng=rng)
        if not 1 <= window <= MAX_WINDOW:
            raise ConfigError(f"window must be from 1 to {MAX_WINDOW:,}, not {window}")
        if not 1e-9 <= resolution <= 1:
            raise ConfigError(f"resolution must be from 1e-9 to 1 second, not {resolution:g}")
        self.window = window
        self._tick = round(resolution * NANOSECONDS)
        self._times: dict[str, Times] = {}  # includes pools that left
        self._deadline = 0.0  # the latest of all pools

    def score(self, pool: PoolView, now: float) -> float:
        return self._times[pool.id].mean * (pool.in_flight + 1) / self.weight(pool.id)

    def best(self, fleet: FleetView, now: float) -> PoolView:
        pools = fleet.pools
        if len(pools) == 1:  # no tie, so no deadline moves
            return pools[0]
        tied = minimal(pools, [self.score(pool, now) for pool in pools])
        return tied[0] if len(tied) == 1 else self._earliest(tied)

    def _earliest(self, tied: list[PoolView]) -> PoolView:
        """Return the pool with the earliest deadline, and move its deadline by 1/w_i."""
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
            # Whole nanoseconds are divided, because a quotient of floats could fall just below a whole tick.
            times.add(round((until - ticket.routed_at) * NANOSECONDS) // self._tick)
        super().learn(done, fleet)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        super().adapt(change, fleet)
        if isinstance(change, Added) and change.spec.id not in self._times:
            # The first turn of a new pool comes after the turns that the others have had.
            self._deadline += 1 / self.weight(change.spec.id)
            self._times[change.spec.id] = Times(self.window, self._deadline)
            drop_oldest_departed(self._times, self.specs)
