"""Simulates one run in virtual time, with the Router and the policy objects of the live service.

Random numbers come from named streams (see `dispatcher.core.rng`). Arrivals are drawn from `arrivals`; by default they
are a Poisson process. The j-th job to start at pool i takes the j-th draw of `work/i`. Pools serve first come, first
served, so jobs start in the order in which they join, and each may draw its work when it joins. A job that ends at the
instant of an arrival ends first.

The loop keeps its own heap of departures, not an `engine.EventQueue`: with that it was 4 to 7 % slower.
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
from dispatcher.core.policy import BasePolicy
from dispatcher.core.regret import Cause, RegretMeter
from dispatcher.core.rng import stream
from dispatcher.core.types import Job, Outcome, PoolSpec, Ticket
from dispatcher.errors import ConfigError
from dispatcher.telemetry.decisions import DecisionLog, DecisionRecord
from loadgen.attack import arrivals as processes
from loadgen.sim.engine import make_router
from workers.distributions import ServiceTime, parse
from workers.profiles import Profiled, parse_profile
from workers.station import Station

MIN_SECONDS = 1e-300  # replaces a divisor of 0, where all arrivals come at one instant


@dataclass(frozen=True, slots=True)
class Scenario:
    """Describes one run. Raises ConfigError if it cannot be simulated.

    lam: arrivals per second.
    mu: the true rates, in services per second and server, by pool.
    guess: the rates that the policy assumes at first, in the same unit, by pool.
    arrivals: the number of requests.
    servers: c_i by pool; empty for one server a pool.
    options: of the policy; they replace those of the policy's paper.
    warmup: the number of arrivals that the queue averages leave out. The regret counts them.
    service: the law of service times, as `workers.distributions` reads it.
    profiles: how the rate of each pool changes, as `workers.profiles` reads it; empty where it does not change.
    process: the arrival process, as `loadgen.attack.arrivals` reads it.
    points: the number of points of the regret's curve.
    log: space these points evenly in the logarithm of the arrivals, from 10 on, and add one at half of the arrivals.
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
        by_pool = {"guess": self.guess, "servers": self.servers or self.mu, "profiles": self.profiles or self.mu}
        for name, values in by_pool.items():
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
        """The options of the policy's paper, replaced by `options` where it has them."""
        return registry.paper_options(self.policy) | dict(self.options)

    @property
    def marks(self) -> tuple[int, ...]:
        """The numbers of arrivals after which the points of the regret's curve are taken."""
        n, points = self.arrivals, self.points
        if not self.log:
            return tuple(-(-n * k // points) for k in range(1, points + 1))  # rounded up, so that the last mark is n
        return tuple(sorted({-(-n // 2), n, *(round(10 * (n / 10) ** (k / points)) for k in range(points) if n > 10)}))

    def factor(self, pool: str, now: float) -> float:
        """Return the factor on the rate of a pool at an instant."""
        profile = self.profiles[int(pool) - 1] if self.profiles else ""
        return parse_profile(profile).factor_at(now) if profile else 1.0

    def law(self, i: int, rng: Random) -> ServiceTime:
        """Make the law of service times of pool i, which draws from `rng`."""
        law = parse(self.service, self.mu[i], rng)
        profile = self.profiles[i] if self.profiles else ""
        return Profiled(law, parse_profile(profile)) if profile else law

    def pools(self) -> list[PoolSpec]:
        """Return the pools as the Router gets them, named "1", "2", ..."""
        servers = self.servers or (1,) * len(self.mu)
        return [
            PoolSpec(str(i + 1), servers=c, guess=guess, true_rate=mu)
            for i, (mu, guess, c) in enumerate(zip(self.mu, self.guess, servers, strict=True))
        ]


@dataclass(frozen=True, slots=True)
class Result:
    """What one replication yields.

    regret_curve, joined_curve: the regret, and the requests by pool, up to each of the scenario's marks.
    by_cause: the regret, by cause.
    mean_in_system: the mean number in the system by Little's law. It is the sum of the response times after the
        warm-up, divided by the time in which these requests came. It is the time average of a stable system.
    mean_response: over the requests after the warm-up, in seconds.
    shares: of requests, by pool.
    estimates: the estimated rates at the end, by pool.
    rows: one for each decision, if they were asked for.
    """

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
    rows: tuple[DecisionRecord, ...] = ()


class _ExploredEpisodes:
    """Counts the episodes that explored, by a look at the policy's episode after each decision."""

    def __init__(self, policy: BasePolicy) -> None:
        self._policy = policy
        self._last_number = 0
        self.count = 0

    def look(self) -> None:
        """Count the present episode if it explores and has not been counted."""
        episode = self._policy.episode
        if episode.explored and episode.number != self._last_number:
            self._last_number = episode.number
            self.count += 1


def simulate(scenario: Scenario, seed: int, keep_rows: bool = False) -> Result:
    """Run one replication. The result is a function of the scenario and the seed.

    keep_rows: whether the result has a row for each decision.

    Raises PolicyError if the policy fails.
    """
    policy = registry.create(scenario.policy, stream(seed, "policy"), scenario.policy_options)
    meter = RegretMeter(policy, scenario.factor if any(scenario.profiles) else None)
    rows = DecisionLog(policy, meter)
    specs = scenario.pools()
    router = make_router(policy, specs, [meter, rows] if keep_rows else [meter])
    laws = {spec.id: scenario.law(i, stream(seed, f"work/{i}")) for i, spec in enumerate(specs)}
    stations = {spec.id: Station(spec.servers) for spec in specs}
    joined = dict.fromkeys(stations, 0)
    explored = _ExploredEpisodes(policy)
    curve: list[int] = []
    joined_curve: list[tuple[int, ...]] = []
    marks = list(reversed(scenario.marks))  # the next mark is the last element
    next_arrival = processes.parse(scenario.process, scenario.lam, stream(seed, "arrivals")).next_arrival
    departures: list[tuple[float, int, float, Ticket]] = []  # a heap: instant, number, work, ticket
    push, pop = heapq.heappush, heapq.heappop
    route, complete, ok = router.route, router.complete, Outcome.OK
    now, warm_at, sojourns = 0.0, 0.0, 0.0  # warm_at: the last arrival of the warm-up; sojourns: sum of response times
    for n in range(1, scenario.arrivals + 1):
        arrival = next_arrival(now)
        assert arrival is not None, "the processes of loadgen.attack.arrivals do not end"
        now = arrival
        while departures and departures[0][0] <= now:
            finish, _, work, ticket = pop(departures)
            complete(ticket, finish, ok, work)
        ticket = route(Job(n), now)
        pool = ticket.pool.id
        work = laws[pool].sample(stations[pool].starts_at(now))
        finish = stations[pool].admit(now, work)
        push(departures, (finish, n, work, ticket))
        joined[pool] += 1
        explored.look()
        if n > scenario.warmup:
            sojourns += finish - now  # the response time is known already, because pools serve in order
        else:
            warm_at = now
        while marks and n == marks[-1]:  # several marks are equal if there are fewer arrivals than points
            curve.append(meter.total)
            joined_curve.append(tuple(joined.values()))
            marks.pop()
    last_arrival = now
    # The policy learns from the last requests as well, so that the estimates rest on all of them.
    while departures:
        finish, _, work, ticket = pop(departures)
        complete(ticket, finish, ok, work)
    measured = scenario.arrivals - scenario.warmup
    estimates: Mapping[str, Estimate] = policy.estimates()
    return Result(
        seed=seed,
        regret=meter.total,
        regret_curve=tuple(curve),
        joined_curve=tuple(joined_curve),
        by_cause=dict(meter.by_cause),
        mean_in_system=sojourns / max(last_arrival - warm_at, MIN_SECONDS),
        mean_response=sojourns / measured,
        shares=tuple(count / scenario.arrivals for count in joined.values()),
        estimates=tuple(estimates[spec.id].rate for spec in specs),
        episodes=policy.episode.number,
        explored_episodes=explored.count,
        rows=tuple(rows.records),
    )
