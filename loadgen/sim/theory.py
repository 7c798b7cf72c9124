"""Exact values for exponential service and Poisson arrivals, by solving truncated Markov chains. Needs scipy.

A state is the vector of requests in flight, each from 0 to `side` − 1; pool i serves at rate μ_i min(q_i, c_i). An
arrival that finds its pool at the edge is lost, so every result carries the probability of the edge, which tells how
much the truncation may matter.

`chain`: the stationary law under a fixed rule (sparse linear solve). `optimum`: the rule of least mean number in
system, by relative value iteration on the uniformised chain (Puterman, *Markov Decision Processes*, section 8.5).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.choosing import TOLERANCE
from dispatcher.errors import ConfigError

Floats = NDArray[np.float64]
Routing = NDArray[np.intp]  # the pool that an arrival joins, by state; shape (side,) * n
MOST = {1: 5000, 2: 250, 3: 30}  # states a pool that the sparse solver can stand, by number of pools


@dataclass(frozen=True, slots=True)
class System:
    """lam: arrivals a second. mu: services a second and server, by pool. servers: c_i, default 1.

    side: states a pool; 0 takes as many as the load asks for, the tail of the number in system being about ρ^n.
    """

    lam: float
    mu: tuple[float, ...]
    servers: tuple[int, ...] = ()
    side: int = 0

    def __post_init__(self) -> None:
        c = self.c
        if not (self.lam > 0 and all(rate > 0 for rate in self.mu)):
            raise ConfigError("lam and every mu must be positive")
        if len(c) != len(self.mu):
            raise ConfigError(f"servers has {len(c)} values for {len(self.mu)} pools; give one a pool")
        if self.rho >= 1:
            raise ConfigError(f"no steady state: lam = {self.lam:g} is not below the sum of all rates")
        most = MOST.get(len(self.mu), 0)
        if not most:
            raise ConfigError(f"exact values are for one to three pools, not {len(self.mu)}; simulate instead")
        if not self.side:
            object.__setattr__(self, "side", min(most, max(c) + 12 + int(-16 / math.log(self.rho))))
        if max(c) + 2 > most:
            raise ConfigError(f"exact values of {len(self.mu)} pools are for at most {most - 2} servers, not {max(c)}")
        if not max(c) + 2 <= self.side <= most:
            raise ConfigError(
                f"states of a pool: between {max(c) + 2} and {most} for {len(self.mu)} pools, not {self.side} (--side)"
            )

    @property
    def rho(self) -> float:
        """The load, λ / Σ c_i μ_i."""
        return self.lam / sum(rate * n for rate, n in zip(self.mu, self.c, strict=True))

    @property
    def c(self) -> tuple[int, ...]:
        return self.servers or (1,) * len(self.mu)

    def q(self, i: int) -> NDArray[np.int64]:
        """q_i of every state, broadcastable to the shape of the state space."""
        shape = [1] * len(self.mu)
        shape[i] = self.side
        return np.arange(self.side).reshape(shape)

    def service(self, i: int) -> Floats:
        """The rate at which pool i completes, by state."""
        return self.mu[i] * np.minimum(self.q(i), self.c[i])

    def work_ahead(self, i: int) -> Floats:
        """As `core.delay.work_ahead`, by state."""
        return np.maximum(0, self.q(i) + 1 - self.c[i]) / self.c[i] + 1.0


def sed(system: System, rates: Sequence[float] | None = None, exponent: float = 1.0) -> Routing:
    """Least work_ahead/rate^exponent, ties to the lowest index; rates: those believed, default the true ones."""
    rates = rates or system.mu
    scores = np.stack(
        np.broadcast_arrays(*(system.work_ahead(i) / rate**exponent for i, rate in enumerate(rates)))
    )  # fmt: skip
    return np.asarray((scores <= scores.min(axis=0) * (1 + 2 * TOLERANCE)).argmax(axis=0))


def jsq(system: System) -> Routing:
    """Fewest in flight, ties to the lowest index."""
    return np.asarray(np.stack(np.broadcast_arrays(*(system.q(i) for i in range(len(system.mu))))).argmin(axis=0))


def wrong(system: System, routing: Routing) -> NDArray[np.bool_]:
    """Where a routing is not among the oracle's minimisers, as `core.regret` judges it."""
    ahead = np.stack(np.broadcast_arrays(*(system.work_ahead(i) for i in range(len(system.mu)))))
    mu = np.reshape(system.mu, (-1,) + (1,) * len(system.mu))
    mine = np.take_along_axis(ahead, routing[None], axis=0)
    my_rate = np.asarray(system.mu)[routing][None]
    a, b = mine * mu, ahead * my_rate
    return np.asarray((a - b > TOLERANCE * (a + b)).any(axis=0))


@dataclass(frozen=True, slots=True)
class Steady:
    """What a stationary law says.

    mean_in_system: L. mean_response: W = L/λ of those not lost, seconds. shares: of requests, by pool. regret: per
    arrival. edge: the probability that an arrival is lost; where it is not tiny, raise the number of states.
    """

    mean_in_system: float
    mean_response: float
    shares: tuple[float, ...]
    regret: float
    edge: float
    law: Floats = field(repr=False)


def chain(system: System, routing: Routing) -> Steady:
    """The stationary law under this routing."""
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
    # π Q = 0 transposed; π_0 = 1 replaces the first equation, and what it does to the others goes to the right
    entries = np.concatenate((rate, -leaving))
    places = np.concatenate((target, index.ravel())), np.concatenate((source, index.ravel()))
    matrix = coo_array((entries, places)).tocsc()
    rest = spsolve(matrix[1:, 1:], -matrix[1:, [0]].toarray().ravel())
    law = np.concatenate(([1.0], rest)).reshape(shape)
    law /= law.sum()
    return _read(system, routing, law)


def _slices(n: int, i: int) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """All states but the last along axis i, and all but the first."""
    before, after = (slice(None),) * i, (slice(None),) * (n - i - 1)
    return (*before, slice(None, -1), *after), (*before, slice(1, None), *after)


def _read(system: System, routing: Routing, law: Floats) -> Steady:
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
    """The least mean number in system, and the routing that has it. gap: L is known to within it."""

    mean_in_system: float
    mean_response: float
    routing: Routing = field(repr=False)
    gap: float
    iterations: int


@functools.lru_cache(maxsize=64)
def optimum(system: System, gap: float = 1e-7, most: int = 100_000) -> Optimum:
    """The optimal routing of requests that must join a pool at once. Raises ConfigError if `most` iterations do not do.

    V ← (Σ q_i + λ min_i V(q + e_i) + Σ s_i V(q − e_i) + (Λ − λ − Σ s_i) V)/Λ, Λ = λ + Σ c_i μ_i; max and min of the
    growth of V bound the mean cost from both sides. At the edge a pool cannot be joined, unless all are full.
    """
    n, shape = len(system.mu), (system.side,) * len(system.mu)
    total = system.lam + sum(rate * c for rate, c in zip(system.mu, system.c, strict=True))
    cost = np.zeros(shape) + sum(system.q(i) for i in range(n))
    services = [np.broadcast_to(system.service(i), shape) for i in range(n)]
    idle = total - system.lam - sum(services)
    joined: Floats = np.full((n, *shape), np.inf)  # V after joining pool i
    corner: tuple[int, ...] = (-1,) * n
    value = cost.copy()
    for iteration in range(1, most + 1):
        for i in range(n):
            down, up = _slices(n, i)
            joined[i][down] = value[up]
        joined.reshape(n, -1)[:, -1] = value[corner]  # all are full: it is lost
        new = cost + system.lam * joined.min(axis=0) + idle * value
        for i in range(n):
            down, up = _slices(n, i)
            new[up] += services[i][up] * value[down]
        new /= total
        growth = (new - value) * total
        low, high = float(growth.min()), float(growth.max())
        value = new - new[(0,) * n]
        if high - low <= gap:
            mean = (low + high) / 2
            return Optimum(mean, mean / system.lam, np.asarray(joined.argmin(axis=0)), high - low, iteration)
    raise ConfigError(
        f"the optimum was not found in {most:,} iterations; the load is too near to 1, or --side too large"
    )
