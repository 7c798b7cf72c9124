"""partial_sed: shortest expected delay for pools that others use too, from the last reports of their backlogs.

Each of several dispatchers knows its own requests, and the backlog of a pool only when that pool responds to it.

Rule: join argmin_i (E_i + 1)/(μ_i − λ*_i). E_i is the expected present backlog. λ* is the static split of the whole
load that has the least delay. The score is the request's own delay plus its cost for later requests (one step of policy
improvement).

`rule` is BELIEF or BELIEF+FLAGS. The beliefs are:
- relax (default): the last observation, faded into the usual backlog of the pool.
- reflect: others send at a constant rate.
- psi: the score is ψ/μ, a function of the probability that the pool is busy.
- stale: the last observation and own requests since.
- poisson: departures only.
The flags are f (E_i is at least the number of own requests there) and k (μ − λ* instead of μ). `relax+fk` was the best
or nearly the best in all experiments, and `relax+f` where the 99th percentile matters most. Do not use `poisson` with
several dispatchers: each one takes the pools that it does not use to be empty, and all of them send there at once.

Symbols: E -> `QueueObservation.expected`, μ -> `capacity`, λ* -> `static_split`. The rate of a pool is its completions
per busy second, if the pool reports them. Otherwise it is learned from service times, as in other learners. A single
dispatcher that gets no service times learns it from the decrease of backlogs (`DepartureRate`). Source: derived after
Chadaga and Modiano, *Load Balancing with Partial Queue Information*; `docs/many-dispatchers.md`.
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
from dispatcher.policies.partial_information.departure_rate import DepartureRate
from dispatcher.policies.partial_information.observation import QueueObservation
from dispatcher.policies.partial_information.queue_estimate import psi, static_split

BELIEFS = ("relax", "reflect", "psi", "stale", "poisson")
MAX_OTHERS_SHARE = 0.95  # of a pool's capacity; others do not send more for long, because they avoid full pools too
OCCUPIED_PENALTY = 1e9  # added to the score of a pool with own requests, so that pools without any go first
MAX_FRUITLESS_TRIALS = 3  # trials for each wanted observation of a pool from which nothing is learned


class PartialSed(LearningPolicy):
    """Shortest expected delay on reported backlogs, for several dispatchers that share their pools.

    rule: BELIEF or BELIEF+FLAGS. The beliefs are relax, reflect, psi, stale and poisson; the flags are f and k.
    replicas: the number of dispatchers. It serves to estimate the load of the others if pools do not report it.
    c: at the n-th request a pool without own requests is tried if it has fewer than c ln(n + 1) observations.
    """

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
        self.counts_own, self.subtracts_load = "f" in flags, "k" in flags
        self.rule, self.replicas = rule, replicas
        self.observations: dict[str, QueueObservation] = {}
        self._departure_rates: dict[str, DepartureRate] = {}
        self._reporting: set[str] = set()  # pools that report their services, those for other dispatchers included

    def adapt(self, change: Change, fleet: FleetView) -> None:
        super().adapt(change, fleet)
        if isinstance(change, Added):
            self.observations[change.spec.id] = QueueObservation()
            self._departure_rates[change.spec.id] = DepartureRate(change.spec.guess)
        else:
            del self.observations[change.pool], self._departure_rates[change.pool]
            self._reporting.discard(change.pool)

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
        # From here on the estimate of the backlog starts anew, from its present value and this request.
        self.observations[pool.id].request_sent(self._expected(pool, now)[0], now)
        return decision

    def _trial(self, fleet: FleetView) -> PoolView | None:
        """Return the pool with the fewest observations of those without own requests, if it has too few; else None."""
        enough = self.c * math.log(self.arrivals + 1)
        # The limit on `sent` ends the trials of a pool from which nothing is learned.
        candidates = [
            pool
            for pool in fleet.pools
            if not pool.in_flight
            and self.means[pool.id].weight < enough
            and self.observations[pool.id].sent < MAX_FRUITLESS_TRIALS * enough
        ]
        return min(candidates, key=lambda pool: self.means[pool.id].weight) if candidates else None

    def learn(self, done: Completion, fleet: FleetView) -> None:
        pool, report = done.ticket.decision.pool, done.report
        if report is not None and (observation := self.observations.get(pool)):
            since_last = observation.reported(report)
            if report.busy is not None and report.served is not None:
                self._reporting.add(pool)
            if since_last is not None:
                # One observation for each own response, so that the sums of several dispatchers can be added.
                services, seconds = since_last
                self.observe(pool, seconds / services)
            elif self.replicas == 1 and done.service_time is None and observation.between_reports is not None:
                self._departure_rates[pool].learn(*observation.between_reports)
        if pool in self._reporting:
            # A service time inferred from own requests alone would count the work for others as slowness.
            done = replace(done, service_time=None)
        super().learn(done, fleet)

    def reset_pool(self, pool: str) -> None:
        super().reset_pool(pool)
        if pool in self.observations:
            self.observations[pool] = QueueObservation()
            self._departure_rates[pool] = DepartureRate(self.specs[pool].guess)

    def rate(self, pool: str) -> float:
        """Return the rate of the mean, or that of the departures if there was no service time yet."""
        mean = self.means[pool]
        return mean.rate if mean.weight else self._departure_rates[pool].rate

    def capacity(self, pool: PoolView) -> float:
        """Return μ: the services per second of all servers of the pool."""
        return self.rate(pool.id) * pool.servers

    def score_all(self, pools: Sequence[PoolView], now: float) -> Sequence[float]:
        rates = [self.capacity(pool) for pool in pools]
        if self.belief == "psi":
            return self._psi(pools, rates, now)
        spare = self._spare(pools, rates) if self.subtracts_load else rates
        return [_delay(pool, self._expected(pool, now)[0], left) for pool, left in zip(pools, spare, strict=True)]

    def _spare(self, pools: Sequence[PoolView], rates: Sequence[float]) -> list[float]:
        """Return μ − λ* of each pool: what the static split of the whole load leaves free."""
        shares = static_split(rates, sum(map(self._load, pools)))
        return [rate - share for rate, share in zip(rates, shares, strict=True)]

    def _psi(self, pools: Sequence[PoolView], rates: Sequence[float], now: float) -> list[float]:
        """Return the scores of the belief `psi`.

        A pool with own requests is certainly busy, where ψ has no bound. With the flag f such pools go last, and are
        compared by their delay.
        """
        spare = self._spare(pools, rates) if self.counts_own else rates
        scores = []
        for pool, rate, left in zip(pools, rates, spare, strict=True):
            backlog, busy = self._expected(pool, now)
            if self.counts_own and pool.in_flight:
                scores.append(OCCUPIED_PENALTY + _delay(pool, max(backlog, pool.in_flight), left))
            else:
                scores.append(psi(busy, 1 - busy) / rate)
        return scores

    def _expected(self, pool: PoolView, now: float) -> tuple[float, float]:
        """Return the expected backlog of the pool and the probability that it is busy."""
        observation, mu = self.observations[pool.id], self.capacity(pool)
        usual = observation.usual if observation.usual is not None else float(pool.in_flight)
        # The load includes own requests, which the observation counts itself.
        others = min(max(0.0, self._load(pool) - (observation.own_rate.value or 0.0)), MAX_OTHERS_SHARE * mu)
        backlog, busy = observation.expected(now, mu, usual, self.belief, others)
        return (max(backlog, pool.in_flight), busy) if self.counts_own and self.belief != "psi" else (backlog, busy)

    def _load(self, pool: PoolView) -> float:
        """Return the requests per second that the pool gets from all dispatchers."""
        observation = self.observations[pool.id]
        total = observation.total_rate.value
        # Without reports of the load, every dispatcher is taken to send as much as this one.
        return total if total is not None else (observation.own_rate.value or 0.0) * self.replicas


def _delay(pool: PoolView, backlog: float, spare: float) -> float:
    """Return (E + 1)/spare, and for c servers (max(0, E + 1 − c) + c)/spare, as in `core.expected_delay`.

    backlog: E.
    spare: the services per second that are left for this request.
    """
    c = pool.servers
    return (max(0.0, backlog + 1 - c) + c) / spare
