"""Tests whether the requests were sent as the arrival process demands, by the gaps between them. PURE.

The gaps of a Poisson process are measured on the process's own clock, in expected arrivals. On this clock they are
exponential with mean 1 at any rate (time-rescaling theorem). The gaps of other processes are measured in mean gaps, and
the gaps as sent are compared with the gaps as planned.

The distance of two laws F and G is that of Kolmogorov and Smirnov with a slack in time, similar to Lévy's: the largest
F(x − SLACK) − G(x), in both directions. Without slack, a jitter of a microsecond would turn even gaps into a distance
of one half. With enough gaps every real generator differs significantly from every law, because it cannot send two
requests at once. The test is therefore whether the law of the gaps is within TOLERANCE of the demanded law. If it is,
n independent gaps exceed TOLERANCE + ε with a probability of at most 2 exp(−2nε²). This is the inequality of
Dvoretzky, Kiefer and Wolfowitz with Massart's constant. Gaps as planned are known exactly, so they need no ε.

The distribution functions are computed on a grid, so the memory does not grow with the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.attack.arrivals import ArrivalProcess, Times

BINS = 20_000
SLACK = 0.1  # mean gaps
TOLERANCE = 0.05  # distance of the laws
ERROR_PROBABILITY = 0.01
MIN_GAPS = 10  # for a test

_EDGES = np.arange(1, BINS + 1) / BINS  # upper edges of the bins on the scale u = 1 − exp(−x), x the gap
# The index of the edge that belongs to x − SLACK: with 1 − u = exp(−x) this edge is at 1 − (1 − u) exp(SLACK).
_EDGES_BEFORE = np.clip(np.floor((1 - (1 - _EDGES) * math.exp(SLACK)) * BINS).astype(np.int64), 0, BINS)


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of the test.

    distance: of the two laws. allowed: the largest distance at which they count as equal.
    against: `law` or `plan`, with which the gaps as sent were compared. gaps: their number.
    """

    distance: float
    allowed: float
    against: str
    gaps: int


class Gaps:
    """Counts of gaps as planned and as sent. process: None for a trace. mean: of the gaps, seconds."""

    def __init__(self, process: ArrivalProcess | None, mean: float) -> None:
        self._process, self._mean = process, mean
        self._planned, self._sent = (np.zeros(BINS, dtype=np.int64) for _ in range(2))
        self._last_planned = self._last_sent = math.nan
        self._unordered = np.zeros(0)  # sending times that those of later rows may precede

    def add(self, planned: Times, sent: Times) -> None:
        """Count the gaps of the next rows of the plan. Rows that were not sent are ignored."""
        was_sent = ~np.isnan(sent)
        if not was_sent.any():
            return
        planned, sent = planned[was_sent], np.sort(np.concatenate([self._unordered, sent[was_sent]]))
        # A request is not sent before its planned instant, so later rows cannot precede these sending times.
        ordered = int(np.searchsorted(sent, planned[-1], side="right"))
        self._planned += self._binned(planned, self._last_planned)
        self._last_planned = float(planned[-1])
        self._add_sent(sent[:ordered])
        self._unordered = sent[ordered:]

    def _add_sent(self, sent: Times) -> None:
        if len(sent):
            self._sent += self._binned(sent, self._last_sent)
            self._last_sent = float(sent[-1])

    def _clock(self, at: Times) -> tuple[Times, bool]:
        """Return instants on the clock of the gaps, and whether this is the clock of a Poisson process."""
        expected = self._process.expected(at) if self._process is not None else None
        return (at / self._mean, False) if expected is None else (expected, True)

    def _binned(self, at: Times, last: float) -> NDArray[np.int64]:
        instants = at if math.isnan(last) else np.concatenate([[last], at])
        gaps = np.maximum(0.0, np.diff(self._clock(instants)[0]))
        bins = np.minimum(BINS - 1, (-np.expm1(-gaps) * BINS).astype(np.int64))
        return np.bincount(bins, minlength=BINS)

    def fit(self) -> Fit | None:
        """Return the result of the test, or None if there are too few gaps. Nothing can be added afterwards."""
        self._add_sent(self._unordered)
        self._unordered = np.zeros(0)
        n = int(self._sent.sum())
        if n < MIN_GAPS:
            return None
        is_poisson = self._clock(np.zeros(1))[1]
        _, sent, planned = self.curves()
        demanded = _EDGES if is_poisson else planned
        # Index 0 stands for x − SLACK below the first edge, where both distribution functions count as 0.
        above = np.concatenate([[0.0], sent])[_EDGES_BEFORE] - demanded
        below = np.concatenate([[0.0], demanded])[_EDGES_BEFORE] - sent
        distance = max(0.0, float(above.max()), float(below.max()))
        allowed = TOLERANCE + (math.sqrt(math.log(2 / ERROR_PROBABILITY) / (2 * n)) if is_poisson else 0.0)
        return Fit(distance, allowed, "law" if is_poisson else "plan", n)

    def curves(self) -> tuple[Times, Times, Times]:
        """Return the grid of u, and the distribution functions of the gaps as sent and as planned."""
        sent, planned = (np.cumsum(counts) / max(1, int(counts.sum())) for counts in (self._sent, self._planned))
        return _EDGES, sent, planned
