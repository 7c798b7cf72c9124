"""lased: Learning Adaptive SED. Learns the service rates in episodes and converges to SED with the true rates.

An episode begins with an arrival. It consists of these steps:
1. Exploration, only if min_i N_i < N(k) = max(n0, c (ln k)^α) as the episode begins: the next n·n0 arrivals go n0 to
   each pool, always to the pool with the most left to receive (ties: lowest index). With a `memory`, N_i is the number
   of observations, and only pools with too few get trials.
2. Exploitation: SED with the estimates of the episode's beginning.
3. At the end: N_i and S_i take in the services seen, μ̂_i = N_i/S_i, k += 1.

The option `episodes` sets where an episode ends. It never ends while trials of its exploration are left to give.
- "system" is the paper's rule: the episode ends at the first departure that leaves the whole system empty.
- "pool" is an extension: the episode ends at the first departure that leaves its pool empty, once every pool has been
  empty at least once. It does not matter whether a pool was empty just before the episode's first arrival, or became
  empty later, also during the exploration. With one pool the two rules are the same.

With "pool", the episode waits only for pools among which its first arrival could choose, and not for pools that join
later. A pool that leaves is no longer waited for, and its removal may end the episode.
A pool whose guess is far too high may never become empty, so `max_episode_arrivals` then defaults to 1,000.

Symbols: k -> `episode.number`, N_i and S_i -> `means[i].weight` and `.total`, μ̂_i -> `_rates[i]`.
Source: [LASED] *Learning Adaptive SED for heterogeneous load balancing* (van Kempen, Sanders, Sloothaak, Wolf, 2026),
the section on the algorithm. The paper leaves some points open. We chose n0 = 7, c = 3, α = 1 and the max with n0:
without the max, one lucky first observation fixes a wrong ratio for a busy period of any length. A pool that joins
inside an episode is routed to by its guess until the next episode begins.

Known limit of "system": with a bad guess and high load the first episode may never end. `episodes = "pool"` ends it,
and so does `max_episode_arrivals`. The regret bound of the paper is proven for "system" without a cap only.
"""

from __future__ import annotations

import math
from random import Random

from dispatcher.core.memory import AUTOMATIC, FOREVER
from dispatcher.core.policy import FleetView, LocalCounts
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Phase
from dispatcher.errors import ConfigError
from dispatcher.policies.base import MAX_DEPARTED_POOLS, LearningPolicy

MANY_EPISODES = 1_000_000  # the weight that this many episodes require must be within reach of the estimator
SYSTEM, POOL = "system", "pool"  # values of the option `episodes`
MAX_ARRIVALS_BY_POOL = 1_000  # the default of `max_episode_arrivals` with episodes by pool


class Lased(LearningPolicy):
    """Learns the rates in episodes, with forced exploration; converges to SED with bounded regret.

    n0: the trials that a pool gets in an exploration, at least 1.
    c, alpha: a pool must have c (ln k)^alpha observations by episode k; both are 0 or more.
    episodes: "system" or "pool", the rule that ends an episode.
    max_episode_arrivals: an episode also ends after this many arrivals. 0 means no such limit with "system" and 1,000
        arrivals with "pool".
    """

    def __init__(
        self,
        *,
        rng: Random,
        ties: str = "first",
        exponent: float = 1.0,
        prior_weight: float = 0.0,
        estimator: str = "mean",
        memory: int = AUTOMATIC,
        n0: int = 7,
        c: float = 3.0,
        alpha: float = 1.0,
        episodes: str = SYSTEM,
        max_episode_arrivals: int = 0,
    ) -> None:
        super().__init__(
            rng=rng, ties=ties, exponent=exponent, prior_weight=prior_weight, estimator=estimator, memory=memory
        )
        if not 1 <= n0 <= 1_000_000:
            raise ConfigError(f"n0 must be from 1 to 1,000,000, not {n0}")
        if not (0 <= c <= 1e6 and 0 <= alpha <= 10):
            raise ConfigError(f"c must be from 0 to 1e6 and alpha from 0 to 10, not c = {c}, alpha = {alpha}")
        if episodes not in (SYSTEM, POOL):
            raise ConfigError(f"episodes must be {SYSTEM!r} or {POOL!r}, not {episodes!r}")
        if max_episode_arrivals < 0:
            raise ConfigError(f"max_episode_arrivals must be 0 (the default) or more, not {max_episode_arrivals}")
        self.n0, self.c, self.alpha = n0, c, alpha
        self.by_pool = episodes == POOL
        self.max_episode_arrivals = max_episode_arrivals or (MAX_ARRIVALS_BY_POOL if self.by_pool else 0)
        # Where older observations fade, the weight may never reach what an episode requires.
        max_weight, needed = self._make_mean(1.0, 0.0).max_weight, self.needed(MANY_EPISODES)
        if max_weight < needed:
            raise ConfigError(
                f"estimator {estimator!r} never weighs more than {max_weight:g} observations, and lased, which wants "
                f"{math.ceil(needed)} by episode {MANY_EPISODES:,}, would explore for ever"
            )
        self._rates: dict[str, float] = {}
        self._changed: set[str] = set()  # pools whose estimate may differ from the rate in use
        self._trials_remaining: dict[str, int] = {}
        self._never_empty: set[str] = set()  # pools that were busy as the episode began and have not been empty since

    def rate(self, pool: str) -> float:
        return self._rates[pool]

    def needed(self, k: int) -> float:
        """Return N(k): episode k explores if a pool has fewer observations."""
        return max(self.n0, self.c * math.pow(math.log(k), self.alpha))

    def decide(self, job: Job, fleet: FleetView, now: float) -> Decision:
        if (
            self.max_episode_arrivals
            and self.episode.arrivals >= self.max_episode_arrivals
            and not self._trials_remaining
        ):
            self.end_episode()
        if self.episode.arrivals == 0:
            self._begin_episode(fleet)
        self.episode.arrived(now)
        if self._trials_remaining:
            pool = self._next_trial(fleet)
            if pool is not None:
                return Decision(pool, phase=Phase.EXPLORE)
        return Decision(self.best(fleet, now).id)

    def _begin_episode(self, fleet: FleetView) -> None:
        if self.by_pool:
            self._never_empty = {pool.id for pool in fleet.pools if pool.in_flight}
        needed = self.needed(self.episode.number)
        if self.memory == FOREVER:  # the paper's rule: if one pool has too little weight, all of them get trials
            to_explore = self.means if min(mean.weight for mean in self.means.values()) < needed else {}
        else:  # weights fade, so the observations are counted, and only pools with too few of them are tried
            to_explore = {
                pool: mean for pool, mean in self.means.items() if mean.observations + self.prior_weight < needed
            }
        if to_explore:
            self._trials_remaining = dict.fromkeys(to_explore, self.n0)
            self.episode.explored = True

    def _next_trial(self, fleet: FleetView) -> str | None:
        """Count a trial and return its pool: the one with the most remaining trials that this request may go to."""
        remaining = self._trials_remaining
        counts = [remaining.get(pool.id, 0) for pool in fleet.pools]
        most = max(counts)
        if not most:
            return None
        pool = fleet.pools[counts.index(most)].id
        if most == 1:
            del remaining[pool]
        else:
            remaining[pool] = most - 1
        return pool

    def learn(self, done: Completion, fleet: FleetView) -> None:
        super().learn(done, fleet)
        # The ticket's pool has its count also if it has left the fleet.
        pool = done.ticket.pool
        if self.by_pool and pool.in_flight == 0:
            self._stop_waiting_for(pool.id)

    def _stop_waiting_for(self, pool: str) -> None:
        """Take in that the pool has become empty or has left. The episode ends if it waited only for this pool."""
        self._never_empty.discard(pool)
        if not self._never_empty:
            self.emptied()

    def emptied(self) -> None:
        if not self._trials_remaining:
            super().emptied()

    def end_episode(self) -> None:
        super().end_episode()
        self._use_estimates()

    def _use_estimates(self) -> None:
        """Decide by the latest estimates from now on. The time is proportional to the number of changed estimates."""
        for pool in self._changed:
            if pool in self.means:
                self._rates[pool] = self.means[pool].rate
                super().rate_changed(pool)
            else:
                self._rates.pop(pool, None)
        self._changed.clear()

    def rate_changed(self, pool: str) -> None:
        # The rate in use does not change before the episode ends.
        self._changed.add(pool)

    def use_now(self, pool: str) -> None:
        if pool in self.means:
            self._rates[pool] = self.means[pool].rate
            super().rate_changed(pool)

    def merge_remote(self, pool: str, counts: LocalCounts) -> None:
        super().merge_remote(pool, counts)
        if not self.episode.arrivals:  # no episode is open whose estimates must stay
            self._use_estimates()

    def reset_pool(self, pool: str) -> None:
        super().reset_pool(pool)
        self._rates.pop(pool, None)
        if pool in self.means:
            self._rates[pool] = self.means[pool].rate
            super().rate_changed(pool)

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            super().adapt(change, fleet)
            pool = change.spec.id
            # A pool that returns within the episode keeps the rate of the episode's beginning.
            self._rates.setdefault(pool, self.means[pool].rate)
            self._changed.add(pool)
        else:
            self._trials_remaining.pop(change.pool, None)
            super().adapt(change, fleet)
            if self.by_pool:
                self._stop_waiting_for(change.pool)
            # Rates of pools that left are kept for their return, but not without a limit.
            if len(self._rates) > len(self.means) + MAX_DEPARTED_POOLS:
                self._rates = {pool: rate for pool, rate in self._rates.items() if pool in self.means}
