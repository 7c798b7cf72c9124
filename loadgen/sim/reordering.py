"""Simulates pools that do not serve in the order of arrival, for example shortest job first, behind the real Router.

It measures how much delay a routing policy loses because it assumes first come, first served. Jobs come as a Poisson
process. A job of context x takes a geometric number of rounds, and a pool does `speed` rounds per second. With equal
seeds all rules and disciplines meet the same arrivals, contexts and work.

Besides the registered policies there are two oracles. `work` joins the pool of the shortest expected work; it knows the
contexts but assumes first come, first served. `aware` also knows that pools serve the shortest expected job first, and
it counts the delay that a job causes to those behind it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from dispatcher import registry
from dispatcher.core.policy import BasePolicy, PoolView
from dispatcher.core.rng import stream
from dispatcher.core.types import Job as RoutedJob
from dispatcher.core.types import Outcome, PoolSpec, Ticket
from loadgen.sim.engine import EventQueue, make_router
from loadgen.sim.job_scheduling import Source, make_discipline
from loadgen.sim.oracles import LeastCost
from workers.scheduling.disciplines import Job
from workers.scheduling.logistic import Context, chance, mean_rounds

ORACLES = ("work", "aware")


@dataclass(frozen=True, slots=True)
class ReorderingScenario:
    """Describes the jobs and the pools.

    source: the contexts and coefficients of jobs; its `lam` is jobs per second.
    speeds: rounds per second, by pool.
    order: the discipline of all pools, as `job_scheduling.make_discipline` reads it.
    """

    source: Source
    speeds: tuple[float, ...]
    order: str = "fcfs"

    def rate(self, i: int) -> float:
        """Return the services per second of pool i."""
        return self.speeds[i] / self.mean

    @property
    def mean(self) -> float:
        """The mean rounds of a job."""
        return math.fsum(share * mean_rounds(self.source.theta, x) for x, share in self.source.classes)

    def specs(self) -> list[PoolSpec]:
        """Return the pools as the Router gets them, named "0", "1", ..."""
        return [PoolSpec(str(i), guess=self.rate(i), true_rate=self.rate(i)) for i in range(len(self.speeds))]


@dataclass(slots=True, eq=False)
class PoolJob(Job):
    """A job in a pool. number: its number in the order of arrival."""

    number: int


class _Pool:
    """One server and the jobs that wait for it.

    serving: the context of the job in service, None while the server is idle.
    waiting: the number of jobs that wait, by context.
    """

    def __init__(self, scenario: ReorderingScenario, i: int) -> None:
        self.speed = scenario.speeds[i]
        # The number of rounds is the horizon of `lcp`; the runs here have no known end.
        self.order = make_discipline(scenario.order, scenario.source, 1)
        self.serving: Context | None = None
        self.waiting: dict[Context, int] = {}

    def add(self, job: PoolJob) -> None:
        self.order.add(job)
        self.waiting[job.x] = self.waiting.get(job.x, 0) + 1

    def start_next(self, now: float) -> PoolJob | None:
        """Start the job that the discipline chooses and return it; None if the server stays idle."""
        job = self.order.next(now * self.speed)  # disciplines count time in rounds
        if not isinstance(job, PoolJob):  # None, as only jobs of this class were added
            self.serving = None
            return None
        self.serving = job.x
        self.waiting[job.x] -= 1
        return job


class WorkOracle(LeastCost):
    """Sees the contexts of all jobs in the pools, and joins the pool of the least expected delay.

    aware: whether it also knows that the pools serve the shortest expected job first.
    """

    def __init__(self, aware: bool, scenario: ReorderingScenario, pools: Sequence[_Pool], rng: Random) -> None:
        super().__init__(rng=rng)
        self._aware, self._pools, self._theta = aware, pools, scenario.source.theta
        capacity = math.fsum(scenario.speeds)
        self._loads = {
            x: scenario.source.lam * share * mean_rounds(self._theta, x) / capacity
            for x, share in scenario.source.classes
        }

    def cost(self, pool: PoolView, job: RoutedJob) -> float:
        assert isinstance(job.context, tuple)
        simulated = self._pools[int(pool.id)]
        own = mean_rounds(self._theta, job.context)
        ahead, behind = 0.0, 0  # rounds of work in front of the job; number of jobs that it makes wait
        for context, count in simulated.waiting.items():
            mean = mean_rounds(self._theta, context)
            if not self._aware or mean <= own:
                ahead += count * mean
            else:
                behind += count
        if simulated.serving is not None:
            ahead += mean_rounds(self._theta, simulated.serving)
        if not self._aware:
            return (ahead + own) / simulated.speed
        # While the job waits, shorter jobs arrive and are served before it; they take this share of the server.
        shorter = math.fsum(load for x, load in self._loads.items() if mean_rounds(self._theta, x) < own)
        return (ahead / (1 - shorter) + own + behind * own) / simulated.speed


@dataclass(frozen=True, slots=True)
class ReorderingResult:
    """What one run yields.

    response: seconds in the system, by job.
    waits: seconds before service, by job.
    kind: the index of the job's context in the source's classes, by job.
    rates: the rates that the policy assumes at the end, by pool. The truth is `ReorderingScenario.rate`.
    """

    response: NDArray[np.float64]
    waits: NDArray[np.float64]
    kind: NDArray[np.int64]
    rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Traffic:
    """The jobs of one run, in the order of arrival.

    kind: the index of the job's context in the source's classes.
    rounds: the rounds of service that the job takes.
    """

    contexts: tuple[Context, ...]
    kind: NDArray[np.int64]
    rounds: list[int]

    @classmethod
    def draw(cls, source: Source, requests: int, seed: int) -> _Traffic:
        contexts, shares = zip(*source.classes, strict=True)
        rng = np.random.default_rng([seed, 5])
        kind = rng.choice(len(contexts), requests, p=shares)
        p = np.array([chance(source.theta, x) for x in contexts])
        return cls(contexts, kind, rng.geometric(p[kind]).tolist())


def _make_policy(rule: str, scenario: ReorderingScenario, pools: Sequence[_Pool], seed: int) -> BasePolicy:
    rng = stream(seed, "policy")
    if rule in ORACLES:
        return WorkOracle(rule == "aware", scenario, pools, rng)
    return registry.create(rule, rng, registry.paper_options(rule))


def simulate(
    rule: str, scenario: ReorderingScenario, requests: int, seed: int, infer: bool = False
) -> ReorderingResult:
    """Simulate one run.

    rule: one of `ORACLES`, or the name of a policy.
    infer: whether the router reconstructs service times from outside, as where pools do not report them.
    """
    traffic, gaps = _Traffic.draw(scenario.source, requests, seed), stream(seed, "arrivals")
    pools = [_Pool(scenario, i) for i in range(len(scenario.speeds))]
    policy = _make_policy(rule, scenario, pools, seed)
    router = make_router(policy, scenario.specs(), infer=infer)
    response, waits = np.zeros(requests), np.zeros(requests)
    events = EventQueue()
    tickets: dict[int, Ticket] = {}

    def start_next(i: int, now: float) -> None:
        job = pools[i].start_next(now)
        if job is not None:
            service = traffic.rounds[job.number] / pools[i].speed
            waits[job.number] = now - tickets[job.number].routed_at
            events.schedule(now + service, end, now + service, i, job, service)

    def end(now: float, i: int, job: PoolJob, service: float) -> None:
        ticket = tickets.pop(job.number)
        router.complete(ticket, now, Outcome.OK, None if infer else service)
        response[job.number] = now - ticket.routed_at
        pools[i].order.done(job.x, float(traffic.rounds[job.number]))
        start_next(i, now)

    now = 0.0
    for j in range(requests):
        now += gaps.expovariate(scenario.source.lam)
        events.run_until(now)
        context = traffic.contexts[traffic.kind[j]]
        tickets[j] = ticket = router.route(RoutedJob(j, context), now)
        i = int(ticket.pool.id)
        pools[i].add(PoolJob(context, now * pools[i].speed, j))
        if pools[i].serving is None:  # a busy server takes its next job at the end of the present one
            start_next(i, now)
    events.run_all()
    rates = tuple(policy.rate(str(i)) for i in range(len(pools)))
    return ReorderingResult(response, waits, traffic.kind, rates)
