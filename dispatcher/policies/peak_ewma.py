"""peak_ewma: what Finagle and linkerd do; least L_i (q_i + 1) of two pools, L_i a moving mean of response times.

Rule: L_i starts at 1/guess. An observation above L_i replaces it at once. Another one is averaged in with weight
1 − exp(−Δ/τ), where Δ is the time since the last one and τ = 10 s. Every response is an observation. Every comparison
counts as an observation of 0, so L_i decays and a pool that was slow once is tried again. Two distinct pools are drawn
and the lesser L_i (q_i + 1) wins (d = 0: all pools are compared). Source: Finagle, PeakEwma.scala; linkerd, tower's
peak_ewma. We chose that only successes are measured. Limits: L_i contains the wait as well as the service, so load
counts twice. A peak decays slowly.
"""

from __future__ import annotations

import math
from random import Random

from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion, Outcome
from dispatcher.errors import ConfigError
from dispatcher.policies.base import ScoredPolicy


class PeakEwma(ScoredPolicy):
    """Least response time × load of two pools, as in Finagle and linkerd.

    decay: τ, seconds.
    d: the number of pools compared, 0 for all.
    """

    scores_decide = False  # only the pools drawn are compared

    def __init__(self, *, rng: Random, decay: float = 10.0, d: int = 2) -> None:
        super().__init__(rng=rng)
        if not 0 < decay < math.inf:
            raise ConfigError(f"decay must be positive, not {decay:g}")
        if d < 0:
            raise ConfigError(f"d must be 0 (all pools) or more, not {d}")
        self.decay, self.d = decay, d
        self._latency: dict[str, tuple[float, float | None]] = {}  # by pool: L_i, and the time of its last change

    def latency(self, pool: str, now: float) -> float:
        """Return the present L_i, in seconds."""
        latency, at = self._latency[pool]
        return latency * self._decayed(at, now)

    def score(self, pool: PoolView, now: float) -> float:
        return self.latency(pool.id, now) * (pool.in_flight + 1)

    def best(self, fleet: FleetView, now: float) -> PoolView:
        drawn = self.draw(fleet.pools, self.d) if self.d else fleet.pools
        for pool in drawn:
            self._observe(pool.id, 0.0, now)
        return self.least(drawn, now)

    def learn(self, done: Completion, fleet: FleetView) -> None:
        pool, now = done.ticket.decision.pool, done.finished_at
        if pool in self._latency and done.outcome is Outcome.OK:
            self._observe(pool, now - done.ticket.routed_at, now)
        super().learn(done, fleet)

    def _observe(self, pool: str, response: float, now: float) -> None:
        latency, at = self._latency[pool]
        old = self._decayed(at, now)  # the weight of L_i in the mean
        self._latency[pool] = response if response > latency else latency * old + response * (1 - old), now

    def _decayed(self, since: float | None, now: float) -> float:
        """Return the factor by which L_i has decayed since this time."""
        return 1.0 if since is None else math.exp(-(now - since) / self.decay)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            self._latency[change.spec.id] = 1 / change.spec.guess, None
        else:
            del self._latency[change.pool]
        super().adapt(change, fleet)
