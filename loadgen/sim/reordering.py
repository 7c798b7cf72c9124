"""Pools that reorder what waits, behind the service's own router and policies: what a rule costs that believes them to
be first come, first served.

Jobs come as a Poisson stream; a job of context x takes a geometric number of rounds, a pool does `speed` rounds a
second. Rules and disciplines of equal seed meet the same arrivals, contexts and work. Besides registered policies:
`work`, join the shortest expected work, which knows contexts but believes in first come, first served; and `aware`,
which also knows the order of shortest expected service first, and counts what a job costs those behind it.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher import registry
from dispatcher.core.argmin import argmin
from dispatcher.core.policy import FleetView, Policy
from dispatcher.core.rng import stream
from dispatcher.core.router import Router
from dispatcher.core.types import Added, Change, Completion, Decision, Outcome, PoolSpec, Ticket
from dispatcher.core.types import Job as Request
from loadgen.sim.job_scheduling import Source, discipline
from workers.scheduling.disciplines import Job
from workers.scheduling.logistic import Context, chance, mean_rounds

ORACLES = ("work", "aware")


@dataclass(frozen=True, slots=True)
class Scene:
    """source: contexts and coefficients; its `lam` is requests a second. speeds: rounds a second, by pool."""

    source: Source
    speeds: tuple[float, ...]
    order: str = "fcfs"

    def rate(self, i: int) -> float:
        """Services a second of a pool."""
        return self.speeds[i] / self.mean

    @property
    def mean(self) -> float:
        """Rounds of a job."""
        return math.fsum(share * mean_rounds(self.source.theta, x) for x, share in self.source.classes)


class _Pool:
    """One server and what waits for it. serving: the context of the job in service. waiting: how many, by context."""

    def __init__(self, scene: Scene, i: int) -> None:
        self.speed = scene.speeds[i]
        self.order = discipline(scene.order, scene.source, 1)
        self.serving: Context | None = None
        self.waiting: dict[Context, int] = {}

    def first(self, now: float) -> Job | None:
        """Who is begun, if anybody is to be."""
        job = self.order.next(now * self.speed)
        if job is not None:
            self.serving = job.x
            self.waiting[job.x] -= 1
        return job

    def add(self, job: Job) -> None:
        self.order.add(job)
        self.waiting[job.x] = self.waiting.get(job.x, 0) + 1


class _Oracle:
    """Sees the contexts of all that is in the pools."""

    def __init__(self, kind: str, scene: Scene, pools: list[_Pool]) -> None:
        self._aware, self._pools, self._theta = kind == "aware", pools, scene.source.theta
        capacity = math.fsum(scene.speeds)
        self._load = {x: scene.source.lam * share * mean_rounds(self._theta, x) / capacity
                      for x, share in scene.source.classes}  # fmt: skip

    def choose(self, job: Request, fleet: FleetView, now: float) -> Decision:
        costs = [self._cost(pool, job.context) for pool in self._pools]
        return Decision(argmin(fleet.pools, costs).id)

    def _cost(self, pool: _Pool, x: Any) -> float:
        own = mean_rounds(self._theta, x)
        ahead, behind = 0.0, 0
        for other, count in pool.waiting.items():
            mean = mean_rounds(self._theta, other)
            if not self._aware or mean <= own:
                ahead += count * mean
            else:
                behind += count
        if pool.serving is not None:
            ahead += mean_rounds(self._theta, pool.serving)
        if not self._aware:
            return (ahead + own) / pool.speed
        shorter = math.fsum(load for other, load in self._load.items() if mean_rounds(self._theta, other) < own)
        return (ahead / (1 - shorter) + own + behind * own) / pool.speed

    def learn(self, done: Completion, fleet: FleetView) -> None:
        """It knows."""

    def adapt(self, change: Change, fleet: FleetView) -> None:
        """It sees."""


@dataclass(frozen=True, slots=True)
class Ended:
    """By request: seconds in the system, seconds waited, index of its context in the source's classes. rates: what the
    policy believed in the end, by pool; what it would have to be in `Scene.rate`."""

    response: NDArray[np.float64]
    waits: NDArray[np.float64]
    kind: NDArray[np.int64]
    rates: tuple[float, ...]


def simulate(rule: str, scene: Scene, requests: int, seed: int, infer: bool = False) -> Ended:
    """infer: service times are not told but rebuilt from the outside, as where pools do not report them."""
    source = scene.source
    contexts, shares = zip(*source.classes, strict=True)
    dice, gaps = np.random.default_rng([seed, 5]), stream(seed, "arrivals")
    kind = dice.choice(len(contexts), requests, p=shares)
    p = np.array([chance(source.theta, x) for x in contexts])
    rounds = dice.geometric(p[kind]).tolist()
    pools = [_Pool(scene, i) for i in range(len(scene.speeds))]
    rng = stream(seed, "policy")
    policy: Policy = (
        _Oracle(rule, scene, pools) if rule in ORACLES else registry.create(rule, rng, registry.paper_options(rule))
    )
    router = Router(policy, infer=infer)
    for i in range(len(pools)):
        router.apply(Added(PoolSpec(str(i), guess=scene.rate(i), true_rate=scene.rate(i))), 0.0)
    response, waits = np.zeros(requests), np.zeros(requests)
    ends: list[tuple[float, int, int, float]] = []  # when, which request, at which pool, seconds served
    arrived, tickets, jobs = [0.0] * requests, dict[int, Ticket](), dict[int, int]()

    def begin(i: int, now: float) -> None:
        job = pools[i].first(now)
        if job is None:
            pools[i].serving = None
            return
        j = jobs.pop(id(job))
        waits[j] = now - arrived[j]
        service = rounds[j] / pools[i].speed
        heapq.heappush(ends, (now + service, j, i, service))

    def end() -> None:
        now, j, i, service = heapq.heappop(ends)
        router.complete(tickets.pop(j), now, Outcome.OK, None if infer else service)
        response[j] = now - arrived[j]
        pools[i].order.done(contexts[kind[j]], float(rounds[j]))
        begin(i, now)

    now = 0.0
    for j in range(requests):
        now += gaps.expovariate(source.lam)
        while ends and ends[0][0] <= now:
            end()
        arrived[j], x = now, contexts[kind[j]]
        tickets[j] = router.route(Request(j, x), now)
        i = int(tickets[j].pool.id)
        job = Job(x, now * pools[i].speed)
        jobs[id(job)] = j
        pools[i].add(job)
        if pools[i].serving is None:
            begin(i, now)
    while ends:
        end()
    rate = getattr(policy, "rate", None)
    return Ended(response, waits, kind, tuple(rate(str(i)) for i in range(len(pools))) if rate else ())
