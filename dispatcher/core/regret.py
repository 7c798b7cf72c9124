"""Regret: how many decisions the oracle would not have made, and why. This is a recorder of what a router does.

The oracle is SED with the true rates in the state that the dispatcher saw ([LASED] section 2). At a tie every minimiser
is right; otherwise equal rates would give every learner a linear regret. Products are compared instead of quotients:
two pools tie if |w_i μ_j − w_j μ_i| ≤ 1e-9 of their sum, where w is `work_ahead`.

A policy may have an oracle of its own (`BasePolicy.oracle`). Its costs are then compared, with the same tolerance.
Where decisions are nearly tied all the time, the count means little. The excess is then the better measure: the sum of
(cost of the chosen pool − least cost)/least cost.

The cause of a wrong decision is `exploration` if it was a forced trial. Otherwise it is `overflow` if some queue is
longer than m(k) = max(7, c_m ln k), with k the number of the episode. Otherwise it is `estimation`. We chose c_m = 3.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

from dispatcher.core.argmin import TOLERANCE
from dispatcher.core.expected_delay import work_ahead
from dispatcher.core.policy import BasePolicy, CostOracle, FleetView, Policy, PoolView, Recorder, as_policy
from dispatcher.core.types import Added, Change, Decision, Job, Phase

OVERFLOW_FACTOR = 3.0  # c_m
MIN_OVERFLOW_THRESHOLD = 7  # requests in flight


class Cause(StrEnum):
    """Why a decision was wrong."""

    EXPLORATION = "exploration"
    ESTIMATION = "estimation"
    OVERFLOW = "overflow"


def is_wrong(fleet: FleetView, chosen: str, rates: Mapping[str, float]) -> bool:
    """Return whether some pool has a strictly smaller expected delay than the chosen one, with these rates by pool."""
    mine = fleet[chosen]
    w, mu = work_ahead(mine), rates[chosen]
    for pool in fleet.pools:
        a, b = w * rates[pool.id], work_ahead(pool) * mu
        if a - b > TOLERANCE * (a + b):
            return True
    return False


def delay_costs(pools: Sequence[PoolView], rates: Mapping[str, float]) -> Sequence[float]:
    """Return the expected delay at each of these pools, in seconds, with these rates by pool."""
    return [work_ahead(pool) / rates[pool.id] for pool in pools]


SED_ORACLE = CostOracle("shortest expected delay with the true rates", delay_costs)


def overflow_threshold(episode: int) -> float:
    """Return m(k). A wrong decision with a longer queue than this is put down to overflow."""
    return max(MIN_OVERFLOW_THRESHOLD, OVERFLOW_FACTOR * math.log(episode))


class RegretMeter(Recorder):
    """Counts wrong decisions while all true rates are known.

    It must stand before the recorders that read `total` and `last`. `last` is the cause of the latest decision, None if
    that decision was right.

    policy: the policy whose decisions are counted.
    factor: for a simulation in which rates change. It returns the factor on the true rate of a pool at a time.
    """

    def __init__(self, policy: Policy, factor: Callable[[str, float], float] | None = None) -> None:
        self._factor = factor
        self._policy = as_policy(policy)
        self._configured: dict[str, float | None] = {}  # the true rate of each open pool
        self._true_rates: dict[str, float] | None = None
        self.by_cause = dict.fromkeys(Cause, 0)
        self.excess = dict.fromkeys(Cause, 0.0)
        self.last: Cause | None = None

    @property
    def oracle(self) -> str:
        """The rule that decisions are compared with, in words."""
        return (self._policy.oracle or SED_ORACLE).description

    @property
    def known(self) -> bool:
        """Whether the true rates of all open pools are known."""
        return self._true_rates is not None

    @property
    def total(self) -> int:
        """The number of wrong decisions."""
        return sum(self.by_cause.values())

    @property
    def true_rates(self) -> Mapping[str, float] | None:
        """The true rates by pool; None unless all are known."""
        return self._true_rates

    def true_costs(self, pools: Sequence[PoolView], rates: Mapping[str, float]) -> Sequence[float]:
        """Return the costs that the oracle compares, one for each pool."""
        return (self._policy.oracle or SED_ORACLE).costs(pools, rates)

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None:
        self.last = None
        rates = self._true_rates
        if rates is None:
            return
        if self._factor is not None:
            rates = {pool: rate * self._factor(pool, now) for pool, rate in rates.items()}
        has_own_oracle = self._policy.oracle is not None
        # Without an oracle of its own most decisions end here, and no costs are computed for them.
        if not has_own_oracle and not is_wrong(fleet, decision.pool, rates):
            return
        costs = self.true_costs(fleet.pools, rates)
        least, mine = min(costs), costs[[pool.id for pool in fleet.pools].index(decision.pool)]
        if not has_own_oracle or mine - least > TOLERANCE * (mine + least):
            self.last = self._cause(decision, fleet)
            self.by_cause[self.last] += 1
            self.excess[self.last] += mine / least - 1

    def _cause(self, decision: Decision, fleet: FleetView) -> Cause:
        if decision.phase is Phase.EXPLORE:
            return Cause.EXPLORATION
        limit = overflow_threshold(self._policy.episode.number)
        return Cause.OVERFLOW if any(pool.in_flight > limit for pool in fleet.pools) else Cause.ESTIMATION

    def switched(self, policy: BasePolicy, now: float) -> None:
        self._policy = policy

    def changed(self, change: Change, now: float) -> None:
        if isinstance(change, Added):
            self._configured[change.spec.id] = change.spec.true_rate
        else:
            self._configured.pop(change.pool, None)
        known = {pool: rate for pool, rate in self._configured.items() if rate is not None}
        self._true_rates = known if known and len(known) == len(self._configured) else None
