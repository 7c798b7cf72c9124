"""p2c_ewma: each request joins the faster of two random pools, as in the `ewma` balancer of ingress-nginx.

Rule: each pool has E_i, an exponentially weighted moving average of its response times, and t_i, the time of its last
change. A response after y seconds sets E_i to E_i k + y (1 − k), where k = exp(−(now − t_i)/decay). Two distinct pools
are drawn, and the request joins the one with the lesser E_i k. If both are equal, the first one drawn gets it.
A comparison leaves E_i as it is, so a pool without traffic looks faster with time and is tried again. A pool that
joins starts with the average of the E_i of the others. Every response counts, that of a failed request too.

Source: kubernetes/ingress-nginx, rootfs/etc/nginx/lua/balancer/ewma.lua, with a decay of 10 s. Finagle's rule,
`peak_ewma`, multiplies by the requests in flight, takes over a slow response at once, and counts successes only.

Differences from the source:
- A response time runs from the routing of the request to the end of the response. The source also adds the time to
  connect, which nginx has already counted.
- The two pools are drawn in another way, with equal chances.
- A pool that joins is stamped with the time of the last request or response.

Limits: the rule does not use the requests in flight. At high load one pool gets all that arrives until its first slow
response returns, and the queues swing. A pool that fails quickly looks fast; the health checks must remove it.
"""

from __future__ import annotations

import math
from random import Random

from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion
from dispatcher.errors import ConfigError
from dispatcher.policies.base import ScoredPolicy

POOLS_DRAWN = 2


class P2cEwma(ScoredPolicy):
    """The faster of two random pools by a moving average of response times, as in ingress-nginx.

    decay: the seconds in which the weight of an old response time falls to 1/e.
    """

    scores_decide = False  # only the two pools drawn are compared

    def __init__(self, *, rng: Random, decay: float = 10.0) -> None:
        super().__init__(rng=rng)
        if not 0 < decay < math.inf:
            raise ConfigError(f"decay must be a positive number of seconds, not {decay:g}")
        self.decay = decay
        self._latency: dict[str, tuple[float, float]] = {}  # by pool: E_i in seconds, t_i
        self._now = -math.inf  # the time of the last request or response

    def latency(self, pool: str, now: float, response: float = 0.0) -> float:
        """Return E_i after a response of this many seconds. Without one, return E_i k, which is compared. Seconds."""
        latency, at = self._latency[pool]
        k = math.exp(-max(0.0, now - at) / self.decay)
        return latency * k + response * (1.0 - k)

    def score(self, pool: PoolView, now: float) -> float:
        return self.latency(pool.id, now)

    def best(self, fleet: FleetView, now: float) -> PoolView:
        self._now = now
        return self.least(self.draw(fleet.pools, POOLS_DRAWN), now)

    def learn(self, done: Completion, fleet: FleetView) -> None:
        pool, now = done.ticket.decision.pool, done.finished_at
        self._now = now
        if pool in self._latency:
            self._latency[pool] = self.latency(pool, now, now - done.ticket.routed_at), now
        super().learn(done, fleet)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            self._latency[change.spec.id] = self._start()
        else:
            del self._latency[change.pool]
        super().adapt(change, fleet)

    def _start(self) -> tuple[float, float]:
        """Return E_i and t_i of a pool that joins.

        Before any response t_i is so old that the first one replaces E_i.
        """
        latencies = [latency for latency, _ in self._latency.values()]
        if not any(latencies):
            return 0.0, -math.inf
        return sum(latencies) / len(latencies), self._now
