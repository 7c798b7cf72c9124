"""Simulates several dispatchers in front of the same pools. Each has its own Router and its own policy.

Requests come as one Poisson process, and each meets a dispatcher at random. A pool is one server, first come, first
served. Its response reports the backlog that it leaves behind, the services done so far, and the requests per second
that the pool has served. With equal seeds all rules meet the same requests and the same work at each pool (common
random numbers).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from dispatcher import registry
from dispatcher.core.policy import BasePolicy, FleetView, PoolView
from dispatcher.core.rng import stream
from dispatcher.core.router import Router
from dispatcher.core.types import Decision, Job, Outcome, PoolSpec, Report, Ticket
from dispatcher.policies.partial_information.queue_estimate import static_split
from loadgen.sim.engine import EventQueue, make_router
from loadgen.sim.oracles import LeastCost
from workers.station import Station

KNOWN_RATE_WEIGHT = 1e12  # services that a guess counts for, so that a policy keeps to it


@dataclass(frozen=True, slots=True)
class DispatcherScenario:
    """Describes the pools and the dispatchers.

    mu: the true rates, in services per second, by pool.
    load: the arrival rate over the sum of these rates.
    dispatchers, requests: their numbers.
    misjudged: factors on the rates that policies assume, by pool; empty for none.
    late: seconds that a report takes to reach its dispatcher.
    warmup: the share of the requests that is left out of the result.
    """

    mu: tuple[float, ...]
    load: float
    dispatchers: int
    requests: int = 20_000
    misjudged: tuple[float, ...] = ()
    late: float = 0.0
    warmup: float = 0.1

    @property
    def lam(self) -> float:
        """The arrival rate, per second."""
        return self.load * sum(self.mu)

    def specs(self) -> list[PoolSpec]:
        """Return the pools as the dispatchers get them, named "0", "1", ..."""
        factors = self.misjudged or (1.0,) * len(self.mu)
        return [
            PoolSpec(str(i), guess=rate * factor, true_rate=rate)
            for i, (rate, factor) in enumerate(zip(self.mu, factors, strict=True))
        ]


@dataclass(slots=True)
class ServedPool:
    """One server, first come, first served.

    backlog: the number of requests in the pool.
    served: the number of services done.
    work: the stream of service times.
    """

    rate: float
    work: Random
    station: Station
    backlog: int = 0
    served: int = 0

    def join(self, now: float) -> float:
        """Add a request and return its end."""
        self.backlog += 1
        return self.station.admit(now, self.work.expovariate(self.rate))

    def end(self) -> None:
        """Remove the request whose service ends."""
        self.backlog -= 1
        self.served += 1


class ShortestDelayOracle(LeastCost):
    """SED that sees every backlog. rates: by pool; the rule divides by them."""

    def __init__(self, pools: Sequence[ServedPool], rates: Sequence[float], rng: Random) -> None:
        super().__init__(rng=rng)
        self._pools, self._rates = pools, rates

    def cost(self, pool: PoolView, job: Job) -> float:
        i = int(pool.id)
        return (self._pools[i].backlog + 1) / self._rates[i]


class IdlePoolOracle(BasePolicy):
    """JIQ that sees every backlog: an idle pool, else any pool; among these at random in proportion to the rates."""

    def __init__(self, pools: Sequence[ServedPool], rng: Random) -> None:
        super().__init__(rng=rng)
        self._pools = pools

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        # The least of exponential numbers of these rates falls on each pool with a chance proportional to its rate.
        draws = [-math.log(1 - self.rng.random()) / pool.rate for pool in self._pools]
        idle = [i for i, pool in enumerate(self._pools) if pool.backlog == 0] or range(len(draws))  # else any pool
        return Decision(str(min(idle, key=draws.__getitem__)))


class LeastOfTwo(BasePolicy):
    """Draws two pools in proportion to the rates, and takes the one with fewer own requests per rate."""

    def __init__(self, mu: Sequence[float], rng: Random) -> None:
        super().__init__(rng=rng)
        self._mu = mu

    def choose(self, job: Job, fleet: FleetView, now: float) -> Decision:
        weights = list(self._mu)
        first = self.rng.choices(range(len(weights)), weights)[0]
        weights[first] = 0.0  # so that the second pool is another one
        second = self.rng.choices(range(len(weights)), weights)[0]
        return Decision(str(min((first, second), key=lambda i: (fleet.pools[i].in_flight + 1) / self._mu[i])))


def _make_policy(rule: str, scenario: DispatcherScenario, pools: Sequence[ServedPool], rng: Random) -> BasePolicy:
    """Make the policy of one dispatcher for a rule, as `simulate` names it."""
    mu = scenario.mu
    if rule == "jiq oracle":
        return IdlePoolOracle(pools, rng)
    if rule == "sed oracle":
        return ShortestDelayOracle(pools, mu, rng)
    if rule == "improved oracle":
        # As in `partial_sed`: a pool is worth the rate that the static split of the load leaves free.
        split = static_split(mu, scenario.lam)
        return ShortestDelayOracle(pools, [rate - share for rate, share in zip(mu, split, strict=True)], rng)
    if rule == "wrr":
        return registry.create("weighted_round_robin", rng, {})
    if rule == "least2":
        return LeastOfTwo(mu, rng)
    if rule == "own sed":
        return registry.create("esed", rng, {})
    options = {"rule": rule, "replicas": scenario.dispatchers, "prior_weight": KNOWN_RATE_WEIGHT}
    return registry.create("partial_sed", rng, registry.paper_options("partial_sed") | options)


def simulate(rule: str, scenario: DispatcherScenario, seed: int) -> NDArray[np.float64]:
    """Simulate one run and return the seconds that each request after the warm-up spent in its pool.

    They are in the order of the ends.

    rule: a rule of `partial_sed`; or `wrr`, `least2`, `own sed`; or `jiq`, `sed` or `improved` with ` oracle`.
    """
    pools = [ServedPool(rate, stream(seed, f"work/{i}"), Station()) for i, rate in enumerate(scenario.mu)]
    # Each dispatcher has its own policy, because it knows its own requests only.
    routers = [
        make_router(_make_policy(rule, scenario, pools, stream(seed, f"policy/{d}")), scenario.specs())
        for d in range(scenario.dispatchers)
    ]
    arrivals, dispatchers = stream(seed, "arrivals"), stream(seed, "dispatchers")
    events = EventQueue()
    times: list[float] = []

    def end(now: float, router: Router, ticket: Ticket) -> None:
        pool = pools[int(ticket.decision.pool)]
        pool.end()
        if ticket.job.number >= scenario.warmup * scenario.requests:
            times.append(now - ticket.routed_at)
        report = Report(now + scenario.late, pool.backlog, pool.served, rps=pool.served / now)
        if scenario.late:  # the dispatcher hears of the end when the report arrives, not before
            events.schedule(now + scenario.late, complete, now + scenario.late, router, ticket, report)
        else:
            complete(now, router, ticket, report)

    def complete(now: float, router: Router, ticket: Ticket, report: Report) -> None:
        router.complete(ticket, now, Outcome.OK, report=report)

    now = 0.0
    for number in range(scenario.requests):
        now += arrivals.expovariate(scenario.lam)
        events.run_until(now)
        router = routers[dispatchers.randrange(scenario.dispatchers)]
        ticket = router.route(Job(number), now)
        finish = pools[int(ticket.decision.pool)].join(now)
        events.schedule(finish, end, finish, router, ticket)
    events.run_all()
    return np.array(times)
