"""Regret: how many decisions the oracle would not have made, and why. A recorder; a function of what was seen.

The oracle is SED with the true rates, judged in the state that the dispatcher saw ([LASED] section 2). At a tie every
minimiser is right; without that, equal rates would give linear regret to any learner. Products are compared, not
quotients: tie if |w_i μ_j − w_j μ_i| ≤ 1e-9 of their sum, w being `work_ahead`.

A policy may bring an oracle of its own (`interfaces.CostOracle`); then its costs are compared, with the same tolerance.
Where decisions are nearly tied all the time, the count says little: read the excess, the sum of
(cost of the chosen pool − least cost)/least cost.

Cause of a wrong decision: a forced trial is `exploration`; else `overflow` if some queue is beyond
m(k) = max(7, c_m ln k), (chosen) c_m = 3, k the episode's number; else `estimation`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from dispatcher.core.argmin import TOLERANCE
from dispatcher.core.expected_delay import work_ahead
from dispatcher.core.policy import CostOracle, FleetView, Learner, Policy, PoolView, Recorder
from dispatcher.core.types import Added, Change, Decision, Job, Phase

OVERFLOW_C = 3.0
OVERFLOW_FLOOR = 7


class Cause(StrEnum):
    """Why a decision was wrong."""

    EXPLORATION = "exploration"
    ESTIMATION = "estimation"
    OVERFLOW = "overflow"


def is_wrong(fleet: FleetView, chosen: str, rates: Mapping[str, float]) -> bool:
    """Whether some pool has a strictly smaller expected delay than the chosen one, under `rates` by pool."""
    mine = fleet[chosen]
    w, mu = work_ahead(mine), rates[chosen]
    for pool in fleet.pools:
        a, b = w * rates[pool.id], work_ahead(pool) * mu
        if a - b > TOLERANCE * (a + b):
            return True
    return False


def overflow_threshold(episode: int) -> float:
    """m(k): queues beyond it are put down to overflow."""
    return max(OVERFLOW_FLOOR, OVERFLOW_C * math.log(episode))


class RegretMeter(Recorder):
    """Counts wrong decisions while all true rates are known; silent otherwise.

    Put it before other recorders: they read `total`, `last` (the cause of the latest decision, None if it was right).
    factor: of a pool, at an instant, on its true rate, for a simulation in which rates change; the oracle knows it.
    """

    def __init__(self, policy: Policy, factor: Callable[[str, float], float] | None = None) -> None:
        self._factor = factor
        self._follow(policy)
        self._rates: dict[str, float | None] = {}
        self._true: dict[str, float] | None = None
        self.by_cause = dict.fromkeys(Cause, 0)
        self.excess = dict.fromkeys(Cause, 0.0)
        self.last: Cause | None = None

    def _follow(self, policy: Policy) -> None:
        self._learner = policy if isinstance(policy, Learner) else None
        self._oracle = policy if isinstance(policy, CostOracle) else None

    @property
    def oracle(self) -> str:
        """What decisions are compared with."""
        return self._oracle.oracle if self._oracle is not None else "shortest expected delay with the true rates"

    @property
    def known(self) -> bool:
        """Whether the true rates of all open pools are known."""
        return self._true is not None

    @property
    def total(self) -> int:
        return sum(self.by_cause.values())

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        self.last = None
        rates = self._true
        if rates is not None and self._factor is not None:
            rates = {pool: rate * self._factor(pool, now) for pool, rate in rates.items()}
        if rates is None or (self._oracle is None and not is_wrong(fleet, decision.pool, rates)):
            return
        costs = self.true_costs(fleet.pools, rates)
        least, mine = min(costs), costs[[pool.id for pool in fleet.pools].index(decision.pool)]
        if self._oracle is None or mine - least > TOLERANCE * (mine + least):
            self.last = self._cause(decision, fleet)
            self.by_cause[self.last] += 1
            self.excess[self.last] += mine / least - 1

    def true_costs(self, pools: Sequence[PoolView], rates: Mapping[str, float]) -> Sequence[float]:
        """What the oracle compares, by pool."""
        if self._oracle is not None:
            return self._oracle.true_costs(pools, rates)
        return [work_ahead(pool) / rates[pool.id] for pool in pools]

    @property
    def true_rates(self) -> Mapping[str, float] | None:
        """By pool; None unless all are known."""
        return self._true

    def _cause(self, decision: Decision, fleet: FleetView) -> Cause:
        if decision.phase is Phase.EXPLORE:
            return Cause.EXPLORATION
        k = self._learner.episode.number if self._learner else 1
        limit = overflow_threshold(k)
        return Cause.OVERFLOW if any(pool.in_flight > limit for pool in fleet.pools) else Cause.ESTIMATION

    def switched(self, policy: Policy, now: float) -> None:
        self._follow(policy)

    def changed(self, change: Change, now: float) -> None:
        if isinstance(change, Added):
            self._rates[change.spec.id] = change.spec.true_rate
        else:
            self._rates.pop(change.pool, None)
        known = {pool: rate for pool, rate in self._rates.items() if rate is not None}
        self._true = known if known and len(known) == len(self._rates) else None
