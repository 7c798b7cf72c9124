"""From stamps to numbers. PURE."""

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

STEPS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 3600.0)
MOST_INTERVALS = 120
STOPPING = 0.1  # seconds that it may take until everybody has heard that the run is over
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
    """What the rows of a run say, its warm-up left out. views: response, service, lateness. intervals: of all rows.

    Every planned request is one of: sent; dropped, over --max-in-flight; cut, never due, because the run was ended
    early; unsent, due and still waiting then. in_time: sent before the traffic ended.
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
    warmed: int = 0
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

    @property
    def due(self) -> int:
        """Requests that should have left."""
        return self.planned - self.cut - self.dropped

    @property
    def achieved(self) -> float:
        """Requests sent a second."""
        return self.in_time / self.seconds if self.seconds else 0.0

    @property
    def lost(self) -> int:
        """Requests that waited for an answer until nobody did any more: longer than any that had one."""
        return self.unfinished + self.errors[TIMED_OUT]


def measure(
    records: Records,
    process: ArrivalProcess | None,
    seconds: float,
    warmup: float = 0.0,
    cut: float = math.inf,
    ended: Sequence[float] = (math.inf,),
) -> Measures:
    """process: None for a trace. seconds: of the whole traffic. cut: when it was told to stop. ended: by owner, when
    the last answer was no longer waited for."""
    end = max(min(seconds, cut), 0.0)
    found = Measures(min(warmup, end), end, Gaps(process, seconds / max(1, len(records))))
    due = int(np.searchsorted(records.planned, cut + STOPPING, side="left"))
    width = next((step for step in STEPS if step * MOST_INTERVALS >= end), end / MOST_INTERVALS)
    for begin, rows in _intervals(records, due, width):
        _add(found, records, begin, rows, np.asarray(ended), cut)
    never = len(records) - due
    found.planned, found.cut = found.planned + never, found.cut + never
    return found


def _intervals(records: Records, due: int, width: float) -> Iterator[tuple[float, slice]]:
    """Rows before `due` by stretches of the plan; the last holds what is at its very end, too."""
    last = float(records.planned[due - 1]) if due else 0.0
    begin, at = 0, 0
    while begin < due:
        until = (at + 1) * width
        end = due if until >= last else int(np.searchsorted(records.planned[:due], until, side="left"))
        yield round(at * width, 9), slice(begin, end)
        records.forget(begin)
        begin, at = end, at + 1


def _add(found: Measures, records: Records, begin: float, rows: slice, ended: NDArray[Any], cut: float) -> None:
    planned, sent, done = records.planned[rows], records.sent[rows], records.done[rows]
    status, error = records.status[rows], records.error[rows]
    left, answered = ~np.isnan(sent), (status >= 200) & (status < 400)
    owner = np.minimum(records.owner[rows], len(ended) - 1)
    spent = np.where(np.isnan(done), ended[owner], done)[left] - sent[left]
    found.busy += float(spent[np.isfinite(spent)].sum())
    response = (done - planned)[answered]
    p50, p99 = np.percentile(response, (50, 99)).tolist() if len(response) else (None, None)
    found.intervals.append(Interval(begin, len(planned), int(left.sum()), int(answered.sum()), p50, p99))

    measured = planned >= found.begin
    there, good = left & measured, answered & measured
    dropped = (error == DROPPED) & measured
    stuck = measured & ~left & ~dropped
    found.warmed += int((~measured).sum())
    found.planned += int(measured.sum())
    found.sent += int(there.sum())
    found.in_time += int((there & (sent <= found.end)).sum())
    found.completed += int(good.sum())
    found.dropped += int(dropped.sum())
    found.cut += int((stuck & (planned >= cut - STOPPING)).sum())
    found.unsent += int((stuck & (planned < cut - STOPPING)).sum())
    found.unfinished += int(((error == OPEN) & measured).sum())
    found.gaps.add(planned[measured], sent[measured])
    found.views["response"].add((done - planned)[good])
    found.views["service"].add((done - sent)[good])
    found.views["lateness"].add((sent - planned)[there])
    if there.any():
        found.last_done = max(found.last_done, float(np.nanmax(done[there], initial=0.0)))
    _count(found.status, status[there])
    _count(found.by_target, records.target[rows][there])
    _count(found.errors, error[there & (error > 0)])
    _count(found.by_pool, records.pool[rows][there & (records.pool[rows] > 0)])


def _count(counter: Counter[int], values: NDArray[Any]) -> None:
    keys, counts = np.unique(values, return_counts=True)
    counter.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))


def named_errors(errors: Counter[int]) -> dict[str, int]:
    """By what happened, in words."""
    return dict(sorted((ERRORS[code], n) for code, n in errors.items()))


def total(efforts: Sequence[Effort], what: str) -> float:
    """Over the processes."""
    return float(sum(getattr(effort, what) for effort in efforts))
