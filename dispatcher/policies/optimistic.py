"""optimistic: gated optimism. Greedy's estimates, and a forced trial only where it could pay.

At the n-th arrival let d be Greedy's choice. A pool e ≠ d may be tried if three conditions hold. It is idle. It has
fewer than c (ln(n + 1))^α observations. It would win with its *optimistic* rate: (q_e + 1)/μ_e⁺ < (q_d + 1)/μ̂_d. The
best such pool is tried, as exploration. If there is none, the request goes to d.

μ_e⁺ = G(N_e, z)/S_e, infinite if N_e = 0; z = ½ √(2 ln(n + 1)); G(N, z) the Wilson-Hilferty quantile of Gamma(N, 1).
Symbols: n -> `arrivals`, N_e and S_e -> `means[e].weight` and `.total`, μ̂ -> `means[e].rate`. Source: the rule is our
own. We chose that a pool of c servers is idle while one of them is free; delays are those of `core.expected_delay`. The
bonus is a small optimism in every decision that fades as N grows; its default is 0. With c = 2 and bonus = 2 the regret
over the grid of the paper's Fig. 8 is a tenth less than without (`docs/beyond-the-paper.md`). Limits: no regret bound
is proven. Where the guess happens to be right, the policy loses its trials compared with Greedy.
"""

from __future__ import annotations

import math
from random import Random

from dispatcher.core.expected_delay import work_ahead
from dispatcher.core.memory import AUTOMATIC
from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Decision, Job, Phase
from dispatcher.errors import ConfigError
from dispatcher.estimators.mean import Mean, gamma_quantile
from dispatcher.policies.base import LearningPolicy, has_room


class Optimistic(LearningPolicy):
    """Greedy, and a trial of an idle pool where the best that is still possible would win.

    c, alpha: at arrival n a pool is tried only if it has fewer than c (ln(n + 1))^alpha observations; both are 0 or
        more.
    bonus: services that are added to every pool's count in decisions, μ̂ = (N + bonus)/S; 0 or more.
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
        c: float = 3.0,
        alpha: float = 1.0,
        bonus: float = 0.0,
    ) -> None:
        super().__init__(
            rng=rng, ties=ties, exponent=exponent, prior_weight=prior_weight, estimator=estimator, memory=memory
        )
        if not (0 <= c <= 1e6 and 0 <= alpha <= 10):
            raise ConfigError(f"c must be from 0 to 1e6 and alpha from 0 to 10, not c = {c}, alpha = {alpha}")
        if not 0 <= bonus < math.inf:
            raise ConfigError(f"bonus must be 0 or more, not {bonus}")
        self.c, self.alpha, self.bonus = c, alpha, bonus
        self.arrivals = 0

    def rate(self, pool: str) -> float:
        mean = self.means[pool]
        return (mean.weight + self.bonus) / mean.total if mean.total > 0 else mean.rate

    def decide(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.episode.arrived(now)
        self.arrivals += 1
        best = self.best(fleet, now)
        trial = self._trial(best, fleet, now)
        if trial is None:
            return Decision(best.id)
        self.episode.explored = True
        return Decision(trial.id, phase=Phase.EXPLORE)

    def _trial(self, best: PoolView, fleet: FleetView, now: float) -> PoolView | None:
        """Return the idle pool that would win by most if it were as fast as it may still be, or None."""
        log = math.log(self.arrivals + 1)
        enough, z = self.c * math.pow(log, self.alpha), math.sqrt(2 * log) / 2
        least_delay, trial = self.score(best, now), None
        for pool in fleet.pools:
            if pool is not best and has_room(pool):
                mean = self.means[pool.id]
                if mean.weight < enough:
                    # A pool without observations may be as fast as any.
                    delay = work_ahead(pool) / self.rate_to_power(_optimistic_rate(mean, z)) if mean.weight else 0.0
                    if delay < least_delay:
                        least_delay, trial = delay, pool
        return trial


def _optimistic_rate(mean: Mean, z: float) -> float:
    """Return μ⁺, the upper bound of the rate.

    It is never below the mean: with a prior that is worth less than one service, G would be.
    """
    return max(gamma_quantile(mean.weight, z), mean.weight) / mean.total
