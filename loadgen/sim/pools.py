"""Pools as real services are, in virtual time: shared, unlimited, limited, soft, behind a network, and changing.

A pool is a throughput curve (`workers.curves`) that its requests share (`workers.sharing`). The policies are the live
ones behind the live Router; one router per dispatcher. Nothing is told to them but counts and response times, as in
front of a real service.

Streams: arrivals from `arrivals`, the work of request j is the j-th draw of `work`, its dispatcher the j-th of
`dispatchers`. So all policies meet the same arrivals and the same work (common random numbers). An end at the instant
of an arrival comes first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.policy import Policy
from dispatcher.core.rng import stream
from dispatcher.core.router import Router
from dispatcher.core.types import MAX_SERVERS, Added, Job, Outcome, PoolSpec, Ticket
from loadgen.attack import arrivals as processes
from workers.curves import Curve, Servers, parse_curve
from workers.distributions import parse as parse_law
from workers.sharing import Sharing


@dataclass(frozen=True, slots=True)
class ServicePool:
    """text: a curve as `workers.curves.parse_curve` reads it; `fcfs` serves in order, the others share.
    network: seconds that a request and its response spend on the way, half of it each."""

    text: str
    network: float = 0.0

    @property
    def curve(self) -> Curve:
        return parse_curve(self.text)

    @property
    def seconds(self) -> float:
        """The mean time of a request that is alone, without the network."""
        return 1 / self.curve.alone

    @property
    def capacity(self) -> float:
        """c: the largest throughput in units of the throughput of one request; infinite without a limit."""
        return self.curve.capacity * self.seconds

    @property
    def servers(self) -> int:
        """The capacity as a configured number of servers."""
        return max(1, round(min(self.capacity, MAX_SERVERS)))

    def sharing(self) -> Sharing[int]:
        """The pool, empty."""
        curve = self.curve
        limit = int(curve.limit) if math.isfinite(curve.limit) else None
        if self.text.startswith("fcfs:"):
            return Sharing(math.inf, limit=self.servers)
        return Sharing(limit=limit, speed=curve.shape)


@dataclass(frozen=True, slots=True)
class ServiceChange:
    """From request `at` on, a pool works at `speed` times its first speed, and with other `servers` if given."""

    at: int
    pool: int
    speed: float = 1.0
    servers: int | None = None


@dataclass(frozen=True, slots=True)
class ServiceScene:
    """rate: requests per second. law: of the work of a request, in seconds of service (`workers.distributions`).
    process: of the arrivals (`loadgen.attack.arrivals`). changes: in the order of `at`."""

    pools: tuple[ServicePool, ...]
    rate: float
    law: str = "exp"
    process: str = "poisson"
    dispatchers: int = 1
    changes: tuple[ServiceChange, ...] = ()


PolicyMaker = Callable[[ServiceScene, Random], Policy]
Told = Callable[[Policy, ServiceChange], None]


def simulate(
    scene: ServiceScene,
    make: PolicyMaker,
    specs: Sequence[PoolSpec],
    requests: int,
    seed: int,
    infer: bool = False,
    told: Told | None = None,
) -> NDArray[np.float64]:
    """The response time of each request, seconds, in the order of arrival; deterministic in its arguments.

    make: the policy of one dispatcher. specs: the pools as the policy is told of them, named "0", "1", …. infer: the
    router rebuilds service times, for policies that learn from them. told: called at each change, for an oracle.
    """
    return _Run(scene, make, specs, requests, seed, infer, told).run()


class _Run:
    """One run. Events are (instant, number, action, request); a pool's next end is an event with the pool's version."""

    def __init__(
        self,
        scene: ServiceScene,
        make: PolicyMaker,
        specs: Sequence[PoolSpec],
        requests: int,
        seed: int,
        infer: bool,
        told: Told | None,
    ) -> None:
        self.scene, self.requests, self.seed, self.told = scene, requests, seed, told
        self.pools = [pool.sharing() for pool in scene.pools]
        self.delays = [pool.network / 2 for pool in scene.pools]
        self.seconds = [pool.seconds for pool in scene.pools]
        self.policies = [make(scene, stream(seed, f"policy/{k}")) for k in range(scene.dispatchers)]
        self.routers = [Router(policy, infer=infer) for policy in self.policies]
        for router in self.routers:
            for spec in specs:
                router.apply(Added(spec), 0.0)
        self.versions = [0] * len(self.pools)
        self.events: list[tuple[float, int, int, int]] = []  # instant, number, pool (ends) or −1 (responses), request
        self.numbers = 0
        self.tickets: dict[int, tuple[Ticket, Router, int]] = {}  # by request: with its pool
        self.work: dict[int, float] = {}  # of requests on their way to a pool
        self.times = np.empty(requests)
        self.arrived = np.empty(requests)

    def run(self) -> NDArray[np.float64]:
        scene, seed = self.scene, self.seed
        next_arrival = processes.parse(scene.process, scene.rate, stream(seed, "arrivals")).next_arrival
        law = parse_law(scene.law, 1.0, stream(seed, "work"))
        which = stream(seed, "dispatchers")
        changes = list(scene.changes)
        now = 0.0
        for j in range(self.requests):
            arrival = next_arrival(now)
            assert arrival is not None, "the processes of loadgen.attack.arrivals do not end"
            now = arrival
            self._until(now)
            while changes and changes[0].at <= j:
                self._change(changes.pop(0), now)
            router = self.routers[int(which.random() * len(self.routers)) if len(self.routers) > 1 else 0]
            ticket = router.route(Job(j), now)
            i = int(ticket.pool.id)
            self.tickets[j] = ticket, router, i
            self.arrived[j] = now
            self.work[j] = law.sample(now)
            if self.delays[i]:
                self._push(now + self.delays[i], ~i, j)
            else:
                self._join(now, i, j)
        self._until(math.inf)
        return self.times

    def _push(self, at: float, kind: int, request: int) -> None:
        self.numbers += 1
        heapq.heappush(self.events, (at, self.numbers, kind, request))

    def _until(self, now: float) -> None:
        """All events up to and at this instant."""
        events = self.events
        while events and events[0][0] <= now:
            at, _, kind, request = heapq.heappop(events)
            if kind >= len(self.pools):
                self._respond(at, request)
            elif kind < 0:
                self._join(at, ~kind, request)
            elif request == self.versions[kind]:
                self._end(at, kind)

    def _join(self, now: float, i: int, request: int) -> None:
        self.pools[i].join(now, request, self.work.pop(request) * self.seconds[i])
        self._schedule(i)

    def _end(self, now: float, i: int) -> None:
        request = self.pools[i].pop(now)
        self._schedule(i)
        if self.delays[i]:
            self._push(now + self.delays[i], len(self.pools), request)
        else:
            self._respond(now, request)

    def _schedule(self, i: int) -> None:
        """The pool has changed: its next end is another one."""
        self.versions[i] += 1
        at = self.pools[i].next_end()
        if at < math.inf:
            self._push(at, i, self.versions[i])

    def _respond(self, now: float, request: int) -> None:
        ticket, router, _ = self.tickets.pop(request)
        self.times[request] = now - self.arrived[request]
        router.complete(ticket, now, Outcome.OK)

    def _change(self, change: ServiceChange, now: float) -> None:
        curve, pool = self.scene.pools[change.pool].curve, self.pools[change.pool]
        shape = Servers(math.inf) if self.scene.pools[change.pool].text.startswith("fcfs:") else curve.shape
        pool.change(now, lambda n: change.speed * shape(n))
        if change.servers is not None:
            pool.change_limit(now, change.servers)
        self._schedule(change.pool)
        if self.told is not None:
            for policy in self.policies:
                self.told(policy, change)
