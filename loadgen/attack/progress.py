"""Counts what has been sent and finished so far, from the rows that the sending processes write."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loadgen.attack.records import DROPPED, Records

RESPONSE_BOUNDS_SECONDS = (0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0)
LATENESS_BOUNDS_SECONDS = (0.0001, 0.0005, 0.001, 0.005, 0.02, 0.1, 0.5)
OUTCOMES = ("completed", "refused", "unanswered")  # status below 400, status from 400, no status


@dataclass(slots=True)
class Buckets:
    """Counts of times by bucket.

    bounds: upper bounds of the buckets, seconds. counts: by bucket; the last one is above all bounds.
    total: sum of the times, seconds.
    """

    bounds: tuple[float, ...]
    counts: NDArray[np.int64] = field(init=False)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = np.zeros(len(self.bounds) + 1, dtype=np.int64)

    def add(self, times: NDArray[np.float64]) -> None:
        self.counts += np.bincount(np.searchsorted(self.bounds, times), minlength=len(self.counts))
        self.total += float(times.sum())


class RunProgress:
    """Counters of a run, as of the last `update`."""

    def __init__(self, records: Records) -> None:
        self._records = records
        # Rows before the first are finished. Rows from `_due` on were not due at the last update.
        self._first = self._due = 0
        self._sent = self._finished = np.zeros(0, dtype=bool)  # by row, from the first
        self.sent = self.dropped = 0
        self.outcomes = dict.fromkeys(OUTCOMES, 0)
        self.lateness = Buckets(LATENESS_BOUNDS_SECONDS)
        self.response, self.service = Buckets(RESPONSE_BOUNDS_SECONDS), Buckets(RESPONSE_BOUNDS_SECONDS)
        self.latest = np.zeros(0)  # response times between the last two updates, seconds

    @property
    def total(self) -> int:
        """Requests in the whole plan."""
        return len(self._records)

    @property
    def finished(self) -> int:
        """Requests that have a response, or have failed."""
        return sum(self.outcomes.values())

    @property
    def in_flight(self) -> int:
        return self.sent - self.finished

    def update(self, at: float) -> None:
        """Count what has happened since the last update.

        at: seconds from the start. Only rows that are due by then and were not finished before are read.
        """
        records = self._records
        due = max(self._due, int(np.searchsorted(records.planned, at, side="right")))
        rows, new = slice(self._first, due), np.zeros(due - self._due, dtype=bool)
        was_sent, was_finished = np.concatenate([self._sent, new]), np.concatenate([self._finished, new])
        # The sending processes write meanwhile, so the columns are copied once.
        planned, sent, done = records.planned[rows], records.sent[rows].copy(), records.done[rows].copy()
        status, error = records.status[rows].copy(), records.error[rows].copy()
        is_sent, dropped = ~np.isnan(sent), error == DROPPED
        # A request that is open when the run ends gets the error OPEN and no time of completion: it is not finished.
        is_finished = (is_sent & ((status > 0) | (error > 0)) & ~np.isnan(done)) | dropped
        newly_sent, newly_finished = is_sent & ~was_sent, is_finished & ~was_finished
        self.sent += int(newly_sent.sum())
        self.dropped += int((newly_finished & dropped).sum())
        self.lateness.add((sent - planned)[newly_sent])
        self._count_outcomes(planned, sent, done, status, newly_finished & ~dropped)
        first_open = int(np.argmin(is_finished)) if not is_finished.all() else len(is_finished)
        self._sent, self._finished = is_sent[first_open:], is_finished[first_open:]
        self._first, self._due = self._first + first_open, due
        records.release(self._first)

    def _count_outcomes(
        self,
        planned: NDArray[np.float64],
        sent: NDArray[np.float64],
        done: NDArray[np.float64],
        status: NDArray[np.int16],
        finished: NDArray[np.bool_],
    ) -> None:
        completed = finished & (status >= 200) & (status < 400)
        unanswered = finished & (status == 0)
        self.outcomes["completed"] += int(completed.sum())
        self.outcomes["unanswered"] += int(unanswered.sum())
        self.outcomes["refused"] += int(finished.sum() - completed.sum() - unanswered.sum())
        self.latest = (done - planned)[completed]
        self.response.add(self.latest)
        self.service.add((done - sent)[completed])
