"""lcp: the discipline that learns, clears the queue, and plans for a known end. PURE.

Far from the end it is `esept` without aging. In the last `window` rounds it freezes the estimate and puts the jobs into
at most `kmax` classes by their expected service. The table of `planner` then gives the class to begin, or idling: a
long job is not begun if it would only delay others until the end. (In the very last round it is, as it might end.)

`learn` is the part of the time, from the start, in which the oldest job is served first. Then the observed jobs are a
fair sample; the theory asks for it, but in practice it does not help. The theory's phase of clearing is `esept` as
well, so it has no code. There is one server only, because the table has one job in service.

Source: *Nonpreemptive Scheduling While Learning Context-Dependent Service Rates*; the lengths of phases and the classes
are ours.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

from workers.scheduling.disciplines import Esept, Job
from workers.scheduling.logistic import Context, mean_rounds
from workers.scheduling.planner import Acts, Queue, optimum

SAMPLED_ARRIVALS = 4096  # the classes are made from the contexts of so many last arrivals
MAX_WINDOW_ROUNDS = 2_000
MAX_ARRIVAL_CHANCE = 0.99  # in a round, over all classes
CAPS = {1: (100,), 2: (24, 60), 3: (8, 12, 30)}  # most waiting jobs in the table, by class; by number of classes


class Lcp(Esept):
    """Serves the job of the shortest expected service first, and follows a plan near the end.

    d: the number of components of a context.
    horizon: the round of the end.
    window: the rounds before the end that are planned, at most half of all. The table is computed at once when they
        begin; that takes 0.3 ms per round for three classes.
    kmax: the number of classes at the most, up to 3.
    kappa: as in `Esept`.
    learn: the part of the time, from the start, in which the oldest job is served first.
    """

    def __init__(
        self, d: int, horizon: float, window: int = 100, kmax: int = 3, kappa: float = 1.0, learn: float = 0.0
    ) -> None:
        super().__init__(d, kappa, age=0.0)
        if not 0 < horizon < math.inf or not 1 <= window <= MAX_WINDOW_ROUNDS:
            raise ValueError(
                f"lcp needs horizon > 0 and a window from 1 to {MAX_WINDOW_ROUNDS:,}, not {horizon:g} and {window}"
            )
        if kmax not in CAPS or not 0 <= learn < 1:
            raise ValueError(f"lcp needs kmax 1, 2 or 3 and learn from 0 to below 1, not {kmax} and {learn:g}")
        self.horizon, self.window, self.kmax = horizon, min(window, int(horizon / 2)), kmax
        self._learns_until = learn * horizon
        self._learning = learn > 0
        self._arrivals: deque[Context] = deque(maxlen=SAMPLED_ARRIVALS)
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
        left = math.ceil(self.horizon - now)  # a part of a round counts as one, as a job may end in it
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
        # Beyond the cap of a class the table has no state; the nearest one is taken.
        state = tuple(min(len(jobs), cap) for jobs, cap in zip(waiting, queue.caps, strict=True))
        act = int(acts[left][state])
        if not act:
            return None
        chosen = min(waiting[act - 1], key=lambda job: (self._key(job), job.arrived))
        self.drop(chosen)
        return chosen

    def _planned(self, now: float) -> tuple[Queue, list[float], list[Acts]]:
        """Compute the plan for the present estimate.

        Return the classes by expected rounds, quickest first, the edges between them, and the table.
        """
        # Until the end the coefficients stay, because the classes and the table belong to them.
        self.theta = self.model.theta
        self._sort()
        means = sorted(mean_rounds(self.theta, x) for x in self._arrivals)
        edges = edges_between(means, self.kmax)
        classes: list[list[float]] = [[] for _ in range(len(edges) + 1)]
        for mean in means:
            classes[bisect_left(edges, mean)].append(mean)
        share = self._count / len(means)  # all arrivals over those sampled, as only the last arrivals are kept
        queue = Queue(
            p=tuple(len(rounds) / math.fsum(rounds) for rounds in classes),  # this keeps the mean service of a class
            l=self._rates([share * len(rounds) for rounds in classes], now),
            caps=CAPS[len(classes)],
        )
        return queue, edges, optimum(queue, self.window).acts

    def _rates(self, counts: Sequence[float], now: float) -> tuple[float, ...]:
        """Return the probability of an arrival in a round, by class.

        Half an arrival in one more round is added to the counts.
        """
        rates = [(count + 0.5 / len(counts)) / (now + 1) for count in counts]
        # The planner knows at most one arrival per round, so the sum must stay below 1.
        total = math.fsum(rates)
        return tuple(rate / max(1.0, total / MAX_ARRIVAL_CHANCE) for rate in rates)


def edges_between(values: Sequence[float], most: int) -> list[float]:
    """Return the edges that cut sorted values into at most `most` classes, none of them empty.

    With at most `most` different values, each has its own class; otherwise the edges are quantiles. A class holds the
    values above the edge before it, up to its own edge.

    >>> edges_between([1.0, 1.0, 9.0], 3), edges_between([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3)
    ([1.0], [2.0, 4.0])
    """
    different = sorted(set(values))
    if len(different) <= most:
        return different[:-1]
    cuts = {values[len(values) * k // most - 1] for k in range(1, most)}
    return sorted(cuts - {different[-1]})
