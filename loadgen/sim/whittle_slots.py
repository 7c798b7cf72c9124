"""Pools that are filled up in slots and seen only then: the two models of `core.whittle`, many replications at once.

In each slot the dispatcher picks one server and fills or probes it; then departures, Poisson of mean μ, at most the
backlog. Ages count slots since a server was picked, from 1. It starts with all servers filled just before slot 0.
`finite`: a pick fills the queue to K and earns what that took. `blocking`: K jobs are taken by an empty queue only,
and earn K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.policies.partial_information import whittle_index as whittle
from dispatcher.policies.partial_information.queue_estimate import lower_gamma

Floats = NDArray[np.float64]
Whole = NDArray[Any]  # of whole numbers
ORACLES = ("jsq", "jsq-f", "jsq-r", "jsq-2", "jiq")  # they see the backlogs


@dataclass(frozen=True, slots=True)
class Servers:
    """capacity: K_i. rate: μ_i, services a slot. blocking: which of the models."""

    capacity: tuple[int, ...]
    rate: tuple[float, ...]
    blocking: bool = False

    @property
    def n(self) -> int:
        return len(self.capacity)


@dataclass(slots=True)
class State:
    """Shape (replications, servers): true backlog, backlog last known, age; slot number."""

    backlog: Whole
    known: Whole
    age: Whole
    slot: int = 0


Picks = Callable[[State], Any]  # shape (replications,)


def index_policy(servers: Servers, tables: list[Floats]) -> Picks:
    """argmax of tables[i][q − 1, τ − 1], ties to the lowest number; for Model 1 the tables have one row."""
    ages = max(table.shape[1] for table in tables)
    deep = max(table.shape[0] for table in tables)
    padded = np.stack([_padded(table, deep, ages) for table in tables])
    which = np.arange(servers.n)

    def picks(state: State) -> Any:
        q = state.known - 1 if servers.blocking else np.zeros_like(state.known)
        return np.argmax(padded[which, q, np.minimum(state.age, ages) - 1], axis=1)

    return picks


def _padded(table: Floats, rows: int, columns: int) -> Floats:
    found = np.empty((rows, columns))
    found[: table.shape[0], : table.shape[1]] = table
    found[: table.shape[0], table.shape[1] :] = table[:, -1:]
    found[table.shape[0] :] = found[table.shape[0] - 1]
    return found


def whittle_tables(servers: Servers, beta: float, ages: int = 2000) -> list[Floats]:
    """The indices of each server."""
    if servers.blocking:
        return [whittle.blocking(k, mu, beta).indices for k, mu in zip(servers.capacity, servers.rate, strict=True)]
    return [
        np.array([[whittle.finite(tau, k, mu, beta) for tau in range(1, ages + 1)]])
        for k, mu in zip(servers.capacity, servers.rate, strict=True)
    ]


def myopic_tables(servers: Servers, ages: int = 2000) -> list[Floats]:
    """What a pick would earn at once."""
    if servers.blocking:
        return [
            np.array([[k * lower_gamma(q, mu * tau) for tau in range(1, ages + 1)] for q in range(1, k + 1)])
            for k, mu in zip(servers.capacity, servers.rate, strict=True)
        ]
    return [
        np.array([[whittle.reward(tau, k, mu) for tau in range(1, ages + 1)]])
        for k, mu in zip(servers.capacity, servers.rate, strict=True)
    ]


def policy(name: str, servers: Servers, rng: np.random.Generator) -> Picks:
    """whittle (average reward), whittle/0.95, myopic, round_robin, random, or an oracle. Raises ValueError."""
    kind, _, beta = name.partition("/")
    if kind == "whittle":
        return index_policy(servers, whittle_tables(servers, float(beta or 1.0)))
    if kind == "myopic":
        return index_policy(servers, myopic_tables(servers))
    if kind == "round_robin":
        return lambda state: np.full(len(state.age), state.slot % servers.n)
    if kind == "random":
        return lambda state: rng.integers(servers.n, size=len(state.age))
    if kind in ORACLES:
        return _oracle(kind, servers, rng)
    raise ValueError(f"there is no policy {name!r} in slots")


def _oracle(kind: str, servers: Servers, rng: np.random.Generator) -> Picks:
    k, mu = np.array(servers.capacity, float), np.array(servers.rate)
    fast = (k * 1e4 + mu) / (k.max() * 1e4 + mu.max())  # of equals the larger capacity, then the faster; below 1

    def gains(state: State) -> Floats:
        return np.where(state.backlog == 0, k, 0.0) if servers.blocking else k - state.backlog

    def picks(state: State) -> Any:
        backlog, shape = state.backlog, state.backlog.shape
        dice = rng.random(shape)
        if kind == "jsq":
            return np.argmin(backlog + dice, axis=1)
        if kind == "jsq-f":
            return np.argmin(backlog - fast, axis=1)
        if kind == "jsq-r":
            return np.argmax(
                gains(state) + 0.5 * dice - (0.25 * backlog / k.max() if servers.blocking else 0.0), axis=1
            )
        if kind == "jiq":
            return np.argmin(np.where(backlog == 0, dice, 1 + dice), axis=1)
        two = np.argsort(dice, axis=1)[:, :2]
        pair = np.take_along_axis(gains(state), two, axis=1)
        shorter = np.take_along_axis(backlog, two, axis=1)
        better = np.where(pair[:, 0] != pair[:, 1], pair[:, 1] > pair[:, 0], shorter[:, 1] < shorter[:, 0])
        return np.take_along_axis(two, better[:, None].astype(np.int64), axis=1)[:, 0]

    return picks


def simulate(servers: Servers, name: str, slots: int, warmup: int, replications: int, seed: int) -> Floats:
    """Mean reward a slot after the warm-up, by replication."""
    rng = np.random.default_rng([seed, 7])
    picks = policy(name, servers, np.random.default_rng([seed, 11]))
    k, mu = np.array(servers.capacity), np.array(servers.rate)
    shape = (replications, servers.n)
    backlog = np.maximum(0, k - rng.poisson(mu, shape))
    state = State(backlog, np.tile(k, (replications, 1)), np.ones(shape, dtype=np.int64))
    rows = np.arange(replications)
    total = np.zeros(replications)
    for slot in range(warmup + slots):
        state.slot = slot
        i = picks(state)
        found = state.backlog[rows, i]
        took = np.where(found == 0, k[i], 0) if servers.blocking else k[i] - found
        if slot >= warmup:
            total += took
        state.backlog[rows, i] = after = found + took
        state.known[rows, i] = after
        state.age += 1
        state.age[rows, i] = 1
        np.maximum(0, state.backlog - rng.poisson(mu, shape), out=state.backlog)
    return total / slots


def exact(servers: Servers, tables: list[Floats]) -> tuple[float, int]:
    """Model 1: the long-run mean reward of an index policy, and the length of the cycle that it runs into. No
    observation tells it anything, so its schedule is a deterministic walk on ages."""
    assert not servers.blocking, "what is seen matters there"
    ages, longest = [1] * servers.n, max(table.shape[1] for table in tables)
    seen: dict[tuple[int, ...], int] = {}
    earned: list[float] = []
    while tuple(ages) not in seen:
        seen[tuple(ages)] = len(earned)
        scores = [table[0, min(age, table.shape[1]) - 1] for table, age in zip(tables, ages, strict=True)]
        i = int(np.argmax(scores))
        earned.append(whittle.reward(ages[i], servers.capacity[i], servers.rate[i]))
        ages = [1 if j == i else min(age + 1, longest) for j, age in enumerate(ages)]
    begin = seen[tuple(ages)]
    return float(np.mean(earned[begin:])), len(earned) - begin


def exact_random(servers: Servers) -> float:
    """Model 1, a server at random in each slot: ages are geometric."""
    n, total = servers.n, 0.0
    for k, mu in zip(servers.capacity, servers.rate, strict=True):
        total += sum((1 - 1 / n) ** (t - 1) / n * whittle.reward(t, k, mu) for t in range(1, 60 * n))
    return total / n


def exact_round_robin(servers: Servers) -> float:
    """Model 1: every age is n."""
    return (
        sum(whittle.reward(servers.n, k, mu) for k, mu in zip(servers.capacity, servers.rate, strict=True)) / servers.n
    )


def bound(servers: Servers) -> float:
    """Model 1, Lagrange's upper bound of the average reward: min over λ of λ + Σ max(0, max_T (R_i(T) − λ)/T)."""
    rewards = [
        np.array([whittle.reward(t, k, mu) for t in range(1, 400)])
        for k, mu in zip(servers.capacity, servers.rate, strict=True)
    ]
    times = np.arange(1, 400)

    def at(price: float) -> float:
        return price + sum(max(0.0, float(((each - price) / times).max())) for each in rewards)

    low, high = 0.0, float(max(servers.capacity))
    for _ in range(200):  # convex: golden section would do as well
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if at(a) < at(b) else (a, high)
    return at((low + high) / 2)
