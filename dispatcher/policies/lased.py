"""lased: Learning Adaptive SED. Learns the service rates in episodes and converges to SED with the true rates.

An episode begins when the system is empty and ends at the first instant at which it is empty again and no exploration
is outstanding.
1. Exploration, only if min_i N_i < N(k) = max(n0, c (ln k)^α) as the episode begins: the next n·n0 arrivals go n0 to
   each pool, always to the pool with the most left to receive (ties: lowest index).
2. Exploitation: SED with the estimates of the episode's beginning.
3. At the end: N_i and S_i take in the services seen, μ̂_i = N_i/S_i, k += 1.

Symbols: k -> `episode.number`, N_i and S_i -> `means[i].weight` and `.total`, μ̂_i -> `_rates[i]`.
Source: [LASED] *Learning Adaptive SED for heterogeneous load balancing* (van Kempen, Sanders, Sloothaak, Wolf, 2026),
the section on the algorithm. Chosen where its summary leaves it open: n0 = 7, c = 3, α = 1 and the max with n0 (without
it one lucky first observation freezes a bad ratio for an endless busy period); a pool that joins inside an episode is
routed to by its guess until the next one begins.

Known limit, by design: with a bad guess and high load the first episode may never end. Watch the age of the open
episode; `max_episode_arrivals` closes one early, and the theory then no longer covers it.
"""

from __future__ import annotations

import math
from random import Random

from dispatcher.core.interfaces import FleetView, Sums
from dispatcher.core.types import Added, Change, Decision, Job, Phase
from dispatcher.errors import ConfigError
from dispatcher.policies.base import REMEMBERED, LearningPolicy

LONG = 1_000_000  # episodes; an estimator must be able to hold what they ask for


class Lased(LearningPolicy):
    """Learns the rates in episodes, with forced exploration; converges to SED with bounded regret.

    n0: trials a pool gets in an exploration, ≥ 1. c, alpha: how many observations a pool must have by episode k,
    c (ln k)^alpha, both ≥ 0. max_episode_arrivals: close an episode after so many arrivals; 0 never does.
    """

    def __init__(
        self,
        *,
        rng: Random,
        ties: str = "first",
        exponent: float = 1.0,
        prior_weight: float = 0.0,
        estimator: str = "mean",
        n0: int = 7,
        c: float = 3.0,
        alpha: float = 1.0,
        max_episode_arrivals: int = 0,
    ) -> None:
        super().__init__(rng=rng, ties=ties, exponent=exponent, prior_weight=prior_weight, estimator=estimator)
        if not 1 <= n0 <= 1_000_000:
            raise ConfigError(f"n0 must be from 1 to 1,000,000, not {n0}")
        if not (0 <= c <= 1e6 and 0 <= alpha <= 10):
            raise ConfigError(f"c must be from 0 to 1e6 and alpha from 0 to 10, not c = {c}, alpha = {alpha}")
        if max_episode_arrivals < 0:
            raise ConfigError(f"max_episode_arrivals must be 0 (off) or more, not {max_episode_arrivals}")
        self.n0, self.c, self.alpha = n0, c, alpha
        self.max_episode_arrivals = max_episode_arrivals
        most, enough = self._make(1.0, 0.0).most, self.needed(LONG)
        if most < enough:
            raise ConfigError(
                f"estimator {estimator!r} never weighs more than {most:g} observations, and lased, which wants "
                f"{math.ceil(enough)} by episode {LONG:,}, would explore for ever"
            )
        self._rates: dict[str, float] = {}
        self._left_to_try: dict[str, int] = {}

    def rate(self, pool: str) -> float:
        return self._rates[pool]

    def needed(self, k: int) -> float:
        """N(k), the observations of each pool below which episode k explores."""
        return max(self.n0, self.c * math.pow(math.log(k), self.alpha))

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        if self.max_episode_arrivals and self.episode.arrivals >= self.max_episode_arrivals and not self._left_to_try:
            self.end_episode()
        if self.episode.arrivals == 0:
            self._begin_episode(fleet)
        self.episode.arrived(now)
        if self._left_to_try:
            pool = self._next_trial(fleet)
            if pool is not None:
                return Decision(pool, phase=Phase.EXPLORE)
        return Decision(self.best(fleet, now).id)

    def _begin_episode(self, fleet: FleetView) -> None:
        if min(mean.weight for mean in self.means.values()) < self.needed(self.episode.number):
            self._left_to_try = dict.fromkeys(self.means, self.n0)
            self.episode.explored = True

    def _next_trial(self, fleet: FleetView) -> str | None:
        """The pool with the most trials left among those that this request may go to."""
        left = self._left_to_try
        each = [left.get(pool.id, 0) for pool in fleet.pools]
        trials = max(each)
        if not trials:
            return None
        pool = fleet.pools[each.index(trials)].id
        if trials == 1:
            del left[pool]
        else:
            left[pool] = trials - 1
        return pool

    def emptied(self) -> None:
        if not self._left_to_try:
            super().emptied()

    def end_episode(self) -> None:
        super().end_episode()
        self._rates = {pool: mean.rate for pool, mean in self.means.items()}
        self.rates_changed()

    def rate_changed(self, pool: str) -> None:
        """Only at the end of an episode."""

    def absorb(self, pool: str, others: Sums) -> None:
        super().absorb(pool, others)
        self._before_an_episode()

    def forget(self, pool: str) -> None:
        super().forget(pool)
        self._rates.pop(pool, None)
        if pool in self.means:
            self._rates[pool] = self.means[pool].rate
        self.rates_changed()

    def _before_an_episode(self) -> None:
        """Where none has begun, the next one begins with what is known now."""
        if not self.episode.arrivals:
            self._rates = {pool: mean.rate for pool, mean in self.means.items()}
            self.rates_changed()

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            super().adapt(change, fleet)
            # one that comes back within the episode is judged as at the episode's beginning
            self._rates.setdefault(change.spec.id, self.means[change.spec.id].rate)
        else:
            self._left_to_try.pop(change.pool, None)
            super().adapt(change, fleet)
            if len(self._rates) > len(self.means) + REMEMBERED:
                self._rates = {pool: rate for pool, rate in self._rates.items() if pool in self.means}
