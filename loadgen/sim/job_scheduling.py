"""One server that serves jobs of different contexts in rounds, under the disciplines of `workers`; and exact values.

Round t: if the server is free, a waiting job is begun, or none; the one in service is done with chance σ(θ·x); with
chance λ one job arrives. The number in the system is looked at between rounds. Disciplines of equal seed meet the same
arrivals, contexts and services (the j-th job takes as long under each). Source: as `workers.scheduling.disciplines`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.scheduling.disciplines import Discipline, Esept, Fcfs, Job, Sept
from workers.scheduling.lcp import Lcp
from workers.scheduling.logistic import Context, chance, fit
from workers.scheduling.planner import Queue, follow, in_order, optimum, recursion, sept

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Source:
    """lam: chance of an arrival in a round. theta: of the truth. classes: contexts and their shares; none: x = (1,
    uniform on [-1, 1] …)."""

    lam: float
    theta: tuple[float, ...]
    classes: tuple[tuple[Context, float], ...] = ()

    @classmethod
    def of(cls, p: Sequence[float], shares: Sequence[float], lam: float) -> Source:
        """Classes that are done with chances p: x = (1, 1 for the second class, …)."""
        logits = [math.log(each / (1 - each)) for each in p]
        theta = (logits[0], *(each - logits[0] for each in logits[1:]))
        contexts = [(1.0, *(float(k == j) for j in range(1, len(p)))) for k in range(len(p))]
        return cls(lam, theta, tuple(zip(contexts, shares, strict=True)))


@dataclass(frozen=True, slots=True)
class Jobs:
    """By job. arrived: the round at whose end it comes. x: contexts. rounds: that it takes."""

    arrived: NDArray[np.int64]
    x: list[Context]
    rounds: NDArray[np.int64]


def draw(source: Source, rounds: int, seed: int) -> Jobs:
    """All that arrives in so many rounds."""
    dice = np.random.default_rng([seed, 3])
    arrived = np.flatnonzero(dice.random(rounds) < source.lam)
    n = len(arrived)
    if source.classes:
        which = dice.choice(len(source.classes), n, p=[share for _, share in source.classes])
        x = [source.classes[k][0] for k in which]
    else:
        x = [(1.0, *row) for row in dice.uniform(-1, 1, (n, len(source.theta) - 1)).tolist()]
    p = np.array([chance(source.theta, each) for each in x])
    return Jobs(arrived, x, dice.geometric(p) if n else np.zeros(0, np.int64))


def discipline(text: str, source: Source, rounds: int) -> Discipline:
    """fcfs, sept, reverse, esept, lcp, with options behind slashes: esept/age=0.05. Without one there is no aging."""
    name, *options = text.split("/")
    given = {key: float(value) for key, value in (option.split("=") for option in options)}
    d = len(source.theta)
    if name == "fcfs":
        return Fcfs()
    if name in ("sept", "reverse"):
        return Sept(source.theta if name == "sept" else tuple(-each for each in source.theta), **given)
    if name == "esept":
        return Esept(d, **({"age": 0.0} | given))
    return Lcp(d, rounds, int(given.pop("window", 100)), int(given.pop("kmax", 3)), **given)


@dataclass(frozen=True, slots=True)
class Served:
    """By job, in rounds; -1 for what did not come to it. began: the round of its first service. ended: of its last."""

    jobs: Jobs
    began: NDArray[np.int64]
    ended: NDArray[np.int64]
    rounds: int

    @property
    def waits(self) -> NDArray[np.int64]:
        """Rounds between arrival and service, of those that were begun."""
        begun = self.began >= 0
        return self.began[begun] - self.jobs.arrived[begun] - 1

    def mean_number(self, first: int, last: int) -> float:
        """In the system, over the rounds from first to before last."""
        until = np.where(self.ended >= 0, self.ended + 1, self.rounds)
        there = np.minimum(until, last) - np.maximum(self.jobs.arrived + 1, first)
        return float(np.maximum(0, there).sum()) / (last - first)

    @property
    def left(self) -> int:
        """In the system after the last round."""
        return int((self.ended < 0).sum())


def serve(order: Discipline, jobs: Jobs, rounds: int) -> Served:
    """Run the rounds."""
    began, ended = np.full(len(jobs.x), -1), np.full(len(jobs.x), -1)
    number: dict[int, int] = {}
    arrived, lengths = jobs.arrived.tolist(), jobs.rounds.tolist()
    t = coming = 0
    while t < rounds:
        while coming < len(arrived) and arrived[coming] < t:
            job = Job(jobs.x[coming], float(arrived[coming]))
            number[id(job)] = coming
            order.add(job)
            coming += 1
        chosen = order.next(float(t))
        if chosen is None:
            t = t + 1 if len(order) else arrived[coming] + 1 if coming < len(arrived) else rounds
            continue
        j = number.pop(id(chosen))
        began[j], last = t, t + lengths[j] - 1
        if last >= rounds:
            break
        ended[j] = last
        order.done(chosen.x, float(lengths[j]))
        t = last + 1
    return Served(jobs, began, ended, rounds)


def run(text: str, source: Source, rounds: int, seed: int) -> Served:
    """One discipline on the traffic of one seed."""
    return serve(discipline(text, source, rounds), draw(source, rounds, seed), rounds)


def fcfs_mean(p: Sequence[float], l: Sequence[float]) -> float:  # noqa: E741 - λ_k
    """Stationary number in the system of Geo/G/1, the oldest first."""
    lam = math.fsum(l)
    rho = math.fsum(rate / each for rate, each in zip(l, p, strict=True))
    second = math.fsum(rate / lam * 2 * (1 - each) / each**2 for rate, each in zip(l, p, strict=True))
    return rho + lam**2 * second / (2 * (1 - rho))


def priority_mean(p: Sequence[float], l: Sequence[float]) -> float:  # noqa: E741 - λ_k
    """The same, classes in their order, not interrupted."""
    rest = math.fsum(rate * (1 - each) / each**2 for rate, each in zip(l, p, strict=True))
    found, before = 0.0, 0.0
    for rate, each in zip(l, p, strict=True):
        after = before + rate / each
        found += rate * (rest / ((1 - before) * (1 - after)) + 1 / each)
        before = after
    return found


def learned(source: Source, queue: Queue, rounds: int, seed: int) -> Queue:
    """What half of so many rounds, the oldest served first, tell of the classes of a source."""
    half = rounds // 2
    served = serve(Fcfs(), draw(source, half, seed), half)
    jobs = served.jobs
    rows = [(jobs.x[j], float(jobs.rounds[j]), True) for j in np.flatnonzero(served.ended >= 0)]
    rows += [(jobs.x[j], float(half - served.began[j]), False)
             for j in np.flatnonzero((served.began >= 0) & (served.ended < 0))]  # fmt: skip
    theta = fit(rows)[0].tolist() if rows else [0.0] * len(source.theta)
    contexts = [x for x, _ in source.classes]
    counts = [sum(x == each for x in jobs.x) for each in contexts]
    rates = tuple((count + 0.5 / len(counts)) / (half + 1) for count in counts)
    return Queue(tuple(chance(theta, x) for x in contexts), rates, queue.caps)


def cost_of_believing(truth: Queue, belief: Queue, rounds: int) -> float:
    """The expected number left after so many rounds from empty, under the plan for the belief; exact."""
    plan = optimum(belief, rounds)
    return recursion(truth, rounds, follow(plan.acts, in_order(truth, belief.p))).values[-1]


def planned_at_the_end(queue: Queue, rounds: int, window: int) -> float:
    """The same under SEPT until `window` rounds are left, and the optimum for these."""
    plan = optimum(queue, window)
    return recursion(queue, rounds, follow(plan.acts, in_order(queue))).values[-1]


def horizons(queue: Queue, rounds: int) -> dict[str, Any]:
    """V_h of the empty system, h = 0 … rounds: under the optimum, and under SEPT."""
    return {"optimum": optimum(queue, rounds).values, "sept": sept(queue, rounds).values}
