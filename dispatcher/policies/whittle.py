"""whittle: pools of known capacity that are filled, or accept work only when empty, and are observed when they respond.

Rule: join the pool of the largest index. In the model `finite` it is W(t) = K P(Poisson(μt) > K), with t the seconds
since the last request went there. This is the average-reward index if picks take no time. In the model `blocking` a
pool accepts work only when it is empty. The index is W(q, τ) from `partial_information.whittle_index`. Here q is the
last known backlog, and τ is its age in slots of a quarter of a mean service. A thread computes one table for each K.
Until it is done, the myopic index takes its place. The policy `myopic` joins the pool where a pick would earn most at
once.

Symbols: K -> `capacity` or the pool's `max_in_flight`, μ -> learned rate × servers, t -> since the last pick.
Source: Chadaga and Modiano, *Load Balancing with Partial Queue Information: Threshold Optimality and Indexability*.
Limits: the models have no arrivals from other dispatchers. For single requests to shared pools take `partial_sed`.
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
from dispatcher.policies.partial_information.observation import QueueObservation
from dispatcher.policies.partial_information.queue_estimate import lower_gamma

# Mean services in a slot. With short slots the index depends on K, q and μt only, so one table for each K is enough.
SLOT_SERVICES = 0.25
MAX_CAPACITY = {"finite": 10_000, "blocking": 40}  # by model; the time for a table grows faster than K² log K

# One thread computes all tables in turn, so that at most one competes with the event loop.
_table_maker = ThreadPoolExecutor(1, thread_name_prefix="whittle")


@functools.cache
def _table(capacity: int) -> Future[whittle.Table]:
    """Return the indices of a blocking pool, which a thread computes."""
    return _table_maker.submit(whittle.blocking, capacity, SLOT_SERVICES)


class Whittle(LearningPolicy):
    """Whittle's index of pools that are observed only when they respond.

    model: finite or blocking.
    capacity: K, the jobs that a pool holds; 0 for its max_in_flight.
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
        if not 0 <= capacity <= MAX_CAPACITY[model]:
            raise ConfigError(f"capacity must be from 1 to {MAX_CAPACITY[model]:,}, or 0 for the pool's max_in_flight")
        self.model, self.capacity = model, capacity
        self.observations: dict[str, QueueObservation] = {}
        self._picked_at: dict[str, float] = {}

    def adapt(self, change: Change, fleet: FleetView) -> None:
        if isinstance(change, Added):
            spec = change.spec
            if not 1 <= (capacity := self.capacity or spec.max_in_flight) <= MAX_CAPACITY[self.model]:
                raise ConfigError(f"pool {spec.id!r}: max_in_flight must be from 1 to {MAX_CAPACITY[self.model]:,}")
            if self.model == "blocking" and not self.myopic:
                _table(capacity)  # the computation starts before the first request needs it
            self.observations[spec.id] = QueueObservation()
        else:
            del self.observations[change.pool]
            self._picked_at.pop(change.pool, None)
        super().adapt(change, fleet)

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        decision = super().choose(job, fleet, now)
        observation = self.observations[decision.pool]
        observation.request_sent(observation.backlog, now)
        self._picked_at[decision.pool] = now
        return decision

    def learn(self, done: Completion, fleet: FleetView) -> None:
        if done.report is not None and (observation := self.observations.get(done.ticket.decision.pool)):
            observation.reported(done.report)
        super().learn(done, fleet)

    def score(self, pool: PoolView, now: float) -> float:
        """Return the negated index, because the least score wins."""
        observation, mu, k = self.observations[pool.id], self.rate(pool.id) * pool.servers, self._capacity_of(pool.id)
        if self.model == "finite":  # the state is the time since the last pick; a report is not a pick
            age = now - self._picked_at.get(pool.id, -math.inf)
            if math.isinf(age):
                return -float(k)  # a pool that was never used is empty
            return -(whittle.reward(age, k, mu) if self.myopic else whittle.continuous(age, k, mu))
        if math.isinf(observation.at) or observation.backlog <= 0:
            return -float(k)  # a pool that is empty, or was never used, earns K for certain
        age = max(0.0, now - observation.at)
        q = min(k, max(1, round(observation.backlog)))  # reports may be fractions, or exceed a K that is set too small
        earned = k * lower_gamma(q, mu * age)
        if self.myopic:
            return -earned
        table = _table(k)
        return -(table.result()(q, max(1, round(age * mu / SLOT_SERVICES))) if table.done() else earned)

    def _capacity_of(self, pool: str) -> int:
        return self.capacity or self.specs[pool].max_in_flight


class Myopic(Whittle):
    """What a pick would earn at once, from pools that are observed only when they respond."""

    myopic = True
