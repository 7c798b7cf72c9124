"""partial_sed: shortest expected delay where others send to the same pools, on what the pools last said of their
backlogs.

Each of several dispatchers sees its own requests, and a pool's backlog only when one of its answers comes back. Rule:
join argmin_i (E_i + 1)/(μ_i − λ*_i), where E_i is what is believed to be there now and λ* the static split of the
whole load that has the least delay: own delay plus what the request costs those that come after it (one step of policy
improvement).

`rule` is BELIEF or BELIEF+FLAGS. Beliefs: relax, the last sight faded into what is usual at that pool (default);
reflect, with arrivals of others at a constant rate; psi, by the chance of finding it busy, in ψ/μ; stale, the last
sight and own requests since; poisson, departures only. Flags: f, no less than the own requests that are open there; k,
μ − λ* instead of μ. `relax+fk` is best or near it in all that was tried; `relax+f` where the 99th percentile matters
most. Do not use `poisson` with several dispatchers: each believes what it does not visit to be empty, and all pile on.

Symbols: E -> `Sight.ours_left`, μ -> `capacity`, λ* -> `core.backlog.static_split`, b -> `in_flight`. Rates:
completions per busy second where pools count them; else service times, as other learners; for one dispatcher that sees
none, from how backlogs fell (`estimators.departures`). Source: derived after Chadaga and Modiano, *Load Balancing with
Partial Queue Information*; `docs/many-dispatchers.md`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random

from dispatcher.core.memory import AUTOMATIC
from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Phase
from dispatcher.errors import ConfigError
from dispatcher.policies.base import LearningPolicy
from dispatcher.policies.partial_information.departure_rate import Departures
from dispatcher.policies.partial_information.observation import Sight
from dispatcher.policies.partial_information.queue_estimate import psi, static_split

BELIEFS = ("relax", "reflect", "psi", "stale", "poisson")
FULLEST = 0.95  # of its capacity that others can keep sending to a pool: they look where they send, too
OCCUPIED = 1e9  # added to the score of a pool with own requests, where some pool has none


class PartialSed(LearningPolicy):
    """Shortest expected delay on reported backlogs, for several dispatchers that share their pools.

    rule: as above. replicas: how many dispatchers there are, for the load of the others where pools do not count it.
    c: a pool seen less than c ln(n + 1) times by the n-th request, and with none of ours open, is tried.
    """

    plane = False

    def __init__(
        self,
        *,
        rng: Random,
        ties: str = "first",
        prior_weight: float = 0.0,
        estimator: str = "mean",
        memory: int = AUTOMATIC,
        rule: str = "relax+fk",
        replicas: int = 1,
        c: float = 3.0,
    ) -> None:
        super().__init__(rng=rng, ties=ties, prior_weight=prior_weight, estimator=estimator, memory=memory)
        self.belief, _, flags = rule.partition("+")
        if self.belief not in BELIEFS or not set(flags) <= {"f", "k"}:
            raise ConfigError(f"rule must be one of {', '.join(BELIEFS)}, with +f, +k or +fk, not {rule!r}")
        if not 1 <= replicas <= 1000:
            raise ConfigError(f"replicas must be from 1 to 1000, not {replicas}")
        if not 0 <= c <= 1e6:
            raise ConfigError(f"c must be from 0 to 1e6, not {c}")
        self.c, self.arrivals = c, 0
        self.floor, self.improved = "f" in flags, "k" in flags
        self.rule, self.replicas = rule, replicas
        self.sights: dict[str, Sight] = {}
        self._departures: dict[str, Departures] = {}
        self._counted: set[str] = set()  # pools that count their services themselves, for all dispatchers

    def adapt(self, change: Change, fleet: FleetView) -> None:
        super().adapt(change, fleet)
        if isinstance(change, Added):
            self.sights[change.spec.id] = Sight()
            self._departures[change.spec.id] = Departures(change.spec.guess)
        else:
            del self.sights[change.pool], self._departures[change.pool]
            self._counted.discard(change.pool)

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        self.arrivals += 1
        trial = self._trial(fleet)
        if trial is None:
            decision = super().choose(job, fleet, now)
        else:
            self.episode.arrived(now)
            self.episode.explored = True
            decision = Decision(trial.id, phase=Phase.EXPLORE)
        pool = fleet[decision.pool]
        self.sights[pool.id].chosen(self._believed(pool, now)[0], now)
        return decision

    def _trial(self, fleet: FleetView) -> PoolView | None:
        """Of the pools where nothing of ours is open the one seen least, if that is too seldom."""
        enough = self.c * math.log(self.arrivals + 1)
        free = [
            pool for pool in fleet.pools
            if not pool.in_flight
            and self.means[pool.id].weight < enough
            and self.sights[pool.id].sent < 3 * enough  # where nothing can be learned it ends, too
        ]  # fmt: skip
        return min(free, key=lambda pool: self.means[pool.id].weight) if free else None

    def learn(self, done: Completion, fleet: FleetView) -> None:
        pool, report = done.ticket.decision.pool, done.report
        if report is not None and (sight := self.sights.get(pool)):
            served = sight.reported(report)
            if report.busy is not None and report.served is not None:
                self._counted.add(pool)
            if served is not None:  # one observation an answer of ours, so that dispatchers' sums add up
                self.observe(pool, served[1] / served[0], done.finished_at)
            elif self.replicas == 1 and done.service_time is None and sight.between is not None:
                self._departures[pool].learn(*sight.between)
        if pool in self._counted:  # what is inferred from our requests alone takes others' work for slowness
            done = replace(done, service_time=None)
        super().learn(done, fleet)

    def forget(self, pool: str) -> None:
        super().forget(pool)
        if pool in self.sights:
            self.sights[pool] = Sight()
            self._departures[pool] = Departures(self.specs[pool].guess)

    def rate(self, pool: str) -> float:
        """Of the mean; where no service time was ever seen, what backlogs told."""
        mean = self.means[pool]
        return mean.rate if mean.weight else self._departures[pool].rate

    def capacity(self, pool: PoolView) -> float:
        return self.rate(pool.id) * pool.servers

    def score_all(self, pools: Sequence[PoolView], now: float) -> Sequence[float]:
        rates = [self.capacity(pool) for pool in pools]
        shares = static_split(rates, sum(map(self._load, pools))) if self.improved else [0.0] * len(rates)
        spare = [rate - share for rate, share in zip(rates, shares, strict=True)]
        if self.belief != "psi":
            return [_delay(pool, self._believed(pool, now)[0], left) for pool, left in zip(pools, spare, strict=True)]
        return self._psi(pools, rates, now)

    def _psi(self, pools: Sequence[PoolView], rates: Sequence[float], now: float) -> list[float]:
        spare = rates
        if self.floor:
            shares = static_split(rates, sum(map(self._load, pools)))
            spare = [rate - share for rate, share in zip(rates, shares, strict=True)]
        scores = []
        for pool, rate, left in zip(pools, rates, spare, strict=True):
            backlog, busy = self._believed(pool, now)
            if self.floor and pool.in_flight:
                scores.append(OCCUPIED + _delay(pool, max(backlog, pool.in_flight), left))
            else:
                scores.append(psi(busy, 1 - busy) / rate)
        return scores

    def _believed(self, pool: PoolView, now: float) -> tuple[float, float]:
        """(backlog, chance of busy)."""
        sight, mu = self.sights[pool.id], self.capacity(pool)
        usual = sight.usual if sight.usual is not None else float(pool.in_flight)
        others = min(max(0.0, self._load(pool) - (sight.own.value or 0.0)), FULLEST * mu)
        backlog, busy = sight.ours_left(now, mu, usual, self.belief, others)
        return (max(backlog, pool.in_flight), busy) if self.floor and self.belief != "psi" else (backlog, busy)

    def _load(self, pool: PoolView) -> float:
        """Requests a second that it gets from everybody."""
        sight = self.sights[pool.id]
        return sight.total.value if sight.total.value is not None else (sight.own.value or 0.0) * self.replicas


def _delay(pool: PoolView, backlog: float, spare: float) -> float:
    """(E + 1)/spare, and for c servers (max(0, E + 1 − c) + c)/spare: the wait and the service of `core.delay`."""
    c = pool.servers
    return (max(0.0, backlog + 1 - c) + c) / spare
