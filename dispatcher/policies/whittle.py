"""whittle: pools of known capacity that are filled up, or taken only when empty, and seen only when they answer.

Rule: join the pool of the largest index. model `finite`: W(t) = K P(Poisson(μt) > K), t seconds since the last request
went there: "K times the chance that it has wasted a service already" (the average-reward index where picks cost no
time). model `blocking`: a pool takes work only when it is empty; W(q, τ) by the sweep of `core.whittle`, τ in slots of
a quarter of a mean service, q the backlog last known. The tables, one for each K, are made by a thread; until one is
there, the myopic index stands in for it. `myopic` joins the pool where a pick would bring most at once.

Symbols: K -> `capacity` or the pool's `max_in_flight`, μ -> learned rate × servers, t -> since `Sight.at`.
Source: Chadaga and Modiano, *Load Balancing with Partial Queue Information: Threshold Optimality and Indexability*.
Limits: the models know no arrivals but ours. For single requests to shared pools take `partial_sed`.
"""

from __future__ import annotations

import functools
import math
from concurrent.futures import Future, ThreadPoolExecutor
from random import Random

from dispatcher.core.memory import AUTOMATIC
from dispatcher.core.policy import FleetView, PoolView
from dispatcher.core.types import Added, Change, Completion, Decision, Job
from dispatcher.errors import ConfigError
from dispatcher.policies.base import LearningPolicy
from dispatcher.policies.partial_information import whittle_index as whittle
from dispatcher.policies.partial_information.observation import Sight
from dispatcher.policies.partial_information.queue_estimate import lower_gamma

SLOT = 0.25  # mean services: the index depends on K, q and μt alone where slots are short, so there is one table a K
LARGEST = {"finite": 10_000, "blocking": 40}  # capacities; a table takes K² log K and more

_maker = ThreadPoolExecutor(1, thread_name_prefix="whittle")


@functools.cache
def _table(capacity: int) -> Future[whittle.Table]:
    """The indices of a blocking pool, made by a thread."""
    return _maker.submit(whittle.blocking, capacity, SLOT)


class Whittle(LearningPolicy):
    """Whittle's index of pools that are seen only when they answer.

    model: finite or blocking. capacity: K, jobs that a pool holds; 0 takes its max_in_flight.
    """

    myopic = False

    def __init__(
        self,
        *,
        rng: Random,
        ties: str = "first",
        prior_weight: float = 0.0,
        estimator: str = "mean",
        memory: int = AUTOMATIC,
        model: str = "finite",
        capacity: int = 10,
    ) -> None:
        super().__init__(rng=rng, ties=ties, prior_weight=prior_weight, estimator=estimator, memory=memory)
        if model not in ("finite", "blocking"):
            raise ConfigError(f"model must be finite or blocking, not {model!r}")
        if not 0 <= capacity <= LARGEST[model]:
            raise ConfigError(f"capacity must be from 1 to {LARGEST[model]:,}, or 0 for the pool's max_in_flight")
        self.model, self.capacity = model, capacity
        self.sights: dict[str, Sight] = {}
        self._picked: dict[str, float] = {}

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            spec = change.spec
            if not 1 <= (capacity := self.capacity or spec.max_in_flight) <= LARGEST[self.model]:
                raise ConfigError(f"pool {spec.id!r}: max_in_flight must be from 1 to {LARGEST[self.model]:,}")
            if self.model == "blocking" and not self.myopic:
                _table(capacity)
            self.sights[spec.id] = Sight()
        else:
            del self.sights[change.pool]
            self._picked.pop(change.pool, None)
        super().adapt(change, fleet)

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        decision = super().choose(job, fleet, now)
        sight = self.sights[decision.pool]
        sight.chosen(sight.backlog, now)
        self._picked[decision.pool] = now
        return decision

    def learn(self, done: Completion, fleet: FleetView) -> None:
        if done.report is not None and (sight := self.sights.get(done.ticket.decision.pool)):
            sight.reported(done.report)
        super().learn(done, fleet)

    def score(self, pool: PoolView, now: float) -> float:
        """The index, negated: the least score wins."""
        sight, mu, k = self.sights[pool.id], self.rate(pool.id) * pool.servers, self._holds(pool.id)
        if self.model == "finite":  # what it reports is no pick
            age = now - self._picked.get(pool.id, -math.inf)
            if math.isinf(age):
                return -float(k)  # never tried: nothing is there
            return -(whittle.reward(age, k, mu) if self.myopic else whittle.continuous(age, k, mu))
        if math.isinf(sight.at) or sight.backlog <= 0:
            return -float(k)
        age = max(0.0, now - sight.at)
        q = min(k, max(1, round(sight.backlog)))
        earned = k * lower_gamma(q, mu * age)
        if self.myopic:
            return -earned
        made = _table(k)
        return -(made.result()(q, max(1, round(age * mu / SLOT))) if made.done() else earned)

    def _holds(self, pool: str) -> int:
        return self.capacity or self.specs[pool].max_in_flight


class Myopic(Whittle):
    """What a pick would bring at once, from pools that are seen only when they answer."""

    myopic = True
