"""Simulates the two models of `policies.partial_information.whittle_index`, many replications at once.

Time is counted in slots. In each slot the dispatcher picks one server and fills or probes it. Then jobs depart from
every server: a Poisson number of mean μ, at most the backlog. The dispatcher sees the backlog of a server only when it
picks it. The age of a server is the number of slots since it was picked, from 1. At the start all servers were filled
just before slot 0.

Model 1 (finite): a pick fills the queue up to K, and the reward is the number of jobs added. Model 2 (blocking): only
an empty queue takes jobs; it takes K of them, and the reward is K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.policies.partial_information import whittle_index
from dispatcher.policies.partial_information.queue_estimate import lower_gamma
from workers.spec import split_spec

Floats = NDArray[np.float64]
Integers = NDArray[Any]
ORACLES = ("jsq", "jsq-f", "jsq-r", "jsq-2", "jiq")  # rules that see the backlogs
MAX_BOUND_AGE = 400  # slots between two picks of a server that the upper bound considers


@dataclass(frozen=True, slots=True)
class BatchServers:
    """Describes the servers.

    capacity: K_i, in jobs.
    rate: μ_i, in services per slot.
    blocking: whether they are those of Model 2.
    """

    capacity: tuple[int, ...]
    rate: tuple[float, ...]
    blocking: bool = False

    @property
    def n(self) -> int:
        return len(self.capacity)


@dataclass(slots=True)
class State:
    """The state of all replications in one slot. All arrays have the shape (replications, servers).

    backlog: the true backlogs.
    known: the backlogs just after the last pick.
    age: slots since the last pick.
    """

    backlog: Integers
    known: Integers
    age: Integers
    slot: int = 0


Rule = Callable[[State], Any]  # returns the server to pick, of shape (replications,)


def index_policy(servers: BatchServers, tables: list[Floats]) -> Rule:
    """Make the rule that picks the server of the largest index; of equal ones the first.

    tables: the index by server; tables[i][q − 1, τ − 1] is that of backlog q at age τ. In Model 1 a table has one row,
        because a pick always leaves K jobs.
    """
    ages = max(table.shape[1] for table in tables)
    backlogs = max(table.shape[0] for table in tables)
    # With one array for all servers, a pick in all replications is one operation.
    padded = np.stack([_padded(table, backlogs, ages) for table in tables])
    all_servers = np.arange(servers.n)

    def pick(state: State) -> Any:
        q = state.known - 1 if servers.blocking else np.zeros_like(state.known)
        return np.argmax(padded[all_servers, q, np.minimum(state.age, ages) - 1], axis=1)

    return pick


def _padded(table: Floats, rows: int, columns: int) -> Floats:
    """Extend a table to this shape by copies of its last column and its last row."""
    padded = np.empty((rows, columns))
    padded[: table.shape[0], : table.shape[1]] = table
    padded[: table.shape[0], table.shape[1] :] = table[:, -1:]
    padded[table.shape[0] :] = padded[table.shape[0] - 1]
    return padded


def whittle_tables(servers: BatchServers, beta: float, ages: int = 2000) -> list[Floats]:
    """Return the Whittle indices of each server.

    beta: the discount factor.
    ages: the length of the tables of Model 1. Those of Model 2 end where the index is nearly K.
    """
    if servers.blocking:
        return [
            whittle_index.blocking(k, mu, beta).indices for k, mu in zip(servers.capacity, servers.rate, strict=True)
        ]
    return [
        np.array([[whittle_index.finite(tau, k, mu, beta) for tau in range(1, ages + 1)]])
        for k, mu in zip(servers.capacity, servers.rate, strict=True)
    ]


def myopic_tables(servers: BatchServers, ages: int = 2000) -> list[Floats]:
    """Return the expected reward of a pick, by server, backlog and age."""
    if servers.blocking:
        return [
            np.array([[k * lower_gamma(q, mu * tau) for tau in range(1, ages + 1)] for q in range(1, k + 1)])
            for k, mu in zip(servers.capacity, servers.rate, strict=True)
        ]
    return [
        np.array([[whittle_index.reward(tau, k, mu) for tau in range(1, ages + 1)]])
        for k, mu in zip(servers.capacity, servers.rate, strict=True)
    ]


def make_rule(text: str, servers: BatchServers, rng: np.random.Generator) -> Rule:
    """Make a rule from its name: whittle, myopic, round_robin, random, or one of `ORACLES`.

    `whittle` is for the average reward, and `whittle/beta=0.95` or `whittle/0.95` for a discounted one.
    Raises ValueError.
    """
    name, _, options = split_spec(text, "/")
    if name == "whittle":
        return index_policy(servers, whittle_tables(servers, float(options.removeprefix("beta=") or 1.0)))
    if name == "myopic":
        return index_policy(servers, myopic_tables(servers))
    if name == "round_robin":
        return lambda state: np.full(len(state.age), state.slot % servers.n)
    if name == "random":
        return lambda state: rng.integers(servers.n, size=len(state.age))
    if name in ORACLES:
        return _oracle(name, servers, rng)
    names = ", ".join(("whittle", "myopic", "round_robin", "random", *ORACLES))
    raise ValueError(f"unknown policy in slots {text!r}; known: {names}")


def _oracle(name: str, servers: BatchServers, rng: np.random.Generator) -> Rule:
    """Make a rule that sees the backlogs.

    jsq and jsq-f pick the least backlog; of equal ones a random server, or the one of largest capacity and rate. jsq-r
    picks the largest reward. jsq-2 picks the larger reward of two random servers. jiq picks an empty server.
    """
    k, mu = np.array(servers.capacity, float), np.array(servers.rate)
    # Numbers below 1 that put the larger capacity first, and of equal capacities the faster server.
    preference = (k * 1e4 + mu) / (k.max() * 1e4 + mu.max())

    def rewards(state: State) -> Floats:
        return np.where(state.backlog == 0, k, 0.0) if servers.blocking else k - state.backlog

    def pick(state: State) -> Any:
        backlog = state.backlog
        # Backlogs and rewards are whole numbers. A number below 1 that is added only decides between equal ones.
        dice = rng.random(backlog.shape)
        if name == "jsq":
            return np.argmin(backlog + dice, axis=1)
        if name == "jsq-f":
            return np.argmin(backlog - preference, axis=1)
        if name == "jsq-r":
            # Blocked servers all have the reward 0, so there shorter queues are preferred.
            shorter_first = 0.25 * backlog / k.max() if servers.blocking else 0.0
            return np.argmax(rewards(state) + 0.5 * dice - shorter_first, axis=1)
        if name == "jiq":
            return np.argmin(np.where(backlog == 0, dice, 1 + dice), axis=1)
        # jsq-2: the order of the random numbers yields two distinct servers for each replication.
        pair = np.argsort(dice, axis=1)[:, :2]
        reward = np.take_along_axis(rewards(state), pair, axis=1)
        length = np.take_along_axis(backlog, pair, axis=1)
        second = np.where(reward[:, 0] != reward[:, 1], reward[:, 1] > reward[:, 0], length[:, 1] < length[:, 0])
        return np.take_along_axis(pair, second[:, None].astype(np.int64), axis=1)[:, 0]

    return pick


def simulate(servers: BatchServers, name: str, slots: int, warmup: int, replications: int, seed: int) -> Floats:
    """Return the mean reward per slot after the warm-up, by replication.

    name: a rule, as `make_rule` reads it.
    slots, warmup: the slots that are counted, and those before them.
    """
    # The rule draws from another generator, so that all rules meet the same departures.
    rng = np.random.default_rng([seed, 7])
    pick = make_rule(name, servers, np.random.default_rng([seed, 11]))
    k, mu = np.array(servers.capacity), np.array(servers.rate)
    shape = (replications, servers.n)
    backlog = np.maximum(0, k - rng.poisson(mu, shape))  # filled just before slot 0, and then jobs departed once
    state = State(backlog, np.tile(k, (replications, 1)), np.ones(shape, dtype=np.int64))
    rows = np.arange(replications)
    total = np.zeros(replications)
    for slot in range(warmup + slots):
        state.slot = slot
        i = pick(state)
        before = state.backlog[rows, i]
        added = np.where(before == 0, k[i], 0) if servers.blocking else k[i] - before
        if slot >= warmup:
            total += added
        state.backlog[rows, i] = after = before + added
        state.known[rows, i] = after
        # In the next slot one more slot has passed since every other pick.
        state.age += 1
        state.age[rows, i] = 1
        np.maximum(0, state.backlog - rng.poisson(mu, shape), out=state.backlog)
    return total / slots


def exact_index_policy(servers: BatchServers, tables: list[Floats]) -> tuple[float, int]:
    """Return the long-run mean reward of an index policy in Model 1, and the length of its cycle.

    A pick always leaves K jobs, so the schedule does not depend on chance: it is a walk on ages that ends in a cycle.
    """
    assert not servers.blocking, "the schedule of Model 2 depends on chance"
    ages, longest = [1] * servers.n, max(table.shape[1] for table in tables)
    seen: dict[tuple[int, ...], int] = {}
    earned: list[float] = []
    while tuple(ages) not in seen:
        seen[tuple(ages)] = len(earned)
        scores = [table[0, min(age, table.shape[1]) - 1] for table, age in zip(tables, ages, strict=True)]
        i = int(np.argmax(scores))
        earned.append(whittle_index.reward(ages[i], servers.capacity[i], servers.rate[i]))
        ages = [1 if j == i else min(age + 1, longest) for j, age in enumerate(ages)]
    begin = seen[tuple(ages)]
    return float(np.mean(earned[begin:])), len(earned) - begin


def exact_random(servers: BatchServers) -> float:
    """Return the mean reward in Model 1 of a random server in each slot. The ages are geometric."""
    n, total = servers.n, 0.0
    # Beyond 60 n slots the probability of an age is below e^-60.
    for k, mu in zip(servers.capacity, servers.rate, strict=True):
        total += sum((1 - 1 / n) ** (t - 1) / n * whittle_index.reward(t, k, mu) for t in range(1, 60 * n))
    return total / n


def exact_round_robin(servers: BatchServers) -> float:
    """Return the mean reward in Model 1 of all servers in turn. Every age is n."""
    return (
        sum(whittle_index.reward(servers.n, k, mu) for k, mu in zip(servers.capacity, servers.rate, strict=True))
        / servers.n
    )


def bound(servers: BatchServers) -> float:
    """Return the Lagrangian upper bound of the mean reward in Model 1.

    It is the minimum over λ of λ + Σ max(0, max_T (R_i(T) − λ)/T).
    """
    times = np.arange(1, MAX_BOUND_AGE)
    rewards = [
        np.array([whittle_index.reward(t, k, mu) for t in range(1, MAX_BOUND_AGE)])
        for k, mu in zip(servers.capacity, servers.rate, strict=True)
    ]

    def value(price: float) -> float:
        return price + sum(max(0.0, float(((reward - price) / times).max())) for reward in rewards)

    low, high = 0.0, float(max(servers.capacity))
    for _ in range(200):  # ternary search, as the value is convex in the price
        a, b = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, b) if value(a) < value(b) else (a, high)
    return value((low + high) / 2)
