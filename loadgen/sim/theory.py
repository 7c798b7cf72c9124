"""Exact values for exponential service and Poisson arrivals, by solving truncated Markov chains. Needs scipy.

A state is the vector of requests in flight, each from 0 to `side` − 1. Pool i completes r_i(q_i) requests per second,
where r_i is any throughput curve. A pool of c servers has r(q) = μ min(q, c). An arrival to a pool at the edge is lost.
Every result carries the probability of that, which shows how much the truncation may matter.

`chain`: the stationary law under a fixed rule (sparse linear solve). `optimum`: the rule of least mean number in
system, by relative value iteration on the uniformised chain (Puterman, *Markov Decision Processes*, section 8.5).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.argmin import TOLERANCE
from dispatcher.errors import ConfigError
from workers.curves import Curve, Servers

Floats = NDArray[np.float64]
Routing = NDArray[np.intp]  # the pool that an arrival joins, by state; shape (side,) * n
MAX_STATES = {1: 5000, 2: 250, 3: 30}  # of one pool, so that the sparse solver has memory enough; by number of pools
LOG_TAIL = -16.0  # the logarithm of the probability that the truncation may cut off
EXTRA_STATES = 12  # of one pool, beyond those that LOG_TAIL asks for
MAX_LOAD = 0.75  # of `policies.curve`
TIES = ("first", "last", "fastest", "slowest")  # fastest: the pool of the greatest rate for a request that is alone


@dataclass(frozen=True, slots=True)
class System:
    """Describes Poisson arrivals to one, two or three pools. Raises ConfigError if exact values cannot be computed.

    lam: arrivals per second.
    mu: services per second and server, by pool.
    servers: c_i by pool; empty for one server a pool.
    side: the states of one pool; 0 takes as many as the load asks for.
    curves: the throughputs by pool, instead of mu and servers. mu is then the rate of a request that is alone.
    """

    lam: float
    mu: tuple[float, ...] = ()
    servers: tuple[int, ...] = ()
    side: int = 0
    curves: tuple[Curve, ...] = ()

    def __post_init__(self) -> None:
        # The dataclass is frozen, so that `optimum` can cache its results. `object` can still set its fields.
        if self.curves:
            object.__setattr__(self, "mu", tuple(curve.alone for curve in self.curves))
        if not (self.lam > 0 and all(rate > 0 for rate in self.mu)):
            raise ConfigError("lam and every mu must be positive")
        if not self.curves:
            object.__setattr__(self, "curves", _server_curves(self.mu, self.servers))
        if self.rho >= 1:
            raise ConfigError(f"no steady state: lam = {self.lam:g} is not below the sum of all rates of crowded pools")
        most = MAX_STATES.get(len(self.curves), 0)
        if not most:  # for more pools the state space is too large
            raise ConfigError(f"exact values are for one to three pools, not {len(self.curves)}; simulate instead")
        knee = int(max((curve.knee for curve in self.curves if math.isfinite(curve.knee)), default=1))
        if not self.side:
            object.__setattr__(self, "side", min(most, _states_needed(self.lam, self.rho, self.curves)))
        if knee + 2 > most:
            raise ConfigError(
                f"exact values of {len(self.mu)} pools are for at most {most - 2} servers or requests in service, "
                f"not {knee}"
            )
        if not knee + 2 <= self.side <= most:
            raise ConfigError(
                f"states of a pool: between {knee + 2} and {most} for {len(self.mu)} pools, not {self.side} (--side)"
            )

    @property
    def rho(self) -> float:
        """The load: λ over what crowded pools complete together. A steady state needs a load below 1."""
        completed = sum(curve.crowded for curve in self.curves)
        return self.lam / completed if completed else math.inf  # pools that break down under load have no capacity

    @property
    def usual(self) -> tuple[int, ...]:
        """A state that is not rare. SED places requests one by one until the pools complete as many as arrive."""
        return next(
            tuple(placed) for placed, rate in _spread(self.curves) if rate >= self.lam or max(placed) == self.side - 1
        )

    def q(self, i: int) -> NDArray[np.int64]:
        """Return q_i of every state, broadcastable to the shape of the state space."""
        shape = [1] * len(self.mu)
        shape[i] = self.side
        return np.arange(self.side).reshape(shape)

    def service(self, i: int) -> Floats:
        """Return the rate at which pool i completes requests, by state."""
        return self._rates(i)[self.q(i)]

    def work_ahead(self, i: int) -> Floats:
        """Return the expected delay of a request that joins pool i, in services of a request that is alone, by state.

        It is (q + 1)/r(q + 1) times r(1). For c servers it equals `core.expected_delay.work_ahead`.
        """
        after = self.q(i) + 1
        return after * self.mu[i] / self._rates(i)[after]

    def _rates(self, i: int) -> Floats:
        """Return r_i(n) for n from 0 to `side`."""
        return np.array([self.curves[i].rate(n) for n in range(self.side + 1)])


def _states_needed(lam: float, rho: float, curves: Sequence[Curve]) -> int:
    """Return the states a pool beyond which the number in system has a tail of about exp(LOG_TAIL).

    Where all rates end up constant, the tail is about ρ^n. Otherwise it is that of the birth-and-death chain in which
    the requests are always spread as SED would have placed them one by one.
    """
    knees = [curve.knee for curve in curves]
    if all(map(math.isfinite, knees)):
        return int(max(knees)) + EXTRA_STATES + int(LOG_TAIL / math.log(rho))
    # The law of a birth-and-death chain obeys π(k) r(k) = λ π(k − 1), which gives the recursion below.
    below = 1.0  # the probability of at most as many as are placed, divided by that of exactly so many
    for placed, rate in _spread(curves):
        below = 1 + below * rate / lam
        if below > math.exp(-LOG_TAIL) or max(placed) >= MAX_STATES[1]:
            break
    return max(placed) + EXTRA_STATES


def _spread(curves: Sequence[Curve]) -> Iterator[tuple[list[int], float]]:
    """Place requests one by one as SED would. Yields how many each pool has, and the completions per second."""
    placed = [0] * len(curves)
    while True:
        delays = [(n + 1) / curve.rate(n + 1) for n, curve in zip(placed, curves, strict=True)]
        placed[delays.index(min(delays))] += 1
        yield placed, sum(curve.rate(n) for n, curve in zip(placed, curves, strict=True))


def _server_curves(mu: Sequence[float], servers: Sequence[int]) -> tuple[Curve, ...]:
    """Return the curves of pools of c servers each."""
    servers = servers or (1,) * len(mu)
    if len(servers) != len(mu):
        raise ConfigError(f"servers has {len(servers)} values for {len(mu)} pools; give one a pool")
    return tuple(Curve(Servers(c), rate) for rate, c in zip(mu, servers, strict=True))


def sed(system: System, rates: Sequence[float] | None = None, exponent: float = 1.0, ties: str = "first") -> Routing:
    """Return the routing to the least work_ahead/rate^exponent.

    rates: those that the rule assumes, by default the true ones.
    ties: one of `TIES`.
    """
    rates = rates or system.mu
    return least(system, [system.work_ahead(i) / rate**exponent for i, rate in enumerate(rates)], ties)


def jsq(system: System, ties: str = "first") -> Routing:
    """Return the routing to the pool with the fewest requests in flight."""
    return least(system, [system.q(i) for i in range(len(system.mu))], ties)


def curve(system: System, ties: str = "first", rounds: int = 12) -> Routing:
    """Return the routing to the least score of the policy `curve` with the true seconds and numbers of servers.

    These are s = 1/r(1) and c = s × capacity. The score is that of `policies.curve.cost`. It depends on the arrival
    rate of each pool in the steady state, which depends on the routing. So rates and routing are computed in turn.

    rounds: how often; each round averages the arrival rates of all rounds so far.
    """
    s = 1 / np.array(system.mu)
    c = s * [curve.capacity for curve in system.curves]
    arrivals = system.lam * (1 / s) / (1 / s).sum()
    for k in range(rounds):
        load = np.minimum(MAX_LOAD, arrivals * s / c)
        later = load / (1 - load)
        waits = [system.q(i) + 1 - c[i] for i in range(len(s))]
        scores = [s[i] * (1 + (np.maximum(0, w) + later[i] * np.maximum(0, w + 1)) / c[i]) for i, w in enumerate(waits)]
        routing = least(system, scores, ties)
        arrivals += (system.lam * np.array(chain(system, routing).shares) - arrivals) / (k + 1)
    return routing


def least(system: System, scores: Sequence[NDArray[Any]], ties: str = "first") -> Routing:
    """Return the pool of the least score, by state.

    scores: by pool, each broadcastable to the state space.
    """
    pools = range(len(system.mu))
    order = np.array(
        {
            "first": pools,
            "last": pools[::-1],
            "fastest": sorted(pools, key=lambda i: -system.mu[i]),
            "slowest": sorted(pools, key=lambda i: system.mu[i]),
        }[ties]
    )
    # `argmax` takes the first pool among equal ones, so the pools are put into the order of the tie rule.
    stacked = np.stack(np.broadcast_arrays(*scores))[order]
    return np.asarray(order[(stacked <= stacked.min(axis=0) * (1 + 2 * TOLERANCE)).argmax(axis=0)])


def wrong(system: System, routing: Routing) -> NDArray[np.bool_]:
    """Return the states where a routing does not minimise the expected delay, as `core.regret` decides it."""
    ahead = np.stack(np.broadcast_arrays(*(system.work_ahead(i) for i in range(len(system.mu)))))
    mu = np.reshape(system.mu, (-1,) + (1,) * len(system.mu))
    mine = np.take_along_axis(ahead, routing[None], axis=0)
    my_rate = np.asarray(system.mu)[routing][None]
    a, b = mine * mu, ahead * my_rate
    return np.asarray((a - b > TOLERANCE * (a + b)).any(axis=0))


@dataclass(frozen=True, slots=True)
class Steady:
    """The means of a stationary law.

    mean_in_system: L.
    mean_response: W = L/λ of the requests that are not lost, in seconds.
    shares: of requests, by pool.
    regret: per arrival.
    edge: the probability that an arrival is lost. Where it is not tiny, raise the number of states.
    law: the probability of each state.
    """

    mean_in_system: float
    mean_response: float
    shares: tuple[float, ...]
    regret: float
    edge: float
    law: Floats = field(repr=False)


def chain(system: System, routing: Routing) -> Steady:
    """Solve for the stationary law under this routing."""
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import spsolve

    n, shape = len(system.mu), (system.side,) * len(system.mu)
    size = system.side**n
    index = np.arange(size).reshape(shape)
    sources, targets, rates = [], [], []

    def add(source: NDArray[np.int64], target: NDArray[np.int64], rate: Floats) -> None:
        sources.append(source.ravel())
        targets.append(target.ravel())
        rates.append(np.broadcast_to(rate, source.shape).ravel())

    for i in range(n):
        down, up = _slices(n, i)
        add(index[up], index[down], np.broadcast_to(system.service(i), shape)[up])
        add(index[down], index[up], np.where(routing == i, system.lam, 0.0)[down])
    source, target = np.concatenate(sources), np.concatenate(targets)
    rate = np.concatenate(rates)
    leaving = np.bincount(source, rate, size)
    # This is π Q = 0, transposed. The equation of the usual state is replaced by π = 1 there, and the terms with that π
    # go to the right side. The usual state is likely, so the other probabilities are not divided by a tiny number.
    entries = np.concatenate((rate, -leaving))
    places = np.concatenate((target, index.ravel())), np.concatenate((source, index.ravel()))
    matrix = coo_array((entries, places)).tocsc()
    usual = int(index[system.usual])
    others = np.delete(np.arange(size), usual)
    rest = spsolve(matrix[others][:, others], -matrix[others][:, [usual]].toarray().ravel())
    law = np.insert(rest, usual, 1.0).reshape(shape)
    law /= law.sum()
    return _read(system, routing, law)


def _slices(n: int, i: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return the indices of all states but the last along axis i, and of all but the first."""
    before, after = (slice(None),) * i, (slice(None),) * (n - i - 1)
    return (*before, slice(None, -1), *after), (*before, slice(1, None), *after)


def _read(system: System, routing: Routing, law: Floats) -> Steady:
    """Return the means of a stationary law."""
    n = len(system.mu)
    in_system = float(sum((law * system.q(i)).sum() for i in range(n)))
    lost = sum(float(law[(routing == i) & (system.q(i) == system.side - 1)].sum()) for i in range(n))
    return Steady(
        mean_in_system=in_system,
        mean_response=in_system / (system.lam * (1 - lost)),
        shares=tuple(float(law[routing == i].sum()) for i in range(n)),
        regret=float(law[wrong(system, routing)].sum()),
        edge=lost,
        law=law,
    )


@dataclass(frozen=True, slots=True)
class Optimum:
    """The least mean number in the system and its routing.

    gap: the width of the interval that this number is known to lie in.
    """

    mean_in_system: float
    mean_response: float
    routing: Routing = field(repr=False)
    gap: float
    iterations: int


@functools.lru_cache(maxsize=64)
def optimum(system: System, gap: float = 1e-7, max_iterations: int = 100_000) -> Optimum:
    """Compute the optimal routing of requests that must join a pool at once.

    Each iteration sets V ← (Σ q_i + λ min_i V(q + e_i) + Σ s_i V(q − e_i) + (Λ − λ − Σ s_i) V)/Λ. Here s_i is r_i(q_i),
    and Λ is λ + Σ max r_i. The least and the largest growth of V bound the mean cost from both sides. At the edge a
    pool cannot be joined, unless all are full.

    Raises ConfigError if `max_iterations` are not enough.
    """
    n, shape = len(system.mu), (system.side,) * len(system.mu)
    total = system.lam + sum(float(system.service(i).max()) for i in range(n))
    cost = np.zeros(shape) + sum(system.q(i) for i in range(n))
    services = [np.broadcast_to(system.service(i), shape) for i in range(n)]
    idle = total - system.lam - sum(services)  # uniformisation: the rate at which nothing happens in a state
    joined: Floats = np.full((n, *shape), np.inf)  # V after joining pool i
    corner: tuple[int, ...] = (-1,) * n
    value = cost.copy()
    for iteration in range(1, max_iterations + 1):
        for i in range(n):
            down, up = _slices(n, i)
            joined[i][down] = value[up]
        joined.reshape(n, -1)[:, -1] = value[corner]  # where all are full the request is lost
        new = cost + system.lam * joined.min(axis=0) + idle * value
        for i in range(n):
            down, up = _slices(n, i)
            new[up] += services[i][up] * value[down]
        new /= total
        growth = (new - value) * total
        low, high = float(growth.min()), float(growth.max())
        value = new - new[(0,) * n]  # V grows without bound, but only its differences matter
        if high - low <= gap:
            mean = (low + high) / 2
            return Optimum(mean, mean / system.lam, np.asarray(joined.argmin(axis=0)), high - low, iteration)
    raise ConfigError(
        f"the optimum was not found in {max_iterations:,} iterations; the load is too near to 1, or --side too large"
    )
