"""One run in virtual time. The same Router and policy objects as the live service; only the driver differs.

Streams (see `dispatcher.core.streams`): gaps from `arrivals`, exponential; the j-th job to start at pool i takes the
j-th draw of `work/i`; pools are FCFS, so jobs start in the order in which they join and may draw on joining. A finish
at the same instant as an arrival comes first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dispatcher import registry
from dispatcher.core.interfaces import Estimate, Learner, Recorder
from dispatcher.core.regret import RegretMeter
from dispatcher.core.router import Router
from dispatcher.core.streams import stream
from dispatcher.core.types import Added, Job, Outcome, PoolSpec, Ticket
from dispatcher.errors import ConfigError
from dispatcher.recorders.memory import Row, Rows
from workers.distributions import parse
from workers.station import Station

CURVE_POINTS = 10


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated.

    lam: arrivals per second. mu, guess: services per second and server, by pool. servers: c_i by pool. arrivals: how
    many requests. warmup: arrivals left out of the queue averages, not of the regret. service: a law of `workers`.
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

    def __post_init__(self) -> None:
        if not self.lam > 0:
            raise ConfigError(f"lam must be positive, not {self.lam}")
        if self.arrivals < 1 or not 0 <= self.warmup < self.arrivals:
            raise ConfigError(f"arrivals must be at least 1 and more than warmup, not {self.arrivals}, {self.warmup}")
        for name, values in (("guess", self.guess), ("servers", self.servers or self.mu)):
            if len(values) != len(self.mu):
                raise ConfigError(f"{name} has {len(values)} values for {len(self.mu)} pools; give one a pool")

        try:
            parse(self.service, self.mu[0], Random(0))
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def pools(self) -> list[PoolSpec]:
        servers = self.servers or (1,) * len(self.mu)
        return [
            PoolSpec(str(i + 1), servers=c, guess=guess, true_rate=mu)
            for i, (mu, guess, c) in enumerate(zip(self.mu, self.guess, servers, strict=True))
        ]


@dataclass(frozen=True, slots=True)
class Result:
    """One replication. regret_curve: cumulative regret after each tenth of the arrivals. shares: of requests, by pool.
    mean_in_system: time average from the end of the warm-up; mean_response: over the requests after it, seconds."""

    seed: int
    regret: int
    regret_curve: tuple[int, ...]
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

    def __init__(self, policy: Learner) -> None:
        self._policy = policy
        self._last = 0
        self.count = 0

    def look(self) -> None:
        episode = self._policy.episode
        if episode.explored and episode.number != self._last:
            self._last = episode.number
            self.count += 1


def simulate(
    scenario: Scenario, seed: int, keep_rows: bool = False, tick: Callable[[int], None] | None = None
) -> Result:
    """Run one replication; deterministic in (scenario, seed). tick: told the arrivals so far at each tenth."""
    policy = registry.create(scenario.policy, stream(seed, "policy"), dict(scenario.options))
    if not isinstance(policy, Learner):
        raise ConfigError(f"policy {scenario.policy!r} does not tell its episode and rates; derive it from BasePolicy")
    meter = RegretMeter(policy)
    rows = Rows(policy, meter)
    router = Router(policy, [_Strict(), meter, rows] if keep_rows else [_Strict(), meter])
    specs = scenario.pools()
    for spec in specs:
        router.apply(Added(spec), 0.0)
    laws = {spec.id: parse(scenario.service, mu, stream(seed, f"work/{i}"))
            for i, (spec, mu) in enumerate(zip(specs, scenario.mu, strict=True))}  # fmt: skip
    stations = {spec.id: Station(spec.servers) for spec in specs}
    joined = dict.fromkeys(stations, 0)
    explored = _Explored(policy)
    curve: list[int] = []
    marks = {round(scenario.arrivals * k / CURVE_POINTS) for k in range(1, CURVE_POINTS + 1)}

    gap = stream(seed, "arrivals").expovariate
    heap: list[tuple[float, int, float, Ticket]] = []
    push, pop = heapq.heappush, heapq.heappop
    route, settle, ok = router.route, router.settle, Outcome.OK
    now, began_at, sojourns = 0.0, 0.0, 0.0
    for n in range(1, scenario.arrivals + 1):
        now += gap(scenario.lam)
        while heap and heap[0][0] <= now:
            finish, _, work, ticket = pop(heap)
            settle(ticket, finish, ok, work)
        ticket = route(Job(n), now)
        pool = ticket.pool.id
        work = laws[pool].sample(now)
        finish = stations[pool].admit(now, work)
        push(heap, (finish, n, work, ticket))
        joined[pool] += 1
        explored.look()
        if n > scenario.warmup:
            sojourns += finish - now
        else:
            began_at = now
        if n in marks:
            curve.extend([meter.total] * (CURVE_POINTS * n // scenario.arrivals - len(curve)))
            if tick:
                tick(n)
    arrived_until = now
    while heap:
        finish, _, work, ticket = pop(heap)
        settle(ticket, finish, ok, work)
    measured = scenario.arrivals - scenario.warmup
    estimates: Mapping[str, Estimate] = policy.estimates()
    return Result(
        seed=seed,
        regret=meter.total,
        regret_curve=tuple(curve),
        mean_in_system=sojourns / max(arrived_until - began_at, 1e-300),
        mean_response=sojourns / measured,
        shares=tuple(count / scenario.arrivals for count in joined.values()),
        estimates=tuple(estimates[spec.id].rate for spec in specs),
        episodes=policy.episode.number,
        explored_episodes=explored.count,
        rows=tuple(rows.rows),
    )
