"""Disciplines: the order in which a pool serves the requests that wait. PURE: no clock, no random numbers, no I/O.

Time is counted in rounds. A job with context x ends in a round with probability σ(θ·x), where σ(z) = 1/(1 + e^−z). So
it takes 1 + e^(−θ·x) rounds on average. No service is interrupted. There are four disciplines:

- `fcfs` serves the oldest job first.
- `sept` serves the job of the shortest mean first, and of equal ones the oldest.
- `esept` does the same with coefficients θ that it learns from the jobs that end.
- `lcp` also knows the round of the end, and does not begin a job that would only delay others until then.

Aging gives a job `age` rounds of credit for each round that it waits. All credits grow alike, so the order is that of
1 + e^(−θ·x) + age × (round of arrival), and a heap can hold it.

Sources: *Nonpreemptive Scheduling While Learning Context-Dependent Service Rates*; *Queue Length Regret Bounds for
Contextual Queueing Bandits*; *Algorithm for Contextual Queueing Bandits with Rate-Optimal Queue Length Regret*.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from workers.scheduling.logistic import Context, Logistic, mean_rounds

ALWAYS_SORTED_JOBS = 256  # up to so many waiting jobs, the order follows each new estimate at once
SORT_GROWTH = 1.1  # with more jobs, it follows when the number of observations has grown by this factor


@dataclass(slots=True, eq=False)
class Job:
    """A job that waits.

    x: its context, with the constant 1 first.
    arrived: the round of its arrival, from any origin.
    """

    x: Context
    arrived: float


class Discipline(Protocol):
    """The order of a queue. Each job that was added is either returned by `next`, once, or dropped."""

    def __len__(self) -> int:
        """Return the number of jobs that wait."""
        ...

    def add(self, job: Job) -> None: ...
    def next(self, now: float) -> Job | None:
        """Return the job to serve now; None if no job waits, or if it is better to idle."""
        ...

    def done(self, x: Context, rounds: float, finished: bool = True) -> None:
        """Learn from a job that was in service for so many rounds, to its end or not."""
        ...

    def drop(self, job: Job) -> None:
        """Remove a job that waits."""
        ...


class Fcfs:
    """Serves the oldest job first."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: Job) -> None:
        self._waiting.append(job)

    def next(self, now: float) -> Job | None:
        return self._waiting.popleft() if self._waiting else None

    def done(self, x: Context, rounds: float, finished: bool = True) -> None:
        """Learn nothing."""

    def drop(self, job: Job) -> None:
        self._waiting.remove(job)


class Sept:
    """Serves the job of the shortest expected service first, with coefficients that are known.

    theta: the coefficients of the components of a context.
    age: rounds of credit for each round that a job waits; 0 for no aging.
    """

    def __init__(self, theta: Sequence[float], age: float = 0.0) -> None:
        if not (0 <= age < math.inf):
            raise ValueError(f"age must be 0 or more, not {age:g}")
        self.theta = tuple(theta)
        self.age = age
        self._heap: list[tuple[float, int, Job]] = []  # key, number in the order of arrival, job
        self._dropped: set[int] = set()  # identities of jobs in the heap that were dropped
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap) - len(self._dropped)

    def __iter__(self) -> Iterator[Job]:
        """Return the jobs that wait, in no particular order."""
        return (job for _, _, job in self._heap if id(job) not in self._dropped)

    def _key(self, job: Job) -> float:
        return mean_rounds(self.theta, job.x) + self.age * job.arrived

    def add(self, job: Job) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self._key(job), self._count, job))

    def next(self, now: float) -> Job | None:
        while self._heap:
            job = heapq.heappop(self._heap)[2]
            if id(job) not in self._dropped:
                return job
            self._dropped.discard(id(job))
        return None

    def done(self, x: Context, rounds: float, finished: bool = True) -> None:
        """Learn nothing."""

    def drop(self, job: Job) -> None:
        # Removing the job from the heap would take a search. The heap is rebuilt when half of it was dropped.
        self._dropped.add(id(job))
        if 2 * len(self._dropped) > len(self._heap):
            self._sort()

    def _sort(self) -> None:
        """Build the heap again, with the present coefficients and without the dropped jobs."""
        self._heap = [(self._key(job), n, job) for _, n, job in self._heap if id(job) not in self._dropped]
        self._dropped.clear()
        heapq.heapify(self._heap)


class Esept(Sept):
    """Serves the job of the shortest expected service first, with coefficients learned from the jobs that end.

    d: the number of components of a context.
    kappa: the weight of the first guess, that all coefficients are 0.
    age: as in `Sept`. Without aging a slow job may wait very long.
    """

    def __init__(self, d: int, kappa: float = 1.0, age: float = 0.02) -> None:
        super().__init__((0.0,) * d, age)
        self.model = Logistic(d, kappa)
        self._sorted_at = 0

    def next(self, now: float) -> Job | None:
        # Sorting many jobs after each observation would cost more than the slightly better order is worth.
        seen = self.model.observations
        if seen != self._sorted_at and (len(self._heap) <= ALWAYS_SORTED_JOBS or seen > SORT_GROWTH * self._sorted_at):
            self.theta, self._sorted_at = self.model.theta, seen
            self._sort()
        return super().next(now)

    def done(self, x: Context, rounds: float, finished: bool = True) -> None:
        self.model.learn(x, rounds, finished)
