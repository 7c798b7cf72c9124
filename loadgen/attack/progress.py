"""A run as it goes: what has been sent and answered so far, counted from the rows that the sending processes fill."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadgen.attack.records import DROPPED, Records

SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0)
LATE = (0.0001, 0.0005, 0.001, 0.005, 0.02, 0.1, 0.5)
OUTCOMES = ("completed", "refused", "unanswered")  # below 400, 400 and more, no status


@dataclass(slots=True)
class Buckets:
    """Cumulated in the end: counts[i] of those up to bounds[i] and over the one before, the last of all above."""

    bounds: tuple[float, ...]
    counts: NDArray[np.int64] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.bounds) + 1, dtype=np.int64)

    def add(self, times: NDArray[np.float64]) -> None:
        self.counts += np.bincount(np.searchsorted(self.bounds, times), minlength=len(self.counts))
        self.total += float(times.sum())


class Watch:
    """Counters of a run. `look` brings them up to date; it reads the rows that were still open at the last look."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._first = self._due = 0  # rows before the first are over, rows from `due` on were not looked at
        self._sent = self._over = np.zeros(0, dtype=bool)
        self.sent = self.dropped = 0
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.lateness, self.response, self.service = Buckets(LATE), Buckets(SECONDS), Buckets(SECONDS)
        self.latest = np.zeros(0)  # responses between the last two looks

    @property
    def total(self) -> int:
        return len(self._records)

    @property
    def over(self) -> int:
        return sum(self.outcomes.values())

    @property
    def in_flight(self) -> int:
        return self.sent - self.over

    def look(self, at: float) -> None:
        """at: seconds from the start; what is planned for later has not happened."""
        records = self._records
        due = max(self._due, int(np.searchsorted(records.planned, at, side="right")))
        rows, more = slice(self._first, due), np.zeros(due - self._due, dtype=bool)
        was_sent, was_over = np.concatenate([self._sent, more]), np.concatenate([self._over, more])
        planned, sent, done = records.planned[rows], records.sent[rows].copy(), records.done[rows].copy()
        status, error = records.status[rows].copy(), records.error[rows].copy()
        is_sent, dropped = ~np.isnan(sent), error == DROPPED
        is_over = (is_sent & ((status > 0) | (error > 0)) & ~np.isnan(done)) | dropped
        new_sent, new_over = is_sent & ~was_sent, is_over & ~was_over
        self.sent += int(new_sent.sum())
        self.dropped += int((new_over & dropped).sum())
        self.lateness.add((sent - planned)[new_sent])
        self._answered(planned, sent, done, status, new_over & ~dropped)
        settled = int(np.argmin(is_over)) if not is_over.all() else len(is_over)
        self._sent, self._over = is_sent[settled:], is_over[settled:]
        self._first, self._due = self._first + settled, due
        records.forget(self._first)

    def _answered(
        self, planned: NDArray[np.float64], sent: NDArray[np.float64], done: NDArray[np.float64],
        status: NDArray[np.int16], over: NDArray[np.bool_],
    ) -> None:  # fmt: skip
        good = over & (status >= 200) & (status < 400)
        none = over & (status == 0)
        self.outcomes["completed"] += int(good.sum())
        self.outcomes["unanswered"] += int(none.sum())
        self.outcomes["refused"] += int(over.sum() - good.sum() - none.sum())
        self.latest = (done - planned)[good]
        self.response.add(self.latest)
        self.service.add((done - sent)[good])
