"""Several dispatchers in front of the same pools, in virtual time: the live policies, each with its own router and
sight.

Requests come as one Poisson stream and meet a dispatcher at random. A pool is one server, first come, first served; its
answer reports the backlog that it leaves behind, the services done and the requests a second that it has served.
Policies on one seed see the same requests and the same work of each pool (common random numbers).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher import registry
from dispatcher.core.policy import FleetView, Policy, PoolView
from dispatcher.core.rng import stream
from dispatcher.core.router import Router
from dispatcher.core.types import Added, Change, Completion, Decision, Job, Outcome, PoolSpec, Report, Ticket
from dispatcher.policies.partial_information.queue_estimate import static_split

SURE = 1e12  # services that a guess is worth where rates are known


@dataclass(frozen=True, slots=True)
class Scene:
    """mu: true rates. load: of all pools together. misjudged: factors on the rates that policies believe. late: seconds
    that a report is under way."""

    mu: tuple[float, ...]
    load: float
    dispatchers: int
    requests: int = 20_000
    misjudged: tuple[float, ...] = ()
    late: float = 0.0
    warmup: float = 0.1

    @property
    def lam(self) -> float:
        return self.load * sum(self.mu)


@dataclass(slots=True)
class Pools:
    """The truth. backlog: requests there; free_at: when the last of them is done."""

    backlog: list[int]
    free_at: list[float]
    served: list[int] = field(default_factory=list)


class _Oracle:
    """Sees the backlogs. index: of pool i with backlog q and a die, the least wins."""

    def __init__(self, pools: Pools, index: Callable[[int, int, float], float], rng: Random) -> None:
        self._pools, self._index, self._rng = pools, index, rng

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        return Decision(min(fleet.pools, key=self._of).id)

    def _of(self, pool: PoolView) -> float:
        i = int(pool.id)
        return self._index(i, self._pools.backlog[i], self._rng.random())

    def learn(self, done: Completion, fleet: FleetView) -> None: ...
    def adapt(self, change: Change, fleet: FleetView) -> None: ...


class _Least2:
    """Two pools drawn by speed; of them the one with fewer own requests per speed."""

    def __init__(self, mu: Sequence[float], rng: Random) -> None:
        self._mu, self._rng = mu, rng

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        pools, weights = list(fleet.pools), list(self._mu)
        first = self._rng.choices(range(len(pools)), weights)[0]
        weights[first] = 0.0
        second = self._rng.choices(range(len(pools)), weights)[0]
        return Decision(min((pools[first], pools[second]), key=self._of).id)

    def _of(self, pool: PoolView) -> float:
        return (pool.in_flight + 1) / self._mu[int(pool.id)]

    def learn(self, done: Completion, fleet: FleetView) -> None: ...
    def adapt(self, change: Change, fleet: FleetView) -> None: ...


class _Strict:
    """A recorder that lets no fault of a policy pass for a result."""

    def chosen(self, job: Job, decision: Decision, fleet: FleetView, now: float) -> None: ...
    def completed(self, done: Completion, fleet: FleetView) -> None: ...
    def changed(self, change: Change, now: float) -> None: ...
    def switched(self, policy: Policy, now: float) -> None: ...
    def faulted(self, error: Exception, now: float) -> None:
        raise error


def _make(rule: str, scene: Scene, pools: Pools, rng: Random) -> Any:
    mu = scene.mu
    if rule == "jiq oracle":
        return _Oracle(
            pools, lambda i, q, dice: (0.0 if q == 0 else SURE) - math.log(1 - dice) / mu[i], rng
        )  # by speed
    if rule == "sed oracle":
        return _Oracle(pools, lambda i, q, dice: (q + 1) / mu[i], rng)
    if rule == "improved oracle":
        spare = [rate - share for rate, share in zip(mu, static_split(mu, scene.lam), strict=True)]
        return _Oracle(pools, lambda i, q, dice: (q + 1) / spare[i], rng)
    if rule == "wrr":
        return registry.create("weighted_round_robin", rng, {})
    if rule == "least2":
        return _Least2(mu, rng)
    if rule == "own sed":
        return registry.create("esed", rng, {})
    options = {"rule": rule, "replicas": scene.dispatchers, "prior_weight": SURE}
    return registry.create("partial_sed", rng, registry.paper_options("partial_sed") | options)


def simulate(rule: str, scene: Scene, seed: int) -> NDArray[np.float64]:
    """Times in system of the requests after the warm-up, in the order of their ends. rule: of `partial_sed`, or `wrr`,
    `least2`, `own sed`, and `jiq`, `sed` or `improved` with ` oracle`."""
    n = len(scene.mu)
    pools = Pools([0] * n, [0.0] * n, [0] * n)
    believed = [rate * factor for rate, factor in zip(scene.mu, scene.misjudged or (1.0,) * n, strict=True)]
    routers = []
    for d in range(scene.dispatchers):
        router = Router(_make(rule, scene, pools, stream(seed, f"policy/{d}")), [_Strict()])
        for i in range(n):
            router.apply(Added(PoolSpec(str(i), guess=believed[i], true_rate=scene.mu[i])), 0.0)
        routers.append(router)
    arrivals, who = stream(seed, "arrivals"), stream(seed, "dispatchers")
    work = [stream(seed, f"work/{i}") for i in range(n)]
    events: list[tuple[float, int, tuple[int, int, Ticket, float, Report | None]]] = []
    spent: list[float] = []
    number, upcoming, order = 0, arrivals.expovariate(scene.lam), 0
    while number < scene.requests or events:
        if number < scene.requests and (not events or upcoming < events[0][0]):
            now, d = upcoming, who.randrange(scene.dispatchers)
            ticket = routers[d].route(Job(number), now)
            i = int(ticket.decision.pool)
            pools.free_at[i] = max(pools.free_at[i], now) + work[i].expovariate(scene.mu[i])
            pools.backlog[i] += 1
            order += 1
            heapq.heappush(events, (pools.free_at[i], order, (d, i, ticket, now, None)))
            number += 1
            upcoming = now + arrivals.expovariate(scene.lam)
            continue
        now, _, (d, i, ticket, began, report) = heapq.heappop(events)
        if report is None:
            pools.backlog[i] -= 1
            pools.served[i] += 1
            if ticket.job.number >= scene.warmup * scene.requests:
                spent.append(now - began)
            report = Report(now + scene.late, pools.backlog[i], pools.served[i], rps=pools.served[i] / now)
            if scene.late:
                order += 1
                heapq.heappush(events, (now + scene.late, order, (d, i, ticket, began, report)))
                continue
        routers[d].complete(ticket, now, Outcome.OK, report=report)
    return np.array(spent)
