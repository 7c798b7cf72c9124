"""lcp: learn, clear, plan, where it is known when all will be over; the fourth of `disciplines`. PURE.

Far from the end it is `esept` without aging. In the last `window` rounds what was learned is frozen, jobs are put into
at most `kmax` classes by their expected service, and the table of `planner` says which class to begin, or to idle: a
long job is not begun that would only hold up others until the end (in the very last round it is: it might just be
done). `learn`: part of the time, from the start, in which the oldest is served first, so that what is observed is a
fair sample; the theory wants it, practice does not. The phase of clearing is `esept`, too, so it has no code. One
server only: the table knows of one job in service.

Source: *Nonpreemptive Scheduling While Learning Context-Dependent Service Rates*; lengths of phases and classes are
ours.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from workers.scheduling.disciplines import Esept, Job
from workers.scheduling.logistic import Context, mean_rounds
from workers.scheduling.planner import Acts, Queue, optimum

SEEN = 4096  # contexts of arrivals that classes are made of
WIDEST = 2_000  # rounds of a plan
CAPS = {1: (100,), 2: (24, 60), 3: (8, 12, 30)}  # by number of classes: jobs waiting that the table tells apart


class Lcp(Esept):
    """Shortest expected service first, and a plan for the end.

    horizon: the round in which all is over. window: rounds before it that are planned, at most half of them all; the
    table is made at once when they begin, in 0.3 ms a round for three classes. kmax: classes, up to 3.
    """

    def __init__(
        self, d: int, horizon: float, window: int = 100, kmax: int = 3, kappa: float = 1.0, learn: float = 0.0
    ) -> None:
        super().__init__(d, kappa, age=0.0)
        if not 0 < horizon < math.inf or not 1 <= window <= WIDEST:
            raise ValueError(f"lcp needs horizon > 0 and a window from 1 to {WIDEST:,}, not {horizon:g} and {window}")
        if kmax not in CAPS or not 0 <= learn < 1:
            raise ValueError(f"lcp needs kmax 1, 2 or 3 and learn from 0 to below 1, not {kmax} and {learn:g}")
        self.horizon, self.window, self.kmax = horizon, min(window, int(horizon / 2)), kmax
        self._learns_until = learn * horizon
        self._learning = learn > 0
        self._arrivals: deque[Context] = deque(maxlen=SEEN)
        self._plan: tuple[Queue, list[float], list[Acts]] | None = None

    def _key(self, job: Job) -> float:
        return job.arrived if self._learning else super()._key(job)

    def add(self, job: Job) -> None:
        self._arrivals.append(job.x)
        super().add(job)

    def next(self, now: float) -> Job | None:
        if self._learning and now >= self._learns_until:
            self._learning = False
            self._sort()
        left = math.ceil(self.horizon - now)
        if self._learning or not 1 <= left <= self.window:
            return super().next(now)
        if not len(self):
            return None
        if self._plan is None:
            self._plan = self._planned(now)
        queue, edges, acts = self._plan
        waiting: list[list[Job]] = [[] for _ in queue.p]
        for job in self:
            waiting[bisect_left(edges, mean_rounds(self.theta, job.x))].append(job)
        state = tuple(min(len(jobs), cap) for jobs, cap in zip(waiting, queue.caps, strict=True))
        act = int(acts[left][state])
        if not act:
            return None
        chosen = min(waiting[act - 1], key=lambda job: (self._key(job), job.arrived))
        self.drop(chosen)
        return chosen

    def _planned(self, now: float) -> tuple[Queue, list[float], list[Acts]]:
        """The table for what has been learned: classes by expected rounds, quickest first, and the edges between."""
        self.theta = self.model.theta
        self._sort()
        means = sorted(mean_rounds(self.theta, x) for x in self._arrivals)
        edges = edges_between(means, self.kmax)
        classes: list[list[float]] = [[] for _ in range(len(edges) + 1)]
        for mean in means:
            classes[bisect_left(edges, mean)].append(mean)
        share = self._count / len(means)  # of all that came, where only the last are kept
        queue = Queue(
            p=tuple(len(each) / math.fsum(each) for each in classes),  # the harmonic mean keeps the mean service
            l=self._rates([share * len(each) for each in classes], now),
            caps=CAPS[len(classes)],
        )
        return queue, edges, optimum(queue, self.window).acts

    def _rates(self, counts: Sequence[float], now: float) -> tuple[float, ...]:
        rates = [(count + 0.5 / len(counts)) / (now + 1) for count in counts]
        total = math.fsum(rates)
        return tuple(rate / max(1.0, total / 0.99) for rate in rates)


def edges_between(values: Sequence[float], most: int) -> list[float]:
    """Where sorted values are cut into at most so many classes that none is empty: each value apart if they are that
    few, else at quantiles. A class holds what is above the edge before it, up to its own.

    >>> edges_between([1.0, 1.0, 9.0], 3), edges_between([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3)
    ([1.0], [2.0, 4.0])
    """
    different = sorted(set(values))
    if len(different) <= most:
        return different[:-1]
    cuts = {values[len(values) * k // most - 1] for k in range(1, most)}
    return sorted(cuts - {different[-1]})
