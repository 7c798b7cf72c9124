"""What one dispatcher knows of the queue of a pool that others use too. PURE.

It knows the last report, the age of that report, its own requests since, and the usual backlog of the pool.
"""

from __future__ import annotations

import math
from collections import deque

from dispatcher.core.types import Report
from dispatcher.policies.partial_information.queue_estimate import relaxed, with_others

USUAL_GAIN = 0.05  # the least weight of a new report in the running mean of a pool's backlogs
FADING = 0.01  # in units of the pool's rate: how fast the usual backlog of an unused pool fades, so that it is tried
MAX_OWN_TIMES = 256  # own requests whose times are kept for reports that are still under way
MIN_COUNTED = 20.0  # requests between two readings of a counter that give a rate
RATE_GAIN = 0.05  # the least weight of a new reading in the running rate


class CounterRate:
    """The rate of events per second, from a counter that is read from time to time. The counter may start anew."""

    __slots__ = ("_at", "_count", "_readings", "value")

    def __init__(self) -> None:
        self._count = self._at = math.nan
        self._readings = 0
        self.value: float | None = None

    def read(self, count: float, now: float) -> None:
        """Take in the present value of the counter."""
        if math.isnan(self._count) or count < self._count:  # the first reading, or a restart of the pool
            self._count, self._at = count, now
        elif count - self._count >= MIN_COUNTED and now > self._at:
            rate = (count - self._count) / (now - self._at)
            self._readings += 1
            before = self.value or 0.0  # the first reading has weight 1 and replaces it
            self.value = before + max(RATE_GAIN, 1 / self._readings) * (rate - before)
            self._count, self._at = count, now


class QueueObservation:
    """What is known of the queue of one pool.

    backlog, at: the last known number of requests there, own ones included, and its time.
    usual: the running mean of the reported backlogs, None before the first report.
    sent: the number of own requests.
    own_rate, total_rate: requests per second, own ones and all.
    between_reports: for the last two reports the backlog before plus own requests since, the backlog after, and the
        seconds between them; None if one of them had no backlog.
    """

    __slots__ = (
        "_busy_seconds",
        "_own_times",
        "_reported_at",
        "_reported_backlog",
        "_reports",
        "_sent_at_report",
        "_served",
        "at",
        "backlog",
        "between_reports",
        "own_rate",
        "sent",
        "total_rate",
        "usual",
    )

    def __init__(self) -> None:
        self.backlog, self.at = 0.0, -math.inf
        self.usual: float | None = None
        self.sent = 0
        self.own_rate, self.total_rate = CounterRate(), CounterRate()
        self.between_reports: tuple[float, float, float] | None = None
        self._own_times: deque[float] = deque(maxlen=MAX_OWN_TIMES)
        self._reported_at = -math.inf
        self._reported_backlog: float | None = None
        self._sent_at_report = self._reports = 0
        self._served = self._busy_seconds = math.nan

    def reported(self, report: Report) -> tuple[float, float] | None:
        """Take in a report, unless a newer one is known.

        Returns the services and the busy seconds since the report before, if the pool reports them.
        """
        if report.at < self._reported_at:
            return None
        self.between_reports = None
        if report.queue_depth is not None:
            if self._reported_backlog is not None:
                before = self._reported_backlog + self.sent - self._sent_at_report
                self.between_reports = before, report.queue_depth, report.at - self._reported_at
            self._reported_backlog, self._sent_at_report = report.queue_depth, self.sent
        self._reported_at = report.at
        # Requests sent before the report are in it, so only later ones have to be added to it.
        while self._own_times and self._own_times[0] <= report.at:
            self._own_times.popleft()
        if report.queue_depth is not None:
            self.backlog, self.at = report.queue_depth + len(self._own_times), report.at
            self._reports += 1
            usual = self.usual or 0.0
            self.usual = usual + max(USUAL_GAIN, 1 / self._reports) * (report.queue_depth - usual)
        if report.rps is not None:
            self.total_rate.value = report.rps
        elif report.served is not None:
            self.total_rate.read(report.served, report.at)
        if report.served is None or report.busy is None:
            return None
        return self._since_last_report(report.served, report.busy)

    def _since_last_report(self, served: float, busy: float) -> tuple[float, float] | None:
        services, seconds = served - self._served, busy - self._busy_seconds
        self._served, self._busy_seconds = served, busy
        # The comparison is false for NaN, at the first report, and after a restart of the pool.
        return (services, seconds) if services > 0 and seconds > 0 else None

    def request_sent(self, expected: float, now: float) -> None:
        """Count an own request. expected: the backlog that is expected to be there before it."""
        self.backlog, self.at = expected + 1, now
        self._own_times.append(now)
        self.sent += 1
        self.own_rate.read(self.sent, now)

    def expected(self, now: float, mu: float, usual: float, belief: str, others: float) -> tuple[float, float]:
        """Return the expected backlog and the probability that the pool is busy.

        mu: the rate of the pool, services per second.
        usual: its usual backlog.
        belief: the name of the rule (see `partial_sed`).
        others: the requests per second that other dispatchers send.
        """
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
