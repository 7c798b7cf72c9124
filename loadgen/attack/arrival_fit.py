"""Whether requests left as the named process says: the distance of the gaps between sends from its law. PURE.

Each gap is measured by the process's own clock, in arrivals expected meanwhile: exponential of mean 1 for a Poisson
process whatever its rate does (the time-rescaling theorem). Of other processes, in mean gaps, those as sent are
compared with those as planned.

The distance is Kolmogorov and Smirnov's with a slack in time, in the manner of Lévy's: the largest F(x − SLACK) −
G(x), either way round. Without it, a microsecond's jitter of even gaps would be a distance of one half. And as no
machine sends two requests in the same microsecond, with enough gaps any generator is told from any law; what is tested
is whether the gaps' law is within TOLERANCE of the named one. By the inequality of Dvoretzky, Kiefer and Wolfowitz
with Massart's constant independent gaps exceed TOLERANCE + ε with a chance of at most 2 exp(−2nε²) if it is. Gaps as
planned are those that were drawn: there is no ε. All is taken on a fine grid, so that memory does not grow with the
run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.attack.arrivals import ArrivalProcess, Times

BINS = 20_000
SLACK = 0.1  # mean gaps
TOLERANCE = 0.05
LEVEL = 0.01
FEWEST = 10  # gaps that say something

_EDGES = np.arange(1, BINS + 1) / BINS  # of u = 1 − exp(−x), x the gap
_BEFORE = np.clip(np.floor((1 - (1 - _EDGES) * math.exp(SLACK)) * BINS).astype(np.int64), 0, BINS)  # edges of x − SLACK


@dataclass(frozen=True, slots=True)
class Fit:
    """distance: of the two laws. allowed: above which the process is not the named one. against: what was compared
    with, `law` or `plan`."""

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
        self._held = np.zeros(0)  # sends that rows to come may precede

    def add(self, planned: Times, sent: Times) -> None:
        """Rows in the order of the plan; those that were not sent have no place in either."""
        there = ~np.isnan(sent)
        if not there.any():
            return
        planned, sent = planned[there], np.sort(np.concatenate([self._held, sent[there]]))
        known = int(np.searchsorted(sent, planned[-1], side="right"))  # nothing leaves before its planned instant
        self._planned += self._binned(planned, self._last_planned)
        self._last_planned = float(planned[-1])
        self._flush(sent[:known])
        self._held = sent[known:]

    def _flush(self, sent: Times) -> None:
        if len(sent):
            self._sent += self._binned(sent, self._last_sent)
            self._last_sent = float(sent[-1])

    def _clock(self, at: Times) -> tuple[Times, bool]:
        expected = self._process.expected(at) if self._process is not None else None
        return (at / self._mean, False) if expected is None else (expected, True)

    def _binned(self, at: Times, last: float) -> NDArray[np.int64]:
        instants = at if math.isnan(last) else np.concatenate([[last], at])
        passed = np.maximum(0.0, np.diff(self._clock(instants)[0]))
        places = np.minimum(BINS - 1, (-np.expm1(-passed) * BINS).astype(np.int64))
        return np.bincount(places, minlength=BINS)

    def fit(self) -> Fit | None:
        """None where there are too few gaps to compare. Nothing can be added afterwards."""
        self._flush(self._held)
        self._held = np.zeros(0)
        n = int(self._sent.sum())
        if n < FEWEST:
            return None
        law = self._clock(np.zeros(1))[1]
        _, sent, planned = self.curves()
        named = _EDGES if law else planned
        ahead = np.concatenate([[0.0], sent])[_BEFORE] - named
        behind = np.concatenate([[0.0], named])[_BEFORE] - sent
        distance = max(0.0, float(ahead.max()), float(behind.max()))
        allowed = TOLERANCE + (math.sqrt(math.log(2 / LEVEL) / (2 * n)) if law else 0.0)
        return Fit(distance, allowed, "law" if law else "plan", n)

    def curves(self) -> tuple[Times, Times, Times]:
        """Of the distribution functions: the grid of u, as sent, as planned; for pictures."""
        sent, planned = (np.cumsum(counts) / max(1, int(counts.sum())) for counts in (self._sent, self._planned))
        return _EDGES, sent, planned
