"""In which order a pool serves what waits: fcfs, sept, esept, lcp. PURE: no clock, no dice, no I/O.

Time is counted in rounds. A job with context x is done in a round with chance σ(θ·x), σ(z) = 1/(1 + e^−z), so it takes
1 + e^(−θ·x) rounds in the mean; nothing in service is interrupted. `sept` serves the shortest mean first, of equals the
oldest; `esept` learns θ from the jobs that end; `lcp` also knows when all will be over, and does not begin what would
keep the queue from shrinking until then. Aging gives a job `age` rounds of credit for each round it waits: as all
credits grow alike, the order is that of 1 + e^(−θ·x) + age × (round of arrival), and a heap holds it.

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

RESORTED = 256  # jobs, up to which the order follows each new estimate at once
GROWN = 1.1  # beyond, it does when there are so many times as many observations


@dataclass(slots=True, eq=False)
class Job:
    """x: its context, the constant 1 first. arrived: in which round (any origin)."""

    x: Context
    arrived: float


class Discipline(Protocol):
    """What a pool asks. A job that was added is either returned by `next`, once, or dropped."""

    def __len__(self) -> int:
        """How many wait."""
        ...

    def add(self, job: Job) -> None: ...
    def next(self, now: float) -> Job | None:
        """Whom to serve now; None if nobody waits, or it is better to idle."""
        ...

    def done(self, x: Context, rounds: float, finished: bool = True) -> None:
        """A job was in service for so many rounds, to its end or not."""
        ...

    def drop(self, job: Job) -> None:
        """One that waits has left."""
        ...


class Fcfs:
    """The oldest first."""

    def __init__(self) -> None:
        self._waiting: deque[Job] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, job: Job) -> None:
        self._waiting.append(job)

    def next(self, now: float) -> Job | None:
        return self._waiting.popleft() if self._waiting else None

    def done(self, x: Context, rounds: float, finished: bool = True) -> None:
        """Nothing is learned."""

    def drop(self, job: Job) -> None:
        self._waiting.remove(job)


class Sept:
    """The shortest expected service first, for coefficients that are known.

    theta: of the context's components. age: rounds of credit for each round waited, 0 for none.
    """

    def __init__(self, theta: Sequence[float], age: float = 0.0) -> None:
        if not (0 <= age < math.inf):
            raise ValueError(f"age must be 0 or more, not {age:g}")
        self.theta = tuple(theta)
        self.age = age
        self._heap: list[tuple[float, int, Job]] = []
        self._left: set[int] = set()  # of the heap, those that were dropped
        self._count = 0

    def __len__(self) -> int:
        return len(self._heap) - len(self._left)

    def __iter__(self) -> Iterator[Job]:
        """Those that wait, in no order."""
        return (job for _, _, job in self._heap if id(job) not in self._left)

    def _key(self, job: Job) -> float:
        return mean_rounds(self.theta, job.x) + self.age * job.arrived

    def add(self, job: Job) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self._key(job), self._count, job))

    def next(self, now: float) -> Job | None:
        while self._heap:
            job = heapq.heappop(self._heap)[2]
            if id(job) not in self._left:
                return job
            self._left.discard(id(job))
        return None

    def done(self, x: Context, rounds: float, finished: bool = True) -> None:
        """Nothing is learned."""

    def drop(self, job: Job) -> None:
        self._left.add(id(job))
        if 2 * len(self._left) > len(self._heap):
            self._sort()

    def _sort(self) -> None:
        """The heap anew: with the present coefficients, and without those that left."""
        self._heap = [(self._key(job), n, job) for _, n, job in self._heap if id(job) not in self._left]
        self._left.clear()
        heapq.heapify(self._heap)


class Esept(Sept):
    """The shortest expected service first, by coefficients that are learned from all jobs that end.

    d: components of a context. kappa: weight of the guess 0. age: as in `Sept`; without one a slow job may wait very
    long.
    """

    def __init__(self, d: int, kappa: float = 1.0, age: float = 0.02) -> None:
        super().__init__((0.0,) * d, age)
        self.model = Logistic(d, kappa)
        self._sorted_at = 0

    def next(self, now: float) -> Job | None:
        seen = self.model.observations
        if seen != self._sorted_at and (len(self._heap) <= RESORTED or seen > GROWN * self._sorted_at):
            self.theta, self._sorted_at = self.model.theta, seen
            self._sort()
        return super().next(now)

    def done(self, x: Context, rounds: float, finished: bool = True) -> None:
        self.model.learn(x, rounds, finished)
