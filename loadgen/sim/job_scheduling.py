"""Simulates one server that serves jobs of different contexts in rounds, and computes exact values.

Round t: if the server is free, the discipline starts a waiting job, or none. The job in service ends with probability
σ(θ·x). With probability λ one job arrives. The number in the system is counted between rounds. With equal seeds all
disciplines meet the same arrivals and contexts, and the j-th job takes the same time under each.

Source: as `workers.scheduling.disciplines`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.scheduling.disciplines import Discipline, Esept, Fcfs, Job, Sept
from workers.scheduling.lcp import Lcp
from workers.scheduling.logistic import Context, chance, fit
from workers.scheduling.planner import Queue, follow, in_order, optimum, recursion, sept
from workers.spec import make_from_spec

Floats = NDArray[np.float64]
Rounds = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Source:
    """Describes where jobs come from.

    lam: the probability of an arrival in a round.
    theta: the true coefficients.
    classes: contexts with their shares. Without any, a context is 1, followed by numbers uniform on [-1, 1].
    """

    lam: float
    theta: tuple[float, ...]
    classes: tuple[tuple[Context, float], ...] = ()

    @classmethod
    def of(cls, p: Sequence[float], shares: Sequence[float], lam: float) -> Source:
        """Make a source of classes from the probabilities `p` that their jobs end in a round.

        The contexts are (1, 1 for the second class, 1 for the third class, ...).
        """
        logits = [math.log(probability / (1 - probability)) for probability in p]
        # The constant 1 carries the logit of the first class, and each other component the difference from it.
        theta = (logits[0], *(logit - logits[0] for logit in logits[1:]))
        contexts = [(1.0, *(float(k == j) for j in range(1, len(p)))) for k in range(len(p))]
        return cls(lam, theta, tuple(zip(contexts, shares, strict=True)))


@dataclass(frozen=True, slots=True)
class Jobs:
    """The jobs of one run, in the order of arrival.

    arrived: the round at whose end the job arrives.
    x: the contexts.
    rounds: the rounds of service that the job takes.
    """

    arrived: Rounds
    x: list[Context]
    rounds: Rounds


def draw(source: Source, rounds: int, seed: int) -> Jobs:
    """Draw all jobs that arrive in so many rounds. Contexts and work do not depend on the discipline."""
    rng = np.random.default_rng([seed, 3])
    arrived = np.flatnonzero(rng.random(rounds) < source.lam)
    n = len(arrived)
    if source.classes:
        kinds = rng.choice(len(source.classes), n, p=[share for _, share in source.classes])
        x = [source.classes[k][0] for k in kinds]
    else:
        x = [(1.0, *row) for row in rng.uniform(-1, 1, (n, len(source.theta) - 1)).tolist()]
    p = np.array([chance(source.theta, context) for context in x])
    return Jobs(arrived, x, rng.geometric(p) if n else np.zeros(0, np.int64))


def make_discipline(text: str, source: Source, rounds: int) -> Discipline:
    """Make the discipline fcfs, sept, reverse, esept or lcp, with options as in esept/age=0.05.

    `reverse` serves the longest expected job first. Without the option `age` there is no aging. `lcp` ends after so
    many rounds. Raises ValueError.
    """
    components = len(source.theta)

    def esept(kappa: float = 1.0, age: float = 0.0) -> Discipline:
        return Esept(components, kappa, age)

    makers: dict[str, Callable[..., Discipline]] = {
        "fcfs": Fcfs,
        "sept": functools.partial(Sept, source.theta),
        "reverse": functools.partial(Sept, tuple(-coefficient for coefficient in source.theta)),
        "esept": esept,
        "lcp": functools.partial(Lcp, components, rounds),
    }
    return make_from_spec(text, "discipline", makers)


@dataclass(frozen=True, slots=True)
class Served:
    """What one run yields, in the order of arrival; -1 where a job did not begin or did not end.

    began: the round of the job's first service.
    ended: the round of its last service.
    rounds: the length of the run.
    """

    jobs: Jobs
    began: Rounds
    ended: Rounds
    rounds: int

    @property
    def waits(self) -> Rounds:
        """The rounds between arrival and service, of the jobs that began."""
        begun = self.began >= 0
        return self.began[begun] - self.jobs.arrived[begun] - 1

    def mean_number(self, first: int, last: int) -> float:
        """Return the mean number of jobs in the system over the rounds from `first` to before `last`."""
        until = np.where(self.ended >= 0, self.ended + 1, self.rounds)
        rounds_inside = np.minimum(until, last) - np.maximum(self.jobs.arrived + 1, first)
        return float(np.maximum(0, rounds_inside).sum()) / (last - first)

    @property
    def left(self) -> int:
        """The number of jobs in the system after the last round."""
        return int((self.ended < 0).sum())


def serve(order: Discipline, jobs: Jobs, rounds: int) -> Served:
    """Serve the jobs under a discipline for so many rounds."""
    began, ended = np.full(len(jobs.x), -1), np.full(len(jobs.x), -1)
    number: dict[int, int] = {}  # of each waiting job, by its identity, as jobs are equal only to themselves
    arrived, lengths = jobs.arrived.tolist(), jobs.rounds.tolist()
    t = arrivals = 0
    while t < rounds:
        # A job arrives at the end of its round, so it can begin in the next one.
        while arrivals < len(arrived) and arrived[arrivals] < t:
            job = Job(jobs.x[arrivals], float(arrived[arrivals]))
            number[id(job)] = arrivals
            order.add(job)
            arrivals += 1
        chosen = order.next(float(t))
        if chosen is None:
            if len(order):
                t += 1  # the discipline prefers to idle, and may choose otherwise in the next round
            else:
                # Nothing waits: the rounds until the next arrival are skipped.
                t = arrived[arrivals] + 1 if arrivals < len(arrived) else rounds
            continue
        j = number.pop(id(chosen))
        began[j], last = t, t + lengths[j] - 1
        if last >= rounds:
            break  # this job is still in service at the end of the run
        ended[j] = last
        order.done(chosen.x, float(lengths[j]))
        t = last + 1
    return Served(jobs, began, ended, rounds)


def run(text: str, source: Source, rounds: int, seed: int) -> Served:
    """Simulate one discipline on the jobs of one seed."""
    return serve(make_discipline(text, source, rounds), draw(source, rounds, seed), rounds)


def fcfs_mean(p: Sequence[float], l: Sequence[float]) -> float:  # noqa: E741 - λ_k
    """Return the stationary mean number in the system of Geo/G/1, first come, first served.

    p, l: the probabilities of an end and of an arrival in a round, by class.
    """
    lam = math.fsum(l)
    rho = math.fsum(rate / end for rate, end in zip(l, p, strict=True))
    second = math.fsum(rate / lam * 2 * (1 - end) / end**2 for rate, end in zip(l, p, strict=True))
    return rho + lam**2 * second / (2 * (1 - rho))


def priority_mean(p: Sequence[float], l: Sequence[float]) -> float:  # noqa: E741 - λ_k
    """Return the stationary mean number in the system under priorities in the order of the classes.

    No service is interrupted. p, l: as in `fcfs_mean`.
    """
    residual = math.fsum(rate * (1 - end) / end**2 for rate, end in zip(l, p, strict=True))
    number, load = 0.0, 0.0
    for rate, end in zip(l, p, strict=True):
        load_with = load + rate / end
        number += rate * (residual / ((1 - load) * (1 - load_with)) + 1 / end)
        load = load_with
    return number


def estimated_queue(source: Source, queue: Queue, rounds: int, seed: int) -> Queue:
    """Return the queue as estimated from the first half of so many rounds, served first come, first served.

    queue: the true queue, for the caps.
    """
    half = rounds // 2
    served = serve(Fcfs(), draw(source, half, seed), half)
    jobs = served.jobs
    rows = [(jobs.x[j], float(jobs.rounds[j]), True) for j in np.flatnonzero(served.ended >= 0)]
    # A job that is cut off is evidence as well: it took at least the rounds that it was in service.
    unfinished = np.flatnonzero((served.began >= 0) & (served.ended < 0))
    rows += [(jobs.x[j], float(half - served.began[j]), False) for j in unfinished]
    theta = fit(rows)[0].tolist() if rows else [0.0] * len(source.theta)
    contexts = [x for x, _ in source.classes]
    counts = [jobs.x.count(context) for context in contexts]
    # Half an arrival in one more round is added, so that no class has the rate 0.
    rates = tuple((count + 0.5 / len(counts)) / (half + 1) for count in counts)
    return Queue(tuple(chance(theta, x) for x in contexts), rates, queue.caps)


def number_left_by_plan(truth: Queue, estimate: Queue, rounds: int) -> float:
    """Return the exact expected number left after so many rounds from empty, under the plan for the estimate."""
    plan = optimum(estimate, rounds)
    return recursion(truth, rounds, follow(plan.acts, in_order(truth, estimate.p))).values[-1]


def number_left_by_window(queue: Queue, rounds: int, window: int) -> float:
    """Return the exact expected number left under SEPT until `window` rounds are left, and the optimum from then on."""
    plan = optimum(queue, window)
    return recursion(queue, rounds, follow(plan.acts, in_order(queue))).values[-1]


def horizons(queue: Queue, rounds: int) -> dict[str, Any]:
    """Return V_h of the empty system for h = 0 ... rounds, under the optimum and under SEPT."""
    return {"optimum": optimum(queue, rounds).values, "sept": sept(queue, rounds).values}
