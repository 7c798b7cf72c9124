"""Computes the measurements of a run from its rows. PURE."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.attack.arrival_fit import Gaps
from loadgen.attack.arrivals import ArrivalProcess
from loadgen.attack.histogram import Histogram
from loadgen.attack.records import DROPPED, ERRORS, OPEN, TIMED_OUT, Effort, Records

INTERVAL_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 3600.0)  # possible lengths
MAX_INTERVALS = 120
# Until all sending processes have stopped after a run was ended early. Closer to the end, a row counts as `cut` if it
# was not sent, because its process may have stopped before it was due.
STOP_SECONDS = 0.1
VIEWS = ("response", "service", "lateness")


@dataclass(frozen=True, slots=True)
class Interval:
    """Counts and response times of the requests that were planned in one interval of the run.

    begin: seconds from the start. p50, p99: response times of completed requests, seconds.
    """

    begin: float
    planned: int
    sent: int
    completed: int
    p50: float | None
    p99: float | None


@dataclass
class Measures:
    """The measurements of a run without its warm-up.

    begin, end: of the measured part, seconds from the start. gaps: the gaps between requests.
    views: histograms of response, service and lateness. intervals: of all rows, warm-up included.
    planned: requests in the measured part. Each of them is one of these:
    sent; dropped (over --max-in-flight); cut (not due when the run was ended early); unsent (due and not sent by then).
    in_time: sent before the traffic ended. unfinished: open when the run ended. warmup_requests: rows of the warm-up.
    last_done: the last response, seconds from the start.
    busy: seconds that all requests together were open, by the rows, warm-up included.
    status, errors, by_pool, by_target: counts by the codes of the records.
    """

    begin: float
    end: float
    gaps: Gaps
    views: dict[str, Histogram] = field(default_factory=lambda: {view: Histogram() for view in VIEWS})
    intervals: list[Interval] = field(default_factory=list)
    planned: int = 0
    sent: int = 0
    in_time: int = 0
    completed: int = 0
    dropped: int = 0
    unsent: int = 0
    cut: int = 0
    unfinished: int = 0
    warmup_requests: int = 0
    last_done: float = 0.0
    busy: float = 0.0
    status: Counter[int] = field(default_factory=Counter)
    errors: Counter[int] = field(default_factory=Counter)
    by_pool: Counter[int] = field(default_factory=Counter)
    by_target: Counter[int] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """The length of the measured part."""
        return self.end - self.begin

    @property
    def due(self) -> int:
        """Requests that had to be sent."""
        return self.planned - self.cut - self.dropped

    @property
    def achieved(self) -> float:
        """Requests a second that were sent in time."""
        return self.in_time / self.seconds if self.seconds else 0.0

    @property
    def lost(self) -> int:
        """Requests that timed out or were open at the end. Their times are longer than those of all responses."""
        return self.unfinished + self.errors[TIMED_OUT]


def measure(
    records: Records,
    process: ArrivalProcess | None,
    seconds: float,
    warmup: float = 0.0,
    cut: float = math.inf,
    ended: Sequence[float] = (math.inf,),
) -> Measures:
    """Compute the measurements of a run. All times are seconds from the start.

    process: of the arrivals; None for a trace. seconds: length of the whole traffic.
    cut: the instant at which the run was ended early; infinite if it was not.
    ended: by owner, the instant until which that process waited for responses.
    """
    end = max(min(seconds, cut), 0.0)
    measures = Measures(min(warmup, end), end, Gaps(process, seconds / max(1, len(records))))
    due = int(np.searchsorted(records.planned, cut + STOP_SECONDS, side="left"))
    width = next((step for step in INTERVAL_SECONDS if step * MAX_INTERVALS >= end), end / MAX_INTERVALS)
    for begin, rows in _intervals(records, due, width):
        _add(measures, records, begin, rows, np.asarray(ended), cut)
    not_due = len(records) - due
    measures.planned, measures.cut = measures.planned + not_due, measures.cut + not_due
    return measures


def _intervals(records: Records, due: int, width: float) -> Iterator[tuple[float, slice]]:
    """Yield the begin and the rows of each interval, up to the row `due`. The last interval includes its end."""
    last = float(records.planned[due - 1]) if due else 0.0
    begin, i = 0, 0
    while begin < due:
        until = (i + 1) * width
        end = due if until >= last else int(np.searchsorted(records.planned[:due], until, side="left"))
        yield round(i * width, 9), slice(begin, end)
        records.release(begin)
        begin, i = end, i + 1


def _add(measures: Measures, records: Records, begin: float, rows: slice, ended: NDArray[Any], cut: float) -> None:
    """Add the rows of one interval, which starts at `begin`. The other arguments are those of `measure`."""
    planned, sent, done = records.planned[rows], records.sent[rows], records.done[rows]
    status, error = records.status[rows], records.error[rows]
    # All rows, warm-up included.
    was_sent, was_completed = ~np.isnan(sent), (status >= 200) & (status < 400)
    owner = np.minimum(records.owner[rows], len(ended) - 1)  # a single instant stands for all owners
    open_seconds = np.where(np.isnan(done), ended[owner], done)[was_sent] - sent[was_sent]
    # The time of an open request is infinite as long as the end of its process is not known.
    measures.busy += float(open_seconds[np.isfinite(open_seconds)].sum())
    response = (done - planned)[was_completed]
    p50, p99 = np.percentile(response, (50, 99)).tolist() if len(response) else (None, None)
    counts = len(planned), int(was_sent.sum()), int(was_completed.sum())
    measures.intervals.append(Interval(begin, *counts, p50, p99))

    # The rows after the warm-up.
    measured = planned >= measures.begin
    was_sent, was_completed = was_sent & measured, was_completed & measured
    dropped = (error == DROPPED) & measured
    not_sent = measured & ~was_sent & ~dropped
    measures.warmup_requests += int((~measured).sum())
    measures.planned += int(measured.sum())
    measures.sent += int(was_sent.sum())
    measures.in_time += int((was_sent & (sent <= measures.end)).sum())
    measures.completed += int(was_completed.sum())
    measures.dropped += int(dropped.sum())
    measures.cut += int((not_sent & (planned >= cut - STOP_SECONDS)).sum())
    measures.unsent += int((not_sent & (planned < cut - STOP_SECONDS)).sum())
    measures.unfinished += int(((error == OPEN) & measured).sum())
    measures.gaps.add(planned[measured], sent[measured])
    measures.views["response"].add((done - planned)[was_completed])
    measures.views["service"].add((done - sent)[was_completed])
    measures.views["lateness"].add((sent - planned)[was_sent])
    if was_sent.any():
        measures.last_done = max(measures.last_done, float(np.nanmax(done[was_sent], initial=0.0)))
    _count(measures.status, status[was_sent])
    _count(measures.by_target, records.target[rows][was_sent])
    _count(measures.errors, error[was_sent & (error > 0)])
    _count(measures.by_pool, records.pool[rows][was_sent & (records.pool[rows] > 0)])


def _count(counter: Counter[int], values: NDArray[Any]) -> None:
    keys, counts = np.unique(values, return_counts=True)
    counter.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))


def named_errors(errors: Counter[int]) -> dict[str, int]:
    """Return the counts under the names of the errors."""
    return dict(sorted((ERRORS[code], n) for code, n in errors.items()))


def total(efforts: Sequence[Effort], what: str) -> float:
    """Return the sum of a field over all processes."""
    return float(sum(getattr(effort, what) for effort in efforts))
