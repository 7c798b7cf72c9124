"""What one dispatcher knows of a pool that others use too: the last report, its age, its own requests since. PURE.

The information state of a pool is (backlog last known, when, own requests sent since), and what is usual there.
"""

from __future__ import annotations

import math
from collections import deque

from dispatcher.core.types import Report
from dispatcher.policies.partial_information.queue_estimate import relaxed, with_others

USUAL_GAIN = 0.05  # of a new report in the running mean of a pool's backlogs
FADING = 0.01  # of the pool's rate: so that one that is not visited is not believed full for ever
KEPT = 256  # own requests whose times are kept for reports that are still under way
COUNTED = 20.0  # requests between two looks at a counter
RATE_GAIN = 0.05  # of a new look in the running rate, once there were enough of them


class Rate:
    """Events a second, from a counter that is seen now and then; it may begin anew."""

    __slots__ = ("_at", "_count", "_looks", "value")

    def __init__(self) -> None:
        self._count = self._at = math.nan
        self._looks = 0
        self.value: float | None = None

    def seen(self, count: float, now: float) -> None:
        if math.isnan(self._count) or count < self._count:
            self._count, self._at = count, now
        elif count - self._count >= COUNTED and now > self._at:
            found = (count - self._count) / (now - self._at)
            self._looks += 1
            before = self.value or 0.0
            self.value = before + max(RATE_GAIN, 1 / self._looks) * (found - before)
            self._count, self._at = count, now


class Sight:
    """Of one pool. backlog, at: as last known; usual: the running mean of its reports; None before the first."""

    __slots__ = ("_busy", "_depth", "_own_times", "_reported_at", "_reports", "_sent_then", "_served", "at", "backlog",
                 "between", "own", "sent", "total", "usual")  # fmt: skip

    def __init__(self) -> None:
        self.backlog, self.at = 0.0, -math.inf
        self.usual: float | None = None
        self.sent = 0
        self.own, self.total = Rate(), Rate()  # requests a second: ours, and everybody's
        self._reported_at = -math.inf
        self._own_times: deque[float] = deque(maxlen=KEPT)
        self._served = self._busy = math.nan
        self.between: tuple[float, float, float] | None = None  # backlog and own since, backlog now, seconds
        self._depth: float | None = None
        self._sent_then = self._reports = 0

    def reported(self, report: Report) -> tuple[float, float] | None:
        """Take a report in, unless a newer one was. Returns (services, busy seconds) since the one before, if it told
        them."""
        if report.at < self._reported_at:
            return None
        self.between = None
        if report.queue_depth is not None:
            if self._depth is not None:
                before = self._depth + self.sent - self._sent_then
                self.between = before, report.queue_depth, report.at - self._reported_at
            self._depth, self._sent_then = report.queue_depth, self.sent
        self._reported_at = report.at
        while self._own_times and self._own_times[0] <= report.at:
            self._own_times.popleft()
        if report.queue_depth is not None:
            self.backlog, self.at = report.queue_depth + len(self._own_times), report.at
            self._reports += 1
            usual = self.usual or 0.0
            self.usual = usual + max(USUAL_GAIN, 1 / self._reports) * (report.queue_depth - usual)
        if report.rps is not None:
            self.total.value = report.rps
        elif report.served is not None:
            self.total.seen(report.served, report.at)
        if report.served is None:
            return None
        return self._done(report.served, report.busy) if report.busy is not None else None

    def _done(self, served: float, busy: float) -> tuple[float, float] | None:
        services, seconds = served - self._served, busy - self._busy
        self._served, self._busy = served, busy
        return (services, seconds) if services > 0 and seconds > 0 else None  # NaN or a restart compare as False

    def chosen(self, left: float, now: float) -> None:
        """One of ours goes there now. left: the backlog that it is believed to find."""
        self.backlog, self.at = left + 1, now
        self._own_times.append(now)
        self.sent += 1
        self.own.seen(self.sent, now)

    def ours_left(self, now: float, mu: float, usual: float, belief: str, others: float) -> tuple[float, float]:
        """(expected backlog, chance that the pool is busy) by the named belief. others: requests a second that they
        send."""
        age = max(0.0, now - self.at) if self.at > -math.inf else math.inf
        if belief == "stale":
            return self.backlog, float(self.backlog > 0)
        if belief == "relax":
            if math.isinf(age):
                return usual, float(usual > 0)
            left = relaxed(self.backlog, age, mu, usual * math.exp(-FADING * mu * age))
            return left, float(left > 0)
        if math.isinf(age):
            return usual, min(1.0, usual)
        return with_others(self.backlog, age, mu, others if belief != "poisson" else 0.0)
