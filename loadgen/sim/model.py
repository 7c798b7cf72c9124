"""One run in virtual time. The same Router and policy objects as the live service; only the driver differs.

Streams (see `dispatcher.core.rng`): arrivals from `arrivals`, Poisson unless told otherwise; the j-th job to start
at pool i takes the j-th draw of `work/i`; pools are FCFS, so jobs start in the order in which they join and may draw
on joining. A finish at the same instant as an arrival comes first.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dispatcher import registry
from dispatcher.core.estimate import Estimate
from dispatcher.core.policy import BasePolicy, Recorder
from dispatcher.core.regret import Cause, RegretMeter
from dispatcher.core.rng import stream
from dispatcher.core.router import Router
from dispatcher.core.types import Added, Job, Outcome, PoolSpec, Ticket
from dispatcher.errors import ConfigError
from dispatcher.telemetry.decisions import Row, Rows
from loadgen.attack import arrivals as processes
from workers.distributions import ServiceTime, parse
from workers.profiles import Profiled, parse_profile
from workers.station import Station


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated.

    lam: arrivals per second. mu, guess: services per second and server, by pool. servers: c_i by pool. arrivals: how
    many requests. warmup: arrivals left out of the queue averages, not of the regret. service: a law of
    `workers.distributions`; profiles: by pool, how its rate changes (`workers.profiles`), empty where it does not.
    process: a law of `loadgen.attack.arrivals`. points: how many the regret's curve has; log: they are evenly spaced in
    the logarithm of the arrivals, from 10 on, and there is one at half of them.
    """

    policy: str
    lam: float
    mu: tuple[float, ...]
    guess: tuple[float, ...]
    arrivals: int
    servers: tuple[int, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    warmup: int = 0
    service: str = "exp"
    profiles: tuple[str, ...] = ()
    process: str = "poisson"
    points: int = 10
    log: bool = False

    def __post_init__(self) -> None:
        if not self.mu:
            raise ConfigError("there must be at least one pool: mu is empty")
        if not 0 < self.lam < math.inf:
            raise ConfigError(f"lam must be positive, not {self.lam}")
        if self.arrivals < 1 or not 0 <= self.warmup < self.arrivals:
            raise ConfigError(f"arrivals must be at least 1 and more than warmup, not {self.arrivals}, {self.warmup}")
        every = {"guess": self.guess, "servers": self.servers or self.mu, "profiles": self.profiles or self.mu}
        for name, values in every.items():
            if len(values) != len(self.mu):
                raise ConfigError(f"{name} has {len(values)} values for {len(self.mu)} pools; give one a pool")
        self.pools()
        if self.points < 2:
            raise ConfigError(f"points must be at least 2, not {self.points}")
        try:
            processes.parse(self.process, self.lam, Random(0))
            for i in range(len(self.mu)):
                self.law(i, Random(0))
        except ValueError as error:
            raise ConfigError(str(error)) from None

    @property
    def policy_options(self) -> dict[str, Any]:
        """Those of the policy's paper, unless `options` says otherwise."""
        return registry.paper_options(self.policy) | dict(self.options)

    @property
    def marks(self) -> tuple[int, ...]:
        """After how many arrivals the points of the regret's curve are taken."""
        n, points = self.arrivals, self.points
        if not self.log:
            return tuple(-(-n * k // points) for k in range(1, points + 1))
        return tuple(sorted({-(-n // 2), n, *(round(10 * (n / 10) ** (k / points)) for k in range(points) if n > 10)}))

    def factor(self, pool: str, now: float) -> float:
        """On the rate of a pool at an instant."""
        profile = self.profiles[int(pool) - 1] if self.profiles else ""
        return parse_profile(profile).factor_at(now) if profile else 1.0

    def law(self, i: int, rng: Random) -> ServiceTime:
        """The law of service times of pool i."""
        law = parse(self.service, self.mu[i], rng)
        profile = self.profiles[i] if self.profiles else ""
        return Profiled(law, parse_profile(profile)) if profile else law

    def pools(self) -> list[PoolSpec]:
        servers = self.servers or (1,) * len(self.mu)
        return [
            PoolSpec(str(i + 1), servers=c, guess=guess, true_rate=mu)
            for i, (mu, guess, c) in enumerate(zip(self.mu, self.guess, servers, strict=True))
        ]


@dataclass(frozen=True, slots=True)
class Result:
    """One replication. regret_curve, joined_curve: regret, and requests by pool, up to each of the scenario's marks.
    shares: of requests, by pool. mean_response: over the requests after the warm-up, seconds. mean_in_system: by
    Little's law, their response times over the time in which they came: the time average of a stable system."""

    seed: int
    regret: int
    regret_curve: tuple[int, ...]
    joined_curve: tuple[tuple[int, ...], ...]
    by_cause: dict[Cause, int]
    mean_in_system: float
    mean_response: float
    shares: tuple[float, ...]
    estimates: tuple[float, ...]
    episodes: int
    explored_episodes: int
    rows: tuple[Row, ...] = ()


class _Strict(Recorder):
    """A recorder that lets no fault of the policy pass: a simulation of a broken policy is no result."""

    def faulted(self, error: Exception, now: float) -> None:
        raise error


class _Explored:
    """Counts explored episodes without a hook in the policy: looks at each decision's episode."""

    def __init__(self, policy: BasePolicy) -> None:
        self._policy = policy
        self._last = 0
        self.count = 0

    def look(self) -> None:
        episode = self._policy.episode
        if episode.explored and episode.number != self._last:
            self._last = episode.number
            self.count += 1


def simulate(scenario: Scenario, seed: int, keep_rows: bool = False) -> Result:
    """Run one replication; deterministic in (scenario, seed)."""
    policy = registry.create(scenario.policy, stream(seed, "policy"), scenario.policy_options)
    meter = RegretMeter(policy, scenario.factor if any(scenario.profiles) else None)
    rows = Rows(policy, meter)
    router = Router(policy, [_Strict(), meter, rows] if keep_rows else [_Strict(), meter])
    specs = scenario.pools()
    for spec in specs:
        router.apply(Added(spec), 0.0)
    laws = {spec.id: scenario.law(i, stream(seed, f"work/{i}")) for i, spec in enumerate(specs)}
    stations = {spec.id: Station(spec.servers) for spec in specs}
    joined = dict.fromkeys(stations, 0)
    explored = _Explored(policy)
    curve: list[int] = []
    joined_curve: list[tuple[int, ...]] = []
    marks = list(reversed(scenario.marks))
    next_arrival = processes.parse(scenario.process, scenario.lam, stream(seed, "arrivals")).next_arrival
    heap: list[tuple[float, int, float, Ticket]] = []
    push, pop = heapq.heappush, heapq.heappop
    route, complete, ok = router.route, router.complete, Outcome.OK
    now, began_at, sojourns = 0.0, 0.0, 0.0
    for n in range(1, scenario.arrivals + 1):
        arrival = next_arrival(now)
        assert arrival is not None, "the processes of loadgen.attack.arrivals do not end"
        now = arrival
        while heap and heap[0][0] <= now:
            finish, _, work, ticket = pop(heap)
            complete(ticket, finish, ok, work)
        ticket = route(Job(n), now)
        pool = ticket.pool.id
        work = laws[pool].sample(stations[pool].starts_at(now))
        finish = stations[pool].admit(now, work)
        push(heap, (finish, n, work, ticket))
        joined[pool] += 1
        explored.look()
        if n > scenario.warmup:
            sojourns += finish - now
        else:
            began_at = now
        while marks and n == marks[-1]:
            curve.append(meter.total)
            joined_curve.append(tuple(joined.values()))
            marks.pop()
    arrived_until = now
    while heap:
        finish, _, work, ticket = pop(heap)
        complete(ticket, finish, ok, work)
    measured = scenario.arrivals - scenario.warmup
    estimates: Mapping[str, Estimate] = policy.estimates()
    return Result(
        seed=seed,
        regret=meter.total,
        regret_curve=tuple(curve),
        joined_curve=tuple(joined_curve),
        by_cause=dict(meter.by_cause),
        mean_in_system=sojourns / max(arrived_until - began_at, 1e-300),
        mean_response=sojourns / measured,
        shares=tuple(count / scenario.arrivals for count in joined.values()),
        estimates=tuple(estimates[spec.id].rate for spec in specs),
        episodes=policy.episode.number,
        explored_episodes=explored.count,
        rows=tuple(rows.rows),
    )
