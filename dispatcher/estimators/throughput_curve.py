"""Estimates how fast a pool is and up to how many requests in flight it keeps up.

The model has two numbers. A request takes `service_seconds` (s) while at most `capacity` (c) requests are in flight.
With n > c requests in flight the pool completes c/s requests per second, so a request takes s n/c seconds. A pool of
c servers, a pool that shares c processors and a pool without any limit (c large) are all of this form; c need not be an
integer.

Two likelihoods are added. Departures with n in flight are Poisson with rate min(n, c)/s. The response time of a request
that found q in flight has mean s x_q and a variance proportional to v_q, with x_q = max(1, (q + 1)/c) and
v_q = 1 + (q + 1 − c)⁺/c². The first is right for shared pools, the second for FCFS pools of any service law.

Symbols: T_n -> `seconds_with[n]`, K_n -> `departures_from[n]`, G_q, Y_q and Z_q -> `found[q]`, `response_sum[q]` and
`response_squares[q]`, N -> `observations`, s0 -> `usual_seconds`, κ -> `PRIOR_WEIGHT`. Source: the rule is our own, see
docs/curve.md.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.core.types import Interval
from dispatcher.estimators.mean import Z95, gamma_quantile

Floats = NDArray[np.float64]

CAPACITIES = [2 ** (step / 2) for step in range(21)]  # the values that c may take, 1 to 1024
GRID = np.array(CAPACITIES)
PRIOR_WEIGHT = 2.0  # κ: the number of responses that the usual service time is worth
LIKELIHOOD_BAND = 1.0  # log likelihood that the largest c may lack to the likeliest one
COUNTS_AHEAD = 2  # beyond the largest count seen the pool is assumed to keep up for so many requests more
REFIT_SHARE = 1 / 32  # a new fit is due after this share of the observations
LEAST_VARIANCE = 1e-6  # of the second moment; it keeps the likelihood of constant response times finite
FEW = 64  # requests in flight up to which each new largest count brings a fit
MOST_COUNTS = 4096  # larger counts share the last place, which bounds memory and time
SUMS = ("seconds_with", "departures_from", "found", "response_sum", "response_squares")
HALF_CHI_SQUARE_95 = 1.92  # 95 % point of χ² with one degree of freedom, halved


@functools.cache
def _tables(counts: int) -> Floats:
    """Functions of capacity c and count n; shape (6, 21, counts), c along the second axis and n along the last.

    They are, with x the slowdown and v the relative variance of a request that found n: min(n, c), its logarithm, 1/v,
    x/v, x²/v and log v.
    """
    n, c = np.arange(counts, dtype=float), GRID[:, None]
    busy = np.minimum(n, c)
    slowdown = np.maximum(1.0, (n + 1) / c)
    variance = 1 + np.maximum(0.0, n + 1 - c) / c**2
    return np.stack(
        (
            busy,
            np.log(np.maximum(busy, 1.0)),
            1 / variance,
            slowdown / variance,
            slowdown**2 / variance,
            np.log(variance),
        )
    )


class Profile(NamedTuple):
    """The fit for each allowed capacity: arrays of one shape.

    log_likelihood: up to a constant. residual: sum of squares of the response times around their means, over v_q.
    """

    capacity: Floats
    service_seconds: Floats
    log_likelihood: Floats
    residual: Floats


class CapacityEstimate:
    """What is known of one pool, with 95 % intervals.

    service_seconds: s. capacity: c. throughput: c/s, requests per second. The bounds cover all capacities whose log
    likelihood is within 1.92 of the best; for s a gamma law is used. rate, interval: 1/s and its bounds, as for every
    learner.
    """

    __slots__ = ("capacity", "observations", "service_seconds", "throughput")

    def __init__(
        self, observations: float, service_seconds: Interval, capacity: Interval, throughput: Interval
    ) -> None:
        self.observations = observations
        self.service_seconds = service_seconds
        self.capacity = capacity
        self.throughput = throughput

    @property
    def rate(self) -> float:
        return 1 / self.service_seconds.value

    @property
    def interval(self) -> tuple[float, float]:
        low, high = self.service_seconds.low, self.service_seconds.high
        return 1 / high, 1 / low if low > 0 else math.inf


def _rows(largest: int) -> int:
    """The number of capacities that a largest count allows."""
    return bisect_left(CAPACITIES, largest + COUNTS_AHEAD)


class ThroughputCurve:
    """The sums and the fitted curve of one pool. Sums may be weighted; `weight` is the weight of an event of now.

    usual_seconds: the service time of a pool of which nothing is known. servers: a capacity that is allowed from the
    start, for a pool whose servers are known.

    >>> curve = ThroughputCurve(usual_seconds=1.0)
    >>> for _ in range(20):
    ...     curve.spend(1, 0.1, weight=1.0)
    ...     curve.complete(in_flight=1, found=0, response_seconds=0.1, weight=1.0)
    >>> curve.fit(weight=1.0, usual_seconds=0.1)
    >>> round(curve.service_seconds, 6)
    0.1
    """

    __slots__ = (
        "capacity",
        "departed",
        "departures_from",
        "fitted",
        "found",
        "largest",
        "response_squares",
        "response_sum",
        "responses",
        "seconds_with",
        "servers",
        "service_seconds",
        "unfitted",
    )

    def __init__(self, usual_seconds: float, servers: int = 1) -> None:
        self.servers = servers
        self.responses = 0  # counted alike, however old they are, and kept when the sums are cleared
        self.clear(usual_seconds)

    def __repr__(self) -> str:
        return f"<ThroughputCurve {self.service_seconds:.4g} s up to {self.capacity:.4g} in flight>"

    def clear(self, usual_seconds: float) -> None:
        """Forget everything."""
        self.seconds_with = [0.0, 0.0]
        self.departures_from = [0.0, 0.0]
        self.found = [0.0, 0.0]
        self.response_sum = [0.0, 0.0]
        self.response_squares = [0.0, 0.0]
        self.departed = 0.0  # the sum of departures_from
        self.largest = 0
        self.unfitted = 0
        self.fitted: Profile | None = None
        self.service_seconds = usual_seconds
        self.capacity = float(self.servers)

    def observations(self, weight: float) -> float:
        """N: the responses that are remembered, older ones counting less."""
        return self.departed / weight

    def join(self, in_flight: int) -> bool:
        """A request has joined, and makes `in_flight`. Returns whether there were never so many before.

        Beyond `FEW` only the counts that allow a larger capacity are reported, since each of them costs a fit.
        """
        self.unfitted += 1
        if in_flight <= self.largest:
            return False
        before = self.largest
        self._reach(in_flight)
        return in_flight <= FEW or _rows(in_flight) > _rows(before)

    def _reach(self, in_flight: int) -> None:
        """Make room for the sums of this count."""
        self.largest = in_flight
        missing = min(in_flight + 1, MOST_COUNTS) - len(self.found)
        if missing > 0:
            for sums in self._sums():
                sums.extend([0.0] * missing)

    def spend(self, in_flight: int, seconds: float, weight: float) -> None:
        """The pool had so many requests in flight for so many seconds."""
        if in_flight > self.largest:
            self._reach(in_flight)
        self.seconds_with[min(in_flight, MOST_COUNTS - 1)] += weight * seconds

    def complete(self, in_flight: int, found: int, response_seconds: float, weight: float) -> None:
        """A request has ended. in_flight: with it. found: the requests in flight when it joined."""
        most = max(in_flight, found + 1)
        if most > self.largest:
            self._reach(most)
        in_flight, found = min(in_flight, MOST_COUNTS - 1), min(found, MOST_COUNTS - 1)
        self.departures_from[in_flight] += weight
        self.departed += weight
        self.found[found] += weight
        self.response_sum[found] += weight * response_seconds
        self.response_squares[found] += weight * response_seconds * response_seconds
        self.responses += 1
        self.unfitted += 1

    def scale(self, factor: float) -> None:
        """Multiply all sums, for weights that have grown large."""
        for sums in self._sums():
            sums[:] = [factor * value for value in sums]
        self.departed *= factor

    def _sums(self) -> tuple[list[float], ...]:
        """In the order of `SUMS`."""
        return self.seconds_with, self.departures_from, self.found, self.response_sum, self.response_squares

    @property
    def work(self) -> float:
        """Seconds of work: each second counts for every request that is worked on."""
        return sum(seconds * min(n, self.capacity) for n, seconds in enumerate(self.seconds_with))

    def dump(self, weight: float) -> dict[str, list[float]]:
        """The sums in units of an event of now, for `load`; capacity and number of responses as lists of one."""
        sums = {name: [value / weight for value in getattr(self, name)] for name in SUMS}
        return {"capacity": [self.capacity], "responses": [self.responses], **sums}

    def load(self, dumped: Mapping[str, Sequence[float]], weight: float) -> None:
        """Take over what `dump` gave. Raises ValueError if it cannot be such sums; nothing is changed then."""
        missing = [name for name in ("capacity", "responses", *SUMS) if not dumped.get(name)]
        if missing:
            raise ValueError(f"{missing[0]} is missing")
        lists = [[weight * value for value in dumped[name]] for name in SUMS]
        if len({len(values) for values in lists}) != 1 or not 2 <= len(lists[0]) <= MOST_COUNTS:
            raise ValueError(f"its sums must have one length, from 2 to {MOST_COUNTS}")
        for name, values in zip(SUMS, lists, strict=True):
            setattr(self, name, values)
        self.departed = sum(self.departures_from)
        self.largest = len(self.found) - 1
        self.capacity = max(1.0, dumped["capacity"][0])
        self.responses = int(dumped["responses"][0])

    def is_fit_due(self, weight: float) -> bool:
        """Whether enough has been added since the last fit."""
        return self.unfitted * weight >= REFIT_SHARE * self.departed

    def fit(self, weight: float, usual_seconds: float) -> None:
        """Set `service_seconds` and `capacity`: the largest capacity that is nearly as likely as the likeliest one."""
        self.unfitted = 0
        self.fitted = profile = self.profile(weight, usual_seconds)
        likelihoods = profile.log_likelihood.tolist()
        enough = max(likelihoods) - LIKELIHOOD_BAND
        chosen = max(i for i, likelihood in enumerate(likelihoods) if likelihood >= enough)
        self.capacity = CAPACITIES[chosen]
        self.service_seconds = float(profile.service_seconds[chosen])

    def profile(self, weight: float, usual_seconds: float) -> Profile:
        """The service time and the log likelihood for each capacity that the counts seen allow."""
        n, size = self.departed / weight, len(self.found)
        prior = PRIOR_WEIGHT * usual_seconds
        most = max(min(self.largest + COUNTS_AHEAD, 1 + n), self.servers)
        rows = min(bisect_left(CAPACITIES, most) + 1, len(CAPACITIES))
        sums = np.array(
            (
                self.seconds_with,
                self.departures_from,
                self.response_squares,
                self.response_sum,
                self.found,
                self.found,
            )
        )
        tables = _tables(1 << (size - 1).bit_length())[:, :rows, :size]
        work, log_busy, second, mixed, norm, log_variance = (tables @ sums[:, :, None] / weight)[:, :, 0]

        work += prior
        second += prior * usual_seconds
        residual = np.maximum(second - (mixed + prior) ** 2 / (norm + PRIOR_WEIGHT), LEAST_VARIANCE * second)
        likelihood = log_busy - log_variance / 2 - (n + PRIOR_WEIGHT) * np.log(work * np.sqrt(residual))
        return Profile(GRID[:rows], work / (n + PRIOR_WEIGHT), likelihood, residual)

    def variation(self, weight: float) -> float:
        """The squared coefficient of variation of the service times, as of the last fit; 1 before the first."""
        if self.fitted is None:
            return 1.0
        residual = float(self.fitted.residual[CAPACITIES.index(self.capacity)])
        return residual / (self.departed / weight + PRIOR_WEIGHT) / self.service_seconds**2

    def estimate(self, weight: float) -> CapacityEstimate:
        """The fitted values with 95 % intervals; (0, inf) while less than one response is remembered."""
        n, s, c, profile = self.departed / weight, self.service_seconds, self.capacity, self.fitted
        unknown = CapacityEstimate(self.responses, *(Interval(value, 0.0, math.inf) for value in (s, c, c / s)))
        if n < 1 or profile is None:
            return unknown
        columns = (profile.capacity, profile.service_seconds, profile.log_likelihood, profile.residual)
        every = list(zip(*(column.tolist() for column in columns), strict=True))
        enough = max(likelihood for _, _, likelihood, _ in every) - HALF_CHI_SQUARE_95
        likely = [row for row in every if row[2] >= enough] + [(c, s, enough, 0.0)]
        variation = max(residual / seconds**2 for _, seconds, _, residual in likely) / (n + PRIOR_WEIGHT)
        equals = n / max(1.0, variation)  # exponential responses that would determine s as precisely
        if equals < 1:
            return unknown
        down, up = gamma_quantile(equals, -Z95) / equals, gamma_quantile(equals, Z95) / equals
        throughputs = [capacity / seconds for capacity, seconds, _, _ in likely]
        slowest = max(row[1] for row in likely) / down if down > 0 else math.inf
        return CapacityEstimate(
            self.responses,
            Interval(s, min(s, min(row[1] for row in likely) / up), max(s, slowest)),
            Interval(c, min(row[0] for row in likely), max(row[0] for row in likely)),
            Interval(c / s, min(c / s, min(throughputs) * down), max(c / s, max(throughputs) * up)),
        )
