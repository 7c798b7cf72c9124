"""Whether requests left as the named process says: Kolmogorov and Smirnov's distance of the gaps between sends. PURE.

Each gap is turned into a number from 0 to 1 by the process's own clock: u = 1 − exp(−expected arrivals in the gap),
uniform for a Poisson process whatever its rate does (the time-rescaling theorem). Of other processes the gaps as sent
are compared with the gaps as planned. The distance is taken on a fine grid, so that memory does not grow with the run.

No machine sends two requests in the same microsecond, so with enough gaps any generator is told from any law. What is
tested is therefore whether the law of the gaps is within TOLERANCE of the named one: by the inequality of Dvoretzky,
Kiefer and Wolfowitz with Massart's constant, the distance seen exceeds TOLERANCE + ε with a chance of at most
2 exp(−2nε²) if it is.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.arrivals import ArrivalProcess, Times

BINS = 20_000
TOLERANCE = 0.05
LEVEL = 0.01


@dataclass(frozen=True, slots=True)
class Fit:
    """distance: of the two distribution functions. allowed: above which the process is not the named one. against: what
    was compared with, `law` or `plan`."""

    distance: float
    allowed: float
    against: str
    gaps: int


class Gaps:
    """Counts gaps, as they were planned and as they were sent. process: None for a trace; mean: of the gaps,
    seconds."""

    def __init__(self, process: ArrivalProcess | None, mean: float) -> None:
        self._process, self._mean = process, mean
        self._planned, self._sent = (np.zeros(BINS, dtype=np.int64) for _ in range(2))
        self._last_planned = self._last_sent = math.nan
        self._squares = 0.0

    def add(self, planned: Times, sent: Times) -> None:
        """Rows in the order of the plan; those that were not sent have no place in either."""
        there = ~np.isnan(sent)
        planned, sent = planned[there], np.sort(sent[there])
        if not len(planned):
            return
        before = np.concatenate([[self._last_planned], planned])
        gaps = np.diff(before[~np.isnan(before)])
        self._squares += float(((gaps - self._mean) ** 2).sum())
        self._planned += self._binned(planned, self._last_planned)
        self._sent += self._binned(sent, self._last_sent)
        self._last_planned, self._last_sent = float(planned[-1]), float(sent[-1])

    def _clock(self, at: Times) -> tuple[Times, bool]:
        expected = self._process.expected(at) if self._process is not None else None
        return (at / self._mean, False) if expected is None else (expected, True)

    def _binned(self, at: Times, last: float) -> NDArray[np.int64]:
        instants = at if math.isnan(last) else np.concatenate([[last], at])
        passed = np.maximum(0.0, np.diff(self._clock(instants)[0]))
        places = np.minimum(BINS - 1, (-np.expm1(-passed) * BINS).astype(np.int64))
        return np.bincount(places, minlength=BINS)

    def fit(self) -> Fit | None:
        """None where there is nothing to compare: fewer than ten gaps, or even ones, whose lateness says it all."""
        n = int(self._sent.sum())
        even = self._squares <= n * (0.01 * self._mean) ** 2
        if n < 10 or even:
            return None
        law = self._clock(np.zeros(1))[1]
        sent = np.cumsum(self._sent) / n
        named = np.arange(1, BINS + 1) / BINS if law else np.cumsum(self._planned) / n
        allowed = TOLERANCE + math.sqrt(math.log(2 / LEVEL) / (2 * n))
        return Fit(float(np.abs(sent - named).max()), allowed, "law" if law else "plan", n)

    def curves(self) -> tuple[Times, Times, Times]:
        """Of the distribution functions: the grid of u, as sent, as planned; for pictures."""
        n = max(1, int(self._sent.sum()))
        return np.arange(1, BINS + 1) / BINS, np.cumsum(self._sent) / n, np.cumsum(self._planned) / n
