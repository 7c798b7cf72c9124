"""From stamps to numbers. PURE."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.arrivals import ArrivalProcess
from loadgen.gaps import Gaps
from loadgen.histogram import Histogram
from loadgen.records import DROPPED, ERRORS, OPEN, Effort, Records

STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 3600.0)
MOST_INTERVALS = 120
VIEWS = ("response", "service", "lateness")


@dataclass(frozen=True, slots=True)
class Interval:
    """A stretch of the plan: what was planned in it, and what became of that. response: of the completed, seconds."""

    begin: float
    planned: int
    sent: int
    completed: int
    p50: float | None
    p99: float | None


@dataclass
class Measures:
    """What the rows of a run say, its warm-up left out. views: response, service, lateness.

    cut: planned and never due, because the run was ended early; dropped: due and not sent, over --max-in-flight.
    """

    begin: float
    end: float
    gaps: Gaps
    views: dict[str, Histogram] = field(default_factory=lambda: {view: Histogram() for view in VIEWS})
    intervals: list[Interval] = field(default_factory=list)
    planned: int = 0
    sent: int = 0
    completed: int = 0
    dropped: int = 0
    unfinished: int = 0
    cut: int = 0
    warmed: int = 0
    last_sent: float = 0.0
    last_done: float = 0.0
    busy: float = 0.0  # seconds that all requests were open, warm-up and all, by their stamps
    status: Counter[int] = field(default_factory=Counter)
    errors: Counter[int] = field(default_factory=Counter)
    by_pool: Counter[int] = field(default_factory=Counter)
    by_target: Counter[int] = field(default_factory=Counter)

    @property
    def seconds(self) -> float:
        """That were measured."""
        return self.end - self.begin


def measure(
    records: Records,
    process: ArrivalProcess | None,
    seconds: float,
    warmup: float = 0.0,
    cut: float = math.inf,
    ended: float = math.inf,
) -> Measures:
    """process: None for a trace. seconds: of the whole traffic. cut: when it was told to stop. ended: when the last
    answer was no longer waited for."""
    end = max(min(seconds, cut), 0.0)
    mean = seconds / max(1, len(records))
    found = Measures(min(warmup, end), end, Gaps(process, mean))
    width = next((step for step in STEPS if step * MOST_INTERVALS >= end), end / MOST_INTERVALS)
    for begin, rows in _intervals(records, width):
        _add(found, records, begin, rows, ended)
    return found


def _intervals(records: Records, width: float) -> Iterator[tuple[float, slice]]:
    """Rows by stretches of the plan."""
    last = float(records.planned[-1]) if len(records) else 0.0
    begin, at = 0, 0
    while begin < len(records):
        end = int(
            np.searchsorted(records.planned, (at + 1) * width, side="right" if (at + 1) * width > last else "left")
        )
        yield at * width, slice(begin, end)
        records.forget(begin)
        begin, at = end, at + 1


def _add(found: Measures, records: Records, begin: float, rows: slice, ended: float) -> None:
    planned, sent, done = records.planned[rows], records.sent[rows], records.done[rows]
    status, error = records.status[rows], records.error[rows]
    there = ~np.isnan(sent)
    spent = np.where(np.isnan(done), ended, done)[there] - sent[there]
    found.busy += float(spent[np.isfinite(spent)].sum())
    found.gaps.add(planned, sent)
    measured = planned >= found.begin
    found.warmed += int((~measured).sum())
    there, good = there & measured, (status >= 200) & (status < 400) & measured
    dropped = int(((error == DROPPED) & measured).sum())
    found.planned += int(measured.sum())
    found.sent += int(there.sum())
    found.completed += int(good.sum())
    found.dropped += dropped
    found.unfinished += int(((error == OPEN) & measured).sum())
    found.cut += int(measured.sum() - there.sum()) - dropped
    response = (done - planned)[good]
    for view, times in (
        ("response", response),
        ("service", (done - sent)[good]),
        ("lateness", (sent - planned)[there]),
    ):
        found.views[view].add(times)
    if there.any():
        found.last_sent = max(found.last_sent, float(sent[there].max()))
        found.last_done = max(found.last_done, float(np.nanmax(done[there], initial=0.0)))
    for counter, column in ((found.status, status), (found.by_target, records.target[rows])):
        _count(counter, column[there])
    _count(found.errors, error[there & (error > 0)])
    _count(found.by_pool, records.pool[rows][there & (records.pool[rows] > 0)])
    p50, p99 = np.percentile(response, (50, 99)).tolist() if len(response) else (None, None)
    found.intervals.append(Interval(begin, len(planned), int((~np.isnan(sent)).sum()), int(good.sum()), p50, p99))


def _count(counter: Counter[int], values: NDArray[Any]) -> None:
    keys, counts = np.unique(values, return_counts=True)
    counter.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))


def named_errors(errors: Counter[int]) -> dict[str, int]:
    """By what happened, in words."""
    return dict(sorted((ERRORS[code], n) for code, n in errors.items()))


def total(efforts: Sequence[Effort], what: str) -> float:
    """Over the processes."""
    return float(sum(getattr(effort, what) for effort in efforts))
