"""peak_ewma: what Finagle and linkerd do; least L_i (q_i + 1) of two pools, L_i a moving mean of response times.

Rule: L_i starts at 1/guess. An observation slower than L_i replaces it at once, another is blended in with weight
1 − exp(−Δ/τ), Δ the time since the last one, τ = 10 s. Every response is an observation; so is, with 0, every look at
L_i, which lets it decay, so that a pool that was slow once is tried again. Two distinct pools are drawn and the lesser
L_i (q_i + 1) wins (d = 0: all are compared). Source: Finagle, PeakEwma.scala; linkerd, tower's peak_ewma. Chosen: only
successes are measured. Limit: L_i holds the queue as well as the service, so load counts twice; peaks are forgiven
slowly.
"""

from __future__ import annotations

import math
from random import Random

from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion, Outcome
from dispatcher.errors import ConfigError
from dispatcher.policies.base import IndexPolicy


class PeakEwma(IndexPolicy):
    """Least response time × load of two pools, as in Finagle and linkerd.

    decay: τ, seconds. d: pools compared, 0 for all.
    """

    plane = False

    def __init__(self, *, rng: Random, decay: float = 10.0, d: int = 2) -> None:
        super().__init__(rng=rng)
        if not 0 < decay < math.inf:
            raise ConfigError(f"decay must be positive, not {decay:g}")
        if d < 0:
            raise ConfigError(f"d must be 0 (all pools) or more, not {d}")
        self.decay, self.d = decay, d
        self._seen: dict[str, tuple[float, float | None]] = {}  # pool: L_i, as of when

    def latency(self, pool: str, now: float) -> float:
        """L_i now, seconds."""
        latency, at = self._seen[pool]
        return latency * self._kept(at, now)

    def score(self, pool: PoolView, now: float) -> float:
        return self.latency(pool.id, now) * (pool.in_flight + 1)

    def best(self, fleet: FleetView, now: float) -> PoolView:
        drawn = self.draw(fleet.pools, self.d) if self.d else fleet.pools
        for pool in drawn:
            self._observe(pool.id, 0.0, now)
        return self.least(drawn, now)

    def learn(self, done: Completion, fleet: FleetView) -> None:
        pool, now = done.ticket.decision.pool, done.finished_at
        if pool in self._seen and done.outcome is Outcome.OK:
            self._observe(pool, now - done.ticket.routed_at, now)
        super().learn(done, fleet)

    def _observe(self, pool: str, response: float, now: float) -> None:
        latency, at = self._seen[pool]
        kept = self._kept(at, now)
        self._seen[pool] = response if response > latency else latency * kept + response * (1 - kept), now

    def _kept(self, since: float | None, now: float) -> float:
        return 1.0 if since is None else math.exp(-(now - since) / self.decay)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            self._seen[change.spec.id] = 1 / change.spec.guess, None
        else:
            del self._seen[change.pool]
        super().adapt(change, fleet)
