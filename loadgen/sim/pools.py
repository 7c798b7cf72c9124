"""Simulates pools like real services: shared, limited or unlimited, behind a network, and changing.

A pool is a throughput curve (`workers.curves`) that its requests share (`workers.processor_sharing`). The policies and
their Routers are those of the live service, one of each for each dispatcher. They get counts and response times only,
as in front of a real service.

Arrivals are drawn from the stream `arrivals`. The work of request j is the j-th draw of `work`, and its dispatcher the
j-th draw of `dispatchers`. So all policies meet the same arrivals and the same work (common random numbers). A request
that ends at the instant of an arrival ends first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.policy import Policy
from dispatcher.core.rng import stream
from dispatcher.core.router import Router
from dispatcher.core.types import MAX_SERVERS, Job, Outcome, PoolSpec, Ticket
from loadgen.attack import arrivals as processes
from loadgen.sim.engine import EventQueue, make_router
from workers.curves import Curve, Servers, parse_curve
from workers.distributions import parse as parse_law
from workers.processor_sharing import ProcessorSharing


@dataclass(frozen=True, slots=True)
class ServicePool:
    """Describes a pool.

    text: a curve as `workers.curves.parse_curve` reads it. A curve `fcfs` serves in order, and the others share.
    network: seconds that a request and its response spend on the network together, half of it each.
    """

    text: str
    network: float = 0.0

    @property
    def curve(self) -> Curve:
        return parse_curve(self.text)

    @property
    def seconds(self) -> float:
        """The mean time of a request that is alone, without the network, in seconds."""
        return 1 / self.curve.alone

    @property
    def capacity(self) -> float:
        """c: the largest throughput in units of the throughput of one request; infinite without a limit."""
        return self.curve.capacity * self.seconds

    @property
    def servers(self) -> int:
        """The capacity as a configured number of servers."""
        return max(1, round(min(self.capacity, MAX_SERVERS)))

    @property
    def in_order(self) -> bool:
        """Whether requests are served in order and do not share: the curves of `fcfs` and `ps` are the same."""
        return self.text.startswith(("fcfs:", "fcfs/"))

    def sharing(self) -> ProcessorSharing[int]:
        """Make the pool, empty."""
        if self.in_order:  # FCFS with c servers: requests do not slow each other, and only c are in service
            return ProcessorSharing(math.inf, limit=self.servers)
        limit = int(self.curve.limit) if math.isfinite(self.curve.limit) else None
        return ProcessorSharing(limit=limit, speed=self.curve.shape)


@dataclass(frozen=True, slots=True)
class ServiceChange:
    """Changes a pool from request `at` on.

    speed: its speed from then on, in units of its first speed.
    servers: its number of servers from then on; None to keep it.
    """

    at: int
    pool: int
    speed: float = 1.0
    servers: int | None = None


@dataclass(frozen=True, slots=True)
class ServiceScenario:
    """Describes the pools and the traffic.

    rate: requests per second.
    law: the law of the work of a request, in seconds of service (`workers.distributions`).
    process: the arrival process (`loadgen.attack.arrivals`).
    dispatchers: their number; each request meets one of them at random.
    changes: in the order of `at`.
    """

    pools: tuple[ServicePool, ...]
    rate: float
    law: str = "exp"
    process: str = "poisson"
    dispatchers: int = 1
    changes: tuple[ServiceChange, ...] = ()


PolicyMaker = Callable[[ServiceScenario, Random], Policy]
ChangeListener = Callable[[Policy, ServiceChange], None]


def simulate(
    scenario: ServiceScenario,
    make: PolicyMaker,
    specs: Sequence[PoolSpec],
    requests: int,
    seed: int,
    infer: bool = False,
    on_change: ChangeListener | None = None,
) -> NDArray[np.float64]:
    """Return the response time of each request, in seconds, in the order of arrival.

    The result is a function of the arguments.

    make: makes the policy of one dispatcher.
    specs: the pools as the policy gets them, named "0", "1", ...
    infer: whether the router reconstructs service times, for policies that learn from them.
    on_change: called at each change with each policy, for an oracle.
    """
    return _Run(scenario, make, specs, requests, seed, infer, on_change).run()


class _Run:
    """One run: the pools, the Routers, and the requests on their way."""

    def __init__(
        self,
        scenario: ServiceScenario,
        make: PolicyMaker,
        specs: Sequence[PoolSpec],
        requests: int,
        seed: int,
        infer: bool,
        on_change: ChangeListener | None,
    ) -> None:
        self.scenario, self.requests, self.seed, self.on_change = scenario, requests, seed, on_change
        self.pools = [pool.sharing() for pool in scenario.pools]
        self.delays = [pool.network / 2 for pool in scenario.pools]
        self.seconds = [pool.seconds for pool in scenario.pools]
        self.policies = [make(scenario, stream(seed, f"policy/{k}")) for k in range(scenario.dispatchers)]
        self.routers = [make_router(policy, specs, infer=infer) for policy in self.policies]
        self.events = EventQueue()
        self.versions = [0] * len(self.pools)  # how often the next end of each pool was computed
        self.tickets: dict[int, tuple[Router, Ticket]] = {}  # by request
        self.times = np.empty(requests)

    def run(self) -> NDArray[np.float64]:
        scenario, seed, events = self.scenario, self.seed, self.events
        next_arrival = processes.parse(scenario.process, scenario.rate, stream(seed, "arrivals")).next_arrival
        law = parse_law(scenario.law, 1.0, stream(seed, "work"))
        dispatchers = stream(seed, "dispatchers")
        changes = list(scenario.changes)
        now = 0.0
        for j in range(self.requests):
            arrival = next_arrival(now)
            assert arrival is not None, "the processes of loadgen.attack.arrivals do not end"
            now = arrival
            events.run_until(now)
            while changes and changes[0].at <= j:
                self._change(changes.pop(0), now)
            # A single dispatcher needs no draw.
            router = self.routers[int(dispatchers.random() * len(self.routers)) if len(self.routers) > 1 else 0]
            ticket = router.route(Job(j), now)
            self.tickets[j] = router, ticket
            i, work = int(ticket.pool.id), law.sample(now)
            self._after(self.delays[i], now, self._join, i, j, work)
        events.run_all()
        return self.times

    def _after(self, delay: float, now: float, action: Callable[..., None], *arguments: object) -> None:
        """Call `action(instant, *arguments)` after a delay; at once if there is none, before any other event."""
        if delay:
            self.events.schedule(now + delay, action, now + delay, *arguments)
        else:
            action(now, *arguments)

    def _join(self, now: float, i: int, request: int, work: float) -> None:
        self.pools[i].join(now, request, work * self.seconds[i])
        self._schedule_end(i)

    def _schedule_end(self, i: int) -> None:
        """Schedule the next end of pool i, which has changed. The end scheduled before becomes void."""
        self.versions[i] += 1
        at = self.pools[i].next_end()
        if at < math.inf:
            self.events.schedule(at, self._end, at, i, self.versions[i])

    def _end(self, now: float, i: int, version: int) -> None:
        if version != self.versions[i]:
            return  # the pool has changed since this end was scheduled
        request = self.pools[i].pop(now)
        self._schedule_end(i)
        self._after(self.delays[i], now, self._respond, request)

    def _respond(self, now: float, request: int) -> None:
        router, ticket = self.tickets.pop(request)
        self.times[request] = now - ticket.routed_at
        router.complete(ticket, now, Outcome.OK)

    def _change(self, change: ServiceChange, now: float) -> None:
        # Curves of `fcfs` have speed 1 and a limit (see `ServicePool.sharing`); the shape belongs to the others.
        described, pool = self.scenario.pools[change.pool], self.pools[change.pool]
        shape = Servers(math.inf) if described.in_order else described.curve.shape
        pool.change(now, lambda n: change.speed * shape(n))
        if change.servers is not None:
            pool.change_limit(now, change.servers)
        self._schedule_end(change.pool)
        if self.on_change is not None:
            for policy in self.policies:
                self.on_change(policy, change)
